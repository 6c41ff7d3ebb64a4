"""The page of a comparison: its sections as text, and the whole of it in a real browser: no errors, charts, values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, find_browser
from foresee.tools.report.comparison import KEYS, sections, write_comparison_page
from foresee.tools.report.frame import as_csv
from foresee.tools.report.page import PageTable


def record(policy: str, trainers: int, cache: str, cache_rows: int, step_ms: float | None) -> dict[str, Any]:
    missing = policy == "owner" and trainers == 1
    values = {
        "hit_rate": 0.5, "rows_per_step": 100.0 * cache_rows, "critical_rows_per_step": 10.0 * cache_rows,
        "bytes_per_step": 2e6, "critical_bytes_per_step": 1e6, "stale_reads": 0.0, "step_ms": step_ms,
        "bottleneck": None if step_ms is None else "trainer link", "steps": 5,
    }  # fmt: skip
    reason = "needs <several> trainers" if missing else None
    return {
        "policy": policy, "trainers": trainers, "cache": cache, "cache_rows": cache_rows, "batch_size": 16,
        **(dict.fromkeys(values) if missing else values), "why_missing": reason,
    }  # fmt: skip


RECORDS = [
    record(policy, trainers, cache, rows, None if policy == "belady" else 10.0 + trainers + position)
    for trainers in (1, 4)
    for cache, rows in (("1x", 3), ("2x", 6))
    for position, policy in enumerate(("none", "owner", "lookahead", "belady"))
]


def test_the_csv_has_every_column_and_nothing_for_what_is_missing() -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(RECORDS, KEYS))))
    assert len(lines) == len(RECORDS)
    assert tuple(lines[0]) == KEYS
    assert lines[0]["step_ms"] == "11.0"
    assert (lines[1]["step_ms"], lines[1]["why_missing"]) == ("", "needs <several> trainers")
    assert lines[3]["step_ms"] == "", "the bound has no step"


def test_sections_follow_what_varies() -> None:
    headings = [section.heading for section in sections(RECORDS, "setting")]
    assert headings == [
        "Predicted step, 4 trainers",
        "Rows moved a step, 4 trainers",
        "Over cache size: predicted ms a step, 4 trainers",
        "Over cache size: rows moved a step, 4 trainers",
        "Over trainers: predicted ms a step",
        "Over trainers: critical bytes a step",
        "All figures",
    ]
    alone = [one for one in RECORDS if one["trainers"] == 1 and one["cache"] == "1x"]
    assert [section.heading for section in sections(alone, "setting")] == [
        "Predicted step, 1 trainer",
        "Rows moved a step, 1 trainer",
        "All figures",
    ]


def test_the_table_has_dashes_and_reasons() -> None:
    last = sections(RECORDS, "setting")[-1]
    assert isinstance(last.content, PageTable)
    owner = last.content.rows[1]
    assert owner[:2] == ["owner", "1"]
    assert set(owner[3:]) == {"–"}
    assert last.notes == ["owner, 1: needs <several> trainers."]
    assert last.content.marked == frozenset({2, 6, 10, 14})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no Chromium on this machine: the page is not opened")
    with Browser(executable) as running:
        yield running


CHARTS = """[...document.querySelectorAll('.js-plotly-plot')].map(chart => ({
    names: chart.data.map(trace => trace.name || ''), ys: chart.data.map(trace => [...trace.y]),
    drawn: chart.querySelectorAll('.trace').length, width: chart.getBoundingClientRect().width }))"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_in_a_browser(width: int, dark: bool, browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write_comparison_page(file, "Policies on <log>", RECORDS, introduction="What was compared.", setting="Setting.")
    page = browser.open(file, width=width, dark=dark, phone=width < 500)
    assert page.errors == []
    charts = page.evaluate(CHARTS)
    assert len(charts) == 6
    assert all(chart["drawn"] == len(chart["names"]) for chart in charts), "every line and bar is drawn"
    assert charts[0]["ys"] == [[14, 15, 16]], "milliseconds of none, owner and lookahead with 4 trainers"
    assert charts[1]["ys"] == [[30.0] * 4, [270.0] * 4]
    assert charts[2]["names"] == ["none", "owner", "lookahead"]
    assert charts[4]["ys"][1] == [15], "no point where owner does not exist"
    assert all(chart["width"] <= width for chart in charts)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert page.evaluate("document.querySelector('h1').textContent") == "Policies on <log>"
    ink = page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert ink == ("rgb(230, 233, 238)" if dark else "rgb(29, 36, 48)")
