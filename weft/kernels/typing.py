"""Types for a kernel's source: statements of `syntax`, for operands of known dtypes, become the typed tree.

All checks of meaning are here, for both languages; they differ in what arithmetic makes of two types (`rules.py`) and
in how long names live. Functions are written out where they are called. What has an effect inside of an expression
comes before the statement that the expression is in; operands that were read before it are kept in variables.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.calls import Calls
from weft.kernels.meanings import (
    MOST_MEMORY,
    Address,
    Again,
    Kept,
    Operand,
    Sizes,
    Tuple,
    int64,
)
from weft.kernels.rules import Value
from weft.kernels.syntax import At, KernelError
from weft.records import fields


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


class _Typer(Calls):
    """Gives types to statements."""

    turns = 1
    """How often the statements here are written out."""

    def program(self) -> tree.Program:
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
            between = [y for y in body[k + 1 : later] if assigns(y, self.functions) & names(x)]
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
            case s.Break() | s.Continue():
                if not self.loops:
                    self.error(x.at, f"`{type(x).__name__.lower()}` stands in no loop.")
                self.write(tree.Break() if isinstance(x, s.Break) else tree.Continue())
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

    def unrolled(self, name: str, at: At, numbers: Sequence[tree.Constant], body: s.Statement) -> bool:
        """Write the body of a loop once for each number, if that is little: what depends on the number is then known.
        False if it is better a loop."""
        if len(numbers) > MOST_TURNS or _size(body) * len(numbers) * self.turns > MOST_UNROLLED:
            return False
        if name in assigns(body, self.functions) or _leaves(body):
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
        if any(isinstance(y, s.Call | s.Assignment | s.Step | s.Index) for y in _parts(x)):
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
        self.loops += 1
        body = self.inner(x.body)
        self.loops -= 1
        self.write(tree.Loop(tuple(first), before, test, (*body_first, *body), step))

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
        self.loops += 1
        body = self.inner(x.body)
        self.loops -= 1
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
            call.give(self, self.value(x.value), x.at)
        self.write(tree.Leave())

    # ---- declarations ----

    def declare(self, x: s.Declare) -> None:
        if x.sizes:
            self.declare_array(x)
            return
        if x.type is not None and x.type.space == "threadgroup" and not x.type.pointer:
            self.declare_array(s.Declare(x.at, x.type, x.name, (s.Number(x.at, 1),), None))
            found = self.scopes[-1][x.name]
            assert isinstance(found, Address)
            self.scopes[-1][x.name] = Address(found.storage, int64(0), ())
            return
        guessed = self._guessed(x)
        if x.value is None:
            if x.type is None:
                dtype = self.guesses.get(guessed, dt.bool_)
            elif x.type.pointer or x.type.name == "auto":
                self.error(x.at, f"`{x.name}` needs a value that says where it points or of what type it is.")
            else:
                kind = self.type(x.type)
                if isinstance(kind, rules.VectorType):
                    self.keep_tuple(x.name, Tuple(tuple(Value(tree.Constant(kind.dtype, 0)) for _ in range(kind.size))))
                    return
                dtype = kind
            self._keep(x, tree.Constant(dtype, 0), guessed, empty=True)
            return
        value = self.expression(x.value)
        if isinstance(value, Address) and not self._is_number(value):
            if x.type is not None and not (x.type.pointer or x.type.reference or x.type.name == "auto"):
                self.error(x.at, f"`{x.name}` is no pointer, and is given an array.")
            self._keep_address(x, value)
            return
        if x.type is not None and x.type.pointer:
            self.error(x.at, f"`{x.name}` is a pointer, and is given a number.")
        if isinstance(value, Sizes):
            self.bind(x.name, value, x.at)
            return
        if isinstance(value, Tuple):
            kind = None if x.type is None or x.type.name == "auto" else self.type(x.type)
            if kind is not None and not isinstance(kind, rules.VectorType):
                self.error(x.at, f"`{x.name}` is one number, and is given {len(value.parts)}.")
            self.keep_tuple(x.name, value if kind is None else self._converted(value, kind, x.at))
            return
        number = self.number(value, x.value.at)
        if x.type is not None and x.type.name != "auto":
            kind = self.type(x.type)
            if isinstance(kind, rules.VectorType):
                self.keep_tuple(x.name, self._converted(Tuple((number,) * kind.size), kind, x.at))
                return
            expression = self.cast(number.expression, kind)
        elif x.type is not None:
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

    def _keep_address(self, x: s.Declare, value: Address) -> None:
        if value.sizes:
            self.bind(x.name, value, x.at)  # an array of the kernel's own, or a part of one
            return
        kept = self.variable(x.name, dt.int64)
        self.write(tree.Assign(kept, value.index, first=True))
        self.bind(x.name, Address(value.storage, tree.Read(dt.int64, kept), (), kept), x.at)

    def declare_array(self, x: s.Declare) -> None:
        if x.type is None or x.type.name == "auto":
            self.error(x.at, f"the array `{x.name}` needs a type.")
        kind = self.type(x.type)
        if isinstance(kind, rules.VectorType):
            self.error(x.at, f"`{x.name}`: arrays of vectors are not supported; use arrays of numbers.")
        sizes = tuple(self.constant_integer(size, f"the size of `{x.name}`") for size in x.sizes)
        total = 1
        for n in sizes:
            total *= n
        if min(sizes) < 1 or total * kind.size > MOST_MEMORY:
            self.error(
                x.at, f"`{x.name}` has {total} elements; arrays of kernels have 1 to {MOST_MEMORY // kind.size}."
            )
        space = "threadgroup" if x.type.space == "threadgroup" else "thread"
        if space == "threadgroup" and x.value is not None:
            self.error(x.at, "memory of a threadgroup is not initialized where it is declared; it begins with zeros.")
        storage = tree.Storage(x.name, kind, space, len(self.storages), 1, total)
        self.storages.append(storage)
        self.bind(x.name, Address(storage, int64(0), sizes), x.at)
        if space == "thread":
            self.write(tree.Clear(storage))
            items = x.value.items if isinstance(x.value, s.Braces) else ()
            if x.value is not None and not isinstance(x.value, s.Braces):
                self.error(x.value.at, "an array is initialized with braces.")
            flat = [*_flat(items)]
            if len(flat) > total:
                self.error(x.at, f"`{x.name}` has {total} elements and is given {len(flat)}.")
            for k, item in enumerate(flat):
                value = self.cast(self.value(item).expression, kind)
                if not (isinstance(value, tree.Constant) and value.value == 0):
                    self.write(tree.Store(storage, int64(k), value, item.at))


def _flat(items: Sequence[s.Expression]) -> Iterator[s.Expression]:
    for item in items:
        if isinstance(item, s.Braces):
            yield from _flat(item.items)
        else:
            yield item


def _parts(x: object) -> Iterator[object]:
    """All expressions and statements in one, itself included."""
    todo = [x]
    while todo:
        y = todo.pop()
        if isinstance(y, tuple):
            todo += y
        elif isinstance(y, s.Expression | s.Statement):
            yield y
            todo += [getattr(y, field.name) for field in fields(y)]


def _size(x: object) -> int:
    return sum(1 for _ in _parts(x))


def _leaves(x: object) -> bool:
    """Whether a body may leave the loop that it is of, or begin it anew."""
    if isinstance(x, s.For | s.Range):
        return any(isinstance(y, s.Return) for y in _parts(x))
    if isinstance(x, s.Break | s.Continue | s.Return):
        return True
    if isinstance(x, s.Block):
        return any(_leaves(y) for y in x.body)
    return isinstance(x, s.If) and (_leaves(x.then) or _leaves(x.other))


def names(x: object) -> set[str]:
    """The names in an expression or a statement."""
    return {y.name for y in _parts(x) if isinstance(y, s.Name)}


def assigns(x: object, functions: Container[str]) -> set[str]:
    """The names that a statement assigns, or declares; `functions` are those that may take them by reference."""
    found: set[str] = set()
    for y in _parts(x):
        if isinstance(y, s.Assignment | s.Step):
            found |= names(y.target)
        elif isinstance(y, s.Declare | s.Range):
            found.add(y.name)
        elif isinstance(y, s.Call) and y.name in functions:
            found |= names(y.arguments)
    return found
