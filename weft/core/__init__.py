"""The array API of MLX: what `import mlx.core as mx` gives, on any Linux machine.

>>> import weft.core as mx
>>> mx.softmax(mx.array([1.0, 2.0, 3.0]))
array([0.0900306, 0.244728, 0.665241], dtype=float32)

Examples in the help of functions leave out the `mx.`.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType

from weft.array import NAMESPACE, ArrayIterator, ArrayLike, array
from weft.core import cuda, distributed, fast, fft, linalg, metal, random
from weft.core._methods import attach
from weft.core._streams import honour_streams
from weft.core.comparing import allclose, array_equal, isclose
from weft.core.compiling import compile, disable_compile, enable_compile
from weft.core.convolving import (
    conv1d,
    conv2d,
    conv3d,
    conv_general,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    convolve,
)
from weft.core.creating import (
    arange,
    asarray,
    bartlett,
    blackman,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    hamming,
    hanning,
    identity,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tri,
    tril,
    triu,
    zeros,
    zeros_like,
)
from weft.core.devices import (
    Device,
    DeviceType,
    Stream,
    StreamContext,
    ThreadLocalStream,
    clear_streams,
    cpu,
    default_device,
    default_stream,
    device_count,
    device_info,
    gpu,
    is_available,
    new_stream,
    new_thread_local_stream,
    new_thread_unsafe_stream,
    set_default_device,
    set_default_stream,
    stream,
)
from weft.core.einsum import einsum, einsum_path
from weft.core.elementwise import (
    abs,
    acos,
    acosh,
    add,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    asin,
    asinh,
    astype,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    conj,
    conjugate,
    cos,
    cosh,
    degrees,
    diff,
    digamma,
    divide,
    divmod,
    equal,
    erf,
    erfc,
    erfcx,
    erfinv,
    exp,
    expm1,
    floor,
    floor_divide,
    gammaln,
    greater,
    greater_equal,
    i0,
    i0e,
    i1,
    i1e,
    imag,
    isfinite,
    isinf,
    isnan,
    isneginf,
    isposinf,
    left_shift,
    less,
    less_equal,
    log,
    log1mexp,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    nan_to_num,
    negative,
    not_equal,
    polygamma,
    positive,
    pow,
    power,
    radians,
    real,
    reciprocal,
    remainder,
    right_shift,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    stop_gradient,
    subtract,
    tan,
    tanh,
    trunc,
    where,
    xlogy,
)
from weft.core.evaluating import async_eval, depends, eval, get_array_buffer_size, synchronize
from weft.core.exporting import FunctionExporter, export_function, export_to_dot, exporter, import_function
from weft.core.fp8 import from_fp8, to_fp8
from weft.core.gathering import ArrayAt, put_along_axis, slice_update, take, take_along_axis
from weft.core.gathering import slice_ as slice
from weft.core.hadamard import hadamard_transform
from weft.core.incomplete import betainc, gammainc, gammaincc, logit
from weft.core.jacobians import hessian, hvp, jacfwd, jacobian, jacrev, linearize
from weft.core.joining import concat, concatenate, diag, diagonal, pad, repeat, roll, stack, tile, trace, unstack
from weft.core.linalg import norm as matrix_norm  # as MLX has it: vectors too
from weft.core.linear import addmm, inner, kron, matmul, outer, tensordot, vecdot
from weft.core.looping import associative_scan, cond, fori_loop, map, scan, switch, while_loop
from weft.core.products import block_masked_mm, gather_mm, segmented_mm
from weft.core.promoting import __array_namespace_info__, can_cast, isdtype, result_type
from weft.core.quantizing import dequantize, gather_qmm, gather_qqmm, qqmm, quantize, quantized_matmul
from weft.core.reducing import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    logsumexp,
    max,
    mean,
    min,
    softmax,
    std,
    sum,
    var,
)
from weft.core.reducing import prod_ as prod
from weft.core.saving import load, save, save_gguf, save_safetensors, savez, savez_compressed
from weft.core.scanning import cummax, cummin, cumprod, cumsum, cumulative_prod, cumulative_sum, logcumsumexp
from weft.core.selecting import argwhere, bincount, flatnonzero, nonzero
from weft.core.shaping import (
    as_strided,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    contiguous,
    expand_dims,
    flatten,
    flip,
    matrix_transpose,
    moveaxis,
    permute_dims,
    reshape,
    split,
    squeeze,
    swapaxes,
    transpose,
    unflatten,
)
from weft.core.sorting import argpartition, argsort, median, minmax, partition, searchsorted, sort, topk, unique
from weft.core.statistics import (
    corrcoef,
    cov,
    histogram,
    interp,
    nanmax,
    nanmean,
    nanmedian,
    nanmin,
    nanprod,
    nanquantile,
    nanstd,
    nansum,
    nanvar,
    percentile,
    quantile,
)
from weft.core.transforming import grad, jvp, value_and_grad, vjp, vmap
from weft.core.viewing import view
from weft.dtypes import (
    Dtype,
    DtypeCategory,
    bfloat16,
    bool_,
    complex64,
    complex128,
    complexfloating,
    finfo,
    float16,
    float32,
    float64,
    floating,
    generic,
    iinfo,
    inexact,
    int8,
    int16,
    int32,
    int64,
    integer,
    issubdtype,
    number,
    signedinteger,
    uint8,
    uint16,
    uint32,
    uint64,
    unsignedinteger,
)
from weft.graph.placement import USED
from weft.printing import PrintOptions, get_printoptions, printoptions, set_printoptions
from weft.runtime.buffer import (
    clear_cache,
    get_active_memory,
    get_cache_memory,
    get_memory_limit,
    get_peak_memory,
    reset_peak_memory,
    set_cache_limit,
    set_memory_limit,
    set_wired_limit,
)
from weft.transforms.checkpoint import checkpoint
from weft.transforms.custom import custom_function
from weft.version import __version__

inf, nan, pi, e, euler_gamma = math.inf, math.nan, math.pi, math.e, 0.5772156649015329
newaxis = None

__all__ = [
    "ArrayAt", "ArrayIterator", "ArrayLike", "Device", "DeviceType", "Dtype", "DtypeCategory", "FunctionExporter",
    "PrintOptions", "Stream", "StreamContext", "ThreadLocalStream", "abs", "acos", "acosh", "add", "addmm", "all",
    "allclose", "any", "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax",
    "argmin", "argpartition", "argsort", "argwhere", "array", "array_equal", "as_strided", "asarray", "asin", "asinh",
    "associative_scan", "astype", "async_eval", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d",
    "bartlett", "betainc", "bfloat16", "bincount", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "blackman", "block_masked_mm", "bool_", "broadcast_arrays",
    "broadcast_shapes", "broadcast_to", "can_cast", "ceil", "checkpoint", "clear_cache", "clear_streams", "clip",
    "compile", "complex64", "complex128", "complexfloating", "concat", "concatenate", "cond", "conj", "conjugate",
    "contiguous", "conv1d", "conv2d", "conv3d", "conv_general", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolve", "corrcoef", "cos", "cosh", "count_nonzero", "cov", "cpu", "cuda", "cummax",
    "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "custom_function", "default_device",
    "default_stream", "degrees", "depends", "dequantize", "device_count", "device_info", "diag", "diagonal", "diff",
    "digamma", "disable_compile", "distributed", "divide", "divmod", "e", "einsum", "einsum_path", "empty",
    "empty_like", "enable_compile", "equal", "erf", "erfc", "erfcx", "erfinv", "euler_gamma", "eval", "exp",
    "expand_dims", "expm1", "export_function", "export_to_dot", "exporter", "eye", "fast", "fft", "finfo",
    "flatnonzero", "flatten", "flip", "float16", "float32", "float64", "floating", "floor", "floor_divide",
    "fori_loop", "from_dlpack", "from_fp8", "full", "full_like", "gammainc", "gammaincc", "gammaln", "gather_mm",
    "gather_qmm", "gather_qqmm",
    "generic", "get_active_memory", "get_array_buffer_size", "get_cache_memory", "get_memory_limit",
    "get_peak_memory", "get_printoptions", "gpu", "grad", "greater", "greater_equal", "hadamard_transform", "hamming",
    "hanning", "hessian", "histogram", "hvp", "i0", "i0e", "i1", "i1e", "identity", "iinfo", "imag",
    "import_function", "inexact", "inf", "inner", "int8", "int16", "int32", "int64", "integer", "interp",
    "is_available", "isclose", "isdtype", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "issubdtype",
    "jacfwd", "jacobian", "jacrev", "jvp", "kron", "left_shift", "less", "less_equal", "linalg", "linearize",
    "linspace", "load", "log", "log1mexp", "log1p", "log2", "log10", "logaddexp", "logcumsumexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "logsumexp", "map", "matmul", "matrix_norm",
    "matrix_transpose", "max", "maximum", "mean", "median", "meshgrid", "metal", "min", "minimum", "minmax",
    "moveaxis", "multiply", "nan", "nan_to_num", "nanmax", "nanmean", "nanmedian", "nanmin", "nanprod", "nanquantile",
    "nanstd", "nansum", "nanvar", "negative", "new_stream", "new_thread_local_stream", "new_thread_unsafe_stream",
    "newaxis", "nonzero", "not_equal", "number", "ones", "ones_like", "outer", "pad", "partition", "percentile",
    "permute_dims", "pi", "polygamma", "positive", "pow", "power", "printoptions", "prod", "put_along_axis", "qqmm",
    "quantile", "quantize", "quantized_matmul", "radians", "random", "real", "reciprocal", "remainder", "repeat",
    "reset_peak_memory", "reshape", "result_type", "right_shift", "roll", "round", "rsqrt", "save", "save_gguf",
    "save_safetensors", "savez", "savez_compressed", "scan", "searchsorted", "segmented_mm", "set_cache_limit",
    "set_default_device", "set_default_stream", "set_memory_limit", "set_printoptions", "set_wired_limit", "sigmoid",
    "sign", "signedinteger", "sin", "sinh", "slice", "slice_update", "softmax", "sort", "split", "sqrt", "square",
    "squeeze", "stack", "std", "stop_gradient", "stream", "subtract", "sum", "swapaxes", "switch", "synchronize",
    "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "to_fp8", "topk", "trace", "transpose", "tri",
    "tril", "triu", "trunc", "uint8", "uint16", "uint32", "uint64", "unflatten", "unique", "unsignedinteger",
    "unstack", "value_and_grad", "var", "vecdot", "view", "vjp", "vmap", "where", "while_loop", "xlogy", "zeros",
    "zeros_like",
]  # fmt: skip

attach()
NAMESPACE.append(sys.modules[__name__])
if USED:  # a device that was chosen from outside
    for _owner in (sys.modules[__name__], fast, fft, linalg, random, array):
        honour_streams(_owner)

_SUBMODULES = frozenset(("cuda", "distributed", "fast", "fft", "linalg", "metal", "random"))
_OWN = frozenset(("NAMESPACE", "ModuleType", "USED", "annotations", "attach", "honour_streams", "math", "sys"))


def __dir__() -> list[str]:
    """What users are meant to find: neither the modules that this one is made of, nor what it uses itself."""
    parts = {name for name, value in globals().items() if isinstance(value, ModuleType)} - _SUBMODULES
    return sorted(globals().keys() - parts - _OWN)
