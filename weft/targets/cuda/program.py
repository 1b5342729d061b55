"""Programs of a GPU: their commands are launches, which the host gives one after the other to the GPU's queue."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from weft.runtime.buffer import DeviceStorage
from weft.runtime.program import INLINE, Command, Progress, Reloc
from weft.targets.cuda.builder import THREADS
from weft.targets.cuda.driver import Gpu


class CudaStorage(DeviceStorage):
    """Memory of a GPU."""

    __slots__ = ("gpu",)

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self.gpu = gpu
        super().__init__(gpu.device, gpu.allocate(nbytes), nbytes)

    def __del__(self) -> None:
        try:
            self.gpu.free(self.address)
        except (AttributeError, TypeError, RuntimeError):  # nothing was allocated, or the process is ending
            return

    def read(self, address: int, to: int, nbytes: int) -> None:
        self.gpu.read(address, to, nbytes)

    def write(self, address: int, source: int, nbytes: int) -> None:
        self.gpu.write(address, source, nbytes)


class CudaProgram:
    """Launches over a block of argument words. A run is given addresses of the GPU and the words of constants, which
    kernels read from its memory."""

    def __init__(
        self, gpu: Gpu, commands: Sequence[Command], words: Sequence[int], relocations: Sequence[Reloc]
    ) -> None:
        self._gpu = gpu
        self._commands: list[tuple[Any, int, int]] = []
        """Kernel, first argument word, blocks of threads."""
        for command in commands:
            if words[command.first_arg_word]:
                self._commands.append((command.fn, command.first_arg_word, words[command.first_arg_word]))
        self._words = (ctypes.c_int64 * max(1, len(words)))(*words)
        self._relocations = tuple(relocations)
        self._has_constants = any(reloc.buffer == INLINE for reloc in relocations)
        self.length = len(commands)

    def run(self, addresses: Sequence[int], progress: Progress | None = None) -> None:
        """Give all launches to the GPU."""
        if progress is not None:
            progress.in_python = True
            progress.follow(self._run, (addresses,))  # type: ignore[arg-type]
        else:
            self._run(addresses)

    def _run(self, addresses: Sequence[int]) -> int:
        constants = self._constants(addresses) if self._has_constants else None
        words = type(self._words).from_buffer_copy(self._words)
        for word, buffer, offset in self._relocations:
            if buffer == INLINE:
                assert constants is not None
                words[word] = constants.address + offset
            else:
                words[word] = addresses[buffer - 1] + offset
        start = ctypes.addressof(words)
        for function, first, blocks in self._commands:
            self._gpu.launch(function, blocks, THREADS, start + 8 * first)
        return 0

    def _constants(self, addresses: Sequence[int]) -> CudaStorage:
        """What a call gives, in the GPU's memory: kernels find constants there. It is freed after the launches."""
        given = (ctypes.c_uint64 * len(addresses))(*[x & (1 << 64) - 1 for x in addresses])
        storage = CudaStorage(self._gpu, ctypes.sizeof(given))
        storage.write(storage.address, ctypes.addressof(given), ctypes.sizeof(given))
        return storage
