"""Hugging Face Accelerate: your loop with `accelerator.backward`; Foresee brings the rows and updates them.

    pip install accelerate
    python examples/with_accelerate.py

Model and dense optimiser are prepared as always; the loader is `foresee.steps`, which needs no preparing. Rows are
updated by a hook of the dense optimiser, so the loop looks as it did: whoever forgets `step.update()` would be told.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import foresee
from foresee.data import synthetic
from foresee.run.evaluation import evaluate

DIM, BATCH_SIZE = 8, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a model this small computes on one core
    accelerator = Accelerator(cpu=True)
    with tempfile.TemporaryDirectory() as folder:
        log = synthetic(Path(folder) / "log", num_samples=arguments.samples, table_scale=0.002)
        torch.manual_seed(0)
        model, width = foresee.models.DeepFM(log, DIM, deep=(64, 32)), foresee.models.DeepFM.row_width(DIM)
        adam = torch.optim.Adam(model.parameters(), lr=0.002)
        model, prepared = accelerator.prepare(model, adam)
        with foresee.Tables.on_disk(
            Path(folder) / "tables", log, dim=width, optimizer=foresee.Adagrad(lr=0.05)
        ) as tables:
            run = foresee.steps(
                log, tables, batch_size=BATCH_SIZE, cache_rows=log.num_rows // 5, device=accelerator.device
            )
            for step in run:
                hook = adam.register_step_post_hook(lambda *_, step=step: step.update())
                logits = model(step.dense, step.embeddings)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, step.labels)
                accelerator.backward(loss)
                prepared.step()
                prepared.zero_grad()
                hook.remove()
            found = evaluate(accelerator.unwrap_model(model).eval(), tables.store, log)
            print(f"{run.steps_done} steps, loss {loss.item():.4f}")
            print(f"AUC on the valid split {found.auc:.4f}; the best anyone could reach is {log.best_auc['valid']:.4f}")


if __name__ == "__main__":
    main()
