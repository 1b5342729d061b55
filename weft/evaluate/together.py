"""Evaluations with slice updates that come again, in one program: what a decoder does for every token.

Stages (updates.py) need no program that knows where updates begin, and cost time for each of them. An evaluation that
comes again with other sizes, among which are the places of its updates, is a member of a family (passes/families.py).
The first few are computed in stages. Then the family is planned once, updates and all, and the next ones are filled in.
What no template serves is computed in stages as before, so no program is planned for a place that never comes again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from weft.config import config
from weft.evaluate import programs, reach
from weft.evaluate.overwriting import claimed
from weft.evaluate.running import Prepared
from weft.evaluate.structure import resembling, structure
from weft.evaluate.turns import still
from weft.evaluate.updates import may_write
from weft.graph.node import Node
from weft.graph.placement import USED
from weft.lazy import lazy
from weft.primitives.base import ConstantValue
from weft.primitives.views import SliceUpdate
from weft.runtime.data import Buffer, is_whole
from weft.runtime.holders import COUNTED, UPDATED, free

if TYPE_CHECKING:
    from weft import targets
    from weft.passes import families, pipeline
    from weft.passes.families import Family, Sizes
else:
    targets, families, pipeline = lazy("weft.targets"), lazy("weft.passes.families"), lazy("weft.passes.pipeline")

MOST_NODES = 8
"""Windows that an evaluation may be as long as, to be one program: planning takes time in proportion."""


def prepare_together(order: list[Node], wanted: Container[Node], mine: int) -> Prepared | None:
    """The program for all of an evaluation with slice updates, and what it is run on; None if it is to be computed in
    stages. `order` is left as it was then, but for nodes that have values."""
    if not COUNTED or not may_write() or pipeline.WRAPPERS or config.dump or USED:
        return None
    if len(order) > MOST_NODES * reach.WINDOW:
        return None
    count = len(order)
    for number, (outline, donated, family) in enumerate(known := _OUTLINES.get(count, ())):
        alike = _alike(outline, order, wanted)
        if alike is None:
            continue
        sizes, results, leaves, constants = alike
        bases = _free_bases(order, leaves, results)
        if tuple(bases) != donated:
            order[:] = [node for node in order if node.value is None]
            continue
        if number:
            _OUTLINES[count] = [known[number], *(x for x in known if x is not known[number])]
        recipe = _recipe(family, sizes, order, results, constants, donated, mine)
        _LAST[:] = [(family, recipe, constants, donated)] if recipe is not None else []
        return _prepared(recipe, order, results, leaves, constants, bases, mine)
    key, results, leaves, constants = structure(order, wanted)
    bases = _free_bases(order, leaves, results)
    donated = tuple(bases)
    found = families.family_of(key, targets.CPU, donated)
    recipe = None if found is None else _recipe(*found, order, results, constants, donated, mine)
    if found is not None and recipe is not None:
        _outline(count, families.Outline(key, found[1]), donated, found[0])
    return _prepared(recipe, order, results, leaves, constants, bases, mine)


def _prepared(
    recipe: programs.Recipe | None,
    order: list[Node],
    results: list[Node],
    leaves: list[Buffer],
    constants: list[ConstantValue],
    bases: dict[int, Node],
    mine: int,
) -> Prepared | None:
    """A program, with what it is run on; None, and `order` without leaves, if there is none."""
    if recipe is None:
        order[:] = [node for node in order if node.value is None]
        return None
    claim = claimed([bases[i] for i in recipe.spent], mine) if recipe.spent else None
    return recipe, results, leaves, constants, claim


# ---- the same as before, in other sizes ----

_OUTLINES: dict[int, list[tuple[families.Outline, tuple[int, ...], Family]]] = {}
"""Evaluations that were one program, by how many nodes they computed, those used last first: each with the leaves that
were free to be overwritten, and its family."""
_MOST_ALIKE = 4
_MOST_COUNTS = 64


def _outline(count: int, outline: families.Outline, donated: tuple[int, ...], family: Family) -> None:
    """Remember an evaluation: the next one that looks like it is found at once."""
    if len(_OUTLINES) >= _MOST_COUNTS:
        _OUTLINES.clear()
    _OUTLINES[count] = [(outline, donated, family), *_OUTLINES.get(count, [])[: _MOST_ALIKE - 1]]


_LAST: list[tuple[Family, programs.Recipe, Sequence[ConstantValue], tuple[int, ...]]] = []
"""The evaluation that was found by an outline last, for `foresee`."""


def foresee() -> None:
    """Fill in the program that comes next if sizes go on as they did, while the one before it runs: then it is found
    by its sizes. If others come, it is forgotten in time."""
    with contextlib.suppress(IndexError, MemoryError):  # another thread was faster; there is no room to spare
        family, recipe, constants, donated = _LAST.pop()
        found = family.foresee(recipe.executable)  # type: ignore[arg-type]
        if found is not None:
            sizes, made = found
            families.check(made, donated)
            family.keep(sizes, programs.Recipe(made, constants))


def _alike(
    outline: families.Outline, order: list[Node], wanted: Container[Node]
) -> tuple[Sizes, list[Node], list[Buffer], list[ConstantValue]] | None:
    """The sizes of an evaluation, its results, leaves and constants, if it has the form of an outline. Then leaves join
    `order`, as `structure` has it."""
    found = resembling(order, wanted, outline.parts, outline.numbers)
    sizes = None if found is None else outline.sizes_with(found[-1])
    if found is None or sizes is None:
        return None
    _, nodes, leaves, constants, results, _ = found
    if config.check:
        _check(outline, sizes, order, wanted, results, leaves, constants)
    order[:] = nodes
    return sizes, results, leaves, constants


def _check(
    outline: families.Outline, sizes: Sizes, order: Sequence[Node], wanted: Container[Node], *found: Sequence[Any]
) -> None:
    """Raise if describing an evaluation as a whole says something else than comparing it with an outline did."""
    key, *others = structure([*order], wanted)
    if others != [*found] or families.divided(key) != (families.divided(outline.parts)[0], sizes):  # type: ignore[index]
        raise AssertionError("[check] an evaluation was taken for another one, which it resembles.")


def is_of_data(updates: Sequence[Node]) -> bool:
    """Whether slice updates are all of computed data. If something is computed from what they leave, they may be in one
    program with it; otherwise they are best written one by one."""
    return all(node.inputs[0].value.__class__ is Buffer and not node.kind.symbolic for node in updates)


def _recipe(
    family: Family,
    sizes: Sizes,
    order: list[Node],
    results: list[Node],
    constants: Sequence[ConstantValue],
    donated: tuple[int, ...],
    mine: int,
) -> programs.Recipe | None:
    """The program of these sizes, if the family has a template for it, or it is time for one."""
    recipe: programs.Recipe | None = family.recent(sizes)
    if recipe is None:
        made = family.executable(sizes)
        if made is None and family.is_time(sizes):
            graph, layouts = programs.close(order, results)
            still(mine)  # or the graph is another one than the sizes are of
            if family.learn(sizes, graph, layouts):
                made = family.executable(sizes)
        if made is None:
            return None
        families.check(made, donated)
        recipe = programs.Recipe(made, constants)
    return family.keep(sizes, recipe)


def _free_bases(order: list[Node], leaves: list[Buffer], results: Sequence[Node]) -> dict[int, Node]:
    """By their numbers, the leaves that slice updates may be written to: nothing but the update holds them, and that
    will have a value. Called while nodes are held in `order` (and results), buffers in `leaves`, and nowhere else."""
    updates = [node for node in results if node.op.__class__ is SliceUpdate]
    found = free(
        UPDATED,
        [
            x
            for node in updates
            for x in (node.inputs, node.inputs[0], node.inputs[0].value, node.inputs[0].value.storage)
        ],
        (1, 2, 2, 1) * len(updates),
        lambda: [
            x
            for node in updates
            for x in (
                {id(node)},
                {id(node.inputs), id(order)},
                {id(node.inputs[0]), id(leaves)},
                {id(node.inputs[0].value)},
            )
        ],
    )
    number = {id(leaf): i for i, leaf in enumerate(leaves)}
    bases = [(number[id(node.inputs[0].value)], node.inputs[0]) for node in updates]
    return dict(sorted([x for k, x in enumerate(bases) if all(found[4 * k : 4 * k + 4]) and is_whole(leaves[x[0]])]))
