"""What a program overwrites: by value, against torch, and by plan. Sizes are fixed, or symbols."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import weft.core as mx  # noqa: E402
from weft.frontends.torch import from_exported, load  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbols"])


class Function(torch.nn.Module):
    """A function with a buffer, as a module."""

    def __init__(self, fun: Any, buffer: Any = None) -> None:
        super().__init__()
        self.fun = fun
        if buffer is not None:
            self.register_buffer("buffer", buffer)

    def forward(self, *args: Any) -> Any:
        return self.fun(*args, self.buffer) if hasattr(self, "buffer") else self.fun(*args)


def exported(fun: Any, args: tuple[Any, ...], dynamic: bool, buffer: Any = None) -> tuple[Any, Any]:
    """The program of a function, and the module that it came from."""
    module = Function(fun, None if buffer is None else buffer.clone())
    shapes = None
    if dynamic:
        n = torch.export.Dim("n", min=2)
        shapes = (tuple({0: n} if x.dim() and x.shape[0] == 6 else None for x in args),)
    return from_exported(torch.export.export(copy.deepcopy(module), args, dynamic_shapes=shapes)), module


def check(fun: Any, *args: Any, dynamic: bool, buffer: Any = None) -> Any:
    """Values of results, arguments and buffers are torch's, in several calls; the program."""
    made, module = exported(fun, tuple(x.clone() for x in args), dynamic, buffer)
    for _ in range(2):
        given, beside = ([x.clone() for x in args] for _ in range(2))
        got, wanted = made(*given), module(*beside)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(given, beside)
        if buffer is not None:
            torch.testing.assert_close(made.state["buffer"], module.buffer)
    return made


X, Y = torch.arange(24.0).reshape(6, 4) / 7, torch.linspace(-1, 1, 24).reshape(6, 4)


@DYNAMIC
def test_chains_run_in_one_buffer(dynamic: bool) -> None:
    def chain(x: Any, y: Any) -> Any:
        return ((x * 2 + y).tanh() * y - x).abs().sqrt().sigmoid()

    report = check(chain, X, Y, dynamic=dynamic).memory_report()
    assert (report.steps, report.temporaries, report.results) == (1, 0, X.nbytes)

    def changing(x: Any, y: Any) -> Any:
        return x.mul_(2).add_(y).tanh_().sub_(y).abs_()

    made = check(changing, X, Y, dynamic=dynamic)
    assert made._compiled.call_for([X, Y]).over is not None

    def by_rows(x: Any, y: Any) -> Any:
        """Kernels of their own, each of which lies on its operand."""
        h = x @ y.T
        for _ in range(3):
            h = (h.softmax(-1).exp() @ y).softmax(-1) @ y.T
        return h.softmax(-1)

    assert len(check(by_rows, X, Y, dynamic=dynamic).memory_report().in_place) >= 4


@DYNAMIC
def test_a_value_that_is_read_later(dynamic: bool) -> None:
    """h could be overwritten by its first reader, and is read by a later one, not as what that overwrites."""

    def fun(x: Any) -> Any:
        h = x.cumsum(0)
        a = h.exp().cumsum(1)
        return a.cumsum(0) * h

    check(fun, X, dynamic=dynamic)


@DYNAMIC
def test_a_value_that_is_an_output_too(dynamic: bool) -> None:
    def fun(x: Any) -> Any:
        h = x.cumsum(0)
        return h.tanh().cumsum(1), h

    check(fun, X, dynamic=dynamic)


@DYNAMIC
def test_two_readers_of_which_the_first_could_take_the_buffer(dynamic: bool) -> None:
    def fun(x: Any, y: Any) -> Any:
        h = x.cumsum(0)
        return (h + y).cumsum(0), (h * y).cumsum(1)

    check(fun, X, Y, dynamic=dynamic)


@DYNAMIC
def test_a_reader_without_a_form_in_place(dynamic: bool) -> None:
    def fun(x: Any) -> Any:
        h = x.cumsum(0)
        return h.T @ h.exp(), h.sort(0).values

    check(fun, X, dynamic=dynamic)


@DYNAMIC
def test_a_view_that_is_alive(dynamic: bool) -> None:
    def fun(x: Any) -> Any:
        h = x.cumsum(0)
        turned = h.T
        return (h + 1).cumsum(1), turned.cumsum(1)

    check(fun, X, dynamic=dynamic)


@DYNAMIC
def test_what_broadcasts_and_what_changes_dtype(dynamic: bool) -> None:
    def fun(x: Any, y: Any) -> Any:
        row = x.cumsum(0)[0]
        return row + y, row > y, x.cumsum(1) > y

    check(fun, X, Y, dynamic=dynamic)


@DYNAMIC
def test_one_input_twice(dynamic: bool) -> None:
    made = check(lambda x, y: (x.add_(y.cumsum(0)), x * y), X, Y, dynamic=dynamic)
    same = X.clone()
    got = made(same, same)
    other = X.clone()
    wanted = (other.add_(other.cumsum(0)), other * other)
    torch.testing.assert_close(got[0], wanted[0])
    torch.testing.assert_close(same, wanted[0])


@DYNAMIC
def test_a_buffer_that_changes_twice(dynamic: bool) -> None:
    def fun(x: Any, buffer: Any) -> Any:
        buffer.add_(x.mean())
        before = buffer.clone()
        buffer.mul_(2)
        return before, buffer.sum()

    check(fun, X, dynamic=dynamic, buffer=torch.ones(4))
    made = check(lambda x, buffer: buffer.add_(x.mean()).mul_(2), X, dynamic=dynamic, buffer=torch.ones(4))
    assert made._compiled.call_for([*made.state.values(), X]).over is not None


@DYNAMIC
def test_an_output_that_is_an_input(dynamic: bool) -> None:
    made = check(lambda x, y: (x, x + y, y.view(-1)), X, Y, dynamic=dynamic)
    x = X.clone()
    assert made(x, Y)[0] is x


CACHE = torch.zeros(6, 512, 64)


def _index_put(cache: Any, at: Any, row: Any) -> Any:
    cache[:, at] = row
    return cache[:, 0].sum()


def _index_copy(cache: Any, at: Any, row: Any) -> Any:
    cache.index_copy_(1, at, row)
    return cache[:, 0].sum()


def _slice(cache: Any, at: Any, row: Any) -> Any:
    cache[:, 3:4] = row
    cache[:, 7:8] += row
    return cache[:, 0].sum()


def _scatter(cache: Any, at: Any, row: Any) -> Any:
    cache.scatter_(1, at[None, :, None].expand(row.shape), row)
    return row.sum()


@DYNAMIC
@pytest.mark.parametrize("write", [_index_put, _index_copy, _slice, _scatter])
def test_a_cache_is_updated_where_it_lies(write: Any, dynamic: bool) -> None:
    at, row = torch.tensor([5]), torch.randn(6, 1, 64)
    made = check(write, CACHE, at, row, dynamic=dynamic)
    cache = CACHE.clone()
    call = made._compiled.call_for([cache, at, row])
    assert list(call.over.inputs.values()) == [0]
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    made(cache, at, row)
    assert mx.get_peak_memory() - active < cache.nbytes / 8
    assert made.memory_report().inputs


def test_a_cache_that_is_a_buffer_and_a_file() -> None:
    def fun(at: Any, row: Any, buffer: Any) -> Any:
        buffer[:, at] = row
        return (buffer * 2).sum()

    made = check(fun, torch.tensor([5]), torch.randn(6, 1, 64), dynamic=False, buffer=CACHE)
    file = io.BytesIO()
    made.save(file)
    again = load(io.BytesIO(file.getvalue()))
    at, row = torch.tensor([9]), torch.randn(6, 1, 64)
    torch.testing.assert_close(again(at, row), made(at, row))
    torch.testing.assert_close(again.state["buffer"], made.state["buffer"])
    assert again._compiled.call_for([CACHE, at, row]).over is not None


def test_statistics_of_a_batch() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    beside = copy.deepcopy(model)
    x = torch.randn(2, 3, 5, 5)
    made = from_exported(torch.export.export(model.train(), (x,)))
    for _ in range(3):
        torch.testing.assert_close(made(x), beside(x).detach())
    for name, buffer in beside.named_buffers():
        torch.testing.assert_close(made.state[name], buffer)
    assert made.state["1.num_batches_tracked"] == 3


def test_memory_that_overlaps_is_not_overwritten() -> None:
    def fun(x: Any, y: Any) -> Any:
        x.copy_(y.flip(0) + x)
        return y.sum()

    made = check(fun, X, Y, dynamic=False)
    memory, beside = torch.arange(28.0), torch.arange(28.0)
    got = made(memory[:24].view(6, 4), memory[4:].view(6, 4))
    before = beside[4:].view(6, 4).clone()
    wanted = before.sum()
    beside[:24].view(6, 4).copy_(before.flip(0) + beside[:24].view(6, 4))
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(memory, beside)


WEIGHT = torch.linspace(-1, 1, 16).reshape(4, 4).cos()


def _read_after_its_place_could_go(x: Any, y: Any) -> Any:
    h = torch.softmax(x @ WEIGHT, -1)
    return ((torch.relu(h - h.sum(0)) @ WEIGHT) * h).sum(0)


def _place_that_another_value_has(x: Any, y: Any) -> Any:
    h = x.cumsum(0)
    other = h.mul(2).cumsum(1).add_(1)
    return (y - h).cumsum(0), other.sum()


def _read_by_a_scan_too(x: Any, y: Any) -> Any:
    h = x.cumsum(0)
    return h.softmax(-1) @ WEIGHT, (h * y).cumsum(1)


def _changed_through_a_view(x: Any, y: Any) -> Any:
    h = x @ WEIGHT
    part = h.view(-1)[3:7]
    h.exp_()
    part.neg_()
    return h.softmax(-1), part + 1


def _broadcast(x: Any, y: Any) -> Any:
    twice = x.cumsum(0)[:1] * 2
    return twice + y, twice.add(y).sum(0)


def _of_another_dtype(x: Any, y: Any) -> Any:
    h = x.cumsum(0)
    return h > y, (h > y).sum(), h.to(torch.float64), h.to(torch.int32).float()


@DYNAMIC
@pytest.mark.parametrize(
    ("fun", "lying", "apart"),
    [
        (_read_after_its_place_could_go, "divide lies on matmul", "maximum: operand divide is needed later"),
        (_place_that_another_value_has, "multiply lies on cum_sum", "subtract: the place of operand cum_sum"),
        (_read_by_a_scan_too, "divide lies on cum_sum", "multiply: operand cum_sum"),
        (_changed_through_a_view, "slice_update(starts=(3,), steps=(1,)) lies on exp", "divide: operand slice_update"),
        (_broadcast, "", "multiply: operand cum_sum(axis=0, reverse=False, exclusive=False) has another size"),
        (_of_another_dtype, "", "as_type(dtype=float32): operand cum_sum"),
    ],
)
def test_what_lies_where_and_why(fun: Any, lying: str, apart: str, dynamic: bool) -> None:
    """What is overwritten is what nothing reads afterwards, as the report has it."""
    report = check(fun, X, Y, dynamic=dynamic).memory_report()
    assert any(line.startswith(lying) for line in report.in_place) if lying else not report.in_place, report
    assert any(line.startswith(apart) for line in report.apart), report


# ---- restrictions ----


def _reports(fun: Any, *args: Any, in_place: Any) -> tuple[Any, Any]:
    """The program with a restriction, whose values are those without, and its report."""
    plain = from_exported(torch.export.export(Function(fun), args))
    made = from_exported(torch.export.export(Function(fun), args), in_place=in_place)
    torch.testing.assert_close(made(*copy.deepcopy(args)), plain(*copy.deepcopy(args)), rtol=0, atol=0)
    return made, made.memory_report()


def _products(x: Any, y: Any) -> Any:
    """The first product is read by a reduction, and so has memory, which the last of a chain could take."""
    h = torch.softmax(x @ y, -1)
    return (torch.relu(h - h.sum(0)) @ y).sum()


@pytest.mark.parametrize("in_place", [False, (), "aten.add", lambda name: False])
def test_nothing_runs_in_place(in_place: Any) -> None:
    x = torch.randn(64, 64)
    assert from_exported(torch.export.export(Function(_products), (x, x))).memory_report().in_place
    made, report = _reports(_products, x, x, in_place=in_place)
    assert not report.in_place
    assert any("may not run in place" in reason for reason in report.apart)
    file = io.BytesIO()
    made.save(file)
    assert not load(io.BytesIO(file.getvalue())).memory_report().in_place


def test_some_operators_run_in_place() -> None:
    x = torch.randn(64, 64)
    _, report = _reports(_products, x, x, in_place=["aten._softmax.default"])
    assert len(report.in_place) == 1
    _, rest = _reports(_products, x, x, in_place=lambda name: not name.startswith("aten._softmax"))
    whole = from_exported(torch.export.export(Function(_products), (x, x))).memory_report()
    assert len(rest.in_place) < len(whole.in_place)


@pytest.mark.parametrize("write", [_index_put, _index_copy, _slice, _scatter])
def test_a_cache_is_copied_where_its_operator_may_not_run_in_place(write: Any) -> None:
    at, row = torch.tensor([5]), torch.randn(6, 1, 64)
    made, report = _reports(write, CACHE, at, row, in_place=False)
    cache, beside = CACHE.clone(), CACHE.clone()
    assert made._compiled.call_for([cache, at, row]).over is None
    made(cache, at, row)
    write(beside, at, row)
    torch.testing.assert_close(cache, beside)
    assert any("copied" in line for line in report.inputs)
    names = ["aten.index_put", "aten.index_copy", "aten.slice_scatter", "aten.scatter.src", "aten.add"]
    allowed, report = _reports(write, CACHE, at, row, in_place=names)
    assert allowed._compiled.call_for([cache, at, row]).over is not None
    assert any("overwritten" in line for line in report.inputs)


def test_restrictions_of_torch_compile() -> None:
    torch._dynamo.reset()
    cache = torch.zeros(512, 256)

    def fun(cache: Any, at: Any) -> Any:
        cache[at] = 1.0
        return at + 1

    run = torch.compile(fun, backend="weft", options={"in_place": ["aten.add"]})
    run(cache, torch.tensor([3]))
    assert cache[3].all()
    assert cache.sum() == 256
    with pytest.raises(Exception, match="backend 'weft' has no option 'inplace'"):
        torch.compile(fun, backend="weft", options={"inplace": True})(cache, torch.tensor([3, 4]))


def test_names_of_operators_are_checked() -> None:
    whole = torch.export.export(Function(lambda x: x + 1), (X,))
    for name in ("add", "aten.ad", "aten.add.Tensors"):
        with pytest.raises(ValueError, match="torch has no operator"):
            from_exported(whole, in_place=[name])
