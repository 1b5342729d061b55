"""Loop-nest kernels as data: what a fused group computes, without sizes.

A `Kernel` says how each operand is stepped through, which primitives run on the elements and where results go. Extents,
strides and addresses are run-time words (`fields` names them in order, for the code that reads them and the code that
fills them), so one kernel serves all sizes, and its text is its cache key. In what order a machine visits the elements
is the business of its forms of kernels (weft/targets), which are classes of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from weft.dtypes import Dtype
from weft.records import dataclass

LANES = 16
"""Logical vector length, and the number of interleaved partial results of a reduction (part of its specified order)."""
BLOCK = 4096
"""Elements of a reduction that are summed before their partial result joins the others (part of its specified
order)."""

EVERY = "every "
"""How an inner loop steps over all but one element of so many."""


@dataclass(frozen=True, slots=True)
class Access:
    """A stored value as the loops see it.

    source: "memory", "scalar" (a constant in the call's table) or "iota" (the position itself).
    level: "full" (varies along the inner and the reduced loop) or "reduced" (does not vary along the reduced loop).
    inner: how the innermost loop steps: "unit", "repeat", "reverse", "every N", "stride" or "tile" (unit along the tile
    axis instead).
    """

    dtype: Dtype
    source: str
    level: str
    inner: str

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.source} {self.level} {self.inner}"

    @property
    def picked(self) -> int | None:
        """N of "every N"."""
        return int(self.inner.removeprefix(EVERY)) if self.inner.startswith(EVERY) else None


@dataclass(frozen=True, slots=True)
class Step:
    """`op` on earlier values: loads are numbered first, then steps. A step that `reduces` drives a reduction's
    state."""

    op: Any
    operands: tuple[int, ...]
    dtype: Dtype
    level: str
    reduces: bool = False

    def __str__(self) -> str:
        return f"{self.op} {' '.join(map(str, self.operands))} : {self.dtype.name} {self.level}"


@dataclass(frozen=True, slots=True)
class Store:
    """Value number `value` written through `access`."""

    value: int
    access: Access

    def __str__(self) -> str:
        return f"{self.value} -> {self.access}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One loop nest. `outer` counts axes of the parallel dimension. Values have numbers: loads first, then steps."""

    title: ClassVar[str] = ""
    """The name of the form; it begins the text."""
    further: ClassVar[str] = ""
    """The letter of the strides along the loop that this form has beside the inner one, if it has."""

    outer: int
    loads: tuple[Access, ...]
    steps: tuple[Step, ...]
    stores: tuple[Store, ...]

    def __str__(self) -> str:
        head = " ".join([self.title, f"outer={self.outer}", *self.flags()])
        loads = [f"  {i} = load {a}" for i, a in enumerate(self.loads)]
        steps = [f"  {len(self.loads) + i} = {s}" for i, s in enumerate(self.steps)]
        return "\n".join([head, *loads, *steps, *(f"  store {s}" for s in self.stores), *self.notes()])

    # ---- what a form adds ----

    def flags(self) -> list[str]:
        """Words of its text, in the first line."""
        return []

    def notes(self) -> list[str]:
        """Lines of its text, after all others."""
        return []

    def sizes(self) -> list[str]:
        """Names of argument words that only this form needs."""
        return []

    # ---- words ----

    def accesses(self) -> tuple[Access, ...]:
        return (*self.loads, *(s.access for s in self.stores))

    def fields(self) -> list[str]:
        """Names of the argument words, in order (codegen/words.py). `pK` is the address of access K (for iota: the
        value at index 0)."""
        names = ["units", "n", *self.sizes(), *(f"e{axis}" for axis in range(self.outer))]
        for k, access in enumerate(self.accesses()):
            names.append(f"p{k}" if access.source == "iota" else f"*p{k}")
            if access.source == "scalar":
                continue
            names += [f"s{k}.{axis}" for axis in range(self.outer)]
            names.append(f"i{k}")
            if self.further:
                names.append(f"{self.further}{k}")
        return names

    # ---- values ----

    @property
    def first(self) -> int:
        """The number of the first step's value."""
        return len(self.loads)

    def step(self, number: int) -> Step:
        """The step that makes a value."""
        return self.steps[number - len(self.loads)]

    def dtype(self, number: int) -> Dtype:
        return self.loads[number].dtype if number < self.first else self.step(number).dtype

    def is_full(self, number: int) -> bool:
        """Whether a value varies along the reduced loop."""
        return (self.loads[number] if number < self.first else self.step(number)).level == "full"

    def cost(self) -> int:
        return sum(step.op.cost for step in self.steps)

    # ---- reductions ----

    def reductions(self) -> list[int]:
        """The numbers of the values that are reduced."""
        return [number for number, step in enumerate(self.steps, self.first) if step.reduces]

    def operand_dtype(self, number: int) -> Dtype:
        """The dtype of what a reduction takes in."""
        return self.dtype(self.step(number).operands[0])

    def states_of(self, number: int) -> tuple[Dtype, ...]:
        """The dtypes of the state of a reduction."""
        found: tuple[Dtype, ...] = self.step(number).op.state_dtypes(self.operand_dtype(number))
        return found

    def state_dtypes(self, reductions: Sequence[int] | None = None) -> list[Dtype]:
        """Dtypes of the state of reductions (all of them unless told), one after the other."""
        wanted = self.reductions() if reductions is None else reductions
        return [dtype for number in wanted for dtype in self.states_of(number)]

    @property
    def is_neutral(self) -> bool:
        """Whether merging the identity of each reduction leaves all bits as they are."""
        return all(self.step(number).op.is_neutral(self.operand_dtype(number)) for number in self.reductions())

    def are_exact(self, reductions: Sequence[int]) -> bool:
        """Whether some reductions give the same bits in every order."""
        return all(self.step(number).op.is_exact(self.operand_dtype(number)) for number in reductions)
