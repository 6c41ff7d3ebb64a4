"""What a run records of itself for `foresee report` and `foresee watch`."""
