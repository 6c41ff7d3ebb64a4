"""Carries out a plan: cache, pipeline, exchange between workers, optimisers, checkpoints, launching."""
