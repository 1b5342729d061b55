"""The kernel for many rows of x: the tiled product of weft/targets/cpu/matmul, whose right operand is unpacked into the
panels that it multiplies from.

The order of summation is that kernel's, and a number of the matrix is fma(code, scale, bias), or a small float times
its scale: so it costs one rounding, and is the same for every row of x.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from weft import dtypes as dt
from weft.codegen.transposes import transposed
from weft.dtypes import Dtype
from weft.llvm.builder import Value
from weft.records import dataclass
from weft.targets.cpu.matmul import gemm
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part
from weft.targets.cpu.matmul.gemm import CHUNK, Chunk, Gemm, Read, Tile
from weft.targets.cpu.quantized.codes import Codes
from weft.targets.cpu.quantized.matrices import INDICES, Matrix, matrix_of, names_of, operands_of_member

_LINE: Final = 64  # bytes of a line of the caches
_WORD: Final = Elements(dt.uint32, dt.uint32)


@dataclass(frozen=True, slots=True)
class Scratch(gemm.Scratch):
    """And where the words of some columns stand, turned."""

    at_words: int


class Tiled(Gemm):
    """Writes the kernel. `turned`: the matrix is to be transposed, so codes lie along k."""

    words: ClassVar[tuple[str, ...]] = (
        *(word for word in gemm.WORDS if word not in ("*b", "b_k", "b_column")), "*w", "*scales", "*biases", "w_row",
        "scales_row", "biases_row", "at_words",
    )  # fmt: skip

    def __init__(
        self, kind: Elements, tile: Tile, read_a: Read, codes: Codes, scales: Dtype, *, turned: bool, gathered: bool
    ) -> None:
        super().__init__(kind, tile, read_a, "any", flipped=False, partial=False)
        self.codes, self.scales, self.turned, self.gathered = codes, scales, turned, gathered
        if gathered:
            self.words = (*self.words, *INDICES)  # type: ignore[misc]

    @property
    def name(self) -> str:
        form = "_turned" * self.turned + "_gathered" * self.gathered
        return f"q{super().name}_{self.codes.name}_{self.scales.name}{form}"

    @property
    def operands(self) -> int:
        return 0 if self.gathered else 1 + len(names_of(self.codes.packing))

    @property
    def step(self) -> int:
        """What the columns of a block are a multiple of: whole panels, and whole groups where these lie along them."""
        return self.tile.columns if self.turned else math.lcm(self.tile.columns, self.codes.packing.group)

    def scratch(self, block_m: int, block_n: int, k: int) -> Scratch:
        plain = super().scratch(block_m, block_n, k)
        words = CHUNK * self.codes.packing.bits // 32 * self.tile.lanes * dt.uint32.size
        return Scratch(plain.panel, plain.at_a, plain.at_total, plain.size + words, plain.size)

    # ---- where things are ----

    def _operands(self, member: Value) -> tuple[Value, Any]:
        f, packing = self.frame, self.codes.packing
        if self.gathered:
            offset, offsets = operands_of_member(f, packing, member)
        else:
            offset, *offsets = f.offsets(member)
        return self.b.gep(f["a"], offset), matrix_of(f, packing, offsets)

    def _from_column(self, right: Any, j: Value) -> Matrix:
        return self._moved(right, j) if self.turned else self._along(right, j)

    def _of_chunk(self, right: Any, chunk: Value) -> Matrix:
        return self._along(right, chunk * CHUNK) if self.turned else self._moved(right, chunk * CHUNK)

    def _moved(self, matrix: Matrix, rows: Value) -> Matrix:
        """The matrix from a row on."""
        return matrix.moved(self.frame, rows)

    def _along(self, matrix: Matrix, numbers: Value) -> Matrix:
        """The matrix from a number of a row on; it begins a group."""
        group, words = self.codes.packing.group, self.codes.packing.bits
        step = self.frame.divide(numbers, group)[0] * self.scales.size
        b = self.b
        return Matrix(
            b.gep(matrix.w, self.frame.divide(numbers * words, 8)[0]),
            b.gep(matrix.scales, step),
            b.gep(matrix.biases, step),
        )

    # ---- unpacking ----

    def _pack_right(self, chunk: Chunk) -> Value:
        (self._unpack_columns if self.turned else self._unpack_rows)(chunk)
        return self.frame.scratch

    def _number(self, code: Value, scale: Value, bias: Value | None) -> Value:
        return code * scale if bias is None else self.b.fma(code, scale, bias)

    def _unpack_columns(self, chunk: Chunk) -> None:
        """Rows of codes are columns of the panel: their words are turned first, so that lanes are columns."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        whole = (chunk.columns + (lanes - 1)) & -lanes  # so that no lane of a vector holds what was there before
        with b.loop(0, whole, lanes) as strip:
            matrices = self._strip_of(chunk, strip.index)
            target = self._in_panel(strip.index)
            with b.loop(0, f.divide(chunk.depth, self.codes.packing.group)[0], 1) as group:
                scale, bias = self._steps(matrices, group.index)
                with b.loop(group.index * self.codes.units, (group.index + 1) * self.codes.units, 1) as unit:
                    at = b.gep(target, unit.index * (self.codes.codes * self.panel_row))
                    words = self._turned_words(unit.index)
                    for j in range(self.codes.codes):
                        number = self._number(self.codes.number(b, words, j, exact=True), scale, bias)
                        b.store(number, b.gep(at, j * self.panel_row))

    def _strip_of(self, chunk: Chunk, column: Value) -> list[Matrix]:
        """Some columns from one on, whose words are turned; past the last one, that one again."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        matrices = [chunk.right.moved(f, f.least(column + r, chunk.columns - 1)) for r in range(lanes)]
        # The words of the next chunk, of which a row has too few to be guessed, come while this one is multiplied.
        size = CHUNK * self.codes.packing.bits // 8
        for at in matrices:
            for line in range(size, 2 * size, _LINE):
                b.prefetch(b.gep(at.w, line), level=2)
        self._turn_words([m.w for m in matrices], f.divide(chunk.depth * self.codes.packing.bits, 32)[0])
        return matrices

    def _turn_words(self, rows: list[Value], count: Value) -> None:
        """Words of all rows one after the other, then the next ones: as many rows at a time as stay in registers."""
        f, b, turn, size = self.frame, self.b, self.tile.turn, dt.uint32.size
        for first in range(0, len(rows), turn):
            target = b.gep(f.scratch, f["at_words"] + first * size)

            def one(word: Value, part: Part | None, first: int = first, target: Value = target) -> None:
                some = [f.load(_WORD, b.gep(row, word * size), turn, part) for row in rows[first : first + turn]]
                for i, x in enumerate(transposed(b, some)):
                    b.store(x, b.gep(target, (word + i) * (len(rows) * size)))

            f.sweep(count, turn, one)

    def _turned_words(self, unit: Value) -> list[Value]:
        """The words of a unit of every column."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        at = b.gep(f.scratch, f["at_words"] + unit * (self.codes.words * lanes * dt.uint32.size))
        found = [b.load(b.gep(at, i * lanes * dt.uint32.size), dt.uint32, lanes) for i in range(self.codes.words)]
        return [x for x in found if isinstance(x, Value)]

    def _steps(self, matrices: list[Matrix], group: Value) -> tuple[Value, Value | None]:
        """Scales and biases of a group of every column."""
        b, offset = self.b, group * self.scales.size
        scale = self.codes.scale(b, self._gathered([b.gep(m.scales, offset) for m in matrices]))
        if not self.codes.packing.affine:
            return scale, None
        return scale, self.codes.scale(b, self._gathered([b.gep(m.biases, offset) for m in matrices]))

    def _gathered(self, places: list[Value]) -> Value:
        """Scales or biases, one from each place."""
        b = self.b
        lanes = b.poison(self.scales, len(places))
        for i, at in enumerate(places):
            one = b.load(at, self.scales, 1)
            assert isinstance(one, Value)
            lanes = b.insert(lanes, one, i)
        return lanes

    def _unpack_rows(self, chunk: Chunk) -> None:
        """Rows of codes are rows of the panel: lanes are neighbouring codes."""
        f, b, codes, turn = self.frame, self.b, self.codes, self.tile.turn
        packing = codes.packing
        lanes = min(turn, codes.codes)
        with b.loop(0, chunk.depth, 1) as row:
            matrix, below = chunk.right.moved(f, row.index), row.index * self.panel_row
            with b.loop(0, f.divide(chunk.columns, packing.group)[0], 1) as group:
                scale, bias = (None if x is None else b.splat(x, lanes) for x in self._step(matrix, group.index))
                assert scale is not None
                with b.loop(group.index * codes.units, (group.index + 1) * codes.units, 1) as unit:
                    words = b.load(b.gep(matrix.w, unit.index * (4 * codes.words)), dt.uint32, codes.words)
                    assert isinstance(words, Value)
                    for start in range(0, codes.codes, lanes):
                        at = b.gep(self._in_panel(unit.index * codes.codes + start), below)
                        b.store(self._number(codes.run(b, words, start, lanes), scale, bias), at)

    def _step(self, matrix: Matrix, group: Value) -> tuple[Value, Value | None]:
        b, offset = self.b, group * self.scales.size
        found = []
        for at in (matrix.scales, matrix.biases)[: 1 + self.codes.packing.affine]:
            one = b.load(b.gep(at, offset), self.scales, 1)
            assert isinstance(one, Value)
            found.append(self.codes.scale(b, one))
        return found[0], found[1] if len(found) == 2 else None
