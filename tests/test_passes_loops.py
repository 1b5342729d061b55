"""What the compiler makes of loops: the pass over their graphs, and the plans of their bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import closed, same_bits, values_of
from weft import dtypes as dt
from weft import evaluate, tree
from weft.array import array
from weft.codegen.launch import Choose, Repeat, Slot, Steps
from weft.graph.body import Body, body_of
from weft.graph.node import Graph, Node, kind_of
from weft.graph.show import show
from weft.passes import pipeline
from weft.passes.cse import cse
from weft.passes.loops import loops
from weft.passes.memory import Plan
from weft.passes.verify import VerifyError, verify_graph
from weft.primitives.base import Bundled, GetResult, Picked, Placeholder, bind, bind_many, constant
from weft.primitives.control import Loop, Switch
from weft.primitives.elementwise import exp
from weft.primitives.views import Contiguous
from weft.targets import CPU
from weft.transforms.rules import Forward


def random(*shape: int, seed: int = 0) -> array:
    x = mx.array(np.random.default_rng(seed + sum(shape)).standard_normal(shape), dtype=mx.float32)
    mx.eval(x)
    return x


def graph_behind(result: Any) -> tuple[Graph, Any]:
    return closed(*[leaf for leaf in tree.leaves(result) if isinstance(leaf, array)])


def through_the_pass(result: Any) -> Graph:
    graph, _ = graph_behind(result)
    for step in pipeline.PASSES:
        graph = step(graph)
    return graph


def loops_in(graph: Graph) -> list[Node]:
    return [node for node in graph.order() if isinstance(node.op, Loop)]


def plan_of(result: Any) -> Plan:
    graph, layouts = graph_behind(result)
    return pipeline.plan(graph, CPU, layouts)


def code_of(result: Any) -> Any:
    """The commands of the one loop or branch of a program."""
    (code,) = [item.code for item in plan_of(result).items if item.code is not None]
    return code


def recurrent(h: array, x: array, w: array) -> array:
    return mx.tanh(x + h @ w)


def total(w: array, h: array, xs: array) -> array:
    def step(h: array, x: array) -> tuple[array, array]:
        h = recurrent(h, x, w)
        return h, (h * h).sum()

    return mx.scan(step, h, xs)[1].sum()


OPERANDS = random(4, 4), random(2, 4), random(5, 2, 4)


# ---- the pass ----


def test_a_gradient_is_one_loop_forward_and_one_back() -> None:
    """The loop of the value is part of the one that keeps what the gradient needs."""
    graph = through_the_pass(mx.value_and_grad(total)(*OPERANDS))
    forward, back = loops_in(graph)
    assert isinstance(forward.op, Loop)
    assert isinstance(back.op, Loop)
    assert (forward.op.reverse, back.op.reverse) == (False, True)


def test_a_tangent_is_one_loop() -> None:
    graph = through_the_pass(mx.jvp(total, list(OPERANDS), list(OPERANDS)))
    assert len(loops_in(graph)) == 1


def test_only_what_the_gradient_needs_is_kept() -> None:
    """For the gradient by `h` alone: h after each step (through tanh) and the weights, not the products."""
    graph = through_the_pass(mx.grad(total, argnums=1)(*OPERANDS))
    forward, _ = loops_in(graph)
    assert isinstance(forward.op, Loop)
    kept = [row.kind for row in forward.op.split_body()[1]]
    assert [kind.shape for kind in kept] == [(2, 4)]


def test_invariants_are_not_stacked() -> None:
    def scaled(w: array) -> array:
        return mx.scan(lambda c, x: (c * mx.exp(w), c), mx.array(1.0), random(6))[0]

    graph = through_the_pass(mx.grad(scaled)(mx.array(0.1)))
    for node in loops_in(graph):
        assert "exp" not in show(node.op.body.graph)  # type: ignore[attr-defined]


def test_unused_results_and_carries_are_dropped() -> None:
    def step(carry: tuple[array, array], x: array) -> Any:
        a, b = carry
        return (a + x, mx.sin(b) @ OPERANDS[0]), (a * x, b.sum())

    (last, _), (rows, _) = mx.scan(step, (random(4), random(2, 4)), random(5, 4))
    (loop,) = loops_in(through_the_pass([last, rows]))
    assert isinstance(loop.op, Loop)
    assert loop.op.carries == 1
    assert "matmul" not in show(loop.op.body.graph)


def test_carries_that_never_change_are_invariants() -> None:
    (last, same), _ = mx.scan(
        lambda c, x: ((c[0] * c[1] + x, c[1]), None), (random(4), random(4, seed=1)), random(5, 4)
    )
    (loop,) = loops_in(through_the_pass([last, same]))
    assert isinstance(loop.op, Loop)
    assert (loop.op.invariants, loop.op.carries) == (1, 1)


def test_nothing_to_do_changes_nothing() -> None:
    graph, _ = graph_behind(mx.scan(lambda h, x: (recurrent(h, x, OPERANDS[0]), h), *OPERANDS[1:]))
    graph = pipeline.cse(graph)
    assert show(loops(graph)) == show(graph)


def test_loops_that_depend_on_each_other_stay_apart() -> None:
    """The second makes the same steps, but from what the first has left."""
    first, rows = mx.scan(lambda c, x: (c + x, c), random(4), random(5, 4))
    second, _ = mx.scan(lambda c, x: (c + x, c), first, random(5, 4))
    assert len(loops_in(through_the_pass([second, rows]))) == 2


def test_loops_that_would_wait_for_each_other_stay_apart() -> None:
    """Each of two loops is made along the way by another one, which reads the rows of the other: one of them can be
    part of that, and not both."""
    x, y = random(5, 3), random(5, 3, seed=1)

    def step(factor: float) -> Callable[..., Any]:
        return lambda c, row: (c * factor + row, c)

    def longer(factor: float) -> Callable[..., Any]:
        return lambda c, rows: (c * factor + rows[0], c * rows[1])

    _, a = mx.scan(step(0.5), x[0] * 2.0, x)
    _, b = mx.scan(step(0.25), y[0] * 3.0, y)
    _, c = mx.scan(longer(0.5), x[0] * 2.0, (x, b * 2.0))
    _, d = mx.scan(longer(0.25), y[0] * 3.0, (y, a * 2.0))
    assert len(loops_in(through_the_pass([a, b, c, d]))) == 3
    alone = [values_of(z) for z in (a, b)]
    assert same_bits(values_of(c), alone[0] * (alone[1] * np.float32(2)))
    assert same_bits(values_of(d), alone[1] * (alone[0] * np.float32(2)))


DERIVED: dict[str, Callable[[], Any]] = {
    "value and gradient": lambda: mx.value_and_grad(total, argnums=(0, 1, 2))(*OPERANDS),
    "tangent": lambda: mx.jvp(total, list(OPERANDS), list(OPERANDS)),
    "second derivative": lambda: mx.grad(mx.grad(lambda s: total(s * OPERANDS[0], *OPERANDS[1:])))(mx.array(0.5)),
    "batch of gradients": lambda: mx.vmap(mx.grad(total), in_axes=(None, 0, None))(
        OPERANDS[0], random(3, 2, 4), OPERANDS[2]
    ),
}


@pytest.mark.parametrize("name", DERIVED)
def test_bits_are_those_without_the_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_pass = [values_of(x) for x in tree.leaves(DERIVED[name]())]
    monkeypatch.setattr(pipeline, "PASSES", tuple(step for step in pipeline.PASSES if step is not loops))
    evaluate.programs.PROGRAMS.clear()
    without = [values_of(x) for x in tree.leaves(DERIVED[name]())]
    evaluate.programs.PROGRAMS.clear()
    for x, y in zip(with_pass, without, strict=True):
        assert same_bits(x, y)


# ---- plans ----


def test_an_elementwise_loop_is_one_kernel() -> None:
    code = code_of(mx.scan(lambda c, x: (mx.sin(c) * x, c + x), random(8), random(100, 8)))
    assert isinstance(code, Steps)


def test_a_scalar_while_loop_is_one_kernel() -> None:
    code = code_of(mx.while_loop(lambda x: x < 100, lambda x: x * 3 + 1, mx.array(1)))
    assert isinstance(code, Steps)


def test_elements_that_see_each_other_need_commands() -> None:
    code = code_of(mx.scan(lambda c, x: (c[::-1] + x, c), random(8), random(100, 8)))
    assert isinstance(code, Repeat)


def test_a_branch_holds_a_plan_for_each_case() -> None:
    code = code_of(mx.cond(random(1)[0] > 0, lambda x: mx.sin(x), lambda x: x @ x, random(4, 4)))
    assert isinstance(code, Choose)
    assert len(code.plans) == 2


def test_a_carried_buffer_is_updated_in_place() -> None:
    def step(carry: Any, x: array) -> Any:
        buffer, place = carry
        return (mx.slice_update(buffer, x[None], place, axes=(0,)), place + 1), buffer[0].sum()

    result = mx.scan(step, (random(64, 8), mx.array([0])), random(10, 8))
    code = code_of(result)
    assert isinstance(code, Repeat)
    buffer = [x for x in code.inputs if x == code.outputs[0]]
    assert len(buffer) == 1, "the next buffer lies where this one does"
    assert all(nbytes < 64 * 8 * 4 for _, _, nbytes in code.after), "and is not copied at the end"
    (item,) = [item for item in plan_of(result).items if item.code is not None]
    assert sum(item.temporaries) < 64 * 8 * 4


def test_past_values_share_a_ring() -> None:
    """x[t-3], x[t-2], x[t-1] are carried, and none of them is copied from one name to the next."""
    w = OPERANDS[0]

    def step(past: Any, x: array) -> Any:
        a, b, c = past
        return (b, c, mx.tanh(a @ w + c @ w + x)), None

    code = code_of(mx.scan(step, (random(2, 4), random(2, 4, seed=1), random(2, 4, seed=2)), random(5, 2, 4)))
    slots = [x for x in code.inputs if isinstance(x, Slot)]
    assert [x.slot for x in slots] == [0, 1, 2]
    assert {(x.pointer, x.slots) for x in slots} == {(slots[0].pointer, 4)}
    assert [x.slot for x in code.outputs] == [3]
    assert not any("materialize" in str(node.op) for item in code.plan.items for node in item.group.nodes)


def test_the_graph_does_not_grow_with_the_number_of_steps() -> None:
    sizes = {
        len(graph_behind(mx.scan(lambda c, x: (c * x, c), random(4), random(n, 4)))[0].order()) for n in (2, 50, 1000)
    }
    assert len(sizes) == 1


def test_results_of_a_loop_are_picks_of_one_node() -> None:
    last, rows = mx.scan(lambda c, x: (c * x, c), random(4), random(3, 4))
    assert isinstance(last._node.op, GetResult)
    assert last._node.inputs == rows._node.inputs


def test_one_evaluation_computes_all_results() -> None:
    """Whoever still holds another result finds it computed: the loop has run once."""
    last, rows = mx.scan(lambda c, x: (c * x, c), random(4), random(3, 4))
    doubled = rows * 2
    mx.eval(last)
    assert rows._node.value is not None
    assert same_bits(values_of(doubled), 2 * values_of(rows))


# ---- nodes of operations with several results ----


def nested(x: array) -> array:
    """A branch with a loop in it."""
    return mx.cond(mx.sum(x) > 0, lambda a: mx.fori_loop(0, 3, lambda i, c: mx.sin(c) + x[0], a), lambda a: a, x)


def nodes_in(graph: Graph) -> list[Node]:
    """Those of the bodies too."""
    found = graph.order()
    return found + [node for inner in found for body in inner.op.bodies() for node in nodes_in(body.graph)]


def test_passes_leave_every_node_of_its_class() -> None:
    """Whatever is rebuilt stays what it was: picks know their bundle, and transforms know picks by their class."""
    graph, layouts = graph_behind([nested(random(5)), mx.grad(lambda x: mx.sum(nested(x)))(random(5))])
    for made in (graph, loops(cse(graph)), pipeline.plan(graph, CPU, layouts).graph):
        kinds = {type(node) for node in nodes_in(made) if isinstance(node.op, (Loop, GetResult, Switch))}
        assert kinds == {Bundled, Picked}


def test_a_plain_node_in_place_of_a_pick_is_refused() -> None:
    graph, _ = graph_behind(nested(random(5)))
    verify_graph(graph)
    pick = next(node for node in graph.order() if isinstance(node.op, GetResult))
    with pytest.raises(VerifyError, match="not a Picked"):
        verify_graph(Graph(graph.inputs, [Node(pick.op, pick.inputs, pick.kind)]))
    whole = pick.inputs[0]
    with pytest.raises(VerifyError, match="not a Bundled"):
        verify_graph(Graph(graph.inputs, [Node(whole.op, whole.inputs, whole.kind)]))


def test_a_plain_node_inside_of_a_body_is_refused() -> None:
    graph, _ = graph_behind(nested(random(5)))
    whole = next(node for node in graph.order() if isinstance(node.op, Switch))
    branch = whole.op.bodies()[1]
    (pick,) = branch.outputs
    broken = Body(Graph(branch.inputs, [Node(pick.op, pick.inputs, pick.kind)]), ())
    op = whole.op.with_bodies([whole.op.bodies()[0], broken])
    with pytest.raises(VerifyError, match="not a Picked"):
        verify_graph(Graph(graph.inputs, [bind(GetResult(0), bind(op, *whole.inputs))]))
    assert type(body_of(broken.inputs, broken.outputs).outputs[0]) is Picked, "a body is made of nodes that have rules"


def test_a_remembered_rule_may_use_operations_with_several_results() -> None:
    """What a rule built is built again, for other operands, of nodes of the same classes."""
    x = Node(Placeholder("a test"), (), kind_of((3,), dt.float32))
    (made,) = bind_many(Switch((body_of([x], [exp(x)]),)), constant(0, kind_of((), dt.int32)), x)
    steps = Forward([x], made)
    assert type(steps.run(random(3)._node)) is Picked


# ---- operands that steps would copy ----


@pytest.mark.parametrize(("rows", "steps", "once"), [(16, 8, True), (16, 7, False), (2, 40, False), (64, 40, False)])
def test_a_transposed_matrix_is_laid_out_once(rows: int, steps: int, once: bool) -> None:
    """Where every step would copy it, and there are many; the bits are those of the steps one by one."""
    w, h, xs = random(48, 48), random(rows, 48), random(steps, rows, 48)
    found = mx.scan(lambda h, x: (mx.tanh(x + h @ w.T), None), h, xs)[0]
    graph = through_the_pass(found)
    (loop,) = loops_in(graph)
    assert any(isinstance(x.op, Contiguous) for x in loop.inputs) is once
    for x in xs:
        h = mx.tanh(x + h @ w.T)
    assert same_bits(values_of(found), values_of(h))
