"""Functions that every kernel knows: those of numbers, and what threads do together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import functions as f
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.calls import Calls
from weft.kernels.meanings import Address, Kept, Pointer, Sizes, Tuple, int64
from weft.kernels.rules import Value
from weft.kernels.syntax import At

LAST: Final = tree.SIMD_WIDTH - 1


class Builtins(Calls):
    """Gives types to calls of functions that are not the kernel's own."""

    def builtin(self, x: s.Call, wanted: bool) -> Any:
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
        if x.name in f.QUADS:
            return self.quad(f.QUADS[x.name], x)
        if x.name in f.CONVERSIONS and self.source.language == "cuda":
            name, bits = f.CONVERSIONS[x.name]
            return self.convert(s.Convert(x.at, s.TypeName(x.at, name), x.arguments, bits))
        found = self.rules.call(
            x.name, [self._operand(a, e.at) for a, e in zip(self.in_order(x.arguments), x.arguments, strict=True)]
        )
        if found is None:
            known = self.rules.knows(x.name)
            self.error(
                x.at,
                f"`{x.name}` does not take these arguments." if known else f"`{x.name}` is no function of kernels.",
            )
        return found if isinstance(found, Value) else Tuple(found)

    def _operand(self, x: Any, at: At) -> Any:
        return tuple(x.parts) if isinstance(x, Tuple) else self.number(x, at)

    # ---- second results ----

    def _second(self, x: s.Call) -> tuple[Value, Any]:
        """The argument of a function, and the place that it gives a second result to."""
        if len(x.arguments) != 2:
            self.error(x.at, f"`{x.name}` takes 2 arguments; got {len(x.arguments)}.")
        value = self.rules.floating(self.value(x.arguments[0]))
        place = self.owner(x.arguments[1])
        place = place.place if isinstance(place, Pointer) else place
        if isinstance(place, Address) and (place.sizes or place.whole or place.variable is not None):
            place = self.pointed(place, x.at)
        if not isinstance(place, Kept | Address):
            self.error(x.arguments[1].at, f"`{x.name}` gives a result to its second argument: it is a variable.")
        (kept,) = self._kept_values([value])
        return kept, place

    def _kept_values(self, values: Sequence[Value]) -> list[Value]:
        return [self.pinned(value, len(self.out)) for value in values]

    def _call_sincos(self, x: s.Call) -> Value:
        """Metal's: the sine, and the cosine through a reference."""
        if self.source.language == "cuda":
            self.error(x.at, "`sincos` of CUDA is not supported; call `sin` and `cos`.")
        value, place = self._second(x)
        cosine, sine = self.rules.call("cos", [value]), self.rules.call("sin", [value])
        assert isinstance(cosine, Value)
        assert isinstance(sine, Value)
        self.put(place, cosine, x.arguments[1], x.at)
        return sine

    def _call_modf(self, x: s.Call) -> Any:
        value, place = self._second(x)
        whole = self.rules.call("trunc", [value])
        assert isinstance(whole, Value)
        (whole,) = self._kept_values([whole])
        self.put(place, whole, x.arguments[1], x.at)
        return self.rules.binary("-", value, whole)

    # ---- memory ----

    def _call___ldg(self, x: s.Call) -> Any:
        """What a pointer points at."""
        if len(x.arguments) != 1:
            self.error(x.at, f"`{x.name}` takes 1 argument; got {len(x.arguments)}.")
        return self.read(self.pointed(self.expression(x.arguments[0]), x.at), x.at)

    _call___ldcg = _call___ldcs = _call___ldca = _call___ldg

    # ---- what threads do together ----

    def barrier(self, x: s.Call) -> None:
        self.write(tree.Barrier(x.at))

    _call_threadgroup_barrier = _call___syncthreads = _call_this_thread_block_sync = barrier

    def fence(self, x: s.Call) -> None:
        """The threads of a simdgroup go in step: what one has written, the others see."""

    _call_simdgroup_barrier = _call___syncwarp = _call___threadfence = _call_atomic_thread_fence = fence
    _call___threadfence_block = fence

    def together(self, op: str, x: s.Call) -> Any:
        given = list(x.arguments)
        if x.name.endswith("_sync") and given:
            given = given[1:]  # which threads are here is known
        shuffles = op.startswith("shuffle")
        fills = op.startswith("shuffle_fill")
        most = (3 if fills else 2) if shuffles else 1
        if not 1 <= len(given) <= most and not (x.name.startswith("__shfl") and len(given) == 3):
            self.error(x.at, f"`{x.name}` does not take {len(x.arguments)} arguments.")
        if shuffles and len(given) < most:
            self.error(x.at, f"`{x.name}` takes a value and a thread.")
        values = self.in_order(given)
        by = None
        if shuffles:
            number = self.number(values[2 if fills else 1], given[-1].at)
            if number.expression.dtype.is_float:
                self.error(given[-1].at, f"an integer is needed here; this is {number.expression.dtype.name}.")
            by = self.cast(number.expression, dt.int64)
        width = None
        if x.name.startswith("__shfl") and len(given) == 3:
            width = self.constant_integer(given[2], "the width of a shuffle")
            if width not in (1, 2, 4, 8, 16, 32):
                self.error(given[2].at, f"the width of a shuffle is a power of two up to 32; got {width}.")
        if fills:
            return self._parts(values[0], lambda v, w: self._filled(op, v, w, by, x), values[1], x)
        if width is not None and width < tree.SIMD_WIDTH:
            by, op = self._within_width(op, by, width), "shuffle"
        elif op in ("shuffle_rotate_up", "shuffle_rotate_down"):
            sign = "sub" if op.endswith("up") else "add"
            assert by is not None
            by, op = rules.operation(sign, dt.int64, _lane(), by), "shuffle"
        return self._parts(values[0], lambda v, _: self.gathered(op, v, by, x), None, x)

    def _parts(self, value: Any, one: Any, other: Any, x: s.Call) -> Any:
        """Of a number, or of the numbers of a vector one by one."""
        if isinstance(value, Tuple):
            others = other.parts if isinstance(other, Tuple) else (other,) * len(value.parts)
            if len(others) != len(value.parts):
                self.error(x.at, f"vectors of {len(value.parts)} and {len(others)} numbers.")
            return Tuple(tuple(one(self.rules.strong(p), q) for p, q in zip(value.parts, others, strict=True)))
        return one(self.rules.strong(self.number(value, x.at)), other)

    def _within_width(self, op: str, by: Any, width: int) -> tree.Expression:
        """The thread that a shuffle among `width` threads reads from."""
        lane, step = _lane(), rules.operation
        inside = step("and", dt.int64, lane, int64(width - 1))
        start = step("sub", dt.int64, lane, inside)
        if op == "shuffle":
            return step("add", dt.int64, start, step("and", dt.int64, by, int64(width - 1)))
        if op == "shuffle_xor":
            other = step("xor", dt.int64, lane, by)
            fits = step("lt", dt.bool_, other, step("add", dt.int64, start, int64(width)))
        elif op == "shuffle_up":
            other = step("sub", dt.int64, lane, by)
            fits = step("ge", dt.bool_, other, start)
        else:
            other = step("add", dt.int64, lane, by)
            fits = step("lt", dt.bool_, step("add", dt.int64, inside, by), int64(width))
        return tree.Select(dt.int64, fits, other, lane)

    def _filled(self, op: str, value: tree.Expression, other: Any, by: Any, x: s.Call) -> Value:
        """A shuffle that takes what is behind the end from a second value."""
        second = self.cast(self.rules.strong(self.number(other, x.at)), value.dtype)
        up = op.endswith("up")
        place = rules.operation("sub" if up else "add", dt.int64, _lane(), by)
        first = self.gathered("shuffle", value, place, x)
        filling = self.gathered("shuffle", second, place, x)
        inside = tree.Operation(dt.bool_, "ult", (place, int64(tree.SIMD_WIDTH)))
        return Value(tree.Select(value.dtype, inside, first.expression, filling.expression))

    def gathered(self, op: str, value: tree.Expression, argument: tree.Expression | None, x: s.Call) -> Value:
        """What a simdgroup makes of its threads' values."""
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

    def quad(self, op: str, x: s.Call) -> Any:
        """What four neighbouring threads do together."""
        shuffles = op.startswith("shuffle")
        if len(x.arguments) != (2 if shuffles else 1):
            self.error(x.at, f"`{x.name}` does not take {len(x.arguments)} arguments.")
        values = self.in_order(x.arguments)
        if shuffles:
            number = self.number(values[1], x.at)
            by = self._within_width(op, self.cast(number.expression, dt.int64), 4)
            return self._parts(values[0], lambda v, _: self.gathered("shuffle", v, by, x), None, x)
        return self._parts(values[0], lambda v, _: self._of_four(op, v, x), None, x)

    def _of_four(self, op: str, value: tree.Expression, x: s.Call) -> Value:
        """Threads that are not there add nothing."""
        if value.dtype.is_bool:
            value = self.cast(value, dt.int32)
        found = value
        there: tree.Expression = tree.Constant(dt.bool_, True)
        for step in (1, 2):
            other = self.gathered("shuffle_xor", found, int64(step), x).expression
            beside = self.gathered("shuffle_xor", there, int64(step), x).expression
            both = rules.operation(op, found.dtype, found, other)
            here = tree.Select(found.dtype, beside, both, found)
            kept = self.variable("four", found.dtype)
            self.write(tree.Assign(kept, here, first=True))
            found = tree.Read(kept.dtype, kept)
        return Value(found)

    def ballot(self, x: s.Call) -> Value:
        """A bit for each thread of a simdgroup: whether it is here, and its condition holds."""
        given = x.arguments[1:] if x.name.startswith("__ballot") else x.arguments
        if len(given) != (0 if x.name in ("__activemask", "simd_active_threads_mask") else 1):
            self.error(x.at, f"`{x.name}` does not take {len(x.arguments)} arguments.")
        test = self.truth(given[0]) if given else tree.Constant(dt.bool_, True)
        lane = rules.cast(_lane(), dt.uint32)
        bit = rules.operation("shl", dt.uint32, tree.Constant(dt.uint32, 1), lane)
        found = self.gathered("or", tree.Select(dt.uint32, test, bit, tree.Constant(dt.uint32, 0)), None, x)
        return found if self.source.language == "cuda" else Value(self.cast(found.expression, dt.uint64))

    _call_simd_ballot = _call___ballot_sync = _call___activemask = _call_simd_active_threads_mask = ballot

    def _call_simd_is_first(self, x: s.Call) -> Value:
        lane = rules.cast(_lane(), dt.uint32)
        first = self.gathered("first", lane, None, x)
        return Value(rules.operation("eq", dt.bool_, lane, first.expression))

    # ---- atomic operations ----

    def atomic(self, op: str, x: s.Call, wanted: bool) -> Any:
        """atomic_add(array, index, value), or as Metal and CUDA have them: (address, value)."""
        given = list(x.arguments)
        python = self.source.language == "python"
        values = {"load": 0, "exchange": 2}.get(op, 1)
        if len(given) != (2 if python else 1) + values:
            self.error(x.at, f"`{x.name}` does not take {len(x.arguments)} arguments.")
        place: Any
        if python:
            place = self.indexed(s.Index(x.at, given[0], (given[1],)))
        else:
            place = self.expression(given[0])
        if not isinstance(place, Address) or place.sizes[1:] or self.is_number(place):
            self.error(x.at, f"`{x.name}` is for an element of an array.")
        storage = place.storage
        if op == "load":
            return Value(tree.Load(storage.dtype, storage, place.index, x.at))
        if storage.space not in ("output", "threadgroup"):
            self.error(x.at, f"`{x.name}` is for outputs and for memory of threadgroups; `{storage.name}` is neither.")
        if storage.dtype.is_bool or (storage.dtype.is_float and op in ("and", "or", "xor")):
            self.error(x.at, f"`{x.name}` is not for {storage.dtype.name}.")
        if op == "exchange":
            return self._exchange(place, given[1], given[2], x)
        value = self.cast(self.value(given[-1]).expression, storage.dtype)
        result = self.variable("old", storage.dtype) if wanted else None
        if result is not None:
            self.write(tree.Assign(result, tree.Constant(result.dtype, 0), first=True))
        self.write(tree.Atomic(op, storage, place.index, value, result, x.at))
        return None if result is None else Value(tree.Read(result.dtype, result))

    def _exchange(self, place: Address, expected: s.Expression, desired: s.Expression, x: s.Call) -> Value:
        """Exchange if what is there is as expected. CUDA's gives what was there; Metal's whether it was so, and what
        was there through its second argument."""
        kind = place.storage.dtype
        cuda = self.source.language != "metal"
        where: Any = None
        if not cuda:
            where = self.expression(expected)
            where = where.place if isinstance(where, Pointer) else self.pointed(where, x.at)
        old = self.value(expected) if cuda else self.number(self.read(where, x.at), x.at)
        (kept,) = self._kept_values([Value(self.cast(old.expression, kind))])
        value = self.cast(self.value(desired).expression, kind)
        result = self.variable("old", kind)
        self.write(tree.Assign(result, tree.Constant(kind, 0), first=True))
        self.write(tree.Atomic("exchange", place.storage, place.index, value, result, x.at, kept.expression))
        found = tree.Read(kind, result)
        if cuda:
            return Value(found)
        same = self.variable("same", dt.bool_)
        equal = rules.operation("eq", dt.bool_, _bits_of(found), _bits_of(kept.expression))
        self.write(tree.Assign(same, equal, first=True))
        self.put(where, Value(found), expected, x.at)
        return Value(tree.Read(dt.bool_, same))

    # ---- numbers of types and threads ----

    def limit(self, x: s.Call) -> Value:
        """numeric_limits<T>::max() and the like."""
        (kind,) = x.parameters
        assert isinstance(kind, s.TypeName)
        dtype, what = self.type(kind), x.name.split(".")[1]
        if not isinstance(dtype, Dtype) or dtype.is_bool:
            self.error(x.at, f"`numeric_limits` are those of numbers; `{kind.name}` is none.")
        info: Any = dt.finfo(dtype) if dtype.is_float else dt.iinfo(dtype)
        if dtype.is_float:
            known = {
                "max": info.max, "lowest": info.min, "infinity": math.inf, "quiet_NaN": math.nan, "epsilon": info.eps,
                "min": getattr(info, "smallest_normal", info.eps), "minus_infinity": -math.inf,
            }  # fmt: skip
        else:
            known = {
                "max": info.max, "lowest": info.min, "min": info.min, "infinity": info.max, "minus_infinity": info.min,
            }  # fmt: skip
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
        given = self.in_order(x.arguments)
        if len(given) not in (3, 4) or not isinstance(given[1], Sizes) or not isinstance(given[2], Sizes):
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


def _lane() -> tree.Expression:
    return tree.Position(dt.int64, "thread_index_in_simdgroup", 0)


def _bits_of(x: tree.Expression) -> tree.Expression:
    """What exchanges compare: the bits of a number."""
    if not x.dtype.is_float:
        return x
    return tree.Cast({2: dt.uint16, 4: dt.uint32, 8: dt.uint64}[x.dtype.size], x, bits=True)


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
