"""Linear algebra, and operators beyond core ATen, through torch.compile: values and gradients against eager torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tests.frontends import torch_samples as samples  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
t = samples.t


def symmetric(x: Any) -> Any:
    return x + x.mH


def spd(x: Any) -> Any:
    return x @ x.mH + 3 * torch.eye(x.shape[-1], dtype=x.dtype)


L = torch.linalg
WITH_GRADIENTS: dict[str, Callable[..., Any]] = {
    "cholesky": lambda x: L.cholesky(spd(x)),
    "cholesky_upper": lambda x: L.cholesky(spd(x), upper=True),
    "cholesky_solve": lambda x: torch.cholesky_solve(x, L.cholesky(spd(x))),
    "inv": lambda x: L.inv(spd(x)),
    "solve": lambda x: L.solve(spd(x), x),
    "solve_right": lambda x: L.solve(spd(x), x, left=False),
    "solve_triangular": lambda x: L.solve_triangular(spd(x), x, upper=True),
    "det": lambda x: L.det(x),
    "slogdet": lambda x: L.slogdet(x),
    "logdet": lambda x: torch.logdet(spd(x)),
    "qr": lambda x: L.qr(x),
    "eigvalsh": lambda x: L.eigvalsh(symmetric(x)),
    "eigh": lambda x: (lambda w, v: (w, (v * torch.exp(w)[..., None, :].to(v.dtype)) @ v.mH))(*L.eigh(symmetric(x))),
    "svdvals": lambda x: L.svdvals(x),
    "svd": lambda x: (lambda u, s, v: (s, (u * s.sqrt()[..., None, :].to(u.dtype)) @ v))(*L.svd(x, False)),
    "pinv": lambda x: L.pinv(x[..., :2]),
    "matrix_exp": lambda x: L.matrix_exp(x),
    "matrix_power": lambda x: L.matrix_power(spd(x), -2),
    "matrix_norm": lambda x: [L.matrix_norm(x, ord) for ord in ("fro", "nuc", 2, 1)],
    "cond": lambda x: L.cond(spd(x)),
    "lu": lambda x: L.lu(x),
    "lu_solve": lambda x: L.lu_solve(*L.lu_factor_ex(spd(x))[:2], x),
    "multi_dot": lambda x: L.multi_dot([x[0], x[1], x[0]]) if x.ndim == 3 else L.multi_dot([x, x, x]),
}
REAL: dict[str, Callable[..., Any]] = {
    "cummax": lambda x: x.cummax(1).values + x.cummin(0).values,
    "median": lambda x: (x.median(), x.nanmedian(0).values, x.median(1).values),
    "mode": lambda x: x.mode(1).values,
    "histc": lambda x: torch.histc(x.detach(), 5),
    "exp2": lambda x: torch.exp2(x) + torch.ldexp(x, torch.tensor(3)) + torch.xlogy(x, x.abs()),
    "polygamma": lambda x: torch.polygamma(1, x.abs() + 0.5) + torch.special.erfcx(x),
    "igamma": lambda x: torch.special.gammainc(x.detach().abs(), x.abs() + 0.1),
    "bucketize": lambda x: torch.bucketize(x.detach(), torch.linspace(-1, 1, 5)) * x,
    "searchsorted": lambda x: torch.searchsorted(x.detach().sort(1).values, x.detach(), right=True) * x,
    "dist": lambda x: torch.dist(x, x.T.reshape_as(x) * 2, 3) + torch.addbmm(x, x[None], x.T[None] @ x[None]).sum(),
    "bilinear": lambda x: F.bilinear(x, x * 2, torch.ones(3, x.shape[1], x.shape[1])),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x[None], (2, 3)),
    "bicubic": lambda x: F.interpolate(x[None, None], size=(7, 9), mode="bicubic"),
    "smooth": lambda x: F.interpolate(x[None, None], size=(3, 4), mode="bilinear", antialias=True),
}


def assert_alike(fun: Callable[..., Any], x: Any, caplog: Any) -> None:
    """Of results, and of gradients; torch computed none of it."""

    def run(f: Any) -> Any:
        given = x.clone().requires_grad_()
        made = f(given)
        made = [made] if isinstance(made, torch.Tensor) else list(made)
        total = sum((y * (1 + k)).abs().square().sum() for k, y in enumerate(made) if y.requires_grad)
        gradient = torch.autograd.grad(total, given)[0] if isinstance(total, torch.Tensor) else None
        return [y.detach() for y in made], gradient

    torch._dynamo.reset()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="weft.torch"):
        got = run(torch.compile(fun, backend="weft", fullgraph=True))
    assert not [record.getMessage() for record in caplog.records if record.name == "weft.torch"]
    torch.testing.assert_close(got, run(fun), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", WITH_GRADIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=["float32", "complex128"])
def test_linear_algebra_with_its_gradient(name: str, dtype: Any, caplog: Any) -> None:
    if dtype.is_complex and name in ("qr", "svd"):
        pytest.skip("what has a phase that nothing decides")
    assert_alike(
        WITH_GRADIENTS[name], t(4, 4, dtype=dtype) if not dtype.is_complex else t(2, 3, 3, dtype=dtype), caplog
    )


@pytest.mark.parametrize("name", REAL)
def test_others_with_their_gradient(name: str, caplog: Any) -> None:
    assert_alike(REAL[name], t(5, 6), caplog)


def test_eigenvectors() -> None:
    x = t(5, 5)
    values, vectors = torch.compile(L.eig, backend="weft")(x)
    torch.testing.assert_close(x.to(vectors.dtype) @ vectors, vectors * values, atol=1e-4, rtol=1e-4)


def test_what_has_no_answer_is_an_error_of_torch() -> None:
    for fun in (L.inv, L.cholesky, lambda x: L.solve(x, x)):
        with pytest.raises(torch.linalg.LinAlgError):
            torch.compile(fun, backend="weft")(torch.zeros(3, 3))


def test_failures_that_are_read_are_left_to_torch() -> None:
    torch._dynamo.reset()
    x = torch.zeros(3, 3)
    for fun in (L.inv_ex, L.cholesky_ex):
        assert torch.compile(fun, backend="weft")(x)[1] == fun(x)[1]


def test_determinants_of_matrices_in_columns() -> None:
    """torch keeps other factors of these for the gradient."""
    torch._dynamo.reset()
    x = t(4, 4).requires_grad_()

    def fun(x: Any) -> Any:
        return L.det((2 * x).mT)

    (got,) = torch.autograd.grad(torch.compile(fun, backend="weft")(x), x)
    torch.testing.assert_close(got, torch.autograd.grad(fun(x), x)[0], atol=1e-3, rtol=1e-4)


def test_exported() -> None:
    from weft.frontends.torch import from_exported

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return L.solve(spd(x), x), torch.searchsorted(x[0].sort().values, x)

    made = from_exported(torch.export.export(Module(), (t(3, 3),)))
    torch.testing.assert_close(made(t(3, 3)), Module()(t(3, 3)))


def test_drawing_by_weights() -> None:
    weights = torch.tensor([0.1, 0.0, 0.6, 0.3])
    torch.manual_seed(0)
    drawn = torch.compile(lambda w: torch.multinomial(w, 50_000, replacement=True), backend="weft")(weights)
    assert drawn.dtype is torch.int64
    torch.testing.assert_close(drawn.bincount(minlength=4) / 50_000, weights, atol=0.02, rtol=0)
    apart = torch.compile(lambda w: torch.multinomial(w, 3), backend="weft")(weights.expand(20_000, 4))
    assert (apart.sort(1).values == torch.tensor([0, 2, 3])).all()
    torch.testing.assert_close(
        (apart[:, 0] == 2).double().mean(), torch.tensor(0.6, dtype=torch.float64), atol=0.02, rtol=0
    )


def test_other_distributions() -> None:
    def draw(x: Any) -> Any:
        return (
            torch.normal(x, 2.0), torch.empty_like(x).log_normal_(0.5, 0.25), torch.empty_like(x).cauchy_(1.0, 2.0),
            torch.empty_like(x).geometric_(0.25),
        )  # fmt: skip

    torch.manual_seed(0)
    normal, logs, cauchy, trials = torch.compile(draw, backend="weft")(torch.full((100_000,), 3.0))
    assert abs(normal.mean() - 3) < 0.03
    assert abs(normal.std() - 2) < 0.03
    assert abs(logs.log().mean() - 0.5) < 0.005
    assert abs(cauchy.median() - 1) < 0.05
    assert trials.min() == 1
    assert abs(trials.mean() - 4) < 0.08
