"""The code of a custom kernel on the CPU: threads are lanes of vectors.

A unit of work is a threadgroup. Its threads run as vectors of neighbouring lanes; where lanes go different ways, those
that do not take part are masked (`levels.py` finds what they share). Variables are SSA values: at joins of control flow
the builder's values meet in phis. In a kernel with barriers each region between two of them is a loop over the vectors
of the threadgroup, and what lives longer than a region lies in the thread's scratch memory.

Indices are checked before anything is touched. A kernel that finds one out of range leaves its place and index in the
status record of the launch and returns; the call behind it makes an error of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import tree
from weft.llvm.builder import Value
from weft.targets.cpu.custom.levels import Levels, assigned, bodies, has_exits
from weft.targets.cpu.custom.memory import Memory
from weft.targets.cpu.custom.together import together
from weft.targets.cpu.custom.values import COMPARE, Affine, AnyLane, operate
from weft.targets.cpu.kernel import Frame

LOOK: Final = 1024
"""Steps of a loop after which the kernel looks whether it is to stop."""
SHORT: Final = 64
"""Loops of constant length up to this do not look."""
TWICE: Final = 150
"""Expressions of a kernel that is written twice: for whole vectors, and masked for the rest."""

Env = dict[Any, Any]
"""Values by variable. `ACTIVE` are the lanes that take part (None: all), `GONE` those whose threads have returned."""
ACTIVE: Final = "active"
GONE: Final = "gone"


class Joins:
    """Edges of control flow that lead to one place: (block, values)."""

    def __init__(self, emitter: Emitter, label: str) -> None:
        self.emitter, self.label = emitter, label
        self.edges: list[tuple[str, Env]] = []

    def jump(self) -> None:
        """From here to that place; what follows here is not reached."""
        e = self.emitter
        assert e.env is not None
        e.b.raw(f"br label %{self.label}")
        self.edges.append((e.b.block, e.env))
        e.env = None

    def arrive(self) -> None:
        """The place itself: values that differ meet in phis."""
        e = self.emitter
        if not self.edges:
            e.env = None
            return
        e.b.start_block(self.label)
        first = self.edges[0][1]
        shared = [key for key in first if all(key in env for _, env in self.edges)]
        e.env = {key: e.phi([(block, env[key]) for block, env in self.edges]) for key in shared}


class Emitter:
    """Writes the body of one kernel."""

    def __init__(self, frame: Frame, program: tree.Program, levels: Levels, memory: Memory, lanes: int) -> None:
        self.frame, self.b, self.program, self.levels, self.memory = frame, frame.b, program, levels, memory
        self.lanes = lanes
        self.env: Env | None = {}
        self.loops: list[_Loop] = []
        self.calls: list[_Called] = []
        self.returns: Joins | None = None
        self.positions: Callable[[str, int, Dtype], AnyLane] = lambda name, axis, dtype: self.b.const(dtype, 0, 1)
        self.labels = 0
        self.grouped = False
        """Whether what is written now is done once for a threadgroup."""
        self.region: Callable[[Sequence[tree.Statement]], None] = self.block
        """Writes statements for all vectors of a threadgroup."""

    # ---- threadgroups ----

    def group_block(self, body: Sequence[tree.Statement]) -> None:
        """Statements around barriers: those that are not for the threadgroup as one make regions."""
        for part in parts(self.levels, body):
            if self.env is None:
                return
            if isinstance(part, list):
                self.region(part)
            elif not isinstance(part, tree.Barrier):
                self.statement(part)

    # ---- masks ----

    @property
    def active(self) -> Value | None:
        assert self.env is not None
        return self.env[ACTIVE]  # type: ignore[no-any-return]

    @active.setter
    def active(self, mask: Value | None) -> None:
        assert self.env is not None
        self.env[ACTIVE] = mask

    def every(self) -> Value:
        return self.b.const(dt.bool_, True, self.lanes)

    def none(self) -> Value:
        return self.b.const(dt.bool_, False, self.lanes)

    def mask(self) -> Value:
        """The lanes that take part."""
        return self.every() if self.active is None else self.active

    def any(self, mask: Value) -> Value:
        return self.b.any(mask)

    def all(self, mask: Value) -> Value:
        return ~self.b.any(~mask)

    def label(self, name: str) -> str:
        self.labels += 1
        return f"{name}{self.labels}"

    def joins(self, name: str) -> Joins:
        return Joins(self, self.label(name))

    def phi(self, edges: Sequence[tuple[str, Any]]) -> Any:
        """One value of several, by where control came from."""
        values = [value for _, value in edges]
        first = values[0]
        if all(value is first for value in values):
            return first
        if isinstance(first, Affine):
            base = self.phi([(block, value.base) for block, value in edges])
            return Affine(base, first.stride)
        values = [self.every() if value is None else value for value in values]
        if all(value.text == values[0].text for value in values):
            return values[0]
        ways = ", ".join(f"[ {value.text}, %{block} ]" for (block, _), value in zip(edges, values, strict=True))
        return self.b.op(f"phi {values[0].type} {ways}", values[0].dtype, values[0].lanes)

    def branch(self, condition: Value, then: str, other: str) -> None:
        self.b.raw(f"br i1 {condition.text}, label %{then}, label %{other}")

    # ---- expressions ----

    def vector(self, x: AnyLane) -> Value:
        return x.spread(self.lanes) if isinstance(x, Affine) else self.b.splat(x, self.lanes)

    def plain(self, x: AnyLane) -> Value:
        """A scalar, or a vector."""
        return x.spread(self.lanes) if isinstance(x, Affine) else x

    def value(self, x: tree.Expression) -> AnyLane:
        """An expression, as its level says."""
        b = self.b
        match x:
            case tree.Constant(dtype, value):
                return b.const(dtype, value, 1)
            case tree.Read(_, variable):
                assert self.env is not None
                return self.env[variable]  # type: ignore[no-any-return]
            case tree.Position(dtype, name, axis):
                return self.positions(name, axis, dtype)
            case tree.Size():
                return self.memory.size(self, x)
            case tree.Load():
                return self.memory.load(self, x)
            case tree.Select(_, test, first, second):
                chosen = b.select(self.plain(self.value(test)), *self._alike(first, second))
                assert isinstance(chosen, Value)
                return chosen
            case tree.Cast(dtype, inner, bits):
                return self._cast(dtype, self.value(inner), bits)
            case tree.Operation(dtype, name, operands):
                return self._operation(x, dtype, name, operands)
        raise AssertionError(x)

    def _alike(self, first: tree.Expression, second: tree.Expression) -> tuple[Value, Value]:
        return self.plain(self.value(first)), self.plain(self.value(second))

    def _cast(self, dtype: Dtype, x: AnyLane, bits: bool) -> AnyLane:
        b = self.b
        if isinstance(x, Affine):
            if not dtype.is_float and not dtype.is_bool and dtype.size == x.base.dtype.size:
                return Affine(b.cast(x.base, dtype), x.stride)
            x = x.spread(self.lanes)
        if not bits:
            return b.cast(x, dtype)
        return b.from_memory_bits(b.memory_bits(x), dtype) if dtype.is_float else b.bitcast(b.memory_bits(x), dtype)

    def _operation(self, x: tree.Expression, dtype: Dtype, name: str, operands: Sequence[tree.Expression]) -> AnyLane:
        level = self.levels.level(x)
        given = [self.value(operand) for operand in operands]
        if level:  # neither 0 nor None
            bases = [g.base if isinstance(g, Affine) else g for g in given]
            return Affine(operate(self.b, name, dtype, bases), level)
        if level == 0:  # also of two that grow alike
            given = [g.base if isinstance(g, Affine) else g for g in given]
        return operate(self.b, name, dtype, [self.plain(g) for g in given])

    def truth(self, x: tree.Expression) -> Value:
        return self.plain(self.value(x))

    # ---- statements ----

    def block(self, body: Sequence[tree.Statement]) -> None:
        """Statements in order. Behind one that lanes may have left for good, the rest runs if any are there."""
        if self.grouped:
            self.group_block(body)
            return
        for k, x in enumerate(body):
            if self.env is None:
                return
            before = self.active
            sure = self.goes_on(x, body[k + 1 :])
            if sure is not None:
                self.mostly_on(x, body[k + 1 :], sure)
                return
            self.statement(x)
            if self.env is not None and self.active is not before and has_exits(x) and k + 1 < len(body):
                self.rest(body[k + 1 :], all_before=before is None)
                return

    def goes_on(self, x: tree.Statement, rest: Sequence[tree.Statement]) -> Value | None:
        """Whether no lane leaves at `if (i >= n) return;`, by a look at the first and the last one; None if `x` is
        something else, or that does not tell."""
        match x:
            case tree.If(test, (tree.Return() | tree.Leave() | tree.Break() | tree.Continue(),), ()):
                if self.active is None and id(x) in self.levels.divergent and rest and is_small(rest):
                    return self.surely(test, False)
        return None

    def mostly_on(self, x: tree.Statement, body: Sequence[tree.Statement], sure: Value) -> None:
        """What follows a statement that lanes seldom leave at: without masks if none does."""
        assert self.env is not None
        end, every, doubt, some = self.joins("rest"), self.label("every"), self.label("doubt"), self.label("some")
        self.branch(sure, every, doubt)
        before = dict(self.env)
        self.b.start_block(every)
        self.block(body)
        if self.env is not None:
            end.jump()
        self.b.start_block(doubt)
        self.env = before
        self.statement(x)
        if self.env is not None:
            self.branch(self.any(self.mask()), some, end.label)
            end.edges.append((self.b.block, dict(self.env)))
            self.b.start_block(some)
            self.block(body)
            if self.env is not None:
                end.jump()
        end.arrive()

    def rest(self, body: Sequence[tree.Statement], all_before: bool) -> None:
        """What follows a statement that some lanes may have left for good: if any are there, and without masks if all
        are, which is mostly so."""
        assert self.env is not None
        assert self.active is not None
        end, here, active = self.joins("rest"), self.label("some"), self.active
        if all_before and is_small(body):
            every, others = self.label("every"), self.label("others")
            self.branch(self.all(active), every, others)
            outer = dict(self.env)
            self.b.start_block(every)
            self.env = {**outer, ACTIVE: None}
            self.block(body)
            if self.env is not None:
                end.jump()
            self.b.start_block(others)
            self.env = outer
        self.branch(self.any(active), here, end.label)
        end.edges.append((self.b.block, dict(self.env)))
        self.b.start_block(here)
        self.block(body)
        if self.env is not None:
            end.jump()
        end.arrive()

    def statement(self, x: tree.Statement) -> None:
        match x:
            case tree.Assign(variable, value, first, empty):
                given, level = self.value(value), self.levels.variables[variable]
                self.assign(variable, Affine(self.plain(given), level) if empty and level else given, first)
            case tree.Clear(storage):
                self.memory.clear(self, storage)
            case tree.Store():
                self.memory.store(self, x)
            case tree.Atomic():
                self.memory.atomic(self, x)
            case tree.Together():
                self.assign(x.result, together(self, x), False)
            case tree.If():
                if id(x) in self.levels.divergent:
                    self.divergent_branch(x)
                else:
                    self.branch_all(x)
            case tree.Loop():
                self.loop(x)
            case tree.Called():
                self.called(x)
            case tree.Break() | tree.Continue():
                self.loops[-1].leave(self, isinstance(x, tree.Continue))
            case tree.Leave():
                self.calls[-1].leave(self)
            case tree.Return():
                self.leave_all()
            case tree.Barrier():
                pass
            case _:
                raise AssertionError(x)

    def assign(self, variable: tree.Variable, value: AnyLane, first: bool) -> None:
        """Lanes that take no part keep what they have; where the variable begins, they have nothing."""
        assert self.env is not None
        if self.levels.variables[variable] is None:
            new = self.vector(value)
            old = self.env.get(variable)
            if not first and old is not None and self.active is not None:
                blended = self.b.select(self.active, new, self.vector(old))
                assert isinstance(blended, Value)
                new = blended
            value = new
        self.env[variable] = value

    def leave_all(self) -> None:
        """The threads that are here are done."""
        assert self.env is not None
        if self.returns is not None and (self.grouped or not self.levels.masked_return):
            self.returns.jump()
            return
        self.env[GONE] = self.env[GONE] | self.mask()
        self.active = self.none()

    # ---- branches ----

    def branch_all(self, x: tree.If) -> None:
        """All lanes that are here go one way."""
        assert self.env is not None
        test = self.truth(x.test)
        end, then, other = self.joins("endif"), self.label("then"), self.label("else")
        self.branch(test, then, other if x.other else end.label)
        if not x.other:
            end.edges.append((self.b.block, dict(self.env)))
        before = dict(self.env)
        for label, body in ((then, x.then), (other, x.other)):
            if label == other and not x.other:
                continue
            self.b.start_block(label)
            self.env = dict(before)
            self.block(body)
            if self.env is not None:
                end.jump()
        end.arrive()

    def divergent_branch(self, x: tree.If) -> None:
        assert self.env is not None
        entry, exits = self.active, has_exits(x)
        if entry is None and not exits and is_small(x.then):
            self.mostly_all(x)
            return
        test = self.vector(self.truth(x.test))
        remaining: list[Value] = []
        for condition, body in ((test, x.then), (~test if x.other or exits else test, x.other)):
            mask = condition if entry is None else entry & condition
            if not body:
                remaining.append(mask)
                continue
            self.active = mask
            self.where_any(body)
            assert self.env is not None
            remaining.append(self.mask())
        self.active = remaining[0] | remaining[1] if exits else entry

    def mostly_all(self, x: tree.If) -> None:
        """A branch that all lanes often take: its code is there without masks, too."""
        assert self.env is not None
        end, every, others = self.joins("endall"), self.label("all"), self.label("not_all")
        sure = self.surely(x.test, True)
        if sure is not None:
            doubt = self.label("doubt")
            self.branch(sure, every, doubt)
            self.b.start_block(doubt)
        test = self.vector(self.truth(x.test))
        self.branch(self.all(test), every, others)
        before = dict(self.env)
        self.b.start_block(every)
        self.block(x.then)
        if self.env is not None:
            end.jump()
        self.b.start_block(others)
        self.env = before
        for condition, body in ((test, x.then), (~test if x.other else test, x.other)):
            if body:
                self.active = condition
                self.where_any(body)
        self.active = None
        end.jump()
        end.arrive()

    def surely(self, x: tree.Expression, holds: bool) -> Value | None:
        """A scalar that says of a condition, if it is true, that it holds (or does not) for all lanes. It is found by a
        look at the first and the last lane: between them integers grow evenly. None if that does not tell."""
        match x:
            case tree.Operation(_, "and" | "or" as name, (p, q)) if (name == "and") is holds:
                first, second = self.surely(p, holds), self.surely(q, holds)
                return None if first is None or second is None else first & second
            case tree.Operation(_, "not", (p,)):
                return self.surely(p, not holds)
            case tree.Operation(_, "lt" | "le" | "gt" | "ge" as name, (p, q)) if not p.dtype.is_float:
                if any(isinstance(y, tree.Load) for y in tree.walk(x)):
                    return None
                a, b = self._ends(p), self._ends(q)
                if a is None or b is None:
                    return None
                found = [COMPARE[name](a[k], b[k]) for k in range(2)]
                whole = found[0] & found[1] if holds else ~(found[0] | found[1])
                for even in (*a[2:], *b[2:]):
                    whole = whole & even
                return whole
        if self.levels.level(x) == 0 and not any(isinstance(y, tree.Load) for y in tree.walk(x)):
            found_ = self.plain(self.value(x))
            return found_ if holds else ~found_
        return None

    def _ends(self, x: tree.Expression) -> list[Value] | None:
        """An integer in the first and in the last lane, and what says that it grows evenly between them; None if it is
        not known to."""
        b = self.b
        if isinstance(x, tree.Cast) and not x.bits and not x.x.dtype.is_float and not x.x.dtype.is_bool:
            inner = self._ends(x.x)
            wider = x.dtype.size > x.x.dtype.size and not (x.x.dtype.kind == "i" and x.dtype.kind == "u")
            if inner is None or not (wider or self.levels.level(x) is not None):
                return None
            if wider:
                return [b.cast(inner[0], x.dtype), b.cast(inner[1], x.dtype), *inner[2:]]
        level = self.levels.level(x)
        if level is None or x.dtype.is_float:
            return None
        found = self.value(x)
        if not isinstance(found, Affine):
            return [found, found]
        last = found.base + found.stride * (self.lanes - 1)
        return [found.base, last, last >= found.base if found.stride > 0 else last <= found.base]

    def where_any(self, body: Sequence[tree.Statement]) -> None:
        """Statements for the lanes that are active, if there are any."""
        assert self.env is not None
        assert self.active is not None
        end, here = self.joins("enddiv"), self.label("div")
        self.branch(self.any(self.active), here, end.label)
        end.edges.append((self.b.block, dict(self.env)))
        self.b.start_block(here)
        self.env = dict(self.env)
        self.block(body)
        if self.env is not None:
            end.jump()
        end.arrive()

    # ---- loops ----

    def loop(self, x: tree.Loop) -> None:
        divergent = id(x) in self.levels.divergent
        entry = self.active
        self.block(x.first)
        assert self.env is not None
        loop = _Loop(self, x, divergent, entry)
        self.loops.append(loop)
        loop.write()
        self.loops.pop()

    def called(self, x: tree.Called) -> None:
        call = _Called(self, x, id(x) in self.levels.divergent)
        self.calls.append(call)
        call.write()
        self.calls.pop()

    def still_here(self, entry: Value | None) -> Value | None:
        """The lanes of a construct that go on behind it: all that it began with but those that are gone."""
        assert self.env is not None
        gone = [
            self.env[key] for key in (GONE, *[call.key for call in self.calls if call.divergent]) if key in self.env
        ]
        mask = entry
        for lanes in gone:
            mask = ~lanes if mask is None else mask & ~lanes
        return mask


class _Loop:
    """A loop under construction."""

    def __init__(self, e: Emitter, x: tree.Loop, divergent: bool, entry: Value | None) -> None:
        self.e, self.x, self.divergent, self.entry = e, x, divergent, entry
        self.exit, self.again = e.joins("endloop"), e.joins("next")
        self.leaves = divergent
        self.key = ("continued", id(x))

    def leave(self, e: Emitter, again: bool) -> None:
        assert e.env is not None
        if not self.divergent:
            (self.again if again else self.exit).jump()
            return
        if again:
            e.env[self.key] = e.env[self.key] | e.mask()
        e.active = e.none()

    def write(self) -> None:
        e, b, x = self.e, self.e.b, self.x
        assert e.env is not None
        if self.divergent:
            e.env[self.key] = e.none()
            e.active = e.mask()
        whole = (*x.before, *x.body, *x.step)
        changed: list[Any] = [v for v in assigned(*whole) if v in e.env]
        self.leaves = self.divergent or any(self._takes_away(y) for y in tree.walk(*whole))
        if self.leaves:
            e.active = e.mask()
            changed.append(ACTIVE)
            changed += [key for key in e.env if key == GONE or isinstance(key, tuple)]
        changed.sort(key=str)
        counts = not self._is_short()
        head, body = e.label("head"), e.label("body")
        start = b.block
        b.raw(f"br label %{head}")
        b.start_block(head)
        first = dict(e.env)
        at = len(b.lines)
        b.lines.extend("" for _ in range(len(changed) + counts))
        phis: dict[Any, Value] = {}
        for key in changed:
            old = first[key].base if isinstance(first[key], Affine) else first[key]
            phis[key] = Value(b, b.fresh(), old.dtype, old.lanes)
            b._types[phis[key].text] = phis[key].type
            e.env[key] = Affine(phis[key], first[key].stride) if isinstance(first[key], Affine) else phis[key]
        counter = Value(b, b.fresh(), dt.int64, 1)
        e.block(x.before)
        assert e.env is not None
        self._test(body)
        e.block(x.body)
        if e.env is not None:
            if self.divergent:
                e.active = e.mask() | e.env[self.key]
                e.env[self.key] = e.none()
            self.again.jump()
        self.again.arrive()
        more, last = counter, e.env
        latch: str | None = None
        if last is not None:
            e.block(x.step)
            if counts:
                more = counter + 1
                with b.when((more & (LOOK - 1)).eq(0)):
                    e.frame.look()
            latch, last = b.block, e.env
            if self.exit.edges:
                b.raw(f"br label %{head}")
            else:  # an endless loop: what is written behind it belongs to some block all the same
                b.raw(f"br i1 true, label %{head}, label %{self.exit.label}")
                self.exit.edges.append((latch, dict(last)))
        for k, key in enumerate(changed):
            self._fill(at + k, phis[key], first[key], start, (last or {}).get(key), latch)
        if counts:
            self._fill(at + len(changed), counter, b.i64(0), start, more, latch)
        self.exit.arrive()
        self._after()

    def _takes_away(self, x: object) -> bool:
        """Whether a statement in the loop leaves fewer lanes to what follows it."""
        if isinstance(x, tree.Return):
            return self.e.levels.masked_return
        return isinstance(x, tree.Leave) and any(call.divergent for call in self.e.calls)

    def _fill(self, at: int, phi: Value, first: Any, start: str, last: Any, latch: str | None) -> None:
        """The phi of a value at the head of the loop."""
        e = self.e

        def text(value: Any) -> str:
            value = value.base if isinstance(value, Affine) else e.every() if value is None else value
            return (
                str(e.b.splat(value, phi.lanes).text)
                if value.lanes != phi.lanes and not value.text.startswith("%")
                else value.text
            )

        ways = [f"[ {text(first)}, %{start} ]"]
        if latch is not None:
            ways.append(f"[ {text(last)}, %{latch} ]")
        e.b.lines[at] = f"  {phi.text} = phi {phi.type} {', '.join(ways)}"

    def _test(self, body: str) -> None:
        e, b = self.e, self.e.b
        assert e.env is not None
        test = e.truth(self.x.test)
        if self.divergent:
            e.active = e.mask() & e.vector(test)
            test = e.any(e.mask())
        elif self.leaves:  # with no lanes left there is nothing to do
            test = test & e.any(e.mask())
        if test.text == "true":
            b.raw(f"br label %{body}")
        else:
            e.branch(test, body, self.exit.label)
            self.exit.edges.append((b.block, dict(e.env)))
        b.start_block(body)
        e.env = dict(e.env)

    def _after(self) -> None:
        e = self.e
        if e.env is None:
            return
        e.env.pop(self.key, None)
        if self.divergent:
            e.active = e.still_here(self.entry)

    def _is_short(self) -> bool:
        """Whether the loop counts to a small constant: it is over soon."""
        x = self.x
        match x.first, x.test:
            case (tree.Assign(counter, tree.Constant(_, start)),), tree.Operation(
                _, "lt" | "le", (tree.Read(_, read), tree.Constant(_, stop))
            ) if counter is read:
                match x.step:
                    case (tree.Assign(v, tree.Operation(_, "add", (tree.Read(_, r), tree.Constant(_, by)))),) if (
                        v is counter and r is counter and by > 0
                    ):
                        return counter not in assigned(*x.body) and (int(stop) - int(start)) <= SHORT * int(by)
        return False


class _Called:
    """The body of a function under construction."""

    def __init__(self, e: Emitter, x: tree.Called, divergent: bool) -> None:
        self.e, self.x, self.divergent = e, x, divergent
        self.key = ("left", id(x))
        self.end = e.joins("endcall")

    def leave(self, e: Emitter) -> None:
        assert e.env is not None
        if not self.divergent:
            self.end.jump()
            return
        e.env[self.key] = e.env[self.key] | e.mask()
        e.active = e.none()

    def write(self) -> None:
        e = self.e
        assert e.env is not None
        entry = e.active
        if self.divergent:
            e.env[self.key] = e.none()
        e.block(self.x.body)
        if e.env is not None and (self.end.edges or not self.divergent):
            self.end.jump()
        if self.end.edges:
            self.end.arrive()
        if e.env is not None and self.divergent:
            e.env.pop(self.key, None)
            own, e.calls[-1:] = e.calls[-1:], []
            e.active = e.still_here(entry)
            e.calls += own


def parts(levels: Levels, body: Sequence[tree.Statement]) -> list[Any]:
    """The statements of a threadgroup, and between them lists of those that each vector does by itself.

    A list ends where a simdgroup does something together. Vectors of a threadgroup then go on in step from one such
    place to the next, as those of a GPU mostly do: kernels are found that rely on it."""
    found: list[Any] = []
    ended = True
    for x in body:
        alone = id(x) in levels.grouped or isinstance(
            x, tree.Barrier | tree.Break | tree.Continue | tree.Leave | tree.Return
        )
        if isinstance(x, tree.Assign) and levels.variables[x.variable] == 0 and x.variable not in levels.apart:
            alone = True
        if alone:
            found.append(x)
            ended = True
            continue
        if ended:
            found.append([])
        found[-1].append(x)
        ended = isinstance(x, tree.Together)
    return found


def regions(levels: Levels, body: Sequence[tree.Statement]) -> list[list[tree.Statement]]:
    """All regions of a kernel with barriers."""
    found: list[list[tree.Statement]] = []
    for part in parts(levels, body):
        if isinstance(part, list):
            found.append(part)
        for inner in bodies(part) if not isinstance(part, list) else ():
            found += regions(levels, inner)
    return found


def is_small(body: Sequence[tree.Statement]) -> bool:
    """Whether statements are worth being written twice: few of them, and no loops in which they would be again."""
    for count, x in enumerate(tree.walk(*body)):
        if count > TWICE or isinstance(x, tree.Loop | tree.Called):
            return False
    return True


def weight(program: tree.Program) -> int:
    """About how many instructions a thread takes: what stands in loops counts several times."""
    total = 0
    todo: list[tuple[object, int]] = [(x, 1) for x in program.body]
    while todo:
        x, factor = todo.pop()
        if isinstance(x, tree.Operation | tree.Load | tree.Store | tree.Cast | tree.Together | tree.Atomic):
            total += factor
        inner = min(factor * 16, 1 << 16) if isinstance(x, tree.Loop) else factor
        todo += [(y, inner) for y in tree.children(x)]
    return total
