"""Programs at random, meant to break the promise that a compiled function gives the bits of the plain one: arrays of
all dtypes and layouts, Python numbers and sizes, containers, loops, branches, derivatives and batches inside of each
other, errors that are raised and errors that are caught.

A program is data (`Program`), made from a number, and smaller ones are made from it (`smaller`), so that a failing one
comes down to the few steps that matter. `tests/test_adversary.py` runs them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import weft.core as mx
from tests import contract
from tests.loops import Native
from tests.test_fusion_property import STEPS as STRAIGHT
from tests.test_looping_generated import LOOPING, Leaf, conform
from weft import dtypes as dt
from weft import tree
from weft.array import array
from weft.dtypes import Dtype
from weft.primitives.elementwise import draw

LARGEST = 1 << 13
CAUGHT = (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError)
SIZES = ((4, 3), (7, 5), (2, 6), (5, 5), (1, 4), (3, 1), (17, 2), (0, 3), (6, 0), (33, 33), (64, 3), (3, 130), (257, 1),
         (1000, 2), (2, 2), (16, 16), (31, 4), (65, 64))  # fmt: skip
"""Of n and m."""
TURNS = 8
SHAPES = (("n",), ("n", "m"), ("m", "n"), (), ("n", 3), (3,), (2, "n"), ("n", 1), (1, "m"), (2, 3), ("n", "n"), ("m",))
FLOATS = (0.0, 1.0, -1.5, 0.5, 3.0, -0.0, 1e30, float("inf"), float("nan"), 2.0)
INTEGERS = (0, 1, 2, 3, -1, -3, 7, 300, 40000, 1 << 33)


@dataclass(frozen=True)
class Input:
    shape: tuple[Any, ...]
    dtype: Dtype
    layout: str
    special: bool


@dataclass(frozen=True)
class Step:
    """An operation by name, what it is applied to (counted from the newest value), a number that decides about the
    rest, and the steps of the function inside of it, if there is one."""

    name: str
    first: int
    second: int
    extra: int
    inner: tuple[Step, ...] = ()

    def __str__(self) -> str:
        inside = f" {{{'; '.join(map(str, self.inner))}}}" if self.inner else ""
        return f"{self.name}({self.first}, {self.second}, {self.extra}){inside}"


@dataclass(frozen=True)
class Program:
    seed: int
    inputs: tuple[Input, ...]
    numbers: tuple[float | int, ...]
    steps: tuple[Step, ...]
    kept: tuple[int, ...]
    form: int
    catches: bool
    around: str = "value"
    """What is done with the whole."""
    sizes: tuple[tuple[int, int], ...] = SIZES[:2]

    def __str__(self) -> str:
        given = ", ".join(f"{i.dtype.name}{list(i.shape)} {i.layout}{' special' * i.special}" for i in self.inputs)
        whole = f"{self.around}, form {self.form}, sizes {self.sizes}{', catches' * self.catches}"
        steps = "; ".join(map(str, self.steps))
        return f"Program({self.seed}, {whole}: {given}; {self.numbers}; {steps}; keeps {self.kept})"


# ---- making programs ----


def program(seed: int) -> Program:
    rng = random.Random(seed)
    inputs = tuple(
        Input(rng.choice(SHAPES), rng.choice(dt.ALL if rng.random() < 0.6 else (dt.float32, dt.float64)),
              rng.choice(list(contract.LAYOUTS)), rng.random() < 0.25)
        for _ in range(rng.randint(1, 3))
    )  # fmt: skip
    numbers = tuple(rng.choice(FLOATS if rng.random() < 0.5 else INTEGERS) for _ in range(rng.randint(0, 3)))
    steps = tuple(_step(rng, 2) for _ in range(rng.randint(2, 8)))
    kept = tuple(rng.randrange(12) for _ in range(rng.randint(1, 3)))
    sizes = (SIZES[0], *(rng.choice(SIZES) for _ in range(TURNS - 3)))
    sizes = (sizes[0], *sizes, sizes[0])
    around = rng.choice(list(AROUND)) if rng.random() < 0.4 else "value"
    return Program(seed, inputs, numbers, steps, kept, rng.randrange(6), rng.random() < 0.8, around, sizes)


def _step(rng: random.Random, depth: int) -> Step:
    kind = rng.random()
    table = STRAIGHT if kind < 0.35 else OWN if kind < 0.65 else LOOPING if kind < 0.75 or not depth else HOLDING
    inner: tuple[Step, ...] = ()
    if table is HOLDING:
        inner = tuple(_step(rng, depth - 1) for _ in range(rng.randint(1, 4)))
    number = lambda: rng.randrange(1 << 12)  # noqa: E731
    return Step(rng.choice(list(table)), int(rng.expovariate(0.7)), int(rng.expovariate(0.5)), number(), inner)


def smaller(given: Program) -> Iterator[Program]:
    """Programs with less in them."""
    for steps in _fewer(given.steps):
        yield replace(given, steps=steps)
    for i in range(len(given.inputs)):
        if len(given.inputs) > 1:
            yield replace(given, inputs=given.inputs[:i] + given.inputs[i + 1 :])
        old = given.inputs[i]
        simple = [replace(old, layout="contiguous"), replace(old, special=False), replace(old, dtype=dt.float32)]
        simple += [replace(old, shape=("n",))]
        for new in simple:
            if new != old:
                yield replace(given, inputs=(*given.inputs[:i], new, *given.inputs[i + 1 :]))
    for i in range(len(given.kept)):
        if len(given.kept) > 1:
            yield replace(given, kept=given.kept[:i] + given.kept[i + 1 :])
    for i in range(len(given.numbers)):
        yield replace(given, numbers=given.numbers[:i] + given.numbers[i + 1 :])
    if given.form:
        yield replace(given, form=0)
    if given.around != "value":
        yield replace(given, around="value")
    for i in range(len(given.sizes)):
        if len(given.sizes) > 1:
            yield replace(given, sizes=given.sizes[:i] + given.sizes[i + 1 :])


def _fewer(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    for i in range(len(steps)):
        yield steps[:i] + steps[i + 1 :]
    for i, step in enumerate(steps):
        if step.inner:
            yield steps[:i] + step.inner + steps[i + 1 :]
        for inner in _fewer(step.inner):
            yield (*steps[:i], replace(step, inner=inner), *steps[i + 1 :])
        for name in ("first", "second", "extra"):
            value = getattr(step, name)
            for less in {0, 1, value // 2, value - 1} - {value}:
                if 0 <= less < value:
                    yield (*steps[:i], replace(step, **{name: less}), *steps[i + 1 :])


def shrunk(given: Program, fails: Callable[[Program], bool], most: int = 400) -> Program:
    """A smaller program that fails too."""
    tried = 0
    while True:
        for other in smaller(given):
            tried += 1
            if tried > most:
                return given
            if fails(other):
                given = other
                break
        else:
            return given


# ---- arguments ----


def arguments(given: Program, turn: int) -> Any:
    """The arguments of one call: arrays and numbers in containers. The same for the same turn."""
    sizes = given.sizes[turn]
    rng = np.random.default_rng((given.seed, turn))
    named = dict(zip("nm", sizes, strict=True))
    arrays = []
    for i in given.inputs:
        shape = tuple(named.get(n, n) for n in i.shape)
        values = np.asarray(draw(rng, i.dtype, shape))
        if i.special and values.size:
            special = contract.special_values(i.dtype)
            values = np.where(rng.random(shape) < 0.5, rng.choice(special, shape).astype(i.dtype.np), values)
        arrays.append(contract.lay_out([values.astype(i.dtype.np)], i.layout)[0])
    if turn == 4 and len(arrays) > 1:
        arrays[1] = arrays[0]  # one array in two places
    numbers = [n if turn % 2 == 0 or n != n else n + (turn % 3) for n in given.numbers]
    if turn == 5:
        numbers = [float(n) if type(n) is int else bool(n) for n in numbers]
    return _contained(given.form, arrays, numbers)


def _contained(form: int, arrays: list[array], numbers: list[Any]) -> Any:
    match form:
        case 1:
            return ({"x": arrays[0], "rest": tuple(arrays[1:]), "numbers": numbers},)
        case 2:
            return ([arrays, numbers], None)
        case 3:
            return ((arrays[-1], {"a": {"b": arrays[:-1]}}), *numbers)
        case _:
            return (*arrays, *numbers)


# ---- running ----


class Run:
    """One run of a program's steps over a growing list of arrays."""

    def __init__(self, values: list[array], numbers: Sequence[Any], catches: bool) -> None:
        self.values, self.numbers, self.catches = values, list(numbers) or [2], catches

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if not self.catches:
                self._add(self._made(step))
                continue
            try:
                made = self._made(step)
            except CAUGHT:
                continue
            self._add(made)

    def _add(self, made: Any) -> None:
        if isinstance(made, (list, tuple)):
            for part in made:
                self._add(part)
        elif made is not None and made.size <= LARGEST and made.ndim <= 5:
            self.values.append(made)

    def _made(self, step: Step) -> Any:
        x, y = (self.values[-1 - i % len(self.values)] for i in (step.first, step.second))
        if step.name in STRAIGHT:
            return STRAIGHT[step.name](x, y, step.extra)
        if step.name in LOOPING:
            return LOOPING[step.name](Native, x, y, step.extra)
        if step.name in OWN:
            return OWN[step.name](x, y, self.numbers[step.extra % len(self.numbers)], step.extra)
        return HOLDING[step.name](self, x, y, step)

    def function(self, step: Step, *captured: array) -> Callable[..., array]:
        """The function inside of a step: the last array that its steps make of its arguments and what it captures."""

        def run(*arguments: array) -> array:
            inside = Run([*captured, *arguments], self.numbers, self.catches)
            inside.steps(step.inner)
            return inside.values[-1]

        return run


def function_of(given: Program) -> Callable[..., Any]:
    """The program as a function of its arguments."""

    def fun(*args: Any) -> Any:
        leaves = tree.leaves(args)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, array)]

        def of_arrays(*arrays: array) -> Any:
            for place, x in zip(places, arrays, strict=True):
                leaves[place] = x
            return value(*leaves)

        return AROUND[given.around](of_arrays, *[leaves[i] for i in places])

    def value(*leaves: Any) -> Any:
        arrays = [leaf for leaf in leaves if isinstance(leaf, array)]
        run = Run(arrays, [leaf for leaf in leaves if not isinstance(leaf, array)], given.catches)
        run.steps(given.steps)
        found = [run.values[-1 - i % len(run.values)] for i in given.kept]
        match given.form:
            case 1:
                return {"found": found, "count": len(run.values)}
            case 3:
                return tuple(found), run.numbers[0]
            case 4:
                return found[0]
            case _:
                return found

    return fun


def _float(x: Any) -> array:
    return mx.sum(mx.sin(_real(x).astype(mx.float32))) if isinstance(x, array) else mx.array(0.0)


def _total(f: Callable[..., Any]) -> Callable[..., array]:
    """All that a function returns in one number."""
    return lambda *xs: sum([_float(leaf) for leaf in tree.leaves(f(*xs))], start=mx.array(0.0))


AROUND: dict[str, Callable[..., Any]] = {
    "value": lambda f, *xs: f(*xs),
    "gradient": lambda f, *xs: mx.grad(_total(f), argnums=tuple(range(len(xs))))(*xs),
    "tangent": lambda f, *xs: mx.jvp(_total(f), xs, [mx.ones_like(x) for x in xs]),
    "batch": lambda f, *xs: mx.vmap(lambda *ys: tree.leaves(f(*ys))[0])(*[mx.stack([x, x]) for x in xs]),
    "batch of gradients": lambda f, *xs: mx.vmap(mx.grad(_total(f)))(*[mx.stack([x, x, x]) for x in xs]),
    "gradient of batch": lambda f, *xs: mx.grad(_total(mx.vmap(_total(f))))(*[mx.stack([x, x]) for x in xs]),
    "gradient twice": lambda f, *xs: mx.grad(lambda *ys: _float(mx.grad(_total(f))(*ys)))(*xs),
    "recomputed": lambda f, *xs: mx.grad(mx.checkpoint(_total(f)))(*xs),
}


# ---- operations with numbers, sizes, places ----


SMOOTH = (mx.arcsin, mx.arctanh, mx.sinh, mx.log1p, mx.erf, mx.expm1, mx.arccosh, mx.log2, mx.sigmoid, mx.rsqrt)


def _own() -> dict[str, Callable[[array, array, Any, int], Any]]:
    def axis(x: array, extra: int) -> int:
        return extra % x.ndim

    def at(x: array, extra: int) -> Any:
        """Places along the first axis."""
        return [slice(extra % 3, None), mx.array([0, extra % 5, 0]), slice(None, None, -1), extra % 4, (..., 0),
                slice(0, x.shape[0] // 2), mx.arange(x.shape[0]) // 2][extra // 8 % 7]  # fmt: skip

    def set_item(x: array, y: array, n: Any, extra: int) -> array:
        made = mx.array(x)
        place = at(x, extra)
        made[place] = n if extra & 1 else made[place] * 2
        return made

    def in_place(x: array, y: array, n: Any, extra: int) -> array:
        made = mx.array(x)
        if extra % 3 == 0:
            made += y
        elif extra % 3 == 1:
            made *= n
        else:
            made -= made
        return made

    def updated(x: array, y: array, n: Any, extra: int) -> array:
        place = x.at[at(x, extra)]
        value = n if extra & 1 else x[at(x, extra)]
        return [place.add, place.multiply, place.maximum, place.minimum, place.subtract, place.divide][extra // 64 % 6](
            value
        )

    def branched(x: array, y: array, n: Any, extra: int) -> array:
        """Python decides by numbers and sizes."""
        if n > 1 and x.shape[0] > 2:
            return x * n
        return x[:1] if x.shape[-1] % 2 else mx.concatenate([x, x])

    def looped(x: array, y: array, n: Any, extra: int) -> array:
        for i in range(min(abs(int(n)), 3)):
            x = x + i * n
        return x

    return {
        "plus": lambda x, y, n, e: x + n,
        "times": lambda x, y, n, e: n * x,
        "minus": lambda x, y, n, e: n - x,
        "over": lambda x, y, n, e: x / n if e & 1 else n / x,
        "rest": lambda x, y, n, e: x % n if e & 1 else n % x,
        "whole": lambda x, y, n, e: x // n if e & 1 else n // x,
        "to the": lambda x, y, n, e: x**n if e & 1 else n**x,
        "compare": lambda x, y, n, e: [x < n, x >= n, x == n, x != n, n > x][e % 5],
        "where": lambda x, y, n, e: mx.where(x > n, x, n) if e & 1 else mx.where(x > 0, n, y),
        "clip": lambda x, y, n, e: mx.clip(x, n, None if e & 1 else 5),
        "arctan2": lambda x, y, n, e: mx.arctan2(x, y),
        "logaddexp": lambda x, y, n, e: mx.logaddexp(x, n),
        "power": lambda x, y, n, e: mx.power(x, y),
        "remainder": lambda x, y, n, e: mx.remainder(x, y),
        "divmod": lambda x, y, n, e: mx.divmod(x, y),
        "shift": lambda x, y, n, e: [mx.left_shift, mx.right_shift, mx.bitwise_and, mx.bitwise_or][e % 4](x, y),
        "by size": lambda x, y, n, e: x / x.shape[axis(x, e)] if e & 1 else x * (x.size + n),
        "numbered": lambda x, y, n, e: mx.arange(x.shape[0]) * n,
        "steps": lambda x, y, n, e: mx.arange(0, x.shape[0], 2) + x.shape[0],
        "linspace": lambda x, y, n, e: mx.linspace(0, n, x.shape[0] + 1),
        "full": lambda x, y, n, e: mx.full(x.shape, n) if e & 1 else mx.full((x.shape[0], 2), y[..., :1]),
        "eye": lambda x, y, n, e: mx.eye(x.shape[0], k=e % 3 - 1, dtype=x.dtype),
        "tri": lambda x, y, n, e: mx.tril(x, k=e % 3 - 1) if e & 1 else mx.triu(x),
        "head": lambda x, y, n, e: x[: x.shape[0] // 2] if e & 1 else x[e % 3 :: 2],
        "tail": lambda x, y, n, e: x[x.shape[0] // 3 :, ...] if e & 1 else x[..., : -1 - e % 2],
        "number": lambda x, y, n, e: x[n] if e & 1 else x[-1 - e % 3],
        "newaxis": lambda x, y, n, e: x[None] if e & 1 else x[..., None],
        "squeeze": lambda x, y, n, e: mx.squeeze(x[:1], 0) if e & 1 else mx.squeeze(x),
        "flatten": lambda x, y, n, e: mx.flatten(x) if e & 1 else x.reshape(-1, x.shape[-1]),
        "reshape": lambda x, y, n, e: x.reshape(x.shape[::-1]) if e & 1 else x.reshape(2, -1),
        "unflatten": lambda x, y, n, e: mx.unflatten(x, 0, (-1, 1 + e % 2)),
        "swap": lambda x, y, n, e: mx.swapaxes(x, 0, -1) if e & 1 else mx.moveaxis(x, 0, -1),
        "stack": lambda x, y, n, e: mx.stack([x, x], axis=e % (x.ndim + 1)) if e & 1 else mx.stack([x, y]),
        "concatenate": lambda x, y, n, e: mx.concatenate([x, y], axis=axis(x, e)),
        "split": lambda x, y, n, e: mx.split(x, 2, axis=axis(x, e)) if e & 1 else mx.split(x, [1], axis=0),
        "tile": lambda x, y, n, e: mx.tile(x, (1 + e % 3,)),
        "repeat": lambda x, y, n, e: mx.repeat(x, 1 + e % 3, axis=axis(x, e)),
        "pad": lambda x, y, n, e: mx.pad(x, e % 3, mode="edge") if e & 1 else mx.pad(x, e % 3, constant_values=n),
        "roll": lambda x, y, n, e: mx.roll(x, x.shape[0] // 2 if e & 1 else e % 5, axis=axis(x, e)),
        "diagonal": lambda x, y, n, e: mx.diagonal(x, offset=e % 3 - 1) if e & 1 else mx.diag(x),
        "outer": lambda x, y, n, e: mx.outer(x, y) if e & 1 else mx.inner(x, y),
        "einsum": lambda x, y, n, e: mx.einsum(["ij,kj->ik", "i,j->ij", "i,i->"][e % 3], x, y),
        "einsum of one": lambda x, y, n, e: mx.einsum(["ij->j", "ii->i", "ii", "ijk->kj"][e % 4], x),
        "tensordot": lambda x, y, n, e: mx.tensordot(x, y, axes=e % 2),
        "addmm": lambda x, y, n, e: mx.addmm(x, x, y, alpha=0.5, beta=2.0),
        "broadcast": lambda x, y, n, e: mx.broadcast_to(x, (2, *x.shape)) if e & 1 else mx.broadcast_arrays(x, y),
        "meshgrid": lambda x, y, n, e: mx.meshgrid(x, y),
        "take": lambda x, y, n, e: mx.take(x, mx.arange(x.shape[0]) // 2 + e % 3, axis=0),
        "along": lambda x, y, n, e: mx.take_along_axis(x, mx.argsort(x, axis=axis(x, e)), axis=axis(x, e)),
        "put along": lambda x, y, n, e: mx.put_along_axis(x, mx.argmax(x, axis=0, keepdims=True), mx.array(n), 0),
        "set": set_item,
        "in place": in_place,
        "at": updated,
        "sort": lambda x, y, n, e: mx.sort(x, axis=axis(x, e)),
        "topk": lambda x, y, n, e: mx.topk(x, 1 + e % 3, axis=axis(x, e)) if e & 1 else mx.topk(x, n),
        "partition": lambda x, y, n, e: mx.partition(x, e % 3, axis=axis(x, e)),
        "search": lambda x, y, n, e: mx.searchsorted(mx.sort(x), y) if hasattr(mx, "searchsorted") else None,
        "cumprod": lambda x, y, n, e: mx.cumprod(x, axis=axis(x, e), reverse=bool(e & 2), inclusive=bool(e & 4)),
        "cummax": lambda x, y, n, e: (mx.cummax if e & 1 else mx.cummin)(x, axis=axis(x, e), reverse=bool(e & 2)),
        "logcumsumexp": lambda x, y, n, e: mx.logcumsumexp(x, axis=axis(x, e)),
        "median": lambda x, y, n, e: mx.median(x, axis=axis(x, e)),
        "var": lambda x, y, n, e: (mx.var if e & 1 else mx.std)(x, axis=axis(x, e), ddof=e // 4 % 2),
        "round": lambda x, y, n, e: mx.round(x, decimals=e % 4 - 1),
        "nan": lambda x, y, n, e: mx.nan_to_num(x, nan=float(n)),
        "view": lambda x, y, n, e: x.view([mx.uint8, mx.int32, mx.float16, mx.uint64][e % 4]),
        "complex": lambda x, y, n, e: x + 1j * y if e & 1 else mx.real(x * 1j),
        "random": lambda x, y, n, e: mx.random.uniform(shape=x.shape, key=mx.random.key(e)),
        "randint": lambda x, y, n, e: mx.random.randint(0, 5, (x.shape[0],), key=mx.random.key(e)),
        "bits": lambda x, y, n, e: mx.random.bits((x.shape[0],), key=mx.random.key(e)) >> 3,
        "all": lambda x, y, n, e: mx.allclose(x, y) if e & 1 else mx.array_equal(x, y),
        "smooth": lambda x, y, n, e: SMOOTH[e % len(SMOOTH)](x),
        "stop": lambda x, y, n, e: mx.stop_gradient(x),
        "branched": branched,
        "looped": looped,
    }  # fmt: skip


OWN = _own()
HOLDING: dict[str, Callable[[Run, array, array, Step], Any]] = {}


# ---- operations that hold functions ----


def _holding(function: Callable[[Run, array, array, Step], Any]) -> Callable[[Run, array, array, Step], Any]:
    HOLDING[function.__name__.strip("_")] = function
    return function


def _like(x: array, made: array) -> array:
    """A value in the shape and dtype of another."""
    if made.dtype is x.dtype and made.shape == x.shape:
        return made
    return conform(made, Leaf(x.shape, x.dtype))


def _real(made: array) -> array:
    return mx.real(made) if made.dtype.is_complex else made


def _loss(f: Callable[..., array]) -> Callable[..., array]:
    return lambda *xs: mx.sum(mx.sin(_real(f(*xs)).astype(mx.float32)))


@_holding
def scan_over(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    carry, ys = mx.scan(lambda c, r: (_like(c, f(c, r)), _like(c, r * 2) if step.extra & 2 else r), x[0], x,
                        reverse=bool(step.extra & 1), unroll=1 + step.extra // 4 % 3)  # fmt: skip
    return [carry, ys]


@_holding
def scan_numbers(run: Run, x: array, y: array, step: Step) -> Any:
    """Python numbers in the carry."""
    f = run.function(step, y)
    n = run.numbers[step.extra % len(run.numbers)]
    carry, ys = mx.scan(lambda c, r: ({"x": _like(x, f(c["x"], r)), "n": c["n"] + 1}, c["n"]), {"x": x, "n": n}, y)
    return [carry["x"], carry["n"], ys]


@_holding
def scan_until(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    until = lambda c, r: mx.sum(mx.abs(c).astype(mx.float32)) > step.extra % 9  # noqa: E731
    carry, ys, count = mx.scan(lambda c, r: (_like(c, f(c, r)), r), x, y, until=until)
    return [carry, ys, count]


@_holding
def scan_late(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    length = mx.sum(mx.abs(y).astype(mx.int32)) % (x.shape[0] + 1)
    return list(mx.scan(lambda c, r: (_like(c, f(c, r)), r), x[0], x, length=length))


@_holding
def checkpointed_scan(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    return list(mx.scan(lambda c, r: (_like(c, f(c, r)), c), x[0], x, checkpoint_every=1 + step.extra % 3))


@_holding
def fori(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    ends = [2, x.shape[0] % 4, mx.sum(mx.abs(y).astype(mx.int32)) % 4, run.numbers[0]]
    return mx.fori_loop(step.extra % 2, ends[step.extra // 2 % 4], lambda i, c: _like(x, f(c * 1, i)), x)


@_holding
def while_(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    end = mx.sum(mx.abs(y).astype(mx.int32)) % 4
    return list(mx.while_loop(lambda s: s[1] < end, lambda s: (_like(x, f(s[0])), s[1] + 1), (x, mx.array(0))))


@_holding
def map_over(run: Run, x: array, y: array, step: Step) -> Any:
    return mx.map(run.function(step, y), x)


@_holding
def cond(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    which = mx.sum(y.astype(mx.float32)) > 0 if step.extra & 1 else mx.any(x)
    return mx.cond(which, lambda a: _like(x, f(a)), lambda a: a + a, x)


@_holding
def cond_as_it_comes(run: Run, x: array, y: array, step: Step) -> Any:
    """Branches whose shapes are the same, or not."""
    return mx.cond(mx.any(y), run.function(step, y), lambda a: a * a, x)


@_holding
def switch(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    index = mx.sum(mx.abs(y).astype(mx.int32)) % 5 - 1
    return mx.switch(index, [lambda a: a * 2, lambda a: _like(x, f(a)), lambda a: a], x)


@_holding
def associative(run: Run, x: array, y: array, step: Step) -> Any:
    return mx.associative_scan(
        [lambda a, b: a + b, mx.maximum, lambda a, b: a * b][step.extra % 3], x, reverse=bool(step.extra & 8)
    )


@_holding
def gradient(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    if step.extra & 1:
        return list(mx.value_and_grad(_loss(f))(x))
    return list(mx.grad(_loss(f), argnums=(0, 1))(x, y))


@_holding
def second_gradient(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    return mx.grad(lambda a: mx.sum(_real(mx.grad(_loss(f))(a)).astype(mx.float32)))(x)


@_holding
def tangent(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    values, tangents = mx.jvp(f, [x], [mx.ones_like(x)])
    return [*values, *tangents]


@_holding
def cotangent(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    values, cotangents = mx.vjp(f, [x], [mx.ones_like(f(x))])
    return [*values, *cotangents]


@_holding
def batch(run: Run, x: array, y: array, step: Step) -> Any:
    f = run.function(step, y)
    axis = step.extra % x.ndim
    return mx.vmap(f, in_axes=axis, out_axes=0 if step.extra & 8 else -1)(x)


@_holding
def batch_both(run: Run, x: array, y: array, step: Step) -> Any:
    return mx.vmap(run.function(step, x), in_axes=(0, None if step.extra & 1 else 0))(x, y)


@_holding
def batch_of_gradients(run: Run, x: array, y: array, step: Step) -> Any:
    return mx.vmap(mx.grad(_loss(run.function(step, y))))(x)


@_holding
def gradient_of_batch(run: Run, x: array, y: array, step: Step) -> Any:
    return mx.grad(_loss(mx.vmap(run.function(step, y))))(x)


@_holding
def recomputed(run: Run, x: array, y: array, step: Step) -> Any:
    return mx.grad(_loss(mx.checkpoint(run.function(step, y))))(x)


@_holding
def own_rules(run: Run, x: array, y: array, step: Step) -> Any:
    f = mx.custom_function(run.function(step))
    if step.extra & 1:
        f.vjp(lambda primals, cotangents, outputs: primals * 2)
    return mx.grad(_loss(f))(x) if step.extra & 2 else f(x)


@_holding
def compiled_inside(run: Run, x: array, y: array, step: Step) -> Any:
    return mx.compile(run.function(step, y), shapeless=bool(step.extra & 1))(x)
