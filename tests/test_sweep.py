"""`weft bench sweep`: which cells it chooses, what it computes in them, and what it makes of the times."""

from __future__ import annotations

import json
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

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("cells", "operations", "report", "worker", "weft", "numpy")


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the sweep, which are programs that import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import run
    import sweep_cells
    import sweep_operations
    import sweep_report
    import sweep_worker

    yield SimpleNamespace(
        cells=sweep_cells, operations=sweep_operations, report=sweep_report, worker=sweep_worker, run=run,
        Cell=sweep_cells.Cell,
    )  # fmt: skip
    for name in (*(f"sweep_{module}" for module in MODULES), "worker", "catalog", "run", "report"):
        sys.modules.pop(name, None)


def everything(sweep: Any, **options: Any) -> list[Any]:
    cells = sweep.cells
    return cells.ordered(list(cells.OPERATIONS), cells.ALL, cells.LAYOUTS, **options)


# ---- the choice of cells ----


def test_every_cell_comes_once(sweep: Any) -> None:
    cells, module = everything(sweep), sweep.cells
    assert len(set(cells)) == len(cells)
    wanted = {
        cell
        for operation in module.OPERATIONS
        for shape in module.SHAPES
        for dtype in module.ALL
        for layout in module.LAYOUTS
        if (cell := module.cell_at(operation, shape, dtype, layout)) is not None
    }
    assert set(cells) == wanted


def test_the_first_cells_are_a_sample_of_all(sweep: Any) -> None:
    module, first = sweep.cells, everything(sweep)[:300]
    assert {cell.operation for cell in first} == set(module.OPERATIONS)
    assert {cell.dtype for cell in first} == set(module.ALL)
    assert {cell.layout for cell in first} == set(module.LAYOUTS)
    assert {cell.shape[-1] for cell in first if len(cell.shape) == 2} == set(module.INNER)
    counts = [sum(cell.operation == operation for cell in first) for operation in module.OPERATIONS]
    assert max(counts) - min(counts) <= 1


def test_the_order_depends_on_the_seed_alone(sweep: Any) -> None:
    first, again, other = (
        sweep.cells.ordered(["add", "sort"], sweep.cells.ALL, sweep.cells.LAYOUTS, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first[:50] != other[:50]


def test_filters_and_memory_hold(sweep: Any) -> None:
    chosen = sweep.cells.ordered(["add", "sort"], ["int8"], ["reversed"], memory=1e6)
    assert {(cell.operation, cell.dtype, cell.layout) for cell in chosen} == {
        ("add", "int8", "reversed"),
        ("sort", "int8", "reversed"),
    }
    assert all(cell.nbytes <= 1e6 for cell in chosen)
    assert any(cell.nbytes > 1e6 for cell in sweep.cells.ordered(["add"], ["int8"], ["reversed"]))


def test_names_say_all_of_a_cell(sweep: Any) -> None:
    assert all(sweep.Cell.named(cell.name) == cell for cell in everything(sweep)[:500])
    assert sweep.Cell.named("add/8x3/int8/sliced") == sweep.Cell("add", (8, 3), "int8", "sliced")


def test_points_are_evenly_spread(sweep: Any) -> None:
    points = np.array(list(sweep.cells.low_discrepancy(4, 1000, seed=3)))
    for column in points.T:
        counts, _ = np.histogram(column, bins=10, range=(0, 1))
        assert np.all(np.abs(counts - 100) <= 10)  # chance would give about 30


# ---- what is computed ----


def results(made: Any) -> list[np.ndarray]:
    return [np.asarray(part) for part in (made if isinstance(made, tuple) else (made,))]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "broadcast", "reversed"])
def test_weft_and_numpy_compute_the_same(sweep: Any, layout: str) -> None:
    operations, expected = sweep.operations, {}
    for peer in ("numpy", "weft"):
        words = operations.use(peer)
        for operation in sweep.cells.OPERATIONS:
            for shape in ((5, 3), (10,)):
                cell = sweep.cells.cell_at(operation, shape, "float32", layout)
                if cell is None or "gradient" in operation:
                    continue
                arguments = [words.operand(*each) for each in operations.operands(cell)]
                values = results(operations.program(cell)(*arguments))
                if operation in ("topk", "partition"):  # in no particular order
                    values = [np.sort(value) for value in values]
                for value, other in zip(values, expected.setdefault(cell.name, values), strict=True):
                    np.testing.assert_allclose(value, other, rtol=2e-3 if operation == "cast" else 2e-5, atol=1e-6)


def test_gradients_are_those_of_differences(sweep: Any) -> None:
    words = sweep.operations.use("weft")
    for name in ("logistic_gradient/5x3/float64/sliced", "network_gradient/5x3/float64/transposed"):
        cell = sweep.Cell.named(name)
        x, w, *rest = [words.operand(*each) for each in sweep.operations.operands(cell)]
        run = sweep.operations.program(cell)
        _, gradient = run(x, w, *rest)
        step = np.zeros(w.shape)
        step.flat[1] = 1e-6
        above, below = (run(x, words.operand(np.asarray(w) + s * step, "float64"), *rest)[0].item() for s in (1, -1))
        assert np.asarray(gradient).flat[1] == pytest.approx((above - below) / 2e-6, rel=1e-5)


# ---- limits ----


def kernel(seconds: float, least: float, limit: str) -> SimpleNamespace:
    return SimpleNamespace(seconds=seconds, least=least, limit=limit)


def test_the_limit_is_that_of_the_longest_kernel_or_the_call_itself(sweep: Any) -> None:
    name_limit = sweep.worker.name_limit
    assert name_limit([kernel(1e-6, 1e-7, "memory")], 10e-6) == ("launch", pytest.approx(0.1))
    kernels = [kernel(2e-3, 1e-3, "memory"), kernel(6e-3, 3e-3, "compute")]
    assert name_limit(kernels, 10e-3) == ("arithmetic", pytest.approx(0.4))
    assert name_limit(kernels[:1], 2.5e-3) == ("memory", pytest.approx(0.4))
    assert name_limit([], 1e-6) == ("launch", 0.0)


# ---- the report ----


@pytest.fixture
def measured(sweep: Any) -> Any:
    report = sweep.report
    cells = {
        "add/8x3/float32/contiguous": report.Measured(
            {"weft": 4e-6, "numpy": 1e-6, "jax": 2e-6}, limit="launch", share=0.1
        ),
        "add/100/float32/reversed": report.Measured({"weft": 1e-6, "numpy": 4e-6}),
        "sort/100/int8/contiguous": report.Measured({"weft": 1e-6, "torch": 2e-6}, errors={"jax": "no"}),
        "exp/10/float32/contiguous": report.Measured({"numpy": 1e-6}, errors={"weft": "TypeError: <x>"}),
        "exp/100/float32/contiguous": report.Measured({"weft": 1e-6}),
    }  # fmt: skip
    return report.Sweep({"seed": 0}, {"weft": "1"}, cells)


def test_ratios_are_of_the_fastest_peer(measured: Any) -> None:
    assert measured.ratios() == {
        "add/8x3/float32/contiguous": pytest.approx(0.25),
        "add/100/float32/reversed": pytest.approx(4),
        "sort/100/int8/contiguous": pytest.approx(2),
    }


def test_the_table_ends_with_the_two_figures(sweep: Any, measured: Any) -> None:
    lines = sweep.report.table(measured).splitlines()
    assert lines[1].split() == [
        "add/8x3/float32/contiguous",
        "0.25",
        "4.0",
        "1.0",
        "numpy",
        "launch,",
        "10%",
        "of",
        "it",
    ]
    assert "exp/10/float32/contiguous: error: TypeError: <x>" in lines
    assert lines[-2] == f"geometric mean: {2 ** (1 / 3):.2f} over 3 cells, 1 below 0.9"
    assert lines[-1] == "worst cell: 0.25 add/8x3/float32/contiguous"
    assert sweep.report.figures(sweep.report.Sweep({}))[1] == "worst cell: none"


def test_a_sweep_is_kept_in_a_file(sweep: Any, measured: Any, tmp_path: Path) -> None:
    measured.save(tmp_path / "sweep.json")
    assert sweep.report.Sweep.load(tmp_path / "sweep.json") == measured
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]


def test_the_heat_map_has_means_and_worst_cells(sweep: Any, measured: Any) -> None:
    shapes, dtypes, layouts = sweep.report.panels(measured)
    assert shapes.rows == ["add", "sort"]
    assert shapes.columns == ["fewx3", "100"]
    assert shapes.means == [[pytest.approx(0.25), pytest.approx(4)], [None, pytest.approx(2)]]
    assert dtypes.columns == ["float32", "int8"]
    assert dtypes.means[0][0] == pytest.approx(1)
    assert dtypes.worst[0][0] == (pytest.approx(0.25), "add/8x3/float32/contiguous")
    assert layouts.columns == ["contiguous", "reversed"]


def test_columns_stand_in_the_order_of_numbers(sweep: Any) -> None:
    columns = ["1000", "manyx16", "fewx1000", "manyx2", "10", "fewx2"]
    ordered = ["fewx2", "fewx1000", "manyx2", "manyx16", "10", "1000"]
    assert sorted(columns, key=sweep.report._column_order) == ordered


def test_colours_tell_ahead_from_behind(sweep: Any) -> None:
    colour = sweep.report.colour
    assert colour(1.0) == (255, 255, 255)
    assert colour(None) == (225, 225, 225)
    red, green, _ = colour(0.5)
    assert red > green
    red, green, _ = colour(2.0)
    assert green > red
    assert colour(math.inf) == colour(8.0)
    assert colour(1e-9) == colour(1 / 8)


def test_the_page_needs_nothing_else(sweep: Any, measured: Any) -> None:
    page = sweep.report.page(measured)
    assert page.count("<table>") == 3
    assert "worst: 0.25 add/8x3/float32/contiguous" in page
    assert "TypeError: &lt;x&gt;" in page
    assert "http" not in page


def test_the_picture_is_a_png(sweep: Any, measured: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert sweep.report.picture(measured, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


# ---- the command ----


def bench(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "bench", "sweep", "--write", str(folder), *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_measures_writes_and_goes_on(tmp_path: Path) -> None:
    options = ("--peers", "numpy", "--rounds", "1", "--turn", "0.001", "--threads", "1", "--clock", "cpu")
    first = bench("--cells", "add/10/float32/contiguous", *options, folder=tmp_path)
    assert first.returncode == 0, first.stderr
    kept = json.loads((tmp_path / "sweep.json").read_text())
    assert set(kept["cells"]["add/10/float32/contiguous"]["seconds"]) == {"weft", "numpy"}
    second = bench("--cells", "add/10/float32/contiguous,sort/8x3/int8/sliced", *options, folder=tmp_path)
    now = json.loads((tmp_path / "sweep.json").read_text())
    assert now["cells"]["add/10/float32/contiguous"] == kept["cells"]["add/10/float32/contiguous"]
    assert now["cells"]["sort/8x3/int8/sliced"]["errors"] == {}
    assert second.stdout.splitlines()[-1].startswith("worst cell: ")
    assert (tmp_path / "sweep.txt").read_text().splitlines()[-2:] == second.stdout.splitlines()[-2:]
    assert "<table>" in (tmp_path / "sweep.html").read_text()


@pytest.mark.parametrize("option", ["operations", "dtypes", "layouts", "peers"])
def test_unknown_words_are_named(option: str, tmp_path: Path) -> None:
    result = bench(f"--{option}", "absent", folder=tmp_path)
    assert result.returncode == 2
    assert f"no such {option}: absent; there are" in result.stderr


def test_bench_keeps_the_tables_of_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import report

    assert report.kept_sections("# Benchmark results\n\nold figures\n") == ""
    table = f"{report.SWEEP}\n\n| cell | ratio |\n"
    assert report.kept_sections(f"# Benchmark results\n\nold figures\n\n{table}") == f"\n{table}"
    for name in ("report", "catalog"):
        sys.modules.pop(name, None)


# ---- turns ----


def test_a_turn_waits_until_the_threads_of_others_sleep(sweep: Any, tmp_path: Path) -> None:
    run = sweep.run
    stays_awake = (
        "import time; end = time.monotonic() + 0.2\nwhile time.monotonic() < end: pass\nprint(); time.sleep(60)"
    )
    worker = run.Worker("numpy", sys.executable, 1, dict(os.environ), tmp_path / "log")
    worker.settle()  # one that has not started is quiet
    worker.process = subprocess.Popen(
        [sys.executable, "-c", stays_awake], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert worker.process.stdout.read(1) == b"\n"
        worker.settle()
        assert not worker._runs()
    finally:
        worker.stop()
