"""What of MLX there is in Weft, name by name: docs/parity.md, written by `python -m weft.report.parity` where MLX is
installed.

A name is *compared* if a test in tests/parity mentions it: those run both libraries on the same operands. What is meant
to differ stands in `DIFFERENT`, with the reason; docs/from_mlx.md has the finer points.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "parity.md"
TESTS = ROOT / "tests"

GROUPS = (
    ("Functions and classes of `mlx.core`", "core", ""),
    ("Methods of `array`", "core", "array"),
    ("Methods of `array.at`", "core", "ArrayAt"),
    ("`Dtype`", "core", "Dtype"),
    ("`Device`", "core", "Device"),
    ("`mlx.core.random`", "core.random", ""),
    ("`mlx.core.linalg`", "core.linalg", ""),
    ("`mlx.core.fft`", "core.fft", ""),
    ("`mlx.core.fast`", "core.fast", ""),
    ("`mlx.core.metal`", "core.metal", ""),
    ("`mlx.core.cuda`", "core.cuda", ""),
    ("`mlx.core.distributed`", "core.distributed", ""),
    ("Layers and functions of `mlx.nn`", "nn", ""),
    ("`mlx.nn.losses`", "nn.losses", ""),
    ("`mlx.nn.init`", "nn.init", ""),
    ("`mlx.optimizers`", "optimizers", ""),
    ("`mlx.utils`", "utils", ""),
)
"""(title, module below mlx, class in it or nothing)."""

DIFFERENT: dict[str, str] = {
    "core.fast.precompiled_cuda_kernel": "an error, as in MLX without CUDA: machine code for GPUs is not run",
    "core.compile": "retraces when a captured value changes; the same bits as without it",
    "core.hadamard_transform": "complex arrays stay complex; sizes without a matrix are errors",
    "core.block_masked_mm": "all floats, and blocks of any size",
    "core.segmented_mm": "has derivatives and batching; segments are moved into range",
    "core.cumsum": "float32 is carried in float64",
    "core.sum": "one specified order; integers of 0-d arrays are widened too",
    "core.prod": "one specified order; integers of 0-d arrays are widened too",
    "core.softmax": "integers become floats over any axes",
    "core.sign": "NaN of NaN",
    "core.full": "has the dtype that is asked for, if that of the value is wider too",
    "core.take": "indices out of range are moved to the nearest end",
    "core.gather_mm": "indices out of range are moved to the nearest end",
    "core.set_wired_limit": "remembered; there is no wired memory",
    "core.linalg.cholesky": "an error for matrices that are not positive definite",
    "core.linalg.eig": "complex128 for float64",
    "core.distributed.init": "one process",
    "core.array.__array__": "read-only views",
    "core.array.__setitem__": "keeps the dtype; indices out of range are errors, or moved to the nearest end",
    "core.array.__getitem__": "takes masks; indices out of range are errors, or moved to the nearest end",
}
"""What differs on purpose, by its full name below `mlx`, and why."""

HEAD = """\
# MLX's names in Weft

Written by `python -m weft.report.parity` beside MLX {version}; a test fails when it is out of date. *Compared*: a test
in `tests/parity` runs both libraries on the same operands; the others are tested against references of their own. What
differs in many places (dtypes, orders of sums, errors) stands in [from_mlx.md](from_mlx.md).
"""


def version() -> str:
    """The version of MLX that is installed; ImportError if none is."""
    return str(importlib.import_module("mlx.core").__version__)


def public(owner: Any, module: str) -> list[str]:
    """The names of its own that users of a module or class meet; of a class its special methods too."""
    if isinstance(owner, type):
        plain = {*object.__dict__, "__module__", "__bytes__", "__buffer__", "__release_buffer__"}  # Python's own
        return [name for name in dir(owner) if name[0] != "_" or (name.endswith("__") and name not in plain)]
    return [name for name in dir(owner) if name[0] != "_" and _is_its_own(getattr(owner, name), module)]


def _is_its_own(value: Any, module: str) -> bool:
    """Whether a value is defined in this part of MLX: modules show what they import as well."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return not isinstance(home, str) or home.startswith(f"mlx.{module.partition('.')[0]}")


@cache
def tested() -> frozenset[str]:
    """Words of the tests that compare: names after a dot, and words in quotation marks."""
    text = "\n".join(path.read_text() for path in sorted((TESTS / "parity").glob("test_*.py")))
    return frozenset(re.findall(r"\.(\w+)", text)) | frozenset(re.findall(r"[\"'](\w+)[\"']", text))


OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^",
    "lshift": "<<", "rshift": ">>", "neg": "-", "invert": "~", "abs": "abs", "getitem": "[", "setitem": "[",
}  # fmt: skip
"""Special methods that tests call by their sign, and which are therefore in many of them."""


def is_compared(name: str) -> bool:
    word = name.strip("_")
    reflected = word[1:] if word[:1] in "ri" and name.startswith("__") else word
    return name in tested() or (name.startswith("__") and (word in OPERATORS or reflected in OPERATORS))


def rows(module: str, owner: str) -> Iterator[tuple[str, bool, bool, str]]:
    """(name, whether Weft has it, whether it is compared, what differs) of each name in a module or class of MLX."""
    theirs, ours = (_find(library, module, owner) for library in ("mlx", "weft"))
    path = f"{module}.{owner}" if owner else module
    for name in public(theirs, module):
        yield name, _has(ours, owner, name), is_compared(name), DIFFERENT.get(f"{path}.{name}", "")


def _find(library: str, module: str, owner: str) -> Any:
    found: Any = importlib.import_module(f"{library}.{module.partition('.')[0]}")
    for part in module.split(".")[1:]:
        found = getattr(found, part, None)
    return getattr(found, owner) if owner else found


def _has(ours: Any, owner: str, name: str) -> bool:
    return hasattr(ours, name) or (owner == "array" and hasattr(ours, "__slots__") and name in ours.__slots__)


def page() -> str:
    """The whole page."""
    sections, totals = [], [0, 0, 0]
    for title, module, owner in GROUPS:
        found = list(rows(module, owner))
        totals = [n + more for n, more in zip(totals, _counts(found), strict=True)]
        sections.append(_section(title, found))
    counts = f"{totals[0]} names, of which {totals[1]} are in Weft and {totals[2]} are compared with MLX.\n"
    return "\n".join([HEAD.format(version=version()), counts, *sections])


def _counts(found: list[tuple[str, bool, bool, str]]) -> tuple[int, int, int]:
    return len(found), sum(there for _, there, _, _ in found), sum(there and seen for _, there, seen, _ in found)


def _section(title: str, found: list[tuple[str, bool, bool, str]]) -> str:
    count, there, compared = _counts(found)
    lines = [f"## {title}\n", f"{there} of {count}; {compared} compared.\n", "| name | Weft | compared | differs |"]
    lines.append("|---|---|---|---|")
    for name, present, seen, why in found:
        lines.append(f"| `{name}` | {'yes' if present else '**no**'} | {'yes' if present and seen else ''} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
