"""`mx.fft`: discrete Fourier transforms of any length, along any axes.

float32 and complex64 give complex64, as in MLX; float64 and complex128 give complex128 (MLX: complex64). Integers, bool
and the half types are taken as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import dtypes as dt
from weft.core import elementwise as e
from weft.core._common import (
    ArrayLike,
    array,
    astype,
    bind,
    normalize_axis,
    to_node,
    whole_number,
    wrap,
)
from weft.core.creating import arange
from weft.core.joining import concatenate, pad, roll
from weft.graph.node import Node, Size
from weft.primitives.fourier import NORMS, FourierTransform, RealFourierInverse, RealFourierTransform
from weft.primitives.views import Slice

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "ifft", "ifft2", "ifftn", "ifftshift", "irfft", "irfft2", "irfftn",
    "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

Stream = Any
Axes = Sequence[int] | None


# ---- operands ----


def _norm(name: str, norm: Any) -> str:
    if norm not in NORMS:
        raise ValueError(
            f"[{name}] Invalid norm. Expected one of {{'backward', 'ortho', 'forward'}}; got {norm!r}."
        )  # fmt: skip
    return str(norm)


def _real(a: Node) -> Node:
    """The operand of a real transform; of complex numbers, their real parts."""
    return astype(a, dt.float64 if a.dtype in (dt.float64, dt.complex128) else dt.float32)


def _complex(a: Node) -> Node:
    return astype(a, dt.complex128 if a.dtype in (dt.float64, dt.complex128) else dt.complex64)


def _length(name: str, n: Any) -> Size:
    """A length that was asked for."""
    found: Size = whole_number(name, "n", n)
    if found < 1:
        raise ValueError(f"[{name}] Invalid FFT output size requested ({found}); it must be at least 1.")
    return found


def _fitted(x: Node, axis: int, n: Size) -> Node:
    """The first n elements along an axis, zeros behind the last."""
    given = x.shape[axis]
    if given == n:
        return x
    if given > n:
        shape = (*x.shape[:axis], n, *x.shape[axis + 1 :])
        return bind(Slice((0,) * x.ndim, shape, (1,) * x.ndim), x)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, n - given)  # type: ignore[assignment]
    return pad(wrap(x), widths)._node


def _sizes(name: str, x: Node, s: Any, axes: Any) -> tuple[list[int], list[Size | None]]:
    """The axes of a transform over several, in their order, and the length that each is given."""
    if not x.ndim:
        raise ValueError(f"[{name}] Requires array with at least one dimension.")
    if axes is None:
        if s is not None:
            raise ValueError(
                f"[{name}] `axes` should not be `None` if `s` is not `None`; name the axes that `s` is for."
            )  # fmt: skip
        return list(range(x.ndim)), [None] * x.ndim
    found = [normalize_axis(name, axis, x.ndim) for axis in _sequence(name, "axes", axes)]
    if len(set(found)) != len(found):
        raise ValueError(f"[{name}] Duplicated axis received {tuple(axes)}.")
    if s is None:
        return found, [None] * len(found)
    lengths = [_length(name, n) for n in _sequence(name, "s", s)]
    if len(lengths) != len(found):
        raise ValueError(
            f"[{name}] Shape and axes have different sizes: {len(lengths)} and {len(found)}."
        )  # fmt: skip
    return found, list(lengths)


def _sequence(name: str, what: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"[{name}] {what} must be a list or tuple of integers; got {given!r}.")
    return given


# ---- transforms of nodes ----


def _transform(name: str, x: Node, axis: int, n: Size | None, norm: str, inverse: bool) -> Node:
    length = _length(name, x.shape[axis] if n is None else n)
    return bind(FourierTransform(axis, norm, inverse), _fitted(_complex(x), axis, length))


def _real_transform(name: str, x: Node, axis: int, n: Size | None, norm: str) -> Node:
    length = _length(name, x.shape[axis] if n is None else n)
    return bind(RealFourierTransform(axis, norm), _fitted(_real(x), axis, length))


def _real_inverse(name: str, x: Node, axis: int, n: Size | None, norm: str) -> Node:
    length = _length(name, 2 * (x.shape[axis] - 1) if n is None else n)
    return bind(RealFourierInverse(axis, norm, length), _fitted(_complex(x), axis, length // 2 + 1))


def _one_axis(name: str, a: ArrayLike, axis: Any) -> tuple[Node, int]:
    x = to_node(a)
    return x, normalize_axis(name, axis, x.ndim)


def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str = "backward", *, stream: Stream = None) -> array:
    """The discrete Fourier transform along one axis, which is cut or filled up with zeros to n elements.

    `norm`: "backward" (the inverse is divided by n), "forward" (this is) or "ortho" (both are, by its root).

    >>> fft.fft(array([1.0, 2.0, 3.0, 4.0]))
    array([10+0j, -2+2j, -2+0j, -2-2j], dtype=complex64)
    """
    x, axis = _one_axis("fft", a, axis)
    return wrap(_transform("fft", x, axis, n, _norm("fft", norm), inverse=False))


def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str = "backward", *, stream: Stream = None) -> array:
    """The inverse of `fft`."""
    x, axis = _one_axis("ifft", a, axis)
    return wrap(_transform("ifft", x, axis, n, _norm("ifft", norm), inverse=True))


def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str = "backward", *, stream: Stream = None) -> array:
    """The transform of n real numbers (of complex ones: of their real parts) at 0 to n // 2. The rest mirrors it.

    >>> fft.rfft(array([1.0, 2.0, 3.0, 4.0]))
    array([10+0j, -2+2j, -2+0j], dtype=complex64)
    """
    x, axis = _one_axis("rfft", a, axis)
    return wrap(_real_transform("rfft", x, axis, n, _norm("rfft", norm)))


def irfft(
    a: ArrayLike, n: int | None = None, axis: int = -1, norm: str = "backward", *, stream: Stream = None
) -> array:
    """The inverse of `rfft`: n real numbers, of which the transform at 0 to n // 2 is given. Without n there are an
    even number of them."""
    x, axis = _one_axis("irfft", a, axis)
    return wrap(_real_inverse("irfft", x, axis, n, _norm("irfft", norm)))


# ---- several axes ----


def _several(name: str, a: ArrayLike, s: Any, axes: Any, norm: Any, inverse: bool) -> array:
    x, norm = to_node(a), _norm(name, norm)
    found, lengths = _sizes(name, x, s, axes)
    for axis, n in reversed(list(zip(found, lengths, strict=True))):
        x = _transform(name, x, axis, n, norm, inverse)
    return wrap(x)


def _several_real(name: str, a: ArrayLike, s: Any, axes: Any, norm: Any) -> array:
    """The last axis is that of reals."""
    x, norm = to_node(a), _norm(name, norm)
    found, lengths = _sizes(name, x, s, axes)
    for number, (axis, n) in enumerate(reversed(list(zip(found, lengths, strict=True)))):
        if number:
            x = _transform(name, x, axis, n, norm, inverse=False)
        else:
            x = _real_transform(name, x, axis, n, norm)
    return wrap(x)


def _several_inverse(name: str, a: ArrayLike, s: Any, axes: Any, norm: Any) -> array:
    x, norm = to_node(a), _norm(name, norm)
    found, lengths = _sizes(name, x, s, axes)
    for number, (axis, n) in enumerate(zip(found, lengths, strict=True)):
        if number < len(found) - 1:
            x = _transform(name, x, axis, n, norm, inverse=True)
        else:
            x = _real_inverse(name, x, axis, n, norm)
    return wrap(x)


def fft2(
    a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str = "backward", *, stream: Stream = None
) -> array:
    """The transform over two axes, cut or filled up to the lengths in `s`."""
    return _several("fft2", a, s, axes, norm, inverse=False)


def ifft2(
    a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str = "backward", *, stream: Stream = None
) -> array:
    """The inverse of `fft2`."""
    return _several("ifft2", a, s, axes, norm, inverse=True)


def fftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str = "backward", *, stream: Stream = None) -> array:
    """The transform over several axes (all of them unless told), cut or filled up to the lengths in `s`."""
    return _several("fftn", a, s, axes, norm, inverse=False)


def ifftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str = "backward", *, stream: Stream = None) -> array:
    """The inverse of `fftn`."""
    return _several("ifftn", a, s, axes, norm, inverse=True)


def rfft2(
    a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str = "backward", *, stream: Stream = None
) -> array:
    """The transform of real numbers over two axes; the last of them has the half of the spectrum that says all."""
    return _several_real("rfft2", a, s, axes, norm)


def irfft2(
    a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str = "backward", *, stream: Stream = None
) -> array:
    """The inverse of `rfft2`."""
    return _several_inverse("irfft2", a, s, axes, norm)


def rfftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str = "backward", *, stream: Stream = None) -> array:
    """The transform of real numbers over several axes (all of them unless told); the last of them has the half of the
    spectrum that says all."""
    return _several_real("rfftn", a, s, axes, norm)


def irfftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str = "backward", *, stream: Stream = None) -> array:
    """The inverse of `rfftn`."""
    return _several_inverse("irfftn", a, s, axes, norm)


# ---- frequencies ----


def fftshift(a: ArrayLike, axes: int | Sequence[int] | None = None, *, stream: Stream = None) -> array:
    """A spectrum with the frequency 0 in the middle of each axis.

    >>> fft.fftshift(array([0, 1, 2, -2, -1]))
    array([-2, -1, 0, 1, 2], dtype=int32)
    """
    return _shifted("fftshift", a, axes, back=False)


def ifftshift(a: ArrayLike, axes: int | Sequence[int] | None = None, *, stream: Stream = None) -> array:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", a, axes, back=True)


def _shifted(name: str, a: ArrayLike, axes: Any, back: bool) -> array:
    x = wrap(to_node(a))
    if axes is None:
        axes = range(x.ndim)
    elif not isinstance(axes, (list, tuple)):
        axes = (axes,)
    found = [normalize_axis(name, axis, x.ndim) for axis in axes]
    if not found:
        return x
    shifts = [-(x.shape[axis] // 2) if back else x.shape[axis] // 2 for axis in found]
    return roll(x, shifts, found)


def _frequencies(name: str, n: Any, d: Any) -> tuple[int, float]:
    found, spacing = whole_number(name, "n", n), float(d)
    if found < 1:
        raise ValueError(f"[{name}] `n` must be greater than 0; got {found}.")
    if spacing == 0.0:
        raise ValueError(f"[{name}] `d` must be non-zero.")
    return found, spacing


def fftfreq(n: int, d: float = 1.0, *, stream: Stream = None) -> array:
    """The frequencies of the elements of a transform of n samples that are d apart (float32).

    >>> fft.fftfreq(4)
    array([0, 0.25, -0.5, -0.25], dtype=float32)
    """
    n, d = _frequencies("fftfreq", n, d)
    return _spaced(concatenate([arange(0, (n + 1) // 2), arange(-(n // 2), 0)]), n, d)


def rfftfreq(n: int, d: float = 1.0, *, stream: Stream = None) -> array:
    """The same for `rfft`: from 0 on."""
    n, d = _frequencies("rfftfreq", n, d)
    return _spaced(arange(0, n // 2 + 1), n, d)


def _spaced(k: array, n: int, d: float) -> array:
    """k / (n d), rounded once to float32."""
    return e.astype(e.divide(e.astype(k, dt.float64), n * d), dt.float32)
