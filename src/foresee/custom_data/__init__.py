"""Batches and tables of a person's own, where there is no prepared log."""
