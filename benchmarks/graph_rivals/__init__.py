"""Sides of benchmarks/graph_peers.py: the same link prediction by Foresee and by others, one file each."""
