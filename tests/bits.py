"""The bits of what Weft computes, for comparing one installation with others: `python -m tests.bits OTHER...` says
where their results differ from those of the interpreter that runs it. Another one is an interpreter (with another
llvmlite, say, or one for another processor under emulation), or a setting of this one (`WEFT_CPU=x86-64-v2`). With
`--sample=8` before them, every eighth result or so is compared.

Every sample of every primitive is computed in every dtype, elementwise ones also with all pairs of special values; so
are loops and branches, and the programs whose kernels have several operations. Linear algebra is LAPACK's: its bits are
compared where both have the same LAPACK, and everywhere results must be as good as the operations promise.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from typing import NamedTuple

import numpy as np

from tests import contract, test_contract_multiple, test_levels
from tests.contract import is_nan, native, natives, outcome, place, references, values_of
from weft.array import array
from weft.config import config
from weft.dtypes import Dtype
from weft.errors import ConfigError
from weft.llvm import engine
from weft.llvm.binding import llvm_version
from weft.primitives import REGISTRY
from weft.primitives.base import Elementwise
from weft.tree import leaves

BY = " by "
"""Stands in the name of a result whose bits are those of a library, before that library."""


def digest(arrays: Iterable[np.ndarray]) -> str:
    """Shapes, dtypes and bits; one NaN is like another."""
    found = hashlib.sha256()
    for values in arrays:
        bits = contract.bits(values).copy()
        bits[is_nan(values)] = 0
        found.update(f"{values.shape} {values.dtype}".encode() + bits.tobytes() + is_nan(values).tobytes())
    return found.hexdigest()[:16]


Results = tuple[list[np.ndarray], list[np.ndarray]]
"""(operands, results)."""


def computed(sample: int = 1) -> Iterator[tuple[str, Results]]:
    """Everything by its name, or one in so many of it."""
    for name, compute in works():
        if zlib.crc32(name.encode()) % sample == 0:
            yield name, compute()


def works() -> Iterator[tuple[str, Callable[[], Results]]]:
    """What can be computed."""
    for case in contract.all_cases():
        is_library = ".linalg." in type(case.op).__module__
        name = f"{case}{BY}{lapack()}" if is_library else str(case)
        yield name, functools.partial(_of_case, case, within_bounds if is_library else _natively)
    for cls in REGISTRY:
        if issubclass(cls, Elementwise):
            for dtype in cls.dtypes:
                case = contract.cases(cls, [dtype])[0]
                yield f"{case} of special values", functools.partial(_of_special_values, case, dtype)
    for name, bind in test_contract_multiple.CASES.items():
        yield name, lambda bind=bind: ([], [values_of(x) for x in leaves(bind()) if isinstance(x, array)])
    for name, program in test_levels.PROGRAMS.items():
        for dtype in test_levels.DTYPES:
            yield f"{name}-{dtype.name}", lambda program=program, dtype=dtype: ([], [values_of(program(dtype))])


def _of_case(case: contract.Case, compute: Callable[[contract.Case, list[np.ndarray]], list[np.ndarray]]) -> Results:
    operands = case.operands()
    return operands, compute(case, operands)


def _natively(case: contract.Case, operands: list[np.ndarray]) -> list[np.ndarray]:
    return natives(case.op, [place(x) for x in operands])


def _of_special_values(case: contract.Case, dtype: Dtype) -> Results:
    operands = contract.grid(case.op, dtype, case.sample)
    return operands, [native(case.op, [place(x) for x in operands])]


def within_bounds(case: contract.Case, operands: list[np.ndarray]) -> list[np.ndarray]:
    """The results (none if that is an error, as for a singular matrix), which are as good as the operation promises."""
    got = outcome(lambda: natives(case.op, [place(x) for x in operands]))
    problem = contract.discrepancy(case, operands, got, outcome(lambda: references(case.op, operands)))
    assert not problem, problem
    return got if isinstance(got, list) else []


def lapack() -> str:
    """Whose bits the results of linear algebra, and some of its operands, have."""
    return f"SciPy {metadata.version('scipy')}, NumPy {metadata.version('numpy')}"


class Report(NamedTuple):
    """What one installation has found: which one it is, and the digests of operands and results by name."""

    installation: str
    digests: dict[str, list[str]]


def report(sample: int) -> Report:
    """Of this process; without results where its machine lacks the CPU that it is to compile for."""
    llvm = ".".join(map(str, llvm_version()))
    libraries = f"llvmlite {metadata.version('llvmlite')} (LLVM {llvm}), NumPy {metadata.version('numpy')}"
    try:
        installation = f"{libraries}, {engine.cpu_name()}, level {config.llvm_level}"
    except ConfigError as error:
        return Report(f"{libraries} stands aside: {error}", {})
    return Report(installation, {name: [digest(given), digest(found)] for name, (given, found) in computed(sample)})


def start(other: str, sample: int) -> subprocess.Popen[str]:
    """The process of another installation: an interpreter, or this one with a variable set."""
    variable, _, value = other.rpartition("=")
    python, environment = (sys.executable, {variable: value}) if variable else (other, {})
    command = [python, "-m", "tests.bits", f"--sample={sample}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


def differences(one: Report, other: Report) -> list[str]:
    """A line for each result that is not the same."""
    alone = one.digests.keys() ^ other.digests.keys()
    found = [f"{name}: only one of them has it" for name in alone if BY not in name]
    for name in one.digests.keys() & other.digests.keys():
        (given, results), (other_given, other_results) = one.digests[name], other.digests[name]
        if given != other_given:
            found.append(f"{name}: the operands differ, so nothing is known of the results")
        elif results != other_results:
            found.append(f"{name}: the results differ")
    return sorted(found)


def main(others: Sequence[str]) -> int:
    """Print this process's report if there are no others, and else what differs between them; the exit status."""
    sample = 1
    if others and others[0].startswith("--sample="):
        sample, others = int(others[0].partition("=")[2]), others[1:]
    processes = [start(other, sample) for other in others]
    own = report(sample)
    if not processes:
        print(json.dumps(own))
        return 0
    print(own.installation)
    status = 0
    for process in processes:
        said = process.communicate()[0]
        if process.returncode:
            status = 1
            continue
        other = Report(*json.loads(said))
        if not other.digests:
            print(other.installation)
            continue
        lines = differences(own, other)
        print(f"{other.installation}: {len(lines)} of {len(other.digests)} differ", *lines, sep="\n  ")
        status |= bool(lines)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
