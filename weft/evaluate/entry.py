"""Where evaluations begin: of any number of nodes, and of a single operation, which has a shorter way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from weft.config import config
from weft.evaluate import later, programs, reach
from weft.evaluate.beside import Elsewhere, copies_beside, follow_others, keep_copies
from weft.evaluate.overwriting import donated_to
from weft.evaluate.programs import Recipe, in_place, plain_recipe
from weft.evaluate.reach import reached, slice_data
from weft.evaluate.running import prepare, run_program, run_windows
from weft.evaluate.structure import SHORT, leaf_key, places
from weft.evaluate.together import foresee, is_of_data, prepare_together
from weft.evaluate.turns import ENTRIES, LOCK, Disturbed, enter, still
from weft.evaluate.updates import in_stages, is_plain_update, write_update
from weft.graph.node import Node, has_handle
from weft.graph.overlay import Foreign
from weft.graph.placement import USED
from weft.graph.trace import OPEN, following, keeps_inputs
from weft.primitives.base import DATA, ConstantValue
from weft.primitives.views import Slice, SliceUpdate
from weft.runtime.data import Buffer, Busy, Taken
from weft.runtime.object_table import READ, TAPED
from weft.runtime.objects import MAKERS
from weft.runtime.run_layout import MOST_OPERANDS

if config.compare:
    import weft.checking  # noqa: F401  (it puts itself around all programs; others need not wait for it)


def evaluate(roots: Sequence[Node]) -> dict[Node, Node]:
    """Give every root a value; or, where other threads trace the functions that made them, others that have it. Those
    are what it returns."""
    while True:
        later.wait()
        try:
            _evaluate(roots)
            return {}
        except Disturbed:
            continue
        except Foreign:
            copies, traces = copies_beside(roots)
            evaluate(list(copies.values()))
            keep_copies(copies, traces)
            return copies
        except Elsewhere as trace:
            with following(trace.first):
                return evaluate(roots)
        except Busy as busy:  # another thread computes the same, over what it is computed from
            busy.taken.wait()


def evaluated(node: Node) -> Node:
    """A node with a value: this one, unless it belongs to a function that another thread is tracing."""
    return evaluate((node,)).get(node, node)


def evaluate_later(roots: Sequence[Node]) -> None:
    """`evaluate`, on another thread where that is worth it: the caller goes on."""
    later.wait()
    try:
        _evaluate(roots, at_once=bool(OPEN))
    except (Disturbed, Foreign, Elsewhere, Busy):
        evaluate(roots)


def _evaluate(roots: Sequence[Node], at_once: bool = True) -> None:
    with LOCK:
        mine = enter()
        try:
            pending = {node for node in roots if node.value is None}
            for node in roots:
                if isinstance(node.value, Taken):  # a compiled function is about to give it another value
                    node.value.refuse()
            if not pending:
                return None
            order, updates, found = reached(pending)
            if OPEN:
                follow_others([x for node in order for x in (node, *node.inputs)])
            prepared, stages, taped = None, None, found & TAPED
            if updates and not taped:
                read = found & READ and is_of_data(updates)
                updates.clear()  # what is held here would not be free to be overwritten
                prepared = prepare_together(order, pending, mine) if read else None
                stages = in_stages(order, pending) if prepared is None else None
            if stages is None and prepared is None:
                if len(order) > reach.WINDOW and not taped:
                    return run_windows(order, pending, mine)
                prepared = prepare(order, pending, mine)
        except Exception:
            still(mine)
            raise
        still(mine)
    if stages is not None:
        return stages.run()
    assert prepared is not None
    if at_once or not later.is_worth_it(prepared):
        return run_program(*prepared)
    handed = [prepared]
    del prepared, pending, node, roots
    later.run_later(handed)
    return foresee()  # and nodes are let go of while it runs


def _evaluate_one_by_python(node: Node) -> Callable[[], object] | None:
    """`evaluate([node])`, with a short path for the everyday case: one operation on operands that have values. What is
    left to do in other cases, and for operands whose memory may be used again, is for the caller to call: the variables
    here would be taken for holders of them."""
    updates, large, arity = False, False, 0
    later.wait()
    if OPEN and (len(OPEN) > 1 or keeps_inputs() is None):  # some other thread traces, and may need what is cut here
        return partial(evaluate, (node,))
    try:
        with LOCK:
            mine = ENTRIES[0] = ENTRIES[0] + 1
            if node.value is not None:
                return None
            recipe: Recipe | None = None
            updates = node.op.__class__ is SliceUpdate  # those are written, see `updates.py`
            described = None if updates or config.backend == "reference" else _describe_one(node)
            if described is not None:
                key, order = described
                if USED:
                    key = (*key, *places(order))
                recipe = programs.PROGRAMS.get(key)
                if recipe is None:
                    recipe = plain_recipe(key, order, node, mine)
                values = [operand.value for operand in order[:-1]]
                leaves = [value for value in values if value.__class__ is Buffer]
                constants: Sequence[ConstantValue] = ()
                if len(leaves) < len(values):
                    constants = [value for value in values if value.__class__ is not Buffer]
                large, arity = recipe.large and _some_have_no_array(order), len(node.inputs)
            updates = updates and is_plain_update(node)
            if ENTRIES[0] != mine:
                raise Disturbed
    except (Busy, Disturbed, Foreign):
        return partial(evaluate, (node,))
    except Exception:
        if ENTRIES[0] == mine:
            raise
        return partial(evaluate, (node,))
    if recipe is None:
        return partial(_update_one if updates else evaluate, (node,))
    if large and len(order) <= arity:  # an operand that stands in two places has more holders than the rule knows
        return partial(evaluate, (node,))
    if large:
        return partial(_evaluate_large, node, recipe, key, order, leaves, constants, mine)
    run_program(recipe, [node], leaves, constants)
    return None


def _describe_one(node: Node) -> tuple[tuple[Any, ...], list[Node]] | None:
    """(short key, operands and the node itself) of one operation; None if it has no operands, or many, or some have no
    value and are no slices of what has one."""
    inputs = node.inputs
    if not 0 < len(inputs) <= MOST_OPERANDS:
        return None
    key: list[Any] = [SHORT, node.op, node.kind]
    order: list[Node] = []
    for operand in inputs:
        value = operand.value
        if value is None:
            if operand.op.__class__ is not Slice or not slice_data(operand):
                return None
            value = operand.value
        if operand in order:  # one that stands in two places
            key += (inputs.index(operand), operand.kind, None)
        else:
            key += leaf_key(operand, value)
            order.append(operand)
    order.append(node)
    return tuple(key), order


def _settle(node: Node) -> None:
    """Find out where operands lie that are slices of computed data."""
    with LOCK:
        enter()
        for operand in node.inputs:
            if operand.value is None and operand.op.__class__ is Slice:
                slice_data(operand)


def _hand_out(node: Node, buffer: Buffer) -> None:
    """Give a node that machine code has computed its value."""
    with LOCK:
        ENTRIES[0] += 1
        if node.value is None:
            node.value = buffer
        node.inputs, node.op = (), DATA


def _verify_one(node: Node, recipe: Recipe) -> None:
    """Compare the program that machine code has found with what Python finds, unless a finalizer has evaluated it."""
    described = _describe_one(node)
    if described is not None and programs.PROGRAMS.get(described[0], recipe) is not recipe:
        raise AssertionError(f"[check] {node} is taken for another operation.")


evaluate_one: Callable[[Node], Callable[[], object] | None] = MAKERS.evaluate_one(
    _evaluate_one_by_python, Recipe, ConstantValue, config, DATA, OPEN, USED, LOCK, ENTRIES, programs.PROGRAMS,
    later.UNDER_WAY, SliceUpdate, ConstantValue, SHORT, _hand_out, _verify_one, Slice,
    _settle,
)  # fmt: skip
"""`evaluate([node])`; what it returns, if anything, is for the caller to call."""


def _some_have_no_array(order: Sequence[Node]) -> bool:
    """Whether there are leaves that no array of the user's refers to."""
    return any(node.value.__class__ is Buffer and not has_handle(node) for node in order)


def _update_one(nodes: tuple[Node]) -> None:
    try:
        write_update(nodes[0])
    except (Busy, Disturbed):
        evaluate(nodes)


def _evaluate_large(
    node: Node,
    recipe: Recipe,
    key: tuple[Any, ...],
    order: list[Node],
    leaves: list[Buffer],
    constants: Sequence[ConstantValue],
    mine: int,
) -> None:
    """One operation, over the memory of an operand where that is free."""
    try:
        with LOCK:
            still(mine)
            claim = None
            donated = donated_to(node, order, leaves)
            if donated:
                recipe, claim = in_place((key, donated), order, [node], constants, donated, mine)
            still(mine)
    except Exception as error:
        if ENTRIES[0] == mine and not isinstance(error, (Busy, Disturbed)):
            raise
        order.clear()
        leaves.clear()
        evaluate((node,))
        return
    try:
        run_program(recipe, [node], leaves, constants, claim)
    except Disturbed:
        evaluate((node,))
