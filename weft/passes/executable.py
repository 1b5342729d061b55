"""From a plan to something that runs: kernels loaded, argument words and relocations laid out, one native call for all
of it.

The commands of a loop's body stand between its LOOP and NEXT. An address that differs from step to step (the row of an
operand, the place of a carry) is a word that the loop moves; where loops are nested, what a loop's words begin from may
itself be moved by the loop around it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from weft import beside
from weft.codegen.launch import FAILURE_WORD, Choose, Done, Launch, Pointer, Repeat, Row, Slot, Steps
from weft.graph.node import ArrayType, Node
from weft.graph.placement import USED, placed
from weft.passes.lower import nbytes_of, to_int
from weft.passes.memory import Plan, base_of
from weft.passes.views import Strided, is_contiguous
from weft.primitives.base import Constant, ConstantValue, Parameter, Primitive
from weft.records import dataclass
from weft.runtime.buffer import Storage, allocate
from weft.runtime.data import Buffer, moved
from weft.runtime.objects import MAKERS
from weft.runtime.program import INLINE, LOOP_FIELDS, Command, CommandKind, Program, ProgramError, Progress, Reloc
from weft.runtime.progress import Counter
from weft.runtime.run_layout import AS_IS, FROM_INPUT, FROM_OUTPUT
from weft.runtime.run_table import RunTable, run_buffers, run_table

_LASTING: Final = 3e7  # operations: some milliseconds of LAPACK's


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


class Call(NamedTuple):
    """An operation with what its operands are: one that a command of a program belongs to."""

    op: Primitive
    kinds: tuple[ArrayType, ...]
    """Those of its operands."""


class Executable:
    """A program with what a call needs to know: sizes of outputs, constants, and how results are read from the
    buffers."""

    __slots__ = (
        "adopted",
        "allocate",
        "calls",
        "constants",
        "device",
        "given",
        "kinds",
        "largest",
        "lasting",
        "plain",
        "plan",
        "program",
        "results",
        "runs",
        "simple",
        "sizes",
        "spent",
    )

    in_parts: ClassVar[bool] = False
    """Whether it runs several programs, on several devices, and has no plan of the whole."""

    def __init__(
        self,
        plan: Plan,
        program: Program | None,
        constants: list[ConstantValue],
        results: list[Result],
        calls: Mapping[int, Call],
    ) -> None:
        self.plan, self.program, self.results = plan, program, results
        self.calls, self.lasting = calls, are_lasting(unbroken(plan))
        self.allocate, self.device = plan.target.allocate, placed(plan.target.device)
        self.given = [node.kind for node in plan.graph.inputs]
        self.sizes = [nbytes_of(node) for node in plan.outputs]
        self.kinds = [node.kind for node in plan.graph.outputs]
        self.adopted, self.spent = plan.adopted, plan.spent
        self.largest = max((nbytes_of(node) for node in plan.graph.inputs), default=0)
        """Bytes of the largest input."""
        self.constants = constants
        """The constants that the program reads, in the order of their words in a call."""
        self.simple = is_simple(results)
        """Whether result i is simply output buffer i."""
        self.prepare_runs()

    @property
    def commands(self) -> int:
        """How many commands the program has."""
        return 0 if self.program is None else self.program.length

    @property
    def quick(self) -> Executable | None:
        """Itself, if to run it is all that a run does: then machine code may do that."""
        return self if type(self).run is Executable.run and self.plain else None

    def forget_plan(self) -> None:
        """A program runs without its plan, which takes several times its memory."""
        with contextlib.suppress(AttributeError):  # there may be none
            del self.plan

    def prepare_runs(self) -> None:
        """Say how it is run, once all else is known."""
        self.plain = self.allocate is allocate and not self.lasting
        """Whether machine code may run it, which has memory of the host's, and cannot be left behind by Ctrl-C."""
        self.runs: RunTable | None = None
        """What that needs to know, from the first run on."""

    def run(self, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer]:
        """Compute all outputs. `words` are the words of the program's constants, in the order of `constants`."""
        if USED:
            inputs = self.received(inputs)
        elif self.runs is not None:
            made = run_buffers(self.runs, inputs, words)
            if made is not None:
                return made
        results = self._run_by_python(inputs, words)
        if self.plain:
            self.runs = self._run_table(len(inputs), len(words))
        return results

    def _run_table(self, inputs: int, words: int) -> RunTable | None:
        hows = [AS_IS if r.as_is else FROM_INPUT if r.from_input else FROM_OUTPUT for r in self.results]
        results = [(r.at, how, r.offset, r.strides) for r, how in zip(self.results, hows, strict=True)]
        return run_table(self.program, inputs, self.sizes, words, results)

    def _run_by_python(self, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer]:
        """The same by Python."""
        addresses = [buffer.address for buffer in inputs]
        stores = []
        allocate = self.allocate
        for size in self.sizes:
            store = allocate(size)
            stores.append(store)
            addresses.append(store.address)
        if self.program is not None:
            addresses += words
            try:
                if self.lasting:
                    _run_holding(self.program, addresses, inputs, stores)
                else:
                    self.program.run(addresses)
            except ProgramError as error:
                raise self.failure(error) from None
        if self.simple:
            return [Buffer(store, store.address) for store in stores]
        return [self._result(r, inputs, stores) for r in self.results]

    def run_in_place(self, inputs: Sequence[Buffer], words: Sequence[int], progress: Progress) -> list[Buffer]:
        """`run`, for a plan with donated inputs: some results take over their memory. `progress` knows the results
        before there is anything in them, and later whether there is."""
        if USED:
            inputs = self.received(inputs)
        at = self.adopted
        stores = [inputs[at[k]].storage if k in at else self.allocate(size) for k, size in enumerate(self.sizes)]
        if self.simple:
            progress.results = [Buffer(store, store.address) for store in stores]
        else:
            progress.results = [self._result(r, inputs, stores) for r in self.results]
        if self.program is not None:
            addresses = [buffer.address for buffer in inputs]
            addresses += [store.address for store in stores]
            addresses += words
            progress.keep.append(inputs)
            try:
                self.program.run(addresses, progress)
            except ProgramError as error:
                raise self.failure(error) from None
        return progress.results

    def failure(self, error: ProgramError) -> Exception:
        """What a failed program means to the user: the operation whose call ended it says so."""
        if error.status <= 0:
            return error
        call = self.failed(error.command)
        if call is None:  # no operation's own: what a program never does
            return error
        op, kinds = call
        return op.failure(error.arguments[FAILURE_WORD:], kinds, error.steps)

    def failed(self, command: int) -> Call | None:
        """The operation whose call a command is."""
        return self.calls.get(command)

    def received(self, inputs: Sequence[Buffer]) -> Sequence[Buffer]:
        """The inputs on the program's device, wherever they lie."""
        device = self.device
        if all(buffer.storage.device is device for buffer in inputs):
            return inputs
        pairs = zip(inputs, self.given, strict=True)
        return [moved(x, tuple(map(int, kind.shape)), kind.dtype.size, device, self.allocate) for x, kind in pairs]

    @staticmethod
    def _result(result: Result, inputs: Sequence[Buffer], stores: Sequence[Storage]) -> Buffer:
        if result.as_is:
            return inputs[result.at]
        source: Storage | Buffer = inputs[result.at] if result.from_input else stores[result.at]
        storage = source.storage if isinstance(source, Buffer) else source
        return Buffer(storage, source.address + result.offset, result.strides)


MAKERS.executables(Executable)


class DeviceExecutable(Executable):
    """An executable of a target with memory of its own: the program's temporaries lie there too, and are one more
    buffer of a call, behind the outputs."""

    __slots__ = ("arena",)

    def __init__(
        self,
        plan: Plan,
        program: Program | None,
        constants: list[ConstantValue],
        results: list[Result],
        calls: Mapping[int, Call],
    ) -> None:
        super().__init__(plan, program, constants, results, calls)
        self.arena = plan.arena

    def run(self, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer]:
        arena = self.allocate(self.arena)
        return super().run(inputs, [arena.address, *words])

    def run_in_place(self, inputs: Sequence[Buffer], words: Sequence[int], progress: Progress) -> list[Buffer]:
        arena = self.allocate(self.arena)
        progress.keep.append(arena)
        return super().run_in_place(inputs, [arena.address, *words], progress)


def unbroken(plan: Plan) -> list[Call]:
    """The operations of a plan that have pieces which cannot be stopped in the middle."""
    found: list[Call] = []
    for item in plan.items:
        for node in item.group.nodes:
            if type(node.op).unbroken is not Primitive.unbroken:
                found.append(Call(node.op, tuple([x.kind for x in node.inputs])))
        for inner in item.plans():
            found += unbroken(inner)
    return found


def are_lasting(operations: Iterable[Call]) -> bool:
    """Whether one of these has a piece that takes so long that Ctrl-C should not wait for it."""
    return any(op.unbroken(*kinds) >= _LASTING for op, kinds in operations)


def _run_holding(program: Program, addresses: list[int], *held: object) -> None:
    """Run a program that Ctrl-C may leave behind, with what its addresses belong to."""

    def run(_: object = held) -> None:
        program.run(addresses)

    beside.interruptible(run)


def is_simple(results: Sequence[Result]) -> bool:
    return all(not r.from_input and r.strides is None and r.offset == 0 and r.at == i for i, r in enumerate(results))


def assemble(plan: Plan) -> Executable:
    """Load the kernels and lay out the program."""
    assembly = Assembly(plan)
    program = assembly.program() if plan.items else None
    cls = Executable if plan.target.host_memory else DeviceExecutable
    results = [result_of(plan, output) for output in plan.graph.outputs]
    return cls(plan, program, assembly.constants, results, assembly.calls)


def _constants(plan: Plan) -> dict[Node, None]:
    """The constants that a plan reads: those of its graph in the order of that, then those of bodies."""
    read = {node: None for item in plan.items for node in item.reads if isinstance(node.op, Constant)}
    found = {node: None for node in plan.graph.order() if node in read}
    found.update(read)
    for item in plan.items:
        for inner in item.plans():
            found.update(_constants(inner))
    return found


def launches_of(plan: Plan) -> list[Launch]:
    """All launches of a plan in the order of their commands, those of bodies included."""
    found: list[Launch] = []
    for item in plan.items:
        found.extend([item.code.launch] if isinstance(item.code, Steps) else item.launches)
        for inner in item.plans():
            found.extend(launches_of(inner))
    return found


def commands_of(plan: Plan) -> list[tuple[int, int]]:
    """For explain: the commands [first, end) that each item of a plan becomes."""
    assembly = Assembly(plan)
    program = assembly.program()
    return list(itertools.pairwise([*assembly.starts, program.length]))


@dataclass(frozen=True, slots=True)
class _Fixed:
    """An address that is known when the program starts."""

    buffer: int
    offset: int

    def moved(self, nbytes: int) -> _Fixed:
        return _Fixed(self.buffer, self.offset + nbytes)


@dataclass(frozen=True, slots=True)
class _Moving:
    """An address that changes with the steps of a loop (MOVE_FIELDS of weft.runtime.program)."""

    loop: _Loop
    first: _Address | int
    back: int
    by: int
    end: _Address | None = None
    start: _Address | None = None

    def moved(self, nbytes: int) -> _Moving:
        end, start = (None if x is None else x.moved(nbytes) for x in (self.end, self.start))
        first = self.first + nbytes if isinstance(self.first, int) else self.first.moved(nbytes)
        return _Moving(self.loop, first, self.back, self.by, end, start)


_Address = _Fixed | _Moving


class _Loop:
    """A loop while its body is laid out: the words that it moves."""

    def __init__(self) -> None:
        self.moves: list[tuple[int, _Moving]] = []


class _Scope:
    """Where the values of one plan lie."""

    def __init__(self, plan: Plan, inputs: Sequence[_Address], outputs: Sequence[_Address], arena: _Address) -> None:
        self.plan, self.inputs, self.outputs, self.arena = plan, inputs, outputs, arena

    def address(self, node: Node) -> _Address:
        place = self.plan.places[node]
        if place.where == "arena":
            return self.arena.moved(place.at)
        return (self.inputs if place.where == "input" else self.outputs)[place.at]


class Assembly:
    """Commands, words and relocations of a program, from a plan and the plans inside it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.constants: list[ConstantValue] = []
        """The constants that the program reads, in the order of their words in a call."""
        self.arena = 0 if plan.target.host_memory else 1 + len(plan.graph.inputs) + len(plan.outputs)
        """The number of the buffer that temporaries lie in."""
        self.given = len(plan.graph.inputs) + len(plan.outputs) + (self.arena > 0)
        """How many addresses and words of constants a call gives."""
        self.places: dict[Node, int] = {}
        for node in _constants(plan):
            self.places[node] = self.given
            self.constants.append(node.value)
            self.given += -(-node.dtype.size // 8)
        self.functions = iter(plan.target.load(launches_of(plan)))
        self.commands: list[Command] = []
        self.words: list[int] = []
        self.relocations: list[Reloc] = []
        self.counters: list[Counter] = []
        self.starts: list[int] = []
        """The first command of each item."""
        self.calls: dict[int, Call] = {}
        """The operations behind the commands that can fail, by the numbers of those."""

    def program(self) -> Program:
        self.lay_out()
        workspace = 0 if self.arena else self.plan.arena
        parts = self.commands, self.words, self.relocations, workspace, self.given, self.counters
        return Program(*parts, commit=self.commit)

    @property
    def commit(self) -> int:
        """The first command that overwrites an input, once all are laid out."""
        return [*self.starts, len(self.commands)][self.plan.commit]

    def lay_out(self) -> None:
        """A call gives the addresses of inputs first, then those of outputs, then constants; the arena is buffer 0,
        which a program has in its workspace, or follows the outputs."""
        inputs = len(self.plan.graph.inputs)
        self._lay_out(
            _Scope(
                self.plan,
                [_Fixed(1 + i, 0) for i in range(inputs)],
                [_Fixed(1 + inputs + i, 0) for i in range(len(self.plan.outputs))],
                _Fixed(self.arena, 0),
            )
        )

    def _count(self, fields: int, unit: int, most: int | None, name: str | None) -> None:
        """Show the progress of the loop whose fields begin at a word, if it has a name."""
        if name is not None:
            word = fields + LOOP_FIELDS.index("step")
            self.counters.append(Counter(word, unit, -1 if most is None else most, name))

    # ---- words ----

    def _put(self, address: _Address) -> int:
        """A word that holds an address."""
        word = len(self.words)
        self.words.append(0)
        if isinstance(address, _Fixed):
            self.relocations.append(Reloc(word, address.buffer, address.offset))
        else:
            address.loop.moves.append((word, address))
        return word

    def _table(self, *words: int | _Address | Done | None) -> int:
        """Words in a row; the place of the first."""
        first = len(self.words)
        for word in words:
            if isinstance(word, (_Fixed, _Moving)):
                self._put(word)
            else:
                assert not isinstance(word, Done), "only a loop knows what was done before"
                self.words.append(0 if word is None else word)
        return first

    def _find(self, scope: _Scope, step: int, pointer: Pointer) -> _Address:
        item = scope.plan.items[step]
        reads, number = len(item.reads), pointer.value
        if number >= reads + len(item.writes):
            offset = scope.plan.temporaries[step][number - reads - len(item.writes)]
            return scope.arena.moved(offset + pointer.offset)
        node = item.reads[number] if number < reads else item.writes[number - reads]
        if node in self.places:
            return _Fixed(INLINE, 8 * self.places[node] + pointer.offset)
        return scope.address(node).moved(pointer.offset)

    # ---- commands ----

    def _lay_out(self, scope: _Scope) -> None:
        for step, item in enumerate(scope.plan.items):
            if scope.plan is self.plan:
                self.starts.append(len(self.commands))
            start, over = len(self.commands), scope.plan.writes_over(step)
            for launch in item.launches:
                words = [self._find(scope, step, w) if isinstance(w, Pointer) else w for w in launch.words]
                kind = CommandKind.CALL if launch.call else CommandKind.KERNEL
                function = next(self.functions)
                if launch.call:
                    node = item.group.nodes[0]
                    self.calls[len(self.commands)] = Call(node.op, tuple([x.kind for x in node.inputs]))
                back = -1 if over else len(self.commands) - start
                self.commands.append(Command(kind, function, self._table(*words), launch.grain, launch.scratch, back))
            if isinstance(item.code, Steps):
                self._steps(scope, step, item.code)
            elif isinstance(item.code, Repeat):
                self._repeat(scope, step, item.code)
            elif isinstance(item.code, Choose):
                self._choose(scope, step, item.code)

    def _repeat(self, scope: _Scope, step: int, code: Repeat) -> None:
        loop = _Loop()

        def place(source: Pointer | Row | Slot) -> _Address:
            base = self._find(scope, step, source.pointer if isinstance(source, (Row, Slot)) else source)
            if isinstance(source, Row):
                stride = source.stride
                return _Moving(loop, base, stride if code.reverse else 0, -stride if code.reverse else stride)
            if isinstance(source, Slot):
                end = base.moved(source.slots * source.stride)
                return _Moving(loop, base.moved(source.slot * source.stride), 0, source.stride, end, base)
            return base

        def find(pointer: Pointer | None) -> _Address | None:
            return None if pointer is None else self._find(scope, step, pointer)

        number = len(self.commands)
        self.commands.append(Command(CommandKind.LOOP, 0, 0))
        inner = _Scope(
            code.plan, [place(x) for x in code.inputs], [place(x) for x in code.outputs], find(code.arena)  # type: ignore[arg-type]
        )  # fmt: skip
        self._lay_out(inner)
        before = self._table(*(x for to, source, n in code.before for x in (find(to), find(source), n)))
        after = self._table(*(x for to, source, n in code.after for x in (find(to), place(source), n)))
        clears = self._table(*(x for piece, n in code.clears for x in (find(piece), n)))
        moves = self._moves(loop)
        most = -1 if code.most is None else code.most
        fields = self._table(
            most, find(code.count), 0, 0, len(loop.moves), moves, len(code.before), before, len(code.after), after,
            len(code.clears), clears, find(code.go_on), find(code.made), int(code.limited),
        )  # fmt: skip
        self._count(fields, 1, code.most, code.progress)
        self.commands[number] = Command(CommandKind.LOOP, len(self.commands), fields)
        self.commands.append(Command(CommandKind.NEXT, number, fields))

    def _steps(self, scope: _Scope, step: int, code: Steps) -> None:
        loop = _Loop()
        number = len(self.commands)
        self.commands.append(Command(CommandKind.LOOP, 0, 0))
        launch = code.launch
        moved = [_Moving(loop, 0, 0, w.share) if isinstance(w, Done) else w for w in launch.words]
        words = [self._find(scope, step, w) if isinstance(w, Pointer) else w for w in moved]
        function = next(self.functions)
        self.commands.append(Command(CommandKind.KERNEL, function, self._table(*words), launch.grain, launch.scratch))
        find = functools.partial(self._find, scope, step)
        before = self._table(*(x for to, source, n in code.before for x in (find(to), find(source), n)))
        clears = self._table(*(x for piece, n in code.clears for x in (find(piece), n)))
        moves = self._moves(loop)
        fields = self._table(
            -1, None, 0, 0, len(loop.moves), moves, len(code.before), before, 0, 0, len(code.clears), clears,
            find(code.flag), None, 0,
        )  # fmt: skip
        self._count(fields, code.share, code.most, code.progress)
        self.commands[number] = Command(CommandKind.LOOP, len(self.commands), fields)
        self.commands.append(Command(CommandKind.NEXT, number, fields))

    def _moves(self, loop: _Loop) -> int:
        """The table of words that a loop moves. What they begin from may be moved by a loop around this one."""
        first = len(self.words)
        for word, address in loop.moves:
            self._table(word, address.first, address.back, address.by, address.end, address.start)
        return first

    def _copies(self, scope: _Scope, step: int, copies: Sequence[tuple[Pointer, Pointer, int]]) -> None:
        """Copies, which a loop of no steps makes before the first one."""
        find = functools.partial(self._find, scope, step)
        table = self._table(*(x for to, source, n in copies for x in (find(to), find(source), n)))
        fields = self._table(0, None, 0, 0, 0, 0, len(copies), table, 0, 0, 0, 0, None, None, 0)
        number = len(self.commands)
        self.commands.append(Command(CommandKind.LOOP, number + 1, fields))
        self.commands.append(Command(CommandKind.NEXT, number, fields))

    def _choose(self, scope: _Scope, step: int, code: Choose) -> None:
        if code.before:
            self._copies(scope, step, code.before)
        first = self._table(self._find(scope, step, code.index), *[0] * len(code.plans))
        self.commands.append(Command(CommandKind.CHOOSE, 0, first))
        arena = self._find(scope, step, code.arena)
        inputs = [self._find(scope, step, x) for x in code.inputs]
        jumps = []
        for number, (plan, outputs) in enumerate(zip(code.plans, code.outputs, strict=True)):
            self.words[first + 1 + number] = len(self.commands)
            self._lay_out(_Scope(plan, inputs, [self._find(scope, step, x) for x in outputs], arena))
            jumps.append(len(self.commands))
            self.commands.append(Command(CommandKind.JUMP, 0, first))
        for jump in jumps:
            self.commands[jump] = Command(CommandKind.JUMP, len(self.commands), first)


def result_of(plan: Plan, output: Node) -> Result:
    """How an output of the plan is read."""
    base = base_of(output)
    strides: tuple[int, ...] | None = None
    offset = 0
    if isinstance(output.op, Strided):
        given = tuple(to_int(s) for s in output.op.strides)
        strides = None if is_contiguous(output.shape, given) else given
        offset = to_int(output.op.offset) * output.dtype.size
    if isinstance(base.op, Parameter):
        return Result(base.op.index, offset, strides, True, as_is=output is base)
    return Result(plan.places[base].at, offset, strides, False)
