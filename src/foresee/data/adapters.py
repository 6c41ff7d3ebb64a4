"""Batches from where people keep them: Hugging Face datasets, loaders that keep their place, shards of tar files.

    Batches(bags, hugging_face(dataset, batch_size=512, ids=["user", "film"], label="clicked", seed=0), epochs=3)
    Batches(bags, Stateful(loader), name="clicks")            # goes on where it was, without reading from the start
    Batches(bags, tar_shards(paths, batch_size=512, make=make), epochs=3)

In: an object of the library, which is never imported here. Out: what `Batches` takes as its source: (dense, ids,
labels) for each step, the same for the same epoch. A PyTorch `DataLoader`, over an `IterableDataset` too, and
WebDataset's own pipelines need no adapter: they are sources already.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from foresee.errors import DataError, UsageError

Source = Callable[[int], Iterator[Any]]
"""Batches of an epoch."""


def hugging_face(
    dataset: Any, *, batch_size: int, ids: Sequence[str], dense: Sequence[str] = (), label: str | None = None,
    seed: int | None = None,
) -> Source:  # fmt: skip
    """Batches of a `datasets.Dataset` or `IterableDataset`.

    Args:
        dataset: Anything with `iter(batch_size)` that gives columns, and `shuffle(seed)` if a seed is given.
        batch_size: Samples of a batch; the rest of an epoch that does not fill one is left out.
        ids: Columns with ids, by the names of the features; a column of lists becomes bags.
        dense: Columns with numbers.
        label: The column with labels.
        seed: Shuffles every epoch otherwise; None: in the order of the dataset.

    Returns:
        A source for `Batches`.
    """

    def batches(epoch: int) -> Iterator[Any]:
        ordered = dataset if seed is None else dataset.shuffle(seed=seed + epoch)
        for columns in ordered.iter(batch_size=batch_size, drop_last_batch=True):
            yield (
                np.array([columns[name] for name in dense], np.float32).T if dense else None,
                {name: _bags(columns[name], name) for name in ids},
                None if label is None else np.asarray(columns[label], np.float32),
            )

    return batches


def _bags(column: Any, name: str) -> Any:
    """One id a sample, or lists of ids as (ids, offsets)."""
    first = column[0]
    if not hasattr(first, "__len__"):
        return np.asarray(column)
    if isinstance(first, str):
        raise DataError(f"column {name!r} holds texts such as {first[:40]!r}; map them to whole numbers first")
    sizes = np.array([len(bag) for bag in column])
    ids = np.concatenate([np.asarray(bag, np.int64) for bag in column])
    return ids, np.cumsum(sizes) - sizes


class Stateful:
    """A loader with `state_dict` and `load_state_dict`, such as torchdata's `StatefulDataLoader`.

    Batches are read ahead of training, so the loader's own place is always ahead; here its state after every batch is
    kept until that is trained. Save it with the commit of a step, and a loop that goes on asks the loader to go there,
    instead of reading everything before: `checkpoint.save(..., others={"loader": source.after(run.steps_done)})`, and
    `checkpoint.load(..., others={"loader": source})`. Give `Batches` a name, by which it knows these batches again.

    Args:
        loader: The loader; iterated once for every epoch.
        epochs: How often; `Batches` reads this source once.
    """

    def __init__(self, loader: Any, *, epochs: int = 1) -> None:
        if not all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict")):
            raise UsageError(f"{type(loader).__name__} keeps no place; give a loader with state_dict, or no adapter")
        self._loader, self._epochs = loader, epochs
        self._states: dict[int, dict[str, Any]] = {}
        """After so many steps; those that a commit may still ask for."""
        self._from: dict[str, Any] | None = None
        self._read = 0
        """Batches read so far."""

    def __iter__(self) -> Iterator[Any]:
        return self.from_step(0)

    def __len__(self) -> int:
        return len(self._loader) * self._epochs

    def from_step(self, step: int) -> Iterator[Any]:
        """The batches from a step on.

        Args:
            step: 0, or that of the state that was loaded.
        """
        return chain.from_iterable(self.epochs_from(step))

    def epochs_from(self, step: int) -> Iterator[Iterator[Any]]:
        """The batches of each epoch from a step on; an epoch is opened when its first batch is asked for.

        Args:
            step: 0, or that of the state that was loaded.
        """
        epoch = 0
        if step:
            if self._from is None or self._from["step"] != step:
                raise UsageError(
                    f"the tables are at step {step}, and this loader knows no state for it; load the one that was "
                    "saved with that commit"
                )
            epoch = self._from["epoch"]
            self._loader.load_state_dict(self._from["state"])
        self._read = step
        return (self._epoch(number) for number in range(epoch, self._epochs))

    def _epoch(self, number: int) -> Iterator[Any]:
        for item in self._loader:
            self._read += 1
            self._states[self._read] = {"step": self._read, "epoch": number, "state": self._loader.state_dict()}
            yield item

    def after(self, step: int) -> Place:
        """The loader's state after so many steps, to be saved; those of steps before are forgotten.

        Args:
            step: `run.steps_done`.
        """
        if step not in self._states:
            raise UsageError(f"there is no state after step {step}; ask for the step that was trained last")
        for old in [it for it in self._states if it < step]:
            del self._states[old]
        return Place(self._states[step])

    def state_dict(self) -> dict[str, Any]:
        """The state that was loaded; that of a step is `after(step)`."""
        return dict(self._from or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where a state was saved.

        Args:
            state: Of `after(step)`.
        """
        self._from = dict(state)


class Place:
    """A state to save: what `checkpoint.save` takes in `others`."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes another.

        Args:
            state: Of the same kind.
        """
        self._state = dict(state)


def tar_shards(
    shards: Iterable[str | Path],
    *,
    batch_size: int,
    make: Callable[[list[dict[str, Any]]], Any],
    seed: int | None = None,
) -> Source:
    """Batches of samples in tar files, as WebDataset has them: files of one name and several endings are one sample.

    `.json` is parsed, `.npy` becomes an array, `.cls` a whole number, `.txt` a text; others stay bytes.

    Args:
        shards: The tar files.
        batch_size: Samples of a batch; the rest of an epoch that does not fill one is left out.
        make: The item of some samples: each {"__key__": name, ending: content}.
        seed: Shards come in another order in every epoch; None: as they are given.

    Returns:
        A source for `Batches`.
    """
    files = [Path(it) for it in shards]

    def batches(epoch: int) -> Iterator[Any]:
        order = list(files)
        if seed is not None:
            random.Random(f"{seed} {epoch}").shuffle(order)
        waiting: list[dict[str, Any]] = []
        for sample in (sample for file in order for sample in _samples(file)):
            waiting.append(sample)
            if len(waiting) == batch_size:
                yield make(waiting)
                waiting = []

    return batches


def _samples(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with tarfile.open(path) as archive:
            members = ((*_split(member.name), member) for member in archive if member.isfile())
            for key, group in groupby(members, key=lambda it: it[0]):
                sample: dict[str, Any] = {"__key__": key}
                for _, ending, member in group:
                    content = archive.extractfile(member)
                    assert content is not None, "it is a file"
                    if ending in sample:
                        raise DataError(f"{path}: {member.name} stands twice in one sample; write the shard again")
                    sample[ending] = _decoded(content.read(), ending, f"{path}: {member.name}")
                yield sample
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read ({error}); give tar files") from None


def _split(name: str) -> tuple[str, str]:
    folder, _, file = name.rpartition("/")
    key, _, ending = file.partition(".")
    return f"{folder}/{key}" if folder else key, ending


def _decoded(content: bytes, ending: str, where: str) -> Any:
    try:
        if ending.endswith("json"):
            return json.loads(content)
        if ending.endswith("npy"):
            return np.load(io.BytesIO(content), allow_pickle=False)
        if ending.endswith("cls"):
            return int(content)
        return content.decode() if ending.endswith("txt") else content
    except ValueError as error:
        raise DataError(f"{where} cannot be read ({error}); write it again") from None
