"""Plan a shared GPU cluster: jobs in, rounds out, and answers about them.

The idea of Foresee one level up: the future is mostly known, so compute a bound, plan against it and report the gap.
`formats` read traces, `policies` and `window` plan, `simulation` plays a plan, `analysis` and `questions` answer what
users ask.

Independent of training: imports `io` and numpy (scipy for the bound). Its commands and pages are in `tools`.
"""

from foresee.cluster.exports import export
from foresee.cluster.formats import read_jobs
from foresee.cluster.job import Cluster, Job, Regime
from foresee.cluster.metrics import Metrics, measure
from foresee.cluster.plan import Plan, make_plan
from foresee.cluster.questions import admit, explain, what_if
from foresee.cluster.simulation import Run, simulate

__all__ = [
    "Cluster",
    "Job",
    "Metrics",
    "Plan",
    "Regime",
    "Run",
    "admit",
    "explain",
    "export",
    "make_plan",
    "measure",
    "read_jobs",
    "simulate",
    "what_if",
]
