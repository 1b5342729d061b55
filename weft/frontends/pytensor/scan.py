"""Scan as a native loop of Weft.

PyTensor's Scan reads and writes buffers: for each recurrent output one that begins with its first values and has room
for as many more as anyone reads. Here an output is what a loop carries (its last values) and, if more than those are
read, the rows that it stacks; the buffer is put together behind the loop. Outputs with several taps that are both read
and written (MIT-MOT, which gradients consist of) are loops too: what is read after it was written, some steps earlier,
is carried, and what is read before it is written is a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.scan.op import Scan

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import collecting, converts, effects
from weft.frontends.pytensor.graphs import body_of, checks_in, refusal_inside, sizes_of
from weft.frontends.pytensor.values import NotConverted, Partial, Value, cast, number_of, size, to_array
from weft.records import dataclass

MOST_CARRIED = 4
"""Rows that are carried along, rather than stacked and cut, where a buffer has room for so many of the last."""


@dataclass(frozen=True)
class Recurrence:
    """An output that reads its own past: the taps are how far back, the largest first value is `lookback` rows."""

    taps: tuple[int, ...]
    buffer: array
    dtype: str
    shape: tuple[Any, ...]

    @property
    def lookback(self) -> int:
        return -min(self.taps)

    def carried(self, steps: Any, stops: bool) -> int:
        """How many of the last values are carried: those that are read again, or all that the buffer has room for."""
        room = self.buffer.shape[0]
        fits = room <= max(MOST_CARRIED, self.lookback) and room <= self.lookback + steps
        return max(self.lookback, int(room)) if fits and not stops else self.lookback

    def first(self, rows: int) -> tuple[array, ...]:
        """The values before the first step, oldest first. Those before all that the buffer has are never read."""
        missing = rows - self.lookback
        unused = mx.zeros(self.shape, self.buffer.dtype)
        return (unused,) * missing + tuple(self.buffer[i] for i in range(self.lookback))


def _refuses(node: Apply) -> str | None:
    return refusal_inside(body_of(node.op), in_loop=True)


def _known(node: Apply) -> list[int]:
    """Steps, and lengths of buffers that are not given."""
    info = node.op.info
    first = 1 + info.n_seqs + info.n_mit_mot + info.n_mit_sot + info.n_sit_sot
    outside = [0, *range(first, first + info.n_nit_sot)]
    body = body_of(node.op)
    wanted = sizes_of(body)
    last = len(node.inputs) - info.n_non_seqs
    constants = body.inputs[len(body.inputs) - info.n_non_seqs :]
    return outside + [last + at for at, x in enumerate(constants) if x in wanted]


@converts(Scan, known=_known, refuses=_refuses)
def scan(op: Any, node: Apply, *given: Value) -> list[Any]:
    """A loop."""
    return Loop(op, node, list(given)).outputs()


class Loop:
    """One Scan while it is translated."""

    def __init__(self, op: Any, node: Apply, given: list[Value]) -> None:
        self.op, self.node, self.info = op, node, op.info
        self.body = body_of(op)
        self.steps = size(given[0])
        if self.steps < 0:
            raise IndexError(f"Scan was asked to run for negative number of step {self.steps}")
        self.sequences = [self._rows(to_array(x)) for x in op.outer_seqs(given)]
        self.mit_mots = [to_array(x) for x in op.outer_mitmot(given)]
        buffers = [*op.outer_mitsot(given), *op.outer_sitsot(given)]
        taps = [*op.info.mit_sot_in_slices, *op.info.sit_sot_in_slices]
        self.recurrences = [self._recurrence(to_array(x), t) for x, t in zip(buffers, taps, strict=True)]
        self.lengths = [size(x) for x in op.outer_nitsot(given)]
        self.untraced = [to_array(x) for x in op.outer_untraced_sit_sot(given)]
        self.constants = list(op.outer_non_seqs(given))

    def _rows(self, x: array) -> array:
        if x.shape[0] < self.steps:
            raise ValueError(
                f"Scan was asked to run for {self.steps} steps, but a sequence has only {x.shape[0]} rows."
            )
        return x if x.shape[0] == self.steps else x[: self.steps]

    def _recurrence(self, buffer: array, taps: Sequence[int]) -> Recurrence:
        shape = tuple(buffer.shape[1:])
        if buffer.shape[0] < -min(taps):
            raise ValueError(
                f"Scan's buffer has {buffer.shape[0]} rows, and {-min(taps)} are read before the first step."
            )
        return Recurrence(tuple(taps), buffer, buffer.dtype.name, shape)

    # ---- the loop ----

    def outputs(self) -> list[Any]:
        """The values of the node's outputs."""
        stops = self.info.as_while
        self.windows = [x.carried(self.steps, stops) for x in self.recurrences]
        self.mot = [
            MitMot(buffer, reads, writes, self.steps)
            for buffer, reads, writes in zip(
                self.mit_mots,
                self.info.normalized_mit_mot_in_slices,
                offset_writes(self.info),
                strict=True,
            )
        ]
        carry = {
            "past": [x.first(rows) for x, rows in zip(self.recurrences, self.windows, strict=True)],
            "mot": [x.first() for x in self.mot],
            "state": self.untraced,
            "fine": [],
        }
        rows = {"seqs": self.sequences, "mot": [x.sequences() for x in self.mot]}
        self.acts: list[Any] = []
        carry["fine"] = [mx.array(True) for _ in range(checks_in(self.body.nodes))]
        length = self.steps
        if stops:
            last, made, count = mx.scan(
                self._step, carry, rows, length=length, until=lambda carry, made: made["stop"]
            )  # fmt: skip
            count = cast(count, "int64")
        else:
            last, made = mx.scan(self._step, carry, rows, length=length)
            count = None
        for fine, act in zip(last["fine"], self.acts, strict=True):
            effects().add(fine, act)
        return self._results(last, made, count)

    def _step(self, carry: Any, rows: Any) -> tuple[Any, Any]:
        given: list[Value] = list(rows["seqs"])
        for mot, past, ahead in zip(self.mot, carry["mot"], rows["mot"], strict=True):
            given += mot.reads(past, ahead)
        for recurrence, past in zip(self.recurrences, carry["past"], strict=True):
            given += [past[len(past) + tap] for tap in recurrence.taps]
        given += carry["state"]
        with collecting() as found:
            made = self.body(*given, *self.constants)
        self.acts = [act for _, act in found.checks]
        fine = [old & new for old, (new, _) in zip(carry["fine"], found.checks, strict=True)]
        arrays = [to_array(x) for x in made]
        return self._after(carry, arrays, fine)

    def _after(self, carry: Any, made: list[array], fine: list[array]) -> tuple[Any, Any]:
        op = self.op
        mot_outs = op.inner_mitmot_outs_grouped(made)
        recurrent = [*op.inner_mitsot_outs(made), *op.inner_sitsot_outs(made)]
        past = [
            (*old[1:], _like(new, x.shape, x.buffer))
            for old, new, x in zip(carry["past"], recurrent, self.recurrences, strict=True)
        ]
        state = [
            _like(new, old.shape, old)
            for old, new in zip(carry["state"], op.inner_untraced_sit_sot_outs(made), strict=True)
        ]
        mot = [x.after(old, outs) for x, old, outs in zip(self.mot, carry["mot"], mot_outs, strict=True)]
        stacked = {
            "mot": [x.shaped(outs) for x, outs in zip(self.mot, mot_outs, strict=True)],
            "past": [old[-1] for old, keeps in zip(past, self._keeps(), strict=True) if keeps],
            "rows": op.inner_nitsot_outs(made),
            "stop": cast(made[-1], "bool").reshape(()) if self.info.as_while else mx.array(False),
        }
        return {"past": past, "mot": mot, "state": state, "fine": fine}, stacked

    def _keeps(self) -> list[bool]:
        """Which recurrent outputs need more than the values that are carried."""
        return [not (x.buffer.shape[0] <= rows) for x, rows in zip(self.recurrences, self.windows, strict=True)]

    # ---- behind the loop ----

    def _results(self, last: Any, made: Any, count: array | None) -> list[Any]:
        results: list[Any] = [
            x.result(rows) for x, rows in zip(self.mot, made["mot"], strict=True)
        ]  # fmt: skip
        stacked = iter(made["past"])
        for x, window, keeps in zip(self.recurrences, last["past"], self._keeps(), strict=True):
            results.append(self._buffer(x, window, next(stacked) if keeps else None, count))
        for rows, room in zip(made["rows"], self.lengths, strict=True):
            results.append(self._last_rows(rows, 0, room, count))
        results += last["state"]
        return results

    def _buffer(self, x: Recurrence, window: Sequence[array], rows: array | None, count: array | None) -> Any:
        room = x.buffer.shape[0]
        if rows is None:
            return mx.stack(list(window)[len(window) - int(room) :])
        first = x.buffer[: x.lookback]
        return self._last_rows(mx.concatenate([first, rows]), x.lookback, room, count)

    def _last_rows(self, rows: array, before: int, room: Any, count: array | None) -> Any:
        """The last rows that a buffer has room for; zeros behind those that were made."""
        total = self.steps + before
        if count is None:
            if room < total:
                return rows[total - room :]
            return rows if room == total else _padded(rows, room)
        made = count + mx.array(before, mx.int64)
        if room < total:
            start = mx.maximum(made - number_of(room), mx.array(0, mx.int64))
            rows = mx.slice(rows, start.reshape((1,)), (0,), (room, *rows.shape[1:]))
            made = mx.minimum(made, number_of(room))
        if self._is_full(before, room):
            return rows
        return Partial(rows, made)

    def _is_full(self, before: int, room: Any) -> bool:
        """Whether one step fills the buffer, so that no number of steps leaves some of it out."""
        return bool(self.steps >= 1) and bool(room <= before + 1)


def _padded(rows: array, room: Any) -> array:
    return mx.concatenate([rows, mx.zeros((room - rows.shape[0], *rows.shape[1:]), rows.dtype)])


def _like(new: array, shape: tuple[Any, ...], old: array) -> array:
    """A value as the next one of a carry, whose shape does not change."""
    new = new.astype(old.dtype)
    if new.ndim != len(shape):
        raise NotConverted("a recurrent value that changes its number of axes")
    return new if tuple(new.shape) == tuple(shape) else mx.broadcast_to(new, shape)


# ---- outputs that are read and written at several places ----


def offset_writes(info: Any) -> list[tuple[int, ...]]:
    """Where a MIT-MOT writes, counted from the oldest row that it reads."""
    return [
        tuple(tap - min(0, min(reads)) for tap in writes)
        for reads, writes in zip(info.mit_mot_in_slices, info.mit_mot_out_slices, strict=True)
    ]


class MitMot:
    """A buffer whose row i + tap is read for some taps at step i, and written for others.

    A row is read at tap t after it was written at tap w > t, w - t steps earlier; the last such write counts, that of
    the smallest w. Rows that no tap has written yet are as they were. So the last few values that each tap wrote are
    carried, and all other reads are sequences.
    """

    def __init__(self, buffer: array, reads: Sequence[int], writes: Sequence[int], steps: Any) -> None:
        self.buffer, self.taps, self.writes, self.steps = buffer, tuple(reads), tuple(writes), steps
        self.sources: list[tuple[int, int] | None] = []
        """For each read: (number of the write, how many steps ago); None for what is as it was."""
        for tap in self.taps:
            later = [w for w in self.writes if w > tap]
            nearest = min(later, default=None)
            self.sources.append(None if nearest is None else (self.writes.index(nearest), nearest - tap))
        self.kept = [
            max((back for source in self.sources if source and source[0] == number for back in [source[1]]), default=0)
            for number in range(len(self.writes))
        ]

    def first(self) -> list[tuple[array, ...]]:
        """What stands in the rows that the taps would have written before the first step."""
        return [
            tuple(self.buffer[write - back] for back in range(kept, 0, -1))
            for write, kept in zip(self.writes, self.kept, strict=True)
        ]

    def sequences(self) -> list[array]:
        """The rows that are read before anything is written to them."""
        return [
            self.buffer[tap : tap + self.steps]
            for tap, source in zip(self.taps, self.sources, strict=True)
            if source is None
        ]

    def reads(self, past: Sequence[Sequence[array]], ahead: Sequence[array]) -> list[array]:
        """What a step reads."""
        rows = iter(ahead)
        return [
            next(rows) if source is None else past[source[0]][len(past[source[0]]) - source[1]]
            for source in self.sources
        ]

    def shaped(self, outs: Sequence[array]) -> list[array]:
        return [_like(x, tuple(self.buffer.shape[1:]), self.buffer) for x in outs]

    def after(self, past: Sequence[Sequence[array]], outs: Sequence[array]) -> list[tuple[array, ...]]:
        """What is carried to the next step."""
        return [
            (*old[1:], new) if old else () for old, new in zip(past, self.shaped(outs), strict=True)
        ]  # fmt: skip

    def result(self, rows: Sequence[array]) -> array:
        """The buffer behind the loop: where several taps write, the smallest comes last."""
        made = self.buffer
        for write, new in sorted(zip(self.writes, rows, strict=True), key=lambda pair: -pair[0]):
            end = write + self.steps
            made = mx.concatenate([made[:write], new, made[end:]])
        return made
