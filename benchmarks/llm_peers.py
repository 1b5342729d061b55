"""`weft bench llm`: mlx-lm's own loop on Weft, beside MLX and llama.cpp, and where Weft's time goes.

    weft bench llm [small|qwen3-0.6b ...] [--tokens n] [--turns n] [--peers weft,mlx,llama] [--blocks q4_0|q4_1]
                   [--dtype float32|bfloat16|float16] [--python mlx=/path/to/python] [--python llama=/path/to/python]

Without a shape it is the small one. Each peer runs in a process of its own, on as many threads as Weft, in turns: the
best of them counts. llama.cpp takes part where this Python, or the one that is named, can import `llama_cpp` (pip
install llama-cpp-python). It gets a GGUF file of the same shape and weights, whose blocks are `q4_0` unless it is asked
for `q4_1`: llm_gguf.py says what they have in common with the codes of mlx-lm's models. Prefill is the time to the
first token; the compiled step has a cache of fixed size; the peak of memory is that behind making the model. Weights
are read once for each token: the lines about them say how long that takes beside a copy of as many bytes, and how many
bytes a second that is, beside those that the copy reads and writes.

The parts of Weft's time are those of one thread: a token's time is shorter where several threads run kernels, and where
they run while Python builds the next token.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHAPES = ("small", "qwen3-0.6b")
PEERS = ("weft", "mlx", "llama")
BLOCKS = ("q4_0", "q4_1")
DTYPES = ("float32", "bfloat16", "float16")
TOKENS = 100
TURNS = 2

Figures = dict[str, Any]


class Wishes:
    """What is to be measured, and by whom."""

    def __init__(self) -> None:
        self.shapes: list[str] = []
        self.peers: Sequence[str] = PEERS
        self.pythons = {"mlx": sys.executable, "llama": sys.executable}
        self.tokens, self.turns, self.blocks, self.dtype = TOKENS, TURNS, BLOCKS[0], DTYPES[0]

    def take(self, word: str, words: list[str]) -> bool:
        """Whether a word was understood; those that belong to it are taken from `words`."""
        value = words[0] if words else ""
        if word in SHAPES:
            self.shapes.append(word)
            return True
        if word == "--tokens" and value.isdigit():
            self.tokens = max(int(value), 2)
        elif word == "--turns" and value.isdigit():
            self.turns = max(int(value), 1)
        elif word == "--peers" and value and set(value.split(",")) <= set(PEERS):
            self.peers = [name for name in PEERS if name in value.split(",")]
        elif word == "--blocks" and value in BLOCKS:
            self.blocks = value
        elif word == "--dtype" and value in DTYPES:
            self.dtype = value
        elif word == "--python" and value.partition("=")[0] in self.pythons and "=" in value:
            name, _, path = value.partition("=")
            self.pythons[name] = path
        else:
            return False
        words.pop(0)
        return True


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table for each shape."""
    words, wishes = list(arguments), Wishes()
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            print(__doc__)
            return 0
        if word == "--parts":  # a process of our own
            print(json.dumps(parts(words[0], int(words[1]), words[2])))
            return 0
        if not wishes.take(word, words):
            print(
                f"weft bench llm: {word!r} is no shape ({', '.join(SHAPES)}) and no option.\n{__doc__}", file=sys.stderr
            )
            return 2
    for shape in wishes.shapes or SHAPES[:1]:
        show(shape, wishes)
    return 0


def show(shape: str, wishes: Wishes) -> None:
    """The table of a shape."""
    with tempfile.TemporaryDirectory() as folder:
        found = measured(shape, wishes, Path(folder) / "model.gguf")
    print(f"{shape}: {'':24}" + "".join(f"{name:>12}" for name in found))
    rows: list[tuple[str, Callable[[Figures], float], str]] = [
        ("prefill of 64 tokens, ms", lambda f: f["prefill"][0] * 1e3, ".0f"),
        ("prefill of 512 tokens, ms", lambda f: f["prefill"][1] * 1e3, ".0f"),
        ("tokens a second", lambda f: 1 / f["token"], ".0f"),
        ("with a compiled step", lambda f: 1 / f["compiled"], ".0f"),
        ("CPU time of a token, ms", lambda f: f["cpu"] * 1e3, ".2f"),
        ("peak of memory, MiB", lambda f: f["peak"], ".0f"),
        ("weights, MB", lambda f: f["bytes"] / 1e6, ".0f"),
    ]
    for title, figure, style in rows:
        print(f"  {title:30}" + "".join(f"{_shown(f, figure, style):>12}" for f in found.values()))
    weft, mlx = found.get("weft"), found.get("mlx")
    if weft and mlx and weft["tokens"] != mlx["tokens"]:
        print(f"  tokens differ: {weft['tokens']} and {mlx['tokens']}")
    if weft is None:
        return
    _show_bandwidth(weft)
    split = asked(
        [sys.executable, str(Path(__file__)), "--parts", shape, str(wishes.tokens), wishes.dtype], WEFT_THREADS="1"
    )
    if split is not None:
        print("  Weft on one thread, ms a token: " + ", ".join(f"{name} {ms:.2f}" for name, ms in split.items()))


def _shown(figures: Figures | None, figure: Callable[[Figures], float], style: str) -> str:
    try:
        return "–" if figures is None else format(figure(figures), style)
    except KeyError:  # llama.cpp has no compiled step
        return "–"


def _show_bandwidth(weft: Figures) -> None:
    """What a token that reads all weights takes, beside a copy of them."""
    from workloads_copy import fastest, seconds

    run = fastest(weft["bytes"], threads())
    copied = seconds(run) / run.repeats
    rate = 2 * weft["bytes"] / copied / 1e9
    print(f"  a copy of the weights takes {copied * 1e3:.1f} ms, {rate:.1f} GB/s read and written")
    for name, key in (("in the loop", "token"), ("in the compiled step", "compiled")):
        token = weft[key]
        print(f"  {name} a token takes {token / copied:.2f} of that, and reads {weft['bytes'] / token / 1e9:.1f} GB/s")


def measured(shape: str, wishes: Wishes, file: Path) -> dict[str, Figures | None]:
    """The best figures of each peer; None for those that cannot be asked."""
    script = [str(HERE / "llm.py"), shape, str(wishes.tokens), wishes.dtype, "--json"]
    weft = [sys.executable, "-m", "weft", "run", "--quiet"]
    commands = {"weft": [*weft, *script], "mlx": [wishes.pythons["mlx"], *script]}
    size = 0
    if "llama" in wishes.peers:
        python = wishes.pythons["llama"]
        if not has_llama(python):
            print(
                f"weft bench llm: {python} has no llama_cpp; `pip install llama-cpp-python` builds it (with --python"
                " llama=/path/to/python it may be in an environment of its own).",
                file=sys.stderr,
            )
        elif (
            size := asked([*weft, str(HERE / "llm_gguf.py"), shape, str(file), wishes.blocks, wishes.dtype]) or 0
        ) > 0:
            commands["llama"] = [python, str(HERE / "llm_llama.py"), str(file), str(wishes.tokens), str(threads())]
    found: dict[str, Figures | None] = {name: None for name in commands if name in wishes.peers}
    for _ in range(wishes.turns):
        for name in found:
            again = asked(commands[name])
            found[name] = best(found[name], again)
    llama = found.get("llama")
    if llama is not None:
        llama["bytes"] = size
    return found


def best(figures: Figures | None, others: Figures | None) -> Figures | None:
    """The smaller of all times."""
    if figures is None or others is None:
        return figures or others
    times = {name: min(figures[name], others[name]) for name in ("token", "compiled", "cpu", "peak") if name in figures}
    return figures | times | {"prefill": [*map(min, figures["prefill"], others["prefill"])]}


def has_llama(python: str) -> bool:
    """Whether a Python can import `llama_cpp`."""
    try:
        return subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def threads() -> int:
    """As many as Weft has."""
    from weft.config import config

    return config.threads


def asked(command: Sequence[str], **environment: str) -> Any:
    """What a process of its own prints; None if it cannot."""
    given = [f"{name}={value}" for name, value in environment.items()]
    done = subprocess.run(["env", *given, *command], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    print(f"weft bench llm: {' '.join(command[:4])} … failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
    return None


def parts(shape: str, tokens: int, dtype: str) -> dict[str, float]:
    """What a token's CPU time is spent on, in milliseconds: building the graph, finding what is to be computed and its
    program, filling that in or planning it, and running it."""
    sys.path.insert(0, str(HERE))
    from weft.frontends import mlx  # this process is Weft's

    mlx.install()
    import llm  # after that, so that it finds Weft

    from weft.evaluate import entry
    from weft.passes import families, pipeline
    from weft.passes.executable import Executable

    spent: dict[str, float] = {}

    def watch(owner: Any, name: str, part: str) -> None:
        real = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return real(*args, **kwargs)
            finally:
                spent[part] = spent.get(part, 0.0) + time.thread_time() - start

        setattr(owner, name, timed)

    model = llm.build(shape, dtype)
    llm.decode(model, 8)
    watch(entry, "_evaluate", "evaluating")
    watch(families.Family, "executable", "planning")
    watch(families.Family, "learn", "planning")
    watch(pipeline, "compile_graph", "planning")
    watch(Executable, "run", "kernels")
    watch(Executable, "run_in_place", "kernels")
    best: dict[str, float] = {}
    for _ in range(3):
        spent.clear()
        start = time.thread_time()
        llm.decode(model, tokens)
        whole, inside = time.thread_time() - start, spent.pop("evaluating")
        known = sum(spent.values())
        split = {"building graphs": whole - inside, "finding programs": inside - known, **spent}
        if not best or sum(split.values()) < sum(best.values()):
            best = split
    return {name: seconds / tokens * 1e3 for name, seconds in best.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
