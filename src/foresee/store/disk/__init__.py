"""Tables in a folder: `DiskStore` to train with, `DiskReader` to read, `open_table` to look at one with numpy."""

from foresee.store.disk.reader import DiskReader
from foresee.store.disk.store import DiskStore
from foresee.store.disk.view import open_table

__all__ = ["DiskReader", "DiskStore", "open_table"]
