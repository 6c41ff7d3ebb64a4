"""The values of rows as kernels take them: float32 as they are, halves turned to float32 and rounded back.

In: the words of rows, float32 rows to compute with, and a `Form`: None, or a tuple whose class says what the halves
are, so that a kernel is compiled for it; its number is the key of stochastic rounding. Out: `read_row` and
`add_row_of` give float32, `write_row` and `subtract_scaled` round. Emitted as vector instructions like `vector`;
`lanes` has their arithmetic. A row that is rounded goes by words, two columns each: its even columns, its odd ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from foresee.arrays import Float32, Int64
from foresee.engine.kernels.lanes import HALF, WORD, Lanes
from foresee.engine.kernels.vector import LANES, Row, broadcast, subtract_scaled_row
from foresee.io.hashing import key_and
from foresee.store.halves import rounding_key, row_key
from foresee.store.layout import Layout

STRIDE = 32
"""Columns that are rounded at a time: two to a word, so their hashes fill the widest registers there are."""
Numbers = Callable[[Any, int], list[Any]]
"""Emits float32 of some columns (the first, how many): the even and the odd ones, as they lie in words; or just one."""


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


class HalfRows(NamedTuple):
    """Rows of halves as a step of `in_place` gets them: it may only hand them on to `subtract_scaled`."""

    form: HalfForm
    words: Float32
    row_of_slot: Int64


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
        """Of one column, or of LANES of them."""
        lanes = Lanes(self.builder, LANES if is_vector else 1)
        return self._float_of(lanes, self.builder.zext(self._load(d, lanes.half), lanes.word))

    def numbers(self, d: Any, count: int) -> list[Any]:
        lanes = Lanes(self.builder, max(1, count // 2))
        if count == 1:
            return [self._float_of(lanes, self.builder.zext(self._load(d, HALF), WORD))]
        return [self._float_of(lanes, half) for half in lanes.halves_of(self._load(d, lanes.word))]

    def store_all(self, numbers: Numbers, width: Any, key: Any) -> None:
        """Every column, rounded with the bits of `key`: STRIDE at a time, then fewer, the last ones one by one."""
        builder, intp = self.builder, width.type
        low, high = builder.trunc(key, WORD), builder.trunc(builder.lshr(key, key.type(32)), WORD)
        begin = intp(0)
        for count in (STRIDE, STRIDE // 2, LANES, 1):
            end = builder.and_(width, intp(-count))
            with cgutils.for_range_slice(builder, begin, end, intp(count), intp) as (d, _):
                self._store(numbers(d, count), d, count, low, high)
            begin = end

    def _store(self, numbers: list[Any], d: Any, count: int, low: Any, high: Any) -> None:
        builder, lanes = self.builder, Lanes(self.builder, max(1, count // 2))
        random = [None] * len(numbers) if self.is_nearest else lanes.random(low, high, d)[-len(numbers) :]
        round_to = lanes.bfloat16_of if self.is_bfloat16 else lanes.float16_of
        rounded = [round_to(number, its_random) for number, its_random in zip(numbers, random, strict=True)]
        word = builder.trunc(rounded[0], HALF) if count == 1 else lanes.word_of(*rounded)
        builder.store(word, self._at(d, word.type)).align = 2

    def _float_of(self, lanes: Lanes, half: Any) -> Any:
        return lanes.float_of_bfloat16(half) if self.is_bfloat16 else lanes.float_of_float16(half)

    def _load(self, d: Any, kind: Any) -> Any:
        value = self.builder.load(self._at(d, kind))
        value.align = 2
        return value

    def _at(self, d: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(self.pointer, [d]), kind.as_pointer())


def _numbers(row: Row, d: Any, count: int) -> list[Any]:
    """Columns of a row of float32 as a row of halves has them."""
    return [row.load(d, False)] if count == 1 else Lanes(row.builder, count // 2).split(row.load_several(d, count))


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
        target.store_all(partial(_numbers, origin), origin.width, args[5])
        return context.get_dummy_value()

    return types.void(form, words, row, source, source_row, types.uint64), codegen


@intrinsic
def _subtract_scaled_halves(
    typing_context: Any, form: Any, words: Any, row: Any, key: Any, scale: Any, source: Any, source_row: Any
) -> Any:
    """Row `row` -= scale * `source[source_row]`, rounded with the bits of `key`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _origin(form, context, builder, signature, args, 1)
        origin = Row(context, builder, signature.args[5], args[5], signature.args[6], args[6])

        def numbers(d: Any, count: int) -> list[Any]:
            scale = args[4] if count == 1 else broadcast(builder, args[4], count // 2)
            pairs = zip(target.numbers(d, count), _numbers(origin, d, count), strict=True)
            return [builder.fsub(value, builder.fmul(scale, gradient)) for value, gradient in pairs]

        target.store_all(numbers, origin.width, args[3])
        return context.get_dummy_value()

    return types.void(form, words, row, types.uint64, types.float32, source, source_row), codegen


def subtract_scaled(values: Any, row: Any, scale: Any, source: Any, source_row: Any) -> None:
    """Row `row` of values, or of `HalfRows`, -= scale * `source[source_row]`; inside kernels."""
    raise NotImplementedError("only kernels call it")


@overload(subtract_scaled, inline="always")
def _subtract_scaled(values: Any, row: Any, scale: Any, source: Any, source_row: Any) -> Callable[..., None]:
    def of_floats(values: Any, row: Any, scale: Any, source: Any, source_row: Any) -> None:
        subtract_scaled_row(values, row, scale, source, source_row)

    def of_halves(values: Any, row: Any, scale: Any, source: Any, source_row: Any) -> None:
        key = row_key(values.form.key, values.row_of_slot[row])
        _subtract_scaled_halves(values.form, values.words, row, key, scale, source, source_row)

    return of_floats if isinstance(values, types.Array) else of_halves
