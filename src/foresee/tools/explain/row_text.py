"""A row's life as sentences and as one line of characters, and the phrases that rows and steps share.

In: a `RowLife`. Out: a headline, and a few sentences for every stay in a cache: fetched when and after what, used, why
it stayed, moved or was evicted. Of many stays the first and the last are told, with the number left out; no list is cut
without saying so. The line (`strip`) has one character for each equal share of the steps: a share in which the row was
used at all counts as used, one in which it was cached at any time as cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foresee.plan import find
from foresee.plan.record import NOT_KNOWN, UNKNOWN_VERSION
from foresee.tools.explain.row_life import Lay, Left, Move, RowLife, Stay

SHOWN_MAX = 8
IRREGULAR = {"copy": "copies"}


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`, `2 copies`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {IRREGULAR.get(noun, f'{noun}s')}"


def listed(items: Sequence[int | str], shown_max: int = SHOWN_MAX) -> str:
    """`3, 7, 12`, and if there are many, the first, how many are left out, and the last."""
    texts = [f"{item:,}" if isinstance(item, int) else item for item in items]
    if len(texts) <= shown_max:
        return ", ".join(texts)
    return f"{', '.join(texts[: shown_max - 1])}, … {len(texts) - shown_max:,} more …, {texts[-1]}"


def steps(items: Sequence[int]) -> str:
    return f"step{'s' if len(items) != 1 else ''} {listed(items)}"


def share(part: float) -> str:
    return f"{part:.1%}"


USED, KEPT, AWAY = "█", "━", "·"


def strip(life: RowLife, width: int) -> str:
    """At most `width` characters; fewer if there are fewer steps."""
    num_columns = max(1, min(width, life.num_steps))
    marks = [AWAY] * num_columns

    def column(step: int) -> int:
        return (step - life.first_step) * num_columns // max(1, life.num_steps)

    for stay in life.stays:
        left = stay.left.after if stay.left else life.first_step + life.num_steps - 1
        for place in range(column(stay.fetched_for), column(left) + 1):
            marks[place] = KEPT
    for step in life.uses:
        marks[column(step)] = USED
    return "".join(marks)


STAYS_SHOWN = 3
"""So many from the beginning, and as many from the end."""
MOVES_SHOWN = 3


def headline(life: RowLife) -> list[str]:
    value = f", in the raw log {life.value!r}" if life.value is not None else ""
    lines = [f"{life.name}{value}: row {life.row:,} of {life.num_rows:,}"]
    last = life.first_step + life.num_steps - 1
    if not life.stays:
        never = f"no sample of steps {life.first_step:,} to {last:,} uses it: it is never fetched and never written"
        return [*lines, never]
    lines.append(
        f"used in {len(life.uses):,} of {counted(life.num_steps, 'step')}; came from the store for {len(life.stays):,} "
        f"of them and was there already for {share(life.hit_rate)}"
    )
    if life.num_workers > 1:
        moves = sum(len(stay.moves) for stay in life.stays)
        copies = sum(stay.num_copies for stay in life.stays)
        gradients = sum(stay.num_gradients for stay in life.stays)
        urgent = sum(stay.num_copies_critical + stay.num_gradients_critical for stay in life.stays)
        urgent += sum(move.critical for stay in life.stays for move in stay.moves)
        lines.append(
            f"between {life.num_workers} workers: moved {moves:,} times, {counted(copies, 'copy')} and "
            f"{counted(gradients, 'gradient')} sent; {urgent:,} of these on the critical path"
        )
    return lines


def paragraphs(life: RowLife) -> list[list[str]]:
    """One list of sentences for each stay that is shown."""
    stays = life.stays
    if len(stays) <= 2 * STAYS_SHOWN:
        return [list(_stay(life, stay, number)) for number, stay in enumerate(stays)]
    first = [list(_stay(life, stays[number], number)) for number in range(STAYS_SHOWN)]
    last = [list(_stay(life, stays[number], number)) for number in range(len(stays) - STAYS_SHOWN, len(stays))]
    between = stays[STAYS_SHOWN:-STAYS_SHOWN]
    fetched = steps([stay.fetched_for for stay in between])
    return [*first, [f"… {counted(len(between), 'stay')} more in between, fetched for {fetched}"], *last]


def _stay(life: RowLife, stay: Stay, number: int) -> Iterator[str]:
    before = life.stays[number - 1].left if number else None
    yield _fetched(life, stay, before)
    if stay.lay is not None and stay.lay.place != "nowhere":
        yield _lay(stay.lay, stay, before)
    yield _used(life, stay)
    for move in stay.moves[:MOVES_SHOWN]:
        yield _moved(move)
    if len(stay.moves) > MOVES_SHOWN:
        later = steps([move.step for move in stay.moves[MOVES_SHOWN:]])
        yield f"moved {len(stay.moves) - MOVES_SHOWN:,} times more for the same reason, for {later}"
    if stay.num_copies or stay.num_gradients:
        yield _shared(stay)
    if stay.left is not None:
        yield _left(life, stay.left)


def _fetched(life: RowLife, stay: Stay, before: Left | None) -> str:
    who = f" by worker {stay.workers[0]}" if life.num_workers > 1 else ""
    if len(stay.workers) > 1:
        who = f" by workers {listed(stay.workers)}, each for its own samples"
    read = f"in version {stay.version}" if stay.version != UNKNOWN_VERSION else "in whatever version the store had"
    if stay.version == 0:
        read = "as it was initialised, because no step had trained it"
    return f"fetched for step {stay.fetched_for:,}{who}, {read}; {_guard(stay, before)}"


def _lay(lay: Lay, stay: Stay, before: Left | None) -> str:
    """Where it was, and why it came with others."""
    if lay.place == "memory":
        return f"it was in memory then, among the rows written last ({lay.num_in_memory:,} of the fetch were): no read"
    told = before is not None and before.stated_use != NOT_KNOWN
    why = f"rows lie by their next use, and step {stay.fetched_for:,} needs all of them"
    if not told:
        why = "its next use was not known when it was written, so it lies among others of which that is true"
    elif lay.num_together == 1:
        why = "no other row of the fetch lies near it"
    with_it = "no other row"
    if lay.companions:
        with_it = f"{counted(lay.num_together - 1, 'other row')} of the fetch ({_some(lay)})"
    return (
        f"it lay in chunk {lay.chunk:,} of the log and came with {with_it} in one read of "
        f"{lay.read_bytes / 1e3:,.1f} kB: {why}; {counted(lay.num_reads, 'read')} brought the {lay.num_in_log:,} of "
        f"{counted(lay.num_rows, 'row')} of the fetch that were in the log"
    )


def _some(lay: Lay) -> str:
    more = lay.num_together - 1 - len(lay.companions)
    return ", ".join(lay.companions) + (f" and {more:,} more" if more else "")


def _guard(stay: Stay, before: Left | None) -> str:
    ahead = stay.fetched_for - 1 - stay.not_before
    behind = f"while {counted(ahead, 'step')} computed" if ahead else "with no step to hide behind"
    if stay.guard == "start":
        return "nothing had to be written before, so the read could begin with the run"
    issued = f"the read could be issued once the write-backs of step {stay.not_before:,} were applied, {behind}"
    if stay.guard == "itself":
        return f"{issued}: this row was one of them"
    own = f"; its own was that of step {before.after:,}" if before else ""
    if stay.guard == "others":
        rows = counted(stay.num_guarding, "other row")
        return f"{issued}: {rows} of the same fetch were among them{own}"
    return f"{issued}: not because of any row, but because rows are staged no further ahead{own}"


def _used(life: RowLife, stay: Stay) -> str:
    if len(stay.uses) == 1:
        return f"used at step {stay.uses[0]:,} only"
    gaps = [later - earlier for earlier, later in zip(stay.uses, stay.uses[1:], strict=False)]
    if find(life.planner).rule is not None:
        why = "its slot was not needed in between"
    elif life.window_steps is not None:
        why = f"each next use was within the window of {counted(life.window_steps, 'step')}"
    else:
        why = "each next use was known, and no nearer row needed its slot"
    return f"used at {steps(stay.uses)}; kept in between, at most {counted(max(gaps), 'step')}, because {why}"


def _moved(move: Move) -> str:
    reason = f"worker {move.target} trained samples that use it and worker {move.source} did not"
    when = f"moved from worker {move.source} to {move.target} after step {move.sent_after:,} for step {move.step:,}"
    if not move.critical:
        return f"{when}, in the background while step {move.step - 1:,} computed, because {reason}"
    if move.last_use == move.step - 1:
        urgent = f"step {move.last_use:,} had still trained it"
    else:
        urgent = f"gradients of step {move.last_use:,} reached its owner only while step {move.step - 1:,} computed"
    return f"{when}, because {reason}; on the critical path, because {urgent}"


def _shared(stay: Stay) -> str:
    shared = sum(users > 1 for users in stay.num_users)
    return (
        f"used by several workers at once in {counted(shared, 'step')}: {counted(stay.num_copies, 'copy')} "
        f"({stay.num_copies_critical:,} critical) went out and {counted(stay.num_gradients, 'gradient')} "
        f"({stay.num_gradients_critical:,} critical) came back to its owner, who updated it once a step"
    )


def _left(life: RowLife, left: Left) -> str:
    who = f" by worker {left.worker}" if life.num_workers > 1 else ""
    version = f"version {left.version:,}" if left.version != UNKNOWN_VERSION else "the version it came in"
    what = f"written back after step {left.after:,}{who} in {version}"
    if left.cause == "end":
        return f"{what}, because the run ends"
    following = _following(left)
    policy = find(life.planner)
    if left.cause == "expired" and policy.keeps_nothing:
        return f"{what}, because the planner is {policy.name}: nothing is kept; {following}"
    if left.cause == "expired":
        return f"{what}, because the window ended at step {left.known_until:,} and had no use of it; {following}"
    room = f"{what}: {counted(left.num_evicted, 'row')} had to leave for rows of step {left.after + 1:,}"
    if policy.rule is not None:
        return f"{room}; the planner is {policy.name}: {policy.rule}; {following}"
    return f"{room}; {following}{_compared(left)}"


def _following(left: Left) -> str:
    """When it is used next, and whether whoever keeps it was told."""
    if left.next_use is None:
        return "no later step uses it"
    told = ", which the store was told" if left.stated_use == left.next_use else ""
    return f"it is used next at step {left.next_use:,}{told}"


def _compared(left: Left) -> str:
    """Why it was this row and none of those that stayed."""
    kept = left.kept
    known = left.next_use is not None and left.next_use <= left.known_until
    if kept is None:
        return ", and rows whose next use is farthest leave first"
    if not kept.num_rows:
        return ", and nothing else was there to leave"
    if known:
        return (
            f", and {kept.num_used_before:,} of the {counted(kept.num_rows, 'row')} that stayed are used again no "
            f"later than that{_farthest(left)}"
        )
    rest = kept.num_rows - kept.num_used_before
    unknown = f"; the other {rest:,} had no known use either, but were used more recently" if rest else ""
    beyond = "" if left.next_use is None else f", beyond step {left.known_until:,}, the last one read by then"
    return (
        f"{beyond}, while {kept.num_used_before:,} of the {counted(kept.num_rows, 'row')} that stayed had a known "
        f"use{_farthest(left)}{unknown}"
    )


def _farthest(left: Left) -> str:
    farthest = left.kept.farthest if left.kept else None
    return f" (the farthest at step {farthest:,})" if farthest is not None else ""
