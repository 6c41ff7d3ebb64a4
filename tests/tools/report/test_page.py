"""The frame of our pages: complete in one file, nothing loaded, nothing of the content taken for markup."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import pytest

from foresee.errors import InputError
from foresee.tools.report.page import PageTable, Section, page, styled, write_page


def chart() -> go.Figure:
    return styled(go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="</script><b>")), x="rows", y="seconds")


def sections() -> list[Section]:
    table = PageTable(columns=["policy", "rows"], rows=[["lru", "1"], ["<ours>", "2"]], marked=frozenset({1}))
    return [
        Section(heading="first", sentence="a chart", content=chart()),
        Section(heading="second", sentence="a table", content=table, notes=["small <print>"]),
        Section(heading="third", sentence="a chart", content=chart()),
    ]


def test_a_page_has_its_sections_and_loads_nothing() -> None:
    text = page("A & B", sections(), "Why <this> page.")
    assert text.startswith("<!doctype html>")
    assert "<title>A &amp; B</title>" in text
    assert "<p>Why &lt;this&gt; page.</p>" in text
    assert [text.index(f"<h2>{name}</h2>") for name in ("first", "second", "third")] == sorted(
        text.index(f"<h2>{name}</h2>") for name in ("first", "second", "third")
    )
    assert text.count('<figure class="chart">') == 2
    assert 'id="chart-0"' in text
    assert 'id="chart-1"' in text
    assert "<script src" not in text
    assert "default-src 'none'" in text


def test_nothing_of_the_content_is_taken_for_markup() -> None:
    text = page("title", sections())
    assert "</script><b>" not in text
    assert '<tr class="marked"><td>&lt;ours&gt;</td><td>2</td></tr>' in text
    assert "<p>small &lt;print&gt;</p>" in text


def test_the_same_sections_give_the_same_bytes() -> None:
    assert page("title", sections()) == page("title", sections())


def test_a_page_without_charts_carries_no_plotly() -> None:
    assert len(page("title", sections()[1:2])) < 10_000


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "title", sections())
    assert (tmp_path / "page.html").read_text("utf-8") == page("title", sections())
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match=r"the page cannot be written .*; give another path"):
        write_page(tmp_path / "missing" / "page.html", "title", sections())
