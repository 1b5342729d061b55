"""Numbers in compiled functions that do not stay where, or what, they were: lists and dicts of numbers that the
function changes, and numbers and sizes that fit into a dtype at one call and not at the next. Always: what the plain
function gives, raises and leaves behind."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from weft import dtypes
from weft.transforms import state

pytestmark = pytest.mark.filterwarnings("ignore:.*runs uncompiled", "ignore:.*keeps retracing")

Change = Callable[[Any], Any]


def outcome(fun: Callable[..., mx.array], *args: Any) -> Any:
    """What a call gives or raises."""
    try:
        made = fun(*args)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return type(error), str(error)
    return made.dtype, repr(made.tolist())


def same_twice(fun: Callable[..., mx.array], make: Callable[[], Any]) -> None:
    """A compiled function gives, raises and leaves behind what the plain one does: at the trace and after it."""
    compiled, x = mx.compile(fun), mx.array([1.0, 2.0])
    for _ in range(2):
        ours, theirs = make(), make()
        assert outcome(compiled, ours, x) == outcome(fun, theirs, x)
        assert repr(ours) == repr(theirs)
        assert type(ours) is type(theirs)
        assert x.tolist() == [1.0, 2.0]


# ---- containers that a function changes ----


def delete_first(c: Any) -> None:
    del c[0]


def shift(c: Any) -> None:
    c[:] = c[1:]


SHRINKING: dict[str, tuple[Change, Callable[[], Any]]] = {
    "pop": (lambda c: c.pop(), lambda: [1, 2, 3]),
    "pop the first": (lambda c: c.pop(0), lambda: [1, 2, 3]),
    "del": (delete_first, lambda: [1, 2.5, 3]),
    "remove": (lambda c: c.remove(2), lambda: [1, 2, 3]),
    "clear": (lambda c: c.clear(), lambda: [1, 2, 3]),
    "slice": (shift, lambda: [1, 2, 3]),
    "grow and shrink": (lambda c: (c.insert(0, 7), c.pop(), c.pop()), lambda: [1, 2, 3]),
    "nested": (lambda c: (c[0].pop(), c.pop()), lambda: [[1, 2], [3]]),
    "in a tuple": (lambda c: c[0].pop(), lambda: ([1, 2, 3], 4)),
    "in a dict": (lambda c: c["k"].pop(), lambda: {"k": [1, 2, (3, 4)]}),
    "dict": (lambda c: c.pop("a"), lambda: {"a": 1, "b": 2}),
    "popitem": (lambda c: c.popitem(), lambda: {"a": 1, "b": 2}),
    "back again": (lambda c: c.update(a=c.pop("a")), lambda: {"a": 1, "b": 2}),
    "ordered": (lambda c: (c.move_to_end("a"), c.popitem()), lambda: OrderedDict(a=1, b=2)),
    "set": (lambda c: c.discard(2), lambda: {1, 2, 3}),
    "deque": (lambda c: c.popleft(), lambda: deque([1, 2, 3])),
}


def total(c: Any) -> Any:
    """The sum of all numbers in nested containers."""
    if isinstance(c, dict):
        c = list(c.values())
    return sum([total(item) for item in c]) if isinstance(c, (list, tuple, set, deque)) else c


@pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
@pytest.mark.parametrize("name", SHRINKING)
def test_a_container_of_numbers_that_shrinks(name: str, captured: bool) -> None:
    change, make = SHRINKING[name]

    def fun(c: Any, y: mx.array) -> mx.array:
        change(c)
        return y * total(c) + len(c)

    if not captured:
        same_twice(fun, make)
        return
    ours, theirs = make(), make()
    x = mx.array([1.0, 2.0])
    compiled = mx.compile(lambda y: fun(ours, y))
    for _ in range(4):  # captured numbers are run-time scalars once they have changed
        assert outcome(compiled, x) == outcome(fun, theirs, x)
        assert repr(ours) == repr(theirs)
        assert x.tolist() == [1.0, 2.0]


LIST_STEPS: list[Change] = [
    lambda c: c.pop(),
    lambda c: c.pop(0),
    lambda c: c.insert(len(c) // 2, 5),
    lambda c: c.append(c[0] + c[-1]),
    lambda c: c.reverse(),
    lambda c: c.extend(c[:1]),
    lambda c: c.remove(c[-1]),
    lambda c: c.sort(),
    lambda c: c.__setitem__(0, [c[0]]),
    lambda c: c.__setitem__(slice(1, 3), (9,)),
    lambda c: c.clear(),
    lambda c: c.__delitem__(1),
]
DICT_STEPS: list[Change] = [
    lambda d: d.pop("a"),
    lambda d: d.popitem(),
    lambda d: d.update(c=d["a"] * 2),
    lambda d: d.setdefault("d", d["b"]),
    lambda d: d.__setitem__("b", [d["b"]]),
    lambda d: d.update(a=d.pop("a")),
    lambda d: d.clear(),
]
NUMBERS = st.one_of(st.integers(-5, 5), st.sampled_from([0.5, -0.0, 2.0]))


@given(
    st.lists(NUMBERS, max_size=4),
    st.dictionaries(st.sampled_from("abc"), NUMBERS, max_size=3),
    st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=5),
)
def test_any_changes_of_a_list_and_a_dict(numbers: list[Any], named: dict[str, Any], steps: list[Any]) -> None:
    def fun(c: Any, y: mx.array) -> mx.array:
        for of_list, step in steps:
            if of_list:
                LIST_STEPS[step](c[0])
            else:
                DICT_STEPS[step % len(DICT_STEPS)](c[1])
        return y * sum([item for item in c[0] if isinstance(item, (int, float))]) + len(c[1])

    compiled, x = mx.compile(fun), mx.array([1.0, 2.0])
    for _ in range(2):
        ours, theirs = copy.deepcopy([numbers, named] * 2), copy.deepcopy([numbers, named] * 2)
        found, expected = outcome(compiled, ours, x), outcome(fun, theirs, x)
        assert found == expected
        # An error leaves everything as it was: here the plain function leaves what it did until then.
        after = theirs if isinstance(expected[0], dtypes.Dtype) else [numbers, named] * 2
        assert repr(ours) == repr(after)
        assert x.tolist() == [1.0, 2.0]


def test_a_place_that_refuses_keeps_no_other_from_being_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, x = {"n": 1, "w": mx.array([2.0])}, {"n": 2}, mx.array([1.0, 2.0])
    write = state.write

    def refusing(place: Any, contents: Any) -> None:
        if place is first:
            raise RuntimeError("refused")
        write(place, contents)

    def fun(a: Any, b: Any, y: mx.array) -> mx.array:
        a["n"], b["n"] = 7, 8
        y += 1
        raise ZeroDivisionError

    monkeypatch.setattr(state, "write", refusing)
    with pytest.raises(RuntimeError, match="refused"):
        mx.compile(fun)(first, second, x)
    assert second == {"n": 2}
    assert x.tolist() == [1.0, 2.0]


# ---- numbers that do not fit ----


def written(key: Callable[[mx.array], Any]) -> Callable[[mx.array, Any], mx.array]:
    def fun(q: mx.array, s: Any) -> mx.array:
        q = mx.array(q)
        q[key(q)] = s
        return q

    return fun


TAKES: dict[str, Callable[[mx.array, Any], mx.array]] = {
    "an item": written(lambda q: 0),
    "a slice": written(lambda q: slice(1, None)),
    "a mask": written(lambda q: q > 1),
    "indices": written(lambda q: mx.array([0, 2])),
    "at add": lambda q, s: q.at[0].add(s),
    "at subtract": lambda q, s: q.at[mx.array([1])].subtract(s),
    "at multiply": lambda q, s: q.at[0].multiply(s),
    "at divide": lambda q, s: q.at[0].divide(s),
    "at maximum": lambda q, s: q.at[0].maximum(s),
    "at minimum": lambda q, s: q.at[1:].minimum(s),
    "put_along_axis": lambda q, s: mx.put_along_axis(q, mx.array([0]), s, axis=0),
    "slice_update": lambda q, s: mx.slice_update(q, s, mx.array([0]), (0,)),
    "pad": lambda q, s: mx.pad(q, 1, constant_values=s),
    "full": lambda q, s: mx.full((2,), s, q.dtype),
    "array": lambda q, s: mx.array(s, q.dtype),
    "array of its own": lambda q, s: mx.array(s),
    "an operand": lambda q, s: q + s,
    "an operand on the left": lambda q, s: s - q,
    "where": lambda q, s: mx.where(q > 1, q, s),
    "alone": lambda q, s: mx.abs(s),
}
INTEGERS = [d for d in dtypes.ALL if d.is_integer]
EDGES = sorted({sign * (1 << k) + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for sign in (1, -1) for d in (-1, 0, 1)})


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("shapeless", [False, True], ids=["", "shapeless"])
def test_a_number_that_fits_at_one_call_and_not_at_the_next(name: str, shapeless: bool) -> None:
    fun = TAKES[name]
    for dtype in INTEGERS:
        compiled, q = mx.compile(fun, shapeless=shapeless), mx.array([1, 2, 3], dtype)
        limits = [1 << dtype.bits - (dtype.kind == "i"), -(1 << dtype.bits - 1) if dtype.kind == "i" else 0]
        for s in (1, 100, limits[0] - 1, limits[0], limits[1], limits[1] - 1, 200, 1):
            assert outcome(compiled, q, s) == outcome(fun, q, s), (dtype, s)


def test_numbers_that_fit_cause_one_trace() -> None:
    compiled = mx.compile(TAKES["an item"])
    for s in range(-128, 128):
        assert compiled(mx.array([1, 2, 3], dtypes.int8), s).tolist() == [s, 2, 3]
    assert compiled.traces == 1  # type: ignore[attr-defined]


@given(
    st.sampled_from(sorted(TAKES)),
    st.sampled_from(dtypes.ALL),
    st.booleans(),
    st.lists(st.one_of(st.sampled_from(EDGES), st.integers(-300, 300), st.floats(width=64)), min_size=2, max_size=4),
)
def test_any_numbers_in_any_dtype(name: str, dtype: Any, shapeless: bool, numbers: list[Any]) -> None:
    """Floats too: they are rounded once, to the dtype of the array."""
    fun = TAKES[name]
    compiled, q = mx.compile(fun, shapeless=shapeless), mx.array([1, 2, 3]).astype(dtype)
    for s in numbers:
        if isinstance(s, float) and dtype.is_integer and not math.isfinite(s):
            continue  # which number that becomes is not specified
        assert outcome(compiled, q, s) == outcome(fun, q, s), s


WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "topk": mx.topk,
    "partition": mx.partition,
    "roll": mx.roll,
    "repeat": mx.repeat,
    "tile": mx.tile,
    "reshape": lambda q, n: q.reshape(n, -1),
    "zeros": lambda q, n: mx.zeros((n, 4)) + q,
    "axis": lambda q, n: mx.stack([q, q], axis=n),
    "index": lambda q, n: q[n],
    "slice": lambda q, n: q[n:],
    "size of a slice": lambda q, n: mx.slice(q, mx.array([0]), (0,), (n,)),
    "split": lambda q, n: mx.split(q, n)[0],
    "diagonal": mx.diag,
    "fft": mx.fft.fft,
    "steps": lambda q, n: mx.fori_loop(0, n, lambda i, c: c + 1, q),
    "order": lambda q, n: mx.polygamma(n, q),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("shapeless", [False, True], ids=["", "shapeless"])
def test_floats_and_truths_in_place_of_integers(name: str, shapeless: bool) -> None:
    """Numbers that change stand for themselves in a trace, and those that are floats stand for no integers."""
    fun, q = WHOLE[name], mx.array([4.0, 1.0, 2.0, 3.0])
    for numbers in (
        (1.0, 2.0, 3.0, 0.0, 1.0, 2.0),
        (1, 2, 3, 2.0, 1.0, True),
        (True, 2, 1.0, np.int64(2), np.float32(1)),
    ):
        compiled = mx.compile(fun, shapeless=shapeless)
        for n in numbers:
            assert outcome(compiled, q, n) == outcome(fun, q, n), n


SIZES: dict[str, Callable[[Any], Any]] = {
    "n": lambda n: n,
    "n * n": lambda n: n * n,
    "n ** 9": lambda n: n**9,
    "-n": lambda n: -n,
    "n - 10": lambda n: n - 10,
    "n // 2": lambda n: n // 2,
    "n * 2 ** 40": lambda n: n * 2**40,
}


@pytest.mark.parametrize("name", TAKES)
def test_a_size_that_fits_at_one_call_and_not_at_the_next(name: str) -> None:
    for dtype in (dtypes.int8, dtypes.int32, dtypes.uint64, dtypes.float16):
        for text, size in SIZES.items():

            def fun(q: mx.array, size: Any = size) -> mx.array:
                return TAKES[name](q, size(q.shape[0]))

            compiled = mx.compile(fun, shapeless=True)
            for n in (5, 300, 7):
                q = mx.arange(n).astype(dtype)
                assert outcome(compiled, q) == outcome(fun, q), (dtype, text, n)
