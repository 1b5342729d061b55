"""Functions of the builder's that call each other: control flow, addresses with types, and what is refused."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.llvm import engine
from weft.llvm.builder import Value
from weft.llvm.functions import (
    Address,
    Addresses,
    Double,
    Field,
    Function,
    Int,
    Integers,
    Long,
    Module,
    Native,
    Record,
    Truth,
    Void,
    native,
)


def loaded(function: Native[Any], *kinds: Any, result: Any = ctypes.c_int64) -> Callable[..., Any]:
    text = Module(Function).export(function)
    address = engine.load_for_good(engine.Source(f"test:{text}", function.name, lambda: text))
    return ctypes.CFUNCTYPE(result, *kinds)(address)


@native(Long, a=Long, b=Long)
def divisor(c: Function, a: Value, b: Value) -> None:
    """The greatest common divisor, by calling itself."""
    with c.when(b.eq(0)):
        c.ret(a)
    c.ret(divisor(c, b, c.int_divide(a, b, remainder=True)))


@native(Long, items=Integers, count=Long, wanted=Long)
def found_at(c: Function, items: Integers, count: Value, wanted: Value) -> None:
    """The first place of a number, or how many there are."""
    with c.repeat(c.i64(0)) as loop:
        (i,) = loop.carried
        loop.stop_when(i >= count)
        loop.stop_when(items[i].eq(wanted))
        loop.carry(i + 1)
    c.ret(i)


@native(Long, items=Integers, count=Long)
def alternating(c: Function, items: Integers, count: Value) -> None:
    """Numbers added and subtracted in turns, by a loop in a loop and a condition that ends a block or does not."""
    with c.repeat(c.i64(0), c.i64(0)) as loop:
        i, total = loop.carried
        loop.stop_when(i >= count)
        with c.when(items[i].eq(99)):
            c.ret(c.i64(-99))
        with c.loop(0, i & 1, 1, total) as inner:
            inner.carry(inner.carried[0] - (items[i] << 1))
        loop.carry(i + 1, inner.carried[0] + items[i])
    c.ret(total)


@native(Void, target=Integers, source=Integers, count=Long)
def reversed_into(c: Function, target: Integers, source: Integers, count: Value) -> None:
    """Through room of the function's own."""
    own = c.room(Integers, count)
    c.copy(own, source, count)
    with c.loop(0, count, 1) as loop:
        c.store(own[count - 1 - loop.index], target.past(loop.index))


@native(Double, x=Double, times=Int)
def powered(c: Function, x: Value, times: Value) -> None:
    with c.loop(0, c.cast(times, dt.int64), 1, c.const(dt.float64, 1.0)) as loop:
        loop.carry(loop.carried[0] * x)
    c.ret(loop.carried[0])


class Machine(Record):
    """A machine of one accumulator."""

    words = {"code": 1, "accumulator": 0}
    code = Field(Integers)
    accumulator = Field(Long)


@native(Truth, machine=Machine, count=Long)
def followed(c: Function, machine: Machine, count: Value) -> None:
    """Follow pairs (what, number): whether the end was reached. One loop with several ways back to its head."""
    code = machine.code
    with c.repeat(c.i64(0)) as loop:
        (at,) = loop.carried
        loop.stop_when(at >= count)
        what, number = code[at], code[at + 1]
        with c.switch(what) as kinds:
            with kinds.case(0):
                machine.accumulator = machine.accumulator + number
            with kinds.case(1):
                loop.again(number)
            with kinds.case(-2):
                with c.when(machine.accumulator < 0):
                    loop.again(number)
                machine.accumulator = 7
            with kinds.otherwise():
                c.ret(c.const(Truth.held_as, False))
        loop.again(at + 2)
    c.ret(c.const(Truth.held_as, True))


@native(Long, number=Long)
def chosen(c: Function, number: Value) -> None:
    """What has no case goes on behind all of them."""
    with c.switch(number) as cases, cases.case(3):
        c.ret(c.i64(33))
    c.ret(number)


NUMBERS = st.integers(-(2**40), 2**40)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_function_may_call_itself(a: int, b: int) -> None:
    assert loaded(divisor, ctypes.c_int64, ctypes.c_int64)(a, b) == math.gcd(a, b)


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 5))
def test_a_loop_ends_where_it_is_told_to(items: list[int], wanted: int) -> None:
    function = loaded(found_at, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    memory = (ctypes.c_int64 * len(items))(*items)
    assert function(ctypes.addressof(memory), len(items), wanted) == (
        items.index(wanted) if wanted in items else len(items)
    )


@given(st.lists(st.one_of(NUMBERS, st.just(99)), max_size=12))
def test_blocks_may_return(items: list[int]) -> None:
    function = loaded(alternating, ctypes.c_void_p, ctypes.c_int64)
    memory = (ctypes.c_int64 * len(items))(*items)
    expected = -99 if 99 in items else sum(items[::2]) - sum(items[1::2])
    assert function(ctypes.addressof(memory), len(items)) == expected


@given(st.lists(NUMBERS, max_size=12))
def test_room_of_its_own(items: list[int]) -> None:
    source, target = (ctypes.c_int64 * len(items))(*items), (ctypes.c_int64 * len(items))()
    function = loaded(reversed_into, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, result=None)
    function(ctypes.addressof(target), ctypes.addressof(source), len(items))
    assert list(target) == items[::-1]


def test_other_numbers() -> None:
    assert loaded(powered, ctypes.c_double, ctypes.c_int, result=ctypes.c_double)(1.5, 4) == 1.5**4


def test_addresses_have_items() -> None:
    class Rows(Addresses[Integers]):
        __slots__ = ()
        items = Integers

    @native(Void, rows=Rows)
    def swapped(c: Function, rows: Rows) -> None:
        first, second = rows[0], rows[1]
        c.store(first[0] + second[0], first)
        rows[0], rows[1] = second, first

    numbers = (ctypes.c_int64 * 2)(3, 4)
    places = [ctypes.addressof(numbers), ctypes.addressof(numbers) + 8]
    memory = (ctypes.c_void_p * 2)(*places)
    loaded(swapped, ctypes.c_void_p, result=None)(ctypes.addressof(memory))
    assert list(memory) == places[::-1]
    assert list(numbers) == [7, 4]


def test_a_function_is_written_once() -> None:
    @native(Long, a=Long)
    def twice(c: Function, a: Value) -> None:
        c.ret(divisor(c, divisor(c, a, 12), 8))

    text = Module(Function).export(twice)
    assert text.count("define internal i64 @divisor(") == 1
    assert text.count("define i64 @twice(") == 1
    assert loaded(twice, ctypes.c_int64)(36) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, x: divisor(c, x), "takes 2 arguments, not 1"),
        (lambda c, x: divisor(c, x, c.null), "takes a Long, not ptr null"),
        (lambda c, x: Address.of(x), "Address is no i64"),
    ],
)
def test_types_are_checked(call: Callable[[Function, Value], Any], message: str) -> None:
    @native(Long, x=Long)
    def wrong(c: Function, x: Value) -> None:
        call(c, x)

    with pytest.raises(AssertionError, match=message):
        Module(Function).export(wrong)


def test_a_name_stands_for_one_function() -> None:
    def two() -> Native[Long]:
        @native(Long, x=Long)
        def same(c: Function, x: Value) -> None:
            c.ret(x)

        return same

    one, other = two(), two()

    @native(Long, x=Long)
    def both(c: Function, x: Value) -> None:
        c.ret(one(c, other(c, x)))

    with pytest.raises(AssertionError, match="two functions same"):
        Module(Function).export(both)


def test_ways_to_go_on() -> None:
    follow = loaded(followed, ctypes.c_void_p, ctypes.c_int64, result=ctypes.c_bool)

    def run(*code: int, start: int = 0) -> tuple[bool, int]:
        words = (ctypes.c_int64 * len(code))(*code)
        machine = (ctypes.c_int64 * 2)(start, ctypes.addressof(words))
        return follow(ctypes.addressof(machine), len(code)), machine[0]

    assert run() == (True, 0)
    assert run(0, 5, 0, 6) == (True, 11)
    assert run(0, 5, 1, 6, 0, 100, 0, 1) == (True, 6)
    assert run(0, 2, -2, 0, start=-5) == (True, 7)  # back to the beginning twice
    assert run(0, 2, 17, 0, 0, 1) == (False, 2)
    other = loaded(chosen, ctypes.c_int64)
    assert [other(number) for number in (2, 3, 4)] == [2, 33, 4]
