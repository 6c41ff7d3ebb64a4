"""The decisions of a commit that several parts make together, and of the way back to it. Pure: no file, wire or clock.

A part (the store of one process, or one server) keeps rows; a coordinator (worker 0) makes a step durable at all parts
or at none. Two phases, and the decision between them is one small file, the manifest of the dense checkpoint:

    prepare(N, on M)   each part seals what was written since M, and can still go back to M
    the manifest of N is written, synced, renamed:                     from here on the commit stands
    settle(N)          each part takes N as its last commit; M is kept as the one before it

    open_at(run, N)    begins a run: each part goes to commit N and gives up everything after it

Messages may be lost, doubled, delayed, or come from trainers that were given up long ago. In: what a part is and a
message. Out: what it becomes once it has carried out some instructions in their order, and what it answers. A part that
ends in between and starts again is as its disk says (`Part.after_restart`); every message may then be sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from foresee.errors import StoreError, StoreUnavailableError

# What a part is told ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAt:
    """A run begins at a commit."""

    run: str
    """One name for one start of all trainers."""
    incarnation: str
    """The process of the part that the sender has asked what it has: another one has to be asked again."""
    epoch: int
    """Its epoch as the sender saw it: if somebody has opened the part since then, the sender is too late."""
    step: int
    started: int = 0
    """When the run was started, as a number that rises from one start of the trainers to the next; 0: unknown. A
    trainer that was given up before it began may begin long after the run that replaced it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Everything applied so far is the state after `step` steps; seal it."""

    run: str | None
    """None: a client that is no trainer of a run."""
    step: int
    on: int
    """The commit before. If the part has only prepared it, it is told by this that the decision has fallen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The decision has fallen: the prepared step is committed."""

    run: str | None
    step: int


Message = OpenAt | Prepare | Settle

# What a part then does -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seal:
    """Make durable what was written since the last commit, as the prepared commit of this step."""

    step: int


@dataclass(frozen=True, slots=True)
class Promote:
    """The prepared commit of this step is the last commit; the last one becomes the one before it."""

    step: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Give up the prepared commit of this step."""

    step: int


@dataclass(frozen=True, slots=True)
class ForgetWrites:
    """Give up everything written after the newest commit, prepared ones included; nobody may read it any more."""


@dataclass(frozen=True, slots=True)
class GoBack:
    """Undo the last commit: the one before it, of this step, is the last one again."""

    step: int


@dataclass(frozen=True, slots=True)
class Load:
    """Give up everything here, and become the commit of this step that the storage has."""

    step: int


Instruction = Seal | Promote | Discard | ForgetWrites | GoBack | Load

# A part ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part is. The first three fields are what its disk says, `stored` what its storage says; the others end
    with its process."""

    committed: int = 0
    previous: int | None = None
    """The commit before the last one, if the part can still go back to it."""
    prepared: int | None = None
    """A sealed commit whose decision this part does not know."""
    incarnation: str = ""
    """Another one for every process, so that nobody takes a part that was started again for the one it knew."""
    run: str | None = None
    """The run that may write."""
    epoch: int = 0
    """Rises with every run."""
    opened_at: int | None = None
    """Where this run has begun."""
    started: int = 0
    """When this run was started: an older one cannot take the part from it."""
    stored: frozenset[int] = frozenset()
    """Commits that a storage has a copy of: a part that lost its disk, or gave them up, can load them."""

    def __post_init__(self) -> None:
        steps = [step for step in (self.previous, self.committed, self.prepared) if step is not None]
        if steps != sorted(set(steps)):
            raise ValueError(f"commits must follow each other: {self.previous}, {self.committed}, {self.prepared}")

    @property
    def openable(self) -> frozenset[int]:
        """Commits that this part can be opened at."""
        return self.here | self.stored

    @property
    def here(self) -> frozenset[int]:
        """Those of them that its disk has."""
        return frozenset(step for step in (self.previous, self.committed, self.prepared) if step is not None)

    @property
    def newest(self) -> int:
        """The newest commit that it has, decided or not."""
        return self.committed if self.prepared is None else self.prepared

    def after_restart(self, incarnation: str) -> Part:
        """The same part in a new process: rows after its newest commit are gone, and so is the run."""
        return Part(
            committed=self.committed,
            previous=self.previous,
            prepared=self.prepared,
            incarnation=incarnation,
            stored=self.stored,
        )

    def accepts(self, run: str | None) -> bool:
        """May this run read and write here? Asked for every request, at the moment it is carried out."""
        return run is not None and run == self.run


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What comes of a message."""

    part: Part
    """What the part is once the instructions are carried out; unchanged if it refuses."""
    instructions: tuple[Instruction, ...] = ()
    refusal: str | None = None
    """Why nothing is done, as a sentence; None: the message is answered with consent."""
    outdated: bool = False
    """The refusal is because the sender was replaced, or knows a part that was: it has to start again."""

    def check(self) -> None:
        """Raises what is refused."""
        if self.refusal is not None:
            raise (StoreUnavailableError if self.outdated else StoreError)(self.refusal)


def decide(part: Part, message: Message) -> Decision:
    """What a part does about a message."""
    if isinstance(message, OpenAt):
        return _open_at(part, message)
    if message.run is not None and message.run != part.run:
        return _refuse(
            part,
            f"run {message.run!r} is not the one served here, which is {part.run!r}; its trainers were replaced by "
            "newer ones: end this one",
            outdated=True,
        )
    return _prepare(part, message) if isinstance(message, Prepare) else _settle(part, message)


def _open_at(part: Part, message: OpenAt) -> Decision:
    if message.run == part.run:
        # Came twice. What has been written since belongs to this very run and stays.
        if message.step == part.opened_at:
            return Decision(part=part)
        return _refuse(part, f"run {message.run!r} began at step {part.opened_at}, not {message.step}; start it again")
    if (message.incarnation, message.epoch) != (part.incarnation, part.epoch):
        return _refuse(
            part,
            f"it was started again, or another run has begun here, since run {message.run!r} asked (epoch "
            f"{part.epoch}, not {message.epoch}); ask again",
            outdated=True,
        )
    if message.started < part.started:
        newer = f"run {part.run!r}, which is served here, was started after run {message.run!r}; end that"
        return _refuse(part, newer, outdated=True)
    if message.step not in part.openable:
        kept = ", ".join(map(str, sorted(part.openable)))
        return _refuse(part, f"there is no commit of step {message.step} here, only of {kept}; open one of these")
    moved, instructions = _go_to(part, message.step)
    opened = replace(
        moved,
        run=message.run,
        epoch=part.epoch + 1,
        opened_at=message.step,
        started=message.started,
        stored=frozenset(step for step in part.stored if step <= message.step),
    )
    return Decision(part=opened, instructions=(ForgetWrites(), *instructions))


def _go_to(part: Part, step: int) -> tuple[Part, tuple[Instruction, ...]]:
    """The way to one of the commits that the part has; what its disk has costs nothing."""
    if step not in part.here:
        return replace(part, previous=None, committed=step, prepared=None), (Load(step),)
    if step == part.prepared:
        return replace(part, previous=part.committed, committed=step, prepared=None), (Promote(step),)
    discard: tuple[Instruction, ...] = () if part.prepared is None else (Discard(part.prepared),)
    kept = replace(part, prepared=None)
    if step == part.committed:
        return kept, discard
    return replace(kept, committed=step, previous=None), (*discard, GoBack(step))


def _prepare(part: Part, message: Prepare) -> Decision:
    if message.step in (part.prepared, part.committed):
        return Decision(part=part)  # came twice: what is sealed under this step is what was there when it came first
    before: tuple[Instruction, ...] = ()
    if part.prepared is not None and part.prepared == message.on:
        before, part = (
            (Promote(message.on),),
            replace(part, previous=part.committed, committed=message.on, prepared=None),
        )
    if part.prepared is not None:
        return _refuse(part, f"step {part.prepared} is prepared and undecided, so step {message.step} cannot be")
    if message.on != part.committed or message.step < part.committed:
        return _refuse(
            part,
            f"step {message.step} was to be committed after step {message.on}, but the last commit here is of step "
            f"{part.committed}: the message came too late, or another client commits to the same servers",
        )
    return Decision(part=replace(part, prepared=message.step), instructions=(*before, Seal(message.step)))


def _settle(part: Part, message: Settle) -> Decision:
    if message.step == part.committed:
        return Decision(part=part)
    if message.step != part.prepared:
        return _refuse(
            part, f"step {message.step} is not prepared here (committed {part.committed}, prepared {part.prepared})"
        )
    settled = replace(part, previous=part.committed, committed=message.step, prepared=None)
    return Decision(part=settled, instructions=(Promote(message.step),))


def _refuse(part: Part, sentence: str, *, outdated: bool = False) -> Decision:
    return Decision(part=part, refusal=sentence, outdated=outdated)


# The coordinator -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit under way, as the coordinator sees it. Parts are numbered from 0.

    Whatever is outstanding may be sent again at any time. Only if every part has consented to prepare may the manifest
    be written, and only after it is durable may anybody be told to settle: `outstanding` never says otherwise.
    """

    run: str | None
    step: int
    on: int
    num_parts: int
    prepared: frozenset[int] = frozenset()
    decided: bool = False
    settled: frozenset[int] = frozenset()

    @property
    def may_decide(self) -> bool:
        """Every part has sealed the step: the manifest may be written now."""
        return len(self.prepared) == self.num_parts and not self.decided

    @property
    def done(self) -> bool:
        return self.decided and len(self.settled) == self.num_parts

    def outstanding(self) -> dict[int, Prepare | Settle]:
        """For each part that has to answer, what it is to be told."""
        if self.decided:
            late = [part for part in range(self.num_parts) if part not in self.settled]
            return {part: Settle(run=self.run, step=self.step) for part in late}
        late = [part for part in range(self.num_parts) if part not in self.prepared]
        return {part: Prepare(run=self.run, step=self.step, on=self.on) for part in late}

    def consented(self, part: int, to: Prepare | Settle) -> Commit:
        """A part's consent has arrived; one to another commit, or one that came twice, changes nothing."""
        if to.step != self.step or to.run != self.run:
            return self
        if isinstance(to, Prepare):
            return replace(self, prepared=self.prepared | {part})
        return replace(self, settled=self.settled | {part}) if self.decided else self

    def after_manifest(self) -> Commit:
        """The manifest is durable."""
        if not self.may_decide:
            raise ValueError(f"step {self.step} was decided before all parts had prepared it")
        return replace(self, decided=True)


def step_to_open(manifests: Iterable[int], openable: Sequence[frozenset[int]]) -> int | None:
    """Where a run goes on: the newest step whose manifest is whole and that every part has; None if there is none.

    A manifest is written only when every part has sealed its step, and parts give up a commit only for a newer decided
    one, so without damage this is the newest manifest. Where a manifest or a part was damaged, or a trainer that was
    given up wrote a manifest late, the commit before is as good. A run without any manifest is at step 0: its dense
    half follows from the seed.
    """
    whole = set(manifests) or {0}
    common = whole.intersection(*openable)
    return max(common, default=None)


def loses_everything(step: int | None, parts: Iterable[Part]) -> bool:
    """Whether opening there would throw all commits of a run away: its checkpoints are gone, and that is for a person
    to look at, not for a program to tidy up."""
    return step is None or (step == 0 and any(part.committed for part in parts))
