"""Types for a kernel's source: statements of `syntax`, for operands of known dtypes, become the typed tree.

All checks of meaning are here, for both languages; they differ in what arithmetic makes of two types (`rules.py`) and
in how long names live. Functions are written out where they are called. What has an effect inside of an expression
comes before the statement that the expression is in; operands that were read before it are kept in variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import syntax as s
from weft.kernels import tree
from weft.kernels.builtins import Builtins
from weft.kernels.meanings import (
    Address,
    Again,
    Alias,
    Closure,
    Elements,
    Kept,
    KeptRecord,
    KeptTuple,
    Operand,
    Part,
    Places,
    Pointer,
    Record,
    Sizes,
    StructType,
    Tuple,
)
from weft.kernels.rules import Value, VectorType, wrapped
from weft.kernels.syntax import At, KernelError
from weft.kernels.walking import assigns, leaves, names, parts, size


def typed(
    source: s.Source, inputs: Sequence[Operand], outputs: Sequence[Operand], template: Mapping[str, Any]
) -> tree.Program:
    """The kernel for operands of these dtypes. `template` gives dtypes and numbers by name."""
    guesses: dict[Any, Dtype] = {}
    for _ in range(200):
        try:
            return _Typer(source, inputs, outputs, template, guesses).program()
        except Again:
            continue
        except RecursionError:
            raise KernelError(source.name, source.body.at, "it is nested too deeply.") from None
    raise KernelError(source.name, source.body.at, "the types of its variables do not settle; declare them.")


MOST_TURNS: Final = 8
MOST_UNROLLED: Final = 600
"""Turns of a loop that is written out, and parts of its source times these."""


class _Typer(Builtins):
    """Gives types to statements."""

    turns = 1
    """How often the statements here are written out."""

    def program(self) -> tree.Program:
        for statement in self.source.header:
            self.statement(statement)
        self.scopes.append({})
        self.block(self.source.body.body)
        return tree.Program(self.source.name, tuple(self.out), tuple(self.storages))

    # ---- statements ----

    def block(self, body: Sequence[s.Statement]) -> None:
        for statement in self.postponed(body):
            self.statement(statement)

    def postponed(self, body: Sequence[s.Statement]) -> list[s.Statement]:
        """Statements in which what is read and then dropped where a condition says so is read where it says so.

        `T v = x[i]; ...; v = inside ? v : 0;` is how kernels for GPUs often read at an edge: reading outside of an
        array does no harm there, as long as nothing comes of it. The declaration moves down, and has the condition.
        """
        found = list(body)
        for k, x in enumerate(body):
            if not isinstance(x, s.Declare) or x.sizes or not isinstance(x.value, s.Index) or x.type is None:
                continue
            later = next((j for j in range(k + 1, len(body)) if x.name in names(body[j])), None)
            if later is None or found[k] is not x:
                continue
            chosen = self._chosen(x, body[later])
            if chosen is None or not self._is_input(x.value):
                continue
            between = [y for y in body[k + 1 : later] if self.changes(y) & names(x)]
            if not between:
                found[k] = s.Block(x.at, ())
                found[later] = s.Declare(x.at, x.type, x.name, (), chosen)
        return found

    def _chosen(self, x: s.Declare, after: s.Statement) -> s.Choice | None:
        """`test ? x[i] : y`, where a statement makes that of what was read."""
        match after:
            case s.Evaluate(_, s.Assignment(_, s.Name(_, name), "=", s.Choice(at, test, s.Name(_, read), other))) if (
                name == read == x.name and x.name not in names(test) | names(other)
            ):
                assert x.value is not None
                return s.Choice(at, test, x.value, other)
        return None

    def _is_input(self, x: s.Index) -> bool:
        if not isinstance(x.x, s.Name):
            return False
        found = next((scope[x.x.name] for scope in reversed(self.scopes) if x.x.name in scope), None)
        return isinstance(found, Address) and found.storage.space == "input"

    def changes(self, x: object) -> set[str]:
        """The names that a statement may assign."""
        return assigns(x, self.functions | self.closures)

    def inner(self, statement: s.Statement | None) -> tuple[tree.Statement, ...]:
        if statement is None:
            return ()
        with self.collected() as out, self.scope():
            self.statement(statement)
        return tuple(out)

    def statement(self, x: s.Statement) -> None:
        match x:
            case s.Block():
                if x.scope:
                    with self.scope():
                        self.block(x.body)
                else:
                    self.block(x.body)
            case s.Evaluate(_, inner):
                self.effect(inner)
            case s.Declare():
                self.declare(x)
            case s.If():
                self.branch(x)
            case s.For():
                with self.scope():
                    self.loop(x)
            case s.Range():
                with self.scope():
                    self.range(x)
            case s.Switch():
                self.switch(x)
            case s.Break() | s.Continue():
                self.jump(x)
            case s.Assertion(_, test, text):
                if not self.constant_integer(test, "what `static_assert` says"):
                    self.error(x.at, f"`static_assert` does not hold{': ' + text if text else ''}.")
            case s.Return():
                self.leave(x)
            case _:
                raise AssertionError(x)

    def branch(self, x: s.If) -> None:
        test = self.truth(x.test)
        if isinstance(test, tree.Constant):
            chosen = x.then if test.value else x.other
            if chosen is not None:
                with self.scope():
                    self.statement(chosen)
            return
        self.write(tree.If(test, self.inner(x.then), self.inner(x.other)))

    # ---- switches ----

    def jump(self, x: s.Break | s.Continue) -> None:
        """`break` is about a loop or a `switch`, `continue` about a loop."""
        if not self.loops and not (isinstance(x, s.Break) and self.switches):
            self.error(x.at, f"`{type(x).__name__.lower()}` stands in no loop.")
        again = self.switches[-1] if self.switches and isinstance(x, s.Continue) else None
        if again is not None:  # the loop around the `switch` goes on behind it
            self.write(tree.Assign(again, tree.Constant(dt.bool_, True)))
        self.write(tree.Continue() if isinstance(x, s.Continue) and again is None else tree.Break())

    def switch(self, x: s.Switch) -> None:
        """A chain of branches, where each case ends; else a loop of one turn, in which one case goes on to the next."""
        if sum(label is None for case in x.cases for label in case.labels) > 1:
            self.error(x.at, "a `switch` has one `default`.")
        value = self.rules.promoted(self.integer_value(x.value))
        if not isinstance(value, tree.Constant):
            kept = self.variable("switch", value.dtype)
            self.write(tree.Assign(kept, value, first=True))
            value = tree.Read(value.dtype, kept)
        tests = [self._labels(value, case) for case in x.cases]
        if isinstance(value, tree.Constant):
            self._known_case(x, tests)
        elif all(_ends(case) for case in x.cases[:-1]) and not any(_breaks(_body(case)) for case in x.cases):
            self._chain(x, tests)
        else:
            self._cases(x, tests)

    def integer_value(self, x: s.Expression) -> Value:
        value = self.value(x)
        if value.expression.dtype.is_float:
            self.error(x.at, f"an integer is needed here; this is {value.expression.dtype.name}.")
        return value

    def _labels(self, value: tree.Expression, case: s.Case) -> tree.Expression:
        """Whether a value is that of a case, its `default` aside."""
        found: tree.Expression = tree.Constant(dt.bool_, False)
        for label in case.labels:
            if label is None:
                continue
            number = self.constant_integer(label, "a case")
            test = self.rules.binary(
                "==", Value(value), Value(tree.Constant(value.dtype, wrapped(number, value.dtype)))
            )
            assert test is not None
            if isinstance(found, tree.Constant):
                found = found if found.value else test.expression
            else:
                found = tree.Operation(dt.bool_, "or", (found, test.expression))
        return found

    def _known_case(self, x: s.Switch, tests: Sequence[tree.Expression]) -> None:
        """Which case it is, is known: those before are not there."""
        chosen = next((k for k, t in enumerate(tests) if isinstance(t, tree.Constant) and t.value), None)
        if chosen is None:
            chosen = next((k for k, case in enumerate(x.cases) if None in case.labels), None)
        if chosen is None:
            return
        body: list[s.Statement] = []
        for case in x.cases[chosen:]:
            body += _body(case)
            if _ends(case):
                break
        if not _breaks(body):
            with self.scope():
                self.block(body)
            return
        cases = (s.Case(x.at, (None,), tuple(body)),)
        self._cases(s.Switch(x.at, x.value, cases), [tree.Constant(dt.bool_, False)])

    def _chain(self, x: s.Switch, tests: Sequence[tree.Expression]) -> None:
        """if, else if, else: `default` comes last, wherever it stands."""
        written: tuple[tree.Statement, ...] = ()
        for default in (True, False):
            for case, test in reversed(list(zip(x.cases, tests, strict=True))):
                if (None in case.labels) is not default:
                    continue
                body = self.inner(s.Block(case.at, tuple(_body(case))))
                written = body if default else (tree.If(test, body, written),)
        for statement in written:
            self.write(statement)

    def _cases(self, x: s.Switch, tests: Sequence[tree.Expression]) -> None:
        """A loop that is left at its end."""
        other: tree.Expression = tree.Constant(dt.bool_, False)
        for test in tests:
            other = test if isinstance(other, tree.Constant) else tree.Operation(dt.bool_, "or", (other, test))
        nothing = tree.Operation(dt.bool_, "not", (other,))
        again = self.variable("again", dt.bool_) if self.loops else None
        if again is not None:
            self.write(tree.Assign(again, tree.Constant(dt.bool_, False), first=True))
        entered = self.variable("entered", dt.bool_)
        here = tree.Read(dt.bool_, entered)
        self.switches.append(again)
        with self.collected() as body, self.scope():
            for case, test in zip(x.cases, tests, strict=True):
                comes = tree.Operation(dt.bool_, "or", (test, nothing)) if None in case.labels else test
                self.write(tree.Assign(entered, tree.Operation(dt.bool_, "or", (here, comes))))
                self.write(tree.If(here, self.inner(s.Block(case.at, case.body))))
            self.write(tree.Break())
        self.switches.pop()
        first = (tree.Assign(entered, tree.Constant(dt.bool_, False), first=True),)
        self.write(tree.Loop(first, (), tree.Constant(dt.bool_, True), tuple(body), ()))
        if again is not None:
            self.write(tree.If(tree.Read(dt.bool_, again), (tree.Continue(),)))

    # ---- loops ----

    def unrolled(self, name: str, at: At, numbers: Sequence[tree.Constant], body: s.Statement) -> bool:
        """Write the body of a loop once for each number, if that is little: what depends on the number is then known.
        False if it is better a loop."""
        if len(numbers) > MOST_TURNS or size(body) * len(numbers) * self.turns > MOST_UNROLLED:
            return False
        if name in self.changes(body) or leaves(body):
            return False
        self.turns *= max(1, len(numbers))
        for number in numbers:
            with self.scope():
                self.bind(name, Value(number), at)
                self.statement(body)
        self.turns //= max(1, len(numbers))
        return True

    def _turns(self, x: s.For) -> tuple[str, list[tree.Constant]] | None:
        """`for (int i = 0; i < 4; ++i)`: its name and numbers, if they are known."""
        first = x.first.body[0] if isinstance(x.first, s.Block) and len(x.first.body) == 1 else x.first
        match first, x.test, x.step:
            case (
                s.Declare(_, s.TypeName() as kind, name, (), s.Expression() as start),
                s.Binary(_, "<" | "<=" as relation, s.Name(_, tested), stop),
                s.Step(_, s.Name(_, stepped), "++"),
            ) if name == tested == stepped and not x.late:
                pass
            case _:
                return None
        dtype = self.type(kind) if kind.name != "auto" else dt.int32
        if kind.pointer or dtype not in (dt.int32, dt.uint32, dt.int64, dt.uint64):
            return None
        with self.collected() as written, self.scope():
            low, high = self._known(start), self._known(stop)
        if written or low is None or high is None or name in names(stop):
            return None
        numbers = range(low, high + (relation == "<="))
        return (name, [tree.Constant(dtype, n) for n in numbers]) if len(numbers) <= MOST_TURNS else None

    def _known(self, x: s.Expression) -> int | None:
        if any(isinstance(y, s.Call | s.Assignment | s.Step | s.Index) for y in parts(x)):
            return None
        try:
            found = self.expression(x)
        except KernelError:
            return None
        expression = found.expression if isinstance(found, Value) else None
        if isinstance(expression, tree.Constant) and not expression.dtype.is_float:
            return int(expression.value)
        return None

    def loop(self, x: s.For) -> None:
        turns = self._turns(x)
        if turns is not None and self.unrolled(turns[0], x.at, turns[1], x.body):
            return
        first: list[tree.Statement] = []
        if x.first is not None:
            with self.collected() as first:
                self.statement(x.first)
        before, test = self.tested(x.test)
        body_first: tuple[tree.Statement, ...] = ()
        if x.late:
            again = self.variable("again", dt.bool_)
            first = [*first, tree.Assign(again, tree.Constant(dt.bool_, True), first=True)]
            step = (*before, tree.Assign(again, test))
            before, test = (), tree.Read(dt.bool_, again)
        else:
            with self.collected() as written:
                if x.step is not None:
                    self.effect(x.step)
            step = tuple(written)
        body = self.looped(x.body)
        self.write(tree.Loop(tuple(first), before, test, (*body_first, *body), step))

    def looped(self, body: s.Statement) -> tuple[tree.Statement, ...]:
        """The body of a loop."""
        self.loops += 1
        self.switches.append(None)
        found = self.inner(body)
        self.switches.pop()
        self.loops -= 1
        return found

    def tested(self, test: s.Expression | None) -> tuple[tuple[tree.Statement, ...], tree.Expression]:
        if test is None:
            return (), tree.Constant(dt.bool_, True)
        with self.collected() as before:
            found = self.truth(test)
        return tuple(before), found

    def range(self, x: s.Range) -> None:
        """for name in range(...): the count goes up or down by a constant."""
        start, stop, step = (self.rules.strong(self.integer(e)) for e in (x.start, x.stop, x.step))
        if not isinstance(step, tree.Constant) or not step.value:
            self.error(
                x.step.at, "the step of a range is a number other than 0 that is known when the kernel is compiled."
            )
        kind = dt.int64
        if isinstance(start, tree.Constant) and isinstance(stop, tree.Constant):
            numbers = range(int(start.value), int(stop.value), int(step.value))
            if len(numbers) <= MOST_TURNS and self.unrolled(
                x.name, x.at, [tree.Constant(kind, n) for n in numbers], x.body
            ):
                return
        end = stop
        if not isinstance(stop, tree.Constant):
            limit = self.variable("stop", kind)
            self.write(tree.Assign(limit, stop, first=True))
            end = tree.Read(kind, limit)
        counter = self.variable(x.name, kind)
        self.bind(x.name, Kept(counter, constant=True), x.at)
        here = tree.Read(kind, counter)
        test = tree.Operation(dt.bool_, "lt" if step.value > 0 else "gt", (here, end))
        body = self.looped(x.body)
        more = (tree.Assign(counter, tree.Operation(kind, "add", (here, step))),)
        self.write(tree.Loop((tree.Assign(counter, start, first=True),), (), test, body, more))

    def leave(self, x: s.Return) -> None:
        if not self.calls:
            if x.value is not None:
                self.error(x.at, "a kernel returns nothing; it writes to its outputs.")
            self.write(tree.Return())
            return
        call = self.calls[-1]
        if x.value is None:
            if call.result_type is not None:
                self.error(x.at, f"`{call.name}` returns a value here without one.")
        else:
            call.give(self, x.value, x.at)
        self.write(tree.Leave())

    # ---- declarations ----

    def declare(self, x: s.Declare) -> None:
        if x.sizes:
            self.declare_array(x)
            return
        kind = x.type
        if kind is not None and kind.space == "threadgroup" and not kind.pointer and not kind.reference:
            if x.value is not None:
                self.error(
                    x.at, "memory of a threadgroup is not initialized where it is declared; it begins with zeros."
                )
            found = self.memory(x.name, self.type(kind), (1,), "threadgroup", x.at)
            self.bind(x.name, Alias(self.pointed(found, x.at)), x.at)
            return
        if x.value is None:
            self._declare_empty(x)
            return
        if kind is not None and kind.reference and self._declare_reference(x):
            return
        value = self.expression(x.value)
        if isinstance(value, Closure):
            self.closures[x.name] = [value.function]
            self.bind(x.name, value, x.at)
        elif isinstance(value, Sizes):
            self.bind(x.name, value, x.at)
        elif self.is_address(value) or isinstance(value, Pointer):
            self._declare_pointer(x, value)
        elif kind is not None and kind.pointer:
            self.error(x.at, f"`{x.name}` is a pointer, and is given a number.")
        elif isinstance(value, Tuple | Record) or (kind is not None and kind.name != "auto"):
            self._declare_typed(x, value)
        else:
            self._declare_number(x, self.number(value, x.value.at))

    def _declare_empty(self, x: s.Declare) -> None:
        """A variable without a value."""
        guessed = self._guessed(x)
        if x.type is None:
            dtype = self.guesses.get(guessed, dt.bool_)
            self._keep(x, tree.Constant(dtype, 0), guessed, empty=True)
            return
        if x.type.pointer or x.type.reference or x.type.name == "auto":
            self.error(x.at, f"`{x.name}` needs a value that says where it points or of what type it is.")
        kind = self.type(x.type)
        if isinstance(kind, StructType):
            place = self.keep(x.name, kind, (), x.at)
            if self.begins(kind):
                self.fill(place, kind, (), (), x.at)
            self.bind(x.name, place, x.at)
        elif isinstance(kind, Dtype):
            self._keep(x, tree.Constant(kind, 0), guessed, empty=True)
        else:
            self.bind(x.name, self.keep(x.name, kind, (), x.at), x.at)

    def _declare_reference(self, x: s.Declare) -> bool:
        """Another name for a place; False if the value has none."""
        assert x.type is not None
        assert x.value is not None
        placed = isinstance(x.value, s.Name | s.Index | s.Member) or (
            isinstance(x.value, s.Unary) and x.value.op == "*"
        )
        if not placed:
            return False
        place = self.place(x.value)
        if not isinstance(place, Kept | KeptTuple | KeptRecord | Address | Elements | Part | Places):
            return False
        if isinstance(place, Address) and (place.whole or self.is_number(place)):
            return False
        if x.type.name != "auto" and self.type(x.type) != self.type_of(place):
            if not x.constant:
                self.error(x.at, f"`{x.name}` is a reference to another type.")
            return False
        place = self.pinned(place, len(self.out))
        element = isinstance(place, Address | Elements | Part | Places) and not getattr(place, "sizes", ())
        self.bind(x.name, Alias(place) if element else place, x.at)
        return True

    def _declare_pointer(self, x: s.Declare, value: Any) -> None:
        kind = x.type
        if kind is not None and not (kind.pointer or kind.reference or kind.name == "auto"):
            self.error(x.at, f"`{x.name}` is no pointer, and is given an array.")
        if kind is not None and kind.pointer and kind.name not in ("auto", "void"):
            wanted, actual = self.type(kind), self.type_of(value)
            if wanted != actual:
                self.error(x.at, f"`{x.name}` points at another type than this; convert the pointer.")
        if isinstance(value, Pointer) or value.sizes[1:] or (value.sizes and kind is None):
            self.bind(x.name, value, x.at)  # an array of the kernel's own, or a part of one
            return
        if value.sizes and kind is not None and not kind.pointer:
            self.bind(x.name, value, x.at)
            return
        kept = self.variable(x.name, dt.int64)
        self.write(tree.Assign(kept, value.index, first=True))
        index = tree.Read(dt.int64, kept)
        if isinstance(value, Elements):
            self.bind(x.name, Elements(value.type, value.leaves, index, (), kept), x.at)
        else:
            self.bind(x.name, Address(value.storage, index, (), kept), x.at)

    def _declare_typed(self, x: s.Declare, value: Any) -> None:
        """A variable of a type that is declared, or of a vector or a struct."""
        known = x.type is not None and x.type.name != "auto"
        kind = self.type(x.type) if known and x.type is not None else self.type_of(value)
        if isinstance(kind, Dtype):
            if isinstance(value, Tuple | Record):
                many = f"{len(value.parts)}" if isinstance(value, Tuple) else "a struct"
                self.error(x.at, f"`{x.name}` is one number, and is given {many}.")
            assert x.value is not None
            expression = self.cast(self.number(value, x.value.at).expression, kind)
            if x.constant and isinstance(expression, tree.Constant):
                self.bind(x.name, Value(expression), x.at)
            else:
                self._keep(x, expression)
            return
        value = self.converted(value, kind, x.at)
        if isinstance(kind, VectorType):
            kept = []
            for letter, part in zip("xyzw", value.parts, strict=False):
                kept.append(self.variable(f"{x.name}.{letter}", kind.dtype))
                self.write(tree.Assign(kept[-1], part.expression, first=True))
            self.bind(x.name, KeptTuple(tuple(kept)), x.at)
            return
        place = self.keep(x.name, kind, (), x.at)
        self.put(place, value, s.Name(x.at, x.name), x.at)
        self.bind(x.name, place, x.at)

    def _declare_number(self, x: s.Declare, number: Value) -> None:
        """A variable of the type of its value: of C's `auto`, or of Python."""
        guessed = self._guessed(x)
        if x.type is not None:
            expression = self.rules.strong(number)
        else:
            expression = self.cast(number.expression, self.joined(guessed, number))
        if x.constant and isinstance(expression, tree.Constant):
            self.bind(x.name, Value(expression), x.at)
            return
        self._keep(x, expression, guessed)

    def _guessed(self, x: s.Declare) -> Any:
        return (x.at, x.name, tuple(call.path for call in self.calls)) if x.type is None else None

    def _keep(self, x: s.Declare, value: tree.Expression, guessed: Any = None, empty: bool = False) -> None:
        variable = self.variable(x.name, value.dtype)
        self.write(tree.Assign(variable, value, True, empty))
        self.bind(x.name, Kept(variable, guessed, x.constant), x.at)

    def declare_array(self, x: s.Declare) -> None:
        if x.type is None or x.type.name == "auto":
            self.error(x.at, f"the array `{x.name}` needs a type.")
        if x.type.pointer or x.type.reference:
            self.error(x.at, f"`{x.name}`: arrays of pointers are not supported in kernels.")
        kind = self.type(x.type)
        sizes = tuple(self.constant_integer(n, f"the size of `{x.name}`") for n in x.sizes)
        space = "threadgroup" if x.type.space == "threadgroup" else "thread"
        if space == "threadgroup" and x.value is not None:
            self.error(x.at, "memory of a threadgroup is not initialized where it is declared; it begins with zeros.")
        found = self.memory(x.name, kind, sizes, space, x.at)
        self.bind(x.name, found, x.at)
        if x.value is None and self.begins(kind):
            self.error(x.at, f"`{x.name}`: arrays of structs with defaults or constructors are given in braces.")
        if x.value is None:
            return
        if not isinstance(x.value, s.Braces):
            self.error(x.value.at, "an array is initialized with braces.")
        self.fill(found, kind, sizes, x.value.items, x.at)


def _body(case: s.Case) -> list[s.Statement]:
    """The statements of a case without the `break` at its end."""
    body = list(case.body)
    while len(body) == 1 and isinstance(body[0], s.Block):
        body = list(body[0].body)
    return body[:-1] if body and isinstance(body[-1], s.Break) else body


def _ends(case: s.Case) -> bool:
    """Whether nothing goes on from a case to the next."""
    body: Sequence[s.Statement] = case.body
    while body and isinstance(body[-1], s.Block):
        body = body[-1].body
    return bool(body) and isinstance(body[-1], s.Break | s.Continue | s.Return)


def _breaks(body: Sequence[s.Statement]) -> bool:
    """Whether statements leave the `switch` that they are in."""
    for x in body:
        if isinstance(x, s.Break):
            return True
        if isinstance(x, s.Block) and _breaks(x.body):
            return True
        if isinstance(x, s.If) and _breaks([y for y in (x.then, x.other) if y is not None]):
            return True
    return False
