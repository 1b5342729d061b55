"""Arrays as text, character for character as MLX writes them.

`format_array` is what `repr` and `str` of an array call. Axes longer than six show their first and last three entries;
only those elements are ever read. Numbers are neither padded nor aligned.
"""

from __future__ import annotations

import math
import reprlib
from array import array as packed
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import numpy as np

from weft.dtypes import Dtype
from weft.records import dataclass, replace

_EDGE: Final = 3  # entries shown at each end of an axis that is cut short
_INDENT: Final = " " * len("array(")


@dataclass
class PrintOptions:
    """How arrays are printed. `precision` is the number of decimal places; -1 means six significant digits."""

    precision: int = -1

    def __post_init__(self) -> None:
        _check_precision("PrintOptions", self.precision)


def _check_precision(function: str, precision: Any) -> None:
    if not isinstance(precision, int) or isinstance(precision, bool):
        raise TypeError(
            f"[{function}] precision must be an int (decimal places, or -1 for the default), "
            f"got {precision!r} of type {type(precision).__name__}."
        )


_options = PrintOptions()


def get_printoptions() -> PrintOptions:
    """A copy of the options in force."""
    return replace(_options)


def set_printoptions(precision: int = -1) -> None:
    """Sets the number of decimal places in which floats are printed from now on; -1 restores the default."""
    _check_precision("set_printoptions", precision)
    _options.precision = precision


class printoptions:
    """Options for the length of a `with` block.

    >>> with printoptions(precision=2):
    ...     get_printoptions().precision
    2
    """

    def __init__(self, precision: int = -1) -> None:
        _check_precision("printoptions", precision)
        self._precision = precision
        self._outer: list[int] = []  # a stack, since one object may be entered again inside its own block

    def __enter__(self) -> printoptions:
        self._outer.append(_options.precision)
        _options.precision = self._precision
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _options.precision = self._outer.pop()


def format_array(values: np.ndarray, dtype: Dtype, options: PrintOptions | None = None) -> str:
    """The text of an array, for example `array([1, 2.5], dtype=float32)`, under the options in force unless given."""
    text = _element_writer(dtype, (options or _options).precision)
    shown = _corners(values)
    if dtype.is_float and dtype.size == 2:
        shown = shown.astype(np.float32)  # exact, and tolist then gives Python floats
    body = _nested(shown.tolist(), values.shape, 0, text)
    return f"array({body}, dtype={dtype.name})"


def _corners(values: np.ndarray) -> np.ndarray:
    """The elements that are shown, at most six along each axis."""
    if values.size == 0 or max(values.shape, default=0) <= 2 * _EDGE:
        return values
    picks = [np.r_[:_EDGE, n - _EDGE : n] if n > 2 * _EDGE else np.arange(n) for n in values.shape]
    return values[np.ix_(*picks)]


def _nested(rows: Any, shape: tuple[int, ...], axis: int, text: Callable[[Any], str]) -> str:
    """The text of nested lists as `_corners` picked them; `shape` is that of the whole array."""
    if axis == len(shape):
        return text(rows)
    if 0 in shape:  # nothing was picked: the outer axes still show how many rows there are
        rows = [[]] * min(shape[axis], 2 * _EDGE)
    parts = [_nested(row, shape, axis + 1, text) for row in rows]
    if shape[axis] > 2 * _EDGE:
        parts.insert(_EDGE, "...")
    innermost = axis == len(shape) - 1
    return f"[{(', ' if innermost else ',' + chr(10) + _INDENT + ' ' * (axis + 1)).join(parts)}]"


def _element_writer(dtype: Dtype, precision: int) -> Callable[[Any], str]:
    """The function that writes one element (a Python bool, int, float or complex)."""
    if not dtype.is_inexact:
        return str
    number = _float_writer(precision)
    if dtype.is_float:
        return number

    def complex_text(value: complex) -> str:
        # A plus sign unless the imaginary part is below zero: -0.0 and nan get one before their own sign.
        return f"{number(value.real)}{'' if value.imag < 0 else '+'}{number(value.imag)}j"

    return complex_text


def _float_writer(precision: int) -> Callable[[float], str]:
    """Writes a float as a C++ stream does: %g by default, else fixed with so many places (six if negative)."""
    form = "%g" if precision == -1 else f"%.{precision if precision >= 0 else 6}f"

    def float_text(value: float) -> str:
        if value != value:  # Python drops the sign of a nan
            return "-nan" if math.copysign(1, value) < 0 else "nan"
        return form % value

    return float_text


def install_in_reprlib() -> None:
    """Has `reprlib.repr` (with which debuggers, pytest and logs print) shorten our arrays as it does any object.

    It finds its method for a class by the bare name, and takes every class called `array` for the one of Python's
    module `array`; the newest Pythons look at the module as well.
    """
    repr_packed = reprlib.Repr.repr_array

    def repr_array(self: reprlib.Repr, x: Any, level: int) -> str:
        return repr_packed(self, x, level) if isinstance(x, packed) else self.repr_instance(x, level)

    reprlib.Repr.repr_array = repr_array  # type: ignore[method-assign]
