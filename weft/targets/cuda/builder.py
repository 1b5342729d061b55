"""The builder for kernels of a GPU: what one thread computes (values have one lane), its place among the others, and
memory that the threads of a block share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.words import Words
from weft.dtypes import Dtype
from weft.llvm.builder import PTR, AnyValue, Builder, Value
from weft.llvm.features import Features

THREADS: Final = 256
"""Threads of a block, in every kernel."""
_FEATURES: Final = Features(lanes=1, half_conversions=True, prefetch=False)


class ThreadBuilder(Builder):
    """Writes one kernel, whose parameter is a block of `words` words."""

    def __init__(self, name: str, words: int) -> None:
        super().__init__(name, [("args", PTR)], _FEATURES)
        self._params = f"ptr byval([{max(1, words)} x i64]) align 8 %args"
        self._result = "ptx_kernel void"
        self._memories = 0

    def _register(self, name: str) -> Value:
        return self.cast(self.call(f"llvm.nvvm.read.ptx.sreg.{name}", dt.uint32, 1), dt.int64)

    def thread(self) -> Value:
        """The number of the thread in its block."""
        return self._register("tid.x")

    def block_number(self) -> Value:
        return self._register("ctaid.x")

    def barrier(self) -> None:
        """Wait for all threads of the block, and see what they have written."""
        self.call_void("llvm.nvvm.barrier0")

    def team_memory(self, nbytes: int) -> Value:
        """The address of memory that the threads of a block share."""
        name, self._memories = f"team{self._memories}", self._memories + 1
        self.declarations[name] = f"@{name} = internal addrspace(3) global [{nbytes} x i8] poison, align 16"
        return Value(self, f"addrspacecast (ptr addrspace(3) @{name} to ptr)", PTR, 1)


class ThreadFrame(Words):
    """A kernel under construction."""

    b: ThreadBuilder

    def __init__(self, name: str, fields: Sequence[str], outer: int = 0) -> None:
        super().__init__(ThreadBuilder(name, len(fields)), fields, outer)
        self.thread, self.block = self.b.thread(), self.b.block_number()

    def module(self) -> str:
        self.b.ret()
        return f'target triple = "nvptx64-nvidia-cuda"\n{self.b.module()}'


class Exchange:
    """Values of all threads of a block, of these dtypes, for each other to see."""

    def __init__(self, frame: ThreadFrame, dtypes: Sequence[Dtype]) -> None:
        self.b, self.thread, self.dtypes = frame.b, frame.thread, list(dtypes)
        self._at = [self.b.team_memory(THREADS * dtype.size) for dtype in self.dtypes]

    def give(self, values: Sequence[AnyValue]) -> None:
        for at, x in zip(self._at, values, strict=True):
            self.b.store(x, self.b.gep(at, self.thread * x.dtype.size))
        self.b.barrier()

    def take(self, thread: Value) -> list[AnyValue]:
        """What a thread has given."""
        pairs = zip(self._at, self.dtypes, strict=True)
        return [self.b.load(self.b.gep(at, thread * dtype.size), dtype, 1) for at, dtype in pairs]
