"""What the threads of a simdgroup do together: they are the lanes of one vector.

Sums and the like go by a butterfly: lanes one apart first, then two, four, eight, sixteen. Threads that are not there
count as what changes nothing; the value of one that is not there is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import dtypes as dt
from weft.kernels import tree
from weft.llvm.builder import Value
from weft.targets.cpu.custom.values import identity, operate

if TYPE_CHECKING:
    from weft.targets.cpu.custom.emit import Emitter

_COMBINE = {"sum": "add", "product": "mul"}


def together(e: Emitter, x: tree.Together) -> Value:
    """What each lane gets."""
    b, lanes, dtype = e.b, e.lanes, x.value.dtype
    value = e.vector(e.value(x.value))
    if x.op in ("any", "all"):
        here = value if e.active is None else value & e.active if x.op == "any" else value | ~e.active
        return b.splat(b.any(here), lanes) if x.op == "any" else b.splat(~b.any(~here), lanes)
    if x.op.startswith("shuffle"):
        assert x.argument is not None
        return _shuffled(e, x, _or(e, value, b.const(dtype, 0, lanes)))
    if x.op == "first":
        return b.splat(_first(e, value), lanes)
    if x.op.startswith("scan"):
        return _scanned(e, x, _or(e, value, b.const(dtype, int("product" in x.op), lanes)))
    value = _or(e, value, identity(b, x.op, dtype, lanes))
    for step in (1, 2, 4, 8, 16):
        other = b.shuffle(value, None, [i ^ step for i in range(lanes)])
        value = operate(b, _COMBINE.get(x.op, x.op), dtype, [value, other])
    return value


def _or(e: Emitter, value: Value, other: Value) -> Value:
    """The value where a lane is active."""
    if e.active is None:
        return value
    chosen = e.b.select(e.active, value, other)
    assert isinstance(chosen, Value)
    return chosen


def _first(e: Emitter, value: Value) -> Value:
    b = e.b
    if e.active is None:
        return b.extract(value, 0)
    bits = b.op(f"bitcast {e.active.type} {e.active.text} to i{e.lanes}", dt.uint32, 1)
    lane = b.call(f"llvm.cttz.i{e.lanes}", dt.uint32, 1, bits, "i1 false") & (e.lanes - 1)
    return b.op(f"extractelement {value.type} {value.text}, i32 {lane.text}", value.dtype, 1)


def _scanned(e: Emitter, x: tree.Together, value: Value) -> Value:
    b, lanes, dtype = e.b, e.lanes, x.value.dtype
    product = "product" in x.op
    nothing = b.const(dtype, int(product), lanes)
    for step in (1, 2, 4, 8, 16):
        moved = b.shuffle(nothing, value, [lanes + i - step if i >= step else i for i in range(lanes)])
        added = operate(b, "mul" if product else "add", dtype, [value, moved])
        value = b.shuffle(value, added, [i if i < step else lanes + i for i in range(lanes)])
    if not x.op.endswith("before"):
        return value
    return b.shuffle(nothing, value, [lanes + i - 1 if i else 0 for i in range(lanes)])


def _shuffled(e: Emitter, x: tree.Together, value: Value) -> Value:
    """The value of another lane; its own where there is no such one, for those that move."""
    b, lanes = e.b, e.lanes
    assert x.argument is not None
    given = x.argument
    if isinstance(given, tree.Constant):
        return b.shuffle(value, None, [_partner(x.op, i, int(given.value), lanes) for i in range(lanes)])
    own = b.iota(dt.int64, lanes)
    by = e.vector(e.value(given))
    if x.op == "shuffle":
        other = by & (lanes - 1)
    elif x.op == "shuffle_xor":
        other = (own ^ by) & (lanes - 1)
    else:
        moved = own - by if x.op == "shuffle_up" else own + by
        other = b.choose((moved >= 0) & (moved < lanes), moved, own)
    kind = value.dtype
    wide = dt.float64 if kind.size == 8 and not kind.is_bool else dt.float32
    if kind.is_float:
        table = Value(b, value.text, wide, lanes)  # halves travel as float32
    else:
        table = b.bitcast(b.cast(value, dt.int64 if wide is dt.float64 else dt.int32), wide)
    room = e.memory._buffer(wide)
    b.store(table, room)
    found = b.gather(room, other * wide.size, wide)
    if kind.is_float:
        return Value(b, found.text, kind, lanes)
    return b.cast(b.bitcast(found, dt.int64 if wide is dt.float64 else dt.int32), kind)


def _partner(op: str, lane: int, argument: int, lanes: int) -> int:
    if op == "shuffle":
        return argument & (lanes - 1)
    if op == "shuffle_xor":
        return (lane ^ argument) & (lanes - 1)
    other = lane - argument if op == "shuffle_up" else lane + argument
    return other if 0 <= other < lanes else lane
