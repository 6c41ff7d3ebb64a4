"""Settings for every test: no deadlines (the first call of a kernel compiles it), reproducible examples."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("FORESEE_HYPOTHESIS", "default"))
