"""The architecture, enforced: imports point one way, environment variables have one reader, files stay readable.

The sources are read, not imported, so a violation is named with its line even where Python would not mind it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "weft").rglob("*.py"))

# From the top of the picture in docs/architecture.md to the bottom. A part may import itself and whatever stands in a
# row below its own; parts in one row do not know of each other.
ROWS = (
    ("__main__",),
    ("cli",),
    ("frontends", "report"),
    ("nn", "optimizers"),
    ("utils",),
    ("core",),
    ("program",),
    ("transforms",),
    ("array",),
    ("evaluate",),
    ("checking",),
    ("targets",),
    ("passes", "reference"),
    ("primitives",),
    ("graph",),
    ("kernels",),
    ("codegen", "files"),
    ("runtime",),
    ("interop", "printing"),
    ("llvm",),
    ("dtypes", "tree"),
    ("config",),
    ("beside", "errors", "interning", "lazy", "records", "room", "version"),
)
RANK = {part: rank for rank, row in enumerate(ROWS) for part in row}
MAX_LINES = 1000


@dataclass(frozen=True)
class Import:
    """One `import` of a module of Weft: where it stands, and what it brings."""

    source: Path
    line: int
    module: str  # the dotted name that is imported
    in_function: bool
    for_types: bool  # under `if TYPE_CHECKING:`; does not happen at run time

    def __str__(self) -> str:
        return f"{self.source.relative_to(ROOT)}:{self.line} imports {self.module}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def part(module: str) -> str:
    """The row's entry that a module belongs to: `weft.graph.node` -> `graph`."""
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> Iterator[Import]:
    """Every import of Weft's own modules in a file. `from weft.graph import node` brings `weft.graph.node`, and so does
    `lazy("weft.graph.node")`, later."""

    def walk(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                for name in imported(child):
                    yield Import(path, child.lineno, name, in_function, for_types)
                continue
            if isinstance(child, ast.Call) and ast.unparse(child.func) == "lazy":
                name = ast.literal_eval(child.args[0])
                if name.partition(".")[0] == "weft":
                    yield Import(path, child.lineno, name, True, False)
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from walk(ast.Module(child.body, []), inside, True)
                yield from walk(ast.Module(child.orelse, []), inside, for_types)
                continue
            yield from walk(child, inside, for_types)

    def imported(statement: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(statement, ast.Import):
            return [alias.name for alias in statement.names if alias.name.partition(".")[0] == "weft"]
        assert statement.level == 0, f"{path}:{statement.lineno}: relative imports are not used here"
        origin = statement.module or ""
        if origin.partition(".")[0] != "weft":
            return []
        names = [f"{origin}.{alias.name}" for alias in statement.names]
        return list(dict.fromkeys(name if name in MODULES else origin for name in names))

    return walk(ast.parse(path.read_text()), False, False)


ALL_IMPORTS = [found for path in SOURCES for found in imports(path)]


def test_every_part_has_its_place_in_the_picture() -> None:
    unknown = sorted({part(name) for name in MODULES} - {""} - set(RANK))
    assert not unknown, f"give {unknown} a row in ROWS, and in docs/architecture.md"


def test_imports_point_down() -> None:
    wrong = []
    for found in ALL_IMPORTS:
        here, there = part(module_name(found.source)), part(found.module)
        if here in ("", there) or found.for_types:  # weft/__init__.py may show anything
            continue
        if not there or RANK[there] <= RANK[here]:
            wrong.append(f"{found}, which is not below {here}")
    assert not wrong, "\n".join(wrong)


def test_no_circles() -> None:
    """Not within a part either: a circle of modules is one module, whatever the files say."""
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for found in ALL_IMPORTS:
        here = module_name(found.source)
        if not (found.for_types or found.in_function or MODULES[here].name == "__init__.py"):
            graph[here].add(found.module)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_imports_inside_functions_say_why() -> None:
    """In a comment on or above the line, or in the docstring of the function."""
    silent = []
    for path in SOURCES:
        lines = path.read_text().splitlines()
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if "import" in (ast.get_docstring(function) or "").lower():
                continue
            for statement in ast.walk(function):
                if not isinstance(statement, ast.Import | ast.ImportFrom):
                    continue
                line, above = lines[statement.lineno - 1], lines[statement.lineno - 2].strip()
                if "#" not in line and not above.startswith("#"):
                    silent.append(f"{path.relative_to(ROOT)}:{statement.lineno}")
    assert not silent, f"a comment must give the reason for these imports: {silent}"


def test_one_reader_of_environment_variables() -> None:
    readers = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            named = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            imported = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            if {named, *imported} & {"environ", "environb", "getenv"}:
                readers.add(path.relative_to(ROOT).as_posix())
    assert readers <= {"weft/config.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: module_name(path))
def test_a_module_is_introduced_and_fits_in_a_head(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    if path.name != "__init__.py" or text.strip():
        assert ast.get_docstring(ast.parse(text)), "a module opens with a paragraph that says what it is for"
