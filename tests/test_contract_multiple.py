"""The contract of control flow (loops and branches): every rule, for every subset of operands.

Derivatives and batching are checked on the reference back end, values on machine code; the cases are what the public
functions bind, so that bodies are real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft.core as mx
from tests.contract import by_reference, leaf, same_bits, subsets, values_of
from weft.array import array, wrap
from weft.graph.node import Node
from weft.primitives import CONTROL_FLOW
from weft.primitives.base import ControlFlow, MultiOutput, bind_many
from weft.transforms.jvp import push_forward
from weft.transforms.vjp import pull_back
from weft.transforms.vmap import batch

STEP = 1e-6


class Case(NamedTuple):
    """One application: the operation and its operands' values."""

    op: MultiOutput
    operands: list[np.ndarray]


def random(*shape: int, seed: int = 0) -> array:
    values = np.random.default_rng(seed + sum(shape)).uniform(0.3, 0.9, shape)
    return mx.array(values, dtype=mx.float64)


def swapping(carry: Any, x: array) -> Any:
    a, b, n = carry
    return (b * x, mx.sin(a), n + 1), (a + b, n)


def nested(carry: array, x: array) -> Any:
    inner, ys = mx.scan(lambda c, y: (c * y + carry, c), carry, x)
    return mx.cond(inner.sum() > 2, lambda v: mx.sin(v), lambda v: v * 0.5, inner), ys.sum()


def products(carry: array, x: array) -> Any:
    after = mx.tanh(x + carry @ random(3, 3))
    return after, after[::-1]


def updates(carry: tuple[array, array], x: array) -> Any:
    buffer, place = carry
    return (mx.slice_update(buffer, x[None], place, axes=(0,)), place + 1), buffer.sum()


CASES: dict[str, Callable[[], Any]] = {
    "scan": lambda: mx.scan(lambda c, x: (mx.sin(c) * x, c * x), random(2), random(4, 2)),
    "scan backwards": lambda: mx.scan(lambda c, x: (mx.sin(c) * x, c * x), random(2), random(4, 2), reverse=True),
    "no steps": lambda: mx.scan(lambda c, x: (c * x, c), random(2), random(0, 2)),
    "swapped carries, an integer one": lambda: mx.scan(
        swapping, (random(2), random(2, seed=1), mx.array(0)), random(3, 2)
    ),
    "products": lambda: mx.scan(products, random(2, 3), random(3, 2, 3)),
    "loop in a loop, branch in a loop": lambda: mx.scan(nested, random(2), random(2, 3, 2)),
    "slice updates": lambda: mx.scan(updates, (random(4, 2), mx.array([1])), random(2, 2)),
    "until": lambda: mx.scan(lambda c, x: (c + x, c * x), random(), random(6), until=lambda c, y: c > 2),
    "counted": lambda: mx.scan(lambda c, x: (c * x, c + x), random(2), random(5, 2), length=mx.array(3)),
    "while": lambda: mx.while_loop(
        lambda s: s[1] < 3, lambda s: (mx.sin(s[0]) * s[0], s[1] + 1), (random(2), mx.array(0))
    ),
    "fori": lambda: mx.fori_loop(mx.array(1), mx.array(4), lambda i, x: mx.sin(x) + i, random(2)),
    "map": lambda: mx.map(lambda x: (x * x).sum(), random(3, 2)),
    "switch": lambda: mx.switch(
        mx.array(1),
        [lambda x, y: (x, y), lambda x, y: (x * y, mx.sin(x)), lambda x, y: (y, x)],
        random(2),
        random(2, seed=3),
    ),
    "branches that use different operands": lambda: mx.cond(
        random(1)[0] > 0, lambda x, y: mx.sin(x), lambda x, y: y * y, random(2), random(2, seed=3)
    ),
}


def bundle_behind(result: Any) -> Node:
    """The application that a result of a public function comes from."""
    first: Any = result
    while not isinstance(first, array):
        first = first[0]
    node = first._node
    while not isinstance(node.op, MultiOutput):
        node = node.inputs[0]
    return node


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    whole = bundle_behind(CASES[request.param]())
    assert isinstance(whole.op, MultiOutput)
    return Case(whole.op, [values_of(wrap(x)) for x in whole.inputs])


def real(case: Case) -> list[int]:
    """The operands that can be differentiated."""
    return [i for i, x in enumerate(case.operands) if x.dtype.kind == "f" and x.size]


def by_reference_values(op: MultiOutput, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    return by_reference(bind_many(op, *[leaf(x) for x in operands]))


def test_all_control_flow_is_listed() -> None:
    found = {cls for cls in ControlFlow.__subclasses__() if cls.__module__.startswith("weft.primitives.")}
    assert found == set(CONTROL_FLOW)
    for cls in CONTROL_FLOW:
        assert cls.__doc__
        for rule in ("infer", "reference", "jvp", "vjp", "batch"):
            assert getattr(cls, rule) is not getattr(MultiOutput, rule), f"{cls.name()} has no {rule} rule"


def test_native_is_reference(case: Case) -> None:
    native = [values_of(wrap(x)) for x in bind_many(case.op, *[leaf(x) for x in case.operands])]
    for x, y in zip(native, by_reference_values(case.op, case.operands), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-14, atol=1e-14)


def test_compiled_is_eager(case: Case) -> None:
    def run(*operands: array) -> list[array]:
        return [wrap(x) for x in bind_many(case.op, *[x._node for x in operands])]

    given = [wrap(leaf(x)) for x in case.operands]
    for x, y in zip(run(*given), mx.compile(run)(*given), strict=True):
        assert same_bits(values_of(x), values_of(y))


def test_jvp_is_the_finite_difference(case: Case) -> None:
    rng = np.random.default_rng(5)
    for traced in subsets(real(case)):
        tangents = {i: rng.standard_normal(case.operands[i].shape) for i in traced}
        nodes = [leaf(x) for x in case.operands]
        outs = bind_many(case.op, *nodes)
        given = [leaf(tangents[i]) if i in traced else None for i in range(len(nodes))]
        found = push_forward(nodes, outs, given)
        sides = []
        for by in (STEP, -STEP):
            moved = [x + by * tangents[i] if i in traced else x for i, x in enumerate(case.operands)]
            sides.append(by_reference_values(case.op, moved))
        for out, tangent, up, down in zip(outs, found, *sides, strict=True):
            expected = (up - down) / (2 * STEP) if up.dtype.kind == "f" else np.zeros(up.shape)
            got = np.zeros(up.shape) if tangent is None else by_reference([tangent])[0]
            assert tangent is None or tangent.kind is out.kind
            np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-8, err_msg=f"traced {traced}")


def test_vjp_is_the_transpose_of_jvp(case: Case) -> None:
    """For cotangents of all results, and of the first alone."""
    rng = np.random.default_rng(6)
    for traced in subsets(real(case)):
        moves = {i: rng.standard_normal(case.operands[i].shape) for i in traced}
        for alone in (False, True):
            nodes = [leaf(x) for x in case.operands]
            outs = bind_many(case.op, *nodes)
            tangents = [leaf(moves[i]) if i in traced else None for i in range(len(nodes))]
            cotangents = [
                leaf(rng.standard_normal(out.shape)) if out.dtype.is_float and not (alone and i) else None
                for i, out in enumerate(outs)
            ]
            moved = push_forward(nodes, outs, tangents)
            found = pull_back([nodes[i] for i in traced], outs, cotangents)
            left = sum(_dot(x, y) for x, y in zip(moved, cotangents, strict=True))
            right = sum(_dot(ct, tangents[i]) for ct, i in zip(found, traced, strict=True))
            np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-12, err_msg=f"traced {traced}")


def _dot(x: Node | None, y: Node | None) -> float:
    if x is None or y is None:
        return 0.0
    a, b = by_reference([x, y])
    return float((a * b).sum())


def test_batch_is_a_loop(case: Case) -> None:
    """Every subset of operands mapped, along their first or their last axis."""
    rng = np.random.default_rng(7)
    size = 3
    for mapped in subsets(list(range(len(case.operands)))):
        for last in (False, True):
            axes = [(x.ndim if last else 0) if i in mapped else None for i, x in enumerate(case.operands)]
            lanes = [[_varied(x, rng) if i in mapped else x for i, x in enumerate(case.operands)] for _ in range(size)]
            stacked = [
                np.stack([lane[i] for lane in lanes], axis) if axis is not None else lanes[0][i]
                for i, axis in enumerate(axes)
            ]
            inputs = [leaf(x) for x in case.operands]
            outs = bind_many(case.op, *inputs)
            found = batch(inputs, outs, [leaf(x) for x in stacked], axes, size)
            expected = [by_reference_values(case.op, lane) for lane in lanes]
            for k, (node, axis) in enumerate(found):
                values = by_reference([node])[0]
                for lane in range(size):
                    got = values if axis is None else np.take(values, lane, axis)
                    np.testing.assert_allclose(
                        got, expected[lane][k], rtol=1e-13, atol=1e-13, err_msg=f"{mapped} {axes}"
                    )


def _varied(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another operand like this one. Whole numbers (bounds, places, indices) stay near what they are."""
    if x.dtype.kind == "f":
        return x * rng.uniform(0.9, 1.1, x.shape)
    if x.dtype.kind == "b":
        return rng.integers(0, 2, x.shape).astype(bool)
    if x.size and x.max() > 100:  # "as many steps as it takes", or none
        return x * rng.integers(0, 2, x.shape)
    return x + rng.integers(0, 2, x.shape).astype(x.dtype)
