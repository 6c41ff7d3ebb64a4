"""Why a job starts when it does, in sentences.

In: a plan and a job's id. Out: text that answers: when does it start, whom does it wait for, is that fair, how much
room is left.
Never: reasons the plan does not contain; everything said is counted from its rounds.
"""

from __future__ import annotations

from collections import Counter

from foresee.cluster.durations import counted, in_words
from foresee.cluster.metrics import UNFAIR_ABOVE
from foresee.cluster.plan import Fate, Plan

NAMED_MAX = 3


def explain(plan: Plan, id: str) -> str:
    fate = plan.fate(id)
    parts = [_timing(fate), _waiting(plan, fate), _reason(plan, fate), _pieces(fate), _fairness(plan, fate)]
    return " ".join(filter(None, [*parts, _room(plan, fate)]))


def _timing(fate: Fate) -> str:
    job = fate.job
    needs = f"Job {job.id} needs {counted(job.gpus, 'GPU')} for {in_words(job.left_seconds)}."
    if fate.is_running:
        since, end = in_words(fate.start_seconds), in_words(fate.finish_seconds)
        return f"{needs} It has been running since {since} and ends at {end}."
    return (
        f"{needs} It arrives at {in_words(job.arrival_seconds)}, starts at {in_words(fate.start_seconds)} and ends at "
        f"{in_words(fate.finish_seconds)}."
    )


def _waiting(plan: Plan, fate: Fate) -> str:
    if fate.is_running:
        return f"It waited {in_words(fate.wait_seconds)} and keeps its GPUs."
    waited = [
        round
        for round in plan.run.rounds
        if round.start_seconds >= fate.job.arrival_seconds and round.start_seconds < fate.start_seconds
    ]
    if not waited:
        return "It starts with the first round after its arrival."
    ahead = Counter(id for round in waited for id in round.ids)
    sooner = [id for id in ahead if plan.fates[id].finish_seconds <= fate.finish_seconds]
    shorter = sum(plan.fates[id].job.left_seconds < fate.job.left_seconds for id in ahead)
    weight = {id: rounds * plan.fates[id].job.gpus for id, rounds in ahead.items()}
    named = sorted(weight, key=lambda id: -weight[id])[:NAMED_MAX]
    return (
        f"It waits {counted(len(waited), 'round')} while {counted(len(ahead), 'other job')} "
        f"{'holds' if len(ahead) == 1 else 'hold'} the GPUs: {shorter} "
        f"with less work than it, {len(ahead) - shorter} with more; {len(sooner)} of them end before it. "
        f"Most of that GPU time goes to {', '.join(named)}."
    )


def _reason(plan: Plan, fate: Fate) -> str:
    """Why it runs when it first does, and why others ran before, in the words of the policy that has any."""
    if fate.is_running:
        return ""
    first = next((round for round in plan.run.rounds if fate.job.id in round.ids), None)
    if first is None or not first.reasons:
        return ""
    held = Counter(
        reason
        for round in plan.run.rounds
        if fate.job.arrival_seconds <= round.start_seconds < fate.start_seconds
        for reason in round.reasons.values()
    )
    why = f"It starts because {first.reasons[fate.job.id]}."
    return f"{why} Of those it waits for most ran because, for each, {held.most_common(1)[0][0]}." if held else why


def _pieces(fate: Fate) -> str:
    if fate.num_pieces == 1:
        return "It goes on to its end." if fate.job.done_seconds else "Once started it runs to its end."
    return f"It is set aside {counted(fate.num_pieces - 1, 'time')} and pays for {counted(fate.num_starts, 'start')}."


def _fairness(plan: Plan, fate: Fate) -> str:
    verdict = "later than" if fate.rho > 1.005 else "as soon as" if fate.rho > 0.995 else "sooner than"
    unfair = " and counts as unfair" if fate.rho > UNFAIR_ABOVE else ""
    return (
        f"ρ is {fate.rho:.2f}: it ends {verdict} an equal share of the cluster would let it{unfair} "
        f"({fate.rho_themis:.2f} by the contention it meets itself)."
    )


def _room(plan: Plan, fate: Fate) -> str:
    room = plan.run.makespan_seconds - fate.finish_seconds
    if room < plan.cluster.round_seconds:
        return "It is among the last to end: delaying it delays the end of the plan."
    return f"It could end {in_words(room)} later without delaying the end of the plan."
