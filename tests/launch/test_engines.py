"""The engines of ours pass the suite that one of yours has to pass. One cluster of Ray serves all of its tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from ports import free_port

from foresee.testing import EngineSuite
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


LONG = os.environ.get("FORESEE_ENGINES") == "long"
"""Each test takes seconds: `make chaos-machines` runs all of them, `make test` those that say most."""
SHORT = ("test_a_run_that_loses_every_kind_of_part_ends_with_the_same_bytes", "test_a_mistake_is_a_sentence")


@pytest.fixture(autouse=True)
def sampled(request: pytest.FixtureRequest) -> None:
    if not LONG and request.function.__name__ not in SHORT:
        pytest.skip("one of the longer tests of an engine: FORESEE_ENGINES=long, or make chaos-machines")


class TestLocalEngine(EngineSuite):
    """Parts on this machine, forked from a warm process."""


class TestRayEngine(EngineSuite):
    """A cluster of one node, reached by its address, as any other would be: with TLS and a token."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        pytest.importorskip("ray", reason="Ray is an extra: pip install '.[ray]'")
        with one_node(tmp_path_factory.mktemp("ray")) as address:
            cls.options = ("--on", "ray", "--address", address)
            yield


@contextmanager
def one_node(folder: Path) -> Iterator[str]:
    """A head node of its own; its processes end with the one that `ray start` blocks in."""
    token, port = folder / "token", free_port()
    token.write_text("a" * 64)
    token.chmod(0o600)
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_TMPDIR": tempfile.gettempdir()}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in settings.items():
            patched.setenv(name, value)
        words = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
        words += ["--num-cpus=8", "--include-dashboard=false", "--disable-usage-stats", "--node-ip-address=127.0.0.1"]
        with open(folder / "node.txt", "wb") as output:
            node = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: is_open(port) or node.poll() is not None, "a node of Ray")
            yield f"127.0.0.1:{port}"
        finally:
            node.terminate()
            node.wait()


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False
