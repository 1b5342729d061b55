"""Functions as files, with MLX's names: `export_function`, `exporter`, `import_function`; graphs as GraphViz text."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from weft import tree
from weft.array import array
from weft.files.paths import check_writable
from weft.graph.dot import dot
from weft.graph.node import Node
from weft.lazy import lazy

if TYPE_CHECKING:
    from weft.transforms import exporting, importing, telling
else:
    exporting, importing = lazy("weft.transforms.exporting"), lazy("weft.transforms.importing")
    telling = lazy("weft.transforms.telling")

File = str | os.PathLike[str]


def export_function(
    file_or_callback: File | IO[bytes] | Callable[[dict[str, Any]], None],
    fun: Callable[..., Any],
    *args: Any,
    shapeless: bool = False,
    metadata: str | None = None,
    **kwargs: Any,
) -> None:
    """Write a function to a file: what it computes for arguments like these, and the arrays that it captures.

    Arguments are arrays, or lists, tuples and dicts of arrays; a single tuple (and dict) stands for all positional (and
    keyword) arguments. With `shapeless`, sizes other than 0 and 1 may change from call to call. `metadata` is kept in
    the file. A function in place of the file is told of the graph piece by piece instead.

    >>> export_function("f.weft", lambda x: exp(x) * 2, array(0.0))
    >>> import_function("f.weft")(array(0.0))
    (array(2, dtype=float32),)
    """
    is_file = isinstance(file_or_callback, (str, os.PathLike)) or hasattr(file_or_callback, "write")
    if not is_file and not callable(file_or_callback):
        raise TypeError(
            f"[export_function] the first argument is a file or a callback; got {type(file_or_callback).__name__}."
        )
    export = _export("export_function", fun, shapeless, metadata)
    if is_file:
        if isinstance(file_or_callback, (str, os.PathLike)):
            check_writable("export_function", file_or_callback)
        export.trace(args, kwargs)
        export.write(file_or_callback)  # type: ignore[arg-type]
        return
    if metadata is not None:
        raise ValueError(
            "[export_function] The metadata argument is only supported when exporting to a file, not when using a "
            "callback."
        )
    telling.tell(file_or_callback, *export.traced(args, kwargs))  # type: ignore[arg-type]


def _export(name: str, fun: Any, shapeless: bool, metadata: Any) -> exporting.Export:
    if not callable(fun):
        raise TypeError(f"[{name}] fun must be a function; got {type(fun).__name__}.")
    if metadata is not None and not isinstance(metadata, str):
        raise TypeError(f"[{name}] metadata must be a string; got {type(metadata).__name__}.")
    return exporting.Export(fun, bool(shapeless), metadata)


class FunctionExporter:
    """Traces of one function for one file: call it as the function, once for every kind of arguments. Made by
    `exporter`; the file is written when the context ends, or by `close`, unless there was an error."""

    def __init__(self, file: File | IO[bytes], export: exporting.Export) -> None:
        self._file, self._export, self._closed = file, export, False

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._closed:
            raise RuntimeError("[export_function] Attempting to write after exporting is closed.")
        self._export.trace(args, kwargs)

    def close(self) -> None:
        """Write the file."""
        if not self._closed:
            self._closed = True
            self._export.write(self._file)

    def __enter__(self) -> FunctionExporter:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if exc_type is None:
            self.close()
        self._closed = True


def exporter(
    file: File | IO[bytes], fun: Callable[..., Any], *, shapeless: bool = False, metadata: str | None = None
) -> FunctionExporter:
    """Write several traces of a function to one file; the imported function uses the one that fits a call.

    >>> with exporter("f.weft", lambda x, y=0: x + y) as export:
    ...     export(array(1))
    ...     export(array(1), array(2))
    >>> f = import_function("f.weft")
    >>> f(array(10)), f(array(10), array(20))
    ((array(10, dtype=int32),), (array(30, dtype=int32),))
    """
    if isinstance(file, (str, os.PathLike)):
        check_writable("export_function", file)
    elif not hasattr(file, "write"):
        raise TypeError(f"[exporter] the first argument is a file; got {type(file).__name__}.")
    return FunctionExporter(file, _export("exporter", fun, shapeless, metadata))


class ImportedFunction:
    """A function from a file. Call it as the one that was exported; it gives a tuple of arrays (or the tree that the
    function gave, if that is another container)."""

    def __init__(self, functions: list[importing.Imported]) -> None:
        self._functions = functions
        self.__name__ = functions[0].name if functions else "imported"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given, named = importing.spread(args, kwargs)
        readings = [(given, named)] if given is args else [(given, named), (args, kwargs)]
        unfit = False
        for reading in readings:
            for function in self._functions:
                found = function.matches(*reading)
                if found is not None:
                    try:
                        return function.apply(*found)
                    except importing.UnfitSizes:
                        unfit = True
        if unfit:
            raise ValueError(
                "[import_function::call] there are traces for such arguments, but none for the sizes that depend on "
                "their values: the function could not be traced for them, or there are too many such sizes."
            )
        for leaf in tree.leaves((given, named)):
            if not isinstance(leaf, array):
                raise ValueError(
                    "[import_function::call] Inputs can either be a variable number of positional and keyword arrays "
                    f"or a single tuple and/or dictionary of arrays; got a {type(leaf).__name__}."
                )
        known = "\n".join([function.text(i) for i, function in enumerate(self._functions, 1)])
        raise ValueError(
            "[import_function::call] No imported function found which matches the given positional and keyword "
            f"arguments. Possible functions include:\n{known}\n\nCalled with {importing.call_text(given, named)}"
        )

    def __repr__(self) -> str:
        return f"<imported function {self.__name__} with {len(self._functions)} traces>"


def import_function(
    file: File | IO[bytes], return_metadata: bool = False
) -> ImportedFunction | tuple[ImportedFunction, str]:
    """A function from a file that `export_function` or `exporter` wrote, with its metadata if asked for.

    Reading a file runs nothing of what it says, and checks all of it: a damaged one is a RuntimeError.

    >>> export_function("f.weft", add, array(1), array(2))
    >>> f = import_function("f.weft")
    >>> f(array(1), array(2))
    (array(3, dtype=int32),)
    """
    functions, metadata = importing.read_functions("import_function", file)
    made = ImportedFunction(functions)
    return (made, metadata) if return_metadata else made


def export_to_dot(file: File | IO[str], *args: Any, **kwargs: Any) -> None:
    """Write the graph behind arrays, as far as they are not computed yet, as GraphViz text. Keywords give arrays names.

    >>> x = array(1.0)
    >>> export_to_dot("graph.dot", exp(x) * 2, x=x)
    """
    if not isinstance(file, (str, os.PathLike)) and not hasattr(file, "write"):
        raise ValueError("[export_to_dot] Accepts file-like objects or strings to be used as filenames.")
    outputs = [_node(leaf) for leaf in tree.leaves(args)]
    names: dict[Node, str] = {}
    for name, value in kwargs.items():
        for path, leaf in tree.leaves_with_paths(value):
            names.setdefault(_node(leaf), f"{name}{path}")
    text = dot(outputs, names)
    if not isinstance(file, (str, os.PathLike)):
        file.write(text)
        return
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise RuntimeError(f"[export_to_dot] Failed to open {file}: {error}.") from error


def _node(leaf: Any) -> Node:
    if not isinstance(leaf, array):
        raise ValueError(f"[export_to_dot] outputs and named values must be arrays; got {type(leaf).__name__}.")
    return leaf._node
