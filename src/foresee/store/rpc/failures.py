"""How an error travels from one process to another: its kind, which is the name of its class, and its sentence.

In: an error, at the process that answers. Out: the same class with the same sentence, at the process that asked. What
is not ours is named, but its inside stays at home. Both sides may be of different versions: a kind that this one does
not know is the general error of the wire. Nothing here is ever executed or unpickled.
"""

from __future__ import annotations

import json
from typing import Any

from foresee import errors
from foresee.errors import ForeseeError, StoreError

KINDS: dict[str, type[ForeseeError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ForeseeError)
}
SENTENCE_CHARACTERS_MAX = 2000
BUSY = "busy"
"""Kind of a refusal that may pass: the same request may be sent again a little later."""


class BusyError(Exception):
    """The server is at one of its limits right now."""


def to_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def failure_header(
    error: BaseException, who: str = "server", otherwise: type[ForeseeError] = StoreError
) -> dict[str, Any]:
    """An error of `who` as it travels; a class that the other side cannot know goes as the nearest one above it."""
    if isinstance(error, BusyError):
        return {"error": BUSY, "sentence": str(error)}
    kind = next((it.__name__ for it in type(error).__mro__ if KINDS.get(it.__name__) is it), None)
    if kind is not None:
        return {"error": kind, "sentence": str(error)}
    sentence = f"the {who} failed with {type(error).__name__}; see its output for the cause"
    return {"error": otherwise.__name__, "sentence": sentence}


def raise_failure(
    header: dict[str, Any], address: str | None = None, otherwise: type[ForeseeError] = StoreError
) -> None:
    """Raises what a header reports, if it reports a failure, with the server's address in front if one is given."""
    kind = header.get("error")
    if kind is None:
        return
    sentence = str(header.get("sentence"))[:SENTENCE_CHARACTERS_MAX]
    if address is not None:
        sentence = f"server {address}: {sentence}"
    if kind == BUSY:
        raise BusyError(sentence)
    raise KINDS.get(str(kind), otherwise)(sentence)
