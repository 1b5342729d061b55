"""Where quantized matrices lie: what both kernels ask of words, scales and biases, and of indices that choose among
matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.llvm.builder import Value
from weft.primitives.quantized import Packing
from weft.records import dataclass
from weft.targets.cpu.matmul.frame import ProductFrame

INDICES: Final = (
    "*lhs", "*rhs", "x_matrix", "w_matrix", "scales_matrix", "biases_matrix", "x_count", "w_count",
)  # fmt: skip
"""The argument words of kernels that choose matrices: indices, bytes from one matrix to the next, how many there
are."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Addresses. Where there are no biases, theirs means nothing."""

    w: Value
    scales: Value
    biases: Value

    def moved(self, f: ProductFrame, rows: Value) -> Matrix:
        """From so many rows further on."""
        b = f.b
        return Matrix(
            b.gep(self.w, rows * f["w_row"]),
            b.gep(self.scales, rows * f["scales_row"]),
            b.gep(self.biases, rows * f["biases_row"]),
        )


def names_of(packing: Packing) -> tuple[str, ...]:
    """The operands that a matrix is."""
    return ("w", "scales", "biases") if packing.affine else ("w", "scales")


def matrix_of(f: ProductFrame, packing: Packing, offsets: Sequence[Value]) -> Matrix:
    """The matrix that begins so many bytes from the first one."""
    w, scales, *biases = [f.b.gep(f[name], at) for name, at in zip(names_of(packing), offsets, strict=True)]
    return Matrix(w, scales, biases[0] if biases else scales)


def index_of(f: ProductFrame, name: str, member: Value, count: str) -> Value:
    """An index counts from the end if it is negative, and is moved to what there is."""
    b = f.b
    index = b.load(b.gep(f[name], member * dt.int32.size), dt.int32, 1)
    assert isinstance(index, Value)
    index = b.cast(index, dt.int64)
    index = b.choose(index < 0, index + f[count], index)
    return f.least(b.intrinsic("smax", index, b.i64(0)), f[count] - 1)


def offsets_of(f: ProductFrame, packing: Packing, chosen: Value) -> list[Value]:
    """Where the parts of a chosen matrix begin."""
    return [chosen * f[f"{name}_matrix"] for name in names_of(packing)]


def operands_of_member(f: ProductFrame, packing: Packing, member: Value) -> tuple[Value, list[Value]]:
    """Where x and the matrix of a member begin."""
    x = index_of(f, "lhs", member, "x_count") * f["x_matrix"]
    return x, offsets_of(f, packing, index_of(f, "rhs", member, "w_count"))


def merged(axes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Batch axes (outermost first) as few as possible, innermost first."""
    found: list[tuple[int, ...]] = []
    for extent, *strides in reversed(axes):
        if extent == 1:
            continue
        if found and all(s == found[-1][0] * t for s, t in zip(strides, found[-1][1:], strict=True)):
            found[-1] = (extent * found[-1][0], *found[-1][1:])
        else:
            found.append((extent, *strides))
    return tuple(found)
