"""What the passes ask of a machine: the seam between planning, which is the same everywhere, and the code that runs.

A `Target` (weft/targets has them) turns fused groups and operations with kernels of their own into launches, and plans
into programs. Evaluation chooses one and hands it to the pipeline; no pass knows which it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.codegen.launch import Launch, Layout, Lowering
from weft.graph.node import ArrayType
from weft.llvm.code import Code
from weft.passes.fuse import Group, Limits
from weft.runtime.buffer import Storage
from weft.runtime.device import Device

if TYPE_CHECKING:
    from weft.passes.executable import Executable
    from weft.passes.lower import Item, Lowerer
    from weft.passes.lower_loops import LoopLowering
    from weft.passes.memory import Plan
    from weft.passes.views import Strides
    from weft.primitives.base import Primitive
    from weft.runtime.program import Program


class Target(ABC):
    """One kind of machine."""

    name: str
    device: Device
    host_memory: bool = True
    """Whether its memory is the host's: else a program's temporaries are allocated apart from its table."""
    fusion: Limits = Limits()
    """What may share a kernel."""

    def takes(self, op: Primitive) -> bool:
        """Whether it can compute an operation; the host does what others cannot."""
        return True

    @abstractmethod
    def schedule(self, lowerer: Lowerer, group: Group) -> Item:
        """A fused group (elementwise operations and reductions) made ready to run."""

    @abstractmethod
    def lower(self, op: Primitive, operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
        """The launches of an operation with kernels of its own: operands of any layout, contiguous results. Pointers
        count operands, then results, then temporaries."""

    def lower_with_epilogue(self, lowerer: Lowerer, group: Group, after: Group) -> Item | None:
        """An operation with kernels of its own, and the map of its result, which nothing else reads, in one: where the
        result is written the map is applied to it. None if this machine does that in two steps."""
        return None

    def lower_loop(self, loop: LoopLowering) -> Item | None:
        """A loop as one kernel, if this machine can; else its body's commands are repeated."""
        return None

    @abstractmethod
    def load(self, launches: Sequence[Launch]) -> Sequence[int | Code]:
        """The native functions that the commands of a program call, one for each launch."""

    @abstractmethod
    def assemble(self, plan: Plan) -> Executable:
        """The program of a plan, its kernels loaded."""

    @abstractmethod
    def copy_program(
        self, kind: ArrayType, source: Strides | None, target: Strides | None, is_constant: bool = False
    ) -> Program:
        """target[...] = source, for elements of any dtype. Strides count elements; None means row-major. A run is given
        the addresses of both, or 0, the target's and the words of the constant that all elements become."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Storage:
        """Memory that its programs can use, its contents undefined."""

    def facts(self) -> dict[str, object]:
        """What `device_info` says beside its name."""
        return {}

    def __repr__(self) -> str:
        return f"<target {self.name}>"
