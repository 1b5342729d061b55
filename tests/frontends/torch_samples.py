"""What each overload of core ATen is tried on: `SAMPLES` has calls by name, `UNARY`, `BINARY` and `SCALAR` names of
overloads that are tried on all dtypes that torch computes them for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

F32, F64, I64, BOOL = torch.float32, torch.float64, torch.int64, torch.bool


def t(*shape: int, dtype: Any = F32, low: float = -2.0, high: float = 2.0, seed: int = 0) -> torch.Tensor:
    """Numbers between low and high (whole ones for integers), the same each time."""
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape) + sum(shape))
    if dtype is BOOL:
        return torch.rand(shape, generator=generator) > 0.5
    numbers = torch.rand(shape, generator=generator, dtype=F64) * (high - low) + low
    if dtype.is_complex:
        other = torch.rand(shape, generator=generator, dtype=F64) * (high - low) + low
        return torch.complex(numbers, other).to(dtype)
    if dtype.is_floating_point:
        return numbers.to(dtype)
    return numbers.mul(3).round().abs().to(dtype) if dtype is torch.uint8 else numbers.mul(3).round().to(dtype)


def i(*shape: int, n: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers from 0 to n - 1."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(0, n, shape, generator=generator)


WITH_NAN = torch.cat([torch.linspace(-3, 3, 198), torch.tensor([math.nan, -math.inf])])
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, math.inf, -math.inf, math.nan, 1e-30, 1e30])
"""Numbers at which functions have something special."""

UNARY = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "erf", "exp",
    "expm1", "floor", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not", "neg", "reciprocal", "relu",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "gelu", "leaky_relu", "elu",
    "hardtanh", "exp2", "special_erfcx",
    "alias", "clone", "any", "amax", "amin", "argmax", "argmin", "mean", "prod",
]  # fmt: skip
BINARY = [
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "atan2", "bitwise_and.Tensor", "bitwise_or.Tensor",
    "bitwise_xor.Tensor", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "pow.Tensor_Tensor", "copy",
]  # fmt: skip
SCALAR = [
    "add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar", "eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar",
    "gt.Scalar", "ge.Scalar", "bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar", "pow.Tensor_Scalar",
    "remainder.Scalar", "fmod.Scalar", "fill.Scalar",
]  # fmt: skip
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip

Call = tuple[list[Any], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return list(args), kwargs


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.mul(3).round()


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last)


_CONV = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)


def _conv_calls() -> list[Call]:
    x, w, b = t(2, 4, 7, 8), t(6, 4, 3, 2), t(6)
    return [
        call(x, w, b, *_CONV),
        call(x, w, None, [2, 1], [1, 2], [1, 2], False, [0, 0], 1),
        call(channels_last(x), w, b, *_CONV),
        call(x, t(6, 2, 3, 3), b, [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
        call(x, t(8, 1, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 4),
        call(t(2, 3, 9), t(5, 3, 4), t(5), [2], [1], [1], False, [0], 1),
        call(t(1, 2, 4, 5, 6), t(3, 2, 2, 2, 2), t(3), [1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1),
        call(x, t(4, 5, 3, 2), t(5), [2, 3], [1, 0], [1, 2], True, [1, 0], 1),
        call(x, t(4, 3, 3, 3), t(6), [2, 2], [1, 1], [1, 1], True, [1, 1], 2),
        call(t(2, 3, 5), t(3, 4, 3), None, [2], [0], [1], True, [0], 1),
        call(x.double(), w.double(), b.double(), *_CONV),
    ]


def _conv_backward_calls() -> list[Call]:
    x, w = t(2, 4, 7, 8), t(6, 4, 3, 2)
    every = [True, True, True]
    return [
        call(t(2, 6, 5, 7, seed=1), x, w, [6], *_CONV, every),
        call(t(2, 6, 4, 10, seed=1), x, w, [6], [2, 1], [1, 2], [1, 2], False, [0, 0], 1, [False, True, False]),
        call(t(2, 6, 7, 8, seed=1), x, t(6, 2, 3, 3), [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, every),
        call(t(2, 6, 14, 16, seed=1), x, t(4, 3, 3, 3), [6], [2, 2], [1, 1], [1, 1], True, [1, 1], 2, every),
        call(t(2, 5, 4, seed=1), t(2, 3, 9), t(5, 3, 4), [5], [2], [1], [1], False, [0], 1, every),
        # Dilation lets more be added to the output than a stride.
        call(
            t(2, 4, 18, 17, seed=1), t(2, 2, 4, 3), t(2, 2, 3, 4), [4], [3, 1], [1, 2], [4, 5], True, [2, 3], 2, every
        ),
        call(t(2, 3, 13, seed=1), t(2, 2, 4), t(2, 3, 3), [3], [2], [1], [3], True, [2], 1, every),
    ]


def spd(*shape: int, dtype: Any = F32) -> torch.Tensor:
    """Positive definite matrices."""
    x = t(*shape, dtype=dtype)
    return x @ x.mH + 3 * torch.eye(shape[-1], dtype=dtype)


def regular(*shape: int, dtype: Any = F32) -> torch.Tensor:
    """Matrices that are far from singular."""
    return t(*shape, dtype=dtype) + 4 * torch.eye(shape[-1], dtype=dtype)


def _factored(*shape: int, dtype: Any = F32) -> tuple[torch.Tensor, torch.Tensor]:
    lu, pivots = torch.linalg.lu_factor(t(*shape, dtype=dtype))
    return lu, pivots


MATRICES = [(4, 4), (2, 3, 3), (1, 1), (12, 12)]
C64 = torch.complex64

LINEAR_ALGEBRA: dict[str, Callable[[], list[Call]]] = {
    "linalg_cholesky_ex": lambda: [
        *[call(spd(*n), upper=u) for n in MATRICES for u in (False, True)],
        call(spd(3, 3, dtype=C64)),
    ],
    "cholesky": lambda: [call(spd(4, 4)), call(spd(2, 3, 3), True)],
    "cholesky_inverse": lambda: [call(spd(4, 4)), call(spd(2, 3, 3), True)],
    "cholesky_solve": lambda: [
        call(t(4, 2), spd(4, 4)),
        call(t(2, 3, 2), spd(2, 3, 3), True),
        call(t(3, 2, dtype=C64), spd(3, 3, dtype=C64)),
    ],
    "linalg_qr": lambda: [*[call(t(*n), "reduced") for n in ((4, 4), (5, 3), (3, 5), (2, 4, 3))], call(t(4, 3), "r")],
    "linalg_lu_factor_ex": lambda: [call(t(*n)) for n in (*MATRICES, (5, 3), (3, 5))] + [call(torch.zeros(3, 3))],
    "linalg_lu": lambda: [call(t(*n)) for n in ((4, 4), (5, 3), (3, 5), (2, 3, 3))],
    "lu_unpack": lambda: (
        [call(*_factored(*n)) for n in ((4, 4), (5, 3), (3, 5), (2, 3, 3))] + [call(*_factored(4, 4), True, False)]
    ),
    "linalg_inv_ex": lambda: [call(regular(*n)) for n in MATRICES] + [call(regular(3, 3, dtype=C64))],
    "_linalg_solve_ex": lambda: [
        call(regular(4, 4), t(4, 2)),
        call(regular(4, 4), t(4)),
        call(regular(2, 3, 3), t(2, 3)),
        call(regular(2, 3, 3), t(2, 5, 3), left=False),
        call(regular(3, 3, dtype=torch.complex128), t(3, 2, dtype=torch.complex128)),
    ],
    "linalg_lu_solve": lambda: (
        [
            call(*_factored(2, 4, 4), t(2, 3, 4).mT.contiguous() if left else t(2, 3, 4), left=left, adjoint=adjoint)
            for left in (True, False)
            for adjoint in (True, False)
        ]
        + [
            call(*_factored(3, 3, dtype=C64), t(3, 2, dtype=C64), adjoint=True),
            call(*_factored(3, 3, dtype=C64), t(2, 3, dtype=C64), left=False),
        ]
    ),
    "linalg_solve_triangular": lambda: [
        call(regular(2, 4, 4), t(2, 4, 4, seed=1), upper=upper, left=left, unitriangular=unit)
        for upper in (True, False)
        for left in (True, False)
        for unit in (True, False)
    ],
    "triangular_solve": lambda: [
        call(t(4, 2), regular(4, 4), upper, transpose, unit)
        for upper in (True, False)
        for transpose in (True, False)
        for unit in (True, False)
    ],
    "linalg_pinv.atol_rtol_tensor": lambda: [
        call(t(4, 3)),
        call(t(2, 3, 5), rtol=torch.tensor(0.3)),
        call(t(3, 3), atol=torch.tensor(0.5)),
        call(t(3, 2, dtype=C64)),
    ],
    "_linalg_det": lambda: [call(t(*n)) for n in MATRICES[:2]] + [call(t(3, 3, dtype=C64)), call(torch.ones(2, 2))],
    "_linalg_slogdet": lambda: [call(t(*n)) for n in MATRICES] + [call(t(3, 3, dtype=C64))],
    "linalg_eigvals": lambda: [call(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))],
    "linalg_matrix_exp": lambda: [call(t(*n)) for n in ((3, 3), (2, 4, 4), (12, 12))] + [call(t(3, 3, dtype=C64))],
}

OTHERS: dict[str, Callable[[], list[Call]]] = {
    "gcd": lambda: [call(i(20, n=40), i(20, n=40, seed=1) - 20), call(i(3, 1, n=9).int(), i(4, n=9).int())],
    "lcm": lambda: [call(i(20, n=40), i(20, n=40, seed=1) - 20)],
    "frexp.Tensor": lambda: (
        [call(x.to(d)) for x in (EDGES, t(20)) for d in (F32, F64, torch.float16, torch.bfloat16)]
        + [call(torch.tensor([1e-42, -3e-45]))]
    ),
    "ldexp.Tensor": lambda: [call(t(5), i(5, n=9) - 4), call(i(5, n=9), i(5, n=4)), call(t(5, dtype=F64), t(5))],
    "nextafter": lambda: [call(EDGES, EDGES.flip(0)), call(EDGES, t(12)), call(EDGES.double(), t(12, dtype=F64))],
    "special_modified_bessel_i0": lambda: [call(t(3, 5)), call(t(9, dtype=F64))],
    "special_modified_bessel_i1": lambda: [call(t(3, 5)), call(t(9, dtype=F64))],
    "polygamma": lambda: [
        *[call(n, t(3, 5, low=0.1)) for n in range(4)],
        *[call(n, t(3, 5, dtype=F64, low=-4.0)) for n in range(5)],
    ],
    "igamma": lambda: [call(t(5, low=0.1), t(5, low=0.1, seed=1))],
    "igammac": lambda: [call(t(5, low=0.1), t(5, low=0.1, seed=1, dtype=F32))],
    "dist": lambda: [call(t(3, 4), t(3, 4, seed=1), p) for p in (0.0, 1.0, 2.0, 3.0, math.inf)],
    "cummax": lambda: [call(WITH_NAN, 0), call(i(4, 9, n=3), 1), call(i(4, 9, n=3), 0), call(t(), 0)],
    "cummin": lambda: [call(WITH_NAN, 0), call(i(4, 9, n=3), 1), call(t(4, 9).half(), 0), call(t(9, dtype=BOOL), 0)],
    "histc": lambda: [call(t(50), 7), call(t(50), 5, -1, 1.5), call(torch.ones(4), 3), call(t(9, dtype=F64), 4)],
    "median": lambda: [call(t(3, 5)), call(t(4)), call(WITH_NAN), call(t(7, dtype=torch.int64)), call(t())],
    "median.dim": lambda: [call(t(3, 6), 1), call(t(4, 5), 0, True), call(WITH_NAN, 0), call(t(), 0)],
    "nanmedian": lambda: [call(WITH_NAN), call(torch.full((3,), math.nan))],
    "nanmedian.dim": lambda: [call(WITH_NAN.reshape(20, 10), 1), call(t(4, 5), 0, True)],
    "mode": lambda: [call(i(6, 9, n=4), 1), call(i(6, 9, n=4).float(), 0, True), call(t(), 0)],
    "searchsorted.Tensor": lambda: [
        call(t(9).sort().values, t(3, 4)),
        call(t(2, 9).sort().values, t(2, 4, seed=1), right=True),
        call(t(2, 3, 9).sort().values, t(2, 3, 4, seed=1), out_int32=True),
        call(t(9), t(4, seed=1), side="right", sorter=t(9).argsort()),
    ],
    "searchsorted.Scalar": lambda: [call(t(9).sort().values, 0.25)],
    "bucketize.Tensor": lambda: [
        call(i(3, 4, n=9), torch.tensor([1, 3, 3, 6]), right=right, out_int32=right) for right in (False, True)
    ],
    "addbmm": lambda: [call(t(3, 5), t(2, 3, 4), t(2, 4, 5)), call(t(5), t(2, 3, 4), t(2, 4, 5), beta=0.5, alpha=2)],
    "_trilinear": lambda: [call(t(2, 3), t(5, 3, 4), t(2, 4), [1, 3], [0], [1, 2], [2, 3])],
    "index_reduce": lambda: [
        call(t(4, 3), 0, i(5, n=4), t(5, 3, seed=1), kind, include_self=own)
        for kind in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    ],
    "tril_indices": lambda: [call(3, 4), call(4, 2, -1, dtype=torch.int32)],
    "triu_indices": lambda: [call(3, 4, 1), call(4, 2)],
    "adaptive_max_pool2d": lambda: [call(t(2, 3, 7, 9), [3, 4]), call(t(3, 8, 6), [4, 2])],
    "adaptive_max_pool3d": lambda: [call(t(2, 3, 5, 4, 7), [2, 2, 3])],
    "adaptive_max_pool2d_backward": lambda: [
        call(t(2, 3, 3, 4), t(2, 3, 7, 9), torch.nn.functional.adaptive_max_pool2d(t(2, 3, 7, 9), [3, 4], True)[1])
    ],
    "upsample_bicubic2d": lambda: (
        [call(t(2, 3, 5, 7), size, corners) for size in ([9, 4], [5, 7], [1, 3]) for corners in (True, False)]
        + [call(t(2, 3, 5, 7), [10, 14], False, 2.0, 2.1)]
    ),
    "upsample_bicubic2d_backward": lambda: [call(t(2, 3, 9, 4), [9, 4], [2, 3, 5, 7], False)],
    "_upsample_bilinear2d_aa": lambda: [call(t(2, 3, 9, 7), size, False) for size in ([4, 5], [12, 3])],
    "_upsample_bilinear2d_aa_backward": lambda: [call(t(2, 3, 4, 5), [4, 5], [2, 3, 9, 7], False)],
    "_upsample_bicubic2d_aa": lambda: [call(t(2, 3, 9, 7), size, c) for size in ([4, 5], [12, 3]) for c in (0, 1)],
    "_upsample_bicubic2d_aa_backward": lambda: [call(t(2, 3, 4, 5), [4, 5], [2, 3, 9, 7], True)],
}

SAMPLES: dict[str, Callable[[], list[Call]]] = {
    "_adaptive_avg_pool2d": lambda: [
        call(t(2, 3, 7, 9), [3, 4]),
        call(t(2, 3, 8, 6), [1, 1]),
        call(t(3, 5, 6), [5, 2]),
    ],
    "_adaptive_avg_pool2d_backward": lambda: [call(t(2, 3, 3, 4), t(2, 3, 7, 9)), call(t(2, 3, 1, 1), t(2, 3, 5, 5))],
    "_adaptive_avg_pool3d": lambda: [call(t(2, 3, 7, 5, 6), [3, 2, 6])],
    "adaptive_avg_pool1d": lambda: [call(t(2, 3, 7), [3])],
    "_cdist_forward": lambda: [call(t(2, 5, 3), t(2, 4, 3, seed=1), p, None) for p in (0.0, 1.0, 2.0, 3.0, math.inf)],
    "_cdist_backward": lambda: [
        call(t(2, 5, 4, seed=2), x, y, p, torch.cdist(x, y, p))
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)
        for x, y in [(t(2, 5, 3), torch.cat([t(2, 5, 3)[:, 1:2], t(2, 3, 3, seed=1)], 1))]
    ],
    "_embedding_bag": lambda: (
        [call(t(7, 3), i(9, n=7), torch.tensor([0, 2, 2, 6]), False, mode) for mode in (0, 1, 2)]
        + [
            call(t(7, 3), i(9, n=7), torch.tensor([0, 4, 9]), False, 0, False, t(9), True),
            call(t(7, 3), i(9, n=7), torch.tensor([0, 4]), False, 1, False, None, False, 3),
        ]
    ),
    "_fft_c2r": lambda: [
        call(t(4, 5, dtype=torch.complex64), [1], 0, 8),
        call(t(4, 5, dtype=torch.complex128), [0, 1], 1, 9),
    ],
    "_fft_r2c": lambda: [
        call(t(4, 6), [1], 0, True),
        call(t(4, 6), [0, 1], 2, True),
        call(t(4, 6, dtype=F64), [1], 1, False),
    ],
    "_log_softmax": lambda: [call(t(3, 5), 1, False), call(t(3, 5), 0, False), call(t(), 0, False)],
    "_native_batch_norm_legit.no_stats": lambda: [call(t(4, 3, 5), t(3), t(3, seed=1), True, 0.1, 1e-5)],
    "_native_batch_norm_legit_functional": lambda: [
        call(t(4, 3, 5), t(3), t(3, seed=1), t(3, seed=2), t(3, low=0.5), True, 0.1, 1e-5),
        call(t(4, 3, 5, 2), None, None, t(3, seed=2), t(3, low=0.5), False, 0.1, 1e-5),
    ],
    "_native_batch_norm_legit_no_training": lambda: [
        call(t(4, 3, 5, 5), t(3), t(3, seed=1), t(3, seed=2), t(3, low=0.5), 0.1, 1e-5),
        call(channels_last(t(4, 3, 5, 5)), t(3), None, t(3, seed=2), t(3, low=0.5), 0.1, 1e-5),
    ],
    "native_batch_norm_backward": lambda: [
        call(
            t(4, 3, 5),
            t(4, 3, 5, seed=1),
            t(3),
            t(3, seed=2),
            t(3, low=0.5),
            t(3, seed=3),
            t(3, low=0.5),
            train,
            1e-5,
            [True, True, True],
        )
        for train in (True, False)
    ],
    "_pdist_forward": lambda: [call(t(5, 3), p) for p in (0.0, 1.0, 2.0, math.inf)],
    "_softmax": lambda: [call(t(3, 5), -1, False), call(t(3, 5), 0, False), call(t(3, 5, dtype=F64), 1, False)],
    "_to_copy": lambda: (
        [
            call(t(3, 4, dtype=a), dtype=b)
            for a in (F32, I64, BOOL, torch.float16)
            for b in (F64, torch.int32, BOOL, F32)
        ]
        + [call(t(2, 3, 4, 5), memory_format=torch.channels_last)]
    ),
    "add.Tensor": lambda: [
        call(t(3, 4), t(4, seed=1), alpha=2.5),
        call(t(3, dtype=I64), t(3, dtype=I64, seed=1), alpha=3),
        call(t(3, dtype=torch.float16), torch.tensor(0.1, dtype=F64)),
        call(t(3, dtype=I64), t(3, seed=1)),
        call(t(2, dtype=BOOL), t(2, dtype=BOOL, seed=3)),
        call(t(3, dtype=torch.bfloat16), t(3), alpha=0.1),
    ],
    "sub.Tensor": lambda: [call(t(3, 4), t(4, seed=1), alpha=2.5), call(t(3, dtype=torch.uint8), t(3, dtype=I64))],
    "addmm": lambda: [
        call(t(5), t(4, 3), t(3, 5)),
        call(t(4, 5), t(4, 3), t(3, 5), beta=0.5, alpha=2),
        call(torch.full((5,), math.nan), t(4, 3), t(3, 5), beta=0),
        call(t(5), t(4, 3), t(5, 3).T),
    ],
    "amax": lambda: [call(t(3, 4, 5), [0, 2], True), call(t(3, 4, dtype=I64), [1]), call(EDGES, [0])],
    "amin": lambda: [call(t(3, 4, 5), [0, 2], True), call(t(3, 4, dtype=BOOL), [1]), call(EDGES, [0])],
    "any.dim": lambda: [call(t(3, 4, dtype=BOOL), 1, True), call(t(3, 4), 0)],
    "any.dims": lambda: [call(t(3, 4, 5, dtype=I64), [0, 2])],
    "arange.start_step": lambda: [
        call(0, 7, 2),
        call(5, -4, -3, dtype=F32),
        call(0.5, 3.1, 0.4),
        call(0, 5, dtype=torch.int32),
    ],
    "argmax": lambda: [call(t(3, 4), 1), call(t(3, 4), 0, True), call(EDGES, 0), call(t(3, 4), None, True)],
    "argmin": lambda: [call(t(3, 4), 1), call(t(3, 4), 0, True), call(EDGES, 0)],
    "as_strided": lambda: [
        call(t(4, 5), [2, 3], [1, 5], 2),
        call(t(12), [3, 4], [1, 2]),
        call(t(5, 4).T, [2, 3], [1, 5], 2),
        call(t(2, 3, 4, 5).to(memory_format=torch.channels_last), [6, 7], [7, 2], 1),
    ],
    "as_strided_scatter": lambda: [
        call(t(4, 5), t(2, 3), [2, 3], [1, 5], 2),
        call(t(5, 4).T, t(2, 3), [2, 3], [1, 5]),
        call(t(2, 3, 4, 5).to(memory_format=torch.channels_last), t(4, 3), [4, 3], [10, 3], 1),
    ],
    "avg_pool1d": lambda: [call(t(2, 3, 9), [3], [2], [1])],
    "avg_pool2d": lambda: [
        call(t(2, 3, 9, 7), [3, 2]),
        call(t(2, 3, 9, 7), [3, 3], [2, 2], [1, 1], True),
        call(t(2, 3, 9, 7), [3, 3], [2, 2], [1, 1], True, False),
        call(t(3, 9, 7), [2, 2], [3, 1], [0, 1], False, True, 5),
        call(channels_last(t(2, 3, 9, 7)), [3, 2]),
    ],
    "avg_pool2d_backward": lambda: [
        call(t(2, 3, 5, 4), t(2, 3, 9, 7), [3, 3], [2, 2], [1, 1], True, False, None),
        call(t(2, 3, 3, 3), t(2, 3, 9, 7), [3, 2], [3, 2], [0, 0], False, True, None),
    ],
    "avg_pool3d": lambda: [call(t(2, 3, 5, 6, 7), [2, 3, 2], [2, 1, 3], [1, 0, 1])],
    "bmm": lambda: [call(t(2, 3, 4), t(2, 4, 5)), call(t(2, 3, 4), t(2, 5, 4).transpose(1, 2))],
    "cat": lambda: [
        call([t(2, 3), t(4, 3)]),
        call([t(2, 3), t(2, 5)], 1),
        call([t(2, 3), t(2, 3, dtype=I64)], -1),
        call([torch.empty(0), t(2, 3)], 1),
    ],
    "clamp": lambda: [
        call(t(5), -1, 1),
        call(t(5), None, 0.5),
        call(EDGES, -1.0, 1.0),
        call(t(5, dtype=I64), 0.5, 2.5),
    ],
    "clamp.Tensor": lambda: [call(t(3, 4), t(4, seed=1), t(3, 1, seed=2)), call(t(5), None, t(5, seed=1))],
    "clone": lambda: [call(t(3, 4).T), call(t(2, 3, 4, 5), memory_format=torch.channels_last)],
    "col2im": lambda: [
        call(t(2, 12, 12), [5, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
        call(t(12, 6), [5, 6], [2, 2], [2, 1], [1, 1], [3, 3]),
    ],
    "im2col": lambda: [call(t(2, 3, 5, 4), [2, 2], [1, 1], [1, 0], [2, 1])],
    "constant_pad_nd": lambda: [
        call(t(3, 4), [1, 2], 7.0),
        call(t(3, 4, 5), [-1, 2, 0, 3]),
        call(t(3, 4), [1, 0, 2, -1], 1),
    ],
    "convolution": _conv_calls,
    "convolution_backward": _conv_backward_calls,
    "copy": lambda: [call(t(3, 4), t(4, dtype=I64))],
    "cumsum": lambda: [call(t(3, 4), 1), call(t(3, 4, dtype=BOOL), 0), call(t(3, dtype=torch.int32), 0, dtype=F32)],
    "diagonal": lambda: [call(t(3, 4)), call(t(2, 3, 4), 1, 0, 2), call(t(2, 3, 4), -1, 2, 1)],
    "div.Tensor_mode": lambda: [
        call(x, y, rounding_mode=mode)
        for mode in (None, "floor", "trunc")
        for x, y in (
            (t(20, high=9, low=-9), t(20, seed=1)),
            (t(20, dtype=I64, high=9, low=-9), t(20, dtype=I64, low=1, high=3)),
            (t(20, dtype=I64, high=9, low=-9), t(20, dtype=I64, low=-3, high=-1)),
            (EDGES, torch.full((12,), 0.25)),
            (EDGES, torch.full((12,), -3.0)),
            *((t(300, dtype=d, high=90, low=-90), t(300, dtype=d, seed=1)) for d in (torch.float16, torch.bfloat16)),
            (t(300, dtype=torch.bfloat16, high=90), torch.tensor(0.7, dtype=torch.bfloat16)),
        )
    ],
    "div.Scalar_mode": lambda: [
        call(t(9, high=9), 0.7, rounding_mode="floor"),
        call(t(300, dtype=torch.bfloat16, high=90), 0.7, rounding_mode="trunc"),
        call(t(9, dtype=I64, high=9), -2, rounding_mode="trunc"),
        call(t(9, dtype=I64, high=9), -2, rounding_mode="floor"),
    ],
    "elu": lambda: [call(t(5), 0.5, 2.0, 1.5)],
    "embedding": lambda: [call(t(7, 3), i(2, 4, n=7)), call(t(7, 3), i(5, n=7), 2)],
    "embedding_dense_backward": lambda: [
        call(t(2, 4, 3), i(2, 4, n=7), 7, -1, False),
        call(t(9, 3), i(9, n=4), 4, 2, True),
    ],
    "expand": lambda: [call(t(3, 1), [3, 4]), call(t(3, 1), [2, -1, 5]), call(t(), [2])],
    "flip": lambda: [call(t(3, 4, 5), [0, 2]), call(t(3), [-1])],
    "fmod.Tensor": lambda: [
        call(t(20, high=9, low=-9), t(20, seed=1)),
        call(EDGES, torch.full((12,), -1.5)),
        call(t(20, dtype=I64, high=9, low=-9), t(20, dtype=I64, low=-3, high=-1)),
    ],
    "remainder.Tensor": lambda: [
        call(t(20, high=9, low=-9), t(20, seed=1)),
        call(EDGES, torch.full((12,), -1.5)),
        call(t(20, dtype=I64, high=9, low=-9), t(20, dtype=I64, low=-3, high=-1)),
    ],
    "full": lambda: [call([2, 3], 1.5), call([2], 3), call([], True), call([2], 7, dtype=torch.float16)],
    "full_like": lambda: [call(t(3, 4), 2), call(t(3, dtype=I64), 2.0, dtype=F64)],
    "gather": lambda: [
        call(t(4, 5), 1, i(4, 3, n=5)),
        call(t(4, 5), 0, i(7, 2, n=4)),
        call(t(3), 0, i(n=3)),
    ],
    "gelu": lambda: [call(t(9, high=5, low=-5), approximate="tanh"), call(t(9, dtype=torch.bfloat16))],
    "grid_sampler_2d": lambda: [
        call(t(2, 3, 5, 6), t(2, 4, 3, 2, low=-1.4, high=1.4), mode, padding, align)
        for mode in (0, 1, 2)
        for padding in (0, 1, 2)
        for align in (False, True)
    ],
    "hardtanh": lambda: [call(t(5), -0.5, 0.25)],
    "index.Tensor": lambda: [
        call(t(4, 5), [i(3, n=4)]),
        call(t(4, 5, 6), [None, i(3, 1, n=5), i(2, n=6)]),
        call(t(4, 5, 6), [i(3, n=4), None, i(3, n=6)]),
        call(t(4, 5), [-i(3, n=4) - 1]),
    ],
    "index_put": lambda: [
        call(t(4, 5), [torch.tensor([2, 0])], t(2, 5)),
        call(t(4, 5), [i(6, n=4)], t(6, 5), True),
        call(t(4, 5, 6), [None, torch.tensor([1, 3])], t(4, 2, 6)),
        call(t(4, 5), [t(4, 5, dtype=BOOL)], t()),
        call(t(4, 5), [t(4, dtype=BOOL)], t(int(t(4, dtype=BOOL).sum()), 5)),
        call(t(4, 5), [i(3, n=4), i(3, n=5)], t(3, dtype=F32), True),
    ],
    "index_add": lambda: [
        call(t(4, 5), 0, i(6, n=4), t(6, 5, seed=1)),
        call(t(4, 5, dtype=I64), -1, i(3, n=5), t(4, 3, dtype=I64, seed=1), alpha=3),
        call(t(), 0, torch.tensor(0), t(seed=1)),
    ],
    "index_copy": lambda: [
        call(t(4, 5), 1, torch.tensor([3, 0]), t(4, 2, seed=1)),
        call(t(4, 5), 0, torch.tensor(2), t(1, 5, seed=1)),
        call(t(), 0, torch.tensor(0), t(seed=1)),
    ],
    "index_fill.int_Scalar": lambda: [call(t(4, 5), 1, torch.tensor([3, -5]), 7), call(t(), 0, torch.tensor([0]), 1.5)],
    "index_fill.int_Tensor": lambda: [call(t(4, 5), 0, torch.tensor([3, -1]), t())],
    "put": lambda: [
        call(t(4, 5), torch.tensor([[3, -1], [0, 7]]), t(2, 2, seed=1)),
        call(t(4, 5), torch.tensor([3, -1, 3]), t(3, seed=1), True),
    ],
    "index_select": lambda: [call(t(), 0, torch.tensor([0])), call(t(4, 5), 1, i(7, n=5)), call(t(4, 5), 0, i(n=4))],
    "leaky_relu": lambda: [call(t(5), 0.3)],
    "logical_and": lambda: [call(t(3, dtype=I64), t(3, dtype=BOOL))],
    "masked_scatter": lambda: [
        call(t(3, 4), t(3, 4, dtype=BOOL), t(12, seed=1)),
        call(t(3, 4), t(4, dtype=BOOL), t(12)),
    ],
    "max.dim": lambda: [call(t(3, 4), 1), call(t(3, 4, dtype=I64), 0, True), call(EDGES, 0), call(t(), 0)],
    "min.dim": lambda: [call(t(3, 4), 1), call(t(3, 4, dtype=BOOL), 0, True), call(EDGES, 0)],
    "max_pool2d_with_indices": lambda: [
        call(t(2, 3, 9, 7), [3, 2]),
        call(t(2, 3, 9, 7), [3, 3], [2, 2], [1, 1], [1, 1], True),
        call(t(2, 3, 9, 7), [2, 3], [2, 1], [0, 1], [2, 2]),
        call(channels_last(t(2, 3, 8, 8)), [3, 3], [2, 2], [1, 1]),
        call(t(3, 9, 7, dtype=F64), [2, 2]),
    ],
    "max_pool2d_with_indices_backward": lambda: [
        call(
            t(2, 3, 5, 4),
            t(2, 3, 9, 7),
            [3, 3],
            [2, 2],
            [1, 1],
            [1, 1],
            False,
            torch.nn.functional.max_pool2d(t(2, 3, 9, 7), 3, 2, 1, return_indices=True)[1],
        ),
    ],
    "max_pool3d_with_indices": lambda: [call(t(2, 3, 5, 6, 7), [2, 3, 2], [2, 2, 3], [1, 1, 0])],
    "mean": lambda: [call(t(3, 4), dtype=F64), call(t(3, 4, dtype=I64), dtype=F32)],
    "mean.dim": lambda: [call(t(3, 4, 5), [0, 2], True), call(t(3, 4), None), call(t(3, 4, dtype=torch.float16), [1])],
    "mm": lambda: [
        call(t(3, 4), t(4, 5)),
        call(t(4, 3).T, t(4, 5)),
        call(t(3, 4, dtype=F64), t(4, 5, dtype=F64)),
        call(t(3, 4, dtype=I64), t(4, 5, dtype=I64)),
        call(t(3, 4, dtype=torch.bfloat16), t(4, 5, dtype=torch.bfloat16)),
        call(t(3, 4, dtype=torch.complex64), t(4, 5, dtype=torch.complex64)),
    ],
    "native_group_norm": lambda: [
        call(t(2, 6, 5), t(6), t(6, seed=1), 2, 6, 5, 3, 1e-5),
        call(t(2, 6, 2, 3), None, None, 2, 6, 6, 2, 1e-5),
    ],
    "native_group_norm_backward": lambda: [
        call(t(2, 6, 5), t(2, 6, 5, seed=1), t(2, 3), t(2, 3, low=0.5), t(6), 2, 6, 5, 3, [True, True, True]),
    ],
    "native_layer_norm": lambda: [
        call(t(2, 3, 5), [5], t(5), t(5, seed=1), 1e-5),
        call(t(2, 3, 5), [3, 5], None, None, 1e-3),
        call(t(4, 5, dtype=torch.bfloat16), [5], t(5, dtype=torch.bfloat16), None, 1e-5),
    ],
    "native_layer_norm_backward": lambda: [
        call(t(2, 3, 5), t(2, 3, 5, seed=1), [5], t(2, 3, 1), t(2, 3, 1, low=0.5), t(5), t(5), [True, True, True]),
        call(t(2, 3, 5), t(2, 3, 5, seed=1), [3, 5], t(2, 1, 1), t(2, 1, 1, low=0.5), None, None, [True, False, False]),
    ],
    "permute": lambda: [call(t(2, 3, 4), [2, 0, 1]), call(t(2, 3), [-1, 0])],
    "pow.Tensor_Scalar": lambda: (
        [call(t(7, low=0.1), p) for p in (0, 0.5, 1, 1.5, 2, 3, -0.5, -1, -2, 2.5)]
        + [call(t(7, dtype=I64), p) for p in (0, 2, 3, 5)]
        + [call(t(5, dtype=I64, low=1), 1.5), call(EDGES, 2.0)]
    ),
    "pow.Scalar": lambda: [call(2.5, t(5)), call(2, t(5, dtype=I64, low=0))],
    "prod.dim_int": lambda: [call(t(3, 4), 1, True), call(t(3, 4, dtype=torch.int32), 0)],
    "reflection_pad1d": lambda: [call(t(2, 3, 7), [2, 3])],
    "reflection_pad2d": lambda: [call(t(2, 3, 7, 6), [2, 3, 1, 0])],
    "reflection_pad3d": lambda: [call(t(2, 3, 5, 7, 6), [2, 3, 1, 0, 2, 2])],
    "grid_sampler_2d_backward": lambda: [
        call(
            t(2, 3, 5, 4, dtype=F64, seed=2),
            t(2, 3, 6, 7, dtype=F64),
            t(2, 5, 4, 2, dtype=F64, low=-1.3, high=1.3),
            mode,
            padding,
            corners,
            mask,
        )
        for mode in (0, 1, 2)
        for padding in (0, 1, 2)
        for corners, mask in ((False, [True, True]), (True, [False, True]))
    ],
    "replication_pad1d_backward": lambda: [call(t(2, 3, 8), t(2, 3, 5), [1, 2])],
    "replication_pad2d_backward": lambda: [call(t(2, 3, 8, 11), t(2, 3, 7, 6), [2, 3, 1, 0])],
    "replication_pad3d_backward": lambda: [call(t(2, 3, 9, 8, 11), t(2, 3, 5, 7, 6), [2, 3, 1, 0, 2, 2])],
    "replication_pad2d": lambda: [call(t(2, 3, 7, 6), [2, 3, 1, 0])],
    "replication_pad3d": lambda: [call(t(2, 3, 5, 7, 6), [2, 3, 1, 0, 2, 2])],
    "repeat": lambda: [call(t(2, 3), [2, 3]), call(t(2, 3), [2, 1, 2]), call(t(), [3])],
    "round": lambda: [call(EDGES), call(torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]))],
    "scalar_tensor": lambda: [call(1.5), call(3, dtype=F32), call(True)],
    "scatter.value": lambda: [call(t(4, 5), 1, i(4, 3, n=5), 2.5), call(t(4, 5), 0, i(2, 3, n=4), -1)],
    "scatter.src": lambda: [
        call(t(4, 5), 1, torch.tensor([[0, 2], [1, 4], [3, 0]]), t(4, 3, seed=1)),
        call(t(4), 0, torch.tensor([3, 1]), t(2)),
    ],
    "scatter_add": lambda: [call(t(4, 5), 1, i(4, 9, n=5), t(4, 9)), call(t(4, 5), 0, i(7, 2, n=4), t(8, 3))],
    "scatter_reduce.two": lambda: [
        call(t(4, 5), 1, i(4, 7, n=5), t(4, 7, seed=1), reduce, include_self=include)
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for include in (True, False)
    ],
    "select.int": lambda: [call(t(3, 4), 1, 2), call(t(3, 4), 0, -1)],
    "select_scatter": lambda: [call(t(3, 4), t(3, seed=1), 1, -2)],
    "slice.Tensor": lambda: [
        call(t(7, 3), 0, 1, 6, 2),
        call(t(7, 3), 1),
        call(t(7), 0, -3, 2**63 - 1),
        call(t(7), 0, 5, 2),
        call(t(7), 0, 2, 99),
    ],
    "slice_scatter": lambda: [call(t(7, 3), t(3, 3, seed=1), 0, 1, 6, 2), call(t(7), t(3, seed=1), 0, -3)],
    "diagonal_scatter": lambda: [
        call(t(4, 5), t(4, seed=1)),
        call(t(4, 5), t(3, seed=1), 2),
        call(t(2, 4, 5), t(2, 3, seed=1), -1, 1, 2),
    ],
    "sort": lambda: [
        call(t(3, 9), 1),
        call(t(3, 9), 0, True),
        call(i(20, n=9**9), 0, True),
        call(i(20, n=9**9), 0),
        call(EDGES, 0, True),
        call(t(), 0),
    ],
    "split_with_sizes": lambda: [call(t(6, 3), [1, 2, 3]), call(t(2, 5), [4, 1], 1)],
    "squeeze.dim": lambda: [call(t(3, 1, 4), 1), call(t(3, 1), 0)],
    "squeeze.dims": lambda: [call(t(1, 3, 1), [0, 2]), call(t(1, 3), [0, 1])],
    "sum.dim_IntList": lambda: [
        call(t(3, 4, 5), [0, 2], True),
        call(t(3, 4), None),
        call(t(3, 4), []),
        call(t(3, 4, dtype=BOOL), [1]),
        call(t(3, 4, dtype=torch.int32), [0]),
        call(t(2, 999, dtype=torch.float16), [1]),
        call(t(3, 4), [1], dtype=F64),
    ],
    "topk": lambda: [
        call(t(3, 9), 4),
        call(t(3, 9), 2, 0),
        call(t(3, 9), 3, 1, False),
        call(EDGES, 3, 0),
        call(t(3, 200), 5),
        call(t(200, 3), 25, 0, False),
        call(t(2, 200), 26),
        call(WITH_NAN, 3),
        call(WITH_NAN, 3, 0, False),
    ],
    "kthvalue": lambda: [
        call(t(3, 9), 4),
        call(t(9, 2), 2, 0, True),
        call(t(3, 200), 7),
        call(t(200, 3), 200, 0),
        call(WITH_NAN, 200),
        call(t(), 1),
    ],
    "transpose.int": lambda: [call(t(2, 3, 4), 0, -1)],
    "unsqueeze": lambda: [call(t(3, 4), -1), call(t(3, 4), 1), call(t(), 0)],
    "upsample_bilinear2d.vec": lambda: [
        call(t(2, 3, 5, 6), [7, 4], False, None),
        call(t(2, 3, 5, 6), [9, 12], True, None),
        call(t(2, 3, 5, 6), None, False, [2.0, 1.5]),
    ],
    "upsample_nearest2d.vec": lambda: [
        call(t(2, 3, 5, 6), [7, 4], None),
        call(t(2, 3, 5, 6), None, [2.0, 1.5]),
        call(channels_last(t(2, 3, 4, 4)), None, [2.0, 2.0]),
    ],
    "var.correction": lambda: [
        call(t(3, 4, 5), [0, 2], correction=0, keepdim=True),
        call(t(3, 4)),
        call(t(3, 4), [1], correction=2),
        call(t(3, 4, dtype=torch.float16), [1]),
        call(t(3, 4, dtype=torch.complex64), [1]),
    ],
    "var.dim": lambda: [call(t(3, 4), [1], False), call(t(3, 4), [0], True, True), call(t(1, 4), [0])],
    "view": lambda: [call(t(3, 4), [2, -1]), call(t(3, 4), [12]), call(t(), [1, 1])],
    "where.self": lambda: [
        call(t(3, 4, dtype=BOOL), t(4), t(3, 1, seed=1)),
        call(t(3, dtype=BOOL), t(3, dtype=I64), t(3)),
        call(t(3, dtype=BOOL), torch.tensor(1.0, dtype=F64), t(3)),
    ],
    "_scaled_dot_product_flash_attention_for_cpu": lambda: [
        call(t(2, 4, 5, 8), t(2, 4, 7, 8, seed=1), t(2, 4, 7, 8, seed=2)),
        call(t(2, 4, 7, 8), t(2, 4, 7, 8, seed=1), t(2, 4, 7, 8, seed=2), 0.0, True),
        call(t(2, 4, 5, 8), t(2, 4, 7, 8, seed=1), t(2, 4, 7, 8, seed=2), 0.0, True),
        call(t(2, 4, 5, 8), t(2, 4, 7, 8, seed=1), t(2, 4, 7, 8, seed=2), attn_mask=t(2, 1, 5, 7), scale=0.3),
        call(*(t(2, 5, 4, 8, seed=k).transpose(1, 2) for k in range(3))),
    ],
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda: [
        call(
            t(2, 4, 7, 8, seed=5),
            *(x := [t(2, 4, 7, 8, seed=k) for k in range(3)]),
            *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*x, 0.0, causal),
            0.0,
            causal,
        )
        for causal in (False, True)
    ],
    "scaled_dot_product_attention": lambda: [
        call(t(2, 4, 5, 8), t(2, 4, 7, 8, seed=1), t(2, 4, 7, 6, seed=2), t(5, 7, dtype=BOOL) | torch.eye(5, 7).bool()),
        call(t(4, 5, 8), t(4, 5, 8, seed=1), t(4, 5, 8, seed=2), None, 0.0, True),
    ],
}

NO_VALUES = ["empty.memory_format", "empty_strided"]
RANDOM = ["rand", "randn", "randperm", "native_dropout"]
HALF, B16, C64 = torch.float16, torch.bfloat16, torch.complex64

KEPT: dict[str, Callable[[], list[Call]]] = {
    "addcdiv": lambda: [
        call(t(3, 4), t(4), t(3, 1, low=1.0), value=0.5),
        call(t(3, dtype=HALF), t(3, dtype=HALF), t(3, dtype=HALF, low=1.0)),
    ],
    "addcmul": lambda: [
        call(t(3, 4), t(4), t(3, 1), value=2),
        call(t(3, dtype=I64), t(3, dtype=I64), t(3, dtype=I64), value=3),
        call(t(5, dtype=B16), t(5, dtype=B16, seed=1), t(5, dtype=B16, seed=2), value=0.3),
    ],
    "alias_copy": lambda: [call(t(3, 4).T)],
    "all": lambda: [call(t(3, 4, dtype=BOOL)), call(t(3)), call(t(0))],
    "all.dim": lambda: [call(t(3, 4, dtype=BOOL), 1), call(t(3, 4, dtype=torch.uint8), 0, True)],
    "all.dims": lambda: [call(t(3, 4, 2), [0, 2]), call(t(3, 4, dtype=BOOL), None, True)],
    "aminmax": lambda: [call(t(3, 4)), call(t(3, 4), dim=1), call(t(3, 4, dtype=I64), dim=0, keepdim=True)],
    "arange": lambda: [call(5), call(5.5), call(4, dtype=torch.int32)],
    "arange.start": lambda: [call(2, 7), call(0.5, 3.0, dtype=F64)],
    "baddbmm": lambda: [
        call(t(2, 3, 5), t(2, 3, 4), t(2, 4, 5)),
        call(t(5), t(2, 3, 4), t(2, 4, 5), beta=0.5, alpha=2.0),
        call(t(2, 3, 5, dtype=I64), t(2, 3, 4, dtype=I64), t(2, 4, 5, dtype=I64), beta=2, alpha=3),
        call(torch.full((5,), math.nan), t(2, 3, 4), t(2, 4, 5), beta=0),
    ],
    "clamp_max": lambda: [call(t(3, 4), 0.5), call(t(3, dtype=I64), 1), call(t(3, dtype=I64), 1.5), call(EDGES, 0.3)],
    "clamp_max.Tensor": lambda: [call(t(3, 4), t(4, seed=1)), call(t(3, dtype=I64), t(3))],
    "clamp_min": lambda: [call(t(3, 4), 0.5), call(t(3, dtype=I64), 1), call(t(3, dtype=I64), 1.5), call(EDGES, 0.3)],
    "clamp_min.Tensor": lambda: [call(t(3, 4), t(4, seed=1)), call(t(3, dtype=I64), t(3))],
    "detach": lambda: [call(t(3, 4).T)],
    "diagonal_copy": lambda: [call(t(3, 4)), call(t(2, 3, 4), -1, 0, 2)],
    "dot": lambda: [
        call(t(5), t(5, seed=1)),
        call(t(5, dtype=I64), t(5, dtype=I64)),
        call(t(5, dtype=C64), t(5, dtype=C64)),
    ],
    "expand_copy": lambda: [call(t(3, 1), [2, 3, 4]), call(t(3, 1), [-1, 4])],
    "eye": lambda: [call(3), call(4, dtype=I64)],
    "eye.m": lambda: [call(3, 5), call(4, 2, dtype=BOOL)],
    "fill.Tensor": lambda: [call(t(3, 4), torch.tensor(2)), call(t(3, dtype=I64), torch.tensor(2.7))],
    "floor_divide": lambda: [
        call(t(3, 4), t(4, seed=1)),
        call(t(9, dtype=I64), torch.tensor([-3, 2, 1, -2, 3, -1, 2, -2, 3])),
        call(t(9, dtype=I64), t(9, seed=1, low=0.5)),
    ],
    "floor_divide.Scalar": lambda: [call(t(3, 4), 0.7), call(t(9, dtype=I64), -2), call(t(9, dtype=I64), 1.5)],
    "gelu_backward": lambda: [
        call(t(3, 4), t(3, 4, seed=1)),
        call(t(3, 4), t(3, 4, seed=1), approximate="tanh"),
        call(t(9, dtype=B16), t(9, dtype=B16, seed=1)),
        call(t(9, dtype=B16), t(9, dtype=B16, seed=1), approximate="tanh"),
    ],
    "hardsigmoid": lambda: [call(t(9, low=-5.0, high=5.0)), call(t(9, dtype=HALF, low=-5.0, high=5.0))],
    "hardswish": lambda: [call(t(9, low=-5.0, high=5.0)), call(t(9, dtype=HALF, low=-5.0, high=5.0))],
    "leaky_relu_backward": lambda: [call(t(9), t(9, seed=1), 0.1, False), call(t(9), t(9, seed=1).abs(), 0.1, True)],
    "lerp.Scalar": lambda: [call(t(3, 4), t(4, seed=1), 0.3), call(t(9, dtype=B16), t(9, dtype=B16, seed=1), 0.7)],
    "lerp.Tensor": lambda: [call(t(3, 4), t(4, seed=1), t(3, 1, low=0.0)), call(t(9), t(9, seed=1), torch.tensor(0.8))],
    "linspace": lambda: [
        call(0, 1, 5),
        call(-2.5, 3, 4, dtype=F64),
        call(0, 10, 4, dtype=I64),
        call(3, 4, 1),
        call(3, 4, 0),
    ],
    "logaddexp": lambda: [call(t(3, 4), t(4, seed=1)), call(EDGES, EDGES.flip(0)), call(EDGES, EDGES)],
    "logit": lambda: [call(t(9, low=0.1, high=0.9)), call(t(9), 0.1), call(t(9))],
    "log_sigmoid_forward": lambda: [call(t(9)), call(t(9, dtype=B16)), call(t(3, 4, low=-100.0, high=100.0))],
    "_log_softmax_backward_data": lambda: [
        call(t(3, 4), torch.log_softmax(t(3, 4, seed=1), d), d, F32) for d in (0, 1)
    ],
    "logsumexp": lambda: [
        *(call(t(3, 4), [1]), call(t(3, 4), [0, 1], True), call(torch.full((2, 3), -math.inf), [1])),
        *(call(t(3, 4, dtype=C64, low=-9.0, high=9.0), axes, kept) for axes in ([1], [0, 1]) for kept in (False, True)),
    ],
    "masked_fill.Scalar": lambda: [call(t(3, 4), t(4, dtype=BOOL), 2.5), call(t(3, dtype=I64), t(3, dtype=BOOL), 7)],
    "masked_fill.Tensor": lambda: [
        call(t(3, 4), t(3, 1, dtype=BOOL), torch.tensor(2)),
        call(t(3), t(2, 3, dtype=BOOL), torch.tensor(0.5)),
    ],
    "mish": lambda: [call(t(9)), call(t(9, dtype=HALF)), call(t(5, low=20.0, high=30.0))],
    "mv": lambda: [call(t(3, 4), t(4)), call(t(3, 4, dtype=I64), t(4, dtype=I64)), call(t(4, 3).T, t(4))],
    "nan_to_num": lambda: [call(EDGES), call(EDGES, 1.0, 2.0, -3.0), call(t(3, dtype=I64)), call(EDGES.half())],
    "new_empty": list,
    "new_full": lambda: [call(t(3), [2, 3], 7), call(t(3), [2], 1.5, dtype=I64)],
    "new_ones": lambda: [call(t(3, dtype=B16), [2, 3])],
    "new_zeros": lambda: [call(t(3, dtype=B16), [2, 3]), call(t(3), [], dtype=BOOL)],
    "ones": lambda: [call([2, 3]), call([], dtype=I64)],
    "ones_like": lambda: [call(t(3, 4).T), call(t(3, 4), dtype=I64)],
    "_reshape_alias": lambda: [call(t(3, 4), [2, 6], [6, 1])],
    "replication_pad1d": lambda: [call(t(2, 3, 5), [1, 2]), call(t(3, 5), [0, 3])],
    "roll": lambda: [call(t(3, 4), [1], [0]), call(t(3, 4), [1, -6], [0, 1]), call(t(3, 4), [5])],
    "rsub.Tensor": lambda: [call(t(3, 4), t(4, seed=1), alpha=2), call(t(3, dtype=I64), t(3, seed=1), alpha=2)],
    "rsub.Scalar": lambda: [call(t(3, 4), 1.5, 2), call(t(3, dtype=I64), 3, 2), call(t(3, dtype=I64), 1.5)],
    "_safe_softmax": lambda: [call(t(3, 4), 1), call(torch.tensor([[-math.inf] * 3, [0.0, -math.inf, 1.0]]), -1)],
    "sgn": lambda: [
        call(t(9)),
        call(t(9, dtype=C64)),
        call(torch.zeros(2, dtype=C64)),
        call(t(9, dtype=I64)),
        call(EDGES),
    ],
    "sigmoid_backward": lambda: [
        call(t(9), t(9, seed=1, low=0.0)),
        call(t(9, dtype=B16), t(9, dtype=B16, seed=1, low=0.0)),
    ],
    "silu": lambda: [call(t(9)), call(t(9, dtype=HALF)), call(EDGES[:-2])],
    "silu_backward": lambda: [call(t(9), t(9, seed=1)), call(t(9, dtype=B16), t(9, dtype=B16, seed=1))],
    "_softmax_backward_data": lambda: [call(t(3, 4), torch.softmax(t(3, 4, seed=1), d), d, F32) for d in (0, 1)],
    "softplus": lambda: [call(t(9)), call(t(9), 2.0, 1.0), call(t(5, low=30.0, high=60.0))],
    "split.Tensor": lambda: [call(t(7, 3), 3), call(t(3, 6), 2, 1), call(t(3, 6), 9, -1)],
    **LINEAR_ALGEBRA,
    **OTHERS,
    "unsafe_split.Tensor": lambda: [call(t(7, 3), 3), call(t(3, 6), 2, 1)],
    "unsafe_split_with_sizes": lambda: [call(t(2, 5), [4, 1], 1)],
    "split_with_sizes_copy": lambda: [call(t(7, 3), [2, 5])],
    "squeeze": lambda: [call(t(1, 3, 1)), call(t(2, 3))],
    "squeeze_copy": lambda: [call(t(1, 3, 1))],
    "squeeze_copy.dim": lambda: [call(t(1, 3, 1), 2), call(t(1, 3, 1), 1)],
    "squeeze_copy.dims": lambda: [call(t(1, 3, 1), [0, 2])],
    "std.correction": lambda: [
        call(t(3, 4), [1]),
        call(t(3, 4), None, correction=0),
        call(t(3, 4), [0], correction=2, keepdim=True),
        call(t(5, dtype=C64), [0]),
    ],
    "stack": lambda: [call([t(3, 4), t(3, 4, seed=1)]), call([t(3), t(3, seed=1)], -1), call([t(3), t(3, dtype=I64)])],
    "sum": lambda: [call(t(3, 4)), call(t(3, dtype=BOOL)), call(t(3, dtype=torch.int32)), call(t(3, 4), dtype=F64)],
    "t": lambda: [call(t(3, 4)), call(t(3))],
    "t_copy": lambda: [call(t(3, 4)), call(t(3))],
    "tanh_backward": lambda: [
        call(t(9), t(9, seed=1, low=-1.0, high=1.0)),
        call(t(9, dtype=B16), t(9, dtype=B16, seed=1)),
    ],
    "threshold_backward": lambda: [
        call(t(9), t(9, seed=1), 0),
        call(t(9), t(9, seed=1), 0.5),
        call(t(len(EDGES)), EDGES, 0),
    ],
    "transpose.int": lambda: [call(t(3, 4, 2), 0, -1)],
    "transpose_copy.int": lambda: [call(t(3, 4, 2), 0, -1)],
    "tril": lambda: [call(t(3, 4)), call(t(2, 4, 3, dtype=I64), -1), call(t(3, 3, dtype=BOOL), 1)],
    "triu": lambda: [call(t(3, 4)), call(t(2, 4, 3, dtype=I64), -1), call(t(3, 3, dtype=BOOL), 1)],
    "unbind.int": lambda: [call(t(3, 4)), call(t(3, 2), -1)],
    "unfold_copy": lambda: [call(t(7), 0, 3, 2), call(t(2, 5), 1, 2, 1)],
    "_unsafe_index.Tensor": lambda: [call(t(3, 4), [i(5, n=3)]), call(t(3, 4), [None, i(5, n=4)])],
    "_unsafe_index_put": lambda: [
        call(t(3, 4), [torch.tensor([0, 2])], t(2, 4)),
        call(t(3, 4), [i(5, n=3)], t(5, 4), True),
    ],
    "unsqueeze_copy": lambda: [call(t(3, 4), 1), call(t(3), -1)],
    "_unsafe_view": lambda: [call(t(3, 4), [2, 6]), call(t(3, 4), [-1])],
    "upsample_linear1d": lambda: [call(t(2, 3, 5), [8], False), call(t(2, 3, 5), [9], True)],
    "upsample_nearest1d": lambda: [call(t(2, 3, 5), [8])],
    "upsample_nearest2d": lambda: [call(t(2, 3, 4, 5), [7, 8])],
    "upsample_nearest3d": lambda: [call(t(2, 3, 4, 5, 2), [7, 8, 3])],
    "xlogy.Tensor": lambda: [
        call(t(3, 4), t(4, low=0.1)),
        call(torch.zeros(3), torch.tensor([0.0, math.nan, math.inf])),
    ],
    "xlogy.Scalar_Other": lambda: [call(t(3, 4), 2.5), call(t(3, dtype=I64), 2)],
    "xlogy.Scalar_Self": lambda: [call(2.5, t(3, low=0.1)), call(0, t(3))],
    "zeros": lambda: [call([2, 3]), call([], dtype=I64)],
    "zeros_like": lambda: [call(t(3, 4).T), call(t(3, 4), dtype=I64)],
}
"""Others that torch would take apart and that are kept, because there are rules for them."""
SAMPLES.update(KEPT)
SAMPLES_OF_CORE = dict(SAMPLES)

PARTS = (EDGES[:, None], EDGES[None, :-2])
OTHERS: dict[str, Callable[[], list[Call]]] = {
    "avg_pool2d": lambda: [
        *SAMPLES_OF_CORE["avg_pool2d"](),
        call(t(2, 3, 2, 1), [2560, 2560], [2560, 2560], [0, 0], True),  # windows that are larger than the image
        call(t(2, 3, 4, 5), [9, 11], [2, 3], [4, 5], True),
        call(t(2, 3, 4, 5), [9, 11], [2, 3], [4, 5], True, False),
    ],
    "_adaptive_avg_pool3d_backward": lambda: [
        call(t(2, 3, 3, 2, 6), t(2, 3, 7, 5, 6)),
        call(t(3, 5, 7, 6), t(3, 8, 8, 6)),
    ],
    "complex": lambda: [call(*PARTS), call(t(3, dtype=F64), t(2, 1, dtype=F64))],
    "polar": lambda: [call(t(4, 1, low=0.0), t(3, low=-9.0, high=9.0)), call(torch.tensor([math.inf]), torch.ones(1))],
    "_weight_norm_interface": lambda: [
        call(t(4, 3, 2), t(4, 1, 1, low=0.1)),
        call(t(4, 3, 2), t(1, 1, 2, low=0.1), 2),
        call(t(4, 3, dtype=B16), t(4, 1, dtype=B16, low=0.1), 0),
    ],
    "_weight_norm_interface_backward": lambda: [
        call(t(*v, seed=1), t(*v), t(*g, low=0.1), t(*g, low=1.0, seed=2), dim)
        for v, g, dim in (((4, 3, 2), (4, 1, 1), 0), ((4, 3, 2), (1, 1, 2), 2))
    ],
    "view_as_complex": lambda: [call(torch.stack(torch.broadcast_tensors(*PARTS), -1)), call(t(3, 2, dtype=F64))],
}
"""And others that are beside core ATen."""
SAMPLES.update(OTHERS)

SIZES = ["sym_numel", "sym_size.int", "sym_stride.int", "sym_storage_offset", "sym_is_contiguous"]
LEFT_TO_TORCH = ["resize_", "atan2.out"]
"""What changes its operand: functional graphs have other operators in their place."""
BY_DATA = ["nonzero", "_local_scalar_dense"]
"""Whose results have sizes that depend on data (test_torch_data_sizes.py)."""
MUTATING = ["_native_batch_norm_legit"]
"""A functional graph has the functional form of it in its place."""
