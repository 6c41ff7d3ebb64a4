"""A row's life and a step as sentences, and a row's life as one line of characters.

In: a `RowLife` or a `StepAccount`. Out: a headline, and groups of sentences: one for each stay in a cache, or for each
worker of a step. Of many stays the first and the last are shown, with the number left out; every list that
is cut says how much it leaves out. The line (`strip`) has one character for each equal share of the steps: a share in
which the row was used at all counts as used, one in which it was cached at any time as cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foresee.plan import find
from foresee.plan.record import NOT_KNOWN, UNKNOWN_VERSION
from foresee.tools.explain.explain import RowNames
from foresee.tools.explain.figures import (
    Fetching,
    Lay,
    Leaving,
    Left,
    Move,
    RowLife,
    Stay,
    StepAccount,
    WorkerAccount,
)
from foresee.tools.explain.measured import MeasuredStep

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


def row_headline(life: RowLife) -> list[str]:
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


def row_paragraphs(life: RowLife) -> list[list[str]]:
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
    yield _stay_fetched(life, stay, before)
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
        yield _stay_left(life, stay.left)


def _stay_fetched(life: RowLife, stay: Stay, before: Left | None) -> str:
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
        more = lay.num_together - 1 - len(lay.companions)
        some = ", ".join(lay.companions) + (f" and {more:,} more" if more else "")
        with_it = f"{counted(lay.num_together - 1, 'other row')} of the fetch ({some})"
    return (
        f"it lay in chunk {lay.chunk:,} of the log and came with {with_it} in one read of "
        f"{lay.read_bytes / 1e3:,.1f} kB: {why}; {counted(lay.num_reads, 'read')} brought the {lay.num_in_log:,} of "
        f"{counted(lay.num_rows, 'row')} of the fetch that were in the log"
    )


ROW_GUARDS = {
    "start": "nothing had to be written before, so the read could begin with the run",
    "itself": "{issued}: this row was one of them",
    "others": "{issued}: {others} of the same fetch were among them{own}",
    "staging": "{issued}: not because of any row, but because rows are staged no further ahead{own}",
}


def _guard(stay: Stay, before: Left | None) -> str:
    ahead = stay.fetched_for - 1 - stay.not_before
    behind = f"while {counted(ahead, 'step')} computed" if ahead else "with no step to hide behind"
    return ROW_GUARDS[stay.guard].format(
        issued=f"the read could be issued once the write-backs of step {stay.not_before:,} were applied, {behind}",
        others=counted(stay.num_guarding, "other row"),
        own=f"; its own was that of step {before.after:,}" if before else "",
    )


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


def _stay_left(life: RowLife, left: Left) -> str:
    who = f" by worker {left.worker}" if life.num_workers > 1 else ""
    version = f"version {left.version:,}" if left.version != UNKNOWN_VERSION else "the version it came in"
    what = f"written back after step {left.after:,}{who} in {version}"
    if left.cause == "end":
        return f"{what}, because the run ends"
    following = "no later step uses it"
    if left.next_use is not None:
        told = ", which the store was told" if left.stated_use == left.next_use else ""
        following = f"it is used next at step {left.next_use:,}{told}"
    policy = find(life.planner)
    if left.cause == "expired" and policy.keeps_nothing:
        return f"{what}, because the planner is {policy.name}: nothing is kept; {following}"
    if left.cause == "expired":
        return f"{what}, because the window ended at step {left.known_until:,} and had no use of it; {following}"
    room = f"{what}: {counted(left.num_evicted, 'row')} had to leave for rows of step {left.after + 1:,}"
    if policy.rule is not None:
        return f"{room}; the planner is {policy.name}: {policy.rule}; {following}"
    return f"{room}; {following}{_compared(left)}"


def _compared(left: Left) -> str:
    """Say why this row left and none of those that stayed."""
    kept = left.kept
    if kept is None:
        return ", and rows whose next use is farthest leave first"
    if not kept.num_rows:
        return ", and nothing else was there to leave"
    stayed = f"{kept.num_used_before:,} of the {counted(kept.num_rows, 'row')} that stayed"
    farthest = f" (the farthest at step {kept.farthest:,})" if kept.farthest is not None else ""
    if left.next_use is not None and left.next_use <= left.known_until:
        return f", and {stayed} are used again no later than that{farthest}"
    rest = kept.num_rows - kept.num_used_before
    unknown = f"; the other {rest:,} had no known use either, but were used more recently" if rest else ""
    beyond = "" if left.next_use is None else f", beyond step {left.known_until:,}, the last one read by then"
    return f"{beyond}, while {stayed} had a known use{farthest}{unknown}"


WORTH_SAYING = 0.01
"""Of a step; a shorter wait is none."""


def step_headline(account: StepAccount) -> list[str]:
    workers = account.workers
    rows, hits = sum(worker.num_rows for worker in workers), sum(worker.num_hits for worker in workers)
    fetched = sum(worker.fetching.num_rows for worker in workers)
    received = sum(traffic.num_rows for worker in workers for traffic in worker.received.values())
    samples, lookups = sum(worker.num_samples for worker in workers), sum(worker.num_lookups for worker in workers)
    where = f"step {account.step:,} of 0 to {account.last_step:,}"
    lines = [f"{where}: {counted(samples, 'sample')}, {counted(lookups, 'lookup')}"]
    came = f"{fetched:,} fetched" + (f", {received:,} received from other workers" if received else "")
    ratio = share(hits / rows) if rows else share(0.0)
    lines.append(f"{counted(rows, 'row')} used: {hits:,} in the cache already ({ratio}), {came}")
    return lines


def step_paragraphs(account: StepAccount, names: RowNames) -> list[list[str]]:
    """Return one list of sentences for each worker; the first names the worker if there are several."""
    groups = []
    for worker in account.workers:
        title = (
            f"worker {worker.worker}: {counted(worker.num_samples, 'sample')}, {counted(worker.num_rows, 'row')} used, "
            f"{worker.num_hits:,} there already"
        )
        groups.append([title] if len(account.workers) > 1 else [])
        groups[-1].extend(_sentences(account, worker, names))
    return groups


def _sentences(account: StepAccount, worker: WorkerAccount, names: RowNames) -> Iterator[str]:
    yield from _step_fetched(account, worker.fetching, names)
    yield from _received(account.step, worker)
    yield from _given(account.step, worker)
    yield _step_left(account, worker, names)
    room = f"{worker.num_cached:,} of {account.capacity_rows:,} slots"
    yield f"after the step {room} hold rows for later; {counted(worker.num_applied, 'row')} were updated"
    yield from _measured(account, worker)


def _named(rows: Sequence[int], num_rows: int, names: RowNames) -> str:
    """Name the first of `num_rows` rows."""
    more = f" and {num_rows - len(rows):,} more" if num_rows > len(rows) else ""
    return listed([names.name(row) for row in rows]) + more


def _step_fetched(account: StepAccount, fetching: Fetching, names: RowNames) -> Iterator[str]:
    if not fetching.num_rows:
        yield "fetched nothing: every row was there, or came from another worker"
        return
    some = _named(fetching.rows, fetching.num_rows, names)
    first = f", {fetching.num_first:,} of them never trained before" if fetching.num_first else ""
    again = ""
    if fetching.last_used:
        middle = fetching.last_used[len(fetching.last_used) // 2]
        who = "; the others were" if fetching.num_first else ", all"
        again = f"{who} last used between steps {fetching.last_used[0]:,} and {fetching.last_used[-1]:,}"
        again += f", half of them before step {middle:,}" if len(fetching.last_used) > 2 else ""
    yield f"fetched {counted(fetching.num_rows, 'row')} ({some}){first}{again}"
    yield _issued(account, fetching, names)


STEP_GUARDS = {
    "start": "that read could begin with the run: nothing had to be written before",
    "rows": "{issued}: {rows} had been given up after that step and were needed again",
    "staging": "{issued}: no row asked for that; rows are staged {bound} ahead at most",
}


def _issued(account: StepAccount, fetching: Fetching, names: RowNames) -> str:
    ahead = "only when the step before was done"
    if fetching.steps_ahead:
        ahead = f"{counted(fetching.steps_ahead, 'step')} ahead"
    return STEP_GUARDS[fetching.guard].format(
        issued=f"that read could be issued {ahead}, once the write-backs of step {fetching.not_before:,} were applied",
        rows=_named(fetching.guarding[:3], len(fetching.guarding), names),
        bound=counted(account.fetch_ahead_steps, "step"),
    )


def _received(step: int, worker: WorkerAccount) -> Iterator[str]:
    for kind, traffic in worker.received.items():
        if not traffic.num_rows:
            continue
        what = f"took over {counted(traffic.num_rows, 'row')}, which it owns from now on"
        if kind == "VALUE":
            what = f"received {counted(traffic.num_rows, 'copy')} of rows that other workers own"
        yield f"{what}: {_split(traffic.num_critical, traffic.num_background)}"
    if any(traffic.num_critical for traffic in worker.received.values()):
        yield (
            f"critical, because step {step - 1:,} trained those rows too, or gradients of step {step - 2:,} still came "
            "in while it computed: no value was final earlier"
        )


def _given(step: int, worker: WorkerAccount) -> Iterator[str]:
    """Tell which gradients, copies and rows the worker sent after the step."""
    sent, received = worker.gradients_sent, worker.gradients_received
    if sent.num_rows or received.num_rows:
        yield (
            f"sent {counted(sent.num_rows, 'gradient')} to the rows' owners "
            f"({_split(sent.num_critical, sent.num_background)}) and got {received.num_rows:,} for its own "
            f"({_split(received.num_critical, received.num_background)}); critical are those of rows that step "
            f"{step + 1:,} uses or that leave right after this one"
        )
    copies, moves = worker.sent["VALUE"], worker.sent["MOVE"]
    if copies.num_rows or moves.num_rows:
        critical, background = copies.num_critical + moves.num_critical, copies.num_background + moves.num_background
        yield (
            f"after the step it sent {counted(copies.num_rows, 'copy')} and handed over "
            f"{counted(moves.num_rows, 'row')} for steps {step + 1:,} and {step + 2:,} ({_split(critical, background)})"
        )


def _step_left(account: StepAccount, worker: WorkerAccount, names: RowNames) -> str:
    leaving = worker.leaving
    if not leaving.num_rows:
        return "gave up nothing: there were slots enough for the next step"
    some = _named(leaving.rows, leaving.num_rows, names)
    what = f"wrote back {counted(leaving.num_rows, 'row')} ({some})"
    if account.step == account.last_step:
        return f"{what}, because the run ends"
    return f"{what}, {_why_left(account, leaving)}"


def _why_left(account: StepAccount, leaving: Leaving) -> str:
    policy = find(account.planner)
    if policy.keeps_nothing:
        return f"because the planner is {policy.name}: nothing is kept"
    again = "none of them is used again in a step known by then"
    if leaving.num_used_again:
        again = f"{leaving.num_used_again:,} of them are used again, the nearest at step {leaving.nearest_use:,}"
    if account.window_steps is not None:
        return f"because the window of {counted(account.window_steps, 'step')} has no use of them"
    needed = f"because step {account.step + 1:,} puts {counted(leaving.num_needed, 'row')} into slots"
    rule = "those used farthest away" if policy.foresight_steps != 0 else f"those that {policy.name} ranks lowest"
    return f"{needed}; {rule} left: {again}"


CULPRITS = {
    "fetch": "the read itself, which was not done",
    "wait_writes": "the write-backs of step {step:,}, which the read had to wait for",
    "wait_plan": "the plan, which had not come that far",
}


def _measured(account: StepAccount, worker: WorkerAccount) -> Iterator[str]:
    for found in (found for found in account.measured if found.worker == worker.worker):
        several = len(account.workers) > 1
        exchange = f", {_ms(found.exchange_seconds)} exchanging with other workers" if several else ""
        yield (
            f"in the recorded run it took {_ms(found.seconds)}: {_ms(found.waited_seconds)} waiting for rows, "
            f"{_ms(found.moving_seconds)} moving them in and out of slots, {_ms(found.computing_seconds)} in the "
            f"model, {_ms(found.update_seconds)} updating rows{exchange}"
        )
        yield _waited(found, worker.fetching)


def _waited(found: MeasuredStep, fetching: Fetching) -> str:
    if found.waited_for is not None and found.waited_seconds > WORTH_SAYING * found.seconds:
        return f"what it waited for was {CULPRITS[found.waited_for].format(step=fetching.not_before)}"
    if found.there_before_seconds is not None and found.there_before_seconds > 0 and found.fetch_seconds is not None:
        return (
            f"it waited for nothing: its rows were read in {_ms(found.fetch_seconds)} and had been there for "
            f"{_ms(found.there_before_seconds)} when it began"
        )
    return "it waited for nothing worth naming"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def _split(critical: int, background: int) -> str:
    return f"{critical:,} critical, {background:,} in the background"
