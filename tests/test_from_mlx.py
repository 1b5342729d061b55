"""What docs/from_mlx.md says of Weft, line by line: a claim that is no longer true fails here."""

from __future__ import annotations

import math
import operator
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft.core as mx

X = mx.array([1.0, 2.0, 3.0])
WHOLE = mx.array([1, 2, 3])


def same(a: Any, b: Any) -> None:
    a, b = np.array(a), np.array(b)
    assert a.dtype == b.dtype
    assert np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


# ---- on purpose ----


def test_dtypes() -> None:
    assert (mx.array(1.0, mx.float64) + mx.array(1j)).dtype == mx.complex128
    assert mx.fft.fft(mx.zeros(4, mx.float64)).dtype == mx.complex128


def test_compile_follows_captured_values() -> None:
    k = 2.0
    f = mx.compile(lambda x: x * k)
    same(f(X), X * 2.0)
    k = 3.0
    same(f(X), X * 3.0)


def test_out_of_range_floats_saturate() -> None:
    same(mx.array([1e20, -1e20, math.nan, math.inf]).astype(mx.int32), mx.array([2**31 - 1, -(2**31), 0, 2**31 - 1]))


def test_integer_division_by_zero_is_zero() -> None:
    same(WHOLE // mx.array([0, 0, 0]), mx.array([0, 0, 0]))
    same(WHOLE % mx.array([0, 0, 0]) * 0, mx.array([0, 0, 0]))


def test_half_precision_is_rounded_once() -> None:
    x = np.random.default_rng(0).normal(size=100).astype(np.float16)
    same(mx.sin(mx.array(x)), np.sin(x.astype(np.float64)).astype(np.float16))


def test_softmax_is_always_precise() -> None:
    x = mx.random.normal((4, 100)).astype(mx.float16)
    same(mx.softmax(x), mx.softmax(x, precise=True))


def test_buffers_are_read_only_and_no_copies() -> None:
    assert memoryview(X).readonly
    assert not np.asarray(X).flags.writeable
    assert np.shares_memory(np.asarray(X), np.asarray(X))


# ---- operands and indices ----


def test_operands() -> None:
    same(mx.add([1.0, 2.0], (3.0, 4.0)), mx.array([4.0, 6.0]))
    assert (X == [1, 2]) is False
    n = np.array([1.0, 2.0, 3.0], np.float32)
    assert isinstance(n + X, np.ndarray)
    same(mx.grad(lambda x: mx.sum(n * x))(X), n)
    assert isinstance(np.float32(2) * X, mx.array)
    assert np.sum(X) == 6
    assert np.std(X) == np.std(n)
    assert (X == None) is False  # noqa: E711
    same(1 & WHOLE, mx.array([1, 0, 1]))
    same(1 << WHOLE, mx.array([2, 4, 8]))
    same(divmod(WHOLE, 2)[1], mx.array([1, 0, 1]))
    same(WHOLE @ WHOLE, mx.array(14))
    same(WHOLE + np.float32(2.5), mx.array([3.5, 4.5, 5.5]))


def test_errors_of_operands() -> None:
    for error in (IndexError, ValueError):
        with pytest.raises(error):
            mx.sum(X, axis=3)
        with pytest.raises(error):
            X[0, 0]
    with pytest.raises(TypeError):
        X + "a"  # type: ignore[operator]
    with pytest.raises(TypeError):
        operator.lt(X, object())

    class Right:
        def __radd__(self, other: Any) -> str:
            return "asked"

    assert X + Right() == "asked"  # type: ignore[operator]


def test_updates_of_integers_keep_their_dtype() -> None:
    i = mx.array([1, 2, 3])
    i[...] = 1.5
    same(i, mx.array([1, 1, 1]))
    same(WHOLE.at[...].add(1.5), mx.array([2, 3, 4]))
    same(mx.array([7, -7, 9]).at[mx.array([0, 1, 2])].divide(2), mx.array([3, -3, 4]))


def test_indices() -> None:
    for index in (3, [0, 3], np.array([3])):
        with pytest.raises(IndexError):
            X[index]
    same(X[mx.array([5, -9])], mx.array([3.0, 1.0]))
    same(X[X > 1], mx.array([2.0, 3.0]))
    with pytest.raises(ValueError):
        X[::0]
    with pytest.raises(ValueError):
        X.reshape()


def test_reductions() -> None:
    assert mx.sum(mx.array(3, mx.uint8)).dtype == mx.uint32
    assert mx.prod(mx.array([1, 2], mx.int8), axis=()).dtype == mx.int32
    assert mx.softmax(mx.array([[1, 2], [3, 4]]), axis=0).dtype == mx.float32
    same(mx.logsumexp(mx.array([1, 2], mx.uint32)), mx.logsumexp(mx.array([1.0, 2.0])))
    same(mx.sum(mx.zeros((0, 3)), axis=0), mx.zeros(3))
    with pytest.raises(ValueError):
        mx.max(mx.zeros((0,)))
    same(mx.grad(lambda i: mx.max(i))(WHOLE), mx.array([0, 0, 1]))
    assert math.isnan(mx.sign(mx.array(math.nan)).item())
    assert np.isnan(np.array(mx.cummax(mx.array([1.0, math.nan, 2.0]).astype(mx.float16)))[1:]).all()


def test_linear_algebra() -> None:
    with pytest.raises(np.linalg.LinAlgError):
        mx.eval(mx.linalg.cholesky(mx.array([[1.0, 2.0], [2.0, 1.0]]), stream=mx.cpu))
    assert mx.linalg.eig(mx.eye(2, dtype=mx.float64), stream=mx.cpu)[0].dtype == mx.complex128
    assert mx.linalg.norm(mx.array([3j, 4.0 + 0j])).dtype == mx.float32
    assert mx.linalg.inv(mx.zeros((0, 0)), stream=mx.cpu).shape == (0, 0)
    assert mx.hadamard_transform(mx.zeros(4, mx.complex64)).dtype == mx.complex64
    with pytest.raises(ValueError):
        mx.hadamard_transform(mx.zeros(36))
    x = mx.random.normal((6, 6)).astype(mx.float16)
    masks = mx.ones((2, 2), mx.bool_)
    same(mx.block_masked_mm(x, x, 3, masks, masks, masks), x @ x)
    a, segments = mx.random.normal((2, 8)), mx.array([[0, 4], [4, 8], [2, 99]])
    assert mx.grad(lambda a: mx.sum(mx.segmented_mm(a, a.T, segments)))(a).shape == (2, 8)


# ---- trees, pickles, more ----


def test_trees_keep_their_classes() -> None:
    class Named(dict):  # type: ignore[type-arg]
        pass

    @dataclass
    class Pair:
        a: Any
        b: Any

    assert type(mx.grad(lambda t: mx.sum(t["w"] ** 2))(Named(w=X))) is Named
    found = mx.grad(lambda p: mx.sum(p.a * p.b))(Pair(X, 2 * X))
    assert type(found) is Pair
    same(found.a, 2 * X)


def test_pickles() -> None:
    same(pickle.loads(pickle.dumps(X)), X)


@pytest.mark.parametrize("name", [
    "jacfwd", "jacrev", "jacobian", "hessian", "hvp", "linearize", "gammaln", "digamma", "erfcx", "i0", "gammainc",
    "betainc", "quantile", "histogram", "cov", "interp", "nanmean", "nonzero", "argwhere", "scan", "while_loop", "cond",
])  # fmt: skip
def test_what_is_more_is_there(name: str) -> None:
    assert callable(getattr(mx, name))


@pytest.mark.parametrize("name", ["expm", "lstsq", "matrix_power", "matrix_rank"])
def test_what_is_more_in_linalg_is_there(name: str) -> None:
    assert callable(getattr(mx.linalg, name))
