"""Ownership without placement: a row belongs to one worker and moves with use; samples go in equal slices."""

from __future__ import annotations

from foresee.plan.ownership import Ownership
from foresee.plan.placement import contiguous
from foresee.plan.policy import Policy, Profile
from foresee.plan.record import Header


def compared(header: Header, profile: Profile) -> Ownership:
    return Ownership(header, contiguous)


POLICY = Policy(
    name="owner",
    meaning="a row belongs to one trainer and moves with use",
    colour="#4aa8a8",
    compared=compared,
    workers_min=2,
)
