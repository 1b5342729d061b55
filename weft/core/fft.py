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
    is_sequence,
    normalize_axis,
    to_node,
    whole_number,
    wrap,
)
from weft.core.creating import arange, ones, zeros
from weft.core.gathering import take
from weft.core.joining import concatenate, pad, roll
from weft.core.shaping import broadcast_to, swapaxes
from weft.graph.node import Node, Size
from weft.primitives.fourier import NORMS, FourierTransform, RealFourierInverse, RealFourierTransform
from weft.primitives.views import Slice

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "ifft", "ifft2", "ifftn", "ifftshift", "irfft", "irfft2", "irfftn",
    "istft", "rfft", "rfft2", "rfftfreq", "rfftn", "stft",
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
    if not is_sequence(given):
        raise TypeError(f"[{name}] {what} must be a list or tuple of integers; got {given!r}.")
    return given  # type: ignore[no-any-return]


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


def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str = "backward", stream: Stream = None) -> array:
    """The discrete Fourier transform along one axis, which is cut or filled up with zeros to n elements.

    `norm`: "backward" (the inverse is divided by n), "forward" (this is) or "ortho" (both are, by its root).

    >>> fft.fft(array([1.0, 2.0, 3.0, 4.0]))
    array([10+0j, -2+2j, -2+0j, -2-2j], dtype=complex64)
    """
    x, axis = _one_axis("fft", a, axis)
    return wrap(_transform("fft", x, axis, n, _norm("fft", norm), inverse=False))


def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str = "backward", stream: Stream = None) -> array:
    """The inverse of `fft`."""
    x, axis = _one_axis("ifft", a, axis)
    return wrap(_transform("ifft", x, axis, n, _norm("ifft", norm), inverse=True))


def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str = "backward", stream: Stream = None) -> array:
    """The transform of n real numbers (of complex ones: of their real parts) at 0 to n // 2. The rest mirrors it.

    >>> fft.rfft(array([1.0, 2.0, 3.0, 4.0]))
    array([10+0j, -2+2j, -2+0j], dtype=complex64)
    """
    x, axis = _one_axis("rfft", a, axis)
    return wrap(_real_transform("rfft", x, axis, n, _norm("rfft", norm)))


def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str = "backward", stream: Stream = None) -> array:
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


def fft2(a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str = "backward", stream: Stream = None) -> array:
    """The transform over two axes, cut or filled up to the lengths in `s`."""
    return _several("fft2", a, s, axes, norm, inverse=False)


def ifft2(a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str = "backward", stream: Stream = None) -> array:
    """The inverse of `fft2`."""
    return _several("ifft2", a, s, axes, norm, inverse=True)


def fftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str = "backward", stream: Stream = None) -> array:
    """The transform over several axes (all of them unless told), cut or filled up to the lengths in `s`."""
    return _several("fftn", a, s, axes, norm, inverse=False)


def ifftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str = "backward", stream: Stream = None) -> array:
    """The inverse of `fftn`."""
    return _several("ifftn", a, s, axes, norm, inverse=True)


def rfft2(a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str = "backward", stream: Stream = None) -> array:
    """The transform of real numbers over two axes; the last of them has the half of the spectrum that says all."""
    return _several_real("rfft2", a, s, axes, norm)


def irfft2(a: ArrayLike, s: Axes = None, axes: Axes = (-2, -1), norm: str = "backward", stream: Stream = None) -> array:
    """The inverse of `rfft2`."""
    return _several_inverse("irfft2", a, s, axes, norm)


def rfftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str = "backward", stream: Stream = None) -> array:
    """The transform of real numbers over several axes (all of them unless told); the last of them has the half of the
    spectrum that says all."""
    return _several_real("rfftn", a, s, axes, norm)


def irfftn(a: ArrayLike, s: Axes = None, axes: Axes = None, norm: str = "backward", stream: Stream = None) -> array:
    """The inverse of `rfftn`."""
    return _several_inverse("irfftn", a, s, axes, norm)


# ---- frequencies ----


def fftshift(a: ArrayLike, axes: int | Sequence[int] | None = None, stream: Stream = None) -> array:
    """A spectrum with the frequency 0 in the middle of each axis.

    >>> fft.fftshift(array([0, 1, 2, -2, -1]))
    array([-2, -1, 0, 1, 2], dtype=int32)
    """
    return _shifted("fftshift", a, axes, back=False)


def ifftshift(a: ArrayLike, axes: int | Sequence[int] | None = None, stream: Stream = None) -> array:
    """The inverse of `fftshift`."""
    return _shifted("ifftshift", a, axes, back=True)


def _shifted(name: str, a: ArrayLike, axes: Any, back: bool) -> array:
    x = wrap(to_node(a))
    if axes is None:
        axes = range(x.ndim)
    elif not is_sequence(axes):
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


def fftfreq(n: int, d: float = 1.0, stream: Stream = None) -> array:
    """The frequencies of the elements of a transform of n samples that are d apart (float32).

    >>> fft.fftfreq(4)
    array([0, 0.25, -0.5, -0.25], dtype=float32)
    """
    n, d = _frequencies("fftfreq", n, d)
    return _spaced(concatenate([arange(0, (n + 1) // 2), arange(-(n // 2), 0)]), n, d)


def rfftfreq(n: int, d: float = 1.0, stream: Stream = None) -> array:
    """The same for `rfft`: from 0 on."""
    n, d = _frequencies("rfftfreq", n, d)
    return _spaced(arange(0, n // 2 + 1), n, d)


def _spaced(k: array, n: int, d: float) -> array:
    """k / (n d), rounded once to float32."""
    return e.astype(e.divide(e.astype(k, dt.float64), n * d), dt.float32)


# ---- short-time transforms ----


def stft(
    x: ArrayLike,
    n_fft: int = 2048,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: ArrayLike | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    norm: str = "backward",
    onesided: bool | None = None,
    stream: Stream = None,
) -> array:
    """The transforms of frames of `n_fft` samples of the last axis, each times a window: (..., frequencies, frames).

    Parameters
    ----------
    hop_length : samples from one frame to the next; a quarter of a frame unless told
    win_length : how long the window is, if none is given: ones
    window : at most `n_fft` numbers; zeros are put around them
    center : whether both ends are padded by half a frame, by `pad_mode` of `pad`, so that frame i is around sample
        i * hop_length
    onesided : whether the half of the spectrum is left out that mirrors the other; so it is for real samples

    >>> fft.stft(ones((64,)), n_fft=16).shape
    (9, 17)
    """
    norm, node = _norm("stft", norm), to_node(x)
    if not node.ndim:
        raise ValueError("[stft] Input must have at least one dimension.")
    n_fft, hop = _frame("stft", n_fft, hop_length)
    samples = wrap(_complex(node) if node.dtype.is_complex else _real(node))
    weights = _window("stft", window, win_length, n_fft)
    if center:
        widths = [(0, 0)] * (samples.ndim - 1) + [(n_fft // 2, n_fft // 2)]
        samples = pad(samples, widths, pad_mode)
    count = samples.shape[-1]
    if count < n_fft:
        raise ValueError(
            f"[stft] Input is too short for the given n_fft: {count} samples for frames of {n_fft}. Pad it, or leave "
            "`center` on."
        )
    frames = take(samples, _places(1 + (count - n_fft) // hop, hop, n_fft), -1)
    if weights is not None:
        frames = frames * e.astype(weights, dt.real_of(frames.dtype) if not weights.dtype.is_complex else weights.dtype)
    one = not samples.dtype.is_complex if onesided is None else onesided
    spectrum = (rfft if one else fft)(frames, norm=norm)
    return swapaxes(spectrum, -1, -2)


def istft(
    stft_matrix: ArrayLike,
    n_fft: int | None = None,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: ArrayLike | None = None,
    center: bool = True,
    norm: str = "backward",
    onesided: bool | None = None,
    length: int | None = None,
    stream: Stream = None,
) -> array:
    """The samples whose `stft` this is: frames are multiplied by the window again, added up where they overlap, and
    divided by the sum of the squares of the windows there.

    `n_fft` is 2 * (frequencies - 1) unless told, or their number if not `onesided`. `length` cuts the result, or fills
    it up with zeros; without it half a frame is cut from both ends if the frames were centered.

    >>> x = array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    >>> fft.istft(fft.stft(x, n_fft=4))
    array([1, 2, 3, ..., 6, 7, 8], dtype=float32)
    """
    norm, node = _norm("istft", norm), to_node(stft_matrix)
    if node.ndim < 2:
        raise ValueError("[istft] Input must have at least two dimensions (freq, frames).")
    one = onesided is None or onesided
    known = 2 * (node.shape[-2] - 1) if one else node.shape[-2]
    n_fft, hop = _frame("istft", known if n_fft is None else n_fft, hop_length)
    weights = _window("istft", window, win_length, n_fft)
    count = node.shape[-1]
    if count < 1:
        raise ValueError("[istft] there are no frames; the last axis is empty.")
    spectrum = swapaxes(wrap(_complex(node)), -1, -2)
    frames = irfft(spectrum, n_fft, norm=norm) if one else e.real(ifft(spectrum, n_fft, norm=norm))
    weights = ones((n_fft,), frames.dtype) if weights is None else e.astype(weights, frames.dtype)
    places, total = _places(count, hop, n_fft), (count - 1) * hop + n_fft
    added = zeros((*frames.shape[:-2], total), frames.dtype).at[..., places].add(frames * weights)
    squares = broadcast_to(e.square(weights), places.shape)
    envelope = zeros((total,), frames.dtype).at[places].add(squares)
    found = added / e.maximum(envelope, _LEAST_ENVELOPE)
    around = n_fft // 2 if center else 0
    if length is None:
        return found[..., around : total - around]
    found = found[..., around:]
    return wrap(_fitted(found._node, found.ndim - 1, _samples(length)))


_LEAST_ENVELOPE = 1e-8
"""What the sum of the squares of windows counts as where it is less: there is next to nothing to divide."""


def _samples(length: Any) -> Size:
    found: Size = whole_number("istft", "length", length)
    if found < 0:
        raise ValueError(f"[istft] length must not be negative; got {found}.")
    return found


def _frame(name: str, n_fft: Any, hop_length: Any) -> tuple[Any, Any]:
    """(samples of a frame, samples from one to the next)."""
    size = whole_number(name, "n_fft", n_fft)
    if size < 1:
        raise ValueError(f"[{name}] n_fft must be positive; got {size}.")
    hop = size // 4 if hop_length is None else whole_number(name, "hop_length", hop_length)
    if hop < 1:
        raise ValueError(f"[{name}] hop_length must be positive; got {hop}.")
    return size, hop


def _window(name: str, window: Any, win_length: Any, n_fft: Any) -> array | None:
    """The window with zeros around it, as long as a frame; None if it is all ones."""
    if window is None and win_length is None:
        return None
    if window is None:
        found = ones((whole_number(name, "win_length", win_length),))
    else:
        found = wrap(to_node(window))
    if found.ndim != 1:
        raise ValueError(f"[{name}] window must be a one-dimensional array; got {found.ndim} axes.")
    given = found.shape[0]
    if given > n_fft:
        raise ValueError(f"[{name}] window length must not exceed n_fft; got {given} and {n_fft}.")
    before = (n_fft - given) // 2
    return pad(found, [(before, n_fft - given - before)])


def _places(frames: Any, hop: Any, n_fft: Any) -> array:
    """The numbers of the samples of each frame."""
    return e.add(e.multiply(arange(frames), hop)[:, None], arange(n_fft))
