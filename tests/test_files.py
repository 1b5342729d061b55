"""Arrays in files: what is written is read back bit by bit, by others too; what is damaged is an error."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from weft import dtypes as dt
from weft.errors import FileError
from weft.files.gguf_blocks import BLOCKS

DTYPES = dt.ALL
SHAPES = [(), (0, 3), (7,), (2, 3, 4)]
KEPT_BY_SAFETENSORS = [d for d in DTYPES if d is not dt.complex128]
KEPT_BY_GGUF = [dt.float32, dt.float16, dt.int8, dt.int16, dt.int32, dt.int64, dt.float64]


def some(dtype: dt.Dtype, shape: tuple[int, ...], seed: int = 0) -> mx.array:
    """Any bits at all (but for truths)."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape)) * dtype.size
    raw = rng.integers(0, 2 if dtype.is_bool else 256, count, dtype=np.uint8)
    return mx.array(raw).view(dtype).reshape(shape) if count else mx.zeros(shape, dtype)


def bits(x: mx.array) -> tuple[dt.Dtype, tuple[int, ...], bytes]:
    return x.dtype, x.shape, np.asarray(mx.contiguous(x).reshape(-1).view(mx.uint8)).tobytes() if x.size else b""


def same(a: dict[str, mx.array], b: dict[str, mx.array]) -> None:
    assert {k: bits(v) for k, v in a.items()} == {k: bits(v) for k, v in b.items()}


# ---- there and back ----


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_npy(dtype: dt.Dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    x = some(dtype, shape)
    mx.save(tmp_path / "x", x)
    assert bits(mx.load(tmp_path / "x.npy")) == bits(x)
    seen = np.load(tmp_path / "x.npy")
    assert seen.shape == shape
    assert seen.tobytes() == bits(x)[2]
    if dtype is not dt.bfloat16:
        assert seen.dtype == dtype.np
        np.save(tmp_path / "y.npy", seen.copy(order="F"))
        assert bits(mx.load(tmp_path / "y.npy")) == bits(x)
        np.save(tmp_path / "z.npy", seen.astype(seen.dtype.newbyteorder(">")))
        if dtype.kind not in "fc":  # the payload of a NaN may change on NumPy's way to another order
            assert bits(mx.load(tmp_path / "z.npy")) == bits(x)


@pytest.mark.parametrize("save", [mx.savez, mx.savez_compressed])
def test_npz(save: Callable[..., None], tmp_path: Path) -> None:
    arrays = {d.name: some(d, (3, 5), seed) for seed, d in enumerate(DTYPES)}
    save(tmp_path / "x", mx.arange(4), **arrays)
    same(mx.load(str(tmp_path / "x.npz")), {"arr_0": mx.arange(4), **arrays})
    with np.load(tmp_path / "x.npz") as seen:
        assert seen["float32"].tobytes() == bits(arrays["float32"])[2]
    first = (tmp_path / "x.npz").read_bytes()
    save(tmp_path / "x", mx.arange(4), **arrays)
    assert (tmp_path / "x.npz").read_bytes() == first  # no dates in it


def test_npz_names() -> None:
    with pytest.raises(ValueError, match="un-named variables and keyword arr_0"):
        mx.savez(io.BytesIO(), mx.ones(1), arr_0=mx.ones(1))


def test_safetensors(tmp_path: Path) -> None:
    arrays = {f"{d.name} {shape}": some(d, shape) for d in KEPT_BY_SAFETENSORS for shape in SHAPES}
    mx.save_safetensors(tmp_path / "x", arrays, {"who": "weft", "ü": "ö"})
    back, metadata = mx.load(tmp_path / "x.safetensors", return_metadata=True)
    same(back, arrays)
    assert metadata == {"who": "weft", "ü": "ö"}
    plain = {k: v for k, v in arrays.items() if v.dtype not in (dt.bfloat16, dt.complex64)}
    mx.save_safetensors(tmp_path / "y", plain)
    seen = safetensors.numpy.load_file(tmp_path / "y.safetensors")
    assert {k: v.tobytes() for k, v in seen.items()} == {k: bits(v)[2] for k, v in plain.items()}
    safetensors.numpy.save_file(seen, tmp_path / "z.safetensors")
    same(mx.load(tmp_path / "z.safetensors"), plain)


def test_safetensors_are_not_read_or_copied(tmp_path: Path) -> None:
    """A program can hold weights that are larger than the memory that arrays may take."""
    path = tmp_path / "x.safetensors"
    mx.save_safetensors(path, {"w": mx.arange(1 << 20, dtype=mx.float32)})
    before = mx.get_active_memory()
    w = mx.load(path)["w"]
    assert mx.get_active_memory() == before
    assert mx.sum(w[:3]).item() == 3.0
    mx.save_safetensors(path, {"w": mx.zeros(1 << 20)})  # another file under the same name
    assert w[7].item() == 7.0
    w[0] = 5.0
    assert w[0].item() == 5.0
    assert mx.load(path)["w"][0].item() == 0.0


def test_tensors_that_are_not_aligned(tmp_path: Path) -> None:
    header = json.dumps({
        "a": {"dtype": "I8", "shape": [3], "data_offsets": [0, 3]},
        "b": {"dtype": "F32", "shape": [5], "data_offsets": [3, 23]},
        "c": {"dtype": "BOOL", "shape": [2], "data_offsets": [23, 25]},
    }).encode()  # fmt: skip
    body = bytes([1, 2, 255]) + np.arange(5, dtype=np.float32).tobytes() + b"\x07\x00"
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    found = mx.load(tmp_path / "x.safetensors")
    assert found["a"].tolist() == [1, 2, -1]
    assert (found["b"] * 2).tolist() == [0, 2, 4, 6, 8]
    assert found["c"].tolist() == [True, False]
    assert found["c"].astype(mx.int32).tolist() == [1, 0]


def test_gguf(tmp_path: Path) -> None:
    arrays = {f"{d.name} {shape}": some(d, shape) for d in KEPT_BY_GGUF for shape in SHAPES}
    numbers: dict[str, Any] = {f"m{d.name}": some(d, (3,)) for d in DTYPES if d.kind in "biu"}
    numbers |= {"one": mx.array(3, mx.uint16), "f": mx.array([1.5, -2.0]), "t": mx.array(True)}
    mx.save_gguf(tmp_path / "x", arrays, {**numbers, "s": "ä text", "l": ["a", ""], "none": []})
    back, metadata = mx.load(tmp_path / "x.gguf", return_metadata=True)
    same(back, arrays)
    same({k: metadata[k] for k in numbers}, numbers)
    assert {k: metadata[k] for k in ("s", "l", "none")} == {"s": "ä text", "l": ["a", ""], "none": []}


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_open_files(kind: str, tmp_path: Path) -> None:
    x = mx.arange(6).reshape(2, 3).T
    saves: dict[str, Any] = {"npy": mx.save, "npz": mx.savez}
    save = saves.get(kind, lambda f, x: mx.save_safetensors(f, {"arr_0": x}))
    for make in (io.BytesIO, lambda: (tmp_path / f"f.{kind}").open("w+b")):
        with make() as file:
            save(file, x)
            file.seek(0)
            found = mx.load(file, format=kind)
            assert (found if kind == "npy" else found["arr_0"]).tolist() == x.tolist()
    with open(tmp_path / f"f.{kind}", "rb") as named:
        assert mx.load(named) is not None  # by the suffix of its name


def test_arrays_one_after_the_other() -> None:
    file = io.BytesIO()
    for i in range(3):
        mx.save(file, mx.full((i,), i))
    file.seek(0)
    assert [mx.load(file, format="npy").tolist() for _ in range(3)] == [[], [1], [2, 2]]


def test_saving_over_what_was_loaded(tmp_path: Path) -> None:
    for save, name in ((mx.save_safetensors, "x.safetensors"), (mx.save_gguf, "x.gguf")):
        path = tmp_path / name
        save(path, {"w": mx.arange(1000)})
        for _ in range(3):
            save(path, {k: v + 1 for k, v in mx.load(path).items()})
        assert mx.load(path)["w"][0].item() == 3


def test_lazy_arrays_are_saved_and_loaded_ones_transformed(tmp_path: Path) -> None:
    mx.save_safetensors(tmp_path / "x", {"w": mx.arange(8, dtype=mx.float32) / 7})
    w = mx.load(tmp_path / "x.safetensors")["w"]

    def f(w: mx.array) -> mx.array:
        return mx.sum(mx.sin(w) * w)

    assert mx.compile(f)(w).item() == f(w).item()
    assert mx.grad(f)(w).shape == (8,)
    mx.save(tmp_path / "y", mx.sin(w))
    assert bits(mx.load(tmp_path / "y.npy")) == bits(mx.sin(w))


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    mx.save_gguf(tmp_path / "x", {"a": mx.ones(3)})
    before = (tmp_path / "x.gguf").read_bytes()
    with pytest.raises(ValueError, match="bool is not supported"):
        mx.save_gguf(tmp_path / "x", {"a": mx.array([True])})
    with pytest.raises(ValueError, match=r"complex128, .* \.astype"):
        mx.save_safetensors(tmp_path / "y", {"a": mx.zeros(3, mx.complex128)})
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]
    assert (tmp_path / "x.gguf").read_bytes() == before


def test_what_is_no_array_is_refused(tmp_path: Path) -> None:
    for call in (
        lambda: mx.save(tmp_path / "x", [1, 2]),
        lambda: mx.savez(tmp_path / "x", np.ones(3)),
        lambda: mx.save_safetensors(tmp_path / "x", [mx.ones(1)]),
        lambda: mx.save_safetensors(tmp_path / "x", {"a": 1}),
        lambda: mx.save_safetensors(tmp_path / "x", {1: mx.ones(1)}),
        lambda: mx.save_gguf(tmp_path / "x", {"a": mx.ones(1)}, {"m": 3}),
    ):
        with pytest.raises(TypeError, match=r"^\[save"):
            call()
    with pytest.raises(ValueError, match="string keys and values"):
        mx.save_safetensors(tmp_path / "x", {"a": mx.ones(1)}, {"a": 1})
    with pytest.raises(ValueError, match="more than one dimension"):
        mx.save_gguf(tmp_path / "x", {"a": mx.ones(1)}, {"m": mx.ones((2, 2))})
    assert not [*tmp_path.iterdir()]


def test_formats_and_missing_files(tmp_path: Path) -> None:
    for name, problem in (
        ("x", "Could not infer"),
        ("x.txt", "Unknown file format txt"),
        ("x.npy", "Failed to open"),
        ("x.npz", "Failed to open"),
        ("x.safetensors", "Failed to open"),
        ("x.gguf", "Failed to open"),
    ):
        with pytest.raises(ValueError, match=problem):
            mx.load(tmp_path / name)
    with pytest.raises(ValueError, match="metadata not supported for format npy"):
        mx.load(tmp_path / "x.npy", return_metadata=True)
    with pytest.raises(ValueError, match="path or a file"):
        mx.load(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="infer"):
        mx.load(io.BytesIO())
    with pytest.raises(RuntimeError, match="Failed to open"):
        mx.save(tmp_path / "no" / "x", mx.ones(1))
    with pytest.raises(ValueError, match="binary mode"):
        mx.load(io.StringIO("hello"), format="safetensors")  # type: ignore[arg-type]


# ---- quantized blocks ----


def gguf_file(tensors: list[tuple[str, tuple[int, ...], int, bytes]], version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), 0)
    data = b""
    for name, shape, kind, blob in tensors:
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, len(data))
        data += blob + bytes(-len(blob) % 32)
    return head + bytes(-len(head) % 32) + data


def blocks_of(kind: int, rows: int, columns: int, seed: int = 0) -> bytes:
    """Blocks of any bits, but with scales that are no NaN and not too large for sums to be told apart."""
    rng = np.random.default_rng(seed + kind)
    form = BLOCKS[kind]
    count = rows * columns // form.weights
    raw = rng.integers(0, 256, (count, form.nbytes), dtype=np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    halves |= {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "BF16": (0,)}
    for at in halves.get(form.name, ()):
        raw[:, at : at + 2] = rng.normal(size=count).astype(np.float16)[:, None].view(np.uint8)
    if form.name == "Q8_K":
        raw[:, :4] = rng.normal(size=count).astype(np.float32)[:, None].view(np.uint8)
    return raw.tobytes()


def plain_weights(kind: int, block: bytes) -> list[float]:
    """One block by its definition, a weight at a time."""
    name, b = BLOCKS[kind].name, block

    def half(at: int) -> float:
        return float(np.frombuffer(b[at : at + 2], np.float16)[0])

    def signed(n: int) -> int:
        return n - 256 if n > 127 else n

    def sixes(j: int) -> tuple[int, int]:
        s = b[4:16]
        if j < 4:
            return s[j] & 63, s[j + 4] & 63
        return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4

    def nibble(first: int, i: int) -> int:
        return b[first + i % 16] >> 4 * (i // 16) & 15

    def paired(first: int, i: int) -> int:
        return b[first + i // 64 * 32 + i % 32] >> 4 * (i // 32 % 2) & 15

    def crumb(first: int, i: int) -> int:
        return b[first + i // 128 * 32 + i % 32] >> 2 * (i // 32 % 4) & 3

    def three(i: int) -> float:
        g, s = i // 16, b[96:108]
        low = s[g] & 15 if g < 8 else s[g - 8] >> 4
        scale = (low | (s[8 + g % 4] >> 2 * (g // 4) & 3) << 4) - 32
        return half(108) * scale * (crumb(32, i) - (0 if b[i % 32] >> (i // 32) & 1 else 4))

    def six(i: int) -> float:
        half_, j = i // 128, i % 128
        low = b[half_ * 64 + j % 64] >> 4 * (j // 64) & 15
        high = b[128 + half_ * 32 + j % 32] >> 2 * (j // 32) & 3
        return half(208) * signed(b[192 + i // 16]) * ((low | high << 4) - 32)

    def by_sixes(i: int, number: int) -> float:
        scale, least = sixes(i // 32)
        return half(0) * scale * number - half(2) * least

    number: Callable[[int], float] = {
        "Q4_0": lambda i: half(0) * (nibble(2, i) - 8),
        "Q4_1": lambda i: half(0) * nibble(4, i) + half(2),
        "Q5_0": lambda i: half(0) * ((nibble(6, i) | (b[2 + i // 8] >> i % 8 & 1) << 4) - 16),
        "Q5_1": lambda i: half(0) * (nibble(8, i) | (b[4 + i // 8] >> i % 8 & 1) << 4) + half(2),
        "Q8_0": lambda i: half(0) * signed(b[2 + i]),
        "Q8_K": lambda i: float(np.frombuffer(b[:4], np.float32)[0]) * signed(b[4 + i]),
        "Q2_K": lambda i: half(80) * (b[i // 16] & 15) * crumb(16, i) - half(82) * (b[i // 16] >> 4),
        "Q3_K": three,
        "Q4_K": lambda i: by_sixes(i, paired(16, i)),
        "Q5_K": lambda i: by_sixes(i, paired(48, i) | (b[16 + i % 32] >> (i // 32) & 1) << 4),
        "Q6_K": six,
        "BF16": lambda i: float(np.frombuffer(b"\0\0" + b, np.float32)[0]),
    }[name]
    return [number(i) for i in range(BLOCKS[kind].weights)]


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda k: BLOCKS[k].name)
def test_blocks(kind: int, tmp_path: Path) -> None:
    form, shape = BLOCKS[kind], (3, 512)
    raw = blocks_of(kind, *shape)
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_file([("a.weight", shape, kind, raw), ("b", (2,), 0, np.ones(2, np.float32).tobytes())]))
    found = mx.load(path)
    parts = [raw[i : i + form.nbytes] for i in range(0, len(raw), form.nbytes)]
    expected = np.array([plain_weights(kind, part) for part in parts], np.float64).reshape(shape)
    assert found["b"].tolist() == [1, 1]
    if form.name in ("Q4_0", "Q4_1", "Q8_0"):
        width = 8 if form.name == "Q8_0" else 4
        packed, scales, biases = (np.asarray(found[f"a.{n}"]) for n in ("weight", "scales", "biases"))
        assert (packed.dtype, scales.dtype, biases.dtype) == (np.uint32, np.float16, np.float16)
        shifts = np.arange(0, 32, width, dtype=np.uint32)
        numbers = (packed[..., None] >> shifts & (2**width - 1)).reshape(3, 16, 32)
        got = scales[..., None].astype(np.float64) * numbers + biases[..., None].astype(np.float64)
        assert np.array_equal(got.reshape(shape), expected)  # -8 and -128 times a scale are exact
        return
    got = np.asarray(found["a.weight"])
    assert got.dtype == np.float16
    # Products are rounded to float32, then to float16; a difference of two may cancel what is left of them.
    largest = np.abs(expected).reshape(-1, form.weights).max(axis=1).repeat(form.weights).reshape(shape)
    bound = np.abs(expected) * 2.0**-11 + largest * 2.0**-21 + 2.0**-25
    with np.errstate(over="ignore"):
        fits = np.abs(expected) < 65504
    assert np.all(np.abs(got.astype(np.float64) - expected)[fits] <= bound[fits])


# ---- files from strangers ----


def examples() -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    x = {"a": mx.arange(6, dtype=mx.float32).reshape(2, 3), "b": mx.array([True, False]), "c": mx.zeros((0, 2))}
    for name, save in (
        ("npy", lambda f: mx.save(f, x["a"])),
        ("npz", lambda f: mx.savez_compressed(f, **x)),
        ("safetensors", lambda f: mx.save_safetensors(f, x, {"k": "v"})),
        ("gguf", lambda f: mx.save_gguf(f, {"a": x["a"]}, {"s": "t", "l": ["u"], "n": mx.arange(3)})),
    ):
        file = io.BytesIO()
        save(file)
        made[name] = file.getvalue()
    made["gguf blocks"] = gguf_file([("a.weight", (2, 256), k, blocks_of(k, 2, 256)) for k in (2, 12)][:1])
    return made


EXAMPLES = examples()


def attempt(kind: str, contents: bytes) -> None:
    """A damaged file is read as something, or refused; nothing else."""
    try:
        found = mx.load(io.BytesIO(contents), format=kind.partition(" ")[0])
    except FileError:
        return
    for x in found.values() if isinstance(found, dict) else [found]:
        np.asarray(x).tobytes()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_cut_off_anywhere(kind: str) -> None:
    whole = EXAMPLES[kind]
    for end in range(len(whole)):
        attempt(kind, whole[:end])
    with pytest.raises(FileError):
        mx.load(io.BytesIO(whole[: len(whole) // 3]), format=kind.partition(" ")[0])


@pytest.mark.parametrize("kind", EXAMPLES)
@settings(max_examples=150)
@given(data=st.data())
def test_changed_anywhere(kind: str, data: st.DataObject) -> None:
    contents = bytearray(EXAMPLES[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(contents) - 1))
        contents[at] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))
    attempt(kind, bytes(contents))


@settings(max_examples=100)
@given(kind=st.sampled_from(["npy", "npz", "safetensors", "gguf"]), junk=st.binary(max_size=200))
def test_junk(kind: str, junk: bytes) -> None:
    attempt(kind, junk)
    attempt(kind, EXAMPLES[kind][:12] + junk)


def huge_npy() -> bytes:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 16), }\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header


def test_sizes_that_lie_take_no_memory(tmp_path: Path) -> None:
    """A small file that promises terabytes is refused before anything is allocated for them."""
    entry = {"a": {"dtype": "F64", "shape": [1 << 40, 16], "data_offsets": [0, 1 << 47]}}
    text = json.dumps(entry).encode()
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a.npy", huge_npy())
    files = {
        "npy": huge_npy(),
        "npz": zipped.getvalue(),
        "safetensors": len(text).to_bytes(8, "little") + text,
        "gguf": gguf_file([("a", (1 << 40, 256), 0, b"")]),
    }
    mx.reset_peak_memory()
    before = mx.get_peak_memory()
    for kind, contents in files.items():
        (tmp_path / f"x.{kind}").write_bytes(contents)
        for file in (tmp_path / f"x.{kind}", io.BytesIO(contents)):
            with pytest.raises(FileError, match=r"damaged"):
                mx.load(file, format=kind)
    assert mx.get_peak_memory() - before < 1 << 20


def test_what_npy_files_must_not_do(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    for values in (np.array(["a"]), np.zeros(2, [("f", "i4")]), np.zeros(2, "M8[s]"), np.zeros(1, "V3")):
        np.save(tmp_path / "y.npy", values)
        for name in ("x.npy", "y.npy"):
            with pytest.raises(ValueError, match="holds elements of type"):
                mx.load(tmp_path / name)


@pytest.mark.parametrize("header", ["{'shape': (1,)}", "[]", "__import__('os')", "(" * 5000, "{'descr': '<f4', "])
def test_npy_headers_are_not_run(header: str) -> None:
    raw = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode()
    with pytest.raises(FileError, match="header"):
        mx.load(io.BytesIO(raw), format="npy")


def test_a_process_that_dies_while_it_saves_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    mx.save_safetensors(path, {"a": mx.ones(4)})
    program = f"""
import os, weft.core as mx
import weft.files.safetensors as s
real = s.bytes_of
def dying(values):
    os._exit(3)
s.bytes_of = dying
mx.save_safetensors({str(path)!r}, {{"a": mx.zeros(4)}})
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, env=dict(os.environ)).returncode == 3
    assert mx.load(path)["a"].tolist() == [1, 1, 1, 1]


def test_threads_load_and_save(tmp_path: Path) -> None:
    mx.save_safetensors(tmp_path / "x", {"a": mx.zeros(100)})
    wrong: list[Any] = []

    def work(i: int) -> None:
        for _ in range(20):
            found = mx.load(tmp_path / "x.safetensors")["a"]
            if len(set(found.tolist())) != 1:
                wrong.append(found)
            mx.save_safetensors(tmp_path / "x", {"a": mx.full((100,), float(i))})

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
