"""Settings for every test: no deadlines (the first call of a kernel compiles it), reproducible examples, no leaks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from leaks import held, left_behind
from real_data import RealData
from s3_server import ENVIRONMENT, Network, s3_server

TESTS = Path(__file__).parent
COVERED = ("io", "data", "models", "plan", "tools/report", "run")
"""Folders whose tests count for `make test COVERAGE=1`. Tracing slows tests down, so the others, of which most start
processes that coverage does not see, run untraced."""

os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests send it to processes
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("FORESEE_HYPOTHESIS", "default"))


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Set up first and torn down last, so what other fixtures clean up does not count."""
    before = held()
    yield
    found = left_behind(before)
    assert not found, f"this test leaks: {'; '.join(found)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that take the fixture `real_data`, themselves or through another fixture, and those not to trace."""
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_data)
        if not any(item.path.is_relative_to(TESTS / folder) for folder in COVERED):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="session")
def real_data() -> RealData:
    """Real logs; a test that asks for a missing one is skipped."""
    return RealData()


@pytest.fixture(scope="session")
def s3_server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """One S3 server for all tests that need one."""
    with s3_server(tmp_path_factory.mktemp("s3")) as port:
        calm = Network(port)
        yield calm.port
        calm.close()


@pytest.fixture
def s3_port(s3_server_port: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The same, and its credentials."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return s3_server_port


@pytest.fixture
def network(s3_port: int) -> Iterator[Network]:
    """A way to it on which things happen."""
    network = Network(s3_port)
    yield network
    network.close()
