"""Models that people fit with PyMC: a hierarchy, loops over time, a Gaussian process, counts, mixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt


def _random() -> np.random.Generator:
    return np.random.default_rng(1)


def radon() -> Any:
    """Measurements in houses of 85 counties, each with its own intercept and slope."""
    rng, houses, counties = _random(), 919, 85
    county, floor = rng.integers(0, counties, houses), rng.integers(0, 2, houses).astype(float)
    with pm.Model() as model:
        mu_a, mu_b = pm.Normal("mu_a", 0, 10), pm.Normal("mu_b", 0, 10)
        sigma_a, sigma_b = pm.HalfNormal("sigma_a", 5), pm.HalfNormal("sigma_b", 5)
        a, b = pm.Normal("a", 0, 1, shape=counties), pm.Normal("b", 0, 1, shape=counties)
        mean = (mu_a + sigma_a * a)[county] + (mu_b + sigma_b * b)[county] * floor
        pm.Normal("y", mean, pm.HalfCauchy("eps", 5), observed=rng.normal(size=houses))
    return model


def garch() -> Any:
    """A variance that follows the last return and the last variance."""
    returns = _random().normal(size=400)
    with pm.Model() as model:
        omega, first = pm.HalfNormal("omega", 1), pm.HalfNormal("first", 1)
        alpha, beta = pm.Uniform("alpha", 0, 1), pm.Uniform("beta", 0, 1)
        variance = pytensor.scan(
            lambda r, v, omega, alpha, beta: omega + alpha * r**2 + beta * v,
            sequences=[pt.as_tensor(returns[:-1])],
            outputs_info=[first**2],
            non_sequences=[omega, alpha, beta],
            strict=True,
            return_updates=False,
        )
        pm.Normal("r", 0, pt.sqrt(variance), observed=returns[1:])
    return model


def hidden_markov() -> Any:
    """Three hidden states: the forward algorithm."""
    states, y = 3, _random().normal(size=100)
    with pm.Model() as model:
        moves = pm.Dirichlet("moves", a=np.ones((states, states)))
        mu, sigma = pm.Normal("mu", 0, 2, shape=states), pm.HalfNormal("sigma", 1)
        density = -0.5 * ((y[:, None] - mu[None, :]) / sigma) ** 2 - pt.log(sigma)
        forward = pytensor.scan(
            lambda now, before, moves: pt.logsumexp(before[:, None] + pt.log(moves), axis=0) + now,
            sequences=[density[1:]],
            outputs_info=[density[0] - np.log(states)],
            non_sequences=[moves],
            strict=True,
            return_updates=False,
        )
        pm.Potential("evidence", pt.logsumexp(forward[-1]))
    return model


def kalman() -> Any:
    """Position and speed, of which positions are seen with noise."""
    y = _random().normal(size=60).cumsum()
    moves, sees = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])

    def step(now: Any, mean: Any, cov: Any, drift: Any, noise: Any) -> Any:
        mean, cov = moves @ mean, moves @ cov @ moves.T + drift**2 * np.eye(2)
        spread = sees @ cov @ sees.T + noise**2 * np.eye(1)
        gain = cov @ sees.T @ pt.linalg.inv(spread)
        error = now - sees @ mean
        density = -0.5 * (pt.log(2 * np.pi * spread[0, 0]) + error[0] ** 2 / spread[0, 0])
        return mean + gain @ error, cov - gain @ sees @ cov, density

    with pm.Model() as model:
        drift, noise = pm.HalfNormal("drift", 1), pm.HalfNormal("noise", 1)
        _, _, density = pytensor.scan(
            step,
            sequences=[pt.as_tensor(y)],
            outputs_info=[pt.zeros(2), pt.eye(2), None],
            non_sequences=[drift, noise],
            strict=True,
            return_updates=False,
        )
        pm.Potential("evidence", density.sum())
    return model


def gaussian_process() -> Any:
    x = np.linspace(0, 5, 40)[:, None]
    with pm.Model() as model:
        length, height = pm.Gamma("length", 2, 1), pm.HalfNormal("height", 2)
        process = pm.gp.Marginal(cov_func=height**2 * pm.gp.cov.Matern52(1, length))
        y = np.sin(x[:, 0]) + 0.1 * _random().normal(size=40)
        process.marginal_likelihood("y", X=x, y=y, sigma=pm.HalfNormal("sigma", 1))
    return model


def ordered_logistic() -> Any:
    rng = _random()
    ordered = pm.distributions.transforms.ordered
    with pm.Model() as model:
        cuts = pm.Normal("cuts", 0, 2, shape=3, transform=ordered, initval=np.array([-1.0, 0, 1]))
        slope = pm.Normal("slope", 0, 1)
        pm.OrderedLogistic("y", eta=slope * rng.normal(size=200), cutpoints=cuts, observed=rng.integers(0, 4, 200))
    return model


def mixture() -> Any:
    rng = _random()
    y = np.concatenate([rng.normal(-2, 1, 100), rng.normal(2, 0.5, 150)])
    with pm.Model() as model:
        weights, mu = pm.Dirichlet("weights", np.ones(2)), pm.Normal("mu", 0, 5, shape=2)
        pm.NormalMixture("y", w=weights, mu=mu, sigma=pm.HalfNormal("sigma", 2, shape=2), observed=y)
    return model


def regression() -> Any:
    rng = _random()
    with pm.Model() as model:
        slopes = pm.StudentT("slopes", nu=3, mu=0, sigma=1, shape=4)
        nu, sigma = pm.Gamma("nu", 2, 0.1), pm.Exponential("sigma", 1)
        pm.StudentT("y", nu=nu, mu=rng.normal(size=(150, 4)) @ slopes, sigma=sigma, observed=rng.normal(size=150))
    return model


def correlations() -> Any:
    with pm.Model() as model:
        factor, _, _ = pm.LKJCholeskyCov("factor", n=3, eta=2, sd_dist=pm.Exponential.dist(1.0))
        pm.MvNormal("y", pm.Normal("mu", 0, 1, shape=3), chol=factor, observed=_random().normal(size=(60, 3)))
    return model


def counts() -> Any:
    rng = _random()
    y = rng.poisson(2, 100)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
        mean = pt.exp(a + b * rng.normal(size=100))
        pm.NegativeBinomial("y", mu=mean, alpha=pm.Exponential("alpha", 1), observed=y)
        pm.ZeroInflatedPoisson("z", psi=0.5, mu=pt.exp(a), observed=y)
    return model


def directions() -> Any:
    """Angles and lengths, whose densities have scaled Bessel functions."""
    rng = _random()
    with pm.Model() as model:
        mu, kappa = pm.Normal("mu", 0, 1), pm.HalfNormal("kappa", 2)
        pm.VonMises("angles", mu, kappa, observed=rng.uniform(-3, 3, 50))
        pm.Rice("lengths", nu=kappa, sigma=pm.HalfNormal("sigma", 1), observed=np.abs(rng.normal(size=50)))
    return model


MODELS: dict[str, Callable[[], Any]] = {
    made.__name__: made
    for made in (
        radon, garch, hidden_markov, kalman, gaussian_process, ordered_logistic, mixture, regression, correlations,
        counts, directions,
    )
}  # fmt: skip


def logp_and_gradient(model: Any, mode: Any) -> tuple[Any, np.ndarray]:
    """The function that samplers call, of one vector, and a point to call it at."""
    made = model.logp_dlogp_function(ravel_inputs=True, mode=mode)
    made.set_extra_values({})
    start = model.initial_point()
    point = np.concatenate([np.ravel(start[x.name]) for x in model.continuous_value_vars]) + 0.05
    return made._pytensor_function, point
