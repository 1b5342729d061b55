"""Random graphs of operators on tensors of random shapes, layouts and dtypes: results, gradients, strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from weft.frontends.torch import backend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

Step = Callable[[Any, Any], Any]
STEPS: dict[str, Step] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y * 0.5,
    "tanh": lambda x, y: x.tanh(),
    "softmax": lambda x, y: x.softmax(-1),
    "norm": lambda x, y: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "matmul": lambda x, y: x @ y.transpose(-1, -2).tanh() @ x,
    "turned": lambda x, y: x.transpose(-1, -2).contiguous().transpose(-1, -2) + 1,
    "sums": lambda x, y: x - x.mean(0, keepdim=True) + y.sum(-1, keepdim=True) * 0.1,
    "cumsum": lambda x, y: x.cumsum(-1) * 0.2,
    "flip": lambda x, y: x.flip(0) + y,
    "slices": lambda x, y: torch.cat([x[1:], y[:1]], 0),
    "where": lambda x, y: torch.where(x > y, x, y * 0.3),
    "clamp": lambda x, y: x.clamp(-1, 1),
    "written": lambda x, y: x.clone().index_put((torch.tensor([0]),), y[:1]),
    "largest": lambda x, y: x.sort(-1).values,
    "gathered": lambda x, y: x.index_select(0, torch.tensor([0, 0]).repeat(x.shape[0])[: x.shape[0]]),
    "reshaped": lambda x, y: x.reshape(-1).view(x.shape).abs().sqrt(),
    "gelu": lambda x, y: torch.nn.functional.gelu(x),
}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=7),
    st.tuples(st.integers(2, 5), st.integers(2, 6)),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 99),
)
def test_random_modules(names: list[str], shape: tuple[int, int], turned: bool, dtype: Any, seed: int) -> None:
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    if turned:
        x = x.T.contiguous().T

    def module(x: Any, y: Any) -> Any:
        made = []
        for k, name in enumerate(names):
            x, y = (STEPS[name](x, y), x) if k % 3 == 2 else (STEPS[name](x, y), y)
            made.append(x)
        return x, made[len(made) // 2], y.T

    run = torch.compile(module, backend=backend.weft, fullgraph=True)
    results = []
    for f in (run, module):
        a, b = (v.clone().requires_grad_() for v in (x, y))
        outputs = f(a, b)
        weights = [torch.linspace(-1, 1, o.numel(), dtype=dtype).reshape(o.shape) for o in outputs]
        sum((o * w).sum() for o, w in zip(outputs, weights, strict=True)).backward()
        results.append((outputs, (a.grad, b.grad)))
    (got, got_grads), (wanted, wanted_grads) = results
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert a.stride() == b.stride()
    for a, b in zip(got_grads, wanted_grads, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
