"""What Weft asks of llvmlite, and what it says to one that is too old."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.processes import REPOSITORY
from weft import dtypes as dt
from weft.llvm import engine
from weft.llvm import versions as llvm_versions
from weft.llvm.binding import llvm_binding, llvm_version
from weft.llvm.builder import PTR, Builder, Value
from weft.targets.cpu.features import features


def stub(version: str) -> ModuleType:
    """An llvmlite of some version, with as much of it as loading needs."""
    package, binding = ModuleType("llvmlite"), ModuleType("llvmlite.binding")
    for part in ("target", "asmprinter", "asmparser"):
        setattr(binding, f"initialize_native_{part}", lambda: None)
    package.__version__, package.binding = version, binding  # type: ignore[attr-defined]
    return package


@pytest.mark.parametrize("version", ["0.45.0", "0.46.0dev0", "0.47.0rc1+12.gabc", "0.100.0", "1.0", "0+unknown"])
def test_versions_that_serve(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = stub(version)
    monkeypatch.setitem(sys.modules, "llvmlite", package)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", package.binding)
    assert llvm_binding.__wrapped__() is package.binding


@pytest.mark.parametrize("version", ["0.44.0", "0.9.0", "0.44.0rc1"])
def test_versions_that_are_too_old(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", stub(version))
    wanted = rf"\[weft\] needs llvmlite 0\.45 or later, and this is {version.replace('.', '[.]')}; `pip install "
    with pytest.raises(ImportError, match=wanted):
        llvm_binding.__wrapped__()


def test_an_old_version_is_named_by_the_first_program_and_by_the_doctor(tmp_path: Path) -> None:
    """It is loaded no further than that: LLVM 15 could not even read the text of kernels."""
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").write_text("__version__ = '0.44.0'\n")
    (tmp_path / "llvmlite" / "binding.py").write_text("raise SystemExit('loaded')\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}", "WEFT_CACHE_DIR": ""}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    program = run("-c", "import weft.core as mx; mx.sum(mx.array([1.0, 2.0])).item()")
    message = "[weft] needs llvmlite 0.45 or later, and this is 0.44.0; `pip install 'llvmlite>=0.45'` brings one"
    assert program.returncode == 1
    assert program.stderr.splitlines()[-1].startswith(f"ImportError: {message}")
    doctor = run("-m", "weft", "doctor")
    assert doctor.returncode == 1
    for line in ("libraries", "self test"):
        assert re.search(rf"^{line} +FAILED: ImportError: {re.escape(message)}", doctor.stdout, re.MULTILINE)


def masked(b: Builder) -> None:
    """Every instruction with a mask: a load, a store, and a gather."""
    (memory,) = b.params
    mask = b.load(memory, dt.bool_)
    assert isinstance(mask, Value)
    x = b.load(memory, dt.float32, mask=mask)
    assert isinstance(x, Value)
    table = b.table("numbers", dt.float32, range(16))
    b.store(x + b.lookup(table, b.iota(dt.int32), dt.float32), memory, mask)
    b.ret()


FORMS = {
    (20, 1, 8): [
        "declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)",
        "declare <16 x float> @llvm.masked.gather.v16f32.v16p0(<16 x ptr>, i32, <16 x i1>, <16 x float>)",
        "declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)",
        "@llvm.masked.load.v16f32.p0(ptr %memory, i32 4, <16 x i1> ",
        "ptr %memory, i32 4, <16 x i1> %",
    ],
    (22, 1, 0): [
        "declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)",
        "declare <16 x float> @llvm.masked.gather.v16f32.v16p0(<16 x ptr>, <16 x i1>, <16 x float>)",
        "declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)",
        "@llvm.masked.load.v16f32.p0(ptr align 4 %memory, <16 x i1> ",
        "ptr align 4 %memory, <16 x i1> %",
    ],
}
FORMS[21, 1, 0] = FORMS[20, 1, 8]
FORMS[23, 0, 0] = FORMS[22, 1, 0]


@pytest.mark.parametrize("version", FORMS)
def test_the_alignment_of_masked_accesses(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm_versions, "llvm_version", lambda: version)
    b = Builder("masked", [("memory", PTR)], features())
    masked(b)
    for piece in FORMS[version]:
        assert piece in b.module()


def test_this_llvm_takes_its_own_form() -> None:
    """As it is written: what an older version wrote is converted by some later ones, and refused by others."""
    b = Builder("masked", [("memory", PTR)], features())
    masked(b)
    with engine._target("native", 0).module("masked", b.module()) as (module, _):
        text = str(module)
    assert ("i32 4, <16 x i1>" in text) == (llvm_version() < (22,))
    assert ("align 4" in text) == (llvm_version() >= (22,))
