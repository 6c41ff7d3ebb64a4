"""No cache: every step fetches all its rows and writes all of them back. What "without a cache" means everywhere."""

from __future__ import annotations

from foresee.plan.lookahead import Lookahead
from foresee.plan.ownership import Ownership, placed_ownership
from foresee.plan.placement import contiguous
from foresee.plan.policy import Policy, Profile
from foresee.plan.record import Header


def alone(header: Header, profile: Profile) -> Lookahead:
    return Lookahead(header, window_steps=0, eager=True, remember_versions=header.options.remember_versions)


def together(header: Header, profile: Profile) -> Ownership:
    return placed_ownership(header, eager=True)


def compared(header: Header, profile: Profile) -> Ownership:
    """With samples in equal slices: nothing is held anywhere that a placement could look at."""
    return Ownership(header, contiguous, eager=True, remember_versions=True)


POLICY = Policy(
    name="none",
    meaning="every step fetches all its rows",
    colour="#c8515f",
    alone=alone,
    together=together,
    compared=compared,
    keeps_nothing=True,
)
