"""Symbolic plans: a plan made once for sizes that are symbols, from which a program for a new size is filled in.

All passes work on `Dim`s as they work on numbers: what they decide by a size (blocked or not, tiled or not, in which
order a product is summed) is a guard of the template, and what they compute (extents, strides, grains, sizes of
temporaries) is an expression. Two generated functions of the sizes give all numbers of a program; between them the
arena is packed, because where its pieces lie is no expression. What reads a size as a plain number makes a guard that
it is this number: such a template is right, and good for little.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from weft.codegen.launch import Choose, Done, Launch, Pointer, Repeat, Row, Slot, Steps
from weft.graph.dims import Dim, DimEnv, compile_sizes, is_symbolic, substitute, text_of
from weft.graph.node import Graph, Node, Size, kind_of, node_of
from weft.graph.placement import placed
from weft.passes.executable import Assembly, Call, Executable, Result, are_lasting, is_simple, result_of, unbroken
from weft.passes.growing import holds_tapes
from weft.passes.lower import Item, nbytes_of
from weft.passes.memory import Packing, Piece, Place, Plan
from weft.passes.pipeline import plan
from weft.passes.target import Target
from weft.passes.views import Strides, is_contiguous
from weft.primitives.base import ConstantValue, SizeConstant
from weft.primitives.control import Loop
from weft.primitives.creation import Extent
from weft.primitives.filling import fill, fill_kind, fill_primitive
from weft.records import fields, replace
from weft.runtime.program import Filled, Pattern, Program

MOST_TEMPLATES = 32
MOST_MISSES = 6
"""Templates that are made one after the other without one of them being used again, until no more are made."""

CHANGING = ("grain", "scratch_bytes_per_thread")
"""Fields of commands that may depend on sizes."""

Number = Callable[[Any], Any]
"""What stands in place of a symbolic size: a number, or a size of another environment."""


class Template:
    """A plan for all sizes that its guards allow, and what it takes to fill it in."""

    def __init__(
        self,
        env: DimEnv,
        graph: Graph,
        target: Target,
        donated: Collection[int] = (),
        layouts: Mapping[Node, Strides | None] | None = None,
    ) -> None:
        self.env, self.plan = env, plan(graph, target, layouts=layouts, donated=donated)
        assembly = Assembly(self.plan)
        assembly.lay_out()
        self._symbols = list(env.symbols)
        self._packings: list[tuple[Packing, Callable[..., tuple[int, ...]]]] = []
        for inner in _plans(self.plan):
            self._pack(inner)
        holes = _Holes(assembly)
        parts = holes.commands, holes.words, holes.relocations, assembly.given, holes.places
        self._pattern = Pattern(*parts, commit=assembly.commit)
        self._numbers = compile_sizes([*holes.numbers, self.plan.arena], self._symbols)
        wanted = _Wanted()
        self._outputs = wanted.add([nbytes_of(node) for node in self.plan.outputs])
        outputs = self.plan.graph.outputs
        self._shapes = [(wanted.add(node.shape), node.dtype) for node in outputs]
        results = [result_of(self.plan, node) for node in outputs]
        self._results = [(result, wanted.add(_sizes_of(result))) for result in results]
        self._constants = [
            (value, wanted.add([value.size] if isinstance(value, SizeConstant) else [])) for value in assembly.constants
        ]
        self._inputs = wanted.add([nbytes_of(node) for node in self.plan.graph.inputs])
        self._sizes = compile_sizes(wanted.sizes, env.symbols)
        self.adopted, self.spent, self.calls = self.plan.adopted, self.plan.spent, assembly.calls
        self.unbroken = unbroken(self.plan)
        env.close()
        self.commands = self._pattern.model.length
        """How many commands its programs have."""
        self.fits = env.compiled_check()
        """Whether the plan is right for these sizes, which pass the guards of the trace."""

    def executable(self, sizes: Sequence[int], constants: Sequence[ConstantValue] | None = None) -> Sized:
        """The executable for sizes that fit, with these constants in place of `Given` ones, if there are any here."""
        *numbers, arena = self._numbers(*self._values(sizes))
        program = Filled(self._pattern, numbers, arena) if self.plan.items else None
        return Sized(self, sizes, constants, self._sizes(*sizes), program)

    def plan_for(self, sizes: Sequence[int], constants: Sequence[ConstantValue] | None = None) -> Plan:
        """The plan with these sizes filled in, as the passes would have made it."""
        values = dict(zip(self._symbols, self._values(sizes), strict=True))
        return filled_plan(self.plan, lambda n: self.env.evaluate(n, values), constants)

    def _pack(self, inner: Plan) -> None:
        """From here on it is known where the pieces of a plan's arena lie. Those inside it have been packed: it has a
        piece for each of their arenas."""
        if not is_symbolic(inner.arena):
            return
        packing = Packing([(piece.first, piece.last) for piece in inner.pieces])
        self._packings.append((packing, compile_sizes([piece.nbytes for piece in inner.pieces], self._symbols)))
        self._symbols += [text_of(piece.at) for piece in inner.pieces] + [text_of(inner.arena)]

    def _values(self, sizes: Sequence[int]) -> list[int]:
        """The values of all symbols."""
        values = list(sizes)
        for packing, nbytes in self._packings:
            offsets, arena = packing.offsets(nbytes(*values))
            values += offsets
            values.append(arena)
        return values


def _plans(outer: Plan) -> list[Plan]:
    """A plan and those inside it, each once, the inner ones first."""
    found: dict[int, Plan] = {}
    for item in outer.items:
        for inner in item.plans():
            found.update({id(plan): plan for plan in _plans(inner)})
    return [*found.values(), outer]


class Sized(Executable):
    """An executable filled in from a template. Its plan is made when somebody wants to see it."""

    __slots__ = ("_values", "at", "template")

    def __init__(
        self,
        template: Template,
        at: Sequence[int],
        values: Sequence[ConstantValue] | None,
        known: Sequence[int],
        program: Program | None,
    ) -> None:
        self.template, self.at, self._values, self.program = template, at, values, program
        self.allocate, self.device = template.plan.target.allocate, placed(template.plan.target.device)
        self.sizes = list(known[template._outputs])
        self.kinds = [kind_of(tuple(known[shape]), dtype) for shape, dtype in template._shapes]
        self.constants: list[ConstantValue] = [
            value.filled(known[place.start]) if isinstance(value, SizeConstant) else _given(value, values)
            for value, place in template._constants
        ]
        self.results = [
            _filled_result(result, kind.shape, known[place])
            for (result, place), kind in zip(template._results, self.kinds, strict=True)
        ]
        self.simple = is_simple(self.results)
        self.adopted, self.spent = template.adopted, template.spent
        self.largest = max(known[template._inputs], default=0)
        self.calls = template.calls
        self.lasting = bool(template.unbroken) and are_lasting(map(self._filled, template.unbroken))
        self.prepare_runs()

    def failed(self, command: int) -> Call:
        return self._filled(self.calls[command])

    def _filled(self, call: Call) -> Call:
        """An operation of the template, with numbers for symbols."""
        op, kinds = call
        env = self.template.env
        sizes = dict(zip(env.symbols, self.at, strict=False))

        def number(n: Size) -> int:
            return env.evaluate(n, sizes)

        return Call(fill_primitive(op, number), tuple([fill_kind(kind, number) for kind in kinds]))

    def __getattr__(self, name: str) -> Any:
        if name == "given":
            self.given = [node.kind for node in self.plan.graph.inputs]
            return self.given
        if name != "plan":
            raise AttributeError(name)
        self.plan = self.template.plan_for(self.at, self._values)
        return self.plan


class Given(ConstantValue):
    """A constant of a template: the one at this position among those that come with the sizes."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


def _given(value: Any, constants: Sequence[ConstantValue] | None) -> Any:
    return constants[value.position] if constants is not None and value.__class__ is Given else value


def _sizes_of(result: Result) -> Sequence[Size]:
    """Offset and strides of a result, if it may be another for other sizes."""
    changes = result.strides is not None or is_symbolic(result.offset)
    return [result.offset, *(result.strides or ())] if changes else ()


def _filled_result(result: Result, shape: Sequence[Size], numbers: Sequence[int]) -> Result:
    if not numbers:
        return result
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
            c._replace(**{name: self._plain(getattr(c, name), name, i) for name in CHANGING})
            for i, c in enumerate(assembly.commands)
        ]
        self.relocations = [
            r._replace(byte_offset=self._plain(r.byte_offset, "offset", i)) for i, r in enumerate(assembly.relocations)
        ]
        self.words = [self._plain(word, "word", i) for i, word in enumerate(assembly.words)]

    def _plain(self, n: Size, what: str, at: int) -> int:
        if type(n) is not Dim:
            return n if isinstance(n, int) else int(n)  # an address may keep what it points to in memory
        self.places.append((what, at))
        self.numbers.append(n)
        return 1


# ---- the templates of a trace ----


class Templates:
    """The templates of one trace. `env` is its environment, `make` its graph with something in place of its sizes,
    `donated` are the inputs that may be overwritten."""

    def __init__(
        self, env: DimEnv, make: Callable[[Number], Graph], target: Target, donated: Collection[int] = ()
    ) -> None:
        self._env, self._make, self._target, self._donated = env, make, target, donated
        self.made: list[Template] = []
        """The ones used last first."""
        self._misses = 0

    def find(self, sizes: Sequence[int]) -> Template | None:
        """The template for sizes that pass the guards of the trace; None if they are better planned for themselves."""
        for number, template in enumerate(self.made):
            if template.fits(*sizes):
                self._misses = 0
                if number:  # what was used last is tried first
                    self.made = [template, *(other for other in self.made if other is not template)]
                return template
        if self._misses >= MOST_MISSES or len(self.made) >= MOST_TEMPLATES:
            return None
        self._misses += 1
        made = self._new(sizes)
        if made is not None:
            self.made = [made, *self.made]
        return made

    def _new(self, sizes: Sequence[int]) -> Template | None:
        env, symbols = self._env.again(dict(zip(self._env.symbols, sizes, strict=True)))
        graph = self._make(lambda n: substitute(n, symbols))
        if holds_tapes(graph) or not is_general(graph):
            return None
        return Template(env, graph, self._target, self._donated)


def is_general(graph: Graph, inside: bool = False) -> bool:
    """Whether passes can do without the numbers. They treat sizes of 0 and 1 in ways of their own, which no symbol can
    follow; a number inside a body is part of its structure; and progress is shown in numbers."""
    for node in graph.order():
        if any(n < 2 for n in node.shape if type(n) is Dim):
            return False
        op = node.op
        if inside and isinstance(op, Extent) and type(op.size) is Dim:
            return False
        if isinstance(op, Loop) and (op.progress is not None or (type(op.length) is Dim and op.length < 2)):
            return False
        if not all(is_general(body.graph, inside=True) for body in op.bodies()):
            return False
    return True


# ---- numbers in a plan ----


def filled_plan(symbolic: Plan, number: Number, constants: Sequence[ConstantValue] | None = None) -> Plan:
    """A plan with numbers in place of its symbolic sizes, and so the plans inside it."""
    new: dict[Node, Node] = {}
    # Results of loops that nobody reads, and constants of bodies, are in no graph.
    others = [node for item in symbolic.items for node in (*item.reads, *item.writes)]
    for node in dict.fromkeys([*symbolic.graph.order(), *others]):
        inputs = tuple([new[i] for i in node.inputs])
        value = _given(node.value, constants)
        if isinstance(value, SizeConstant):
            value = value.filled(number(value.size))
        new[node] = node_of(fill_primitive(node.op, number), inputs, fill_kind(node.kind, number), value)
    return Plan(
        Graph([new[i] for i in symbolic.graph.inputs], [new[o] for o in symbolic.graph.outputs]),
        symbolic.target,
        [_filled_item(item, new, number) for item in symbolic.items],
        {new[node]: _filled(place, number) for node, place in symbolic.places.items()},
        [new[node] for node in symbolic.outputs],
        [[fill(at, number) for at in step] for step in symbolic.temporaries],
        fill(symbolic.arena, number),
        symbolic.reuse,
        [_filled(piece, number) for piece in symbolic.pieces],
        {i: None if heir is None else new[heir] for i, heir in symbolic.free.items()},
    )


def _filled_item(item: Item, new: dict[Node, Node], number: Number) -> Item:
    group = item.group
    return replace(
        item,
        group=replace(group, nodes=[new[node] for node in group.nodes], domain=fill(group.domain, number)),
        launches=_filled(item.launches, number),
        reads=tuple([new[node] for node in item.reads]),
        writes=tuple([new[node] for node in item.writes]),
        temporaries=fill(item.temporaries, number),
        code=_filled(item.code, number),
    )


_OF_NUMBERS = (Place, Piece, Launch, Pointer, Done, Row, Slot, Repeat, Steps, Choose)


def _filled(value: Any, number: Number) -> Any:
    """What a plan consists of, with numbers in it."""
    if isinstance(value, Plan):
        return filled_plan(value, number)
    if isinstance(value, _OF_NUMBERS):
        return type(value)(*[_filled(getattr(value, field.name), number) for field in fields(value)])
    return tuple([_filled(x, number) for x in value]) if type(value) is tuple else fill(value, number)
