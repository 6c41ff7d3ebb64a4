"""Asks a server how it is.

In: an address. Out: the numbers of the `status` action, or a sentence that names the server.
"""

from __future__ import annotations

import time
from typing import Any

from foresee.store.remote import protocol
from foresee.store.remote.endpoint import Endpoint, ask_once


def ask_status(
    address: str,
    *,
    token: str | None = None,
    tls_root_certificate: bytes | None = None,
    timeout_seconds: float = 5.0,
) -> dict[str, Any]:
    endpoint = Endpoint.parse(address, token, tls_root_certificate)
    return ask_once(endpoint, protocol.STATUS, {}, time.monotonic() + timeout_seconds)
