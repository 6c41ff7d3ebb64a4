"""Results as tables for a terminal.

In: plans, answers, points, studies. Out: rich tables, columns always in the same order.
Never: compute a figure; what is shown was measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from foresee.cluster.analysis import Analysis, Slice
from foresee.cluster.job import in_words
from foresee.cluster.metrics import GroupMetrics, Metrics
from foresee.cluster.plan import Fate, Plan
from foresee.cluster.questions import Answer, Point, Shift
from foresee.io.units import counted

METRIC_COLUMNS = (
    "makespan",
    "gap",
    "mean JCT",
    "p99 JCT",
    "worst ρ",
    "unfair",
    "worst ρ (Themis)",
    "unfair (Themis)",
    "used",
    "starts",
)


TIMES = ("starts", "80 % within", "ends", "80 % within")


def _table(title: str, columns: Sequence[str], *, left: int = 1) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right")
    return table


def metrics_table(title: str, rows: Mapping[str, Metrics], marks: Mapping[str, str] | None = None) -> Table:
    table = _table(title, ("policy", *METRIC_COLUMNS))
    for name, metrics in rows.items():
        table.add_row(f"{name}{(marks or {}).get(name, '')}", *_metric_cells(metrics))
    return table


def _metric_cells(metrics: Metrics) -> list[str]:
    return [
        in_words(metrics.makespan_seconds),
        f"{metrics.gap:+.1%}",
        in_words(metrics.jct_mean_seconds),
        in_words(metrics.jct_p99_seconds),
        f"{metrics.worst_rho:.2f}",
        f"{metrics.unfair_share:.1%}",
        f"{metrics.worst_rho_themis:.2f}",
        f"{metrics.unfair_share_themis:.1%}",
        f"{metrics.utilisation:.1%}",
        f"{metrics.num_starts}",
    ]


def plan_table(plan: Plan, rows_max: int) -> Table:
    fates = plan.in_order()
    shown = fates if rows_max <= 0 else fates[:rows_max]
    title = (
        f"Plan of {counted(len(fates), 'job')} on {counted(plan.cluster.gpus, 'GPU')}, policy {plan.policy}, "
        f"estimates {plan.estimator}"
    )
    if len(shown) < len(fates):
        title += f" (first {len(shown)} to start; --rows 0 shows all)"
    columns = ("job", "user", "GPUs", "work", "arrives", *TIMES, "waits", "pieces", "ρ", "ρ (Themis)")
    table = _table(title, columns, left=2)
    for fate in shown:
        table.add_row(*_fate_cells(fate))
    return table


def _fate_cells(fate: Fate) -> list[str]:
    job = fate.job
    return [
        job.id,
        job.user,
        str(job.gpus),
        in_words(job.left_seconds),
        in_words(job.arrival_seconds),
        *time_cells(fate),
        in_words(fate.wait_seconds),
        str(fate.num_pieces),
        f"{fate.rho:.2f}",
        f"{fate.rho_themis:.2f}",
    ]


def time_cells(fate: Fate) -> list[str]:
    """Start and end as planned, each with the interval that holds four times in five (nothing where there is none)."""
    start, end, around = in_words(fate.start_seconds), in_words(fate.finish_seconds), fate.interval
    if around is None:
        return [start, "", end, ""]
    return [
        start,
        "" if fate.is_running else _from_to(around.start_least, around.start_most),
        end,
        _from_to(around.finish_least, around.finish_most),
    ]


def _from_to(least: float, most: float) -> str:
    first, last = in_words(least), in_words(most)
    return first if first == last else f"{first} – {last}"


def shift_table(title: str, answer: Answer, rows_max: int) -> Table:
    table = _table(title, ("job", "ends, before", "ends, after", "change", "ρ, before", "ρ, after"))
    shifts = answer.shifts()
    half = len(shifts) if rows_max <= 0 else max(1, rows_max // 2)
    shown = shifts if len(shifts) <= 2 * half else [*shifts[:half], *shifts[-half:]]
    for shift in shown:
        table.add_row(*_shift_cells(shift))
    return table


def _shift_cells(shift: Shift) -> list[str]:
    later = shift.later_seconds
    return [
        shift.id,
        in_words(shift.finish_before_seconds),
        in_words(shift.finish_after_seconds),
        f"{in_words(abs(later))} {'later' if later > 0 else 'sooner'}",
        f"{shift.rho_before:.2f}",
        f"{shift.rho_after:.2f}",
    ]


def group_table(title: str, groups: Iterable[GroupMetrics], rows_max: int = 15) -> Table:
    table = _table(title, ("name", "jobs", "GPU hours", "mean JCT", "mean wait", "worst ρ", "worst ρ (Themis)"))
    for group in list(groups)[:rows_max]:
        table.add_row(
            group.name or "(none)",
            str(group.num_jobs),
            f"{group.gpu_seconds / 3600:,.1f}",
            in_words(group.jct_mean_seconds),
            in_words(group.wait_mean_seconds),
            f"{group.worst_rho:.2f}",
            f"{group.worst_rho_themis:.2f}",
        )
    return table


def frontier_table(points: Sequence[Point]) -> Table:
    title = "The trade between completion time, makespan and fairness (* nobody is better in all three)"
    marks = {point.name: " *" for point in points if point.undominated}
    return metrics_table(title, {point.name: point.metrics for point in points}, marks)


def analysis_tables(analysis: Analysis, rows_max: int = 15) -> list[Table]:
    sections = {
        "By size of gang": analysis.by_gang,
        "By servers used (gangs of more than one GPU)": analysis.by_spread,
        "By how they ended": analysis.by_status,
        "By class, largest first": analysis.by_kind,
    }
    return [
        *[_slice_table(title, slices[:rows_max]) for title, slices in sections.items() if slices],
        _skew_table(analysis),
    ]


def _slice_table(title: str, slices: Sequence[Slice]) -> Table:
    columns = ("", "jobs", "GPU hours", "median run", "p90 run", "median wait", "p90 wait", "GPUs used")
    table = _table(f"{title} (– is not in the file)", columns)
    for part in slices:
        waits = (part.wait_median_seconds, part.wait_p90_seconds)
        table.add_row(
            part.name,
            f"{part.num_jobs:,}",
            f"{part.gpu_seconds / 3600:,.0f}",
            in_words(part.run_median_seconds),
            in_words(part.run_p90_seconds),
            *["–" if wait is None else in_words(wait) for wait in waits],
            "–" if part.utilisation_mean is None else f"{part.utilisation_mean:.0%}",
        )
    return table


def _skew_table(analysis: Analysis) -> Table:
    table = _table("Skew of GPU time", ("over", "number", "top 1 % hold", "top 10 % hold", "Gini"))
    for skew in analysis.skews:
        cells = (f"{skew.num_owners:,}", f"{skew.top_1_percent:.0%}", f"{skew.top_10_percent:.0%}", f"{skew.gini:.2f}")
        table.add_row(skew.over, *cells)
    return table
