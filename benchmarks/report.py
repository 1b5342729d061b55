"""What `run.py` found out, as tables: for the terminal, and as the Markdown of RESULTS.md.

The figures are the best of all rounds, and a ratio is Weft's time divided by that of the fastest other peer, so below 1
Weft is the faster one.
"""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from catalog import TRAFFIC
from rich.console import Console
from rich.table import Table

WEFT, COPY = "weft", "copy"
SWEEP = "# Sweep over operations, shapes, dtypes and layouts"
"""Where the tables of `weft bench sweep` begin in the file of results."""


@dataclass
class Results:
    """Every answer of every worker: `answers[workload][peer]` is a list with one entry per round."""

    machine: dict[str, str]
    versions: dict[str, str]
    rounds: int
    budget_s: float
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))
    answers: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    imports: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, peer: str, number: int, answer: dict[str, Any]) -> None:
        self.answers.setdefault(name, {}).setdefault(peer, []).append({"round": number, **answer})

    def best(self, name: str, peer: str) -> float | None:
        """Seconds of the fastest call of all rounds."""
        return least(self.answers[name].get(peer, []), "best_s")

    def first(self, name: str, peer: str, *, cached: bool) -> float | None:
        """Seconds to the first result: with empty caches, or in a later process that finds them filled."""
        rows = self.answers[name].get(peer, [])
        return least([row for row in rows if (row["round"] > 0) == cached], "first_s")

    def error(self, name: str, peer: str) -> str | None:
        return next((row["error"] for row in self.answers[name].get(peer, []) if "error" in row), None)

    def ratio(self, name: str) -> float | None:
        """Weft's time over that of the fastest other peer."""
        own = self.best(name, WEFT)
        others = [time for peer in self.versions if peer != WEFT and (time := self.best(name, peer)) is not None]
        return own / min(others) if own is not None and others else None

    def share_of_copy(self, name: str) -> float | None:
        """How much of the bandwidth of a plain copy of the same bytes Weft reaches."""
        own, copied = self.best(name, WEFT), self.best(name, COPY)
        return copied / own if own is not None and copied is not None and name in TRAFFIC else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def least(rows: list[dict[str, Any]], key: str) -> float | None:
    return min((row[key] for row in rows if key in row), default=None)


def machine(threads: int) -> dict[str, str]:
    """The machine in words; its load at the start tells how quiet it was."""
    memory = next((line for line in lines("/proc/meminfo") if line.startswith("MemTotal")), "")
    gib = f"{int(memory.split()[1]) / 2**20:.0f} GiB" if memory else "unknown"
    names = [line.partition(":")[2].strip() for line in lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(),
        "threads": str(threads),
        "memory": gib,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load at start": f"{os.getloadavg()[0]:.2f}",
    }


def lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.is_file() else []


@dataclass(frozen=True)
class Grid:
    """A table before it is drawn: a title, a head, rows of text."""

    title: str
    head: list[str]
    rows: list[list[str]]


def grids(results: Results) -> list[Grid]:
    return [grid for grid in (steady(results), firsts(results), startup(results)) if grid.rows]


def steady(results: Results) -> Grid:
    peers = list(results.versions)
    rows = []
    for name in results.answers:
        cells = [cell(results.best(name, peer), 1e6, results.error(name, peer)) for peer in peers]
        rows.append([name, *cells, times(results.ratio(name)), percent(results.share_of_copy(name))])
    return Grid("Best time of a call, µs", ["workload", *peers, "weft / best", "of copy"], rows)


def firsts(results: Results) -> Grid:
    """Two figures a peer: with empty caches, and in a second process."""
    peers = list(results.versions)
    rows = []
    for name in results.answers:
        cells = []
        for peer in peers:
            cold, warm = (results.first(name, peer, cached=cached) for cached in (False, True))
            error = results.error(name, peer)
            later = "" if warm is None else f" / {cell(warm, 1e3, None)}"
            cells.append(cell(cold, 1e3, error) + later)
        rows.append([name, *cells])
    return Grid("Time to the first result, ms: new program / second process", ["workload", *peers], rows)


def startup(results: Results) -> Grid:
    rows = [[peer, cell(min(times), 1e3, None)] for peer, times in results.imports.items() if times]
    return Grid("Import, ms over a bare Python", ["peer", "import"], rows)


def cell(seconds: float | None, scale: float, error: str | None) -> str:
    if seconds is None:
        return "error" if error else "–"
    value = seconds * scale
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def notes(results: Results) -> list[str]:
    """The errors behind the cells that say so."""
    return [
        f"{name}, {peer}: {' '.join(error.split())[:200]}"
        for name, answers in results.answers.items()
        for peer in answers
        if (error := results.error(name, peer)) and peer in results.versions
    ]


def show(results: Results, console: Console) -> None:
    for grid in grids(results):
        table = Table(title=grid.title, title_justify="left", header_style="bold")
        for place, column in enumerate(grid.head):
            table.add_column(column, justify="left" if place == 0 else "right", no_wrap=place == 0)
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
    for note in notes(results):
        console.print(f"[red]error[/] {note}", highlight=False)


def markdown(results: Results) -> str:
    versions = ", ".join(f"{peer} {version}" for peer, version in results.versions.items())
    parts = [
        "# Benchmark results",
        "Written by `make bench`; figures as measured, the best of all rounds. A ratio is Weft's time over that of\n"
        "the fastest other peer: below 1, Weft is faster. *Of copy* is the share of the bandwidth of a plain threaded\n"
        "copy of the same bytes that a memory-bound workload reaches.",
        "\n".join(f"- {key}: {value}" for key, value in machine_lines(results).items()) + f"\n- versions: {versions}",
        *(markdown_table(grid) for grid in grids(results)),
    ]
    if errors := notes(results):
        parts.append("## Errors\n\n" + "\n".join(f"- {note}" for note in errors))
    return "\n\n".join(parts) + "\n"


def kept_sections(before: str) -> str:
    """What the file had from `SWEEP` on, which other programs measure."""
    _, found, rest = before.partition(f"\n{SWEEP}\n")
    return f"\n{found.strip()}\n{rest}" if found else ""


def machine_lines(results: Results) -> dict[str, str]:
    rounds = f"{results.rounds} of {results.budget_s:g} s per workload and peer, interleaved"
    return {"date": results.date, **results.machine, "rounds": rounds}


def markdown_table(grid: Grid) -> str:
    rule = ["---", *["---:"] * (len(grid.head) - 1)]
    rows = [grid.head, rule, *grid.rows]
    return f"## {grid.title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)
