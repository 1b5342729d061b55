"""The linker and the mode "WEFT" of PyTensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.compile.mode import Mode, predefined_linkers, predefined_modes, register_linker, register_mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.basic import JITLinker

from weft.frontends.pytensor.segments import Plan
from weft.frontends.pytensor.versions import EXCLUDED, INCLUDED, register_inside


class WeftLinker(JITLinker):
    """Runs a graph of PyTensor as programs of Weft."""

    required_rewrites = ("minimum_compile", *INCLUDED)
    incompatible_rewrites = EXCLUDED

    def fgraph_convert(self, fgraph: Any, order: Any = None, **kwargs: Any) -> Plan:
        return Plan(fgraph.inputs, fgraph.outputs, fgraph.toposort())

    def create_thunk_inputs(self, storage_map: dict[Any, list[Any]]) -> list[list[Any]]:
        return [storage_map[x] for x in self.fgraph.inputs]

    def jit_compile(self, fn: Plan) -> Callable[..., Any]:
        return fn


WEFT = Mode(WeftLinker(), RewriteDatabaseQuery(include=["fast_run"]))


def register() -> None:
    """Let PyTensor know the linker and the mode by name. Doing it twice does no harm."""
    if "weft" not in predefined_linkers:
        register_inside(WeftLinker)
        register_linker("weft", WeftLinker())
    if "WEFT" not in predefined_modes:
        register_mode("WEFT", WEFT)
