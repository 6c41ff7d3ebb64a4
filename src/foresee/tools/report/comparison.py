"""A comparison of policies as CSV and as a page: curves over cache size and trainers, bars for each policy, a table.

In: the records of `foresee compare`, one mapping for each policy, number of trainers and cache, or the CSV file that
holds them; or, for `foresee plan --curve`, the rows each policy fetches at each cache size. Out: text, or a file. A
figure that does not exist is None in a record, empty in the CSV, missing in a chart and a dash in the table. Never:
numbers that are not in the records.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foresee.errors import InputError
from foresee.io.optional import OptionalModule
from foresee.tools.report.frame import Column, Frame, Record
from foresee.tools.report.page import PALETTE, Section, page, styled, write_page

if TYPE_CHECKING:
    import plotly.graph_objects as go
else:
    go = OptionalModule("plotly.graph_objects")

KEYS = (
    "policy",
    "trainers",
    "cache",
    "cache_rows",
    "steps",
    "batch_size",
    "hit_rate",
    "rows_per_step",
    "critical_rows_per_step",
    "bytes_per_step",
    "critical_bytes_per_step",
    "stale_reads",
    "step_ms",
    "bottleneck",
    "why_missing",
)
"""The columns of the CSV."""
COLUMNS = (
    Column("policy", "policy"),
    Column("hit_rate", "hit rate", ".1%"),
    Column("rows_per_step", "rows", ",.0f"),
    Column("critical_rows_per_step", "critical", ",.0f"),
    Column("bytes_per_step", "MB", ",.2f", 1e-6),
    Column("critical_bytes_per_step", "critical MB", ",.2f", 1e-6),
    Column("stale_reads", "stale", ".0%"),
    Column("step_ms", "step ms", ",.1f"),
    Column("bottleneck", "limited by"),
)
"""What a terminal shows for one number of trainers and one cache."""
PAGE_COLUMNS = (
    COLUMNS[0],
    Column("trainers", "trainers", "d"),
    Column("cache_rows", "cache", ",d"),
    *COLUMNS[1:6],
    Column("stale_reads", "stale", ".1%"),
    Column("step_ms", "ms", ",.2f"),
    Column("bottleneck", "limit"),
)
OURS, BOUND = "lookahead", "belady"
GREY = "#8a8f98"


def write_comparison_page(
    path: Path, title: str, records: Sequence[Record], *, introduction: str, setting: str
) -> None:
    """`introduction` says what was compared, `setting` the speeds that the predicted steps assume."""
    write_page(path, title, sections(records, setting), introduction)


def sections(records: Sequence[Record], setting: str) -> list[Section]:
    """What there is to show: curves only over what varies."""
    many_caches, many_trainers = _varies(records, "cache"), _varies(records, "trainers")
    most = max(_numbers(records, "trainers"))
    main_cache = _middle(records)
    widest = [record for record in records if record["trainers"] == most]
    at_main = [record for record in records if record["cache"] == main_cache]
    found = [_step_bars(widest, main_cache, setting), _rows_bars(widest, main_cache)]
    if many_caches:
        found.append(_over_cache(widest, "step_ms", "predicted ms a step", setting))
        found.append(_over_cache(widest, "rows_per_step", "rows moved a step", "All trainers together."))
    if many_trainers:
        found.append(_over_trainers(at_main, "step_ms", "predicted ms a step", setting))
        found.append(_over_trainers(at_main, "critical_bytes_per_step", "critical bytes a step", "All together."))
    return [*found, _table(records)]


def _step_bars(records: Sequence[Record], cache: object, setting: str) -> Section:
    there = [r for r in records if r["cache"] == cache and r["step_ms"] is not None]
    figure = go.Figure()
    figure.add_bar(
        x=[r["policy"] for r in there],
        y=[r["step_ms"] for r in there],
        marker_color=[_colour(str(r["policy"]), records) for r in there],
        customdata=[r["bottleneck"] for r in there],
        hovertemplate="%{x}: %{y:.2f} ms, limited by %{customdata}<extra></extra>",
    )
    return Section(
        heading=f"Predicted step, {_of(records)}",
        sentence=f"Milliseconds a step, lower is better; cache of {_cache_words(there)} each. {setting}",
        content=styled(figure, x="policy", y="predicted ms a step"),
    )


def _rows_bars(records: Sequence[Record], cache: object) -> Section:
    there = [r for r in records if r["cache"] == cache and r["rows_per_step"] is not None]
    figure = go.Figure()
    names = [r["policy"] for r in there]
    critical = [_number(r, "critical_rows_per_step") for r in there]
    rest = [_number(r, "rows_per_step") - urgent for r, urgent in zip(there, critical, strict=True)]
    figure.add_bar(x=names, y=critical, name="on the critical path", marker_color=PALETTE[4])
    figure.add_bar(x=names, y=rest, name="hidden behind earlier steps", marker_color=PALETTE[0])
    figure.update_layout(barmode="stack")
    return Section(
        heading=f"Rows moved a step, {_of(records)}",
        sentence="Rows over a wire, each way counted once; what is on the critical path has to be waited for.",
        content=styled(figure, x="policy", y="rows a step"),
    )


def _over_cache(records: Sequence[Record], what: str, title: str, note: str) -> Section:
    figure = go.Figure()
    for policy in _policies(records):
        _add_line(figure, policy, "cache_rows", what, records)
    figure = styled(figure, x="rows in the cache of each trainer", y=title)
    figure.update_xaxes(type="log")
    figure.update_yaxes(rangemode="tozero")
    return Section(heading=f"Over cache size: {title}, {_of(records)}", sentence=note, content=figure)


def _over_trainers(records: Sequence[Record], what: str, title: str, note: str) -> Section:
    figure = go.Figure()
    for policy in _policies(records):
        _add_line(figure, policy, "trainers", what, records)
    figure = styled(figure, x="trainers", y=title)
    figure.update_xaxes(type="log", tickvals=sorted(set(_numbers(records, "trainers"))))
    figure.update_yaxes(rangemode="tozero")
    return Section(heading=f"Over trainers: {title}", sentence=note, content=figure)


def _add_line(figure: go.Figure, policy: str, along: str, what: str, records: Sequence[Record]) -> None:
    own = [r for r in records if r["policy"] == policy and r[what] is not None]
    own.sort(key=lambda record: _number(record, along))
    if not own:
        return
    line = {
        "color": _colour(policy, records),
        "dash": "dot" if policy == BOUND else "solid",
        "width": 4 if policy == OURS else 2,
    }
    points = [r[along] for r in own], [r[what] for r in own]
    figure.add_scatter(x=points[0], y=points[1], name=policy, mode="lines+markers", line=line)


def _table(records: Sequence[Record]) -> Section:
    notes = sorted({f"{r['policy']}, {r['trainers']}: {r['why_missing']}." for r in records if r["why_missing"]})
    return Section(
        heading="All figures",
        sentence="Rows and megabytes are those of a step and all trainers together; stale is the share of reads that "
        "miss an update; ms is predicted, and limit is what most of it is spent on.",
        content=Frame(PAGE_COLUMNS, records).page_table(lambda record: record["policy"] == OURS),
        notes=notes,
    )


def _of(records: Sequence[Record]) -> str:
    trainers = records[0]["trainers"]
    return "1 trainer" if trainers == 1 else f"{trainers} trainers"


def _cache_words(records: Sequence[Record]) -> str:
    return f"{_number(records[0], 'cache_rows'):,.0f} rows" if records else "no rows"


def _colour(policy: str, records: Sequence[Record]) -> str:
    if policy == BOUND:
        return GREY
    others = [name for name in _policies(records) if name not in (OURS, BOUND)]
    return PALETTE[0] if policy == OURS else PALETTE[1 + others.index(policy) % (len(PALETTE) - 1)]


def _policies(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(str(record["policy"]) for record in records))


def _middle(records: Sequence[Record]) -> object:
    caches = list(dict.fromkeys(record["cache"] for record in records))
    return caches[(len(caches) - 1) // 2]


def _varies(records: Sequence[Record], name: str) -> bool:
    return len({record[name] for record in records}) > 1


def _numbers(records: Sequence[Record], name: str) -> list[float]:
    return [_number(record, name) for record in records]


def _number(record: Record, name: str) -> float:
    value = record[name]
    assert isinstance(value, int | float), f"{name} is a number wherever it is not None"
    return float(value)


WORDS = ("policy", "cache", "bottleneck", "why_missing")
WHOLE = ("trainers", "cache_rows", "steps", "batch_size")


def read_comparison(file: Path) -> list[Record]:
    """Refuses a file with other columns, or with a cell that is no number where one is due."""
    try:
        with open(file, encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            if tuple(reader.fieldnames or ()) != KEYS:
                raise InputError(
                    f"{file}: the columns are not those of a comparison; give a file that `foresee compare --csv` "
                    "wrote, or the folder of a run"
                )
            records: list[Record] = [
                {name: _value(name, row[name], file, number) for name in KEYS} for number, row in enumerate(reader, 2)
            ]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error}); give a file that `foresee compare --csv` wrote") from None
    if not records:
        raise InputError(f"{file}: no policy was compared; give a file that `foresee compare --csv` wrote")
    return records


def _value(name: str, cell: str | None, file: Path, line: int) -> str | int | float | None:
    if not cell:
        return None
    if name in WORDS:
        return cell
    try:
        return int(cell) if name in WHOLE else float(cell)
    except ValueError:
        raise InputError(f"{file}:{line}: {name} is {cell!r} and no number; write the file again") from None


@dataclass(frozen=True, slots=True)
class Style:
    """How a policy's line looks."""

    colour: str
    is_bound: bool = False
    """Dotted: nobody can get below it."""


def curve_csv(capacities: Sequence[int], fetched: Mapping[str, Sequence[int]]) -> str:
    """One line for each cache size."""
    lines = [",".join(["cache_rows", *fetched])]
    lines += [",".join(map(str, row)) for row in zip(capacities, *fetched.values(), strict=True)]
    return "\n".join(lines) + "\n"


def as_page(
    title: str,
    note: str,
    capacities: Sequence[int],
    fetched: Mapping[str, Sequence[int]],
    *,
    styles: Mapping[str, Style],
    capacity_rows: int,
    num_steps: int,
) -> str:
    """`capacity_rows` is the run's own cache, marked in the picture."""
    figure = go.Figure()
    for name, rows in fetched.items():
        line = {"color": styles[name].colour, "dash": "dot" if styles[name].is_bound else "solid"}
        figure.add_scatter(
            x=list(capacities), y=[count / num_steps for count in rows], name=name, mode="lines+markers", line=line
        )
    # A line of its own and not a shape: plotly places the labels of shapes wrongly on logarithmic axes.
    most = max(max(rows, default=0) for rows in fetched.values()) / num_steps
    mark = {"color": "#8a8f98", "dash": "dash", "width": 1}
    figure.add_scatter(x=[capacity_rows] * 2, y=[0, most], name="this run's cache", mode="lines", line=mark)
    styled(figure, x="rows in the cache", y="rows fetched a step", height_pixels=460)
    figure.update_xaxes(type="log")
    figure.update_yaxes(rangemode="tozero")
    return page(title, [Section(heading="Rows fetched a step", sentence=note, content=figure)])
