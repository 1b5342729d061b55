"""The functions that kernels call, by the names that Python, Metal and CUDA know them by, and what they are of.

`MATH` gives an operation of the typed tree for each name; what it computes is the primitive of the same operation
(weft/primitives/custom_kernel.py has the table), so a kernel's `exp` is the library's, to the bit.
"""

from __future__ import annotations

from typing import Final

MATH: Final = {
    "exp": "exp", "exp2": "exp2", "exp10": "exp10", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10",
    "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "erf": "erf", "erfinv": "erfinv", "erfc": "erfc", "sigmoid": "sigmoid", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "rint": "rint", "lgamma": "lgamma", "nearbyint": "rint",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip
"""Of one floating-point number."""

BINARY_MATH: Final = {"pow": "pow", "power": "pow", "powr": "pow", "atan2": "atan2", "arctan2": "atan2",
                      "copysign": "copysign", "fmod": "fmod", "remainder": "mod"}  # fmt: skip
"""Of two."""

EXTREMES: Final = {"min": "min", "max": "max", "fmin": "fmin", "fmax": "fmax", "minimum": "min", "maximum": "max"}
"""Of two numbers of any kind. Where one is a NaN, the result is one, but for fmin and fmax, which give the other."""

TESTS: Final = {"isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite"}

BITS: Final = {"popcount": "popcount", "clz": "clz", "ctz": "ctz", "popc": "popcount", "reverse_bits": "reverse_bits"}
"""Of one integer."""

COMPARISONS: Final = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
ARITHMETIC: Final = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor", "<<": "shl", ">>": "shr"}

TOGETHER: Final = {
    "simd_sum": "sum", "simd_product": "product", "simd_max": "max", "simd_min": "min", "simd_and": "and",
    "simd_or": "or", "simd_xor": "xor", "simd_any": "any", "simd_all": "all",
    "simd_prefix_inclusive_sum": "scan", "simd_prefix_exclusive_sum": "scan_before",
    "simd_broadcast": "shuffle", "simd_broadcast_first": "first", "simd_shuffle": "shuffle",
    "simd_shuffle_xor": "shuffle_xor", "simd_shuffle_up": "shuffle_up", "simd_shuffle_down": "shuffle_down",
    "__shfl_sync": "shuffle", "__shfl_xor_sync": "shuffle_xor", "__shfl_up_sync": "shuffle_up",
    "__shfl_down_sync": "shuffle_down", "__any_sync": "any", "__all_sync": "all",
    "__reduce_add_sync": "sum", "__reduce_min_sync": "min", "__reduce_max_sync": "max",
    "__reduce_and_sync": "and", "__reduce_or_sync": "or", "__reduce_xor_sync": "xor",
    "simd_prefix_inclusive_product": "scan_product", "simd_prefix_exclusive_product": "scan_product_before",
    "simd_shuffle_rotate_up": "shuffle_rotate_up", "simd_shuffle_rotate_down": "shuffle_rotate_down",
    "simd_shuffle_and_fill_up": "shuffle_fill_up", "simd_shuffle_and_fill_down": "shuffle_fill_down",
}  # fmt: skip
"""What the threads of a simdgroup do together."""

QUADS: Final = {
    "quad_sum": "add", "quad_product": "mul", "quad_max": "max", "quad_min": "min", "quad_and": "and",
    "quad_or": "or", "quad_xor": "xor", "quad_broadcast": "shuffle", "quad_shuffle": "shuffle",
    "quad_shuffle_xor": "shuffle_xor", "quad_shuffle_up": "shuffle_up", "quad_shuffle_down": "shuffle_down",
}  # fmt: skip
"""What four neighbouring threads do together."""

CONVERSIONS: Final = {
    "__half2float": ("float", False), "__float2half": ("half", False), "__float2half_rn": ("half", False),
    "__bfloat162float": ("float", False), "__float2bfloat16": ("bfloat", False),
    "__float2bfloat16_rn": ("bfloat", False), "__int2float_rn": ("float", False), "__uint2float_rn": ("float", False),
    "__float2int_rz": ("int", False), "__float2uint_rz": ("uint", False), "__int2half_rn": ("half", False),
    "__half2int_rz": ("int", False), "__double2float_rn": ("float", False), "__ll2float_rn": ("float", False),
    "__float_as_int": ("int", True), "__float_as_uint": ("uint", True), "__int_as_float": ("float", True),
    "__uint_as_float": ("float", True), "__half_as_ushort": ("ushort", True), "__half_as_short": ("short", True),
    "__ushort_as_half": ("half", True), "__short_as_half": ("half", True), "__bfloat16_as_ushort": ("ushort", True),
    "__ushort_as_bfloat16": ("bfloat", True), "__double_as_longlong": ("long", True),
    "__longlong_as_double": ("double", True),
    **{
        f"make_{kind}{n}": (f"{kind}{n}", False)
        for kind in ("float", "double", "int", "uint", "short", "ushort", "char", "uchar", "half", "longlong")
        for n in (2, 3, 4)
    },
}  # fmt: skip
"""CUDA's: (type, whether its bits are taken)."""

ATOMICS: Final = {
    "atomic_add": "add", "atomic_sub": "sub", "atomic_min": "min", "atomic_max": "max", "atomic_and": "and",
    "atomic_or": "or", "atomic_xor": "xor", "atomic_exchange": "set", "atomic_store": "set", "atomic_load": "load",
    "atomic_fetch_add_explicit": "add", "atomic_fetch_sub_explicit": "sub", "atomic_fetch_min_explicit": "min",
    "atomic_fetch_max_explicit": "max", "atomic_fetch_and_explicit": "and", "atomic_fetch_or_explicit": "or",
    "atomic_fetch_xor_explicit": "xor", "atomic_exchange_explicit": "set", "atomic_store_explicit": "set",
    "atomic_load_explicit": "load",
    "atomicAdd": "add", "atomicSub": "sub", "atomicMin": "min", "atomicMax": "max", "atomicAnd": "and",
    "atomicOr": "or", "atomicXor": "xor", "atomicExch": "set", "atomicCAS": "exchange",
    "atomic_compare_exchange_weak_explicit": "exchange",
}  # fmt: skip
