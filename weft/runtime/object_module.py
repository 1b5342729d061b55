"""The module of LLVM IR with all functions of `weft.runtime.object_code`, `weft.runtime.tracing_code`,
`weft.runtime.evaluating_code`, `weft.runtime.guard_code` and `weft.runtime.running_code`."""

from __future__ import annotations

from typing import Any, Final

from weft.llvm.functions import Address, Module, Native, Void, native
from weft.runtime.evaluating_code import describe, divide, resembles, sweep
from weft.runtime.guard_code import take_steps
from weft.runtime.object_code import OPERATORS_OF_ARRAYS, binary, reflected, unary, wrap
from weft.runtime.object_table import ENTRIES, TABLE
from weft.runtime.object_values import GLOBALS, Code
from weft.runtime.recycling_code import ENDS, unshelve
from weft.runtime.running_code import call_compiled_quickly, call_compiled_with, evaluate_one, run_buffers
from weft.runtime.tracing_code import backward, by_age, follow, forward, pull, recall, spread

_ENTRIES: Final[tuple[Native[Any], ...]] = (
    wrap, unary, binary, reflected, forward, backward, spread, follow, by_age, pull, recall, sweep, describe,
    resembles, divide, take_steps, run_buffers, evaluate_one, call_compiled_quickly, call_compiled_with,
    unshelve, *ENDS, *OPERATORS_OF_ARRAYS,
)  # fmt: skip


@native(Void, table=Address)
def weft_objects(c: Code, table: Address) -> None:
    """Remember the table, and write the addresses of the functions into it."""
    c.raw(f"store ptr {table.text}, ptr @table, align 8")
    functions = {function.name: function for function in _ENTRIES}
    for name in ENTRIES:
        c.store(c.address_of(functions[name]), c.gep(table, 8 * TABLE[name]))


def native_code() -> str:
    """The module as text."""
    return Module(Code, GLOBALS).export(weft_objects)
