"""Random variables: PyTensor's distributions, drawn from Weft's keys.

A generator is a key here. A random variable splits it: one half is drawn from, the other is the generator that it
gives back. So what is drawn depends on the seed and on the graph alone, in loops and on any number of threads. The
numbers are others than NumPy's; the distributions are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.random import basic as ptr
from pytensor.tensor.random.op import RandomVariable

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts
from weft.frontends.pytensor.generators import key_of
from weft.frontends.pytensor.values import Known, NotConverted, Value, cast, constant, to_array, vector

Sampler = Callable[..., array]
SAMPLERS: dict[type, Sampler] = {}
"""By class: functions of (key, shape of the batch, parameters as float64) that draw numbers of each element."""
WHOLE: dict[type, Callable[..., array]] = {}
"""Those whose draws have axes of their own, or that need to know the operation: functions of (op, node, key, shape,
parameters)."""


def draws(cls: type) -> Callable[[Sampler], Sampler]:
    def register(fun: Sampler) -> Sampler:
        SAMPLERS[cls] = fun
        return fun

    return register


def draws_whole(*classes: type) -> Callable[[Sampler], Sampler]:
    def register(fun: Sampler) -> Sampler:
        WHOLE.update(dict.fromkeys(classes, fun))
        return fun

    return register


def _refuses(node: Apply) -> str | None:
    if type(node.op) in SAMPLERS or type(node.op) in WHOLE:
        return None
    return f"the distribution {node.op.name} has no translation"


def _known(node: Apply) -> Iterable[int]:
    """The size; and of a choice, how many."""
    return (1, len(node.inputs) - 1) if isinstance(node.op, ptr.ChoiceWithoutReplacement) else (1,)


@converts(RandomVariable, known=_known, refuses=_refuses)
def random_variable(op: Any, node: Apply, rng: Value, size: Value, *parameters: Value) -> list[Value]:
    """(the next generator, what is drawn)."""
    keys = mx.random.split(to_key(rng))
    key = keys[1]
    shape = None if isinstance(size, Known) and size.value is None else vector(size)
    if type(op) in WHOLE:
        return [keys[0], WHOLE[type(op)](op, node, key, shape, *parameters)]
    arrays = [to_array(x, "float64") for x in parameters]
    if shape is None:
        shape = mx.broadcast_shapes(*[x.shape for x in arrays]) if arrays else ()
    drawn = SAMPLERS[type(op)](key, tuple(shape), *arrays)
    return [keys[0], mx.broadcast_to(drawn, tuple(shape))]


def to_key(rng: Value) -> array:
    """The key of a generator."""
    return constant(key_of(rng.value)) if isinstance(rng, Known) else rng


# ---- what all are made of ----


def _two(key: array) -> tuple[array, array]:
    keys = mx.random.split(key)
    return keys[0], keys[1]


def _unit(key: array, shape: Sequence[Any]) -> array:
    """Uniform in [0, 1)."""
    return mx.random.uniform(0.0, 1.0, tuple(shape), mx.float64, key)


def _open_unit(key: array, shape: Sequence[Any]) -> array:
    """Uniform in (0, 1]: it has a logarithm."""
    return _number(1.0) - _unit(key, shape)


def _standard(key: array, shape: Sequence[Any]) -> array:
    return mx.random.normal(tuple(shape), mx.float64, key=key)


def _number(value: float) -> array:
    return mx.array(value, mx.float64)


def _exponential(key: array, shape: Sequence[Any]) -> array:
    return -mx.log(_open_unit(key, shape))


Propose = Callable[[array], tuple[array, array]]


def _rejected(key: array, shape: Sequence[Any], propose: Propose) -> array:
    """Draw until every element is accepted. `propose` takes a key and gives values and which of them are accepted."""

    def go_on(state: Any) -> array:
        return mx.logical_not(mx.all(state[2]))

    def again(state: Any) -> Any:
        key, values, done = state
        rest, now = _two(key)
        new, accepted = propose(now)
        return rest, mx.where(done, values, new), done | accepted

    start = (key, mx.zeros(tuple(shape), mx.float64), mx.zeros(tuple(shape), mx.bool_))
    return mx.while_loop(go_on, again, start)[1]  # type: ignore[no-any-return]


def _gamma(key: array, shape: Sequence[Any], a: array) -> array:
    """Marsaglia and Tsang's method; for a < 1, of a + 1 and a power of a uniform number."""
    a = mx.broadcast_to(a, tuple(shape))
    first, second = _two(key)
    small = a < _number(1.0)
    raised = mx.where(small, a + _number(1.0), a)
    d = raised - _number(1 / 3)
    c = _number(1.0) / mx.sqrt(_number(9.0) * d)

    def propose(now: array) -> tuple[array, array]:
        one, two = _two(now)
        x, u = _standard(one, shape), _open_unit(two, shape)
        v = (_number(1.0) + c * x) ** 3
        positive = v > _number(0.0)
        safe = mx.where(positive, v, _number(1.0))
        bound = _number(0.5) * x * x + d - d * safe + d * mx.log(safe)
        return d * safe, positive & (mx.log(u) < bound)

    drawn = _rejected(first, shape, propose)
    power = mx.log(_open_unit(second, shape)) / mx.where(small, a, _number(1.0))
    made = mx.where(small, drawn * mx.exp(power), drawn)
    return mx.where(a > _number(0.0), made, mx.where(a == _number(0.0), _number(0.0), _number(math.nan)))


def _log_factorial(k: array) -> array:
    return mx.gammaln(k + _number(1.0))


def _poisson(key: array, shape: Sequence[Any], rate: array) -> array:
    """For small rates the number of exponential waiting times in one; for others Hörmann's transformed rejection."""
    rate = mx.broadcast_to(rate, tuple(shape))
    small = rate < _number(10.0)
    one, two = _two(key)
    low = _poisson_by_waiting(one, shape, mx.where(small, rate, _number(0.0)))
    high = _poisson_by_rejection(two, shape, mx.where(small, _number(10.0), rate))
    return mx.where(small, low, high)


def _poisson_by_waiting(key: array, shape: Sequence[Any], rate: array) -> array:
    def go_on(state: Any) -> array:
        return mx.any(state[2] < rate)

    def wait(state: Any) -> Any:
        key, count, time = state
        rest, now = _two(key)
        waiting = time < rate
        return rest, mx.where(waiting, count + _number(1.0), count), time + _exponential(now, shape)

    rest, now = _two(key)
    start = (rest, mx.zeros(tuple(shape), mx.float64), _exponential(now, shape))
    return mx.while_loop(go_on, wait, start)[1]  # type: ignore[no-any-return]


def _poisson_by_rejection(key: array, shape: Sequence[Any], rate: array) -> array:
    b = _number(0.931) + _number(2.53) * mx.sqrt(rate)
    a = _number(-0.059) + _number(0.02483) * b
    inverse = _number(1.1239) + _number(1.1328) / (b - _number(3.4))
    good = _number(0.9277) - _number(3.6224) / (b - _number(2.0))

    def propose(now: array) -> tuple[array, array]:
        one, two = _two(now)
        u, v = _unit(one, shape) - _number(0.5), _open_unit(two, shape)
        us = _number(0.5) - mx.abs(u)
        k = mx.floor((_number(2.0) * a / us + b) * u + rate + _number(0.43))
        surely = (us >= _number(0.07)) & (v <= good)
        bound = k * mx.log(rate) - rate - _log_factorial(k)
        under = mx.log(v) + mx.log(inverse) - mx.log(a / (us * us) + b) <= bound
        outside = (k < _number(0.0)) | ((us < _number(0.013)) & (v > us))
        return k, surely | (mx.logical_not(outside) & under)

    return _rejected(key, shape, propose)


def _binomial(key: array, shape: Sequence[Any], n: array, p: array) -> array:
    """By inversion where few are expected, else by Hörmann's transformed rejection; p > 1/2 is counted from the other
    end."""
    n, p = mx.broadcast_to(n, tuple(shape)), mx.broadcast_to(p, tuple(shape))
    turned = p > _number(0.5)
    q = mx.where(turned, _number(1.0) - p, p)
    small = n * q < _number(10.0)
    one, two = _two(key)
    low = _binomial_by_geometric(one, shape, mx.where(small, n, _number(0.0)), q)
    high = _binomial_by_rejection(two, shape, mx.where(small, _number(40.0), n), mx.where(small, _number(0.5), q))
    made = mx.where(small, low, high)
    return mx.where(turned, n - made, made)


def _binomial_by_geometric(key: array, shape: Sequence[Any], n: array, p: array) -> array:
    """How many geometric waiting times are over before n trials are."""
    scale = mx.log1p(-p)

    def times(now: array) -> array:
        waits = mx.floor(mx.log(_open_unit(now, shape)) / scale) + _number(1.0)
        return mx.where(p > _number(0.0), waits, _number(math.inf))

    def go_on(state: Any) -> array:
        return mx.any(state[2] <= n)

    def wait(state: Any) -> Any:
        key, count, time = state
        rest, now = _two(key)
        waiting = time <= n
        return rest, mx.where(waiting, count + _number(1.0), count), time + times(now)

    rest, now = _two(key)
    start = (rest, mx.zeros(tuple(shape), mx.float64), times(now))
    return mx.while_loop(go_on, wait, start)[1]  # type: ignore[no-any-return]


def _binomial_by_rejection(key: array, shape: Sequence[Any], n: array, p: array) -> array:
    spread = mx.sqrt(n * p * (_number(1.0) - p))
    b = _number(1.15) + _number(2.53) * spread
    a = _number(-0.0873) + _number(0.0248) * b + _number(0.01) * p
    center = n * p + _number(0.5)
    good = _number(0.92) - _number(4.2) / b
    alpha = (_number(2.83) + _number(5.1) / b) * spread
    odds = mx.log(p / (_number(1.0) - p))
    mode = mx.floor((n + _number(1.0)) * p)
    height = _log_factorial(mode) + _log_factorial(n - mode)

    def propose(now: array) -> tuple[array, array]:
        one, two = _two(now)
        u, v = _unit(one, shape) - _number(0.5), _open_unit(two, shape)
        us = _number(0.5) - mx.abs(u)
        k = mx.floor((_number(2.0) * a / us + b) * u + center)
        inside = (k >= _number(0.0)) & (k <= n)
        surely = (us >= _number(0.07)) & (v <= good)
        safe = mx.where(inside, k, mode)
        bound = height - _log_factorial(safe) - _log_factorial(n - safe) + (safe - mode) * odds
        under = mx.log(v * alpha / (a / (us * us) + b)) <= bound
        return k, inside & (surely | under)

    return _rejected(key, shape, propose)


def _beta(key: array, shape: Sequence[Any], a: array, b: array) -> array:
    """x / (x + y) of two gamma distributed numbers."""
    one, two = _two(key)
    x, y = _gamma(one, shape, a), _gamma(two, shape, b)
    return x / (x + y)


# ---- one number each ----


@draws(ptr.UniformRV)
def uniform(key: array, shape: Any, low: array, high: array) -> array:
    return low + (high - low) * _unit(key, shape)


@draws(ptr.TriangularRV)
def triangular(key: array, shape: Any, left: array, mode: array, right: array) -> array:
    u = _unit(key, shape)
    width = right - left
    rising = left + mx.sqrt(u * width * (mode - left))
    falling = right - mx.sqrt((_number(1.0) - u) * width * (right - mode))
    return mx.where(u < (mode - left) / width, rising, falling)


@draws(ptr.BetaRV)
def beta(key: array, shape: Any, a: array, b: array) -> array:
    return _beta(key, shape, a, b)


@draws(ptr.NormalRV)
def normal(key: array, shape: Any, loc: array, scale: array) -> array:
    return loc + scale * _standard(key, shape)


@draws(ptr.HalfNormalRV)
def half_normal(key: array, shape: Any, loc: array, scale: array) -> array:
    return loc + scale * mx.abs(_standard(key, shape))


@draws(ptr.LogNormalRV)
def log_normal(key: array, shape: Any, mean: array, sigma: array) -> array:
    return mx.exp(mean + sigma * _standard(key, shape))


@draws(ptr.GammaRV)
def gamma(key: array, shape: Any, a: array, scale: array) -> array:
    return _gamma(key, shape, a) * scale


@draws(ptr.InvGammaRV)
def inverse_gamma(key: array, shape: Any, a: array, scale: array) -> array:
    return scale / _gamma(key, shape, a)


@draws(ptr.GenGammaRV)
def generalized_gamma(key: array, shape: Any, alpha: array, p: array, scale: array) -> array:
    return scale * mx.power(_gamma(key, shape, alpha / p), _number(1.0) / p)


@draws(ptr.ParetoRV)
def pareto(key: array, shape: Any, b: array, scale: array) -> array:
    return scale * mx.exp(_exponential(key, shape) / b)


@draws(ptr.GumbelRV)
def gumbel(key: array, shape: Any, loc: array, scale: array) -> array:
    return loc - scale * mx.log(_exponential(key, shape))


@draws(ptr.ExponentialRV)
def exponential(key: array, shape: Any, scale: array) -> array:
    return scale * _exponential(key, shape)


@draws(ptr.TruncExponentialRV)
def truncated_exponential(key: array, shape: Any, b: array, loc: array, scale: array) -> array:
    return loc - scale * mx.log1p(_unit(key, shape) * mx.expm1(-b))


@draws(ptr.WeibullRV)
def weibull(key: array, shape: Any, a: array) -> array:
    return mx.power(_exponential(key, shape), _number(1.0) / a)


@draws(ptr.LogisticRV)
def logistic(key: array, shape: Any, loc: array, scale: array) -> array:
    u = _open_unit(key, shape)
    return loc + scale * (mx.log(u) - mx.log1p(-u))


@draws(ptr.LaplaceRV)
def laplace(key: array, shape: Any, loc: array, scale: array) -> array:
    one, two = _two(key)
    sign = mx.where(_unit(one, shape) < _number(0.5), _number(-1.0), _number(1.0))
    return loc + scale * sign * _exponential(two, shape)


@draws(ptr.CauchyRV)
def cauchy(key: array, shape: Any, loc: array, scale: array) -> array:
    return loc + scale * mx.tan(_number(math.pi) * (_unit(key, shape) - _number(0.5)))


@draws(ptr.HalfCauchyRV)
def half_cauchy(key: array, shape: Any, loc: array, scale: array) -> array:
    return loc + scale * mx.tan(_number(math.pi / 2) * _unit(key, shape))


@draws(ptr.StudentTRV)
def student_t(key: array, shape: Any, df: array, loc: array, scale: array) -> array:
    one, two = _two(key)
    chi = _number(2.0) * _gamma(two, shape, df / _number(2.0))
    return loc + scale * _standard(one, shape) * mx.sqrt(df / chi)


@draws(ptr.VonMisesRV)
def von_mises(key: array, shape: Any, mu: array, kappa: array) -> array:
    """Best and Fisher's rejection from a wrapped Cauchy distribution."""
    kappa = mx.broadcast_to(kappa, tuple(shape))
    flat = kappa < _number(1e-8)
    k = mx.where(flat, _number(1.0), kappa)
    tau = _number(1.0) + mx.sqrt(_number(1.0) + _number(4.0) * k * k)
    rho = (tau - mx.sqrt(_number(2.0) * tau)) / (_number(2.0) * k)
    r = (_number(1.0) + rho * rho) / (_number(2.0) * rho)
    one, rest = _two(key)
    two, three = _two(rest)

    def propose(now: array) -> tuple[array, array]:
        first, second = _two(now)
        z = mx.cos(_number(math.pi) * _unit(first, shape))
        f = (_number(1.0) + r * z) / (r + z)
        c = k * (r - f)
        u = _open_unit(second, shape)
        fits = (c * (_number(2.0) - c) - u > _number(0.0)) | (mx.log(c / u) + _number(1.0) - c >= _number(0.0))
        return f, fits

    angle = mx.arccos(mx.clip(_rejected(one, shape, propose), -1.0, 1.0))
    signed = mx.where(_unit(two, shape) < _number(0.5), -angle, angle)
    around = _number(math.pi) * (_number(2.0) * _unit(three, shape) - _number(1.0))
    made = mx.where(flat, around, signed) + mu
    return mx.remainder(made + _number(math.pi), _number(2 * math.pi)) - _number(math.pi)


@draws(ptr.WaldRV)
def wald(key: array, shape: Any, mean: array, scale: array) -> array:
    """Michael, Schucany and Haas: one of the two roots."""
    one, two = _two(key)
    y = _standard(one, shape) ** 2 * mean
    x = mean + mean / (_number(2.0) * scale) * (y - mx.sqrt(_number(4.0) * scale * y + y * y))
    return mx.where(_unit(two, shape) <= mean / (mean + x), x, mean * mean / x)


@draws(ptr.BernoulliRV)
def bernoulli(key: array, shape: Any, p: array) -> array:
    return mx.where(_unit(key, shape) < p, _number(1.0), _number(0.0))


@draws(ptr.PoissonRV)
def poisson(key: array, shape: Any, rate: array) -> array:
    return _poisson(key, shape, rate)


@draws(ptr.GeometricRV)
def geometric(key: array, shape: Any, p: array) -> array:
    waits = mx.ceil(mx.log(_open_unit(key, shape)) / mx.log1p(-p))
    return mx.maximum(mx.where(p >= _number(1.0), _number(1.0), waits), _number(1.0))


@draws(ptr.BinomialRV)
def binomial(key: array, shape: Any, n: array, p: array) -> array:
    return _binomial(key, shape, n, p)


@draws(ptr.NegBinomialRV)
def negative_binomial(key: array, shape: Any, n: array, p: array) -> array:
    one, two = _two(key)
    return _poisson(two, shape, _gamma(one, shape, n) * (_number(1.0) - p) / p)


@draws(ptr.BetaBinomialRV)
def beta_binomial(key: array, shape: Any, n: array, a: array, b: array) -> array:
    one, two = _two(key)
    return _binomial(two, shape, n, _beta(one, shape, a, b))


@draws(ptr.HyperGeometricRV)
def hypergeometric(key: array, shape: Any, good: array, bad: array, count: array) -> array:
    """Drawing from the urn, one after the other."""
    good, bad = mx.broadcast_to(good, tuple(shape)), mx.broadcast_to(bad, tuple(shape))
    count = mx.broadcast_to(count, tuple(shape))

    def go_on(state: Any) -> array:
        return mx.any(state[3] < count)

    def take(state: Any) -> Any:
        key, left, rest, done = state
        later, now = _two(key)
        drawing = done < count
        hit = drawing & (_unit(now, shape) * (left + rest) < left)
        missed = drawing & mx.logical_not(hit)
        one = _number(1.0)
        return later, mx.where(hit, left - one, left), mx.where(missed, rest - one, rest), done + one

    left = mx.while_loop(go_on, take, (key, good, bad, mx.zeros(tuple(shape), mx.float64)))[1]
    return good - left  # type: ignore[no-any-return]


# ---- draws with axes of their own ----


@draws_whole(ptr.IntegersRV)
def integers(op: Any, node: Apply, key: array, shape: Any, low: Value, high: Value) -> array:
    a, b = to_array(low, "int64"), to_array(high, "int64")
    shape = mx.broadcast_shapes(a.shape, b.shape) if shape is None else shape
    span = cast(b - a, "float64")
    return a + cast(mx.floor(_unit(key, shape) * span), "int64")


@draws_whole(ptr.CategoricalRV)
def categorical(op: Any, node: Apply, key: array, shape: Any, p: Value) -> array:
    weights = to_array(p, "float64")
    shape = weights.shape[:-1] if shape is None else shape
    sums = mx.cumsum(weights, axis=-1)
    behind = _unit(key, shape)[..., None] >= sums
    found = mx.sum(cast(behind, "int64"), axis=-1)
    last = mx.array(weights.shape[-1] - 1, mx.int64)
    return mx.broadcast_to(mx.minimum(found, last), tuple(shape))


@draws_whole(ptr.MvNormalRV)
def multivariate_normal(op: Any, node: Apply, key: array, shape: Any, mean: Value, cov: Value) -> array:
    center, spread = to_array(mean, "float64"), to_array(cov, "float64")
    if shape is None:
        shape = mx.broadcast_shapes(center.shape[:-1], spread.shape[:-2])
    method = getattr(op, "method", "cholesky")
    if method == "cholesky":
        root = mx.linalg.cholesky(spread)
    elif method == "svd":
        u, s, _ = mx.linalg.svd(spread)
        root = u * mx.sqrt(s)[..., None, :]
    else:
        w, v = mx.linalg.eigh(spread)
        root = v * mx.sqrt(w)[..., None, :]
    drawn = _standard(key, (*shape, center.shape[-1]))
    return center + mx.sum(root * drawn[..., None, :], axis=-1)


@draws_whole(ptr.DirichletRV)
def dirichlet(op: Any, node: Apply, key: array, shape: Any, alphas: Value) -> array:
    weights = to_array(alphas, "float64")
    shape = weights.shape[:-1] if shape is None else shape
    drawn = _gamma(key, (*shape, weights.shape[-1]), weights)
    return drawn / mx.sum(drawn, axis=-1, keepdims=True)


@draws_whole(ptr.MultinomialRV)
def multinomial(op: Any, node: Apply, key: array, shape: Any, n: Value, p: Value) -> array:
    """One category after the other: how many of those that are left."""
    total, weights = to_array(n, "float64"), to_array(p, "float64")
    if shape is None:
        shape = mx.broadcast_shapes(total.shape, weights.shape[:-1])
    shape = tuple(shape)
    weights = mx.broadcast_to(weights, (*shape, weights.shape[-1]))

    def step(carry: Any, weight: array) -> Any:
        key, left, mass = carry
        later, now = _two(key)
        share = mx.clip(weight / mx.maximum(mass, _number(1e-300)), 0.0, 1.0)
        taken = mx.where(mass <= weight, left, _binomial(now, shape, left, share))
        return (later, left - taken, mx.maximum(mass - weight, _number(0.0))), taken

    start = (key, mx.broadcast_to(total, shape), mx.sum(weights, axis=-1))
    counts = mx.scan(step, start, mx.moveaxis(weights, -1, 0))[1]
    return mx.moveaxis(counts, 0, -1)


@draws_whole(ptr.PermutationRV)
def permutation(op: Any, node: Apply, key: array, shape: Any, x: Value) -> array:
    if op.ndims_params[0] == 0:
        raise NotConverted("a permutation of as many numbers as an input says")
    values = to_array(x)
    core = op.ndims_params[0]
    batch = values.ndim - core
    lead = values.shape[:batch] if shape is None else tuple(shape)
    wide = mx.broadcast_to(values, (*lead, *values.shape[batch:]))
    order = mx.argsort(_unit(key, (*lead, values.shape[batch])), axis=-1)
    return _rows_at(wide, order, len(lead))


def _rows_at(x: array, order: array, axis: int) -> array:
    """Rows along an axis, for each element of those before it."""
    places = order.reshape((*order.shape, *(1,) * (x.ndim - order.ndim)))
    return mx.take_along_axis(x, mx.broadcast_to(places, (*order.shape, *x.shape[axis + 1 :])), axis=axis)


@draws_whole(ptr.ChoiceWithoutReplacement)
def choice(op: Any, node: Apply, key: array, shape: Any, a: Value, *rest: Value) -> array:
    """The first rows in an order that is random: by uniform numbers, or by weights with Gumbel's noise."""
    if op.ndims_params[0] == 0:
        raise NotConverted("a choice among as many numbers as an input says")
    values = to_array(a)
    batch = values.ndim - op.ndims_params[0]
    wanted = np.asarray(rest[-1].numbers() if isinstance(rest[-1], Known) else ()).reshape(-1)
    core = tuple(int(n) for n in wanted[-_length_of(node.inputs[-1]) :]) if wanted.size else ()
    lead = tuple(shape) if shape is not None else values.shape[:batch]
    n = values.shape[batch]
    noise = -mx.log(_exponential(key, (*lead, n)))
    if op.has_p_param:
        noise = noise + mx.log(to_array(rest[0], "float64"))
    order = mx.argsort(-noise, axis=-1)[..., : math.prod(core)]
    wide = mx.broadcast_to(values, (*lead, *values.shape[batch:]))
    chosen = _rows_at(wide, order, len(lead))
    return chosen.reshape((*lead, *core, *values.shape[batch + 1 :]))


def _length_of(x: Any) -> int:
    """How many axes a choice has."""
    return int(x.type.shape[-1] or 0)
