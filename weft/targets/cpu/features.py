"""The CPU as the builder sees it."""

from __future__ import annotations

from weft.codegen.kernel import LANES
from weft.llvm import engine
from weft.llvm.features import Features

_KNOWN = {
    (half, fma): Features(LANES, half_conversions=half, fma=fma) for half in (True, False) for fma in (True, False)
}


def features() -> Features:
    """Those of the instruction set that kernels are compiled for now."""
    return _KNOWN[engine.has_half_conversions(), engine.has_fma()]
