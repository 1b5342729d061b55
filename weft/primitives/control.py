"""Control flow: `Loop`, which is every kind of loop, and `Switch`, which is every kind of branch.

Both hold bodies: closed graphs (weft/graph/body.py) that take what varies from step to step as parameters, and all that
does not as invariants, so a loop's graph is as large as its body. Their rules make loops and branches again: the
derivative of a loop carries tangents along, or runs backwards over what a forward loop kept for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.graph.body import Body, body_of, rebuilt
from weft.graph.node import ArrayType, Node, Size, Tape, TupleType, bundle_of, kind_of, reachable, tape_of
from weft.primitives.base import (
    ControlFlow,
    Elementwise,
    Placeholder,
    View,
    bind,
    bind_many,
    constant,
    move_batch_to_front,
    picks,
    zeros,
)
from weft.primitives.checks import equal_kinds, need
from weft.primitives.creation import Extent
from weft.primitives.deferred import Product, split_sum
from weft.primitives.elementwise import Add, AsType, BitwiseAnd, Equal, Less, Maximum, Minimum, Select, Subtract
from weft.primitives.lanes import along, taking_part
from weft.primitives.reductions import Any_, Max
from weft.primitives.views import Broadcast, broadcast_front, transpose
from weft.records import dataclass

DRIVERS: dict[str, Callable[..., Any]] = {}
"""`push_forward`, `pull_back`, `batch` and `between` of weft.transforms, which fills this: rules of bodies are made by
the same drivers as those of whole programs."""

COUNT = kind_of((), dt.int64)
FLAG = kind_of((), dt.bool_)
CHOICE = kind_of((), dt.int32)
RunBody = Callable[[Body, Sequence[np.ndarray]], list[np.ndarray]]


class Loop(ControlFlow):
    """A body run step after step.

    Operands are the number of steps (int64, if `counted`), the `invariants`, the first values of the `carries`, and
    arrays whose rows the steps take in turn, from the last if `reverse`. The body gets invariants, carries and rows; it
    gives the next carries, a row for each stacked result, and, if it `stops`, whether to go on.

    Results are the last carries, the stacked rows, and, if `counted` or `stops`, how many steps were made. There are
    `length` steps at most; rows that no step has written are zeros. Without a `length` there are as many steps as it
    takes, and rows are tapes, which only another loop can read.
    """

    body: Body
    invariants: int
    carries: int
    length: Size | None
    reverse: bool = False
    counted: bool = False
    stops: bool = False
    progress: str | None = None
    """The name under which its progress is shown."""
    takes_arrays = False

    @property
    def is_total(self) -> bool:
        return self.length is not None and is_total(self.body)

    @property
    def can_fail(self) -> bool:
        """It can be interrupted, and tapes have an end."""
        return True

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        """As many steps as are known."""
        return flops_of(self.body) * (float(self.length) if type(self.length) is int else 1.0)

    # ---- what is where ----

    @property
    def reports(self) -> bool:
        """Whether the number of steps is a result."""
        return self.counted or self.stops

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """(count, invariants, carries, rows) of the operands, or of anything that goes with them."""
        given = list(operands)
        count = [given.pop(0)] if self.counted else []
        first = self.invariants + self.carries
        return count, given[: self.invariants], given[self.invariants : first], given[first:]

    def wants_contiguous(self, position: int) -> bool:
        first = self.counted + self.invariants
        return first <= position < first + self.carries

    def split_results(self, results: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
        """(carries, stacked rows, number of steps or None) of the results."""
        last = len(results) - self.reports
        return list(results[: self.carries]), list(results[self.carries : last]), results[-1] if self.reports else None

    def split_body(self) -> tuple[list[Node], list[Node], Node | None]:
        """(next carries, rows, whether to go on) of the body's results."""
        outputs = list(self.body.outputs)
        go_on = outputs.pop() if self.stops else None
        return outputs[: self.carries], outputs[self.carries :], go_on

    def bodies(self) -> tuple[Body, ...]:
        return (self.body,)

    def with_bodies(self, bodies: Sequence[Body]) -> Loop:
        (body,) = bodies
        return self.with_body(body, self.invariants, self.carries)

    def with_body(self, body: Body, invariants: int, carries: int, **changes: Any) -> Loop:
        """A loop of as many steps over another body."""
        names = ("length", "reverse", "counted", "stops", "progress")
        fields = {name: getattr(self, name) for name in names}
        return Loop(body, invariants, carries, **{**fields, **changes})

    # ---- rules ----

    def infer(self, *kinds: ArrayType) -> TupleType:
        _, _, carries, _ = self.split(kinds)
        _, rows, _ = self.split_body()
        stacked = [
            tape_of(row.kind) if self.length is None else kind_of((self.length, *row.shape), row.dtype) for row in rows
        ]
        return bundle_of([*carries, *stacked, *([COUNT] if self.reports else [])])

    def check(self, *kinds: ArrayType) -> None:
        self._check_parameters(len(kinds))
        count, invariants, carries, rows = self.split(kinds)
        params = [param.kind for param in self.body.inputs]
        first = self.invariants + self.carries
        need(all(equal_kinds(kind, COUNT) for kind in count), "a number of steps that is no int64")
        for kind, param in zip([*invariants, *carries], params[:first], strict=True):
            fits = type(kind) is ArrayType and equal_kinds(kind, param)
            need(fits, f"an operand {kind}, where its body takes {param}")
        after, made, go_on = self.split_body()
        for kind, result in zip(carries, after, strict=True):
            same = equal_kinds(result.kind, kind)
            need(same, f"a carry that is {kind} at first, and {result.kind} after a step")
        need(all(type(row.kind) is ArrayType for row in made), "rows that are no arrays")
        need(go_on is None or equal_kinds(go_on.kind, FLAG), "a body that does not say whether to go on")
        for kind, param in zip(rows, params[first:], strict=True):
            self._check_rows(kind, param)

    def _check_parameters(self, operands: int) -> None:
        """The numbers of everything go together, and there is an end."""
        inputs, outputs = len(self.body.inputs), len(self.body.outputs)
        need(self.invariants >= 0 and self.carries >= 0, "a negative number of operands")
        need(operands == self.counted + inputs, f"{operands} operands")
        need(self.invariants + self.carries <= inputs, "a body with fewer parameters than it has operands")
        need(outputs >= self.carries + self.stops, "a body with fewer results than carries")
        bounded = self.length is not None or self.counted
        need(bounded or self.stops, "no end")
        need(bounded or not self.reverse, "steps from an end that it does not have")
        need(self.length is None or self.length >= 0, "a negative number of steps")

    def _check_rows(self, kind: ArrayType, param: ArrayType) -> None:
        """The rows of an operand are as many as there are steps, and what the body takes. How many there are on a tape
        is known only when it is read: `writers` says what bounds the steps then."""
        if self.length is None:
            fits = isinstance(kind, Tape) and equal_kinds(kind.row, param)
            need(fits, f"rows of {kind}, where its body takes {param}")
            need(self.counted, "a tape that is read without counting")
            return
        need(type(kind) is ArrayType and kind.ndim >= 1, f"rows of {kind}")
        same = equal_kinds(kind_of(kind.shape[1:], kind.dtype), param)
        need(same, f"rows of {kind}, where its body takes {param}")
        need(kind.shape[0] == self.length, f"rows of {kind} for another number of steps")

    @staticmethod
    def writers(operands: Sequence[Node]) -> list[Node]:
        """The loops whose tapes are among the operands: it must not make more steps than each of them."""
        return list(dict.fromkeys([x.inputs[0] for x in operands if isinstance(x.kind, Tape)]))

    def reference(self, *values: np.ndarray, run: RunBody) -> tuple[np.ndarray, ...]:
        count, invariants, carries, rows = self.split(values)
        _, made, _ = self.split_body()
        stacked: list[Any] = [
            {} if self.length is None else np.zeros((int(self.length), *map(int, row.shape)), row.dtype.np)
            for row in made
        ]
        limit = None if self.length is None else int(self.length)
        if count:
            limit = max(int(count[0]), 0) if limit is None else max(min(int(count[0]), limit), 0)
        step = 0
        while limit is None or step < limit:
            at = limit - 1 - step if self.reverse and limit is not None else step
            results = run(self.body, [*invariants, *carries, *(row[at] for row in rows)])
            go_on = bool(results.pop()) if self.stops else True
            carries = results[: self.carries]
            for stack, row in zip(stacked, results[self.carries :], strict=True):
                stack[at] = row
            step += 1
            if not go_on:
                break
        return (*carries, *stacked, *([np.asarray(step, np.int64)] if self.reports else []))

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: Mapping[int, Node]
    ) -> Sequence[Node | None]:
        """The same loop with the tangents of carries beside them."""
        given = [tangents.get(i) for i in range(len(primals))]
        _, invariants, carries, rows = self.split(given)
        count, *operands = self.split(primals)
        traced = [t is not None for t in carries]
        while True:
            key = ("jvp", tuple(t is not None for t in invariants), tuple(traced), tuple(t is not None for t in rows))
            made: _Tangents = self.body.once(
                (key, self.carries, self.stops), functools.partial(_tangents, self, *key[1:])
            )
            if made.carries == tuple(traced):
                break
            traced = list(made.carries)
        dots = [zeros(x.kind) if t is None else t for x, t, on in zip(operands[1], carries, traced, strict=True) if on]
        inner = [t for t in invariants if t is not None]
        op = self.with_body(made.body, self.invariants + len(inner), self.carries + len(dots))
        results = bind_many(
            op, *count, *operands[0], *inner, *operands[1], *dots, *operands[2], *(t for t in rows if t is not None)
        )
        last, stacked, _ = op.split_results(results)
        carried, stacks = iter(last[self.carries :]), iter(stacked[len(made.rows) :])
        found = [next(carried) if on else None for on in traced]
        found += [next(stacks) if on else None for on in made.rows]
        return [*found, *([None] if self.reports else [])]

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> Mapping[int, Node]:
        """A loop the other way round over what the forward one keeps for it."""
        positions = list(range(len(primals)))
        _, *places = self.split(positions)
        _, invariants, carries, rows = self.split(primals)
        last, stacks, _ = self.split_results(cotangents)
        asked = tuple(tuple(p in wanted for p in place) for place in places)
        given = (tuple(ct is not None for ct in last), tuple(ct is not None for ct in stacks))
        key = ("vjp", asked, given, self.carries, self.stops, _steps_at_most(self))
        back: _Backward = self.body.once(key, lambda: _backward(self, asked, given))
        kept: Sequence[Node] = ()
        if back.kept:
            op = self.with_body(_with_rows(self, back.kept), self.invariants, self.carries)
            results = bind_many(op, *primals)
            _, stacked, steps = op.split_results(results)
            kept = stacked[len(stacks) :]
        else:
            steps = self.split_results(outs)[2]
        op = Loop(
            back.body,
            len(invariants),
            sum(back.carries) + sum(back.sums),
            self.length,
            not self.reverse,
            self.reports,
        )
        first = [
            zeros(x.kind) if ct is None else ct for x, ct, on in zip(carries, last, back.carries, strict=True) if on
        ]
        sums = [zeros(x.kind) for x, on in zip(invariants, back.sums, strict=True) if on]
        results = bind_many(
            op,
            *([steps] if self.reports else []),
            *invariants,
            *first,
            *sums,
            *rows,
            *kept,
            *(ct for ct in stacks if ct is not None),
        )
        found: dict[int, Node] = {}
        made = iter(results)
        for place, on in zip(places[1], back.carries, strict=True):
            if on:
                found[place] = next(made)
        for place, on in zip(places[0], back.sums, strict=True):
            if on:
                found[place] = next(made)
        for place, on in zip(places[2], back.rows, strict=True):
            if on:
                found[place] = next(made)
        at_hand = dict(zip(back.kept, kept, strict=True))
        at_hand.update(zip(self.body.inputs[self.invariants + self.carries :], rows, strict=True))
        at_hand.update(zip(back.stacked, made, strict=False))
        for place, products in zip(places[0], back.products, strict=True):
            for product in products:
                assert self.length is not None
                total = product.total(at_hand[product.a], at_hand[product.b], self.length)
                found[place] = bind(Add(), found[place], total) if place in found else total
        return {p: ct for p, ct in found.items() if p in wanted}

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        """The same loop over a body for batches; where lanes stop at different steps, those that have stopped keep what
        they have."""
        count, invariants, carries, rows = self.split(inputs)
        count_axes, inner, first, row_axes = self.split(axes)
        batched = [axis is not None for axis in first]
        on = [axis is not None for axis in row_axes]
        while True:
            made = _batched(self, invariants, inner, batched, on, size)
            apart = made.goes_on_batched or any(axis is not None for axis in count_axes)
            # Where lanes stop apart, a carry that is the same for all lanes at first is not so later.
            more = [True] * self.carries if apart else made.carries
            if more == batched:
                break
            batched = more
        carries = [
            move_batch_to_front(x, axis, size) if b else x for x, axis, b in zip(carries, first, batched, strict=True)
        ]
        rows = [_rows_first(x, axis) for x, axis in zip(rows, row_axes, strict=True)]
        if apart:
            limit = move_batch_to_front(count[0], count_axes[0], size) if count else None
            places = [*inner, *(0 for _ in carries), *(None if a is None else 0 for a in row_axes)]
            return _masked(self, made, limit, invariants, places, carries, rows, size)
        op = self.with_body(body_of(made.inputs, made.outputs), self.invariants, self.carries)
        last, stacked, steps = op.split_results(bind_many(op, *count, *invariants, *carries, *rows))
        found: list[tuple[Node, int | None]] = [(x, 0 if b else None) for x, b in zip(last, batched, strict=True)]
        found += [(x, 1 if b else None) for x, b in zip(stacked, made.rows, strict=True)]
        return [*found, *([(steps, None)] if steps is not None else [])]


def is_total(body: Body) -> bool:
    """Whether a body has results for operands of any values."""
    return bool(body.once("is total", lambda: all(node.op.is_total for node in body.graph.order())))


def can_fail(body: Body) -> bool:
    """Whether running a body may end the program."""
    return bool(body.once("can fail", lambda: any(node.op.can_fail for node in body.graph.order())))


def flops_of(body: Body) -> float:
    """Floating-point operations of a body."""
    return sum(node.op.flops(node.kind, *[x.kind for x in node.inputs]) for node in body.graph.order())


def _stand_in(kind: ArrayType) -> Node:
    return Node(Placeholder("a body"), (), kind)


def _rows_first(x: Node, axis: int | None) -> Node:
    """Stacked rows with the batch axis second."""
    if axis is None or axis == 1:
        return x
    rest = [i for i in range(x.ndim) if i != axis]
    return transpose(x, (rest[0], axis, *rest[1:]))


# ---- tangents ----


class _Tangents:
    """A body that carries tangents along, and which carries and rows have one."""

    __slots__ = ("body", "carries", "rows")

    def __init__(self, body: Body, carries: tuple[bool, ...], rows: tuple[bool, ...]) -> None:
        self.body, self.carries, self.rows = body, carries, rows


def _tangents(op: Loop, invariants: Sequence[bool], carries: Sequence[bool], rows: Sequence[bool]) -> _Tangents:
    """The body of the derivative, given which operands have tangents. More carries may turn out to have one: then it is
    made again for those."""
    inputs = list(op.body.inputs)
    on = [*invariants, *carries, *rows]
    dots = [_stand_in(x.kind) if traced else None for x, traced in zip(inputs, on, strict=True)]
    next_carries, made_rows, go_on = op.split_body()
    found = DRIVERS["push_forward"](inputs, [*next_carries, *made_rows], dots)
    carry_dots, row_dots = found[: op.carries], found[op.carries :]
    carried = tuple(was or dot is not None for was, dot in zip(carries, carry_dots, strict=True))
    given = [zeros(x.kind) if dot is None else dot for x, dot in zip(next_carries, carry_dots, strict=True)]
    first, last = op.invariants, op.invariants + op.carries

    def both(part: slice) -> list[Node]:
        return [*inputs[part], *(dot for dot in dots[part] if dot is not None)]

    body = body_of(
        [*both(slice(0, first)), *both(slice(first, last)), *both(slice(last, None))],
        [
            *next_carries,
            *(dot for dot, traced in zip(given, carried, strict=True) if traced),
            *made_rows,
            *(dot for dot in row_dots if dot is not None),
            *([] if go_on is None else [go_on]),
        ],
    )
    return _Tangents(body, carried, tuple(dot is not None for dot in row_dots))


# ---- cotangents ----


@dataclass(frozen=True, slots=True)
class _Backward:
    """The body of a loop that goes backwards, and what goes with it."""

    body: Body
    sums: list[bool]
    """The invariants whose cotangents are summed up along the way."""
    carries: list[bool]
    rows: list[bool]
    """The carries and rows that have a cotangent."""
    kept: list[Node]
    """Nodes of the forward body whose values it wants kept."""
    products: list[list[Product]]
    """For each invariant the terms of its cotangent that are summed up afterwards."""
    stacked: list[Node]
    """Nodes that it stacks for that, after its other rows."""


Flags = tuple[bool, ...]


def _backward(op: Loop, asked: tuple[Flags, ...], given: tuple[Flags, Flags]) -> _Backward:
    """Invariants, rows of the forward loop, kept rows and cotangents of rows go in, the cotangents of carries and the
    sums of those of invariants are carried, cotangents of rows come out."""
    inputs = list(op.body.inputs)
    first, last = op.invariants, op.invariants + op.carries
    active = _active_carries(op, asked)
    next_carries, rows, _ = op.split_body()
    row_cts = [_stand_in(row.kind) if on else None for row, on in zip(rows, given[1], strict=True)]
    carried = [ct and on for ct, on in zip(given[0], active, strict=True)]
    wanted = [
        *asked[0],
        *active,
        *asked[2],
    ]
    targets = [x for x, on in zip(inputs, wanted, strict=True) if on]
    while True:
        carry_cts = [_stand_in(x.kind) if on else None for x, on in zip(next_carries, carried, strict=True)]
        found = DRIVERS["pull_back"](targets, [*next_carries, *rows], [*carry_cts, *row_cts])
        made = iter(found)
        cts: list[Node | None] = [next(made) if on else None for on in wanted]
        more = [was or ct is not None for was, ct in zip(carried, cts[first:last], strict=True)]
        if more == carried:
            break
        carried = more
    products, rests = _split_sums(op, cts[:first], [ct for ct in (*carry_cts, *row_cts) if ct is not None])
    sums = [None if rest is None else _stand_in(rest.kind) for rest in rests]
    totals = [bind(Add(), s, rest) for s, rest in zip(sums, rests, strict=True) if s is not None and rest is not None]
    before = [zeros(x.kind) if ct is None else ct for x, ct in zip(inputs[first:last], cts[first:last], strict=True)]
    results = [
        *(ct for ct, on in zip(before, carried, strict=True) if on),
        *totals,
        *(ct for ct in cts[last:] if ct is not None),
    ]
    factors = list(dict.fromkeys([x for terms in products for term in terms for x in (term.a, term.b)]))
    cotangents = [ct for ct in (*carry_cts, *sums, *row_cts) if ct is not None]
    kept = _kept(op, [*results, *factors], cotangents)
    stacked = [x for x in factors if x not in kept and x not in inputs[last:]]
    body = body_of(
        [
            *inputs[:first],
            *(ct for ct in (*carry_cts, *sums) if ct is not None),
            *inputs[last:],
            *kept,
            *(ct for ct in row_cts if ct is not None),
        ],
        [*results, *stacked],
    )
    summed = [rest is not None for rest in rests]
    return _Backward(body, summed, carried, [ct is not None for ct in cts[last:]], kept, products, stacked)


def _steps_at_most(op: Loop) -> int | None:
    """Roughly how many steps there are, where that is known: it takes few values, and bodies are made for each."""
    return None if op.reports or type(op.length) is not int else 1 << (op.length - 1).bit_length()


def _split_sums(
    op: Loop, cts: Sequence[Node | None], cotangents: Sequence[Node]
) -> tuple[list[list[Product]], list[Node | None]]:
    """The cotangents of invariants at one step: products that are summed up after the loop, and what is left."""
    _, varying = DRIVERS["between"]([*op.body.inputs[op.invariants :], *cotangents], [x for x in cts if x is not None])
    steps = _steps_at_most(op)
    products: list[list[Product]] = []
    rests: list[Node | None] = []
    for ct in cts:
        found, others = split_sum(ct, steps, varying.__contains__) if ct is not None else ([], [])
        products.append(found)
        rests.append(_added(others) if found else ct)
    return products, rests


def _added(terms: Sequence[Node]) -> Node | None:
    return functools.reduce(lambda x, y: bind(Add(), x, y), terms) if terms else None


def _active_carries(op: Loop, asked: tuple[Flags, ...]) -> list[bool]:
    """Carries through which an operand whose cotangent is asked for has an effect."""
    inputs = op.body.inputs
    next_carries, _, _ = op.split_body()
    active = list(asked[1])
    while True:
        on = [*asked[0], *active, *asked[2]]
        sources = [x for x, wanted in zip(inputs, on, strict=True) if wanted]
        _, reached = DRIVERS["between"](sources, next_carries)
        more = [
            was or x in reached for was, x in zip(active, next_carries, strict=True)
        ]  # fmt: skip
        if more == active:
            return active
        active = more


CHEAP = 4
"""An elementwise operation that costs no more than this is computed again rather than kept."""


def _kept(op: Loop, results: Sequence[Node], cotangents: Sequence[Node]) -> list[Node]:
    """The nodes of the forward body, in order, whose values the backward body cannot do without: what it reads is
    computed again where that needs no other value to be kept."""
    inputs = op.body.inputs
    carries = inputs[op.invariants : op.invariants + op.carries]
    moving = [*carries, *inputs[op.invariants + op.carries :]]
    path, back = DRIVERS["between"](cotangents, results)
    frontier = {x for node in path for x in node.inputs if x not in back}
    frontier |= {node for node in results if node not in back}
    _, varying = DRIVERS["between"](moving, list(frontier))
    rows = set(inputs[op.invariants + op.carries :])

    def is_free(node: Node) -> bool:
        return node not in varying or node in rows

    kept: set[Node] = set()
    pending, seen = list(frontier), set(frontier)
    while pending:
        node = pending.pop()
        if is_free(node):
            continue
        operands = {x for x in node.inputs if not is_free(x)}
        cheap = isinstance(node.op, View) or (isinstance(node.op, Elementwise) and node.op.cost <= CHEAP)
        # A tape is no row: the inner loop that wrote it runs again.
        if isinstance(node.kind, (Tape, TupleType)) or (node.inputs and cheap and len(operands) <= 1):
            for x in operands - seen:
                seen.add(x)
                pending.append(x)
        else:
            kept.add(node)
    for node in sorted(kept, key=lambda n: -n.id):
        operands = {x for x in node.inputs if not is_free(x)}
        if isinstance(node.op, Elementwise) and node.op.cost <= CHEAP and operands and operands <= kept:
            kept.discard(node)
    return sorted(kept, key=lambda n: n.id)


def _with_rows(op: Loop, more: Sequence[Node]) -> Body:
    """The body with further rows."""
    next_carries, rows, go_on = op.split_body()
    return body_of(op.body.inputs, [*next_carries, *rows, *more, *([] if go_on is None else [go_on])])


# ---- batches ----


class _Batched:
    """The results of a body for batches, before they become a body."""

    __slots__ = ("carries", "go_on", "goes_on_batched", "inputs", "next_carries", "row_nodes", "rows")

    def __init__(self, inputs: list[Node], carries: list[bool], rows: list[bool]) -> None:
        self.inputs, self.carries, self.rows = inputs, carries, rows
        self.next_carries: list[Node] = []
        self.row_nodes: list[Node] = []
        self.go_on: Node | None = None
        self.goes_on_batched = False

    @property
    def outputs(self) -> list[Node]:
        return [*self.next_carries, *self.row_nodes, *([] if self.go_on is None else [self.go_on])]


def _batched(
    op: Loop,
    invariants: Sequence[Node],
    axes: Sequence[int | None],
    carries: Sequence[bool],
    rows: Sequence[bool],
    size: Size,
) -> _Batched:
    """The body for invariants with these batch axes, and carries and rows that have one in front. More carries may turn
    out to have one."""
    places = [*axes, *(0 if on else None for on in (*carries, *rows))]
    stand_ins = [_stand_in(x.kind) for x in invariants]
    for x, axis in zip(op.body.inputs[op.invariants :], places[op.invariants :], strict=True):
        stand_ins.append(_stand_in(x.kind if axis is None else kind_of((size, *x.shape), x.dtype)))
    found = DRIVERS["batch"](op.body.inputs, op.body.outputs, stand_ins, places, size)
    go_on = found.pop() if op.stops else None
    last, made_rows = found[: op.carries], found[op.carries :]
    carried = [was or axis is not None for was, (_, axis) in zip(carries, last, strict=True)]
    made = _Batched(stand_ins, carried, [axis is not None for _, axis in made_rows])
    made.next_carries = [
        move_batch_to_front(x, axis, size) if on else x for (x, axis), on in zip(last, carried, strict=True)
    ]
    made.row_nodes = [x if axis is None else move_batch_to_front(x, axis, size) for x, axis in made_rows]
    if go_on is not None:
        made.go_on, made.goes_on_batched = go_on[0], go_on[1] is not None
    return made


def _number(size: Size) -> Node:
    """A size as a value."""
    return constant(size, COUNT) if type(size) is int else bind(AsType(dt.int64), bind(Extent(size)))


def _let_run(op: Loop, made: _Batched, running: Node, axes: Sequence[int | None], size: Size) -> None:
    """The results of a body that some lanes run only: the others have nothing to do with what comes out for them."""
    given = taking_part(running, made.inputs, axes, size, is_total(op.body))
    outputs = rebuilt(reachable(made.outputs), made.outputs, dict(zip(made.inputs, given, strict=True)))
    if made.go_on is not None:
        made.go_on = outputs.pop()
    made.next_carries, made.row_nodes = outputs[: op.carries], outputs[op.carries :]


def _masked(
    op: Loop,
    made: _Batched,
    limit: Node | None,
    invariants: Sequence[Node],
    axes: Sequence[int | None],
    carries: Sequence[Node],
    rows: Sequence[Node],
    size: Size,
) -> Sequence[tuple[Node, int | None]]:
    """Lanes with their own numbers of steps: carried along are which lanes run at this step, how many steps each has
    made, and the step itself, counted down."""
    flags, counts = kind_of((size,), dt.bool_), kind_of((size,), dt.int64)
    active, steps, at, own_limit = _stand_in(flags), _stand_in(counts), _stand_in(COUNT), _stand_in(counts)
    backwards = op.reverse and limit is not None
    if limit is not None and op.length is not None:
        limit = bind(Minimum(), limit, bind(Broadcast((size,), ()), _number(op.length)))
    # Backwards, rows are taken from the end of the longest lane on: shorter ones wait for their last row.
    running = bind(Less(), bind(Broadcast((size,), ()), at), own_limit) if backwards else active
    first = op.invariants
    old = made.inputs[first : first + op.carries]
    _let_run(op, made, running, axes, size)
    next_carries = [
        bind(Select(), along(running, x), x, y) for x, y in zip(made.next_carries, old, strict=True)
    ]  # fmt: skip
    spread = [x if on else broadcast_front(x, size) for x, on in zip(made.row_nodes, made.rows, strict=True)]
    row_nodes = [bind(Select(), along(running, x), x, zeros(x.kind)) for x in spread]
    next_steps = bind(Select(), running, bind(Add(), steps, constant(1, counts)), steps)
    next_active = running
    if made.go_on is not None:
        go_on = made.go_on if made.goes_on_batched else bind(Broadcast((size,), ()), made.go_on)
        next_active = bind(BitwiseAnd(), next_active, go_on)
    if limit is not None and not backwards:
        next_active = bind(BitwiseAnd(), next_active, bind(Less(), next_steps, own_limit))
    body = body_of(
        [*made.inputs[:first], own_limit, *old, active, steps, at, *made.inputs[first + op.carries :]],
        [
            *next_carries,
            next_active,
            next_steps,
            bind(Subtract(), at, constant(1, COUNT)),
            *row_nodes,
            *([] if backwards else [bind(Any_((0,)), next_active)]),
        ],
    )
    loop = Loop(body, first + 1, op.carries + 3, op.length, op.reverse, limit is not None, not backwards)
    if limit is None:
        limit, longest, begin = zeros(counts), [], constant(True, flags)
    else:
        longest, begin = [bind(Max((0,)), limit)], bind(Less(), zeros(counts), limit)
    start = bind(Subtract(), longest[0], constant(1, COUNT)) if longest else zeros(COUNT)
    results = bind_many(loop, *longest, *invariants, limit, *carries, begin, zeros(counts), start, *rows)
    last, stacked, _ = loop.split_results(results)
    found: list[tuple[Node, int | None]] = [(x, 0) for x in last[: op.carries]]
    found += [(x, 1) for x in stacked]
    return [*found, *([(last[op.carries + 1], 0)] if op.reports else [])]


def add_tapes(x: Node, y: Node) -> Node:
    """The sum of two tapes of one loop, row by row."""
    (whole,) = x.inputs
    assert isinstance(whole.op, Loop)
    assert isinstance(whole.kind, TupleType)
    assert isinstance(x.kind, Tape)
    steps = picks(whole)[-1]
    a, b = _stand_in(x.kind.row), _stand_in(x.kind.row)
    return bind_many(Loop(body_of([a, b], [bind(Add(), a, b)]), 0, 0, None, counted=True), steps, x, y)[0]


class Switch(ControlFlow):
    """One of several bodies, chosen by the first operand (int32, clamped to their number); the others are operands of
    all of them."""

    branches: tuple[Body, ...]

    def bodies(self) -> tuple[Body, ...]:
        return self.branches

    def with_bodies(self, bodies: Sequence[Body]) -> Switch:
        return Switch(tuple(bodies))

    @property
    def is_total(self) -> bool:
        return all(is_total(branch) for branch in self.branches)

    @property
    def can_fail(self) -> bool:
        return any(can_fail(branch) for branch in self.branches)

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        """Those of all branches."""
        return sum(flops_of(branch) for branch in self.branches)

    def infer(self, *kinds: ArrayType) -> TupleType:
        return bundle_of(self.branches[0].kinds())

    def check(self, *kinds: ArrayType) -> None:
        need(len(self.branches) >= 1, "no branches")
        need(len(kinds) >= 1 and equal_kinds(kinds[0], CHOICE), "a choice that is no int32")
        first = self.branches[0]
        for branch in self.branches:
            need(len(branch.inputs) == len(kinds) - 1, f"a branch with {len(branch.inputs)} parameters")
            for kind, param in zip(kinds[1:], branch.inputs, strict=True):
                need(equal_kinds(kind, param.kind), f"an operand {kind}, where a branch takes {param.kind}")
            need(len(branch.outputs) == len(first.outputs), "branches with different results")
            for kind, other in zip(first.kinds(), branch.kinds(), strict=True):
                need(equal_kinds(kind, other), "branches with different results")
        need(all(type(kind) is ArrayType for kind in first.kinds()), "results that are no arrays")

    def reference(self, *values: np.ndarray, run: RunBody) -> tuple[np.ndarray, ...]:
        index, *operands = values
        return tuple(run(self.branches[min(max(int(index), 0), len(self.branches) - 1)], operands))

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: Mapping[int, Node]
    ) -> Sequence[Node | None]:
        index, *operands = primals
        on = tuple(i + 1 in tangents for i in range(len(operands)))
        dots = [tangents[i + 1] for i, traced in enumerate(on) if traced]
        made = [branch.once(("jvp", on), functools.partial(_branch_tangents, branch, on)) for branch in self.branches]
        alive = [any(dot is not None for dot in found) for found in zip(*(m[1] for m in made), strict=True)]
        bodies = tuple(_chosen(inputs, found, alive, outs) for inputs, found in made)
        results = iter(bind_many(Switch(bodies), index, *operands, *dots))
        return [next(results) if on else None for on in alive]

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> Mapping[int, Node]:
        index, *operands = primals
        asked = tuple(i + 1 in wanted for i in range(len(operands)))
        given = tuple(ct is not None for ct in cotangents)
        made = [
            branch.once(("vjp", asked, given), functools.partial(_branch_cotangents, branch, asked, given))
            for branch in self.branches
        ]
        places = [i for i, on in enumerate(asked) if on]
        alive = [any(ct is not None for ct in found) for found in zip(*(m[1] for m in made), strict=True)]
        targets = [operands[i] for i in places]
        bodies = tuple(_chosen(inputs, found, alive, targets) for inputs, found in made)
        results = iter(bind_many(Switch(bodies), index, *operands, *(ct for ct in cotangents if ct is not None)))
        return {place + 1: next(results) for place, on in zip(places, alive, strict=True) if on}

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        index, *operands = inputs
        index_axis, *places = axes
        if index_axis is not None:
            return self._selected(move_batch_to_front(index, index_axis, size), operands, places, size)
        stand_ins = [_stand_in(x.kind) for x in operands]
        made = [DRIVERS["batch"](b.inputs, b.outputs, stand_ins, places, size) for b in self.branches]
        on = [any(axis is not None for _, axis in found) for found in zip(*made, strict=True)]
        bodies = [
            body_of(stand_ins, [_in_front(x, size) if b else x[0] for x, b in zip(found, on, strict=True)])
            for found in made
        ]
        results = bind_many(Switch(tuple(bodies)), index, *operands)
        return [(x, 0 if b else None) for x, b in zip(results, on, strict=True)]

    def _selected(
        self, index: Node, operands: Sequence[Node], places: Sequence[int | None], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        """Every lane may take another branch: those that some lane takes are computed for all, and each lane takes its
        own."""
        last = len(self.branches) - 1
        index = bind(Minimum(), bind(Maximum(), index, zeros(index.kind)), constant(last, index.kind))
        results: list[Node] = []
        for number, branch in enumerate(self.branches):
            on = bind(Equal(), index, constant(number, index.kind))
            made = _branch_for(branch, on, operands, places, size)
            results = [
                bind(Select(), along(on, x), x, y) for x, y in zip(made, results or made, strict=True)
            ]  # fmt: skip
        return [(x, 0) for x in results]


def _branch_for(
    branch: Body, on: Node, operands: Sequence[Node], places: Sequence[int | None], size: Size
) -> list[Node]:
    """The results of a branch for all lanes, of which some take it."""
    operands = taking_part(on, operands, places, size, is_total(branch))
    if is_total(branch):
        found = DRIVERS["batch"](branch.inputs, branch.outputs, operands, places, size)
        return [_in_front(x, size) for x in found]
    # Where no lane takes it there is none whose values it has a result for.
    stand_ins = [_stand_in(x.kind) for x in operands]
    found = DRIVERS["batch"](branch.inputs, branch.outputs, stand_ins, places, size)
    made = [_in_front(x, size) for x in found]
    bodies = (body_of(stand_ins, [zeros(x.kind) for x in made]), body_of(stand_ins, made))
    return bind_many(Switch(bodies), bind(AsType(dt.int32), bind(Any_((0,)), on)), *operands)


def _in_front(batched: tuple[Node, int | None], size: Size) -> Node:
    return move_batch_to_front(batched[0], batched[1], size)


Made = tuple[list[Node], list[Node | None]]


def _branch_tangents(branch: Body, on: Sequence[bool]) -> Made:
    dots = [_stand_in(x.kind) if traced else None for x, traced in zip(branch.inputs, on, strict=True)]
    found = DRIVERS["push_forward"](branch.inputs, branch.outputs, dots)
    return [*branch.inputs, *(dot for dot in dots if dot is not None)], found


def _branch_cotangents(branch: Body, asked: Sequence[bool], given: Sequence[bool]) -> Made:
    cts = [_stand_in(x.kind) if on else None for x, on in zip(branch.outputs, given, strict=True)]
    targets = [x for x, on in zip(branch.inputs, asked, strict=True) if on]
    found = DRIVERS["pull_back"](targets, branch.outputs, cts)
    return [*branch.inputs, *(ct for ct in cts if ct is not None)], found


def _chosen(inputs: Sequence[Node], found: Sequence[Node | None], alive: Sequence[bool], like: Sequence[Node]) -> Body:
    """A branch with the results that some branch has; zeros where this one has none."""
    results = [
        zeros(x.kind) if node is None else node for node, on, x in zip(found, alive, like, strict=True) if on
    ]  # fmt: skip
    return body_of(inputs, results)
