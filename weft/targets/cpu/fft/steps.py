"""The steps of a transform and their tables, as the kernel reads them (`kernel.py`).

They are made once for a length, a dtype and a form, and stay in memory as long as something holds their address: a
program does, since its argument words do.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from weft.records import dataclass
from weft.targets.cpu.fft import factors
from weft.targets.cpu.fft.factors import Split
from weft.targets.cpu.fft.kernel import WORDS, TransformCode

_ALIGNMENT: Final = 64
_KEPT: Final = 64
"""Recent tables that stay although nothing uses them."""
_KEPT_LONG: Final = 4
"""Those of long transforms, which are large."""


class Address(int):
    """The address of a table, which keeps it in memory."""

    table: np.ndarray


def table_address(values: np.ndarray) -> Address:
    """Where the bytes of an array, copied to aligned memory, lie."""
    raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    room = np.empty(raw.size + _ALIGNMENT, np.uint8)
    shift = -room.ctypes.data % _ALIGNMENT
    room[shift : shift + raw.size] = raw
    found = Address(room.ctypes.data + shift)
    found.table = room
    return found


@dataclass(frozen=True, slots=True)
class TransformSteps:
    """The steps of one unit of a kernel: where they stand, how many, their scratch memory in bytes, and what code they
    need."""

    address: Address
    count: int
    scratch: int
    radices: tuple[int, ...]
    codes: tuple[TransformCode, ...]


class _Recipe:
    """Steps being written. Each reads one of two halves of the scratch memory and writes the other."""

    def __init__(self, size: int, lanes: int, cells: int) -> None:
        self.size, self.lanes = size, lanes
        self.cell = 2 * lanes * size
        self.half = cells * self.cell
        self.here = 0
        self._words: list[list[int | np.ndarray]] = []

    def add(self, code: int, *words: int | np.ndarray, at: dict[int, int | np.ndarray] | None = None) -> None:
        """A step; `words` are those from the third on, `at` others by their numbers."""
        there = self.half - self.here
        row: list[int | np.ndarray] = [code, self.here, there, *words]
        row += [0] * (WORDS - len(row))
        for number, word in (at or {}).items():
            row[number] = word
        self._words.append(row)
        self.here = there

    def cells_of(self, values: np.ndarray) -> np.ndarray:
        """Rows of complex numbers as cells."""
        rows, columns = values.shape
        width = -(-columns // self.lanes)
        parts = np.zeros((rows, width * self.lanes, 2), self.real)
        parts[:, :columns, 0], parts[:, :columns, 1] = values.real, values.imag
        return np.ascontiguousarray(parts.reshape(rows, width, self.lanes, 2).swapaxes(2, 3))

    def numbers_of(self, values: np.ndarray) -> np.ndarray:
        """Complex numbers as pairs."""
        parts = np.empty((*values.shape, 2), self.real)
        parts[..., 0], parts[..., 1] = values.real, values.imag
        return parts

    @property
    def real(self) -> np.dtype:
        return np.dtype(f"f{self.size}")

    def stages(self, radices: Sequence[int], width: int, count: int = 1, given: bool = False) -> None:
        """The stages of transforms over cells that lie `width` apart, `count` times over. `given`: the first takes what
        the unit is given."""
        n, s = int(np.prod(radices, dtype=np.int64)), width
        for radix, table in zip(radices, factors.stage_roots(tuple(radices)), strict=True):
            m = n // radix
            self.add(TransformCode.STAGE + radix, m, s, count, self.numbers_of(table), int(given))
            n, s, given = m, s * radix, False

    def swap(self, before: bool, after: bool) -> dict[int, int | np.ndarray]:
        """Words that say which part of a cell is the real one."""
        low, high = 0, self.cell // 2
        return {
            7: high if before else low, 8: low if before else high,
            9: high if after else low, 10: low if after else high,
        }  # fmt: skip

    def finished(self) -> TransformSteps:
        """The steps in memory, with their tables behind them."""
        end = 8 * WORDS * len(self._words)
        tables: list[tuple[int, np.ndarray]] = []
        places: dict[int, int] = {}
        for row in self._words:
            for word in row:
                if isinstance(word, np.ndarray) and id(word) not in places:
                    end = -(-end // _ALIGNMENT) * _ALIGNMENT
                    places[id(word)] = end
                    tables.append((end, word))
                    end += word.nbytes
        whole = np.zeros(end, np.uint8)
        for at, table in tables:
            whole[at : at + table.nbytes] = np.frombuffer(table.tobytes(), np.uint8)
        address = table_address(whole)
        words = [
            int(address) + places[id(w)] if isinstance(w, np.ndarray) else int(w) for row in self._words for w in row
        ]
        ctypes.memmove(int(address), np.array(words, np.int64).tobytes(), 8 * len(words))
        used = [int(row[0]) for row in self._words]  # type: ignore[arg-type]
        radices = tuple(sorted({code - TransformCode.STAGE for code in used if code > TransformCode.STAGE}))
        codes = tuple(TransformCode(code) for code in sorted({code for code in used if code < TransformCode.STAGE}))
        return TransformSteps(address, len(self._words), 2 * self.half, _family(radices), codes)


def _family(radices: tuple[int, ...]) -> tuple[int, ...]:
    """The radices that one kernel has code for, so that lengths share kernels."""
    for family in ((2, 4, 8), (2, 3, 4, 5, 8), (2, 3, 4, 5, 7, 8)):
        if set(radices) <= set(family):
            return family
    return tuple(sorted({2, 4, 8, *radices}))


def _up(n: int, unit: int) -> int:
    return -(-n // unit)


# ---- lanes are elements of one transform ----


@functools.lru_cache(_KEPT)
def along(n: int, size: int, lanes: int, stored: int) -> TransformSteps:
    """All of a transform of length n, of whose result so many elements are stored."""
    plan = factors.split(n, size)
    wave = plan is None
    if plan is None:
        plan = factors.convolution_length(n, size)
    assert plan.n2 > 1
    recipe = _Recipe(size, lanes, lanes * _up(plan.n1, lanes) * _up(plan.n2, lanes))
    recipe.add(TransformCode.LOAD, plan.n1, plan.n2, _up(plan.n2, lanes), n)
    if not wave:
        _halves(recipe, plan)
        recipe.add(TransformCode.STORE, plan.n2, plan.n1, _up(plan.n1, lanes), stored)
        return recipe.finished()
    first, middle = _waves(recipe, n, plan)
    _multiply(recipe, first, recipe.swap(before=False, after=False))
    _halves(recipe, plan)
    _multiply(recipe, middle, recipe.swap(before=False, after=True))
    _halves(recipe, plan.swapped)
    _multiply(recipe, first, recipe.swap(before=True, after=False))
    recipe.add(TransformCode.STORE, plan.n1, plan.n2, _up(plan.n2, lanes), stored)
    return recipe.finished()


def _halves(recipe: _Recipe, plan: Split) -> None:
    """Both halves of a transform, over cells of n2 columns that become cells of n1."""
    lanes, cell = recipe.lanes, recipe.cell
    width, turned = _up(plan.n2, lanes), _up(plan.n1, lanes)
    recipe.stages(plan.first, width)
    table = recipe.cells_of(factors.middle_roots(plan.n1, plan.n2))
    recipe.add(TransformCode.TURN, plan.n1, width, 0, table, at={9: turned * cell, 10: cell})
    recipe.stages(plan.second, turned)


def _waves(recipe: _Recipe, n: int, plan: Split) -> tuple[np.ndarray, np.ndarray]:
    """The factors of Bluestein's algorithm before and after the convolution, and on its spectrum, as cells."""
    wave = np.zeros(plan.n, np.clongdouble)
    wave[:n] = factors.chirp(n)
    spectrum = factors.chirp_spectrum(n, plan.n, recipe.size)
    return recipe.cells_of(wave.reshape(plan.n1, plan.n2)), recipe.cells_of(spectrum.reshape(plan.n2, plan.n1))


def _multiply(recipe: _Recipe, table: np.ndarray, swap: dict[int, int | np.ndarray], width: int = 0) -> None:
    rows, pitch = table.shape[:2]
    recipe.add(TransformCode.MULTIPLY, rows, width or pitch, pitch, table, at=swap)


# ---- lanes are transforms ----


@functools.lru_cache(_KEPT)
def across(n: int, size: int, lanes: int, stored: int) -> TransformSteps:
    """The same for as many transforms as there are lanes."""
    plan = factors.split(n, size)
    if plan is not None:
        recipe = _Recipe(size, lanes, lanes * _up(plan.n, lanes))
        recipe.add(TransformCode.LOAD, n, 0, 0, n)
        _interleaved(recipe, plan)
        recipe.add(TransformCode.STORE, plan.n1, plan.n2, 0, stored)
        return recipe.finished()
    plan = factors.convolution_length(n, size)
    recipe = _Recipe(size, lanes, lanes * _up(plan.n, lanes))
    recipe.add(TransformCode.LOAD, plan.n, 0, 0, n)
    wave = np.zeros(plan.n, np.clongdouble)
    wave[:n] = factors.chirp(n)
    before = recipe.numbers_of(wave)
    spectrum = factors.chirp_spectrum(n, plan.n, size)
    _spread(recipe, before, 1, plan.n, recipe.swap(before=False, after=False))
    _interleaved(recipe, plan)
    middle = recipe.numbers_of(spectrum.reshape(plan.n2, plan.n1).T)
    _spread(recipe, middle, plan.n1, plan.n2, recipe.swap(before=False, after=True), turn=True)
    _interleaved(recipe, plan.swapped)
    after = recipe.numbers_of(wave.reshape(plan.n1, plan.n2).T)
    _spread(recipe, after, plan.n2, plan.n1, recipe.swap(before=True, after=False), turn=True)
    recipe.add(TransformCode.STORE, plan.n, 1, 0, stored)
    return recipe.finished()


def _interleaved(recipe: _Recipe, plan: Split) -> None:
    """Both halves of a transform over cells that are its elements; element k1 + n1 k2 of the result is cell
    k1 n2 + k2."""
    recipe.stages(plan.first, plan.n2)
    if plan.n2 == 1:
        return
    table = recipe.numbers_of(factors.middle_roots(plan.n1, plan.n2))
    _spread(recipe, table, plan.n1, plan.n2, recipe.swap(before=False, after=False))
    recipe.stages(plan.second, 1, plan.n1)


def _spread(
    recipe: _Recipe, table: np.ndarray, rows: int, columns: int, swap: dict[int, int | np.ndarray], turn: bool = False
) -> None:
    by_row, by_column = (1, rows) if turn else (columns, 1)
    words = {**swap, 11: by_column * recipe.cell}
    recipe.add(TransformCode.SPREAD, rows, columns, by_row * recipe.cell, np.ascontiguousarray(table), at=words)


# ---- long transforms, in two kernels ----


@dataclass(frozen=True, slots=True)
class Halves:
    """The steps of a long transform's two kernels, and the memory between them: `chunk` columns are a unit of the first
    one, of which there are `blocks`; the second has `turned` units, one for each `stride` bytes."""

    first: TransformSteps
    second: TransformSteps
    chunk: int
    blocks: int
    turned: int
    stride: int


@functools.lru_cache(_KEPT_LONG)
def halves(plan: Split, size: int, lanes: int, given: int, stored: int, wave: int = 0, phase: str = "") -> Halves:
    """A long transform of which so many elements are given (the others are zeros) and stored. `phase` says which
    transform of Bluestein's algorithm for length `wave` it is, "before" or "after" the product with the spectrum."""
    n1, n2 = plan.n1, plan.n2
    width = 1 if n1 * 2 * lanes * size > 1 << 17 else 2
    chunk = width * lanes
    blocks, turned = _up(n2, chunk), _up(n1, lanes)
    first, second = _Recipe(size, lanes, n1 * width), _Recipe(size, lanes, n2)
    stride = blocks * chunk * first.cell
    first.add(TransformCode.LOAD, n1, n2, width, given)
    if phase == "before":
        before = first.cells_of(_row_major(factors.chirp(wave), n1, n2))
        _multiply(first, _padded(before, blocks * width), first.swap(before=False, after=False), width)
    first.stages(plan.first, width)
    row, column = np.arange(n1, dtype=np.int64)[:, None], np.arange(64 // size, dtype=np.int64)[None, :]
    starts = np.arange(_up(n2, 64 // size) + 1, dtype=np.int64)[None, :] * (64 // size)
    by_block = first.numbers_of(factors.roots(plan.n, row * starts))
    by_column = first.cells_of(factors.roots(plan.n, row * column))
    first.add(
        TransformCode.TURN_LONG, n1, width, 0, by_block, by_column, by_block.shape[1], at={9: first.cell, 10: stride}
    )  # fmt: skip
    second.stages(plan.second, 1, given=True)
    if phase:
        values = factors.chirp_spectrum(wave, plan.n, size) if phase == "before" else factors.chirp(wave)
        table = second.cells_of(_row_major(values, n2, n1))
        swap = second.swap(before=False, after=True) if phase == "before" else second.swap(before=True, after=False)
        _multiply(second, table, swap, 1)
    second.add(TransformCode.STORE, n2, n1, 1, stored)
    return Halves(first.finished(), second.finished(), chunk, blocks, turned, stride)


def _row_major(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Values, and zeros behind them, as rows."""
    whole = np.zeros(rows * columns, values.dtype)
    whole[: values.size] = values
    return whole.reshape(rows, columns)


def _padded(cells: np.ndarray, width: int) -> np.ndarray:
    """Rows of cells with zeros behind them."""
    more = width - cells.shape[1]
    return cells if not more else np.pad(cells, [(0, 0), (0, more), (0, 0), (0, 0)])
