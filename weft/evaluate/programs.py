"""The programs that evaluations have needed so far, by structural key, and how new ones are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from weft.config import config
from weft.evaluate import overwriting
from weft.evaluate.beside import trace_of
from weft.evaluate.overwriting import Claim, claimed
from weft.evaluate.structure import places, structure
from weft.evaluate.turns import LOCK, still
from weft.graph.lines import inherit
from weft.graph.node import Graph, Node, node_of
from weft.graph.overlay import Foreign
from weft.graph.placement import USED
from weft.graph.trace import unknown_value
from weft.lazy import lazy
from weft.primitives.base import Constant, ConstantValue, Parameter, Placeholder
from weft.runtime.data import Buffer
from weft.runtime.holders import COUNTED
from weft.runtime.program import Progress

if TYPE_CHECKING:
    from weft import reference, targets
    from weft.passes import families, pipeline, template
    from weft.passes.executable import Executable
    from weft.passes.families import Family
else:
    reference, targets = lazy("weft.reference"), lazy("weft.targets")
    families, pipeline = lazy("weft.passes.families"), lazy("weft.passes.pipeline")
    template = lazy("weft.passes.template")


class Recipe:
    """An executable for one structure, and where its constants come from: the position among the structure's constants,
    or fixed words."""

    __slots__ = ("executable", "in_order", "large", "quick", "sources", "spent")

    def __init__(self, executable: Executable, given: Sequence[ConstantValue]) -> None:
        position = {id(value): i for i, value in enumerate(given)}
        self.executable = executable
        self.large = COUNTED and executable.largest >= overwriting.LEAST_DONATED
        """Whether some leaf is worth donating."""
        self.spent: Sequence[int] = executable.spent
        """The leaves that a run overwrites."""
        self.sources: list[tuple[int | None, tuple[int, ...]]] = [
            (value.position, ())
            if isinstance(value, template.Given)
            else (position[id(value)], ())
            if id(value) in position
            else (None, value.words)
            for value in executable.constants
        ]
        self.in_order = [at for at, _ in self.sources] == list(range(len(given)))
        """Whether the program reads all of the structure's constants, in their order: the usual case, and the fast
        one."""
        self.quick = executable.quick if self.in_order and not self.large else None
        """The executable, where machine code may run it on leaves and constants as they come."""

    @property
    def commands(self) -> int:
        """How many commands the program has."""
        return self.executable.commands

    def run(self, leaves: Sequence[Buffer], constants: Sequence[ConstantValue]) -> list[Buffer]:
        return self.executable.run(leaves, self.words(constants) if self.sources else ())

    def run_in_place(
        self, leaves: Sequence[Buffer], constants: Sequence[ConstantValue], progress: Progress
    ) -> list[Buffer]:
        return self.executable.run_in_place(leaves, self.words(constants), progress)

    def words(self, given: Sequence[ConstantValue]) -> list[int]:
        if self.in_order:
            return [word for value in given for word in value.words]
        words: list[int] = []
        for position, fixed in self.sources:
            words.extend(fixed if position is None else given[position].words)
        return words


class ReferenceRecipe(Recipe):
    """The same nodes by the reference back end. It has a graph of its own, because other threads may evaluate the nodes
    meanwhile, and cut them from their inputs."""

    __slots__ = ("graph",)

    def __init__(self, order: list[Node], results: list[Node]) -> None:
        self.graph, _ = close(order, results)
        self.large, self.quick, self.spent = False, None, ()

    @property
    def commands(self) -> int:
        return 0

    def run(self, leaves: Sequence[Buffer], constants: Sequence[ConstantValue]) -> list[Buffer]:
        return reference.evaluate_reference(self.graph, leaves)


PROGRAMS: Final[dict[tuple[Any, ...], Recipe]] = {}

_COMMANDS = [0]
"""How many commands the programs there have, or more."""

_USUAL = 8
"""Commands of a program, on average, for which `config.programs` is meant."""


def in_place(
    key: tuple[Any, ...],
    order: list[Node],
    results: list[Node],
    constants: Sequence[ConstantValue],
    donated: tuple[int, ...],
    mine: int,
) -> tuple[Recipe, Claim | None]:
    """The program that may overwrite the donated leaves, and those that it does overwrite."""
    recipe = PROGRAMS.get(key)
    if recipe is None:
        recipe = new_program(key, order, results, constants, mine, donated)
    if not recipe.spent:
        return recipe, None
    nodes = [node for node in order if node.value.__class__ is Buffer]
    return recipe, claimed([nodes[i] for i in recipe.spent], mine)


def plain_recipe(short: tuple[Any, ...], order: list[Node], node: Node, mine: int) -> Recipe:
    """The program for one operation that overwrites nothing, found under its short key from now on if it is kept."""
    key, results, _, constants = structure(order, (node,))
    recipe = PROGRAMS.get(key) or new_program(key, order, results, constants, mine)
    still(mine)  # or this is the program of something else
    return _remembered(short, recipe) if key in PROGRAMS else recipe


def new_program(
    key: tuple[Any, ...],
    order: list[Node],
    results: list[Node],
    constants: Sequence[ConstantValue],
    mine: int,
    donated: tuple[int, ...] = (),
) -> Recipe:
    """A new program. One whose sizes keep changing is filled in (passes/families.py), and kept if they come again."""
    found = _family(key, order, results, donated, mine)
    if found is not None:
        family, sizes = found
        recipe: Recipe | None = family.recent(sizes)
        if recipe is not None:
            return _remembered(key, recipe)
        made = family.executable(sizes)
        if made is not None:
            families.check(made, donated)
            return family.keep(sizes, Recipe(made, constants))
    graph, layouts = close(order, results)
    still(mine)  # or the graph is another one than the key says
    executable = targets.compile_alike(graph, layouts, donated, found)
    if not pipeline.WRAPPERS:  # those look at plans
        executable.forget_plan()
    return _remembered(key, Recipe(executable, families.constants_of(graph.order())))


def _family(
    key: tuple[Any, ...], order: list[Node], results: list[Node], donated: tuple[int, ...], mine: int
) -> tuple[Family, tuple[int, ...]] | None:
    """The family of a program, and its sizes; None if it is planned for itself."""
    if pipeline.WRAPPERS or config.dump or (USED and places(order)):
        return None
    if donated:  # the key may be a short one
        key = structure(order, results)[0]
        still(mine)
    return families.family_of(key, targets.CPU, donated)


def _remembered(key: tuple[Any, ...], recipe: Recipe) -> Recipe:
    """A recipe that is kept for the next time. When there are too many, or too long ones, the older half goes, and with
    it the kernels that nothing else runs."""
    _COMMANDS[0] += recipe.executable.commands
    if len(PROGRAMS) >= config.programs or _COMMANDS[0] > config.programs * _USUAL:
        known = list(PROGRAMS.items())
        _COMMANDS[0] = recipe.executable.commands + sum(other.executable.commands for _, other in known)
        for old, gone in known:
            if len(PROGRAMS) <= config.programs // 2 and _COMMANDS[0] <= config.programs * _USUAL // 2:
                break
            PROGRAMS.pop(old, None)
            _COMMANDS[0] -= gone.executable.commands
    PROGRAMS[key] = recipe
    return recipe


def close(order: Sequence[Node], results: Sequence[Node]) -> tuple[Graph, dict[Node, tuple[int, ...] | None]]:
    """A graph of its own from nodes of the user's: leaves become parameters, constants keep their value objects, but
    for those that share one."""
    new: dict[Node, Node] = {}
    inputs: list[Node] = []
    held: set[int] = set()
    layouts: dict[Node, tuple[int, ...] | None] = {}
    with LOCK:  # who closes a graph for compile has not got it yet
        for node in order:
            value = node.value
            if value is None:
                if isinstance(node.op, Placeholder):
                    raise Foreign if trace_of(node) is not None else unknown_value(node.op.transform)
                new[node] = node.beside(node_of(node.op, tuple(new[i] for i in node.inputs), node.kind))
            elif isinstance(node.op, Constant):
                if value.__class__ is ConstantValue and id(value) in held:  # a program tells constants apart by these
                    value = ConstantValue(value.number, value.words)
                held.add(id(value))
                new[node] = Node(node.op, (), node.kind, value)
            else:
                made = new[node] = Node(Parameter(len(inputs)), (), node.kind)
                layouts[made] = value.strides
                inputs.append(made)
    inherit(new)
    return Graph(inputs, [new[n] for n in results]), layouts
