"""Loops: what need not be in one goes out of it, and loops that run in step become one.

Differentiation leaves loops behind that compute more than is asked for, and forward loops beside the ones they extend.
This pass takes out results and carries that nobody reads, carries that never change, operands that are 0 or 1, and code
that does the same at every step; and it merges a loop into another that does all it does. Every value that remains is
computed as before, so bits stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from weft.graph.body import Body, body_of, rebuilt
from weft.graph.lines import inherit
from weft.graph.node import Graph, Node, TupleType, reachable
from weft.passes.cse import cse
from weft.passes.elements import by_elements
from weft.passes.simplify import simplify
from weft.primitives.base import (
    ONE,
    ZERO,
    Constant,
    GetResult,
    KernelOperation,
    Parameter,
    View,
    bind,
    bind_many,
    constant,
)
from weft.primitives.control import Loop
from weft.primitives.custom import Barrier
from weft.primitives.views import Contiguous, Transpose
from weft.records import dataclass

MANY_STEPS: Final = 8
"""Steps of a loop that make it worth a copy to have an operand lie in another order."""


def loops(graph: Graph) -> Graph:
    """The pass."""
    if not any(node.op.bodies() for node in graph.order()):
        return graph
    return _pruned(_by_elements(_merged(_tidied(graph))))


def _tidied(graph: Graph) -> Graph:
    """Every body simplified and free of common subexpressions."""
    new: dict[Node, Node] = {}
    for node in graph.order():
        op = node.op
        bodies = [_tidy(body) for body in op.bodies()]
        new[node] = node.on(tuple([new[i] for i in node.inputs]), op.with_bodies(bodies) if bodies else op)
    inherit(new)
    return Graph(graph.inputs, [new[o] for o in graph.outputs])


def _tidy(body: Body) -> Body:
    def make() -> Body:
        graph = cse(simplify(cse(body.graph)))
        return body_of(graph.inputs, graph.outputs)

    found: Body = body.once("tidy", make)
    return found


# ---- merging ----


@dataclass(slots=True)
class _Absorbed:
    """A loop that another one has taken in: which result of that one each of its results is."""

    by: Node
    results: list[int]


def _merged(graph: Graph) -> Graph:
    """Loops whose steps another loop makes anyway become part of it."""
    order = graph.order()
    found = [node for node in order if isinstance(node.op, Loop)]
    if len(found) < 2:
        return graph
    grown: dict[Node, Loop] = {node: node.op for node in found if isinstance(node.op, Loop)}
    table = _Numbering()
    numbers = {node: table.number(node, op) for node, op in grown.items()}
    holders: dict[int, list[Node]] = {}
    for large in reversed(found):
        for number in dict.fromkeys(numbers[large].values()):
            holders.setdefault(number, []).append(large)
    absorbed: dict[Node, _Absorbed] = {}
    for small in found:
        # A loop that it may become a part of computes all that it does, so also what the fewest loops do.
        outputs = grown[small].body.outputs
        for large in min((holders[numbers[small][x]] for x in outputs), key=len, default=()):
            if small is large or small in absorbed or large in absorbed:
                continue
            into = _absorb(small, large, grown, numbers)
            if into is None or _depends(large, small):
                continue
            absorbed[small] = _Absorbed(large, into[1])
            if into[0] is not grown[large]:
                grown[large] = into[0]
                numbers[large] = table.number(large, into[0])
            break
    while (one := _in_a_circle(graph, absorbed)) is not None:
        del absorbed[one]
    if not absorbed:
        return graph
    return _rebuilt(graph, lambda node, operands: _with_absorbed(node, operands, grown), absorbed)


def _depends(node: Node, other: Node) -> bool:
    """Whether a node is computed from another one. Operands are older than what reads them."""
    seen = {node}
    stack = [node]
    while stack:
        for operand in stack.pop().inputs:
            if operand is other:
                return True
            if operand not in seen and operand.id > other.id:
                seen.add(operand)
                stack.append(operand)
    return False


def _in_a_circle(graph: Graph, absorbed: dict[Node, _Absorbed]) -> Node | None:
    """An absorbed loop whose results would be computed from themselves: the loop that took it in reads another absorbed
    one, and that is in a loop that reads this one."""
    done: set[Node] = set()
    path: dict[Node, None] = {}
    stack = list(graph.outputs) if len(absorbed) > 1 else []
    while stack:
        node = stack[-1]
        if node in done or node in path:
            stack.pop()
            path.pop(node, None)
            done.add(node)
            continue
        path[node] = None
        operands = [x for x in _operands(node, absorbed) if x not in done]
        if any(x in path for x in operands):
            sources = [x.inputs[0] for x in path if isinstance(x.op, GetResult) and x.inputs[0] in absorbed]
            return sources[-1]
        stack.extend(operands)
    return None


def _operands(node: Node, absorbed: dict[Node, _Absorbed]) -> tuple[Node, ...]:
    """What a node is computed from when loops have been absorbed."""
    if isinstance(node.op, GetResult) and node.inputs[0] in absorbed:
        return (absorbed[node.inputs[0]].by,)
    return node.inputs


def _with_absorbed(node: Node, operands: tuple[Node, ...], grown: dict[Node, Loop]) -> Node:
    op = grown.get(node)
    if op is None or op is node.op:
        return node.on(operands)
    return bind(op, *operands)


def _rebuilt(graph: Graph, make: Callable[[Node, tuple[Node, ...]], Node], absorbed: dict[Node, _Absorbed]) -> Graph:
    """The graph with results of absorbed loops taken from those that absorbed them. A loop may be newer than what reads
    it now, so nodes are made as they are asked for."""
    new: dict[Node, Node] = {}
    shift: dict[Node, dict[int, int]] = {}
    for small, into in absorbed.items():
        shift[small] = dict(enumerate(into.results))

    stack = [*graph.inputs, *graph.outputs]
    while stack:
        node = stack[-1]
        if node in new:
            stack.pop()
            continue
        wanted = [x for x in _operands(node, absorbed) if x not in new]
        if wanted:
            stack.extend(wanted)
            continue
        stack.pop()
        operands = tuple([new[x] for x in _operands(node, absorbed)])
        if isinstance(node.op, GetResult):
            source = node.inputs[0]
            index = shift[source][node.op.index] if source in absorbed else node.op.index
            (whole,) = operands
            index = _renumber(node, index, source, whole)
            new[node] = bind(GetResult(index), whole)
        else:
            new[node] = make(node, operands)
    inherit(new)
    return Graph(graph.inputs, [new[o] for o in graph.outputs])


def _renumber(pick: Node, index: int, source: Node, whole: Node) -> int:
    """The number of steps is a loop's last result, whatever was added before it."""
    assert isinstance(source.kind, TupleType)
    assert isinstance(pick.op, GetResult)
    assert isinstance(whole.kind, TupleType)
    if isinstance(source.op, Loop) and source.op.reports and pick.op.index == len(source.kind.parts) - 1:
        return len(whole.kind.parts) - 1
    return index


def _absorb(
    small: Node, large: Node, loops: Mapping[Node, Loop], numbers: Mapping[Node, Mapping[Node, int]]
) -> tuple[Loop, list[int]] | None:
    """The large loop with the rows that the small one makes and it does not, and which of its results those of the
    small one are; None if it does not make the same steps."""
    op, into, ours, theirs = loops[small], loops[large], numbers[small], numbers[large]
    alike = (op.length, op.reverse, op.counted, op.stops) == (into.length, into.reverse, into.counted, into.stops)
    if not alike or op.carries > into.carries:
        return None
    if op.split(small.inputs)[0] != into.split(large.inputs)[0]:
        return None
    their_carries, their_rows, their_flag = into.split_body()
    our_carries, our_rows, our_flag = op.split_body()
    first, other = op.body.inputs[op.invariants :], into.body.inputs[into.invariants :]
    for k in range(op.carries):
        if ours[first[k]] != theirs[other[k]] or ours[our_carries[k]] != theirs[their_carries[k]]:
            return None
    if our_flag is not None and their_flag is not None and ours[our_flag] != theirs[their_flag]:
        return None
    known = {theirs[row]: i for i, row in enumerate(their_rows)}
    added: list[Node] = []
    results = list(range(op.carries))
    by_number = {number: node for node, number in theirs.items()}
    for row in our_rows:
        number = ours[row]
        if number not in known:
            if number not in by_number:
                return None
            known[number] = len(their_rows) + len(added)
            added.append(by_number[number])
        results.append(into.carries + known[number])
    if op.reports:
        results.append(-1)
    if not added:
        return into, results
    outputs = [*their_carries, *their_rows, *added, *([] if their_flag is None else [their_flag])]
    return into.with_body(body_of(into.body.inputs, outputs), into.invariants, into.carries), results


def _places(op: Loop) -> tuple[list[int], list[int], list[int], list[int]]:
    """The numbers of the body's inputs, split as operands are."""
    inputs = range(len(op.body.inputs))
    first = op.invariants + op.carries
    return [], list(inputs[: op.invariants]), list(inputs[op.invariants : first]), list(inputs[first:])


class _Numbering:
    """Numbers for the nodes in the bodies of several loops: equal ones compute the same, from the same operands."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def number(self, loop: Node, op: Loop) -> dict[Node, int]:
        """Those of the body that a loop has (`op`)."""
        _, invariants, carries, rows = op.split(loop.inputs)
        given = [*(("invariant", x) for x in invariants), *(("carry", k, x) for k, x in enumerate(carries))]
        given += [("row", x) for x in rows]
        numbers = {node: self._of(key) for node, key in zip(op.body.inputs, given, strict=True)}
        for node in op.body.graph.order():
            if node not in numbers:
                words = getattr(node.value, "words", None) if not node.inputs else None
                numbers[node] = self._of((node.op, node.kind, words, *[numbers[x] for x in node.inputs]))
        return numbers

    def _of(self, key: Any) -> int:
        return self.known.setdefault(key, len(self.known))


def _by_elements(graph: Graph) -> Graph:
    """Loops over a handful of numbers become loops over single ones."""
    new: dict[Node, Node] = {}
    results: dict[Node, list[Node]] = {}
    for node in graph.order():
        if isinstance(node.op, GetResult) and node.inputs[0] in results:
            new[node] = results[node.inputs[0]][node.op.index]
            continue
        inputs = tuple([new[i] for i in node.inputs])
        found = by_elements(node.op, inputs) if isinstance(node.op, Loop) else None
        if found is not None:
            results[node] = found
        else:
            new[node] = node.on(inputs)
    if not results:
        return graph
    inherit(new)
    return _tidied(Graph(graph.inputs, [new[o] for o in graph.outputs]))


# ---- pruning ----


def _pruned(graph: Graph) -> Graph:
    """Loops without what nobody reads, and without what does not change."""
    used = _used_results(graph)
    new: dict[Node, Node] = {}
    results: dict[Node, list[Node | None]] = {}
    for node in graph.order():
        inputs = tuple([new[i] for i in node.inputs if i not in results])
        if isinstance(node.op, Loop):
            smaller = _Pruning(node.op, inputs, used[node])
            if smaller.op is node.op and smaller.operands == inputs:
                new[node] = node.on(inputs)
            else:
                results[node] = smaller.results()
        elif isinstance(node.op, GetResult) and node.inputs[0] in results:
            found = results[node.inputs[0]][node.op.index]
            assert found is not None
            new[node] = found
        else:
            new[node] = node.on(inputs)
    inherit(new)
    return Graph(graph.inputs, [new[o] for o in graph.outputs])


def _used_results(graph: Graph) -> dict[Node, set[int]]:
    """Which results of each loop are read."""
    used: dict[Node, set[int]] = {node: set() for node in graph.order() if isinstance(node.op, Loop)}
    for node in graph.order():
        if isinstance(node.op, GetResult) and node.inputs[0] in used:
            used[node.inputs[0]].add(node.op.index)
    return used


class _Pruning:
    """A smaller loop (`op` of `operands`) that computes those results of another that are used."""

    def __init__(self, op: Loop, operands: Sequence[Node], used: set[int]) -> None:
        self.old = op
        self.count, invariants, self.firsts, self.rows = op.split(operands)
        places = _places(op)
        inner, self.carries, self.row_params = ([op.body.inputs[i] for i in part] for part in places[1:])
        self.nexts, self.made, self.go_on = op.split_body()
        self.kept = [i for i in range(len(self.made)) if op.carries + i in used]
        self.fixed = {k: self.firsts[k] for k, x in enumerate(self.carries) if self.nexts[k] is x}
        """Carries that never change: invariants."""
        self.outer = dict(zip(inner, invariants, strict=True))
        self.outer.update({self.carries[k]: x for k, x in self.fixed.items()})
        self.live = _live_carries(op, used, self.kept, self.fixed)
        self.waited_for = op.length is None and used <= set(self.fixed)
        """Whether all that is asked for is known before the first step. But a loop that never ends has no results, and
        neither has one that makes as many steps."""
        self.op, self.operands = self._smaller()

    def _known(self) -> dict[Node, Node]:
        """Parameters that are 0 or 1 at every step."""
        given = dict(self.outer)
        if self.old.length is not None:
            given.update(zip(self.row_params, self.rows, strict=True))
        return {
            param: constant(x.op.special, param.kind)
            for param, x in given.items()
            if isinstance(x.op, Constant) and x.op in (ZERO, ONE)
        }

    def _smaller(self) -> tuple[Loop, tuple[Node, ...]]:
        known = self._known()
        outputs = [*(self.nexts[k] for k in self.live), *(self.made[i] for i in self.kept)]
        outputs += [] if self.go_on is None else [self.go_on]
        outputs = rebuilt([node for node in reachable(outputs) if node not in known], outputs, dict(known))
        carries = [self.carries[k] for k in self.live]
        moving = {*carries, *(param for param in self.row_params if param not in known)}
        hoisted = _hoisted(outputs, moving, self.outer, self._makes_a_step(), self._makes_many_steps())
        read = _read(outputs, hoisted)
        rows = [i for i, param in enumerate(self.row_params) if param in moving and param in read]
        body = body_of([*hoisted, *carries, *(self.row_params[i] for i in rows)], outputs)
        loop = self.old.with_body(body, len(hoisted), len(carries))
        given = [*self.count, *hoisted.values(), *(self.firsts[k] for k in self.live), *(self.rows[i] for i in rows)]
        return loop, tuple(given)

    def _makes_a_step(self) -> bool:
        """Whether it is certain that the body runs."""
        return not self.count and (type(self.old.length) is not int or self.old.length > 0)

    def _makes_many_steps(self) -> bool:
        return not self.count and not self.old.stops and type(self.old.length) is int and self.old.length >= MANY_STEPS

    def results(self) -> list[Node | None]:
        """The results of the other loop, by their numbers."""
        picked = bind_many(self.op, *self.operands)
        made = iter(picked)
        end = picked[-1] if self.old.stops else next(iter(self.count), None)
        fixed = self.fixed
        if self.waited_for and end is not None:
            fixed = {k: bind(Barrier(), x, end) for k, x in fixed.items()}
        live, kept = set(self.live), set(self.kept)
        found: list[Node | None] = [next(made) if k in live else fixed.get(k) for k in range(self.old.carries)]
        found += [next(made) if i in kept else None for i in range(len(self.made))]
        return [*found, *made]


def _live_carries(op: Loop, used: set[int], rows: Iterable[int], fixed: dict[int, Node]) -> list[int]:
    """Carries that something depends on which is asked for."""
    params = op.body.inputs[op.invariants : op.invariants + op.carries]
    nexts, made_rows, go_on = op.split_body()
    live = {k for k in range(op.carries) if k in used and k not in fixed}
    number = {param: k for k, param in enumerate(params) if k not in fixed}
    stack = [*(nexts[k] for k in live), *(made_rows[i] for i in rows), *([] if go_on is None else [go_on])]
    seen = set(stack)
    while stack:
        node = stack.pop()
        k = number.get(node)
        if k is not None:
            live.add(k)
        fresh = [x for x in (*node.inputs, *(() if k is None else (nexts[k],))) if x not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return sorted(live)


def _read(outputs: Sequence[Node], hoisted: dict[Node, Node]) -> set[Node]:
    """What a body still reads."""
    seen = {node for node in outputs if node not in hoisted}
    stack = list(seen)
    while stack:
        for x in stack.pop().inputs:
            if x not in seen and x not in hoisted:
                seen.add(x)
                stack.append(x)
    return seen


def _hoisted(
    outputs: Sequence[Node], moving: set[Node], outer: dict[Node, Node], runs: bool, many: bool
) -> dict[Node, Node]:
    """The nodes at which a body can be cut off from what does not change from step to step, each with its value outside
    of the loop. Views and constants stay inside, where they cost nothing (but for views that `many` steps would copy
    each), and, unless it is certain that the body `runs`, what may fail or never end."""
    order = reachable(outputs)
    varies: set[Node] = set()
    given: set[Node] = set()
    """What some operand of the loop is behind: the rest is computed from nothing but constants and ranges."""
    for node in order:
        if node in moving or any(x in varies for x in node.inputs) or not (runs or node.op.is_total):
            varies.add(node)
        if isinstance(node.op, Parameter) or any(x in given for x in node.inputs):
            given.add(node)
    cut: dict[Node, None] = {}
    laid_out = _laid_out(order, varies, given) if many else set()
    stack = [x for node in order if node in varies for x in node.inputs if x not in varies]
    stack += [node for node in outputs if node not in varies]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node not in laid_out and (isinstance(node.op, View) or node not in given):
            for x in node.inputs:
                if x not in seen:
                    seen.add(x)
                    stack.append(x)
        else:
            cut[node] = None
    roots = sorted(cut, key=lambda node: node.id)
    values = rebuilt(reachable(roots), roots, dict(outer))
    both = zip(roots, values, strict=True)
    return {root: bind(Contiguous(False), value) if root in laid_out else value for root, value in both}


def _laid_out(order: Sequence[Node], varies: set[Node], given: set[Node]) -> set[Node]:
    """Transposed operands that do not change and that an operation which does would copy at every step."""
    found: set[Node] = set()
    for node in order:
        if node in varies and isinstance(node.op, KernelOperation):
            operands = [node.inputs[k] for k in node.op.laid_out_once(*[x.kind for x in node.inputs])]
            found.update(x for x in operands if x not in varies and x in given and isinstance(x.op, Transpose))
    return found
