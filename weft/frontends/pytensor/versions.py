"""What differs between versions of PyTensor: 3.0 and later."""

from __future__ import annotations

import importlib
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


def found(module: str, *names: str) -> list[type]:
    """Those classes of operations that this PyTensor has."""
    try:
        inside = importlib.import_module(f"pytensor.{module}")
    except ImportError:
        return []
    return [getattr(inside, name) for name in names if hasattr(inside, name)]


def _rewrites_inside() -> bool:
    """Whether PyTensor rewrites the graphs inside of operations itself, for the linker: since 3.1."""
    return bool(found("scan.rewriting.inner_graph", "rewrite_scan_inner_graph"))


def register_inside(linker: type) -> None:
    """Let PyTensor rewrite the graphs inside of operations for a linker as it does for one that works on values, and
    not on memory: a linker that is not known gets operations that overwrite their inputs."""
    if not _rewrites_inside():
        return
    scans = importlib.import_module("pytensor.scan.rewriting.inner_graph")
    graphs = importlib.import_module("pytensor.compile.rewriting")
    scans.rewrite_scan_inner_graph.register(linker, scans.functional_rewrite_scan_inner_graph)
    graphs.rewrite_ofg_inner_graph.register(linker, graphs.functional_rewrite_ofg_inner_graph)


def inner_graph(op: Any) -> Any:
    """The graph inside of an operation, rewritten as the one around it was."""
    if _rewrites_inside():
        return op.fgraph
    fgraph = op.fgraph.clone()
    mode = get_mode(getattr(op, "mode", None))
    rewriter = mode.including("fast_run", *INCLUDED).excluding(*EXCLUDED).optimizer
    rewriter.rewrite(fgraph)
    return fgraph
