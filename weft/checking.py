"""Programs that check themselves (WEFT_CHECK=1, `weft check`): every run is done twice more, operation by operation.

A checked executable first computes the graph that it was made of one primitive at a time, each by a program of its own,
and each of those results is compared with the primitive's NumPy reference on the same operands, within the primitive's
stated tolerance. Then the real program runs, and its results must have the same bits as those. On the way, indices out
of range and the first operation that makes a NaN of numbers are found. The steps of a loop are done one by one in the
same way, each compared with what the loop itself gave. A `Finding` names the operation, the step, and the line of the
user's program that made it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from weft import dtypes as dt
from weft.config import config
from weft.dtypes import Dtype
from weft.graph import lines
from weft.graph.body import Body
from weft.graph.lines import Line, line_of
from weft.graph.node import ArrayType, Graph, Node, Tape, TupleType, kind_of
from weft.passes import pipeline
from weft.passes.executable import Executable
from weft.passes.views import contiguous, is_contiguous
from weft.primitives.base import (
    Constant,
    ConstantValue,
    GetResult,
    MultiOutput,
    Parameter,
    Primitive,
    RunTimeConstant,
    View,
    bind,
    picks,
    words_of,
)
from weft.primitives.control import Loop, Switch
from weft.primitives.indexing import Indexed, Scatter
from weft.records import dataclass, replace
from weft.reference import apply_reference
from weft.runtime.data import Buffer, numpy_view, to_buffer
from weft.runtime.program import Progress
from weft.targets import CPU

SLACK = 4
"""How much larger than its stated tolerance an error may be: those hold on the samples of the contract tests, and what
is looked for here is wrong answers."""
MOST_SEARCHED = 256
"""Nodes of a program that are tried one by one when its result is wrong."""


class CheckError(AssertionError):
    """A program gave another answer than its operations one by one, or an operation than its reference: a bug in
    Weft."""


class CheckWarning(UserWarning):
    """The program does something that is rarely meant: an index out of range, a NaN made of numbers."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `kind` is "program" (differs from its operations one by one), "reference" (an operation
    differs from its reference), "bounds" or "nan"."""

    kind: str
    op: str
    line: Line | None
    message: str

    @property
    def is_ours(self) -> bool:
        """Whether Weft is to blame."""
        return self.kind in ("program", "reference")

    def __str__(self) -> str:
        where = f" (at {self.line})" if self.line is not None else ""
        return f"[{self.op}] {self.message}{where}."


@dataclass(slots=True)
class Tally:
    """What has been checked so far."""

    programs: int = 0
    runs: int = 0
    operations: int = 0


tally = Tally()
_seen: set[tuple[str, str, Line | None]] = set()


def raise_or_warn(finding: Finding) -> None:
    """What becomes of a finding unless somebody collects them: our faults are errors, the user's are warnings, once."""
    if finding.is_ours:
        raise CheckError(str(finding))
    key = (finding.kind, finding.op, finding.line)
    if key not in _seen:
        _seen.add(key)
        if finding.line is None:
            warnings.warn(f"[check] {finding}", CheckWarning, stacklevel=2)
        else:
            warnings.warn_explicit(f"[check] {finding}", CheckWarning, finding.line.file, finding.line.number)


_report: list[Callable[[Finding], None]] = [raise_or_warn]


@contextmanager
def collected() -> Iterator[list[Finding]]:
    """Findings go to a list instead, each once."""
    found: list[Finding] = []
    seen: set[tuple[str, str, Line | None]] = set()

    def keep(finding: Finding) -> None:
        key = (finding.kind, finding.op, finding.line)
        if key not in seen:
            seen.add(key)
            found.append(finding)

    _report.append(keep)
    try:
        yield found
    finally:
        _report.remove(keep)


def enable() -> None:
    """Check all programs that are made from now on."""
    config.check = config.compare = True
    if _wrap not in pipeline.WRAPPERS:
        lines.start()
        pipeline.WRAPPERS.append(_wrap)


def disable() -> None:
    """Programs made from now on are not checked."""
    config.compare = False
    if _wrap in pipeline.WRAPPERS:
        lines.stop()
        pipeline.WRAPPERS.remove(_wrap)


def _wrap(made: Executable, graph: Graph, layouts: pipeline.Layouts) -> Executable:
    tally.programs += 1
    return Checked(made, graph, layouts)


# ---- programs ----


class Checked(Executable):
    """An executable that compares what it gives with what its operations give one by one."""

    __slots__ = ("graph", "last_use", "layouts", "made", "order")

    def __init__(self, made: Executable, graph: Graph, layouts: pipeline.Layouts) -> None:
        for name in Executable.__slots__:
            setattr(self, name, getattr(made, name))
        self.made, self.graph, self.layouts = made, graph, layouts
        self.order, self.last_use = _uses(graph)

    def run(self, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer]:
        if any(isinstance(node.kind, Tape) for node in self.order):
            return self.made.run(inputs, words)  # loops that leave rows for each other cannot be run one by one
        # First, because the program may be allowed to overwrite its inputs.
        expected = self._one_by_one(inputs, self._numbers(words))
        return self._compared(inputs, words, self.made.run(inputs, words), expected)

    def run_in_place(self, inputs: Sequence[Buffer], words: Sequence[int], progress: Progress) -> list[Buffer]:
        expected = self._one_by_one(inputs, self._numbers(words))
        spent = set(self.spent)  # where an answer is wrong, operands are looked at again
        given = enumerate(zip(inputs, self.graph.inputs, strict=True))
        kept = [_copied(buffer, node) if i in spent else buffer for i, (buffer, node) in given]
        return self._compared(kept, words, self.made.run_in_place(inputs, words, progress), expected)

    def _compared(
        self, inputs: Sequence[Buffer], words: Sequence[int], results: list[Buffer], expected: Sequence[Buffer]
    ) -> list[Buffer]:
        tally.runs += 1
        for number, (output, got, wanted) in enumerate(zip(self.graph.outputs, results, expected, strict=True)):
            x, y = _look(got, output), _look(wanted, output)
            if not same_bits(x, y):
                self._report_difference(number, output, x, y, inputs, words)
        return results

    def _numbers(self, words: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """The words of each constant in this call, by the identity of its value."""
        given, at = {}, 0
        for value in self.constants:
            length = -(-value.dtype.size // 8) if isinstance(value, RunTimeConstant) else len(value.words)
            given[id(value)] = tuple(words[at : at + length])
            at += length
        return given

    def _one_by_one(self, inputs: Sequence[Buffer], numbers: Mapping[int, tuple[int, ...]]) -> list[Buffer]:
        return one_by_one(self.graph, inputs, numbers, self.order, self.last_use)

    def _report_difference(
        self, number: int, output: Node, x: np.ndarray, y: np.ndarray, inputs: Sequence[Buffer], words: Sequence[int]
    ) -> None:
        culprit = self.culprit(inputs, self._numbers(words)) or output
        title = str(culprit.op)
        message = f"result {number} of a program differs from its operations one by one: {difference(x, y)}"
        report(Finding("program", title, line_of(culprit), message))

    def culprit(self, inputs: Sequence[Buffer], numbers: Mapping[int, tuple[int, ...]]) -> Node | None:
        """The first node that a program of its own, made of all that it depends on, computes differently."""
        for node in self.order[:MOST_SEARCHED]:
            if isinstance(node.op, (Parameter, Constant)):
                continue
            part = CPU.assemble(pipeline.plan(Graph(self.graph.inputs, [node]), CPU, self.layouts))
            words = [word for value in part.constants for word in numbers.get(id(value), value.words)]
            alone = Checked(part, Graph(self.graph.inputs, [node]), self.layouts)
            with collected():
                (wanted,) = alone._one_by_one(inputs, numbers)
            (got,) = part.run(inputs, words)
            if not same_bits(_look(got, node), _look(wanted, node)):
                return node
        return None


def _uses(graph: Graph) -> tuple[list[Node], dict[Node, int]]:
    """All nodes, and the place of the last one that reads each."""
    order = graph.order()
    last = {operand: i for i, node in enumerate(order) for operand in node.inputs}
    return order, {**last, **{node: len(order) for node in graph.outputs}}


def one_by_one(
    graph: Graph,
    inputs: Sequence[Buffer],
    numbers: Mapping[int, tuple[int, ...]],
    order: Sequence[Node],
    last_use: Mapping[Node, int],
) -> list[Buffer]:
    """The outputs of a graph, each operation by a program of its own and looked at."""
    values: dict[Node, Any] = {}
    for position, node in enumerate(order):
        if isinstance(node.op, Parameter):
            values[node] = inputs[node.op.index]
        elif isinstance(node.op, Constant):
            values[node] = numbers[id(node.value)] if id(node.value) in numbers else _words(node.value)
        elif isinstance(node.op, GetResult):
            values[node] = values[node.inputs[0]][node.op.index]
        else:
            operands = [values[i] for i in node.inputs]
            results = _single(node, operands).run(operands)
            values[node] = results if isinstance(node.kind, TupleType) else results[0]
            if node.op.bodies():
                look_inside(node, [_stored(x, i) for x, i in zip(operands, node.inputs, strict=True)], results)
            else:
                _inspect(node, operands, results)
            tally.operations += 1
        for operand in {*node.inputs}:
            if last_use[operand] == position:
                del values[operand]
    return [_stored(values[o], o) for o in graph.outputs]


def _words(value: ConstantValue) -> tuple[int, ...]:
    """The words of a constant that the program does not read."""
    if isinstance(value, RunTimeConstant):  # its number in this call is not known here, and does not matter
        return words_of(value.scalar.hint, value.dtype)
    return value.words


def _stored(value: Any, node: Node) -> Buffer:
    """A result in memory; a constant is written out."""
    if isinstance(value, Buffer):
        return value
    return to_buffer(np.broadcast_to(_scalar(value, node.dtype), tuple(map(int, node.shape))))


# ---- operations ----


class _Single:
    """A program of one operation: what runs, and for each of its constants the operand that it is (None: fixed)."""

    __slots__ = ("executable", "sources")

    def __init__(self, executable: Executable, operands: Sequence[Node]) -> None:
        self.executable = executable
        places = {id(node.value): i for i, node in enumerate(operands) if isinstance(node.op, Constant)}
        self.sources = [(places.get(id(value)), value.words) for value in executable.constants]

    def run(self, operands: Sequence[Any]) -> list[Buffer]:
        """The result; all of them where the operation has several."""
        buffers = {id(value): value for value in operands if isinstance(value, Buffer)}
        words = [word for at, fixed in self.sources for word in (fixed if at is None else operands[at])]
        return self.executable.run(list(buffers.values()), words)


_singles: dict[tuple[Any, ...], _Single] = {}
_MOST_SINGLES = 4096


def _single(node: Node, operands: Sequence[Any]) -> _Single:
    """The program of a node's operation, for operands that lie as these do."""
    first = {id(value): i for i, value in reversed(list(enumerate(operands)))}
    key = (node.op, node.kind, *[_look_of(i, v, first) for i, v in zip(node.inputs, operands, strict=True)])
    found = _singles.get(key)
    if found is None:
        if len(_singles) >= _MOST_SINGLES:
            _singles.clear()
        found = _singles[key] = _new_single(node, operands)
    return found


def _look_of(node: Node, value: Any, first: Mapping[int, int]) -> tuple[Any, ...]:
    if isinstance(value, Buffer):
        return (node.kind, value.strides, first[id(value)])
    return (node.op, node.kind)


def _new_single(node: Node, operands: Sequence[Any]) -> _Single:
    made: dict[int, Node] = {}
    inputs: list[Node] = []
    nodes: list[Node] = []
    layouts: dict[Node, tuple[int, ...] | None] = {}
    for operand, value in zip(node.inputs, operands, strict=True):
        if not isinstance(value, Buffer):
            number = ConstantValue(_scalar(value, operand.dtype), tuple(value))
            nodes.append(Node(operand.op, (), operand.kind, number))
            continue
        parameter = made.get(id(value))
        if parameter is None:
            parameter = made[id(value)] = Node(Parameter(len(inputs)), (), operand.kind)
            layouts[parameter] = value.strides
            inputs.append(parameter)
        nodes.append(parameter)
    again = node.again(tuple(nodes), {})
    graph = Graph(inputs, picks(again) if isinstance(node.kind, TupleType) else [again])
    return _Single(CPU.assemble(pipeline.plan(graph, CPU, layouts)), nodes)


def _scalar(words: Sequence[int], dtype: Dtype) -> Any:
    raw = b"".join(word.to_bytes(8, "little", signed=True) for word in words)
    return np.frombuffer(raw[: dtype.size], dtype.np)[0]


def _copied(buffer: Buffer, node: Node) -> Buffer:
    return to_buffer(_look(buffer, node))


def _look(buffer: Buffer, node: Node) -> np.ndarray:
    return numpy_view(buffer, tuple(map(int, node.shape)), node.dtype)


def _inspect(node: Node, operands: Sequence[Any], results: Sequence[Buffer]) -> None:
    """Report what is wrong with one operation's result."""
    values = [
        _look(value, operand)
        if isinstance(value, Buffer)
        else np.broadcast_to(_scalar(value, operand.dtype), tuple(map(int, operand.shape)))
        for operand, value in zip(node.inputs, operands, strict=True)
    ]
    parts = node.kind.parts if isinstance(node.kind, TupleType) else (node.kind,)
    got = [numpy_view(x, tuple(map(int, part.shape)), part.dtype) for x, part in zip(results, parts, strict=True)]
    found = [("bounds", out_of_range(node, values))]
    found += [("nan", new_nan(part.dtype, values, x)) for part, x in zip(parts, got, strict=True)]
    found.append(("reference", unlike_reference(node, values, got)))
    for kind, message in found:
        if message:
            report(Finding(kind, str(node.op), line_of(node), message))


# ---- loops and branches ----

MOST_STEPS = 256
"""Steps of a loop that are looked at one by one; further ones where a NaN is made. Loops inside get a few each."""
MOST_KEPT = 1 << 24
"""Bytes of carries that are kept to find the step in which a loop goes wrong."""

_inside: list[str] = []
"""Where in loops and branches the operation stands that is being looked at, from the outside in."""
_made: list[Finding] = []
"""The NaNs found inside of the loop that is being looked at."""


def report(finding: Finding) -> None:
    """Say what was found, and where in loops."""
    if finding.kind == "nan":
        _made.append(finding)
    if _inside:
        finding = replace(finding, message=f"{finding.message}, in {' of '.join(reversed(_inside))}")
    _report[-1](finding)


@contextmanager
def _standing(where: str) -> Iterator[None]:
    _inside.append(where)
    try:
        yield
    finally:
        _inside.pop()


def look_inside(node: Node, operands: Sequence[Buffer], results: Sequence[Buffer]) -> None:
    """Check a loop or branch: its body operation by operation, on what each step gets."""
    found, at = len(_made), _Steps(node, operands, results) if isinstance(node.op, Loop) else None
    if at is not None:
        at.check()
    else:
        _check_branch(node, operands, results)
    assert isinstance(node.kind, TupleType)
    if len(_made) > found or any(isinstance(i.kind, Tape) for i in node.inputs):
        return
    given = [_look(x, i) for x, i in zip(operands, node.inputs, strict=True)]
    for result, part in zip(results, node.kind.parts, strict=True):
        message = new_nan(part.dtype, given, numpy_view(result, tuple(map(int, part.shape)), part.dtype))
        if message:
            report(Finding("nan", str(node.op), line_of(node), message))


def _check_branch(node: Node, operands: Sequence[Buffer], results: Sequence[Buffer]) -> None:
    assert isinstance(node.op, Switch)
    number = min(max(int(_look(operands[0], node.inputs[0])), 0), len(node.op.branches) - 1)
    with _standing(f"branch {number}"):
        body = node.op.branches[number]
        expected = one_by_one(body.graph, operands[1:], {}, *_uses(body.graph))
        for output, got, wanted in zip(body.outputs, results, expected, strict=True):
            _compare_body(node, body, operands[1:], _look(got, output), _look(wanted, output))


def _compare_body(node: Node, body: Body, inputs: Sequence[Buffer], got: np.ndarray, wanted: np.ndarray) -> None:
    """Report a body that gives something else than its operations one by one."""
    if same_bits(got, wanted):
        return
    layouts = {param: x.strides for param, x in zip(body.inputs, inputs, strict=True)}
    alone = Checked(CPU.assemble(pipeline.plan(body.graph, CPU, layouts)), body.graph, layouts)
    culprit = alone.culprit(inputs, {}) or node
    message = f"differs from its operations one by one: {difference(got, wanted)}"
    report(Finding("program", str(culprit.op), line_of(culprit), message))


class _Steps:
    """A loop that has run, and its steps done once more, one by one."""

    def __init__(self, node: Node, operands: Sequence[Buffer], results: Sequence[Buffer]) -> None:
        assert isinstance(node.op, Loop)
        self.node, self.op, self.operands, self.results = node, node.op, operands, results
        self.uses = _uses(self.op.body.graph)
        _, self.invariants, self.first, self.rows = self.op.split(list(operands))
        count, *_, self.row_nodes = self.op.split(list(node.inputs))
        self.done = self._done()
        self.limit = self.done if not self.op.reverse else self._limit(count)

    def _done(self) -> int:
        """How many steps were made."""
        if self.op.reports:
            return int(numpy_view(self.results[-1], (), dt.int64))
        return int(self.op.length)  # type: ignore[arg-type]

    def _limit(self, count: Sequence[Node]) -> int:
        """How many there could have been: backwards, the first step takes the last row."""
        most = self.done if self.op.length is None else int(self.op.length)
        return min(most, max(int(_look(self.operands[0], count[0])), 0)) if count else most

    def check(self) -> None:
        carry, kept, size = list(self.first), [], 0
        most = max(MOST_STEPS >> 4 * len(_inside), 2)
        for step in range(min(self.done, most)):
            carry = self._step(step, carry)
            size += sum(x.storage.nbytes for x in carry)
            kept.append(carry if size <= MOST_KEPT else None)
        if self.done > most:
            self._look_for_nan(most)
        elif not self._ends_with(carry):
            self._look_for_difference(kept)

    def _row(self, number: int, step: int) -> Buffer:
        at = self.limit - 1 - step if self.op.reverse else step
        return _part(self.rows[number], self.row_nodes[number].kind, at, None)

    def _step(self, step: int, carry: Sequence[Buffer]) -> list[Buffer]:
        """The carries after a step; its rows are compared with those of the loop."""
        op = self.op
        inputs = [*self.invariants, *carry, *(self._row(i, step) for i in range(len(self.rows)))]
        with _standing(f"step {step} of a loop"):
            results = one_by_one(op.body.graph, inputs, {}, *self.uses)
            made, stacked = op.split_body()[1], op.split_results(self.results)[1]
            if op.length is not None:
                at = self.limit - 1 - step if op.reverse else step
                for row, output, whole in zip(results[op.carries :], made, stacked, strict=False):
                    shape = (int(op.length), *map(int, output.shape))
                    got = numpy_view(whole, shape, output.dtype)[at]
                    _compare_body(self.node, op.body, inputs, got, _look(row, output))
        return results[: op.carries]

    def _ends_with(self, carry: Sequence[Buffer]) -> bool:
        return self._same(self.results, carry)

    def _same(self, found: Sequence[Buffer], carry: Sequence[Buffer]) -> bool:
        nodes = self.op.split_body()[0]
        return all(same_bits(_look(x, n), _look(y, n)) for x, y, n in zip(found, carry, nodes, strict=False))

    def _look_for_difference(self, kept: Sequence[list[Buffer] | None]) -> None:
        """The first step after which the loop has other carries than its operations one by one."""
        known = [carry for carry in kept if carry is not None]
        low, high = 0, len(known)
        while low < high:
            middle = (low + high) // 2
            found, _ = self._shortened(middle + 1)
            low, high = (middle + 1, high) if self._same(found, known[middle]) else (low, middle)
        before = (self.first if low == 0 else known[low - 1]) if low < len(known) else None
        if before is None:
            report(Finding("program", str(self.op), line_of(self.node), "differs from its steps one by one"))
            return
        found, _ = self._shortened(low + 1)
        inputs = [*self.invariants, *before, *(self._row(i, low) for i in range(len(self.rows)))]
        with _standing(f"step {low} of a loop"):
            for got, wanted, output in zip(found, known[low], self.op.split_body()[0], strict=False):
                _compare_body(self.node, self.op.body, inputs, _look(got, output), _look(wanted, output))

    def _look_for_nan(self, low: int) -> None:
        """If the loop makes a NaN later: the first step after which there is one, operation by operation."""
        _, made = self._shortened(self.done)
        given = any(self._nan(x, i.kind) for x, i in zip(self.operands, self.node.inputs, strict=True))
        if given or not made:
            return
        high = self.done
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._shortened(middle)[1] else (middle + 1, high)
        carry, _ = self._shortened(low - 1)
        self._step(low - 1, carry[: self.op.carries])

    def _nan(self, x: Buffer, kind: Any) -> bool:
        return bool(_nans(numpy_view(x, tuple(map(int, kind.shape)), kind.dtype)).any())

    def _shortened(self, steps: int) -> tuple[list[Buffer], bool]:
        """The results of the loop's first steps, and whether there are NaNs among them."""
        first = self.limit - steps if self.op.reverse else 0
        op = self.op.with_body(
            self.op.body, self.op.invariants, self.op.carries, length=steps, counted=False, progress=None
        )
        rows = [_part(x, n.kind, first, steps) for x, n in zip(self.rows, self.row_nodes, strict=True)]
        nodes = list(self.node.inputs[self.op.counted :])
        for i, n in enumerate(self.row_nodes, len(nodes) - len(rows)):
            nodes[i] = Node(Parameter(i), (), kind_of((steps, *n.shape[1:]), n.dtype))
        operands = [*self.invariants, *self.first, *rows]
        whole = bind(op, *nodes)
        assert isinstance(whole.kind, TupleType)
        results = _new_single(whole, operands).run(operands)
        return results, any(self._nan(x, part) for x, part in zip(results, whole.kind.parts, strict=True))


def _part(x: Buffer, kind: ArrayType, at: int, steps: int | None) -> Buffer:
    """Rows of stacked ones: `steps` of them, or (None) one alone."""
    strides = tuple(map(int, contiguous(kind.shape))) if x.strides is None else x.strides
    moved, shape = (strides, (steps, *kind.shape[1:])) if steps is not None else (strides[1:], kind.shape[1:])
    address = x.address + at * strides[0] * kind.dtype.size
    return Buffer(x.storage, address, None if is_contiguous(shape, moved) else moved)


def out_of_range(node: Node, values: Sequence[np.ndarray]) -> str:
    """The first index that lies outside of its axis (it is moved inside by the kernels)."""
    op = node.op
    if not isinstance(op, Indexed):
        return ""
    indices = iter(values[2:] if isinstance(op, Scatter) else values[1:])
    for axis, (place, n) in enumerate(zip(op.where, values[0].shape, strict=True)):
        if place is not None:
            continue
        index = next(indices)
        wide = index.astype(np.int64) if index.dtype.kind != "u" else index
        stray = (wide >= n) | ((wide < -n) if index.dtype.kind != "u" else False)
        if stray.any():
            first = tuple(int(i) for i in np.argwhere(stray)[0])
            return (
                f"index {int(index[first])} is out of range for axis {axis} of size {n} "
                f"({int(stray.sum())} of {index.size} indices are; the first stands at {first})"
            )
    return ""


def new_nan(dtype: Dtype, values: Sequence[np.ndarray], got: np.ndarray) -> str:
    """The first NaN, if no operand has one."""
    if not dtype.is_inexact or not _nans(got).any() or any(_nans(v).any() for v in values):
        return ""
    place = tuple(int(i) for i in np.argwhere(_nans(got))[0])
    shown = [f"{v[place]}" for v in values if v.shape == got.shape]
    operands = f" of {', '.join(shown)}" if shown else " of operands that have none"
    return f"makes NaN{operands} (at {place} of shape {got.shape})"


def unlike_reference(node: Node, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> str:
    """How results differ from what the primitive's reference says and its tolerance allows."""
    with np.errstate(all="ignore"):
        backward = node.op.backward_error(values, results)
    if backward is not None:
        return _far_from_exact(node.op, values, results, backward)
    try:
        if isinstance(node.op, MultiOutput):
            with np.errstate(all="ignore"):
                expected = node.op.reference(*values)
        else:
            expected = (apply_reference(node.op, values, node.dtype),)
    except NotImplementedError:
        return ""
    told = (_unlike(node, values, *pair) for pair in zip(results, expected, strict=True))
    return next(filter(None, told), "")


def _unlike(node: Node, values: Sequence[np.ndarray], got: np.ndarray, expected: np.ndarray) -> str:
    """How one result differs."""
    if expected.shape != got.shape:
        return f"gives shape {got.shape} where the reference gives {expected.shape}"
    dtype = dt.from_numpy(got.dtype)
    dtypes = [i.dtype for i in node.inputs if i.dtype.is_inexact] + [dtype]
    allowed = max((node.op.tolerance[d] for d in dtypes if d in node.op.tolerance), default=None)
    if allowed is None or not dtype.is_inexact:
        right = same_bits(got, expected)
    else:
        right = bool(np.all(_errors(node, values, got, expected) <= SLACK * allowed))
    return "" if right else f"differs from the reference: {difference(got, expected)}"


def _far_from_exact(op: Primitive, values: Sequence[np.ndarray], results: Sequence[np.ndarray], error: float) -> str:
    """Whether results are exact for operands that are not near these. Where there are infinities or NaNs, or numbers
    that are so large or small that products of them are, nothing is known."""
    allowed = SLACK * op.tolerance[dt.from_numpy(values[0].dtype)]
    if error <= allowed or not all(np.isfinite(x).all() for x in (*values, *results)):
        return ""
    info = np.finfo(values[0].dtype)
    largest = max((float(np.abs(x).max(initial=0.0)) for x in values), default=0.0)
    moderate = float(info.tiny) ** 0.25 < largest < float(info.max) ** 0.25
    return f"is exact for operands that are {error:.3g} epsilon away" if moderate else ""


# ---- comparing ----


def _nans(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "biu":
        return np.zeros(values.shape, np.bool_)
    return np.isnan(values.astype(np.float32) if values.dtype.kind == "V" or values.dtype.itemsize == 2 else values)


def _parts(values: np.ndarray) -> np.ndarray:
    """The elements flat, complex ones as pairs."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements (parts of complex ones) have the same bits; NaNs are equal to each other."""
    x, y = _parts(a), _parts(b)
    return (x.view(f"u{x.dtype.itemsize}") == y.view(f"u{y.dtype.itemsize}")) | (_nans(x) & _nans(y))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.all(_equal(a, b)))


def difference(got: np.ndarray, wanted: np.ndarray) -> str:
    """The first element that differs, in words."""
    wrong = ~_equal(got, wanted)
    if got.dtype.kind == "c":
        wrong = wrong[0::2] | wrong[1::2]
    place = np.unravel_index(int(np.argmax(wrong)), got.shape)
    at = tuple(int(i) for i in place)
    return f"{got[at]!s} instead of {wanted[at]!s} at {at}, and {int(wrong.sum())} of {got.size} elements differ"


def _errors(node: Node, values: Sequence[np.ndarray], got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The errors in units of the last place, relative to the result, or to the sum of the magnitudes of the terms where
    they may cancel; 0 where nothing is promised (sums that overflow on the way, complex infinities)."""
    op = node.op
    info = ml_dtypes.finfo(dt.real_of(node.dtype).np)
    with np.errstate(all="ignore"):
        scale = np.abs(expected.astype(np.complex128 if node.dtype.is_complex else np.float64))
        if op.cancels and not isinstance(op, View):
            scale = np.maximum(scale, np.abs(np.asarray(op.magnitudes(*values), np.float64)))
        finite = np.where(np.isfinite(scale), scale, 0.0)
        _, exponent = np.frexp(np.maximum(finite, float(info.smallest_normal)))
        unit, free = np.ldexp(float(info.eps), exponent - 1), ~(scale <= float(info.max))
        pairs = 2 if node.dtype.is_complex else 1
        unit, free = np.repeat(unit.reshape(-1), pairs), np.repeat(free.reshape(-1), pairs)
        x, y = _parts(got).astype(np.float64), _parts(expected).astype(np.float64)
        error = np.abs(x - y) / unit
    same = (x == y) | (np.isnan(x) & np.isnan(y)) | (free & (op.cancels or node.dtype.is_complex))
    return np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))


if config.compare:
    enable()
