"""What a call of a program takes: memory, which values are computed in place, and why others are not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from weft.evaluate.overwriting import LEAST_DONATED
from weft.graph.dims import provably_equal
from weft.graph.node import Node
from weft.passes.lower import nbytes_of
from weft.passes.memory import Plan, last_failure, last_reads
from weft.primitives.base import Constant, Parameter
from weft.records import dataclass
from weft.transforms.updating import KEPT_APART, SMALL, why_useless


@dataclass(frozen=True)
class MemoryReport:
    """What a call takes.

    `steps` counts kernels (a loop counts once), `values` the values that they store. Of these `in_place` says which lie
    where an operand lay, and `apart` why each of the others does not. `temporaries`, `results` and `peak` are bytes:
    of the arena, of all results, and of what a call allocates. `inputs` says of each input that is donated or updated
    what becomes of its memory.
    """

    steps: int
    values: int
    in_place: tuple[str, ...]
    apart: tuple[str, ...]
    temporaries: int
    results: int
    peak: int
    inputs: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.steps} steps, {self.temporaries} bytes of temporaries, {self.results} bytes of results"
        counts = f"{len(self.in_place)} of {self.values} values in place, {self.peak} bytes allocated at most"
        return "\n".join([head, counts, *self.in_place, *self.apart, *self.inputs])


def report(
    plan: Plan,
    plan_over: Callable[[tuple[int, ...]], Plan | None],
    names: Mapping[int, str],
    changing: Collection[int],
    refused: Mapping[str, str],
) -> MemoryReport:
    """The report of a plan. `names` are those of the leaves that may be overwritten, `plan_over` plans for them,
    `refused` says why others that are `changing` are not."""
    small = {leaf for leaf in names if nbytes_of(plan.graph.inputs[leaf]) < LEAST_DONATED}
    free = tuple(sorted(set(names) - small))
    over = plan_over(free) if free else None
    inputs = {names[leaf]: SMALL for leaf in small} | dict(refused)
    spent = set() if over is None else set(over.spent)
    inputs |= {names[leaf]: why_useless(plan, leaf) for leaf in free if leaf not in spent}
    says = [f"input {name}: copied, because {why}" for name, why in inputs.items()]
    says += [f"input {names[leaf]}: overwritten" for leaf in free if leaf in spent]
    used = plan if over is None else over
    values = [(step, w) for step, item in enumerate(used.items) for w in range(len(item.writes))]
    reasons = Reasons(used, changing)
    found = {place: reasons.below(*place) for place in values}
    return MemoryReport(
        len(used.items),
        len(values),
        tuple([f"{used.items[s].writes[w].op} lies on {x.op}" for (s, w), x in found.items() if x is not None]),
        tuple([f"{used.items[s].writes[w].op}: {reasons.why(s, w)}" for (s, w), x in found.items() if x is None]),
        int(used.arena),
        sum(int(nbytes_of(node)) for node in used.outputs),
        int(used.peak),
        tuple(sorted(says)),
    )


class Reasons:
    """Why values of a plan do not lie on their operands."""

    def __init__(self, plan: Plan, changing: Collection[int]) -> None:
        self._plan, self._changing = plan, changing
        self._last = last_reads(plan.items)
        self._sure = last_failure(plan.items) + 1

    def _place(self, node: Node) -> Any:
        place = self._plan.places.get(node)
        return None if place is None else (place.where, place.at)

    def _candidates(self, step: int, w: int) -> list[Node]:
        item = self._plan.items[step]
        return [item.reads[r] for r, write in item.taking_places() if write == w]

    def below(self, step: int, w: int) -> Node | None:
        """The operand whose place a value takes."""
        at = self._place(self._plan.items[step].writes[w])
        return next((x for x in self._candidates(step, w) if self._place(x) == at), None)

    def why(self, step: int, w: int) -> str:
        """In words, why a value lies on none of its operands."""
        reads = [x for x in self._plan.items[step].reads if not isinstance(x.op, Constant)]
        if not reads:
            return "it has no operands"
        if not self._plan.items[step].writes[w].op.may_alias:
            return KEPT_APART
        found = self._candidates(step, w)
        if not found:
            return "its kernel reads no operand element by element, in the order and of the size of what it writes"
        return "; ".join(dict.fromkeys([self._why_not_on(x, step, w) for x in found]))

    def _why_not_on(self, operand: Node, step: int, w: int) -> str:
        plan = self._plan
        if isinstance(operand.op, Parameter) and operand.op.index not in self._changing:
            return f"operand {operand.op} is an input, which the caller keeps"
        if not provably_equal(nbytes_of(operand), nbytes_of(plan.items[step].writes[w])):
            return f"operand {operand.op} has another size"
        if self._last.get(operand, -1) > step or self._is_result(operand):
            return f"operand {operand.op} is needed later"
        if isinstance(operand.op, Parameter) and step < self._sure:
            return f"input {operand.op} must be as it was if a later step fails"
        return f"the place of operand {operand.op} is taken by another value, or is that of a result"

    def _is_result(self, node: Node) -> bool:
        outputs = self._plan.graph.outputs
        return any(x is node or node in x.inputs for x in outputs)
