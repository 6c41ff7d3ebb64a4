"""Google's and Azure's storage: what is refused before anything is sent, and what an interrupted publication leaves.

The verbs themselves run against emulators where these are: FORESEE_GCS_EMULATOR=host:port of one that serves several
connections at once, with a bucket `bucket`, and FORESEE_AZURE_EMULATOR=host:port of Azurite (`azurite-blob`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyarrow import fs

from foresee.errors import ConfigError, StoreError
from foresee.io.storage import Storage

AZURE = "abfs://bucket@account.dfs.core.windows.net/a"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Everybody knows it: every Azurite has it."""


class Cut(Exception):  # noqa: N818 - what happened
    """The process ended here."""


class AzureLike:
    """Files of this machine, written as pyarrow writes Azure's: empty from when it is opened until it is closed."""

    type_name = "abfs"

    def __init__(self, folder: Path) -> None:
        self._folder, self._inside = folder, fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())

    def __getattr__(self, name: str) -> Any:
        assert name not in ("move", "create_dir"), "accounts without folders have neither"
        return getattr(self._inside, name)

    @contextmanager
    def open_output_stream(self, path: str, compression: None) -> Iterator[BytesIO]:
        (self._folder / path).write_bytes(b"")
        content = BytesIO()
        yield content  # not closed by who ends in between
        (self._folder / path).write_bytes(content.getvalue())


def test_a_publication_that_is_interrupted_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    storage = Storage(AzureLike(tmp_path), "place", "abfs://place")

    def publish(content: bytes, cut_at: int) -> None:
        """Ends at the piece of this number; each content is written more than once."""
        left = iter(range(cut_at))

        def pieces() -> Iterator[bytes]:
            for byte in content:
                if next(left, None) is None:
                    raise Cut
                yield bytes([byte])

        storage.replace("pointer", pieces)

    publish(b"0000", cut_at=100)
    known = b"0000"
    for number in range(1, 40):  # what one has left is what the next one finds
        content = b"%04d" % number
        with pytest.raises(Cut):
            publish(content, cut_at=number % 8)
        found = storage.published("pointer")
        assert found in (known, content)
        known = found
    publish(b"last", cut_at=100)
    assert storage.published("pointer") == b"last"
    assert storage.names() == ["pointer"]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("gs://me@bucket/a", "has credentials in it"),
        ("abfs://bucket:key@account.dfs.core.windows.net/a", "has credentials in it"),
        (f"{AZURE}?client_secret=x", "unknown option 'client_secret'"),
        ("gs://bucket/a?token=x", "unknown option 'token'"),
        ("abfs://bucket/a", "write abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"),
        (f"{AZURE}?scheme=http", "set AZURE_STORAGE_KEY"),
    ],
)
def test_secrets_and_mistakes_in_urls_are_refused(url: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_KEY", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_SAS_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=sentence):
        Storage.open(url)


def test_a_key_that_is_none_is_a_sentence_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a secret!")
    with pytest.raises(ConfigError, match="it is not base64") as caught:
        Storage.open(AZURE)
    assert "a secret!" not in str(caught.value)


@pytest.fixture(params=["FORESEE_GCS_EMULATOR", "FORESEE_AZURE_EMULATOR"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a new place in an emulator."""
    where = os.environ.get(request.param)
    if where is None:
        pytest.skip(f"no emulator is here: {request.param}=host:port")
    options = f"{uuid4().hex}?scheme=http&endpoint_override={where}"
    if request.param == "FORESEE_GCS_EMULATOR":
        return f"gs://anonymous@bucket/{options}"
    monkeypatch.setenv("AZURE_STORAGE_KEY", AZURITE_KEY)
    both = {
        f"{it}_storage_{what}": value
        for it in ("blob", "dfs")
        for what, value in (("authority", where), ("scheme", "http"))
    }
    fs.AzureFileSystem(AZURITE_ACCOUNT, account_key=AZURITE_KEY, **both).create_dir("bucket")
    return f"abfs://bucket@{AZURITE_ACCOUNT}.dfs.core.windows.net/{options}"


def test_files_come_and_go_in_an_emulator(url: str, tmp_path: Path) -> None:
    storage = Storage.open(url).patient(5)
    storage.check_bucket()
    assert (storage.get("none"), storage.size("none"), storage.published("none")) == (None, None, None)
    stored = storage.store("folder/large", lambda: [b"x" * 1_000_000, b"y"] * 20)
    assert storage.read(stored) == (b"x" * 1_000_000 + b"y") * 20
    assert storage.part("folder/large", 999_999, 3) == b"xyx"
    storage.fetch("folder/large", tmp_path / "large")
    assert (tmp_path / "large").stat().st_size == stored.num_bytes
    for content in (b"one", b"two"):
        storage.publish("pointer", content)
        assert storage.published("pointer") == content
    assert sorted(storage.names()) == ["folder/large", "pointer"]
    storage.remove(["folder/large", "pointer", "never there"])
    assert storage.names() == []
    with pytest.raises(StoreError, match=r"/gone is missing; restore it from a copy"):
        storage.opened("gone")
    nowhere = Storage.open(url.replace("bucket", "nowhere", 1)).patient(5)
    with pytest.raises(StoreError, match=r"there is no bucket 'nowhere'; make it, or check the URL"):
        nowhere.check_bucket()
    with pytest.raises(StoreError, match=r"no bucket 'nowhere'|ContainerNotFound"):
        nowhere.publish("pointer", b"one")
