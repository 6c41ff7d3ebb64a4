"""One warm process for all tests with embedding servers; it starts with the first that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from remote_servers import Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers
