"""What the sides train: a log, a model, and how many steps of it in how many turns."""

from __future__ import annotations

from dataclasses import dataclass, replace

LEARNING_RATE, EPS, THREADS = 0.05, 1e-8, 2
"""Of Adagrad, which updates the rows of all sides; and of every side's process."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A log and how it is trained on."""

    name: str
    log: str
    model: str = "dlrm"
    batch_size: int = 2048
    dim: int = 16
    bottom: tuple[int, ...] = (64,)
    """Hidden widths, of a DLRM only."""
    top: tuple[int, ...] = (128, 64)
    """Hidden widths; of a DeepFM, those of its deep part."""
    turns: int = 5
    """Besides the first, which is not counted."""
    steps: int
    """Of a turn."""
    epochs: int = 1
    sides: tuple[str, ...] = ("ours", "pytorch", "torchrec")

    @property
    def num_steps(self) -> int:
        return self.steps * (self.turns + 1)

    @property
    def row_width(self) -> int:
        """A DeepFM's row holds the weight of the first order, too."""
        return self.dim + 1 if self.model == "deepfm" else self.dim


CASES = {
    case.name: case
    for case in (
        Case(name="synthetic", log="synthetic", steps=16, turns=8),
        Case(name="large_mlp", log="synthetic", dim=64, bottom=(512, 256), top=(512, 256), steps=4, turns=4),
        Case(name="avazu", log="avazu", batch_size=512, steps=16, epochs=2, sides=("ours", "pytorch")),
        Case(name="deepfm", log="synthetic", model="deepfm", steps=6, turns=4, sides=("ours", "deepctr", "fuxictr")),
    )
}
FULL_TURNS = 4
"""Times as many turns with --full."""
MAIN = "synthetic"


def case_of(name: str, *, full: bool) -> Case:
    case, times = CASES[name], FULL_TURNS if full else 1
    return replace(case, turns=case.turns * times, epochs=case.epochs * times if case.epochs > 1 else 1)
