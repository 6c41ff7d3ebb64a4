"""Spans and series that a run records for `foresee report` and `foresee watch`."""
