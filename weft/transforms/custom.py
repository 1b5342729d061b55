"""Functions with rules of their own: `custom_function`.

The function is traced as any other; its results carry its rules (primitives/custom.py). A rule sees the arguments as
the function saw them. Where it has no rule for a transform, a function is looked into, as in MLX; if it left nothing to
look into, because it computed elsewhere (with NumPy, say), that is an error. Under vmap, the other rules of a function
that is looked into are mapped with it: the gradient of a mapped function is its rule, mapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft import tree
from weft.array import array, wrap
from weft.graph.node import Node, Size, kind_of
from weft.graph.trace import is_tracing, trace
from weft.primitives.base import OPERATORS, Placeholder, move_batch_to_front
from weft.primitives.custom import Batch, Batched, called
from weft.transforms.arguments import handed_out, or_zeros, second_names, zeros
from weft.transforms.paths import between
from weft.transforms.vmap import batch

Function = Callable[..., Any]


class custom_function:
    """A function whose derivatives and batching are given by rules; without a rule the function itself is transformed
    (which raises if it computes outside of Weft).

    `@f.vjp` takes (primals, cotangents, outputs, **keywords) and returns cotangents in the structure of the primals,
    `@f.jvp` takes (primals, tangents) and returns tangents in the structure of the outputs, `@f.vmap` takes (inputs,
    axes) and returns (outputs, axes). The primals are the positional arguments: a tuple, or the argument itself if
    there is one. A tangent, cotangent or axis of None is a zero, or not mapped. Arrays that the function captures are
    constants to its rules.

    >>> f = custom_function(lambda x: 2 * x)
    >>> g = f.vjp(lambda x, ct, y: ct * 100)
    >>> grad(f)(array(1.0))
    array(100, dtype=float32)
    """

    def __init__(self, f: Function) -> None:
        if not callable(f):
            raise TypeError(f"[custom_function] is made from a function; got {type(f).__name__}.")
        functools.update_wrapper(self, f, ("__name__", "__qualname__", "__doc__"), ())
        self._fun = f
        self._rules: dict[str, Function] = {}

    @property
    def __wrapped_function__(self) -> tuple[Any, ...]:
        """What compile looks into for captured arrays."""
        return (self._fun, *self._rules.values())

    def vjp(self, f: Function) -> custom_function:
        """Use f(primals, cotangents, outputs) in reverse mode."""
        return self._set("vjp", f)

    def jvp(self, f: Function) -> custom_function:
        """Use f(primals, tangents) in forward mode."""
        return self._set("jvp", f)

    def vmap(self, f: Function) -> custom_function:
        """Use f(inputs, axes) under vmap."""
        return self._set("batch", f)

    def _set(self, rule: str, f: Function) -> custom_function:
        if not callable(f):
            raise TypeError(f"[custom_function] a rule is a function; got {type(f).__name__}.")
        self._rules[rule] = f
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._rules:
            return self._fun(*args, **kwargs)
        inside = second_names(args, kwargs)
        if not is_tracing():
            return self._fun(*inside[0], **inside[1])
        leaves, structure = tree.flatten((args, kwargs))
        xs = [leaf._node for leaf in leaves if isinstance(leaf, array)]
        rules = CustomRules(self, leaves, structure, bool(kwargs))
        value = self._fun(*inside[0], **inside[1])
        outs, rules.out_structure = tree.flatten(value)
        for y in outs:
            if not isinstance(y, array):
                raise ValueError(
                    f"[custom_function] {rules.name} has rules and must return arrays; it returned {type(y).__name__}."
                )
        ys = [y._node for y in outs]
        rules.is_opaque = bool(xs) and not _is_connected(xs, ys)
        return rules.out_structure.unflatten([wrap(node) for node in called(rules, xs, ys)])

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: bound like the function."""
        return self if instance is None else functools.partial(self, instance)


SIGNATURES = {
    "vjp": ("rule(primals, cotangents, outputs)", "cotangents in the structure of the primals"),
    "jvp": ("rule(primals, tangents)", "tangents in the structure of the outputs"),
}


def _is_connected(xs: Sequence[Node], ys: Sequence[Node]) -> bool:
    """Whether some result was computed from an operand, as far as the graph knows."""
    return not set(xs).isdisjoint(ys) or bool(between(xs, ys)[0])


class CustomRules:
    """The rules of a custom function for arguments of one structure. Arrays are numbered from left to right."""

    def __init__(
        self, function: custom_function, leaves: Sequence[Any], structure: tree.Structure, keywords: bool
    ) -> None:
        self.rules = dict(function._rules)
        self.name = getattr(function, "__name__", type(function._fun).__name__)
        self.structure, self.keywords = structure, keywords
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, array)]
        self.others = [None if isinstance(leaf, array) else leaf for leaf in leaves]
        self.positional = structure.children[0].num_leaves
        """Leaves before this one are of positional arguments."""
        self.out_structure = tree.LEAF
        self.is_opaque = False
        """Whether the results came from elsewhere, so that there is nothing to look into for a derivative."""

    def has(self, rule: str) -> bool:
        return rule in self.rules or (self.is_opaque and rule in SIGNATURES)

    def _rule(self, rule: str) -> Function:
        if rule not in self.rules:
            head, result = SIGNATURES[rule]
            known_as = self.name if self.name.isidentifier() else "f"
            raise ValueError(
                f"[custom_function] {self.name} has no {rule} rule, and computes outside of Weft, where no derivative "
                f"can be taken. Add the rule:\n\n    @{known_as}.{rule}\n    def {head}:\n"
                f"        return ...  # {result}\n"
            )
        return self.rules[rule]

    # ---- the rules, on nodes ----

    def vjp(
        self, xs: Sequence[Node], outs: Sequence[Node], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> Mapping[int, Node]:
        args, kwargs = self._arguments([handed_out(x) for x in xs])
        for i in wanted:
            if self.places[i] >= self.positional:
                raise ValueError(
                    f"[custom_function] the vjp rule of {self.name} gives no cotangent for keyword "
                    f"argument{self._path(i)}: pass it by position."
                )
        given = [or_zeros(ct, out.kind) for ct, out in zip(cotangents, outs, strict=True)]
        results = self.out_structure.unflatten([wrap(out) for out in outs])
        found = self._rule("vjp")(self._primals(args), self.out_structure.unflatten(given), results, **kwargs)
        return self._cotangents(xs, found, wanted)

    def jvp(self, xs: Sequence[Node], outs: Sequence[Node], tangents: Mapping[int, Node]) -> Sequence[Node | None]:
        args, _ = self._arguments([handed_out(x) for x in xs])
        self._refuse_keywords("jvp")
        given, _ = self._arguments(
            [handed_out(tangents[i]) if i in tangents else None for i in range(len(xs))], plain=False
        )
        found = self._rule("jvp")(self._primals(args), self._primals(given))
        parts = self._flat("jvp", self.out_structure, "its outputs", found)
        return [
            None if t is None else self._checked("jvp", "tangent of output", i, t, out)
            for i, (t, out) in enumerate(zip(parts, outs, strict=True))
        ]

    def batch(self, xs: Sequence[Batched], around: Batch) -> Sequence[Batched]:
        args, _ = self._arguments([handed_out(x) for x, _ in xs])
        self._refuse_keywords("vmap")
        axes, _ = self._arguments([axis for _, axis in xs], plain=False)
        found = self.rules["batch"](self._primals(args), self._primals(axes))
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError(
                f"[custom_function] the vmap rule of {self.name} must return a pair: outputs, and the batch axis of "
                "each."
            )
        outs = self._flat("vmap", self.out_structure, "its outputs", found[0])
        places = self._axes(found[0], found[1])
        results = [
            self._batched_output(i, y, axis, around.size) for i, (y, axis) in enumerate(zip(outs, places, strict=True))
        ]
        if _is_connected(around.elements, [node for node, _ in results]):
            raise ValueError(
                f"[custom_function] the vmap rule of {self.name} uses an array that is mapped but no argument of "
                f"{self.name}: pass it as an argument, so that the rule gets all of it and its axis."
            )
        return results

    def batched(self, axes: Sequence[int | None], around: Batch) -> MappedRules:
        return MappedRules(self, axes, around)

    # ---- between arrays and nodes ----

    def _arguments(self, arrays: Sequence[Any], plain: bool = True) -> tuple[Any, Any]:
        """(args, kwargs) with these in place of the arrays; other leaves as they were, or None if not `plain`."""
        leaves = list(self.others) if plain else [None] * len(self.others)
        for place, x in zip(self.places, arrays, strict=True):
            leaves[place] = x
        return self.structure.unflatten(leaves)  # type: ignore[no-any-return]

    @staticmethod
    def _primals(args: tuple[Any, ...]) -> Any:
        return args[0] if len(args) == 1 else args

    def _cotangents(self, xs: Sequence[Node], found: Any, wanted: frozenset[int]) -> dict[int, Node]:
        positional = self.structure.children[0]
        single = len(positional.children) == 1
        parts = self._flat("vjp", positional.children[0] if single else positional, "its primals", found)
        result: dict[int, Node] = {}
        for i, place in enumerate(self.places):
            if place >= self.positional:
                break
            ct = parts[place]
            if ct is not None:
                result[i] = self._checked("vjp", "cotangent of primal", i, ct, xs[i])
        return {i: node for i, node in result.items() if i in wanted}

    def _flat(self, rule: str, structure: tree.Structure, whose: str, found: Any) -> list[Any]:
        """What a rule returned, leaf by leaf."""
        try:
            return structure.flatten_up_to(found, what=whose, other="the rule's result has")
        except ValueError as error:
            raise ValueError(
                f"[custom_function] the {rule} rule of {self.name} must return arrays in the structure of {whose}, "
                f"{structure}. {error}"
            ) from None

    def _checked(self, rule: str, what: str, i: int, found: Any, like: Node) -> Node:
        if not isinstance(found, array):
            raise TypeError(
                f"[custom_function] the {rule} rule of {self.name} must return arrays (or None for zero); the {what} "
                f"{i} is {type(found).__name__}."
            )
        node = found._node
        if node.shape != like.shape or node.dtype is not like.dtype:
            raise ValueError(
                f"[custom_function] the {rule} rule of {self.name} gave {node.kind} for the {what} {i}, which is "
                f"{like.kind}: reshape it or "
                "convert it with .astype(...) in the rule."
            )
        return node

    def _refuse_keywords(self, rule: str) -> None:
        if self.keywords:
            raise ValueError(
                f"[custom_function] {self.name} has a {rule} rule, which sees positional arguments only: do not pass "
                "keywords."
            )

    def _path(self, i: int) -> str:
        return "".join(str(step) for step in self.structure.paths()[self.places[i]][1:])

    def _axes(self, outputs: Any, axes: Any) -> list[Any]:
        try:
            return tree.broadcast_prefix(axes, outputs, what="axes", other="its outputs have")
        except ValueError as error:
            raise ValueError(
                f"[custom_function] the axes that the vmap rule of {self.name} returned do not fit its outputs. {error}"
            ) from None

    def _batched_output(self, i: int, y: Any, axis: Any, size: Size) -> Batched:
        if not isinstance(y, array):
            raise TypeError(
                f"[custom_function] the vmap rule of {self.name} must return arrays; output {i} is {type(y).__name__}."
            )
        if axis is None:
            return y._node, None
        if not isinstance(axis, int) or not -y.ndim <= axis < y.ndim or y.shape[axis] != size:
            raise ValueError(
                f"[custom_function] the vmap rule of {self.name} says that output {i}, of shape {y.shape}, has its "
                f"batch of {size} along axis {axis!r}."
            )
        return y._node, axis % y.ndim


class MappedRules:
    """The rules of a function that was mapped by looking inside: each rule, mapped over the same operands, and over
    what it captured of the mapped function (`around`). Results have their batch in front."""

    def __init__(self, rules: Any, axes: Sequence[int | None], around: Batch) -> None:
        self.rules, self.axes, self.around = rules, tuple(axes), around

    def has(self, rule: str) -> bool:
        return rule != "batch" and self.rules.has(rule)  # type: ignore[no-any-return]

    def batch(self, xs: Sequence[Batched], around: Batch) -> Sequence[Batched]:
        raise AssertionError("a function that was mapped by looking inside is looked into again")

    def batched(self, axes: Sequence[int | None], around: Batch) -> MappedRules:
        return MappedRules(self, axes, around)

    def jvp(self, xs: Sequence[Node], outs: Sequence[Node], tangents: Mapping[int, Node]) -> Sequence[Node | None]:
        positions = list(tangents)

        def rule(nodes: Sequence[Node]) -> list[Node | None]:
            rest, given = nodes[: len(xs) + len(outs)], nodes[len(xs) + len(outs) :]
            return list(self.rules.jvp(rest[: len(xs)], rest[len(xs) :], dict(zip(positions, given, strict=True))))

        axes = [*self.axes, *[0] * len(outs), *[self.axes[i] for i in positions]]
        return self._mapped(rule, [*xs, *outs, *tangents.values()], axes)

    def vjp(
        self, xs: Sequence[Node], outs: Sequence[Node], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> Mapping[int, Node]:
        given = [zeros(out.kind) if ct is None else ct for ct, out in zip(cotangents, outs, strict=True)]
        order = sorted(wanted)

        def rule(nodes: Sequence[Node]) -> list[Node | None]:
            n, m = len(xs), len(outs)
            found = self.rules.vjp(nodes[:n], nodes[n : n + m], nodes[n + m :], wanted)
            return [found.get(i) for i in order]

        found = self._mapped(rule, [*xs, *outs, *given], [*self.axes, *[0] * (2 * len(outs))])
        return {i: self._returned(ct, self.axes[i]) for i, ct in zip(order, found, strict=True) if ct is not None}

    @staticmethod
    def _returned(cotangent: Node, axis: int | None) -> Node:
        """The cotangent of an operand: along its batch axis, or summed over the batch where the operand is the same for
        all."""
        if axis is None:
            return OPERATORS["sum"](cotangent, (0,))
        order = list(range(1, cotangent.ndim))
        order.insert(axis, 0)
        return OPERATORS["transpose"](cotangent, tuple(order))

    def _mapped(
        self, rule: Callable[[Sequence[Node]], list[Node | None]], nodes: Sequence[Node], axes: Sequence[int | None]
    ) -> list[Node | None]:
        """The rule over the batch; what it returns has its batch in front."""
        elements = [node if axis is None else _element(node, axis) for node, axis in zip(nodes, axes, strict=True)]
        with trace():
            found = rule(elements)
        mapped = [i for i, axis in enumerate(axes) if axis is not None]
        present = [node for node in found if node is not None]
        around = self.around
        made = batch(
            [*around.elements, *[elements[i] for i in mapped]],
            present,
            [*around.operands, *[nodes[i] for i in mapped]],
            [*around.axes, *[axes[i] for i in mapped]],
            around.size,
        )
        front = iter([move_batch_to_front(node, axis, around.size) for node, axis in made])
        return [None if node is None else next(front) for node in found]


def _element(node: Node, axis: int) -> Node:
    return Node(Placeholder("vmap"), (), kind_of(tuple(n for i, n in enumerate(node.shape) if i != axis), node.dtype))
