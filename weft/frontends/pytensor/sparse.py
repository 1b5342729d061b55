"""Products with sparse matrices that are constants: the elements are gathered, multiplied and summed up by rows.

Sparse matrices that are computed are PyTensor's own business.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from pytensor.graph.basic import Apply, Constant
from pytensor.sparse.type import SparseTensorType

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts
from weft.frontends.pytensor.values import Known, Value, constant, to_array
from weft.frontends.pytensor.versions import found


def _refuses(node: Apply) -> str | None:
    if isinstance(node.outputs[0].type, SparseTensorType):
        return "its result is sparse"
    sparse = [x for x in node.inputs if isinstance(x.type, SparseTensorType)]
    if len(sparse) != 1 or not isinstance(sparse[0], Constant):
        return "products with sparse matrices are translated if one matrix is, and is a constant"
    return None


@converts(*found("sparse.math", "Dot", "StructuredDot"), refuses=_refuses)
def dot(op: Any, node: Apply, x: Value, y: Value) -> array:
    """The product of a sparse matrix with a dense one, on either side."""
    dtype = node.outputs[0].type.dtype
    if isinstance(node.inputs[0].type, SparseTensorType):
        assert isinstance(x, Known)
        return product(x.value, to_array(y, dtype), dtype)
    assert isinstance(y, Known)
    left = to_array(x, dtype)
    return product(y.value.T, left.T if left.ndim > 1 else left, dtype).T


def product(matrix: Any, y: array, dtype: str) -> array:
    """`matrix @ y`, each row summed up in the order of its elements."""
    rows = scipy.sparse.csr_matrix(matrix)
    if rows.shape[1] != y.shape[0]:
        raise ValueError(f"shapes {rows.shape} and {y.shape} are not aligned in a sparse product")
    places = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    numbers = constant(rows.data.astype(dtype))
    taken = mx.take(y, constant(rows.indices.astype(np.int64)), axis=0)
    terms = taken * (numbers if y.ndim == 1 else numbers[:, None])
    start = mx.zeros((rows.shape[0], *y.shape[1:]), y.dtype)
    return start.at[constant(places)].add(terms)
