"""Packages for speech and for images, as they are on PyPI, on Weft as on MLX: networks with random weights, and what is
decoded from them, drawn with them, trained of them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.frontends.lm import PROGRAMS, run

PACKAGES = {
    "mlx_whisper": ("speech_packages.py", "mlx_whisper"),
    "lightning_whisper_mlx": ("speech_packages.py", "lightning_whisper_mlx"),
    "parakeet_mlx": ("speech_packages.py", "parakeet_mlx"),
    "mflux": ("image_models.py",),
}
HALF = 3e-2
"""Of the largest number, where a model rounds to bfloat16 on its way; otherwise what float32 leaves of some layers."""


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_numbers_are_those_of_mlx(package: str, tmp_path: Path) -> None:
    """Letters, words and their times exactly."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    found = {}
    program, *more = PACKAGES[package]
    for library in ("mlx", "weft"):
        folder = tmp_path / library
        folder.mkdir()
        run(library, PROGRAMS / program, folder, *more)
        with np.load(folder / "found.npz") as arrays:
            found[library] = dict(arrays)
    assert found["mlx"]
    for key, b in found["mlx"].items():
        a = found["weft"][key]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), key
        if a.dtype.kind == "f":
            bound = (HALF if key.endswith(".half") else 1e-4) * np.nanmax(np.abs(b), initial=0)
            assert np.allclose(a, b, rtol=0, atol=bound, equal_nan=True), key
        else:
            assert np.array_equal(a, b), key
