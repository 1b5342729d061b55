"""LAPACK on the CPU: matrices are copied to where the library wants them, a kernel calls it for each matrix of a batch,
and a call ends the program if it found one that has no answer.

The copies are aligned alike for every matrix, and the library uses one thread (weft/runtime/blas.py): what a matrix
gives depends on its elements only, not on where it lies, on its neighbours in the batch, or on the number of threads.
SciPy is loaded when the first of these operations is planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.dtypes import Dtype
from weft.graph.dims import ceil_div, dim_max
from weft.llvm.builder import PTR, Builder, Value, literal, llvm_type
from weft.llvm.engine import Source
from weft.passes.lower import to_int
from weft.records import dataclass, field
from weft.runtime import blas
from weft.targets.cpu import kernel as cpu
from weft.targets.cpu import moves
from weft.targets.cpu.features import features

ALIGNMENT: Final = 64
WORK: Final = 1 << 17
"""Floating-point operations that are worth a thread."""
LETTERS: Final = {dt.float32: "s", dt.float64: "d", dt.complex64: "c", dt.complex128: "z"}

Word = int | Pointer


# ---- kernels ----


class CallFrame(cpu.Frame):
    """A kernel under construction, which calls routines of the library for the matrices [begin, end) of a batch."""

    def __init__(self, name: str, kernel: CallKernel) -> None:
        super().__init__(name, kernel.fields())
        b = self.b
        self._integers = {size: self._stored(self._words[size]) for size in kernel.sizes}
        self.ignored = b.op("alloca i32", PTR, 1)
        """Where a routine may report what cannot happen."""
        self.index = self.begin
        self.dtype, self._pieces = kernel.dtype, kernel.scratch

    def _stored(self, x: Value) -> Value:
        """The address of a number as Fortran takes it."""
        at = self.b.op("alloca i32", PTR, 1)
        self.b.store(self.b.cast(x, dt.int32), at)
        return at

    def place(self, name: str) -> Value:
        """The address of an operand's matrix, or of a piece of scratch memory."""
        if name in self._pieces:
            return self.b.gep(self.scratch, self[name])
        return self.b.gep(self[name], self.index * self[f"{name}.next"])

    def call(self, routine: str, *arguments: Value | str) -> None:
        """Call a routine with addresses: of an operand, a piece of scratch memory or a size by its name, of a letter in
        quotes, or any."""
        given = ", ".join(f"ptr {self._address(argument)}" for argument in arguments)
        self.b.raw(f"call void {self[routine].text}({given})")

    def _address(self, argument: Value | str) -> str:
        if isinstance(argument, Value):
            return argument.text
        if argument in self._integers:
            return self._integers[argument].text
        if argument in self._words:
            return self.place(argument).text
        letter = argument.strip("'")
        self.b.declarations[argument] = f'@letter.{letter} = private constant [1 x i8] c"{letter}"'
        return f"@letter.{letter}"

    def constant(self, number: float) -> Value:
        """The address of a number of the dtype of the matrices."""
        real = dt.real_of(self.dtype)
        kind, name = llvm_type(real), f"@number.{number:g}"
        self.b.declarations[name] = (
            f"{name} = private constant [2 x {kind}] [{kind} {literal(real, number)}, {kind} {literal(real, 0)}]"
        )
        return Value(self.b, name, PTR, 1)

    def write(self, each: Callable[[CallFrame], None]) -> str:
        """The whole kernel: `each` writes what is done for one matrix."""
        b = self.b
        b.raw(f"call void {self['turn'].text}(ptr {self['state'].text}, i64 1)")
        with b.loop(self.begin, self.end, 1) as loop:
            self.index = loop.index
            each(self)
        b.raw(f"call void {self['turn'].text}(ptr {self['state'].text}, i64 -1)")
        return self.module()


@dataclass(frozen=True, slots=True)
class CallKernel(cpu.NativeKernel):
    """What a kernel for matrices of `dtype` calls, and the names of its words: addresses of `operands`, `sizes`, which
    LAPACK is told as 32-bit integers, places in `scratch` memory, further `numbers`, addresses of `routines`. `each`
    writes what is done for one matrix."""

    title = "lapack"
    outer = 0
    name: str
    dtype: Dtype
    operands: tuple[str, ...]
    sizes: tuple[str, ...]
    scratch: tuple[str, ...]
    numbers: tuple[str, ...]
    routines: tuple[str, ...]
    each: Callable[[CallFrame], None] = field(compare=False)

    def __str__(self) -> str:
        return f"lapack {self.name} {self.dtype.name}"

    def fields(self) -> list[str]:
        """Each operand has an address, and the bytes from one matrix to the next."""
        pairs = [w for x in self.operands for w in (f"*{x}", f"{x}.next")]
        routines = [f"*{x}" for x in (*self.routines, "turn", "state")]
        return ["units", *pairs, *self.sizes, *self.scratch, *self.numbers, *routines]

    def emit(self, frame: cpu.Frame) -> None:
        raise NotImplementedError  # `text` writes it all

    def text(self, name: str) -> str:
        return CallFrame(name, self).write(self.each)


_CHECK_FIELDS: Final = ("count", "info", "element", "code")


def _check_code(name: str) -> str:
    """A call that fails where the library reported something: it leaves the first such matrix, and what it was."""
    b = Builder(name, [("block", PTR), ("args", PTR), ("scratch", PTR)], features(), lanes=1, result=dt.int64)
    _, args, _ = b.params
    count, info = b.word(args, 0), b.word(args, 1, PTR)
    with b.loop(0, count, 1, b.i64(-1)) as loop:
        (found,) = loop.carried
        first = number(b, b.gep(info, loop.index * 4), dt.int32).ne(0) & (found < 0)
        loop.carry(b.choose(first, loop.index, found))
    (found,) = loop.carried
    failed = found >= 0
    with b.when(failed):
        b.store(found, b.gep(args, 8 * _CHECK_FIELDS.index("element")))
        code = number(b, b.gep(info, found * 4), dt.int32)
        b.store(b.cast(code, dt.int64), b.gep(args, 8 * _CHECK_FIELDS.index("code")))
    b.ret(b.cast(failed, dt.int64))
    return b.module()


def check_of(batch: int, info: Pointer) -> Launch:
    """A call that ends the program if some number that was reported of the matrices of a batch is not 0."""
    name = "weft_lapack_check"
    source = Source("lapack check", name, lambda: _check_code(name))
    return Launch(source, (batch, info, 0, 0), call=True)


# ---- code ----


def number(b: Builder, at: Value, dtype: Dtype) -> Value:
    """A real number in memory."""
    x = b.load(at, dtype, 1)
    assert isinstance(x, Value)
    return x


def copy(b: Builder, to: Value, at: Value, nbytes: Value) -> None:
    """Bytes from one place to another one."""
    b.call_void("llvm.memcpy.p0.p0.i64", to, at, nbytes, "i1 false")


def clear(b: Builder, at: Value, nbytes: Value) -> None:
    """Zeros in memory."""
    b.call_void("llvm.memset.p0.i64", at, "i8 0", nbytes, "i1 false")


# ---- launches ----


@dataclass(frozen=True, slots=True)
class Stack:
    """A batch of equal arrays in a temporary: strides in elements within one, `stride` bytes from one to the next."""

    pointer: Pointer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stride: int
    dtype: Dtype

    def layout(self, lead: Sequence[int]) -> Layout:
        """As an operand of the shape of the batch, and then of one of them."""
        step, outer = self.stride // self.dtype.size, []
        for n in reversed(lead):
            outer.append(step)
            step = step * n
        return Layout((*lead, *self.shape), (*reversed(outer), *self.strides), self.dtype)


class Calls:
    """The launches of an operation on the matrices of a batch: copies to and fro, and calls in between."""

    def __init__(self, operands: Sequence[Layout], results: Sequence[Layout]) -> None:
        self.operands, self.results = operands, results
        self.lead = operands[0].shape[:-2]
        self.batch = math.prod(self.lead)
        self._launches: list[Launch] = []
        self._temporaries: list[int] = []

    def room(self, shape: tuple[int, ...], dtype: Dtype, columns: bool = False) -> Stack:
        """Room for an array of each matrix of the batch, row by row, or column by column."""
        strides = (1, shape[0]) if columns else (*(math.prod(shape[i + 1 :]) for i in range(len(shape))),)
        unit = ALIGNMENT // dtype.size
        stride = to_int(ceil_div(math.prod(shape), unit) * ALIGNMENT)
        return Stack(self._temporary(self.batch * stride), shape, strides, stride, dtype)

    def _temporary(self, nbytes: int) -> Pointer:
        self._temporaries.append(to_int(nbytes))
        return Pointer(len(self.operands) + len(self.results) + len(self._temporaries) - 1)

    def given(self, k: int, columns: bool = False) -> Stack:
        """A copy of operand k."""
        x = self.operands[k]
        stack = self.room(x.shape[-2:], x.dtype, columns)
        self._launches += moves.copy(x, stack.layout(self.lead), Pointer(k), stack.pointer)
        return stack

    def give(self, stack: Stack, k: int = 0) -> None:
        """Copy a result out."""
        at = Pointer(len(self.operands) + k)
        self._launches += moves.copy(stack.layout(self.lead), self.results[k], stack.pointer, at)

    def run(
        self,
        name: str,
        each: Callable[[CallFrame], None],
        operands: Mapping[str, Stack],
        sizes: Mapping[str, int],
        flops: int,
        routines: Sequence[str] = (),
        scratch: Mapping[str, int] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        """Launch a kernel, for one matrix of which it takes about so many floating-point operations. `scratch` gives
        the bytes of its work spaces, of which every thread has its own."""
        dtype, needs, others = self.operands[0].dtype, scratch or {}, numbers or {}
        names = (tuple(operands), tuple(sizes), tuple(needs), tuple(others), tuple(routines))
        kernel = CallKernel(name, dtype, *names, each)
        words: dict[str, Word] = {"units": self.batch, **others, **{size: _fits(n) for size, n in sizes.items()}}
        for operand, stack in operands.items():
            words[operand], words[f"{operand}.next"] = stack.pointer, stack.stride
        end = 0
        for piece, nbytes in needs.items():
            words[piece], end = end, end + to_int(ceil_div(nbytes, ALIGNMENT) * ALIGNMENT)
        words |= {routine: blas.routine(LETTERS[dtype] + routine) for routine in routines}
        words["turn"], words["state"] = blas.turn()
        grain = to_int(dim_max(1, ceil_div(WORK, dim_max(1, flops))))
        if type(self.batch) is int and self.batch == 1:
            grain = 0  # one thread, one work space
        self._launches.append(
            Launch(kernel.source(), tuple(words[name.lstrip("*")] for name in kernel.fields()), grain, end)
        )

    def info(self) -> Stack:
        """Room for what the library reports of each matrix."""
        return Stack(self._temporary(4 * self.batch), (), (), 4, dt.int32)

    def check(self, info: Stack) -> None:
        """End the program if the library reported anything."""
        self._launches.append(check_of(self.batch, info.pointer))

    def lowering(self) -> Lowering:
        return Lowering(tuple(self._launches), tuple(self._temporaries))


def _fits(n: int) -> int:
    if n >= 1 << 31:
        raise ValueError(f"[linalg] matrices have fewer than 2**31 rows and columns; got {n}.")
    return n
