"""Carries out a plan: loop, step, pipeline, cache, kernels, exchange between workers, recording."""
