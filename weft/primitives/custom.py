"""Results of functions that bring their own rules, the barrier that keeps a recomputation from being merged with the
original, and values that are to have memory of their own.

A function with rules of its own (`custom_function`, `checkpoint`) is traced like any other. Each of its results is a
`Called` node: for evaluation the identity of what the function computed, for transforms one of the results of an
application, whose operands the function's rules know about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.graph.node import ArrayType, Node, Size
from weft.llvm.builder import Builder
from weft.primitives.base import Elementwise, KernelOperation, Linear, Sample, bind, full_like, move_batch_to_front
from weft.primitives.elementwise import Identity, Partials, draw, unary
from weft.records import dataclass

Batched = tuple[Node, int | None]
"""A node and where its batch axis stands."""


@dataclass(frozen=True)
class Batch:
    """What a vmap maps: the nodes that stood for one element while the function was traced, the batched operands in
    their place, and where those have their batch axis."""

    elements: tuple[Node, ...]
    operands: tuple[Node, ...]
    axes: tuple[int | None, ...]
    size: Size


class Rules(Protocol):
    """What a function knows about its own derivatives and batching. Operands and results are numbered as in its
    application."""

    def has(self, rule: str) -> bool:
        """Whether there is a rule ("jvp", "vjp" or "batch"); where there is none, transforms look inside."""

    def jvp(self, xs: Sequence[Node], outs: Sequence[Node], tangents: Mapping[int, Node]) -> Sequence[Node | None]:
        """Tangents of the results; None is an exact zero."""

    def vjp(
        self, xs: Sequence[Node], outs: Sequence[Node], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> Mapping[int, Node]:
        """Cotangents of the wanted operands; a missing one is an exact zero."""

    def batch(self, xs: Sequence[Batched], around: Batch) -> Sequence[Batched]:
        """The results for operands that carry a batch axis."""

    def batched(self, axes: Sequence[int | None], around: Batch) -> Rules:
        """The rules of the function over a batch, where there is none for batching: operands have these batch axes,
        results all have theirs in front. What the rules capture may be mapped as well (`around`)."""


class Application:
    """One call of a function with rules: it tells the results of this call from those of another."""

    __slots__ = ("arity", "rules")

    def __init__(self, rules: Rules, arity: int) -> None:
        self.rules, self.arity = rules, arity


class Called(Node):
    """Result number `index` of an application. Its operands are the value itself, then the function's operands, then
    all its results as computed."""

    __slots__ = ("application", "index")

    def __init__(self, application: Application, index: int, xs: Sequence[Node], ys: Sequence[Node]) -> None:
        super().__init__(IDENTITY, (ys[index], *xs, *ys), ys[index].kind)
        self.application, self.index = application, index

    def again(self, inputs: tuple[Node, ...], memo: dict[Any, Any]) -> Node:
        old = self.application
        new = memo.get(old)
        if new is None:
            new = memo[old] = Application(old.rules, old.arity)
        return Called(new, self.index, inputs[1 : 1 + old.arity], inputs[1 + old.arity :])

    @property
    def identity(self) -> Any:
        return self.application, self.index

    @property
    def xs(self) -> tuple[Node, ...]:
        """The operands of the function."""
        return self.inputs[1 : 1 + self.application.arity]

    @property
    def ys(self) -> tuple[Node, ...]:
        """What the function computed."""
        return self.inputs[1 + self.application.arity :]

    def seen_by(self, rule: str) -> tuple[Node, ...]:
        """The operands that a transform looks at: those of the function if it has the rule, else also what stands
        behind its results."""
        if self.application.rules.has(rule):
            return self.xs
        return self.inputs if rule == "batch" else self.inputs[:1]


IDENTITY = Identity()


def called(rules: Rules, xs: Sequence[Node], ys: Sequence[Node]) -> list[Node]:
    """The results of an application. They are made one right after the other: whatever reads one of them is newer than
    all."""
    application = Application(rules, len(xs))
    return [Called(application, i, xs, ys) for i in range(len(ys))]


class Barrier(Linear, KernelOperation):
    """A copy of the first operand that is made once the others are known. What is computed from it is not what is
    computed from the operand itself: nothing is merged across it, and nothing behind it happens early."""

    samples = tuple(
        Sample(lambda rng, dtype, shapes=shapes: [draw(rng, dtype, shape) for shape in shapes], name=name)  # type: ignore[misc]
        for name, shapes in {
            "alone": ((3, 37),),
            "after": ((3, 5), (7,)),
            "scalar": ((), (2,), (3,)),
            "empty": ((0, 4), ()),
        }.items()
    )
    cancels = False
    moves = (0,)

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def check(self, x: ArrayType, *after: ArrayType) -> None:
        self.check_dtypes(x)

    def reference(self, x: np.ndarray, *after: np.ndarray) -> np.ndarray:  # type: ignore[override]
        return x

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: Mapping[int, Node]) -> Node | None:
        return bind(self, tangents[0], *primals[1:]) if 0 in tangents else None

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        return cotangent

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return move_batch_to_front(bind(self, *inputs), axes[0], size), 0


class NoAlias(Elementwise):
    """x, in memory that none of its operands had: what computes it does not run in place."""

    compute_halves = False
    may_alias = False
    moves = (0,)
    samples = unary

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(out, 1),)

    def emit(self, b: Builder, x: Any) -> Any:
        return x
