"""Epilogues: the elementwise operations that follow a product, applied where a block of it is finished.

A product's result that one map alone reads is never stored. When a task has summed up its block of the output, which is
in the caches still, it applies the map to it: bias, activation, residual, scale, cast. The map's other operands are
read by their strides, as any map reads them, and elements are rounded to the product's dtype first. So all bits are
those of two steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.codegen.kernel import Kernel
from weft.codegen.launch import Done, Pointer
from weft.codegen.scope import Accesses, Scope, State
from weft.config import config
from weft.graph.node import Node
from weft.llvm.builder import STORED, AnyValue, Value
from weft.llvm.digest import digest
from weft.passes.fuse import Group
from weft.passes.lower import Item, Lowerer, to_int
from weft.primitives.base import Parameter
from weft.records import dataclass
from weft.targets.axes import Word, axes_of, merged, words_of
from weft.targets.cpu.forms.map import WIDE_COST, lanes_of, masks_all
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.matmul import lowering
from weft.targets.cpu.matmul.elements import elements_of
from weft.targets.cpu.matmul.machine import machine
from weft.targets.nest import Nest

Load = Callable[[Value, int, Value | None], AnyValue]
"""`load(j, lanes, mask)` gives elements of the product, as memory would hold them, from number j of a piece on."""

LEAST_TERMS = 16
"""Terms of each sum, fewer of which make the map the larger part of the work: it is better off with a loop of its
own."""


@dataclass(frozen=True, slots=True)
class Epilogue(Kernel):
    """The map: its loops are the rows of the whole output (the outer axes) and a row (the inner one). Load number
    `product` is the result of the product; store number `home`, if there is one, is of its dtype, and has the sums in
    it until they are finished, so that it lies on no operand."""

    title = "epilogue"
    product: int = 0
    home: int | None = None

    def flags(self) -> list[str]:
        return [f"product={self.product}", f"home={self.home}"]

    @property
    def name(self) -> str:
        return f"then_{digest(str(self).encode()).hexdigest()[:16]}"

    def words(self) -> tuple[str, ...]:
        """The names of its argument words."""
        return tuple(self.fields()[2:])

    def ready(self, frame: Frame) -> Ready:
        """The map in a kernel under construction, whose words its own are among."""
        frame.outer = self.outer
        return Ready(self, frame)


class Ready:
    """An epilogue in a kernel under construction."""

    def __init__(self, kernel: Epilogue, frame: Frame) -> None:
        self._kernel, self._frame = kernel, frame
        self._accesses = Accesses(frame, kernel)

    def apply(self, place: Value, first: Value, count: Value, load: Load) -> None:
        """The map of `count` elements from `first` on of the row at a place of all rows."""
        b, kernel = self._frame.b, self._kernel
        lanes, once = lanes_of(kernel), masks_all(kernel)
        bases = self._accesses.bases(self._frame.indices(place))

        def body(j: Value, mask: Value | None, state: State) -> State:
            x = load(j - first, lanes, mask)
            if kernel.loads[kernel.product].dtype in STORED:
                assert isinstance(x, Value)
                x = b.memory_bits(x)
            Scope(self._accesses, bases, j, lanes, mask, {kernel.product: x}).store_all()
            return state

        vector_loop(b, first, first + count, body, lanes=lanes, once=once)


class Fused:
    """What a product has to know of its epilogue: the kernel, its argument words, where its sums are kept, and how much
    work it is."""

    def __init__(self, kernel: Epilogue, words: dict[str, int | Pointer], home: Pointer, work: int) -> None:
        self.kernel, self.words, self.home, self.work = kernel, words, home, work


def lower(lowerer: Lowerer, group: Group, after: Group) -> Item | None:
    """A product and the map that follows it, in one launch; None where that does not pay, or cannot be."""
    node = group.nodes[0]
    values, places, layouts = lowerer.operands(node)
    if not node.dtype.is_inexact or layouts[0].shape[-1] < LEAST_TERMS:
        return None
    nest = Nest(lowerer, after)
    if nest.cost() >= WIDE_COST and machine(config.cpu).vector < 64:
        return None  # what it takes to compute them hides what it takes to load them, and registers are few
    reads = list(dict.fromkeys([*values, *[x for x in nest.reads if x is not node]]))
    fused = _fused(nest, node, reads)
    launch = lowering.with_epilogue(layouts[0], layouts[1], places[0], places[1], fused)
    if launch is None:
        return None
    both = Group([node, *after.nodes], after.domain, None, "opaque")
    over = frozenset(
        [
            (r, w)
            for r, x in enumerate(reads)
            for w in range(len(nest.stores))
            if w != fused.kernel.home and x not in values and _walks_like(nest, x, w)
        ]
    )
    return Item(both, (launch,), tuple(reads), tuple([store.node for store in nest.stores]), (), over)


def _walks_like(nest: Nest, value: Node, store: int) -> bool:
    """Whether a value is read element for element where a result is written, and nowhere else."""
    loads = [load for load in nest.loads if load.node is value]
    return bool(loads) and all(load.walks_like(nest.stores[store]) for load in loads)


def _fused(nest: Nest, node: Node, reads: Sequence[Node]) -> Fused:
    shape = [to_int(n) for n in nest.group.domain]
    *rows, inner = axes_of(shape, *[operand.strides for operand in nest.operands])
    outer = merged(rows)
    product = next(k for k, load in enumerate(nest.loads) if load.node is node)
    home = next((i for i, store in enumerate(nest.stores) if store.dtype is node.dtype), None)
    # An input that may be overwritten is worth more than room for sums in the result: parameters that a step updates.
    inputs = [x for x in reads if isinstance(x.op, Parameter)]
    if elements_of(node.dtype).narrow or (home is not None and any(_walks_like(nest, x, home) for x in inputs)):
        home = None
    kernel = Epilogue(len(outer), *nest.body(inner), product, home)
    pointers: list[Word] = []
    for load in nest.loads:
        if load.source == "iota":
            pointers.append(load.offset)
        elif load.node is node:  # which is never read
            pointers.append(Pointer(len(reads)))
        else:
            pointers.append(Pointer(reads.index(load.node), load.offset))
    pointers += [Pointer(len(reads) + i) for i in range(len(nest.stores))]
    words = words_of(kernel.words(), pointers, outer, inner, {})
    names = [name.lstrip("*") for name in kernel.words()]
    named = {name: word for name, word in zip(names, words, strict=True) if not isinstance(word, Done)}
    return Fused(kernel, named, Pointer(len(reads) + (home or 0)), nest.cost() * math.prod(shape))
