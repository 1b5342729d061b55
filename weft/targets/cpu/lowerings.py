"""Operations with kernels of their own on the CPU: `LOWERINGS` has a function for each class of them.

A function gets the operation, the layouts of its operands and those of its results, which are contiguous. The pointers
of its launches count operands, then results, then temporaries. A class without an entry has its base's. What writes
the kernels is loaded with the first operation that needs it: all of it takes as long as `import weft.core`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.codegen.launch import Layout, Lowering, Pointer
from weft.lazy import lazy
from weft.primitives.attention import Attention, AttentionGradient
from weft.primitives.base import Primitive
from weft.primitives.bits import Reinterpret
from weft.primitives.contraction import Matmul
from weft.primitives.convolution import Convolve, ConvolveBack, ConvolveWeights
from weft.primitives.custom import Barrier
from weft.primitives.custom_kernel import CustomKernel
from weft.primitives.elementwise import AsType
from weft.primitives.fourier import FourierTransform, RealFourierInverse, RealFourierTransform
from weft.primitives.indexing import BoundsCheck, Gather, Scatter
from weft.primitives.joins import Concatenate, Repeat
from weft.primitives.linalg import (
    Cholesky,
    Eig,
    Eigenvalues,
    Eigh,
    GeneralizedSchur,
    HermitianEigenvalues,
    Inverse,
    Lu,
    Qr,
    Schur,
    SingularValues,
    SolveTriangular,
    Svd,
    Sylvester,
)
from weft.primitives.quantized import Dequantize, Pack, Quantize, Quantized, Unpack
from weft.primitives.scans import Cumulative, Scan
from weft.primitives.sorting import ArgPartition, ArgSelect, ArgSort, Partition, SearchSorted, Sort
from weft.primitives.views import Contiguous, SliceUpdate
from weft.targets import copying

if TYPE_CHECKING:
    from weft.targets.cpu import (
        attention,
        custom,
        fft,
        lapack,
        matmul,
        moves,
        pads,
        partition,
        places,
        quantized,
        scan,
        scatters,
        selection,
        small_general,
        small_matrices,
        small_spectra,
        sorting,
    )
    from weft.targets.cpu.matmul import windows
else:
    attention = lazy("weft.targets.cpu.attention")
    custom = lazy("weft.targets.cpu.custom")
    fft = lazy("weft.targets.cpu.fft")
    lapack = lazy("weft.targets.cpu.lapack")
    matmul = lazy("weft.targets.cpu.matmul")
    moves = lazy("weft.targets.cpu.moves")
    pads = lazy("weft.targets.cpu.pads")
    partition = lazy("weft.targets.cpu.partition")
    places = lazy("weft.targets.cpu.places")
    quantized = lazy("weft.targets.cpu.quantized")
    scan = lazy("weft.targets.cpu.scan")
    scatters = lazy("weft.targets.cpu.scatters")
    selection = lazy("weft.targets.cpu.selection")
    small_general = lazy("weft.targets.cpu.small_general")
    small_matrices = lazy("weft.targets.cpu.small_matrices")
    small_spectra = lazy("weft.targets.cpu.small_spectra")
    sorting = lazy("weft.targets.cpu.sorting")
    windows = lazy("weft.targets.cpu.matmul.windows")

Operands = Sequence[Layout]


def _matmul(op: Matmul, operands: Operands, out: Layout) -> Lowering:
    return matmul.lower(moves.copy, operands[0], operands[1], out)


# ---- moves ----


def _copied(op: Barrier | Contiguous, operands: Operands, out: Layout) -> Lowering:
    last = len(operands)
    return moves.contiguous(operands[0], out, Pointer(0), Pointer(last), Pointer(last + 1))


def _concatenate(op: Concatenate, operands: Operands, out: Layout) -> Lowering:
    return moves.join(operands, out, op.axis) or copying.concatenate(moves.copy, operands, out, op.axis)


def _repeat(op: Repeat, operands: Operands, out: Layout) -> Lowering:
    return moves.repeat(operands[0], out, op.count)


def _reinterpret(op: Reinterpret, operands: Operands, out: Layout) -> Lowering:
    return copying.reinterpret(moves.copy, operands[0], out)


def _slice_update(op: SliceUpdate, operands: Operands, out: Layout) -> Lowering:
    padded = pads.pad(operands[0], operands[1], out, op.starts, op.steps)  # type: ignore[arg-type]
    if padded is not None:
        return padded
    return copying.slice_update(moves.copy, operands[0], operands[1], out, op.starts, op.steps)  # type: ignore[arg-type]


def _gather(op: Gather, operands: Operands, out: Layout) -> Lowering:
    return moves.gather(operands[0], operands[1:], out, op.where, op.axes)


def _bounds_check(op: BoundsCheck, operands: Operands, out: Layout) -> Lowering:
    made = moves.copy(operands[0], out, Pointer(0), Pointer(1))
    return Lowering((*made, moves.bounds_check(out, Pointer(1), op.lowest(out.dtype), op.size)))  # type: ignore[arg-type]


def _scatter(op: Scatter, operands: Operands, out: Layout) -> Lowering:
    wide = op.accumulator(out.dtype)
    convert = (None, None) if wide is out.dtype else (AsType(wide), AsType(out.dtype))
    return scatters.scatter(op.op, operands[0], operands[1], operands[2:], out, op.where, op.axes, *convert)


# ---- scans, sorts ----


def _scan(op: Scan, operands: Operands, out: Layout) -> Lowering:
    exclusive = isinstance(op, Cumulative) and op.exclusive
    return scan.scan(type(op)(0), operands, out, op.axis, op.reverse, exclusive, op.cost)


def _sort(op: Sort, operands: Operands, out: Layout) -> Lowering:
    return sorting.lower(operands[0], out, op.axis, places=False)


def _arg_sort(op: ArgSort, operands: Operands, out: Layout) -> Lowering:
    if places.fits(operands[0], op.axis):
        return places.lower(operands[0], out, op.axis)
    return sorting.lower(operands[0], out, op.axis, places=True)


def _arg_select(op: ArgSelect, operands: Operands, out: Layout) -> Lowering:
    return selection.select(operands[0], out, op.axis, op.count, op.largest)


def _partition(op: Partition, operands: Operands, out: Layout) -> Lowering:
    return partition.partition(operands[0], out, op.axis, op.rank(operands[0].shape[op.axis]), places=False)


def _arg_partition(op: ArgPartition, operands: Operands, out: Layout) -> Lowering:
    return partition.partition(operands[0], out, op.axis, op.rank(operands[0].shape[op.axis]), places=True)


def _search_sorted(op: SearchSorted, operands: Operands, out: Layout) -> Lowering:
    return sorting.search(operands[0], operands[1], out, op.right)


# ---- Fourier transforms ----


def _fourier(op: FourierTransform, operands: Operands, out: Layout) -> Lowering:
    scale = op.scale_of(int(out.shape[op.axis]), op.inverse)
    return fft.complex_transform(operands[0], out, op.axis, op.inverse, scale)


def _real_fourier(op: RealFourierTransform, operands: Operands, out: Layout) -> Lowering:
    scale = op.scale_of(int(operands[0].shape[op.axis]), inverse=False)
    return fft.real_transform(operands[0], out, op.axis, scale)


def _real_inverse(op: RealFourierInverse, operands: Operands, out: Layout) -> Lowering:
    return fft.real_inverse(operands[0], out, op.axis, op.scale_of(int(out.shape[op.axis]), inverse=True))


def _convolve(op: Convolve, operands: Operands, out: Layout) -> Lowering:
    return windows.convolve(op, operands[0], operands[1], out)


def _convolve_weights(op: ConvolveWeights, operands: Operands, out: Layout) -> Lowering:
    return windows.convolve_weights(op, operands[0], operands[1], out)


def _convolve_back(op: ConvolveBack, operands: Operands, out: Layout) -> Lowering:
    return windows.convolve_back(op, operands[0], operands[1], out)


# ---- linear algebra ----


Ways = tuple[Callable[..., Lowering], Callable[..., Lowering], Callable[[Layout], bool]]


def _by_size(ways: Callable[[], Ways]) -> Callable[..., Lowering]:
    """Small matrices have kernels of their own. `ways`: those kernels, the library's, and which matrices are small."""

    def lower(op: Primitive, operands: Operands, *results: Layout) -> Lowering:
        small, library, takes = ways()
        empty = any(0 in x.shape for x in (*operands, *results))
        chosen = small if not empty and takes(operands[0]) else library
        return chosen(op, operands, *results)

    return lower


LOWERINGS: Mapping[type[Primitive], Callable[..., Lowering]] = {
    Matmul: _matmul,
    Convolve: _convolve,
    ConvolveWeights: _convolve_weights,
    ConvolveBack: _convolve_back,
    Quantized: lambda *given: quantized.lower(*given),
    Pack: lambda *given: quantized.repack(*given),
    Unpack: lambda *given: quantized.repack(*given),
    Dequantize: lambda *given: quantized.dequantize(*given),
    Quantize: lambda *given: quantized.quantize(*given),
    Attention: lambda *given: attention.lower(*given),
    AttentionGradient: lambda *given: attention.lower_gradient(*given),
    Barrier: _copied,
    Contiguous: _copied,
    Concatenate: _concatenate,
    Repeat: _repeat,
    Reinterpret: _reinterpret,
    SliceUpdate: _slice_update,
    BoundsCheck: _bounds_check,
    Gather: _gather,
    Scatter: _scatter,
    Scan: _scan,
    Sort: _sort,
    ArgSort: _arg_sort,
    ArgSelect: _arg_select,
    Partition: _partition,
    ArgPartition: _arg_partition,
    SearchSorted: _search_sorted,
    FourierTransform: _fourier,
    RealFourierTransform: _real_fourier,
    RealFourierInverse: _real_inverse,
    Cholesky: _by_size(lambda: (small_matrices.cholesky, lapack.cholesky, small_matrices.takes)),
    Qr: _by_size(lambda: (small_matrices.qr, lapack.qr, small_matrices.takes)),
    Lu: _by_size(lambda: (small_matrices.lu, lapack.lu, small_matrices.takes)),
    Inverse: _by_size(lambda: (small_matrices.inverse, lapack.inverse, small_matrices.takes)),
    Eigh: _by_size(lambda: (small_spectra.eigh, lapack.eigh, small_spectra.takes)),
    HermitianEigenvalues: _by_size(
        lambda: (small_spectra.hermitian_eigenvalues, lapack.hermitian_eigenvalues, small_spectra.takes)
    ),
    Svd: _by_size(lambda: (small_spectra.svd, lapack.svd, small_spectra.takes)),
    SingularValues: _by_size(lambda: (small_spectra.singular_values, lapack.singular_values, small_spectra.takes)),
    Eig: _by_size(lambda: (small_general.eig, lapack.eig, small_general.takes)),
    Eigenvalues: _by_size(lambda: (small_general.eigenvalues, lapack.eigenvalues, small_general.takes)),
    Schur: lambda *given: lapack.schur(*given),
    GeneralizedSchur: lambda *given: lapack.generalized_schur(*given),
    Sylvester: lambda *given: lapack.sylvester(*given),
    SolveTriangular: _by_size(lambda: (small_matrices.solve_triangular, lapack.solve_triangular, small_matrices.takes)),
    CustomKernel: lambda *given: custom.lower(*given),
}


def lowering_of(cls: type[Primitive]) -> Callable[..., Lowering] | None:
    """The function for a class of operations; None if there is none."""
    return next((LOWERINGS[base] for base in cls.__mro__ if base in LOWERINGS), None)
