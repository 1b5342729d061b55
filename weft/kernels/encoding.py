"""Typed kernels as text: what an operation is known by, and what files hold of it.

The text is JSON: each expression and statement is a list of the name of its class and its fields. Variables, storages
and places in the source are in tables, and are written as their numbers there.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import tree
from weft.kernels.meanings import MOST_MEMORY
from weft.kernels.syntax import At
from weft.records import fields

_CLASSES: Final = {
    cls.__name__: cls
    for cls in (
        tree.Constant, tree.Read, tree.Position, tree.Size, tree.Load, tree.Operation, tree.Select, tree.Cast,
        tree.Assign, tree.Clear, tree.Store, tree.Atomic, tree.If, tree.Loop, tree.Break, tree.Continue, tree.Return,
        tree.Called, tree.Leave, tree.Barrier, tree.Together,
    )
}  # fmt: skip


class _Encoder:
    def __init__(self) -> None:
        self.variables: dict[tree.Variable, int] = {}
        self.places: dict[At, int] = {}

    def encode(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return [self.encode(y) for y in x]
        if isinstance(x, tree.Variable):
            return {"v": self.variables.setdefault(x, len(self.variables))}
        if isinstance(x, tree.Storage):
            return {"s": x.place}
        if isinstance(x, At):
            return {"at": self.places.setdefault(x, len(self.places))}
        if isinstance(x, Dtype):
            return {"t": x.name}
        if isinstance(x, float):
            return {"f": x.hex() if math.isfinite(x) else repr(x)}
        if x is None or isinstance(x, (bool, int, str)):
            return x
        return {"n": type(x).__name__, "x": [self.encode(getattr(x, field.name)) for field in fields(x)]}


def encoded(program: tree.Program) -> str:
    """The text of a kernel."""
    encoder = _Encoder()
    body = encoder.encode(program.body)
    whole = {
        "name": program.name,
        "storages": [[x.name, x.dtype.name, x.space, x.ndim, x.size, x.of] for x in program.storages],
        "variables": [[v.name, v.dtype.name] for v in encoder.variables],
        "places": [[at.file, at.line, at.column] for at in encoder.places],
        "body": body,
    }
    return json.dumps(whole, separators=(",", ":"))


class _Decoder:
    def __init__(self, whole: dict[str, Any]) -> None:
        self.storages = [
            tree.Storage(name, dt.by_name(dtype), space, place, int(ndim), int(size), *of)
            for place, (name, dtype, space, ndim, size, *of) in enumerate(whole["storages"])
        ]
        for x in self.storages:
            self._check(x)
        self.variables = [tree.Variable(name, dt.by_name(t), k) for k, (name, t) in enumerate(whole["variables"])]
        self.places = [At(str(file), int(line), int(column)) for file, line, column in whole["places"]]

    def _check(self, x: tree.Storage) -> None:
        """Machine code relies on what storages say of their sizes."""
        own = x.space in ("thread", "threadgroup")
        good = (own or x.space in ("input", "output")) and not x.dtype.is_complex and 0 <= x.ndim <= 64
        if own and not 0 <= x.size * x.dtype.size <= MOST_MEMORY:
            good = False
        if x.of is not None:
            root = self.storages[x.of] if type(x.of) is int and 0 <= x.of < x.place else None
            good = good and root is not None and root.of is None and root.space == x.space != "thread"
            if root is not None and own and x.size * x.dtype.size > root.size * root.dtype.size:
                good = False
        if not good:
            raise ValueError(f"[custom_kernel] {x!r} is no storage of a kernel.")

    def decode(self, x: Any) -> Any:
        if isinstance(x, list):
            return tuple([self.decode(y) for y in x])
        if not isinstance(x, dict):
            return x
        match x:
            case {"v": int() as k}:
                return self.variables[k]
            case {"s": int() as k}:
                return self.storages[k]
            case {"at": int() as k}:
                return self.places[k]
            case {"t": str() as name}:
                return dt.by_name(name)
            case {"f": str() as number}:
                return float(number) if number in ("inf", "-inf", "nan") else float.fromhex(number)
            case {"n": str() as name, "x": list() as parts}:
                return _CLASSES[name](*[self.decode(y) for y in parts])
        raise ValueError(f"[custom_kernel] {x!r} is no part of a kernel.")


def decoded(text: str) -> tree.Program:
    """The kernel of a text."""
    try:
        whole = json.loads(text)
        decoder = _Decoder(whole)
        return tree.Program(str(whole["name"]), decoder.decode(whole["body"]), tuple(decoder.storages))
    except (KeyError, TypeError, IndexError, RecursionError, AttributeError) as error:
        raise ValueError(f"[custom_kernel] this is no kernel: {error!r}") from None
