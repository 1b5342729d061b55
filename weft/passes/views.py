"""View composition: after this pass every view is one `Strided` read of stored elements, and no view stands on a
computed value that could be computed in the viewed order instead.

Two steps. *Moving*: a view of an elementwise result that nobody else reads moves to the operands, `view(f(x, y)) ->
f(view(x), view(y))`, unless it repeats elements (then the value is computed once and read repeatedly). *Resolving*:
what remains stands on stored elements (inputs, results of kernels, the counting leaf), where any chain of slice, flip,
transpose, broadcast and most reshapes is an offset and strides of any sign. A reshape that no strides can express
copies its operand first.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from weft.graph.dims import is_exactly, provably_equal, same_shape, squeezed
from weft.graph.lines import inherit
from weft.graph.node import ArrayType, Graph, Node, Shape, Size, kind_of
from weft.primitives.base import (
    Constant,
    ControlFlow,
    Elementwise,
    IndexMap,
    KernelOperation,
    Parameter,
    Primitive,
    Reduction,
    View,
    bind,
)
from weft.primitives.creation import Iota
from weft.primitives.elementwise import Identity
from weft.primitives.views import Contiguous, Reshape, Transpose

Strides = tuple[Size, ...]

MOST_MOVED = 16
"""Views that move together to what is stored; further ones read what these are computed into."""


class Materialize(Identity):
    """The operand as stored, contiguous elements: what a view stands on, or a reduction walks, when strides alone
    cannot do it."""

    def reordered(self, order: tuple[int, ...]) -> Primitive | None:
        return None


class Strided(Primitive):
    """Elements of the operand's memory at `offset + sum(index * strides)`, in elements; what all views become."""

    shape: Shape
    strides: Strides
    offset: Size

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(self.shape, kinds[0].dtype)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        places = np.asarray(self.offset)
        for axis, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = np.arange(int(n)) * stride
            places = places + steps.reshape((-1,) + (1,) * (len(self.shape) - axis - 1))
        return np.asarray(x.reshape(-1)[places])


def contiguous(shape: Sequence[Size]) -> Strides:
    """Row-major strides in elements.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[Size] = []
    step: Size = 1
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether strides walk the elements in row-major order; the strides of axes of size 1 do not matter."""
    pairs = zip(shape, strides, contiguous(shape), strict=True)
    return all(provably_equal(s, plain) or is_exactly(n, 1) for n, s, plain in pairs)


def compose_views(
    graph: Graph,
    layouts: Mapping[Node, Strides | None] | None = None,
    rows: set[Node] | None = None,
    *,
    apart: bool = False,
) -> Graph:
    """The pass. `layouts` gives the strides of inputs that are not contiguous. Values that the program asks to lie row
    by row, and that do, are put into `rows`. Results that have to be stored `apart` may not be views."""
    chains = _moved(graph, set(graph.outputs) if apart else set())
    resolver = Resolver(layouts or {})
    new: dict[Node, Node] = {}
    for node in graph.order():
        chain = chains.get(node, ())
        if isinstance(node.op, View):
            source, whole = node.inputs[0], (node.op, *chain)
            # Either the operand was computed in the viewed order already, or it is stored and read so.
            new[node] = new[source] if chains.get(source) == whole else resolver.apply(new[source], whole)
            continue
        if not node.inputs:
            new[node] = node
            continue
        operands = tuple(
            new[i] if not chain or chains.get(i) == chain else resolver.apply(new[i], chain) for i in node.inputs
        )
        if isinstance(node.op, Contiguous) and resolver.lies_so(node.op, operands[0]):
            new[node] = resolver.as_it_lies(operands[0])
            if rows is not None:
                rows.add(operands[0])
            continue
        if isinstance(node.op, KernelOperation):  # kernels of their own read memory, not loop indices
            operands = tuple(_stored(x) if _leaf(x).op.__class__ is Iota else x for x in operands)
        if isinstance(node.op, ControlFlow):
            operands = tuple(resolver.ready(node.op, i, x) for i, x in enumerate(operands))
        new[node] = node.on(operands, kind=kind_of(operands[0].shape, node.dtype) if chain else None)
        if isinstance(node.op, Reduction) and not resolver.walkable(new[node]):
            new[node] = bind(node.op, bind(Materialize(), new[node].inputs[0]))
    inherit(new)
    return Graph(graph.inputs, [_stored(new[o]) for o in graph.outputs])


def _stored(output: Node) -> Node:
    """A result must lie in memory: constants and counts are written out."""
    return bind(Materialize(), output) if isinstance(_leaf(output).op, (Constant, Iota)) else output


def stored_apart(graph: Graph) -> Graph:
    """Every result computed into memory of its own: what is an input, a view, or two results at once is copied."""
    seen: set[Node] = set()
    outputs: list[Node] = []
    for node in graph.outputs:
        if node in seen or isinstance(node.op, (Strided, Parameter, Constant, Iota)):
            node = bind(Materialize(), node)
        seen.add(node)
        outputs.append(node)
    return Graph(graph.inputs, outputs)


def _leaf(node: Node) -> Node:
    """What a read stands on."""
    return node.inputs[0] if isinstance(node.op, Strided) else node


def _moved(graph: Graph, apart: Collection[Node]) -> dict[Node, tuple[View, ...]]:
    """For every node that is only read through one chain of views, by however many: that chain, nearest view first.
    Views that are results to be stored `apart` would be copied."""
    users, outputs = graph.users(), set(graph.outputs)
    chains: dict[Node, tuple[View, ...]] = {}
    for node in reversed(graph.order()):
        if node in outputs or not isinstance(node.op, (Elementwise, View)):
            continue
        found = {_chain(node, user, chains.get(user, ()), user in apart) for user in users[node]}
        if len(found) == 1 and (chain := found.pop()):
            chains[node] = chain
    return chains


def _chain(node: Node, user: Node, behind: tuple[View, ...], apart: bool) -> tuple[View, ...]:
    """The views through which a user reads a node, if it is computed after those that are `behind` it."""
    if isinstance(user.op, View):
        if not behind and not apart and _only_units(user.op, node.kind) and not _reads_leaves(node):
            return ()  # a node without such axes has the shape of its neighbours, and may share their kernel
        return (user.op, *behind) if len(behind) < MOST_MOVED and _shrinks(user.kind, node.kind) else ()
    return behind if isinstance(user.op, Elementwise) else ()


def _reads_leaves(node: Node) -> bool:
    """Whether all operands are there before the program begins, so that no kernel of its own shape waits for it."""
    for x in node.inputs:
        while isinstance(x.op, View):
            x = x.inputs[0]
        if x.inputs:
            return False
    return True


def _only_units(view: View, operand: ArrayType) -> bool:
    """Whether a view changes nothing but where axes of size 1 stand, and how many of them."""
    if isinstance(view, Reshape):
        return same_shape(squeezed(view.shape), squeezed(operand.shape))
    if isinstance(view, Transpose):
        kept = [axis for axis in view.order if not is_exactly(operand.shape[axis], 1)]
        return kept == sorted(kept)
    return False


def _shrinks(viewed: ArrayType, operand: ArrayType) -> bool:
    """The view is known to have no more elements than its operand, so moving it repeats no work."""
    return viewed.size <= operand.size


class Resolver:
    """Applies views to stored values, as offset and strides."""

    def __init__(self, layouts: Mapping[Node, Strides | None]) -> None:
        self.layouts = layouts
        self._walkable: dict[tuple[int, ...], dict[Node, bool]] = {}
        """By the axes: whether all that a value is computed from, in the same kernel, walks them as one."""

    def layout(self, node: Node) -> tuple[Node, Strides, Size]:
        """(stored node, strides, offset) of a value as it lies in memory."""
        if isinstance(node.op, Strided):
            return node.inputs[0], node.op.strides, node.op.offset
        given = self.layouts.get(node)
        return node, contiguous(node.shape) if given is None else given, 0

    def apply(self, node: Node, chain: Sequence[View]) -> Node:
        for view in chain:
            node = self._one(node, view)
        return node

    def walkable(self, reduction: Node) -> bool:
        """Whether the reduced axes (neighbours) can be walked as one, with one stride, in everything that the reduction
        reads."""
        assert isinstance(reduction.op, Reduction)
        axes = reduction.op.axes
        known = self._walkable.setdefault(axes, {})
        stack = list(reduction.inputs)
        while stack:
            node = stack[-1]
            if node in known or isinstance(node.op, Constant):
                known.setdefault(node, True)
            elif not isinstance(node.op, Elementwise) or isinstance(node.op, Materialize):
                known[node] = walked_as_one(node.shape, self.layout(node)[1], axes)
            elif waiting := [x for x in node.inputs if x not in known]:
                stack.extend(waiting)
                continue
            else:
                known[node] = all(known[x] for x in node.inputs)
            stack.pop()
        return known[reduction.inputs[0]]

    def lies_so(self, op: Contiguous, node: Node) -> bool:
        """Whether a value lies in memory in an order that `op` asks for."""
        if isinstance(_leaf(node).op, (Constant, Iota)):
            return False
        _, strides, _ = self.layout(node)
        turned = op.allow_col_major and is_contiguous(node.shape[::-1], strides[::-1])
        return turned or is_contiguous(node.shape, strides)

    def as_it_lies(self, node: Node) -> Node:
        """A value as a view of its own memory."""
        base, strides, offset = self.layout(node)
        return _strided(base, node.shape, strides, offset)

    def ready(self, op: ControlFlow, position: int, node: Node) -> Node:
        """An operand of a loop or branch, which read memory; carries lie there in row-major order."""
        if isinstance(_leaf(node).op, Iota):
            return _stored(node)
        if not op.wants_contiguous(position):
            return node
        _, strides, offset = self.layout(node)
        plain = not isinstance(node.op, Constant) and is_contiguous(node.shape, strides) and provably_equal(offset, 0)
        return node if plain else bind(Materialize(), node)

    def _one(self, node: Node, view: View) -> Node:
        kind = view.infer(node.kind)
        if isinstance(node.op, Constant):
            return Node(node.op, (), kind, node.value)
        base, strides, offset = self.layout(node)
        if isinstance(view, Reshape):
            fitted = reshape_strides(node.shape, strides, kind.shape)
            if fitted is None:
                base, fitted, offset = bind(Materialize(), node), contiguous(kind.shape), 0
            return _strided(base, kind.shape, fitted, offset)
        moved, shift = map_strides(view.index_map(node.kind), strides, kind.ndim)
        return _strided(base, kind.shape, moved, offset + shift)


def walked_as_one(shape: Shape, strides: Strides, axes: Sequence[int]) -> bool:
    """Whether these neighbouring axes lie in memory like a single one."""
    parts = [(shape[a], strides[a]) for a in axes if not (type(shape[a]) is int and shape[a] == 1)]
    return all(provably_equal(s, s2 * n2) for (_, s), (n2, s2) in itertools.pairwise(parts))


def _strided(base: Node, shape: Shape, strides: Strides, offset: Size) -> Node:
    plain = (
        not isinstance(base.op, Parameter)
        and same_shape(shape, base.shape)
        and is_contiguous(shape, strides)
        and provably_equal(offset, 0)
    )
    return base if plain else bind(Strided(shape, strides, offset), base)


def map_strides(index_map: IndexMap, strides: Strides, ndim: int) -> tuple[Strides, Size]:
    """Strides and offset of a view, given its index map and the strides of its operand."""
    result: list[Size] = [0] * ndim
    offset: Size = 0
    for axis_map, stride in zip(index_map, strides, strict=True):
        offset = offset + axis_map.start * stride
        if axis_map.axis is not None:
            result[axis_map.axis] = result[axis_map.axis] + axis_map.step * stride
    return tuple(result), offset


def reshape_strides(shape: Shape, strides: Strides, to: Shape) -> Strides | None:
    """Strides of a reshape that needs no copy, or None. Both shapes have as many elements.

    Old and new axes are matched in groups of equal size from the left; within a group the old axes must lie in memory
    as one.
    """
    if any(is_exactly(n, 0) for n in to):
        return contiguous(to)
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if not is_exactly(n, 1)]
    result: list[Size] = []
    k = 0
    i = 0
    while i < len(to):
        if type(to[i]) is int and to[i] == 1:
            result.append(0)
            i += 1
            continue
        if k >= len(old):
            return None
        first = i
        have, want = old[k][0], to[i]
        k, i = k + 1, i + 1
        last = k
        while have != want:
            if want < have:
                if i >= len(to):
                    return None
                want, i = want * to[i], i + 1
            elif last < len(old):
                have, last = have * old[last][0], last + 1
            elif i < len(to):
                want, i = want * to[i], i + 1
            else:
                return None
        group = old[k - 1 : last]
        k = last
        for (_, s), (n2, s2) in itertools.pairwise(group):
            if not provably_equal(s, s2 * n2):
                return None
        step = group[-1][1]
        inner: list[Size] = []
        for n in reversed(to[first:i]):
            inner.append(step)
            step = step * n
        result.extend(reversed(inner))
    return tuple(result) if k == len(old) else None
