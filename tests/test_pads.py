"""Padding with a number: rows of every length, gaps on every side, operands in every layout, as NumPy pads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import LAYOUTS, place, same_bits, values_of
from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.primitives.elementwise import draw

WIDTHS: dict[str, tuple[tuple[int, ...], Any]] = {
    "a vector": ((40_000,), ((3, 5),)),
    "short rows": ((9000, 3), ((1, 2), (2, 1))),
    "short rows, at their ends alone": ((9000, 5), ((0, 0), (0, 3))),
    "short rows in several blocks": ((4, 3000, 3), ((1, 0), (2, 2), (1, 0))),
    "short rows with long gaps": ((2000, 3), ((0, 0), (90, 0))),
    "long rows": ((70, 900), ((2, 0), (1, 1))),
    "images": ((3, 40, 50, 7), ((0, 0), (2, 2), (1, 1), (0, 0))),
    "one row": ((1, 40_000), ((1, 1), (1, 1))),
    "one column": ((40_000, 1), ((1, 1), (1, 1))),
    "rows alone": ((5, 9000), ((2, 3), (0, 0))),
    "little": ((3, 4), ((1, 1), (1, 1))),
}


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("dtype", [dt.int8, dt.float32, dt.complex64], ids=str)
def test_pad(name: str, dtype: Dtype) -> None:
    shape, widths = WIDTHS[name]
    for layout in sorted(LAYOUTS):
        arrange, shift = LAYOUTS[layout]
        x = place(arrange(draw(np.random.default_rng(1), dtype, shape, -2.0, 2.0)), shift)
        for value in (0, 7):
            wanted = np.pad(np.ascontiguousarray(values_of(x)), widths, constant_values=value)
            assert same_bits(np.ascontiguousarray(values_of(mx.pad(x, widths, constant_values=value))), wanted), layout


def test_pads_of_many_sizes_share_a_program() -> None:
    padded = mx.compile(lambda x: mx.pad(x, ((1, 2), (0, 3))), shapeless=True)
    for rows, columns in ((3000, 4), (2999, 5), (70, 900), (71, 901), (3, 4)):
        x = mx.random.normal((rows, columns))
        assert same_bits(np.array(padded(x)), np.pad(np.array(x), ((1, 2), (0, 3))))
