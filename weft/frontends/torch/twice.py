"""Gradients of gradients. AOTAutograd compiles a backward pass that cannot be differentiated. Where that is wanted
(`options={"double_backward": True}`), a function of ours stands around it: first derivatives are the compiled ones, and
where a graph of the gradient is asked for (`create_graph=True`), torch computes it by its own rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


class Twice:
    """A compiled graph that can be differentiated as often as torch can."""

    def __init__(self, run: Callable[..., Any], module: fx.GraphModule) -> None:
        self.run, self.module = run, module

    def __call__(self, *args: Any) -> Any:
        wanted = any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
        if not (wanted and torch.is_grad_enabled()):
            return self.run(*args)
        return _Differentiated.apply(self, *args)


class _Differentiated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, twice: Twice, *args: Any) -> Any:
        given = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in args]
        versions = _versions(given)
        with torch.enable_grad():
            outputs = twice.run(*given)
        if _versions(given) != versions:
            raise NotImplementedError(
                "[torch.compile] a function that changes its arguments has no gradients of gradients: compile it "
                "without the option 'double_backward', or let it return the new values."
            )
        ctx.twice, ctx.given, ctx.outputs = twice, given, tuple(outputs)
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in args]
        ctx.tensors = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*[args[i] for i in ctx.tensors])
        ctx.set_materialize_grads(False)
        made = tuple([x.detach() if isinstance(x, torch.Tensor) else x for x in ctx.outputs])
        ctx.mark_non_differentiable(*[
            x for x, y in zip(made, ctx.outputs, strict=True) if isinstance(x, torch.Tensor) and not y.requires_grad
        ])  # fmt: skip
        return made

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        given, outputs = ctx.given, ctx.outputs
        again = torch.is_grad_enabled()
        if again:  # a graph of the gradient is wanted, which the compiled pass has none of
            given = list(ctx.others)
            for i, x in zip(ctx.tensors, ctx.saved_tensors, strict=True):
                given[i] = x
            outputs = ctx.twice.module(*given)
        return (None, *_gradients(outputs, given, cotangents, ctx.needs_input_grad[1:], again))


def _gradients(
    outputs: Sequence[Any], given: Sequence[Any], cotangents: Sequence[Any], needed: Sequence[bool], again: bool
) -> list[Any]:
    places = [i for i, is_needed in enumerate(needed) if is_needed]
    pairs = [(y, ct) for y, ct in zip(outputs, cotangents, strict=True) if ct is not None and y.requires_grad]
    made: list[Any] = [None] * len(given)
    if pairs and places:
        ys, cts = zip(*pairs, strict=True)
        inputs = [given[i] for i in places]
        found = torch.autograd.grad(ys, inputs, cts, create_graph=again, allow_unused=True, retain_graph=True)
        for i, gradient in zip(places, found, strict=True):
            made[i] = gradient
    return made


def _versions(given: Sequence[Any]) -> list[int]:
    return [x._version for x in given if isinstance(x, torch.Tensor)]
