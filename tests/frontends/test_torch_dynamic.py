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


def _image(x: Any) -> Any:
    """As an image of 3 channels that is as large as a matrix."""
    return torch.stack([x, x.sin(), x.cos()])[None]


WEIGHT = torch.linspace(-1, 1, 3 * 4 * 3 * 3).reshape(4, 3, 3, 3)
GROUPS: dict[str, list[Any]] = {
    "windows": [
        lambda x: F.max_pool2d(_image(x), 3, 2, 1),
        lambda x: F.max_pool2d(_image(x), 2, ceil_mode=True),
        lambda x: F.avg_pool2d(_image(x), 3, 2, 1, count_include_pad=False),
        lambda x: F.adaptive_avg_pool2d(_image(x), (3, 2)),
        lambda x: F.adaptive_max_pool2d(_image(x), (3, 2)),
        lambda x: F.unfold(_image(x), 3, padding=1, stride=2),
        lambda x: F.fold(F.unfold(_image(x), 2), x.shape, 2),
    ],
    "convolutions": [
        lambda x: F.conv2d(_image(x), WEIGHT, stride=2, padding=1),
        lambda x: F.conv2d(_image(x), WEIGHT, dilation=(1, 2), padding="same"),
        lambda x: F.conv_transpose2d(_image(x), WEIGHT.movedim(1, 0), stride=2, output_padding=1),
        lambda x: F.conv1d(x[:, None], WEIGHT[:, :1, 0]),
        lambda x: F.grid_sample(_image(x), x[None, :, :4].reshape(1, -1, 2, 2).tanh(), align_corners=False),
        lambda x: F.pixel_shuffle(_image(x).repeat(1, 4, 1, 1), 2),
    ],
    "padding": [
        *[lambda x, mode=mode: F.pad(_image(x), (1, 2, 2, 1), mode) for mode in ("reflect", "replicate", "circular")],
        lambda x: F.pad(x, (-1, 2)),
        lambda x: x.roll((1, -2), (0, 1)).flip(0) * x.rot90(2),
        lambda x: x.unfold(0, 3, 2),
        lambda x: torch.cat([x.chunk(2, 1)[0], x.diff(dim=1), x.tril(-1)], 1),
        lambda x: x.repeat_interleave(2, 0) + x.repeat(2, 1) + x.tile(2, 1),
    ],
    "reductions": [
        lambda x: x.logsumexp(0) + x.norm(dim=0) + x.var(0) + x.prod(0),
        lambda x: x.amax(1) + x.median(1).values + x.quantile(0.3, 1) + x.kthvalue(2, 1).values,
        lambda x: x.cumsum(0) + x.cumprod(1) + x.logcumsumexp(0) + x.cummax(1).values,
        lambda x: x.sort(1).values * x.argsort(0) + x.topk(3, 1).values.sum(),
        lambda x: torch.cdist(x, x[:3].sin()) @ x[:3],
        lambda x: torch.trapezoid(x, dim=0) + x.nanmean(0) + x.mean(),
    ],
    "indexing": [
        lambda x: x.gather(1, x.argsort(1)[:, :3]) + x[:, -3:] + x[::2].sum(),
        lambda x: x.scatter_add(0, x.argsort(0)[:2], x[1:3]).index_select(0, torch.tensor([2, 0, 2])),
        lambda x: x.masked_fill(x > 0.5, 2.0) + torch.where(x < 0, x * x, x),
        lambda x: x[torch.arange(x.shape[0] - 1, -1, -1), 1] * x.diagonal(1)[0],
        lambda x: x.index_add(1, torch.tensor([0, 3, 0]), x[:, :3], alpha=2),
        lambda x: x.take(torch.arange(0, x.numel(), 3)) + torch.linspace(0, 1, (x.numel() + 2) // 3),
    ],
    "layers": [
        lambda x: F.layer_norm(_image(x), _image(x).shape[-1:]) + F.group_norm(_image(x), 1),
        lambda x: F.instance_norm(_image(x)) + F.local_response_norm(_image(x), 3),
        lambda x: F.scaled_dot_product_attention(_image(x), _image(x) * 2, _image(x), is_causal=True),
        lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % 3) + F.smooth_l1_loss(x, x.sin()),
        lambda x: x.softmax(0) * x.log_softmax(1) + F.gelu(x) + F.glu(x.repeat(1, 2)),
        lambda x: torch.einsum("ij,kj,kl->il", x, x.cos(), x) + x @ x.mT @ x,
    ],
    "matrices": [
        lambda x: torch.linalg.inv(x @ x.mT + torch.eye(x.shape[0])),
        lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(x.shape[0])),
        lambda x: torch.linalg.solve(x @ x.mT + torch.eye(x.shape[0]), x),
        lambda x: torch.linalg.slogdet(x @ x.mT + torch.eye(x.shape[0])).logabsdet,
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, x.shape[1]) + torch.fft.fft2(x).abs(),
        lambda x: torch.kron(x, x[:2, :2]).triu(1),
    ],
}


@pytest.mark.parametrize("group", GROUPS)
def test_operators_at_two_sizes(group: str, caplog: pytest.LogCaptureFixture) -> None:
    """Values and gradients; all of them are parts of programs."""

    def fun(x: Any) -> list[Any]:
        return [made(x) for made in GROUPS[group]]

    def both(run: Any, x: Any) -> tuple[list[Any], Any]:
        x = x.clone().requires_grad_()
        made = run(x)
        sum(y.square().mean() for y in made).backward()
        return [y.detach() for y in made], x.grad

    run = compiled(fun)
    with caplog.at_level(logging.WARNING, "weft.torch"):
        for n, m in ((6, 8), (10, 12)):
            x = torch.rand(n, m) * 2 - 1
            torch.testing.assert_close(both(run, x), both(fun, x), rtol=1e-4, atol=1e-4)
    assert not caplog.text
