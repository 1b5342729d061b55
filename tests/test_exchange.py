"""What passes the border of an array: states of pickles that may be damaged, and memory that other libraries see."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import same_bits, values_of
from weft import dtypes as dt

NAMES: dict[str, Any] = {"ids": lambda d: d.name}
VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy's DLPack can say that memory is read-only; others get copies."""


# ---- pickles ----


def fresh() -> mx.array:
    """An array as pickle makes it, before its state is there."""
    return mx.array.__new__(mx.array)


@pytest.mark.parametrize(
    "state",
    [
        None,
        (),
        (np.zeros(3, np.float32),),
        (np.zeros(3, np.float32), 10, 0),
        [np.zeros(3, np.float32), 10],
        ([0.0, 1.0], 10),
        (b"\0" * 12, 10),
        (np.float32(1), 10),
        (np.zeros(3, np.float32), 15),
        (np.zeros(3, np.float32), 99),
        (np.zeros(3, np.float32), -1),
        (np.zeros(3, np.float32), 2**70),
        (np.zeros(3, np.float32), 10.0),
        (np.zeros(3, np.float32), True),
        (np.zeros(3, np.float32), None),
        (np.zeros(3, np.float32), 11),
        (np.zeros(3, np.float32), 14),
        (np.zeros(3, np.float32), 0),
        (np.zeros(4, np.uint8), 10),
        (np.zeros(3, np.float16), 12),
        (np.array([None, "text"]), 8),
        (np.array(["text"]), 3),
        (np.zeros(3, "m8[s]"), 8),
        (np.zeros(3, [("a", "f4")]), 10),
    ],
    ids=repr,
)
def test_states_that_are_none(state: Any) -> None:
    """A wrong number of a dtype used to be believed: memory beyond the elements was read."""
    with pytest.raises(ValueError, match=r"\[array\].*pickle"):
        fresh().__setstate__(state)
    x = mx.array([1.0, 2.0])
    with pytest.raises(ValueError, match=r"\[array\].*pickle"):
        x.__setstate__(state)
    assert x.tolist() == [1.0, 2.0]


@given(
    held=st.sampled_from([d.np for d in dt.ALL] + [np.dtype(t) for t in ("O", "S3", "U2", "M8[s]", "f4,i2", ">f4")]),
    number=st.integers(-3, 20),
    shape=st.lists(st.integers(0, 4), max_size=4),
    turned=st.booleans(),
)
def test_a_state_is_taken_whole_or_refused(held: np.dtype, number: int, shape: list[int], turned: bool) -> None:
    values = np.zeros(shape, held)
    state = (values.T[::-1] if turned and shape else values, number)
    x = fresh()
    try:
        x.__setstate__(state)
    except ValueError:
        return
    stored = np.dtype(np.uint16) if x.dtype is mx.bfloat16 else x.dtype.np
    assert held.newbyteorder("=") == stored
    assert x.shape == state[0].shape
    assert not mx.any(x != 0).item()


class Careful(pickle.Unpickler):
    """Loads nothing but what a pickled array needs: the bytes are random."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in ("weft", "numpy"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


@given(
    protocol=st.integers(2, pickle.HIGHEST_PROTOCOL),
    dtype=st.sampled_from(dt.ALL),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3),
    cut=st.floats(0.5, 1.2),
)
def test_damaged_pickles(protocol: int, dtype: dt.Dtype, flips: list[tuple[float, int]], cut: float) -> None:
    """Whatever comes of it: an error, or an array all of whose elements can be read."""
    raw = bytearray(pickle.dumps(mx.arange(6).reshape(2, 3).astype(dtype), protocol))
    for place, bits in flips:
        raw[int(place * len(raw))] ^= bits
    try:
        found = Careful(io.BytesIO(bytes(raw[: int(len(raw) * cut)]))).load()
    except Exception:
        return  # pickle itself raises nearly everything for what it cannot read
    if type(found) is mx.array and hasattr(found, "_node"):
        assert len(bytes(found)) == found.nbytes
        mx.eval(found + found)


def test_bools_from_elsewhere() -> None:
    x = fresh()
    x.__setstate__((np.array([0, 1, 2, 255], np.uint8).view(np.bool_), 0))
    assert x.tolist() == [False, True, True, True]
    assert bytes(x) == b"\0\1\1\1"


def test_states_in_another_byte_order() -> None:
    x = fresh()
    x.__setstate__((np.array([[1.5, -2.0]], ">f4"), 10))
    assert x.tolist() == [[1.5, -2.0]]


def test_a_new_state_in_a_compiled_function() -> None:
    x = mx.array([1.0, 2.0])
    state = mx.array([5.0, 6.0, 7.0]).__getstate__()

    def f(x: mx.array) -> mx.array:
        y = x + 1
        x.__setstate__(state)
        return y

    expected, other = f(x).tolist(), mx.array([1.0, 2.0])
    assert mx.compile(f)(other).tolist() == expected
    assert other.tolist() == x.tolist() == [5.0, 6.0, 7.0]


def test_arrays_without_a_state() -> None:
    """What a pickle without its last part leaves behind: of no use, and no danger."""
    x = fresh()
    uses = (repr, mx.eval, memoryview, copy.copy, lambda x: x + 1, lambda x: mx.array([1.0])[x], mx.compile(mx.sin))
    for use in uses:
        with pytest.raises((AttributeError, BufferError)):
            use(x)


def test_dtypes_in_pickles() -> None:
    for dtype in dt.ALL:
        assert pickle.loads(pickle.dumps(dtype)) is dtype
    damaged = pickle.dumps(mx.float32).replace(b"float32", b"float31")
    with pytest.raises(ValueError, match=r"\[dtype\] 'float31'"):
        pickle.loads(damaged)


# ---- views of other libraries ----


def shared(x: mx.array) -> list[np.ndarray]:
    """Every way to see the memory of an array without a copy."""
    seen = [np.array(x, copy=False), np.asarray(x), x.__array__(copy=False), x.__array__()]
    if VERSIONED:
        seen.append(np.from_dlpack(x))
    if 0 not in np.asarray(x).strides and np.asarray(x).flags.c_contiguous and x.size:
        seen.append(np.frombuffer(x, x.dtype.np))
    return seen


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d is not dt.bfloat16], **NAMES)
def test_views_cannot_be_written_through(dtype: dt.Dtype) -> None:
    x = mx.array(np.arange(12).reshape(3, 4) % 2, dtype)
    before = x.tolist()
    others = [x, x.reshape(4, 3), x.T, x[1:], x[:, ::2], mx.broadcast_to(x, (2, 3, 4)), mx.zeros((0, 3), dtype)]
    mx.eval(others)
    for other in others:
        assert memoryview(other).readonly
        for seen in shared(other):
            assert not seen.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                seen[...] = 1
            if other.size:
                with pytest.raises(ValueError, match="WRITEABLE"):
                    seen.flags.writeable = True
    for write in (
        lambda: (ctypes.c_char * x.nbytes).from_buffer(x),
        lambda: io.BytesIO(b"\1" * x.nbytes).readinto(x),
    ):
        with pytest.raises((TypeError, BufferError), match=r"read-only|read-write|not writable"):
            write()
    assert x.tolist() == before


def test_views_of_bfloat16() -> None:
    x = mx.array([1.5, 2.0], mx.bfloat16)
    for seen in (np.asarray(x), np.array(x, copy=False), x.__array__()):
        assert seen.dtype == dt.bfloat16.np
        assert not seen.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            seen.flags.writeable = True


def test_a_copy_may_be_written_to() -> None:
    x = mx.array([1.0, 2.0])
    for mine in (np.array(x), x.__array__(copy=True), np.asarray(x, np.float64), bytearray(x)):
        mine[0] = 7
    assert x.tolist() == [1.0, 2.0]


def test_views_have_the_strides_of_the_array_and_keep_it_alive() -> None:
    x = mx.array(np.arange(12, dtype=np.float32).reshape(3, 4)) + 0
    cases = [
        (x, (16, 4)), (x.T, (4, 16)), (x[::2, 1:], (32, 4)), (x[::-1], (-16, 4)),
        (mx.broadcast_to(x, (2, 3, 4)), (0, 16, 4)), (mx.broadcast_to(x[:, :1], (3, 5)), (16, 0)),
    ]  # fmt: skip
    mx.eval([made for made, _ in cases])
    views = [(np.asarray(made), values_of(made), strides) for made, strides in cases]
    del x, cases
    gc.collect()
    mx.eval([mx.ones((3, 4)) * i for i in range(50)])
    for seen, expected, strides in views:
        assert seen.strides == strides
        assert same_bits(np.array(seen, order="C"), expected)


class OldConsumer:
    """Takes DLPack as it was before version 1, which cannot say that memory is read-only."""

    def __init__(self, x: mx.array) -> None:
        self.x = x

    def __dlpack__(self, **_: Any) -> Any:
        return self.x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


def test_old_consumers_of_dlpack_get_a_copy() -> None:
    x = mx.array([1.0, 2.0, 3.0])
    theirs = np.from_dlpack(OldConsumer(x))
    assert theirs.tolist() == [1.0, 2.0, 3.0]
    assert not np.shares_memory(theirs, np.asarray(x))


def test_what_was_exported_is_not_overwritten() -> None:
    """Donation and updates in place leave alone what another library sees, and it never sees a later value."""
    values = np.arange(1 << 17, dtype=np.float32)
    for look in (memoryview, np.asarray, np.from_dlpack):
        x = mx.array(values)
        seen = look(x)
        x += 1
        mx.eval(x)
        x[5] = 9.0
        mx.eval(x)
        assert np.array_equal(np.asarray(seen), values)
        assert x[5].item() == 9.0
