"""What loops and branches refuse and how they say it, and how they get along with threads and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.loops import Particle, Plain, assert_same, random, running
from tests.processes import in_threads
from weft.array import array

HERE = Path(__file__).name


# ---- errors ----


def refused(error: type[Exception], match: str, f: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(error, match=match) as caught:
        f(*args, **options)
    return str(caught.value)


def test_a_carry_that_changes_says_which_leaf() -> None:
    start = {"state": (mx.zeros((2,)), mx.array(0)), "mask": mx.array(True)}

    def drift(c: Any, x: array) -> Any:
        return {"state": (c["state"][0], c["state"][1] + 0.5), "mask": c["mask"]}, None

    message = refused(ValueError, r"^\[scan\] the carry", mx.scan, drift, start, mx.arange(3.0))
    assert "['state'][1]" in message
    assert "int32[]" in message
    assert "float32[]" in message
    assert "astype" in message
    shape = refused(ValueError, r"\[while_loop\]", mx.while_loop, lambda s: True, lambda s: [s[0][:1]], [mx.ones((2,))])
    assert all(part in shape for part in ("[0]", "float32[2]", "float32[1]"))
    itself = refused(ValueError, r"\[fori_loop\]", mx.fori_loop, 0, 3, lambda i, c: c[None], mx.ones((2,)))
    assert "float32[1, 2]" in itself
    refused(ValueError, r"\[scan\] the carry is .* after a step", mx.scan, lambda c, x: ((c, c), x), 1.0, mx.ones((2,)))
    refused(ValueError, r"Particle", mx.scan, lambda c, x: ((c.place,), x), Particle(1.0, {}), mx.ones((2,)))


def test_branches_that_differ() -> None:
    p, x = mx.array(True), mx.ones((3,))
    message = refused(ValueError, r"\[cond\]", mx.cond, p, lambda x: {"q": x}, lambda x: {"q": x[:1]}, x)
    assert all(part in message for part in ("['q']", "float32[3]", "float32[1]"))
    refused(ValueError, r"\[cond\].*int32\[3\].*float32\[3\]", mx.cond, p, lambda x: x, lambda x: x.astype(mx.int32), x)
    refused(ValueError, r"\[cond\] .*same structure.*\(\*,\)", mx.cond, p, lambda x: x, lambda x: (x,), x)
    branches = [lambda x: x, lambda x: x, lambda x: x[0]]
    refused(ValueError, r"\[switch\].*branch 2", mx.switch, mx.array(0), branches, x)


def test_wrong_arguments() -> None:
    one, xs = mx.array(1.0), mx.arange(3.0)
    refused(TypeError, r"\[scan\].*function; got int", mx.scan, 3, one, xs)
    refused(TypeError, r"\[while_loop\] the condition must be a function", mx.while_loop, 3, lambda s: s, one)
    refused(TypeError, r"\[cond\] the false branch must be a function", mx.cond, mx.array(True), lambda: 1, 2)
    refused(ValueError, r"\[scan\].*Give `xs` or `length`", mx.scan, running, one)
    refused(ValueError, r"\[scan\].*negative; got -2", mx.scan, running, one, xs, length=-2)
    refused(ValueError, r"\[scan\] 4 steps.*has 3", mx.scan, running, one, xs, length=4)
    refused(TypeError, r"\[scan\] `length`.*2\.0", mx.scan, running, one, xs, length=2.0)
    refused(ValueError, r"\[scan\] `length`.*int32\[2\]", mx.scan, running, one, xs, length=mx.array([1, 2]))
    refused(ValueError, r"\[scan\] `length`.*float32", mx.scan, running, one, xs, length=mx.array(2.0))
    refused(ValueError, r"\[scan\].*number of rows: 3 and 4", mx.scan, running, one, (xs, mx.arange(4.0)))
    refused(ValueError, r"\[scan\].*0-d", mx.scan, running, one, one)
    refused(ValueError, r"\[scan\] unroll.*got 0", mx.scan, running, one, xs, unroll=0)
    refused(ValueError, r"\[scan\] checkpoint_every.*got -1", mx.scan, running, one, xs, checkpoint_every=-1)
    late = {"length": mx.array(2), "checkpoint_every": 2}
    refused(ValueError, r"\[scan\] checkpoint_every.*known", mx.scan, running, one, xs, **late)
    refused(ValueError, r"\[scan\] the body must return a pair.*got array", mx.scan, lambda c, x: c, one, xs)
    refused(ValueError, r"got a tuple of 3", mx.scan, lambda c, x: (c, x, x), one, xs)
    refused(ValueError, r"largest number of steps", mx.scan, lambda c, x: (c, c), one, length=mx.array(3))
    refused(ValueError, r"\[scan\] until.*bool\[3\]", mx.scan, running, one, xs, until=lambda c, y: xs > c)
    refused(ValueError, r"\[while_loop\] the condition.*bool\[3\]", mx.while_loop, lambda s: s > 0, lambda s: s, xs)
    refused(ValueError, r"\[while_loop\] the condition.*None", mx.while_loop, lambda s: None, lambda s: s, xs)
    refused(ValueError, r"\[fori_loop\] the upper bound.*2\.5", mx.fori_loop, 0, 2.5, lambda i, c: c, one)
    refused(ValueError, r"\[fori_loop\] the lower bound.*False", mx.fori_loop, False, 2, lambda i, c: c, one)
    refused(ValueError, r"\[cond\] the predicate.*bool\[3\]", mx.cond, xs > 1, lambda: 1, lambda: 2)
    refused(ValueError, r"\[switch\].*at least one", mx.switch, mx.array(0), [])
    refused(ValueError, r"\[switch\].*float32", mx.switch, one, [lambda: 1])
    refused(ValueError, r"\[associative_scan\] axis 1", mx.associative_scan, mx.add, xs, 1)


def test_what_is_no_array_is_named() -> None:
    start, xs = {"name": "a", "x": 1.0}, mx.arange(3.0)
    refused(TypeError, r"\[scan\] the carry.*\['name'\].*str", mx.scan, lambda c, x: (c, x), start, xs)
    refused(TypeError, r"\[scan\] `y`.*\[0\].*function", mx.scan, lambda c, x: (c, [running]), 1.0, xs)
    refused(TypeError, r"\[scan\] `xs`.*str", mx.scan, running, 1.0, ["abc"])
    refused(TypeError, r"\[cond\] .*branch true.*object", mx.cond, mx.array(True), object, lambda: 1)


@pytest.mark.parametrize(
    "read", [lambda x: x.item(), lambda x: 1 if x > 0 else 0, np.asarray, str, float, lambda x: x.tolist()]
)
def test_a_value_is_not_known_inside_a_body(read: Callable[[array], Any]) -> None:
    """The error names the function, the line of the user's that asked, and what to write in its place."""

    def body(c: array, x: array) -> Any:
        read(x)
        return c, x

    message = refused(ValueError, r"^\[scan\] an array has no value", mx.scan, body, 0.0, mx.arange(3.0))
    assert f"{HERE}:" in message
    assert "where(" in message
    assert "cond(" in message
    refused(ValueError, r"^\[cond\]", mx.cond, mx.array(True), lambda x: read(x) and x, lambda x: x, mx.array(1.0))
    refused(ValueError, r"^\[while_loop\]", mx.while_loop, lambda s: bool(s < 3), lambda s: s + 1, mx.array(0))


def test_a_value_of_the_outside_is_known_inside() -> None:
    known = mx.array(3)
    assert mx.scan(lambda c, x: (c + known.item(), None), 0, length=4)[0].item() == 12


def test_what_is_kept_of_a_trace_means_nothing() -> None:
    kept: list[array] = []

    def body(c: array, x: array) -> Any:
        kept.append(c + x)
        return c + x, x

    assert mx.scan(body, 0.0, mx.arange(3.0))[0].item() == 3.0
    message = refused(ValueError, r"^\[scan\] this array was made while scan traced", (kept[0] * 2).item)
    assert "return it" in message
    assert f"{HERE}:" in message
    refused(ValueError, r"^\[scan\]", mx.compile(lambda x: x + kept[0]), mx.array(1.0))
    refused(ValueError, r"^\[scan\]", lambda: mx.eval(mx.scan(lambda c, x: (c + kept[0], None), 0.0, length=2)))


@pytest.mark.parametrize("kind", ["scan", "cond", "while_loop", "fori_loop", "map"])
def test_a_body_cannot_change_what_it_captures(kind: str) -> None:
    """It would happen once, not at each step. The array is as it was before."""
    outer = mx.array([1.0, 2.0])
    numbers = {"w": outer}

    def change(x: Any) -> array:
        numbers["w"][0] = x
        return numbers["w"].sum() * 1.0

    run = {
        "scan": lambda: mx.scan(lambda c, x: (c + change(x), None), 0.0, mx.arange(3.0)),
        "cond": lambda: mx.cond(mx.array(True), change, lambda x: x, mx.array(1.0)),
        "while_loop": lambda: mx.while_loop(lambda s: s < 9, lambda s: s + change(s), mx.array(1.0)),
        "fori_loop": lambda: mx.fori_loop(0, 3, lambda i, s: s + change(i), mx.array(1.0)),
        "map": lambda: mx.map(change, mx.arange(3.0)),
    }[kind]
    message = refused(ValueError, rf"^\[{kind}\] the function changes an array that it captures", run)
    assert f"{HERE}:" in message
    assert outer.tolist() == [1.0, 2.0]


def test_a_failing_body_leaves_what_it_changed_as_it_was() -> None:
    outer = mx.array([1.0, 2.0])

    def body(c: array, x: array) -> Any:
        nonlocal outer
        outer += x
        raise KeyError("no")

    refused(KeyError, "no", mx.scan, body, 0.0, mx.arange(3.0))
    assert outer.tolist() == [1.0, 2.0]


def test_a_body_may_change_its_own_arrays() -> None:
    outer = random(3)

    def body(c: array, x: array) -> Any:
        c += x  # what it was given
        copy = mx.array(outer)
        copy[0] = x
        copy *= 2
        return c, copy

    assert_same(mx.scan(body, mx.array(0.0), mx.arange(4.0)), Plain.scan(body, mx.array(0.0), mx.arange(4.0)))


def test_an_error_in_a_body_is_the_users_own() -> None:
    mx.random.seed(1)
    before = mx.array(mx.random.state[0])

    def body(c: array, x: array) -> Any:
        mx.random.normal()
        raise ZeroDivisionError("mine")

    refused(ZeroDivisionError, "^mine$", mx.scan, body, 0.0, mx.arange(3.0))
    assert_same(mx.random.state[0], before)


# ---- threads and signals ----


def test_threads_run_loops_at_once() -> None:
    """Each traces and runs its own, and draws from the global state meanwhile."""

    def work(number: int) -> None:
        for k in range(20):
            scale = mx.array(float(number + k))
            total = mx.scan(lambda c, x, s=scale: (c + mx.sin(x * s), c), mx.array(0.0), mx.arange(9.0))[0]
            plain = Plain.scan(lambda c, x, s=scale: (c + mx.sin(x * s), c), mx.array(0.0), mx.arange(9.0))[0]
            assert_same(total, plain)
            assert mx.while_loop(lambda s: s < 50, lambda s: s + 1, mx.array(number)).item() == 50
            assert np.isfinite(np.array(mx.random.normal((3,)))).all()

    in_threads(4, work)


INTERRUPTED = """
    import os, signal, threading, time
    import weft.core as mx

    kept = mx.arange(5.0) * 2
    mx.eval(kept)
    endless = {loop}
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        mx.eval(endless(mx.array(1.0)))
        print("ended by itself")
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - begin)
    print(kept.tolist(), mx.fori_loop(0, 3, lambda i, c: c + i, mx.array(1)).item())
"""


@pytest.mark.parametrize(
    "loop",
    [
        "lambda x: mx.while_loop(lambda s: s > 0, lambda s: s + 1.0, x)",
        "lambda x: mx.while_loop(lambda s: s.sum() > 0, lambda s: mx.sort(s), mx.ones((300,)) * x)",
        "mx.compile(lambda x: mx.while_loop(lambda s: s > 0, lambda s: s + 1.0, x))",
        "lambda x: mx.scan(lambda c, _: (mx.while_loop(lambda s: s > 0, lambda s: s + 1.0, c), None), x, length=3)[0]",
        "lambda x: mx.while_loop(lambda s: s > 0, lambda s: s * 1.0, x)",
        "mx.grad(lambda x: mx.while_loop(lambda s: s > 0, lambda s: s * 1.0, x))",
        "lambda x: mx.while_loop(lambda s: s[0] > 0, lambda s: (s[0] + 1.0, s[1]), (x, x * 2))[1]",
    ],
    ids=[
        "one kernel",
        "several kernels",
        "compiled",
        "nested",
        "nothing changes",
        "gradient",
        "what is asked for does not",
    ],
)
def test_an_interrupt_ends_a_loop(loop: str) -> None:
    """Within seconds of a loop that would run for ever, with every array as it was."""
    program = textwrap.dedent(INTERRUPTED).format(loop=loop)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**os.environ},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("interrupted"), done.stdout
    assert second == "[0.0, 2.0, 4.0, 6.0, 8.0] 4"
