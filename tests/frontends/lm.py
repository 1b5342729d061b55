"""Programs for mlx-lm, run on Weft or on MLX as it is: where mlx-lm is installed, and MLX is what is compared with."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
LONGEST = 300
"""Seconds after which a program is taken to hang."""
LIBRARIES = {"weft": ["-m", "weft", "run"], "mlx": []}
SETTINGS = {
    "NO_COLOR": "1", "TERM": "dumb", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1",
    # The check of reference counts looks through all objects, and transformers has very many: a test marked slow does.
    "WEFT_CHECK": "0",
}  # fmt: skip


def need_mlx_lm() -> None:
    if importlib.util.find_spec("mlx_lm") is None:
        pytest.skip("mlx-lm is not installed", allow_module_level=True)


def command(library: str) -> list[str]:
    """How Python starts a script or a module (`-m`) on a library."""
    if library == "mlx" and importlib.util.find_spec("mlx") is None:
        pytest.skip("MLX is not installed")
    return [sys.executable, *LIBRARIES[library]]


class Failed(AssertionError):
    """A program ended with an error, or was ended."""


def run(library: str, *arguments: str | Path, cwd: Path | None = None, **more: str) -> str:
    """Run a program of this folder or a module; what it prints. Weft's warnings (what could not be compiled) fail."""
    done = subprocess.run(
        [*command(library), *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=cwd, timeout=LONGEST, input="",
        env={**os.environ, **SETTINGS, **more, "PYTHONPATH": f"{Path(__file__).parents[2]}"},
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(done.stderr[-4000:])
    assert "[compile]" not in done.stderr, done.stderr[-4000:]
    return done.stdout
