"""All parts of a run on one machine: started, watched, started again when they were killed, and taken down."""
