"""Incomplete gamma and beta functions and logit against SciPy, in their tails too; derivatives in all arguments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import weft.core as mx
from tests.gradients import check_batch, check_derivatives
from weft.dtypes import Dtype

special = pytest.importorskip("scipy.special")
inf, nan = float("inf"), float("nan")


def double(x: np.ndarray) -> mx.array:
    return mx.array(x, mx.float64)


def draw(low: float, high: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of many sizes, and points all over the place, many of them where the function rises."""
    rng = np.random.default_rng(seed)
    a = 10 ** rng.uniform(low, high, 300)
    near = np.abs(a + rng.normal(size=300) * 3 * np.sqrt(a))
    return a, np.where(rng.random(300) < 0.5, near, a * 10 ** rng.uniform(-1.5, 1.5, 300))


def close(got: mx.array, expected: np.ndarray, relative: float) -> None:
    kept = expected > 1e-250  # below, digits are lost with the exponent
    np.testing.assert_allclose(np.array(got)[kept], expected[kept], rtol=relative)


@pytest.mark.parametrize(("low", "high", "relative"), [(-9, 0, 1e-13), (-1, 1, 1e-13), (0, 2, 1e-12), (2, 4, 5e-11)])
def test_gamma(low: float, high: float, relative: float) -> None:
    """Where both are tiny, an error of the exponent is one of the result, as large as the exponent is."""
    a, x = draw(low, high, 1)
    close(mx.gammainc(double(a), double(x)), special.gammainc(a, x), relative)
    close(mx.gammaincc(double(a), double(x)), special.gammaincc(a, x), relative)


@pytest.mark.parametrize(("low", "high", "relative"), [(-1, 1, 1e-13), (0, 2, 1e-12), (2, 3, 2e-11)])
def test_beta(low: float, high: float, relative: float) -> None:
    (a, b), x = (draw(low, high, seed)[0] for seed in (2, 3)), np.random.default_rng(4).random(300)
    x = np.where(np.arange(300) % 2, x, a / (a + b))
    close(mx.betainc(double(a), double(b), double(x)), special.betainc(a, b, x), relative)


def test_a_million() -> None:
    """The value in 30 digits by the series of the definition."""
    got = mx.gammainc(double(np.array(870959.7552057476)), double(np.array(866646.4206459229))).item()
    assert got == pytest.approx(1.8360620896732333e-06, rel=1e-11)


def test_the_ends() -> None:
    ends = [0.0, 1.0, 2.5, inf, -1.0, nan]
    a, x = np.array(list(itertools.product(ends, ends))).T
    for name in ("gammainc", "gammaincc"):
        expected = getattr(special, name)(a, x)
        np.testing.assert_allclose(np.array(getattr(mx, name)(double(a), double(x))), expected, rtol=1e-14)
    points = itertools.product([0.5, 2.0, inf, -1.0, nan], [1.5, inf, -1.0], [0.0, 0.3, 1.0, 1.5, nan])
    # of infinite parameters at the ends SciPy's versions differ
    known = [(a, b, x) for a, b, x in points if not (inf in (a, b) and (a == b or x in (0.0, 1.0)))]
    parameters = np.array(known).T
    got = np.array(mx.betainc(*map(double, parameters)))
    np.testing.assert_allclose(got, special.betainc(*parameters), rtol=1e-14)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=lambda d: d.name)
def test_narrow_floats_are_rounded_once(dtype: Dtype) -> None:
    a, x = (mx.array(v, dtype) for v in draw(-1, 1, 5))
    got = mx.gammaincc(a, x)
    wide = mx.gammaincc(a.astype(mx.float64), x.astype(mx.float64))
    assert got.dtype == dtype
    assert mx.array_equal(got, wide.astype(dtype)).item()
    assert mx.gammainc(2, mx.array([1, 2])).dtype == mx.float32
    assert mx.betainc(mx.ones((3, 1)), mx.ones(2), 0.5).shape == (3, 2)


def test_derivatives() -> None:
    a, x = np.array([0.3, 1.0, 4.0, 15.0, 12.0, 20.0]), np.array([0.2, 3.0, 2.0, 14.0, 20.0, 21.5])
    check_derivatives(mx.gammainc, a, x)
    check_derivatives(mx.gammaincc, a, x)
    check_derivatives(mx.betainc, np.array([0.5, 3.0, 8.0]), np.array([2.0, 0.7, 5.0]), np.array([0.3, 0.9, 0.6]))
    second = mx.grad(mx.grad(lambda x: mx.gammainc(3.0, x)))(mx.array(2.0))
    assert second.item() == pytest.approx(0.0, abs=1e-6), "the density x**2 exp(-x) / 2 is largest at 2"
    assert mx.grad(lambda x: mx.gammainc(0.5, x))(mx.array(0.0)).item() == inf


def test_other_transforms() -> None:
    a, x = np.array([0.3, 4.0, 12.0]), np.array([[0.2, 3.0, 9.0], [1.5, 2.0, 20.0]])
    check_batch(mx.gammainc, [None, 0], a, x)
    both = mx.compile(mx.value_and_grad(lambda a, x: mx.gammaincc(a, x).sum()), shapeless=True)
    for n in (3, 2):
        p, at = double(a[:n]), double(x[0, :n])
        value, gradient = both(p, at)
        assert value.item() == mx.gammaincc(p, at).sum().item()
        assert mx.array_equal(gradient, mx.grad(lambda p, at: mx.gammaincc(p, at).sum())(p, at)).item()


def test_logit() -> None:
    x = np.concatenate([np.linspace(0, 1, 101), 0.5 + np.array([1e-12, -3e-9, 1e-4]), [1e-300]])
    np.testing.assert_allclose(np.array(mx.logit(double(x))), special.logit(x), rtol=1e-14, atol=0)
    check_derivatives(mx.logit, np.array([0.1, 0.25, 0.4, 0.7, 0.8]))
    assert mx.grad(lambda x: mx.logit(x).sum())(mx.array([0.5, 0.2])).tolist() == pytest.approx([4.0, 6.25])
    assert np.isnan(mx.logit(mx.array([-0.1, 1.5])).tolist()).all()
    half = mx.logit(mx.array([0.3, 0.6], mx.float16))
    assert half.dtype == mx.float16


def test_complex_numbers_are_refused() -> None:
    for call in (lambda z: mx.gammainc(z, 1.0), lambda z: mx.betainc(1.0, 1.0, z), mx.logit):
        with pytest.raises(ValueError, match="real numbers"):
            call(mx.array([1j]))
