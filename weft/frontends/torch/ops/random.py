"""Operators that draw random numbers. Each gets a key of its own (`key=`), which graph.py splits off the key of the
call; that comes from torch's generator, so torch.manual_seed makes it all repeatable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, iota, to

aten = Table()


def _uniform(out: Out, key: mx.array) -> mx.array:
    dtype = out.dtype if out.dtype in (mx.float32, mx.float64) else mx.float32
    made = mx.random.uniform(0.0, 1.0, out.shape, dtype, key=key)
    if out.dtype is dtype:
        return made
    below = 1.0 - float(mx.finfo(out.dtype).eps) / 2  # rounding must not reach 1
    return to(mx.minimum(made, below), out.dtype)


@aten("rand", "rand_like")
def rand(out: Out, *args: Any, key: mx.array, **kwargs: Any) -> mx.array:
    return _uniform(out, key)


@aten("randn", "randn_like", "normal_functional")
def randn(out: Out, like: Any, mean: float = 0.0, std: float = 1.0, *, key: mx.array, **kwargs: Any) -> mx.array:
    dtype = out.dtype if out.dtype in (mx.float32, mx.float64) else mx.float32
    made = mx.random.normal(out.shape, dtype, key=key)
    return to(made if (mean, std) == (0.0, 1.0) else made * std + mean, out.dtype)


@aten("uniform")
def uniform(out: Out, like: Any, low: float = 0.0, high: float = 1.0, *, key: mx.array, **kwargs: Any) -> mx.array:
    return to(_uniform(out, key) * (high - low) + low, out.dtype)


@aten("exponential")
def exponential(out: Out, like: Any, lambd: float = 1.0, *, key: mx.array, **kwargs: Any) -> mx.array:
    return to(-mx.log1p(-_uniform(out, key)) / lambd, out.dtype)


@aten("bernoulli.p")
def bernoulli_p(out: Out, like: Any, p: float = 0.5, *, key: mx.array, **kwargs: Any) -> mx.array:
    return to(mx.random.uniform(0.0, 1.0, out.shape, mx.float32, key=key) < p, out.dtype)


@aten("bernoulli", "bernoulli.Tensor")
def bernoulli(out: Out, x: mx.array, p: Any = None, *, key: mx.array, **kwargs: Any) -> mx.array:
    chance = x if p is None else p
    return to(mx.random.uniform(0.0, 1.0, out.shape, mx.float32, key=key) < to(chance, mx.float32), out.dtype)


@aten("native_dropout")
def native_dropout(out: Any, x: mx.array, p: float, train: bool | None, *, key: mx.array) -> tuple[mx.array, mx.array]:
    if train is False or p == 0:
        return x, mx.ones(x.shape, mx.bool_)
    if p == 1:
        return mx.zeros_like(x), mx.zeros(x.shape, mx.bool_)
    kept = mx.random.uniform(0.0, 1.0, x.shape, mx.float32, key=key) >= p
    return mx.where(kept, x * to(1.0 / (1.0 - p), x.dtype), to(0, x.dtype)), kept


@aten("randint", "randint_like")
def randint(out: Out, first: Any, *args: Any, key: mx.array, **kwargs: Any) -> mx.array:
    return _integers(out, 0, first if not isinstance(first, mx.array) else args[0], key)


@aten("randint.low", "randint_like.low_dtype")
def randint_low(out: Out, first: Any, *args: Any, key: mx.array, **kwargs: Any) -> mx.array:
    low, high = (first, args[0]) if not isinstance(first, mx.array) else args[:2]
    return _integers(out, low, high, key)


@aten("randint_like.Tensor")
def randint_like(out: Out, like: mx.array, high: Any, *, key: mx.array, **kwargs: Any) -> mx.array:
    return _integers(out, 0, high, key)


def _integers(out: Out, low: Any, high: Any, key: mx.array) -> mx.array:
    dtype = out.dtype if out.dtype.is_integer else mx.int64
    return to(mx.random.randint(low, high, out.shape, dtype, key=key), out.dtype)


@aten("randperm")
def randperm(out: Out, n: Any, *, key: mx.array, **kwargs: Any) -> mx.array:
    bits = mx.random.bits((n,), key=key)
    return mx.take(iota(n, out.dtype), mx.argsort(bits), axis=0) if not _is_none(n) else iota(n, out.dtype)


def _is_none(n: Any) -> bool:
    return type(n) is int and n == 0


@aten("normal.float_float", "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal(out: Out, mean: Any, std: Any = 1.0, *args: Any, key: mx.array, **kwargs: Any) -> mx.array:
    made = randn(out, None, key=key)
    return made * to(std, out.dtype) + to(mean, out.dtype)


@aten("log_normal")
def log_normal(out: Out, like: Any, mean: float = 1.0, std: float = 2.0, *, key: mx.array, **kwargs: Any) -> mx.array:
    return to(mx.exp(randn(out, None, mean, std, key=key)), out.dtype)


@aten("cauchy")
def cauchy(out: Out, like: Any, median: float = 0.0, sigma: float = 1.0, *, key: mx.array, **kwargs: Any) -> mx.array:
    return to(mx.tan((_uniform(out, key) - 0.5) * math.pi) * sigma + median, out.dtype)


@aten("geometric")
def geometric(out: Out, like: Any, p: float, *, key: mx.array, **kwargs: Any) -> mx.array:
    """How many trials it takes."""
    dtype = out.dtype if out.dtype in (mx.float32, mx.float64) else mx.float32
    chance = 1 - mx.random.uniform(0.0, 1.0, out.shape, dtype, key=key)
    return to(mx.maximum(mx.ceil(mx.log(chance) / math.log1p(-p)), 1), out.dtype)


@aten("multinomial")
def multinomial(
    out: Out, weights: mx.array, samples: int, replacement: bool = False, *, key: mx.array, **kwargs: Any
) -> mx.array:
    """Without replacement: the largest of logarithms of weights, to each of which Gumbel noise was added."""
    logs = mx.log(to(weights, mx.float64 if weights.dtype is mx.float64 else mx.float32))
    if replacement:
        return to(mx.random.categorical(logs, axis=-1, num_samples=samples, key=key), mx.int64)
    ranked = mx.argsort(-(logs + mx.random.gumbel(logs.shape, logs.dtype, key=key)), axis=-1)
    return to(ranked[..., :samples], mx.int64)


RANDOM = frozenset(aten)
"""The names of all of them."""
_ATTENTION = "aten.scaled_dot_product_attention.default"


def draws(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """As which argument an operator that is called with these gets a random key; None if it draws nothing."""
    if name in RANDOM:
        return "key"
    if name != _ATTENTION:
        return None
    return "random" if (args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) else None
