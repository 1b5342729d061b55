"""What differs between versions of PyTensor."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import get_mode

EXCLUDED = (
    "cxx_only",
    "BlasOpt",
    "local_careduce_fusion",
    "inplace",
    "fusion",
    "scan_reduce_trace_prealloc",
    "numba",
    "jax",
    "mlx",
)
"""Rewrites that are for other back ends, or that do what Weft does better: fuse, and update in place."""
INCLUDED = ("scan_reduce_trace_no_prealloc",)


def inner_graph(op: Any) -> Any:
    """The graph inside of an operation, rewritten as the one around it was."""
    fgraph = op.fgraph.clone()
    mode = get_mode(getattr(op, "mode", None))
    rewriter = mode.including("fast_run", *INCLUDED).excluding(*EXCLUDED).optimizer
    rewriter.rewrite(fgraph)
    return fgraph
