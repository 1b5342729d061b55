"""shapeless=True: one trace for all sizes, never a different answer from the plain function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft import tree


def bits(x: Any) -> Any:
    leaves, structure = tree.flatten(x)
    return structure, [(v.dtype, v.shape, np.asarray(v).tobytes()) if isinstance(v, mx.array) else v for v in leaves]


def traced(f: Any) -> int:
    return f.traces  # type: ignore[no-any-return]


def sample(*shape: int) -> mx.array:
    n = int(np.prod(shape))
    return mx.array(np.sin(np.arange(n, dtype=np.float32) * 1.7).reshape(shape))


SIZES = [(4, 6), (9, 5), (2, 33), (17, 2), (64, 64)]

ONE_TRACE: dict[str, Any] = {
    "elementwise": lambda x: mx.exp(x) * 2.0 + x,
    "tail": lambda x: x[:, 1:],
    "head": lambda x: x[:-1],
    "last": lambda x: x[-1],
    "last two": lambda x: x[-2:],
    "reverse": lambda x: x[::-1] * 2.0,
    "reverse both": lambda x: x[::-1, ::-1],
    "every other": lambda x: x[::2],
    "first": lambda x: x[0],
    "transpose": lambda x: x.T + 1.0,
    "flatten": lambda x: x.reshape(-1),
    "merge": lambda x: x.reshape(x.shape[0] * x.shape[1]),
    "split": lambda x: x.reshape(x.shape[0], x.shape[1], 1) * 2.0,
    "sum": lambda x: mx.sum(x, axis=0),
    "sum all": lambda x: mx.sum(x),
    "mean": lambda x: mx.mean(x, axis=1),
    "var": lambda x: mx.var(x, axis=-1),
    "divide by size": lambda x: x.sum() / x.shape[0],
    "softmax": lambda x: mx.softmax(x, axis=-1),
    "logsumexp": lambda x: mx.logsumexp(x, axis=0),
    "argmax": lambda x: mx.argmax(x, axis=1),
    "ones": lambda x: mx.ones(x.shape) * x,
    "broadcast": lambda x: mx.broadcast_to(mx.array(2.0), x.shape) + x,
    "arange": lambda x: mx.arange(x.shape[0])[:, None] * x,
    "eye": lambda x: mx.eye(x.shape[0]),
    "tril": lambda x: mx.tril(x),
    "triu": lambda x: mx.triu(x, 1),
    "flip": lambda x: mx.flip(x, axis=1),
    "gram": lambda x: x @ x.T,
    "random": lambda x: x + mx.random.uniform(shape=x.shape, key=mx.random.key(3)),
    "where": lambda x: mx.where(x > 0, x, -x),
    "gradient": mx.grad(lambda x: mx.mean(mx.square(mx.tanh(x[:, 1:])))),
    "gradient of softmax": mx.grad(lambda x: mx.sum(mx.square(mx.softmax(x, axis=-1)))),
}


@pytest.mark.parametrize("name", ONE_TRACE)
def test_one_trace_serves_all_sizes(name: str) -> None:
    fun = ONE_TRACE[name]
    f = mx.compile(fun, shapeless=True)
    for shape in SIZES:
        x = sample(*shape)
        assert bits(f(x)) == bits(fun(x)), shape
    assert traced(f) == 1


RETRACING: dict[str, Any] = {
    "range": lambda x: sum((x[i] for i in range(x.shape[0])), mx.array(0.0)),
    "branch": lambda x: x * 2.0 if x.shape[0] > 8 else x * 3.0,
    "len": lambda x: x * len(x),
    "string": lambda x: x * float(str(x.shape[1])),
    "returned size": lambda x: (x, x.shape[0]),
    "assign": lambda x: (x.__setitem__(0, 1.0), x * 2.0)[1],
}


@pytest.mark.parametrize("name", RETRACING)
def test_a_size_that_is_read_is_guarded(name: str) -> None:
    fun = RETRACING[name]
    f = mx.compile(fun, shapeless=True)
    for shape in SIZES * 2:
        x, y = sample(*shape), sample(*shape)
        assert bits(f(x)) == bits(fun(y)), shape
    assert traced(f) <= len(SIZES)


def test_rank_dtype_and_units_retrace() -> None:
    f = mx.compile(lambda x: mx.sum(x * 2, axis=0), shapeless=True)
    for x in (sample(4, 6), sample(4), sample(1, 6), sample(4, 1), sample(3, 4, 5), sample(4, 6).astype(mx.float16)):
        assert bits(f(x)) == bits(mx.sum(x * 2, axis=0))


def test_two_arrays_must_still_fit() -> None:
    f = mx.compile(lambda x, y: x + y, shapeless=True)
    assert bits(f(sample(4, 6), sample(4, 6))) == bits(sample(4, 6) + sample(4, 6))
    assert bits(f(sample(5, 3), sample(5, 3))) == bits(sample(5, 3) + sample(5, 3))
    with pytest.raises(ValueError, match="broadcast"):
        f(sample(5, 3), sample(5, 4))
    assert bits(f(sample(5, 3), sample(1, 3))) == bits(sample(5, 3) + sample(1, 3))


def test_views_as_arguments() -> None:
    fun = ONE_TRACE["softmax"]
    f = mx.compile(fun, shapeless=True)
    for x in (sample(6, 8).T, sample(9, 4)[::-1], sample(12, 10)[::2, ::3]):
        assert bits(f(x)) == bits(fun(x))


def test_captured_arrays_keep_their_shapes() -> None:
    w = sample(6)
    f = mx.compile(lambda x: x * w, shapeless=True)
    for n in (2, 5, 9):
        assert bits(f(sample(n, 6))) == bits(sample(n, 6) * w)
