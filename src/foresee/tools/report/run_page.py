"""The page of a run: what was learned, where the time went, what the cache did, what travelled.

In: the records of a run; if its log is at hand, how unequal its rows are and the best AUC that anyone could reach. Out:
the sections of one HTML page. What a run did not record is said in a sentence where its chart would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foresee.io.optional import OptionalModule
from foresee.tools.report import run_figures as figures
from foresee.tools.report.page import PageTable, Section
from foresee.tools.report.run_breakdown import (
    Breakdown,
    breakdown,
    disk_use,
    links_of,
    num_disks,
    traffic_over_run,
    waiting_for,
)
from foresee.tools.report.run_figures import Skew, colours_of
from foresee.tools.report.run_records import Point, RunRecords, WorkerRecords, figure_words, hit_rate
from foresee.tools.report.run_timeline import WORKERS_MAX, timeline_figure, windows

if TYPE_CHECKING:
    import plotly.graph_objects as go
else:
    go = OptionalModule("plotly.graph_objects")

NO_SERIES = (
    "This run recorded no curves of itself. Runs do unless report.series_points is 0; train it again to see this."
)
NO_TIMELINE = (
    "This run recorded no timeline. Runs do for some of their steps unless report.timeline_steps is 0; train it again "
    "to see this."
)
NO_SKEW = "The log of this run is not where the run folder says, so its rows cannot be counted."
NO_DISK = "The rows of this run are in memory, or it was recorded before disks were counted."
BESIDE = (("planner", "plan"), ("reader", "fetch"), ("writer", "write_back"), ("exchange", "background"))


def title_of(records: RunRecords) -> str:
    model = records.config.get("model", {}).get("name", "a loop of your own")
    return f"{records.folder} · {model}"


def introduction_of(records: RunRecords) -> str:
    done = f"{records.steps_done:,}" + (f" of {records.num_steps:,}" if records.num_steps else "")
    sentence = f"{done} steps"
    if "train" in records.config:
        sentence += f" of {records.config['train']['batch_size']:,} samples"
    workers = max(1, len(records.workers))
    sentence += f", {workers} worker{'s' * (workers > 1)}"
    if records.workers:
        start = records.workers[0].start
        sentence += (
            f", {start['capacity_rows']:,} slots a worker for {sum(start['table_rows']):,} rows of "
            f"{start['row_bytes']} bytes, planner {start['planner']}"
        )
    return sentence + "."


def run_sections(records: RunRecords, *, skew: Skew | None = None, best_auc: float | None = None) -> list[Section]:
    """In the order in which a person asks: is it right, is it fast, and why."""
    workers = [worker for worker in records.workers if worker.points]
    return [
        _summary(records, workers),
        *_learning(records, workers, best_auc),
        *time_sections(records),
        *_traffic(workers),
        *_disks(workers),
        *_hits(workers),
        _skew(skew, records),
    ]


def time_sections(records: RunRecords) -> list[Section]:
    """Of any kind of run: where the time went, and what the cache did."""
    workers = [worker for worker in records.workers if worker.points]
    return [*_time(workers), _timeline(records.workers), *_cache(workers)]


def _summary(records: RunRecords, workers: Sequence[WorkerRecords]) -> Section:
    rows: list[tuple[str, str, str]] = []
    valid, train = records.of_kind("valid"), records.of_kind("train")
    judged = [name for name in records.task_figures if valid and valid[-1].get(name) is not None]
    for name in judged:
        words = f"{figure_words(name)} on the valid split"
        rows.append((words, f"{valid[-1][name]:.4f}", f"after {valid[-1]['step']:,} steps"))
    if judged and valid[-1].get("log_loss") is not None:
        rows.append(("log loss on the valid split", f"{valid[-1]['log_loss']:.4f}", ""))
    elif train and not judged:
        rows.append(("training loss", f"{train[-1]['loss']:.4f}", f"after {train[-1]['step']:,} steps"))
    if workers:
        rows += _speed_rows(workers)
    sentence = "" if rows else "This run has not written any figures yet."
    table = PageTable(columns=("", "", ""), rows=rows, words=frozenset({2})) if rows else None
    return Section(heading="Summary", sentence=sentence, content=table)


def _speed_rows(workers: Sequence[WorkerRecords]) -> list[tuple[str, str, str]]:
    mean = breakdown([point for worker in workers for point in worker.steady])
    over = mean.step_seconds / mean.ideal_seconds if mean.ideal_seconds else 0.0
    points = [point for worker in workers for point in worker.points]
    said = "forward and backward with all rows at hand take"
    return [
        (
            "a step",
            f"{1e3 * mean.step_seconds:.2f} ms",
            f"{over:.2f} times the ideal: {said} {1e3 * mean.ideal_seconds:.2f} ms" if over else "",
        ),
        ("waited for rows", f"{mean.waited / mean.step_seconds:.1%}" if mean.step_seconds else "-", "of a step"),
        ("hit rate", f"{hit_rate(points):.1%}", "of a step's rows were not fetched"),
        (
            "lookups a step",
            f"{sum(p.lookups for p in points) / max(1, sum(p.steps for p in points)):,.0f}",
            "by each worker",
        ),
    ]


def _learning(records: RunRecords, workers: Sequence[WorkerRecords], best_auc: float | None) -> list[Section]:
    train, valid = records.of_kind("train"), records.of_kind("valid")
    points = _summed(workers)
    if not train and not valid and not any(point.loss is not None for point in points):
        reason = (
            "This run has written no metrics yet."
            if records.config
            else "A loop of your own says its loss with step.learned(loss); this one did not."
        )
        return [Section(heading="Loss and AUC", sentence=reason)]
    loss = figures.loss_figure(points, train, valid)
    found = [
        Section(
            heading="Loss",
            sentence="Lower is better. The training loss is the mean over the steps since the point before.",
            content=loss,
            legend=colours_of(loss),
        )
    ]
    for name in records.task_figures:
        chart = figures.task_figure(name, train, valid, best_auc if name == "auc" else None)
        sentence = MEANINGS[name.rpartition(".")[2]]
        heading = figure_words(name)
        found.append(Section(heading=heading, sentence=sentence, content=chart, legend=colours_of(chart)))
    return found


MEANINGS = {
    "auc": "How often a click is ranked above a non-click; 0.5 is guessing.",
    "rmse": "Root mean squared error, in units of the label; lower is better.",
    "accuracy": "Share of samples whose likeliest class was the right one.",
}


def _time(workers: Sequence[WorkerRecords]) -> list[Section]:
    heading = "Where the time of a step goes"
    if not workers:
        return [Section(heading=heading, sentence=NO_SERIES)]
    of_workers = {_name(worker, workers): breakdown(worker.steady) for worker in workers}
    bars, over_run = figures.breakdown_figure(of_workers), figures.breakdown_over_run_figure(workers[0].steady)
    return [
        Section(
            heading=heading,
            sentence=_time_sentence(list(of_workers.values())),
            content=bars,
            legend=colours_of(bars),
            notes=[
                "Embedding access: waiting for rows, putting them into slots, gathering them for the model, handing "
                "evicted ones over. Cache sync: rows and gradients that other workers need at once. Start-up, "
                "evaluations and commits are left out."
            ],
        ),
        Section(
            heading="The same over the run",
            sentence=f"Each point is the mean over an interval of steps{_of_first(workers)}.",
            content=over_run,
            legend=colours_of(over_run),
        ),
    ]


def _time_sentence(found: Sequence[Breakdown]) -> str:
    step = sum(one.step_seconds for one in found) / len(found)
    ideal = sum(one.ideal_seconds for one in found) / len(found)
    if ideal <= 0:
        return "Of the training thread, mean over all steps after the first points."
    return (
        f"The ideal has every row at hand and does nothing but forward and backward. This run takes {step / ideal:.2f} "
        "times as long."
    )


def _timeline(workers: Sequence[WorkerRecords]) -> Section:
    heading = "What happens at the same time"
    there = [worker for worker in workers if worker.spans]
    found = windows(there[:WORKERS_MAX])
    if not found:
        return Section(heading=heading, sentence=NO_TIMELINE)
    chart: go.Figure = timeline_figure(there[:WORKERS_MAX], found)
    some = [f"Shown are the first {WORKERS_MAX} of {len(there)} workers."] if len(there) > WORKERS_MAX else []
    return Section(
        heading=heading, sentence=_hidden_sentence(there), content=chart, legend=colours_of(chart), notes=some
    )


def _hidden_sentence(workers: Sequence[WorkerRecords]) -> str:
    """How much of what other threads did cost the training thread anything."""
    sentence = (
        "Each line is a thread, each number marks the start of a step. What lies under training is hidden behind it; "
        "what training waits for is red."
    )
    points = [point for worker in workers for point in worker.steady]
    num_steps = sum(point.steps for point in points)
    if not num_steps:
        return sentence
    beside = sum(point.tracks.get(track, {}).get(what, 0.0) for point in points for track, what in BESIDE)
    waited = sum(point.train_seconds("wait_rows", "background_wait") for point in points)
    return (
        f"{sentence} Over the whole run, planning, fetching, writing back and background exchange took "
        f"{1e3 * beside / num_steps:.2f} ms a step, and training waited {1e3 * waited / num_steps:.2f} ms for them."
    )


def _cache(workers: Sequence[WorkerRecords]) -> list[Section]:
    if not workers:
        return [Section(heading="Cache and window", sentence=NO_SERIES)]
    occupancy, window = figures.occupancy_figure(workers), figures.window_figure(workers[0].points)
    looked = any("looked_at" in point.ahead for point in workers[0].points)
    far = "" if looked else " What the planner has read is known to its own process and not recorded here."
    return [
        Section(
            heading="Rows in the cache",
            sentence="At the end of each interval. The row whose next use is farthest away gives up its slot first; "
            "the last step of a run writes everything back.",
            content=occupancy,
            legend=colours_of(occupancy),
        ),
        Section(
            heading="How far ahead",
            sentence=f"Steps beyond the one in training{_of_first(workers)}.{far}",
            content=window,
            legend=colours_of(window),
        ),
    ]


def _traffic(workers: Sequence[WorkerRecords]) -> list[Section]:
    if not workers:
        return [Section(heading="Bytes by link", sentence=NO_SERIES)]
    links, traffic = figures.links_figure(links_of(workers)), figures.traffic_figure(traffic_over_run(workers))
    return [
        Section(
            heading="Bytes by link",
            sentence="Rows and gradients, mean over all steps; what a wire adds is not counted.",
            content=links,
            legend=colours_of(links),
        ),
        Section(
            heading="Bytes over the run",
            sentence="All links together. The first steps fill the cache, the last one empties it.",
            content=traffic,
            legend=colours_of(traffic),
        ),
    ]


def _disks(workers: Sequence[WorkerRecords]) -> list[Section]:
    points = workers[0].points if workers else ()
    everything = disk_use(points)
    if everything is None:
        return [Section(heading="Disk", sentence=NO_DISK if workers else NO_SERIES)]
    fetched = sum(one[0] for worker in workers for point in worker.points for one in point.store_bytes)
    over = f" Read were {everything.read.num_bytes / max(1, fetched):.1f} times the bytes of the rows."
    over = over if everything.read.requests else " No row had to be read from it."
    cause = waiting_for(workers[0].steady, num_servers=workers[0].start["num_servers"])
    waits = f" Steps waited for {cause}." if cause is not None else ""
    notes = ["Rows that were never written need no read; the fold at the end of a run is not counted."]
    if "mapped" in everything.way:
        notes.append(
            "Files that memory holds are mapped: there a request is a row that is copied, and the system decides what "
            "comes from the disk."
        )
    chart = figures.disk_figure(points)
    return [
        Section(
            heading="Disk",
            sentence=f"What was read and written in a step, by {everything.way}; mean over all steps.{over}{waits}",
            content=_disk_table(points, workers[0].start["num_servers"]),
            notes=notes,
        ),
        Section(
            heading="Disk over the run",
            sentence="All disks together. Requests at once are counted while there is one.",
            content=chart,
            legend=colours_of(chart),
        ),
    ]


def _disk_table(points: Sequence[Point], num_servers: int) -> PageTable:
    rows = []
    for number in range(num_disks(points)):
        use = disk_use(points, number)
        if use is None:
            continue
        name = f"server {number} " if num_servers else ""
        for what, moved in (("reads", use.read), ("writes", use.written)):
            figures_a_step = (
                moved.num_bytes / use.steps / 1e6,
                moved.requests / use.steps,
                moved.request_bytes / 1e3,
                moved.depth,
                1e3 * moved.seconds / use.steps,
                1e3 * moved.processor_seconds / use.steps,
            )
            syncs = _short(1e3 * use.sync_seconds / use.steps) if what == "writes" else ""
            rows.append((f"{name}{what}", *map(_short, figures_a_step), syncs))
    columns = ("", "MB", "requests", "kB each", "at once", "ms", "ms of a processor", "ms of syncs")
    return PageTable(columns=columns, rows=rows)


def _short(value: float) -> str:
    """Three digits, and never a rounded one before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _hits(workers: Sequence[WorkerRecords]) -> list[Section]:
    if not workers:
        return [Section(heading="Hit rate", sentence=NO_SERIES)]
    over_run = Section(
        heading="Hit rate",
        sentence="The share of a step's distinct rows that did not have to be fetched from the store.",
        content=figures.hit_rate_figure(_summed(workers)),
    )
    return [over_run, _tables(workers)]


def _tables(workers: Sequence[WorkerRecords]) -> Section:
    heading = "Hit rate by table"
    names, sizes = workers[0].start["tables"], workers[0].start["table_rows"]
    unique = [sum(column) for column in zip(*(worker.unique_by_table for worker in workers), strict=True)]
    fetched = [sum(column) for column in zip(*(worker.fetched_by_table for worker in workers), strict=True)]
    touched = [number for number in range(len(names)) if unique[number]]
    if not touched:
        return Section(heading=heading, sentence="No step has been counted by table yet.")
    largest = sorted(touched, key=lambda number: -sizes[number])[: figures.TABLES_MAX]
    sentence = "Counted at the last step of each interval; the largest table first."
    if len(largest) < len(touched):
        sentence += f" Shown are the {len(largest)} largest of {len(touched)} tables."
    return Section(
        heading=heading,
        sentence=sentence,
        content=figures.tables_figure(
            [names[number] for number in largest],
            [sizes[number] for number in largest],
            [max(0.0, 1 - fetched[number] / unique[number]) for number in largest],
        ),
    )


def _summed(workers: Sequence[WorkerRecords]) -> list[Point]:
    """Points of all workers as if they were one; only of counts and loss."""
    by_step: dict[int, list[Point]] = {}
    for worker in workers:
        for point in worker.points:
            by_step.setdefault(point.step, []).append(point)
    return [
        Point(
            step=step,
            steps=some[0].steps,
            seconds=some[0].seconds,
            tracks={},
            ahead={},
            store_bytes=[],
            peer_bytes=[],
            lookups=sum(point.lookups for point in some),
            unique=sum(point.unique for point in some),
            fetched=sum(point.fetched for point in some),
            evicted=sum(point.evicted for point in some),
            refilled=sum(point.refilled for point in some),
            received=sum(point.received for point in some),
            occupied=sum(point.occupied for point in some),
            loss=_mean([point.loss for point in some if point.loss is not None]),
        )
        for step, some in sorted(by_step.items())
    ]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _skew(skew: Skew | None, records: RunRecords) -> Section:
    heading = "How unequal rows are"
    if skew is None:
        return Section(heading=heading, sentence=NO_SKEW if records.config else "A loop of your own names no log here.")
    share = None
    if records.workers:
        share = min(1.0, records.workers[0].start["capacity_rows"] / skew.num_rows)
    return Section(
        heading=heading,
        sentence=f"The hottest 1 % of all rows take {skew.of_hottest(0.01):.1%} of the accesses. Counted over "
        f"{skew.num_samples:,} samples of the train split.",
        content=figures.skew_figure(skew, share),
    )


def _name(worker: WorkerRecords, workers: Sequence[WorkerRecords]) -> str:
    return f"worker {worker.worker}" if len(workers) > 1 else "this run"


def _of_first(workers: Sequence[WorkerRecords]) -> str:
    return f", at worker {workers[0].worker}" if len(workers) > 1 else ""
