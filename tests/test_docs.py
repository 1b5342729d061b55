"""What the documentation shows is what happens: the examples in docs/control_flow.md, in order and in one session, and
those of the functions it is about."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import weft.core as mx
from weft.core import looping

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("control_flow.md",)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def check(text: str, names: dict[str, object], name: str, line: int = 0) -> dict[str, object]:
    """Run what the text shows, which must be something; the names that there are afterwards."""
    test = doctest.DocTestParser().get_doctest(text, names, name, name, line)
    assert test.examples, f"{name}:{line} shows nothing that could be checked"
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)
    return test.globs


@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str) -> None:
    text = (DOCS / page).read_text()
    blocks = list(FENCE.finditer(text))
    assert text.count("```python") == len(blocks)
    names: dict[str, object] = {}
    for block in blocks:
        names = check(block[1], names, page, text[: block.start(1)].count("\n"))


FUNCTIONS = ("scan", "while_loop", "fori_loop", "map", "cond", "switch", "associative_scan")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function = getattr(looping, name)
    assert getattr(mx, name) is function
    check(function.__doc__, dict(vars(mx)), name)
