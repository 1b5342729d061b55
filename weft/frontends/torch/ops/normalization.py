"""Layer, group and batch normalization, forward and backward. Statistics of halves are float32, as in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Table, axis_of, to, wide

aten = Table()
Maybe = mx.array | None


def _count(x: mx.array, axes: Sequence[int]) -> Any:
    n: Any = 1
    for axis in axes:
        n = n * x.shape[axis]
    return n


def _moments(x: mx.array, axes: Sequence[int]) -> tuple[mx.array, mx.array]:
    middle = mx.mean(x, axis=axes, keepdims=True)
    apart = x - middle
    return middle, mx.mean(apart * apart, axis=axes, keepdims=True)


# ---- over the last axes ----


@aten("native_layer_norm")
def native_layer_norm(
    out: Any, x: mx.array, normalized_shape: Sequence[Any], weight: Maybe, bias: Maybe, eps: float
) -> tuple[mx.array, mx.array, mx.array]:
    inner = to(x, wide(x.dtype))
    axes = list(range(x.ndim - len(normalized_shape), x.ndim))
    middle, spread = _moments(inner, axes)
    rstd = mx.rsqrt(spread + eps)
    made = (inner - middle) * rstd
    if weight is not None:
        made = made * to(weight, inner.dtype)
    if bias is not None:
        made = made + to(bias, inner.dtype)
    return to(made, out[0].dtype), to(middle, out[1].dtype), to(rstd, out[2].dtype)


@aten("native_layer_norm_backward")
def native_layer_norm_backward(
    out: Any, grad: mx.array, x: mx.array, normalized_shape: Sequence[Any], mean: mx.array, rstd: mx.array,
    weight: Maybe, bias: Maybe, output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:  # fmt: skip
    dtype = wide(x.dtype)
    g, inner, middle, scale = (to(v, dtype) for v in (grad, x, mean, rstd))
    first = x.ndim - len(normalized_shape)
    within, outside = list(range(first, x.ndim)), list(range(first))
    unit = (inner - middle) * scale
    made: list[Maybe] = [None, None, None]
    if output_mask[0]:
        weighted = g if weight is None else g * to(weight, dtype)
        along = mx.mean(weighted * unit, axis=within, keepdims=True)
        made[0] = to(scale * (weighted - mx.mean(weighted, axis=within, keepdims=True) - unit * along), x.dtype)
    if output_mask[1] and weight is not None:
        made[1] = to(mx.sum(g * unit, axis=outside), weight.dtype) if outside else to(g * unit, weight.dtype)
    if output_mask[2] and bias is not None:
        made[2] = to(mx.sum(g, axis=outside), bias.dtype) if outside else to(g, bias.dtype)
    return made[0], made[1], made[2]


@aten("_fused_rms_norm")
def fused_rms_norm(
    out: Any, x: mx.array, normalized_shape: Sequence[Any], weight: Maybe, eps: float | None
) -> tuple[mx.array, mx.array]:
    inner = to(x, wide(x.dtype))
    axes = list(range(x.ndim - len(normalized_shape), x.ndim))
    small = float(mx.finfo(inner.dtype).eps) if eps is None else eps
    rstd = mx.rsqrt(mx.mean(inner * inner, axis=axes, keepdims=True) + small)
    made = inner * rstd
    if weight is not None:
        made = made * to(weight, inner.dtype)
    return to(made, out[0].dtype), to(rstd, out[1].dtype)


# ---- over groups of channels ----


@aten("native_group_norm")
def native_group_norm(
    out: Any, x: mx.array, weight: Maybe, bias: Maybe, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> tuple[mx.array, mx.array, mx.array]:
    inner = mx.reshape(to(x, wide(x.dtype)), (N, group, C // group * HxW))
    middle, spread = _moments(inner, [2])
    rstd = mx.rsqrt(spread + eps)
    made = mx.reshape((inner - middle) * rstd, (N, C, HxW))
    if weight is not None:
        made = made * mx.reshape(to(weight, inner.dtype), (C, 1))
    if bias is not None:
        made = made + mx.reshape(to(bias, inner.dtype), (C, 1))
    statistics = (to(mx.squeeze(v, 2), o.dtype) for v, o in zip((middle, rstd), out[1:], strict=True))
    return (to(mx.reshape(made, x.shape), out[0].dtype), *statistics)  # type: ignore[return-value]


@aten("native_group_norm_backward")
def native_group_norm_backward(
    out: Any, grad: mx.array, x: mx.array, mean: mx.array, rstd: mx.array, weight: Maybe, N: Any, C: Any, HxW: Any,
    group: int, output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:  # fmt: skip
    dtype = wide(x.dtype)
    each = (N, group, C // group, HxW)
    g, inner = mx.reshape(to(grad, dtype), each), mx.reshape(to(x, dtype), each)
    middle, scale = (mx.reshape(to(v, dtype), (N, group, 1, 1)) for v in (mean, rstd))
    unit = (inner - middle) * scale
    made: list[Maybe] = [None, None, None]
    if output_mask[0]:
        weighted = g if weight is None else g * mx.reshape(to(weight, dtype), (group, C // group, 1))
        along = mx.mean(weighted * unit, axis=(2, 3), keepdims=True)
        dx = scale * (weighted - mx.mean(weighted, axis=(2, 3), keepdims=True) - unit * along)
        made[0] = to(mx.reshape(dx, x.shape), x.dtype)
    if output_mask[1]:
        made[1] = to(mx.reshape(mx.sum(g * unit, axis=(0, 3)), (C,)), out[1].dtype)
    if output_mask[2]:
        made[2] = to(mx.reshape(mx.sum(g, axis=(0, 3)), (C,)), out[2].dtype)
    return made[0], made[1], made[2]


# ---- over everything but channels ----


def _by_channel(v: mx.array, ndim: int) -> mx.array:
    return mx.reshape(v, (v.shape[0], *(1,) * (ndim - 2)))


def _batch_norm(
    x: mx.array, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe, training: bool, momentum: float,
    eps: float,
) -> tuple[mx.array, mx.array, mx.array, Maybe, Maybe]:  # fmt: skip
    """(out, mean and 1 / deviation of the batch (empty if it is not training), new statistics)."""
    inner = to(x, wide(x.dtype))
    axes = [axis for axis in range(x.ndim) if axis != 1]
    if training:
        kept_mean, kept_var = _moments(inner, axes)
        middle, spread = (mx.reshape(v, (x.shape[1],)) for v in (kept_mean, kept_var))
        saved_mean, saved_rstd = middle, mx.rsqrt(spread + eps)
        n = _count(x, axes)
        new_mean, new_var = running_mean, running_var
        if running_mean is not None:
            new_mean = to(momentum * middle + (1 - momentum) * to(running_mean, inner.dtype), running_mean.dtype)
        if running_var is not None:
            unbiased = spread * to(n / (n - 1) if n > 1 else float("nan"), inner.dtype)
            new_var = to(momentum * unbiased + (1 - momentum) * to(running_var, inner.dtype), running_var.dtype)
    else:
        assert running_mean is not None
        assert running_var is not None
        middle, spread = to(running_mean, inner.dtype), to(running_var, inner.dtype)
        saved_mean = saved_rstd = mx.zeros((0,), inner.dtype)
        new_mean, new_var = running_mean, running_var
    scale = mx.rsqrt(spread + eps)
    if weight is not None:
        scale = scale * to(weight, inner.dtype)
    made = (inner - _by_channel(middle, x.ndim)) * _by_channel(scale, x.ndim)
    if bias is not None:
        made = made + _by_channel(to(bias, inner.dtype), x.ndim)
    return to(made, x.dtype), saved_mean, saved_rstd, new_mean, new_var


def _fitting(made: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    return tuple(None if o is None else to(v, o.dtype) for v, o in zip(made, out, strict=False))


@aten("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    out: Any, x: mx.array, weight: Maybe, bias: Maybe, running_mean: mx.array, running_var: mx.array, momentum: float,
    eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    return _fitting(_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)[:3], out)


@aten("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm")
def batch_norm_functional(
    out: Any, x: mx.array, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe, training: bool,
    momentum: float, eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    """The functional form gives the new statistics too; of the others, which change them in place, graphs that are
    functional hold none that does."""
    return _fitting(_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps), out)


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    out: Any, x: mx.array, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _fitting(_batch_norm(x, weight, bias, None, None, True, momentum, eps)[:3], out)


@aten("native_batch_norm_backward")
def batch_norm_backward(
    out: Any, grad: mx.array, x: mx.array, weight: Maybe, running_mean: Maybe, running_var: Maybe, save_mean: Maybe,
    save_invstd: Maybe, train: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:  # fmt: skip
    dtype = wide(x.dtype)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    g, inner = to(grad, dtype), to(x, dtype)
    middle = save_mean if train else running_mean
    assert middle is not None
    if train:
        assert save_invstd is not None
        scale = to(save_invstd, dtype)
    else:
        assert running_var is not None
        scale = mx.rsqrt(to(running_var, dtype) + eps)
    unit = (inner - _by_channel(to(middle, dtype), x.ndim)) * _by_channel(scale, x.ndim)
    total, along = mx.sum(g, axis=axes), mx.sum(g * unit, axis=axes)
    factor = _by_channel(scale if weight is None else scale * to(weight, dtype), x.ndim)
    if train:
        n = _count(x, axes)
        shift = (_by_channel(total, x.ndim) + unit * _by_channel(along, x.ndim)) / to(n, dtype)
        dx = factor * (g - shift)
    else:
        dx = factor * g
    made = (dx, along, total)
    return tuple(  # type: ignore[return-value]
        to(v, o.dtype) if wanted and o is not None else None
        for v, o, wanted in zip(made, out, output_mask, strict=True)
    )


# ---- of weights ----


def _axes_beside(x: mx.array, dim: int) -> list[int]:
    return [axis for axis in range(x.ndim) if axis != axis_of(dim, x.ndim)]


@aten("_weight_norm_interface")
def weight_norm(out: Any, v: mx.array, g: mx.array, dim: int = 0) -> tuple[mx.array, mx.array]:
    """(v with norms g along one axis, the norms that it had)."""
    inner = to(v, out[1].dtype)
    norms = mx.sqrt(mx.sum(inner * inner, axis=_axes_beside(v, dim), keepdims=True))
    return to(inner * (to(g, norms.dtype) / norms), out[0].dtype), norms


@aten("_weight_norm_interface_backward")
def weight_norm_backward(
    out: Any, grad: mx.array, v: mx.array, g: mx.array, norms: mx.array, dim: int
) -> tuple[mx.array, mx.array]:
    dw, inner, scale = (to(x, norms.dtype) for x in (grad, v, g))
    along = mx.sum(dw * inner, axis=_axes_beside(v, dim), keepdims=True) / norms
    dv = (scale / norms) * (dw - inner * (along / norms))
    return to(dv, out[0].dtype), to(along, out[1].dtype)
