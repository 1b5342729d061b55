"""Structs and vectors of kernels in memory: how large they are, where their fields lie, what reading one means.

In arrays of the kernel's own each field has a storage of its own, element after element. Where a pointer to operands is
made one to structs or vectors, fields lie as C lays them out, and are read through views of the operand's memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.meanings import (
    MOST_MEMORY,
    Address,
    Elements,
    Field,
    Kept,
    KeptRecord,
    KeptTuple,
    Leaf,
    Names,
    Record,
    StructType,
    Tuple,
    int64,
)
from weft.kernels.rules import Value, VectorType
from weft.kernels.syntax import At


class Structs(Names):
    """Types of several numbers, and variables and memory of them."""

    def value(self, x: s.Expression) -> Value:
        raise NotImplementedError

    # ---- types ----

    def struct_type(self, x: s.TypeName) -> StructType:
        source = self.structs[x.name]
        scope = self.template_scope(source.generics, x.parameters, x.name, x.at)
        missing = [x.name for x in source.generics if x.name not in scope and x.default is None]
        if missing:
            self.error(x.at, f"`{x.name}` needs its template parameters: {', '.join(missing)}.")
        self.defaults(source.generics, scope, x.name, x.at)
        key = (x.name, tuple(_key(argument) for argument in scope.values()))
        found = self._struct_types.get(key)
        if found is None:
            found = self._made_struct(source, scope)
            self._struct_types[key] = found
        return found

    def template_scope(
        self, generics: Sequence[s.Generic], given: Sequence[s.TypeName | s.Expression], name: str, at: At
    ) -> dict[str, Any]:
        """What template parameters stand for, as far as angle brackets and defaults say it."""
        if len(given) > len(generics):
            self.error(at, f"`{name}` takes {len(generics)} template parameters; got {len(given)}.")
        known: dict[str, Any] = {}
        for k, generic in enumerate(generics):
            if k < len(given):
                known[generic.name] = self.template_argument(generic, given[k], name, at)
        return known

    def template_argument(self, generic: s.Generic, given: s.TypeName | s.Expression, name: str, at: At) -> Any:
        if generic.is_type:
            if isinstance(given, s.Name):
                given = s.TypeName(given.at, given.name)
            if not isinstance(given, s.TypeName) or given.pointer:
                self.error(at, f"`{generic.name}` of `{name}` is a type.")
            return self.type(given)
        if isinstance(given, s.TypeName):
            given = s.Name(given.at, given.name)
        found = self.value(given)
        if not isinstance(found.expression, tree.Constant):
            self.error(at, f"`{generic.name}` of `{name}` is known when the kernel is compiled.")
        return found

    def defaults(self, generics: Sequence[s.Generic], known: dict[str, Any], name: str, at: At) -> None:
        """Template parameters that nothing told have their defaults."""
        for generic in generics:
            if generic.name not in known and generic.default is not None:
                outer, self.scopes = self.scopes, [*self.scopes, known]
                known[generic.name] = self.template_argument(generic, generic.default, name, at)
                self.scopes = outer

    def _made_struct(self, source: s.Struct, scope: dict[str, Any]) -> StructType:
        outer = self.scopes
        self.scopes = [outer[0], *outer[1:2], scope]
        if len(self._inside) > 16:
            self.error(source.at, f"the struct `{source.name}` is nested too deeply.")
        self._inside.append(source.name)
        for constant in source.constants:
            if constant.value is None or constant.sizes:
                self.error(constant.at, f"`{constant.name}`: static fields are constants with a value.")
            found = self.value(constant.value)
            kind = None if constant.type is None or constant.type.name == "auto" else self.type(constant.type)
            if isinstance(kind, Dtype):
                found = Value(rules.cast(found.expression, kind))
            scope[constant.name] = found
        fields = []
        for x in source.fields:
            if x.type is None or x.type.name == "auto":
                self.error(x.at, f"the field `{x.name}` needs a type.")
            if x.type.pointer or x.type.reference:
                self.error(x.at, f"the field `{x.name}` is a pointer; those are not supported in structs of kernels.")
            if x.type.name == source.name:
                self.error(x.at, f"the struct `{source.name}` holds itself.")
            kind = self.type(x.type)
            sizes = tuple(self.constant_integer(size, f"the size of `{x.name}`") for size in x.sizes)
            if any(n < 1 for n in sizes) or math.prod(sizes) > MOST_MEMORY:
                self.error(x.at, f"the field `{x.name}` has {math.prod(sizes)} elements.")
            if sizes and isinstance(kind, StructType):
                self.error(x.at, f"`{x.name}`: arrays of structs inside of structs are not supported in kernels.")
            fields.append(Field(x.name, kind, sizes, x.value))
        self._inside.pop()
        self.scopes = outer
        return StructType(source.name, tuple(fields), source, scope)

    def begins(self, kind: Any) -> bool:
        """Whether a struct has something to do where it is declared: a constructor, or defaults of its fields."""
        if not isinstance(kind, StructType):
            return False
        made = any(f.name == kind.source.name for f in kind.source.functions)
        return made or any(field.default is not None or self.begins(field.type) for field in kind.fields)

    def layout(self, kind: Any) -> tuple[int, int]:
        """(bytes of a type, its alignment)."""
        if isinstance(kind, Dtype):
            return kind.size, kind.size
        if isinstance(kind, VectorType):
            whole = kind.step * kind.dtype.size
            return whole, whole if kind.step != 3 else kind.dtype.size
        end, widest = 0, 1
        for field in kind.fields:
            size, align = self.layout(field.type)
            end = -(-end // align) * align + size * math.prod(field.sizes)
            widest = max(widest, align)
        return -(-end // widest) * widest, widest

    # ---- memory ----

    def memory(self, name: str, kind: Any, sizes: tuple[int, ...], space: str, at: At) -> Address | Elements:
        """An array of a thread or a threadgroup, which begins with zeros."""
        total = math.prod(sizes)
        if any(n < 1 for n in sizes) or total * self.layout(kind)[0] > MOST_MEMORY:
            most = MOST_MEMORY // max(1, self.layout(kind)[0])
            self.error(at, f"`{name}` has {total} elements; arrays of kernels have 1 to {most}.")
        if isinstance(kind, Dtype):
            return Address(self._own(name, kind, space, total), int64(0), sizes)
        return Elements(kind, self._leaves(name, kind, space, total), int64(0), sizes)

    def _own(self, name: str, dtype: Dtype, space: str, total: int) -> tree.Storage:
        storage = self.storage(name, dtype, space, total)
        if space == "thread":
            self.write(tree.Clear(storage))
        return storage

    def _leaves(self, name: str, kind: Any, space: str, total: int) -> tuple[Any, ...]:
        if isinstance(kind, VectorType):
            return (Leaf(self._own(name, kind.dtype, space, total * kind.step), int64(0), kind.step),)
        found: list[Any] = []
        for field in kind.fields:
            label, count = f"{name}.{field.name}", math.prod(field.sizes)
            if isinstance(field.type, StructType):
                found.append(self._leaves(label, field.type, space, total))
                continue
            vector = isinstance(field.type, VectorType)
            step = count * (field.type.step if vector else 1)
            dtype = field.type.dtype if vector else field.type
            found.append(Leaf(self._own(label, dtype, space, total * step), int64(0), step))
        return tuple(found)

    def reinterpreted(self, given: Address | Elements, kind: Any, at: At) -> Address | Elements:
        """A pointer to the same memory, as elements of another type."""
        if isinstance(given, Elements):
            step = isinstance(kind, VectorType) and isinstance(given.type, VectorType) and kind.step == given.type.step
            if given.type is kind or (step and given.type == kind):
                return Elements(kind, given.leaves, given.index)
            if not isinstance(given.type, VectorType):
                self.error(at, f"a pointer to `{given.type.name}` is not made one to another type.")
            (leaf,) = given.leaves
            given = Address(leaf.storage, self._leaf_index(leaf, given.index))
        storage = given.storage
        if isinstance(kind, Dtype):
            if kind is storage.dtype:
                return Address(storage, given.index, (), given.variable, given.whole)
            return Address(self.view(storage, kind, at), self.scaled(given.index, storage.dtype.size, kind.size, at))
        if isinstance(kind, VectorType):
            view = self.view(storage, kind.dtype, at)
            base = self.scaled(given.index, storage.dtype.size, kind.dtype.size, at)
            return Elements(kind, (Leaf(view, base, kind.step),), int64(0))
        if not isinstance(kind, StructType):
            self.error(at, "a pointer points at numbers, vectors or structs.")
        return Elements(kind, self._laid_out(given, kind, 0, self.layout(kind)[0], at), int64(0))

    def _laid_out(self, given: Address, kind: StructType, begin: int, whole: int, at: At) -> tuple[Any, ...]:
        """The leaves of structs that lie in memory as C lays them out."""
        found: list[Any] = []
        end = begin
        for field in kind.fields:
            size, align = self.layout(field.type)
            start = -(-end // align) * align
            end = start + size * math.prod(field.sizes)
            if isinstance(field.type, StructType):
                found.append(self._laid_out(given, field.type, start, whole, at))
                continue
            dtype = field.type.dtype if isinstance(field.type, VectorType) else field.type
            view = self.view(given.storage, dtype, at)
            base = self.scaled(given.index, given.storage.dtype.size, dtype.size, at)
            base = rules.operation("add", dt.int64, base, int64(start // dtype.size))
            found.append(Leaf(view, base, whole // dtype.size))
        return tuple(found)

    def scaled(self, index: tree.Expression, old: int, new: int, at: At) -> tree.Expression:
        """An index in elements of another size. One between two elements is outside of the array."""
        if old >= new:
            return rules.operation("mul", dt.int64, index, int64(old // new))
        ratio = new // old
        if isinstance(index, tree.Constant):
            if int(index.value) % ratio:
                self.error(at, f"this pointer is not aligned: it is {index.value} elements of {old} bytes behind.")
            return int64(int(index.value) // ratio)
        even = rules.operation("eq", dt.bool_, rules.operation("and", dt.int64, index, int64(ratio - 1)), int64(0))
        fits = rules.operation("shr", dt.int64, index, int64(ratio.bit_length() - 1))
        return tree.Operation(dt.int64, "within", (even, fits))

    # ---- elements ----

    def _leaf_index(self, leaf: Leaf, index: tree.Expression) -> tree.Expression:
        more = rules.operation("mul", dt.int64, index, int64(leaf.step))
        return rules.operation("add", dt.int64, leaf.base, more)

    def component(self, x: Elements, k: int) -> Address:
        """Number k of a vector in memory."""
        (leaf,) = x.leaves
        index = rules.operation("add", dt.int64, self._leaf_index(leaf, x.index), int64(k))
        return Address(leaf.storage, index)

    def field(self, x: Elements, k: int) -> Address | Elements:
        """Field k of a struct in memory."""
        field, leaf = x.type.fields[k], x.leaves[k]
        if isinstance(field.type, StructType):
            return Elements(field.type, _moved(leaf, x.index, self._leaf_index), int64(0), (), None, True)
        base = self._leaf_index(leaf, x.index)
        if isinstance(field.type, VectorType):
            inner = Leaf(leaf.storage, base, field.type.step)
            return Elements(field.type, (inner,), int64(0), field.sizes, None, not field.sizes)
        return Address(leaf.storage, base, field.sizes)

    def parts(self, x: Elements) -> list[Any]:
        """The places of the numbers of a vector, or of the fields of a struct."""
        if isinstance(x.type, VectorType):
            return [self.component(x, k) for k in range(x.type.size)]
        return [self.field(x, k) for k in range(len(x.type.fields))]

    # ---- variables ----

    def keep(self, name: str, kind: Any, sizes: tuple[int, ...], at: At) -> Any:
        """A variable of a type, of which nothing is said yet; an array of it."""
        if sizes:
            return self.memory(name, kind, sizes, "thread", at)
        if isinstance(kind, VectorType):
            letters = "xyzw"[: kind.size]
            return KeptTuple(tuple(self._kept(f"{name}.{letter}", kind.dtype) for letter in letters))
        if isinstance(kind, StructType):
            return KeptRecord(
                kind, tuple(self.keep(f"{name}.{field.name}", field.type, field.sizes, at) for field in kind.fields)
            )
        return Kept(self._kept(name, kind))

    def _kept(self, name: str, dtype: Dtype) -> tree.Variable:
        made = self.variable(name, dtype)
        self.write(tree.Assign(made, tree.Constant(dtype, 0), True, True))
        return made

    def nothing(self, kind: Any, at: At) -> Any:
        """Zeros of a type."""
        if isinstance(kind, VectorType):
            return Tuple((Value(tree.Constant(kind.dtype, 0)),) * kind.size)
        if isinstance(kind, StructType):
            return Record(kind, tuple(None if field.sizes else self.nothing(field.type, at) for field in kind.fields))
        return Value(tree.Constant(kind, 0))


def _key(argument: Any) -> Any:
    """A template parameter, as far as it tells types apart."""
    if isinstance(argument, Value):
        assert isinstance(argument.expression, tree.Constant)
        return argument.expression.value
    return argument


def _moved(leaves: Sequence[Any], index: tree.Expression, at: Any) -> tuple[Any, ...]:
    return tuple(
        _moved(leaf, index, at) if isinstance(leaf, tuple) else Leaf(leaf.storage, at(leaf, index), leaf.step)
        for leaf in leaves
    )
