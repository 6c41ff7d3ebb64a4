"""Ray Train: your loop in `train_loop_per_worker`, on every trainer; a killed trainer or a stop costs no byte.

    pip install 'foresee[ray]'
    python examples/with_ray_train.py                  # trains with two trainers, keeps everything in build/ray_train
    touch build/ray_train/stop                         # meanwhile: all trainers commit after the same step, and end
    python examples/with_ray_train.py                  # goes on: the same result, to the last bit
    kill -9 PID                                        # of a trainer: Ray Train starts all again, which go on as well

Ray Train starts the trainers, and starts all again when one is lost; the loop then goes on from its last commit. It
runs in a thread, where no signal arrives: `foresee.Stop` looks for a file. What the trainers say is in FOLDER/said.txt,
too: Ray may drop the last lines of a process.

Without --address, Ray runs on this machine alone, and trainer 0 keeps the rows and plans. Trainers on several machines
need servers and a planner that all can reach, started on any of them, and a FOLDER that all see:

    python examples/with_ray_train.py --folder FOLDER --write-layout FOLDER/layout.json
    foresee serve --layout FOLDER/layout.json --folder ROWS --host 10.0.0.2 --port 4444 \\
        --tls-certificate server.pem --tls-key server.key --token-file token
    python examples/with_ray_train.py --folder FOLDER --plan 10.0.0.2:4446 \\
        --tls-certificate server.pem --tls-key server.key --token-file token
    python examples/with_ray_train.py --folder FOLDER --address 10.0.0.1:6379 --servers grpc+tls://10.0.0.2:4444 \\
        --planner grpc+tls://10.0.0.2:4446 --tls-root-certificate ca.pem --token-file FOLDER/token
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
from foresee.store.rpc.security import read_security

DIM, BATCH_SIZE, KEEP_EVERY_STEPS = 8, 512, 20
OPTIMIZER = foresee.Adagrad(lr=0.05)


def say(folder: Path, text: str) -> None:
    print(text, flush=True)
    with open(folder / "said.txt", "a") as file:
        file.write(f"{text}\n")


def planned(log: foresee.ClickLog, epochs: int) -> dict[str, Any]:
    """What trainers and planner have to know alike."""
    return {"batch_size": BATCH_SIZE, "epochs": epochs, "cache_rows": log.num_rows // 5}


def train(settings: dict[str, Any]) -> None:
    """What each trainer does."""
    folder, certificate = Path(settings["folder"]), settings["tls_root_certificate"]
    log, checkpoints = foresee.ClickLog.open(folder / "log"), folder / "checkpoints"
    num_steps = log.batches(batch_size=BATCH_SIZE, epochs=settings["epochs"]).num_steps
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(log.num_dense + DIM * log.num_features, 64), nn.ReLU(), nn.Linear(64, 1))
    adam, bce = torch.optim.Adam(model.parameters(), lr=0.002), nn.BCEWithLogitsLoss()
    with (
        foresee.Trainers(
            folder / "tables", log, dim=DIM, optimizer=OPTIMIZER, servers=settings["servers"],
            planner=settings["planner"], token_file=settings["token_file"],
            tls_root_certificate=certificate and Path(certificate).read_bytes(),
        ) as trainers,
        foresee.Stop(folder / "stop") as stop,
    ):  # fmt: skip
        if trainers.steps_done:
            checkpoint.load(checkpoints, trainers.steps_done, model, adam)
        say(folder, f"trainer {trainers.rank} is process {os.getpid()}, begins after step {trainers.steps_done}")
        together = trainers.share(model)
        for step in trainers.steps(log, **planned(log, settings["epochs"])):
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
    log = foresee.ClickLog.open(folder / "log")
    if arguments.write_layout:
        foresee.Trainers.write_layout(arguments.write_layout, log, dim=DIM, optimizer=OPTIMIZER)
    elif arguments.plan:
        host, _, port = arguments.plan.rpartition(":")
        security = read_security(arguments.tls_certificate, arguments.tls_key, arguments.token_file)
        foresee.Trainers.plan(
            log, num_trainers=arguments.trainers, host=host, port=int(port), security=security,
            **planned(log, arguments.epochs),
        )  # fmt: skip
    else:
        fit(arguments, folder)


def fit(arguments: argparse.Namespace, folder: Path) -> None:
    # One CPU more than trainers, for Ray Train's own controller.
    cluster = {"address": arguments.address} if arguments.address else {"num_cpus": arguments.trainers + 1}
    # Ray Train makes the group of trainers before the loop begins; this is how it learns which network is for them.
    network = {it: os.environ[it] for it in ("GLOO_SOCKET_IFNAME",) if it in os.environ}
    ray.init(**{"address": "local", "runtime_env": {"env_vars": network}, **cluster})
    trainer = TorchTrainer(
        train,
        train_loop_config={
            "folder": str(folder), "epochs": arguments.epochs, "servers": arguments.servers,
            "planner": arguments.planner, "tls_root_certificate": arguments.tls_root_certificate,
            "token_file": arguments.token_file,
        },
        torch_config=TorchConfig(backend="gloo"),  # rows travel over gloo
        scaling_config=ScalingConfig(num_workers=arguments.trainers, placement_strategy="SPREAD"),
        run_config=RunConfig(storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=3)),
    )  # fmt: skip
    trainer.fit()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build") / "ray_train", help="seen by all trainers")
    parser.add_argument("--samples", type=int, default=60_000, help="of the log, when it is made")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--address", help="of a Ray cluster")
    apart = parser.add_argument_group("several machines")
    apart.add_argument("--servers", nargs="+", default=[], metavar="ADDRESS", help="of each `foresee serve`")
    apart.add_argument("--planner", metavar="ADDRESS", help="of --plan")
    apart.add_argument("--tls-root-certificate", type=absolute, metavar="PEM", help="who signed their certificates")
    apart.add_argument("--token-file", type=absolute, metavar="FILE", help="of mode 600; seen by all trainers")
    apart.add_argument("--write-layout", metavar="FILE", help="describe the rows for the servers, and end")
    apart.add_argument("--plan", metavar="HOST:PORT", help="plan here for trainers elsewhere, and do nothing else")
    apart.add_argument("--tls-certificate", type=Path, metavar="PEM", help="of --plan")
    apart.add_argument("--tls-key", type=Path, metavar="PEM", help="of --plan")
    return parser.parse_args()


def absolute(path: str) -> Path:
    """Trainers run in folders of their own."""
    return Path(path).absolute()


if __name__ == "__main__":
    main()
