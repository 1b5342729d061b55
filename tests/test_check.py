"""WEFT_CHECK=1 and `weft check`: wrong answers, stray indices and NaNs are found, and named with the user's line."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from weft import checking, evaluate
from weft import dtypes as dt
from weft.checking import CheckError, CheckWarning, Finding
from weft.config import config
from weft.graph.node import Graph, Node
from weft.passes import pipeline
from weft.primitives import REGISTRY
from weft.primitives.base import Parameter
from weft.primitives.elementwise import Add, Exp, Subtract

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def checked() -> Iterator[None]:
    """Programs made in the test check themselves; none of them is left for other tests."""
    before = config.check
    evaluate.programs.PROGRAMS.clear()
    checking._singles.clear()
    checking._seen.clear()
    checking.enable()
    try:
        yield
    finally:
        checking.disable()
        config.check = before
        evaluate.programs.PROGRAMS.clear()
        checking._singles.clear()


@pytest.fixture
def findings(checked: None) -> Iterator[list[Finding]]:
    with checking.collected() as found:
        yield found


def line_with(text: str, fun: Any) -> int:
    source, first = inspect.getsourcelines(fun)
    return first + next(i for i, line in enumerate(source) if text in line)


# ---- what is right ----


def test_right_programs_are_run_and_nothing_is_found(findings: list[Finding]) -> None:
    before = (checking.tally.programs, checking.tally.runs, checking.tally.operations)
    f = mx.compile(lambda x: mx.softmax(mx.exp(x) * 0.5 + mx.sin(x).T, axis=-1))
    x = mx.array(np.linspace(-1, 1, 36, dtype=np.float32).reshape(6, 6))
    for _ in range(3):
        mx.eval(f(x))
    after = (checking.tally.programs, checking.tally.runs, checking.tally.operations)
    assert [b - a for a, b in zip(before, after, strict=True)][:2] == [1, 3]
    assert after[2] - before[2] >= 3 * 8
    assert findings == []


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_terms_of_quantized_products_may_cancel(mode: str, findings: list[Finding]) -> None:
    """Codes that are floats have signs; errors are measured by the terms without them."""
    rng = np.random.default_rng(1)
    matrix = mx.quantize(mx.array(rng.normal(size=(96, 192)).astype(np.float32)), mode=mode)
    x = mx.array(rng.normal(size=(130, 192)).astype(np.float32))
    mx.eval(mx.quantized_matmul(x, *matrix, mode=mode), mx.quantized_matmul(x[None], *matrix, mode=mode))
    assert findings == []


def test_either_zero_is_the_larger(findings: list[Finding]) -> None:
    """Which of 0.0 and -0.0 an extremum gives is left open (docs/numerics.md)."""
    signs = np.random.default_rng(0).random((5, 64)) < 0.5
    for dtype in (mx.float16, mx.float32, mx.float64):
        x = mx.array(np.where(signs, 0.0, -0.0)).astype(dtype)
        places = x.at[mx.array([0, 0, 1])]
        for extremum in (mx.max, mx.min):
            mx.eval(extremum(x, axis=0), extremum(x, axis=1))
        mx.eval(mx.maximum(x, -x), mx.minimum(x, -x), places.maximum(-x[:3]), places.minimum(-x[:3]))
    assert findings == []


@pytest.mark.parametrize("cls", [cls for cls in REGISTRY if cls.samples], ids=lambda cls: cls.name())
def test_every_primitive_passes_its_own_check(cls: Any, findings: list[Finding]) -> None:
    """On samples of theirs: a check that cries wolf is of no use. NaNs and stray indices are there on purpose."""
    for dtype in (dt.float32, dt.int32, dt.complex64):
        for case in contract.cases(cls, [dtype])[:3]:
            contract.natives(case.op, [contract.place(v) for v in case.operands()])
    assert [finding for finding in findings if finding.is_ours] == []


def test_constants_of_each_call_are_checked(findings: list[Finding]) -> None:
    """Programs are shared by calls with other numbers, and so are those of single operations."""
    x = mx.array(np.ones((4, 4), np.float32))
    scaled = mx.compile(lambda x, s: mx.exp(x * s) - s)
    for s in (0.5, 0.25, -3.0):
        np.testing.assert_allclose(np.array(scaled(x, s))[0, 0], np.exp(np.float32(s)) - s, rtol=1e-6)
        np.testing.assert_array_equal(np.array(x * s + s), np.full((4, 4), 2 * s, np.float32))
    assert findings == []


def test_views_and_results_that_are_inputs_or_constants(findings: list[Finding]) -> None:
    x = mx.array(np.arange(12, dtype=np.float32).reshape(3, 4))
    f = mx.compile(lambda x: (x, x.T, x[::-1, 1:], mx.zeros((2, 2)), mx.broadcast_to(x[0], (5, 4)), x + x))
    mx.eval(f(x))
    assert findings == []


# ---- what is wrong ----


def adds_become_subtractions(graph: Graph) -> Graph:
    """A broken pass, but only for graphs of several operations: a single one is right."""
    order = graph.order()
    if sum(not isinstance(n.op, Parameter) for n in order) < 3:
        return graph
    new: dict[Node, Node] = {}
    for node in order:
        op = Subtract() if isinstance(node.op, Add) else node.op
        new[node] = node.on(tuple(new[i] for i in node.inputs), op)
    return Graph(graph.inputs, [new[o] for o in graph.outputs])


def program(x: mx.array, y: mx.array) -> mx.array:
    total = x + y
    return mx.exp(total) * total


def test_a_program_that_differs_from_its_operations(monkeypatch: pytest.MonkeyPatch, findings: list[Finding]) -> None:
    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES, adds_become_subtractions))
    mx.eval(mx.compile(program)(mx.array([1.0, 2.0]), mx.array([3.0, 4.0])))
    (found,) = findings
    assert (found.kind, found.is_ours) == ("program", True)
    assert "differs from its operations one by one" in found.message
    assert "0 of 2" not in found.message
    assert found.line is not None
    assert found.line.file == __file__


def test_our_own_faults_are_errors(monkeypatch: pytest.MonkeyPatch, checked: None) -> None:
    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES, adds_become_subtractions))
    with pytest.raises(CheckError, match="result 0 of a program differs"):
        mx.eval(mx.compile(program)(mx.array([1.0, 2.0]), mx.array([3.0, 4.0])))


def test_an_operation_that_differs_from_its_reference(monkeypatch: pytest.MonkeyPatch, findings: list[Finding]) -> None:
    monkeypatch.setattr(Exp, "reference", staticmethod(lambda x: np.exp(x) * np.float32(1.00001)))
    mx.eval(program(mx.array([1.0, 2.0]), mx.array([3.0, 4.0])))
    (found,) = findings
    assert (found.kind, found.op) == ("reference", "exp")
    assert found.line is not None
    assert found.line.number == line_with("mx.exp(total)", program)


def test_plans_are_verified_too(checked: None) -> None:
    assert config.check
    assert config.compare


# ---- NaN ----


def test_the_first_nan_is_named(findings: list[Finding]) -> None:
    def loss(x: mx.array) -> mx.array:
        inner = mx.sqrt(x)
        outer = inner * 2 + mx.log(inner)
        return mx.sum(outer)

    mx.eval(mx.compile(loss)(mx.array([4.0, -1.0, 9.0])))
    (found,) = findings
    assert (found.kind, found.op, found.is_ours) == ("nan", "sqrt", False)
    assert found.message == "makes NaN of -1.0 (at (1,) of shape (3,))"
    assert found.line is not None
    assert (found.line.file, found.line.number) == (__file__, line_with("mx.sqrt(x)", loss))
    assert found.line.function == "loss"


def test_a_nan_in_a_derivative_has_the_line_of_what_is_derived(findings: list[Finding]) -> None:
    def loss(x: mx.array) -> mx.array:
        safe = mx.where(x > 0, mx.sqrt(x), 0.0)
        return mx.sum(safe)

    mx.eval(mx.compile(mx.grad(loss))(mx.array([1.0, 0.0])))
    (found,) = findings
    assert found.kind == "nan"
    assert found.line is not None
    assert found.line.number == line_with("mx.sqrt(x)", loss)


def test_what_comes_in_as_nan_is_no_news(findings: list[Finding]) -> None:
    x = mx.array([1.0, float("nan"), float("inf")])
    mx.eval(mx.exp(x) + 1, mx.sum(x), x.astype(mx.float16), x.astype(mx.bfloat16))
    assert findings == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_nans_of_every_type(dtype: str, findings: list[Finding]) -> None:
    x = mx.array(np.array([0.0, 1.0])).astype(getattr(mx, dtype))
    mx.eval(x / x)
    assert [(f.kind, f.op) for f in findings] == [("nan", "divide")]


def test_a_nan_inside_a_loop_has_its_step_and_line(findings: list[Finding]) -> None:
    def shrink(x: mx.array) -> mx.array:
        def body(i: mx.array, t: mx.array) -> mx.array:
            less = t - 1.0
            return mx.sqrt(less)

        return mx.fori_loop(0, 4, body, x)

    mx.eval(shrink(mx.array([2.0, 30.0])))
    (found,) = findings
    assert (found.kind, found.op) == ("nan", "sqrt")
    assert found.message.endswith("in step 2 of a loop")
    assert found.line is not None
    assert found.line.number == line_with("mx.sqrt", shrink)


LATE = 700


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("carried", [False, True])
def test_a_nan_in_a_late_step(back: bool, carried: bool, findings: list[Finding]) -> None:
    """Beyond the steps that are looked at in any case."""
    values = np.ones(3 * LATE, np.float32)
    values[-1 - LATE if back else LATE] = -1

    def run(xs: mx.array) -> Any:
        def body(total: mx.array, x: mx.array) -> Any:
            y = mx.log(x)
            return total + (y if carried else x), y

        last, ys = mx.scan(body, mx.array(0.0), xs, reverse=back)
        return last if carried else ys

    mx.eval(run(mx.array(values)))
    assert [(f.kind, f.op) for f in findings] == [("nan", "log")]
    assert findings[0].message.endswith(f"in step {LATE} of a loop")
    assert findings[0].line is not None
    assert findings[0].line.number == line_with("mx.log", run)


def test_a_nan_in_a_while_loop_and_in_a_branch(findings: list[Finding]) -> None:
    def run(x: mx.array) -> mx.array:
        def body(t: mx.array) -> mx.array:
            return mx.cond(t > -500, lambda t: t - 1.0, lambda t: t - 1.0 - 0.0 * mx.sqrt(t), t)

        return mx.while_loop(lambda t: t > -600, body, x)

    mx.eval(run(mx.array(0.0)))
    assert [(f.kind, f.op) for f in findings] == [("nan", "sqrt")]
    assert findings[0].message.endswith("in branch 0 of step 500 of a loop")
    assert findings[0].line is not None
    assert findings[0].line.number == line_with("mx.sqrt", run)


@pytest.mark.parametrize("way", ["carry", "row"])
def test_a_loop_that_differs_from_its_steps(way: str, monkeypatch: pytest.MonkeyPatch, findings: list[Finding]) -> None:
    def run(x: mx.array) -> Any:
        def body(c: mx.array, row: mx.array) -> Any:
            total = c + row
            grown = mx.exp(total) * total
            return (grown, None) if way == "carry" else (c, grown)

        last, rows = mx.scan(body, x[0], x)
        return last if way == "carry" else rows

    x = mx.array([0.0, 0.0, 0.5, 0.25])  # 0 + 0 and 0 - 0 are the same
    mx.eval(x)
    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES, adds_become_subtractions))
    mx.eval(run(x))
    ours = [f for f in findings if "in step" in f.message]
    assert ours
    assert all(f.kind == "program" and f.line is not None and f.line.file == __file__ for f in ours)
    assert ours[0].message.endswith("in step 2 of a loop")
    assert ours[0].line is not None
    assert ours[0].line.number == line_with("mx.exp(total)", run)


def test_operations_in_loops_are_compared_with_their_reference(
    monkeypatch: pytest.MonkeyPatch, findings: list[Finding]
) -> None:
    monkeypatch.setattr(Exp, "reference", staticmethod(lambda x: np.exp(x) * (1 + (x > 2.5))))

    def run(x: mx.array) -> mx.array:
        return mx.fori_loop(0, 3, lambda i, t: mx.exp(mx.abs(t)) - 1.0, x)

    mx.eval(run(mx.array(1.0)))
    assert [(f.kind, f.op) for f in findings] == [("reference", "exp")]
    assert "in step 2 of a loop" in findings[0].message


# ---- bounds ----


@pytest.mark.parametrize(
    ("index", "stray"),
    [([0, 4, -5], None), ([0, 5], "index 5"), ([-6, 1], "index -6"), ([3, 300, 7], "index 300")],
)
def test_indices_out_of_range(index: list[int], stray: str | None, findings: list[Finding]) -> None:
    x = mx.array(np.arange(10, dtype=np.float32).reshape(5, 2))
    mx.eval(x[mx.array(index)])
    if stray is None:
        assert findings == []
        return
    (found,) = findings
    assert found.kind == "bounds"
    assert found.message.startswith(f"{stray} is out of range for axis 0 of size 5")


def test_writes_out_of_range(findings: list[Finding]) -> None:
    x = mx.array(np.zeros((3, 4), np.float32))
    x[mx.array([0, 3])] = 1.0
    mx.eval(x)
    (found,) = findings
    assert found.kind == "bounds"
    assert "index 3 is out of range for axis 0 of size 3" in found.message
    assert found.line is not None
    assert found.line.number == line_with("= 1.0", test_writes_out_of_range)


def test_unsigned_indices(findings: list[Finding]) -> None:
    x = mx.array(np.arange(4, dtype=np.float32))
    mx.eval(x[mx.array(np.array([3, 2**32 - 1], np.uint32))])
    assert [f.kind for f in findings] == ["bounds"]
    assert "4294967295" in findings[0].message


# ---- how it is told ----


def test_the_user_s_faults_are_warnings_and_said_once(checked: None) -> None:
    def stray(x: mx.array) -> mx.array:
        return x[mx.array([7])]

    x = mx.array([1.0, 2.0])
    with pytest.warns(CheckWarning, match=r"\[check\] \[gather.*\] index 7 is out of range") as told:
        mx.eval(stray(x))
    assert told[0].filename == __file__
    assert told[0].lineno == line_with("return x[", stray)
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        mx.eval(stray(x))
    assert [w for w in again if issubclass(w.category, CheckWarning)] == []


def test_findings_are_collected_once(findings: list[Finding]) -> None:
    for _ in range(3):
        mx.eval(mx.log(mx.array([-1.0])))
    assert len(findings) == 1


@pytest.mark.parametrize(("value", "told"), [("1", True), ("plans", False), ("0", False)])
def test_the_environment_variable(value: str, told: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import weft.core as mx\nx = mx.array([-1.0])\nprint(mx.log(x).item())\n")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_CHECK": value}
    result = subprocess.run([sys.executable, str(script)], env=variables, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "nan\n")
    assert (f"{script}:3: CheckWarning: [check] [log] makes NaN of -1.0" in result.stderr) == told, result.stderr
