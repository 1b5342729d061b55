"""Products with quantized matrices: right to a derived bound, and nothing but values, shapes and dtypes moves a bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import same_bits, values_of
from tests.test_matmul_kernels import at_the_edge, layout
from weft import dtypes as dt
from weft.codegen.launch import Pointer
from weft.config import config
from weft.dtypes import Dtype
from weft.llvm import engine
from weft.primitives.indexing import resolved
from weft.primitives.quantized import BITS, FIXED, GROUPS, Packing, Quantize, QuantizedMatmul, numbers_of
from weft.records import replace
from weft.runtime import threads
from weft.runtime.program import Command, CommandKind, Program, Reloc
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.quantized import few, lower
from weft.targets.cpu.quantized import lowering as lowering_of_products

AFFINE = [Packing("affine", group, bits) for group in GROUPS for bits in BITS]
SMALL_FLOATS = [Packing(mode, *options) for mode, options in FIXED.items()]
PACKINGS = [*AFFINE, *SMALL_FLOATS]
QUICK = [p for p in PACKINGS if not p.affine or BITS.index(p.bits) % 3 == GROUPS.index(p.group)]
"""Every number of bits, with one size of groups."""
FOUR_BITS = Packing("affine", 64, 4)
DTYPES = (dt.float32, dt.float16, dt.bfloat16, dt.float64)


@contextmanager
def team_of(count: int) -> Iterator[None]:
    before = threads.set_threads(count)
    try:
        yield
    finally:
        threads.set_threads(before)


@contextmanager
def instructions_of(cpu: str) -> Iterator[None]:
    before = config.cpu
    config.cpu = cpu
    try:
        yield
    finally:
        config.cpu = before


# ---- operands ----


def matrix(seed: int, packing: Packing, shape: tuple[int, ...], dtype: Dtype) -> list[np.ndarray]:
    """Words, scales and biases, all codes possible but those that are NaN."""
    rng = np.random.default_rng(seed)
    *lead, n = shape
    codes = rng.integers(0, 1 << packing.bits, (*lead, n))
    if packing.mode == "mxfp8":
        codes[codes & 0x7F == 0x7F] = 0
    stream = (codes[..., None] >> np.arange(packing.bits) & 1).astype(np.uint8).reshape(*lead, -1)
    words = np.packbits(stream, axis=-1, bitorder="little").view(np.uint32)
    groups = (*lead, n // packing.group)
    if packing.affine:
        return [words, *(rng.normal(size=groups).astype(dtype.np) for _ in range(2))]
    low, high = (0x20, 0x48) if packing.mode == "nvfp4" else (115, 122)
    return [words, rng.integers(low, high, groups).astype(np.uint8)]


def rows(seed: int, shape: tuple[int, ...], dtype: Dtype) -> np.ndarray:
    return np.random.default_rng(seed + 1).normal(size=shape).astype(dtype.np)


def options_of(packing: Packing) -> dict[str, Any]:
    return {"group_size": packing.group, "bits": packing.bits, "mode": packing.mode}


def product(x: np.ndarray, parts: list[np.ndarray], packing: Packing, transpose: bool = True) -> np.ndarray:
    return numpy_of(mx.quantized_matmul(*map(array_of, (x, *parts)), transpose=transpose, **options_of(packing)))


def array_of(x: np.ndarray) -> mx.array:
    return mx.array(x, dt.from_numpy(x.dtype))


def numpy_of(x: mx.array) -> np.ndarray:
    mx.eval(x)
    return np.array(x, copy=True) if x.dtype is not mx.bfloat16 else np.array(x.view(mx.uint16)).view(dt.bfloat16.np)


def check(x: np.ndarray, parts: list[np.ndarray], packing: Packing, transpose: bool, got: np.ndarray) -> None:
    """Within the bound that as many roundings imply as there are terms, relative to the sum of their magnitudes."""
    numbers = numbers_of(packing, *parts)
    sizes = np.abs(numbers)
    if packing.affine:  # codes and offsets are summed apart
        w, scales, biases = parts
        sizes = numbers_of(packing, w, np.abs(scales), np.abs(biases))
    turn = (lambda w: np.swapaxes(w, -1, -2)) if transpose else (lambda w: w)
    want = np.matmul(x.astype(np.float64), turn(numbers))
    size = np.matmul(np.abs(x).astype(np.float64), turn(sizes))
    dtype = dt.from_numpy(x.dtype)
    work = dt.float64 if dtype is dt.float64 else dt.float32
    bound = size * (x.shape[-1] + 8) * dt.finfo(work).eps / 2
    if dtype in dt.HALVES and packing.affine and transpose:  # x is in fixed point, by groups
        groups = np.abs(x.astype(np.float64)).reshape(*x.shape[:-1], -1, packing.group)
        bound += np.matmul(np.repeat(groups.max(-1), packing.group, -1), turn(sizes)) * 2.0**-15
    bound += (np.abs(want) + bound) * dt.finfo(dtype).eps / 2 if dtype in dt.HALVES else 0
    assert got.dtype == x.dtype
    assert got.shape == want.shape
    assert np.all(np.abs(got.astype(np.float64) - want) <= bound + 1e-300)


# ---- right ----


@pytest.mark.parametrize(
    "packing", [pytest.param(p, marks=() if p in QUICK else pytest.mark.slow) for p in PACKINGS], ids=str
)
@pytest.mark.parametrize("transpose", [True, False], ids=["turned", "plain"])
def test_every_packing(packing: Packing, transpose: bool) -> None:
    """A few rows and many; a chunk and a bit more than that; in fixed point, too."""
    n, k = (37, 4096 + packing.group) if transpose else (3 * packing.group, 300)
    for dtype in (dt.float32, dt.bfloat16):
        parts = matrix(0, packing, (n, k) if transpose else (k, n), dtype)
        for m in (3, 17):
            x = rows(m, (m, k), dtype)
            check(x, parts, packing, transpose, product(x, parts, packing, transpose))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("packing", [FOUR_BITS, SMALL_FLOATS[1]], ids=str)
def test_every_dtype(dtype: Dtype, packing: Packing) -> None:
    for transpose, shape in ((True, (21, 192)), (False, (192, 128))):
        parts = matrix(1, packing, shape, dtype)
        for m in (1, 2, 15, 16, 17):
            x = rows(m, (m, 192), dtype)
            check(x, parts, packing, transpose, product(x, parts, packing, transpose))


@settings(max_examples=60, deadline=None)
@given(
    packing=st.sampled_from(QUICK), transpose=st.booleans(), m=st.integers(1, 24),
    n=st.integers(1, 130), groups=st.integers(1, 9), batch=st.integers(1, 3), shared=st.booleans(),
)  # fmt: skip
def test_sizes(packing: Packing, transpose: bool, m: int, n: int, groups: int, batch: int, shared: bool) -> None:
    k = groups * packing.group
    parts = matrix(2, packing, (n, k) if shared else (batch, n, k), dt.float32)
    x = rows(3, (batch, m, k if transpose else n), dt.float32)
    check(x, parts, packing, transpose, product(x, parts, packing, transpose))


def test_batches_are_broadcast() -> None:
    """As caches of quantized keys and values are: one matrix for several heads."""
    for transpose, shape in ((True, (10, 64)), (False, (10, 128))):
        parts = matrix(10, FOUR_BITS, (2, 3, 1, *shape), dt.float32)
        for m in (1, 5, 20):
            for lead in ((2, 3, 4), (1, 3, 4), (4,), ()):
                x = rows(m, (*lead, m, 64 if transpose else 10), dt.float32)
                check(x, parts, FOUR_BITS, transpose, product(x, parts, FOUR_BITS, transpose))
    vector, flat = rows(11, (64,), dt.float32), matrix(11, FOUR_BITS, (10, 64), dt.float32)
    assert same_bits(product(vector, flat, FOUR_BITS), product(vector[None], flat, FOUR_BITS)[0])


@pytest.mark.parametrize("packing", SMALL_FLOATS, ids=str)
@pytest.mark.parametrize("dtype", [dt.float64, dt.float32], ids=lambda d: d.name)
def test_small_floats(packing: Packing, dtype: Dtype) -> None:
    """Every code with every scale (in float32: that overflows nowhere) is exactly the number that it stands for."""
    count = 1 << packing.bits
    codes = np.arange(max(count, packing.group)) % count
    scales = np.arange(256)
    if packing.mode == "mxfp8":
        codes[codes & 0x7F == 0x7F] = 0
    if packing.mode == "nvfp4":
        scales = scales[scales & 0x7F != 0x7F]
    else:
        scales = scales[:255] if dtype is dt.float64 else scales[10:240]
    stream = (codes[:, None] >> np.arange(packing.bits) & 1).astype(np.uint8).reshape(-1)
    words = np.packbits(stream, bitorder="little").view(np.uint32)
    steps = np.tile(scales.astype(np.uint8)[:, None], (1, len(codes) // packing.group))
    parts = [np.tile(words, (len(scales), 1)), steps]
    want = numbers_of(packing, *parts)
    for transpose, whole in ((True, want.T), (False, want)):
        x = np.eye(len(whole), dtype=dtype.np)
        assert np.array_equal(product(x, parts, packing, transpose), whole)
        for i in range(0, len(x), 16):
            assert np.array_equal(product(x[i : i + 16], parts, packing, transpose), whole[i : i + 16])


# ---- the same bits ----


@pytest.mark.parametrize("packing", [FOUR_BITS, Packing("affine", 32, 3), SMALL_FLOATS[0]], ids=str)
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.float16], ids=lambda d: d.name)
def test_bits_depend_on_nothing_else(packing: Packing, dtype: Dtype) -> None:
    """Threads, instructions, layouts, neighbours in a batch, and, among a few, the number of rows."""
    k, n = 4096 + 2 * packing.group, 100
    parts, x = matrix(4, packing, (n, k), dtype), rows(4, (16, k), dtype)
    many = np.concatenate([x, x[:1]])
    few, tiled = product(x, parts, packing), product(many, parts, packing)
    for m in range(1, 16):
        assert same_bits(product(x[:m], parts, packing), few[:m])
    assert same_bits(tiled[0], tiled[16])
    batch = product(np.stack([x, x[::-1]]), [np.stack([p, p]) for p in parts], packing)
    assert same_bits(batch[0], few)
    assert same_bits(batch[1], few[::-1])
    wide = array_of(np.repeat(x, 2, 1))[:, ::2]
    spread = [array_of(np.repeat(p, 3, 1))[:, ::3] for p in parts]
    assert same_bits(numpy_of(mx.quantized_matmul(wide, *spread, **options_of(packing))), few)
    vmapped = mx.vmap(lambda row: mx.quantized_matmul(row[None], *map(array_of, parts), **options_of(packing)))
    assert same_bits(numpy_of(vmapped(array_of(x)))[:, 0], few)
    with team_of(3):
        assert same_bits(product(x, parts, packing), few)
        assert same_bits(product(many, parts, packing), tiled)
    for cpu in ("x86-64-v3", "x86-64-v2"):
        with instructions_of(cpu):
            assert same_bits(product(x, parts, packing), few)
            assert same_bits(product(many, parts, packing), tiled)


def run_alone(x: np.ndarray, parts: list[np.ndarray], packing: Packing, transpose: bool) -> np.ndarray:
    """The kernels on memory as it is given."""
    op = QuantizedMatmul(transpose, packing.mode, packing.group, packing.bits)
    out = np.empty((len(x), parts[0].shape[0] if transpose else parts[1].shape[1] * packing.group), x.dtype)
    lowering = lower(op, [layout(v) for v in (x, *parts)], layout(out))
    codes = engine.load([launch.source for launch in lowering.launches])
    places, words, commands = [], [], []
    for code, launch in zip(codes, lowering.launches, strict=True):
        commands.append(Command(CommandKind.KERNEL, code, len(words), launch.grain, launch.scratch))
        for w in launch.words:
            if isinstance(w, Pointer):
                places.append(Reloc(len(words), 1 + w.value, w.offset))
            words.append(0 if isinstance(w, Pointer) else w)
    made = Program(commands, words, places, 0)
    temporaries = [at_the_edge(np.zeros(size, np.uint8), end=True) for size in lowering.temporaries]
    made.run([v.__array_interface__["data"][0] for v in (x, *parts, out, *temporaries)])
    return out


@pytest.mark.parametrize("packing", QUICK, ids=str)
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16], ids=lambda d: d.name)
def test_one_row_has_the_bits_of_several_that_share_codes(packing: Packing, dtype: Dtype) -> None:
    """Also in rows that end with a part of a vector, and where fewer rows of codes are left than are read together."""
    k = 4096 + 2048 + packing.group
    parts, x = matrix(6, packing, (7, k), dtype), rows(6, (5, k), dtype)
    together = run_alone(x, parts, packing, True)
    assert all(same_bits(together[m : m + 1], run_alone(x[m : m + 1], parts, packing, True)) for m in range(5))


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_begin_with_longer_blocks(threads: int) -> None:
    """Every output is in one block of them."""
    for n in (129, 400, 1000):
        parts, x = matrix(7, FOUR_BITS, (n, 8192), dt.float32), rows(7, (1, 8192), dt.float32)
        alone = product(x, parts, FOUR_BITS)
        with team_of(threads):
            op = QuantizedMatmul(True, FOUR_BITS.mode, FOUR_BITS.group, FOUR_BITS.bits)
            (launch,) = lower(op, [layout(v) for v in (x, *parts)], layout(alone)).launches
            words = dict(zip((word.strip("*") for word in few.WORDS), launch.words, strict=False))
            block, blocks, long, longs = (words[name] for name in ("block", "blocks", "long", "longs"))
            assert longs in (0, threads)
            assert longs or n < 1000
            assert longs * long + (blocks - longs - 1) * block < n <= longs * long + (blocks - longs) * block
            assert same_bits(product(x, parts, FOUR_BITS), alone)


@pytest.mark.parametrize("end", [True, False], ids=["end", "start"])
def test_nothing_is_read_past_the_operands(end: bool) -> None:
    """Operands at the edge of memory, and matrices whose last units fill no vector."""
    packings = (FOUR_BITS, Packing("affine", 32, 2), Packing("affine", 32, 5), Packing("affine", 128, 8), *SMALL_FLOATS)
    for packing, dtype in itertools.product(packings, (dt.float32, dt.bfloat16)):
        for transpose, groups in ((True, 3), (True, 2048 // packing.group), (False, 3)):
            k = groups * packing.group
            parts = [at_the_edge(p, end=end) for p in matrix(5, packing, (7, k), dtype)]
            for m in (1, 3, 20):
                x = at_the_edge(rows(5, (m, k if transpose else 7), dtype), end=end)
                check(x, parts, packing, transpose, run_alone(x, parts, packing, transpose))


# ---- fixed point ----


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("m", [2, 20])
def test_numbers_near_the_largest_of_a_group_are_exact(dtype: Dtype, m: int) -> None:
    """So sums of such numbers times codes, of any size, are those of integers, rounded once."""
    packing, digits = Packing("affine", 32, 2), 8 if dtype is dt.bfloat16 else 11
    w, scales, biases = matrix(13, packing, (40, 32), dtype)
    scales, biases = np.ones_like(scales), np.zeros_like(biases)
    rng = np.random.default_rng(13)
    for power in (-10, 0, 3):
        x = rng.integers(1 << digits - 1, 1 << digits, (m, 32)) * 2.0 ** rng.integers(0, 16 - digits, (m, 32))
        x = (x * rng.choice([-1, 1], x.shape) * 2.0 ** (power - digits)).astype(dtype.np)
        exact = x.astype(np.float64) @ numbers_of(packing, w, scales, biases).T
        assert same_bits(product(x, [w, scales, biases], packing), exact.astype(dtype.np))


@pytest.mark.parametrize("m", [3, 20])
def test_groups_of_all_sizes(m: int) -> None:
    """Zeros, the smallest and the largest numbers; what is not finite makes NaN of its own row alone."""
    packing = FOUR_BITS
    x = rows(14, (m, 256), dt.float32)
    x[0] = 0
    x[1] *= np.float32(2.0**-133)
    x[2, :64], x[2, 64:128], x[2, 128:] = 2.0**-140, 2.0**60, 0
    x = x.astype(dt.bfloat16.np)
    parts = matrix(14, packing, (11, 256), dt.bfloat16)
    sound = product(x, parts, packing)
    numbers = numbers_of(packing, *parts)
    tiny = np.abs(numbers).sum(-1) * 2.0**-126  # steps end there
    assert np.all(sound[0] == 0)
    assert np.all(np.abs(sound[1].astype(np.float64) - x[1].astype(np.float64) @ numbers.T) <= tiny)
    check(x[2:], parts, packing, True, sound[2:])
    for wrong in (np.inf, -np.inf, np.nan):
        spoilt = x.copy()
        spoilt[1, 70] = wrong
        got = product(spoilt, parts, packing)
        assert np.all(np.isnan(got[1].astype(np.float32)))
        assert same_bits(np.delete(got, 1, 0), np.delete(sound, 1, 0))


@pytest.mark.parametrize("m", [2, 40])
@pytest.mark.parametrize("pairs", ["dot", "multiply", "apart"])
def test_pairs_are_multiplied_alike(monkeypatch: pytest.MonkeyPatch, m: int, pairs: str) -> None:
    """With the instructions of this machine and with those that every machine has."""
    packing = Packing("affine", 64, 5)
    x, parts = rows(15, (m, 192), dt.float16), matrix(15, packing, (70, 192), dt.float16)
    want = product(x, parts, packing)
    here = machine(config.cpu)
    if pairs == "dot" and here.pairs != "dot":
        pytest.skip("this processor has no such instruction")
    monkeypatch.setattr(lowering_of_products, "machine", lambda cpu: replace(here, pairs=pairs))
    assert same_bits(run_alone(x, parts, packing, True), want)


# ---- chosen matrices ----


@pytest.mark.parametrize("packing", [FOUR_BITS, SMALL_FLOATS[2]], ids=str)
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("m", [1, 3, 17])
def test_chosen_matrices_are_single_products(packing: Packing, m: int, dtype: Dtype) -> None:
    """To the bit: neighbours that go to one matrix, in any order, change nothing."""
    rng = np.random.default_rng(6)
    parts, x = matrix(6, packing, (5, 24, 128), dtype), rows(6, (7, m, 128), dtype)
    for ordered in (False, True):
        left, right = rng.integers(0, 7, 40), rng.integers(0, 5, 40)
        right = np.sort(right) if ordered else right
        steps = {"biases": array_of(parts[2])} if packing.affine else {}
        got = mx.gather_qmm(
            array_of(x), *map(array_of, parts[:2]), **steps, lhs_indices=mx.array(left), rhs_indices=mx.array(right),
            sorted_indices=ordered, **options_of(packing),
        )  # fmt: skip
        each = [product(x[i], [p[j] for p in parts], packing) for i, j in zip(left, right, strict=True)]
        assert same_bits(numpy_of(got), np.stack(each))


def test_indices_out_of_range_stay_inside() -> None:
    parts, x = matrix(7, FOUR_BITS, (3, 8, 64), dt.float32), rows(7, (2, 1, 64), dt.float32)
    for index in (mx.array([-1, 5, -9]), mx.array([2**32 - 1, 2, 0], mx.uint32)):
        got = numpy_of(mx.gather_qmm(mx.array(x), *map(mx.array, parts), index, index))
        left, right = (resolved(np.array(index), n) for n in (2, 3))
        each = [product(x[i], [p[j] for p in parts], FOUR_BITS) for i, j in zip(left, right, strict=True)]
        assert same_bits(got, np.stack(each))


# ---- derivatives ----


@pytest.mark.parametrize("transpose", [True, False], ids=["turned", "plain"])
@pytest.mark.parametrize("m", [2, 20])
def test_gradients_are_those_of_the_plain_product(transpose: bool, m: int) -> None:
    packing = Packing("affine", 32, 3)
    w, *steps = (mx.array(p) for p in matrix(12, packing, (64, 96), dt.float32))
    x = mx.array(rows(12, (m, 96 if transpose else 64), dt.float32))

    def quantized(x: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
        made = mx.quantized_matmul(x, w, scales, biases, transpose=transpose, **options_of(packing))
        return mx.sum(mx.sin(made / 100))

    def plain(x: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
        numbers = mx.dequantize(w, scales, biases, **options_of(packing))
        return mx.sum(mx.sin(x @ (numbers.T if transpose else numbers) / 100))

    got, want = (mx.grad(f, argnums=(0, 1, 2))(x, *steps) for f in (quantized, plain))
    for a, b in zip(got, want, strict=True):
        assert np.allclose(numpy_of(a), numpy_of(b), rtol=1e-4, atol=1e-4 * np.abs(numpy_of(b)).max())
    compiled = mx.compile(mx.grad(quantized, argnums=(0, 1, 2)))(x, *steps)
    for a, b in zip(got, compiled, strict=True):
        assert same_bits(numpy_of(a), numpy_of(b))


# ---- compile ----


def test_one_program_for_all_sizes() -> None:
    """Shapeless: from one row to many, eager and compiled agree to the bit."""
    for dtype in (dt.float32, dt.bfloat16):
        parts = [array_of(p) for p in matrix(8, FOUR_BITS, (37, 128), dtype)]
        shapeless = mx.compile(lambda x, parts=parts: mx.quantized_matmul(x, *parts) + 1, shapeless=True)
        for m in (3, 1, 8, 9, 64, 16, 2):
            x = array_of(rows(m, (2, m, 128), dtype))
            assert same_bits(numpy_of(shapeless(x)), numpy_of(mx.quantized_matmul(x, *parts) + 1))


def test_no_matrix_of_numbers_is_made() -> None:
    """The product reads codes: what it needs beside them does not grow with the matrix."""
    parts = [mx.array(p) for p in matrix(9, FOUR_BITS, (2048, 1024), dt.float32)]
    x = mx.array(rows(9, (1, 1024), dt.float32))
    mx.eval(x, *parts)
    for some in (x, mx.concatenate([x] * 64)):
        mx.eval(some)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        with team_of(2):  # each thread has scratch memory of its own
            mx.eval(mx.quantized_matmul(some, *parts))
        assert mx.get_peak_memory() - before < 2048 * 1024


@pytest.mark.parametrize("mode", ["affine", *FIXED])
@pytest.mark.parametrize("given", [mx.float32, mx.bfloat16, mx.float64])
def test_numbers_are_rounded_once(mode: str, given: Any) -> None:
    """What dequantize gives is what it computes in float32 (or float64), in every dtype, wherever operands lie."""
    for bits in BITS if mode == "affine" else (FIXED[mode][1],):
        group = 32 if mode == "affine" else FIXED[mode][0]
        matrix = mx.random.normal((2, 5, 96), key=mx.random.key(bits)).astype(given)
        parts = mx.quantize(matrix, group, bits, mode)
        options = {"group_size": group, "bits": bits, "mode": mode}

        def numbers(*parts: mx.array, dtype: Any = None, options: Any = options) -> mx.array:
            return mx.dequantize(parts[0], *parts[1:], dtype=dtype, **options)

        wide = numbers(*parts, dtype=mx.float64 if given is mx.float64 and mode == "affine" else mx.float32)
        for dtype in (mx.float16, mx.bfloat16, mx.float32):
            rounded = numbers(*parts, dtype=dtype)
            assert rounded.dtype is dtype
            assert mx.array_equal(rounded, wide.astype(dtype)).item()
            turned = [mx.contiguous(part.transpose(2, 1, 0)).transpose(2, 1, 0) for part in parts]
            assert mx.array_equal(mx.compile(numbers)(*turned, dtype=dtype), rounded).item()


def test_numbers_have_derivatives_by_scales_and_biases() -> None:
    packed, scales, biases = mx.quantize(mx.random.normal((3, 128), key=mx.random.key(0)).astype(mx.float64), 64, 5)
    c = mx.random.normal((3, 128), key=mx.random.key(1)).astype(mx.float64)
    f = lambda s, b: mx.dequantize(packed, s, b, 64, 5)  # noqa: E731
    tangents = [mx.ones_like(scales), mx.ones_like(biases) * 0.5]
    forward = mx.sum(mx.jvp(f, [scales, biases], tangents)[1][0] * c).item()
    backward = sum(mx.sum(x * t).item() for x, t in zip(mx.vjp(f, [scales, biases], [c])[1], tangents, strict=True))
    assert abs(forward - backward) <= 1e-11 * (1 + abs(forward))


# ---- quantizing ----


def hostile_numbers(packing: Packing) -> np.ndarray:
    """37 groups, which is no multiple of what is taken together: of numbers around ties, of all sizes, of one number,
    with infinities, NaN and zeros of both signs."""
    rng = np.random.default_rng(packing.bits)
    x = rng.standard_normal((37, packing.group)).astype(np.float32)
    steps = rng.integers(0, 2 << min(packing.bits, 4), (8, packing.group)).astype(np.float32) / 2  # ties
    x[:8] = steps * np.float32(2.0) ** np.arange(-4, 4, dtype=np.float32)[:, None]
    x[:8, 0], x[:8, 1] = 0, x[:8].max(-1)
    sizes = (-149, -140, -127, -126, -110, -101, -90, 90, 101, 110, 120, 126)
    for row, size in enumerate(sizes, 8):
        x[row] = np.float32(x[row] / np.abs(x[row]).max()) * np.float32(2.0**size)
    x[20] = 0
    x[21] = -0.0
    x[22] = 3.7
    x[23] = -1e-30
    x[24, 3] = np.inf
    x[25, 3], x[25, 5] = np.inf, -np.inf
    x[26, 7] = np.nan
    x[27] = np.nextafter(x[22], np.float32(np.inf))
    x[27, ::2] = 3.7
    x[28] = np.arange(packing.group) * np.float32(0.1)
    x[29] = np.float32(3.4e38) * np.sign(x[29])
    return x


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_numbers_to_codes(packing: Packing) -> None:
    """To the bit what the definition gives, which divides; whatever instructions there are, in whatever layout."""
    x = hostile_numbers(packing)
    op = Quantize(packing.mode, packing.group, packing.bits)
    for dtype in DTYPES if packing in QUICK else DTYPES[:1]:
        with np.errstate(over="ignore"):
            given = x.astype(dtype.np)
        expected = op.reference(given)
        options = {"group_size": packing.group, "bits": packing.bits, "mode": packing.mode}
        plain = mx.array(given, dtype)
        turned = mx.contiguous(plain.T).T
        for cpu in ("native", "x86-64-v3") if dtype is dt.float32 else ("native",):
            with instructions_of(cpu):
                for w in (plain, turned):
                    for got, wanted in zip(mx.quantize(w, **options), expected, strict=True):
                        assert same_bits(values_of(got), wanted)


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_scales_and_biases_have_derivatives(bits: int) -> None:
    """By the ends of the range alone, of which the farther one is a multiple of the scale."""
    x = mx.array(np.linspace(-1, 2, 32)[None], mx.float64)
    counts = {1: 1.0, 2: -2.0, 8: -170.0}

    def common(x: mx.array) -> list[mx.array]:
        return list(mx.quantize(x, group_size=32, bits=bits)[1:])

    expected = np.zeros((2, 32))
    if bits == 1:
        expected[0, [0, -1]], expected[1, 0] = [-1, 1], 1
    else:
        expected[0, -1], expected[1, -1] = 1 / counts[bits], 1
    for number, by_number in enumerate(expected):
        cotangents = [mx.ones((1, 1), mx.float64) if i == number else mx.zeros((1, 1), mx.float64) for i in range(2)]
        np.testing.assert_allclose(np.array(mx.vjp(common, [x], cotangents)[1][0])[0], by_number, atol=1e-7)
        tangent = mx.array(np.eye(32)[:, None], mx.float64)
        forward = mx.vmap(lambda t: mx.jvp(common, [x], [t])[1][number])(tangent)  # noqa: B023
        np.testing.assert_allclose(np.array(forward).ravel(), by_number, atol=1e-7)
    words = mx.vjp(lambda x: mx.quantize(x, 32, bits)[0].astype(mx.float64), [x], [mx.ones((1, bits), mx.float64)])[1]
    assert not np.array(words[0]).any()


def test_complex_biases_are_refused() -> None:
    w, scales, biases = mx.quantize(mx.ones((2, 64)))
    with pytest.raises(TypeError, match=r"\[quantized_matmul\] biases must be real"):
        mx.quantized_matmul(mx.ones((1, 64)), w, scales, biases.astype(mx.complex64))
