"""Numba in the same process: it brings an llvmlite of its own choice, and both sides compile with that one LLVM.

Everything happens in fresh processes, since what is tested is who loads and initialises LLVM, and in which order.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.processes import in_threads, run_alone

with_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")

VALUES = np.linspace(-3.0, 3.0, 1000)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def use_numba(scale: float = 0.5) -> str:
    """Compile a loop, a ufunc and calls of the C library, and check what they give; a digest of the machine code."""
    import numba  # loads LLVM, so the order of calls is the order of imports

    @numba.njit
    def squares(x: np.ndarray) -> float:
        total = 0.0
        for i in range(x.shape[0]):
            total += x[i] * x[i] * scale
        return total

    @numba.njit
    def cosines(x: np.ndarray) -> np.ndarray:
        return np.cos(x) + scale

    @numba.vectorize(["float64(float64, float64)"])
    def apart(x: float, y: float) -> float:
        return (x - y) * scale

    total = 0.0
    for x in VALUES.tolist():
        total += x * x * scale
    assert squares(VALUES) == total
    np.testing.assert_allclose(cosines(VALUES), np.cos(VALUES) + scale, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(apart(VALUES, VALUES[::-1]), (VALUES - VALUES[::-1]) * scale)
    texts = [text for function in (squares, cosines) for text in function.inspect_asm().values()]
    instructions = re.findall(r"^\t[a-z].*", "\n".join(texts), re.MULTILINE)
    assert len(instructions) > 100
    return digest(re.sub(r"0x\w{9,}|\d{9,}", "address", "\n".join(instructions)).encode())


def use_weft(shift: int = 0) -> str:
    """Compile kernels of several sorts, and check what they give; a digest of the results."""
    import weft.core as mx  # as above

    x = mx.array(VALUES.astype(np.float32)).reshape(40, 25)
    for _ in range(shift):  # another program, with other kernels
        x = mx.abs(x) - mx.sin(x)

    def program(x: mx.array) -> mx.array:
        return mx.softmax(mx.tanh(x) @ x.T, axis=-1).sum() + mx.sort(mx.exp(x), axis=0)[3].sum() + mx.var(x)

    plain = mx.value_and_grad(program)(x)
    compiled = mx.compile(mx.value_and_grad(program))(x)
    found = [np.array(value).tobytes() for value in (*plain, *compiled)]
    assert found[:2] == found[2:]
    wide = np.array(x).astype(np.float64)
    expected = 40 + np.sort(np.exp(wide), axis=0)[3].sum() + wide.var()
    assert abs(plain[0].item() - expected) < 1e-5 * (40 + np.exp(wide).sum())
    return digest(b"".join(found[:2]))


# ---- scenarios, each for a process of its own ----


def weft_alone() -> None:
    print("", use_weft())


def weft_after_an_option() -> None:
    """Numba sets this one where it finds Intel's vector functions."""
    from llvmlite import binding  # as above

    binding.set_option("SVML", "-vector-library=SVML")
    weft_alone()


def numba_alone() -> None:
    print(use_numba(), "")


def numba_first() -> None:
    code, bits = use_numba(), use_weft()
    use_numba(0.25)
    use_weft(1)
    print(code, bits)


def weft_first() -> None:
    bits, code = use_weft(), use_numba()
    use_weft(1)
    use_numba(0.25)
    print(code, bits)


def both_at_once() -> None:
    """Threads that compile on both sides, from the first import on."""
    together = threading.Barrier(4)
    done: list[int] = []

    def work(number: int) -> None:
        together.wait()
        for k in range(2):
            if number % 2:
                use_numba(1.0 + number + 4 * k)
            else:
                use_weft(number + k)
            done.append(number)

    in_threads(4, work)
    print(sorted(done))


# ---- tests ----


def kernels(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.o")}


@with_numba
def test_options_that_others_set_change_no_kernel(tmp_path: Path) -> None:
    said = {
        run_alone(__file__, scenario, WEFT_CACHE_DIR=str(tmp_path / scenario), WEFT_LLVM_LEVEL="3")
        for scenario in ("weft_alone", "weft_after_an_option")
    }
    assert len(said) == 1
    assert kernels(tmp_path / "weft_alone") == kernels(tmp_path / "weft_after_an_option") != {}


@with_numba
def test_each_makes_the_same_code_as_if_it_were_alone(tmp_path: Path) -> None:
    """Whichever comes first: neither options nor symbols nor the state of targets and passes go from one to the
    other. Level 3 uses all of LLVM that Weft ever uses."""

    def run(scenario: str) -> tuple[str, str]:
        said = run_alone(__file__, scenario, WEFT_CACHE_DIR=str(tmp_path / scenario), WEFT_LLVM_LEVEL="3")
        code, bits = said.rstrip("\n").split(" ")
        return code, bits

    code, bits = run("numba_alone")[0], run("weft_alone")[1]
    own = kernels(tmp_path / "weft_alone")
    assert len(own) > 5
    for scenario in ("numba_first", "weft_first"):
        assert run(scenario) == (code, bits), scenario
        there = kernels(tmp_path / scenario)
        assert {name: there[name] for name in own} == own, scenario


@with_numba
def test_threads_compile_on_both_sides_at_once() -> None:
    said = run_alone(__file__, "both_at_once", WEFT_CACHE_DIR="", WEFT_LLVM_LEVEL="2", WEFT_THREADS="3")
    assert said == "[0, 0, 1, 1, 2, 2, 3, 3]\n"
