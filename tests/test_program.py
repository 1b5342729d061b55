"""Programs: commands, relocations, workspaces, errors, threads, processes; then BLAS."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from weft.llvm import engine
from weft.llvm.code import Code
from weft.runtime import blas, blas_code, buffer, interpreter_code, threads
from weft.runtime.array_calls import ArrayCall, Operand, are_possible
from weft.runtime.program import INLINE, Command, CommandKind, Program, ProgramError, Reloc

run_alone = functools.partial(processes.run_alone, __file__)

# scale(extent, x, y, factor): y[i] = x[i] * factor, with factor behind a pointer.
SCALE = """
define void @scale(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %x_at = getelementptr ptr, ptr %args, i64 1
  %x = load ptr, ptr %x_at
  %y_at = getelementptr ptr, ptr %args, i64 2
  %y = load ptr, ptr %y_at
  %factor_at = getelementptr ptr, ptr %args, i64 3
  %factor_in = load ptr, ptr %factor_at
  %factor = load double, ptr %factor_in
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %loop ]
  %from = getelementptr double, ptr %x, i64 %i
  %value = load double, ptr %from
  %scaled = fmul double %value, %factor
  %to = getelementptr double, ptr %y, i64 %i
  store double %scaled, ptr %to
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

# set_word(word, value): block[word] = value.
SET_WORD = """
define i64 @set_word(ptr %block, ptr %args, ptr %scratch) {
  %word = load i64, ptr %args
  %value_at = getelementptr i64, ptr %args, i64 1
  %value = load i64, ptr %value_at
  %at = getelementptr i64, ptr %block, i64 %word
  store i64 %value, ptr %at
  ret i64 0
}
"""

# fail(status): returns it.
FAIL = """
define i64 @fail(ptr %block, ptr %args, ptr %scratch) {
  %status = load i64, ptr %args
  ret i64 %status
}
"""

# await(flag, seen): waits (not for ever) until *flag is not 0, and stores what it saw.
AWAIT = """
define i64 @await(ptr %block, ptr %args, ptr %scratch) {
entry:
  %flag = load ptr, ptr %args
  %seen_at = getelementptr ptr, ptr %args, i64 1
  %seen = load ptr, ptr %seen_at
  br label %wait
wait:
  %round = phi i64 [ 0, %entry ], [ %round1, %wait ]
  %value = load atomic i64, ptr %flag seq_cst, align 8
  %round1 = add i64 %round, 1
  %patient = icmp slt i64 %round1, 4000000000
  %zero = icmp eq i64 %value, 0
  %again = and i1 %zero, %patient
  br i1 %again, label %wait, label %done
done:
  store i64 %value, ptr %seen
  ret i64 0
}
"""

# fill(extent, out, bytes): fills so many bytes of its scratch memory with a mark of the chunk; out[i] = 1 if all stay.
FILL = """
define void @fill(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %out_at = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %out_at
  %bytes_at = getelementptr i64, ptr %args, i64 2
  %bytes = load i64, ptr %bytes_at
  %mark = trunc i64 %begin to i8
  br label %write
write:
  %w = phi i64 [ 0, %entry ], [ %w1, %write ]
  %w_at = getelementptr i8, ptr %scratch, i64 %w
  store volatile i8 %mark, ptr %w_at
  %w1 = add i64 %w, 1
  %more_w = icmp slt i64 %w1, %bytes
  br i1 %more_w, label %write, label %read
read:
  %r = phi i64 [ 0, %write ], [ %r1, %read ]
  %good = phi i64 [ 1, %write ], [ %good1, %read ]
  %r_at = getelementptr i8, ptr %scratch, i64 %r
  %byte = load volatile i8, ptr %r_at
  %same = icmp eq i8 %byte, %mark
  %same_word = zext i1 %same to i64
  %good1 = and i64 %good, %same_word
  %r1 = add i64 %r, 1
  %more_r = icmp slt i64 %r1, %bytes
  br i1 %more_r, label %read, label %report
report:
  %i = phi i64 [ %begin, %read ], [ %i1, %report ]
  %at = getelementptr i64, ptr %out, i64 %i
  store i64 %good1, ptr %at
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %report, label %done
done:
  ret void
}
"""

TEXTS = {"scale": SCALE, "set_word": SET_WORD, "fail": FAIL, "await": AWAIT, "fill": FILL}


def native(name: str) -> Code:
    return engine.load([engine.Source(f"test_program:{name}", name, lambda: TEXTS[name])])[0]


def scaling(extent: int, grain: int = 0) -> Program:
    """outputs[0] = inputs[0] * scalars[0]."""
    return Program(
        [Command(CommandKind.KERNEL, native("scale"), 0, grain)],
        [extent, 0, 0, 0],
        [Reloc(1, 2), Reloc(2, 3), Reloc(3, 1)],
        0,
    )


def addresses(*arrays: np.ndarray) -> list[int]:
    return [array.ctypes.data for array in arrays]


# ---- commands and relocations ----


def test_one_kernel() -> None:
    x, y, factor = np.arange(10.0), np.zeros(10), np.array([3.0])
    scaling(10).run(addresses(factor, x, y))
    assert (y == x * 3).all()


def test_program_runs_any_number_of_times_on_other_operands() -> None:
    scale = scaling(10)
    for repeat in range(5):
        x, y, factor = np.random.default_rng(repeat).normal(size=10), np.zeros(10), np.array([repeat + 0.5])
        scale.run(tuple(addresses(factor, x, y)))
        assert (y == x * (repeat + 0.5)).all()


OPERANDS = [Operand(i, np.dtype(float), (n,)) for i, n in enumerate((1, 1000, 1000))]
"""Of `scaling(1000)`: the factor, what is scaled, and the result."""


def scaled(call: ArrayCall, factor: float, x: np.ndarray) -> np.ndarray:
    y = np.zeros(1000)
    assert call(np.array([factor]), x, y)
    return y


@pytest.mark.skipif(not are_possible(), reason="arrays are not looked at by machine code here")
class TestCallsWithArrays:
    def test_any_number_of_threads(self, team: Callable[[int], None]) -> None:
        team(1)
        call, x = ArrayCall(scaling(1000, 16), [0, 0, 0], OPERANDS), np.arange(1000.0)
        for size in (1, 3, 1, 2):  # a workspace for more threads is made when they are there
            team(size)
            call(np.array([2.0]), x, np.zeros(1000))
            assert (scaled(call, size + 0.5, x) == x * (size + 0.5)).all()

    @pytest.mark.parametrize(
        "other",
        [
            np.zeros(999),
            np.zeros((1, 1000)),
            np.zeros((1000, 1)),
            np.zeros(()),
            np.zeros(1000, np.float32),
            np.zeros(1000, ">f8"),
            np.zeros(2000)[::2],
            np.zeros(8001, np.uint8)[1:].view(float),
            np.ma.zeros(1000),
            [0.0] * 1000,
            3.0,
            None,
        ],
        ids=repr,
    )
    def test_what_it_is_not_for_is_left_alone(self, other: object) -> None:
        call, x, y = ArrayCall(scaling(1000), [0, 0, 0], OPERANDS), np.arange(1000.0), np.zeros(1000)
        assert not call(np.array([2.0]), other, y)
        assert not call(np.array([2.0]), x)
        assert not call(np.array([2.0]), x, y, y)
        assert not y.any()
        assert (scaled(call, 3.0, x) == 3 * x).all()

    def test_arrays_that_no_command_reads_are_looked_at_too(self) -> None:
        unused = Operand(None, np.dtype(np.int32), (2, 3))
        call = ArrayCall(scaling(1000), [0, 0, 0], [*OPERANDS, unused])
        x, y = np.arange(1000.0), np.zeros(1000)
        assert not call(np.array([2.0]), x, y, np.zeros((3, 2), np.int32))
        assert call(np.array([2.0]), x, y, np.zeros((2, 3), np.int32))
        assert (y == 2 * x).all()

    def test_failures_and_calls_after_them(self) -> None:
        commands = [Command(CommandKind.KERNEL, native("scale"), 0), Command(CommandKind.CALL, native("fail"), 4)]
        program = Program(commands, [1000, 0, 0, 0, 42], [Reloc(1, 2), Reloc(2, 3), Reloc(3, 1)], 0)
        call, x, y = ArrayCall(program, [0, 0, 0], OPERANDS), np.arange(1000.0), np.zeros(1000)
        for value in (2.0, 5.0):
            with pytest.raises(ProgramError, match=r"command 1 .* status 42"):
                call(np.array([value]), x, y)
            assert (y == x * value).all()

    def test_one_at_a_time(self) -> None:
        """A call that comes while another is running does nothing: they would share a workspace."""
        flag, seen = np.zeros(1, np.int64), np.zeros(1, np.int64)
        program = Program([Command(CommandKind.CALL, native("await"), 0)], [0, 0], [Reloc(0, 1), Reloc(1, 2)], 0)
        call = ArrayCall(program, [0, 0], [Operand(i, np.dtype(np.int64), (1,)) for i in range(2)])
        first = threading.Thread(target=call, args=(flag, seen))
        first.start()
        while call(np.ones(1, np.int64), np.zeros(1, np.int64)):
            time.sleep(0.001)
        flag[0] = 7
        first.join()
        assert seen[0] == 7
        assert call(flag, seen)


def test_relocations_add_offsets_of_any_sign() -> None:
    x, y, factor = np.arange(20.0), np.zeros(20), np.array([1.0, 5.0])
    relocations = [Reloc(1, 2, 3 * 8), Reloc(2, 3, -2 * 8), Reloc(3, 1, 8)]
    middle = y[10:]
    Program([Command(0, native("scale"), 0)], [4, 0, 0, 0], relocations, 0).run(addresses(factor, x, middle))
    assert (y[8:12] == x[3:7] * 5).all()
    assert not y[:8].any()
    assert not y[12:].any()


@pytest.mark.parametrize("word", [0, 1, -1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_constants_travel_as_words_of_the_call(word: int) -> None:
    """Relocations against INLINE point at the table of addresses itself; words of it may be any 64 bits."""
    flag, seen = np.zeros(1, np.int64), np.zeros(1, np.int64)
    relocations = [Reloc(0, INLINE, 8), Reloc(1, 1), Reloc(2, 3)]
    copy = Program([Command(CommandKind.CALL, native("await"), 0)], [0, 0, 0], relocations, 0)
    copy.run([*addresses(seen), word or 7, *addresses(flag)])
    assert int(seen[0]) % 2**64 == (word or 7) % 2**64
    x, y = np.arange(10.0), np.zeros(10)
    scale = Program(
        [Command(0, native("scale"), 0)], [10, 0, 0, 0], [Reloc(1, 1), Reloc(2, 2), Reloc(3, INLINE, 16)], 0
    )
    scale.run([*addresses(x, y), int(np.array(2.5).view(np.int64))])
    assert (y == x * 2.5).all()
    with pytest.raises(ValueError, match="3 addresses are needed; got 2"):
        scale.run(addresses(x, y))


def test_inline_constant_of_two_words() -> None:
    """No relocation names its second word, so the program says how many words a call gives."""
    args, relocations = [10, 0, 0, 0], [Reloc(1, 1), Reloc(2, 2), Reloc(3, INLINE, 24)]
    x, y, words = np.arange(10.0), np.zeros(10), np.array([4.0, 2.5]).view(np.int64).tolist()
    second = [*relocations[:2], Reloc(3, INLINE, 16)]
    scale = Program([Command(0, native("scale"), 0)], args, second, 0, addresses=4)
    scale.run([*addresses(x, y), *words])
    assert (y == x * 4).all()
    Program([Command(0, native("scale"), 0)], args, relocations, 0).run([*addresses(x, y), *words])
    assert (y == x * 2.5).all()
    with pytest.raises(ValueError, match="4 addresses are needed; got 3"):
        scale.run([*addresses(x, y), words[0]])


def test_commands_run_in_order_and_pass_values_in_the_arena() -> None:
    count, x, y, factor = 1000, np.arange(1000.0), np.zeros(1000), np.array([2.0])
    scale = native("scale")
    args = [count, 0, 0, 0, count, 0, 0, 0, count, 0, 0, 0]
    second = 8 * count
    relocations = [
        Reloc(1, 2), Reloc(2, 0), Reloc(3, 1),
        Reloc(5, 0), Reloc(6, 0, second), Reloc(7, 1),
        Reloc(9, 0, second), Reloc(10, 3), Reloc(11, 1),
    ]  # fmt: skip
    chain = Program([Command(0, scale, word) for word in (0, 4, 8)], args, relocations, 16 * count)
    chain.run(addresses(factor, x, y))
    assert (y == x * 8).all()


def test_arena_and_scratch_are_aligned_and_apart() -> None:
    """A CALL that fills all of its scratch memory leaves the arena, the block and the next scratch memory alone."""
    seen: dict[str, int] = {}

    @ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def look(block: int, args: int, scratch: int) -> int:
        seen.update(block=block, scratch=scratch, arena=ctypes.c_int64.from_address(args).value)
        ctypes.memset(scratch, 0xFF, 1000)
        ctypes.memset(seen["arena"], 0xEE, 5000)
        return 0

    function = ctypes.cast(look, ctypes.c_void_p).value
    assert function is not None
    command = Command(CommandKind.CALL, function, 0, 0, 1000)
    Program([command, command], [0, 77], [Reloc(0, 0)], 5000).run([])
    for address in seen.values():
        assert address % 64 == 0
    assert seen["block"] + 16 <= seen["scratch"]
    assert seen["scratch"] + 1000 <= seen["arena"]


def test_extent_may_come_from_an_earlier_command() -> None:
    x, y, factor = np.arange(10.0), np.zeros(10), np.array([2.0])
    commands = [Command(CommandKind.CALL, native("set_word"), 4), Command(CommandKind.KERNEL, native("scale"), 0)]
    relocations = [Reloc(1, 2), Reloc(2, 3), Reloc(3, 1)]
    grow = Program(commands, [0, 0, 0, 0, 0, 7], relocations, 0)
    for _ in range(2):  # the block is a fresh copy each time
        y[:] = 0
        grow.run(addresses(factor, x, y))
        assert (y == [0, 2, 4, 6, 8, 10, 12, 0, 0, 0]).all()


@pytest.mark.parametrize("extent", [0, -1, -(2**63)])
@pytest.mark.parametrize("grain", [0, 1, 2**62])
def test_empty_extent_runs_nothing(extent: int, grain: int, team: Callable[[int], None]) -> None:
    team(2)
    scaling(extent, grain).run([0, 0, 0])


def test_empty_program() -> None:
    Program([], [], [], 0).run([])
    Program([], [], [], 1000).run([1, 2, 3])


# ---- errors ----


def test_failing_call_stops_the_program() -> None:
    x, y, factor = np.arange(10.0), np.zeros(10), np.array([2.0])
    fail, scale = native("fail"), native("scale")
    relocations = [Reloc(1, 2), Reloc(2, 3), Reloc(3, 1)]
    commands = [
        Command(CommandKind.CALL, fail, 4),
        Command(CommandKind.CALL, fail, 5),
        Command(CommandKind.KERNEL, scale, 0),
    ]
    broken = Program(commands, [10, 0, 0, 0, 0, 42], relocations, 0)
    active = buffer.get_active_memory()
    with pytest.raises(ProgramError, match=r"command 1 .* status 42") as error:
        broken.run(addresses(factor, x, y))
    assert (error.value.command, error.value.status) == (1, 42)
    assert not y.any()
    assert buffer.get_active_memory() == active
    Program(commands, [10, 0, 0, 0, 0, 0], relocations, 0).run(addresses(factor, x, y))
    assert (y == x * 2).all()


def test_too_few_addresses() -> None:
    with pytest.raises(ValueError, match=r"\[Program.run\] 3 addresses are needed; got 2"):
        scaling(10).run([0, 0])


@pytest.mark.parametrize("bad", ["x", None, 1.5, 2**65])
def test_addresses_that_are_none(bad: object) -> None:
    active = buffer.get_active_memory()
    with pytest.raises((TypeError, OverflowError)):
        scaling(0).run([0, bad, 0])  # type: ignore[list-item]
    assert buffer.get_active_memory() == active


@pytest.mark.parametrize(
    ("commands", "relocations", "workspace", "message"),
    [
        ([Command(6, 1, 0)], [], 0, "kind 6"),
        ([Command(-1, 1, 0)], [], 0, "kind -1"),
        ([Command(0, 1, 3)], [], 0, "word 3 of a block of 3"),
        ([Command(0, 1, -1)], [], 0, "word -1"),
        ([Command(0, 0, 0)], [], 0, "no function"),
        ([Command(0, 1, 0, -1)], [], 0, "negative"),
        ([Command(0, 1, 0, 0, -1)], [], 0, "negative"),
        ([], [Reloc(3, 1)], 0, "relocation 0"),
        ([], [Reloc(0, 0), Reloc(-1, 1)], 0, "relocation 1"),
        ([], [Reloc(0, -2)], 0, "relocation 0"),
        ([], [Reloc(0, INLINE, -8)], 0, "relocation 0"),
        ([], [], -1, "workspace_bytes"),
    ],
)
def test_impossible_programs(
    commands: Sequence[Command], relocations: Sequence[Reloc], workspace: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Program(commands, [0, 0, 0], relocations, workspace)


# ---- workspaces ----


def test_workspace_is_active_while_running_and_cached_afterwards() -> None:
    buffer.clear_cache()
    large = Program([], [1, 2, 3], [], 10 << 20)
    active = buffer.get_active_memory()
    buffer.reset_peak_memory()
    large.run([])
    assert buffer.get_peak_memory() >= active + (10 << 20)
    assert buffer.get_active_memory() == active
    cached = buffer.get_cache_memory()
    assert cached >= 10 << 20
    large.run([])
    assert buffer.get_cache_memory() == cached  # the same block again
    buffer.clear_cache()
    assert buffer.get_cache_memory() == 0
    large.run([])


def test_workspace_obeys_the_memory_limit() -> None:
    large = Program([], [], [], 10 << 20)
    gc.collect()  # which the refusal does as well
    active = buffer.get_active_memory()
    limit = buffer.set_memory_limit(active + (1 << 20))
    try:
        with pytest.raises(MemoryError):
            large.run([])
        assert buffer.get_active_memory() == active
    finally:
        buffer.set_memory_limit(limit)
    large.run([])


@pytest.mark.parametrize("nbytes", [1, 64, 100, 5000])
def test_every_thread_has_scratch_memory(team: Callable[[int], None], nbytes: int) -> None:
    """Also when the number of threads grows after the program was made."""
    team(1)
    command = Command(CommandKind.KERNEL, native("fill"), 0, 1, nbytes)
    fill = Program([command], [3000, 0, nbytes], [Reloc(1, 2)], 128)
    for size in (1, 2, 5, 3):
        team(size)
        for _ in range(5):
            out = np.zeros(3000, np.int64)
            fill.run([0, *addresses(out)])
            assert out.all()


# ---- threads ----


def test_several_threads_give_the_same_bits(team: Callable[[int], None]) -> None:
    rng = np.random.default_rng(0)
    x, factor = rng.normal(size=100_000), np.array([1 / 3])
    for extent in (1, 2, 63, 1000, 99_999):
        results = []
        for size in (1, 2, 3):
            team(size)
            y = np.zeros(100_000)
            scaling(extent, 16).run(addresses(factor, x, y))
            results.append(y.tobytes())
        assert results[0] == results[1] == results[2] != bytes(800_000)


def test_python_threads_run_one_program_at_once(team: Callable[[int], None]) -> None:
    team(2)
    count = 5000
    args = [count, 0, 0, 0, count, 0, 0, 0]
    relocations = [Reloc(1, 2), Reloc(2, 0), Reloc(3, 1), Reloc(5, 0), Reloc(6, 3), Reloc(7, 1)]
    twice = Program([Command(0, native("scale"), word, 64) for word in (0, 4)], args, relocations, 8 * count)
    wrong = []

    def work(me: int) -> None:
        rng = np.random.default_rng(me)
        for step in range(100):
            x, y, factor = rng.normal(size=count), np.zeros(count), rng.normal(size=1)
            twice.run(addresses(factor, x, y))
            if y.tobytes() != (x * factor * factor).tobytes():
                wrong.append((me, step))

    callers = [threading.Thread(target=work, args=(me,)) for me in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_running_program_leaves_python_to_others() -> None:
    flag, seen = np.zeros(1, np.int64), np.zeros(1, np.int64)
    program = Program([Command(CommandKind.CALL, native("await"), 0)], [0, 0], [Reloc(0, 2), Reloc(1, 3)], 0)
    caller = threading.Thread(target=program.run, args=([0, *addresses(flag, seen)],))
    caller.start()
    time.sleep(0.01)
    flag[0] = 9
    caller.join()
    assert seen[0] == 9


def scenario_interrupt() -> None:
    """Ctrl-C while native code runs: Python hears of it when the program is through, and gets its memory back."""
    flag, seen = np.zeros(1, np.int64), np.zeros(1, np.int64)
    program = Program([Command(CommandKind.CALL, native("await"), 0)], [0, 0], [Reloc(0, 2), Reloc(1, 3)], 1 << 20)
    active = buffer.get_active_memory()

    def interrupt() -> None:
        while buffer.get_active_memory() == active:
            time.sleep(0.001)
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        flag[0] = 1

    for _ in range(10):
        flag[0] = seen[0] = 0
        other = threading.Thread(target=interrupt)
        other.start()
        with pytest.raises(KeyboardInterrupt):
            program.run([0, *addresses(flag, seen)])
        other.join()
        assert seen[0] == 1
        assert buffer.get_active_memory() == active


def test_interrupted_program_gives_its_workspace_back() -> None:
    run_alone("scenario_interrupt")


# ---- processes ----


def parallel_scaling_works() -> bool:
    x, y, factor = np.arange(50_000.0), np.zeros(50_000), np.array([2.0])
    scaling(50_000, 100).run(addresses(factor, x, y))
    return bool((y == x * 2).all())


def scenario_fork() -> None:
    assert parallel_scaling_works()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if parallel_scaling_works() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert parallel_scaling_works()


def test_forked_child_runs_programs() -> None:
    run_alone("scenario_fork", WEFT_THREADS="2")


SPAWN = """
import multiprocessing, runpy
def work(n):
    return runpy.run_path({path!r})["parallel_scaling_works"]()
if __name__ == "__main__":
    assert work(0)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        assert pool.map(work, range(4)) == [True] * 4
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_worker_processes(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPAWN.format(path=__file__, method=method))
    environment = {**os.environ, "PYTHONPATH": str(processes.REPOSITORY), "WEFT_THREADS": "2"}
    result = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("machine", sorted(threads.MACHINES))
def test_interpreter_for_every_machine(machine: str) -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu").create_target_machine(codemodel="large")
    texts = {"weft_program": interpreter_code.native_code(machine), "weft_blas_turn": blas_code.native_code()}
    for name, text in texts.items():
        with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
            module.triple, module.data_layout = target.triple, str(target.target_data)
            module.verify()
            defined, undefined = engine.global_symbols(target.emit_object(module))
        assert defined == {name}
        assert undefined <= engine.ALLOWED_SYMBOLS


# ---- BLAS ----


def test_routines_have_addresses() -> None:
    assert blas.routine("sgemm") != blas.routine("dgemm")
    assert blas.routine("dgetrf") == blas.routine("dgetrf") != 0
    with pytest.raises(ValueError, match="no BLAS or LAPACK routine named 'xgemm'"):
        blas.routine("xgemm")


def test_threads_of_blas() -> None:
    before = blas.set_threads(1)
    try:
        assert blas.get_threads() == 1
        assert "threads: 1," in blas.description()
        assert blas.set_threads(2) == 1
        assert blas.get_threads() == 2
    finally:
        blas.set_threads(before)
    with pytest.raises(ValueError, match="got 0"):
        blas.set_threads(0)


def scenario_blas_without_scipy_linalg() -> None:
    address = blas.routine("sgemm"), blas.routine("dgetrf")
    assert "scipy.linalg" not in sys.modules
    assert "scipy.linalg.cython_blas" not in sys.modules
    import scipy.linalg
    import scipy.linalg.cython_blas
    import scipy.linalg.cython_lapack

    assert scipy.linalg.cython_blas is blas._extension("cython_blas")
    assert scipy.linalg.cython_lapack is blas._extension("cython_lapack")
    blas.routine.cache_clear()
    assert address == (blas.routine("sgemm"), blas.routine("dgetrf"))
    assert np.allclose(scipy.linalg.solve(np.eye(3) * 2, np.ones(3)), 0.5)


def scenario_blas_after_scipy_linalg() -> None:
    import scipy.linalg

    blas.routine("sgemm")
    blas.routine("dgetrf")
    assert scipy.linalg.cython_blas is sys.modules["scipy.linalg.cython_blas"]


@pytest.mark.parametrize("order", ["without", "after"])
def test_loading_blas_leaves_scipy_whole(order: str) -> None:
    run_alone(f"scenario_blas_{order}_scipy_linalg")
