"""torch.compile(dynamic=True): operators at two sizes each, and what cannot be compiled is torch's and no error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from weft.frontends.torch import backend, graph  # noqa: E402
from weft.frontends.torch.calls import SizedCall  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(fun: Any) -> Any:
    return torch.compile(fun, backend=backend.weft, fullgraph=True, dynamic=True)


def with_gradient(fun: Any, x: Any) -> list[Any]:
    x = x.clone().requires_grad_()
    made = fun(x)
    made.square().sum().backward()
    return [made.detach(), x.grad]


SIZES: dict[str, Any] = {
    "numbers": {"size": (9, 4)},
    "factors": {"scale_factor": (1.5, 0.7)},
    "factors worked out again": {"scale_factor": (1.5, 0.7), "recompute_scale_factor": True},
    "of another": None,
}


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("nearest", "numbers"), ("nearest", "factors"), ("nearest-exact", "of another"), ("bilinear", "of another"),
        ("bilinear", "factors worked out again"), ("bicubic", "numbers"), ("area", "factors"),
    ],
)  # fmt: skip
def test_images_of_any_size_are_resampled(mode: str, size: str, caplog: pytest.LogCaptureFixture) -> None:
    def fun(x: Any) -> Any:
        given = SIZES[size] or {"size": (x.shape[2] * 2, x.shape[3] + 1)}
        return F.interpolate(x, mode=mode, **given)

    run = compiled(fun)
    with caplog.at_level(logging.WARNING, "weft.torch"):
        for n in (5, 7):
            x = torch.randn(2, 3, n, n + 1)
            torch.testing.assert_close(with_gradient(run, x), with_gradient(fun, x))
    assert not caplog.text


NUMBERS: dict[str, Any] = {
    "quotient": lambda n: n / 3,
    "quotient of two": lambda n: n / (n + 1),
    "root": lambda n: n**0.5,
    "part": lambda n: float(int(n * 1.5)),
    "rounded": lambda n: round(n / 4),
    "least": lambda n: min(n, 6) * max(n // 2, 2),
    "power": lambda n: 2.0 ** (n / 8),
    "chosen": lambda n: n if n % 2 else -n,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_made_of_sizes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def fun(x: Any) -> Any:
        return x * NUMBERS[name](x.shape[0]) + x.new_full((int(NUMBERS[name](x.shape[0])) % 5 + 1, 1, 1), 2.0)

    run = compiled(fun)
    with caplog.at_level(logging.WARNING, "weft.torch"):
        for n in (5, 7, 12):
            x = torch.randn(n, 3)
            torch.testing.assert_close(run(x), fun(x))
    assert not caplog.text


def _broken(*given: Any, **options: Any) -> Any:
    raise KeyError("nothing of the kind")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("where", ["translation", "planning", "parts"])
def test_a_fault_of_the_backend_leaves_a_graph_to_torch(
    where: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is, and with gradients."""

    def fun(x: Any) -> Any:
        return (x @ x.mT).sin() * 2 + torch.special.bessel_j0(x.detach()).sum()

    if where == "translation":
        monkeypatch.setattr(graph.Translation, "build", _broken)
    elif where == "planning":
        monkeypatch.setattr(SizedCall, "_prepare", _broken)
    else:
        monkeypatch.setattr(backend, "split_module", _broken)
    run = torch.compile(fun, backend="weft", dynamic=dynamic)
    with caplog.at_level(logging.WARNING, "weft.torch"):
        for n in (3, 4):
            x = torch.randn(n, 3)
            torch.testing.assert_close(with_gradient(run, x), with_gradient(fun, x))
    assert "no program was made (KeyError: 'nothing of the kind'); torch computes" in caplog.text


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_errors_of_the_program_come_through(broken: bool, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where torch computes it, whose graphs check what Weft's operations raise themselves."""
    if broken:
        monkeypatch.setattr(graph.Translation, "build", _broken)
    singular = torch.zeros(3, 3)
    for fun in (torch.linalg.inv, torch.linalg.cholesky, lambda x: torch.linalg.solve(x, x)):
        torch._dynamo.reset()
        with pytest.raises(torch.linalg.LinAlgError):
            torch.compile(lambda x, fun=fun: fun(x).cos(), backend="weft", dynamic=dynamic)(singular)
    torch._dynamo.reset()
    take = torch.compile(lambda x, i: x[i] * 2, backend="weft", dynamic=dynamic)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        take(torch.ones(4), torch.tensor([1, 9]))
