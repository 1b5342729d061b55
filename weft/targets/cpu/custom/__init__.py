"""Kernels that users write, on the CPU."""

from __future__ import annotations

from weft.targets.cpu.custom.lowering import lower

__all__ = ["lower"]
