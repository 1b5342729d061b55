"""LLVM IR text in, machine code out: the one place that talks to LLVM about native code.

`load` looks for a kernel in memory, then on disk, and compiles it at last: parse, verify, passes (level 3 only), object
code, check of its symbols, store, link. Codegen and the program builder may come in; they bring `Source`s and get
`Code`, which stays in memory while something holds it.

No IR pass made explicit-vector code with its phis in place any faster (instcombine, GVN, loop rotation, simplifycfg and
LLVM's whole O1, O2 and O3 pipelines were measured), and each costs time, so levels 0 to 2 run none and differ in the
code generator alone. What did not pay there is loop strength reduction, from which kernels hide the loops that need
none (`Builder.as_written`). No level may fuse or reorder floating-point operations: the results have the same bits at
all.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import os
import platform
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from weft import beside, room
from weft.config import config
from weft.errors import CompileError, ConfigError
from weft.interning import Interned
from weft.llvm.cache import ObjectCache
from weft.llvm.code import Code
from weft.llvm.digest import digest
from weft.llvm.host import host
from weft.llvm.host import llvm as _llvm
from weft.llvm.linking import ALLOWED_SYMBOLS, global_symbols, link
from weft.records import dataclass
from weft.version import __version__

# The instruction sets that WEFT_CPU can name, each with features that tell whether this machine has it.
_CPU_NEEDS: Final = {
    "x86-64-v2": {"sse4.2", "popcnt"},
    "x86-64-v3": {"avx2", "fma", "f16c", "bmi2"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}

# Code whose edits change kernels without changing their keys; part of every key on disk.
_CODE: Final = ("codegen", "llvm", "primitives", "runtime", "targets")

_COMPILERS: Final = 8  # threads; more would wait for llvmlite's lock, which parsing and verifying take

# What LLVM may take, where 20 to 55 bytes for each byte of IR were measured: nothing is worse than too little.
_WORK_BYTES: Final = 16 << 20
_BYTES_OF_TEXT: Final = 64
_THREAD_BYTES: Final = 72 << 20  # a thread has a stack, and the C library sets 64 MB apart for what it will allocate


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel that can be made: `key` describes it completely, in every process alike; `name` is its symbol in the
    module that `ir` writes. Whatever else the module defines must be private or internal. It may call the functions of
    other sources that call none, by their names: code that several kernels share is compiled once. What is `cold` takes
    no time to speak of when it runs: it is compiled at level 0, ten times as fast."""

    key: str
    name: str
    ir: Callable[[], str]
    calls: tuple[Source, ...] = ()
    cold: bool = False


@dataclass(slots=True)
class Stats:
    """What `load` has done in this process; `seconds` is the time spent on kernels that were not in memory."""

    compiled: int = 0
    disk_hits: int = 0
    loaded: int = 0
    seconds: float = 0.0


stats: Final = Stats()

# Held while kernels are found, compiled and linked. Forks wait for it, so that no child is born with LLVM in mid-work.
_lock: Final = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def load(sources: Sequence[Source]) -> list[Code]:
    """The machine code of `sources`, in order. Thread-safe."""
    target = _target(config.cpu, config.llvm_level)
    recent = target.loaded.recent
    try:
        return [recent[source.key] for source in sources]
    except KeyError:
        pass
    with _lock:
        start = time.perf_counter()
        found = _find(target, sources)
        missing = {source.key: source for source in sources if source.key not in found}
        if missing:  # another thread may have been here first
            called = [other for source in missing.values() for other in source.calls]
            found.update(_find(target, called))
            missing.update({other.key: other for other in called if other.key not in found})
            found.update(_load_missing(target, list(missing.values()), found))
        for key, code in found.items():
            target.loaded.keep(key, code)
        stats.seconds += time.perf_counter() - start
    return [found[source.key] for source in sources]


def _find(target: CodeTarget, sources: Sequence[Source]) -> dict[str, Code]:
    """What is in memory of these, by key."""
    live = [(source.key, target.loaded.find(source.key)) for source in sources]
    return {key: code for key, code in live if code is not None}


def load_for_good(source: Source) -> int:
    """The address of machine code that is never given back: what CPython calls, and what every program needs."""
    (code,) = load([source])
    _KEPT.append(code)
    return code.address


_KEPT: Final[list[Code]] = []


def llvm_text(source: Source) -> str:
    """The LLVM IR of `source`, and of what it calls, as codegen writes it, comments and all, once LLVM has accepted
    it."""
    return "\n".join(_llvm_text(part) for part in (source, *source.calls))


def _llvm_text(source: Source) -> str:
    target, text = _target(config.cpu, config.llvm_level), source.ir()

    def accepted() -> str:
        with target.module(source.name, text):
            return text

    return _undisturbed(accepted)


def assembly(source: Source) -> str:
    """The assembly of `source`, and of what it calls, for the current CPU and level."""
    return "\n".join(_assembly(part) for part in (source, *source.calls))


def _assembly(source: Source) -> str:
    target, text = _target(config.cpu, config.llvm_level).level_for(source), source.ir()

    def translated() -> str:
        with target.module(source.name, text) as (module, machine):
            machine.optimise(module)
            return machine.assembly(module)

    return _undisturbed(translated)


T = TypeVar("T")


_UNSEEN: Final = 3
"""Seconds in a row without a frame of a thread, after which it is gone. One may be that the process was stopped before
the thread began."""


def _undisturbed(work: Callable[[], T], hurry: Callable[[], object] = bool) -> T:
    """work(), where no handler of a signal can raise in the middle of it: Ctrl-C is raised when it is done, and until
    then it is told to `hurry`. LLVM's objects must be given up in order (a module before its context), or the process
    crashes, maybe much later.

    Handlers run on the main thread, so the work is done on another one.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    room.ensure_for_python("starting a thread to compile on")
    results: list[T | BaseException] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)
        finally:
            done.release()

    raised: BaseException | None = None
    thread: list[int] = []
    try:
        thread.extend(map(_thread.start_new_thread, (run,), ((),)))  # one step: what a handler raises comes after it
    except RuntimeError:  # there is no room for a thread, or Python is ending
        if not room.has_bytes(_THREAD_BYTES):  # nor is there for what LLVM puts on this one's stack
            raise MemoryError("[compile] there is no memory for a thread to compile on.") from None
        return work()
    except BaseException as error:
        raised = error
    unseen = 0
    while not results and unseen < _UNSEEN:
        try:
            if raised is not None:
                hurry()
            gone = not done.acquire(timeout=1.0) and bool(thread) and thread[0] not in sys._current_frames()
            unseen = unseen + 1 if gone else 0
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised
    if not results:
        raise MemoryError("[compile] there is no memory for a thread to compile on.")
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def _load_missing(target: CodeTarget, sources: list[Source], known: Mapping[str, Code]) -> dict[str, Code]:
    """The code of sources that are not in memory, nor is anything that they call but what is `known`."""
    room.ensure_for_python("writing kernels")
    _dump(sources)
    store = ObjectCache(config.cache_dir, config.cache_limit) if config.cache_dir else None
    digests = [target.digest(source) for source in sources]
    objects = [store.get(digest) if store is not None else None for digest in digests]
    cold = [i for i, found in enumerate(objects) if found is None]
    compiled = _compile(target, [sources[i] for i in cold])
    for i, made in zip(cold, compiled, strict=True):
        objects[i] = made
        if store is not None:
            store.put(digests[i], made)
    found: dict[str, Code] = {}
    for source, contents in sorted(zip(sources, objects, strict=True), key=lambda made: len(made[0].calls)):
        assert contents is not None, "what was not on disk has been compiled"
        calls = {other.name: found[other.key] if other.key in found else known[other.key] for other in source.calls}
        found[source.key] = target.loaded.add(source.key, link(contents, source.name, calls))
    stats.compiled += len(cold)
    stats.disk_hits += len(sources) - len(cold)
    stats.loaded += len(sources)
    return found


def _dump(sources: list[Source]) -> None:
    for source in sources:
        if "llvm" in config.dump:  # before anything else is done with it: it may be what LLVM chokes on
            print(f"; ---- LLVM IR of {source.name}: {source.key}\n{source.ir()}", file=sys.stderr)
        if "asm" in config.dump:
            print(f"# ---- assembly of {source.name}: {source.key}\n{_assembly(source)}", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------------------
# Targets
# ---------------------------------------------------------------------------------------------------------------------


class CodeTarget:
    """An instruction set and an optimisation level, with what has been loaded for them."""

    __slots__ = ("cpu", "features", "identity", "level", "loaded", "machines", "name")

    def __init__(self, cpu: str, level: int) -> None:
        self.name = cpu
        self.cpu, self.features = _instruction_set(cpu)
        self.level = level
        self.loaded: Interned[str, Code] = Interned(config.programs)
        self.machines: deque[Machine] = deque()  # those that no thread is using
        versions = f"{__version__} {host().llvmlite} {host().llvm}"
        machine = [host().triple, self.cpu, self.features, str(level)]
        # Everything that an object depends on, but the kernel itself.
        self.identity = digest("\n".join([versions, _code_stamp(), *machine, ""]).encode())

    def level_for(self, source: Source) -> CodeTarget:
        """The target that a source is compiled for: what is cold is not optimised."""
        return _target(self.name, 0) if source.cold else self

    def digest(self, source: Source) -> str:
        """The name of `source`'s object on disk."""
        found = self.identity.copy()
        found.update(f"{source.name}\n{source.key}".encode())
        return found.hexdigest()

    @contextmanager
    def module(self, name: str, text: str) -> Iterator[tuple[Any, Machine]]:
        """`text` parsed and verified, and a machine to compile it with. Neither the module's context nor the machine is
        in use elsewhere: that is what LLVM asks of threads."""
        llvm = _llvm()
        room.ensure(_WORK_BYTES + _BYTES_OF_TEXT * len(text), f"compiling kernel {name}")
        with self._machine() as machine, llvm.create_context() as context:
            try:
                module = llvm.parse_assembly(_nothing_throws(text), context)
            except RuntimeError as error:
                raise CompileError(f"LLVM cannot read kernel {name}: {error}") from None
            with module:
                module.triple, module.data_layout = machine.handle.triple, str(machine.handle.target_data)
                try:
                    module.verify()  # passes and code generation may crash on a module that is not well-formed
                except RuntimeError as error:
                    raise CompileError(f"LLVM rejects kernel {name}: {error}") from None
                yield module, machine

    @contextmanager
    def _machine(self) -> Iterator[Machine]:
        try:
            machine = self.machines.pop()
        except IndexError:
            machine = Machine(self.cpu, self.features, self.level)
        try:
            yield machine
        finally:
            self.machines.append(machine)


class Machine:
    """LLVM's target machine with its passes; serves one thread at a time."""

    __slots__ = ("handle", "pass_builder")

    def __init__(self, cpu: str, features: str, level: int) -> None:
        self.handle = _new_handle(cpu, features, level)
        # Below level 3 there is nothing to gain: see the top.
        self.pass_builder = _new_pass_builder(self.handle) if level == 3 else None

    def optimise(self, module: Any) -> None:
        if self.pass_builder is None:
            return
        passes = self.pass_builder.getModulePassManager()  # anew for each module: a run uses them up
        try:
            passes.run(module, self.pass_builder)
        finally:  # by hand, because a manager's `close` finds the empty method of another base class and leaks 80 KB
            _llvm().newpassmanagers.NewPassManager._dispose(passes)
            passes.detach()

    def object(self, module: Any) -> bytes:
        """Object code; consumes the module."""
        return _emitter()(self.handle, module)

    def assembly(self, module: Any) -> str:
        """The same as text; consumes the module."""
        return str(self.handle.emit_assembly(module))


_targets: Final[dict[tuple[str, int], CodeTarget]] = {}


def _target(cpu: str, level: int) -> CodeTarget:
    found = _targets.get((cpu, level))
    if found is not None:
        return found
    if level not in range(4):
        raise ConfigError(f"config.llvm_level is {level!r}; allowed: 0, 1, 2 or 3.")
    with _lock:
        return _targets.setdefault((cpu, level), CodeTarget(cpu, level))


def cpu_name() -> str:
    """What LLVM calls the CPU that we compile for."""
    return _instruction_set(config.cpu)[0]


def has_half_conversions() -> bool:
    """Whether the CPU that we compile for converts float16 in hardware (F16C; all AArch64). LLVM would call a function
    otherwise."""
    return _came_with_v3("f16c", config.cpu)


def has_fma() -> bool:
    """Whether the CPU that we compile for multiplies and adds with one rounding (FMA; all AArch64)."""
    return _came_with_v3("fma", config.cpu)


@functools.cache
def _came_with_v3(feature: str, cpu: str) -> bool:
    if platform.machine() != "x86_64":
        return True
    if cpu == "native":
        return host().has(feature)
    return cpu != "x86-64-v2"


@functools.cache
def _instruction_set(cpu: str) -> tuple[str, str]:
    """LLVM's names for the CPU and its features."""
    if cpu == "native":
        return host().cpu, host().features
    lacking = [feature for feature in sorted(_CPU_NEEDS.get(cpu, {cpu})) if not host().has(feature)]
    if lacking:
        raise ConfigError(f"WEFT_CPU is {cpu!r}, but this machine's CPU lacks {', '.join(lacking)}.")
    return cpu, ""


def _new_handle(cpu: str, features: str, level: int) -> Any:
    # The linker puts a kernel's code and constants side by side, wherever that is, so neither asks for long addresses.
    native = _llvm().Target.from_default_triple()
    return native.create_target_machine(cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small")


def _new_pass_builder(handle: Any) -> Any:
    """A maker of LLVM's own pipeline, for kernels that somebody wrote as scalar loops."""
    llvm = _llvm()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    options.loop_unrolling = False  # doubles the time for kernels of several loops, and their speed stays the same
    return llvm.create_pass_builder(handle, options)


def _code_stamp() -> str:
    """Names, sizes and times of the files that decide a kernel's text, or of the archive that they are in: who edits
    them must not meet old objects."""
    stamps = []
    top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    pending = list(_CODE)
    while pending:
        part = pending.pop()
        with suppress(OSError), os.scandir(os.path.join(top, part)) as listing:
            for item in listing:
                if item.name.endswith((".py", ".pyc")):
                    status = item.stat()
                    stamps.append(f"{part}/{item.name} {status.st_size} {status.st_mtime_ns}")
                elif item.is_dir() and not item.name.startswith("__"):
                    pending.append(f"{part}/{item.name}")
    return " ".join(sorted(stamps)) or _archive_stamp(top)


def _archive_stamp(path: str) -> str:
    """The stamp of the file that holds the package at `path`; one of this process alone if there is none."""
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        if os.path.isfile(path):
            status = os.stat(path)
            return f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
    return os.urandom(16).hex()


# ---------------------------------------------------------------------------------------------------------------------
# Compiling
# ---------------------------------------------------------------------------------------------------------------------


def _compile(target: CodeTarget, jobs: list[Source]) -> list[bytes]:
    """The objects of these sources. All IR is written first, in this thread: `ir` may use thread-local state, and would
    keep the interpreter lock from the helpers. LLVM runs without it: on two idle cores, 24 kernels took 110 ms to parse
    and compile on one thread and 60 ms on two."""
    texts = [source.ir() for source in jobs]
    targets = [target.level_for(source) for source in jobs]  # here, where the lock is held that a new target needs
    made: list[bytes | BaseException] = [b""] * len(jobs)
    todo = sorted(range(len(jobs)), key=lambda i: (not jobs[i].cold, len(texts[i])))  # the longest one is taken first

    def work() -> None:
        while todo:
            try:
                i = todo.pop()
            except IndexError:  # another thread was quicker
                return
            try:
                made[i] = _compile_one(targets[i], jobs[i], texts[i])
            except BaseException as error:
                made[i] = error

    def work_together() -> None:
        helpers = beside.start(work, _helpers(texts))
        work()
        for helper in helpers:
            helper.end()

    if jobs:
        _undisturbed(work_together, hurry=todo.clear)
    for result in made:
        if isinstance(result, BaseException):
            raise result
    return [result for result in made if isinstance(result, bytes)]


def _helpers(texts: list[str]) -> int:
    """How many threads compile these beside the caller: as many as may be, if there is room for what all of them may
    need at once, else none."""
    count = min(config.threads, len(texts), _COMPILERS) - 1
    needed = (count + 1) * (_THREAD_BYTES + _WORK_BYTES) + _BYTES_OF_TEXT * sum(map(len, texts))
    return count if count > 0 and room.has_bytes(needed) else 0


def _compile_one(target: CodeTarget, source: Source, text: str) -> bytes:
    name = source.name
    with target.module(name, text) as (module, machine):
        _check_kernel(module, name)
        machine.optimise(module)
        made = machine.object(module)
    defined, undefined = global_symbols(made)
    if strange := sorted(undefined - ALLOWED_SYMBOLS - {other.name for other in source.calls}):
        raise CompileError(
            f"kernel {name} calls {', '.join(strange)}, which is not in ALLOWED_SYMBOLS of weft.llvm.linking. Most "
            "likely an operation in it has no instruction on this CPU; WEFT_DUMP=llvm shows the kernel."
        )
    if extra := sorted(defined - {name}):
        raise CompileError(f"kernel {name} also exports {', '.join(extra)}; give them private or internal linkage.")
    return made


def _check_kernel(module: Any, name: str) -> None:
    try:
        kernel = module.get_function(name)
    except NameError:
        raise CompileError(f"the module of kernel {name} has no function of that name.") from None
    if kernel.is_declaration:
        raise CompileError(f"the module of kernel {name} declares it but does not define it.")


_HEADER: Final = re.compile(r"\ndefine .*?(?= \{\n)", re.DOTALL)


def _nothing_throws(text: str) -> str:
    """The module with every function marked so: no tables for unwinding are made. As text, because llvmlite before 0.48
    marks the value that a function returns, which no verifier of LLVM accepts."""
    return _HEADER.sub(r"\g<0> nounwind", "\n" + text)[1:]


@functools.cache
def _emitter() -> Callable[[Any, Any], bytes]:
    """A function from (target machine, module) to object code that several threads can run at the same time.

    llvmlite takes one lock around every call. LLVM itself asks only that threads share no context and no target
    machine, so we call the same entry point through a handle of our own; should a later llvmlite lack it, its method
    will do.
    """
    llvm = _llvm()
    lib = llvm.ffi.lib
    try:
        emit = ctypes.CDLL(lib._name).LLVMPY_TargetMachineEmitToMemory
        emit.argtypes, emit.restype = lib.LLVMPY_TargetMachineEmitToMemory.argtypes, llvm.ffi.LLVMMemoryBufferRef
    except (AttributeError, OSError):
        return lambda machine, module: bytes(machine.emit_object(module))

    def unlocked(machine: Any, module: Any) -> bytes:
        with llvm.ffi.OutputString() as message:
            buffer = emit(machine, module, True, message)
            if not buffer:
                raise CompileError(f"LLVM cannot generate code: {message}")
        try:
            return ctypes.string_at(lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer))
        finally:
            lib.LLVMPY_DisposeMemoryBuffer(buffer)

    return unlocked
