"""What a plan costs in time: volumes and the speeds of a cluster in, seconds a step and the bottleneck out.

    exchanges.py    what a cluster can do; rows between store and cache, and between trainers, as seconds
    playing.py      step after step by the rules of the engine: when each begins and what it waited for; a mean step

Never: measurements of this machine; every speed is an argument.
"""

from foresee.tools.cost.exchanges import RowBytes, Speeds, transfer_bytes
from foresee.tools.cost.playing import (
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
