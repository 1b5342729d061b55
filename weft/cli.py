"""The `weft` command: run an MLX program on Weft, look at the installation, time it beside its peers.

Each subcommand is one function that returns the exit status: 0 when all went well, 1 when something failed, 2 when the
command line itself was wrong. Only what a subcommand needs is imported, so `weft --version` answers at once.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from weft.frontends import mlx
from weft.version import __version__

OK, FAILED, USAGE = 0, 1, 2

HELP = """\
usage: weft COMMAND [argument ...]

The MLX array API on any Linux machine.

  weft run script.py [argument ...]    run a program written for MLX, unchanged
  weft run -m module [argument ...]    the same, for a module as `python -m` runs it
  weft doctor                          describe this installation and check that it computes
  weft bench [name ...]                time Weft beside MLX, JAX and torch (options: weft bench --help)
  weft --version                       print the version
  weft --help                          print this text
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    command, *arguments = list(sys.argv[1:] if argv is None else argv) or [""]
    match command:
        case "run" if arguments not in (["-h"], ["--help"]):
            return run(arguments)
        case "bench":
            return bench(arguments)
        case "doctor" if not arguments:
            return doctor()
        case "-V" | "--version":
            print(f"weft {__version__}")
            return OK
        case "-h" | "--help" | "help" | "run":
            print(HELP, end="")
            return OK
        case "doctor":
            return usage(f"doctor takes no arguments, got {' '.join(arguments)}")
        case "":
            return usage("what shall it be?")
    return usage(f"there is no command {command!r}")


def usage(message: str) -> int:
    print(f"weft: {message}\n\n{HELP}", end="", file=sys.stderr)
    return USAGE


def run(command: Sequence[str]) -> int:
    """Run `script.py args...` or `-m module args...` with MLX's names resolved by Weft."""
    as_module = command[:1] == ["-m"]
    target, *arguments = (command[1:] if as_module else command) or [""]
    if not target or target.startswith("-"):
        return usage("run needs a program")
    if not as_module and not Path(target).exists():
        print(f"weft run: cannot open {target!r}: no such file", file=sys.stderr)
        return USAGE
    mlx.install()
    sys.argv = [target, *arguments]
    if not sys.flags.safe_path:  # under `python -P`, the first entry is the standard library and stays
        sys.path[0] = os.getcwd() if as_module else str(Path(target).resolve().parent)
    try:
        if as_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except Exception as error:
        theirs = own_frames_removed(error.__traceback__)
        if theirs is None and isinstance(error, ImportError):  # the program itself was not found
            print(f"weft run: {error}", file=sys.stderr)
            return USAGE
        sys.excepthook(type(error), error.with_traceback(theirs), theirs)
        return FAILED
    return OK


def own_frames_removed(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on, as plain `python script.py` would show it."""
    skipped = {__file__, runpy.__file__}
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename not in skipped and not filename.startswith("<frozen runpy"):
            return traceback
        traceback = traceback.tb_next
    return None


def doctor() -> int:
    """Describe the installation; fail when it cannot compute."""
    from weft.report.doctor import print_report  # imports the engine, which `weft --version` can do without

    return OK if print_report() else FAILED


def bench(arguments: Sequence[str]) -> int:
    """Hand over to the benchmark runner, a process of its own: it must not import what it measures."""
    here = Path(__file__).resolve().parent
    places = [here / "_benchmarks", here.parent / "benchmarks"]  # in the wheel, in the source tree
    runner = next((place / "run.py" for place in places if (place / "run.py").is_file()), None)
    if runner is None:
        print(f"weft bench: the programs are missing: looked in {places[0]} and {places[1]}", file=sys.stderr)
        return FAILED
    return subprocess.call([sys.executable, str(runner), *arguments])
