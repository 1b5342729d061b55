"""Control flow as plain Python over the same bodies: what every loop and branch of `weft.core` is compared with, and
the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft.core as mx
from tests import contract
from weft import tree
from weft.array import array

Function = Callable[..., Any]
Tree = Any


class Plain:
    """Loops and branches of the interpreter. Every step is evaluated on its own, as a program that knows of no loops
    would be."""

    @staticmethod
    def scan(
        f: Function,
        init: Tree,
        xs: Tree = None,
        length: Any = None,
        reverse: bool = False,
        *,
        until: Function | None = None,
    ) -> Any:
        rows = tree.leaves(xs)
        most = len(rows[0]) if rows else None
        steps = most if length is None else int(length)
        carry, made = settled(init), []
        for i in reversed(range(steps)) if reverse else range(steps):
            carry, y = f(carry, tree.map(lambda x, i=i: x[i], xs))
            carry = settled(carry)
            made.append(settled(y))
            if until is not None and bool(until(carry, y)):
                break
        ys = tree.map(lambda *ys: mx.stack(list(ys)), *(made[::-1] if reverse else made)) if made else None
        return (carry, ys) if until is None else (carry, ys, len(made))

    @staticmethod
    def while_loop(cond: Function, body: Function, init: Tree) -> Tree:
        state = settled(init)
        while bool(cond(state)):
            state = settled(body(state))
        return state

    @staticmethod
    def fori_loop(lower: Any, upper: Any, body: Function, init: Tree) -> Tree:
        state = settled(init)
        for i in range(int(lower), int(upper)):
            state = settled(body(mx.array(i), state))
        return state

    @staticmethod
    def cond(pred: Any, true_fn: Function, false_fn: Function, *operands: Tree) -> Tree:
        return (true_fn if bool(pred) else false_fn)(*operands)

    @staticmethod
    def switch(index: Any, branches: Sequence[Function], *operands: Tree) -> Tree:
        return branches[min(max(int(index), 0), len(branches) - 1)](*operands)


class Native:
    """The same names, by the operations under test."""

    scan = staticmethod(mx.scan)
    while_loop = staticmethod(mx.while_loop)
    fori_loop = staticmethod(mx.fori_loop)
    cond = staticmethod(mx.cond)
    switch = staticmethod(mx.switch)


def settled(value: Tree) -> Tree:
    """The tree, computed: Python numbers as arrays, as a loop takes them."""
    value = tree.map(lambda leaf: leaf if isinstance(leaf, array) else mx.array(leaf), value)
    mx.eval(value)
    return value


def unsettled(value: Tree) -> Tree:
    return value


# ---- comparing ----


def pairs(found: Tree, expected: Tree) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Leaf by leaf: where it is, and both values. The structures must be the same."""
    (left, structure), (right, other) = tree.flatten(found), tree.flatten(expected)
    assert structure is other, f"{structure} instead of {other}"
    for path, x, y in zip(structure.paths(), left, right, strict=True):
        yield f"leaf {path}", contract.values_of(mx.array(x)), contract.values_of(mx.array(y))


def assert_same(found: Tree, expected: Tree, how: str = "") -> None:
    """The same structure, shapes, dtypes and bits."""
    for where, x, y in pairs(found, expected):
        assert (x.shape, x.dtype) == (y.shape, y.dtype), f"{how} {where}: {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        assert contract.same_bits(x, y), f"{how} {where}: {contract.differences(x, y)}"


def assert_close(found: Tree, expected: Tree, tolerance: float = 1e-9) -> None:
    """The same structure and dtypes; values as close as the order of additions leaves them."""
    for where, x, y in pairs(found, expected):
        assert x.dtype == y.dtype, f"{where}: {x.dtype}, not {y.dtype}"
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=where)


def random(*shape: int, seed: int = 0) -> array:
    x = mx.array(np.random.default_rng(seed + sum(shape)).standard_normal(shape), dtype=mx.float32)
    mx.eval(x)
    return x


def running(total: array, x: array) -> tuple[array, array]:
    """A body that tells steps apart: the total after it, and the product before it."""
    return total + x, total * x


@dataclass
class Particle:
    place: Any
    more: dict[str, Any]
