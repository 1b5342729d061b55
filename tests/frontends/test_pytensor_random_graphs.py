"""Random graphs of PyTensor, in the mode under test and in PyTensor's own: same values, dtypes, shapes, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt

from tests.frontends.pytensor_reference import check

UNARY = (pt.exp, pt.sin, pt.tanh, pt.abs, pt.sqr, pt.sigmoid, pt.neg, lambda x: pt.log1p(pt.sqr(x)))
BINARY = (pt.add, pt.sub, pt.mul, pt.maximum, lambda x, y: pt.switch(x > y, x, y * 2), lambda x, y: x / (1 + pt.sqr(y)))
MATRICES = (
    lambda x: x.sum(axis=0, keepdims=True) + x, lambda x: x[::-1], lambda x: x.T @ x, lambda x: x[:, 0][:, None] * x,
    lambda x: pt.set_subtensor(x[0], 1.0), lambda x: pt.inc_subtensor(x[::2], 2.0), lambda x: pt.cumsum(x, axis=1),
    lambda x: pt.concatenate([x[1:], x[:1]], axis=0), lambda x: x - x.max(), lambda x: pt.sort(x, axis=0),
    lambda x: x.reshape((-1, 1)), lambda x: x[pt.constant(np.array([0, 0]))], lambda x: x.T,
    lambda x: pt.special.softmax(x, axis=1), lambda x: pt.concatenate([x, x * 2], axis=1),
    lambda x: pytensor.scan(lambda row, h: pt.tanh(h + row), sequences=[x], outputs_info=[x[0]], return_updates=False),
)  # fmt: skip


@st.composite
def graphs(draw: Any) -> tuple[list[Any], list[Any]]:
    x = pt.matrix("x")
    made = [x]
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["unary", "binary", "matrix"]))
        a = draw(st.sampled_from(made))
        if kind == "unary":
            made.append(draw(st.sampled_from(UNARY))(pt.tanh(a)))
        elif kind == "binary":
            made.append(draw(st.sampled_from(BINARY))(a, draw(st.sampled_from(UNARY))(pt.tanh(a))))
        else:
            made.append(draw(st.sampled_from(MATRICES))(a))
    return [x], [made[-1], pt.grad(pt.tanh(made[-1]).sum(), x)]


@given(graphs(), st.integers(2, 4), st.integers(1, 3))
@settings(max_examples=25)
def test_random_graphs(graph: tuple[list[Any], list[Any]], rows: int, columns: int) -> None:
    values = np.random.default_rng((rows, columns)).normal(size=(rows, columns))
    check(*graph, (values,), (values * 0.5,), rtol=1e-9, atol=1e-9)
