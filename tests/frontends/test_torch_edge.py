"""Edge programs of ExecuTorch: operators that copy, and dim_order operators. Where executorch is not installed, graphs
with operators of its kinds stand in for it."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from weft.frontends.torch import from_exported, load  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


class EdgeOperator:
    """What ExecuTorch wraps an operator in."""

    def __init__(self, op: Any) -> None:
        self._op, self._schema = op, op._schema
        self.__name__ = str(op)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._op(*args, **kwargs)


@pytest.fixture(scope="module")
def dim_order_ops() -> Any:
    """The operators, as executorch registers them."""
    with contextlib.suppress(ImportError):
        import executorch.exir.passes.dim_order_ops_registry  # noqa: F401
    if not hasattr(torch.ops.dim_order_ops, "_clone_dim_order"):
        options = "ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None"
        library = torch.library.Library("dim_order_ops", "DEF")
        library.define(
            f"_to_dim_order_copy(Tensor self, *, {options}, bool non_blocking=False, int[]? dim_order=None) -> Tensor"
        )
        library.define(f"_empty_dim_order(int[] size, *, {options}, int[]? dim_order=None) -> Tensor")
        library.define("_clone_dim_order(Tensor self, *, bool non_blocking=False, int[]? dim_order=None) -> Tensor")
        library.impl("_to_dim_order_copy", _to, "CompositeImplicitAutograd")
        library.impl("_empty_dim_order", _empty, "CompositeImplicitAutograd")
        library.impl("_clone_dim_order", _clone, "CompositeImplicitAutograd")
        yield torch.ops.dim_order_ops
        library._destroy()
    else:
        yield torch.ops.dim_order_ops


def _format(dim_order: Any) -> Any:
    if dim_order is None:
        return torch.preserve_format
    return torch.channels_last if list(dim_order) == [0, 2, 3, 1] else torch.contiguous_format


def _to(x: Any, *, dtype: Any = None, dim_order: Any = None, **options: Any) -> Any:
    return torch.ops.aten._to_copy(x, dtype=dtype, memory_format=_format(dim_order))


def _empty(size: Any, *, dtype: Any = None, dim_order: Any = None, **options: Any) -> Any:
    return torch.ops.aten.empty.memory_format(size, dtype=dtype, memory_format=_format(dim_order))


def _clone(x: Any, *, non_blocking: bool = False, dim_order: Any = None) -> Any:
    return torch.ops.aten.clone.default(x, memory_format=_format(dim_order))


def as_edge(exported: Any, dim_order_ops: Any) -> Any:
    """An exported program as to_edge would have it: functional, with operators that copy and say the order of axes."""
    made = exported.run_decompositions()
    aten = torch.ops.aten
    copying = {
        aten.view.default: aten.view_copy.default, aten.permute.default: aten.permute_copy.default,
        aten.slice.Tensor: aten.slice_copy.Tensor, aten.expand.default: aten.expand_copy.default,
        aten.select.int: aten.select_copy.int, aten.unsqueeze.default: aten.unsqueeze_copy.default,
        aten.squeeze.dims: aten.squeeze_copy.dims, aten.split_with_sizes.default: aten.split_with_sizes_copy.default,
        aten.alias.default: aten.alias_copy.default,
    }  # fmt: skip
    ordered = {
        aten._to_copy.default: dim_order_ops._to_dim_order_copy.default,
        aten.clone.default: dim_order_ops._clone_dim_order.default,
        aten.empty.memory_format: dim_order_ops._empty_dim_order.default,
    }
    for node in made.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        target = copying.get(node.target, node.target)
        if node.target in ordered:
            target = ordered[node.target]
            kept = {k: v for k, v in node.kwargs.items() if k != "memory_format"}
            node.kwargs = {**kept, "dim_order": list(node.meta["val"].dim_order())}
        with node.meta["val"].fake_mode if isinstance(node.meta.get("val"), torch.Tensor) else torch.no_grad():
            node.target = EdgeOperator(target)
            given = torch.fx.map_arg((node.args, node.kwargs), lambda x: x.meta["val"])
            node.meta["val"] = target(*given[0], **given[1])
    return made


class Views(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.steps += 1
        ordered = x.permute(0, 2, 3, 1).contiguous()
        last = x.to(torch.float64).clone(memory_format=torch.channels_last)
        parts = x.flatten(1).split(7, 1)
        return ordered, last, x[:, 1:], x[0].unsqueeze(1).expand(3, 2, 4, 5) * 2, parts[0], parts[-1], self.steps * 2


def check(exported: Any, module: Any, x: Any, *, strides: bool = False) -> None:
    made = from_exported(exported)
    file = io.BytesIO()
    made.save(file)
    again = load(io.BytesIO(file.getvalue()))
    for _ in range(2):
        wanted = module(x)
        for found in (made(x), again(x)):
            torch.testing.assert_close(found, wanted)
            assert not strides or [a.stride() for a in found[:2]] == [b.stride() for b in wanted[:2]]


def test_operators_that_copy_and_say_the_order(dim_order_ops: Any) -> None:
    x, module = torch.randn(2, 3, 4, 5), Views()
    edge = as_edge(torch.export.export(Views(), (x,)), dim_order_ops)
    names = {str(node.target._op) for node in edge.graph.nodes if isinstance(node.target, EdgeOperator)}
    assert {"dim_order_ops._to_dim_order_copy.default", "dim_order_ops._clone_dim_order.default"} <= names
    assert {"aten.permute_copy.default", "aten.view_copy.default", "aten.slice_copy.Tensor"} <= names
    check(edge, module, x, strides=True)


def test_a_program_of_executorch() -> None:
    pytest.importorskip("executorch")
    from executorch.exir import to_edge

    x, module = torch.randn(2, 3, 4, 5), Views()
    manager = to_edge(torch.export.export(Views(), (x,)))
    check(manager.exported_program(), module, x, strides=True)
    with pytest.raises(TypeError, match="exported_program"):
        from_exported(manager)


def test_a_convolution_whose_axes_are_put_in_order(dim_order_ops: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(36, 2))
    x = torch.randn(2, 3, 5, 5)
    check(as_edge(torch.export.export(model, (x,)), dim_order_ops), lambda x: model(x).detach(), x)


def test_an_operator_without_a_rule_is_named(dim_order_ops: Any) -> None:
    x = torch.randn(4, 4)
    edge = as_edge(torch.export.export(torch.nn.Linear(4, 4), (x,)), dim_order_ops)
    node = next(n for n in edge.graph.nodes if isinstance(n.target, EdgeOperator) and "addmm" in n.target.__name__)
    node.target = EdgeOperator(torch.ops.aten.grid_sampler_3d.default)
    with pytest.raises(NotImplementedError, match=r"aten\.grid_sampler_3d\.default has no rule"):
        from_exported(edge)
