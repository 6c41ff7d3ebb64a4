"""What both ends of a wire must know about access: which addresses stay on this machine, and where a token comes from.

In: host names, a token file or the environment. Out: a decision, a token, or a sentence. A token is never an argument
of a command and never part of a message.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from foresee.errors import ConfigError

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
