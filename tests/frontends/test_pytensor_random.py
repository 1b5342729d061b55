"""Random variables of PyTensor on Weft: distributions, sizes, generators that are split and updated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt
from scipy import stats

import weft.frontends.pytensor  # registers the mode
from tests.frontends.pytensor_reference import assert_same

assert weft.frontends.pytensor.WEFT
pytestmark = pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop", "ignore:Calling a RandomVariable")
COUNT = 20_000


def drawn(name: str, *parameters: Any, size: Any = (COUNT,), seed: int = 0, **options: Any) -> np.ndarray:
    rng = pytensor.shared(np.random.default_rng(seed))
    variable = getattr(pt.random, name)(*parameters, size=size, rng=rng, **options)
    function = pytensor.function([], variable, mode="WEFT")
    assert not [step for step in function.vm.jit_fn.steps if type(step).__name__ == "Performed"]
    made = function()
    assert made.dtype == variable.type.dtype
    return made  # type: ignore[no-any-return]


CONTINUOUS = {
    "uniform": ((-1.0, 3.0), stats.uniform(-1, 4)),
    "triangular": ((-1.0, 0.5, 2.0), stats.triang(0.5, -1, 3)),
    "beta": ((0.5, 2.5), stats.beta(0.5, 2.5)),
    "normal": ((1.0, 2.0), stats.norm(1, 2)),
    "halfnormal": ((0.5, 2.0), stats.halfnorm(0.5, 2)),
    "lognormal": ((0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "gamma": ((0.4, 2.0), stats.gamma(0.4, scale=0.5)),
    "pareto": ((3.0, 2.0), stats.pareto(3, scale=2)),
    "gumbel": ((1.0, 2.0), stats.gumbel_r(1, 2)),
    "exponential": ((2.0,), stats.expon(scale=2)),
    "weibull": ((1.5,), stats.weibull_min(1.5)),
    "logistic": ((1.0, 2.0), stats.logistic(1, 2)),
    "vonmises": ((0.5, 2.0), stats.vonmises(2.0, 0.5)),
    "cauchy": ((1.0, 2.0), stats.cauchy(1, 2)),
    "halfcauchy": ((0.0, 2.0), stats.halfcauchy(0, 2)),
    "invgamma": ((3.0, 2.0), stats.invgamma(3, scale=2)),
    "wald": ((1.5, 2.0), stats.invgauss(1.5 / 2.0, scale=2.0)),
    "truncexpon": ((2.0, 1.0, 0.5), stats.truncexpon(2, 1, 0.5)),
    "t": ((3.0, 1.0, 2.0), stats.t(3, 1, 2)),
    "laplace": ((1.0, 2.0), stats.laplace(1, 2)),
    "gengamma": ((2.0, 1.5, 2.0), stats.gengamma(2.0 / 1.5, 1.5, scale=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTINUOUS)
def test_distributions_of_real_numbers(name: str) -> None:
    parameters, wanted = CONTINUOUS[name]
    if name == "gamma":
        found = drawn(name, shape=pt.as_tensor(0.4), scale=0.5)
    else:
        found = drawn(name, *parameters)
    assert stats.kstest(found, wanted.cdf).pvalue > 1e-3


DISCRETE = {
    "bernoulli": ((0.3,), stats.bernoulli(0.3)),
    "poisson": ((3.5,), stats.poisson(3.5)),
    "geometric": ((0.2,), stats.geom(0.2)),
    "binomial": ((12, 0.7), stats.binom(12, 0.7)),
    "nbinom": ((3, 0.4), stats.nbinom(3, 0.4)),
    "betabinom": ((10, 2.0, 3.0), stats.betabinom(10, 2, 3)),
    "hypergeometric": ((7, 5, 4), stats.hypergeom(12, 7, 4)),
    "integers": ((-2, 5), stats.randint(-2, 5)),
    "large_poisson": ((40.0,), stats.poisson(40.0)),
    "large_binomial": ((100, 0.35), stats.binom(100, 0.35)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_distributions_of_integers(name: str) -> None:
    parameters, wanted = DISCRETE[name]
    found = drawn(name.removeprefix("large_"), *parameters)
    low, high = int(wanted.ppf(0.001)), int(wanted.ppf(0.999))
    numbers = np.arange(low, high + 1)
    chances = wanted.pmf(numbers)
    counts = np.array([(found == k).sum() for k in numbers])
    often = chances * COUNT > 5
    rest = COUNT - counts[often].sum()
    observed, expected = np.append(counts[often], rest), np.append(chances[often], 1 - chances[often].sum()) * COUNT
    keep = expected > 1e-6
    assert stats.chisquare(observed[keep], expected[keep] * observed[keep].sum() / expected[keep].sum()).pvalue > 1e-3


def test_distributions_of_vectors() -> None:
    p = np.array([0.2, 0.5, 0.3])
    counts = np.bincount(drawn("categorical", p), minlength=3)
    assert stats.chisquare(counts, p * COUNT).pvalue > 1e-3
    several = drawn("multinomial", 10, p)
    assert several.shape == (COUNT, 3)
    assert np.all(several.sum(axis=1) == 10)
    np.testing.assert_allclose(several.mean(axis=0), 10 * p, atol=0.1)
    shares = drawn("dirichlet", np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_allclose(shares.mean(axis=0), np.array([1, 2, 3]) / 6, atol=0.01)
    cov = np.array([[2.0, 0.6], [0.6, 1.0]])
    for method in ("cholesky", "svd", "eigh"):
        points = drawn("multivariate_normal", np.array([1.0, -1.0]), cov, method=method)
        np.testing.assert_allclose(np.cov(points.T), cov, atol=0.1)
        np.testing.assert_allclose(points.mean(axis=0), [1.0, -1.0], atol=0.05)


def test_orders_and_choices() -> None:
    x = np.arange(6.0)
    assert sorted(drawn("permutation", x, size=None)) == list(x)
    orders = np.stack([drawn("permutation", x, size=None, seed=seed) for seed in range(3)])
    assert len({tuple(row) for row in orders}) > 1
    rng = pytensor.shared(np.random.default_rng(1))
    chosen = pytensor.function([], pt.random.choice(x, size=4, replace=False, rng=rng), mode="WEFT")()
    assert len(set(chosen)) == 4
    p = np.array([0.0, 0.5, 0.5, 0, 0, 0])
    weighted = pytensor.function([], pt.random.choice(x, size=2, replace=False, p=p, rng=rng), mode="WEFT")()
    assert set(weighted) == {1.0, 2.0}


def test_sizes_and_batches() -> None:
    mu = np.array([[0.0], [1000.0]])
    found = drawn("normal", mu, np.array([1.0, 2.0, 3.0]), size=None)
    assert found.shape == (2, 3)
    assert np.all(np.abs(found - mu) < 30)
    assert drawn("normal", 0.0, 1.0, size=()).shape == ()
    assert drawn("poisson", np.array([1.0, 50.0]), size=(4, 2)).shape == (4, 2)


def test_a_generator_is_updated_and_gives_the_same_again() -> None:
    rng = pytensor.shared(np.random.default_rng(5))
    next_rng, x = pt.random.normal(size=3, rng=rng).owner.outputs
    step = pytensor.function([], x, updates={rng: next_rng}, mode="WEFT")
    first, second = step(), step()
    assert not np.array_equal(first, second)
    rng.set_value(np.random.default_rng(5))
    assert_same(step(), first)
    assert_same(step(), second)
    assert isinstance(rng.get_value(), np.random.Generator)
    still = pytensor.function([], x, mode="WEFT")
    assert_same(still(), still())


def test_a_copy_of_a_generator_draws_the_same() -> None:
    rng = pytensor.shared(np.random.default_rng(5))
    next_rng, x = pt.random.normal(size=3, rng=rng).owner.outputs
    step = pytensor.function([], x, updates={rng: next_rng}, mode="WEFT")
    step()
    kept = rng.get_value(borrow=False)
    wanted = step()
    rng.set_value(kept)
    assert_same(step(), wanted)


def test_draws_in_a_loop() -> None:
    rng = pytensor.shared(np.random.default_rng(2))

    def step(x: Any, rng: Any) -> Any:
        next_rng, noise = pt.random.normal(0, 1, rng=rng).owner.outputs
        return 0.5 * x + noise, next_rng

    path, last = pytensor.scan(step, outputs_info=[pt.zeros(()), rng], n_steps=5000, return_updates=False)
    function = pytensor.function([], path, updates={rng: last}, mode="WEFT")
    first, second = function(), function()
    noise = first[1:] - 0.5 * first[:-1]
    assert stats.kstest(noise, stats.norm.cdf).pvalue > 1e-3
    assert not np.array_equal(first, second)
