"""The registry of policies: every list, table, plot and sentence that names policies asks here.

A policy of this package is one file beside this one and one line in BUILT_IN, whose order is that of all lists. From
outside, `register` adds one by a call, and an installed package by an entry point of the group `foresee.policies` whose
object is a `Policy`. Entry points are looked up the first time that somebody wants the whole list, or an unknown name.
"""

from __future__ import annotations

from foresee import registry
from foresee.errors import PlanError, UsageError
from foresee.plan import lookahead
from foresee.plan.baselines import additive, belady, fae, herald, lfu, lru, no_cache, owner, replicated, static
from foresee.plan.policy import Policy

BUILT_IN = (
    no_cache.POLICY,
    static.POLICY,
    lru.POLICY,
    lfu.POLICY,
    additive.POLICY,
    fae.POLICY,
    replicated.POLICY,
    owner.POLICY,
    herald.POLICY,
    lookahead.POLICY,
    belady.POLICY,
)
DEFAULT = lookahead.POLICY
"""Foresee's own."""
GROUP = "foresee.policies"

_known = {policy.name: policy for policy in BUILT_IN}
_asked_packages = False


def register(policy: Policy) -> Policy:
    """Adds a policy, for this process. Its name must be new and a word that fits into a run file and a list."""
    if not isinstance(policy, Policy):
        raise UsageError(f"{policy!r} is no policy; give a foresee.plan.Policy")
    if not policy.name.replace("_", "").replace("-", "").isalnum():
        raise UsageError(f"a policy cannot be named {policy.name!r}; use letters, digits, - and _")
    if policy.name in _known:
        raise UsageError(f"there is a policy {policy.name!r} already; give the new one another name")
    if not (policy.alone or policy.together or policy.compared):
        raise UsageError(f"the policy {policy.name!r} plans nothing; give it alone, together or compared")
    _known[policy.name] = policy
    return policy


def unregister(name: str) -> None:
    """Takes away a policy that `register` added."""
    if name in _known and _known[name] not in BUILT_IN:
        del _known[name]


def all_policies() -> list[Policy]:
    """All there are: those of this package, then others, and bounds last."""
    _ask_packages()
    return sorted(_known.values(), key=lambda policy: policy.is_bound)


def trainable(num_workers: int = 1) -> list[str]:
    """The names of those that the engine runs with so many workers, for run files and sentences."""
    return [it.name for it in all_policies() if (it.alone if num_workers == 1 else it.together) is not None]


def is_trainable(name: str) -> bool:
    """Whether the engine runs a policy of this name, with one worker or several."""
    if name not in _known:
        _ask_packages()
    return name in _known and bool(_known[name].alone or _known[name].together)


def find(name: str) -> Policy:
    """The policy of a name."""
    if name not in _known:
        _ask_packages()
    if name not in _known:
        raise PlanError(f"there is no policy {name!r}; choose one of {', '.join(it.name for it in all_policies())}")
    return _known[name]


def _ask_packages() -> None:
    global _asked_packages
    if not _asked_packages:
        for policy in [policy for _, policy in registry.loaded(GROUP)]:
            register(policy)
        _asked_packages = True
