"""The verifier of plans earns its keep: the planner is broken on purpose, one rule at a time, and every broken plan
must be refused.

A mutation replaces one decision of `weft.passes.memory`; a program beside it is one whose plan that decision ruins. The
same program passes with the planner as it is. Further mutations damage a good plan directly, for what a planner might
do wrong in ways not thought of here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import weft.core as mx
from tests.contract import graph, settings
from weft import dtypes as dt
from weft.array import wrap
from weft.core.looping import fori_loop
from weft.graph.node import Node
from weft.passes import memory
from weft.passes.lower import Item, nbytes_of
from weft.passes.memory import Place, Plan
from weft.passes.pipeline import plan
from weft.passes.verify import VerifyError, verify_plan
from weft.passes.views import Strided
from weft.primitives.base import Reduction, bind
from weft.primitives.contraction import Matmul
from weft.primitives.elementwise import astype, cos, exp, sin
from weft.primitives.reductions import Max, Sum
from weft.primitives.views import Broadcast, Slice, transpose
from weft.targets import CPU
from weft.targets.cpu.target import Cpu
from weft.transforms.compile import graph_of

SQUARE = (32, 32)


def product(x: Node, y: Node) -> Node:
    """A value that no map can swallow: it is stored."""
    return bind(Matmul(), x, y)


# ---- programs ----


def read_again(x: Node, y: Node) -> Node:
    """`a` is read by a map, and once more by a product after it."""
    a = product(x, y)
    return product(exp(a), a)


def read_again_through_a_view(x: Node, y: Node) -> Node:
    a = product(x, y)
    return product(exp(a), transpose(a, (1, 0)))


def returned_and_read(x: Node, y: Node) -> list[Node]:
    """`a` is a result of the program, and a map reads it last."""
    a = product(x, y)
    return [a, product(exp(a), y)]


def returned_view(x: Node, y: Node) -> list[Node]:
    """A part of `a` is a result of the program."""
    a = product(x, y)
    return [bind(Slice((1, 1), (5, 7), (2, 3)), a), product(exp(a), y)]


def turned(x: Node, y: Node) -> Node:
    """A map that reads `a` in two orders."""
    a = product(x, y)
    return product(a + transpose(a, (1, 0)), y)


def two_results(x: Node, y: Node) -> Node:
    """One map writes two values, and one operand dies there."""
    a = product(x, y)
    b, c = exp(a), sin(a)
    return product(product(b, c), c + b)


def wider(x: Node, y: Node) -> Node:
    """A map whose result is larger than its dying operand."""
    a = product(x, y)
    return product(astype(a, dt.float64), astype(a, dt.float64))


def many_alive(x: Node, y: Node) -> Node:
    """Several values of several sizes wait for each other."""
    a, b = product(x, y), product(y, x)
    c, d = product(a, b), product(b, a)
    small = bind(Slice((0, 0), (4, 32), (1, 1)), exp(c))
    return product(product(small, d), product(a, product(c, b)))


def chain(x: Node, y: Node) -> Node:
    a = product(x, y)
    for _ in range(4):
        a = product(cos(a), y)
    return a


def long_row(x: Node, y: Node) -> Node:
    """Reductions in two stages, which keep partial results in temporaries of their own; the second reads the first's
    result."""
    total = bind(Sum((0,)), exp(x))
    return bind(Sum((0,)), sin(y) * bind(Broadcast(y.shape, ()), total))


def read_again_in_a_row(x: Node, y: Node) -> list[Node]:
    """One kernel: its first pass over a row writes a value, its second reads the operand again."""
    a = product(x, y)
    e = exp(a)
    return [product(e, y), product(a - bind(Broadcast(a.shape, (0,)), bind(Max((1,)), e)), y)]


def softmax(x: Node, y: Node) -> Node:
    """Three passes over a row, of which only the last writes."""
    a = product(x, y)
    e = exp(a - bind(Broadcast(a.shape, (0,)), bind(Max((1,)), a)))
    return product(e / bind(Broadcast(a.shape, (0,)), bind(Sum((1,)), e)), y)


# Both inputs of these are donated.


def overwritten(x: Node, y: Node) -> Node:
    return product(exp(x) + sin(y), cos(y))


def both_overwritten(x: Node, y: Node) -> list[Node]:
    """One map with two results, over its two operands."""
    return [x + y, x - y]


def donated_and_returned(x: Node, y: Node) -> list[Node]:
    return [x, exp(x) + y, y]


def donated_and_viewed(x: Node, y: Node) -> list[Node]:
    return [bind(Slice((1, 1), (5, 7), (2, 3)), x), exp(x), transpose(y, (1, 0))]


def donated_and_read_later(x: Node, y: Node) -> Node:
    return product(exp(x), product(y, x))


def donated_and_turned(x: Node, y: Node) -> Node:
    return x + transpose(x, (1, 0)) + transpose(y, (1, 0))


def donated_and_widened(x: Node, y: Node) -> list[Node]:
    return [astype(x, dt.float64), astype(y, dt.float16)]


def donated_to_a_loop(x: Node, y: Node) -> list[Node]:
    """Loops can be interrupted: what they were given must be there for another try. What comes behind may overwrite."""
    looped = fori_loop(0, 3, lambda i, c: mx.matmul(c, c), wrap(y))._node
    return [exp(x), looped]


def donated_before_a_loop(x: Node, y: Node) -> list[Node]:
    looped = fori_loop(0, 3, lambda i, c: mx.matmul(c, c), wrap(exp(x)))._node
    return [looped + y]


# Both inputs of these are carried by a loop: their next values are the results of the same number.


def carried(x: Node, y: Node) -> list[Node]:
    return [x + y, exp(y)]


def carried_crosswise(x: Node, y: Node) -> list[Node]:
    """Fibonacci: each next value could take the other's place, or its own."""
    return [y, x + y]


def carried_and_read_later(x: Node, y: Node) -> list[Node]:
    a = exp(x)
    return [a, product(a, x) + y]


def carried_and_turned(x: Node, y: Node) -> list[Node]:
    return [x + transpose(x, (1, 0)), y - transpose(y, (1, 0))]


PLAIN = (
    read_again, read_again_through_a_view, returned_and_read, returned_view, turned, two_results, wider,
    many_alive, chain, long_row, read_again_in_a_row, softmax,
)  # fmt: skip
DONATED = (
    overwritten, both_overwritten, donated_and_returned, donated_and_viewed, donated_and_read_later, donated_and_turned,
    donated_and_widened, donated_to_a_loop, donated_before_a_loop,
)  # fmt: skip
CARRIED = (carried, carried_crosswise, carried_and_read_later, carried_and_turned)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    f.__name__: (f, (1 << 18,) if f is long_row else SQUARE) for f in (*PLAIN, *DONATED, *CARRIED)
}


def given_to(name: str) -> dict[str, Any]:
    """What a program may overwrite."""
    function = PROGRAMS[name][0]
    return {
        "carried": {0: 0, 1: 1} if function in CARRIED else None,
        "donated": (0, 1) if function in DONATED else (),
    }


class Apart(Cpu):
    """The CPU, with steps of their own for maps that follow products: more places to go wrong."""

    def lower_with_epilogue(self, *args: Any) -> None:
        return None


APART = Apart()


def planned(name: str) -> Plan:
    """The plan as the planner makes it now, unverified."""
    build, shape = PROGRAMS[name]
    with settings(check=False):
        return plan(graph(build, shape, shape), APART, **given_to(name))


def verify(name: str) -> None:
    verify_plan(planned(name), **given_to(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_good_plans_pass(name: str) -> None:
    verify(name)


def test_the_programs_do_what_they_are_here_for() -> None:
    """Where a mutation is to go too far, the planner itself goes as far as it may."""
    assert planned("overwritten").spent == [0, 1]
    assert sorted(planned("both_overwritten").adopted.values()) == [0, 1]
    for name in ("donated_and_returned", "donated_and_viewed", "donated_and_widened"):
        assert planned(name).spent == [], name
    assert planned("donated_to_a_loop").spent == [0]  # what does not need the loop comes behind it
    assert planned("donated_before_a_loop").spent == [1]
    assert planned("carried").adopted == {0: 0, 1: 1}
    assert planned("carried_crosswise").adopted == {0: 0, 1: 1}  # one map, which computes both before it writes
    assert len(planned("read_again_in_a_row").items) == 4
    assert planned("softmax").reuse == ["divide takes the place of matmul"]


# ---- mutations of the planner ----


def dying_operand(*ignored: str) -> Callable[..., Any]:
    """`memory._dying_operand` with some of its conditions left out."""

    def find(item: Item, w: int, below: Any, step: int, home_of: dict[Node, Any], taken: set[int], lasts: bool) -> Any:
        found = []
        for r, operand in enumerate(item.reads):
            home = home_of.get(operand)
            if home is None:
                continue
            rules = {
                "overwritable": (r, w) in item.overwritable,
                "taken": id(home) not in taken,
                "last": home.last == step,
                "output": home.output is None,
                "latest": home.nodes[-1] is operand,
                "size": home.nbytes == nbytes_of(item.writes[w]),
                "heir": home.heirs is None or item.writes[w] in home.heirs,
                "since": step >= home.since,
            }
            if all(holds for rule, holds in rules.items() if rule not in ignored):
                found.append(home)
        inputs = [home for home in found if home.given is not None] if lasts else []
        return next(iter([*inputs, *found]), None)

    return find


def test_the_copy_of_the_rule_is_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without anything left out, the mutated function decides as the planner does: it has kept up with it."""
    before = {name: planned(name) for name in PROGRAMS}
    monkeypatch.setattr(memory, "_dying_operand", dying_operand())
    for name, made in before.items():
        again = planned(name)
        assert (again.arena, again.reuse, again.temporaries) == (made.arena, made.reuse, made.temporaries), name
        assert (again.spent, again.adopted) == (made.spent, made.adopted), name


def first_reads(items: Sequence[Item]) -> dict[Node, int]:
    found: dict[Node, int] = {}
    for step, item in enumerate(items):
        for node in item.reads:
            found.setdefault(node, step)
    return found


def early_reads(items: Sequence[Item]) -> dict[Node, int]:
    return {node: step - 1 for node, step in TRUE["last_reads"](items).items()}


def direct_reads(items: Sequence[Item]) -> dict[Node, int]:
    """Reads through views are forgotten."""
    found: dict[Node, int] = {}
    for step, item in enumerate(items):
        for node in item.group.nodes:
            for operand in node.inputs:
                if not isinstance(operand.op, Strided):
                    found[operand] = step
    return found


def mapped_reads(items: Sequence[Item]) -> dict[Node, int]:
    """Only fused kernels read, library calls do not."""
    return {n: s for s, item in enumerate(items) if item.group.form != "opaque" for n in item.reads}


def no_reads(items: Sequence[Item]) -> dict[Node, int]:
    return {}


TRUE = {name: getattr(memory, name) for name in ("last_reads", "_pack", "_homes", "_temporary_homes", "_dying_operand")}


def homes_without_results(items: Sequence[Item], last: dict[Node, int], outputs: Sequence[Node], free: Any) -> Any:
    """That the program returns a value does not count as a read, nor as a reason to leave it alone."""
    return TRUE["_homes"](items, TRUE["last_reads"](items), outputs, free)


def all_inputs_free(graph: Any, carried: Any, donated: Any) -> dict[int, Node | None]:
    return dict.fromkeys(range(len(graph.inputs)))


def carries_for_anybody(graph: Any, carried: Any, donated: Any) -> dict[int, Node | None]:
    return dict.fromkeys([*carried, *donated])


def carries_crossed(graph: Any, carried: Any, donated: Any) -> dict[int, Node | None]:
    outputs = [memory.base_of(output) for output in graph.outputs]
    return {i: outputs[1 - k] for i, k in carried.items()}


def any_pass(phases: Any) -> list[int]:
    """Row kernels that say any of their stores could lie on an operand."""
    return [i for phase in range(phases.count) for i in phases.stores(phase)]


def pack_at(offset: Callable[[int, Any], int]) -> Callable[..., Any]:
    """Packing that puts the n-th piece at `offset(n, piece)`."""

    def pack(homes: Sequence[Any]) -> Any:
        offsets = {id(home): offset(n, home) for n, home in enumerate(homes)}
        return memory._Packed(offsets, max((offsets[id(h)] + max(h.nbytes, 1) for h in homes), default=0))

    return pack


def pack_lifetimes(change: Callable[[Any], tuple[int, int]]) -> Callable[..., Any]:
    """Packing that believes in other lifetimes."""

    def pack(homes: Sequence[Any]) -> Any:
        changed = [replace(h, first=change(h)[0], last=change(h)[1]) for h in homes]
        packed = TRUE["_pack"](changed)
        return memory._Packed({id(h): packed.offsets[id(c)] for h, c in zip(homes, changed, strict=True)}, packed.size)

    return pack


def pack_small(homes: Sequence[Any]) -> Any:
    """Packing that takes every piece for one aligned line."""
    changed = [replace(h, nbytes=1) for h in homes]
    packed = TRUE["_pack"](changed)
    size = max((packed.offsets[id(c)] + h.nbytes for h, c in zip(homes, changed, strict=True)), default=0)
    return memory._Packed({id(h): packed.offsets[id(c)] for h, c in zip(homes, changed, strict=True)}, size)


def pack_without_temporaries(homes: Sequence[Any]) -> Any:
    """Temporaries of kernels get no place of their own."""
    values = [h for h in homes if h.nodes]
    packed = TRUE["_pack"](values)
    temporaries = {id(h): 0 for h in homes if not h.nodes}
    return memory._Packed({**packed.offsets, **temporaries}, max([packed.size, *(h.nbytes for h in homes)]))


def pack_too_small(homes: Sequence[Any]) -> Any:
    packed = TRUE["_pack"](homes)
    return memory._Packed(packed.offsets, packed.size // 2)


def everything(kernel: Any) -> range:
    """Kernels that say every result may lie on an operand."""
    return range(len(kernel.stores))


def ignoring(*rules: str) -> dict[str, Any]:
    return {"passes.memory._dying_operand": dying_operand(*rules)}


# name: (what is replaced by what in weft.passes, program that this ruins)
MUTATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "results on operands that the kernel reads in another order": (ignoring("overwritable"), "turned"),
    "results of products on their operands": (ignoring("overwritable"), "chain"),
    "two results in one place": (ignoring("taken", "latest", "last"), "two_results"),
    "results on operands that are read later": (ignoring("last"), "read_again"),
    "results on operands that a view reads later": (ignoring("last"), "read_again_through_a_view"),
    "results on what the program returns": (ignoring("last", "output"), "returned_and_read"),
    "results on what the program returns a part of": (ignoring("last", "output"), "returned_view"),
    "returning a value is no read of it": (
        {"passes.memory._homes": homes_without_results, **ignoring("output")},
        "returned_and_read",
    ),
    "results of another size": (ignoring("size", "overwritable"), "wider"),
    "the first read counts as the last": ({"passes.memory.last_reads": first_reads}, "read_again"),
    "the first read counts as the last, when packing": ({"passes.memory.last_reads": first_reads}, "many_alive"),
    "a value dies one step early": ({"passes.memory.last_reads": early_reads}, "chain"),
    "reads through views do not count": ({"passes.memory.last_reads": direct_reads}, "read_again_through_a_view"),
    "reads of library calls do not count": ({"passes.memory.last_reads": mapped_reads}, "read_again"),
    "no reads count": ({"passes.memory.last_reads": no_reads}, "many_alive"),
    "everything at the start of the arena": ({"passes.memory._pack": pack_at(lambda n, h: 0)}, "many_alive"),
    "pieces overlap by a line": ({"passes.memory._pack": pack_at(lambda n, h: n * (h.nbytes - 64))}, "many_alive"),
    "pieces overlap by a byte": ({"passes.memory._pack": pack_at(lambda n, h: n * (h.nbytes - 1))}, "many_alive"),
    "lifetimes end one step early": (
        {"passes.memory._pack": pack_lifetimes(lambda h: (h.first, max(h.first, h.last - 1)))},
        "chain",
    ),
    "lifetimes begin one step late": (
        {"passes.memory._pack": pack_lifetimes(lambda h: (min(h.first + 1, h.last), h.last))},
        "chain",
    ),
    "pieces are smaller than they are": ({"passes.memory._pack": pack_small}, "many_alive"),
    "temporaries are forgotten": ({"passes.memory._pack": pack_without_temporaries}, "long_row"),
    "the arena is too small": ({"passes.memory._pack": pack_too_small}, "many_alive"),
    "kernels allow what they cannot do": (
        {"targets.cpu.forms.base.Form.overwritten": everything, "targets.nest.Operand.walks_like": lambda *_: True},
        "turned",
    ),
    "rows are overwritten before their last pass": (
        {"codegen.phases.Phases.written_last": any_pass},
        "read_again_in_a_row",
    ),
    "inputs that were not given": ({"passes.memory._free_inputs": all_inputs_free}, "carried"),
    "inputs of plain programs": ({"passes.memory._free_inputs": all_inputs_free}, "turned"),
    "donated inputs that are returned": (
        {"passes.memory._homes": homes_without_results},
        "donated_and_returned",
    ),
    "donated inputs of which a part is returned": (
        {"passes.memory._homes": homes_without_results},
        "donated_and_viewed",
    ),
    "donated inputs that are read later": (ignoring("last"), "donated_and_read_later"),
    "donated inputs whose last read comes too early": (
        {"passes.memory.last_reads": first_reads},
        "donated_and_read_later",
    ),
    "donated inputs that are read in another order": (ignoring("overwritable"), "donated_and_turned"),
    "donated inputs of another size": (ignoring("size", "overwritable"), "donated_and_widened"),
    "one donated input for two results": (ignoring("taken", "latest", "last", "output"), "both_overwritten"),
    "donated inputs that a loop overwrites": (ignoring("since"), "donated_to_a_loop"),
    "donated inputs that are overwritten before a loop": (ignoring("since"), "donated_before_a_loop"),
    "no step can fail": ({"passes.memory.last_failure": lambda items: -1}, "donated_before_a_loop"),
    "the next value of another carry": (ignoring("heir"), "carried_crosswise"),
    "carries are free for anybody": ({"passes.memory._free_inputs": carries_for_anybody}, "carried_crosswise"),
    "carries that are mistaken for each other": ({"passes.memory._free_inputs": carries_crossed}, "carried"),
    "carries that are read later": (ignoring("last"), "carried_and_read_later"),
    "carries that are read in another order": (ignoring("overwritable"), "carried_and_turned"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_planners_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, program = MUTATIONS[name]
    for place, mutant in changes.items():
        monkeypatch.setattr(f"weft.{place}", mutant)
    with pytest.raises(VerifyError):
        verify(program)


def test_planning_verifies_when_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """WEFT_CHECK=1 is all it takes; without it the broken plan would be run."""
    monkeypatch.setattr(memory, "_dying_operand", dying_operand("last"))
    made = graph(read_again, SQUARE, SQUARE)
    with settings(check=False):
        plan(made, CPU)
    with settings(check=True), pytest.raises(VerifyError, match="overwritten"):
        plan(made, CPU)


# ---- mutations of plans ----


def writer(made: Plan, node: Node) -> int:
    return next(step for step, item in enumerate(made.items) if node in item.writes)


def stored(made: Plan, where: str) -> Node:
    return next(node for item in made.items for node in item.writes if made.places[node].where == where)


def over_an_input(made: Plan) -> None:
    made.places[stored(made, "arena")] = Place("input", 0, 0)


def no_place(made: Plan) -> None:
    del made.places[stored(made, "arena")]


def past_the_end(made: Plan) -> None:
    made.places[stored(made, "arena")] = Place("arena", made.arena, 0)


def before_the_start(made: Plan) -> None:
    made.places[stored(made, "arena")] = Place("arena", -64, 0)


def in_another_order(made: Plan) -> None:
    made.items.reverse()
    made.temporaries.reverse()


def twice_the_same_step(made: Plan) -> None:
    """A chain that writes over its operands cannot be run again from the middle."""
    made.items.insert(2, made.items[0])
    made.temporaries.insert(2, made.temporaries[0])


def a_step_is_missing(made: Plan) -> None:
    del made.items[1], made.temporaries[1]


def a_read_is_not_declared(made: Plan) -> None:
    made.items[-1] = replace(made.items[-1], reads=made.items[-1].reads[1:])


def a_result_is_not_declared(made: Plan) -> None:
    made.items[0] = replace(made.items[0], writes=())


def a_result_is_forgotten(made: Plan) -> None:
    made.outputs.pop()


def a_result_lies_in_the_arena(made: Plan) -> None:
    made.places[made.outputs[0]] = Place("arena", 0, 0)


DAMAGE: dict[str, tuple[Callable[[Plan], None], str]] = {
    "over an input": (over_an_input, "over an input"),
    "no place": (no_place, "no place"),
    "past the end of the arena": (past_the_end, "outside the arena"),
    "before the start of the arena": (before_the_start, "outside the arena"),
    "steps in another order": (in_another_order, "never written"),
    "a step is run twice": (twice_the_same_step, "overwritten"),
    "a step is missing": (a_step_is_missing, "never written"),
    "a read is not declared": (a_read_is_not_declared, "without saying so"),
    "a result is not declared": (a_result_is_not_declared, "never written"),
    "a result is forgotten": (a_result_is_forgotten, "output"),
    "a result lies in the arena": (a_result_lies_in_the_arena, "output"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_plans_are_caught(name: str) -> None:
    damage, message = DAMAGE[name]
    made = planned("chain")
    verify_plan(made)
    damage(made)
    with pytest.raises(VerifyError, match=message):
        verify_plan(made)


def an_input_has_moved(made: Plan) -> None:
    made.places[made.graph.inputs[1]] = Place("arena", 0, nbytes_of(made.graph.inputs[1]))


def inputs_have_changed_places(made: Plan) -> None:
    x, y = made.graph.inputs
    made.places[x], made.places[y] = made.places[y], made.places[x]


def an_input_is_not_free_after_all(made: Plan) -> None:
    made.free.clear()


def a_result_lies_on_an_input_that_is_read(made: Plan) -> None:
    made.places[stored(made, "output")] = made.places[made.graph.inputs[1]]


DAMAGED_INPUTS: dict[str, tuple[str, Callable[[Plan], None], str]] = {
    "an input has moved": ("overwritten", an_input_has_moved, "not where the caller put it|never written|free"),
    "inputs have changed places": ("carried", inputs_have_changed_places, "only|overwritten|overwrites"),
    "inputs of a plain program have changed places": ("chain", inputs_have_changed_places, "caller put it"),
    "an input is not free after all": ("overwritten", an_input_is_not_free_after_all, "not free|over an input"),
    "a carry is not free after all": ("carried", an_input_is_not_free_after_all, "not free|over an input"),
    "a result lies on an input": ("chain", a_result_lies_on_an_input_that_is_read, "over an input"),
}


@pytest.mark.parametrize("name", DAMAGED_INPUTS)
def test_damaged_inputs_are_caught(name: str) -> None:
    program, damage, message = DAMAGED_INPUTS[name]
    made = planned(program)
    damage(made)
    with pytest.raises(VerifyError, match=message):
        verify_plan(made)


def test_two_results_may_not_share_an_output() -> None:
    made = planned("returned_and_read")
    first, second = made.outputs
    made.places[second] = made.places[first]
    with pytest.raises(VerifyError):
        verify_plan(made)


def test_a_value_must_fit_the_output_that_it_lies_in() -> None:
    build = graph(lambda x, y: [bind(Sum((1,)), product(x, y)), product(x, y)], SQUARE, SQUARE)
    made = plan(build, CPU)
    small, large = sorted(made.outputs, key=nbytes_of)
    made.places[large] = made.places[small]
    with pytest.raises(VerifyError, match="fit"):
        verify_plan(made)


def test_a_temporary_must_lie_in_the_arena() -> None:
    made = planned("long_row")
    step = next(i for i, offsets in enumerate(made.temporaries) if offsets)
    made.temporaries[step][0] = made.arena
    with pytest.raises(VerifyError, match="outside the arena"):
        verify_plan(made)


@pytest.mark.parametrize("shape", [(2, 2), (3, 5)])
def test_a_softmax_may_take_the_place_of_its_exponentials(shape: tuple[int, int]) -> None:
    """The pass that divides reads each of them once, when all sums of the columns are known."""
    made = plan(graph_of(lambda x: mx.logsumexp(mx.softmax(x, axis=0)), mx.full(shape, 0.5)).graph, CPU)
    verify_plan(made)
    assert "divide takes the place of exp" in made.reuse


def test_rows_of_one_element_are_not_reduced() -> None:
    made = plan(graph_of(lambda x: mx.logsumexp(mx.softmax(x, axis=0)), mx.array([[0.5]])).graph, CPU)
    verify_plan(made)
    (item,) = made.items
    assert not any(isinstance(node.op, Reduction) for node in item.group.nodes)
