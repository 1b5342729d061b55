"""The table of all operations, docs/primitives.md, written from `REGISTRY` by `python -m weft.report.primitives`.

Everything in it is read from the classes: what a primitive is, its family and parameters, its dtypes, how exact it is,
and which rules it writes itself (its family derives the others).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.primitives import REGISTRY, base
from weft.primitives.base import Primitive

PAGE = Path(__file__).resolve().parents[2] / "docs" / "primitives.md"

RULES = (
    "infer", "check", "partials", "transpose", "jvp", "vjp", "batch", "index_map", "emit", "combine", "step",
)  # fmt: skip
"""What a primitive may write; each family derives the rest from what it asks for."""

SETS: dict[str, tuple[Dtype, ...]] = {
    "all": dt.ALL,
    "all but bool": tuple(d for d in dt.ALL if not d.is_bool),
    "all but complex": tuple(d for d in dt.ALL if not d.is_complex),
    "floats, complex": (*dt.FLOATS, *dt.COMPLEXES),
    "bool, integers": (dt.bool_, *dt.INTEGERS),
    "integers": dt.INTEGERS,
    "floats": dt.FLOATS,
    "complex": dt.COMPLEXES,
}

HEAD = """\
# Primitives

Every operation of Weft, from the registry in `weft/primitives/__init__.py`. This page is written by
`python -m weft.report.primitives`; a test fails when it is out of date. *Rules* are those that the class writes itself:
its family derives the others (see [add_a_primitive.md](add_a_primitive.md)). *Error* is the largest difference from the
NumPy reference, in units of the last place of float32 (where there is one), as the contract tests check it; a star:
relative to the sum of the magnitudes of the terms.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"{len(REGISTRY)} primitives.\n"]
    modules = dict.fromkeys(cls.__module__ for cls in REGISTRY)  # in the registry's order, each once
    parts += [_section(module, [cls for cls in REGISTRY if cls.__module__ == module]) for module in modules]
    return "\n".join(parts)


def _section(module: str, classes: Sequence[type[Primitive]]) -> str:
    name = module.rpartition(".")[2]
    opening = (sys.modules[module].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
    lines = [
        f"## {name}\n",
        f"{opening}\n",
        "| primitive | what it is | family | parameters | dtypes | error | rules |",
    ]
    lines.append("|---" * 7 + "|")
    lines += [_row(cls) for cls in classes]
    return "\n".join(lines) + "\n"


def _row(cls: type[Primitive]) -> str:
    words = " ".join((cls.__doc__ or "").split()).replace("|", "\\|")
    parameters = ", ".join(f"`{f.name}`" for f in fields(cls))  # type: ignore[arg-type]
    cells = [
        f"`{cls.name()}`",
        words,
        family(cls),
        parameters,
        dtype_names(cls.dtypes),
        error(cls),
        ", ".join(written(cls)),
    ]
    return "| " + " | ".join(cells) + " |"


def family(cls: type[Primitive]) -> str:
    """The family that derives most of a primitive's rules: the first of its ancestors that the contract's module
    defines."""
    found = next(c for c in cls.__mro__ if c.__module__ == base.__name__)
    return "–" if found is Primitive else found.__name__


def dtype_names(dtypes: Sequence[Dtype]) -> str:
    for name, known in SETS.items():
        if set(dtypes) == set(known):
            return name
    return ", ".join(d.name for d in dtypes)


def error(cls: type[Primitive]) -> str:
    """`exact`, or the stated tolerance of the dtype that most programs use."""
    for dtype in (dt.float32, *dt.ALL):
        if cls.tolerance.get(dtype) and dtype in cls.dtypes:
            bound = f"{cls.tolerance[dtype]:g}{'*' if cls.cancels else ''}"
            return bound if dtype is dt.float32 else f"{bound} ({dtype.name})"
    return "exact"


def written(cls: type[Primitive]) -> list[str]:
    """Rules that a primitive, or a family within its own module, writes."""
    own = [c for c in cls.__mro__ if c.__module__ not in (base.__name__, "builtins")]
    return [rule for rule in RULES if any(rule in c.__dict__ for c in own)]


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {len(REGISTRY)} primitives")


if __name__ == "__main__":
    main()
