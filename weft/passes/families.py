"""Families: programs of one structure that differ in nothing but sizes, planned together.

Outside of shapeless functions every size is a number: a cache that grows by a row at each step is another program at
each step. Its structure is the same one. Here a program is divided into its *form* (operations, operands, dtypes, what
is a result) and its *sizes* (those of leaves and their strides, and those in parameters; all others follow from these).
Rules treat 0, 1 and -1 in ways of their own: which sizes are one of these is part of the form. Programs of one form are
a family. The first few are planned for themselves. Then it is known which sizes change, and how they go together; those
become symbols, the graph is made again with them, and planned once (template.py). From then on a program of the family
is looked up, checked and filled in.

That is right because nothing is guessed. A template serves sizes that are, one by one, what its own are with numbers
for the symbols: its graph with those numbers *is* the graph that is asked for. That sizes went together so far is only
the choice of what to try next: it is checked for every program, as are the guards of the plan.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from weft.config import config
from weft.graph.dims import DimEnv, compile_sizes, hint_of
from weft.graph.node import ArrayType, Graph, Node, Size, kind_of
from weft.lazy import lazy
from weft.passes.executable import Executable
from weft.passes.growing import holds_tapes
from weft.passes.pipeline import WRAPPERS, compile_graph, wrapped
from weft.passes.target import Target
from weft.passes.template import MOST_MISSES, MOST_TEMPLATES, Given, Sized, Template, is_general
from weft.passes.views import Strides
from weft.primitives.base import DATA, Constant, ConstantValue, Elementwise, Parameter, bind
from weft.primitives.filling import fill_kind, with_sizes, without_sizes
from weft.runtime.object_table import NO_NUMBER
from weft.runtime.objects import MAKERS

if TYPE_CHECKING:
    from weft.passes import verify
else:
    verify = lazy("weft.passes.verify")

PATIENCE = 3
"""Different sizes of a family with which it is planned for all of them: many programs see two, one of them rarely."""
MOST_SEEN = 8
"""Sizes that a family remembers to tell how they go together."""
MOST_SYMBOLS = 24
MOST_RECENT = 16
"""Programs that a family keeps in case their sizes come again."""
MOST_FAMILIES = 2048
MOST_PARTS = 1 << 20
"""Parts of the forms of all families together: some for each operation."""
MOST_COMMANDS = 1 << 13
"""Commands of all templates together, at some kilobytes each. Beyond that, those that were not used for longest go."""

T = TypeVar("T")
Layouts = Mapping[Node, Strides | None]
Sizes = tuple[int, ...]


class _Template:
    """A template with what its symbols stand for."""

    __slots__ = ("_at", "_sizes", "template")

    def __init__(self, made: Template, sizes: Sequence[Size], at: Sequence[int]) -> None:
        self.template, self._at = made, at
        self._sizes = compile_sizes(sizes, made.env.symbols)

    def numbers(self, sizes: Sizes) -> list[int] | None:
        """The numbers of the symbols, if these sizes are what the template's are with them, and its plan is right."""
        numbers = [sizes[at] for at in self._at]
        return numbers if self._sizes(*numbers) == sizes and self.template.fits(*numbers) else None

    def sizes(self, numbers: Sequence[int]) -> Sizes | None:
        """The sizes that are those of the template with these numbers, if its plan is right for them."""
        return self._sizes(*numbers) if min(numbers, default=0) > 1 and self.template.fits(*numbers) else None


class Family:
    """Programs of one form. Threads may come in at the same time: at worst one does in vain what another has done."""

    __slots__ = ("_course", "_donated", "_misses", "_recent", "_seen", "_target", "made")

    def __init__(self, target: Target, donated: Collection[int] = ()) -> None:
        self._target, self._donated = target, donated
        self._recent: dict[Sizes, Any] = {}
        self._seen: tuple[Sizes, ...] = ()
        self.made: list[_Template] = []
        """The ones used last first."""
        self._misses = 0
        self._course: tuple[Sized | None, list[int]] = (None, [])
        """The program that `foresee` was told of, and how its sizes differ from those of the one before."""

    def recent(self, sizes: Sizes) -> Any:
        """What was made for these sizes lately, if there is anything: they come again."""
        return self._recent.pop(sizes, None)

    def keep(self, sizes: Sizes, made: T) -> T:
        """Remember what was made for these sizes, for a while: most never come again."""
        if len(self._recent) >= MOST_RECENT:
            self._recent.pop(next(iter(self._recent), sizes), None)  # another thread may be at it too
        self._recent[sizes] = made
        return made

    def executable(self, sizes: Sizes, constants: Sequence[ConstantValue] | None = None) -> Sized | None:
        """The program of these sizes, filled in; None if no template fits. `constants` are those of its graph, in
        order; without them they are `Given`."""
        for number, made in enumerate(self.made):
            numbers = made.numbers(sizes)
            if numbers is not None:
                self._misses = 0
                if number:
                    self.made = [made, *(other for other in self.made if other is not made)]
                _USED.pop(made, None)
                _USED[made] = self
                try:
                    return made.template.executable(numbers, constants)
                except OverflowError:  # something is larger than memory can be: planning says what
                    return None
        return None

    def foresee(self, now: Sized) -> tuple[Sizes, Sized] | None:
        """The program that comes next, filled in ahead of time, and its sizes: if those have gone on in the same steps
        up to `now`, they may do so once more. None if it is there already, or they did not."""
        before, steps = self._course
        known = before is not None and before.template is now.template
        taken = [b - a for a, b in zip(before.at, now.at, strict=True)] if before is not None and known else []
        self._course = now, taken
        made = next((x for x in self.made if x.template is now.template), None)
        if made is None or not any(taken) or taken != steps:
            return None
        numbers = [n + step for n, step in zip(now.at, taken, strict=True)]
        sizes = made.sizes(numbers)
        if sizes is None or sizes in self._recent:
            return None
        try:
            return sizes, made.template.executable(numbers)
        except OverflowError:  # something is larger than memory can be
            return None

    def is_time(self, sizes: Sizes) -> bool:
        """Whether to make a template for these sizes, which no other fits. They are remembered."""
        if sizes not in self._seen:
            self._seen = (*self._seen[-MOST_SEEN + 1 :], sizes)
        return len(self._seen) >= PATIENCE and self._misses < MOST_MISSES and len(self.made) < MOST_TEMPLATES

    def learn(self, sizes: Sizes, graph: Graph, layouts: Layouts) -> bool:
        """Make a template for these sizes, when it is time. Whether there is one now."""
        self._misses += 1
        made = _new(self._seen, sizes, graph, layouts, self._target, self._donated)
        if made is None:
            return False
        self.made = [made, *self.made]
        _USED[made] = self
        _forget()
        return True

    def forget(self, made: _Template) -> None:
        """Do without a template. Should its sizes come again, it is made again."""
        self.made = [other for other in self.made if other is not made]
        self._misses, self._seen = 0, ()
        self._recent.clear()
        self._course = (None, [])


_USED: dict[_Template, Family] = {}
"""All templates, those used last last."""


def _forget() -> None:
    """Forget the templates that were not used for longest, if there are too many."""
    total = 0
    for made, family in reversed([*_USED.items()]):
        total += made.template.commands
        if total > MOST_COMMANDS and made is not next(reversed(_USED), None):
            _USED.pop(made, None)
            family.forget(made)


Form = tuple[int, ...]
FAMILIES: dict[tuple[Form, Target, Collection[int]], Family] = {}


def family_of(key: Sequence[Any], target: Target, donated: Collection[int] = ()) -> tuple[Family, Sizes] | None:
    """The family of a program, and its sizes; None if some are symbols of a trace, which nobody may read. The key
    (`structure_of` says what is in it) tells the program from others."""
    found = divided(key)
    if found is None:
        return None
    form, sizes = found
    name = (form, target, donated)
    family = FAMILIES.get(name)
    if family is None:
        _make_room(len(form))
        family = FAMILIES[name] = Family(target, donated)
    return family, sizes


_PARTS = [0]
"""How many parts the forms of all families have, or more."""


def _make_room(parts: int) -> None:
    """Forget the older half of all families, if there are too many or too long ones for one more."""
    _PARTS[0] += parts
    if len(FAMILIES) < MOST_FAMILIES and _PARTS[0] <= MOST_PARTS:
        return
    known = [*FAMILIES.items()]
    left = parts + sum([len(form) for (form, _, _), _ in known])
    for number, (name, family) in enumerate(known):
        if len(known) - number <= MOST_FAMILIES // 2 and left <= MOST_PARTS // 2:
            break
        FAMILIES.pop(name, None)  # another thread may be at it too
        left -= len(name[0])
        for made in family.made:
            _USED.pop(made, None)
    _PARTS[0] = left


def divided(key: Sequence[Any]) -> tuple[Form, Sizes] | None:
    """(form, sizes) of a program; None if some sizes are symbols. In the form a part of the key is a number below -1,
    the same one for parts that differ in nothing but sizes, and among these only in such that are alike to rules."""
    form: list[int] = []
    sizes: list[Sizes] = []
    return (tuple(form), tuple(chain.from_iterable(sizes))) if _divide(tuple(key), form, sizes) else None


_OPERATION, _LEAF, _KIND, _STRIDES, _SYMBOLIC = range(5)
"""What a part of a key is: an operation, that of a leaf, a kind, strides of a leaf, or a kind with symbols."""

Division = tuple[int, Sizes, int]
"""Of a part of a key: its number in forms, the sizes in it, and what it is."""
_DIVISIONS: dict[Any, Division] = {}
_MOST_DIVISIONS = 1 << 14
_NUMBERS: dict[Any, int] = {}
"""The numbers that stand for parts without their sizes. None is given twice."""
_MOST_NUMBERS = 1 << 13
_numbers = itertools.count(-2, -1)


def _divide_by_python(key: tuple[Any, ...], form: list[int], sizes: list[Sizes]) -> bool:
    """Add to `form` and `sizes` what is in a key. Whether there are no symbols in it."""
    leaf = False
    for part in key:
        if part.__class__ is int:
            form.append(part)
            continue
        number, more, role = _DIVISIONS.get(part) or _division(part)
        if role == _SYMBOLIC:
            return False
        if role <= _LEAF:
            leaf = role == _LEAF
        elif role == _KIND and not leaf:
            continue  # that of what is computed follows from its operands
        form.append(number)
        if more:
            sizes.append(more)
    return True


def _division(part: Any) -> Division:
    """What a part of a key other than a number is."""
    inner: Any
    sizes: Any
    if isinstance(part, tuple):
        inner, sizes, role = (Strides, len(part)), part, _STRIDES
    elif isinstance(part, ArrayType):
        inner, sizes = (part.dtype, part.ndim), () if part.symbolic else part.shape
        role = _SYMBOLIC if part.symbolic else _KIND
    elif part is DATA or part.__class__ is Constant:
        inner, sizes, role = part, (), _LEAF
    else:
        inner, sizes = without_sizes(part)
        role = _OPERATION
    alike = (role, inner, tuple([n if -2 < n < 2 else 2 if n > 0 else -2 for n in sizes]))
    if len(_DIVISIONS) >= _MOST_DIVISIONS:
        _DIVISIONS.clear()
    if len(_NUMBERS) >= _MOST_NUMBERS:
        _NUMBERS.clear()  # with numbers that stand for nothing any more, families are not found, and forgotten in time
        _DIVISIONS.clear()
    number = _NUMBERS.setdefault(alike, next(_numbers))
    found = (number, sizes, role)
    if getattr(part, "recurs", True):  # operations that hold much are not kept
        _DIVISIONS[part] = found
    return found


_divide = MAKERS.divide(_divide_by_python, _DIVISIONS, _division)


class Outline:
    """A key, to be compared with others part by part: those of its form are found without hashing them as a whole."""

    __slots__ = ("_places", "_sizes", "numbers", "parts")

    def __init__(self, parts: tuple[Any, ...], sizes: Sizes) -> None:
        self.parts, self._sizes = parts, sizes
        self.numbers = struct.pack(f"{len(parts)}q", *[p if p.__class__ is int else NO_NUMBER for p in parts])
        self._places: dict[int, tuple[int, int]] = {}
        """Of each part of the form that is no number: what stands for it there, and where its sizes begin."""
        leaf, before = False, 0
        for at, part in enumerate(parts):
            if part.__class__ is not int:
                number, more, role = _DIVISIONS.get(part) or _division(part)
                leaf = role == _LEAF if role <= _LEAF else leaf
                if role != _KIND or leaf:
                    self._places[at] = number, before
                    before += len(more)

    def sizes_with(self, changes: Sequence[Any]) -> Sizes | None:
        """The sizes of a key that differs from this one in some parts, each with its place in front; None if it is of
        another form."""
        sizes = [*self._sizes]
        for at, part in zip(changes[::2], changes[1::2], strict=True):
            number, more, role = _DIVISIONS.get(part) or _division(part)
            known = self._places.get(at)
            if known is None:
                if role != _KIND:
                    return None
            elif known[0] != number:
                return None
            elif more:
                sizes[known[1] : known[1] + len(more)] = more
        return tuple(sizes)


def structure_of(order: Sequence[Node], outputs: Sequence[Node], layouts: Layouts) -> tuple[Any, ...]:
    """All that tells a closed graph from others but the numbers of its constants: for each node in order the numbers of
    its operands and its operation, the kind of a leaf, and the strides of an input that is not contiguous; then the
    results. What is computed has the kind that follows from its operands, which is there only if it has symbols."""
    key: list[Any] = []
    number: dict[Node, int] = {}
    for place, node in enumerate(order):
        number[node] = place
        if node.inputs:
            key += [*[number[x] for x in node.inputs], node.op]
            if node.kind.symbolic:
                key.append(node.kind)
            continue
        is_input = isinstance(node.op, Parameter)
        key += [DATA if is_input else node.op, node.kind]
        strides = layouts.get(node) if is_input else None
        if strides is not None:
            key.append(strides)
    key.append(-1)
    key += [number[node] for node in outputs]
    return tuple(key)


def constants_of(order: Sequence[Node]) -> list[ConstantValue]:
    """The constants among the nodes of a graph, in order."""
    return [node.value for node in order if not node.inputs and isinstance(node.op, Constant)]


def compiled(
    graph: Graph,
    target: Target,
    layouts: Layouts,
    donated: tuple[int, ...] = (),
    found: tuple[Family, Sizes] | None = None,
) -> Executable:
    """An executable for a graph: filled in from a template of its family, or planned for itself. `found` is what
    `family_of` says, where that is known."""
    order = graph.order()
    found = found or family_of(structure_of(order, graph.outputs, layouts), target, donated)
    if found is None or config.dump:  # whoever looks at plans wants to see one for each program
        return compile_graph(graph, target, layouts, donated)
    family, sizes = found
    constants = constants_of(order)
    made = family.executable(sizes, constants)
    if made is None and family.is_time(sizes) and family.learn(sizes, graph, layouts):
        made = family.executable(sizes, constants)
    if made is None:
        return compile_graph(graph, target, layouts, donated)
    check(made, donated)
    return wrapped(target.assemble(made.plan), graph, layouts) if WRAPPERS else made


def check(made: Sized, donated: Collection[int]) -> None:
    """Verify the plan of a program that was filled in, if plans are to be."""
    if config.check:
        verify.verify_plan(made.plan, {}, donated)


def _new(
    seen: Sequence[Sizes], sizes: Sizes, graph: Graph, layouts: Layouts, target: Target, donated: Collection[int]
) -> _Template | None:
    """A template for sizes that change as those seen have; None if these are better planned for themselves."""
    found = divided(structure_of(graph.order(), graph.outputs, layouts))
    if found is None or found[1] != sizes or holds_tapes(graph):
        return None
    env = DimEnv()
    chosen = _symbols(seen, sizes, env)
    if chosen is None:
        return None
    symbolic, at = chosen
    general, strides = _with_sizes(graph, layouts, iter(symbolic))
    if not is_general(general):
        return None
    return _Template(Template(env, general, target, donated, strides), symbolic, at)


def _symbols(seen: Sequence[Sizes], sizes: Sizes, env: DimEnv) -> tuple[list[Size], list[int]] | None:
    """The sizes of a family, with symbols of `env` in those that change, and at which of them the symbols stand. Sizes
    that have always changed together, a whole number of times as much, are expressions of one symbol."""
    together: dict[Sizes, list[tuple[int, int]]] = {}
    for at, column in enumerate(zip(*seen, strict=True)):
        changes = [n - column[0] for n in column]
        step = math.gcd(*changes)
        if step:
            step = step if next(n for n in changes if n) > 0 else -step
            together.setdefault(tuple([n // step for n in changes]), []).append((at, step))
    symbolic: list[Size] = list(sizes)
    places: list[int] = []
    for group in together.values():
        while group:
            able = [(abs(step), sizes[at], at, step) for at, step in group if sizes[at] > 0]
            if not able or len(places) >= MOST_SYMBOLS:
                return None
            _, first, place, unit = min(able)
            symbol = env.symbol(f"n{len(places)}", first)
            places.append(place)
            for at, step in group:
                if step % unit == 0:
                    symbolic[at] = (symbol - first) * (step // unit) + sizes[at]
            group = [(at, step) for at, step in group if step % unit]
    return symbolic, places


def _alike(node: Node, new: Mapping[Node, Node]) -> None:
    """What stands for an elementwise node has the shape of its operands, except for those that have another one (of an
    `Identity`). That sizes which changed each in its own way, as a sum and its terms, are equal here is a guard."""
    for x in node.inputs:
        if x.shape == node.shape:
            assert new[x].shape == new[node].shape, f"{node.op} of operands of different shapes"


def _with_sizes(graph: Graph, layouts: Layouts, sizes: Iterator[Size]) -> tuple[Graph, dict[Node, Strides | None]]:
    """The graph with others in place of its sizes, and with stand-ins for its constants."""
    new: dict[Node, Node] = {}
    strides: dict[Node, Strides | None] = {}
    constants = 0

    def taken(count: int) -> tuple[Size, ...]:
        return tuple([next(sizes) for _ in range(count)])

    for node in graph.order():
        if isinstance(node.op, Parameter):
            made = new[node] = Node(node.op, (), kind_of(taken(node.ndim), node.dtype))
            strides[made] = None if layouts.get(node) is None else taken(node.ndim)
        elif isinstance(node.op, Constant):
            new[node] = Node(node.op, (), kind_of(taken(node.ndim), node.dtype), Given(constants))
            constants += 1
        else:
            new[node] = bind(with_sizes(node.op, sizes), *[new[x] for x in node.inputs])
            if isinstance(node.op, Elementwise):
                _alike(node, new)
        assert fill_kind(new[node].kind, hint_of) is node.kind, f"{node.op} of symbols is another one than of numbers"
    return Graph([new[x] for x in graph.inputs], [new[x] for x in graph.outputs]), strides
