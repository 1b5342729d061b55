"""Sparse matrices: products, sums, parts and conversions, as far as they are graphs of PyTensor's operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.sparse import basic as psb
from pytensor.sparse import math as psm

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts
from weft.frontends.pytensor.sizes import SIZES
from weft.frontends.pytensor.sparse_values import (
    Sparse,
    added_up,
    as_sparse,
    is_sparse,
    kept,
    lines_of,
    looked_up,
    ordered,
)
from weft.frontends.pytensor.values import Known, Value, cast, number_of, size, to_array, vector
from weft.frontends.pytensor.versions import found

SIZES[psb.CSMProperties] = frozenset({3})


def _always(node: Apply) -> bool:
    return True


def _nonzero(x: Sparse) -> Sparse:
    """Without elements that are 0."""
    return kept(x.data, x.keys(), x.data != mx.zeros((), x.data.dtype), x.shape, x.format)


def _in_format(x: Sparse, format: str) -> Sparse:
    if x.format == format:
        return x
    major, minor = (x.rows(), x.columns()) if format == "csr" else (x.columns(), x.rows())
    width = x.shape[1] if format == "csr" else x.shape[0]
    return ordered(x.data, major * number_of(width) + minor, x.shape, format)


def _same_shape(x: Sparse, y: Any) -> None:
    if tuple(x.shape) != tuple(y.shape):
        raise ValueError(f"a sparse matrix of shape {x.shape} beside one of shape {tuple(y.shape)}")


# ---- parts ----


@converts(psb.CSM, known=lambda node: (3,))
def csm(op: Any, node: Apply, data: Value, indices: Value, indptr: Value, shape: Value) -> Sparse:
    sizes = [int(n) for n in vector(shape)]
    if len(sizes) != 2:
        raise ValueError("Shape should be an array of length 2")
    return Sparse(to_array(data), to_array(indices), to_array(indptr), sizes, op.format)


@converts(psb.CSMProperties)
def csm_properties(op: Any, node: Apply, x: Any) -> list[Value]:
    x = as_sparse(x)
    return [x.data, x.indices, x.indptr, Known(np.array(x.shape, np.int32))]


@converts(psb.CSMGrad, known=lambda node: (3,))
def csm_gradient(op: Any, node: Apply, *given: Value) -> array:
    """What a matrix has in the places of another one."""
    data, indices, indptr = (to_array(x) for x in given[:3])
    g_data, g_indices, g_indptr = (to_array(x) for x in given[4:7])
    sizes = [int(n) for n in vector(given[3])]
    format = "csr" if indptr.shape[0] - 1 == sizes[0] else "csc"
    wanted = Sparse(data, indices, indptr, sizes, format)
    return looked_up(Sparse(g_data, g_indices, g_indptr, sizes, format), wanted.keys())[0]


# ---- conversions ----


@converts(psb.DenseFromSparse)
def dense_from_sparse(op: Any, node: Apply, x: Any) -> array:
    return as_sparse(x).dense()


@converts(psb.SparseFromDense, sized=_always)
def sparse_from_dense(op: Any, node: Apply, x: Value) -> Sparse:
    values = to_array(x)
    n, m = (int(k) for k in values.shape)
    flat = (values if op.format == "csr" else values.T).reshape([n * m])
    return kept(flat, mx.arange(n * m, dtype=mx.int64), flat != mx.zeros((), flat.dtype), (n, m), op.format)


@converts(psb.Cast)
def sparse_cast(op: Any, node: Apply, x: Any) -> Sparse:
    x = as_sparse(x)
    return x.with_data(cast(x.data, op.out_type))


@converts(psb.Transpose)
def transpose(op: Any, node: Apply, x: Any) -> Sparse:
    x = as_sparse(x)
    return Sparse(x.data, x.indices, x.indptr, x.shape[::-1], "csc" if x.format == "csr" else "csr", x.majors())


@converts(psb.EnsureSortedIndices)
def sorted_indices(op: Any, node: Apply, x: Any) -> Sparse:
    x = as_sparse(x)
    return ordered(x.data, x.keys(), x.shape, x.format)


@converts(psb.Remove0, sized=_always)
def without_zeros(op: Any, node: Apply, x: Any) -> Sparse:
    return _nonzero(as_sparse(x))


@converts(psb.ConstructSparseFromList, known=lambda node: (0,))
def from_rows(op: Any, node: Apply, shape: Value, values: Value, rows: Value) -> Sparse:
    """A dense matrix whose rows are some of those of a sparse one."""
    data, places = to_array(values), to_array(rows, "int64")
    count, columns = (int(n) for n in data.shape)
    indices = mx.broadcast_to(places, (columns, count)).reshape([columns * count])
    pointers = mx.arange(columns + 1, dtype=mx.int64) * number_of(count)
    return Sparse(data.T.reshape([columns * count]), indices, pointers, [int(n) for n in vector(shape)], "csc")


def _stacked(op: Any, blocks: Sequence[Sparse], axis: int) -> Sparse:
    other = blocks[0].shape[1 - axis]
    for x in blocks:
        if x.shape[1 - axis] != other:
            raise ValueError(f"blocks of shapes {[x.shape for x in blocks]} do not stand beside each other")
    total = sum(x.shape[axis] for x in blocks)
    shape = (total, other) if axis == 0 else (other, total)
    keys, before = [], 0
    for x in blocks:
        moved = [x.rows(), x.columns()]
        moved[axis] = moved[axis] + number_of(before)
        major, minor = moved if op.format == "csr" else moved[::-1]
        keys.append(major * number_of(shape[1] if op.format == "csr" else shape[0]) + minor)
        before += x.shape[axis]
    data = mx.concatenate([cast(x.data, str(op.dtype)) for x in blocks])
    return ordered(data, mx.concatenate(keys), shape, op.format)


@converts(psb.HStack)
def beside(op: Any, node: Apply, *blocks: Any) -> Sparse:
    return _stacked(op, [as_sparse(x) for x in blocks], 1)


@converts(psb.VStack)
def below(op: Any, node: Apply, *blocks: Any) -> Sparse:
    return _stacked(op, [as_sparse(x) for x in blocks], 0)


# ---- parts of matrices ----


def _place(value: Value, n: int, what: str) -> array:
    """Indices that may count from the end. Those that are known are checked."""
    if isinstance(value, Known) and not all(-n <= int(i) < n for i in np.ravel(value.numbers())):
        raise IndexError(f"{what} index out of range for a sparse matrix with {n} of them")
    at = to_array(value, "int64")
    return mx.where(at < number_of(0), at + number_of(n), at)


@converts(psb.GetItemScalar)
def element(op: Any, node: Apply, x: Any, row: Value, column: Value) -> array:
    x = as_sparse(x)
    i, j = _place(row, x.shape[0], "row").reshape(()), _place(column, x.shape[1], "column").reshape(())
    here = (x.rows() == i) & (x.columns() == j)
    return mx.sum(mx.where(here, x.data, mx.zeros((), x.data.dtype)))


def _keys_at(x: Sparse, rows: Value, columns: Value) -> array:
    i, j = _place(rows, x.shape[0], "row"), _place(columns, x.shape[1], "column")
    major, minor = (i, j) if x.format == "csr" else (j, i)
    return major * number_of(x.width) + minor


@converts(psb.GetItem2Lists)
def elements(op: Any, node: Apply, x: Any, rows: Value, columns: Value) -> array:
    x = as_sparse(x)
    return looked_up(x, _keys_at(x, rows, columns))[0]


@converts(psb.GetItem2ListsGrad, sized=_always)
def elements_gradient(op: Any, node: Apply, x: Any, rows: Value, columns: Value, given: Value) -> Sparse:
    """A matrix of what is given for some places; the last of several for one place counts."""
    x = as_sparse(x)
    return _last_of_each(to_array(given, node.outputs[0].type.dtype), _keys_at(x, rows, columns), x)


def _last_of_each(data: array, keys: array, like: Sparse) -> Sparse:
    order = mx.argsort(keys, axis=0)
    data, keys = mx.take(data, order, axis=0), mx.take(keys, order, axis=0)
    after = cast(mx.searchsorted(keys, keys, side="right"), "int64")
    is_last = after == mx.arange(keys.shape[0], dtype=mx.int64) + number_of(1)
    return kept(data, keys, is_last, like.shape, like.format)


@converts(psb.GetItemList, sized=_always)
def some_rows(op: Any, node: Apply, x: Any, rows: Value) -> Sparse:
    x = as_sparse(x)
    lines = _place(rows, x.shape[0], "row")
    shape = (int(lines.shape[0]), x.shape[1])
    by_rows = _in_format(x, "csr")
    if shape[0] == 0:
        return _in_format(_empty(by_rows, shape), x.format)
    places, row = lines_of(by_rows, lines)
    keys = row * number_of(shape[1]) + mx.take(by_rows.minors(), places, axis=0)
    return _in_format(ordered(mx.take(by_rows.data, places, axis=0), keys, shape, "csr", is_sorted=True), x.format)


def _empty(x: Sparse, shape: tuple[int, int]) -> Sparse:
    nothing = mx.zeros((0,), mx.int64)
    return ordered(mx.zeros((0,), x.data.dtype), nothing, shape, x.format, is_sorted=True)


@converts(psb.GetItemListGrad, sized=_always)
def some_rows_gradient(op: Any, node: Apply, x: Any, rows: Value, given: Any) -> Sparse:
    """A matrix with some rows given; the last of several for one row counts."""
    x, given = as_sparse(x), as_sparse(given)
    lines = _place(rows, x.shape[0], "row")
    count = int(lines.shape[0])
    numbers = mx.arange(count, dtype=mx.int64)
    last = mx.zeros((x.shape[0],), mx.int64).at[lines].maximum(numbers)
    of = given.rows()
    line = mx.take(lines, of, axis=0)
    counts = mx.take(last, line, axis=0) == of
    (places,) = mx.nonzero(counts)
    row, column, data = (mx.take(v, places, axis=0) for v in (line, given.columns(), given.data))
    major, minor = (row, column) if x.format == "csr" else (column, row)
    dtype = node.outputs[0].type.dtype
    return ordered(cast(data, dtype), major * number_of(x.width) + minor, x.shape, x.format)


def _bound(value: Value) -> Any:
    return None if isinstance(value, Known) and value.value is None else int(size(value))


@converts(psb.GetItem2d, known=lambda node: range(1, 7), sized=_always)
def block(op: Any, node: Apply, x: Any, *bounds: Value) -> Sparse:
    """Slices of rows and columns."""
    x = as_sparse(x)
    ends = [_bound(value) for value in bounds]
    ranges = [range(n)[slice(*ends[3 * k : 3 * k + 3])] for k, n in enumerate(x.shape)]
    shape = (len(ranges[0]), len(ranges[1]))
    if 0 in shape:
        return _empty(x, shape)
    inside, places = mx.ones((x.count,), mx.bool_), []
    for at, r in zip((x.rows(), x.columns()), ranges, strict=True):
        steps = at - number_of(r.start)
        number = mx.floor_divide(steps, number_of(r.step))
        fits = (mx.remainder(steps, number_of(abs(r.step))) == number_of(0)) & (number >= number_of(0))
        inside = inside & fits & (number < number_of(len(r)))
        places.append(number)
    (chosen,) = mx.nonzero(inside)
    row, column, data = (mx.take(v, chosen, axis=0) for v in (*places, x.data))
    major, minor = (row, column) if x.format == "csr" else (column, row)
    width = shape[1] if x.format == "csr" else shape[0]
    return ordered(data, major * number_of(width) + minor, shape, x.format)


@converts(psb.Diag)
def diagonal(op: Any, node: Apply, x: Any) -> array:
    x = as_sparse(x)
    if x.shape[0] != x.shape[1]:
        raise ValueError("Diag only apply on square matrix")
    on = mx.where(x.rows() == x.columns(), x.data, mx.zeros((), x.data.dtype))
    return mx.zeros((x.shape[0],), x.data.dtype).at[x.rows()].add(on)


# ---- element by element ----


@converts(psb.ColScaleCSC)
def scaled_columns(op: Any, node: Apply, x: Any, by: Value) -> Sparse:
    return _scaled(as_sparse(x), to_array(by), 1, node)


@converts(psb.RowScaleCSC)
def scaled_rows(op: Any, node: Apply, x: Any, by: Value) -> Sparse:
    return _scaled(as_sparse(x), to_array(by), 0, node)


def _scaled(x: Sparse, by: array, axis: int, node: Apply) -> Sparse:
    if by.shape[0] != x.shape[axis]:
        raise ValueError(f"{by.shape[0]} factors for axis {axis} of a matrix of shape {x.shape}")
    factors = mx.take(by, x.rows() if axis == 0 else x.columns(), axis=0)
    dtype = node.outputs[0].type.dtype
    return x.with_data(cast(x.data, dtype) * cast(factors, dtype))


@converts(psm.SpSum)
def total(op: Any, node: Apply, x: Any) -> array:
    x = as_sparse(x)
    if op.axis is None:
        return mx.sum(x.data)
    axis = op.axis % 2
    start = mx.zeros((x.shape[1 - axis],), x.data.dtype)
    return start.at[x.columns() if axis == 0 else x.rows()].add(x.data)


@converts(*found("sparse.math", "AddSSData", "AddSparseSparseData"))
def added_data(op: Any, node: Apply, x: Any, y: Any) -> Sparse:
    x, y = as_sparse(x), as_sparse(y)
    _same_shape(x, y)
    if x.count != y.count:
        raise ValueError(f"matrices of {x.count} and {y.count} elements")
    return x.with_data(x.data + y.data)


@converts(*found("sparse.math", "AddSS", "AddSparseSparse"), sized=_always)
def added(op: Any, node: Apply, x: Any, y: Any) -> Sparse:
    x = as_sparse(x)
    y = _in_format(as_sparse(y), x.format)
    _same_shape(x, y)
    dtype = node.outputs[0].type.dtype
    data = mx.concatenate([cast(x.data, dtype), cast(y.data, dtype)])
    sums, keys, first = added_up(data, mx.concatenate([x.keys(), y.keys()]))
    return kept(sums, keys, first & (sums != mx.zeros((), sums.dtype)), x.shape, x.format)


@converts(*found("sparse.math", "AddSD", "AddSparseDense"))
def added_to_dense(op: Any, node: Apply, x: Any, y: Value) -> array:
    dtype, x, dense = node.outputs[0].type.dtype, as_sparse(x), to_array(y)
    _same_shape(x, dense)
    return cast(dense, dtype) + cast(x.dense(), dtype)


@converts(*found("sparse.math", "StructuredAddSV", "StructuredAddSparseDenseVector"), sized=_always)
def added_to_columns(op: Any, node: Apply, x: Any, y: Value) -> Sparse:
    x, given = as_sparse(x), to_array(y)
    if given.shape[0] != x.shape[1]:
        raise ValueError(f"{given.shape[0]} numbers for the columns of a matrix of shape {x.shape}")
    made = x.data + mx.take(given, x.columns(), axis=0)
    zero = mx.zeros((), x.data.dtype)
    return _nonzero(x.with_data(mx.where(x.data != zero, made, zero)))


@converts(*found("sparse.math", "SparseSparseMultiply", "MultiplySparseSparse"), sized=_always)
def multiplied(op: Any, node: Apply, x: Any, y: Any) -> Sparse:
    x = as_sparse(x)
    y = _in_format(as_sparse(y), x.format)
    _same_shape(x, y)
    dtype = node.outputs[0].type.dtype
    sums, keys, first = added_up(cast(x.data, dtype), x.keys())
    other, is_there = looked_up(y, keys)
    made = sums * cast(other, dtype)
    return kept(made, keys, first & is_there & (made != mx.zeros((), made.dtype)), x.shape, x.format)


@converts(*found("sparse.math", "SparseDenseMultiply", "MultiplySparseDense"))
def multiplied_by_dense(op: Any, node: Apply, x: Any, y: Value) -> Sparse:
    dtype, x, dense = node.outputs[0].type.dtype, as_sparse(x), to_array(y)
    if dense.ndim == 0:
        factors = dense
    else:
        _same_shape(x, dense)
        factors = dense[x.rows(), x.columns()]
    return x.with_data(cast(x.data, dtype) * cast(factors, dtype))


@converts(*found("sparse.math", "SparseDenseVectorMultiply", "MultiplySparseDenseVector"), sized=_always)
def multiplied_columns(op: Any, node: Apply, x: Any, y: Value) -> Sparse:
    return _nonzero(_scaled(as_sparse(x), to_array(y), 1, node))


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[..., array]:
    def convert(op: Any, node: Apply, x: Any, y: Value) -> array:
        x, dense = as_sparse(x), to_array(y)
        _same_shape(x, dense)
        dtype = np.result_type(x.data.dtype.np, dense.dtype.np).name
        return cast(compare(cast(x.dense(), dtype), cast(dense, dtype)), "uint8")

    return convert


def _sparse_comparison(
    compare: Callable[[Any, Any], Any], opposite: Callable[[Any, Any], Any]
) -> Callable[..., Sparse]:
    """A comparison that does not hold for two zeros is looked for at the elements of both matrices. One that does hold
    has nearly all elements: it is where its opposite does not, as SciPy has it, so NaN is equal to nothing and not
    more than anything."""
    holds_for_zeros = bool(compare(0, 0))

    def convert(op: Any, node: Apply, x: Any, y: Any) -> Sparse:
        x = as_sparse(x)
        y = _in_format(as_sparse(y), x.format)
        _same_shape(x, y)
        dtype = np.result_type(x.data.dtype.np, y.data.dtype.np).name
        if holds_for_zeros:
            fails = opposite(cast(x.dense(), dtype), cast(y.dense(), dtype))
            return _where(mx.logical_not(fails), x.format)
        (left, right), keys, first = _beside(cast(x.data, dtype), x.keys(), cast(y.data, dtype), y.keys())
        return kept(mx.ones(keys.shape, mx.uint8), keys, first & compare(left, right), x.shape, x.format)

    return convert


def _where(mask: array, format: str) -> Sparse:
    """The matrix that has 1 where a mask holds."""
    n, m = (int(k) for k in mask.shape)
    flat = (mask if format == "csr" else mask.T).reshape([n * m])
    return kept(mx.ones((n * m,), mx.uint8), mx.arange(n * m, dtype=mx.int64), flat, (n, m), format)


def _beside(x: array, x_keys: array, y: array, y_keys: array) -> tuple[tuple[array, array], array, array]:
    """The elements of two matrices at the places that either of them has: 0 where one of them has none. Each place
    counts once, where the third result says so."""
    keys = mx.concatenate([x_keys, y_keys])
    left, _, _ = added_up(mx.concatenate([x, mx.zeros(y.shape, x.dtype)]), keys)
    right, keys, first = added_up(mx.concatenate([mx.zeros(x.shape, y.dtype), y]), keys)
    return (left, right), keys, first


for _name, _compare, _opposite in (
    ("Equal", operator.eq, operator.ne), ("NotEqual", operator.ne, operator.eq),
    ("LessThan", operator.lt, operator.ge), ("GreaterThan", operator.gt, operator.le),
    ("LessEqual", operator.le, operator.gt), ("GreaterEqual", operator.ge, operator.lt),
):  # fmt: skip
    converts(*found("sparse.math", f"{_name}SD", f"{_name}SparseDense"))(_comparison(_compare))
    converts(*found("sparse.math", f"{_name}SS", f"{_name}SparseSparse"), sized=_always)(
        _sparse_comparison(_compare, _opposite)
    )


# ---- products ----


def product(x: Sparse, y: array) -> array:
    """`x @ y`, each row summed up in the order of its elements."""
    if x.shape[1] != y.shape[0]:
        raise ValueError(f"shapes {x.shape} and {tuple(y.shape)} are not aligned in a sparse product")
    start = mx.zeros((x.shape[0], *y.shape[1:]), y.dtype)
    if 0 in x.shape:
        return start
    numbers = cast(x.data, y.dtype.name)
    terms = mx.take(y, x.columns(), axis=0) * (numbers if y.ndim == 1 else numbers[:, None])
    return start.at[x.rows()].add(terms)


def _product_of(x: Any, y: Any, node: Apply, dtype: str, of: tuple[int, int] = (0, 1)) -> array:
    """A product with a dense result: one of the factors, at least, is sparse."""
    if is_sparse(node.inputs[of[0]]):
        dense = as_sparse(y).dense() if is_sparse(node.inputs[of[1]]) else y
        return product(as_sparse(x), to_array(dense, dtype))
    left = to_array(x, dtype)
    turned = transpose(None, node, as_sparse(y))
    return product(turned, left.T if left.ndim > 1 else left).T


@converts(psm.Dot)
def dot(op: Any, node: Apply, x: Any, y: Any) -> array:
    """The product of a sparse matrix with a dense one, on either side, or with a sparse one."""
    return _product_of(x, y, node, node.outputs[0].type.dtype)


def _is_sparse_product(node: Apply) -> bool:
    return is_sparse(node.outputs[0])


@converts(psm.StructuredDot, psm.TrueDot, sized=_is_sparse_product)
def structured_dot(op: Any, node: Apply, x: Any, y: Any) -> Any:
    dtype = node.outputs[0].type.dtype
    if not is_sparse(node.outputs[0]):
        return _product_of(x, y, node, dtype)
    left = as_sparse(x)
    right = as_sparse(y) if is_sparse(node.inputs[1]) else sparse_from_dense(_Csr, node, y)
    return _sparse_product(left, right, node.outputs[0].type.format, dtype)


class _Csr:
    format = "csr"


def _sparse_product(x: Sparse, y: Sparse, format: str, dtype: str) -> Sparse:
    """Each element of x times the row of y that it meets; what comes to stand in the same place is added up. Sums that
    are 0 are no elements, as in SciPy, and gradients of elements know that."""
    if x.shape[1] != y.shape[0]:
        raise ValueError(f"shapes {x.shape} and {y.shape} are not aligned in a sparse product")
    shape = (x.shape[0], y.shape[1])
    right = _in_format(y, "csr")
    if 0 in (*shape, x.shape[1]):
        return _in_format(_empty(Sparse(cast(x.data, dtype), x.indices, x.indptr, x.shape, x.format), shape), format)
    places, number = lines_of(right, x.columns())
    row, column = mx.take(x.rows(), number, axis=0), mx.take(right.minors(), places, axis=0)
    terms = cast(mx.take(x.data, number, axis=0), dtype) * cast(mx.take(right.data, places, axis=0), dtype)
    major, minor = (row, column) if format == "csr" else (column, row)
    sums, keys, first = added_up(terms, major * number_of(shape[1] if format == "csr" else shape[0]) + minor)
    return kept(sums, keys, first & (sums != mx.zeros((), sums.dtype)), shape, format)


@converts(psm.StructuredDotGradCSC)
def structured_gradient_csc(op: Any, node: Apply, *given: Any) -> array:
    return _structured_gradient(node, given, "csc")


@converts(psm.StructuredDotGradCSR)
def structured_gradient_csr(op: Any, node: Apply, *given: Any) -> array:
    return _structured_gradient(node, given, "csr")


def _structured_gradient(node: Apply, given: Sequence[Any], format: str) -> array:
    """For each element (i, j) the product of row i of one matrix with row j of another."""
    dtype = node.outputs[0].type.dtype
    y, g = (
        cast(as_sparse(v).dense() if is_sparse(x) else to_array(v), dtype)
        for v, x in zip(given[2:], node.inputs[2:], strict=True)
    )
    indices, indptr = to_array(given[0]), to_array(given[1])
    lines = int(indptr.shape[0]) - 1
    shape = (lines, int(y.shape[0])) if format == "csr" else (int(g.shape[0]), lines)
    places = Sparse(mx.zeros(indices.shape, mx.float32), indices, indptr, shape, format)
    return mx.sum(mx.take(g, places.rows(), axis=0) * mx.take(y, places.columns(), axis=0), axis=1)


@converts(psm.SamplingDot)
def sampling_dot(op: Any, node: Apply, x: Value, y: Value, at: Any) -> Sparse:
    """Elements of `x @ y.T` where a sparse matrix has some, times these."""
    where_, left, right = as_sparse(at), to_array(x), to_array(y)
    terms = mx.take(left, where_.rows(), axis=0) * mx.take(right, where_.columns(), axis=0)
    return where_.with_data(cast(where_.data * mx.sum(terms, axis=1), node.outputs[0].type.dtype))


@converts(psm.Usmm)
def scaled_product(op: Any, node: Apply, alpha: Value, x: Any, y: Any, z: Value) -> array:
    dtype = node.outputs[0].type.dtype
    return to_array(alpha, dtype) * _product_of(x, y, node, dtype, (1, 2)) + to_array(z, dtype)
