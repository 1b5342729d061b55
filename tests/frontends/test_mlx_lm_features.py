"""What mlx-lm does with a model, on Weft as on MLX: texts and tokens are the same, losses are those of float32."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.frontends.lm import PROGRAMS, need_mlx_lm, run

need_mlx_lm()

NAMES = re.findall(r"@feature\ndef (\w+)", (PROGRAMS / "lm_features.py").read_text())


def found_by(library: str, factory: pytest.TempPathFactory, **settings: str) -> dict[str, Any]:
    folder = factory.mktemp(library)
    run(library, PROGRAMS / "lm_features.py", folder, **settings)
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_by("weft", tmp_path_factory)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_by("mlx", tmp_path_factory)


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal, but for floats: float32 sums of some hundred terms in another order."""
    if isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-4)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for name in theirs:
            assert_same(ours[name], theirs[name])
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", NAMES)
def test_it_does_what_it_says(ours: dict[str, Any], name: str) -> None:
    """The program asserts what holds without another library: a draft changes no token, nor does a cache on disk."""
    assert "Traceback" not in str(ours[name]), ours[name]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_mlx_gives(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    assert "Traceback" not in str(theirs[name]), theirs[name]
    assert_same(ours[name], theirs[name])


@pytest.mark.slow
def test_checks_of_plans_and_of_reference_counts_find_nothing(
    ours: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert found_by("weft", tmp_path_factory, WEFT_CHECK="plans") == ours
