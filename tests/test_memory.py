"""Memory: blocks, their reuse, the counters and the limits. What concerns a whole process runs in one of its own."""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import os
import random
import resource
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import processes
from weft.runtime import buffer
from weft.runtime.buffer import allocate, block_size

MIB = 1 << 20
run_alone = functools.partial(processes.run_alone, __file__)


@pytest.fixture(autouse=True)
def clean_pool() -> Iterator[None]:
    """An empty cache at the start, and the limits as they were at the end."""
    gc.collect()
    buffer.clear_cache()
    buffer.reset_peak_memory()
    limit, cache_limit = buffer.get_memory_limit(), buffer.set_cache_limit(1 << 30)
    yield
    buffer.set_memory_limit(limit)
    buffer.set_cache_limit(cache_limit)


def mapped(address: int) -> bool:
    """Whether the process has memory at this address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return True
    return False


# ---- blocks ----


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, 1024, 1025, 100_000, 2 * MIB - 1, 2 * MIB, 3 * MIB + 7])
def test_block_is_aligned_and_all_of_it_usable(nbytes: int) -> None:
    storage = allocate(nbytes)
    assert storage.address != 0
    assert storage.address % buffer.ALIGNMENT == 0
    assert storage.nbytes == nbytes <= storage.capacity
    assert not storage.foreign
    assert storage.owner is None
    ctypes.memset(storage.address, 0xA5, storage.capacity)
    assert ctypes.string_at(storage.address, nbytes) == b"\xa5" * nbytes


def test_large_block_starts_on_a_huge_page() -> None:
    assert allocate(5 * MIB).address % (2 * MIB) == 0


def flags_at(address: int) -> list[str]:
    """What the system says of the mapping that holds this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if "-" in name and not name.endswith(":"):
            start, end = (int(part, 16) for part in name.split("-"))
            inside = start <= address < end
        elif inside and name == "VmFlags:":
            return values
    return []


@pytest.mark.parametrize("nbytes", [64 << 10, 150_000, MIB, 2 * MIB - 1, 5 * MIB])
def test_matrices_of_all_sizes_lie_where_there_may_be_huge_pages(nbytes: int) -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this system has no huge pages")
    storage = allocate(nbytes)
    ctypes.memset(storage.address, 0xA5, storage.capacity)
    assert "hg" in flags_at(storage.address)
    assert "hg" in flags_at(storage.address + storage.capacity - 1)


def test_blocks_of_medium_sizes_have_no_byte_in_common() -> None:
    chosen = random.Random(0)
    sizes = [chosen.randrange(60_000, 2 * MIB) for _ in range(100)]
    blocks = [allocate(n) for n in sizes]
    del blocks[::3]
    buffer.clear_cache()
    blocks += [allocate(n) for n in sizes]
    places = sorted((x.address, x.address + x.capacity) for x in blocks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


def test_empty_blocks_have_different_addresses() -> None:
    first, second = allocate(0), allocate(0)
    assert first.address != second.address


def test_negative_size() -> None:
    with pytest.raises(ValueError, match=r"\[allocate\].*negative; got -1"):
        allocate(-1)


@given(st.integers(0, 1 << 45))
def test_waste_is_bounded(nbytes: int) -> None:
    size = block_size(nbytes)
    assert max(nbytes, 1) <= size <= max(nbytes + 64, nbytes + nbytes // 8)
    assert size % (4096 if size >= 2 * MIB else 64) == 0
    assert block_size(size) == size  # a class serves its own size
    assert block_size(nbytes + 1) >= size


def test_dropped_block_serves_the_next_taker() -> None:
    address = allocate(1000).address
    assert allocate(1020).address == address
    assert allocate(200).address != address


def test_last_dropped_block_comes_first() -> None:
    first, second = allocate(640), allocate(640)
    hot = second.address
    del first, second
    assert allocate(640).address == hot


def test_storage_can_be_weakly_referenced() -> None:
    storage = allocate(10)
    reference = weakref.ref(storage)
    assert reference() is storage
    del storage
    assert reference() is None


# ---- foreign memory ----


def test_foreign_memory_keeps_its_owner_and_never_enters_the_pool() -> None:
    class Owner(np.ndarray):
        pass

    owner = np.zeros(1000).view(Owner)
    alive = weakref.ref(owner)
    before = buffer.get_active_memory(), buffer.get_cache_memory()
    storage = buffer.foreign(owner, owner.ctypes.data, owner.nbytes)
    assert storage.foreign
    assert isinstance(storage, buffer.Storage)
    assert (storage.address, storage.nbytes) == (owner.ctypes.data, 8000)
    del owner
    assert storage.owner is alive() is not None
    assert (buffer.get_active_memory(), buffer.get_cache_memory()) == before
    del storage
    assert alive() is None
    assert (buffer.get_active_memory(), buffer.get_cache_memory()) == before


# ---- counters ----


def test_counters_follow_allocations() -> None:
    start = buffer.get_active_memory()
    first = allocate(1 << 20)
    assert buffer.get_active_memory() - start == first.capacity
    second = allocate(1 << 16)
    both = first.capacity + second.capacity
    assert buffer.get_active_memory() - start == both
    assert buffer.get_cache_memory() == 0
    del first, second
    assert buffer.get_active_memory() == start
    assert buffer.get_cache_memory() == both
    assert buffer.get_peak_memory() == start + both
    buffer.reset_peak_memory()
    assert buffer.get_peak_memory() == 0
    third = allocate(1 << 16)
    assert buffer.get_peak_memory() == start + third.capacity


def test_clear_cache_gives_memory_back_to_the_system() -> None:
    storage, small = allocate(64 * MIB), allocate(100)
    address = storage.address
    del storage, small
    assert mapped(address)
    buffer.clear_cache()
    assert buffer.get_cache_memory() == 0
    assert not mapped(address)


def test_clear_cache_gives_back_the_memory_of_blocks_that_share_pages() -> None:
    kept, storage = allocate(MIB), allocate(MIB)
    address = storage.address
    for one in kept, storage:
        ctypes.memset(one.address, 0xA5, one.capacity)
    del one, storage
    buffer.clear_cache()
    assert buffer.get_cache_memory() == 0
    assert ctypes.string_at(address, MIB) == bytes(MIB)  # the system has nothing but zeros there
    assert ctypes.string_at(kept.address, MIB) == b"\xa5" * MIB
    assert allocate(MIB).address == address


# ---- limits ----


def test_setters_return_the_previous_limit() -> None:
    old = buffer.set_memory_limit(10)
    assert buffer.get_memory_limit() == 10
    assert buffer.set_memory_limit(old) == 10
    assert buffer.get_memory_limit() == old
    old = buffer.set_cache_limit(11)
    assert buffer.set_cache_limit(old) == 11
    old = buffer.set_wired_limit(12)
    assert buffer.set_wired_limit(old) == 12


@pytest.mark.parametrize("setter", [buffer.set_memory_limit, buffer.set_cache_limit, buffer.set_wired_limit])
def test_negative_limit(setter) -> None:  # type: ignore[no-untyped-def]
    """The class of error is MLX's."""
    with pytest.raises(TypeError, match=f"{setter.__name__}.*got -1"):
        setter(-1)


@pytest.mark.parametrize("setter", [buffer.set_memory_limit, buffer.set_cache_limit, buffer.set_wired_limit])
def test_limits_beyond_all_memory(setter) -> None:  # type: ignore[no-untyped-def]
    """They limit nothing, and what is freed afterwards is counted still."""
    before = setter(1 << 64)
    try:
        active = buffer.get_active_memory()
        kept = allocate(1000)
        del kept
        assert buffer.get_active_memory() == active
    finally:
        setter(before)


def test_no_cache_with_a_cache_limit_of_zero() -> None:
    kept = allocate(1000)
    del kept
    buffer.set_cache_limit(0)
    assert buffer.get_cache_memory() == 0
    storage, small = allocate(4 * MIB), allocate(1000)
    address = storage.address
    del storage, small
    assert buffer.get_cache_memory() == 0
    assert not mapped(address)


def test_full_cache_drops_the_fullest_class_first() -> None:
    buffer.set_cache_limit(40 * MIB)
    stale = [allocate(4 * MIB) for _ in range(9)]
    del stale
    assert buffer.get_cache_memory() == 36 * MIB
    current = allocate(7 * MIB)
    address = current.address
    del current  # 43 MiB idle now
    assert buffer.get_cache_memory() <= 40 * MIB
    assert allocate(7 * MIB).address == address


def test_exceeding_the_limit_raises_and_changes_nothing_else() -> None:
    kept = allocate(5 * MIB)
    ctypes.memset(kept.address, 7, kept.nbytes)
    active, peak = buffer.get_active_memory(), buffer.get_peak_memory()
    buffer.set_memory_limit(active + 8 * MIB)
    for _ in range(3):
        with pytest.raises(MemoryError) as error:
            allocate(10 * MIB)
        message = str(error.value)
        for part in ("10.00 MiB", buffer._show(active), buffer._show(active + 8 * MIB), "set_memory_limit()"):
            assert part in message
        assert (buffer.get_active_memory(), buffer.get_peak_memory()) == (active, peak)
    assert ctypes.string_at(kept.address, kept.nbytes) == b"\x07" * kept.nbytes
    exactly = allocate(8 * MIB)
    assert buffer.get_active_memory() == active + exactly.capacity == buffer.get_memory_limit()
    with pytest.raises(MemoryError):
        allocate(0)


def test_cache_makes_room_before_the_limit_is_felt() -> None:
    idle = allocate(20 * MIB)
    address = idle.address
    del idle
    buffer.set_memory_limit(buffer.get_active_memory() + 24 * MIB)
    storage = allocate(16 * MIB)
    assert storage.capacity == 16 * MIB
    assert buffer.get_active_memory() + buffer.get_cache_memory() <= buffer.get_memory_limit()
    assert not mapped(address) or storage.address <= address < storage.address + storage.capacity


def test_limit_below_what_is_active_only_stops_new_allocations() -> None:
    kept = allocate(MIB)
    buffer.set_memory_limit(1)
    with pytest.raises(MemoryError):
        allocate(1)
    assert mapped(kept.address)
    buffer.set_memory_limit(buffer.get_active_memory() + MIB)
    allocate(10)


def test_unreachable_cycles_are_collected_before_giving_up() -> None:
    gc.disable()
    try:
        cycle: list[object] = [allocate(8 * MIB)]
        cycle.append(cycle)
        del cycle
        buffer.set_memory_limit(buffer.get_active_memory() + MIB)
        assert allocate(4 * MIB).nbytes == 4 * MIB
    finally:
        gc.enable()


def test_refusal_of_the_system_is_a_memory_error() -> None:
    buffer.set_memory_limit(1 << 62)
    idle = allocate(4 * MIB)
    del idle
    active, peak = buffer.get_active_memory(), buffer.get_peak_memory()
    with pytest.raises(MemoryError, match="the operating system refused"):
        allocate(1 << 60)
    assert (buffer.get_active_memory(), buffer.get_peak_memory()) == (active, peak)
    assert buffer.get_cache_memory() == 0
    assert allocate(100).capacity == 128


def scenario_refusal_empties_the_cache() -> None:
    big = allocate(512 * MIB)
    del big
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 128 * MIB, used + 128 * MIB))
    storage = allocate(500 * MIB)  # another class; fits only where the idle block lies
    print(storage.capacity // MIB, buffer.get_cache_memory())


def test_refusal_of_the_system_empties_the_cache_first() -> None:
    assert run_alone("scenario_refusal_empties_the_cache", WEFT_MEMORY_LIMIT="4G").split() == ["512", "0"]


def scenario_little_address_space() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 8 * MIB, used + 8 * MIB))
    blocks = [allocate(MIB) for _ in range(3)]
    print(len({x.address for x in blocks}))


def test_blocks_are_found_one_by_one_where_address_space_is_short() -> None:
    assert run_alone("scenario_little_address_space").split() == ["3"]


def scenario_print_limits() -> None:
    print(buffer.get_memory_limit(), buffer.default_limit(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def test_default_limit_leaves_room_on_the_machine() -> None:
    limit, default, physical = map(int, run_alone("scenario_print_limits").split())
    assert 0 < limit == default < physical


def test_limit_from_the_environment() -> None:
    assert run_alone("scenario_print_limits", WEFT_MEMORY_LIMIT="100M").split()[0] == str(100 * MIB)


def test_limits_of_control_groups(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert list(buffer.cgroup_limits(tmp_path)) == []
    write("proc/self/cgroup", "4:cpu,memory:/jobs/one\n0::/user/two\n2:pids:/\n")
    write("sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "9223372036854771712\n")
    write("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "5000\n")
    write("sys/fs/cgroup/user/two/memory.max", "max\n")
    write("sys/fs/cgroup/memory.max", "7000\n")
    write("sys/memory.max", "1\n")  # not part of the tree
    assert list(buffer.cgroup_limits(tmp_path)) == [9223372036854771712, 5000, 7000]


# ---- threads, finalizers, fork ----


def test_threads_never_share_a_block() -> None:
    """Each thread signs its blocks at both ends and looks again before it drops them."""
    start = buffer.get_active_memory()
    wrong: list[str] = []

    def work(me: int) -> None:
        chance = random.Random(me)
        held: list[tuple[buffer.Storage, int]] = []
        for step in range(3000):
            storage, sign = allocate(chance.choice((16, 100, 1000, 5000))), me << 32 | step
            ends = storage.address, storage.address + storage.capacity - 8
            for end in ends:
                ctypes.c_int64.from_address(end).value = sign
            held.append((storage, sign))
            if len(held) > 20:
                old, sign = held.pop(chance.randrange(20))
                for end in (old.address, old.address + old.capacity - 8):
                    if ctypes.c_int64.from_address(end).value != sign:
                        wrong.append(f"thread {me}, step {step}")

    processes.in_threads(6, work)
    assert wrong == []
    assert buffer.get_active_memory() == start


def test_finalizers_may_allocate() -> None:
    """The collector runs in the middle of allocations, and what it finds there allocates and drops blocks itself."""
    start = buffer.get_active_memory()
    finalized = 0

    class Node:
        def __init__(self) -> None:
            self.me = self
            self.storage = allocate(300)

        def __del__(self) -> None:
            nonlocal finalized
            finalized += 1
            allocate(300)
            allocate(70_000)

    thresholds = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:
        for _ in range(500):
            Node()
            allocate(300)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert finalized == 500
    assert buffer.get_active_memory() == start


def scenario_fork() -> None:
    kept = allocate(3 * MIB)
    ctypes.memset(kept.address, 1, kept.nbytes)
    idle = allocate(1000)
    del idle
    child = os.fork()
    if child == 0:
        ctypes.memset(kept.address, 2, kept.nbytes)
        others = [allocate(size) for size in (1000, 100_000, 8 * MIB)]
        for other in others:
            ctypes.memset(other.address, 3, other.nbytes)
        fine = ctypes.string_at(kept.address, kept.nbytes) == b"\x02" * kept.nbytes
        del kept, others, other
        buffer.clear_cache()
        os._exit(0 if fine and buffer.get_active_memory() == buffer.get_cache_memory() == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ctypes.string_at(kept.address, kept.nbytes) == b"\x01" * kept.nbytes


def test_forked_child_goes_on_using_memory() -> None:
    run_alone("scenario_fork")
