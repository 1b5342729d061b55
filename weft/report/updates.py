"""Which inputs a call of a compiled function would update in place, and why it would copy others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.array import array
from weft.evaluate.overwriting import LEAST_DONATED
from weft.graph.show import show_kind
from weft.runtime.data import is_whole
from weft.transforms.compile import Compiled
from weft.transforms.updating import ONLY_READ, SMALL, UpdateClaim, Updates
from weft.transforms.variant import Variant


class Updated:
    """What becomes of the inputs of one call: traced and counted, as the call would do it, but not run."""

    def __init__(self, fun: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.arrays: list[array] = []
        self.reasons: dict[int, str | None] = {}
        """By number of the array: why it is not updated in place; None if it is."""
        self.updates: Updates | None = None
        made = Compiled(*fun._roots, fun._shapeless)._miss(args, kwargs)  # another one: `fun` has not been called
        if not isinstance(made, tuple):
            return
        variant, seen = made
        self.updates, self.arrays = variant.updates, seen.walk.arrays
        self.reasons.update(variant.updates.refused)
        self._count(variant, seen)

    def _count(self, variant: Variant, seen: Any) -> None:
        claim = UpdateClaim(variant.updates, seen.buffers, seen.walk)
        try:
            claim.take()
        finally:
            claim.end()
        for candidate in variant.updates.candidates:
            buffer = seen.buffers[candidate.array]
            why = claim.others.get(candidate.array)
            if buffer.storage.nbytes < LEAST_DONATED:
                why = SMALL
            elif not is_whole(buffer):
                why = "its memory is somebody else's, or it is not all of a block, row-major"
            self.reasons[candidate.array] = why

    def lines(self, names: Sequence[str]) -> list[str]:
        """One line for each input that the function replaces, and one for all others. `names` are those of the
        arrays."""
        found = []
        for number, why in sorted(self.reasons.items()):
            if why == ONLY_READ:
                continue
            kind = show_kind(self.arrays[number]._node.kind)
            says = "updated in place" if why is None else f"copied: {why}"
            found.append(f"{self._name(number, names[number])} {kind}: {says}")
        others = sum(why == ONLY_READ for why in self.reasons.values())
        return [*found, *([f"{others} more only read"] if found and others else [])]

    def _name(self, number: int, name: str) -> str:
        slots = self.updates.slots.get(number) if self.updates is not None else None
        if name != "captured" or not slots or slots[0].name is None:
            return name
        return f"captured {slots[0].name!r}"


def updates_of(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Updated | None:
    """What a call would update; None if `fun` is no compiled function, or a method that is one."""
    inner = getattr(fun, "__func__", None)
    if isinstance(inner, Compiled):
        return Updated(inner, (fun.__self__, *args), kwargs)
    return Updated(fun, args, kwargs) if isinstance(fun, Compiled) else None
