"""Other packages for MLX, as they are on PyPI, on Weft: each is tested where it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.frontends.lm import PROGRAMS, run

FAMILIES = ["llava", "paligemma", "qwen2_5_vl", "qwen3_vl", "smolvlm"]


def need(package: str, beside: str = "mlx") -> None:
    for name in (package, beside):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.slow
def test_models_that_see(tmp_path: Path) -> None:
    """mlx-vlm: logits of text and pictures, greedy tokens, gradients and 4-bit weights are those of MLX."""
    need("mlx_vlm")
    for library in ("weft", "mlx"):
        (tmp_path / library).mkdir()
        run(library, PROGRAMS / "vlm_models.py", tmp_path / library, *FAMILIES)
    for name in FAMILIES:
        with np.load(tmp_path / "weft" / f"{name}.npz") as ours, np.load(tmp_path / "mlx" / f"{name}.npz") as theirs:
            assert sorted(ours) == sorted(theirs), name
            assert np.array_equal(ours["greedy"], theirs["greedy"]), name
            largest = max(np.abs(theirs[what]).max() for what in theirs if what.startswith("gradient"))
            for what, expected in theirs.items():
                # A gradient that cancels to nothing (of the biases of keys) is rounding alone: all are measured by one.
                scale = largest if what.startswith("gradient") else np.abs(expected).max()
                assert np.abs(ours[what].astype(np.float64) - expected).max() <= 1e-4 * scale, (name, what)


def test_streams_of_data() -> None:
    """mlx-data lives below the name `mlx`, and is found there."""
    if not any((Path(entry) / "mlx" / "data").is_dir() for entry in sys.path):
        pytest.skip("mlx-data is not installed")
    program = """
import mlx.core as mx, mlx.data as dx
stream = dx.buffer_from_vector([{"x": [i] * (i + 1)} for i in range(10)]).to_stream().batch(4, pad={"x": 0})
print(mx.__name__, sum(mx.array(batch["x"]).sum().item() for batch in stream))
"""
    code = f"from weft.frontends.mlx import install; install()\n{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["weft.core", "330"]
