"""Where arrays of NumPy's lie, as machine code reads it from them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from weft.runtime import ndarrays

BYTES = np.arange(1, 100, dtype=np.uint8)
ARRAYS = {
    "vector": np.arange(5.0),
    "matrix": np.ones((3, 4), np.int16),
    "number": np.array(3.5),
    "empty": np.empty((0, 3)),
    "transposed": np.ones((3, 4)).T,
    "reversed": np.arange(5)[::-1],
    "part": np.arange(24.0).reshape(4, 6)[1:],
    "columns": np.arange(24.0).reshape(4, 6)[:, 1:],
    "not aligned": BYTES[1 - BYTES.ctypes.data % 2 :][:16].view(np.int16),
    "repeated": np.broadcast_to(np.arange(3), (2, 3)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_addresses_are_those_that_numpy_tells(name: str) -> None:
    x = ARRAYS[name]
    plain = x.flags.c_contiguous and x.flags.aligned
    assert ndarrays.plain_address()(x) == (x.ctypes.data if plain else 0)
    assert ndarrays._slowly(x) == ndarrays.plain_address()(x)


@pytest.mark.parametrize("name", ARRAYS)
def test_what_machine_code_reads_from_an_array(name: str) -> None:
    x, found = ARRAYS[name], ndarrays.layout()
    assert found is not None

    def word(kind: type[ctypes.c_int32 | ctypes.c_int64], at: int) -> int:
        return kind.from_address(at).value

    assert word(ctypes.c_int32, id(x) + found.axes) == x.ndim
    assert word(ctypes.c_int64, id(x) + found.dtype) == id(x.dtype)
    sizes = word(ctypes.c_int64, id(x) + found.sizes)
    assert tuple(word(ctypes.c_int64, sizes + 8 * axis) for axis in range(x.ndim)) == x.shape


def test_what_cannot_be_found_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndarrays, "_offset", lambda kind, samples: None)
    monkeypatch.setattr(ndarrays, "layout", ndarrays.layout.__wrapped__)
    assert ndarrays.plain_address.__wrapped__() is ndarrays._slowly
