"""Whose code it is: the user's own, which compile follows; or Python's, an installed package's or ours, which stays as
it is, but for what gives something else at each call (clocks, random numbers, files, the environment)."""

from __future__ import annotations

import functools
import os
import site
import sys
import types
from typing import Any

from weft.transforms.state import slots_of

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/"

_ALL: frozenset[str] = frozenset()
_CHANGING = {
    "random": _ALL,
    "time": _ALL,
    "secrets": _ALL,
    "uuid": _ALL,
    "numpy.random": _ALL,
    "posix": _ALL,
    "glob": _ALL,
    "tempfile": _ALL,
    "subprocess": _ALL,
    "io": frozenset({"open", "FileIO", "open_code"}),
    "inspect": frozenset({"stack", "currentframe"}),
    "datetime": frozenset({"datetime", "date"}),
    "pathlib": frozenset({"Path", "PosixPath", "WindowsPath"}),
    "gc": _ALL,
    "locale": _ALL,
    "resource": _ALL,
    "tracemalloc": _ALL,
    "unittest.mock": _ALL,
    "decimal": frozenset({"Decimal", "getcontext", "localcontext"}),
    "shutil": frozenset({"disk_usage", "get_terminal_size", "which"}),
    "os": frozenset({
        "environ", "environb", "getenv", "getenvb", "getcwd", "getpid", "urandom", "listdir", "scandir", "walk", "stat",
        "open", "read", "times", "cpu_count", "getloadavg",
    }),
    "posixpath": frozenset({"exists", "lexists", "isfile", "isdir", "getsize", "getmtime", "abspath", "expanduser"}),
    "_thread": _ALL,
    "threading": frozenset({"get_ident", "current_thread", "active_count", "local"}),
    "numpy": frozenset({
        "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "geterr", "geterrcall", "getbufsize", "get_printoptions",
        "array2string", "array_repr", "array_str",
    }),
    "weft.core": frozenset({"load", "get_active_memory", "get_peak_memory", "get_cache_memory"}),
}  # fmt: skip
"""By module: the names in it that give something else at each call; all of them where none is named."""
_FIXED = {
    "sys": frozenset({
        "abiflags", "api_version", "base_exec_prefix", "base_prefix", "builtin_module_names", "byteorder", "copyright",
        "exec_prefix", "executable", "exit", "flags", "float_info", "float_repr_style", "getdefaultencoding",
        "getfilesystemencoding", "getsizeof", "hash_info", "hexversion", "implementation", "int_info", "intern",
        "maxsize", "maxunicode", "platform", "platlibdir", "prefix", "pycache_prefix", "stderr", "stdlib_module_names",
        "stdout", "thread_info", "version", "version_info",
    }),
}  # fmt: skip
"""By module: the only names in it that do not."""
_OUR_MODULE = "weft.core"
_CHANGING_BUILTINS = frozenset({"globals", "eval", "exec", "__import__", "open", "input", "id"})
"""What sees more than its arguments, or something else at each call."""


def changes(module: str | None, name: str) -> bool:
    """Whether this attribute of a module (or what was imported from there) gives something else at each call."""
    if module is None:
        return False
    fixed = _FIXED.get(module)
    if fixed is not None:
        return name not in fixed
    names = _CHANGING.get(module)
    if names is None:
        if not module.startswith(_OUR_MODULE):
            return False
        names = _CHANGING[_OUR_MODULE]
    return names is _ALL or name in names


def all_changes(module: str) -> bool:
    """Whether everything in a module does."""
    return _CHANGING.get(module) is _ALL


def builtin_changes(name: str) -> bool:
    """Whether a function of Python's does, or sees what cannot be followed."""
    return name in _CHANGING_BUILTINS


def is_users_class(cls: type) -> bool:
    """Whether a class is the user's; one of no module that can be found was made on the fly."""
    module = sys.modules.get(cls.__module__)
    return module is None or is_users(module)


def is_users(module: types.ModuleType) -> bool:
    """Whether a module is neither Python's, nor an installed package's, nor ours."""
    if module.__name__.partition(".")[0] == "weft" or module.__name__ in sys.builtin_module_names:
        return False
    file = vars(module).get("__file__")  # without asking the module's own `__getattr__`
    if file is None:
        return module.__name__ == "__main__" or vars(module).get("__spec__") is None
    return not is_installed(file)


def is_written_in_python(cls: type) -> bool:
    """Whether a class is an installed package's, and all that its objects hold stands in attributes: neither the class
    nor a base of it is written in C, which keeps what it likes where attributes do not show it."""
    file = vars(sys.modules.get(cls.__module__, types)).get("__file__")
    words = len(slots_of(cls)) + (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return (
        file is not None
        and file.startswith(_packages())
        and not cls.__itemsize__
        and cls.__basicsize__ == object.__basicsize__ + words * tuple.__itemsize__
    )


@functools.cache
def _packages() -> tuple[str, ...]:
    """Where installed packages are. (`sysconfig` says the same, and takes 3 ms to load.)"""
    return tuple({f"{place}/" for place in site.getsitepackages()})


@functools.cache
def _installed() -> tuple[str, ...]:
    """Where Python's own modules and installed packages are."""
    return (*_packages(), f"{os.path.dirname(os.__file__)}/", "<frozen")


@functools.lru_cache(maxsize=4096)
def is_installed(filename: str) -> bool:
    """Code of Python or of an installed package: it does not change under us."""
    return filename.startswith(_installed())


@functools.lru_cache(maxsize=4096)
def is_ours(filename: str) -> bool:
    """Code of Weft itself."""
    return filename.startswith(_OURS)


def is_numpy(module: str | None) -> bool:
    """Whether a module is NumPy's."""
    return module is not None and module.partition(".")[0] == "numpy"


def own_attribute(value: Any, name: str) -> Any:
    """An attribute that is there without asking the user's `__getattr__`; None if there is none."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None
