"""Fresh processes, and threads that take turns as often as they can: where a test must not share what others did."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
LONGEST = 240
"""Seconds after which a process or thread is taken to hang."""


def run_alone(file: str, scenario: str, **environment: str) -> str:
    """Run a function of a file in a fresh interpreter; what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({file!r})[{scenario!r}]()"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def in_threads(count: int, work: Callable[[int], None], interval: float = 1e-5) -> None:
    """work(0), work(1), … each in a thread of its own; Python changes threads every `interval` seconds. What one raises
    is raised here, and none may hang."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONGEST)
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
