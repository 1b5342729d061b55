"""What every kernel of a GPU has: a text that is its key, and its code as LLVM sees it. A launch's first word is the
number of its blocks of threads."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import ClassVar

from weft.llvm.engine import Source
from weft.targets.cuda.builder import ThreadFrame


class CudaKernel(ABC):
    """A kernel of a GPU. Its text describes it completely."""

    __slots__ = ()
    title: ClassVar[str]
    """What it is called in profiles and reports."""
    outer: int

    @abstractmethod
    def fields(self) -> list[str]:
        """The names of its argument words."""

    @abstractmethod
    def emit(self, frame: ThreadFrame) -> None:
        """Its code, but for the return."""

    def source(self) -> Source:
        key = f"cuda {self}"
        name = f"weft_{self.title}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        return Source(key, name, lambda: self.text(name))

    def text(self, name: str) -> str:
        """LLVM IR of the kernel."""
        frame = ThreadFrame(name, self.fields(), self.outer)
        self.emit(frame)
        return frame.module()


def blocks_for(count: int, each: int) -> int:
    """Blocks of threads for `count` pieces of work, of which one block does `each`."""
    return -(-count // each)
