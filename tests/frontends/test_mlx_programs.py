"""Programs as they are written for MLX, on Weft as on MLX: networks for images, graphs, text and sound, made small."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest

from tests.frontends.lm import PROGRAMS, run

if importlib.util.find_spec("mlx") is None:
    pytest.skip("MLX is not installed", allow_module_level=True)

NAMES = re.findall(r"@program\ndef (\w+)", (PROGRAMS / "mlx_programs.py").read_text())
Found = dict[str, np.ndarray]


def found_by(library: str, factory: pytest.TempPathFactory) -> Found:
    folder = factory.mktemp(library)
    run(library, PROGRAMS / "mlx_programs.py", folder)
    with np.load(folder / "found.npz") as found:
        return dict(found)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_by("weft", tmp_path_factory)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_by("mlx", tmp_path_factory)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_mlx(ours: Found, theirs: Found, name: str) -> None:
    """Floats to what float32 leaves of some training steps; integers to the last one."""
    keys = sorted(key for key in theirs if key.startswith(f"{name}."))
    assert keys
    assert keys == sorted(key for key in ours if key.startswith(f"{name}."))
    for key in keys:
        a, b = ours[key], theirs[key]
        assert (a.dtype, a.shape) == (b.dtype, b.shape), key
        if a.dtype.kind == "f":
            assert np.isfinite(b).all(), key
            assert np.abs(a - b).max() <= 1e-4 * np.abs(b).max(), key
        else:
            assert np.array_equal(a, b), key
