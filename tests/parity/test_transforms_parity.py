"""The same calls of transforms in MLX and in Weft: values, structure, dtypes, and the class of errors."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core
from tests import test_transforms_edges as edges
from tests.contract import settings
from weft.errors import BadIndex

mlx = pytest.importorskip("mlx.core")

Case = Callable[[Any], Any]
Pair = namedtuple("Pair", "a b")


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    with settings(backend="reference"):
        yield


UNITS = {"float32": 1e-5, "complex64": 1e-5, "float64": 1e-12, "float16": 4 * 2.0**-10, "bfloat16": 4 * 2.0**-7}
"""Largest difference, relative to the largest element: a derivative is some operations long, and the two group them
differently (each rounds)."""


def shown(mx: types.ModuleType, value: Any) -> Any:
    """A result as plain data: containers by name, arrays as dtype, shape and numbers."""
    if isinstance(value, mx.array):
        numbers = np.array(value.astype(mx.float32)) if value.dtype == mx.bfloat16 else np.array(value)
        return ("array", str(value.dtype).rpartition(".")[2], tuple(value.shape), numbers)
    if isinstance(value, dict):
        return ("dict", {key: shown(mx, item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [shown(mx, item) for item in value])
    return value


def same(ours: Any, theirs: Any, at: str = "result") -> None:
    assert type(ours) is type(theirs), at
    if isinstance(ours, tuple) and ours and ours[0] == "array":
        assert ours[1:3] == theirs[1:3], at
        scale = (
            np.max(np.abs(theirs[3]), initial=0.0, where=np.isfinite(theirs[3]))
            if theirs[3].dtype.kind in "fc"
            else 0.0
        )
        np.testing.assert_allclose(ours[3], theirs[3], rtol=0.0, atol=UNITS.get(ours[1], 0.0) * scale, err_msg=at)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs), at
        for key in ours:
            same(ours[key], theirs[key], f"{at}[{key!r}]")
    elif isinstance(ours, (tuple, list)):
        assert len(ours) == len(theirs), at
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            same(a, b, f"{at}[{i}]")
    else:
        assert ours == theirs, at


def compare(case: Case) -> None:
    same(shown(weft.core, case(weft.core)), shown(mlx, case(mlx)))


def values(mx: Any, *shape: int) -> Any:
    return mx.array(np.linspace(-1.5, 2.0, int(np.prod(shape)), dtype=np.float32).reshape(shape))


def scalars(mx: Any) -> tuple[Any, Any]:
    return mx.array(2.0), mx.array(3.0)


def f(x: Any, y: Any) -> Any:
    return x * x * y


# ---- structure ----

GRADIENTS: dict[str, Case] = {
    "default": lambda mx: mx.grad(f)(*scalars(mx)),
    "value": lambda mx: mx.value_and_grad(f)(*scalars(mx)),
    "second": lambda mx: mx.grad(f, 1)(*scalars(mx)),
    "list of one": lambda mx: mx.grad(f, [0])(*scalars(mx)),
    "tuple of one": lambda mx: mx.value_and_grad(f, (1,))(*scalars(mx)),
    "both": lambda mx: mx.grad(f, (0, 1))(*scalars(mx)),
    "both, reversed": lambda mx: mx.grad(f, (1, 0))(*scalars(mx)),
    "True is 1": lambda mx: mx.grad(f, True)(*scalars(mx)),
    "name": lambda mx: mx.grad(f, argnames="y")(scalars(mx)[0], y=scalars(mx)[1]),
    "names": lambda mx: mx.value_and_grad(f, argnames=["y", "x"])(x=scalars(mx)[0], y=scalars(mx)[1]),
    "name twice": lambda mx: mx.grad(f, argnames=["y", "y"])(scalars(mx)[0], y=scalars(mx)[1]),
    "number and name": lambda mx: mx.grad(f, argnums=0, argnames="y")(scalars(mx)[0], y=scalars(mx)[1]),
    "no number and name": lambda mx: mx.grad(f, argnums=[], argnames=["y"])(scalars(mx)[0], y=scalars(mx)[1]),
    "numbers and name": lambda mx: mx.grad(lambda a, b, c: a * b * c, [0, 1], "c")(
        mx.array(1.0), mx.array(2.0), c=mx.array(3.0)
    ),
    "no names": lambda mx: mx.grad(f, argnames=())(*scalars(mx)),
    "dict": lambda mx: mx.grad(lambda p: p["a"] * p["b"][0] + p["b"][1])(
        {"a": mx.array(2.0), "b": [mx.array(3.0), mx.array(1.0)]}
    ),
    "tuple": lambda mx: mx.grad(lambda p: p[0] * p[1])((mx.array(2.0), mx.array(3.0))),
    "named tuple": lambda mx: mx.grad(lambda p: p[0] * p[1])(Pair(mx.array(2.0), mx.array(3.0))),
    "empty containers": lambda mx: mx.grad(lambda p: p["a"] * 2)({"a": mx.array(2.0), "b": [], "c": {}}),
    "two trees": lambda mx: mx.grad(lambda p, q: p["a"] * q[0], (0, 1))({"a": mx.array(2.0)}, [mx.array(3.0)]),
    "auxiliary": lambda mx: mx.value_and_grad(lambda a: (a * a, "s", {"k": [a, 1, None]}))(mx.array(2.0)),
    "tuple of one result": lambda mx: mx.value_and_grad(lambda a: (a * a,))(mx.array(2.0)),
    "the input itself": lambda mx: mx.value_and_grad(lambda a: a)(mx.array(2.0)),
    "a constant": lambda mx: mx.value_and_grad(lambda a: mx.array(3.0))(mx.array(2.0)),
    "unused": lambda mx: mx.grad(lambda a, b: a * a, (0, 1))(mx.array(2.0), values(mx, 3)),
    "captured": lambda mx: (lambda a: mx.grad(lambda x: a + x * a)(a))(mx.array(5.0)),
    "the same twice": lambda mx: (lambda a: mx.grad(lambda p: p[0] + 3 * p[2])([a, a, a]))(mx.array(5.0)),
    "not evaluated": lambda mx: mx.grad(lambda a: a * a)(mx.array(2.0) + 1),
    "branch": lambda mx: mx.grad(lambda a: a * a if a > 0 else -a)(mx.array(2.0)),
    "item": lambda mx: mx.value_and_grad(lambda a: a * a.item())(mx.array(2.0)),
    "other arguments": lambda mx: mx.value_and_grad(lambda a, s, k=1: a * len(s) * k)(mx.array(2.0), "hello", k=3),
    "vjp": lambda mx: mx.vjp(f, scalars(mx), [mx.array(1.5)]),
    "vjp of several": lambda mx: mx.vjp(lambda x, y: (x * y, x + y), scalars(mx), [mx.array(1.0), mx.array(10.0)]),
    "vjp, list result": lambda mx: mx.vjp(lambda x: [x, x * 2], [mx.array(2.0)], [mx.array(1.0), mx.array(10.0)]),
    "vjp, some depend": lambda mx: mx.vjp(
        lambda x, y: (x * 2, mx.array(1.0)), scalars(mx), [mx.array(1.0), mx.array(1.0)]
    ),
    "vjp of nothing": lambda mx: mx.vjp(lambda: mx.array(1.0), [], [mx.array(1.0)]),
    "jvp": lambda mx: mx.jvp(f, scalars(mx), [mx.array(1.0), mx.array(0.5)]),
    "jvp of several": lambda mx: mx.jvp(lambda x, y: (x * y, x + y), scalars(mx), scalars(mx)),
    "jvp, some depend": lambda mx: mx.jvp(lambda x: (x * 2, mx.array([1.0, 2.0])), [mx.array(2.0)], [mx.array(3.0)]),
    "jvp of the input": lambda mx: mx.jvp(lambda x: x, [mx.array(2.0)], [mx.array(3.0)]),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    compare(GRADIENTS[name])


def test_containers_that_the_function_writes_to() -> None:
    def case(mx: Any) -> Any:
        model = {"w": mx.array(2.0), "state": mx.array(3.0), "layers": [mx.array(1.0)]}

        def loss(m: dict) -> Any:
            m["state"] = m["state"] * 2 + m["w"]
            return m["w"] * m["w"] + m["layers"][0]

        gradients = mx.grad(loss)(model)
        return gradients, model

    compare(case)


def test_in_place_operators() -> None:
    def case(mx: Any) -> Any:
        x, other, captured = mx.array(2.0), mx.array(5.0), mx.array(7.0)
        state = {"captured": captured}

        def loss(a: Any, b: Any) -> Any:
            a += 1
            b += a
            state["captured"] += a
            return a * b

        return mx.value_and_grad(loss)(x, other), x, other, state["captured"]

    compare(case)


# ---- values ----

ELEMENTWISE: dict[str, Case] = {
    name: (lambda mx, name=name: getattr(mx, name))
    for name in (
        "abs",
        "square",
        "sqrt",
        "rsqrt",
        "exp",
        "expm1",
        "log",
        "log1p",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "erf",
        "negative",
        "reciprocal",
        "sign",
        "floor",
        "ceil",
        "round",
    )
} | {
    "x ** 3": lambda mx: lambda x: x**3,
    "2 ** x": lambda mx: lambda x: 2.0**x,
    "x / (1 + x)": lambda mx: lambda x: x / (1 + x),
    "maximum": lambda mx: lambda x: mx.maximum(x, 0.75),
    "minimum": lambda mx: lambda x: mx.minimum(0.75, x),
    "clip": lambda mx: lambda x: mx.clip(x, 0.5, 1.0),
    "where": lambda mx: lambda x: mx.where(x > 0.75, x * x, 3.0),
    "logaddexp": lambda mx: lambda x: mx.logaddexp(x, 1 - x),
    "softmax": lambda mx: lambda x: mx.softmax(x, axis=-1),
    "logsumexp": lambda mx: lambda x: mx.logsumexp(x, axis=0),
    "mean": lambda mx: lambda x: mx.mean(x, axis=1),
    "var": lambda mx: lambda x: mx.var(x, axis=0),
    "max": lambda mx: lambda x: mx.max(x, axis=1),
    "min": lambda mx: lambda x: mx.min(x),
    "prod": lambda mx: lambda x: mx.prod(x, axis=0),
    "sum": lambda mx: lambda x: mx.sum(x, axis=1, keepdims=True),
    "transpose": lambda mx: lambda x: mx.transpose(x) * 2,
    "reshape": lambda mx: lambda x: mx.reshape(x, (-1,))[1:5],
    "flip": lambda mx: lambda x: x[::-1, 1:],
    "broadcast": lambda mx: lambda x: mx.broadcast_to(x[:1], (4, x.shape[1])),
    "matmul": lambda mx: lambda x: x @ mx.transpose(x),
    "stop_gradient": lambda mx: lambda x: x * mx.stop_gradient(x * x),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in ELEMENTWISE
        for dtype in ("float32", "float16", "bfloat16")
        if name != "softmax" or dtype == "float32"  # MLX subtracts rounded halves there, and keeps no digit
    ],
)
def test_derivatives(name: str, dtype: str) -> None:
    def case(mx: Any) -> Any:
        fun = ELEMENTWISE[name](mx)
        x = mx.array(np.linspace(0.3, 1.9, 12, dtype=np.float32).reshape(3, 4)).astype(getattr(mx, dtype))
        t = mx.array(np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)).astype(getattr(mx, dtype))
        shape = tuple(fun(x).shape)
        ct = mx.array(np.linspace(0.5, 2.0, int(np.prod(shape)), dtype=np.float32).reshape(shape)).astype(
            getattr(mx, dtype)
        )
        outputs, pulled = mx.vjp(fun, [x], [ct])
        _, pushed = mx.jvp(fun, [x], [t])
        return outputs, pulled, pushed

    compare(case)


@pytest.mark.parametrize(
    "name", ["abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "square", "negative", "reciprocal", "conjugate"]
)
def test_complex_convention(name: str) -> None:
    def case(mx: Any) -> Any:
        fun = getattr(mx, name)
        z = mx.array(np.array([0.3 + 0.4j, -1.2 + 0.7j, 2 - 1.5j], np.complex64))
        direction = mx.array(np.array([1 + 2j, 3 - 1j, -0.5j], np.complex64))
        real = mx.array(np.array([1.0, -2.0, 0.5], np.float32))
        _, pulled = mx.vjp(fun, [z], [real if name == "abs" else direction])
        return pulled, mx.jvp(fun, [z], [direction])

    compare(case)


COMPLEX: dict[str, Case] = {
    "real": lambda mx: mx.grad(lambda z: mx.real(z * z))(mx.array(3 + 4j)),
    "imag": lambda mx: mx.grad(lambda z: mx.imag(z * z))(mx.array(3 + 4j)),
    "abs": lambda mx: mx.grad(lambda z: mx.abs(z))(mx.array(3 + 4j)),
    "modulus": lambda mx: mx.grad(lambda z: mx.real(z * mx.conj(z)))(mx.array(3 + 4j)),
    "complex loss": lambda mx: mx.grad(lambda z: z * z)(mx.array(3 + 4j)),
    "from real": lambda mx: mx.vjp(lambda x: x * mx.array(2 + 3j), [mx.array(2.0)], [mx.array(1 + 1j)]),
    "quotient": lambda mx: mx.vjp(lambda a, b: a / b, [mx.array(3 + 4j), mx.array(1 - 2j)], [mx.array(1 + 2j)]),
    "matmul": lambda mx: mx.vjp(
        lambda a, b: a @ b, [mx.array([[1 + 1j, 2]]), mx.array([[1j], [2 + 1j]])], [mx.array([[1 + 2j]])]
    ),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_gradients(name: str) -> None:
    compare(COMPLEX[name])


INTEGERS: dict[str, Case] = {
    "mixed": lambda mx: mx.value_and_grad(lambda a, b: mx.sum(a * b), (0, 1))(mx.array([1, 2, 3]), values(mx, 3)),
    "square": lambda mx: mx.grad(lambda a: mx.sum(a * a))(mx.array([1, 2, 3])),
    "power": lambda mx: mx.grad(lambda a: mx.sum(a**2))(mx.array([1, 2, 3])),
    "scaled": lambda mx: mx.grad(lambda a: mx.sum(a * 2.0))(mx.array([1, 2, 3])),
    "quotient": lambda mx: mx.grad(lambda a: mx.sum(a / 2))(mx.array([1, 2, 3])),
    "small": lambda mx: mx.jvp(lambda a: mx.sum(a), [mx.array([1, 2], mx.int8)], [mx.array([3, 4], mx.int8)]),
    "bool": lambda mx: mx.grad(lambda a: mx.sum(a * 2.0))(mx.array([True, False])),
    "to integers": lambda mx: mx.grad(lambda a: mx.sum(a.astype(mx.int32)))(values(mx, 3)),
    "tangent to integers": lambda mx: mx.jvp(
        lambda a: a.astype(mx.int32), [values(mx, 3)], [mx.array([3.0, 4.0, 5.0])]
    ),
    "bits": lambda mx: mx.jvp(lambda a: (a & 1, a | 1, a << 1), [mx.array([1, 2])], [mx.array([1, 1])]),
    "where": lambda mx: mx.vjp(
        lambda a: mx.where(mx.array([True, False]), a, a * a), [mx.array([3, 4])], [mx.array([1, 1])]
    ),
    "argmax": lambda mx: mx.jvp(lambda a: mx.argmax(a), [values(mx, 3)], [values(mx, 3)]),
    "comparison": lambda mx: mx.vjp(lambda a: a > 1, [values(mx, 3)], [mx.array([True, True, True])]),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_and_bools(name: str) -> None:
    compare(INTEGERS[name])


@pytest.mark.parametrize(
    "dtype",
    [
        "bool_",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "complex64",
    ],
)
def test_a_gradient_has_the_dtype_of_its_argument(dtype: str) -> None:
    compare(lambda mx: mx.grad(lambda x: x)(mx.array(1, getattr(mx, dtype))))


HIGHER: dict[str, Case] = {
    "second": lambda mx: mx.grad(mx.grad(lambda x: mx.sin(x) * x * x))(mx.array(0.7)),
    "third": lambda mx: mx.grad(mx.grad(mx.grad(lambda x: mx.exp(x) * x)))(mx.array(0.7)),
    "confusion": lambda mx: mx.grad(lambda x: x * mx.grad(lambda y: x + y)(mx.array(1.0)))(mx.array(2.0)),
    "the same variable": lambda mx: mx.grad(lambda x: mx.grad(lambda y: x * x * y * y)(x))(mx.array(2.0)),
    "forward over reverse": lambda mx: mx.jvp(mx.grad(lambda x: mx.sin(x) * x), [mx.array(0.7)], [mx.array(2.0)]),
    "reverse over forward": lambda mx: mx.grad(lambda x: mx.jvp(lambda y: mx.sin(y) * y, [x], [mx.array(2.0)])[1][0])(
        mx.array(0.7)
    ),
    "vmap of grad": lambda mx: mx.vmap(mx.grad(lambda x: mx.sin(x) * x))(values(mx, 5)),
    "grad of vmap": lambda mx: mx.grad(lambda x: mx.sum(mx.vmap(lambda r: mx.sum(r * r))(x)))(values(mx, 2, 3)),
    "per sample": lambda mx: mx.vmap(mx.grad(lambda w, x: mx.sum(mx.tanh(w * x))), in_axes=(None, 0))(
        values(mx, 3), values(mx, 4, 3)
    ),
    "vmap of vmap": lambda mx: mx.vmap(mx.vmap(lambda a, b: a * b, in_axes=(None, 0)), in_axes=(0, None))(
        values(mx, 2), values(mx, 3)
    ),
}


@pytest.mark.parametrize("name", HIGHER)
def test_transforms_of_transforms(name: str) -> None:
    compare(HIGHER[name])


# ---- vmap ----

VMAPS: dict[str, Case] = {
    "default": lambda mx: mx.vmap(f)(values(mx, 3), values(mx, 3)),
    "one is the same": lambda mx: mx.vmap(f, in_axes=(0, None))(values(mx, 3), mx.array(2.0)),
    "axes": lambda mx: mx.vmap(f, in_axes=(0, 1), out_axes=1)(values(mx, 2, 4), values(mx, 4, 2)),
    "negative": lambda mx: mx.vmap(lambda a: a * 2, in_axes=-1, out_axes=-1)(values(mx, 2, 4)),
    "out -2": lambda mx: mx.vmap(lambda a: a * 2, out_axes=-2)(values(mx, 2, 4)),
    "a tuple for one argument": lambda mx: mx.vmap(lambda a: mx.sum(a), in_axes=(1,))(values(mx, 2, 4)),
    "a tuple for one result": lambda mx: mx.vmap(lambda a: a, out_axes=(1,))(values(mx, 2, 4)),
    "dict": lambda mx: mx.vmap(lambda p: p["a"] * p["b"], in_axes={"a": 0, "b": None})(
        {"a": values(mx, 3), "b": mx.array(2.0)}
    ),
    "list": lambda mx: mx.vmap(lambda p: p[0] * p[1], in_axes=[0, None])([values(mx, 3), mx.array(2.0)]),
    "prefix": lambda mx: mx.vmap(lambda p: p["a"] * p["b"][0], in_axes={"a": 0, "b": 0})(
        {"a": values(mx, 3), "b": (values(mx, 3),)}
    ),
    "two trees": lambda mx: mx.vmap(lambda p, q: p[0] * p[1] + q, in_axes=([0, None], 0))(
        [values(mx, 3), mx.array(2.0)], values(mx, 3)
    ),
    "tree of results": lambda mx: mx.vmap(lambda a: {"x": a, "y": (a * 2, mx.sum(a))}, out_axes={"x": 1, "y": 0})(
        values(mx, 2, 4)
    ),
    "a constant result": lambda mx: mx.vmap(lambda a: (a, mx.array(2.0)))(values(mx, 3)),
    "a constant result, axis 1": lambda mx: mx.vmap(lambda a: (a, values(mx, 3)), out_axes=(0, 1))(values(mx, 2)),
    "nothing": lambda mx: mx.vmap(lambda a: a * 2)(mx.zeros((0, 3))),
    "captured": lambda mx: (lambda c: mx.vmap(lambda a: c @ a)(values(mx, 2, 4)))(values(mx, 3, 4)),
    "a captured value": lambda mx: (lambda c: mx.vmap(lambda a: a * (c * 2).item())(values(mx, 3)))(mx.array(2.0)),
    "matmul": lambda mx: mx.vmap(mx.matmul, in_axes=(1, None), out_axes=1)(values(mx, 2, 3, 4), values(mx, 4, 2)),
    "reductions": lambda mx: mx.vmap(lambda a: (mx.sum(a, axis=0), mx.max(a), mx.argmax(a)), in_axes=1)(
        values(mx, 3, 2, 4)
    ),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap(name: str) -> None:
    compare(VMAPS[name])


# ---- edges ----

OURS = {"zeros_like(x) ** x"}
"""Where MLX has another number: the derivative of 0 ** y by y, which it says is -inf at 0 and below."""
ONLY_OURS = {"median(x)", "cummax(x)"} - {name + "(x)" for name in dir(mlx)}


@pytest.mark.parametrize(("text", "at"), [row[:2] for row in edges.ROWS if row[0] not in OURS | ONLY_OURS])
def test_edges_are_those_of_mlx_where_it_has_a_number(text: str, at: str) -> None:
    """docs/gradients.md, line by line: the same, or a NaN of MLX's in place of a limit."""

    def gradient(mx: Any) -> np.ndarray:
        fun = eval(f"lambda x: sum({text})", {**vars(mx), "inf": np.inf, "nan": np.nan})
        return np.array(mx.grad(fun)(mx.array(edges.numbers(at))))

    ours, theirs = gradient(weft.core), gradient(mlx)
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(np.where(np.isnan(theirs), 0, ours), np.where(np.isnan(theirs), 0, theirs), rtol=1e-6)


# ---- functions with rules ----


def custom(mx: Any, *rules: str) -> Any:
    fun = mx.custom_function(lambda x, y: (mx.sin(x) * y, x + y))
    if "vjp" in rules:
        fun.vjp(lambda p, ct, out: (ct[0] * p[1] * 10 + out[1], ct[1] * 100 + p[0]))
    if "jvp" in rules:
        fun.jvp(lambda p, t: (t[0] * 7, p[0] if t[1] is None else t[1]))
    if "vmap" in rules:
        fun.vmap(lambda xs, axes: ((xs[0] * 3, xs[0]), (axes[0], axes[0])))
    return fun


CUSTOM: dict[str, Case] = {
    "no rules": lambda mx: mx.grad(lambda x, y: custom(mx)(x, y)[0], (0, 1))(*scalars(mx)),
    "vjp": lambda mx: mx.grad(lambda x, y: custom(mx, "vjp")(x, y)[0], (0, 1))(*scalars(mx)),
    "vjp of both results": lambda mx: mx.vjp(custom(mx, "vjp"), scalars(mx), [mx.array(2.0), mx.array(5.0)]),
    "vjp by one argument": lambda mx: mx.grad(lambda x: custom(mx, "vjp")(x, mx.array(3.0))[0])(mx.array(2.0)),
    "jvp without its rule": lambda mx: mx.jvp(custom(mx, "vjp", "vmap"), scalars(mx), scalars(mx)),
    "vmap without its rule": lambda mx: mx.vmap(custom(mx, "vjp", "jvp"))(values(mx, 3), values(mx, 3)),
    "grad without its rule": lambda mx: mx.grad(lambda x, y: custom(mx, "jvp", "vmap")(x, y)[0], (0, 1))(*scalars(mx)),
    "jvp": lambda mx: mx.jvp(custom(mx, "jvp"), scalars(mx), scalars(mx)),
    "jvp by one argument": lambda mx: mx.jvp(
        lambda x: custom(mx, "jvp")(x, mx.array(3.0)), [mx.array(2.0)], [mx.array(1.0)]
    ),
    "vmap": lambda mx: mx.vmap(custom(mx, "vmap"), in_axes=(1, None), out_axes=1)(values(mx, 2, 3), mx.array(3.0)),
    "vmap of grad": lambda mx: mx.vmap(mx.grad(lambda x, y: custom(mx, "vjp")(x, y)[0], (0, 1)))(
        values(mx, 3), values(mx, 3)
    ),
    "captured": lambda mx: mx.grad(
        lambda x, y: mx.custom_function(lambda a: a * y).vjp(lambda a, ct, out: ct * 5)(x), (0, 1)
    )(*scalars(mx)),
    "checkpoint": lambda mx: mx.grad(lambda x, y: mx.checkpoint(lambda a, b: mx.exp(a) * b)(x, y), (0, 1))(
        *scalars(mx)
    ),
    "checkpoint, keywords": lambda mx: mx.grad(
        lambda x, y: mx.checkpoint(lambda a, *, b: mx.exp(a) * b)(x, b=y), (0, 1)
    )(*scalars(mx)),
    "checkpoint, other values": lambda mx: mx.grad(
        lambda x: mx.checkpoint(lambda a, n, s: (mx.exp(a) * n, s))(x, 3, "s")[0]
    )(mx.array(2.0)),
    "checkpoint twice": lambda mx: mx.grad(mx.grad(mx.checkpoint(lambda a: mx.exp(mx.sin(a)))))(mx.array(2.0)),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_functions_with_rules(name: str) -> None:
    compare(CUSTOM[name])


# ---- errors ----

ERRORS: dict[str, Case] = {
    "argnums past the end": lambda mx: mx.grad(f, 5)(*scalars(mx)),
    "negative argnums": lambda mx: mx.grad(f, -1),
    "argnums twice": lambda mx: mx.grad(f, [0, 0]),
    "no argnums": lambda mx: mx.grad(f, []),
    "argnums of floats": lambda mx: mx.grad(f, 0.5),
    "argnums of None": lambda mx: mx.value_and_grad(f, (None, None)),
    "no such name": lambda mx: mx.grad(f, argnames="z")(scalars(mx)[0], y=scalars(mx)[1]),
    "name passed by position": lambda mx: mx.grad(f, argnames="y")(*scalars(mx)),
    "keywords only": lambda mx: mx.grad(f)(x=scalars(mx)[0], y=scalars(mx)[1]),
    "no function": lambda mx: mx.grad(3),
    "no function to map": lambda mx: mx.vmap(3),
    "a number as argument": lambda mx: mx.grad(lambda p: p * mx.array(1.0))(3.0),
    "a number in a tree": lambda mx: mx.grad(lambda p: p["a"])({"a": mx.array(1.0), "n": 3}),
    "not a scalar": lambda mx: mx.grad(lambda x: x * x)(values(mx, 3)),
    "one element": lambda mx: mx.grad(lambda x: mx.sum(x, keepdims=True))(values(mx, 3)),
    "a float": lambda mx: mx.grad(lambda x: 3.0)(mx.array(1.0)),
    "None": lambda mx: mx.value_and_grad(lambda x: None)(mx.array(1.0)),
    "a list": lambda mx: mx.value_and_grad(lambda x: [x * x])(mx.array(1.0)),
    "an empty tuple": lambda mx: mx.value_and_grad(lambda x: ())(mx.array(1.0)),
    "a tuple in grad": lambda mx: mx.grad(lambda x: (x * x, x))(mx.array(1.0)),
    "a tuple that begins with a number": lambda mx: mx.value_and_grad(lambda x: (3.0, x))(mx.array(1.0)),
    "too few cotangents": lambda mx: mx.vjp(lambda a: (a, a * 2), [mx.array(1.0)], [mx.array(1.0)]),
    "cotangent of another shape": lambda mx: mx.vjp(lambda a: a, [mx.array(1.0)], [values(mx, 3)]),
    "primals not in a list": lambda mx: mx.vjp(lambda a: a, mx.array(1.0), [mx.array(1.0)]),
    "primals that are numbers": lambda mx: mx.vjp(lambda a: a, [2.0], [mx.array(1.0)]),
    "too few tangents": lambda mx: mx.jvp(f, scalars(mx), [mx.array(1.0)]),
    "tangent of another shape": lambda mx: mx.jvp(lambda a: a, [mx.array(1.0)], [values(mx, 3)]),
    "sizes differ": lambda mx: mx.vmap(f)(values(mx, 3), values(mx, 4)),
    "nothing mapped": lambda mx: mx.vmap(f, in_axes=(None, None))(values(mx, 3), values(mx, 3)),
    "too few axes": lambda mx: mx.vmap(f, in_axes=(0,))(values(mx, 3), values(mx, 3)),
    "a tuple of a tuple": lambda mx: mx.vmap(mx.exp, in_axes=((0,),))(values(mx, 3)),
    "a float axis": lambda mx: mx.vmap(mx.exp, in_axes=0.5)(values(mx, 3)),
    "a string axis": lambda mx: mx.vmap(mx.exp, in_axes="hello")(values(mx, 3)),
    "no such axis": lambda mx: mx.vmap(mx.exp, in_axes=2)(values(mx, 3)),
    "no such output axis": lambda mx: mx.vmap(mx.exp, out_axes=2)(values(mx, 3)),
    "a scalar": lambda mx: mx.vmap(mx.exp)(mx.array(1.0)),
    "a string": lambda mx: mx.vmap(mx.exp)("hello"),
    "a number to map": lambda mx: mx.vmap(f)(values(mx, 3), 3.0),
    "keywords": lambda mx: mx.vmap(f)(values(mx, 3), y=values(mx, 3)),
    "mapped to a number": lambda mx: mx.vmap(lambda a: 3.0)(values(mx, 3)),
    "output axes of another structure": lambda mx: mx.vmap(lambda a: {"a": a}, out_axes=(0, 1))(values(mx, 3)),
    "output axes of other keys": lambda mx: mx.vmap(lambda a: {"a": a, "b": a}, out_axes={"a": 0, "c": 1})(
        values(mx, 3)
    ),
    "not mapped but depends": lambda mx: mx.vmap(lambda a: (a, a), out_axes=(0, None))(values(mx, 3)),
    "a value inside vmap": lambda mx: mx.vmap(lambda a: a if a.item() > 0 else -a)(values(mx, 3)),
    "vmap rule without axes": lambda mx: mx.vmap(mx.custom_function(lambda a: a).vmap(lambda a, axis: a))(
        values(mx, 3)
    ),
    "jvp rule and keywords": lambda mx: mx.jvp(
        functools.partial(mx.custom_function(lambda a, k: a).jvp(lambda a, t: t), k=1.0),
        [mx.array(1.0)],
        [mx.array(1.0)],
    ),
    "results that are no arrays": lambda mx: (
        mx.custom_function(lambda a: "s").vjp(lambda a, ct, out: a)(mx.array(1.0))
        if mx is mlx
        else mx.grad(mx.custom_function(lambda a: "s").vjp(lambda a, ct, out: a))(mx.array(1.0))
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_the_same_class(name: str) -> None:
    with pytest.raises(Exception) as theirs:
        ERRORS[name](mlx)
    with pytest.raises(type(theirs.value)) as ours:
        ERRORS[name](weft.core)
    assert type(ours.value) in (type(theirs.value), BadIndex), "which is what a bad axis is in either library"
    assert str(ours.value).startswith("["), "says which function it comes from"


def test_ordered_dicts_come_back_as_they_are() -> None:
    """MLX makes plain dicts of them; keys and values are the same."""
    ours, theirs = (
        mx.grad(lambda p: p["b"] * p["a"])(OrderedDict(b=mx.array(2.0), a=mx.array(3.0))) for mx in (weft.core, mlx)
    )
    assert list(ours) == list(theirs) == ["b", "a"]
    assert [x.item() for x in ours.values()] == [x.item() for x in theirs.values()]
