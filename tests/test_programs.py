"""`weft bench programs`: what its programs compute, and what it makes of times and results."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft.core as mx

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("programs", "programs_texts", "programs_worker", "programs_weft", "programs_numpy")
OTHERS = ("sweep", "sweep_cells", "sweep_operations", "sweep_report", "sweep_worker", "sweep_weft", "sweep_numpy")
QUICK = ("kalman_filter", "welford", "heat_1d", "weighted_bincount", "rotary_pairs", "crc_table", "adam_loop", "gru")
"""Of those that need no derivatives, the quickest of each kind."""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules, which are programs that import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import programs
    import programs_texts
    import programs_worker

    yield SimpleNamespace(driver=programs, texts=programs_texts, worker=programs_worker)
    for name in (*MODULES, *OTHERS, "worker", "catalog", "run", "report"):
        sys.modules.pop(name, None)


def result(programs: Any, peer: str, name: str, wide: bool = False) -> list[np.ndarray] | None:
    timer = programs.worker.Timer(programs.texts.use(peer), 1, "wall")
    program = programs.texts.PROGRAMS[name]
    run = program.function if wide or not program.compiled else timer.words.compiled(program.function)
    try:
        made = run(*timer.made(programs.texts.arguments_of(name), wide))
    except NotImplementedError:
        return None
    return [x.astype(np.float64) for x in timer.words.plain(made)]


def check(programs: Any, name: str) -> None:
    exact, found = result(programs, "numpy", name, wide=True), result(programs, "weft", name)
    assert found is not None
    assert all(np.all(np.isfinite(x)) for x in found)
    if exact is not None:
        assert programs.driver.error_of(found, exact) <= programs.texts.PROGRAMS[name].error


@pytest.mark.parametrize("name", QUICK)
def test_weft_computes_what_numpy_does_in_float64(programs: Any, name: str) -> None:
    check(programs, name)


@pytest.mark.slow
def test_weft_computes_what_numpy_does_in_all_programs(programs: Any) -> None:
    for name in programs.texts.PROGRAMS:
        check(programs, name)


def test_a_step_of_the_optimizer_is_made_in_place(programs: Any) -> None:
    programs.texts.use("weft")
    timer = programs.worker.Timer(programs.texts.xp, 1, "wall")
    step, arguments, compiled = timer.load("adamw_60_in_place")
    assert not compiled
    mx.eval(step(*arguments))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(step(*arguments))
    small = sum(x.nbytes for x in arguments[0] if x.nbytes < 1 << 18)
    assert mx.get_peak_memory() - before <= 4 * small


def test_errors_are_relative_and_of_the_worst_result(programs: Any) -> None:
    error_of = programs.driver.error_of
    exact = [np.array([3.0, 4.0]), np.array([1.0])]
    assert error_of(exact, exact) == 0
    assert error_of([np.array([3.0, 4.5]), np.array([1.0])], exact) == pytest.approx(0.1)
    assert math.isnan(error_of(None, exact))
    assert math.isnan(error_of(exact[:1], exact))


def test_first_calls_are_compared_with_peers_that_compile(programs: Any) -> None:
    from sweep_report import Measured, Sweep

    cells = {
        "a": Measured({}, {"weft": 1.0, "jax": 2.0, "torch": 0.1}),
        "b": Measured({}, {"weft": 1.0, "jax": 0.5, "inductor": 9.0}),
        "c": Measured({}, {"weft": 1.0, "torch": 0.1}),
    }
    text = programs.driver.first_calls(Sweep({}, {}, cells))
    assert "geometric mean 1.00" in text
    assert text.endswith("worst b 0.50, a 2.00")
    assert "none" in programs.driver.first_calls(Sweep({}, {}, {}))


def bench(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "bench", "programs", "--write", str(folder), "--peers", "", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_times_goes_on_and_compares(tmp_path: Path) -> None:
    options = ("--rounds", "1", "--turn", "0.001", "--threads", "1", "--clock", "cpu")
    first = bench("welford", *options, folder=tmp_path)
    assert first.returncode == 0, first.stderr
    kept = (tmp_path / "programs.json").read_text()
    again = bench("welford", *options, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "programs.json").read_text() == kept
    unknown = bench("wellford", folder=tmp_path)
    assert unknown.returncode == 2
    assert "no such program: wellford" in unknown.stderr
    compared = bench("welford", "--compare", folder=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.splitlines()[1].startswith("welford")
