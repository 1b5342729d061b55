"""The rules for ATen's operators, by subject. `RULES` is all of them, by the names that torch prints."""

from __future__ import annotations

from weft.frontends.torch.ops import (
    attention,
    convolutions,
    indexing,
    linalg,
    normalization,
    pointwise,
    products,
    random,
    reductions,
    selecting,
    sorting,
    views,
)
from weft.frontends.torch.ops.table import DTYPES, TORCH_DTYPES, Out, Rule

MODULES = (
    pointwise, reductions, views, indexing, selecting, sorting, products, linalg, convolutions, normalization,
    attention, random,
)  # fmt: skip

RULES: dict[str, Rule] = {name: rule for module in MODULES for name, rule in module.aten.items()}
