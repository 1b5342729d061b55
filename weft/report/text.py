"""The text form of a report: for terminals, files and diffs. Plain characters, one fact a line."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.graph.lines import Line
from weft.llvm import engine
from weft.report.facts import Facts, KernelFacts, Stage
from weft.report.limits import Limits

if TYPE_CHECKING:
    from weft.report.explain import Explained, Report

WIDTH = 100
MOST_LISTED = 400
"""Operations and changes of one stage that are listed; the page shows all."""


def render(report: Report, llvm: bool = False, asm: bool = False) -> str:
    """The whole report."""
    parts = [f"weft explain: {report.title}"]
    if report.limits is not None:
        parts.append("\n".join(machine(report.limits)))
    if len(report.programs) > 1:
        parts.append("\n".join(_overview(report.programs)))
    for number, program in enumerate(report.programs):
        if len(report.programs) > 1:
            parts.append(_rule(f"program {number}: {program.name}"))
        parts.extend("\n".join(section) for section in _program(program, llvm, asm))
    return "\n\n".join(parts)


def _program(program: Explained, llvm: bool, asm: bool) -> Iterator[list[str]]:
    facts = program.facts
    yield _summary(program)
    if program.traces:
        yield ["== traces", *(f"  {i + 1}. {cause}" for i, cause in enumerate(program.traces))]
    yield _traced(facts.stages[0])
    for before, stage in zip(facts.stages[:-1], facts.stages[1:], strict=True):
        yield _pass(before, stage)
    yield _kernels(facts)
    yield _memory(facts)
    if program.updates:
        yield ["== state", *(f"  {line}" for line in program.updates)]
    if llvm or asm:
        yield from _code(facts, llvm, asm)


def machine(limits: Limits) -> list[str]:
    rates = ", ".join(f"{rate / 1e9:.0f} GB/s up to {size_text(size)}" for size, rate in limits.bandwidth[:-1])
    single, double = (limits.flops[name] / 1e9 for name in ("float32", "float64"))
    return [
        f"machine: {limits.cpu}, {plural(limits.threads, 'thread')}; copies {rates}, "
        f"{limits.bandwidth[-1][1] / 1e9:.0f} GB/s beyond; products {single:.0f} GFLOP/s in float32, {double:.0f} in "
        "float64",
    ]


def _overview(programs: Sequence[Explained]) -> list[str]:
    lines = ["== programs, the longest first"]
    for number, p in enumerate(programs):
        time = f"{time_text(p.seconds)} in {plural(p.calls, 'run')}" if p.calls else "not run"
        lines.append(f"  {number}: {p.name} ({plural(len(p.facts.kernels), 'kernel')}, {time}){_at(p.line)}")
    return lines


def _summary(program: Explained) -> list[str]:
    facts = program.facts
    first, last = len(facts.stages[0].operations), len(facts.kernels)
    lines = [f"== {program.name}: {plural(first, 'node')} in {plural(last, 'kernel')}{_at(program.line)}"]
    if facts.total is not None:
        bound = sum(k.least or 0.0 for k in facts.kernels)
        share = f", {bound / facts.total:.0%} of the machine's limit" if facts.total and facts.kernels else ""
        lines.append(f"  {time_text(facts.total)} a run{share}")
    return lines


def _at(line: Line | None) -> str:
    return f"  [{short(line)}]" if line is not None else ""


def short(line: Line) -> str:
    """The line with its file's path from here, where that is shorter."""
    if line.file.startswith("<"):
        return str(line)
    near = os.path.relpath(line.file)
    return f"{line.file if near.startswith('..') else near}:{line.number}"


def _traced(stage: Stage) -> list[str]:
    """The graph as the function asked for it, grouped by the user's lines."""
    count = sum(op.role != "input" for op in stage.operations)
    lines = [f"== traced: {plural(count, 'operation')}"]
    before: Line | None = None
    for op in stage.operations[:MOST_LISTED]:
        if op.role == "input":
            lines.append(f"  %{op.number} = {op.title} : {op.kind}")
            continue
        if op.line is not None and op.line != before:
            source = linecache.getline(op.line.file, op.line.number).strip()
            lines.append(f"  # {short(op.line)}{'  ' + source if source else ''}")
            before = op.line
        operands = ", ".join(f"%{o}" if isinstance(o, int) else o for o in op.operands)
        lines.append(f"  %{op.number} = {op.text}{' ' + operands if operands else ''} : {op.kind}")
        for name, body in op.bodies:
            lines.append(f"    {name}:")
            lines.extend(f"      {inner}" for inner in body.splitlines())
    if len(stage.operations) > MOST_LISTED:
        lines.append(f"  … and {len(stage.operations) - MOST_LISTED} more")
    lines.append(f"  return {', '.join(f'%{o}' for o in stage.outputs)}")
    return lines


def _pass(before: Stage, stage: Stage) -> list[str]:
    says = f" ({stage.says})" if stage.says else ""
    if not stage.changes:
        return [f"== {stage.name}{says}: no change"]
    counts = f"{len(before.operations)} -> {len(stage.operations)} nodes"
    lines = [f"== {stage.name}{says}: {counts}"]
    for change in stage.changes[:MOST_LISTED]:
        match change.what:
            case "merged":
                lines.append(f"  - %{change.number} {change.text}: the same as %{change.to}")
            case "replaced":
                lines.append(f"  - %{change.number} {change.text}: now %{change.to}")
            case "rewritten":
                lines.append(f"  ~ %{change.number} {change.text}")
            case "removed":
                lines.append(f"  - %{change.number} {change.text}: nothing needs it any more")
            case _:
                lines.append(f"  + %{change.number} {change.text}")
    if len(stage.changes) > MOST_LISTED:
        lines.append(f"  … and {len(stage.changes) - MOST_LISTED} more")
    return lines


def _kernels(facts: Facts) -> list[str]:
    lines = [f"== kernels: {len(facts.kernels)}"]
    operations = {op.number: op for op in facts.stages[-1].operations}
    for kernel in facts.kernels:
        titles = " ".join(operations[n].title for n in kernel.nodes)
        lines.append(f"  {kernel.number}: {kernel.form} {kernel.loops} [{titles}]")
        made_of = ", ".join(f"%{n}" for n in kernel.nodes)
        lines.append(f"     nodes {made_of}; writes {', '.join(f'%{n} {operations[n].kind}' for n in kernel.writes)}")
        lines.append(f"     {_figures(kernel)}")
        places = list(dict.fromkeys(line for n in kernel.nodes if (line := operations[n].line) is not None))
        if places:
            lines.append(f"     from {', '.join(map(short, places[:4]))}{' …' if len(places) > 4 else ''}")
        for launch in kernel.launches:
            lines.append(f"     runs {launch.name}, {launch.shared}")
        lines.extend(f"     {note}" for note in kernel.notes)
    return lines


def _figures(kernel: KernelFacts) -> str:
    parts = [f"moves {size_text(kernel.nbytes)}", f"{count_text(kernel.flops)} flop"]
    if kernel.seconds is not None:
        parts.append(time_text(kernel.seconds))
        parts.append(f"{kernel.nbytes / kernel.seconds / 1e9:.1f} GB/s")
        parts.append(f"{kernel.flops / kernel.seconds / 1e9:.1f} GFLOP/s")
    if kernel.share_of_limit is not None:
        parts.append(f"{kernel.share_of_limit:.0%} of the {kernel.limit} limit")
    return ", ".join(parts)


def _memory(facts: Facts) -> list[str]:
    memory = facts.memory
    lines = [
        f"== memory: {size_text(memory.arena)} of temporaries (at least {size_text(memory.lower_bound)} are alive at "
        f"once), {size_text(memory.inputs)} of inputs, {size_text(memory.outputs)} of results"
    ]
    for stored in facts.stored:
        if stored.first < 0 or stored.number is None:
            continue
        where = "a result" if stored.where == "output" else f"at byte {stored.at}"
        way = f"takes the place of %{stored.over}" if stored.over is not None else f"new place: {stored.note}"
        lines.append(f"  %{stored.number} {stored.name} {stored.kind}, {where}; {way}")
    return lines


def _code(facts: Facts, llvm: bool, asm: bool) -> Iterator[list[str]]:
    seen: set[str] = set()
    for kernel in facts.kernels:
        for launch in kernel.launches:
            if launch.name in seen:
                continue
            seen.add(launch.name)
            if llvm:
                yield [f"== LLVM IR of {launch.name}", engine.llvm_text(launch.source)]
            if asm:
                yield [f"== assembly of {launch.name}", engine.assembly(launch.source)]


# ---- numbers ----


def _rule(title: str) -> str:
    return f"---- {title} ".ljust(WIDTH, "-")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_text(nbytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"


def count_text(count: float) -> str:
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}T"


def time_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
