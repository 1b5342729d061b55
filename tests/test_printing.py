"""Arrays as text. What MLX writes was read off MLX itself; tests/parity compares the two at random."""

from __future__ import annotations

import array as packed
import math
import reprlib

import numpy as np
import pytest

import weft.core as mx
from weft import dtypes, printing
from weft.printing import PrintOptions, format_array


def text(values, dtype=dtypes.float32, options=None):
    return format_array(np.array(values, dtype.np), dtype, options)


@pytest.fixture(autouse=True)
def _default_options():
    yield
    printing.set_printoptions()


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_every_dtype_names_itself(dtype):
    body = {"b": "True", "c": "1+0j"}.get(dtype.kind, "1")
    assert text(1, dtype) == f"array({body}, dtype={dtype.name})"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"), (-0.0, "-0"), (0.1, "0.1"), (1e-5, "1e-05"), (1e-4, "0.0001"), (123456.0, "123456"),
        (1234567.0, "1.23457e+06"), (999999.5, "1e+06"), (1e-45, "1.4013e-45"), (math.inf, "inf"), (-math.inf, "-inf"),
        (math.nan, "nan"), (-math.nan, "-nan"),
    ],
)  # fmt: skip
def test_floats_have_six_digits(value, expected):
    assert text(value) == f"array({expected}, dtype=float32)"


def test_short_floats_show_their_exact_value():
    assert text(0.1, dtypes.float16) == "array(0.0999756, dtype=float16)"
    assert text([0.1, 65504], dtypes.bfloat16) == "array([0.100098, 65536], dtype=bfloat16)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 + 2j, "1+2j"), (1 - 2j, "1-2j"), (complex(0, -0.0), "0+-0j"), (complex(-0.0, 0), "-0+0j"),
        (complex(math.nan, math.nan), "nan+nanj"), (complex(1, -math.nan), "1+-nanj"),
        (complex(1, -math.inf), "1-infj"), (1e10 + 1e-10j, "1e+10+1e-10j"),
    ],
)  # fmt: skip
def test_complex(value, expected):
    assert text(value, dtypes.complex64) == f"array({expected}, dtype=complex64)"


def test_integers_and_bools_are_written_in_full():
    assert text([2**63 - 1, -(2**63)], dtypes.int64) == f"array([{2**63 - 1}, {-(2**63)}], dtype=int64)"
    assert text([2**64 - 1], dtypes.uint64) == f"array([{2**64 - 1}], dtype=uint64)"
    assert text([True, False], dtypes.bool_) == "array([True, False], dtype=bool)"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((0,), "[]"), ((0, 3), "[]"), ((1, 0), "[[]]"), ((2, 0, 3), "[[],\n       []]"),
        ((2, 1), "[[0],\n       [1]]"),
        ((2, 2, 2), "[[[0, 1],\n        [2, 3]],\n       [[4, 5],\n        [6, 7]]]"),
        ((6,), "[0, 1, 2, 3, 4, 5]"), ((7,), "[0, 1, 2, ..., 4, 5, 6]"),
        ((7, 1), "[[0],\n       [1],\n       [2],\n       ...,\n       [4],\n       [5],\n       [6]]"),
        ((8, 0), "[[],\n       [],\n       [],\n       ...,\n       [],\n       [],\n       []]"),
    ],
)  # fmt: skip
def test_nesting(shape, expected):
    values = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    assert format_array(values, dtypes.int32) == f"array({expected}, dtype=int32)"


def test_views_are_read_through_their_strides():
    values = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for view in (values.T, values[::-1, :, ::-2], values[:, 1], np.broadcast_to(values[0, 0], (2, 2, 4))):
        assert format_array(view, dtypes.int32) == format_array(np.ascontiguousarray(view), dtypes.int32)


def test_only_the_corners_of_a_huge_array_are_read():
    huge = np.broadcast_to(np.float32(1.5), (10**6, 10**6, 10**5))  # 4e17 bytes, were it real
    lines = format_array(huge, dtypes.float32).splitlines()
    assert lines[0] == "array([[[1.5, 1.5, 1.5, ..., 1.5, 1.5, 1.5],"
    assert len(lines) == 7 * 6 + 1
    assert lines[-1].endswith("1.5]]], dtype=float32)")


def test_precision_is_decimal_places():
    assert text([1 / 3, 12345.678, 2.5], options=PrintOptions(2)) == "array([0.33, 12345.68, 2.50], dtype=float32)"
    assert text([0.5, 1.5, math.nan], options=PrintOptions(0)) == "array([0, 2, nan], dtype=float32)"
    assert text(0.5, options=PrintOptions(-3)) == "array(0.500000, dtype=float32)"
    assert text(1 / 3 - 0.25j, dtypes.complex64, PrintOptions(1)) == "array(0.3-0.2j, dtype=complex64)"
    assert text(7, dtypes.int32, PrintOptions(3)) == "array(7, dtype=int32)"


def test_options_are_global_and_nest():
    printing.set_printoptions(precision=3)
    assert text(1 / 3) == "array(0.333, dtype=float32)"
    block = printing.printoptions(precision=1)
    assert text(1 / 3) == "array(0.333, dtype=float32)"  # not entered yet
    with block as entered:
        assert entered is block
        assert printing.get_printoptions() == PrintOptions(1)
        with printing.printoptions(), block:
            assert text(1 / 3) == "array(0.3, dtype=float32)"
        assert printing.get_printoptions().precision == 1
    assert printing.get_printoptions().precision == 3


def test_an_exception_leaves_the_options_as_they_were():
    with pytest.raises(KeyError), printing.printoptions(4):
        raise KeyError
    assert printing.get_printoptions().precision == -1


def test_the_options_one_gets_are_a_copy():
    options = printing.get_printoptions()
    options.precision = 1
    assert text(1 / 3) == "array(0.333333, dtype=float32)"


@pytest.mark.parametrize("function", [PrintOptions, printing.set_printoptions, printing.printoptions])
@pytest.mark.parametrize("bad", ["3", 2.5, None, True])
def test_precision_is_an_int(function, bad):
    with pytest.raises(TypeError, match=rf"\[{function.__name__}\] precision must be an int"):
        function(precision=bad)


def test_reprlib_does_not_take_arrays_for_those_of_the_module_array():
    """pytest and debuggers print values with it, those of an error's frames among them."""
    assert reprlib.repr(mx.array([1, 2, 3])) == "array([1, 2, 3], dtype=int32)"
    assert reprlib.repr([mx.arange(100)]) == "[array([0, 1, ..., dtype=int32)]"
    assert reprlib.repr(packed.array("i", range(9))) == "array('i', [0, 1, 2, 3, 4, ...])"
