"""What a plan costs in time: volumes and the speeds of a cluster in, seconds a step and the bottleneck out.

    speeds.py       what a cluster can do
    stores.py       reads, write-backs and cache: rows of a step as seconds
    exchanges.py    what trainers send each other, as seconds
    sharing.py      hidden and urgent work on one link, or on the same cores
    playing.py      step after step by the rules of the engine: when each begins, and what it waited for
    prediction.py   a mean step, its parts, what limits it

Never: measurements of this machine; every speed is an argument.
"""

from foresee.plan.cost.exchanges import RowBytes, Speeds, transfer_bytes
from foresee.plan.cost.playing import (
    BEHIND,
    COMPUTE,
    CORES,
    DENSE,
    DEPENDENCY,
    EXCHANGE,
    PARTS,
    PLANNER,
    READER,
    SERVER_LINK,
    SERVERS,
    TRAINER_LINK,
    WAITED,
    WRITER,
    Prediction,
    predict,
)

__all__ = [
    "BEHIND",
    "COMPUTE",
    "CORES",
    "DENSE",
    "DEPENDENCY",
    "EXCHANGE",
    "PARTS",
    "PLANNER",
    "READER",
    "SERVERS",
    "SERVER_LINK",
    "TRAINER_LINK",
    "WAITED",
    "WRITER",
    "Prediction",
    "RowBytes",
    "Speeds",
    "predict",
    "transfer_bytes",
]
