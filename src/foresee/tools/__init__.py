"""Looks at plans and runs: planning without training, comparison, simulation, explanation, verification, fsck."""
