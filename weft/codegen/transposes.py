"""Squares and strips of elements transposed in registers.

The shuffles are those that machines have: first within quarters of four elements, which is one instruction for every
register whatever its length, then whole quarters. So 8 x 8 float32 take 24 instructions with AVX2, and 16 x 16 take 64
with AVX-512.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.llvm.builder import AnyValue, Builder, Complex, Value

_LANES, _QUARTER = 16, 4


def transposed(b: Builder, rows: Sequence[AnyValue]) -> list[AnyValue]:
    """As many vectors as they have lanes (a power of two), rows and columns exchanged."""
    if isinstance(rows[0], Complex):
        return _by_parts(b, rows, transposed)
    values = _values(rows)
    return list(_square(b, values) if len(values) == _LANES else _blocks(b, values))


def columns_of(b: Builder, rows: Sequence[AnyValue]) -> list[AnyValue]:
    """16 vectors of 2, 4, 8 or 16 lanes as so many of 16 lanes: element i of result j is element j of row i."""
    if isinstance(rows[0], Complex):
        return _by_parts(b, rows, columns_of)
    values, lanes = _values(rows), rows[0].lanes
    if lanes == 2:
        half = _LANES // 2
        front, back = joined(b, values[:half]), joined(b, values[half:])
        return [b.shuffle(front, back, range(column, 2 * _LANES, 2)) for column in range(lanes)]
    if lanes == _LANES:
        return list(_square(b, values))
    if lanes == _QUARTER:
        return list(_quarters(b, [joined(b, values[i::4]) for i in range(4)]))
    pairs = [joined(b, values[i::8]) for i in range(8)]
    first, second = _quarters(b, pairs[:4]), _quarters(b, pairs[4:])
    low = [_picked(b, x, y, (0, 4, 2, 6)) for x, y in zip(first, second, strict=True)]
    return [*low, *(_picked(b, x, y, (1, 5, 3, 7)) for x, y in zip(first, second, strict=True))]


def rows_of(b: Builder, columns: Sequence[AnyValue]) -> list[AnyValue]:
    """The inverse of `columns_of`: 2, 4, 8 or 16 vectors of 16 lanes as 16 vectors of so many lanes."""
    if isinstance(columns[0], Complex):
        return _by_parts(b, columns, rows_of)
    values, lanes = _values(columns), len(columns)
    if lanes == 2:
        return [b.shuffle(values[0], values[1], (row, _LANES + row)) for row in range(_LANES)]
    if lanes == _LANES:
        return list(_square(b, values))
    if lanes == _QUARTER:
        turned = _quarters(b, values)
        return [b.shuffle(turned[i % 4], None, range(i // 4 * 4, i // 4 * 4 + 4)) for i in range(_LANES)]
    pairs = list(zip(values[:4], values[4:], strict=True))
    turned = _quarters(b, [_picked(b, x, y, (0, 4, 2, 6)) for x, y in pairs])
    turned += _quarters(b, [_picked(b, x, y, (1, 5, 3, 7)) for x, y in pairs])
    return [b.shuffle(turned[i % 8], None, range(i // 8 * 8, i // 8 * 8 + 8)) for i in range(_LANES)]


# ---- parts ----


def _by_parts(b: Builder, given: Sequence[AnyValue], turn: object) -> list[AnyValue]:
    re = turn(b, [x.re for x in given if isinstance(x, Complex)])  # type: ignore[operator]
    im = turn(b, [x.im for x in given if isinstance(x, Complex)])  # type: ignore[operator]
    return [Complex(x, y) for x, y in zip(re, im, strict=True)]


def _values(given: Sequence[AnyValue]) -> list[Value]:
    return [x for x in given if isinstance(x, Value)]


def joined(b: Builder, parts: Sequence[Value]) -> Value:
    """Vectors one after the other; a power of two of them."""
    while len(parts) > 1:
        order = range(2 * parts[0].lanes)
        parts = [b.shuffle(x, y, order) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _picked(b: Builder, x: Value, y: Value, quarters: Sequence[int]) -> Value:
    """Quarters of two vectors of 16 lanes; those of the second one are numbered from 4 on."""
    return b.shuffle(x, y, [q * _QUARTER + i for q in quarters for i in range(_QUARTER)])


def _quarters(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """Four vectors: within every quarter, rows and columns are exchanged."""
    lanes = rows[0].lanes

    def within(order: tuple[int, ...]) -> list[int]:
        return [at + (i if i < 4 else lanes + i - 4) for at in range(0, lanes, 4) for i in order]

    singles, pairs = (within((0, 4, 1, 5)), within((2, 6, 3, 7))), (within((0, 1, 4, 5)), within((2, 3, 6, 7)))
    a, c = (b.shuffle(rows[0], rows[1], order) for order in singles)
    d, e = (b.shuffle(rows[2], rows[3], order) for order in singles)
    return [b.shuffle(x, y, order) for x, y in ((a, d), (c, e)) for order in pairs]


def _square(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """16 vectors of 16 lanes."""
    turned = [_quarters(b, rows[i : i + 4]) for i in range(0, _LANES, 4)]
    found: dict[int, Value] = {}
    for c in range(4):
        one, two, three, four = (part[c] for part in turned)
        for half, order in enumerate(((0, 1, 4, 5), (2, 3, 6, 7))):
            x, y = _picked(b, one, two, order), _picked(b, three, four, order)
            found[8 * half + c] = _picked(b, x, y, (0, 2, 4, 6))
            found[8 * half + 4 + c] = _picked(b, x, y, (1, 3, 5, 7))
    return [found[i] for i in range(_LANES)]


def _blocks(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """Rounds that exchange blocks of `step` elements between rows that lie `step` apart; quarters in one go."""
    lanes, step = len(rows), 1
    if lanes >= _QUARTER:
        rows, step = [x for i in range(0, lanes, 4) for x in _quarters(b, rows[i : i + 4])], _QUARTER
    while step < lanes:
        low = [i if not i & step else lanes + i - step for i in range(lanes)]
        high = [i + step if not i & step else lanes + i for i in range(lanes)]
        after = list(rows)
        for r in (r for r in range(lanes) if not r & step):
            after[r] = b.shuffle(rows[r], rows[r + step], low)
            after[r + step] = b.shuffle(rows[r], rows[r + step], high)
        rows, step = after, 2 * step
    return list(rows)
