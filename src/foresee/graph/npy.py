"""Arrays on disk that grow row by row, and are opened again as numpy maps them.

`ArrayWriter` writes a `.npy` file in pieces, its length unknown until the end; `open_array` maps one and checks that it
is what the graph's description promises. Nothing here holds more than the piece it is given.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from foresee.errors import DataError


class ArrayWriter:
    """Appends rows of one shape to a `.npy` file. A context manager; the file is whole when it ends without error."""

    def __init__(self, path: Path, dtype: DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self._dtype, self._row_shape = np.dtype(dtype), row_shape
        self.num_rows = 0
        self._file = open(path, "wb")  # noqa: SIM115
        self._file.write(self._header())

    def append(self, rows: NDArray[Any]) -> None:
        piece = np.ascontiguousarray(rows, self._dtype).reshape(-1, *self._row_shape)
        self._file.write(piece.data)
        self.num_rows += len(piece)

    def _header(self) -> bytes:
        """Padded by numpy so that its length is the same for every number of rows."""
        header = BytesIO()
        description = np.lib.format.dtype_to_descr(self._dtype)
        shape = (self.num_rows, *self._row_shape)
        np.lib.format.write_array_header_1_0(header, {"descr": description, "fortran_order": False, "shape": shape})
        return header.getvalue()

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        self._file.close()

    def finish(self) -> None:
        """Says in the header how many rows there are."""
        self._file.seek(0)
        self._file.write(self._header())

    def close(self) -> None:
        self._file.close()


def open_array(path: Path, shape: tuple[int, ...], dtypes: tuple[DTypeLike, ...]) -> NDArray[Any]:
    """The array of a file, mapped for reading; refused unless shape and type are those that were promised."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r" if np.prod(shape) else None, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as an array ({error}); prepare the graph again.") from None
    if found.shape != shape or found.dtype not in [np.dtype(dtype) for dtype in dtypes]:
        wanted = " or ".join(str(np.dtype(dtype)) for dtype in dtypes)
        raise DataError(
            f"{path}: expected {wanted} of shape {shape}, found {found.dtype} of shape {found.shape}; "
            "prepare the graph again."
        )
    return found


def read_rows(path: Path, start: int, stop: int) -> NDArray[Any]:
    """Some rows of a file, copied: a mapping that lives on would keep every page it ever touched in memory."""
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False)[start:stop])
