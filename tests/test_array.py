"""The array as users hold it: made from anything, looked at, combined by operators, changed in place, copied, and
handed to other libraries."""

from __future__ import annotations

import copy
import gc
import math
import operator
import pickle
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import generator, lay_out, same_bits, values_of
from weft import dtypes as dt
from weft.primitives.elementwise import draw

NAMES = {"ids": lambda d: d.name}


def sample(dtype: dt.Dtype, *shape: int) -> np.ndarray:
    return np.asarray(draw(generator(f"{dtype.name}{shape}"), dtype, shape))


# ---- making ----


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (True, dt.bool_, ()), (3, dt.int32, ()), (2**40, dt.int64, ()), (1.5, dt.float32, ()), (1j, dt.complex64, ()),
        ([], dt.float32, (0,)), ([1, 2.5], dt.float32, (2,)), ([[1, 2], [3, 4]], dt.int32, (2, 2)),
        ([True, 2], dt.int32, (2,)),
        ((1, 2, 3), dt.int32, (3,)), (np.arange(3), dt.int64, (3,)), (np.zeros((2, 1)), dt.float32, (2, 1)),
        (np.float16(2), dt.float16, ()), (np.zeros((0, 3), np.uint8), dt.uint8, (0, 3)), (range(3), dt.int32, (3,)),
    ],
)  # fmt: skip
def test_default_dtypes(value: Any, dtype: dt.Dtype, shape: tuple[int, ...]) -> None:
    if isinstance(value, range):
        value = list(value)
    x = mx.array(value)
    assert (x.dtype, x.shape) == (dtype, shape)


@pytest.mark.parametrize("dtype", dt.ALL, **NAMES)
def test_every_dtype_from_numpy_and_back(dtype: dt.Dtype) -> None:
    values = sample(dtype, 3, 5)
    x = mx.array(values, dtype=dtype)
    assert x.dtype is dtype
    assert same_bits(np.asarray(x), values, payloads=True)


def test_arrays_from_arrays() -> None:
    x = mx.array([1.5, 2.5])
    assert mx.array(x).dtype is dt.float32
    assert mx.array(x, dtype=dt.int32).tolist() == [1, 2]
    stacked = mx.array([x, x * 2])
    assert stacked.tolist() == [[1.5, 2.5], [3.0, 5.0]]
    y = mx.array(x)
    y += 1
    assert x.tolist() == [1.5, 2.5], "a copy is another array"


def test_numpy_memory_is_copied() -> None:
    values = np.array([1.0, 2.0], np.float32)
    x = mx.array(values)
    values[0] = 9
    assert x.tolist() == [1.0, 2.0]


# ---- attributes ----


def test_attributes() -> None:
    x = mx.zeros((2, 3, 4), dt.int16)
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, x.dtype) == ((2, 3, 4), 3, 24, 2, 48, dt.int16)
    assert x.T.shape == (4, 3, 2)
    assert len(x) == 2
    z = mx.array([1 + 2j, 3 - 4j])
    assert z.real.tolist() == [1.0, 3.0]
    assert z.imag.tolist() == [2.0, -4.0]


def test_attributes_cannot_be_set() -> None:
    x = mx.zeros((2,))
    for name in ("shape", "dtype", "size", "T"):
        with pytest.raises(AttributeError):
            setattr(x, name, None)
    with pytest.raises(AttributeError):
        x.surprise = 1


# ---- numbers ----


def test_an_array_of_one_element_is_a_number() -> None:
    assert mx.array(2.5).item() == 2.5
    assert mx.array([[7]]).item() == 7
    assert isinstance(mx.array(True).item(), bool)
    assert (int(mx.array(3.7)), float(mx.array([2])), complex(mx.array(1 + 2j))) == (3, 2.0, 1 + 2j)
    assert bool(mx.array([0.0])) is False
    assert [10, 20, 30][mx.array(1)] == 20
    assert list(range(10))[mx.array(2) : mx.array(5)] == [2, 3, 4]
    assert math.sqrt(mx.array(4.0)) == 2.0


@pytest.mark.parametrize("dtype", dt.ALL, **NAMES)
def test_tolist(dtype: dt.Dtype) -> None:
    values = sample(dtype, 2, 3)
    expected = values.astype(np.float32).tolist() if dtype is dt.bfloat16 else values.tolist()
    assert mx.array(values, dtype=dtype).tolist() == expected


# ---- operators ----

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
BY_NAME = {"ids": lambda f: f.__name__}


@pytest.mark.parametrize("function", ARITHMETIC + COMPARISONS, **BY_NAME)
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int32, dt.int64], **NAMES)
def test_operators(function: Any, dtype: dt.Dtype) -> None:
    """Array with array, array with number, number with array: as NumPy computes them."""
    a = np.array([7, 5, 3, 2], dtype.np)
    b = np.array([2, 3, 1, 2], dtype.np)
    for got, want in (
        (function(mx.array(a, dtype=dtype), mx.array(b, dtype=dtype)), function(a, b)),
        (function(mx.array(a, dtype=dtype), 2), function(a, dtype.np.type(2))),
        (function(2, mx.array(b, dtype=dtype)), function(dtype.np.type(2), b)),
    ):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
        if want.dtype == np.bool_:
            assert got.dtype is dt.bool_


@pytest.mark.parametrize("function", BITS, **BY_NAME)
def test_operators_on_bits(function: Any) -> None:
    a, b = np.array([12, 10, 7], np.int32), np.array([1, 2, 3], np.int32)
    assert np.asarray(function(mx.array(a), mx.array(b))).tolist() == function(a, b).tolist()
    assert np.asarray(function(mx.array(a), 2)).tolist() == function(a, 2).tolist()
    assert np.asarray(function(40, mx.array(b))).tolist() == function(40, b).tolist()


def test_unary_operators() -> None:
    x = mx.array([1.5, -2.5])
    assert (-x).tolist() == [-1.5, 2.5]
    assert (+x).tolist() == [1.5, -2.5]
    assert abs(x).tolist() == [1.5, 2.5]
    assert (~mx.array([True, False])).tolist() == [False, True]
    assert (~mx.array([0, 5])).tolist() == [-1, -6]


def test_matrix_products() -> None:
    a, b = np.arange(6.0).reshape(2, 3).astype(np.float32), np.arange(12.0).reshape(3, 4).astype(np.float32)
    assert (mx.array(a) @ mx.array(b)).tolist() == (a @ b).tolist()
    assert (a @ mx.array(b)).tolist() == (a @ b).tolist()
    x = mx.array(a)
    x @= mx.array(b)
    assert x.tolist() == (a @ b).tolist()


def test_numpy_arrays_meet_arrays() -> None:
    """The left operand says what comes out, as in MLX: NumPy computes with its own arrays, in its own dtypes."""
    x = mx.array([1.0, 2.0])
    mine = x + np.ones(2)
    assert isinstance(mine, mx.array)
    assert (mine.dtype, mine.tolist()) == (mx.float32, [2.0, 3.0])
    theirs = np.ones(2) + x
    assert isinstance(theirs, np.ndarray)
    assert (theirs.dtype, theirs.tolist()) == (np.float64, [2.0, 3.0])
    same = np.array([1.0, 5.0]) == x
    assert isinstance(same, np.ndarray)
    assert same.tolist() == [True, False]
    total = np.ones(2)
    total += x
    assert total.tolist() == [2.0, 3.0]
    number = np.float64(2) * x
    assert isinstance(number, mx.array), "a number of NumPy's is a number"
    assert (number.dtype, number.tolist()) == (mx.float32, [2.0, 4.0])


def test_numpy_arrays_in_functions_that_are_transformed() -> None:
    n, x = np.array([2.0, 3.0]), mx.array([1.0, 4.0])
    assert mx.grad(lambda x: (n * x).sum())(x).tolist() == [2.0, 3.0]
    assert mx.compile(mx.grad(lambda x: (n * x).sum()))(x).tolist() == [2.0, 3.0]
    assert mx.vmap(lambda x: n * x)(x).tolist() == [[2.0, 3.0], [8.0, 12.0]]
    with pytest.raises(ValueError, match="NumPy's multiply computes with values"):
        mx.compile(lambda x: n * x)(x)


@pytest.mark.parametrize(
    "name",
    [
        "sum",
        "mean",
        "max",
        "min",
        "all",
        "any",
        "std",
        "var",
        "prod",
        "cumsum",
        "argmax",
        "median",
        "transpose",
        "sort",
    ],
)
def test_functions_of_numpy(name: str) -> None:
    x = np.array([[3.0, 1.0], [2.0, 7.0]], np.float32)
    function = getattr(np, name)
    for options in ({}, {"axis": 0}) if name != "transpose" else ({}, {"axes": (1, 0)}):
        got, expected = function(mx.array(x), **options), function(x, **options)
        assert type(got) is type(expected)
        np.testing.assert_array_equal(got, expected)


def test_numpy_asks_for_shapes_without_elements() -> None:
    """So it may while a function is traced, which has none."""

    def f(x: mx.array) -> mx.array:
        assert (np.shape(x), np.ndim(a=x), np.size(x)) == ((2, 3), 2, 6)
        return x + np.size(x)

    assert mx.compile(f)(mx.zeros((2, 3))).tolist() == [[6.0] * 3] * 2
    assert np.size(mx.zeros((2, 3)), 1) == 3


def test_functions_of_numpy_take_arrays_in_lists() -> None:
    x = mx.array([1.0, 2.0])
    np.testing.assert_array_equal(np.concatenate([x, np.zeros(1)]), [1, 2, 0])
    assert np.all(np.array([1.0, 2.0]) == x)
    assert np.sum(x, dtype=np.float64) == 3.0
    assert np.array_equal(np.stack([x, x]), [[1, 2], [1, 2]])


def test_unknown_operands_get_pythons_own_error() -> None:
    x = mx.array([1, 2])
    for other in ("text", {}, None):
        with pytest.raises(TypeError, match="unsupported operand"):
            _ = x + other
        with pytest.raises(TypeError):
            _ = other < x
        assert (x == other) is False
        assert (x != other) is True


class Meter:
    """Somebody else's number, which knows arrays."""

    def __radd__(self, other: Any) -> str:
        return "meters"


@pytest.mark.parametrize("function", [operator.lt, operator.eq], **BY_NAME)
def test_broadcasting(function: Any) -> None:
    a, b = np.arange(3).reshape(3, 1), np.arange(4)
    assert np.asarray(function(mx.array(a), mx.array(b))).tolist() == function(a, b).tolist()


# ---- in place ----


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (operator.iadd, [3.0, 4.0]), (operator.isub, [-1.0, 0.0]), (operator.imul, [2.0, 4.0]),
        (operator.itruediv, [0.5, 1.0]),
        (operator.ipow, [1.0, 4.0]), (operator.ifloordiv, [0.0, 1.0]), (operator.imod, [1.0, 0.0]),
    ],
)  # fmt: skip
def test_in_place_operators_change_the_array_for_every_name(function: Any, want: list[float]) -> None:
    a = mx.array([1.0, 2.0])
    b = a
    b = function(b, 2.0)
    assert b is a
    assert a.tolist() == want


def test_in_place_operators_leave_values_alone_that_were_computed_from_the_array() -> None:
    a = mx.array([1.0, 2.0])
    view, double = a[::-1], a * 2
    a += 10
    assert (view.tolist(), double.tolist(), a.tolist()) == ([2.0, 1.0], [2.0, 4.0], [11.0, 12.0])


def test_in_place_bit_operators() -> None:
    a = mx.array([12, 10])
    for function, want in (
        (operator.iand, [8, 8]),
        (operator.ior, [9, 9]),
        (operator.ixor, [8, 8]),
        (operator.ilshift, [16, 16]),
    ):
        a = function(a, 8 if function is operator.iand else 1)
        assert a.tolist() == want


def test_item_assignment_changes_the_array_for_every_name() -> None:
    a = mx.zeros((3,))
    b = a
    b[1] = 5.0
    assert a.tolist() == [0.0, 5.0, 0.0]


def test_numpy_views_do_not_see_later_changes() -> None:
    a = mx.array([1.0, 2.0])
    seen = np.array(a, copy=False)
    a[0] = 9.0
    assert seen.tolist() == [1.0, 2.0]


# ---- indexing: the basic forms ----

INDICES: list[Any] = [
    0, -1, 2, slice(None), slice(1, 3), slice(None, None, -1), slice(None, None, 2), slice(3, 0, -2), slice(5, 2),
    slice(-2, None),
    None, ..., (0, 1), (0, ...), (..., 0), (slice(None), 1), (None, 0, None),
    (slice(1, None), None, slice(None, None, -1)),
    (1, slice(None), -1), (..., None), (0, 0, 0), (slice(0, 0), 1), (slice(None), slice(2, None, -1), slice(1, 100)),
    (),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "reversed", "cut"])
def test_reading_parts(index: Any, layout: str) -> None:
    values = np.arange(4 * 3 * 5, dtype=np.float32).reshape(4, 3, 5)
    (x,) = lay_out([values], layout)
    assert same_bits(values_of(x[index]), np.asarray(values[index]))


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_writing_parts(index: Any, layout: str) -> None:
    values = np.arange(4 * 3 * 5, dtype=np.float32).reshape(4, 3, 5)
    (x,) = lay_out([values], layout)
    x[index] = -1.5
    expected = values.copy()
    expected[index] = -1.5
    assert same_bits(values_of(x), expected), "a number"
    (y,) = lay_out([values], layout)
    part = -values[index] * 2
    y[index] = mx.array(part)
    expected = values.copy()
    expected[index] = part
    assert same_bits(values_of(y), expected), "an array"
    y[index] = y[index] + 1.0
    expected[index] += 1.0
    assert same_bits(values_of(y), expected), "its own part"


def test_written_values_are_broadcast_and_converted() -> None:
    x = mx.zeros((2, 3), dt.int32)
    x[:, 1:] = mx.array([[1.7], [2.2]])
    assert x.tolist() == [[0, 1, 1], [0, 2, 2]]
    x[0] = [7, 8, 9]
    assert x.tolist() == [[7, 8, 9], [0, 2, 2]]
    x[...] = 4
    assert x.tolist() == [[4, 4, 4], [4, 4, 4]]


# ---- iteration, hashing, printing ----


def test_iteration() -> None:
    assert [row.tolist() for row in mx.array([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    first, second = mx.array([5.0, 6.0])
    assert (first.item(), second.item()) == (5.0, 6.0)
    assert list(mx.zeros((0, 2))) == []
    assert max(mx.array([3, 1, 2])).item() == 3
    assert 2 in mx.array([1, 2, 3])


def test_hashing_is_by_identity() -> None:
    a, b = mx.array([1]), mx.array([1])
    table = {a: "a", b: "b"}
    assert (table[a], table[b]) == ("a", "b")
    assert hash(a) == hash(a)
    before = hash(a)
    a += 1
    assert hash(a) == before, "also after a change in place"


def test_printing() -> None:
    assert repr(mx.array([[1, 2], [3, 4]])) == "array([[1, 2],\n       [3, 4]], dtype=int32)"
    assert str(mx.array(0.5) * 3) == "array(1.5, dtype=float32)"
    assert repr(mx.array([])) == "array([], dtype=float32)"
    assert repr(mx.array([True])) == "array([True], dtype=bool)"


def test_formatting() -> None:
    """A 0-d array is formatted as its number: training loops print their losses."""
    loss = mx.mean(mx.array([0.5, 1.0]))
    assert f"{loss}" == "0.75"
    assert f"{loss:.3f}" == "0.750"
    assert f"{mx.array(3):5d}" == "    3"
    assert f"{mx.array([1.5])}" == "array([1.5], dtype=float32)"
    with pytest.raises(TypeError, match="formats one number"):
        f"{mx.array([1.5]):.1f}"


# ---- copies ----


@pytest.mark.parametrize("dtype", dt.ALL, **NAMES)
def test_pickling(dtype: dt.Dtype) -> None:
    values = sample(dtype, 3, 4)
    x = mx.array(values, dtype=dtype)
    for made in (x, x.T, x[::-1, 1::2], mx.zeros((0, 2), dtype)):
        again = pickle.loads(pickle.dumps(made))
        assert again.dtype is made.dtype
        assert same_bits(values_of(again), values_of(made), payloads=True)


def test_copies_are_independent() -> None:
    x = mx.array([1.0, 2.0])
    for made in (copy.copy(x), copy.deepcopy(x), copy.deepcopy({"w": [x]})["w"][0]):
        made += 1
        assert made.tolist() == [2.0, 3.0]
        assert x.tolist() == [1.0, 2.0]


def test_copies_of_what_is_not_computed_yet() -> None:
    x = mx.array([1.0, 2.0])
    y = x * 3
    z = copy.deepcopy(y)
    x += 1
    assert (z.tolist(), y.tolist()) == ([3.0, 6.0], [3.0, 6.0])


# ---- other libraries ----


@pytest.mark.parametrize("dtype", dt.ALL, **NAMES)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "reversed", "spaced", "repeated_last"])
def test_numpy_sees_the_same_elements(dtype: dt.Dtype, layout: str) -> None:
    values = sample(dtype, 4, 6)
    (x,) = lay_out([values], layout)
    expected = values_of(x)
    assert same_bits(np.asarray(x), expected, payloads=True)
    assert same_bits(np.array(x), expected, payloads=True)


def test_array_protocol() -> None:
    x = mx.array([1.5, 2.5])
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    fresh = np.array(x)
    fresh[0] = 9
    assert x.tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="copy"):
        np.array(x, dtype=np.int32, copy=False)
    assert np.sin(x).tolist() == np.sin(np.array([1.5, 2.5], np.float32)).tolist()


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d is not dt.bfloat16], **NAMES)
def test_dlpack(dtype: dt.Dtype) -> None:
    values = sample(dtype, 3, 4)
    x = mx.array(values, dtype=dtype)
    assert x.__dlpack_device__() == (1, 0)
    assert same_bits(np.from_dlpack(x), values)
    assert same_bits(np.from_dlpack(x.T), values.T)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="its DLPack cannot say read-only")
def test_dlpack_shares_memory_and_keeps_it_alive() -> None:
    x = mx.array([1.0, 2.0, 3.0])
    seen = np.from_dlpack(x)
    address = seen.__array_interface__["data"][0]
    assert np.array(x, copy=False).__array_interface__["data"][0] == address
    del x
    gc.collect()
    keep = [mx.ones((3,)) * i for i in range(20)]
    mx.eval(keep)
    assert seen.tolist() == [1.0, 2.0, 3.0]


def test_buffer_protocol() -> None:
    x = mx.array([[1, 2], [3, 4]])
    view = memoryview(x)
    assert (view.shape, view.format, view.tolist()) == ((2, 2), "i", [[1, 2], [3, 4]])
    assert bytes(mx.array([1, 2, 3], dt.uint8)) == b"\x01\x02\x03"


def test_array_namespace() -> None:
    assert mx.array(1).__array_namespace__() is mx


def test_results_own_their_memory() -> None:
    """What NumPy was given before an evaluation is not touched by it, in-place plans included."""
    x = mx.array(np.arange(1000, dtype=np.float32))
    y = x * 2
    seen = np.array(y, copy=False)
    for _ in range(5):
        y = mx.exp(y * 0.0) + y
        mx.eval(y)
    assert seen.tolist() == (np.arange(1000) * 2).tolist()
