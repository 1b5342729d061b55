"""The object store on disk: what a process finds there whatever others do, are killed at, or have done to the files."""

from __future__ import annotations

import inspect
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.llvm import cache
from weft.llvm.cache import BLOCK, ObjectCache

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> ObjectCache:
    return ObjectCache(str(tmp_path / "store"), LIMIT)


def content_of(key: str) -> bytes:
    """Content that tells whose it is; sizes differ from key to key."""
    return f"<{key}>".encode() * (1 + sum(key.encode()) % 500)


def entry_file(store: ObjectCache, key: str) -> Path:
    return Path(store.directory) / cache._entry_name(key)


def run_python(code: str, *args: str) -> subprocess.Popen[str]:
    """Start `code`, which finds `store` (in the directory and with the limit that the first two arguments say)."""
    prelude = (
        "import os, sys\nfrom weft.llvm.cache import ObjectCache\nstore = ObjectCache(sys.argv[1], int(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", prelude + inspect.getsource(content_of) + code, *args]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


# ---- keeping and finding ----


@pytest.mark.parametrize("content", [b"", b"\0", b"object code" * 1000, bytes(range(256)) * 4096], ids=len)
def test_what_is_put_is_got(store: ObjectCache, content: bytes) -> None:
    assert store.get("key") is None
    store.put("key", content)
    assert store.get("key") == content
    assert store.get("other key") is None


def test_the_last_put_wins(store: ObjectCache) -> None:
    store.put("key", b"one")
    store.put("key", b"two")
    assert store.get("key") == b"two"
    assert store.usage() == (1, BLOCK)


def test_only_the_owner_may_enter(store: ObjectCache) -> None:
    store.put("key", b"content")
    assert stat.S_IMODE(os.stat(store.directory).st_mode) == 0o700
    assert stat.S_IMODE(entry_file(store, "key").stat().st_mode) == 0o600


def test_no_temporary_file_stays(store: ObjectCache) -> None:
    for i in range(20):
        store.put(str(i), b"content")
    assert not list(Path(store.directory).glob("*.tmp"))


# ---- damage ----


def damaged(entry: bytes) -> Iterator[bytes]:
    for i in range(len(entry)):  # every byte of the magic, the checksum and the content
        yield entry[:i] + bytes([entry[i] ^ 0x40]) + entry[i + 1 :]
    for i in range(len(entry)):  # every truncation, the empty file included
        yield entry[:i]
    yield entry + b"\0"
    yield bytes(len(entry))
    yield b"\x7fELF" + bytes(500)


def test_damage_is_a_miss_and_is_removed(store: ObjectCache) -> None:
    store.put("key", b"some object code")
    file = entry_file(store, "key")
    entry = file.read_bytes()
    for raw in damaged(entry):
        file.write_bytes(raw)
        assert store.get("key") is None
        assert not file.exists()
        file.touch(0o600)
    file.write_bytes(entry)
    assert store.get("key") == b"some object code"


def test_a_good_entry_under_another_name_is_a_miss(store: ObjectCache) -> None:
    store.put("key", b"content")
    os.link(entry_file(store, "key"), entry_file(store, "other"))
    assert store.get("other") is None
    assert store.get("key") == b"content"


def test_things_that_are_no_files_are_misses(store: ObjectCache) -> None:
    store.put("real", b"content")
    entry_file(store, "link").symlink_to(entry_file(store, "real"))
    os.mkfifo(entry_file(store, "fifo"))
    entry_file(store, "directory").mkdir()
    for key in ("link", "fifo", "directory"):
        assert store.get(key) is None
        store.put(key, b"content")
    assert store.get("link") == store.get("fifo") == b"content"  # replaced; a directory is in the way for good
    assert store.get("directory") is None


def test_files_that_others_may_write_are_not_believed(store: ObjectCache) -> None:
    store.put("key", b"content")
    for mode in (0o620, 0o602, 0o666):
        entry_file(store, "key").chmod(mode)
        assert store.get("key") is None
    entry_file(store, "key").chmod(0o644)
    assert store.get("key") == b"content"


# ---- the bound ----


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = ObjectCache(str(tmp_path), 40 * BLOCK)
    for i in range(30):
        store.put(str(i), b"x")
        os.utime(entry_file(store, str(i)), ns=(i, i))  # last used long ago, one after the other
    assert store.get("0") == store.get("3") == b"x"  # and now these two again
    new = 0
    while store.usage().entries >= 30 + new:  # until a sweep
        store.put(f"new {new}", b"x")
        new += 1
    gone = [i for i in range(30) if not entry_file(store, str(i)).exists()]
    assert gone == [i for i in range(30) if i not in (0, 3)][: len(gone)]
    assert all(entry_file(store, f"new {i}").exists() for i in range(new))
    assert store.usage().size == 30 * BLOCK  # three quarters


def test_the_bound_holds_and_scans_are_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 400 * BLOCK
    store = ObjectCache(str(tmp_path), limit)
    scans = 0
    real_scandir = os.scandir

    def counting(path: str) -> object:
        nonlocal scans
        scans += 1
        return real_scandir(path)

    for i in range(1500):
        with monkeypatch.context() as patch:
            patch.setattr(cache.os, "scandir", counting)
            store.put(str(i), bytes(5000 if i % 3 == 0 else 100))
        if i % 50 == 0:
            assert store.usage().size <= limit
    assert store.usage().size <= limit
    assert store.get("1499") is not None
    assert scans <= 1500 * 4 / 3 / 100 + 1  # blocks stored, by a quarter of the limit


def test_what_would_fill_the_store_is_not_kept(tmp_path: Path) -> None:
    store = ObjectCache(str(tmp_path / "store"), 16 * BLOCK)
    store.put("big", bytes(4 * BLOCK))
    assert store.get("big") is None
    store.put("small", bytes(3 * BLOCK))
    assert store.get("small") == bytes(3 * BLOCK)


def test_a_limit_of_nothing_keeps_nothing(tmp_path: Path) -> None:
    store = ObjectCache(str(tmp_path / "store"), 0)
    store.put("key", b"content")
    assert store.get("key") is None
    assert not os.path.exists(store.directory)


def test_a_sweep_removes_the_litter_of_the_dead_and_nothing_of_others(tmp_path: Path) -> None:
    store = ObjectCache(str(tmp_path), 40 * BLOCK)
    old, young, foreign = tmp_path / f"{'0' * 16}.tmp", tmp_path / f"{'1' * 16}.tmp", tmp_path / "notes.txt"
    for file in (old, young, foreign):
        file.write_bytes(bytes(100 * BLOCK))
    for file in (old, foreign):
        os.utime(file, (1, 1))
    for i in range(60):
        store.put(str(i), b"x")
    assert not old.exists()
    assert young.exists()
    assert foreign.exists()
    assert store.get("59") == b"x"


def test_a_sweep_that_was_cut_short_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectCache(str(tmp_path), 40 * BLOCK)

    def killed(self: ObjectCache) -> None:
        raise KeyboardInterrupt

    for i in range(10):
        store.put(str(i), b"x")
    with monkeypatch.context() as patch:
        patch.setattr(ObjectCache, "_evict", killed)
        with pytest.raises(KeyboardInterrupt):
            store.put("one too many", b"x")
    swept = []
    monkeypatch.setattr(ObjectCache, "_evict", lambda self: swept.append(True))
    store.put("next", b"x")
    assert swept


# ---- disks that do not play along ----


def test_a_directory_that_vanishes_is_made_again(store: ObjectCache) -> None:
    store.put("key", b"content")
    for file in Path(store.directory).iterdir():
        file.unlink()
    os.rmdir(store.directory)
    assert store.get("key") is None
    store.put("key", b"content")
    assert store.get("key") == b"content"


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/weft"])
def test_an_impossible_directory_keeps_nothing(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    store = ObjectCache(str(tmp_path / where), LIMIT)
    store.put("key", b"content")
    assert store.get("key") is None
    assert store.usage() == (0, 0)
    assert (tmp_path / "file").read_text() == "not a directory"


def test_a_read_only_directory_still_serves() -> None:
    with tempfile.TemporaryDirectory() as directory:  # not below tmp_path, which another user cannot enter
        store = ObjectCache(directory, LIMIT)
        store.put("old", b"content")
        entry_file(store, "old").chmod(0o644)
        os.chmod(directory, 0o555)
        code = (
            "if os.geteuid() == 0: os.setuid(65534)\n"  # nothing is read-only for root
            "store.put('new', b'new'); print(store.get('old'), store.get('new'))"
        )
        try:
            out = finish(run_python(code, directory, str(LIMIT)))
        finally:
            os.chmod(directory, 0o700)
    assert out.split() == ["b'content'", "None"]


def test_a_full_disk_keeps_what_it_has(store: ObjectCache) -> None:
    store.put("old", b"content")
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"  # a write stops in the middle, then fails
        "store.put('new', bytes(3000)); print(store.get('old'), store.get('new'))"
    )
    assert finish(run_python(code, store.directory, str(LIMIT))).split() == ["b'content'", "None"]
    assert not list(Path(store.directory).glob("*.tmp"))
    assert store.usage().entries == 1


def test_a_journal_of_another_user_is_replaced(store: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("one", b"content")
    journal = os.path.join(store.directory, "journal")
    theirs = os.stat(journal).st_ino
    real_open = os.open

    def denied(path: str, flags: int, mode: int = 0o777) -> int:
        if path == journal and os.path.exists(path) and os.stat(path).st_ino == theirs and not flags & os.O_EXCL:
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, flags, mode)

    keep = os.open(journal, os.O_RDONLY)  # so that its number is not used again
    monkeypatch.setattr(cache.os, "open", denied)
    store.put("two", b"content")
    os.close(keep)
    assert store.get("two") == b"content"
    assert os.stat(journal).st_ino != theirs


# ---- many processes ----


def test_writers_and_readers_in_parallel(tmp_path: Path) -> None:
    """Four processes over the same keys, in a store so small that it is swept all the time."""
    code = (
        "import random\n"
        "rng, hits = random.Random(int(sys.argv[3])), 0\n"
        "for _ in range(600):\n"
        "    key = str(rng.randrange(60))\n"
        "    found = store.get(key)\n"
        "    assert found is None or found == content_of(key), key\n"
        "    hits += found is not None\n"
        "    if found is None or rng.random() < 0.3: store.put(key, content_of(key))\n"
        "print(hits)"
    )
    limit = 40 * BLOCK
    workers = [run_python(code, str(tmp_path), str(limit), str(seed)) for seed in range(4)]
    assert all(int(finish(worker)) > 0 for worker in workers)
    store = ObjectCache(str(tmp_path), limit)
    # Each of the four may have had one entry on its way while the last sweep listed the directory, and one more counted
    # between that sweep's last look at the journal and its end.
    assert 0 < store.usage().size <= limit + 2 * 4 * BLOCK
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    "moment",
    [
        "real = os.write\nos.write = lambda file, data: (real(file, data[: len(data) // 2]), die())",
        "os.rename = lambda *names: die()",
    ],
    ids=["in the middle of the write", "before the rename"],
)
def test_a_writer_killed_at_the_worst_moment(store: ObjectCache, moment: str) -> None:
    store.put("key", b"old")
    code = f"import signal\ndef die(): os.kill(os.getpid(), signal.SIGKILL)\n{moment}\nstore.put('key', bytes(3000))"
    writer = run_python(code, store.directory, str(LIMIT))
    writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGKILL
    assert store.get("key") == b"old"
    store.put("key", b"new")
    assert store.get("key") == b"new"


def test_killed_writers_leave_whole_entries_or_none(tmp_path: Path) -> None:
    code = (
        "print('go', flush=True)\n"
        "i = 0\n"
        "while True:\n"
        "    key = sys.argv[3] + str(i % 40); store.put(key, content_of(key)); i += 1\n"
    )
    store = ObjectCache(str(tmp_path), LIMIT)
    for round_ in "abcdef":
        writer = run_python(code, str(tmp_path), str(LIMIT), round_)
        assert writer.stdout is not None
        assert writer.stderr is not None
        assert writer.stdout.readline() == "go\n"
        time.sleep(0.011 * (1 + ord(round_) % 5))
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=60)
    found = {key: store.get(key) for key in (f"{r}{i}" for r in "abcdef" for i in range(40))}
    kept = {key: content for key, content in found.items() if content is not None}
    assert kept
    assert kept == {key: content_of(key) for key in kept}
    assert store.usage().entries == len(kept)
    store.put("after", b"content")
    assert store.get("after") == b"content"
