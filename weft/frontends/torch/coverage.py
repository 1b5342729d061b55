"""Which operators have rules: the table in docs/torch.md. `python -m weft.frontends.torch.coverage` prints it."""

from __future__ import annotations

import torch

from weft.frontends.torch.ops import MODULES, RULES
from weft.frontends.torch.ops.table import full_name


def core() -> list[str]:
    """The names of all overloads of core ATen."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        op = getattr(getattr(torch.ops.aten, schema.name[6:], None), schema.overload_name or "default", None)
        if op is not None and torch.Tag.core in op.tags:
            found.append(schema.name[6:] + (f".{schema.overload_name}" if schema.overload_name else ""))
    return sorted(found)


INSTEAD = {
    "sym_is_contiguous": "a size", "sym_numel": "a size", "sym_size.int": "a size", "sym_storage_offset": "a size",
    "sym_stride.int": "a size", "atan2.out": "`atan2`", "resize_": "`as_strided`",
}  # fmt: skip
"""Overloads that need no rule: numbers that follow from sizes, and what changes its operand, for which functional
graphs have other operators."""


def place_of(name: str) -> str | None:
    """The subject under which an overload has its rule, or what stands for it in graphs; None if nothing does."""
    for module in MODULES:
        if full_name(name) in module.aten:
            return module.__name__.rpartition(".")[2]
    return INSTEAD.get(name)


def table() -> str:
    """Rules by subject: how many there are, and which of them are core ATen's."""
    names = core()
    lines = ["| subject | rules | core ATen |", "|---|---|---|"]
    for module in MODULES:
        subject = module.__name__.rpartition(".")[2]
        own = [name for name in names if full_name(name) in module.aten]
        lines.append(f"| {subject} | {len(module.aten)} | {' '.join(f'`{name}`' for name in own)} |")
    for known in dict.fromkeys(INSTEAD.values()):
        own = [name for name in names if full_name(name) not in RULES and INSTEAD.get(name) == known]
        lines.append(f"| as {known} | | {' '.join(f'`{name}`' for name in own)} |")
    rest = [name for name in names if place_of(name) is None]
    if rest:
        lines.append(f"| no rule | | {' '.join(f'`{name}`' for name in rest)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
