"""Configurations that `benchmarks/simulator.py` measures and predicts: one process, and two trainers with servers."""
