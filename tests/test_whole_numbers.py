"""Integers that are not Python's own: NumPy's, members of an IntEnum, True. They do what the int does, and nothing of
them is left in a shape or in an operation, which are found again by their values: True and `np.int64(1)` equal 1.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import values_of
from weft import nn, tree
from weft.dtypes import float32
from weft.graph.dims import DimEnv
from weft.graph.node import kind_of, reachable
from weft.primitives.views import Reshape

X, CUBE, SQUARE = mx.arange(12.0).reshape(3, 4), mx.arange(24.0).reshape(2, 3, 4), mx.arange(16.0).reshape(4, 4) + 1
SIGNAL, KERNEL = mx.arange(54.0).reshape(2, 9, 3), mx.arange(36.0).reshape(4, 3, 3)
IMAGE, FILTER = mx.arange(150.0).reshape(2, 5, 5, 3), mx.arange(108.0).reshape(4, 3, 3, 3)
AT = mx.zeros((3, 1), mx.int32)


class One(enum.IntEnum):
    ONE = 1


OTHERS: dict[str, Any] = {
    "bool": True,
    "IntEnum": One.ONE,
    **{kind.__name__: kind(1) for kind in (np.int8, np.uint8, np.int64, np.uint64)},
}

CALLS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda one: X.reshape(12, one),
    "unflatten": lambda one: mx.unflatten(X, 0, (3, one)),
    "flatten": lambda one: mx.flatten(CUBE, one),
    "transpose": lambda one: X.transpose(one, 0),
    "swapaxes": lambda one: mx.swapaxes(X, 0, one),
    "moveaxis": lambda one: mx.moveaxis(CUBE, 0, one),
    "expand_dims": lambda one: mx.expand_dims(X, one),
    "squeeze": lambda one: mx.squeeze(AT, one),
    "broadcast_to": lambda one: mx.broadcast_to(X, (one, 3, 4)),
    "as_strided": lambda one: mx.as_strided(X, (3, one), (one, one), one),
    "zeros": lambda one: mx.zeros((one, 2)),
    "full": lambda one: mx.full(one, 2.0),
    "eye": lambda one: mx.eye(3, k=one),
    "tri": lambda one: mx.tri(3, 4, one),
    "linspace": lambda one: mx.linspace(0, 1, one),
    "diag": lambda one: mx.diag(X[0], one),
    "diagonal": lambda one: mx.diagonal(SQUARE, one),
    "tril": lambda one: mx.tril(SQUARE, one),
    "trace": lambda one: mx.trace(SQUARE, one),
    "slice": lambda one: X[one:],
    "steps": lambda one: X[::one],
    "update": lambda one: X.at[one:].add(1.0),
    "take": lambda one: mx.take(X, AT, axis=one),
    "take_along_axis": lambda one: mx.take_along_axis(X, AT, axis=one),
    "put_along_axis": lambda one: mx.put_along_axis(X, AT, mx.ones((3, 1)), axis=one),
    "slice_update": lambda one: mx.slice_update(X, mx.ones((3, 2)), mx.array([1]), (one,)),
    "pad": lambda one: mx.pad(X, one),
    "pad of pairs": lambda one: mx.pad(X, ((one, 0), (0, one))),
    "roll": lambda one: mx.roll(X, one, axis=one),
    "repeat": lambda one: mx.repeat(X, one),
    "tile": lambda one: mx.tile(X, (one, one)),
    "split": lambda one: mx.split(X, one, axis=one),
    "split at": lambda one: mx.split(X, [one], axis=one),
    "concatenate": lambda one: mx.concatenate([X, X], axis=one),
    "stack": lambda one: mx.stack([X, X], axis=one),
    "sum": lambda one: mx.sum(X, axis=one),
    "sum over axes": lambda one: mx.sum(CUBE, axis=(0, one)),
    "var": lambda one: mx.var(X, axis=one, ddof=one),
    "softmax": lambda one: mx.softmax(X, axis=one),
    "logsumexp": lambda one: mx.logsumexp(X, axis=one),
    "cumsum": lambda one: mx.cumsum(X, axis=one),
    "argmax": lambda one: mx.argmax(X, axis=one),
    "sort": lambda one: mx.sort(X, axis=one),
    "topk": lambda one: mx.topk(X, one, axis=one),
    "partition": lambda one: mx.partition(X, one, axis=one),
    "median": lambda one: mx.median(X, axis=one),
    "quantile": lambda one: mx.quantile(X, 0.5, axis=one),
    "tensordot": lambda one: mx.tensordot(X, X.T, one),
    "tensordot of axes": lambda one: mx.tensordot(X, X, (one, one)),
    "matrix_power": lambda one: mx.linalg.matrix_power(SQUARE, one),
    "norm": lambda one: mx.linalg.norm(X, axis=one),
    "fft": lambda one: mx.fft.fft(X, n=one, axis=one),
    "rfftn": lambda one: mx.fft.rfftn(X, axes=(0, one)),
    "conv1d": lambda one: mx.conv1d(SIGNAL, KERNEL, one, one, one, one),
    "conv2d": lambda one: mx.conv2d(IMAGE, FILTER, (one, one), (one, one)),
    "conv_transpose1d": lambda one: mx.conv_transpose1d(SIGNAL, KERNEL, one, one),
    "conv_general": lambda one: mx.conv_general(SIGNAL, KERNEL, stride=one, padding=one, input_dilation=one),
    "Conv2d": lambda one: nn.Conv2d(3, 4, kernel_size=one, stride=one, padding=one)(IMAGE).shape,
    "MaxPool2d": lambda one: nn.MaxPool2d(kernel_size=one, stride=one)(IMAGE),
    "random.normal": lambda one: mx.random.normal((one, 3), key=mx.random.key(one)),
    "random.split": lambda one: mx.random.split(mx.random.key(3), one),
    "random.permutation": lambda one: mx.random.permutation(X, axis=one, key=mx.random.key(3)),
    "random.categorical": lambda one: mx.random.categorical(X, num_samples=one, key=mx.random.key(3)),
    "vmap": lambda one: mx.vmap(lambda x: x * 2, in_axes=one, out_axes=one)(X),
    "grad": lambda one: mx.grad(lambda x, y: (x * y).sum(), argnums=one)(X, X),
}  # fmt: skip


def is_foreign(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(is_foreign, value))
    return isinstance(value, (int, np.integer)) and type(value) is not int


def foreign(result: Any) -> list[Any]:
    """What of shapes and operations is no int of Python's."""
    nodes = reachable([x._node for x in tree.flatten(result)[0] if isinstance(x, mx.array)])
    found: list[Any] = [node.kind for node in nodes if is_foreign(node.shape)]
    for node in nodes:
        for field in dataclasses.fields(node.op):
            if "bool" not in str(field.type) and is_foreign(getattr(node.op, field.name)):
                found.append((node.op, field.name))
    return found


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", CALLS)
def test_other_integers_do_what_the_int_does(name: str, kind: str) -> None:
    call = CALLS[name]
    result = call(OTHERS[kind])
    assert foreign(result) == []
    expected = call(1)
    for got, want in zip(tree.flatten(result)[0], tree.flatten(expected)[0], strict=True):
        if not isinstance(want, mx.array):
            assert (got, type(got)) == (want, type(want))
            continue
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(values_of(got), values_of(want))


def test_nothing_of_them_is_found_again() -> None:
    """A shape that was first seen with True in it was that of all arrays from then on."""
    size = 7919  # no other test has arrays of this shape
    mx.eval(mx.zeros(size).reshape(size, True))
    assert [type(n) for n in mx.ones((size, 1)).shape] == [int, int]
    np.testing.assert_array_equal(np.array(mx.ones((size, 1))), np.ones((size, 1)))


def test_numbers_of_a_trace_are_not_found_again() -> None:
    x = mx.arange(7907.0)  # no other test has arrays of this size
    mx.eval(mx.compile(lambda x, n: mx.split(x, n)[0] + 1)(x, 1), mx.compile(lambda x, n: x[n:])(x, 2))
    assert foreign([mx.split(x, 1)[0] + 1, x[2:]]) == []


@pytest.mark.parametrize("bad", [1.0, "1", None, np.float32(1), mx.array(1.0)], ids=repr)
def test_what_is_no_integer_is_refused(bad: Any) -> None:
    for name in ("reshape", "topk", "conv1d", "pad", "tensordot"):
        with pytest.raises((TypeError, ValueError)):
            CALLS[name](bad)


def test_sizes_that_are_symbols_are_not_read() -> None:
    env = DimEnv()
    n = env.symbol("n", 7)
    kind = kind_of((np.int64(2), n, True), float32)  # type: ignore[arg-type]
    op = Reshape((n * 2, 3))
    assert [type(size) for size in (kind.shape[0], kind.shape[2], op.shape[1])] == [int, int, int]
    assert kind.shape[1] is n
    assert op.shape[0] is n * 2
    assert env.guards == []
