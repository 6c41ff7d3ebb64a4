"""Shockwave's planning window: the program (program.py) and two ways to solve it (greedy.py, highs.py)."""
