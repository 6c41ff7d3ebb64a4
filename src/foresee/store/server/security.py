"""Who may talk to a server: this machine by default, anyone else only with TLS and a token.

In: an address, certificate files, a token file or the environment. Out: `Security`, or a refusal before anything
listens. The token is never an argument, never printed, and compared in constant time; a call without the right one is
answered at once and never reaches the rows.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import flight

from foresee.errors import ConfigError
from foresee.store.remote.access import AUTHORIZATION, is_loopback, read_token

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
"""Names of machines; anything else could be read as another kind of address, such as a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a server asks of its clients."""

    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def has_tls(self) -> bool:
        return self.certificate is not None


def location(host: str, port: int, security: Security) -> str:
    """Where a server listens, as gRPC writes it."""
    bare = host.strip("[]")
    return f"{'grpc+tls' if security.has_tls else 'grpc'}://{f'[{bare}]' if ':' in bare else bare}:{port}"


def check_address(host: str, security: Security) -> None:
    """Refuses to listen where others can connect, unless they are held off."""
    if not _HOST.fullmatch(host) and not _is_ip(host):
        raise ConfigError(
            f"{host!r} is neither the name of a machine nor an IP address; give one of its own, such as 127.0.0.1"
        )
    if is_loopback(host):
        return
    needed = {"TLS": security.has_tls, "a token": security.token is not None}
    missing = [name for name, there in needed.items() if not there]
    if missing:
        raise ConfigError(
            f"this server would listen on {host}, where other machines can reach it, without {' and '.join(missing)}; "
            "give --tls-certificate, --tls-key and --token-file, or listen on 127.0.0.1"
        )


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return False
    return True


def read_security(certificate: Path | None, key: Path | None, token_file: Path | None) -> Security:
    if (certificate is None) != (key is None):
        raise ConfigError("TLS needs a certificate and its key; give both --tls-certificate and --tls-key")
    return Security(
        certificate=None if certificate is None else _read_pem(certificate),
        key=None if key is None else _read_pem(key),
        token=read_token(token_file),
    )


def _read_pem(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); check its name and owner") from error
    if b"-----BEGIN" not in content:
        raise ConfigError(f"{path} is not a PEM file: it has no BEGIN line; give the certificate and key as PEM")
    return content


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Runs before every call."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> None:
        given = next(iter(headers.get(AUTHORIZATION, [])), "")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")
