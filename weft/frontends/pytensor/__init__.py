"""PyTensor on Weft: `import weft.frontends.pytensor` registers the mode "WEFT" (docs/pytensor.md).

>>> import weft.frontends.pytensor  # doctest: +SKIP
>>> f = pytensor.function([x], y, mode="WEFT")  # doctest: +SKIP
"""

from __future__ import annotations

# Each of these registers its rules.
from weft.frontends.pytensor import (
    extras,
    factors,
    graphs,
    linear,
    lists,
    random,
    scalars,
    scan,
    shapes,
    sparse,
    subtensors,
    tridiagonal,
)
from weft.frontends.pytensor.linker import WEFT, WeftLinker, register

register()
