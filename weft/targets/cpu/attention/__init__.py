"""Attention: kernels that never store the scores of all queries with all keys. `lower` and
`lower_gradient` are what others come for.

Nothing here depends on sizes but the words of a launch: caches of keys that grow need no new code. The bits of a result
depend on values, shapes and dtypes only (docs/numerics.md).
"""

from weft.targets.cpu.attention.lowering import lower, lower_gradient

__all__ = ["lower", "lower_gradient"]
