"""How a job's batch size changes while it trains: the rules the published traces were simulated with.

In: the epoch a job is in, its batch size now and at the start. Out: the batch size it asks for next, or None.
GNS doubles the batch at epochs that depend on model, first batch and GPUs; Accordion trains critical stretches with
the first batch and the rest with the largest. The numbers are those of the simulated jobs in uw-mad-dash/shockwave
(MIT), `scheduler.py` and `utils.py`; they differ from the profiles of the same jobs, so a replay needs them.
Never: progress itself (execution.py keeps it), or any guess about jobs that are not in these traces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

LARGEST_BATCH = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}
SMALLEST_BATCH = {"ResNet-18": 16, "ResNet-50": 16, "Transformer": 16, "LM": 5, "Recommendation": 512}

# Epochs at which gradient noise has grown enough to double the batch: (model, first batch, GPUs) -> epochs.
DOUBLING_EPOCHS: Mapping[tuple[str, int, int], tuple[int, ...]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71),
    ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61),
    ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,),
    ("ResNet-50", 32, 2): (101, 111),
    ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41),
    ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41),
    ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61),
    ("LM", 20, 4): (11, 61),
    ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91),
    ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41),
    ("Recommendation", 4096, 1): (41,),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepProfile:
    """What a step-level simulation of a job needs to know."""

    model: str
    mode: str
    """As a trace names it: `gns`, `accordion`, or anything else for a size that stays."""
    batch_size: int
    """The first batch size."""
    gpus: int
    num_steps: int
    """Steps in all, counted at the first batch size."""
    dataset_size: int
    steps_per_second: Mapping[int, float]
    """Speed by batch size, on the job's own number of GPUs."""
    run_seconds_max: float
    """The job is ended when it has run longer than this."""

    def steps_per_epoch(self, batch_size: int) -> int:
        return math.ceil(self.dataset_size / batch_size)


def wanted_batch(profile: StepProfile, batch_size: int, epoch: int) -> int | None:
    """The batch size the job asks for at the end of a round that left it in `epoch`; None to stay as it is."""
    if profile.mode == "gns":
        return _doubled(profile, batch_size, epoch)
    if profile.mode == "accordion" and profile.model != "Transformer":
        return _switched(profile, batch_size, critical=_is_critical(profile.model, profile.batch_size, epoch))
    return None


def _doubled(profile: StepProfile, batch_size: int, epoch: int) -> int | None:
    doublings = DOUBLING_EPOCHS.get((profile.model, profile.batch_size, profile.gpus), ())
    # The rule looks one epoch ahead of the one in progress.
    target = profile.batch_size * 2 ** sum(epoch + 1 >= doubling for doubling in doublings)
    limit = LARGEST_BATCH[profile.model]
    if min(target, limit) > batch_size and batch_size != limit:
        return 2 * batch_size
    return None


def _switched(profile: StepProfile, batch_size: int, *, critical: bool) -> int | None:
    largest, smallest = LARGEST_BATCH[profile.model], SMALLEST_BATCH[profile.model]
    if batch_size == profile.batch_size and not critical and batch_size != largest:
        return largest
    if batch_size != profile.batch_size and critical and batch_size != smallest:
        return profile.batch_size
    return None


def _is_critical(model: str, first_batch: int, epoch: int) -> bool:
    """Whether the gradient still changes fast, so that Accordion keeps the small batch."""
    if model == "LM":
        return epoch < 10
    if model == "Recommendation":
        return epoch < {512: 30, 1024: 30, 2048: 40}.get(first_batch, 10)
    if model == "ResNet-50":
        return epoch % 30 < 10
    head = 20 if first_batch == 256 else 10
    return epoch < head or 150 <= epoch < 160 or 250 <= epoch < 260
