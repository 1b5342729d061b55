"""Composites: operations that are one node until they are planned. Whatever looks at them, their parts, or what is made
of either sees the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from tests.contract import by_reference, leaf, place, same_bits, values_of
from weft.array import array, wrap
from weft.graph.node import Graph, Node, reachable
from weft.graph.show import show
from weft.passes.cse import cse
from weft.passes.decompose import decompose
from weft.primitives import REGISTRY
from weft.primitives.base import Composite, Parameter, bind, constant
from weft.primitives.neural import LayerNorm, RmsNorm, Rotate
from weft.transforms.jvp import push_forward
from weft.transforms.vjp import pull_back

COMPOSITES = [cls for cls in REGISTRY if issubclass(cls, Composite)]
X, W = (contract.generator(name).normal(size=shape).astype(np.float32) for name, shape in (("x", (3, 8)), ("w", (8,))))


def name_of(cls: type[Composite]) -> str:
    return cls.name()


def holds_composites(node: Node) -> bool:
    return any(isinstance(x.op, Composite) for x in reachable([node]))


@pytest.mark.parametrize("cls", COMPOSITES, ids=name_of)
def test_it_is_its_parts_to_the_bit(cls: type[Composite]) -> None:
    for case in contract.cases(cls):
        operands = [place(v) for v in case.operands()]
        nodes = [x._node for x in operands]
        whole = values_of(wrap(bind(case.op, *nodes)))
        assert same_bits(whole, values_of(wrap(case.op.decompose(*nodes)))), case
        compiled = mx.compile(lambda *xs, op=case.op: wrap(bind(op, *[x._node for x in xs])))
        assert same_bits(whole, values_of(compiled(*operands))), case


@pytest.mark.parametrize("cls", COMPOSITES, ids=name_of)
def test_its_derivatives_are_those_of_its_parts(cls: type[Composite]) -> None:
    """Also where finite differences say nothing, because it is computed in float32."""
    for case in contract.cases(cls, [mx.float32]):
        values = case.operands()
        nodes = [leaf(v) for v in values]
        traced = [x for x in nodes if x.dtype.is_inexact]
        outs = [bind(case.op, *nodes), case.op.decompose(*nodes)]
        tangents = [[leaf(np.cos(np.arange(x.kind.size)).reshape(x.shape).astype(x.dtype.np)) for x in traced]] * 2
        pushed = [push_forward(traced, [out], t)[0] for out, t in zip(outs, tangents, strict=True)]
        pulled = [pull_back(traced, [out], [constant(0.5, out.kind)]) for out in outs]
        for x, y in zip([pushed[0], *pulled[0]], [pushed[1], *pulled[1]], strict=True):
            assert (x is None) == (y is None), case
            if x is not None and y is not None:
                assert same_bits(*by_reference([x, y])), case


# ---- who sees one, and who its parts ----

CALLS: dict[str, Callable[[array, array], array]] = {
    "rms_norm": lambda x, w: mx.fast.rms_norm(x, w, 1e-5),
    "layer_norm": lambda x, w: mx.fast.layer_norm(x, w, None, 1e-5),
    "rope": lambda x, w: mx.fast.rope((x * w)[None], 4, traditional=False, base=1e4, scale=1.0, offset=3),
    "attention": lambda x, w: mx.fast.scaled_dot_product_attention(*[(x * w)[None, None]] * 3, scale=0.3),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_one_node_and_its_parts_to_a_derivative(name: str) -> None:
    """However often it was called, and in which order: what a call builds is remembered."""
    seen: list[bool] = []

    def loss(x: array, w: array) -> array:
        made = CALLS[name](x, w)
        seen.append(holds_composites(made._node))
        return (made * made).sum()

    x, w = mx.array(X), mx.array(W)
    for _ in range(3):
        assert holds_composites(CALLS[name](x, w)._node)
        mx.grad(loss, argnums=(0, 1))(x, w)
        mx.vmap(lambda row: loss(row[None], w))(x)
    assert seen == [False] * 6


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_compiled_functions_are_those_of_plain_ones(name: str) -> None:
    def loss(x: array, w: array) -> array:
        return (CALLS[name](x, w) * x.sum()).sum() + CALLS[name](x, w).max()

    x, w = mx.array(X), mx.array(W)
    plain = mx.grad(loss, argnums=(0, 1))(x, w)
    for other in (mx.grad(mx.compile(loss), argnums=(0, 1)), mx.compile(mx.grad(loss, argnums=(0, 1)))):
        for got, expected in zip(other(x, w), plain, strict=True):
            assert same_bits(values_of(got), values_of(expected))


def test_a_small_number_may_be_an_array_or_an_argument_of_a_compiled_function() -> None:
    x, w = mx.array(X), mx.array(W)
    for call in (mx.fast.rms_norm, lambda x, w, eps: mx.fast.layer_norm(x, w, None, eps)):
        expected = values_of(call(x, w, 0.25))
        compiled = mx.compile(lambda x, w, eps, call=call: call(x, w, eps))
        for eps in (mx.array(0.25), np.float32(0.25)):
            assert same_bits(values_of(call(x, w, eps)), expected)
        assert same_bits(values_of(compiled(x, w, 0.25)), expected)
        assert not same_bits(values_of(compiled(x, w, 0.5)), expected)


def test_signed_zeros_and_kinds_of_zero_are_different_arguments() -> None:
    """0.0, -0.0, 0 and False are equal as keys of a dict."""
    x = mx.array(X)
    for _ in range(3):
        for eps in (0.0, -0.0, 0, 1e-5):
            expected = values_of(wrap(RmsNorm(float(eps)).decompose(x._node)))
            assert same_bits(values_of(mx.fast.rms_norm(x, None, eps)), expected)


def test_sizes_that_grow_give_what_each_gives_alone() -> None:
    """Programs that differ in sizes alone are planned together."""
    w = mx.array(W)
    for rows in (2, 3, 5, 6, 7, 11):
        x = mx.array(contract.generator(f"grow {rows}").normal(size=(2, rows, 8)).astype(np.float32))
        angles = [mx.array(f(np.arange(rows * 3).reshape(rows, 3)).astype(np.float32)) for f in (np.cos, np.sin)]
        turned = wrap(bind(Rotate(6, True), x._node, *[a._node for a in angles]))
        made = mx.fast.layer_norm(mx.fast.rms_norm(turned + 1, w, 1e-5), w, w, 1e-3)
        parts = Rotate(6, True).decompose(x._node, *[a._node for a in angles])
        parts = RmsNorm(1e-5).decompose((wrap(parts) + 1)._node, w._node)
        parts = LayerNorm(1e-3, True, True).decompose(parts, w._node, w._node)
        assert same_bits(values_of(made), values_of(wrap(parts)))


# ---- the pass ----


def test_the_pass_leaves_parts_alone_and_those_of_equal_composites_are_merged() -> None:
    x, w = (Node(Parameter(i), (), mx.zeros(shape)._node.kind) for i, shape in enumerate(((3, 8), (8,))))
    norms = [bind(RmsNorm(1e-5), x, w) for _ in range(2)]
    graph = decompose(Graph([x, w], [norms[0] + norms[1]]))
    assert not any(holds_composites(node) for node in graph.outputs)
    assert decompose(graph) is graph
    once = cse(decompose(Graph([x, w], [norms[0]])))
    assert len(cse(graph).order()) == len(once.order()) + 1


def test_parts_are_what_the_composition_was() -> None:
    x, w = (Node(Parameter(i), (), mx.zeros(shape)._node.kind) for i, shape in enumerate(((3, 8), (8,))))
    text = show(decompose(Graph([x, w], [bind(RmsNorm(1e-5), x, w)])))
    names = ["square", "sum", "reshape", "divide", "add", "rsqrt", "broadcast", "multiply", "broadcast", "multiply"]
    places = [text.index(f"= {name}", 0) for name in dict.fromkeys(names)]
    assert places == sorted(places)
    assert text.count("= broadcast") == text.count("= multiply") == 2
