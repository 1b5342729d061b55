"""Graphs that need no gradients and change nothing: ATen's operators, recorded in one pass.

AOTAutograd goes over a graph twice, through layers that make changes of memory functional and prepare for gradients.
A graph that changes nothing is functional as it is. What Dynamo found is run once, on its tensors without values, and
the operators that it comes down to are written down with their results. Whatever is not plainly of this kind is left to
AOTAutograd: symbols in sizes, changes of tensors, regions with states of their own (autocast, gradients, transforms).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.frontends.torch.aliasing import is_seen, root_of

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
HARMLESS = frozenset({"_log_api_usage_once"})
"""Functions of a graph that begin with an underscore, as those that change torch's state do, and change none."""

UNSEEN = frozenset({"requires_grad_", "detach_", "retain_grad", "backward", "register_hook", "share_memory_"})
"""Methods that do to a tensor what no operator shows."""

UNSAFE = {
    torch.ops.aten.unsafe_split.Tensor: torch.ops.aten.split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default: torch.ops.aten.split_with_sizes.default,
}

Table = Mapping[Any, Callable[..., Any]]


def recorded(module: fx.GraphModule, example: Sequence[Any], decompositions: Table) -> fx.GraphModule | None:
    """Dynamo's graph as one of ATen's operators; None if it is for AOTAutograd."""
    if not _is_plain(module, example):
        return None
    given = [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]
    recorder = _Recorder(decompositions)
    for node, value in zip(_placeholders(module), given, strict=True):
        recorder.add_placeholder(node.target, value)
    try:
        with ExitStack() as stack:
            if given:
                stack.enter_context(given[0].fake_mode)
            stack.enter_context(enable_python_dispatcher())
            stack.enter_context(recorder)
            outputs = _run(module, given, recorder)
        recorder.end(outputs)
    except Exception:  # also one of the model's own: AOTAutograd meets it again, and says where it comes from
        return None
    return fx.GraphModule(torch.nn.Module(), recorder.graph)


def _placeholders(module: fx.GraphModule) -> Iterator[fx.Node]:
    return (node for node in module.graph.nodes if node.op == "placeholder")


def _is_plain(module: fx.GraphModule, example: Sequence[Any]) -> bool:
    if any(type(x) not in PLAIN for x in example):
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in example):
        return False
    return bool(example) and all(map(_is_plain_node, module.graph.nodes))


def _is_plain_node(node: fx.Node) -> bool:
    if node.op == "output":
        return isinstance(node.args[0], (tuple, list))
    if not _has_numbers(node.meta.get("example_value")):
        return False
    if node.op == "placeholder":
        return isinstance(node.meta.get("example_value"), FakeTensor)
    if node.op == "call_method":
        return node.target not in UNSEEN
    if node.op != "call_function" or isinstance(node.target, (HigherOrderOperator, OpOverload)):
        return False
    name = getattr(node.target, "__name__", "_")
    return name in HARMLESS or not (name.startswith("_") or "functorch" in (node.target.__module__ or ""))


def _has_numbers(value: Any) -> bool:
    """Whether all sizes of a value are numbers, and it is none that depends on data."""
    if isinstance(value, (tuple, list)):
        return all(map(_has_numbers, value))
    if isinstance(value, torch.Tensor):
        return not value._has_symbolic_sizes_strides
    return not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _run(module: fx.GraphModule, given: Sequence[Any], recorder: _Recorder) -> Any:
    """The graph's outputs, from tensors without values; each node's last reader drops it."""
    values: dict[fx.Node, Any] = dict(zip(_placeholders(module), given, strict=True))
    for node in module.graph.nodes:
        if node.op == "placeholder":
            continue
        args = fx.map_arg(node.args, values.__getitem__)
        if node.op == "output":
            return args[0]
        kwargs: Any = fx.map_arg(node.kwargs, values.__getitem__)
        recorder.line = node.meta.get("stack_trace")
        fun = getattr(args[0], str(node.target)) if node.op == "call_method" else node.target
        values[node] = fun(*(args[1:] if node.op == "call_method" else args), **kwargs)  # type: ignore[operator]
    raise AssertionError("a graph has an output")


class NotFunctional(Exception):
    """A graph does something that this module leaves to AOTAutograd."""


class _Recorder(TorchDispatchMode):
    """Writes down what is dispatched while it is the innermost mode."""

    def __init__(self, decompositions: Table) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.line: str | None = None
        self._decompositions = decompositions
        self._nodes: dict[int, tuple[fx.Node, int | None]] = {}
        """By the id of a tensor: the node that it is the result of, and which one, where that has several."""
        self._alive: list[Any] = []
        self._shared: set[int] = set()
        """The ids of tensors whose memory others look at, or may: what was given, and what there are views of."""
        self._wholes: dict[int, int] = {}
        """By the id of a piece that may be overwritten: that of the tensor whose piece it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # no value of the graph
            return func(*args, **kwargs)
        if func in UNSAFE:
            return self._split(func, args, kwargs)
        if func in self._decompositions:
            with self:
                made = self._decompositions[func](*args, **kwargs)
            if made is not NotImplemented:
                return made
        elif _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func._schema.is_mutable:
            return self._overwrite(func, args, kwargs)
        return self._record(func, func, args, kwargs)

    def _record(self, func: Any, written: Any, args: Any, kwargs: Any) -> Any:
        """What `func` gives, which the graph has as `written`."""
        made = func(*args, **kwargs)
        if not _is_view(written):
            made = _apart(made, args)
        self._add(self.graph.call_function(written, self._noted(args), self._noted(kwargs)), made)
        if _is_view(written):
            self._shared.update([id(x) for x in (args[0], *(made if isinstance(made, (list, tuple)) else [made]))])
        return made

    def _split(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Pieces that torch's own operators may overwrite, because they are done with the whole: cells of recurrent
        networks do. If it is read again after that, it is no such piece."""
        whole = id(args[0])
        is_free = whole in self._nodes and whole not in self._shared
        pieces = self._record(func, UNSAFE[func], args, kwargs)
        if is_free:
            self._shared.difference_update(map(id, pieces))
            self._wholes.update(dict.fromkeys(map(id, pieces), whole))
        return pieces

    def _overwrite(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator that changes its first operand, where that is a value of the graph whose memory no other looks
        at: from then on it is the result of the operator that does not."""
        target, plain = args[0], _without_change(func)
        if plain is None or id(target) not in self._nodes or id(target) in self._shared:
            raise NotFunctional(str(func))
        made = plain(*args, **kwargs)
        if (made.dtype, made.shape) != (target.dtype, target.shape):
            raise NotFunctional(f"{func}: {made.dtype} for {target.dtype}")
        node = self.graph.call_function(plain, self._noted(args), self._noted(kwargs))
        self._describe(node, target)
        self._nodes[id(target)] = node, None
        if id(target) in self._wholes:
            self._nodes.pop(self._wholes[id(target)], None)
        return target

    def add_placeholder(self, name: Any, value: Any) -> None:
        self._add(self.graph.placeholder(name), value)
        self._shared.add(id(value))

    def end(self, outputs: Any) -> None:
        """The graph gives these."""
        wanted = tuple(self._noted(list(outputs)))
        for x in wanted:
            if isinstance(x, fx.Node) and not _is_plain_view(x):
                raise NotFunctional(f"{x}: a view that sizes and strides do not tell")
        self.graph.output(wanted)
        self.graph.eliminate_dead_code()

    def _add(self, node: fx.Node, made: Any) -> None:
        self._describe(node, made)
        if isinstance(made, torch.Tensor):
            self._keep(made, node, None)
        elif isinstance(made, (tuple, list)):
            for i, x in enumerate(made):
                if isinstance(x, torch.Tensor):
                    self._keep(x, node, i)
        elif made is not None:
            raise NotFunctional(f"{node.target}: {type(made)}")

    def _describe(self, node: fx.Node, value: Any) -> None:
        node.meta["val"] = value
        if self.line is not None:
            node.meta["stack_trace"] = self.line

    def _keep(self, tensor: torch.Tensor, node: fx.Node, number: int | None) -> None:
        if not isinstance(tensor, FakeTensor) or tensor._has_symbolic_sizes_strides:
            raise NotFunctional(str(node.target))
        self._nodes[id(tensor)] = node, number
        self._alive.append(tensor)

    def _noted(self, value: Any) -> Any:
        """Arguments as a graph has them: nodes in place of tensors."""
        if isinstance(value, torch.Tensor):
            return self._node(value)
        if isinstance(value, (list, tuple)):
            return [self._noted(x) for x in value] if isinstance(value, list) else tuple(map(self._noted, value))
        return {k: self._noted(x) for k, x in value.items()} if isinstance(value, dict) else value

    def _node(self, tensor: torch.Tensor) -> fx.Node:
        if id(tensor) not in self._nodes:
            raise NotFunctional("a tensor of no operator")
        node, number = self._nodes[id(tensor)]
        if number is None:
            return node
        part = self.graph.call_function(operator.getitem, (node, number))
        part.meta["val"] = tensor
        self._nodes[id(tensor)] = part, None
        return part


def _apart(made: Any, args: Any) -> Any:
    """Results in memory of their own, where what tells their sizes gives back an argument: dropout does that, if it
    drops nothing."""
    if isinstance(made, (tuple, list)):
        return type(made)([_apart(x, args) for x in made])
    is_given = isinstance(made, torch.Tensor) and any(made is x for x in args)
    return made.clone() if is_given else made


def _is_view(func: Any) -> bool:
    """Whether results look at the memory of the first operand: torch's word for it is the schema's."""
    return any(x.alias_info is not None for x in func._schema.returns)


def _is_plain_view(node: fx.Node) -> bool:
    """Whether a node, if it looks at an argument, can be made from this with sizes and strides. AOTAutograd can make
    other views: of other dtypes, of conjugates, and those that need no gradients where the argument does."""
    root = root_of(node)
    if root.op != "placeholder" or root is node:
        return True
    return is_seen(node, root) and not root.meta["val"].requires_grad


def _without_change(func: Any) -> Any:
    """The operator that gives what `func` writes to its first operand, and to nothing else; None if there is none."""
    arguments = func._schema.arguments
    written = [x.alias_info is not None and x.alias_info.is_write for x in arguments]
    space, _, name = func._schema.name.partition("::")
    if space != "aten" or torch.Tag.inplace_view in func.tags:  # other sizes and strides of the same memory
        return None
    if not name.endswith("_") or written != [True] + [False] * (len(arguments) - 1):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, func._overloadname, None)


def _is_composite(func: Any) -> bool:
    """Whether torch takes an operator apart, which in inference mode is left to modes."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
