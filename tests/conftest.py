"""Settings for every test: no deadlines (the first call of a kernel compiles it), reproducible examples, no leaks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from leaks import held, left_behind

os.environ.setdefault("OMP_NUM_THREADS", "1")
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
