"""Calls in kernels: functions are written out, and so is what threads do together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import functions as f
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.expressions import Expressions
from weft.kernels.meanings import MOST_DEPTH, Address, Again, Kept, KeptTuple, Meaning, Sizes, Tuple, int64
from weft.kernels.rules import Value
from weft.kernels.syntax import At


class Calls(Expressions):
    """Gives types to conversions and calls."""

    def block(self, body: Sequence[s.Statement]) -> None:
        raise NotImplementedError

    def convert(self, x: s.Convert) -> Any:
        kind = self.type(x.type)
        if x.type.pointer:
            return self.reinterpreted(x, kind)
        given = [self.expression(a) for a in x.arguments]
        if isinstance(kind, rules.VectorType):
            parts = [
                p
                for g, a in zip(given, x.arguments, strict=True)
                for p in (g.parts if isinstance(g, Tuple) else (self.number(g, a.at),))
            ]
            if len(parts) == 1:
                parts *= kind.size
            if len(parts) != kind.size:
                self.error(x.at, f"`{x.type.name}` has {kind.size} numbers, and is given {len(parts)}.")
            return self._converted(Tuple(tuple(parts)), kind, x.at)
        if len(given) != 1:
            self.error(x.at, f"`{x.type.name}` converts one number.")
        if isinstance(given[0], Tuple):
            return Tuple(tuple(Value(self.cast(p.expression, kind)) for p in given[0].parts))
        number = self.number(given[0], x.at)
        if x.bits:
            value = self.rules.strong(number)
            if value.dtype.size != kind.size or dt.bool_ in (value.dtype, kind):
                self.error(x.at, f"the bits of {value.dtype.name} are not those of {kind.name}.")
            return Value(value if value.dtype is kind else tree.Cast(kind, value, bits=True))
        return Value(self.cast(number.expression, kind))

    def reinterpreted(self, x: s.Convert, kind: Any) -> Address:
        """A pointer to the same elements."""
        given = self.expression(x.arguments[0]) if len(x.arguments) == 1 else None
        if not isinstance(given, Address) or kind is not given.storage.dtype:
            self.error(x.at, "a pointer keeps the type of its elements; convert elements instead.")
        return given

    def _converted(self, value: Tuple, kind: rules.VectorType, at: At) -> Tuple:
        if len(value.parts) != kind.size:
            self.error(at, f"{len(value.parts)} numbers where {kind.size} are needed.")
        return Tuple(tuple(Value(self.cast(p.expression, kind.dtype)) for p in value.parts))

    def arguments(self, x: s.Call) -> list[Any]:
        """The operands of a function, in order."""
        found: list[Any] = []
        for argument in x.arguments:
            at = len(self.out)
            value = self.expression(argument)
            if len(self.out) > at:
                for k, earlier in enumerate(found):
                    if isinstance(earlier, Value) and not isinstance(earlier.expression, tree.Constant):
                        kept = self.variable("kept", earlier.expression.dtype)
                        self.out.insert(at, tree.Assign(kept, earlier.expression, first=True))
                        found[k] = Value(tree.Read(kept.dtype, kept), earlier.weak)
            found.append(value)
        return found

    def call(self, x: s.Call, wanted: bool) -> Any:
        if x.method_of is not None:
            self.error(x.at, f"kernels have no methods such as `{x.name}`.")
        function = self.functions.get(x.name)
        for scope in reversed(self.scopes):
            meaning = scope.get(x.name)
            if isinstance(meaning, Dtype):
                return self.convert(s.Convert(x.at, s.TypeName(x.at, x.name), x.arguments))
            if meaning is not None and scope is not self.scopes[0]:
                self.error(x.at, f"`{x.name}` is no function here.")
        if function is not None:
            return self.called(function, x, wanted)
        if x.name.startswith("numeric_limits."):
            return self.limit(x)
        if x.name in _RANKS:
            return self.rank(*_RANKS[x.name])
        special = getattr(self, f"_call_{x.name.replace('.', '_')}", None)
        if special is not None:
            return special(x)
        if x.name in f.ATOMICS:
            return self.atomic(f.ATOMICS[x.name], x, wanted)
        if x.name in f.TOGETHER:
            return self.together(f.TOGETHER[x.name], x)
        found = self.rules.call(
            x.name, [self._operand(a, e.at) for a, e in zip(self.arguments(x), x.arguments, strict=True)]
        )
        if found is None:
            known = x.name in (*f.MATH, *f.BINARY_MATH, *f.EXTREMES, *f.TESTS, *f.BITS)
            self.error(
                x.at,
                f"`{x.name}` does not take these arguments." if known else f"`{x.name}` is no function of kernels.",
            )
        return found if isinstance(found, Value) else Tuple(found)

    def _operand(self, x: Any, at: At) -> Any:
        return tuple(x.parts) if isinstance(x, Tuple) else self.number(x, at)

    def called(self, function: s.Function, x: s.Call, wanted: bool) -> Any:
        """The body of a function, with its parameters bound to the arguments."""
        if len(self.calls) >= MOST_DEPTH or any(call.name == function.name for call in self.calls):
            self.error(x.at, f"`{function.name}` calls itself, which kernels cannot.")
        if len(x.arguments) != len(function.parameters):
            self.error(x.at, f"`{function.name}` takes {len(function.parameters)} arguments; got {len(x.arguments)}.")
        given = self._bound(function, x)
        outer, loops = self.scopes, self.loops
        call = _Call(function.name, x.at, self, function.result)
        self.scopes, self.loops = [outer[0], self._generics(function, x, outer)], 0
        with self.collected() as body:
            for parameter, argument in zip(function.parameters, given, strict=True):
                self._bind_parameter(parameter, argument, x)
            if function.result is not None and function.result.name not in ("void", "auto"):
                call.result_type = self.type(function.result)
            self.calls.append(call)
            self.block(function.body.body)
            self.calls.pop()
        self.scopes, self.loops = outer, loops
        while body and isinstance(body[-1], tree.Leave):
            body.pop()
        if call.result is not None:
            self.write(tree.Assign(call.result, tree.Constant(call.result.dtype, 0), True, True))
        if any(isinstance(y, tree.Leave) for y in tree.walk(*body)):
            self.write(tree.Called(tuple(body)))
        else:
            for statement in body:
                self.write(statement)
        if call.result is None:
            if wanted:
                self.error(x.at, f"`{function.name}` returns nothing.")
            return None
        return Value(tree.Read(call.result.dtype, call.result))

    def _bound(self, function: s.Function, x: s.Call) -> list[Any]:
        """The arguments; those taken by reference are places."""
        found = []
        for parameter, argument in zip(function.parameters, x.arguments, strict=True):
            by_reference = parameter.type is not None and parameter.type.reference
            if by_reference and isinstance(argument, s.Name | s.Index | s.Member):
                meaning = self.place(argument)
                if isinstance(meaning, Kept | KeptTuple | Address):
                    found.append(meaning)
                    continue
            found.append(self.expression(argument))
        return found

    def _generics(self, function: s.Function, x: s.Call, outer: list[dict[str, Meaning]]) -> dict[str, Meaning]:
        """What the template parameters of a function stand for: given in angle brackets, or told by the arguments."""
        known: dict[str, Meaning] = {}
        self.scopes = outer
        for (name, is_type), given in zip(function.generics, x.parameters, strict=False):
            if is_type:
                if isinstance(given, s.Name):
                    given = s.TypeName(given.at, given.name)
                if not isinstance(given, s.TypeName):
                    self.error(x.at, f"`{name}` of `{function.name}` is a type.")
                known[name] = self.type(given)
                continue
            if isinstance(given, s.TypeName):
                given = s.Name(given.at, given.name)
            known[name] = self.value(given)
        return known

    def _bind_parameter(self, parameter: s.Parameter, argument: Any, x: s.Call) -> None:
        name, kind = parameter.name, parameter.type
        scope = self.scopes[-1]
        if isinstance(argument, Address) and not self._is_number(argument):
            if (
                kind is not None
                and kind.name not in self.rules.types
                and kind.name not in scope
                and kind.name != "auto"
            ):
                scope[kind.name] = argument.storage.dtype
            if kind is not None and not kind.pointer and not kind.reference and self.source.language != "python":
                self.error(x.at, f"`{name}` is a number, and is given an array.")
            if argument.variable is not None or not argument.sizes:
                kept = self.variable(name, dt.int64)
                self.write(tree.Assign(kept, argument.index, first=True))
                scope[name] = Address(argument.storage, tree.Read(dt.int64, kept), (), kept)
                return
            scope[name] = argument
            return
        if isinstance(argument, Kept | KeptTuple | Sizes):
            scope[name] = argument
            return
        if isinstance(argument, Tuple):
            wanted = None if kind is None or kind.name == "auto" else self.type(kind)
            self.keep_tuple(
                name,
                argument if wanted is None else self._converted(argument, wanted, x.at),
            )
            return
        if kind is not None and kind.pointer:
            self.error(x.at, f"`{name}` is a pointer, and is given a number.")
        number = self.number(argument, x.at)
        expression = self.rules.strong(number)
        if kind is not None and kind.name != "auto":
            if kind.name not in self.rules.types and not any(kind.name in one for one in self.scopes):
                vector = rules.vector_type(kind.name, self.rules.types)
                if vector is None:
                    scope[kind.name] = expression.dtype  # a template parameter that the argument tells
            wanted = self.type(kind)
            if isinstance(wanted, rules.VectorType):
                self.error(x.at, f"`{name}` is a vector, and is given a number.")
            expression = self.cast(number.expression, wanted)
        if isinstance(expression, tree.Constant) and kind is not None:
            variable = self.variable(name, expression.dtype)
            self.write(tree.Assign(variable, expression, first=True))
            scope[name] = Kept(variable)
            return
        variable = self.variable(name, expression.dtype)
        self.write(tree.Assign(variable, expression, first=True))
        scope[name] = Kept(variable)

    # ---- what threads do together ----

    def barrier(self, x: s.Call) -> None:
        self.write(tree.Barrier(x.at))

    _call_threadgroup_barrier = _call___syncthreads = _call_this_thread_block_sync = barrier

    def fence(self, x: s.Call) -> None:
        """The threads of a simdgroup go in step: what one has written, the others see."""

    _call_simdgroup_barrier = _call___syncwarp = _call___threadfence = _call_atomic_thread_fence = fence

    def together(self, op: str, x: s.Call) -> Any:
        given = list(x.arguments)
        if x.name.endswith("_sync") and given:
            given = given[1:]  # which threads are here is known
        if not 1 <= len(given) <= (2 if op.startswith("shuffle") else 1) and not (
            x.name.startswith("__shfl") and len(given) == 3
        ):
            self.error(x.at, f"`{x.name}` does not take {len(x.arguments)} arguments.")
        if op.startswith("shuffle") and len(given) < 2:
            self.error(x.at, f"`{x.name}` takes a value and a thread.")
        value = self.expression(given[0])
        argument = self.integer(given[1]).expression if op.startswith("shuffle") else None
        if isinstance(value, Tuple):
            return Tuple(tuple(self._together(op, self.rules.strong(p), argument, x) for p in value.parts))
        return self._together(op, self.rules.strong(self.number(value, x.at)), argument, x)

    def _together(self, op: str, value: tree.Expression, argument: tree.Expression | None, x: s.Call) -> Value:
        if op in ("any", "all"):
            value = self.cast(value, dt.bool_)
        elif op in ("and", "or", "xor") and value.dtype.is_float:
            self.error(x.at, f"`{x.name}` is for integers; this is {value.dtype.name}.")
        elif value.dtype.is_bool and not op.startswith("shuffle") and op != "first":
            value = self.cast(value, dt.int32)
        result = self.variable(x.name, value.dtype)
        self.write(tree.Assign(result, tree.Constant(value.dtype, 0), first=True))
        self.write(tree.Together(op, result, value, argument, x.at))
        return Value(tree.Read(value.dtype, result))

    def atomic(self, op: str, x: s.Call, wanted: bool) -> Any:
        """atomic_add(array, index, value), or as Metal and CUDA have them: (address, value, order)."""
        given = list(x.arguments)
        if x.name.endswith("_explicit"):
            given = given[:-1]
        python = self.source.language == "python"
        values = 0 if op == "load" else 1
        if len(given) != (2 if python else 1) + values:
            self.error(x.at, f"`{x.name}` does not take {len(x.arguments)} arguments.")
        place: Any
        if python:
            place = self.indexed(s.Index(x.at, given[0], self._several(given[1])))
        else:
            place = self.expression(given[0])
        if not isinstance(place, Address) or place.sizes[1:]:
            self.error(x.at, f"`{x.name}` is for an element of an array.")
        storage = place.storage
        if op == "load":
            return Value(tree.Load(storage.dtype, storage, place.index, x.at))
        if storage.space not in ("output", "threadgroup"):
            self.error(x.at, f"`{x.name}` is for outputs and for memory of threadgroups; `{storage.name}` is neither.")
        if storage.dtype.is_bool or (storage.dtype.is_float and op in ("and", "or", "xor")):
            self.error(x.at, f"`{x.name}` is not for {storage.dtype.name}.")
        value = self.cast(self.value(given[-1]).expression, storage.dtype)
        result = self.variable("old", storage.dtype) if wanted else None
        if result is not None:
            self.write(tree.Assign(result, tree.Constant(result.dtype, 0), first=True))
        self.write(tree.Atomic(op, storage, place.index, value, result, x.at))
        return None if result is None else Value(tree.Read(result.dtype, result))

    def _several(self, x: s.Expression) -> tuple[s.Expression, ...]:
        return (x,)

    def limit(self, x: s.Call) -> Value:
        """numeric_limits<T>::max() and the like."""
        (kind,) = x.parameters
        assert isinstance(kind, s.TypeName)
        dtype, what = self.type(kind), x.name.split(".")[1]
        info: Any = dt.finfo(dtype) if dtype.is_float else dt.iinfo(dtype)
        if dtype.is_float:
            known = {
                "max": info.max, "lowest": info.min, "infinity": math.inf, "quiet_NaN": math.nan, "epsilon": info.eps,
                "min": getattr(info, "smallest_normal", info.eps),
            }  # fmt: skip
        else:
            known = {"max": info.max, "lowest": info.min, "min": info.min}
        if what not in known:
            self.error(x.at, f"`numeric_limits` has no `{what}` in kernels.")
        return Value(tree.Constant(dtype, known[what]))

    def rank(self, position: str, size: str, dtype: Dtype) -> Value:
        """The number of a thread among all of the grid, or of its block; or how many there are."""

        def at(name: str, axis: int) -> tree.Expression:
            return tree.Position(dtype, name, axis)

        if not position:
            return Value(_product(dtype, [at(size, axis) for axis in range(3)]))
        found = at(position, 2)
        for axis in (1, 0):
            scaled = tree.Operation(dtype, "mul", (found, at(size, axis)))
            found = tree.Operation(dtype, "add", (at(position, axis), scaled))
        return Value(found)

    def _call_elem_to_loc(self, x: s.Call) -> Value:
        """MLX's: where element number `elem` of an array of this shape and strides lies."""
        given = self.arguments(x)
        if len(given) != 4 or not isinstance(given[1], Sizes) or not isinstance(given[2], Sizes):
            self.error(x.at, "elem_to_loc takes an element, and x_shape, x_strides and x_ndim.")
        left = self.variable("elem", dt.int64)
        place = self.variable("loc", dt.int64)
        self.write(tree.Assign(left, self.cast(self.number(given[0], x.at).expression, dt.int64), first=True))
        self.write(tree.Assign(place, int64(0), first=True))
        for axis in reversed(range(given[1].storage.ndim)):
            size = tree.Size(dt.int64, given[1].storage, "shape", int64(axis))
            step = tree.Size(dt.int64, given[2].storage, "strides", int64(axis))
            here = tree.Operation(dt.int64, "rem", (tree.Read(dt.int64, left), size))
            more = tree.Operation(dt.int64, "mul", (here, step))
            self.write(tree.Assign(place, tree.Operation(dt.int64, "add", (tree.Read(dt.int64, place), more))))
            self.write(tree.Assign(left, tree.Operation(dt.int64, "div", (tree.Read(dt.int64, left), size))))
        return Value(tree.Read(dt.int64, place))


_RANKS = {
    "this_grid.thread_rank": ("thread_position_in_grid", "threads_per_grid", dt.uint64),
    "this_grid.size": ("", "threads_per_grid", dt.uint64),
    "this_grid.num_threads": ("", "threads_per_grid", dt.uint64),
    "this_thread_block.thread_rank": ("thread_position_in_threadgroup", "threads_per_threadgroup", dt.uint32),
    "this_thread_block.size": ("", "threads_per_threadgroup", dt.uint32),
    "this_thread_block.num_threads": ("", "threads_per_threadgroup", dt.uint32),
}


def _product(dtype: Dtype, factors: Sequence[tree.Expression]) -> tree.Expression:
    found = factors[0]
    for factor in factors[1:]:
        found = tree.Operation(dtype, "mul", (found, factor))
    return found


class _Call:
    """A function that is being written out."""

    def __init__(self, name: str, path: At, typer: Calls, result: s.TypeName | None) -> None:
        self.name, self.path = name, (path, len(typer.calls))
        self.result: tree.Variable | None = None
        self.result_type: Dtype | None = None

    def give(self, typer: Calls, value: Value, at: At) -> None:
        """Assign the result. Without a declared type it is that of all values that are returned."""
        if self.result_type is not None:
            kind = self.result_type
        else:
            kind = typer.joined((*self.path, "result"), value)
        if self.result is None:
            self.result = typer.variable(self.name, kind)
        elif self.result.dtype is not kind:
            raise Again
        typer.write(tree.Assign(self.result, typer.cast(value.expression, kind)))
