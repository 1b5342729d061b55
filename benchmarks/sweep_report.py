"""What the sweep found, as a table, as a heat map and as two figures.

A ratio is the time of the fastest other peer over Weft's: above 1, Weft is the faster one.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sweep_cells import OPERATIONS, Cell

WEFT = "weft"
BEHIND = 0.9
"""Cells below this ratio are listed with the limit that they meet."""
DEEPEST = 3.0
"""Powers of two from even to the darkest colour."""


@dataclass
class Measured:
    """What one cell gave: seconds of a call and to the first result by peer, and which limit Weft meets."""

    seconds: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    limit: str = ""
    share: float | None = None

    @property
    def best_peer(self) -> str | None:
        others = {peer: time for peer, time in self.seconds.items() if peer != WEFT}
        return min(others, key=others.__getitem__, default=None)

    @property
    def ratio(self) -> float | None:
        peer = self.best_peer
        return None if peer is None or WEFT not in self.seconds else self.seconds[peer] / self.seconds[WEFT]


@dataclass
class Sweep:
    """All cells that were measured, by name, and under which circumstances."""

    settings: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    cells: dict[str, Measured] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        scratch = path.with_suffix(".part")
        scratch.write_text(json.dumps(asdict(self), indent=1) + "\n")
        scratch.replace(path)  # a sweep that is stopped here can still be taken up

    @classmethod
    def load(cls, path: Path) -> Sweep:
        raw = json.loads(path.read_text())
        cells = {name: Measured(**cell) for name, cell in raw["cells"].items()}
        return cls(raw["settings"], raw["versions"], cells)

    def ratios(self) -> dict[str, float]:
        return {name: ratio for name, cell in self.cells.items() if (ratio := cell.ratio) is not None}


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


# ---- table ----


def table(sweep: Sweep) -> str:
    """All cells, the slowest beside its peers first; those behind with their limit. The two figures come last."""
    ratios = sweep.ratios()
    width = max(map(len, ratios), default=4)
    lines = [f"{'cell':{width}}  ratio  weft µs  best µs  best peer  limit"]
    for name in sorted(ratios, key=ratios.__getitem__):
        cell = sweep.cells[name]
        peer = cell.best_peer or ""
        times = f"{cell.seconds[WEFT] * 1e6:8,.1f} {cell.seconds[peer] * 1e6:8,.1f}"
        lines.append(f"{name:{width}} {ratios[name]:6.2f} {times}  {peer:9}  {limit_text(cell)}".rstrip())
    lines += [f"{name}: {error}" for name, cell in sweep.cells.items() for error in own_errors(cell)]
    return "\n".join([*lines, "", *figures(sweep)]) + "\n"


def limit_text(cell: Measured) -> str:
    return "" if not cell.limit else cell.limit if cell.share is None else f"{cell.limit}, {cell.share:.0%} of it"


def own_errors(cell: Measured) -> list[str]:
    return [f"error: {cell.errors[WEFT]}"] if WEFT in cell.errors else []


def figures(sweep: Sweep) -> list[str]:
    """Geometric mean and worst cell."""
    ratios = sweep.ratios()
    if not ratios:
        return ["geometric mean: no cell was measured beside a peer", "worst cell: none"]
    worst = min(ratios, key=ratios.__getitem__)
    behind = sum(ratio < BEHIND for ratio in ratios.values())
    return [
        f"geometric mean: {geometric_mean(ratios.values()):.2f} over {len(ratios)} cells, {behind} below {BEHIND}",
        f"worst cell: {ratios[worst]:.2f} {worst}",
    ]


# ---- heat map ----


@dataclass(frozen=True)
class Panel:
    """One operation a row, one value of an axis of the space a column: geometric means, and the worst cells."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    means: Sequence[Sequence[float | None]]
    worst: Sequence[Sequence[tuple[float, str] | None]]


AXES: dict[str, Callable[[Cell], str]] = {
    "shape": lambda cell: (
        "x".join(["few" if cell.shape[0] <= 8 else "many", str(cell.shape[1])]) if len(cell.shape) > 1 else cell.size
    ),
    "dtype": lambda cell: cell.dtype,
    "layout": lambda cell: cell.layout,
}


def panels(sweep: Sweep) -> list[Panel]:
    ratios = {Cell.named(name): ratio for name, ratio in sweep.ratios().items()}
    rows = [operation for operation in OPERATIONS if any(cell.operation == operation for cell in ratios)]
    return [panel(title, rows, ratios, column) for title, column in AXES.items()]


def panel(title: str, rows: Sequence[str], ratios: dict[Cell, float], column: Callable[[Cell], str]) -> Panel:
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for cell, ratio in ratios.items():
        found.setdefault((cell.operation, column(cell)), []).append((ratio, cell.name))
    columns = sorted({name for _, name in found}, key=_column_order)
    means = [[_mean(found.get((row, name))) for name in columns] for row in rows]
    worst = [[min(found[row, name]) if (row, name) in found else None for name in columns] for row in rows]
    return Panel(title, rows, columns, means, worst)


def _mean(entries: list[tuple[float, str]] | None) -> float | None:
    return None if entries is None else geometric_mean(ratio for ratio, _ in entries)


def _column_order(name: str) -> tuple[int, str, int]:
    """Names in alphabetical order, numbers in theirs; few rows before many before vectors."""
    kind, _, number = name.rpartition("x")
    return (2, kind, int(number)) if name.isdigit() else (1, kind, int(number)) if number.isdigit() else (0, name, 0)


def colour(ratio: float | None) -> tuple[int, int, int]:
    """Green where Weft is ahead, red where it is behind, white at even, grey where nothing was measured."""
    if ratio is None:
        return (225, 225, 225)
    depth = max(-1.0, min(1.0, math.log2(ratio) / DEEPEST))
    end = (20, 120, 60) if depth > 0 else (180, 30, 30)
    return tuple(round(255 + (channel - 255) * abs(depth)) for channel in end)  # type: ignore[return-value]


def page(sweep: Sweep) -> str:
    """The heat map and the table as one page without any reference to the outside."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>weft bench sweep</title>",
        "<style>body{font:14px system-ui;margin:2em}table{border-collapse:collapse;margin:1em 0}"
        "td,th{padding:2px 6px;font-weight:normal;text-align:right}th:first-child{text-align:left}</style>",
        "<h1>Sweep</h1><p>Time of the fastest other peer over Weft's: green above 1, red below. A cell of the map is a "
        "geometric mean; hover for the worst cell in it.</p>",
        "<p>" + "<br>".join(html.escape(f"{key}: {value}") for key, value in circumstances(sweep).items()) + "</p>",
        *map(_panel_html, panels(sweep)),
        f"<pre>{html.escape(table(sweep))}</pre></html>",
    ]
    return "\n".join(parts) + "\n"


def circumstances(sweep: Sweep) -> dict[str, Any]:
    return {**sweep.settings, **sweep.versions}


def _panel_html(shown: Panel) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *shown.columns))
    body = ""
    for row, means, worst in zip(shown.rows, shown.means, shown.worst, strict=True):
        body += f"<tr><th>{html.escape(row)}</th>"
        for mean, low in zip(means, worst, strict=True):
            red, green, blue = colour(mean)
            title = "" if low is None else html.escape(f"worst: {low[0]:.2f} {low[1]}", quote=True)
            text = "" if mean is None else f"{mean:.2f}"
            body += f'<td style="background:rgb({red},{green},{blue})" title="{title}">{text}</td>'
        body += "</tr>"
    return f"<h2>by {html.escape(shown.title)}</h2><table><tr>{head}</tr>{body}</table>"


def picture(sweep: Sweep, path: Path) -> bool:
    """The heat map as a PNG; False where matplotlib is missing, which draws it."""
    try:
        from matplotlib.figure import Figure  # an optional dependency
    except ImportError:
        return False
    drawn = panels(sweep)
    wide = [max(1, len(shown.columns)) for shown in drawn]
    figure = Figure(figsize=(3 + 0.42 * sum(wide), 1.6 + 0.24 * max(1, len(drawn[0].rows))), layout="constrained")
    places = figure.subplots(1, len(drawn), sharey=True, width_ratios=wide, squeeze=False)[0]
    for place, shown in zip(places, drawn, strict=True):
        if not shown.rows:
            continue
        place.imshow([[colour(mean) for mean in row] for row in shown.means], aspect="auto")
        place.set_title(f"by {shown.title}", fontsize=9)
        place.set_xticks(range(len(shown.columns)), shown.columns, rotation=90, fontsize=7)
        place.set_yticks(range(len(shown.rows)), shown.rows, fontsize=7)
        for y, row in enumerate(shown.means):
            for x, mean in enumerate(row):
                if mean is not None:
                    place.text(x, y, f"{mean:.1f}", ha="center", va="center", fontsize=5.5)
    figure.suptitle("best peer / Weft: " + "; ".join(figures(sweep)), fontsize=9)
    figure.savefig(path, dpi=130)
    return True


def write(sweep: Sweep, folder: Path) -> list[Path]:
    """All forms of the result; what was written."""
    sweep.save(folder / "sweep.json")
    (folder / "sweep.txt").write_text(table(sweep))
    (folder / "sweep.html").write_text(page(sweep))
    written = [folder / name for name in ("sweep.json", "sweep.txt", "sweep.html")]
    return [*written, folder / "sweep.png"] if picture(sweep, folder / "sweep.png") else written
