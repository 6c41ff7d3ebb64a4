"""The sides of `peers.py`: what each of them trains, and one file for each library."""
