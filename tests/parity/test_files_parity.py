"""Files: what MLX writes Weft reads, and the other way round, bit by bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core")
import weft.core as wx  # noqa: E402

_spec = importlib.util.spec_from_file_location("test_files_samples", Path(__file__).parents[1] / "test_files.py")
assert _spec is not None
assert _spec.loader is not None
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)

NAMES = (
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
    "float32", "complex64",
)  # fmt: skip


def raw(x: Any) -> tuple[str, tuple[int, ...], bytes]:
    m = mx if isinstance(x, mx.array) else wx
    bits = np.array(m.contiguous(x).view(m.uint8)) if x.size else np.zeros(0, np.uint8)
    return str(x.dtype).rpartition(".")[2], tuple(x.shape), bits.tobytes()


def arrays(m: Any) -> dict[str, Any]:
    made = {}
    for name in NAMES:
        values = np.arange(-3, 21).reshape(2, 3, 4)
        made[name] = m.array(values % 2 if name == "bool_" else values).astype(getattr(m, name))
    return made


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "gguf"])
@pytest.mark.parametrize(("writer", "reader"), [(mx, wx), (wx, mx)], ids=["from MLX", "to MLX"])
def test_exchange(kind: str, writer: Any, reader: Any, tmp_path: Path) -> None:
    path = str(tmp_path / f"x.{kind}")
    given = arrays(writer)
    if kind == "npy":
        for name, x in given.items():
            writer.save(path, x)
            assert raw(reader.load(path)) == raw(x), name
        return
    if kind == "npz":
        writer.savez(path, **given)
        found = reader.load(path)
    elif kind == "safetensors":
        writer.save_safetensors(path, given, {"k": "v"})
        found, metadata = reader.load(path, return_metadata=True)
        assert metadata == {"k": "v"}
    else:
        given = {k: v for k, v in given.items() if k in ("int8", "int16", "int32", "float16", "float32")}
        writer.save_gguf(path, given, {"s": "t", "l": ["a", "b"], "n": writer.array([1, 2])})
        found, metadata = reader.load(path, return_metadata=True)
        assert (metadata["s"], metadata["l"], metadata["n"].tolist()) == ("t", ["a", "b"], [1, 2])
    assert {k: raw(v) for k, v in found.items()} == {k: raw(v) for k, v in given.items()}


@pytest.mark.parametrize("kind", [2, 3, 8, 10, 14, 30], ids=lambda k: samples.BLOCKS[k].name)
def test_blocks(kind: int, tmp_path: Path) -> None:
    """Not Q4_K: MLX 0.32 reads every second group of 32 with wrong scales (docs/files.md); tests/test_files.py compares
    it with its definition."""
    path = str(tmp_path / "x.gguf")
    blocks = samples.blocks_of(kind, 4, 512)
    Path(path).write_bytes(samples.gguf_file([("blk.0.weight", (4, 512), kind, blocks)]))
    ours, theirs = wx.load(path), mx.load(path)
    assert ours.keys() == theirs.keys()
    for name in ours:
        (dtype, shape, bits), (other, its_shape, its_bits) = raw(ours[name]), raw(theirs[name])
        assert (dtype, shape) == (other, its_shape)
        if dtype == "float16" and name.endswith("weight"):
            a, b = np.frombuffer(bits, np.float16), np.frombuffer(its_bits, np.float16)
            # One product and one difference in float32 on both sides, rounded twice there and once here.
            assert np.all(np.abs(a.astype(np.float64) - b) <= np.spacing(np.maximum(np.abs(a), np.abs(b))))
        else:
            assert bits == its_bits
