"""llama.cpp on a GGUF file of `weft bench llm`, beside mlx-lm on Weft: what is compared in speed computes the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.frontends import lm

pytest.importorskip("llama_cpp")
lm.need_mlx_lm()

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HERE = "import sys; sys.path.insert(0, sys.argv[1]); import llm; print(llm.decode(llm.build('small'), 8)[0])"
THERE = (
    "import sys; sys.path.insert(0, sys.argv[1]); import llm_llama; "
    "print(llm_llama.Model(sys.argv[2], 1, 64).decode(8)[0])"
)


def test_the_same_weights_are_the_same_tokens(tmp_path: Path) -> None:
    file, here = tmp_path / "model.gguf", tmp_path / "here.py"
    here.write_text(HERE)
    lm.run("weft", BENCHMARKS / "llm_gguf.py", "small", file, "q4_1")
    command = [sys.executable, "-c", THERE, str(BENCHMARKS), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=lm.LONGEST)
    assert done.stdout == lm.run("weft", here, BENCHMARKS)
