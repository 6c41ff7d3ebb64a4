"""One warm process for all hostile tests with servers, and the helpers of the neighbouring folders."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for folder in ("store", "chaos", "engine", "run"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

from remote_servers import Servers  # noqa: E402


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("hostile")) as servers:
        yield servers
