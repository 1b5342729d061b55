"""The right operand of a tiled product, packed once for all blocks of rows.

A block that packs what it multiplies with does so for its own rows alone. Where several blocks share an operand, the
weights of a convolution above all, a launch before them lays it out as tiles read it (gemm.py): panel by panel, in each
all k, row by row. The axes that are summed over may lie in any way, so no copy comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from weft.codegen.launch import Launch, Pointer
from weft.llvm.builder import AnyValue, Value
from weft.llvm.engine import Source
from weft.records import dataclass
from weft.targets.axes import Axis
from weft.targets.cpu.matmul import gemm
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part, Word, block
from weft.targets.cpu.matmul.gemm import Chunk, Gemm, Tile, round_up
from weft.targets.cpu.matmul.tasks import STREAM, grain_of

_DEPTH: Final = 256  # terms of a panel that are a task


@dataclass(frozen=True, slots=True)
class Matrix:
    """A right operand: where it lies, the axes of k, and its columns, so many bytes apart."""

    pointer: Pointer
    inside: Sequence[Axis]
    n: Any
    column: int

    @property
    def k(self) -> Any:
        found: Any = 1
        for axis in self.inside:
            found = found * axis.size
        return found


class Panels(Gemm):
    """Writes the kernel that packs an operand whose k goes along so many axes. A task is a part of a panel."""

    def __init__(self, kind: Elements, tile: Tile, read_b: gemm.Read, axes: int) -> None:
        super().__init__(kind, tile, "direct", read_b, flipped=False, partial=False)
        self.axes = axes
        sizes = [f"{name}{axis}" for axis in range(axes) for name in ("k", "ks")]
        words = ["tasks", "*b", "*out", "n", "k", "parts", "panels", "panel", "b_k", "b_column", *sizes]
        self.words = tuple(words)  # type: ignore[misc]
        self._to: Value

    @property
    def name(self) -> str:
        t = self.tile
        return f"panels_{self.kind.memory.name}_{self.read_b}_{t.vectors}x{t.lanes}_{self.axes}"

    @property
    def operands(self) -> int:
        return 1

    def _task(self, task: Value) -> None:
        f, b = self.frame, self.b
        rest, panel = f.divide(task, f["panels"])  # neighbours read the same rows
        member, part = f.divide(rest, f["parts"])
        begin, j = part * _DEPTH, panel * self.tile.columns
        depth, columns = f.least(f["k"] - begin, _DEPTH), f.least(f["n"] - j, self.tile.columns)
        source = b.gep(f["b"], f.offsets(member)[0] + j * f["b_column"])
        self._to = b.gep(f["out"], (member * f["panels"] + panel) * f["panel"] + begin * self.panel_row)
        if self.axes == 1:
            self._pack_right(Chunk(None, b.gep(source, begin * f["b_k"]), depth, columns, depth))
            return
        with f.walk(begin, depth, "k", self.axes) as (row, indices):
            start = source
            for axis, index in enumerate(indices):
                start = b.gep(start, index * f[f"ks{axis}"])
            self._row(start, row * self.panel_row, columns)

    def _row(self, start: Value, below: Value, columns: Value) -> None:
        """One k of a panel."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        step = None if self.read_b == "rows" else f["b_column"]

        def one(column: Value, part: Part | None) -> None:
            at = b.gep(start, column * (self.kind.memory.size if step is None else step))
            x: AnyValue = f.load(self.kind, at, lanes, part, step)
            f.put_apart(x, b.gep(self._in_panel(column), below), lanes * self.kind.part.size)

        f.sweep(columns, lanes, one)

    def _in_panel(self, j: Value) -> Value:
        return self.b.gep(self._to, self._in_row(j))


@dataclass(frozen=True, slots=True)
class Ready:
    """A packed operand: the launch that packs it, bytes of all of it, of a panel and of a member, the strides of the
    batch axes in it."""

    launch: Launch
    size: Any
    panel: Any
    strides: Sequence[Any]


def packed(kind: Elements, tile: Tile, matrix: Matrix, batch: Sequence[tuple[Any, int]], to: Pointer) -> Ready:
    """Pack a matrix for tiles, or one for each member of a batch: (size, stride) of its axes, the innermost first. An
    axis along which there is but one matrix has stride 0."""
    size, inside = kind.memory.size, matrix.inside or [Axis(1, (0,))]
    turned = len(inside) == 1 and inside[0].strides[0] == size
    read: gemm.Read = "rows" if matrix.column == size else "columns" if turned else "any"
    kernel = Panels(kind, tile, read, len(inside))
    panels, k = -(-matrix.n // tile.columns), matrix.k
    panel = round_up(k, tile.turn) * kernel.panel_row
    strides, members = [], 1
    for count, stride in batch:
        strides.append(members * panels * panel if stride else 0)
        members = members * count if stride else members
    parts = -(-k // _DEPTH)
    tasks = members * panels * parts
    values: dict[str, Word] = {
        "tasks": tasks, "b": matrix.pointer, "out": to, "n": matrix.n, "k": k, "parts": parts, "panels": panels,
        "panel": panel, "b_k": inside[-1].strides[0], "b_column": matrix.column,
    }  # fmt: skip
    for number, axis in enumerate(inside):
        values[f"k{number}"], values[f"ks{number}"] = axis.size, axis.strides[0]
    words = block(kernel.words, values, [(count, stride) for count, stride in batch if stride])
    launch = Launch(
        Source(f"matmul:{kernel.name}", kernel.name, kernel.ir), words, grain_of(STREAM * members * k * matrix.n, tasks)
    )
    return Ready(launch, members * panels * panel, panel, strides)
