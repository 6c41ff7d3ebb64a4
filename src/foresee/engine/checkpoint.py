"""The dense half of a commit: weights, optimiser state and random state of one step, as safetensors and JSON.

In: a model and its optimiser after `step` steps. Out: a folder `step-N` that counts once its `state.json`, written
last, is there. The other half is the store's commit of the same step, which follows: a stop between the two leaves the
store at the step before, whose checkpoint is kept for that reason. So whatever step a store is at, `load` finds its
other half. Nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from foresee.errors import InputError, StoreError
from foresee.store.disk.files import Files

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
RANDOM_STATE = "torch_random_state"
FORMAT_VERSION = 1
KEPT = 2


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Makes the checkpoint of a step durable. Weights that are not finite are refused: nobody could go on from them."""
    check_finite(step, model)
    target = folder / f"step-{step:09d}"
    tensors, numbers = _flatten(optimizer)
    tensors[RANDOM_STATE] = torch.get_rng_state()
    state = {"format_version": FORMAT_VERSION, "step": step, "optimizer": numbers}
    files = Files()
    try:
        target.mkdir(parents=True, exist_ok=True)
        files.publish(target / MODEL_FILE, save_tensors(own_copies(model.state_dict())))
        files.publish(target / OPTIMIZER_FILE, save_tensors(own_copies(tensors)))
        files.publish(target / STATE_FILE, (json.dumps(state, indent=2) + "\n").encode())
        files.sync_folder(folder)
    except OSError as error:
        raise StoreError(f"{target} cannot be written ({error.strerror}); free some space, then resume") from error


def load(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Brings model, optimiser and torch's generator back to the state after `step` steps."""
    source = folder / f"step-{step:09d}"
    state = _read_state(source, step)
    load_model(source, model)
    tensors = load_tensors((source / OPTIMIZER_FILE).read_bytes())
    torch.set_rng_state(tensors.pop(RANDOM_STATE))
    optimizer.load_state_dict(_unflatten(optimizer, tensors, state["optimizer"]))


def load_weights(folder: Path, step: int, model: nn.Module) -> None:
    """The weights alone, to evaluate or export."""
    source = folder / f"step-{step:09d}"
    _read_state(source, step)
    load_model(source, model)


def load_model(source: Path, model: nn.Module) -> None:
    """Weights out of a folder with a model file."""
    try:
        model.load_state_dict(load_tensors((source / MODEL_FILE).read_bytes()))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        file = source / MODEL_FILE
        raise StoreError(f"{file} belongs to another model ({reason}); use the model it was made with") from None


def prune(folder: Path, *, kept: int = KEPT) -> None:
    """Removes all but the newest checkpoints."""
    for old in sorted(folder.glob("step-*"))[:-kept]:
        shutil.rmtree(old, ignore_errors=True)


def forget_after(folder: Path, step: int) -> None:
    """Removes checkpoints that the store never followed."""
    for path in folder.glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path, ignore_errors=True)


def own_copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, which the format asks for; shared weights are written for each of their names."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def check_finite(step: int, model: nn.Module) -> None:
    for name, weights in model.state_dict().items():
        if weights.is_floating_point() and not bool(torch.isfinite(weights).all()):
            raise diverged(step, f"{name} holds numbers that are not finite")


def diverged(step: int, what: str) -> InputError:
    """The sentence for a training that is beyond repair."""
    return InputError(
        f"step {step}: training diverged, {what}; nothing was kept after the last commit. "
        "Start anew with a lower train.optimizer.lr or tables.optimizer.lr, or look for extreme dense values in the log"
    )


def _read_state(source: Path, step: int) -> dict[str, Any]:
    try:
        state = json.loads((source / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        raise StoreError(
            f"the tables are at step {step}, but {source} is missing or damaged; restore it from a copy, or start anew"
        ) from None
    if state.get("format_version") != FORMAT_VERSION:
        raise StoreError(
            f"{source} has format version {state.get('format_version')!r}, this release reads {FORMAT_VERSION}; "
            "use the release that wrote it"
        )
    return state  # type: ignore[no-any-return]


def _flatten(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Optimiser state as named tensors and, where an optimiser keeps them as such, numbers."""
    tensors, numbers = {}, {}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                numbers[f"{index}.{name}"] = value
    return tensors, numbers


def _unflatten(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **numbers}.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    # Learning rates and the like come from the configuration, which `resume` has compared.
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
