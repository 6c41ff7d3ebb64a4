"""Starts the processes of a run on one machine, watches them, starts killed ones again, and takes them down."""
