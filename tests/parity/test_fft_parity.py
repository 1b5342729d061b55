"""`mx.fft` beside MLX's: names and signatures, shapes, dtypes, values, gradients, and errors of the same class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as wx
from tests.parity.oracle import mx, ours, spread, theirs

SHAPES = ((7,), (8,), (4, 6), (5, 17), (2, 3, 10), (3, 64), (1, 257))


def numbers(*shape: int, kind: Any = np.complex64) -> np.ndarray:
    rng = np.random.default_rng(shape)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if kind is np.complex64 else 4 * values).astype(kind)


def compare(call: Callable[[Any, Any], Any], x: np.ndarray) -> None:
    """The same call in both libraries: the same kind of array, and values that are near."""
    expected, found = call(mx, theirs(x)), call(wx, ours(x))
    assert tuple(found.shape) == tuple(expected.shape)
    assert found.dtype.name == str(expected.dtype).rpartition(".")[2]
    a, b = np.array(found), np.array(expected)
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(1.0, float(np.abs(b).max(initial=0.0))))


def test_names_and_signatures() -> None:
    theirs_, ours_ = ({n for n in dir(m.fft) if not n.startswith("_")} for m in (mx, wx))
    assert theirs_ <= ours_


ONE = ("fft", "ifft", "rfft", "irfft")
SEVERAL = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_axis(name: str, shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    for axis in range(-len(shape), len(shape)):
        for n in (None, 1, 5, 16):
            if name == "irfft" and n is None and shape[axis] == 1:
                continue
            compare(lambda m, x, a=axis, n=n: getattr(m.fft, name)(x, n=n, axis=a, stream=m.cpu), x)  # type: ignore[misc]


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_norms(name: str, norm: str) -> None:
    compare(lambda m, x: getattr(m.fft, name)(x, norm=norm, stream=m.cpu), numbers(3, 9))
    compare(lambda m, x: getattr(m.fft, f"{name}n")(x, norm=norm, stream=m.cpu), numbers(3, 9))


@pytest.mark.parametrize("name", SEVERAL)
def test_several_axes(name: str) -> None:
    x = numbers(4, 5, 6)
    compare(lambda m, x: getattr(m.fft, name)(x, stream=m.cpu), x)
    for axes in ([0, 1], [1, 0], [-1, 0], [2], []):
        compare(lambda m, x, a=axes: getattr(m.fft, name)(x, axes=a, stream=m.cpu), x)  # type: ignore[misc]
    compare(lambda m, x: getattr(m.fft, name)(x, s=[3, 8], axes=[0, 2], stream=m.cpu), x)


@pytest.mark.parametrize("kind", [np.bool_, np.int8, np.uint32, np.int64, np.float16, np.float32])
def test_dtypes(kind: Any) -> None:
    for name in ONE:
        compare(lambda m, x, name=name: getattr(m.fft, name)(x, stream=m.cpu), numbers(3, 6, kind=kind))  # type: ignore[misc]


@pytest.mark.parametrize("layout", ["transposed", "reversed", "strided"])
def test_layouts(layout: str) -> None:
    for name in ONE:
        compare(lambda m, x, name=name: getattr(m.fft, name)(spread(m, x, layout), axis=0, stream=m.cpu), numbers(6, 8))  # type: ignore[misc]


def test_frequencies() -> None:
    for n in (1, 4, 5):
        for d in (1.0, 0.3):
            compare(lambda m, x, n=n, d=d: m.fft.fftfreq(n, d, stream=m.cpu), numbers(1))  # type: ignore[misc]
            compare(lambda m, x, n=n, d=d: m.fft.rfftfreq(n, d=d, stream=m.cpu), numbers(1))  # type: ignore[misc]
    for axes in (None, 0, -1, [0, 1], [0, 0]):
        compare(lambda m, x, a=axes: m.fft.fftshift(x, axes=a, stream=m.cpu), numbers(4, 5))  # type: ignore[misc]
        compare(lambda m, x, a=axes: m.fft.ifftshift(x, axes=a, stream=m.cpu), numbers(4, 5))  # type: ignore[misc]


WINDOW = np.hanning(12).astype(np.float32)[1:-1]


@pytest.mark.parametrize("parameters", [
    {}, {"n_fft": 15}, {"hop_length": 5}, {"win_length": 11}, {"window": WINDOW}, {"window": WINDOW, "win_length": 4},
    {"center": False}, {"pad_mode": "constant"}, {"pad_mode": "edge"}, {"norm": "ortho"}, {"onesided": False},
], ids=str)  # fmt: skip
def test_short_time_transforms(parameters: dict[str, Any]) -> None:
    def both(m: Any, x: Any) -> tuple[Any, Any]:
        given = {"n_fft": 16, **parameters}
        if "window" in given:
            given["window"] = m.array(WINDOW)
        spectrum = m.fft.stft(x, **given, stream=m.cpu)
        given.pop("pad_mode", None)
        return spectrum, m.fft.istft(spectrum, **given, stream=m.cpu)

    for shape in ((61,), (2, 70), (2, 1, 40)):
        compare(lambda m, x: both(m, x)[0], numbers(*shape, kind=np.float32))
        compare(lambda m, x: both(m, x)[1], numbers(*shape, kind=np.float32))
    compare(lambda m, x: m.fft.stft(x, 16, stream=m.cpu), numbers(50))
    compare(lambda m, x: m.fft.stft(x, 16, onesided=True, stream=m.cpu), numbers(50))


def test_lengths_of_inverse_short_time_transforms() -> None:
    x = numbers(2, 9, 20)
    for length in (None, 30, 0, 100):
        compare(lambda m, x, n=length: m.fft.istft(x, length=n, stream=m.cpu), x)  # type: ignore[misc]
    compare(lambda m, x: m.fft.istft(x, hop_length=20, stream=m.cpu), x)
    compare(lambda m, x: m.fft.istft(x, 17, window=m.zeros(17), stream=m.cpu), x)
    compare(lambda m, x: m.fft.istft(x, onesided=False, stream=m.cpu), x)


def test_gradients() -> None:
    """Of real functions of real arrays; `w` makes all parts of the spectrum count differently."""
    w = numbers(3, 9, kind=np.float32)

    def energy(name: str, **parameters: Any) -> Callable[[Any, Any], Any]:
        def call(m: Any, x: Any) -> Any:
            def total(x: Any) -> Any:
                y = getattr(m.fft, name)(x, **parameters, stream=m.cpu)
                weights = m.array(w)[:, : y.shape[1]]
                return m.sum(m.real(y) * weights) + m.sum(m.square(m.abs(y)) * weights)

            return m.grad(total)(x)

        return call

    for name in ONE:
        compare(energy(name, n=8), numbers(3, 8, kind=np.float32))
        compare(energy(name, n=7, norm="ortho"), numbers(3, 8, kind=np.float32))
    compare(energy("fft2"), numbers(3, 8, kind=np.float32))
    compare(energy("rfftn"), numbers(3, 8, kind=np.float32))


ERRORS: dict[str, Callable[[Any, Any], Any]] = {
    "length 0": lambda m, x: m.fft.fft(x, n=0),
    "negative": lambda m, x: m.fft.rfft(x, n=-1),
    "fraction": lambda m, x: m.fft.fft(x, n=2.0),
    "axis": lambda m, x: m.fft.fft(x, axis=2),
    "axis before": lambda m, x: m.fft.irfft(x, axis=-3),
    "norm": lambda m, x: m.fft.fft(x, norm="none"),
    "scalar": lambda m, x: m.fft.fft(m.array(1.0)),
    "scalar n": lambda m, x: m.fft.fftn(m.array(1.0)),
    "nothing": lambda m, x: m.fft.fft(x[:, :0]),
    "one of a spectrum": lambda m, x: m.fft.irfft(x[:, :1]),
    "sizes without axes": lambda m, x: m.fft.fftn(x, s=(2, 3)),
    "sizes of inverse without axes": lambda m, x: m.fft.irfftn(x, s=(2, 3)),
    "sizes": lambda m, x: m.fft.fftn(x, s=(2,), axes=(0, 1)),
    "twice": lambda m, x: m.fft.fftn(x, axes=(0, 0)),
    "axes": lambda m, x: m.fft.fftn(x, axes=(2,)),
    "two of one": lambda m, x: m.fft.fft2(x[0]),
    "shift": lambda m, x: m.fft.fftshift(x, axes=5),
    "frequencies": lambda m, x: m.fft.fftfreq(0),
    "spacing": lambda m, x: m.fft.fftfreq(4, d=0.0),
    "no samples": lambda m, x: m.fft.stft(m.array(1.0), 16),
    "no frame": lambda m, x: m.fft.stft(x, 0),
    "no hop": lambda m, x: m.fft.stft(x, 4, hop_length=0),
    "short frame": lambda m, x: m.fft.stft(x, 3),
    "long window": lambda m, x: m.fft.stft(x, 4, win_length=5),
    "flat window": lambda m, x: m.fft.stft(x, 4, window=x),
    "too short": lambda m, x: m.fft.stft(x, 16, center=False),
    "padding": lambda m, x: m.fft.stft(x, 4, pad_mode="wrap"),
    "short-time norm": lambda m, x: m.fft.stft(x, 4, norm="none"),
    "no frames": lambda m, x: m.fft.istft(x[:, :0]),
    "no axis of frames": lambda m, x: m.fft.istft(x[0]),
    "one frequency": lambda m, x: m.fft.istft(x[:1]),
    "no hop back": lambda m, x: m.fft.istft(x, hop_length=0),
    "real frequencies": lambda m, x: m.fft.rfftfreq(-1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    with pytest.raises(Exception) as expected:
        mx.eval(ERRORS[name](mx, mx.zeros((4, 6))))
    with pytest.raises(expected.type):
        ERRORS[name](wx, wx.zeros((4, 6)))
