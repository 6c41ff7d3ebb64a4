"""A run in the terminal, as its page would show it: loss and AUC, where a step's time goes, cache, window, hits, links.

In: the records of a run under way. Out: something rich can print, for 80 columns and more, and one plain line for files
and pipes. Never reads a file or a clock itself, so the same records give the same picture.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foresee.tools.report.run_breakdown import (
    COLOURS,
    LINK_COLOURS,
    breakdown,
    disk_use,
    links_of,
    num_disks,
    waiting_for,
)
from foresee.tools.report.run_records import Point, RunRecords, WorkerRecords, figure_words, hit_rate

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_COLUMNS = 40
BAR_COLUMNS = 46
LEGEND_COLUMNS = 66
NAMED_SHARE = 0.01
"""A smaller part of a step is not named."""
RECENT_POINTS = 5
"""Over which bars and rates are taken: the present, without its noise."""
WORKERS_MAX = 8
LINKS_MAX = 8


def live_view(records: RunRecords, news: str = "", steps_done: int = 0) -> RenderableType:
    """`news` and `steps_done` come from somebody who knows more than the records, such as the trainer itself."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=9)
    table.add_column(overflow="fold")
    for name, content in _rows(records):
        table.add_row(name, content)
    head = _head(records, max(steps_done, records.steps_done))
    parts: list[RenderableType] = [head, *([Text(news)] if news else []), table]
    if not any(worker.points for worker in records.workers):
        parts.append(Text("no point of the recording yet", style="dim"))
    return Group(*parts)


def live_line(records: RunRecords) -> str:
    """The same on one line."""
    said = [f"step {records.steps_done:,} of {records.num_steps:,}"]
    points = _recent(records)
    losses = [point.loss for point in points if point.loss is not None]
    if losses:
        said.append(f"loss {sum(losses) / len(losses):.4f}")
    for name in records.task_figures:
        if (value := _last(records, "valid", name)) is not None:
            said.append(f"valid {figure_words(name)} {value:.4f}")
    if points:
        parts = breakdown(points)
        waits = parts.waited / max(1e-9, parts.step_seconds)
        said.append(f"{1e3 * parts.step_seconds:.1f} ms a step ({waits:.1%} waits)")
        said.append(f"hits {hit_rate(points):.1%}")
        first = next(worker for worker in records.workers if worker.points)
        if (cause := waiting_for(_latest(first), num_servers=first.start["num_servers"])) is not None:
            said.append(f"waits for {cause}")
    return "  ".join(said)


def sparkline(values: Sequence[float], columns: int = SPARKLINE_COLUMNS) -> str:
    """One character for each group of values: low or high between the smallest and the largest."""
    if not values:
        return ""
    num = min(columns, len(values))
    groups = [values[k * len(values) // num : (k + 1) * len(values) // num] for k in range(num)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def stacked_bar(parts: dict[str, float], colours: dict[str, str], total: float, columns: int = BAR_COLUMNS) -> Text:
    """Parts of a whole, each as many columns as its share; what is left of a column goes to the next."""
    bar, filled, seen = Text(), 0, 0.0
    for name, value in parts.items():
        seen += value
        until = round(columns * seen / total) if total > 0 else 0
        bar.append("█" * (until - filled), style=colours[name])
        filled = max(filled, until)
    return bar


def _head(records: RunRecords, done: int) -> Text:
    of = records.num_steps
    model = records.config.get("model", {}).get("name", "a loop of your own")
    text = Text(f"{records.folder} · {model}  ", style="bold")
    if of:
        filled = round(30 * min(1.0, done / of))
        text.append("━" * filled, style="green").append("━" * (30 - filled), style="bright_black")
        text.append(f"  step {done:,} of {of:,}", style="not bold")
        text.append(_remaining(records, done), style="not bold dim")
    return text


def _remaining(records: RunRecords, done: int) -> str:
    points = _recent(records, of_all=False)
    steps, seconds = sum(point.steps for point in points), sum(point.seconds for point in points)
    left = round((records.num_steps - done) * seconds / steps) if steps else 0
    if left <= 0:
        return ""
    hours, minutes = left // 3600, left % 3600 // 60
    return f"  {hours}:{minutes:02d}:{left % 60:02d} left"


def _rows(records: RunRecords) -> list[tuple[str, RenderableType]]:
    workers = [worker for worker in records.workers if worker.points]
    rows: list[tuple[str, RenderableType]] = [*_learning(records, workers)]
    if workers:
        rows += [*_time(workers), *_cache(workers), *_disk(workers), *_links(workers)]
    return rows


def _learning(records: RunRecords, workers: Sequence[WorkerRecords]) -> list[tuple[str, RenderableType]]:
    losses = [point.loss for point in workers[0].points if point.loss is not None] if workers else []
    losses = losses or [line["loss"] for line in records.of_kind("train") if line.get("loss") is not None]
    rows: list[tuple[str, RenderableType]] = []
    if losses:
        rows.append(("loss", Text(f"{losses[-1]:<9.4f}{sparkline(losses)}")))
    for name in records.task_figures:
        rows += _judged(records, name)
    return rows


def _judged(records: RunRecords, name: str) -> list[tuple[str, RenderableType]]:
    values = [line[name] for line in records.of_kind("train") if line.get(name) is not None]
    valid = [line for line in records.of_kind("valid") if line.get(name) is not None]
    rows: list[tuple[str, RenderableType]] = []
    if values:
        rows.append((figure_words(name), Text(f"{values[-1]:<9.4f}{sparkline(values)}")))
    if valid:
        trend = sparkline([line[name] for line in valid])
        told = f"{valid[-1][name]:<9.4f}{trend}  at step {valid[-1]['step']:,}"
        rows.append((f"valid {figure_words(name)}", Text(told)))
    return rows


def _time(workers: Sequence[WorkerRecords]) -> list[tuple[str, RenderableType]]:
    found = {worker.worker: breakdown(_latest(worker)) for worker in workers[:WORKERS_MAX]}
    longest = max(one.step_seconds for one in found.values())
    rows: list[tuple[str, RenderableType]] = []
    for number, one in found.items():
        label = Text(f"{1e3 * one.step_seconds:6.1f} ms ")
        name = "step" if len(workers) == 1 else f"worker {number}"
        rows.append((name, label.append(stacked_bar(one.parts, COLOURS, longest))))
    first = next(iter(found.values()))
    legend = _legend(
        {
            f"{part} {seconds / first.step_seconds:.0%}": COLOURS[part]
            for part, seconds in first.visible_parts.items()
            if seconds >= NAMED_SHARE * first.step_seconds
        }
    )
    over = first.step_seconds / first.ideal_seconds if first.ideal_seconds else 0.0
    waits = Text(f"{first.waited / max(1e-9, first.step_seconds):<9.1%}of a step")
    rows += [("", legend), ("waits", waits.append(f", {over:.2f} times the ideal" if over else ""))]
    cause = waiting_for(_latest(workers[0]), num_servers=workers[0].start["num_servers"])
    return [*rows, *([("", Text(f"for {cause}", style="yellow"))] if cause is not None else [])]


def _disk(workers: Sequence[WorkerRecords]) -> list[tuple[str, RenderableType]]:
    points = _latest(workers[0])
    rows: list[tuple[str, RenderableType]] = []
    for number in range(min(num_disks(points), LINKS_MAX)):
        use = disk_use(points, number)
        if use is None or not use.read.requests + use.written.requests:
            continue
        name = f"server {number}, {use.way}" if workers[0].start["num_servers"] else use.way
        for direction, moved in (("reads", use.read), ("writes", use.written)):
            if moved.requests:
                processor = f"{1e3 * moved.processor_seconds / use.steps:.2f} ms of a processor a step"
                rows.append(("" if rows else "disk", Text(f"{name} {direction} {moved.words}, {processor}")))
    return rows


def _cache(workers: Sequence[WorkerRecords]) -> list[tuple[str, RenderableType]]:
    last, capacity = workers[0].points[-1], workers[0].start["capacity_rows"]
    occupied = [worker.points[-1].occupied for worker in workers]
    share = sum(occupied) / (capacity * len(workers))
    filled = round(20 * share)
    bar = Text("█" * filled, style="green").append("░" * (20 - filled), style="bright_black")
    names = {"looked_at": "read", "planned": "planned", "fetched": "rows here"}
    ahead = ", ".join(f"{name} {last.ahead[key]}" for key, name in names.items() if key in last.ahead)
    points = [point for worker in workers for point in _latest(worker)]
    trend = sparkline([point.hit_rate for point in workers[0].points])
    return [
        ("hits", Text(f"{hit_rate(points):<9.1%}{trend}")),
        ("cache", Text(f"{share:<9.1%}").append(bar).append(f" of {capacity:,} slots")),
        ("ahead", Text(f"{ahead} steps")),
    ]


def _links(workers: Sequence[WorkerRecords]) -> list[tuple[str, RenderableType]]:
    links = links_of(workers)[:LINKS_MAX]
    most = max((sum(link.bytes_a_step.values()) for link in links), default=0.0)
    rows: list[tuple[str, RenderableType]] = []
    for number, link in enumerate(links):
        total = sum(link.bytes_a_step.values())
        text = Text(f"{total / 1e6:6.2f} MB a step  {link.name:<22} ")
        text.append(stacked_bar(link.bytes_a_step, LINK_COLOURS, most, 16))
        rows.append(("" if number else "links", text))
    kinds = {kind for link in links for kind, num_bytes in link.bytes_a_step.items() if num_bytes}
    return [*rows, ("", _legend({kind: colour for kind, colour in LINK_COLOURS.items() if kind in kinds}))]


def _legend(colours: dict[str, str]) -> Text:
    """What colours stand for; no entry is broken over two lines."""
    legend, column = Text(), 0
    for name, colour in colours.items():
        if column and column + len(name) + 2 > LEGEND_COLUMNS:
            legend.append("\n")
            column = 0
        legend.append("■ ", style=colour).append(f"{name}  ")
        column += len(name) + 4
    return legend


def _latest(worker: WorkerRecords) -> Sequence[Point]:
    return worker.steady[-RECENT_POINTS:]


def _recent(records: RunRecords, *, of_all: bool = True) -> list[Point]:
    workers = [worker for worker in records.workers if worker.points]
    return [point for worker in (workers if of_all else workers[:1]) for point in _latest(worker)]


def _last(records: RunRecords, kind: str, key: str) -> float | None:
    values = [line[key] for line in records.of_kind(kind) if line.get(key) is not None]
    return float(values[-1]) if values else None
