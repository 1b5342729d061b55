"""Types as users meet them: programs in tests/typing pass mypy's strict checks, and do what they say."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import weft.core
import weft.nn
import weft.optimizers

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = sorted((ROOT / "tests" / "typing").glob("*.py"))


WRONG = "import weft.core as mx\n\n\ndef f(x: mx.array) -> int:\n    return mx.exp(x).sum()\n"


def test_programs_pass_strict_checks(tmp_path: Path) -> None:
    """All but one, which shows that mistakes are found."""
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *options, *map(str, PROGRAMS), str(wrong)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    found = [line for line in result.stdout.splitlines() if ": error: " in line]
    assert len(found) == 1, result.stdout + result.stderr
    assert found[0].startswith("wrong.py")
    assert 'Incompatible return value type (got "array", expected "int")' in found[0]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_run(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("module", [weft.core, weft.nn, weft.optimizers], ids=lambda module: module.__name__)
def test_type_checkers_are_told_of_every_name(module: ModuleType) -> None:
    """They go by `__all__`, which is written by hand."""
    listed = set(module.__all__)
    assert all(hasattr(module, name) for name in listed)
    public = {name for name in dir(module) if not name.startswith("_")} - {"annotations", "layers", "utils"}
    assert public <= listed, "add these to __all__"
