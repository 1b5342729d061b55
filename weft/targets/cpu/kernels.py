"""CPU code for loop-nest kernels: explicit 16-lane vectors, masked tails, one function a kernel.

Each form has a function that writes the loops; the expression inside is written by a `Scope` (codegen/scope.py). The
order of reductions is the specified one (docs/numerics.md): element i of a block of 4096 goes to lane i mod 16, lanes
are merged by a fixed tree, block k's result goes to lane k mod 16 of a second level, merged by the same tree at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft import dtypes as dt
from weft.codegen.builder import PTR, AnyValue, Builder, Complex, Value
from weft.codegen.kernel import LANES, Kernel, Step
from weft.codegen.scope import Frame, Scope, stored_dtype
from weft.dtypes import Dtype

State = tuple[AnyValue, ...]


def emit_kernel(kernel: Kernel, name: str) -> str:
    """LLVM IR of `void name(ptr args, i64 begin, i64 end, ptr scratch)`."""
    params = [("args", PTR), ("begin", dt.int64), ("end", dt.int64), ("scratch", PTR)]
    b = Builder(name, params, lanes=LANES)
    frame = Frame(b, kernel)
    FORMS[kernel.form](frame)
    b.ret()
    return b.module()


def flatten(state: Sequence[AnyValue]) -> list[Value]:
    """State components as plain values, for loops to carry."""
    flat: list[Value] = []
    for x in state:
        flat.extend([x.re, x.im] if isinstance(x, Complex) else [x])
    return flat


def unflatten(model: Sequence[AnyValue], flat: Sequence[Value]) -> State:
    result: list[AnyValue] = []
    at = 0
    for x in model:
        if isinstance(x, Complex):
            result.append(Complex(flat[at], flat[at + 1]))
            at += 2
        else:
            result.append(flat[at])
            at += 1
    return tuple(result)


def vector_loop(
    b: Builder,
    start: Value,
    stop: Value,
    body: Callable[[Value, Value | None, State], State],
    state: State = (),
    lanes: int = LANES,
    once: bool = False,
) -> State:
    """Run `body(j, mask, state)` over [start, stop) in steps of a vector: whole vectors first, then one masked rest. If
    the body shall be written only `once`, all are masked."""
    bits = lanes.bit_length() - 1
    whole = start if once else start + (((stop - start) >> bits) << bits)
    carried = tuple(flatten(state))
    if not once:
        with b.loop(start, whole, lanes, *carried) as loop:
            loop.carry(*flatten(body(loop.index, None, unflatten(state, loop.carried))))
        carried = loop.carried
    with b.loop(whole, stop, lanes, *carried) as rest:
        left = b.cast(b.choose(stop - rest.index < lanes, stop - rest.index, lanes), dt.int32)
        mask = b.iota(dt.int32, lanes) < b.splat(left, lanes)
        rest.carry(*flatten(body(rest.index, mask, unflatten(state, rest.carried))))
    return unflatten(state, rest.carried)


# ---- map ----


WIDE_COST = 16
"""Maps that cost more than this run on vectors of twice the length."""
LONG_COST = 150
"""But not those that cost more than this, for which LLVM would take tens of milliseconds longer."""
ONCE_COST = 80
"""Beside so much work a mask costs nothing, and LLVM has half the code to work on."""


def emit_map(frame: Frame) -> None:
    """Elementwise over all axes; the outer dimension is the outer axes (and blocks of a long inner one)."""
    b, kernel = frame.b, frame.kernel
    with b.loop(frame.begin, frame.end, 1) as units:
        if kernel.blocked:
            chunks, width, n = frame["chunks"], frame["width"], frame["n"]
            place = b.op(f"sdiv i64 {units.index.text}, {chunks.text}", dt.int64, 1) if kernel.outer else b.i64(0)
            chunk = units.index - place * chunks if kernel.outer else units.index
            start = chunk * width
            stop = b.choose(start + width < n, start + width, n)
        else:
            place, start, stop = units.index, b.i64(0), frame["n"]
        bases = frame.bases(frame.indices(place))
        # Long chains of dependent instructions leave the units idle; twice the lanes give them a second chain
        # to work on.
        cost = sum(step.op.cost for step in kernel.steps)
        lanes = 2 * LANES if WIDE_COST <= cost <= LONG_COST else LANES
        once = cost >= ONCE_COST and all(access.dtype.size >= 4 for access in kernel.accesses())

        def body(j: Value, mask: Value | None, state: State) -> State:
            _store_all(Scope(frame, bases, j, lanes, mask, {}))
            return state

        vector_loop(b, start, stop, body, lanes=lanes, once=once)


def _store_all(scope: Scope) -> None:
    """All stores of a map. Every value is computed before the first is written: an output may lie on an operand."""
    kernel = scope.kernel
    values = [scope.stored(store.value) for store in kernel.stores]
    for k, (store, x) in enumerate(zip(kernel.stores, values, strict=True), len(kernel.loads)):
        scope.store(k, store.access, x)


# ---- row ----


KEEP_COST = 6
"""A value that costs more than this is kept for later phases instead of being computed again."""


class Phases:
    """When each value of a row kernel is known: phase p is the p-th pass over the row."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.first = kernel, len(kernel.loads)
        self.known = [0] * self.first
        for step in kernel.steps:
            after = max((self.known[i] for i in step.operands), default=0)
            self.known.append(after + 1 if step.reduces else after)
        passes = [0]
        for number, step in enumerate(kernel.steps, self.first):
            if step.reduces:
                passes.append(self.known[number] - 1)
        passes += [self.known[s.value] for s in kernel.stores if s.access.level == "full"]
        self.count = max(passes) + 1 if self._has_full_work() else 0
        self.kept = self._kept()

    def _has_full_work(self) -> bool:
        return any(s.reduces for s in self.kernel.steps) or any(s.access.level == "full" for s in self.kernel.stores)

    def is_full(self, number: int) -> bool:
        if number < self.first:
            return self.kernel.loads[number].level == "full"
        return self.kernel.steps[number - self.first].level == "full"

    def cost(self, number: int) -> int:
        """Instructions to compute a full-level value again."""
        seen: set[int] = set()
        stack, total = [number], 0
        while stack:
            current = stack.pop()
            if current in seen or current < self.first or not self.is_full(current):
                continue
            seen.add(current)
            step = self.kernel.steps[current - self.first]
            total += step.op.cost
            stack.extend(step.operands)
        return total

    def reductions(self, phase: int) -> list[int]:
        return [n for n, s in enumerate(self.kernel.steps, self.first) if s.reduces and self.known[n] == phase + 1]

    def stores(self, phase: int) -> list[int]:
        """Positions of full-level stores written in this phase."""
        return [
            i for i, s in enumerate(self.kernel.stores) if s.access.level == "full" and self.known[s.value] == phase
        ]

    def written_last(self) -> list[int]:
        """The store that is all that the last pass does, if it is: when an element of it is written, nothing but that
        element's own operands is still to be read."""
        last = self.stores(self.count - 1) if self.count else []
        return last if len(last) == 1 and not self.reductions(self.count - 1) else []

    def _kept(self) -> tuple[int, ...]:
        """Costly values that a later phase reads."""
        kept: set[int] = set()
        for phase in range(1, self.count):
            roots = [self.kernel.steps[n - self.first].operands[0] for n in self.reductions(phase)]
            roots += [self.kernel.stores[i].value for i in self.stores(phase)]
            stack, seen = list(roots), set(roots)
            while stack:
                number = stack.pop()
                if number < self.first or not self.is_full(number):
                    continue
                if self.known[number] < phase and self.cost(number) > KEEP_COST:
                    kept.add(number)
                    continue
                for operand in self.kernel.steps[number - self.first].operands:
                    if operand not in seen:
                        seen.add(operand)
                        stack.append(operand)
        return tuple(sorted(kept))


def row_scratch(kernel: Kernel, n: int) -> int:
    """Bytes of per-thread memory that a row kernel needs for rows of n elements."""
    stored = {s.value for s in kernel.stores if s.access.level == "full" and s.access.inner == "unit"}
    padded = -(-n // LANES) * LANES
    return sum(
        -(-padded * kernel.steps[v - len(kernel.loads)].dtype.size // 64) * 64
        for v in Phases(kernel).kept
        if v not in stored
    )


class RowScope(Scope):
    """A scope inside a pass over the row: kept values of earlier phases are read back, not computed again."""

    def __init__(self, *args: Any, kept: dict[int, Value]) -> None:
        super().__init__(*args)
        self.kept = kept

    def value(self, number: int) -> AnyValue:
        self._recall(number)
        return super().value(number)

    def stored(self, number: int) -> AnyValue:
        self._recall(number)
        return super().stored(number)

    def _recall(self, number: int) -> None:
        if number in self.kept and number not in self.values and number not in self.moved:
            dtype = stored_dtype(self.dtype(number))
            self.give(
                number, self.b.load(self.b.gep(self.kept[number], self.j * dtype.size), dtype, self.lanes, self.mask)
            )


def emit_row(frame: Frame) -> None:
    """Each row in phases: passes over the row that reduce, keep and store, with per-row scalars between them."""
    b, kernel = frame.b, frame.kernel
    phases = Phases(kernel)
    loads, zero = len(kernel.loads), b.i64(0)
    with b.loop(frame.begin, frame.end, 1) as units:
        bases = frame.bases(frame.indices(units.index))
        scalars = Scope(frame, bases, zero, 1, None, {})
        homes = _homes(frame, phases, bases)
        available: dict[int, Value] = {}
        for phase in range(phases.count):
            given = {
                number: scalars.shared(number)
                for number in range(loads + len(kernel.steps))
                if not phases.is_full(number) and phases.known[number] <= phase and used_by_full(kernel, number)
            }
            _emit_pass(frame, phases, phase, bases, given, homes, dict(available), scalars)
            available.update({v: home for v, home in homes.items() if phases.known[v] <= phase})
        for k, store in enumerate(kernel.stores, loads):
            if store.access.level == "reduced":
                scalars.store(k, store.access, scalars.stored(store.value))


def used_by_full(kernel: Kernel, number: int) -> bool:
    return any(s.level == "full" and number in s.operands for s in kernel.steps) or any(
        s.access.level == "full" and s.value == number for s in kernel.stores
    )


def _homes(frame: Frame, phases: Phases, bases: dict[int, Value]) -> dict[int, Value]:
    """Where kept values lie: in the output row if they are stored anyway, else in scratch."""
    b, kernel = frame.b, frame.kernel
    homes: dict[int, Value] = {}
    for k, store in enumerate(kernel.stores, len(kernel.loads)):
        if store.value in phases.kept and store.access.level == "full" and store.access.inner == "unit":
            homes.setdefault(store.value, bases[k])
    offset = b.i64(0)
    padded = ((frame["n"] + (LANES - 1)) >> 4) << 4
    for number in phases.kept:
        if number not in homes:
            homes[number] = b.gep(frame.scratch, offset)
            size = kernel.steps[number - len(kernel.loads)].dtype.size
            offset = offset + (((padded * size + 63) >> 6) << 6)
    return homes


def _emit_pass(
    frame: Frame, phases: Phases, phase: int, bases: dict[int, Value], given: dict[int, AnyValue],
    homes: dict[int, Value], kept: dict[int, Value], scalars: Scope,
) -> None:  # fmt: skip
    """One pass over the row: its reductions end up as per-row scalars."""
    b, kernel, n = frame.b, frame.kernel, frame["n"]
    loads = len(kernel.loads)
    reductions, stores = phases.reductions(phase), phases.stores(phase)
    at_home = {kernel.stores[i].value for i in stores if kernel.stores[i].access.inner == "unit"}
    keeping = [v for v in phases.kept if phases.known[v] == phase and v not in at_home]

    def body(j: Value, mask: Value | None, state: State) -> State:
        scope = RowScope(frame, bases, j, LANES, mask, given, kept=kept)
        for v in keeping:
            b.store(scope.stored(v), b.gep(homes[v], j * kernel.steps[v - loads].dtype.size), mask)
        for i in stores:
            store = kernel.stores[i]
            scope.store(loads + i, store.access, scope.stored(store.value))
        return _reduce_step(b, kernel, reductions, scope, j, mask, state)

    if not reductions:
        vector_loop(b, b.i64(0), n, body)
        return
    start, one = start_of(b, kernel, reductions), start_of(b, kernel, reductions, 1)
    block, width = frame["block"], len(flatten(start))
    with b.loop(0, n, block, b.i64(0), *flatten(start), *flatten(one)) as blocks:
        turn, top = blocks.carried[0], unflatten(start, blocks.carried[1 : 1 + width])
        stop = b.choose(blocks.index + block < n, blocks.index + block, n)
        partial = _trees(b, kernel, reductions, vector_loop(b, blocks.index, stop, body, start))
        here = b.iota(dt.int64).eq(b.splat(turn & (LANES - 1)))
        top = _second_level(b, kernel, reductions, partial, top, here)
        blocks.carry(turn + 1, *flatten(top), *flatten(partial))
    top, last = unflatten(start, blocks.carried[1 : 1 + width]), unflatten(one, blocks.carried[1 + width :])

    def merged() -> list[Value]:
        return flatten(_trees(b, kernel, reductions, top))

    # A single block is the result: the tree over it and fifteen identities would only take time.
    neutral = is_neutral(kernel)
    final = b.rarely(n > block, flatten(last), merged) if neutral else merged()
    for number, state in per_reduction(kernel, reductions, unflatten(one, final)):
        step = kernel.steps[number - loads]
        scalars.values[number] = step.op.finish(b, state, operand_dtype(kernel, step))


def operand_dtype(kernel: Kernel, step: Step) -> Dtype:
    number, loads = step.operands[0], len(kernel.loads)
    return kernel.loads[number].dtype if number < loads else kernel.steps[number - loads].dtype


def start_of(b: Builder, kernel: Kernel, reductions: Sequence[int], lanes: int = LANES) -> State:
    state: list[AnyValue] = []
    for number in reductions:
        step = kernel.steps[number - len(kernel.loads)]
        state.extend(step.op.start(b, operand_dtype(kernel, step), lanes))
    return tuple(state)


def per_reduction(kernel: Kernel, reductions: Sequence[int], state: State) -> list[tuple[int, State]]:
    """The flat state cut into the parts of each reduction."""
    result, at = [], 0
    for number in reductions:
        step = kernel.steps[number - len(kernel.loads)]
        width = len(step.op.state_dtypes(operand_dtype(kernel, step)))
        result.append((number, state[at : at + width]))
        at += width
    return result


def _reduce_step(
    b: Builder, kernel: Kernel, reductions: Sequence[int], scope: Scope, j: Value, mask: Value | None, state: State
) -> State:
    """Every reduction of this pass takes in one vector."""
    following: list[AnyValue] = []
    for number, part in per_reduction(kernel, reductions, state):
        step = kernel.steps[number - len(kernel.loads)]
        index = b.splat(j) + b.iota(dt.int64)
        taken = step.op.step(b, part, scope.spread(scope.value(step.operands[0])), index)
        following.extend(
            taken if mask is None else [b.select(mask, new, old) for new, old in zip(taken, part, strict=True)]
        )
    return tuple(following)


def _second_level(
    b: Builder, kernel: Kernel, reductions: Sequence[int], partial: State, top: State, here: Value
) -> State:
    """A block's result joins lane `here` of the second level."""
    following: list[AnyValue] = []
    for (number, whole), (_, high) in zip(
        per_reduction(kernel, reductions, partial), per_reduction(kernel, reductions, top), strict=True
    ):
        op = kernel.steps[number - len(kernel.loads)].op
        joined = op.merge(b, high, [_spread(b, x) for x in whole])
        following.extend(b.select(here, new, old) for new, old in zip(joined, high, strict=True))
    return tuple(following)


def _trees(b: Builder, kernel: Kernel, reductions: Sequence[int], state: State) -> State:
    """The lanes of every reduction merged."""
    whole: list[AnyValue] = []
    for number, part in per_reduction(kernel, reductions, state):
        whole.extend(*_tree(b, kernel.steps[number - len(kernel.loads)].op, part))
    return tuple(whole)


def _spread(b: Builder, x: AnyValue) -> AnyValue:
    return Complex(b.splat(x.re), b.splat(x.im)) if isinstance(x, Complex) else b.splat(x)


def _tree(b: Builder, op: Any, state: State) -> tuple[State]:
    """16 lanes to one: halves are merged, 8 with 8, 4 with 4, 2 with 2, 1 with 1."""
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        low = [_lanes(b, x, range(lanes)) for x in state]
        high = [_lanes(b, x, range(lanes, 2 * lanes)) for x in state]
        state = op.merge(b, low, high)
    return (state,)


def _lanes(b: Builder, x: AnyValue, order: range) -> AnyValue:
    if isinstance(x, Complex):
        return Complex(_lanes(b, x.re, order), _lanes(b, x.im, order))  # type: ignore[arg-type]
    return b.extract(x, order[0]) if len(order) == 1 else b.shuffle(x, None, list(order))


# ---- a long row on several threads ----


def emit_partial(frame: Frame) -> None:
    """First half of a long row: every block of 4096 elements to its partial result, blocks side by side."""
    b, kernel = frame.b, frame.kernel
    loads = len(kernel.loads)
    reductions = [n for n, s in enumerate(kernel.steps, loads) if s.reduces]
    n, block, chunks = frame["n"], frame["block"], frame["chunks"]
    with b.loop(frame.begin, frame.end, 1) as units:
        place = b.op(f"sdiv i64 {units.index.text}, {chunks.text}", dt.int64, 1)
        start = (units.index - place * chunks) * block
        stop = b.choose(start + block < n, start + block, n)
        bases = frame.bases(frame.indices(place))

        def body(j: Value, mask: Value | None, state: State) -> State:
            scope = Scope(frame, bases, j, LANES, mask, {})
            for k, store in enumerate(kernel.stores, loads):
                if store.access.level == "full":
                    scope.store(k, store.access, scope.stored(store.value))
            return _reduce_step(b, kernel, reductions, scope, j, mask, state)

        partial = vector_loop(b, start, stop, body, start_of(b, kernel, reductions))
        component = 0
        for number, state in per_reduction(kernel, reductions, partial):
            (whole,) = _tree(b, kernel.steps[number - loads].op, state)
            for x in whole:
                b.store(x, b.gep(frame[f"q{component}"], units.index * kernel.partials[component].size))
                component += 1


def emit_final(frame: Frame) -> None:
    """Second half of a long row: partial results to lanes, lanes to one, and what follows it."""
    b, kernel = frame.b, frame.kernel
    loads = len(kernel.loads)
    reductions = [n for n, s in enumerate(kernel.steps, loads) if s.reduces]
    chunks = frame["chunks"]
    with b.loop(frame.begin, frame.end, 1) as units:
        bases = frame.bases(frame.indices(units.index))

        def body(j: Value, mask: Value | None, state: State) -> State:
            parts = [
                b.load(b.gep(frame[f"q{c}"], (units.index * chunks + j) * d.size), d, LANES, mask)
                for c, d in enumerate(kernel.partials)
            ]
            following: list[AnyValue] = []
            pairs = zip(
                per_reduction(kernel, reductions, state), per_reduction(kernel, reductions, tuple(parts)), strict=True
            )
            for (number, held), (_, new) in pairs:
                merged = kernel.steps[number - loads].op.merge(b, held, new)
                following.extend(
                    merged if mask is None else [b.select(mask, x, y) for x, y in zip(merged, held, strict=True)]
                )
            return tuple(following)

        final = vector_loop(b, b.i64(0), chunks, body, start_of(b, kernel, reductions))
        scalars = Scope(frame, bases, b.i64(0), 1, None, {})
        for number, state in per_reduction(kernel, reductions, final):
            step = kernel.steps[number - loads]
            (whole,) = _tree(b, step.op, state)
            scalars.values[number] = step.op.finish(b, whole, operand_dtype(kernel, step))
        for k, store in enumerate(kernel.stores, loads):
            if store.access.level == "reduced":
                scalars.store(k, store.access, scalars.stored(store.value))


# ---- column ----


def column_scratch(kernel: Kernel, width: int) -> int:
    """Bytes of per-thread memory of a column kernel whose strips are `width` columns wide (a multiple of 16)."""
    return sum(2 * LANES * width * d.size for d in state_dtypes(kernel))


def state_dtypes(kernel: Kernel) -> list[Dtype]:
    """Dtypes of the state of all reductions, one after the other."""
    found: list[Dtype] = []
    for step in kernel.steps:
        if step.reduces:
            found.extend(step.op.state_dtypes(operand_dtype(kernel, step)))
    return found


class _Strip:
    """Accumulators of a strip of columns in scratch: for each state component 16 lanes × width, on two levels."""

    def __init__(self, frame: Frame, dtypes: Sequence[Dtype]) -> None:
        self.b, self.frame, self.dtypes = frame.b, frame, dtypes
        self.width = frame["width"]
        self.starts: list[tuple[Value, Value]] = []
        offset = self.b.i64(0)
        for dtype in dtypes:
            low = offset
            high = low + self.width * (LANES * dtype.size)
            self.starts.append((low, high))
            offset = high + self.width * (LANES * dtype.size)

    def address(self, component: int, level: int, lane: Value | int, column: Value) -> Value:
        size = self.dtypes[component].size
        row = self.width * size * lane if isinstance(lane, Value) else self.width * (size * lane)
        start = self.starts[component][level]
        return self.b.gep(self.frame.scratch, start + row + column * size)

    def read(self, level: int, lane: Value | int, column: Value) -> State:
        return tuple(self.b.load(self.address(c, level, lane, column), d) for c, d in enumerate(self.dtypes))

    def write(self, level: int, lane: Value | int, column: Value, state: State) -> None:
        for c, x in enumerate(state):
            self.b.store(x, self.address(c, level, lane, column))


class Slots:
    """Partial results of 16 columns in scratch, at most one for each lane of the specified order."""

    def __init__(self, frame: Frame, dtypes: Sequence[Dtype]) -> None:
        self.b, self.frame, self.dtypes = frame.b, frame, dtypes

    def _address(self, component: int, slot: Value) -> Value:
        before = sum(LANES * LANES * d.size for d in self.dtypes[:component])
        return self.b.gep(self.b.gep(self.frame.scratch, before), slot * (LANES * self.dtypes[component].size))

    def read(self, slot: Value) -> State:
        return tuple(self.b.load(self._address(c, slot), d) for c, d in enumerate(self.dtypes))

    def write(self, slot: Value, state: State) -> None:
        for c, x in enumerate(state):
            self.b.store(x, self._address(c, slot))

    def merged(self, kernel: Kernel, reductions: Sequence[int], count: Value) -> State:
        """The first `count` slots merged by the tree of 16 lanes; those that are not there are left out."""
        b, half = self.b, LANES
        while half > 1:
            half //= 2
            pairs = b.choose(count - half < half, count - half, half)
            with b.loop(0, pairs, 1) as low:
                parts = (per_reduction(kernel, reductions, self.read(at)) for at in (low.index, low.index + half))
                state: list[AnyValue] = []
                for (number, x), (_, y) in zip(*parts, strict=True):
                    state.extend(kernel.steps[number - len(kernel.loads)].op.merge(b, x, y))
                self.write(low.index, tuple(state))
            count = b.choose(count < half, count, half)
        return self.read(b.i64(0))


def is_neutral(kernel: Kernel) -> bool:
    """Whether merging the identity of each reduction leaves all bits as they are. (1 + 0j) * x may not."""
    return not any(d.is_complex for d in state_dtypes(kernel))


def emit_column(frame: Frame) -> None:
    """Reductions across rows: a strip of columns at a time, its 16 partial results per column in scratch (which stays
    in L1)."""
    b, kernel = frame.b, frame.kernel
    reductions = [n for n, s in enumerate(kernel.steps, len(kernel.loads)) if s.reduces]
    rows, n, width, chunks = (frame[name] for name in ("rows", "n", "width", "chunks"))
    with b.loop(frame.begin, frame.end, 1) as units:
        place = b.op(f"sdiv i64 {units.index.text}, {chunks.text}", dt.int64, 1)
        start = (units.index - place * chunks) * width
        stop = b.choose(start + width < n, start + width, n)
        bases = frame.bases(frame.indices(place))
        few = (rows > 0) & (rows <= LANES) & is_neutral(kernel)
        with b.when(few):
            _column_few(frame, reductions, bases, start, stop)
        with b.when(~few):
            _column_strip(frame, reductions, bases, start, stop)


def _column_few(frame: Frame, reductions: Sequence[int], bases: dict[int, Value], start: Value, stop: Value) -> None:
    """At most 16 rows: each is a partial result of its own, 16 columns are finished before the next."""
    b, kernel, rows = frame.b, frame.kernel, frame["rows"]
    slots = Slots(frame, state_dtypes(kernel))

    def body(j: Value, mask: Value | None, state: State) -> State:
        with b.loop(0, rows, 1) as row:
            scope = Scope(frame, frame.moved(bases, "r", row.index), j, LANES, mask, {})
            first = start_of(b, kernel, reductions)
            slots.write(row.index, _column_step(frame, reductions, scope, row.index, first))
        _column_store(frame, per_reduction(kernel, reductions, slots.merged(kernel, reductions, rows)), bases, j, mask)
        return state

    vector_loop(b, start, stop, body)


def _column_strip(frame: Frame, reductions: Sequence[int], bases: dict[int, Value], start: Value, stop: Value) -> None:
    """Any number of rows, in blocks, row by row."""
    b, kernel = frame.b, frame.kernel
    strip = _Strip(frame, state_dtypes(kernel))
    rows, block = frame["rows"], frame["block"]
    _fill(b, kernel, reductions, strip, 1, stop - start)
    with b.loop(0, rows, block, b.i64(0)) as blocks:
        _fill(b, kernel, reductions, strip, 0, stop - start)
        last = b.choose(blocks.index + block < rows, blocks.index + block, rows)
        together = _rows_together(kernel)
        whole = blocks.index + ((last - blocks.index) & -(LANES * together))
        with b.loop(blocks.index, whole, LANES * together) as group, b.loop(0, LANES, 1) as lane:
            rows_of_lane = [group.index + lane.index + LANES * i for i in range(together)]
            _column_rows(frame, reductions, strip, bases, rows_of_lane, lane.index, start, stop)
        with b.loop(whole, last, 1) as row:
            lane_of_row = (row.index - blocks.index) & (LANES - 1)
            _column_rows(frame, reductions, strip, bases, [row.index], lane_of_row, start, stop)
        _column_fold(frame, reductions, strip, blocks.carried[0] & (LANES - 1), start, stop)
        blocks.carry(blocks.carried[0] + 1)
    _column_finish(frame, reductions, strip, bases, start, stop)


def _fill(b: Builder, kernel: Kernel, reductions: Sequence[int], strip: _Strip, level: int, columns: Value) -> None:
    """All lanes of one level start as the identity."""
    state = start_of(b, kernel, reductions)
    with b.loop(0, LANES, 1) as lane, b.loop(0, columns, LANES) as column:
        strip.write(level, lane.index, column.index, state)


def _rows_together(kernel: Kernel) -> int:
    """Rows of a lane that are added to its partial results between reading and writing them."""
    return 4 if sum(step.op.cost for step in kernel.steps if not step.reduces) <= 16 else 1


def _column_rows(
    frame: Frame,
    reductions: Sequence[int],
    strip: _Strip,
    bases: dict[int, Value],
    rows: Sequence[Value],
    lane: Value,
    start: Value,
    stop: Value,
) -> None:
    """Some rows of the strip join the lanes of their turn, one after the other."""
    b = frame.b
    places = [frame.moved(bases, "r", row) for row in rows]

    def body(j: Value, mask: Value | None, state: State) -> State:
        held = strip.read(0, lane, j - start)
        for row, at in zip(rows, places, strict=True):
            held = _column_step(frame, reductions, Scope(frame, at, j, LANES, mask, {}), row, held)
        strip.write(0, lane, j - start, held)  # columns past the end are scratch only
        return state

    vector_loop(b, start, stop, body)


def _column_step(frame: Frame, reductions: Sequence[int], scope: Scope, row: Value, held: State) -> State:
    """Partial results with the elements of one row, whose full-level values are stored on the way."""
    b, kernel = frame.b, frame.kernel
    for k, store in enumerate(kernel.stores, len(kernel.loads)):
        if store.access.level == "full":
            scope.store(k, store.access, scope.stored(store.value))
    following: list[AnyValue] = []
    for number, part in per_reduction(kernel, reductions, held):
        step = kernel.steps[number - len(kernel.loads)]
        following.extend(step.op.step(b, part, scope.spread(scope.value(step.operands[0])), b.splat(row)))
    return tuple(following)


def _column_tree(
    b: Builder, kernel: Kernel, reductions: Sequence[int], strip: _Strip, level: int, column: Value
) -> list[tuple[int, State]]:
    """The 16 lanes of one level merged, for 16 columns."""
    lanes = [strip.read(level, lane, column) for lane in range(LANES)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        merged = []
        for low, high in zip(lanes[:half], lanes[half:], strict=True):
            state: list[AnyValue] = []
            parts = zip(per_reduction(kernel, reductions, low), per_reduction(kernel, reductions, high), strict=True)
            for (number, x), (_, y) in parts:
                state.extend(kernel.steps[number - len(kernel.loads)].op.merge(b, x, y))
            merged.append(tuple(state))
        lanes = merged
    return per_reduction(kernel, reductions, lanes[0])


def _column_fold(
    frame: Frame, reductions: Sequence[int], strip: _Strip, lane: Value, start: Value, stop: Value
) -> None:
    """A block's result joins the second level."""
    b, kernel = frame.b, frame.kernel
    with b.loop(0, stop - start, LANES) as column:
        low = _column_tree(b, kernel, reductions, strip, 0, column.index)
        high = per_reduction(kernel, reductions, strip.read(1, lane, column.index))
        state: list[AnyValue] = []
        for (number, x), (_, y) in zip(low, high, strict=True):
            state.extend(kernel.steps[number - len(kernel.loads)].op.merge(b, y, x))
        strip.write(1, lane, column.index, tuple(state))


def _column_finish(
    frame: Frame, reductions: Sequence[int], strip: _Strip, bases: dict[int, Value], start: Value, stop: Value
) -> None:
    """Second level to results, and what follows them elementwise."""
    b, kernel = frame.b, frame.kernel

    def body(j: Value, mask: Value | None, state: State) -> State:
        _column_store(frame, _column_tree(b, kernel, reductions, strip, 1, j - start), bases, j, mask)
        return state

    vector_loop(b, start, stop, body)


def _column_store(
    frame: Frame, parts: list[tuple[int, State]], bases: dict[int, Value], j: Value, mask: Value | None
) -> None:
    """The results of 16 columns, and what follows them elementwise."""
    kernel = frame.kernel
    given: dict[int, AnyValue] = {}
    for number, part in parts:
        step = kernel.steps[number - len(kernel.loads)]
        given[number] = step.op.finish(frame.b, part, operand_dtype(kernel, step))
    scope = Scope(frame, bases, j, LANES, mask, given)
    for k, store in enumerate(kernel.stores, len(kernel.loads)):
        if store.access.level == "reduced":
            scope.store(k, store.access, scope.stored(store.value))


# ---- tile ----

STRIP = 64
"""Rows of a strip: four squares side by side read four neighbouring cache lines of each row of a turned operand."""
AHEAD = 64
"""Elements of a row that are asked for before they are needed: a strip's rows are so many short pieces to the
processor, of which it does not guess the next ones."""


def emit_tile(frame: Frame) -> None:
    """Elementwise where some operands are transposed: strips of 64 rows, cut into squares of 16 × 16 that are turned on
    the way in."""
    b = frame.b
    m, n, strips = frame["m"], frame["n"], frame["strips"]
    with b.loop(frame.begin, frame.end, 1) as units:
        place = b.op(f"sdiv i64 {units.index.text}, {strips.text}", dt.int64, 1)
        first = (units.index - place * strips) * STRIP
        last = b.choose(first + STRIP < m, first + STRIP, m)
        bases = frame.bases(frame.indices(place))

        def squares(j: Value, mask: Value | None, state: State) -> State:
            with b.loop(first, last, LANES) as top:
                _square(frame, bases, top.index, last, j, mask)
            return state

        vector_loop(b, b.i64(0), n, squares)


def _square(frame: Frame, bases: dict[int, Value], top: Value, last: Value, j: Value, mask: Value | None) -> None:
    """Up to 16 rows from `top`, 16 columns from `j`."""
    b, kernel = frame.b, frame.kernel
    height = b.choose(last - top < LANES, last - top, LANES)
    tiles = {k: _turn(frame, k, bases, top, j, height, mask) for k, a in enumerate(kernel.loads) if a.inner == "tile"}
    with b.loop(0, height, 1) as row:
        at = frame.moved(bases, "t", top + row.index)
        given = {
            k: b.load(
                b.gep(tile, row.index * (LANES * kernel.loads[k].dtype.size)), stored_dtype(kernel.loads[k].dtype)
            )
            for k, tile in tiles.items()
        }
        for k, access in enumerate(kernel.loads):
            if access.source == "memory" and access.inner == "unit":
                b.prefetch(b.gep(at[k], (j + AHEAD) * access.dtype.size))
        _store_all(Scope(frame, at, j, LANES, mask, given))


def tile_scratch(kernel: Kernel) -> int:
    """Bytes of per-thread memory: a square for each turned operand."""
    return sum(LANES * LANES * a.dtype.size for a in kernel.loads if a.inner == "tile")


def _turn(
    frame: Frame, k: int, bases: dict[int, Value], top: Value, j: Value, height: Value, mask: Value | None
) -> Value:
    """A square read along its memory, written to scratch the other way round. Rows past the end read the first one
    again."""
    b, access = frame.b, frame.kernel.loads[k]
    size = access.dtype.size
    before = [a for a in frame.kernel.loads[:k] if a.inner == "tile"]
    tile = b.gep(frame.scratch, sum(LANES * LANES * a.dtype.size for a in before))
    corner = b.gep(bases[k], top * frame[f"t{k}"])
    inside = b.iota(dt.int64) < b.splat(height)
    rows: list[AnyValue] = []
    for lane in range(LANES):
        index = j + lane if mask is None else b.choose(b.extract(mask, lane), j + lane, j)
        rows.append(b.load(b.gep(corner, index * frame[f"i{k}"]), stored_dtype(access.dtype), LANES, inside))
        b.prefetch(b.gep(corner, (index + LANES) * frame[f"i{k}"]))
    for lane, row in enumerate(_transposed(b, rows)):
        b.store(row, b.gep(tile, lane * LANES * size))
    return tile


def _transposed(b: Builder, rows: list[AnyValue]) -> list[AnyValue]:
    """16 vectors of 16 lanes, rows and columns exchanged, in four rounds of pairwise interleaving."""
    if isinstance(rows[0], Complex):
        real = _transposed(b, [r.re for r in rows])  # type: ignore[union-attr, misc]
        imag = _transposed(b, [r.im for r in rows])  # type: ignore[union-attr, misc]
        return [Complex(x, y) for x, y in zip(real, imag, strict=True)]  # type: ignore[arg-type]
    half = LANES // 2
    low = [i // 2 + (i % 2) * LANES for i in range(LANES)]
    high = [i // 2 + half + (i % 2) * LANES for i in range(LANES)]
    for _ in range(4):
        pairs = [(rows[i], rows[i + half]) for i in range(half)]
        rows = [b.shuffle(x, y, order) for x, y in pairs for order in (low, high)]  # type: ignore[arg-type]
    return rows


FORMS: dict[str, Callable[[Frame], None]] = {
    "map": emit_map,
    "row": emit_row,
    "partial": emit_partial,
    "final": emit_final,
    "column": emit_column,
    "tile": emit_tile,
}
