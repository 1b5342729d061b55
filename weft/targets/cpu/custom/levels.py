"""What the threads of a vector have in common, found before any code is written.

Neighbouring threads run as the lanes of vectors. A value that all lanes share is computed once, as a scalar (its level
is 0); an integer that grows by a constant from lane to lane is a scalar too, with that constant (its level), so that
neighbouring lanes read neighbouring elements; all else is a vector (None). Control flow by a condition that lanes do
not share *diverges*: lanes are masked, and what they assign of outer variables is a vector.

In a kernel with barriers, what stands between two of them is a region, which runs for all vectors of a threadgroup in
turn. Statements around barriers belong to the threadgroup: their conditions must be shared by all of its threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weft.kernels import tree
from weft.kernels.syntax import At, KernelError

Level = int | None
MOST_STRIDE: Final = 1 << 16
_OF_LANES: Final = {
    "thread_position_in_grid": (1, 0, 0),
    "thread_position_in_threadgroup": (1, 0, 0),
    "thread_index_in_threadgroup": (1, 1, 1),
    "thread_index_in_simdgroup": (1, 1, 1),
}


class Levels:
    """The levels of a program's variables and expressions. `rows`: a vector's threads differ in x alone."""

    def __init__(self, program: tree.Program, rows: bool) -> None:
        self.program, self.rows = program, rows
        self.variables: dict[tree.Variable, Level] = {}
        self.divergent: set[int] = set()
        """Statements (by identity) that lanes take in different ways."""
        self.grouped: set[int] = set()
        """Statements around barriers, which a threadgroup does as one."""
        self.masked_return = False
        self.apart: set[tree.Variable] = set()
        """Variables that the lanes of a vector share, or may share, and the vectors of a threadgroup do not."""
        self.has_barriers = any(isinstance(x, tree.Barrier) for x in tree.walk(*program.body))
        self._settle()
        if self.has_barriers:
            self._refuse(program.body)

    # ---- what is grouped ----

    def _find_grouped(self, body: Sequence[tree.Statement]) -> bool:
        """Marks the statements that hold barriers, or leave one that does; says whether there are any."""
        found = False
        for x in body:
            if isinstance(x, tree.Barrier):
                found = True
            for inner in bodies(x):
                if self._find_grouped(inner):
                    self.grouped.add(id(x))
                    found = True
        return found

    def _find_exits(self, body: Sequence[tree.Statement], loop: bool, call: bool) -> bool:
        """The same for what leaves a loop or a function of the threadgroup, and for what ends all of its threads."""
        found = False
        for x in body:
            if isinstance(x, tree.Break | tree.Continue):
                found |= loop
            elif isinstance(x, tree.Leave):
                found |= call
            elif isinstance(x, tree.Return):
                found = True
            elif isinstance(x, tree.If):
                inside = self._find_exits(x.then, loop, call) | self._find_exits(x.other, loop, call)
                only_returns = not self._leaves((*x.then, *x.other), loop, call)
                if inside and not (only_returns and id(x) in self.divergent):
                    self.grouped.add(id(x))
                    found = True
            elif isinstance(x, tree.Loop):
                if id(x) in self.grouped:
                    found |= self._find_exits(x.body, True, call)
            elif isinstance(x, tree.Called) and id(x) in self.grouped:
                found |= self._find_exits(x.body, loop, True)
        return found

    def _leaves(self, body: Sequence[tree.Statement], loop: bool, call: bool) -> bool:
        """Whether statements leave a loop or a function of the threadgroup."""
        for x in body:
            if (isinstance(x, tree.Break | tree.Continue) and loop) or (isinstance(x, tree.Leave) and call):
                return True
            if isinstance(x, tree.If) and self._leaves((*x.then, *x.other), loop, call):
                return True
            if isinstance(x, tree.Loop) and self._leaves(x.body, False, call):
                return True
        return False

    def _refuse(self, body: Sequence[tree.Statement]) -> None:
        """Barriers stand where all threads of a threadgroup come, or none."""
        for x in body:
            if id(x) not in self.grouped:
                continue
            if id(x) in self.divergent:
                inside = [y.at for y in tree.walk(x) if isinstance(y, tree.Barrier)]
                at: At | None = inside[0] if inside else None
                raise KernelError(
                    self.program.name,
                    at,
                    "only some threads of a threadgroup come to this barrier: what it stands in depends on the thread. "
                    "Move it out, or make the condition the same for all of them.",
                )
            for inner in bodies(x):
                self._refuse(inner)

    # ---- levels ----

    def _settle(self) -> None:
        while True:
            if self.has_barriers:
                self.grouped.clear()
                self._find_grouped(self.program.body)
                self._find_exits(self.program.body, False, False)
            before = (dict(self.variables), len(self.divergent), self.masked_return, len(self.apart))
            self._homes: dict[tree.Variable, tuple[int, bool]] = {}
            self._stack: list[tree.Statement] = []
            self._memo: dict[int, Level] = {}
            self._block(self.program.body, group=self.has_barriers)
            for x in tree.walk(*self.program.body):
                if isinstance(x, tree.Assign) and x.empty:
                    self.variables.setdefault(x.variable, 0)  # it is never anything else
            if before == (self.variables, len(self.divergent), self.masked_return, len(self.apart)):
                return

    def _depth(self) -> int:
        return sum(id(x) in self.divergent for x in self._stack)

    def _block(self, body: Sequence[tree.Statement], group: bool) -> None:
        for x in body:
            self._statement(x, group)

    def _statement(self, x: tree.Statement, group: bool) -> None:
        inside = group and id(x) in self.grouped
        match x:
            case tree.Assign(variable, _, _, True):
                self._homes[variable] = self._depth(), group
            case tree.Assign(variable, value, first):
                if self.has_barriers and self.is_apart(value):
                    self.apart.add(variable)
                self._assign(variable, self.level(value), first, group)
            case tree.Atomic(result=result) if result is not None:
                self._assign(result, None, False, group)
            case tree.Together(_, result):
                self._assign(result, None, False, group)
            case tree.If(test, then, other):
                if self.level(test) != 0 or (inside and self.is_apart(test)):
                    self.divergent.add(id(x))
                self._stack.append(x)
                self._block(then, inside)
                self._block(other, inside)
                self._stack.pop()
            case tree.Loop():
                self._stack.append(x)
                self._block(x.first, inside)
                self._block(x.before, inside)
                if self.level(x.test) != 0 or (inside and self.is_apart(x.test)):
                    self.divergent.add(id(x))
                self._block(x.body, inside)
                self._block(x.step, inside)
                self._stack.pop()
            case tree.Called(body):
                self._stack.append(x)
                self._block(body, inside)
                self._stack.pop()
            case tree.Break() | tree.Continue():
                self._exit(tree.Loop)
            case tree.Leave():
                self._exit(tree.Called)
            case tree.Return():
                if any(id(y) in self.divergent for y in self._stack) or (self.has_barriers and not group):
                    self.masked_return = True

    def _exit(self, out_of: type[tree.Statement]) -> None:
        """A statement that is left by some lanes alone diverges."""
        apart = False
        for x in reversed(self._stack):
            if isinstance(x, out_of):
                if apart:
                    self.divergent.add(id(x))
                return
            apart = apart or id(x) in self.divergent

    def _assign(self, variable: tree.Variable, level: Level, first: bool, group: bool) -> None:
        if first:
            self._homes[variable] = self._depth(), group
        home, of_group = self._homes[variable]
        if self._depth() > home or (of_group and not group):
            level = None  # some lanes keep what they have; a region does not assign what the threadgroup has
        if variable in self.variables and self.variables[variable] != level:
            level = None
        self.variables[variable] = level

    def is_apart(self, x: tree.Expression) -> bool:
        """Whether vectors of a threadgroup may have different values, although their lanes have the same."""
        for y in tree.walk(x):
            if isinstance(y, tree.Read) and y.variable in self.apart:
                return True
            if isinstance(y, tree.Position) and (
                y.name == "simdgroup_index_in_threadgroup" or (y.name in _OF_LANES and y.axis > 0)
            ):
                return True
        return False

    def level(self, x: tree.Expression) -> Level:
        """What the lanes have in common of an expression's value."""
        found = self._memo.get(id(x), -1)
        if found == -1:
            found = self._level(x)
            self._memo[id(x)] = found
        return found

    def _level(self, x: tree.Expression) -> Level:
        match x:
            case tree.Constant():
                return 0
            case tree.Read(_, variable):
                return self.variables.get(variable, 0)
            case tree.Position(_, name, axis):
                if name not in _OF_LANES:
                    return 0
                if not self.rows and name in ("thread_position_in_grid", "thread_position_in_threadgroup"):
                    return None
                return _OF_LANES[name][axis]
            case tree.Size(_, _, _, axis):
                return 0 if axis is None or self.level(axis) == 0 else None
            case tree.Load(_, storage, index):
                if self.has_barriers and self.masked_return:
                    return None  # it may be that no thread is left to read it
                return 0 if storage.space != "thread" and self.level(index) == 0 else None
            case tree.Cast(dtype, inner, bits):
                level = self.level(inner)
                if level == 0:
                    return 0
                same = not dtype.is_float and not inner.dtype.is_float and dtype.size == inner.dtype.size
                return level if same and not bits and not dtype.is_bool and not inner.dtype.is_bool else None
            case tree.Operation(dtype, name, operands):
                return self._operation(dtype.is_float, name, operands)
        return 0 if all(self.level(y) == 0 for y in tree.children(x)) else None  # type: ignore[arg-type]

    def _operation(self, is_float: bool, name: str, operands: Sequence[tree.Expression]) -> Level:
        levels = [self.level(y) for y in operands]
        if all(level == 0 for level in levels):
            return 0
        if is_float or None in levels or name not in ("add", "sub", "mul", "neg"):
            return None
        a, b = levels[0], levels[-1]
        assert a is not None
        assert b is not None
        if name == "neg":
            found = -a
        elif name != "mul":
            found = a + b if name == "add" else a - b
        else:
            factor = operands[1] if a else operands[0]
            if not isinstance(factor, tree.Constant) or (a and b):
                return None
            found = (a or b) * int(factor.value)
        return found if abs(found) <= MOST_STRIDE else None


def bodies(x: tree.Statement) -> Iterator[Sequence[tree.Statement]]:
    """The lists of statements right in one."""
    match x:
        case tree.If(_, then, other):
            yield from (then, other)
        case tree.Loop():
            yield from (x.first, x.before, x.body, x.step)
        case tree.Called(body):
            yield body


def has_exits(x: object) -> bool:
    """Whether a statement may take lanes away from those that follow it."""
    match x:
        case tree.Return() | tree.Leave() | tree.Break() | tree.Continue():
            return True
        case tree.Loop():
            return any(isinstance(y, tree.Return | tree.Leave) for y in tree.walk(x))
        case tree.Called(body):
            return any(isinstance(y, tree.Return) for y in tree.walk(*body))
        case tree.If(_, then, other):
            return any(has_exits(y) for y in (*then, *other))
    return False


def assigned(*statements: tree.Statement) -> set[tree.Variable]:
    """The variables that statements assign."""
    found = set()
    for x in tree.walk(*statements):
        if isinstance(x, tree.Assign):
            found.add(x.variable)
        elif isinstance(x, tree.Atomic | tree.Together) and x.result is not None:
            found.add(x.result)
    return found


def mentioned(*statements: tree.Statement) -> set[tree.Variable]:
    """The variables that statements read or assign."""
    return assigned(*statements) | {x.variable for x in tree.walk(*statements) if isinstance(x, tree.Read)}
