"""What the documentation shows is what happens: sessions and programs in docs/, the examples in docstrings, and the
files and links that are named. (Those of README.md are in test_packaging.py.)"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.nn
from tests import contract
from weft.config import config
from weft.core import elementwise as functions
from weft.primitives import elementwise
from weft.primitives.base import Elementwise
from weft.primitives.contraction import Matmul

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SESSIONS = ("control_flow.md", "custom_kernels.md", "linear_algebra.md")
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples write files, and draw from the global random state."""
    monkeypatch.chdir(tmp_path)
    before = list(mx.random.state)
    yield
    mx.random.state[:] = before


def blocks(page: str) -> list[re.Match[str]]:
    text = (DOCS / page).read_text()
    found = list(FENCE.finditer(text))
    assert text.count("```python") == len(found)
    return found


def check(text: str, names: dict[str, Any], name: str, line: int = 0) -> dict[str, Any]:
    """Run what the text shows, which must be something; the names that there are afterwards."""
    test = doctest.DocTestParser().get_doctest(text, names, name, name, line)
    assert test.examples, f"{name}:{line} shows nothing that could be checked"
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)
    return test.globs


# ---- pages ----


@pytest.mark.parametrize("page", SESSIONS)
def test_sessions(page: str) -> None:
    """In order, and in one session."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        names = check(block[1], names, page, block.string[: block.start(1)].count("\n"))


# What a page takes for granted: names that stand for the reader's own.
GIVEN: dict[str, dict[str, Any]] = {
    "compile.md": {"mx": mx, "w": mx.zeros((2, 2))},
    "environment.md": {},
    "explain.md": {"step": lambda w, x: mx.tanh(x @ w), "model": mx.ones((3, 3)), "batch": mx.ones((2, 3))},
    "export.md": {"mx": mx, "model": lambda x: mx.tanh(x) * 2, "x": mx.ones((3,))},
    "files.md": {},
    "gpu.md": {},
    "gradients.md": {"mx": mx},
    "program.md": {},
    "memory.md": {
        "mx": mx, "wk": mx.ones((64, 64)), "wv": mx.ones((64, 64)),
        "attend": lambda q, keys, values: mx.softmax(q @ keys.swapaxes(-1, -2), axis=-1) @ values,
    },
}  # fmt: skip


@pytest.mark.parametrize("page", GIVEN)
def test_programs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llvm_level", "dump"):
        monkeypatch.setattr(config, name, getattr(config, name))
    names = dict(GIVEN[page])
    for block in blocks(page):
        exec(compile(block[1], page, "exec"), names)
    if page == "gradients.md":
        f = names["f"]
        assert mx.grad(f)(mx.array(0.0)).item() == 1.0
        assert mx.vmap(f)(mx.zeros((3,))).shape == (3,)
    if page == "memory.md":
        cache = SimpleNamespace(keys=mx.array(np.zeros((1, 8, 256, 64))), values=mx.array(np.zeros((1, 8, 256, 64))))
        places = [x._node.value.address for x in vars(cache).values()]
        names["step"](cache, mx.ones((1, 8, 1, 64)), mx.array([3]))
        assert [x._node.value.address for x in vars(cache).values()] == places
        assert cache.keys[0, 0, :5, 0].tolist() == [0, 0, 0, 64, 0]
    if page == "export.md":
        assert mx.array_equal(names["y"], names["model"](names["x"])).item()


def test_every_page_with_python_is_run() -> None:
    pages = {path.name for path in DOCS.glob("*.md") if "```python" in path.read_text()}
    assert pages == {*SESSIONS, *GIVEN, "add_a_primitive.md"}


def test_adding_a_primitive() -> None:
    """The class on the page is a primitive with all rules, the line below it makes a function of it, and the rule for
    operands is the one in the source."""
    written, named, checked = blocks("add_a_primitive.md")
    assert ast.unparse(ast.parse(checked[1])) == ast.unparse(ast.parse(dedent(inspect.getsource(Matmul.check))))
    names = {**vars(elementwise), "__name__": "tests.page"}
    exec(written[1], names)
    softsign: type[Elementwise] = names["Softsign"]
    for case in contract.cases(softsign):
        operands = [contract.place(x) for x in case.operands()]
        values = [contract.values_of(x) for x in operands]
        expected = contract.reference(case.op, values)
        assert not contract.mismatch(case, values, contract.native(case.op, operands), expected)
    names = {**vars(functions), "p": type("p", (), {"Softsign": softsign})}
    exec(named[1], names)
    function = names["softsign"]
    assert function(mx.array([-1, 0, 3])).tolist() == [-0.5, 0.0, 0.75]
    assert mx.grad(function)(mx.array(1.0)).item() == 0.25
    assert mx.vmap(function)(mx.ones((2, 3))).tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    missing = [link for link in links if not (DOCS / link).exists()]
    for name in re.findall(r"`([\w.-]+/[\w/.-]+\.(?:py|md))`", text):
        if not any((folder / name).exists() for folder in (ROOT, ROOT / "weft")):
            missing.append(name)
    assert not missing


# ---- docstrings ----


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(weft.__path__, "weft."):
        if found.name.endswith("__main__"):
            continue
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # a front end of a library that is not installed here
            if not found.name.startswith("weft.frontends.") or str(error.name).partition(".")[0] == "weft":
                raise


def documented() -> Iterator[tuple[str, str, ModuleType]]:
    """(name, docstring, module) of everything in Weft whose docstring shows an example."""
    for module in modules():
        for name, value in ((module.__name__, module), *vars(module).items()):
            if value is not module and getattr(value, "__module__", None) != module.__name__:
                continue
            members = inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else ()
            own = [(inner, thing) for inner, thing in members if (thing.__module__ or "").partition(".")[0] == "weft"]
            for inner, thing in (("", value), *own):
                doc = getattr(thing, "__doc__", None)
                if isinstance(doc, str) and ">>>" in doc:
                    yield f"{module.__name__}.{name}.{inner}".rstrip("."), doc, module


EXAMPLES = {name: (doc, module) for name, doc, module in documented()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_docstrings(name: str) -> None:
    """Examples name what stands in their module; those of weft.core what `from weft.core import *` gives."""
    doc, module = EXAMPLES[name]
    both = (vars(module), vars(mx)) if module.__name__.startswith("weft.core") else (vars(mx), vars(module))
    check(inspect.cleandoc(doc), {**both[0], **both[1], "mx": mx, "nn": weft.nn, "weft": weft}, name)


def public() -> Iterator[tuple[str, Any]]:
    """What a user of `weft.core` and `weft.core.random` finds, as far as it can be called."""
    for module in (mx, mx.random):
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) in (module.__name__, f"{module.__name__}.{name}")
            if not name.startswith("_") and callable(value) and (own or module is mx):
                yield f"{module.__name__}.{name}", value


def test_everything_public_has_a_docstring() -> None:
    missing = [name for name, value in public() if not (getattr(value, "__doc__", None) or "").strip()]
    assert not missing


# Functions whose arguments or results one sentence does not show: shapes, axes, structures, effects.
SHOWN = (
    "array", "scan", "while_loop", "fori_loop", "map", "cond", "switch", "associative_scan", "compile", "grad",
    "value_and_grad", "vjp", "jvp", "vmap", "checkpoint", "custom_function", "jacfwd", "jacrev", "hessian", "hvp",
    "linearize", "export_function", "import_function", "exporter", "einsum", "tensordot", "where", "take",
    "take_along_axis", "put_along_axis", "slice", "slice_update", "concatenate", "stack", "split", "pad", "transpose",
    "unique", "topk", "searchsorted", "sum", "mean", "argmax", "softmax", "cumsum", "arange", "linspace", "meshgrid",
)  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_what_one_sentence_does_not_tell_is_shown(name: str) -> None:
    assert ">>>" in (getattr(mx, name).__doc__ or "")
