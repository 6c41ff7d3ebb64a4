"""A step as sentences.

In: a `StepAccount` and the names of rows. Out: a headline, and for every worker what it used, where it came from, what
was critical and why, what left, and what the step really waited for if the run recorded that.
"""

from __future__ import annotations

from collections.abc import Iterator

from foresee.plan import find
from foresee.tools.explain.explain import RowNames
from foresee.tools.explain.row_text import counted, listed, share
from foresee.tools.explain.step_account import Fetching, Leaving, MeasuredStep, StepAccount, WorkerAccount

WORTH_SAYING = 0.01
"""Of a step; a shorter wait is none."""


def headline(account: StepAccount) -> list[str]:
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


def paragraphs(account: StepAccount, names: RowNames) -> list[list[str]]:
    """One list of sentences for each worker, the first of them its name if there are several."""
    several = len(account.workers) > 1
    return [[*([_title(worker)] if several else []), *_sentences(account, worker, names)] for worker in account.workers]


def _title(worker: WorkerAccount) -> str:
    return (
        f"worker {worker.worker}: {counted(worker.num_samples, 'sample')}, {counted(worker.num_rows, 'row')} used, "
        f"{worker.num_hits:,} there already"
    )


def _sentences(account: StepAccount, worker: WorkerAccount, names: RowNames) -> Iterator[str]:
    yield from _fetched(account, worker.fetching, names)
    yield from _received(account.step, worker)
    yield from _gradients(account.step, worker)
    yield from _sent(account.step, worker)
    yield _left(account, worker, names)
    room = f"{worker.num_cached:,} of {account.capacity_rows:,} slots"
    yield f"after the step {room} hold rows for later; {counted(worker.num_applied, 'row')} were updated"
    yield from _measured(account, worker)


def _fetched(account: StepAccount, fetching: Fetching, names: RowNames) -> Iterator[str]:
    if not fetching.num_rows:
        yield "fetched nothing: every row was there, or came from another worker"
        return
    some = listed([names.name(row) for row in fetching.rows])
    more = f" and {fetching.num_rows - len(fetching.rows):,} more" if fetching.num_rows > len(fetching.rows) else ""
    first = f", {fetching.num_first:,} of them never trained before" if fetching.num_first else ""
    again = ""
    if fetching.last_used:
        middle = fetching.last_used[len(fetching.last_used) // 2]
        who = "; the others were" if fetching.num_first else ", all"
        again = f"{who} last used between steps {fetching.last_used[0]:,} and {fetching.last_used[-1]:,}"
        again += f", half of them before step {middle:,}" if len(fetching.last_used) > 2 else ""
    yield f"fetched {counted(fetching.num_rows, 'row')} ({some}{more}){first}{again}"
    yield _issued(account, fetching, names)


def _issued(account: StepAccount, fetching: Fetching, names: RowNames) -> str:
    if fetching.guard == "start":
        return "that read could begin with the run: nothing had to be written before"
    ahead = "only when the step before was done"
    if fetching.steps_ahead:
        ahead = f"{counted(fetching.steps_ahead, 'step')} ahead"
    issued = f"that read could be issued {ahead}, once the write-backs of step {fetching.not_before:,} were applied"
    if fetching.guard == "staging":
        bound = counted(account.fetch_ahead_steps, "step")
        return f"{issued}: no row asked for that; rows are staged {bound} ahead at most"
    rows = listed([names.name(row) for row in fetching.guarding[:3]])
    more = f" and {len(fetching.guarding) - 3:,} more" if len(fetching.guarding) > 3 else ""
    return f"{issued}: {rows}{more} had been given up after that step and were needed again"


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


def _gradients(step: int, worker: WorkerAccount) -> Iterator[str]:
    sent, received = worker.gradients_sent, worker.gradients_received
    if sent.num_rows or received.num_rows:
        yield (
            f"sent {counted(sent.num_rows, 'gradient')} to the rows' owners "
            f"({_split(sent.num_critical, sent.num_background)}) and got {received.num_rows:,} for its own "
            f"({_split(received.num_critical, received.num_background)}); critical are those of rows that step "
            f"{step + 1:,} uses or that leave right after this one"
        )


def _sent(step: int, worker: WorkerAccount) -> Iterator[str]:
    copies, moves = worker.sent["VALUE"], worker.sent["MOVE"]
    if copies.num_rows or moves.num_rows:
        critical, background = copies.num_critical + moves.num_critical, copies.num_background + moves.num_background
        yield (
            f"after the step it sent {counted(copies.num_rows, 'copy')} and handed over "
            f"{counted(moves.num_rows, 'row')} for steps {step + 1:,} and {step + 2:,} ({_split(critical, background)})"
        )


def _left(account: StepAccount, worker: WorkerAccount, names: RowNames) -> str:
    leaving = worker.leaving
    if not leaving.num_rows:
        return "gave up nothing: there were slots enough for the next step"
    some = listed([names.name(row) for row in leaving.rows])
    more = f" and {leaving.num_rows - len(leaving.rows):,} more" if leaving.num_rows > len(leaving.rows) else ""
    what = f"wrote back {counted(leaving.num_rows, 'row')} ({some}{more})"
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
        causes = {
            "fetch": "the read itself, which was not done",
            "wait_writes": f"the write-backs of step {fetching.not_before:,}, which the read had to wait for",
            "wait_plan": "the plan, which had not come that far",
        }
        return f"what it waited for was {causes[found.waited_for]}"
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
