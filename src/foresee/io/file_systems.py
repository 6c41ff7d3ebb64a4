"""File systems behind URLs, as `pyarrow.fs` has them: S3, Google, Azure, HDFS, this machine, and all that fsspec knows.

In: a URL. Out: a file system and a path in it, or an error that says what is wrong with the URL. Options are read
strictly, credentials never come from the URL, and libraries that would try again for minutes by themselves are stopped.
"""

from __future__ import annotations

import base64
import datetime
import importlib
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from foresee.errors import ConfigError

CONNECT_SECONDS = 5.0
AZURE, GOOGLE = ("abfs", "abfss"), ("gs", "gcs")
"""Schemes of URLs."""


def is_url(place: str | Path) -> bool:
    """Whether this names something that is not a local path."""
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", str(place)) is not None


def parent_and_name(url: str) -> tuple[str, str]:
    """`s3://bucket/a/b?x=y` as the URL of `a`, with the same options, and `b`."""
    place, mark, options = url.partition("?")
    parent, _, name = place.rstrip("/").rpartition("/")
    return f"{parent}{mark}{options}", name


def arrow_fs() -> Any:
    """Imported when it is first needed: it takes a while."""
    return importlib.import_module("pyarrow.fs")


def open_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. An error says what is wrong; nothing is sent yet."""
    parts = urlsplit(url)
    scheme = parts.scheme
    known = {"s3": _s3, **dict.fromkeys(GOOGLE, _google), **dict.fromkeys(AZURE, _azure)}
    if scheme in known:
        return known[scheme](parts)
    try:
        return arrow_fs().FileSystem.from_uri(url)  # type: ignore[no-any-return]
    except (ValueError, NotImplementedError) as error:
        if "nrecognized filesystem" not in str(error) and not isinstance(error, NotImplementedError):
            raise
    try:
        fsspec: Any = importlib.import_module("fsspec.core")
    except ModuleNotFoundError:
        raise ConfigError(
            f"{scheme}:// is read through fsspec, which is not installed; run: pip install fsspec"
        ) from None
    # Over HTTP fsspec would read ahead by itself, and what several streams of one file have read ahead overlaps.
    options = {"cache_type": "none"} if scheme in ("http", "https") else {}
    try:
        system, path = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        raise ConfigError(f"{scheme}:// needs a package that is not installed ({reason(error)})") from None
    return arrow_fs().PyFileSystem(arrow_fs().FSSpecHandler(system)), path


def _options(parts: SplitResult, *known: str) -> dict[str, Any]:
    """What stands after the question mark: strictly, as a secret would be written down with the run."""
    options = dict(parse_qsl(parts.query))
    if unknown := [name for name in options if name not in known]:
        raise ValueError(f"unknown option {unknown[0]!r}; there are {', '.join(known)}")
    return options


def _s3(parts: SplitResult) -> tuple[Any, str]:
    """As pyarrow's own reading of S3 URLs, with deadlines."""
    options = _options(parts, "region", "scheme", "endpoint_override")
    options |= {"connect_timeout": CONNECT_SECONDS, "request_timeout": CONNECT_SECONDS}
    try:
        system = arrow_fs().S3FileSystem(**options, allow_delayed_open=True)
    except TypeError:  # an older pyarrow
        system = arrow_fs().S3FileSystem(**options)
    return system, f"{parts.hostname}{parts.path}"


def _google(parts: SplitResult) -> tuple[Any, str]:
    """Without a limit, Google's library tries by itself for a quarter of an hour."""
    options = _options(parts, "scheme", "endpoint_override")
    limit = datetime.timedelta(seconds=CONNECT_SECONDS)
    system = arrow_fs().GcsFileSystem(anonymous=parts.username is not None, retry_time_limit=limit, **options)
    return system, f"{parts.hostname}{parts.path}"


def _azure(parts: SplitResult) -> tuple[Any, str]:
    """As Azure writes them: container@account.dfs.core.windows.net; key or signature as its command line has them."""
    options = _options(parts, "scheme", "endpoint_override")
    account, dfs, domain = (parts.hostname or "").partition(".dfs.")
    if not parts.username or not dfs:
        raise ValueError("write abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH")
    secrets = {"account_key": "AZURE_STORAGE_KEY", "sas_token": "AZURE_STORAGE_SAS_TOKEN"}
    given = {name: os.environ[variable] for name, variable in secrets.items() if os.environ.get(variable)}
    _check_key(given.get("account_key", ""))
    scheme, endpoint = options.get("scheme", "https"), options.get("endpoint_override")
    if scheme == "http" and not given:
        raise ValueError("without TLS Azure takes a key only; set AZURE_STORAGE_KEY")
    settings = {"blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
    settings |= {f"{it}_storage_authority": endpoint or f".{it}.{domain}" for it in ("blob", "dfs")}
    return arrow_fs().AzureFileSystem(account, **settings, **given), f"{parts.username}{parts.path}"


def _check_key(key: str) -> None:
    """Azure's library would end the process."""
    try:
        base64.b64decode(key, validate=True)
    except ValueError:
        raise ValueError("what AZURE_STORAGE_KEY has is no key of an account, as it is not base64") from None


def reason(error: BaseException) -> str:
    """What it says, on one line."""
    words = " ".join(str(error).split())
    return re.sub(r"(://[^\s?'\"]*)\?[^\s'\")]*", r"\1", words)[:300]  # options of a URL may be secrets
