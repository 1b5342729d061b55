"""`weft bench llm`: mlx-lm's own loop on Weft beside MLX, each in a process of its own, and where Weft's time goes.

    weft bench llm [small|qwen3-0.6b ...] [--tokens n] [--python mlx=/path/to/python]

Without a shape it is the small one. The parts of Weft's time are those of one thread: a token's time is shorter where
several threads run kernels, and where they run while Python builds the next token.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHAPES = ("small", "qwen3-0.6b")
TOKENS = 100


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table for each shape."""
    words, tokens, pythons = list(arguments), TOKENS, {"mlx": sys.executable}
    shapes: list[str] = []
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            print(__doc__)
            return 0
        if word == "--parts":  # a process of our own
            print(json.dumps(parts(words.pop(0), int(words.pop(0)))))
            return 0
        if word == "--tokens" and words and words[0].isdigit():
            tokens = max(int(words.pop(0)), 2)
        elif word == "--python" and words and words[0].startswith("mlx="):
            pythons["mlx"] = words.pop(0).removeprefix("mlx=")
        elif word in SHAPES:
            shapes.append(word)
        else:
            print(
                f"weft bench llm: {word!r} is no shape ({', '.join(SHAPES)}) and no option.\n{__doc__}", file=sys.stderr
            )
            return 2
    for shape in shapes or SHAPES[:1]:
        show(shape, tokens, pythons)
    return 0


def show(shape: str, tokens: int, pythons: dict[str, str]) -> None:
    """The table of a shape."""
    script = [str(HERE / "llm.py"), shape, str(tokens), "--json"]
    found = {
        "weft": asked([sys.executable, "-m", "weft", "run", "--quiet", *script]),
        "mlx": asked([pythons["mlx"], *script]),
    }
    print(f"{shape}: {'':24}" + "".join(f"{name:>12}" for name in found) + f"{'ratio':>10}")
    rows: list[tuple[str, Callable[[dict[str, Any]], float], str]] = [
        ("prefill, ms", lambda f: f["prefill"] * 1e3, ".0f"),
        ("tokens a second", lambda f: 1 / f["token"], ".0f"),
        ("with a compiled step", lambda f: 1 / f["compiled"], ".0f"),
        ("CPU time of a token, ms", lambda f: f["cpu"] * 1e3, ".2f"),
        ("peak of memory, MiB", lambda f: f["peak"], ".0f"),
    ]
    for title, figure, style in rows:
        values = [None if f is None else figure(f) for f in found.values()]
        ratio = "" if None in values else f"{values[0] / values[1]:10.2f}"  # type: ignore[operator]
        print(f"  {title:30}" + "".join(f"{'–' if v is None else format(v, style):>12}" for v in values) + ratio)
    weft, mlx = found["weft"], found["mlx"]
    if weft is not None and mlx is not None and weft["tokens"] != mlx["tokens"]:
        print(f"  tokens differ: {weft['tokens']} and {mlx['tokens']}")
    split = asked([sys.executable, str(Path(__file__)), "--parts", shape, str(tokens)], WEFT_THREADS="1")
    if split is not None:
        print("  Weft on one thread, ms a token: " + ", ".join(f"{name} {ms:.2f}" for name, ms in split.items()))


def asked(command: Sequence[str], **environment: str) -> dict[str, Any] | None:
    """What a process of its own prints; None if it cannot."""
    given = [f"{name}={value}" for name, value in environment.items()]
    done = subprocess.run(["env", *given, *command], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
    print(f"weft bench llm: {' '.join(command[:4])} … failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
    return None


def parts(shape: str, tokens: int) -> dict[str, float]:
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

    model = llm.build(shape)
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
