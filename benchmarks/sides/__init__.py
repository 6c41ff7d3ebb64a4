"""Sides of a comparison as processes that take turns."""
