"""Ray Train: your loop in `train_loop_per_worker`, on every trainer; a killed trainer or a stop costs no byte.

    pip install 'foresee[ray]'
    python examples/with_ray_train.py                  # trains with two trainers, keeps everything in build/ray_train
    touch build/ray_train/stop                         # meanwhile: all trainers commit after the same step, and end
    python examples/with_ray_train.py                  # goes on: the same result, to the last bit
    kill -9 PID                                        # of a trainer: Ray Train starts all again, which go on as well

Ray Train starts the trainers, and starts all again when one is lost; the loop then goes on from its last commit. It
runs in a thread, where no signal arrives: `foresee.Stop` looks for a file. Without --address, Ray runs on this machine
alone; trainers on several machines need servers and a planner that all can reach (`Trainers(servers=, planner=)`), and
a folder that all see. What the trainers say is in FOLDER/said.txt, too: Ray may drop the last lines of a process.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

import foresee
from foresee import checkpoint
from foresee.data import synthetic

DIM, BATCH_SIZE, KEEP_EVERY_STEPS = 8, 512, 20


def say(folder: Path, text: str) -> None:
    print(text, flush=True)
    with open(folder / "said.txt", "a") as file:
        file.write(f"{text}\n")


def train(settings: dict[str, Any]) -> None:
    """What each trainer does."""
    folder = Path(settings["folder"])
    log, checkpoints = foresee.ClickLog.open(folder / "log"), folder / "checkpoints"
    batches: dict[str, Any] = {"batch_size": BATCH_SIZE, "epochs": settings["epochs"]}
    num_steps = log.batches(**batches).num_steps
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(log.num_dense + DIM * log.num_features, 64), nn.ReLU(), nn.Linear(64, 1))
    adam, bce = torch.optim.Adam(model.parameters(), lr=0.002), nn.BCEWithLogitsLoss()
    with (
        foresee.Trainers(folder / "tables", log, dim=DIM, optimizer=foresee.Adagrad(lr=0.05)) as trainers,
        foresee.Stop(folder / "stop") as stop,
    ):
        if trainers.steps_done:
            checkpoint.load(checkpoints, trainers.steps_done, model, adam)
        say(folder, f"trainer {trainers.rank} is process {os.getpid()}, begins after step {trainers.steps_done}")
        together = trainers.share(model)
        for step in trainers.steps(log, cache_rows=log.num_rows // 5, **batches):
            logits = together(torch.cat([step.dense, step.embeddings.flatten(1)], dim=1)).squeeze(1)
            loss = bce(logits, step.labels) * trainers.weight(step)
            loss.backward()
            adam.step()
            adam.zero_grad()
            step.update()
            stopping, done = trainers.agree_to_stop(stop.asked), trainers.steps_done
            if stopping or done == num_steps or done % KEEP_EVERY_STEPS == 0:
                if trainers.rank == 0:
                    checkpoint.save(checkpoints, done, model, adam)  # the dense half first,
                trainers.commit()  # then the rows: from here on the step stands, whatever happens
                say(folder, f"trainer {trainers.rank} has kept step {done} of {num_steps}")
            if stopping:
                break
        if trainers.rank == 0 and trainers.steps_done == num_steps:
            digest = hashlib.sha256(b"".join(trainers.tables.values(it.name).tobytes() for it in log.tables))
            for weights in model.parameters():
                digest.update(weights.detach().numpy().tobytes())
            say(folder, f"all rows and weights together: {digest.hexdigest()[:16]}")


def main() -> None:
    arguments = parse()
    folder = arguments.folder.absolute()
    if not (folder / "log").exists():
        synthetic(folder / "log", num_samples=arguments.samples, table_scale=0.002)
    # One CPU more than trainers, for Ray Train's own controller.
    cluster = {"address": arguments.address} if arguments.address else {"num_cpus": arguments.trainers + 1}
    ray.init(**{"address": "local", **cluster})
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), "epochs": arguments.epochs},
        torch_config=TorchConfig(backend="gloo"),  # rows travel over gloo
        scaling_config=ScalingConfig(num_workers=arguments.trainers),
        run_config=RunConfig(storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build") / "ray_train", help="seen by all trainers")
    parser.add_argument("--samples", type=int, default=60_000, help="of the log, when it is made")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--address", help="of a Ray cluster")
    return parser.parse_args()


if __name__ == "__main__":
    main()
