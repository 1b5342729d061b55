"""What the code of a function can reach by name: globals, attributes of modules, variables that it sets. Read from its
bytecode, once for each function, with the functions that are defined inside it."""

from __future__ import annotations

import dis
import types
from collections import defaultdict
from collections.abc import Mapping

from weft.records import dataclass

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_CELLS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "PUSH_NULL"})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Names:
    """The names in a function's code, with those of the functions inside it. There is one object for one code, so that
    keys may hold it: to hash code itself takes long."""

    code: types.CodeType
    loads: tuple[tuple[str, tuple[str, ...]], ...]
    """Globals that it reads, each with the attributes that are read from it at once: `config.rates.slow` is one."""
    stores: tuple[str, ...]
    """Globals that it sets."""
    imports: tuple[tuple[str, int], ...]
    """Modules that it imports, each with the number of dots before it."""
    written: tuple[str, ...]
    """Variables of enclosing functions that it sets."""
    tails: Mapping[str, int]
    """Globals and variables of enclosing functions of which it sees no more than the last items, and how many: it uses
    them as `name.append(...)`, `name[-1]`, `name[-3:]`, `if name:` and in no other way."""
    asks_type: bool
    """Whether it calls `type` (of more than `self`) or catches TypeErrors, which C code may raise for what stands for a
    number or a size while tracing: that would be found out."""

    def __repr__(self) -> str:
        return f"the function {self.code.co_name}"


_NAMES: dict[int, Names] = {}
_MOST_NAMES = 1 << 14


def names_of(code: types.CodeType) -> Names:
    """The names in this code."""
    found = _NAMES.get(id(code))
    if found is None:
        if len(_NAMES) >= _MOST_NAMES:  # forgetting costs later retraces, never a wrong answer
            _NAMES.clear()
        found = _NAMES[id(code)] = _names(code)
    return found


def _names(code: types.CodeType) -> Names:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _SKIPPED]
    by_name = _by_name(instructions)
    loads: dict[tuple[str, tuple[str, ...]], None] = {}
    tails: dict[str, int] = {}
    otherwise = set(by_name["STORE_DEREF"]) | set(by_name["STORE_GLOBAL"])
    for at, instruction in enumerate(instructions):
        if instruction.opname not in _GLOBALS and instruction.opname not in _CELLS:
            continue
        name, follows = instruction.argval, _attributes(instructions, at + 1)
        length = 0 if follows == ["append"] else _tail(instructions[at + 1 : at + 5])
        if length is None:
            otherwise.add(name)
        else:
            tails[name] = max(length, tails.get(name, 0))
        if instruction.opname in _GLOBALS:
            loads[name, tuple(follows)] = None
    inner = [names_of(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    free = [c.co_freevars for c in code.co_consts if isinstance(c, types.CodeType)]
    for names, variables in zip(inner, free, strict=True):
        loads.update(dict.fromkeys(names.loads))
        for name, length in names.tails.items():
            tails[name] = max(length, tails.get(name, 0))
        otherwise |= {*variables, *(path[0] for path in names.loads)} - names.tails.keys()
    return Names(
        code,
        tuple(loads),
        _merged(by_name["STORE_GLOBAL"] + by_name["DELETE_GLOBAL"], [names.stores for names in inner]),
        tuple(dict.fromkeys([*_imports(instructions), *(module for names in inner for module in names.imports)])),
        _merged(by_name["STORE_DEREF"] + by_name["DELETE_DEREF"], [names.written for names in inner]),
        {name: length for name, length in tails.items() if name not in otherwise},
        _asks_type(instructions) or any(names.asks_type for names in inner),
    )


def _by_name(instructions: list[dis.Instruction]) -> defaultdict[str, list[str]]:
    """The names that instructions of each kind are about."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for instruction in instructions:
        if isinstance(instruction.argval, str):
            found[instruction.opname].append(instruction.argval)
    return found


_TYPE_ERRORS = frozenset({"TypeError", "Exception", "BaseException"})
_MATCHES = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH"})
_BEFORE_MATCH = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "BUILD_TUPLE"})


def _asks_type(instructions: list[dis.Instruction]) -> bool:
    for at, instruction in enumerate(instructions):
        if instruction.opname in _GLOBALS and instruction.argval == "type":
            if instructions[at + 1].argval != "self":
                return True
        elif instruction.opname == "PUSH_EXC_INFO":
            if instructions[at + 1].opname == "POP_TOP":  # `except:`
                return True
        elif instruction.opname in _MATCHES and _may_catch_type_errors(instructions, at - 1):
            return True
    return False


def _may_catch_type_errors(instructions: list[dis.Instruction], at: int) -> bool:
    """Whether the exceptions that are loaded up to here may be TypeErrors; other names than globals may be anything."""
    if instructions[at].opname in _ATTRIBUTES:  # `module.Error`: not one of Python's
        return False
    count = instructions[at].argval if instructions[at].opname == "BUILD_TUPLE" else 1
    loaded = instructions[at - count : at] if instructions[at].opname == "BUILD_TUPLE" else [instructions[at]]
    return any(load.opname not in _BEFORE_MATCH or load.argval in _TYPE_ERRORS for load in loaded)


def _imports(instructions: list[dis.Instruction]) -> list[tuple[str, int]]:
    """Modules that are imported: (name, number of dots). The dots are pushed two instructions before."""
    found = []
    for at, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            found.append((instruction.argval, instructions[at - 2].argval or 0))
    return found


def _merged(own: list[str], others: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*own, *(name for names in others for name in names)]))


def _tail(follows: list[dis.Instruction]) -> int | None:
    """How many items at the end of a list that has just been loaded these instructions look at: `[-1]`, `[-3:]`,
    `[-3:-1]`, or whether there are any. None if they may look at others, or do something else."""
    if follows and (follows[0].opname.startswith("POP_JUMP") or follows[0].opname == "TO_BOOL"):
        return 1
    numbers = []
    for instruction in follows:
        if instruction.opname == "LOAD_CONST":
            bounds = instruction.argval
            numbers += [bounds.start, bounds.stop] if isinstance(bounds, slice) and bounds.step is None else [bounds]
        elif (
            instruction.opname == "BINARY_SLICE" or instruction.argrepr == "[]" or instruction.opname == "BINARY_SUBSCR"
        ):
            break
        elif instruction.opname != "BUILD_SLICE" or instruction.argval != 2:
            return None
    else:
        return None
    from_end = [type(n) is int and n < 0 for n in numbers]
    if from_end in ([True], [True, True]) or (from_end == [True, False] and numbers[1] is None):
        return -min(n for n in numbers if n is not None)
    return None


def _attributes(instructions: list[dis.Instruction], at: int) -> list[str]:
    """The attributes that are read one from the other, beginning with this instruction."""
    found = []
    while at < len(instructions) and instructions[at].opname in _ATTRIBUTES:
        found.append(instructions[at].argval)
        at += 1
    return found
