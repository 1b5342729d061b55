"""A GPU of NVIDIA's as a target."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from weft.codegen.launch import Launch, Layout, Lowering
from weft.graph.node import ArrayType
from weft.llvm.binding import llvm_binding
from weft.llvm.engine import Source
from weft.passes.executable import Assembly, DeviceExecutable, Executable, result_of
from weft.passes.fuse import Group, Limits
from weft.passes.lower import Item, Lowerer
from weft.passes.memory import Plan
from weft.passes.target import Target
from weft.passes.views import Strides
from weft.primitives.base import ControlFlow, KernelOperation, Primitive
from weft.targets import copying
from weft.targets.cuda import forms
from weft.targets.cuda.driver import Gpu, cuda_gpus
from weft.targets.cuda.lowerings import LOWERINGS, copy
from weft.targets.cuda.program import CudaProgram, CudaStorage

_lock: Final = threading.Lock()


class Cuda(Target):
    """One thread for each element, or 16 for each row that is reduced, with the bits of the CPU."""

    host_memory = False
    fusion = Limits(row=1 << 13)

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.device, self.name = gpu, gpu.device, gpu.name
        self._functions: dict[str, Any] = {}

    def facts(self) -> dict[str, object]:
        return {"architecture": self.gpu.architecture, "memory_size": self.gpu.memory}

    def takes(self, op: Primitive) -> bool:
        return not isinstance(op, (ControlFlow, KernelOperation)) or type(op) in LOWERINGS

    def schedule(self, lowerer: Lowerer, group: Group) -> Item:
        return forms.schedule(lowerer, group)

    def lower(self, op: Primitive, operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
        return LOWERINGS[type(op)](op, operands, *results)

    def load(self, launches: Sequence[Launch]) -> list[Any]:
        return [self._function(launch.source) for launch in launches]

    def _function(self, source: Source) -> Any:
        with _lock:
            found = self._functions.get(source.key)
            if found is None:
                found = self._functions[source.key] = self.gpu.function(self.ptx(source), source.name)
            return found

    def ptx(self, source: Source) -> str:
        """The kernel in NVIDIA's assembly language."""
        return ptx_of(source.ir(), self.gpu.architecture)

    def assemble(self, plan: Plan) -> Executable:
        assembly = Assembly(plan)
        program = None
        if plan.items:
            assembly.lay_out()
            program = CudaProgram(self.gpu, assembly.commands, assembly.words, assembly.relocations)
        results = [result_of(plan, output) for output in plan.graph.outputs]
        return DeviceExecutable(plan, program, assembly.constants, results, assembly.calls)  # type: ignore[arg-type]

    def copy_program(
        self, kind: ArrayType, source: Strides | None, target: Strides | None, is_constant: bool = False
    ) -> Any:
        parts = copying.copy_program(copy, self.load, kind, source, target, is_constant)
        return CudaProgram(self.gpu, parts.commands, parts.words, parts.relocations)

    def allocate(self, nbytes: int) -> CudaStorage:
        return CudaStorage(self.gpu, nbytes)


def cuda_targets() -> list[Cuda]:
    """A target for each GPU of this machine."""
    return [Cuda(gpu) for gpu in cuda_gpus()]


def ptx_of(ir: str, architecture: str) -> str:
    """LLVM IR as PTX."""
    llvm = llvm_binding()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu=architecture, opt=3)
    module = llvm.parse_assembly(ir)
    module.verify()
    text: str = machine.emit_assembly(module)
    return text
