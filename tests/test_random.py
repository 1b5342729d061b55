"""Random numbers: the distributions are what their names say, and the same key always draws the same, however it is
computed. Keys are fixed, so a test passes always or never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import weft.core as mx
from tests.contract import same_bits, settings
from tests.gradients import check_derivatives
from weft.evaluate.programs import PROGRAMS

N = 20_000
LEAST = 1e-4
"""The probability of a sample at least as strange as the drawn one, below which a distribution is wrong."""
FLOATS = (mx.float16, mx.bfloat16, mx.float32, mx.float64)


def numbers(x: Any) -> np.ndarray:
    """As float64."""
    return np.array(x.astype(mx.float64)).reshape(-1)


def fits(x: Any, distribution: Any) -> None:
    """By the largest distance between the cumulative distributions."""
    assert stats.kstest(numbers(x), distribution.cdf).pvalue > LEAST


# ---- distributions ----

CONTINUOUS: dict[str, tuple[Callable[..., Any], Any]] = {
    "uniform": (lambda **kw: mx.random.uniform(shape=(N,), **kw), stats.uniform()),
    "between": (lambda **kw: mx.random.uniform(-3, 5, (N,), **kw), stats.uniform(-3, 8)),
    "normal": (lambda **kw: mx.random.normal((N,), **kw), stats.norm()),
    "scaled": (lambda **kw: mx.random.normal((N,), loc=2.0, scale=0.5, **kw), stats.norm(2.0, 0.5)),
    "truncated": (lambda **kw: mx.random.truncated_normal(-1.0, 2.0, (N,), **kw), stats.truncnorm(-1.0, 2.0)),
    "gumbel": (lambda **kw: mx.random.gumbel((N,), **kw), stats.gumbel_r()),
    "laplace": (lambda **kw: mx.random.laplace((N,), loc=1.0, scale=2.0, **kw), stats.laplace(1.0, 2.0)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float64], ids=lambda d: d.name)
def test_distributions(name: str, dtype: Any) -> None:
    draw, distribution = CONTINUOUS[name]
    x = draw(dtype=dtype, key=mx.random.key(1))
    assert (x.shape, x.dtype) == ((N,), dtype)
    fits(x, distribution)
    assert not same_bits(np.array(x), np.array(draw(dtype=dtype, key=mx.random.key(2))))


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=lambda d: d.name)
def test_halves(name: str, dtype: Any) -> None:
    """Rounded samples have ties, which the test above does not know: means and deviations instead."""
    draw, distribution = CONTINUOUS[name]
    x = numbers(draw(dtype=dtype, key=mx.random.key(3)))
    coarse = float(mx.finfo(dtype).eps) * 4
    assert abs(x.mean() - distribution.mean()) < 4 * distribution.std() / np.sqrt(N) + coarse
    assert abs(x.std() / distribution.std() - 1) < 0.03 + coarse


def test_float64_refines_float32() -> None:
    """The same draw, with more bits behind it."""
    for draw, _ in CONTINUOUS.values():
        single, double = (numbers(draw(dtype=dtype, key=mx.random.key(5))) for dtype in (mx.float32, mx.float64))
        middle = np.abs(single) < 4  # far out, the last bit of a uniform number moves the result a lot
        np.testing.assert_allclose(single[middle], double[middle], rtol=2e-3, atol=1e-5)
        assert np.mean(np.abs(single - double)) < 1e-5
    x = numbers(mx.random.uniform(shape=(N,), dtype=mx.float64, key=mx.random.key(5)))
    low = np.floor(x * 2.0**53).astype(np.int64) & 0xFFFFF
    assert stats.kstest(low / 2.0**20, stats.uniform().cdf).pvalue > LEAST


def test_ends() -> None:
    for dtype in FLOATS:
        x = numbers(mx.random.uniform(shape=(200_000,), dtype=dtype, key=mx.random.key(0)))
        assert 0 <= x.min() < 1e-4
        assert 0.99 < x.max() < 1
    y = numbers(mx.random.truncated_normal(-0.5, 0.25, (N,), key=mx.random.key(0)))
    assert -0.5 <= y.min() < -0.49
    assert 0.24 < y.max() <= 0.25
    assert np.isfinite(numbers(mx.random.normal((1 << 20,), key=mx.random.key(0)))).all()


def test_complex_normal() -> None:
    for dtype in (mx.complex64, mx.complex128):
        z = mx.random.normal((N,), dtype, key=mx.random.key(1))
        assert z.dtype is dtype
        for part in (mx.real(z), mx.imag(z)):
            fits(part, stats.norm(0, np.sqrt(0.5)))
        assert abs(np.corrcoef(numbers(mx.real(z)), numbers(mx.imag(z)))[0, 1]) < 4 / np.sqrt(N)
    moved = mx.random.normal((N,), mx.complex64, loc=1 - 2j, scale=2j, key=mx.random.key(1))
    wanted = np.array(mx.random.normal((N,), mx.complex64, key=mx.random.key(1))) * 2j + (1 - 2j)
    np.testing.assert_allclose(np.array(moved), wanted, rtol=1e-5, atol=1e-5)


def test_integers() -> None:
    x = np.array(mx.random.randint(-3, 7, (N,), key=mx.random.key(1)))
    assert x.dtype == np.int32
    assert stats.chisquare(np.bincount(x + 3, minlength=10)).pvalue > LEAST
    y = np.array(mx.random.randint(mx.array([0, 10]), mx.array([2, 12]), (500, 2), mx.uint8, mx.random.key(1)))
    assert y.dtype == np.uint8
    np.testing.assert_array_equal(np.unique(y[:, 0]), [0, 1])
    np.testing.assert_array_equal(np.unique(y[:, 1]), [10, 11])
    assert set(np.array(mx.random.randint(0, 2, (100,), mx.bool_, mx.random.key(1))).tolist()) == {False, True}
    assert mx.random.randint(4, 4, (3,)).tolist() == [4, 4, 4]


def test_bits() -> None:
    for width, dtype in ((1, np.uint8), (2, np.uint16), (4, np.uint32)):
        x = np.array(mx.random.bits((N + 1,), width, mx.random.key(9)))
        assert x.dtype == dtype
        ones = np.unpackbits(x.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 4 * 0.5 / np.sqrt(8 * width * N)
        assert stats.chisquare(np.bincount((x >> (8 * width - 4)).astype(np.int64), minlength=16)).pvalue > LEAST
    narrow = np.array(mx.random.bits((8,), 1, mx.random.key(9)))
    assert same_bits(narrow, np.array(mx.random.bits((2,), 4, mx.random.key(9))).view(np.uint8))  # the same stream


def test_bernoulli() -> None:
    p = np.array([0.0, 0.1, 0.5, 0.9, 1.0], np.float32)
    x = np.array(mx.random.bernoulli(mx.array(p), (N, 5), mx.random.key(1)))
    assert x.dtype == np.bool_
    assert np.all(np.abs(x.mean(0) - p) <= 4 * np.sqrt(p * (1 - p) / N))
    assert mx.random.bernoulli(mx.array(p)).shape == (5,)


@pytest.mark.parametrize("count", [1, 2], ids=["one", "two"])
def test_categorical(count: int) -> None:
    """One distribution and several are drawn in different ways."""
    weights = np.array([1.0, 2.0, 3.0, 0.0, 4.0])
    with np.errstate(divide="ignore"):
        logits = mx.array(np.log(np.stack([weights, weights[::-1]][:count])).astype(np.float32) + 7)
    x = np.array(mx.random.categorical(logits, num_samples=N, key=mx.random.key(1)))
    assert (x.shape, x.dtype) == ((count, N), np.uint32)
    for row, share in zip(x, (weights, weights[::-1]), strict=False):
        seen = np.bincount(row, minlength=5)
        assert seen[share == 0] == 0
        assert stats.chisquare(seen[share > 0], share[share > 0] / share.sum() * N).pvalue > LEAST


def test_categorical_shapes() -> None:
    logits = mx.zeros((2, 3, 4))
    assert mx.random.categorical(logits).shape == (2, 3)
    assert mx.random.categorical(logits, axis=1).shape == (2, 4)
    assert mx.random.categorical(logits, axis=0, num_samples=5).shape == (3, 4, 5)
    assert mx.random.categorical(logits, shape=(7, 2, 3)).shape == (7, 2, 3)
    assert mx.random.categorical(mx.zeros((1, 4)), shape=(7, 2)).shape == (7, 2)
    assert mx.random.categorical(mx.zeros((4,))).shape == ()
    with pytest.raises(ValueError, match="not both"):
        mx.random.categorical(logits, shape=(2, 3), num_samples=1)
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        mx.random.categorical(logits, shape=(2, 1))
    with pytest.raises(IndexError, match="axis 3"):
        mx.random.categorical(logits, axis=3)


def test_permutations() -> None:
    x = np.array(mx.random.permutation(1000, key=mx.random.key(1)))
    assert x.dtype == np.uint32
    np.testing.assert_array_equal(np.sort(x), np.arange(1000))
    assert abs(np.corrcoef(x, np.arange(1000))[0, 1]) < 4 / np.sqrt(1000)
    firsts = [mx.random.permutation(4, key=key).tolist()[0] for key in mx.random.split(mx.random.key(0), 400)]
    assert stats.chisquare(np.bincount(firsts, minlength=4)).pvalue > LEAST
    a = mx.arange(24).reshape(4, 6)
    for axis in (0, 1, -1):
        order = np.array(mx.random.permutation(a.shape[axis], key=mx.random.key(3))).astype(np.int64)
        found = np.array(mx.random.permutation(a, axis, mx.random.key(3)))
        np.testing.assert_array_equal(found, np.take(np.array(a), order, axis))
    assert mx.random.permutation([5, 6, 7]).shape == (3,)


def test_multivariate_normal() -> None:
    mean, cov = np.array([1.0, -2.0, 0.5]), np.array([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]])
    for dtype in (mx.float32, mx.float64):
        x = mx.random.multivariate_normal(mx.array(mean), mx.array(cov), (N,), dtype, mx.random.key(1))
        assert (x.shape, x.dtype) == ((N, 3), dtype)
        values = np.array(x, np.float64)
        np.testing.assert_allclose(values.mean(0), mean, atol=0.05)
        np.testing.assert_allclose(np.cov(values.T), cov, atol=0.08)
        # What is left without the covariance is standard normal.
        white = (values - mean) @ np.linalg.inv(np.linalg.cholesky(cov)).T
        fits(mx.array(white, dtype=mx.float64), stats.norm())
    assert mx.random.multivariate_normal(mx.zeros((5, 3)), mx.zeros((4, 1, 3, 3))).shape == (4, 5, 3)
    assert mx.random.multivariate_normal(mx.zeros((3,)), mx.eye(3)).shape == (3,)
    flat = mx.random.multivariate_normal(mx.ones((2,)), mx.array([[1.0, 1.0], [1.0, 1.0]]), (50,))  # singular
    np.testing.assert_allclose(np.array(flat)[:, 0], np.array(flat)[:, 1], atol=1e-5)


def test_gradients_of_parameters() -> None:
    key = mx.random.key(4)
    check_derivatives(lambda m, s: mx.random.normal((5,), mx.float64, m, s, key), np.arange(5.0), np.arange(1.0, 6.0))
    check_derivatives(lambda a, b: mx.random.uniform(a, b, (4,), mx.float64, key), np.zeros(4), np.arange(1.0, 5.0))
    check_derivatives(lambda m: mx.random.multivariate_normal(m, mx.eye(3), (2,), mx.float64, key), np.arange(3.0))
    check_derivatives(lambda a: mx.random.truncated_normal(a, 2.0, (4,), mx.float64, key), np.linspace(-1.0, 0.5, 4))


# ---- keys and state ----


def test_keys() -> None:
    assert mx.random.key(42).tolist() == [0, 42]
    assert mx.random.key((5 << 32) + 6).tolist() == [5, 6]
    for seed in (-1, 1 << 64):
        with pytest.raises(ValueError, match="64 bits"):
            mx.random.key(seed)
    with pytest.raises(TypeError, match="integer"):
        mx.random.key(1.5)
    many = np.array(mx.random.split(mx.random.key(3), 1000))
    assert many.shape == (1000, 2)
    assert len({tuple(k) for k in many.tolist()}) == 1000
    for wrong in (mx.array([1, 2]), mx.zeros((1, 2), dtype=mx.uint32), mx.zeros((3,), dtype=mx.uint32)):
        with pytest.raises(ValueError, match="a key is a uint32 array of shape"):
            mx.random.uniform(key=wrong)


def test_the_global_state() -> None:
    mx.random.seed(7)
    first = [mx.random.uniform(shape=(3,)).tolist() for _ in range(3)]
    assert len({tuple(x) for x in first}) == 3
    mx.random.seed(7)
    assert [mx.random.uniform(shape=(3,)).tolist() for _ in range(3)] == first
    # The state is a key: its split is what the next draw uses, and what the state becomes.
    mx.random.seed(7)
    following, used = mx.random.split(mx.random.state[0])
    assert mx.random.normal((4,)).tolist() == mx.random.normal((4,), key=used).tolist()
    assert mx.random.state[0].tolist() == following.tolist()


def test_a_state_without_a_value() -> None:
    """Somebody else's computation is not run before it is needed, and gives the same."""
    mx.random.seed(5)
    wanted = [mx.random.uniform().item() for _ in range(3)]
    mx.random.state[0] = mx.random.key(5) + mx.array(0, dtype=mx.uint32)
    assert [mx.random.uniform().item() for _ in range(3)] == wanted


def test_drawing_is_cheap_however_often() -> None:
    """The state is no chain of everything that was ever drawn."""
    mx.random.seed(1)
    mx.eval(mx.random.uniform(shape=(4,)))
    known = len(PROGRAMS)
    for _ in range(50):
        mx.eval(mx.random.uniform(shape=(4,)))
    assert len(PROGRAMS) == known


def test_compiled_functions_draw_the_same() -> None:
    def step(x: Any) -> Any:
        return x + mx.random.normal((3,)) * mx.random.uniform()

    compiled = mx.compile(step, inputs=mx.random.state, outputs=mx.random.state)
    runs = []
    for function in (step, compiled):
        mx.random.seed(3)
        runs.append([np.array(function(mx.ones((3,)))) for _ in range(4)] + [np.array(mx.random.state[0])])
    for plain, traced in zip(*runs, strict=True):
        assert same_bits(plain, traced)
    assert not same_bits(runs[1][0], runs[1][1])


def test_batches_of_keys() -> None:
    keys = mx.random.split(mx.random.key(1), 5)
    draws = (
        lambda k: mx.random.uniform(shape=(3,), key=k),
        lambda k: mx.random.normal((2, 2), mx.float64, key=k),
        lambda k: mx.random.randint(0, 100, (4,), key=k),
        lambda k: mx.random.permutation(6, key=k),
        lambda k: mx.random.categorical(mx.zeros((4,)), num_samples=3, key=k),
        lambda k: mx.random.split(k, 3),
    )
    for draw in draws:
        together = np.array(mx.vmap(draw)(keys))
        for i in range(5):
            assert same_bits(np.ascontiguousarray(together[i]), np.array(draw(keys[i])))


# ---- the same bits ----


def every_kind(key: Any) -> list[Any]:
    return [
        mx.random.bits((70,), 1, key),
        mx.random.uniform(-1, 1, (40_001,), key=key),
        mx.random.normal((3, 41), mx.float64, key=key),
        mx.random.normal((40_001,), mx.bfloat16, key=key),
        mx.random.truncated_normal(-1, 1, (77,), key=key),
        mx.random.gumbel((9, 9), key=key),
        mx.random.laplace((50,), key=key),
        mx.random.permutation(100, key=key),
        mx.random.categorical(mx.zeros((4, 5)), key=key),
        mx.random.normal((20,), mx.complex64, key=key),
    ]


def test_on_any_number_of_threads(team: Callable[[int], None]) -> None:
    found = []
    for count in (1, 2, 3):
        team(count)
        found.append([np.array(x._view()) for x in every_kind(mx.random.key(8))])
    for later in found[1:]:
        assert all(same_bits(x, y) for x, y in zip(found[0], later, strict=True))


@pytest.mark.parametrize("level", [2, 3])
def test_at_every_level(level: int) -> None:
    wanted = [np.array(x._view()) for x in every_kind(mx.random.key(8))]
    PROGRAMS.clear()
    with settings(llvm_level=level):
        found = [np.array(x._view()) for x in every_kind(mx.random.key(8))]
    PROGRAMS.clear()
    assert all(same_bits(x, y) for x, y in zip(wanted, found, strict=True))


def test_compiled_and_eager() -> None:
    key = mx.random.key(6)
    wanted = [np.array(x._view()) for x in every_kind(key)]
    compiled = [np.array(x._view()) for x in mx.compile(every_kind)(key)]
    assert all(same_bits(x, y) for x, y in zip(wanted, compiled, strict=True))


# ---- what is refused ----


def test_dtypes() -> None:
    for draw in (mx.random.gumbel, mx.random.laplace):
        for dtype in (mx.int32, mx.complex64):
            with pytest.raises(ValueError, match=dtype.name):
                draw((2,), dtype)
    with pytest.raises(ValueError, match="int32"):
        mx.random.uniform(dtype=mx.int32)
    with pytest.raises(ValueError, match="bool"):
        mx.random.normal((2,), mx.bool_)
    with pytest.raises(ValueError, match="float32"):
        mx.random.randint(0, 4, (2,), mx.float32)
    with pytest.raises(ValueError, match="float16"):
        mx.random.multivariate_normal(mx.zeros((2,)), mx.eye(2), dtype=mx.float16)
    assert mx.random.uniform(dtype=None).dtype is mx.float32


def test_shapes() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        mx.random.uniform(mx.zeros((2, 3)), 1, (3,))
    with pytest.raises(ValueError, match="negative"):
        mx.random.normal((2, -1))
    with pytest.raises(ValueError, match="needs cov"):
        mx.random.multivariate_normal(mx.zeros((2,)), mx.eye(3))
    with pytest.raises(ValueError, match="width"):
        mx.random.bits((2,), 3)
    assert mx.random.uniform(0, mx.array([1.0, 2.0])).shape == (2,)
    assert mx.random.normal((2,), loc=mx.zeros((3, 1))).shape == (3, 2)
    assert mx.random.uniform(shape=(0, 3)).shape == (0, 3)
    assert mx.random.permutation(0).shape == (0,)


@pytest.mark.parametrize(
    "name", ["bits", "normal", "uniform", "bernoulli", "randint", "gumbel", "laplace", "split", "truncated_normal"]
)
def test_more_numbers_than_a_key_has(name: str) -> None:
    shape = (1 << 36, 4)
    arguments = {"uniform": (0, 1), "bernoulli": (0.5,), "randint": (0, 9), "truncated_normal": (-1.0, 1.0)}.get(
        name, ()
    )
    draw = getattr(mx.random, name)
    with pytest.raises(ValueError, match=rf"\[random.{name}\] .* 4294967295 .*needs (274877906944|137438953472);"):
        draw(mx.random.key(0), 1 << 36) if name == "split" else draw(*arguments, shape=shape)


def test_complex_numbers_need_two_each() -> None:
    with pytest.raises(ValueError, match=r"\[random.normal\] .*\(2147483648,\) needs 4294967296;"):
        mx.random.normal((1 << 31,), mx.complex64)
    assert mx.random.normal(((1 << 31) - 1,), mx.complex64).shape == ((1 << 31) - 1,)
    with pytest.raises(ValueError, match=r"\[random.permutation\] .* needs 4294967296;"):
        mx.random.permutation(1 << 32)
