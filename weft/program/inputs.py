"""What a program is given: names, shapes, dtypes, symbols for sizes that are known at a call only, and what a call does
to the arrays of the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft import tree
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Size, kind_of
from weft.records import dataclass
from weft.transforms.variant import SymbolicSizes

NAME = "program"


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a program. A size that is a string is known at a call only, and is the same in all inputs that name
    it. A `donated` array is given away with the call: the program may write results into its memory, and the caller's
    array has no value afterwards."""

    name: str
    shape: tuple[int | str, ...]
    dtype: Dtype
    donated: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(f"[{NAME}] an input has a name that a keyword can have; got {self.name!r}.")
        if not isinstance(self.dtype, Dtype):
            raise TypeError(f"[{NAME}] dtype of input {self.name!r} must be a Weft dtype; got {self.dtype!r}.")
        if not isinstance(self.donated, bool):
            raise TypeError(f"[{NAME}] donated of input {self.name!r} is True or False; got {self.donated!r}.")
        for n in self.shape:
            if not (isinstance(n, str) or (type(n) is int and n >= 0)):
                raise ValueError(f"[{NAME}] a size is a number or a name; input {self.name!r} has {n!r}.")

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"{self.name}: {self.dtype.name} ({sizes}){' donated' if self.donated else ''}"

    def takes(self, kind: ArrayType) -> bool:
        """Whether an array of this kind can be given, for some sizes that have names."""
        if kind.dtype is not self.dtype or kind.ndim != len(self.shape):
            return False
        return all(isinstance(size, str) or n == size for size, n in zip(self.shape, kind.shape, strict=True))


def positions(inputs: Sequence[Input], updates: Mapping[str, int | str], results: tree.Structure) -> dict[int, int]:
    """By number of the input: the result that is its new value."""
    numbers = {given.name: i for i, given in enumerate(inputs)}
    found: dict[int, int] = {}
    for name, result in updates.items():
        if name not in numbers:
            raise ValueError(f"[{NAME}] updates are for inputs, and there is none named {name!r}.")
        if inputs[numbers[name]].donated:
            raise ValueError(f"[{NAME}] input {name!r} is donated, so no array is left to take a new value.")
        found[numbers[name]] = _position(name, result, results)
    return found


def _position(name: str, result: int | str, results: tree.Structure) -> int:
    """The number of a result that is given by number, or by its key in the dict that the function returns."""
    at: Any = result
    count = results.num_leaves
    if isinstance(result, str):
        returned = results.unflatten(range(count))
        at = returned.get(result) if isinstance(returned, dict) else result
    if type(at) is not int or not 0 <= at < count:
        raise ValueError(
            f"[{NAME}] the new value of input {name!r} is one of {count} results, by its number or by its key in the "
            f"dict that the function returns; got {result!r}."
        )
    return int(at)


class NamedSizes(SymbolicSizes):
    """Symbols for the sizes that have names. Each axis has one of its own, as files want it; those of one name are
    guarded to be equal. A size that is 0 or 1 stays what it is, and so does one that is given as a number."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        super().__init__()
        self._inputs = inputs
        self.fixed: list[list[int]] = []
        """For each input: the axes whose sizes are part of the graph."""
        self._known: dict[str, Size] = {}

    def kind(self, position: int, kind: ArrayType) -> ArrayType:
        """The kind of an input with symbols for its named sizes."""
        shape: list[Size] = []
        fixed: list[int] = []
        for axis, (size, n) in enumerate(zip(self._inputs[position].shape, kind.shape, strict=True)):
            if isinstance(size, int) or n < 2:
                fixed.append(axis)
                shape.append(n)
                continue
            self.places.append((position, axis))
            symbol = self.env.symbol(f"n{len(self.places) - 1}", int(n))
            same = self._known.setdefault(size, symbol) == symbol  # what asks for equality guards it
            assert same, "sizes of one name were compared before"
            shape.append(symbol)
        self.fixed.append(fixed)
        return kind_of(tuple(shape), kind.dtype)

    def anew(self) -> NamedSizes:
        return NamedSizes(self._inputs)
