"""Calls: addresses of tensors in, new tensors out.

A program is planned for the sizes of a call once. After that a call takes the addresses of its tensors, lets torch
allocate what it gives, and runs; nothing is copied, and nothing of Weft's stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.array import wrap
from weft.frontends.torch.layouts import dense_strides, is_identity, laid_out
from weft.frontends.torch.signature import Argument, Output, Own, Seen, Signature, Value, evaluated, evaluated_all
from weft.graph.node import Kind, Node, kind_of
from weft.primitives.base import DATA
from weft.program import Program
from weft.runtime.buffer import foreign
from weft.runtime.data import Buffer

_data_ptr = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous
MOST_SIZES = 1024
"""Sets of sizes that a graph keeps plans for."""


class Compiled:
    """A graph's program: called with the list of its arguments, it gives the list of its outputs. `program` is None if
    nothing is computed."""

    def __init__(self, signature: Signature, program: Program | None) -> None:
        self.signature, self.program = signature, program
        self._by_sizes: dict[tuple[int, ...], SizedCall] = {}
        self._only: SizedCall | None = None
        self._boxed_call = True  # torch hands over a list that may be emptied

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.call_for(args)(args)

    def call_for(self, args: Sequence[Any]) -> SizedCall:
        """What runs for arguments of these sizes."""
        if self._only is not None:
            return self._only
        symbols = self.signature.symbols
        sizes = tuple([args[s.argument] if s.axis is None else args[s.argument].shape[s.axis] for s in symbols])
        call = self._by_sizes.get(sizes)
        if call is None:
            if len(self._by_sizes) >= MOST_SIZES:
                self._by_sizes.clear()
            known = {s.name: int(n) for s, n in zip(symbols, sizes, strict=True)}
            call = self._by_sizes[sizes] = SizedCall(self.signature, self.program, known)
            if not symbols:
                self._only = call
        return call


def kinds_of(signature: Signature, program: Program, known: Mapping[str, int]) -> list[Kind]:
    """Those of the program's inputs, for these sizes."""
    shapes: list[tuple[int, ...]] = []
    for x in signature.given:
        sizes = evaluated_all(x.shape, known)
        shapes.append(tuple([sizes[axis] for axis in x.order]))
    shapes += [(known[name],) for name in signature.carriers]
    if signature.draws:
        shapes.append((2,))
    return [kind_of(shape, given.dtype) for shape, given in zip(shapes, program.inputs, strict=True)]


class SizedCall:
    """A graph's program for one set of sizes."""

    def __init__(self, signature: Signature, program: Program | None, known: Mapping[str, int]) -> None:
        self.signature, self._known = signature, known
        self._tensors = [(x.argument, None if is_identity(x.order) else x.order) for x in signature.given]
        self._carriers = [0] * len(signature.carriers)
        self._made = [
            (shape := evaluated_all(x.shape, known), _strides(x, shape, known), getattr(torch, x.dtype.split(".")[-1]))
            for x in signature.made
        ]
        self._outputs = [self._maker(output) for output in signature.outputs]
        self._updates = [(x.argument, x.result) for x in signature.updates]
        self._is_plain = not self._updates and all(
            isinstance(x, Own) and x.number == i for i, x in enumerate(signature.outputs)
        )
        self._run: Callable[[list[int]], None] | None = None
        self.executable: Any = None
        if program is not None:
            self._prepare(program)

    def _prepare(self, program: Program) -> None:
        kinds = kinds_of(self.signature, program, self._known)
        instance = program._instance_for(kinds)
        recipe = instance.variant.recipe_for(kinds)
        assert recipe is not None
        executable = self.executable = recipe.executable
        self._words = [word for value in executable.constants for word in value.words]
        self._leaves: list[Any] = list(instance.variant.inputs)
        if not executable.simple or executable.device is not None or executable.program is None:
            return
        self._places = [(leaf, 0) if leaf.__class__ is int else (-1, leaf.address) for leaf in self._leaves]
        self._in_order = [place for place, _ in self._places] == list(range(len(program.inputs)))
        self._run = executable.program.run

    def __call__(self, args: list[Any]) -> list[Any]:
        given = []
        for argument, order in self._tensors:
            x = args[argument]
            if order is not None:
                x = laid_out(x, order)
            elif not _is_contiguous(x):
                x = x.contiguous()
            given.append(x)
        if self.signature.draws:
            given += [None] * len(self._carriers)
            given.append(torch.randint(0, 1 << 32, (2,)).to(torch.uint32))
        own = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in self._made]
        if self._run is not None:
            addresses = [0 if x is None else _data_ptr(x) for x in given]
            addresses += self._carriers[: len(self.signature.given) + len(self._carriers) - len(given)]
            if not self._in_order:
                addresses = [addresses[place] if place >= 0 else fixed for place, fixed in self._places]
            addresses += map(_data_ptr, own)
            addresses += self._words
            self._run(addresses)
        elif self.executable is not None:
            self._run_and_copy(given, own)
        if self._is_plain:
            return own
        for argument, result in self._updates:
            args[argument].copy_(own[result])
        made = [maker(args, own) for maker in self._outputs]
        args.clear()
        return made

    def _run_and_copy(self, given: Sequence[Any], own: Sequence[torch.Tensor]) -> None:
        """Where results share memory, with each other or with what is given: each is copied to where it belongs."""
        tensors = [*given, *[None] * (len(self.signature.given) + len(self._carriers) - len(given))]
        buffers = [_buffer(x) for x in tensors]
        chosen = [buffers[leaf] if leaf.__class__ is int else leaf for leaf in self._leaves]
        results = self.executable.run(chosen, self._words)
        for x, y, kind, buffer in zip(own, self.signature.made, self.executable.kinds, results, strict=True):
            if x.numel():
                x.permute(y.order).copy_(torch.from_dlpack(_Copied(wrap(Node(DATA, (), kind, buffer)))))

    def _maker(self, output: Output) -> Callable[[list[Any], list[torch.Tensor]], Any]:
        """How an output is made of the arguments and the results."""
        match output:
            case Argument(number):
                return lambda args, own: args[number]
            case Own(number):
                return lambda args, own: own[number]
            case Value(value):
                constant = evaluated(value, self._known)
                return lambda args, own: constant
            case Seen():
                return self._view(output)

    def _view(self, seen: Seen) -> Callable[[list[Any], list[torch.Tensor]], torch.Tensor]:
        number, own_, known = seen.number, seen.own, self._known
        shape, strides = evaluated_all(seen.shape, known), evaluated_all(seen.strides, known)
        offset = evaluated(seen.offset, known)

        def look(args: list[Any], own: list[torch.Tensor]) -> torch.Tensor:
            x = own[number] if own_ else args[number]
            return torch.as_strided(x, shape, strides, x.storage_offset() + offset)

        return look


def _strides(made: Any, shape: tuple[int, ...], known: Mapping[str, int]) -> tuple[int, ...]:
    """Those of the memory that a program writes, with torch's own where a size is 1."""
    dense = dense_strides(shape, made.order)
    if not made.strides:
        return dense
    given = evaluated_all(made.strides, known)
    if 0 in shape or any(a != b and n != 1 for a, b, n in zip(dense, given, shape, strict=True)):
        return dense
    return given


def _buffer(tensor: torch.Tensor | None) -> Buffer:
    address = 0 if tensor is None else tensor.data_ptr()
    return Buffer(foreign(tensor, address, 0 if tensor is None else tensor.nbytes), address)


class _Copied:
    """An array whose memory another library gets a copy of."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**{**options, "copy": True})

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()  # type: ignore[no-any-return]
