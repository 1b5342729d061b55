"""The sum of partial results, in order: what follows when the chunks of k are tasks of their own.

Used where k is so long and the output so small that blocks of the output would not keep the threads busy.
"""

from __future__ import annotations

from typing import Final

from weft.codegen.launch import Launch, Pointer
from weft.llvm.builder import AnyValue, Value
from weft.llvm.engine import Source
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part, ProductFrame, Word, block
from weft.targets.cpu.matmul.tasks import STREAM, equal_blocks, grain_of

_VECTORS: Final = 8
"""Of sums in registers."""
WORDS: Final = ("tasks", "*parts", "*rest", "*out", "count", "elements", "block", "blocks")


class Combine:
    """Writes out[i] = parts[0, i] + parts[1, i] + … + rest[i]; parts and rest hold sums as they are in flight."""

    def __init__(self, kind: Elements, lanes: int) -> None:
        self.kind, self.lanes = kind, lanes
        self.name = f"combine_{kind.memory.name}_{kind.work.name}_{lanes}"

    def ir(self) -> str:
        self.frame = f = ProductFrame(self.name, WORDS, 0)
        with f.b.loop(f.begin, f.end, 1) as task:
            member, block = f.divide(task.index, f["blocks"])
            self._block(member, block * f["block"])
        return f.module()

    def _block(self, member: Value, start: Value) -> None:
        f, b, kind, wide = self.frame, self.frame.b, self.kind, el.summing(self.kind)
        whole = f["elements"] * kind.work.size  # bytes of one partial result
        parts = b.gep(f["parts"], member * f["count"] * whole)

        def some(i: Value, part: Part | None, vectors: int) -> None:
            """So many vectors of sums at once: lines that follow each other come sooner than single ones, far apart."""
            places = [(start + i + v * self.lanes) * kind.work.size for v in range(vectors)]

            def seen(at: Value) -> list[AnyValue]:
                return [f.load(wide, b.gep(at, place), self.lanes, part) for place in places]

            with b.loop(1, f["count"], 1, *el.flat(seen(parts))) as term:
                more = seen(b.gep(parts, term.index * whole))
                sums = el.unflat(kind, term.carried)
                term.carry(*el.flat([el.add(x, y) for x, y in zip(sums, more, strict=True)]))
            rest = seen(b.gep(f["rest"], member * whole))
            totals = [el.add(x, y) for x, y in zip(el.unflat(kind, term.carried), rest, strict=True)]
            out = b.gep(f["out"], (member * f["elements"] + start + i) * kind.memory.size)
            for v, total in enumerate(totals):
                f.store(kind, total, b.gep(out, v * self.lanes * kind.memory.size), part)

        extent = f.least(f["elements"] - start, f["block"])
        together = extent & -(self.lanes * _VECTORS)
        with b.loop(0, together, self.lanes * _VECTORS) as place:
            some(place.index, None, _VECTORS)
        f.sweep(extent - together, self.lanes, lambda i, part: some(together + i, part, 1))


def combined(
    kind: Elements, lanes: int, members: int, elements: int, count: int, parts: Pointer, rest: Pointer, to: Pointer
) -> Launch:
    """The launch for `count` partial results of each member, and the rest."""
    length = equal_blocks(elements, 16 * lanes, lanes)
    blocks = -(-elements // length)
    values: dict[str, Word] = {
        "tasks": members * blocks, "parts": parts, "rest": rest, "out": to,
        "count": count, "elements": elements, "block": length, "blocks": blocks,
    }  # fmt: skip
    kernel = Combine(kind, lanes)
    source = Source(f"matmul:{kernel.name}", kernel.name, kernel.ir)
    return Launch(source, block(WORDS, values, ()), grain_of(STREAM * members * elements * count, members * blocks))
