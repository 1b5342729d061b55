"""Errors name the function that was called, say what it got, and what to do about it. One line of a table each: the
call, the kind of error, and the words that its message must have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft import dtypes as dt
from weft.errors import BadIndex, NotArrayLike

X = mx.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
V = mx.array([1.0, 2.0])
I = mx.array([1, 2, 3])  # noqa: E741
Z = mx.array([1j])
B = mx.array([True])


def assign(x: mx.array, index: Any, value: Any) -> None:
    x[index] = value


Row = tuple[Callable[[], Any], type[Exception], tuple[str, ...]]

SHAPES: dict[str, Row] = {
    "add": (lambda: X + V, ValueError, ("[add]", "(2, 3)", "(2,)", "3 and 2", "reshape")),
    "multiply": (lambda: mx.multiply(X, mx.zeros((3, 3))), ValueError, ("[multiply]", "(2, 3)", "(3, 3)")),
    "where": (lambda: mx.where(B, X, V), ValueError, ("[where]", "(2, 3)", "(2,)")),
    "matmul": (lambda: X @ X, ValueError, ("[matmul]", "(2, 3)", "3 and 2", "transpose")),
    "matmul with a vector": (lambda: X @ V, ValueError, ("[matmul]", "(2, 3)", "(2,)", "3 and 2")),
    "matmul with a scalar": (lambda: X @ mx.array(1.0), ValueError, ("[matmul]", "multiply scalars with *")),
    "reshape": (lambda: X.reshape(4, 2), ValueError, ("[reshape]", "6 elements", "(4, 2)")),
    "reshape with a hole": (lambda: X.reshape(-1, 4), ValueError, ("[reshape]", "6 elements", "(-1, 4)")),
    "reshape with two holes": (lambda: X.reshape(-1, -1), ValueError, ("[reshape]", "at most one")),
    "reshape by floats": (lambda: mx.reshape(X, (2.0, 3)), TypeError, ("[reshape]", "integers", "2.0")),
    "broadcast_to": (lambda: mx.broadcast_to(X, (3, 3)), ValueError, ("[broadcast_to]", "(2, 3)", "(3, 3)")),
    "broadcast_to fewer axes": (lambda: mx.broadcast_to(X, (3,)), ValueError, ("[broadcast_to]", "(2, 3)", "(3,)")),
    "broadcast_shapes": (lambda: mx.broadcast_shapes((2, 3), (4,)), ValueError, ("[broadcast_shapes]", "3 and 4")),
    "squeeze": (lambda: mx.squeeze(X, 0), ValueError, ("[squeeze]", "axis 0", "size 2")),
    "split": (lambda: mx.split(X, 2, axis=1), ValueError, ("[split]", "3 elements", "axis 1", "2 equal parts")),
    "full": (lambda: mx.full((2,), I), ValueError, ("[full]", "(3,)", "(2,)")),
    "negative size": (lambda: mx.zeros((2, -1)), ValueError, ("[zeros]", "negative", "-1")),
    "size that is no number": (lambda: mx.ones((2.5,)), TypeError, ("[ones]", "integer", "2.5")),
    "tril of a vector": (lambda: mx.tril(V), ValueError, ("[tril]", "matrix", "(2,)")),
    "max of nothing": (lambda: mx.max(mx.zeros((0, 3))), ValueError, ("[max]", "size 0", "(0, 3)")),
    "argmin of nothing": (lambda: mx.argmin(mx.zeros((3, 0)), axis=1), ValueError, ("[argmin]", "size 0")),
    "setitem": (lambda: assign(mx.zeros((2, 3)), 0, V), ValueError, ("[setitem]", "(2,)", "(3,)")),
}

AXES: dict[str, Row] = {
    "sum": (lambda: mx.sum(X, axis=2), BadIndex, ("[sum]", "axis 2", "2 axes", "from -2 to 1")),
    "negative": (lambda: mx.max(X, axis=-3), BadIndex, ("[max]", "axis -3", "from -2 to 1")),
    "of a 0-d array": (lambda: mx.sum(mx.array(1.0), axis=0), BadIndex, ("[sum]", "axis 0", "none")),
    "named twice": (lambda: mx.sum(X, axis=(0, -2)), ValueError, ("[sum]", "(0, -2)", "twice")),
    "no number": (lambda: mx.mean(X, axis="rows"), TypeError, ("[mean]", "integer", "'rows'")),
    "softmax": (lambda: mx.softmax(X, axis=5), BadIndex, ("[softmax]", "axis 5")),
    "argmax": (lambda: mx.argmax(X, axis=3), BadIndex, ("[argmax]", "axis 3")),
    "logsumexp": (lambda: mx.logsumexp(X, axis=2), BadIndex, ("[logsumexp]", "axis 2")),
    "transpose": (lambda: mx.transpose(X, (0, 0)), ValueError, ("[transpose]", "(0, 0)", "twice")),
    "transpose too few": (lambda: mx.transpose(X, (0,)), ValueError, ("[transpose]", "1 axes", "with 2")),
    "swapaxes": (lambda: mx.swapaxes(X, 0, 2), BadIndex, ("[swapaxes]", "axis 2")),
    "moveaxis": (lambda: mx.moveaxis(X, 2, 0), BadIndex, ("[moveaxis]", "axis 2")),
    "expand_dims": (lambda: mx.expand_dims(X, 5), BadIndex, ("[expand_dims]", "axis 5")),
    "flatten": (lambda: mx.flatten(X, 1, 0), ValueError, ("[flatten]", "1", "0")),
    "flip": (lambda: mx.flip(X, 3), BadIndex, ("[flip]", "axis 3")),
}

DTYPES: dict[str, Row] = {
    "astype": (lambda: X.astype("float"), TypeError, ("[astype]", "float32", "'float'")),
    "astype by NumPy": (lambda: X.astype(np.float32), TypeError, ("[astype]", "float32")),
    "array": (lambda: mx.array([1], dtype="f4"), TypeError, ("[array]", "float32", "'f4'")),
    "zeros": (lambda: mx.zeros((2,), dtype="f4"), TypeError, ("[zeros]", "float32", "'f4'")),
    "full": (lambda: mx.full((2,), 1, dtype=int), TypeError, ("[full]", "float32")),
    "eye": (lambda: mx.eye(3, dtype="f4"), TypeError, ("[eye]", "'f4'")),
    "arange": (lambda: mx.arange(3, dtype="f4"), TypeError, ("[arange]", "'f4'")),
    "linspace": (lambda: mx.linspace(0, 1, 3, dtype="f4"), TypeError, ("[linspace]", "'f4'")),
    "minus a bool": (lambda: -B, ValueError, ("[negative]", "bool", "astype")),
    "inverted float": (lambda: ~X, ValueError, ("[bitwise_invert]", "float32", "astype")),
    "and of floats": (lambda: X & X, ValueError, ("[bitwise_and]", "float32", "astype")),
    "shifted float": (lambda: X << 1, ValueError, ("[left_shift]", "float32", "astype")),
    "floor of complex": (lambda: mx.floor(Z), ValueError, ("[floor]", "complex64")),
    "erf of complex": (lambda: mx.erf(Z), ValueError, ("[erf]", "complex64")),
    "number too large": (lambda: mx.array([1], dt.uint8) + 300, ValueError, ("[add]", "300", "uint8", "astype")),
    "division in place": (lambda: mx.array([1, 2]).__itruediv__(2), ValueError, ("[divide]", "int32", "a = a / b")),
}

MAKING: dict[str, Row] = {
    "ragged rows": (
        lambda: mx.array([[1, 2], [3]]),
        ValueError,
        ("[array]", "row 1 has 1", "row 0 has 2", "same length"),
    ),
    "ragged depth": (lambda: mx.array([1, [2]]), ValueError, ("[array]", "same shape")),
    "ragged arrays": (lambda: mx.array([X, V]), ValueError, ("[array]", "(2, 3)", "(2,)")),
    "text": (lambda: mx.array("abc"), NotArrayLike, ("[array]", "str")),
    "text in a list": (lambda: mx.array([1, "a"]), ValueError, ("[array]", "str", "[1]")),
    "nothing": (lambda: mx.array(None), NotArrayLike, ("[array]", "NoneType")),
    "object": (lambda: mx.array(object()), NotArrayLike, ("[array]", "object")),
    "NumPy text": (lambda: mx.array(np.array(["a"])), TypeError, ("[array]", "<U1")),
    "range without end": (lambda: mx.arange(0, 5, 0), ValueError, ("[arange]", "step")),
    "range of text": (lambda: mx.arange("a"), TypeError, ("[arange]", "numbers", "'a'")),
    "linspace": (lambda: mx.linspace(0, 1, -1), ValueError, ("[linspace]", "negative", "-1")),
    "clip": (lambda: mx.clip(X), ValueError, ("[clip]", "a_min", "a_max")),
}

INDICES: dict[str, Row] = {
    "too large": (lambda: X[2], IndexError, ("[index]", "2", "axis 0", "2 elements")),
    "too small": (lambda: X[0, -4], IndexError, ("[index]", "-4", "axis 1", "3 elements")),
    "too many": (lambda: X[0, 0, 0], BadIndex, ("[index]", "3 indices", "2 axes")),
    "of a 0-d array": (lambda: mx.array(1.0)[0], BadIndex, ("[index]", "0 axes")),
    "two dots": (lambda: X[..., ...], BadIndex, ("[index]", "one Ellipsis")),
    "a float": (lambda: X[1.0], ValueError, ("[index]", "integer", "float")),
    "text": (lambda: X["a"], ValueError, ("[index]", "str")),
    "step of 0": (lambda: X[::0], ValueError, ("[index]", "step", "0")),
    "slice by floats": (lambda: X[1.5:], ValueError, ("[index]", "integers", "1.5")),
    "assignment": (lambda: assign(mx.zeros((2,)), 5, 0), IndexError, ("[index]", "5", "2 elements")),
}

NUMBERS: dict[str, Row] = {
    "truth": (lambda: bool(X), ValueError, ("[bool]", "(2, 3)", "any(...) or all(...)")),
    "item": (lambda: X.item(), ValueError, ("[item]", "(2, 3)", "one element")),
    "int": (lambda: int(V), ValueError, ("(2,)", "one element")),
    "length": (lambda: len(mx.array(1)), TypeError, ("[len]", "0-d")),
    "iteration": (lambda: list(mx.array(1)), TypeError, ("[iter]", "0-d")),
    "index by a float array": (lambda: [1][mx.array(0.0)], TypeError, ("[index]", "integer", "float32")),
}

TRANSFORMS: dict[str, Row] = {
    "gradient of an array": (lambda: mx.grad(lambda a: a)(X), ValueError, ("[grad]", "scalar", "(2, 3)", "sum")),
    "gradient of a number": (lambda: mx.grad(lambda a: 3.0)(X), ValueError, ("[grad]", "float")),
    "gradient of no function": (lambda: mx.grad(3), TypeError, ("[grad]", "function", "int")),
    "argument that is not there": (lambda: mx.grad(mx.sum, argnums=1)(X), ValueError, ("[grad]", "argnums", "1")),
    "cotangent": (lambda: mx.vjp(lambda a: a, [X], [V]), ValueError, ("[vjp]", "(2,)", "(2, 3)")),
    "tangents": (lambda: mx.jvp(lambda a: a, [X], []), ValueError, ("[jvp]", "1 primals", "0 tangents")),
    "vmap axis": (lambda: mx.vmap(lambda a: a, in_axes=3)(X), BadIndex, ("[vmap]", "in_axes", "3", "(2, 3)")),
    "vmap of nothing": (lambda: mx.vmap(lambda a: a, in_axes=None)(X), ValueError, ("[vmap]", "in_axes")),
    "vmap sizes": (lambda: mx.vmap(mx.add)(X, mx.zeros((3, 3))), ValueError, ("[vmap]", "different sizes", "2", "3")),
    "value inside vmap": (
        lambda: mx.vmap(lambda a: a if a.item() > 0 else -a)(V),
        ValueError,
        ("[vmap]", "where(...)", "test_errors.py"),
    ),
    "value inside compile": (
        lambda: mx.compile(lambda a: float(a))(mx.array(1.0)),
        ValueError,
        ("[compile]", "no value", "test_errors.py"),
    ),
    "compile no function": (lambda: mx.compile(3), TypeError, ("[compile]", "function", "int")),
}

LOOPS: dict[str, Row] = {
    "carry": (
        lambda: mx.scan(lambda c, x: (c[0], x), V, V),
        ValueError,
        ("[scan]", "but it is float32[2] at first", "float32[] after", "reshape"),
    ),
    "leaf of a carry": (
        lambda: mx.fori_loop(0, 2, lambda i, c: {"a": c["a"][0]}, {"a": V}),
        ValueError,
        ("[fori_loop]", "the leaf ['a'] is float32[2] at first"),
    ),
    "branches": (
        lambda: mx.cond(mx.array(True), lambda: X, lambda: V),
        ValueError,
        ("[cond]", "float32[2, 3] in branch true", "float32[2] in branch false"),
    ),
    "associative_scan": (
        lambda: mx.associative_scan(lambda a, b: a[0], X),
        ValueError,
        ("[associative_scan]", "(1, 3)", "(3,)"),
    ),
}

USE: dict[str, Row] = {
    "arrays that are no list": (lambda: mx.concatenate(X, V), TypeError, ("[concatenate]", "axis", "shape (2,)")),
    "range of nothing": (lambda: mx.arange(), TypeError, ("[arange]", "stop")),
    "allclose": (lambda: mx.allclose(X, V), ValueError, ("[allclose]", "(2, 3)", "(2,)")),
    "no such folder": (
        lambda: mx.export_function("/nowhere/f.weft", mx.exp, X),
        RuntimeError,
        ("[export_function]", "/nowhere/f.weft: No such file or directory."),
    ),
    "what nobody has": (lambda: mx.softmx, AttributeError, ("weft.core", "'softmx'")),
}

TABLES = {
    "shapes": SHAPES,
    "axes": AXES,
    "dtypes": DTYPES,
    "making": MAKING,
    "indices": INDICES,
    "numbers": NUMBERS,
    "transforms": TRANSFORMS,
    "loops": LOOPS,
    "use": USE,
}


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [pytest.param(*row, id=f"{table}: {name}") for table, rows in TABLES.items() for name, row in rows.items()],
)
def test_messages(call: Callable[[], Any], kind: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is kind, "not one of its subclasses"
    for word in words:
        assert word in message, message


def test_an_error_is_raised_where_the_function_is_called_not_where_the_value_is_asked_for() -> None:
    """Shapes and dtypes are known at once: the traceback shows the line at fault."""
    with pytest.raises(ValueError, match="broadcast"):
        mx.exp(X) + V  # nothing is evaluated here


def test_a_failed_operation_leaves_its_operands_alone() -> None:
    x = mx.array([1.0, 2.0])
    with pytest.raises(ValueError, match="broadcast"):
        x += mx.zeros((3,))
    with pytest.raises(IndexError):
        x[7] = 1.0
    assert x.tolist() == [1.0, 2.0]


def test_errors_inside_traced_functions_name_the_users_line() -> None:
    def f(x: mx.array) -> mx.array:
        return x if x.item() > 0 else -x

    line = inspect.getsourcelines(f)[1] + 1
    with pytest.raises(ValueError, match=rf"test_errors\.py:{line}\b"):
        mx.vmap(f)(V)


def test_too_much_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="memory"):
        mx.eval(mx.arange(1 << 50) + 1)


def test_a_failed_evaluation_can_be_tried_again() -> None:
    before = mx.set_memory_limit(mx.get_active_memory() + (1 << 20))
    try:
        big = mx.minimum(mx.arange(1 << 20), 2)
        with pytest.raises(MemoryError):
            mx.eval(big)
    finally:
        mx.set_memory_limit(before)
    assert mx.sum(big).item() == 2 * (1 << 20) - 3
