"""Arithmetic on whole rows, eight float32 at a time.

In: contiguous 2-D float32 arrays and row numbers. Out: rows copied, added, subtracted, or the sum of their squares.
A loop over a row as numba compiles it spends much of its time on finding out whether two arrays overlap, and sums are
not vectorised at all, as that would change the order of additions. These are emitted as vector instructions directly
(LLVM splits them where registers are smaller). The order of operations is written out, so the result is the same on
every processor. Rows that are combined must not overlap in part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
FLOAT, INDEX = ir.FloatType(), ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, LANES)

Emit = Callable[[Any, bool], None]
"""Emits the work on one element, or on LANES of them: (index of the first, whether it is a vector)."""


class Row:
    """A row of an array while code is emitted: loads and stores elements or vectors of it."""

    def __init__(self, context: Any, builder: Any, array_type: Any, array: Any, row_type: Any, row: Any) -> None:
        view = context.make_array(array_type)(context, builder, value=array)
        self.builder = builder
        self.width = builder.extract_value(view.shape, 1)
        row = context.cast(builder, row, row_type, types.intp)
        self.pointer = builder.gep(view.data, [builder.mul(row, self.width)])

    def load(self, d: Any, is_vector: bool) -> Any:
        value = self.builder.load(self._at(d, is_vector))
        value.align = 4  # rows begin at any float
        return value

    def load_several(self, d: Any, count: int) -> Any:
        """A vector of another length than LANES."""
        pointer = self.builder.gep(self.pointer, [d])
        value = self.builder.load(self.builder.bitcast(pointer, ir.VectorType(FLOAT, count).as_pointer()))
        value.align = 4
        return value

    def store(self, value: Any, d: Any, is_vector: bool) -> None:
        self.builder.store(value, self._at(d, is_vector)).align = 4

    def _at(self, d: Any, is_vector: bool) -> Any:
        pointer = self.builder.gep(self.pointer, [d])
        return self.builder.bitcast(pointer, VECTOR.as_pointer()) if is_vector else pointer

    def each(self, emit: Emit) -> None:
        """The whole vectors of the row, then what is left, element by element."""
        intp = self.width.type
        whole = self.builder.and_(self.width, intp(-LANES))
        with cgutils.for_range_slice(self.builder, intp(0), whole, intp(LANES), intp) as (d, _):
            emit(d, True)
        with cgutils.for_range_slice(self.builder, whole, self.width, intp(1), intp) as (d, _):
            emit(d, False)


@intrinsic
def copy_row(typing_context: Any, out: Any, out_row: Any, source: Any, source_row: Any) -> Any:
    """`out[out_row] = source[source_row]`"""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = Row(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        origin = Row(context, builder, signature.args[2], args[2], signature.args[3], args[3])
        target.each(lambda d, is_vector: target.store(origin.load(d, is_vector), d, is_vector))
        return context.get_dummy_value()

    return types.void(out, out_row, source, source_row), codegen


@intrinsic
def add_row(typing_context: Any, out: Any, out_row: Any, source: Any, source_row: Any) -> Any:
    """`out[out_row] += source[source_row]`"""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = Row(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        origin = Row(context, builder, signature.args[2], args[2], signature.args[3], args[3])

        def emit(d: Any, is_vector: bool) -> None:
            total = builder.fadd(target.load(d, is_vector), origin.load(d, is_vector))
            target.store(total, d, is_vector)

        target.each(emit)
        return context.get_dummy_value()

    return types.void(out, out_row, source, source_row), codegen


@intrinsic
def subtract_scaled_row(typing_context: Any, out: Any, out_row: Any, scale: Any, source: Any, source_row: Any) -> Any:
    """`out[out_row] -= scale * source[source_row]`, the product rounded before it is subtracted; scale is float32"""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = Row(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        origin = Row(context, builder, signature.args[3], args[3], signature.args[4], args[4])
        scales = {False: args[2], True: broadcast(builder, args[2])}

        def emit(d: Any, is_vector: bool) -> None:
            product = builder.fmul(scales[is_vector], origin.load(d, is_vector))
            target.store(builder.fsub(target.load(d, is_vector), product), d, is_vector)

        target.each(emit)
        return context.get_dummy_value()

    return types.void(out, out_row, types.float32, source, source_row), codegen


@intrinsic
def sum_of_squares(typing_context: Any, source: Any, source_row: Any) -> Any:
    """The sum of `source[source_row]²`: element d of the whole vectors goes to lane d % LANES; the lanes are added in
    halves (4 to 0, 5 to 1, …, then 2 to 0, 3 to 1, then 1 to 0); at last the sum of the rest is added."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        origin = Row(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        zeros = ir.Constant(VECTOR, [0.0] * LANES)
        sums = {False: cgutils.alloca_once(builder, FLOAT), True: cgutils.alloca_once(builder, VECTOR)}
        builder.store(FLOAT(0.0), sums[False])
        builder.store(zeros, sums[True])

        def emit(d: Any, is_vector: bool) -> None:
            value = origin.load(d, is_vector)
            total = builder.fadd(builder.load(sums[is_vector]), builder.fmul(value, value))
            builder.store(total, sums[is_vector])

        origin.each(emit)
        return builder.fadd(_add_lanes(builder, builder.load(sums[True])), builder.load(sums[False]))

    return types.float32(source, source_row), codegen


def broadcast(builder: Any, scalar: Any, count: int = LANES) -> Any:
    """A vector of one number."""
    undefined = ir.Constant(ir.VectorType(FLOAT, count), ir.Undefined)
    first = builder.insert_element(undefined, scalar, INDEX(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INDEX, count), [0] * count))


def _add_lanes(builder: Any, vector: Any) -> Any:
    lanes = [builder.extract_element(vector, INDEX(lane)) for lane in range(LANES)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [builder.fadd(lanes[lane], lanes[lane + half]) for lane in range(half)]
    return lanes[0]
