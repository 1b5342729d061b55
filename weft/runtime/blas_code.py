"""The machine code that tells the BLAS library to use one thread while kernels call it; see `weft.runtime.blas`."""

from __future__ import annotations

from weft.dtypes import int64
from weft.llvm.builder import Value
from weft.llvm.functions import Address, Field, Function, Int, Long, Module, Place, Record, Void, native
from weft.runtime import blas


class State(Record):
    """What all users of the library share."""

    words = blas.TURN_STATE
    lock = Place()
    users = Field(Long)
    before = Field(Long)
    """How many threads it used."""
    get, set = Field(Address), Field(Address)
    """The library's own functions; null if it does not say, or cannot be told."""


@native(Void, state=State, by=Long)
def weft_blas_turn(c: Function, state: State, by: Value) -> None:
    """The first user (1 more) tells the library to use one thread, the last one (-1) to use as many as before."""
    lock = state.lock
    with c.repeat() as locked:
        locked.stop_when(lock.replace(c.i64(0), c.i64(1)))
    users = state.users
    state.users = users + by
    with c.when((users + by).eq(1) & (by > 0)):
        tell_one(c, state)
    with c.when((users + by).eq(0)):
        tell_as_before(c, state)
    lock.write(0, "release")


@native(Void, state=State)
def tell_one(c: Function, state: State) -> None:
    tell = state.set
    with c.when(tell.is_null()):
        c.ret()
    many = c.invoke(state.get.text, Int, (), ())
    state.before = c.cast(many, int64)
    with c.when(many.ne(1)):
        c.invoke(tell.text, Void, (Int,), (1,))


@native(Void, state=State)
def tell_as_before(c: Function, state: State) -> None:
    tell, before = state.set, state.before
    with c.when(tell.exists() & before.ne(1)):
        c.invoke(tell.text, Void, (Int,), (c.cast(before, Int.held_as),))


def native_code() -> str:
    """The LLVM IR of the function."""
    return Module(Function).export(weft_blas_turn)
