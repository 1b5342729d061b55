"""The kernel for a few rows of fixed-point numbers (fixed.py): that of few.py, but a sum over a unit is exact, and is
multiplied by the step of its group of x before its scale."""

from __future__ import annotations

from weft import dtypes as dt
from weft.codegen.transposes import columns_of
from weft.dtypes import Dtype
from weft.llvm.builder import Value
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part
from weft.targets.cpu.quantized.codes import Codes
from weft.targets.cpu.quantized.few import CHUNK, LANES, FewRows
from weft.targets.cpu.quantized.fixed import NUMBER, pairs_added, row_at

_VECTOR = LANES * dt.int32.size


class FixedFewRows(FewRows):
    """Writes the kernel. What is turned of x is, for each sixteen units, vectors of pairs, then one of steps.
    `pairs`: how pairs are multiplied (`ProductMachine.pairs`)."""

    def __init__(
        self, kind: Elements, codes: Codes, scales: Dtype, lanes: int, together: int, pairs: str, *, single: bool,
        gathered: bool,
    ) -> None:  # fmt: skip
        super().__init__(kind, codes, scales, lanes, together, single=single, gathered=gathered)
        self.pairs = pairs
        self.unit_size = codes.codes * NUMBER + dt.float32.size
        self.chunk_row = CHUNK // codes.codes * self.unit_size

    @property
    def name(self) -> str:
        return f"{super().name}_{self.pairs}"

    def _take(self, x: Value, row: Value, k: Value, depth: Value) -> None:
        f, b, codes, group = self.frame, self.b, self.codes.codes, self.codes.packing.group
        fixed = row_at(f, x, f["k"], group).along(f, k, group)
        target = b.gep(f.scratch, row * self.chunk_row)
        units = f.divide(depth, codes)[0]
        whole = units & -LANES
        for begin, end, tail in ((b.i64(0), whole, False), (whole, units, True)):
            with b.loop(begin, end, LANES) as block:
                first = block.index
                part = f.leading(units - first, LANES) if tail else None
                place = b.gep(target, first * self.unit_size)
                starts = [f.least(first + lane, units - 1) for lane in range(LANES)]
                rows = [b.load(b.gep(fixed.numbers, at * (codes * NUMBER)), dt.int32, codes // 2) for at in starts]
                for i, column in enumerate([*columns_of(b, rows), self._steps(fixed.steps, first, part)]):
                    b.store(column, b.gep(place, i * _VECTOR))
        sums = b.gep(f.scratch, f["at_sums"] + row * self.sums_row)

        def one(at: Value, part: Part | None) -> None:
            offset = at * dt.float32.size
            f.store(self.wide, f.load(self.wide, b.gep(fixed.sums, offset), LANES, part), b.gep(sums, offset))

        f.sweep(f.divide(depth, group)[0], LANES, one)

    def _steps(self, steps: Value, unit: Value, part: Part | None) -> Value:
        """The steps of sixteen units from one on, or of those of them that there are."""
        f, b, units = self.frame, self.b, self.codes.units
        count = max(1, LANES // units)
        mask = None if part is None or count == 1 else f.leading(f.divide(part.count, units)[0], count).mask
        found = b.load(b.gep(steps, f.divide(unit, units)[0] * dt.float32.size), dt.float32, count, mask)
        assert isinstance(found, Value)
        if count == 1:
            return b.splat(found, LANES)
        return b.shuffle(found, None, [lane // units for lane in range(LANES)])

    def _unit_sums(self, words: list[list[Value]], x: list[Value], unit: Value, piece: int) -> list[Value]:
        b, lanes = self.b, self.lanes
        size = lanes * dt.int32.size
        rows = [b.gep(at, unit * self.unit_size + piece * size) for at in x]
        vectors = self.codes.codes // 2
        totals: list[Value | None] = [None] * (len(x) * len(words))
        for i in range(vectors):
            pairs = [b.load(b.gep(row, i * _VECTOR), dt.int32, lanes) for row in rows]
            codes = [b.cast(self.codes.pair(b, w, i), dt.int32) for w in words]
            each = [(p, c) for p in pairs for c in codes]
            totals = [
                pairs_added(b, total, p, c, self.pairs)  # type: ignore[arg-type]
                for total, (p, c) in zip(totals, each, strict=True)
            ]
        steps = [b.load(b.gep(row, vectors * _VECTOR), dt.float32, lanes) for row in rows for _ in words]
        return [b.cast(t, dt.float32) * s for t, s in zip(totals, steps, strict=True)]  # type: ignore[arg-type, operator]
