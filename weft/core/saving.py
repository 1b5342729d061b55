"""Arrays in files: save, load and their relatives (docs/files.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.evaluate import evaluate
from weft.files.paths import File, Loaded, is_path, with_suffix
from weft.graph.node import Node, kind_of
from weft.lazy import lazy
from weft.primitives.base import DATA

if TYPE_CHECKING:
    from weft.files import gguf, npy, safetensors
else:
    gguf, npy, safetensors = lazy("weft.files.gguf"), lazy("weft.files.npy"), lazy("weft.files.safetensors")

Stream = Any
Metadata = dict[str, Any]


def save(file: File, arr: array) -> None:
    """Save an array as `.npy`, which is added to a path without it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/x", array([1, 2, 3]))
    ...     load(f"{folder}/x.npy")
    array([1, 2, 3], dtype=int32)
    """
    values, dtype = _values("save", "arr", arr)
    npy.save_npy("save", with_suffix(file, ".npy"), values, dtype)


def savez(file: File, *args: array, **kwargs: array) -> None:
    """Save several arrays as `.npz`: those without a name as `arr_0`, `arr_1`, …

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     savez(f"{folder}/x", array([1, 2]), w=array([0.5]))
    ...     load(f"{folder}/x.npz")
    {'arr_0': array([1, 2], dtype=int32), 'w': array([0.5], dtype=float32)}
    """
    _save_npz("savez", file, args, kwargs, compress=False)


def savez_compressed(file: File, *args: array, **kwargs: array) -> None:
    """`savez`, with the contents compressed."""
    _save_npz("savez_compressed", file, args, kwargs, compress=True)


def _save_npz(function: str, file: File, args: tuple[Any, ...], kwargs: dict[str, Any], compress: bool) -> None:
    arrays: dict[str, Any] = {f"arr_{i}": value for i, value in enumerate(args)}
    both = sorted(arrays.keys() & kwargs.keys())
    if both:
        raise ValueError(f"[{function}] Cannot use un-named variables and keyword {both[0]}.")
    named = _all_values(function, {**arrays, **kwargs})
    npy.save_npz(function, with_suffix(file, ".npz"), named, compress)


def save_safetensors(file: File, arrays: dict[str, array], metadata: dict[str, str] | None = None) -> None:
    """Save a dict of arrays as `.safetensors`, with metadata that are strings."""
    if not isinstance(arrays, dict):
        raise TypeError(f"[save_safetensors] arrays must be a dict of names and arrays; got {type(arrays).__name__}.")
    if metadata is not None and not _all_strings(metadata):
        raise ValueError("[save_safetensors] Metadata must be a dictionary with string keys and values.")
    named = _all_values("save_safetensors", arrays)
    safetensors.save("save_safetensors", with_suffix(file, ".safetensors"), named, metadata)


def save_gguf(file: File, arrays: dict[str, array], metadata: dict[str, Any] | None = None) -> None:
    """Save a dict of arrays as `.gguf`. Metadata are strings, lists of strings, and arrays with at most one axis."""
    if not isinstance(arrays, dict):
        raise TypeError(f"[save_gguf] arrays must be a dict of names and arrays; got {type(arrays).__name__}.")
    named = _all_values("save_gguf", arrays)
    pairs = {key: _metadata(key, value) for key, value in (metadata or {}).items()}
    gguf.save("save_gguf", with_suffix(file, ".gguf"), named, pairs)


def load(file: File, /, format: str | None = None, return_metadata: bool = False, *, stream: Stream = None) -> Any:
    """Load what a file holds: an array (`npy`), or a dict of arrays (`npz`, `safetensors`, `gguf`).

    The format is that of the path's suffix unless it is given. With `return_metadata`, which safetensors and gguf have,
    the answer is a pair. Tensors of these two are mapped from a path without being read or copied.
    """
    kind = _format(file, format)
    if return_metadata and kind not in ("safetensors", "gguf"):
        raise ValueError(f"[load] metadata not supported for format {kind}.")
    if kind == "npy":
        return _array(npy.load_npy("load", file))
    if kind == "npz":
        return _arrays(npy.load_npz("load", file))
    arrays, metadata = safetensors.load("load", file) if kind == "safetensors" else _load_gguf(file)
    return (_arrays(arrays), metadata) if return_metadata else _arrays(arrays)


def _load_gguf(file: File) -> tuple[dict[str, Loaded], Metadata]:
    arrays, metadata = gguf.load("load", file)
    return arrays, {
        key: array(value[0], value[1]) if isinstance(value, tuple) else value for key, value in metadata.items()
    }


_FORMATS = ("npy", "npz", "safetensors", "gguf")


def _format(file: Any, given: str | None) -> str:
    if not is_path(file) and not hasattr(file, "read"):
        raise ValueError(f"[load] Input must be a path or a file that is open in binary mode; got {file!r}.")
    if given is None:
        name = os.fspath(file) if is_path(file) else getattr(file, "name", None)
        suffix = os.path.splitext(name)[1] if isinstance(name, str) else ""
        if not suffix:
            raise ValueError(f"[load] Could not infer file format from extension; say which: format={_FORMATS!r}.")
        given = suffix[1:]
    if given not in _FORMATS:
        raise ValueError(f"[load] Unknown file format {given}; there are {', '.join(_FORMATS)}.")
    return given


def _array(loaded: Loaded) -> array:
    return wrap(Node(DATA, (), kind_of(loaded.shape, loaded.dtype), loaded.buffer))


def _arrays(loaded: Mapping[str, Loaded]) -> dict[str, array]:
    return {name: _array(value) for name, value in loaded.items()}


def _values(function: str, name: str, value: Any) -> tuple[np.ndarray, Dtype]:
    if not isinstance(value, array):
        raise TypeError(f"[{function}] {name!r} must be an array; got {type(value).__name__}.")
    return value._view(), value.dtype


def _all_values(function: str, arrays: Mapping[str, Any]) -> dict[str, tuple[np.ndarray, Dtype]]:
    """The contents of arrays, which are evaluated together."""
    for name, value in arrays.items():
        if not isinstance(name, str):
            raise TypeError(f"[{function}] arrays have names that are strings; got {name!r}.")
        if not isinstance(value, array):
            raise TypeError(f"[{function}] {name!r} must be an array; got {type(value).__name__}.")
    evaluate([value._node for value in arrays.values()])
    return {name: _values(function, name, value) for name, value in arrays.items()}


def _all_strings(metadata: Any) -> bool:
    return isinstance(metadata, dict) and all(isinstance(x, str) for pair in metadata.items() for x in pair)


def _metadata(key: Any, value: Any) -> gguf.Value:
    if not isinstance(key, str):
        raise TypeError(f"[save_gguf] metadata have names that are strings; got {key!r}.")
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return list(value)
    if isinstance(value, array):
        return _values("save_gguf", key, value)
    raise TypeError(
        f"[save_gguf] metadata {key!r} must be a string, a list of strings or an array with at most one axis; got "
        f"{type(value).__name__}."
    )
