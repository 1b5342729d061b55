"""From LLVM IR text to callable addresses: bits that no level changes, refusals instead of crashes, caches, threads and
forks; and the settings and messages that go with it."""

from __future__ import annotations

import _thread
import ctypes
import itertools
import os
import platform
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft import beside, errors
from weft import config as settings
from weft.config import config
from weft.errors import CompileError, ConfigError
from weft.llvm import engine, host, linking
from weft.llvm.binding import llvm_binding
from weft.llvm.code import Code
from weft.llvm.engine import Source

ROOT = Path(__file__).resolve().parent.parent
LEVELS = (0, 1, 2, 3)
X86 = platform.machine() == "x86_64"

VECTOR = "<16 x float>"

unique = itertools.count()


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has an empty store of its own; what it sets is set back."""
    monkeypatch.setattr(config, "cache_dir", str(tmp_path / "objects"))
    for name in ("threads", "llvm_level", "cpu", "dump"):
        monkeypatch.setattr(config, name, getattr(config, name))


def kernel(body: str, name: str = "k", declarations: str = "") -> str:
    """A module with one kernel: `body` computes %r from the vectors %x, %y and %z, which args[1] to args[3] point to;
    args[4] points to the result."""
    pointers = "".join(
        f"  %{v}w = getelementptr i64, ptr %args, i64 {i}\n  %{v}p = load ptr, ptr %{v}w\n"
        for i, v in enumerate("xyzr", 1)
    )
    loads = "".join(f"  %{v} = load {VECTOR}, ptr %{v}p, align 4\n" for v in "xyz")
    return (
        f"{declarations}\ndefine void @{name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{\n"
        f"{pointers}{loads}{body}\n  store {VECTOR} %r, ptr %rp, align 4\n  ret void\n}}\n"
    )


def source(text: str | Callable[[], str], name: str = "k", key: str | None = None) -> Source:
    made = text if callable(text) else lambda: text
    return Source(key or f"test {os.getpid()} {next(unique)}", name, made)


def call(code: Code, *arrays: np.ndarray, begin: int = 0, end: int = 1) -> None:
    words = (ctypes.c_int64 * (1 + len(arrays)))(1, *(a.ctypes.data for a in arrays))
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(code.address)
    native(ctypes.addressof(words), begin, end, None)


def run(code: Code, *operands: np.ndarray) -> np.ndarray:
    result = np.zeros(16, np.float32)
    call(code, *operands, result)
    return result


def load(text: str) -> Code:
    return engine.load([source(text)])[0]


MULTIPLY_ADD = f"  %m = fmul {VECTOR} %x, %y\n  %r = fadd {VECTOR} %m, %z"
FMA = f"  %r = call {VECTOR} @llvm.fma.v16f32({VECTOR} %x, {VECTOR} %y, {VECTOR} %z)"
FMA_DECLARED = f"declare {VECTOR} @llvm.fma.v16f32({VECTOR}, {VECTOR}, {VECTOR})"


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors whose x * y + z is not the same rounded once and twice."""
    rng = np.random.default_rng(7)
    x, y = (rng.standard_normal(16).astype(np.float32) for _ in range(2))
    return x, y, (-(x * y)).astype(np.float32)  # what is left is the rounding error of the product, or 0


# ---- bits ----


@pytest.mark.parametrize("level", LEVELS)
def test_multiply_and_add_are_not_contracted(level: int) -> None:
    config.llvm_level = level
    x, y, z = operands()
    apart = run(load(kernel(MULTIPLY_ADD)), x, y, z)
    fused = run(load(kernel(FMA, declarations=FMA_DECLARED)), x, y, z)
    np.testing.assert_array_equal(apart, x * y + z)
    exact = x.astype(np.float64) * y + z  # exact: 48 bits, and the sum cancels
    np.testing.assert_array_equal(fused, exact.astype(np.float32))
    assert (apart != fused).any()  # or this test proves nothing


CHAIN = f"""
  %m = fmul {VECTOR} %x, %y
  %a = fadd {VECTOR} %m, %z
  %f = call {VECTOR} @llvm.fma.v16f32({VECTOR} %a, {VECTOR} %x, {VECTOR} %y)
  %p = call {VECTOR} @llvm.fabs.v16f32({VECTOR} %m)
  %s = call {VECTOR} @llvm.sqrt.v16f32({VECTOR} %p)
  %d = fdiv {VECTOR} %f, %s
  %n = fmul {VECTOR} %d, splat (float 0x3FB99999A0000000)
  %b = fsub {VECTOR} %n, %z
  %t = fadd {VECTOR} %b, %x
  %c = fcmp olt {VECTOR} %t, %y
  %r = select <16 x i1> %c, {VECTOR} %t, {VECTOR} %n
"""
CHAIN_DECLARED = FMA_DECLARED + "".join(f"\ndeclare {VECTOR} @llvm.{f}.v16f32({VECTOR})" for f in ("fabs", "sqrt"))
LIVELY = np.array(
    [0, -0.0, 1, -1, 1e-45, 3e-39, 1e38, -3e38, np.inf, -np.inf, np.nan, 0.1, 1 / 3, 7, -1e-20, 2**24], np.float32
)


def cpus() -> list[str]:
    """Those of the settable instruction sets that this machine has."""
    if not X86:
        return ["native"]
    has = llvm_binding().get_host_cpu_features()
    return ["native", *(cpu for cpu, needs in engine._CPU_NEEDS.items() if all(has.get(need) for need in needs))]


@pytest.mark.parametrize("cpu", cpus())
@pytest.mark.parametrize("level", LEVELS)
def test_levels_and_instruction_sets_give_the_same_bits(level: int, cpu: str) -> None:
    rng = np.random.default_rng(3)
    wide = (rng.standard_normal((32, 3, 16)) * 10.0 ** rng.integers(-12, 12, (32, 3, 16))).astype(np.float32)
    sets = [*wide, *((LIVELY, np.roll(LIVELY, k), np.roll(LIVELY, 3 * k)) for k in range(16))]
    chain = kernel(CHAIN, declarations=CHAIN_DECLARED)
    results = []
    for config.llvm_level, config.cpu in ((2, "native"), (level, cpu)):
        address = load(chain)
        results.append(np.array([run(address, *three) for three in sets]))
    want, got = (np.where(np.isnan(r), np.float32(np.nan), r) for r in results)  # NaNs are as good as each other
    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))
    assert np.isfinite(want).mean() > 0.5  # or there would be little to compare


@pytest.mark.skipif(not X86, reason="registers of x86-64")
@pytest.mark.parametrize("cpu", cpus())
@pytest.mark.parametrize("level", LEVELS)
def test_explicit_vectors_use_the_widest_registers(level: int, cpu: str) -> None:
    config.llvm_level, config.cpu = level, cpu
    has = llvm_binding().get_host_cpu_features()
    best = "z" if has.get("avx512f") else "y" if has.get("avx") else "x"
    width = {"x86-64-v2": "x", "x86-64-v3": "y", "x86-64-v4": "z"}.get(cpu, best)
    text = engine.assembly(source(kernel(FMA, declarations=FMA_DECLARED)))
    assert set(re.findall(r"%([xyz])mm", text)) == {width}


PAIR = "{ i64, float }"
HELPED = f"""define internal {PAIR} @helper(i64 %n,
                                 ptr %p) noinline {{
  %x = load float, ptr %p
  %one = insertvalue {PAIR} poison, i64 %n, 0
  %two = insertvalue {PAIR} %one, float %x, 1
  ret {PAIR} %two
}}

define void @k(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
  %from = getelementptr i64, ptr %args, i64 1
  %to = getelementptr i64, ptr %args, i64 2
  %x = load ptr, ptr %from
  %r = load ptr, ptr %to
  %pair = call {PAIR} @helper(i64 3, ptr %x)
  %first = extractvalue {PAIR} %pair, 1
  store float %first, ptr %r
  ret void
}}
"""


@pytest.mark.parametrize("level", LEVELS)
def test_objects_have_no_tables_for_unwinding(level: int) -> None:
    """Which nothing reads, and which take as much code memory as a small kernel."""
    config.llvm_level = level
    made = engine._compile_one(engine._target(config.cpu, level), engine.Source("k", "k", lambda: HELPED), HELPED)
    assert b".text" in made
    assert b"eh_frame" not in made
    x, result = np.full(1, 2.5, np.float32), np.zeros(1, np.float32)
    call(load(HELPED), x, result)
    assert result == x


# ---- what is refused, before it can do harm ----


def refused(text: str, match: str, name: str = "k") -> None:
    for config.llvm_level in LEVELS:
        with pytest.raises(CompileError, match=match):
            engine.load([source(text, name)])


def test_a_symbol_that_is_not_allowed() -> None:
    lanes = f"  %l = extractelement {VECTOR} %x, i32 0\n  %s = call float @sinf(float %l)\n"
    body = lanes + f"  %r = insertelement {VECTOR} %y, float %s, i32 0"
    refused(kernel(body, declarations="declare float @sinf(float)"), r"kernel k calls sinf, .*ALLOWED_SYMBOLS")


def test_an_operation_without_an_instruction() -> None:
    refused(kernel(f"  %r = frem {VECTOR} %x, %y"), "calls fmodf")


def test_text_that_does_not_parse() -> None:
    refused("define void @k( {", r"LLVM cannot read kernel k: .*\n.*expected type")


def test_a_module_that_is_not_well_formed() -> None:
    wrong = (
        "declare <16 x float> @llvm.sqrt.v16f32(<8 x float>)\n"
        "define <16 x float> @k(<8 x float> %a) {\n"
        "  %b = call <16 x float> @llvm.sqrt.v16f32(<8 x float> %a)\n"
        "  ret <16 x float> %b\n}\n"
    )
    refused(wrong, "LLVM rejects kernel k: Intrinsic has incorrect argument type")
    early = "define i64 @k(i64 %a) {\n  %b = add i64 %c, 1\n  %c = add i64 %a, 1\n  ret i64 %b\n}\n"
    refused(early, "LLVM rejects kernel k: Instruction does not dominate all uses")


def test_a_module_without_its_kernel() -> None:
    refused("define void @other() {\n  ret void\n}\n", "has no function of that name")
    refused("declare void @k()\n", "declares it but does not define it")


def test_a_module_that_exports_more_than_its_kernel() -> None:
    helper = "define {} void @helper() noinline {{\n  ret void\n}}\n@table = {} constant [2 x i64] [i64 1, i64 2]\n"
    use = "define i64 @k() {\n  call void @helper()\n  %v = load volatile i64, ptr @table\n  ret i64 %v\n}\n"
    refused(helper.format("", "") + use, "kernel k also exports helper, table")
    code = load(helper.format("internal", "private") + use)
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address)() == 1


def test_one_bad_kernel_does_not_spoil_the_others() -> None:
    config.threads = 2
    good = [source(kernel(MULTIPLY_ADD)) for _ in range(3)]
    bad = source(kernel(f"  %r = frem {VECTOR} %x, %y"))
    with pytest.raises(CompileError, match="fmodf"):
        engine.load([good[0], bad, *good[1:]])
    x, y, z = operands()
    for address in engine.load(good):
        np.testing.assert_array_equal(run(address, x, y, z), x * y + z)


# ---- what is allowed ----


def test_copies_and_fills_of_any_length_link() -> None:
    text = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
define void @k(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  %1 = getelementptr i64, ptr %args, i64 1
  %from = load ptr, ptr %1
  %2 = getelementptr i64, ptr %args, i64 2
  %to = load ptr, ptr %2
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %end, i1 false)
  %next = getelementptr i8, ptr %to, i64 1
  call void @llvm.memmove.p0.p0.i64(ptr %next, ptr %to, i64 %begin, i1 false)
  call void @llvm.memset.p0.i64(ptr %to, i8 7, i64 %begin, i1 false)
  ret void
}
"""
    data, copy = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    for config.llvm_level in LEVELS:
        call(load(text), data, copy, begin=5, end=100)
        np.testing.assert_array_equal(copy, [7] * 5 + [4] + list(range(6, 100)))


def test_inline_assembly_compiles() -> None:
    text = 'define i64 @k() {\n  %v = call i64 asm sideeffect "nop", "=r,0"(i64 42)\n  ret i64 %v\n}\n'
    code = load(text)
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address)() == 42


def test_kernels_of_one_name_live_side_by_side() -> None:
    x, y, z = operands()
    added, multiplied = engine.load([source(kernel(f"  %r = {op} {VECTOR} %x, %y")) for op in ("fadd", "fmul")])
    np.testing.assert_array_equal(run(added, x, y, z), x + y)
    np.testing.assert_array_equal(run(multiplied, x, y, z), x * y)


def test_object_symbols_are_read_as_the_linker_reads_them() -> None:
    text = (
        kernel(f"  %r = frem {VECTOR} %x, %y") + "@data = global i64 5\ndefine internal void @hidden() { ret void }\n"
    )
    target = engine._target("native", 0)
    with target.module("k", text) as (module, machine):
        assert linking.global_symbols(machine.object(module)) == ({"k", "data"}, {"fmodf"})


def test_code_generated_without_the_lock_is_the_same_code() -> None:
    target = engine._target("native", 2)
    made = []
    for emit in (engine._emitter(), lambda handle, module: handle.emit_object(module)):
        with target.module("k", kernel(CHAIN, declarations=CHAIN_DECLARED)) as (module, machine):
            made.append(emit(machine.handle, module))
    assert made[0] == made[1]


# ---- memory and disk ----


class Counted:
    """IR that counts how often it was asked for."""

    def __init__(self, text: str) -> None:
        self.text, self.calls = text, 0

    def __call__(self) -> str:
        self.calls += 1
        return self.text


def test_the_second_time_is_free() -> None:
    ir = Counted(kernel(MULTIPLY_ADD))
    one = source(ir)
    before = engine.stats.loaded
    first = engine.load([one, one])
    assert first == engine.load([one]) * 2
    assert ir.calls == 1
    assert engine.stats.loaded == before + 1


def test_cold_code_is_compiled_at_level_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "llvm_level", 2)
    text = kernel(MULTIPLY_ADD)
    warm, cold = (Source(f"test {os.getpid()} {next(unique)}", "k", lambda: text, cold=cold) for cold in (False, True))
    assert engine.assembly(warm) != engine.assembly(cold)
    x, y, z = operands()
    first, second = (run(code, x, y, z) for code in engine.load([warm, cold]))
    assert first.tobytes() == second.tobytes()
    level_2 = engine.assembly(cold)
    monkeypatch.setattr(config, "llvm_level", 0)
    assert engine.assembly(warm) == level_2


FIRST_COLD_CODE = """
import sys
from weft.llvm import engine
engine.load([engine.Source(f"key {cold}", "k", lambda: sys.argv[1], cold=cold) for cold in (False, True)])
print(engine.stats.compiled)
"""


@pytest.mark.parametrize("level", LEVELS)
def test_cold_code_may_be_the_first_of_a_process(level: int) -> None:
    """What it is compiled with, which is not there yet, is made while the engine is locked."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_COLD_CODE, kernel(MULTIPLY_ADD)],
        cwd=ROOT,
        env={**os.environ, "WEFT_CACHE_DIR": "", "WEFT_LLVM_LEVEL": str(level)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.split(), done.stderr) == (["2"], "")


def test_levels_do_not_share_code() -> None:
    one = source(kernel(MULTIPLY_ADD))
    made = [engine.load([one])[0] for config.llvm_level in LEVELS]
    assert len({code.address for code in made}) == len(LEVELS)


SECOND_PROCESS = """
import sys
from weft.llvm import engine
def ir():
    if sys.argv[2] == "never": raise SystemExit("asked for the IR")
    return sys.argv[3]
code, = engine.load([engine.Source(sys.argv[1], "k", ir)])
print(code.address != 0, engine.stats.compiled, engine.stats.disk_hits, engine.stats.loaded)
"""


def second_process(key: str, ir: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, key, ir, kernel(MULTIPLY_ADD)],
        cwd=ROOT,
        env={**os.environ, "WEFT_CACHE_DIR": config.cache_dir, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_another_process_finds_the_object_on_disk() -> None:
    assert second_process("key", "given") == ["True", "1", "0", "1"]
    assert second_process("key", "never") == ["True", "0", "1", "1"]
    assert second_process("another key", "given") == ["True", "1", "0", "1"]
    other_level = str((config.llvm_level + 1) % 4)
    assert second_process("key", "given", WEFT_LLVM_LEVEL=other_level) == ["True", "1", "0", "1"]


def test_a_damaged_object_is_compiled_anew() -> None:
    assert second_process("key", "given") == ["True", "1", "0", "1"]
    (file,) = [path for path in Path(config.cache_dir).glob("*.o") if b"\x7fELF" in path.read_bytes()]
    file.write_bytes(file.read_bytes()[:-100])
    assert second_process("key", "given") == ["True", "1", "0", "1"]
    assert second_process("key", "never") == ["True", "0", "1", "1"]


def test_edited_code_does_not_meet_old_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    one = source(kernel(MULTIPLY_ADD))
    digests = set()
    for stamp in ("before", "after"):
        monkeypatch.setattr(engine, "_code_stamp", lambda stamp=stamp: stamp)
        digests.add(engine.CodeTarget("native", 2).digest(one))
    assert len(digests) == 2


def test_the_stamp_tells_every_file_of_the_code() -> None:
    stamp = engine._code_stamp()
    assert "llvm/engine.py" in stamp
    assert "llvm/builder.py" in stamp
    assert "codegen/kernel.py" in stamp


def test_code_in_an_archive_has_a_stamp_too(tmp_path: Path) -> None:
    archive = tmp_path / "packed.zip"
    code = "from weft.llvm import engine; print(engine.__file__, engine._code_stamp())"
    environment = {**os.environ, "PYTHONPATH": str(archive), "WEFT_CACHE_DIR": str(tmp_path / "cache")}

    def stamp_of(more: str) -> str:
        with zipfile.ZipFile(archive, "w") as packed:
            for path in sorted((ROOT / "weft").rglob("*.py")):
                edited = more if path.name == "builder.py" else ""
                packed.writestr(str(path.relative_to(ROOT)), path.read_text() + edited)
        result = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(str(archive))
        return result.stdout

    assert stamp_of("") != stamp_of("# another")
    assert engine._archive_stamp(str(tmp_path / "nowhere")) != engine._archive_stamp(str(tmp_path / "nowhere"))


def test_without_a_cache_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config.cache_dir = ""
    x, y, z = operands()
    np.testing.assert_array_equal(run(load(kernel(MULTIPLY_ADD)), x, y, z), x * y + z)
    assert not list(tmp_path.iterdir())


def test_importing_does_not_load_llvm() -> None:
    code = "import sys, weft.llvm.engine; print('llvmlite' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


def test_the_machine_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What LLVM says of it is found on disk by the next process; another CPU or llvmlite finds nothing there."""
    asked = []
    real = host._asked
    monkeypatch.setattr(host, "_asked", lambda: (asked.append(1), real())[1])
    find = host.host.__wrapped__
    first = find()
    assert find() == first == real()
    assert len(asked) == 1
    assert first.has("sse2") or not X86
    assert not first.has("ss")  # names are whole
    for name in ("_processor", "_library"):
        with monkeypatch.context() as patch:
            patch.setattr(host, name, lambda: "another")
            assert find() == find() == first
    assert len(asked) == 3
    for name in ("_processor", "_library"):
        with monkeypatch.context() as patch:
            patch.setattr(host, name, lambda: None)  # nothing can be told
            find()
    config.cache_dir = ""
    find()
    assert len(asked) == 6


@pytest.mark.parametrize("contents", [None, b"", b"{", b"[]", b'["a", "b", "c", "d", 5]', b"null", b"\xff"])
def test_what_is_no_description_of_a_machine(contents: bytes | None) -> None:
    assert host._read(contents) is None


# ---- threads and forks ----


def test_many_kernels_are_compiled_on_several_threads() -> None:
    config.threads = 3
    where = set()

    def ir(scale: int) -> str:
        where.add(threading.get_ident())
        return kernel(f"  %r = fmul {VECTOR} %x, splat (float {float(scale)})")

    x, y, z = operands()
    addresses = engine.load([source(lambda scale=scale: ir(scale)) for scale in range(12)])
    for scale, address in enumerate(addresses):
        np.testing.assert_array_equal(run(address, x, y, z), x * np.float32(scale))
    assert where == {threading.get_ident()}  # the caller's own, whatever thread-local state it has


def compile_with(start_new_thread: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    config.threads = 3
    threads = SimpleNamespace(start_new_thread=start_new_thread, allocate_lock=_thread.allocate_lock)
    monkeypatch.setattr(beside, "_thread", threads)
    x, y, z = operands()
    texts = [kernel(f"  %r = fadd {VECTOR} %x, splat (float {scale}.5)") for scale in range(6)]
    for scale, address in enumerate(engine.load([source(text) for text in texts])):
        np.testing.assert_array_equal(run(address, x, y, z), x + np.float32(scale + 0.5))


@pytest.mark.parametrize("most", [0, 1])
def test_kernels_are_compiled_where_no_more_threads_can_be_started(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the operating system has none left, or Python ends."""
    started: list[int] = []

    def refuse(*work: Any) -> int:
        if len(started) == most:
            raise RuntimeError("can't start new thread")
        started.append(_thread.start_new_thread(*work))
        return started[-1]

    compile_with(refuse, monkeypatch)
    assert len(started) == most


def test_threads_that_die_before_they_begin_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when there is memory for the thread, but none for its first call."""
    dead: list[Any] = []

    def die(*work: Any) -> int:
        dead.append(work)
        return len(dead)

    compile_with(die, monkeypatch)
    assert len(dead) == 2
    run_late, arguments = dead[0]
    run_late(*arguments)  # one that comes late finds nothing to do


AT_EXIT = """
import atexit, sys
from weft.llvm import engine
def late():
    texts = [sys.argv[1] + f"; {i}" for i in range(4)]
    print(all(engine.load([engine.Source(f"late {i}", "k", lambda i=i: texts[i]) for i in range(4)])))
atexit.register(late)
"""


def test_functions_at_exit_may_compile() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", AT_EXIT, kernel(MULTIPLY_ADD)],
        cwd=ROOT,
        env={**os.environ, "WEFT_CACHE_DIR": "", "WEFT_THREADS": "4"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "True")


def test_python_threads_may_load_the_same_kernels() -> None:
    irs = [Counted(kernel(f"  %r = fmul {VECTOR} %x, splat (float {float(i)})")) for i in range(6)]
    sources = [source(ir) for ir in irs]
    got: dict[int, list[Code]] = {}
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        order = sources[number:] + sources[:number]
        got[number] = engine.load(order)[len(sources) - number :] + engine.load(order)[: len(sources) - number]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[number] for number in range(4)] == [engine.load(sources)] * 4
    assert [ir.calls for ir in irs] == [1] * 6


FORKS = """
import os, sys, threading
from weft.llvm import engine
text, stop = sys.argv[1], threading.Event()
def compile_all_the_time(n=0):
    while not stop.is_set():
        n += 1
        engine.load([engine.Source(f"parent {n}", "k", lambda: text)])
engine.load([engine.Source("first", "k", lambda: text)])
thread = threading.Thread(target=compile_all_the_time)
thread.start()
for round_ in range(8):
    child = os.fork()
    if child == 0:
        os._exit(0 if engine.load([engine.Source(f"child {round_}", "k", lambda: text)])[0].address else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
thread.join()
"""


def test_children_compile_after_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, kernel(MULTIPLY_ADD)],
        cwd=ROOT,
        env={**os.environ, "WEFT_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"] * 8


# ---- looking inside ----


def test_text_and_assembly_can_be_looked_at() -> None:
    text = "; a comment that explains\n" + kernel(MULTIPLY_ADD, name="shown")
    one = source(text, "shown")
    assert engine.llvm_text(one) == text
    listing = engine.assembly(one)
    assert "shown:" in listing
    assert re.search("mulps|fmul", listing)
    with pytest.raises(CompileError, match="cannot read"):
        engine.llvm_text(source("nonsense"))


def test_dumps_go_to_stderr_also_for_kernels_found_on_disk(capsys: pytest.CaptureFixture[str]) -> None:
    one = source(kernel(MULTIPLY_ADD, name="shown"), "shown")
    engine.load([one])
    assert capsys.readouterr() == ("", "")
    target = engine._target(config.cpu, config.llvm_level)
    target.loaded.recent.clear()  # nothing else holds it
    config.dump = frozenset({"llvm", "asm"})
    hits = engine.stats.disk_hits
    engine.load([one])
    assert engine.stats.disk_hits == hits + 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(rf"; ---- LLVM IR of shown: {one.key}\n.*define void @shown", err, re.DOTALL)
    assert re.search(rf"# ---- assembly of shown: {one.key}\n.*shown:", err, re.DOTALL)


# ---- settings ----


def test_defaults() -> None:
    made = settings.from_environment({"XDG_CACHE_HOME": "/somewhere"})
    assert (made.backend, made.dump, made.check, made.llvm_level, made.cpu) == (
        "native",
        frozenset(),
        False,
        2,
        "native",
    )
    assert (made.cache_dir, made.cache_limit, made.memory_limit) == ("/somewhere/weft", 512 << 20, None)
    assert 1 <= made.threads <= len(os.sched_getaffinity(0))
    assert made == settings.from_environment({"XDG_CACHE_HOME": "/somewhere", "WEFT_THREADS": "", "WEFT_DUMP": " "})


def test_every_variable_is_read() -> None:
    made = settings.from_environment(
        {
            "WEFT_THREADS": "3",
            "WEFT_BACKEND": "reference",
            "WEFT_DUMP": "graph, asm,",
            "WEFT_CHECK": "1",
            "WEFT_CACHE_DIR": "/kept/here",
            "WEFT_CACHE_LIMIT": "64K",
            "WEFT_LLVM_LEVEL": "0",
            "WEFT_CPU": "x86-64-v3",
            "WEFT_MEMORY_LIMIT": "2 GiB",
            "WEFT_DISABLE_COMPILE": "yes",
            "MLX_DISABLE_COMPILE": "",
            "WEFT_DEVICE": "gpu",
            "WEFT_PROGRAMS": "7",
        }
    )
    assert made == settings.Config(
        3,
        "reference",
        frozenset({"graph", "asm"}),
        True,
        "/kept/here",
        65536,
        0,
        "x86-64-v3",
        2 << 30,
        True,
        True,
        True,
        "gpu",
        7,
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("WEFT_THREADS", "0", "a whole number from 1 on"),
        ("WEFT_THREADS", "-2", "a whole number from 1 on"),
        ("WEFT_THREADS", "many", "a whole number from 1 on"),
        ("WEFT_BACKEND", "gpu", "native or reference"),
        ("WEFT_DUMP", "graph,everything", "a comma-separated list of graph, kernels, llvm, asm or plan"),
        ("WEFT_CHECK", "maybe", "1 or 0"),
        ("WEFT_CACHE_LIMIT", "-1", "a number of bytes"),
        ("WEFT_CACHE_LIMIT", "12X", "a number of bytes"),
        ("WEFT_CACHE_LIMIT", "12iB", "a number of bytes"),
        ("WEFT_LLVM_LEVEL", "4", "0, 1, 2 or 3"),
        ("WEFT_CPU", "i386", "native, x86-64-v2"),
        ("WEFT_MEMORY_LIMIT", "1.5G", "a number of bytes"),
        ("WEFT_DISABLE_COMPILE", "sometimes", "1 or 0"),
        ("WEFT_DEVICE", "tpu", "cpu or gpu"),
        ("WEFT_PROGRAMS", "0", "a whole number from 1 on"),
    ],
)
def test_what_is_not_allowed_is_named(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.from_environment({name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; allowed: {allowed}")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("1k", 1024),
        ("3M", 3 << 20),
        ("3MB", 3 << 20),
        ("3 MiB", 3 << 20),
        ("7B", 7),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert settings.from_environment({"WEFT_CACHE_LIMIT": text}).cache_limit == size


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    for environment, directory in [
        ({"WEFT_CACHE_DIR": ""}, ""),
        ({"WEFT_CACHE_DIR": "below"}, str(tmp_path / "below")),
        ({"WEFT_CACHE_DIR": "~/mine"}, "/home/somebody/mine"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/somebody/.cache/weft"),
        ({}, "/home/somebody/.cache/weft"),
    ]:
        assert settings.from_environment(environment).cache_dir == directory


def test_settings_that_this_machine_cannot_follow() -> None:
    config.cpu = "x86-64-v9"
    with pytest.raises(ConfigError, match="'x86-64-v9', but this machine's CPU lacks"):
        load(kernel(MULTIPLY_ADD))
    config.cpu, config.llvm_level = "native", 4
    with pytest.raises(ConfigError, match="llvm_level is 4; allowed: 0, 1, 2 or 3"):
        load(kernel(MULTIPLY_ADD))


@pytest.mark.parametrize(
    ("groups", "files", "quotas"),
    [
        ("0::/", {}, []),
        ("0::/", {"cpu.max": "max 100000"}, []),
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "400000 100000"}, [4, 2]),
        ("0::/hidden/from/us", {"cpu.max": "100000 100000"}, [1]),
        (
            "2:cpu,cpuacct:/a",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            [3],
        ),
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
        ("3:cpuset:/\n4:memory:/x", {"cpu.max": "100000 100000"}, []),
    ],
)
def test_quotas_of_control_groups(tmp_path: Path, groups: str, files: dict[str, str], quotas: list[int]) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{n}": t for n, t in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert list(settings.cgroup_quotas(str(tmp_path))) == quotas


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert list(settings.cgroup_quotas(str(tmp_path))) == []


# ---- whose line it is ----


def test_messages_point_at_the_users_line() -> None:
    """Weft's frames and the standard library's between them are passed over."""
    inside: dict[str, object] = {"__name__": "weft.somewhere", "user_line": errors.user_line, "at": errors.at_user_line}
    exec("def f(): return user_line()\ndef g(): return at()\ndef through(h): return list(map(h, [()]))[0]", inside)
    between: dict[str, object] = {"__name__": "contextlib"}
    exec("def apply(h): return h()", between)
    f, g, apply = inside["f"], inside["g"], between["apply"]
    here = sys._getframe().f_lineno
    assert f() == (__file__, here + 1)  # type: ignore[operator]
    assert apply(f) == (__file__, here + 2)  # type: ignore[operator]
    assert g() == f" (at {__file__}:{here + 3})"  # type: ignore[operator]


def _calling(number: int, shared: Source) -> Source:
    """A function that adds a number to what the shared one gives."""
    name = f"calls_{number}_{shared.name}"
    text = (
        f"declare i64 @{shared.name}(i64)\n\ndefine i64 @{name}(i64 %x) {{\n"
        f"  %y = call i64 @{shared.name}(i64 %x)\n  %r = add i64 %y, {number}\n  ret i64 %r\n}}\n"
    )
    return Source(name, name, lambda: text, (shared,))


def test_code_that_kernels_share_is_compiled_once_and_lives_as_long_as_they_do() -> None:
    name = f"shared_{os.getpid()}_{next(unique)}"
    text = f"define i64 @{name}(i64 %x) {{\n  %r = mul i64 %x, 3\n  ret i64 %r\n}}\n"
    before = engine.stats.compiled
    shared = Source(name, name, lambda: text)
    codes = engine.load([_calling(1, shared), _calling(2, shared)])
    assert engine.stats.compiled == before + 3
    codes += engine.load([_calling(5, shared)])
    assert engine.stats.compiled == before + 4
    assert len({code.calls[0].address for code in codes}) == 1
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert [function(code.address)(7) for code in codes] == [22, 23, 26]
    assert "mul i64" in engine.llvm_text(_calling(1, shared))
    assert name in engine.assembly(_calling(1, shared))


def test_what_is_called_must_be_named() -> None:
    source = _calling(1, Source("elsewhere", "elsewhere", lambda: ""))
    with pytest.raises(CompileError, match="calls elsewhere"):
        engine.load([Source(source.key, source.name, source.ir)])
