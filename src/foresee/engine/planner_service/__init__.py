"""One process plans for all workers and gives each its own records, over Arrow Flight."""
