"""Pictures and tables of docs/evidence.md, one module for each section, from what its commands printed."""
