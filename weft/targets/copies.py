"""Copies of elements from one buffer to another on the same device: what slice updates of computed data consist of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.graph.node import ArrayType
from weft.primitives.base import ConstantValue
from weft.runtime.data import Buffer
from weft.runtime.device import Device
from weft.runtime.program import Program, Progress
from weft.targets.devices import target_of

COPIES: dict[tuple[Any, ...], Program] = {}
"""Programs, by what is copied and how it lies on both sides."""
MOST_COPIES = 4096


def copy(kind: ArrayType, source: Buffer | ConstantValue, target: Buffer, progress: Progress | None = None) -> None:
    """target[...] = source."""
    strides: Any = source.strides if isinstance(source, Buffer) else ConstantValue
    key = (kind, strides, target.strides, target.storage.device)
    program = COPIES.get(key)
    if program is None:
        if len(COPIES) >= MOST_COPIES:
            COPIES.clear()
        constant = strides is ConstantValue
        made = target_of(target.device).copy_program(kind, None if constant else strides, target.strides, constant)
        program = COPIES[key] = made
    if isinstance(source, Buffer):
        program.run((source.address, target.address), progress)
    else:
        program.run((0, target.address, *source.words), progress)


def room_for(kind: ArrayType, device: Device | None) -> Buffer:
    """New memory for elements of a kind."""
    storage = target_of(device).allocate(0 if kind.symbolic else kind.size * kind.dtype.size)  # type: ignore[arg-type]
    return Buffer(storage, storage.address)


def lies_apart(shape: Sequence[Any], strides: Sequence[Any] | None) -> bool:
    """Whether no two elements share a place, as those of a broadcast axis do."""
    reach = 0
    for step, n in sorted((abs(s), n) for s, n in zip(strides or (), shape, strict=False) if n != 1):
        if step <= reach:
            return False
        reach += step * (n - 1)
    return True
