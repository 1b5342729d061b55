"""PyTensor on Weft: elementwise operations, reductions, shapes, parts of arrays, functions with state."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from tests.frontends.pytensor_reference import assert_same, both, check

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 3))
V = RANDOM.normal(size=3)


def test_elementwise_reductions_and_products() -> None:
    x, v = pt.matrix("x"), pt.vector("v")
    check([x, v], [pt.exp(x + v), x.sum(), x.mean(axis=0), x.max(axis=1), pt.dot(x, v), x.T @ x], (X, V), (X[:2], V))


def test_dtypes_are_pytensors() -> None:
    i, b, f = pt.lvector("i"), pt.vector("b", dtype="bool"), pt.fvector("f")
    outputs = [
        i + 1,
        i / 2,
        i // 2,
        i % 3,
        b + b,
        b * b,
        b.sum(),
        f + 1,
        f + i,
        i**2,
        -i,
        abs(i),
        i > 0,
        f.sum(),
        b & b,
    ]
    check(
        [i, b, f],
        outputs,
        (np.array([-3, 0, 5]), np.array([True, False, True]), np.array([0.5, -1, 2], np.float32)),
    )


def test_parts_of_arrays() -> None:
    x, i, j = pt.matrix("x"), pt.lscalar("i"), pt.lvector("j")
    outputs = [
        x[i], x[:, i], x[::-1], x[1:, ::2], x[-1], x[j], x[j, 0], x[j][:, j], x[i:], x[:i], x[3:0:-2],
        pt.set_subtensor(x[i], 0.0), pt.inc_subtensor(x[j], 1.0), pt.set_subtensor(x[::-1], x * 2),
        pt.inc_subtensor(x[1:, ::-1], 1.5), pt.set_subtensor(x[i:], 7.0),
    ]  # fmt: skip
    check([x, i, j], outputs, (X, 1, np.array([0, 2, 2])), (X, 2, np.array([1, 1, 1])), (X, -1, np.array([-1, 0, 0])))


def test_shapes() -> None:
    x, n = pt.matrix("x"), pt.lscalar("n")
    outputs = [
        x.shape, x.shape[0] * 2, x.reshape((-1,)), x.reshape((x.shape[1], -1)), pt.zeros(n), pt.alloc(x[0], n, 3),
        pt.arange(n), pt.arange(2, n, 3), pt.concatenate([x, x], axis=1), pt.stack([x, x]), x.dimshuffle(1, "x", 0),
        pt.eye(n), pt.diagonal(x), pt.repeat(x, 2, axis=0), pt.tile(x, (2, 1)), *pt.split(x, [1, n], axis=0),
    ]  # fmt: skip
    check([x, n], outputs, (X, 3), (X[:5], 3))


def test_state_and_givens() -> None:
    x = pt.vector("x")
    state = pytensor.shared(np.zeros(3), name="state")
    step = pytensor.function([x], state.sum(), updates={state: state + x}, mode="WEFT")
    assert [float(step(V)), float(step(V))] == [0.0, float(V.sum())]
    assert_same(state.get_value(), V + V)
    other = pytensor.shared(np.ones(3), name="other")
    assert float(step.copy(swap={state: other})(V)) == 3.0
    assert_same(other.get_value(), V + 1)
    assert_same(state.get_value(), V + V)
    doubled = pytensor.function([x], state * 2, givens={state: x}, mode="WEFT")
    assert_same(doubled(V), V * 2)


def test_only_axes_that_are_known_to_have_length_one_are_repeated() -> None:
    x, y = pt.vector("x"), pt.vector("y")
    function, _ = both([x, y], x + y)
    assert_same(function(V, V), V + V)
    with pytest.raises(ValueError, match="Runtime broadcasting not allowed"):
        function(V, V[:1])


def test_a_size_that_depends_on_data_cuts_the_graph() -> None:
    i = pt.lvector("i")
    counts = pt.zeros(i.max() + 1, dtype="int64")[i] + 1
    check([i], [counts, pt.arange(i.sum())], (np.array([0, 2, 1]),), (np.array([5]),))


class Turned(Op):
    """An operation of a user's own: the elements from the last to the first."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = inputs[0][::-1].copy()


def test_what_has_no_translation_is_left_to_pytensor() -> None:
    x = pt.vector("x")
    values = (np.array([1.0, 0.0, -2.0, 0.0]),)
    check([x], [pt.exp(Turned()(x + 1)).cumsum(), x * 2], values, left_to_pytensor=True)


def test_what_has_no_translation_leaves_a_loop_to_pytensor() -> None:
    x = pt.vector("x")
    rows = pytensor.scan(lambda y: Turned()(y) * 2, outputs_info=[x], n_steps=3, return_updates=False)
    check([x], rows + 1, (np.arange(4.0),), (np.arange(2.0),), left_to_pytensor=True)


def test_numbers_in_place_of_arrays_from_a_caller_that_is_trusted() -> None:
    x = pt.scalar("x")
    function = pytensor.function([x], x * 2, mode="WEFT", trust_input=True)
    assert_same(function(1.5), np.array(3.0))
    assert_same(function(np.float64(1.5)), np.array(3.0))


def test_a_caller_that_is_trusted_and_wrong() -> None:
    x, y = pt.vector("x"), pt.vector("y", shape=(2,))
    function = pytensor.function([x, y], x.sum() + y, mode="WEFT", trust_input=True)
    assert_same(function([1.0, 2.0], np.arange(2)), np.array([3.0, 4.0]))
    for wrong in (np.ones((2, 2)), 3.0):
        with pytest.raises(TypeError, match="got an array of shape"):
            function(wrong, np.ones(2))
    with pytest.raises(TypeError, match="got an array of shape"):
        function(np.ones(2), np.ones(3))


@pytest.mark.parametrize("n", [0, 1, 3, 8])
def test_a_running_sum(n: int) -> None:
    x = pt.vector("x")
    total = pytensor.scan(lambda v, acc: acc + v, sequences=[x], outputs_info=[pt.zeros(())], return_updates=False)
    values = np.arange(float(n))
    assert_same(pytensor.function([x], total, mode="WEFT")(values), np.cumsum(values))
    gradient = pytensor.function([x], pt.grad((total**2).sum(), x), mode="WEFT")
    assert_same(gradient(values), 2 * np.cumsum(np.cumsum(values)[::-1])[::-1])


def test_a_result_is_memory_of_its_own() -> None:
    x = pt.vector("x")
    function = pytensor.function([x], [x, x * 1.0, x[::-1]], mode="WEFT")
    given = np.array([1.0, 2.0])
    first: Any = function(given)
    second = function(given + 1)
    assert_same(first, [np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, 1.0])])
    assert_same(second, [np.array([2.0, 3.0]), np.array([2.0, 3.0]), np.array([3.0, 2.0])])
    assert not np.shares_memory(first[0], given)


def test_constants_that_lie_backwards_and_are_no_numbers() -> None:
    x = pt.vector("x")
    backwards = pt.constant(np.arange(3.0)[::-1])
    gaps = pt.constant(np.array([1.0, np.nan, np.inf]))
    check([x], [x + backwards, x * gaps, pt.switch(pt.isnan(gaps), x, gaps), backwards[::-1]], (V,))


def test_arrays_that_lie_in_any_order() -> None:
    x = pt.matrix("x")
    check([x], [x * 2, x.sum(axis=0), x.T @ x], (X[::-1],), (X.T,), (np.asfortranarray(X),), (X[:, ::2],))
    large = np.arange(40_000.0).reshape(200, 200)
    check([x], [x + 1, x[::2], x.sum()], (large,), (large.T,), (large[::-1, ::2],))


def test_functions_without_inputs_or_outputs() -> None:
    state = pytensor.shared(np.zeros(2))
    step = pytensor.function([], [], updates={state: state + 1}, mode="WEFT")
    assert step() == []
    step()
    assert_same(state.get_value(), np.full(2, 2.0))
    assert_same(pytensor.function([], pt.arange(3) * 2, mode="WEFT")(), np.array([0, 2, 4]))


def test_a_function_is_pickled_and_profiled() -> None:
    x = pt.vector("x")
    function = pytensor.function([x], x * 2, mode="WEFT", profile=True)
    assert_same(function(V), V * 2)
    assert function.profile.fct_callcount == 1
    function.profile.print_summary_ = lambda *given: None
    plain = pytensor.function([x], pt.exp(x).sum(), mode="WEFT")
    again = pickle.loads(pickle.dumps(plain))
    assert_same(again(V), plain(V))


def test_calls_at_the_same_time_do_not_mix() -> None:
    x = pt.vector("x")
    function = pytensor.function([x], [pt.exp(x), x.sum()], mode="WEFT", trust_input=True)

    def run(k: int) -> bool:
        given = np.full(500, k / 10)
        for _ in range(50):
            each, total = function.vm.jit_fn.call([given])
            if not (np.allclose(each, np.exp(k / 10)) and np.isclose(total, 50 * k)):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_the_gradient_of_a_norm_by_its_input(kind: str) -> None:
    x, w = pt.matrix("x"), pt.vector("w")
    centered = x if kind == "rms" else x - x.mean(axis=-1, keepdims=True)
    normed = centered / pt.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-6) * w
    check([x, w], pt.grad((normed**3).sum(), [x, w]), (X, V), rtol=1e-9)


def test_other_lengths_are_not_translated_again() -> None:
    x = pt.vector("x")
    function = pytensor.function([x], [pt.exp(x).sum(), x[::-1] * x.shape[0]], mode="WEFT")
    for n in (5, 9, 17, 33):
        values = np.arange(float(n))
        assert_same(function(values), [np.exp(values).sum(), values[::-1] * n])
    (segment,) = function.vm.jit_fn.steps
    ((program, _),) = segment._programs.values()
    assert len(program._instances) == 1


def test_arrays_of_all_layouts_and_sizes_one_after_the_other() -> None:
    """Calls for other sizes, layouts and classes of arrays than those of the call before."""
    x, y = pt.matrix("x"), pt.vector("y")
    function = pytensor.function([x, y], [x * y, (x + y).sum()], mode="WEFT", trust_input=True)
    rng = np.random.default_rng(4)
    wide = rng.normal(size=(40, 80))
    cases = [
        (wide[:3, :4].copy(), wide[0, :4].copy()),
        (wide[:3, :4], wide[0, :8:2]),
        (wide[:4, :3].T, wide[:4, 0]),
        (wide.copy(), wide[1]),
        (np.asfortranarray(wide), wide[1].astype(np.float32)),
        (np.ma.masked_array(wide[:3, :4]), wide[0, :4].astype(">f8")),
        (wide[:3, :4].astype(np.float32), [0.0, 1.0, 2.0, 3.0]),
        (wide[:0, :4], wide[0, :4]),
        (wide[:3, :4].copy(), wide[0, :4].copy()),
    ]
    for _ in range(2):
        for a, b in cases:
            product, total = function(a, b)
            np.testing.assert_allclose(product, np.asarray(a) * b, rtol=1e-15)
            np.testing.assert_allclose(total, (np.asarray(a) + b).sum(), rtol=1e-12)
            assert type(product) is np.ndarray
            assert product.base is not wide


def test_results_have_memory_of_their_own() -> None:
    x = pt.vector("x")
    function = pytensor.function([x], [x + 1, x], mode="WEFT", trust_input=True)
    for n in (3, 5000):
        given = np.arange(float(n))
        first = function(given)
        kept = [part.copy() for part in first]
        given += 1
        second = function(given)
        for made, before, again in zip(first, kept, second, strict=True):
            assert (made == before).all()
            assert (again == before + 1).all()


@pytest.mark.parametrize("n", [3, 2000])
def test_results_that_are_the_beginning_of_what_is_computed(n: int) -> None:
    """A program writes all of a loop's rows where a result lies that is some of them: there has to be room."""
    x = pt.vector("x")
    rows = pytensor.scan(lambda a, b: a * b, sequences=[x], outputs_info=[pt.ones(())], return_updates=False)
    function = pytensor.function([x], rows[: x.shape[0] // 2], mode="WEFT", trust_input=True)
    given = np.full(n, 1.0)
    function(given)
    prepared = next(iter(function.vm.jit_fn.single.prepared.values()))
    sizes = [room.base.nbytes if room.base is not None else room.nbytes for room in (new() for new in prepared._memory)]
    assert all(size >= wanted for size, wanted in zip(sizes, prepared.executable.sizes, strict=True))
    for made in (function(given) for _ in range(100)):
        assert made.shape == (n // 2,)
        assert (made == 1).all()
