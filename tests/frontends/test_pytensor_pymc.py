"""PyMC on Weft: densities and gradients of models beside PyTensor's other back ends, and sampling in processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pymc")

import pytensor

from tests.frontends.pymc_models import MODELS, logp_and_gradient, regression
from tests.frontends.pytensor_reference import REFERENCE

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")


def agrees(name: str, mode: object) -> None:
    model = MODELS[name]()
    function, point = logp_and_gradient(model, "WEFT")
    assert not [step for step in function.vm.jit_fn.steps if type(step).__name__ == "Performed"]
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        other, _ = logp_and_gradient(model, mode)
        wanted = [np.asarray(x) for x in other(point)]
    for found, right in zip(function(point), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_density_and_gradient(name: str) -> None:
    agrees(name, REFERENCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_density_and_gradient_are_those_of_numba(name: str) -> None:
    agrees(name, "NUMBA")


SAMPLING = """
import warnings

import numpy as np
import pymc as pm
import weft.frontends.pytensor

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    y = np.random.default_rng(3).normal(2.0, 1.5, size=200)
    with pm.Model():
        mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 5)
        pm.Normal("y", mu, sigma, observed=y)
        draws = pm.sample(
            500, tune=500, chains=2, cores=2, compile_kwargs={"mode": "WEFT"}, progressbar=False, random_seed=1
        ).posterior
    assert abs(draws["mu"].mean().item() - y.mean()) < 0.05, draws["mu"].mean()
    assert abs(draws["sigma"].mean().item() - y.std()) < 0.05, draws["sigma"].mean()
    assert 0.07 < draws["mu"].std().item() < 0.15
    print("sampled")
"""


@pytest.mark.slow
def test_sampling_in_several_processes(tmp_path: Path) -> None:
    program = tmp_path / "sampling.py"
    program.write_text(SAMPLING)
    done = subprocess.run([sys.executable, program], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "sampled" in done.stdout


def test_what_is_drawn_from_a_model() -> None:
    import pymc as pm

    with regression():
        drawn = pm.sample_prior_predictive(20, compile_kwargs={"mode": "WEFT"}, random_seed=2)
        again = pm.sample_prior_predictive(20, compile_kwargs={"mode": "WEFT"}, random_seed=2)
    assert drawn.prior_predictive["y"].shape == (1, 20, 150)
    assert np.array_equal(drawn.prior["slopes"], again.prior["slopes"])
