"""Random numbers: MLX's bits where they come from bits by exact operations, and its values to some units in the last
place where elementary functions are in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as wx

mx = pytest.importorskip("mlx.core")

SEEDS = st.sampled_from([0, 1, 7, 2**31, 2**40 + 3, 2**64 - 1])
SHAPES = st.sampled_from(
    [(), (1,), (2,), (3,), (16,), (33,), (2, 3), (5, 7), (0,), (4, 0), (3, 1, 5), (1000,), (1001,)]
)
FLOATS = st.sampled_from(["float16", "bfloat16", "float32"])
ULPS = 8


def values(x: Any) -> np.ndarray:
    """float64 for floats, so that both libraries can be compared; other elements as they are."""
    if isinstance(x, mx.array):
        return np.array(x.astype(mx.float32)) if x.dtype == mx.bfloat16 else np.array(x)
    return np.array(x.astype(wx.float32)) if x.dtype is wx.bfloat16 else np.array(x)


def both(function: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What both libraries draw with the same key: (theirs, ours), of one shape and dtype."""
    theirs, mine = function(mx, mx.random.key(seed)), function(wx, wx.random.key(seed))
    assert str(theirs.dtype).rpartition(".")[2] == mine.dtype.name
    assert tuple(theirs.shape) == mine.shape
    return values(theirs), values(mine)


def same(function: Any, seed: int) -> None:
    np.testing.assert_array_equal(*both(function, seed))


def close(function: Any, seed: int, dtype: str = "float32", least: float = 0.0) -> None:
    """Within 8 units in the last place of float32 (1 of a half type) of their value, or of `least` if that is
    larger."""
    theirs, mine = both(function, seed)
    eps = {"float32": ULPS * 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    scale = np.maximum(np.abs(theirs.astype(np.float64)), max(least, 1e-4 if dtype == "float16" else 1e-30))
    error = np.abs(mine.astype(np.float64) - theirs.astype(np.float64))
    assert np.all((error <= eps * scale) | (theirs == mine)), f"{(error / scale).max() / eps:.3g} times too far"


# ---- exact ----


@given(seed=SEEDS, count=st.integers(0, 9))
def test_keys(seed: int, count: int) -> None:
    np.testing.assert_array_equal(np.array(wx.random.key(seed)), np.array(mx.random.key(seed)))
    same(lambda m, key: m.random.split(key, count), seed)


@given(
    seed=SEEDS, shape=SHAPES, dtype=FLOATS, ends=st.sampled_from([(0, 1), (-3, 5.5), (2.0, 2.0), (5, -1), (0, 1e30)])
)
def test_uniform(seed: int, shape: tuple[int, ...], dtype: str, ends: tuple[float, float]) -> None:
    same(lambda m, key: m.random.uniform(*ends, shape, getattr(m, dtype), key), seed)


@given(seed=SEEDS, dtype=FLOATS)
def test_uniform_between_arrays(seed: int, dtype: str) -> None:
    def draw(m: Any, key: Any) -> Any:
        low, high = m.array([[0.0], [1.0]]), m.array([1.0, 2.0, 5.0])
        return m.random.uniform(low, high, (4, 2, 3), getattr(m, dtype), key=key)

    same(draw, seed)


BOUNDS = [
    (0, 10, "int32"),
    (-5, 5, "int32"),
    (-5, 5, "int8"),
    (-5, 5, "uint8"),
    (-5, 5, "uint64"),
    (0, 2**31, "int32"),
    (0, 2**40, "int64"),
    (5, 5, "int32"),
    (10, 0, "int32"),
    (0.5, 10.7, "int32"),
    (-3, 0.5, "int32"),
    (-3.5, -1.2, "int16"),
    (-300, 300, "int8"),
    (0, 70000, "int16"),
    (0, 2**33, "int32"),
    (-128, 128, "int8"),
    (16777216, 16777219, "int32"),
    (0, 2, "bool_"),
    (0, 1.5, "bool_"),
    (-3, 1, "bool_"),
    (0, 255, "uint8"),
    (0, 2**32 - 1, "uint32"),
]


@pytest.mark.parametrize(("low", "high", "dtype"), BOUNDS)
def test_randint(low: float, high: float, dtype: str) -> None:
    for seed in (0, 7, 2**40 + 3):
        for shape in ((), (7,), (20, 50)):
            same(lambda m, key, shape=shape: m.random.randint(low, high, shape, getattr(m, dtype), key), seed)


@given(seed=SEEDS)
def test_randint_between_arrays(seed: int) -> None:
    same(lambda m, key: m.random.randint(m.array([-1.5, 2.5]), m.array(7), (10, 2), key=key), seed)


@given(seed=SEEDS, shape=SHAPES, p=st.sampled_from([0.0, 0.3, 0.5, 0.999, 1.0, -1.0, 2.0]))
def test_bernoulli(seed: int, shape: tuple[int, ...], p: float) -> None:
    same(lambda m, key: m.random.bernoulli(p, shape, key), seed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_bernoulli_of_arrays(dtype: str) -> None:
    def draw(m: Any, key: Any) -> Any:
        return m.random.bernoulli(m.array([0.1, 0.5, 0.7]).astype(getattr(m, dtype), stream=m.cpu), (500, 3), key)

    same(draw, 5)


@given(seed=SEEDS, n=st.integers(0, 70))
def test_permutations(seed: int, n: int) -> None:
    same(lambda m, key: m.random.permutation(n, key=key), seed)
    same(lambda m, key: m.random.permutation(m.arange(2 * n).reshape(2, n), axis=1, key=key), seed)
    same(lambda m, key: m.random.permutation(m.arange(3.0 * n).reshape(n, 3), key=key), seed)


@given(seed=SEEDS, axis=st.integers(-2, 1))
def test_categorical(seed: int, axis: int) -> None:
    logits = np.random.default_rng(1).normal(size=(6, 9)).astype(np.float32)
    rest = logits.shape[1 - axis % 2]
    same(lambda m, key: m.random.categorical(m.array(logits), axis, key=key), seed)
    same(lambda m, key: m.random.categorical(m.array(logits), axis, num_samples=40, key=key), seed)
    same(lambda m, key: m.random.categorical(m.array(logits), axis, shape=(20, rest), key=key), seed)
    same(lambda m, key: m.random.categorical(m.array(logits).astype(m.float16), axis, key=key), seed)
    same(lambda m, key: m.random.categorical(m.array(logits.astype(np.int32)), axis, key=key), seed)


@given(seed=SEEDS, dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64", "int32", "bool_"]))
def test_categorical_from_one_distribution(seed: int, dtype: str) -> None:
    """MLX then inverts the cumulative distribution."""
    logits = np.random.default_rng(1).normal(size=9) * 2

    def array(m: Any) -> Any:
        return m.array(logits.astype(np.float32)).astype(getattr(m, dtype), stream=m.cpu)

    same(lambda m, key: m.random.categorical(array(m), key=key), seed)
    same(lambda m, key: m.random.categorical(array(m), num_samples=50, key=key), seed)
    same(lambda m, key: m.random.categorical(array(m), shape=(3, 20), key=key), seed)
    same(lambda m, key: m.random.categorical(array(m).reshape(1, 9), shape=(30,), key=key), seed)
    same(lambda m, key: m.random.categorical(array(m).reshape(9, 1), 0, key=key), seed)
    same(lambda m, key: m.random.categorical(array(m), num_samples=0, key=key), seed)


@pytest.mark.parametrize(
    "logits", [[np.nan, 1, 2], [1, np.nan, 2], [-np.inf, 1, 2], [-np.inf] * 3, [np.inf, 1, 2], [1, 2, -np.inf]], ids=str
)
def test_categorical_of_strange_logits(logits: list[float]) -> None:
    same(lambda m, key: m.random.categorical(m.array(logits), num_samples=40, key=key), 3)
    same(lambda m, key: m.random.categorical(m.array([logits, logits]), num_samples=40, key=key), 3)


def test_the_global_sequence() -> None:
    for seed in (0, 5, 2**50):
        for m in (mx, wx):
            m.random.seed(seed)
        for _ in range(5):
            np.testing.assert_array_equal(
                np.array(wx.random.uniform(shape=(3,))), np.array(mx.random.uniform(shape=(3,)))
            )
            np.testing.assert_array_equal(np.array(wx.random.state[0]), np.array(mx.random.state[0]))


def test_batches_of_keys() -> None:
    same(lambda m, key: m.vmap(lambda k: m.random.uniform(shape=(3,), key=k))(m.random.split(key, 4)), 3)


# ---- close ----


@given(
    seed=SEEDS, shape=SHAPES, dtype=FLOATS, parameters=st.sampled_from([(None, None), (1.5, None), (0.3, 2.7), (-4, 3)])
)
def test_normal(seed: int, shape: tuple[int, ...], dtype: str, parameters: tuple[Any, Any]) -> None:
    loc, scale = parameters
    size = max(abs(loc or 0.0), 0.1)  # an addition may cancel
    close(lambda m, key: m.random.normal(shape, getattr(m, dtype), loc, scale, key), seed, dtype, 2 * size)


def test_normal_of_many() -> None:
    """Also far out, where a draw is one of a million."""
    close(lambda m, key: m.random.normal((1 << 20,), key=key), 11)


def test_normal_with_arrays() -> None:
    def draw(m: Any, key: Any) -> Any:
        return m.random.normal((2, 50), loc=m.array([[1.0], [2.0]]), scale=m.array([[0.5], [3.0]]), key=key)

    close(draw, 4, least=2.0)


@given(seed=SEEDS, parameters=st.sampled_from([(None, None), (1 + 1j, 2), (0.5j, 2 - 1j)]))
def test_complex_normal(seed: int, parameters: tuple[Any, Any]) -> None:
    loc, scale = parameters
    theirs, mine = both(lambda m, key: m.random.normal((300,), m.complex64, loc, scale, key), seed)
    bound = ULPS * 2.0**-23 * (np.abs(theirs) + abs(loc or 0.0))
    assert np.all(np.abs(theirs - mine) <= bound)


@given(seed=SEEDS, dtype=FLOATS, ends=st.sampled_from([(-1, 1), (-2.0, 0.5), (0, 9), (1, -1), (6, 7)]))
def test_truncated_normal(seed: int, dtype: str, ends: tuple[float, float]) -> None:
    """The ends are computed, so that a draw near one of them carries the error of both of our error functions."""
    close(lambda m, key: m.random.truncated_normal(*ends, (400,), getattr(m, dtype), key), seed, dtype, 1.0)


def test_truncated_normal_between_arrays() -> None:
    close(lambda m, key: m.random.truncated_normal(m.array([-1.0, 0.0]), m.array([0.0, 2.0]), key=key), 3, least=1.0)


@given(seed=SEEDS, shape=SHAPES, dtype=FLOATS)
def test_gumbel(seed: int, shape: tuple[int, ...], dtype: str) -> None:
    """The outer logarithm of numbers near 1 turns relative into absolute errors."""
    close(lambda m, key: m.random.gumbel(shape, getattr(m, dtype), key), seed, dtype, 1.0)


@given(seed=SEEDS, shape=SHAPES, dtype=FLOATS, parameters=st.sampled_from([(0.0, 1.0), (1.5, 3.0), (-2, 0.5)]))
def test_laplace(seed: int, shape: tuple[int, ...], dtype: str, parameters: tuple[float, float]) -> None:
    loc, scale = parameters
    close(lambda m, key: m.random.laplace(shape, getattr(m, dtype), loc, scale, key), seed, dtype, 4 * abs(loc))


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", [(), (7,), (5, 3)])
def test_multivariate_normal(n: int, shape: tuple[int, ...]) -> None:
    """MLX computes the root of the covariance in float32: errors of its elements are relative to the largest one."""
    rng = np.random.default_rng(n)
    factor = rng.normal(size=(n, n))
    mean, cov = rng.normal(size=n).astype(np.float32), (factor @ factor.T + np.eye(n)).astype(np.float32)
    theirs, mine = both(lambda m, key: m.random.multivariate_normal(m.array(mean), m.array(cov), shape, key=key), 9)
    normal = np.abs(np.array(wx.random.normal((*shape, n), key=wx.random.key(9)))).sum(-1, keepdims=True)
    scale = np.abs(mean) + normal * np.sqrt(np.linalg.norm(cov, 2))
    assert np.all(np.abs(theirs - mine) <= ULPS * 2.0**-23 * scale)


def test_multivariate_normal_of_batches() -> None:
    rng = np.random.default_rng(2)
    factor = rng.normal(size=(4, 1, 3, 3))
    mean, cov = (
        rng.normal(size=(5, 3)).astype(np.float32),
        (factor @ factor.swapaxes(-1, -2) + np.eye(3)).astype(np.float32),
    )
    theirs, mine = both(lambda m, key: m.random.multivariate_normal(m.array(mean), m.array(cov), key=key), 9)
    assert theirs.shape == (4, 5, 3)
    assert np.all(np.abs(theirs - mine) <= ULPS * 2.0**-23 * (np.abs(theirs) + 10))


@pytest.mark.parametrize(
    "call",
    [
        lambda r, m: r.uniform(dtype=m.int32),
        lambda r, m: r.uniform(m.zeros((2,)), 1, (3,)),
        lambda r, m: r.normal((2,), m.int32),
        lambda r, m: r.gumbel((2,), m.complex64),
        lambda r, m: r.laplace((2,), m.int32),
        lambda r, m: r.truncated_normal(0, 1, (2,), m.int32),
        lambda r, m: r.randint(0, 5, (2,), m.float32),
        lambda r, m: r.normal((2, -1)),
        lambda r, m: r.split(m.array([1, 2])),
        lambda r, m: r.split(m.zeros((1, 2), dtype=m.uint32)),
        lambda r, m: r.uniform(key=m.zeros((3,), dtype=m.uint32)),
        lambda r, m: r.categorical(m.zeros((2, 3)), shape=(2,), num_samples=3),
        lambda r, m: r.categorical(m.zeros((2, 3)), 2),
        lambda r, m: r.categorical(m.zeros((2, 3)), shape=(2, 5)),
        lambda r, m: r.multivariate_normal(m.zeros((2,)), m.eye(3)),
        lambda r, m: r.multivariate_normal(m.array(1.0), m.eye(3)),
        lambda r, m: r.multivariate_normal(m.zeros((2,)), m.zeros((2,))),
        lambda r, m: r.multivariate_normal(m.zeros((2,)), m.eye(2), dtype=m.float16),
        lambda r, m: r.bernoulli(m.zeros((2,)), (3,)),
        lambda r, m: r.permutation(m.array(3)),
        lambda r, m: r.permutation(-1),
        lambda r, m: r.key(1.5),
    ],
)
def test_the_same_is_refused(call: Any) -> None:
    with pytest.raises(Exception) as theirs:
        call(mx.random, mx)
    with pytest.raises(theirs.type):
        call(wx.random, wx)
