"""Symbolic plans: a plan made once for sizes that are symbols, from which a program for a new size is filled in.

All passes work on `Dim`s as they work on numbers: what they decide by a size (blocked or not, tiled or not, in which
order a product is summed) is a guard of the template, and what they compute (extents, strides, grains, sizes of
temporaries) is an expression. Two generated functions of the sizes give all numbers of a program; between them the
arena is packed, because where its pieces lie is no expression. What reads a size as a plain number makes a guard that
it is this number: such a template is right, and good for little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weft.codegen.launch import Launch, Pointer
from weft.graph.dims import Dim, DimEnv, compile_sizes, substitute
from weft.graph.node import Graph, Node, Size, kind_of
from weft.passes.executable import Assembly, Executable, Result, is_simple, result_of
from weft.passes.fuse import Group
from weft.passes.lower import Item, nbytes_of
from weft.passes.memory import Packing, Place, Plan
from weft.passes.pipeline import plan
from weft.passes.views import is_contiguous
from weft.primitives.base import ConstantValue, Multiple, SizeConstant
from weft.primitives.filling import fill, fill_kind, fill_primitive
from weft.runtime.program import Filled, Pattern, Program

MOST_TEMPLATES = 16
MOST_MISSES = 6
"""Templates that are made one after the other without one of them being used again, until no more are made."""

Number = Callable[[Any], Any]
"""What stands in place of a symbolic size: a number, or a size of another environment."""


class Template:
    """A plan for all sizes that its guards allow, and what it takes to fill it in."""

    def __init__(self, env: DimEnv, graph: Graph) -> None:
        self.env, self.plan = env, plan(graph)
        assembly = Assembly(self.plan)
        assembly.lay_out()
        pieces = self.plan.pieces
        self._packing = Packing([(piece.first, piece.last) for piece in pieces])
        holes = _Holes(assembly)
        self._pattern = Pattern(holes.commands, holes.words, holes.relocations, assembly.given, holes.places)
        self._numbers = compile_sizes(holes.numbers, (*env.symbols, *[f"at{i}" for i in range(len(pieces))]))
        wanted = _Wanted()
        self._pieces = wanted.add([piece.nbytes for piece in pieces])
        self._outputs = wanted.add([nbytes_of(node) for node in self.plan.outputs])
        outputs = self.plan.graph.outputs
        self._shapes = [(wanted.add(node.shape), node.dtype) for node in outputs]
        results = [result_of(self.plan, node) for node in outputs]
        self._results = [(result, wanted.add([result.offset, *(result.strides or ())])) for result in results]
        self._constants = [
            (value, wanted.add([value.size] if isinstance(value, SizeConstant) else [])) for value in assembly.constants
        ]
        self._sizes = compile_sizes(wanted.sizes, env.symbols)
        env.close()
        self.fits = env.compiled_check()
        """Whether the plan is right for these sizes, which pass the guards of the trace."""

    def executable(self, sizes: Sequence[int]) -> Executable:
        """The executable for sizes that fit."""
        known = self._sizes(*sizes)
        offsets, arena = self._packing.offsets(known[self._pieces])
        program = Filled(self._pattern, self._numbers(*sizes, *offsets), arena) if self.plan.items else None
        return Sized(self, sizes, known, program)

    def plan_for(self, sizes: Sequence[int]) -> Plan:
        """The plan with these sizes filled in, as the passes would have made it."""
        offsets, arena = self._packing.offsets(self._sizes(*sizes)[self._pieces])
        values = dict(zip(self.env.symbols, sizes, strict=True))
        values |= {"arena": arena, **{f"at{i}": at for i, at in enumerate(offsets)}}
        return filled_plan(self.plan, lambda n: self.env.evaluate(n, values))


class Sized(Executable):
    """An executable filled in from a template. Its plan is made when somebody wants to see it."""

    __slots__ = ("_at", "_template")

    def __init__(self, template: Template, at: Sequence[int], known: Sequence[int], program: Program | None) -> None:
        self._template, self._at, self.program = template, at, program
        self.sizes = list(known[template._outputs])
        self.kinds = [kind_of(tuple(known[shape]), dtype) for shape, dtype in template._shapes]
        self.constants: list[ConstantValue] = [
            value.filled(known[place.start]) if isinstance(value, SizeConstant) else value
            for value, place in template._constants
        ]
        self.results = [
            _filled_result(result, kind.shape, known[place])
            for (result, place), kind in zip(template._results, self.kinds, strict=True)
        ]
        self.simple = is_simple(self.results)

    def __getattr__(self, name: str) -> Any:
        if name != "plan":
            raise AttributeError(name)
        self.plan = self._template.plan_for(self._at)
        return self.plan


def _filled_result(result: Result, shape: Sequence[Size], numbers: Sequence[int]) -> Result:
    strides = None if result.strides is None or is_contiguous(shape, numbers[1:]) else tuple(numbers[1:])
    return Result(result.at, numbers[0], strides, result.from_input, result.as_is)


class _Wanted:
    """Sizes that are computed together, and where among the results each is."""

    def __init__(self) -> None:
        self.sizes: list[Size] = []

    def add(self, sizes: Sequence[Size]) -> slice:
        first = len(self.sizes)
        self.sizes.extend(sizes)
        return slice(first, len(self.sizes))


class _Holes:
    """The parts of a program with something in place of every symbolic number, and where those numbers go."""

    def __init__(self, assembly: Assembly) -> None:
        self.places: list[tuple[str, int]] = []
        self.numbers: list[Size] = []
        self.commands = [
            c._replace(**{name: self._plain(getattr(c, name), name, i) for name in ("grain", "scratch_bytes_per_thread")})
            for i, c in enumerate(assembly.commands)
        ]  # fmt: skip
        self.relocations = [
            r._replace(byte_offset=self._plain(r.byte_offset, "offset", i)) for i, r in enumerate(assembly.relocations)
        ]
        self.words = [self._plain(word, "word", i) for i, word in enumerate(assembly.words)]

    def _plain(self, n: Size, what: str, at: int) -> int:
        if type(n) is not Dim:
            return int(n)
        self.places.append((what, at))
        self.numbers.append(n)
        return 1


# ---- the templates of a trace ----


class Templates:
    """The templates of one trace. `env` is its environment, `make` its graph with something in place of its sizes."""

    def __init__(self, env: DimEnv, make: Callable[[Number], Graph]) -> None:
        self._env, self._make = env, make
        self.made: list[Template] = []
        self._misses = 0

    def find(self, sizes: Sequence[int]) -> Template | None:
        """The template for sizes that pass the guards of the trace; None if they are better planned for themselves."""
        for template in self.made:
            if template.fits(*sizes):
                self._misses = 0
                return template
        if self._misses >= MOST_MISSES or len(self.made) >= MOST_TEMPLATES:
            return None
        self._misses += 1
        template = self._new(sizes)
        if template is not None:
            self.made.append(template)
        return template

    def _new(self, sizes: Sequence[int]) -> Template | None:
        env, symbols = self._env.again(dict(zip(self._env.symbols, sizes, strict=True)))
        graph = self._make(lambda n: substitute(n, symbols))
        nodes = graph.order()
        if any(isinstance(node.op, Multiple) for node in nodes):
            self._misses = MOST_MISSES  # bodies of loops are planned for numbers
            return None
        # Passes treat sizes of 0 and 1 in ways of their own, which no symbol can follow.
        if any(n < 2 for node in nodes for n in node.shape if type(n) is Dim):
            return None
        return Template(env, graph)


# ---- numbers in a plan ----


def filled_plan(symbolic: Plan, number: Number) -> Plan:
    """A plan with numbers in place of its symbolic sizes."""
    new: dict[Node, Node] = {}
    for node in symbolic.graph.order():
        value = node.value
        if isinstance(value, SizeConstant):
            value = value.filled(number(value.size))
        inputs = tuple([new[i] for i in node.inputs])
        new[node] = Node(fill_primitive(node.op, number), inputs, fill_kind(node.kind, number), value)
    graph = Graph([new[i] for i in symbolic.graph.inputs], [new[o] for o in symbolic.graph.outputs])
    places = {
        new[node]: Place(place.where, fill(place.at, number), fill(place.nbytes, number))
        for node, place in symbolic.places.items()
    }
    return Plan(
        graph,
        [_filled_item(item, new, number) for item in symbolic.items],
        places,
        [new[node] for node in symbolic.outputs],
        [[fill(at, number) for at in step] for step in symbolic.temporaries],
        fill(symbolic.arena, number),
        symbolic.reuse,
        [replace(p, nbytes=fill(p.nbytes, number), at=fill(p.at, number)) for p in symbolic.pieces],
    )


def _filled_item(item: Item, new: dict[Node, Node], number: Number) -> Item:
    group = item.group
    nodes = [new[node] for node in group.nodes]
    filled = Group(nodes, fill(group.domain, number), group.axes, group.form, group.ancestors, group.bit, group.why)
    return replace(
        item,
        group=filled,
        launches=tuple([_filled_launch(launch, number) for launch in item.launches]),
        reads=tuple([new[node] for node in item.reads]),
        writes=tuple([new[node] for node in item.writes]),
        temporaries=fill(item.temporaries, number),
    )


def _filled_launch(launch: Launch, number: Number) -> Launch:
    words = [
        Pointer(w.value, fill(w.offset, number)) if isinstance(w, Pointer) else fill(w, number) for w in launch.words
    ]
    return replace(
        launch, words=tuple(words), grain=fill(launch.grain, number), scratch=fill(launch.scratch, number)
    )  # fmt: skip
