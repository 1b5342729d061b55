"""Expressions of a kernel with types, and assignments among them."""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.meanings import Address, Alias, Closure, Elements, Kept, KeptRecord, KeptTuple, Record, Tuple
from weft.kernels.places import PlaceRules
from weft.kernels.rules import Value, VectorType
from weft.kernels.syntax import At


class Expressions(PlaceRules):
    """Gives types to expressions. What has effects in them is written as statements."""

    def call(self, x: s.Call, wanted: bool) -> Any:
        raise NotImplementedError

    def convert(self, x: s.Convert) -> Any:
        raise NotImplementedError

    def operator(self, op: str, operands: list[Any], x: s.Expression) -> Any:
        raise NotImplementedError

    def effect(self, x: s.Expression) -> None:
        """An expression for what it does."""
        if isinstance(x, s.Assignment):
            self.assign(x)
        elif isinstance(x, s.Step):
            self.step(x)
        elif isinstance(x, s.Call):
            self.call(x, wanted=False)
        elif isinstance(x, s.Binary) and x.op == ",":
            self.effect(x.x)
            self.effect(x.y)
        elif isinstance(x, s.Convert) and x.type.name == "void" and len(x.arguments) == 1:
            self.effect(x.arguments[0])
        else:
            self.expression(x)

    def value(self, x: s.Expression) -> Value:
        """A number."""
        return self.number(self.expression(x), x.at)

    def integer(self, x: s.Expression) -> Value:
        value = self.value(x)
        if value.expression.dtype.is_float:
            self.error(x.at, f"an integer is needed here; this is {value.expression.dtype.name}.")
        return Value(self.cast(value.expression, dt.int64))

    def constant_integer(self, x: s.Expression, what: str) -> int:
        value = self.integer(x).expression
        if not isinstance(value, tree.Constant):
            self.error(x.at, f"{what} is known when the kernel is compiled: a number, or a template parameter.")
        return int(value.value)

    def truth(self, x: s.Expression) -> tree.Expression:
        return self.cast(self.value(x).expression, dt.bool_)

    def expression(self, x: s.Expression) -> Any:
        match x:
            case s.Number(_, value, suffix):
                try:
                    return self.rules.literal(value, suffix)
                except OverflowError:
                    self.error(x.at, f"the number {value} is too large.")
            case s.Name(_, name):
                meaning = self.find(name, x.at)
                return (
                    self.read(meaning, x.at) if isinstance(meaning, Kept | KeptTuple | KeptRecord | Alias) else meaning
                )
            case s.Unary():
                return self.unary(x)
            case s.Binary():
                return self.binary(x)
            case s.Choice():
                return self.choice(x)
            case s.Call():
                return self.call(x, wanted=True)
            case s.Member():
                return self.read(self.member(x), x.at)
            case s.Index():
                return self.read(self.place(x), x.at)
            case s.Convert():
                return self.convert(x)
            case s.Assignment():
                return self.assign(x)
            case s.Step():
                return self.step(x)
            case s.SizeOf(_, inner):
                return self._size_of(inner)
            case s.Lambda(_, function):
                return Closure(function, tuple(self.scopes))
            case s.Braces():
                self.error(x.at, "braces initialize arrays and structs only.")
            case s.TypeValue():
                self.error(x.at, f"`{x.type.name}` is a type; a value is needed here.")
        raise AssertionError(x)

    def _size_of(self, x: s.Expression) -> Value:
        """sizeof: nothing is evaluated."""
        if isinstance(x, s.TypeValue):
            kind: Any = self.type(x.type)
        else:
            with self.collected():
                found = self.expression(x)
            if isinstance(found, Dtype):
                kind = found
            elif isinstance(found, Address | Elements):
                if self.is_address(found) and not found.sizes:
                    self.error(x.at, "`sizeof` is for types, numbers and arrays of the kernel's own.")
                kind = found.type if isinstance(found, Elements) else found.storage.dtype
                count = 1
                for n in found.sizes:
                    count *= n
                return Value(tree.Constant(dt.uint64, self.layout(kind)[0] * count))
            elif isinstance(found, Record):
                kind = found.type
            elif isinstance(found, Tuple):
                kind = rules.vector_of(found.parts[0].expression.dtype, len(found.parts), self.rules.packed)
            else:
                kind = self.number(found, x.at).expression.dtype
        return Value(tree.Constant(dt.uint64, self.layout(kind)[0]))

    # ---- operators ----

    def unary(self, x: s.Unary) -> Any:
        if x.op == "*":
            return self.read(self.pointed(self.expression(x.x), x.at), x.at)
        if x.op == "&":
            return self.pointer_to(self.place(x.x), x.at)
        given = self.expression(x.x)
        if isinstance(given, Tuple):
            return Tuple(tuple(self._like(self._unary(x, part), part, x.op) for part in given.parts))
        if isinstance(given, Record):
            return self.operator(x.op, [given], x)
        return self._unary(x, self.number(given, x.x.at))

    def _like(self, found: Value, part: Value, op: str) -> Value:
        """A number of a vector stays of its type: small integers of vectors do not become ints."""
        if op == "!" or found.expression.dtype.is_bool:
            return found
        return Value(self.cast(found.expression, part.expression.dtype), found.weak)

    def _unary(self, x: s.Unary, given: Value) -> Value:
        found = self.rules.unary(x.op, given)
        if found is None:
            self.error(x.at, f"`{x.op}` is not for {given.expression.dtype.name}.")
        return found

    def pair(self, x: s.Expression, y: s.Expression) -> tuple[Any, Any]:
        """Two operands, in order: what the first read is kept if the second has effects."""
        first = self.expression(x)
        at = len(self.out)
        second = self.expression(y)
        return self.pinned(first, at) if len(self.out) > at else first, second

    def binary(self, x: s.Binary) -> Any:
        if x.op in ("&&", "||"):
            return self.logic(x)
        if x.op == ",":
            self.effect(x.x)
            return self.expression(x.y)
        if x.op in "-+*&" and isinstance(x.x, s.Name) and self._is_type(x.x):
            # (T)-1, where T is a type that a template gives.
            return self.convert(s.Convert(x.at, s.TypeName(x.x.at, x.x.name), (s.Unary(x.at, x.op, x.y),)))
        first, second = self.pair(x.x, x.y)
        return self.combined(x.op, first, second, x)

    def _is_type(self, x: s.Name) -> bool:
        found = next((scope[x.name] for scope in reversed(self.scopes) if x.name in scope), None)
        return isinstance(found, Dtype | VectorType) and self.source.language != "python"

    def combined(self, op: str, first: Any, second: Any, x: s.Binary) -> Any:
        if isinstance(first, Record) or isinstance(second, Record):
            return self.operator(op, [first, second], x)
        if self.is_address(first) or self.is_address(second):
            return self._of_addresses(op, first, second, x)
        if isinstance(first, Tuple) or isinstance(second, Tuple):
            return self.elementwise(op, first, second, x)
        a, b = self.number(first, x.x.at), self.number(second, x.y.at)
        found = self.rules.binary(op, a, b)
        if found is None:
            self.error(x.at, f"`{op}` is not for {a.expression.dtype.name} and {b.expression.dtype.name}.")
        return found

    def _of_addresses(self, op: str, first: Any, second: Any, x: s.Binary) -> Any:
        """Pointers that are moved, subtracted, or compared."""
        if self.is_address(first) and self.is_address(second):
            alike = (
                isinstance(first, Address) and isinstance(second, Address) and first.storage is second.storage
            ) or (isinstance(first, Elements) and isinstance(second, Elements) and first.leaves == second.leaves)
            inner = first.sizes[1:] or second.sizes[1:]
            if alike and not inner and op == "-":
                return Value(rules.operation("sub", dt.int64, first.index, second.index))
            if alike and op in ("==", "!=", "<", "<=", ">", ">="):
                return self.rules.binary(op, Value(first.index), Value(second.index))
            self.error(x.at, "these two addresses cannot be combined.")
        if self.is_address(first) and op in "+-":
            return self.moved(first, op, self.number(second, x.y.at), x.at)
        if self.is_address(second) and op == "+":
            return self.moved(second, op, self.number(first, x.x.at), x.at)
        return self.error(x.at, f"`{op}` is not for arrays: a number is needed here, and this is an array.")

    def elementwise(self, op: str, first: Any, second: Any, x: s.Binary) -> Tuple:
        """Of vectors, number by number. A number beside a vector takes its type."""
        size = len(first.parts) if isinstance(first, Tuple) else len(second.parts)
        a, b = self._beside(first, second, size, x.x.at), self._beside(second, first, size, x.y.at)
        if len(a) != len(b):
            self.error(x.at, f"vectors of {len(a)} and {len(b)} numbers.")
        parts: list[Value] = []
        for p, q in zip(a, b, strict=True):
            found = self.rules.binary(op, p, q)
            if found is None:
                self.error(x.at, f"`{op}` is not for these vectors.")
            same = p.expression.dtype is q.expression.dtype
            parts.append(self._like(found, p, op) if same else found)
        return Tuple(tuple(parts))

    def _beside(self, x: Any, other: Any, size: int, at: At) -> tuple[Value, ...]:
        if isinstance(x, Tuple):
            return x.parts
        number = self.number(x, at)
        if self.source.language != "python":
            number = Value(self.cast(number.expression, other.parts[0].expression.dtype))
        return (number,) * size

    def logic(self, x: s.Binary) -> Any:
        """&& and ||: the second operand is evaluated only where it counts."""
        given = self.expression(x.x)
        if isinstance(given, Tuple):
            second = self.expression(x.y)
            return self.elementwise("&" if x.op == "&&" else "|", self._tests(given), self._tests(second), x)
        first = self.cast(self.number(given, x.x.at).expression, dt.bool_)
        if isinstance(first, tree.Constant) and bool(first.value) == (x.op == "||"):
            return Value(first)
        with self.collected() as inside:
            then = self.truth(x.y)
        if isinstance(first, tree.Constant):
            self.out.extend(inside)
            return Value(then)
        if not inside and not rules.can_fail(then):
            return Value(tree.Operation(dt.bool_, "and" if x.op == "&&" else "or", (first, then)))
        result = self.variable("both" if x.op == "&&" else "either", dt.bool_)
        self.write(tree.Assign(result, first, first=True))
        here = tree.Read(dt.bool_, result)
        test = here if x.op == "&&" else rules.operation("not", dt.bool_, here)
        self.write(tree.If(test, (*inside, tree.Assign(result, then))))
        return Value(here)

    def _tests(self, x: Any) -> Any:
        if not isinstance(x, Tuple):
            return x
        return Tuple(tuple(Value(self.cast(p.expression, dt.bool_)) for p in x.parts))

    # ---- choices ----

    def choice(self, x: s.Choice) -> Any:
        given = self.expression(x.test)
        if isinstance(given, Tuple):
            return self._chosen_parts(given, x)
        test = self.cast(self.number(given, x.test.at).expression, dt.bool_)
        if isinstance(test, tree.Constant):
            return self.expression(x.x if test.value else x.y)
        with self.collected() as then:
            a = self.expression(x.x)
        with self.collected() as other:
            b = self.expression(x.y)
        if self.is_address(a) or self.is_address(b):
            return self._chosen_address(x, test, (a, b), bool(then or other))
        if isinstance(a, Record) or isinstance(b, Record):
            return self._chosen_record(x, test, (a, then), (b, other))
        if isinstance(a, Tuple) or isinstance(b, Tuple):
            size = len(a.parts) if isinstance(a, Tuple) else len(b.parts)
            rows = self._beside(a, b, size, x.x.at), self._beside(b, a, size, x.y.at)
            if len(rows[0]) != len(rows[1]):
                self.error(x.at, f"vectors of {len(rows[0])} and {len(rows[1])} numbers.")
            return Tuple(tuple(self._chosen_numbers(test, list(zip(*rows, strict=True)), then, other)))
        pairs = [(self.number(a, x.x.at), self.number(b, x.y.at))]
        return self._chosen_numbers(test, pairs, then, other)[0]

    def _chosen_numbers(
        self,
        test: tree.Expression,
        pairs: list[Any],
        then: list[tree.Statement],
        other: list[tree.Statement],
    ) -> list[Value]:
        """Numbers by a condition; what may fail is evaluated only where it counts."""
        both = [self.rules.matched(p, q) for p, q in pairs]
        fails = any(rules.can_fail(p) or rules.can_fail(q) for p, q, _ in both)
        if not then and not other and not fails:
            return [Value(tree.Select(p.dtype, test, p, q), weak) for p, q, weak in both]
        results = [self.variable("chosen", p.dtype) for p, _, _ in both]
        for v in results:
            self.write(tree.Assign(v, tree.Constant(v.dtype, 0), first=True))
        first = [tree.Assign(v, p) for v, (p, _, _) in zip(results, both, strict=True)]
        second = [tree.Assign(v, q) for v, (_, q, _) in zip(results, both, strict=True)]
        self.write(tree.If(test, (*then, *first), (*other, *second)))
        return [Value(tree.Read(v.dtype, v), weak) for v, (_, _, weak) in zip(results, both, strict=True)]

    def _chosen_parts(self, test: Tuple, x: s.Choice) -> Tuple:
        """A vector of conditions."""
        size = len(test.parts)
        a, b = self.pair(x.x, x.y)
        rows = [v.parts if isinstance(v, Tuple) else (self.number(v, x.at),) * size for v in (a, b)]
        if any(len(row) != size for row in rows):
            self.error(x.at, f"a condition of {size} numbers chooses between vectors of {size}.")
        found = []
        for t, p, q in zip(test.parts, *rows, strict=True):
            first, second, weak = self.rules.matched(p, q)
            found.append(Value(tree.Select(first.dtype, self.cast(t.expression, dt.bool_), first, second), weak))
        return Tuple(tuple(found))

    def _chosen_address(self, x: s.Choice, test: tree.Expression, both: tuple[Any, Any], effects: bool) -> Any:
        a, b = both
        if effects:
            self.error(x.at, "pointers are chosen between without effects; choose between elements instead.")
        if isinstance(a, Elements) and isinstance(b, Elements) and a.leaves == b.leaves:
            return Elements(a.type, a.leaves, tree.Select(dt.int64, test, a.index, b.index))
        if not isinstance(a, Address) or not isinstance(b, Address) or a.storage is not b.storage:
            self.error(x.at, "a pointer points into one array; choose between elements instead.")
        return Address(a.storage, tree.Select(dt.int64, test, a.index, b.index))

    def _chosen_record(self, x: s.Choice, test: tree.Expression, first: Any, second: Any) -> Record:
        kind = first[0].type if isinstance(first[0], Record) else second[0].type
        place = self.keep("chosen", kind, (), x.at)
        for value, statements in (first, second):
            with self.collected() as more:
                self.put(place, self.converted(value, kind, x.at), x, x.at)
            statements += more
        self.write(tree.If(test, tuple(first[1]), tuple(second[1])))
        found = self.read(place, x.at)
        assert isinstance(found, Record)
        return found

    # ---- assignments ----

    def assign(self, x: s.Assignment) -> Any:
        value: Any
        if x.op == "=":
            if isinstance(x.value, s.Braces):
                place = self.place(x.target)
                kind = place.type if isinstance(place, KeptRecord | Elements) else self._vector_of(place, x)
                value = self.converted(x.value, kind, x.at)
            else:
                value = self.expression(x.value)
                at = len(self.out)
                place = self.place(x.target)
                if len(self.out) > at:
                    value = self.pinned(value, at)
        elif self.source.language == "python":
            place = self.place(x.target)
            old = self.read(place, x.target.at)
            at = len(self.out)
            other = self.expression(x.value)
            if len(self.out) > at:
                old = self.pinned(old, at)
            value = self.combined(x.op, old, other, s.Binary(x.at, x.op, x.target, x.value))
        else:  # the right side comes first
            other = self.expression(x.value)
            at = len(self.out)
            place = self.place(x.target)
            if len(self.out) > at:
                other = self.pinned(other, at)
            old = self.read(place, x.target.at)
            if isinstance(old, Record):
                return self.operator(f"{x.op}=", [place, other], x)
            value = self.combined(x.op, old, other, s.Binary(x.at, x.op, x.target, x.value))
        return self.put(place, value, x.target, x.at)

    def _vector_of(self, place: Any, x: s.Assignment) -> Any:
        if isinstance(place, KeptTuple):
            return rules.vector_of(place.variables[0].dtype, len(place.variables), packed=False)
        if isinstance(place, Kept):
            return place.variable.dtype
        return self.error(x.at, "braces initialize arrays and structs only.")

    def step(self, x: s.Step) -> Any:
        place = self.place(x.target)
        one = self.rules.literal(1, "")
        old = self.read(place, x.target.at)
        if isinstance(old, Record):
            return self.operator(x.op, [place], x)
        before = self.pinned(old, len(self.out)) if x.after else None
        value = self.combined(x.op[0], old, one, s.Binary(x.at, x.op[0], x.target, s.Number(x.at, 1)))
        after = self.put(place, value, x.target, x.at)
        return before if x.after else after
