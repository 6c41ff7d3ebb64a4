"""Where the published traces are, and small clusters to plan for."""

from pathlib import Path

import pytest

from foresee.cluster.formats.shockwave import StoredResult, Trace, read_results, read_trace
from real_data import RealData


@pytest.fixture(scope="session")
def published(real_data: RealData) -> Path:
    return real_data.path("cluster")


@pytest.fixture(scope="session")
def trace32(published: Path) -> Trace:
    return read_trace(published / "shockwave_trace_32gpu.json.gz")


@pytest.fixture(scope="session")
def results32(published: Path) -> dict[str, StoredResult]:
    return read_results(published / "shockwave_reference_32gpu.json.gz")
