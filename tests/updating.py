"""Ways in which compiled functions update state, and how to look at what they do: shared by the tests of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import weft.core as mx
from weft import evaluate
from weft.array import array
from weft.passes.memory import Plan
from weft.transforms.variant import ShapelessVariant, Variant

N = evaluate.overwriting.LEAST_DONATED // 4
"""Elements of a float32 array that is worth updating in place."""


def large(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, N).astype(np.float32)


def fresh(seed: int = 0) -> array:
    x = mx.array(large(seed))
    mx.eval(x)
    return x


def at(x: array) -> int:
    """Where the elements of an array lie."""
    mx.eval(x)
    address: int = x._node.value.address
    return address


def same(x: array, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(np.array(x), expected)


def variants(f: Any) -> list[Variant]:
    return [variant for entry in f._variants.values() for variant in entry]


def over(f: Any) -> list[Plan]:
    """The plans of a function that overwrite something."""
    found = []
    for variant in variants(f):
        recipes = variant.recipes.values() if isinstance(variant, ShapelessVariant) else [variant.recipe]
        found += [r.executable.plan for recipe in recipes for r in recipe.over.values() if r.spent]
    return found


def stepped(x: np.ndarray, count: int = 1) -> np.ndarray:
    """What `count` updates make of an array."""
    for _ in range(count):
        x = x * np.float32(0.5) + np.float32(1)
    return x


# ---- every way to update ----


class Plain:
    """An object with attributes."""

    keys: Any


class Slotted:
    """The same, in slots."""

    __slots__ = ("keys",)


class Klass:
    """A class that is state itself."""

    keys: Any = None


class Way(NamedTuple):
    """A compiled function, how to call it, and how to look at what it updates."""

    step: Any
    call: Callable[[], Any]
    read: Callable[[], array]


def an_argument_that_is_overwritten(x: array) -> Way:
    @mx.compile
    def step(x: array) -> None:
        x *= 0.5
        x += 1

    return Way(step, lambda: step(x), lambda: x)


def an_argument_of_which_all_is_set(x: array) -> Way:
    @mx.compile
    def step(x: array) -> None:
        x[:] = x * 0.5 + 1

    return Way(step, lambda: step(x), lambda: x)


def an_argument_given_twice(x: array) -> Way:
    @mx.compile
    def step(x: array, y: array) -> None:
        x *= 0.5
        y += 1

    return Way(step, lambda: step(x, x), lambda: x)


def an_argument_by_name(x: array) -> Way:
    @mx.compile
    def step(*, x: array) -> None:
        x *= 0.5
        x += 1

    return Way(step, lambda: step(x=x), lambda: x)


def a_captured_array_that_is_overwritten(x: array) -> Way:
    @mx.compile
    def step() -> None:
        nonlocal x
        x *= 0.5
        x += 1

    return Way(step, step, lambda: x)


def a_variable_of_an_enclosing_function(x: array) -> Way:
    @mx.compile
    def step() -> None:
        nonlocal x
        x = x * 0.5 + 1

    return Way(step, step, lambda: x)


GLOBAL: Any = None


def a_global(x: array) -> Way:
    global GLOBAL
    GLOBAL = x

    @mx.compile
    def step() -> None:
        global GLOBAL
        GLOBAL = GLOBAL * 0.5 + 1

    return Way(step, step, lambda: GLOBAL)


def an_attribute(x: array, owner: Any = Plain) -> Way:
    cache = owner() if owner is not Klass else Klass
    cache.keys = x

    @mx.compile
    def step() -> None:
        cache.keys = cache.keys * 0.5 + 1

    return Way(step, step, lambda: cache.keys)


def a_slot(x: array) -> Way:
    return an_attribute(x, Slotted)


def an_attribute_of_a_class(x: array) -> Way:
    return an_attribute(x, Klass)


def an_attribute_of_an_argument(x: array) -> Way:
    cache = Plain()
    cache.keys = x

    @mx.compile
    def step(cache: Plain) -> None:
        cache.keys = cache.keys * 0.5 + 1

    return Way(step, lambda: step(cache), lambda: cache.keys)


def an_item_of_a_dict(x: array) -> Way:
    state = {"k": x, "n": 3}

    @mx.compile
    def step(state: Any) -> None:
        state["k"] = state["k"] * 0.5 + 1

    return Way(step, lambda: step(state), lambda: state["k"])  # type: ignore[return-value]


def an_item_of_a_list(x: array) -> Way:
    params = [mx.array(1.0), x]

    @mx.compile
    def step() -> None:
        for i, p in enumerate(params):
            params[i] = p * 0.5 + 1

    return Way(step, step, lambda: params[1])


def two_items_of_a_list(x: array) -> Way:
    params = [x, x]

    @mx.compile
    def step() -> None:
        params[0] = params[1] = params[0] * 0.5 + 1

    return Way(step, step, lambda: params[1])


def a_tuple_in_a_list(x: array) -> Way:
    caches = [(mx.array(2.0), x)]

    @mx.compile
    def step() -> None:
        k, v = caches[0]
        caches[0] = (k + 1, v * 0.5 + 1)

    return Way(step, step, lambda: caches[0][1])


def a_tree_that_is_made_anew(x: array) -> Way:
    state: dict[str, Any] = {"params": {"w": [x, mx.array(1.0)], "b": mx.array(0.5)}, "step": 0}

    def new(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: new(value) for name, value in tree.items()}
        return [new(value) for value in tree] if isinstance(tree, list) else tree * 0.5 + 1

    @mx.compile
    def step(state: Any) -> None:
        state["params"] = new(state["params"])

    return Way(step, lambda: step(state), lambda: state["params"]["w"][0])


def state_as_mlx_has_it(x: array) -> Way:
    state = [{"k": x}, mx.random.state]

    def step() -> array:
        state[0]["k"] = state[0]["k"] * 0.5 + 1
        return mx.random.uniform(shape=(3,))

    compiled = mx.compile(step, inputs=state, outputs=state)
    return Way(compiled, compiled, lambda: state[0]["k"])


def a_method(x: array) -> Way:
    class Cache:
        def __init__(self, keys: array) -> None:
            self.keys = keys

        @mx.compile
        def step(self) -> None:
            self.keys = self.keys * 0.5 + 1

    cache = Cache(x)
    return Way(Cache.__dict__["step"], cache.step, lambda: cache.keys)


def a_compiled_function_inside(x: array) -> Way:
    @mx.compile
    def inner(x: array) -> array:
        return x * 0.5

    state = {"k": x}

    @mx.compile
    def step(state: Any) -> None:
        state["k"] = inner(state["k"]) + 1

    return Way(step, lambda: step(state), lambda: state["k"])


def without_shapes(x: array) -> Way:
    def step(x: array) -> None:
        x *= 0.5
        x += 1

    compiled = mx.compile(step, shapeless=True)
    return Way(compiled, lambda: compiled(x), lambda: x)


WAYS = {
    way.__name__.replace("_", " "): way
    for way in (
        an_argument_that_is_overwritten, an_argument_of_which_all_is_set, an_argument_given_twice, an_argument_by_name,
        a_captured_array_that_is_overwritten, a_variable_of_an_enclosing_function, a_global, an_attribute, a_slot,
        an_attribute_of_a_class, an_attribute_of_an_argument, an_item_of_a_dict, an_item_of_a_list, two_items_of_a_list,
        a_tuple_in_a_list, a_tree_that_is_made_anew, state_as_mlx_has_it, a_method, a_compiled_function_inside,
        without_shapes,
    )
}  # fmt: skip
OVERWRITE = {name for name in WAYS if "overwritten" in name or "argument" in name or name == "without shapes"}
OVERWRITE -= {"an attribute of an argument"}
"""Ways in which the array stays and gets another value: every name for it sees that."""
