"""Matrix products: right to a derived bound, summed in the specified order, and nothing else moves a bit."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.codegen.launch import Layout, Lowering, Pointer
from weft.config import CPUS, config
from weft.dtypes import Dtype
from weft.errors import ConfigError
from weft.llvm import engine
from weft.runtime import threads
from weft.runtime.program import Command, CommandKind, Program, Reloc
from weft.targets.cpu import matmul, moves
from weft.targets.cpu.matmul import dot, gemm

NUMBERS = tuple(dtype for dtype in dt.ALL if not dtype.is_bool)
GUARD = 64  # bytes on either side of an output that nobody may write

# ---- running ----


def layout(x: np.ndarray) -> Layout:
    return Layout(x.shape, tuple(stride // x.itemsize for stride in x.strides), dt.from_numpy(x.dtype))


def lowered(a: np.ndarray, b: np.ndarray) -> Lowering:
    shape = (*a.shape[:-1], b.shape[-1])
    return matmul.lower(moves.copy, layout(a), layout(b), layout(np.empty(shape, a.dtype)))


def program(lowering: Lowering) -> Program:
    """The launches as a program over the addresses of a, b and out."""
    starts = [0, *itertools.accumulate(-(-size // 64) * 64 for size in lowering.temporaries)]
    commands, words, relocations = [], [], []
    loaded = engine.load([launch.source for launch in lowering.launches])
    for launch, code in zip(lowering.launches, loaded, strict=True):
        commands.append(Command(CommandKind.KERNEL, code, len(words), launch.grain, launch.scratch))
        for word in launch.words:
            if isinstance(word, Pointer) and word.value < 3:
                relocations.append(Reloc(len(words), 1 + word.value, word.offset))
            elif isinstance(word, Pointer):
                relocations.append(Reloc(len(words), 0, starts[word.value - 3] + word.offset))
            words.append(0 if isinstance(word, Pointer) else word)
    return Program(commands, words, relocations, starts[-1])


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b by our kernels, which may write the output and nothing beside it."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = np.broadcast_to(a, batch + a.shape[-2:]), np.broadcast_to(b, batch + b.shape[-2:])
    out_shape = (*batch, a.shape[-2], b.shape[-1])
    memory = np.full(int(np.prod(out_shape)) * a.itemsize + 2 * GUARD, 0xA5, np.uint8)
    out = memory[GUARD:-GUARD].view(a.dtype).reshape(out_shape)
    lowering = lowered(a, b)
    if lowering.launches:
        program(lowering).run([x.__array_interface__["data"][0] for x in (a, b, out)])
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[-GUARD:] == 0xA5).all()
    return out


@contextmanager
def settings_of(**values: object) -> Iterator[None]:
    before = {name: getattr(config, name) for name in values}
    try:
        for name, value in values.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


@contextmanager
def team_of(count: int) -> Iterator[None]:
    before = threads.set_threads(count)
    try:
        yield
    finally:
        threads.set_threads(before)


# ---- operands ----


def draw(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.is_integer:
        info = dt.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype.np, endpoint=True)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.is_complex else x).astype(dtype.np)


def contiguous(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x)


def transposed(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def reversed_(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


def sliced(x: np.ndarray) -> np.ndarray:
    wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2] + 1, 3 * x.shape[-1] + 2), x.dtype)
    wide[..., 1::2, 2::3] = x
    return wide[..., 1::2, 2::3]


def padded(x: np.ndarray) -> np.ndarray:
    wide = np.zeros((*x.shape[:-1], x.shape[-1] + 5), x.dtype)
    wide[..., 3:-2] = x
    return wide[..., 3:-2]


def batch_inside(x: np.ndarray) -> np.ndarray:
    """The batch axes innermost in memory."""
    order = (*range(x.ndim - 2, x.ndim), *range(x.ndim - 2))
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


LAYOUTS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    contiguous, transposed, reversed_, sliced, padded, batch_inside,
)  # fmt: skip


def check(a: np.ndarray, b: np.ndarray, got: np.ndarray) -> None:
    """Integers exactly; inexact numbers within the bound that k roundings imply, whatever their order."""
    dtype, k = dt.from_numpy(a.dtype), a.shape[-1]
    if dtype.is_integer:
        np.testing.assert_array_equal(got, np.matmul(a, b))
        return
    exact = np.longdouble if dtype.size * 8 >= 64 and not dtype.is_complex else np.float64
    wide = np.clongdouble if dtype.is_complex else exact
    want = np.matmul(a.astype(wide), b.astype(wide))
    size = np.matmul(np.abs(a).astype(exact), np.abs(b).astype(exact))
    part = dt.float32 if dtype in dt.HALVES else dt.real_of(dtype)
    unit = dt.finfo(part).eps / 2
    # A term of a complex part is two multiply-adds; the two parts' errors meet at a right angle.
    rounds, angle = (2 * k, 2**0.5) if dtype.is_complex else (k, 1.0)
    bound = angle * (rounds * unit / (1 - rounds * unit)) * size
    if dtype in dt.HALVES:  # and one more rounding, of the sum
        half = dt.finfo(dtype)
        bound = bound + (np.abs(want) + bound) * half.eps / 2 + half.smallest_normal * half.eps
    assert (np.abs(got.astype(wide) - want) <= bound).all()


def assert_same_bits(x: np.ndarray, y: np.ndarray) -> None:
    assert x.shape == y.shape
    assert np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()


# ---- values and layouts ----

# Below, at and past the sizes at which something changes: vectors, tiles, the two orders, chunks.
SIDES = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 49, 70])
DEPTHS = st.sampled_from([0, 1, 2, 5, 15, 16, 17, 63, 64, 65, 127, 128, 200, 255, 256, 257, 513])
BATCHES = st.sampled_from([((), ()), ((2,), (2,)), ((2, 3), (3,)), ((1, 3), (2, 1)), ((3,), ())])


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
@settings(max_examples=40)
@given(
    m=SIDES, n=SIDES, k=DEPTHS, batch=BATCHES, lay_a=st.sampled_from(LAYOUTS), lay_b=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_shape_and_layout(dtype, m, n, k, batch, lay_a, lay_b, seed):
    rng = np.random.default_rng(seed)
    a, b = draw(rng, dtype, (*batch[0], m, k)), draw(rng, dtype, (*batch[1], k, n))
    plain = product(a, b)
    check(a, b, plain)
    assert_same_bits(product(lay_a(a), lay_b(b)), plain)


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 2500, 20), (20, 2500, 1), (5, 2500, 37), (37, 2500, 5), (12, 700, 50), (3, 2500, 8), (2, 2112, 16)],
)
def test_every_pair_of_layouts_has_the_same_bits(dtype, m, k, n):
    rng = np.random.default_rng(0)
    a, b = draw(rng, dtype, (m, k)), draw(rng, dtype, (k, n))
    plain = product(a, b)
    check(a, b, plain)
    for lay_a, lay_b in itertools.product(LAYOUTS[:4], repeat=2):
        assert_same_bits(product(lay_a(a), lay_b(b)), plain)


def test_broadcast_operands():
    rng = np.random.default_rng(1)
    a = np.broadcast_to(draw(rng, dt.float32, (1, 300)), (7, 300))
    b = np.broadcast_to(draw(rng, dt.float32, (300, 1)), (300, 9))
    assert_same_bits(product(a, b), product(contiguous(a), contiguous(b)))
    assert len({x.tobytes() for x in product(a, b).ravel()}) == 1


# ---- the order of sums ----


def multiply_add(x: np.ndarray, y: np.ndarray, total: np.ndarray) -> np.ndarray:
    """fma in float32, exact because factors have 11 significant bits: float64 holds the sum before its one rounding."""
    return (x.astype(np.float64) * y + total).astype(np.float32)


def tiled_order(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    totals = []
    for start in range(0, a.shape[1], gemm.CHUNK):
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for k in range(start, min(start + gemm.CHUNK, a.shape[1])):
            total = multiply_add(a[:, k, None], b[None, k], total)
        totals.append(total)
    return sum(totals[1:], start=totals[0])


def skinny_order(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    totals = []
    for start in range(0, a.shape[1], dot.CHUNK):
        lanes = [np.zeros((a.shape[0], b.shape[1]), np.float32) for _ in range(dot.LANES)]
        for k in range(start, min(start + dot.CHUNK, a.shape[1])):
            lane = (k - start) % dot.LANES
            lanes[lane] = multiply_add(a[:, k, None], b[None, k], lanes[lane])
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [low + high for low, high in zip(lanes[:half], lanes[half:], strict=True)]
        totals.append(lanes[0])
    return sum(totals[1:], start=totals[0])


@pytest.mark.parametrize(
    ("m", "k", "n", "order"),
    [
        (1, 63, 40, tiled_order), (40, 63, 1, tiled_order), (2, 127, 40, tiled_order), (8, 127, 8, tiled_order),
        (9, 900, 9, tiled_order), (50, 256, 60, tiled_order), (9, 257, 33, tiled_order),
        (1, 64, 40, skinny_order), (40, 64, 1, skinny_order), (1, 77, 1, skinny_order), (2, 128, 40, skinny_order),
        (1, 129, 37, skinny_order), (1, 100, 100, skinny_order), (1, 2060, 9, skinny_order),
        (8, 133, 50, skinny_order), (50, 200, 8, skinny_order), (3, 4500, 21, skinny_order), (1, 4096, 5, skinny_order),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lay", [contiguous, transposed])
def test_sums_follow_the_specified_order(m, k, n, order, lay):
    rng = np.random.default_rng(m * k * n)
    a, b = (draw(rng, dt.float16, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    want = order(a, b)
    assert_same_bits(product(a, lay(b)), want)
    assert_same_bits(product(lay(a), b), want)
    other = skinny_order if order is tiled_order else tiled_order
    assert (want != other(a, b)).any()  # the sample tells the orders apart


def test_halves_are_rounded_once():
    rng = np.random.default_rng(2)
    for dtype, (m, k, n) in itertools.product(dt.HALVES, [(20, 600, 30), (3, 2500, 30)]):
        a, b = draw(rng, dtype, (m, k)), draw(rng, dtype, (k, n))
        wide = product(a.astype(np.float32), b.astype(np.float32))
        assert_same_bits(product(a, b), wide.astype(dtype.np))


# ---- where a product stands ----


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.complex64, dt.float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 20, 30), (30, 20, 1), (1, 90, 30), (30, 90, 1), (6, 20, 30), (4, 200, 9)]
)
@pytest.mark.parametrize("shared", ["none", "left", "right"])
def test_a_member_of_a_batch_is_the_product_alone(dtype, m, k, n, shared):
    rng = np.random.default_rng(3)
    a = draw(rng, dtype, ((1,) if shared == "left" else (5,)) + (m, k))
    b = draw(rng, dtype, ((1,) if shared == "right" else (5,)) + (k, n))
    together = product(a, b)
    for i, member in enumerate(together):
        assert_same_bits(member, product(a[i % len(a)], b[i % len(b)]))


@pytest.mark.parametrize(
    ("dtype", "m", "k", "n"),
    [
        (dt.float32, 200, 300, 150), (dt.bfloat16, 150, 300, 200), (dt.complex64, 70, 300, 90),
        (dt.int16, 150, 150, 150), (dt.float32, 1, 600, 700), (dt.float32, 700, 600, 1), (dt.float16, 4, 700, 600),
        (dt.complex64, 500, 600, 3),
        # Here chunks of k are tasks.
        (dt.float32, 16, 20_000, 16), (dt.bfloat16, 9, 20_000, 24), (dt.complex64, 10, 20_000, 10),
        (dt.float32, 1, 300_000, 2), (dt.bfloat16, 3, 200_000, 3), (dt.complex64, 2, 300_000, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lay", [contiguous, transposed])
def test_threads_do_not_change_bits(dtype, m, k, n, lay):
    rng = np.random.default_rng(4)
    a, b = draw(rng, dtype, (m, k)), lay(draw(rng, dtype, (k, n)))
    with team_of(1):
        alone = product(a, b)
    with team_of(2):
        assert lowered(a, b).launches[0].grain > 0  # it is enough work for two
        assert_same_bits(product(a, b), alone)
    check(a, b, alone)


def test_batches_are_shared_by_threads():
    rng = np.random.default_rng(5)
    a, b = draw(rng, dt.float32, (3, 40, 64, 32)), draw(rng, dt.float32, (40, 32, 48))
    with team_of(1):
        alone = product(a, b)
    with team_of(2):
        assert_same_bits(product(a, b), alone)
    check(a, b, alone)


def on_this_machine() -> list[str]:
    found = []
    for cpu in CPUS:
        try:
            with settings_of(cpu=cpu):
                product(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))
            found.append(cpu)
        except ConfigError:  # it lacks these instructions
            pass
    return found


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.complex64, dt.int8], ids=lambda dtype: dtype.name)
def test_levels_and_processors_do_not_change_bits(dtype):
    rng = np.random.default_rng(6)
    operands = [
        (draw(rng, dtype, (m, k)), lay(draw(rng, dtype, (k, n))))
        for (m, k, n), lay in itertools.product(
            [(21, 300, 45), (23, 290, 64), (3, 300, 45), (45, 300, 1)], [contiguous, transposed]
        )
    ]
    plain = [product(a, b) for a, b in operands]
    for cpu, level in [*((cpu, 0) for cpu in on_this_machine()), ("native", 2), ("native", 3)]:
        with settings_of(cpu=cpu, llvm_level=level):
            for (a, b), want in zip(operands, plain, strict=True):
                assert_same_bits(product(a, b), want)


# ---- edges ----


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_empty_sums_are_zero_and_empty_outputs_need_nothing(dtype):
    for m, n in [(3, 5), (1, 1), (1, 20), (20, 1)]:
        got = product(np.zeros((m, 0), dtype.np), np.zeros((0, n), dtype.np))
        assert_same_bits(got, np.zeros((m, n), dtype.np))
    for shape_a, shape_b in [((0, 4), (4, 3)), ((3, 4), (4, 0)), ((0, 2, 3), (0, 3, 2))]:
        assert lowered(np.zeros(shape_a, dtype.np), np.zeros(shape_b, dtype.np)) == Lowering(())


@pytest.mark.parametrize(("m", "k", "n"), [(20, 50, 30), (1, 100, 30), (30, 100, 1), (4, 150, 20)])
@pytest.mark.parametrize("lay", [contiguous, transposed, sliced])
def test_nan_and_infinities_spread(m, k, n, lay):
    rng = np.random.default_rng(7)
    a, b = draw(rng, dt.float32, (m, k)), draw(rng, dt.float32, (k, n))
    a[0, 3], b[3] = np.inf, 0.0  # inf * 0
    b[7, n - 1] = np.nan
    got = product(lay(a), lay(b))
    assert np.isnan(got[0]).all()
    assert np.isnan(got[:, -1]).all()
    assert np.isfinite(got[1:, :-1]).all()
    b[3] = 1.0
    assert (product(lay(a), lay(b))[0, : n - 1] == np.inf).all()


def test_sums_of_negative_zeros():
    """Underflow makes -0, which stays -0 only if nothing is added to it; both layouts and tails must agree."""
    tiny = np.float32(1e-30)
    for m, k, n in [(1, 70, 20), (20, 70, 1), (4, 130, 20), (20, 17, 20)]:
        a, b = np.full((m, k), tiny), np.full((k, n), -tiny)
        plain = product(a, b)
        for lay_a, lay_b in itertools.product(LAYOUTS[:4], repeat=2):
            assert_same_bits(product(lay_a(a), lay_b(b)), plain)


def at_the_edge(x: np.ndarray, *, end: bool) -> np.ndarray:
    """A copy of x in memory that ends where x does, or begins where x does: whoever goes further is stopped."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    inner = -(-x.nbytes // page) * page
    memory = np.frombuffer(mmap.mmap(-1, inner + 2 * page), np.uint8)
    start = memory.__array_interface__["data"][0]
    for edge in (start, start + page + inner):
        assert libc.mprotect(edge, page, 0) == 0  # no access
    first = page + inner - x.nbytes if end else page
    copy = memory[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.int8, dt.complex128], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(3, 5, 7), (19, 37, 50), (1, 90, 21), (21, 90, 1), (5, 131, 9), (90, 3, 1), (90, 13, 1), (1, 2100, 21)],
)
@pytest.mark.parametrize("end", [False, True])
def test_nothing_outside_an_operand_is_read(dtype, m, k, n, end):
    rng = np.random.default_rng(8)
    a, b = draw(rng, dtype, (m, k)), draw(rng, dtype, (k, n))
    want = product(a, b)
    left, right = at_the_edge(a, end=end), at_the_edge(b, end=end)
    assert_same_bits(product(left, right), want)
    left, right = at_the_edge(contiguous(a.T), end=end), at_the_edge(contiguous(b.T), end=end)
    assert_same_bits(product(left.T, right.T), want)
    left, right = at_the_edge(contiguous(a[::-1, ::-1]), end=end), at_the_edge(contiguous(b[::-1, ::-1]), end=end)
    assert_same_bits(product(left[::-1, ::-1], right[::-1, ::-1]), want)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.bfloat16, dt.complex64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("k", [100, 300])
def test_tiles_at_the_ends_of_rows_and_columns(dtype, k):
    """Whatever tile an element is computed in, it has the bits that it has in the middle of a large product."""
    rng = np.random.default_rng(9)
    a, b = draw(rng, dtype, (40, k)), draw(rng, dtype, (k, 104))
    want = product(a, b)
    for m, n in itertools.product((9, 10, 11, 13, 15, 18), (9, 10, 12, 15, 17, 20, 23, 25, 31, 41, 47, 65, 97)):
        assert_same_bits(product(contiguous(a[:m]), contiguous(b[:, :n])), want[:m, :n])
        assert_same_bits(product(a[:m], contiguous(b[:, :n].T).T), want[:m, :n])


# ---- kernels ----


def test_kernels_are_generic_in_sizes():
    def keys(m: int, k: int, n: int, dtype: type, turn: bool) -> list[str]:
        a, b = np.ones((m, k), dtype), np.ones((n, k), dtype).T if turn else np.ones((k, n), dtype)
        return [launch.source.key for launch in lowered(a, b).launches]

    for dtype, turn in itertools.product((np.float32, np.float16, np.int64), (False, True)):
        assert keys(3, 5, 70, dtype, turn) == keys(30, 50, 214, dtype, turn) == keys(9, 2000, 358, dtype, turn)
        assert keys(3, 5, 31, dtype, turn) == keys(9, 2000, 31, dtype, turn)  # some vectors, the last one not whole
        assert keys(9, 5, 384, dtype, turn) == keys(30, 50, 1920, dtype, turn)  # whole panels of every tile
        assert keys(9, 5, 2, dtype, turn) == keys(30, 50, 2, dtype, turn)  # a single vector, or a part of one
        assert keys(1, 70, 33, dtype, turn) == keys(1, 90, 47, dtype, turn)
        assert keys(1, 64, 48, dtype, turn) == keys(1, 128, 32, dtype, turn)  # whole vectors, whole turns
        assert keys(1, 1000, 201, dtype, turn) == keys(1, 5000, 71, dtype, turn)
        assert keys(2, 128, 17, dtype, turn) == keys(8, 1280, 71, dtype, turn)


def test_signed_and_unsigned_integers_share_kernels():
    for signed, unsigned in [(np.int8, np.uint8), (np.int64, np.uint64)]:
        keys = [lowered(np.ones((4, 4), t), np.ones((4, 4), t)).launches[0].source.key for t in (signed, unsigned)]
        assert keys[0] == keys[1]
