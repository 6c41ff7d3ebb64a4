"""A run folder in, a page out: every figure is a sum or a mean of the records, and what is missing is said."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import train_recorded, write_two_workers
from rich.console import Console

from foresee.data import tiny
from foresee.errors import InputError
from foresee.tools.cli import report as report_command
from foresee.tools.report.comparison import KEYS, read_comparison
from foresee.tools.report.frame import Record, as_csv
from foresee.tools.report.page import PageTable, Section
from foresee.tools.report.run_breakdown import IDEAL_PARTS, PARTS, breakdown, links_of, traffic_over_run, waiting_for
from foresee.tools.report.run_figures import skew_of
from foresee.tools.report.run_live import live_line, live_view, sparkline, stacked_bar
from foresee.tools.report.run_page import introduction_of, run_sections, title_of
from foresee.tools.report.run_records import read_run
from foresee.tools.report.run_timeline import windows


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return write_two_workers(tmp_path / "two")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return train_recorded(tiny(folder / "log"), folder / "run")


def sections_by_heading(folder: Path) -> dict[str, Section]:
    return {section.heading: section for section in run_sections(read_run(folder))}


def test_parts_of_a_step_add_up_to_the_step(two: Path) -> None:
    worker = read_run(two).workers[0]
    found = breakdown(worker.points)
    assert found.step_seconds == pytest.approx(0.1)
    assert found.parts["embedding access"] == pytest.approx(0.005)
    assert found.parts["backward + dense sync"] == pytest.approx(0.04)
    assert found.parts["cache sync"] == pytest.approx(0.02)
    assert found.ideal_seconds == pytest.approx(0.06)
    assert found.waited == pytest.approx(0.001)


def test_evaluations_and_commits_belong_to_no_step(run: Path) -> None:
    worker = read_run(run).workers[0]
    everything = sum(sum(point.tracks["train"].values()) for point in worker.points)
    between = sum(point.train_seconds("evaluate", "commit") for point in worker.points)
    assert between > 0
    assert breakdown(worker.points).step_seconds == pytest.approx((everything - between) / 25)


def test_every_activity_of_the_engine_has_a_place(run: Path) -> None:
    """A lap that was renamed would go into `other` unseen."""
    known = {what for activities in PARTS.values() for what in activities} | {"other", "evaluate", "commit"}
    seen = {span.what for span in read_run(run).workers[0].spans if span.track == "train"}
    assert seen <= known
    assert {"forward", "backward", "dense", "update", "gather", "wait_rows"} <= seen
    assert set(IDEAL_PARTS) <= set(PARTS)


def test_clocks_of_workers_are_brought_together(two: Path) -> None:
    found = read_run(two)
    begins = [[span.begin for span in worker.spans if span.what == "forward"] for worker in found.workers]
    assert begins[0] == pytest.approx(begins[1])


def test_windows_are_steps_that_all_workers_have(two: Path) -> None:
    found = windows(read_run(two).workers)
    steps = [(window.first_step, window.last_step) for window in found]
    assert steps == [(5, 7), (15, 17), (25, 27), (35, 37), (45, 47)]
    assert found[0].step_seconds == pytest.approx(0.1)
    only = [line for line in (two / "timeline" / "worker-1.jsonl").read_text().splitlines() if '"step": 16' not in line]
    (two / "timeline" / "worker-1.jsonl").write_text("\n".join(only))
    assert (15, 17) not in [(window.first_step, window.last_step) for window in windows(read_run(two).workers)]


def test_links_have_the_bytes_of_the_records(two: Path) -> None:
    links = {link.name: link.bytes_a_step for link in links_of(read_run(two).workers)}
    assert links["server 0 ⇄ worker 0"] == {"read from the store": 300.0, "written back": 100.0}
    assert links["server 1 ⇄ worker 1"] == {"read from the store": 500.0, "written back": 100.0}
    assert links["worker 0 → worker 1"] == {"between workers, critical": 400.0, "between workers, background": 200.0}
    assert len(links) == 6
    traffic = traffic_over_run(read_run(two).workers)
    assert traffic["read from the store"] == [(step, 1600.0) for step in (10, 20, 30, 40, 50)]


def test_hit_rates_by_table_are_over_all_workers(two: Path) -> None:
    chart = sections_by_heading(two)["Hit rate by table"].content
    assert isinstance(chart, go.Figure)
    assert list(chart.data[0].y) == ["user · 4,000 rows", "item · 6,000 rows"]
    assert list(chart.data[0].x) == pytest.approx([90.0, 50.0])


DISK = {
    "way": "io_uring", "syncs": 1, "sync_seconds": 0.001, "read_bytes": 2_000_000, "read_requests": 100,
    "read_seconds": 0.15, "read_processor_seconds": 0.02, "read_in_flight_seconds": 3.0, "written_bytes": 1_000_000,
    "written_requests": 10, "written_seconds": 0.01, "written_processor_seconds": 0.001,
    "written_in_flight_seconds": 0.05,
}  # fmt: skip


def with_disks(folder: Path, num_servers: int = 0, **train: float) -> Path:
    """The run of two workers, with disks of which all points tell the same, and other times of its training."""
    file = folder / "timeline" / "worker-0.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "start":
            line["num_servers"] = num_servers
        if line["kind"] == "series":
            line["disks"] = [DISK] * max(1, num_servers)
            line["lanes"]["train"] |= train
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_disks_are_shown_by_server_and_over_the_run(two: Path) -> None:
    sections = sections_by_heading(with_disks(two, 2))
    table, chart = sections["Disk"].content, sections["Disk over the run"].content
    assert isinstance(table, PageTable)
    assert table.rows[0] == ("server 0 reads", "0.2", "10", "20", "20", "15", "2", "")
    assert table.rows[3] == ("server 1 writes", "0.1", "1", "100", "5", "1", "0.1", "0.1")
    assert isinstance(chart, go.Figure)
    shown = {(trace.yaxis, trace.name): trace.y[0] for trace in chart.data}
    assert [shown[axis, "read"] for axis in ("y", "y2", "y3", "y4", "y5", "y6")] == pytest.approx(
        [0.4, 20.0, 20.0, 20.0, 4.0, 30.0]
    )


@pytest.mark.parametrize(
    ("num_servers", "train", "reader", "sentence"),
    [
        (0, {}, {}, None),
        (0, {"wait_rows": 0.2}, {}, "the disk, which reads 13 MB/s in requests of 20.0 kB, 20 at once"),
        (2, {"wait_rows": 0.2}, {}, "the disks of the servers, which read 13 MB/s"),
        (2, {"wait_rows": 0.2}, {"fetch": 0.9}, "rows from the servers"),
        (0, {"wait_rows": 0.2}, {"fetch": 0.9}, "copies of rows"),
        (0, {"wait_rows": 0.2}, {"wait_plan": 0.9}, "the planner"),
        (0, {"wait_rows": 0.2}, {"wait_writes": 0.9}, "write-backs"),
    ],
)
def test_what_steps_wait_for_is_said(
    two: Path, num_servers: int, train: dict[str, float], reader: dict[str, float], sentence: str | None
) -> None:
    points = read_run(with_disks(two, num_servers, **train)).workers[0].points
    for point in points:
        point.tracks["reader"].update(reader)
    found = waiting_for(points, num_servers=num_servers)
    assert found is None if sentence is None else found is not None and found.startswith(sentence)


def test_a_disk_that_syncs_slowly_is_what_commits_wait_for(two: Path) -> None:
    points = read_run(with_disks(two, commit=0.4)).workers[0].points
    assert waiting_for(points, num_servers=0) is None, "the time went elsewhere"
    for point in points:
        point.disks[0].update(sync_seconds=0.39)
    assert waiting_for(points, num_servers=0) == "commits: the disk takes 390 ms to sync what was written"


def test_watch_shows_the_disk_and_what_is_waited_for(two: Path) -> None:
    text, records = io.StringIO(), read_run(with_disks(two, wait_rows=0.2), spans=False)
    Console(file=text, width=200).print(live_view(records))
    assert "io_uring reads 13 MB/s in requests of 20.0 kB, 20 at once, 2.00 ms of a processor a step" in text.getvalue()
    assert "for the disk, which reads 13 MB/s" in text.getvalue()
    assert "waits for the disk" in live_line(records)


def test_a_restart_of_an_older_recording_has_no_negative_hit_rate(two: Path) -> None:
    file = two / "timeline" / "worker-0.jsonl"
    file.write_text(file.read_text().replace('"fetched": 200,', '"fetched": 9000,'))
    assert min(point.hit_rate for point in read_run(two).workers[0].points) == 0.0


def test_the_loss_is_the_mean_over_workers(two: Path) -> None:
    chart = sections_by_heading(two)["Loss"].content
    assert isinstance(chart, go.Figure)
    assert list(chart.data[0].y) == pytest.approx([0.71, 0.66, 0.61, 0.56, 0.51])


def test_a_recorded_run_has_every_chart(run: Path) -> None:
    sections = run_sections(read_run(run), skew=skew_of(np.array([5, 3, 1]), num_rows=10, num_samples=4))
    charts = [section.heading for section in sections if isinstance(section.content, go.Figure)]
    assert charts == [
        "Loss", "AUC", "Where the time of a step goes", "The same over the run", "What happens at the same time",
        "Rows in the cache", "How far ahead", "Bytes by link", "Bytes over the run", "Disk over the run",
        "Hit rate", "Hit rate by table",
        "How unequal rows are",
    ]  # fmt: skip


def test_what_was_not_recorded_is_a_sentence(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    folder = train_recorded(log, tmp_path / "run", report={"timeline_steps": 0, "series_points": 0})
    sections = sections_by_heading(folder)
    assert "series_points" in sections["Where the time of a step goes"].sentence
    assert "timeline_steps" in sections["What happens at the same time"].sentence
    assert isinstance(sections["Loss"].content, go.Figure)
    assert sections["How unequal rows are"].content is None
    assert all(section.sentence or section.content for section in sections.values())


def test_a_run_that_has_only_begun_is_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("log: ../log\nmodel: {name: dlrm}\ntrain: {batch_size: 8}\n")
    sections = sections_by_heading(tmp_path)
    assert "no metrics yet" in sections["Loss and AUC"].sentence
    assert "0 steps of 8 samples" in introduction_of(read_run(tmp_path))


def test_a_loop_of_ones_own_has_no_configuration(two: Path) -> None:
    records = read_run(two)
    assert records.config == {}
    assert "a loop of your own" in title_of(records)
    assert "50 of 100 steps, 2 workers" in introduction_of(records)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run; give the folder"):
        read_run(tmp_path)


def test_half_lines_and_steps_done_again_are_passed_over(two: Path) -> None:
    file = two / "timeline" / "worker-0.jsonl"
    again = {**json.loads(file.read_text().splitlines()[0]), "step": 30, "wall_seconds": 1100.0}
    with open(file, "a") as out:
        out.write('{"kind": "series", "st\n' + json.dumps(again) + "\n[1]\n")
    worker = read_run(two).workers[0]
    assert [point.step for point in worker.points] == [10, 20, 30]
    assert max(span.step for span in worker.spans) < 30 + 8


def test_the_first_point_of_a_start_is_not_steady(two: Path) -> None:
    worker = read_run(two).workers[0]
    assert [point.first for point in worker.points] == [True, False, False, False, False]
    assert len(worker.steady) == 4


def test_the_view_in_the_terminal_fits_eighty_columns(two: Path, run: Path) -> None:
    for folder in (two, run):
        text = io.StringIO()
        Console(file=text, width=80).print(live_view(read_run(folder, spans=False), "news"))
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
        assert "news" in text.getvalue()
    assert "worker 0" in text.getvalue() or "step" in text.getvalue()


def test_the_line_has_the_figures_of_the_records(two: Path) -> None:
    line = live_line(read_run(two))
    assert "step 50 of 100" in line
    assert "loss 0.5850" in line
    assert "100.0 ms a step (1.0% waits)" in line
    assert "hits 90.0%" in line


def test_a_run_is_finished_when_its_last_commit_is_written(run: Path, two: Path) -> None:
    assert read_run(run).finished
    assert not read_run(two).finished


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(1, 60))
def test_a_sparkline_is_never_wider_than_asked(values: list[float], columns: int) -> None:
    line = sparkline(values, columns)
    assert len(line) == min(columns, len(values))
    if len(set(values)) > 1 and len(values) <= columns:
        assert line[values.index(max(values))] == "█"
        assert line[values.index(min(values))] == "▁"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_a_bar_is_as_wide_as_its_parts_together(values: list[float]) -> None:
    parts = {str(number): value for number, value in enumerate(values)}
    bar = stacked_bar(parts, dict.fromkeys(parts, "red"), sum(values), 40)
    assert len(bar.plain) == (40 if sum(values) > 0 else 0)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=300), st.integers(0, 500))
def test_the_skew_curve_rises_to_everything(counts: list[int], num_untouched: int) -> None:
    skew = skew_of(np.array(counts), num_rows=len(counts) + num_untouched, num_samples=1)
    assert list(skew.access_shares) == sorted(skew.access_shares)
    assert skew.access_shares[-1] == skew.row_shares[-1] == 1.0
    assert skew.of_hottest(1.0) == 1.0
    one = 1 / skew.num_rows
    assert skew.of_hottest(one) == pytest.approx(max(counts) / sum(counts))
    assert all(accesses >= rows - 1e-9 for rows, accesses in zip(skew.row_shares, skew.access_shares, strict=True))


def test_a_comparison_is_read_as_it_was_written(tmp_path: Path) -> None:
    records: list[Record] = [
        {"policy": "lookahead", "trainers": 2, "cache": "0.1", "cache_rows": 50, "steps": 30, "batch_size": 256,
         "hit_rate": 0.5, "rows_per_step": 10.0, "critical_rows_per_step": 1.0, "bytes_per_step": 720.0,
         "critical_bytes_per_step": 72.0, "stale_reads": 0.0, "step_ms": 12.5, "bottleneck": "compute",
         "why_missing": None},
        {"policy": "fae", "trainers": 2, "cache": "0.1", "cache_rows": 50, "steps": None, "batch_size": 256,
         "hit_rate": None, "rows_per_step": None, "critical_rows_per_step": None, "bytes_per_step": None,
         "critical_bytes_per_step": None, "stale_reads": None, "step_ms": None, "bottleneck": None,
         "why_missing": "too small, by far"},
    ]  # fmt: skip
    (tmp_path / "a.csv").write_text(as_csv(records, KEYS))
    assert read_comparison(tmp_path / "a.csv") == records
    report_command.report(str(tmp_path / "a.csv"))
    assert "lookahead" in (tmp_path / "a.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n", "the columns are not those of a comparison"),
        ("", "the columns are not those of a comparison"),
        (as_csv([], KEYS), "no policy was compared"),
        (as_csv([{"policy": "lru", "trainers": "many"}], KEYS), "b.csv:2: trainers is 'many' and no number"),
    ],
)
def test_a_file_that_is_no_comparison_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_comparison(tmp_path / "b.csv")
