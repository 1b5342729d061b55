"""The CPU as the builder sees it."""

from __future__ import annotations

from weft.codegen.features import Features
from weft.codegen.kernel import LANES
from weft.runtime import engine

_WITH, _WITHOUT = (Features(LANES, half_conversions=half) for half in (True, False))


def features() -> Features:
    """Those of the instruction set that kernels are compiled for now."""
    return _WITH if engine.has_half_conversions() else _WITHOUT
