"""Convolutions against their definition in float64, their transforms, sizes that change, and errors; gather_mm."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from weft.targets.cpu.matmul.tasks import even_blocks

ROUNDING = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8, mx.float64: 2.0**-53}


def draw(shape: tuple[int, ...], dtype: Any = mx.float32, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape), mx.float64).astype(dtype)


def wide(x: mx.array) -> np.ndarray:
    return np.asarray(x.astype(mx.float64))


def by_definition(
    x: np.ndarray, w: np.ndarray, stride: Any, low: Any, high: Any, gap: Any, between: Any, groups: int, flip: bool
) -> np.ndarray:
    """One output place at a time."""
    axes = x.ndim - 2
    sizes = [(n - 1) * b + 1 for n, b in zip(x.shape[1:-1], between, strict=True)]
    spaced = np.zeros((x.shape[0], *sizes, x.shape[-1]))
    spaced[(slice(None), *[slice(None, None, b) for b in between])] = x
    padded = np.pad(spaced, [(0, 0), *[(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)], (0, 0)])
    cuts = [slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, padded.shape[1:-1], strict=True)]
    padded = padded[(slice(None), *cuts)]
    if flip:
        w = np.flip(w, tuple(range(1, axes + 1)))
    kernel = w.shape[1:-1]
    outs = [(n - g * (k - 1) - 1) // s + 1 for n, k, g, s in zip(padded.shape[1:-1], kernel, gap, stride, strict=True)]
    made = np.zeros((x.shape[0], *outs, w.shape[0]))
    each, per = w.shape[-1], w.shape[0] // groups
    for place in itertools.product(*map(range, outs)):
        window = [
            slice(p * s, p * s + g * (k - 1) + 1, g) for p, s, g, k in zip(place, stride, gap, kernel, strict=True)
        ]
        part = padded[(slice(None), *window)]
        for group in range(groups):
            a = part[..., group * each : (group + 1) * each].reshape(x.shape[0], w[0].size)
            b = w[group * per : (group + 1) * per].reshape(per, w[0].size)
            made[(slice(None), *place, slice(group * per, (group + 1) * per))] = a @ b.T
    return made


def close(got: mx.array, expected: np.ndarray, magnitudes: np.ndarray, terms: int) -> None:
    rounding = ROUNDING[got.dtype]
    inner = max(2.0**-53, min(rounding, 2.0**-24))  # halves are summed in float32
    assert got.shape == expected.shape
    assert np.all(
        np.abs(wide(got) - expected)
        <= inner * terms * magnitudes + 2 * rounding * np.abs(expected) + 2.0**-26 * rounding
    )


@st.composite
def cases(drawn: st.DrawFn) -> dict[str, Any]:
    axes = drawn(st.integers(1, 3))
    groups, each, per = drawn(
        st.sampled_from([(1, 3, 2), (2, 2, 3), (4, 1, 1), (3, 1, 2), (1, 1, 1), (1, 8, 5), (2, 9, 3), (1, 16, 17)])
    )

    def some(low: int, high: int) -> list[int]:
        return drawn(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    return {
        "x": (drawn(st.integers(0, 2)), *some(4, 7), groups * each), "w": (groups * per, *some(1, 3), each),
        "stride": some(1, 3), "padding": (some(-1, 2), some(-1, 2)), "kernel_dilation": some(1, 2),
        "input_dilation": some(1, 2), "groups": groups, "flip": drawn(st.booleans()),
    }  # fmt: skip


@settings(max_examples=40)
@given(case=cases(), dtype=st.sampled_from(list(ROUNDING)))
def test_conv_general(case: dict[str, Any], dtype: Any) -> None:
    x, w = draw(case.pop("x"), dtype), draw(case.pop("w"), dtype, 1)
    low, high = case["padding"]
    options = (
        case["stride"], low, high, case["kernel_dilation"], case["input_dilation"], case["groups"], case["flip"]
    )  # fmt: skip
    reach = [g * (k - 1) + 1 for g, k in zip(case["kernel_dilation"], w.shape[1:-1], strict=True)]
    sizes = [
        (n - 1) * b + 1 + a + c for n, b, a, c in zip(x.shape[1:-1], case["input_dilation"], low, high, strict=True)
    ]
    if any(n < r for n, r in zip(sizes, reach, strict=True)):
        with pytest.raises(ValueError, match="cannot be smaller"):
            mx.conv_general(x, w, **case)
        return
    got = mx.conv_general(x, w, **case)
    assert got.dtype is dtype
    expected = by_definition(wide(x), wide(w), *options)
    close(got, expected, by_definition(np.abs(wide(x)), np.abs(wide(w)), *options), w.size // w.shape[0])


@settings(max_examples=25)
@given(
    channels=st.sampled_from([1, 3, 8, 16, 20, 300]), outputs=st.integers(9, 70), images=st.integers(1, 3),
    size=st.integers(3, 9), stride=st.integers(1, 3), around=st.integers(0, 3), dtype=st.sampled_from(list(ROUNDING)),
)  # fmt: skip
def test_sums_have_the_order_of_products(
    channels: int, outputs: int, images: int, size: int, stride: int, around: int, dtype: Any
) -> None:
    """To the bit what the windows, side by side, times the weights are: over the window, then the channels."""
    x, w = draw((images, size, size, channels), dtype), draw((outputs, 3, 2, channels), dtype, 1)
    padded = mx.pad(x, [(0, 0), (around, around), (around, around), (0, 0)])
    places = [(size + 2 * around - k) // stride + 1 for k in (3, 2)]
    taps = [
        padded[:, i : i + (places[0] - 1) * stride + 1 : stride, j : j + (places[1] - 1) * stride + 1 : stride]
        for i in range(3)
        for j in range(2)
    ]
    rows = images * places[0] * places[1]
    if rows <= 8 and 6 * channels >= 64:
        return  # a product so narrow is summed in another order
    windows = mx.concatenate(taps, axis=-1).reshape(rows, -1)
    expected = (windows @ w.reshape(outputs, -1).T).reshape(images, *places, outputs)
    turned = mx.contiguous(w.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)
    for weights in (w, turned):
        assert mx.array_equal(mx.conv2d(x, weights, stride, around), expected).item()


RANKS = pytest.mark.parametrize("axes", [1, 2, 3])


@RANKS
def test_plain_and_transposed(axes: int) -> None:
    """A transposed convolution is the gradient of the plain one with its input."""
    sizes, kernel = (7, 6, 5)[:axes], (3, 2, 3)[:axes]
    x, w = draw((2, *sizes, 4), mx.float64), draw((6, *kernel, 4), mx.float64, 1)
    plain, transposed = getattr(mx, f"conv{axes}d"), getattr(mx, f"conv_transpose{axes}d")
    y = plain(x, w, 2, 1, 1)
    assert np.allclose(
        wide(y), by_definition(wide(x), wide(w), [2] * axes, [1] * axes, [1] * axes, [1] * axes, [1] * axes, 1, False),
        rtol=1e-12, atol=1e-12,
    )  # fmt: skip
    (back,) = mx.vjp(lambda x: plain(x, w, 2, 1, 1), [x], [y])[1]
    extra = tuple((n + 2 - k) % 2 for n, k in zip(sizes, kernel, strict=True))
    swapped = mx.transpose(w, (axes + 1, *range(1, axes + 1), 0))
    assert np.allclose(wide(transposed(y, swapped, 2, 1, 1, extra)), wide(back), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transforms(groups: int) -> None:
    x, w = draw((2, 6, 5, 4), mx.float64), draw((8, 3, 2, 4 // groups), mx.float64, 1)

    def f(x: mx.array, w: mx.array) -> mx.array:
        return mx.conv2d(x, w, (2, 1), (1, 0), 1, groups)

    for other in ((x, w), (draw((3, 9, 5, 4), mx.float64), w)):
        expected = np.asarray(f(*other)).tobytes()
        assert np.asarray(mx.compile(f)(*other)).tobytes() == expected
    shapeless = mx.compile(lambda x: f(x, w), shapeless=True)
    for shape in ((2, 6, 5, 4), (3, 9, 5, 4), (1, 7, 8, 4)):
        given_ = draw(shape, mx.float64)
        assert np.asarray(shapeless(given_)).tobytes() == np.asarray(f(given_, w)).tobytes()
    for place in (0, 1):
        t, c = draw((x, w)[place].shape, mx.float64, 5), draw(f(x, w).shape, mx.float64, 6)
        tangents = [mx.zeros_like(x), mx.zeros_like(w)]
        tangents[place] = t
        forward = mx.sum(mx.jvp(f, [x, w], tangents)[1][0] * c).item()
        backward = mx.sum(mx.vjp(f, [x, w], [c])[1][place] * t).item()
        assert abs(forward - backward) <= 1e-10 * (1 + abs(forward))
    many = draw((3, 2, 6, 5, 4), mx.float64)
    assert np.allclose(wide(mx.vmap(f, in_axes=(0, None))(many, w)[1]), wide(f(many[1], w)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "kernel", "outputs", "groups", "stride", "dilation"),
    [
        ((2, 5, 75, 37), (3, 3), 37, 37, 1, 1),
        ((1, 530, 20), (5,), 20, 20, 1, 1),
        ((1, 530, 20), (4,), 10, 5, 3, 2),
        ((2, 9, 40, 24), (3, 5), 48, 24, 2, 1),
        ((1, 4, 3, 20, 15), (2, 3, 3), 10, 5, 1, 1),
        ((2, 8, 9, 32), (3, 3), 34, 2, 1, 1),
        ((1, 3, 9, 64), (1, 9), 64, 8, 1, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float64])
def test_groups(
    x: tuple[int, ...], kernel: tuple[int, ...], outputs: int, groups: int, stride: int, dilation: int, dtype: Any
) -> None:
    """Lanes that are used in part, lines longer than a task and than a chain, windows wider than their array; and what
    lies in memory in another way."""
    axes = len(kernel)
    a, w = draw(x, dtype), draw((outputs, *kernel, x[-1] // groups), dtype, 1)

    def f(a: mx.array, w: mx.array) -> mx.array:
        return mx.conv_general(a, w, stride, [2] * axes, dilation, 1, groups)

    options: tuple[Any, ...] = (*[[n] * axes for n in (stride, 2, 2, dilation, 1)], groups, False)
    made = f(a, w)
    close(
        made, by_definition(wide(a), wide(w), *options), by_definition(abs(wide(a)), abs(wide(w)), *options), w[0].size
    )
    turned = mx.contiguous(mx.moveaxis(a, -1, 1))
    assert mx.array_equal(mx.compile(lambda a, w: f(mx.moveaxis(a, 1, -1), w))(turned, w), made).item()
    both = mx.vmap(f, in_axes=(0, None))(mx.stack([a, -a]), w)
    assert mx.array_equal(both[0], made).item()
    assert mx.array_equal(mx.vmap(f)(mx.stack([-a, a]), mx.stack([w, w]))[1], made).item()


@settings(max_examples=40)
@given(case=cases())
def test_gradients(case: dict[str, Any]) -> None:
    """A convolution is linear in both operands: each gradient is its transpose."""
    x, w = draw(case.pop("x"), mx.float64), draw(case.pop("w"), mx.float64, 1)
    try:
        made = mx.conv_general(x, w, **case)
    except ValueError:
        return
    c = draw(made.shape, mx.float64, 2)
    total, magnitude = mx.sum(made * c).item(), mx.sum(mx.abs(made * c)).item() + 1
    gradients = mx.vjp(lambda x, w: mx.conv_general(x, w, **case), [x, w], [c])[1]
    for operand, gradient in zip((x, w), gradients, strict=True):
        assert abs(mx.sum(operand * gradient).item() - total) <= 1e-11 * magnitude


@pytest.mark.parametrize("groups", [1, 4])
def test_no_zeros_between_elements_are_multiplied(groups: int) -> None:
    """An infinite weight meets every third element of the input only, and those that there are."""
    x, w = draw((1, 12, 4)), draw((4, 3, 4 // groups), seed=1)
    w[:, 1] = float("inf")
    (gradient,) = mx.vjp(lambda x: mx.conv1d(x, w, 3, 0, 1, groups), [x], [mx.ones((1, 4, 4))])[1]
    finite = np.isfinite(np.asarray(gradient)).all((0, 2))
    assert finite.tolist() == [True, False, True] * 4
    back = mx.conv_transpose1d(mx.ones((1, 4, 4)), w, 3, 0, 1, 0, groups)
    assert np.isfinite(np.asarray(back)).all((0, 2)).tolist() == [True, False, True] * 4


def test_windows_of_one_element_that_is_none_of_the_input() -> None:
    """Along an axis of one place, which a kernel has no loop for: what it sees there is its padding, or the input."""
    x, w = mx.ones((1, 9, 1, 20)), mx.ones((5, 3, 1, 20))
    for low, expected in ((1, 0), (0, 2500), (1, 0)):
        made = mx.conv_general(x, w, stride=(1, 3), padding=([1, low], [1, 0]))
        assert mx.sum(made).item() == expected


@settings(max_examples=25)
@given(
    axes=st.integers(1, 3), channels=st.sampled_from([1, 3, 17, 130]), few=st.integers(1, 8), width=st.integers(4, 70),
    stride=st.integers(1, 3), gap=st.integers(1, 3), low=st.integers(0, 3), planes=st.booleans(),
    dtype=st.sampled_from(list(ROUNDING)),
)  # fmt: skip
def test_few_outputs_are_summed_as_many_are(
    axes: int, channels: int, few: int, width: int, stride: int, gap: int, low: int, planes: bool, dtype: Any
) -> None:
    """To the bit, forwards and by the input; with inputs that lie channel by channel, too."""
    x, w = draw((2, *(3,) * (axes - 1), width + 9, channels), dtype), draw((20, *(3,) * axes, channels), dtype, 1)
    if planes:
        x = mx.moveaxis(mx.contiguous(mx.moveaxis(x, -1, 1)), 1, -1)
    steps = (stride,) * (axes - 1)
    options = {"padding": (low,) * axes, "kernel_dilation": (1,) * (axes - 1) + (gap,)}
    made = mx.conv_general(x, w, stride=(*steps, 1), **options)
    assert mx.array_equal(mx.conv_general(x, w[:few], stride=(*steps, 1), **options), made[..., :few]).item()
    x, w = draw((2, *(3,) * (axes - 1), width + 9, 20), dtype, 2), draw((channels, *(3,) * axes, 20), dtype, 1)

    def back(few: int) -> mx.array:
        f: Callable[[mx.array], mx.array] = lambda x: mx.conv_general(x, w[..., :few], (*steps, stride), **options)  # noqa: E731
        cotangent = draw(f(x[..., :few]).shape, dtype, 3)
        return mx.vjp(f, [x[..., :few]], [cotangent])[1][0]

    assert mx.array_equal(back(few), back(20)[..., :few]).item()


@settings(max_examples=25)
@given(
    axes=st.integers(1, 2), channels=st.sampled_from([3, 7, 17, 40, 150]), few=st.integers(1, 8),
    width=st.integers(1, 40), stride=st.integers(1, 2), low=st.integers(0, 2), dtype=st.sampled_from(list(ROUNDING)),
)  # fmt: skip
def test_weights_of_few_outputs_are_summed_as_those_of_many(
    axes: int, channels: int, few: int, width: int, stride: int, low: int, dtype: Any
) -> None:
    """To the bit, whether vectors are outputs or channels; and of few channels, wherever tiles begin and end."""
    x, w = draw((3, *(width + 2,) * axes, channels), dtype), draw((20, *(3,) * axes, channels), dtype, 1)
    f: Callable[[mx.array], mx.array] = lambda w: mx.conv_general(x, w, stride, low)  # noqa: E731
    cotangent = draw(f(w).shape, dtype, 2)
    (many,) = mx.vjp(f, [w], [cotangent])[1]
    (made,) = mx.vjp(f, [w[:few]], [cotangent[..., :few]])[1]
    assert mx.array_equal(made, many[:few]).item()
    options = wide(x), wide(cotangent), stride, low, w.shape
    magnitudes = weights_by_definition(np.abs(options[0]), np.abs(options[1]), *options[2:])
    close(many, weights_by_definition(*options), magnitudes, cotangent.size // 20)


def weights_by_definition(
    x: np.ndarray, cotangent: np.ndarray, stride: int, low: int, shape: tuple[int, ...]
) -> np.ndarray:
    """One element of the window at a time."""
    axes = x.ndim - 2
    padded = np.pad(x, [(0, 0), *[(low, low)] * axes, (0, 0)])
    made = np.zeros(shape)
    for tap in np.ndindex(*shape[1:-1]):
        window = [slice(k, k + (n - 1) * stride + 1, stride) for k, n in zip(tap, cotangent.shape[1:-1], strict=True)]
        seen = padded[(slice(None), *window)].reshape(-1, shape[-1])
        made[(slice(None), *tap)] = cotangent.reshape(-1, shape[0]).T @ seen
    return made


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolve(mode: str) -> None:
    for n, k in ((5, 3), (5, 2), (3, 4), (1, 1), (6, 6)):
        a, v = draw((n,)), draw((k,), seed=1)
        assert np.allclose(np.asarray(mx.convolve(a, v, mode=mode)), np.convolve(wide(a), wide(v), mode), atol=1e-5)


X, W = mx.ones((2, 7, 6, 4)), mx.ones((8, 3, 3, 4))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: mx.conv2d(X, mx.ones((8, 3, 3, 3))), "input channels"),
        (lambda: mx.conv2d(X, W[0]), "Invalid weight array with 3 dimensions"),
        (lambda: mx.conv2d(X[0], W), "must have 4 dimensions"),
        (lambda: mx.conv2d(X, mx.ones((7, 3, 3, 2)), groups=2), "divisible by the number of groups"),
        (lambda: mx.conv2d(X, W, stride=0), "must be positive"),
        (lambda: mx.conv2d(X, W, stride=(1, 1, 1)), "one for each of 2"),
        (lambda: mx.conv2d(X, mx.ones((8, 9, 9, 4))), "cannot be smaller"),
        (lambda: mx.conv2d(X.astype(mx.int32), W), "floating point types"),
        (lambda: mx.conv_general(mx.ones((1, 2)), mx.ones((1, 2))), "1-3 spatial"),
        (lambda: mx.convolve(mx.ones((2, 2)), mx.ones(2)), "must be 1D"),
        (lambda: mx.convolve(mx.ones(2), mx.ones(0)), "cannot be empty"),
        (lambda: mx.convolve(mx.ones(2), mx.ones(2), mode="x"), "Invalid mode"),
        (lambda: mx.gather_mm(X, mx.ones((7, 5, 6)), mx.array([0]), mx.array([0])), "must match"),
        (lambda: mx.gather_mm(X, mx.ones((7, 4, 6)), mx.array([0.0]), mx.array([0])), "must be integral"),
        (lambda: mx.gather_mm(mx.ones(5), mx.ones((7, 5, 6)), rhs_indices=mx.array([0])), "matrices"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call()


@pytest.mark.parametrize("count", [2, 5])
def test_gather_mm(count: int) -> None:
    """With fewer indices than matrices, and with more."""
    a, b = draw((6, 1, 1, 4)), draw((3, 4, 5), seed=1)
    chosen = mx.array(np.random.default_rng(2).integers(0, 3, (6, count)))
    expected = wide(a) @ wide(b)[np.asarray(chosen)]
    got = mx.gather_mm(a, b, rhs_indices=chosen)
    assert np.allclose(wide(got), expected, atol=1e-5)
    few = mx.gather_mm(a[:, 0], b, mx.array([5, 0]), mx.array([2, 1]))
    assert np.allclose(wide(few), wide(a)[[5, 0], 0] @ wide(b)[[2, 1]], atol=1e-5)
    assert mx.gather_mm(a[:3, 0], b).shape == (3, 1, 5)
    f: Callable[[mx.array], mx.array] = lambda b: mx.sum(mx.square(mx.gather_mm(a, b, rhs_indices=chosen)))  # noqa: E731
    assert mx.compile(f)(b).item() == f(b).item()
    dense: Callable[[mx.array], mx.array] = lambda b: mx.sum(mx.square(a @ b[chosen]))  # noqa: E731
    assert np.allclose(wide(mx.grad(f)(b)), wide(mx.grad(dense)(b)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [3, 12, 20])
def test_zeros_around_an_input_are_those_of_padding(channels: int) -> None:
    """To the bit, in either direction, whether zeros are written or windows know of them."""
    rng = np.random.default_rng(channels)
    shapes = (2, 9, 8, channels), (channels, 3, 3, channels)
    x, w = (mx.array(rng.standard_normal(shape).astype(np.float32)) for shape in shapes)
    wide = mx.pad(x, [(0, 0), (2, 2), (2, 2), (0, 0)])
    for stride in (1, 2):
        out, plain = mx.conv2d(x, w, stride, 2), mx.conv2d(wide, w, stride)
        assert mx.array_equal(out, plain).item()
        got = mx.vjp(lambda x: mx.conv2d(x, w, stride, 2), [x], [out])[1][0]  # noqa: B023
        whole = mx.vjp(lambda x: mx.conv2d(x, w, stride), [wide], [out])[1][0]  # noqa: B023
        assert mx.array_equal(got, whole[:, 2:-2, 2:-2]).item()


LAYOUTS: dict[str, tuple[int, ...]] = {
    "plain": (0, 1, 2, 3),
    "outputs last": (1, 2, 3, 0),
    "channels first": (0, 3, 1, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(16, 17, 1), (20, 33, 1), (64, 100, 1), (36, 48, 2), (3, 32, 1)]
)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.float64])
def test_weights_that_many_blocks_share(layout: str, channels: int, outputs: int, groups: int, dtype: Any) -> None:
    """Weights are packed once for all of them, from wherever their elements lie."""
    x, w = draw((2, 21, 20, channels), dtype), draw((outputs, 3, 3, channels // groups), dtype, 1)
    order = LAYOUTS[layout]
    turned = mx.array(np.ascontiguousarray(np.transpose(np.asarray(w), order)), dtype)
    seen = turned.transpose(*np.argsort(order).tolist())
    got = mx.conv2d(x, seen, 1, 1, groups=groups)
    assert mx.array_equal(got, mx.conv2d(x, w, 1, 1, groups=groups)).item()
    sides = [1, 1], [1, 1], [1, 1], [1, 1], [1, 1], groups, False
    expected = by_definition(wide(x), wide(w), *sides)
    magnitudes = by_definition(np.abs(wide(x)), np.abs(wide(w)), *sides)
    close(got, expected, magnitudes, w[0].size)
    wanted = [
        mx.vjp(lambda x, w=w: mx.conv2d(x, w, 2, 1, groups=groups), [x], [got[:, ::2, ::2]])[1][0] for w in (w, seen)
    ]
    assert mx.array_equal(*wanted).item()


def test_each_member_of_a_batch_has_weights_of_its_own() -> None:
    x, w = draw((3, 2, 20, 20, 16)), draw((3, 24, 3, 3, 16), seed=1)
    both = mx.vmap(lambda x, w: mx.conv2d(x, w, 1, 1))(x, w)
    shared = mx.vmap(lambda x: mx.conv2d(x, w[1], 1, 1))(x)
    for i in range(3):
        assert mx.array_equal(both[i], mx.conv2d(x[i], w[i], 1, 1)).item()
        assert mx.array_equal(shared[i], mx.conv2d(x[i], w[1], 1, 1)).item()


@pytest.mark.parametrize("channels", [1, 2])
def test_long_signals_of_few_channels(channels: int) -> None:
    """Rows of a window may be longer than any block, and weights have few of them."""
    x, w = draw((1, 3000, channels)), draw((20, 3, channels), seed=1)
    got = mx.conv1d(x, w, 1, 1)
    sides = [1], [1], [1], [1], [1], 1, False
    magnitudes = by_definition(np.abs(wide(x)), np.abs(wide(w)), *sides)
    close(got, by_definition(wide(x), wide(w), *sides), magnitudes, 3 * channels)
    gradient = mx.vjp(lambda w: mx.conv1d(x, w, 1, 1), [w], [got])[1][0]
    padded, y = np.pad(wide(x), [(0, 0), (1, 1), (0, 0)])[0], wide(got)[0]
    seen = np.stack([padded[tap : tap + 3000] for tap in range(3)])
    expected = np.einsum("tpc,po->otc", seen, y)
    close(gradient, expected, np.einsum("tpc,po->otc", np.abs(seen), np.abs(y)), 3000)


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize(("m", "n"), [(576, 64), (1152, 128), (153, 33), (240, 384)])
def test_threads_finish_together(team: Callable[[int], None], count: int, m: int, n: int) -> None:
    """Blocks are whole tiles, and the thread with most to do has little more than its share."""
    team(count)
    rows, columns = even_blocks(m, n, (256, 384), (8, 24), 1, 4)
    assert rows % 8 == columns % 24 == 0
    tasks = -(-m // rows) * -(-n // columns)
    assert -(-tasks // count) * min(rows, m) * min(columns, n) <= 1.25 * m * n / count


@pytest.mark.parametrize(
    ("channels", "outputs", "groups"),
    [(5, 40, 1), (17, 40, 1), (64, 40, 1), (64, 64, 1), (56, 128, 1), (48, 48, 48), (16, 16, 16), (32, 64, 16)],
)
def test_gradients_do_not_depend_on_threads(
    team: Callable[[int], None], channels: int, outputs: int, groups: int
) -> None:
    """Blocks of weights may begin in the middle of a place's channels, and read images where they lie; of many threads
    each has some of the places."""
    x, w = draw((2, 24, 40, channels)), draw((outputs, 3, 3, channels // groups), seed=1)
    y = draw((2, 24, 40, outputs), seed=2)
    found = []
    for count in (1, 2, 3, 7, 16):
        team(count)
        more = mx.concatenate([x, mx.zeros((count, *x.shape[1:]))])  # a program of its own for each number of threads
        mx.eval(more)
        gradients = mx.vjp(lambda x, w: mx.conv2d(x[:2], w, 1, 1, 1, groups), [more, w], [y])[1]
        found.append([gradients[0][:2], gradients[1]])
        mx.eval(found[-1])
    for other in found[1:]:
        assert all(mx.array_equal(a, b).item() for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize(("channels", "outputs"), [(3, 64), (17, 33), (64, 48)])
def test_weights_whose_places_many_threads_share(
    team: Callable[[int], None], channels: int, outputs: int, dtype: Any
) -> None:
    """To the bit what the windows, turned, times the cotangents are."""
    team(16)
    x, w, y = draw((2, 40, 40, channels), dtype), draw((outputs, 3, 3, channels), dtype, 1), draw((2, 38, 38, outputs))
    y = y.astype(dtype)
    found = mx.vjp(lambda w: mx.conv2d(x, w), [w], [y])[1][0]
    taps = [x[:, i : i + 38, j : j + 38] for i in range(3) for j in range(3)]
    windows = mx.concatenate(taps, axis=-1).reshape(2 * 38 * 38, -1)
    expected = windows.T @ y.reshape(-1, outputs)
    assert mx.array_equal(found.transpose(1, 2, 3, 0).reshape(-1, outputs), expected).item()


@pytest.mark.parametrize(("channels", "taps", "step"), [(24, 3, 1), (17, 5, 2)])
def test_depthwise_weights_of_signals_that_many_threads_share(
    team: Callable[[int], None], channels: int, taps: int, step: int
) -> None:
    """Lines of 256 places and more, and lanes that are not full. Sums of small integers are exact."""
    team(16)
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 2, (40, 1100, channels)).astype(np.float32)
    places = (1100 - taps) // step + 1
    y = rng.integers(-1, 2, (40, places, channels)).astype(np.float32)
    weights = mx.zeros((channels, taps, 1))
    (found,) = mx.vjp(lambda w: mx.conv1d(mx.array(x), w, step, groups=channels), [weights], [mx.array(y)])[1]
    for tap in range(taps):
        seen = x[:, tap : tap + (places - 1) * step + 1 : step]
        np.testing.assert_array_equal(np.array(found[:, tap, 0]), np.sum(seen * y, axis=(0, 1), dtype=np.float64))


def test_depthwise_weight_gradients_of_images_that_come_from_memory() -> None:
    """Lines are asked for ahead of time then. Sums of small integers are exact."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-1, 2, (1, 1024, 1024, 2)).astype(np.float32) for _ in range(2))
    weights, out = mx.zeros((2, 3, 3, 1)), mx.array(y)
    (found,) = mx.vjp(lambda w: mx.conv2d(mx.array(x), w, padding=1, groups=2), [weights], [out])[1]
    seen = np.pad(x[0], ((1, 1), (1, 1), (0, 0)))
    for i in range(3):
        for j in range(3):
            expected = np.sum(seen[i : i + 1024, j : j + 1024] * y[0], axis=(0, 1), dtype=np.float64)
            np.testing.assert_array_equal(np.array(found[:, i, j, 0]), expected)
