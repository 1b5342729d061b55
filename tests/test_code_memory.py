"""Machine code in memory: linked where it lies, kept while something can run it, and given back after that, whatever
threads, forks, signals and finalizers do meanwhile."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import signal
import struct
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.processes import in_threads, run_alone
from weft import evaluate
from weft.config import config
from weft.errors import CompileError
from weft.llvm import code, engine, linking
from weft.llvm.binding import llvm_binding
from weft.llvm.code import MEMORY, Code, CodeMemory
from weft.llvm.engine import Source
from weft.room import PAGE
from weft.targets.copies import COPIES
from weft.targets.cpu import kernel

unique = itertools.count()


def adds(number: int) -> str:
    return f"define i64 @k(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}\n"


def load(text: str, name: str = "k") -> Code:
    (made,) = engine.load([Source(f"test code {os.getpid()} {next(unique)}", name, lambda: text)])
    return made


def call(made: Code, *arguments: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(made.address)(*arguments))


def forget() -> None:
    """Drop all that is only kept for the next time."""
    evaluate.programs.PROGRAMS.clear()
    COPIES.clear()
    kernel._SOURCES.clear()
    for target in engine._targets.values():
        target.loaded.recent.clear()
    gc.collect()


@pytest.fixture
def few() -> Iterator[None]:
    """Hardly anything is kept for the next time."""
    before = config.programs
    config.programs = 2
    engine._targets.clear()  # tables of kernels are made for a limit
    yield
    config.programs = before
    engine._targets.clear()


# ---- linking ----

EVERYTHING = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare double @fma(double, double, double)
@count = internal global i64 7
@zeros = internal global [600 x i64] zeroinitializer
@table = private constant [4 x i64] [i64 11, i64 22, i64 33, i64 44]
@functions = private constant [2 x ptr] [ptr @next, ptr @triple]

define internal i64 @next(i64 %x) noinline {
  %y = add i64 %x, 1
  ret i64 %y
}
define internal i64 @triple(i64 %x) noinline {
  %y = mul i64 %x, 3
  ret i64 %y
}
define i64 @k(ptr %bytes, i64 %i) {
  call void @llvm.memset.p0.i64(ptr %bytes, i8 5, i64 %i, i1 false)
  %entry = getelementptr i64, ptr @table, i64 %i
  %number = load i64, ptr %entry
  %second = getelementptr ptr, ptr @functions, i64 1
  %function = load volatile ptr, ptr %second
  %tripled = call i64 %function(i64 %number)
  %more = call i64 @next(i64 %tripled)
  %counted = load volatile i64, ptr @count
  %sum = add i64 %more, %counted
  store volatile i64 %sum, ptr @count
  %zero = getelementptr i64, ptr @zeros, i64 599
  store volatile i64 %sum, ptr %zero
  switch i64 %i, label %other [
    i64 0, label %zeroth
    i64 1, label %first
    i64 2, label %twice
    i64 3, label %third
    i64 4, label %fourth
  ]
zeroth:
  ret i64 100
first:
  %r1 = add i64 %sum, 1000
  ret i64 %r1
twice:
  %r2 = mul i64 %sum, 1000
  ret i64 %r2
third:
  %r3 = sub i64 %sum, 5
  ret i64 %r3
fourth:
  %real = call double @fma(double 2.0, double 3.0, double 1.0)
  %r4 = fptosi double %real to i64
  ret i64 %r4
other:
  ret i64 -1
}
"""
"""Constants, tables of functions and of jumps, variables, and functions of the process."""


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_everything_that_an_object_may_hold(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "llvm_level", level)
    made = load(EVERYTHING)
    memory = np.zeros(8, np.uint8)
    count = 7
    for i, answer in [(1, lambda s: s + 1000), (2, lambda s: s * 1000), (3, lambda s: s - 5)]:
        count += (i + 1) * 11 * 3 + 1
        assert call(made, memory.ctypes.data, i) == answer(count)
        assert memory.tolist() == [5] * i + [0] * (8 - i)


def test_code_is_never_writable_and_executable() -> None:
    made = load(EVERYTHING)
    assert call(made, np.zeros(8, np.uint8).ctypes.data, 1) == 7 + 67 + 1000
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(n, 16) for n in line.split()[0].split("-"))
        if first <= made.address < last:
            assert line.split()[1] == "r-xp"
            return
    pytest.fail("code is not in the table of maps")


AARCH64 = {
    "small": ("pic", "small", False),
    "large": ("default", "jitdefault", True),
}


@pytest.mark.parametrize("model", AARCH64)
def test_addresses_on_another_machine(model: str) -> None:
    """Instructions of AArch64 that make an address, read as the processor reads them."""
    llvm = llvm_binding()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM knows no AArch64")
    reloc, codemodel, jit = AARCH64[model]
    machine = target.create_target_machine(reloc=reloc, codemodel=codemodel, jit=jit)
    text = (
        '@pad = private constant [3 x i8] c"abc"\n@found = private constant [2 x i64] [i64 1234, i64 5678], align 64\n'
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
        "define ptr @k(ptr %x, i64 %n) {\n  call void @llvm.memset.p0.i64(ptr %x, i8 0, i64 %n, i1 false)\n"
        "  ret ptr @found\n}\n"
    )
    with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        elf = linking.Elf(bytes(machine.emit_object(module)))
    base = 0x7654_3210_9000
    memory, entry = linking._Link(elf, "k", {})._filled(base, base + (64 << 10))
    reached = list(addresses_made(memory, base, entry))
    found = base + memory.index(struct.pack("<QQ", 1234, 5678))
    assert found in reached, "the constant's"
    memset = linking.address_of("memset")
    if memset not in reached:  # by a jump beside the code, which takes the address from behind it
        assert any(memory[at - base + 8 : at - base + 16] == struct.pack("<Q", memset) for at in reached), "memset's"


def addresses_made(memory: bytes, base: int, entry: int) -> Iterator[int]:
    """The addresses that adrp and add, movz and movk, and bl make, one after the other."""
    registers: dict[int, int] = {}
    for at in range(entry - base, len(memory) - 3, 4):
        (word,) = struct.unpack_from("<I", memory, at)
        if word & 0x9F000000 == 0x90000000:  # adrp
            pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
            pages -= (1 << 21) if pages >> 20 else 0
            registers[word & 31] = ((base + at >> 12) + pages) << 12
        elif word & 0xFFC00000 == 0x91000000 and word >> 5 & 31 in registers:  # add
            yield registers[word >> 5 & 31] + (word >> 10 & 0xFFF)
        elif word & 0xFF800000 in (0xD2800000, 0xF2800000):  # movz, movk
            shift = 16 * (word >> 21 & 3)
            registers[word & 31] = registers.get(word & 31, 0) & ~(0xFFFF << shift) | (word >> 5 & 0xFFFF) << shift
            yield registers[word & 31]
        elif word & 0xFC000000 in (0x94000000, 0x14000000):  # bl, b
            offset = word & 0x3FFFFFF
            yield base + at + 4 * (offset - ((1 << 26) if offset >> 25 else 0))
        elif word == 0xD65F03C0:  # ret
            return


def test_relocations_that_are_not_known_are_refused() -> None:
    target = engine._target("native", 0)
    with target.module("k", EVERYTHING) as (module, machine):
        elf = linking.Elf(machine.object(module))
    link = linking._Link(elf, "k", {})
    link.rules = {}
    with pytest.raises(CompileError, match="a relocation of type"):
        link.placed()


# ---- given back ----


def test_code_lives_as_long_as_something_holds_it() -> None:
    forget()
    before = MEMORY.used
    one, other = load(adds(1)), load(adds(2))
    seen = weakref.ref(one)
    assert MEMORY.used == before + 2 * PAGE
    forget()
    assert (call(one, 5), call(other, 5)) == (6, 7)
    assert MEMORY.used == before + 2 * PAGE
    del one
    assert seen() is None
    assert MEMORY.used == before + PAGE
    assert call(other, 5) == 7


def test_memory_is_used_again() -> None:
    forget()
    kept = [load(adds(number)) for number in range(6)]
    places = [made.address for made in kept]
    del kept[2:4]
    forget()
    again = [load(adds(number)) for number in range(10, 12)]
    assert sorted(made.address for made in again) == sorted(places[2:4])
    assert [call(made, 1) for made in [*kept, *again]] == [1, 2, 5, 6, 11, 12]


def test_equal_sources_share_code_that_only_a_program_holds() -> None:
    x = mx.array(np.arange(4, dtype=np.float32))
    compiled = mx.compile(lambda x: mx.sin(x) * 3 + x)
    expected = np.array(compiled(x))
    forget()
    before = engine.stats.loaded
    np.testing.assert_array_equal(np.array(mx.compile(lambda x: mx.sin(x) * 3 + x)(x)), expected)
    assert engine.stats.loaded == before


def test_pieces_go_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "PIECE", 2 * PAGE)
    memory = CodeMemory()

    def placed() -> Code:
        return memory.place(PAGE - 8, 0, lambda base, writable: (b"\xc3", base))

    held = [placed() for _ in range(7)]
    assert len(memory._pieces) == 4
    assert memory.used == 7 * PAGE
    del held[1:]
    assert memory.used == PAGE
    assert len(memory._pieces) == 1
    held.append(memory.place(5 * PAGE, 0, lambda base, writable: (b"\xc3", base)))
    assert memory.used == 6 * PAGE
    del held[:]
    assert memory.used == 0
    assert len(memory._pieces) == 1


def test_what_cannot_be_filled_is_given_back() -> None:
    memory = CodeMemory()

    def fail(base: int, writable: int) -> tuple[bytes, int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.place(100, 100, fail)
    assert memory.used == 0


def test_a_finalizer_may_load_code_while_code_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps that belong together: it must get memory of its own."""
    memory = CodeMemory()
    inner: list[Code] = []

    def place(contents: bytes) -> Code:
        return memory.place(len(contents), 0, lambda base, writable: (contents, base))

    take = code._Piece.take

    def disturbed(piece: Any, count: int) -> Any:
        if not inner:
            monkeypatch.setattr(code._Piece, "take", take)
            inner.append(place(b"inner"))
        return take(piece, count)

    place(b"first")
    monkeypatch.setattr(code._Piece, "take", disturbed)
    outer = place(b"outer")
    assert ctypes.string_at(inner[0].address, 5) == b"inner"
    assert ctypes.string_at(outer.address, 5) == b"outer"
    inner.clear()
    assert memory.used == PAGE
    del outer
    assert memory.used == 0


def expression(number: int, x: Any, xp: Any) -> Any:
    """One of 4 ** 5 programs, of arrays of Weft or NumPy."""
    steps = (lambda x: x + 1, lambda x: x * x, xp.abs, lambda x: xp.maximum(-x, x * 0.5))
    for _ in range(5):
        number, digit = divmod(number, 4)
        x = xp.minimum(steps[digit](x), 8.0)
    return x


START = np.linspace(-2, 2, 16, dtype=np.float32)


def expected_of(number: int) -> np.ndarray:
    return np.asarray(expression(number, START, np), np.float32)


def maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_any_number_of_programs_takes_bounded_memory(few: None) -> None:
    x = mx.array(START)
    mx.eval(expression(1023, x, mx))
    forget()
    used, mapped = MEMORY.used, maps()
    most = 0
    for number in range(150):
        np.testing.assert_array_equal(np.array(expression(number, x, mx)), expected_of(number))
        most = max(most, MEMORY.used)
    assert most - used < 60 * PAGE
    assert maps() - mapped < 20
    assert len(evaluate.programs.PROGRAMS) <= 4
    assert len(kernel._SOURCES) <= 4


def test_long_programs_count_for_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "programs", 8)
    monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})
    monkeypatch.setattr(evaluate.programs, "_COMMANDS", [0])
    x = mx.array(START.reshape(4, 4))
    for number in range(12):
        y = x
        for _ in range(20 + number):
            y = mx.softmax(y @ x)
        mx.eval(y)
    commands = [recipe.executable.commands for recipe in evaluate.programs.PROGRAMS.values()]
    assert max(commands) > 16, "or this test proves nothing"
    assert sum(commands) <= 8 * evaluate.programs._USUAL
    assert len(commands) < 4


def test_functions_that_are_held_run_whatever_has_been_dropped(few: None, tmp_path: Path) -> None:
    x = mx.array(START)
    held = [mx.compile(lambda x, n=n: expression(n, x, mx)) for n in range(0, 1024, 100)]
    first = [np.array(f(x)) for f in held]
    shapeless = mx.compile(lambda x: mx.sin(x) + 1, shapeless=True)
    sines = {n: np.array(shapeless(x[:n])) for n in (16, 5, 9)}
    mx.export_function(str(tmp_path / "f.weft"), lambda x: mx.exp(x) * 2, x)
    imported = mx.import_function(str(tmp_path / "f.weft"))
    (exponential,) = imported(x)
    exponential = np.array(exponential)
    for number in range(40):
        mx.eval(expression(number, x, mx))
        forget()
    for f, answer in zip(held, first, strict=True):
        np.testing.assert_array_equal(np.array(f(x)), answer)
    for n, answer in sines.items():
        np.testing.assert_array_equal(np.array(shapeless(x[:n])), answer)
    np.testing.assert_array_equal(np.array(imported(x)[0]), exponential)


# ---- at the worst moment ----


def never_again() -> None:
    """From now on code that was given back is a fault to call, instead of other code."""

    def collect(memory: CodeMemory) -> None:
        while memory._freed:
            pages = memory._freed.popleft()
            code._protect(pages.address, pages.nbytes, 0)

    CodeMemory._collect = collect  # type: ignore[method-assign]


def threads_and_generations() -> None:
    """Threads run programs, eager and compiled, small and large, while others are dropped all the time."""
    never_again()
    x = mx.array(START)
    mx.eval(x)
    loaded = engine.stats.loaded

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        compiled = mx.compile(lambda x: expression(number, x, mx))
        large = mx.array(np.tile(START, 1 << 14))
        for round_ in range(25):
            n = int(rng.integers(0, 48))
            np.testing.assert_array_equal(np.array(expression(n, x, mx)), expected_of(n))
            np.testing.assert_array_equal(np.array(compiled(x)), expected_of(number))
            if round_ % 8 == number:
                np.testing.assert_array_equal(np.array(expression(n, large, mx))[-16:], expected_of(n))
            if number == 0:
                forget()

    in_threads(4, work)
    assert engine.stats.loaded - loaded > 40, "or next to nothing was dropped"
    print("fine")


def forks() -> None:
    """Children drop, load and run code of their own, and so does their parent meanwhile."""
    x = mx.array(START)
    held = mx.compile(lambda x: expression(7, x, mx))
    mx.eval(held(x))
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            for number in range(child * 6, child * 6 + 6):
                np.testing.assert_array_equal(np.array(expression(number, x, mx)), expected_of(number))
                forget()
            np.testing.assert_array_equal(np.array(held(x)), expected_of(7))
            os._exit(0)
        children.append(pid)
        for number in range(40 + child * 4, 44 + child * 4):
            np.testing.assert_array_equal(np.array(expression(number, x, mx)), expected_of(number))
            forget()
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    np.testing.assert_array_equal(np.array(held(x)), expected_of(7))
    print("fine")


class Struck(Exception):
    """What a signal's handler raises."""


def signals() -> None:
    """A handler raises again and again while programs are made, run and dropped."""
    x = mx.array(START)
    mx.eval(expression(1023, x, mx))

    def strike(*_: Any) -> None:
        raise Struck

    signal.signal(signal.SIGALRM, strike)
    struck, whole = 0, 1.0
    for number in range(72):
        try:
            start = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, whole * (number % 24 + 1) / 24)
            mx.eval(expression(number, x, mx))
            signal.setitimer(signal.ITIMER_REAL, 0)
            whole = min(whole, time.perf_counter() - start)
        except Struck:
            struck += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        forget()
    assert struck > 10
    for number in range(30):
        np.testing.assert_array_equal(np.array(expression(number, x, mx)), expected_of(number))
    print("fine")


@pytest.mark.parametrize("scenario", ["threads_and_generations", "forks", "signals"])
def test_code_is_there_as_long_as_it_runs(scenario: str) -> None:
    assert run_alone(__file__, scenario, WEFT_PROGRAMS="2", WEFT_THREADS="2", WEFT_LLVM_LEVEL="0") == "fine\n"


def test_threads_place_and_free_code_at_once() -> None:
    memory = CodeMemory()
    errors: list[Any] = []

    def work(number: int) -> None:
        held: list[tuple[int, Code]] = []
        for round_ in range(60):
            value = number * 1000 + round_
            contents = struct.pack("<i", value) * (1 + round_ * 97 % 3000)
            made = memory.place(len(contents), 0, lambda base, writable, c=contents: (c, base))
            held.append((value, made))
            if round_ % 3 == 2:
                held.pop(0)
            for known, piece in held:
                if ctypes.c_int32.from_address(piece.address).value != known:
                    errors.append((known, piece))

    in_threads(4, work)
    assert errors == []
    gc.collect()
    assert memory.used == 0
