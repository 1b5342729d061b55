"""What the examples show: a bar while they train, curves as text, and pictures as PNG files (zlib is all they need)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

CONSOLE = Console(highlight=False)
BRAILLE = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""What each of the 4 x 2 dots of a character adds to its code."""
COLOURS = ((31, 119, 180), (214, 39, 40), (44, 160, 44))


class Bar:
    """A progress bar with the latest loss. `for step in Bar("training", 500):`, and `bar.loss(value)` in the loop."""

    def __init__(self, label: str, steps: int) -> None:
        self.label, self.steps, self.losses = label, steps, list[float]()

    def __iter__(self) -> Iterator[int]:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=CONSOLE) as progress:
            task = progress.add_task(self.label, total=self.steps, note="")
            for step in range(self.steps):
                yield step
                note = f"loss {np.mean(self.losses[-20:]):.4f}" if self.losses else ""
                progress.update(task, advance=1, note=note)

    def loss(self, value: float) -> None:
        self.losses.append(value)


def smooth(values: list[float], count: int) -> np.ndarray:
    """As many values as asked for (or fewer, if there are fewer), each the mean of its neighbours."""
    return np.array([chunk.mean() for chunk in np.array_split(np.array(values), min(count, len(values)))])


def curve(title: str, values: list[float], width: int = 64, height: int = 8) -> str:
    """A curve as text: characters of 2 x 4 dots."""
    points = smooth(values, 2 * width)
    low, high = points.min(), points.max()
    rows = np.rint((high - points) / max(high - low, 1e-12) * (4 * height - 1)).astype(int)
    dots = np.zeros((height, 4, (len(points) + 1) // 2, 2), bool)
    for column, row in enumerate(rows):
        before = rows[max(column - 1, 0)]
        for y in range(min(row, before), max(row, before) + 1):
            dots[y // 4, y % 4, column // 2, column % 2] = True
    codes = 0x2800 + (dots * BRAILLE[:, None]).sum(axis=(1, 3))
    labels = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"]
    lines = ["".join(map(chr, line)) for line in codes]
    return "\n".join([title, *(f"{label:>8} ┤{line}" for label, line in zip(labels, lines, strict=True))])


def write_png(path: Path, pixels: np.ndarray) -> Path:
    """Pixels of 0 … 255, (height, width) for grey or (height, width, 3) for colours, as a file."""
    pixels = np.ascontiguousarray(pixels.clip(0, 255).astype(np.uint8))
    height, width = pixels.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    return path


def write_curves(path: Path, *curves: list[float], width: int = 640, height: int = 320) -> Path:
    """Curves over the same steps as a picture: lines on a grid, from the lowest value to the highest."""
    pixels = np.full((height, width, 3), 255)
    pixels[:: height // 8] = pixels[:, :: width // 8] = 230
    lines = [smooth(values, width) for values in curves]
    low, high = min(line.min() for line in lines), max(line.max() for line in lines)
    for line, colour in zip(lines, COLOURS, strict=False):
        points = np.interp(np.linspace(0, len(line) - 1, width), np.arange(len(line)), line)
        rows = np.rint((high - points) / max(high - low, 1e-12) * (height - 3)).astype(int) + 1
        for column, (row, before) in enumerate(zip(rows, [rows[0], *rows[:-1]], strict=True)):
            pixels[min(row, before) - 1 : max(row, before) + 2, column] = colour
    return write_png(path, pixels)


def sheet(images: np.ndarray, columns: int, scale: int = 4) -> np.ndarray:
    """Grey images of 0 … 1, (count, height, width), side by side on one sheet, each pixel `scale` wide."""
    count, height, width = images.shape
    rows = -(-count // columns)
    padded = np.full((rows * columns, height + 1, width + 1), 0.3)
    padded[:count, :height, :width] = images
    grid = padded.reshape(rows, columns, height + 1, width + 1).transpose(0, 2, 1, 3)
    return 255 * grid.reshape(rows * (height + 1), -1).repeat(scale, 0).repeat(scale, 1)


def as_text(image: np.ndarray) -> list[str]:
    """A grey image of 0 … 1 as lines of text, two rows of pixels in one."""
    dark = (image[: len(image) // 2 * 2].reshape(-1, 2, image.shape[1]) > 0.45).astype(int)
    return ["".join(" ▀▄█"[upper + 2 * lower] for upper, lower in zip(*row, strict=True)) for row in dark]
