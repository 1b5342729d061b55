"""Fourier transforms on the CPU: kernels of our own, which run lists of steps over vectors of complex numbers."""

from __future__ import annotations

from weft.targets.cpu.fft.lowering import complex_transform, real_inverse, real_transform

__all__ = ["complex_transform", "real_inverse", "real_transform"]
