"""The `weft` command: run an MLX program on Weft, look inside it, check it, time Weft beside its peers.

Each subcommand is one function that returns the exit status: 0 when all went well, 1 when something failed, 2 when the
command line itself was wrong. Only what a subcommand needs is imported, so `weft --version` answers at once.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from weft.version import __version__

OK, FAILED, USAGE = 0, 1, 2

HELP = """\
usage: weft COMMAND [argument ...]

The MLX array API on any Linux machine.

  weft run script.py [argument ...]      run a program written for MLX, unchanged; Pythons that it starts do the same
  weft run -m module [argument ...]      the same, for a module as `python -m` runs it
      --quiet                            (before the program) without Weft's own warnings
  weft explain script.py [argument ...]  run it and show what the compiler made of it
      --html FILE                        as a page to look at in a browser
      --llvm, --asm                      as text, with the code of every kernel
  weft check script.py [argument ...]    run it and check every value: against single operations, the NumPy
                                         reference, bounds of indices; name the line that makes the first NaN
  weft doctor                            describe this installation and check that it computes
  weft bench [name ...]                  time Weft beside MLX, JAX and torch (options: weft bench --help)
  weft bench pytensor [name ...]         time PyTensor on Weft beside PyTensor's other back ends
  weft bench llm [shape ...]             mlx-lm's loop on Weft, beside MLX and llama.cpp: tokens a second, and more
  weft bench torch [model ...]           time models of torch's on Weft, beside eager torch and inductor
  weft bench sweep                       many operations, shapes, dtypes and layouts beside NumPy, torch and JAX
  weft bench programs [name ...]         small programs that people run, beside torch and JAX
  weft bench kernels                     time custom kernels beside Numba
  weft bench hybrid                      time a decode step with custom kernels, experts and a growing cache
  weft --version                         print the version
  weft --help                            print this text
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    command, *arguments = list(sys.argv[1:] if argv is None else argv) or [""]
    match command:
        case "run" if arguments not in (["-h"], ["--help"]):
            return run(arguments)
        case "explain" if arguments not in (["-h"], ["--help"]):
            return explain(arguments)
        case "check" if arguments not in (["-h"], ["--help"]):
            return check(arguments)
        case "bench":
            return bench(arguments)
        case "doctor" if not arguments:
            return doctor()
        case "-V" | "--version":
            print(f"weft {__version__}")
            return OK
        case "-h" | "--help" | "help" | "run" | "explain" | "check":
            print(HELP, end="")
            return OK
        case "doctor":
            return usage(f"doctor takes no arguments, got {' '.join(arguments)}")
        case "":
            return usage("what shall it be?")
    return usage(f"there is no command {command!r}")


def usage(message: str) -> int:
    """Say what is wrong with the command line."""
    print(f"weft: {message}\n\n{HELP}", end="", file=sys.stderr)
    return USAGE


def run(command: Sequence[str], name: str = "run") -> int:
    """Run `script.py args...` or `-m module args...` with MLX's names resolved by Weft."""
    quiet = command[:1] in (["--quiet"], ["-q"])
    command = command[1:] if quiet else command
    as_module = command[:1] == ["-m"]
    target, *arguments = (command[1:] if as_module else command) or [""]
    if not target or target.startswith("-"):
        return usage(f"{name} needs a program")
    if not as_module and not Path(target).exists():
        print(f"weft {name}: cannot open {target!r}: no such file", file=sys.stderr)
        return USAGE
    from weft.frontends import mlx  # reads the settings, and a wrong one must not keep `weft doctor` from saying so

    mlx.install()
    mlx.install_in_children()
    if quiet:
        warnings.filterwarnings("ignore", message=r"\[(compile|export_function)\] ")
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
            print(f"weft {name}: {error}", file=sys.stderr)
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


def run_to_the_end(command: Sequence[str], name: str) -> int:
    """The same, but also come back from a program that ends itself."""
    try:
        return run(command, name)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or OK
        print(end.code, file=sys.stderr)
        return FAILED


def explain(arguments: Sequence[str]) -> int:
    """Run a program and show what the compiler made of it."""
    command, options = explain_options(arguments)
    if "--html" in options and not options["--html"]:
        return usage("--html needs the name of a file to write")
    # What a script is explained with knows the whole engine, which `weft --version` can do without.
    from weft.report.script import watching

    with watching() as watch:
        status = run_to_the_end(command, "explain")
    if status == USAGE and not watch.programs:
        return status
    if not watch.programs:
        print("weft explain: the program computed nothing with Weft", file=sys.stderr)
        return status
    title = Path(command[1] if command[0] == "-m" else command[0]).name
    report = watch.report(title, "--llvm" in options, "--asm" in options)
    if "--html" in options:
        print(f"weft explain: wrote {report.save(options['--html'])}", file=sys.stderr)
    else:
        say(str(report))
    return status


def say(text: str) -> None:
    """Print; whoever reads it may stop before the end (`weft explain script.py | head`)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain_options(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The program with its arguments, and our own options from among them; what follows `--` is the program's."""
    options: dict[str, str] = {}
    command: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*command, *rest], options
        if word == "--html":
            options[word] = rest.pop(0) if rest else ""
        elif word.startswith("--html="):
            options["--html"] = word.removeprefix("--html=")
        elif word in ("--llvm", "--asm"):
            options[word] = "yes"
        else:
            command.append(word)
    return command, options


def check(arguments: Sequence[str]) -> int:
    """Run a program and check everything that it computes; fail if anything was found."""
    from weft import checking  # knows the whole engine, which `weft --version` can do without
    from weft.report.check import render  # likewise

    checking.enable()
    with checking.collected() as findings:
        status = run_to_the_end(arguments, "check")
    if status != USAGE or checking.tally.programs:
        print(render(findings, checking.tally), file=sys.stderr)
    return status or (FAILED if findings else OK)


def doctor() -> int:
    """Describe the installation; fail when it cannot compute."""
    from weft.report.doctor import print_report  # imports the engine, which `weft --version` can do without

    return OK if print_report() else FAILED


def bench(arguments: Sequence[str]) -> int:
    """Hand over to the benchmark runner, a process of its own: it must not import what it measures."""
    here = Path(__file__).resolve().parent
    places = [here / "_benchmarks", here.parent / "benchmarks"]  # in the wheel, in the source tree
    name = "run.py"
    if arguments[:1] in (
        ["pytensor"],
        ["kernels"],
        ["hybrid"],
        ["programs"],
        ["sweep"],
    ):  # which have other peers, or none
        name, arguments = f"{arguments[0]}.py", arguments[1:]
    elif arguments[:1] == ["torch"]:  # models of torch's, on torch and on Weft
        name, arguments = "torch_models.py", arguments[1:]
    elif arguments[:1] == ["llm"]:
        name, arguments = "llm_peers.py", arguments[1:]
    runner = next((place / name for place in places if (place / name).is_file()), None)
    if runner is None:
        print(f"weft bench: the programs are missing: looked in {places[0]} and {places[1]}", file=sys.stderr)
        return FAILED
    return subprocess.call([sys.executable, str(runner), *arguments])
