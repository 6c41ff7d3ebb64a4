"""Raw files at URLs: the log that the same files give from a disk, over a network that fails, within bounds."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from command_line import foresee
from foresee.data import Categorical, ClickLog, Columns, Csv, PrepareOptions, prepare
from foresee.data.formats.parquet import column_ranges, parquet_chunks
from foresee.data.source import RawChunk, ReportBadLine
from foresee.errors import DataError
from foresee.io import readahead
from foresee.io.readahead import StoredStream
from foresee.io.storage import Storage, StoredFile
from foresee.io.urls import size_of
from foresee.tools.cli.columns import parse_join
from foresee.tools.cli.prepare import command_of
from s3_server import ENVIRONMENT, Network, url_of

COLUMNS = ("--label", "clicked", "--categorical", "user", "--categorical", "item", "--dense", "price:log1p")
NUM_LINES = 4000


def lines(num: int = NUM_LINES, seed: int = 0) -> bytes:
    rng = random.Random(seed)
    rows = (f"{rng.randrange(2)},u{rng.getrandbits(60)},i{rng.randrange(99)},{rng.random():.9f}\n" for _ in range(num))
    return b"clicked,user,item,price\n" + "".join(rows).encode()


def table(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "clicked": rng.integers(2, size=NUM_LINES),
            "unused": [rng.bytes(200) for _ in range(NUM_LINES)],
            "item": rng.integers(99, size=NUM_LINES),
            "user": rng.integers(1 << 60, size=NUM_LINES),
            "price": rng.random(NUM_LINES),
        }
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def put(url: str, content: bytes) -> str:
    Storage.open(url).put("", lambda: [content])
    return url


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have several."""
    monkeypatch.setattr(readahead, "FIRST_BYTES", 4096)
    monkeypatch.setattr(StoredStream.__init__, "__kwdefaults__", {"range_bytes": 16_384, "bytes_max": 65_536})


def prepared(
    monkeypatch: pytest.MonkeyPatch, out: Path, form: str, *files: object, options: tuple[object, ...] = COLUMNS
) -> dict[str, bytes]:
    assert foresee("prepare", form, *files, "--out", out, *options, monkeypatch=monkeypatch) == 0
    return contents(out)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.bz2", "csv.xz", "csv.zst"])
def test_packed_text_gives_the_same_log_over_a_broken_network(
    ending: str, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
        "csv": bytes,
    }
    pack["zst"] = lambda it: pa.Codec("zstd").compress(it, asbytes=True)
    (tmp_path / f"day_0.{ending}").write_bytes(content := pack[ending.split(".")[-1]](lines()))
    url = put(url_of(network.port, f"raw/day_0.{ending}"), content)
    network.cuts_at_bytes, network.slow_downs = [len(content) // 2, len(content)], 1
    there = prepared(monkeypatch, tmp_path / "there", "csv", url)
    assert (network.cut, network.refused) == (2, 1)
    assert there == prepared(monkeypatch, tmp_path / "here", "csv", tmp_path / f"day_0.{ending}")


def test_parquet_gives_the_same_log_and_only_wanted_columns_are_fetched(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(table(), tmp_path / "day.parquet", row_group_size=700)
    content = (tmp_path / "day.parquet").read_bytes()
    url = put(url_of(network.port, "raw/day.parquet"), content)
    network.cuts_at_bytes = [30_000, 60_000]
    there = prepared(monkeypatch, tmp_path / "there", "parquet", url)
    assert network.cut == 2
    assert there == prepared(monkeypatch, tmp_path / "here", "parquet", tmp_path / "day.parquet")
    monkeypatch.undo()  # so that whatever is not expected is fetched in larger ranges
    asked: list[tuple[int, int]] = []
    read = StoredFile.read

    def noted(self: StoredFile, begin: int, num_bytes: int) -> bytes:
        asked.append((begin, num_bytes))
        return read(self, begin, num_bytes)

    monkeypatch.setattr(StoredFile, "read", noted)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert sum(len(chunk.lines) for chunk in parquet_chunks(url, ("price", "item"))) == NUM_LINES
    wanted = column_ranges(pq.read_metadata(tmp_path / "day.parquet"), ("price", "item"))
    assert sum(num_bytes for _, num_bytes in asked[2:]) == sum(end - begin for begin, end in wanted)


def test_files_are_held_out_and_joined_by_url(s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = b"id,kind\n" + b"".join(b"i%d,k%d\n" % (i, i % 7) for i in range(99))
    files = {"a.csv": lines(900), "b.csv": lines(200, 1), "items.csv": items}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        put(url_of(s3_port, f"held/{name}"), content)
    logs: list[dict[str, bytes]] = []
    places: list[Callable[[str], str]] = [lambda it: str(tmp_path / it), lambda it: url_of(s3_port, f"held/{it}")]
    for place in places:
        join = f"{place('items.csv')}:item=id:kind".replace("127.0.0.1:", r"127.0.0.1\:")
        options = (*COLUMNS, "--categorical", "kind", "--valid-file", place("b.csv"), "--join", join)
        logs.append(prepared(monkeypatch, tmp_path / f"log-{len(logs)}", "csv", place("a.csv"), options=options))
    assert logs[0] == logs[1]
    assert parse_join(r"https://host\:80/a.csv:k:c").file == "https://host:80/a.csv"
    with pytest.raises(DataError, match=r"\(of a URL, colons after the first are written \\:\)"):
        parse_join("https://host:80/a.csv:k:c")


def test_movielens_finds_the_files_beside_its_own(
    s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratings = b"".join(b"%d,%d,%d,%d\n" % (i % 9, i % 5, i % 6, i) for i in range(80))
    movies = b"".join(b"%d,T,a|b%d\n" % (i, i) for i in range(5))
    files = {
        "ratings.csv": b"userId,movieId,rating,timestamp\n" + ratings,
        "movies.csv.gz": gzip.compress(b"movieId,title,genres\n" + movies),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        put(url_of(s3_port, f"movies/{name}"), content)
    url = url_of(s3_port, "movies/ratings.csv")
    there = prepared(monkeypatch, tmp_path / "there", "movielens", url, options=())
    assert there == prepared(monkeypatch, tmp_path / "here", "movielens", tmp_path / "ratings.csv", options=())
    assert b"genres" in there["log.json"]


def test_what_is_wrong_is_a_sentence_with_the_url(
    s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = gzip.compress(lines())
    put(url_of(s3_port, "wrong/empty.csv"), b"")
    put(url_of(s3_port, "wrong/cut.csv.gz"), packed[: len(packed) // 2])
    put(url_of(s3_port, "wrong/bad.csv"), lines(300) + b"1,ann,7,old\n")
    put(url_of(s3_port, "wrong/text.parquet"), b"no Parquet")
    for name, form, words in (
        ("none.csv", "csv", "s3://bucket/wrong/none.csv: there is no such file; check the URL"),
        ("empty.csv", "csv", "s3://bucket/wrong/empty.csv: the file is empty"),
        ("cut.csv.gz", "csv", "s3://bucket/wrong/cut.csv.gz:1964: the gzip file ends early after this line"),
        ("bad.csv", "csv", "s3://bucket/wrong/bad.csv:302: column price: expected a finite number, found 'old'"),
        ("text.parquet", "parquet", "s3://bucket/wrong/text.parquet: this is no Parquet file"),
    ):
        url = url_of(s3_port, f"wrong/{name}")
        assert foresee("prepare", form, url, "--out", tmp_path / "log", *COLUMNS, monkeypatch=monkeypatch) == 2
        said = capsys.readouterr().err
        assert words in said
        assert "endpoint_override" not in said
        assert not (tmp_path / "log").exists()
    options = ("--out", tmp_path / "log", *COLUMNS)
    assert foresee("prepare", "csv", url_of(s3_port, "a.csv", "nowhere"), *options, monkeypatch=monkeypatch) == 2
    assert "there is no bucket 'nowhere'" in capsys.readouterr().err
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert foresee("prepare", "csv", url_of(s3_port, "wrong/bad.csv"), *options, monkeypatch=monkeypatch) == 2
    assert "check the URL, its options and your credentials" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bad_lines_are_kept_with_their_url(s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = put(url_of(s3_port, "kept/bad.csv"), lines(300) + b"1,ann,7,old\n")
    found = prepared(monkeypatch, tmp_path / "log", "csv", url, options=(*COLUMNS, "--bad-lines", "keep"))
    assert found["bad-lines.txt"].startswith(b"s3://bucket/kept/bad.csv:302\tcolumn price")


def test_a_file_that_changes_between_passes_is_a_sentence(
    s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(url_of(s3_port, "changes/a.csv"), lines(300))
    storage = Storage.open(url)
    columns = Columns(label="clicked", categorical=(Categorical(name="item"),))
    seen = []

    def change(stage: str, done: int, total: int) -> None:
        seen.append((stage, done, total))
        if len(seen) == 1:
            put(url, lines(301))
        if len(seen) == 2:
            storage.remove([""])

    for _ in range(2):
        with pytest.raises(DataError, match=r"^s3://bucket/changes/a.csv has changed while it was read; begin again"):
            prepare(Csv(files=(url,), columns=columns), tmp_path / "log", PrepareOptions(), change)
    assert len(seen) == 2
    assert seen[0] == ("count", len(lines(300)), len(lines(300)))
    assert list(tmp_path.iterdir()) == []


class Held:
    """A file in memory in the place of one at a URL, and what was asked of it."""

    def __init__(self, content: bytes) -> None:
        self.content, self.asked = content, list[tuple[int, int]]()


@pytest.fixture
def content(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held(random.Random(0).randbytes(300_000))

    def read(self: StoredFile, begin: int, num_bytes: int) -> bytes:
        held.asked.append((begin, num_bytes))
        return held.content[begin : begin + num_bytes]

    monkeypatch.setattr(StoredFile, "read", read)
    return held


def stream_of(held: Held) -> StoredStream:
    return StoredStream(StoredFile(Storage(None, "", "x://"), "", len(held.content), []))


def test_a_stream_gives_any_bytes_and_holds_at_most_its_bound(content: Held) -> None:
    rng, whole = random.Random(1), content.content
    with stream_of(content) as stream:
        for _ in range(300):
            if rng.random() < 0.2:
                stream.seek(rng.randrange(len(whole) + 10))
            at, num_bytes = stream.tell(), rng.randrange(60_000)
            assert stream.read(num_bytes) == whole[at : at + num_bytes]
            assert stream.held_bytes <= 65_536
        stream.seek(-5, 2)
        assert (stream.read(), stream.read(1)) == (whole[-5:], b"")
    assert stream.held_bytes == 0
    assert max(num_bytes for _, num_bytes in content.asked) <= 16_384


def test_from_front_to_back_every_byte_is_fetched_once(content: Held) -> None:
    with stream_of(content) as stream:
        assert b"".join(iter(partial(stream.read, 10_000), b"")) == content.content
    assert sum(num_bytes for _, num_bytes in content.asked) == len(content.content)
    content.asked.clear()
    with stream_of(content) as stream:
        stream.read(100)  # the first line of a file: nobody wants the rest
    assert content.asked == [(0, 4096)]


def test_expected_ranges_are_fetched_and_nothing_between(content: Held) -> None:
    ranges = [(100, 20_000), (20_000, 21_000), (150_000, 190_000), (4, 50)]
    with stream_of(content) as stream:
        stream.expect(ranges)
        for begin, end in ranges:
            stream.seek(begin)
            assert stream.read(end - begin) == content.content[begin:end]
            assert stream.held_bytes <= 65_536
    assert sum(num_bytes for _, num_bytes in content.asked) == sum(end - begin for begin, end in ranges)


def test_ranges_that_are_read_out_of_order_are_fetched_once(content: Held) -> None:
    ranges = [(begin, begin + 1000) for begin in range(0, 30_000, 2000)]
    with stream_of(content) as stream:
        stream.expect(ranges)
        for begin, end in (*ranges[::2], *ranges[1::2]):  # as Parquet has columns of several small row groups
            stream.seek(begin)
            assert stream.read(end - begin) == content.content[begin:end]
    assert sorted(content.asked) == [(begin, 1000) for begin, _ in ranges]


class Pages(BaseHTTPRequestHandler):
    """`/ranges/…` gives parts, `/whole/…` only all of it, `/endless/…` no size; `/breaks/…` cuts the second answer."""

    content = b""
    asked: list[str | None]

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        kind, part = self.path.split("/")[1], self.headers.get("Range")
        body, begin = self.content, 0
        if kind == "denied" or "missing" in self.path:
            self.send_response(403 if kind == "denied" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if part is not None and kind in ("ranges", "breaks"):
            begin, end = (int(it) for it in part.removeprefix("bytes=").split("-"))
            body = body[begin : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end}/{len(self.content)}")
        else:
            self.send_response(200)
        if kind == "endless":
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.asked.append(part)
        if with_body and kind == "breaks" and begin and self.asked.count(part) == 1:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif with_body:
            self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    """A web server; fsspec's own thread, which stays, is started here."""
    need = pytest.importorskip("fsspec.asyn", reason="files over HTTP are read through fsspec; run: pip install fsspec")
    pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for HTTP; run: pip install aiohttp")
    need.get_loop()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_over_http(
    http_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Pages, "content", gzip.compress(lines()))
    monkeypatch.setattr(Pages, "asked", [], raising=False)
    (tmp_path / "day.csv.gz").write_bytes(Pages.content)
    here = prepared(monkeypatch, tmp_path / "here", "csv", tmp_path / "day.csv.gz")
    for kind in ("ranges", "breaks"):
        url = f"http://127.0.0.1:{http_port}/{kind}/day.csv.gz?token=secret"
        assert prepared(monkeypatch, tmp_path / kind, "csv", url) == here
    assert len(set(Pages.asked)) > 4
    for path, words in (
        ("whole/a.csv", "cannot be read (The HTTP server doesn't appear to support range requests"),
        ("endless/a.csv", "the server does not say how large it is; to be read there it needs a size"),
        ("ranges/missing.csv", "there is no such file; check the URL, and that you may read it"),
        ("denied/a.csv", "there is no such file; check the URL, and that you may read it"),
    ):
        url = f"http://127.0.0.1:{http_port}/{path}?token=secret"
        options = ("--out", tmp_path / "log", *COLUMNS)
        assert foresee("prepare", "csv", url, *options, monkeypatch=monkeypatch) == 2
        said = capsys.readouterr().err
        assert words in said
        assert "secret" not in said
        assert url.partition("?")[0] in said
        assert not (tmp_path / "log").exists()


def test_over_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="memory:// is read through fsspec; run: pip install fsspec")
    for name, content in (("day.csv", lines()), ("day.csv.gz", gzip.compress(lines()))):
        (tmp_path / name).write_bytes(content)
        url = put(f"memory://raw/{name}", content)
        here, there = tmp_path / f"here-{name}", tmp_path / f"there-{name}"
        assert prepared(monkeypatch, there, "csv", url) == prepared(monkeypatch, here, "csv", tmp_path / name)
        with StoredStream(Storage.open(url).opened()) as whole:
            for _ in range(20):  # streams of one file have one position there
                whole.seek(0)
                assert whole.read() == content
        Storage.open(url).remove([""])
    assert size_of("memory://raw/day.csv") is None


@dataclass(frozen=True, kw_only=True)
class OnlyPaths:
    """A format of another package."""

    name: ClassVar[str] = "toy"
    default_split: ClassVar[str] = "order"

    files: tuple[Path, ...]
    others: Annotated[tuple[Path, ...], "More of them."] = ()

    @property
    def columns(self) -> Columns:
        assert all(isinstance(file, Path) for file in (*self.files, *self.others))
        return Columns(label="clicked", categorical=(Categorical(name="item"),))

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        yield from Csv(files=self.files, columns=self.columns).chunks(report)


def test_formats_that_know_only_paths_keep_getting_them(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command_of(OnlyPaths))
    (tmp_path / "a.csv").write_bytes(lines(50))
    file, out = str(tmp_path / "a.csv"), str(tmp_path / "log")
    done = CliRunner().invoke(app, [file, "--out", out, "--other", file])
    assert (done.exit_code, ClickLog.open(out).split_sizes) == (0, {"train": 45, "valid": 5})
    refused = CliRunner().invoke(app, ["s3://bucket/a.csv?x=y", "--out", out])
    assert isinstance(refused.exception, DataError)
    assert str(refused.exception) == "s3://bucket/a.csv: toy reads files of this machine only; copy it here first"
