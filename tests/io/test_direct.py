"""Pieces of a file are the same by every way, wherever they lie and however many there are."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64
from foresee.errors import ConfigError
from foresee.io import direct
from foresee.io.direct import Ring, Transfers, Way, probe

NUM_WORDS = 300_001
"""The file ends in the middle of a sector."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("direct") / "words.bin"
    np.arange(NUM_WORDS, dtype=np.uint32).tofile(path)
    return path


@pytest.fixture(params=["io_uring", "threads"])
def transfers(request: pytest.FixtureRequest, file: Path) -> Iterator[Transfers]:
    way = probe(file, 1 << 40, 1, request.param)
    if way.name != request.param:
        pytest.skip(f"this machine has {way}")
    made = Transfers(way, 1 << 18)
    yield made
    made.close()


def read(transfers: Transfers, file: Path, starts: Int64, piece_words: int) -> NDArray[Any]:
    out = np.full((len(starts), piece_words), 0xFFFFFFFF, np.uint32)

    def take(words: Float32, at: Int64, which: Int64) -> None:
        out[which] = words.view(np.uint32)[at[:, None] + np.arange(piece_words)]

    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        transfers.read(descriptor, starts, 4 * piece_words, take)
    finally:
        os.close(descriptor)
    return out


@pytest.mark.parametrize("piece_words", [1, 7, 66, 5000, 100_000])
@pytest.mark.parametrize("number", [0, 1, 3, 1000])
def test_every_piece_is_itself(transfers: Transfers, file: Path, piece_words: int, number: int) -> None:
    """More pieces than the buffer takes at once, in no order, some of them twice and some over each other."""
    number = min(number, 40) if piece_words > 5000 else number
    first = np.random.default_rng(number).integers(0, NUM_WORDS - piece_words, number)
    found = read(transfers, file, 4 * first, piece_words)
    np.testing.assert_array_equal(found, first[:, None] + np.arange(piece_words))


def test_what_is_not_in_the_file_is_zero(transfers: Transfers, file: Path) -> None:
    read(transfers, file, np.arange(0, 1 << 18, 512), 66)  # the buffer is full of something else
    first = np.array([NUM_WORDS - 10, NUM_WORDS + 5, NUM_WORDS + 10_000])
    found = read(transfers, file, 4 * first, 66)
    assert found[0, :10].tolist() == list(range(NUM_WORDS - 10, NUM_WORDS))
    assert not found[0, 10:].any()
    assert not found[1:].any()


def test_neighbours_are_read_together(transfers: Transfers, file: Path) -> None:
    read(transfers, file, 4 * np.arange(0, 60_000, 30), 7)
    assert transfers.moved.requests == 2, "two pieces of 128 KiB at most"
    assert transfers.moved.bytes < 4 * 60_000 + 4096


def test_what_is_written_is_read(transfers: Transfers, tmp_path: Path) -> None:
    path, align = tmp_path / "written.bin", 4096
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    number = 20
    transfers.buffer[: number * align] = np.repeat(np.arange(1, number + 1, dtype=np.uint8), align)
    order = np.random.default_rng(0).permutation(number)
    places = transfers.buffer.ctypes.data + align * np.arange(number)
    transfers.move(True, descriptor, align * order, np.full(number, align), places)
    os.close(descriptor)
    found = np.fromfile(path, np.uint8).reshape(number, align)
    assert (found == (np.argsort(order) + 1)[:, None]).all()


def test_an_error_is_the_systems(transfers: Transfers, file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_DIRECT)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        transfers.read(descriptor, np.array([0, 4096]), 4, lambda *pieces: None)
    assert caught.value.errno == errno.EBADF
    os.close(descriptor)


def test_the_way_is_found_by_trying(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORESEE_DISK", raising=False)
    assert probe(file, 100, 1000) == Way("mapped"), "memory holds it"
    assert probe(file, 100, None) == Way("mapped"), "nobody knows"
    assert str(probe(file, 600, 1000)) in ("disk: io_uring, 128 in flight", "disk: threads, 16 in flight")
    monkeypatch.setattr(Ring, "__init__", lambda self, depth: (_ for _ in ()).throw(OSError(38, "refused")))
    assert probe(file, 600, 1000).name == "threads", "the kernel refuses io_uring"
    monkeypatch.setattr(direct, "_direct_align", lambda path: 0)
    assert probe(file, 600, 1000) == Way("mapped"), "the file system refuses direct reads"
    monkeypatch.setenv("FORESEE_DISK", "tape")
    with pytest.raises(ConfigError, match=r"FORESEE_DISK is 'tape'; give one of io_uring, threads, mapped"):
        probe(file, 600, 1000)


def test_a_ring_leaves_nothing_open(file: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        Transfers(probe(file, 1 << 40, 1, "io_uring")).close()
    assert sorted(os.listdir("/proc/self/fd")) == before
