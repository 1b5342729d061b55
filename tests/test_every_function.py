"""Every public function on every dtype, and on arguments of the wrong kind: an answer whose operations take such
operands, or an error that is meant for users. Nothing internal comes out, and nothing hangs."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import settings
from weft import dtypes as dt
from weft.graph.node import reachable
from weft.primitives.base import check_operands

INTERNAL = (AttributeError, KeyError, AssertionError, NotImplementedError, NameError, ZeroDivisionError, SystemError)
SETTINGS = {
    "clear_cache", "clear_streams", "disable_compile", "enable_compile", "new_stream", "new_thread_local_stream",
    "new_thread_unsafe_stream", "reset_peak_memory", "set_cache_limit", "set_default_device", "set_default_stream",
    "set_memory_limit", "set_printoptions", "set_wired_limit",
}  # fmt: skip
"""They change what other tests rely on."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(mx):
        value = getattr(mx, name)
        if isinstance(value, types.FunctionType) and name not in SETTINGS and name[0] != "_":
            yield name, value
    for name, value in vars(mx.random).items():
        if isinstance(value, types.FunctionType) and value.__module__ == mx.random.__name__ and name[0] != "_":
            yield f"random.{name}", value


FUNCTIONS = dict(functions())


def calls(f: Callable[..., Any], dtype: dt.Dtype) -> Iterator[Callable[[], Any]]:
    a = mx.array(np.array([[1, 0], [1, 1]])).astype(dtype)
    v = a[0]
    for args in (
        (a,), (v,), (v[0],), (a, a), (v, v), (a, a, a), (2, a), (a, 1), (a, v), (a, v[0]), (v[0], a), ([a, a],),
        (a, a, 1), (a, dtype), (a, (2, 2)), (mx.zeros((0, 2), dtype),), (a, 1.5), (a, "a"), (a, None),
        (a, [v[0], v[1]]),
    ):  # fmt: skip
        yield lambda args=args: f(*args)
    yield lambda: f((2, 2), dtype=dtype)
    yield lambda: f(3, dtype=dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_internal_comes_out(name: str) -> None:
    with settings(backend="reference"):
        for dtype in dt.ALL:
            for call in calls(FUNCTIONS[name], dtype):
                try:
                    made = call()
                except INTERNAL:
                    raise
                except Exception:
                    continue  # an error of ours, or Python's own about the arguments
                for array in made if isinstance(made, (list, tuple)) else [made]:
                    if isinstance(array, mx.array):
                        check(array)


def check(array: mx.array) -> None:
    """All operations take the operands that they were given."""
    for node in reachable([array._node]):
        if node.value is None:
            check_operands(node.op, node.inputs)
