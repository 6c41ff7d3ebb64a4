"""Simulated time: one heap of events, processes that die and stall, and a network that loses, repeats and delays.

In: a random generator and how hostile to be. Out: the same run for the same seed, event by event. Everything happens in
one thread; a process is an object with tasks (generators) that are polled after each of its events, and a task that has
to wait yields. Nothing sleeps: time is a number.

Calls (to servers and the planner) are sent again when a request or an answer was lost, as clients do, so a request may
reach its server several times, and long after its sender has gone on or died. Messages between trainers are delayed but
neither lost nor repeated: they have connections that end with either side.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import Random
from typing import Any

Task = Generator[None, None, None]

RETRY_TIME = 6.0
"""After a loss, the caller tries again."""
EVENTS_MAX = 30_000
"""A schedule that takes more has got stuck, or goes in circles."""


class Stuck(Exception):  # noqa: N818 - a finding
    """Nothing will happen any more, or it never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostility:
    """What may happen in a schedule, and how often."""

    drop: float = 0.0
    """Share of messages that are lost."""
    duplicate: float = 0.0
    """Share of messages that come twice, the second perhaps much later."""
    slow: float = 0.0
    """Share of messages that take long."""
    events_between_faults: float = 0.0
    """Mean number of events between two deaths or stalls; 0: none."""
    faults_max: int = 0


class Process:
    """Something that can die. What it has to keep is elsewhere."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.awake_at = 0.0
        """It is stalled until then."""
        self.progress = False
        self.tasks: list[Task] = []

    def start(self, task: Task) -> None:
        self.tasks.append(task)

    def poll(self) -> None:
        """Lets every task go on as far as it can; again, as long as one of them has got somewhere."""
        self.progress = True
        while self.progress:
            self.progress = False
            for task in list(self.tasks):
                if self.alive:
                    self._go_on(task)

    def _go_on(self, task: Task) -> None:
        try:
            next(task)
        except StopIteration:
            if self.alive:
                self.tasks.remove(task)
            self.progress = self.alive

    def sleep(self, duration: float) -> Task:
        """A task that waits, to be used with `yield from`."""
        end = self.world.now + duration
        self.world.at(duration, self.wake)
        while self.world.now < end:
            yield
        self.progress = True

    def wake(self) -> None:
        if self.alive and not self.world.put_off(self, self.wake):
            self.poll()

    def handle(self, call: Call) -> None:
        """Answers a call, now or later."""
        raise NotImplementedError

    def receive(self, key: Any, content: Any) -> bool:
        """Takes a message from a peer; True if somebody may have waited for it."""
        raise NotImplementedError

    def end(self) -> None:
        """Killed: tasks stop where they are."""
        self.alive = self.progress = False
        self.tasks.clear()


class Call:
    """A question, which is repeated until it is answered."""

    __slots__ = ("answer", "kind", "owner", "request", "target")

    def __init__(self, owner: Process, target: str, kind: str, request: Any) -> None:
        self.owner, self.target, self.kind, self.request = owner, target, kind, request
        self.answer: Any = None


class World:
    """The event loop."""

    def __init__(self, rng: Random, hostility: Hostility, *, trace: Callable[[str], None] | None = None) -> None:
        self.rng, self.hostility, self.trace = rng, hostility, trace
        self.now = 0.0
        self.happened: Counter[str] = Counter()
        """How often each kind of fault, and each situation worth knowing about, came about."""
        self.roles: dict[str, Process] = {}
        self.on_fault: Callable[[], None] = lambda: None
        self.num_events = 0
        self.is_over = False
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._outstanding: dict[str, list[Call]] = {}
        self._latest: dict[tuple[Process, str], float] = {}
        self._next_fault = self._draw_fault() if hostility.events_between_faults else -1
        self._num_faults = 0

    def say(self, what: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.num_events:6d} {self.now:9.2f}  {what}")

    def at(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + delay, self._number, action, arguments))

    def run(self) -> None:
        """Event after event until somebody says that it is over."""
        heap = self._heap
        while not self.is_over:
            if not heap:
                raise Stuck("nothing will happen any more, and the run is not at its end")
            self.now, _, action, arguments = heapq.heappop(heap)
            self.num_events += 1
            if self.num_events == self._next_fault:
                self._fault()
            elif self.num_events > EVENTS_MAX:
                raise Stuck(f"no end after {EVENTS_MAX} events")
            action(*arguments)

    def delay(self) -> float:
        """How long a message travels."""
        draw = self.rng.random()
        if draw < self.hostility.slow:
            return 30.0 * self.rng.random()
        return 0.1 + draw

    def call(self, owner: Process, target: str, kind: str, request: Any) -> Call:
        call = Call(owner, target, kind, request)
        self._outstanding.setdefault(target, []).append(call)
        self._send(call)
        return call

    def reply(self, call: Call, answer: Any) -> None:
        if self.rng.random() < self.hostility.drop:
            self.happened["answer lost"] += 1
            self.say(f"lost: answer of {call.target} to {call.owner.name} ({call.kind})")
            self.at(RETRY_TIME, self._send_again, call)
        else:
            self.at(self.delay(), self._answer, call, answer)

    def post(self, target: Process, key: Any, content: Any) -> None:
        """A message from one trainer to another."""
        self.at(self.delay(), self._receive, target, key, content)

    def kill(self, process: Process) -> None:
        """Callers notice that their connection broke, and try again."""
        process.end()
        for call in self._outstanding.pop(process.name, []):
            if call.answer is None and call.owner.alive:
                self.at(RETRY_TIME, self._send_again, call)

    def put_off(self, process: Process, action: Callable[..., None], *arguments: Any) -> bool:
        """True if the process is stalled: the action will come again when it is awake."""
        if process.awake_at > self.now:
            self.at(process.awake_at - self.now, action, *arguments)
            return True
        return False

    def stall(self, process: Process) -> None:
        process.awake_at = self.now + 5.0 + 60.0 * self.rng.random()

    def _send(self, call: Call) -> None:
        draw = self.rng.random()
        if draw < self.hostility.drop:
            self.happened["request lost"] += 1
            self.say(f"lost: {call.kind} of {call.owner.name} to {call.target}")
            self.at(RETRY_TIME, self._send_again, call)
            return
        delay = self.delay()
        self._note_order(call, self.now + delay)
        self.at(delay, self._arrive, call)
        if draw > 1.0 - self.hostility.duplicate:
            self.happened["request repeated"] += 1
            self.at(delay + 40.0 * self.rng.random(), self._arrive, call)

    def _note_order(self, call: Call, arrival: float) -> None:
        latest = self._latest.get((call.owner, call.target), 0.0)
        if arrival < latest:
            self.happened["overtaken"] += 1
        else:
            self._latest[call.owner, call.target] = arrival

    def _send_again(self, call: Call) -> None:
        if call.answer is None and call.owner.alive and not self.put_off(call.owner, self._send_again, call):
            self._outstanding.setdefault(call.target, []).append(call)
            self._send(call)

    def _arrive(self, call: Call) -> None:
        process = self.roles.get(call.target)
        if process is None or not process.alive:
            self.at(RETRY_TIME, self._send_again, call)
        elif not self.put_off(process, self._arrive, call):
            if self.trace is not None:
                self.say(f"{call.owner.name} → {call.target}: {call.kind} {_short(call.request)}")
            process.handle(call)

    def _answer(self, call: Call, answer: Any) -> None:
        owner = call.owner
        if call.answer is None and owner.alive and not self.put_off(owner, self._answer, call, answer):
            if self.trace is not None:
                self.say(f"{owner.name} ← {call.target}: {call.kind} {_short(answer)}")
            call.answer = answer
            owner.poll()

    def _receive(self, target: Process, key: Any, content: Any) -> None:
        if not target.alive or self.put_off(target, self._receive, target, key, content):
            return
        if target.receive(key, content):
            target.poll()

    def _draw_fault(self) -> int:
        return self.num_events + 1 + int(self.rng.expovariate(1.0 / self.hostility.events_between_faults))

    def _fault(self) -> None:
        self._num_faults += 1
        self.on_fault()
        self._next_fault = self._draw_fault() if self._num_faults < self.hostility.faults_max else -1


def _short(content: Any) -> str:
    text = str(content).replace("\n", " ")
    return text if len(text) <= 100 else text[:97] + "..."
