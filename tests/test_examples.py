"""The examples run, and do what they say: each with small settings, and one property of what it gives that would not
hold by chance."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.loops import assert_close

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MOST_LINES = 120


def example(name: str) -> ModuleType:
    """The module, without its being a package."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["rnn", "kalman", "ode", "decode"])
def test_examples_are_short_and_explain_themselves(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    assert len(source.splitlines()) < MOST_LINES
    assert f"python examples/{name}.py --help" in source


# ---- rnn ----


def test_the_network_learns_to_remember(capsys: pytest.CaptureFixture[str]) -> None:
    share = example("rnn").main(["--length", "2", "--steps", "300", "--hidden", "32", "--batch", "32"])
    printed = capsys.readouterr().out
    assert share > 0.9, "guessing gives one in eight"
    assert printed.count("loss") == 10
    assert "read" in printed


def test_the_network_is_a_loop_over_time() -> None:
    """Its gradient is the one of the Python loop over the same cell."""
    rnn = example("rnn")
    mx.random.seed(1)
    weights = rnn.new_weights(8)
    batch = rnn.sequences(np.random.default_rng(0), 4, 3)
    found = mx.grad(rnn.loss)(weights, *batch)
    scan, rnn.mx = mx.scan, Looping()
    expected = mx.grad(rnn.loss)(weights, *batch)
    assert scan is mx.scan
    assert_close(found, expected, 1e-5)


class Looping:
    """weft.core with a scan that is a Python loop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    @staticmethod
    def scan(f: Any, carry: Any, xs: Any) -> Any:
        ys = []
        for x in xs:
            carry, y = f(carry, x)
            ys.append(y)
        return carry, mx.stack(ys)


# ---- kalman ----


def test_the_filter_finds_the_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    kalman = example("kalman")
    found = kalman.main(["--measurements", "1000", "--rounds", "150"])
    assert found["frequency"] == pytest.approx(kalman.TRUTH["frequency"], rel=0.05)
    assert found["noise"] == pytest.approx(kalman.TRUTH["noise"], rel=0.1)
    assert found["filtered error"] < 0.5 * found["measured error"]
    assert "frequency" in capsys.readouterr().out


def test_the_likelihood_is_that_of_one_large_normal_distribution() -> None:
    """All measurements together are normal; their covariance follows from the motion, without any filter."""
    kalman = example("kalman")
    values = {"frequency": 1.7, "damping": 0.3, "push": 0.8, "noise": 0.5}
    parameters = {name: mx.array(np.log(value), dtype=mx.float64) for name, value in values.items()}
    measured = np.random.default_rng(0).normal(size=12)
    found = kalman.log_likelihood(parameters, mx.array(measured, dtype=mx.float64))[0].item()
    move = np.array(kalman.motion(*(mx.array(values[n], dtype=mx.float64) for n in ("frequency", "damping"))))
    spread, covariance = np.eye(2) * 4.0, np.zeros((12, 12))
    for i in range(12):
        spread = move @ spread @ move.T + np.diag([0.0, values["push"] ** 2 * kalman.STEP])
        later = spread
        for j in range(i, 12):
            covariance[i, j] = covariance[j, i] = later[0, 0]
            later = move @ later
    covariance += np.eye(12) * values["noise"] ** 2
    _, size = np.linalg.slogdet(2 * np.pi * covariance)
    assert found == pytest.approx(-0.5 * (size + measured @ np.linalg.solve(covariance, measured)), rel=1e-10)


# ---- ode ----


def test_the_integrator_is_as_exact_as_it_is_asked_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    ode = example("ode")
    coarse = ode.main(["--end", "2", "--tolerance", "1e-5"])
    fine = ode.main(["--end", "2", "--tolerance", "1e-9"])
    assert fine["error"] < 1e-8 < coarse["error"] < 1e-4
    assert fine["steps"] > 2 * coarse["steps"], "a fifth-order method: 10,000 times as exact is 6 times the steps"
    assert fine["slope error"] < 1e-8
    assert "four at once" in capsys.readouterr().out


def test_a_step_is_of_fifth_order() -> None:
    """Half the step makes the error of one step 64 times as small."""
    ode = example("ode")
    errors = []
    for h in (0.2, 0.1):
        t, y, step = (mx.array(v, dtype=mx.float64) for v in (0.0, 1.0, h))
        after, _ = ode.one_step(lambda t, y: y * mx.cos(t), t, y, step)
        errors.append(abs(after.item() - np.exp(np.sin(h))))
    assert 45 < errors[0] / errors[1] < 90


# ---- decode ----


def test_the_model_goes_on_as_the_prompt_did(capsys: pytest.CaptureFixture[str]) -> None:
    written, rate = example("decode").main(["--longest", "128"])
    assert written.endswith("dream. merrily, life is but a dream.")
    assert rate > 0
    assert "a second" in capsys.readouterr().out


def test_the_cache_says_what_reading_everything_again_would() -> None:
    """Letter by letter without a cache: the whole text is read anew for each of them."""
    decode = example("decode")
    longest, prompt = 48, "row, row, row your boat, row"
    model = decode.made_model(longest)
    letters = [decode.LETTERS.index(letter) for letter in prompt]
    text, count = decode.writer(model, longest)(mx.array(letters))
    while len(letters) < longest:
        scores, _ = decode.forward(model, mx.array(letters), mx.arange(len(letters)), decode.new_cache(longest))
        letters.append(mx.argmax(scores[-1]).item())
    assert count.item() == longest
    assert text.tolist() == letters
