"""Real logs for tests. They are not part of the repository: tests that use them skip where they are missing.

Every such test takes the fixture `real_data`, which `conftest.py` turns into a marker of the same name, so that
`pytest -m real_data` runs exactly these; `.ci/run` does so once more with FORESEE_DATA naming a folder that is missing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("FORESEE_DATA", Path(__file__).parents[2] / "shared" / "data"))


class RealData:
    """The folder of real logs."""

    folder = DATA

    def path(self, name: str) -> Path:
        """Return where a file or folder of the data is; skip the test if it is missing."""
        if not (found := self.folder / name).exists():
            pytest.skip(f"{found} is missing; set FORESEE_DATA to the folder that holds {name}")
        return found
