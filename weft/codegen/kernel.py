"""Loop-nest kernels as data: what a fused group computes, without sizes.

A `Kernel` says how each operand is stepped through, which primitives run on the elements and where results go. Extents,
strides and addresses are run-time words (`fields` names them in order, for the code that reads them and the code that
fills them), so one kernel serves all sizes, and its text is its cache key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.dtypes import Dtype

LANES = 16
"""Logical vector length, and the number of interleaved partial results of a reduction (part of its specified order)."""
BLOCK = 4096
"""Elements of a reduction that are summed before their partial result joins the others (part of its specified
order)."""


@dataclass(frozen=True, slots=True)
class Access:
    """A stored value as the loops see it.

    source: "memory", "scalar" (a constant in the call's table) or "iota" (the position itself).
    level: "full" (varies along the inner and the reduced loop) or "reduced" (does not vary along the reduced loop).
    inner: how the innermost loop steps: "unit", "repeat", "reverse", "stride" or "tile" (unit along the tile axis
    instead).
    """

    dtype: Dtype
    source: str
    level: str
    inner: str

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.source} {self.level} {self.inner}"


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


_OWN_FIELDS = {
    "map": [],
    "row": ["block"],
    "partial": ["block", "chunks"],
    "final": ["chunks"],
    "column": ["rows", "width", "chunks", "block"],
    "short": ["rows", "width", "chunks"],
    "tile": ["m", "strips"],
    "steps": ["width", "chunks", "most", "done", "share", "qflag"],
}
"""Sizes that only one form of kernel needs."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A loop inside a kernel: each vector of elements goes through all steps before the next one does.

    A call makes `share` steps at most, from step `done` on, so that long loops can be interrupted; it leaves at `qflag`
    whether there are more. At most `most` steps are made in all, and no more than the number at `qcount` if `counted`;
    how many they were is left at `qmade` if that is asked for. `stop` is the number of the value that says whether to
    go on: then there is only one element.
    """

    carries: tuple[tuple[int, int], ...]
    """(load, store) of each carry: the store's place is where it begins and ends."""
    rows: tuple[int, ...]
    """The accesses that move on with the steps."""
    reverse: bool
    counted: bool
    reports: bool
    stop: int | None
    lanes: int

    def fields(self) -> list[str]:
        return [
            *(["qcount"] if self.counted else []),
            *(["qmade"] if self.reports else []),
            *(f"w{k}" for k in self.rows),
        ]

    def __str__(self) -> str:
        carries = " ".join(f"{load}:{store}" for load, store in self.carries)
        flags = [name for name in ("reverse", "counted", "reports") if getattr(self, name)]
        return f"  steps of {self.lanes} lanes, carries {carries}, rows {self.rows}, stop {self.stop} {' '.join(flags)}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One loop nest. `outer` counts the axes of the parallel dimension; `blocked` says that it also counts blocks of
    the inner loop; `stream` that results are too large for the caches and are written past them."""

    form: str
    outer: int
    loads: tuple[Access, ...]
    steps: tuple[Step, ...]
    stores: tuple[Store, ...]
    blocked: bool = False
    stream: bool = False
    partials: tuple[Dtype, ...] = ()
    """Dtypes of the partial results that a "partial" kernel leaves for its "final" one, in arrays `qK`."""
    recurrence: Recurrence | None = None
    """The loop of a "steps" kernel."""

    def __str__(self) -> str:
        head = f"{self.form} outer={self.outer}{' blocked' if self.blocked else ''}{' stream' if self.stream else ''}"
        loads = [f"  {i} = load {a}" for i, a in enumerate(self.loads)]
        steps = [f"  {len(self.loads) + i} = {s}" for i, s in enumerate(self.steps)]
        loop = [] if self.recurrence is None else [str(self.recurrence)]
        return "\n".join([head, *loads, *steps, *(f"  store {s}" for s in self.stores), *loop])

    def accesses(self) -> tuple[Access, ...]:
        return (*self.loads, *(s.access for s in self.stores))

    def fields(self) -> tuple[str, ...]:
        """Names of the argument words, in order. `pK` is the address of access K (for iota: the value at index 0),
        `sK.A` its stride in bytes along outer axis A, `iK` along the inner loop, `rK` along the reduced loop, `tK`
        along the tile axis."""
        names = ["units", "n"]
        names += _OWN_FIELDS[self.form]
        if self.form in ("partial", "final"):
            names += [f"q{c}" for c, _ in enumerate(self.partials)]
        if self.blocked:
            names += ["width", "chunks"]
        if self.recurrence is not None:
            names += self.recurrence.fields()
        names += [f"e{axis}" for axis in range(self.outer)]
        for k, access in enumerate(self.accesses()):
            names.append(f"p{k}")
            if access.source == "scalar":
                continue
            names += [f"s{k}.{axis}" for axis in range(self.outer)]
            names.append(f"i{k}")
            if self.form in ("column", "short"):
                names.append(f"r{k}")
            if self.form == "tile":
                names.append(f"t{k}")
        return tuple(names)
