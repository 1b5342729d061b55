"""Programs as they are written for MLX, on Weft as on MLX: networks for images, graphs, text and sound, networks that
learn by playing, and that generate, made small.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.frontends.lm import PROGRAMS, run

if importlib.util.find_spec("mlx") is None:
    pytest.skip("MLX is not installed", allow_module_level=True)

FILES = ["mlx_programs.py", "mlx_more_programs.py"]
NAMES = [(file, name) for file in FILES for name in re.findall(r"@program\ndef (\w+)", (PROGRAMS / file).read_text())]
Found = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def found_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Found]:
    """What the programs of a file find on a library; each file runs once, when it is first asked for."""
    known: dict[tuple[str, str], Found] = {}

    def get(library: str, file: str) -> Found:
        if (library, file) not in known:
            folder = tmp_path_factory.mktemp(library)
            run(library, PROGRAMS / file, folder)
            with np.load(folder / "found.npz") as found:
                known[library, file] = dict(found)
        return known[library, file]

    return get


@pytest.mark.parametrize(("file", "name"), NAMES, ids=[name for _, name in NAMES])
def test_numbers_are_those_of_mlx(found_by: Callable[[str, str], Found], file: str, name: str) -> None:
    """Floats to what float32 leaves of some training steps; integers to the last one."""
    ours, theirs = found_by("weft", file), found_by("mlx", file)
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
