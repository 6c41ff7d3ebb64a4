"""Tables in a folder: `DiskStore` to train with, `DiskReader` to read, `open_table` to look at one with numpy."""

from foresee.store.disk.folder import open_table
from foresee.store.disk.reader import DiskReader
from foresee.store.disk.store import DiskStore

__all__ = ["DiskReader", "DiskStore", "open_table"]
