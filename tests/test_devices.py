"""A second device: operations go where they are meant for, values are copied where they are needed, and no bit depends
on it. The device here computes with the CPU's kernels, in memory whose addresses mean nothing to the host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft import checking, evaluate
from weft.config import config
from weft.core import _streams
from weft.graph import placement
from weft.passes.executable import DeviceExecutable, Executable, assemble
from weft.passes.memory import Plan
from weft.runtime import buffer
from weft.runtime.buffer import DeviceStorage
from weft.runtime.data import extent
from weft.runtime.device import Device, DeviceType
from weft.runtime.objects import MAKERS
from weft.targets import TARGETS, copies
from weft.targets.cpu.target import Cpu
from weft.targets.spread import Spread

GPU = Device(DeviceType.gpu)
BIAS = 1 << 60
"""What the device's addresses are off by: the host would fault where one of them is."""


class FarStorage(DeviceStorage):
    """A block of host memory under another address."""

    __slots__ = ("block",)
    alive = 0

    def __init__(self, nbytes: int) -> None:
        self.block = buffer.allocate(nbytes)
        super().__init__(GPU, self.block.address + BIAS, nbytes)
        FarStorage.alive += 1

    def __del__(self) -> None:
        FarStorage.alive -= 1

    def read(self, address: int, to: int, nbytes: int) -> None:
        ctypes.memmove(to, address - BIAS, nbytes)

    def write(self, address: int, source: int, nbytes: int) -> None:
        ctypes.memmove(address - BIAS, source, nbytes)


class _Near:
    """A program that is given the device's addresses."""

    def __init__(self, program: Any, buffers: int) -> None:
        self.program, self.buffers = program, buffers
        self.length = program.length

    def run(self, addresses: Sequence[int], *more: Any) -> None:
        near = [address - BIAS for address in addresses[: self.buffers]]
        assert all(address < BIAS for address in near), "a buffer of the host was given to the device"
        self.program.run([*near, *addresses[self.buffers :]], *more)


class Far(Cpu):
    """The CPU at a distance."""

    name = "far"
    device = GPU
    host_memory = False
    allocate = staticmethod(FarStorage)  # type: ignore[assignment]

    def __init__(self) -> None:
        self.plans: list[list[str]] = []

    def assemble(self, plan: Plan) -> Executable:
        self.plans.append([node.op.title for item in plan.items for node in item.group.nodes])
        made = assemble(plan)
        assert isinstance(made, DeviceExecutable)
        if made.program is not None:
            made.program = _Near(made.program, len(plan.graph.inputs) + len(plan.outputs) + 1)  # type: ignore[assignment]
        return made

    def copy_program(self, *given: Any) -> Any:  # type: ignore[override]
        return _Near(super().copy_program(*given), 2)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    target, watchers = Far(), MAKERS._watchers
    monkeypatch.setitem(TARGETS, GPU, target)
    monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})
    monkeypatch.setattr(copies, "COPIES", {})
    yield target
    mx.set_default_device(mx.cpu)
    placement.USED.clear()
    assert MAKERS._watchers == watchers


X = np.random.default_rng(1).uniform(0.5, 2.0, (6, 40)).astype(np.float32)


def network(x: mx.array, w: mx.array) -> mx.array:
    hidden = mx.tanh(x @ w)
    return mx.softmax(hidden * 2.0, axis=-1) + hidden.sum(axis=-1, keepdims=True)


def bits(x: mx.array) -> bytes:
    return np.array(x).tobytes()


def on(device: Any, function: Callable[..., Any], *args: Any) -> Any:
    with mx.stream(device):
        return function(*args)


def place_of(x: mx.array) -> Device | None:
    mx.eval(x)
    return x._node.value.device  # type: ignore[no-any-return]


# ---- one device ----


def test_no_device_costs_nothing() -> None:
    """Nodes do not even have one as long as there is only the host."""
    assert not placement.USED
    with mx.stream(mx.cpu):
        y = mx.array(X) + 1
    assert not hasattr(y._node, "device")
    assert mx.default_device() == mx.Device(mx.cpu)


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"\[set_default_device\] Device\(gpu, 9\) is not available; this machine has"):
        mx.set_default_device(mx.Device(mx.gpu, 9))
    with pytest.raises(TypeError, match=r"\[stream\] expected a device"):
        mx.stream("gpu")  # type: ignore[arg-type]


# ---- two devices ----


def test_a_block_of_work_goes_to_the_device(far: Far) -> None:
    x, w = mx.array(X), mx.array(X.T)
    expected = network(x, w)
    found = on(mx.gpu, network, x, w)
    assert place_of(found) == GPU
    assert place_of(expected) is None
    assert bits(found) == bits(expected)
    assert far.plans


def test_the_default_device_is_for_all_threads(far: Far) -> None:
    mx.set_default_device(mx.gpu)
    assert mx.default_device() == GPU
    x = mx.array(X)
    places: list[Any] = []
    thread = threading.Thread(target=lambda: places.append(place_of(x * 2)))
    thread.start()
    thread.join()
    assert [*places, place_of(x + 1)] == [GPU, GPU]
    with mx.stream(mx.cpu):
        assert place_of(x + 2) is None
    mx.set_default_device(mx.cpu)
    assert place_of(x + 3) is None


def test_a_thread_chooses_for_itself(far: Far) -> None:
    x = mx.array(X)
    inside, done = threading.Event(), threading.Event()
    places: list[Any] = []

    def work() -> None:
        with mx.stream(mx.gpu):
            inside.set()
            done.wait(60)
            places.append(place_of(mx.exp(x)))

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(60)
    places.append(place_of(mx.exp(x)))
    done.set()
    thread.join()
    assert places == [None, GPU]


def test_values_cross_as_often_as_the_work_does(far: Far) -> None:
    x = mx.array(X)
    here = mx.sin(x)
    there = on(mx.gpu, lambda: mx.cos(here) * 3 + x)
    back = there - here
    again = on(mx.gpu, lambda: back.sum(axis=0) + there[0])
    assert place_of(again) == GPU
    plain = mx.sin(x)
    plain_there = mx.cos(plain) * 3 + x
    expected = (plain_there - plain).sum(axis=0) + plain_there[0]
    assert bits(again) == bits(expected)


def test_strided_values_cross_as_they_lie(far: Far) -> None:
    x = mx.array(X)
    turned = mx.transpose(x)[3:30:2, ::-1]
    mx.eval(turned)
    found = on(mx.gpu, lambda: (turned * 2, mx.transpose(turned * 3)))
    mx.eval(*found)
    assert [bits(y) for y in found] == [bits(turned * 2), bits(mx.transpose(turned * 3))]
    host = [found[0][1:, ::2] + 1, mx.transpose(found[1])[::2] - 1]
    assert [bits(y) for y in host] == [bits((turned * 2)[1:, ::2] + 1), bits((turned * 3)[::2] - 1)]


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((3, 4), None, (0, 48)),
        ((3, 4), (1, 3), (0, 48)),
        ((3,), (-2,), (-16, 20)),
        ((0, 3), None, (0, 0)),
        ((), (), (0, 4)),
        ((5,), (0,), (0, 4)),
    ],
)
def test_the_bytes_that_elements_take(shape: Any, strides: Any, expected: Any) -> None:
    assert extent(shape, strides, 4) == expected


def test_the_host_reads_what_lies_there(far: Far) -> None:
    x = on(mx.gpu, lambda: mx.array(X) * 2)
    mx.eval(x)
    np.testing.assert_array_equal(np.array(x), X * 2)
    np.testing.assert_array_equal(np.array(x[1:, ::-2]), (X * 2)[1:, ::-2])
    assert x[0, 0].item() == float(X[0, 0]) * 2
    assert memoryview(x).shape == X.shape
    np.testing.assert_array_equal(np.from_dlpack(x), X * 2)
    assert "array(" in repr(x)


def test_updates_are_written_where_the_array_lies(far: Far) -> None:
    x = on(mx.gpu, lambda: mx.array(X) * 2)
    mx.eval(x)
    expected = X * 2
    x[1:3] = mx.array(X[:2])
    mx.eval(x)
    x[0, 5] = 7.0
    expected[1:3], expected[0, 5] = X[:2], 7.0
    assert place_of(x) == (None if config.compare else GPU)  # checked updates are programs like others
    np.testing.assert_array_equal(np.array(x), expected)


def test_memory_of_the_device_is_given_back(far: Far) -> None:
    before = FarStorage.alive
    x = on(mx.gpu, lambda: network(mx.array(X), mx.array(X.T)))
    mx.eval(x)
    assert FarStorage.alive == before + 1
    del x
    assert FarStorage.alive == before


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What WEFT_CHECK=1 does."""
    monkeypatch.setattr(config, "check", config.check)
    before = config.compare
    checking.enable()
    yield
    if not before:
        checking.disable()


def update_state_in_place() -> None:
    state = [mx.zeros((1 << 17,))]

    def step() -> None:
        state[0] = state[0] * 0.5 + 1

    f = mx.compile(step, inputs=state, outputs=state)
    with mx.stream(mx.gpu):
        for _ in range(3):
            f()
        places = set()
        for _ in range(3):
            f()
            places.add(state[0]._node.value.address)
    assert len(places) == 1
    assert places.pop() >= BIAS
    expected = np.zeros(1 << 17, np.float32)
    for _ in range(6):
        expected = expected * np.float32(0.5) + np.float32(1)
    np.testing.assert_array_equal(np.array(state[0]), expected)


def test_state_of_a_compiled_function_is_updated_in_place_there(far: Far) -> None:
    update_state_in_place()


@pytest.mark.usefixtures("checks")
def test_checked_functions_update_their_state_in_place_there(far: Far) -> None:
    update_state_in_place()


@pytest.mark.parametrize("shapeless", [False, True])
def test_compiled_functions_work_there(far: Far, shapeless: bool) -> None:
    f = mx.compile(network, shapeless=shapeless)
    x, w = mx.array(X), mx.array(X.T)
    expected = bits(network(x, w))
    for device in (mx.cpu, mx.gpu, mx.cpu, mx.gpu):
        found = on(device, f, x, w)
        assert place_of(found) == (GPU if device is mx.gpu else None)
        assert bits(found) == expected
    far_x = on(mx.gpu, lambda: x * 1.5)
    assert bits(f(far_x, w)) == bits(network(x * 1.5, w))
    assert f.traces == 2, "where operands lie makes no difference"
    short = mx.array(X[:3])
    assert bits(on(mx.gpu, f, short, w)) == bits(network(short, w))


def test_a_compiled_function_may_use_several_devices(far: Far) -> None:
    def mixed(x: mx.array, scale: float) -> mx.array:
        hidden = mx.sin(x) * scale
        with mx.stream(mx.gpu):
            hidden = hidden @ mx.transpose(x) + scale
        return hidden.sum(axis=0)

    x = mx.array(X)
    f = mx.compile(mixed)
    for scale in (0.5, 0.25):
        expected = ((mx.sin(x) * scale) @ mx.transpose(x) + scale).sum(axis=0)
        assert bits(f(x, scale)) == bits(expected)
    assert any(isinstance(r.executable, Spread) for r in _recipes(f))


def _recipes(f: Any) -> list[Any]:
    return [v.recipe for e in f._variants.values() for vs in e.table.values() for v in vs if v.recipe is not None]


def test_gradients_and_loops_go_along(far: Far) -> None:
    x, w = mx.array(X), mx.array(X.T)

    def loss(w: mx.array) -> mx.array:
        return (network(x, w) ** 2).sum()

    assert bits(on(mx.gpu, mx.grad(loss), w)) == bits(mx.grad(loss)(w))

    def steps(x: mx.array) -> Any:
        last, rows = mx.scan(lambda c, row: (mx.tanh(c * 0.5 + row), c), mx.zeros((40,)), x)
        return last + rows.sum(axis=0)

    assert bits(on(mx.gpu, steps, x)) == bits(steps(x))
    gradient = mx.grad(lambda x: mx.while_loop(lambda c: c.sum() < 1e4, lambda c: c * 1.5 + 1, x).sum())
    assert bits(on(mx.gpu, gradient, x)) == bits(gradient(x))


@pytest.mark.usefixtures("checks")
def test_checked_programs_leave_those_of_a_device_alone(far: Far) -> None:
    x, w = mx.array(X), mx.array(X.T)
    assert bits(on(mx.gpu, network, x, w) + 1) == bits(network(x, w) + 1)


def test_counts_are_made_where_they_are_read(far: Far) -> None:
    found = on(mx.gpu, lambda: mx.arange(40) * mx.array(X))
    assert place_of(found) == GPU
    assert bits(found) == bits(mx.arange(40) * mx.array(X))
    assert not any(
        isinstance(r.executable, Spread) and len(r.executable._parts) > 1 for r in evaluate.programs.PROGRAMS.values()
    )


def test_a_stream_as_an_argument(far: Far) -> None:
    x = mx.array(X)
    total, rounded = _streams.streamed(mx.sum), _streams.streamed(mx.round)
    assert place_of(total(x, stream=mx.gpu)) == GPU
    assert place_of(total(x)) is None
    assert place_of(rounded(x, 1, mx.gpu)) == GPU

    class Owner:
        sum = mx.sum
        other = len

    _streams.honour_streams(Owner)
    assert place_of(Owner.sum(x, axis=0, stream=mx.new_stream(mx.gpu))) == GPU
    assert Owner.other is len


def test_devices_are_counted(far: Far) -> None:
    assert mx.is_available(mx.gpu)
    assert mx.device_count(mx.gpu) == 1
    assert mx.device_info(mx.gpu) == {"device_name": "far"}
    stream = mx.new_stream(mx.gpu)
    mx.set_default_stream(stream)
    assert mx.default_stream(mx.gpu) == stream
    mx.clear_streams()
    assert mx.default_stream(mx.gpu).index == 0
