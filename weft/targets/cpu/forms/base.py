"""What the forms of loop-nest kernels share: a form is a class of kernels, and says all about them.

Which sizes they need, when a group is made ready in this form, how much scratch memory that takes, the code, and which
results may lie on operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from weft.codegen.kernel import Kernel
from weft.codegen.launch import Launch
from weft.passes.lower import Item, nbytes_of
from weft.records import dataclass
from weft.targets import axes
from weft.targets.axes import Axis, Word, words_of
from weft.targets.cpu.caches import cache_bytes
from weft.targets.cpu.kernel import NativeKernel
from weft.targets.nest import Nest

STREAM_BYTES = 1 << 23
"""Results of less than this stay in the caches, and those that fit into the last one beside twice what they are made
from, if that is at most four times as much."""


@dataclass(frozen=True, slots=True)
class Form(Kernel, NativeKernel):
    """A loop-nest kernel of the CPU."""

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        """A group made ready in this form, or None if another one is better for it."""
        raise NotImplementedError

    @classmethod
    def of(cls, nest: Nest, outer: Sequence[Axis], inner: Axis, tile: Axis | None = None, **more: object) -> Self:
        """The kernel for these loops."""
        return cls(len(outer), *nest.body(inner, tile), **more)  # type: ignore[arg-type]

    def overwritten(self) -> Sequence[int]:
        """The results, by position, that may lie on operands which are walked in the same way: each element of such an
        operand is read before the same element of the result is written, and not again."""
        return ()

    def in_whole_vectors(self) -> bool:
        """Whether what the inner loop reads and writes lies side by side, or is one element for all of it."""
        return all(access.inner in ("unit", "repeat") for access in self.accesses() if access.level == "full")

    def launch(
        self,
        nest: Nest,
        outer: Sequence[Axis],
        inner: Axis,
        numbers: dict[str, Word],
        grain: int,
        scratch: int = 0,
        **others: Axis,
    ) -> Launch:
        """A launch over these loops; `numbers` are the words that only this form has."""
        words = words_of(self.fields(), nest.pointers(), outer, inner, numbers, **others)
        return Launch(self.source(), words, grain, scratch)


def grain_of(elements: int, cost: int) -> int:
    """Units of so many elements that are worth a thread: some microseconds of work."""
    return axes.grain(elements, max(1 << 10, (1 << 16) // (4 + cost)))


def streams(nest: Nest, outer: Sequence[Axis], inner: Axis) -> bool:
    """Whether the full-level results are so large that keeping them in the caches only drives other data out: then they
    are written past the caches, which saves reading their lines first. That is for rows whose vectors are all aligned
    if the first one is; where one of a loop's rows begins, the kernel sees."""
    full = [(k, store) for k, store in enumerate(nest.stores, len(nest.loads)) if store.level == "full"]
    written = sum(nbytes_of(store.node) for _, store in full)
    if written < STREAM_BYTES:
        return False
    read = sum(nbytes_of(node) for node in {load.node for load in nest.loads if load.source == "memory"})
    if 2 * read + written < min(cache_bytes(3), 4 * STREAM_BYTES):
        return False
    return all(inner.strides[k] == store.unit and not any(a.strides[k] % 64 for a in outer) for k, store in full)
