"""Weft: the MLX array API on any Linux machine, with a compiler that people can trust and read."""

from weft.version import __version__

__all__ = ["__version__"]
