"""`weft check script.py`: what the checks of weft/checking.py found in a program, in words."""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from weft.checking import Finding, Tally
from weft.report.text import plural, short

HEADS = {
    "program": "wrong result (a fault of Weft: please report it)",
    "reference": "wrong result (a fault of Weft: please report it)",
    "bounds": "index out of range",
    "nan": "first NaN",
}


def render(findings: Sequence[Finding], tally: Tally) -> str:
    """One paragraph for each finding, and a line that says what was checked."""
    parts = [_finding(finding) for finding in findings]
    checked = f"{plural(tally.operations, 'operation')} in {plural(tally.runs, 'run')} of "
    found = plural(len(findings), "finding") if findings else "nothing wrong"
    parts.append(f"weft check: {checked}{plural(tally.programs, 'program')}: {found}")
    return "\n\n".join(parts)


def _finding(finding: Finding) -> str:
    lines = [f"{HEADS[finding.kind]}: {finding.op} {finding.message}"]
    if finding.line is not None:
        inside = f", in {finding.line.function}" if finding.line.function != "<module>" else ""
        lines.append(f"  {short(finding.line)}{inside}")
        source = linecache.getline(finding.line.file, finding.line.number).strip()
        if source:
            lines.append(f"    {source}")
    return "\n".join(lines)
