"""Is the cost model right? Predicted over measured step time, for configurations other than those it was calibrated on.

One process with its rows in memory and on disk (`simulated/alone.py`), and two trainers with two servers over shaped
links, each a network namespace (`simulated/pair.py`, needs root). Every turn calibrates, measures and predicts anew, so
that both sides saw the same machine; a configuration's figure is the median over turns.

    predicted_over_measured_min, _max   over all configurations
    num_configurations                  how many there are

Run: `.venv/bin/python benchmarks/simulator.py` (`--full` for more turns). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more turns")
    parser.add_argument("--only", choices=("alone", "pair"), help="one process, or two trainers")
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=("trainer",), help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--prefix", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    from simulated import alone, pair

    if arguments.role == "trainer":
        return pair.train(arguments)
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float]]] = {}
    sources: dict[str, Callable[[], Iterator[alone.Turn]]] = {
        "alone": lambda: alone.turns(arguments.turns or (9 if arguments.full else 3)),
        "pair": lambda: pair.turns(arguments.turns or (5 if arguments.full else 1), Path(__file__)),
    }
    for name in [arguments.only] if arguments.only else sources:
        for turn in sources[name]():
            for configuration, both in turn.items():
                found.setdefault(configuration, []).append(both)
    report(found)


def report(found: dict[str, list[tuple[float, float]]]) -> None:
    """A line for each configuration, and the worst of them both ways."""
    ratios = []
    for name, turns in found.items():
        predicted, measured = (statistics.median(column) for column in zip(*turns, strict=True))
        ratios.append(statistics.median(one / other for one, other in turns))
        print(
            f"{name:58} predicted {1e3 * predicted:7.1f} ms, measured {1e3 * measured:7.1f} ms, ratio {ratios[-1]:.2f}"
        )
    figures = {
        "predicted_over_measured_min": round(min(ratios), 3),
        "predicted_over_measured_max": round(max(ratios), 3),
        "num_configurations": len(ratios),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
