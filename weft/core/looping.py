"""Control flow as operations: loops and branches that are part of the graph, run natively, and have derivatives.

All functions here take and give trees of arrays. Bodies are traced once; arrays that they capture are operands like any
other, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft import dtypes as dt
from weft import tree
from weft.core._common import array, astype, bind, constant, is_whole, kind_of, plain, to_int64, to_node, wrap
from weft.core.creating import arange
from weft.core.elementwise import maximum, minimum, where
from weft.core.gathering import take
from weft.core.joining import concatenate
from weft.core.shaping import slice_axis
from weft.evaluate import LOCK
from weft.graph.body import body_of
from weft.graph.dims import same_shape
from weft.graph.lines import mark
from weft.graph.node import ArrayType, Node, Shape, Size
from weft.primitives import elementwise as e
from weft.primitives.base import ControlFlow, bind_many, zeros
from weft.primitives.checks import equal_shapes
from weft.primitives.control import COUNT, Loop, Switch
from weft.primitives.views import Reshape, Slice, reshape
from weft.transforms.bodies import TracedBody, captured, random_state, trace_body
from weft.transforms.checkpoint import checkpoint
from weft.transforms.drawing import DRAWING

Function = Callable[..., Any]
Tree = Any

_ENDLESS = 1 << 62
_NUMBERS = (bool, int, float, complex)


class _Carry:
    """The first value of a carry: nodes, structure, and which leaves were Python numbers, whose dtype may still
    follow the body's."""

    def __init__(self, name: str, init: Tree) -> None:
        leaves, self.structure = tree.flatten(init)
        self.leaves = [plain(leaf) for leaf in leaves]
        self.soft = [type(leaf) in _NUMBERS for leaf in self.leaves]
        self.nodes = _nodes(name, "the carry", leaves, self.structure)

    @property
    def kinds(self) -> list[ArrayType]:
        return [node.kind for node in self.nodes]

    def build(self, arrays: Sequence[array]) -> Tree:
        return self.structure.unflatten(arrays)

    def settle(self, after: Sequence[Any]) -> None:
        """Give numbers the dtype that they have after a step which took them as numbers, as the plain loop's first step
        does: `0.0` beside float16 rows becomes a float16."""
        for i, leaf in enumerate(after):
            if not self.soft[i] or not isinstance(leaf, array) or leaf._node.ndim != 0:
                continue
            if _follows(self.nodes[i], leaf._node):
                self.nodes[i] = constant(self.leaves[i], leaf._node.kind)

    def fits(self, name: str, given: Sequence[Any], structure: tree.Structure) -> list[Node] | None:
        """The nodes of the carry after a step; None if the carry's first value had to take another dtype, and the body
        must be traced again. An error says which leaf changed."""
        if structure is not self.structure:
            raise ValueError(f"[{name}] the carry is {self.structure} at first, but {structure} after a step.")
        nodes = _nodes(name, "the carry", given, structure)
        again = False
        for i, (before, after) in enumerate(zip(self.nodes, nodes, strict=True)):
            fits = equal_shapes(before.shape, after.shape)
            if fits and before.dtype is after.dtype:
                nodes[i] = _shaped(after, before.shape)
                continue
            if fits and self.soft[i] and _follows(before, after):
                self.nodes[i], again = astype(before, after.dtype), True
                continue
            where = str(self.structure.paths()[i])
            which = f"the leaf {where}" if where else "it"
            raise ValueError(
                f"[{name}] the carry must keep its shape and dtype, but {which} is {_told(before)} at first and "
                f"{_told(after)} after a step; convert one of them (astype, reshape, broadcast_to)."
            )
        return None if again else nodes


def _nodes(name: str, what: str, leaves: Sequence[Any], structure: tree.Structure) -> list[Node]:
    """The nodes of leaves that can be arrays; an error says which one cannot."""
    found = []
    for i, leaf in enumerate(leaves):
        try:
            found.append(to_node(leaf))
        except (TypeError, ValueError):
            path = str(structure.paths()[i])
            raise TypeError(
                f"[{name}] {what} must consist of arrays and numbers, but {f'its leaf {path}' if path else 'it'} is of "
                f"type {type(leaf).__name__}."
            ) from None
    return found


def _shaped(x: Node, shape: Shape) -> Node:
    """A value in a shape that it has in all calls that pass the guards: sizes are then the same expressions of symbols
    wherever a body is used."""
    return x if x.kind is kind_of(shape, x.dtype) else bind(Reshape(shape), x)


def _follows(before: Node, after: Node) -> bool:
    """Whether a Python number may become an element of the other dtype."""
    order = "ifc"
    kinds = [("c" if x.dtype.is_complex else "f" if x.dtype.is_float else "i") for x in (before, after)]
    return order.index(kinds[0]) <= order.index(kinds[1])


def _told(node: Node) -> str:
    """Dtype and shape, for an error: sizes as numbers, as they are in this call."""
    return f"{node.dtype.name}[{', '.join([str(n) for n in node.shape])}]"


def _callable(name: str, what: str, fun: Any) -> Function:
    if not callable(fun):
        raise TypeError(f"[{name}] {what} must be a function; got {type(fun).__name__}.")
    return fun  # type: ignore[no-any-return]


@contextmanager
def _drawing(draws: bool) -> Iterator[list[Node]]:
    """The random state for a loop or branch that draws numbers; no other thread draws until it is replaced."""
    if not draws:
        yield []
        return
    with DRAWING:
        yield [random_state()[0]._node]


def _applied(op: ControlFlow, *operands: Node) -> list[Node]:
    """Bind; errors in its bodies will name this line."""
    results = bind_many(op, *operands)
    for pick in results[:1]:
        mark(pick.inputs[0])
    return results


# ---- loops ----


def _loop(
    name: str,
    traced: TracedBody,
    carry: Sequence[Node],
    outputs: Sequence[Node],
    rows: Sequence[Node],
    length: Size | None,
    reverse: bool = False,
    count: Node | None = None,
    stops: bool = False,
    progress: str | None = None,
) -> tuple[list[array], list[array], array | None]:
    """Bind a Loop of what was traced: `outputs` are the next carries, rows, and whether to go on. Gives the last
    carries, the stacked rows and the number of steps."""
    params = traced.params
    carries = len(carry)
    carry_params, row_params = list(params[:carries]), list(params[carries:])
    outputs = list(outputs)
    if traced.random is not None:
        carry_params.append(traced.random_param)
        outputs.insert(carries, traced.random)
    with LOCK:  # another thread that evaluates what is captured would cut it from its inputs
        inside = captured([*carry_params, *row_params], outputs, traced.first, hoist=True)
        body = body_of([*inside, *carry_params, *row_params], outputs)
    op = Loop(body, len(inside), len(carry_params), length, reverse, count is not None, stops, progress)
    operands = [*([] if count is None else [count]), *inside, *carry]
    with _drawing(traced.random is not None) as state:
        last, stacked, steps = op.split_results(_applied(op, *operands, *state, *rows))
        if state:
            random_state()[0] = wrap(last.pop())
    return [wrap(x) for x in last], [wrap(x) for x in stacked], None if steps is None else wrap(steps)


def scan(
    f: Function,
    init: Tree,
    xs: Tree = None,
    length: Size | array | None = None,
    reverse: bool = False,
    unroll: int = 1,
    *,
    until: Function | None = None,
    checkpoint_every: int | None = None,
    progress: bool | str = False,
) -> Any:
    """Run `f(carry, x) -> (carry, y)` over the rows of `xs` and give (the last carry, the `y` of all steps stacked).

    Parameters
    ----------
    xs : a tree of arrays with a common first axis, or None
    length : how many steps; an array means that the number is known only when the loop runs, and rows of `ys` that
        were not reached are zeros. By default as many as `xs` has rows; with more rows than steps the rest is left out.
    reverse : take the rows from the last to the first; `ys` stand where their rows do
    unroll : how many steps the body holds; a hint about speed
    until : `until(carry, y) -> bool`: the step for which it holds is the last. Gives (carry, ys, number of steps).
    checkpoint_every : keep only every so many carries for the gradient, and compute the rest again
    progress : show how far it is while it runs (on the standard error stream), under this name if it is one

    >>> scan(lambda total, x: (total + x, total * x), array(0), array([1, 2, 3]))
    (array(6, dtype=int32), array([0, 2, 9], dtype=int32))
    """
    _callable("scan", "the first argument", f)
    row_leaves, row_structure = tree.flatten(xs)
    rows = _nodes("scan", "`xs`", row_leaves, row_structure)
    count, steps = _length("scan", rows, length)
    carry, shown = _Carry("scan", init), _name("scan", progress)
    unroll = _positive("unroll", unroll)
    every = _positive("checkpoint_every", checkpoint_every) if checkpoint_every is not None else None
    known = until is None and count is None and steps is not None
    if every is not None and not known:
        raise ValueError(
            "[scan] checkpoint_every needs a number of steps that is known before the first one: without `until`, and "
            "with an integer `length`."
        )
    if known and (every is not None or unroll != 1):
        assert steps is not None
        parts = [_rows(x, steps) for x in rows]
        return _in_chunks(f, carry, parts, row_structure, steps, reverse, unroll, every, shown)
    if reverse and until is not None:
        return _reversed(f, carry, rows, row_structure, count, steps, until, shown)
    return _scan("scan", f, carry, rows, row_structure, count, steps, reverse, until, shown)


def _name(loop: str, progress: bool | str) -> str | None:
    """The name under which a loop shows its progress."""
    return progress if isinstance(progress, str) else loop if progress else None


def _scan(
    name: str,
    f: Function,
    carry: _Carry,
    rows: list[Node],
    row_structure: tree.Structure,
    count: Node | None,
    steps: Size | None,
    reverse: bool,
    until: Function | None,
    progress: str | None = None,
) -> Any:
    traced, nodes, (y, stop) = _traced_step(name, f, carry, rows, row_structure, until)
    leaves, shape = tree.flatten(y)
    made = _nodes(name, "`y`", leaves, shape)
    if steps is None and made:
        raise ValueError(
            f"[{name}] the rows of `ys` need a largest number of steps: give `xs`, or an integer `length` and `until`."
        )
    flags = [bind(e.Equal(), to_node(flag), constant(False, kind_of((), dt.bool_))) for flag in stop]
    last, stacked, done = _loop(
        name, traced, carry.nodes, [*nodes, *made, *flags], [_rows(x, steps) for x in rows], steps, reverse, count,
        until is not None, progress,
    )  # fmt: skip
    result = carry.build(last), shape.unflatten(stacked)
    if until is None:
        return result
    assert done is not None
    return (*result, wrap(astype(done._node, dt.int32)))


def _traced_step(
    name: str, f: Function, carry: _Carry, rows: Sequence[Node], structure: tree.Structure, until: Function | None
) -> tuple[TracedBody, list[Node], Any]:
    """As `_traced`; the rest is (`y`, a list of the flag that `until` gives)."""
    carries = len(carry.nodes)

    def step(*arrays: array) -> Any:
        result = f(carry.build(arrays[:carries]), structure.unflatten(arrays[carries:]))
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(f"[{name}] the body must return a pair (carry, y); got {_described(result)}.")
        after, y = result
        return after, (y, [] if until is None else [_flag(name, "until", until(after, y))])

    return _traced(name, step, carry, after=[kind_of(x.shape[1:], x.dtype) for x in rows])


def _traced(
    name: str, step: Function, carry: _Carry, before: Sequence[ArrayType] = (), after: Sequence[ArrayType] = ()
) -> tuple[TracedBody, list[Node], Any]:
    """Trace `step`, which takes arrays before and after those of the carry and returns (the carry after it, the rest),
    until the numbers in the carry have a dtype that they keep. Gives (trace, nodes of that carry, the rest)."""
    if any(carry.soft):
        _settle(name, step, carry, before, after)
    for _ in range(len(carry.nodes) + 1):
        traced = trace_body(name, step, [*before, *carry.kinds, *after])
        assert traced.structure is not None
        carried, rest = traced.structure.unflatten(traced.leaves)
        nodes = carry.fits(name, *tree.flatten(carried))
        if nodes is not None:
            return traced, nodes, rest
    raise AssertionError("a number's dtype changes once at most")


def _settle(name: str, step: Function, carry: _Carry, before: Sequence[ArrayType], after: Sequence[ArrayType]) -> None:
    """Find out which dtype the numbers in a carry have after a step. A body that cannot take a number in place of an
    array tells nothing."""
    first = len(before)

    def on_numbers(*arrays: array) -> Any:
        given = list(arrays)
        for i, soft in enumerate(carry.soft):
            given[first + i] = carry.leaves[i] if soft else given[first + i]
        return step(*given)[0]

    try:
        traced = trace_body(name, on_numbers, [*before, *carry.kinds, *after])
    except Exception:  # whatever is wrong with the body shows when it is traced for good
        return
    if traced.structure is carry.structure:
        carry.settle(traced.leaves)


def _rows(x: Node, steps: Size | None) -> Node:
    """The first `steps` rows."""
    if steps is None or same_shape((x.shape[0],), (steps,)):
        return x if steps is None else _shaped(x, (steps, *x.shape[1:]))
    return bind(Slice((0,) * x.ndim, (steps, *x.shape[1:]), (1,) * x.ndim), x)


def _length(name: str, rows: Sequence[Node], length: Any) -> tuple[Node | None, Size | None]:
    """(number of steps at run time or None, largest number of steps or None)."""
    sizes: list[Size] = []
    for x in rows:
        if x.ndim == 0:
            raise ValueError(f"[{name}] `xs` must have a first axis to step along; got a 0-d array.")
        sizes.append(x.shape[0])
    for n in sizes[1:]:
        if n != sizes[0]:
            raise ValueError(f"[{name}] the arrays of `xs` differ in their number of rows: {sizes[0]} and {n}.")
    most = sizes[0] if sizes else None
    length = plain(length)
    if length is None:
        if most is None:
            raise ValueError(f"[{name}] how many steps? Give `xs` or `length`.")
        return None, most
    if isinstance(length, array):
        return _scalar_count(name, "length", length), most
    if isinstance(length, bool) or not hasattr(length, "__index__"):
        raise TypeError(f"[{name}] `length` must be an integer or an array of one; got {length!r}.")
    if length < 0:
        raise ValueError(f"[{name}] `length` must not be negative; got {length}.")
    if most is not None and length > most:
        raise ValueError(f"[{name}] {length} steps need as many rows of `xs`, which has {most}.")
    return None, length


def _scalar_count(name: str, what: str, value: array) -> Node:
    node = value._node
    if node.kind.size != 1 or not node.dtype.is_integer:
        raise ValueError(f"[{name}] `{what}` must be a single integer; got {_told(node)}.")
    return to_int64(reshape(node, ()))


def _positive(what: str, value: Any) -> int:
    if isinstance(value, bool) or not is_whole(value) or value < 1:
        raise ValueError(f"[scan] {what} must be a positive integer; got {value!r}.")
    return int(value)


def _flag(name: str, what: str, value: Any) -> array:
    """A single bool."""
    node = None if value is None else to_node(value)
    if node is None or node.kind.size != 1:
        got = "None" if node is None else _told(node)
        raise ValueError(f"[{name}] {what} must give a single true or false; got {got}.")
    return wrap(astype(reshape(node, ()), dt.bool_))


def _described(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


def _reversed(
    f: Function,
    carry: _Carry,
    rows: list[Node],
    structure: tree.Structure,
    count: Node | None,
    steps: Size | None,
    until: Function,
    progress: str | None,
) -> Any:
    """A reversed loop that may stop is a loop over reversed rows."""
    if steps is None:
        return _scan("scan", f, carry, rows, structure, count, steps, False, until, progress)
    turn = _flipped if count is None else _turning(count, steps)
    turned = [turn(_rows(x, steps)) for x in rows]
    last, ys, done = _scan("scan", f, carry, turned, structure, count, steps, False, until, progress)
    return last, tree.map(lambda y: wrap(turn(y._node)), ys), done


def _flipped(x: Node) -> Node:
    starts = (x.shape[0] - 1, *(0 for _ in x.shape[1:]))
    return bind(Slice(starts, x.shape, (-1, *(1 for _ in x.shape[1:]))), x)


def _turning(count: Node, steps: Size) -> Callable[[Node], Node]:
    """The first `count` rows in reversed order; the others are zeros."""
    places = minimum(wrap(count), steps) - 1 - arange(steps, dtype=dt.int64)

    def turn(x: Node) -> Node:
        reached = (places >= 0).reshape(-1, *(1 for _ in x.shape[1:]))
        return where(reached, take(wrap(x), maximum(places, 0), axis=0), wrap(zeros(x.kind)))._node

    return turn


def _in_chunks(
    f: Function,
    carry: _Carry,
    rows: Sequence[Node],
    structure: tree.Structure,
    steps: Size,
    reverse: bool,
    unroll: int,
    every: int | None,
    progress: str | None,
) -> Any:
    """The steps in chunks: unrolled, or with a gradient that starts each chunk anew from its first carry."""
    if any(carry.soft):
        _traced_step("scan", f, carry, rows, structure, None)  # which settles the dtypes of numbers
    size = unroll if every is None else every
    whole, rest = steps // size, steps % size

    def chunk(carry: Tree, part: Tree) -> Any:
        if every is not None:
            inner = checkpoint(lambda c, p: scan(f, c, p, length=size, reverse=reverse, unroll=unroll))
            return inner(carry, part)
        return _unrolled(f, carry, part, size, reverse)

    def part(start: Size, count: Size) -> Tree:
        return structure.unflatten([wrap(slice_axis(x, 0, start, count)) for x in rows])

    def cut(x: array) -> array:
        return wrap(reshape(x._node, (whole, size, *x._node.shape[1:])))

    # The chunk that is shorter is the last one that is run.
    main = tree.map(cut, part(rest if reverse else 0, whole * size))
    first = carry.build([wrap(x) for x in carry.nodes])
    last, ys = scan(chunk, first, main, length=whole, reverse=reverse, progress=progress or False)
    ys = tree.map(lambda y: wrap(reshape(y._node, (whole * size, *y._node.shape[2:]))), ys)
    if type(rest) is int and rest == 0:
        return last, ys
    last, more = scan(f, last, part(0 if reverse else whole * size, rest), length=rest, reverse=reverse)
    return last, tree.map(lambda a, b: concatenate([b, a] if reverse else [a, b], 0), ys, more)


def _unrolled(f: Function, carry: Tree, part: Tree, size: int, reverse: bool) -> Any:
    made: list[Any] = [None] * size
    for i in reversed(range(size)) if reverse else range(size):
        carry, made[i] = f(carry, tree.map(lambda x, i=i: x[i], part))
    ys = tree.map(
        lambda *rows: concatenate([wrap(reshape(to_node(y), (1, *to_node(y).shape))) for y in rows], 0), *made
    )
    return carry, ys


def while_loop(cond: Function, body: Function, init: Tree, *, progress: bool | str = False) -> Tree:
    """`state = init; while cond(state): state = body(state)`, as one operation.

    >>> while_loop(lambda x: x < 100, lambda x: x * 3, array(1))
    array(243, dtype=int32)
    """
    _callable("while_loop", "the condition", cond)
    _callable("while_loop", "the body", body)
    carry = _Carry("while_loop", init)

    def step(*arrays: array) -> Any:
        after = body(carry.build(arrays))
        return after, _flag("while_loop", "the condition", cond(after))

    traced, nodes, flag = _traced("while_loop", step, carry)
    begin = _flag("while_loop", "the condition", cond(carry.build([wrap(x) for x in carry.nodes])))._node
    count = bind(e.Select(), begin, constant(_ENDLESS, COUNT), constant(0, COUNT))
    last, _, _ = _loop(
        "while_loop",
        traced,
        carry.nodes,
        [*nodes, flag._node],
        [],
        None,
        count=count,
        stops=True,
        progress=_name("while_loop", progress),
    )
    return carry.build(last)


def fori_loop(
    lower: int | array, upper: int | array, body: Function, init: Tree, *, progress: bool | str = False
) -> Tree:
    """`for i in range(lower, upper): state = body(i, state)`, as one operation; the bounds may be arrays.

    >>> fori_loop(0, 5, lambda i, x: x + i, array(0))
    array(10, dtype=int32)
    """
    _callable("fori_loop", "the body", body)
    lower, upper = plain(lower), plain(upper)
    bounds = [_bound("lower", lower), _bound("upper", upper)]
    carry = _Carry("fori_loop", init)
    wide = any(x.dtype in (dt.int64, dt.uint32, dt.uint64) for x in bounds)
    first = astype(bounds[0], dt.int64 if wide else dt.int32)
    length: Any = None
    count = None
    if isinstance(lower, array) or isinstance(upper, array):
        count = bind(e.Subtract(), astype(bounds[1], dt.int64), astype(bounds[0], dt.int64))
    else:
        length = max(upper - lower, 0)

    def step(i: array, *arrays: array) -> Any:
        return body(i, carry.build(arrays)), wrap(bind(e.Add(), i._node, constant(1, i._node.kind)))

    traced, nodes, i = _traced("fori_loop", step, carry, before=[first.kind])
    last, _, _ = _loop(
        "fori_loop",
        traced,
        [first, *carry.nodes],
        [i._node, *nodes],
        [],
        length,
        count=count,
        progress=_name("fori_loop", progress),
    )
    return carry.build(last[1:])


def _bound(what: str, value: Any) -> Node:
    node = to_node(value)
    if node.kind.size != 1 or not node.dtype.is_integer:
        raise ValueError(f"[fori_loop] the {what} bound must be a single integer; got {value!r}.")
    return reshape(node, ())


def map(f: Function, xs: Tree) -> Tree:
    """`f` of each row of `xs`, one after the other, stacked. (`vmap` does all rows at once, in more memory.)

    >>> map(lambda x: x.sum(), array([[1, 2], [3, 4]]))
    array([3, 7], dtype=int32)
    """
    _callable("map", "the first argument", f)
    leaves, structure = tree.flatten(xs)
    rows = _nodes("map", "`xs`", leaves, structure)
    count, steps = _length("map", rows, None)
    _, ys = _scan("map", lambda carry, x: (carry, f(x)), _Carry("map", ()), rows, structure, count, steps, False, None)
    return ys


# ---- branches ----


def cond(pred: Any, true_fn: Function, false_fn: Function, *operands: Tree) -> Tree:
    """`true_fn(*operands) if pred else false_fn(*operands)`, where `pred` may be known only when the program runs. Only
    the branch that is taken is computed.

    >>> cond(array(2) > 1, lambda x: x + 1, lambda x: x - 1, array(10))
    array(11, dtype=int32)
    """
    _callable("cond", "the true branch", true_fn)
    _callable("cond", "the false branch", false_fn)
    if type(plain(pred)) is bool:
        return (true_fn if pred else false_fn)(*operands)
    index = astype(_flag("cond", "the predicate", pred)._node, dt.int32)
    return _switch("cond", index, (false_fn, true_fn), ("false", "true"), operands)


def switch(index: Any, branches: Sequence[Function], *operands: Tree) -> Tree:
    """`branches[index](*operands)`; an index outside takes the first or the last branch.

    >>> switch(array(1), [lambda x: x, lambda x: -x, lambda x: x * x], array(3))
    array(-3, dtype=int32)
    """
    functions = tuple(_callable("switch", f"branch {i}", branch) for i, branch in enumerate(branches))
    if not functions:
        raise ValueError("[switch] there must be at least one branch.")
    node = to_node(index)
    if node.kind.size != 1 or not node.dtype.is_integer:
        raise ValueError(f"[switch] the index must be a single integer; got {_told(node)}.")
    last = len(functions) - 1
    node = reshape(node, ())
    if node.dtype is dt.uint64:  # whose upper half would turn negative
        node = bind(e.Minimum(), node, constant(last, node.kind))
    held = bind(e.Minimum(), bind(e.Maximum(), astype(node, dt.int64), constant(0, COUNT)), constant(last, COUNT))
    return _switch("switch", astype(held, dt.int32), functions, tuple(str(i) for i in range(last + 1)), operands)


def _switch(
    name: str, index: Node, functions: Sequence[Function], names: Sequence[str], operands: Sequence[Tree]
) -> Tree:
    leaves, structure = tree.flatten(tuple(operands))
    nodes = [to_node(leaf) for leaf in leaves]
    traces = [
        trace_body(name, lambda *arrays, f=f: f(*structure.unflatten(arrays)), [x.kind for x in nodes])
        for f in functions
    ]
    results = _agreed(name, names, traces)
    draws = any(t.random is not None for t in traces)
    if draws:
        for t, made in zip(traces, results, strict=True):
            made.append(t.random if t.random is not None else t.random_param)
    with LOCK:  # as above
        inside = {
            x: None
            for t, made in zip(traces, results, strict=True)
            for x in captured([*t.params, t.random_param], made, t.first, hoist=False)
        }
        outer = list(inside)
        bodies = tuple(
            body_of([*t.params, *outer, *([t.random_param] if draws else [])], made)
            for t, made in zip(traces, results, strict=True)
        )
    with _drawing(draws) as state:
        found = _applied(Switch(bodies), index, *nodes, *outer, *state)
        if state:
            random_state()[0] = wrap(found.pop())
    shape = traces[0].structure
    assert shape is not None
    return shape.unflatten([wrap(x) for x in found])


def _agreed(name: str, names: Sequence[str], traces: Sequence[TracedBody]) -> list[list[Node]]:
    """The results of all branches, which must be alike; Python numbers take the dtype that another branch has."""
    structure = traces[0].structure
    assert structure is not None
    for other, t in zip(names, traces, strict=True):
        if t.structure is not structure:
            raise ValueError(
                f"[{name}] the branches must return the same structure: branch {names[0]} returns {structure}, branch "
                f"{other} returns {t.structure}."
            )
    results = [
        _nodes(name, f"what branch {which} returns", t.leaves, structure)
        for which, t in zip(names, traces, strict=True)
    ]
    for i in range(len(results[0])):
        strong = [r[i] for r, t in zip(results, traces, strict=True) if type(plain(t.leaves[i])) not in _NUMBERS]
        model = (strong or [r[i] for r in results])[0]
        for other, r, t in zip(names, results, traces, strict=True):
            if type(plain(t.leaves[i])) in _NUMBERS and r[i].dtype is not model.dtype and _follows(r[i], model):
                r[i] = astype(r[i], model.dtype)
            if not equal_shapes(r[i].shape, model.shape) or r[i].dtype is not model.dtype:
                where = str(structure.paths()[i])
                one = next(which for which, r in zip(names, results, strict=True) if r[i] is model)
                raise ValueError(
                    f"[{name}] the branches must return the same shapes and dtypes: result{where and ' '}{where} is "
                    f"{_told(model)} in branch {one} and {_told(r[i])} in branch {other}."
                )
            r[i] = _shaped(r[i], model.shape)
    return results


# ---- associative scans ----


def associative_scan(fn: Function, xs: Tree, axis: int = 0, reverse: bool = False) -> Tree:
    """Running results of an associative `fn(a, b)` along an axis, in a number of steps that grows with the logarithm of
    its size. `fn` is applied to arrays of many elements at once.

    >>> associative_scan(lambda a, b: a * b, array([1, 2, 3, 4]))
    array([1, 2, 6, 24], dtype=int32)
    """
    _callable("associative_scan", "the first argument", fn)
    leaves, structure = tree.flatten(xs)
    nodes = [to_node(leaf) for leaf in leaves]
    if not nodes:
        return xs
    for x in nodes:
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(f"[associative_scan] axis {axis} is out of range for an array of {x.ndim} dimensions.")
    axes = [axis % x.ndim for x in nodes]
    n = nodes[0].shape[axes[0]]
    if any(x.shape[a] != n for x, a in zip(nodes, axes, strict=True)):
        raise ValueError("[associative_scan] all arrays must have the same size along the axis.")

    def along(x: Node, a: int, start: Any, size: Any, step: int = 1) -> Node:
        return slice_axis(x, a, start, size, step)

    def combined(first: list[Node], second: list[Node]) -> list[Node]:
        pair = [structure.unflatten([wrap(x) for x in part]) for part in (first, second)]
        result, shape = tree.flatten(fn(*pair))
        if shape is not structure:
            raise ValueError(f"[associative_scan] fn must return what it is given: {structure}; got {shape}.")
        made = [to_node(leaf) for leaf in result]
        for x, y in zip(first, made, strict=True):
            if not equal_shapes(x.shape, y.shape):
                raise ValueError(
                    f"[associative_scan] fn must return the shapes that it is given: {x.shape}; got {y.shape}. It is "
                    "applied to many elements at once, along the axis."
                )
        return [_shaped(y, x.shape) for x, y in zip(first, made, strict=True)]

    def pick(values: list[Node], start: Any, size: Any, step: int = 1) -> list[Node]:
        return [along(x, a, start, size, step) for x, a in zip(values, axes, strict=True)]

    def run(values: list[Node], n: int) -> list[Node]:
        if n < 2:
            return values
        half = n // 2
        pairs = combined(pick(values, 0, half, 2), pick(values, 1, half, 2))
        odd = run(pairs, half)  # results at places 1, 3, 5, …
        rest = (n - 1) // 2
        even = pick(values, 0, 1)
        if rest:
            later = combined(pick(odd, 0, rest), pick(values, 2, rest, 2))
            even = [concatenate([wrap(x), wrap(y)], a)._node for x, y, a in zip(even, later, axes, strict=True)]
        return [_interleaved(x, y, a, n) for x, y, a in zip(even, odd, axes, strict=True)]

    count = int(n)
    if reverse:
        nodes = [along(x, a, count - 1, count, -1) for x, a in zip(nodes, axes, strict=True)]
    found = run(nodes, count)
    if reverse:
        found = [along(x, a, count - 1, count, -1) for x, a in zip(found, axes, strict=True)]
    return structure.unflatten([wrap(x) for x in found])


def _interleaved(even: Node, odd: Node, axis: int, n: int) -> Node:
    """Elements of both in turn along an axis; `even` has as many as `odd`, or one more."""
    half = odd.shape[axis]
    shape = odd.shape
    pair = [
        wrap(reshape(slice_axis(x, axis, 0, half), (*shape[: axis + 1], 1, *shape[axis + 1 :]))) for x in (even, odd)
    ]
    both = reshape(concatenate(pair, axis + 1)._node, (*shape[:axis], 2 * half, *shape[axis + 1 :]))
    if n % 2 == 0:
        return both
    return concatenate([wrap(both), wrap(slice_axis(even, axis, half, 1))], axis)._node
