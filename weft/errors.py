"""Errors that users see, and the line of theirs that an error is about.

Anything may import this module; it imports nothing of Weft. Where a built-in class says it (`ValueError`, `TypeError`,
`IndexError`), raise that: a class of our own exists only where callers have reason to tell the failure apart.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np


class CompileError(RuntimeError):
    """Generated code was refused by LLVM or by our own checks of it: a bug in Weft, or in a custom kernel."""


class NotArrayLike(TypeError, ValueError):
    """Something that is no number, list or array where one is needed. MLX raises ValueError where it makes arrays and
    TypeError where functions take them; code written for either catches this."""


class BadIndex(IndexError, ValueError):
    """An axis that an array does not have, or an index with more items than it has axes. NumPy's class for a bad axis
    is both, and MLX raises one or the other, by its version; code written for any of them catches this."""


class FileError(RuntimeError, ValueError):
    """A file that cannot be opened, or is not what its format says. MLX raises RuntimeError for some formats and
    ValueError for others; code written for either catches this."""


class ComputationError(RuntimeError):
    """An operation has no result for the values that it was given. `operation` is the primitive."""

    operation: Any = None


class LinAlgError(ComputationError, np.linalg.LinAlgError):
    """A matrix that a function of `linalg` has no answer for: singular, not positive definite. NumPy raises its own
    class of this name, which is a ValueError, and MLX a RuntimeError; code written for either catches this."""


class BoundsError(ComputationError, IndexError):
    """An index that is outside of an array, where that is an error. torch raises IndexError for some operators and
    RuntimeError for others; code written for either catches this."""


class KernelIndexError(ComputationError, IndexError):
    """A custom kernel used an index that is outside of an array."""


class ConfigError(ValueError):
    """A setting, from the environment or made in Python, that is not allowed or not possible on this machine."""


def user_line() -> tuple[str, int] | None:
    """(filename, line number) of the innermost frame that is neither Weft's nor the standard library's, if any is.

    Frames are told by their module's name, not by their path: methods that a dataclass generates have no file, and the
    standard library stands between two of ours in every context manager.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "weft" and package not in sys.stdlib_module_names:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def at_user_line() -> str:
    """` (at file.py:12)`, to be appended to a message; empty when no line of the user's is on the stack."""
    line = user_line()
    return f" (at {line[0]}:{line[1]})" if line is not None else ""
