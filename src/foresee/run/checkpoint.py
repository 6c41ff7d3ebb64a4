"""The dense half of a commit: weights, optimiser, schedules and random state of one step, as safetensors and JSON.

    from foresee import checkpoint

    checkpoint.save("checkpoints", run.steps_done, model, adam, others={"schedule": cosine})
    checkpoint.load("checkpoints", tables.store.committed_step, model, adam, others={"schedule": cosine})

In: a model, its optimiser and other objects with a `state_dict` after `step` steps, whose rows every store has
prepared. Out: a folder `step-N` that counts once its `manifest.json`, written last, is there and every file is as long
and has the digest that it says. That file is the decision (see store.commits): before it is durable a run goes on from
the commit before, and afterwards from this one, wherever the stores were stopped. Of a run the last two are kept.
Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from foresee.errors import InputError, StoreError
from foresee.io import bounded_json as json_fields
from foresee.io import failpoints
from foresee.io.failpoints import failpoint
from foresee.io.files import Files
from foresee.run.state_tree import Stateful, pack, unpack
from foresee.store.commits import loses_everything, step_to_open
from foresee.store.contract import TwoPhaseStore

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
RANDOM_STATE = "torch_random_state"
GROUPS = "param_groups"
OTHERS = "others"
"""Before the names of tensors that belong to other objects than the optimiser."""
FORMAT_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)
"""Version 1 had no manifest: its `state.json` was written last. Version 2 had no parameter groups and no others."""
KEPT = 2
FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)


def save(
    folder: str | Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, *,
    others: Mapping[str, Stateful] | None = None, num_shards: int = 1,
) -> None:  # fmt: skip
    """Makes the checkpoint of a step durable: when this returns, the commit stands.

    Args:
        folder: Where checkpoints go, each into a folder of its own.
        step: Steps done.
        model: Whose weights and buffers are kept.
        optimizer: Its whole state is kept, learning rates of its parameter groups included.
        others: Whatever else has a `state_dict` and a `load_state_dict`, by names of your choice.
        num_shards: Of how many stores this is the dense half.

    Raises:
        InputError: Weights are not finite: nobody could go on from them.
        StoreError: The folder cannot be written.
    """
    check_finite(step, model)
    contents = _contents(step, model, optimizer, others or {})
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "num_shards": num_shards,
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
        },
    }
    target = folder_of(Path(folder), step)
    try:
        write(target, contents, (json.dumps(manifest, indent=2) + "\n").encode())
    except OSError as error:
        onwards = (
            "resume" if whole_steps(Path(folder)) else "resume from step 0, or start anew: nothing was committed yet"
        )
        raise StoreError(f"{target} cannot be written ({error.strerror}); free some space, then {onwards}") from error


def _contents(
    step: int, model: nn.Module, optimizer: torch.optim.Optimizer, others: Mapping[str, Stateful]
) -> dict[str, bytes]:
    tensors, state = _flatten(optimizer)
    tensors[RANDOM_STATE] = torch.get_rng_state()
    kept = {name: pack(other.state_dict(), f"{OTHERS}.{name}", tensors) for name, other in others.items()}
    document = {"format_version": FORMAT_VERSION, "step": step, **state, OTHERS: kept}
    return {
        MODEL_FILE: save_tensors(own_copies(model.state_dict())),
        OPTIMIZER_FILE: save_tensors(own_copies(tensors)),
        STATE_FILE: (json.dumps(document, indent=2) + "\n").encode(),
    }


def write(target: Path, contents: dict[str, bytes], manifest: bytes) -> None:
    """Everything is on the disk, names included, before the manifest is."""
    files = Files()
    target.mkdir(parents=True, exist_ok=True)
    (target / MANIFEST_FILE).unlink(missing_ok=True)
    for name, content in contents.items():
        with open(target / name, "wb") as stream:
            stream.write(content)
            stream.flush()
            files.sync(stream.fileno())
    for changed in (target, target.parent, target.parent.parent):
        files.sync_folder(changed)
    failpoint(failpoints.CHECKPOINT_WRITTEN)
    files.publish(target / MANIFEST_FILE, manifest)
    failpoint(failpoints.DECIDED)


def folder_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}"


def steps_there(folder: Path) -> list[int]:
    """Steps of which there is something, ascending."""
    names = [path.name.removeprefix("step-") for path in folder.glob("step-*")]
    return sorted(int(name) for name in names if name.isdigit())


def whole_steps(folder: Path) -> list[int]:
    """Steps whose checkpoint is complete, ascending."""
    return [step for step in steps_there(folder) if not problems(folder, step)]


def problems(folder: Path, step: int) -> list[str]:
    """What is wrong with a checkpoint, in words; nothing if it is whole."""
    source = folder_of(folder, step)
    try:
        state = json_fields.parse_object((source / STATE_FILE).read_bytes())
        if state.get("format_version") == 1:
            return []
        files = json_fields.object_of(json_fields.parse_object((source / MANIFEST_FILE).read_bytes()), "files")
        entries = {name: json_fields.object_of(files, name) for name in FILES if name in files}
        expected = {
            name: (json_fields.whole(it, "bytes", 0, json_fields.LARGE_MAX), json_fields.text_of(it, "sha256"))
            for name, it in entries.items()
        }
    except FileNotFoundError as error:
        return [f"{error.filename} is missing: this checkpoint was not finished"]
    except (OSError, ValueError) as error:
        return [f"{source / MANIFEST_FILE} cannot be read ({error})"]
    missing = [f"{source / MANIFEST_FILE} does not list {name}" for name in FILES if name not in expected]
    there = [name for name in FILES if name in expected]
    return missing + [sentence for name in there for sentence in _check(source / name, *expected[name])]


def _check(path: Path, num_bytes: int, sha256: str) -> list[str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        return [f"{path} cannot be read ({error.strerror})"]
    if len(content) != num_bytes:
        return [f"{path} has {len(content)} bytes where {num_bytes} are expected"]
    if hashlib.sha256(content).hexdigest() != sha256:
        return [f"{path} is damaged: its sha256 is not the one in {MANIFEST_FILE}"]
    return []


def open_newest(store: TwoPhaseStore, folder: Path, stored: Collection[int] = ()) -> int:
    """Brings a store to the newest commit whose dense half is whole here, or in a storage, and gives up everything
    after it."""
    manifests = sorted({*whole_steps(folder), *stored})
    step = step_to_open(manifests, [part.openable for part in store.parts])
    if step is None or loses_everything(step, store.parts):
        kept = "; ".join(", ".join(map(str, sorted(part.openable))) for part in store.parts)
        reasons = [reason for there in steps_there(folder) for reason in problems(folder, there)]
        raise StoreError(
            f"no commit is complete: the tables have that of step {kept}, the checkpoints in {folder} that of "
            f"{', '.join(map(str, manifests)) or 'none'}{''.join(f' ({reason})' for reason in reasons[:1])}; restore "
            "the missing half from a copy, or start anew"
        )
    store.open_at(step)
    return step


def load(
    folder: str | Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, *,
    others: Mapping[str, Stateful] | None = None,
) -> None:  # fmt: skip
    """Brings model, optimiser, others and torch's generator back to the state after some steps.

    Args:
        folder: Where checkpoints are.
        step: Which one, such as `tables.store.committed_step`.
        model: Gets weights and buffers.
        optimizer: Gets its state, learning rates included.
        others: As given to `save`.

    Raises:
        StoreError: There is no whole checkpoint of this step, or it is of another model or optimiser.
    """
    folder = Path(folder)
    source = folder_of(folder, step)
    state = _read_state(source, step)
    _check_whole(folder, step)
    load_model(source, model)
    tensors = read_tensors(source / OPTIMIZER_FILE)
    try:
        restored = _unflatten(optimizer, tensors, state)
        torch.set_rng_state(tensors[RANDOM_STATE])
        optimizer.load_state_dict(restored)
    except (KeyError, IndexError, ValueError, TypeError, RuntimeError) as error:
        raise _another(source / OPTIMIZER_FILE, "optimiser", error) from None
    _load_others(source, state, tensors, others or {})


def _load_others(
    source: Path, state: dict[str, Any], tensors: dict[str, Tensor], others: Mapping[str, Stateful]
) -> None:
    kept = state.get(OTHERS, {})
    for name, other in others.items():
        if not isinstance(kept, dict) or name not in kept:
            there = ", ".join(kept) if isinstance(kept, dict) and kept else "none"
            raise StoreError(
                f"{source} keeps no state of {name!r} (others that it keeps: {there}); load it without, or start anew"
            )
        try:
            other.load_state_dict(unpack(kept[name], tensors))
        except (KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise _another(source / STATE_FILE, name, error) from None


def kept_names(folder: Path, step: int) -> frozenset[str]:
    """The names of the others that a checkpoint keeps."""
    return frozenset(_read_state(folder_of(folder, step), step).get(OTHERS, {}))


def load_weights(folder: Path, step: int, model: nn.Module) -> None:
    """The weights alone, to evaluate or export."""
    source = folder_of(folder, step)
    _read_state(source, step)
    _check_whole(folder, step)
    load_model(source, model)


def load_model(source: Path, model: nn.Module) -> None:
    """Weights out of a folder with a model file."""
    try:
        model.load_state_dict(read_tensors(source / MODEL_FILE))
    except RuntimeError as error:
        raise _another(source / MODEL_FILE, "model", error) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, which holds numbers and names and nothing that could be run."""
    try:
        return load_tensors(path.read_bytes())  # type: ignore[no-any-return]
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); restore it from a copy, or start anew") from None
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{path} is damaged ({reason}); restore it from a copy, or start anew") from None


def _check_whole(folder: Path, step: int) -> None:
    for problem in problems(folder, step):
        raise StoreError(f"{problem}; restore it from a copy, or go on from another commit")


def _another(path: Path, what: str, error: Exception) -> StoreError:
    reason = " ".join(str(error).split())[:300]
    return StoreError(f"{path} belongs to another {what} ({reason}); use the {what} it was made with")


def prune(folder: Path, *, kept: int = KEPT) -> None:
    """Removes all but the newest checkpoints."""
    for old in steps_there(folder)[:-kept]:
        _remove(folder_of(folder, old))


def forget_after(folder: Path, step: int) -> None:
    """Removes checkpoints that the run did not go on from."""
    for later in steps_there(folder):
        if later > step:
            _remove(folder_of(folder, later))


def _remove(path: Path) -> None:
    """The manifest first: what is half removed is none."""
    (path / MANIFEST_FILE).unlink(missing_ok=True)
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
        state = json_fields.parse_object((source / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        raise StoreError(
            f"the tables are at step {step}, but {source} is missing or damaged; restore it from a copy, or start anew"
        ) from None
    if state.get("format_version") not in READABLE_VERSIONS:
        raise StoreError(
            f"{source} has format version {json_fields.shown(state.get('format_version'))}, this release reads "
            f"{FORMAT_VERSION}; use the release that wrote it"
        )
    return state


def _flatten(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser as named tensors and, for what it keeps otherwise and for its parameter groups, JSON."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    whole = optimizer.state_dict()
    for index, entries in whole["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                numbers[f"{index}.{name}"] = pack(value, f"{index}.{name}", {})
    groups = [pack(group, f"{GROUPS}.{index}", tensors) for index, group in enumerate(whole[GROUPS])]
    return tensors, {"optimizer": numbers, GROUPS: groups}


def _unflatten(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], document: dict[str, Any]
) -> dict[str, Any]:
    parameters = [weights for group in optimizer.param_groups for weights in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **json_fields.object_of(document, "optimizer")}.items():
        if key == RANDOM_STATE or key.startswith((f"{OTHERS}.", f"{GROUPS}.")):
            continue
        index, _, name = key.partition(".")
        # torch would find out in the middle of a step, if at all.
        if isinstance(value, Tensor) and not _belongs_to(value, parameters[int(index)]):
            raise ValueError(f"{key} is of shape {tuple(value.shape)}")
        if not isinstance(value, Tensor | int | float | None):
            raise ValueError(f"{json_fields.shown(key)} is no number")
        state.setdefault(int(index), {})[name] = value
    if any(not 0 <= index < len(parameters) for index in state):
        raise ValueError("it has state of weights that the model does not have")
    return {"state": state, GROUPS: _groups(optimizer, tensors, document)}


def _belongs_to(value: Tensor, weights: Tensor) -> bool:
    """One number, or of the weights' shape with sizes of 1 where something was summed up (Adafactor)."""
    fits = all(size in (1, whole) for size, whole in zip(value.shape, weights.shape, strict=False))
    return value.numel() == 1 or (value.ndim == weights.ndim and fits)


def _groups(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], document: dict[str, Any]
) -> list[dict[str, Any]]:
    """Learning rates and the like as they were; of a checkpoint from before they were kept, as they are now."""
    current: list[dict[str, Any]] = optimizer.state_dict()[GROUPS]
    if document.get("format_version") in (1, 2):
        return current
    kept = [unpack(group, tensors) for group in json_fields.objects(document, GROUPS)]
    if len(kept) != len(current):
        raise ValueError(f"it has {len(kept)} parameter groups, the optimiser {len(current)}")
    for now, before in zip(current, kept, strict=True):
        for key, value in before.items():
            is_number = isinstance(value, int | float | Tensor) and not isinstance(value, bool)
            wanted = isinstance(now.get(key), int | float | Tensor) and not isinstance(now[key], bool)
            if wanted and not is_number:
                raise ValueError(f"{GROUPS}.{json_fields.shown(key)} is no number")
    # An option that torch has added since has the value that this release gives it.
    return [{**now, **before} for now, before in zip(current, kept, strict=True)]
