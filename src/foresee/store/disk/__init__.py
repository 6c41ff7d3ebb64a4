"""Tables in a folder: `DiskStore` to train with, `open_table` to look at one of them with numpy."""

from foresee.store.disk.store import DiskStore
from foresee.store.disk.view import open_table

__all__ = ["DiskStore", "open_table"]
