"""The steps of a transform and their tables, as the kernel reads them (`kernel.py`).

They are made once for a length, a dtype and a form, and stay in memory as long as something holds their address: a
program does, since its argument words do.
"""

from __future__ import annotations

import ctypes
import functools
import math
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
_LONG_COLUMN: Final = 1 << 19
"""Bytes of a column of cells whose stages are two kernels, for the longest vectors."""
_LONG_COLUMN_SHORT: Final = 1 << 21
"""The same for shorter ones, whose stages take longer than their memory does."""
_PIECE: Final = 1 << 18
"""Bytes of cells that all stages of the second one can be made of in the cache."""
_TOGETHER: Final = 1 << 14
"""Those that a unit of the first one takes, about."""


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
    """Steps being written. Each reads one of two halves of the scratch memory and writes the other; what is kept longer
    lies behind them."""

    def __init__(self, size: int, lanes: int, cells: int) -> None:
        self.size, self.lanes = size, lanes
        self.cell = 2 * lanes * size
        self.half = cells * self.cell
        self.here = 0
        self._end = 2 * self.half
        self._words: list[list[int | np.ndarray]] = []

    def keep(self, cells: int = 1) -> int:
        """Where so many cells lie that no stage uses."""
        found, self._end = self._end, self._end + cells * self.cell
        return found

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

    def stages(self, radices: Sequence[int], width: int, count: int = 1, given: int = 0) -> None:
        """The stages of transforms over cells that lie `width` apart, `count` times over. `given`: the first takes what
        the unit is given, in pieces of so many bytes."""
        n, s = int(np.prod(radices, dtype=np.int64)), width
        for radix, table in zip(radices, factors.stage_roots(tuple(radices)), strict=True):
            m = n // radix
            words = (m, s, count, self.numbers_of(table), given)
            if radix in factors.SUMMED:
                roots = self.numbers_of(factors.sum_roots(radix))
                self.add(TransformCode.SUMMED, *words, radix, roots)
            else:
                self.add(TransformCode.STAGE + radix, *words)
            n, s, given = m, s * radix, 0

    def strides(self, radices: Sequence[int], count: int, together: int) -> None:
        """The first stages, of the first `count` radices, for cells in memory that lie as far apart as stages are left
        to do, and lie there again when these are done; so many neighbours together."""
        m, s, last = math.prod(radices[:count]), 1, count - 1
        apart = math.prod(radices[count:])
        for i, table in enumerate(factors.stage_roots(tuple(radices))[:count]):
            m //= radices[i]
            read, write = (self.cell * (apart if i == end else 1) for end in (0, last))
            ends: dict[int, int | np.ndarray] = {7: int(i == 0), 8: write, 9: apart, 10: int(i == last), 11: together}
            self.add(TransformCode.STAGE + radices[i], m, s, read, self.numbers_of(table), at=ends)
            s *= radices[i]

    def center(self, total: int, middle: int, first: int) -> None:
        """What Rader's algorithm does with a prime's first element; offsets of cells."""
        self.add(TransformCode.CENTER, total, middle, first)
        self.here = self.half - self.here

    def turn(self, code: int, rows: int, width: int, *tables: int | np.ndarray, by_row: int, by_block: int) -> None:
        """A turn by a table of factors, or by two."""
        self.add(code, rows, width, 0, *tables, at={9: by_row, 10: by_block})

    def steps_of(self, stride: int) -> np.ndarray:
        """A multiple of a stride for each lane."""
        return np.arange(self.lanes, dtype=np.int64) * stride

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
        return TransformSteps(address, len(self._words), self._end, radices, codes)


def _up(n: int, unit: int) -> int:
    return -(-n // unit)


# ---- lanes are elements of one transform ----


@functools.lru_cache(_KEPT)
def along(n: int, size: int, lanes: int, stored: int, picked: int = 0, put: int = 0) -> TransformSteps:
    """All of a transform of length n, of whose result so many elements are stored. `picked` and `put` are 0 where these
    lie one after the other, else how many numbers of memory an element is."""
    plan = factors.plan(n, size)
    split = plan.split
    assert split.n2 > 1
    recipe = _Recipe(size, lanes, lanes * _up(split.n1, lanes) * _up(split.n2, lanes) + 1)
    if plan.way == "powers":
        _powers_along(recipe, n, split, stored, max(picked, 1), max(put, 1))
        return recipe.finished()
    if picked:
        _move(recipe, TransformCode.PICK, np.arange(n), picked)
    recipe.add(TransformCode.LOAD, split.n1, split.n2, _up(split.n2, lanes), n)
    if plan.way == "stages":
        _halves(recipe, split)
        recipe.add(TransformCode.STORE, split.n2, split.n1, _up(split.n1, lanes), stored)
    else:
        first, middle = _waves(recipe, n, split)
        _multiply(recipe, first, recipe.swap(before=False, after=False))
        _halves(recipe, split)
        _multiply(recipe, middle, recipe.swap(before=False, after=True))
        _halves(recipe, split.swapped)
        _multiply(recipe, first, recipe.swap(before=True, after=False))
        recipe.add(TransformCode.STORE, split.n1, split.n2, _up(split.n2, lanes), stored)
    if put:
        _move(recipe, TransformCode.PUT, np.arange(stored), put)
    return recipe.finished()


def _powers_along(recipe: _Recipe, n: int, split: Split, stored: int, picked: int, put: int) -> None:
    """Rader's algorithm: elements are picked in the order of powers, the first one comes last."""
    lanes, first = recipe.lanes, recipe.keep()
    order = np.append(factors.powers(n), 0)
    _move(recipe, TransformCode.PICK, order, picked)
    recipe.add(TransformCode.LOAD, split.n1, split.n2, _up(split.n2, lanes), n - 1, first)
    _halves(recipe, split)
    total = recipe.here
    table = factors.power_spectrum(n, recipe.size).reshape(split.n2, split.n1)
    _multiply(recipe, recipe.cells_of(table), recipe.swap(before=False, after=False))
    recipe.center(total, recipe.here, first)
    _halves(recipe, split.swapped)
    recipe.add(TransformCode.STORE, split.n1, split.n2, _up(split.n2, lanes), n - 1, first)
    _move(recipe, TransformCode.PUT, _inverted(order)[:stored], put)


def _inverted(order: np.ndarray) -> np.ndarray:
    """The places of 0, 1, ... in an order of them."""
    places = np.empty(order.size, np.int64)
    places[order] = np.arange(order.size)
    return places


def _move(recipe: _Recipe, code: TransformCode, order: np.ndarray, each: int) -> None:
    """Elements in an order, each of which is one number of memory or some."""
    numbers = (order[:, None] * each + np.arange(each)).reshape(-1).astype(np.int64)
    recipe.add(code, numbers.size, numbers)


def _halves(recipe: _Recipe, plan: Split) -> None:
    """Both halves of a transform, over cells of n2 columns that become cells of n1."""
    lanes, cell = recipe.lanes, recipe.cell
    width, turned = _up(plan.n2, lanes), _up(plan.n1, lanes)
    recipe.stages(plan.first, width)
    table = recipe.cells_of(factors.middle_roots(plan.n1, plan.n2))
    recipe.turn(TransformCode.TURN, plan.n1, width, table, by_row=turned * cell, by_block=cell)
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
    plan = factors.plan(n, size)
    split = plan.split
    recipe = _Recipe(size, lanes, lanes * _up(max(split.n, n), lanes))
    memory = _Memory(recipe)
    if plan.way == "stages":
        memory.load(np.arange(n), n, n)
        _interleaved(recipe, split)
        memory.store(_as_left(split), stored)
    elif plan.way == "powers":
        _powers_across(recipe, memory, n, split, stored)
    else:
        memory.load(np.arange(split.n), split.n, n)
        _wave_across(recipe, n, split)
        memory.store(np.arange(split.n), stored)
    return recipe.finished()


class _Memory:
    """The first step and the last one of a kernel across transforms: which cell each element lies in. There are cells
    for one element that is kept, for what nobody reads, and for a square to be turned in."""

    KEPT = -1

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe
        self._square, self._unused, self.first = recipe.keep(recipe.lanes), recipe.keep(), recipe.keep()

    def load(self, places: np.ndarray, points: int, total: int) -> None:
        """`total` elements, and zeros for the other points."""
        self._add(TransformCode.LOAD, places, points, total, self._recipe.half)

    def store(self, places: np.ndarray, total: int) -> None:
        self._add(TransformCode.STORE, places, 0, total, self._recipe.here)

    def _add(self, code: TransformCode, places: np.ndarray, points: int, total: int, half: int) -> None:
        recipe, lanes = self._recipe, self._recipe.lanes
        offsets = np.full(_up(places.size, lanes) * lanes, self._unused, np.int64)
        offsets[: places.size] = np.where(places == self.KEPT, self.first, half + places * recipe.cell)
        recipe.add(code, points, offsets, self._square, total, recipe.steps_of(recipe.cell))


def _powers_across(recipe: _Recipe, memory: _Memory, n: int, split: Split, stored: int) -> None:
    """Rader's algorithm, as along a transform."""
    places = _inverted(np.append(factors.powers(n), 0))
    kept = np.where(places == n - 1, memory.KEPT, places)
    memory.load(kept, n, n)
    _interleaved(recipe, split)
    total = recipe.here
    middle = recipe.numbers_of(factors.power_spectrum(n, recipe.size).reshape(split.n2, split.n1).T)
    _spread(recipe, middle, split.n1, split.n2, recipe.swap(before=False, after=False), turn=True)
    recipe.center(total, recipe.here, memory.first)
    _interleaved(recipe, split.swapped)
    left = _as_left(split.swapped)
    memory.store(np.where(kept == memory.KEPT, memory.KEPT, left[kept]), stored)


def _as_left(plan: Split) -> np.ndarray:
    """The cell of each element, as both halves leave them."""
    k = np.arange(plan.n)
    return k % plan.n1 * plan.n2 + k // plan.n1


def _wave_across(recipe: _Recipe, n: int, plan: Split) -> None:
    """Bluestein's algorithm, over cells in the order of the elements."""
    wave = np.zeros(plan.n, np.clongdouble)
    wave[:n] = factors.chirp(n)
    before = recipe.numbers_of(wave)
    spectrum = factors.chirp_spectrum(n, plan.n, recipe.size)
    _spread(recipe, before, 1, plan.n, recipe.swap(before=False, after=False))
    _interleaved(recipe, plan)
    middle = recipe.numbers_of(spectrum.reshape(plan.n2, plan.n1).T)
    _spread(recipe, middle, plan.n1, plan.n2, recipe.swap(before=False, after=True), turn=True)
    _interleaved(recipe, plan.swapped)
    after = recipe.numbers_of(wave.reshape(plan.n1, plan.n2).T)
    _spread(recipe, after, plan.n2, plan.n1, recipe.swap(before=True, after=False), turn=True)


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


# ---- long transforms, in two kernels or three ----


@dataclass(frozen=True, slots=True)
class Halves:
    """The steps of a long transform's kernels, and the memory between them: `chunk` columns are a unit of the first
    one, of which there are `blocks`; the second has `turned` columns of cells, one for each `stride` bytes. Where these
    are long, their first stages are a kernel in between, of `groups` units for each column, and then a column is
    `pieces` units of the second one."""

    first: TransformSteps
    between: TransformSteps | None
    second: TransformSteps
    chunk: int
    blocks: int
    turned: int
    stride: int
    groups: int
    pieces: int


def _stages_between(radices: Sequence[int], cell: int) -> int:
    """How many of the first stages of a column of cells of so many bytes are a kernel of their own: none if it is
    short, else as few as leave transforms that stay in the cache."""
    if math.prod(radices) * cell < (_LONG_COLUMN if cell >= 128 else _LONG_COLUMN_SHORT):
        return 0
    few = [i for i in range(1, len(radices)) if not set(radices[:i]) & set(factors.SUMMED)]
    return next((i for i in few if math.prod(radices[i:]) * cell <= _PIECE), few[-1] if few else 0)


@functools.lru_cache(_KEPT_LONG)
def halves(
    plan: Split, size: int, lanes: int, given: int, stored: int, wave: int = 0, phase: str = "", alone: bool = False
) -> Halves:
    """A long transform of which so many elements are given (the others are zeros) and stored. `phase` says which
    transform of Bluestein's algorithm for length `wave` it is, "before" or "after" the product with the spectrum.
    `alone`: it is the only one, so all threads share its second half too; one of several stays in a thread's cache."""
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
    tables = (by_block, by_column, by_block.shape[1])
    first.turn(TransformCode.TURN_LONG, n1, width, *tables, by_row=first.cell, by_block=stride)
    count = _stages_between(plan.second, second.cell) if alone else 0
    pieces, apart = math.prod(plan.second[:count]), math.prod(plan.second[count:])
    together = max(1, _TOGETHER // (pieces * second.cell))
    between: _Recipe | None = None
    if count:
        between, second = _Recipe(size, lanes, pieces * together), _Recipe(size, lanes, apart)
        between.strides(plan.second, count, together)
    second.stages(plan.second[count:], 1, given=apart * second.cell)
    if phase:
        values = factors.chirp_spectrum(wave, plan.n, size) if phase == "before" else factors.chirp(wave)
        table = second.cells_of(_row_major(values, n2, n1))
        swap = second.swap(before=False, after=True) if phase == "before" else second.swap(before=True, after=False)
        _multiply(second, table.reshape(apart, pieces * turned, 2, lanes), swap, 1)
    second.add(TransformCode.STORE, apart, pieces * n1, 1, stored, n1)
    groups, middle = _up(apart, together), None if between is None else between.finished()
    return Halves(first.finished(), middle, second.finished(), chunk, blocks, turned, stride, groups, pieces)


def _row_major(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Values, and zeros behind them, as rows."""
    whole = np.zeros(rows * columns, values.dtype)
    whole[: values.size] = values
    return whole.reshape(rows, columns)


def _padded(cells: np.ndarray, width: int) -> np.ndarray:
    """Rows of cells with zeros behind them."""
    more = width - cells.shape[1]
    return cells if not more else np.pad(cells, [(0, 0), (0, more), (0, 0), (0, 0)])
