"""What a callback is told of an exported function: inputs, outputs, constants, and each operation in turn, as MLX does.

Every message is a dict with a "type". Arrays are (name, shape, dtype); names are letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.graph.body import Body
from weft.graph.dims import Dim
from weft.graph.dot import letters
from weft.graph.node import Node
from weft.primitives.base import DATA, Bundled, Constant, GetResult
from weft.records import fields

Callback = Callable[[dict[str, Any]], None]
Named = tuple[str, tuple[int, ...], Dtype]


class _Teller:
    def __init__(self, callback: Callback, operands: Callable[[Node], Sequence[Node]]) -> None:
        self.callback, self.operands = callback, operands
        self._letters = letters()
        self._names: dict[Node, str] = {}

    def say(self, kind: str, **contents: Any) -> None:
        self.callback({**contents, "type": kind})

    def named(self, node: Node) -> Named:
        name = self._names.get(node)
        if name is None:
            name = self._names[node] = next(self._letters)
        return name, tuple([_number(n) for n in node.shape]), node.dtype

    def operations(self, order: Sequence[Node]) -> None:
        results: dict[Node, list[Node]] = {}
        for node in order:
            if isinstance(node.op, GetResult):
                results.setdefault(self.operands(node)[0], []).append(node)
        for node in order:
            if node.value is not None or isinstance(node.op, GetResult):
                continue
            self.say(
                "primitive",
                name=type(node.op).__name__.rstrip("_"),
                inputs=[self.named(x) for x in self.operands(node)],
                outputs=[self.named(x) for x in (results.get(node, []) if isinstance(node, Bundled) else [node])],
                arguments=[_argument(getattr(node.op, f.name)) for f in fields(node.op)],  # type: ignore[arg-type]
            )


def _number(n: Any) -> Any:
    """A size; that of the trace if it may change."""
    return n.hint if type(n) is Dim else n


def _argument(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_argument(part) for part in value]
    if isinstance(value, Body):
        return _body(value)
    return _number(value)


def _body(body: Body) -> list[dict[str, Any]]:
    """The messages about a body."""
    found: list[dict[str, Any]] = []
    order = [node for node in body.graph.order() if node not in body.inputs]
    _tell(found.append, body.inputs, order, body.outputs, lambda node: node.inputs, None)
    return found


def _tell(
    callback: Callback,
    inputs: Sequence[Node],
    order: Sequence[Node],
    outputs: Sequence[Node],
    operands: Callable[[Node], Sequence[Node]],
    keywords: Sequence[tuple[str, int]] | None,
) -> None:
    teller = _Teller(callback, operands)
    teller.say("inputs", inputs=[teller.named(node) for node in inputs])
    if keywords is not None:
        teller.say("keyword_inputs", keywords=[(name, teller.named(inputs[i])[0]) for name, i in keywords])
    teller.say("outputs", outputs=[teller.named(node) for node in outputs])
    teller.say("constants", constants=[(teller.named(x)[0], _data(x)) for x in order if x.value is not None])
    teller.operations(order)


def _data(node: Node) -> array:
    if isinstance(node.op, Constant):
        return wrap(Node(node.op, (), node.kind, node.value))
    return wrap(Node(DATA, (), node.kind, node.value))


def tell(callback: Callback, traced: Any, keywords: Sequence[tuple[str, int]]) -> None:
    """All of a trace (weft.transforms.exporting.Traced). `keywords`: names, and which inputs they are."""
    _tell(callback, traced.params, traced.order, traced.results, traced.operands, keywords)
