"""BLAS and LAPACK: the library inside SciPy as addresses for native code.

SciPy publishes its Fortran routines through two extension modules for Cython. They are loaded alone: that takes 4 ms,
all of `scipy.linalg` 0.4 s. Targets come here for addresses.

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
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weft.lazy import lazy
from weft.llvm import engine

if TYPE_CHECKING:
    from weft.runtime import blas_code
else:
    blas_code = lazy("weft.runtime.blas_code")  # written when its object is not in the cache

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

TURN_STATE: Final = {"lock": 0, "users": 1, "before": 2, "get": 3, "set": 4}

_state: Final = (ctypes.c_int64 * len(TURN_STATE))()


def _forget_turns() -> None:
    """A child of a fork has none of the threads that were in the library."""
    for name in ("lock", "users"):
        _state[TURN_STATE[name]] = 0


os.register_at_fork(after_in_child=_forget_turns)


@functools.cache
def turn() -> tuple[int, int]:
    """(the address of a function `void turn(state, i64 by)`, the address of its state): turn(state, 1) comes before
    calls of the library, turn(state, -1) after them."""
    kind = _kind()
    if kind is not None:
        for word, name in (("get", kind.get_threads), ("set", kind.set_threads)):
            _state[TURN_STATE[word]] = ctypes.cast(_library()[name], ctypes.c_void_p).value or 0
    source = engine.Source("runtime:blas turn", "weft_blas_turn", lambda: blas_code.native_code())
    return engine.load_for_good(source), ctypes.addressof(_state)
