"""What a call of a graph takes and gives, apart from the graph: enough to run its program, and to write it to a file.

Sizes are numbers, or expressions of Python over the names of symbols (`s0 * 2`), which a call evaluates once for each
set of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.records import dataclass

Size = int | str
Sizes = tuple[Size, ...]
Order = tuple[int, ...]


@dataclass(frozen=True)
class Symbol:
    """A symbol, read from a call: an argument that is a number (`axis` is None), or a size of one that is a tensor."""

    name: str
    argument: int
    axis: int | None


@dataclass(frozen=True)
class Given:
    """An argument that is a tensor and that the program reads: its number, shape, and the order in which its axes lie
    in memory. A call copies a tensor that lies in another way."""

    argument: int
    shape: Sizes
    order: Order


@dataclass(frozen=True)
class Made:
    """A result of the program: a tensor with memory of its own, whose axes lie in this order."""

    shape: Sizes
    strides: Sizes
    order: Order
    dtype: str


@dataclass(frozen=True)
class Argument:
    """An output that is an argument."""

    number: int


@dataclass(frozen=True)
class Own:
    """An output that is result `number` of the program."""

    number: int


@dataclass(frozen=True)
class Seen:
    """An output that looks at the memory of an argument (or of a result, if `own`), which has the strides `base`, from
    `offset` elements on."""

    number: int
    own: bool
    shape: Sizes
    strides: Sizes
    offset: Size
    base: Sizes


@dataclass(frozen=True)
class Value:
    """An output that is no tensor: None, a number, or a size (an expression)."""

    value: Any


Output = Argument | Own | Seen | Value
_OUTPUTS = {cls.__name__: cls for cls in (Argument, Own, Seen, Value)}


@dataclass(frozen=True)
class Update:
    """An argument that a call changes: its new value is this result of the program."""

    argument: int
    result: int


@dataclass(frozen=True)
class Computed:
    """A symbol that depends on data: a result's size along an axis, or its value if that is None."""

    name: str
    result: int
    axis: int | None


@dataclass(frozen=True)
class Signature:
    """The inputs of the program are the tensors that are `given`, then one for each of `carriers` (symbols that are the
    size of nothing: only the shape of that input counts), then a random key if it `draws`."""

    symbols: tuple[Symbol, ...]
    given: tuple[Given, ...]
    carriers: tuple[str, ...]
    draws: bool
    made: tuple[Made, ...]
    outputs: tuple[Output, ...]
    updates: tuple[Update, ...]
    depends_on_data: bool = False
    """Whether sizes of values do, so that a call is not laid out before it runs."""
    computed: tuple[Computed, ...] = ()
    """The symbols that outputs need."""

    def to_json(self) -> dict[str, Any]:
        return {
            "symbols": [[s.name, s.argument, s.axis] for s in self.symbols],
            "given": [[x.argument, list(x.shape), list(x.order)] for x in self.given],
            "carriers": list(self.carriers),
            "draws": self.draws,
            "made": [[list(x.shape), list(x.strides), list(x.order), x.dtype] for x in self.made],
            "outputs": [_output_to_json(x) for x in self.outputs],
            "updates": [[x.argument, x.result] for x in self.updates],
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Signature:
        return Signature(
            tuple(Symbol(*x) for x in found["symbols"]),
            tuple(Given(argument, tuple(shape), tuple(order)) for argument, shape, order in found["given"]),
            tuple(found["carriers"]),
            bool(found["draws"]),
            tuple(
                Made(tuple(shape), tuple(strides), tuple(order), dtype)
                for shape, strides, order, dtype in found["made"]
            ),
            tuple(_output_from_json(x) for x in found["outputs"]),
            tuple(Update(*x) for x in found["updates"]),
        )


def _output_to_json(output: Output) -> list[Any]:
    if isinstance(output, Seen):
        sizes = [list(x) for x in (output.shape, output.strides)]
        return ["Seen", output.number, output.own, *sizes, output.offset, list(output.base)]
    return [type(output).__name__, output.value if isinstance(output, Value) else output.number]


def _output_from_json(found: list[Any]) -> Output:
    name, *fields = found
    if name == "Seen":
        number, own, shape, strides, offset, base = fields
        return Seen(number, own, tuple(shape), tuple(strides), offset, tuple(base))
    return _OUTPUTS[name](*fields)  # type: ignore[no-any-return]


_NAMES: dict[str, Any] = {
    "math": math, "max": max, "min": min, "abs": abs, "round": round, "int": int, "float": float, "bool": bool,
}  # fmt: skip


def evaluated(size: Any, known: Mapping[str, int]) -> Any:
    """The number that a size is."""
    return eval(size, {"__builtins__": _NAMES, **_NAMES}, dict(known)) if isinstance(size, str) else size


def evaluated_all(sizes: Sizes, known: Mapping[str, int]) -> tuple[int, ...]:
    return tuple([int(evaluated(n, known)) for n in sizes])
