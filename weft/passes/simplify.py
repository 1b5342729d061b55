"""Exact simplification: rewrite rules that keep every bit, NaN, infinities and signed zeros included.

A rule is `Node -> Node | None`, registered for the primitives at its root; it sees operands that are simplified
already. Its docstring says `lhs -> rhs` and why that is exact.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from weft import dtypes as dt
from weft.graph.dims import Dim, is_exactly, is_now, provably_equal, same_shape, squeezed
from weft.graph.lines import inherit
from weft.graph.node import Graph, Node, Shape, kind_of
from weft.primitives.base import (
    CONSTANT,
    ONE,
    ZERO,
    Constant,
    Elementwise,
    Primitive,
    Reduction,
    SizeConstant,
    bind,
    constant,
)
from weft.primitives.contraction import Matmul
from weft.primitives.creation import Extent, Iota
from weft.primitives.elementwise import (
    Add,
    AsType,
    Conjugate,
    Divide,
    Identity,
    Imag,
    Multiply,
    Negative,
    Real,
    Select,
    StopGradient,
    Subtract,
    astype,
)  # fmt: skip
from weft.primitives.indexing import Gather
from weft.primitives.joins import Concatenate
from weft.primitives.linalg import Implicit
from weft.primitives.reductions import ArgExtremum, Extremum, Fold, Sum
from weft.primitives.scans import CumMax, CumMin, CumProd, CumSum, Cumulative
from weft.primitives.sorting import ArgPartition, ArgSelect, ArgSort, Partition, Sort, Sorting
from weft.primitives.views import Broadcast, Reshape, Slice, SliceUpdate, Transpose, reshape

Rule = Callable[[Node], Node | None]
RULES: dict[type[Primitive], list[Rule]] = {}


def rule(*roots: type[Primitive]) -> Callable[[Rule], Rule]:
    """Register a rewrite for nodes of these primitives."""

    def register(function: Rule) -> Rule:
        for root in roots:
            RULES.setdefault(root, []).append(function)
        return function

    return register


def simplify(graph: Graph) -> Graph:
    """Apply the rules, operands first, until none fits."""
    new: dict[Node, Node] = {}
    for node in graph.order():
        new[node] = _rewrite(node.on(tuple([new[i] for i in node.inputs])))
    inherit(new)
    return Graph(graph.inputs, [new[o] for o in graph.outputs])


def _rewrite(node: Node) -> Node:
    for _ in range(16):  # each step strictly shrinks the node; the bound guards against a faulty rule
        for candidate in _rules_for(type(node.op)):
            found = candidate(node)
            if found is not None and found is not node:
                node = found
                break
        else:
            return node
    return node


@functools.cache
def _rules_for(cls: type[Primitive]) -> tuple[Rule, ...]:
    """The rules of a primitive: its own first, then those of its families."""
    return tuple(found for base in cls.__mro__ for found in RULES.get(base, ()))


# ---- identities ----


@rule(Identity, StopGradient)
def drop_identity(node: Node) -> Node | None:
    """identity(x) -> x   (only differentiation tells them apart, and it is over)"""
    return node.inputs[0]


@rule(Implicit)
def drop_implicit(node: Node) -> Node | None:
    """implicit(..., x) -> x   (only differentiation tells them apart, and it is over)"""
    return node.inputs[-1]


@rule(SliceUpdate)
def drop_update_of_everything(node: Node) -> Node | None:
    """slice_update(x, y) -> y where the slice is all of x, in its order   (nothing of x is left)"""
    x, y = node.inputs
    op: Any = node.op
    in_order = all(provably_equal(n, 0) for n in op.starts) and all(provably_equal(n, 1) for n in op.steps)
    return y if in_order and same_shape(x.shape, y.shape) else None


@rule(SliceUpdate)
def drop_update_with_itself(node: Node) -> Node | None:
    """slice_update(x, slice(x)) -> x where both are the same slice   (each element is overwritten with itself)"""
    x, y = node.inputs
    if not isinstance(y.op, Slice) or y.inputs[0] is not x:
        return None
    op: Any = node.op
    return x if same_shape(op.starts, y.op.starts) and same_shape(op.steps, y.op.steps) else None


@rule(AsType)
def drop_same_astype(node: Node) -> Node | None:
    """astype(x, x.dtype) -> x   (no conversion happens)"""
    return node.inputs[0] if node.inputs[0].dtype is node.dtype else None


@rule(AsType)
def merge_widening_astype(node: Node) -> Node | None:
    """astype(astype(x, wider), narrow) -> astype(x, narrow) where the first step is exact   (one rounding either
    way)"""
    (inner,) = node.inputs
    if not isinstance(inner.op, AsType):
        return None
    source, middle = inner.inputs[0].dtype, inner.dtype
    if source.is_float and middle.is_float and _holds(middle, source) and node.dtype.is_float:
        return bind(AsType(node.dtype), inner.inputs[0])
    return None


def _holds(wide: dt.Dtype, narrow: dt.Dtype) -> bool:
    """Every value of the float type `narrow` is a value of `wide`."""
    return wide is dt.float64 or (wide is dt.float32 and narrow in dt.HALVES) or wide is narrow


@rule(AsType)
def fold_constant_astype(node: Node) -> Node | None:
    """astype(0 or 1) -> 0 or 1   (both are exact in every dtype)"""
    op = node.inputs[0].op
    return constant(op.special, node.kind) if isinstance(op, Constant) and op.special is not None else None


@rule(Matmul)
def product_of_one_term(node: Node) -> Node | None:
    """x @ y -> x * y + 0 where x has one column   (a sum begins with +0, so that -0.0 becomes 0.0; halves are summed in
    float32 and rounded once)"""
    x, y = node.inputs
    if not is_exactly(x.shape[-1], 1) or node.dtype.is_complex:
        return None
    wide = dt.float32 if node.dtype in dt.HALVES else node.dtype
    factors = [
        astype(bind(Broadcast(node.shape, tuple(range(node.ndim - z.ndim, node.ndim))), z), wide) for z in (x, y)
    ]
    product = bind(Multiply(), *factors)
    return astype(bind(Add(), product, constant(0, product.kind)), node.dtype)


@rule(Multiply)
def multiply_by_one(node: Node) -> Node | None:
    """x * 1 -> x   (exact for every real dtype, NaN and -0.0 included; not for complex infinities)"""
    if node.dtype.is_complex:
        return None
    x, y = node.inputs
    return x if y.op is ONE else y if x.op is ONE else None


@rule(Divide)
def divide_by_one(node: Node) -> Node | None:
    """x / 1 -> x   (exact for reals)"""
    x, y = node.inputs
    return x if y.op is ONE and not node.dtype.is_complex else None


@rule(Subtract)
def subtract_zero(node: Node) -> Node | None:
    """x - 0 -> x   (exact: -0.0 - 0.0 is -0.0; x + 0 is not, since -0.0 + 0.0 is 0.0)"""
    x, y = node.inputs
    return x if y.op is ZERO else None


@rule(Add, Multiply)
def integer_zero(node: Node) -> Node | None:
    """x + 0 -> x, x * 0 -> 0   (integers and bools only: floats have -0.0, NaN and infinities)"""
    if node.dtype.is_inexact:
        return None
    x, y = node.inputs
    other = x if y.op is ZERO else y if x.op is ZERO else None
    if other is None:
        return None
    return other if isinstance(node.op, Add) else constant(0, node.kind)


@rule(Negative)
def double_negative(node: Node) -> Node | None:
    """-(-x) -> x   (flips the sign bit twice; integers wrap back)"""
    inner = node.inputs[0]
    return inner.inputs[0] if isinstance(inner.op, Negative) else None


@rule(Conjugate, Real)
def real_is_real(node: Node) -> Node | None:
    """conj(x), real(x) -> x for real x"""
    return None if node.inputs[0].dtype.is_complex else node.inputs[0]


@rule(Imag)
def imag_of_real(node: Node) -> Node | None:
    """imag(x) -> 0 for real x"""
    return None if node.inputs[0].dtype.is_complex else constant(0, node.kind)


@rule(Select)
def select_known(node: Node) -> Node | None:
    """where(true, x, y) -> x, where(false, x, y) -> y, where(c, x, x) -> x"""
    condition, x, y = node.inputs
    if condition.op is ONE or x is y:
        return x
    return y if condition.op is ZERO else None


@rule(Extent)
def extent_is_constant(node: Node) -> Node | None:
    """extent(5) -> 5   (a size with its number filled in; the number of a symbol comes with that of the plan)"""
    assert isinstance(node.op, Extent)
    size = node.op.size
    return Node(CONSTANT, (), node.kind, SizeConstant(size)) if type(size) is Dim else constant(size, node.kind)


# ---- views ----


@rule(Transpose, Slice, Broadcast, Reshape)
def view_of_constant(node: Node) -> Node | None:
    """view(constant) -> constant in the view's shape   (every element is the same)"""
    operand = node.inputs[0]
    return Node(operand.op, (), node.kind, operand.value) if isinstance(operand.op, Constant) else None


@rule(Reshape)
def drop_same_reshape(node: Node) -> Node | None:
    """reshape(x, x.shape) -> x, reshape(reshape(x)) -> reshape(x)"""
    operand = node.inputs[0]
    if operand.kind is node.kind:
        return operand
    return bind(node.op, operand.inputs[0]) if isinstance(operand.op, Reshape) else None


# ---- reductions ----


@rule(Sum)
def sum_of_nothing(node: Node) -> Node | None:
    """sum over no axes -> astype(x)"""
    if isinstance(node.op, Reduction) and not node.op.axes:
        return node.inputs[0] if node.inputs[0].dtype is node.dtype else bind(AsType(node.dtype), node.inputs[0])
    return None


@rule(Fold)
def reduce_nothing(node: Node) -> Node | None:
    """reduce over an axis of size 0 -> the constant that reducing nothing gives (0 for sum, 1 for prod)"""
    op, shape = node.op, node.inputs[0].shape
    if isinstance(op, Fold) and any(is_exactly(shape[axis], 0) for axis in op.axes):
        return constant(op.of_nothing(node.dtype), node.kind)
    return None


MOST_POOLED = 16
"""Elements of a window that are compared with each other one by one."""


@rule(Extremum)
def compare_in_windows(node: Node) -> Node | None:
    """max over short axes that are not neighbours -> maximum of what lies at each place along them   (the same elements
    in the same order: pooling reads its operand once, where it would be reduced twice)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Extremum)
    if len(op.axes) < 2 or op.axes[-1] - op.axes[0] == len(op.axes) - 1 or x.dtype.is_bool:
        return None
    counts = [next((k for k in (2, 3, 4) if is_now(x.shape[axis], k)), 0) for axis in op.axes]
    if not 0 < math.prod(counts) <= MOST_POOLED:
        return None
    found: Node | None = None
    for place in itertools.product(*map(range, counts)):
        at = dict(zip(op.axes, place, strict=True))
        starts = tuple(at.get(axis, 0) for axis in range(x.ndim))
        sizes = tuple(1 if axis in at else n for axis, n in enumerate(x.shape))
        part = reshape(bind(Slice(starts, sizes, (1,) * x.ndim), x), node.shape)
        found = part if found is None else bind(op.op, part, found)
    return found


@rule(Fold)
def split_reduction(node: Node) -> Node | None:
    """reduce over axes that are not neighbours -> reduce over the last group of neighbours, then over the rest.

    This *is* the specified order of such reductions (docs/numerics.md); halves stay float32 between the two.
    """
    op = node.op
    if not isinstance(op, Fold) or len(op.axes) < 2:
        return None
    first = len(op.axes) - 1
    while first > 0 and op.axes[first - 1] == op.axes[first] - 1:
        first -= 1
    if first == 0:
        return None
    (x,) = node.inputs
    if x.dtype in dt.HALVES:
        x = bind(AsType(dt.float32), x)
    inner = bind(type(op)(op.axes[first:]), x)
    outer = bind(type(op)(op.axes[:first]), inner)
    return outer if outer.dtype is node.dtype else bind(AsType(node.dtype), outer)


# ---- axes of size 1 ----


@rule(Elementwise)
def drop_unit_axes(node: Node) -> Node | None:
    """f(x) over axes of size 1 -> reshape(f(reshape(x)))   (the same elements: kernels see one shape, however it was
    written)"""
    shape = squeezed(node.shape)
    if len(shape) == node.ndim:
        return None
    inner = _rewrite(bind(node.op, *[_reshaped(operand, shape) for operand in node.inputs]))
    return bind(Reshape(node.shape), inner)


@rule(Fold)
def drop_kept_unit_axes(node: Node) -> Node | None:
    """reduce(x) over axes of size 1 among others -> the same without them, reshaped back"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Reduction)
    units = [i for i, n in enumerate(x.shape) if is_exactly(n, 1)]
    kept = [i for i in op.axes if i not in units]
    if not units or not kept:
        return None
    renumbered = tuple(sum(j not in units for j in range(i)) for i in kept)
    inner = _rewrite(bind(type(op)(renumbered), _reshaped(x, squeezed(x.shape))))
    return _reshaped(inner, node.shape)


@rule(Fold)
def reduce_one(node: Node) -> Node | None:
    """sum(x) over axes of size 1 -> x   (adding the identity changes nothing; bools are made 0 or 1, and stay)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Fold)
    if node.dtype.is_bool or not op.is_neutral(x.dtype) or not all(is_exactly(x.shape[i], 1) for i in op.axes):
        return None
    return _reshaped(_rewrite(astype(x, node.dtype)), node.shape)


@rule(Fold)
def reduce_forwards(node: Node) -> Node | None:
    """sum(x[::-1]) -> sum(x) along axes that are reduced   (integers and bools: every order gives the same bits)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Fold)
    view = x.op
    if not isinstance(view, Slice) or not op.is_exact(x.dtype):
        return None
    starts, steps = list(view.starts), list(view.steps)
    for axis in op.axes:
        n, step = view.sizes[axis], view.steps[axis]
        if type(step) is int and step < 0 and n > 0:
            starts[axis], steps[axis] = starts[axis] + step * (n - 1), -step
    if steps == list(view.steps):
        return None
    return bind(op, _rewrite(bind(Slice(tuple(starts), view.sizes, tuple(steps)), x.inputs[0])))


@rule(Broadcast)
def broadcast_without_unit_axes(node: Node) -> Node | None:
    """broadcast(x) -> broadcast(reshape(x without axes of size 1))   (they are repeated either way)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Broadcast)
    if not any(is_exactly(n, 1) for n in x.shape):
        return None
    axes = tuple(axis for n, axis in zip(x.shape, op.axes, strict=True) if not is_exactly(n, 1))
    return bind(Broadcast(op.shape, axes), _reshaped(x, squeezed(x.shape)))


@rule(Reshape)
def reshape_what_repeats(node: Node) -> Node | None:
    """reshape(broadcast(x)) -> broadcast(x) where axes of size 1 come or go   (the others repeat x as they did)"""
    (repeated,) = node.inputs
    op = repeated.op
    if not isinstance(op, Broadcast) or not same_shape(squeezed(repeated.shape), squeezed(node.shape)):
        return None
    before, after = ([i for i, n in enumerate(x.shape) if not is_exactly(n, 1)] for x in (repeated, node))
    if not set(op.axes) <= set(before):
        return None
    return bind(Broadcast(node.shape, tuple(after[before.index(axis)] for axis in op.axes)), repeated.inputs[0])


@rule(Broadcast)
def merge_broadcasts(node: Node) -> Node | None:
    """broadcast(broadcast(x)) -> broadcast(x)   (what is repeated twice is repeated)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Broadcast)
    if not isinstance(x.op, Broadcast):
        return None
    return bind(Broadcast(op.shape, tuple(op.axes[axis] for axis in x.op.axes)), x.inputs[0])


@rule(Broadcast)
def drop_same_broadcast(node: Node) -> Node | None:
    """broadcast(x) to its own shape -> x   (unless its axes change places)"""
    assert isinstance(node.op, Broadcast)
    same = node.inputs[0].kind is node.kind and node.op.axes == tuple(range(node.ndim))
    return node.inputs[0] if same else None


@rule(Sort, Partition)
def sort_one(node: Node) -> Node | None:
    """sort(x) along an axis of size 1 -> x   (so does partition)"""
    assert isinstance(node.op, (Sort, Partition))
    return node.inputs[0] if is_exactly(node.shape[node.op.axis], 1) else None


@rule(ArgSort, ArgSelect, ArgPartition)
def place_of_one(node: Node) -> Node | None:
    """argsort(x) along an axis of size 1 -> 0   (there is no other place)"""
    assert isinstance(node.op, (ArgSort, ArgSelect, ArgPartition))
    return constant(0, node.kind) if is_exactly(node.inputs[0].shape[node.op.axis], 1) else None


@rule(ArgExtremum)
def place_among_one(node: Node) -> Node | None:
    """argmax(x) over an axis of size 1 -> 0   (there is no other place)"""
    assert isinstance(node.op, ArgExtremum)
    return constant(0, node.kind) if all(is_exactly(node.inputs[0].shape[i], 1) for i in node.op.axes) else None


@rule(CumSum, CumProd, CumMax, CumMin)
def scan_one(node: Node) -> Node | None:
    """cumsum(x) along an axis of size 1 -> x   (not logcumsumexp, which makes 0 of -0)"""
    op: Any = node.op
    same = node.inputs[0].kind is node.kind and not op.exclusive
    return node.inputs[0] if same and is_exactly(node.shape[op.axis], 1) else None


# ---- repetition ----

COSTLY = 8
"""What an operation costs that is worth a kernel of its own if it is done for fewer elements."""
MANY_EQUAL = 1 << 16
"""Elements that repeat themselves whose sum is worth a kernel that is made for their number, and of which even a cheap
operation is worth one of its own."""
MOST_NARROWED = 16
"""Operations that are computed before they are repeated, together with the one that is worth it."""


@rule(Elementwise)
def compute_before_repeating(node: Node) -> Node | None:
    """f(broadcast(x), broadcast(y)) -> broadcast(f(x, y)) where neither varies along some axis   (the same elements,
    computed once)"""
    if not isinstance(node.op, Elementwise) or node.ndim == 0:
        return None
    if node.op.cost < COSTLY and not _are_many(node.shape):
        return None
    varying = _varying(node)
    if varying is None or len(varying) == node.ndim:
        return None
    return bind(Broadcast(node.shape, varying), _narrowed(node, varying))


@rule(Fold, ArgExtremum)
def reduce_before_repeating(node: Node) -> Node | None:
    """reduce(broadcast(x)) -> broadcast(reduce(x)) where x does not vary along some axis that is kept   (equal rows
    have equal results)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Reduction)
    varying = _varying(x)
    if varying is None:
        return None
    kept = tuple(sorted({*varying, *op.axes}))
    if len(kept) == x.ndim:
        return None
    reduced = bind(type(op)(tuple(kept.index(axis) for axis in op.axes)), _narrowed(x, kept))
    left = [axis for axis in range(x.ndim) if axis not in op.axes]
    places = tuple(left.index(axis) for axis in kept if axis not in op.axes)
    return _rewrite(bind(Broadcast(node.shape, places), reduced))


@rule(Sort, Partition)
def sort_equal(node: Node) -> Node | None:
    """sort(broadcast(x)) along an axis along which x does not vary -> broadcast(x)   (all are equal, to the bit)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, (Sort, Partition))
    varying = _varying(x)
    return None if varying is None or op.axis in varying else x


@rule(ArgSort, ArgSelect)
def places_of_equals(node: Node) -> Node | None:
    """argsort(broadcast(x)) along an axis along which x does not vary -> 0, 1, 2...   (equal elements keep their order;
    the largest of them are the last)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, (ArgSort, ArgSelect))
    varying = _varying(x)
    if varying is None or op.axis in varying:
        return None
    n, count = x.shape[op.axis], node.shape[op.axis]
    places = bind(Iota((n,)))
    if isinstance(op, ArgSelect):
        places = bind(Slice((n - count if op.largest else 0,), (count,), (1,)), places)
    return bind(Broadcast(node.shape, (op.axis,)), bind(AsType(node.dtype), places))


@rule(Slice)
def slice_what_repeats(node: Node) -> Node | None:
    """slice(broadcast(x)) -> broadcast(slice(x))   (along other axes, fewer repetitions)"""
    op, (repeated,) = node.op, node.inputs
    assert isinstance(op, Slice)
    if _varying(repeated) is None or not isinstance(repeated.op, Broadcast):
        return None
    (x,), axes = repeated.inputs, repeated.op.axes
    starts, sizes, steps = (tuple(of[axis] for axis in axes) for of in (op.starts, op.sizes, op.steps))
    in_order = all(is_exactly(start, 0) and is_exactly(step, 1) for start, step in zip(starts, steps, strict=True))
    inner = x if in_order and same_shape(sizes, x.shape) else bind(Slice(starts, sizes, steps), x)
    return bind(Broadcast(node.shape, axes), inner)


@rule(Concatenate)
def join_before_repeating(node: Node) -> Node | None:
    """concatenate(broadcast(x), broadcast(y)) -> broadcast(concatenate(x, y)) where none varies along some other axis
    (equal rows are joined to equal rows)"""
    op = node.op
    assert isinstance(op, Concatenate)
    found = [() if isinstance(x.op, Constant) else _varying(x) for x in node.inputs]
    varying = {axis for axes in found if axes is not None for axis in axes}
    kept = tuple(sorted({*varying, op.axis}))
    if None in found or len(kept) == node.ndim:
        return None
    joined = bind(Concatenate(kept.index(op.axis)), *[_narrowed(x, kept) for x in node.inputs])
    return bind(Broadcast(node.shape, kept), joined)


@rule(Gather)
def take_from_equals(node: Node) -> Node | None:
    """gather(broadcast(x), i) -> broadcast(x) where x does not vary along the axes that i is for   (equal rows are
    taken, whichever)"""
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Gather)
    varying = _varying(x)
    if varying is None or any(op.where[axis] is None for axis in varying):
        return None
    walked: Any = tuple(op.where[axis] for axis in varying)
    return bind(Broadcast(node.shape, walked), _narrowed(x, varying))


@rule(Sort, Partition, ArgSort, ArgPartition, ArgSelect)
def sort_before_repeating(node: Node) -> Node | None:
    """sort(broadcast(x)) -> broadcast(sort(x)) where x does not vary along some other axis   (equal rows have equal
    results)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Sorting)
    kept = _kept_with(x, op.axis)
    if kept is None:
        return None
    return _rewrite(bind(Broadcast(node.shape, kept), bind(op.along_axis(kept.index(op.axis)), _narrowed(x, kept))))


@rule(CumSum, CumProd, CumMax, CumMin)
def scan_before_repeating(node: Node) -> Node | None:
    """cumsum(broadcast(x)) -> broadcast(cumsum(x)) where x does not vary along some other axis   (equal rows have equal
    results)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Cumulative)
    kept = _kept_with(x, op.axis)
    if kept is None:
        return None
    return bind(Broadcast(node.shape, kept), _rewrite(bind(op.along(kept.index(op.axis)), _narrowed(x, kept))))


@rule(CumSum, CumMax, CumMin)
def scan_equal_elements(node: Node) -> Node | None:
    """cumsum(broadcast(x)) -> x * (1, 2, 3...) for integers, cummax(broadcast(x)) -> broadcast(x), along an axis along
    which x does not vary   (integers wrap however they are added; of equal elements each is the largest)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Cumulative)
    varying = _varying(x)
    if varying is None or op.axis in varying or node.kind is not x.kind:
        return None
    if not isinstance(op, CumSum):
        return None if op.exclusive or node.dtype.is_complex else x
    if not node.dtype.is_integer:
        return None
    n = node.shape[op.axis]
    counts = bind(Iota((n,)))
    if op.reverse:
        counts = bind(Slice((n - 1,), (n,), (-1,)), counts)
    if not op.exclusive:
        counts = bind(Add(), counts, constant(1, counts.kind))
    return bind(Multiply(), x, bind(Broadcast(node.shape, (op.axis,)), bind(AsType(node.dtype), counts)))


@rule(Fold)
def reduce_equal_elements(node: Node) -> Node | None:
    """max(broadcast(x)) -> max(x), sum(broadcast(x)) -> n * sum(x) for integers, else sum_of_equal(x), over axes along
    which x does not vary   (of equal elements each is the largest; integers wrap however they are added; partial sums
    of equal elements are equal)"""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Fold)
    varying = _varying(x)
    equal = [axis for axis in op.axes if varying is not None and axis not in varying]
    sizes = [n for axis in equal if type(n := x.shape[axis]) is int]
    neighbours = len(equal) == len(op.axes) > 0 and op.axes[-1] - op.axes[0] == len(op.axes) - 1
    alone = neighbours and _are_many(x.shape)
    if not equal or len(sizes) < len(equal) or op.of_equal(x, math.prod(sizes), alone) is None:
        return None
    kept = tuple(axis for axis in range(x.ndim) if axis not in equal)
    rest = tuple(kept.index(axis) for axis in op.axes if axis in kept)
    reduced = _narrowed(x, kept)
    return op.of_equal(_rewrite(bind(type(op)(rest), reduced)) if rest else reduced, math.prod(sizes), alone)


@rule(ArgExtremum)
def place_among_equals(node: Node) -> Node | None:
    """argmax(broadcast(x)) over an axis along which x does not vary -> 0   (the first of several)"""
    assert isinstance(node.op, ArgExtremum)
    varying = _varying(node.inputs[0])
    none_varies = varying is not None and not set(varying) & set(node.op.axes)
    return constant(0, node.kind) if none_varies else None


def _are_many(shape: Shape) -> bool:
    """Whether a shape that is known has so many elements."""
    size = math.prod(shape)
    return type(size) is int and size >= MANY_EQUAL


def _kept_with(x: Node, axis: int) -> tuple[int, ...] | None:
    """The axes along which rows along an axis differ, and that one; None if these are all, or x does not repeat
    itself."""
    varying = _varying(x)
    kept = None if varying is None else tuple(sorted({*varying, axis}))
    return None if kept is None or len(kept) == x.ndim else kept


def _varying(node: Node) -> tuple[int, ...] | None:
    """The axes along which elements differ, as far as that is known from the broadcasts that they are computed from;
    None if they are computed from anything else, or from nothing that is repeated."""
    axes: set[int] = set()
    repeats, waiting, seen = False, [node], {node}
    while waiting:
        x = waiting.pop()
        if isinstance(x.op, Constant):
            continue
        if isinstance(x.op, Broadcast):
            if not all(provably_equal(n, x.shape[axis]) for n, axis in zip(x.inputs[0].shape, x.op.axes, strict=True)):
                return None
            axes.update(x.op.axes)
            repeats = True
        elif isinstance(x.op, Elementwise) and x.inputs and len(seen) <= MOST_NARROWED:
            new = [operand for operand in x.inputs if operand not in seen]
            waiting += new
            seen.update(new)
        else:
            return None
    return tuple(sorted(axes)) if repeats else None


def _narrowed(node: Node, axes: tuple[int, ...]) -> Node:
    """The node without the axes along which it repeats itself."""
    new: dict[Node, Node] = {}

    def narrow(x: Node) -> Node:
        if x not in new:
            shape = tuple(x.shape[axis] for axis in axes)
            if isinstance(x.op, Constant):
                new[x] = Node(x.op, (), kind_of(shape, x.dtype), x.value)
            elif isinstance(x.op, Broadcast):
                places = tuple(axes.index(axis) for axis in x.op.axes)
                new[x] = _rewrite(bind(Broadcast(shape, places), x.inputs[0]))
            else:
                new[x] = _rewrite(bind(x.op, *[narrow(operand) for operand in x.inputs]))
        return new[x]

    return narrow(node)


def _reshaped(x: Node, shape: Shape) -> Node:
    return x if same_shape(x.shape, shape) else _rewrite(bind(Reshape(shape), x))
