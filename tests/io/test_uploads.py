"""Copies in the background: what failed, for whatever reason, never counts as copied."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from foresee.errors import StoreError
from foresee.io.uploads import Needless, Uploads

WAIT_SECONDS = 20.0


@pytest.fixture
def uploads() -> Iterator[Uploads]:
    made = Uploads("s3://x")
    yield made
    made.close()


class Blocked:
    """A job that is under way until `let_go`."""

    def __init__(self, uploads: Uploads) -> None:
        self._begun, self._may_end = threading.Event(), threading.Event()
        uploads.submit("blocked", "the blocked job", self._act)
        assert self._begun.wait(WAIT_SECONDS)

    def _act(self) -> None:
        self._begun.set()
        self._may_end.wait(WAIT_SECONDS)

    def let_go(self) -> None:
        self._may_end.set()


@pytest.mark.parametrize("error", [StoreError("away"), OSError("away"), KeyError("away"), MemoryError("away")])
def test_a_job_that_fails_is_tried_again(uploads: Uploads, error: Exception) -> None:
    seen: list[str | None] = []

    def act() -> None:
        seen.append(uploads.behind())
        if len(seen) < 2:
            raise error

    uploads.submit("commit", "the commit of step 1", act)
    assert uploads.wait(WAIT_SECONDS)
    assert uploads.behind() is None
    assert len(seen) == 2, "an error counted as success"
    assert "away" in str(seen[1]), "and what is wrong is said meanwhile"


@pytest.mark.parametrize("error", [StoreError, KeyError])
def test_what_is_given_up_does_not_count_as_copied(error: type[Exception]) -> None:
    uploads, tried = Uploads("s3://x"), threading.Event()

    def act() -> None:
        tried.set()
        raise error("away")

    uploads.submit("commit", "the commit of step 1", act)
    uploads.submit("checkpoint", "the checkpoint of step 1", lambda: None)
    assert tried.wait(WAIT_SECONDS)
    assert not uploads.wait(0.0)
    uploads.close()
    assert not uploads.wait(), "nobody waits forever for what was given up"
    assert not uploads.idle
    assert "the commit of step 1 is on its way to s3://x" in str(uploads.behind())


def test_what_was_waiting_when_it_was_given_up_does_not_count_as_copied() -> None:
    uploads = Uploads("s3://x")
    blocked = Blocked(uploads)
    uploads.submit("commit", "the commit of step 1", lambda: None)
    closing = threading.Thread(target=uploads.close)
    closing.start()
    while not uploads.closed:
        pass
    blocked.let_go()
    closing.join()
    assert not uploads.wait()
    assert "the commit of step 1" in str(uploads.behind())


def test_a_needless_job_is_done(uploads: Uploads) -> None:
    def act() -> None:
        raise Needless

    uploads.submit("commit", "the commit of step 1", act)
    assert uploads.wait(WAIT_SECONDS)
    assert uploads.behind() is None


def test_a_newer_job_takes_the_place_of_a_waiting_one(uploads: Uploads) -> None:
    blocked, done = Blocked(uploads), list[str]()
    for key, what in (("commit", "1"), ("checkpoint", "2"), ("commit", "3")):
        uploads.submit(key, what, lambda what=what: done.append(what))  # type: ignore[misc]
    blocked.let_go()
    assert uploads.wait(WAIT_SECONDS)
    assert done == ["2", "3"]
