"""How a long elementwise chain is cut into stages, each of which goes over a strip of elements that stays in the
first-level cache.

An elementary function is some twenty dependent instructions. A processor looks ahead a hundred or two, so it waits for
chains that are longer than that, whatever the number of vectors in a loop: it sees too few of them at a time. Two loops
with half of the chain each have what they hand on in memory, and more of their constants in registers.
"""

from __future__ import annotations

from functools import cached_property

from weft.codegen.kernel import Kernel

STRIP = 256
"""Elements that go through all stages before the next ones do."""
FUNCTION_COST = 16
"""What costs this much is an elementary function."""
CHAIN_COST = 3
"""A function of something that costs this much begins a stage of its own."""
KEPT = 6
"""With more values to hand on, a kernel has one stage."""


class Stages:
    """Stage by stage, what is computed of a kernel without reductions; `kept` are the values that are handed on."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.known = [0] * kernel.first
        """The stage in which each value is known."""
        self.costs = [0] * kernel.first
        """What it costs to compute each value in the stage in which it is known."""
        for step in kernel.steps:
            stage = max((self.known[i] for i in step.operands), default=0)
            if step.op.cost >= FUNCTION_COST and any(
                self.known[i] == stage and self.costs[i] >= CHAIN_COST for i in step.operands
            ):
                stage += 1
            self.known.append(stage)
            here = {i for i in step.operands if self.known[i] == stage}
            self.costs.append(step.op.cost + sum(self.costs[i] for i in here))
        self.count = max((self.known[store.value] for store in kernel.stores), default=0) + 1

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Values that cost something and that a later stage reads."""
        kernel, kept = self.kernel, set[int]()
        last = self.count - 1
        wanted = [(store.value, last) for store in kernel.stores]
        seen = set(wanted)
        while wanted:
            number, stage = wanted.pop()
            if number < kernel.first:
                continue
            if self.known[number] < stage and self.costs[number] >= CHAIN_COST:
                kept.add(number)
                stage = self.known[number]
            for operand in kernel.step(number).operands:
                if (operand, stage) not in seen:
                    seen.add((operand, stage))
                    wanted.append((operand, stage))
        return tuple(sorted(kept))

    @property
    def pays(self) -> bool:
        """Whether there is more than one stage, and not too much to hand on."""
        kernel = self.kernel
        return self.count > 1 and len(self.kept) <= KEPT and not any(kernel.dtype(v).is_complex for v in self.kept)

    @property
    def scratch(self) -> int:
        """Bytes of what is handed on."""
        return sum(STRIP * self.kernel.dtype(v).size for v in self.kept)
