"""Quantization beside MLX's: packed bits and scales are the same, products agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as wx
import weft.nn as wn
import weft.utils as wu

mx = pytest.importorskip("mlx.core")
mn = pytest.importorskip("mlx.nn")
mu = pytest.importorskip("mlx.utils")

AFFINE = [("affine", group, bits) for group in (32, 64, 128) for bits in (1, 2, 3, 4, 5, 6, 8)]
MODES = [*AFFINE, ("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)]
IDS = [f"{mode}-{group}-{bits}" for mode, group, bits in MODES]


def weights(rows: int = 12, columns: int = 256, seed: int = 0) -> np.ndarray:
    """Of several sizes, of one sign, and zero."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-3, 3, (rows, 1))
    w[1], w[2] = np.abs(w[1]), -np.abs(w[2])
    w[3, :128] = 0
    w[4] = rng.integers(-12, 13, columns) * 0.25
    return w.astype(np.float32)


def raw(x: Any) -> tuple[str, tuple[int, ...], list[Any]]:
    name = str(x.dtype).rpartition(".")[2]
    m = mx if isinstance(x, mx.array) else wx
    return name, tuple(x.shape), np.array(x.view(m.uint16) if name == "bfloat16" else x).tolist()


@pytest.mark.parametrize(("mode", "group", "bits"), MODES, ids=IDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits(mode: str, group: int, bits: int, dtype: str) -> None:
    w = weights()
    ours = wx.quantize(wx.array(w).astype(getattr(wx, dtype)), group, bits, mode)
    theirs = mx.quantize(mx.array(w).astype(getattr(mx, dtype)), group, bits, mode)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert raw(a) == raw(b)
    back = wx.dequantize(*ours, group_size=group, bits=bits, mode=mode)
    expected = mx.dequantize(*theirs, group_size=group, bits=bits, mode=mode)
    assert str(back.dtype).rpartition(".")[2] == str(expected.dtype).rpartition(".")[2]
    a, b = (np.array(x.astype(m.float32)) for x, m in ((back, wx), (expected, mx)))
    size = np.abs(w).reshape(len(w), -1, group).max(-1).repeat(group, -1)
    assert np.all(np.abs(a - b) <= (2.0**-22 if back.dtype is wx.float32 else 2.0**-7) * size)


@pytest.mark.parametrize(("mode", "group", "bits"), MODES, ids=IDS)
def test_products(mode: str, group: int, bits: int) -> None:
    rng = np.random.default_rng(1)
    w, x = rng.normal(size=(64, 256)).astype(np.float32), rng.normal(size=(3, 256)).astype(np.float32)
    options = {"group_size": group, "bits": bits, "mode": mode}
    ours = wx.quantize(wx.array(w), group, bits, mode)
    theirs = mx.quantize(mx.array(w), group, bits, mode)
    for transpose, given in ((True, x), (False, x[:, :64])):
        a = wx.quantized_matmul(wx.array(given), *ours, transpose=transpose, **options)
        b = mx.quantized_matmul(mx.array(given), *theirs, transpose=transpose, **options)
        assert a.shape == tuple(b.shape)
        assert np.allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-5 * np.abs(np.array(b)).max())
    half = wx.quantized_matmul(wx.array(x).astype(wx.bfloat16), *ours, **options)
    other = mx.quantized_matmul(mx.array(x).astype(mx.bfloat16), *theirs, **options)
    assert str(half.dtype).rpartition(".")[2] == str(other.dtype).rpartition(".")[2]


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_chosen_matrices(mode: str) -> None:
    rng = np.random.default_rng(2)
    w, x = rng.normal(size=(5, 8, 64)).astype(np.float32), rng.normal(size=(6, 1, 1, 64)).astype(np.float32)
    chosen = rng.integers(0, 5, (6, 2))
    ours, theirs = wx.quantize(wx.array(w), mode=mode), mx.quantize(mx.array(w), mode=mode)
    a = wx.gather_qmm(wx.array(x), *ours, rhs_indices=wx.array(chosen), mode=mode)
    b = mx.gather_qmm(mx.array(x), *theirs, rhs_indices=mx.array(chosen), mode=mode)
    assert np.allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-4)
    left, right = [5, 0, 3], [1, 1, 4]
    given = {"lhs_indices": wx.array(left), "rhs_indices": wx.array(right)}
    a = wx.gather_qmm(wx.array(x[:, 0]), *ours, **given, mode=mode)
    expected = x[left, 0] @ np.array(wx.dequantize(*ours, mode=mode, dtype=wx.float32)).swapaxes(1, 2)[right]
    assert np.allclose(np.array(a), expected, rtol=1e-5, atol=1e-4)


def test_inputs_that_are_quantized_on_the_way() -> None:
    rng = np.random.default_rng(3)
    w, x = wx.array(rng.normal(size=(8, 64)).astype(np.float32)), wx.array(rng.normal(size=(3, 64)).astype(np.float32))
    for mode in ("nvfp4", "mxfp8"):

        def rounded(a: Any, mode: str = mode) -> Any:
            return wx.dequantize(*wx.quantize(a, mode=mode), mode=mode, dtype=wx.float32)

        for given in ((w,), wx.quantize(w, mode=mode)):
            assert np.allclose(np.array(wx.qqmm(x, *given, mode=mode)), np.array(rounded(x) @ rounded(w).T), atol=1e-5)
        many = wx.stack([w, w * 2])
        got = wx.gather_qqmm(wx.expand_dims(x, 1), many, rhs_indices=wx.array([1, 0, 1]), mode=mode)
        each = [rounded(x[i : i + 1]) @ rounded(many[j]).T for i, j in enumerate((1, 0, 1))]
        assert np.allclose(np.array(got), np.stack([np.array(e) for e in each]), atol=1e-4)


ERRORS = [
    lambda m: m.quantize(m.ones((2, 64)), bits=7), lambda m: m.quantize(m.ones((2, 64)), 16),
    lambda m: m.quantize(m.ones((2, 64)), 64, mode="mxfp4"), lambda m: m.quantize(m.ones((2, 64)), mode="foo"),
    lambda m: m.quantize(m.ones(64)), lambda m: m.quantize(m.ones((2, 65))),
    lambda m: m.quantize(m.ones((2, 64), m.int32)), lambda m: m.dequantize(*m.quantize(m.ones((2, 64)))[:2]),
    lambda m: m.dequantize(m.zeros((2, 8), m.int32), m.ones((2, 1)), m.ones((2, 1))),
    lambda m: m.dequantize(m.zeros((2, 8), m.uint32), m.ones((2, 3)), m.ones((2, 3))),
    lambda m: m.quantized_matmul(m.ones((1, 32)), *m.quantize(m.ones((2, 64)))),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number: int) -> None:
    for m in (wx, mx):
        with pytest.raises(ValueError):
            ERRORS[number](m)


def test_layers() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, 64)).astype(np.float32)
    for mode in ("affine", "mxfp4", "nvfp4", "mxfp8"):
        wx.random.seed(0)
        mx.random.seed(0)
        ours = wn.Sequential(wn.Linear(64, 128), wn.ReLU(), wn.Linear(128, 4, bias=False))
        theirs = mn.Sequential(mn.Linear(64, 128), mn.ReLU(), mn.Linear(128, 4, bias=False))
        wn.quantize(ours, mode=mode)
        mn.quantize(theirs, mode=mode)
        assert repr(ours) == repr(theirs)
        a, b = np.array(ours(wx.array(x))), np.array(theirs(mx.array(x)))
        assert np.allclose(a, b, rtol=1e-4, atol=1e-4)
        assert {p for p, _ in wu.tree_flatten(ours.trainable_parameters())} == {
            p for p, _ in mu.tree_flatten(theirs.trainable_parameters())
        }
    table, other = (n.Embedding(10, 64) for n in (wn, mn))
    table.weight, other.weight = wx.array(rng.normal(size=(10, 64))), mx.array(rng.normal(size=(10, 64)))
    assert table.to_quantized(bits=8)(wx.array([1, 2])).shape == tuple(
        other.to_quantized(bits=8)(mx.array([1, 2])).shape
    )


def test_transforms() -> None:
    """A product with quantized weights has the gradient of the plain one, and is one program for all sizes."""
    rng = np.random.default_rng(5)
    packed = wx.quantize(wx.array(rng.normal(size=(8, 64)).astype(np.float32)))
    plain = wx.dequantize(*packed)

    def f(x: Any) -> Any:
        return wx.sum(wx.square(wx.quantized_matmul(x, *packed)))

    x = wx.array(rng.normal(size=(3, 64)).astype(np.float32))
    expected = wx.grad(lambda x: wx.sum(wx.square(x @ plain.T)))(x)
    assert np.allclose(np.array(wx.grad(f)(x)), np.array(expected), rtol=1e-4, atol=1e-3)
    shapeless = wx.compile(lambda x: wx.quantized_matmul(x, *packed), shapeless=True)
    for n in (3, 5, 2):
        given = wx.array(rng.normal(size=(n, 64)).astype(np.float32))
        assert np.array(shapeless(given)).tobytes() == np.array(wx.quantized_matmul(given, *packed)).tobytes()
    assert wx.vmap(lambda x: wx.quantized_matmul(x, *packed))(wx.stack([x, x])).shape == (2, 3, 8)
