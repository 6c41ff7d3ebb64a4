"""Benchmarks are scripts in a folder of their own; what they are made of is imported from there."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
