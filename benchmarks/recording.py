"""What recording a run for `foresee report` costs: steps of a recorded run over steps of one that is not.

A DLRM (bottom 64, top 128-64), batch 2048, 26 features, dim 16, rows in memory, a cache of a tenth of them: the run of
`foresee demo`, whose steps are short, so that a fixed cost shows. Two runs of the same log go on in turn, a few steps
each, in one process; every turn gives one ratio. Of the recorded run about one step in four is in its timeline, far
more than in any longer run.

    recorded_over_silent    median of the ratios
    laps_per_step           spans that the threads of the recorded run record
    lap_microseconds        one span, timed alone
    bytes_per_step          what the recording takes on disk, over the steps of this short run
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from foresee.data import ClickLog, synthetic
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.step import Step
from foresee.engine.tables import Tables
from foresee.engine.trace.tracer import Tracer
from foresee.models import DLRM
from foresee.run.steps import lookahead

BATCH_SIZE = 2048
STEPS_A_TURN = 10
WARM_UP_TURNS = 2


class Side:
    """One of the two runs, a few steps at a time."""

    def __init__(self, log: ClickLog, epochs: int, record: Path | None) -> None:
        torch.manual_seed(0)
        self._model = DLRM(log, dim=16, bottom=[64], top=[128, 64])
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.002)
        tables = Tables.in_memory(log, dim=16, optimizer=RowwiseAdagrad(lr=0.5, eps=0.003))
        self.run = lookahead(
            log, tables, batch_size=BATCH_SIZE, cache_rows=log.num_rows // 10, epochs=epochs, record=record
        )
        self._steps: Iterator[Step] = iter(self.run)

    def turn(self) -> float | None:
        """Seconds of the next few steps; None if there are not so many."""
        begun = time.perf_counter()
        for _ in range(STEPS_A_TURN):
            step = next(self._steps, None)
            if step is None:
                return None
            loss = binary_cross_entropy_with_logits(self._model(step.dense, step.embeddings), step.labels)
            step.learned(loss.item())
            step.span("forward")
            loss.backward()  # type: ignore[no-untyped-call]
            step.span("backward")
            self._optimizer.step()
            self._optimizer.zero_grad()
            step.span("dense")
            step.update()
        return time.perf_counter() - begun


def lap_microseconds(folder: Path) -> float:
    """One span outside a window, as nearly all are."""
    tracer, num = Tracer(folder), 200_000
    begun = time.perf_counter()
    for _ in range(num):
        with tracer.span("forward", 0):
            pass
    return 1e6 * (time.perf_counter() - begun) / num


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="foresee-recording-") as name:
        folder = Path(name)
        log = synthetic(folder / "log", num_samples=arguments.samples, table_scale=0.01)
        sides = [Side(log, arguments.epochs, record) for record in (None, folder / "run")]
        ratios: list[float] = []
        turn = 0
        while True:
            order = (0, 1) if turn % 2 else (1, 0)  # neither side always comes first
            seconds = {side: sides[side].turn() for side in order}
            silent, recorded = seconds[0], seconds[1]
            if silent is None or recorded is None:
                break
            if turn >= WARM_UP_TURNS:
                ratios.append(recorded / silent)
            turn += 1
        lines = (folder / "run" / "timeline" / "worker-0.jsonl").read_text().splitlines()
        steps, spans = sides[1].run.steps_done, [json.loads(line) for line in lines if '"span"' in line]
        in_windows = len({span["step"] for span in spans if span["what"] == "forward"})
        figures = {
            "recorded_over_silent": round(statistics.median(ratios), 4),
            "turns": len(ratios),
            "laps_per_step": round(len(spans) / max(1, in_windows), 1),
            "lap_microseconds": round(lap_microseconds(folder), 3),
            "bytes_per_step": round(sum(len(line) + 1 for line in lines) / steps),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
