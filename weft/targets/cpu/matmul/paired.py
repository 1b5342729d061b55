"""Tiled products of bfloat16 with the instruction that multiplies and adds two terms at once (AVX-512 BF16).

It is two fused multiply-adds, of which the one with the upper halves of its operands comes first, so a pair of
neighbouring terms is a word whose upper half is the first of them. It takes subnormal operands for zeros, and gives
zeros for subnormal sums. So operands are looked at where they are packed: where all of them are 0 or of a size from
2**LEAST on and below 2**MOST, a product is a multiple of 2**-126 and a normal number or 0, and so is each sum. Then the
bits are those of the specified chains. A chunk with other elements is multiplied in float32 (gemm.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from weft import dtypes as dt
from weft.codegen.transposes import transposed
from weft.llvm.builder import AnyValue, Value
from weft.llvm.engine import Source
from weft.records import dataclass, replace
from weft.targets.cpu.matmul import gemm
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part, ProductFrame
from weft.targets.cpu.matmul.gemm import (
    CHUNK,
    WORDS,
    Chunk,
    Gemm,
    MatrixGemm,
    Parts,
    Read,
    Scratch,
    Sums,
    Tile,
    round_up,
)

LEAST: Final = -56
MOST: Final = 63
_BIAS, _SHIFT = 127, 7  # of bfloat16
_LOWEST: Final = (_BIAS + LEAST) << _SHIFT
_SPAN: Final = ((MOST - LEAST) << _SHIFT) - 1
_LANES: Final = 16  # words of a vector
_WORD: Final = 4  # bytes of a pair

_PAIRS: Final = ("rows", "columns")
_WORDS: Final = (*WORDS, "at_flags")
_FLAGS: Final = 64  # bytes at the end of scratch memory: whether a chunk was multiplied, and all so far


def takes(kind: Elements, read_a: Read, read_b: Read, *, back: bool = False) -> bool:
    """Whether a product of such elements, which are read in such a way, can be made of pairs. `back`: rows of a lie in
    memory from their last element to their first one."""
    return kind.memory is dt.bfloat16 and (back or read_a in _PAIRS) and read_b in _PAIRS


@dataclass(frozen=True, slots=True)
class PairedScratch(Scratch):
    at_flags: int


class PairedGemm(MatrixGemm):
    """The kernel. What is done with a chunk are two functions: with pairs, and, if those do not do, without. `once`:
    there is but one chunk, whose sums are rounded as they leave their registers. `back`: see `takes`. `k`: how many
    terms there are, where that is known."""

    words: ClassVar[tuple[str, ...]] = _WORDS

    def __init__(self, *args: Any, k: int | None, back: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.back = back
        self.once = k is not None and k <= CHUNK and self.apart and self.epilogue is None
        self.short = k is not None and k <= 2 * _LANES
        if self.epilogue is not None:
            self.words = (*_WORDS, *self.epilogue.words())  # type: ignore[misc]

    @property
    def name(self) -> str:
        return f"{super().name}_paired" + "_once" * self.once + "_short" * self.short + "_back" * self.back

    def scratch(self, block_m: int, block_n: int, k: int) -> PairedScratch:
        """Panels and rows have room for whole squares of pairs that are turned."""
        rows, panels = round_up(block_m, _LANES), -(-block_n // self.tile.columns)
        panel = round_up(min(k, CHUNK), 2 * _LANES) * self.panel_row
        at_a = panels * panel
        at_total = at_a + rows * self.a_row
        size = at_total + (rows * panels * self.panel_row if self.apart else 0)
        return PairedScratch(panel, at_a, at_total, size + _FLAGS, size)

    @property
    def calls(self) -> tuple[Source, ...]:
        t, columns = self.tile, "" if self.cut == "any" else f"_{self.cut}"
        reads = f"{self.read_a}_{self.read_b}"
        paired, other = (f"gemm_{way}_{reads}_{t.vectors}x{t.lanes}{columns}" for way in ("paired", "unpaired"))
        paired = f"{paired}_{t.rows}" + "_once" * self.once + "_short" * self.short + "_back" * self.back
        return (
            Source(f"matmul:{paired}", paired, lambda: self._paired_ir(paired)),
            Source(f"matmul:{other}", other, lambda: self._other_ir(other)),
        )

    def _paired_ir(self, name: str) -> str:
        kernel = _Paired(self.kind, self.tile, self.read_a, self.read_b, cut=self.cut, **_PLAIN)
        kernel.total_size, kernel.back = dt.bfloat16.size if self.once else self.size, self.back
        if self.short:
            kernel.a_row = 2 * _LANES * dt.bfloat16.size
        return _function(name, kernel)

    def _other_ir(self, name: str) -> str:
        """With few sums: it is seldom called, and takes LLVM its time too."""
        tile = Tile(2, self.tile.vectors, self.tile.lanes)
        return _function(name, Gemm(self.kind, tile, self.read_a, self.read_b, cut=self.cut, **_PLAIN))

    def _multiply(self, chunk: Chunk, totals: Sums, number: Value) -> None:
        f, b = self.frame, self.b
        paired, other = (source.name for source in self.calls)
        more = [chunk.left, chunk.right, chunk.rows, chunk.columns, chunk.depth]
        best = self._out if self.once else totals
        b.call_void(paired, *b.params, *more, best.at, best.row, number)
        flags = b.gep(f.scratch, f["at_flags"])
        fine = b.word(flags, 0)
        with b.when(fine.eq(0)):
            b.call_void(other, *b.params, *more, totals.at, totals.row, number)
            if self.once:
                super()._round(totals, self._out, chunk.rows, chunk.columns)
        if not self.once:
            b.store(fine & b.choose(number.eq(0), 1, b.word(flags, 1)), b.gep(flags, 8))

    def _round(self, totals: Sums, out: Sums, rows: Value, columns: Value) -> None:
        """Where all chunks were pairs, no total is subnormal."""
        if self.once:
            return
        f, b = self.frame, self.b
        fine = b.word(b.gep(f.scratch, f["at_flags"]), 1)
        with b.when(fine.eq(0)):
            super()._round(totals, out, rows, columns)
        with b.when(fine.ne(0)), b.loop(0, rows, 1) as row:
            source, target = totals.line(row.index), out.line(row.index)

            def one(j: Value, part: Part | None) -> None:
                x = f.load(self.wide, b.gep(source, j * self.size), _LANES, part)
                _store_rounded(f, x, b.gep(target, j * dt.bfloat16.size), part)

            f.sweep(columns, _LANES, one)


def _store_rounded(f: ProductFrame, x: AnyValue, at: Value, part: Part | None) -> None:
    """Sums that are not subnormal, rounded by the processor: to nearest even, as specified."""
    rounded = f.b.call("llvm.x86.avx512bf16.cvtneps2bf16.512", dt.uint16, _LANES, x)  # type: ignore[arg-type]
    f.b.store(rounded, at, None if part is None else part.mask)


_PLAIN: Final[dict[str, Any]] = {"flipped": False, "partial": False}


def _function(name: str, kernel: Gemm) -> str:
    """What is done with a chunk, as a function."""
    kernel.frame = f = ProductFrame(name, _WORDS, kernel.operands, gemm.CHUNK_PARAMS)
    kernel.b = f.b
    left, right, rows, columns, depth, totals, row, number = f.more
    kernel._multiply(Chunk(left, right, rows, columns, depth), Sums(totals, row), number)
    return f.module()


class _Paired(Gemm):
    """Writes what is done with a chunk of pairs. A packed row of a is CHUNK elements, or 32 where there are no more, so
    that rows are not far apart; a row of a panel is two of b."""

    back = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.a_row = CHUNK // 2 * _WORD

    def _multiply(self, chunk: Chunk, totals: Sums, number: Value) -> None:
        f, b = self.frame, self.b
        left, worst = self._pairs_of_left(chunk)
        worst = self._pairs_of_right(chunk, worst)
        fine = ~b.any(worst > _SPAN)
        b.store(b.cast(fine, dt.int64), b.gep(f.scratch, f["at_flags"]))
        with b.when(fine):
            self._block(replace(chunk, left=left, right=f.scratch), totals, number.eq(0))

    # ---- packing ----

    def _pairs_of_left(self, chunk: Chunk) -> tuple[Value, Value]:
        """Where the packed rows are, and how far elements are from what is fine."""
        f, b = self.frame, self.b
        packed, none = b.gep(f.scratch, f["at_a"]), b.const(dt.uint16, 0, 2 * _LANES)
        if self.read_a == "rows" or self.back:
            whole = chunk.depth & -2 * _LANES
            rest = f.leading(chunk.depth - whole, 2 * _LANES)
            with b.loop(0, chunk.rows, 1, none) as r:
                start, target = b.gep(chunk.left, r.index * f["a_row"]), b.gep(packed, r.index * self.a_row)

                def one(k: Value, worst: Value, part: Part | None) -> Value:
                    x = (
                        self._backward(start, k, part)
                        if self.back
                        else self._along(b.gep(start, k * dt.bfloat16.size), part)
                    )
                    b.store(x, b.gep(target, k * dt.bfloat16.size))
                    return self._worse(worst, x)

                with b.loop(0, whole, 2 * _LANES, r.carried[0]) as part:
                    part.carry(one(part.index, part.carried[0], None))
                worst = part.carried[0]
                r.carry(*b.rarely(rest.count > 0, [worst], lambda: [one(whole, worst, rest)], apart=False))
            return packed, r.carried[0]
        with b.loop(0, chunk.rows, _LANES, none) as strip:
            start = b.gep(chunk.left, strip.index * dt.bfloat16.size)
            count, below = chunk.rows - strip.index, b.gep(packed, strip.index * self.a_row)
            with b.loop(0, chunk.depth, 2 * _LANES, strip.carried[0]) as part:
                pairs = [self._across(start, f["a_k"], part.index + 2 * i, chunk.depth, count) for i in range(_LANES)]
                for i, row in enumerate(transposed(b, pairs)):
                    b.store(row, b.gep(below, part.index * dt.bfloat16.size + i * self.a_row))
                part.carry(self._worse(part.carried[0], *pairs))
            strip.carry(part.carried[0])
        return packed, strip.carried[0]

    def _pairs_of_right(self, chunk: Chunk, worst: Value) -> Value:
        """Panels of pairs."""
        f, b = self.frame, self.b
        if self.read_b == "rows":
            with b.loop(0, chunk.depth, 2, worst) as r:
                below = (r.index >> 1) * self.panel_row
                with b.loop(0, chunk.columns, _LANES, r.carried[0]) as part:
                    start = b.gep(chunk.right, part.index * dt.bfloat16.size)
                    x = self._across(start, f["b_k"], r.index, chunk.depth, chunk.columns - part.index)
                    b.store(x, b.gep(self._in_panel(part.index), below))
                    part.carry(self._worse(part.carried[0], x))
                r.carry(part.carried[0])
            return r.carried[0]
        with b.loop(0, chunk.columns, _LANES, worst) as strip:
            last, target = chunk.columns - 1, self._in_panel(strip.index)
            starts = [b.gep(chunk.right, f.least(strip.index + i, last) * f["b_column"]) for i in range(_LANES)]
            with b.loop(0, chunk.depth, 2 * _LANES, strip.carried[0]) as part:
                at, left = part.index * dt.bfloat16.size, f.leading(chunk.depth - part.index, 2 * _LANES)
                words = [self._along(b.gep(start, at), left) for start in starts]
                below = b.gep(target, (part.index >> 1) * self.panel_row)
                for i, row in enumerate(transposed(b, words)):
                    b.store(row, b.gep(below, i * self.panel_row))
                part.carry(self._worse(part.carried[0], *words))
            strip.carry(part.carried[0])
        return strip.carried[0]

    def _along(self, at: Value, part: Part | None) -> Value:
        """Pairs of neighbours in memory; elements that are not there are 0."""
        b = self.b
        both = b.load(at, dt.uint16, 2 * _LANES, None if part is None else part.mask)
        assert isinstance(both, Value)
        words = b.op(f"bitcast {both.type} {both.text} to <{_LANES} x i32>", dt.uint32, _LANES)
        return (words << 16) | (words >> 16)

    def _backward(self, start: Value, k: Value, part: Part | None) -> Value:
        """Pairs from number k on of a row that lies from its last element to its first one: `_along` turned round."""
        b, lanes = self.b, 2 * _LANES
        mask = None
        if part is not None:
            mask = b.iota(dt.int32, lanes) >= b.cast(lanes - part.count, dt.int32)
        both = b.load(b.gep(start, (k + (lanes - 1)) * -dt.bfloat16.size), dt.uint16, lanes, mask)
        assert isinstance(both, Value)
        return b.reverse(b.op(f"bitcast {both.type} {both.text} to <{_LANES} x i32>", dt.uint32, _LANES))

    def _across(self, start: Value, step: Value, k: Value, depth: Value, count: Value) -> Value:
        """Pairs of which the second element lies `step` behind the first one: of `count` lanes, and of the terms from
        number k on that there are."""
        f, b = self.frame, self.b
        halves = []
        for number in (k, k + 1):
            there = b.choose(number < depth, count, 0)
            at = b.gep(start, f.least(number, depth - 1) * step)  # masks hide what is not there, but not fast
            x = b.load(at, dt.uint16, _LANES, f.leading(there, _LANES).mask)
            assert isinstance(x, Value)
            halves.append(b.cast(x, dt.uint32))
        return (halves[0] << 16) | halves[1]

    def _worse(self, worst: Value, *words: Value) -> Value:
        """The largest distance from the lowest size that is fine, as integers that wrap, of these elements too."""
        b = self.b
        for x in words:
            both = b.op(f"bitcast {x.type} {x.text} to <{2 * _LANES} x i16>", dt.uint16, 2 * _LANES)
            size = both & 0x7FFF
            worst = b.intrinsic("umax", worst, b.choose(size.eq(0), 0, size - _LOWEST))
        return worst

    # ---- computing ----

    def _tile(self, chunk: Chunk, target: Sums, rows: gemm.Rows, parts: Parts, first: Value) -> None:
        if self.total_size == self.size:
            super()._tile(chunk, target, rows, parts, first)
            return
        b, vectors = self.b, len(parts)
        sums = self._products(chunk, rows, [(v * _LANES * self.size, part) for v, part in enumerate(parts)])
        for i, row in enumerate(rows):
            line = target.line(row)
            for v, part in enumerate(parts):
                _store_rounded(self.frame, sums[i * vectors + v], b.gep(line, v * _LANES * self.total_size), part)

    def _products(self, chunk: Chunk, rows: gemm.Rows, columns: gemm.Columns) -> list[AnyValue]:
        return super()._products(replace(chunk, depth=(chunk.depth + 1) >> 1), rows, columns)

    def _load_right(self, at: Value, part: Part | None) -> AnyValue:
        return self.b.load(at, dt.int32, _LANES)

    def _added(self, sums: list[AnyValue], places: Sequence[Value], y: Sequence[AnyValue]) -> list[AnyValue]:
        b, vectors = self.b, len(y)
        for i, at in enumerate(places):
            x = b.splat(b.load(at, dt.int32, 1), _LANES)  # type: ignore[arg-type]
            for v in range(vectors):
                n = i * vectors + v
                sums[n] = b.call("llvm.x86.avx512bf16.dpbf16ps.512", dt.float32, _LANES, sums[n], x, y[v])  # type: ignore[arg-type]
        return sums
