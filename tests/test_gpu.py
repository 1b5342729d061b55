"""NVIDIA GPUs: kernels that LLVM can write for one (everywhere), and the CPU's bits from them (where there is one)."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from tests.contract import Case, place, same_bits, values_of
from weft import dtypes as dt
from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.graph import placement
from weft.graph.node import Graph, Node, kind_of
from weft.passes.executable import launches_of
from weft.passes.pipeline import plan
from weft.primitives import REGISTRY
from weft.primitives.base import Elementwise, KernelOperation, MultiOutput, Parameter, Primitive, Reduction, bind
from weft.primitives.elementwise import Add, Multiply, draw
from weft.primitives.reductions import Prod, Sum
from weft.primitives.views import SliceUpdate
from weft.runtime.device import Device, DeviceType
from weft.targets.cuda.lowerings import LOWERINGS
from weft.targets.cuda.target import Cuda

GPU = Device(DeviceType.gpu)
HERE = mx.is_available(mx.gpu)
needs_gpu = pytest.mark.skipif(not HERE, reason="no GPU of NVIDIA's, or no cuda-bindings")
SIMPLE = [
    cls
    for cls in REGISTRY
    if cls in LOWERINGS
    or (not issubclass(cls, (KernelOperation, MultiOutput)) and issubclass(cls, (Elementwise, Reduction)))
]
"""The operations that a GPU has kernels for."""
NAMES = [cls.name() for cls in SIMPLE]


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    """Other tests take it that there is one device."""
    yield
    placement.USED.clear()


# ---- without a GPU: what LLVM writes ----


class Absent:
    """A GPU that is not there: its kernels are written, and kept as text."""

    device, name, architecture = GPU, "absent", "sm_90"

    def function(self, ptx: str, name: str) -> str:
        assert f".entry {name}(" in ptx
        return ptx


def kernels(op: Primitive, values: Sequence[np.ndarray]) -> list[str]:
    """The PTX of an operation."""
    target = Cuda(Absent())  # type: ignore[arg-type]
    inputs = [Node(Parameter(i), (), kind_of(v.shape, dt.from_numpy(v.dtype))) for i, v in enumerate(values)]
    return target.load(launches_of(plan(Graph(inputs, [bind(op, *inputs)]), target)))


@pytest.mark.parametrize("cls", SIMPLE, ids=NAMES)
def test_every_operation_becomes_ptx(cls: type[Primitive]) -> None:
    """One dtype each by default, in turn, and what rounds is IEEE's: no approximation, nothing flushed to zero."""
    dtype = cls.dtypes[SIMPLE.index(cls) % len(cls.dtypes)]
    for case in contract.cases(cls, [dtype]):
        for text in kernels(case.op, case.operands()):
            assert not re.search(r"\.ftz|\.approx|(add|sub|mul)\.f(32|64)", text), text


def test_products_and_sums_are_not_contracted() -> None:
    """`a * b + c` rounds twice, as everywhere."""
    target = Cuda(Absent())  # type: ignore[arg-type]
    x, y = (Node(Parameter(i), (), kind_of((4,), dt.float32)) for i in range(2))
    (text,) = target.load(launches_of(plan(Graph([x, y], [bind(Add(), bind(Multiply(), x, y), y)]), target)))
    assert "mul.rn.f32" in text
    assert "add.rn.f32" in text
    assert "fma" not in text


def test_a_machine_without_one_says_so() -> None:
    if HERE:
        assert mx.device_count(mx.gpu) >= 1
        return
    assert mx.device_count(mx.gpu) == 0
    assert not mx.cuda.is_available()
    with pytest.raises(ValueError, match=r"Device\(gpu, 0\) is not available"):
        mx.set_default_device(mx.gpu)


# ---- with a GPU: the CPU's bits ----


def on_gpu(op: Primitive, operands: Sequence[array]) -> np.ndarray:
    with mx.stream(GPU):
        made = wrap(bind(op, *[x._node for x in operands]))
    found = values_of(made)
    if not isinstance(op, SliceUpdate):  # which is written where its operand lies
        assert made._node.value.device == GPU
    return found


def on_cpu(op: Primitive, operands: Sequence[array]) -> np.ndarray:
    with mx.stream(mx.cpu):
        return values_of(wrap(bind(op, *[x._node for x in operands])))


def agree(case: Case | str, got: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits, but for those of a NaN that was computed."""
    if same_bits(got, expected):
        return
    plain = dt.from_numpy(expected.dtype)
    assert plain.is_inexact, f"{case}: {got} is not {expected}"
    wide = (np.complex128 if plain.is_complex else np.float64) if plain.bits < 64 else plain.np
    x, y = got.astype(wide), expected.astype(wide)
    same = (np.isnan(x) & np.isnan(y)) | ((x == y) & (np.signbit(x.real) == np.signbit(y.real)))
    assert same.all(), f"{case}: {got[~same][:4]} is not {expected[~same][:4]}"


@needs_gpu
@pytest.mark.parametrize("cls", SIMPLE, ids=NAMES)
def test_samples_have_the_bits_of_the_cpu(cls: type[Primitive]) -> None:
    for case in contract.cases(cls):
        operands = case.operands()
        for layout in contract.layouts_for(operands):
            given = contract.lay_out(operands, layout)
            agree(case, on_gpu(case.op, given), on_cpu(case.op, given))


@needs_gpu
@pytest.mark.parametrize("cls", [cls for cls in SIMPLE if issubclass(cls, Elementwise)])
def test_special_values_have_the_bits_of_the_cpu(cls: type[Primitive]) -> None:
    for dtype in cls.dtypes:
        case = contract.cases(cls, [dtype])[0]
        given = [place(v) for v in contract.grid(case.op, dtype, case.sample)]
        agree(case, on_gpu(case.op, given), on_cpu(case.op, given))


LENGTHS = (1, 2, 15, 16, 17, 100, 4095, 4096, 4097, 9000, 70_000)
SHAPES: dict[str, Callable[[int], tuple[tuple[int, ...], int]]] = {
    "row": lambda n: ((2, n), 1),
    "rows": lambda n: ((33, n), 1),
    "column": lambda n: ((n, 3), 0),
    "columns": lambda n: ((n, 37), 0),
    "middle": lambda n: ((2, n, 3), 1),
    "alone": lambda n: ((n,), 0),
}


@needs_gpu
@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16, dt.complex64], ids=str)
def test_reductions_have_the_specified_order(form: str, dtype: Dtype) -> None:
    for length in LENGTHS:
        shape, axis = SHAPES[form](length)
        x = place(draw(contract.generator(f"{form} {length}"), dtype, shape, 0.99, 1.01))
        for op in (Sum((axis,)), Prod((axis,))):
            agree(f"{op} {shape}", on_gpu(op, [x]), on_cpu(op, [x]))


PRODUCTS = [
    (1, 1, 1),
    (3, 5, 0),
    (16, 16, 16),
    (17, 33, 65),
    (100, 70, 300),
    (1, 9, 5000),
    (9, 1, 64),
    (5, 40, 200),
    (64, 64, 1000),
]


@needs_gpu
@pytest.mark.parametrize(("m", "n", "k"), PRODUCTS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.float16, mx.bfloat16, mx.complex64, mx.int8, mx.uint64])
def test_products_have_the_bits_of_the_cpu(m: int, n: int, k: int, dtype: Any) -> None:
    rng = np.random.default_rng(m + 7 * n + 31 * k)
    a, b = (rng.uniform(-9, 9, shape).astype(np.float32) for shape in ((2, m, k), (2, k, n)))
    for turned in (False, True):
        x = mx.array(a.swapaxes(-1, -2).copy()).swapaxes(-1, -2) if turned else mx.array(a)
        x, y = x.astype(dtype), mx.array(b).astype(dtype)
        agree(f"{m} {n} {k} {dtype}", *[np.array(z) for z in twice(lambda x=x, y=y: x @ y)])


def twice(function: Callable[[], Any]) -> tuple[Any, Any]:
    """What the GPU makes of it, and the CPU."""
    with mx.stream(GPU):
        mine = function()
        mx.eval(mine)
    with mx.stream(mx.cpu):
        other = function()
        mx.eval(other)
    return mine, other


def network(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
    hidden = mx.tanh(x @ w + b)
    normal = (hidden - hidden.mean(-1, keepdims=True)) * mx.rsqrt(hidden.var(-1, keepdims=True) + 1e-5)
    return mx.softmax(normal * 2.0, axis=-1).sum(0) + mx.logsumexp(hidden, axis=0)


@needs_gpu
def test_programs_and_their_gradients() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((37, 20), (20, 50), (50,)))
    for function in (network, mx.compile(network), mx.compile(network, shapeless=True)):
        agree("network", *[np.array(z) for z in twice(lambda f=function: f(x, w, b))])
    gradient = mx.grad(lambda w: network(x, w, b).sum())
    agree("gradient", *[np.array(z) for z in twice(lambda: gradient(w))])


@needs_gpu
def test_what_it_cannot_do_the_host_does() -> None:
    x = mx.array(np.random.default_rng(1).normal(size=(6, 50)).astype(np.float32))

    def function() -> mx.array:
        ordered = mx.sort(x * 2.0, axis=-1) + 1.0
        total = mx.fori_loop(0, 5, lambda i, c: c * 0.5 + ordered, ordered)
        return total + mx.linalg.norm(ordered) + mx.cumsum(ordered, axis=0)

    agree("host", *[np.array(z) for z in twice(function)])


@needs_gpu
def test_updates_and_memory() -> None:
    with mx.stream(GPU):
        x = mx.zeros((1000, 1000))
        mx.eval(x)
        for i in range(20):
            x[i] = i
            x = x * 1.0
        mx.eval(x)
        assert x._node.value.device == GPU
        assert x[7, 3].item() == 7
        assert mx.array_equal(x[:20, 0], mx.arange(20, dtype=mx.float32)).item()
    gc.collect()
    with pytest.raises(MemoryError):
        mx.eval(on_gpu_zeros(1 << 45))


def on_gpu_zeros(count: int) -> mx.array:
    with mx.stream(GPU):
        return mx.zeros((count,), mx.uint8) + 1


@needs_gpu
def test_threads_share_it() -> None:
    x = mx.array(np.arange(10_000, dtype=np.float32))
    expected = np.array(mx.exp(-x) * 3.0)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                with mx.stream(GPU):
                    agree("thread", np.array(mx.exp(-x) * 3.0), expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
