"""The examples run, and do what they say: each with small settings, and one property of what it gives that would not
hold by chance."""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import subprocess
import sys
import zlib
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


# ---- programs for MLX ----


def weft_run(folder: Path, name: str, *arguments: str) -> str:
    """What an example prints that imports `mlx`; its pictures go to the folder."""
    done = subprocess.run(
        [sys.executable, "-m", "weft", "run", str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True, text=True, cwd=folder, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "WEFT_CHECK": "0", "COLUMNS": "100"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[compile]" not in done.stderr, done.stderr[-3000:]
    return done.stdout


def png(path: Path) -> np.ndarray:
    """The pixels of a PNG file without filters."""
    data, chunks = path.read_bytes(), {}
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += 12 + length
    width, height, depth, colours = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3 if colours == 2 else 1)


@pytest.mark.parametrize("name", ["digits", "text", "diffusion", "lora", "chat"])
def test_programs_for_mlx_say_how_they_are_run(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    assert f"weft run examples/{name}.py --help" in source
    assert "import weft" not in source
    assert "import mlx.core as mx" in source


@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_networks_learn_to_read_digits(tmp_path: Path, model: str) -> None:
    printed = weft_run(tmp_path, "digits", "--model", model, "--drawn", "--images", "2000", "--epochs", "6")
    right = re.search(r"([\d.]+)% of 400 digits", printed)
    assert right is not None, printed
    assert float(right[1]) > 60, "guessing gives 10"
    pixels = png(tmp_path / "out" / "digits.png")
    assert pixels.shape == (320, 640, 3)
    assert (pixels == (31, 119, 180)).all(-1).any(0).all(), "the curve crosses every column"


def test_a_transformer_learns_to_write(tmp_path: Path) -> None:
    printed = weft_run(
        tmp_path, "text", "--steps", "120", "--width", "32", "--layers", "1", "--count", "90", "--words", "The array "
    )
    found = re.search(r"([\d.]+) nats a letter in the end, ([\d.]+) on pages", printed)
    assert found is not None, printed
    assert float(found[1]) < 2.9, "guessing needs 4.4, and 3.2 if it knows how often letters are used"
    assert "\nThe array " in printed
    assert png(tmp_path / "out" / "text.png").shape == (320, 640, 3)


def test_pictures_come_out_of_noise(tmp_path: Path) -> None:
    """Few steps: what can be seen is that digits are dark in the middle, and not at the edge."""
    weft_run(tmp_path, "diffusion", "--drawn", "--steps", "150", "--batch", "64")
    pixels = png(tmp_path / "out" / "diffusion.png")
    assert pixels.shape == (9 * 11 * 4, 10 * 11 * 4, 1)
    digits = pixels[: 8 * 44, :, 0].reshape(8, 44, 10, 44).transpose(0, 2, 1, 3).reshape(80, 44, 44)[:, :40, :40]
    assert digits[:, 12:28, 12:28].mean() > 1.5 * digits[:, :4].mean()


def need_mlx_lm() -> None:
    if importlib.util.find_spec("mlx_lm") is None:
        pytest.skip("mlx-lm is not installed")


def test_adapters_teach_another_manner(tmp_path: Path) -> None:
    need_mlx_lm()
    printed = weft_run(tmp_path, "lora", "--steps", "250")
    assert "before: 20, 21 → 22, 23, 24, 25, 26, 27, 28, 29" in printed
    assert "with adapters: 21, 20 → 19, 18, 17, 16, 15, 14, 13, 12" in printed
    assert "without them: 20, 21 → 22, 23, 24, 25, 26, 27, 28, 29" in printed


def test_a_chat_through_the_server(tmp_path: Path) -> None:
    need_mlx_lm()
    printed = weft_run(tmp_path, "chat", "--steps", "250")
    assert "what does the cow say? the cow says moo ." in printed
    assert "what colour is the sky? the sky is blue ." in printed
