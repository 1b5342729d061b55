"""llvmlite: loaded at the first use, checked, and made ready for this machine's code. Every part of Weft that talks to
LLVM gets it here.

Loading takes 30 ms, and `import weft` has no need of it. Other libraries (Numba) may use llvmlite in the same process,
before us or after: what is initialised here may be initialised any number of times, and no option of LLVM is set.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

OLDEST: Final = (0, 45)
"""The first llvmlite with LLVM 20, whose instructions and text kernels need."""


@functools.cache
def llvm_binding() -> Any:
    """llvmlite's binding. ImportError where llvmlite is too old."""
    import llvmlite  # late: see the top

    numbers = re.match(r"(\d+)\.(\d+)", llvmlite.__version__)  # "0+unknown" is a build from a bare source tree
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"[weft] needs llvmlite {oldest} or later, and this is {llvmlite.__version__}; "
            f"`pip install 'llvmlite>={oldest}'` brings one (with Numba beside it: `pip install 'numba>=0.62'`)."
        )
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()  # for inline assembly, without which LLVM ends the process when it meets some
    return binding


def llvm_version() -> tuple[int, ...]:
    """The version of LLVM inside llvmlite."""
    return tuple(llvm_binding().llvm_version_info)
