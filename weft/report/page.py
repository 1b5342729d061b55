"""The page of a report: one HTML file with its style, its script and its data inside.

The script draws what is in the data and computes nothing about the program: positions of boxes and routes of edges come
from weft/report/layout.py, everything else from the facts.
"""

from __future__ import annotations

import html
import json
import linecache
import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from weft.graph.lines import Line
from weft.llvm import engine
from weft.report.facts import Facts, KernelFacts, Operation, Stage
from weft.report.layout import Drawing, draw
from weft.report.text import short
from weft.version import __version__

if TYPE_CHECKING:
    from weft.report.explain import Explained, Report

NODE_HEIGHT = 44.0
LETTER = 7.3
"""Width of a letter of the page's type, in its own pixels."""
INSET, HEAD, CELL_GAP = 14.0, 46.0, 10.0
"""Of a kernel's box: room at the sides, for its title, and between the operations in it."""


def render(report: Report) -> str:
    """The whole page."""
    part = files("weft.report")
    data = json.dumps(_data(report), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = part.joinpath("page.html").read_text(encoding="utf-8")
    for name, content in (
        ("title", html.escape(report.title)),
        ("style", part.joinpath("page.css").read_text(encoding="utf-8")),
        ("script", part.joinpath("page.js").read_text(encoding="utf-8")),
        ("data", data),
    ):
        page = page.replace("{{ " + name + " }}", content)
    return page


def framed(page: str) -> str:
    return f'<iframe style="width:100%;height:720px;border:0" srcdoc="{html.escape(page, quote=True)}"></iframe>'


def _data(report: Report) -> dict[str, Any]:
    limits = report.limits
    return {
        "title": report.title,
        "version": __version__,
        "machine": None
        if limits is None
        else {
            "cpu": limits.cpu,
            "threads": limits.threads,
            "bandwidth": limits.bandwidth,
            "flops": limits.flops,
        },
        "programs": [_program(p) for p in report.programs],
        "code": _code(report),
    }


def _code(report: Report) -> dict[str, dict[str, str]]:
    """The code of every native function, by its name."""
    found: dict[str, dict[str, str]] = {}
    for program in report.programs:
        for kernel in program.facts.kernels:
            for launch in kernel.launches:
                if launch.name not in found:
                    found[launch.name] = {
                        "kernel": launch.text,
                        "llvm": engine.llvm_text(launch.source).strip(),
                        "asm": engine.assembly(launch.source).strip(),
                    }
    return found


def _program(program: Explained) -> dict[str, Any]:
    facts = program.facts
    kernel_of = {n: kernel.number for kernel in facts.kernels for n in kernel.nodes}
    stages = [_stage(stage, kernel_of) for stage in facts.stages]
    stages.append(_kernel_stage(facts, kernel_of))
    return {
        "name": program.name,
        "line": _line(program.line),
        "calls": program.calls,
        "seconds": program.seconds,
        "traces": program.traces,
        "updates": program.updates,
        "total": facts.total,
        "stages": stages,
        "kernels": [_kernel(k, facts) for k in facts.kernels],
        "stored": [
            {
                "number": s.number, "name": s.name, "kind": s.kind, "bytes": s.nbytes, "where": s.where, "at": s.at,
                "first": s.first, "last": s.last, "over": s.over, "note": s.note,
            }
            for s in facts.stored
        ],
        "memory": {
            "arena": facts.memory.arena,
            "bound": facts.memory.lower_bound,
            "inputs": facts.memory.inputs,
            "outputs": facts.memory.outputs,
        },
    }  # fmt: skip


def _line(line: Line | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {
        "text": short(line),
        "function": line.function,
        "source": linecache.getline(line.file, line.number).strip(),
    }


# ---- stages ----


def _label(op: Operation) -> str:
    constants = [o for o in op.operands if isinstance(o, str)]
    return " ".join([op.title, *constants[:2]])


def _size(op: Operation) -> tuple[float, float]:
    letters = max(len(_label(op)), 0.97 * len(op.kind))
    return min(26 + LETTER * letters, 300.0), NODE_HEIGHT


def _stage(stage: Stage, kernel_of: dict[int, int]) -> dict[str, Any]:
    sizes = {op.number: _size(op) for op in stage.operations}
    edges = _edges(stage)
    drawing = draw(sizes, [(a, b) for a, b in edges])
    return {
        "name": stage.name,
        "says": stage.says,
        "changes": [{"number": c.number, "what": c.what, "text": c.text, "to": c.to} for c in stage.changes],
        "nodes": [_node(op, drawing.places[op.number], sizes[op.number], kernel_of) for op in stage.operations],
        "edges": _routes(edges, drawing, {op.number: op.nbytes for op in stage.operations}),
        "boxes": [],
        "outputs": stage.outputs,
        "size": [drawing.width, drawing.height],
    }


def _edges(stage: Stage) -> list[tuple[int, int]]:
    present = {op.number for op in stage.operations}
    pairs = ((o, op.number) for op in stage.operations for o in op.operands if isinstance(o, int) and o in present)
    return list(dict.fromkeys(pairs))


def _routes(edges: list[tuple[int, int]], drawing: Drawing, nbytes: dict[int, int]) -> list[dict[str, Any]]:
    return [
        {"from": a, "to": b, "points": route, "bytes": nbytes.get(a, 0)}
        for (a, b), route in zip(edges, drawing.routes, strict=True)
    ]


def _node(op: Operation, place: tuple[float, float], size: tuple[float, float], kernel_of: dict[int, int]) -> Any:
    made = {
        "number": op.number, "label": _label(op), "text": op.text, "kind": op.kind, "bytes": op.nbytes,
        "operands": op.operands, "role": op.role, "x": place[0], "y": place[1], "w": round(size[0], 1), "h": size[1],
        "kernel": kernel_of.get(op.number),
    }  # fmt: skip
    if op.line is not None:
        made["line"] = _line(op.line)
    if op.bodies:
        made["bodies"] = op.bodies
    return made


def _kernel_stage(facts: Facts, kernel_of: dict[int, int]) -> dict[str, Any]:
    """The last stage: inputs, and one box for each kernel with its operations in it."""
    last = facts.stages[-1]
    operations = {op.number: op for op in last.operations}
    inputs = [op for op in last.operations if op.role == "input"]
    cells = {k.number: _cells(k, operations) for k in facts.kernels}
    first_box = max(operations, default=0) + 1
    sizes = {op.number: _size(op) for op in inputs}
    sizes |= {first_box + k: (width, height) for k, (_, width, height) in cells.items()}
    edges: dict[tuple[int, int], int] = {}
    for kernel in facts.kernels:
        for read in kernel.reads:
            source = first_box + kernel_of[read] if read in kernel_of else read
            pair = (source, first_box + kernel.number)
            edges[pair] = edges.get(pair, 0) + (operations[read].nbytes if read in operations else 0)
    drawing = draw(sizes, list(edges))
    nodes = [_node(op, drawing.places[op.number], sizes[op.number], kernel_of) for op in inputs]
    boxes = []
    for kernel in facts.kernels:
        inner, width, height = cells[kernel.number]
        x, y = drawing.places[first_box + kernel.number]
        boxes.append({"kernel": kernel.number, "x": x, "y": y, "w": width, "h": height})
        for number, (dx, dy) in inner.items():
            op = operations[number]
            nodes.append(_node(op, (round(x + dx, 1), round(y + dy, 1)), _size(op), kernel_of))
    routes = [
        {"from": a - first_box if a >= first_box else a, "to": b - first_box, "points": route, "bytes": nbytes,
         "from_kernel": a >= first_box, "to_kernel": True}
        for ((a, b), nbytes), route in zip(edges.items(), drawing.routes, strict=True)
    ]  # fmt: skip
    dropped = [op for op in last.operations if op.role == "view"]
    says = "what shares a loop nest; a view is only a way to read, so it needs no kernel"
    return {
        "name": "kernels",
        "says": says if dropped else "what shares a loop nest",
        "changes": [],
        "nodes": nodes,
        "edges": routes,
        "boxes": boxes,
        "outputs": last.outputs,
        "size": [drawing.width, drawing.height],
    }


def _cells(
    kernel: KernelFacts, operations: dict[int, Operation]
) -> tuple[dict[int, tuple[float, float]], float, float]:
    """Places of a kernel's operations in its box, in rows, and the size of the box."""
    widths = {n: _size(operations[n])[0] for n in kernel.nodes}
    area = sum(w + CELL_GAP for w in widths.values()) * (NODE_HEIGHT + CELL_GAP)
    room = max(260.0, *widths.values(), math.sqrt(area) * 1.5)
    places: dict[int, tuple[float, float]] = {}
    x, y, widest = INSET, HEAD, 0.0
    for number, width in widths.items():
        if x > INSET and x + width > INSET + room:
            x, y = INSET, y + NODE_HEIGHT + CELL_GAP
        places[number] = (x, y)
        x += width + CELL_GAP
        widest = max(widest, x - CELL_GAP)
    return places, round(max(widest + INSET, 250.0), 1), y + NODE_HEIGHT + INSET


def _kernel(kernel: KernelFacts, facts: Facts) -> dict[str, Any]:
    return {
        "number": kernel.number, "form": kernel.form, "loops": kernel.loops, "nodes": kernel.nodes,
        "reads": kernel.reads, "writes": kernel.writes, "bytes": kernel.nbytes, "flops": kernel.flops,
        "seconds": kernel.seconds, "least": kernel.least, "limit": kernel.limit, "notes": kernel.notes,
        "launches": [{"name": x.name, "shared": x.shared} for x in kernel.launches],
    }  # fmt: skip
