"""Shapes, strides and sums of products (einsum and relatives), against NumPy; derivatives, batches, symbolic sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import LAYOUTS, place, values_of
from tests.gradients import check_batch, check_derivatives
from weft import dtypes as dt
from weft.core.einsum import MOST_EXACT
from weft.dtypes import Dtype
from weft.primitives.elementwise import draw as draw_values


def numbers(shape: tuple[int, ...], dtype: Dtype = dt.float32, seed: int = 0) -> np.ndarray:
    return draw_values(np.random.default_rng(seed), dtype, shape, -50.0, 50.0)


def exactly(got: Any, expected: np.ndarray) -> None:
    found = values_of(got)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


@st.composite
def placed(draw: st.DrawFn, *shapes: tuple[int, ...]) -> Any:
    """An evaluated array in some layout."""
    arrange, shift = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    dtype = draw(st.sampled_from([dt.bool_, dt.int16, dt.bfloat16, dt.float32, dt.complex64]))
    return place(arrange(numbers(draw(st.sampled_from(shapes)), dtype)), shift)


# ---- shapes ----


@settings(max_examples=60)
@given(x=placed((24,), (2, 3, 4), (4, 6)), target=st.permutations([2, 3, 4]), cut=st.integers(0, 3))
def test_reshape_and_unflatten(x: Any, target: list[int], cut: int) -> None:
    v = values_of(x)
    shape = (*target[:cut], -1) if cut < 3 else tuple(target)
    exactly(mx.reshape(x, shape), v.reshape(shape))
    exactly(x.reshape(*shape), v.reshape(shape))
    exactly(mx.flatten(x), v.reshape(-1))
    flat = mx.flatten(x)
    exactly(mx.unflatten(flat, 0, shape), v.reshape(shape))
    exactly(mx.unflatten(mx.reshape(x, (4, 6)), -1, (3, -1)), v.reshape(4, 3, 2))


def test_flatten_takes_axes_beyond_the_ends() -> None:
    x = mx.zeros((2, 3, 4))
    assert mx.flatten(x, 1).shape == (2, 12)
    assert mx.flatten(x, -9, 1).shape == (6, 4)
    assert mx.flatten(x, 0, 9).shape == (24,)
    assert mx.flatten(mx.array(1)).shape == (1,)
    with pytest.raises(ValueError, match=r"\[flatten\] start_axis 2 comes after end_axis 1"):
        mx.flatten(x, 2, 1)


def test_reshape_refuses() -> None:
    x = mx.zeros((2, 3))
    for wrong in ((4,), (-1, 4), (-1, -1), (-2, 3)):
        with pytest.raises(ValueError, match=r"\[reshape\]"):
            mx.reshape(x, wrong)
    for strange in (6, (2.0, 3), "ab", mx.array(6)):
        with pytest.raises(TypeError, match=r"\[reshape\] a shape is a sequence of integers"):
            mx.reshape(x, strange)
    with pytest.raises(TypeError, match=r"\[reshape\] a size must be an integer"):
        mx.reshape(x, (mx.array(6.0),))
    for shape in ((mx.array(6),), mx.array([6]), np.array([6]), range(6, 7)):
        assert mx.reshape(x, shape).shape == (6,)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\[reshape\] 0 elements do not fit"):
        mx.reshape(mx.zeros((0, 3)), (0, -1))
    assert mx.reshape(mx.zeros((0, 3)), (3, -1)).shape == (3, 0)
    for axis, shape, error in ((1, (2, 2), ValueError), (2, (3,), IndexError), (0, (), ValueError)):
        with pytest.raises(error, match=r"\[unflatten\]"):
            mx.unflatten(x, axis, shape)


@settings(max_examples=40)
@given(x=placed((2, 3, 5)), order=st.permutations([0, 1, 2]), i=st.integers(-3, 2), j=st.integers(-3, 2))
def test_axes(x: Any, order: list[int], i: int, j: int) -> None:
    v = values_of(x)
    exactly(mx.transpose(x, order), v.transpose(order))
    exactly(mx.permute_dims(x, order), v.transpose(order))
    exactly(mx.swapaxes(x, i, j), v.swapaxes(i, j))
    exactly(mx.moveaxis(x, i, j), np.moveaxis(v, i, j))
    exactly(mx.matrix_transpose(x), v.swapaxes(-1, -2))
    exactly(x.mT, v.swapaxes(-1, -2))
    exactly(mx.expand_dims(x, (0, -1)), np.expand_dims(v, (0, -1)))
    exactly(mx.flip(x, i), np.flip(v, i))
    exactly(mx.contiguous(mx.transpose(x, order)), v.transpose(order))


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x: mx.transpose(x, (0,)), ValueError), (lambda x: mx.transpose(x, (0, 0)), ValueError),
        (lambda x: mx.transpose(x, (0, 2)), IndexError), (lambda x: mx.swapaxes(x, 0, 2), IndexError),
        (lambda x: mx.moveaxis(x, 2, 0), IndexError), (lambda x: mx.moveaxis(x, (0, 1), (1, 0)), TypeError),
        (lambda x: mx.expand_dims(x, 5), IndexError), (lambda x: mx.expand_dims(x, (0, 0)), ValueError),
        (lambda x: mx.squeeze(x, 0), ValueError), (lambda x: mx.squeeze(x, 3), IndexError),
        (lambda x: mx.matrix_transpose(x[0]), ValueError), (lambda x: mx.broadcast_to(x, (3,)), ValueError),
        (lambda x: mx.broadcast_to(x, 3), TypeError), (lambda x: mx.broadcast_to(x, (-1, 3)), ValueError),
        (lambda x: mx.broadcast_shapes(), ValueError), (lambda x: mx.atleast_2d([x, x]), TypeError),
        (lambda x: mx.split(x, 2, 1), ValueError), (lambda x: mx.split(x, 2, 2), IndexError),
    ],
)  # fmt: skip
def test_axes_refuse(function: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[\w+\]"):
        function(mx.zeros((2, 3)))


@given(shape=st.sampled_from([(), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (0,)]))
def test_at_least(shape: tuple[int, ...]) -> None:
    v = numbers(shape)
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        exactly(getattr(mx, name)(mx.array(v)), getattr(np, name)(v))
        pair = getattr(mx, name)(mx.array(v), 3.0)
        assert len(pair) == 2
        exactly(pair[0], getattr(np, name)(v))
        assert getattr(mx, name)() == []


# ---- strides ----


@settings(max_examples=80)
@given(
    x=placed((24,), (4, 6), (2, 3, 4)),
    shape=st.lists(st.integers(0, 4), max_size=3),
    strides=st.lists(st.integers(-3, 6), min_size=3, max_size=3),
    offset=st.integers(0, 23),
)
def test_as_strided(x: Any, shape: list[int], strides: list[int], offset: int) -> None:
    steps = strides[: len(shape)]
    flat = np.ascontiguousarray(values_of(x)).reshape(-1)
    reach = [(n - 1) * s for n, s in zip(shape, steps, strict=True)]
    low, high = offset + sum(min(0, r) for r in reach), offset + sum(max(0, r) for r in reach)
    if math.prod(shape) and not (low >= 0 and high < 24):
        with pytest.raises(
            ValueError, match=rf"\[as_strided\] .*reach elements {low} to {high} of an array that has 24"
        ):
            mx.as_strided(x, shape, steps, offset)
        return
    size = flat.itemsize
    expected = np.lib.stride_tricks.as_strided(flat[offset:], shape, [s * size for s in steps])
    exactly(mx.as_strided(x, shape, steps, offset), np.array(expected))


def test_as_strided_defaults() -> None:
    x = mx.arange(6)
    assert mx.as_strided(x).tolist() == [0, 1, 2, 3, 4, 5]
    assert mx.as_strided(x, (2, 2), offset=2).tolist() == [[2, 3], [4, 5]]
    with pytest.raises(ValueError, match="differ in length"):
        mx.as_strided(x, (2, 2), (1,))
    with pytest.raises(ValueError, match="cannot be negative"):
        mx.as_strided(x, (-1,), (1,))


def test_windows_of_a_sequence_have_derivatives() -> None:
    def windows(x: Any) -> Any:
        return mx.as_strided(x, (4, 3), (1, 1)) * mx.arange(3, dtype=x.dtype)

    check_derivatives(windows, np.linspace(0.1, 0.9, 6))
    check_batch(windows, [1], numbers((6, 3)))


# ---- products ----


@settings(max_examples=40)
@given(data=st.data(), dtype=st.sampled_from([dt.bool_, dt.int32, dt.float64, dt.complex128]))
def test_products(data: st.DataObject, dtype: Dtype) -> None:
    shapes = st.sampled_from([(), (1,), (3,), (2, 3), (0,), (4, 0), (2, 1, 3)])
    a, b = (numbers(data.draw(shapes), dtype, i) for i in (0, 1))
    x, y = mx.array(a, dtype), mx.array(b, dtype)
    np.testing.assert_allclose(values_of(mx.outer(x, y)), np.outer(a, b), rtol=1e-13)
    if a.size and b.size:
        kron = np.kron(a, b)
        np.testing.assert_allclose(values_of(mx.kron(x, y)), kron, rtol=1e-13)
    if a.ndim and b.ndim and a.shape[-1] != b.shape[-1]:
        with pytest.raises(ValueError, match=r"\[inner\] the last axes"):
            mx.inner(x, y)
        return
    counted = (a.astype(np.int32), b.astype(np.int32)) if dtype.is_bool and a.ndim and b.ndim else (a, b)
    np.testing.assert_allclose(values_of(mx.inner(x, y)), np.inner(*counted), rtol=1e-12, atol=1e-9)


@settings(max_examples=60)
@given(data=st.data())
def test_tensordot(data: st.DataObject) -> None:
    a, b = numbers((3, 2, 4), dt.float64), numbers((4, 2, 3), dt.float64, 1)
    pairs = data.draw(
        st.lists(st.sampled_from([(0, 2), (1, 1), (2, 0), (-1, -3)]), max_size=3, unique_by=lambda p: p[0] % 3)
    )
    axes = data.draw(st.sampled_from([0, ([p for p, _ in pairs], [q for _, q in pairs])]))
    np.testing.assert_allclose(
        values_of(mx.tensordot(mx.array(a, mx.float64), mx.array(b, mx.float64), axes)),
        np.tensordot(a, b, axes),
        rtol=1e-11,
    )


def test_tensordot_refuses() -> None:
    x, y = mx.zeros((3, 2, 4)), mx.zeros((4, 2, 3))
    for axes in (-1, 4, 2, ([0], [1]), ([0, 1], [1]), ([0, 0], [2, 2])):
        with pytest.raises(ValueError, match=r"\[tensordot\]"):
            mx.tensordot(x, y, axes)
    with pytest.raises(IndexError, match=r"\[tensordot\] axis 3"):
        mx.tensordot(x, y, ([3], [0]))


def test_vecdot() -> None:
    a, b = numbers((4, 3, 2), dt.complex128), numbers((4, 3, 2), dt.complex128, 1)
    x, y = mx.array(a, mx.complex128), mx.array(b, mx.complex128)
    for axis in (-1, -2, 0, 1):
        np.testing.assert_allclose(values_of(mx.vecdot(x, y, axis=axis)), np.sum(a.conj() * b, axis), rtol=1e-12)
    np.testing.assert_allclose(values_of(mx.vecdot(x[0], y)), np.sum(a[0].conj() * b, -1), rtol=1e-12)
    assert mx.vecdot(mx.array([200, 200], mx.uint8), mx.array([1, 1], mx.uint8)).item() == 400
    for wrong in ((mx.array(1), mx.array(2)), (mx.zeros(2), mx.zeros(3)), (mx.zeros((2, 1)), mx.zeros((2, 3)))):
        with pytest.raises(ValueError, match=r"\[vecdot\]"):
            mx.vecdot(*wrong)


def test_addmm_keeps_integers() -> None:
    out = mx.addmm(mx.array([1]), mx.array([[1, 2]]), mx.array([[3], [4]]))
    assert (out.dtype, out.tolist()) == (mx.int32, [[12]])
    assert mx.addmm(mx.array([1.0]), mx.array([[1.0]]), mx.array([[3.0]]), alpha=2.0, beta=-1.0).tolist() == [[5.0]]


# ---- einsum ----

SIZES = {"a": 2, "b": 3, "c": 4, "d": 1, "e": 2, "f": 3}


@st.composite
def subscripts(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """Terms of letters (some repeated), perhaps with an ellipsis, and a result of some of them."""
    count = draw(st.integers(1, 4))
    dots = draw(st.booleans())
    terms, shapes = [], []
    for _ in range(count):
        letters = draw(st.lists(st.sampled_from("abcdef"), max_size=3))
        shape = [SIZES[letter] for letter in letters]
        if dots and draw(st.booleans()):
            hidden = draw(st.sampled_from([(), (2,), (3, 2), (1,), (3, 1)]))
            at = draw(st.integers(0, len(letters)))
            shape[at:at] = hidden
            letters.insert(at, "...")
        terms.append("".join(letters))
        shapes.append(tuple(shape))
    if draw(st.booleans()):
        return ",".join(terms), shapes
    used = sorted(set("".join(terms).replace(".", "")))
    kept = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    return f"{','.join(terms)}->{'...' if any('...' in t for t in terms) else ''}{''.join(kept)}", shapes


@settings(max_examples=200)
@given(given_=subscripts())
def test_einsum_is_numpys(given_: tuple[str, list[tuple[int, ...]]]) -> None:
    text, shapes = given_
    values = [draw_values(np.random.default_rng(i), dt.float64, shape, 0.5, 1.5) for i, shape in enumerate(shapes)]
    expected = np.einsum(text, *values)
    got = values_of(mx.einsum(text, *(mx.array(v, mx.float64) for v in values)))
    assert got.shape == expected.shape, text
    np.testing.assert_allclose(got, expected, rtol=1e-12, err_msg=text)


def test_einsum_in_other_dtypes() -> None:
    a, b = np.array([[1, 2], [3, 4]]), np.array([5, 6])
    assert mx.einsum("ij,j->i", mx.array(a), mx.array(b)).tolist() == [17, 39]
    assert mx.einsum("i->", mx.array([True, True])).item() == 2
    assert mx.einsum("ij,j->i", mx.array(a, mx.uint8), mx.array(b, mx.float16)).dtype is mx.float16
    assert mx.einsum("i,i->i", mx.array([True, True]), mx.array([True, False])).tolist() == [True, False]
    assert mx.einsum("i,i", mx.array([1j, 2]), mx.array([1j, 3])).item() == 5
    assert mx.einsum(" i j , j -> i ", mx.array(a), mx.array(b)).tolist() == [17, 39]
    assert mx.einsum("", 3).item() == 3


@pytest.mark.parametrize(
    ("text", "shapes", "reason"),
    [
        ("ij,jk->ii", [(2, 3), (3, 4)], "names an axis twice"), ("ij->z", [(2, 3)], "no operand has: z"),
        ("ij,jk", [(2, 3), (4, 4)], "'j' has size 3 in one operand and 4 in operand 1"),
        ("ij", [], "at least one operand"),
        ("ij,jk", [(2, 3)], "describes 2 operands; got 1"), ("ijk", [(2, 3)], "does not describe an array with 2 axes"),
        ("i.j", [(2, 3)], "subscripts are letters; got '.'"), ("é", [(2,)], "subscripts are letters"),
        ("ii", [(2, 3)], "'i' has size 2"), ("...i...", [(2, 3)], "more than one ellipsis"),
        ("...,...", [(2,), (3,)], "the ellipsis has size 2"), ("i->j->i", [(2,)], "subscripts are letters"),
    ],
)  # fmt: skip
def test_einsum_refuses(text: str, shapes: list[tuple[int, ...]], reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        mx.einsum(text, *(mx.zeros(s) for s in shapes))
    assert reason in str(refused.value)
    assert str(refused.value).startswith("[einsum]")


def test_einsum_wants_its_subscripts_first() -> None:
    with pytest.raises(TypeError, match=r"\[einsum\] subscripts come first"):
        mx.einsum(mx.zeros(3), "i")


def test_derivatives_of_einsum() -> None:
    a, b, c = numbers((2, 3, 3), dt.float64), numbers((3, 4), dt.float64, 1), numbers((4, 2), dt.float64, 2)
    check_derivatives(lambda x, y, z: mx.einsum("bii,ij,jk->bk", x, y, z) * 1e-3, a, b, c)
    check_batch(lambda x, y: mx.einsum("i...,i->...", x, y), [1, None], numbers((3, 4, 2)), numbers((3,)))


SYMBOLIC = {
    "attention": (lambda q, k: mx.einsum("bid,bjd->bij", q, k), lambda n: [(2, n, 4), (2, n + 1, 4)]),
    "products": (lambda x, y: mx.einsum("id,jd->ijd", x, y), lambda n: [(n, 4), (n + 1, 4)]),
    "outer": (mx.outer, lambda n: [(n,), (n + 1,)]),
    "kron": (mx.kron, lambda n: [(n,), (n + 1,)]),
    "tensordot": (lambda x, y: mx.tensordot(x, y, ([1], [1])), lambda n: [(n, 4), (n + 1, 4)]),
    "unflatten": (lambda x: mx.unflatten(x, 1, (2, -1)), lambda n: [(n, 4)]),
    "meshgrid": (lambda x, y: mx.meshgrid(x, y)[0], lambda n: [(n,), (n + 1,)]),
    "narrow view": (lambda x: mx.view(x, mx.int16), lambda n: [(3, n)]),
    "wide view": (lambda x: mx.view(x, mx.int64), lambda n: [(3, 2 * n)]),
    "diff": (mx.diff, lambda n: [(n,)]),
    "equal": (mx.array_equal, lambda n: [(n,), (n,)]),
    "atleast_3d": (mx.atleast_3d, lambda n: [(n, n + 1)]),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_one_trace_serves_all_sizes(name: str) -> None:
    function, shapes = SYMBOLIC[name]
    compiled = mx.compile(function, shapeless=True)
    for n in (4, 6, 10):
        values = [numbers(shape, seed=i) for i, shape in enumerate(shapes(n))]
        exactly(compiled(*map(mx.array, values)), values_of(function(*map(mx.array, values))))
    assert sum(1 for entry in compiled._variants.values() for _ in entry) == 1


def test_the_order_of_a_product_is_that_of_the_plain_call() -> None:
    def chain(x: Any, y: Any, z: Any) -> Any:
        return mx.einsum("ij,jk,kl->il", x, y, z)

    compiled = mx.compile(chain, shapeless=True)
    for n in (3, 30):
        values = [mx.array(numbers(s, seed=i)) for i, s in enumerate([(5, n), (n, 17), (17, 4)])]
        exactly(compiled(*values), values_of(chain(*values)))


# ---- the order of einsum ----


def cost(text: str, path: list[tuple[int, ...]], sizes: dict[str, int]) -> int:
    """What a path costs, counted plainly: the product of all sizes of each step, twice where something is summed."""
    terms, result = text.split("->")[0].split(","), text.split("->")[1]
    total = 0
    for places in path:
        chosen = [terms[i] for i in places]
        terms = [t for i, t in enumerate(terms) if i not in places]
        kept = "".join(sorted({x for t in chosen for x in t} & {*result, *"".join(terms)}))
        every = {x for t in chosen for x in t}
        total += math.prod(sizes[x] for x in every) * (1 + (len(kept) < len(every)))
        terms.append(kept)
    assert len(terms) == 1
    return total


@settings(max_examples=40)
@given(data=st.data())
def test_the_path_is_the_best(data: st.DataObject) -> None:
    """Against NumPy's optimal search, for chains and other products of up to five operands."""
    sizes = {letter: data.draw(st.integers(2, 9)) for letter in "abcdef"}
    terms = data.draw(
        st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=2, unique=True), min_size=3, max_size=5)
    )
    names = ["".join(t) for t in terms]
    used = sorted(set("".join(names)))
    text = f"{','.join(names)}->{''.join(data.draw(st.permutations(used))[:2])}"
    arrays = [np.zeros(tuple(sizes[x] for x in name)) for name in names]
    ours, report = mx.einsum_path(text, *(mx.array(a) for a in arrays))
    theirs = [tuple(step) for step in np.einsum_path(text, *arrays, optimize="optimal")[0][1:]]
    assume(all(len(step) == 2 for step in theirs))
    assert cost(text, ours, sizes) <= cost(text, theirs, sizes)
    assert report.startswith(text)
    assert f"{cost(text, ours, sizes)} in these steps" in report


def test_many_operands_are_ordered_greedily() -> None:
    letters = "abcdefghijkl"
    text = ",".join(letters[i : i + 2] for i in range(11)) + "->al"
    rng = np.random.default_rng(0)
    values = [rng.uniform(0.5, 1.0, (2 + i % 3, 2 + (i + 1) % 3)) for i in range(11)]
    assert len(values) > MOST_EXACT
    got = values_of(mx.einsum(text, *(mx.array(v, mx.float64) for v in values)))
    np.testing.assert_allclose(got, np.linalg.multi_dot(values), rtol=1e-12)
    path, _ = mx.einsum_path(text, *map(mx.array, values))
    assert len(path) == 10


def test_a_path_of_one_or_two() -> None:
    assert mx.einsum_path("ij->i", mx.zeros((2, 3)))[0] == [(0,)]
    assert mx.einsum_path("ij,jk", mx.zeros((2, 3)), mx.zeros((3, 4)))[0] == [(0, 1)]


# ---- order in memory ----

IN_MEMORY = {name: arrange for name, (arrange, _) in LAYOUTS.items()}


@pytest.mark.parametrize("layout", IN_MEMORY)
@pytest.mark.parametrize("dtype", [dt.bool_, dt.float16, dt.float32, dt.complex128], ids=lambda d: d.name)
def test_contiguous_is_row_major(layout: str, dtype: Dtype) -> None:
    x = place(IN_MEMORY[layout](numbers((6, 5), dtype)))
    want = values_of(x)
    for f in (mx.contiguous, mx.compile(mx.contiguous), mx.compile(mx.contiguous, shapeless=True)):
        for y, expected in ((x, want), (x.T, want.T), (x[::-1], want[::-1]), (x[:, 1:], want[:, 1:])):
            mx.eval(y)
            made = f(y)
            assert memoryview(made).c_contiguous
            exactly(made, expected)


def test_contiguous_copies_only_where_it_must() -> None:
    x = place(numbers((6, 5)))
    turned, part = x.T, x[2:]
    mx.eval(turned, part)
    for f in (mx.contiguous, mx.compile(mx.contiguous)):
        assert np.shares_memory(np.asarray(f(x)), np.asarray(x))
        assert np.shares_memory(np.asarray(f(part)), np.asarray(x))
        assert not np.shares_memory(np.asarray(f(turned)), np.asarray(x))
    either = mx.contiguous(turned, allow_col_major=True)
    assert np.shares_memory(np.asarray(either), np.asarray(x))
    assert np.asarray(either).strides == (4, 20)
    assert np.asarray(mx.contiguous(x[:, :3].T, allow_col_major=True)).strides == (24, 4)
    assert np.asarray(mx.contiguous(mx.broadcast_to(x[0], (3, 5)))).strides == (20, 4)
    assert np.asarray(mx.contiguous(x.T).T).strides == (4, 24)


def test_contiguous_agrees_with_mlx() -> None:
    theirs = pytest.importorskip("mlx.core")
    values = numbers((3, 4, 5))
    for either in (False, True):
        for view in (
            lambda v: v,
            lambda v: v.transpose(2, 1, 0),
            lambda v: v.transpose(1, 0, 2),
            lambda v: v[1:],
            lambda v: v[:, 1:].transpose(2, 1, 0),
            lambda v: v[::-1],
        ):
            ours, other = view(mx.array(values)), view(theirs.array(values))
            mx.eval(ours)
            strides = [memoryview(m.contiguous(v, either)).strides for m, v in ((mx, ours), (theirs, other))]
            assert strides[0] == strides[1]


def test_derivatives_and_batches_of_contiguous() -> None:
    values = numbers((3, 4), dt.float64)
    weights = mx.array(numbers((4, 3), dt.float64, 1), dt.float64)
    f = lambda x: mx.contiguous(x.T) * weights * mx.contiguous(x.T, allow_col_major=True)  # noqa: E731
    check_derivatives(f, values)
    check_batch(mx.contiguous, [1], numbers((2, 3, 4)))
