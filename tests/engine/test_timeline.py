"""A recording is a true account: spans do not overlap, counts are those of the plan, every step stands there once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.header import make_header
from foresee.engine.optimizers import SGD
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.engine.trace.series import TimelineFile, every_steps
from foresee.engine.trace.tracer import NULL_TRACER, SPANS_PER_STEP_MAX, THREADS, Tracer, thread_name, window_steps
from foresee.run.config import ReportConfig
from foresee.run.steps import lookahead
from foresee.store.memory import MemoryStore
from foresee.testing.delays import Meeting, SharedStore, ThreadMesh
from whole_run import Dots, train, train_step


@pytest.fixture
def log(tmp_path: Path) -> ClickLog:
    return tiny(tmp_path / "log")


def lines_of(run: Path, worker: int = 0) -> list[dict[str, Any]]:
    text = (run / "timeline" / f"worker-{worker}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(run) if line["kind"] == kind]


def test_the_spans_of_a_track_do_not_overlap(log: ClickLog, tmp_path: Path) -> None:
    train_quietly(small_run(log, tmp_path / "run", report={"timeline_steps": 1000}))
    by_lane = defaultdict(list)
    for span in of_kind(tmp_path / "run", "span"):
        by_lane[span["lane"]].append(span)
    assert set(by_lane) == {"train", "planner", "reader", "writer"}
    for spans in by_lane.values():
        for one, following in pairwise(spans):
            assert one["begin"] <= one["end"] <= following["begin"] <= following["end"]


class _Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_time_counts_for_the_innermost_span_only(tmp_path: Path) -> None:
    clock = _Clock()
    tracer = Tracer(tmp_path, clock=clock)
    tracer.spans_until = float("inf")
    with tracer.span("update", 3):
        clock.now = 1.0
        with tracer.span("exchange", 3, 100):
            clock.now = 3.0
        clock.now = 3.5
    clock.now = 4.0
    with tracer.span("evict", 3):
        clock.now = 5.0
    clock.now = 7.0
    tracer.mark("compute", 4)
    assert [tuple(span) for span in tracer.spans] == [
        ("train", "update", 3, 0.0, 1.0, 0),
        ("train", "exchange", 3, 1.0, 3.0, 100),
        ("train", "update", 3, 3.0, 3.5, 0),
        ("train", "evict", 3, 4.0, 5.0, 0),
        ("train", "compute", 4, 5.0, 7.0, 0),
    ]
    assert tracer.track().seconds == {"update": 1.5, "exchange": 2.0, "evict": 1.0, "compute": 2.0}


def test_a_span_that_an_exception_ends_is_not_recorded(tmp_path: Path) -> None:
    clock = _Clock()
    tracer = Tracer(tmp_path, clock=clock)
    tracer.spans_until = float("inf")
    with tracer.span("update", 0):
        with suppress(StopIteration), tracer.span("wait_rows", 0):
            clock.now = 1.0
            raise StopIteration
        clock.now = 2.0
    assert [(span.what, span.begin, span.end) for span in tracer.spans] == [("update", 0.0, 0.0), ("update", 0.0, 2.0)]


def test_each_thread_has_its_own_track(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path)
    names = [*THREADS, "anything"]
    threads = [Thread(target=tracer.mark, args=("ahead", 0), name=thread_name(name)) for name in names]
    for thread in threads:
        thread.start()
        thread.join()
    assert set(tracer._track_seconds()) == {*THREADS, "train"}


def test_what_is_not_recorded_costs_one_shared_context() -> None:
    assert NULL_TRACER.span("fetch", 0) is NULL_TRACER.span("update", 1, 10)


def test_every_step_has_every_activity_once(log: ClickLog, tmp_path: Path) -> None:
    often = {"commit_every_steps": 5, "evaluate_every_steps": 8}
    train_quietly(small_run(log, tmp_path / "run", train=often, report={"timeline_steps": 1000}))
    found = Counter((span["what"], span["step"]) for span in of_kind(tmp_path / "run", "span"))
    beside, training = ("plan", "fetch", "write_back"), ("wait_rows", "fill", "gather", "forward", "backward", "update")
    flushed = (4, 7, 9, 14, 15, 19, 23, 24)
    for what in (*beside, *training):
        # A commit or an evaluation writes what is cached after a step, in that step's name.
        steps = [step for step in range(25) if what != "write_back" or step not in flushed]
        assert [found[what, step] for step in steps] == [1] * len(steps), what
    assert [found["commit", step] for step in (4, 9, 14, 19)] == [1, 1, 1, 1]
    assert [found["evaluate", step] for step in (7, 15, 23)] == [1, 1, 1]


def test_a_fetch_ends_before_its_step_begins_and_carries_its_bytes(log: ClickLog, tmp_path: Path) -> None:
    outcome, _ = train_quietly(small_run(log, tmp_path / "run", report={"timeline_steps": 1000}))
    spans, row_bytes = of_kind(tmp_path / "run", "span"), of_kind(tmp_path / "run", "start")[0]["row_bytes"]
    ended = {span["step"]: span["end"] for span in spans if span["what"] == "fetch"}
    begun = {span["step"]: span["begin"] for span in spans if span["what"] == "fill"}
    assert all(ended[step] <= begun[step] for step in range(25))
    fetched = sum(span["bytes"] for span in spans if span["what"] == "fetch")
    assert fetched == outcome.counters.num_fetched * row_bytes > 0


def test_the_points_add_up_to_the_counters_of_the_run(log: ClickLog, tmp_path: Path) -> None:
    outcome, _ = train_quietly(small_run(log, tmp_path / "run"))
    start, points = of_kind(tmp_path / "run", "start")[0], of_kind(tmp_path / "run", "series")
    assert sum(point["steps"] for point in points) == 25
    assert points[-1]["step"] == 25
    for name, total in (
        ("lookups", outcome.counters.num_lookups),
        ("unique", outcome.counters.num_unique),
        ("fetched", outcome.counters.num_fetched),
        ("evicted", outcome.counters.num_evicted),
    ):
        assert sum(point[name] for point in points) == total, name
    for point in points:  # over a whole run as many rows are written as fetched, in an interval not
        assert point["store_bytes"] == [[start["row_bytes"] * point[name] for name in ("fetched", "evicted")]]
    read = sum(point["store_bytes"][0][0] for point in points)
    assert read == outcome.counters.num_fetched * start["row_bytes"]
    assert max(point["occupied"] for point in points) <= start["capacity_rows"]


def test_the_disk_is_counted(log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row that was written is read again in a second epoch, past the page cache; each read is in some point."""
    monkeypatch.setenv("FORESEE_DISK", "threads")
    monkeypatch.setattr("foresee.store.disk.log.RECENT_BYTES", 0)
    config = small_run(log, tmp_path / "run", train={"commit_every_steps": 5, "epochs": 2})
    train_quietly(config)
    start, points = of_kind(tmp_path / "run", "start")[0], of_kind(tmp_path / "run", "series")
    disks = [point["disks"][0] for point in points]
    assert {disk["way"] for disk in disks} <= {"threads", "mapped"}, "a file system may refuse direct reads"
    total = {name: sum(disk[name] for disk in disks) for name in disks[0] if name != "way"}
    assert total["read_requests"] > 0 < total["written_requests"]
    assert total["read_bytes"] >= start["row_bytes"] * total["read_requests"]
    assert total["written_bytes"] > total["written_requests"] * start["row_bytes"], "chunks, not rows"
    assert total["syncs"] >= 8, "the commits"
    for name in ("read", "written"):
        assert total[f"{name}_processor_seconds"] > 0
        assert 0 < total[f"{name}_seconds"] <= total[f"{name}_in_flight_seconds"] + 1e-4


def test_a_thread_does_no_more_than_the_time_allows(log: ClickLog, tmp_path: Path) -> None:
    """Spans end before the point that counts them, so at any point their sum is at most the time since the start."""
    train_quietly(small_run(log, tmp_path / "run"))
    done, seconds = 0.0, 0.0
    points = of_kind(tmp_path / "run", "series")
    assert points
    for point in points:
        done, seconds = done + sum(point["lanes"]["train"].values()), seconds + point["seconds"]
        assert 0 < done <= seconds + 1e-4


def test_rows_by_table_are_those_of_the_sampled_steps(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run")
    train_quietly(config)
    start, tables = of_kind(tmp_path / "run", "start")[0], of_kind(tmp_path / "run", "tables")
    every, stream = start["series_every_steps"], log.batches(batch_size=32, seed=config.train.seed)
    sampled = [batch for batch in stream.batches() if (batch.step + 1) % every == 0 or batch.step == 24]
    assert sum(line["steps"] for line in tables) == len(sampled)
    edges = [0]
    for num_rows in start["table_rows"]:
        edges.append(edges[-1] + num_rows)
    for table in range(len(start["tables"])):
        rows = [{row for row in batch.rows.tolist() if edges[table] <= row < edges[table + 1]} for batch in sampled]
        assert sum(line["unique"][table] for line in tables) == sum(map(len, rows))
    assert all(f <= u for line in tables for f, u in zip(line["fetched"], line["unique"], strict=True))


def test_recording_changes_no_byte_of_a_run(log: ClickLog, tmp_path: Path) -> None:
    recorded = small_run(log, tmp_path / "a", report={"timeline_steps": 1000})
    silent = small_run(log, tmp_path / "b", report={"timeline_steps": 0, "series_points": 0})
    train_quietly(recorded)
    train_quietly(silent)
    assert everything(recorded) == everything(silent)
    assert not (tmp_path / "b" / "timeline").exists()


def test_steps_that_are_trained_again_are_recorded_once(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", report={"timeline_steps": 1000})
    train_quietly(config, stop_after=12)
    file = tmp_path / "run" / "timeline" / "worker-0.jsonl"
    with open(file, "a") as out:  # what a process leaves that was killed at step 15
        out.write('{"kind": "series", "step": 15, "steps": 3}\n{"kind": "span", "step": 14, "what": "fo')
    train_quietly(config, resume=True)
    points = of_kind(tmp_path / "run", "series")
    assert [line["step"] for line in of_kind(tmp_path / "run", "start")] == [0, 12]
    assert [point["step"] for point in points] == sorted({point["step"] for point in points})
    assert sum(point["steps"] for point in points) == 25
    found = Counter(span["step"] for span in of_kind(tmp_path / "run", "span") if span["what"] == "forward")
    assert found == Counter(range(25))


def test_a_new_run_begins_with_an_empty_recording(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run")
    train_quietly(config)
    train_quietly(config, replace=True)
    assert len(of_kind(tmp_path / "run", "start")) == 1


def test_a_full_disk_costs_the_recording_and_not_the_run(
    log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foresee.engine.trace.series.open", fail, raising=False)
    with pytest.warns(RuntimeWarning, match="No space left.*training goes on"):
        outcome, _ = train_quietly(small_run(log, tmp_path / "run"))
    assert outcome.finished


def test_a_loop_of_ones_own_is_recorded_if_it_asks(log: ClickLog, tmp_path: Path) -> None:
    tables = Tables.in_memory(log, dim=4, optimizer=SGD(lr=0.1))
    run = lookahead(log, tables, batch_size=32, cache_rows=150, record=tmp_path / "mine")
    model = Dots()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in run:
        step.learned(float(step.index))
        train_step(step, model, optimizer)
    points = of_kind(tmp_path / "mine", "series")
    losses = [point["loss"] for point in points]
    assert losses[0] == sum(range(points[0]["steps"])) / points[0]["steps"]
    assert all("compute" in point["lanes"]["train"] for point in points)
    assert not (tmp_path / "mine" / "config.yaml").exists()


def test_a_loop_that_does_not_ask_leaves_nothing(log: ClickLog, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    train(lookahead(log, Tables.in_memory(log, dim=4, optimizer=SGD(lr=0.1)), batch_size=32, cache_rows=150))
    assert set(tmp_path.rglob("*")) == before


@given(st.integers(1, 5000), st.integers(0, 300))
def test_windows_are_as_many_steps_as_asked_for_inside_the_run(num_steps: int, timeline_steps: int) -> None:
    steps = window_steps(num_steps, timeline_steps)
    assert all(0 <= step < num_steps for step in steps)
    assert len(steps) <= timeline_steps
    if timeline_steps:
        assert len(steps) >= min(num_steps, max(1, timeline_steps // 2))


@given(st.integers(1, 10**7), st.integers(1, 5000))
def test_a_run_has_at_most_as_many_points_as_asked_for(num_steps: int, points: int) -> None:
    every = every_steps(num_steps, points)
    assert every >= 1
    assert num_steps // every <= max(points, 10)


def test_a_long_recording_is_bounded(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", train={"epochs": 40}, report={"timeline_steps": 24, "series_points": 50})
    train_quietly(config)
    run = tmp_path / "run"
    assert len(of_kind(run, "series")) <= 51
    assert len(of_kind(run, "span")) <= 24 * SPANS_PER_STEP_MAX
    assert {span["step"] for span in of_kind(run, "span") if span["what"] == "forward"} == window_steps(1000, 24)


def test_the_recording_has_a_limit_on_spans(tmp_path: Path) -> None:
    recording = Tracer(tmp_path, timeline_steps=1, series_points=0)
    recording._file = TimelineFile(tmp_path, 0)
    recording._file.forget_from(0)
    recording.spans_until = float("inf")
    for _ in range(3 * SPANS_PER_STEP_MAX):
        recording.mark("other", 0)
    recording._write_spans()
    assert len(lines_of(tmp_path)) == SPANS_PER_STEP_MAX


def test_the_defaults_of_a_run_file_and_of_a_loop_are_the_same(tmp_path: Path) -> None:
    recording, config = Tracer(tmp_path), ReportConfig()
    assert (recording._timeline_steps, recording._series_points) == (config.timeline_steps, config.series_points)


@pytest.mark.parametrize("during_backward", [False, True])
def test_workers_agree_on_what_went_between_them(log: ClickLog, tmp_path: Path, during_backward: bool) -> None:
    num_received = _train_two(log, tmp_path, during_backward)
    sent, received = {}, {}
    for worker in range(2):
        points = [line for line in lines_of(tmp_path, worker) if line["kind"] == "series"]
        assert sum(point["received"] for point in points) == num_received[worker] > 0
        traffic = [point["peer_bytes"][1 - worker] for point in points]
        sent[worker] = sum(row[0] for row in traffic), sum(row[2] for row in traffic)
        received[worker] = sum(row[1] for row in traffic), sum(row[3] for row in traffic)
        assert all(point["peer_bytes"][worker] == [0, 0, 0, 0] for point in points)
        spans = [line for line in lines_of(tmp_path, worker) if line["kind"] == "span"]
        waits = Counter(span["lane"] for span in spans if span["what"] == "background_wait")
        assert waits == {"update" if during_backward else "train": 25}
        assert sum(span["what"] == "background" for span in spans) >= 24
    # The last background exchange ends after the last point.
    assert sent[0][0] == received[1][0] > 0
    assert sent[1][0] == received[0][0] > 0


def _train_two(log: ClickLog, folder: Path, during_backward: bool) -> list[int]:
    """Two workers as threads; gives the rows that each received."""
    layout = Tables.in_memory(log, dim=4, optimizer=SGD(lr=0.1)).layout
    shared, meeting, num_received = SharedStore(MemoryStore(layout), 2), Meeting(2), [0, 0]

    def work(rank: int) -> None:
        stream = log.batches(batch_size=32, seed=2)
        header = make_header(
            stream, planner="lookahead", cache_rows=120, num_workers=2, placement="contiguous", fetch_ahead_steps=3
        )
        tracer, tables = Tracer(folder, timeline_steps=100), Tables(shared.for_worker(rank), SGD(lr=0.1))
        exchange = PeerExchange(layout, ThreadMesh(meeting, rank), tracer)
        run = Run(
            stream, tables, header, Pooling.of(log.mean_features), exchange=exchange, commit_at_end=False,
            tracer=tracer,
        )  # fmt: skip
        for step in run:
            if during_backward:
                step.update_during_backward()
            step.embeddings.backward(torch.ones_like(step.embeddings))  # type: ignore[no-untyped-call]
            step.update()
        exchange.close()
        num_received[rank] = run.counters.num_received

    threads = [Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return num_received
