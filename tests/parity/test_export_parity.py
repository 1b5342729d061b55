"""Exported functions as in MLX: the same ways to export and to call, the same errors, the same names and signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as wx

mx = pytest.importorskip("mlx.core")

NAMES = ("export_function", "import_function", "exporter", "export_to_dot")
LIBRARIES = (mx, wx)


def outcome(action: Callable[[Any, Path], Any], library: Any, folder: Path) -> Any:
    """What an action gives: elements, or the class of its error."""
    folder.mkdir()
    try:
        found = action(library, folder)
    except Exception as error:
        return type(error)
    if isinstance(found, (tuple, list)):
        return [np.array(x).tolist() if isinstance(x, library.array) else x for x in found]
    return found


def arrays(library: Any) -> tuple[Any, Any]:
    return library.array([1.0, 2.0]), library.array([3.0, 4.0])


def minus(a: Any, b: Any) -> Any:
    return a - b


def exported(fun: Callable[..., Any], call: Callable[[Any, Any, Any], Any], **options: Any) -> Callable[..., Any]:
    """Export a function of two arrays, and call what is imported."""

    def action(library: Any, folder: Path) -> Any:
        x, y = arrays(library)
        file = str(folder / "f")
        library.export_function(file, fun, x, y, **options)
        return call(library.import_function(file), x, y)

    return action


def exports(*given: Callable[[Any, Any], Any], fun: Callable[..., Any] = minus, **named: Any) -> Callable[..., Any]:
    """Export with these arguments, made of two arrays."""

    def action(library: Any, folder: Path) -> Any:
        x, y = arrays(library)
        arguments = [make(x, y) for make in given]
        keywords = {name: make(x, y) for name, make in named.items()}
        library.export_function(str(folder / "f"), fun, *arguments, **keywords)
        return library.import_function(str(folder / "f"))(*arguments, **keywords)

    return action


def shapeless(call: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def action(library: Any, folder: Path) -> Any:
        file = str(folder / "f")
        library.export_function(file, lambda x: x.sum(0) * 2, library.ones((2, 3)), shapeless=True)
        return call(library, library.import_function(file))

    return action


def several(library: Any, folder: Path) -> Any:
    x, y = arrays(library)
    with library.exporter(str(folder / "f"), lambda *args: sum(args)) as export:
        export(x)
        export(x, y)
    function = library.import_function(str(folder / "f"))
    return [*function(x), *function(x, y)]


def twice(library: Any, folder: Path) -> Any:
    x, y = arrays(library)
    with library.exporter(str(folder / "f"), lambda x: x) as export:
        export(x)
        export(y)


def after_close(library: Any, folder: Path) -> Any:
    export = library.exporter(str(folder / "f"), lambda x: x)
    export.close()
    export(arrays(library)[0])


def metadata(library: Any, folder: Path) -> Any:
    x, _ = arrays(library)
    library.export_function(str(folder / "f"), lambda x: x, x, metadata="é")
    library.export_function(str(folder / "g"), lambda x: x, x)
    return [library.import_function(str(folder / name), return_metadata=True)[1] for name in "fg"]


def damaged(library: Any, folder: Path) -> Any:
    (folder / "f").write_bytes(b"no function" * 10)
    return library.import_function(str(folder / "f"))


ACTIONS: dict[str, Callable[[Any, Path], Any]] = {
    "positional": exported(minus, lambda f, x, y: f(x, y)),
    "a tuple": exported(minus, lambda f, x, y: f((x, y))),
    "a list": exported(minus, lambda f, x, y: f([x, y])),
    "a tuple and a dict": exported(minus, lambda f, x, y: f((x, y), {})),
    "by name": exported(minus, lambda f, x, y: f(x, b=y)),
    "too few": exported(minus, lambda f, x, y: f(x)),
    "too many": exported(minus, lambda f, x, y: f(x, y, x)),
    "none": exported(minus, lambda f, x, y: f()),
    "another shape": exported(minus, lambda f, x, y: f(x, y[:1])),
    "another dtype": exported(minus, lambda f, x, y: f(x, y > 0)),
    "a number": exported(minus, lambda f, x, y: f(x, 2.0)),
    "a tuple and an array": exported(minus, lambda f, x, y: f((x,), y)),
    "results in a list": exported(lambda a, b: [a, b + 1], lambda f, x, y: f(x, y)),
    "no results": exported(lambda a, b: [], lambda f, x, y: f(x, y)),
    "a number as result": exported(lambda a, b: 3, lambda f, x, y: f(x, y)),
    "None as result": exported(lambda a, b: None, lambda f, x, y: f(x, y)),
    "a branch on a value": exported(lambda a, b: a if a.sum() > 0 else b, lambda f, x, y: f(x, y)),
    "a keyword": exports(lambda x, y: x, b=lambda x, y: y),
    "export of a tuple": exports(lambda x, y: (x, y)),
    "export of a tuple and a dict": exports(lambda x, y: (x,), lambda x, y: {"b": y}),
    "export of a dict": exports(lambda x, y: {"a": x, "b": y}),
    "export of a number": exports(lambda x, y: x, lambda x, y: 2.0),
    "export with too few": exports(lambda x, y: x),
    "any sizes": shapeless(lambda library, f: f(library.ones((5, 4)))),
    "any sizes, another rank": shapeless(lambda library, f: f(library.ones((5,)))),
    "any sizes, another dtype": shapeless(lambda library, f: f(library.ones((5, 4), library.int32))),
    "several traces": several,
    "one trace twice": twice,
    "after close": after_close,
    "metadata": metadata,
    "damaged": damaged,
    "missing": lambda library, folder: library.import_function(str(folder / "nothing")),
    "no folder": lambda library, folder: library.export_function(str(folder / "a" / "b"), lambda: library.array(1)),
    "exporter without a folder": lambda library, folder: library.exporter(str(folder / "a" / "b"), minus),
    "no function": lambda library, folder: library.export_function(str(folder / "f"), 3),
    "exporter of no function": lambda library, folder: library.exporter(str(folder / "f"), 3),
    "metadata that is no text": lambda library, folder: library.export_function(
        str(folder / "f"), minus, *arrays(library), metadata=3
    ),
    "metadata for a callback": lambda library, folder: library.export_function(
        lambda message: None, minus, *arrays(library), metadata="a"
    ),
    "a picture of a number": lambda library, folder: library.export_to_dot(str(folder / "f"), 3),
    "a picture with a number": lambda library, folder: library.export_to_dot(
        str(folder / "f"), arrays(library)[0], a=3
    ),
    "a picture for a number": lambda library, folder: library.export_to_dot(3, arrays(library)[0]),
    "no picture": lambda library, folder: library.export_to_dot(str(folder / "f")),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_the_same_result_or_error(name: str, tmp_path: Path) -> None:
    theirs, ours = (outcome(ACTIONS[name], library, tmp_path / library.__name__) for library in LIBRARIES)
    assert ours == theirs


@pytest.mark.parametrize("name", NAMES)
def test_the_same_signature(name: str) -> None:
    text = getattr(mx, name).__doc__.splitlines()[0]
    theirs = re.findall(r"[(,] *(\*{0,2}\w+)(?=[:,)])", text.partition("->")[0])
    parameters = inspect.signature(getattr(wx, name)).parameters.values()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    ours = [stars.get(p.kind, "") + p.name for p in parameters]
    assert [p for p in theirs if p != "*"] == ours
    defaults = dict(re.findall(r"(\w+): [^=,]*(?:\| None)? = (\w+)", text))
    assert {p.name: str(p.default) for p in parameters if p.default is not p.empty} == defaults


def test_callbacks_hear_the_same_of_inputs_and_outputs() -> None:
    told: list[list[Any]] = []
    for library in LIBRARIES:
        messages: list[Any] = []
        x, y = arrays(library)
        library.export_function(messages.append, lambda x, y, library=library: library.sin(x) * y, x, y=y)
        told.append([{key: str(value).replace("weft", "mlx") for key, value in m.items()} for m in messages])
    theirs, ours = told
    assert ours[:3] == theirs[:3]
    assert [message["name"] for message in ours[4:]] == [message["name"] for message in theirs[4:]]
    assert [sorted(message) for message in ours] == [sorted(message) for message in theirs]
