"""Where the plan of a run began, kept in RUN/plan.json, so that a run that goes on enters the same plan.

In: the run folder and the header of a plan for several workers. Out: the step at which planning has to begin. With
`herald` and `location_aware` the samples of a worker follow from all steps planned before; a plan that began anew after
every stop or kill would add gradients in another order. If anything that a plan follows from has changed, the step that
the run goes on from is the new beginning.
"""

from __future__ import annotations

import json
from typing import Any

from foresee import documents
from foresee.engine.run_folder import PLAN_FILE, RunFolder
from foresee.errors import StoreError
from foresee.plan.record import Header
from foresee.store.disk.files import Files


def plan_origin(folder: RunFolder, header: Header) -> int | None:
    """The first step of the plan that the header belongs to; None if where it begins makes no difference."""
    if header.num_workers == 1 or header.parameters.get("placement") == "contiguous":
        return None
    settings, path = _settings(header), folder.path / PLAN_FILE
    known = _read(path.read_bytes()) if path.exists() else None
    if known is not None and known[0] == settings and known[1] <= header.first_step:
        return known[1]
    content = {"settings": settings, "planned_from": header.first_step}
    try:
        Files().publish(path, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}); {folder.remedy}") from error
    return header.first_step


def _settings(header: Header) -> dict[str, Any]:
    """Everything a plan follows from, beside the log."""
    parameters = {name: value for name, value in header.parameters.items() if name != "planned_from"}
    return {
        "planner": header.planner, "parameters": parameters, "num_workers": header.num_workers,
        "capacity_rows": header.capacity_rows, "fetch_ahead_steps": header.fetch_ahead_steps,
    }  # fmt: skip


def _read(content: bytes) -> tuple[dict[str, Any], int] | None:
    """What a plan followed from and where it began; None if the file is damaged, which costs bits and not rows."""
    try:
        known = documents.parse_object(content)
        return documents.object_of(known, "settings"), documents.whole(known, "planned_from")
    except ValueError:
        return None
