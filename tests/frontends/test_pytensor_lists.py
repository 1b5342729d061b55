"""Typed lists of PyTensor in programs, against its own implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.sparse

pytest.importorskip("pytensor")

import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
from pytensor import typed_list as tl
from pytensor.compile.sharedvalue import SharedVariable

from tests.frontends.pytensor_reference import assert_same, both

ONE = np.arange(3.0)
ROWS = [ONE, np.ones(2), ONE, np.zeros(0)]


def listed(name: str = "given", depth: int = 0) -> Any:
    return tl.TypedListType(pt.dvector, depth)(name)


def assert_equal(made: Any, wanted: Any) -> None:
    """Lists of equal arrays, in lists."""
    assert type(made) is type(wanted)
    if isinstance(wanted, list):
        assert len(made) == len(wanted)
        for x, y in zip(made, wanted, strict=True):
            assert_equal(x, y)
    else:
        assert_same(made, wanted)


def check(inputs: Sequence[Any], outputs: Sequence[Any], *calls: Sequence[Any], **options: Any) -> None:
    under_test, wanted = both(inputs, outputs, **options)
    for values in calls:
        assert_equal(under_test(*values), wanted(*values))


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "first": lambda x, y: x[0] * 2,
    "from the end": lambda x, y: x[-1] + 1,
    "a slice": lambda x, y: x[1:],
    "backwards": lambda x, y: x[::-2],
    "appended": lambda x, y: tl.append(x, y * 3),
    "extended": lambda x, y: tl.extend(x, x),
    "inserted": lambda x, y: tl.insert(x, np.int64(1), y),
    "inserted near the end": lambda x, y: tl.insert(x, np.int64(-1), y),
    "reversed": lambda x, y: tl.reverse(x),
    "length": lambda x, y: tl.length(x) + 1,
    "length as a size": lambda x, y: pt.ones((tl.length(x),)) * y.sum(),
    "count": lambda x, y: tl.count(x, y),
    "count of none": lambda x, y: tl.count(x, y + 1),
    "place": lambda x, y: x.ind(y),
    "made": lambda x, y: tl.make_list([y, y + 1, x[0]]),
    "of lists": lambda x, y: tl.make_list([x, tl.append(x, y)]),
    "a list in a list": lambda x, y: tl.make_list([tl.reverse(x), x])[0][-1],
    "count of lists": lambda x, y: tl.count(tl.make_list([x, tl.reverse(x), x]), x),
    "the same": lambda x, y: x,
}


@pytest.mark.parametrize("name", CASES)
def test_lists(name: str) -> None:
    x, y = listed(), pt.vector("y")
    check([x, y], [CASES[name](x, y)], (ROWS, ONE), (ROWS[:1], ONE), ([np.ones(4), ONE, np.ones(4)], ONE))


def test_places_that_are_given() -> None:
    x, y, i, j = listed(), pt.vector("y"), pt.lscalar("i"), pt.lscalar("j")
    function = pytensor.function([x, y, i, j], [x[i], tl.insert(x, j, y)], mode="WEFT")
    for at, before in ((0, 0), (-1, 2), (2, -1), (0, 0)):
        inserted = [*ROWS]
        inserted.insert(before, ONE + 1)
        assert_equal(function(ROWS, ONE + 1, at, before), [ROWS[at], inserted])
    with pytest.raises(IndexError, match="list index out of range"):
        function(ROWS, ONE, 4, 0)


def test_lists_of_lists() -> None:
    x = listed(depth=1)
    check([x], [x[0][1] * 2, x[1], tl.reverse(x)], ([ROWS, [ONE]],), ([ROWS[:2], ROWS],))


def test_lists_between_programs() -> None:
    """A place that is computed, and an element that is taken out, cut the graph."""
    x, y, i = listed(), pt.vector("y"), pt.lvector("i")
    check([x, y, i], [tl.append(x, y)[i.sum()] + 1], (ROWS, ONE, np.array([1, 1])), (ROWS, ONE, np.array([2, 2])))
    check([x, y], [tl.remove(tl.append(x, y * 2), y)[0] + 1], (ROWS, ONE), left_to_pytensor=True)


def test_an_element_that_is_not_there() -> None:
    x, y = listed(), pt.vector("y")
    function = pytensor.function([x, y], x.ind(y), mode="WEFT")
    with pytest.raises(ValueError, match="not in the list"):
        function(ROWS, ONE + 1)


def test_results_have_memory_of_their_own() -> None:
    x = listed()
    rows = [ONE.copy()]
    (made,) = pytensor.function([x], [tl.extend(x, x)], mode="WEFT")(rows)
    made[0][0] = 7.0
    assert rows[0][0] == made[1][0] == 0.0


def test_shared_lists() -> None:
    y = pt.vector("y")
    state = SharedVariable(name="state", type=tl.TypedListType(pt.dvector), value=ROWS[:1], strict=False)
    for mode in ("WEFT", "FAST_COMPILE"):
        state.set_value(ROWS[:1])
        longer = tl.extend(state, tl.make_list([y * 2]))
        function = pytensor.function([y], tl.length(state), updates=[(state, longer)], mode=mode)
        assert [int(function(ONE)) for _ in range(3)] == [1, 2, 3]
        assert_equal(state.get_value(), [ONE, ONE * 2, ONE * 2, ONE * 2])


def test_lists_beside_sparse_matrices_are_left_to_pytensor() -> None:
    x, y = listed(), ps.csr_matrix("y")
    outputs = [x[0] + 1, ps.dense_from_sparse(y)]
    check([x, y], outputs, (ROWS, scipy.sparse.csr_matrix(np.eye(2))), left_to_pytensor=True)
