"""vmap as a user meets it: axes in and out, containers, captured arrays, errors."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import numpy as np
import pytest

import weft.core as mx
from tests.contract import settings
from tests.test_transforms import close, f, matrix


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    with settings(backend="reference"):
        yield


def test_vmap_over_every_subset_and_axis() -> None:
    """All ways of mapping a function of two matrices, against a loop."""

    def fun(a: mx.array, b: mx.array) -> mx.array:
        return mx.sum(a * mx.exp(-b), axis=0) + a[0]

    element, size = (3, 4), 2
    for in_a in (None, 0, 1, 2, -1, -2, -3):
        for in_b in (None, 0, 1, 2, -1):
            if in_a is None and in_b is None:
                continue
            a = matrix(*element) if in_a is None else matrix(*inserted(element, in_a, size)) / 10
            b = matrix(*element) if in_b is None else matrix(*inserted(element, in_b, size)) / 10
            for out in (0, 1, -1, -2):
                got = mx.vmap(fun, in_axes=(in_a, in_b), out_axes=out)(a, b)
                loop = [fun(taken(a, in_a, i), taken(b, in_b, i)) for i in range(size)]
                close(got, np.stack([np.array(v) for v in loop], out))


def inserted(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    full = list(shape)
    full.insert(axis if axis >= 0 else len(shape) + 1 + axis, size)
    return tuple(full)


def taken(x: mx.array, axis: int | None, i: int) -> mx.array:
    return x if axis is None else mx.array(np.take(np.array(x), i, axis))


def test_vmap_nested_in_any_order() -> None:
    x, y = matrix(2, 3), matrix(4, 3)
    product = mx.vmap(mx.vmap(lambda a, b: mx.sum(a * b), in_axes=(None, 0)), in_axes=(0, None))(x, y)
    close(product, np.array(x) @ np.array(y).T)
    product = mx.vmap(mx.vmap(lambda a, b: mx.sum(a * b), in_axes=(0, None)), in_axes=(None, 0), out_axes=1)(x, y)
    close(product, np.array(x) @ np.array(y).T)
    cube = matrix(2, 3, 4)
    close(mx.vmap(mx.vmap(mx.vmap(lambda s: s * s)), in_axes=2, out_axes=2)(cube), np.array(cube) ** 2)


def test_vmap_of_item_assignment() -> None:
    def fun(a: mx.array, b: mx.array) -> mx.array:
        a[0] = b
        return a

    close(mx.vmap(fun)(matrix(2, 3), matrix(2)), [[0.0, 1.0, 2.0], [1.0, 4.0, 5.0]])
    close(mx.vmap(fun, in_axes=(1, None), out_axes=1)(matrix(2, 3), mx.array(9.0)), [[9.0, 9.0, 9.0], [3.0, 4.0, 5.0]])
    close(mx.vmap(fun, in_axes=(None, 0))(matrix(2), matrix(2)), [[0.0, 1.0], [1.0, 1.0]])


def test_vmap_with_captured_arrays() -> None:
    captured, x = matrix(3, 4), matrix(2, 4)
    got = mx.vmap(lambda row: captured @ row + captured[0, 1])(x)
    close(got, np.array(x) @ np.array(captured).T + 1.0)


def test_vmap_in_axes_are_a_prefix_of_the_arguments() -> None:
    tree = {"a": matrix(2, 3), "b": (matrix(3, 2), matrix(3))}
    fun = lambda t: t["a"] * t["b"][0] + t["b"][1]  # noqa: E731
    expected = np.array(tree["a"]) * np.array(tree["b"][0]).T + np.array(tree["b"][1])
    for axes in ({"a": 0, "b": (1, None)}, ({"a": 0, "b": (1, None)},)):
        close(mx.vmap(fun, in_axes=axes)(tree), expected)
    two = lambda t, u: fun(t) * u  # noqa: E731
    for axes in (({"a": 0, "b": (1, None)}, None), [{"a": 0, "b": (1, None)}, None]):
        close(mx.vmap(two, in_axes=axes)(tree, mx.array(2.0)), 2 * expected)
    both = {"a": matrix(2, 3), "b": (matrix(2, 3), matrix(2, 3))}
    close(mx.vmap(fun, in_axes={"a": 0, "b": 0})(both), fun(both))
    close(mx.vmap(fun)(both), fun(both))


def test_vmap_of_a_single_argument_in_a_tuple() -> None:
    x = matrix(2, 3)
    close(mx.vmap(lambda row: mx.sum(row), in_axes=(1,))(x), np.array(x).sum(0))
    close(mx.vmap(lambda row: row, out_axes=(1,))(x), np.array(x).T)


def test_vmap_out_axes_are_a_prefix_of_the_outputs() -> None:
    x = matrix(2, 3)
    out = mx.vmap(lambda r: {"a": r, "b": [r * 2, mx.sum(r)]}, out_axes={"a": 1, "b": 0})(x)
    close(out["a"], np.array(x).T)
    close(out["b"][0], 2 * np.array(x))
    close(out["b"][1], np.array(x).sum(1))


def test_vmap_of_what_does_not_depend_on_the_mapped_argument() -> None:
    x, constant = matrix(2, 3), mx.array([1.0, 2.0])
    both = mx.vmap(lambda r: (r, constant), out_axes=(0, 1))(x)
    close(both[1], [[1.0, 1.0], [2.0, 2.0]])
    assert mx.vmap(lambda r: (r, constant), out_axes=(0, None))(x)[1].shape == (2,)
    assert mx.vmap(lambda r: mx.zeros((4,)))(x).shape == (2, 4)


def test_vmap_over_no_elements() -> None:
    assert mx.vmap(lambda r: mx.sum(r * 2))(mx.zeros((0, 3))).shape == (0,)


def test_vmap_leaves_unmapped_values_alone() -> None:
    x = mx.array(3.0)
    close(mx.vmap(lambda r, s: r * (x * 2).item() + s, in_axes=(0, None))(matrix(3), 2.0), [2.0, 8.0, 14.0])


def test_vmap_has_no_values_inside() -> None:
    with pytest.raises(ValueError, match=r"\[vmap\] an array has no value while vmap traces.*test_vmap.py"):
        mx.vmap(lambda r: r if r > 0 else -r)(matrix(3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mx.vmap(f)(matrix(3), matrix(4)), r"different sizes: 3 \(axis 0 of shape \(3,\)\), 4 .*Give None"),
        (lambda: mx.vmap(f, in_axes=(0, 1))(matrix(3, 1), matrix(3, 5)), "different sizes: 3 .*, 5"),
        (lambda: mx.vmap(f, in_axes=(None, None))(matrix(3), matrix(3)), "maps no argument"),
        (lambda: mx.vmap(f, in_axes=None)(matrix(3), matrix(3)), "maps no argument"),
        (lambda: mx.vmap(lambda: matrix(3))(), "maps no argument"),
        (lambda: mx.vmap(f, in_axes=(0,))(matrix(3), matrix(3)), "in_axes does not fit arguments"),
        (lambda: mx.vmap(f, in_axes=(0, 0, 0))(matrix(3), matrix(3)), "in_axes does not fit arguments"),
        (lambda: mx.vmap(f, in_axes=(0, "1"))(matrix(3), matrix(3)), "an axis is an integer, or None"),
        (lambda: mx.vmap(mx.exp, in_axes=0.5)(matrix(3)), "an axis is an integer, or None"),
        (lambda: mx.vmap(mx.exp, in_axes=((0,),))(matrix(3)), "in_axes does not fit"),
        (lambda: mx.vmap(mx.exp)(mx.array(1.0)), r"in_axes has 0, which is no axis of an array of shape \(\)"),
        (lambda: mx.vmap(mx.exp, in_axes=2)(matrix(3, 4)), "in_axes has 2"),
        (lambda: mx.vmap(mx.exp, in_axes=-3)(matrix(3, 4)), "in_axes has -3"),
        (lambda: mx.vmap(mx.exp, out_axes=2)(matrix(3, 4)), r"out_axes has 2, .*output of shape \(4,\) with one more"),
        (lambda: mx.vmap(mx.exp, out_axes="a")(matrix(3)), "an axis is an integer, or None"),
        (lambda: mx.vmap(lambda a: (a, a), out_axes=(0, 1, 0))(matrix(3)), "out_axes does not fit"),
        (lambda: mx.vmap(lambda a: {"a": a}, out_axes={"b": 0})(matrix(3)), "out_axes does not fit"),
        (lambda: mx.vmap(mx.exp, out_axes=None)(matrix(3)), "says None for an output that depends"),
        (lambda: mx.vmap(lambda a: 3.0)(matrix(3)), "must return arrays; got float"),
        (lambda: mx.vmap(lambda a: None)(matrix(3)), "returned no array"),
        (lambda: mx.vmap(f)(matrix(3), 2.0), "type float cannot be mapped: give it None"),
        (lambda: mx.vmap(mx.exp)("hello"), "type str cannot be mapped"),
    ],
)
def test_vmap_errors(make: object, message: str) -> None:
    error = IndexError if "which is no axis" in message or re.match(r"\w+_axes has -?\d", message) else ValueError
    with pytest.raises(error, match=r"\[vmap\] .*" + message):
        make()


def test_vmap_takes_no_keywords() -> None:
    x = mx.array(2.0)
    with pytest.raises(TypeError, match=r"\[vmap\] keyword arguments are not mapped: pass y by position"):
        mx.vmap(f)(matrix(3), y=x)
    close(mx.vmap(functools.partial(f, y=x))(matrix(3)), [0.0, 2.0, 8.0])


def test_vmap_of_what_a_function_does_not_touch() -> None:
    """The container that the function returns is the one that it was given, which is put back."""
    given = {"a": mx.ones((3, 2)), "b": [mx.zeros((3,))]}
    got = mx.vmap(lambda p: p)(given)
    assert got["a"].shape == (3, 2)
    assert got["b"][0].shape == (3,)
    assert given["a"].shape == (3, 2)
