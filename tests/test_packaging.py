"""What is shipped: a pure wheel that has all of its parts, asks for all that it imports, and matches its documents."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from weft.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", requirement)[0].replace("-", "_").lower() for requirement in requirements}


def test_all_imports_are_declared() -> None:
    """At the top of a module: the dependencies, and in a front end the library that it is for. In a function, or to
    check types: optional extras too."""
    required = requirement_names(PROJECT["dependencies"])
    optional = required.union(*(requirement_names(extra) for extra in PROJECT["optional-dependencies"].values()))
    optional |= {"cuda"}  # what cuda-bindings brings
    wrong = []
    for path in sorted((ROOT / "weft").rglob("*.py")):
        tree = ast.parse(path.read_text())
        top_level = {id(node) for node in tree.body}
        parts = path.relative_to(ROOT).parts
        its_own = {parts[2]} if parts[1] == "frontends" and len(parts) > 3 else set()
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"weft"}:
                if name not in (required | its_own if id(node) in top_level else optional):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # With the build backend at hand nothing is downloaded; without it, pip brings it.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (built,) = folder.iterdir()
    return built


def test_the_wheel_is_pure(wheel: Path) -> None:
    assert wheel.name == f"weft-{__version__}-py3-none-any.whl"


def test_the_wheel_has_all_sources_and_nothing_else(wheel: Path) -> None:
    metadata = f"weft-{__version__}.dist-info/"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(metadata)}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "weft").rglob("*.py")}
    benchmarks = {f"weft/_benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("*.py")}
    assert sources | benchmarks | {"weft/py.typed"} <= names
    strangers = {name for name in names - sources - benchmarks if not name.startswith("weft/")}
    assert not strangers


def test_the_wheel_works_where_there_is_no_source_tree(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for arguments, expected in ((["--version"], f"weft {__version__}"), (["bench", "--help"], "usage: weft bench")):
        command = [sys.executable, "-m", "weft", *arguments]
        result = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
        assert result.stdout.startswith(expected)


def test_the_version_has_one_source() -> None:
    assert "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+([ab]\d+|rc\d+)?(\.dev\d+)?", __version__)
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_documented_make_targets_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = set(re.findall(r"(?:^|`)make ([a-z][a-z-]+)", (ROOT / document).read_text(), re.MULTILINE))
    assert mentioned
    assert mentioned <= targets


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documented_files_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    quoted = re.findall(r"`((?:weft|tests|docs|benchmarks|examples)/[\w./-]+)`", text)
    made_by_make = {"benchmarks/RESULTS.md"}
    missing = [name for name in {*links, *quoted} - made_by_make if not (ROOT / name).exists()]
    assert not missing


def test_the_programs_in_the_readme_run() -> None:
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert programs
    for program in programs:
        exec(program, {})
