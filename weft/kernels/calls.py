"""Calls in kernels: functions are written out where they are called. What threads do together is in `builtins`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.expressions import Expressions
from weft.kernels.meanings import (
    MOST_DEPTH,
    Address,
    Again,
    Alias,
    Closure,
    Elements,
    Kept,
    KeptRecord,
    KeptTuple,
    Meaning,
    Part,
    Places,
    Pointer,
    Record,
    Sizes,
    StructType,
    Tuple,
)
from weft.kernels.rules import Value, VectorType, rounded
from weft.kernels.syntax import At
from weft.kernels.walking import assigns


class Calls(Expressions):
    """Gives types to conversions and to calls of the kernel's own functions."""

    def block(self, body: Sequence[s.Statement]) -> None:
        raise NotImplementedError

    def builtin(self, x: s.Call, wanted: bool) -> Any:
        raise NotImplementedError

    # ---- conversions ----

    def convert(self, x: s.Convert) -> Any:
        if x.type.pointer:
            return self._pointer(x)
        if x.type.name == "auto" and len(x.arguments) == 1:
            return self.expression(x.arguments[0])
        kind = self.type(x.type)
        if isinstance(kind, StructType):
            return self.constructed(kind, x.arguments, x.at)
        given = self.in_order(x.arguments)
        if not given:
            return self.nothing(kind, x.at)
        if x.bits:
            return self._bits(given[0], kind, x)
        if isinstance(kind, VectorType):
            parts = [
                p
                for g, a in zip(given, x.arguments, strict=True)
                for p in (g.parts if isinstance(g, Tuple) else (self.number(g, a.at),))
            ]
            if len(parts) == 1:
                parts *= kind.size
            if len(parts) != kind.size:
                self.error(x.at, f"`{x.type.name}` has {kind.size} numbers, and is given {len(parts)}.")
            return self.converted(Tuple(tuple(parts)), kind, x.at)
        if len(given) != 1:
            self.error(x.at, f"`{x.type.name}` converts one number.")
        return Value(self.cast(self.number(given[0], x.arguments[0].at).expression, kind))

    def _pointer(self, x: s.Convert) -> Any:
        """A pointer to the same memory."""
        given = self.expression(x.arguments[0]) if len(x.arguments) == 1 else None
        if isinstance(given, Pointer):
            kind = None if x.type.name in ("void", "auto") else self.type(x.type)
            if kind is not None and kind != self.type_of(given.place):
                self.error(x.at, "the address of a variable keeps its type; convert its value (`as_type`).")
            return given
        if not isinstance(given, Address | Elements) or not self.is_address(given):
            self.error(x.at, "only pointers are made pointers to another type.")
        return given if x.type.name in ("void", "auto") else self.reinterpreted(given, self.type(x.type), x.at)

    def converted(self, value: Any, kind: Any, at: At) -> Any:
        """A value as one of a type, where that needs no word of the source."""
        if isinstance(value, s.Braces):
            return self._braced(value, kind)
        if isinstance(kind, StructType):
            if isinstance(value, Record) and value.type is kind:
                return value
            what = f"a `{value.type.name}`" if isinstance(value, Record) else "something else"
            self.error(at, f"a `{kind.name}` is needed here, and this is {what}.")
        if isinstance(kind, VectorType):
            parts = value.parts if isinstance(value, Tuple) else (self.number(value, at),) * kind.size
            if len(parts) != kind.size:
                self.error(at, f"{len(parts)} numbers where {kind.size} are needed.")
            return Tuple(tuple(Value(self.cast(self.rules.strong(p), kind.dtype)) for p in parts))
        if isinstance(value, Tuple) and len(value.parts) > 1:
            self.error(at, f"one number is needed here, and this is a vector of {len(value.parts)}.")
        made = self.cast(self.number(value, at).expression, kind)
        if isinstance(made, tree.Constant) and kind.is_float:
            made = tree.Constant(kind, rounded(float(made.value), kind))
        return Value(made)

    def _braced(self, x: s.Braces, kind: Any) -> Any:
        if isinstance(kind, StructType):
            return self.constructed(kind, x.items, x.at)
        given = self.in_order(x.items)
        if not given:
            return self.nothing(kind, x.at)
        if isinstance(kind, VectorType) and len(given) > 1:
            numbers = [self.number(g, a.at) for g, a in zip(given, x.items, strict=True)]
            if len(numbers) > kind.size:
                self.error(x.at, f"{len(numbers)} numbers where {kind.size} are needed.")
            zero = Value(tree.Constant(kind.dtype, 0))
            return self.converted(Tuple((*numbers, *([zero] * (kind.size - len(numbers))))), kind, x.at)
        if len(given) != 1:
            self.error(x.at, f"one number is needed here, and these are {len(given)}.")
        return self.converted(given[0], kind, x.at)

    def _bits(self, given: Any, kind: Any, x: s.Convert) -> Any:
        """as_type: the same bits as numbers of another dtype, or as several of them."""
        old = [self.rules.strong(p) for p in given.parts] if isinstance(given, Tuple) else [
            self.rules.strong(self.number(given, x.at))
        ]  # fmt: skip
        new = kind.dtype if isinstance(kind, VectorType) else kind
        count = kind.size if isinstance(kind, VectorType) else 1
        have, want = old[0].dtype.size * len(old), new.size * count
        if have != want or dt.bool_ in (old[0].dtype, new):
            self.error(x.at, f"the bits of {_label(old)} are not those of {x.type.name}.")
        pieces = [_as_bits(v) for v in old]
        size = old[0].dtype.size
        if size > new.size:
            pieces = [_piece(v, k, new.size) for v in pieces for k in range(size // new.size)]
        elif size < new.size:
            n = new.size // size
            pieces = [_joined(pieces[k : k + n], new.size) for k in range(0, len(pieces), n)]
        parts = [Value(v if v.dtype is new else tree.Cast(new, v, bits=True)) for v in pieces]
        if [v.expression.dtype for v in parts] == [v.dtype for v in old]:
            parts = [Value(v) for v in old]
        return Tuple(tuple(parts)) if isinstance(kind, VectorType) else parts[0]

    # ---- structs ----

    def constructed(self, kind: StructType, items: Sequence[s.Expression], at: At) -> Record:
        """A struct of what its braces, or its constructor, are given."""
        if len(items) == 1 and not isinstance(items[0], s.Braces):
            with self.collected():
                alone = self.expression(items[0])
            if isinstance(alone, Record) and alone.type is kind:
                found = self.expression(items[0])
                assert isinstance(found, Record)
                return found
        place = self.keep(kind.name, kind, (), at)
        self.fill(place, kind, (), items, at)
        made = self.read(place, at)
        assert isinstance(made, Record)
        return made

    def fill(self, place: Any, kind: Any, sizes: tuple[int, ...], items: Sequence[s.Expression], at: At) -> None:
        """Elements of an array, or fields of a struct, in order; others have their defaults, or are 0."""
        if sizes:
            self._fill_array(place, kind, sizes, items, at)
            return
        assert isinstance(kind, StructType)
        constructors = [f for f in kind.source.functions if f.name == kind.source.name]
        if constructors:
            self._defaults_of(place, kind, 0, at)
            fitting = self._fitting(constructors, s.Call(at, kind.name, tuple(items)))
            self.called(fitting, s.Call(at, kind.name, tuple(items)), wanted=False, this=place)
            return
        if len(items) > len(kind.fields):
            self.error(at, f"`{kind.name}` has {len(kind.fields)} fields, and is given {len(items)}.")
        for field, one, item in zip(kind.fields, place.places, items, strict=False):
            if field.sizes:
                if not isinstance(item, s.Braces):
                    self.error(item.at, "an array is initialized with braces.")
                self.fill(one, field.type, field.sizes, item.items, item.at)
            elif isinstance(item, s.Braces):
                self.put(one, self._braced(item, field.type), item, item.at)
            else:
                self.put(one, self.converted(self.expression(item), field.type, item.at), item, item.at)
        self._defaults_of(place, kind, len(items), at)

    def _defaults_of(self, place: KeptRecord, kind: StructType, first: int, at: At) -> None:
        for field, one in list(zip(kind.fields, place.places, strict=True))[first:]:
            if field.default is None:
                if self.begins(field.type) and not field.sizes:
                    self.fill(one, field.type, (), (), at)
                continue
            outer, self.scopes = self.scopes, [self.scopes[0], kind.scope]
            if field.sizes or (isinstance(field.default, s.Convert) and isinstance(field.type, StructType)):
                items = field.default.items if isinstance(field.default, s.Braces) else field.default.arguments  # type: ignore[attr-defined]
                self.fill(one, field.type, field.sizes, items, at)
            else:
                self.put(one, self.converted(self.expression(field.default), field.type, at), field.default, at)
            self.scopes = outer

    def _fill_array(self, place: Any, kind: Any, sizes: tuple[int, ...], items: Sequence[s.Expression], at: At) -> None:
        total = math.prod(sizes)
        flat = [*_flat(items)] if isinstance(kind, Dtype) or len(sizes) > 1 else list(items)
        if len(flat) > total:
            self.error(at, f"this array has {total} elements and is given {len(flat)}.")
        for k, item in enumerate(flat):
            here = rules.operation("add", dt.int64, place.index, tree.Constant(dt.int64, k))
            if isinstance(place, Elements):
                one: Any = Elements(kind, place.leaves, here, (), None, True)
            else:
                one = Address(place.storage, here)
            value = self._braced(item, kind) if isinstance(item, s.Braces) else self.expression(item)
            value = self.converted(value, kind, item.at)
            if not (isinstance(value, Value) and _is_zero(value.expression)):
                self.put(one, value, item, item.at)

    # ---- calls ----

    def in_order(self, given: Sequence[s.Expression]) -> list[Any]:
        """Operands in order: what one has read is kept if a later one has effects."""
        found: list[Any] = []
        for argument in given:
            at = len(self.out)
            value = self.expression(argument)
            if len(self.out) > at:
                found = [self.pinned(earlier, at) for earlier in found]
            found.append(value)
        return found

    def call(self, x: s.Call, wanted: bool) -> Any:
        if x.method_of is not None:
            return self._of_object(x, wanted)
        for scope in reversed(self.scopes):
            meaning = scope.get(x.name)
            if isinstance(meaning, Dtype | VectorType | StructType):
                return self.convert(s.Convert(x.at, s.TypeName(x.at, x.name), x.arguments))
            if isinstance(meaning, Closure):
                return self.called(meaning.function, x, wanted, scopes=list(meaning.scopes))
            if isinstance(meaning, Alias):
                meaning = meaning.place
            if isinstance(meaning, KeptRecord):
                return self.method(meaning, "operator()", x.arguments, x, wanted)
            if meaning is not None and scope is not self.scopes[0]:
                self.error(x.at, f"`{x.name}` is no function here.")
        for call in reversed(self.calls[-1:]):
            if call.this is not None and any(f.name == x.name for f in call.this.type.source.functions):
                return self.method(call.this, x.name, x.arguments, x, wanted)
        functions = self.functions.get(x.name)
        if functions is not None:
            return self.called(self._fitting(functions, x), x, wanted)
        return self.builtin(x, wanted)

    def _of_object(self, x: s.Call, wanted: bool) -> Any:
        """x.f(...), T::f(...), and calls of objects."""
        assert x.method_of is not None
        if isinstance(x.method_of, s.TypeValue):
            kind = self.type(x.method_of.type)
            functions = [f for f in kind.source.functions if f.name == x.name] if isinstance(kind, StructType) else []
            if not functions:
                self.error(x.at, f"`{x.method_of.type.name}` has no function `{x.name}`.")
            return self.called(self._fitting(functions, x), x, wanted, inside=kind)
        owner = self.owner(x.method_of)
        if isinstance(owner, Closure) and x.name == "operator()":
            return self.called(owner.function, x, wanted, scopes=list(owner.scopes))
        if isinstance(owner, Pointer):
            owner = owner.place
        if isinstance(owner, Elements) and not owner.one:
            owner = self.pointed(owner, x.at)
        struct = isinstance(owner, KeptRecord | Record) or (
            isinstance(owner, Elements) and isinstance(owner.type, StructType)
        )
        if not struct:
            self.error(x.at, f"kernels have no methods such as `{x.name}`.")
        return self.method(owner, x.name, x.arguments, x, wanted)

    def method(
        self, owner: Any, name: str, arguments: Sequence[s.Expression], x: s.Expression, wanted: bool = True
    ) -> Any:
        """A function of a struct, for one of them."""
        functions = [f for f in owner.type.source.functions if f.name == name]
        if not functions:
            what = name.removeprefix("operator")
            self.error(x.at, f"`{owner.type.name}` has no `{what}`.")
        if isinstance(owner, Record):
            place = self.keep(owner.type.name, owner.type, (), x.at)
            self.put(place, owner, x, x.at)
            owner = place
        given = x.parameters if isinstance(x, s.Call) else ()
        call = s.Call(x.at, name, tuple(arguments), given)
        return self.called(self._fitting(functions, call), call, wanted, this=owner)

    def operator(self, op: str, operands: list[Any], x: s.Expression) -> Any:
        """An operator of a struct: one of its own functions, or one of the header."""
        name = f"operator{op}"
        first = operands[0]
        kind = getattr(first, "type", None)
        outer, names = self.scopes, []
        bound: dict[str, Any] = {}
        for k, operand in enumerate(operands):
            names.append(s.Name(x.at, f"operand {k}"))
            bound[names[-1].name] = self._as_place(operand, x.at)
        self.scopes = [*outer, bound]
        try:
            if isinstance(kind, StructType) and any(f.name == name for f in kind.source.functions):
                return self.method(bound["operand 0"], name, names[1:], x)
            if name in self.functions:
                call = s.Call(x.at, name, tuple(names))
                return self.called(self._fitting(self.functions[name], call), call, wanted=True)
        finally:
            self.scopes = outer
        label = kind.name if isinstance(kind, StructType) else "a struct"
        return self.error(x.at, f"`{label}` has no operator `{op}`.")

    def _as_place(self, value: Any, at: At) -> Any:
        """A value under a name; places stay what they are."""
        if isinstance(value, Record):
            place = self.keep(value.type.name, value.type, (), at)
            self.put(place, value, s.Name(at, "operand"), at)
            return place
        if isinstance(value, Tuple):
            kind = rules.vector_of(self.rules.strong(value.parts[0]).dtype, len(value.parts), packed=False)
            place = self.keep("operand", kind, (), at)
            self.put(place, value, s.Name(at, "operand"), at)
            return place
        return Alias(value) if isinstance(value, Elements) and value.one else value

    # ---- which function ----

    def _fitting(self, functions: Sequence[s.Function], x: s.Call) -> s.Function:
        """The function of a name that takes these arguments best."""
        count = len(x.arguments)
        fitting = [f for f in functions if sum(p.default is None for p in f.parameters) <= count <= len(f.parameters)]
        if not fitting:
            takes = " or ".join(sorted({str(len(f.parameters)) for f in functions}))
            self.error(x.at, f"`{x.name}` takes {takes} arguments; got {count}.")
        if len(fitting) == 1:
            return fitting[0]
        with self.collected():
            kinds = [self.kind_of(a) for a in x.arguments]
        ranks = []
        for k, function in enumerate(fitting):
            rank = self._rank(function, kinds)
            if rank is not None:
                ranks.append((rank, k))
        if not ranks:
            self.error(x.at, f"no `{x.name}` takes these arguments.")
        return fitting[min(ranks)[1]]

    def kind_of(self, x: s.Expression) -> tuple[Any, bool]:
        """(the type of an argument, whether it is a pointer or an array)."""
        if isinstance(x, s.Braces):
            return None, False
        found = self.expression(x)
        return self.type_of(found), self.is_address(found) or isinstance(found, Pointer)

    def type_of(self, x: Any) -> Any:
        """The type of a value or place, or of what it points at; None if it has none."""
        match x:
            case Value():
                return self.rules.strong(x).dtype
            case Kept(variable):
                return variable.dtype
            case KeptTuple(variables):
                return rules.vector_of(variables[0].dtype, len(variables), packed=self.rules.packed)
            case Tuple(parts):
                return rules.vector_of(self.rules.strong(parts[0]).dtype, len(parts), packed=self.rules.packed)
            case Places(parts):
                return rules.vector_of(self.type_of(parts[0]), len(parts), packed=self.rules.packed)
            case Record() | KeptRecord() | Elements():
                return x.type
            case Address():
                return x.storage.dtype
            case Part(of):
                return of.variables[0].dtype
            case Alias(place) | Pointer(place):
                return self.type_of(place)
        return None

    def _rank(self, function: s.Function, kinds: Sequence[tuple[Any, bool]]) -> tuple[int, int] | None:
        """(conversions, template parameters) that a call of a function needs; None if it does not fit."""
        conversions = templates = 0
        generics = {generic.name for generic in function.generics}
        for parameter, (kind, pointer) in zip(function.parameters, kinds, strict=False):
            wanted = parameter.type
            if wanted is None or kind is None:
                continue
            if wanted.pointer != pointer and not (wanted.reference and pointer):
                return None
            if wanted.name in generics or wanted.name == "auto" or wanted.parameters:
                templates += 1
                continue
            actual = self.type(wanted)
            if actual == kind:
                continue
            if pointer or not isinstance(actual, Dtype) or not isinstance(kind, Dtype):
                return None
            near = actual.is_float == kind.is_float
            conversions += 1 if near and actual.size >= kind.size else 2 if near else 3
        return conversions, templates

    # ---- writing out ----

    def called(
        self,
        function: s.Function,
        x: s.Call,
        wanted: bool,
        this: Any = None,
        inside: StructType | None = None,
        scopes: list[dict[str, Any]] | None = None,
    ) -> Any:
        """The body of a function, with its parameters bound to the arguments. `this` is the struct that it is a
        function of, `scopes` the names that it sees."""
        again = any(call.function is function for call in self.calls) and not function.generics
        if len(self.calls) >= MOST_DEPTH or again:
            self.error(x.at, f"`{function.name}` calls itself, which kernels cannot.")
        least = sum(p.default is None for p in function.parameters)
        if not least <= len(x.arguments) <= len(function.parameters):
            self.error(x.at, f"`{function.name}` takes {len(function.parameters)} arguments; got {len(x.arguments)}.")
        known = self.template_scope(function.generics, x.parameters, function.name, x.at)
        given = self._bound(function, x)
        outer, loops, switches = self.scopes, self.loops, self.switches
        call = _Call(function, x.at, len(self.calls), this)
        inner = self._seen(this, inside)
        self.scopes, self.loops, self.switches = [*(scopes or [outer[0]]), *inner, known], 0, []
        changed = assigns(function.body, self.functions) if function.parameters else set()
        with self.collected() as body:
            self._deduce_all(function, given, known, x)
            self.defaults(function.generics, known, function.name, x.at)
            for generic in function.generics:
                if generic.name and generic.name not in known:
                    self.error(x.at, f"`{generic.name}` of `{function.name}` is not told by these arguments.")
            for parameter, argument in zip(function.parameters, given, strict=True):
                self._bind_parameter(parameter, argument, x, parameter.name in changed)
            if function.result is not None and function.result.name not in ("void", "auto"):
                call.result_type = self.type(function.result)
                call.gives_pointer = function.result.pointer
                call.gives_reference = function.result.reference
            self.calls.append(call)
            self._begin_fields(function, call)
            self.block(function.body.body)
            self.calls.pop()
        self.scopes, self.loops, self.switches = outer, loops, switches
        while body and isinstance(body[-1], tree.Leave):
            body.pop()
        for statement in call.begin:
            self.write(statement)
        if any(isinstance(y, tree.Leave) for y in tree.walk(*body)):
            self.write(tree.Called(tuple(body)))
        else:
            for statement in body:
                self.write(statement)
        if call.result is None:
            if wanted:
                self.error(x.at, f"`{function.name}` returns nothing.")
            return None
        return self.read(call.result, x.at)

    def _seen(self, this: Any, inside: StructType | None) -> list[dict[str, Any]]:
        """The names that a function of a struct sees: its fields and template parameters."""
        if this is None:
            return [] if inside is None else [inside.scope]
        if isinstance(this, Elements):
            places: Sequence[Any] = self.parts(this)
        else:
            places = this.places
        found: dict[str, Any] = {"this": Pointer(this) if isinstance(this, KeptRecord) else self.pointer_to(this, _NO)}
        for field, place in zip(this.type.fields, places, strict=True):
            element = isinstance(place, Address) and not place.sizes
            found[field.name] = Alias(place) if element or (isinstance(place, Elements) and place.one) else place
        return [this.type.scope, found]

    def _begin_fields(self, function: s.Function, call: _Call) -> None:
        """What a constructor gives its fields before its body."""
        for name, items in function.begins:
            k = call.this.type.place(name)
            if k < 0:
                self.error(function.at, f"`{call.this.type.name}` has no field `{name}`.")
            field, place = call.this.type.fields[k], call.this.places[k]
            if field.sizes:
                self.fill(place, field.type, field.sizes, items, function.at)
                continue
            value = self._braced(s.Braces(function.at, tuple(items)), field.type)
            self.put(place, value, s.Name(function.at, name), function.at)

    def _bound(self, function: s.Function, x: s.Call) -> list[Any]:
        """The arguments; those taken by reference are places."""
        found: list[Any] = []
        for k, parameter in enumerate(function.parameters):
            argument = x.arguments[k] if k < len(x.arguments) else None
            if argument is None or isinstance(argument, s.Braces):
                found.append(argument if argument is not None else parameter.default)
                continue
            at = len(self.out)
            by_reference = parameter.type is not None and parameter.type.reference
            placed = isinstance(argument, s.Name | s.Index | s.Member) or (
                isinstance(argument, s.Unary) and argument.op == "*"
            )
            value = self.place(argument) if by_reference and placed else self.expression(argument)
            if len(self.out) > at:
                found = [self.pinned(earlier, at) for earlier in found]
            found.append(value)
        return found

    def _deduce_all(self, function: s.Function, given: Sequence[Any], known: dict[str, Any], x: s.Call) -> None:
        names = {generic.name: generic for generic in function.generics}
        for parameter, argument in zip(function.parameters, given, strict=True):
            if parameter.type is not None and names and not isinstance(argument, s.Expression):
                self._deduce(parameter.type, self.type_of(argument), names, known)

    def _deduce(self, wanted: Any, actual: Any, names: dict[str, s.Generic], known: dict[str, Any]) -> None:
        """What a parameter's type says of template parameters."""
        if actual is None:
            return
        if isinstance(wanted, s.TypeName | s.Name) and wanted.name in names and wanted.name not in known:
            generic = names[wanted.name]
            if generic.is_type == isinstance(actual, Dtype | VectorType | StructType):
                known[wanted.name] = actual
            return
        if not isinstance(wanted, s.TypeName) or not wanted.parameters:
            return
        if wanted.name == "vec" and isinstance(actual, VectorType) and len(wanted.parameters) == 2:
            self._deduce(wanted.parameters[0], actual.dtype, names, known)
            self._deduce(wanted.parameters[1], Value(tree.Constant(dt.int32, actual.size)), names, known)
        elif isinstance(actual, StructType) and actual.source.name == wanted.name:
            for generic, one in zip(actual.source.generics, wanted.parameters, strict=False):
                self._deduce(one, actual.scope.get(generic.name), names, known)

    def _bind_parameter(self, parameter: s.Parameter, argument: Any, x: s.Call, changed: bool) -> None:
        name, kind = parameter.name, parameter.type
        scope = self.scopes[-1]
        if isinstance(argument, s.Braces):
            if kind is None or kind.pointer:
                self.error(x.at, f"`{name}` is not given in braces.")
            argument = self._braced(argument, self.type(kind))
        elif isinstance(argument, s.Expression):
            argument = self.expression(argument)
        if isinstance(argument, Sizes | Closure | Dtype | VectorType | StructType):
            scope[name] = argument
            return
        if kind is not None and kind.pointer:
            self._bind_pointer(parameter, kind, argument, x, changed)
            return
        if self.is_address(argument) and not (isinstance(argument, Address) and self._is_element(kind, argument)):
            if kind is not None and not kind.reference and kind.name != "auto":
                self.error(x.at, f"`{name}` is a number, and is given an array.")
            scope[name] = self._pinned_pointer(name, argument, changed)
            return
        if isinstance(argument, Pointer):
            if kind is not None and kind.name != "auto":
                self.error(x.at, f"`{name}` is no pointer, and is given one.")
            scope[name] = argument
            return
        if kind is not None and kind.reference and self._bind_reference(name, kind, argument):
            return
        value = self.read(argument, x.at)
        wanted = None if kind is None or kind.name == "auto" else self.type(kind)
        if wanted is None and isinstance(value, Tuple | Record):
            wanted = self.type_of(value)
        if wanted is None:
            expression = self.rules.strong(self.number(value, x.at))
            variable = self.variable(name, expression.dtype)
            self.write(tree.Assign(variable, expression, first=True))
            scope[name] = Kept(variable)
            return
        if isinstance(wanted, VectorType) and not isinstance(value, Tuple):
            self.error(x.at, f"`{name}` is a vector, and is given a number.")
        value = self.converted(value, wanted, x.at)
        if isinstance(value, Value) and isinstance(value.expression, tree.Constant) and not changed:
            scope[name] = value
            return
        place = self.keep(name, wanted, (), x.at)
        self.put(place, value, s.Name(x.at, name), x.at)
        scope[name] = place

    def _is_element(self, kind: s.TypeName | None, argument: Address) -> bool:
        """Whether a parameter that is a reference is given one element of an array."""
        one = not argument.sizes and not argument.whole and argument.variable is None
        return kind is not None and kind.reference and one

    def _bind_reference(self, name: str, kind: s.TypeName, argument: Any) -> bool:
        """A place under another name; False if a value was given, or one of another type."""
        if not isinstance(argument, Kept | KeptTuple | KeptRecord | Address | Elements | Part | Places):
            return False
        if kind.name != "auto" and self.type(kind) != self.type_of(argument):
            return False
        pinned = self.pinned(argument, len(self.out))
        kept = isinstance(pinned, Kept | KeptTuple | KeptRecord)
        self.scopes[-1][name] = pinned if kept else Alias(pinned)
        return True

    def _bind_pointer(self, parameter: s.Parameter, kind: s.TypeName, argument: Any, x: s.Call, changed: bool) -> None:
        name = parameter.name
        if not isinstance(argument, Pointer) and not self.is_address(argument):
            self.error(x.at, f"`{name}` is a pointer, and is given a number.")
        if kind.name not in ("void", "auto"):
            wanted, actual = self.type(kind), self.type_of(argument)
            if wanted != actual:
                labels = [v.name if isinstance(v, Dtype | StructType) else "vectors" for v in (wanted, actual)]
                self.error(x.at, f"`{name}` points at {labels[0]}, and is given a pointer to {labels[1]}.")
        if isinstance(argument, Pointer):
            self.scopes[-1][name] = argument
            return
        if parameter.sizes and not argument.sizes[1:]:
            sizes = tuple(self.constant_integer(n, f"a size of `{name}`") for n in parameter.sizes)
            argument = (
                Elements(argument.type, argument.leaves, argument.index, (1, *sizes))
                if isinstance(argument, Elements)
                else Address(argument.storage, argument.index, (1, *sizes))
            )
        self.scopes[-1][name] = self._pinned_pointer(name, argument, changed)

    def _pinned_pointer(self, name: str, argument: Any, changed: bool) -> Any:
        """A pointer that is a parameter: with a variable of its own if the function moves it."""
        if argument.sizes[1:] or (not changed and isinstance(argument.index, tree.Constant)):
            return argument
        kept = self.variable(name, dt.int64)
        self.write(tree.Assign(kept, argument.index, first=True))
        index = tree.Read(dt.int64, kept)
        own = kept if changed else None
        if isinstance(argument, Elements):
            return Elements(argument.type, argument.leaves, index, (), own)
        whole = argument.whole and not changed
        return Address(argument.storage, index, () if changed else argument.sizes, own, whole)


_NO = At("", 0, 0)


def _flat(items: Sequence[s.Expression]) -> Iterator[s.Expression]:
    for item in items:
        if isinstance(item, s.Braces):
            yield from _flat(item.items)
        else:
            yield item


def _is_zero(x: tree.Expression) -> bool:
    return isinstance(x, tree.Constant) and x.value == 0 and math.copysign(1, x.value) > 0


def _label(xs: Sequence[tree.Expression]) -> str:
    return xs[0].dtype.name if len(xs) == 1 else f"{len(xs)} {xs[0].dtype.name}"


_UNSIGNED = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}


def _as_bits(x: tree.Expression) -> tree.Expression:
    """A number as an unsigned integer of its bits."""
    kind = _UNSIGNED[x.dtype.size]
    if x.dtype is kind:
        return x
    return tree.Cast(kind, x, bits=True) if x.dtype.is_float else rules.cast(x, kind)


def _piece(x: tree.Expression, k: int, size: int) -> tree.Expression:
    """Bytes of an unsigned integer: those that come k-th in memory."""
    moved = rules.operation("shr", x.dtype, x, tree.Constant(x.dtype, 8 * size * k)) if k else x
    return rules.cast(moved, _UNSIGNED[size])


def _joined(xs: Sequence[tree.Expression], size: int) -> tree.Expression:
    """Unsigned integers, the lowest first, as one."""
    kind = _UNSIGNED[size]
    found = rules.cast(xs[0], kind)
    for k, x in enumerate(xs[1:], 1):
        shift = tree.Constant(kind, 8 * xs[0].dtype.size * k)
        more = rules.operation("shl", kind, rules.cast(x, kind), shift)
        found = rules.operation("or", kind, found, more)
    return found


class _Call:
    """A function that is being written out."""

    def __init__(self, function: s.Function, at: At, depth: int, this: Any) -> None:
        self.function, self.name, self.path, self.this = function, function.name, (at, depth), this
        self.result: Meaning = None
        self.result_type: Any = None
        self.gives_pointer = self.gives_reference = False
        self.begin: list[tree.Statement] = []
        """What makes room for the result."""

    def give(self, typer: Calls, x: s.Expression, at: At) -> None:
        """Assign the result. Without a declared type it is that of all values that are returned."""
        if isinstance(x, s.Braces):
            if self.result_type is None:
                typer.error(at, "braces are returned where the function has a type.")
            value: Any = typer.converted(x, self.result_type, at)
        else:
            value = typer.expression(x)
        if typer.is_address(value) or isinstance(value, Pointer):
            self._give_address(typer, value, at)
            return
        if self.gives_pointer:
            typer.error(at, f"`{self.name}` returns a pointer, and not a number.")
        if self.result_type is not None:
            kind: Any = self.result_type
        elif isinstance(value, Tuple | Record):
            kind = typer.type_of(value)
        else:
            kind = typer.joined((*self.path, "result"), typer.number(value, at))
        if self.result is None:
            with typer.collected() as self.begin:
                self.result = typer.keep(self.name, kind, (), at)
        elif typer.type_of(self.result) != kind:
            if isinstance(kind, Dtype) and self.result_type is None:
                raise Again
            typer.error(at, f"`{self.name}` returns values of different types.")
        typer.put(self.result, typer.converted(value, kind, at), s.Name(at, self.name), at)

    def _give_address(self, typer: Calls, value: Any, at: At) -> None:
        if isinstance(value, Pointer) or value.sizes or not (self.gives_pointer or self.result_type is None):
            typer.error(at, f"`{self.name}` cannot return this array or pointer.")
        if self.result is None:
            kept = typer.variable(self.name, dt.int64)
            self.begin = [tree.Assign(kept, tree.Constant(dt.int64, 0), True, True)]
            index = tree.Read(dt.int64, kept)
            if isinstance(value, Elements):
                self.result = Elements(value.type, value.leaves, index, (), kept)
            else:
                self.result = Address(value.storage, index, (), kept)
        alike = (
            self.result.leaves == value.leaves
            if isinstance(value, Elements) and isinstance(self.result, Elements)
            else isinstance(self.result, Address) and getattr(value, "storage", None) is self.result.storage
        )
        if not alike:
            typer.error(at, f"`{self.name}` returns pointers into different arrays.")
        typer.write(tree.Assign(self.result.variable, value.index))
