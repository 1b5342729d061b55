"""Images between convolutions lie with channels last, also in what a step keeps for its way back: same bits, and the
strides that torch expects where a caller sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from weft.frontends.torch import backend, channels, graph  # noqa: E402
from weft.frontends.torch.calls import SizedCall  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    """Norms, pools, joins, parts, and a branch that squeezes and excites."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.Hardswish(), nn.MaxPool2d(3, 2, 1))
        self.group = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 8, 3, 2, 1, groups=8)
        self.squeeze = nn.Conv2d(8, 8, 1)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        wide = F.relu(self.second(F.pad(self.group(h), (1, 0, 0, 1))))
        wide = wide * self.squeeze(wide.mean((2, 3), keepdim=True)).sigmoid()
        return self.last(torch.cat([wide, wide.flip(3)[:, :, :, : wide.shape[3]]], 1)).amax((2, 3))


def step(model: Any, x: Any, run: Any) -> list[Any]:
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    for p in model.parameters():
        p.grad = None
    out = run(x)
    out.square().mean().backward()
    return [out.detach(), x.grad, *[p.grad.clone() for p in model.parameters()]]


def as_they_stand(results: Any) -> Any:
    return [channels.Lying(x, tuple(range(x.ndim))) for x in results]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_channels_lie_changes_no_bit(order: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net().to(dtype), torch.randn(2, 3, 16, 12, dtype=dtype).to(memory_format=order)
    found = step(model, x, torch.compile(model, backend=backend.weft, fullgraph=True))
    torch._dynamo.reset()
    monkeypatch.setattr(graph, "settled", as_they_stand)
    expected = step(model, x, torch.compile(model, backend=backend.weft, fullgraph=True))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert [a.stride() for a in found] == [b.stride() for b in expected]
    if dtype is torch.float32:
        for a, b in zip(found, step(model, x, model), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_what_a_step_keeps_lies_as_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    prepare = SizedCall._prepare

    def noted(self: SizedCall, program: Any) -> None:
        made.append(self.signature)
        prepare(self, program)

    monkeypatch.setattr(SizedCall, "_prepare", noted)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    out = torch.compile(model, backend=backend.weft, fullgraph=True)(torch.randn(2, 3, 9, 7))
    assert out.is_contiguous()
    out.square().sum().backward()
    forward, backward = made
    kept = [x for x in forward.made if x.order == (0, 2, 3, 1)]
    assert kept
    assert [x.shape for x in kept] == [x.shape for x in backward.given if x.order == (0, 2, 3, 1)]


class Kept(torch.autograd.Function):
    """A gradient that is a view of what was kept."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x)
        return (x.transpose(2, 3) * y).sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return torch.zeros_like(x), x.transpose(2, 3)


def test_views_of_what_was_kept_are_those_of_torch() -> None:
    conv, y = nn.Conv2d(3, 8, 3), torch.randn(2, 8, 5, 7, requires_grad=True)
    x = torch.randn(2, 3, 9, 7)

    def strided(x: Any, y: Any) -> Any:
        return (torch.as_strided(conv(x).relu(), (2, 8, 5, 7), (280, 35, 1, 5), 0) * y).sum()

    def kept(x: Any, y: Any) -> Any:
        return Kept.apply(conv(x).relu(), y)

    for fun in (strided, kept):
        found = []
        for run in (torch.compile(fun, backend=backend.weft), fun):
            y.grad = None
            run(x, y).backward()
            found.append(y.grad.clone())
        torch.testing.assert_close(*found)
