"""A plan's order, in the words of the scheduler that will carry it out.

In: a plan. Out: text: `scontrol` lines for Slurm, manifests for Kueue and Volcano, a submission order for Ray.
The first job to start gets the highest priority; one that runs already is left out. Gangs, checkpoints and starting
stay with the cluster.
Never: run a command or reach a cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from foresee.cluster.plan import Fate, Plan
from foresee.errors import PlanError
from foresee.io.units import counted

PRIORITY_STEP = 10
"""Between neighbours, so that a person can put a job in between."""


def slurm(plan: Plan) -> str:
    """Lines for an operator's shell."""
    ranked = _ranked(plan)
    lines = [f"# order of {counted(len(ranked), 'job')}, policy {plan.policy}; needs operator rights"]
    for priority, id in ranked:
        if not re.fullmatch(r"[0-9]+(_[0-9]+)?", id):
            raise PlanError(f"job {id!r} is no Slurm job id: plan from sacct output to get ids that scontrol knows")
        lines.append(f"scontrol update JobId={id} Priority={priority}")
    return "\n".join(lines) + "\n"


def kueue(plan: Plan) -> str:
    """A priority class per place in the order, and each workload put into its own."""
    documents = []
    for priority, id in _ranked(plan):
        name = f"foresee-{priority}"
        documents.append(
            "apiVersion: kueue.x-k8s.io/v1beta1\nkind: WorkloadPriorityClass\n"
            f"metadata:\n  name: {name}\nvalue: {priority}\n"
        )
        documents.append(
            f"apiVersion: kueue.x-k8s.io/v1beta1\nkind: Workload\nmetadata:\n  name: {json.dumps(id)}\nspec:\n"
            f"  priority: {priority}\n  priorityClassName: {name}\n"
            "  priorityClassSource: kueue.x-k8s.io/workloadpriorityclass\n"
        )
    return "---\n".join(documents)


def volcano(plan: Plan) -> str:
    """A priority class per place in the order, and each job put into its own."""
    documents = []
    for priority, id in _ranked(plan):
        name = f"foresee-{priority}"
        documents.append(
            f"apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata:\n  name: {name}\nvalue: {priority}\n"
        )
        documents.append(
            f"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata:\n  name: {json.dumps(id)}\nspec:\n"
            f"  priorityClassName: {name}\n"
        )
    return "---\n".join(documents)


def ray(plan: Plan) -> str:
    """One JSON object per line, in order of submission; `not_before_seconds` counts from the start of the plan."""
    start = plan.run.start_seconds
    lines = [
        json.dumps(
            {
                "submission_id": fate.job.id,
                "entrypoint_num_gpus": fate.job.gpus,
                "not_before_seconds": round(fate.start_seconds - start, 3),
            }
        )
        for fate in _waiting(plan)
    ]
    return "\n".join(lines) + "\n"


EXPORTS: dict[str, Callable[[Plan], str]] = {"slurm": slurm, "kueue": kueue, "volcano": volcano, "ray": ray}


def export(plan: Plan, format: str) -> str:
    if format not in EXPORTS:
        raise PlanError(f"export {format!r} is not known: choose one of {', '.join(EXPORTS)}")
    return EXPORTS[format](plan)


def _ranked(plan: Plan) -> list[tuple[int, str]]:
    """(priority, id), first to start first."""
    order = _waiting(plan)
    return [((len(order) - rank) * PRIORITY_STEP, fate.job.id) for rank, fate in enumerate(order)]


def _waiting(plan: Plan) -> list[Fate]:
    return [fate for fate in plan.in_order() if not fate.is_running]
