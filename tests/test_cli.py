"""The `weft` command as a user meets it: in a process of its own, judged by what it prints and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weft.version import __version__

ROOT = Path(__file__).resolve().parents[1]


def weft(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "weft", *arguments]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300, check=False)


# ---- the command line itself ----


def test_version() -> None:
    result = weft("--version")
    assert (result.returncode, result.stdout) == (0, f"weft {__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["help"], ["run", "--help"], ["explain", "-h"], ["check", "--help"]]
)
def test_help_names_every_command(arguments: list[str]) -> None:
    result = weft(*arguments)
    assert result.returncode == 0
    for command in ("run", "explain", "check", "doctor", "bench", "--version"):
        assert f"weft {command}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "what shall it be?"),
        (["frobnicate"], "no command 'frobnicate'"),
        (["doctor", "--quick"], "doctor takes no arguments, got --quick"),
        (["run"], "run needs a program"),
        (["run", "--flag"], "run needs a program"),
        (["run", "-m"], "run needs a program"),
        (["run", "absent.py"], "cannot open 'absent.py'"),
        (["run", "-m", "absent_module"], "No module named absent_module"),
        (["explain"], "explain needs a program"),
        (["explain", "absent.py", "--asm"], "weft explain: cannot open 'absent.py'"),
        (["explain", "script.py", "--html"], "--html needs the name of a file to write"),
        (["check"], "check needs a program"),
        (["check", "absent.py"], "weft check: cannot open 'absent.py'"),
        (["bench", "absent"], "no such workload: absent"),
        (["bench", "--peers", "absent"], "no such peer: absent"),
        (["bench", "--python", "jax"], "--python wants PEER=PATH"),
        (["bench", "--earlier", "/nowhere"], "--earlier wants a checkout of Weft; there is none in /nowhere"),
        (["bench", "--peers", "earlier"], "the peer `earlier` wants --earlier DIR"),
        (["bench", "--rounds", "0"], "--rounds and --threads start at 1"),
        (["bench", "llm", "absent"], "'absent' is no shape (small, qwen3-0.6b)"),
        (["bench", "llm", "small", "--tokens"], "'--tokens' is no shape"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], complaint: str) -> None:
    result = weft(*arguments)
    assert result.returncode == 2
    assert complaint in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


# ---- run ----

SHOW = """
import json, os, sys
import neighbour
import mlx.core as mx
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0], "neighbour": neighbour.__file__,
    "core": mx.__name__, "main": sys.modules["__main__"].__file__, "sum": mx.sum(mx.arange(10)).item(),
}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "show.py").write_text(SHOW)
    (folder / "neighbour.py").write_text("")
    return folder


def test_run_is_like_python(project: Path) -> None:
    """Seen from another directory, with arguments that look like options of ours."""
    script = os.path.join("project", "show.py")
    result = weft("run", script, "-m", "--help", "x y", cwd=project.parent)
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert shown["name"] == "__main__"
    assert shown["file"] == shown["main"] == script
    assert shown["argv"] == [script, "-m", "--help", "x y"]
    assert shown["path"] == str(project)
    assert shown["neighbour"] == str(project / "neighbour.py")
    assert (shown["core"], shown["sum"]) == ("weft.core", 45)


def test_run_a_module(project: Path) -> None:
    result = weft("run", "-m", "show", "--flag", cwd=project)
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert shown["name"] == "__main__"
    assert shown["argv"] == [str(project / "show.py"), "--flag"]
    assert shown["path"] == str(project)
    assert shown["core"] == "weft.core"


@pytest.mark.parametrize(("code", "status"), [("7", 7), ("0", 0), ("None", 0), ("'no luck'", 1)])
def test_run_ends_as_the_program_ends(tmp_path: Path, code: str, status: int) -> None:
    script = tmp_path / "end.py"
    script.write_text(f"import sys\nsys.exit({code})\n")
    assert weft("run", str(script)).returncode == status


def test_run_shows_only_the_frames_of_the_program(tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    script.write_text("def inner():\n    raise ValueError('on purpose')\n\ninner()\n")
    result = weft("run", str(script))
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.returncode == plain.returncode == 1
    assert result.stderr == plain.stderr


def test_run_shows_syntax_errors(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("x = = 1\n")
    result = weft("run", str(script))
    assert result.returncode == 1
    assert result.stderr.startswith(f'  File "{script}", line 1')
    assert "SyntaxError" in result.stderr


def test_the_example_is_the_same_on_weft_and_as_a_program_for_mlx() -> None:
    """Same code, same seeds, same engine: the lines that do not tell the time agree, and the network has learned."""
    script, size = str(ROOT / "examples" / "train_mlp.py"), ("--epochs", "4", "--images", "1500")
    outputs = [weft("run", script, *size, "--backend", backend) for backend in ("weft", "mlx")]
    for output in outputs:
        assert output.returncode == 0, output.stderr
    scores = [re.findall(r"loss ([\d.]+)  test accuracy ([\d.]+)%", output.stdout) for output in outputs]
    assert scores[0] == scores[1]
    losses, accuracies = zip(*((float(loss), float(accuracy)) for loss, accuracy in scores[0]), strict=True)
    assert len(losses) == 4
    assert list(losses) == sorted(losses, reverse=True)
    assert accuracies[-1] > 50.0  # guessing gives 10


# ---- explain and check ----

LOOK = """
import sys
import mlx.core as mx

@mx.compile
def normal(x):
    centred = x - mx.mean(x, axis=-1, keepdims=True)
    return centred / mx.sqrt(mx.mean(centred * centred, axis=-1, keepdims=True))

x = mx.array([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
print(normal(x[:1] + 0).shape, sys.argv[1:])
if "--flat" in sys.argv:
    print(normal(x).shape)
sys.exit(3 if "--fail" in sys.argv else 0)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "look.py"
    path.write_text(LOOK)
    return path


def test_explain_shows_the_programs_of_a_script(script: Path) -> None:
    result = weft("explain", "look.py", "--fail", "--llvm", cwd=script.parent)
    assert result.returncode == 3, "that of the script"
    assert result.stdout.startswith("(1, 3) ['--fail']\n"), "what the script prints comes first"
    assert "weft explain: look.py" in result.stdout
    assert re.search(r"^  \d: normal \(\d kernels?, .* in 1 run\)  \[look.py:11\]$", result.stdout, re.MULTILINE)
    assert "  # look.py:7  centred = x - mx.mean(x, axis=-1, keepdims=True)\n" in result.stdout
    assert "define void @weft_row_" in result.stdout
    assert result.stderr == ""


def test_explain_writes_a_page(script: Path) -> None:
    """Options may stand on either side of the script; what follows `--` is its own."""
    for arguments in (["--html=page.html", "look.py", "a"], ["look.py", "a", "--html", "page.html"]):
        result = weft("explain", *arguments, cwd=script.parent)
        assert (result.returncode, result.stdout) == (0, "(1, 3) ['a']\n")
        assert result.stderr == "weft explain: wrote page.html\n"
        page = script.parent / "page.html"
        assert page.read_text().startswith("<!doctype html>")
        page.unlink()
    result = weft("explain", "look.py", "--", "--html", "b", cwd=script.parent)
    assert result.stdout.startswith("(1, 3) ['--html', 'b']\n")


def test_explain_a_script_that_computes_nothing(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("print('done')\n")
    result = weft("explain", "quiet.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert result.stderr == "weft explain: the program computed nothing with Weft\n"


def test_check_finds_nothing_in_a_good_run(script: Path) -> None:
    result = weft("check", "look.py", cwd=script.parent)
    assert (result.returncode, result.stdout) == (0, "(1, 3) []\n")
    assert re.fullmatch(r"weft check: \d+ operations in \d+ runs of \d+ programs: nothing wrong\n", result.stderr)


def test_check_names_the_line_that_makes_a_nan(script: Path) -> None:
    result = weft("check", "look.py", "--flat", cwd=script.parent)
    assert (result.returncode, result.stdout) == (1, "(1, 3) ['--flat']\n(2, 3)\n")
    assert result.stderr.startswith(
        "first NaN: divide makes NaN of 0.0, 0.0 (at (1, 0) of shape (2, 3))\n"
        "  look.py:8, in normal\n"
        "    return centred / mx.sqrt("
    )
    assert result.stderr.endswith(": 1 finding\n")


def test_check_ends_as_the_program_ends(script: Path) -> None:
    assert weft("check", "look.py", "--fail", cwd=script.parent).returncode == 3
    (script.parent / "wrong.py").write_text("import mlx.core as mx\nmx.array([1]) + nothing\n")
    result = weft("check", "wrong.py", cwd=script.parent)
    assert result.returncode == 1
    assert "NameError: name 'nothing' is not defined" in result.stderr
    assert "weft/cli.py" not in result.stderr


# ---- doctor ----


def test_doctor_finds_nothing_wrong() -> None:
    result = weft("doctor", WEFT_THREADS="1")
    assert result.returncode == 0, result.stdout
    lines = dict(line.split(maxsplit=1) for line in result.stdout.replace("self test", "self-test").splitlines())
    assert lines["versions"].startswith(f"weft {__version__}, ")
    assert lines["threads"].startswith("1 of ")
    assert os.environ["WEFT_CACHE_DIR"] in lines["cache"]
    assert lines["self-test"].startswith("OK ")
    assert "\x1b" not in result.stdout, "colours belong on a terminal"


def test_doctor_survives_a_broken_installation() -> None:
    result = weft("doctor", WEFT_THREADS="none")
    assert result.returncode == 1
    assert re.search(r"^libraries +llvmlite \d", result.stdout, re.MULTILINE)
    assert re.search(r"^self test +FAILED: ConfigError: WEFT_THREADS is 'none'", result.stdout, re.MULTILINE)
    assert "Traceback" not in result.stderr


# ---- bench ----


def test_bench_measures_and_writes(tmp_path: Path) -> None:
    json_file, table = tmp_path / "results.json", tmp_path / "RESULTS.md"
    options = ["--peers", "", "--rounds", "2", "--budget", "0.01", "--json", str(json_file), "--write", str(table)]
    result = weft("bench", "dispatch", "softmax_4096x1024", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    answers = json.loads(json_file.read_text())["answers"]
    for name in ("dispatch", "softmax_4096x1024"):
        assert [row["round"] for row in answers[name]["weft"]] == [0, 1]
        assert all(0 < row["best_s"] <= row["median_s"] for row in answers[name]["weft"])
    assert re.search(r"^\| softmax_4096x1024 \| [\d.,]+ \| – \| \d+% \|$", table.read_text(), re.MULTILINE)


def test_bench_reports_what_a_peer_cannot_do(tmp_path: Path) -> None:
    """A peer that lacks an operation is a row that says so, and a missing peer is left out."""
    stand_in = tmp_path / "mlx"
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text("")
    (stand_in / "core.py").write_text(
        "from weft.core import *\nfrom weft.core import random\n__version__ = '0'\ndel softmax\n"
    )
    options = ["--peers", "mlx,jax", "--python", "jax=/no/such/python", "--rounds", "1", "--budget", "0.01"]
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    result = weft("bench", "dispatch", "softmax_4096x1024", *options, PYTHONPATH=paths, COLUMNS="200")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "jax stays out: cannot run /no/such/python" in result.stdout
    assert re.search(r"error softmax_4096x1024, mlx: AttributeError", result.stdout)
    assert re.search(r"│ dispatch +│ +[\d.]+ │ +[\d.]+ │ +[\d.]+ │", result.stdout)


# ---- what a program run by `weft run` starts ----

PARENT = """
import multiprocessing, subprocess, sys

def child(queue):
    import mlx.core as mx
    queue.put((mx.__name__, mx.sum(mx.arange(4)).item()))

if __name__ == "__main__":
    code = "import mlx.core as mx; print(mx.__name__, mx.sum(mx.arange(4)).item())"
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"])
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(*queue.get(timeout=100))
    process.join()
"""


def test_children_of_a_program_have_weft_for_mlx_too(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    result = weft("run", str(script))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["weft.core 6"] * 3


def test_children_keep_their_own_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mine = 'mine'\n")
    script = tmp_path / "parent.py"
    code = "import sys, mlx.core; print(sys.mine, mlx.core.__name__)"
    script.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}], check=True)\n")
    result = weft("run", str(script), PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["mine", "weft.core"]


def test_the_version_of_mlx_is_the_one_stood_in_for(tmp_path: Path) -> None:
    script = tmp_path / "version.py"
    script.write_text(
        "from importlib.metadata import distribution, version\n"
        "print(version('mlx'), distribution('mlx').metadata['Name'], version('numpy') != version('mlx'))\n"
    )
    result = weft("run", str(script))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["0.32.4", "mlx", "True"]


def test_quiet_runs_show_none_of_our_warnings(tmp_path: Path) -> None:
    script = tmp_path / "warn.py"
    script.write_text(
        "import warnings\n"
        "warnings.warn('[compile] f runs plain', stacklevel=1)\n"
        "warnings.warn('a warning of the program', stacklevel=1)\n"
    )
    plain, quiet = weft("run", str(script)), weft("run", "--quiet", str(script))
    assert "[compile]" in plain.stderr
    assert "[compile]" not in quiet.stderr
    assert "a warning of the program" in quiet.stderr
    assert weft("run", "--quiet").returncode == 2
