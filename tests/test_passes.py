"""Each pass by itself, as text: the graph it was given, the graph (or plan) it made. A change of a pass shows here as a
change of its output."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import graph
from weft import dtypes as dt
from weft.graph.node import Graph, Node, kind_of
from weft.graph.show import show, show_kind
from weft.passes import simplify as simplification
from weft.passes.cse import cse
from weft.passes.fuse import fuse
from weft.passes.orders import keep_orders
from weft.passes.pipeline import PASSES, plan
from weft.passes.show import show_plan
from weft.passes.simplify import simplify
from weft.passes.verify import VerifyError, verify_graph
from weft.passes.views import Strided, compose_views, contiguous, reshape_strides
from weft.primitives.base import Constant, Parameter, bind, constant, full_like
from weft.primitives.contraction import Matmul
from weft.primitives.creation import Extent, Iota
from weft.primitives.elementwise import AsType, Conjugate, Identity, Imag, Real, StopGradient, astype, exp, select, sin
from weft.primitives.indexing import Gather
from weft.primitives.joins import Concatenate
from weft.primitives.linalg.implicit import Implicit
from weft.primitives.reductions import ArgMax, Max, Prod, Sum
from weft.primitives.scans import CumMax, CumSum
from weft.primitives.sorting import ArgPartition, ArgSelect, ArgSort, Sort
from weft.primitives.views import Broadcast, Reshape, Slice, SliceUpdate, reshape, restore_axes, transpose
from weft.targets import CPU
from weft.targets.cpu.target import Cpu

M = (4, 8)


def text(expected: str) -> str:
    return dedent(expected).strip()


def body(graph: Graph) -> str:
    """The lines between the braces."""
    return "\n".join(line[2:] for line in show(graph).splitlines()[1:-1])


# ---- the text form itself ----


def test_show() -> None:
    made = graph(lambda x, y: [bind(Sum((1,)), exp(x) * x), y], M, ((3,), dt.uint8))
    assert show(made) == text(
        """
        graph(%0: f32[4, 8], %1: u8[3]) {
          %2 = exp %0 : f32[4, 8]
          %3 = multiply %2, %0 : f32[4, 8]
          %4 = sum(axes=(1,)) %3 : f32[4]
          return %4, %1
        }
        """
    )


def test_kinds_are_short_and_all_different() -> None:
    shown = [show_kind(kind_of((2,), d)) for d in dt.ALL]
    assert shown == [
        "bool[2]", "u8[2]", "u16[2]", "u32[2]", "u64[2]", "i8[2]", "i16[2]", "i32[2]", "i64[2]",
        "f16[2]", "bf16[2]", "f32[2]", "f64[2]", "c64[2]", "c128[2]",
    ]  # fmt: skip


# ---- common subexpressions ----


def test_cse_merges_what_is_computed_twice() -> None:
    made = graph(lambda x, y: (exp(x + y) * exp(x + y)) + (y + x), M, M)
    assert body(cse(made)) == text(
        """
        %2 = add %0, %1 : f32[4, 8]
        %3 = exp %2 : f32[4, 8]
        %4 = add %1, %0 : f32[4, 8]
        %5 = multiply %3, %3 : f32[4, 8]
        %6 = add %5, %4 : f32[4, 8]
        return %6
        """
    )


def test_cse_merges_zeros_and_ones_but_not_run_time_numbers() -> None:
    """Other constants are words of a call: they may differ the next time the program runs."""
    made = graph(lambda x: [(x + full_like(x, n)) * (x + full_like(x, n)) for n in (0, 1, 2.5)], (3,))
    assert body(cse(made)) == text(
        """
        %1 = constant(special=0) : f32[3]
        %2 = add %0, %1 : f32[3]
        %3 = constant(special=1) : f32[3]
        %4 = add %0, %3 : f32[3]
        %5 = constant(special=None) : f32[3]
        %6 = add %0, %5 : f32[3]
        %7 = constant(special=None) : f32[3]
        %8 = add %0, %7 : f32[3]
        %9 = multiply %6, %8 : f32[3]
        %10 = multiply %2, %2 : f32[3]
        %11 = multiply %4, %4 : f32[3]
        return %10, %11, %9
        """
    )


def test_cse_keeps_kinds_apart() -> None:
    made = graph(lambda x: [astype(x, dt.int32), astype(x, dt.int8), bind(Sum((0,)), x), bind(Sum((1,)), x)], M)
    assert len(cse(made).order()) == 5


def test_cse_keeps_parameters_and_the_order_of_results() -> None:
    made = graph(lambda x, y: [x + y, x, x + y], M, M)
    assert body(cse(made)) == "%2 = add %0, %1 : f32[4, 8]\nreturn %2, %0, %2"


# ---- simplification ----

NUMBER, WHOLE, PAIR, TRUTH = dt.float32, dt.int32, dt.complex64, dt.bool_


def one(x: Node) -> Node:
    return full_like(x, 1)


def zero(x: Node) -> Node:
    return full_like(x, 0)


def minus(x: Node) -> Node:
    return -x


# rule -> [(dtype of x, expression in x, what becomes of it)]; "x" means that x itself is left.
GOLDEN: dict[str, list[tuple[dt.Dtype, Callable[[Node], Node], str]]] = {
    "drop_identity": [
        (NUMBER, lambda x: bind(Identity(), x), "x"),
        (NUMBER, lambda x: bind(StopGradient(), bind(Identity(), x)), "x"),
    ],
    "drop_update_of_everything": [
        (NUMBER, lambda x: bind(SliceUpdate((0, 0), (1, 1)), x, sin(x)), "sin x"),
        # Turned round, or one row short of all, something of x or of its order is left.
        (NUMBER, lambda x: bind(SliceUpdate((3, 0), (-1, 1)), x, sin(x)),
         "slice_update(starts=(3, 0), steps=(-1, 1)) x sin x"),
        (NUMBER, lambda x: bind(SliceUpdate((0, 0), (1, 1)), x, sin(bind(Slice((1, 0), (3, 4), (1, 1)), x))),
         "slice_update(starts=(0, 0), steps=(1, 1)) x sin slice(starts=(1, 0), sizes=(3, 4), steps=(1, 1)) x"),
    ],
    "drop_update_with_itself": [
        (NUMBER, lambda x: bind(SliceUpdate((1, 0), (1, 1)), x, bind(Slice((1, 0), (2, 4), (1, 1)), x)), "x"),
        # Another place, or another array, is an update.
        (NUMBER, lambda x: bind(SliceUpdate((0, 0), (1, 1)), x, bind(Slice((1, 0), (2, 4), (1, 1)), x)),
         "slice_update(starts=(0, 0), steps=(1, 1)) x slice(starts=(1, 0), sizes=(2, 4), steps=(1, 1)) x"),
    ],
    "drop_implicit": [(NUMBER, lambda x: bind(Implicit(), x, sin(x)), "sin x")],
    "drop_same_astype": [(WHOLE, lambda x: bind(AsType(dt.int32), x), "x")],
    "merge_widening_astype": [
        (dt.float16, lambda x: astype(astype(x, dt.float32), dt.bfloat16), "as_type(dtype=bfloat16) x"),
        (dt.float32, lambda x: astype(astype(x, dt.float64), dt.float32), "x"),
        # Narrowing first rounds twice, and a conversion between the halves is not exact.
        (dt.float64, lambda x: astype(astype(x, dt.float32), dt.float16),
         "as_type(dtype=float16) as_type(dtype=float32) x"),
        (dt.float16, lambda x: astype(astype(x, dt.bfloat16), dt.float32),
         "as_type(dtype=float32) as_type(dtype=bfloat16) x"),
        # Integers saturate by the float type that they come from.
        (dt.float32, lambda x: astype(astype(x, dt.float64), dt.int32),
         "as_type(dtype=int32) as_type(dtype=float64) x"),
    ],
    "fold_constant_astype": [
        (NUMBER, lambda x: x + astype(constant(1, kind_of((4, 8), dt.bool_)), dt.float32), "add x constant(special=1)"),
        (NUMBER, lambda x: x + astype(constant(2, kind_of((4, 8), dt.int8)), dt.float32),
         "add x as_type(dtype=float32) constant(special=None)"),
    ],
    "multiply_by_one": [
        (NUMBER, lambda x: x * one(x), "x"),
        (WHOLE, lambda x: one(x) * x, "x"),
        (PAIR, lambda x: x * one(x), "multiply x constant(special=1)"),
    ],
    "divide_by_one": [
        (NUMBER, lambda x: x / one(x), "x"),
        (NUMBER, lambda x: one(x) / x, "divide constant(special=1) x"),
        (PAIR, lambda x: x / one(x), "divide x constant(special=1)"),
    ],
    "subtract_zero": [
        (NUMBER, lambda x: x - zero(x), "x"),
        (NUMBER, lambda x: zero(x) - x, "subtract constant(special=0) x"),
        (NUMBER, lambda x: x - full_like(x, -0.0), "subtract x constant(special=None)"),
    ],
    "integer_zero": [
        (WHOLE, lambda x: x + zero(x), "x"),
        (WHOLE, lambda x: zero(x) + x, "x"),
        (WHOLE, lambda x: x * zero(x), "constant(special=0)"),
        (TRUTH, lambda x: x * zero(x), "constant(special=0)"),
        (NUMBER, lambda x: x + zero(x), "add x constant(special=0)"),
        (NUMBER, lambda x: x * zero(x), "multiply x constant(special=0)"),
    ],
    "double_negative": [
        (NUMBER, lambda x: minus(minus(x)), "x"),
        (WHOLE, lambda x: minus(minus(minus(x))), "negative x"),
    ],
    "real_is_real": [
        (NUMBER, lambda x: bind(Conjugate(), x), "x"),
        (NUMBER, lambda x: bind(Real(), x), "x"),
        (PAIR, lambda x: bind(Conjugate(), x), "conjugate x"),
    ],
    "imag_of_real": [
        (NUMBER, lambda x: bind(Imag(), x), "constant(special=0)"),
        (PAIR, lambda x: bind(Imag(), x), "imag x"),
    ],
    "extent_is_constant": [(NUMBER, lambda x: bind(Extent(5)), "constant(special=None)")],
    "select_known": [
        (NUMBER, lambda x: select(constant(True, kind_of((4, 8), dt.bool_)), x, exp(x)), "x"),
        (NUMBER, lambda x: select(constant(False, kind_of((4, 8), dt.bool_)), exp(x), x), "x"),
        (TRUTH, lambda x: select(x, x, x), "x"),
    ],
    "view_of_constant": [
        (NUMBER, lambda x: exp(bind(Broadcast((4, 8), ()), constant(2.5, kind_of((), NUMBER)))),
         "exp constant(special=None)"),
        (NUMBER, lambda x: exp(reshape(transpose(full_like(x, 0), (1, 0)), (32,))), "exp constant(special=0)"),
        (NUMBER, lambda x: exp(bind(Slice((1, 0), (2, 3), (1, 2)), full_like(x, 3))), "exp constant(special=None)"),
    ],
    "drop_same_reshape": [
        (NUMBER, lambda x: reshape(reshape(x, (32,)), (4, 8)), "x"),
        (NUMBER, lambda x: reshape(reshape(x, (32,)), (2, 16)), "reshape(shape=(2, 16)) x"),
    ],
    "sum_of_nothing": [
        (NUMBER, lambda x: bind(Sum(()), x), "x"),
        (dt.int8, lambda x: bind(Sum(()), x), "as_type(dtype=int32) x"),
    ],
    "reduce_nothing": [
        (NUMBER, lambda x: bind(Sum((1,)), bind(Slice((0, 0), (4, 0), (1, 1)), x)), "constant(special=0)"),
        (WHOLE, lambda x: bind(Prod((1,)), bind(Slice((0, 0), (4, 0), (1, 1)), x)), "constant(special=1)"),
    ],
    "drop_unit_axes": [
        (NUMBER, lambda x: exp(reshape(x, (4, 1, 8))), "reshape(shape=(4, 1, 8)) exp x"),
        (NUMBER, lambda x: exp(reshape(x, (1, 4, 1, 8))) + reshape(x, (1, 4, 1, 8)),
         "reshape(shape=(1, 4, 1, 8)) add exp x x"),
    ],
    "drop_kept_unit_axes": [
        (NUMBER, lambda x: bind(Sum((1, 2)), reshape(x, (4, 1, 8))), "sum(axes=(1,)) x"),
        (NUMBER, lambda x: bind(Sum((2,)), reshape(x, (4, 1, 8))), "reshape(shape=(4, 1)) sum(axes=(1,)) x"),
    ],
    "reduce_one": [
        (NUMBER, lambda x: bind(Sum((1,)), reshape(x, (4, 1, 8))), "x"),
        (NUMBER, lambda x: bind(Max((0, 2)), reshape(x, (1, 32, 1))), "reshape(shape=(32,)) x"),
        (dt.int8, lambda x: bind(Sum((2,)), reshape(x, (4, 8, 1))), "as_type(dtype=int32) x"),
    ],
    "broadcast_without_unit_axes": [
        (NUMBER, lambda x: bind(Broadcast((4, 5, 8), (0, 1, 2)), reshape(x, (4, 1, 8))),
         "broadcast(shape=(4, 5, 8), axes=(0, 2)) x"),
    ],
    "drop_same_broadcast": [
        (NUMBER, lambda x: bind(Broadcast((4, 8), (0, 1)), x), "x"),
        (NUMBER, lambda x: bind(Broadcast((4, 4), (1, 0)), bind(Slice((0, 0), (4, 4), (1, 1)), x)),
         "broadcast(shape=(4, 4), axes=(1, 0)) slice(starts=(0, 0), sizes=(4, 4), steps=(1, 1)) x"),
    ],
    "reshape_what_repeats": [
        (NUMBER, lambda x: bind(Reshape((3, 1, 4, 8, 1)), bind(Broadcast((3, 4, 8), (1, 2)), x)),
         "broadcast(shape=(3, 1, 4, 8, 1), axes=(2, 3)) x"),
        (NUMBER, lambda x: bind(Reshape((12, 8)), bind(Broadcast((3, 4, 8), (1, 2)), x)),
         "reshape(shape=(12, 8)) broadcast(shape=(3, 4, 8), axes=(1, 2)) x"),
    ],
    "merge_broadcasts": [
        (NUMBER, lambda x: bind(Broadcast((3, 8, 5, 4), (1, 3)), bind(Broadcast((8, 4), (1, 0)), x)),
         "broadcast(shape=(3, 8, 5, 4), axes=(3, 1)) x"),
    ],
    "compute_before_repeating": [
        (NUMBER, lambda x: exp(bind(Broadcast((3, 4, 8), (1, 2)), x)), "broadcast(shape=(3, 4, 8), axes=(1, 2)) exp x"),
        (NUMBER, lambda x: exp(minus(bind(Broadcast((4, 3, 8), (0, 2)), x))),
         "broadcast(shape=(4, 3, 8), axes=(0, 2)) exp negative x"),
        (NUMBER, lambda x: minus(bind(Broadcast((3, 4, 8), (1, 2)), x)),
         "negative broadcast(shape=(3, 4, 8), axes=(1, 2)) x"),
        (NUMBER, lambda x: minus(bind(Broadcast((3000, 4, 8), (1, 2)), x)),
         "broadcast(shape=(3000, 4, 8), axes=(1, 2)) negative x"),
    ],
    "sort_equal": [
        (NUMBER, lambda x: bind(Sort(1), bind(Broadcast((4, 9, 8), (0, 2)), x)),
         "broadcast(shape=(4, 9, 8), axes=(0, 2)) x"),
    ],
    "sort_before_repeating": [
        (NUMBER, lambda x: bind(Sort(2), bind(Broadcast((4, 9, 8), (0, 2)), x)),
         "broadcast(shape=(4, 9, 8), axes=(0, 2)) sort(axis=1) x"),
        (NUMBER, lambda x: bind(ArgSort(0), bind(Broadcast((4, 9, 8), (0, 2)), x)),
         "broadcast(shape=(4, 9, 8), axes=(0, 2)) arg_sort(axis=0) x"),
        (NUMBER, lambda x: bind(ArgPartition(0, 2), bind(Broadcast((9, 4, 8), (1, 2)), x)),
         "arg_partition(axis=0, kth=2) broadcast(shape=(9, 4, 8), axes=(1, 2)) x"),
    ],
    "reduce_before_repeating": [
        (NUMBER, lambda x: bind(Max((2,)), bind(Broadcast((3, 4, 8), (1, 2)), x)),
         "broadcast(shape=(3, 4), axes=(1,)) max(axes=(1,)) x"),
        (NUMBER, lambda x: bind(Sum((0,)), bind(Broadcast((3, 4, 8), (1, 2)), x)),
         "sum(axes=(0,)) broadcast(shape=(3, 4, 8), axes=(1, 2)) x"),
        (NUMBER, lambda x: bind(ArgMax((1,)), bind(Broadcast((4, 8, 2), (0, 1)), x)),
         "broadcast(shape=(4, 2), axes=(0,)) arg_max(axes=(1,)) x"),
    ],
    "reduce_equal_elements": [
        (NUMBER, lambda x: bind(Max((0,)), bind(Broadcast((3, 4, 8), (1, 2)), x)), "x"),
        (NUMBER, lambda x: bind(Max((0, 1)), bind(Broadcast((3, 4, 8), (1, 2)), x)), "max(axes=(0,)) x"),
        (WHOLE, lambda x: bind(Sum((0, 1)), bind(Broadcast((3, 4, 8), (1, 2)), x)),
         "multiply sum(axes=(0,)) x constant(special=None)"),
        (dt.int8, lambda x: bind(Sum((0,)), bind(Broadcast((3, 4, 8), (1, 2)), x)),
         "multiply as_type(dtype=int32) x constant(special=None)"),
        # Floats are rounded at each addition.
        (NUMBER, lambda x: bind(Sum((0,)), bind(Broadcast((3, 4, 8), (1, 2)), x)),
         "sum(axes=(0,)) broadcast(shape=(3, 4, 8), axes=(1, 2)) x"),
        (NUMBER, lambda x: bind(Sum((0, 1)), bind(Broadcast((300, 9, 4, 8), (2, 3)), x)), "sum_of_equal(count=2700) x"),
        (NUMBER, lambda x: bind(Sum((0, 2)), bind(Broadcast((300, 4, 9, 8), (1, 3)), x)),
         "sum(axes=(0,)) sum(axes=(2,)) broadcast(shape=(300, 4, 9, 8), axes=(1, 3)) x"),
        (NUMBER, lambda x: bind(Sum((0, 1)), bind(Broadcast((3000, 4, 8), (1, 2)), x)),
         "sum(axes=(0, 1)) broadcast(shape=(3000, 4, 8), axes=(1, 2)) x"),
    ],
    "place_among_equals": [
        (NUMBER, lambda x: bind(ArgMax((0,)), bind(Broadcast((3, 4, 8), (1, 2)), x)), "constant(special=0)"),
    ],
    "sort_one": [
        (NUMBER, lambda x: bind(Sort(1), reshape(x, (32, 1))), "reshape(shape=(32, 1)) x"),
        (NUMBER, lambda x: bind(Sort(0), reshape(x, (32, 1))), "sort(axis=0) reshape(shape=(32, 1)) x"),
    ],
    "place_of_one": [
        (NUMBER, lambda x: bind(ArgSort(1), reshape(x, (32, 1))), "constant(special=0)"),
        (NUMBER, lambda x: bind(ArgSelect(1, 1, True), reshape(x, (32, 1))), "constant(special=0)"),
    ],
    "place_among_one": [
        (NUMBER, lambda x: bind(ArgMax((1,)), reshape(x, (32, 1))), "constant(special=0)"),
    ],
    "scan_one": [
        (NUMBER, lambda x: bind(CumSum(1, False), reshape(x, (32, 1))), "reshape(shape=(32, 1)) x"),
        (NUMBER, lambda x: bind(CumSum(1, False, True), reshape(x, (32, 1))),
         "cum_sum(axis=1, reverse=False, exclusive=True) reshape(shape=(32, 1)) x"),
    ],
    "places_of_equals": [
        (NUMBER, lambda x: bind(ArgSort(0), repeated(x)),
         "broadcast(shape=(5, 4, 8), axes=(0,)) as_type(dtype=uint32) iota(shape=(5,))"),
        (NUMBER, lambda x: bind(ArgSelect(0, 2, True), repeated(x)),
         "broadcast(shape=(2, 4, 8), axes=(0,)) as_type(dtype=uint32) "
         "slice(starts=(3,), sizes=(2,), steps=(1,)) iota(shape=(5,))"),
    ],
    "scan_before_repeating": [
        (NUMBER, lambda x: bind(CumSum(2), repeated(x)),
         "broadcast(shape=(5, 4, 8), axes=(1, 2)) cum_sum(axis=1, reverse=False, exclusive=False) x"),
        # Sums of floats are rounded at each step.
        (NUMBER, lambda x: bind(CumSum(0), repeated(x)),
         "cum_sum(axis=0, reverse=False, exclusive=False) broadcast(shape=(5, 4, 8), axes=(1, 2)) x"),
    ],
    "scan_equal_elements": [
        (WHOLE, lambda x: bind(CumSum(0), repeated(x)),
         "multiply broadcast(shape=(5, 4, 8), axes=(1, 2)) x "
         "broadcast(shape=(5, 4, 8), axes=(0,)) as_type(dtype=int32) add iota(shape=(5,)) constant(special=1)"),
        (WHOLE, lambda x: bind(CumSum(0, reverse=True, exclusive=True), repeated(x)),
         "multiply broadcast(shape=(5, 4, 8), axes=(1, 2)) x "
         "broadcast(shape=(5, 4, 8), axes=(0,)) as_type(dtype=int32) "
         "slice(starts=(4,), sizes=(5,), steps=(-1,)) iota(shape=(5,))"),
        (NUMBER, lambda x: bind(CumMax(0), repeated(x)),
         "broadcast(shape=(5, 4, 8), axes=(1, 2)) x"),
        # What comes before all elements is not one of them.
        (NUMBER, lambda x: bind(CumMax(0, exclusive=True), repeated(x)),
         "cum_max(axis=0, reverse=False, exclusive=True) broadcast(shape=(5, 4, 8), axes=(1, 2)) x"),
    ],
    "slice_what_repeats": [
        (NUMBER, lambda x: bind(Slice((1, 0, 2), (3, 4, 6), (1, 1, 1)), repeated(x)),
         "broadcast(shape=(3, 4, 6), axes=(1, 2)) slice(starts=(0, 2), sizes=(4, 6), steps=(1, 1)) x"),
        (NUMBER, lambda x: bind(Slice((4, 0, 0), (2, 4, 8), (-2, 1, 1)), repeated(x)),
         "broadcast(shape=(2, 4, 8), axes=(1, 2)) x"),
    ],
    "join_before_repeating": [
        (NUMBER, lambda x: bind(Concatenate(1), repeated(x), repeated(x)),
         "broadcast(shape=(5, 8, 8), axes=(1, 2)) concatenate(axis=0) x x"),
        (NUMBER, lambda x: bind(Concatenate(0), repeated(x), repeated(x)),
         "concatenate(axis=0) broadcast(shape=(5, 4, 8), axes=(1, 2)) x broadcast(shape=(5, 4, 8), axes=(1, 2)) x"),
    ],
    "take_from_equals": [
        (NUMBER, lambda x: bind(Gather((None, 1, 2), (0,)), repeated(x), bind(Iota((3,)))),
         "broadcast(shape=(3, 4, 8), axes=(1, 2)) x"),
        (NUMBER, lambda x: bind(Gather((0, None, 2), (1,)), repeated(x), bind(Iota((3,)))),
         "gather(where=(0, None, 2), axes=(1,)) broadcast(shape=(5, 4, 8), axes=(1, 2)) x iota(shape=(3,))"),
    ],
    "reduce_forwards": [
        (dt.int32, lambda x: bind(Sum((1,)), bind(Slice((3, 7), (4, 8), (-1, -1)), x)),
         "sum(axes=(1,)) slice(starts=(3, 0), sizes=(4, 8), steps=(-1, 1)) x"),
        (dt.int8, lambda x: bind(Max((0,)), bind(Slice((3, 0), (2, 8), (-2, 1)), x)),
         "max(axes=(0,)) slice(starts=(1, 0), sizes=(2, 8), steps=(2, 1)) x"),
        # Sums of floats have an order, and so have places.
        (dt.float32, lambda x: bind(Sum((1,)), bind(Slice((0, 7), (4, 8), (1, -1)), x)),
         "sum(axes=(1,)) slice(starts=(0, 7), sizes=(4, 8), steps=(1, -1)) x"),
        (dt.int32, lambda x: bind(ArgMax((1,)), bind(Slice((0, 7), (4, 8), (1, -1)), x)),
         "arg_max(axes=(1,)) slice(starts=(0, 7), sizes=(4, 8), steps=(1, -1)) x"),
    ],
    "product_of_one_term": [
        (NUMBER, lambda x: bind(Matmul(), reshape(x, (32, 1)), reshape(x, (1, 32))),
         "add multiply broadcast(shape=(32, 32), axes=(0, 1)) reshape(shape=(32, 1)) x "
         "broadcast(shape=(32, 32), axes=(0, 1)) reshape(shape=(1, 32)) x constant(special=0)"),
        # Two terms are a sum, and infinite factors of complex ones would meet in another way.
        (NUMBER, lambda x: bind(Matmul(), reshape(x, (16, 2)), reshape(x, (2, 16))),
         "matmul reshape(shape=(16, 2)) x reshape(shape=(2, 16)) x"),
        (PAIR, lambda x: bind(Matmul(), reshape(x, (32, 1)), reshape(x, (1, 32))),
         "matmul reshape(shape=(32, 1)) x reshape(shape=(1, 32)) x"),
    ],
    "compare_in_windows": [
        (NUMBER, lambda x: bind(Max((0, 2)), reshape(x, (2, 8, 2))),
         "maximum reshape(shape=(8,)) slice(starts=(1, 0, 1), sizes=(1, 8, 1), steps=(1, 1, 1)) "
         "reshape(shape=(2, 8, 2)) x "
         "maximum reshape(shape=(8,)) slice(starts=(1, 0, 0), sizes=(1, 8, 1), steps=(1, 1, 1)) "
         "reshape(shape=(2, 8, 2)) x "
         "maximum reshape(shape=(8,)) slice(starts=(0, 0, 1), sizes=(1, 8, 1), steps=(1, 1, 1)) "
         "reshape(shape=(2, 8, 2)) x reshape(shape=(8,)) slice(starts=(0, 0, 0), sizes=(1, 8, 1), steps=(1, "
         "1, 1)) reshape(shape=(2, 8, 2)) x"),
        (NUMBER, lambda x: bind(Max((0, 2)), reshape(x, (8, 2, 2))),
         "max(axes=(0,)) max(axes=(2,)) reshape(shape=(8, 2, 2)) x"),
        (NUMBER, lambda x: bind(Max((1, 2)), reshape(x, (8, 2, 2))), "max(axes=(1, 2)) reshape(shape=(8, 2, 2)) x"),
    ],
    "split_reduction": [
        (NUMBER, lambda x: bind(Sum((0, 2)), reshape(x, (4, 2, 4))),
         "sum(axes=(0,)) sum(axes=(2,)) reshape(shape=(4, 2, 4)) x"),
        (NUMBER, lambda x: bind(Max((0, 2, 3)), reshape(x, (8, 2, 2, 1))),
         "max(axes=(0,)) max(axes=(2, 3)) reshape(shape=(8, 2, 2, 1)) x"),
        (dt.float16, lambda x: bind(Sum((0, 2)), reshape(x, (4, 2, 4))),
         "as_type(dtype=float16) sum(axes=(0,)) sum(axes=(2,)) as_type(dtype=float32) reshape(shape=(4, 2, 4)) x"),
        (NUMBER, lambda x: bind(Sum((0, 1)), x), "sum(axes=(0, 1)) x"),
    ],
}  # fmt: skip


def repeated(x: Node) -> Node:
    """Five times, in front."""
    return bind(Broadcast((5, *x.shape), tuple(range(1, x.ndim + 1))), x)


def expression(node: Node) -> str:
    """A node in prefix form."""
    if not node.inputs and not isinstance(node.op, (Constant, Iota)):
        return "x"
    return " ".join([str(node.op), *map(expression, node.inputs)])


def rules() -> set[str]:
    return {rule.__name__ for registered in simplification.RULES.values() for rule in registered}


def test_every_rule_has_an_example_and_says_why_it_is_exact() -> None:
    assert rules() == set(GOLDEN)
    for registered in simplification.RULES.values():
        for rule in registered:
            assert "->" in (rule.__doc__ or ""), f"{rule.__name__} does not say what it does"


@pytest.mark.parametrize(
    ("dtype", "build", "expected"), [pytest.param(*case, id=name) for name, cases in GOLDEN.items() for case in cases]
)
def test_rules(dtype: dt.Dtype, build: Callable[[Node], Node], expected: str) -> None:
    simple = simplify(graph(build, (M, dtype)))
    verify_graph(simple)
    assert expression(simple.outputs[0]) == expected


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: mx.roll(x, 2, -1),
        lambda x: x[1:, ::-1],
        lambda x: mx.argsort(x, axis=0),
        lambda x: mx.topk(x, 3, axis=0),
        lambda x: mx.argsort(x, axis=1),
        lambda x: mx.take(x, mx.array([3, -1, 0]), axis=0),
        lambda x: mx.take(x, mx.array([3, -1, 0]), axis=1),
        lambda x: mx.concatenate([x, x[:1]], axis=0),
        lambda x: mx.pad(x, 1, constant_values=2),
    ],
)
def test_moves_of_what_repeats_itself_are_those_of_copies(fun: Callable[[Any], Any]) -> None:
    row = np.array([3, np.nan, -0.0, 0.0, -np.inf, 1], np.float32)
    rows = np.ascontiguousarray(np.broadcast_to(row, (7, 6)))
    for f in (fun, mx.compile(fun)):
        found = np.array(f(mx.broadcast_to(mx.array(row), (7, 6))))
        assert found.tobytes() == np.array(f(mx.array(rows))).tobytes()


def test_rules_apply_to_what_rules_made() -> None:
    made = graph(lambda x: (minus(minus(x * one(x))) - zero(x)) * bind(Real(), x), M)
    assert body(simplify(made)) == "%1 = multiply %0, %0 : f32[4, 8]\nreturn %1"


# ---- views ----


def test_a_view_moves_before_what_only_it_reads() -> None:
    made = graph(lambda x, y: transpose(exp(x) + y, (1, 0)), M, M)
    assert body(compose_views(made)) == text(
        """
        %2 = strided(shape=(8, 4), strides=(1, 8), offset=0) %0 : f32[8, 4]
        %3 = exp %2 : f32[8, 4]
        %4 = strided(shape=(8, 4), strides=(1, 8), offset=0) %1 : f32[8, 4]
        %5 = add %3, %4 : f32[8, 4]
        return %5
        """
    )


def test_a_view_stays_behind_what_others_read_too() -> None:
    made = graph(lambda x: [transpose(exp(x), (1, 0)), sin(exp(x))], M)
    assert body(compose_views(cse(made))) == text(
        """
        %1 = exp %0 : f32[4, 8]
        %2 = sin %1 : f32[4, 8]
        %3 = strided(shape=(8, 4), strides=(1, 8), offset=0) %1 : f32[8, 4]
        return %3, %2
        """
    )


def test_a_view_that_repeats_does_not_repeat_the_work() -> None:
    made = graph(lambda x: sin(bind(Broadcast((5, 4, 8), (1, 2)), exp(x))), M)
    assert body(compose_views(made)) == text(
        """
        %1 = exp %0 : f32[4, 8]
        %2 = strided(shape=(5, 4, 8), strides=(0, 8, 1), offset=0) %1 : f32[5, 4, 8]
        %3 = sin %2 : f32[5, 4, 8]
        return %3
        """
    )


def test_views_of_views_are_one_read() -> None:
    def build(x: Node) -> Node:
        part = bind(Slice((3, 7), (2, 3), (-2, -2)), x)  # x[3::-2, 7:1:-2]
        return exp(transpose(bind(Broadcast((6, 2, 3), (1, 2)), part), (2, 0, 1)))

    assert body(compose_views(graph(build, M))) == text(
        """
        %1 = strided(shape=(3, 6, 2), strides=(-2, 0, -16), offset=31) %0 : f32[3, 6, 2]
        %2 = exp %1 : f32[3, 6, 2]
        return %2
        """
    )


def test_a_reshape_that_strides_can_express_moves_nothing() -> None:
    made = graph(lambda x: exp(reshape(bind(Slice((0, 0), (4, 6), (1, 1)), x), (2, 2, 3, 2))), M)
    assert body(compose_views(made)) == text(
        """
        %1 = strided(shape=(2, 2, 3, 2), strides=(16, 8, 2, 1), offset=0) %0 : f32[2, 2, 3, 2]
        %2 = exp %1 : f32[2, 2, 3, 2]
        return %2
        """
    )


def test_a_reshape_that_strides_cannot_express_copies_once() -> None:
    made = graph(lambda x: exp(reshape(transpose(x, (1, 0)), (32,))), M)
    assert body(compose_views(made)) == text(
        """
        %1 = strided(shape=(8, 4), strides=(1, 8), offset=0) %0 : f32[8, 4]
        %2 = materialize %1 : f32[8, 4]
        %3 = strided(shape=(32,), strides=(1,), offset=0) %2 : f32[32]
        %4 = exp %3 : f32[32]
        return %4
        """
    )


def test_the_layout_of_an_input_is_part_of_every_read() -> None:
    made = graph(lambda x: [transpose(x, (1, 0)), exp(reshape(x, (32,)))], M)
    turned = compose_views(made, {made.inputs[0]: (1, 4)})
    assert body(turned) == text(
        """
        %1 = strided(shape=(8, 4), strides=(4, 1), offset=0) %0 : f32[8, 4]
        %2 = materialize %0 : f32[4, 8]
        %3 = strided(shape=(32,), strides=(1,), offset=0) %2 : f32[32]
        %4 = exp %3 : f32[32]
        return %1, %4
        """
    )


def test_a_reduction_that_cannot_walk_its_axes_as_one_gets_a_copy() -> None:
    made = graph(lambda x: bind(Sum((0, 1)), exp(transpose(x, (1, 0)))), M)
    assert body(compose_views(made)) == text(
        """
        %1 = strided(shape=(8, 4), strides=(1, 8), offset=0) %0 : f32[8, 4]
        %2 = exp %1 : f32[8, 4]
        %3 = materialize %2 : f32[8, 4]
        %4 = sum(axes=(0, 1)) %3 : f32[]
        return %4
        """
    )


def kept(made: Graph, layouts: dict[Node, Any] | None = None) -> str:
    return body(keep_orders(compose_views(made, layouts), layouts or {}))


def test_results_keep_the_order_in_which_all_operands_lie() -> None:
    rolled = graph(lambda x: bind(Concatenate(1), *(slice_of(transpose(x, (1, 0)), at) for at in (2, 0))), M)
    assert kept(rolled) == text(
        """
        %1 = strided(shape=(2, 8), strides=(8, 1), offset=16) %0 : f32[2, 8]
        %2 = strided(shape=(2, 8), strides=(8, 1), offset=0) %0 : f32[2, 8]
        %3 = concatenate(axis=0) %1, %2 : f32[4, 8]
        %4 = strided(shape=(8, 4), strides=(1, 8), offset=0) %3 : f32[8, 4]
        return %4
        """
    )
    layouts: dict[Node, Any] = {}
    made = graph(lambda x: sin(exp(x)), M)
    layouts[made.inputs[0]] = (1, 4)
    assert kept(made, layouts) == text(
        """
        %1 = strided(shape=(8, 4), strides=(4, 1), offset=0) %0 : f32[8, 4]
        %2 = exp %1 : f32[8, 4]
        %3 = sin %2 : f32[8, 4]
        %4 = strided(shape=(4, 8), strides=(1, 4), offset=0) %3 : f32[4, 8]
        return %4
        """
    )


def test_what_is_asked_for_row_by_row_lies_so() -> None:
    x = mx.transpose(mx.array(np.arange(12.0, dtype=np.float32).reshape(3, 4)))
    for fun in (lambda x: mx.contiguous(mx.exp(x)), lambda x: mx.contiguous(mx.roll(x, 1, 0))):
        for f in (fun, mx.compile(fun)):
            assert memoryview(f(x)).c_contiguous
    assert not memoryview(mx.exp(x)).c_contiguous


def slice_of(x: Node, at: int) -> Node:
    """Two columns."""
    return bind(Slice((0, at), (x.shape[0], 2), (1, 1)), x)


@pytest.mark.parametrize(
    "made",
    [
        graph(lambda x, y: [transpose(x, (1, 0)) + y], M, M[::-1]),  # operands in two orders
        graph(lambda x: [y := exp(transpose(x, (1, 0))), bind(Sum((1,)), y)], M),  # something else reads it
        graph(lambda x: [reshape(exp(transpose(x, (1, 0))), (32,))], M),  # a view reads it
    ],
)
def test_results_that_others_read_or_of_operands_in_several_orders_lie_row_by_row(made: Graph) -> None:
    composed = compose_views(made)
    assert keep_orders(composed, {}) is composed


def test_results_that_lie_nowhere_are_written_out() -> None:
    made = graph(lambda x: [full_like(x, 2.5), transpose(bind(Iota((2, 3))), (1, 0))], M)
    assert body(compose_views(made)) == text(
        """
        %1 = constant(special=None) : f32[4, 8]
        %2 = iota(shape=(2, 3)) : i64[2, 3]
        %3 = strided(shape=(3, 2), strides=(1, 3), offset=0) %2 : i64[3, 2]
        %4 = materialize %1 : f32[4, 8]
        %5 = materialize %3 : i64[3, 2]
        return %4, %5
        """
    )


RESHAPES = [
    ((4, 6), (6, 1), (24,), (1,)),
    ((4, 6), (6, 1), (2, 2, 3, 2), (12, 6, 2, 1)),
    ((4, 6), (12, 1), (24,), None),
    ((4, 6), (12, 1), (2, 2, 6), (24, 12, 1)),
    ((4, 6), (12, 1), (4, 2, 3), (12, 3, 1)),
    ((4, 6), (12, 2), (4, 3, 2), (12, 4, 2)),
    ((4, 6), (1, 4), (24,), None),
    ((4, 6), (1, 4), (4, 1, 6, 1), (1, 0, 4, 0)),
    ((4, 6), (-6, -1), (24,), (-1,)),
    ((4, 6), (0, 0), (3, 8), (0, 0)),
    ((4, 6), (0, 1), (4, 6, 1), (0, 1, 0)),
    ((1, 6), (99, 1), (6,), (1,)),
    ((), (), (1, 1), (0, 0)),
    ((0, 5), (5, 1), (5, 0), (1, 1)),
]


@pytest.mark.parametrize(("shape", "strides", "to", "expected"), RESHAPES)
def test_strides_of_reshapes(shape: Any, strides: Any, to: Any, expected: Any) -> None:
    found = reshape_strides(shape, strides, to)
    if 0 in shape:
        assert found is not None
        return
    assert (found is None) == (expected is None)
    if found is None:
        return
    # Strides along axes of size 1 are never used.
    assert [s for n, s in zip(to, found, strict=True) if n != 1] == [
        s for n, s in zip(to, expected, strict=True) if n != 1
    ]
    reach = sum(abs(s) * (n - 1) for n, s in zip(shape, strides, strict=True))
    start = sum(-s * (n - 1) for n, s in zip(shape, strides, strict=True) if s < 0)
    memory = np.arange(reach + 1)
    old = np.lib.stride_tricks.as_strided(memory[start:], shape, [8 * s for s in strides])
    new = np.lib.stride_tricks.as_strided(memory[start:], to, [8 * s for s in found])
    assert np.array_equal(old.reshape(to), new)


def test_contiguous() -> None:
    assert contiguous((2, 3, 4)) == (12, 4, 1)
    assert contiguous(()) == ()
    assert contiguous((3, 0, 2)) == (0, 2, 1)


# ---- kernels ----


def shown_groups(made: Graph) -> str:
    groups = fuse(cse(compose_views(made)))
    return "\n".join(f"{g.form} {' '.join(n.op.title for n in g.nodes)} : {g.domain} {g.axes}" for g in groups)


def softmax(x: Node) -> Node:
    powers = exp(x - restore_axes(bind(Max((1,)), x), x.shape, (1,)))
    return powers / restore_axes(bind(Sum((1,)), powers), x.shape, (1,))


def test_fuse() -> None:
    assert shown_groups(graph(lambda x, y: exp(x) * y - x, M, M)) == "map exp multiply subtract : (4, 8) None"
    assert shown_groups(graph(softmax, M)) == "row max subtract exp sum divide : (4, 8) (1,)"
    assert shown_groups(graph(lambda x: bind(Sum((0,)), exp(x)), M)) == "column exp sum : (4, 8) (0,)"
    assert shown_groups(graph(lambda x, y: exp(bind(Matmul(), sin(x), y)), (4, 8), (8, 2))) == text(
        """
        map sin : (4, 8) None
        opaque matmul : (4, 2) None
        map exp : (4, 2) None
        """
    )


def test_columns_share_a_kernel_if_they_share_elements() -> None:
    """An unrolled recurrence sums the gradients of a bias step by step: a kernel of all steps is slow to compile."""
    total = Sum((0,))
    assert shown_groups(graph(lambda x, y: bind(total, x) + bind(total, x * y), M, M)) == (
        "column sum multiply sum add : (4, 8) (0,)"
    )
    assert shown_groups(graph(lambda x, y: bind(total, sin(x)) + bind(total, sin(x) * y), M, M)) == (
        "column sin sum multiply sum add : (4, 8) (0,)"
    )
    assert shown_groups(graph(lambda x, y, z: bind(total, x) + bind(total, y) + bind(total, z), M, M, M)) == text(
        """
        column sum : (4, 8) (0,)
        column sum : (4, 8) (0,)
        column sum add add : (4, 8) (0,)
        """
    )


def test_a_plan_as_text() -> None:
    assert show_plan(plan(graph(softmax, M), CPU), kernels=True) == text(
        """
        plan: 1 kernels, arena 0 bytes
          row [max subtract exp sum divide] (%0@input 0) -> %1@output 0 : f32[4, 8]
            row outer=1
              0 = load float32 memory full unit
              1 = max(axes=()) 0 : float32 reduced
              2 = subtract 0 1 : float32 full
              3 = exp 2 : float32 full
              4 = sum(axes=()) 3 : float32 reduced
              5 = divide 3 4 : float32 full
              store 5 -> float32 memory full unit
        """
    )


def test_kernels_name_no_sizes() -> None:
    """A larger call is the same kernel: nothing is compiled for it."""

    def keys(*shape: int) -> list[str]:
        return [launch.source.key for item in plan(graph(softmax, shape), CPU).items for launch in item.launches]

    assert keys(4, 8) == keys(5, 100) == keys(300, 70)
    # Many rows of a few elements have lanes across rows, and are read in vectors of 4, 8 or 16.
    for few, more in ((2, 4), (5, 8), (9, 16)):
        assert keys(300, few) == keys(2000, more)


def test_loads_are_described_by_how_the_inner_loop_steps() -> None:
    def build(a: Node, b: Node, c: Node, d: Node) -> Node:
        flipped = bind(Slice((39, 47), (40, 48), (-1, -1)), b)
        return ((a + flipped) * transpose(c, (1, 0))) - bind(Broadcast((40, 48), (0,)), d)

    (item,) = plan(graph(build, (40, 48), (40, 48), (48, 40), (40,)), CPU).items
    key = item.launches[0].source.key
    assert key.startswith("tile ")
    for load in ("memory full unit", "memory full reverse", "memory full tile", "memory full repeat"):
        assert f"load float32 {load}" in key


class Apart(Cpu):
    """The CPU, with kernels of their own for maps that follow products."""

    def lower_with_epilogue(self, *args: Any) -> None:
        return None


def test_memory() -> None:
    def build(x: Node, y: Node) -> Node:
        first = exp(bind(Matmul(), x, y))
        return bind(Matmul(), sin(bind(Matmul(), first, y)), y)

    assert show_plan(plan(graph(build, (16, 16), (16, 16)), Apart())) == text(
        """
        plan: 5 kernels, arena 2048 bytes
          opaque [matmul] (%0@input 0, %1@input 1) -> %2@arena+0 : f32[16, 16]
          map [exp] (%2@arena+0) -> %3@arena+0 : f32[16, 16]
          opaque [matmul] (%3@arena+0, %1@input 1) -> %4@arena+1024 : f32[16, 16]
          map [sin] (%4@arena+1024) -> %5@arena+1024 : f32[16, 16]
          opaque [matmul] (%5@arena+1024, %1@input 1) -> %6@output 0 : f32[16, 16]
          reuse: exp takes the place of matmul
          reuse: sin takes the place of matmul
        """
    )


def test_an_input_is_returned_as_it_is() -> None:
    planned = plan(graph(lambda x: [x, transpose(x, (1, 0))], M), CPU)
    assert planned.items == []
    assert planned.outputs == []


# ---- the verifier of graphs ----


def test_graphs_are_verified() -> None:
    good = graph(lambda x: exp(x), M)
    verify_graph(good)
    x = good.inputs[0]
    wrong_kind = Node(good.outputs[0].op, (x,), kind_of((3,), dt.float32))
    with pytest.raises(VerifyError, match="should have kind"):
        verify_graph(Graph([x], [wrong_kind]))
    other = graph(lambda y: exp(y), M)
    with pytest.raises(VerifyError, match="parameter of another graph"):
        verify_graph(Graph([x], [x, *other.outputs]))
    with pytest.raises(VerifyError, match="not its parameter"):
        verify_graph(Graph([good.outputs[0]], [good.outputs[0]]))
    empty = constant(2.5, kind_of((3,), dt.float32))
    empty.value = None
    with pytest.raises(VerifyError, match="has no number"):
        verify_graph(Graph([], [empty]))
    early = Node(good.outputs[0].op, (), x.kind)
    late = exp(x)
    early.inputs = (late,)
    with pytest.raises(VerifyError, match="comes before its operand"):
        verify_graph(Graph([x], [early]))


def test_every_pass_gives_a_good_graph() -> None:
    """On a graph that has something for each of them."""

    def build(x: Node, y: Node) -> list[Node]:
        z = softmax(minus(minus(x))) * one(x)
        return [bind(Sum((0, 2)), reshape(transpose(z, (1, 0)), (4, 4, 2))), transpose(exp(y) + exp(y), (1, 0)), x]

    made = graph(build, M, M)
    for step in PASSES:
        made = step(made)
        verify_graph(made)
    composed = compose_views(made)
    verify_graph(composed)
    assert not any(type(n.op).__module__.endswith("primitives.views") for n in composed.order()), (
        "only strided reads are left"
    )
    assert any(isinstance(n.op, Strided) for n in composed.order())


def test_kernels_convert_for_themselves() -> None:
    """A conversion that two kernels need is not written by the first one for the second."""
    shape = (8, 1 << 17)

    def variance(x: Node) -> list[Node]:
        wide = astype(x, dt.float32)
        mean = bind(Sum((1,)), wide)
        deviation = wide - restore_axes(mean, shape, (1,))
        return [bind(Sum((1,)), deviation * deviation)]

    made = plan(graph(variance, (shape, dt.float16)), CPU)
    assert len(made.items) == 2
    assert all(place.nbytes < 1 << 17 for node, place in made.places.items() if not isinstance(node.op, Parameter))


def test_a_conversion_that_is_a_result_is_computed_once() -> None:
    shape = (8, 1 << 17)

    def wide_and_norm(x: Node) -> list[Node]:
        wide = astype(x, dt.float32)
        total = bind(Sum((1,)), wide)
        return [wide, bind(Sum((1,)), wide * restore_axes(total, shape, (1,)))]

    made = plan(graph(wide_and_norm, (shape, dt.float16)), CPU)
    assert sum(isinstance(node.op, AsType) for node in made.graph.order()) == 1


def test_a_product_with_a_vector_of_one_element_is_one_kernel() -> None:
    """The axis of size 1 goes before the first operation, not in the middle."""
    made = graph(lambda x, y: [reshape(bind(Matmul(), x, reshape(y, (1, 1))), (70,))], (70, 1), (1,))
    assert len(plan(made, CPU).items) == 1
