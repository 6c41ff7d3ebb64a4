"""Several workers in one process, carrying out the plan of any protocol on a real model: see `workers`, `protocols`."""
