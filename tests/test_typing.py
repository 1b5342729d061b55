"""Types as users meet them: programs in tests/typing pass mypy's strict checks, and do what they say."""

from __future__ import annotations

import os
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


def run(*command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    full = [sys.executable, *command]
    return subprocess.run(full, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_programs_pass_strict_checks(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path}"]
    result = run("-m", "mypy", *options, *map(str, PROGRAMS), folder=tmp_path, MYPYPATH=str(ROOT))
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_mistake_is_found(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    pytest.importorskip("mypy")
    program = tmp_path / "wrong.py"
    program.write_text("import weft.core as mx\n\ndef f(x: mx.array) -> int:\n    return mx.exp(x).sum()\n")
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path}"]
    result = run("-m", "mypy", *options, str(program), folder=tmp_path, MYPYPATH=str(ROOT))
    assert 'Incompatible return value type (got "array", expected "int")' in result.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_run(program: Path, tmp_path: Path) -> None:
    result = run(str(program), folder=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", [weft.core, weft.nn, weft.optimizers], ids=lambda module: module.__name__)
def test_type_checkers_are_told_of_every_name(module: ModuleType) -> None:
    """They go by `__all__`, which is written by hand."""
    listed = set(module.__all__)
    assert all(hasattr(module, name) for name in listed)
    public = {name for name in dir(module) if not name.startswith("_")} - {"annotations", "layers", "utils"}
    assert public <= listed, "add these to __all__"
