"""Whole models, made from configurations: forward, loss, all gradients and buffers as torch has them; exported, saved,
loaded; several sizes with one compilation."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks import torch_nets as models  # noqa: E402
from weft.frontends.torch import backend, from_exported, load  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch and transformers
HUGGING = {"gpt2", "llama", "bert", "vit"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def made(name: str) -> Any:
    if name in HUGGING:
        pytest.importorskip("transformers")
    return models.SMALL[name]()


def wide(model: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The same in float64."""
    return copy.deepcopy(model).double(), tuple(x.double() if x.is_floating_point() else x for x in args)


def assert_as_close(got: Any, eager: Any, exact: Any, where: str) -> None:
    """Off by no more than a small multiple of what torch itself is off by, or of some units in the last place of the
    largest element."""
    scale = exact.abs().max().item() if exact.numel() else 0.0
    allowed = 8 * (eager.double() - exact).abs().max().item() + 64 * 2.0**-23 * scale + 1e-9
    off = (got.double() - exact).abs().max().item()
    assert off <= allowed, (where, off, allowed)


def step(run: Any, args: tuple[Any, ...], weights: Any) -> Any:
    output = models.tensor_of(run(*args))
    loss = (output * weights.to(output.dtype)).sum()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("name", models.SMALL)
def test_a_step_of_training(name: str) -> None:
    model, args = made(name)
    model.train()
    eager, (exact, wide_args) = copy.deepcopy(model), wide(model, args)
    shape = models.tensor_of(copy.deepcopy(model)(*args)).shape
    weights = torch.randn(shape, dtype=torch.float64)
    losses = [
        step(run, given, weights)
        for run, given in (
            (torch.compile(model, backend=backend.weft, fullgraph=True), args), (eager, args), (exact, wide_args),
        )
    ]  # fmt: skip
    assert_as_close(*losses, "loss")
    named = zip(model.named_parameters(), eager.parameters(), exact.parameters(), strict=True)
    for (where, a), b, c in named:
        if b.grad is not None:
            assert_as_close(a.grad, b.grad, c.grad, where)
    for (where, a), b, c in zip(model.named_buffers(), eager.buffers(), exact.buffers(), strict=True):
        assert_as_close(a, b, c.double(), where)


@pytest.mark.parametrize("name", models.SMALL)
def test_exported_saved_and_loaded(name: str) -> None:
    model, args = made(name)
    model.eval()
    file = io.BytesIO()
    with torch.no_grad():
        program = from_exported(torch.export.export(model, args))
        program.save(file)
        again = load(io.BytesIO(file.getvalue()))
        exact, wide_args = wide(model, args)
        eager, reference = models.tensor_of(model(*args)), models.tensor_of(exact(*wide_args))
        first, second = (models.tensor_of(run(*args)) for run in (program, again))
    assert_as_close(first, eager, reference, name)
    assert torch.equal(first, second)
    assert first.stride() == eager.stride()


def test_batches_and_lengths_with_one_compilation() -> None:
    pytest.importorskip("transformers")
    model, _ = models.llama()
    model.eval()
    run = torch.compile(model, backend=backend.weft, dynamic=True, fullgraph=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for batch, tokens in ((2, 7), (3, 12), (5, 9), (4, 30)):
            x = torch.randint(0, 100, (batch, tokens))
            torch.testing.assert_close(run(x).logits, model(x).logits)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


def test_gradients_of_several_sizes_with_one_compilation() -> None:
    model, _ = models.SMALL["mixture"]()
    run = torch.compile(model, backend=backend.weft, dynamic=True, fullgraph=True)
    for batch, tokens in ((2, 7), (3, 12), (5, 9)):
        x = torch.randn(batch, tokens, 32)
        grads = []
        for f in (run, model):
            model.zero_grad()
            f(x).square().sum().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_an_exported_model_of_any_size() -> None:
    model, (x,) = models.SMALL["mixture"]()
    batch, tokens = torch.export.Dim("batch", min=2), torch.export.Dim("tokens", min=2)
    try:
        exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch, 1: tokens}})
    except torch._dynamo.exc.UserError:
        if torch.__version__ >= "2.12":
            raise
        pytest.skip("the export of this torch takes the sizes of a mixture for constants")
    program = from_exported(exported)
    file = io.BytesIO()
    program.save(file)
    again = load(io.BytesIO(file.getvalue()))
    for shape in ((2, 7, 32), (4, 3, 32), (3, 11, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), model(x).detach())
        assert torch.equal(again(x), program(x))


def test_half_precision_and_autocast() -> None:
    model, (x,) = models.SMALL["mixture"]()
    model.eval()
    run = torch.compile(model, backend=backend.weft, fullgraph=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, wanted = run(x), model(x)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    half = copy.deepcopy(model).bfloat16()
    with torch.no_grad():
        got, wanted = torch.compile(half, backend=backend.weft)(x.bfloat16()), half(x.bfloat16())
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def test_channels_last() -> None:
    model, (x,) = models.SMALL["resnet18"]()
    model = model.eval().to(memory_format=torch.channels_last)
    inner = torch.nn.Sequential(model.stem, model.blocks)
    given = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        got, wanted = torch.compile(inner, backend=backend.weft, fullgraph=True)(given), inner(given)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert got.is_contiguous(memory_format=torch.channels_last)
