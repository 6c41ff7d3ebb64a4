"""Module paths that the documentation of release 0.2 named, kept importable with a warning for one release."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "foresee.base": "foresee.io",
    "foresee.base.places": "foresee.io.urls",
    "foresee.cli": "foresee.tools.cli",
    "foresee.custom_data": "foresee.data",
    "foresee.custom_data.adapters": "foresee.data.adapters",
    "foresee.engine.recording": "foresee.engine.trace",
    "foresee.engine.recording.timeline": "foresee.engine.trace.tracer",
    "foresee.plan.ranked_eviction": "foresee.plan.baselines.ranked_eviction",
    "foresee.rpc": "foresee.store.rpc",
    "foresee.rpc.security": "foresee.store.rpc.security",
    "foresee.run.run_file": "foresee.run.config_file",
    "foresee.run.training": "foresee.run.session",
}


def _new_path(name: str) -> str | None:
    """Return where a module is now; a module inside a moved package is looked for under its own name."""
    if name in MOVED:
        return MOVED[name]
    package, _, rest = name.rpartition(".")
    return f"{MOVED[package]}.{rest}" if package in MOVED else None


class _Alias(Loader):
    """Gives the module at the new path, unchanged, under the old one."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_new_path(spec.name) or "")
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has set the alias's


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = _new_path(fullname)
        if new is None:
            return None
        warnings.warn(f"{fullname} is now {new}; the old path will be removed in 0.4", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(), is_package=True)


def install() -> None:
    """Make the old paths importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First: the path finder would load a second copy of a module through the alias of its package.
        sys.meta_path.insert(0, _Finder())
