"""Places of a kernel: what can be read, assigned or pointed at, with types. Expressions without a place are values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.meanings import (
    Address,
    Again,
    Alias,
    Closure,
    Elements,
    Kept,
    KeptRecord,
    KeptTuple,
    Part,
    Places,
    Pointer,
    Record,
    Sizes,
    StructType,
    Tuple,
    int64,
)
from weft.kernels.rules import Value, VectorType
from weft.kernels.structs import Structs
from weft.kernels.syntax import At

WHAT: Final = {
    Address: "an array", Elements: "an array", Tuple: "a vector", KeptTuple: "a vector", Sizes: "sizes",
    Record: "a struct", KeptRecord: "a struct", Pointer: "a pointer", Closure: "a function", s.Function: "a function",
    StructType: "a type", VectorType: "a type",
}  # fmt: skip
_LETTERS: Final = ("xyzw", "rgba")


class PlaceRules(Structs):
    """Reads and assigns places."""

    def expression(self, x: s.Expression) -> Any:
        raise NotImplementedError

    def constant_integer(self, x: s.Expression, what: str) -> int:
        raise NotImplementedError

    def integer(self, x: s.Expression) -> Value:
        raise NotImplementedError

    def converted(self, value: Any, kind: Any, at: At) -> Any:
        raise NotImplementedError

    def method(self, owner: Any, name: str, arguments: Sequence[s.Expression], x: s.Expression) -> Any:
        raise NotImplementedError

    def cast(self, x: tree.Expression, dtype: Dtype) -> tree.Expression:
        return rules.cast(x, dtype)

    # ---- numbers ----

    def is_number(self, meaning: Address) -> bool:
        """Whether an address stands for the element there: that of an operand without axes."""
        plain = meaning.variable is None and not meaning.sizes and not meaning.whole
        return plain and meaning.storage.space == "input" and meaning.storage.ndim == 0 and meaning.storage.of is None

    def is_address(self, meaning: Any) -> bool:
        """Whether it is an array or a pointer."""
        if isinstance(meaning, Elements):
            return not meaning.one
        return isinstance(meaning, Address) and not self.is_number(meaning)

    def number(self, meaning: Any, at: At) -> Value:
        if isinstance(meaning, Value):
            return meaning
        if isinstance(meaning, Kept):
            return Value(tree.Read(meaning.variable.dtype, meaning.variable))
        if isinstance(meaning, Address) and self.is_number(meaning):
            return Value(tree.Load(meaning.storage.dtype, meaning.storage, meaning.index, at))
        if isinstance(meaning, Tuple) and len(meaning.parts) == 1:
            return meaning.parts[0]
        what = "a type" if isinstance(meaning, Dtype) else WHAT.get(type(meaning), "a name")
        return self.error(at, f"a number is needed here, and this is {what}.")

    def pinned(self, value: Any, at: int) -> Any:
        """A value that was read before statement number `at`, which may change it: it is kept in variables."""
        if isinstance(value, Value):
            if isinstance(value.expression, tree.Constant):
                return value
            kept = self.variable("kept", value.expression.dtype)
            self.out.insert(at, tree.Assign(kept, value.expression, first=True))
            return Value(tree.Read(kept.dtype, kept), value.weak)
        if isinstance(value, Tuple):
            return Tuple(tuple(self.pinned(part, at) for part in value.parts))
        if isinstance(value, Record):
            return Record(value.type, tuple(self.pinned(part, at) for part in value.parts))
        if isinstance(value, Address) and not isinstance(value.index, tree.Constant):
            index = self.pinned(Value(value.index), at).expression
            return Address(value.storage, index, value.sizes, None, value.whole)
        if isinstance(value, Elements) and not isinstance(value.index, tree.Constant):
            index = self.pinned(Value(value.index), at).expression
            return Elements(value.type, value.leaves, index, value.sizes, None, value.one)
        return value

    # ---- reading ----

    def read(self, place: Any, at: At) -> Any:
        """What a place holds. Arrays and pointers are what they are."""
        match place:
            case Alias(inner):
                return self.read(inner, at)
            case Kept():
                return self.number(place, at)
            case KeptTuple(variables):
                return Tuple(tuple(Value(tree.Read(v.dtype, v)) for v in variables))
            case KeptRecord(kind, places):
                return Record(kind, tuple(self.read(p, at) for p in places))
            case Places(parts):
                return Tuple(tuple(self.number(self.read(p, at), at) for p in parts))
            case Part(of, index):
                return self._number_at(of, index)
            case Address() if not place.sizes and not place.whole and place.variable is None:
                return Value(tree.Load(place.storage.dtype, place.storage, place.index, at))
            case Elements() if place.one:
                parts = tuple(self.read(p, at) for p in self.parts(place))
                return Tuple(parts) if isinstance(place.type, VectorType) else Record(place.type, parts)
        return place

    def _number_at(self, of: KeptTuple, index: tree.Expression) -> Value:
        first = of.variables[0]
        found: tree.Expression = tree.Read(first.dtype, first)
        for k, v in enumerate(of.variables[1:], 1):
            test = rules.operation("eq", dt.bool_, index, int64(k))
            found = tree.Select(v.dtype, test, tree.Read(v.dtype, v), found)
        return Value(found)

    # ---- places ----

    def place(self, x: s.Expression) -> Any:
        """What an expression stands for, if it can be assigned or pointed at: an address, or a variable."""
        if isinstance(x, s.Name):
            found = self.find(x.name, x.at)
            return found.place if isinstance(found, Alias) else found
        if isinstance(x, s.Index):
            return self.indexed(x)
        if isinstance(x, s.Unary) and x.op == "*":
            return self.pointed(self.expression(x.x), x.at)
        if isinstance(x, s.Member):
            return self.member(x)
        return self.error(x.at, "this cannot be assigned.")

    def owner(self, x: s.Expression) -> Any:
        """What something is a part of: a place if it has one, or a value."""
        if isinstance(x, s.Name | s.Index | s.Member) or (isinstance(x, s.Unary) and x.op == "*"):
            return self.place(x)
        return self.expression(x)

    def pointed(self, target: Any, at: At) -> Any:
        """What a pointer points at."""
        if isinstance(target, Pointer):
            return target.place
        if isinstance(target, Address) and not self.is_number(target):
            return Address(target.storage, target.index, target.sizes[1:])
        if isinstance(target, Elements) and not target.one:
            return Elements(target.type, target.leaves, target.index, target.sizes[1:], None, not target.sizes[1:])
        return self.error(at, "only pointers have something that they point at.")

    def pointer_to(self, place: Any, at: At) -> Any:
        """&place"""
        if isinstance(place, Address):
            return place
        if isinstance(place, Elements):
            return Elements(place.type, place.leaves, place.index, place.sizes)
        if isinstance(place, Kept | KeptTuple | KeptRecord):
            return Pointer(place)
        return self.error(at, "this has no address.")

    def member(self, x: s.Member) -> Any:
        """A field of a struct, numbers of a vector, or an attribute: a place where that can be assigned."""
        if isinstance(x.x, s.TypeValue):
            return self._static(x, x.x)
        owner = self.owner(x.x)
        if isinstance(owner, Pointer):
            owner = owner.place
        if isinstance(owner, Address):
            return self._attribute(owner, x)
        if isinstance(owner, Elements) and not owner.one:
            owner = self.pointed(owner, x.at)
        if isinstance(owner, KeptRecord | Record) or (
            isinstance(owner, Elements) and isinstance(owner.type, StructType)
        ):
            return self._field(owner, x)
        if isinstance(owner, Tuple | KeptTuple | Places | Elements):
            return self._swizzled(owner, x)
        if isinstance(owner, Kept | Value) and self.source.language != "python" and x.name in ("x", "r"):
            return owner
        return self.error(x.at, f"this has no `{x.name}`.")

    def _static(self, x: s.Member, owner: s.TypeValue) -> Any:
        kind = self.type(owner.type)
        found = kind.scope.get(x.name) if isinstance(kind, StructType) else None
        if found is None:
            self.error(x.at, f"`{owner.type.name}` has no `{x.name}`.")
        return found

    def _field(self, owner: Any, x: s.Member) -> Any:
        k = owner.type.place(x.name)
        if k < 0:
            constant = owner.type.scope.get(x.name)
            if constant is None:
                self.error(x.at, f"`{owner.type.name}` has no field `{x.name}`.")
            return constant
        if isinstance(owner, Elements):
            return self.field(owner, k)
        return owner.places[k] if isinstance(owner, KeptRecord) else owner.parts[k]

    def _swizzled(self, owner: Any, x: s.Member) -> Any:
        size = owner.type.size if isinstance(owner, Elements) else len(_numbers(owner))
        letters = next((one for one in _LETTERS if set(x.name) <= set(one)), "")
        if not letters or any(letters.find(letter) >= size for letter in x.name) or len(x.name) > 4:
            self.error(x.at, f"a vector of {size} numbers has no `{x.name}`.")
        chosen = [letters.find(letter) for letter in x.name]
        parts: list[Any]
        if isinstance(owner, Elements):
            parts = [self.component(owner, k) for k in chosen]
        elif isinstance(owner, KeptTuple):
            parts = [Kept(owner.variables[k]) for k in chosen]
        else:
            parts = [owner.parts[k] for k in chosen]
        if len(parts) == 1:
            return parts[0]
        return Tuple(tuple(parts)) if isinstance(owner, Tuple) else Places(tuple(parts))

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

    # ---- indices ----

    def indexed(self, x: s.Index) -> Any:
        base = self.owner(x.x)
        if isinstance(base, Alias):
            base = base.place
        if isinstance(base, Sizes):
            return self._size(base, x)
        if isinstance(base, Pointer):
            if self.constant_integer(x.indices[0], "the index of a variable's address") != 0:
                self.error(x.at, "a pointer to a variable points at that alone: its index is 0.")
            return base.place
        if isinstance(base, KeptTuple | Tuple) or (isinstance(base, Elements) and base.one):
            return self._component(base, x)
        if isinstance(base, KeptRecord | Record):
            return self.method(base, "operator[]", x.indices, x)
        if isinstance(base, Elements):
            return self._of_elements(base, x)
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

    def _component(self, base: Any, x: s.Index) -> Any:
        """v[k] of a vector."""
        if isinstance(base, Elements) and isinstance(base.type, StructType):
            return self.method(base, "operator[]", x.indices, x)
        if len(x.indices) != 1:
            self.error(x.at, "a vector has one index.")
        k = self.integer(x.indices[0]).expression
        size = base.type.size if isinstance(base, Elements) else len(_numbers(base))
        if isinstance(k, tree.Constant) and not 0 <= int(k.value) < size:
            self.error(x.at, f"a vector of {size} numbers has no number {k.value}.")
        if isinstance(base, Elements):
            if isinstance(k, tree.Constant):
                return self.component(base, int(k.value))
            first = self.component(base, 0)
            inside = tree.Operation(dt.bool_, "ult", (k, int64(size)))
            index = rules.operation("add", dt.int64, first.index, k)
            return Address(first.storage, tree.Operation(dt.int64, "within", (inside, index)))
        if isinstance(k, tree.Constant):
            number = int(k.value)
            return Kept(base.variables[number]) if isinstance(base, KeptTuple) else base.parts[number]
        if isinstance(base, KeptTuple):
            return Part(base, k)
        found = self.rules.strong(base.parts[0])
        for n, part in enumerate(base.parts[1:], 1):
            test = rules.operation("eq", dt.bool_, k, int64(n))
            found = tree.Select(found.dtype, test, self.cast(self.rules.strong(part), found.dtype), found)
        return Value(found)

    def _of_elements(self, base: Elements, x: s.Index) -> Elements:
        """Into an array of vectors or structs."""
        index, left = base.index, list(base.sizes)
        for one in x.indices:
            i = self.integer(one).expression
            if left:
                left.pop(0)
            step = rules.operation("mul", dt.int64, i, int64(math.prod(left)))
            index = rules.operation("add", dt.int64, index, step)
        return Elements(base.type, base.leaves, index, tuple(left), None, not left)

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
            step = rules.operation("mul", dt.int64, i, int64(math.prod(left)))
            index = rules.operation("add", dt.int64, index, step)
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

    def moved(self, address: Address | Elements, op: str, by: Value, at: At) -> Address | Elements:
        if by.expression.dtype.is_float:
            self.error(at, f"an address is moved by whole elements, not by {by.expression.dtype.name}.")
        step = self.cast(by.expression, dt.int64)
        step = rules.operation("mul", dt.int64, step, int64(math.prod(address.sizes[1:])))
        index = rules.operation("add" if op == "+" else "sub", dt.int64, address.index, step)
        if isinstance(address, Elements):
            return Elements(address.type, address.leaves, index, address.sizes)
        return Address(address.storage, index, address.sizes)

    # ---- assignments ----

    def put(self, place: Any, value: Any, target: s.Expression, at: At) -> Any:
        """Assign to a place; gives what it holds then."""
        match place:
            case Alias(inner):
                return self.put(inner, value, target, at)
            case Kept():
                return self._put_variable(place, value, target, at)
            case KeptTuple(variables):
                kinds = [v.dtype for v in variables]
                return self._put_all([Kept(v) for v in variables], kinds, value, target, at)
            case Places(parts):
                if len({p.variable if isinstance(p, Kept) else (p.storage, p.index) for p in parts}) != len(parts):
                    self.error(at, "a vector has each of its numbers assigned once.")
                return self._put_all(list(parts), [_dtype(p) for p in parts], value, target, at)
            case Part(of, index):
                return self._put_part(of, index, value, at)
            case KeptRecord(kind, places):
                return self._put_record(kind, list(places), value, target, at)
            case Elements() if place.one:
                self._writable(place, at)
                inner = self.parts(place)
                if isinstance(place.type, VectorType):
                    return self._put_all(inner, [place.type.dtype] * len(inner), value, target, at)
                return self._put_record(place.type, inner, value, target, at)
            case Elements() | Address() if self.is_address(value):
                return self._put_address(place, value, target, at)
        if not isinstance(place, Address) or place.sizes:
            self.error(at, "this cannot be assigned.")
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

    def _writable(self, place: Elements, at: At) -> None:
        leaf: Any = place.leaves
        while isinstance(leaf, tuple):
            if not leaf:
                return
            leaf = leaf[0]
        if leaf.storage.space == "input":
            self.error(at, f"`{leaf.storage.name}` is an input; kernels write to their outputs.")

    def _put_all(self, places: Sequence[Any], kinds: Sequence[Dtype], value: Any, target: s.Expression, at: At) -> Any:
        """The numbers of a vector: all are computed, then all are assigned."""
        parts = value.parts if isinstance(value, Tuple) else (self.number(value, at),) * len(places)
        if len(parts) != len(places):
            self.error(at, f"vectors of {len(places)} and {len(parts)} numbers.")
        kept = []
        for part, kind in zip(parts, kinds, strict=True):
            expression = self.cast(self.rules.strong(part), kind)
            if not isinstance(expression, tree.Constant):
                variable = self.variable("part", kind)
                self.write(tree.Assign(variable, expression, first=True))
                expression = tree.Read(kind, variable)
            kept.append(Value(expression))
        for place, one in zip(places, kept, strict=True):
            self.put(place, one, target, at)
        return Tuple(tuple(kept))

    def _put_part(self, of: KeptTuple, index: tree.Expression, value: Any, at: At) -> Value:
        kind = of.variables[0].dtype
        kept = self.variable("part", kind)
        self.write(tree.Assign(kept, self.cast(self.number(value, at).expression, kind), first=True))
        which = self.variable("which", dt.int64)
        self.write(tree.Assign(which, index, first=True))
        new = tree.Read(kind, kept)
        for k, v in enumerate(of.variables):
            test = rules.operation("eq", dt.bool_, tree.Read(dt.int64, which), int64(k))
            self.write(tree.Assign(v, tree.Select(kind, test, new, tree.Read(kind, v))))
        return Value(new)

    def _put_record(self, kind: StructType, places: Sequence[Any], value: Any, target: s.Expression, at: At) -> Any:
        if not isinstance(value, Record):
            value = self.converted(value, kind, at)
        if value.type is not kind:
            self.error(at, f"a `{kind.name}` is needed here, and this is a `{value.type.name}`.")
        parts = [self.pinned(part, len(self.out)) for part in value.parts]
        for field, place, part in zip(kind.fields, places, parts, strict=True):
            if field.sizes:
                self.copy(place, part, field.sizes, at)
            else:
                self.put(place, part, target, at)
        return Record(kind, tuple(parts))

    def copy(self, place: Any, value: Any, sizes: Sequence[int], at: At) -> None:
        """All elements of an array that is a field: of another one, or zeros."""
        if value is not None and not isinstance(value, Address | Elements):
            self.error(at, "an array is given another array.")
        counter = self.variable("element", dt.int64)
        here = tree.Read(dt.int64, counter)

        def element(x: Any) -> Any:
            if isinstance(x, Elements):
                index = rules.operation("add", dt.int64, x.index, here)
                return Elements(x.type, x.leaves, index, (), None, True)
            return Address(x.storage, rules.operation("add", dt.int64, x.index, here))

        with self.collected() as body:
            target = element(place)
            kind = place.type if isinstance(place, Elements) else place.storage.dtype
            given = self.nothing(kind, at) if value is None else self.read(element(value), at)
            self.put(target, given, s.Name(at, "field"), at)
        self.write(
            tree.Loop(
                (tree.Assign(counter, int64(0), first=True),),
                (),
                tree.Operation(dt.bool_, "lt", (here, int64(math.prod(sizes)))),
                tuple(body),
                (tree.Assign(counter, tree.Operation(dt.int64, "add", (here, int64(1)))),),
            )
        )

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

    def _put_address(self, place: Any, value: Any, target: s.Expression, at: At) -> Any:
        if isinstance(place, Address) and place.variable is None and not place.whole and isinstance(value, Address):
            self.error(at, "a number is needed here, and this is an array.")
        stays = (
            isinstance(value, Address) and value.storage is place.storage
            if isinstance(place, Address)
            else isinstance(value, Elements) and value.leaves == place.leaves
        )
        if not isinstance(target, s.Name) or not stays or value.sizes:
            self.error(at, "a pointer stays within the array that it was declared with.")
        if place.variable is not None:
            self.write(tree.Assign(place.variable, value.index))
            return place
        if isinstance(place, Elements) or place.storage.of is not None:
            self.error(at, "an array is no pointer that can be moved.")
        self.guesses["moves", place.storage.name] = dt.int64  # its name is a variable, from the beginning on
        raise Again


def _numbers(x: Any) -> Sequence[Any]:
    return x.variables if isinstance(x, KeptTuple) else x.parts  # type: ignore[no-any-return]


def _dtype(place: Any) -> Dtype:
    return place.variable.dtype if isinstance(place, Kept) else place.storage.dtype  # type: ignore[no-any-return]
