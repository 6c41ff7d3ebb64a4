"""Orders in which an epoch meets the buckets of a graph: one file each, by name."""
