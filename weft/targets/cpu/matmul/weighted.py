"""Many short rows times one vector (a linear model): lanes go across rows, which are turned in registers unless
neighbouring rows are neighbours in memory.

Every element is the chain of multiply-adds that it is in the tiled kernel (gemm.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weft.codegen.kernel import LANES
from weft.codegen.scope import reversed_lanes
from weft.codegen.transposes import columns_of
from weft.llvm.builder import AnyValue, Value
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import ProductFrame

WORDS: Final = ("tasks", "*a", "*b", "*out", "rows", "block", "k", "a_row", "a_column", "b_k")
FEWEST: Final = 4
"""Terms that fill the shortest vectors which are turned, but for pairs of elements of four bytes or more."""


class Weighted:
    """Writes the kernel for rows of k terms whose elements lie one after the other; without a k, for rows of any number
    of terms of which elements of neighbouring rows do. `back`: each lies before the one that it follows."""

    words = WORDS

    def __init__(self, kind: Elements, k: int | None, back: bool = False) -> None:
        self.kind, self.k, self.back = kind, k, back
        self.piece = LANES if kind.work.size <= 4 else 8
        form = f"{'columns' if k is None else k}{'_back' * back}"
        self.name = f"weighted_{kind.memory.name}_{kind.work.name}_{form}"

    def ir(self) -> str:
        self.frame = f = ProductFrame(self.name, WORDS, 0)
        with f.b.loop(f.begin, f.end, 1) as task:
            first = task.index * f["block"]
            with f.b.loop(first, f.least(f["rows"], first + f["block"]), LANES) as group:
                self._group(f.least(group.index, f["rows"] - LANES))
        return f.module()

    def _group(self, first: Value) -> None:
        """Sixteen rows. The last ones may have been among those before them: what is written is the same."""
        f, kind = self.frame, self.kind
        start = f.b.gep(f["a"], first * f["a_row"])
        total = self._columns(start) if self.k is None else self._turned(start, self.k)
        el.store(f.b, kind, total, f.b.gep(f["out"], first * kind.memory.size))

    def _columns(self, start: Value) -> AnyValue:
        """The sums of rows that are neighbours in memory."""
        f, kind = self.frame, self.kind
        with f.b.loop(0, f["k"], 1, *el.flat([el.zero(f.b, kind, LANES)])) as loop:
            (held,) = el.unflat(kind, loop.carried)
            at = f.b.gep(start, f["a_column"] * loop.index)
            x = el.load(f.b, kind, f.b.gep(at, -(LANES - 1) * kind.memory.size) if self.back else at, LANES)
            x = reversed_lanes(f.b, x) if self.back else x
            y = el.load(f.b, kind, f.b.gep(f["b"], f["b_k"] * loop.index), 1)
            loop.carry(*el.flat([el.multiply_add(f.b, x, el.spread(f.b, y, LANES), held)]))
        (total,) = el.unflat(kind, loop.carried)
        return total

    def _turned(self, start: Value, k: int) -> AnyValue:
        """The sums of rows whose elements lie one after the other."""
        f, kind, piece = self.frame, self.kind, self.piece
        whole = k // piece * piece
        total = el.zero(f.b, kind, LANES)
        if whole:
            with f.b.loop(0, whole, piece, *el.flat([total])) as loop:
                (held,) = el.unflat(kind, loop.carried)
                loop.carry(*el.flat([self._added(held, start, loop.index, piece, 0)]))
            (total,) = el.unflat(kind, loop.carried)
        for begin, lanes, done in _rest(k, whole):
            total = self._added(total, start, f.b.i64(begin), lanes, done)
        return total

    def _added(self, total: AnyValue, start: Value, begin: Value, lanes: int, done: int) -> AnyValue:
        """The sums of sixteen rows with the terms of a piece added, but for those that are `done`."""
        f, size = self.frame, self.kind.memory.size
        at = f.b.gep(start, (begin + (lanes - 1)) * -size if self.back else begin * size)
        rows = [el.load(f.b, self.kind, f.b.gep(at, f["a_row"] * i), lanes) for i in range(LANES)]
        weights = f.b.gep(f["b"], f["b_k"] * begin)
        columns = columns_of(f.b, rows)[:: -1 if self.back else 1]
        for term, x in list(enumerate(columns))[done:]:
            y = el.load(f.b, self.kind, f.b.gep(weights, f["b_k"] * term), 1)
            total = el.multiply_add(f.b, x, el.spread(f.b, y, LANES), total)
        return total


def _rest(k: int, whole: int) -> Iterator[tuple[int, int, int]]:
    """Where the last vectors of a row begin, their lanes, and how many of these have been before: the last one ends
    with the row."""
    rest = k - whole
    if k < FEWEST:
        yield 0, 2, 0
        if k > 2:
            yield 1, 2, 1
        return
    if rest > FEWEST and k < 8:  # a row is no longer than that
        yield whole, FEWEST, 0
        rest -= FEWEST
    lanes = next(lanes for lanes in (FEWEST, 8, LANES) if lanes >= rest)
    if lanes > k:
        yield whole, 8, 0
        lanes, rest = 8, rest - 8
    if rest:
        yield k - lanes, lanes, lanes - rest
