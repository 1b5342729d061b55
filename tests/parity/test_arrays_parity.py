"""What Python asks of an array (conversion, comparison, iteration, formatting, copies, pickles) and the names of
`mlx.core`: the answers, and the classes of errors, of MLX.
"""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import numpy as np
import pytest

import weft.core as wx
from tests.parity.oracle import COMMON, alike, both, outcome
from weft import dtypes as dt
from weft.dtypes import Dtype

mx = pytest.importorskip("mlx.core")

VALUES: dict[str, Any] = {
    "number": 3, "vector": [1, 2, 3], "one": [5], "matrix": [[1, 2, 3], [4, 5, 6]], "none": [], "rows": [[], []]
}  # fmt: skip

EXPRESSIONS = (
    "x.item()", "x.tolist()", "bool(x)", "int(x)", "float(x)", "complex(x)", "operator.index(x)", "len(x)", "list(x)",
    "list(range(x))", "x.size", "x.ndim", "x.nbytes", "x.itemsize", "x.shape", "x.dtype", "repr(x)", "str(x)", "f'{x}'",
    "f'{x:.2f}'", "format(x, '>8')", "format(x, '')", "x == 'a'", "x != 'a'", "x == [1, 2, 3]", "x != (1, 2, 3)",
    "x == object()", "x != object()", "x == {}", "x == 1", "x == 1.5", "x != x", "1 in x",
    "'a' in x", "x in [x]", "copy.copy(x)", "copy.deepcopy(x)", "pickle.loads(pickle.dumps(x))", "x.__getstate__()[1]",
    "x[...]", "x[None]", "x[()]", "x[0, 0]", "x[0, 0, 0]", "x[..., ...]", "x[:, 0]", "x[1:2.0]", "x['a']", "x[1.0]",
    "x[[0]]", "x + None", "None + x", "m.sum(x, 5)", "m.sum('a')", "m.array('a')", "m.array(None)", "m.abs(None)",
)  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_answers(text: str) -> None:
    for values in VALUES.values():
        for name in ("float32", "int32", "bool_", "complex64", "uint8"):
            if text.startswith("format") and name == "bool_":
                continue  # formats of numbers for truths: MLX ends the process
            if "0" in text and "[" in text and 0 in np.shape(values):
                continue  # an index that is not there: IndexError here, anything at all in MLX

            def ask(m: Any, values: Any = values, name: str = name) -> Any:
                known = {"copy": copy, "np": np, "operator": operator, "pickle": pickle}
                return eval(text, {"m": m, "x": m.array(values, getattr(m, name)), **known})

            alike(outcome(lambda ask=ask: ask(wx)), outcome(lambda ask=ask: ask(mx)))  # type: ignore[misc]


def test_an_array_is_not_equal_to_nothing() -> None:
    """MLX raises TypeError for None, and so does `None in x`."""
    x = wx.array([1, 2])
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert None not in x


class Reflecting:
    """Knows how to be added to an array."""

    def __radd__(self, other: Any) -> str:
        return "added"

    def __rlt__(self, other: Any) -> str:
        return "compared"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_operands_of_other_libraries_have_their_say() -> None:
    x = wx.array([1, 2])
    assert x + Reflecting() == "added"
    assert (x == Reflecting()) is True
    with pytest.raises(TypeError, match="unsupported operand"):
        x - Reflecting()
    with pytest.raises(ValueError, match="element"):
        wx.add(x, [1, "a"])


@pytest.mark.parametrize("dtype", COMMON, ids=str)
def test_each_reads_what_the_other_pickled(dtype: Dtype) -> None:
    for values in (1, [1, 0, 1], [[1], [0]], []):
        ours, theirs = wx.array(values, dtype), mx.array(values, getattr(mx, dtype.name.replace("bool", "bool_")))
        read = wx.array(0)
        read.__setstate__(theirs.__getstate__())
        alike(read, theirs)
        if dtype is not dt.float64:  # of which MLX makes float32
            made = mx.array.__new__(mx.array)
            made.__setstate__(ours.__getstate__())
            alike(ours, made)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            alike(pickle.loads(pickle.dumps(ours, protocol)), theirs)


def test_a_pickled_array_shares_no_memory() -> None:
    x = wx.array([1.0, 2.0])
    state = x.__getstate__()
    y = wx.array(0)
    y.__setstate__(state)
    state[0][:] = 9.0
    assert x.tolist() == y.tolist() == [1.0, 2.0]


def test_iterators() -> None:
    x = wx.array([[1, 2], [3, 4], [5, 6]])
    rows = iter(x)
    assert isinstance(rows, wx.ArrayIterator)
    assert next(rows).tolist() == [1, 2]
    assert operator.length_hint(rows) == 2
    assert [row.tolist() for row in rows] == [[3, 4], [5, 6]]
    assert type(iter(mx.array([1]))).__name__ == type(rows).__name__


class Wrapped:
    """Stands for an array."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __mlx_array__(self) -> Any:
        return self.value


def test_objects_that_stand_for_arrays() -> None:
    x = np.array([1, 2], np.int32)
    both(lambda m, a: m.array(Wrapped(a)), x)
    both(lambda m, a: m.exp(Wrapped(a)), x, loose=True)
    both(lambda m, a: a * Wrapped(a), x)
    both(lambda m, a: Wrapped(a) - a, x)
    both(lambda m, a: a == Wrapped(a), x)
    both(lambda m, a: a == np.array([1, 5]), x)
    assert wx.add(Wrapped(wx.array([1])), 1).tolist() == [2]
    assert wx.array(Wrapped(wx.array([1.5])), wx.int32).tolist() == [1]
    assert isinstance(Wrapped(0), wx.ArrayLike)
    assert not isinstance(3, wx.ArrayLike)


def test_bounds_of_clip_have_their_dtype_from_the_array() -> None:
    """The upper one too, whatever the lower one makes of it."""
    truths = np.array([False, True])
    for low in (np.array([-3, 8], np.int8), np.array([-3, 8], np.float16)):
        both(lambda m, a, low: m.clip(a, low, 3), truths, low)
        both(lambda m, a, low: m.clip(a, low, True), truths, low)
        both(lambda m, a, low: m.clip(a, low, 2.5), truths, low)


@pytest.mark.parametrize("text", [
    "m.zeros(m.array([2, 3]))", "m.zeros(np.array([2, 3]))", "m.zeros((m.array(2), 3))", "m.ones(range(2, 4))",
    "m.full(m.array([2]), 1)", "m.eye(m.array(3))", "m.tri(3, k=m.array(1))", "m.linspace(0, 1, m.array(3))",
    "m.reshape(x, (m.array(3), -1))", "m.reshape(x, m.array([3, 2]))",
    "m.roll(x, m.array(1))", "m.roll(x, m.array([1]))", "m.roll(x, (1, m.array(2)), m.array([0, 1]))",
    "m.repeat(x, m.array(2))", "m.tile(x, m.array(2))", "m.tile(x, m.array([2, 1]))", "m.pad(x, m.array(1))",
    "m.split(x, m.array(3), 1)", "m.split(x, m.array([1, 2]), 1)", "m.broadcast_to(x[0], m.array([2, 3]))",
    "m.topk(x, m.array(1))", "m.unflatten(x, 1, (m.array(3), 1))", "m.diag(x[0], m.array(1))",
    "m.sum(x, m.array(0))", "m.sum(x, np.array([1]))", "m.sum(x, range(2))", "m.transpose(x, m.array([1, 0]))",
    "m.expand_dims(x, range(2))", "m.fft.fft(x, m.array(4)).shape", "m.fft.fft2(x, m.array([2, 2])).shape",
    "m.conv1d(x[..., None], m.ones((1, 2, 1)), m.array(2))", "m.random.normal((m.array(2),)).shape",
    "m.random.split(m.random.key(0), m.array(3))", "m.tensordot(x, x, [0])",
    "m.zeros(m.array([2.0]))", "m.zeros((m.array([2]), 3))", "m.roll(x, m.array(1.0))", "m.sum(x, m.array(0.0))",
    "m.linalg.norm(x, axis=m.array([1]))", "m.quantize(m.ones((2, 64)), m.array(32))[0].shape",
    "type(m.quantize(m.ones((2, 64))))", "m.convolve(x[0], m.array([1, 1]))", "m.convolve(m.array([1, 1]), x[0])",
    "m.conv1d(x[..., None], m.ones((1, 2, 1), m.int8))",
    "m.where(x > 2, x, None)",
])  # fmt: skip
def test_arrays_as_sizes_axes_and_counts(text: str) -> None:
    """Arrays of one integer stand for it, those with an axis for several."""

    def ask(m: Any) -> Any:
        return eval(text, {"m": m, "np": np, "x": m.array([[1, 2, 3], [4, 5, 6]], m.float32)})

    alike(outcome(lambda: ask(wx)), outcome(lambda: ask(mx)), loose=True)


def test_names() -> None:
    def public(thing: Any) -> set[str]:
        return {name for name in dir(thing) if not name.startswith("_")}

    assert public(mx) <= public(wx)
    assert public(mx.random) <= public(wx.random)
    assert set(dir(mx.array)) <= set(dir(wx.array))
    assert public(mx.Dtype) <= public(wx.Dtype)
    assert public(mx.array([1]).at[0]) <= public(wx.array([1]).at[0])


def test_streams_of_threads() -> None:
    local = wx.new_thread_local_stream(wx.cpu)
    assert repr(local).startswith("ThreadLocalStream(Device(cpu, 0), ")
    assert isinstance(local, wx.ThreadLocalStream)
    before = wx.default_stream(wx.cpu)
    with wx.stream(local):
        assert wx.default_stream(wx.cpu) == local.here() != before
    assert wx.default_stream(wx.cpu) == before
    assert isinstance(wx.new_thread_unsafe_stream(wx.cpu), wx.Stream)
    with wx.stream(local):
        wx.clear_streams()
        assert wx.default_stream(wx.cpu).index == 0


def test_devices() -> None:
    for ask in (
        lambda m: m.device_count(device_type=m.cpu), lambda m: repr(m.cpu), lambda m: str(m.gpu),
        lambda m: repr(m.Device(m.cpu)), lambda m: sorted(m.device_info(d=m.cpu)) == sorted(m.device_info(None)),
    ):  # fmt: skip
        assert ask(wx) == ask(mx)


def test_sizes_of_buffers() -> None:
    x = wx.array([1.0, 2.0, 3.0])
    assert wx.get_array_buffer_size(x) == mx.get_array_buffer_size(mx.array([1.0, 2.0, 3.0])) == 12
    assert wx.get_array_buffer_size({"a": [x, x], "b": 3}) == 12
    assert wx.get_array_buffer_size(x + 1) == 0
