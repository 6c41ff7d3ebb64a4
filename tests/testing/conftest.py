"""What is in `tests/chaos` in its long version is used here in a short one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))
