"""State that compiled functions update in place: arrays that they overwrite or replace give their memory to the new
values, unless somebody else holds the old ones. Who does sees no difference, whatever happens during the call."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
import weft.core as mx
from tests.contract import settings as weft_settings
from tests.updating import OVERWRITE, WAYS, N, Plain, at, fresh, large, over, same, stepped, variants
from weft import checking, evaluate
from weft.array import array
from weft.passes import verify
from weft.runtime.buffer import get_active_memory, get_peak_memory, reset_peak_memory
from weft.transforms import updating
from weft.transforms.variant import ShapelessVariant


@pytest.mark.parametrize("name", WAYS)
def test_state_is_updated_in_place(name: str) -> None:
    way = WAYS[name](fresh())
    place = at(way.read())
    gc.collect()
    before = get_active_memory()
    reset_peak_memory()
    for _ in range(5):
        way.call()
        assert at(way.read()) == place
    assert get_peak_memory() - before < N
    same(way.read(), stepped(large(), 5))
    assert way.step.traces == 1
    assert len(over(way.step)) == 1


@pytest.mark.parametrize("name", WAYS)
def test_under_checks_the_same(name: str) -> None:
    """Every run is done operation by operation first, which reads what the program then overwrites."""
    checking.enable()
    runs = checking.tally.runs
    try:
        way = WAYS[name](fresh())
        place = at(way.read())
        for _ in range(2):
            way.call()
        assert at(way.read()) == place
        same(way.read(), stepped(large(), 2))
    finally:
        checking.disable()
    assert checking.tally.runs >= runs + 2


# ---- who else may hold the old value ----


def evaluated(x: array) -> array:
    mx.eval(x)
    return x


HOLDERS: dict[str, Callable[[array], Any]] = {
    "another handle": lambda x: x.__copy__(),
    "an array made of it": lambda x: mx.array(x),
    "a view": lambda x: x[3:9],
    "an evaluated view": lambda x: evaluated(x[3:9]),
    "a view from the start": lambda x: evaluated(x[:7]),
    "a view with strides": lambda x: evaluated(x[::-2]),
    "a reshaped view": lambda x: evaluated(x.reshape(2, -1)),
    "a pending array": lambda x: mx.exp(x),
    "a pending array of a pending array": lambda x: mx.exp(mx.sin(x)) + 1,
    "NumPy": lambda x: np.array(x, copy=False),
    "a view of NumPy's": lambda x: np.array(x, copy=False)[5:],
    "the buffer protocol": lambda x: memoryview(x),
    "DLPack": lambda x: np.from_dlpack(x),
    "a capsule": lambda x: x.__dlpack__(max_version=(1, 0)),
    "a node": lambda x: x._node,
    "a buffer": lambda x: x._node.value,
    "a storage": lambda x: x._node.value.storage,
}
if np.lib.NumpyVersion(np.__version__) < "2.1.0":  # its DLPack cannot say "read-only", and so gets copies
    del HOLDERS["DLPack"], HOLDERS["a capsule"]
NAMES: dict[str, Callable[[array], Any]] = {
    "another name": lambda x: x,
    "a list": lambda x: [x],
    "a closure": lambda x: lambda: x,
    "an iterator": lambda x: iter(x),
    "a bound method": lambda x: x.tolist,
}
"""These hold the array: they see what becomes of it, where it stays."""


def contents(holder: Any) -> Any:
    """What a holder shows of the array, if it shows anything."""
    if isinstance(holder, (array, np.ndarray)):
        return np.array(holder)
    if isinstance(holder, memoryview):
        return np.asarray(holder).copy()
    if isinstance(holder, list):
        return np.array(holder[0])
    return None


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("who", [*HOLDERS, *NAMES])
def test_whoever_holds_the_old_value_keeps_it(who: str, name: str) -> None:
    way = WAYS[name](fresh())
    way.call()
    place = at(way.read())
    expected = stepped(large())
    hold = HOLDERS.get(who) or NAMES[who]
    holder = hold(way.read())
    wanted = contents(hold(mx.array(expected)))
    way.call()
    expected = stepped(expected)
    if who in NAMES and name in OVERWRITE:
        assert at(way.read()) == place
        wanted = None if wanted is None else expected
    else:
        assert at(way.read()) != place
    same(way.read(), expected)
    if wanted is not None:
        np.testing.assert_array_equal(contents(holder), wanted)
    del holder, wanted
    place = at(way.read())
    way.call()  # nobody else now
    assert at(way.read()) == place
    same(way.read(), stepped(expected))


def test_an_array_in_a_place_that_stays() -> None:
    """Two places hold it, and one of them is not written."""
    x = fresh()
    new, kept = {"k": x}, {"k": x}
    del x

    @mx.compile
    def step() -> array:
        new["k"] = new["k"] * 0.5 + 1
        return mx.sum(kept["k"])

    for i in range(3):
        place = at(new["k"])
        step()
        assert (at(new["k"]) == place) == (i > 0)
        same(kept["k"], large())
    same(new["k"], stepped(large(), 3))


def test_places_are_counted_once() -> None:
    """Two functions write one variable, which is one reference, and somebody else has another."""
    x = fresh()

    def set_it(value: array) -> None:
        nonlocal x
        x = value

    @mx.compile
    def step() -> None:
        nonlocal x
        set_it(x * 0.5)
        x = x + 1

    step()
    held = x
    step()
    same(held, stepped(large()))
    same(x, stepped(large(), 2))


def test_a_dict_that_is_the_attributes_of_an_object() -> None:
    """One dict, which the walk meets twice."""
    cache = Plain()
    cache.keys = fresh()
    attributes = vars(cache)

    @mx.compile
    def step() -> None:
        attributes["keys"] = cache.keys * 0.5 + 1

    step()
    held = cache.keys
    step()
    same(held, stepped(large()))
    same(cache.keys, stepped(large(), 2))


def test_a_tuple_that_somebody_else_holds_keeps_its_arrays() -> None:
    state = {"s": (fresh(), mx.array(1.0))}

    @mx.compile
    def step(state: Any) -> None:
        a, b = state["s"]
        state["s"] = (a * 0.5 + 1, b)

    held = state["s"]
    step(state)
    same(held[0], large())
    del held
    place = at(state["s"][0])
    step(state)
    assert at(state["s"][0]) == place
    same(state["s"][0], stepped(large(), 2))


def test_what_is_returned_or_kept_is_not_overwritten() -> None:
    state: dict[str, Any] = {"k": fresh(), "old": None}

    @mx.compile
    def returns() -> array:
        old = state["k"]
        state["k"] = old * 0.5 + 1
        return old

    @mx.compile
    def returns_a_view() -> array:
        part = state["k"][:4]
        state["k"] = state["k"] * 0.5 + 1
        return part

    @mx.compile
    def keeps() -> None:
        state["old"], state["k"] = state["k"], state["k"] * 0.5 + 1

    same(returns(), large())
    same(returns_a_view(), stepped(large())[:4])
    keeps()
    same(state["old"], stepped(large(), 2))
    keeps()
    same(state["old"], stepped(large(), 3))
    same(state["k"], stepped(large(), 4))


def test_arrays_that_change_places() -> None:
    state = [fresh(), fresh(1)]

    @mx.compile
    def swap() -> None:
        state[0], state[1] = state[1], state[0]

    @mx.compile
    def rotate() -> None:
        state[0], state[1] = state[1] * 0.5 + 1, state[0] * 1.0 + 0.0

    swap()
    same(state[0], large(1))
    for _ in range(3):
        rotate()
    # Three rotations, each of which steps what comes to the front.
    same(state[0], stepped(stepped(large(), 1), 1))
    same(state[1], stepped(large(1), 1))


@pytest.mark.parametrize("kind", ["another dtype", "another shape", "nothing"])
def test_what_has_no_heir_is_copied(kind: str) -> None:
    """Who reads an array during the call must find a value of the same kind in its place."""
    state: dict[str, Any] = {"k": fresh()}

    @mx.compile
    def step() -> array:
        old = state.pop("k")
        if kind == "another dtype":
            state["k"] = (old * 100).astype(mx.int32)
        elif kind == "another shape":
            state["k"] = (old + 1).reshape(2, -1)
        return old + 1

    same(step(), large() + np.float32(1))
    (variant,) = variants(step)
    assert not variant.updates.candidates


def test_what_is_not_ours_is_copied() -> None:
    values = large()
    x = mx.from_dlpack(values) if hasattr(mx, "from_dlpack") else mx.array(values)
    turned = fresh().reshape(2, -1).T
    mx.eval(turned)
    expected = large().reshape(2, -1).T

    @mx.compile
    def step(x: array) -> None:
        x *= 0.5
        x += 1

    for a in (x, turned):
        step(a)
    same(x, stepped(large()))
    same(turned, stepped(expected))
    np.testing.assert_array_equal(values, large())


# ---- functions that have nothing to update ----


def test_functions_without_state_are_left_alone() -> None:
    p, g = fresh(), fresh(1)
    step = mx.compile(lambda p, g: p - 0.5 * g)
    first = p
    for _ in range(3):
        p = step(p, g)
    same(first, large())
    table = {"t": fresh()}
    look = mx.compile(lambda x: x + table["t"])
    look(p)
    count = mx.compile(lambda x, n: n.append(1) or x + 1)
    count(p, [])
    for f in (step, look, count):
        assert not any(variant.updates.candidates or over(f) for variant in variants(f))


def test_small_state_is_not_asked_for_its_holders() -> None:
    x = mx.array([1.0, 2.0])

    @mx.compile
    def step(x: array) -> None:
        x += 1

    step(x)
    (variant,) = variants(step)
    assert not variant.updates.candidates
    assert x.tolist() == [2.0, 3.0]


def test_a_loop_does_not_overwrite_what_the_call_was_given() -> None:
    """It can be interrupted midway, and must be able to start again."""
    state = {"k": fresh()}

    @mx.compile
    def step() -> None:
        state["k"] = mx.fori_loop(0, 3, lambda i, c: c * 0.5 + 1, state["k"])

    place = at(state["k"])
    step()
    assert at(state["k"]) != place
    same(state["k"], stepped(large(), 3))
    (variant,) = variants(step)
    assert variant.updates.refused[0] == updating.FAILS


def test_what_comes_behind_a_loop_may_overwrite() -> None:
    state = {"k": fresh()}

    @mx.compile
    def step(x: array) -> None:
        scale = mx.fori_loop(0, 3, lambda i, c: c * 0.5, x)
        state["k"] = state["k"] * scale + 1

    place = at(state["k"])
    for _ in range(3):
        step(mx.array(4.0))
    assert at(state["k"]) == place
    same(state["k"], stepped(large(), 3))


def test_a_loop_that_has_to_grow_runs_again_over_what_was_given() -> None:
    """The first runs find too little room on the tape; the state is overwritten once, by the run that has enough."""
    state = {"k": fresh()}

    @mx.compile
    def step(x: array) -> None:
        def power(x: array) -> array:
            return mx.while_loop(lambda s: s[1] < 300, lambda s: (mx.sin(s[0]) + s[0] * 0.5, s[1] + 1), (x, 0))[0]

        state["k"] = state["k"] + mx.grad(power)(x) * 0

    place = at(state["k"])
    for _ in range(2):
        step(mx.array(0.5))
    assert at(state["k"]) == place
    same(state["k"], large())


def test_a_temporary_argument_is_the_callers() -> None:
    """Python does not tell whether somebody holds an argument: `sorted(arrays, key=f)` lends what a list holds."""
    f = mx.compile(lambda x: mx.sum(x * 2))
    arrays = [fresh(i) for i in range(3)]
    sorted(arrays, key=f)
    for i, x in enumerate(arrays):
        same(x, large(i))


def test_sets_of_inputs_are_planned_once_each() -> None:
    state = [fresh(i) for i in range(6)]

    @mx.compile
    def step() -> None:
        for i, x in enumerate(state):
            state[i] = x * 0.5 + 1

    for i in range(64):
        held = [x for bit, x in enumerate(state) if i >> bit & 1]
        old = [np.array(x) for x in held]
        step()
        for x, expected in zip(held, old, strict=True):
            same(x, expected)
        del held
    (variant,) = variants(step)
    assert len(variant.recipe.over) <= updating.MOST_SETS
    for i, x in enumerate(state):
        same(x, stepped(large(i), 64))


# ---- what it is for ----


def peak_of(call: Callable[[], Any]) -> int:
    gc.collect()
    before = get_active_memory()
    reset_peak_memory()
    call()
    return get_peak_memory() - before


SHAPE = (1, 8, 512, 64)


def attend(q: array, keys: array, values: array) -> array:
    return mx.softmax(q @ keys.swapaxes(-1, -2), axis=-1) @ values


def appended(cache: Any, q: array, pos: array, get: Any, put: Any) -> array:
    """One row more in the keys and the values of a cache, and what attends to them."""
    put(cache, 0, mx.slice_update(get(cache, 0), q, pos, (2,)))
    put(cache, 1, mx.slice_update(get(cache, 1), q * 2, pos, (2,)))
    return attend(q, get(cache, 0), get(cache, 1))


def in_an_object(q: array, pos: array, cache: Any) -> array:
    names = ("keys", "values")
    return appended(cache, q, pos, lambda c, i: getattr(c, names[i]), lambda c, i, x: setattr(c, names[i], x))


def in_a_container(q: array, pos: array, cache: Any) -> array:
    names = list(cache) if isinstance(cache, dict) else (0, 1)
    return appended(cache, q, pos, lambda c, i: c[names[i]], lambda c, i, x: c.__setitem__(names[i], x))


def in_arguments(q: array, pos: array, cache: Any) -> array:
    for i, x in enumerate(cache):
        x[:, :, pos] = q[:, :, None, 0] * (i + 1)
    return attend(q, *cache)


def cache_object() -> Any:
    cache: Any = Plain()
    cache.keys, cache.values = cache_tuple()
    return cache


def cache_tuple() -> tuple[array, array]:
    pair = mx.array(np.zeros(SHAPE, np.float32)), mx.array(np.zeros(SHAPE, np.float32))
    mx.eval(pair)
    return pair


@pytest.mark.parametrize(
    ("step", "make", "read"),
    [
        (in_an_object, cache_object, lambda c: (c.keys, c.values)),
        (in_a_container, lambda: [*cache_tuple()], tuple),
        (in_a_container, lambda: dict(zip("kv", cache_tuple(), strict=True)), lambda c: tuple(c.values())),
        (in_arguments, cache_tuple, tuple),
    ],
    ids=["object", "list", "dict", "arguments"],
)
def test_a_decoding_step_copies_no_cache(step: Any, make: Any, read: Any) -> None:
    cache, compiled = make(), mx.compile(step)
    expected = [np.zeros(SHAPE, np.float32) for _ in range(2)]
    nbytes = expected[0].nbytes
    rng = np.random.default_rng(0)
    for i in range(4):
        q = rng.normal(size=(1, 8, 1, 64)).astype(np.float32)
        given, pos = mx.array(q), mx.array([i])
        mx.eval(given, pos)
        assert peak_of(lambda given=given, pos=pos: compiled(given, pos, cache)) < nbytes // 8
        expected[0][:, :, i], expected[1][:, :, i] = q[:, :, 0], q[:, :, 0] * 2
    for x, numbers in zip(read(cache), expected, strict=True):
        same(x, numbers)
    assert compiled.traces == 1
    (plan,) = over(compiled)
    assert plan.peak < nbytes // 8
    assert len(plan.spent) == 2


def test_a_training_step_updates_parameters_and_moments_in_place() -> None:
    rng = np.random.default_rng(1)
    start = {"w": rng.normal(size=(256, 256)).astype(np.float32) / 16, "b": rng.normal(size=N).astype(np.float32)}
    x = mx.array(rng.normal(size=(4, 256)).astype(np.float32))

    def loss(params: Any) -> array:
        return mx.sum(mx.tanh(x @ params["w"]) ** 2) + mx.sum(params["b"] ** 2)

    def adam(state: Any, rate: float) -> array:
        value, gradients = mx.value_and_grad(loss)(state["params"])
        state["step"] = state["step"] + 1
        for name, g in gradients.items():
            m, v = state["m"][name], state["v"][name]
            state["m"][name] = m = 0.9 * m + 0.1 * g
            state["v"][name] = v = 0.99 * v + 0.01 * g * g
            state["params"][name] = state["params"][name] - rate * m / (mx.sqrt(v) + 1e-8)
        return value

    def made() -> Any:
        state = {
            "params": {name: mx.array(values) for name, values in start.items()},
            "m": {name: mx.array(np.zeros_like(values)) for name, values in start.items()},
            "v": {name: mx.array(np.zeros_like(values)) for name, values in start.items()},
            "step": mx.array(0),
        }
        mx.eval(state)
        return state

    step = mx.compile(adam)
    ours, plain = made(), made()
    held = [at(leaf) for leaf in (*ours["params"].values(), *ours["m"].values(), *ours["v"].values())]
    for _ in range(4):
        assert peak_of(lambda: step(ours, 0.01)) < 3 * large().nbytes  # the gradient of the weights, and to pack it
        adam(plain, 0.01)
        mx.eval(plain)
    now = [at(leaf) for leaf in (*ours["params"].values(), *ours["m"].values(), *ours["v"].values())]
    assert sorted(held) == sorted(now)
    for part in ("params", "m", "v"):
        for name in start:
            assert np.array(ours[part][name]).tobytes() == np.array(plain[part][name]).tobytes()
    assert ours["step"].item() == 4


def test_random_numbers_and_state() -> None:
    def step(state: Any) -> None:
        noise = mx.random.uniform(shape=(N,))
        state["k"] = state["k"] + noise

    compiled, results = mx.compile(step), []
    for f in (compiled, step):
        mx.random.seed(3)
        state = {"k": fresh()}
        for _ in range(3):
            f(state)
        results.append(np.array(state["k"]))
    np.testing.assert_array_equal(*results)
    assert over(compiled)


# ---- transforms ----


def test_differentiated_functions_overwrite_nothing() -> None:
    state = {"k": fresh()}

    @mx.compile
    def step(x: array) -> array:
        state["k"] = state["k"] * 0.5 + x
        return mx.sum(state["k"] * state["k"])

    x = fresh(1)
    held, before = state["k"].__copy__(), state["k"]
    gradient = mx.grad(step)(x)
    mx.eval(gradient)
    same(held, large())
    same(before, large())
    np.testing.assert_allclose(np.array(gradient), 2 * (large() * 0.5 + large(1)), rtol=1e-5)


def test_a_gradient_that_is_not_computed_yet_keeps_what_it_needs() -> None:
    x = fresh()

    @mx.compile
    def step(x: array) -> None:
        x *= 0.5
        x += 1

    gradient = mx.grad(lambda y: mx.sum(mx.exp(y)))(x)
    step(x)
    np.testing.assert_allclose(np.array(gradient), np.exp(large()), rtol=1e-5)
    same(x, stepped(large()))


def test_two_functions_with_one_state() -> None:
    state = {"k": fresh()}

    @mx.compile
    def halve() -> None:
        state["k"] = state["k"] * 0.5

    @mx.compile
    def add() -> None:
        state["k"] += 1

    place = at(state["k"])
    for _ in range(3):
        halve()
        add()
    assert at(state["k"]) == place
    same(state["k"], stepped(large(), 3))


def test_sizes_that_were_not_seen_before() -> None:
    @mx.compile
    def fixed(x: array) -> None:
        x *= 0.5
        x += 1

    f = mx.compile(fixed.__wrapped_function__, shapeless=True)
    for n in (N, 2 * N, N, 3 * N, 5 * N + 3, 17):
        values = np.linspace(0, 1, n, dtype=np.float32)
        x = mx.array(values)
        place = at(x)
        f(x)
        assert (at(x) == place) == (n > 17)
        same(x, stepped(values))
        y = x[1:]
        f(x)
        same(y, stepped(values)[1:])
    assert f.traces == 1
    (variant,) = variants(f)
    assert isinstance(variant, ShapelessVariant)
    assert sum(bool(recipe.over) for recipe in variant.recipes.values()) == 4


# ---- looking ----


def test_explain_tells_what_is_updated_in_place() -> None:
    cache: Any = Plain()
    cache.keys, cache.held, cache.viewed, cache.count = fresh(), fresh(1), fresh(2), mx.array(1)
    mx.eval(cache.count)
    held, view = cache.held, np.array(cache.viewed, copy=False)

    @mx.compile
    def step(x: array, state: Any) -> array:
        state["p"] -= x
        state["q"] = (state["q"] + 1).astype(mx.float16)
        for name in ("keys", "held", "viewed", "count"):
            setattr(cache, name, getattr(cache, name) + 1)
        old = state["r"]
        state["r"] = old + 1
        return old

    state = {name: fresh(3 + i) for i, name in enumerate("pqr")}
    report = weft.explain(step, fresh(9), state, measure=False)
    kind = f"f32[{N}]"
    assert set(report.programs[0].updates) == {
        f"state['p'] {kind}: updated in place",
        f"state['q'] {kind}: copied: its new value is of another kind, float16[{N}]",
        f"state['r'] {kind}: copied: the function returns its old value, or keeps it elsewhere",
        f"captured 'keys' {kind}: updated in place",
        f"captured 'held' {kind}: copied: somebody else holds the array that is replaced",
        f"captured 'viewed' {kind}: copied: somebody else looks at its memory (NumPy, DLPack, another thread)",
        "captured 'count' i32[]: copied: it is small",
        "1 more only read",
    }
    assert "== state\n" in str(report)
    assert "updated in place" in report.html()
    assert step.traces == 0
    same(cache.keys, large())
    same(held, large(1))
    assert view.shape == (N,)
    assert not weft.explain(mx.compile(lambda x: x + 1), fresh(), measure=False).programs[0].updates


# ---- plans ----


def test_plans_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[Any] = []
    real = verify.verify_plan

    def recorded(plan: Any, carried: Any = None, donated: Any = None) -> None:
        real(plan, carried, donated)
        verified.append(donated)

    monkeypatch.setattr(verify, "verify_plan", recorded)
    x = fresh()

    @mx.compile
    def step(x: array) -> None:
        x += 1

    with weft_settings(check=True):
        step(x)
    assert (0,) in verified
    (plan,) = over(step)
    assert plan.spent == [0]
    assert plan.adopted == {0: 0}
    assert plan.peak == 0


# ---- anything goes ----

moves = st.lists(
    st.tuples(
        st.sampled_from(
            ["step", "step", "step", "argument", "both", "tuple", "view", "export", "copy", "name", "drop", "pending"]
        ),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=3,
    max_size=25,
)


class World:
    """State of ours beside NumPy's, which is copied wherever ours could share."""

    def __init__(self) -> None:
        start = np.arange(12, dtype=np.float32)
        self.state: dict[str, Any] = {"list": [mx.array(start + 100 * k) for k in range(3)], "tuple": ()}
        self.state["tuple"] = (mx.array(start), mx.array(start + 50))
        self.numpy: dict[str, Any] = {"list": [start + 100 * k for k in range(3)], "tuple": (start, start + 50)}
        self.held: list[tuple[Any, np.ndarray]] = []

    def move(self, what: str, i: int, j: int) -> None:
        items, numbers = self.state["list"], self.numpy["list"]
        if what == "step":
            STEPS["step"](self.state, i, j)
            numbers[i] = numbers[i] * np.float32(0.5) + numbers[j]
        elif what == "argument":
            if i != j:
                STEPS["argument"](items[i], items[j])
                numbers[i] = numbers[i] + numbers[j]
        elif what == "both":
            STEPS["both"](items)
            numbers[:] = [numbers[1] + 1, numbers[2] * np.float32(0.5), numbers[0]]
        elif what == "tuple":
            STEPS["tuple"](self.state)
            a, b = self.numpy["tuple"]
            self.numpy["tuple"] = (a + b, b * np.float32(0.5))
        elif what == "drop":
            self.held.clear()
        else:
            x, expected = self.state["tuple"][i % 2] if j else items[i], self.numpy["tuple"][i % 2] if j else numbers[i]
            self.hold(what, x, expected.copy())

    def hold(self, what: str, x: array, expected: np.ndarray) -> None:
        if what == "view":
            self.held.append((evaluated(x[2:7]), expected[2:7]))
        elif what == "export":
            self.held.append((np.array(x, copy=False), expected))
        elif what == "copy":
            self.held.append((x.__copy__(), expected))
        elif what == "pending":
            self.held.append((x + 1, expected + 1))

    def look(self) -> None:
        for name in ("list", "tuple"):
            for x, expected in zip(self.state[name], self.numpy[name], strict=True):
                np.testing.assert_array_equal(np.array(x), expected)
        for x, expected in self.held:
            np.testing.assert_array_equal(np.array(x), expected)


def _step(state: Any, i: int, j: int) -> None:
    state["list"][i] = state["list"][i] * 0.5 + state["list"][j]


def _argument(x: array, y: array) -> None:
    x += y


def _both(items: list[Any]) -> None:
    items[0], items[1], items[2] = items[1] + 1, items[2] * 0.5, items[0] * 1.0


def _tuple(state: Any) -> None:
    a, b = state["tuple"]
    state["tuple"] = (a + b, b * 0.5)


STEPS: dict[str, Any] = {}


@settings(max_examples=120)
@given(moves)
def test_any_sequence_of_steps_gives_what_numpy_gives(steps: list[Any]) -> None:
    before = evaluate.overwriting.LEAST_DONATED
    evaluate.overwriting.LEAST_DONATED = 1
    if not STEPS:
        made = {"step": _step, "argument": _argument, "both": _both, "tuple": _tuple}
        STEPS.update({name: mx.compile(f) for name, f in made.items()})
    try:
        with np.errstate(all="ignore"):
            world = World()
            for step in steps:
                world.move(*step)
            world.look()
    finally:
        evaluate.overwriting.LEAST_DONATED = before
