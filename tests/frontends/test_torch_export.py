"""`weft.frontends.torch.from_exported`: called like the module, dynamic sizes, changes written back, files."""

from __future__ import annotations

import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from weft.frontends.torch import Unsupported, from_exported, load  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        self.register_buffer("count", torch.zeros(3))
        self.table = torch.arange(3.0)

    def forward(self, x: Any, y: Any, *, scale: Any) -> dict[str, Any]:
        self.count[1:].add_(1)
        y.mul_(2)
        return {
            "h": self.layers(x) * scale, "same": x, "turned": x.T, "table": self.table + self.count, "rest": y[1:],
            "count": self.count,
        }  # fmt: skip


def exported(model: Model) -> Any:
    n = torch.export.Dim("n", min=2)
    return torch.export.export(
        model, (torch.randn(5, 8), torch.ones(3)), {"scale": torch.tensor(2.0)},
        dynamic_shapes={"x": {0: n}, "y": None, "scale": None},
    )  # fmt: skip


def saved_and_loaded(made: Any) -> Any:
    file = io.BytesIO()
    made.save(file)
    return load(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("through_file", [False, True])
def test_called_like_the_module(through_file: bool) -> None:
    model, beside = Model(), Model()
    made = from_exported(exported(model))
    if through_file:
        made = saved_and_loaded(made)
    for n in (5, 7, 3):
        x, y = torch.randn(n, 8), torch.arange(3.0)
        z = y.clone()
        got, want = made(x, y, scale=torch.tensor(0.5)), beside(x, z, scale=torch.tensor(0.5))
        assert list(got) == list(want)
        for name in want:
            torch.testing.assert_close(got[name], want[name])
            assert got[name].stride() == want[name].stride()
        torch.testing.assert_close(y, z)
        assert got["same"] is x
        assert got["turned"].data_ptr() == x.data_ptr()
        assert got["rest"].data_ptr() == y.data_ptr() + 4
        assert got["count"] is made.state["count"]


class Views(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x[1:], x.T, x[:, ::2] + 0


@pytest.mark.parametrize("through_file", [False, True])
def test_views_of_arguments_that_lie_in_another_way(through_file: bool) -> None:
    """Than those that the graph was exported with: values are right, and memory is the argument's where it can be."""
    made = from_exported(torch.export.export(Views(), (torch.randn(3, 4),)))
    if through_file:
        made = saved_and_loaded(made)
    x = torch.randn(3, 4)
    for y in (x, x.T.contiguous().T, torch.randn(3, 8)[:, ::2], torch.randn(1, 4).expand(3, 4)):
        for got, wanted in zip(made(y), Views()(y), strict=True):
            torch.testing.assert_close(got, wanted)
    assert made(x)[0].data_ptr() == x[1:].data_ptr()


def test_files_keep_names_and_order() -> None:
    made = from_exported(exported(Model()), name="two_layers")
    again = saved_and_loaded(made)
    assert again.arguments == made.arguments
    assert [*again.state] == [*made.state]
    assert repr(again) == repr(made) == "Exported two_layers(x, y, scale)"
    assert again._compiled.signature == made._compiled.signature


def test_looking_inside() -> None:
    made = from_exported(exported(Model()))
    assert "tanh lies on matmul" in str(made.memory_report())
    assert made.memory_report(torch.ones(50, 8), torch.ones(3), scale=torch.tensor(1.0)).results > 700
    assert "tanh" in str(weft.explain(made, measure=False))


def test_arguments_that_do_not_fit_are_named() -> None:
    made = from_exported(exported(Model()))
    with pytest.raises(ValueError, match=r"argument 'x' was exported as x: float32 \(s\d+, 8\); got torch.float64"):
        made(torch.randn(5, 8).double(), torch.ones(3), scale=torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"argument 'y' .* got torch.float32 of shape \(4,\)"):
        made(torch.randn(5, 8), torch.ones(4), scale=torch.tensor(1.0))
    with pytest.raises(TypeError, match="takes arguments as"):
        made(torch.randn(5, 8), torch.ones(3))


def test_an_operator_without_a_rule_is_named_with_its_line() -> None:
    class Bessel(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x) + 1

    found = torch.export.export(Bessel(), (torch.ones(2, 2),))
    with pytest.raises(Unsupported, match=r"aten.special_bessel_j0.default has no rule at .*torch.special.bessel_j0"):
        from_exported(found)
