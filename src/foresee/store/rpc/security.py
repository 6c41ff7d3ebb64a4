"""Who may talk to a server: this machine by default, anyone else only with TLS and a token.

In: an address, certificate files, a token file or the environment. Out: a token, a `Security`, or a sentence before
anything listens or connects. A token is never an argument of a command, never printed or part of a message, and
compared in constant time; a call without the right one is answered at once and reaches nothing behind it.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import flight

from foresee.errors import ConfigError

_logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "FORESEE_TOKEN"
TOKEN_CHARACTERS_MIN = 16
TOKEN_FILE_BYTES_MAX = 4096
AUTHORIZATION = "authorization"
"""The header of every call that carries the token."""


def is_loopback(host: str) -> bool:
    """Only names and numbers that can never leave this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token out of a file only its owner can read, or out of the environment; None if there is neither."""
    if path is None:
        token, source = environment.get(TOKEN_VARIABLE), f"the variable {TOKEN_VARIABLE}"
    else:
        token, source = _read_token_file(path), str(path)
    if token is not None and (len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"the token in {source} has to be at least {TOKEN_CHARACTERS_MIN} printable ASCII characters on one line; "
            "make one with: openssl rand -hex 32"
        )
    return token


def _read_token_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {path}")
        if not stat.S_ISREG(mode):
            raise ConfigError(f"the token file {path} is no ordinary file; give one of mode 600 with a token in it")
        with open(path, "rb") as file:
            content = file.read(TOKEN_FILE_BYTES_MAX + 1)
        if len(content) > TOKEN_FILE_BYTES_MAX:
            raise ConfigError(f"the token file {path} has more than {TOKEN_FILE_BYTES_MAX} bytes; give the right file")
        return content.decode("utf-8").strip()
    except UnicodeDecodeError:
        # Without the error itself: it would show a part of the token.
        raise ConfigError(f"the token file {path} cannot be read as text; make one with openssl rand -hex 32") from None
    except OSError as error:
        raise ConfigError(
            f"the token file {path} cannot be read ({error.strerror}); check its name and owner"
        ) from error


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
            _logger.info("refused a call: the token is missing or wrong")
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")
