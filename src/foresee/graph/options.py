"""What `foresee graph prepare` makes of a raw graph: partitions, splits, what is left out, how much memory it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from foresee.data.order import Shares
from foresee.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """What to make of a raw graph, whatever its format. The texts are also the help of `foresee graph prepare`."""

    partitions: Annotated[int, "Partitions of the nodes; training can ask for another number later."] = 1
    seed: Annotated[int, "Seed of the numbering of nodes and of splits that are drawn."] = 0
    split: Annotated[
        Literal["edges", "nodes"] | None,
        "What is held out where no split is given. Without it: nodes if they have labels, else edges.",
    ] = None
    valid_share: Annotated[float, "Share of the edges or nodes that go to the valid split."] = 0.1
    test_share: Annotated[float, "Share of the edges or nodes that go to the test split."] = 0.1
    train_nodes_first: Annotated[
        bool, "Give the nodes of the train split the smallest numbers, so that they fill the first partitions."
    ] = False
    self_loops: Annotated[Literal["keep", "drop"], "Edges from a node to itself."] = "keep"
    duplicates: Annotated[Literal["keep", "drop"], "Train edges that occur more than once, after the first."] = "keep"
    bad_lines: Annotated[
        Literal["stop", "keep"], "Stop at the first bad line, or keep them in bad-lines.txt and go on."
    ] = "stop"
    bad_share_max: Annotated[float, "Give up if more than this share of the lines is bad."] = 0.01
    memory: Annotated[int, "Megabytes that sorting may take."] = 512
    replace: Annotated[bool, "Replace a prepared graph that is already there."] = False

    def __post_init__(self) -> None:
        if not (self.valid_share >= 0 and self.test_share >= 0 and self.valid_share + self.test_share < 1):
            raise DataError(
                f"valid_share={self.valid_share} and test_share={self.test_share} leave nothing to train "
                "on; give shares from 0 up that sum to less than 1."
            )
        for name, least in (("partitions", 1), ("seed", 0), ("bad_share_max", 0), ("memory", 1)):
            if getattr(self, name) < least:
                raise DataError(f"{name}={getattr(self, name)} is too small; give {least} or more.")

    @property
    def shares(self) -> Shares:
        return Shares(valid=self.valid_share, test=self.test_share)
