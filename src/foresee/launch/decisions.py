"""What a launcher does when parts of its run have ended. Pure: parts in, a `RestartDecision` out.

    a planner ends     it is started again; it plans the same again, and trainers go on with the steps they have in hand
    a trainer ends     all trainers are started again and go on from the last commit, to which the servers roll back
    a server ends      it is started again on its folder, and then as for a trainer; a server in memory is gone for good

A part that ended by itself with an error would do so again, so that only a signal, or the loss of another part, is a
reason to start anything again. Where one was ended by a signal, whatever others say then is taken for a consequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foresee.errors import INTERRUPTED_CODE, TERMINATED_CODE, UNAVAILABLE_CODE

STOPPED_CODES = (INTERRUPTED_CODE, TERMINATED_CODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A part that has ended before it should."""

    name: str
    role: str
    """server, planner or worker."""
    code: int
    """Its exit code, or minus a signal."""

    @property
    def by_itself(self) -> bool:
        """With an error of its own."""
        return self.code > 0 and self.code != UNAVAILABLE_CODE and self.code not in STOPPED_CODES

    @property
    def by_others(self) -> bool:
        """By a signal; a server or planner that ends in peace was told to by somebody."""
        return self.code <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDecision:
    """What has to be started again; nothing: the run cannot be helped."""

    planner: bool = False
    servers: tuple[str, ...] = ()
    trainers: bool = False

    @property
    def possible(self) -> bool:
        return self.planner or self.trainers


def decide_restart(ended: Sequence[Ended], *, servers_on_disk: bool, lost_in_a_row: int = 0) -> RestartDecision:
    """`lost_in_a_row`: how often trainers have lost another that had not ended, one time after the other."""
    if any(it.by_itself for it in ended) and not any(it.by_others for it in ended):
        return RestartDecision()
    servers = tuple(it.name for it in ended if it.role == "server")
    if servers and not servers_on_disk:
        return RestartDecision()
    return RestartDecision(
        planner=any(it.role == "planner" for it in ended) or lost_in_a_row > 1,
        servers=servers,
        trainers=bool(servers) or any(it.role == "worker" for it in ended),
    )
