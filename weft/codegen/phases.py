"""When each value of a kernel that reduces rows is known: a later pass over the row may use what an earlier one
reduced."""

from __future__ import annotations

from weft.codegen.kernel import Kernel

KEEP_COST = 3
"""A value that costs more than this is kept for later phases instead of being computed again: about what writing it and
reading it back takes."""


class Phases:
    """Phase p is the p-th pass over the row."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.known = [0] * kernel.first
        """The phase in which each value is known."""
        for step in kernel.steps:
            after = max((self.known[i] for i in step.operands), default=0)
            self.known.append(after + 1 if step.reduces else after)
        passes = [self.known[number] - 1 for number in kernel.reductions()]
        passes += [self.known[s.value] for s in kernel.stores if s.access.level == "full"]
        self.count = max(passes) + 1 if passes else 0
        self.made: dict[int, int] = {}
        """The first phase that computes each value of an element."""
        self.reads: list[set[int]] = []
        """The values that each phase computes, or has from earlier ones, for its elements."""
        self.kept = self._kept()
        """Costly values that one phase computes and a later one reads."""
        self.handed = self._handed()
        """Values of the row as a whole that one phase computes and later ones read."""

    def cost(self, number: int) -> int:
        """Instructions to compute a full-level value again."""
        kernel = self.kernel
        seen: set[int] = set()
        stack, total = [number], 0
        while stack:
            current = stack.pop()
            if current in seen or current < kernel.first or not kernel.is_full(current):
                continue
            seen.add(current)
            step = kernel.step(current)
            total += step.op.cost
            stack.extend(step.operands)
        return total

    def reductions(self, phase: int) -> list[int]:
        return [number for number in self.kernel.reductions() if self.known[number] == phase + 1]

    def stores(self, phase: int) -> list[int]:
        """Positions of full-level stores written in this phase."""
        return [
            i for i, s in enumerate(self.kernel.stores) if s.access.level == "full" and self.known[s.value] == phase
        ]

    def written_last(self) -> list[int]:
        """The stores that may lie on operands: when an element of one is written, that element of no operand is still
        to be read. In a kernel of one pass these are all (a pass reads what it needs of an element first); in others
        the store that is all that the last pass does, if it is."""
        if self.count == 1:
            return self.stores(0)
        last = self.stores(self.count - 1) if self.count else []
        return last if len(last) == 1 and not self.reductions(self.count - 1) else []

    def scalars(self, phase: int) -> list[int]:
        """Values of the row as a whole that are known before a phase, and that it may read."""
        numbers = range(len(self.known))
        return [v for v in numbers if not self.kernel.is_full(v) and self.known[v] <= phase and self._is_read(v)]

    def passed(self, number: int) -> int:
        """The phase with which a value of the row as a whole becomes known."""
        return max(self.known[number] - 1, 0)

    def _handed(self) -> list[int]:
        kernel, last = self.kernel, self.count - 1
        rows = [(v, step) for v, step in enumerate(kernel.steps, kernel.first) if step.level != "full"]
        later = {s.value for s in kernel.stores if s.access.level != "full"}
        for v, step in rows:
            later.update(i for i in step.operands if self.passed(i) < self.passed(v))
        return [v for v, _ in rows if self.passed(v) < last and (v in later or self._is_read(v))]

    def _is_read(self, number: int) -> bool:
        """Whether something at the full level reads a value, or a reduction takes it in for every element."""
        kernel = self.kernel
        return any((s.level == "full" or s.reduces) and number in s.operands for s in kernel.steps) or any(
            s.access.level == "full" and s.value == number for s in kernel.stores
        )

    def _kept(self) -> tuple[int, ...]:
        """Fills in `made` and `reads` on the way."""
        kernel = self.kernel
        kept: set[int] = set()
        for phase in range(max(self.count, 1)):
            stack = [kernel.step(n).operands[0] for n in self.reductions(phase)]
            stack += [kernel.stores[i].value for i in self.stores(phase)]
            seen: set[int] = set()
            while stack:
                number = stack.pop()
                if number in seen:
                    continue
                seen.add(number)
                if number < kernel.first or not kernel.is_full(number):
                    continue
                if self.made.setdefault(number, phase) < phase and self.cost(number) > KEEP_COST:
                    kept.add(number)
                    continue
                stack.extend(kernel.step(number).operands)
            self.reads.append(seen)
        return tuple(sorted(kept))
