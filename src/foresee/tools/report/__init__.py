"""Reads what runs and plans leave behind, and draws it."""
