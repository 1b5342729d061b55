"""What LLVM says of this machine, remembered on disk: a process whose kernels are all in the cache needs no LLVM.

Loading llvmlite takes 50 ms and 30 MB, and most processes would load it only to ask for the name of the CPU. So the
answers are kept in the object cache, under the processor as the kernel of the system describes it and the file that
LLVM is in; another CPU, or another llvmlite, finds none and asks.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib.machinery import PathFinder
from typing import Any, Final, NamedTuple

from weft import room
from weft.config import config
from weft.llvm.binding import llvm_binding
from weft.llvm.cache import ObjectCache

_IDENTIFYING: Final = frozenset({
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
})  # fmt: skip
"""What the description of a processor says on x86-64 and AArch64 that two processors with the same instructions share;
clock rates and the like are left out."""


_LIBRARY_BYTES: Final = 256 << 20
"""What loading LLVM may take."""


class Host(NamedTuple):
    """The machine that LLVM makes code for. `features` is LLVM's text: "+avx2,-sse4a"."""

    llvmlite: str
    llvm: str
    triple: str
    cpu: str
    features: str

    def has(self, feature: str) -> bool:
        """Whether the processor has a feature of this name."""
        return f"+{feature}" in self.features.split(",")


@functools.cache
def host() -> Host:
    """This machine: as it is remembered, or as LLVM sees it."""
    names = (_library(), _processor())
    if not config.cache_dir or None in names:
        return _asked()
    store = ObjectCache(config.cache_dir, config.cache_limit)
    key = f"host\n{names[0]}\n{names[1]}"
    found = _read(store.get(key))
    if found is None:
        found = _asked()
        store.put(key, "\n".join(found).encode())
    return found


def llvm() -> Any:
    """llvmlite's binding, if there is room to load it."""
    if "llvmlite.binding" not in sys.modules:
        room.ensure(_LIBRARY_BYTES, "loading LLVM")
    return llvm_binding()


def _asked() -> Host:
    binding = llvm()
    return Host(
        sys.modules["llvmlite"].__version__,
        ".".join(map(str, binding.llvm_version_info)),
        binding.get_default_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
    )


def _read(contents: bytes | None) -> Host | None:
    try:
        fields = (contents or b"").decode().split("\n")
    except UnicodeError:
        return None
    return Host(*fields) if len(fields) == len(Host._fields) else None


def _library() -> str | None:
    """The file that LLVM is in, with its size and time; None if it is not where it should be. Nothing is imported."""
    spec = PathFinder.find_spec("llvmlite")
    for place in (spec and spec.submodule_search_locations) or ():
        path = os.path.join(place, "binding", "libllvmlite.so")
        try:
            status = os.stat(path)
        except OSError:
            continue
        return f"{path} {status.st_size} {status.st_mtime_ns}"
    return None


def _processor() -> str | None:
    """The first processor as the system describes it; None where there is no such description."""
    try:
        with open("/proc/cpuinfo") as file:
            text = file.read(1 << 14)  # a machine with many processors has a long one
    except OSError:
        return None
    found = []
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _IDENTIFYING:
            found.append(f"{name.strip()}={value.strip()}")
    return "\n".join(found) or None


def cpu_name() -> str:
    """The processor's name as the system gives it; "cpu" if it gives none."""
    lines = (_processor() or "").splitlines()
    return next((line.partition("=")[2] for line in lines if line.startswith("model name=")), "cpu")
