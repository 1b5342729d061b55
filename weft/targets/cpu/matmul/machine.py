"""What the kernels' writer has to know of the processor. It decides speed only: every tile gives the same bits."""

from __future__ import annotations

import functools
import platform

from weft.llvm.host import host
from weft.records import dataclass, replace
from weft.targets.cpu.caches import cache_bytes
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.gemm import Tile


@dataclass(frozen=True, slots=True)
class ProductMachine:
    """Vector registers: bytes in one, and how many there are. `in_place`: the bytes of a right operand that is read
    faster where it lies than packed; 0 where loads of a part of a vector are not one instruction. `block`: rows that a
    packed block of b is used for. Packing it costs as much as some ten of them, but a chunk of so many rows of a is
    read again for every panel of b: half of a second-level cache, or less."""

    vector: int
    registers: int
    in_place: int
    block: int = 512
    pairs: str = "multiply"
    """How pairs of 16-bit integers are multiplied and added up: "multiply", where one instruction multiplies and adds
    both, "dot", where it adds to a sum, too, or "apart"."""
    paired: bool = False
    """Whether one instruction multiplies pairs of bfloat16 and adds both products to a sum of float32."""

    def lanes(self, kind: Elements) -> int:
        return self.vector // kind.part.size

    def tile(self, kind: Elements, columns: int = 0) -> Tile:
        """Sums for three quarters of the registers; the rest hold a row of b and an element of a. Another width than
        three vectors where that leaves less of the last panel to tiles of few sums: each kind of tile has to be
        compiled, too."""
        lanes, many = self.lanes(kind), self.registers == 32
        if kind.parts == 2:
            return Tile(4 if many else 2, 2, lanes)
        if many and columns and columns % (4 * lanes) == 0:
            return Tile(6, 4, lanes)
        if not many and type(columns) is int:
            if 2 * lanes < columns < 3 * lanes:
                return Tile(3, 3, lanes)  # all of them need a mask, which takes a register too
            wide = -(-columns // lanes)
            if wide == 1:
                return Tile(8, 1, lanes)
            if wide % 2 == 0 and wide % 3:
                return Tile(6, 2, lanes)
        return Tile(8 if many else 4, 3, lanes)

    def tile_of_pairs(self, columns: int) -> Tile:
        """Sums of pairs of integers, which are as many as registers hold 32 bits."""
        lanes, many = self.vector // 4, self.registers == 32
        if columns <= lanes:
            return Tile(16 if many else 8, 1, lanes)
        if not many:
            return Tile(6, 2, lanes)
        return Tile(8, 3, lanes) if columns % (4 * lanes) and columns > 2 * lanes else Tile(6, 4, lanes)


_AVX512 = ProductMachine(64, 32, in_place=2 << 20)
_AVX2 = ProductMachine(32, 16, in_place=128 << 10)
_SSE = ProductMachine(16, 16, in_place=0)
_NEON = ProductMachine(16, 32, in_place=0, pairs="apart")


@functools.cache
def machine(cpu: str) -> ProductMachine:
    """The registers of an instruction set that `config.cpu` names."""
    if platform.machine() == "aarch64":
        return _NEON
    if cpu == "native":
        if all(host().has(name) for name in ("avx512f", "avx512bw", "avx512dq", "avx512vl")):
            pairs = "dot" if host().has("avx512vnni") else "multiply"
            return replace(_AVX512, pairs=pairs, paired=host().has("avx512bf16"))
        return _with_blocks(_AVX2) if host().has("avx2") and host().has("fma") else _SSE
    return {"x86-64-v4": _AVX512, "x86-64-v3": _with_blocks(_AVX2)}.get(cpu, _SSE)


def _with_blocks(processor: ProductMachine) -> ProductMachine:
    """The same with blocks for the second-level cache that there is: many processors without AVX-512 have 512 KB, or
    256."""
    return processor if cache_bytes(2) >= 1 << 20 else replace(processor, block=256)
