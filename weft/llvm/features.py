"""What a builder has to know of the machine that its code is for. Nothing in here changes a result."""

from __future__ import annotations

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """`lanes` is the vector length of kernels (1: a thread of a GPU)."""

    lanes: int
    half_conversions: bool
    """Whether float16 is converted in hardware; LLVM would call a function otherwise."""
    fma: bool = True
    """Whether it multiplies and adds with one rounding; LLVM would call a function for every element otherwise."""
    prefetch: bool = True
    """Whether asking for a cache line early does anything."""
