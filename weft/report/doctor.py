"""`weft doctor`: the installation in a dozen lines, and a proof that it computes.

Each line is found out by itself: whatever is broken, the others are still printed, and the broken one says why.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from weft.version import __version__

# Features worth naming, best first, with the width in bits of the vectors that they bring.
FEATURES = {
    "avx512f": 512, "avx512bf16": 512, "avx512fp16": 512, "avx2": 256, "avx": 256, "fma": 256, "f16c": 256,
    "sse4.2": 128, "sve2": 128, "sve": 128, "neon": 128, "bf16": 128, "fullfp16": 128,
}  # fmt: skip


def print_report(console: Console | None = None) -> bool:
    """Print one line per fact; whether all of them could be found out and the self test passed."""
    console = console or Console(highlight=False)
    healthy = True
    for label, find_out in LINES.items():
        try:
            text, style = find_out(), "bold green" if find_out is self_test else ""
        except Exception as error:  # a broken part is a finding
            text, style, healthy = f"FAILED: {type(error).__name__}: {error}", "bold red", False
        # Soft wrapping leaves the lines whole in a file or a pipe, where there is no edge to wrap at.
        console.print(Text.assemble((f"{label:<13}", "cyan"), (text, style)), soft_wrap=True)
    return healthy


def part(name: str) -> Any:
    """A module of Weft, imported only now: a doctor who dies of the patient's illness is of no use."""
    return importlib.import_module(f"weft.{name}")


def versions() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"weft {__version__}, {python}, {platform.platform()}"


def libraries() -> str:
    names = ("llvmlite", "numpy", "scipy", "ml_dtypes")
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return f"{found}, LLVM {'.'.join(map(str, llvm().llvm_version_info))}"


def llvm() -> Any:
    return part("llvm.binding").llvm_binding()


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    chosen = part("config").config.cpu
    target = "" if chosen == "native" else f", compiling for {chosen}"
    return f"{names[0] if names else platform.machine()} (LLVM calls it {llvm().get_host_cpu_name()}){target}"


def vectors() -> str:
    host = llvm().get_host_cpu_features()
    present = [name for name in FEATURES if host.get(name)]
    width = max((FEATURES[name] for name in present), default=0)
    return f"{width} bits ({', '.join(present)})" if present else "none that Weft knows"


def threads() -> str:
    return f"{part('config').config.threads} of {os.cpu_count()} cores"


def blas() -> str:
    return str(part("runtime.blas").description())


def cache() -> str:
    config = part("config").config
    if not config.cache_dir:
        return "off"
    entries, size = part("llvm.cache").ObjectCache(config.cache_dir, config.cache_limit).usage()
    kernels = "1 kernel" if entries == 1 else f"{entries} kernels"
    return f"{config.cache_dir} ({kernels}, {mebibytes(size)} of {mebibytes(config.cache_limit)})"


def memory() -> str:
    return f"arrays may take {mebibytes(part('runtime.buffer').get_memory_limit())}"


def mebibytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def backend() -> str:
    config = part("config").config
    return f"{config.backend}, LLVM level {config.llvm_level}"


def self_test() -> str:
    """Compile and run a small program; its result is exact, so it is compared to the bit."""
    start = time.perf_counter()
    mx = part("core")
    imported = time.perf_counter()
    program = mx.compile(mx.value_and_grad(lambda x: mx.sum(mx.maximum(x * 0.5, 2.0) + x)))
    values = np.arange(-512, 512, dtype=np.float32)
    total, slopes = program(mx.array(values))
    mx.eval(total, slopes)
    done = time.perf_counter()
    half = values * np.float32(0.5)
    check("sum", np.array(total), np.array(np.sum(np.maximum(half, np.float32(2.0)) + values)))
    # At the kink of `maximum` any slope between the two is right, and libraries differ.
    smooth = half != 2.0
    check("gradient", np.array(slopes)[smooth], np.where(half > 2.0, np.float32(1.5), np.float32(1.0))[smooth])
    milliseconds = 1e3 * (imported - start), 1e3 * (done - imported)
    return "OK (imported in {:.0f} ms, compiled and ran a program and its gradient in {:.0f} ms)".format(*milliseconds)


def check(what: str, got: np.ndarray, wanted: np.ndarray) -> None:
    if not np.array_equal(got, wanted):
        raise ArithmeticError(f"the {what} of the test program is {got}, and should be {wanted}")


LINES: dict[str, Callable[[], str]] = {
    "versions": versions,
    "libraries": libraries,
    "processor": processor,
    "vectors": vectors,
    "threads": threads,
    "BLAS": blas,
    "cache": cache,
    "memory": memory,
    "backend": backend,
    "self test": self_test,
}
