"""Random numbers: MLX's counter-based generator, the same bits for the same key on every machine.

Every function takes `key=`; without one, the global state is split and advanced.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.array import array, wrap
from weft.core._common import ArrayLike, astype, bind, broadcast_node, broadcast_shapes, constant, kind_of, scalar_node, to_node
from weft.core.creating import _shape
from weft.dtypes import Dtype
from weft.graph.dims import prod
from weft.graph.node import Node, Shape
from weft.primitives import elementwise as e
from weft.primitives.creation import Iota
from weft.primitives.random import Threefry
from weft.primitives.views import Slice, reshape
from weft.transforms.compile import RANDOM_STATE

Stream = Any

_lock = threading.Lock()


def key(seed: int) -> array:
    """A key from a seed.

    >>> key(42)
    array([0, 42], dtype=uint32)
    """
    return array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], dt.uint32)


state: list[array] = [key(time.time_ns() & 0xFFFFFFFFFFFFFFFF)]
"""The global state, as a list of one key: pass it to compile(inputs=..., outputs=...) as in MLX, or not at all."""
RANDOM_STATE[0] = state


def seed(seed: int) -> None:
    """Start the global sequence of keys anew."""
    state[0] = key(seed)


def _next_key() -> Node:
    with _lock:
        both = split(state[0])
        state[0] = wrap(_row(both._node, 0))
        return _row(both._node, 1)


def _row(x: Node, i: int) -> Node:
    return reshape(bind(Slice((i, 0), (1, 2), (1, 1)), x), (2,))


def _key_node(name: str, given: ArrayLike | None) -> Node:
    if given is None:
        return _next_key()
    node = to_node(given)
    if node.dtype is not dt.uint32 or node.ndim < 1 or node.shape[-1] != 2:
        raise ValueError(f"[{name}] a key is a uint32 array of shape (..., 2), made by key() or split(); got {node.kind}.")
    return node


def _key_words(keys: Node, shape: Shape) -> tuple[Node, Node]:
    """The two words of a key, in every element of `shape`."""
    if keys.ndim != 1:
        raise ValueError(f"[random] one key of shape (2,) is needed here; got shape {keys.shape}. Use vmap to draw with several keys.")
    words = (bind(Slice((i,), (1,), (1,)), keys) for i in range(2))
    first, second = (broadcast_node(reshape(w, ()), shape) for w in words)
    return first, second


def bits_node(shape: Shape, keys: Node, width: int = 4) -> Node:
    """Uniform random bits: uint8, uint16 or uint32 by width. The stream of 32-bit words is laid out as MLX does."""
    size = prod(shape)
    per_word = 4 // width
    total = size if per_word == 1 else (size + per_word - 1) // per_word
    place = astype(bind(Iota(shape)), dt.uint32)
    word = place if per_word == 1 else bind(e.RightShift(), place, scalar_node(per_word.bit_length() - 1, place.kind))
    words = _words(word, total, keys)
    if per_word == 1:
        return words
    dtype = {1: dt.uint8, 2: dt.uint16}[width]
    within = bind(e.BitwiseAnd(), place, scalar_node(per_word - 1, place.kind))
    shift = within * scalar_node(8 * width, within.kind)
    return astype(bind(e.RightShift(), words, shift), dtype)


def _words(word: Node, total: Any, keys: Node) -> Node:
    """Word number `word` of a stream of `total` words: the first half are first results of counters (i, i + half), the second half second
    results; an odd stream has one more word between them, from the counter (half, 0)."""
    half = total // 2
    odd = total % 2
    kind = word.kind
    limit, apart = scalar_node(half, kind), scalar_node(half + odd, kind)
    upper = bind(e.GreaterEqual(), word, apart)
    middle = bind(e.BitwiseAnd(), bind(e.GreaterEqual(), word, limit), bind(e.Less(), word, apart))
    low = e.select(upper, word - apart, word)
    high = e.select(middle, constant(0, kind), low + apart)
    first, second = _key_words(keys, word.shape)
    return bind(Threefry(), first, second, low, high, upper)


def bits(shape: Sequence[int] = (), width: int = 4, key: ArrayLike | None = None, *, stream: Stream = None) -> array:
    """Uniform random integers of `width` bytes (1, 2 or 4)."""
    if width not in (1, 2, 4):
        raise ValueError(f"[bits] width must be 1, 2 or 4 bytes; got {width}.")
    return wrap(bits_node(_shape("bits", shape), _key_node("bits", key), width))


def split(key: ArrayLike, num: int = 2, *, stream: Stream = None) -> array:
    """`num` new keys from one."""
    return wrap(bits_node((num, 2), _key_node("split", key)))


def _unit(shape: Shape, dtype: Dtype, keys: Node) -> Node:
    """Uniform in [0, 1), in the dtype."""
    if dtype is dt.float64:
        return _unit_float64(shape, keys)
    raw = astype(bits_node(shape, keys), dt.float32)
    ratio = raw / scalar_node(float(np.float32(0xFFFFFFFF)), raw.kind)
    below = float(np.nextafter(dtype.np.type(1), dtype.np.type(0))) if dtype is not dt.bfloat16 else 0.99609375
    return astype(bind(e.Minimum(), ratio, scalar_node(below, ratio.kind)), dtype)


def _unit_float64(shape: Shape, keys: Node) -> Node:
    """53 random bits from two words."""
    words = bits_node((*shape, 2), keys)
    rank = len(shape)

    def part(i: int) -> Node:
        piece = bind(Slice((*(0,) * rank, i), (*shape, 1), (1,) * (rank + 1)), words)
        return reshape(piece, shape)

    high = bind(e.RightShift(), part(0), scalar_node(5, kind_of(shape, dt.uint32)))
    low = bind(e.RightShift(), part(1), scalar_node(6, kind_of(shape, dt.uint32)))
    wide = astype(high, dt.float64)
    whole = wide * scalar_node(67108864.0, wide.kind) + astype(low, dt.float64)
    return whole * scalar_node(2.0**-53, wide.kind)


def _float_dtype(name: str, dtype: Dtype | None) -> Dtype:
    dtype = dtype or dt.float32
    if not dtype.is_float:
        raise ValueError(f"[{name}] draws floats; got dtype {dtype.name}.")
    return dtype


def uniform(
    low: ArrayLike = 0.0, high: ArrayLike = 1.0, shape: Sequence[int] | None = None, dtype: Dtype | None = None,
    key: ArrayLike | None = None, *, stream: Stream = None,
) -> array:  # fmt: skip
    """Uniform in [low, high). The shape is that of low and high together, unless given."""
    dtype = _float_dtype("uniform", dtype)
    lower, upper = astype(to_node(low), dtype), astype(to_node(high), dtype)
    sizes = _drawn_shape("uniform", shape, lower, upper)
    return wrap(_between(lower, upper, sizes, dtype, _key_node("uniform", key)))


def _drawn_shape(name: str, shape: Sequence[int] | None, *parameters: Node) -> Shape:
    together = broadcast_shapes(name, *(p.shape for p in parameters))
    if shape is None:
        return together
    sizes = _shape(name, shape)
    if broadcast_shapes(name, together, sizes) != sizes:
        raise ValueError(f"[{name}] parameters of shape {together} do not fit shape {sizes}.")
    return sizes


def _between(lower: Node, upper: Node, shape: Shape, dtype: Dtype, keys: Node) -> Node:
    width = broadcast_node(upper, shape) - broadcast_node(lower, shape)
    return width * _unit(shape, dtype, keys) + broadcast_node(lower, shape)


def _standard_normal(shape: Shape, dtype: Dtype, keys: Node) -> Node:
    """sqrt(2) * erfinv(u), u uniform in (-1, 1); rounded to the dtype before it is scaled, as MLX does."""
    work = dt.float64 if dtype is dt.float64 else dt.float32
    least = float(np.nextafter(work.np.type(-1), work.np.type(0)))
    low, high = constant(least, kind_of((), work)), constant(1.0, kind_of((), work))
    draw = _between(low, high, shape, work, keys)
    sample = astype(bind(e.ErfInv(), draw), dtype)
    return scalar_node(math.sqrt(2.0), sample.kind) * sample


def normal(
    shape: Sequence[int] = (), dtype: Dtype | None = None, loc: ArrayLike | None = None, scale: ArrayLike | None = None,
    key: ArrayLike | None = None, *, stream: Stream = None,
) -> array:  # fmt: skip
    """Normal with mean `loc` and standard deviation `scale`.

    >>> normal((2, 3)).shape
    (2, 3)
    """
    dtype = _float_dtype("normal", dtype)
    result = wrap(_standard_normal(_shape("normal", shape), dtype, _key_node("normal", key)))
    if scale is not None:
        result = result * (scale if isinstance(scale, (int, float)) else wrap(astype(to_node(scale), dtype)))
    if loc is not None:
        result = result + (loc if isinstance(loc, (int, float)) else wrap(astype(to_node(loc), dtype)))
    return result


def randint(
    low: ArrayLike, high: ArrayLike, shape: Sequence[int] | None = None, dtype: Dtype | None = None, key: ArrayLike | None = None,
    *, stream: Stream = None,
) -> array:  # fmt: skip
    """Uniform integers in [low, high)."""
    dtype = dtype or dt.int32
    if not dtype.is_integer:
        raise ValueError(f"[randint] draws integers; got dtype {dtype.name}.")
    lower, upper = astype(to_node(low), dt.float32), astype(to_node(high), dt.float32)
    sizes = _drawn_shape("randint", shape, lower, upper)
    draw = _between(lower, upper, sizes, dt.float32, _key_node("randint", key))
    whole = bind(e.Floor(), draw)
    return wrap(astype(bind(e.Maximum(), whole, broadcast_node(lower, sizes)), dtype))


def bernoulli(p: ArrayLike = 0.5, shape: Sequence[int] | None = None, key: ArrayLike | None = None, *, stream: Stream = None) -> array:
    """True with probability p."""
    chance = astype(to_node(p), dt.float32)
    sizes = _drawn_shape("bernoulli", shape, chance)
    draw = astype(bits_node(sizes, _key_node("bernoulli", key)), dt.float32)
    above = float(np.nextafter(np.float32(0xFFFFFFFF), np.float32(np.inf)))  # p = 1 is always, p = 0 never
    return wrap(bind(e.Less(), draw, broadcast_node(chance, sizes) * scalar_node(above, draw.kind)))
