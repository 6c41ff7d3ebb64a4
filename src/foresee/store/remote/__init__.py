"""Rows on embedding servers: the client side of `foresee serve`."""

from foresee.store.remote.store import RemoteStore

__all__ = ["RemoteStore"]
