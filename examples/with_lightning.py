"""PyTorch Lightning: its Trainer runs the loop, Foresee brings the rows; a callback updates them.

    pip install pytorch-lightning
    python examples/with_lightning.py

`foresee.steps` is what `fit` takes as its loader: a batch is a step, whose embeddings collect the gradient in
Lightning's own backward. The rows' optimiser is Foresee's, so the module configures one for the dense part only.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import pytorch_lightning as lightning
import torch
from torch import nn

import foresee
from foresee.data import synthetic
from foresee.run.evaluation import evaluate

DIM, BATCH_SIZE = 8, 512


class Clicks(lightning.LightningModule):
    """Any module of yours; `step` comes where a batch would."""

    def __init__(self, log):
        super().__init__()
        self.model = foresee.models.DeepFM(log, DIM, deep=(64, 32))

    def training_step(self, step, _):
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(step.dense, step.embeddings), step.labels)
        self.log("loss", loss, batch_size=len(step.labels))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.model.parameters(), lr=0.002)


class UpdateRows(lightning.Callback):
    """After backward and the dense optimiser, before the next step."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        batch.update()


class Loader:
    """A run with a length: without one, Lightning would ask for the next step before this one is updated."""

    def __init__(self, run):
        self.run = run

    def __iter__(self):
        return iter(self.run)

    def __len__(self):
        return self.run.header.num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a model this small computes on one core
    warnings.filterwarnings("ignore", module="pytorch_lightning")  # on loaders with workers, and the like
    with tempfile.TemporaryDirectory() as folder:
        log = synthetic(Path(folder) / "log", num_samples=arguments.samples, table_scale=0.002)
        torch.manual_seed(0)
        module = Clicks(log)
        width = foresee.models.DeepFM.row_width(DIM)
        with foresee.Tables.on_disk(
            Path(folder) / "tables", log, dim=width, optimizer=foresee.Adagrad(lr=0.05)
        ) as tables:
            run = foresee.steps(log, tables, batch_size=BATCH_SIZE, cache_rows=log.num_rows // 5)
            trainer = lightning.Trainer(
                max_epochs=1, accelerator="cpu", callbacks=[UpdateRows()], logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            )  # fmt: skip
            trainer.fit(module, Loader(run))
            found = evaluate(module.model.eval(), tables.store, log)
            print(f"{run.steps_done} steps, loss {trainer.callback_metrics['loss']:.4f}")
            print(f"AUC on the valid split {found.auc:.4f}; the best anyone could reach is {log.best_auc['valid']:.4f}")


if __name__ == "__main__":
    main()
