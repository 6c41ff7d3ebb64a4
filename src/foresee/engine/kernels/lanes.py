"""Numbers of two bytes in several lanes at once, while code is emitted: turned into float32, and rounded back.

In: words of 32 bits, one or a vector of them, each with two halves or with one in its low 16 bits. Out: float32, or
words again. Integer shifts and selects without branches, so LLVM has one instruction for each in any width of
registers. `store.halves` says in plain code what they compute, and tests compare both on every kind of number.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from foresee.engine.kernels.vector import FLOAT
from foresee.store.halves import FIRST, SECOND, STEP

HALF, WORD = ir.IntType(16), ir.IntType(32)


class Lanes:
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

    def halves_of(self, words: Any) -> list[Any]:
        """Those in the low halves, and those in the high ones."""
        return [self.builder.and_(words, self.number(0xFFFF)), self.builder.lshr(words, self.number(16))]

    def word_of(self, low: Any, high: Any) -> Any:
        return self.builder.or_(low, self.builder.shl(high, self.number(16)))

    def split(self, vector: Any) -> list[Any]:
        """Of a vector twice as long: its even elements, and its odd ones."""
        undefined, several = ir.Constant(vector.type, ir.Undefined), ir.VectorType(WORD, self.count)
        places = [ir.Constant(several, list(range(first, 2 * self.count, 2))) for first in (0, 1)]
        return [self.builder.shuffle_vector(vector, undefined, those) for those in places]

    def random(self, low: Any, high: Any, column: Any) -> list[Any]:
        """`store.halves.bits_of_column` for the even columns from `column` on and for the odd ones; of one: its own."""
        b = self.builder
        hashes = self._hashes(low, high, b.trunc(b.lshr(column, column.type(1)), WORD))
        if self.count > 1:
            return self.halves_of(hashes)
        is_odd = b.trunc(b.and_(column, column.type(1)), WORD)
        return [b.and_(b.lshr(hashes, b.shl(is_odd, WORD(4))), WORD(0xFFFF))]

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

    def float_of_bfloat16(self, half: Any) -> Any:
        return self.builder.bitcast(self.builder.shl(half, self.number(16)), self.float)

    def float_of_float16(self, half: Any) -> Any:
        b, number = self.builder, self.number
        sign, size = b.shl(b.and_(half, number(0x8000)), number(16)), b.and_(half, number(0x7FFF))
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
            added = random
        total = b.select(b.fcmp_unordered("uno", value, value), bits, b.add(bits, added))
        return b.lshr(total, self.number(16))

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
            added = b.lshr(b.shl(random, number(15)), b.sub(number(31), cut))
        half = b.lshr(b.add(fraction, added), cut)
        half = b.add(half, b.shl(b.sub(normal, number(113)), number(10)))
        half = self.pick(size, ">", 0x7F800000, number(0x7E00), self.at_most(half, 0x7C00))
        return b.or_(sign, half)
