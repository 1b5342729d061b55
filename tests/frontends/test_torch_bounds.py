"""Indices that are out of range: the class of error that eager torch raises, and everything keeps its value."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from weft.frontends.torch import from_exported  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

W, ONES = torch.arange(15.0).reshape(5, 3), torch.ones(2, 3)

CASES: dict[str, Any] = {
    "embedding": lambda w, i: F.embedding(i, w),
    "embedding_bag": lambda w, i: F.embedding_bag(i, w, torch.tensor([0])),
    "index": lambda w, i: w[i],
    "index of a later axis": lambda w, i: w.T[:, i],
    "index_select": lambda w, i: w.index_select(0, i),
    "take": lambda w, i: w[:, 0].take(i),
    "gather": lambda w, i: w.gather(0, i[:, None]),
    "cross_entropy": lambda w, i: F.cross_entropy(w.T[:2], i),
    "nll_loss": lambda w, i: F.nll_loss(w.T[:2], i),
    "scatter": lambda w, i: w.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda w, i: w.scatter_add(0, i[:, None], ONES),
    "index_put": lambda w, i: w.index_put((i,), torch.ones(3)),
    "index_add": lambda w, i: w.index_add(0, i, ONES),
    "index_copy": lambda w, i: w.index_copy(0, i, ONES),
    "index_fill": lambda w, i: w.index_fill(0, i, 1.0),
    "put": lambda w, i: w[:, 0].put(i, torch.ones(2)),
}


class Module(torch.nn.Module):
    def __init__(self, fun: Any) -> None:
        super().__init__()
        self.fun = fun

    def forward(self, *args: Any) -> Any:
        return self.fun(*args)


def raised(fun: Any, *args: Any) -> Exception | None:
    try:
        fun(*args)
    except Exception as error:  # of whatever class
        return error
    return None


@pytest.mark.parametrize("name", CASES)
def test_the_class_of_error_is_that_of_eager_torch(name: str) -> None:
    fun, right = CASES[name], torch.tensor([1, 4])
    made = from_exported(torch.export.export(Module(fun), (W, right)))
    torch.testing.assert_close(made(W, right), fun(W, right))
    for wrong in (5, -1, -5, -6, 1 << 40):
        index = torch.tensor([1, wrong])
        wanted, got = raised(fun, W, index), raised(made, W, index)
        if wanted is None:
            torch.testing.assert_close(made(W, index), fun(W, index))
        else:
            assert isinstance(got, type(wanted)), (wrong, wanted, got)


def test_the_error_says_which_operator_of_which_line() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="weft")
    def fun(w: Any, i: Any) -> Any:
        return F.embedding(i, w) * 2  # the line

    fun(W, torch.tensor([1]))
    with pytest.raises(IndexError, match=r"(?s)aten.embedding at .*\(i, w\).*index 7 is out of range .* 5 elements"):
        fun(W, torch.tensor([7]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_has_changed_after_an_error(dynamic: bool) -> None:
    """A cache of which some rows are right and one is wrong, and another argument that changes before it."""

    def fun(cache: Any, state: Any, at: Any, rows: Any) -> Any:
        state.mul_(2)
        cache[at] = rows
        return state.sum()

    cache, state = torch.zeros(400, 256), torch.ones(100_000)
    at, rows = torch.tensor([3, 5]), torch.ones(2, 256)
    sizes = ({0: torch.export.Dim("n", min=2)}, None, None, None) if dynamic else None
    exported = torch.export.export(Module(fun), (cache, state, at, rows), dynamic_shapes=(sizes,) if dynamic else None)
    made = from_exported(exported)
    with pytest.raises(IndexError):
        made(cache, state, torch.tensor([3, 400]), rows)
    assert not cache.any()
    assert (state == 1).all()
    assert made(cache, state, at, rows) == 200_000
    assert cache[[3, 5]].all()
    assert made._compiled.call_for([cache, state, at, rows]).over is not None  # and it was done in place


def test_gradients_of_a_loss_with_targets_that_do_not_count() -> None:
    """Targets to ignore are out of range, and no error."""
    torch._dynamo.reset()
    fun = torch.compile(lambda x, t: F.cross_entropy(x, t, ignore_index=-100), backend="weft")
    x, target = torch.randn(4, 5, requires_grad=True), torch.tensor([1, -100, 4, -100])
    loss = fun(x, target)
    loss.backward()
    beside = x.detach().clone().requires_grad_()
    wanted = F.cross_entropy(beside, target)
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(x.grad, beside.grad)
    with pytest.raises(IndexError):
        fun(x, torch.tensor([1, -100, 5, -100]))
