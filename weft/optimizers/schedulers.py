"""Schedules: functions from the number of a step (an array) to a learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import weft.core as mx

Schedule = Callable[[Any], Any]


def _positive(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{name} must be greater than 0, but got {count}.")


def exponential_decay(init: float, decay_rate: float) -> Schedule:
    """init * decay_rate^step.

    >>> from weft.optimizers import exponential_decay
    >>> exponential_decay(0.5, 0.5)(mx.array(2))
    array(0.125, dtype=float32)
    """
    return lambda step: init * decay_rate**step


def step_decay(init: float, decay_rate: float, step_size: int) -> Schedule:
    """init, multiplied by decay_rate every step_size steps."""
    _positive("step_size", step_size)
    return lambda step: init * decay_rate ** (step // step_size)


def cosine_decay(init: float, decay_steps: int, end: float = 0.0) -> Schedule:
    """From init to end along half a cosine, over decay_steps steps."""
    _positive("decay_steps", decay_steps)

    def schedule(step: Any) -> Any:
        part = 0.5 * (1.0 + mx.cos((math.pi / decay_steps) * mx.minimum(step, decay_steps)))
        return end + part * (init - end)

    return schedule


def linear_schedule(init: float, end: float, steps: int) -> Schedule:
    """From init to end in a straight line, over a number of steps."""
    _positive("steps", steps)
    return lambda step: mx.minimum(step, steps) * ((end - init) / steps) + init


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other; each counts its steps from its boundary on."""
    if not schedules:
        raise ValueError("Must provide at least 1 schedule to join.")
    if len(schedules) != len(boundaries) + 1:
        raise ValueError(f"Received {len(boundaries)} boundaries but expected {len(schedules) - 1}.")

    def joined(step: Any) -> Any:
        found = schedules[0](step)
        for boundary, schedule in zip(boundaries, schedules[1:], strict=True):
            found = mx.where(step < boundary, found, schedule(step - boundary))
        return found

    return joined
