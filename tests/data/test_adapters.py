"""Batches from Hugging Face datasets, loaders that keep their place, and tar shards, where those are installed."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import foresee
from foresee import checkpoint
from foresee.data.adapters import Stateful, hugging_face, tar_shards
from foresee.errors import DataError, UsageError

SAMPLES, BATCH_SIZE, FILMS = 40, 8, 30


def bags() -> foresee.EmbeddingBags:
    return foresee.EmbeddingBags(
        [
            foresee.EmbeddingBagConfig(name="users", num_embeddings=20, embedding_dim=4, feature_names=["user"]),
            foresee.EmbeddingBagConfig(name="films", num_embeddings=FILMS, embedding_dim=4, feature_names=["seen"]),
        ]
    )


def samples() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "user": int(rng.integers(20)),
            "seen": rng.integers(0, FILMS, rng.integers(0, 4)).tolist(),
            "age": float(rng.random()),
            "clicked": int(rng.integers(2)),
        }
        for _ in range(SAMPLES)
    ]


def item_of(chosen: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    sizes = np.array([len(it["seen"]) for it in chosen])
    seen = np.concatenate([np.array(it["seen"], np.int64) for it in chosen])
    ids = {"user": np.array([it["user"] for it in chosen]), "seen": (seen, np.cumsum(sizes) - sizes)}
    labels = np.array([it["clicked"] for it in chosen], np.float32)
    return np.array([[it["age"]] for it in chosen], np.float32), ids, labels


def plain(epochs: int) -> list[Any]:
    chosen = samples()
    batches = [item_of(chosen[start : start + BATCH_SIZE]) for start in range(0, SAMPLES, BATCH_SIZE)]
    return batches * epochs


def trained(source: foresee.Batches, tables: foresee.Tables | None = None, stop_after: int | None = None) -> Any:
    tables = tables or foresee.Tables.in_memory(source.bags, dim=4, optimizer=foresee.SGD(lr=0.1))
    for step in foresee.steps(source, tables, cache_rows=50):
        error = step.embeddings.sum(dim=(1, 2)) - step.labels - step.dense.sum(dim=1)
        (error**2).sum().backward()  # type: ignore[no-untyped-call]
        step.update()
        if step.index + 1 == stop_after:
            break
    return tables.values("films").tobytes() + tables.values("users").tobytes()


def expected(epochs: int = 1) -> Any:
    return trained(foresee.Batches(bags(), plain(epochs)))


def test_a_hugging_face_dataset() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets are not installed")
    dataset = datasets.Dataset.from_list(samples())
    columns: dict[str, Any] = {"ids": ["user", "seen"], "dense": ["age"], "label": "clicked"}
    source = hugging_face(dataset, batch_size=BATCH_SIZE, **columns)
    assert trained(foresee.Batches(bags(), source)) == expected()
    streamed = hugging_face(dataset.to_iterable_dataset(), batch_size=BATCH_SIZE, **columns)
    assert trained(foresee.Batches(bags(), streamed)) == expected()
    shuffled = hugging_face(dataset, batch_size=BATCH_SIZE, seed=3, **columns)
    first, again, other = ([it[2].tolist() for it in shuffled(epoch)] for epoch in (0, 0, 1))
    assert first == again != other
    texts = hugging_face(datasets.Dataset.from_list([{"user": "anna"}]), batch_size=1, ids=["user"])
    with pytest.raises(DataError, match="'user' holds texts such as 'anna'"):
        list(texts(0))


class Columns(IterableDataset[Any]):
    """Samples one after another, as people stream them."""

    def __iter__(self) -> Iterator[Any]:
        yield from samples()


def test_an_iterable_dataset_needs_no_adapter() -> None:
    loader: DataLoader[Any] = DataLoader(Columns(), batch_size=BATCH_SIZE, collate_fn=item_of)
    assert trained(foresee.Batches(bags(), loader, epochs=2)) == expected(epochs=2)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
@pytest.mark.parametrize("stop_after", [3, 5, 7])
def test_a_loader_that_keeps_its_place_is_not_read_from_the_start(stop_after: int, tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    read: list[int] = []

    class Counted(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return samples()[index]

    def source() -> Stateful:
        return Stateful(stateful.StatefulDataLoader(Counted(), batch_size=BATCH_SIZE, collate_fn=item_of), epochs=2)

    first = source()
    with foresee.Tables.on_disk(tmp_path / "tables", bags(), dim=4, optimizer=foresee.SGD(lr=0.1)) as tables:
        trained(foresee.Batches(bags(), first, name="films"), tables, stop_after)
        nothing = torch.nn.Linear(1, 1)
        adam = torch.optim.Adam(nothing.parameters())
        checkpoint.save(tmp_path / "dense", stop_after, nothing, adam, others={"loader": first.after(stop_after)})

        onwards = source()
        with pytest.raises(UsageError, match=f"the tables are at step {stop_after}, and this loader knows no state"):
            trained(foresee.Batches(bags(), onwards, name="films"), tables)
        checkpoint.load(tmp_path / "dense", stop_after, nothing, adam, others={"loader": onwards})
        read.clear()
        assert trained(foresee.Batches(bags(), onwards, name="films"), tables) == expected(epochs=2)
        assert len(read) <= 2 * SAMPLES - (stop_after - 1) * BATCH_SIZE, "what was trained is not read again"
    with pytest.raises(UsageError, match="list keeps no place"):
        Stateful([])


def write_shards(folder: Path) -> list[Path]:
    files, chosen = [], samples()
    for shard in range(2):
        files.append(folder / f"films-{shard}.tar")
        with tarfile.open(files[-1], "w") as archive:
            for number in range(shard * SAMPLES // 2, (shard + 1) * SAMPLES // 2):
                sample = chosen[number]
                array = io.BytesIO()
                np.save(array, np.array(sample["seen"], np.int64))
                parts = {
                    "json": json.dumps({"user": sample["user"], "age": sample["age"]}).encode(),
                    "seen.npy": array.getvalue(),
                    "cls": str(sample["clicked"]).encode(),
                }
                for ending, content in parts.items():
                    member = tarfile.TarInfo(f"{number:05d}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return files


def from_parts(chosen: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    return item_of([{**it["json"], "seen": it["seen.npy"].tolist(), "clicked": it["cls"]} for it in chosen])


def test_tar_shards(tmp_path: Path) -> None:
    files = write_shards(tmp_path)
    source = tar_shards(files, batch_size=BATCH_SIZE, make=from_parts)
    assert trained(foresee.Batches(bags(), source)) == expected()
    shuffled = tar_shards(files, batch_size=BATCH_SIZE, make=lambda chosen: chosen[0]["__key__"], seed=1)
    assert list(shuffled(2)) == list(shuffled(2))
    assert len({tuple(shuffled(epoch)) for epoch in range(8)}) == 2
    (tmp_path / "broken.tar").write_bytes(b"no tar")
    with pytest.raises(DataError, match=r"broken\.tar cannot be read"):
        list(tar_shards([tmp_path / "broken.tar"], batch_size=1, make=list)(0))
    with tarfile.open(tmp_path / "twice.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("7.txt"))
    with pytest.raises(DataError, match=r"twice\.tar: 7\.txt stands twice in one sample; write the shard again"):
        list(tar_shards([tmp_path / "twice.tar"], batch_size=1, make=list)(0))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # it leaves closing its files to the collector
def test_webdatasets_own_pipeline_needs_no_adapter(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    files = [str(it) for it in write_shards(tmp_path)]
    pipeline = webdataset.WebDataset(files, shardshuffle=False, empty_check=False).decode()
    loader: DataLoader[Any] = DataLoader(pipeline, batch_size=BATCH_SIZE, collate_fn=from_parts)
    assert trained(foresee.Batches(bags(), loader)) == expected()
