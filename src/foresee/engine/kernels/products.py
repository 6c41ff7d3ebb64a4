"""Products of small matrices: scores against shared negatives, and their gradients.

`multiply` computes out[i, j] = sum over k of a[i, k] * b[k, j]. The inner tile is emitted as vector instructions over
j. Elements of `a` are broadcast, so `a` may have any strides and is never transposed or packed. Each element of `out`
is one sum in the order of k with one fused multiply-add per term. Only the size of the tile depends on the processor,
not the order of a sum: every processor that has fused multiply-add computes the same bits, with any number of threads.

The kernels do not check bounds; `fused` checks shapes before it calls them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from foresee.arrays import Float32
from foresee.engine.kernels.vector import FLOAT, broadcast


def _has_wide_vectors() -> bool:
    """Return whether numba compiles for vectors of 512 bits (NUMBA_CPU_NAME and NUMBA_CPU_FEATURES count)."""
    features: str = cpu_target.target_context.codegen()._get_host_cpu_features()
    return "+avx512f" in features.split(",")


LANES, VECTORS = (16, 4) if _has_wide_vectors() else (8, 2)
"""Elements of a vector, and vectors of a tile: rows of `b` and `out` have room for whole vectors."""
ROWS = 6
"""Rows of a tile. Its sums fill 24 of 32 registers of 512 bits, or 12 of 16 of 256 bits. 4, 5 and 8 rows are slower."""


@njit(nogil=True, cache=True)
def padded(size: int) -> int:
    """Round up to whole vectors."""
    return -(-size // LANES) * LANES


@njit(nogil=True, cache=True)
def multiply(
    a: Float32, a_at: int, a_row: int, a_column: int, b: Float32, b_at: int, b_row: int, out: Float32, out_at: int,
    out_row: int, num_rows: int, num_columns: int, depth: int, adds: bool,
) -> None:  # fmt: skip
    """Multiply matrices that lie in flat arrays.

    Args:
        a: [num_rows, depth], with its first element at `a_at` and the strides `a_row` and `a_column`.
        b: [depth, num_columns], with its first element at `b_at` and the stride `b_row`.
        out: [num_rows, num_columns], with its first element at `out_at` and the stride `out_row`.
        num_rows: Rows of `out`.
        num_columns: A multiple of LANES.
        depth: Terms of each sum.
        adds: Continue the sums that `out` holds instead of beginning at zero.
    """
    row = 0
    while row < num_rows:
        left = num_rows - row
        height = ROWS if left >= ROWS else 2 if left >= 2 else 1
        column = 0
        while column < num_columns:
            width = min(VECTORS, (num_columns - column) // LANES)
            a_begin, b_begin, out_begin = a_at + row * a_row, b_at + column, out_at + row * out_row + column
            if height == ROWS:
                if width == 4:
                    _tile(ROWS, 4, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, depth, adds)
                elif width == 3:
                    _tile(ROWS, 3, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, depth, adds)
                elif width == 2:
                    _tile(ROWS, 2, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, depth, adds)
                else:
                    _tile(ROWS, 1, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, depth, adds)
            else:
                width = min(width, 2)
                if height == 2 and width == 2:
                    _tile(2, 2, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, depth, adds)
                elif height == 2:
                    _tile(2, 1, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, depth, adds)
                elif width == 2:
                    _tile(1, 2, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, depth, adds)
                else:
                    _tile(1, 1, a, a_begin, a_row, a_column, b, b_begin, b_row, out, out_begin, out_row, depth, adds)
            column += width * LANES
        row += height


@intrinsic(prefer_literal=True)
def _tile(
    typing_context: Any, num_rows: Any, num_vectors: Any, a: Any, a_at: Any, a_row: Any, a_column: Any, b: Any,
    b_at: Any, b_row: Any, out: Any, out_at: Any, out_row: Any, depth: Any, adds: Any,
) -> Any:  # fmt: skip
    """`multiply` for num_rows rows and num_vectors vectors, both literal, with all sums in registers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile = _Tile(context, builder, signature.args, args, num_rows.literal_value, num_vectors.literal_value)
        with builder.if_else(args[13]) as (continues, begins):
            with continues:
                tile.load_sums()
            with begins:
                tile.zero_sums()
        with cgutils.for_range(builder, args[12]) as loop:
            tile.add_products(loop.index)
        tile.store_sums()
        return context.get_dummy_value()

    size = types.intp
    arguments = num_rows, num_vectors, a, size, size, size, b, size, size, out, size, size, size, types.boolean
    return types.void(*arguments), codegen


class _Tile:
    """A tile while code is emitted. LLVM keeps `sums` in registers."""

    def __init__(self, context: Any, builder: Any, kinds: Any, args: Any, num_rows: int, num_vectors: int) -> None:
        self.builder, self.num_rows, self.num_vectors = builder, num_rows, num_vectors
        self.vector = ir.VectorType(FLOAT, LANES)
        self.a, self.b, self.out = (
            context.make_array(kinds[place])(context, builder, value=args[place]).data for place in (2, 6, 9)
        )
        self.a_at, self.a_row, self.a_column = args[3:6]
        self.b_at, self.b_row = args[7:9]
        self.out_at, self.out_row = args[10:12]
        cells = range(num_rows * num_vectors)
        self.sums = [cgutils.alloca_once(builder, self.vector) for _ in cells]
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        self.fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")

    def zero_sums(self) -> None:
        for total in self.sums:
            self.builder.store(ir.Constant(self.vector, [0.0] * LANES), total)

    def load_sums(self) -> None:
        for total, place in zip(self.sums, self._places(), strict=True):
            self.builder.store(self._load(place), total)

    def store_sums(self) -> None:
        for total, place in zip(self.sums, self._places(), strict=True):
            self.builder.store(self.builder.load(total), place).align = 4

    def add_products(self, k: Any) -> None:
        """Add the products of column k of `a` and row k of `b`."""
        b = self.builder
        begin = b.add(self.b_at, b.mul(k, self.b_row))
        vectors = [self._load(self._vector(self.b, begin, number)) for number in range(self.num_vectors)]
        for row in range(self.num_rows):
            place = b.add(self.a_at, b.add(b.mul(k, self.a_column), b.mul(self.a_row, k.type(row))))
            factor = broadcast(b, b.load(b.gep(self.a, [place])), LANES)
            for number, vector in enumerate(vectors):
                total = self.sums[row * self.num_vectors + number]
                b.store(b.call(self.fused, [factor, vector, b.load(total)]), total)

    def _places(self) -> list[Any]:
        """Return pointers to the tile's vectors in `out`."""
        b, size = self.builder, self.out_row.type
        begins = [b.add(self.out_at, b.mul(self.out_row, size(row))) for row in range(self.num_rows)]
        return [self._vector(self.out, begin, number) for begin in begins for number in range(self.num_vectors)]

    def _vector(self, pointer: Any, begin: Any, number: int) -> Any:
        place = self.builder.add(begin, begin.type(number * LANES))
        return self.builder.bitcast(self.builder.gep(pointer, [place]), self.vector.as_pointer())

    def _load(self, place: Any) -> Any:
        value = self.builder.load(place)
        value.align = 4  # a vector begins at any float
        return value
