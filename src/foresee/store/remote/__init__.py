"""Rows on embedding servers: the client side of `foresee serve`.

The store is imported when it is first asked for: it needs `rpc`, which reads the protocol in this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.store.remote.store import RemoteStore

__all__ = ["RemoteStore"]


def __getattr__(name: str) -> Any:
    if name != "RemoteStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foresee.store.remote.store import RemoteStore

    return RemoteStore
