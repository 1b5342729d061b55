"""Random numbers: MLX's counter-based generator, the same bits for the same key on every machine.

Every function takes `key=`; without one, the global state is split and advanced. What is made of the bits by exact
operations (uniform, randint, bernoulli, permutation, split) has MLX's bits; what goes through our own elementary
functions (normal and the others) agrees with MLX to some units in the last place. A float64 draw is the float32 draw of
the same key with more bits behind it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.array import array, wrap
from weft.core._common import (
    ArrayLike,
    astype,
    bind,
    broadcast_node,
    broadcast_shapes,
    constant,
    is_whole,
    kind_of,
    normalize_axis,
    scalar_node,
    to_node,
    whole_number,
)
from weft.core.creating import dtype_of, sizes_of
from weft.core.gathering import take
from weft.core.linear import matmul
from weft.core.reducing import argmax
from weft.dtypes import Dtype
from weft.graph.dims import is_now, prod
from weft.graph.node import Node, Shape
from weft.primitives import elementwise as e
from weft.primitives.bits import Cartesian
from weft.primitives.creation import Iota
from weft.primitives.random import ROTATIONS, Threefry
from weft.primitives.reductions import Max
from weft.primitives.scans import CumSum
from weft.primitives.sorting import ArgSort, SearchSorted
from weft.primitives.views import Slice, reshape, restore_axes
from weft.runtime.data import Buffer, numpy_view
from weft.transforms.bodies import random_state
from weft.transforms.drawing import DRAWING, RANDOM_STATE

Stream = Any
Sizes = int | Sequence[int]

_WORD = 0xFFFFFFFF


# ---- keys and the global state ----


def key(seed: int) -> array:
    """A key from a seed, a number of 64 bits.

    >>> random.key(42)
    array([0, 42], dtype=uint32)
    """
    if not hasattr(seed, "__index__"):
        raise TypeError(f"[random.key] a seed is an integer; got {seed!r}.")
    number = seed.__index__()
    if not 0 <= number < 1 << 64:
        raise ValueError(f"[random.key] a seed has 64 bits: 0 <= seed < 2**64; got {number}.")
    return array([number >> 32, number & _WORD], dt.uint32)


state: list[array] = [key(time.time_ns() & 0xFFFFFFFFFFFFFFFF)]
"""The global state, as a list of one key: pass it to compile(inputs=..., outputs=...) as in MLX, or not at all."""
RANDOM_STATE[0] = state


def seed(seed: int) -> None:
    """Start the global sequence of keys anew: what is drawn without a key is then the same again.

    >>> random.seed(3)
    >>> x = random.normal((2,))
    >>> random.seed(3)
    >>> array_equal(x, random.normal((2,)))
    array(True, dtype=bool)
    """
    first = key(seed)
    with DRAWING:
        random_state()[0] = first


def split(key: ArrayLike, num: int = 2, stream: Stream = None) -> array:
    """`num` new keys from one, as rows.

    >>> a, b = random.split(random.key(7))
    """
    return wrap(bits_node("split", (*sizes_of("random.split", num), 2), _key_node("split", key)))


def _next_key() -> Node:
    """Advance the global state: the first key of its split takes its place, the second one is used.

    A state that has a value is split right here: keys that are drawn one after the other would else be a graph that
    grows for ever.
    """
    with DRAWING:
        state = random_state()
        current = state[0]._node
        if isinstance(current.value, Buffer) and current.kind is kind_of((2,), dt.uint32):
            first, second = (int(word) for word in numpy_view(current.value, (2,), dt.uint32))
            (a, c), (b, d) = _threefry(first, second, 0, 2), _threefry(first, second, 1, 3)
            state[0] = array([a, b], dt.uint32)
            return array([c, d], dt.uint32)._node
        both = split(state[0])
        state[0] = wrap(_row(both._node, 0))
        return _row(both._node, 1)


def _threefry(k0: int, k1: int, x: int, y: int) -> tuple[int, int]:
    """The generator on Python's integers (the primitive is `Threefry`)."""
    keys = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    x, y = (x + k0) & _WORD, (y + k1) & _WORD
    for block in range(5):
        for by in ROTATIONS[block % 2]:
            x = (x + y) & _WORD
            y = ((y << by | y >> (32 - by)) & _WORD) ^ x
        x = (x + keys[(block + 1) % 3]) & _WORD
        y = (y + keys[(block + 2) % 3] + block + 1) & _WORD
    return x, y


def _row(x: Node, i: int) -> Node:
    return reshape(bind(Slice((i, 0), (1, 2), (1, 1)), x), (2,))


def _key_node(name: str, given: ArrayLike | None) -> Node:
    if given is None:
        return _next_key()
    node = to_node(given)
    if node.dtype is not dt.uint32 or node.ndim != 1 or node.shape[0] != 2:
        raise ValueError(
            f"[random.{name}] a key is a uint32 array of shape (2,), made by key() or split(); got {node.kind}. "
            "To draw with several keys, use vmap."
        )
    return node


# ---- bits ----


def bits_node(name: str, shape: Shape, keys: Node, width: int = 4) -> Node:
    """Uniform random bits: uint8, uint16 or uint32 by width. The stream of 32-bit words is laid out as MLX does."""
    place, size = _places(name, shape)
    if width == 4:
        return _words(place, size, keys)
    per_word = 4 // width
    word = bind(e.RightShift(), place, scalar_node(per_word.bit_length() - 1, place.kind))
    words = _words(word, (size + per_word - 1) // per_word, keys)
    within = bind(e.BitwiseAnd(), place, scalar_node(per_word - 1, place.kind))
    shift = within * scalar_node(8 * width, within.kind)
    return astype(bind(e.RightShift(), words, shift), {1: dt.uint8, 2: dt.uint16}[width])


def _words(word: Node, total: Any, keys: Node) -> Node:
    """Words of the stream of `total` words of a key, by their numbers."""
    first, second = (broadcast_node(reshape(bind(Slice((i,), (1,), (1,)), keys), ()), word.shape) for i in range(2))
    return bind(Threefry(), first, second, word, scalar_node(total, word.kind))


def bits(shape: Sizes = (), width: int = 4, key: ArrayLike | None = None, stream: Stream = None) -> array:
    """Uniform random integers of `width` bytes (1, 2 or 4), unsigned."""
    if width not in (1, 2, 4):
        raise ValueError(f"[random.bits] width must be 1, 2 or 4 bytes; got {width}.")
    return wrap(bits_node("bits", sizes_of("random.bits", shape), _key_node("bits", key), width))


# ---- uniform ----


def _unit(place: Node, total: Any, dtype: Dtype, keys: Node) -> Node:
    """Uniform in [0, 1): number `place` (uint32) of `total`, in the dtype."""
    words = _words(place, total, keys)
    if dtype is dt.float64:
        return _unit_float64(words, _words(place, total, bits_node("bits", (2,), keys)))
    raw = astype(words, dt.float32)
    ratio = raw / scalar_node(float(np.float32(_WORD)), raw.kind)
    below = float(np.nextafter(dtype.np.type(1), dtype.np.type(0)))
    return astype(bind(e.Minimum(), ratio, scalar_node(below, ratio.kind)), dtype)


def _unit_float64(high: Node, low: Node) -> Node:
    """53 random bits: the word that float32 is made of, and 21 more bits."""
    more = astype(bind(e.RightShift(), low, scalar_node(11, low.kind)), dt.float64)
    whole = astype(high, dt.float64) * scalar_node(2.0**21, more.kind) + more
    return whole * scalar_node(2.0**-53, more.kind)


def _places(name: str, shape: Shape, each: int = 1) -> tuple[Node, Any]:
    """The number of each element, and how many there are. An element needs `each` of the numbers of a key."""
    total = prod(shape)
    if each * total > _WORD:
        raise ValueError(
            f"[random.{name}] a key gives at most {_WORD} random numbers, and shape {shape} needs {each * total}; "
            "draw in parts, each with a key of its own (random.split)."
        )
    return astype(bind(Iota(shape)), dt.uint32), total


def _between(lower: Node, upper: Node, place: Node, total: Any, keys: Node) -> Node:
    """Uniform in [lower, upper), in their dtype."""
    lower, upper = broadcast_node(lower, place.shape), broadcast_node(upper, place.shape)
    return (upper - lower) * _unit(place, total, lower.dtype, keys) + lower


def _signed_unit(place: Node, total: Any, dtype: Dtype, keys: Node) -> Node:
    """Uniform in (-1, 1); halves are drawn in float32."""
    work = dt.float64 if dtype in (dt.float64, dt.complex128) else dt.float32
    least = float(np.nextafter(work.np.type(-1), work.np.type(0)))
    low, high = (constant(number, kind_of((), work)) for number in (least, 1.0))
    return _between(low, high, place, total, keys)


def _float_dtype(name: str, dtype: Dtype | None) -> Dtype:
    dtype = dtype_of(f"random.{name}", dtype, dt.float32)
    if not dtype.is_float:
        raise ValueError(f"[random.{name}] draws real floating-point numbers; got dtype {dtype.name}.")
    return dtype


def _drawn_shape(name: str, shape: Sizes | None, *parameters: Node) -> Shape:
    """The shape that was asked for, into which the parameters must fit; theirs if none was."""
    together = broadcast_shapes(f"random.{name}", *(p.shape for p in parameters))
    if shape is None:
        return together
    sizes = sizes_of(f"random.{name}", shape)
    if broadcast_shapes(f"random.{name}", together, sizes) != sizes:
        raise ValueError(f"[random.{name}] parameters of shape {together} do not fit shape {sizes}.")
    return sizes


def uniform(
    low: ArrayLike = 0, high: ArrayLike = 1, shape: Sizes | None = None, dtype: Dtype | None = None,
    key: ArrayLike | None = None, stream: Stream = None,
) -> array:  # fmt: skip
    """Uniform in [low, high). The shape is that of low and high together, unless given."""
    dtype = _float_dtype("uniform", dtype)
    lower, upper = astype(to_node(low), dtype), astype(to_node(high), dtype)
    sizes = _drawn_shape("uniform", shape, lower, upper)
    return wrap(_between(lower, upper, *_places("uniform", sizes), _key_node("uniform", key)))


def bernoulli(
    p: ArrayLike = 0.5, shape: Sizes | None = None, key: ArrayLike | None = None, stream: Stream = None
) -> array:
    """True with probability p. The shape is that of p, unless given."""
    given = to_node(p)
    if not given.dtype.is_float:
        raise ValueError(f"[random.bernoulli] the probability p is a float; got {given.dtype.name}.")
    chance = astype(given, dt.float32)
    sizes = _drawn_shape("bernoulli", shape, chance)
    draw = astype(bits_node("bernoulli", sizes, _key_node("bernoulli", key)), dt.float32)
    above = float(np.nextafter(np.float32(_WORD), np.float32(np.inf)))  # p = 1 is always, p = 0 never
    return wrap(bind(e.Less(), draw, broadcast_node(chance, sizes) * scalar_node(above, draw.kind)))


def randint(
    low: ArrayLike, high: ArrayLike, shape: Sizes | None = None, dtype: Dtype | None = None,
    key: ArrayLike | None = None, stream: Stream = None,
) -> array:  # fmt: skip
    """Uniform integers in [low, high); low where there are none. The shape is that of low and high together, unless
    given.

    Drawn in float32, as in MLX: of a range of more than 2**24 integers not all can occur.
    """
    dtype = dtype_of("random.randint", dtype, dt.int32)
    if not (dtype.is_integer or dtype.is_bool):
        raise ValueError(f"[random.randint] draws integers or bools; got dtype {dtype.name}.")
    lower, upper = to_node(low), to_node(high)
    sizes = _drawn_shape("randint", shape, lower, upper)
    places, keys = _places("randint", sizes), _key_node("randint", key)
    draw = _between(astype(lower, dt.float32), astype(upper, dt.float32), *places, keys)
    whole = astype(bind(e.Floor(), draw), dtype)
    upper = upper if not upper.dtype.is_bool else astype(upper, dt.int32)
    last = astype(upper - constant(1, upper.kind), dtype)
    inside = bind(e.Minimum(), whole, broadcast_node(last, sizes))
    return wrap(bind(e.Maximum(), inside, broadcast_node(astype(lower, dtype), sizes)))


# ---- other distributions ----


def normal(
    shape: Sizes = (), dtype: Dtype | None = None, loc: ArrayLike | None = None, scale: ArrayLike | None = None,
    key: ArrayLike | None = None, stream: Stream = None,
) -> array:  # fmt: skip
    """Normal with mean `loc` and standard deviation `scale` (0 and 1 by default).

    Complex numbers have independent parts of variance 1/2 each, so that the mean of their squared moduli is 1.

    >>> random.normal((2, 3)).shape
    (2, 3)
    """
    dtype = dtype_of("random.normal", dtype, dt.float32)
    if not dtype.is_inexact:
        raise ValueError(f"[random.normal] draws floating-point or complex numbers; got dtype {dtype.name}.")
    sizes, keys = sizes_of("random.normal", shape), _key_node("normal", key)
    width = None if scale is None else wrap(astype(to_node(scale), dtype))
    if dtype.is_complex:
        result = wrap(_complex_normal(sizes, dtype, keys))
        result = result if width is None else width * result
    else:
        root = wrap(constant(math.sqrt(2.0), kind_of((), dtype)))
        result = (root if width is None else root * width) * wrap(_half_normal(*_places("normal", sizes), dtype, keys))
    return result if loc is None else wrap(astype(to_node(loc), dtype)) + result


def _half_normal(place: Node, total: Any, dtype: Dtype, keys: Node) -> Node:
    """Normal with variance 1/2. Halves are drawn in float32 and rounded here."""
    return astype(bind(e.ErfInv(), _signed_unit(place, total, dtype, keys)), dt.real_of(dtype))


def _complex_normal(shape: Shape, dtype: Dtype, keys: Node) -> Node:
    """Real and imaginary parts are neighbours in the stream."""
    place, total = _places("normal", shape, each=2)
    first = place + place
    parts = (first, first + constant(1, first.kind))
    return bind(Cartesian(), *(_half_normal(part, 2 * total, dtype, keys) for part in parts))


def truncated_normal(
    lower: ArrayLike, upper: ArrayLike, shape: Sizes | None = None, dtype: Dtype | None = None,
    key: ArrayLike | None = None, stream: Stream = None,
) -> array:  # fmt: skip
    """The standard normal distribution inside [lower, upper]. The shape is that of the bounds together, unless
    given."""
    dtype = _float_dtype("truncated_normal", dtype)
    low, high = astype(to_node(lower), dtype), astype(to_node(upper), dtype)
    sizes = _drawn_shape("truncated_normal", shape, low, high)
    first, last = (bind(e.Erf(), bound / constant(math.sqrt(2.0), bound.kind)) for bound in (low, high))
    inner = bind(
        e.ErfInv(), _between(first, last, *_places("truncated_normal", sizes), _key_node("truncated_normal", key))
    )
    found = constant(math.sqrt(2.0), inner.kind) * inner
    return wrap(bind(e.Maximum(), bind(e.Minimum(), broadcast_node(high, sizes), found), broadcast_node(low, sizes)))


def gumbel(shape: Sizes = (), dtype: Dtype | None = None, key: ArrayLike | None = None, stream: Stream = None) -> array:
    """The standard Gumbel distribution, with the cumulative distribution exp(-exp(-x))."""
    dtype = _float_dtype("gumbel", dtype)
    return wrap(_gumbel("gumbel", sizes_of("random.gumbel", shape), dtype, _key_node("gumbel", key)))


def _gumbel(name: str, shape: Shape, dtype: Dtype, keys: Node) -> Node:
    return -e.log(-e.log(_unit(*_places(name, shape), dtype, keys)))


def laplace(
    shape: Sizes = (), dtype: Dtype | None = None, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0,
    key: ArrayLike | None = None, stream: Stream = None,
) -> array:  # fmt: skip
    """The Laplace distribution with mean `loc` and density exp(-|x - loc| / scale) / (2 scale)."""
    dtype = _float_dtype("laplace", dtype)
    draw = _signed_unit(*_places("laplace", sizes_of("random.laplace", shape)), dtype, _key_node("laplace", key))
    sample = bind(e.Sign(), draw) * bind(e.Log1p(), -bind(e.Absolute(), draw))
    width, middle = (wrap(astype(to_node(parameter), dtype)) for parameter in (scale, loc))
    return middle + width * wrap(astype(sample, dtype))


def categorical(
    logits: ArrayLike, axis: int = -1, shape: Sizes | None = None, num_samples: int | None = None,
    key: ArrayLike | None = None, stream: Stream = None,
) -> array:  # fmt: skip
    """Indices (uint32) along an axis of `logits`, drawn with probabilities softmax(logits).

    One for each distribution, `num_samples` for each (in a new last axis), or as many as `shape` says, with which the
    shape of the logits without their axis must go together.

    >>> random.categorical(array([0.0, 1.0, 2.0]), num_samples=5).shape
    (5,)
    """
    x = to_node(logits)
    axis = normalize_axis("random.categorical", axis, x.ndim)
    if shape is not None and num_samples is not None:
        raise ValueError("[random.categorical] give shape or num_samples, not both.")
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    if num_samples is not None:
        x = reshape(x, (*x.shape, 1))
        rest, sizes = (*rest, 1), (*rest, *sizes_of("random.categorical", num_samples))
    else:
        sizes = rest if shape is None else sizes_of("random.categorical", shape)
    if broadcast_shapes("random.categorical", sizes, rest) != sizes:
        raise ValueError(f"[random.categorical] distributions of shape {rest} do not fit shape {sizes}.")
    keys = _key_node("categorical", key)
    if len(sizes) > 0 and all(is_now(n, 1) for n in rest) and x.shape[axis] != 0:
        return wrap(_from_one_distribution(reshape(x, (x.shape[axis],)), sizes, keys))
    place = axis + len(sizes) - len(rest)
    noise = _gumbel("categorical", (*sizes[:place], x.shape[axis], *sizes[place:]), dt.float32, keys)
    return argmax(wrap(noise) + wrap(x), place)


def _from_one_distribution(logits: Node, shape: Shape, keys: Node) -> Node:
    """Where uniform numbers fall among the running sums of the weights: one number for each draw, as in MLX.

    The largest weight is 1, also where its logit is infinite.
    """
    n = logits.shape[0]
    logits = astype(logits, dt.float64 if logits.dtype is dt.float64 else dt.float32)
    top = restore_axes(bind(Max((0,)), logits), logits.shape, (0,))
    weights = e.select(e.equal(logits, top), constant(1, top.kind), e.exp(logits - top))
    sums = bind(CumSum(0), weights)
    last = reshape(bind(Slice((n - 1,), (1,), (1,)), sums), ())
    draw = astype(_unit(*_places("categorical", shape), dt.float32, keys), sums.dtype)
    found = bind(SearchSorted(True), sums, draw * broadcast_node(last, shape))
    return bind(e.Minimum(), found, scalar_node(n - 1, found.kind))  # NaN comes after all others


def multivariate_normal(
    mean: ArrayLike,
    cov: ArrayLike,
    shape: Sizes = (),
    dtype: Dtype | None = None,
    key: ArrayLike | None = None,
    stream: Stream = None,
) -> array:
    """Jointly normal numbers with mean[..., n] and covariance cov[..., n, n], symmetric and positive semi-definite;
    float32 or float64.

    `shape` is that of the result without its last axis, and goes together with the leading axes of mean and cov, which
    are its default.

    The root of the covariance is computed on the spot, in double precision: `cov` must have a value (it cannot be an
    argument of a function that is being compiled or batched), and has no gradient. The gradient of the mean is there.
    """
    dtype = dtype_of("random.multivariate_normal", dtype, dt.float32)
    if dtype not in (dt.float32, dt.float64):
        raise ValueError(f"[random.multivariate_normal] draws float32 or float64; got dtype {dtype.name}.")
    middle, spread = astype(to_node(mean), dtype), to_node(cov)
    if middle.ndim < 1 or spread.ndim < 2:
        raise ValueError(
            f"[random.multivariate_normal] mean needs one axis and cov two; got {middle.shape} and {spread.shape}."
        )
    n = middle.shape[-1]
    if spread.shape[-2:] != (n, n):
        raise ValueError(
            f"[random.multivariate_normal] mean {middle.shape} needs cov of shape (..., {n}, {n}); got {spread.shape}."
        )
    lead = broadcast_shapes(
        "random.multivariate_normal",
        middle.shape[:-1],
        spread.shape[:-2],
        sizes_of("random.multivariate_normal", shape),
    )
    half = _half_normal(*_places("multivariate_normal", (*lead, 1, n)), dtype, _key_node("multivariate_normal", key))
    rows = constant(math.sqrt(2.0), half.kind) * half
    moved = matmul(wrap(rows), _root(wrap(spread), dtype))._node
    return wrap(middle) + wrap(reshape(moved, (*lead, n)))


def _root(cov: array, dtype: Dtype) -> array:
    """The symmetric root of a covariance matrix, by its singular values as in MLX: a factor that is not quite symmetric
    does not matter."""
    left, values, right = np.linalg.svd(np.asarray(cov).astype(np.float64))
    return array((left * np.sqrt(values)[..., None, :]) @ right, dtype)


def permutation(x: int | ArrayLike, axis: int = 0, key: ArrayLike | None = None, stream: Stream = None) -> array:
    """The numbers below x in random order (uint32), or the array x with its slices along an axis in random order."""
    keys = _key_node("permutation", key)
    if is_whole(x) and not isinstance(x, bool):
        return wrap(_order(whole_number("random.permutation", "x", x), keys))
    node = to_node(x)
    axis = normalize_axis("random.permutation", axis, node.ndim)
    return take(wrap(node), wrap(_order(node.shape[axis], keys)), axis)


def _order(n: Any, keys: Node) -> Node:
    return bind(ArgSort(0), bits_node("permutation", sizes_of("random.permutation", n), keys))
