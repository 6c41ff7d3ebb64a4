"""All policies by name. A policy is made for a cluster and gives `order(now, live) -> ids`; adding one is one file,
one line.

`shockwave` is solved greedily, `shockwave_highs` is the same program solved by HiGHS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from foresee.cluster.job import Cluster
from foresee.cluster.policies import orders, shares
from foresee.cluster.policies.allox import AlloxShares, allox
from foresee.cluster.policies.guarded import Guarded
from foresee.cluster.policies.shares import Shares
from foresee.cluster.policies.shockwave import Shockwave
from foresee.cluster.policies.themis import Themis
from foresee.cluster.simulation import Live, Order
from foresee.cluster.window.highs import Window
from foresee.errors import InputError, PlanError

Policy = Callable[[Cluster], Order]

DEFAULT_POLICY = "guarded"


def _plain(order: Callable[[float, Sequence[Live]], list[str]]) -> Policy:
    return lambda cluster: order


def _solve_highs(window: Window) -> list[list[int]] | None:
    try:
        from foresee.cluster.window.highs import solve_highs  # scipy is an extra
    except ImportError as error:
        raise InputError(
            "shockwave_highs needs scipy, which is not installed: pip install 'foresee[cluster]'"
        ) from error
    return solve_highs(window)


POLICIES: dict[str, Policy] = {
    "fifo": _plain(orders.fifo),
    "srtf": _plain(orders.srtf),
    "srsf": _plain(orders.srsf),
    "longest_first": _plain(orders.longest_first),
    "las": _plain(orders.las),
    "max_min": partial(Shares, rule=shares.max_min),
    "finish_time_fairness": partial(Shares, rule=shares.finish_time_fairness),
    "themis": Themis,
    "ossp": partial(Shares, rule=shares.ossp),
    "allox": allox,
    "gandiva_fair": partial(Shares, rule=shares.gandiva_fair),
    "mst": partial(Shares, rule=shares.mst),
    "shockwave": Shockwave,
    "shockwave_highs": partial(Shockwave, solver=_solve_highs),
    "guarded": Guarded,
}


HOLD_SECONDS = 1000.0

PUBLISHED: dict[str, Policy] = {
    "max_min": partial(Shares, rule=shares.max_min, hold_seconds=HOLD_SECONDS),
    "gandiva_fair": partial(Shares, rule=shares.gandiva_fair, hold_seconds=HOLD_SECONDS),
    "finish_time_fairness": lambda cluster: Shares(
        cluster, shares.FinishTimeFairnessAsPublished(), hold_seconds=HOLD_SECONDS
    ),
    "ossp": partial(Shares, rule=shares.ossp_as_published, hold_seconds=HOLD_SECONDS),
    "mst": partial(Shares, rule=shares.mst, hold_seconds=HOLD_SECONDS),
    "allox": lambda cluster: Shares(cluster, AlloxShares(), hold_seconds=HOLD_SECONDS),
}
"""Policies the way Shockwave's artifact ran them: shares are computed at most every 1,000 s, a job that arrives in
between does not run, AlloX hands out shares instead of GPUs, and what linear programs leave open is settled as an
interior-point solver does. Estimates are then `reactive`."""


def policy_named(name: str) -> Policy:
    if name not in POLICIES:
        raise PlanError(f"policy {name!r} is not known: choose one of {', '.join(POLICIES)}")
    return POLICIES[name]
