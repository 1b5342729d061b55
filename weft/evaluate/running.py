"""A piece of an evaluation: finding its program and what that is run on, and running it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from weft.config import config
from weft.errors import ComputationError
from weft.evaluate import programs
from weft.evaluate.overwriting import Claim, donated_by, run_over
from weft.evaluate.programs import Recipe, ReferenceRecipe, in_place
from weft.evaluate.reach import in_windows, without_value
from weft.evaluate.structure import structure
from weft.evaluate.turns import LOCK
from weft.graph.lines import locate, marked
from weft.graph.node import Node, reachable
from weft.graph.trace import keeps_inputs
from weft.primitives.base import DATA, ConstantValue
from weft.runtime.data import Buffer

Prepared = tuple[Recipe, list[Node], list[Buffer], list[ConstantValue], Claim | None]


def prepare(order: list[Node], wanted: Container[Node], mine: int) -> Prepared:
    """The program for a topologically ordered piece whose leaves have values, and what it is run on. Called with the
    lock held: another thread that evaluates the same nodes must not cut them from their inputs meanwhile."""
    key, results, leaves, constants = structure(order, wanted)
    if config.backend == "reference":
        return ReferenceRecipe(order, results), results, leaves, constants, None
    recipe = programs.PROGRAMS.get(key)
    if recipe is None or recipe.large:
        donated = donated_by(order, results, leaves)
        if donated:
            recipe, claim = in_place((key, donated), order, results, constants, donated, mine)
            return recipe, results, leaves, constants, claim
        if recipe is None:
            recipe = programs.new_program(key, order, results, constants, mine)
    return recipe, results, leaves, constants, None


def run_program(
    recipe: Recipe,
    results: Sequence[Node],
    leaves: Sequence[Buffer],
    constants: Sequence[ConstantValue],
    claim: Claim | None = None,
) -> None:
    """Run a program, without the lock, and hand out its results."""
    if claim is not None:
        return run_over(claim, results, lambda progress: recipe.run_in_place(leaves, constants, progress))
    try:
        buffers = recipe.run(leaves, constants)
    except ComputationError as error:
        locate(error, marked(reachable(results)))
        raise
    keep = keeps_inputs()
    with LOCK:
        for node, buffer in zip(results, buffers):  # noqa: B905  (as many by construction, and this is the hot path)
            if node.value is None:  # another thread may have been first, and somebody may look at what it found
                node.value = buffer
            if keep is None or node.id < keep:
                node.inputs, node.op = (), DATA
    return None


def run_windows(order: list[Node], wanted: set[Node], mine: int) -> None:
    """A deep graph piece by piece. Every node is held in one place only, and until its turn: what a piece computes for
    the next one, and nobody else sees, is donated to it like any other leaf."""
    windows = in_windows(order, wanted)
    order.clear()
    while windows:
        piece, results = windows.pop()
        piece[:] = without_value(piece)
        run_program(*prepare(piece, results, mine))
