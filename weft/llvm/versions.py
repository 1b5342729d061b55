"""What kernels must write differently for different versions of LLVM. The builder asks; nothing else knows.

Weft works with LLVM 20 to 22 (llvmlite 0.45 to 0.50), which give the same bits; later ones are taken to be like the
last. An entry goes when the versions before it are given up.
"""

from __future__ import annotations

from weft.llvm.binding import llvm_version


def aligned_pointers(kind: str, text: str, alignment: int) -> tuple[list[str], str]:
    """The addresses that a masked load, store, gather or scatter gets, with their alignment in bytes: what to declare,
    and what to pass.

    LLVM 22: an attribute of the pointer. Before: an operand of its own behind it.
    """
    if llvm_version() >= (22,):
        return [kind], f"{kind} align {alignment} {text}"
    return [kind, "i32"], f"{kind} {text}, i32 {alignment}"
