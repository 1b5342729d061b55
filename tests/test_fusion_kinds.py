"""What shares a kernel, and what it costs in memory: proven by looking at plans, not at clocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from weft import dtypes as dt
from weft.array import array
from weft.passes.memory import ALIGNMENT, Plan
from weft.passes.pipeline import plan
from weft.passes.verify import verify_plan
from weft.targets import CPU


def leaf(*shape: int, dtype: dt.Dtype = dt.float32, layout: str = "contiguous") -> array:
    values = contract.generator(f"{shape}").uniform(0.5, 1.5, shape).astype(dtype.np)
    return contract.lay_out([values], layout)[0]


def planned(*results: array) -> Plan:
    """The plan by which these results would be computed now."""
    graph, layouts = contract.closed(*results)
    made = plan(graph, CPU, layouts)
    verify_plan(made)
    return made


def forms(made: Plan) -> list[str]:
    return [item.group.form for item in made.items]


def titles(made: Plan) -> list[list[str]]:
    return [[node.op.title for node in item.group.nodes] for item in made.items]


def one_kernel(*results: array) -> Plan:
    made = planned(*results)
    assert len(made.items) == 1, titles(made)
    assert len(made.items[0].launches) == 1, "one pass"
    return made


# ---- maps ----


def test_a_chain_of_elementwise_operations() -> None:
    x, y = leaf(40, 50), leaf(40, 50)
    made = one_kernel(mx.tanh(mx.exp(x) * y + 2.0) / mx.sqrt(y) - mx.maximum(x, 0.5))
    assert forms(made) == ["map"]
    assert made.arena == 0, "nothing between them is stored"


def test_broadcasts_and_views_inside_a_chain() -> None:
    x, row, column, turned = leaf(40, 50), leaf(50), leaf(40, 1), leaf(50, 40)
    made = one_kernel((x[::-1] * row + column)[:, ::2] - turned.T[:, ::2])
    assert made.arena == 0
    assert len(made.items[0].reads) == 4


def test_constants_and_counts_are_not_stored() -> None:
    x = leaf(40, 50)
    half = mx.reshape(mx.arange(2000), (40, 50)) < 1000
    result = mx.where(half, x, 1.0) + mx.zeros((40, 50)) * mx.tri(40, 50)
    del half
    made = one_kernel(result)
    assert [n.op.title for n in made.items[0].reads if n.op.title == "parameter"] == ["parameter"]
    assert made.arena == 0


def test_a_value_that_is_used_twice_is_computed_once() -> None:
    x = leaf(40, 50)
    y = mx.exp(x)
    result = y * y + y
    del y
    assert sum(t.count("exp") for t in titles(one_kernel(result))) == 1


def test_equal_expressions_are_computed_once() -> None:
    x = leaf(40, 50)
    assert sum(t.count("exp") for t in titles(one_kernel(mx.exp(x) * mx.exp(x) + mx.exp(x)))) == 1


def test_several_results_of_one_kernel() -> None:
    x, y = leaf(40, 50), leaf(40, 50)
    total, difference = x + y, x - y
    made = one_kernel(total, difference, total * difference)
    assert len(made.items[0].writes) == 3
    assert made.arena == 0


def test_a_live_intermediate_is_a_result_of_the_same_kernel() -> None:
    x = leaf(40, 50)
    middle = mx.exp(x)
    made = one_kernel(mx.sin(middle))
    assert len(made.outputs) == 2
    del middle
    result = mx.sin(mx.exp(x))  # not inside the assertion, which would keep its parts alive
    assert len(one_kernel(result).outputs) == 1


def test_transposed_operands_are_tiled_not_copied() -> None:
    x, y = leaf(64, 96), leaf(96, 64)
    (item,) = one_kernel(x + y.T).items
    assert item.launches[0].source.key.startswith("tile ")


def test_maps_over_different_shapes_are_different_kernels() -> None:
    x, y = leaf(40, 50), leaf(30)
    assert forms(planned(mx.exp(x), mx.exp(y))) == ["map", "map"]


def test_siblings_that_read_the_same_values_share_the_pass() -> None:
    x = leaf(40, 50)
    assert len(one_kernel(mx.exp(x), mx.sin(x), x * 2.0).outputs) == 3


def test_too_many_operands_are_split() -> None:
    inputs = [leaf(40, 50) for _ in range(2 * CPU.fusion.operands)]
    total = inputs[0]
    for x in inputs[1:]:
        total = total + x
    made = planned(total)
    assert len(made.items) > 1
    for item in made.items:
        assert len(item.reads) <= CPU.fusion.operands


def test_too_many_nodes_are_split() -> None:
    x = leaf(40, 50)
    y = x
    for _ in range(3 * CPU.fusion.nodes):
        y = mx.sin(y)
    made = planned(y)
    assert len(made.items) >= 3
    for item in made.items:
        assert len(item.group.nodes) <= CPU.fusion.nodes
    # The pieces write over each other's results.
    assert made.arena <= 2 * x.nbytes + ALIGNMENT


def test_no_kernel_depends_on_itself() -> None:
    """a and c fit into one kernel, but b stands between them: c needs b, which needs a."""
    x, w = leaf(16, 16), leaf(16, 16)
    a = mx.exp(x)
    b = mx.matmul(a, w)
    made = planned(a + b)
    assert titles(made) == [["exp"], ["matmul"], ["add"]]


# ---- reductions ----


@pytest.mark.parametrize("axis", [0, 1, (0, 1), None])
def test_producers_join_a_reduction(axis: int | tuple[int, ...] | None) -> None:
    x, y = leaf(40, 50), leaf(40, 50)
    made = one_kernel(mx.sum(mx.exp(x) * y - 1.0, axis=axis))
    assert made.arena == 0


def test_what_follows_a_reduction_joins_it() -> None:
    x = leaf(40, 50)
    made = one_kernel(mx.sqrt(mx.sum(mx.square(x), axis=1) / 50.0) + 1.0)
    assert forms(made) == ["row"]


def test_columns_are_reduced_in_strips() -> None:
    assert forms(one_kernel(mx.max(leaf(40, 50), axis=0))) == ["column"]
    assert forms(one_kernel(mx.max(leaf(40, 50, layout="transposed"), axis=0))) == ["row"]
    assert forms(one_kernel(mx.max(leaf(40, 50), axis=1))) == ["row"]
    assert forms(one_kernel(mx.max(leaf(40, 50, layout="transposed"), axis=1))) == ["column"]


def test_sibling_reductions_share_the_pass() -> None:
    x = leaf(40, 50)
    made = one_kernel(mx.sum(x, axis=1), mx.max(x, axis=1), mx.sum(mx.square(x), axis=1))
    assert len(made.outputs) == 3
    made = one_kernel(mx.sum(x, axis=0), mx.min(x, axis=0))
    assert forms(made) == ["column"]


def layer_norm(x: array, w: array, b: array) -> array:
    center = x - mx.mean(x, axis=-1, keepdims=True)
    return center * mx.rsqrt(mx.mean(mx.square(center), axis=-1, keepdims=True) + 1e-5) * w + b


def rms_norm(x: array, w: array, b: array) -> array:
    return x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + 1e-5) * w


def cross_entropy(x: array, w: array, b: array) -> array:
    return mx.logsumexp(x * w, axis=-1) - mx.sum(x * b, axis=-1)


ROWS: dict[str, Callable[[array, array, array], array]] = {
    "softmax": lambda x, w, b: mx.softmax(x * w + b, axis=-1),
    "log_softmax": lambda x, w, b: x - mx.logsumexp(x, axis=-1, keepdims=True),
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "standardised": lambda x, w, b: (x - mx.mean(x, -1, keepdims=True)) / mx.std(x, -1, keepdims=True),
    "cross_entropy": cross_entropy,
    "largest": lambda x, w, b: x / mx.max(mx.abs(x), axis=-1, keepdims=True),
}


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.float64], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_finished_in_one_kernel(name: str, dtype: dt.Dtype) -> None:
    made = one_kernel(ROWS[name](leaf(40, 50, dtype=dtype), leaf(50, dtype=dtype), leaf(50, dtype=dtype)))
    assert forms(made) == ["row"]
    assert made.arena == 0
    assert len(made.outputs) == 1


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
def test_rows_of_any_number_of_leading_axes(name: str) -> None:
    made = one_kernel(ROWS[name](leaf(2, 3, 50), leaf(50), leaf(50)))
    assert forms(made) == ["row"]


def test_rows_that_leave_the_caches_are_not_read_again_in_the_same_kernel() -> None:
    long = CPU.fusion.row + 16
    made = planned(mx.softmax(mx.zeros((2, long)) + leaf(long), axis=-1))
    assert len(made.items) > 1


def test_a_chain_through_reductions_over_different_axes() -> None:
    x = leaf(40, 50)
    made = planned(mx.max(mx.sum(mx.exp(x), axis=1)))
    assert titles(made) == [["exp", "sum"], ["max"]]


def test_the_gradient_of_a_softmax_is_one_kernel() -> None:
    x, w = leaf(40, 50), leaf(40, 50)
    made = one_kernel(mx.grad(lambda x: mx.sum(mx.softmax(x, axis=-1) * w))(x))
    assert forms(made) == ["row"]


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.bfloat16])
@pytest.mark.parametrize(("rows", "n"), [(1, 70), (7, 100), (9, 600), (3, 5000)])
def test_rows_that_go_together_are_as_they_are_alone(rows: int, n: int, dtype: dt.Dtype) -> None:
    """What rows hand on from pass to pass: numbers of the row, values that are computed once, results of both kinds."""

    def normed(x: array, w: array) -> list[array]:
        centred = x - mx.mean(x, axis=-1, keepdims=True)
        scale = mx.rsqrt(mx.mean(mx.square(centred), axis=-1, keepdims=True) + 1)
        costly = mx.exp(centred * scale) * w
        total = mx.sum(costly * x, axis=-1, keepdims=True)
        return [costly * total + centred * scale, total, scale]

    x, w = leaf(rows, n, dtype=dt.float32).astype(dtype), leaf(n, dtype=dt.float32).astype(dtype)
    mx.eval(x, w)
    together = normed(x, w)
    alone = [normed(x[i : i + 1], w) for i in range(rows)]
    for made, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert mx.array_equal(made, mx.concatenate(parts)).item()


def test_what_only_a_later_pass_reads_is_computed_there() -> None:
    x = leaf(40, 500)
    total = mx.sum(x, axis=-1, keepdims=True)
    most = mx.max(x * total, axis=-1, keepdims=True)
    made = one_kernel(mx.exp(mx.tanh(x * total) * 2) - most)
    (launch,) = made.items[0].launches
    assert launch.scratch < 1 << 10, "numbers of rows alone"


# ---- copies ----


def copies(made: Plan) -> int:
    return sum(t.count("materialize") for t in titles(made))


def test_a_reshape_that_strides_cannot_express_is_copied_once() -> None:
    x = leaf(40, 50)
    flat = mx.reshape(x.T, (2000,))
    made = planned(mx.exp(flat), mx.sin(flat), flat[::2] + 1.0)
    assert copies(made) == 1
    assert len(made.items) == 3


def test_views_alone_compute_nothing() -> None:
    x = leaf(40, 50)
    made = planned(x.T, x[::2, ::-1], mx.broadcast_to(x, (3, 40, 50)), mx.reshape(x, (10, 200)), x[0])
    assert made.items == []


@pytest.mark.parametrize("layout", [name for name in contract.LAYOUTS if name != "rotated"])
def test_no_layout_of_an_input_costs_a_copy(layout: str) -> None:
    x = leaf(40, 50, layout=layout)
    assert copies(planned(mx.exp(x) + 1.0)) == 0
    assert copies(planned(mx.sum(x, axis=0))) == 0
    assert copies(planned(mx.sum(x, axis=1))) == 0
    assert copies(planned(mx.softmax(x, axis=-1))) == 0


# ---- memory ----


def arena_of(made: Plan) -> tuple[int, int]:
    return made.arena, made.lower_bound


def test_a_chain_around_products_reuses_places() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    y = x
    for _ in range(8):
        y = mx.maximum(mx.matmul(y, w), 0.0) + 1.0
    made = planned(y)
    assert len(made.items) == 8
    assert made.arena == 2 * x.nbytes, "a product and its operand, for any number of steps"


def test_a_result_lies_on_a_dying_operand() -> None:
    made = planned(mx.exp(mx.cumsum(leaf(64, 64), axis=1)))
    assert made.arena == 0, "the sums are computed where the result goes"
    assert len(made.reuse) == 1
    assert made.reuse[0].startswith("exp takes the place of cum_sum")


def test_no_result_lies_on_an_operand_that_is_read_later() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    product = mx.matmul(x, w)
    result = mx.matmul(mx.exp(product), product)
    del product
    assert planned(result).reuse == []


def test_no_result_lies_on_an_operand_that_it_reads_elsewhere() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    product = mx.matmul(x, w)
    result = product + product.T
    del product
    assert planned(result).reuse == []


def mlp(x: array, widths: tuple[int, ...]) -> array:
    for i, n in enumerate(widths):
        x = (
            mx.maximum(mx.matmul(x, leaf(x.shape[1], n)) + leaf(n), 0.0)
            if i + 1 < len(widths)
            else mx.matmul(x, leaf(x.shape[1], n))
        )
    return x


def attention(x: array) -> array:
    q, k, v = (mx.matmul(x, leaf(64, 64)) for _ in range(3))
    scores = mx.softmax(mx.matmul(q, k.T) * 0.125, axis=-1)
    return mx.matmul(mx.matmul(scores, v), leaf(64, 64)) + x


def loss_and_gradients(x: array) -> list[array]:
    weights = [leaf(64, 128), leaf(128, 64), leaf(64, 32)]

    def loss(ws: list[array]) -> array:
        y = x
        for w in ws:
            y = mx.tanh(mx.matmul(y, w))
        return mx.mean(mx.square(y))

    value, gradients = mx.value_and_grad(loss)(weights)
    return [value, *gradients]


PROGRAMS: dict[str, Callable[[], list[array]]] = {
    "mlp": lambda: [mlp(leaf(32, 64), (256, 128, 512, 16, 64))],
    "attention": lambda: [attention(leaf(48, 64))],
    "training": lambda: loss_and_gradients(leaf(32, 64)),
    "reductions": lambda: [mx.sum(mx.matmul(mx.softmax(leaf(64, 64), axis=0), leaf(64, 64)), axis=1) + leaf(64)],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_arena_is_near_the_least_possible(name: str) -> None:
    """Within a fifth of the bytes that are alive at one time, in whatever order they had to be placed."""
    results = PROGRAMS[name]()
    made = planned(*results)
    arena, least = arena_of(made)
    assert arena <= 1.2 * least + ALIGNMENT * len(made.items), f"{arena} bytes for {least}"


def test_the_lower_bound_counts_what_is_alive() -> None:
    x, w = leaf(64, 64), leaf(64, 64)
    a = mx.matmul(x, w)
    result = mx.matmul(mx.matmul(a, w), a)
    del a
    made = planned(result)
    assert made.lower_bound == 2 * x.nbytes


def test_results_of_equal_programs_are_planned_once() -> None:
    """Another array of the same shape, dtype and layout meets the same program."""
    from weft.evaluate.programs import PROGRAMS as known

    x = leaf(37, 41)
    mx.eval(mx.exp(x) * 3.5)
    before = len(known)
    mx.eval(mx.exp(leaf(37, 41)) * 7.25)
    assert len(known) == before
    mx.eval(mx.exp(leaf(37, 41, layout="transposed")) * 7.25)
    assert len(known) == before + 1


def test_new_sizes_need_no_new_code() -> None:
    from weft.llvm.engine import stats

    def step(n: int) -> np.ndarray:
        x = leaf(n, 33)
        return contract.values_of(mx.softmax(x * 2.0, axis=-1) + mx.sum(x, axis=0))

    for n in (10, 100):  # sums over few rows, and over many
        step(n)
    compiled, found = stats.compiled, stats.disk_hits
    for n in (11, 64, 3, 200, 63, 1000):
        step(n)
    assert (stats.compiled, stats.disk_hits) == (compiled, found)
