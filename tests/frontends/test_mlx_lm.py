"""Models of mlx-lm, as they are on PyPI, on Weft: made from configurations with random weights. Where MLX is installed
the logits are compared with its own, for the same weights.
"""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.frontends.lm import PROGRAMS, Failed, need_mlx_lm, run

need_mlx_lm()

NAMES = [
    "deepseek_v3", "gemma2", "gemma3_text", "gpt2", "gpt_oss", "llama", "mamba", "mamba2", "mixtral", "phi", "phi3",
    "qwen3", "qwen3_moe", "qwen3_next",
]  # fmt: skip
"""Of each kind at least one: attention with and without groups, windows and sinks, experts, latent attention, state
spaces, the gated delta rule. All others are in the tests marked slow."""
FOREIGN = {"olmo"}
"""Needs a package of its own."""
WITHOUT_HISTORY = {"gemma3n", "plamo3"}
"""Their caches change what they compute, on MLX too: windows are not masked in prompts without a cache."""
Results = dict[str, dict[str, np.ndarray]]


def results(library: str, folder: Path, names: list[str]) -> Results:
    for start in range(0, len(names), 20):
        try:
            run(library, PROGRAMS / "lm_architectures.py", folder, *names[start : start + 20])
        except Failed:
            if library == "weft":
                raise
            for name in names[start : start + 20]:  # MLX itself does not survive all of them
                with contextlib.suppress(Failed):
                    run(library, PROGRAMS / "lm_architectures.py", folder, name)
    found = {}
    for file in folder.glob("*.npz"):
        with np.load(file) as arrays:
            found[file.stem] = dict(arrays)
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results("weft", tmp_path_factory.mktemp("weft"), NAMES)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results("mlx", tmp_path_factory.mktemp("mlx"), NAMES)


def assert_a_cache_changes_nothing(name: str, ours: dict[str, np.ndarray]) -> None:
    whole, cached = ours["whole"].astype(np.float64), ours["cached"]
    same = np.abs(whole - cached) <= 1e-4 * (1 + np.abs(whole[np.isfinite(whole)]).max())
    assert np.all(same | (whole == cached)), name


def assert_as_mlx(name: str, ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert sorted(ours) == sorted(theirs), name
    assert np.array_equal(ours["greedy"], theirs["greedy"]), name
    for what, expected in theirs.items():
        # Weights of mxfp4 are bfloat16 when they are unpacked, and some models compute in that then.
        tolerance = 3e-2 if what == "mxfp4" else 1e-4
        largest = np.abs(expected[np.isfinite(expected)]).max()
        close = np.abs(ours[what].astype(np.float64) - expected) <= tolerance * (1 + largest)
        assert np.all(close | (ours[what] == expected)), (name, what)


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_changes_nothing(ours: Results, name: str) -> None:
    assert_a_cache_changes_nothing(name, ours[name])


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_mlx(ours: Results, theirs: Results, name: str) -> None:
    assert_as_mlx(name, ours[name], theirs[name])


@pytest.mark.slow
def test_every_other_architecture(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Those that can be built from the small configuration, and that MLX itself runs."""
    spec = importlib.util.find_spec("mlx_lm.models")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    names = sorted(file.stem for file in Path(spec.submodule_search_locations[0]).glob("*.py"))
    names = [name for name in names if not name.startswith("_") and name not in {*NAMES, *FOREIGN}]
    theirs = results("mlx", tmp_path_factory.mktemp("mlx"), names)
    ours = results("weft", tmp_path_factory.mktemp("weft"), names)
    assert len(theirs) > 90
    assert sorted(set(theirs) - set(ours)) == []
    for name, expected in theirs.items():
        assert_as_mlx(name, ours[name], expected)
        if name not in WITHOUT_HISTORY:
            assert_a_cache_changes_nothing(name, ours[name])
