"""What of PyTensor is translated, as the table of docs/pytensor.md: `python -m weft.frontends.pytensor.coverage`."""

from __future__ import annotations

from pytensor import scalar as ps
from pytensor.scalar import math as psm
from pytensor.tensor.random import basic as ptr

from weft.frontends.pytensor import random, scalars
from weft.frontends.pytensor.convert import RULES
from weft.frontends.pytensor.linear import MATRIXWISE

FAMILIES = {
    "scalars": "elementwise, reductions",
    "subtensors": "parts of arrays",
    "shapes": "shapes, new arrays",
    "linear": "products, linear algebra, repetition over leading axes",
    "tridiagonal": "systems with three diagonals",
    "extras": "others",
    "graphs": "graphs, branches, checks",
    "scan": "loops",
    "random": "random variables",
    "sparse": "sparse matrices",
    "lists": "typed lists",
}


def table() -> str:
    """Operations by family, scalar operations, distributions; and what PyTensor runs itself."""
    by_family: dict[str, list[str]] = {}
    for cls, rule in RULES.items():
        module = "linear" if cls in MATRIXWISE else rule.convert.__module__.rpartition(".")[2]
        by_family.setdefault(module, []).append(cls.__name__)
    lines = ["| family | operations |", "|---|---|"]
    lines += [f"| {title} | {_listed(by_family.get(name, []))} |" for name, title in FAMILIES.items()]
    lines.append(f"| scalar operations | {_listed([*scalars.SAME, *scalars.OWN, 'Composite', 'ScalarLoop'])} |")
    drawn = [cls.__name__.removesuffix("RV") for cls in (*random.SAMPLERS, *random.WHOLE)]
    lines.append(f"| distributions | {_listed(drawn)} |")
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names)))


def untranslated_scalars() -> list[str]:
    """Scalar operations without a translation; bases of others are none."""
    classes = [
        x
        for module in (ps, psm)
        for x in vars(module).values()
        if isinstance(x, type) and issubclass(x, ps.ScalarOp) and not x.__subclasses__()
    ]
    return [x.__name__ for x in classes if scalars.refused_class(x) and hasattr(x, "impl")]


def untranslated_distributions() -> list[str]:
    """Distributions of PyTensor's own that have no translation."""
    own = [x for x in vars(ptr).values() if isinstance(x, type) and issubclass(x, ptr.RandomVariable)]
    known = {*random.SAMPLERS, *random.WHOLE}
    return [x.__name__ for x in own if x not in known and not x.__subclasses__() and x is not ptr.RandomVariable]


if __name__ == "__main__":
    import weft.frontends.pytensor  # all rules

    assert weft.frontends.pytensor.WEFT
    print(table())
