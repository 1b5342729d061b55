"""The backend of torch.compile: `torch.compile(model, backend="weft")`, found by its entry point.

AOTAutograd gives functional graphs of ATen's operators, forward and backward. Each becomes a program; where an operator
has no rule, the graph is cut around it and torch computes it.
"""

from __future__ import annotations

import gc
import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.passes.split_module import split_module

from weft.errors import ComputationError
from weft.frontends.torch.aliasing import LIES, begins_at_data, is_update
from weft.frontends.torch.calls import Compiled
from weft.frontends.torch.data_sizes import CheckFailed
from weft.frontends.torch.graph import (
    Translation,
    Unsupported,
    place_of,
    why_not,
    with_checks,
    without_checks,
    without_kept,
)
from weft.frontends.torch.layouts import is_identity
from weft.frontends.torch.recording import recorded
from weft.frontends.torch.restricting import InPlace, permission
from weft.frontends.torch.signature import Own, Signature
from weft.frontends.torch.twice import Twice
from weft.program import trace

LOG = logging.getLogger("weft.torch")


def compiled(module: fx.GraphModule, in_place: InPlace = True, kept: int | None = None, share: bool = True) -> Compiled:
    """A graph all of which there are rules for. Outputs from number `kept` on may lie in any order."""
    wanted: Any = next(node for node in module.graph.nodes if node.op == "output").args[0]
    translation = Translation(
        module, wanted if isinstance(wanted, (tuple, list)) else [wanted], (), in_place, kept, share
    )
    program = None
    if translation.results:
        program = trace(
            translation.build, translation.inputs, name="graph", sizes=translation.hints, updates=translation.updates
        )
    return Compiled(translation.signature, program)


def compile_graph(
    module: fx.GraphModule, example: Sequence[Any], in_place: InPlace = True, share: bool = True
) -> Callable[[list[Any]], Any]:
    """A functional graph as something to call with a list of its arguments. What a rule refuses is left to torch, as is
    what has none; and so is a graph at which anything else fails."""
    with _no_collections():
        if without_checks(module.graph):
            module.recompile()
        try:
            _note_orders(module, example)
            return _compile_graph(module, in_place, share)
        except Exception as error:
            LOG.warning("[torch.compile] %s; torch computes the graph", _described(error))
            return _Boxed(module)


def _described(error: Exception) -> str:
    """Why there is no program. What is no refusal of a rule is a fault of the backend's."""
    return str(error) if isinstance(error, Unsupported) else f"no program was made ({type(error).__name__}: {error})"


def _note_orders(module: fx.GraphModule, example: Sequence[Any]) -> None:
    """Note at arguments that they lie otherwise than torch traced: as a program for the way there keeps them."""
    for node, given in zip((x for x in module.graph.nodes if x.op == "placeholder"), example, strict=False):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not isinstance(given, torch.Tensor):
            continue
        strides = (*value.stride(), *given.stride())
        if all(type(n) is int for n in strides) and value.shape == given.shape and value.stride() != given.stride():
            node.meta[LIES] = given


def _first_kept() -> int | None:
    """The number of the first output of a graph that is for its way back alone; None where torch does not ask how these
    lie, or where tokens come first (`without_checks`), which it does not count."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.output_strides is None or context.fw_metadata is None:
        return None
    if context.fw_metadata.tokens:
        return None
    return int(context.fw_metadata.num_forward)


def _report(signature: Signature) -> None:
    """Tell torch how outputs lie that are for the way back, where that is not as it traced them."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.output_strides is None or context.output_strides:
        return
    if context.fw_metadata is not None and context.fw_metadata.tokens:
        return
    orders = [signature.made[x.number] if isinstance(x, Own) else None for x in signature.outputs]
    context.output_strides.extend(
        None if made is None or is_identity(made.order) else made.strides  # type: ignore[misc]
        for made in orders
    )


@contextmanager
def _no_collections() -> Iterator[None]:
    """Without runs of the garbage collector: what is made here is kept, and with torch's own million of objects each
    full run takes a quarter of a second, some of them in each compilation."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _compile_graph(module: fx.GraphModule, in_place: InPlace, share: bool) -> Callable[[list[Any]], Any]:
    reasons = {node: reason for node in module.graph.nodes if (reason := _why_not(node)) is not None}
    if not reasons:
        try:
            made = _Careful(module, in_place, _first_kept(), share)
            if made.has_sizes:
                return made
            only = made.only
            _report(made.signature)
            return only
        except Unsupported as error:
            if error.node is None:
                raise
            reasons[error.node] = str(error)
    for node, reason in reasons.items():
        LOG.warning("[torch.compile] %s; torch computes it%s", reason, place_of(node))
    return _in_parts(module, set(reasons), in_place, share)


def _why_not(node: fx.Node) -> str | None:
    """Why a node is left to torch. AOTAutograd makes outputs that are views of arguments again, from where those lie
    that it gets: they must be views."""
    if node.op == "call_function" and begins_at_data(node):
        return f"{node.target}: a view that begins where data say"
    return why_not(node)


def _in_parts(module: fx.GraphModule, left: set[fx.Node], in_place: InPlace, share: bool) -> Callable[[list[Any]], Any]:
    """Programs for the parts of a graph between the nodes that are left to torch.

    A part has a level: that of what it needs, or one more where Weft and torch change places. Even levels are Weft's.
    One of several results is taken where they are computed, so that parts hand tensors on. Arguments get their new
    values in the last.
    """
    levels: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        level = max([levels.get(x, 0) for x in node.all_input_nodes], default=0)
        if node.target is operator.getitem:
            levels[node] = level
            continue
        levels[node] = level + ((level % 2 == 1) != (node in left))
    last = max(levels.values(), default=0)
    for node in levels:
        if is_update(node):  # behind all that may read the argument as it was
            levels[node] = last + last % 2
    whole = split_module(module, module, lambda node: levels[node], keep_original_order=False)
    for name, part in whole.named_children():
        number = name.rpartition("_")[2]
        if isinstance(part, fx.GraphModule) and number.isdigit() and int(number) % 2 == 0:
            setattr(whole, name, _Part(part, in_place, share))
        elif isinstance(part, fx.GraphModule):
            setattr(whole, name, with_checks(part))
    _in_order(whole)
    return _Boxed(whole)


def _in_order(whole: fx.GraphModule) -> None:
    """Run parts by their numbers: what reads an argument before what changes it."""
    last = next(iter(reversed(whole.graph.nodes)))
    calls = [node for node in whole.graph.nodes if node.op == "call_module"]
    for call in sorted(calls, key=lambda node: int(str(node.target).rpartition("_")[2])):
        for node in (call, *[user for user in call.users if user.target is operator.getitem]):
            last.prepend(node)
    whole.recompile()


class _Careful:
    """A graph's program, called with a list. For sizes that it cannot be planned for torch runs the graph."""

    def __init__(
        self, module: fx.GraphModule, in_place: InPlace = True, kept: int | None = None, share: bool = True
    ) -> None:
        self._module, self._compiled = module, compiled(module, in_place, kept, share)
        self._boxed_call = True

    @property
    def signature(self) -> Signature:
        return self._compiled.signature

    @property
    def has_sizes(self) -> bool:
        return bool(self._compiled.signature.symbols) or self._compiled.signature.depends_on_data

    @property
    def only(self) -> Callable[[list[Any]], list[Any]]:
        """What runs where all sizes are known."""
        return self._compiled.call_for(())

    def __call__(self, args: list[Any]) -> list[Any]:
        try:
            call = self._compiled.call_for(args)
        except Exception as error:
            LOG.warning("[torch.compile] %s; torch computes it for these sizes", _described(error))
            return self._by_torch(args)
        if not self._compiled.signature.depends_on_data:
            return call(args)
        try:
            return call(args)
        except (ComputationError, CheckFailed, torch.linalg.LinAlgError):  # of what the user computes
            raise
        except Exception as error:  # when it traced the call, before anything was changed
            LOG.warning("[torch.compile] %s; torch computes it for such data", _described(error))
            return self._by_torch(args)

    def _by_torch(self, args: Sequence[Any]) -> list[Any]:
        made = with_checks(self._module)(*args)
        return list(made) if isinstance(made, (tuple, list)) else [made]  # a part's only result stands alone


class _Part(torch.nn.Module):
    """A part of a graph that Weft computes, or torch if a rule refuses it."""

    def __init__(self, module: fx.GraphModule, in_place: InPlace, share: bool) -> None:
        super().__init__()
        wanted = next(node for node in module.graph.nodes if node.op == "output").args[0]
        self._single = not isinstance(wanted, (tuple, list))
        self._kinds = [
            (k, value.dtype, tuple(n if type(n) is int else None for n in value.shape))
            for k, node in enumerate(x for x in module.graph.nodes if x.op == "placeholder")
            if isinstance(value := node.meta.get("val"), torch.Tensor)
        ]
        self._module = module
        self._run: Callable[[list[Any]], Any]
        try:
            self._run = _Careful(module, in_place, share=share)
        except Exception as error:
            LOG.warning("[torch.compile] %s; torch computes it", _described(error))
            self._run = _Boxed(module)

    def _are_as_traced(self, args: Sequence[Any]) -> bool:
        """Whether tensors are what torch traced: what it computes may be of another dtype or size than it says."""
        return all(
            args[k].dtype is dtype
            and args[k].dim() == len(shape)
            and all(m is None or n == m for n, m in zip(args[k].shape, shape, strict=True))
            for k, dtype, shape in self._kinds
        )

    def forward(self, *args: Any) -> Any:
        if not self._are_as_traced(args):
            return with_checks(self._module)(*args)
        made = self._run(list(args))
        return made[0] if self._single and isinstance(made, list) else made


class _Boxed:
    """A module that is called with a list, and that torch runs."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = with_checks(module)
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return self._module(*given)


class _Unboxed:
    """The other way: what takes a list, called with arguments."""

    def __init__(self, run: Callable[[list[Any]], Any]) -> None:
        self._run = run

    def __call__(self, *args: Any) -> Any:
        return self._run(list(args))


@cache
def _decompositions() -> dict[Any, Any]:
    """What torch takes apart, found once: to ask a thousand operators takes longer than a small model."""
    return without_kept(core_aten_decompositions())


def weft(module: fx.GraphModule, example: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """What torch.compile calls for backend="weft". Its `options` may have `in_place`, which is that of
    `from_exported`, and `double_backward`: whether gradients can be differentiated again."""
    options = dict(given.get("options") or {})
    in_place, again = options.pop("in_place", True), options.pop("double_backward", False)
    if options:
        raise ValueError(
            f"[torch.compile] backend 'weft' has no option {min(options)!r}; it has 'double_backward' and 'in_place'."
        )
    permission(in_place)  # what is wrong with it is wrong here
    compiler = partial(compile_graph, in_place=in_place)
    with _no_collections():
        plain = recorded(module, example, _decompositions())
    if plain is not None:
        return _Unboxed(compiler(plain, example))
    # What a forward pass saves for the backward one may be views of one value, and nobody sees that.
    apart = partial(compiler, share=False)
    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=apart,
        bw_compiler=apart,
        inference_compiler=compiler,
        decompositions=_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with _no_collections():
        run = backend(module, example)
    return Twice(run, module) if again else run  # type: ignore[no-any-return]
