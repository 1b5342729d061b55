"""From a plan to something that runs: kernels loaded, argument words and relocations laid out, one native call for all
of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.launch import Launch, Pointer
from weft.graph.node import Node
from weft.passes.lower import Item, nbytes_of
from weft.passes.memory import Plan, base_of
from weft.passes.views import Strided, is_contiguous
from weft.primitives.base import Constant, ConstantValue, Parameter
from weft.runtime import engine
from weft.runtime.buffer import Storage, allocate
from weft.runtime.data import Buffer
from weft.runtime.program import INLINE, Command, Program, Reloc
from weft.runtime.program import Kind as CommandKind


@dataclass(frozen=True, slots=True)
class Result:
    """How an output is read: from output buffer `at` (or input `at` if `from_input`), moved by `offset` bytes, with
    strides (None: row-major).

    `as_is` marks an input returned unchanged, whatever its layout.
    """

    at: int
    offset: int
    strides: tuple[int, ...] | None
    from_input: bool
    as_is: bool = False


class Executable:
    """A program with what a call needs to know: sizes of outputs, constants, and how results are read from the
    buffers."""

    __slots__ = ("constants", "plan", "program", "results", "simple", "sizes")

    def __init__(
        self, plan: Plan, program: Program | None, constants: list[ConstantValue], results: list[Result]
    ) -> None:
        self.plan, self.program, self.results = plan, program, results
        self.sizes = [nbytes_of(node) for node in plan.outputs]
        self.constants = constants
        """The constants that the program reads, in the order of their words in a call."""
        self.simple = all(
            not r.from_input and r.strides is None and r.offset == 0 and r.at == i for i, r in enumerate(results)
        )
        """Whether result i is simply output buffer i."""

    def run(self, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer]:
        """Compute all outputs. `words` are the words of the program's constants, in the order of `constants`."""
        addresses = [buffer.address for buffer in inputs]
        stores = []
        for size in self.sizes:
            store = allocate(size)
            stores.append(store)
            addresses.append(store.address)
        if self.program is not None:
            addresses += words
            self.program.run(addresses)
        if self.simple:
            return [Buffer(store, store.address) for store in stores]
        return [self._result(r, inputs, stores) for r in self.results]

    @staticmethod
    def _result(result: Result, inputs: Sequence[Buffer], stores: Sequence[Storage]) -> Buffer:
        if result.as_is:
            return inputs[result.at]
        source: Storage | Buffer = inputs[result.at] if result.from_input else stores[result.at]
        storage = source.storage if isinstance(source, Buffer) else source
        return Buffer(storage, source.address + result.offset, result.strides)


def assemble(plan: Plan) -> Executable:
    """Load the kernels and lay out the program."""
    read = {node for item in plan.items for node in item.reads if isinstance(node.op, Constant)}
    constants: list[ConstantValue] = []
    places: dict[Node, int] = {}
    inputs = len(plan.graph.inputs)
    at = inputs + len(plan.outputs)
    for node in sorted(read, key=lambda n: n.id):
        places[node] = at
        constants.append(node.value)
        at += len(node.value.words)
    program = _program(plan, places, inputs, at) if plan.items else None
    return Executable(plan, program, constants, [_result(plan, output) for output in plan.graph.outputs])


def _program(plan: Plan, constants: dict[Node, int], inputs: int, given: int) -> Program:
    """Commands, words and relocations; a call gives `given` addresses and words of constants."""
    launches = [launch for item in plan.items for launch in item.launches]
    addresses = engine.load([launch.source for launch in launches])
    commands: list[Command] = []
    words: list[int] = []
    relocations: list[Reloc] = []
    number = iter(addresses)
    for step, item in enumerate(plan.items):
        for launch in item.launches:
            first = len(words)
            for word in launch.words:
                if isinstance(word, Pointer):
                    relocations.append(_relocation(plan, step, item, word, len(words), constants, inputs))
                    words.append(0)
                else:
                    words.append(word)
            commands.append(_command(launch, next(number), first))
    return Program(commands, words, relocations, plan.arena, given)


def _command(launch: Launch, address: int, first: int) -> Command:
    kind = CommandKind.CALL if launch.call else CommandKind.KERNEL
    return Command(kind, address, first, launch.grain, launch.scratch)


def _relocation(
    plan: Plan, step: int, item: Item, pointer: Pointer, word: int, constants: dict[Node, int], inputs: int
) -> Reloc:
    """A pointer of a launch as an address of the call: inputs first, then outputs, then constants; the arena is buffer
    0."""
    values = (*item.reads, *item.writes)
    if pointer.value >= len(values):
        return Reloc(word, 0, plan.temporaries[step][pointer.value - len(values)] + pointer.offset)
    node = values[pointer.value]
    if node in constants:
        return Reloc(word, INLINE, 8 * constants[node] + pointer.offset)
    place = plan.places[node]
    if place.where == "arena":
        return Reloc(word, 0, place.at + pointer.offset)
    return Reloc(word, 1 + place.at + (inputs if place.where == "output" else 0), pointer.offset)


def _result(plan: Plan, output: Node) -> Result:
    base = base_of(output)
    strides: tuple[int, ...] | None = None
    offset = 0
    if isinstance(output.op, Strided):
        given = tuple(int(s) for s in output.op.strides)
        strides = None if is_contiguous(output.shape, given) else given
        offset = int(output.op.offset) * output.dtype.size
    if isinstance(base.op, Parameter):
        return Result(base.op.index, offset, strides, True, as_is=output is base)
    return Result(plan.outputs.index(base), offset, strides, False)
