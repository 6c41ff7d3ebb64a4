"""Transfers between workers: the schedule of a step, its protocol, sums of dense gradients, priorities on the link."""
