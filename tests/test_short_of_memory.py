"""Where the system has no more memory, or no more maps, for a process: MemoryError, and everything goes on."""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.processes import run_alone
from weft import room
from weft.config import config
from weft.llvm import engine
from weft.llvm.code import CodeMemory

LIMITS = (0, 9, 18, 40, 100, 280)
"""Megabytes beyond what a process has: from nothing at all to enough for anything here."""
MORE_LIMITS = tuple(range(1, 40)) + tuple(range(40, 300, 20))
START = np.linspace(0.1, 0.9, 64, dtype=np.float32).reshape(8, 8)


def work(x: Any) -> dict[str, Callable[[], Any]]:
    """Programs that are new to a process, of short kernels and long ones."""

    def chain(x: Any) -> Any:
        for _ in range(6):
            x = mx.power(x, x) + mx.exp(x)
        return x

    return {
        "map": lambda: mx.sin(x) + 1,
        "several": lambda: mx.softmax(mx.sort(x @ x)) + mx.cumsum(x, axis=0),
        "long": lambda: chain(x.astype(mx.complex64)),
        "loop": lambda: mx.fori_loop(0, 3, lambda i, c: mx.sin(c) @ x, x),
    }


def by_limit() -> None:
    """A child for each limit: what it could compute, and whether what it had before is still there."""
    x = mx.array(START)
    known = mx.tanh(x)
    expected = np.array(known)
    for extra in map(int, os.environ["LIMITS"].split()):
        pid = os.fork()
        if pid == 0:
            with open("/proc/self/statm") as sizes:
                now = int(sizes.read().split()[0]) * mmap.PAGESIZE
            resource.setrlimit(resource.RLIMIT_AS, (now + (extra << 20), resource.RLIM_INFINITY))
            done = 0
            for make in work(x).values():
                try:
                    mx.eval(make())
                    done += 1
                except MemoryError:
                    pass
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            np.testing.assert_array_equal(np.array(known), expected)
            mx.eval(work(x)["several"]())  # nothing has suffered
            os._exit(done)
        print(extra, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def statuses(limits: tuple[int, ...], threads: str) -> dict[int, int]:
    settings = {
        "WEFT_THREADS": threads,
        "WEFT_LLVM_LEVEL": "0",
        "WEFT_CACHE_DIR": "",
        "LIMITS": " ".join(map(str, limits)),
    }
    found = run_alone(__file__, "by_limit", **settings)
    return {int(extra): int(code) for extra, code in (line.split() for line in found.splitlines())}


def test_every_limit_of_memory_gives_results_or_memory_errors() -> None:
    codes = statuses(LIMITS, threads="2")
    assert set(codes) == set(LIMITS)
    assert all(0 <= code <= 4 for code in codes.values()), codes  # a signal is negative
    assert codes[0] == 0, "or the limit was none"
    assert codes[LIMITS[-1]] == 4, "or there was never enough"


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "4"])
def test_really_every_limit(threads: str) -> None:
    for limits in (MORE_LIMITS[::2], MORE_LIMITS[1::2]):
        codes = statuses(limits, threads)
        assert all(0 <= code <= 4 for code in codes.values()), codes


def without_maps() -> None:
    """Another library uses up all maps; Weft says so, and works again when there are some."""
    x = mx.array(START)
    known = mx.tanh(x)
    expected = np.array(known)
    base = room.map_memory(1 << 30)
    at = 0
    try:
        while True:
            room.protect(base + at, room.PAGE, mmap.PROT_READ)
            at += 2 * room.PAGE
    except OSError:
        pass
    errors = 0
    for make in work(x).values():
        try:
            mx.eval(make())
        except MemoryError:
            errors += 1
    np.testing.assert_array_equal(np.array(known), expected)
    room.unmap_memory(base, 1 << 30)
    for make in work(x).values():
        mx.eval(make())
    print(errors)


def test_maps_that_others_have_used_up() -> None:
    with open("/proc/sys/vm/max_map_count") as setting:
        if int(setting.read()) > 1 << 18:
            pytest.skip("this system allows so many maps that using them up takes long")
    assert run_alone(__file__, "without_maps", WEFT_THREADS="2", WEFT_LLVM_LEVEL="0", WEFT_CACHE_DIR="") == "4\n"


def test_room_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    room.ensure(1 << 20, "anything")
    with pytest.raises(MemoryError, match=r"compiling kernel k may take \d+ MB and 64 memory maps.*ulimit -v"):
        room.ensure(1 << 60, "compiling kernel k")
    monkeypatch.setattr(room, "has_maps", lambda: False)
    with pytest.raises(MemoryError, match=r"max_map_count"):
        room.ensure(1 << 20, "anything")
    monkeypatch.setattr(room, "has_bytes", lambda nbytes: False)
    with pytest.raises(MemoryError, match="too little memory left for planning"):
        room.ensure_for_python("planning")


def test_looking_for_maps_leaves_none() -> None:
    room.has_maps()

    def count() -> int:
        with open("/proc/self/maps") as maps:
            return sum(1 for _ in maps)

    before = count()
    for _ in range(50):
        assert room.has_maps()
        room.ensure(1 << 24, "anything")
    assert count() <= before + 2


def test_several_compile_at_once_only_where_there_is_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "threads", 4)
    texts = ["define void @k() { ret void }"] * 6
    assert engine._helpers(texts) == 3
    assert engine._helpers(texts[:1]) == 0
    monkeypatch.setattr(room, "has_bytes", lambda nbytes: nbytes < 200 << 20)
    assert engine._helpers(texts) == 0


def test_a_thread_that_cannot_start_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python gets no memory for a thread's first frame, it starts and is gone."""
    started: list[Any] = []

    def start(run: Callable[[], None], args: tuple[()]) -> int:
        started.append(run)
        return 1  # no thread has this number

    monkeypatch.setattr(engine._thread, "start_new_thread", start)
    with pytest.raises(MemoryError, match="no memory for a thread"):
        engine._undisturbed(lambda: 1)
    assert started


def test_no_thread_because_of_memory_or_for_other_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Callable[[], None], args: tuple[()]) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(engine._thread, "start_new_thread", refuse)
    assert engine._undisturbed(threading.current_thread) is threading.main_thread()
    monkeypatch.setattr(room, "has_bytes", lambda nbytes: nbytes <= 8 << 20)
    with pytest.raises(MemoryError, match="no memory for a thread"):
        engine._undisturbed(lambda: 1)


def test_memory_for_code_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = CodeMemory()

    def none(nbytes: int) -> int:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(room, "map_memory", none)
        with pytest.raises(MemoryError, match=r"refused \d+ bytes for machine code: Cannot allocate memory"):
            memory.place(10, 0, lambda base, writable: (b"x", base))
    assert memory.place(10, 0, lambda base, writable: (b"x", base)).address
    assert sys.getrefcount(memory) >= 1
