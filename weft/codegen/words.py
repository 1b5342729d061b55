"""The argument words of kernels: their names in order, for the code that fills them and the code that reads them.

A name that begins with a star is an address. By convention `pK` is the address of operand K, `sK.A` its stride along
outer axis A, `iK` along the inner loop; `eA` is the size of outer axis A, `n` that of the inner loop, and `units` the
extent of the parallel dimension: the places of the outer axes, times `chunks` of `width` elements where the inner loop
is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes as dt
from weft.llvm.builder import PTR, Builder, Value


def fields_of(outer: int, operands: int, *more: str, blocked: bool = False) -> list[str]:
    """The names of the words of a kernel over `outer` axes, with those that it alone has between."""
    names = ["units", "n", *(["width", "chunks"] if blocked else []), *more, *(f"e{a}" for a in range(outer))]
    for k in range(operands):
        names += [f"*p{k}", *(f"s{k}.{a}" for a in range(outer)), f"i{k}"]
    return names


class Words:
    """The argument words of a kernel under construction, read once at its top, and addresses over them."""

    def __init__(self, b: Builder, fields: Sequence[str], outer: int = 0) -> None:
        self.b, self.outer, self.args = b, outer, b.params[0]
        self._words = {
            name.lstrip("*"): b.word(self.args, i, PTR if name.startswith("*") else dt.int64)
            for i, name in enumerate(fields)
        }

    def __getitem__(self, name: str) -> Value:
        return self._words[name]

    def divide(self, x: Value, y: Value | int) -> tuple[Value, Value]:
        """Quotient and remainder of numbers that are not negative."""
        divisor = self.b.like(x, y)
        quotient = self.b.op(f"udiv i64 {x.text}, {divisor.text}", dt.int64, 1)
        return quotient, x - quotient * divisor

    def least(self, x: Value, y: Value | int) -> Value:
        return self.b.intrinsic("smin", x, self.b.like(x, y))

    def indices(self, place: Value, letter: str = "e", count: int | None = None) -> list[Value]:
        """Index along each outer axis for a place of the flattened outer dimension (or of other axes, whose sizes have
        names that begin with another letter)."""
        count = self.outer if count is None else count
        found: list[Value] = []
        rest = place
        for axis in range(count - 1, 0, -1):
            rest, index = self.divide(rest, self[f"{letter}{axis}"])
            found.append(index)
        return [rest, *reversed(found)] if count else []

    def at(self, operand: int, indices: Sequence[Value]) -> Value:
        """The address of an operand at these outer indices (of one that only counts: the number there)."""
        place = self[f"p{operand}"]
        for axis, index in enumerate(indices):
            step = index * self[f"s{operand}.{axis}"]
            place = self.b.gep(place, step) if place.dtype is PTR else place + step
        return place

    def part(self, unit: Value, blocked: bool, width: str = "width") -> tuple[Value, Value, Value]:
        """(place of the outer dimension, first and last element of the inner loop) that a unit of work is."""
        b = self.b
        if not blocked:
            return unit, b.i64(0), self["n"]
        place, chunk = self.divide(unit, self["chunks"]) if self.outer else (b.i64(0), unit)
        start = chunk * self[width]
        return place, start, self.least(start + self[width], self["n"])
