"""`weft.explain`: what it says is what the compiler did, as text, as data and on the page."""

from __future__ import annotations

import inspect
import json
import random
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from weft.config import config
from weft.graph import lines
from weft.graph.lines import line_of
from weft.graph.node import Node
from weft.passes.lower import nbytes_of
from weft.passes.pipeline import PASSES
from weft.report import limits as machine
from weft.report.facts import Facts, Stage
from weft.report.layout import draw
from weft.report.script import watching


def line_with(text: str, fun: Any) -> int:
    """The number of the line of a function that holds a text."""
    source, first = inspect.getsourcelines(fun)
    return first + next(i for i, line in enumerate(source) if text in line)


def softmax_twice(x: mx.array, w: mx.array) -> mx.array:
    first = mx.softmax(x @ w, axis=-1)
    second = mx.exp(first) * 1.0
    return second + mx.exp(first)


X, W = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6), np.ones((6, 5), np.float32)


@pytest.fixture(scope="module")
def facts() -> Facts:
    return weft.explain(softmax_twice, mx.array(X), mx.array(W)).facts


def titles(stage: Stage) -> list[str]:
    return [op.title for op in stage.operations]


# ---- stages ----


def test_stages_follow_the_passes(facts: Facts) -> None:
    assert [stage.name for stage in facts.stages] == ["traced", *(step.__name__ for step in PASSES), "views"]
    traced, decomposed, merged, simplified, *_ = facts.stages
    assert titles(decomposed) == titles(traced)
    assert titles(traced)[:3] == ["x", "w", "matmul"]
    assert titles(traced).count("exp") == 3  # that of softmax, and the same one twice
    assert titles(merged).count("exp") == 2
    assert [(c.what, c.text) for c in merged.changes if c.text == "exp"] == [("merged", "exp")]
    assert titles(merged).count("multiply") == 1
    assert titles(simplified).count("multiply") == 0
    (gone,) = [c for c in simplified.changes if c.text == "multiply"]
    assert gone.what == "replaced"
    exp = next(op for op in simplified.operations if op.number == gone.to)
    assert exp.title == "exp"


def test_composites_are_shown_whole_and_in_parts() -> None:
    """With the line of the user's program that both come from."""
    found = weft.explain(lambda x, w: mx.fast.rms_norm(x, w, 1e-5), mx.array(X), mx.array(W[:, 0])).facts
    traced, decomposed, *_ = found.stages
    assert titles(traced) == ["x", "w", "rms_norm"]
    assert "rms_norm" not in titles(decomposed)
    assert {"square", "rsqrt"} <= {*titles(decomposed)}
    (line,) = {op.line for op in traced.operations if op.title == "rms_norm"}
    assert line is not None
    assert {op.line for op in decomposed.operations if op.title in ("square", "rsqrt")} == {line}


def test_nodes_keep_their_numbers(facts: Facts) -> None:
    """From pass to pass, as long as they compute the same."""
    for before, after in zip(facts.stages[:-1], facts.stages[1:], strict=True):
        kinds = {op.number: (op.title, op.kind) for op in before.operations}
        rewritten = {c.number for c in after.changes}
        for op in after.operations:
            if op.number in kinds and op.number not in rewritten:
                assert kinds[op.number] == (op.title, op.kind)
        gone = set(kinds) - {op.number for op in after.operations}
        assert gone == {c.number for c in after.changes if c.what in ("merged", "replaced", "removed")}


def test_nodes_know_the_line_that_made_them(facts: Facts) -> None:
    made = {"matmul": "x @ w", "multiply": "* 1.0", "add": "second +"}
    for stage in facts.stages:
        for op in stage.operations:
            if op.title in made:
                assert op.line is not None
                assert op.line.file == __file__
                assert op.line.number == line_with(made[op.title], softmax_twice)
                assert op.line.function == "softmax_twice"


def test_derivatives_have_the_line_of_what_they_derive() -> None:
    def loss(x: mx.array) -> mx.array:
        inner = mx.sin(x)
        return mx.sum(inner)

    found = weft.explain(mx.grad(loss), mx.array(X), measure=False).facts
    (cosine,) = [op for op in found.stages[0].operations if op.title == "cos"]
    assert cosine.line is not None
    assert cosine.line.number == line_with("mx.sin(x)", loss)


def test_lines_are_recorded_only_on_request() -> None:
    assert "line" in Node.__slots__
    assert line_of((mx.array(X) + 1)._node) is None
    with lines.recording(), lines.recording():
        made = mx.array(X) + 1
    assert line_of(made._node) is not None
    assert line_of((mx.array(X) + 1)._node) is None
    assert Node.__init__ is lines._plain


# ---- kernels and memory ----


def test_every_operation_is_in_one_kernel(facts: Facts) -> None:
    last = facts.stages[-1]
    inside = [n for kernel in facts.kernels for n in kernel.nodes]
    assert sorted(inside) == sorted(op.number for op in last.operations if op.role not in ("input", "view"))
    written = {n for kernel in facts.kernels for n in kernel.writes}
    assert set(last.outputs) <= written


def test_figures_of_kernels(facts: Facts) -> None:
    product, row = facts.kernels
    assert (product.form, row.form) == ("matmul", "row")
    assert product.flops == 2 * 4 * 6 * 5
    assert product.nbytes == 4 * (24 + 30 + 20)
    assert row.nbytes == 4 * (20 + 20)
    for kernel, item in zip(facts.kernels, facts.plan.items, strict=True):
        assert kernel.nbytes == sum(nbytes_of(n) for n in (*item.reads, *item.writes) if n.inputs or n.value is None)
        assert kernel.seconds is not None
        assert kernel.seconds > 0
        assert kernel.share_of_limit == pytest.approx(kernel.least / kernel.seconds)
    assert facts.total is not None
    assert row.notes == ("apart from kernel 0: matmul has kernels of its own",)


def test_a_slice_moves_only_what_it_shows() -> None:
    x = mx.array(np.zeros((100, 8), np.float32))
    (kernel,) = weft.explain(lambda x: x[10:20] * 2, x, measure=False).facts.kernels
    assert kernel.nbytes == 2 * 10 * 8 * 4


@pytest.mark.parametrize(
    ("program", "value", "note"),
    [
        (lambda x, w: mx.exp(x) * 2.0, "multiply", "x belongs to the caller"),
        (
            lambda x, w: (lambda t: mx.exp(t @ w.T) + t)(mx.sin(x @ w) @ w.T @ w)[:1],
            "matmul",
            "is still read by kernel",
        ),
        (lambda x, w: mx.sum(x), "sum", "no operand has its size"),
    ],
)
def test_why_nothing_was_reused(program: Any, value: str, note: str) -> None:
    w = mx.array(np.eye(6, dtype=np.float32))
    found = weft.explain(program, mx.array(X), w, measure=False).facts
    assert any(s.name == value and s.over is None and note in s.note for s in found.stored), found.stored


def test_what_took_whose_place() -> None:
    w = mx.array(np.eye(6, dtype=np.float32))
    found = weft.explain(lambda x: mx.sum(mx.exp(x @ w) @ w), mx.array(X), measure=False).facts
    (reused,) = [s for s in found.stored if s.over is not None]
    named = {op.number: op.title for op in found.stages[-1].operations}
    assert (reused.name, named[reused.over]) == ("exp", "matmul")
    for stored in found.stored:
        assert stored.first <= stored.last


def test_times_are_those_of_the_right_values() -> None:
    """Kernels that are run one by one for their times see each other's results: a loop that counts what it is given
    must end."""

    def program(x: mx.array) -> mx.array:
        steps = mx.sum(x).astype(mx.int64)
        return mx.fori_loop(0, steps, lambda i, t: t + 1.0, mx.exp(x * 0.0))

    found = weft.explain(program, mx.array(np.ones((3, 5), np.float32))).facts
    assert all(kernel.seconds is not None for kernel in found.kernels)


def test_bodies_of_loops_are_shown() -> None:
    def program(x: mx.array) -> mx.array:
        return mx.fori_loop(0, 5, lambda i, t: mx.sin(t) * 0.5, x)

    report = weft.explain(program, mx.array(X), measure=False)
    (loop,) = [op for op in report.facts.stages[0].operations if op.bodies]
    ((_, body),) = loop.bodies
    assert "sin" in body
    assert "0.5" in body
    assert body in report.html().replace("\\n", "\n")
    assert all(line.strip() in str(report) for line in body.splitlines())
    (kernel,) = [k for k in report.facts.kernels if k.form == "loop"]
    assert kernel.launches, "kernels inside the loop are shown with it"


# ---- traces ----


def test_traces_name_the_argument_that_changed() -> None:
    @mx.compile
    def scaled(x: mx.array, axis: int) -> mx.array:
        return mx.sum(x, axis=axis)

    x = mx.array(X)
    scaled(x, 0)
    scaled(x, 1)
    scaled(x[:2] + 0, 1)
    (program,) = weft.explain(scaled, x, 0, measure=False).programs
    assert len(program.traces) == 3
    assert program.traces[0] == "first call"
    assert re.fullmatch(r"axis: 0 became 1, and the trace depends on it", program.traces[1])
    assert re.fullmatch(r"x: .*\[4, 6\] became .*\[2, 6\]", program.traces[2])


def test_explaining_changes_nothing() -> None:
    state = {"calls": mx.array(0.0), "log": []}

    def program(x: mx.array) -> mx.array:
        state["calls"] = state["calls"] + 1
        state["log"].append("called")
        x += 1
        return x

    x = mx.array(X)
    report = weft.explain(program, x)
    assert state["log"] == []
    assert state["calls"].item() == 0
    np.testing.assert_array_equal(np.array(x), X)
    assert "add" in titles(report.facts.stages[0]), "what happens to arguments is computed too"


def test_a_function_that_computes_nothing() -> None:
    report = weft.explain(lambda x: x, mx.array(X))
    assert report.facts.kernels == ()
    assert "0 kernels" in str(report)
    assert "Nothing is computed" in report.html()


def test_only_functions_can_be_explained() -> None:
    with pytest.raises(TypeError, match=r"\[explain\] the first argument must be a function; got int"):
        weft.explain(3)


# ---- text ----


def test_the_text_tells_it_all() -> None:
    report = weft.explain(softmax_twice, mx.array(X), mx.array(W), llvm=True, asm=True)
    text = str(report)
    assert f"== traced: {len(report.facts.stages[0].operations) - 2} operations" in text
    assert "first = mx.softmax(x @ w, axis=-1)" in text
    assert "the same as %" in text
    assert re.search(r"1: row over 4×5, reducing axis 1 \[max subtract exp sum divide exp add\]", text)
    assert re.search(r"moves 160 bytes, .* µs, .*% of the (memory|compute) limit", text)
    assert "apart from kernel 0: matmul has kernels of its own" in text
    for kernel in report.facts.kernels:
        for launch in kernel.launches:
            assert f"define void @{launch.name}(" in text
            assert f"== assembly of {launch.name}" in text
    assert text == repr(report)
    text.encode("ascii", "replace")
    assert "\x1b" not in text


# ---- the page ----


def test_the_page_is_one_file_with_everything_in_it(tmp_path: Path) -> None:
    report = weft.explain(softmax_twice, mx.array(X), mx.array(W))
    path = report.save(tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    assert page == report.html()
    assert "{{" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?!data:)", page)
    data = json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', page)[0])
    (program,) = data["programs"]
    names = ["traced", *(step.__name__ for step in PASSES), "views", "kernels"]
    assert [stage["name"] for stage in program["stages"]] == names
    for kernel in program["kernels"]:
        for launch in kernel["launches"]:
            assert f"define void @{launch['name']}(" in data["code"][launch["name"]]["llvm"]
            assert f"{launch['name']}:" in data["code"][launch["name"]]["asm"]
    assert report._repr_html_().startswith("<iframe")


def test_text_of_the_user_s_cannot_break_out_of_the_page() -> None:
    def named(x: mx.array) -> mx.array:
        return x + 1

    named.__name__ = "</script><b>&"
    page = weft.explain(named, mx.array(X), measure=False).html()
    assert page.count("</script>") == 2
    assert "<b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in page


def test_the_parts_of_the_page_are_in_the_package() -> None:
    for name in ("page.html", "page.css", "page.js"):
        assert files("weft.report").joinpath(name).is_file()


# ---- layout ----


def test_drawings_are_readable() -> None:
    """Every edge leads down, no boxes overlap, also with edges over many rows."""
    chance = random.Random(7)
    for count in (1, 2, 30, 300):
        sizes = {i: (chance.uniform(40, 200), chance.choice([44.0, 90.0])) for i in range(count)}
        edges = sorted({(max(0, i - chance.choice([1, 1, 2, 9, 80])), i) for i in range(1, count) for _ in range(2)})
        drawing = draw(sizes, edges)
        assert set(drawing.places) == set(sizes)
        for (a, b), route in zip(edges, drawing.routes, strict=True):
            heights = [y for _, y in route]
            assert heights == sorted(heights)
            assert drawing.places[a][1] + sizes[a][1] <= drawing.places[b][1]
            assert route[0][1] == pytest.approx(drawing.places[a][1] + sizes[a][1], abs=0.11)
            assert route[-1][1] == drawing.places[b][1]
        for i, (x, y) in drawing.places.items():
            assert 0 <= x <= drawing.width - sizes[i][0] + 0.2
            for j, (x2, y2) in drawing.places.items():
                apart = x + sizes[i][0] <= x2 + 0.2 or x2 + sizes[j][0] <= x + 0.2
                assert i == j or apart or y + sizes[i][1] <= y2 or y2 + sizes[j][1] <= y
    assert draw({}, []).places == {}


def test_a_chain_stands_straight() -> None:
    drawing = draw(dict.fromkeys(range(6), (100.0, 40.0)), [(i, i + 1) for i in range(5)])
    assert len({x for x, _ in drawing.places.values()}) == 1


# ---- limits ----


def test_limits_are_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    monkeypatch.setattr(machine, "_known", {})
    first = machine.limits()
    assert all(rate > 0 for _, rate in first.bandwidth)
    monkeypatch.setattr(machine, "measure", lambda cpu: pytest.fail("measured again"))
    assert machine.limits() is first
    monkeypatch.setattr(machine, "_known", {})
    assert machine.limits() == first, "from disk"


def test_a_damaged_entry_is_measured_anew() -> None:
    assert machine._read(b"{}") is None
    assert machine._read(b"\xff") is None


# ---- scripts ----


def test_programs_of_a_script_are_told_apart() -> None:
    with watching() as watch:
        double = mx.compile(softmax_twice)
        for _ in range(3):
            mx.eval(double(mx.array(X), mx.array(W)))
        total = mx.sum(mx.array(X) * 3)
        mx.eval(total)
    report = watch.report("script")
    compiled, plain = sorted(report.programs, key=lambda p: p.name != "softmax_twice")
    assert (compiled.name, compiled.calls, compiled.traces) == ("softmax_twice", 3, ("first call",))
    assert plain.name.startswith("evaluation at ")
    assert plain.calls == 1
    line = next(op.line for op in plain.facts.stages[-1].operations if op.title == "sum")
    assert line is not None
    assert line.number == line_with("mx.sum(mx.array(X) * 3)", test_programs_of_a_script_are_told_apart)
    assert "program 1" in str(report)
    assert Node.__init__ is lines._plain


def test_loops_of_any_length_are_explained() -> None:
    """Their gradients keep rows for as many steps as it takes, so there is one time for all."""

    def program(x: mx.array) -> mx.array:
        last = mx.while_loop(lambda t: mx.sum(t * t) < 100.0, lambda t: t * 1.5, x)
        return mx.sum(last)

    found = weft.explain(mx.grad(program), mx.array(X)).facts
    assert found.total is not None
    assert any(kernel.form == "loop" for kernel in found.kernels)
