"""What the register tile has to know of the processor. It decides speed only: the bits of a product are the same for every tile."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass

from weft.codegen.matmul.elements import Elements
from weft.codegen.matmul.gemm import Tile

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


@dataclass(frozen=True, slots=True)
class Machine:
    """Vector registers: bytes in one, how many there are, and whether loads and stores of a part of one are one instruction."""

    vector: int
    registers: int
    masks: bool

    def lanes(self, kind: Elements) -> int:
        return self.vector // kind.part.size

    def tile(self, kind: Elements) -> Tile:
        """Sums for half to three quarters of the registers; the rest hold a row of b and an element of a."""
        rows = 8 if self.registers == 32 else 4
        return Tile(rows, 3, self.lanes(kind)) if kind.parts == 1 else Tile(rows // 2, 2, self.lanes(kind))


@functools.cache
def machine(cpu: str) -> Machine:
    """The registers of an instruction set that `config.cpu` names."""
    if platform.machine() == "aarch64":
        return Machine(16, 32, masks=False)
    if cpu == "native":
        import llvmlite.binding as llvm  # late, because it takes 30 ms and `import weft` has no need of it

        features = llvm.get_host_cpu_features()
        cpu = "x86-64-v4" if all(features.get(name) for name in _AVX512) else "x86-64-v3" if features.get("avx2") else "x86-64-v2"
    return {"x86-64-v4": Machine(64, 32, masks=True), "x86-64-v3": Machine(32, 16, masks=True)}.get(cpu, Machine(16, 16, masks=False))
