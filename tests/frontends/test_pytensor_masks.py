"""Masks as indices of PyTensor's arrays: known ones, computed ones, reads, writes, gradients, in loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt
from pytensor import ifelse

from tests.frontends.pytensor_reference import check

X = np.random.default_rng(5).normal(size=(4, 3))
MASK = np.array([[True, False, True], [False, False, False], [True, True, True], [False, True, False]])


def test_masks_that_are_known() -> None:
    x = pt.matrix("x")
    made = [x[MASK], x[MASK[:, 0]], x[:, MASK[0]], x[MASK[:, 0], 1], x[np.zeros(4, bool)]]
    check([x], made, (X,))
    check([x], pytensor.grad((x[MASK] ** 2).sum() + x[MASK[:, 0]].sum(), x), (X,))
    written = [pt.set_subtensor(x[MASK], 2.0), pt.inc_subtensor(x[MASK[:, 0]], pt.as_tensor([1.0, 2.0, 3.0]))]
    check([x], written, (X,))


def test_a_known_mask_of_the_wrong_size() -> None:
    x = pt.matrix("x")
    made = pytensor.function([x], x[np.array([True, False])], mode="WEFT")
    with pytest.raises(IndexError, match="boolean index did not match"):
        made(X)


@pytest.mark.parametrize("sets", [True, False])
def test_writes_by_a_computed_mask(sets: bool) -> None:
    x, m, rows = pt.matrix("x"), pt.matrix("m", dtype="bool"), pt.vector("rows", dtype="bool")
    write = pt.set_subtensor if sets else pt.inc_subtensor
    scalar, row = pt.scalar("s"), pt.vector("r")
    made = [write(x[m], scalar), write(x[rows], scalar), write(x[rows], row), write(x[m], x[m] * 2)]
    check(
        [x, m, rows, scalar, row], made[:3], (X, MASK, MASK[:, 0], 7.0, X[0]),
        (X, MASK & False, MASK[:, 1], 7.0, X[1]), (X, MASK | True, MASK[:, 1] | True, 7.0, X[1]),
    )  # fmt: skip
    check([x, m], made[3], (X, MASK), (X, MASK & False), (X, MASK | True))


def test_one_value_for_each_selected_element() -> None:
    x, m, values = pt.matrix("x"), pt.matrix("m", dtype="bool"), pt.vector("v")
    made = pt.set_subtensor(x[m], values)
    count = int(MASK.sum())
    check([x, m, values], made, (X, MASK, np.arange(count) + 0.5), (X, MASK & False, np.zeros(0)))
    function = pytensor.function([x, m, values], made, mode="WEFT")
    assert np.array_equal(function(X, MASK, np.ones(1)), np.where(MASK, 1.0, X))
    for wrong in (count - 1, count + 1, 0):
        with pytest.raises(ValueError, match="more or fewer"):
            function(X, MASK, np.zeros(wrong))
    rows, m1, part = pt.matrix("rows"), pt.vector("m1", dtype="bool"), pt.matrix("part")
    check([rows, m1, part], pt.inc_subtensor(rows[m1], part), (X, MASK[:, 0], X[:2] * 3))


def test_reads_by_a_computed_mask_and_their_gradients() -> None:
    x, m = pt.matrix("x"), pt.matrix("m", dtype="bool")
    picked = x[m]
    cost = (picked**3).sum()
    for mask in (MASK, MASK & False, MASK | True):
        check([x, m], [picked, cost, pytensor.grad(cost, x)], (X, mask))
    check([x], x[x > 0].sum(), (X,), (-np.abs(X),))


def test_writes_by_masks_in_loops() -> None:
    x = pt.vector("x")

    def step(a: Any) -> Any:
        return pt.set_subtensor(a[a > 0.1], 0.05) * 1.5 + 0.02

    rows = pytensor.scan(step, outputs_info=[x], n_steps=6, return_updates=False)
    check([x], [rows, pytensor.grad(rows.sum(), x)], (X[0],))


@pytest.mark.filterwarnings("ignore:WEFT leaves")
def test_nonzero_and_unique() -> None:
    x = pt.vector("x")
    check([x], [*pt.nonzero(x > 0), pt.nonzero_values(x)], (X[0],), (-np.abs(X[0]),), (X.ravel(),))
    check([x], pt.unique(pt.round(x)), (X[0],))
    assert pt.nonzero(pt.as_tensor(MASK))[0].eval(mode="WEFT").tolist() == np.nonzero(MASK)[0].tolist()


def test_what_follows_a_computed_size() -> None:
    """One program, whose sizes are found while it runs: other shapes, sums, products, loops, draws."""
    x, w = pt.vector("x"), pt.matrix("w")
    picked = x[x > 0]
    n = picked.shape[0]
    rows = pytensor.scan(
        lambda a, s: s * 0.5 + a, sequences=[picked], outputs_info=[pt.zeros(())], return_updates=False
    )
    made = [
        picked.mean(), pt.arange(n) * 2, pt.concatenate([picked, x]), pt.sort(picked), pt.outer(picked, picked),
        pt.zeros((n, 2)) + picked[:, None], n, rows, w[x > 0] @ w.T, pytensor.grad((picked**2 * pt.arange(n)).sum(), x),
    ]  # fmt: skip
    values = np.random.default_rng(1).normal(size=20)
    weights = np.random.default_rng(2).normal(size=(20, 3))
    check([x, w], made, *[(values - shift, weights) for shift in (0.0, 0.5, -9.0, 1.0)], (values[:7], weights[:7]))
    for shift in (9.0, float(np.sort(values)[-2])):  # none, and one
        check([x], [pt.concatenate([picked, x]), pt.sort(picked), n, pt.exp(picked).sum()], (values - shift,))


def test_a_computed_size_beside_checks_and_random_numbers() -> None:
    x = pt.vector("x")
    picked = x[x > 0]
    checked = pytensor.raise_op.Assert("too many")(picked.sum(), picked.shape[0] < 3)
    made = pytensor.function([x], checked, mode="WEFT")
    assert made(np.array([1.0, -1.0, 2.0])) == 3.0
    with pytest.raises(AssertionError, match="too many"):
        made(np.ones(5))


@pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding")
def test_as_many_random_numbers_as_are_selected() -> None:
    x = pt.vector("x")
    draws = pt.random.normal(x[x > 0], 1.0, rng=pytensor.shared(np.random.default_rng(3)))
    made = pytensor.function([x], draws, mode="WEFT")
    found = [made(np.array(v)).shape for v in ([1.0, 2.0, -1.0], [1.0, 2.0, 3.0, 4.0], [-1.0])]
    assert found == [(2,), (4,), (0,)]


@pytest.mark.filterwarnings("ignore:WEFT leaves")
def test_branches_with_computed_sizes() -> None:
    x, c = pt.vector("x"), pt.scalar("c")
    made = pytensor.function([x, c], ifelse(c > 0, x[x > 0].sum(), x.sum()), mode="WEFT")
    values = X.ravel()
    assert made(values, 1.0) == pytest.approx(values[values > 0].sum())
    assert made(values, -1.0) == pytest.approx(values.sum())


def test_what_is_selected_from_views_of_what_is_computed() -> None:
    x = pt.vector("x")
    reversed_, every_third = x[::-1] * 1.0, pt.cumsum(x)[::3]
    rows = pytensor.scan(
        lambda a, b: pt.sin(a * 3 + b), sequences=[x], outputs_info=[pt.zeros(())], return_updates=False
    )
    made = [part[part > 0] for part in (reversed_, every_third, rows[::-1], x[1::2])]
    values = np.sin(np.arange(9.0) * 1.3 + 0.5)
    check([x], made, (values,), (values[:5],), (values[:8],))


def test_writes_to_what_is_selected() -> None:
    """There may be nothing to write to, which is known when there is a call."""
    x = pt.vector("x")
    part = x[x > 0]
    made = [pt.set_subtensor(part[-1], part.sum()), pt.inc_subtensor(part[np.array([0, 0])], 1.0)]
    check([x], made, (np.array([1.5]),), (np.array([-1.0, 2.0, 3.0]),), (np.array([1.0, 1.0, -1.0, 4.0]),))


def test_sizes_in_branches() -> None:
    x = pt.vector("x")
    chosen = ifelse_(x.sum() > 0, pt.exp(x), x * 2)
    rows = pytensor.scan(lambda a, b: a + b, sequences=[chosen], outputs_info=[chosen[0]], return_updates=False)
    check([x], [rows, chosen.shape[0] * 2], (np.arange(4.0),), (-np.arange(4.0),), (np.arange(1.0, 3.0),))


def ifelse_(condition: Any, first: Any, second: Any) -> Any:
    """PyTensor's, which is a function of a module in some versions, and is that module's name in others."""
    return (ifelse if callable(ifelse) else ifelse.ifelse)(condition, first, second)


@pytest.mark.parametrize(
    "index",
    [
        lambda m, n: (m, slice(None, None, -1)),
        lambda m, n: (slice(None, None, 2), n),
        lambda m, n: (m, 1),
        lambda m, n: (m, np.array([[0], [-1]])),
        lambda m, n: (np.array([0, 3, -1]), n),
    ],
)
def test_masks_beside_other_indices(index: Any) -> None:
    """Read and written, with gradients; a mask stands for the places that it selects."""
    x, y, m, n = pt.matrix("x"), pt.scalar("y"), pt.vector("m", dtype="bool"), pt.vector("n", dtype="bool")
    part = x[index(m, n)]
    added, changed = pt.inc_subtensor(part, y), pt.set_subtensor(part, y)
    gradients = pt.grad(pt.sin(part).sum() + pt.cos(added).sum(), [x, y])
    rng = np.random.default_rng(4)
    rows, columns = np.array([True, False, True, True]), np.array([True, False, True, True, False])
    check([x, y, m, n], [part, added, changed, *gradients], (rng.normal(size=(4, 5)), np.array(0.5), rows, columns))
