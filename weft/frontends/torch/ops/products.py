"""Products of matrices and vectors, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, axis_of, to, wide

aten = Table()


@aten("mm", "bmm", "mv", "dot", "matmul")
def product(out: Out, a: mx.array, b: mx.array) -> mx.array:
    return mx.matmul(a, b)


@aten("addmm", "baddbmm", "addmv")
def addmm(out: Out, x: mx.array, a: mx.array, b: mx.array, *, beta: Any = 1, alpha: Any = 1) -> mx.array:
    """With beta = 0 nothing of x counts, not even NaN."""
    if beta == 1 and alpha == 1:
        return mx.add(mx.matmul(a, b), x)
    inner = wide(out.dtype)
    made = to(alpha, inner) * to(mx.matmul(a, b), inner)
    if beta != 0:
        made = made + to(beta, inner) * to(x, inner)
    return to(mx.broadcast_to(made, out.shape), out.dtype)


@aten("linear")
def linear(out: Out, x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    made = mx.matmul(x, mx.transpose(weight) if weight.ndim == 2 else weight)
    return made if bias is None else made + bias


# ---- Fourier ----


def _scaled(x: mx.array, normalization: int, n: Any, inverse: bool) -> mx.array:
    """torch's transforms of either direction leave sums as they are (0), divide by sqrt(n) (1) or by n (2); Weft's
    inverse divides by n."""
    factor = {0: 1.0, 1: float(n) ** -0.5, 2: 1.0 / float(n)}[normalization] * (float(n) if inverse else 1.0)
    return x if factor == 1 else x * to(factor, x.dtype)


@aten("_fft_r2c")
def fft_r2c(out: Out, x: mx.array, dim: Sequence[int], normalization: int, onesided: bool) -> mx.array:
    axes = [axis_of(d, x.ndim) for d in dim]
    n: Any = 1
    for axis in axes:
        n = n * x.shape[axis]
    made = mx.fft.rfftn(x, axes=axes) if onesided else mx.fft.fftn(to(x, out.dtype), axes=axes)
    return _scaled(to(made, out.dtype), normalization, n, False)


@aten("_fft_c2r")
def fft_c2r(out: Out, x: mx.array, dim: Sequence[int], normalization: int, last_dim_size: Any) -> mx.array:
    axes = [axis_of(d, x.ndim) for d in dim]
    sizes = [x.shape[axis] for axis in axes[:-1]] + [last_dim_size]
    n: Any = 1
    for size in sizes:
        n = n * size
    return _scaled(to(mx.fft.irfftn(x, s=sizes, axes=axes), out.dtype), normalization, n, True)


@aten("_fft_c2c")
def fft_c2c(out: Out, x: mx.array, dim: Sequence[int], normalization: int, forward: bool) -> mx.array:
    axes = [axis_of(d, x.ndim) for d in dim]
    n: Any = 1
    for axis in axes:
        n = n * x.shape[axis]
    made = mx.fft.fftn(x, axes=axes) if forward else mx.fft.ifftn(x, axes=axes)
    return _scaled(to(made, out.dtype), normalization, n, not forward)


@aten("addbmm")
def addbmm(out: Out, x: mx.array, a: mx.array, b: mx.array, *, beta: Any = 1, alpha: Any = 1) -> mx.array:
    """The sum of all products of a batch."""
    inner = wide(out.dtype)
    made = mx.sum(to(mx.matmul(a, b), inner), axis=0)
    made = made if alpha == 1 else to(alpha, inner) * made
    if beta != 0:
        made = made + (to(x, inner) if beta == 1 else to(beta, inner) * to(x, inner))
    return to(mx.broadcast_to(made, out.shape), out.dtype)


@aten("_trilinear")
def trilinear(
    out: Out, a: mx.array, b: mx.array, c: mx.array, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> mx.array:  # fmt: skip
    """The sum over `sumdim` of the product of three arrays, each with axes of one element where it says."""
    inner = wide(out.dtype)
    parts = [
        mx.expand_dims(to(x, inner), sorted(axes)) if axes else to(x, inner)
        for x, axes in ((a, expand1), (b, expand2), (c, expand3))
    ]
    return to(mx.sum(parts[0] * parts[1] * parts[2], axis=tuple(sumdim)), out.dtype)
