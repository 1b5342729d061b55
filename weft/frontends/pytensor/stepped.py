"""A Scan whose body cannot be a part of one program: the loop runs in Python, and each step is programs of Weft.

That is so where a body has a node without a translation, or one whose size depends on data. What is carried from step
to step are the rows that somebody reads again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.tensor.type import TensorType

from weft.frontends.pytensor.graphs import body_of
from weft.frontends.pytensor.scan import offset_writes

Body = Callable[[list[Any]], Sequence[Any]]


class Stepped:
    """A Scan, one step after the other. `plan` makes a function of the nodes of a body."""

    def __init__(self, node: Apply, plan: Callable[..., Any]) -> None:
        self.node = node
        self.inputs = [x for x in dict.fromkeys(node.inputs) if not isinstance(x, Constant)]
        self.outputs = list(node.outputs)
        body = body_of(node.op)
        self._plan = plan(body.inputs, body.outputs, body.nodes)

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        values = dict(zip(self.inputs, given, strict=True))
        inputs = [x.data if isinstance(x, Constant) else values[x] for x in self.node.inputs]
        return _Run(self.node, inputs, self._plan.call).results()


class _Recurrence:
    """The last rows of an output that reads its own past."""

    def __init__(self, buffer: np.ndarray, taps: Sequence[int]) -> None:
        lookback = -min(taps)
        if len(buffer) < lookback:
            raise ValueError(f"Scan's buffer has {len(buffer)} rows, and {lookback} are read before the first step.")
        self.room, self.taps, self._like = len(buffer), taps, buffer
        self._rows: deque[np.ndarray] = deque(buffer[:lookback], maxlen=self.room)

    def reads(self) -> list[np.ndarray]:
        return [np.asarray(self._rows[tap]) for tap in self.taps]

    def add(self, row: np.ndarray) -> None:
        self._rows.append(np.broadcast_to(np.asarray(row, self._like.dtype), self._like.shape[1:]))

    def result(self, stops: bool) -> np.ndarray:
        """All that there is room for; what no step made is as it was, unless the loop may stop before its end."""
        made = np.stack(self._rows) if self._rows else self._like[:0]
        if stops or len(made) == self.room:
            return made
        return np.concatenate([made, self._like[len(made) :]])


class _Run:
    """One call."""

    def __init__(self, node: Apply, inputs: Sequence[Any], body: Body) -> None:
        op = node.op
        self.op, self.info, self.body = op, op.info, body
        self.steps = int(np.asarray(inputs[0]))
        if self.steps < 0:
            raise IndexError(f"Scan was asked to run for negative number of step {self.steps}")
        self.sequences = [np.asarray(x) for x in op.outer_seqs(inputs)]
        for x in self.sequences:
            if len(x) < self.steps:
                raise ValueError(
                    f"Scan was asked to run for {self.steps} steps, but a sequence has only {len(x)} rows."
                )
        self.buffers = [np.array(x) for x in op.outer_mitmot(inputs)]
        self.reads, self.writes = self.info.normalized_mit_mot_in_slices, offset_writes(self.info)
        taps = (*self.info.mit_sot_in_slices, *self.info.sit_sot_in_slices)
        buffers = [*op.outer_mitsot(inputs), *op.outer_sitsot(inputs)]
        self.recurrences = [_Recurrence(np.asarray(x), t) for x, t in zip(buffers, taps, strict=True)]
        self.stacked: list[deque[np.ndarray]] = [deque(maxlen=int(np.asarray(x))) for x in op.outer_nitsot(inputs)]
        first = self.info.n_mit_mot + len(buffers)
        self.kinds = [x.type for x in node.outputs[first : first + len(self.stacked)]]
        self.state = list(op.outer_untraced_sit_sot(inputs))
        self.constants = list(op.outer_non_seqs(inputs))

    def results(self) -> list[Any]:
        for i in range(self.steps):
            if self._step(i):
                break
        stops = self.info.as_while
        rows = [_rows(x, kind, stops) for x, kind in zip(self.stacked, self.kinds, strict=True)]
        return [*self.buffers, *(x.result(stops) for x in self.recurrences), *rows, *self.state]

    def _step(self, i: int) -> bool:
        """Whether the loop ends with step i."""
        op = self.op
        given = [x[i] for x in self.sequences]
        given += [x[i + tap] for x, taps in zip(self.buffers, self.reads, strict=True) for tap in taps]
        given += [row for x in self.recurrences for row in x.reads()]
        arrays = [np.asarray(x) for x in given]
        made = list(self.body([*arrays, *self.state, *self.constants]))
        for x, taps, rows in zip(self.buffers, self.writes, op.inner_mitmot_outs_grouped(made), strict=True):
            for tap, row in zip(taps, rows, strict=True):
                x[i + tap] = row
        recurrent = [*op.inner_mitsot_outs(made), *op.inner_sitsot_outs(made)]
        for recurrence, row in zip(self.recurrences, recurrent, strict=True):
            recurrence.add(row)
        for rows, row in zip(self.stacked, op.inner_nitsot_outs(made), strict=True):
            rows.append(np.asarray(row))
        self.state = list(op.inner_untraced_sit_sot_outs(made))
        return bool(self.info.as_while and np.asarray(made[-1]).any())


def _rows(made: deque[np.ndarray], kind: TensorType, stops: bool) -> np.ndarray:
    """All that there is room for: zeros behind what was made, unless the loop may stop before its end."""
    if not made:
        return np.zeros((0 if stops else made.maxlen or 0, *(n or 0 for n in kind.shape[1:])), kind.dtype)
    rows = np.stack(list(made)).astype(kind.dtype, copy=False)
    missing = 0 if stops else (made.maxlen or 0) - len(made)
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), kind.dtype)]) if missing else rows
