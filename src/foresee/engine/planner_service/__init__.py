"""One process that plans for all workers and sends each its own records over Arrow Flight."""
