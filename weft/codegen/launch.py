"""What codegen hands to a program: launches of native functions over operands that do not yet have addresses.

A `Launch` names a kernel (an engine `Source`) and the words of its argument block; a word is a number or a `Pointer`
into one of the operands of the node or fused group that is being lowered. The program builder turns pointers into
relocations.
"""

from __future__ import annotations

from typing import Any

from weft.dtypes import Dtype
from weft.llvm.engine import Source
from weft.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Pointer:
    """Operand number `value` (inputs first, then outputs, then temporaries of the lowering), moved by `offset`
    bytes."""

    value: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A word of a launch that is repeated (`Steps`): the number of steps made before, `share` more at each call."""

    share: int


FAILURE_WORD = 2
"""A call that fails leaves in its arguments, from this word on, what `Primitive.failure` makes an error of."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One command of a program. `words[0]` is the extent of the outer, parallel dimension; `grain` the least part of it
    that is worth a thread of its own (0: serial). A `call` is an `i64 fn(block, args, scratch)`, which ends the program
    unless it returns 0; otherwise it is a kernel."""

    source: Source
    words: tuple[int | Pointer | Done, ...]
    grain: int = 0
    scratch: int = 0
    call: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A parameter or result of a loop's body that lies elsewhere at each step: in row i of an operand, `stride` bytes
    behind row i - 1."""

    pointer: Pointer
    stride: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One of `slots` places, `stride` bytes apart, which a loop's carry takes in turn: number `slot` at step 0."""

    pointer: Pointer
    slot: int
    slots: int
    stride: int


Place = Pointer | Row | Slot
"""Where a parameter or a result of a body lies."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The commands of a loop: those of the body's plan, step after step. Pointers count as in a Launch."""

    plan: Any
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    arena: Pointer
    most: int | None
    reverse: bool
    count: Pointer | None
    """Where the number of steps stands."""
    go_on: Pointer | None
    """Where the body leaves whether there shall be another step."""
    made: Pointer | None
    """Where the number of steps made goes."""
    before: tuple[tuple[Pointer, Pointer, int], ...]
    """Copies made first: (target, source, bytes)."""
    after: tuple[tuple[Pointer, Slot, int], ...]
    """Copies made last."""
    clears: tuple[tuple[Pointer, int], ...]
    """Memory that is zeroed first."""
    limited: bool = False
    """Whether `most` is only what there is room for: a loop that wants more steps fails."""
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """The commands of a loop that is one kernel, which makes some steps at each call and leaves at `flag` whether there
    are more."""

    launch: Launch
    flag: Pointer
    before: tuple[tuple[Pointer, Pointer, int], ...]
    clears: tuple[tuple[Pointer, int], ...]
    share: int
    """Steps of one call."""
    most: int | None
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class Choose:
    """The commands of a branch: those of one of several plans."""

    plans: tuple[Any, ...]
    index: Pointer
    inputs: tuple[Pointer, ...]
    outputs: tuple[tuple[Pointer, ...], ...]
    arena: Pointer
    before: tuple[tuple[Pointer, Pointer, int], ...] = ()
    """Copies made first, whichever branch is taken: (target, source, bytes)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an operand's elements lie: strides in elements (any sign, 0 for broadcast axes); the pointer is at element
    (0, …, 0)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class Lowering:
    """The launches of one node, in order, and the sizes in bytes of the temporaries that they share."""

    launches: tuple[Launch, ...]
    temporaries: tuple[int, ...] = field(default=())
