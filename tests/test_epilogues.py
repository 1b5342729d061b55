"""Maps that follow products are applied to finished blocks: one kernel, and the bits of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.nn as nn
import weft.program
from weft.config import config
from weft.passes import pipeline
from weft.passes.memory import Plan
from weft.passes.show import show_plan
from weft.targets import CPU
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.target import Cpu
from weft.transforms.compile import graph_of

Array = mx.array


class Apart(Cpu):
    """The CPU, with a kernel for the product and one for the map."""

    def lower_with_epilogue(self, *args: Any) -> None:
        return None


APART = Apart()
COSTLY = ("gelu", "two results")
"""Maps that machines with few registers compute apart."""
PACKS = not machine(config.cpu).in_place
"""Whether the machine packs the operands of every product, and computes maps apart whose results cannot hold sums."""


def run(f: Callable[..., Any], *args: Any, target: Cpu = CPU) -> tuple[list[bytes], Plan]:
    """The bits of a function's results, and the plan that they are computed by."""
    traced = graph_of(f, *args)
    made = pipeline.compile_graph(traced.graph, target, traced.layouts)
    words = [word for value in made.constants for word in value.words]
    results = made.run(traced.buffers, words)
    kinds = [tuple(map(int, kind.shape)) for kind in made.kinds]
    views = [
        np.array(mx.array(weft.runtime.data.numpy_view(x, shape, kind.dtype), kind.dtype))
        for x, shape, kind in zip(results, kinds, made.kinds, strict=True)
    ]
    return [view.tobytes() for view in views], made.plan


def titles(plan: Plan) -> list[list[str]]:
    return [[node.op.title for node in item.group.nodes] for item in plan.items]


def drawn(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    rng = np.random.default_rng((seed, *shape))
    x = mx.array(rng.normal(size=shape).astype(np.float32)).astype(dtype)
    if dtype in (mx.complex64, mx.complex128):
        x = x + x[..., ::-1] * mx.array(1j, dtype)
    mx.eval(x)
    return x


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bias": lambda x, w, c, r: x @ w + c,
    "relu": lambda x, w, c, r: mx.maximum(x @ w + c, 0),
    "gelu": lambda x, w, c, r: nn.gelu(x @ w + c),
    "residual": lambda x, w, c, r: r + (x @ w) * 2,
    "cast": lambda x, w, c, r: (x @ w + c).astype(mx.bfloat16),
    "two results": lambda x, w, c, r: (x @ w + c, mx.tanh(x @ w + c) * r),
    "compared": lambda x, w, c, r: (x @ w) > r,
    "column and place": lambda x, w, c, r: x @ w * r[..., :1] - mx.arange(r.shape[-1]).astype(r.dtype),
    "turned": lambda x, w, c, r: x @ w + mx.swapaxes(mx.contiguous(mx.swapaxes(r, -1, -2)), -1, -2),
    "reversed": lambda x, w, c, r: x @ w + r[..., ::-1] * c[::-1],
    "chosen": lambda x, w, c, r: mx.where(r > 0, x @ w, r),
    "two products": lambda x, w, c, r: x @ w + x @ (w * 2) + c,
}
SHAPES = [
    ((), 33, 300, 50), ((), 4, 200, 70), ((), 1, 100, 33), ((2, 3), 5, 20, 17), ((3,), 64, 64, 64),
    ((), 300, 20, 400), ((), 17, 64, 1), ((4,), 1, 128, 40), ((), 40, 200, 5), ((2,), 0, 20, 5),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.float64, mx.complex64], ids=str)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_bits_are_those_of_two_steps(name: str, dtype: Any) -> None:
    if dtype is mx.complex64 and name in ("gelu", "relu", "compared", "chosen", "cast"):
        return
    fused = 0
    for batch, m, k, n in SHAPES if dtype is mx.float32 else SHAPES[::3]:
        args = [drawn((*batch, m, k), dtype), drawn((k, n), dtype), drawn((n,), dtype), drawn((*batch, m, n), dtype)]
        together, plan = run(FUNCTIONS[name], *args)
        apart, plain = run(FUNCTIONS[name], *args, target=APART)
        assert together == apart, (batch, m, k, n)
        fused += len(plan.items) < len(plain.items)
    assert fused or name in COSTLY or PACKS  # a map of its own where that is faster


@pytest.mark.parametrize("right", ["as it is", "turned", "batched"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_and_layouts(right: str, count: int, team: Callable[[int], None]) -> None:
    team(count)
    for m, k, n in ((600, 64, 500), (8, 300, 4000), (1, 3000, 700)):
        x, w, c = drawn((2, m, k), mx.float32), drawn((k, n), mx.float32), drawn((n,), mx.float32)
        w = {"as it is": w, "turned": mx.contiguous(w.T).T, "batched": mx.broadcast_to(w, (2, k, n))}[right]
        f = FUNCTIONS["relu"]
        assert run(f, x, w, c, x)[0] == run(f, x, w, c, x, target=APART)[0]


def test_what_is_one_kernel_and_what_is_not() -> None:
    x, w, c, r = (drawn(s, mx.float32) for s in ((20, 30), (30, 40), (40,), (20, 40)))
    i, j = mx.ones((20, 30), mx.int32), mx.ones((30, 40), mx.int32)
    for f, args, kernels in (
        (lambda x, w, c: x @ w + c, (x, w, c), [["matmul", "add"]]),
        (lambda x, w, c, r: mx.maximum(x @ w + c, 0) * r, (x, w, c, r), [["matmul", "add", "maximum", "multiply"]]),
        (lambda x, w: mx.abs(x[:, ::-1] @ w), (x, w), [["matmul", "absolute"]]),  # views before it are strides
        (lambda x, w: (x @ w, mx.abs(x @ w)), (x, w), [["matmul"], ["absolute"]]),  # the product is a result
        (lambda x, w, c: mx.sum(x @ w + c, axis=-1), (x, w, c), [["matmul"], ["add", "sum"]]),
        (lambda x, w, r: (x @ w).T + r.T, (x, w, r), None),
        (lambda i, j: i @ j + 1, (i, j), [["matmul"], ["add"]]),
        (lambda x, w: mx.abs(x[:, :3] @ w[:3]), (x, w), [["matmul"], ["absolute"]]),  # the map is most of the work
        (lambda x, w: mx.softmax(x @ w + 1, axis=-1), (x, w), None),
    ):
        bits, plan = run(f, *args)
        assert bits == run(f, *args, target=APART)[0]
        assert PACKS or kernels is None or titles(plan) == kernels
    assert "matmul" in str(weft.explain(lambda x, w, c: x @ w + c, x, w, c, measure=False))
    assert "operations on each finished block" in str(weft.explain(lambda x, w: mx.abs(x @ w), x, w, measure=False))


def test_golden_plan() -> None:
    x, w, c = (drawn(s, mx.float32) for s in ((20, 30), (30, 40), (40,)))
    _, plan = run(lambda x, w, c: mx.maximum(x @ w + c, 0), x, w, c)
    text = show_plan(plan).splitlines()
    assert text[0] == "plan: 1 kernels, arena 0 bytes"
    assert text[1].strip().startswith("opaque [matmul add maximum] (")
    assert text[1].endswith("-> %3@output 0 : f32[20, 40]")


def test_gradients_loops_and_sizes() -> None:
    x, w, c = drawn((24, 32), mx.float32), drawn((32, 32), mx.float32), drawn((32,), mx.float32)

    def loss(w: Array, c: Array, x: Array) -> Array:
        h = mx.tanh(x @ w + c)
        return mx.sum(mx.square(h @ w + x))

    def scanned(w: Array, c: Array, x: Array) -> Any:
        return mx.scan(lambda h, _: (mx.maximum(h @ w * 0.1 + c, 0), h), x, mx.zeros((3,)))

    for f in (mx.grad(loss, argnums=(0, 1, 2)), scanned):
        assert run(f, w, c, x)[0] == run(f, w, c, x, target=APART)[0]
    sized = mx.compile(lambda x, w, c: mx.maximum(x @ w + c, 0), shapeless=True)
    for m in (24, 30, 7, 1, 300, 16, 9):
        x = drawn((m, 32), mx.float32, m)
        wanted = run(lambda x, w, c: mx.maximum(x @ w + c, 0), x, w, c, target=APART)[0]
        assert [np.array(sized(x, w, c)).tobytes()] == wanted
        assert [np.array(mx.maximum(x @ w + c, 0)).tobytes()] == wanted


@pytest.mark.parametrize("n", [512, 16384])
def test_parameters_are_updated_in_place(n: int) -> None:
    """Also where the right operand of the product is so large that it is packed."""
    x, g = drawn((64, 256), mx.float32), drawn((64, n), mx.float32)

    def step(w: Array) -> Array:
        return w - 0.1 * (x.T @ g)

    made = weft.program.trace(step, [weft.program.Input("w", (256, n), mx.float32)], updates={"w": 0})
    w = drawn((256, n), mx.float32)
    for _ in range(3):
        wanted = run(step, w, target=APART)[0]
        where = w._node.value.address
        made(w)
        assert [np.array(w).tobytes()] == wanted
        assert w._node.value.address == where
    assert made.memory_report(w).inputs == ("input w: overwritten",)


def test_a_reshape_before_a_map_that_reads_its_operand_twice_and_one_after_it() -> None:
    """As layers of models with batches have it: rows of one matrix for products, of several for the rest."""

    def layer(x: Array, w: Array, c: Array, v: Array) -> Array:
        h = mx.reshape(x @ w + c, (2, 9, 40))
        return mx.reshape(h * mx.abs(h), (18, 40)) @ v

    args = [
        drawn((18, 24), mx.float32),
        drawn((24, 40), mx.float32),
        drawn((40,), mx.float32),
        drawn((40, 8), mx.float32),
    ]
    got, plan = run(layer, *args)
    apart, _ = run(layer, *args, target=APART)
    assert got == apart
    if not PACKS:
        assert titles(plan) == [["matmul", "add", "absolute", "multiply"], ["matmul"]]
    assert len(plan.items) <= 3
