"""Settings: the one reader of environment variables, and the one object that the rest of Weft asks.

`config` is filled once, on import, from the variables listed in docs/environment.md; after that it is an ordinary
mutable object, so a test or a notebook may say `config.llvm_level = 0`. A variable that is unset or empty means the
default (`WEFT_CACHE_DIR` alone gives the empty string a meaning). Anything may import this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Literal, TypeVar, cast

from weft.errors import ConfigError
from weft.records import dataclass

Backend = Literal["native", "reference"]

BACKENDS: Final = ("native", "reference")
DUMPS: Final = ("graph", "kernels", "llvm", "asm", "plan")
CPUS: Final = ("native", "x86-64-v2", "x86-64-v3", "x86-64-v4")
DEVICES: Final = ("cpu", "gpu")
LLVM_LEVELS: Final = ("0", "1", "2", "3")

_SIZE_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_ON, _OFF = ("1", "true", "on", "yes"), ("0", "false", "off", "no")

T = TypeVar("T")


@dataclass(slots=True)
class Config:
    """Every setting of a process; the comment names the variable that it is read from."""

    threads: int  # WEFT_THREADS: threads that a program may use, the calling one included
    backend: Backend  # WEFT_BACKEND: generated code, or the NumPy reference of each primitive
    dump: frozenset[str]  # WEFT_DUMP: what to print to stderr while compiling
    check: bool  # WEFT_CHECK: verify graphs and plans after every pass
    cache_dir: str  # WEFT_CACHE_DIR: where compiled kernels are kept; "" keeps none
    cache_limit: int  # WEFT_CACHE_LIMIT: bytes that the kernels on disk may take
    llvm_level: int  # WEFT_LLVM_LEVEL: 0 (compile fast) to 3 (optimise all)
    cpu: str  # WEFT_CPU: the instruction set to compile for
    memory_limit: int | None  # WEFT_MEMORY_LIMIT: bytes of array memory; None: as much as the machine allows
    compare: bool = False  # WEFT_CHECK=1: also run every program operation by operation and on the reference
    disable_compile: bool = False  # WEFT_DISABLE_COMPILE: compiled functions run plain
    mlx_disable_compile: bool = (
        False  # MLX_DISABLE_COMPILE: the same for programs written for MLX (weft/frontends/mlx.py)
    )
    device: str = "cpu"  # WEFT_DEVICE: what computes unless a program says otherwise
    programs: int = 4096  # WEFT_PROGRAMS: programs, and kernels, that are kept for the next time


def from_environment(environ: Mapping[str, str]) -> Config:
    """The settings that `environ` asks for. ConfigError names the first variable that asks for the impossible."""

    def read(name: str, allowed: str, parse: Callable[[str], T], default: Callable[[], T]) -> T:
        text = environ.get(name, "").strip()
        if not text:
            return default()
        try:
            return parse(text)
        except ValueError:
            raise ConfigError(f"{name} is {text!r}; allowed: {allowed}.") from None

    sizes = "a number of bytes, also with a unit K, M, G or T (of 1024), such as 512M"
    check = read("WEFT_CHECK", "1 or 0, or plans (graphs and plans, not values)", _check, lambda: "off")
    return Config(
        threads=read("WEFT_THREADS", "a whole number from 1 on", _count, usable_cpus),
        backend=cast(Backend, read("WEFT_BACKEND", _words(BACKENDS), _one_of(BACKENDS), lambda: "native")),
        dump=read("WEFT_DUMP", f"a comma-separated list of {_words(DUMPS)}", _some_of(DUMPS), frozenset),
        check=check != "off",
        cache_dir=_cache_dir(environ),
        cache_limit=read("WEFT_CACHE_LIMIT", sizes, _size, lambda: 512 << 20),
        llvm_level=int(read("WEFT_LLVM_LEVEL", _words(LLVM_LEVELS), _one_of(LLVM_LEVELS), lambda: "2")),
        cpu=read("WEFT_CPU", _words(CPUS), _one_of(CPUS), lambda: "native"),
        device=read("WEFT_DEVICE", _words(DEVICES), _one_of(DEVICES), lambda: "cpu"),
        programs=read("WEFT_PROGRAMS", "a whole number from 1 on", _count, lambda: 4096),
        disable_compile=read("WEFT_DISABLE_COMPILE", "1 or 0", _switch, lambda: False),
        mlx_disable_compile="MLX_DISABLE_COMPILE" in environ,  # MLX asks only whether it is there
        memory_limit=read("WEFT_MEMORY_LIMIT", sizes, _size, lambda: None),
        compare=check == "all",
    )


# ---- values ----


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    return lambda text: names[names.index(text)]  # ValueError when absent


def _some_of(names: tuple[str, ...]) -> Callable[[str], frozenset[str]]:
    pick = _one_of(names)
    return lambda text: frozenset(pick(word.strip()) for word in text.split(",") if word.strip())


def _check(text: str) -> str:
    word = _one_of((*_ON, *_OFF, "plans"))(text.lower())
    return word if word == "plans" else "all" if word in _ON else "off"


def _switch(text: str) -> bool:
    return _one_of(_ON + _OFF)(text.lower()) in _ON


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]*", text):  # `int` would also take signs, underscores and other scripts' digits
        raise ValueError(text)
    return int(text)


def _size(text: str) -> int:
    parts = re.fullmatch(r"([0-9]+) ?([KMGT]?)((?<=[KMGT])I)?B?", text.upper())  # 512M, 512MB and 512MiB are the same
    if parts is None:
        raise ValueError(text)
    return int(parts[1]) << _SIZE_UNITS[parts[2]]


def _cache_dir(environ: Mapping[str, str]) -> str:
    chosen = environ.get("WEFT_CACHE_DIR")
    if chosen is not None:
        # Made absolute now: the process may change its directory before the first kernel is stored.
        return os.path.abspath(os.path.expanduser(chosen)) if chosen else ""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: relative paths are to be ignored
        base = os.path.expanduser("~/.cache")
    return os.path.join(base, "weft") if os.path.isabs(base) else ""  # an account without a home keeps nothing


# ---- processors ----


def usable_cpus() -> int:
    """How many processors this process may keep busy: its affinity mask, cut down to its control groups' quotas."""
    cpus = len(os.sched_getaffinity(0))
    return max(1, min([cpus, *cgroup_quotas("/")]))


def cgroup_quotas(root: str) -> Iterator[int]:
    """The CPU quotas, rounded up to whole processors, of this process's control groups and all their parents."""
    try:
        groups = _read(root, "proc/self/cgroup").splitlines()
    except OSError:
        return
    mounts = os.path.join(root, "sys/fs/cgroup")
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            yield from _quotas(mounts, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for name in dict.fromkeys(("cpu", controllers)):  # the directory has one of these two names
                yield from _quotas(os.path.join(mounts, name), path, _quota_v1)


def _quotas(mount: str, path: str, quota: Callable[[str], tuple[int, int]]) -> Iterator[int]:
    names = path.strip("/").split("/")
    for depth in range(len(names), -1, -1):
        # No such file (a container sees only part of the tree), or the word "max": no quota here.
        with suppress(OSError, ValueError):
            used, period = quota(os.path.join(mount, *names[:depth]))
            if used > 0 and period > 0:
                yield -(-used // period)


def _quota_v2(directory: str) -> tuple[int, int]:
    used, period = _read(directory, "cpu.max").split()
    return int(used), int(period)


def _quota_v1(directory: str) -> tuple[int, int]:
    return int(_read(directory, "cpu.cfs_quota_us")), int(_read(directory, "cpu.cfs_period_us"))


def _read(directory: str, name: str) -> str:
    with open(os.path.join(directory, name)) as file:
        return file.read()


def lead_children(folder: str) -> None:
    """Make this the first folder from which the Pythons that this process starts import."""
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *known])


config: Final = from_environment(os.environ)
