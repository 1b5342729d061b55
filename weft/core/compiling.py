"""compile, by its name in MLX. What it takes to trace a function is loaded with the first function to be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.config import config
from weft.lazy import lazy

if TYPE_CHECKING:
    from weft.transforms import compile as machinery
else:
    machinery = lazy("weft.transforms.compile")


def compile(
    fun: Callable[..., Any], inputs: Any = None, outputs: Any = None, shapeless: bool = False
) -> Callable[..., Any]:
    """A function that gives what `fun` gives, to the bit, from a program made at the first call.

    Arrays that the function reaches (arguments, closures, globals, objects, `inputs`) are read anew at each call,
    changes that it makes to them and to containers (`outputs`) are made at each call. A Python value that changed, or
    another shape or dtype, causes a new trace.

    >>> f = compile(lambda x: exp(x) * 2)
    >>> f(array(0.0))
    array(2, dtype=float32)
    """
    if not callable(fun):
        raise TypeError(f"[compile] the first argument must be a function; got {type(fun).__name__}.")
    return machinery.Compiled(fun, inputs, outputs, shapeless)


def disable_compile() -> None:
    """Compiled functions run plain from now on."""
    config.disable_compile = True


def enable_compile() -> None:
    """Compiled functions run compiled from now on."""
    config.disable_compile = False
