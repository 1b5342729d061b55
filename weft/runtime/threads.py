"""The thread pool: one small team of native threads for the whole process, asleep when there is nothing to do.

The interpreter of programs (`program.py`) hands in kernels, whose outer dimension is cut into chunks for the team to
grab; nobody else comes here, except to ask for or change the number of threads. All of it is native code
(`threads_code.py`), because a region has to cost less than a microsecond. How it works:

- A region is opened and closed by its caller on one atomic word, the *gate*: its upper half counts openings and
  closings (odd: open), its lower half the workers inside. Only an open gate can be entered, and the caller waits
  only for workers that did enter. So a worker that the system keeps away costs nothing: the others do its chunks.
- Idle workers spin on the gate for a moment and then sleep in a futex on its upper half. A woken one wakes two others.
  Who finds nothing left of a region stays awake until it is closed, if that does not take too long.
- The pool serves one region at a time. A caller that finds it busy does its kernel alone; nobody waits for the pool.
- The state lies in memory that a forked child finds zeroed, which is the state of a pool that has not started yet.
- A region without a function dismisses the team: that is how the number of threads changes.
- What a thread grabs takes a millisecond at most, if a grain does, and is less the less is left. Between two of its
  pieces the caller looks at the clock. When it is time to look for signals it lets nobody grab any more, and tells how
  far the region came.
"""

from __future__ import annotations

import atexit
import ctypes
import operator
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from weft.config import config
from weft.errors import CompileError
from weft.lazy import lazy
from weft.llvm import engine

if TYPE_CHECKING:
    from weft.runtime import threads_code
else:
    threads_code = lazy("weft.runtime.threads_code")  # written when its object is not in the cache

MAX_THREADS: Final = 1024
CHUNKS_PER_THREAD: Final = 4  # more even out threads of unequal speed, but each costs 0.05 µs
PARTS_PER_THREAD: Final = 2  # of what is left; a chunk is no larger than one, so that threads finish together
SPIN_NS: Final = 200_000  # how long an idle worker stays awake: the time between two calls of a compiled function
LINGER_NS: Final = 5_000_000  # the same while the others still work: the next region may follow at once
WAKE_NS: Final = 40_000  # work that is worth waking a worker for: that takes the caller 10 µs, the worker up to 50 µs
STACK_BYTES: Final = 2 << 20

# The context is a table of 64-bit words through which native code reaches everything; it survives a fork. Functions
# that are not ours go by their own names: those of libc, and of CPython's stable ABI for the interpreter of programs.
_LIBC_FUNCTIONS: Final = (
    "syscall", "clock_gettime", "pthread_create", "pthread_join", "pthread_attr_init", "pthread_attr_setstacksize",
    "pthread_attr_destroy", "pthread_self",
)  # fmt: skip
_PYTHON_FUNCTIONS: Final = (
    "PyLong_AsVoidPtr", "PyLong_FromLongLong", "PyErr_Occurred", "PyErr_SetInterrupt", "PyOS_InterruptOccurred",
    "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip
_OWN_FUNCTIONS: Final = ("serial", "parallel", "due", "look")
CONTEXT: Final = {
    name: word
    for word, name in enumerate(
        (
            "threads",
            "state",
            "main",  # Python's main thread, which alone gets signals
            "patience",  # for how many ticks of the clock a run goes on before it lets Python look for signals
            "left",  # until when, in nanoseconds, a processor is left to Python, which goes on beside a run; or 0
            *_OWN_FUNCTIONS,
            *_LIBC_FUNCTIONS,
            *_PYTHON_FUNCTIONS,
        )
    )
}

RUN: Final = {
    name: word
    for word, name in enumerate(
        (
            "failed",  # the command that ended the program
            "number", "position",  # the command at which a paused run goes on, and how much of it is done
            "commit",  # the first command that overwrites something of the caller's
            "deadline",  # when it is time to look for signals, on the main thread
            "stop",  # 1: kernels stop as soon as they can, also in the middle of a unit
            "torn",  # commands before this one do not stop so, because one of them has already: no endless repetition
            "deaf",  # 1: this command must not stop so
            "look",  # i1 look(ptr run), which kernels call in the middle of long units: whether to stop
            "context", "thread",  # for `look`: the context, and CPython's state of the thread that runs it
            "missed",  # nanoseconds of work that sleeping workers were not woken for, one piece alone being too short
        )
    )
}  # fmt: skip
"""The record of a run of a program: what the interpreter, kernels and Python tell each other."""
RUN_BYTES: Final = 128

# The state of the pool, also in words. What different threads write at the same time is 128 bytes apart: some
# processors fetch cache lines in pairs.
STATE: Final = {
    "busy": 0,  # 1 while a caller owns the pool
    "gate": 16,
    "sleepers": 32,  # workers that are in the futex or about to be
    "waiting": 33,  # 1 while the caller sleeps until the last worker has left
    "next": 48,  # the first index that nobody has grabbed yet
    "fn": 64, "args": 65, "extent": 66, "chunk": 67, "scratch": 68, "stride": 69, "slots": 70, "run": 71,  # the region
    "grain": 72, "share": 73,  # what chunks are multiples of, and for how much that is left they are one more
    "assembled": 80, "workers": 81,  # the team: whether it was tried to start it, and how many came
    "first_slot": 96,  # one line of 64 bytes per thread: its pthread_t, its index, the context
}  # fmt: skip
_STATE_BYTES: Final = 8 * (STATE["first_slot"] + 8 * MAX_THREADS)

_MADV_WIPEONFORK: Final = 18
FAR_AWAY: Final = 1 << 62  # an index that no kernel has, a time that never comes


class Machine(NamedTuple):
    """What native code has to know of a kind of processor, and of Linux on it."""

    futex: int
    sigprocmask: int
    prctl: int
    sched_yield: int
    clock: str
    """The intrinsic that counts ticks."""
    patience: int
    """Ticks of that: some hundredths of a second."""
    pause: tuple[str, ...]
    """An intrinsic, with its arguments, for the rounds of a loop that waits."""
    has_fpcr: bool
    """Rounding is set as on AArch64, and not by the MXCSR register of x86."""


MACHINES: Final = {
    "x86_64": Machine(202, 14, 157, 24, "readcyclecounter", 1 << 26, ("llvm.x86.sse2.pause",), has_fpcr=False),
    # A yield is over at once on most of the others, where counting cycles is not for user programs.
    "aarch64": Machine(98, 135, 167, 124, "readsteadycounter", 1 << 20, ("llvm.aarch64.isb", "i32 15"), has_fpcr=True),
}
DEFAULT_MXCSR: Final = 0x1F80
"""Round to nearest, keep subnormals, mask all exceptions."""
PIECE: Final = 32  # a piece of a kernel should take this part of the patience
GROWTH: Final = 8  # times which the next piece is larger, if the last one took that much too little time

# Workers leave signals to Python's threads, but not those that the faulting thread itself must get (SIGILL, SIGTRAP,
# SIGABRT, SIGBUS, SIGFPE, SIGSEGV) nor the three that C libraries keep for themselves (32 to 34).
BLOCKED_SIGNALS: Final = ~sum(1 << (number - 1) for number in (4, 5, 6, 7, 8, 11, 32, 33, 34))


class _Pool:
    """Owns the context and the state, which live as long as the process."""

    def __init__(self, threads: int) -> None:
        libc = ctypes.CDLL(None)
        self.state = _anonymous_memory(libc, _STATE_BYTES)
        self.context = (ctypes.c_int64 * len(CONTEXT))()
        table = (ctypes.c_int64 * 1)()
        machine = platform.machine()
        if machine not in MACHINES:
            raise CompileError(f"Weft makes machine code for {' and '.join(MACHINES)}, not for {machine}.")
        source = engine.Source(f"runtime:threads:{machine}", "weft_threads", lambda: threads_code.native_code(machine))
        bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.load_for_good(source))
        bind(ctypes.addressof(self.context), ctypes.addressof(table))
        self.context[CONTEXT["threads"]] = min(threads, MAX_THREADS)
        self.context[CONTEXT["state"]] = self.state
        self.context[CONTEXT["main"]] = threading.main_thread().ident or 0
        self.context[CONTEXT["patience"]] = MACHINES[machine].patience
        for library, names in ((libc, _LIBC_FUNCTIONS), (ctypes.pythonapi, _PYTHON_FUNCTIONS)):
            for name in names:
                self.context[CONTEXT[name]] = ctypes.cast(library[name], ctypes.c_void_p).value or 0
        self.address = ctypes.addressof(self.context)
        self._resize = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(table[0])

    @property
    def threads(self) -> int:
        return self.context[CONTEXT["threads"]]

    def resize(self, threads: int) -> None:
        self._resize(self.address, threads)

    def reset(self) -> None:
        """A forked child has none of the workers, whatever its copy of the state says; what forked is its main
        thread."""
        ctypes.memset(self.state, 0, _STATE_BYTES)
        self.context[CONTEXT["main"]] = threading.get_ident()
        self.context[CONTEXT["left"]] = 0


def _anonymous_memory(libc: ctypes.CDLL, nbytes: int) -> int:
    """Zeroed memory that is zero again in a forked child, even one that Python does not know of."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, nbytes, 3, 0x22, -1, 0)  # readable and writable; private and anonymous
    if address is None or address == 2**64 - 1:
        raise MemoryError(f"[threads] the operating system refused {nbytes} bytes for the state of the thread pool.")
    libc.madvise(address, nbytes, _MADV_WIPEONFORK)
    return address


_lock = threading.Lock()
_pool: _Pool | None = None


def context() -> int:
    """The address of the context. The first call loads native code; threads start with the first parallel region."""
    return pool().address


def pool() -> _Pool:
    """The pool of this process."""
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = _Pool(get_threads())
    return _pool


def leave_one(until: int) -> None:
    """Let kernels do without one of the threads until then (`time.monotonic_ns`), or from now on with all (0): Python
    goes on beside them, and needs a processor. Three threads that take turns on two would wait for each other."""
    pool().context[CONTEXT["left"]] = until


@contextmanager
def patience(ticks: int) -> Iterator[None]:
    """Let runs pause every so many ticks of the clock for a while: tests have less patience than people."""
    context, at = pool().context, CONTEXT["patience"]
    before, context[at] = context[at], ticks
    try:
        yield
    finally:
        context[at] = before


def get_threads() -> int:
    """The number of threads that may work on one kernel, its caller included."""
    return config.threads if _pool is None else _pool.threads


def set_threads(n: int) -> int:
    """Let kernels run on `n` threads from now on (1: no pool at all); the previous number is returned.

    Waits for a kernel that other threads are running at the moment.
    """
    n = operator.index(n)
    if not 1 <= n <= MAX_THREADS:
        raise ValueError(f"[set_threads] the number of threads must be between 1 and {MAX_THREADS}; got {n}.")
    previous = get_threads()
    config.threads = n
    if _pool is not None and n != previous:
        _pool.resize(n)
    return previous


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    if _pool is not None:
        _pool.reset()


def _at_exit() -> None:
    # A worker that still spins when the interpreter takes its memory apart would run code that is gone.
    if _pool is not None:
        _pool.resize(1)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
