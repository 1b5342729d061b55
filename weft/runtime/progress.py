"""Progress of a loop that runs natively: a thread reads the loop's own counter now and then, and draws a line.

The loop does nothing for it, so it costs nothing; a program without a watched loop does not come here.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TextIO

from weft import beside

EVERY = 0.1
"""Seconds between two lines; a loop that is done sooner draws none."""
WIDTH = 24


class Counter(NamedTuple):
    """A loop to watch: the word of the block that counts (in units of `unit` steps), how many steps there are at most
    (negative: not known), and its name."""

    word: int
    unit: int
    most: int
    name: str


def line(name: str, done: int, most: int, seconds: float) -> str:
    """One line of progress.

    >>> line("scan", 50, 200, 2.0)
    'scan [######..................] 50/200 25 steps/s'
    """
    rate = f"{done / seconds:,.0f} steps/s" if seconds > 0 else ""
    if most < 0:
        return f"{name} {done:,} {rate}"
    filled = WIDTH * done // max(most, 1)
    return f"{name} [{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{most} {rate}"


@contextmanager
def watching(counters: Sequence[Counter], block: int, stream: TextIO | None = None) -> Iterator[None]:
    """Draw the progress of these loops while the `with` block runs. `block` is the address of the program's words."""
    over = threading.Event()
    out = stream or sys.stderr
    watchers = beside.start(lambda: _watch(counters, block, out, over))
    try:
        yield
    finally:
        over.set()
        for watcher in watchers:
            watcher.end()


def _watch(counters: Sequence[Counter], block: int, out: TextIO, over: threading.Event) -> None:
    start, drawn = time.monotonic(), 0
    while not over.wait(EVERY):
        seconds = time.monotonic() - start
        parts = []
        for counter in counters:
            steps = ctypes.c_int64.from_address(block + 8 * counter.word).value * counter.unit
            steps = steps if counter.most < 0 else min(steps, counter.most)
            parts.append(line(counter.name, steps, counter.most, seconds))
        text = "  ".join(parts)
        out.write(f"\r{text.ljust(drawn)}")
        out.flush()
        drawn = len(text)
    if drawn:
        out.write("\r" + " " * drawn + "\r")
        out.flush()
