"""The page of a simulated cluster: its sections, and the whole of it in a real browser: no errors, charts, values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, find_browser
from foresee.tools.report.frame import as_csv
from foresee.tools.report.simulation import PARTS, sections, write_simulation_page

NAMES = ("planner_cores", "trainer_gb", "server_gb", "planner_gb", "samples_per_second")
RECORDS = [
    {"trainers": trainers, "bottleneck": "compute", "efficiency": 0.5, **dict.fromkeys(PARTS, 2.0)}
    | {name: float(trainers * (place + 1)) for place, name in enumerate(NAMES)}
    for trainers in (2, 16)
]


def test_the_csv_has_every_figure() -> None:
    two, sixteen = csv.DictReader(io.StringIO(as_csv(RECORDS)))
    assert (two["trainers"], sixteen["trainers"]) == ("2", "16")
    assert sixteen["server_gb"] == "48.0"


def test_every_section_has_a_heading_and_a_sentence() -> None:
    found = sections(RECORDS, "What is assumed.")
    assert [section.heading for section in found] == [
        "Predicted step over trainers",
        "Predicted samples a second",
        "Cores that planning needs",
        "Memory",
        "All figures",
    ]
    assert found[0].sentence == "What is assumed."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no Chromium on this machine: the page is not opened")
    with Browser(executable) as running:
        yield running


def test_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write_simulation_page(file, "On paper", RECORDS, introduction="What was planned.", setting="What is assumed.")
    page = browser.open(file)
    assert page.errors == []
    charts = page.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].map(chart => chart.data.map(trace => [...trace.y]))"
    )
    assert len(charts) == 4
    assert charts[0] == [[2.0, 2.0]] * len(PARTS)
    assert charts[1] == [[10.0, 80.0], [20.0, 160.0]], "predicted, and twice that by compute alone"
    assert charts[3] == [[4.0, 32.0], [6.0, 48.0], [8.0, 64.0]]
    assert page.evaluate("document.querySelectorAll('.js-plotly-plot .trace').length") > 0
