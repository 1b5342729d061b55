"""Special functions of PyTensor on Weft beside SciPy's, over their domains, at their edges, and in loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.scalar.math as psm
import pytensor.tensor as pt
import scipy.special as ss
from pytensor.tensor.elemwise import Elemwise

from tests.frontends.pytensor_reference import check

N = 600


def drawn(*ranges: tuple[float, float]) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    return [rng.uniform(low, high, N) for low, high in ranges]


def logs(*ranges: tuple[float, float]) -> list[np.ndarray]:
    return [10.0**x for x in drawn(*ranges)]


def amplitude(v: np.ndarray, x: np.ndarray) -> np.ndarray:
    """How large a Bessel function is where it oscillates: what its error is measured by near its zeros."""
    return np.where(np.abs(x) > np.abs(v), np.sqrt(2 / (np.pi * np.maximum(np.abs(x), 1.0))), 0.0)


WHOLE = [np.floor(x) for x in drawn((-20, 20))]
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[np.ndarray], float]] = {
    "j0": (pt.j0, ss.j0, [np.concatenate([*drawn((-60, 60)), *logs((-8, 2))])], 2e-14),
    "j1": (pt.j1, ss.j1, [np.concatenate([*drawn((-60, 60)), *logs((-8, 2))])], 2e-14),
    "jv": (pt.jv, ss.jv, [*drawn((0, 40)), *logs((-3, 2.4))], 3e-12),
    "jv of negative orders": (pt.jv, ss.jv, [*drawn((-10, 0)), *logs((-3, 2))], 2e-12),
    "jv of whole orders": (pt.jv, ss.jv, [*WHOLE, *drawn((-50, 50))], 1e-13),
    "jv of large orders": (pt.jv, ss.jv, drawn((0, 300), (0, 300)), 1e-10),
    "ive": (pt.ive, ss.ive, [*drawn((0, 40)), *logs((-3, 3))], 3e-13),
    "ive of whole orders": (pt.ive, ss.ive, [*WHOLE, *drawn((-50, 50))], 1e-13),
    "ive of negative orders": (pt.ive, ss.ive, [*drawn((-4.9, -4.1)), *logs((-2, 2))], 1e-12),
    "kve": (pt.kve, ss.kve, [*drawn((-40, 40)), *logs((-2, 3))], 1e-13),
    "kve of large orders": (pt.kve, ss.kve, drawn((0, 150), (1, 1000)), 1e-12),
    "hyp2f1": (pt.hyp2f1, ss.hyp2f1, drawn((0.1, 3), (0.1, 3), (3.5, 8), (-0.9, 0.9)), 1e-12),
    "hyp2f1 near 1": (pt.hyp2f1, ss.hyp2f1, drawn((0.1, 2), (0.1, 2), (0.5, 6), (0.9, 0.999)), 1e-9),
    "owens_t": (pt.owens_t, ss.owens_t, [*drawn((-10, 10)), *logs((-3, 2))], 2e-13),
    "gammaincinv": (pt.gammaincinv, ss.gammaincinv, [*logs((-1, 3)), *drawn((0, 1))], 1e-12),
    "gammainccinv": (pt.gammainccinv, ss.gammainccinv, [*logs((-1, 2)), *logs((-20, 0))], 1e-12),
    "betaincinv": (pt.betaincinv, ss.betaincinv, [*logs((-0.5, 2), (-0.5, 2)), *drawn((0, 1))], 1e-11),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    fun, reference, values, bound = CASES[name]
    xs = [pt.vector() for _ in values]
    found = pytensor.function(xs, fun(*xs), mode="WEFT")(*values)
    expected = reference(*values)
    scale = np.maximum(np.abs(expected), 1e-290)
    if name[0] == "j":
        scale = np.maximum(scale, amplitude(0 if len(values) == 1 else values[0], values[-1]))
    worst = np.max(np.abs(found - expected) / scale)
    assert worst < bound, f"{worst:.1e} at {[float(x[np.argmax(np.abs(found - expected) / scale)]) for x in values]}"


FAR = [
    (0, 1000000.0, 0.00033104301373987376),
    (1, 1000000.0, -0.000725968356813763),
    (2.5, 12345.678, 0.005054741456281228),
    (0.3, 1000000000.0, 1.96312161325988e-05),
]
"""(v, x, J(v, x)), computed with thirty digits."""


def test_bessel_functions_far_out() -> None:
    v, x = pt.vectors("v", "x")
    orders, at, expected = map(np.array, zip(*FAR, strict=True))
    found = pytensor.function([v, x], pt.jv(v, x), mode="WEFT")(orders, at)
    assert (np.abs(found - expected) < 4e-15 * np.sqrt(2 / (np.pi * at))).all()


def test_ndtri_exp() -> None:
    """SciPy's own is right to twelve digits only far out, so the way back is looked at there."""
    if not hasattr(psm, "NdtriExp"):
        pytest.skip("this PyTensor has no such operation")
    values = -(10.0 ** np.linspace(-17, 5, N))
    x = pt.vector()
    found = pytensor.function([x], Elemwise(psm.ndtri_exp)(x), mode="WEFT")(values)
    middle = (values > -30) & (values < -1e-3)
    assert np.allclose(found[middle], ss.ndtri_exp(values[middle]), rtol=1e-12, atol=1e-14)
    assert np.allclose(ss.log_ndtr(found[values < -1]), values[values < -1], rtol=1e-13)


HEIGHTS = [-np.inf, -2.0, 0.0, 1.0, 38.0, np.inf, np.nan]
WIDTHS = [-np.inf, -1.0, 0.0, 0.5, 1.0, 3.0, np.inf, np.nan]
PARTS = [-0.1, 0.0, 1e-10, 0.5, 1.0, 1.1, np.nan]
EDGES = [-np.inf, -3.5, -1.0, -0.0, 0.0, 1e-300, 0.5, 1.0, 2.0, 30.0, np.inf, np.nan]
EDGE_CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
    "j0": (pt.j0, ss.j0, [EDGES]),
    "jv": (pt.jv, ss.jv, [[0.0, 1.0, 2.5, 3.0, -1.0, -2.0, np.nan], [*EDGES]]),
    "ive": (pt.ive, ss.ive, [[0.0, 1.0, 2.5, 3.0, -1.0, -2.0, np.nan], [*EDGES]]),
    "kve": (pt.kve, ss.kve, [[0.0, 1.0, 2.5, -3.0], [-1.0, 0.0, 0.5, 30.0, np.inf, np.nan]]),
    "hyp2f1": (pt.hyp2f1, ss.hyp2f1, [[-2.0, 0.0, 0.5, 1.0], [0.5, 2.0], [0.5, 3.0], [-3.0, 0.0, 0.5, 1.0]]),
    "owens_t": (pt.owens_t, ss.owens_t, [HEIGHTS, WIDTHS]),
    "gammaincinv": (pt.gammaincinv, ss.gammaincinv, [[-1.0, 0.5, 3.0], [-0.1, 0.0, 1e-300, 0.5, 1.0, 1.1, np.nan]]),
    "gammainccinv": (pt.gammainccinv, ss.gammainccinv, [[-1.0, 0.5, 3.0], [-0.1, 0.0, 1e-300, 0.5, 1.0, 1.1, np.nan]]),
    "betaincinv": (pt.betaincinv, ss.betaincinv, [[-1.0, 0.5, 3.0], [0.5, 2.0], PARTS]),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGE_CASES)
def test_edges(name: str) -> None:
    fun, reference, axes = EDGE_CASES[name]
    values = [x.ravel() for x in np.meshgrid(*map(np.array, axes))]
    xs = [pt.vector() for _ in values]
    found = pytensor.function(xs, fun(*xs), mode="WEFT")(*values)
    with np.errstate(all="ignore"):
        expected = reference(*values)
    assert np.allclose(found, expected, rtol=1e-10, atol=1e-290, equal_nan=True), [
        (*[float(x[i]) for x in values], float(found[i]), float(expected[i]))
        for i in np.flatnonzero(~np.isclose(found, expected, rtol=1e-10, atol=1e-290, equal_nan=True))
    ]


def test_other_dtypes_and_shapes() -> None:
    x, v = pt.matrix(dtype="float32"), pt.row(dtype="float32")
    check([v, x], pt.jv(v, x), (np.float32([[0, 1, 2]]), np.float32(np.arange(6).reshape(2, 3))), rtol=1e-5)
    n = pt.lvector()
    check([n], pt.j0(n), (np.arange(5),), rtol=1e-12)
    s = pt.scalar()
    check([s], pt.owens_t(s, 0.5), (0.3,), rtol=1e-12)
    check([x], pt.j1(x), (np.zeros((0, 3), np.float32),))


def test_gradients() -> None:
    x, v = pt.vector(), pt.vector()
    values = np.array([0.5, 2.0, 7.0])
    check([v, x], pytensor.grad(pt.jv(v, x).sum(), x), (values, values + 0.5), rtol=1e-10)
    check([v, x], pytensor.grad(pt.kve(v, x).sum(), x), (values, values + 0.5), rtol=1e-10)
    check([v, x], pytensor.grad(pt.ive(v, x).sum(), x), (values, values + 0.5), rtol=1e-10)
    check([x], pytensor.grad(pt.owens_t(x, 0.3).sum(), x), (values,), rtol=1e-10)


def test_in_a_loop() -> None:
    """A body with a kernel is a part of the native loop: nothing of it is PyTensor's."""
    x = pt.scalar("x")
    rows = pytensor.scan(
        lambda a: pt.j0(a) + pt.gammaincinv(2.0, pt.sigmoid(a)), outputs_info=[x], n_steps=5, return_updates=False
    )
    check([x], rows, (0.3,), rtol=1e-11)
    rows = pytensor.scan(pt.j0, outputs_info=[x], n_steps=5, return_updates=False)
    check([x], pytensor.grad(rows[-1], x), (0.3,), rtol=1e-10)
