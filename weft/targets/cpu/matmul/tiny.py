"""Batches of very small products, 3x3 say: lanes are elements of the outputs of several members side by side.

The members of a batch lie one after the other, so sixteen of them are whole vectors of each operand, and which element
goes into which lane is known when the code is written: shuffles with constant patterns, and no vector is partly empty.
Every element is the chain of multiply-adds that it is in the tiled kernel (gemm.py). Rows that are multiplied with one
small matrix (points that are turned, a sum of three weighted columns) are such a batch, whose members share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from weft.codegen.scope import assemble
from weft.llvm.builder import AnyValue, Value
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import ProductFrame

WORDS: Final = ("tasks", "*a", "*b", "*out", "members", "block")
GROUP: Final = 16
"""Members that are multiplied together, and lanes of a vector."""

Shared = Literal["", "left", "right"]


class Tiny:
    """Writes the kernel for members of m rows, n columns and k terms; `a_turned` and `b_turned` lie column by
    column. `shared`: which operand is the same for all members, if one is."""

    words = WORDS

    def __init__(
        self, kind: Elements, m: int, n: int, k: int, a_turned: bool, b_turned: bool, shared: Shared = ""
    ) -> None:
        self.kind, self.m, self.n, self.k = kind, m, n, k
        self.a_turned, self.b_turned, self.shared = a_turned, b_turned, shared
        turned = "_at" * a_turned + "_bt" * b_turned + f"_{shared}_shared" * bool(shared)
        self.name = f"tiny_{kind.memory.name}_{kind.work.name}_{m}x{n}x{k}{turned}"

    def ir(self) -> str:
        self.frame = f = ProductFrame(self.name, WORDS, 0)
        b = f.b
        if self.shared == "right":
            self.repeated = self._repeated()
        elif self.shared == "left":
            self.repeated = self._repeated_rows()
        with b.loop(f.begin, f.end, 1) as task:
            first = task.index * f["block"]
            with b.loop(first, f.least(f["members"], first + f["block"]), GROUP) as group:
                self._group(f.least(group.index, f["members"] - GROUP))
        return f.module()

    def _group(self, first: Value) -> None:
        """Sixteen members. The last ones may have been among those before them: what is written is the same."""
        left = None if self.shared == "left" else self._vectors("a", first, self.m * self.k)
        right = None if self.shared == "right" else self._vectors("b", first, self.k * self.n)
        size = self.m * self.n
        for number in range(size):
            lanes = range(number * GROUP, (number + 1) * GROUP)
            total: AnyValue = el.zero(self.frame.b, self.kind, GROUP)
            for term in range(self.k):
                if left is None:
                    x = self.repeated[term, number * GROUP % size]
                else:
                    x = self._picked(left, [self._in_a(e // size, e % size // self.n, term) for e in lanes])
                if right is None:
                    y = self.repeated[term, number * GROUP % self.n]
                else:
                    y = self._picked(right, [self._in_b(e // size, term, e % self.n) for e in lanes])
                total = el.multiply_add(self.frame.b, x, y, total)
            el.store(self.frame.b, self.kind, total, self._vector("out", first, size, number))

    def _repeated(self) -> dict[tuple[int, int], AnyValue]:
        """Each row of the right operand again and again, in a vector that begins with each of its columns."""
        f, kind = self.frame, self.kind
        found: dict[tuple[int, int], AnyValue] = {}
        for term in range(self.k):
            places = [self._in_b(0, term, j) * kind.memory.size for j in range(self.n)]
            row = [el.load(f.b, kind, f.b.gep(f["b"], place), 1) for place in places]
            for first in {number * GROUP % self.n for number in range(self.m * self.n)}:
                found[term, first] = assemble(f.b, [row[(first + lane) % self.n] for lane in range(GROUP)])
        return found

    def _repeated_rows(self) -> dict[tuple[int, int], AnyValue]:
        """Each column of the left operand, an element for each of the output's, again and again: in vectors that begin
        with each element of the output that a vector begins with."""
        f, kind, size, count = self.frame, self.kind, self.m * self.n, self.m * self.k
        read: list[AnyValue] = []
        for at in range(0, count, GROUP):
            mask = f.leading(f.b.i64(count - at), GROUP).mask if count - at < GROUP else None
            read.append(el.load(f.b, kind, f.b.gep(f["a"], at * kind.memory.size), GROUP, mask))
        found: dict[tuple[int, int], AnyValue] = {}
        for term in range(self.k):
            for first in {number * GROUP % size for number in range(size)}:
                elements = [(first + lane) % size for lane in range(GROUP)]
                places = [self._in_a(0, e // self.n, term) for e in elements]
                found[term, first] = self._picked(read.__getitem__, places)
        return found

    def _in_a(self, member: int, i: int, term: int) -> int:
        inside = term * self.m + i if self.a_turned else i * self.k + term
        return member * self.m * self.k + inside

    def _in_b(self, member: int, term: int, j: int) -> int:
        inside = j * self.k + term if self.b_turned else term * self.n + j
        return member * self.k * self.n + inside

    def _vectors(self, name: str, first: Value, size: int) -> Callable[[int], AnyValue]:
        """The vectors of an operand whose members have `size` elements, each loaded when it is needed first."""
        known: dict[int, AnyValue] = {}

        def vector(number: int) -> AnyValue:
            if number not in known:
                known[number] = el.load(self.frame.b, self.kind, self._vector(name, first, size, number), GROUP)
            return known[number]

        return vector

    def _vector(self, name: str, first: Value, size: int, number: int) -> Value:
        """Where vector `number` of sixteen members of `size` elements lies."""
        f, bytes_each = self.frame, self.kind.memory.size
        return f.b.gep(f[name], first * (size * bytes_each) + number * GROUP * bytes_each)

    def _picked(self, vector: Callable[[int], AnyValue], places: Sequence[int]) -> AnyValue:
        """The elements at these places, counted over all vectors of an operand."""
        numbers = sorted({place // GROUP for place in places})
        parts = [el.flat([vector(number)]) for number in numbers]
        return el.unflat(self.kind, [self._shuffled(numbers, pieces, places) for pieces in zip(*parts, strict=True)])[0]

    def _shuffled(self, numbers: Sequence[int], vectors: Sequence[Value], places: Sequence[int]) -> Value:
        """One part of them: of two vectors by one shuffle, of further ones by another one each."""
        b = self.frame.b
        found: Value | None = None
        for at in range(0, len(numbers), 2):
            pair = {number: k * GROUP for k, number in enumerate(numbers[at : at + 2])}
            order = [pair[p // GROUP] + p % GROUP if p // GROUP in pair else -1 for p in places]
            second = vectors[at + 1] if at + 1 < len(vectors) else None
            some = b.shuffle(vectors[at], second, order)
            if found is None:
                found = some
            else:
                found = b.shuffle(found, some, [k if order[k] < 0 else GROUP + k for k in range(GROUP)])
        assert found is not None
        return found
