"""Sparse matrices of PyTensor in programs, against its own implementations by SciPy."""

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
from pytensor.sparse import basic as psb
from pytensor.sparse import math as psm
from pytensor.sparse.type import SparseTensorType

from tests.frontends.pytensor_reference import assert_same, both

FORMATS = ["csr", "csc"]


def named(*names: str) -> Any:
    """An operation that has other names in other versions."""
    return next(getattr(psm, name) for name in names if hasattr(psm, name))


def matrix(format: str, m: int, n: int, seed: int = 0, dtype: str = "float64", density: float = 0.4) -> Any:
    rng = np.random.default_rng([seed, m, n])
    values = np.where(rng.random((m, n)) < density, np.round(rng.normal(size=(m, n)) * 4) / 2, 0).astype(dtype)
    return getattr(scipy.sparse, f"{format}_matrix")(values)


def variable(format: str, name: str = "x", dtype: str = "float64") -> Any:
    return SparseTensorType(format=format, dtype=dtype)(name)


def check(inputs: Sequence[Any], outputs: Any, *calls: Sequence[Any]) -> None:
    """Both implementations, of which sparse results are compared as matrices, with their formats."""
    outputs = outputs if isinstance(outputs, list) else [outputs]
    under_test, wanted = both(inputs, outputs)
    for values in calls:
        for x, y in zip(under_test(*values), wanted(*values), strict=True):
            if scipy.sparse.issparse(y):
                assert scipy.sparse.issparse(x)
                assert (x.format, x.shape) == (y.format, y.shape)
                x.check_format()
                x, y = x.toarray(), y.toarray()
            assert_same(np.asarray(x), np.asarray(y, np.asarray(x).dtype))


ONE: dict[str, Callable[[Any], Any]] = {
    "dense": ps.dense_from_sparse,
    "transposed": lambda x: x.T,
    "cast": lambda x: ps.cast(x, "float32"),
    "properties": lambda x: list(ps.csm_properties(x)),
    "sum": lambda x: ps.sp_sum(x),
    "sum of columns": lambda x: ps.sp_sum(x, axis=0),
    "sum of rows": lambda x: ps.sp_sum(x, axis=1),
    "scalar": lambda x: x[1, 2],
    "scalar from the end": lambda x: x[-1, -2],
    "a block": lambda x: x[1:3, 0:2],
    "rows": lambda x: x[1:],
    "steps": lambda x: x[::2, 1::2],
    "backwards": lambda x: x[::-1, 3:0:-1],
    "no block": lambda x: x[2:2, :],
    "list of rows": lambda x: psb.GetItemList()(x, np.array([2, 0, 2, -1])),
    "lists": lambda x: psb.GetItem2Lists()(x, np.array([2, 0, -1]), np.array([1, 1, -2])),
    "shape": lambda x: [x.shape[0], x.shape[1] + 1],
    "negative": lambda x: -x,
    "exponential": lambda x: ps.structured_sigmoid(x),
    "times a number": lambda x: x * pt.constant(3.0),
    "without zeros": lambda x: psb.Remove0()(x),
    "sorted": lambda x: psb.EnsureSortedIndices(inplace=False)(x),
    "beside itself": lambda x: ps.hstack([x, x * pt.constant(2.0), x]),
    "below itself": lambda x: ps.vstack([x, x]),
    "other format": lambda x: ps.vstack([x, x], format="csr" if x.type.format == "csc" else "csc"),
    "twice": lambda x: x + x,
    "square": lambda x: x * x,
    "with its transpose": lambda x: ps.dot(x, x.T),
    "true dot": lambda x: psm.true_dot(x, x.T),
    "structured dot": lambda x: psm.structured_dot(x, x.T),
}  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ONE)
def test_one_matrix(name: str, format: str) -> None:
    x = variable(format)
    calls = [[matrix(format, 5, 4)], [matrix(format, 7, 6, seed=1)], [matrix(format, 3, 4, density=0.0)]]
    check([x], ONE[name](x), *calls)


TWO: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - y,
    "product of elements": lambda x, y: x * y,
    "sum of data": lambda x, y: named("AddSSData", "AddSparseSparseData")()(x, x * pt.constant(2.0)),
}


@pytest.mark.parametrize("formats", [("csr", "csr"), ("csc", "csc"), ("csr", "csc"), ("csc", "csr")])
@pytest.mark.parametrize("name", TWO)
def test_two_matrices(name: str, formats: tuple[str, str]) -> None:
    """Elements that cancel are gone."""
    x, y = variable(formats[0]), variable(formats[1], "y")
    one = matrix(formats[0], 6, 5)
    calls = [[one, matrix(formats[1], 6, 5, seed=1)], [one, one.asformat(formats[1])]]
    check([x, y], TWO[name](x, y), *calls)


COMPARISONS = {
    "equal": ps.eq, "not equal": ps.neq, "less": ps.lt, "greater": ps.gt, "less or equal": ps.le,
    "greater or equal": ps.ge,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Comparing")
@pytest.mark.parametrize("dtypes", [("float64", "float64"), ("int32", "float32"), ("int64", "int8")])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_of_two_matrices(name: str, format: str, dtypes: tuple[str, str]) -> None:
    """Also of elements that are there and 0, that are there twice, and that are not numbers."""
    x, y = variable(format, "x", dtypes[0]), variable(format, "y", dtypes[1])
    one, two = (matrix(format, 6, 5, seed, dtype) for seed, dtype in enumerate(dtypes))
    odd = one.copy()
    odd.data[:4] = [0, 0, -1, 1] if dtypes[0] != "float64" else [np.nan, 0, -np.inf, np.nan]
    parts = (
        np.array([1, 2, -3], dtypes[1]),
        np.array([1, 1, 0]),
        np.array([0, 2, 3] + [3] * (4 if format == "csr" else 3)),
    )
    twice = getattr(scipy.sparse, f"{format}_matrix")(parts, shape=(6, 5))
    empty = matrix(format, 4, 3, density=0.0, dtype=dtypes[0])
    calls = [[one, two], [one, one.astype(dtypes[1])], [odd, two], [one, twice], [empty, empty.astype(dtypes[1])]]
    check([x, y], COMPARISONS[name](x, y), *calls)


DENSE: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "product": (lambda x, y: ps.dot(x, y), (4, 3)),
    "product with a vector": (lambda x, y: ps.dot(x, y), (4,)),
    "product from the left": (lambda x, y: ps.dot(y, x), (3, 5)),
    "vector from the left": (lambda x, y: ps.dot(y, x), (5,)),
    "structured product": (lambda x, y: ps.structured_dot(x, y), (4, 3)),
    "sum": (lambda x, y: x + y, (5, 4)),
    "elements": (lambda x, y: x * y, (5, 4)),
    "columns": (lambda x, y: x * y, (4,)),
    "greater": (lambda x, y: ps.gt(x, y), (5, 4)),
    "equal": (lambda x, y: ps.eq(x, y), (5, 4)),
    "columns, where there is something": (
        lambda x, y: named("StructuredAddSV", "StructuredAddSparseDenseVector")()(x, y),
        (4,),
    ),
    "scaled rows": (lambda x, y: ps.row_scale(x, y), (5,)),
    "scaled columns": (lambda x, y: ps.col_scale(x, y), (4,)),
    "sampled": (lambda x, y: psm.sampling_dot(y[:5], y[1:5], x), (5, 3)),
}


def dense(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.round(np.random.default_rng([seed, *shape]).normal(size=shape) * 4) / 2


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", DENSE)
def test_with_dense_arrays(name: str, format: str) -> None:
    fun, shape = DENSE[name]
    x, y = variable(format), pt.tensor("y", shape=(None,) * len(shape))
    check([x, y], fun(x, y), [matrix(format, 5, 4), dense(shape)], [matrix(format, 5, 4, 2), dense(shape, 3)])


@pytest.mark.parametrize("format", FORMATS)
def test_a_constant_in_products_both_ways(format: str) -> None:
    fixed, y, v = matrix(format, 5, 4), pt.matrix("y"), pt.vector("v")
    outputs = [
        ps.dot(fixed, y),
        ps.dot(y.T, fixed.T),
        ps.dot(fixed, v),
        ps.dense_from_sparse(psb.as_sparse(fixed) * 2.0),
    ]
    check([y, v], outputs, [dense((4, 3)), dense((4,))])


@pytest.mark.parametrize("format", FORMATS)
def test_a_matrix_that_is_computed(format: str) -> None:
    """Elements are an input, and the matrix goes through a product; gradients by elements and by the dense factor."""
    fixed, y = matrix(format, 6, 5), pt.matrix("y")
    data = pt.vector("data")
    make = ps.CSR if format == "csr" else ps.CSC
    made = make(pt.exp(data), fixed.indices, fixed.indptr, fixed.shape)
    cost = pt.sin(ps.structured_dot(made, y)).sum() + (ps.dense_from_sparse(made) ** 2).sum()
    outputs = [cost, *pytensor.grad(cost, [data, y]), made]
    check([data, y], outputs, [fixed.data * 0.2, dense((5, 3))])


@pytest.mark.parametrize("format", FORMATS)
def test_gradients_by_a_sparse_input(format: str) -> None:
    x, y = variable(format), pt.matrix("y")
    cost = pt.sin(ps.structured_dot(x, y)).sum()
    check([x, y], pytensor.grad(cost, [x, y]), [matrix(format, 6, 5), dense((5, 3))])


@pytest.mark.filterwarnings("ignore:Changing the sparsity structure")
@pytest.mark.parametrize("format", FORMATS)
def test_gradients_of_lists(format: str) -> None:
    x = variable(format)
    rows, columns = np.array([2, 0, 2]), np.array([1, 1, 3])
    cost = (psb.GetItem2Lists()(x, rows, columns) * pt.arange(1.0, 4.0)).sum()
    check([x], pytensor.grad(cost, x), [matrix(format, 5, 4)])
    given = variable(format, "given")
    rows_given = psb.GetItemListGrad()(x, np.array([3, 1]), given)
    check([x, given], rows_given, [matrix(format, 5, 4), matrix(format, 2, 4, seed=1)])


@pytest.mark.parametrize("format", FORMATS)
def test_from_dense(format: str) -> None:
    y = pt.matrix("y")
    make = ps.csr_from_dense if format == "csr" else ps.csc_from_dense
    x = make(pt.switch(y > 0, y, 0))
    check([y], [x, ps.sp_sum(x, axis=1), ps.dot(x, y.T)], [dense((5, 4))], [dense((2, 7))], [-np.ones((2, 3))])


def test_elements_twice_and_in_no_order() -> None:
    """As they may come: those of one place are added up."""
    data, indices, indptr = (
        np.arange(1.0, 8.0),
        np.array([2, 0, 2, 1, 1, 3, 0], np.int32),
        np.array([0, 3, 3, 7], np.int32),
    )
    given = scipy.sparse.csr_matrix((data, indices, indptr), (3, 4))
    x, y = variable("csr"), pt.matrix("y")
    outputs = [ps.dense_from_sparse(x), ps.dot(x, y), x[0, 2], ps.sp_sum(x, axis=0), x + x]
    check([x, y], outputs, [given, dense((4, 2))])


@pytest.mark.parametrize("format", FORMATS)
def test_gradients_of_matrices_of_one_row_or_column(format: str) -> None:
    """What is repeated along an axis of one is a constant, which one size after the other depends on."""
    x, other, y = variable(format), variable(format, "other"), pt.matrix("y")
    shapes = [(3, 4), (1, 5), (5, 1), (6, 2), (0, 3)]
    check([x, y], pytensor.grad(ps.sp_sum(x * y), y), *[[matrix(format, *s), dense(s)] for s in shapes])
    calls = [[matrix(format, *s), matrix(format, *s, seed=1)] for s in shapes]
    check([x, other], pytensor.grad(ps.sp_sum((x + other) * x), x), *calls)


def test_in_a_loop() -> None:
    """A sparse matrix that does not change, in every step."""
    x, start = variable("csr"), pt.vector("start")
    rows = pytensor.scan(
        lambda v, x: pt.tanh(ps.dot(x, v)), outputs_info=[start], non_sequences=[x], n_steps=5, return_updates=False
    )
    check([x, start], rows, [matrix("csr", 4, 4), dense((4,))])


def test_shared_and_updated() -> None:
    state = pytensor.shared(matrix("csr", 4, 4), name="state")
    y = pt.vector("y")
    function = pytensor.function([y], ps.dot(state, y), updates={state: state * pt.constant(2.0)}, mode="WEFT")
    given = dense((4,))
    before = matrix("csr", 4, 4).toarray() @ given
    np.testing.assert_allclose(function(given), before)
    np.testing.assert_allclose(function(given), 2 * before)
    assert state.get_value().format == "csr"


def test_matrices_that_do_not_fit() -> None:
    x, y = variable("csr"), pt.matrix("y")
    function = pytensor.function([x, y], ps.dot(x, y), mode="WEFT")
    with pytest.raises(ValueError, match="aligned"):
        function(matrix("csr", 3, 4), np.ones((3, 3)))


@pytest.mark.parametrize("format", FORMATS)
def test_sums_that_are_zero_are_no_elements_of_a_product(format: str) -> None:
    """So the gradient of a function of the elements does not know them."""
    x, y = variable(format), variable(format, "y")
    made = ps.true_dot(x, y)
    cost = pt.cos(ps.csm_data(made)).sum()
    values = [np.array(v) for v in ([[1.0, 1, 0], [0, 2, 3]], [[1.0, 0], [-1, 3], [0, 1]])]
    given = [getattr(scipy.sparse, f"{format}_matrix")(v) for v in values]
    check([x, y], [made, cost, *pytensor.grad(cost, [x, y])], given)
