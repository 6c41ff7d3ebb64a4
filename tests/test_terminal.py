"""Tables are printed whole: no number or name is cut, in a pipe or on a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from foresee.io.units import counted
from foresee.tools.cli.terminal import fitted, show, terminal

NAMES = ("lookahead (this run)", "location_aware", "belady")
HEAD = ("policy", "hit rate", "fetched a step", "written back", "from peers", "critical", "MB a step", "cache", "by")


def _table() -> Table:
    table = Table(*HEAD, title="What every policy moves")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for number, name in enumerate(NAMES):
        cells = [f"{1_794_518 * (number + column + 1):,}" for column in range(len(HEAD) - 2)]
        table.add_row(name, *cells, "the links of its servers")
    return table


def _printed(width: int) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width), _table())
    return file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 130, 400])
def test_nothing_is_cut(width: int) -> None:
    text = _printed(width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for number in range(len(NAMES)):
        for column in range(len(HEAD) - 2):
            assert f" {1_794_518 * (number + column + 1):,} " in text
    for word in ["lookahead", "(this", "run)", "location_aware", "belady", "servers", "fetched", "critical"]:
        assert word in text


@pytest.mark.parametrize("width", range(40, 120, 3))
def test_words_are_not_broken_where_one_fits(width: int) -> None:
    file = io.StringIO()
    table = Table("policy", *(f"column {number}" for number in range(8)))
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("replicated", *["9,258"] * 8)
    show(Console(file=file, width=width), table)
    assert "replicated" in file.getvalue()


def test_a_wide_table_is_printed_in_parts_that_name_their_rows() -> None:
    parts = fitted(Console(file=io.StringIO(), width=60), _table())
    assert len(parts) > 1
    assert all(part.columns[0].header == "policy" for part in parts)
    assert [column.header for part in parts for column in part.columns[1:]] == list(HEAD[1:])
    assert [part.title for part in parts] == ["What every policy moves"] + [None] * (len(parts) - 1)


def test_a_table_that_fits_is_left_as_it_is() -> None:
    (part,) = fitted(Console(file=io.StringIO(), width=400), _table())
    assert [column.header for column in part.columns] == list(HEAD)
    assert len(part.rows) == len(NAMES)


def test_a_word_longer_than_the_terminal_is_folded_not_cut() -> None:
    file, path = io.StringIO(), "/".join(["folder"] * 30)
    table = Table("what", "value")
    table.add_row("path", path)
    show(Console(file=file, width=50), table)
    assert "".join(line.split("│")[2].strip() for line in file.getvalue().splitlines() if "folder" in line) == path


def test_a_pipe_has_no_width_unless_it_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    show(terminal(file=file), _table(), "word " * 100)
    assert max(map(len, file.getvalue().splitlines())) >= 500
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal(file=io.StringIO()).width == 70


def test_names_are_not_taken_for_markup() -> None:
    file = io.StringIO()
    table = Table("feature", "rows")
    table.add_row("[red]", "1")
    show(Console(file=file, width=40), table, "a [bold] word")
    assert "[red]" in file.getvalue()
    assert "a [bold] word" in file.getvalue()


def test_one_is_not_plural() -> None:
    assert (counted(1, "shard"), counted(0, "shard"), counted(1000, "row")) == ("1 shard", "0 shards", "1,000 rows")
