"""What servers, planners and clients take off a wire, handed hostile bytes without a wire: decoders, called directly.

Each target is a function of a generator: it makes a message, breaks it, decodes it as the server does, and acts on what
passed as the server would. It returns normally or raises a ForeseeError; anything else is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hostile_wire as wire
import numpy as np
import pyarrow as pa
from hostile_mutations import VALUES, Rng, mutate, mutate_json

from foresee.data.batch import Batch
from foresee.engine.header import make_header
from foresee.engine.planned_step import planned_records
from foresee.engine.planner_service import client as planner_protocol
from foresee.errors import StoreError
from foresee.plan.format.columns import batch_of, record_of
from foresee.plan.record import Header
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table, layout_to_dict
from foresee.store.remote import protocol
from foresee.store.remote.opening import check_agreement
from foresee.store.rpc import failures
from foresee.store.server import requests
from foresee.store.server.applied import Applied
from foresee.store.server.rows import Guard, RowService
from foresee.store.server.shard import Share, memory_shard
from foresee.store.server.status import Counters
from foresee.testing.traces import MemoryStream

Target = Callable[[Rng], None]
LAYOUT = Layout(tables=(Table("a", 60), Table("b", 41)), width=3, state_width=1, optimizer="x")


class Server:
    """One shard as its service acts on requests, without Flight."""

    def __init__(self) -> None:
        self.applied = Applied(0)
        self.applied.join("run", 0, 2, 0)
        self.rows = RowService(memory_shard(LAYOUT, Share(0, 2)), self.applied, Counters())

    def opening(self, rng: Rng) -> None:
        good = wire.as_json({"kind": "guarded", "incarnation": "i", "run": "run", "worker": 1})
        opening = requests.parse_opening(mutate_json(rng, good))
        if opening.run is not None:
            self.applied.check_run(opening.run)
            self.applied.check_worker(opening.worker or 0)

    def question(self, rng: Rng) -> None:
        good = {"run": "run", "worker": 1, "num_workers": 2, "first_step": None, "step": 3}
        content = requests.parse_content(mutate_json(rng, wire.as_json(good)))
        if rng.random() < 0.5:
            joining = requests.parse_joining(content)
            # In place of the server's own, which the other targets need as it is.
            Applied(0).join(joining.run, joining.worker, joining.num_workers, joining.first_step)
        else:
            requests.parse_commit(content)

    def read(self, rng: Rng) -> None:
        kind = protocol.GUARDED if rng.random() < 0.5 else protocol.READ
        schema = protocol.request_schema(kind, LAYOUT)
        ids = hostile_ids(rng)
        versions = rng.integers(-1, 2, len(ids)).astype(np.int32) if kind == protocol.GUARDED else None
        batch = _over_the_wire(rng, protocol.ids_batch(schema, ids, versions))
        header = requests.parse_content(mutate_json(rng, b'{"not_before": -1, "park_seconds": 0.0}'))
        rows, expected = requests.ids_of(batch, kind, LAYOUT)
        out = Rows.empty(len(rows), LAYOUT)
        if expected is None:
            self.rows.read(rows, out)
            return
        not_before, _ = requests.parse_guard(header)
        guard = Guard(expected=expected, not_before=not_before, deadline=0.0)  # whatever is not there now never will be
        self.rows.read_guarded(rows, guard, out)

    def write(self, rng: Rng) -> None:
        layout = LAYOUT if rng.random() < 0.9 else Layout(tables=LAYOUT.tables, width=2, state_width=0, optimizer="x")
        ids = hostile_ids(rng)
        source = Rows(
            rng.standard_normal((len(ids), layout.width)).astype(np.float32),
            np.full((len(ids), layout.state_width), np.nan, np.float32),
            rng.choice([0, 1, -5, 2**31 - 1], len(ids)).astype(np.int32),
        )
        good = protocol.write_batch(protocol.request_schema(protocol.WRITE, layout), ids, source)
        batch = _over_the_wire(rng, good)
        last, step = requests.parse_write_header(requests.parse_content(mutate_json(rng, b'{"last": true, "step": 4}')))
        rows, own, _ = requests.rows_of(batch, LAYOUT)
        self.rows.write(rows, own)
        if last and step is not None:
            Applied(0).raise_to("other", 0, step)


def hostile_ids(rng: Rng) -> Any:
    """Mostly rows of shard 0; sometimes one that is nobody's, or one twice."""
    ids = 2 * rng.permutation(50)[: int(rng.integers(0, 40))].astype(np.int64)
    if len(ids) and rng.random() < 0.5:
        ids[int(rng.integers(len(ids)))] = rng.choice([-1, 1, 101, 102, 2**31, 2**62, -(2**63), 2**63 - 1, ids[0]])
    return ids


def _over_the_wire(rng: Rng, batch: Any) -> Any:
    """The batch after Arrow's own reader, with damage on the way."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    content = content if rng.random() < 0.4 else mutate(rng, content)
    try:
        return pa.ipc.open_stream(content).read_next_batch()
    except (StopIteration, pa.ArrowException, OSError, MemoryError):
        raise StoreError("a message came that is no Arrow data") from None


def planner_question(rng: Rng) -> None:
    good = {"run": "run", "first_step": 0, "worker": 1, "step": 5}
    body = mutate_json(rng, wire.as_json(good))
    if rng.random() < 0.5:
        planner_protocol.parse_open(body)
    else:
        planner_protocol.parse_get(body)


def _plan() -> tuple[Header, list[Any]]:
    rng = np.random.default_rng(1)
    batches = [
        Batch(it, np.zeros((4, 1), np.float32), np.zeros(4, np.float32), rng.integers(0, 30, 12), None, 3)
        for it in range(6)
    ]
    stream = MemoryStream(batches, num_rows=30)
    header = make_header(stream, planner="lookahead", cache_rows=20)
    return header, [batch_of(record) for record in planned_records(stream, header)]


class Records:
    """A plan on its way from planner to worker."""

    def __init__(self) -> None:
        self.header, self.batches = _plan()
        self.good = [batch.serialize().to_pybytes() for batch in self.batches]

    def record(self, rng: Rng) -> None:
        step = int(rng.integers(len(self.batches)))
        try:
            batch = _over_the_wire(rng, self.batches[step])
            record = record_of(batch, self.header, step, 0)
        except (pa.ArrowException, KeyError) as error:  # as `plan_file` and the client take them
            raise StoreError("no record") from error
        assert batch_of(record).serialize().to_pybytes() == self.good[step], "a damaged record passed its checksum"


def description(rng: Rng) -> None:
    """What a client makes of a server it should not trust."""
    good = {
        "protocol": protocol.PROTOCOL_VERSION, "incarnation": "i", "layout": layout_to_dict(LAYOUT),
        "shard": 0, "num_shards": 1, "committed_step": 4, "rows_per_request_max": 1000,
    }  # fmt: skip
    try:
        content = requests.parse_content(mutate_json(rng, wire.as_json(good)))
    except StoreError:
        return
    check_agreement({"grpc://127.0.0.1:1": content}, LAYOUT if rng.random() < 0.5 else None)


def failure(rng: Rng) -> None:
    """An error that a server reports."""
    good = failures.failure_header(StoreError("it is full; free some space"))
    good["error"] = VALUES[int(rng.integers(len(VALUES)))] if rng.random() < 0.7 else good["error"]
    try:
        failures.raise_failure(good, "grpc://127.0.0.1:1")
    except failures.BusyError as error:
        raise StoreError(str(error)) from error


def message_targets() -> dict[str, Target]:
    server, records = Server(), Records()
    return {
        "opening": server.opening, "question": server.question, "read": server.read, "write": server.write,
        "planner question": planner_question, "record": records.record, "description": description, "failure": failure,
    }  # fmt: skip
