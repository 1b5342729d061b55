"""The thread pool, driven by programs of one parallel kernel. What concerns a whole process runs in one of its own."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from weft.errors import CompileError
from weft.llvm import engine
from weft.llvm.code import Code
from weft.runtime import threads, threads_code
from weft.runtime.program import Command, CommandKind, Program, Reloc

run_alone = functools.partial(processes.run_alone, __file__)

# visit(extent, visits, ends): count every index, and note where each chunk ends.
VISIT = """
define void @visit(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %visits_at = getelementptr ptr, ptr %args, i64 1
  %visits = load ptr, ptr %visits_at
  %ends_at = getelementptr ptr, ptr %args, i64 2
  %ends = load ptr, ptr %ends_at
  %end_at = getelementptr i64, ptr %ends, i64 %begin
  store i64 %end, ptr %end_at
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %loop ]
  %at = getelementptr i64, ptr %visits, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

# meet(extent, counter, wanted, met, tiny): every chunk but the first signs its scratch memory, reports at the counter,
# waits (not for ever) until `wanted` chunks have, and notes whether they did and its sign is still there. The first
# one, by which the pool may measure what the others are worth, only takes its time. tiny[begin] *= 0.5, a matter of the
# float control word.
MEET = """
define void @meet(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %counter_at = getelementptr ptr, ptr %args, i64 1
  %counter = load ptr, ptr %counter_at
  %wanted_at = getelementptr ptr, ptr %args, i64 2
  %wanted_in = load ptr, ptr %wanted_at
  %wanted = load i64, ptr %wanted_in
  %met_at = getelementptr ptr, ptr %args, i64 3
  %mets = load ptr, ptr %met_at
  %tiny_at = getelementptr ptr, ptr %args, i64 4
  %tinies = load ptr, ptr %tiny_at
  %sign_at = getelementptr i64, ptr %scratch, i64 7
  store i64 %begin, ptr %sign_at
  %first = icmp eq i64 %begin, 0
  %mine = select i1 %first, i64 0, i64 1
  %patience = select i1 %first, i64 300000, i64 4000000000
  %before = atomicrmw add ptr %counter, i64 %mine seq_cst
  br label %wait
wait:
  %round = phi i64 [ 0, %entry ], [ %round1, %wait ]
  %here = load atomic i64, ptr %counter seq_cst, align 8
  %reached = icmp sge i64 %here, %wanted
  %others = xor i1 %first, true
  %all = and i1 %reached, %others
  %round1 = add i64 %round, 1
  %patient = icmp slt i64 %round1, %patience
  %alone = xor i1 %all, true
  %again = and i1 %alone, %patient
  br i1 %again, label %wait, label %done
done:
  %sign = load i64, ptr %sign_at
  %kept = icmp eq i64 %sign, %begin
  %due = or i1 %all, %first
  %good = and i1 %kept, %due
  %met = zext i1 %good to i64
  %own_met = getelementptr i64, ptr %mets, i64 %begin
  store i64 %met, ptr %own_met
  %own_tiny = getelementptr double, ptr %tinies, i64 %begin
  %tiny = load double, ptr %own_tiny
  %half = fmul double %tiny, 0.5
  store double %half, ptr %own_tiny
  ret void
}
"""

# The calling thread's float control word.
CONTROL = {
    "x86_64": """
define i64 @control(i64 %new) {
  %old_at = alloca i64
  %new_at = alloca i64
  store i64 0, ptr %old_at
  call void @llvm.x86.sse.stmxcsr(ptr %old_at)
  store i64 %new, ptr %new_at
  call void @llvm.x86.sse.ldmxcsr(ptr %new_at)
  %old = load i64, ptr %old_at
  ret i64 %old
}
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
""",
    "aarch64": """
define i64 @control(i64 %new) {
  %old = call i64 @llvm.aarch64.get.fpcr()
  call void @llvm.aarch64.set.fpcr(i64 %new)
  ret i64 %old
}
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
""",
}
FLUSH_SUBNORMALS_AND_ROUND_UP = {"x86_64": 0x1F80 | 0x8040 | 0x4000, "aarch64": 1 << 24 | 1 << 22}


def native(name: str, ir: str, key: str = "") -> Code:
    return engine.load([engine.Source(f"test_threads:{key or name}", name, lambda: ir)])[0]


class Meeting:
    """A program in which `size` chunks wait for each other, so that it works out only on as many threads: besides the
    first chunk, or, if they meet at once, with it."""

    def __init__(self, size: int, patience: int = 4000000000, at_once: bool = False) -> None:
        chunks = size if at_once else size + 1
        text = MEET.replace("4000000000", str(patience))
        if at_once:
            text = text.replace("icmp eq i64 %begin, 0", "icmp eq i64 %begin, -1")
        code = native("meet", text, f"meet {patience} {at_once}")
        self.program = Program(
            [Command(CommandKind.KERNEL, code, 0, 1, 128)],
            [chunks, 0, 0, 0, 0],
            [Reloc(1, 2), Reloc(2, 3), Reloc(3, 4), Reloc(4, 5)],
            0,
        )
        self.counter, self.wanted = np.zeros(1, np.int64), np.full(1, size)
        self.met = np.zeros(chunks, np.int64)
        self.tiny = np.full(chunks, 5e-324 * 2)

    def run(self) -> bool:
        """Whether all met all."""
        self.counter[:] = self.met[:] = 0
        arrays = self.counter, self.wanted, self.met, self.tiny
        with threads.patience(1 << 60):  # a run that pauses sends all threads away, and some have not met then
            self.program.run([0, *(array.ctypes.data for array in arrays)])
        return bool(self.met.all())


def visits(extent: int, grain: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each index was visited, and the ends of chunks by their beginnings."""
    program = Program(
        [Command(CommandKind.KERNEL, native("visit", VISIT), 0, grain)], [extent, 0, 0], [Reloc(1, 2), Reloc(2, 3)], 0
    )
    counts, ends = np.zeros(max(extent, 1), np.int64), np.zeros(max(extent, 1), np.int64)
    program.run([0, counts.ctypes.data, ends.ctypes.data])
    return counts[:extent], ends[:extent]


def workers() -> list[str]:
    """The thread ids of the team."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text() == "weft-worker\n":
                found.append(task.name)
        except OSError:  # it has just ended
            pass
    return found


def task_state(worker: str) -> str:
    return Path(f"/proc/self/task/{worker}/stat").read_text().rpartition(")")[2].split()[0]


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


# ---- regions ----


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_index_is_visited_once(team: Callable[[int], None], size: int) -> None:
    team(size)
    for extent in (0, 1, 2, 7, 100, 101, 4096, 100_003):
        for grain in (0, 1, 3, 64, 60_000):
            counts, ends = visits(extent, grain)
            assert (counts == 1).all(), (extent, grain)
            begins = np.flatnonzero(ends)
            assert [0, *ends[begins]] == [*begins, extent] if extent else len(begins) == 0
            if grain and extent >= 2 * grain:
                assert (begins % grain == 0).all()
                assert len(begins) >= min(size, 2)
            else:
                assert len(begins) == min(extent, 1)


def test_chunks_are_smaller_where_little_is_left(team: Callable[[int], None]) -> None:
    """So that threads finish together. One that is kept away while it grabs a chunk takes what was its share before, so
    most runs have to be as they should."""
    team(2)
    extent = 1 << 16

    def longest_at_the_end() -> int:
        _, ends = visits(extent, 1)
        begins = np.flatnonzero(ends)
        return int(np.max((ends[begins] - begins)[begins >= extent // 4 * 3]))

    assert sorted(longest_at_the_end() for _ in range(41))[20] < extent // 64 * 7


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_threads_work_at_once_each_with_its_own_scratch(team: Callable[[int], None], size: int) -> None:
    team(size)
    meeting = Meeting(size)
    for _ in range(5):
        assert meeting.run()
    assert len(workers()) == size - 1


def test_one_thread_is_left_to_python_for_a_while(team: Callable[[int], None]) -> None:
    team(3)
    all_of_them, others = Meeting(3), Meeting(2)
    try:
        threads.leave_one(time.monotonic_ns() + 3600 * 10**9)
        assert others.run()
        assert not Meeting(3, patience=100_000).run()
        assert (visits(4096, 3)[0] == 1).all()
        threads.leave_one(time.monotonic_ns() - 1)
        assert all_of_them.run()
    finally:
        threads.leave_one(0)
    assert all_of_them.run()


def test_no_thread_is_left_beside_the_one_that_python_needs(team: Callable[[int], None]) -> None:
    team(2)
    try:
        threads.leave_one(time.monotonic_ns() + 3600 * 10**9)
        assert not Meeting(2, patience=100_000).run()
        assert (visits(4096, 3)[0] == 1).all()
    finally:
        threads.leave_one(0)
    assert Meeting(2).run()


def test_sleeping_workers_come_back(team: Callable[[int], None]) -> None:
    team(3)
    meeting = Meeting(3)
    assert meeting.run()
    for _ in range(5):
        assert eventually(lambda: all(task_state(worker) == "S" for worker in workers()))
        assert meeting.run()


def test_sleeping_workers_come_at_once_for_a_few_large_units(team: Callable[[int], None]) -> None:
    """One of two is half of the work: nobody waits until the caller has done it alone."""
    team(2)
    assert Meeting(2).run()
    meeting = Meeting(2, at_once=True)
    for _ in range(5):
        assert eventually(lambda: all(task_state(worker) == "S" for worker in workers()))
        assert meeting.run()


def test_idle_workers_use_no_processor_time(team: Callable[[int], None]) -> None:
    team(3)
    assert Meeting(3).run()
    assert eventually(lambda: all(task_state(worker) == "S" for worker in workers()))

    def spent() -> list[str]:
        return [Path(f"/proc/self/task/{worker}/schedstat").read_text() for worker in sorted(workers())]

    time.sleep(0.01)  # the account is closed after the state has changed
    before = spent()
    time.sleep(0.2)
    assert spent() == before


def test_busy_pool_keeps_nobody_waiting(team: Callable[[int], None]) -> None:
    """While one thread's region waits for us, ours has to run to its end without the pool."""
    team(2)
    meeting = Meeting(2)
    meeting.wanted[:] = 3  # the two chunks, and we
    other = threading.Thread(target=meeting.run)
    other.start()
    assert eventually(lambda: meeting.counter[0] == 2)
    counts, _ = visits(1000, 1)
    assert (counts == 1).all()
    meeting.counter[0] = 3
    other.join()
    assert meeting.met.all()


def test_many_python_threads_share_the_pool(team: Callable[[int], None]) -> None:
    team(2)
    wrong = []

    def work(me: int) -> None:
        for extent in range(me, 4000, 97):
            if not (visits(extent, 16)[0] == 1).all():
                wrong.append((me, extent))

    callers = [threading.Thread(target=work, args=(me,)) for me in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


# ---- the number of threads ----


def test_set_threads(team: Callable[[int], None]) -> None:
    team(2)
    assert threads.set_threads(3) == 2
    assert threads.get_threads() == 3
    for size in (3, 1, 4, 2):
        threads.set_threads(size)
        assert eventually(lambda: workers() == [])  # a new team comes with the next region
        assert (visits(1000, 10)[0] == 1).all()
        assert eventually(lambda: len(workers()) == size - 1)  # noqa: B023  (called at once)
    before = workers()
    threads.set_threads(2)
    assert workers() == before  # the same number: nothing happens
    threads.set_threads(1)
    assert eventually(lambda: workers() == [])


def test_set_threads_waits_for_the_region_of_another_thread(team: Callable[[int], None]) -> None:
    team(2)
    meeting = Meeting(2)
    meeting.wanted[:] = 3
    other = threading.Thread(target=meeting.run)
    other.start()
    assert eventually(lambda: meeting.counter[0] == 2)
    changer = threading.Thread(target=threads.set_threads, args=(4,))
    changer.start()
    changer.join(0.05)
    assert changer.is_alive()
    meeting.counter[0] = 3
    other.join()
    changer.join()
    assert meeting.met.all()
    assert Meeting(4).run()


@pytest.mark.parametrize("n", [0, -1, threads.MAX_THREADS + 1])
def test_impossible_number_of_threads(n: int) -> None:
    with pytest.raises(ValueError, match=rf"\[set_threads\].*got {n}"):
        threads.set_threads(n)


def scenario_lazy() -> None:
    print(threads.get_threads(), threads.config.threads)
    meeting = Meeting(3)
    assert workers() == []
    assert (visits(10, 0)[0] == 1).all()
    assert (visits(10, 6)[0] == 1).all()
    assert workers() == []  # nothing was worth a team so far
    assert meeting.run()
    assert len(workers()) == 2


def test_team_starts_with_the_first_region() -> None:
    assert run_alone("scenario_lazy", WEFT_THREADS="3").split() == ["3", "3"]


def scenario_threads_refused() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    threads.set_threads(threads.MAX_THREADS)  # stacks of 2 MiB: more than there is room for
    for _ in range(3):
        assert (visits(100_000, 10)[0] == 1).all()
    print(len(list(Path("/proc/self/task").iterdir())))
    threads.set_threads(1)
    assert eventually(lambda: workers() == [])


def test_smaller_team_when_the_system_refuses_threads() -> None:
    assert 0 <= int(run_alone("scenario_threads_refused", WEFT_THREADS="2")) < threads.MAX_THREADS - 1


# ---- fork, exit, signals ----


def exit_code_of_child(fork: Callable[[], int], body: Callable[[], bool]) -> int:
    child = fork()
    if child == 0:
        code = 1
        try:
            code = 0 if body() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def scenario_fork_with_live_team() -> None:
    meeting = Meeting(3)
    assert meeting.run()

    def child() -> bool:
        assert workers() == []
        assert meeting.run()
        assert len(workers()) == 2
        threads.set_threads(4)
        grandchild = exit_code_of_child(os.fork, Meeting(4).run)
        return Meeting(4).run() and grandchild == 0

    for fork in (os.fork, ctypes.PyDLL(None).fork):  # the second one is a fork that Python does not know of
        assert exit_code_of_child(fork, child) == 0
        assert meeting.run()


def test_fork_with_a_live_team() -> None:
    run_alone("scenario_fork_with_live_team", WEFT_THREADS="3")


def scenario_fork_in_the_middle_of_a_region() -> None:
    meeting, own = Meeting(2), Meeting(2)
    meeting.wanted[:] = 3
    other = threading.Thread(target=meeting.run)
    other.start()
    assert eventually(lambda: meeting.counter[0] == 2)
    for fork in (os.fork, ctypes.PyDLL(None).fork):
        assert exit_code_of_child(fork, own.run) == 0
    meeting.counter[0] = 3
    other.join()
    assert meeting.met.all()
    assert own.run()


def test_fork_while_another_thread_uses_the_team() -> None:
    run_alone("scenario_fork_in_the_middle_of_a_region", WEFT_THREADS="2")


def scenario_exit_at_once() -> None:
    assert Meeting(4).run()
    print("ran")  # and ends while the workers still spin


def test_process_ends_cleanly_with_awake_workers() -> None:
    for _ in range(3):
        assert run_alone("scenario_exit_at_once", WEFT_THREADS="4") == "ran\n"


def test_workers_leave_signals_to_python(team: Callable[[int], None]) -> None:
    team(2)
    assert Meeting(2).run()
    for line in Path(f"/proc/self/task/{workers()[0]}/status").read_text().splitlines():
        if line.startswith("SigBlk:"):
            blocked = int(line.split()[1], 16)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        theirs = number in {signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}
        theirs |= number == 34  # musl's; Python thinks that it is anybody's
        assert bool(blocked >> (number - 1) & 1) != theirs, number


def scenario_interrupts() -> None:
    """Ctrl-C again and again, at whatever point it comes."""
    meeting = Meeting(2)
    assert meeting.run()
    caught = 0
    for delay in np.linspace(0.0005, 0.004, 40):
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            while True:
                meeting.run()
        except KeyboardInterrupt:
            caught += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert meeting.run()
        assert (visits(1000, 1)[0] == 1).all()
    assert caught == 40


def test_interrupts_break_nothing() -> None:
    code = (
        "import runpy, signal;"
        "signal.signal(signal.SIGALRM, signal.default_int_handler);"
        f"runpy.run_path({__file__!r})['scenario_interrupts']()"
    )
    environment = {**os.environ, "PYTHONPATH": str(processes.REPOSITORY), "WEFT_THREADS": "2"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


# ---- float control ----


def test_workers_use_default_float_control(team: Callable[[int], None]) -> None:
    """Threads inherit the control word of the one that starts them, here one that flushes subnormals and rounds up."""
    machine = platform.machine()
    code = native("control", CONTROL[machine])
    control = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address)
    team(3)
    meeting = Meeting(3)
    before = control(FLUSH_SUBNORMALS_AND_ROUND_UP[machine])
    try:
        met = meeting.run()  # starts the team
    finally:
        after = control(before)
    assert after == FLUSH_SUBNORMALS_AND_ROUND_UP[machine]  # programs restore what they found
    assert met
    assert (meeting.tiny == 5e-324).all()


# ---- other machines ----


@pytest.mark.parametrize("machine", sorted(threads.MACHINES))
def test_code_for_every_machine(machine: str) -> None:
    """LLVM makes an object of it that asks nothing of the process, also for the plainest processor of the kind."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu").create_target_machine(codemodel="large")
    with llvm.create_context() as context, llvm.parse_assembly(threads_code.native_code(machine), context) as module:
        module.triple, module.data_layout = target.triple, str(target.target_data)
        module.verify()
        defined, undefined = engine.global_symbols(target.emit_object(module))
    assert defined == {"weft_threads"}
    assert undefined == set()


def test_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    with pytest.raises(CompileError, match="not for s390x"):
        threads._Pool(1)
