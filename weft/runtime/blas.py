"""BLAS and LAPACK: the library inside SciPy as addresses for native code, and matrix products as commands of programs.

SciPy publishes its Fortran routines through two extension modules for Cython. They are loaded alone: that takes 4 ms,
all of `scipy.linalg` 0.4 s. Targets come here for addresses and for the source of `gemm`.

The library has threads of its own, and its results depend on their number. Ours must not, so while kernels call it, it
is to use one (`turn`): matrices of a batch are for our own threads to share.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import operator
import os
import re
import sys
from string import Template
from types import ModuleType
from typing import Any, Final, NamedTuple

from weft.llvm import engine
from weft.runtime.threads import expand

# ---------------------------------------------------------------------------------------------------------------------
# The library
# ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def _scipy() -> Any:
    """SciPy's top module. Imported late: it takes 15 ms, and most programs multiply no large matrices."""
    import scipy

    return scipy


@functools.cache
def _extension(name: str) -> ModuleType:
    """`scipy.linalg.<name>` without its package.

    Importing it the usual way later gives the very same module: a Cython module initialises once. But its entry in
    `sys.modules` must go, or that import would not make it an attribute of `scipy.linalg`.
    """
    full = f"scipy.linalg.{name}"
    if full in sys.modules:
        return sys.modules[full]
    directory = os.path.join(os.path.dirname(_scipy().__file__), "linalg")
    spec = importlib.machinery.PathFinder.find_spec(full, [directory])
    if spec is None or spec.loader is None:
        raise ImportError(f"[blas] SciPy {_scipy().__version__} has no {full}; reinstall SciPy from a wheel.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if "scipy.linalg" not in sys.modules:
        sys.modules.pop(full, None)
    return module


@functools.cache
def routine(name: str) -> int:
    """The address of a Fortran routine (`sgemm`, `dgetrf`). Its arguments are pointers, its integers have 32 bits."""
    for module in ("cython_blas", "cython_lapack"):
        capsule = _extension(module).__pyx_capi__.get(name)
        if capsule is not None:
            return _address(name, capsule)
    raise ValueError(f"[blas] SciPy {_scipy().__version__} has no BLAS or LAPACK routine named {name!r}.")


def _address(name: str, capsule: object) -> int:
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)
    if re.search(rb"int64|long|ilp64", signature):
        raise ImportError(f"[blas] {name} of this SciPy takes 64-bit integers; install a SciPy wheel with 32-bit ones.")
    return get_pointer(capsule, signature)


@functools.cache
def _library() -> ctypes.CDLL:
    """SciPy's BLAS. Looking a symbol up in the extension also finds those of the library that it was linked with."""
    return ctypes.CDLL(_extension("cython_blas").__file__)


class _Kind(NamedTuple):
    """A BLAS that can be told how many threads to use, and the functions for it."""

    name: str
    get_threads: str
    set_threads: str
    config: str | None = None


_KINDS: Final = (
    _Kind("OpenBLAS", "scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads", "scipy_openblas_get_config"),
    _Kind("OpenBLAS", "openblas_get_num_threads", "openblas_set_num_threads", "openblas_get_config"),
    _Kind("MKL", "MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    _Kind("BLIS", "bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)


@functools.cache
def _kind() -> _Kind | None:
    return next((kind for kind in _KINDS if hasattr(_library(), kind.set_threads)), None)


def get_threads() -> int:
    """The number of threads that BLAS uses; 1 for a library that does not tell."""
    kind = _kind()
    return 1 if kind is None else int(_library()[kind.get_threads]())


def set_threads(n: int) -> int:
    """Let BLAS use up to `n` threads, as far as the library can; the previous number is returned."""
    n = operator.index(n)
    if n < 1:
        raise ValueError(f"[blas.set_threads] the number of threads must be 1 or more; got {n}.")
    previous, kind = get_threads(), _kind()
    if kind is not None and n != previous:
        _library()[kind.set_threads](ctypes.c_int64(n))  # a 32-bit argument is the lower half of its register
    return previous


def description() -> str:
    """One line for `weft doctor`: which library, for which processor, with how many threads."""
    kind, origin = _kind(), f"from SciPy {_scipy().__version__}"
    if kind is None:
        return f"a BLAS of unknown kind, {origin}"
    name = kind.name
    if kind.config is not None:
        config = _library()[kind.config]
        config.restype = ctypes.c_char_p
        name = config().decode().strip()
    return f"{name}, threads: {get_threads()}, {origin}"


# ---------------------------------------------------------------------------------------------------------------------
# One thread
# ---------------------------------------------------------------------------------------------------------------------

_TURN_STATE: Final = {"lock": 0, "users": 1, "before": 2, "get": 3, "set": 4}

# turn(state, 1) comes before calls of the library, turn(state, -1) after them. The first user tells it to use one
# thread, the last one to use as many as before.
_TURN: Final = r"""
define void @weft_blas_turn(ptr %state, i64 %by) {
entry:
  %lock = at %state.lock
  br label %wait
wait:
  %seen = cmpxchg ptr %lock, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %seen, 1
  br i1 %mine, label %count, label %wait
count:
  %old = get i64 %state.users
  %new = add i64 %old, %by
  set i64 %new, %state.users
  %both = or i64 %old, %new
  %within = icmp ugt i64 %both, 1
  br i1 %within, label %done, label %change
change:
  %first = icmp sgt i64 %by, 0
  %set = get ptr %state.set
  %obeys = icmp ne ptr %set, null
  br i1 %obeys, label %tell, label %done
tell:
  br i1 %first, label %begin, label %end
begin:
  %get = get ptr %state.get
  %many = call i32 %get()
  %kept = sext i32 %many to i64
  set i64 %kept, %state.before
  %several = icmp ne i32 %many, 1
  br i1 %several, label %alone, label %done
alone:
  call void %set(i32 1)
  br label %done
end:
  %before = get i64 %state.before
  %changed = icmp ne i64 %before, 1
  br i1 %changed, label %restore, label %done
restore:
  %again = trunc i64 %before to i32
  call void %set(i32 %again)
  br label %done
done:
  store atomic i64 0, ptr %lock release, align 8
  ret void
}
"""

_state: Final = (ctypes.c_int64 * len(_TURN_STATE))()


def _forget_turns() -> None:
    """A child of a fork has none of the threads that were in the library."""
    for name in ("lock", "users"):
        _state[_TURN_STATE[name]] = 0


os.register_at_fork(after_in_child=_forget_turns)


@functools.cache
def turn() -> tuple[int, int]:
    """(the address of a function `void turn(state, i64 by)`, the address of its state)."""
    kind = _kind()
    if kind is not None:
        for word, name in (("get", kind.get_threads), ("set", kind.set_threads)):
            _state[_TURN_STATE[word]] = ctypes.cast(_library()[name], ctypes.c_void_p).value or 0
    source = engine.Source("runtime:blas turn", "weft_blas_turn", lambda: expand(_TURN, {"state": _TURN_STATE}))
    return engine.load_for_good(source), ctypes.addressof(_state)


# ---------------------------------------------------------------------------------------------------------------------
# Matrix products as commands
# ---------------------------------------------------------------------------------------------------------------------

GEMM_ARGS: Final = (
    "batch", "m", "n", "k",
    "a", "b", "c",  # addresses
    "lda", "ldb", "ldc",  # elements from row to row of a matrix as it is stored
    "stride_a", "stride_b", "stride_c",  # bytes from matrix to matrix of the batch, of any sign
    "routine",  # the address of the routine of the same letter
    "trans_a", "trans_b",  # 0: as stored, 1: transposed, 2: transposed and conjugated
)  # fmt: skip
"""The argument words of `gemm`: row-major c (m × n) = op(a) (m × k) @ op(b) (k × n), for each matrix of a batch."""

SIZE_OVERFLOW: Final = 1
"""Status of a product with a size or leading dimension beyond 32 bits."""
BAD_LEADING_DIMENSION: Final = 2
"""Status of a product whose rows overlap."""
BAD_TRANSPOSE: Final = 3

_LETTERS: Final = {"s": ("float", 4), "d": ("double", 8), "c": ("float", 8), "z": ("double", 16)}

# BLAS stores by columns, where our c is its transpose: c' = op(b)' @ op(a)', and rows of ours are columns of its.
_GEMM: Final = Template(r"""
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

@letters = private constant [3 x i8] c"NTC"
@one = private constant [2 x $real] [$real 1.0, $real 0.0]
@zero = private constant [2 x $real] zeroinitializer

; The leading dimension that BLAS is to be told: that of a single row is whatever suits it. -1: rows overlap.
define internal i64 @leading(i64 %rows, i64 %columns, i64 %given) {
  %empty = icmp slt i64 %columns, 1
  %least = select i1 %empty, i64 1, i64 %columns
  %single = icmp slt i64 %rows, 2
  %leading = select i1 %single, i64 %least, i64 %given
  %apart = icmp sge i64 %leading, %least
  %result = select i1 %apart, i64 %leading, i64 -1
  ret i64 %result
}

define i64 @weft_gemm_$letter(ptr %block, ptr %args, ptr %scratch) {
entry:
  %m_int = alloca i32
  %n_int = alloca i32
  %k_int = alloca i32
  %lda_int = alloca i32
  %ldb_int = alloca i32
  %ldc_int = alloca i32
  %batch = get i64 %args.batch
  %m = get i64 %args.m
  %n = get i64 %args.n
  %k = get i64 %args.k
  %lda_given = get i64 %args.lda
  %ldb_given = get i64 %args.ldb
  %ldc_given = get i64 %args.ldc
  %trans_a = get i64 %args.trans_a
  %trans_b = get i64 %args.trans_b
  %a0 = get ptr %args.a
  %b0 = get ptr %args.b
  %c0 = get ptr %args.c
  %stride_a = get i64 %args.stride_a
  %stride_b = get i64 %args.stride_b
  %stride_c = get i64 %args.stride_c
  %routine = get ptr %args.routine
  %no_batch = icmp slt i64 %batch, 1
  %no_rows = icmp slt i64 %m, 1
  %no_columns = icmp slt i64 %n, 1
  %nothing = or i1 %no_rows, %no_columns
  %empty = or i1 %no_batch, %nothing
  br i1 %empty, label %done, label %check_trans
done:
  ret i64 0

check_trans:
  %odd_a = icmp ugt i64 %trans_a, 2
  %odd_b = icmp ugt i64 %trans_b, 2
  %odd = or i1 %odd_a, %odd_b
  br i1 %odd, label %bad_transpose, label %check_leading
bad_transpose:
  ret i64 $bad_transpose

check_leading:
  %plain_a = icmp eq i64 %trans_a, 0
  %rows_a = select i1 %plain_a, i64 %m, i64 %k
  %columns_a = select i1 %plain_a, i64 %k, i64 %m
  %lda = call i64 @leading(i64 %rows_a, i64 %columns_a, i64 %lda_given)
  %plain_b = icmp eq i64 %trans_b, 0
  %rows_b = select i1 %plain_b, i64 %k, i64 %n
  %columns_b = select i1 %plain_b, i64 %n, i64 %k
  %ldb = call i64 @leading(i64 %rows_b, i64 %columns_b, i64 %ldb_given)
  %ldc = call i64 @leading(i64 %m, i64 %n, i64 %ldc_given)
  %some = or i64 %lda, %ldb
  %any = or i64 %some, %ldc
  %overlap = icmp slt i64 %any, 0
  br i1 %overlap, label %bad_leading, label %check_sizes
bad_leading:
  ret i64 $bad_leading_dimension

check_sizes:                                   ; none is negative, so a bit above the lower 31 is an overflow
  %depth_negative = icmp slt i64 %k, 0
  %depth = select i1 %depth_negative, i64 0, i64 %k
  %bits0 = or i64 %any, %m
  %bits1 = or i64 %bits0, %n
  %bits2 = or i64 %bits1, %depth
  %large = icmp ugt i64 %bits2, 2147483647
  br i1 %large, label %overflow, label %choose
overflow:
  ret i64 $size_overflow

choose:
  %no_depth = icmp eq i64 %depth, 0
  br i1 %no_depth, label %clear, label %prepare

clear:                                         ; a sum of nothing: zeros, row by row
  %i = phi i64 [ 0, %choose ], [ %i1, %cleared ]
  %clear_offset = mul i64 %i, %stride_c
  %clear_c = getelementptr i8, ptr %c0, i64 %clear_offset
  br label %clear_row
clear_row:
  %row = phi i64 [ 0, %clear ], [ %row1, %clear_row ]
  %row_elements = mul i64 %row, %ldc
  %row_offset = mul i64 %row_elements, $itemsize
  %row_c = getelementptr i8, ptr %clear_c, i64 %row_offset
  %row_bytes = mul i64 %n, $itemsize
  call void @llvm.memset.p0.i64(ptr %row_c, i8 0, i64 %row_bytes, i1 false)
  %row1 = add i64 %row, 1
  %more_rows = icmp slt i64 %row1, %m
  br i1 %more_rows, label %clear_row, label %cleared
cleared:
  %i1 = add i64 %i, 1
  %more_clears = icmp slt i64 %i1, %batch
  br i1 %more_clears, label %clear, label %done

prepare:
  %m32 = trunc i64 %m to i32
  store i32 %m32, ptr %m_int
  %n32 = trunc i64 %n to i32
  store i32 %n32, ptr %n_int
  %k32 = trunc i64 %k to i32
  store i32 %k32, ptr %k_int
  %lda32 = trunc i64 %lda to i32
  store i32 %lda32, ptr %lda_int
  %ldb32 = trunc i64 %ldb to i32
  store i32 %ldb32, ptr %ldb_int
  %ldc32 = trunc i64 %ldc to i32
  store i32 %ldc32, ptr %ldc_int
  %letter_a = getelementptr i8, ptr @letters, i64 %trans_a
  %letter_b = getelementptr i8, ptr @letters, i64 %trans_b
  br label %multiply
multiply:                                      ; the last two arguments: lengths of the strings, for some Fortrans
  %j = phi i64 [ 0, %prepare ], [ %j1, %multiply ]
  %offset_a = mul i64 %j, %stride_a
  %a = getelementptr i8, ptr %a0, i64 %offset_a
  %offset_b = mul i64 %j, %stride_b
  %b = getelementptr i8, ptr %b0, i64 %offset_b
  %offset_c = mul i64 %j, %stride_c
  %c = getelementptr i8, ptr %c0, i64 %offset_c
  call void %routine(ptr %letter_b, ptr %letter_a, ptr %n_int, ptr %m_int, ptr %k_int, ptr @one,
                     ptr %b, ptr %ldb_int, ptr %a, ptr %lda_int, ptr @zero, ptr %c, ptr %ldc_int, i64 1, i64 1)
  %j1 = add i64 %j, 1
  %more = icmp slt i64 %j1, %batch
  br i1 %more, label %multiply, label %done
}
""")


def gemm(letter: str) -> engine.Source:
    """The CALL that multiplies matrices of type s, d, c or z (BLAS's letters); its arguments are `GEMM_ARGS`."""
    return engine.Source(f"runtime:gemm:{letter}", f"weft_gemm_{letter}", lambda: _gemm_code(letter))


def _gemm_code(letter: str) -> str:
    real, itemsize = _LETTERS[letter]
    text = _GEMM.substitute(
        letter=letter,
        real=real,
        itemsize=itemsize,
        size_overflow=SIZE_OVERFLOW,
        bad_leading_dimension=BAD_LEADING_DIMENSION,
        bad_transpose=BAD_TRANSPOSE,
    )
    return expand(text, {"args": {name: word for word, name in enumerate(GEMM_ARGS)}})
