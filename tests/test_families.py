"""Programs of one form and many sizes: planned once, and what is filled in for a size is what planning that size gives,
to the bit and to the word."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import weft.core as mx
from tests import contract
from tests.test_fusion_property import Program, at_once, compiled, programs, same
from tests.test_templates import general, numbers_of, table
from weft import evaluate, tree
from weft.dtypes import from_numpy
from weft.graph.dims import DimEnv
from weft.graph.node import Graph, Node, TupleType, kind_of
from weft.llvm import engine
from weft.passes import families
from weft.passes.executable import launches_of
from weft.passes.families import PATIENCE, Family, constants_of, family_of, structure_of
from weft.passes.growing import holds_tapes
from weft.passes.pipeline import compile_graph
from weft.passes.template import Sized, Template, is_general
from weft.primitives.base import DATA, GetResult, Parameter, bind
from weft.primitives.elementwise import Add
from weft.primitives.filling import with_sizes, without_sizes
from weft.primitives.views import Broadcast, Slice
from weft.runtime.threads import MAX_THREADS
from weft.targets import CPU

NEVER = 1 << 60


def normal(*shape: int, seed: int = 0) -> mx.array:
    x = mx.array(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))
    mx.eval(x)
    return x


def bits(result: Any) -> list[bytes]:
    return [contract.values_of(x).tobytes() for x in tree.leaves(result)]


class Seen:
    """What was made while a test ran: programs that were filled in, and graphs that were planned for themselves."""

    def __init__(self) -> None:
        self.filled: list[Sized] = []
        self.planned: list[Graph] = []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """A world without programs, and who looks at those that are made. Every one that is filled in is compared with the
    one that its plan gives."""
    found = Seen()
    real, planned = Family.executable, families.compile_graph

    def executable(self: Family, sizes: Any, constants: Any = None) -> Sized | None:
        made = real(self, sizes, constants)
        if made is not None:
            found.filled.append(made)
        return made

    def compile_one(graph: Graph, target: Any, layouts: Any = None, donated: Any = ()) -> Any:
        found.planned.append(graph)
        return planned(graph, target, layouts, donated)

    monkeypatch.setattr(Family, "executable", executable)
    monkeypatch.setattr(families, "compile_graph", compile_one)
    monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})
    monkeypatch.setattr(families, "FAMILIES", {})
    yield found
    for made in found.filled:
        assert_filled_well(made)


def assert_filled_well(made: Sized) -> None:
    """A program that was filled in is the one that its plan gives when it is assembled."""
    alone = CPU.assemble(made.plan)
    assert (made.sizes, made.kinds, made.results, made.simple, made.largest, made.spent, made.adopted) == (
        alone.sizes, alone.kinds, alone.results, alone.simple, alone.largest, alone.spent, alone.adopted,
    )  # fmt: skip
    if alone.program is None or made.program is None:
        assert made.program is alone.program
        return
    assert made.program.workspace_bytes == alone.program.workspace_bytes
    for threads in (1, 3, MAX_THREADS):
        assert table(made.program, threads) == table(alone.program, threads)


def for_themselves(work: Callable[[], Any]) -> Any:
    """What `work` gives where every program is planned for its own sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families, "PATIENCE", NEVER)
        patch.setattr(families, "compile_graph", compile_graph)
        patch.setattr(families, "FAMILIES", {})
        patch.setattr(evaluate.programs, "PROGRAMS", {})
        return work()


def made_of(args: Sequence[Any]) -> Sequence[Any]:
    """Arguments with values."""
    mx.eval([x for x in args if isinstance(x, mx.array)])
    return args


def other_than_planned(made: Any, graph: Graph, layouts: Any) -> str | None:
    """Where a program differs from the one that planning its graph gives."""
    alone = compile_graph(graph, CPU, layouts)
    ours, theirs = launches_of(made.plan), launches_of(alone.plan)
    if [general(x.source.key) for x in ours] != [general(y.source.key) for y in theirs]:
        return "other kernels"
    # How many tasks a thread takes at once says nothing where there are known to be few.
    ours = [x if y.grain else replace(x, grain=0) for x, y in zip(ours, theirs, strict=True)]
    if any(numbers_of(x, y) != numbers_of(y, x) for x, y in zip(ours, theirs, strict=True)):
        return "other words"
    return "another arena" if made.plan.arena != alone.plan.arena else None


# ---- what grows ----

WEIGHTS = [normal(16, 16, seed=i) for i in range(4)]


def attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return mx.softmax(q @ k.transpose(0, 2, 1) * 0.25, axis=-1) @ v


def decoded(x: mx.array, keys: mx.array, values: mx.array) -> Any:
    """One step of a decoder: caches one row longer than before."""
    q, k, v = ((x @ w).reshape(1, 2, 8).transpose(1, 0, 2) for w in WEIGHTS[:3])
    keys, values = mx.concatenate([keys, k], axis=1), mx.concatenate([values, v], axis=1)
    return attention(q, keys, values).transpose(1, 0, 2).reshape(1, 16) @ WEIGHTS[3] + x, keys, values


def decoded_in_place(x: mx.array, keys: mx.array, values: mx.array, n: int) -> Any:
    """The same over caches that have room, of which n rows are in use."""
    q, k, v = ((x @ w).reshape(1, 2, 8).transpose(1, 0, 2) for w in WEIGHTS[:3])
    keys[:, n : n + 1], values[:, n : n + 1] = k, v
    return attention(q, keys[:, : n + 1], values[:, : n + 1]) + 0.0, keys, values


def rolled(x: mx.array) -> Any:
    return mx.scan(lambda carry, row: (carry * 0.5 + row, mx.tanh(carry)), mx.zeros(x.shape[1:]), x)


def branched(x: mx.array) -> Any:
    return mx.cond(mx.sum(x) > 0, lambda y: mx.cumsum(y, axis=0), lambda y: mx.exp(y) + 1.0, x)


GROWING: dict[str, tuple[Callable[..., Any], Callable[[int], Sequence[Any]], Sequence[int]]] = {
    "a cache": (lambda c, x: mx.concatenate([c, x]), lambda n: [normal(n, 6), normal(1, 6)], range(2, 40)),
    "a cache and its mean": (
        lambda c, x: [d := mx.concatenate([c, x]), d.mean(axis=0)],
        lambda n: [normal(n, 6), normal(1, 6)],
        range(2, 40),
    ),
    "attention": (decoded, lambda n: [normal(1, 16), normal(2, n, 8), normal(2, n, 8, seed=1)], range(20, 60)),
    "slices": (lambda c: mx.softmax(c * 2.0, axis=0), lambda n: [normal(50, 6)[:n]], range(3, 40)),
    "slices of what is computed": (lambda c, n: mx.exp(c)[2:n] * 2.0, lambda n: [normal(50, 6), n], range(5, 40)),
    "a window that moves": (
        lambda c, n: mx.cumsum(mx.exp(c)[n : n + 3], axis=0),
        lambda n: [normal(50, 6), n],
        range(2, 40),
    ),
    "a row written where it belongs": (
        lambda c, x, n: mx.slice_update(mx.exp(c), x, mx.array([n, 0]), [0, 1]) * 2.0,
        lambda n: [normal(n, 6), normal(1, 6), n - 2],
        range(5, 40),
    ),
    "padding": (
        lambda x: mx.pad(mx.exp(x), [(0, 64 - x.shape[0]), (0, 0)]).sum(axis=1),
        lambda n: [normal(n, 6)],
        range(17, 40),
    ),
    "mask": (
        lambda x: mx.where(mx.arange(x.shape[0])[:, None] < 3, x, -1e9) + mx.ones((x.shape[0], 1)),
        lambda n: [normal(n, 6)],
        range(17, 40),
    ),
    "columns": (lambda x: x.sum(axis=0) / x.shape[0], lambda n: [normal(n, 33)], range(2, 60, 3)),
    "turned": (lambda x: x.T + 1.0, lambda n: [normal(n, 40)], range(16, 60)),
    "lying apart": (lambda x: mx.exp(x) @ x.T, lambda n: [normal(2 * n, 20)[::2]], range(9, 32)),
    "reshaped": (lambda x: (x * 2.0).reshape(-1, 4).max(axis=1), lambda n: [normal(n, 8)], range(3, 32)),
    "sorted": (lambda x: mx.sort(x, axis=0)[::-1] + 1.0, lambda n: [normal(n, 3)], range(17, 32)),
    "rows by number": (lambda x, i: x[i] * 2.0, lambda n: [normal(n, 6), mx.array([0, 1, 1])], range(2, 40)),
    "a loop over rows": (rolled, lambda n: [normal(n, 20)], range(16, 60, 3)),
    "a branch": (branched, lambda n: [normal(n, 5)], range(16, 60, 3)),
    "a gradient": (
        mx.grad(lambda x, w: mx.sum(mx.softmax(x @ w, axis=-1)[:, 1:] ** 2), (0, 1)),
        lambda n: [normal(n, 24), normal(24, 20)],
        range(16, 64, 3),
    ),
}


@pytest.mark.parametrize("name", GROWING)
def test_one_plan_serves_what_grows(name: str, seen: Seen) -> None:
    """Bits are those of programs that are planned for themselves, and so are kernels, words and places."""
    fun, arguments, sizes = GROWING[name]
    for n in sizes:
        args = for_themselves(lambda n=n: made_of(arguments(n)))
        result = fun(*args)
        graph, layouts = contract.closed(*tree.leaves(result))
        before = len(seen.filled)
        mx.eval(result)
        for made in seen.filled[before:]:
            assert other_than_planned(made, graph, layouts) is None, n
        assert bits(result) == for_themselves(lambda args=args: bits(fun(*args))), n
    (family,) = families.FAMILIES.values()
    assert len(family.made) == 1, [made.template.env.guards for made in family.made]
    assert len(seen.planned) == PATIENCE - 1
    assert len(seen.filled) == len(sizes) - PATIENCE + 1


def test_a_decoder_that_writes_into_its_caches(seen: Seen) -> None:
    def run() -> list[bytes]:
        keys, values = mx.zeros((2, 64, 8)), mx.zeros((2, 64, 8))
        found = []
        for n in range(20, 50):
            y, keys, values = decoded_in_place(normal(1, 16, seed=n), keys, values, n)
            mx.eval(y, keys, values)
            found.append(contract.values_of(y).tobytes())
        return found

    assert run() == for_themselves(run)
    assert len(seen.planned) < 12
    assert len(seen.filled) > 20


@pytest.mark.parametrize("name", ["a cache", "attention", "a loop over rows", "a gradient"])
def test_a_compiled_function_is_traced_for_each_size_and_planned_once(name: str, seen: Seen) -> None:
    fun, arguments, sizes = GROWING[name]
    compiled = mx.compile(fun)
    with pytest.warns(UserWarning, match="keeps retracing") if len(sizes) > 31 else contextlib.nullcontext():
        for n in sizes:
            args = made_of(arguments(n))
            assert bits(compiled(*args)) == for_themselves(lambda args=args: bits(fun(*args))), n
    assert compiled.traces == len(sizes)
    # A constant that is remembered from earlier calls is older than the arguments, one that is made anew is younger:
    # two orders of the nodes, so there may be two families, by what other tests have called before.
    assert len(seen.planned) in (PATIENCE - 1, 2 * (PATIENCE - 1))
    assert len(seen.filled) == len(sizes) - len(seen.planned)


def test_a_compiled_function_overwrites_what_it_may_at_each_size(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.overwriting, "LEAST_DONATED", 0)
    state = {"x": mx.zeros((1,))}

    def step(y: mx.array) -> mx.array:
        state["x"] = mx.tanh(state["x"] * 0.5 + y)
        return y * 2.0

    compiled = mx.compile(step, inputs=state, outputs=state)
    for n in range(5, 20):
        state["x"], expected = normal(n, 8), normal(n, 8)
        for i in range(2):
            y = normal(n, 8, seed=i)
            address = state["x"]._node.value.address
            compiled(y)
            expected = for_themselves(lambda x=expected, y=y: made_of([mx.tanh(x * 0.5 + y)])[0])
            assert bits(state["x"]) == bits(expected)
            assert state["x"]._node.value.address == address, n
    assert len(seen.planned) <= 3 * PATIENCE


def test_what_is_donated_is_overwritten_at_each_size(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.overwriting, "LEAST_DONATED", 0)
    for n in range(5, 15):
        x = normal(n, 8)
        expected = for_themselves(lambda x=x: bits(mx.tanh(x * 0.5 + 1.0)))
        address = x._node.value.address
        x = mx.tanh(x * 0.5 + 1.0)
        mx.eval(x)
        assert bits(x) == expected
        assert x._node.value.address == address, n
    assert any(made.spent for made in seen.filled)


# ---- no more work, no more memory ----


def test_no_kernel_is_compiled_for_another_size(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    fun, arguments, sizes = GROWING["attention"]
    compiled: list[int] = []
    real = engine._compile
    monkeypatch.setattr(engine, "_compile", lambda target, jobs: [compiled.append(n), real(target, jobs)][1])
    for n in sizes:
        mx.eval(fun(*arguments(n)))
    assert all(n < sizes[PATIENCE] for n in compiled)


def test_short_rows_are_put_together_in_registers_at_every_size(seen: Seen) -> None:
    """How long they are is part of such kernels, and so of each template."""
    for n in (2, 3, 4, 5, 7):
        x = np.arange(200 * n, dtype=np.int8).reshape(200, n)
        result = mx.array(x)[:, ::-1] + mx.array(x[:, :1])
        np.testing.assert_array_equal(np.array(result), x[:, ::-1] + x[:, :1])
    keys = [launch.source.key for made in seen.filled for launch in launches_of(made.plan)]
    assert keys
    assert all(f"often woven {n} {n} -1" in key for n, key in zip((4, 5, 7), keys, strict=True))


def test_programs_of_passing_sizes_are_not_kept(seen: Seen) -> None:
    fun, arguments, sizes = GROWING["attention"]
    kept = []
    for n in sizes:
        mx.eval(fun(*arguments(n)))
        kept.append(len(evaluate.programs.PROGRAMS))
    assert kept[-1] == kept[PATIENCE]
    assert all(len(family._recent) <= families.MOST_RECENT for family in families.FAMILIES.values())


def test_programs_of_sizes_that_come_again_are_kept(seen: Seen) -> None:
    fun, arguments, _ = GROWING["attention"]
    for _ in range(2):
        for n in range(20, 30):
            mx.eval(fun(*arguments(n)))
    count = len(seen.filled)
    for n in range(20, 30):
        mx.eval(fun(*arguments(n)))
    assert len(seen.filled) == count


def test_there_are_so_many_families_and_no_more(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MOST_FAMILIES", 4)
    x = normal(3, 3)
    for axis in (0, 1):
        for function in (mx.sum, mx.max, mx.min, mx.prod, mx.any):
            mx.eval(function(x, axis=axis))
            assert len(families.FAMILIES) <= 4


def test_long_programs_are_fewer_families(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MOST_PARTS", 200)
    x = normal(3, 3)
    for number in range(20):
        y = x
        for _ in range(number):
            y = mx.sin(y)
        mx.eval(y)
        assert sum(len(form) for form, _, _ in families.FAMILIES) <= 200
    assert 1 < len(families.FAMILIES) < 8


def test_templates_take_so_much_room_and_no_more(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not used for longest go, and are made again."""
    monkeypatch.setattr(families, "_USED", {})
    monkeypatch.setattr(families, "MOST_COMMANDS", 2)
    functions: list[Any] = [mx.sin, mx.cos, mx.tan, mx.exp]

    def templates() -> list[int]:
        return [len(family.made) for family in families.FAMILIES.values()]

    for function in functions:
        for n in range(5, 9):
            x = normal(n, 6)
            assert bits(function(x)) == for_themselves(lambda x=x, f=function: bits(f(x)))
    assert templates() == [0, 0, 1, 1]
    for n in range(9, 13):
        mx.eval(mx.tan(normal(n, 6)))
        mx.eval(mx.sin(normal(n, 6)))
    assert templates() == [1, 0, 1, 0]


# ---- what goes together ----


def symbols_of(seen: Seen) -> list[tuple[str, ...]]:
    return [made.template.env.symbols for family in families.FAMILIES.values() for made in family.made]


def test_sizes_that_go_together_are_one_symbol(seen: Seen) -> None:
    for n in range(5, 9):
        mx.eval(mx.exp(normal(n, n + 1)) @ normal(n + 1, 3 * n))
    assert symbols_of(seen) == [("n0",)]


def test_sizes_that_went_together_by_chance_are_told_apart(seen: Seen) -> None:
    shapes = [(5, 7), (6, 8), (7, 9), (7, 10), (20, 11), (12, 30), (9, 40)]
    for m, n in shapes:
        mx.eval(mx.exp(normal(m, n)).sum(axis=1))
    assert [len(names) for names in symbols_of(seen)] == [2, 1]
    assert len(seen.planned) == PATIENCE - 1


def test_sizes_that_multiply(seen: Seen) -> None:
    for m, n in [(5, 7), (6, 8), (7, 10), (9, 13), (11, 4), (3, 20)]:
        x = normal(m, n, 4)
        result = mx.exp(x).reshape(m * n, 4).sum(axis=0)
        mx.eval(result)
        assert bits(result) == for_themselves(lambda x=x, n=m * n: bits(mx.exp(x).reshape(n, 4).sum(axis=0)))
    assert len(seen.filled) == 4


def test_axes_are_no_sizes(seen: Seen) -> None:
    x = normal(4, 5, 6)
    for axis in (0, 1, 2):
        mx.eval(x.sum(axis=axis))
    assert len(families.FAMILIES) == 3


def test_sizes_below_two_are_planned_for_themselves(seen: Seen) -> None:
    for n in (9, 8, 7, 2, 1, 0, 3):
        x = normal(n, 4)
        assert bits(mx.exp(x).sum(axis=0)) == for_themselves(lambda x=x: bits(mx.exp(x).sum(axis=0))), n
    assert len(seen.planned) == PATIENCE - 1 + 2


def test_other_layouts_are_other_families(seen: Seen) -> None:
    for n in range(5, 9):
        x = normal(n, 6)
        for y in for_themselves(lambda x=x: made_of([x, x.T, x[:, ::2], x[::-1]])):
            assert bits(mx.exp(y) + 1.0) == for_themselves(lambda y=y: bits(mx.exp(y) + 1.0))
    assert len(families.FAMILIES) == 4
    assert len(seen.filled) == 4 * 2


def test_numbers_are_those_of_the_call(seen: Seen) -> None:
    """Two constants that are one number here may be two there, whatever the sizes."""
    for n in range(4, 12):
        x, y = normal(n), normal(n, seed=1)
        a = mx.full((), n / 2)
        b = a if n % 2 else mx.full((), n / 3)
        values = [contract.values_of(z) for z in (x, y)]
        expected = values[0] * np.float32(n / 2) + values[1] * np.float32(n / 2 if n % 2 else n / 3)
        assert contract.same_bits(contract.values_of(a * x + b * y), expected), n
    assert seen.filled


def test_what_memory_cannot_hold_is_the_same_error(seen: Seen) -> None:
    def outer(x: mx.array) -> mx.array:
        return mx.sum(x[:, None, None, None] * x[:, None, None] * x[:, None] * x)

    for n in (3, 4, 5, 6):
        mx.eval(outer(normal(n)))
    assert seen.filled
    with pytest.raises(ValueError, match="more elements than memory has addresses"):
        mx.eval(outer(mx.zeros((1 << 16,)) + normal(1)))


# ---- forms and sizes ----


def test_primitives_are_put_together_as_they_were() -> None:
    for case in contract.all_cases((mx.float32, mx.int32)):
        form, sizes = without_sizes(case.op)
        assert hash(form) == hash(without_sizes(case.op)[0]), case
        assert with_sizes(case.op, iter(sizes)) is case.op, case


def test_what_a_primitive_holds_is_what_its_parameters_are_declared_to_be() -> None:
    assert without_sizes(Slice((0, 1), (2, 3), (1, 1)))[1] == (0, 1, 2, 3, 1, 1)
    assert without_sizes(Broadcast((2, 3), (1,)))[1] == (2, 3)
    assert without_sizes(Broadcast((2, 3), (1,)))[0] != without_sizes(Broadcast((2, 3), (0,)))[0]
    assert without_sizes(Broadcast((2, 3), (1,)))[0] == without_sizes(Broadcast((4, 5), (1,)))[0]
    assert without_sizes(Add()) == (Add(), ())


def test_symbols_of_a_trace_are_not_read() -> None:
    env = DimEnv()
    n = env.symbol("n", 5)
    assert family_of((DATA, kind_of((n, 3), mx.float32)), CPU) is None
    op = Slice((n, 0), (1, 3), (1, 1))
    assert without_sizes(op) == (op, ())
    assert env.guards == []


def with_symbols(case: contract.Case) -> tuple[Graph, Sized] | None:
    """The graph of one operation, and what is filled in for it from a template in which all sizes are symbols, equal
    ones the same; None if it has no sizes."""
    kinds = [kind_of(x.shape, from_numpy(x.dtype)) for x in case.operands()]
    inputs = [Node(Parameter(i), (), kind) for i, kind in enumerate(kinds)]
    whole = bind(case.op, *inputs)
    parts = len(whole.kind.parts) if isinstance(whole.kind, TupleType) else 0
    graph = Graph(inputs, [bind(GetResult(i), whole) for i in range(parts)] if parts else [whole])
    _, found = family_of(structure_of(graph.order(), graph.outputs, {}), CPU) or (None, ())
    env, symbols = DimEnv(), {}
    for n in found:
        if n > 1 and n not in symbols:
            symbols[n] = env.symbol(f"n{n}", n)
    if not symbols or holds_tapes(graph):
        return None
    general, strides = families._with_sizes(graph, {}, iter([symbols.get(n, n) for n in found]))
    if not is_general(general):
        return None
    template = Template(env, general, CPU, (), strides)
    assert template.fits(*symbols)
    return graph, template.executable([*symbols], constants_of(graph.order()))


def check_primitives(cases: Sequence[contract.Case]) -> None:
    found = {str(case): with_symbols(case) for case in cases}
    different = []
    for name, made in found.items():
        if made is not None:
            assert_filled_well(made[1])
            different += [name] if other_than_planned(made[1], made[0], {}) else []
    # Where sizes are known, axes of copies are merged, convolutions have tiles that fit their channels, and kernels of
    # the user's do not ask whether a row is whole. Norms have the length of a row as a size, not as a constant, and
    # rotations cut features off that may be all.
    known = ("cholesky-batch-", "convolve", "custom_kernel-totals-", "rms_norm", "layer_norm", "rotate")
    assert [name for name in different if not name.startswith(known)] == []
    assert sum(made is not None for made in found.values()) > len(cases) // 2


def test_every_operation_is_planned_with_symbols_as_with_numbers() -> None:
    first = {type(case.op): case for case in reversed(contract.all_cases((mx.float32,)))}
    check_primitives([*first.values()])


@pytest.mark.slow
def test_every_sample_of_every_operation_is_planned_with_symbols_as_with_numbers() -> None:
    check_primitives(contract.all_cases((mx.float32, mx.int32, mx.bool_, mx.complex64)))


# ---- threads ----


def test_threads_may_come_in_at_the_same_time(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while templates are forgotten."""
    monkeypatch.setattr(families, "MOST_COMMANDS", 3)
    fun, arguments, _ = GROWING["a cache and its mean"]
    function = mx.compile(lambda x: mx.softmax(x, axis=0) * 2.0)
    lengths = range(3, 28)
    given = {n: made_of(arguments(n)) for n in lengths}

    def work(n: int) -> list[bytes]:
        return [*bits(fun(*given[n])), *bits(function(given[n][0]))]

    expected = {n: for_themselves(lambda n=n: work(n)) for n in lengths}
    function = mx.compile(lambda x: mx.softmax(x, axis=0) * 2.0)
    found: list[dict[int, list[bytes]]] = []
    threads = [threading.Thread(target=lambda: found.append({n: work(n) for n in lengths})) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


# ---- random programs ----


def grown(program: Program, by: dict[int, int]) -> Program:
    """The same steps on inputs of other sizes."""
    inputs = [replace(i, shape=tuple([by.get(n, n) for n in i.shape])) for i in program.inputs]
    return replace(program, inputs=tuple(inputs))


CHANGING = [2, 3, 16, 17, 33, 40, 48]
"""Sizes of the inputs of random programs that become others."""
ODD_SIZES = [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65]
"""What sizes become: nothing, one, equal to others, and about the sizes of vectors and tiles."""

steady = st.dictionaries(st.sampled_from(CHANGING), st.integers(1, 5), min_size=1).map(
    lambda steps: [{n: n + t * step for n, step in steps.items()} for t in range(4)]
)
"""Sizes that grow, each by its step."""
wild = st.lists(
    st.dictionaries(st.sampled_from(CHANGING), st.sampled_from(ODD_SIZES), min_size=1), min_size=3, max_size=7
).map(lambda changes: [{}, *changes, {}])
"""Sizes that become anything, in any order, and what they were."""


ENOUGH = 5
"""Plans that are filled in, at least, for a comparison of random programs to mean something: how many it are depends on
which programs are drawn, and most have none of the sizes that change."""


def check_random_programs(changes: Any, run: Callable[[Program], list[np.ndarray]], count: int) -> None:
    @examples(max_examples=count)
    @given(programs(), changes)
    def check(program: Program, sizes: list[dict[int, int]]) -> None:
        families.FAMILIES.clear()
        evaluate.programs.PROGRAMS.clear()
        for by in sizes:
            other = grown(program, by)
            same(run(other), for_themselves(lambda other=other: run(other)), f"filled in, {by}")

    check()


def test_random_programs(seen: Seen) -> None:
    check_random_programs(steady, at_once, examples.default.max_examples)
    assert len(seen.filled) >= ENOUGH


def test_random_programs_of_any_sizes(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "PATIENCE", 2)
    check_random_programs(wild, at_once, examples.default.max_examples)
    assert len(seen.filled) >= ENOUGH


def test_random_compiled_programs(seen: Seen) -> None:
    check_random_programs(steady, compiled, examples.default.max_examples // 2)
    assert len(seen.filled) >= ENOUGH


def test_random_compiled_programs_of_any_sizes(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "PATIENCE", 2)
    check_random_programs(wild, compiled, examples.default.max_examples // 2)
    assert len(seen.filled) >= ENOUGH


@pytest.mark.parametrize("name", GROWING)
def test_what_grows_may_as_well_become_anything(name: str, seen: Seen) -> None:
    """Lengths in any order, at which kernels change: bits are those of programs that are planned for themselves."""
    fun, arguments, _ = GROWING[name]
    lengths = [*range(5, 12), *[n for n in ODD_SIZES if n > 4][::-1], *range(16, 50, 8)]
    if name in ("slices of what is computed", "a window that moves", "slices", "padding"):
        lengths = [n for n in lengths if n < 48]  # of 50 rows, or up to 64
    for n in lengths:
        args = for_themselves(lambda n=n: made_of(arguments(n)))
        assert bits(fun(*args)) == for_themselves(lambda args=args: bits(fun(*args))), n
    assert len(seen.filled) > len(lengths) // 3


# ---- errors ----


def factored(x: mx.array) -> mx.array:
    return mx.linalg.cholesky(x * 1.0, stream=mx.cpu).sum(axis=0)


def factored_in_a_loop(x: mx.array) -> mx.array:
    return mx.scan(lambda c, row: (c + mx.linalg.cholesky(row * 1.0, stream=mx.cpu), None), x[0] * 0.0, x)[0]


@pytest.mark.parametrize("function", [factored, factored_in_a_loop])
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_what_fails_says_the_same(function: Any, way: str, seen: Seen) -> None:
    """In words, and with the line that asked for it."""
    fun = mx.compile(function) if way == "compiled" else function

    def message(x: mx.array) -> str:
        with pytest.raises(mx.linalg.LinAlgError) as found:
            mx.eval(fun(x))
        return str(found.value)

    for n in range(5, 10):
        x = np.tile(np.eye(n, dtype=np.float32), (n, 1, 1))
        mx.eval(fun(mx.array(x)))
        x[n - 2, 2, 2] = -1.0
        bad = mx.array(x)
        assert message(bad) == for_themselves(lambda bad=bad: message(bad))
        assert str(n - 2) in message(bad)
    assert seen.filled


def test_sizes_that_are_equal_in_every_call_are_one_shape() -> None:
    """What has the size of a sum beside what is made in that size: the sum's terms change each in its own way."""

    def fun(x: mx.array, y: mx.array) -> mx.array:
        z = mx.concatenate([x, y])
        return mx.sum((z == mx.arange(z.shape[0], dtype=z.dtype)).astype(mx.int64))

    for n, m in ((5, 3), (6, 3), (5, 4), (7, 9), (4, 8), (3, 6), (9, 7)):
        x, y = mx.arange(n), mx.arange(n, n + m)
        assert mx.compile(fun)(x, y).item() == n + m
