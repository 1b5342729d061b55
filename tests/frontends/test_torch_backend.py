"""`torch.compile(model, backend="weft")`: values, gradients, aliasing, dynamic sizes, and what is left to torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from weft.frontends.torch import backend  # noqa: E402
from weft.frontends.torch.calls import Memory, SizedCall  # noqa: E402
from weft.targets.cpu.forms import base  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(fun: Any, **options: Any) -> Any:
    return torch.compile(fun, backend=backend.weft, fullgraph=True, **options)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

    def forward(self, x: Any) -> Any:
        return self.layers(x).softmax(-1)


def test_inference() -> None:
    model, x = Mlp().eval(), torch.randn(5, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x))


def test_a_step_of_training() -> None:
    model, x = Mlp(), torch.randn(5, 8)
    run = compiled(model)
    run(x).square().sum().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for got, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(got, p.grad)


def test_sizes_that_change_compile_once_more() -> None:
    model = Mlp()
    run = compiled(model)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for n in (5, 7, 9, 12):
        x = torch.randn(n, 8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        run(x).square().sum().backward()
        model(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 2  # for 5, and for any size


def test_arguments_that_change() -> None:
    def step(cache: Any, x: Any) -> Any:
        cache[1:3] += x
        cache.mul_(2)
        return cache.sum(), cache

    a, b, x = torch.ones(4, 3), torch.ones(4, 3), torch.randn(2, 3)
    total, same = compiled(step)(a, x)
    wanted, _ = step(b, x)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(total, wanted)
    assert same.data_ptr() == a.data_ptr()


def test_views_look_at_what_they_view() -> None:
    def fun(x: Any) -> Any:
        h = x + 1
        return h, h.T, h[1:], x[:, 1], x.expand(2, 3, 4), h.sum(0).expand(5, 4)

    x = torch.randn(3, 4)
    made, wanted = compiled(fun)(x), fun(x)
    for got, want in zip(made, wanted, strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    made[0].zero_()
    assert made[1].abs().sum() == 0
    assert made[2].abs().sum() == 0
    assert made[3].data_ptr() == x.data_ptr() + 4


def test_views_of_an_argument_with_gaps() -> None:
    """Also where it needs gradients, and there are several, of which autograd makes none again."""
    for needs in (False, True):
        base = torch.arange(12.0)
        x = base[::2][:4].requires_grad_(needs)
        first, second, more = compiled(lambda x: (*x.chunk(2), x * 2))(x)
        for got, wanted in zip((first, second, more), (*x.chunk(2), x * 2), strict=True):
            torch.testing.assert_close(got, wanted, check_stride=True)
        seen = second.detach()
        with torch.no_grad():
            base[4] = 70
        assert seen[0] == 70


def test_views_of_an_argument_with_gaps_whose_sizes_are_symbols() -> None:
    """AOTAutograd makes them again with the strides that come out."""
    for look in (lambda x: x.flatten(), lambda x: x[1:], lambda x: x.chunk(2)[1]):
        torch._dynamo.reset()
        run = compiled(lambda x, look=look: (look(x), x + 1), dynamic=True)
        for x in (torch.arange(24.0).reshape(3, 8)[:, ::2], torch.arange(60.0).reshape(5, 12)[:, ::2]):
            torch.testing.assert_close(run(x)[0], look(x), check_stride=True)
            assert run(x)[0].data_ptr() == look(x).data_ptr()


def test_views_of_a_value_that_is_no_output() -> None:
    def fun(x: Any) -> Any:
        y = x * 2
        return y[1:], y[:2], y.T

    rows, others, turned = compiled(fun)(torch.randn(3, 4))
    rows[0] = 7
    assert others[1].tolist() == turned[:, 1].tolist() == [7.0] * 4


def test_an_argument_whose_sizes_are_changed_as_well() -> None:
    def fun(x: Any) -> Any:
        y = x.mul_(2)
        rows = x[1:]
        y.t_()
        return (rows,)

    x, y = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
    torch.testing.assert_close(torch.compile(fun, backend=backend.weft)(x), fun(y))
    assert torch.equal(x, y)


def test_equal_results_are_not_one_tensor() -> None:
    a, b = compiled(lambda x: (x + 1, x + 1))(torch.zeros(3))
    a.zero_()
    assert b.tolist() == [1.0, 1.0, 1.0]


def test_an_operator_without_a_rule_is_left_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    def fun(x: Any) -> Any:
        y = torch.special.bessel_j0(x * 0.5)
        return (y + 1).sum() + x.square().sum()

    x = torch.randn(3, 3)
    with caplog.at_level(logging.WARNING, "weft.torch"):
        torch.testing.assert_close(compiled(fun)(x), fun(x))
    assert "aten.special_bessel_j0.default has no rule" in caplog.text
    assert "torch.special.bessel_j0(x * 0.5)" in caplog.text


def test_one_of_several_results_that_torch_computes() -> None:
    def solved(x: Any, y: Any) -> Any:
        values, vectors = torch.linalg.eigh(x + x.T)
        return values * 2, (vectors @ vectors.T).round(), torch.linalg.solve(x, y) + 1

    args = torch.randn(4, 4) + 4 * torch.eye(4), torch.randn(4, 2)
    torch.testing.assert_close(torch.compile(solved, backend="weft")(*args), solved(*args), rtol=1e-4, atol=1e-4)


def test_memory_in_any_order() -> None:
    def fun(x: Any, y: Any) -> Any:
        return x * 2 + y, (x + y).transpose(0, 1)

    x, y = torch.randn(4, 6).T, torch.randn(12, 8)[::2, ::2]
    for got, want in zip(compiled(fun)(x, y), fun(x, y), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_the_backend_has_an_entry_point() -> None:
    from importlib.metadata import entry_points

    found = [e for e in entry_points(group="torch_dynamo_backends") if e.name == "weft"]
    if not found:
        pytest.skip("Weft is not installed here, only on the path")
    assert found[0].load() is backend.weft


def test_random_numbers_come_from_the_generator_of_torch() -> None:
    run = compiled(lambda x: torch.nn.functional.dropout(x, 0.25))
    x = torch.ones(100_000)
    torch.manual_seed(7)
    first = run(x)
    assert not torch.equal(first, run(x))
    torch.manual_seed(7)
    assert torch.equal(first, run(x))
    torch.testing.assert_close(first.unique(), torch.tensor([0.0, 4 / 3]))
    kept = (first != 0).double().mean().item()
    assert abs(kept - 0.75) < 6 * (0.75 * 0.25 / 100_000) ** 0.5


def test_what_a_rule_refuses_is_left_to_torch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.frontends.torch import graph

    def refuse(out: Any, x: Any) -> Any:
        raise ValueError("no cosine today")

    monkeypatch.setitem(graph.RULES, "aten.cos.default", refuse)
    x = torch.randn(3, requires_grad=True)
    fun = lambda x: (x.sin().cos() * 2).exp()  # noqa: E731
    with caplog.at_level(logging.WARNING, "weft.torch"):
        made = compiled(fun)(x)
    torch.testing.assert_close(made, fun(x))
    assert "aten.cos.default: no cosine today; torch computes it at" in caplog.text
    made.sum().backward()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("wrong", ["size", "dtype"])
def test_a_result_of_another_kind_than_torch_says_is_left_to_torch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, wrong: str, dynamic: bool
) -> None:
    """Memory is allocated by what torch says."""
    from weft import core as mx
    from weft.frontends.torch import graph

    def other(out: Any, x: Any) -> Any:
        return mx.concatenate([x, x]) if wrong == "size" else x.astype(mx.float64)

    monkeypatch.setitem(graph.RULES, "aten.cos.default", other)
    x = torch.randn(1000)
    fun = lambda x: x.cos()  # noqa: E731
    with caplog.at_level(logging.WARNING, "weft.torch"):
        made = torch.compile(fun, backend="weft", dynamic=dynamic)(x)
    torch.testing.assert_close(made, fun(x))
    assert "torch computes it" in caplog.text
    assert made.dtype is x.dtype


def test_what_torch_computes_is_not_of_the_kind_that_it_says(caplog: pytest.LogCaptureFixture) -> None:
    """Statistics of a batch of halves are float32 where torch traces, and halves where it computes."""

    def fun(x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
        return torch.ops.aten._batch_norm_with_update(x, weight, bias, mean, var, 0.5, 0.6)[0] * 2

    x, rest = torch.randn(5, 6, 7).bfloat16(), torch.rand(4, 6).bfloat16()
    given, beside = (tuple(rest.clone()) for _ in range(2))
    with caplog.at_level(logging.WARNING, "weft.torch"):
        torch.testing.assert_close(compiled(fun)(x, *given), fun(x, *beside), rtol=2e-2, atol=2e-2)
    for a, b in zip(given, beside, strict=True):
        torch.testing.assert_close(a, b)


def test_tensors_that_a_graph_holds() -> None:
    def fun(x: Any) -> Any:
        y = x.clone()
        y[torch.tensor([0, 2])] = torch.tensor([5.0, 7.0])
        return y * torch.tensor(2.0) + x

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(compiled(fun)(x), fun(x))


def test_conjugates_and_negatives_that_torch_has_not_computed() -> None:
    x = torch.randn(4, dtype=torch.complex64).conj()
    fun = lambda x: x * 2 + 1  # noqa: E731
    torch.testing.assert_close(compiled(fun)(x), fun(x))
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(fun)(x.imag), fun(x.imag))


def test_arguments_change_behind_all_that_reads_them() -> None:
    """Also where a part that reads one comes behind what torch computes."""

    def fun(x: Any, y: Any) -> Any:
        made = torch.special.bessel_j0(y).sin() * x
        x.add_(1)
        return made

    a, b, y = torch.ones(2), torch.ones(2), torch.randn(2, 2)
    with torch.no_grad():
        torch.testing.assert_close(compiled(fun)(a, y), fun(b, y))
    assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own look at it
def test_what_torch_computes_reads_an_argument_before_it_changes() -> None:
    """Also where nothing that Weft computes needs what torch does."""

    def fun(x: Any) -> Any:
        made = torch.special.bessel_j0(x[:2])
        x.add_(1)
        return made, x

    x = torch.randn(4, 2)
    with torch.no_grad():
        for got, wanted in zip(compiled(fun)(x.clone()), fun(x.clone()), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it, too
def test_gradients_of_gradients() -> None:
    """A penalty on the gradient, and a Hessian; and torch.func inside of what is compiled."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    run = torch.compile(model, backend="weft", options={"double_backward": True})

    def penalized(forward: Any, x: Any) -> list[Any]:
        (slope,) = torch.autograd.grad(forward(x).sum(), x, create_graph=True)
        model.zero_grad()
        (forward(x).square().mean() + slope.square().sum()).backward()
        return [slope.detach(), x.grad, *[p.grad.clone() for p in model.parameters()]]

    x = torch.randn(5, 3)
    got, wanted = (penalized(forward, x.clone().requires_grad_()) for forward in (run, model))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)

    cube = torch.compile(lambda x: (x**3).sum(), backend="weft", options={"double_backward": True})
    torch.testing.assert_close(torch.autograd.functional.hessian(cube, x[0]), torch.diag(6 * x[0]))
    inside = torch.compile(lambda x: torch.func.hessian(lambda x: (x**3).sum())(x), backend="weft", fullgraph=True)
    torch.testing.assert_close(inside(x[0]), torch.diag(6 * x[0]))


def test_what_changes_its_arguments_has_no_gradients_of_gradients() -> None:
    torch._dynamo.reset()

    def fun(x: Any, state: Any) -> Any:
        state.add_(1)
        return x * state

    run = torch.compile(fun, backend="weft", options={"double_backward": True})
    with pytest.raises(NotImplementedError, match="changes its arguments"):
        run(torch.ones(3, requires_grad=True), torch.zeros(3))


def test_results_that_are_parts_of_others_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step keeps for the way back are views of each other, and gradients may be equal: only those are copied."""

    def refused(*args: Any) -> Any:
        raise AssertionError("all results were copied")

    torch._dynamo.reset()
    monkeypatch.setattr(SizedCall, "_run_and_copy", refused)
    cell = torch.nn.LSTMCell(4, 4)

    def fun(x: Any) -> Any:
        h = c = x.new_zeros(3, 4)
        kept = []
        for step in x.unbind(0):
            h, c = cell(step, (h, c))
            kept.append(h)
        return torch.stack(kept).flip(0).tanh()

    x = torch.randn(5, 3, 4)
    found = []
    for run in (torch.compile(fun, backend="weft"), fun):
        given = x.clone().requires_grad_()
        cell.zero_grad()
        out = run(given)
        out.square().sum().backward()
        found.append([out.detach(), given.grad, *[p.grad.clone() for p in cell.parameters()]])
        assert len({p.grad.data_ptr() for p in cell.parameters()}) == 4  # equal ones have memory of their own
    torch.testing.assert_close(*found)


def test_gradients_of_convolutions_are_written_in_the_order_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> Any:
        raise AssertionError("copied by torch")

    monkeypatch.setattr(Memory, "results", refused)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 3, 2))
    x = torch.randn(2, 3, 9, 9)
    compiled(model)(x).square().sum().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for got, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(got, p.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", [0, 1, 5])
def test_what_is_changed_begins_anywhere_in_memory(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is so large that it is written past the caches."""
    monkeypatch.setattr(base, "STREAM_BYTES", 1)

    def fun(x: Any, y: Any) -> Any:
        x.add_(y.sin())
        return x * 2

    memory = torch.rand(1000 + first)
    x, y = memory[first:], torch.rand(1000)
    expected = x + y.sin()
    found = compiled(fun)(x, y)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(found, expected * 2)
