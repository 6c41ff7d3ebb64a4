"""A comparison as `foresee compare --csv` wrote it, read again: for a page made later, or elsewhere.

In: a CSV file with the columns of `comparison`. Out: the records that the page is drawn from; an empty cell is None.
"""

from __future__ import annotations

import csv
from pathlib import Path

from foresee.errors import InputError
from foresee.report.comparison import COLUMNS, Record

WORDS = ("policy", "cache", "bottleneck", "why_missing")
WHOLE = ("trainers", "cache_rows", "steps", "batch_size")


def read_comparison(file: Path) -> list[Record]:
    """Refuses a file with other columns, or with a cell that is no number where one is due."""
    try:
        with open(file, encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise InputError(
                    f"{file}: the columns are not those of a comparison; give a file that `foresee compare --csv` "
                    "wrote, or the folder of a run"
                )
            records: list[Record] = [
                {name: _value(name, row[name], file, number) for name in COLUMNS}
                for number, row in enumerate(reader, 2)
            ]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error}); give a file that `foresee compare --csv` wrote") from None
    if not records:
        raise InputError(f"{file}: no policy was compared; give a file that `foresee compare --csv` wrote")
    return records


def _value(name: str, cell: str | None, file: Path, line: int) -> str | int | float | None:
    if not cell:
        return None
    if name in WORDS:
        return cell
    try:
        return int(cell) if name in WHOLE else float(cell)
    except ValueError:
        raise InputError(f"{file}:{line}: {name} is {cell!r} and no number; write the file again") from None
