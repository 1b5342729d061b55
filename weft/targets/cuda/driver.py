"""The CUDA driver: contexts, memory, modules and launches. The one place that calls `cuda.bindings`.

All work of the process on a GPU goes to one queue (the default stream), in the order in which it is given: so memory
that was given back may be used again at once, and a copy to the host waits for what was to be written.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Sequence
from typing import Any, Final

from weft.runtime.device import Device, DeviceType

_LEAST: Final = (7, 0)
"""The oldest compute capability that kernels are written for."""
_NEWEST: Final = (9, 0)
"""The newest one that LLVM is told of. The driver translates for later GPUs."""

_FORKED: Final[list[int]] = []


def _after_fork() -> None:
    if cuda_gpus.cache_info().currsize:
        _FORKED.append(os.getpid())


os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _driver() -> Any:
    """NVIDIA's bindings; None where they are not installed, or there is no driver."""
    try:
        from cuda.bindings import driver  # late: an extra, and half a second
    except ImportError:
        return None
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError:  # no libcuda
        return None
    return driver if int(status) == 0 else None


class CudaError(RuntimeError):
    """The driver has refused something."""


def _checked(call: str, answer: Sequence[Any]) -> Any:
    """The result of a call of the driver, or its refusal."""
    status, *results = answer
    if int(status):
        name = getattr(status, "name", str(status))
        if name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise MemoryError(f"[{call}] the GPU's memory is used up. Drop arrays, or compute in smaller pieces.")
        raise CudaError(f"[{call}] the CUDA driver answers {name}.")
    return results[0] if len(results) == 1 else tuple(results)


class Gpu:
    """One GPU."""

    def __init__(self, index: int) -> None:
        d = self._d = _driver()
        self.device = Device(DeviceType.gpu, index)
        self._number = _checked("cuDeviceGet", d.cuDeviceGet(index))
        self.name = _checked("cuDeviceGetName", d.cuDeviceGetName(256, self._number)).split(b"\0")[0].decode()
        attribute = d.CUdevice_attribute
        self.capability: tuple[int, int] = (
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.memory: int = int(_checked("cuDeviceTotalMem", d.cuDeviceTotalMem(self._number)))
        self._stream = d.CUstream(0)
        self._threads = threading.local()

    def _attribute(self, which: Any) -> int:
        return int(_checked("cuDeviceGetAttribute", self._d.cuDeviceGetAttribute(which, self._number)))

    @property
    def architecture(self) -> str:
        """The name that LLVM knows it by, or that of the newest one before it."""
        major, minor = min(self.capability, _NEWEST)
        return f"sm_{major}{minor}"

    @functools.cached_property
    def _context(self) -> Any:
        d = self._d
        context = _checked("cuDevicePrimaryCtxRetain", d.cuDevicePrimaryCtxRetain(self._number))
        pool = _checked("cuDeviceGetDefaultMemPool", d.cuDeviceGetDefaultMemPool(self._number))
        keep = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        everything = d.cuuint64_t((1 << 64) - 1)  # memory that is not in use stays in the driver's pool
        _checked("cuMemPoolSetAttribute", d.cuMemPoolSetAttribute(pool, keep, everything))
        return context

    def _enter(self) -> Any:
        """The driver, with this GPU's context current in the calling thread."""
        if _FORKED and _FORKED[-1] == os.getpid():
            raise CudaError("[gpu] CUDA does not work in a forked process whose parent has used it; start it by spawn.")
        if not getattr(self._threads, "ready", False):
            _checked("cuCtxSetCurrent", self._d.cuCtxSetCurrent(self._context))
            self._threads.ready = True
        return self._d

    # ---- memory ----

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""
        d = self._enter()
        return int(_checked("cuMemAllocAsync", d.cuMemAllocAsync(max(1, nbytes), self._stream)))

    def free(self, address: int) -> None:
        """Give memory back, once what was launched before has run."""
        d = self._enter()
        _checked("cuMemFreeAsync", d.cuMemFreeAsync(d.CUdeviceptr(address), self._stream))

    def read(self, address: int, to: int, nbytes: int) -> None:
        """Copy from the GPU to the host, after all that was launched before."""
        d = self._enter()
        if nbytes:
            _checked("cuMemcpyDtoH", d.cuMemcpyDtoH(to, d.CUdeviceptr(address), nbytes))

    def write(self, address: int, source: int, nbytes: int) -> None:
        """Copy from the host to the GPU. The source may be changed afterwards."""
        d = self._enter()
        if nbytes:
            _checked("cuMemcpyHtoD", d.cuMemcpyHtoD(d.CUdeviceptr(address), source, nbytes))

    def synchronize(self) -> None:
        """Wait for all that was launched."""
        d = self._enter()
        _checked("cuStreamSynchronize", d.cuStreamSynchronize(self._stream))

    # ---- code ----

    def function(self, ptx: str, name: str) -> Any:
        """A kernel of a module."""
        d = self._enter()
        module = _checked("cuModuleLoadData", d.cuModuleLoadData(ptx.encode() + b"\0"))
        return _checked("cuModuleGetFunction", d.cuModuleGetFunction(module, name.encode()))

    def launch(self, function: Any, blocks: int, threads: int, words: int) -> None:
        """Run a kernel, whose one parameter is an array of words, at this address."""
        d = self._enter()
        params = (ctypes.c_void_p * 1)(words)
        _checked(
            "cuLaunchKernel",
            d.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, self._stream, ctypes.addressof(params), 0),
        )


@functools.cache
def cuda_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine that kernels can be written for."""
    d = _driver()
    if d is None:
        return ()
    count = int(_checked("cuDeviceGetCount", d.cuDeviceGetCount()))
    return tuple([gpu for gpu in map(Gpu, range(count)) if gpu.capability >= _LEAST])
