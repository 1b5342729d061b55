"""Systems with three diagonals: LU factors with exchanges of neighbouring rows, and solutions by them, one loop each.

The steps are those of LAPACK's `gttrf` and `gttrs`, so the factors are the ones that PyTensor has.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.tensor.linalg.solvers.tridiagonal import LUFactorTridiagonal, SolveLUFactorTridiagonal

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts
from weft.frontends.pytensor.values import Value, number_of, to_array


def _zero(x: array) -> array:
    return mx.zeros((1, *x.shape[1:]), x.dtype)


def _size(x: array) -> array:
    """How large a pivot is: of a complex number the sum of its parts' sizes."""
    return mx.abs(mx.real(x)) + mx.abs(mx.imag(x)) if x.dtype.is_complex else mx.abs(x)


@converts(LUFactorTridiagonal)
def factors(op: Any, node: Apply, lower: Value, diagonal: Value, upper: Value) -> list[array]:
    """Multipliers, the three diagonals of the upper factor, and where each row came from."""
    dtype = node.outputs[0].type.dtype
    below, middle, above = (to_array(x, dtype) for x in (lower, diagonal, upper))
    n = middle.shape[0]
    if n <= 1:
        return [below, middle, above, above, mx.arange(1, n + 1, dtype=mx.int32)]

    def step(carry: tuple[array, array], x: tuple[array, array, array]) -> Any:
        """A row and the next one: the larger of two pivots stays."""
        (pivot, beside), (under, next_pivot, next_beside) = carry, x
        swaps = _size(pivot) < _size(under)
        zero = mx.zeros((), pivot.dtype)
        quotient = mx.where(swaps, pivot, under) / mx.where(swaps, under, pivot)
        factor = mx.where(swaps | (pivot != zero), quotient, under)
        kept = mx.where(swaps, beside - factor * next_pivot, next_pivot - factor * beside)
        made = (
            factor,
            mx.where(swaps, under, pivot),
            mx.where(swaps, next_pivot, beside),
            mx.where(swaps, next_beside, zero),
            swaps,
        )
        return (kept, mx.where(swaps, -factor * next_beside, next_beside)), made

    rows = (below, middle[1:], mx.concatenate([above[1:], _zero(above)]))
    (last, _), (multipliers, pivots, first, second, swaps) = mx.scan(step, (middle[0], above[0]), rows)
    places = mx.arange(1, n, dtype=mx.int32) + swaps.astype(mx.int32)
    ends = mx.concatenate([places, number_of(n).astype(mx.int32).reshape([1])])
    return [multipliers, mx.concatenate([pivots, last.reshape([1])]), first, second[: n - 2], ends]


@converts(SolveLUFactorTridiagonal)
def solution(op: Any, node: Apply, *given: Value) -> array:
    """The solution of a system by its factors, or of the transposed one."""
    dtype = node.outputs[0].type.dtype
    below, middle, above, second, right = (to_array(given[i], dtype) for i in (0, 1, 2, 3, 5))
    n = middle.shape[0]
    swaps = to_array(given[4], "int64")[: n - 1] != mx.arange(1, n, dtype=mx.int64)
    b = right[:, None] if op.b_ndim == 1 else right
    solve = _transposed if op.transposed else _plain
    x = solve(below, middle, above, second, swaps, b)
    return x[:, 0] if op.b_ndim == 1 else x


def _plain(below: array, middle: array, above: array, second: array, swaps: array, b: array) -> array:
    def down(carry: array, x: tuple[array, array, array]) -> Any:
        factor, swapped, row = x
        kept, moved = mx.where(swapped, row, carry), mx.where(swapped, carry, row)
        return moved - factor * kept, kept

    last, rows = mx.scan(down, b[0], (below, swaps, b[1:]))
    rows = mx.concatenate([rows, last[None]])
    one, two = mx.concatenate([above, _zero(above)]), mx.concatenate([second, _zero(middle), _zero(middle)])
    return _substituted(middle, one, two, rows, reverse=True)


def _substituted(middle: array, one: array, two: array, rows: array, reverse: bool) -> array:
    """Rows by those of one step and of two steps before."""

    def step(carry: tuple[array, array], x: tuple[array, array, array, array]) -> Any:
        (before, earlier), (pivot, first, second, row) = carry, x
        made = (row - first * before - second * earlier) / pivot
        return (made, before), made

    start = mx.zeros(rows.shape[1:], rows.dtype)
    found: array = mx.scan(step, (start, start), (middle, one, two[: middle.shape[0]], rows), reverse=reverse)[1]
    return found


def _transposed(below: array, middle: array, above: array, second: array, swaps: array, b: array) -> array:
    one = mx.concatenate([_zero(above), above])
    two = mx.concatenate([_zero(middle), _zero(middle), second])
    rows = _substituted(middle, one, two, b, reverse=False)

    def up(carry: array, x: tuple[array, array, array]) -> Any:
        factor, swapped, row = x
        changed = row - factor * carry
        return mx.where(swapped, carry, changed), mx.where(swapped, changed, carry)

    first, rest = mx.scan(up, rows[-1], (below, swaps, rows[:-1]), reverse=True)
    return mx.concatenate([first[None], rest])
