"""The page of a run in a real browser: no errors, every chart drawn, values as recorded, dark, phone and paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import train_recorded, write_two_workers

from browser import Browser, Page, find_browser
from foresee.data import tiny
from foresee.tools.cli.report import report
from foresee.tools.report.run_breakdown import breakdown
from foresee.tools.report.run_records import RunRecords, read_run

NUM_CHARTS = 13
CHARTS = "[...document.querySelectorAll('.js-plotly-plot')]"
DRAWN = f"{CHARTS}.map(chart => chart.querySelectorAll('.scatterlayer .trace, .barlayer .trace').length)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium or Chrome is installed here, so pages are not opened in a browser")
    with Browser(path) as browser:
        yield browser


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return train_recorded(tiny(folder / "log"), folder / "run")


@pytest.fixture(scope="module")
def page_file(run: Path) -> Path:
    report(str(run))
    return run / "report.html"


@pytest.fixture(scope="module")
def page(browser: Browser, page_file: Path) -> Page:
    return browser.open(page_file)


@pytest.fixture(scope="module")
def records(run: Path) -> RunRecords:
    return read_run(run)


def section(page: Page, heading: str, expression: str) -> Any:
    """A JavaScript expression of `chart`, the chart under a heading."""
    return page.evaluate(
        f"(() => {{ const section = [...document.querySelectorAll('section')]"
        f".find(one => one.querySelector('h2').textContent === {heading!r});"
        f" const chart = section.querySelector('.js-plotly-plot'); return {expression}; }})()"
    )


def xy(page: Page, heading: str, trace: int) -> list[list[float]]:
    """The points of a trace as plotly has them, however they were packed."""
    found = section(page, heading, f"[Array.from(chart._fullData[{trace}].x), Array.from(chart._fullData[{trace}].y)]")
    assert isinstance(found, list)
    return found


def test_nothing_goes_wrong(page: Page) -> None:
    assert page.errors == []


def test_every_chart_is_drawn(page: Page) -> None:
    drawn = page.evaluate(DRAWN)
    assert len(drawn) == NUM_CHARTS
    assert min(drawn) > 0


def test_the_page_asks_nobody_for_anything(page: Page, page_file: Path) -> None:
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    text = page_file.read_text("utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)


def test_the_loss_is_that_of_the_records(page: Page, records: RunRecords) -> None:
    points = records.workers[0].points
    assert xy(page, "Loss", 0) == [[point.step for point in points], [point.loss for point in points]]
    judged = records.of_kind("valid")
    assert xy(page, "Loss", 1) == [[line["step"] for line in judged], [line["log_loss"] for line in judged]]


def test_auc_is_that_of_the_metrics(page: Page, records: RunRecords) -> None:
    judged = records.of_kind("valid")
    assert len(judged) == 2
    assert xy(page, "AUC", 1) == [[line["step"] for line in judged], [line["auc"] for line in judged]]


def test_the_breakdown_is_that_of_the_records(page: Page, records: RunRecords) -> None:
    found = breakdown(records.workers[0].steady)
    bars = section(
        page, "Where the time of a step goes",
        "chart._fullData.filter(one => one.type === 'bar').map(one => [one.name, Array.from(one.x)])",
    )  # fmt: skip
    shown = dict(bars)
    assert set(shown) == set(found.visible_parts)
    for part, (ideal, ours) in shown.items():
        assert ours == pytest.approx(1e3 * found.parts[part], abs=1e-5)
        assert ideal == pytest.approx(ours if part in ("forward", "backward + dense sync") else 0.0, abs=1e-5)


def test_cache_hits_and_links_are_those_of_the_records(page: Page, records: RunRecords) -> None:
    worker = records.workers[0]
    steps = [point.step for point in worker.points]
    assert xy(page, "Rows in the cache", 0) == [steps, [point.occupied for point in worker.points]]
    hits = xy(page, "Hit rate", 0)
    assert hits[0] == steps
    assert hits[1] == pytest.approx([100 * (1 - point.fetched / point.unique) for point in worker.points])
    read, written = (xy(page, "Bytes by link", trace)[0][0] for trace in range(2))
    assert read == pytest.approx(sum(point.fetched for point in worker.points) * worker.start["row_bytes"] / 25e6)
    assert written == pytest.approx(sum(point.evicted for point in worker.points) * worker.start["row_bytes"] / 25e6)
    assert section(page, "Hit rate by table", "chart._fullData[0].x.length") == len(worker.start["tables"])


def test_the_timeline_shows_the_spans_of_its_window(page: Page, records: RunRecords) -> None:
    heading = "What happens at the same time"
    label = section(page, heading, "chart.layout.updatemenus[0].buttons[chart.layout.updatemenus[0].active].label")
    first, last = (int(number) for number in re.findall(r"\d+", label))
    shown = section(
        page, heading, "chart._fullData.filter(one => one.visible === true && one.name === 'forward').map(one => one.x)"
    )[0]
    spans = [s for s in records.workers[0].spans if s.what in ("begin", "forward") and first <= s.step <= last]
    assert shown == pytest.approx([1e3 * span.seconds for span in spans], abs=2e-3)
    lanes = section(page, heading, "Array.from(chart.querySelectorAll('.ytick text')).map(one => one.textContent)")
    assert lanes == ["step", "training", "fetch", "plan", "write back"]


def test_another_window_can_be_chosen(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file)
    heading = "What happens at the same time"
    shown = "chart._fullData.map((one, number) => one.visible === true ? number : -1).filter(number => number >= 0)"
    before = section(page, heading, shown)
    page.evaluate(
        "(() => { const chart = document.querySelector('#chart-4'), menu = chart.layout.updatemenus[0];"
        " const other = menu.buttons[(menu.active + 1) % menu.buttons.length];"
        " return Plotly.update(chart, ...other.args).then(() => 1); })()"
    )
    after = section(page, heading, shown)
    assert after
    assert not set(before) & set(after)
    assert page.errors == []


def test_ink_follows_the_readers_setting(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file, dark=True)
    ink = "getComputedStyle(document.querySelector('.xtick text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ink), page.evaluate(paper)
    page.set_dark(False)
    page.settle()
    light = page.evaluate(ink), page.evaluate(paper)
    assert _brightness(dark[0]) > 180 > 60 > _brightness(dark[1])
    assert _brightness(light[0]) < 60 < 250 < _brightness(light[1])
    assert page.errors == []


def _brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_a_phone_needs_no_scrolling_sideways(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file, width=390, height=844, phone=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    widths = page.evaluate(f"{CHARTS}.map(chart => chart.getBoundingClientRect().right)")
    assert len(widths) == NUM_CHARTS
    assert max(widths) <= 390
    assert min(page.evaluate(DRAWN)) > 0
    assert page.errors == []


def test_it_prints(page: Page) -> None:
    printed = page.pdf()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
    assert page.errors == []


def test_two_workers_stand_under_each_other(browser: Browser, tmp_path: Path) -> None:
    report(str(write_two_workers(tmp_path / "two")), tmp_path / "two.html")
    page = browser.open(tmp_path / "two.html")
    assert page.errors == []
    lanes = "Array.from(chart.querySelectorAll('.ytick text')).map(one => one.textContent)"
    found = section(page, "What happens at the same time", lanes)
    assert found == ["worker 0", "training", "fetch", "worker 1", "training", "fetch"]
    assert section(page, "Where the time of a step goes", "Array.from(chart._fullData[0].y)") == [
        "ideal", "worker 0", "worker 1",
    ]  # fmt: skip


def test_a_run_without_a_recording_is_a_page_of_sentences(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("log: ../log\nmodel: {name: dlrm}\ntrain: {batch_size: 8}\n")
    report(str(tmp_path))
    page = browser.open(tmp_path / "report.html")
    assert page.errors == []
    assert page.evaluate(f"{CHARTS}.length") == 0
    assert "recorded no timeline" in page.evaluate("document.body.textContent")
