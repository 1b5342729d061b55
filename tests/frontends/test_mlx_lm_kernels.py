"""The custom kernels of mlx-lm, as they are on PyPI, on Weft."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mlx_lm")


def test_kernels_of_mlx_lm_run_unchanged() -> None:
    program = Path(__file__).parent / "programs" / "lm_kernels.py"
    finished = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=600, check=False)
    assert finished.stdout.endswith("all kernels\n"), finished.stdout + finished.stderr
