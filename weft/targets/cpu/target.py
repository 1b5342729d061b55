"""The CPU as a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.codegen.launch import Launch, Layout, Lowering
from weft.graph.node import ArrayType
from weft.lazy import lazy
from weft.llvm import engine
from weft.llvm.code import Code
from weft.passes.executable import Executable, assemble
from weft.passes.fuse import Group
from weft.passes.lower import Item, Lowerer
from weft.passes.memory import Plan
from weft.passes.target import Target
from weft.passes.views import Strides
from weft.primitives.base import Primitive
from weft.primitives.contraction import Matmul
from weft.runtime import buffer
from weft.runtime.device import HOST
from weft.runtime.program import Program
from weft.targets import copying
from weft.targets.cpu import forms
from weft.targets.cpu.lowerings import lowering_of

if TYPE_CHECKING:
    from weft.passes.lower_loops import LoopLowering
    from weft.targets.cpu import moves
    from weft.targets.cpu.forms import steps
    from weft.targets.cpu.matmul import epilogue
else:
    moves = lazy("weft.targets.cpu.moves")
    steps = lazy("weft.targets.cpu.forms.steps")
    epilogue = lazy("weft.targets.cpu.matmul.epilogue")


class Cpu(Target):
    """Kernels of explicit vectors in the process itself, run by the native interpreter on a team of threads."""

    name = "cpu"
    device = HOST
    allocate = staticmethod(buffer.allocate)

    def schedule(self, lowerer: Lowerer, group: Group) -> Item:
        return forms.schedule(lowerer, group)

    def lower(self, op: Primitive, operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
        found = lowering_of(type(op))
        if found is None:
            raise NotImplementedError(
                f"[{op.title}] there is no kernel for it on the CPU: weft/targets/cpu/lowerings.py."
            )
        return found(op, operands, *results)

    def lower_with_epilogue(self, lowerer: Lowerer, group: Group, after: Group) -> Item | None:
        if not isinstance(group.nodes[0].op, Matmul):
            return None
        return epilogue.lower(lowerer, group, after)

    def lower_loop(self, loop: LoopLowering) -> Item | None:
        return steps.lower_loop(loop)

    def load(self, launches: Sequence[Launch]) -> list[Code]:
        return engine.load([launch.source for launch in launches])

    def assemble(self, plan: Plan) -> Executable:
        return assemble(plan)

    def copy_program(
        self, kind: ArrayType, source: Strides | None, target: Strides | None, is_constant: bool = False
    ) -> Program:
        parts = copying.copy_program(moves.copy, self.load, kind, source, target, is_constant)
        return Program(parts.commands, parts.words, parts.relocations, 0, parts.addresses)


CPU = Cpu()
