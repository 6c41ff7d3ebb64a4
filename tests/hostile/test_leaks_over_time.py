"""Seconds of what `make chaos` does for an hour: serving and training again and again keeps nothing."""

from __future__ import annotations

import leaks_over_time


def test_serving_and_training_again_and_again_keeps_nothing() -> None:
    found = leaks_over_time.run(seconds=4.0, progress=lambda line: None)
    assert found["leak_rounds"] >= 8
    for name in ("trainer", "server"):
        # One thread or file may be in the middle of its end; a leak is one a round.
        assert found[f"{name}_threads_more"] <= 2
        assert found[f"{name}_files_more"] <= 2
        assert found[f"{name}_megabytes_more"] < 24
