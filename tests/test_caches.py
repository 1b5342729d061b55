"""What is known of the caches, and which results are written past them."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
import weft.core as mx
from weft.targets.cpu import caches
from weft.targets.cpu.forms import base


def test_sizes_are_those_that_the_system_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(1, "Instruction", "64K"), (1, "Data", "48K"), (2, "Unified", "1M"), (3, "Unified", "big")]
    for number, values in enumerate(given):
        place = tmp_path / f"index{number}"
        place.mkdir()
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (place / name).write_text(f"{value}\n")
    monkeypatch.setattr(caches, "_PLACES", str(tmp_path))
    sizes = [caches.cache_bytes.__wrapped__(level) for level in (1, 2, 3, 4)]
    assert sizes == [48 << 10, 1 << 20, 0, 0]


@pytest.mark.parametrize(("cache", "past"), [(0, "xyz"), (1 << 16, "yz"), (1 << 30, "yz")])
def test_results_that_fit_into_the_last_cache_are_kept_there(
    cache: int, past: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside twice what they are made from, and up to four times the size from which on it is asked."""
    monkeypatch.setattr(base, "STREAM_BYTES", 1 << 14)
    monkeypatch.setattr(base, "cache_bytes", lambda level: cache)
    row, half, all_of_it = mx.ones((16,)), mx.ones((512, 16)), mx.ones((2048, 16))
    programs = {
        "x": (lambda x: x[:, None] + row, mx.ones((512,))),  # 32 KB, made of 2
        "y": (lambda x: mx.exp(x), half),  # and of 32
        "z": (lambda x: mx.exp(x), all_of_it),
    }
    for name, (program, x) in programs.items():
        text = str(weft.explain(program, x, llvm=True))
        assert ("!nontemporal" in text) == (name in past), name
