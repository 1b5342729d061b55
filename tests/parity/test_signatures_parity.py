"""Names of arguments, their order and their defaults, function by function: what MLX's stubs say can be written can be
written here.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft.core as wx

mx = pytest.importorskip("mlx.core")

MODULES = {"": wx, **{name: getattr(wx, name) for name in ("fast", "fft", "linalg", "random", "metal", "distributed")}}

REFUSED = {
    "add", "subtract", "multiply", "divide", "divmod", "floor_divide", "remainder", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    "bitwise_invert", "conj", "conjugate", "issubdtype", "random.uniform", "random.randint",
}  # fmt: skip
"""Functions whose stubs say more than MLX takes: names for operands, and a stream without its name. Shapes that follow
from bounds are said to be ()."""


def stubs(name: str) -> ast.Module:
    found = importlib.util.find_spec("mlx")
    assert found is not None
    assert found.submodule_search_locations
    return ast.parse((Path(found.submodule_search_locations[0]) / "core" / f"{name or '__init__'}.pyi").read_text())


def functions() -> Iterator[tuple[str, ast.FunctionDef, Callable[..., Any], bool]]:
    """(name, what the stub says, our function, whether it is a method) of all overloads."""
    for module, owner in MODULES.items():
        for node in stubs(module).body:
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
                yield f"{module}.{node.name}".lstrip("."), node, getattr(owner, node.name), False
            elif isinstance(node, ast.ClassDef) and node.name in ("array", "ArrayAt", "Device", "Dtype"):
                owned = getattr(owner, node.name)
                for inner in node.body:
                    named = isinstance(inner, ast.FunctionDef) and not inner.name.startswith("__")
                    if named and isinstance(inspect.getattr_static(owned, inner.name), types.FunctionType):
                        yield f"{node.name}.{inner.name}", inner, getattr(owned, inner.name), True


FUNCTIONS = [entry for entry in functions() if entry[0] not in REFUSED]


@pytest.mark.parametrize(("name", "said", "ours", "method"), FUNCTIONS, ids=[entry[0] for entry in FUNCTIONS])
def test_arguments(name: str, said: ast.FunctionDef, ours: Callable[..., Any], method: bool) -> None:
    own = list(inspect.signature(ours).parameters.values())[method:]
    named = {p.name: p for p in own if p.kind is not p.POSITIONAL_ONLY}
    places = [p for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    anything = {p.kind for p in own}
    arguments = said.args
    given = [*arguments.posonlyargs, *arguments.args][method:]
    without_name = max(0, len(arguments.posonlyargs) - method)
    for place, argument in enumerate(given):
        if inspect.Parameter.VAR_POSITIONAL in anything:
            continue
        assert place < len(places), f"{argument.arg} cannot be given without its name"
        if place >= without_name:
            assert places[place].name == argument.arg
    for argument in [*given[without_name:], *arguments.kwonlyargs]:
        assert argument.arg in named or inspect.Parameter.VAR_KEYWORD in anything, f"{argument.arg} has no name"
    for argument, default in defaults(arguments):
        if argument.arg in named:
            assert same_default(named[argument.arg].default, default), argument.arg
    required = [p for p in own if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    known = {argument.arg for argument in [*given, *arguments.kwonlyargs]}
    assert all(p.name in known or places.index(p) < len(given) for p in required)


def defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    given = [*arguments.posonlyargs, *arguments.args]
    yield from zip(given[len(given) - len(arguments.defaults) :], arguments.defaults, strict=True)
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    yield from ((argument, default) for argument, default in pairs if default is not None)


def same_default(own: Any, said: ast.expr) -> bool:
    """Whether a default means the same: a dtype may be found out instead."""
    text = ast.unparse(said)
    if own is inspect.Parameter.empty or text == "...":
        return own is not inspect.Parameter.empty
    value = eval(text, vars(wx))
    if isinstance(value, wx.Dtype):
        return own is None or own == value
    return list(own) == value if isinstance(value, list) else bool(own == value)


@pytest.mark.parametrize("module", ["nn", "nn.losses", "nn.init", "optimizers", "optimizers.schedulers", "utils"])
def test_arguments_of_layers(module: str) -> None:
    theirs, ours = (importlib.import_module(f"{library}.{module}") for library in ("mlx", "weft"))
    for name in dir(theirs):
        value = getattr(theirs, name)
        if name[0] == "_" or not getattr(value, "__module__", "").startswith(f"mlx.{module.partition('.')[0]}"):
            continue
        if isinstance(value, type):
            for method in ("__init__", *(n for n in vars(value) if n[0] != "_")):
                if callable(getattr(value, method)):
                    compare(f"{name}.{method}", getattr(value, method), getattr(getattr(ours, name), method))
        elif callable(value) and hasattr(ours, name):
            compare(name, value, getattr(ours, name))


def compare(name: str, theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    try:
        said = inspect.signature(theirs).parameters
    except ValueError:
        return  # made by C++
    own = inspect.signature(ours).parameters
    plain = [p.name for p in own.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for place, p in enumerate(said.values()):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        assert p.name in own, f"{name}: {p.name}"
        assert p.kind is p.KEYWORD_ONLY or plain[place] == p.name, f"{name}: {p.name}"
        if isinstance(p.default, (int, float, str, type(None), bool)):
            assert own[p.name].default == p.default, f"{name}: {p.name}"
