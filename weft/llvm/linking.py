"""A linker for the objects that LLVM makes of kernels: sections laid out in code memory, relocations filled in.

LLVM has one of its own, but its engine ends the process where it gets no memory, takes two memory maps for each object,
and gives code back only all together (an engine for each kernel would cost 1 ms and 50 KB). The engine comes in with
objects, and takes `Code`.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from weft.errors import CompileError
from weft.llvm.code import MEMORY, Code

ALLOWED_SYMBOLS: Final = frozenset({
    "memcpy", "memmove", "memset", "fma", "fmaf", "PyLong_FromLongLong", "PyObject_CallMethod", "PyObject_GetBuffer",
    "Py_DecRef",
})  # fmt: skip
"""What an object may ask of the process. The first three are what LLVM makes of copies and fills; fma and fmaf
(correctly rounded, so their bits are the instruction's) are what it calls on CPUs before x86-64-v3; the functions of
CPython are for runtime/cpython.py and runtime/ndarrays.py."""

_X86_64: Final = 62
_AARCH64: Final = 183
_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8  # types of sections
_WRITTEN, _IN_MEMORY = 1, 2  # flags of sections
_ABSOLUTE, _COMMON = 0xFFF1, 0xFFF2  # numbers of sections that are none


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    is_global: bool


class Elf:
    """A 64-bit little-endian ELF object: its sections and symbols."""

    def __init__(self, contents: bytes) -> None:
        if contents[:6] != b"\x7fELF\x02\x01":
            raise CompileError("LLVM made something that is not a 64-bit little-endian ELF object.")
        self.contents = contents
        (self.machine,) = struct.unpack_from("<H", contents, 0x12)
        (table,) = struct.unpack_from("<Q", contents, 0x28)
        size, count = struct.unpack_from("<HH", contents, 0x3A)
        self.sections = [
            _Section._make(struct.unpack_from("<IIQQQQIIQQ", contents, table + i * size)) for i in range(count)
        ]
        self.symbols = [symbol for section in self.sections for symbol in self._symbols(section)]

    def _symbols(self, section: _Section) -> list[_Symbol]:
        if section.type != _SYMBOLS:
            return []
        strings = self.sections[section.link].offset
        found = []
        entries = self.contents[section.offset : section.offset + section.size]
        for number, (name, _, _, place, value, _) in enumerate(struct.iter_unpack("<IBBHQQ", entries)):
            start = strings + name
            text = self.contents[start : self.contents.index(b"\0", start)].decode()
            found.append(_Symbol(text, place, value, number >= section.info))
        return found

    def relocations(self) -> list[tuple[int, int, int, int, int]]:
        """(section, offset in it, type, symbol, addend) of all relocations of what is in memory."""
        found = []
        for section in self.sections:
            if section.type == _RELOCATIONS and self.sections[section.info].flags & _IN_MEMORY:
                entries = self.contents[section.offset : section.offset + section.size]
                for offset, info, addend in struct.iter_unpack("<QQq", entries):
                    found.append((section.info, offset, info & 0xFFFFFFFF, info >> 32, addend))
        return found


def global_symbols(elf: bytes) -> tuple[set[str], set[str]]:
    """(defined, undefined) global symbols of an object."""
    symbols = [symbol for symbol in Elf(elf).symbols if symbol.is_global]
    return {s.name for s in symbols if s.section}, {s.name for s in symbols if not s.section}


def link(contents: bytes, entry: str, calls: Mapping[str, Code] | None = None) -> Code:
    """The object in memory, to be called where its symbol `entry` is. `calls` is other code that it calls, by name."""
    made = _Link(Elf(contents), entry, calls or {}).placed()
    made.calls = tuple(calls.values()) if calls else ()
    return made


class _Link:
    """An object on its way into memory. Code and what it only reads come first, then addresses of what lies elsewhere
    (a table of them, and jumps to them), then what it writes."""

    def __init__(self, elf: Elf, entry: str, calls: Mapping[str, Code]) -> None:
        self.elf, self.entry, self.calls = elf, entry, calls
        self.relocations = elf.relocations()
        kept = [i for i, section in enumerate(elf.sections) if section.flags & _IN_MEMORY and section.size]
        self.offsets: dict[int, int] = {}
        self.nbytes = self._lay_out([i for i in kept if not elf.sections[i].flags & _WRITTEN], 0)
        self.far_at = self.nbytes = -(-self.nbytes // 16) * 16
        self.rules = _RULES.get(elf.machine, {})
        far = {symbol for _, _, kind, symbol, _ in self.relocations if self._is_far(symbol) or self._rule(kind).table}
        self.far = {symbol: number for number, symbol in enumerate(sorted(far))}
        self.nbytes += _FAR * len(self.far)
        self.written = [i for i in kept if elf.sections[i].flags & _WRITTEN]
        self.writable = self._lay_out(self.written, 0)

    def _lay_out(self, sections: list[int], at: int) -> int:
        for number in sections:
            section = self.elf.sections[number]
            alignment = max(1, section.alignment)
            self.offsets[number] = -(-at // alignment) * alignment
            at = self.offsets[number] + section.size
        return at

    def _is_far(self, symbol: int) -> bool:
        return not self.elf.symbols[symbol].section

    def _rule(self, kind: int) -> _Rule:
        rule = self.rules.get(kind)
        if rule is None:
            raise CompileError(f"an object has a relocation of type {kind}, which Weft does not know.")
        return rule

    def placed(self) -> Code:
        return MEMORY.place(self.nbytes, self.writable, self._filled)

    def _filled(self, base: int, writable: int) -> tuple[bytes, int]:
        """All contents for these addresses, and the address of the entry."""
        place = {n: (writable if n in self.written else base) + offset for n, offset in self.offsets.items()}
        memory = bytearray(writable - base + self.writable if self.writable else self.nbytes)
        for number, address in place.items():
            section = self.elf.sections[number]
            if section.type != _ZEROS:
                at = address - base
                memory[at : at + section.size] = self.elf.contents[section.offset : section.offset + section.size]
        addresses = [self._address(symbol, place) for symbol in self.elf.symbols]
        slot, jump = _FAR - 8, _JUMPS.get(self.elf.machine, b"")
        for symbol, number in self.far.items():
            at = self.far_at + _FAR * number
            memory[at : at + _FAR] = jump.ljust(slot, b"\0") + addresses[symbol].to_bytes(8, "little")
        for number, offset, kind, symbol, addend in self.relocations:
            rule = self._rule(kind)
            at = place[number] - base + offset
            target = addresses[symbol]
            if rule.table or (rule.near and self._is_far(symbol)):
                target = base + self.far_at + _FAR * self.far[symbol] + (slot if rule.table else 0)
            rule.apply(memory, at, target + addend, base + at)
        return bytes(memory), dict(zip([s.name for s in self.elf.symbols], addresses, strict=True))[self.entry]

    def _address(self, symbol: _Symbol, place: dict[int, int]) -> int:
        if symbol.section == 0:
            called = self.calls.get(symbol.name)
            return called.address if called is not None else address_of(symbol.name) if symbol.name else 0
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section == _COMMON:
            raise CompileError(f"an object has a common symbol {symbol.name}; give it an initial value.")
        return place.get(symbol.section, 0) + symbol.value


@functools.cache
def address_of(name: str) -> int:
    """Where a function of the process is that objects may call."""
    if name not in ALLOWED_SYMBOLS:
        raise CompileError(f"an object asks for {name}, which is not in ALLOWED_SYMBOLS of weft.llvm.linking.")
    try:
        function = ctypes.CDLL(None)[name]
    except AttributeError:  # a Python that is linked without libm
        function = ctypes.CDLL("libm.so.6")[name]
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# ---------------------------------------------------------------------------------------------------------------------
# Relocations
# ---------------------------------------------------------------------------------------------------------------------

_FAR: Final = 16
"""Bytes for each function of the process: a jump to it, with its address behind."""

_JUMPS: Final = {
    _X86_64: b"\xff\x25\x02\x00\x00\x00",  # jmp *2(%rip)
    _AARCH64: b"\x50\x00\x00\x58\x00\x02\x1f\xd6",  # ldr x16, 8; br x16
}


class _Rule(NamedTuple):
    """How a relocation is filled in: `apply(memory, at, value, place)`, where `value` is what the symbol's address and
    the addend make, and `place` the address of what is filled in. A `near` one does not reach far, so that functions of
    the process are reached by a jump beside the code, or by the `table` of addresses there."""

    apply: Callable[[bytearray, int, int, int], None]
    near: bool = False
    table: bool = False


def _absolute(form: str) -> Callable[[bytearray, int, int, int], None]:
    packer = struct.Struct(form)

    def apply(memory: bytearray, at: int, value: int, place: int) -> None:
        packer.pack_into(memory, at, value)

    return apply


def _relative(form: str) -> Callable[[bytearray, int, int, int], None]:
    packer = struct.Struct(form)

    def apply(memory: bytearray, at: int, value: int, place: int) -> None:
        packer.pack_into(memory, at, value - place)

    return apply


def _instruction(bits: Callable[[int, int], int]) -> Callable[[bytearray, int, int, int], None]:
    """A rule for AArch64 that sets bits of an instruction, which LLVM leaves 0."""

    def apply(memory: bytearray, at: int, value: int, place: int) -> None:
        (word,) = struct.unpack_from("<I", memory, at)
        struct.pack_into("<I", memory, at, word | bits(value, place))

    return apply


def _part(shift: int) -> _Rule:
    """16 bits of an address, for movz and movk."""
    return _Rule(_instruction(lambda value, place: (value >> shift & 0xFFFF) << 5))


def _low(shift: int, table: bool = False) -> _Rule:
    """The place in a page, for an access to 1 << shift bytes."""
    return _Rule(_instruction(lambda value, place: (value & 0xFFF) >> shift << 10), near=True, table=table)


def _page(value: int, place: int) -> int:
    pages = (value >> 12) - (place >> 12)
    return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _branch(value: int, place: int) -> int:
    return (value - place) >> 2 & 0x3FFFFFF


_RULES: Final[dict[int, dict[int, _Rule]]] = {
    _X86_64: {
        1: _Rule(_absolute("<Q")),  # 64
        2: _Rule(_relative("<i"), near=True),  # PC32
        4: _Rule(_relative("<i"), near=True),  # PLT32
        24: _Rule(_relative("<q")),  # PC64
        9: _Rule(_relative("<i"), near=True, table=True),  # GOTPCREL
        41: _Rule(_relative("<i"), near=True, table=True),  # GOTPCRELX
        42: _Rule(_relative("<i"), near=True, table=True),  # REX_GOTPCRELX
    },
    _AARCH64: {
        257: _Rule(_absolute("<Q")),  # ABS64
        260: _Rule(_relative("<q")),  # PREL64
        261: _Rule(_relative("<i"), near=True),  # PREL32
        **{263 + i: _part(16 * (i // 2)) for i in range(7)},  # MOVW_UABS_G0, G0_NC, G1, G1_NC, G2, G2_NC, G3
        275: _Rule(_instruction(_page), near=True),  # ADR_PREL_PG_HI21
        277: _low(0),  # ADD_ABS_LO12_NC
        278: _low(0),  # LDST8_ABS_LO12_NC
        284: _low(1),  # LDST16_ABS_LO12_NC
        285: _low(2),  # LDST32_ABS_LO12_NC
        286: _low(3),  # LDST64_ABS_LO12_NC
        299: _low(4),  # LDST128_ABS_LO12_NC
        282: _Rule(_instruction(_branch), near=True),  # JUMP26
        283: _Rule(_instruction(_branch), near=True),  # CALL26
        311: _Rule(_instruction(_page), near=True, table=True),  # ADR_GOT_PAGE
        312: _low(3, table=True),  # LD64_GOT_LO12_NC
    },
}
"""By machine and type of relocation. Pieces of code memory are far smaller than what near ones reach."""
