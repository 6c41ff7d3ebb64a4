"""Raw files as they come: packed, in other encodings and line ends, zones in times, other words for labels."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foresee.data import Categorical, Columns, Csv, Dense, Parquet, PrepareOptions, prepare
from foresee.data.convert import times_of
from foresee.errors import DataError

COLUMNS = Columns(label="y", categorical=(Categorical(name="u"),))
ALL = PrepareOptions(valid_share=0)
TEXT = "y,u\n" + "".join(f"{i % 2},u{i % 7}\n" for i in range(500))


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def digest(tmp_path: Path, data: bytes, name: str, **options: str) -> str:
    file = tmp_path / f"{name}.csv"
    file.write_bytes(data)
    return prepare(Csv(files=(file,), columns=COLUMNS, **options), tmp_path / name, ALL).log.digest  # type: ignore[arg-type]


def refusal(tmp_path: Path, data: bytes, columns: Columns = COLUMNS) -> str:
    file = tmp_path / "raw.csv"
    file.write_bytes(data)
    with pytest.raises(DataError) as caught:
        prepare(Csv(files=(file,), columns=columns), tmp_path / "log", ALL)
    assert not (tmp_path / "log").exists()
    return str(caught.value).replace(f"{tmp_path}/", "")


PACKINGS: list[Callable[[bytes], bytes]] = [gzip.compress, bz2.compress, lzma.compress, zstd]


@pytest.mark.parametrize("pack", PACKINGS)
def test_packed_files_equal_plain_ones(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    plain = digest(tmp_path, TEXT.encode(), "plain")
    assert digest(tmp_path, pack(TEXT.encode()), "packed") == plain
    two = pack(TEXT[:1000].encode()) + pack(TEXT[1000:].encode())
    assert digest(tmp_path, two, "two") == plain


@pytest.mark.parametrize("pack", PACKINGS)
def test_packed_files_that_end_early_are_refused(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """The last whole line that could be unpacked is named, however large the blocks are that are read at once."""
    numbers = np.random.default_rng(0).integers(0, 1 << 60, 100_000)  # several blocks of bzip2
    packed = pack(b"y,u\n" + "".join(f"1,{number}\n" for number in numbers).encode())
    sentence = refusal(tmp_path, packed[: len(packed) // 2])
    found = re.search(r"raw\.csv:(\d+): the \w+ file ends early after this line, ([\d,]+) whole lines", sentence)
    assert found is not None, sentence
    assert int(found[1]) == int(found[2].replace(",", ""))
    assert 20_000 < int(found[1]) < 60_000
    assert "fetch it again" in sentence


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_line_ends_do_not_show(tmp_path: Path, end: str) -> None:
    assert digest(tmp_path, TEXT.replace("\n", end).encode(), "other") == digest(tmp_path, TEXT.encode(), "plain")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "cp1252"])
def test_encodings_do_not_show(tmp_path: Path, encoding: str) -> None:
    text = TEXT.replace("u3", "é")
    plain = digest(tmp_path, text.encode(), "plain")
    assert digest(tmp_path, text.encode(encoding), "other", encoding=encoding) == plain


def test_an_encoding_that_is_not_known_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the encoding 'klingon' is not known; .* such as --encoding latin-1"):
        digest(tmp_path, TEXT.encode(), "raw", encoding="klingon")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"PAR1....", "raw.csv: this is a Parquet file, not text; use `foresee prepare parquet`."),
        (b"PK\x03\x04abc", "raw.csv: this is a zip archive; unpack it"),
        ("y,u\n1,a\n".encode("utf-16"), "raw.csv: this is text in UTF-16; say so with --encoding utf-16."),
        (b"y,u\n1,\x00a\n", "raw.csv:2: expected text, found a zero byte"),
        (gzip.compress(b"PAR1....", mtime=0), "raw.csv: this is a Parquet file"),
        (b'y,"u\n1,2\n', "raw.csv:1: the header cannot be cut into names"),
        (b"y,u,u\n1,a,b\n", "raw.csv:1: column 'u' stands 2 times in the header (columns 2, 3)"),
    ],
)
def test_files_of_another_kind_are_a_sentence(tmp_path: Path, data: bytes, sentence: str) -> None:
    assert sentence in refusal(tmp_path, data)


def test_text_given_as_parquet_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "raw.parquet").write_text(TEXT)
    with pytest.raises(DataError, match=r"this is no Parquet file .* use `foresee prepare csv`"):
        prepare(Parquet(files=(tmp_path / "raw.parquet",), columns=COLUMNS), tmp_path / "log", ALL)


def labels(tmp_path: Path, *words: str) -> list[float]:
    file = tmp_path / "raw.csv"
    file.write_text("y,u\n" + "".join(f"{word},a\n" for word in words))
    options = PrepareOptions(valid_share=0, replace=True)
    log = prepare(Csv(files=(file,), columns=COLUMNS), tmp_path / "log", options).log
    return [float(value) for samples in log.samples() for value in samples.labels]


def test_labels_in_other_words(tmp_path: Path) -> None:
    assert labels(tmp_path, "True", "False", "TRUE", "false") == [1, 0, 1, 0]
    assert labels(tmp_path, "1", "-1", "1.0", "-1.0") == [1, 0, 1, 0]
    assert labels(tmp_path, "1", "0", "1") == [1, 0, 1]


def test_a_stray_minus_one_among_zeros_is_no_label(tmp_path: Path) -> None:
    found = refusal(tmp_path, b"y,u\n1,a\n0,a\n-1,a\n")
    assert found.startswith("raw.csv:4: column y: expected a label of 0 or 1, as on the lines before, found '-1'")
    assert "--label-skip" in found
    skip = Columns(label="y", categorical=COLUMNS.categorical, label_skip=("-1",))
    (tmp_path / "raw.csv").write_text("y,u\n-1,a\n1,a\n0,a\n")
    log = prepare(Csv(files=(tmp_path / "raw.csv",), columns=skip), tmp_path / "log", ALL).log
    assert log.split_sizes == {"train": 2}


def test_times_may_name_a_zone() -> None:
    seconds = 1574553634.76283
    for text in (
        "2019-11-24 00:00:34.762830", "2019-11-24 00:00:34.762830+00:00", "2019-11-24T00:00:34.762830Z",
        "2019-11-24 00:00:34.762830 UTC", "2019-11-24 02:00:34.762830+0200", "2019-11-24 00:00:34.762830123Z",
    ):  # fmt: skip
        values, bad = times_of(pa.array([text, text, "noon"]))
        assert bad.tolist() == [False, False, True]
        assert values[:2].tolist() == [seconds, seconds], text
        assert times_of(pa.array([text]))[0].tolist() == [seconds], text


def test_parquet_times_of_any_kind() -> None:
    stamps = pa.array([1574553634762830123], pa.timestamp("ns", "Europe/Berlin"))
    assert times_of(stamps)[0].tolist() == [1574553634.76283]
    assert times_of(pa.array([1], pa.time32("s")))[1].tolist() == [True]


def test_a_label_is_no_feature() -> None:
    with pytest.raises(DataError, match="'y' is the label and a feature too"):
        Columns(label="y", categorical=(Categorical(name="y"),))
    with pytest.raises(DataError, match="'y' is the label and a feature too"):
        Columns(label="y", dense=(Dense(name="y"),), categorical=(Categorical(name="u"),))


def test_a_doubled_column_of_parquet_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1, 0]), pa.array(["a", "b"]), pa.array(["c", "d"])], ["y", "u", "u"])
    pq.write_table(table, tmp_path / "raw.parquet")
    with pytest.raises(DataError, match="column 'u' stands 2 times"):
        prepare(Parquet(files=(tmp_path / "raw.parquet",), columns=COLUMNS), tmp_path / "log", ALL)


def test_negative_numbers_under_a_logarithm_are_counted(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("y,u,x,z\n1,a,-3.5,-1\n0,b,1,-1\n1,b,-2,-1\n")
    dense = (Dense(name="x", transform="log1p"), Dense(name="z"))
    columns = Columns(label="y", dense=dense, categorical=COLUMNS.categorical)
    report = prepare(Csv(files=(tmp_path / "raw.csv",), columns=columns), tmp_path / "log", ALL)
    assert report.num_negative == report.log.description.source["num_negative"] == {"x": 2}
