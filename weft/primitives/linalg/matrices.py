"""What operations on matrices share: their family, nodes that derivative rules are made of, and how far a result is
from one that would be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.errors import LinAlgError
from weft.graph.dims import is_now
from weft.graph.node import ArrayType, Node, Shape, Size, kind_of
from weft.primitives.base import KernelOperation, Placeholder, bind, constant, move_batch_to_front, zeros
from weft.primitives.checks import need
from weft.primitives.contraction import Matmul, swap_last
from weft.primitives.control import DRIVERS
from weft.primitives.creation import Iota
from weft.primitives.elementwise import AsType, Equal, GreaterEqual, LessEqual, Select, conjugate, real
from weft.primitives.indexing import Gather
from weft.primitives.joins import Concatenate
from weft.primitives.reductions import Sum
from weft.primitives.sorting import ArgSort
from weft.primitives.views import Broadcast, Slice

DTYPES = (dt.float32, dt.float64, dt.complex64, dt.complex128)


class Matrixwise(KernelOperation):
    """An operation on the matrices in the last two axes of its operands; leading axes are equal and go together."""

    dtypes = DTYPES

    def check(self, *kinds: ArrayType) -> None:
        self.check_dtypes(*kinds)
        need(all(kind.ndim >= 2 for kind in kinds), f"operands {kinds} that are no matrices")

    def moved(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> list[Node]:
        """The operands with the batch axis first."""
        return [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]

    def unbroken(self, *kinds: ArrayType) -> float:
        """One matrix: a routine of LAPACK's looks for no signals."""
        return max(float(m) * float(n) * float(max(m, n)) for m, n in (kind.shape[-2:] for kind in kinds))

    def why(self, code: int) -> str:
        """What is wrong with a matrix of which the library reported `code`, and what to do."""
        raise NotImplementedError

    def failure(self, detail: Sequence[int], kinds: Sequence[ArrayType], steps: Sequence[int] = ()) -> Exception:
        element, code = detail[:2]
        return self.failed(element, code, kinds[0].shape[:-2], steps)

    def failed(self, element: int, code: int, batch: Shape, steps: Sequence[int] = ()) -> LinAlgError:
        """The error for one matrix of a batch."""
        which = "the matrix"
        if batch:
            place = tuple(int(i) for i in np.unravel_index(element, tuple(map(int, batch))))
            which = f"matrix {place if len(place) > 1 else place[0]} of the batch"
        when = ""
        if steps:
            when = f" at step {steps[0]} of its loop" if len(steps) == 1 else f" at steps {tuple(steps)} of its loops"
        name = getattr(self, "function", None) or self.title
        error = LinAlgError(f"[linalg.{name}] {which}{when} {self.why(code)}")
        error.operation = self
        return error


def square(kind: ArrayType) -> None:
    need(kind.shape[-1] == kind.shape[-2], f"an operand {kind} that is not square")


# ---- nodes ----


def adjoint(x: Node) -> Node:
    """The transpose, conjugated."""
    return conjugate(swap_last(x))


def matmul(x: Node, y: Node) -> Node:
    return bind(Matmul(), x, y)


def half(x: Node) -> Node:
    return x * constant(0.5, x.kind)


def _grid(shape: Shape) -> tuple[Node, Node]:
    """Row and column numbers of matrices of this shape."""
    rows, columns = bind(Iota((shape[-2],))), bind(Iota((shape[-1],)))
    return bind(Broadcast(shape, (len(shape) - 2,)), rows), bind(Broadcast(shape, (len(shape) - 1,)), columns)


def triangle(x: Node, upper: bool = False, k: int = 0) -> Node:
    """The elements at and below (or above) the k-th diagonal, zeros elsewhere."""
    rows, columns = _grid(x.shape)
    rows = rows + constant(k, rows.kind) if k else rows
    return bind(Select(), bind(LessEqual() if upper else GreaterEqual(), rows, columns), x, zeros(x.kind))


def on_diagonal(x: Node, y: Node) -> Node:
    """x on the diagonal, y elsewhere."""
    rows, columns = _grid(x.shape)
    return bind(Select(), bind(Equal(), rows, columns), x, y)


def real_part(x: Node) -> Node:
    """x without its imaginary part, of the same dtype."""
    return bind(AsType(x.dtype), real(x)) if x.dtype.is_complex else x


def diagonal(x: Node) -> Node:
    """The elements on the diagonals of square matrices."""
    return bind(Sum((x.ndim - 1,)), on_diagonal(x, zeros(x.kind)))


def across_columns(x: Node, shape: Shape) -> Node:
    """x[..., j] in all rows of column j."""
    return bind(Broadcast(shape, (*range(x.ndim - 1), len(shape) - 1)), x)


def across_rows(x: Node, shape: Shape) -> Node:
    """x[..., i] in all columns of row i."""
    return bind(Broadcast(shape, (*range(x.ndim - 1), len(shape) - 2)), x)


def imaginary_part(x: Node) -> Node:
    """x without its real part."""
    return x - real_part(x) if x.dtype.is_complex else zeros(x.kind)


def columns(x: Node, start: Size, stop: Size) -> Node:
    """Columns [start, stop)."""
    lead = x.ndim - 1
    return bind(Slice((*(0,) * lead, start), (*x.shape[:-1], stop - start), (1,) * x.ndim), x)


def rows(x: Node, start: Size, stop: Size) -> Node:
    """Rows [start, stop)."""
    *lead, _, n = x.shape
    return bind(Slice((*(0,) * len(lead), start, 0), (*lead, stop - start, n), (1,) * x.ndim), x)


def below(x: Node, y: Node) -> Node:
    """The rows of x, and then those of y."""
    return bind(Concatenate(x.ndim - 2), x, y)


def beside(x: Node, y: Node) -> Node:
    """The columns of x, and then those of y."""
    return bind(Concatenate(x.ndim - 1), x, y)


Tangents = Callable[[Node], Sequence[Node]]


def transposed(tangents: Tangents, kind: ArrayType, cotangents: Sequence[Node | None]) -> Node | None:
    """The cotangent of an operand, from the rule that gives the tangents of all results for one of the operand: the
    same linear map, the other way round."""
    moved = Node(Placeholder("a derivative rule"), (), kind)
    (found,) = DRIVERS["pull_back"]([moved], tangents(moved), cotangents)
    return found


def rows_at(x: Node, places: Node) -> Node:
    """Rows in another order: row i is x[..., places[..., i], :]."""
    if is_now(x.shape[-2], 0):
        return x
    lead = x.ndim - 2
    return bind(Gather((*range(lead), None, lead + 1), tuple(range(lead + 1))), x, places)


def inverse_order(places: Node) -> Node:
    """The permutation that undoes another one."""
    return bind(ArgSort(places.ndim - 1), places)


def identity(shape: Shape, dtype: Dtype) -> Node:
    kind = kind_of(shape, dtype)
    return on_diagonal(constant(1, kind), zeros(kind))


def hermitian(x: Node) -> Node:
    """The Hermitian part of x."""
    return half(x + adjoint(x))


# ---- values ----


def wide(x: np.ndarray) -> np.ndarray:
    """The values in double precision, in which the references compute."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def adjoint_of(x: np.ndarray) -> np.ndarray:
    return np.conjugate(np.swapaxes(x, -1, -2))


def norms(x: np.ndarray) -> np.ndarray:
    """The Frobenius norm of every matrix."""
    return np.sqrt(np.sum(np.square(np.abs(x)), axis=(-1, -2)))


def relative(residual: np.ndarray, *scales: np.ndarray, dtype: np.dtype) -> float:
    """The largest residual of a matrix, in units of epsilon and of the product of the norms of `scales`."""
    size = norms(residual)
    scale = np.prod([norms(x) for x in scales], axis=0)
    with np.errstate(all="ignore"):
        error = np.where(size == 0, 0.0, size / (scale * float(np.finfo(dtype).eps)))
    return float(np.max(error, initial=0.0))
