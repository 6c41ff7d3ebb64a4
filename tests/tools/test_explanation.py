"""What `explain` says of a plan is what is in the plan and in the log: counted again here, from the batches alone."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from foresee.data import Categorical, Columns, Csv, PrepareOptions, prepare, tiny
from foresee.data.click_log import ClickLog
from foresee.engine.planned_step import planned_records
from foresee.errors import DataError, PlanError
from foresee.plan.count import count
from foresee.plan.format.file import write_plan
from foresee.plan.record import UNKNOWN_VERSION, Counters, Kind
from foresee.run.build import open_log, plan_header, table_layout, train_stream
from foresee.run.config import RunConfig
from foresee.run.config_file import make_run
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.tools.explain import RowLife, RowNames, RunPlan, explain_row, explain_step
from foresee.tools.explain.explain import explain_rows, place_now
from foresee.tools.explain.figures import PlannedStep
from foresee.tools.explain.measured import measured_step
from foresee.tools.explain.sentences import AWAY, KEPT, USED, row_headline, row_paragraphs, step_paragraphs, strip

RUNS = {
    "lookahead": {"rows": 130},
    "window": {"rows": 189, "window_steps": 2},
    "belady": {"rows": 130, "planner": "belady"},
    "lru": {"rows": 130, "planner": "lru"},
    "none": {"rows": 130, "planner": "none"},
    "two workers": {"rows": 80},
    "four workers": {"rows": 60},
    "four workers, none": {"rows": 60, "planner": "none"},
}


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained") / "log"
    tiny(folder, num_samples=900)
    return folder


def config_of(log_folder: Path, run: str) -> RunConfig:
    workers = {"two": 2, "four": 4}.get(run.split()[0], 1)
    content = {
        "log": log_folder, "run": log_folder.parent / "run", "cache": RUNS[run], "train": {"batch_size": 32},
        "distributed": {"workers": workers},
    }  # fmt: skip
    return make_run(content, where="test")


def lives_of(config: RunConfig, rows: range) -> list[RowLife]:
    return explain_rows(RunPlan.of(config), rows)


def counters_of(config: RunConfig) -> Counters:
    log = open_log(config)
    stream = train_stream(config, log)
    return count(planned_records(stream, plan_header(config, log, stream)))


@pytest.mark.parametrize("run", RUNS)
def test_a_row_is_used_where_the_batches_use_it(log_folder: Path, run: str) -> None:
    config = config_of(log_folder, run)
    log = open_log(config)
    touched = [set(batch.rows.tolist()) for batch in train_stream(config, log).batches()]
    lives = lives_of(config, range(0, log.num_rows, 9))
    assert any(life.uses for life in lives)
    for life in lives:
        assert life.uses == [step for step, rows in enumerate(touched) if life.row in rows], life.name


@pytest.mark.parametrize(
    ("cache", "told"), [({}, True), ({"planner": "lru", "uses_ahead_steps": 0}, False), ({"planner": "lru"}, True)]
)
def test_it_is_said_whether_the_store_was_told_of_the_next_use(
    log_folder: Path, cache: dict[str, object], told: bool
) -> None:
    """Without a window of its own a policy knows what was looked for."""
    content = {
        "log": log_folder, "run": log_folder.parent / "run", "cache": {"rows": 130, **cache},
        "train": {"batch_size": 32},
    }  # fmt: skip
    lives = lives_of(make_run(content, where="test"), range(0, 189, 9))
    returning = [stay.left for life in lives for stay in life.stays if stay.left and stay.left.next_use is not None]
    assert len(returning) > 5
    assert {left.stated_use == left.next_use for left in returning} == {told}
    text = "\n".join(sentence for life in lives for sentences in row_paragraphs(life) for sentence in sentences)
    assert ("which the store was told" in text) == told


@pytest.mark.parametrize("run", RUNS)
def test_a_life_has_no_gaps(log_folder: Path, run: str) -> None:
    lives = lives_of(config_of(log_folder, run), range(0, 189, 9))
    assert any(life.stays for life in lives)
    for life in lives:
        version = 0
        for number, stay in enumerate(life.stays):
            assert stay.version == version, "it is read as it was written"
            assert stay.uses[0] == stay.fetched_for
            assert stay.left is not None, "at the latest the end writes it back"
            version = stay.left.version
            assert version == stay.uses[-1] + 1
            assert stay.left.after >= stay.uses[-1]
            following = life.stays[number + 1] if number + 1 < len(life.stays) else None
            assert stay.left.next_use == (following.fetched_for if following else None)
            assert following is None or following.fetched_for > stay.left.after
            assert stay.not_before < stay.fetched_for
            before = life.stays[number - 1].left if number else None
            if stay.guard == "itself":
                assert before is not None
                assert stay.not_before == before.after
            elif before is not None:
                assert stay.not_before >= before.after, "never before its own write-back"
            if stay.guard == "staging":
                assert stay.not_before == stay.fetched_for - 1 - 8
            assert (stay.guard == "start") == (stay.not_before == -1)


@pytest.mark.parametrize("run", RUNS)
def test_steps_add_up_to_the_counters(log_folder: Path, run: str) -> None:
    config = config_of(log_folder, run)
    counters = counters_of(config)
    accounts = [explain_step(RunPlan.of(config), step) for step in range(counters.num_steps)]
    workers = [worker for account in accounts for worker in account.workers]
    assert sum(worker.num_lookups for worker in workers) == counters.num_lookups
    assert sum(worker.num_rows for worker in workers) == counters.num_unique
    assert sum(worker.fetching.num_rows for worker in workers) == counters.num_fetched
    assert sum(worker.leaving.num_rows for worker in workers) == counters.num_evicted
    received = [traffic for worker in workers for traffic in worker.received.values()]
    received += [worker.gradients_received for worker in workers]
    assert sum(traffic.num_rows for traffic in received) == counters.num_received
    assert sum(traffic.num_critical for traffic in received) == counters.num_received_critical
    sent = [traffic for worker in workers for traffic in worker.sent.values()]
    sent += [worker.gradients_sent for worker in workers]
    assert sum(traffic.num_rows for traffic in sent) == counters.num_received
    assert config.cache.rows is not None
    assert max(worker.num_cached for worker in workers) <= config.cache.rows
    for account in accounts[:-1]:
        for worker in account.workers:
            assert worker.leaving.num_used_again <= worker.leaving.num_rows
            assert worker.fetching.steps_ahead <= account.fetch_ahead_steps


@pytest.mark.parametrize("run", ["two workers", "four workers"])
def test_lives_of_all_rows_add_up_to_the_transfers(log_folder: Path, run: str) -> None:
    config = config_of(log_folder, run)
    log = open_log(config)
    stream = train_stream(config, log)
    records = list(planned_records(stream, plan_header(config, log, stream)))
    sent = np.concatenate([record.send.kind for record in records])
    stays = [stay for life in lives_of(config, range(log.num_rows)) for stay in life.stays]
    assert sum(len(stay.moves) for stay in stays) == np.count_nonzero(sent == Kind.MOVE) > 0
    assert sum(stay.num_copies for stay in stays) == np.count_nonzero(sent == Kind.VALUE) > 0
    assert sum(stay.num_gradients for stay in stays) == np.count_nonzero(sent == Kind.GRAD) > 0
    assert sum(len(stay.workers) for stay in stays) == sum(len(record.fetch) for record in records)
    for stay in stays:
        owners = dict(zip(stay.uses, stay.owners, strict=True))
        for move in stay.moves:
            assert owners[move.step] == move.target
            assert move.last_use is not None
            assert owners[move.last_use] == move.source
            assert move.sent_after == move.step - (1 if move.critical else 2)


@pytest.mark.parametrize("run", ["lookahead", "belady"])
def test_rows_that_stay_are_used_earlier(log_folder: Path, run: str) -> None:
    lefts = [stay.left for life in lives_of(config_of(log_folder, run), range(189)) for stay in life.stays]
    compared = [left for left in lefts if left and left.kept and left.next_use is not None]
    assert len(compared) > 20
    for left in compared:
        assert left.kept is not None
        assert left.kept.num_used_before == left.kept.num_rows
        assert left.kept.farthest is None or left.kept.farthest <= (left.next_use or 0)


def test_lru_keeps_rows_that_are_used_later(log_folder: Path) -> None:
    """The comparison can tell planners apart: asked the same question, LRU fails it."""
    config = config_of(log_folder, "lru")
    plan = RunPlan.of(config)
    played: list[PlannedStep] = list(plan.steps(None))
    uses = [set(np.concatenate(list(step.used)).tolist()) for step in played]

    def next_use(row: int, after: int) -> int:
        return next((step for step in range(after + 1, len(uses)) if row in uses[step]), len(uses))

    worse = 0
    for step in played[:-1]:
        for row in step.records[0].evict.row.tolist():
            worse += any(next_use(kept, step.step) > next_use(row, step.step) for kept in step.kept[0].tolist())
    assert worse > 20


def test_a_kept_plan_tells_the_same(log_folder: Path, tmp_path: Path) -> None:
    config = config_of(log_folder, "lookahead")
    log = open_log(config)
    stream = train_stream(config, log)
    header = plan_header(config, log, stream)
    write_plan(tmp_path / "plan.arrow", header, planned_records(stream, header))
    cache = config.cache.model_copy(update={"plan_file": tmp_path / "plan.arrow"})
    kept = config.model_copy(update={"cache": cache})
    for name in ("item:84", "user:3"):
        again, from_file = explain_row(RunPlan.of(config), name), explain_row(RunPlan.of(kept), name)
        known = [replace(stay, version=UNKNOWN_VERSION) for stay in again.stays]
        assert [replace(stay, version=UNKNOWN_VERSION) for stay in from_file.stays] == known
        assert row_headline(again) == row_headline(from_file)


def test_the_strip(log_folder: Path) -> None:
    life = explain_row(RunPlan.of(config_of(log_folder, "lookahead")), "item:84")
    line = strip(life, 1000)
    assert len(line) == life.num_steps
    for step, mark in enumerate(line):
        cached = any(stay.left and stay.fetched_for <= step <= stay.left.after for stay in life.stays)
        assert mark == (USED if step in life.uses else KEPT if cached else AWAY)
    assert len(strip(life, 10)) == 10
    assert AWAY in line


@pytest.mark.parametrize(
    ("run", "reasons"),
    [
        ("lookahead", ("rows that stayed are used again no later", "had a known use", "because the run ends")),
        ("belady", ("rows that stayed are used again no later", "had a known use", "because the run ends")),
        ("lru", ("the planner is lru: the row used longest ago leaves first",)),
        ("none", ("the planner is none: nothing is kept",)),
        ("window", ("because the window ended at step", "within the window of 2 steps")),
        ("four workers", ("in the background while step", "on the critical path, because", "came back to its owner")),
        ("four workers, none", ("the planner is none: nothing is kept",)),
    ],
)
def test_every_planner_has_its_reasons(log_folder: Path, run: str, reasons: tuple[str, ...]) -> None:
    lives = lives_of(config_of(log_folder, run), range(189))
    text = "\n".join(sentence for life in lives for sentences in row_paragraphs(life) for sentence in sentences)
    for reason in reasons:
        assert reason in text


def test_a_row_that_nobody_uses(log_folder: Path) -> None:
    unused = replace(explain_row(RunPlan.of(config_of(log_folder, "lookahead")), "item:84"), stays=[])
    assert row_headline(unused)[1] == "no sample of steps 0 to 21 uses it: it is never fetched and never written"
    assert (row_paragraphs(unused), unused.hit_rate, set(strip(unused, 50))) == ([], 0.0, {AWAY})


def test_many_stays_are_shortened(log_folder: Path) -> None:
    life = explain_row(RunPlan.of(config_of(log_folder, "none")), "weekday:1")
    assert len(life.stays) > 10
    groups = row_paragraphs(life)
    assert len(groups) == 7
    assert f"… {len(life.stays) - 6} stays more in between" in groups[3][0]


def test_steps_that_do_not_exist(log_folder: Path) -> None:
    plan = RunPlan.of(config_of(log_folder, "lookahead"))
    for step in (-1, 22, 10**9):
        with pytest.raises(PlanError, match="the run has steps 0 to 21; give one of these"):
            explain_step(plan, step)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    folder = tmp_path_factory.mktemp("named")
    lines = [f"{number % 2},city-{number % 3},{number % 7}" for number in range(60)]
    (folder / "log.csv").write_text("\n".join(["click,city,hour", *lines]) + "\n")
    categorical = (Categorical(name="city"), Categorical(name="hour"))
    source = Csv(files=(folder / "log.csv",), columns=Columns(label="click", categorical=categorical))
    return prepare(source, folder / "log", PrepareOptions()).log


def test_names_and_values(named: ClickLog) -> None:
    names = RowNames(named)
    for row in range(named.num_rows):
        assert names.find(names.name(row)) == row == names.find(str(row))
        value = names.value(row)
        assert value is None or names.find(f"{names.name(row).split(':')[0]}:={value}") == row
    assert sorted(filter(None, (names.value(row) for row in range(4)))) == ["city-0", "city-1", "city-2"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("city", "this names no row; give TABLE:ID"),
        ("citty:1", "has no table 'citty'; did you mean city"),
        ("zzz:1", "has no table 'zzz'; it has city, hour"),
        ("city:99", "'99' is no id of table city, whose ids are 0 to 3"),
        ("city:-1", "'-1' is no id of table city"),
        ("city:city-1", "for a value of the raw log write city:=city-1"),
        ("city:=Paris", "the vocabulary of city has no value 'Paris'"),
        ("999999", "the log's rows are 0 to "),
    ],
)
def test_names_that_name_nothing(named: ClickLog, name: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        RowNames(named).find(name)


@dataclass(frozen=True)
class Span:
    track: str
    what: str
    step: int
    begin: float
    end: float


def spans(*, fetched: tuple[float, float], waited: tuple[float, float]) -> list[Span]:
    """Step 7 of one worker: the reader waits for the plan, then for write-backs, then reads."""
    begin, end = waited
    return [
        Span("reader", "wait_plan", 7, 0.0, 1.0),
        Span("reader", "wait_writes", 7, 1.0, fetched[0]),
        Span("reader", "fetch", 7, *fetched),
        Span("train", "wait_rows", 7, begin, end),
        Span("train", "fill", 7, end, end + 0.5),
        Span("train", "forward", 7, end + 0.5, end + 2.0),
        Span("train", "update", 7, end + 2.0, end + 3.0),
        Span("train", "commit", 7, end + 3.0, end + 90.0),
        Span("train", "forward", 8, 200.0, 300.0),
    ]


def test_a_step_whose_rows_were_updated_during_backward_is_recorded_once_its_wait_is() -> None:
    beside = [
        Span("train", "wait_rows", 7, 0.0, 1.0),
        Span("train", "begin", 7, 1.0, 2.0),
        Span("train", "exchange", 7, 2.0, 2.5),
        Span("train", "forward", 7, 2.5, 4.0),
        Span("train", "compute", 7, 4.0, 4.0),
    ]
    assert measured_step(beside, step=7, worker=0) is None
    found = measured_step([*beside, Span("train", "exchange", 7, 4.0, 6.0)], step=7, worker=0)
    assert found is not None
    assert (found.seconds, found.computing_seconds, found.exchange_seconds) == (6.0, 2.5, 2.5)


@pytest.mark.parametrize(
    ("fetched", "waited", "culprit", "there_before"),
    [
        ((2.0, 3.0), (5.0, 5.0), None, 2.0),
        ((4.0, 9.0), (5.0, 9.0), "fetch", -4.0),
        ((8.0, 9.0), (2.0, 9.0), "wait_writes", -7.0),
        ((1.5, 2.0), (0.0, 2.0), "wait_plan", -2.0),
    ],
)
def test_what_a_recorded_step_waited_for(
    fetched: tuple[float, float], waited: tuple[float, float], culprit: str | None, there_before: float
) -> None:
    found = measured_step(spans(fetched=fetched, waited=waited), step=7, worker=3)
    assert found is not None
    assert (found.worker, found.waited_for, found.there_before_seconds) == (3, culprit, there_before)
    assert found.waited_seconds == waited[1] - waited[0]
    assert found.seconds == found.waited_seconds + 3.0, "a commit after it is not part of the step"
    assert (found.moving_seconds, found.computing_seconds, found.update_seconds) == (0.5, 1.5, 1.0)


def test_a_step_that_was_not_recorded_in_full(log_folder: Path) -> None:
    assert measured_step(spans(fetched=(1.0, 2.0), waited=(3.0, 4.0)), step=8, worker=0) is None
    assert measured_step([], step=0, worker=0) is None


def test_a_recorded_step_in_words(log_folder: Path) -> None:
    plan = RunPlan.of(config_of(log_folder, "lookahead"))
    account = explain_step(plan, 10)
    there, late = ((2.0, 3.0), (5.0, 5.0)), ((8.0, 9.0), (2.0, 9.0))
    for (fetched, waited), sentence in ((there, "it waited for nothing: its rows were"), (late, "write-backs of")):
        found = measured_step(spans(fetched=fetched, waited=waited), step=7, worker=0)
        assert found is not None
        account.measured = [found]
        text = " ".join(step_paragraphs(account, plan.names)[0])
        assert "in the recorded run it took" in text
        assert sentence in text


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_lie_where_the_store_lays_them(
    log_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """The same writes and commits in a real folder: the same place at the moment of every fetch."""
    monkeypatch.setattr("foresee.store.disk.log.RECENT_BYTES", 0)
    monkeypatch.setattr("foresee.store.disk.log.RECENT_ROWS_MIN", 24)
    content = {
        "log": log_folder, "run": log_folder.parent / "run", "cache": {"rows": 130 if workers == 1 else 80},
        "train": {"batch_size": 32, "epochs": 3, "commit_every_steps": 20}, "distributed": {"workers": workers},
    }  # fmt: skip
    config = make_run(content, where="test")
    plan, layout = RunPlan.of(config), table_layout(config, open_log(config))
    life = explain_row(plan, "item:84")
    steps, kinds = list(plan.steps(None)), set[str]()
    with closing(DiskStore.create(tmp_path / "tables", layout)) as store:
        for number, played in enumerate(steps):
            writes = [(record.evict.row, record.evict.known_next_use) for record in played.records]
            if (number + 1) % 20 == 0:
                writes += [(rows, None) for rows in played.kept]
            for rows, next_use in writes:
                source = Rows.empty(len(rows), layout)
                source.versions.fill(number + 1)
                store.write(rows, source, next_use)
            if (number + 1) % 20 == 0:
                store.commit(number + 1)
            for stay in life.stays:
                if stay.not_before != number or stay.lay is None:
                    continue
                found = store._log.index.look_up(np.array([life.row]), store._base.written, Rows.empty(1, layout))
                place = int(found.places(1)[0])
                kinds.add(stay.lay.place)
                assert (stay.lay.place == "log") == (place >= 0)
                assert place < 0 or stay.lay.chunk == place // store._log.file.shape.chunk_rows
                assert stay.lay.num_together <= stay.lay.num_in_log <= stay.lay.num_rows
    told = " ".join(sentence for group in row_paragraphs(life) for sentence in group)
    assert "log" in kinds
    assert ("it was in memory then, among the rows written last" in told) == ("memory" in kinds) == (workers == 1)
    assert "of the log and came with" in told
    assert "rows lie by their next use, and step" in told


def test_where_a_row_lies_now(log_folder: Path, tmp_path: Path) -> None:
    content = {"log": log_folder, "run": tmp_path / "run", "cache": {"rows": 130}, "train": {"batch_size": 32}}
    config = make_run(content, where="test")
    assert place_now(config, 5) is None, "nothing was trained"
    with closing(DiskStore.create(config.tables_folder, table_layout(config, open_log(config)))) as store:
        source = Rows.empty(3, store.layout)
        source.versions.fill(1)
        store.write(np.arange(3), source)
        store.commit(7)
        shutil.copytree(config.tables_folder, tmp_path / "kept")
    assert place_now(config, 1) == "after the commit of step 7 it lies in rows.npy"
    assert place_now(config, 5) == "after the commit of step 7 it was not written: its initial value comes from its id"
    shutil.rmtree(config.tables_folder)
    shutil.copytree(tmp_path / "kept", config.tables_folder)
    assert place_now(config, 1) == "after the commit of step 7 it lies in chunk 0 of log.bin, beside 2 other rows"
