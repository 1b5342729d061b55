"""What runs programs: devices, streams, memory, a group of one process, limits of dtypes. The answers, and the classes
of errors, of MLX.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as wx
from tests.parity.oracle import COMMON, alike, numpy_of, outcome
from weft.dtypes import Dtype

mx = pytest.importorskip("mlx.core")

Ask = Callable[[Any], Any]


def agree(ask: Ask) -> None:
    """The same answer, or the same class of error, of both libraries."""
    alike(outcome(lambda: ask(wx)), outcome(lambda: ask(mx)))


# ---- devices and streams ----


@pytest.mark.parametrize("text", [
    "m.default_device()", "m.default_device() == m.cpu", "m.cpu == m.default_device()", "m.Device(m.cpu).type",
    "m.DeviceType.cpu == m.cpu", "m.DeviceType(1)", "m.DeviceType(7)", "m.DeviceType.gpu.value",
    "sorted(m.DeviceType.__members__)", "hash(m.cpu) == hash(m.DeviceType.cpu)", "m.Device(m.gpu, 3)", "m.Device(7)",
    "m.is_available(m.cpu)", "m.is_available(m.gpu)", "m.is_available(m.Device(m.cpu))", "m.is_available(3)",
    "m.set_default_device(m.cpu)", "m.set_default_device(m.Device(m.cpu))", "m.set_default_device(m.gpu)",
    "m.set_default_device('cpu')", "m.set_default_device(None)", "m.device_count(m.gpu)", "m.device_info(m.gpu)",
    "m.device_info(m.cpu)['architecture']", "m.device_info()['device_name']", "m.device_info('cpu')",
    "m.new_stream(m.cpu).device", "m.new_stream(m.gpu)", "m.new_stream('cpu')", "m.default_stream(m.gpu)",
    "m.new_stream(m.cpu) == m.new_stream(m.cpu)", "m.default_stream(m.cpu) == 3",
    "m.set_default_stream(m.default_stream(m.cpu))", "m.set_default_stream(m.cpu)", "m.set_default_stream(None)",
    "m.synchronize()", "m.synchronize(m.default_stream(m.cpu))", "m.synchronize(m.cpu)", "m.synchronize(m.gpu)",
    "m.synchronize(stream=m.new_thread_local_stream(m.cpu))", "m.synchronize('cpu')",
    "m.metal.is_available()", "m.cuda.is_available()", "m.metal.start_capture('x')", "m.metal.stop_capture()",
])  # fmt: skip
def test_devices_and_streams(text: str) -> None:
    agree(lambda m: eval(text, {"m": m}))


def test_a_stream_for_a_block() -> None:
    def ask(m: Any) -> Any:
        before = m.default_stream(m.cpu)
        stream = m.new_stream(m.cpu)
        with m.stream(stream):
            inside = m.default_stream(m.cpu) == stream
            made = m.array([1.0, 2.0]) * 2
            m.eval(made)
        with m.StreamContext(m.cpu):
            pass
        return made, inside, m.default_stream(m.cpu) == before

    agree(ask)
    with pytest.raises(TypeError):
        mx.stream(3)
    with pytest.raises(TypeError):
        wx.stream(3)


def test_a_stream_for_an_operation() -> None:
    agree(lambda m: m.add(m.array([1, 2]), 1, stream=m.new_stream(m.cpu)))
    agree(lambda m: m.fft.fft(m.array([1.0, 2.0, 3.0, 5.0]), 4, -1, "backward", m.cpu).shape)
    agree(lambda m: m.fft.fftfreq(4, 1.0, m.cpu))


def test_work_that_is_done_later() -> None:
    def ask(m: Any) -> Any:
        x = m.arange(1000).astype(m.float32)
        y = x * 2 + 1
        m.async_eval(y)
        m.async_eval({"a": [y + 1]}, 3, None)
        m.synchronize()
        return y

    agree(ask)


@pytest.mark.parametrize("text", [
    "m.depends(x, y)", "m.depends([x, y], [y])", "m.depends((x,), y)", "m.depends(x, [])", "m.depends(3, x)",
    "m.depends(x, 'a')",
])  # fmt: skip
def test_depends(text: str) -> None:
    agree(lambda m: eval(text, {"m": m, "x": m.array([1, 2]), "y": m.array([3.0])}))


def test_compilation_can_be_turned_off() -> None:
    def ask(m: Any) -> Any:
        compiled = m.compile(lambda x: m.sum(x * 2 + 1))
        m.disable_compile()
        try:
            plain = compiled(m.array([1.0, 2.0]))
        finally:
            m.enable_compile()
        return [plain, compiled(m.array([1.0, 2.0]))]

    agree(ask)


# ---- memory ----


@pytest.mark.parametrize("text", [
    "m.set_cache_limit(m.set_cache_limit(1 << 30))", "m.set_memory_limit(m.set_memory_limit(1 << 30))",
    "m.set_memory_limit(m.get_memory_limit()) == m.get_memory_limit()", "m.set_wired_limit(0)",
    "m.clear_cache()", "m.reset_peak_memory()", "m.set_cache_limit(-1)", "m.set_memory_limit(-1)",
    "m.set_cache_limit(1.5)", "m.set_memory_limit('1')", "m.set_wired_limit(None)",
    "type(m.get_active_memory())", "type(m.get_cache_memory())", "type(m.get_peak_memory())",
])  # fmt: skip
def test_limits(text: str) -> None:
    alike(*(outcome(lambda m=m: str(eval(text, {"m": m})) if "_limit(m" not in text else "") for m in (wx, mx)))


@pytest.mark.parametrize("where", ["", "metal"])
def test_memory_is_counted(where: str) -> None:
    for m in (mx, wx):
        owner = getattr(m, where) if where else m
        owner.clear_cache()
        owner.reset_peak_memory()
        before = owner.get_active_memory()
        x = m.zeros((1 << 18,), m.float32) + 1
        m.eval(x)
        assert owner.get_active_memory() - before >= 1 << 20
        assert owner.get_peak_memory() >= owner.get_active_memory()
        del x
        assert owner.get_active_memory() - before < 1 << 20
        owner.clear_cache()
        assert owner.get_cache_memory() <= 1 << 16
        owner.set_cache_limit(owner.set_cache_limit(0))
        owner.set_memory_limit(owner.set_memory_limit(1 << 34))
        owner.set_wired_limit(owner.set_wired_limit(0))


def test_limits_beyond_all_memory() -> None:
    """They limit nothing; what is freed afterwards is counted still."""
    for change in (wx.set_cache_limit, wx.set_memory_limit):
        before = change(1 << 64)
        try:
            held = wx.get_active_memory()
            x = wx.zeros((1 << 18,)) + 1
            wx.eval(x)
            del x
            assert wx.get_active_memory() == held
        finally:
            change(before)


# ---- one process ----


@pytest.mark.parametrize("text", [
    "d.init().rank()", "d.init().size()", "d.init().split(0)", "d.init(strict=True)", "d.init(backend='ring').size()",
    "d.init(backend='zap')", "d.is_available('zap')", "d.Group()", "type(d.init()).__name__",
    "d.all_sum(x)", "d.all_max(x)", "d.all_min(x)", "d.all_gather(x)", "d.sum_scatter(x)", "d.all_sum(3)",
    "d.all_sum(x, group=d.init(), stream=m.cpu)", "d.all_gather(m.array(3))", "d.send(x, 0)", "d.all_sum('a')",
    "d.recv((2,), m.float32, 0)", "d.recv_like(x, 0)", "d.send(x, dst=1, group=d.init())",
])  # fmt: skip
def test_a_world_of_one(text: str) -> None:
    agree(lambda m: eval(text, {"m": m, "d": m.distributed, "x": m.array([[1.5, 2.0], [3.0, 4.0]])}))


# ---- dtypes ----


@pytest.mark.parametrize("dtype", COMMON, ids=str)
def test_limits_of_dtypes(dtype: Dtype) -> None:
    name = dtype.name.replace("bool", "bool_")
    for field in ("min", "max", "eps", "smallest_normal", "bits", "dtype"):
        agree(lambda m, field=field: float_or_text(getattr(m.finfo(getattr(m, name)), field)))
    for field in ("min", "max", "dtype"):
        agree(lambda m, field=field: getattr(m.iinfo(getattr(m, name)), field))
    agree(lambda m: repr(m.finfo(getattr(m, name))))
    agree(lambda m: repr(m.iinfo(getattr(m, name))))


def float_or_text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).rpartition(".")[2]


CATEGORIES = (
    "generic", "number", "integer", "signedinteger", "unsignedinteger", "inexact", "floating", "complexfloating",
)  # fmt: skip


def test_categories() -> None:
    agree(lambda m: list(m.DtypeCategory.__members__))
    for name in CATEGORIES:
        agree(lambda m, name=name: str(getattr(m, name)) + repr(getattr(m, name)))
        agree(lambda m, name=name: getattr(m, name) is m.DtypeCategory[name])
        for other in (*CATEGORIES, *(d.name.replace("bool", "bool_") for d in COMMON)):
            agree(lambda m, name=name, other=other: m.issubdtype(getattr(m, other), getattr(m, name)))
            agree(lambda m, name=name, other=other: m.issubdtype(getattr(m, name), getattr(m, other)))
    agree(lambda m: m.issubdtype(3, m.floating))
    agree(lambda m: m.finfo("float32"))
    agree(lambda m: m.iinfo(None))


def test_numbers() -> None:
    for name in ("e", "pi", "inf", "euler_gamma", "newaxis"):
        assert getattr(wx, name) == getattr(mx, name)


# ---- arrays for Python and for other libraries ----


@pytest.mark.parametrize("dtype", COMMON, ids=str)
def test_special_methods(dtype: Dtype) -> None:
    name = dtype.name.replace("bool", "bool_")
    for values in (1, [1], [[1, 0], [1, 1]], []):
        for text in (
            "x.__bool__()", "x.__int__()", "x.__float__()", "x.__complex__()", "x.__index__()", "x.__len__()",
            "x.__pos__()", "x.__copy__()", "x.__deepcopy__({})", "x.__div__(2)", "x.__rdiv__(2)", "m.positive(x)",
            "x.__dlpack_device__()[0] == 1", "x.__array_namespace__() is m", "list(x.__iter__())",
        ):  # fmt: skip
            loose = "div" in text
            mine, other = (
                outcome(lambda m=m, text=text, v=values: eval(text, {"m": m, "x": m.array(v, getattr(m, name))}))
                for m in (wx, mx)
            )
            alike(mine, other, loose)


@pytest.mark.parametrize("dtype", [d for d in COMMON if d.name not in ("bfloat16", "float64")], ids=str)
def test_numpy_reads_both(dtype: Dtype) -> None:
    values = np.array([[1, 0, 1], [1, 1, 0]]).astype(dtype.np)
    mine, other = wx.array(values), mx.array(values)
    np.testing.assert_array_equal(mine.__array__(), other.__array__())
    assert mine.__array__().dtype == other.__array__().dtype
    np.testing.assert_array_equal(np.from_dlpack(mine), np.from_dlpack(other))
    assert type(mine.__dlpack__()).__name__ == type(other.__dlpack__()).__name__


@pytest.mark.parametrize("precision", [2, 6, 9])
def test_print_options(precision: int) -> None:
    def ask(m: Any) -> Any:
        before = m.get_printoptions().precision
        m.set_printoptions(precision=precision)
        try:
            return repr(m.array([1 / 3, 1e-9, 123456.789])) + str(m.get_printoptions().precision)
        finally:
            m.set_printoptions(precision=before)

    agree(ask)


# ---- files, kernels ----


def test_compressed_files(tmp_path: Path) -> None:
    values = np.arange(600, dtype=np.float32) % 7
    for writer, reader in ((mx, wx), (wx, mx)):
        path = str(tmp_path / "x.npz")
        writer.savez_compressed(path, writer.array(values), named=writer.array([1, 2]))
        found = reader.load(path)
        assert sorted(found) == ["arr_0", "named"]
        np.testing.assert_array_equal(numpy_of(found["arr_0"]), values)
    agree(lambda m: m.savez_compressed(str(tmp_path / "y.npz"), 3))


@pytest.mark.parametrize("text", [
    "{'math_mode': 'fast'}", "{'math_mode': 'zap'}", "{'other': 1}", "3", "{}", "None",
])  # fmt: skip
def test_options_of_kernels(text: str) -> None:
    def made(m: Any) -> Any:
        source = "out[thread_position_in_grid.x] = x[thread_position_in_grid.x];"
        return callable(m.fast.metal_kernel("copy", ["x"], ["out"], source, compile_options=eval(text)))

    agree(made)


def test_kernels_that_mlx_makes_on_gpus_alone() -> None:
    """Without one it refuses to; here they run on the CPU."""
    body = "out[blockIdx.x * blockDim.x + threadIdx.x] = x[0];"
    assert isinstance(outcome(lambda: mx.fast.cuda_kernel("fill", ["x"], ["out"], body)), type)
    assert callable(wx.fast.cuda_kernel("fill", ["x"], ["out"], body))


# ---- modules of layers ----


@pytest.mark.parametrize("name", [
    "activations", "containers", "convolution", "convolution_transpose", "dropout", "embedding", "normalization",
    "pooling", "positional_encoding", "quantized", "recurrent", "transformer", "upsample", "linear", "distributed",
])  # fmt: skip
def test_modules_of_layers(name: str) -> None:
    theirs, ours = (importlib.import_module(f"{library}.nn.layers.{name}") for library in ("mlx", "weft"))
    its = {n for n, v in vars(theirs).items() if getattr(v, "__module__", None) == theirs.__name__ and n[0] != "_"}
    assert its <= set(dir(ours))
