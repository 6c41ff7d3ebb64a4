"""A Ray cluster as an engine: Ray reserves places for the parts and notices lost nodes, a host on each node forks them.

In: a configuration and the address of a cluster, or none: then a cluster of this machine alone is started, and ended.
Out: an `Engine`. All places of a run are one placement group, so that Ray moves those of a lost node to others. Where a
part runs follows from where its place is; on each such node an actor (`ray_host.Host`) starts and watches parts. One
thread here asks all hosts again and again, starts parts whose place has a host, and appends what parts print to files.

A part that is gone with its node, its host or the link to it has ended with `LOST_CODE`; the supervisor decides what
follows. Rows and plans travel over Flight with TLS and a token that are made here, workers meet at a store kept here.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from foresee.errors import ConfigError, InputError
from foresee.io import logs
from foresee.io.optional import OptionalModule, need
from foresee.launch.certificates import Authority
from foresee.launch.decisions import Bounds, Room
from foresee.launch.engine import LOST_CODE, Command, Process
from foresee.launch.ray_host import LEASE_SECONDS, Host, HostSettings, PartState
from foresee.run.config import RunConfig

ray = OptionalModule("ray")
_util = OptionalModule("ray.util")
_state = OptionalModule("ray._private.state")
_strategies = OptionalModule("ray.util.scheduling_strategies")

_logger = logging.getLogger(__name__)

TICK_SECONDS = 0.05
"""How often hosts are asked while parts start or end."""
CALM_SECONDS = 0.25
"""The same while nothing happens: a question takes processor time on every node, which training could use."""
CALM_AFTER_SECONDS = 5.0
GIVE_UP_SECONDS = LEASE_SECONDS + 4.0
"""A host that has not answered for so long has ended its parts by itself."""
PLACES_SECONDS = 0.5
"""How often Ray is asked where places are, while parts wait for one."""
ROOM_SECONDS = 2.0
"""How often Ray is asked what its nodes have left, where the size of a run may change."""
LOOPBACK = "127.0.0.1"
MARK_FILE = "controller"
"""Beside what parts print."""
OWN_CLUSTER = "local"
"""Without it Ray would take any cluster that somebody has started on this machine."""
AUTHORITY, CERTIFICATE, KEY, TOKEN = "authority.pem", "certificate.pem", "key.pem", "token"


class RayProcess:
    """A part, as far as is known here."""

    def __init__(self, engine: RayEngine, command: Command, place: int, output: Path) -> None:
        self.command, self.place, self.output = command, place, output
        self.node: str | None = None
        """Where it was started; None: it waits."""
        self.pid = 0
        self.address: str | None = None
        self.code: int | None = None
        self._engine = engine

    @property
    def placed(self) -> bool:
        return self.node is not None

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self._engine.send_signal(self, number)


@dataclass
class _Node:
    """A node with a host of ours."""

    address: str
    host: Any
    question: Any = None
    """The poll that is under way."""
    heard: float = field(default_factory=time.monotonic)


class RayEngine:
    """Use it as a context manager."""

    def __init__(self, config: RunConfig, address: str | None) -> None:
        need("ray")
        need("cryptography")
        self._config, self._given = config, address
        self.one_machine = address is None
        self._scratch = Path(tempfile.gettempdir()) / f"foresee-{uuid.uuid4().hex}"
        self._files: dict[str, str] = {}
        self._nodes: dict[str, _Node] = {}
        self._parts: dict[str, RayProcess] = {}
        self._lock, self._closed = threading.RLock(), threading.Event()
        self._places_asked = self._room_asked = self._happened = 0.0
        self._room = Room(nodes=[], waiting=False)

    def __enter__(self) -> RayEngine:
        self._connect()
        self._authority = Authority()
        self._controller = LOOPBACK if self.one_machine else str(_util.get_node_ip_address())
        self._rendezvous = dist.TCPStore(  # type: ignore[attr-defined]
            self._controller, 0, is_master=True, wait_for_workers=False
        )
        self._group = _util.placement_group(self._bundles(), strategy="SPREAD")
        self._thread = threading.Thread(target=self._run, name="foresee-ray", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        self._thread.join()
        for node in self._nodes.values():
            _quietly(ray.kill, node.host)
        _quietly(_util.remove_placement_group, self._group)
        ray.shutdown()

    def start(self, command: Command, output: Path) -> Process:
        part = RayProcess(self, command, self._place(command), output)
        with self._lock:
            self._parts[command.name], self._happened = part, time.monotonic()
        return part

    def share(self, name: str, content: str) -> Path:
        with self._lock:
            self._files[name] = content
            for node in self._nodes.values():
                node.host.write.remote(name, content)
        return self._scratch / name

    def rendezvous(self, attempt: int) -> str:
        return f"store://{self._controller}:{self._rendezvous.port}/{attempt}"

    def room(self) -> Room:
        with self._lock:
            return replace(self._room, waiting=bool(self._waiting()))

    def reserve(self, config: RunConfig) -> None:
        with self._lock:
            self._config = config
            _quietly(_util.remove_placement_group, self._group)
            self._group = _util.placement_group(self._bundles(), strategy="SPREAD")

    def send_signal(self, part: RayProcess, number: int) -> None:
        with self._lock:
            if part.code is not None:
                return
            self._happened = time.monotonic()
            if part.node is None:
                part.code = -number
            elif (node := self._nodes.get(part.node)) is not None:
                node.host.send_signal.remote(part.command.name, int(number))

    def _connect(self) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)  # warnings are for whoever keeps the cluster
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        try:
            if self._given is None:
                cores = sum(bundle.get("CPU", 0) for bundle in self._bundles())
                more = {"num_cpus": int(cores) + 1, "include_dashboard": False}
                ray.init(address=OWN_CLUSTER, **quiet, **more)
            else:
                ray.init(address=self._given, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "on this machine" if self._given is None else f"at {self._given}"
            raise ConfigError(f"--on ray: there is no Ray cluster {where} ({error}); see `ray status`") from error

    def _bundles(self) -> list[dict[str, float]]:
        wanted, config = self._config.distributed.resources, self._config
        servers = [dict(wanted.server)] * config.num_servers
        return [*servers, dict(wanted.planner), *([dict(wanted.worker)] * config.distributed.workers)]

    def _place(self, command: Command) -> int:
        """Which bundle of the placement group is this part's."""
        first = {"server": 0, "planner": self._config.num_servers, "worker": self._config.num_servers + 1}
        return first[command.role] + command.index

    # Everything below runs in the one thread that talks with the hosts.

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._start_waiting()
                self._ask()
                self._look_around()
            except Exception:
                _logger.exception("a look at the Ray cluster failed; the next one follows")
                time.sleep(1.0)

    def _start_waiting(self) -> None:
        with self._lock:
            waiting = self._waiting()
        if not waiting or time.monotonic() - self._places_asked < PLACES_SECONDS:
            return
        self._places_asked = time.monotonic()
        places, alive = self._places(), {it["NodeID"]: it["NodeManagerAddress"] for it in ray.nodes() if it["Alive"]}
        for part in waiting:
            where = places.get(part.place)
            if where is not None and where in alive:
                self._start_at(part, where, alive[where])
        if any(part.node is None for part in waiting):
            _logger.info("%d parts wait for a place in the cluster", sum(part.node is None for part in waiting))

    def _waiting(self) -> list[RayProcess]:
        return [part for part in self._parts.values() if part.node is None and part.code is None]

    def _places(self) -> dict[int, str]:
        table = _util.placement_group_table(self._group)
        if table.get("state") == "INFEASIBLE":
            raise InputError("no node of the cluster has what a part asks for; see distributed.resources")
        return {int(place): str(node) for place, node in table.get("bundles_to_node_id", {}).items()}

    def _look_around(self) -> None:
        """What the nodes have left, and what of them is ours already; only for a run whose size may change."""
        if Bounds.of(self._config) is None or time.monotonic() - self._room_asked < ROOM_SECONDS:
            return
        self._room_asked = time.monotonic()
        with self._lock:
            places, bundles = self._places(), self._bundles()
        left = {node: dict(free) for node, free in _state.available_resources_per_node().items()}
        for place, node in places.items():
            for name, amount in bundles[place].items():
                if node in left:
                    left[node][name] = left[node].get(name, 0.0) + amount
        self._room = Room(nodes=list(left.values()), waiting=False)

    def _start_at(self, part: RayProcess, where: str, address: str) -> None:
        with self._lock:
            if where not in self._nodes:
                address = LOOPBACK if self.one_machine else address
                self._nodes[where] = _Node(address, self._new_host(where, address))
            if part.code is None:
                part.node, command = where, part.command
                self._nodes[where].host.start.remote(
                    command.name, list(command.arguments), self._environment(command),
                    [os.path.abspath(path) for path in command.records], self._mark(part.output),
                )  # fmt: skip
                _logger.info("%s is started at %s", command.name, address)

    def _mark(self, output: Path) -> tuple[str, str]:
        """Whoever finds this file sees the disk of the controller."""
        path = output.absolute().with_name(MARK_FILE)
        path.write_text(self._scratch.name)
        return str(path), self._scratch.name

    def _environment(self, command: Command) -> dict[str, str]:
        cores = max(1, int(self._config.distributed.resources.worker.get("CPU", 1)))
        return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores)), **command.environment}

    def _new_host(self, node: str, address: str) -> Any:
        signed, path = self._authority.sign(address), self._scratch
        files = {AUTHORITY: self._authority.certificate, TOKEN: self._authority.token, **self._files}
        listen: tuple[str, ...] = ()
        connect: tuple[str, ...] = ()
        if not self.one_machine:
            files |= {CERTIFICATE: signed.certificate, KEY: signed.key}
            listen = ("--tls-certificate", f"{path / CERTIFICATE}", "--tls-key", f"{path / KEY}")
            listen += ("--token-file", f"{path / TOKEN}")
            connect = ("--tls-root-certificate", f"{path / AUTHORITY}", "--token-file", f"{path / TOKEN}")
        settings = HostSettings(
            scratch=str(path), address=address, optimizers=(self._config.tables.optimizer.name,),
            log_level=logs.level(), files=files, listen=listen, connect=connect,
        )  # fmt: skip
        strategy = _strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = ray.remote(Host).options(num_cpus=0, scheduling_strategy=strategy, max_restarts=0)
        return actor.remote(settings)

    def _ask(self) -> None:
        """One poll of every host is under way at any time."""
        with self._lock:
            nodes = dict(self._nodes)
        if not nodes:
            time.sleep(TICK_SECONDS)
            return
        for node in nodes.values():
            if node.question is None:
                node.question = node.host.poll.remote()
        begun, tick = time.monotonic(), self._tick()
        done, _ = ray.wait([it.question for it in nodes.values()], num_returns=len(nodes), timeout=tick)
        for where, node in nodes.items():
            if node.question in done:
                self._hear(where, node)
            elif time.monotonic() - node.heard > GIVE_UP_SECONDS and not self._starting(where):
                self._lose(where, f"did not answer for {GIVE_UP_SECONDS:.0f} s")
        self._closed.wait(max(0.0, tick - (time.monotonic() - begun)))

    def _tick(self) -> float:
        with self._lock:
            parts = [part for part in self._parts.values() if part.code is None]
        if not all(part.pid and (part.address or not part.command.endless) for part in parts):
            self._happened = time.monotonic()
        return CALM_SECONDS if time.monotonic() - self._happened > CALM_AFTER_SECONDS else TICK_SECONDS

    def _starting(self, where: str) -> bool:
        """Importing everything takes its time, and Ray tells if the node is lost meanwhile."""
        return any(part.node == where and part.pid == 0 and part.code is None for part in self._parts.values())

    def _hear(self, where: str, node: _Node) -> None:
        question, node.question, node.heard = node.question, None, time.monotonic()
        try:
            states: dict[str, PartState] = ray.get(question)
        except Exception as error:
            self._lose(where, f"is lost ({type(error).__name__})")
            return
        with self._lock:
            for name, state in states.items():
                part = self._parts.get(name)
                if part is not None and part.node == where and part.code is None:
                    _take_over(part, state, node.address, tls=not self.one_machine)
                if part is None or part.node != where or part.code is not None:
                    self._happened = time.monotonic()
                    node.host.forget.remote(name)

    def _lose(self, where: str, how: str) -> None:
        with self._lock:
            node = self._nodes.pop(where)
            _quietly(ray.kill, node.host)
            for part in self._parts.values():
                if part.node == where and part.code is None:
                    part.code = LOST_CODE
                    with open(part.output, "ab") as file:
                        file.write(f"foresee: the node {node.address} {how}\n".encode())
        _logger.warning("node %s %s", node.address, how)


def _take_over(part: RayProcess, state: PartState, address: str, *, tls: bool) -> None:
    try:
        if state.output:
            with open(part.output, "ab") as file:
                file.write(state.output)
        for added in state.records:
            added.carry_out()
    except OSError as error:  # a full disk here is no reason to lose sight of the part
        _logger.warning("what %s has written cannot be kept here: %s", part.command.name, error)
    part.pid = state.pid
    if state.port is not None:
        part.address = f"{'grpc+tls' if tls else 'grpc'}://{address}:{state.port}"
    part.code = state.code


def _quietly(call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except Exception as error:
        _logger.info("%s: %s", getattr(call, "__name__", call), error)
