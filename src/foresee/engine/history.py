"""What tables were trained on, as they keep it with their commits: a short list of sources, newest last.

In: the document that tables keep (`sources.json`), and the source of a loop. Out: the list, the source that a commit
was trained on, and the document with one more. An entry is written before its steps are committed, and counts once a
later step is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from foresee.errors import StoreError
from foresee.io import bounded_json

LOG, NAME, BATCHES = "log", "name", "batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One source, as it is written down."""

    since: int
    """The step of the tables at which its first trained batch was trained."""
    first_batch: int
    """Which batch of the source that was."""
    kind: str
    """log, name or batches."""
    marks: tuple[str, ...]
    """A digest, a name, or a digest of each of the first batches."""

    def shows_another(self, kind: str, marks: Sequence[str]) -> bool:
        """Whether this is a different source from one that begins with these marks."""
        return kind != self.kind or any(ours != theirs for ours, theirs in zip(self.marks, marks, strict=False))


def newest(history: Sequence[Trained], committed_step: int) -> Trained | None:
    """The source of a commit: what was written down after it was never committed."""
    return next((it for it in reversed(history) if it.since < committed_step), None)


def written_down(history: bytes | None, trained: Trained, committed_step: int) -> bytes | None:
    """The history with this source; None if it is there already."""
    known = parse(history)
    if any(it.since == trained.since < committed_step for it in known):
        return None
    entries = [*(it for it in known if it.since < trained.since), trained]
    return (json.dumps({"sources": [asdict(it) for it in entries]}, indent=2) + "\n").encode()


def parse(history: bytes | None) -> list[Trained]:
    if history is None:
        return []
    try:
        return [_entry(it) for it in bounded_json.objects(bounded_json.parse_object(history), "sources")]
    except ValueError as error:
        raise StoreError(
            f"sources.json in the folder of the tables is damaged ({error}); restore it from a copy, or remove it"
        ) from None


def _entry(content: dict[str, Any]) -> Trained:
    kind, marks = bounded_json.text_of(content, "kind"), content.get("marks")
    if not isinstance(marks, list) or not marks or not all(isinstance(it, str) for it in marks):
        raise ValueError("marks are not a list of texts")
    if kind not in (LOG, NAME, BATCHES):
        raise ValueError("its kind is not known")
    return Trained(
        since=bounded_json.whole(content, "since"), first_batch=bounded_json.whole(content, "first_batch"), kind=kind,
        marks=tuple(marks),
    )  # fmt: skip
