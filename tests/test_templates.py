"""Symbolic plans: a program filled in for a new size is the one that planning that size would give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
import pytest

import weft.core as mx
from tests.test_shapeless import ONE_TRACE, bits, loss, sample
from weft.codegen.launch import Launch
from weft.passes import families
from weft.passes import template as module
from weft.passes.executable import launches_of
from weft.passes.memory import ALIGNMENT, Packing
from weft.passes.pipeline import compile_graph
from weft.passes.template import Sized, Template
from weft.passes.verify import verify_plan
from weft.runtime import program as programs
from weft.runtime.threads import MAX_THREADS
from weft.targets import CPU
from weft.targets.cpu.matmul.gemm import Cut
from weft.transforms.variant import ShapelessVariant

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def no_plans_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other functions have left for programs of the same form is not counted here."""
    monkeypatch.setattr(families, "FAMILIES", {})


def normal(*shape: int) -> mx.array:
    return mx.array(RNG.standard_normal(shape).astype(np.float32))


def variants(f: Any) -> Iterator[ShapelessVariant]:
    return (v for entry in f._variants.values() for v in entry if isinstance(v, ShapelessVariant))


def templates(f: Any) -> list[Template]:
    return [template for variant in variants(f) for template in variant.templates.made]


def table(program: Any, threads: int) -> list[int]:
    """All of a program, but for the address that it lies at."""
    program._lay_out(threads)
    return list(program._tables[-1])


def check_programs(f: Any) -> int:
    """Every program that was filled in is what its plan gives when it is assembled, and its plan is right. Returns how
    many there are."""
    count = 0
    for variant in variants(f):
        for recipe in variant.recipes.values():
            made = recipe.executable
            if not isinstance(made, Sized):
                continue
            count += 1
            verify_plan(made.plan)
            same = CPU.assemble(made.plan)
            assert (made.sizes, made.kinds, made.results, made.simple) == (
                same.sizes, same.kinds, same.results, same.simple
            )  # fmt: skip
            assert [c.words for c in made.constants if not hasattr(c, "scalar")] == [
                c.words for c in same.constants if not hasattr(c, "scalar")
            ]
            if same.program is None:
                assert made.program is None
                continue
            assert made.program is not None
            assert made.program.workspace_bytes == same.program.workspace_bytes
            for threads in (1, 3, MAX_THREADS):
                assert table(made.program, threads) == table(same.program, threads)
    return count


_TILES = re.compile(rf"(gemm_\w+?)_(\d+x\d+x\d+)(?:_(?:{'|'.join(get_args(Cut))}))?(?=_|$)")


_KNOWN = re.compile(r"(dot_\w+?_\d+x\d+x\d+(?:_held\d+of\d+)?)(?:_turns)?(?:_whole|_part)?(?:_near)?(?:_out)?(?=_|$)")


def general(key: str) -> str:
    """The kernel of which this is one: a product of known columns has some of the tiles that one of any has, or tiles
    that fit them, and a skinny one leaves out the cases that it does not have."""
    return _KNOWN.sub(r"\1", _TILES.sub(r"\1", key))


def numbers_of(launch: Launch, other: Launch) -> tuple[Any, ...]:
    """What a launch is to have in common with another one of the same kernel, which may have tiles that fit."""
    same_tiles = _TILES.findall(launch.source.key) == _TILES.findall(other.source.key)
    return (launch.words, launch.grain, launch.scratch) if same_tiles else ()


def differences(f: Any) -> list[str]:
    """Where the program of a size differs from the one that planning that size alone gives."""
    found = []
    for variant in variants(f):
        for sizes, recipe in variant.recipes.items():
            alone = compile_graph(variant._concrete(sizes), CPU)
            ours, theirs = launches_of(recipe.executable.plan), launches_of(alone.plan)
            if [general(x.source.key) for x in ours] != [general(y.source.key) for y in theirs]:
                found.append(f"{sizes}: other kernels")
            elif any(numbers_of(x, y) != numbers_of(y, x) for x, y in zip(ours, theirs, strict=True)):
                found.append(f"{sizes}: other words")
            elif recipe.executable.plan.arena != alone.plan.arena:
                found.append(f"{sizes}: another arena")
    return found


def block(x: mx.array, wq: mx.array, wk: mx.array, wv: mx.array, wo: mx.array, w1: mx.array, w2: mx.array) -> mx.array:
    batch, length, width = x.shape

    def norm(y: mx.array) -> mx.array:
        return y * mx.rsqrt(mx.mean(y * y, axis=-1, keepdims=True) + 1e-5)

    def heads(y: mx.array) -> mx.array:
        return y.reshape(batch, length, 2, width // 2).transpose(0, 2, 1, 3)

    q, k, v = (heads(norm(x) @ w) for w in (wq, wk, wv))
    scores = mx.where(mx.tril(mx.ones((length, length))) == 0, -1e9, q @ k.transpose(0, 1, 3, 2))
    mixed = (mx.softmax(scores, axis=-1) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    x = x + mixed @ wo
    u = norm(x) @ w1
    return x + (u * mx.sigmoid(u)) @ w2


Arguments = Callable[[int], Sequence[mx.array]]

WEIGHTS = [normal(16, 16) for _ in range(4)] + [normal(16, 40), normal(40, 16)]

# name: (function, arguments of size n, sizes that one template serves after the first)
SERVED: dict[str, tuple[Callable[..., Any], Arguments, Sequence[int]]] = {
    "map": (lambda x: mx.exp(x) * 2 + x, lambda n: [normal(n, 7)], range(3, 40)),
    "long map": (lambda x: mx.sin(x), lambda n: [normal(n)], [20000, 20001, 70000, 65536]),
    "rows": (lambda x: mx.softmax(x, axis=-1), lambda n: [normal(5, n)], range(3, 80, 5)),
    "columns": (lambda x: x.sum(axis=0), lambda n: [normal(n, 100)], range(65, 143, 7)),
    "columns of few rows": (lambda x: x.sum(axis=0), lambda n: [normal(n, 100)], range(2, 64, 7)),
    "few columns": (lambda x: x.sum(axis=0), lambda n: [normal(n, 33)], range(64, 142, 7)),
    "few columns, few rows": (lambda x: x.sum(axis=0), lambda n: [normal(n, 33)], range(2, 64, 7)),
    "two stages": (lambda x: x.sum(), lambda n: [normal(n)], [40000, 40001, 90000, 32768]),
    "turned": (lambda x: x.T + 1, lambda n: [normal(n, 40)], range(16, 60)),
    "product": (lambda x, w: x @ w, lambda n: [normal(n, 24), normal(24, 20)], range(9, 64, 5)),
    "skinny": (lambda x, w: x @ w, lambda n: [normal(1, n), normal(n, 20)], range(64, 600, 50)),
    "slices": (lambda x: x[:, 1:] * 2 + x[:, :-1], lambda n: [normal(3, n)], range(3, 50)),
    "reversed": (lambda x: mx.cumsum(x[::-1], axis=0), lambda n: [normal(n, 3)], range(16, 50)),
    "joined": (lambda x, y: mx.concatenate([x, y, x], 1), lambda n: [normal(4, n), normal(4, n + 1)], range(2, 30)),
    "gathered": (lambda x, i: x[i], lambda n: [normal(n, 6), mx.array([0, 1, 1])], range(2, 40)),
    "sizes as values": (lambda x: x.sum() / x.shape[0] + mx.arange(x.shape[0]), lambda n: [normal(n)], range(17, 60)),
    "several": (
        lambda x: (x, x.T, x[1:], mx.tanh(x) @ x.T, mx.tanh(x).T),
        lambda n: [normal(n, 20)],
        range(17, 60),
    ),
    "block": (block, lambda n: [normal(2, n, 16), *WEIGHTS], range(16, 32)),
    "gradient": (
        mx.grad(lambda x, w: mx.sum(mx.softmax(x @ w, axis=-1)[:, 1:] ** 2), (0, 1)),
        lambda n: [normal(n, 24), normal(24, 20)],
        range(16, 64, 3),
    ),
}


def assert_one_template_serves(fun: Any, arguments: Any, sizes: Sequence[int]) -> None:
    f = mx.compile(fun, shapeless=True)
    for n in sizes:
        given = arguments(n)
        assert bits(f(*given)) == bits(fun(*given)), n
    assert f.traces == 1
    assert len(templates(f)) == 1, [t.env.guards for t in templates(f)]
    assert check_programs(f) == len(set(sizes)) - 1
    assert differences(f) == []


@pytest.mark.parametrize("name", SERVED)
def test_one_template_serves_ordinary_sizes(name: str) -> None:
    assert_one_template_serves(*SERVED[name])


# name: (function, arguments of size n, sizes just below and above the number at which plans change)
THRESHOLDS: dict[str, tuple[Callable[..., Any], Arguments, tuple[int, int]]] = {
    "a map is cut into blocks": (lambda x: x + 1, lambda n: [normal(n)], (16384, 16385)),
    "a row is reduced in two stages": (lambda x: x.sum(), lambda n: [normal(n)], (32767, 32768)),
    "a row leaves the caches": (lambda x: x - x.max(axis=1, keepdims=True), lambda n: [normal(2, n)], (65536, 65537)),
    "a map is tiled": (lambda x, y: x.T * y, lambda n: [normal(n, 40), normal(40, n)], (15, 16)),
    "a product is skinny": (lambda x, w: x @ w, lambda n: [normal(n, 200), normal(200, 30)], (8, 9)),
    "a product is skinny by its length": (lambda x, w: x @ w, lambda n: [normal(3, n), normal(n, 30)], (127, 128)),
    "a vector is skinny by its length": (lambda x, w: x @ w, lambda n: [normal(1, n), normal(n, 30)], (63, 64)),
    "a result is streamed": (lambda x: x + 1, lambda n: [normal(n)], ((1 << 21) - 1, 1 << 21)),
    "a copy is turned in two steps": (
        lambda x: mx.contiguous(mx.transpose(x, (2, 1, 0))), lambda n: [normal(5, n, 16)], (51, 52),
    ),
    "a column has more than few rows": (lambda x: x.sum(axis=0), lambda n: [normal(n, 100)], (64, 65)),
    "a strip of columns is full": (lambda x: x.sum(axis=0), lambda n: [normal(3, n)], (256, 257)),
}  # fmt: skip


@pytest.mark.parametrize("name", THRESHOLDS)
def test_a_violated_guard_makes_another_template(name: str) -> None:
    fun, arguments, (below, above) = THRESHOLDS[name]
    f = mx.compile(fun, shapeless=True)
    for n in (below - 1, below, above, below - 2, above + 1):
        given = arguments(n)
        assert bits(f(*given)) == bits(fun(*given)), n
    assert f.traces == 1
    assert len(templates(f)) == 2
    assert check_programs(f) == 4
    assert differences(f) == []
    (variant,) = variants(f)
    low, high = (next(s for s in variant.recipes if n in s) for n in (below, above))
    assert sorted((t.fits(*low), t.fits(*high)) for t in templates(f)) == [(False, True), (True, False)]


@pytest.mark.parametrize("name", ONE_TRACE)
@pytest.mark.parametrize("transform", [lambda fun: fun, lambda fun: mx.grad(loss(fun))], ids=["value", "gradient"])
def test_filled_programs_are_assembled_plans(name: str, transform: Any) -> None:
    """Everything that shapeless functions are tried on, at sizes on both sides of what lowering looks at."""
    fun = transform(ONE_TRACE[name])
    f = mx.compile(fun, shapeless=True)
    for shape in [(4, 6), (9, 5), (10, 6), (20, 21), (5, 33), (6, 34), (40, 39)]:
        assert bits(f(sample(*shape))) == bits(fun(sample(*shape))), shape
    check_programs(f)


def test_planning_leaves_the_guards_of_the_trace_alone() -> None:
    f = mx.compile(lambda x: x.T @ x + 1, shapeless=True)
    f(sample(20, 20))
    (variant,) = variants(f)
    before = [str(guard) for guard in variant._sizes.env.guards]
    for n in (21, 3, 300):
        f(sample(n, n))
    assert templates(f)
    assert [str(guard) for guard in variant._sizes.env.guards] == before
    assert f.traces == 1


def test_sizes_of_0_and_1_are_planned_for_themselves() -> None:
    f = mx.compile(lambda x: x[2:].sum(axis=0), shapeless=True)
    for n in (7, 8, 3, 2, 9):
        assert bits(f(sample(n, 4))) == bits(sample(n, 4)[2:].sum(axis=0))
    (variant,) = variants(f)
    kinds = {sizes[0]: isinstance(recipe.executable, Sized) for sizes, recipe in variant.recipes.items()}
    assert kinds == {7: False, 8: True, 3: False, 2: False, 9: True}


def test_what_reads_numbers_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MISSES", 2)
    real = module.plan

    def pinned(graph: Any, target: Any, **options: Any) -> Any:
        int(graph.inputs[0].shape[0])
        return real(graph, target, **options)

    monkeypatch.setattr(module, "plan", pinned)
    f = mx.compile(lambda x: x * 2, shapeless=True)
    for n in range(5, 12):
        assert bits(f(sample(n))) == bits(sample(n) * 2)
    assert [[guard.text for guard in t.env.guards] for t in templates(f)] == [["n0 == 7"], ["n0 == 6"]]


def scanned(x: mx.array) -> Any:
    return mx.scan(lambda carry, row: (carry * 0.5 + row, mx.tanh(carry)), mx.zeros(x.shape[1:]), x)


def recurrent(x: mx.array, w: mx.array) -> Any:
    return mx.scan(lambda carry, row: (mx.tanh(carry @ w + row), carry.sum(axis=-1)), x[0] * 1.0, x)


def converging(x: mx.array) -> Any:
    return mx.while_loop(lambda y: mx.max(y) > 0.01, lambda y: mx.softmax(y, axis=0)[::-1] * mx.max(y) * 0.5, x * 1.0)


def branching(x: mx.array) -> Any:
    return mx.cond(x.sum() > 0, lambda y: mx.cumsum(y, axis=0) @ y.T, lambda y: y @ mx.exp(y).T + 1, x)


def nested(x: mx.array) -> Any:
    def outer(i: Any, y: mx.array) -> mx.array:
        return mx.fori_loop(0, 2, lambda j, z: mx.cumsum(z, axis=0) * 0.1 + z.T.sum(), y)  # type: ignore[no-any-return]

    return mx.fori_loop(0, 3, outer, x * 1.0)


LOOPS: dict[str, tuple[Callable[..., Any], Arguments, Sequence[int]]] = {
    "scan": (scanned, lambda n: [normal(n, 20)], range(16, 60, 3)),
    "longer rows": (scanned, lambda n: [normal(7, n)], range(64, 200, 9)),
    "products": (recurrent, lambda n: [normal(5, n, 16), normal(16, 16)], range(9, 60, 4)),
    "while": (converging, lambda n: [normal(n, 20)], range(17, 60, 5)),
    "branches": (branching, lambda n: [normal(n, 20)], range(17, 32)),
    "size in the body": (
        lambda x: mx.scan(lambda c, row: (c + row * x.shape[1], row), mx.zeros(x.shape[1:]), x),
        lambda n: [normal(n, 20)],
        range(16, 60, 3),
    ),
    "nested": (nested, lambda n: [normal(n, 20)], range(17, 60, 5)),
    "gradient": (mx.grad(lambda x: mx.sum(scanned(x)[1])), lambda n: [normal(n, 20)], range(16, 60, 3)),
    "gradient of products": (
        mx.grad(lambda x, w: mx.sum(recurrent(x, w)[0]), (0, 1)),
        lambda n: [normal(5, n, 16), normal(16, 16)],
        range(16, 52, 4),  # larger ones are turned in two steps
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_bodies_are_planned_with_the_rest(name: str) -> None:
    assert_one_template_serves(*LOOPS[name])


def test_loops_of_unknown_length_are_planned_for_numbers() -> None:
    """Their plans grow."""
    fun = mx.grad(lambda x: mx.sum(mx.while_loop(lambda y: mx.max(y) < 9, lambda y: y * y + 1, x * 1.0)))
    f = mx.compile(fun, shapeless=True)
    for n in range(5, 9):
        assert bits(f(sample(n, 4))) == bits(fun(sample(n, 4)))
    assert templates(f) == []


def test_what_no_memory_can_hold_is_an_error() -> None:
    def fun(x: mx.array) -> mx.array:
        return mx.sum(x[:, None, None, None] * x[:, None, None] * x[:, None] * x)

    f = mx.compile(fun, shapeless=True)
    for n in (3, 4, 5):
        assert bits(f(sample(n))) == bits(fun(sample(n)))
    for n in (1 << 16, 1 << 20):
        with pytest.raises(ValueError, match="more elements than memory has addresses"):
            f(sample(n))
    assert bits(f(sample(6))) == bits(fun(sample(6)))


def test_threads_may_come_later(team: Callable[[int], None]) -> None:
    """A program that was filled in for one thread is laid out again for more."""
    f = mx.compile(lambda x: mx.softmax(mx.sin(x), axis=-1), shapeless=True)
    for n in (300, 310):
        f(normal(n, 100))
    (variant,) = variants(f)
    program = list(variant.recipes.values())[1].executable.program
    assert program is not None
    team(2)
    x = normal(310, 100)
    assert bits(f(x)) == bits(mx.softmax(mx.sin(x), axis=-1))
    assert program.length == program.only(0, 1).length == 1


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_packing_keeps_what_lives_together_apart(count: int) -> None:
    lives = [(int(a), int(a + b)) for a, b in zip(RNG.integers(0, 8, count), RNG.integers(0, 5, count), strict=True)]
    packing = Packing(lives)
    for _ in range(10):
        sizes = [int(n) for n in RNG.integers(0, 1000, count)]
        offsets, whole = packing.offsets(sizes)
        for i, (first, last) in enumerate(lives):
            assert offsets[i] % ALIGNMENT == 0
            assert 0 <= offsets[i] <= whole - sizes[i]
            for j in range(i):
                if lives[j][0] <= last and first <= lives[j][1]:
                    assert offsets[j] + sizes[j] <= offsets[i] or offsets[i] + sizes[i] <= offsets[j]


@pytest.mark.parametrize("many", [0, 1 << 30])
def test_numbers_are_written_at_once_or_one_by_one(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MANY_NUMBERS", many)
    f = mx.compile(lambda x: mx.softmax(mx.sort(x @ x.T, axis=0), axis=-1) @ mx.cumsum(x, axis=0), shapeless=True)
    for n in (5, 9, 33, 34):
        f(normal(n, 7))
    assert check_programs(f) == 3
    assert differences(f) == []
