"""Files in a real S3 server, behind a network that cuts, refuses and is slow: whole or not at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from foresee.errors import StoreError, StoreUnavailableError
from foresee.io.storage import Storage
from s3_server import Network, url_of

CONTENT = random.Random(0).randbytes(1 << 20)


def test_files_come_and_go_whole_over_a_broken_network(s3_port: int, network: Network) -> None:
    direct = Storage.open(url_of(s3_port, "files"))
    storage = Storage.open(url_of(network.port, "files"))
    network.cuts_at_bytes = [1000, 6_000_000, 9_000_000, 3_000_000]
    network.slow_downs = 1
    stored = storage.store("large", lambda: [CONTENT] * 12)  # in several parts, as S3 takes them
    assert storage.read(stored) == CONTENT * 12
    storage.publish("pointer", b"one")
    network.slow_downs, network.delay_seconds = 4, 0.002
    storage.publish("pointer", b"two")
    assert direct.published("pointer") == storage.published("pointer") == b"two"
    assert (network.cut, network.refused) == (4, 5)
    assert sorted(direct.names()) == ["large", "pointer"]
    storage.remove(["large", "pointer", "never there"])
    assert direct.names() == []
    assert direct.get("pointer") is None
    assert direct.size("large") is None


@pytest.mark.parametrize("num_pieces", [1, 12])
def test_an_upload_that_is_cut_is_never_seen(s3_port: int, network: Network, num_pieces: int) -> None:
    direct = Storage.open(url_of(s3_port, f"cut-{num_pieces}"))
    storage = Storage.open(url_of(network.port, f"cut-{num_pieces}")).patient(0)
    direct.publish("file", b"before")
    network.cuts_at_bytes = [800_000] * 40
    with pytest.raises(StoreUnavailableError, match=r"could not be written within \d+ s .*; see that the storage"):
        storage.put("file", lambda: [CONTENT] * num_pieces)
    assert network.cut
    assert direct.get("file") == b"before"


def test_a_local_file_that_cannot_be_read_to_its_end_replaces_nothing(s3_port: int) -> None:
    """Closing an upload makes a file of what was sent so far."""
    storage = Storage.open(url_of(s3_port, "unreadable"))
    storage.replace("plan", lambda: [b"before"])

    def pieces() -> Iterator[bytes]:
        yield from [CONTENT] * 7
        raise RuntimeError("the disk of this machine")

    with pytest.raises(RuntimeError, match="the disk of this machine"):
        storage.replace("plan", pieces)
    assert storage.get("plan") == b"before"
    storage.replace("plan", lambda: [CONTENT] * 7)
    assert storage.get("plan") == CONTENT * 7
    assert storage.names() == ["plan"]


def test_what_trying_again_would_not_change_is_a_sentence(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Storage.open(url_of(s3_port, "x", "no-bucket"))
    with pytest.raises(StoreError, match=r"s3://no-bucket/x: there is no bucket 'no-bucket'; make it, or check"):
        nowhere.check_bucket()
    with pytest.raises(StoreError, match=r"s3://no-bucket/x/y cannot be written .*; check the URL, its options"):
        nowhere.put("y", lambda: [b""])
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    with pytest.raises(StoreError, match=r"takes no checksums after the content: set AWS_REQUEST_CHECKSUM_CALC"):
        Storage.open(url_of(s3_port, "x")).put("y", lambda: [b"content"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    for act in (lambda it: it.get("y"), lambda it: it.put("y", lambda: [b""]), Storage.names, Storage.check_bucket):
        with pytest.raises(StoreError, match=r"; check the URL, its options and your credentials") as caught:
            act(Storage.open(url_of(s3_port, "x")))
        assert caught.type is StoreError


def test_a_server_that_is_away_is_waited_for_and_then_a_sentence(network: Network) -> None:
    network.away = True
    storage = Storage.open(url_of(network.port, "x")).patient(0.2)
    with pytest.raises(StoreUnavailableError, match=r"s3://bucket/x/y could not be read within \d+ s"):
        storage.get("y")
    with pytest.raises(StoreUnavailableError, match=r"s3://bucket/x could not be looked at within \d+ s"):
        storage.check_bucket()
    network.away = False
    assert storage.get("y") is None


def test_a_read_that_was_cut_never_gives_other_bytes(network: Network) -> None:
    """pyarrow may say of a connection that was cut in the middle of an answer that all bytes came."""
    storage = Storage.open(url_of(network.port, "reads"))
    storage.put("file", lambda: [CONTENT])
    file = storage.opened("file")
    for cut_at in range(300, 900, 50):  # a request takes some hundred bytes, and so do the headers of its answer
        network.cuts_at_bytes = [cut_at]
        assert file.read(1000, 200) == CONTENT[1000:1200]
    assert network.cut > 5


def test_several_threads_read_one_file_at_once(network: Network) -> None:
    storage = Storage.open(url_of(network.port, "together"))
    storage.put("file", lambda: [CONTENT])
    file = storage.opened("file")
    network.delay_seconds = 0.05
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda begin: file.read(begin, 500), range(0, 2000, 500)))
    assert b"".join(found) == CONTENT[:2000]
    assert len(file.streams) > 1  # none waited until another one was done with its stream


def test_an_answer_that_was_cut_in_its_head_is_no_empty_file(network: Network) -> None:
    """pyarrow takes the head of an answer for whole, wherever it was cut, and a size that did not come for 0."""
    storage = Storage.open(url_of(network.port, "heads"))
    storage.put("file", lambda: [CONTENT[:1000]])
    storage.put("empty", list)
    mark = storage.mark("file")
    before = network.cut
    for cut_at in range(700, 1500, 100):
        network.cuts_at_bytes = [cut_at]
        assert storage.mark("file") == mark
        network.cuts_at_bytes = [cut_at]
        assert storage.opened("file").num_bytes == storage.size("file") == 1000
    network.calm()
    assert network.cut - before > 8
    assert (storage.size("empty"), storage.opened("empty").num_bytes, storage.get("empty")) == (0, 0, b"")
