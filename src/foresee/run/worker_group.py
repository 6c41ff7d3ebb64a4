"""`foresee.Trainers`: several trainers in a person's own loop, as torchrun starts them.

    with foresee.Trainers("tables", bags, dim=16, optimizer=foresee.Adagrad(lr=0.05)) as trainers:
        model = trainers.share(model)
        for step in trainers.steps(batches, cache_rows=20_000):
            loss = bce(model(step.dense, step.embeddings), step.labels) * trainers.weight(step)
            ...
            step.update()

In: tables, and batches that every trainer can read alike. Out: steps of this trainer's share of every batch. Trainer 0
keeps the rows in its folder (or embedding servers do, `servers=`) and plans for all (or a process of its own does,
`planner=`: see `Trainers.plan`). All trainers call `share`, `steps`, `flush` and `commit` at the same points.
After an error a trainer ends its process at once, as its threads may wait for peers; torchrun then ends the others.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from foresee.data.batch import Pooling
from foresee.data.batches import Batches
from foresee.data.click_log import ClickLog
from foresee.engine.exchange.dense import StepSync, Sums, dense_group, shared
from foresee.engine.exchange.mesh import TorchMesh, collective
from foresee.engine.exchange.peers import Exchange, LocalExchange, PeerExchange
from foresee.engine.header import groups_for
from foresee.engine.history import Trained, written_down
from foresee.engine.optimizers import SGD, Optimizer
from foresee.engine.planner_service.client import Beginning, PlannerClient
from foresee.engine.planner_service.server import PlannerServer
from foresee.engine.run import Run
from foresee.engine.step import Step
from foresee.engine.tables import Dims, HasTables, KeepsHistory, Tables, layout_for
from foresee.errors import UsageError
from foresee.plan.record import Header
from foresee.run.steps import SourceStream, enter, header_for_trainers, stream_of
from foresee.run.stop import ending_at_once
from foresee.store.layout import Layout, write_layout
from foresee.store.registry import DISK, MEMORY
from foresee.store.remote import protocol
from foresee.store.remote.opening import about, await_servers, open_run
from foresee.store.remote.store import remote_tables
from foresee.store.rpc.endpoint import Endpoint, ask_once
from foresee.store.rpc.security import Security, read_token
from foresee.store.server.service import EmbeddingServer
from foresee.store.server.shard import Shard, Share, open_shards


class Trainers:
    """All trainers of a run, as one of them sees them. Use it as a context manager, in every process alike.

    Args:
        path: The folder of the tables, on trainer 0's machine; None: in memory, gone when the processes end.
        log: A `ClickLog` or `EmbeddingBags`, whose tables these are.
        dim: Values of a row: a number, or one for each table by its name.
        optimizer: What updates rows.
        seed: Of the rows' initial values.
        init_scale: Initial values are between minus this and this.
        servers: Addresses of embedding servers (`foresee serve`) that have the rows instead of trainer 0.
        planner: Address of a process that plans (`Trainers.plan`), instead of trainer 0.
        tls_root_certificate: Who signed the certificates of servers and planner on other machines.
        token_file: A file of mode 600 with their token; left out, it is in FORESEE_TOKEN.

    Raises:
        UsageError: This process was not started by torchrun, or trainers on several machines have no servers.
    """

    def __init__(
        self,
        path: str | Path | None,
        log: HasTables,
        *,
        dim: Dims,
        optimizer: Optimizer,
        seed: int = 0,
        init_scale: float = 0.05,
        servers: Sequence[str] = (),
        planner: str | None = None,
        tls_root_certificate: bytes | None = None,
        token_file: str | Path | None = None,
    ) -> None:
        self._layout, self._optimizer = layout_for(log, dim, optimizer, seed, init_scale), optimizer
        self._joined = join(own_machine=not servers or planner is None)
        self.rank, self.num_trainers = dist.get_rank(), dist.get_world_size()
        self._token = read_token(None if token_file is None else Path(token_file))
        self._certificate = tls_root_certificate
        self._planner, self._sums = planner, Sums()
        self._shards: list[Shard] = []
        self._server: EmbeddingServer | None = None
        self._servers = tuple(servers) or self._serve(path)
        self._history: bytes | None = None
        self._run: Run | None = None
        self._source: SourceStream | None = None
        self._sync: StepSync | None = None
        self.tables: Tables
        """The rows: for `bags.look_up` and the like, after a loop, or inside one after `flush`."""
        self._begin()

    def __enter__(self) -> Trainers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.num_trainers > 1:
            with ending_at_once():
                raise error
        self.close()

    @property
    def steps_done(self) -> int:
        """Steps of the tables that are trained."""
        return self.tables.store.committed_step if self._run is None else self._run.steps_done

    def share(self, model: nn.Module) -> nn.Module:
        """The model as all trainers have it: they begin with the weights of trainer 0, and gradients are averaged.

        Args:
            model: The same on every trainer.

        Returns:
            A `DistributedDataParallel`; the model itself where there is one trainer.
        """
        if self.num_trainers == 1:
            return model
        device = next(model.parameters()).device
        return shared(model, self._sums, dense_group(device))

    def weight(self, step: Step) -> float:
        """What to multiply the mean loss of this trainer's samples with, so that all count alike.

        Args:
            step: The step.

        Returns:
            Exactly 1 where every trainer has the same number of samples.
        """
        return self.num_trainers * len(step.labels) / step.batch_size

    def steps(
        self,
        log: ClickLog | Batches,
        *,
        cache_rows: int,
        batch_size: int | None = None,
        epochs: int = 1,
        seed: int = 0,
        planner: str = "lookahead",
        placement: str = "location_aware",
        window_steps: int | None = None,
        window_bytes: int | None = None,
        device: str | torch.device = "cpu",
        num_threads: int = 1,
        first_step: int | None = None,
    ) -> Iterator[Step]:
        """This trainer's share of every batch, from the step after the last commit; commits at the end.

        Leave the loop at the same step everywhere; after a `break`, what `commit` has not kept is trained again.

        Args:
            log: What to train on: the same batches on every trainer, which reads all of them and trains its share.
            cache_rows: Slots of each trainer's cache; at least the distinct rows of the largest batch.
            batch_size: Samples of a step, of a log; batches of one's own have theirs. Of all trainers together.
            epochs: Passes over a log.
            seed: Of the order in which a log's samples come.
            planner: A name that `foresee.plan.trainable()` lists.
            placement: Which samples go where: location_aware, herald, or contiguous.
            window_steps: A fixed lookahead, instead of all that the cache can use.
            window_bytes: What the batches that the planner looks at may take.
            device: Where the model computes and the cache is.
            num_threads: Threads of the kernels that gather and update rows.
            first_step: The batch to begin with, such as 0 to train a new day on the tables of the days before.

        Yields:
            Steps; `step.samples` says which samples of the batch are this trainer's, `step.item` is the whole batch.

        Raises:
            UsageError: Nobody knows how many steps there are.
            PlanError: Trainers read different batches.
        """
        if self._run is not None:
            self._begin()
        where: dict[str, Any] = {"batch_size": batch_size, "epochs": epochs, "seed": seed}
        source, pooling = self._enter(log, first_step, **where)
        header = header_for_trainers(
            source, log, num_trainers=self.num_trainers, planner=planner, placement=placement, cache_rows=cache_rows,
            window_steps=window_steps, window_bytes=window_bytes, first_step=self.tables.store.committed_step,
            groups=groups_for(self._layout, source, read_once=isinstance(log, Batches)),
        )  # fmt: skip
        with ExitStack() as at_end:
            # Every trainer reads the same order, so it follows from the epoch: reading continues past an epoch's end.
            source.pull(header, reads_on=True, plans=self.rank == 0 and self._planner is None)
            planning = replace(self._enter(log, first_step, **where)[0], feed=source.feed)
            source.plans = False
            client = self._plan(planning, header, at_end)
            at_end.callback(source.feed.close)  # before the planner is stopped, which may wait for a batch
            exchange: Exchange = LocalExchange()
            if self.num_trainers > 1:
                exchange = at_end.enter_context(closing(PeerExchange(self._layout, TorchMesh(), dense=self._sums)))
            self._source, self._run = source, Run(
                source, self.tables, header, pooling, records=client.records(), device=torch.device(device),
                exchange=exchange, num_threads=num_threads, commit_at_end=False,
            )  # fmt: skip
            yield from self._until_the_end(self._run)

    def _until_the_end(self, run: Run) -> Iterator[Step]:
        end = run.header.first_step + run.header.num_steps
        with closing(iter(run)) as steps:
            for step in steps:
                yield step
                if run.steps_done == end:
                    self.commit()

    def flush(self) -> None:
        """Brings the tables up to date with the caches of all trainers, for whoever reads them inside a loop."""
        if self._run is None:
            raise UsageError("there is no loop yet whose rows could be written; call this inside or after one")
        self._run.flush()
        dist.barrier()

    def commit(self) -> None:
        """Makes the state after the last step durable, for all trainers; save the dense half before, on trainer 0."""
        self.flush()
        assert self._run is not None
        assert self._source is not None
        step, store = self._run.steps_done, self.tables.store
        if self.rank == 0 and step > store.committed_step:
            self._write_down(self._source.trained(step), store.committed_step)
            store.commit(step)
        dist.barrier()

    def agree_to_stop(self, wish: bool) -> bool:
        """Whether any trainer wishes to stop: the same answer for all, so that they leave the loop at the same step.

        Args:
            wish: Of this trainer, such as `asked` of a `foresee.Stop`. All call this after every `step.update()`.

        Returns:
            What all have wished for after the step before; nobody waits for it.
        """
        if self.num_trainers == 1:
            return wish
        if self._sync is None:
            self._sync = StepSync()
        return self._sync.agree(stop=wish, commit=False, loss=0.0).stop

    def close(self) -> None:
        """Ends connections and servers; every trainer does so at the same point of its program."""
        if self._sync is not None:
            self._sync.close()
        self.tables.close()
        dist.barrier()
        if self._server is not None:
            self._server.stop(END_SECONDS)
            shut_down(self._server)
        if self._joined:
            dist.destroy_process_group()

    @staticmethod
    def write_layout(
        file: str | Path, log: HasTables, *, dim: Dims, optimizer: Optimizer, seed: int = 0, init_scale: float = 0.05
    ) -> None:
        """Describes the tables of such a loop for its servers: `foresee serve --layout FILE`.

        Args:
            file: Where to write it.
            log: As in `Trainers`, as are all that follow.
            dim: Values of a row.
            optimizer: What updates rows.
            seed: Of the rows' initial values.
            init_scale: Of the same.

        Raises:
            ConfigError: The file is there already, and describes other tables.
        """
        write_layout(Path(file), layout_for(log, dim, optimizer, seed, init_scale))

    @staticmethod
    def plan(
        log: ClickLog | Batches,
        *,
        num_trainers: int,
        cache_rows: int,
        port: int,
        batch_size: int | None = None,
        epochs: int = 1,
        seed: int = 0,
        planner: str = "lookahead",
        placement: str = "location_aware",
        window_steps: int | None = None,
        window_bytes: int | None = None,
        dim: Dims = 1,
        host: str = "127.0.0.1",
        security: Security | None = None,
    ) -> None:
        """Plans for trainers elsewhere until this process is ended: what `planner=` of `Trainers` gives the address of.

        Args:
            log: What they train on, with the options that they give `steps`.
            num_trainers: How many they are.
            cache_rows: Slots of each trainer's cache.
            port: Where to listen.
            batch_size: As in `steps`.
            epochs: As in `steps`.
            seed: As in `steps`.
            planner: As in `steps`.
            placement: As in `steps`.
            window_steps: As in `steps`.
            window_bytes: As in `steps`.
            dim: What they give `Trainers`, where their tables have several widths.
            host: Where to listen; beyond this machine only with TLS and a token.
            security: Token and certificates, as `foresee.store.rpc.security.read_security` reads them.
        """
        stream = enter(stream_of(log, batch_size=batch_size, epochs=epochs, seed=seed)[0], None, 0, None)
        tables: HasTables = log.bags if isinstance(log, Batches) else log
        layout = layout_for(tables, dim, SGD(lr=0.0), 0, 0.0)  # a plan knows which rows have one width, and no more
        groups = groups_for(layout, stream, read_once=isinstance(log, Batches))

        def header(beginning: Beginning) -> Header:
            return header_for_trainers(
                stream, log, num_trainers=num_trainers, planner=planner, placement=placement, cache_rows=cache_rows,
                window_steps=window_steps, window_bytes=window_bytes, first_step=beginning.first_step, groups=groups,
            )  # fmt: skip

        header(Beginning(0))  # what is wrong is said now, not to the first trainer
        server = PlannerServer(stream, header, host=host, port=port, security=security)
        print(f"planning {stream.num_steps:,} steps for {num_trainers} trainers on {server.address}", flush=True)
        server.serve()

    def _serve(self, path: str | Path | None) -> tuple[str, ...]:
        """Trainer 0 keeps the rows, and the others are told where."""
        address = ""
        if self.rank == 0:
            kind, folder = (MEMORY, None) if path is None else (DISK, Path(path))
            self._shards = open_shards(kind, folder, self._layout, Share())
            self._server = EmbeddingServer(*self._shards, security=Security(token=self._token))
            address = self._server.address
        return (told_to_all(address),)

    def _begin(self) -> None:
        """All trainers begin at the last commit, under a new name."""
        if self._run is not None:
            self.tables.close()
        name = told_to_all(uuid.uuid4().hex)
        if self.rank == 0:
            endpoints = [Endpoint.parse(it, self._token, self._certificate) for it in self._servers]
            open_servers(endpoints, self._layout, name, self.num_trainers)
        dist.barrier()
        store = remote_tables(
            self._servers, self._layout, worker=self.rank, num_workers=self.num_trainers, run=name, opened=True,
            token=self._token, tls_root_certificate=self._certificate,
        )  # fmt: skip
        self.tables, self._name, self._run = Tables(store, self._optimizer), name, None
        known = self._history if (keeper := self._keeper()) is None else keeper.history
        self._history = told_to_all((known or b"").decode()).encode() or None

    def _enter(self, log: ClickLog | Batches, first_step: int | None, **where: Any) -> tuple[SourceStream, Pooling]:
        if isinstance(log, Batches):
            log.bags.check_tables(self.tables)
        stream, pooling = stream_of(log, **where)
        return enter(stream, first_step, self.tables.store.committed_step, self._history), pooling

    def _plan(self, stream: SourceStream, header: Header, at_end: ExitStack) -> PlannerClient:
        """A connection to whoever plans: trainer 0 beside its training, if nobody else does."""
        address = self._planner
        if address is None:
            address = ""
            if self.rank == 0:
                server = PlannerServer(stream, lambda _: header, security=Security(token=self._token))
                at_end.callback(shut_down, server)
                at_end.callback(server.stop)
                address = server.address
            address = told_to_all(address)
        endpoint = Endpoint.parse(address, self._token, self._certificate)
        client = PlannerClient(endpoint, run=self._name, worker=self.rank, header=header)
        client.open()
        at_end.callback(client.close)
        return client

    def _write_down(self, trained: Trained, committed_step: int) -> None:
        history = written_down(self._history, trained, committed_step)
        if history is not None:
            self._history = history
            if (keeper := self._keeper()) is not None:
                keeper.history = history

    def _keeper(self) -> KeepsHistory | None:
        """Trainer 0's own store, if it keeps what the tables were trained on."""
        inside: object = self._shards[0].inner if self._shards else None
        return inside if isinstance(inside, KeepsHistory) else None


PEER_SECONDS = 1800.0
"""How long a trainer waits for another: as long as one may take to evaluate for all."""

OPEN_SECONDS = 60.0

END_SECONDS = 1.0


def join(*, own_machine: bool) -> bool:
    """Meets the other trainers, if the program has not done so by itself; alone without torchrun."""
    num_trainers = int(os.environ.get("WORLD_SIZE", "1"))
    if own_machine and int(os.environ.get("LOCAL_WORLD_SIZE", num_trainers)) < num_trainers:
        raise UsageError(
            "trainers on several machines need servers and a planner that all of them can reach; start `foresee serve` "
            "and `Trainers.plan`, and give their addresses as servers= and planner="
        )
    if dist.is_initialized():
        if dist.get_backend() != "gloo":
            raise UsageError("rows travel over gloo; say init_process_group('gloo'), or leave it to Trainers")
        return False
    patience = timedelta(seconds=PEER_SECONDS)
    with collective():
        if "RANK" in os.environ:
            dist.init_process_group("gloo", timeout=patience)
        else:
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1, timeout=patience)
    return True


def told_to_all(text: str) -> str:
    """What trainer 0 says."""
    content = text.encode()
    length = torch.tensor([len(content)])
    dist.broadcast(length, 0)
    letters = torch.zeros(int(length.item()), dtype=torch.uint8)
    if dist.get_rank() == 0 and content:
        letters = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(letters, 0)
    return bytes(letters.tolist()).decode()


def open_servers(endpoints: Sequence[Endpoint], layout: Layout, name: str, num_trainers: int) -> None:
    """Brings all servers to their last commit, which all have the rows of; the dense half was saved before it."""
    await_servers(endpoints, print)
    deadline = time.monotonic() + OPEN_SECONDS
    widths = [group.width if layout.widths else None for group in layout.groups]
    asked = [about(endpoint, width) for endpoint in endpoints for width in widths]
    parts = [protocol.part_from_dict(ask_once(it, protocol.DESCRIBE, {}, deadline)) for it in asked]
    open_run(
        endpoints, layout, run=name, num_workers=num_trainers, manifests={part.committed for part in parts},
        started=time.time_ns() // 1_000_000,
    )  # fmt: skip


def shut_down(server: Any) -> None:
    """Connections are over by now; one that hangs must not hold up the end."""
    thread = threading.Thread(target=server.shutdown, daemon=True)
    thread.start()
    thread.join(END_SECONDS)
