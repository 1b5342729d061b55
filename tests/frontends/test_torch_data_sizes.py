"""Sizes that depend on data: selections, items, checks of sizes, against eager torch for data of all sizes."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from weft.frontends.torch import from_exported, load  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    """torch.compile hands such operators to backends."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield
    torch._dynamo.reset()


class Module(torch.nn.Module):
    def __init__(self, fun: Any) -> None:
        super().__init__()
        self.fun = fun

    def forward(self, *args: Any) -> Any:
        return self.fun(*args)


def _sliced(x: Any, n: Any) -> Any:
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    return x[:k].sum(0), x[k:] * 2


MASK, MIXED = torch.tensor([[True, False, True], [False, False, True]]), torch.tensor([[1.0, -2, 3], [-4, 5, -6]])
NONE, ALL = torch.zeros(2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)
CASES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
    "nonzero": (lambda m: m.nonzero(), [(MASK,), (NONE,), (ALL,)]),
    "nonzero of a number": (lambda m: m.nonzero().shape[0] + m, [(torch.tensor(1),), (torch.tensor(0),)]),
    "places": (lambda m: torch.where(m), [(MASK,), (NONE,), (ALL,)]),
    "mask": (lambda x: x[x > 0] * 2, [(MIXED,), (-MIXED.abs(),), (MIXED.abs(),)]),
    "rows": (lambda x: x[x[:, 0] > 0].sum(1), [(MIXED,), (-MIXED,), (MIXED.abs(),)]),
    "columns": (lambda x: x[:, x[0] > 0], [(MIXED,), (-MIXED,)]),
    "a mask and an index": (lambda x, i: x[i, x[0] > 2], [(MIXED, torch.tensor([1])), (MIXED, torch.tensor([0]))]),
    "masked_select": (lambda x, m: torch.masked_select(x, m), [(MIXED, MASK), (MIXED, NONE), (MIXED, ALL)]),
    "masked_select of more": (lambda x, m: torch.masked_select(x, m), [(MIXED, MASK[:1]), (MIXED, NONE[:1])]),
    "put": (lambda x, m: x.masked_fill(m, 0).index_put((m,), x[m] * 3), [(MIXED, MASK), (MIXED, NONE), (MIXED, ALL)]),
    "reshaped": (lambda x: x[x > 0].view(-1, 1) + 1, [(MIXED,), (MIXED.abs(),)]),
    "item": (_sliced, [(torch.randn(8, 3), torch.tensor(k)) for k in (3, 5, 0, 1, 8)]),
    "an item as a size": (lambda n: torch.ones(n.item()) * n.item(), [(torch.tensor(k),) for k in (3, 0, 1, 7)]),
    "an item that is no size": (lambda x, s: (x * s.item()).sum(), [(MIXED, torch.tensor(k)) for k in (2.5, -1.0)]),
    "repeat_interleave": (
        lambda x, n: x.repeat_interleave(n, 0),
        [(MIXED, torch.tensor(k)) for k in ([1, 2], [0, 0], [3, 0], [0, 1])],
    ),
    "unique": (
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        [(torch.tensor(k),) for k in ([2, 1, 2, 3], [1, 1, 1, 1], [4, 3, 2, 1])],
    ),
    "unique_consecutive": (
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        [(torch.tensor(k),) for k in ([2, 2, 1, 2], [1, 1, 1, 1], [4, 3, 2, 1])],
    ),
    "rows that are the same": (
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=0),
        [(torch.tensor(k),) for k in ([[2, 1], [2, 1], [1, 1]], [[1, 1], [1, 1], [1, 1]], [[1, 2], [2, 1], [1, 2]])],
    ),
    "columns that are the same": (
        lambda x: torch.unique_consecutive(x, dim=1),
        [(MASK,), (NONE,), (ALL,)],
    ),
    "distinct rows": (
        lambda x: torch.unique(x, return_inverse=True, return_counts=True, dim=0),
        [(torch.tensor(k),) for k in ([[2, 1], [1, 1], [2, 1]], [[1, 1], [1, 1], [1, 1]], [[1, 2], [2, 1], [1, 1]])],
    ),
    "distinct columns": (
        lambda x: torch.unique(x, dim=-1),
        [(torch.tensor(k),) for k in ([[2.0, -1, 2], [1, 1, 1]], [[0.0, 0, 0], [1, 2, 0]])],
    ),
    "bincount": (lambda x: torch.bincount(x, minlength=2), [(torch.tensor(k),) for k in ([1, 5, 1], [0, 0, 0])]),
    "one after the other": (
        lambda x: x[x > 0][x[x > 0].nonzero().squeeze(1)].cumsum(0),
        [(MIXED,), (MIXED.abs(),), (-MIXED.abs(),)],
    ),
}


def through_file(made: Any) -> Any:
    file = io.BytesIO()
    made.save(file)
    return load(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("name", CASES)
def test_values_and_shapes_are_those_of_torch(name: str) -> None:
    fun, calls = CASES[name]
    made = from_exported(torch.export.export(Module(fun), calls[0]))
    for program in (made, through_file(made)):
        for args in [*calls, calls[0]]:
            torch.testing.assert_close(program(*args), fun(*args))


def test_layouts_are_those_of_torch() -> None:
    made = from_exported(torch.export.export(Module(lambda m: (m.nonzero(), m.nonzero() + 1)), (MASK,)))
    assert [x.stride() for x in made(MASK)] == [MASK.nonzero().stride(), (MASK.nonzero() + 1).stride()]


def test_dtypes() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int8, torch.bool):
        x = MIXED.to(dtype)
        made = from_exported(torch.export.export(Module(lambda x, m: x[m]), (x, MASK)))
        torch.testing.assert_close(made(x, MASK), x[MASK])


def _experts(x: Any, up: Any) -> Any:
    """Rows go to one of three experts; each computes its own rows alone."""
    chosen = x[:, :3].argmax(-1)
    out = torch.zeros_like(x)
    for k in range(3):
        at = (chosen == k).nonzero().squeeze(1)
        out = out.index_add(0, at, torch.tanh(x[at] @ up[k]))
    return out


@pytest.mark.parametrize("fun", [lambda x, up: x[x > 0].exp() * up.sum(), _experts])
def test_compiled_with_gradients(fun: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="weft.torch"):
        run = torch.compile(fun, backend="weft", fullgraph=True)
        for n in (7, 7, 9):
            given = [torch.randn(n, 4), torch.randn(3, 4, 4)]
            ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
            got, wanted = run(*ours), fun(*theirs)
            torch.testing.assert_close(got, wanted)
            got.sum().backward()
            wanted.sum().backward()
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a.grad, b.grad)
    assert not caplog.records


def test_arguments_change_after_all_is_computed() -> None:
    def fun(x: Any, state: Any) -> Any:
        state.add_(1)
        x[x > 0] = 0
        return state[state > 2]

    made = from_exported(torch.export.export(Module(fun), (MIXED.clone(), torch.arange(4.0))))
    ours, theirs = ([MIXED.clone(), torch.arange(4.0)] for _ in range(2))
    for _ in range(2):
        torch.testing.assert_close(made(*ours), fun(*theirs))
        torch.testing.assert_close(ours, theirs)


def test_views_of_arguments_and_numbers_come_out() -> None:
    def fun(x: Any, n: Any) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 8)
        return x.narrow(0, 0, k), k, x[x > 0].shape[0] * 2

    x = torch.randn(8, 3)
    made = from_exported(torch.export.export(Module(fun), (x, torch.tensor(3))))
    for n in (3, 5, 0):
        got, wanted = made(x, torch.tensor(n)), fun(x, torch.tensor(n))
        torch.testing.assert_close(got, wanted)
        assert got[0].data_ptr() == wanted[0].data_ptr() or not n


def test_views_that_begin_where_data_say() -> None:
    def fun(x: Any, start: Any) -> Any:
        return torch.narrow(x, 0, start, 2), torch.narrow(x, 0, start, 3) * 2

    x = torch.randn(6, 3)
    made = torch.compile(fun, backend="weft", fullgraph=True)
    for start in (1, 0, 3, 2):
        torch.testing.assert_close(made(x, torch.tensor(start)), fun(x, torch.tensor(start)))


def test_checks_of_sizes() -> None:
    x = torch.randn(8, 3)
    made = from_exported(torch.export.export(Module(_sliced), (x, torch.tensor(3))))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="u0 <= 8"):
            made(x, torch.tensor(9))
        torch.testing.assert_close(made(x, torch.tensor(4)), _sliced(x, torch.tensor(4)))
    with pytest.raises(RuntimeError, match="u0 >= 0"):
        made(x, torch.tensor(-1))


class Selecting(torch.nn.Module):
    """Changes a buffer and an argument, and gives what looks at one, a number, and values of sizes that depend on data,
    by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(3, 5)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: Any, state: Any, *, n: Any) -> dict[str, Any]:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 8)
        self.seen[1:].add_(1)
        state.mul_(self.scale)
        chosen = x[x[:, 0] > 0]
        return {"first": x.narrow(0, 0, k), "up": self.up(chosen), "k": k, "seen": self.seen, "state": state[:1]}


def test_files_keep_names_order_state_and_checks() -> None:
    beside, given = Selecting(), {"n": torch.tensor(3)}
    made = from_exported(torch.export.export(Selecting(), (torch.randn(8, 3), torch.ones(2)), given), name="chosen")
    x, ours, theirs = torch.randn(8, 3), torch.ones(2), torch.ones(2)
    made(x, ours, **given)
    beside(x, theirs, **given)
    again = through_file(made)
    assert again.arguments == made.arguments
    assert [*again.state] == [*made.state]
    assert repr(again) == repr(made) == "Exported chosen(x, state, n)"
    assert again._compiled.signature == made._compiled.signature
    for k in (5, 0, 8, 1):
        x = torch.randn(8, 3)
        got, wanted = (run(x, y, n=torch.tensor(k)) for run, y in ((again, ours), (beside, theirs)))
        assert [*got] == [*wanted]
        for name in wanted:
            torch.testing.assert_close(got[name], wanted[name])
        torch.testing.assert_close(ours, theirs)
        assert got["seen"] is again.state["seen"]
        assert got["state"].data_ptr() == ours.data_ptr()
        assert got["first"].data_ptr() == x.data_ptr() or not k
    before = again.state["seen"].clone(), ours.clone()
    with pytest.raises(RuntimeError, match="<= 8"):
        again(x, ours, n=torch.tensor(9))
    torch.testing.assert_close((again.state["seen"], ours), before)
    torch.testing.assert_close(through_file(again)(x, ours, **given)["seen"], before[0] + torch.tensor([0.0, 1.0]))


def test_files_keep_which_operators_may_run_in_place() -> None:
    fun = torch.export.export(Module(lambda x: (x[x > 0] + 1).exp()), (MIXED,))
    again = through_file(from_exported(fun, in_place=["aten.exp"]))
    assert again._graph.in_place == ("aten.exp.default",)
    torch.testing.assert_close(again(MIXED), (MIXED[MIXED > 0] + 1).exp())


def test_what_changes_its_operand_has_other_operators() -> None:
    def fun(x: Any, y: Any, out: Any) -> Any:
        torch.atan2(x, y, out=out)
        return out * 2

    made = from_exported(torch.export.export(Module(fun), (MIXED, MIXED + 1, torch.zeros(2, 3))))
    ours, theirs = torch.zeros(2, 3), torch.zeros(2, 3)
    torch.testing.assert_close(made(MIXED, MIXED + 1, ours), fun(MIXED, MIXED + 1, theirs))
    torch.testing.assert_close(ours, theirs)
