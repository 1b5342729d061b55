"""Computations that have no result: the error says which matrix of which function is to blame, at which line, and every
array keeps the value that it had."""

from __future__ import annotations

import inspect
import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import settings
from tests.processes import in_threads, run_alone
from tests.updating import at, fresh, large, same, stepped
from weft.array import array
from weft.errors import ComputationError, LinAlgError

N = 3
GOOD = 2 * np.eye(N, dtype=np.float32)
BAD = np.diag([1.0, 1.0, -1.0]).astype(np.float32)
"""Its leading minor of order 3 is negative."""


def batch(*bad: int, size: int = 4) -> array:
    return mx.array(np.stack([BAD if i in bad else GOOD for i in range(size)]))


def failure(compute: Callable[[], Any]) -> str:
    """The text of the error that a computation ends with. Nothing keeps the error: it holds what failed."""
    try:
        mx.eval(compute())
    except LinAlgError as error:
        return str(error)
    raise AssertionError("there is a result")


def line_of(text: str, fun: Any) -> str:
    source, first = inspect.getsourcelines(fun)
    return f"{__file__}:{first + next(i for i, line in enumerate(source) if text in line)}"


# ---- the error ----


def test_the_error_names_function_matrix_reason_and_line() -> None:
    def compute() -> array:
        return mx.linalg.cholesky(batch(2)) + 1  # here

    text = failure(compute)
    assert text.startswith("[linalg.cholesky] matrix 2 of the batch is not positive definite")
    assert "leading minor of order 3" in text
    assert text.endswith(f"(at {line_of('# here', compute)}).")


@pytest.mark.parametrize("caught", [LinAlgError, ComputationError, RuntimeError, ValueError, np.linalg.LinAlgError])
def test_programs_for_numpy_and_for_mlx_catch_it(caught: type[Exception]) -> None:
    with pytest.raises(caught):
        mx.eval(mx.linalg.cholesky(mx.array(BAD)))


def test_one_matrix_and_batches_of_several_axes() -> None:
    assert "] the matrix is not" in failure(lambda: mx.linalg.cholesky(mx.array(BAD)))
    assert "] matrix (1, 0) of the batch" in failure(lambda: mx.linalg.cholesky(batch(2, 3).reshape(2, 2, N, N)))


def test_the_first_of_several_is_named() -> None:
    assert "matrix 1 of" in failure(lambda: mx.linalg.cholesky(batch(1, 2, 3)))


def test_several_lines_that_could_be_meant() -> None:
    def compute(x: array) -> array:
        first = mx.linalg.cholesky(x)  # one
        return first + mx.linalg.cholesky(x + 0)  # two

    text = failure(lambda: compute(batch(0)))
    assert line_of("# one", compute) in text
    assert line_of("# two", compute) in text


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_both_back_ends_say_the_same(backend: str) -> None:
    native = failure(lambda: mx.linalg.cholesky(batch(3)))
    with settings(backend=backend):
        assert failure(lambda: mx.linalg.cholesky(batch(3))).partition("(at")[0] == native.partition("(at")[0]


# ---- where it stands ----


def test_compiled_functions() -> None:
    @mx.compile
    def f(x: array) -> array:
        return mx.linalg.cholesky(x).sum()  # here

    assert f(batch()).item() == pytest.approx(4 * N * 2**0.5)
    for _ in range(2):
        text = failure(lambda: f(batch(1)))
        assert "matrix 1 of the batch" in text
        assert text.endswith(f"(at {line_of('# here', f.__wrapped__)}).")
        assert f(batch()).item() == pytest.approx(4 * N * 2**0.5)


def test_shapeless_functions() -> None:
    f = mx.compile(lambda x: mx.linalg.cholesky(x) * 2, shapeless=True)
    for size in (2, 3, 5, 7):
        assert f(batch(size=size)).shape == (size, N, N)
        assert f"matrix {size - 1} of the batch" in failure(lambda size=size: f(batch(size - 1, size=size)))


def test_gradients() -> None:
    gradient = mx.grad(lambda x: mx.linalg.cholesky(x).sum())
    assert "matrix 1 of the batch" in failure(lambda: gradient(batch(1)))
    mx.eval(gradient(batch()))


def test_vmap() -> None:
    def factor(x: array) -> array:
        return mx.linalg.cholesky(x)  # here

    text = failure(lambda: mx.vmap(factor)(batch(2)))
    assert "matrix 2 of the batch" in text
    assert line_of("# here", factor) in text


def sums(total: array, x: array) -> tuple[array, array]:
    factor = mx.linalg.cholesky(x)
    return total + factor.sum(), factor


@pytest.mark.parametrize("wrap", [lambda f: f, mx.compile], ids=["eager", "compiled"])
def test_steps_of_loops(wrap: Callable[..., Any]) -> None:
    def run(xs: array) -> Any:
        return mx.scan(sums, mx.array(0.0), xs)  # here

    text = failure(lambda: wrap(run)(batch(3)))
    assert "the matrix at step 3 of its loop" in text
    assert line_of("# here", run) in text


def test_loops_in_loops() -> None:
    xs = mx.stack([batch(), batch(2)])
    text = failure(lambda: mx.scan(lambda c, x: mx.scan(sums, c, x), mx.array(0.0), xs))
    assert "the matrix at steps (1, 2) of its loops" in text


def test_branches() -> None:
    def choose(flag: bool) -> array:
        return mx.cond(mx.array(flag), mx.linalg.cholesky, lambda x: x, mx.array(BAD))

    assert "[linalg.cholesky] the matrix" in failure(lambda: choose(True))
    assert choose(False).tolist() == BAD.tolist()


def test_exported_functions() -> None:
    file = io.BytesIO()
    mx.export_function(file, mx.linalg.cholesky, batch(), shapeless=True)
    file.seek(0)
    f = mx.import_function(file)
    mx.eval(f(batch()))
    assert "matrix 1 of the batch" in failure(lambda: f(batch(1, size=2)))


# ---- what is not computed does not fail ----


def test_a_loop_of_no_steps() -> None:
    """What does not change from step to step is computed before a loop, but only if that makes a step."""

    def run(steps: Any, x: array) -> array:
        return mx.fori_loop(0, steps, lambda i, c: c + mx.linalg.cholesky(x).sum(), mx.array(1.0))

    for f in (run, mx.compile(run)):
        assert f(mx.array(0), mx.array(BAD)).item() == 1.0
        assert f(mx.array(2), mx.array(GOOD)).item() == pytest.approx(1 + 2 * N * 2**0.5)
        assert "the matrix" in failure(lambda f=f: f(mx.array(1), mx.array(BAD)))
    assert run(0, mx.array(BAD)).item() == 1.0


def test_a_loop_that_never_ends_in_a_loop_of_no_steps() -> None:
    endless = mx.compile(
        lambda n, x: mx.fori_loop(0, n, lambda i, c: c + mx.while_loop(lambda s: s > 0, lambda s: s + 1, x), x)
    )
    assert endless(mx.array(0), mx.array(1.0)).item() == 1.0


def test_lanes_that_take_no_part() -> None:
    choose = mx.vmap(lambda flag, x: mx.cond(flag, mx.linalg.cholesky, lambda x: x, x))
    found = choose(mx.array([True, False, True, False]), batch(1, 3))
    expected = [np.sqrt(GOOD), BAD, np.sqrt(GOOD), BAD]
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-6)
    np.testing.assert_array_equal(np.array(choose(mx.zeros(4, mx.bool_), batch(0, 1, 2, 3))), [BAD] * 4)
    assert "[linalg.cholesky]" in failure(lambda: choose(mx.array([False, True, False, False]), batch(1)))


def test_lanes_that_have_stopped() -> None:
    """Lanes stop before the step at which their matrix is none any more."""

    def shrink(x: array, steps: array) -> array:
        return mx.fori_loop(0, steps, lambda i, x: x - 0.5 * mx.linalg.cholesky(x) @ mx.linalg.cholesky(x).T, x)

    def until(x: array) -> array:
        return mx.while_loop(lambda x: x[0, 0] > 0, lambda x: mx.linalg.cholesky(x) - 1.2 * mx.eye(N), x)

    xs = mx.array(np.stack([GOOD, 4 * GOOD, 16 * GOOD]))
    mx.eval(mx.vmap(shrink)(xs, mx.array([0, 1, 3])))
    alone = [np.array(until(x)) for x in xs]
    assert len({float(x[0, 0]) for x in alone}) > 1
    np.testing.assert_allclose(np.array(mx.vmap(until)(xs)), alone, rtol=1e-6)


def test_what_nothing_reads_is_not_computed() -> None:
    @mx.compile
    def f(x: array) -> array:
        mx.linalg.cholesky(x)
        return x + 1

    np.testing.assert_array_equal(np.array(f(mx.array(BAD))), BAD + 1)


# ---- every array keeps its value ----


def test_evaluation_goes_on() -> None:
    x, scale = batch(1), mx.array(3.0)
    doubled = x * 2
    factor = mx.linalg.cholesky(doubled)
    result = factor * scale
    for _ in range(2):
        assert "matrix 1" in failure(lambda: result)
    np.testing.assert_array_equal(np.array(doubled), np.array(batch(1)) * 2)
    np.testing.assert_allclose(np.array(mx.linalg.cholesky(doubled[2]) * scale), 3 * np.sqrt(2 * GOOD), rtol=1e-6)
    assert "matrix 1" in failure(lambda: result)


def test_leaves_that_could_be_overwritten() -> None:
    """Nothing else holds `x` but what is computed from it: its memory is used again, but only behind the last step that
    can fail."""
    x = mx.array(large())
    y = x * 2
    del x
    z = y + mx.linalg.cholesky(batch(0) * 1)[0, 0, 0]
    assert "matrix 0" in failure(lambda: z)
    same(y, large() * np.float32(2))


@pytest.mark.parametrize("wrap", [lambda f: f, mx.compile], ids=["eager", "compiled"])
def test_memory_is_used_again_behind_the_last_step_that_can_fail(wrap: Callable[..., Any]) -> None:
    @wrap
    def run(x: array, matrices: array) -> array:
        return mx.exp(x) + mx.linalg.cholesky(matrices)[0, 0, 0]

    np.testing.assert_allclose(np.array(run(mx.array(large()), batch())), np.exp(large()) + 2**0.5, rtol=1e-5)


def test_state_of_compiled_functions() -> None:
    state = {"k": fresh()}

    @mx.compile
    def step(matrices: array) -> array:
        factor = mx.linalg.cholesky(matrices)
        state["k"] = state["k"] * 0.5 + 1
        return factor

    step(batch())
    place = at(state["k"])
    for _ in range(2):
        assert "matrix 3" in failure(lambda: step(batch(3)))
        assert at(state["k"]) == place
        same(state["k"], stepped(large()))
    step(batch())
    assert at(state["k"]) == place, "nothing keeps the state from being updated in place"
    same(state["k"], stepped(large(), 2))


def test_arrays_that_a_compiled_function_overwrites() -> None:
    @mx.compile
    def step(x: array, matrices: array) -> None:
        x += mx.linalg.cholesky(matrices).sum() * 0 + 1

    x = mx.array(large())
    assert "matrix 0" in failure(lambda: step(x, batch(0)) or x * mx.linalg.cholesky(batch(0))[0, 0, 0])
    same(x, large())


# ---- threads ----


def test_threads() -> None:
    """Each thread gets its own error, or none."""
    compiled = mx.compile(lambda x: mx.linalg.cholesky(x) + 1)

    def work(me: int) -> None:
        for f in (lambda x: mx.linalg.cholesky(x) + 1, compiled):
            for _ in range(10):
                if me % 2:
                    assert f"matrix {me} of the batch" in failure(lambda f=f: f(batch(me)))
                else:
                    np.testing.assert_allclose(np.array(f(batch()))[me], np.sqrt(GOOD) + 1, rtol=1e-6)

    in_threads(4, work)


def test_threads_that_compute_the_same() -> None:
    """Each of them gets the error, and none waits for a value that does not come."""
    shared = mx.linalg.cholesky(batch(1)) * 2
    texts: list[str] = []
    barrier = threading.Barrier(3)

    def work(me: int) -> None:
        barrier.wait(30)
        texts.append(failure(lambda: shared))

    in_threads(3, work)
    assert len(texts) == 3
    assert all("matrix 1 of the batch" in text for text in texts)


def test_async_eval() -> None:
    good, bad = mx.linalg.cholesky(batch()), mx.linalg.cholesky(batch(1))
    with pytest.raises(LinAlgError, match="matrix 1"):
        mx.async_eval(good, bad)
    mx.async_eval(good)
    np.testing.assert_allclose(np.array(good)[0], np.sqrt(GOOD), rtol=1e-6)


# ---- the library ----


def scipy_scenario() -> None:
    small, x = mx.eye(3), mx.eye(20)
    mx.eval(x @ x, mx.linalg.cholesky(small), mx.linalg.solve(small, small))
    lazy = mx.linalg.cholesky(x)
    assert "scipy" not in sys.modules
    mx.eval(lazy)
    assert "scipy" in sys.modules
    assert "scipy.linalg" not in sys.modules


def test_scipy_is_loaded_when_it_is_needed() -> None:
    run_alone(__file__, "scipy_scenario")
