"""A fused group as a nest of loops: the values that it reads and writes, how each lies along its axes, and the steps
between them.

Here shapes and strides turn into loops that every machine can start from: axes of size 1 vanish, and neighbouring axes
that every operand walks as one are merged. The forms of a target then choose an inner loop, which decides how each
operand is stepped through, and what to do with the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from weft.codegen.kernel import Access, Step, Store
from weft.codegen.launch import Launch, Pointer
from weft.dtypes import Dtype
from weft.graph.dims import provably_equal, same_shape
from weft.graph.node import Node, Size
from weft.passes.fuse import Group
from weft.passes.lower import Item, Lowerer, to_int
from weft.passes.views import Strided, contiguous
from weft.primitives.base import Constant, Reduction
from weft.primitives.creation import Iota
from weft.records import dataclass
from weft.targets.axes import Axis, Word, axes_of, merged_apart, walking

Body = tuple[tuple[Access, ...], tuple[Step, ...], tuple[Store, ...]]
"""Loads, steps and stores of a kernel, once its inner loop is known."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A value that is read or written: its stored node, the offset and the strides per axis of the domain, in bytes (of
    a counting one: in numbers)."""

    node: Node
    dtype: Dtype
    offset: int
    strides: tuple[int, ...]
    level: str
    source: str

    @property
    def unit(self) -> int:
        """What lies between neighbours."""
        return 1 if self.source == "iota" else self.dtype.size

    def walks_like(self, store: Operand) -> bool:
        """Whether it is read, element for element, where a result is written if that takes its place."""
        return (
            self.source == "memory"
            and self.dtype.size == store.dtype.size
            and provably_equal(self.offset, 0)
            and self.level == store.level
            and all(provably_equal(s, t) for s, t in zip(self.strides, store.strides, strict=True))
        )

    def stepping(self, stride: int, tile: int | None) -> str:
        """How the inner loop walks it; `tile` is its stride along the axis that squares are turned along."""
        if self.source == "scalar":
            return "repeat"
        how = walking(stride, self.unit)
        if how in ("repeat", "unit"):
            return how
        if self.source == "memory" and tile == self.unit:
            return "tile"
        return how if self.source == "memory" else "stride"


class Nest:
    """One group on its way to a kernel. Results in `unstored` stay inside it."""

    def __init__(self, lowerer: Lowerer, group: Group, unstored: Collection[Node] = ()) -> None:
        self.lowerer, self.group = lowerer, group
        self._axes = group.axes or ()
        self.loads: list[Operand] = []
        self.numbers: dict[Node, int] = {}
        """The number of each node's value in kernels."""
        self._load_of: dict[Node, int] = {}
        self._collect()
        self.stores = [self._store(n) for n in group.nodes if lowerer.leaves(group, n) and n not in unstored]
        self.operands = (*self.loads, *self.stores)
        shape = [to_int(n) for n in group.domain]
        strides = [operand.strides for operand in self.operands]
        self.outer, self.reduced = merged_apart(axes_of(shape, *strides), self._axes)
        """The axes of the domain that are kept, and those that are reduced."""

    # ---- operands ----

    def _collect(self) -> None:
        """Number the loads (stored values that the group reads), then the steps."""
        inside = set(self.group.nodes)
        for node in self.group.nodes:
            for operand in node.inputs:
                stored = operand.inputs[0] if isinstance(operand.op, Strided) else operand
                if operand not in inside and stored not in inside and operand not in self._load_of:
                    self._load_of[operand] = len(self.loads)
                    self.loads.append(self._load(operand))
        for node in self.group.nodes:
            self.numbers[node] = len(self.loads) + len(self.numbers)

    def _number(self, operand: Node) -> int:
        if operand in self.numbers:
            return self.numbers[operand]
        if operand in self._load_of:
            return self._load_of[operand]
        return self.numbers[operand.inputs[0]]  # a reduced value repeated along its row

    def _level(self, shape: Sequence[Size]) -> str:
        return "full" if same_shape(tuple(shape), self.group.domain) else "reduced"

    def _spread(self, strides: Sequence[Size], level: str, unit: int) -> tuple[int, ...]:
        """Strides per domain axis."""
        given = [to_int(stride) * unit for stride in strides]
        if level == "full":
            return tuple(given)
        spread = [0] * len(self.group.domain)
        kept = [axis for axis in range(len(spread)) if axis not in self._axes]
        for axis, stride in zip(kept, given, strict=True):
            spread[axis] = stride
        return tuple(spread)

    def _load(self, operand: Node) -> Operand:
        level, dtype = self._level(operand.shape), operand.dtype
        stored, strides, offset = self.lowerer.place(operand)
        if isinstance(stored.op, Constant):
            return Operand(stored, dtype, 0, (0,) * len(self.group.domain), level, "scalar")
        source, unit = ("iota", 1) if isinstance(stored.op, Iota) else ("memory", dtype.size)
        return Operand(stored, dtype, to_int(offset) * unit, self._spread(strides, level, unit), level, source)

    def _store(self, node: Node) -> Operand:
        level = "reduced" if isinstance(node.op, Reduction) else self._level(node.shape)
        strides = self._spread(contiguous(node.shape), level, node.dtype.size)
        return Operand(node, node.dtype, 0, strides, level, "memory")

    @property
    def reads(self) -> list[Node]:
        """The stored values that are read, each once."""
        return list(dict.fromkeys([load.node for load in self.loads if load.source != "iota"]))

    # ---- kernels ----

    def single(self) -> Axis:
        """An inner loop of one element, where there is no axis."""
        return Axis(1, tuple([operand.unit for operand in self.operands]))

    def body(self, inner: Axis, tile: Axis | None = None) -> Body:
        """The loads, steps and stores of a kernel whose inner loop is this axis."""
        loads = []
        for k, load in enumerate(self.loads):
            how = load.stepping(inner.strides[k], tile.strides[k] if tile else None)
            loads.append(Access(load.dtype, load.source, load.level, how))
        steps = []
        for node in self.group.nodes:
            reduces = isinstance(node.op, Reduction)
            level = "reduced" if reduces else self._level(node.shape)
            operands = tuple([self._number(operand) for operand in node.inputs])
            steps.append(Step(_shapeless(node.op), operands, node.dtype, level, reduces))
        stores = []
        for k, store in enumerate(self.stores, len(self.loads)):
            how = "unit" if inner.strides[k] == store.unit else "stride"
            stores.append(Store(self.numbers[store.node], Access(store.dtype, "memory", store.level, how)))
        return tuple(loads), tuple(steps), tuple(stores)

    def cost(self) -> int:
        """Instructions for each element, more or less."""
        return sum(getattr(node.op, "cost", 1) for node in self.group.nodes)

    # ---- launches ----

    def pointers(self) -> list[Word]:
        """Where each operand begins: among the values that are read, then among those that are written."""
        reads = self.reads
        found: list[Word] = []
        for load in self.loads:
            found.append(load.offset if load.source == "iota" else Pointer(reads.index(load.node), load.offset))
        return [*found, *(Pointer(len(reads) + i) for i in range(len(self.stores)))]

    def temporary(self, number: int) -> Pointer:
        """Memory that launches of the group share."""
        return Pointer(len(self.reads) + len(self.stores) + number)

    def item(
        self, launches: Sequence[Launch], overwritten: Sequence[int] = (), temporaries: Sequence[int] = ()
    ) -> Item:
        """The group made ready; the results at positions `overwritten` may lie on operands that are walked alike."""
        reads = self.reads
        pairs = set()
        for r, node in enumerate(reads):
            loads = [load for load in self.loads if load.node is node]
            pairs |= {(r, w) for w in overwritten if all(load.walks_like(self.stores[w]) for load in loads)}
        writes = tuple([store.node for store in self.stores])
        return Item(self.group, tuple(launches), tuple(reads), writes, tuple(temporaries), frozenset(pairs))


def _shapeless(op: Any) -> Any:
    """Reductions keep no axes in the kernel: which loop reduces is the kernel's form."""
    return type(op)(()) if isinstance(op, Reduction) else op
