"""CPU code for whole loops whose steps are elementwise: carries stay in registers, and nothing is interpreted between
two steps."""

from __future__ import annotations

from weft import dtypes as dt
from weft.codegen.builder import AnyValue, Value
from weft.codegen.cpu import Frame, Scope, State, flatten, unflatten
from weft.codegen.kernel import Recurrence


def emit_steps(frame: Frame) -> None:
    """The outer dimension is the outer axes and pieces of the inner one, a vector each (`Recurrence`)."""
    b, kernel = frame.b, frame.kernel
    loop = kernel.recurrence
    assert loop is not None
    steps = _least(frame, frame["most"], _count(frame, loop))
    left = steps - frame["done"]
    here = _least(frame, left, frame["share"])
    with b.loop(frame.begin, frame.end, 1) as units:
        chunks = frame["chunks"]
        place = b.op(f"sdiv i64 {units.index.text}, {chunks.text}", dt.int64, 1) if kernel.outer else b.i64(0)
        chunk = units.index - place * chunks if kernel.outer else units.index
        start = chunk * frame["width"]
        bases = frame.bases(frame.indices(place))
        mask = None
        if loop.lanes > 1:
            mask = b.iota(dt.int64, loop.lanes) < b.splat(frame["n"] - start, loop.lanes)
        made, again = _all_steps(frame, loop, bases, start, mask, steps, here)
        with b.when(units.index.eq(0)):
            more = made + frame["done"] < steps
            b.store(more if again is None else more & again, frame["qflag"])
            if loop.reports:
                b.store(made + frame["done"], frame["qmade"])


def _count(frame: Frame, loop: Recurrence) -> Value | None:
    """The number of steps that is asked for, not negative."""
    b = frame.b
    if not loop.counted:
        return None
    asked = b.load(frame["qcount"], dt.int64, 1)
    assert isinstance(asked, Value)
    return b.choose(asked < 0, 0, asked)


def _least(frame: Frame, x: Value, y: Value | None) -> Value:
    return x if y is None else frame.b.choose(x < y, x, y)


def _all_steps(
    frame: Frame, loop: Recurrence, bases: dict[int, Value], j: Value, mask: Value | None, steps: Value, here: Value
) -> tuple[Value, Value | None]:
    """The steps of one vector; how many were made, and whether it wants more (None: always)."""
    b, kernel = frame.b, frame.kernel
    loads = len(kernel.loads)
    first: list[AnyValue] = []
    for _, store in loop.carries:
        first.append(Scope(frame, bases, j, loop.lanes, mask, {}).load(store, kernel.stores[store - loads].access))
    state: State = tuple(first)
    stops = loop.stop is not None
    with b.loop(0, here, 1, *flatten(state), may_stop=stops) as step:
        carried = unflatten(state, step.carried)
        at = frame["done"] + step.index
        if loop.reverse:
            at = steps - 1 - at
        moved = dict(bases)
        for k in loop.rows:
            by = at * frame[f"w{k}"]
            moved[k] = b.gep(bases[k], by)
        given = {load: x for (load, _), x in zip(loop.carries, carried, strict=True) if load >= 0}
        scope = Scope(frame, moved, j, loop.lanes, mask, given)
        values = [scope.spread(scope.value(store.value)) for store in kernel.stores]
        if loop.stop is not None:
            again = scope.value(loop.stop)
            assert isinstance(again, Value)
            step.again = again
        ends = {store for _, store in loop.carries}
        for k, (row, x) in enumerate(zip(kernel.stores, values, strict=True), loads):
            if k not in ends:
                scope.store(k, row.access, x)
        step.carry(*flatten([values[store - loads] for _, store in loop.carries]))
    last = unflatten(state, step.carried)
    scope = Scope(frame, bases, j, loop.lanes, mask, {})
    for (_, store), x in zip(loop.carries, last, strict=True):
        scope.store(store, kernel.stores[store - loads].access, x)
    return step.index, step.going
