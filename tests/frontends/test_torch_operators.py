"""Every overload of core ATen against torch: values, dtypes, shapes and strides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._decomp import core_aten_decompositions  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from tests.frontends import torch_samples as samples  # noqa: E402
from weft.frontends.torch import coverage  # noqa: E402
from weft.frontends.torch.backend import compiled  # noqa: E402
from weft.frontends.torch.coverage import core  # noqa: E402
from weft.frontends.torch.graph import is_kept, why_not  # noqa: E402
from weft.frontends.torch.ops import RULES  # noqa: E402
from weft.frontends.torch.ops.linalg import CHECKED  # noqa: E402
from weft.frontends.torch.ops.table import full_name  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def overload(name: str) -> Any:
    packet, _, kind = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), kind or "default")


def run_both(name: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The results of torch, and of a graph of this one operator."""
    op = overload(name)
    flat, structure = pytree.tree_flatten((args, kwargs))
    places = [k for k, x in enumerate(flat) if isinstance(x, torch.Tensor)]

    def fun(*tensors: Any) -> Any:
        given = list(flat)
        for k, x in zip(places, tensors, strict=True):
            given[k] = x
        a, b = pytree.tree_unflatten(given, structure)
        made = [x for x in pytree.tree_leaves(op(*a, **b)) if isinstance(x, torch.Tensor)]
        del made[CHECKED.get(full_name(name), len(made)) :]  # a program raises what this would say
        return made

    tensors = [flat[k] for k in places]
    wanted = fun(*tensors)
    graph = make_fx(fun, tracing_mode="fake")(*tensors)
    reasons = [reason for node in graph.graph.nodes if (reason := why_not(node)) is not None]
    assert not reasons
    is_made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    assert is_made_of_others or any(str(node.target) == full_name(name) for node in graph.graph.nodes)
    return compiled(graph)(list(tensors)), wanted


def assert_same(got: list[Any], wanted: list[Any], where: Any) -> None:
    assert len(got) == len(wanted)
    for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
        torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m, k=k: f"{where}, result {k}: {m}")
        assert a.stride() == b.stride(), (where, k)


@pytest.mark.parametrize("name", [name for name in samples.SAMPLES if samples.SAMPLES[name]()])
def test_samples(name: str) -> None:
    for k, (args, kwargs) in enumerate(samples.SAMPLES[name]()):
        assert_same(*run_both(name, args, kwargs), (name, k))


def _computes(name: str, *args: Any) -> bool:
    try:
        overload(name)(*args)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


@pytest.mark.parametrize("name", samples.UNARY)
def test_one_operand_of_each_dtype(name: str) -> None:
    for dtype in samples.DTYPES:
        x = samples.t(3, 5, dtype=dtype)
        if _computes(name, x):
            assert_same(*run_both(name, [x], {}), (name, dtype))
    if _computes(name, samples.EDGES) and name != "gelu":  # torch's gelu of infinity is NaN
        assert_same(*run_both(name, [samples.EDGES], {}), (name, "edges"))


@pytest.mark.parametrize("name", samples.BINARY)
def test_two_operands_of_each_dtype(name: str) -> None:
    for dtype in samples.DTYPES:
        x, y = samples.t(3, 5, dtype=dtype), samples.t(5, dtype=dtype, seed=1)
        if name.startswith("pow"):
            x, y = x.abs() if dtype not in (torch.bool,) else x, y.abs() if dtype is not torch.bool else y
            if dtype.is_complex:
                continue
        if _computes(name, x, y):
            assert_same(*run_both(name, [x, y], {}), (name, dtype))
    for other in (torch.int64, torch.float16, torch.float64):
        x, y = samples.t(3, 5), samples.t(5, dtype=other, seed=1, low=0.0)
        if _computes(name, x, y) and not name.startswith("pow"):
            assert_same(*run_both(name, [x, y], {}), (name, other))


@pytest.mark.parametrize("name", samples.SCALAR)
def test_a_number_with_each_dtype(name: str) -> None:
    for dtype in samples.DTYPES:
        for number in (2, 2.5, True):
            x = samples.t(3, 5, dtype=dtype)
            if name.startswith("pow") and (dtype.is_complex or number == 2.5):
                x = x.abs() if dtype is not torch.bool else x
            if dtype is torch.bool and number is True and name.startswith("pow"):
                continue  # torch itself is of two minds about the dtype
            if _computes(name, x, number):
                assert_same(*run_both(name, [x, number], {}), (name, dtype, number))


def test_all_of_core_aten_is_tried() -> None:
    tried = {*samples.SAMPLES, *samples.UNARY, *samples.BINARY, *samples.SCALAR, *samples.RANDOM, *samples.NO_VALUES}
    tried |= {*samples.SIZES, *samples.LEFT_TO_TORCH, *samples.MUTATING, *samples.BY_DATA}
    assert [name for name in core() if name not in tried] == []


def test_all_that_is_kept_whole_is_tried() -> None:
    kept = [str(op).removeprefix("aten.").removesuffix(".default") for op in core_aten_decompositions() if is_kept(op)]
    tried = {*samples.SAMPLES, *samples.UNARY, *samples.BINARY, *samples.SCALAR, "empty_like"}
    assert [name for name in kept if name not in tried and "scaled_dot_product" not in name] == []


def test_all_of_core_aten_has_rules() -> None:
    assert [name for name in core() if coverage.place_of(name) is None] == []
    assert {*samples.SIZES, *samples.LEFT_TO_TORCH} == {name for name in core() if full_name(name) not in RULES}


@pytest.mark.parametrize("name", samples.NO_VALUES)
def test_empty(name: str) -> None:
    args = [[3, 4]] if name == "empty.memory_format" else [[3, 4], [1, 3]]
    (got,), (wanted,) = run_both(name, args, {"dtype": torch.float64})
    assert (got.shape, got.stride(), got.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)


def test_random() -> None:
    torch.manual_seed(0)
    (uniform,), _ = run_both("rand", [[100_000]], {})
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.double().mean() - 0.5) < 6 * (1 / 12 / 100_000) ** 0.5
    (normal,), _ = run_both("randn", [[100_000]], {"dtype": torch.float64})
    assert abs(normal.mean()) < 6 * 100_000**-0.5
    assert abs(normal.var() - 1) < 6 * (2 / 100_000) ** 0.5
    (order,), _ = run_both("randperm", [1000], {})
    assert order.dtype is torch.int64
    assert torch.equal(order.sort().values, torch.arange(1000))
    (dropped, mask), _ = run_both("native_dropout", [torch.ones(100_000), 0.25, True], {})
    assert torch.equal(dropped != 0, mask)
    assert abs(mask.double().mean() - 0.75) < 6 * (0.75 * 0.25 / 100_000) ** 0.5


@pytest.mark.parametrize("gqa", [False, True])
def test_attention_as_export_has_it(gqa: bool) -> None:
    """Whole, with groups of heads, masks of both kinds, and queries that see nothing."""
    from torch.nn import functional as F

    class Attention(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
            plain = F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)
            causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2, enable_gqa=gqa)
            masked = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)
            biased = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=gqa)
            return plain, causal, masked, biased

    from weft.frontends.torch import from_exported

    heads = 2 if gqa else 4
    mask = samples.t(5, 7, dtype=torch.bool)
    mask[2] = False
    bias = samples.t(2, 1, 5, 7)
    bias[0, 0, 3, 1:] = float("-inf")
    q = samples.t(2, 4, 5, 8)
    k, v = samples.t(2, heads, 7, 8, seed=1), samples.t(2, heads, 7, 8, seed=2)
    args = (q, k, v, mask, bias)
    made = from_exported(torch.export.export(Attention(), args))
    for got, wanted in zip(made(*args), Attention()(*args), strict=True):
        torch.testing.assert_close(got, wanted)


def _looked_at(x: Any) -> Any:
    moved = (x * 2).permute(2, 0, 1)
    inner = moved[1:]
    whole = x + 1
    whole.resize_(3, 2)
    return moved.as_strided((3, 2), (5, 1), 3), inner.as_strided((2, 2), (1, 4)), whole, x.exp().as_strided((2,), (7,))


def test_strides_of_what_is_computed() -> None:
    """Also of views of it: these look at the memory of what they are views of."""
    from weft.frontends.torch import from_exported

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return _looked_at(x)

    x = samples.t(2, 3, 4)
    for run in (from_exported(torch.export.export(Module(), (x,))), torch.compile(_looked_at, backend="weft")):
        assert_same(list(run(x)), list(_looked_at(x)), run)


@pytest.mark.parametrize("gqa", [False, True])
def test_attention_with_dropout(gqa: bool) -> None:
    """What is left is as large as it must be, and as much as it should be; without a mean of zero it is the same."""
    from torch.nn import functional as F

    from weft.frontends.torch import from_exported

    class Attention(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            kinds: list[dict[str, Any]] = [{}, {"attn_mask": mask}, {"is_causal": True, "scale": 0.3}]
            return [F.scaled_dot_product_attention(q, k, v, dropout_p=p, enable_gqa=gqa, **x)
                    for x in kinds for p in (0.25, 1.0)]  # fmt: skip

    mask = samples.t(64, 64, dtype=torch.bool)
    mask[2] = False
    q, k = samples.t(2, 4, 64, 8), samples.t(2, 2 if gqa else 4, 64, 8, seed=1)
    v = torch.eye(64).expand(*k.shape[:2], 64, 64)  # so that the weights themselves come out
    torch.manual_seed(0)
    made = from_exported(torch.export.export(Attention(), (q, k, v, mask)))(q, k, v, mask)
    for i, kind in enumerate(({}, {"attn_mask": mask}, {"is_causal": True, "scale": 0.3})):
        whole = F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa, **kind)
        kept = made[2 * i] != 0
        torch.testing.assert_close(made[2 * i], torch.where(kept, whole / 0.75, torch.zeros(())))
        count = (whole != 0).sum()
        assert abs(kept.sum() / count - 0.75) < 6 * (0.75 * 0.25 / count) ** 0.5
        assert not made[2 * i + 1].any()


def test_attention_with_more_axes() -> None:
    """Those in front are repeated where an operand lacks them."""
    from torch.nn import functional as F

    from weft.frontends.torch import from_exported

    class Attention(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v)

    args = (samples.t(2, 3, 4, 5, 8), samples.t(1, 3, 4, 7, 8), samples.t(2, 1, 4, 7, 8), samples.t(3, 1, 5, 7))
    made = from_exported(torch.export.export(Attention(), args))
    for got, wanted in zip(made(*args), Attention()(*args), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_mask_without_axes() -> None:
    """It marks all of an array, or nothing. (torch itself has no graphs of what such a mask selects.)"""
    for truth in (True, False):
        assert_same(*run_both("index_put", [samples.t(2, 3), [torch.tensor(truth)], torch.tensor(5.0)], {}), truth)


def test_the_table_in_the_docs_is_the_table_of_rules() -> None:
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the table is that of another torch")
    assert coverage.table() in (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
