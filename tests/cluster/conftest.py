"""Where the published traces are, and small clusters to plan for."""

import os
from pathlib import Path

import pytest

from foresee.cluster.formats.shockwave import StoredResult, Trace, read_results, read_trace

DATA = Path(os.environ.get("FORESEE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "cluster"


@pytest.fixture(scope="session")
def published() -> Path:
    if not DATA.is_dir():
        pytest.skip(
            f"the published cluster traces are not in {DATA}: set FORESEE_DATA to the folder that holds cluster/"
        )
    return DATA


@pytest.fixture(scope="session")
def trace32(published: Path) -> Trace:
    return read_trace(published / "shockwave_trace_32gpu.json.gz")


@pytest.fixture(scope="session")
def results32(published: Path) -> dict[str, StoredResult]:
    return read_results(published / "shockwave_reference_32gpu.json.gz")
