"""Indices that must be in range (`BoundsCheck`): errors, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from weft import program
from weft.primitives.indexing import BoundsCheck
from weft.program import Input


def checked(index: mx.array, size: int, count_back: bool = False) -> mx.array:
    return program.apply(BoundsCheck(size, count_back, "rows"), index)


@given(
    st.sampled_from([mx.int8, mx.int16, mx.int32, mx.int64, mx.uint8, mx.uint32, mx.uint64]),
    st.integers(0, 70),
    st.integers(0, 127),
    st.booleans(),
    st.data(),
)
def test_the_first_wrong_index_is_reported(dtype: mx.Dtype, n: int, size: int, back: bool, data: st.DataObject) -> None:
    info = mx.iinfo(dtype)
    lowest = max(-size, info.min) if back else 0
    values = data.draw(st.lists(st.integers(lowest, size - 1), min_size=n, max_size=n)) if size else []
    wrong = st.integers(info.min, info.max).filter(lambda k: not lowest <= k < size)
    for place in data.draw(st.lists(st.integers(0, max(len(values) - 1, 0)), max_size=2)) if values else []:
        values[place] = data.draw(wrong)
    found = checked(mx.array(np.array(values, dtype.np)), size, back)
    first = next((k for k in values if not lowest <= k < size), None)
    if first is None:
        assert found.tolist() == values
    else:
        with pytest.raises(IndexError, match=rf"\[rows\] index {first} is out of range for an axis of {size} "):
            mx.eval(found)


def test_what_is_updated_keeps_its_value() -> None:
    def put(cache: mx.array, at: mx.array) -> list[mx.array]:
        return [cache.at[checked(at, cache.shape[0])].add(1)]

    step = program.trace(
        put, [Input("cache", ("n", 512), mx.float32), Input("at", (2,), mx.int32)], updates={"cache": 0}
    )
    for n in (300, 400):
        cache = mx.zeros((n, 512))
        mx.eval(cache)
        with pytest.raises(IndexError, match=f"an axis of {n} elements"):
            step.run([cache, mx.array([1, n])])
        assert not cache.any().item()
        step.run([cache, mx.array([1, n - 1])])
        assert cache.sum().item() == 1024
    assert any("overwritten" in line for line in step.memory_report(cache, mx.array([1, 2])).inputs)


def test_a_branch_that_is_not_taken_does_not_fail() -> None:
    @mx.compile
    def fun(p: mx.array, x: mx.array, i: mx.array) -> mx.array:
        return mx.cond(p, lambda: mx.take(x, checked(i, 3), axis=0), lambda: x[0])

    x, i = mx.array([1.0, 2.0, 3.0]), mx.array(7)
    assert fun(mx.array(False), x, i).item() == 1
    with pytest.raises(IndexError):
        mx.eval(fun(mx.array(True), x, i))


def test_derivatives_pass_through_what_is_indexed() -> None:
    i = mx.array([2, 0, 2])
    found = mx.grad(lambda x: mx.sum(mx.take(x, checked(i, 3), axis=0) * 2))(mx.ones((3,)))
    assert found.tolist() == [2, 0, 4]
    rows = mx.vmap(lambda k: checked(k, 3))(mx.array([[0, 1], [2, 2]]))
    assert rows.tolist() == [[0, 1], [2, 2]]
