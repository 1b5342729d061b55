"""Expressions of a kernel, places that they stand for, and assignments to these, with types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.meanings import Address, Again, Kept, KeptTuple, Names, Sizes, Tuple, int64
from weft.kernels.rules import Value
from weft.kernels.syntax import At


class Expressions(Names):
    """Gives types to expressions. What has effects in them is written as statements."""

    def call(self, x: s.Call, wanted: bool) -> Any:
        raise NotImplementedError

    def convert(self, x: s.Convert) -> Any:
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
        else:
            self.expression(x)

    def value(self, x: s.Expression) -> Value:
        """A number."""
        return self.number(self.expression(x), x.at)

    def _is_number(self, meaning: Address) -> bool:
        """Whether an address stands for the element there: an operand without axes, a variable of a threadgroup."""
        storage = meaning.storage
        plain = meaning.variable is None and not meaning.sizes and not meaning.whole
        if storage.space == "input":
            return plain and storage.ndim == 0
        return plain and storage.space == "threadgroup" and storage.size == 1

    def number(self, meaning: Any, at: At) -> Value:
        if isinstance(meaning, Value):
            return meaning
        if isinstance(meaning, Kept):
            return Value(tree.Read(meaning.variable.dtype, meaning.variable))
        if isinstance(meaning, Address) and self._is_number(meaning):
            return Value(tree.Load(meaning.storage.dtype, meaning.storage, meaning.index, at))
        if isinstance(meaning, Tuple) and len(meaning.parts) == 1:
            return meaning.parts[0]
        what = {Address: "an array", Tuple: "a vector", KeptTuple: "a vector", Sizes: "sizes"}.get(
            type(meaning), "a name"
        )
        return self.error(at, f"a number is needed here, and this is {what}.")

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

    def cast(self, x: tree.Expression, dtype: Dtype) -> tree.Expression:
        return rules.cast(x, dtype)

    def expression(self, x: s.Expression) -> Any:
        match x:
            case s.Number(_, value, suffix):
                try:
                    return self.rules.literal(value, suffix)
                except OverflowError:
                    self.error(x.at, f"the number {value} is too large.")
            case s.Name(_, name):
                meaning = self.find(name, x.at)
                if isinstance(meaning, Kept):
                    return self.number(meaning, x.at)
                if isinstance(meaning, KeptTuple):
                    return Tuple(tuple(Value(tree.Read(v.dtype, v)) for v in meaning.variables))
                return meaning
            case s.Unary():
                return self.unary(x)
            case s.Binary():
                return self.binary(x)
            case s.Choice():
                return self.choice(x)
            case s.Call():
                return self.call(x, wanted=True)
            case s.Member():
                return self.member(x)
            case s.Index():
                return self.load(self.place(x), x.at)
            case s.Convert():
                return self.convert(x)
            case s.Assignment():
                return self.assign(x)
            case s.Step():
                return self.step(x)
            case s.Braces():
                self.error(x.at, "braces initialize arrays only.")
        raise AssertionError(x)

    def load(self, place: Any, at: At) -> Any:
        if isinstance(place, Address) and not place.sizes and not place.whole:
            return Value(tree.Load(place.storage.dtype, place.storage, place.index, at))
        return place

    def unary(self, x: s.Unary) -> Any:
        if x.op == "*":
            target = self.expression(x.x)
            if not isinstance(target, Address):
                self.error(x.at, "only pointers have something that they point at.")
            return self.load(Address(target.storage, target.index), x.at)
        if x.op == "&":
            return self.place(x.x)
        given = self.expression(x.x)
        if isinstance(given, Tuple):
            return Tuple(tuple(self._unary(x, part) for part in given.parts))
        return self._unary(x, self.number(given, x.x.at))

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
        if len(self.out) > at and isinstance(first, Value) and not isinstance(first.expression, tree.Constant):
            kept = self.variable("kept", first.expression.dtype)
            self.out.insert(at, tree.Assign(kept, first.expression, first=True))
            first = Value(tree.Read(kept.dtype, kept), first.weak)
        return first, second

    def binary(self, x: s.Binary) -> Any:
        if x.op in ("&&", "||"):
            return self.logic(x)
        if x.op == ",":
            self.effect(x.x)
            return self.expression(x.y)
        first, second = self.pair(x.x, x.y)
        return self.combined(x.op, first, second, x)

    def combined(self, op: str, first: Any, second: Any, x: s.Binary) -> Any:
        if isinstance(first, Address) and not self._is_number(first) and op in "+-":
            if isinstance(second, Address) and not self._is_number(second):
                if op == "-" and first.storage is second.storage:
                    return Value(rules.operation("sub", dt.int64, first.index, second.index))
                self.error(x.at, "these two addresses cannot be combined.")
            return self.moved(first, op, self.number(second, x.y.at), x.at)
        if isinstance(second, Address) and not self._is_number(second) and op == "+":
            return self.moved(second, op, self.number(first, x.x.at), x.at)
        if isinstance(first, Tuple) or isinstance(second, Tuple):
            return self.elementwise(op, first, second, x)
        a, b = self.number(first, x.x.at), self.number(second, x.y.at)
        found = self.rules.binary(op, a, b)
        if found is None:
            self.error(x.at, f"`{op}` is not for {a.expression.dtype.name} and {b.expression.dtype.name}.")
        return found

    def elementwise(self, op: str, first: Any, second: Any, x: s.Binary) -> Tuple:
        size = len(first.parts) if isinstance(first, Tuple) else len(second.parts)
        a = first.parts if isinstance(first, Tuple) else (self.number(first, x.x.at),) * size
        b = second.parts if isinstance(second, Tuple) else (self.number(second, x.y.at),) * size
        if len(a) != len(b):
            self.error(x.at, f"vectors of {len(a)} and {len(b)} numbers.")
        parts = [self.rules.binary(op, p, q) for p, q in zip(a, b, strict=True)]
        if any(part is None for part in parts):
            self.error(x.at, f"`{op}` is not for these vectors.")
        return Tuple(tuple(parts))  # type: ignore[arg-type]

    def moved(self, address: Address, op: str, by: Value, at: At) -> Address:
        if by.expression.dtype.is_float:
            self.error(at, f"an address is moved by whole elements, not by {by.expression.dtype.name}.")
        step = self.cast(by.expression, dt.int64)
        if address.sizes[1:]:
            inner = 1
            for n in address.sizes[1:]:
                inner *= n
            step = rules.operation("mul", dt.int64, step, int64(inner))
        index = rules.operation("add" if op == "+" else "sub", dt.int64, address.index, step)
        return Address(address.storage, index, address.sizes)

    def logic(self, x: s.Binary) -> Value:
        """&& and ||: the second operand is evaluated only where it counts."""
        first = self.truth(x.x)
        if isinstance(first, tree.Constant) and bool(first.value) == (x.op == "||"):
            return Value(first)
        with self.collected() as inside:
            second = self.truth(x.y)
        if isinstance(first, tree.Constant):
            self.out.extend(inside)
            return Value(second)
        if not inside and not rules.can_fail(second):
            return Value(tree.Operation(dt.bool_, "and" if x.op == "&&" else "or", (first, second)))
        result = self.variable("both" if x.op == "&&" else "either", dt.bool_)
        self.write(tree.Assign(result, first, first=True))
        here = tree.Read(dt.bool_, result)
        test = here if x.op == "&&" else rules.operation("not", dt.bool_, here)
        self.write(tree.If(test, (*inside, tree.Assign(result, second))))
        return Value(here)

    def choice(self, x: s.Choice) -> Any:
        test = self.truth(x.test)
        if isinstance(test, tree.Constant):
            return self.expression(x.x if test.value else x.y)
        with self.collected() as then:
            a = self.expression(x.x)
        with self.collected() as other:
            b = self.expression(x.y)
        if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a.parts) == len(b.parts):
            self.out += then + other
            both = [self.rules.matched(p, q) for p, q in zip(a.parts, b.parts, strict=True)]
            return Tuple(tuple(Value(tree.Select(p.dtype, test, p, q)) for p, q, _ in both))
        if isinstance(a, Address) and isinstance(b, Address) and not (self._is_number(a) and self._is_number(b)):
            if a.storage is not b.storage or then or other:
                self.error(x.at, "a pointer points into one array; choose between elements instead.")
            return Address(a.storage, tree.Select(dt.int64, test, a.index, b.index))
        first, second, weak = self.rules.matched(self.number(a, x.x.at), self.number(b, x.y.at))
        if not then and not other and not rules.can_fail(first) and not rules.can_fail(second):
            return Value(tree.Select(first.dtype, test, first, second), weak)
        result = self.variable("chosen", first.dtype)
        self.write(tree.Assign(result, tree.Constant(first.dtype, 0), first=True))
        self.write(tree.If(test, (*then, tree.Assign(result, first)), (*other, tree.Assign(result, second))))
        return Value(tree.Read(first.dtype, result), weak)

    def member(self, x: s.Member) -> Any:
        if isinstance(x.x, s.Name):
            meaning = self.find(x.x.name, x.x.at)
            if isinstance(meaning, Address):
                return self._attribute(meaning, x)
        owner = self.expression(x.x)
        if isinstance(owner, Tuple):
            parts = [self._part(owner, letter, x) for letter in x.name]
            return parts[0] if len(parts) == 1 else Tuple(tuple(parts))
        return self.error(x.at, f"this has no `{x.name}`.")

    def _part(self, owner: Tuple, letter: str, x: s.Member) -> Value:
        place = "xyzw".find(letter) if letter in "xyzw" else "rgba".find(letter)
        if not 0 <= place < len(owner.parts):
            self.error(x.at, f"a vector of {len(owner.parts)} numbers has no `{x.name}`.")
        return owner.parts[place]

    def _attribute(self, owner: Address, x: s.Member) -> Any:
        storage = owner.storage
        if self.source.language == "python" and storage.space in ("input", "output"):
            if x.name in ("shape", "strides"):
                return Sizes(storage, x.name)
            if x.name == "size":
                return Value(tree.Size(dt.int64, storage, "size", None))
            if x.name == "ndim":
                return self.rules.literal(storage.ndim, "")
        return self.error(x.at, f"`{storage.name}` has no `{x.name}`.")

    # ---- places ----

    def place(self, x: s.Expression) -> Any:
        """What an expression stands for, if it can be assigned or pointed at: an address, or a variable."""
        if isinstance(x, s.Name):
            return self.find(x.name, x.at)
        if isinstance(x, s.Index):
            return self.indexed(x)
        if isinstance(x, s.Unary) and x.op == "*":
            target = self.expression(x.x)
            if isinstance(target, Address):
                return Address(target.storage, target.index)
        if isinstance(x, s.Member):
            owner = self.place(x.x)
            if isinstance(owner, KeptTuple) and len(x.name) == 1:
                place = "xyzw".find(x.name)
                if 0 <= place < len(owner.variables):
                    return Kept(owner.variables[place])
        return self.error(x.at, "this cannot be assigned.")

    def indexed(self, x: s.Index) -> Any:
        base = self.expression(x.x) if not isinstance(x.x, s.Name) else self.find(x.x.name, x.x.at)
        if isinstance(base, Sizes):
            return self._size(base, x)
        if isinstance(base, KeptTuple) and len(x.indices) == 1:
            k = self.constant_integer(x.indices[0], "which number of a vector")
            if 0 <= k < len(base.variables):
                return Kept(base.variables[k])
        if isinstance(base, Tuple) and len(x.indices) == 1:
            k = self.constant_integer(x.indices[0], "which number of a vector")
            if 0 <= k < len(base.parts):
                return base.parts[k]
        if not isinstance(base, Address):
            self.error(x.at, "only arrays are indexed.")
        indices = [self.integer(i).expression for i in x.indices]
        if base.sizes:
            return self._element(base, indices, x)
        if len(indices) == 1:
            return Address(base.storage, rules.operation("add", dt.int64, base.index, indices[0]))
        storage = base.storage
        if not base.whole or len(indices) != storage.ndim:
            self.error(x.at, f"`{storage.name}` has {storage.ndim} axes; give one index for each, or one for all.")
        return self._along_axes(storage, indices, x)

    def _size(self, base: Sizes, x: s.Index) -> Value:
        if len(x.indices) != 1:
            self.error(x.at, "sizes have one index.")
        k = self.integer(x.indices[0]).expression
        n = base.storage.ndim
        if isinstance(k, tree.Constant):
            number = int(k.value) + (n if int(k.value) < 0 and self.source.language == "python" else 0)
            if not 0 <= number < n:
                self.error(x.at, f"`{base.storage.name}` has {n} axes; there is no axis {k.value}.")
            k = int64(number)
        size = tree.Size(dt.int64, base.storage, base.what, k, x.at)
        return Value(self.cast(size, self.rules.sizes[base.what]))

    def _element(self, base: Address, indices: Sequence[tree.Expression], x: s.Index) -> Address:
        """Into an array of the kernel's own: one index for each axis, in one or several pairs of brackets."""
        if len(indices) > len(base.sizes):
            self.error(x.at, f"`{base.storage.name}` has {len(base.sizes)} axes here.")
        index, left = base.index, list(base.sizes)
        for i in indices:
            left.pop(0)
            step = 1
            for n in left:
                step *= n
            index = rules.operation("add", dt.int64, index, rules.operation("mul", dt.int64, i, int64(step)))
        return Address(base.storage, index, tuple(left))

    def _along_axes(self, storage: tree.Storage, indices: Sequence[tree.Expression], x: s.Index) -> Address:
        """x[i, j]: an index that is not within its axis makes the whole one to be outside."""
        strides = "strides" if storage.space == "input" else "rows"
        index: tree.Expression = int64(0)
        inside: tree.Expression | None = None
        for axis, i in enumerate(indices):
            place = int64(axis)
            size = tree.Size(dt.int64, storage, "shape", place)
            ok = tree.Operation(dt.bool_, "ult", (i, size))
            inside = ok if inside is None else tree.Operation(dt.bool_, "and", (inside, ok))
            step = tree.Size(dt.int64, storage, strides, place)
            index = rules.operation("add", dt.int64, index, tree.Operation(dt.int64, "mul", (i, step)))
        assert inside is not None
        return Address(storage, tree.Operation(dt.int64, "within", (inside, index)))

    # ---- assignments ----

    def assign(self, x: s.Assignment) -> Any:
        value: Any
        if x.op == "=":
            value = self.expression(x.value)
            place = self.place(x.target)
        else:
            place = self.place(x.target)
            old = self._held(place, x.target.at)
            at = len(self.out)
            other = self.expression(x.value)
            if len(self.out) > at and isinstance(old, Value):
                kept = self.variable("kept", old.expression.dtype)
                self.out.insert(at, tree.Assign(kept, old.expression, first=True))
                old = Value(tree.Read(kept.dtype, kept))
            value = self.combined(x.op, old, other, s.Binary(x.at, x.op, x.target, x.value))
        return self.put(place, value, x.target, x.at)

    def _held(self, place: Any, at: At) -> Any:
        if isinstance(place, Address) and (place.variable is not None or place.whole):
            return place
        if isinstance(place, KeptTuple):
            return Tuple(tuple(Value(tree.Read(v.dtype, v)) for v in place.variables))
        return self.load(place, at) if isinstance(place, Address) else self.number(place, at)

    def put(self, place: Any, value: Any, target: s.Expression, at: At) -> Any:
        """Assign to a place; gives what it holds then."""
        if isinstance(place, Kept):
            return self._put_variable(place, value, target, at)
        if isinstance(place, KeptTuple):
            parts = value.parts if isinstance(value, Tuple) else (self.number(value, at),) * len(place.variables)
            if len(parts) != len(place.variables):
                self.error(at, f"vectors of {len(place.variables)} and {len(parts)} numbers.")
            values = [self.cast(self.rules.strong(p), v.dtype) for p, v in zip(parts, place.variables, strict=True)]
            parts_of = [self.variable("part", v.dtype) for v in values]
            for kept, expression in zip(parts_of, values, strict=True):
                self.write(tree.Assign(kept, expression, first=True))
            for variable, kept in zip(place.variables, parts_of, strict=True):
                self.write(tree.Assign(variable, tree.Read(kept.dtype, kept)))
            return Tuple(tuple(Value(tree.Read(v.dtype, v)) for v in place.variables))
        if not isinstance(place, Address) or place.sizes:
            self.error(at, "this cannot be assigned.")
        if isinstance(value, Address) and not self._is_number(value):
            return self._put_address(place, value, target, at)
        if place.variable is not None or place.whole:
            name = target.name if isinstance(target, s.Name) else "this"
            self.error(at, f"`{name}` is an array: assign an element of it.")
        if place.storage.space == "input":
            self.error(at, f"`{place.storage.name}` is an input; kernels write to their outputs.")
        number = self.number(value, at)
        expression = self.cast(number.expression, place.storage.dtype)
        if not isinstance(expression, tree.Constant | tree.Read):
            kept = self.variable("stored", expression.dtype)
            self.write(tree.Assign(kept, expression, first=True))
            expression = tree.Read(kept.dtype, kept)
        self.write(tree.Store(place.storage, place.index, expression, at))
        return Value(expression)

    def _put_variable(self, place: Kept, value: Any, target: s.Expression, at: At) -> Value:
        name = target.name if isinstance(target, s.Name) else place.variable.name
        if place.constant:
            self.error(at, f"`{name}` does not change: it is constant, or counts a loop.")
        number = self.number(value, at)
        kind = place.variable.dtype
        if place.guessed is not None:
            joined = self.joined(place.guessed, number)
            if joined is not kind:
                raise Again
        self.write(tree.Assign(place.variable, self.cast(number.expression, kind)))
        return Value(tree.Read(kind, place.variable))

    def _put_address(self, place: Address, value: Address, target: s.Expression, at: At) -> Address:
        if not isinstance(target, s.Name) or value.storage is not place.storage or value.sizes:
            self.error(at, "a pointer stays within the array that it was declared with.")
        if place.variable is not None:
            self.write(tree.Assign(place.variable, value.index))
            return place
        self.guesses["moves", place.storage.name] = dt.int64  # its name is a variable, from the beginning on
        raise Again

    def step(self, x: s.Step) -> Any:
        place = self.place(x.target)
        one = self.rules.literal(1, "")
        old = self._held(place, x.target.at)
        if x.after and isinstance(old, Value):
            kept = self.variable("before", old.expression.dtype)
            self.write(tree.Assign(kept, old.expression, first=True))
            before: Any = Value(tree.Read(kept.dtype, kept))
        elif x.after and isinstance(old, Address):
            kept = self.variable("before", dt.int64)
            self.write(tree.Assign(kept, old.index, first=True))
            before = Address(old.storage, tree.Read(dt.int64, kept))
        else:
            before = None
        value = self.combined(x.op[0], old, one, s.Binary(x.at, x.op[0], x.target, s.Number(x.at, 1)))
        after = self.put(place, value, x.target, x.at)
        return before if x.after else after
