"""Sizes as torch has them (expressions over symbols) as Python has them: with values for symbols, or as text.

torch's own way to give symbols values builds expressions of some operations anew. Those keep what they were made of in
caches, and what a symbol stands for here is a size of one trace, which must not outlive it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.reference import PythonReferenceAnalysis

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_FUNCTIONS = (
    "sqrt", "exp", "log", "log2", "cos", "cosh", "acos", "sin", "sinh", "asin", "tan", "tanh", "atan",
)  # fmt: skip
"""Of one number, and as Python's own are."""


def expression(size: Any) -> Any:
    """A size as a number or as an expression of Python; anything else as it is."""
    if not isinstance(size, SYMBOLS):
        return size
    found = size.node.expr
    return _python(found) if found.is_number else str(_PRINTER.doprint(found))


def evaluated_expression(expr: Any, known: Mapping[Any, Any]) -> Any:
    """What torch's expression is, given values for its symbols."""
    return _python(expr) if expr.is_number else sympy_interp(_Python, dict(known), expr)


def _python(number: Any) -> Any:
    if number.is_Boolean:
        return bool(number)
    return int(number) if number.is_integer else float(number)


class _Printer(PythonPrinter):
    """Writes expressions that are evaluated without torch."""

    def _print_ToFloat(self, expr: Any) -> str:
        return f"float({self._print(expr.args[0])})"

    def _print_TruncToFloat(self, expr: Any) -> str:
        return f"float(math.trunc({self._print(expr.args[0])}))"

    def _helper_sqrt(self, expr: Any) -> str:
        return f"math.sqrt({self._print(expr)})"


_PRINTER = _Printer()


class _Python(PythonReferenceAnalysis):
    """The operations of torch's expressions, of numbers and of sizes of a trace."""

    @staticmethod
    def not_(a: Any) -> Any:
        return not a

    @staticmethod
    def or_(a: Any, b: Any) -> Any:
        return a or b

    @staticmethod
    def and_(a: Any, b: Any) -> Any:
        return a and b

    @staticmethod
    def eq(a: Any, b: Any) -> Any:
        return a == b

    @staticmethod
    def add(a: Any, b: Any) -> Any:
        return a + b

    @staticmethod
    def sub(a: Any, b: Any) -> Any:
        return a - b

    @staticmethod
    def mul(a: Any, b: Any) -> Any:
        return a * b

    @staticmethod
    def square(x: Any) -> Any:
        return x * x

    @staticmethod
    def reciprocal(x: Any) -> Any:
        return 1.0 / x

    @staticmethod
    def int_truediv(a: Any, b: Any) -> Any:
        return a / b

    @staticmethod
    def modular_indexing(x: Any, divisor: Any, modulus: Any) -> Any:
        return x // divisor % modulus

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return min(a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return max(a, b)

    @staticmethod
    def trunc_to_int(x: Any, dtype: Any) -> Any:
        return math.trunc(x)

    @staticmethod
    def trunc(x: Any) -> Any:
        return float(math.trunc(x))

    @staticmethod
    def to_dtype(x: Any, dtype: Any) -> Any:
        return float(x)

    @staticmethod
    def identity(x: Any) -> Any:
        return x

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b

    @staticmethod
    def bitwise_and(a: Any, b: Any) -> Any:
        return a & b

    @staticmethod
    def bitwise_or(a: Any, b: Any) -> Any:
        return a | b

    @staticmethod
    def bitwise_xor(a: Any, b: Any) -> Any:
        return a ^ b


for _name in _FUNCTIONS:
    setattr(_Python, _name, staticmethod(getattr(math, _name)))
