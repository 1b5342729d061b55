"""Calls: addresses of tensors in, new tensors out.

A program is planned for the sizes of a call once. After that a call takes the addresses of its tensors, lets torch
allocate what it gives, and runs; nothing is copied, and nothing of Weft's stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.array import wrap
from weft.errors import LinAlgError
from weft.frontends.torch.graph import Unsupported
from weft.frontends.torch.layouts import dense_strides, inverse, is_identity, laid_out
from weft.frontends.torch.ops import DTYPES
from weft.frontends.torch.signature import Argument, Made, Output, Own, Seen, Signature, Value, evaluated, evaluated_all
from weft.graph.node import ArrayType, Node, kind_of
from weft.passes.executable import Executable
from weft.primitives.base import DATA, constant
from weft.program import Program
from weft.runtime.buffer import foreign
from weft.runtime.data import Buffer
from weft.runtime.program import ProgramError, Progress

_data_ptr = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous
try:
    from torch._C._dynamo.guards import _empty_strided_cpu as _empty  # half the time of the public one
except ImportError:

    def _empty(shape: Any, strides: Any, dtype: Any) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype)


def _is_lazy(x: torch.Tensor) -> bool:
    """Whether the elements are the conjugates, or the negatives, of what lies in memory."""
    return x.is_conj() or x.is_neg()


def _failure(executable: Executable, error: ProgramError) -> Exception:
    """The error of a call that failed: of torch's class, where it has one of its own."""
    found = executable.failure(error)
    return torch.linalg.LinAlgError(str(found)) if isinstance(found, LinAlgError) else found


MOST_SIZES = 1024
"""Sets of sizes that a graph keeps plans for."""


class Compiled:
    """A graph's program: called with the list of its arguments, it gives the list of its outputs. `program` is None if
    nothing is computed."""

    def __init__(self, signature: Signature, program: Program | None) -> None:
        self.signature, self.program = signature, program
        self._by_sizes: dict[tuple[int, ...], SizedCall | DataCall] = {}
        self._only: SizedCall | DataCall | None = None
        self._boxed_call = True  # torch hands over a list that may be emptied

    def __call__(self, args: list[Any]) -> list[Any]:
        return self.call_for(args)(args)

    def call_for(self, args: Sequence[Any]) -> SizedCall | DataCall:
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
            if self.signature.depends_on_data and self.program is not None:
                call = DataCall(self.signature, self.program, known)
            else:
                call = SizedCall(self.signature, self.program, known)
            self._by_sizes[sizes] = call
            if not symbols:
                self._only = call
        return call


def kinds_of(signature: Signature, program: Program, known: Mapping[str, int]) -> list[ArrayType]:
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
        self._boxed_call = True
        self._tensors = [(x.argument, None if is_identity(x.order) else x.order) for x in signature.given]
        self._carriers = [0] * len(signature.carriers)
        self._made = [
            (shape := evaluated_all(x.shape, known), _strides(x, shape, known), getattr(torch, x.dtype.split(".")[-1]))
            for x in signature.made
        ]
        self._outputs = [_maker(output, known) for output in signature.outputs]
        self._updates = [(x.argument, x.result) for x in signature.updates]
        self._is_plain = not self._updates and all(
            isinstance(x, Own) and x.number == i for i, x in enumerate(signature.outputs)
        )
        self._run: Callable[[list[int]], None] | None = None
        self.over: InPlace | None = None
        self.executable: Any = None
        self._memory: Memory | None = None
        if program is not None:
            self._prepare(program)

    def _prepare(self, program: Program) -> None:
        kinds = kinds_of(self.signature, program, self._known)
        ready = program.ready(kinds)
        executable = self.executable = ready.executable
        self._confirm_kinds(executable.kinds)
        self._words = ready.words
        self._leaves: list[Any] = list(ready.sources)
        if executable.device is not None or executable.program is None:
            return
        if not _stores_results(executable):
            self._memory = Memory(executable, self._leaves, self._made, self.signature.made)
            if not self._memory.is_right(len(self.signature.given)):
                return
        self._places = [(leaf, 0) if leaf.__class__ is int else (-1, leaf.address) for leaf in self._leaves]
        self._in_order = [place for place, _ in self._places] == list(range(len(program.inputs)))
        self._run = executable.program.run
        wanted = self._overwritable()
        if wanted:
            self.over = in_place(wanted, self._leaves, ready.over)

    def _confirm_kinds(self, kinds: Sequence[ArrayType]) -> None:
        """Results must be of the sizes that memory is allocated by: those that torch says."""
        for kind, (shape, _, dtype), y in zip(kinds, self._made, self.signature.made, strict=True):
            said = tuple([shape[axis] for axis in y.order])
            if tuple(kind.shape) != said or kind.dtype is not DTYPES[dtype]:
                raise Unsupported(f"a result is {kind}, where torch has {dtype}{list(said)}")

    def _overwritable(self) -> dict[int, int]:
        """By number of the input: the result that may be written over it. None that is an output as well, for that has
        memory of its own."""
        outputs = {x.number for x in self.signature.outputs if isinstance(x, Own) or (isinstance(x, Seen) and x.own)}
        inputs = {x.argument: i for i, x in enumerate(self.signature.given)}
        found: dict[int, int] = {}
        for x in self.signature.updates:
            if x.argument not in inputs or x.result in outputs:
                continue
            given, made = self.signature.given[inputs[x.argument]], self.signature.made[x.result]
            if (given.shape, given.order) == (made.shape, made.order):
                found[inputs[x.argument]] = x.result
        return found

    def __call__(self, args: list[Any]) -> list[Any]:
        given = _laid_out(args, self._tensors)
        if self._run is None:
            own = self._run_and_copy(self._all(given))
        else:
            addresses = list(map(_data_ptr, given))
            if self._carriers:
                addresses += self._carriers
            if self.signature.draws:
                key = _key()
                addresses.append(key.data_ptr())
            if self.over is not None and self.over.fits(args, given, addresses, self._tensors):
                own = self._run_over(self.over, given, addresses)
            else:
                memory = self._memory
                stored = self._made if memory is None else memory.stored
                own = [_empty(shape, strides, dtype) for shape, strides, dtype in stored]
                if not self._in_order:
                    addresses = [addresses[place] if place >= 0 else fixed for place, fixed in self._places]
                addresses += map(_data_ptr, own)
                addresses += self._words
                try:
                    self._run(addresses)
                except ProgramError as error:
                    raise _failure(self.executable, error) from None
                if memory is not None:
                    own = memory.results(own, given)
        if self._is_plain:
            return own
        for argument, result in self._updates:
            if own[result] is not args[argument]:
                args[argument].copy_(own[result])
        made = [maker(args, own) for maker in self._outputs]
        args.clear()
        return made

    def _run_over(self, over: InPlace, given: Sequence[Any], addresses: list[int]) -> list[Any]:
        own = [
            given[over.inputs[k]] if k in over.inputs else _empty(shape, strides, dtype)
            for k, (shape, strides, dtype) in enumerate(self._made)
        ]
        addresses = [addresses[place] if place >= 0 else fixed for place, fixed in self._places]
        addresses += map(_data_ptr, own)
        addresses += over.words
        progress = Progress()
        try:
            over.program.run(addresses, progress)
        except ProgramError as error:
            raise _failure(over.executable, error) from None
        except BaseException:
            if progress.paused:  # an interrupted call has written all or nothing
                progress.hurry()
            raise
        return own

    def _all(self, given: list[Any]) -> list[Any]:
        return [*given, *[None] * len(self._carriers), *([_key()] if self.signature.draws else [])]

    def _run_and_copy(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """Where results share memory, with each other or with what is given: each is copied to where it belongs."""
        own = [_empty(shape, strides, dtype) for shape, strides, dtype in self._made]
        if self.executable is None:
            return own
        buffers = [_buffer(x) for x in tensors]
        chosen = [buffers[leaf] if leaf.__class__ is int else leaf for leaf in self._leaves]
        try:
            results = self.executable.run(chosen, self._words)
        except LinAlgError as error:
            raise torch.linalg.LinAlgError(str(error)) from None
        for x, y, kind, buffer in zip(own, self.signature.made, self.executable.kinds, results, strict=True):
            if x.numel():
                x.permute(y.order).copy_(torch.from_dlpack(_Copied(wrap(Node(DATA, (), kind, buffer)))))
        return own


def _stores_results(executable: Executable) -> bool:
    """Whether result i is all that the program stores in buffer i: it may be the beginning of that as well."""
    return executable.simple and executable.sizes == [int(kind.size) * kind.dtype.size for kind in executable.kinds]


class Part(NamedTuple):
    """A result that is a part of something else: of what the program stores, or of a tensor that was given."""

    result: int
    source: int
    is_given: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    order: tuple[int, ...] | None
    """In which its axes lie in memory, if not in theirs."""


class Memory:
    """The memory of results, where these are not simply what the program stores. Each is a tensor of its own: what is
    stored as it is wanted is not copied, and parts of other things are."""

    def __init__(
        self, executable: Executable, leaves: Sequence[Any], made: Sequence[Any], described: Sequence[Made]
    ) -> None:
        self._made = made
        self._whole: dict[int, int] = {}
        """By number of what is stored: the result that it is."""
        self._parts: list[Part] = []
        found = zip(executable.results, executable.kinds, described, strict=True)
        for k, (r, kind, y) in enumerate(found):
            shape = tuple(int(n) for n in kind.shape)
            is_row_major = not r.from_input and r.offset == 0 and r.strides is None
            if is_row_major and r.at not in self._whole and kind.size * kind.dtype.size == executable.sizes[r.at]:
                self._whole[r.at] = k
                continue
            strides = tuple(r.strides or dense_strides(shape, tuple(range(len(shape)))))
            order = None if is_identity(y.order) else y.order
            at = leaves[r.at] if r.from_input else r.at
            self._parts.append(Part(k, at, r.from_input, shape, strides, r.offset // kind.dtype.size, order))
        dtypes = {part.source: made[part.result][2] for part in self._parts if not part.is_given}
        self.stored: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] = [
            made[self._whole[at]] if at in self._whole else ((nbytes // dtypes[at].itemsize,), (1,), dtypes[at])
            for at, nbytes in enumerate(executable.sizes)
        ]

    def is_right(self, tensors: int) -> bool:
        """Whether torch can look at all parts: they count upwards, and lie in one of so many tensors."""
        given = [part.source for part in self._parts if part.is_given]
        if any(at.__class__ is not int or at >= tensors for at in given):
            return False
        return all(stride >= 0 for part in self._parts for stride in part.strides)

    def results(self, stored: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        own: list[Any] = [None] * len(self._made)
        for at, k in self._whole.items():
            own[k] = stored[at]
        for part in self._parts:
            x = given[part.source] if part.is_given else stored[part.source]
            own[part.result] = target = _empty(*self._made[part.result])
            if target.numel():
                seen = torch.as_strided(x, part.shape, part.strides, x.storage_offset() + part.offset)
                (target if part.order is None else target.permute(part.order)).copy_(seen)
        return own


def _laid_out(args: Sequence[Any], tensors: Sequence[tuple[int, Any]]) -> list[torch.Tensor]:
    """The tensors that a program reads, as it reads them: numbers of arguments, with orders of axes."""
    given = []
    for argument, order in tensors:
        x = args[argument]
        if _is_lazy(x):  # its memory holds other numbers than it has
            x = x.resolve_conj().resolve_neg()
        if order is not None:
            x = laid_out(x, order)
        elif not _is_contiguous(x):
            x = x.contiguous()
        given.append(x)
    return given


def _maker(output: Output, known: Mapping[str, Any]) -> Callable[[list[Any], list[torch.Tensor]], Any]:
    """How an output is made of the arguments and the results."""
    match output:
        case Argument(number):
            return lambda args, own: args[number]
        case Own(number):
            return lambda args, own: own[number]
        case Value(value):
            found = evaluated(value, known)
            return lambda args, own: found
        case Seen():
            return _view(output, known)


def _view(seen: Seen, known: Mapping[str, Any]) -> Callable[[list[Any], list[torch.Tensor]], torch.Tensor]:
    number, own_ = seen.number, seen.own
    shape, strides, base = (evaluated_all(x, known) for x in (seen.shape, seen.strides, seen.base))
    offset = evaluated(seen.offset, known)

    def look(args: list[Any], own: list[torch.Tensor]) -> torch.Tensor:
        x = own[number] if own_ else _lying(args[number], base)
        return torch.as_strided(x, shape, strides, x.storage_offset() + offset)

    return look


def _lying(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor with such strides: itself, but for one that lies otherwise than the one that the graph was traced
    with."""
    found = x.stride()
    if found == strides or all(n == 1 or a == b for n, a, b in zip(x.shape, found, strides, strict=True)):
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype).copy_(x)


class DataCall:
    """A call of a program whose sizes depend on data: only its results say how large they are. None is written over an
    argument before all are there."""

    over = None

    def __init__(self, signature: Signature, program: Program, known: Mapping[str, int]) -> None:
        self.signature, self._program, self._known = signature, program, known
        self._kinds = kinds_of(signature, program, known)
        self._tensors = [(x.argument, None if is_identity(x.order) else x.order) for x in signature.given]
        self._boxed_call = True

    def __call__(self, args: list[Any]) -> list[Any]:
        signature = self.signature
        tensors: list[Any] = [*_laid_out(args, self._tensors), *[None] * len(signature.carriers)]
        if signature.draws:
            tensors.append(_key())
        own = self._results(tensors)
        known = {**self._known, **{c.name: _size_in(own[c.result], c.axis) for c in signature.computed}}
        makers = [_maker(output, known) for output in signature.outputs]
        for x in signature.updates:
            args[x.argument].copy_(own[x.result])
        made = [make(args, own) for make in makers]
        args.clear()
        return made

    def _results(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        given = [
            wrap(constant(0, kind) if x is None else Node(DATA, (), kind, _buffer(x)))
            for x, kind in zip(tensors, self._kinds, strict=True)
        ]
        made = zip(self._program.run_numpy(given), self.signature.made, strict=True)
        return [_tensor(x, y.dtype).permute(inverse(y.order)) for x, y in made]


def _size_in(tensor: torch.Tensor, axis: int | None) -> Any:
    return tensor.item() if axis is None else tensor.shape[axis]


def _tensor(values: np.ndarray, dtype: str) -> torch.Tensor:
    """A tensor in the memory of an array, also of a dtype that NumPy does not have."""
    kind = getattr(torch, dtype.rpartition(".")[2])
    if not values.size:
        return torch.empty(values.shape, dtype=kind)
    values = values if values.flags.c_contiguous else values.copy()
    if kind is torch.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(kind)
    return torch.from_numpy(values)


def _key() -> torch.Tensor:
    """A random key, from torch's generator."""
    return torch.randint(0, 1 << 32, (2,)).to(torch.uint32)


class InPlace:
    """A program some of whose results are written over inputs: `inputs` says which, by number of the result."""

    def __init__(self, inputs: dict[int, int], executable: Any) -> None:
        self.inputs, self.executable, self.program = inputs, executable, executable.program
        self.words = [word for value in executable.constants for word in value.words]

    def fits(self, args: Sequence[Any], given: Sequence[Any], addresses: Sequence[int], tensors: Sequence[Any]) -> bool:
        """Whether these tensors may be overwritten: they are the arguments themselves, not copies, and no other lies
        in the same memory."""
        for i in self.inputs.values():
            x = given[i]
            if x is not args[tensors[i][0]]:
                return False
            first = addresses[i]
            last = first + x.nbytes
            for k, y in enumerate(given):
                if k != i and addresses[k] < last and first < addresses[k] + y.nbytes:
                    return False
        return True


def in_place(
    wanted: Mapping[int, int], leaves: Sequence[Any], over: Callable[[tuple[int, ...]], Any]
) -> InPlace | None:
    """The program that writes as many of these results over their inputs as the planner proves that it may."""
    places = {leaf: at for at, leaf in enumerate(leaves) if leaf.__class__ is int}
    wanted = {i: result for i, result in wanted.items() if i in places}

    def planned(inputs: Sequence[int]) -> InPlace | None:
        found = over(tuple(sorted(places[i] for i in inputs)))
        if found is None or found.program is None or not _stores_results(found):
            return None
        adopted = found.adopted
        if any(adopted.get(wanted[i]) != places[i] for i in inputs):
            return None
        return InPlace({wanted[i]: i for i in inputs}, found)

    whole = planned([*wanted]) if wanted else None
    if whole is not None or len(wanted) < 2:
        return whole
    alone = [i for i in wanted if planned([i]) is not None]
    return planned(alone) if alone else None


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
