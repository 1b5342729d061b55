"""Weft: the MLX array API on any Linux machine, with a compiler that people can trust and read."""

from __future__ import annotations

from typing import Any

from weft.version import __version__

__all__ = ["__version__", "explain"]


def explain(fun: Any, *args: Any, **kwargs: Any) -> Any:
    """What the compiler makes of `fun(*args)`; see weft.report.explain."""
    from weft.report.explain import explain as report  # `import weft` itself stays free of the engine

    return report(fun, *args, **kwargs)
