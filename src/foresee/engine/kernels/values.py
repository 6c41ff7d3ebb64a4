"""The values of rows as kernels take them: float32 as they are, halves turned to float32 and rounded back.

In: the words of rows, float32 rows to compute with, and a `Form`: None, or a tuple whose class says what the halves
are, so that a kernel is compiled for it; its number is the key of stochastic rounding. Out: `read_row` and
`add_row_of` give float32, `write_row` rounds. Emitted as vector instructions like `vector`, without branches;
`base.halves` says in plain code what they compute, and tests compare both on every kind of number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from foresee.base.arrays import Float32
from foresee.base.halves import FIRST, SECOND, STEP, rounding_key
from foresee.base.mixing import key_and
from foresee.engine.kernels.vector import FLOAT, LANES, Row
from foresee.store.contract import Layout

HALF, WORD = ir.IntType(16), ir.IntType(32)


class BFloat16Form(NamedTuple):
    """Values are bfloat16, rounded by random bits."""

    key: np.uint64


class NearestBFloat16Form(NamedTuple):
    """Values are bfloat16, rounded to nearest."""

    key: np.uint64


class Float16Form(NamedTuple):
    """Values are float16, rounded by random bits."""

    key: np.uint64


class NearestFloat16Form(NamedTuple):
    """Values are float16, rounded to nearest."""

    key: np.uint64


HalfForm = BFloat16Form | NearestBFloat16Form | Float16Form | NearestFloat16Form
Form = HalfForm | None
"""None: values are float32, and nothing is rounded."""
FORMS: dict[tuple[str, str], type[Any]] = {
    ("bfloat16", "stochastic"): BFloat16Form,
    ("bfloat16", "nearest"): NearestBFloat16Form,
    ("float16", "stochastic"): Float16Form,
    ("float16", "nearest"): NearestFloat16Form,
}


def form_of(layout: Layout) -> Form:
    """What the values of these tables are, and the key of their roundings; `at_version` makes it one version's."""
    if layout.dtype == "float32":
        return None
    form: HalfForm = FORMS[layout.dtype, layout.rounding](rounding_key(layout.seed))
    return form


def at_version(form: Form, version: int) -> Form:
    """The form with the key of one version's roundings."""
    return None if form is None else type(form)(key_and(form.key, version))


def width_for(form: Form, words: Float32, computed: Float32) -> int:
    """Columns that float32 rows must have beside these words: those they have, where they may."""
    num_words, width = int(words.shape[1]), int(computed.shape[1])
    if form is None:
        return num_words
    return width if (width + 1) // 2 == num_words else 2 * num_words


class _Lanes:
    """Arithmetic on 32-bit integers, one or several of them, while code is emitted."""

    def __init__(self, builder: Any, count: int) -> None:
        self.builder, self.count = builder, count
        self.word, self.half, self.float = (self._several(kind, count) for kind in (WORD, HALF, FLOAT))

    @staticmethod
    def _several(kind: Any, count: int) -> Any:
        return kind if count == 1 else ir.VectorType(kind, count)

    def number(self, value: int, kind: Any = None) -> Any:
        return ir.Constant(kind or self.word, value if self.count == 1 else [value] * self.count)

    def pick(self, value: Any, comparison: str, limit: int, chosen: Any, other: Any) -> Any:
        """`chosen` where the comparison holds."""
        return self.builder.select(self.builder.icmp_unsigned(comparison, value, self.number(limit)), chosen, other)

    def at_least(self, value: Any, limit: int) -> Any:
        return self.pick(value, ">", limit, value, self.number(limit))

    def at_most(self, value: Any, limit: int) -> Any:
        return self.pick(value, "<", limit, value, self.number(limit))

    def random(self, low: Any, high: Any, column: Any) -> Any:
        """`base.halves.bits_of_column` for as many columns: halves of half as many hashes."""
        b = self.builder
        pair = b.trunc(b.lshr(column, column.type(1)), WORD)
        if self.count > 1:
            return b.bitcast(_Lanes(b, self.count // 2)._hashes(low, high, pair), self.half)
        is_odd = b.trunc(b.and_(column, column.type(1)), WORD)
        return b.trunc(b.lshr(self._hashes(low, high, pair), b.shl(is_odd, WORD(4))), HALF)

    def _hashes(self, low: Any, high: Any, first: Any) -> Any:
        b, number = self.builder, self.number
        value = b.add(self._splat(b.add(low, b.mul(first, WORD(STEP)))), self._multiples(STEP))
        value = b.mul(b.xor(value, b.lshr(value, number(16))), number(FIRST))
        value = b.xor(value, self._splat(high))
        value = b.mul(b.xor(value, b.lshr(value, number(13))), number(SECOND))
        return b.xor(value, b.lshr(value, number(16)))

    def _multiples(self, step: int) -> Any:
        several = [lane * step % (1 << 32) for lane in range(self.count)]
        return ir.Constant(self.word, several[0] if self.count == 1 else several)

    def _splat(self, scalar: Any) -> Any:
        if self.count == 1:
            return scalar
        undefined = ir.Constant(self.word, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, WORD(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(self.word, [0] * self.count))

    def part(self, vector: Any, first: int) -> Any:
        """As many elements of a longer vector, from `first` on."""
        places = ir.Constant(ir.VectorType(WORD, self.count), list(range(first, first + self.count)))
        return self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)

    def float_of_bfloat16(self, half: Any) -> Any:
        wide = self.builder.zext(half, self.word)
        return self.builder.bitcast(self.builder.shl(wide, self.number(16)), self.float)

    def float_of_float16(self, half: Any) -> Any:
        b, number = self.builder, self.number
        wide = b.zext(half, self.word)
        sign, size = b.shl(b.and_(wide, number(0x8000)), number(16)), b.and_(wide, number(0x7FFF))
        shifted = b.shl(size, number(13))
        normal = b.add(shifted, number(112 << 23))
        # Below 2^-14 a half is a multiple of 2^-24: as the fraction of a number from 2^-14 on, less 2^-14.
        lowest = b.bitcast(number(113 << 23), self.float)
        small = b.fsub(b.bitcast(b.add(shifted, number(113 << 23)), self.float), lowest)
        value = self.pick(size, "<", 0x400, b.bitcast(small, self.word), normal)
        value = self.pick(size, ">=", 0x7C00, b.add(normal, number(112 << 23)), value)
        return b.bitcast(b.or_(sign, value), self.float)

    def bfloat16_of(self, value: Any, random: Any) -> Any:
        """What is no number here is the result of arithmetic, so the top of its fraction is set and stays."""
        b, bits = self.builder, self.builder.bitcast(value, self.word)
        if random is None:
            added = b.add(self.number(0x7FFF), b.and_(b.lshr(bits, self.number(16)), self.number(1)))
        else:
            added = b.zext(random, self.word)
        total = b.add(bits, added)
        # Only what is no number can grow beyond its exponent, and then its sign changes: it stays as it is.
        total = b.select(b.icmp_signed("<", b.xor(bits, total), self.number(0)), bits, total)
        return b.trunc(b.lshr(total, self.number(16)), self.half)

    def float16_of(self, value: Any, random: Any) -> Any:
        b, number = self.builder, self.number
        bits = b.bitcast(value, self.word)
        size, sign = b.and_(bits, number(0x7FFFFFFF)), b.and_(b.lshr(bits, number(16)), number(0x8000))
        exponent = self.at_least(b.lshr(size, number(23)), 83)
        normal = self.at_least(exponent, 113)
        cut = b.sub(b.add(number(13), normal), exponent)
        hidden = self.pick(size, ">=", 83 << 23, number(0x800000), number(0))
        fraction = b.or_(b.and_(size, number(0x7FFFFF)), hidden)
        fraction = b.lshr(fraction, b.sub(self.at_least(cut, 31), number(31)))
        cut = self.at_most(cut, 31)
        if random is None:
            below_half = b.sub(b.shl(number(1), b.sub(cut, number(1))), number(1))
            added = b.add(below_half, b.and_(b.lshr(fraction, cut), number(1)))
        else:
            added = b.lshr(b.shl(b.zext(random, self.word), number(15)), b.sub(number(31), cut))
        half = b.lshr(b.add(fraction, added), cut)
        half = b.add(half, b.shl(b.sub(normal, number(113)), number(10)))
        half = self.pick(size, ">", 0x7F800000, number(0x7E00), self.at_most(half, 0x7C00))
        return b.trunc(b.or_(sign, half), self.half)


class _HalfRow:
    """The values of a row of halves while code is emitted."""

    def __init__(self, form: Any, context: Any, builder: Any, array_type: Any, array: Any, row_type: Any,
                 row: Any) -> None:  # fmt: skip
        name = form.instance_class.__name__
        self.is_bfloat16, self.is_nearest = "BFloat16" in name, "Nearest" in name
        self.builder = builder
        words = Row(context, builder, array_type, array, row_type, row)
        self.pointer = builder.bitcast(words.pointer, HALF.as_pointer())

    def load(self, d: Any, is_vector: bool) -> Any:
        lanes = _Lanes(self.builder, LANES if is_vector else 1)
        half = self.builder.load(self._at(d, lanes))
        half.align = 2
        return lanes.float_of_bfloat16(half) if self.is_bfloat16 else lanes.float_of_float16(half)

    def store(self, origin: Row, d: Any, count: int, low: Any, high: Any) -> None:
        """`count` columns of a float32 row, rounded; `low` and `high` are the key.

        Eight by eight, as the optimiser stored them, though sixteen share their hashes.
        """
        builder = self.builder
        random = None if self.is_nearest else _Lanes(builder, count).random(low, high, d)
        lanes = _Lanes(builder, min(count, LANES))
        for first in range(0, count, lanes.count):
            at = builder.add(d, d.type(first))
            value = builder.load(builder.bitcast(builder.gep(origin.pointer, [at]), lanes.float.as_pointer()))
            value.align = 4
            its_random = random if random is None or count == lanes.count else lanes.part(random, first)
            half = lanes.bfloat16_of(value, its_random) if self.is_bfloat16 else lanes.float16_of(value, its_random)
            builder.store(half, self._at(at, lanes)).align = 2

    def _at(self, d: Any, lanes: _Lanes) -> Any:
        return self.builder.bitcast(self.builder.gep(self.pointer, [d]), lanes.half.as_pointer())


def _origin(form: Any, context: Any, builder: Any, signature: Any, args: Any, at: int) -> Any:
    """The row that arguments `at` and `at + 1` name."""
    place = (context, builder, signature.args[at], args[at], signature.args[at + 1], args[at + 1])
    return Row(*place) if isinstance(form, types.NoneType) else _HalfRow(form, *place)


@intrinsic
def read_row(typing_context: Any, form: Any, out: Any, out_row: Any, words: Any, row: Any) -> Any:
    """`out[out_row]` = the values of row `row`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = Row(context, builder, signature.args[1], args[1], signature.args[2], args[2])
        origin = _origin(form, context, builder, signature, args, 3)
        target.each(lambda d, is_vector: target.store(origin.load(d, is_vector), d, is_vector))
        return context.get_dummy_value()

    return types.void(form, out, out_row, words, row), codegen


@intrinsic
def add_row_of(typing_context: Any, form: Any, out: Any, out_row: Any, words: Any, row: Any) -> Any:
    """`out[out_row]` += the values of row `row`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = Row(context, builder, signature.args[1], args[1], signature.args[2], args[2])
        origin = _origin(form, context, builder, signature, args, 3)

        def emit(d: Any, is_vector: bool) -> None:
            target.store(builder.fadd(target.load(d, is_vector), origin.load(d, is_vector)), d, is_vector)

        target.each(emit)
        return context.get_dummy_value()

    return types.void(form, out, out_row, words, row), codegen


@intrinsic
def write_row(typing_context: Any, form: Any, words: Any, row: Any, source: Any, source_row: Any, key: Any) -> Any:
    """Row `row` = `source[source_row]`, rounded with the bits of `key`; for halves only."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _origin(form, context, builder, signature, args, 1)
        origin = Row(context, builder, signature.args[3], args[3], signature.args[4], args[4])
        low, high = builder.trunc(args[5], WORD), builder.trunc(builder.lshr(args[5], args[5].type(32)), WORD)
        _store_all(builder, target, origin, low, high)
        return context.get_dummy_value()

    return types.void(form, words, row, source, source_row, types.uint64), codegen


def _store_all(builder: Any, target: _HalfRow, origin: Row, low: Any, high: Any) -> None:
    """Sixteen columns at a time, then eight, then what is left, one by one."""
    intp = origin.width.type
    begin = intp(0)
    for count in (2 * LANES, LANES, 1):
        end = builder.and_(origin.width, intp(-count))
        with cgutils.for_range_slice(builder, begin, end, intp(count), intp) as (d, _):
            target.store(origin, d, count, low, high)
        begin = end
