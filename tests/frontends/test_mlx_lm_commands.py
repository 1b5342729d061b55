"""mlx-lm's commands on Weft, as they are typed: train, fuse, convert, generate. They print what they print on MLX."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.frontends.lm import PROGRAMS, need_mlx_lm, run

need_mlx_lm()

NUMBER = re.compile(r"\d+\.\d+")


def found_by(library: str, folder: Path) -> dict[str, str]:
    run(library, PROGRAMS / "lm_commands.py", folder)
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return found_by("weft", tmp_path_factory.mktemp("weft"))


def losses(printed: str) -> list[float]:
    """Those of the lines of a table: `4  val 2.798  0.11s`, `4  3.221 ▼  1,173  0.5k`, and of the test set."""
    lines = [line for line in printed.splitlines() if re.match(r"\s+\d+\s", line) or line.startswith("Test loss")]
    return [float(NUMBER.search(re.sub(r"\x1b\[[0-9;]*m", "", line))[0]) for line in lines]  # type: ignore[index]


def texts(printed: str) -> list[str]:
    """What was generated: between the lines."""
    return printed.split("==========")[1:2]


def test_training_makes_losses_smaller(ours: dict[str, str]) -> None:
    trained = {line: losses(printed) for line, printed in ours.items() if line.startswith("lora")}
    assert len(trained) == 7
    for line, values in trained.items():
        assert len(values) >= 4, line
        assert values[3] < values[0], line


def test_fused_models_say_what_adapters_say(ours: dict[str, str]) -> None:
    said = {line.split()[2]: texts(printed) for line, printed in ours.items() if "--prompt 'what is 3?' -m 6" in line}
    adapted = next(
        texts(p) for line, p in ours.items() if line.startswith("generate") and "--adapter-path dora" in line
    )
    assert said["fused"] == adapted


@pytest.mark.slow
def test_it_prints_what_it_prints_on_mlx(ours: dict[str, str], tmp_path: Path) -> None:
    theirs = found_by("mlx", tmp_path)
    assert list(ours) == list(theirs)
    for line, printed in theirs.items():
        assert texts(ours[line]) == texts(printed), line
        assert losses(ours[line]) == pytest.approx(losses(printed), abs=2e-3), line


def test_as_a_command_of_its_own(tmp_path: Path) -> None:
    """`weft run -m mlx_lm generate`, in the folder of the model."""
    run("weft", PROGRAMS / "lm_folder.py", tmp_path / "model")
    said = run("weft", "-m", "mlx_lm", "generate", "--model", "model", "-p", "hello", "-m", "4", cwd=tmp_path)
    assert "Generation: 4 tokens" in said
