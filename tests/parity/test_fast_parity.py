"""`mx.fast` beside MLX's: values, dtypes and the classes of errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import weft.core as wx

mx = pytest.importorskip("mlx.core")

HALF = {"float32": 2.0**-21, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Relative errors that both sides may have, MLX rounding more often than Weft."""


def pair(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[Any, Any]:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return wx.array(values).astype(getattr(wx, dtype)), mx.array(values).astype(getattr(mx, dtype))


def alike(ours: Any, theirs: Any, dtype: str, scale: float = 1.0) -> None:
    assert str(ours.dtype).rpartition(".")[2] == str(theirs.dtype).rpartition(".")[2]
    a, b = np.array(ours.astype(wx.float32)), np.array(theirs.astype(mx.float32))
    assert a.shape == b.shape
    assert np.all(np.abs(a - b) <= HALF[dtype] * (scale + np.abs(b)))


@pytest.mark.parametrize("dtype", HALF)
def test_norms(dtype: str) -> None:
    (x, y), (w, v), (b, c) = (pair(s, dtype, i) for i, s in enumerate([(3, 5, 64), (64,), (64,)]))
    for weighted, shifted in itertools.product((False, True), repeat=2):
        ours = [w if weighted else None, b if shifted else None]
        theirs = [v if weighted else None, c if shifted else None]
        alike(wx.fast.layer_norm(x, *ours, 1e-5), mx.fast.layer_norm(y, *theirs, 1e-5), dtype, 4.0)
        alike(wx.fast.rms_norm(x, ours[0], 1e-5), mx.fast.rms_norm(y, theirs[0], 1e-5), dtype, 4.0)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("shape", [(2, 7, 16), (2, 3, 7, 16), (2, 3, 2, 7, 16)], ids=str)
def test_rope(traditional: bool, shape: tuple[int, ...]) -> None:
    x, y = pair(shape, "float32", 0)
    freqs = np.random.default_rng(1).uniform(1, 100, 6).astype(np.float32)
    for offset, own in itertools.product((0, 5, [2, 9]), (False, True)):
        if isinstance(offset, list) and len(shape) == 5:
            continue  # MLX gives these offsets to other axes

        def rotated(m: Any, a: Any, offset: Any = offset, own: bool = own) -> Any:
            at = m.array(offset) if isinstance(offset, list) else offset
            given = {"base": None, "freqs": m.array(freqs)} if own else {"base": 1e3}
            return m.fast.rope(a, 12, traditional=traditional, scale=0.5, offset=at, **given)

        alike(rotated(wx, x), rotated(mx, y), "float32", 8.0)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("mask", ["none", "causal", "truths", "numbers", "nothing"])
def test_attention(dtype: str, mask: str) -> None:
    (q, q2), (k, k2), (v, v2) = (pair((2, h, t, 16), dtype, i) for i, (h, t) in enumerate([(4, 5), (2, 9), (2, 9)]))
    sinks, sinks2 = pair((4,), dtype, 4)
    truths = np.random.default_rng(5).random((5, 9)) > 0.4

    def given(m: Any) -> Any:
        if mask == "truths":
            return m.array(truths)
        if mask == "nothing":
            return m.zeros((5, 9), m.bool_)
        return m.array(truths * 2.0).astype(getattr(m, dtype)) if mask == "numbers" else {"none": None}.get(mask, mask)

    for sink, sink2 in ((None, None), (sinks, sinks2)):
        if mask == "nothing" and sink is not None:
            continue
        ours = wx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=given(wx), sinks=sink)
        theirs = mx.fast.scaled_dot_product_attention(q2, k2, v2, scale=0.25, mask=given(mx), sinks=sink2)
        alike(ours, theirs, dtype, 4.0)


@pytest.mark.parametrize("mask", ["none", "causal", "truths", "numbers", "nothing"])
@pytest.mark.parametrize("queries", [3, 70])
def test_attention_over_many_keys(mask: str, queries: int) -> None:
    """Several blocks of queries and of keys, and gradients: by the mask too, where it is numbers."""
    (q, q2), (k, k2), (v, v2) = (
        pair((2, h, t, 16), "float32", i) for i, (h, t) in enumerate([(4, queries), (2, 600), (2, 600)])
    )
    seen = np.random.default_rng(5).random((queries, 600)) > 0.7
    if mask == "nothing":
        seen[0] = False

    def values(m: Any, q: Any, k: Any, v: Any, *masks: Any) -> Any:
        given = masks[0] if masks else None if mask == "none" else mask if mask == "causal" else m.array(seen)
        return m.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=given)

    def gradients(m: Any, *args: Any) -> Any:
        return m.grad(lambda *xs: m.sin(values(m, *xs)).sum(), argnums=list(range(len(args))))(*args)

    masks, masks2 = ((x,) for x in pair((queries, 600), "float32", 6)) if mask == "numbers" else ((), ())
    alike(values(wx, q, k, v, *masks), values(mx, q2, k2, v2, *masks2), "float32", 4.0)
    for ours, theirs in zip(gradients(wx, q, k, v, *masks), gradients(mx, q2, k2, v2, *masks2), strict=True):
        alike(ours, theirs, "float32", 64.0)


def test_gated_delta_and_cross_entropy() -> None:
    (q, q2), (k, k2) = (pair((2, 6, 2, 8), "float32", i) for i in range(2))
    v, v2 = pair((2, 6, 4, 5), "float32", 2)
    (g, g2), (b, b2) = (pair((2, 6, 4), "float32", i) for i in (3, 4))
    ours = wx.fast.gated_delta_update(q, k, v, wx.sigmoid(g), wx.sigmoid(b) * 0.2)
    theirs = mx.fast.gated_delta_update(q2, k2, v2, mx.sigmoid(g2), mx.sigmoid(b2) * 0.2)
    for a, c in zip(ours, theirs, strict=True):
        alike(a, c, "float32", 64.0)
    x, y = pair((3, 4, 9), "float32", 6)
    t = np.random.default_rng(7).integers(0, 9, (3, 4))
    alike(wx.fast.cross_entropy(x, wx.array(t)), mx.fast.cross_entropy(y, mx.array(t)), "float32", 8.0)


def test_names() -> None:
    for name in ("fast", "distributed", "metal", "cuda"):
        theirs = {n for n in dir(getattr(mx, name)) if not n.startswith("_")}
        assert theirs <= set(dir(getattr(wx, name)))


def test_machine_code_for_gpus_is_refused_with_the_class_of_error_that_mlx_has_without_cuda() -> None:
    for core in (mx, wx):
        with pytest.raises(RuntimeError):
            core.fast.precompiled_cuda_kernel(
                name="twice", compiled_source=b"", inputs=[], output_shapes=[(1,)], output_dtypes=[core.float32],
                scalars=[], grid=(1, 1, 1), threadgroup=(1, 1, 1),
            )  # fmt: skip
