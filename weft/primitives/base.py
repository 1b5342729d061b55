"""What a primitive is: the contract, and the families that derive most of it from the kind of operation.

A primitive is one class that says everything about an operation. Instances are interned by their parameters (frozen
dataclass fields), so identity is equality: common subexpressions and cache keys cost a pointer comparison. Rules work
on nodes of agreed shape and dtype; promotion and broadcasting happened above, in `weft.core`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform
from weakref import ref

import numpy as np

from weft import dtypes as dt
from weft import interop
from weft.dtypes import Dtype
from weft.graph.body import Body
from weft.graph.dims import Dim, exact, key_of, text_of
from weft.graph.node import ArrayType, Node, Shape, Size, TupleType, kind_of, reachable_by
from weft.graph.overlay import Foreign
from weft.graph.scalars import SCALARS, Scalar, plain
from weft.graph.trace import unknown_value
from weft.interning import Interned
from weft.primitives.checks import check_axes, equal_shapes, need
from weft.records import dataclass, fields

ByOperand = Mapping[int, Node]
"""Tangents or cotangents, by position of the operand that they belong to."""

_PRIMITIVES: Interned[tuple[Any, ...], Primitive] = Interned(1 << 13)
_RECENT = _PRIMITIVES.recent
"""Kept alive: operations come back, after all that held them was evaluated."""


@dataclass_transform(frozen_default=True)
class _Interned(type):
    """Makes every subclass a frozen dataclass and every call return the one instance with these parameters."""

    recurs: bool

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        cls = super().__new__(mcs, name, bases, namespace)
        own = [note for note in namespace.get("__annotations__", {}).values() if "ClassVar" not in str(note)]
        # A class without parameters of its own is what its base is: making it a dataclass again would only
        # cost import time.
        return dataclass(frozen=True, eq=False, repr=False)(cls) if own or not bases else cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        key = (cls, key_of(args), key_of(tuple(kwargs.items()))) if kwargs else (cls, key_of(args))
        found = _RECENT.get(key)
        if found is not None:
            return found
        found = _PRIMITIVES.find(key)
        if found is None:
            made = super().__call__(*args, **kwargs)
            for field in fields(made):
                if "bool" not in str(field.type):
                    object.__setattr__(made, field.name, exact(getattr(made, field.name)))
            # One instance whatever the spelling of the call: positional form is the canonical key.
            canonical = (cls, key_of(tuple(getattr(made, f.name) for f in fields(made))))
            found = _PRIMITIVES.add(key, _PRIMITIVES.add(canonical, made))
        if cls.recurs:
            _PRIMITIVES.keep(key, found)
        return found


@dataclass(frozen=True)
class Sample:
    """Operands and parameters on which the generated contract tests try a primitive.

    `make(rng, dtype)` gives NumPy operands; `params` the primitive's fields. `smooth` says that derivatives may be
    checked by finite differences there, `move` makes of a change of an operand one that it allows.
    """

    make: Callable[[np.random.Generator, Dtype], Sequence[np.ndarray]]
    params: Mapping[str, Any] | None = None
    smooth: bool | Callable[[Dtype], bool] = True
    name: str = ""
    move: Callable[[np.ndarray], np.ndarray] | None = None


class Primitive(metaclass=_Interned):
    """The contract. Every concrete primitive has all of these rules, written or derived by its family."""

    recurs: ClassVar[bool] = True
    """Whether an instance is worth keeping when nothing refers to it. What holds much does not."""
    samples: ClassVar[tuple[Sample, ...]] = ()
    dtypes: ClassVar[tuple[Dtype, ...]] = dt.ALL
    tolerance: ClassVar[Mapping[Dtype, float]] = {}
    """Largest error against `reference`, in units of the last place of the dtype, where it is not exact."""
    cancels: ClassVar[bool] = False
    """Whether the result is a sum whose terms may cancel: `tolerance` is then relative to the sum of their magnitudes,
    which is the reference of the operands' moduli; otherwise to the result."""
    node_class: ClassVar[type[Node]] = Node
    """The class of its nodes (graph/node.py, `node_of`)."""
    moves: ClassVar[Container[int]] = ()
    """Operands whose elements are in the result as they are, bit by bit. The `emit` of an elementwise operation sees
    those of bool and float16 as memory holds them, which is not how they are computed with."""
    may_alias: ClassVar[bool] = True
    """Whether its result may lie where an operand lay."""
    takes_arrays: ClassVar[bool] = True
    """Whether all operands are arrays, not bundles or tapes."""

    def infer(self, *kinds: ArrayType) -> ArrayType:
        """Shape and dtype of the result; sizes may be symbols."""
        raise NotImplementedError

    if TYPE_CHECKING:
        reference: ClassVar[Any]  # subclasses name their operands, or take a NumPy function as it is
        check: ClassVar[Any]
    else:

        def reference(self, *values: np.ndarray) -> np.ndarray:
            """The same in NumPy: the oracle of the tests and the back end WEFT_BACKEND=reference."""
            raise NotImplementedError

        def check(self, *kinds: ArrayType) -> None:
            """Raise ValueError if operands of these kinds are not what `infer`, `reference` and kernels rely on. Asked
            for graphs that come from files (see primitives/checks.py)."""
            raise NotImplementedError(f"there is no rule for operands of {self.title}")

    def check_dtypes(self, *kinds: ArrayType) -> None:
        """Operands have one dtype, which is one of those that the primitive is made for."""
        dtype = kinds[0].dtype
        need(all(kind.dtype is dtype for kind in kinds), f"operands of different dtypes, {kinds}")
        need(dtype in type(self).dtypes, f"{dtype.name} operands")

    def is_symbolic(self) -> bool:
        """Whether some parameter has a symbol for a size in it; that of a number has, whose kind has none."""
        parameters = tuple([getattr(self, f.name) for f in fields(self)])
        return key_of(parameters) is not parameters or any(body.is_symbolic for body in self.bodies())

    def bodies(self) -> tuple[Body, ...]:
        """The closed graphs among its parameters: what a loop or a branch runs."""
        return ()

    def with_bodies(self, bodies: Sequence[Body]) -> Primitive:
        """The same operation with other bodies in place of these, which take and give the same."""
        assert not bodies
        return self

    def reordered(self, order: tuple[int, ...]) -> Primitive | None:
        """The operation on operands whose axes stand in another order (as a transpose says), which gives the same
        elements with its axes in that order; None if there is none."""
        return None

    # What the rules for derivatives build may depend on the parameters and on the kinds of the operands, not on what
    # the operands were computed from: it is remembered and built again for other operands of the same kinds
    # (weft/transforms/rules.py), so they see stand-ins.

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        """Tangent of the result, given tangents of the traced operands by position. None is an exact zero."""
        raise NotImplementedError

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        """Cotangents of the wanted operands; a missing one is an exact zero."""
        raise NotImplementedError

    def zero_tangent(self, out: ArrayType, *kinds: ArrayType) -> ArrayType:
        """The kind that an exact zero has, in place of a tangent, when it is shown to the user."""
        return out

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        """The result for operands that carry a batch axis (None: they do not), and where the result's stands."""
        raise NotImplementedError

    @property
    def is_total(self) -> bool:
        """Whether it has a result for operands of any values: it neither fails nor goes on forever. One that has not is
        computed only where the user's program computes it: not before a loop that may make no step, and not for lanes
        of a batch that take no part."""
        return True

    @property
    def can_fail(self) -> bool:
        """Whether computing it may end the program, by an error or an interrupt: what a program was given is
        overwritten only by steps behind the last that can fail."""
        return not self.is_total

    def failure(self, detail: Sequence[int], kinds: Sequence[ArrayType], steps: Sequence[int] = ()) -> Exception:
        """What is raised when a call of its code failed: `detail` is what the call left (codegen.launch), `kinds` are
        those of the operands, `steps` those that the loops around it were at."""
        raise NotImplementedError

    def holds(self, op: Primitive) -> bool:
        """Whether an operation is this one, or stands in a body of it."""
        return op is self or any(node.op.holds(op) for body in self.bodies() for node in body.graph.order())

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float | None:
        """How far the operands are from some that these results are exact for, in units of the dtype's epsilon: what
        linear algebra promises, and `tolerance` bounds. None for what is compared with `reference` element by
        element."""
        return None

    def magnitudes(self, *values: np.ndarray) -> np.ndarray:
        """The sums of the magnitudes of the terms, for a result that is a sum of which they may cancel."""
        wide = [np.abs(v).astype(np.float64) if dt.from_numpy(v.dtype).is_inexact else v for v in values]
        return np.asarray(self.reference(*wide))

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        """Floating-point operations that it takes, counted as instructions: for explain, which compares them with what
        the machine can do. 0 for what only moves elements."""
        return 0.0

    def unbroken(self, *kinds: ArrayType) -> float:
        """Floating-point operations, roughly, of the largest piece of it that Ctrl-C cannot stop in the middle."""
        return 0.0

    def __str__(self) -> str:
        params = ", ".join(f"{f.name}={_show(getattr(self, f.name))}" for f in fields(self))
        return f"{self.title}({params})" if params else self.title

    def __repr__(self) -> str:
        return str(self)

    @property
    def title(self) -> str:
        return type(self).name()

    @classmethod
    def name(cls) -> str:
        """`LogicalAnd` -> `logical_and`."""
        return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(cls.__name__))

    def __reduce__(self) -> Any:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_show, value))}{',' if len(value) == 1 else ''})"
    return value.name if isinstance(value, Dtype) else text_of(value)


_INFERRED: dict[tuple[Any, ...], ArrayType] = {}
_MOST_INFERRED = 1 << 13


def bind(op: Primitive, *inputs: Node) -> Node:
    """A new node: `op` of `inputs`, its kind from the primitive's rule (remembered per operand kinds)."""
    key = (op, *[node.kind for node in inputs])
    kind = _INFERRED.get(key)
    if kind is None:
        kind = op.infer(*[node.kind for node in inputs])
        if op.recurs and not kind.symbolic:
            if len(_INFERRED) >= _MOST_INFERRED:
                _INFERRED.clear()
            _INFERRED[key] = kind
    return op.node_class(op, inputs, kind)


def check_operands(op: Primitive, operands: Sequence[Node]) -> None:
    """Raise ValueError if a primitive does not take such operands."""
    kinds = [x.kind for x in operands]
    need(not op.takes_arrays or all(type(kind) is ArrayType for kind in kinds), "operands that are no arrays")
    try:
        _signature(type(op).check).bind(op, *kinds)
    except TypeError:
        raise ValueError(f"{len(kinds)} operands") from None
    op.check(*kinds)


@functools.cache
def _signature(rule: Callable[..., None]) -> inspect.Signature:
    return inspect.signature(rule)


class Bundled(Node):
    """A node with several results. It knows the nodes that pick them as long as somebody needs those: evaluation
    computes all of them at once."""

    __slots__ = ("_room", "picks")

    def __init__(self, op: Primitive, inputs: tuple[Node, ...], kind: ArrayType, value: None = None) -> None:
        super().__init__(op, inputs, kind)
        self.picks: list[ref[Picked]] = []
        self._room = 8

    def add(self, pick: Picked) -> None:
        """One more node that picks a result. Those that are gone are forgotten from time to time."""
        self.picks.append(ref(pick))
        if len(self.picks) > self._room:
            self.picks = [known for known in self.picks if known() is not None]
            self._room = 2 * len(self.picks)


class Picked(Node):
    """One result of a `Bundled` node."""

    __slots__ = ("__weakref__",)

    def __init__(self, op: Primitive, inputs: tuple[Node, ...], kind: ArrayType, value: Any = None) -> None:
        super().__init__(op, inputs, kind, value)
        (whole,) = inputs
        assert isinstance(whole, Bundled)
        whole.add(self)


def bind_many(op: MultiOutput, *inputs: Node) -> list[Node]:
    """The results of an operation that has several."""
    return picks(bind(op, *inputs))


def picks(whole: Node) -> list[Node]:
    """The results of a node that has several, as nodes."""
    assert isinstance(whole.kind, TupleType)
    return [Picked(GetResult(i), (whole,), part) for i, part in enumerate(whole.kind.parts)]


# ---- leaves ----


class Data(Primitive):
    """Computed values: a leaf that holds a buffer."""


class Parameter(Primitive):
    """An input of a closed graph, known by its position."""

    index: int


class Placeholder(Primitive):
    """An input of an open trace that has no value: reading it is an error which names the transform."""

    transform: str


class Constant(Primitive):
    """A number in every element. The number is data of the node, not of the operation: a new value means no new code.

    Only 0 and 1, which exact identities look for, are told apart here (`special`).
    """

    special: int | None = None


DATA = Data()
CONSTANT = Constant()
ZERO = Constant(0)
ONE = Constant(1)


class ConstantValue:
    """The words (i64 bit patterns) of a constant, as a kernel reads them, and the Python number."""

    __slots__ = ("number", "words")

    def __init__(self, number: Any, words: tuple[int, ...]) -> None:
        self.number, self.words = number, words

    @property
    def key(self) -> Hashable:
        """What tells it from other constants of its kind."""
        return self.words


class RunTimeConstant(ConstantValue):
    """A constant whose number each call gives anew. Whoever reads it here makes the trace one for this number."""

    __slots__ = ("dtype", "scalar")

    def __init__(self, scalar: Scalar, dtype: Dtype) -> None:
        self.scalar, self.dtype = scalar, dtype

    def fixed(self) -> ConstantValue:
        """The constant that it is in this trace, which holds for it only from now on."""
        env = self.scalar.env
        if env.running is not None and env.running.is_elsewhere():
            raise Foreign
        if not env.is_open() and not env.is_fixed(self.scalar):
            raise unknown_value("compile")
        number = to_scalar(self.scalar.number, self.dtype)
        return ConstantValue(number, _words(number))

    @property
    def number(self) -> Any:
        return self.fixed().number

    @property
    def words(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.fixed().words


class SizeConstant(ConstantValue):
    """A constant (int64) of a symbolic plan that is a size: it has a number when the plan has."""

    __slots__ = ("size",)

    def __init__(self, size: Dim) -> None:
        self.size = size

    @property
    def key(self) -> Hashable:
        return "size", key_of(self.size)

    @staticmethod
    def filled(number: int) -> ConstantValue:
        """The constant where the size is this number."""
        return ConstantValue(number, (number,))


def words_of(number: Any, dtype: Dtype) -> tuple[int, ...]:
    """The words of a constant, as a kernel reads them."""
    return _words(to_scalar(number, dtype))


def _words(scalar: Any) -> tuple[int, ...]:
    raw = scalar.tobytes()
    return tuple(int.from_bytes(raw[i : i + 8].ljust(8, b"\0"), "little", signed=True) for i in range(0, len(raw), 8))


def constant(number: Any, kind: ArrayType) -> Node:
    """A leaf of this kind with `number` in every element; the number is converted to the dtype exactly once, here."""
    if type(number) in SCALARS:
        if number.env.is_open():
            to_scalar(number.hint if number.is_small() else number.number, kind.dtype)  # raises at the user's line
            return Node(CONSTANT, (), kind, RunTimeConstant(number, kind.dtype))
        number = plain(number)
    scalar = to_scalar(number, kind.dtype)
    raw, words = scalar.tobytes(), _words(scalar)
    op = CONSTANT
    if not any(words):
        op = ZERO
    elif scalar == 1 and raw == np.ones((), kind.dtype.np).tobytes():  # 1-0j equals 1, but is another number
        op = ONE
    return Node(op, (), kind, ConstantValue(scalar, words))


def to_scalar(number: Any, dtype: Dtype) -> Any:
    """A Python or NumPy number as an element of `dtype`, converted as arrays are."""
    values, _ = interop.as_numpy(number, dtype)
    return values[()]


def full_like(node: Node, number: Any) -> Node:
    """`number` in the shape and dtype of `node`."""
    return constant(number, node.kind)


def zeros(kind: ArrayType) -> Node:
    return constant(0, kind)


# ---- families ----


class Elementwise(Primitive):
    """One result element from the operand elements at the same place.

    Writes `reference`, `partials` (one derivative per operand, None where it is zero everywhere) and `emit`; shape,
    jvp, vjp, vmap, symbolic shapes and fusion follow. All operands have one shape; the dtype rule is `result`.
    """

    compute_halves: ClassVar[bool] = True
    """Whether emit wants float16/bfloat16 operands as float32 (rounded back after); False for pure data movement."""
    cost: ClassVar[int] = 1
    """Rough instructions per vector; decides whether a later phase of a row kernel recomputes or keeps the value."""

    def result(self, *dtypes: Dtype) -> Dtype:
        """The result's dtype. By default that of the (equal) operand dtypes."""
        return dtypes[0]

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(kinds[0].shape, self.result(*[k.dtype for k in kinds]))

    def reordered(self, order: tuple[int, ...]) -> Primitive | None:
        return self

    def check(self, *kinds: ArrayType) -> None:
        count = _arity(type(self))
        need(len(kinds) == count, f"{len(kinds)} operands, and it has {count}")
        need(all(equal_shapes(kinds[0].shape, k.shape) for k in kinds[1:]), f"operands of different shapes, {kinds}")
        self.check_dtypes(*kinds)

    if TYPE_CHECKING:
        partials: ClassVar[Any]
        emit: ClassVar[Any]
    else:

        def partials(self, out: Node, *xs: Node) -> tuple[Node | None, ...]:
            """The derivative of the result by each operand, as nodes: that of the operation on reals, whatever the
            dtype. Where it is no integer though the operands are, the node is of a float dtype."""
            raise NotImplementedError

        def emit(self, b: Any, *xs: Any) -> Any:
            """Code for one vector (or scalar) of elements; `b` is the builder, `xs` its values."""
            raise NotImplementedError

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return flops_each(out.dtype) * float(out.size) * self.cost if self.compute_halves else 0.0

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        partials = self.partials(out, *primals)
        total: Node | None = None
        for position, tangent in tangents.items():
            partial = partials[position]
            if partial is None:
                continue
            term = _cast(_scale(_cast(tangent, out.dtype), partial), out.dtype)
            total = term if total is None else total + term
        return total

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        partials = self.partials(out, *primals)
        result = {}
        for position in sorted(wanted):
            partial = partials[position]
            if partial is None:
                continue
            if partial.dtype.is_complex:
                partial = OPERATORS["conjugate"](partial)
            result[position] = _cast(_scale(cotangent, partial), primals[position].dtype)
        return result

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]
        return bind(self, *front), 0


def flops_each(dtype: Dtype) -> float:
    """Floating-point operations of one multiplication, or addition, of such numbers; integers are not counted."""
    return 0.0 if not dtype.is_inexact else 4.0 if dtype.is_complex else 1.0


@functools.cache
def _arity(cls: type[Elementwise]) -> int:
    """How many operands an elementwise operation has, as its samples show."""
    return len(cls.samples[0].make(np.random.default_rng(0), cls.dtypes[-1]))


def _cast(node: Node, dtype: Dtype) -> Node:
    """A tangent or cotangent in the dtype that its primal has."""
    return node if node.dtype is dtype else OPERATORS["astype"](node, dtype)


def _scale(node: Node, factor: Node) -> Node:
    """node * factor; no work where either is exactly one, and no product where the factor is minus one."""
    if factor.op is ONE:
        return node
    if node.op is ONE and not factor.dtype.is_complex:
        return factor
    if factor.value.__class__ is ConstantValue and factor.value.number == -1 and node.dtype is factor.dtype:
        return -node
    return _cast(node, factor.dtype) * factor


OPERATORS: dict[str, Callable[..., Node]] = {}
"""A few node functions that the families need from the primitives below them, which put them here."""


def move_batch_to_front(node: Node, axis: int | None, size: Size) -> Node:
    """The operand with its batch axis first; an unbatched one is broadcast along a new axis."""
    if axis is None:
        return OPERATORS["broadcast_front"](node, size)
    if axis == 0:
        return node
    order = (axis, *(i for i in range(node.ndim) if i != axis))
    return OPERATORS["transpose"](node, order)


class Discrete(Primitive):
    """What small changes of its operands do not change (places, counts) or what has no derivative (bits)."""

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return None

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {}


class Linear(Primitive):
    """Linear in some operands (`linear`), which alone are differentiated; writes `transpose` for each of them."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    cancels = True

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        """The cotangent of linear operand `position`."""
        raise NotImplementedError

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        """Linear in all of `linear` together (like Concatenate): one application to tangents, zeros where there is
        none."""
        live = {p: t for p, t in tangents.items() if p in self.linear}
        if not live:
            return None
        operands = [live.get(i, zeros(x.kind)) if i in self.linear else x for i, x in enumerate(primals)]
        return bind(self, *operands)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {p: self.transpose(p, out, primals, cotangent) for p in sorted(wanted) if p in self.linear}


class Multilinear(Linear):
    """Linear in each of `linear` separately (like a product): the tangent is the sum over the traced operands."""

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        total: Node | None = None
        for position, tangent in tangents.items():
            if position not in self.linear:
                continue
            operands = [tangent if i == position else x for i, x in enumerate(primals)]
            term = bind(self, *operands)
            total = term if total is None else total + term
        return total


@dataclass(frozen=True, slots=True)
class AxisMap:
    """How one axis of a view's operand is indexed: at `start + step * (index along result axis)`, or at `start` if
    `axis` is None."""

    axis: int | None
    start: Size = 0
    step: Size = 1


IndexMap = tuple[AxisMap, ...]
"""One `AxisMap` per operand axis: which element of the operand stands where in the result."""


class View(Linear):
    """The same elements elsewhere: writes `index_map`, or is a Reshape. Never moves data by itself; all layouts reach
    the kernels."""

    dtypes: ClassVar[tuple[Dtype, ...]] = dt.ALL
    moves = (0,)

    def index_map(self, kind: ArrayType) -> IndexMap:
        """Which operand element each result element is."""
        raise NotImplementedError


class Reduction(Primitive):
    """Combines the elements along `axes` (sorted, not negative; the axes vanish) in the order that docs/numerics.md
    specifies.

    Writes `identity`, `combine`, `reference`, `jvp` and `vjp`; the family gives the kernels, vmap, and shapes.
    """

    axes: tuple[int, ...]

    def result(self, dtype: Dtype) -> Dtype:
        return dtype

    def accumulator(self, dtype: Dtype) -> Dtype:
        """The dtype in which the combining is done."""
        return dt.float32 if dtype in dt.HALVES else self.result(dtype)

    def identity(self, dtype: Dtype) -> Any:
        """The number that changes nothing when combined."""
        raise NotImplementedError

    def combine(self, b: Any, x: Any, y: Any) -> Any:
        """Code that combines two accumulator values."""
        raise NotImplementedError

    def is_exact(self, dtype: Dtype) -> bool:
        """Whether elements of a dtype are combined without rounding, so that every order gives the same bits."""
        return False

    def is_place(self, dtype: Dtype) -> bool:
        """Whether the result is the place of the first element with the largest `key`, an integer; the state is that
        key and its place."""
        return False

    def is_neutral(self, dtype: Dtype) -> bool:
        """Whether merging the identity leaves all bits as they are. (1 + 0j) * x may not."""
        return not dtype.is_complex

    def of_equal(self, x: Node, count: int, alone: bool) -> Node | None:
        """What `count` elements, all of them equal to x, are combined to, if that takes less than combining them; x is
        what the other axes were reduced to. `alone`: there are none, these elements are one sequence, and so many
        that work saved pays for a kernel of its own."""
        return None

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return float(kinds[0].size) if out.dtype.is_inexact else 0.0

    def infer(self, *kinds: ArrayType) -> ArrayType:
        (kind,) = kinds
        gone = set(self.axes)
        return kind_of(tuple(n for i, n in enumerate(kind.shape) if i not in gone), self.result(kind.dtype))

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)
        check_axes(self.axes, x.ndim)
        need(list(self.axes) == sorted(self.axes), f"axes {self.axes} out of order")

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = move_batch_to_front(inputs[0], axes[0], size)
        return bind(type(self)(tuple(a + 1 for a in self.axes)), front), 0


class KernelOperation(Primitive):
    """An operation with kernels of its own, which fusion does not look into (products, gathers, sorts). Every target
    has a table of them by class (weft/targets).
    """

    def laid_out_once(self, *kinds: ArrayType) -> tuple[int, ...]:
        """Operands that kernels would copy into rows every time if their last axis is not the one that is contiguous: a
        loop in which they do not change does it once."""
        return ()

    overwrites: ClassVar[tuple[int, ...]] = ()
    """Operands that the result may lie on, if they are contiguous and read once: the kernels then leave what is there
    already."""


class MultiOutput(Primitive):
    """An operation with several results. Its node is a bundle, `GetResult` takes one part. The rules speak of all
    results at once: `reference` gives a tuple, `jvp` tangents and `batch` batched nodes in their order; `vjp` takes a
    cotangent (or None) for each. One that is a KernelOperation too, such as a factorization, has kernels of its own,
    which get all results."""

    node_class = Bundled

    if TYPE_CHECKING:
        infer: ClassVar[Any]
        jvp: ClassVar[Any]
        vjp: ClassVar[Any]
        batch: ClassVar[Any]
    else:

        def infer(self, *kinds: ArrayType) -> TupleType:
            """The kinds of the results."""
            raise NotImplementedError

        def jvp(
            self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: Mapping[int, Node]
        ) -> Sequence[Node | None]:
            """Tangents of the results, given tangents of the traced operands by position."""
            raise NotImplementedError

        def vjp(
            self,
            outs: Sequence[Node],
            primals: tuple[Node, ...],
            cotangents: Sequence[Node | None],
            wanted: frozenset[int],
        ) -> Mapping[int, Node]:
            """Cotangents of the wanted operands; a missing one is an exact zero."""
            raise NotImplementedError

        def batch(
            self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
        ) -> Sequence[tuple[Node, int | None]]:
            """The results for operands that carry a batch axis, each with the place of its own."""
            raise NotImplementedError


class Composite(Primitive):
    """An operation made up of others: writes `decompose`, and all rules but the reference follow from that. It is one
    node to whoever builds a graph or looks a program up; the first pass puts what it is made of in its place
    (passes/decompose.py), so kernels, fusion and bits are those of the parts."""

    def decompose(self, *xs: Node) -> Node:
        """The result, by operations of one result each that are no composites. It depends on the parameters and on the
        kinds of the operands alone."""
        raise NotImplementedError

    def parts(self, xs: Sequence[Node]) -> tuple[list[Node], Node]:
        """(nodes that compute the result from these operands, in order; the result)."""
        out, given = self.decompose(*xs), set(xs)
        order = reachable_by([out], lambda node: () if node in given else node.inputs)
        return [node for node in order if node not in given], out

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return self.decompose(*[Node(Placeholder(self.title), (), kind) for kind in kinds]).kind

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        order, _ = self.parts([Node(Placeholder(self.title), (), kind) for kind in kinds])
        return sum([node.op.flops(node.kind, *[x.kind for x in node.inputs]) for node in order])

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        order, result = self.parts(primals)
        known = {primals[i]: tangent for i, tangent in tangents.items()}
        for node in order:
            moved = {i: known[x] for i, x in enumerate(node.inputs) if x in known}
            tangent = node.op.jvp(node, node.inputs, moved) if moved else None
            if tangent is not None:
                known[node] = tangent
        return known.get(result)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        order, result = self.parts(primals)
        active = {primals[i] for i in wanted}
        for node in order:
            if not active.isdisjoint(node.inputs):
                active.add(node)
        gathered = {result: cotangent}
        for node in reversed(order):
            given = gathered.get(node)
            traced = frozenset([i for i, x in enumerate(node.inputs) if x in active])
            if given is None or not traced:
                continue
            for i, term in node.op.vjp(node, node.inputs, given, traced).items():
                x = node.inputs[i]
                gathered[x] = gathered[x] + term if x in gathered else term
        # An operand that stands in two places has its whole cotangent at the first.
        first = {primals[i]: i for i in sorted(wanted, reverse=True)}
        return {i: gathered[x] for x, i in first.items() if x in gathered}

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        one = [
            Node(Placeholder(self.title), (), x.kind if axis is None else _without(x.kind, axis))
            for x, axis in zip(inputs, axes, strict=True)
        ]
        order, result = self.parts(one)
        known: dict[Node, tuple[Node, int | None]] = dict(zip(one, zip(inputs, axes, strict=True), strict=True))
        for node in order:
            given = [known[x] for x in node.inputs]
            batched = any(axis is not None for _, axis in given)
            nodes, places = tuple([x for x, _ in given]), tuple([axis for _, axis in given])
            known[node] = node.op.batch(nodes, places, size) if batched else (node.on(nodes), None)
        found, axis = known[result]
        return (found, axis) if axis is not None else (move_batch_to_front(found, None, size), 0)


def _without(kind: ArrayType, axis: int) -> ArrayType:
    """The kind of one element of a batch along an axis."""
    return kind_of((*kind.shape[:axis], *kind.shape[axis + 1 :]), kind.dtype)


class ControlFlow(MultiOutput):
    """What runs bodies: loops and branches. Its code is that of the plans of its bodies; its reference gets a function
    `run(body, operands)`."""

    recurs = False

    def wants_contiguous(self, position: int) -> bool:
        """Whether an operand must lie in memory in row-major order."""
        return False


class GetResult(Primitive):
    """Result number `index` of an operation that has several."""

    index: int
    node_class = Picked
    takes_arrays = False

    def infer(self, *kinds: ArrayType) -> ArrayType:
        (kind,) = kinds
        assert isinstance(kind, TupleType)
        return kind.parts[self.index]

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 1 and isinstance(kinds[0], TupleType), "it picks from what has one result")
        assert isinstance(kinds[0], TupleType)
        need(0 <= self.index < len(kinds[0].parts), f"result {self.index} of {len(kinds[0].parts)}")


def reduced_shape(shape: Shape, axes: Sequence[int]) -> Shape:
    """`shape` with 1 in place of each of `axes`."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))
