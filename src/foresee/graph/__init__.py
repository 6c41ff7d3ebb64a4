"""Graphs: edges prepared on disk, orders of partitions, sampled neighbourhoods, and training on the engine's plans."""
