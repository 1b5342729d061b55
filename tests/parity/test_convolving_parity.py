"""Convolutions beside MLX's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as wx
import weft.nn as wn

mx = pytest.importorskip("mlx.core")
mn = pytest.importorskip("mlx.nn")


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


CASES: dict[str, Any] = {
    "conv1d": ((2, 9, 4), (6, 3, 4), lambda m, x, w: m.conv1d(x, w, 2, 1, 2)),
    "conv1d groups": ((2, 9, 4), (4, 3, 1), lambda m, x, w: m.conv1d(x, w, groups=4)),
    "conv2d": ((2, 9, 8, 4), (6, 3, 2, 4), lambda m, x, w: m.conv2d(x, w, (2, 1), (1, 2))),
    "conv2d groups": ((2, 9, 8, 4), (6, 3, 2, 2), lambda m, x, w: m.conv2d(x, w, groups=2)),
    "conv3d": ((1, 5, 6, 4, 3), (2, 2, 3, 2, 3), lambda m, x, w: m.conv3d(x, w, 1, 1)),
    "conv_general": (
        (2, 5, 6, 3), (4, 2, 3, 3),
        lambda m, x, w: m.conv_general(x, w, (1, 2), ([1, 0], [2, 1]), (2, 1), (1, 2), 1, True),
    ),
    "conv_transpose1d": ((2, 5, 4), (6, 3, 4), lambda m, x, w: m.conv_transpose1d(x, w, 3, 1, 2, 1)),
    "conv_transpose2d": ((2, 5, 4, 3), (6, 3, 2, 3), lambda m, x, w: m.conv_transpose2d(x, w, 2, 1, 1, 1)),
    "conv_transpose3d": ((1, 3, 4, 2, 3), (2, 2, 3, 2, 3), lambda m, x, w: m.conv_transpose3d(x, w, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    shape, weights, call = CASES[name]
    x, w = draw(shape, 0), draw(weights, 1)
    ours, theirs = np.array(call(wx, wx.array(x), wx.array(w))), np.array(call(mx, mx.array(x), mx.array(w)))
    assert ours.shape == theirs.shape
    assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("Conv1d", (4, 6, 3, 2, 1), (2, 9, 4)), ("Conv2d", (4, 6, (3, 2), 1, (1, 0)), (2, 9, 8, 4)),
        ("Conv2d", (4, 4, 3, 1, 1, 1, 4), (2, 9, 8, 4)), ("Conv3d", (3, 2, 2), (1, 4, 5, 6, 3)),
        ("ConvTranspose1d", (4, 6, 3, 2, 1), (2, 5, 4)), ("ConvTranspose2d", (4, 6, 3, 2, 1, 1, 1), (2, 5, 4, 4)),
        ("ConvTranspose3d", (3, 2, 2, 2), (1, 3, 2, 4, 3)),
    ],
)  # fmt: skip
def test_layers(name: str, args: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    wx.random.seed(1)
    mx.random.seed(1)
    ours, theirs = getattr(wn, name)(*args), getattr(mn, name)(*args)
    assert repr(ours) == repr(theirs)
    x = draw(shape, 0)
    a, b = np.array(ours(wx.array(x))), np.array(theirs(mx.array(x)))
    assert a.shape == b.shape
    assert np.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_convolve_and_gather_mm() -> None:
    for n, k, mode in ((5, 3, "same"), (5, 2, "same"), (3, 4, "same"), (5, 3, "full"), (6, 2, "valid")):
        a, v = draw((n,), 0), draw((k,), 1)
        ours, theirs = wx.convolve(wx.array(a), wx.array(v), mode), mx.convolve(mx.array(a), mx.array(v), mode)
        assert np.allclose(np.array(ours), np.array(theirs), atol=1e-5)
    a, b = draw((3, 2, 4, 5), 0), draw((7, 5, 6), 1)
    for left, right in (([0, 5], [1, 6]), ([[0], [5]], [1, 6, 2]), (None, [[3, 1]] * 3), ([1, 2, 3], None)):

        def call(m: Any, left: Any = left, right: Any = right) -> Any:
            other = m.array(b) if right is not None else m.array(b[0])
            return m.gather_mm(
                m.array(a), other, None if left is None else m.array(left), None if right is None else m.array(right)
            )

        assert np.allclose(np.array(call(wx)), np.array(call(mx)), atol=1e-4)


def test_hadamard_transform() -> None:
    for n in (1, 4, 12, 40, 56, 128):
        x = draw((3, n), n)
        for scale in (None, 0.5):
            ours, theirs = wx.hadamard_transform(wx.array(x), scale), mx.hadamard_transform(mx.array(x), scale)
            assert np.allclose(np.array(ours), np.array(theirs), atol=1e-6 * n)


def test_block_masked_mm() -> None:
    a, b = draw((2, 70, 40), 0), draw((40, 50), 1)
    masks = [draw(shape, 2 + i) > 0 for i, shape in enumerate([(3, 2), (3, 2), (2, 2)])]
    for kind in (np.bool_, np.float32):
        for used in ((0,), (1,), (2,), (0, 1, 2)):

            def call(m: Any, used: Any = used, kind: Any = kind) -> Any:
                chosen = [m.array(mask.astype(kind)) if i in used else None for i, mask in enumerate(masks)]
                return m.block_masked_mm(m.array(a), m.array(b), 32, *chosen)

            assert np.allclose(np.array(call(wx)), np.array(call(mx)), atol=1e-4)


def test_segmented_mm() -> None:
    a, b = draw((5, 40), 0), draw((40, 6), 1)
    for segments in ([0, 40], [[0, 10], [10, 40], [7, 7]], [[[3, 9]], [[0, 40]]]):
        ours = wx.segmented_mm(wx.array(a), wx.array(b), wx.array(segments))
        theirs = mx.segmented_mm(mx.array(a), mx.array(b), mx.array(segments))
        assert np.allclose(np.array(ours), np.array(theirs), atol=1e-5)


def test_matrix_norm_is_norm() -> None:
    """MLX has it in its main module as well, where it takes vectors too."""
    for shape, args in (
        ((3, 4), ()),
        ((5,), ()),
        ((3, 4), (1,)),
        ((3, 4), (None, 0)),
        ((2, 3, 4), (None, (1, 2), True)),
    ):
        x = draw(shape, 0)
        ours, theirs = wx.matrix_norm(wx.array(x), *args), mx.matrix_norm(mx.array(x), *args)
        assert ours.shape == theirs.shape
        assert np.allclose(np.array(ours), np.array(theirs), atol=1e-5)
