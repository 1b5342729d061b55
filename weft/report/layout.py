"""Layered drawings: where the boxes of a graph stand and how its edges run.

Boxes stand in rows by their longest way from a source, sources right above their first reader. Edges over several rows
pass through points that take part in the ordering like boxes. Rows are ordered by the middle of their neighbours, again
and again, and then pulled straight: each row gets the places nearest to where its neighbours want it that keep its
order (an isotonic regression). All of it is linear in boxes and points, for some thousands of which it takes a second.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GAP, ROW_GAP = 28.0, 40.0
POINT = 10.0
"""Width that an edge takes in a row that it passes."""
LONGEST = 24
"""Rows that an edge is led through point by point; a longer one is drawn straight."""
SWEEPS = 12


@dataclass(frozen=True)
class Drawing:
    """Top left corners of boxes, the points of edges (in the order of the edges given), and the size of it all."""

    places: dict[int, tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float


def draw(sizes: Mapping[int, tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Lay out boxes of these sizes (width, height). `edges` lead from one to another and never in a circle; boxes come
    in an order in which they could be computed."""
    if not sizes:
        return Drawing({}, [], 0.0, 0.0)
    rows = _rows(list(sizes), edges)
    chart = _Chart(sizes, rows, edges)
    for sweep in range(SWEEPS):
        chart.order(down=sweep % 2 == 0)
    for sweep in range(SWEEPS):
        chart.straighten(down=sweep % 2 == 0)
    return chart.drawing()


def _rows(boxes: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    position = {box: i for i, box in enumerate(boxes)}
    into: dict[int, list[int]] = {box: [] for box in boxes}
    out: dict[int, list[int]] = {box: [] for box in boxes}
    for a, b in edges:
        into[b].append(a)
        out[a].append(b)
    rows: dict[int, int] = {}
    for box in sorted(boxes, key=position.__getitem__):
        rows[box] = max((rows[a] + 1 for a in into[box] if a in rows), default=0)
    for box in sorted(boxes, key=position.__getitem__, reverse=True):
        # Down to its first reader, where that makes no edge longer that it does not shorten as well.
        if out[box] and len(into[box]) <= len(out[box]):
            rows[box] = min(rows[b] for b in out[box]) - 1
    return rows


class _Chart:
    """Rows of cells: boxes and points of edges. Cells are numbered; the first are the boxes."""

    def __init__(
        self, sizes: Mapping[int, tuple[float, float]], rows: Mapping[int, int], edges: Sequence[tuple[int, int]]
    ) -> None:
        self.boxes = list(sizes)
        self.heights = [sizes[box][1] for box in self.boxes]
        self.widths = [sizes[box][0] for box in self.boxes]
        cell = {box: i for i, box in enumerate(self.boxes)}
        self.row_of = [rows[box] for box in self.boxes]
        self.up: list[list[int]] = [[] for _ in self.boxes]
        self.down: list[list[int]] = [[] for _ in self.boxes]
        self.routes: list[list[int]] = []
        for a, b in edges:
            self.routes.append(self._route(cell[a], cell[b]))
        self.rows: list[list[int]] = [[] for _ in range(max(self.row_of) + 1)]
        for i, row in enumerate(self.row_of):
            self.rows[row].append(i)
        self.x = [0.0] * len(self.widths)
        self._pack()

    def _route(self, a: int, b: int) -> list[int]:
        span = self.row_of[b] - self.row_of[a]
        if span > LONGEST:
            return [a, b]  # takes no part in the ordering
        route = [a]
        for row in range(self.row_of[a] + 1, self.row_of[b]):
            self.widths.append(POINT)
            self.row_of.append(row)
            self.up.append([])
            self.down.append([])
            route.append(len(self.widths) - 1)
        route.append(b)
        for upper, lower in itertools.pairwise(route):
            self.down[upper].append(lower)
            self.up[lower].append(upper)
        return route

    def _pack(self) -> None:
        for row in self.rows:
            at = 0.0
            for cell in row:
                self.x[cell] = at + self.widths[cell] / 2
                at += self.widths[cell] + GAP

    def order(self, down: bool) -> None:
        """One sweep: every row by the middle of its neighbours in the row before."""
        near = self.up if down else self.down
        for row in self.rows if down else reversed(self.rows):
            place = {cell: float(i) for i, cell in enumerate(row)}
            middle = {c: _median([self.x[n] for n in near[c]]) if near[c] else self.x[c] for c in row}
            row.sort(key=lambda c: (middle[c], place[c]))
            at = 0.0
            for cell in row:
                self.x[cell] = at + self.widths[cell] / 2
                at += self.widths[cell] + GAP
            shift = sum(middle[c] - self.x[c] for c in row) / len(row) if row else 0.0
            for cell in row:
                self.x[cell] += shift

    def straighten(self, down: bool) -> None:
        """One sweep: every row as near as it can be to where its neighbours are, in its order."""
        for row in self.rows if down else reversed(self.rows):
            first = self.up if down else self.down
            wished = []
            for c in row:
                both = self.up[c] + self.down[c]
                wished.append((self._pull(c, first[c] or both) + self._pull(c, both)) / 2)
            offsets, at = [], 0.0
            for i, c in enumerate(row):
                if i:
                    at += (self.widths[row[i - 1]] + self.widths[c]) / 2 + GAP
                offsets.append(at)
            for c, x, offset in zip(
                row, _isotonic([w - o for w, o in zip(wished, offsets, strict=True)]), offsets, strict=True
            ):
                self.x[c] = x + offset

    def _pull(self, cell: int, near: Sequence[int]) -> float:
        """Where neighbours want a cell: boxes that follow each other directly pull most, then a long edge on itself."""
        boxes = len(self.boxes)
        total = weight = 0.0
        for n in near:
            own = 6.0 if n < boxes and cell < boxes else 3.0 if n >= boxes and cell >= boxes else 1.0
            total += own * self.x[n]
            weight += own
        return total / weight if weight else self.x[cell]

    def drawing(self) -> Drawing:
        tall = [max((self.heights[c] for c in row if c < len(self.boxes)), default=0.0) for row in self.rows]
        top, at = [], 0.0
        for height in tall:
            top.append(at)
            at += height + ROW_GAP
        left = min(x - w / 2 for x, w in zip(self.x, self.widths, strict=True))
        places = {}
        for i, box in enumerate(self.boxes):
            middle = top[self.row_of[i]] + (tall[self.row_of[i]] - self.heights[i]) / 2
            places[box] = (round(self.x[i] - self.widths[i] / 2 - left, 1), round(middle, 1))
        routes = [self._points(route, top, tall, places, left) for route in self.routes]
        width = max(x + w / 2 for x, w in zip(self.x, self.widths, strict=True)) - left
        return Drawing(places, routes, round(width, 1), round(max(at - ROW_GAP, 0.0), 1))

    def _points(
        self, route: Sequence[int], top: Sequence[float], tall: Sequence[float],
        places: Mapping[int, tuple[float, float]], left: float,
    ) -> list[tuple[float, float]]:  # fmt: skip
        a, *between, b = route
        start = places[self.boxes[a]]
        points = [(round(start[0] + self.widths[a] / 2, 1), round(start[1] + self.heights[a], 1))]
        for cell in between:
            x, row = round(self.x[cell] - left, 1), self.row_of[cell]
            points += [(x, round(top[row], 1)), (x, round(top[row] + tall[row], 1))]
        end = places[self.boxes[b]]
        points.append((round(end[0] + self.widths[b] / 2, 1), end[1]))
        return points


def _median(values: list[float]) -> float:
    values.sort()
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def _isotonic(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]
