"""Shipped to users: suites that a store or an engine of yours has to pass, traces, fakes that fail on purpose.

    from foresee.testing import TwoPhaseStoreSuite

Names are imported when they are first used: the suites need pytest and hypothesis, the rest does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foresee.testing.commit_suites import GuardedStoreSuite, TwoPhaseStoreSuite
    from foresee.testing.engine_suite import EngineSuite
    from foresee.testing.store_suite import StoreSuite, store_machine

__all__ = ["EngineSuite", "GuardedStoreSuite", "StoreSuite", "TwoPhaseStoreSuite", "store_machine"]

_HOMES = {
    "EngineSuite": "foresee.testing.engine_suite",
    "GuardedStoreSuite": "foresee.testing.commit_suites",
    "StoreSuite": "foresee.testing.store_suite",
    "TwoPhaseStoreSuite": "foresee.testing.commit_suites",
    "store_machine": "foresee.testing.store_suite",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'foresee.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
