"""What `import weft.core` loads, and modules that are loaded when they are used."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import REPOSITORY, in_threads, run_alone
from weft.lazy import lazy

COMPILER = (
    "weft.checking", "weft.codegen.math", "weft.files.gguf", "weft.files.npy", "weft.files.safetensors", "weft.nn",
    "weft.passes", "weft.reference", "weft.report", "weft.targets", "weft.transforms.compile",
    "weft.transforms.exporting", "weft.transforms.importing", "weft.transforms.tracing", "weft.transforms.variant",
)  # fmt: skip
"""Loaded by the first program, the first function to be compiled, or the first file."""
KERNELS = (
    "weft.codegen.math", "weft.passes.lower_loops", "weft.passes.show", "weft.passes.verify",
    "weft.targets.cpu.attention", "weft.targets.cpu.custom", "weft.targets.cpu.fft", "weft.targets.cpu.forms.steps",
    "weft.targets.cpu.lapack", "weft.targets.cpu.matmul", "weft.targets.cpu.moves", "weft.targets.cpu.partition",
    "weft.targets.cpu.quantized", "weft.targets.cpu.scan", "weft.targets.cpu.scatters", "weft.targets.cpu.selection",
    "weft.targets.cpu.small_matrices", "weft.targets.cpu.small_spectra", "weft.targets.cpu.sorting",
)  # fmt: skip
"""Loaded by the first operation that has such kernels, loop, or check; not by a program of elementwise operations."""
NEVER = (
    "_hashlib", "asyncio", "bz2", "dataclasses", "hashlib", "importlib.resources", "json", "llvmlite", "logging",
    "lzma", "ml_dtypes", "pathlib", "queue", "random", "rich", "scipy", "secrets", "shutil", "socket", "ssl",
    "subprocess", "sysconfig", "tempfile", "unittest", "urllib", "zipfile",
)  # fmt: skip
"""Of others, and not loaded at all unless NumPy does."""


def loaded() -> None:
    """Prints what is loaded by the import, and by a first program after it, beside what NumPy loads."""
    before = set(sys.modules)
    import weft.core as mx

    imported = set(sys.modules) - before
    mx.eval(mx.exp(mx.array([1.0, 2.0])) + 1)
    assert mx.array([1.5]).tolist() == [1.5]
    print(*sorted(imported))
    print(*sorted(set(sys.modules) - before))


def alone(tmp_path: Path) -> list[set[str]]:
    """What `loaded` says in a process that has imported nothing but NumPy, and has what it needs in the cache."""
    program = tmp_path / "program.py"
    source = Path(__file__).read_text()
    function = next(x for x in ast.parse(source).body if isinstance(x, ast.FunctionDef) and x.name == "loaded")
    program.write_text(f"import sys\nimport numpy\n\n{ast.get_source_segment(source, function)}\n")
    for _ in range(2):
        said = run_alone(str(program), "loaded", WEFT_CACHE_DIR=str(tmp_path / "cache"), WEFT_CHECK="", WEFT_DUMP="")
    return [set(line.split()) for line in said.splitlines()]


def within(names: set[str], parts: tuple[str, ...]) -> list[str]:
    return sorted(name for name in names for part in parts if name == part or name.startswith(f"{part}."))


def test_what_an_import_loads(tmp_path: Path) -> None:
    imported, run = alone(tmp_path)
    assert within(imported, (*COMPILER, *NEVER)) == []
    assert within(run, NEVER) == [], "a program whose kernels are in the cache needs none of these"
    assert within(run, KERNELS) == [], "nor one whose operations are elementwise, of these"
    assert "weft.passes.pipeline" in run, "the list above has names of modules that there are"
    missing = [name for name in (*COMPILER, *KERNELS) if importlib.util.find_spec(name) is None]
    assert not missing, missing


# ---- lazy modules ----


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that counts how often it is loaded."""
    name = f"lazily_loaded_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "import builtins, time\n"
        "builtins.times_loaded = getattr(builtins, 'times_loaded', 0) + 1\n"
        "time.sleep(0.01)\n"
        "value = 1\n"
        "def read(): return value\n"
        "def __getattr__(name):\n"
        "    if name != 'made': raise AttributeError(name)\n"
        "    return 'made'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.times_loaded", 0, raising=False)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def times_loaded() -> int:
    import builtins

    return builtins.times_loaded  # type: ignore[attr-defined,no-any-return]


def test_a_module_is_loaded_by_the_first_attribute(module: str) -> None:
    it = lazy(module)
    assert module in repr(it)
    assert times_loaded() == 0
    assert it.value == 1
    assert it.made == "made"
    assert it.read is sys.modules[module].read
    assert times_loaded() == 1
    with pytest.raises(AttributeError, match="other"):
        _ = it.other


def test_what_is_replaced_in_the_module_is_replaced(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it, other = lazy(module), lazy(module)
    monkeypatch.setattr(other, "value", 2)
    assert it.value == it.read() == sys.modules[module].value == 2  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.modules[module], "value", 3)
    assert it.value == other.value == 3


def test_threads_wait_for_a_module_that_is_being_loaded(module: str) -> None:
    it = lazy(module)
    found: list[Any] = []
    in_threads(8, lambda _: found.append(it.read()))
    assert found == [1] * 8
    assert times_loaded() == 1


def test_a_module_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fails_at_first.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    it = lazy("fails_at_first")
    with pytest.raises(ModuleNotFoundError):
        _ = it.value
    file.write_text("1 / 0")
    importlib.invalidate_caches()
    with pytest.raises(ZeroDivisionError):
        _ = it.value
    file.write_text("value = 5")
    importlib.invalidate_caches()
    assert it.value == 5


def test_lazy_modules_are_those_that_types_are_checked_with() -> None:
    """`if TYPE_CHECKING: <imports> else: name = lazy("module")`: the same names, of the same modules."""
    wrong = []
    for path in sorted((REPOSITORY / "weft").rglob("*.py")):
        for statement in ast.walk(ast.parse(path.read_text())):
            calls = [x for x in ast.walk(statement) if isinstance(x, ast.Call) and ast.unparse(x.func) == "lazy"]
            if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING" and calls:
                typed, late = _bound(statement.body), _lazies(statement.orelse)
                wrong += [f"{path}: {name} is {what}" for name, what in late if typed.get(name) != what]
            elif isinstance(statement, ast.Module) and path.name != "lazy.py":
                under = [x for x in statement.body if isinstance(x, ast.If)]
                wrong += [f"{path}: line {x.lineno}" for x in calls if not any(x in ast.walk(y) for y in under)]
    assert not wrong, "\n".join(wrong)


def _bound(statements: list[ast.stmt]) -> dict[str, str]:
    """The names that imports bind, with the modules that they stand for."""
    found: dict[str, str] = {}
    for statement in statements:
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        prefix = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
        found |= {alias.asname or alias.name: prefix + alias.name for alias in statement.names}
    return found


def _lazies(statements: list[ast.stmt]) -> list[tuple[str, str]]:
    pairs = []
    for statement in statements:
        assert isinstance(statement, ast.Assign)
        (targets,) = statement.targets
        names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
        values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
        for name, value in zip(names, values, strict=True):
            assert isinstance(value, ast.Call)
            assert importlib.util.find_spec(ast.literal_eval(value.args[0])) is not None, ast.unparse(value)
            pairs.append((ast.unparse(name), ast.literal_eval(value.args[0])))
    return pairs


def first_programs() -> None:
    """Several threads load the compiler at the same time, each by another door."""
    import weft.core as mx

    f = mx.compile(lambda x: mx.tanh(x) * 2, shapeless=True)
    doors = [
        lambda: (mx.array([1.0, 2.0]) + 1).tolist() == [2.0, 3.0],
        lambda: f(mx.array([0.0])).tolist() == [0.0],
        lambda: mx.compile(lambda x: x * 3)(mx.array([1.0])).item() == 3.0,
        lambda: mx.array([[1.0, 2.0], [3.0, 4.0]])[1:, 0].tolist() == [3.0],
        lambda: mx.ones((3,), mx.bfloat16).astype(mx.float32).tolist() == [1.0] * 3,
        lambda: mx.grad(lambda x: (x * x).sum())(mx.array([2.0])).item() == 4.0,
        lambda: mx.device_count(mx.cpu) == 1,
        lambda: mx.linalg.inv(mx.array([[2.0]])).item() == 0.5,
    ]
    found: list[bool] = []
    in_threads(len(doors), lambda number: found.append(doors[number]()))
    print(found)


def test_threads_may_run_the_first_programs() -> None:
    for _ in range(3):
        assert run_alone(__file__, "first_programs").strip() == str([True] * 8)
