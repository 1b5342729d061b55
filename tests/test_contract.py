"""The contract of every primitive, tested from the registry: a new class with samples is tested by being listed there.

The default run tries every primitive in every dtype, and every layout in one dtype of each element size; tests marked
slow do the whole product. Derivatives and batching are checked on the reference back end, where they cost no
compilation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from tests import contract
from tests.contract import (
    Case,
    bound,
    by_reference,
    discrepancy,
    leaf,
    mismatch,
    native,
    natives,
    outcome,
    place,
    reference,
    references,
    same_bits,
    subsets,
    values_of,
)
from weft import dtypes as dt
from weft import primitives
from weft.array import array, wrap
from weft.core.compiling import compile
from weft.dtypes import Dtype
from weft.evaluate import evaluate
from weft.graph.dims import DimEnv
from weft.graph.node import ArrayType, Node, TupleType, kind_of
from weft.llvm.engine import stats
from weft.primitives import CONTROL_FLOW, REGISTRY
from weft.primitives.base import Elementwise, KernelOperation, MultiOutput, Primitive, Reduction, bind, constant
from weft.primitives.elementwise import Add, Select
from weft.primitives.linalg import Implicit
from weft.primitives.reductions import Prod, Sum
from weft.primitives.views import Transpose
from weft.report.primitives import PAGE, page
from weft.targets.cpu.lowerings import lowering_of
from weft.transforms.jvp import push_forward
from weft.transforms.vjp import pull_back
from weft.transforms.vmap import batch

LEADERS = (dt.bool_, dt.bfloat16, dt.float32, dt.int64, dt.complex64)
"""One dtype of each element size, and one of pairs: how elements are reached does not depend on more."""
MOST_COMPILATIONS = 10
"""LLVM compilations that the default run may cost for each pair of a primitive and a dtype, on average."""

PAIRS = [(cls, dtype) for cls in REGISTRY for dtype in cls.dtypes]


@pytest.fixture(scope="module", autouse=True)
def few_compilations(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels do not depend on sizes, so samples share them; whatever breaks that shows here before it shows in the
    clock."""
    before = stats.compiled
    yield
    if not request.config.getoption("markexpr"):  # the full product is meant to be large
        return
    compiled = stats.compiled - before
    assert compiled <= MOST_COMPILATIONS * len(PAIRS), (
        f"{compiled} kernels for {len(PAIRS)} pairs of primitive and dtype"
    )


def name_of(value: object) -> str:
    if isinstance(value, type) and issubclass(value, Primitive):
        return value.name()
    return value.name if isinstance(value, Dtype) else str(value)


def check(case: Case, placed: Sequence[array]) -> None:
    values = [values_of(x) for x in placed]
    got, expected = outcome(lambda: natives(case.op, placed)), outcome(lambda: references(case.op, values))
    problem = discrepancy(case, values, got, expected)
    assert not problem, problem


# ---- the registry ----


def concrete(cls: type[Primitive]) -> Iterator[type[Primitive]]:
    """All classes below `cls` that can be computed and are no family of others."""
    for sub in cls.__subclasses__():
        below = [c for c in sub.__subclasses__() if c.__module__.startswith("weft.primitives.")]
        yield from concrete(sub)
        if not below and sub.__module__.startswith("weft.primitives.") and sub.reference is not Primitive.reference:
            yield sub


def test_every_primitive_is_listed_once() -> None:
    assert len(set(REGISTRY)) == len(REGISTRY)
    missing = {cls.name() for cls in concrete(Primitive)} - {cls.name() for cls in (*REGISTRY, *CONTROL_FLOW)}
    assert not missing, f"not in weft.primitives.REGISTRY: {sorted(missing)}"
    assert len({cls.name() for cls in REGISTRY}) == len(REGISTRY), "two primitives have one name"


@pytest.mark.parametrize("cls", REGISTRY, ids=name_of)
def test_every_rule_is_written(cls: type[Primitive]) -> None:
    """Samples, words, and every rule of the contract, by the class itself or by its family."""
    assert cls.__doc__, "says what it is"
    assert cls.samples, "has samples"
    assert cls.dtypes, "has dtypes"
    for rule in ("infer", "reference", "jvp", "vjp", "batch"):
        written = getattr(cls, rule)
        assert written not in (getattr(Primitive, rule), getattr(MultiOutput, rule)), f"no {rule} rule"
    if issubclass(cls, Elementwise):
        assert cls.emit is not Elementwise.emit, "no emit"
    if issubclass(cls, KernelOperation):
        assert lowering_of(cls) is not None, "no kernels on the CPU"
    if issubclass(cls, Reduction):
        assert cls.identity is not Reduction.identity, "no identity"
    assert set(cls.tolerance) <= set(dt.ALL), "tolerances are per dtype"
    for case in contract.cases(cls, cls.dtypes[:1]):
        assert case.op is type(case.op)(*(getattr(case.op, f.name) for f in fields(case.op))), "is interned"


def test_the_page_of_primitives_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m weft.report.primitives`"


# ---- values ----


@pytest.mark.parametrize(("cls", "dtype"), PAIRS, ids=name_of)
def test_native_is_reference(cls: type[Primitive], dtype: Dtype) -> None:
    for case in contract.cases(cls, [dtype]):
        check(case, [place(v) for v in case.operands()])
    case = contract.cases(cls, [dtype])[0]
    if issubclass(cls, Elementwise):  # whatever its samples are, it works on one element, and on none
        for count, shape in ((1, ()), (0, (0, 3))):
            check(case, [place(v.reshape(-1)[:count].reshape(shape)) for v in case.operands()])


@pytest.mark.parametrize("cls", [cls for cls in REGISTRY if not issubclass(cls, Elementwise)], ids=name_of)
def test_everything_is_tried_on_nothing(cls: type[Primitive]) -> None:
    """Where loops do not run is where divisions by a size are found."""
    operands = [case.operands() for case in contract.cases(cls, cls.dtypes[:1])]
    assert not any(operands) or any(v.size == 0 for values in operands for v in values), "no sample is empty"


def leading(count: int) -> list[object]:
    """Pairs of primitive and dtype, all but some of them slow: `count` leaders of an elementwise primitive (they share
    the code that reaches elements, so they take turns), all leaders of any other. What is one of its operands, which
    belong together, has no code."""
    params = []
    for number, cls in enumerate(REGISTRY):
        if issubclass(cls, Implicit):
            continue
        leaders = [d for d in LEADERS if d in cls.dtypes] or list(cls.dtypes[:1])
        if issubclass(cls, Elementwise):
            leaders = [leaders[(number + i) % len(leaders)] for i in range(count)]
        params += [pytest.param(cls, d, marks=() if d in leaders else pytest.mark.slow) for d in cls.dtypes]
    return params


@pytest.mark.parametrize(("cls", "dtype"), leading(1), ids=name_of)
def test_layouts(cls: type[Primitive], dtype: Dtype) -> None:
    """Strides of any sign, 0 among them, and addresses of any alignment."""
    for case in contract.cases(cls, [dtype]):
        operands = case.operands()
        for layout in contract.layouts_for(operands):
            if not case.op.is_total and any("repeated" in name for name in contract.MIXTURES.get(layout, (layout,))):
                continue  # a singular matrix, as far as rounding lets it be one
            check(case, contract.lay_out(operands, layout))


@pytest.mark.parametrize(("cls", "dtype"), leading(2), ids=name_of)
def test_constants_as_operands(cls: type[Primitive], dtype: Dtype) -> None:
    """A number in place of an array: read as a scalar, or used by an exact simplification."""
    for case in contract.cases(cls, [dtype]):
        operands = case.operands()
        # Rounding decides whether a matrix of another number is singular, and in which order its eigenvalues are.
        numbers = (0, 1, None) if case.op.is_total else (0,) if getattr(case.op, "sort", "") else (0, 1)
        for position, number in itertools.product(range(len(operands)), numbers):
            v = operands[position]
            if v.size == 0:
                continue
            value = np.full_like(v, v.flat[0] if number is None else number)
            nodes = contract.scalars(operands, position, value.flat[0])
            values = [value if i == position else w for i, w in enumerate(operands)]
            got = outcome(lambda op=case.op, nodes=nodes: [values_of(wrap(x)) for x in bound(op, *nodes)])
            expected = outcome(lambda op=case.op, values=values: references(op, values))
            problem = discrepancy(case, values, got, expected)
            assert not problem, f"operand {position} is {value.flat[0]}: {problem}"


@pytest.mark.parametrize(("cls", "dtype"), [(c, d) for c, d in PAIRS if issubclass(c, Elementwise)], ids=name_of)
def test_special_values(cls: type[Primitive], dtype: Dtype) -> None:
    """Infinities, NaN, subnormals, the ends of integer ranges, and zeros with their signs, in every combination."""
    case = contract.cases(cls, [dtype])[0]
    values = contract.grid(case.op, dtype, case.sample)
    got, expected = native(case.op, [place(v) for v in values]), reference(case.op, values)
    if expected.dtype.kind == "c":
        # Complex infinities are one: which part is infinite, and its sign, depend on how the arithmetic is written.
        far = ~np.isfinite(expected)
        assert not np.isfinite(got[far]).any(), (
            f"{case}: finite for {[v[far][np.isfinite(got[far])][:4] for v in values]}"
        )
        got[far] = expected[far] = np.nan
    problem = mismatch(case, values, got, expected)
    assert not problem, f"{problem}; operands {_at_difference(case, values, got, expected)}"
    if (
        dt.from_numpy(expected.dtype).is_float and case.op.tolerance.get(dtype) != 0
    ):  # 0: equal numbers, but either zero
        wrong = (expected == 0) & (np.signbit(got) != np.signbit(expected))
        assert not wrong.any(), f"{case}: zeros of the other sign for {[v[wrong][:4] for v in values]}"


def _at_difference(case: Case, values: Sequence[np.ndarray], got: np.ndarray, expected: np.ndarray) -> list[object]:
    error = (
        contract.errors_in_ulp(case.op, values, got, expected)
        if dt.from_numpy(expected.dtype).is_inexact
        else got != expected
    )
    worst = int(np.argmax(error)) // (2 if expected.dtype.kind == "c" else 1)
    return [v[worst] for v in values]


# ---- the order of reductions ----

LENGTHS = (1, 2, 15, 16, 17, 100, 4095, 4096, 4097, 9000, 70_000)
FORMS = {
    "row": lambda n: ((2, n), 1),
    "column": lambda n: ((n, 3), 0),
    "middle": lambda n: ((2, n, 3), 1),
    "alone": lambda n: ((n,), 0),
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.bfloat16, dt.complex64], ids=name_of)
def test_sums_and_products_have_the_specified_order(form: str, length: int, dtype: Dtype) -> None:
    """To the bit what docs/numerics.md says, whichever kernel does it."""
    shape, axis = FORMS[form](length)
    rng = contract.generator(f"{form} {length} {dtype.name}")
    x = primitives.elementwise.draw(rng, dtype, shape, 0.99, 1.01)
    wide = np.moveaxis(x.astype(np.float32 if dtype in dt.HALVES else dtype.np), axis, 0)
    for op, combine, identity in ((Sum((axis,)), np.add, -0.0), (Prod((axis,)), np.multiply, 1.0)):
        if dtype.is_complex and combine is np.multiply:
            continue  # NumPy contracts complex products on some machines
        got = native(op, [place(x)])
        assert same_bits(got, np.asarray(contract.ordered(combine, identity, wide)).astype(dtype.np)), op


def test_axes_that_are_not_neighbours_are_reduced_last_group_first() -> None:
    x = contract.generator("apart").uniform(-1, 1, (37, 3, 50, 4)).astype(np.float32)
    got = native(Sum((0, 2, 3)), [place(x)])
    rows = contract.ordered(np.add, -0.0, np.moveaxis(x.reshape(37, 3, 200), 2, 0))
    assert same_bits(got, contract.ordered(np.add, -0.0, rows))


# ---- fused and unfused ----


def neighbourhood(
    op: Primitive, operands: Sequence[array], others: Sequence[array], ask: array, eager: bool
) -> list[array]:
    """A primitive between elementwise producers and various readers; `eager` evaluates every node by itself."""

    def made(node: Node) -> Node:
        if eager:
            evaluate([node])
        return node

    masks = [made(_broadcast(ask._node, x.shape)) for x in operands]
    before = [made(bind(Select(), m, x._node, y._node)) for m, x, y in zip(masks, operands, others, strict=True)]
    found = []
    for result in map(made, bound(op, *before)):
        after = made(bind(Add(), result, result))
        found += [result, after]
        if result.ndim:
            found.append(made(bind(Sum((result.ndim - 1,)), result)))
            found.append(made(bind(Sum((0,)), after)))
            turned = made(bind(Transpose(tuple(reversed(range(result.ndim)))), result))
            found.append(made(bind(Add(), turned, turned)))
    return [wrap(node) for node in found]


def _broadcast(node: Node, shape: tuple[int, ...]) -> Node:
    return bind(primitives.views.Broadcast(shape, ()), node)


@pytest.mark.parametrize(("cls", "dtype"), leading(3), ids=name_of)
def test_fused_is_unfused(cls: type[Primitive], dtype: Dtype) -> None:
    """One rounding an operation, wherever it stands: in a kernel of its own, or among others."""
    ask = place(np.asarray(True))
    for case in contract.cases(cls, [dtype]):
        operands = [place(v) for v in case.operands()]
        others = [place(v[::-1].copy() if v.ndim else v) for v in case.operands()]
        alone = [values_of(x) for x in neighbourhood(case.op, operands, others, ask, eager=True)]
        whole = neighbourhood(case.op, operands, others, ask, eager=False)
        evaluate([x._node for x in whole])
        compiled = compile(lambda xs, ys, op=case.op: neighbourhood(op, xs, ys, ask, eager=False))(operands, others)
        for i, (x, y, z) in enumerate(zip(alone, map(values_of, whole), map(values_of, compiled), strict=True)):
            assert same_bits(y, x), f"{case}, reader {i}, fused: {contract.differences(y, x)}"
            assert same_bits(z, x), f"{case}, reader {i}, compiled: {contract.differences(z, x)}"


# ---- shapes ----


@pytest.mark.parametrize("cls", REGISTRY, ids=name_of)
def test_symbolic_shapes(cls: type[Primitive]) -> None:
    """The shape rule over symbols, evaluated at numbers, is the shape rule over those numbers."""
    for case in contract.cases(cls, cls.dtypes[-1:]):
        kinds = [kind_of(v.shape, dt.from_numpy(v.dtype)) for v in case.operands()]
        sizes = sorted({n for kind in kinds for n in kind.shape if n > 1})
        env = DimEnv()
        symbol = {n: env.symbol(f"n{n}", n) for n in sizes}
        symbolic = _infer(case.op, kinds, symbol)
        for grow in (0, 5):
            numbers = {f"n{n}": n + grow for n in sizes}
            if grow and env.check(numbers) is not None:
                continue  # a guard says that this size is traced anew
            assert env.check(numbers) is None
            expected = _infer(case.op, kinds, {n: n + grow for n in sizes})
            for x, y in zip(parts_of(symbolic), parts_of(expected), strict=True):
                found = tuple(env.evaluate(n, numbers) for n in x.shape)
                assert (found, x.dtype) == (y.shape, y.dtype), f"{case} at {numbers}"


def parts_of(kind: ArrayType) -> tuple[ArrayType, ...]:
    return kind.parts if isinstance(kind, TupleType) else (kind,)


def _infer(op: Primitive, kinds: Sequence[ArrayType], sizes: Mapping[int, Any]) -> ArrayType:
    """The shape rule with other sizes, in the operands and in the primitive's parameters."""
    changed = contract.with_sizes(op, lambda n: sizes.get(n, n))
    return changed.infer(*[kind_of(tuple(sizes.get(n, n) for n in kind.shape), kind.dtype) for kind in kinds])


# ---- derivatives ----

WIDE = (dt.float64, dt.complex128)


def smooth_cases(cls: type[Primitive], differences: bool = True) -> list[tuple[Case, tuple[int, ...]]]:
    """Every smooth sample in double precision, with every non-empty subset of its inexact operands. Some are smooth in
    a dtype only as far as `differences` of results go."""
    found = []
    for case in contract.cases(cls, WIDE):
        smooth = case.sample.smooth
        if not (smooth if isinstance(smooth, bool) else smooth(case.dtype) or not differences):
            continue
        traced = [i for i, v in enumerate(case.operands()) if v.dtype.kind in "fc"]
        found += [(case, subset) for subset in subsets(traced)]
    return found


def direction(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    values = rng.uniform(-1, 1, like.shape)
    if like.dtype.kind == "c":
        values = values + 1j * rng.uniform(-1, 1, like.shape)
    return np.asarray(values).astype(like.dtype)


def directions(case: Case, name: str, traced: Sequence[int]) -> dict[int, np.ndarray]:
    """A change of each traced operand, which the sample allows."""
    rng, values = contract.generator(f"{case} {name}"), case.operands()
    move = case.sample.move or (lambda x: x)
    return {i: move(direction(rng, values[i])) for i in traced}


def pushed(op: Primitive, values: Sequence[np.ndarray], tangents: dict[int, np.ndarray]) -> list[np.ndarray]:
    """The tangents by the primitive's rule, computed by the reference back end."""
    nodes = [leaf(v) for v in values]
    outs = bound(op, *nodes)
    found = push_forward([nodes[i] for i in tangents], outs, [leaf(t) for t in tangents.values()])
    return by_reference([constant(0, out.kind) if x is None else x for x, out in zip(found, outs, strict=True)])


def slope(function: Callable[[float], np.ndarray], step: float = 1e-4) -> np.ndarray:
    """The derivative at 0 by central differences of fourth order."""
    near = (function(step) - function(-step)) / (2 * step)
    far = (function(2 * step) - function(-2 * step)) / (4 * step)
    return (4 * near - far) / 3


def moved(values: Sequence[np.ndarray], tangents: dict[int, np.ndarray], by: float) -> list[np.ndarray]:
    return [v + by * tangents[i] if i in tangents else v for i, v in enumerate(values)]


def assert_close(got: np.ndarray, expected: np.ndarray, relative: float, what: str) -> None:
    """Within `relative` of the largest element: differences of functions lose what small elements have in common with
    large ones."""
    assert got.shape == expected.shape, what
    if not got.size:
        return
    scale = max(1.0, float(np.abs(expected).max()))
    error = float(np.abs(got - expected).max())
    assert error <= relative * scale, f"{what}: off by {error:.3g} at scale {scale:.3g}"


@pytest.mark.parametrize("cls", REGISTRY, ids=name_of)
def test_jvp_is_the_derivative(cls: type[Primitive]) -> None:
    for case, traced in smooth_cases(cls):
        values, tangents = case.operands(), directions(case, "jvp", traced)
        for number, got in enumerate(pushed(case.op, values, tangents)):
            if got.dtype.kind not in "fc":
                continue
            expected = slope(lambda by, v=values, t=tangents, op=case.op, k=number: references(op, moved(v, t, by))[k])
            assert_close(got, expected, 1e-8, f"{case} by {traced}, result {number}")


def inner(x: np.ndarray, y: np.ndarray) -> float:
    """The real inner product, in which MLX's complex gradients are adjoint: Re(conj(x) y)."""
    return float(np.sum(np.real(np.conjugate(x) * y)))


def cotangents_of(case: Case, name: str, outs: Sequence[Node], alone: int | None = None) -> list[np.ndarray | None]:
    """A cotangent for each inexact result, or for one of them alone."""
    rng = contract.generator(f"{case} {name} cotangents")
    found = [direction(rng, np.zeros(out.shape, out.dtype.np)) if out.dtype.is_inexact else None for out in outs]
    return [x if alone in (None, i) else None for i, x in enumerate(found)]


@pytest.mark.parametrize("cls", REGISTRY, ids=name_of)
def test_vjp_is_adjoint_to_jvp(cls: type[Primitive]) -> None:
    """For cotangents of all results, and of each alone."""
    for case, traced in smooth_cases(cls, differences=False):
        values, tangents = case.operands(), directions(case, "vjp", traced)
        forward = pushed(case.op, values, tangents)
        for alone in (None, *range(len(forward))) if len(forward) > 1 else (None,):
            nodes = [leaf(v) for v in values]
            outs = bound(case.op, *nodes)
            cts = cotangents_of(case, "vjp", outs, alone)
            found = pull_back([nodes[i] for i in traced], outs, [None if x is None else leaf(x) for x in cts])
            backward = by_reference(
                [constant(0, nodes[i].kind) if n is None else n for i, n in zip(traced, found, strict=True)]
            )
            pairs = [(x, y) for x, y in zip(cts, forward, strict=True) if x is not None]
            left = sum(inner(x, y) for x, y in pairs)
            right = sum(inner(b, tangents[i]) for i, b in zip(traced, backward, strict=True))
            scale = max(1.0, float(sum(np.sum(np.abs(x) * np.abs(y)) for x, y in pairs)))
            assert abs(left - right) <= 1e-11 * scale, f"{case} by {traced}: {left} and {right}"


@pytest.mark.parametrize("cls", REGISTRY, ids=name_of)
def test_second_derivatives(cls: type[Primitive]) -> None:
    """Forward over reverse, against differences of the first derivative."""
    for case, traced in smooth_cases(cls):
        values, tangents = case.operands(), directions(case, "second", traced)
        if sum(v.size for v in values) > 512:
            continue
        nodes = [leaf(v) for v in values]
        outs = bound(case.op, *nodes)
        cts = cotangents_of(case, "second", outs)

        def gradient(by: float, values=values, tangents=tangents, op=case.op, cts=cts, traced=traced) -> np.ndarray:
            nodes = [leaf(v) for v in moved(values, tangents, by)]
            return _flat(by_reference(_pulled(nodes, bound(op, *nodes), cts, traced)))

        gradients = _pulled(nodes, outs, cts, traced)
        second = push_forward([nodes[i] for i in traced], gradients, [leaf(tangents[i]) for i in traced])
        found = by_reference([constant(0, g.kind) if s is None else s for s, g in zip(second, gradients, strict=True)])
        assert_close(_flat(found), slope(gradient), 1e-7, f"{case} by {traced}")


def _pulled(
    nodes: Sequence[Node], outs: Sequence[Node], cts: Sequence[np.ndarray | None], traced: Sequence[int]
) -> list[Node]:
    found = pull_back([nodes[i] for i in traced], outs, [None if x is None else leaf(x) for x in cts])
    return [constant(0, nodes[i].kind) if n is None else n for i, n in zip(traced, found, strict=True)]


def _flat(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([p.reshape(-1) for p in parts])


@pytest.mark.parametrize(("cls", "dtype"), [(c, d) for c, d in PAIRS if d.is_inexact], ids=name_of)
def test_derivatives_have_the_dtype_of_what_they_belong_to(cls: type[Primitive], dtype: Dtype) -> None:
    """Also where finite differences say nothing (steps, ties): the drivers refuse a rule that gives another kind."""
    for case in contract.cases(cls, [dtype]):
        values = case.operands()
        traced = [i for i, v in enumerate(values) if dt.from_numpy(v.dtype).is_inexact]
        for subset in subsets(traced):
            nodes = [leaf(v) for v in values]
            outs = bound(case.op, *nodes)
            inputs = [nodes[i] for i in subset]
            for out, tangent in zip(
                outs, push_forward(inputs, outs, [constant(1, n.kind) for n in inputs]), strict=True
            ):
                assert tangent is None or tangent.kind is out.kind
            cts = [constant(1, out.kind) if out.dtype.is_inexact else None for out in outs]
            if any(ct is not None for ct in cts):
                for node, found in zip(inputs, pull_back(inputs, outs, cts), strict=True):
                    assert found is None or found.kind is node.kind


# ---- batching ----


def vmap_params() -> list[object]:
    return [
        pytest.param(cls, dtype, marks=() if dtype is _main_dtype(cls) else pytest.mark.slow) for cls, dtype in PAIRS
    ]


def _main_dtype(cls: type[Primitive]) -> Dtype:
    """The dtype to try when one must do."""
    return next((d for d in (dt.float64, dt.int64, dt.bool_) if d in cls.dtypes), cls.dtypes[0])


@pytest.mark.parametrize(("cls", "dtype"), vmap_params(), ids=name_of)
@pytest.mark.parametrize("size", [3, 1, 0])
def test_vmap_is_a_loop(cls: type[Primitive], dtype: Dtype, size: int) -> None:
    """Every subset of operands, every place of the batch axis in each of them."""
    for case in contract.cases(cls, [dtype]):
        values = case.operands()
        for subset in subsets(range(len(values))):
            most = max(values[i].ndim for i in subset)
            for k in range(most + 1):
                _check_batch(case, values, {i: (k + n) % (values[i].ndim + 1) for n, i in enumerate(subset)}, size)


@pytest.mark.slow
@pytest.mark.parametrize("cls", REGISTRY, ids=name_of)
def test_vmap_with_every_combination_of_axes(cls: type[Primitive]) -> None:
    for case in contract.cases(cls, [_main_dtype(cls)]):
        values = case.operands()
        for subset in subsets(range(len(values))):
            for axes in itertools.product(*(range(values[i].ndim + 1) for i in subset)):
                _check_batch(case, values, dict(zip(subset, axes, strict=True)), 2)


def _check_batch(case: Case, values: Sequence[np.ndarray], axes: dict[int, int], size: int) -> None:
    pieces = {
        i: [case.sample.make(contract.generator(f"{case} {k}"), case.dtype)[i] for k in range(size)] for i in axes
    }
    stacked = {
        i: np.stack(pieces[i], axes[i]) if size else np.zeros((*v.shape[: axes[i]], 0, *v.shape[axes[i] :]), v.dtype)
        for i, v in enumerate(values)
        if i in axes
    }
    nodes = [leaf(v) for v in values]
    outs = bound(case.op, *nodes)
    found = batch([nodes[i] for i in axes], outs, [leaf(stacked[i]) for i in axes], list(axes.values()), size)
    assert all(axis is not None for _, axis in found), f"{case} with batch axes {axes} forgot its batch"
    got = [np.moveaxis(x, axis, 0) for x, (_, axis) in zip(by_reference([x for x, _ in found]), found, strict=True)]
    for x, out in zip(got, outs, strict=True):
        assert x.shape == (size, *out.shape), f"{case} with batch axes {axes}"
    for k in range(size):
        one = [pieces[i][k] if i in axes else v for i, v in enumerate(values)]
        lane = [np.ascontiguousarray(x[k]).reshape(out.shape) for x, out in zip(got, outs, strict=True)]
        problem = discrepancy(case, one, lane, references(case.op, one))
        assert not problem, f"batch axes {axes}, element {k}: {problem}"
