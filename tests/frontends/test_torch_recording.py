"""Graphs that need no gradients and change nothing are recorded in one pass; all others go through AOTAutograd. Either
way values, views and changes are those of eager torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from weft.frontends.torch import backend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each graph of a test was traced."""
    found: list[str] = []
    recorded = backend.recorded

    def noted(*args: Any) -> Any:
        made = recorded(*args)
        found.append("by AOTAutograd" if made is None else "recorded")
        return made

    monkeypatch.setattr(backend, "recorded", noted)
    return found


def compiled(fun: Any, **options: Any) -> Any:
    return torch.compile(fun, backend=backend.weft, fullgraph=True, **options)


def check(fun: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Values, dtypes, strides and changes of arguments are those of eager torch; gives what came out."""
    ours = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    theirs = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    got, wanted = compiled(fun, **options)(*ours), fun(*theirs)
    got, wanted = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (got, wanted))
    for a, b in zip([*got, *ours], [*wanted, *theirs], strict=True):
        torch.testing.assert_close(a, b, check_stride=True)
        assert a.requires_grad == b.requires_grad
    return got


X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Mixed(torch.nn.Module):
    """A bit of everything that inference meets: parameters, statistics, several results, constants, a composite."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.lstm = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 6), torch.nn.LSTMCell(6, 5)

    def forward(self, x: Any) -> Any:
        h, c = self.lstm(self.linear(self.norm(x)))
        values, places = torch.topk(h, 2, dim=-1)
        return torch.cat([values, c[:, ::2]], 1) + torch.arange(5), places, c.split(2, 1)[1].clone()


def test_a_model_without_gradients_is_recorded(ways: list[str]) -> None:
    model = Mixed().eval()
    run = compiled(model)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for got, wanted in zip(run(X), model(X), strict=True):
                torch.testing.assert_close(got, wanted, check_stride=True)
    assert set(ways) == {"recorded"}


def test_tensors_that_need_no_gradients_are_enough(ways: list[str]) -> None:
    check(lambda x, y: (x * y).tanh().sum(0), X, X + 1)
    assert ways == ["recorded"]


def test_gradients_go_through_aot_autograd(ways: list[str]) -> None:
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    compiled(lambda x: x.sin().sum())(x).backward()
    y.sin().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert ways == ["by AOTAutograd"]


def test_gradients_in_a_region_of_their_own(ways: list[str]) -> None:
    w = X.clone().requires_grad_()

    def fun(x: Any) -> Any:
        with torch.enable_grad():
            return (w * x).sum()

    with torch.no_grad():
        y = compiled(fun)(X)
    assert y.requires_grad
    assert ways == ["by AOTAutograd"]
    y.backward()
    torch.testing.assert_close(w.grad, X)


def test_views_look_at_what_they_view(ways: list[str]) -> None:
    x = X.clone()
    same, row, other, base = compiled(lambda x: (x, x[1], (y := x * 2).t(), y))(x)
    assert ways == ["recorded"]
    assert same is x
    x[1] = 7
    assert row.tolist() == [7.0] * 4
    base[0, 1] = 9
    assert other[1, 0] == 9
    assert other.stride() == (1, 4)


# ---- changes ----


def into_a_value(x: Any) -> Any:
    y = x * 2
    y += x
    y.sigmoid_().mul_(3)
    return y + 1, y


def into_one_of_several(x: Any) -> Any:
    values, places = torch.sort(x, -1)
    before = values + 0
    values.neg_()
    return values, places, before


def into_a_value_of_another_dtype(x: Any) -> Any:
    y = x.half()
    y.add_(x)
    z = x.int()
    z.mul_(3)
    return y, z


def read_before_and_after(x: Any) -> Any:
    y = x * 2
    before = y.exp()
    y.copy_(x)
    return before, y, y - 1


def into_pieces(x: Any) -> Any:
    a, b = (x * 2).unsafe_chunk(2, 1)
    return a.tanh_() + b.sigmoid_(), a * 2


@pytest.mark.parametrize("fun", [into_a_value, into_one_of_several, into_pieces, read_before_and_after])
def test_changes_of_what_no_other_looks_at_are_recorded(fun: Any, ways: list[str]) -> None:
    check(fun, X)
    assert ways == ["recorded"]


def of_an_argument(x: Any) -> Any:
    x.add_(1)
    return x * 2


def with_a_view_alive(x: Any) -> Any:
    y = x * 2
    view = y[1]
    y.mul_(3)
    return view, y


def through_a_view(x: Any) -> Any:
    y = x * 2
    y[1].zero_()
    y.t()[2] = 5
    return y


def of_a_view_of_an_argument(x: Any) -> Any:
    x[0].mul_(2)
    return x.sum()


def of_its_sizes(x: Any) -> Any:
    y = x[:, :3] * 2
    y.t_()
    return y, y * 1


@pytest.mark.parametrize(
    "fun",
    [of_an_argument, with_a_view_alive, through_a_view, of_a_view_of_an_argument, of_its_sizes,
     into_a_value_of_another_dtype],
)  # fmt: skip
def test_other_changes_are_left_to_aot_autograd(fun: Any, ways: list[str]) -> None:
    check(fun, X)
    assert ways == ["by AOTAutograd"]


def of_a_piece_of_what_is_read_again(x: Any) -> Any:
    y = x * 2
    a, _ = y.unsafe_chunk(2, 1)
    a.zero_()
    return y + 1


def of_a_piece_of_an_argument(x: Any) -> Any:
    a, b = x.unsafe_chunk(2, 1)
    return a.zero_() + b


@pytest.mark.parametrize("fun", [of_a_piece_of_what_is_read_again, of_a_piece_of_an_argument])
def test_pieces_that_torch_does_not_let_change(fun: Any, ways: list[str]) -> None:
    """What comes of it is torch's affair (its compilers differ from eager here), and not the recorder's."""
    compiled(fun)(X.clone())
    assert ways == ["by AOTAutograd"]


# ---- what has a state ----


def test_autocast(ways: list[str]) -> None:
    def fun(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.t(), x.exp()

    got = compiled(fun)(X)
    assert [y.dtype for y in got] == [y.dtype for y in fun(X)] == [torch.bfloat16, torch.float32]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(lambda x: x @ x.t())(X).dtype is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    assert ways == ["by AOTAutograd", "recorded"]


def test_transforms(ways: list[str]) -> None:
    check(lambda x: torch.vmap(lambda row: row.softmax(0) * row.sum())(x), X)
    check(lambda x: torch.func.grad(lambda y: (y**3).sum())(x), X)
    assert ways == ["by AOTAutograd"] * 2


def test_sizes_that_are_symbols(ways: list[str]) -> None:
    run = compiled(lambda x: x.reshape(-1, 2).sum(1) * x.shape[0], dynamic=True)
    for n in (3, 5, 8):
        x = torch.randn(n, 4)
        torch.testing.assert_close(run(x), x.reshape(-1, 2).sum(1) * n)
    assert ways == ["by AOTAutograd"]


def test_pieces_look_at_the_argument(ways: list[str]) -> None:
    check(lambda x: x.unsafe_chunk(2, 1), X)
    assert ways == ["recorded"]


def test_tensors_that_a_function_holds(ways: list[str]) -> None:
    check(lambda x: x + torch.tensor([1.0, 2, 3, 4]) * torch.tensor(2), X)


def test_indices_out_of_range_name_the_line() -> None:
    table = torch.randn(5, 2)
    run = compiled(lambda i: torch.nn.functional.embedding(i, table))
    torch.testing.assert_close(run(torch.tensor([4, 0])), table[[4, 0]])
    with pytest.raises(IndexError, match=r"test_torch_recording\.py"):
        run(torch.tensor([5, 0]))


# ---- what only looks as if nothing changed ----


def test_a_result_that_is_the_beginning_of_what_is_stored() -> None:
    """The first row of a matrix that is stored whole: the memory of the row alone is too short for it."""

    def fun(x: Any) -> Any:
        return (x * 2).unbind(0)[0].add_(1)

    run = compiled(fun)
    x = torch.randn(256, 4096)
    for _ in range(3):
        torch.testing.assert_close(run(x), fun(x))


def test_operators_of_other_libraries_are_not_those_of_the_same_name() -> None:
    """AOTAutograd refuses this one."""
    with torch.library._scoped_library("weft_recording", "DEF") as library:
        library.define("relu_(Tensor(a!) self) -> Tensor(a!)")
        library.impl("relu_", lambda x: x.mul_(100), "CompositeExplicitAutograd")
        torch.library.register_fake("weft_recording::relu_", lambda x: x, lib=library)

        def fun(x: Any) -> Any:
            y = x * 2
            torch.ops.weft_recording.relu_(y)
            return y

        with pytest.raises(Exception, match="alias annotations"):
            compiled(fun)(X)


def test_what_a_decomposition_gives_back_is_a_copy(ways: list[str]) -> None:
    def fun(x: Any) -> Any:
        y = x * 2
        z = torch.native_dropout(y, 0.5, False)[0]
        z.add_(1)
        return y, z

    check(fun, X)
    assert ways == ["recorded"]


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x.view(torch.int32),
        lambda x: torch.complex(x, x).view(torch.float32),
        lambda x: x.expand(2, 3, 4)[:, 1],
    ],
)
def test_views_of_other_dtypes(fun: Any) -> None:
    check(fun, X)


def written(fun: Any, x: Any) -> Any:
    """An argument, when its view has been written to."""
    fun(x).fill_(1)
    return x


@pytest.mark.parametrize(
    ("fun", "x"),
    [
        (lambda x: x.view(torch.int32), X),
        (torch.view_as_real, torch.complex(X, X)),
        (lambda x: x.real, torch.complex(X, X)),
        (lambda x: x.conj(), torch.complex(X, X)),
        (lambda x: x.conj().imag, torch.complex(X, X)),
    ],
)
def test_every_view_of_an_argument_looks_at_it(fun: Any, x: Any) -> None:
    torch.testing.assert_close(written(compiled(fun), x.clone()), written(fun, x.clone()))


def test_a_row_of_what_is_repeated_looks_at_it() -> None:
    x = torch.zeros(4)
    compiled(lambda x: x[1])(x.expand(3, 4)).fill_(1)
    assert x.tolist() == [1.0] * 4


def test_what_is_detached_needs_no_gradients() -> None:
    x = X.clone().requires_grad_()
    with torch.no_grad():
        assert not compiled(lambda x: x.detach())(x).requires_grad
