"""Every operation that Weft knows, one class each. `REGISTRY` is the explicit list that tests and docs are generated
from."""

from __future__ import annotations

from weft.graph.body import PARAMETER
from weft.primitives import (
    attention,
    bits,
    contraction,
    control,
    convolution,
    creation,
    custom,
    custom_kernel,
    elementwise,
    fourier,
    indexing,
    joins,
    linalg,
    logarithms,
    neural,
    quantized,
    random,
    reductions,
    rounding,
    scans,
    sorting,
    special,
    trigonometry,
    views,
)  # fmt: skip
from weft.primitives.base import OPERATORS, ControlFlow, Parameter, Primitive

OPERATORS["transpose"] = views.transpose
OPERATORS["broadcast_front"] = views.broadcast_front
OPERATORS["sum"] = reductions.sum_over
PARAMETER.append(Parameter)

REGISTRY: tuple[type[Primitive], ...] = (
    # elementwise: arithmetic
    elementwise.Add, elementwise.Subtract, elementwise.Multiply, elementwise.Divide, elementwise.Power,
    elementwise.Maximum, elementwise.Minimum, elementwise.Negative, elementwise.Absolute, elementwise.Sign,
    elementwise.Floor, elementwise.Ceil, elementwise.Rint, elementwise.Square, elementwise.Sqrt, elementwise.Rsqrt,
    rounding.Trunc, rounding.FloorDivide, rounding.Remainder,
    # elementwise: exponentials, trigonometry, special functions
    elementwise.Exp, elementwise.Expm1, elementwise.Log, elementwise.Log1p, elementwise.Tanh, elementwise.Sin,
    elementwise.Cos, elementwise.Erf, elementwise.ErfInv, elementwise.Sigmoid, logarithms.LogAddExp,
    logarithms.Log2, logarithms.Log10, trigonometry.Tan, trigonometry.ArcSin, trigonometry.ArcCos, trigonometry.ArcTan,
    trigonometry.ArcTan2, trigonometry.Sinh, trigonometry.Cosh, trigonometry.ArcSinh, trigonometry.ArcCosh,
    trigonometry.ArcTanh,
    # elementwise: special functions
    special.GammaLn, special.Digamma, special.Polygamma, special.Erfc, special.Erfcx, special.XLogY, special.Log1mExp,
    special.I0, special.I1, special.I0e, special.I1e,
    # elementwise: comparison, logic, bits
    elementwise.Equal, elementwise.NotEqual, elementwise.Less, elementwise.LessEqual, elementwise.Greater,
    elementwise.GreaterEqual, elementwise.IsNan, elementwise.BitwiseAnd, elementwise.BitwiseOr, elementwise.BitwiseXor,
    elementwise.BitwiseInvert, elementwise.LeftShift, elementwise.RightShift, elementwise.Select,
    bits.IsInf, bits.IsFinite,
    # elementwise: conversion
    elementwise.AsType, elementwise.Identity, elementwise.StopGradient, elementwise.Conjugate, elementwise.Real,
    elementwise.Imag, bits.Bitcast, bits.Reinterpret, bits.Cartesian,
    # views
    views.Transpose, views.Slice, views.Broadcast, views.Reshape, views.SliceUpdate, views.Contiguous,
    # reductions
    reductions.Sum, reductions.SumOfEqual, reductions.Prod, reductions.Max, reductions.Min, reductions.All,
    reductions.Any_, reductions.ArgMax, reductions.ArgMin,
    # scans
    scans.CumSum, scans.CumProd, scans.CumMax, scans.CumMin, scans.CumLogAddExp, scans.Recurrence,
    # indexing
    indexing.Gather, indexing.ScatterSet, indexing.ScatterAdd, indexing.ScatterMultiply, indexing.ScatterMax,
    indexing.ScatterMin, indexing.BoundsCheck,
    # sorting
    sorting.Sort, sorting.ArgSort, sorting.ArgSelect, sorting.Partition,
    sorting.ArgPartition, sorting.SearchSorted,
    # joins
    joins.Concatenate, joins.Repeat,
    # creation
    creation.Iota, creation.Extent,
    # random
    random.Threefry,
    # contraction
    contraction.Matmul, convolution.Convolve, convolution.ConvolveWeights, convolution.ConvolveBack,
    quantized.QuantizedMatmul, quantized.QuantizedLinear, quantized.GatherQuantizedMatmul,
    quantized.Pack, quantized.Unpack, quantized.Quantize,
    quantized.Dequantize,
    # attention
    attention.Attention, attention.ScaledDotProductAttention, attention.AttentionGradient,
    # neural networks
    neural.RmsNorm, neural.LayerNorm, neural.Rotate,
    # linear algebra
    linalg.Cholesky, linalg.Qr, linalg.Lu, linalg.SolveTriangular, linalg.Inverse,
    linalg.Solution, linalg.PseudoInverse, linalg.LogAbsDet, linalg.DetSign, linalg.Determinant, linalg.Adjugate,
    linalg.Eigh, linalg.HermitianEigenvalues, linalg.Svd, linalg.SingularValues, linalg.Eig, linalg.Eigenvalues,
    linalg.Schur, linalg.GeneralizedSchur, linalg.Sylvester,
    # Fourier transforms
    fourier.FourierTransform, fourier.RealFourierTransform, fourier.RealFourierInverse,
    # barrier, memory
    custom.Barrier, custom.NoAlias,
    # kernels of the user's
    custom_kernel.CustomKernel,
)  # fmt: skip

CONTROL_FLOW: tuple[type[ControlFlow], ...] = (control.Loop, control.Switch)
"""Those with bodies, whose contract is tested by itself."""
