"""The argument `stream` of MLX's functions. With one device it says nothing, and functions take no notice of it; where
there are several, they are wrapped, once, to send their work there."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from weft.core.devices import StreamContext


def streamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes a stream, with notice taken of it."""
    parameters = list(inspect.signature(function).parameters.values())
    place = next(i for i, parameter in enumerate(parameters) if parameter.name == "stream")
    positional = parameters[place].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        stream = args[place] if positional and len(args) > place else kwargs.get("stream")
        if stream is None:
            return function(*args, **kwargs)
        with StreamContext(stream):
            return function(*args, **kwargs)

    return call


def honour_streams(owner: Any) -> None:
    """Wrap the functions of a module, or the methods of a class, that take a stream."""
    for name, value in list(vars(owner).items()):
        if isinstance(value, FunctionType) and "stream" in inspect.signature(value).parameters:
            setattr(owner, name, streamed(value))
