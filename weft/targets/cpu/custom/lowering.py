"""Launches of a custom kernel: what it is given is arranged, it runs, and a call ends the program if it failed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import FAILURE_WORD, Launch, Layout, Lowering, Pointer
from weft.graph.dims import ceil_div, dim_max, dim_min
from weft.kernels import tree
from weft.llvm.builder import PTR, Builder, Value
from weft.llvm.engine import Source
from weft.passes.lower import to_int
from weft.primitives.base import words_of as constant_words
from weft.primitives.custom_kernel import CustomKernel
from weft.records import dataclass
from weft.targets.axes import grain
from weft.targets.cpu import moves
from weft.targets.cpu.custom.emit import weight
from weft.targets.cpu.custom.kernel import Threadgroups, gathering, is_even, is_written_once, lanes_of, padded
from weft.targets.cpu.features import features
from weft.targets.cpu.kernel import Frame, NativeKernel

WORK: Final = 1 << 16
"""Instructions that are worth a thread."""
WIDE: Final = 32
"""Lanes of vectors for short rows whose threads go one way."""
CHUNK: Final = 4096
"""Threads of a threadgroup where the kernel does not say."""
GATHERED: Final = 1 << 12
"""Elements of a result of which each thread may have a copy."""
MOST_SCRATCH: Final = 1 << 28
"""Bytes of memory of one threadgroup."""
STATUS: Final = 64
"""Bytes of the record of a failure."""


@dataclass(frozen=True, slots=True)
class Begin(NativeKernel):
    """Clears the record of failures."""

    title = "custom_begin"
    outer = 0

    def __str__(self) -> str:
        return "custom begin"

    def fields(self) -> list[str]:
        return ["units", "*status"]

    def emit(self, frame: Frame) -> None:
        b = frame.b
        b.call_void("llvm.memset.p0.i64", frame["status"], "i8 0", b.i64(STATUS), "i1 false")


@dataclass(frozen=True, slots=True)
class Fill(NativeKernel):
    """Writes a number to all of a result: units of `width` elements."""

    title = "custom_fill"
    outer = 0
    size: int

    def __str__(self) -> str:
        return f"custom fill {self.size}"

    def fields(self) -> list[str]:
        return ["units", "*out", "value"]

    def emit(self, frame: Frame) -> None:
        b = frame.b
        dtype = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}[self.size]
        value = b.splat(b.cast(frame["value"], dtype), b.lanes)
        whole = frame.begin + (((frame.end - frame.begin) >> 4) << 4)
        with b.loop(frame.begin, whole, b.lanes) as loop:
            b.store(value, b.gep(frame["out"], loop.index * self.size))
        with b.loop(whole, frame.end, 1) as loop:
            b.store(b.cast(frame["value"], dtype), b.gep(frame["out"], loop.index * self.size))


def _check_code(name: str) -> str:
    """A call that fails where a kernel noted a failure: it leaves unit, site, index and size."""
    b = Builder(name, [("block", PTR), ("args", PTR), ("scratch", PTR)], features(), lanes=1, result=dt.int64)
    args = b.params[1]
    status = b.word(args, 1, PTR)
    noted = b.load(status, dt.int64, 1)
    assert isinstance(noted, Value)
    with b.when(noted.ne(0)):
        for k in range(4):
            word = b.load(b.gep(status, 8 * (1 + k)), dt.int64, 1)
            b.store(word, b.gep(args, 8 * (FAILURE_WORD + k)))
    b.ret(b.cast(noted.ne(0), dt.int64))
    return b.module()


CHECK: Final = Source("custom check", "weft_custom_check", lambda: _check_code("weft_custom_check"))


def is_ordered(program: tree.Program) -> bool:
    """Whether the order of threads decides about the bits of results: floats are added to one place, or threads use
    what an atomic operation found. Such kernels run on one thread."""
    return any(
        isinstance(x, tree.Atomic) and x.storage.space == "output"
        and (x.storage.dtype.is_float or x.result is not None or x.op in ("set", "exchange"))
        for x in tree.walk(*program.body)
    )  # fmt: skip


class _Launches:
    def __init__(self, op: CustomKernel, operands: Sequence[Layout], results: Sequence[Layout]) -> None:
        self.op, self.operands, self.results = op, operands, results
        self.program = op.kernel.tree
        self.launches: list[Launch] = []
        self.temporaries: list[int] = []

    def temporary(self, nbytes: int) -> Pointer:
        self.temporaries.append(to_int(nbytes))
        return Pointer(len(self.operands) + len(self.results) + len(self.temporaries) - 1)

    def given(self, k: int) -> tuple[Layout, Pointer]:
        """Operand k as the kernel takes it: each element of the batch in row-major order, unless it may be strided."""
        x, lead = self.operands[k], len(self.op.lead)
        if self.op.kernel.strided or _is_row_major(x.shape[lead:], x.strides[lead:]):
            return x, Pointer(k)
        kept = [n if s != 0 else 1 for n, s in zip(x.shape[:lead], x.strides[:lead], strict=True)]
        strides = _row_major((*kept, *x.shape[lead:]))
        packed = Layout(
            x.shape, tuple(0 if a < lead and x.strides[a] == 0 else s for a, s in enumerate(strides)), x.dtype
        )
        at = self.temporary(math.prod((*kept, *x.shape[lead:])) * x.dtype.size)
        source = Layout((*kept, *x.shape[lead:]), x.strides, x.dtype)
        target = Layout((*kept, *x.shape[lead:]), strides, x.dtype)
        self.launches += moves.copy(source, target, Pointer(k), at)
        return packed, at

    def lower(self) -> Lowering:
        op = self.op
        if 0 in (*op.lead, *op.grid):
            self.fill()
            return Lowering(tuple(self.launches), tuple(self.temporaries))
        inputs = [self.given(k) for k in range(len(self.operands))]
        self.fill()
        status = self.temporary(STATUS)
        self.launches.append(Launch(Begin().source(), (1, status)))
        self.run(inputs, status)
        if op.kernel.checked:
            self.launches.append(Launch(CHECK, (1, status, 0, 0, 0, 0), call=True))
        return Lowering(tuple(self.launches), tuple(self.temporaries))

    def fill(self) -> None:
        """Results that begin as a number."""
        value = self.op.initial
        if value is None:
            return
        for k, x in enumerate(self.results):
            (word,) = constant_words(value, x.dtype)
            count = math.prod(x.shape)
            if 0 in x.shape:
                continue
            pointer = Pointer(len(self.operands) + k)
            self.launches.append(
                Launch(Fill(x.dtype.size).source(), (count, pointer, word), grain(x.dtype.size, 1 << 14, count))
            )

    def run(self, inputs: Sequence[tuple[Layout, Pointer]], status: Pointer) -> None:
        op, program = self.op, self.program
        gx, gy, gz = op.grid
        tx, ty, tz = op.threadgroup
        lanes = lanes_of(program)
        if op.kernel.knows_groups:
            flat = _is(ty, 1) and _is(tz, 1)
            rows = flat or (type(tx) is int and tx % lanes == 0 and (type(gx) is int and gx % tx == 0))
            whole = type(tx) is int and tx % lanes == 0 and type(gx) is int and gx % tx == 0
            if not flat and not rows:
                whole = False
        elif type(gx) is int and gx < lanes and not (_is(gy, 1) and _is(gz, 1)):
            # Rows are short: lanes go over the end of one to the next.
            flat, rows, whole = False, False, False
            tx, ty, tz = gx, to_int(dim_min(gy, dim_max(1, CHUNK // gx))), 1
        elif type(gx) is int and gx < CHUNK and not _is(gy, 1):
            if gx % WIDE == 0 and gx <= 2 * WIDE and is_even(program):
                lanes = WIDE  # what the threads of a row share is computed once for more of them
            flat, rows, whole = False, True, gx % lanes == 0
            tx, ty, tz = gx, to_int(dim_min(gy, CHUNK // gx)), 1
        else:
            flat, rows, whole = True, True, False
            tx, ty, tz = to_int(dim_min(gx, CHUNK)), 1, 1
        kernel = Threadgroups(
            program.text, lanes, rows, flat, whole, op.kernel.checked, len(op.lead),
            tuple(op.kernel.strided for _ in inputs), is_ordered(program), self.gathered(), self.streamed(), program,
        )  # fmt: skip
        groups = [to_int(ceil_div(n, t)) for n, t in ((gx, tx), (gy, ty), (gz, tz))]
        units = to_int(math.prod((*groups, *op.lead)))
        threads = to_int(math.prod((tx, ty, tz)))
        vectors = to_int(ceil_div(tx, lanes) * ty * tz) if rows else to_int(ceil_div(threads, lanes))
        words: dict[str, object] = {"units": units, "status": status, "vectors": vectors}
        for letter, sizes in (("g", (gx, gy, gz)), ("t", (tx, ty, tz)), ("m", groups)):
            words |= {letter + axis: size for axis, size in zip("xyz", sizes, strict=True)}
        words |= {f"b{a}": n for a, n in enumerate(op.lead)}
        for k, (layout, pointer) in enumerate((*inputs, *self.outputs())):
            self._describe(words, k, layout, pointer)
        fixed, each = kernel.bytes_of()
        end = to_int(fixed + each * vectors)
        for k in kernel.gathered:
            words[f"copy{k}"] = end
            x = self.results[k - len(self.operands)]
            end = end + padded(math.prod(x.shape) * x.dtype.size)
        if type(end) is int and end > MOST_SCRATCH:
            raise ValueError(
                f"[{program.name}] a threadgroup of {threads} threads needs {end} bytes for its arrays and what lives "
                f"across barriers; there are {MOST_SCRATCH} at most. Use smaller arrays or threadgroups."
            )
        cost = weight(program) * threads // 4
        work = 0 if is_ordered(program) else grain(cost, WORK, units)
        values = tuple(words[name.lstrip("*")] for name in kernel.fields())
        self.launches.append(Launch(kernel.source(), values, work, end))  # type: ignore[arg-type]

    def gathered(self) -> tuple[int, ...]:
        """Results that threads add up for themselves: small ones of integers."""
        if self.op.lead or is_ordered(self.program):
            return ()
        found = []
        for k, x in enumerate(self.results, len(self.operands)):
            sized = all(type(n) is int for n in x.shape) and 0 < math.prod(x.shape) <= GATHERED
            if sized and gathering(self.program, self.program.storages[k]):
                found.append(k)
        return tuple(found)

    def streamed(self) -> tuple[int, ...]:
        """Large results that are written once."""
        return tuple(
            k
            for k, x in enumerate(self.results, len(self.operands))
            if all(type(n) is int for n in x.shape)
            and math.prod(x.shape) * x.dtype.size >= moves.STREAM
            and is_written_once(self.program, self.program.storages[k])
        )

    def outputs(self) -> list[tuple[Layout, Pointer]]:
        return [(x, Pointer(len(self.operands) + k)) for k, x in enumerate(self.results)]

    def _describe(self, words: dict[str, object], k: int, x: Layout, pointer: Pointer) -> None:
        """The words of an operand or result: for one element of the batch."""
        lead = len(self.op.lead)
        shape, strides = x.shape[lead:], x.strides[lead:]
        words[f"p{k}"] = pointer
        words |= {f"j{k}.{a}": s * x.dtype.size for a, s in enumerate(x.strides[:lead])}
        words |= {f"d{k}.{a}": n for a, n in enumerate(shape)}
        words |= {f"s{k}.{a}": n for a, n in enumerate(strides)}
        words |= {f"r{k}.{a}": n for a, n in enumerate(_row_major(shape))}
        if not self.op.kernel.strided or k >= len(self.operands):
            words[f"n{k}"] = math.prod(shape)
            return
        low = high = 0
        for n, s in zip(shape, strides, strict=True):
            if type(s) is int and s < 0:
                low = low + (n - 1) * s
            else:
                high = high + (n - 1) * s
        words[f"lo{k}"] = low
        words[f"n{k}"] = 0 if 0 in shape else high - low + 1


def _is(size: object, number: int) -> bool:
    return type(size) is int and size == number


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step = step * n
    return tuple(strides)


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if _is(n, 1):
            continue
        if s is not step and s != step:
            return False
        step = step * n
    return True


def lower(op: CustomKernel, operands: Sequence[Layout], *results: Layout) -> Lowering:
    """The launches of a custom kernel. Pointers: operands, results, temporaries."""
    return _Launches(op, operands, results).lower()
