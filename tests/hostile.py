"""Files that mean harm: exported functions with one thing or another changed, sealed again so that no checksum gives
them away. Run as a program of its own (`python -m tests.hostile seed count`), because what it looks for is a crash.

Every file must be refused with RuntimeError, or give a function that computes something or raises an ordinary error.
"""

from __future__ import annotations

import io
import json
import random
import resource
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import weft.core as mx
from weft import tree
from weft.transforms.exportfile import MAGIC, PREFIX, VERSION

SECONDS = 5
"""For one call: a loop may have been told to run forever."""
ORDINARY = (RuntimeError, ValueError, IndexError, MemoryError, ZeroDivisionError, TimeoutError)


# ---- functions ----


def _values(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


WEIGHTS = _values(6, 6, seed=1)


def _mixed(x: mx.array, y: mx.array) -> Any:
    h = mx.softmax(x @ WEIGHTS, axis=-1)
    part = h[1:, ::-2]
    rows = mx.take(h, mx.argsort(y[:, 0], axis=0), axis=0)
    padded = mx.concatenate([rows, mx.zeros((2, 6))], axis=0).T
    return part.reshape(-1), mx.cumsum(padded, axis=0), {"top": mx.topk(y, 2, axis=-1), "max": mx.max(x, axis=1)}


def _scanned(x: mx.array) -> Any:
    return mx.scan(lambda carry, row: (mx.tanh(carry @ WEIGHTS) + row, carry.sum()), mx.zeros(6), x)


def _while(x: mx.array) -> Any:
    def long(x: mx.array) -> mx.array:
        return mx.while_loop(lambda c: c.sum() < 40, lambda c: c * 1.5 + 1, mx.abs(x)).sum()

    return mx.grad(long)(x), mx.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, x)


def _scatter(x: mx.array) -> mx.array:
    x = mx.array(x)
    x[mx.argmax(x, axis=0)[:2], 1:3] = x[:2, :2].astype(mx.float16)
    return x.at[1:3, ::2].add(mx.ones((2, 3)))


PROGRAMS: tuple[tuple[Callable[..., Any], tuple[mx.array, ...], bool], ...] = (
    (_mixed, (_values(4, 6), _values(4, 6, seed=2)), False),
    (_mixed, (_values(4, 6), _values(4, 6, seed=2)), True),
    (_scanned, (_values(5, 6),), False),
    (_while, (_values(6),), False),
    (_scatter, (_values(4, 6),), False),
)


def exported(fun: Callable[..., Any], args: tuple[Any, ...], shapeless: bool) -> bytes:
    file = io.BytesIO()
    mx.export_function(file, fun, *args, shapeless=shapeless)
    return file.getvalue()


# ---- harm ----


def parts(contents: bytes) -> tuple[Any, bytes]:
    """(header, all that follows it)"""
    _, _, _, length, _ = PREFIX.unpack(contents[: PREFIX.size])
    end = PREFIX.size + length
    return json.loads(contents[PREFIX.size : end]), contents[-(-end // 64) * 64 :]


def sealed(header: Any, data: bytes) -> bytes:
    """A file with these contents, of which every length and checksum is right."""
    text = json.dumps(header).encode()
    padding = bytes(-(PREFIX.size + len(text)) % 64)
    size = PREFIX.size + len(text) + len(padding) + len(data)
    return PREFIX.pack(MAGIC, VERSION, zlib.crc32(text), len(text), size) + text + padding + data


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All (container, key) in a header."""
    for key in range(len(value)) if isinstance(value, list) else list(value):
        yield value, key
        if isinstance(value[key], (list, dict)):
            yield from places(value[key])


NUMBERS = (0, 1, -1, 2, 3, 5, 7, 63, 64, 1 << 20, 1 << 31, 1 << 40, (1 << 62) - 1, 1 << 62, 1 << 64, -(1 << 62), 10**30)
OTHERS = (None, True, "", "*", "add", "tape", "float64", "bool", [], {}, [0], [[1, 0]], {"size": [[1, 0]]}, {"body": 0})


def change(header: Any, rng: random.Random) -> None:
    """One thing is not what it was."""
    found = list(places(header["functions"]))
    if not found:
        return  # all of it was taken away already
    container, key = rng.choice(found)
    old = container[key]
    other_container, other_key = rng.choice(found)
    pick = rng.randrange(6)
    if pick == 0 and type(old) is int:
        container[key] = old + rng.choice((-2, -1, 1, 2))
    elif pick <= 1:
        container[key] = rng.choice(NUMBERS)
    elif pick == 2:
        container[key] = rng.choice(OTHERS)
    elif pick == 3:
        container[key] = json.loads(json.dumps(other_container[other_key]))
    elif pick == 4:
        del container[key]
    else:  # something of the same type, which is the most dangerous
        alike = [c[k] for c, k in found if type(c[k]) is type(old)]
        container[key] = json.loads(json.dumps(rng.choice(alike)))


def attempt(contents: bytes, args: tuple[Any, ...]) -> str:
    """What comes of a file."""
    try:
        function = mx.import_function(io.BytesIO(contents))
    except RuntimeError:
        return "refused"
    signal.alarm(SECONDS)
    try:
        mx.eval(tree.leaves(function(*args)))
    except ORDINARY:
        return "failed"
    finally:
        signal.alarm(0)
    return "ran"


def _too_long(*_: object) -> None:
    raise TimeoutError


def main(seed: int, count: int) -> None:
    # What is allocated without need must not bring the machine down; what is not there must not be read.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    signal.signal(signal.SIGALRM, _too_long)
    rng = random.Random(seed)
    files = [(parts(exported(*program)), program[1]) for program in PROGRAMS]
    outcomes: dict[str, int] = {}
    for _ in range(count):
        (header, data), args = rng.choice(files)
        header = json.loads(json.dumps(header))
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            change(header, rng)
        outcome = attempt(sealed(header, data), args)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
