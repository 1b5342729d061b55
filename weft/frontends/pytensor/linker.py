"""The linker and the mode "WEFT" of PyTensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.compile.mode import Mode, predefined_linkers, predefined_modes, register_linker, register_mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.basic import JITLinker
from pytensor.link.utils import raise_with_op

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

    def create_jitable_thunk(
        self, compute_map: Any, order: Any, input_storage: Any, output_storage: Any, storage_map: Any
    ) -> tuple[list[Any], list[Any], Plan]:
        """One function that reads the inputs from where PyTensor puts them, and gives the outputs, there and as its
        result: what a call of a small function takes is mostly this."""
        plan = self.fgraph_convert(self.fgraph)
        inputs = self.create_thunk_inputs(storage_map)
        outputs = [storage_map[x] for x in self.fgraph.outputs]
        nodes = [x.owner for x in self.fgraph.outputs if x.owner is not None][:1]

        def thunk() -> Any:
            try:
                made = plan.call([cell[0] for cell in inputs])
            except Exception:
                if not nodes:
                    raise
                raise_with_op(self.fgraph, nodes[0], thunk)
            for cell, value in zip(outputs, made):  # noqa: B905  what a check takes is felt here
                cell[0] = value
            return made

        thunk.inputs, thunk.outputs, thunk.lazy = inputs, outputs, False  # type: ignore[attr-defined]
        return [thunk], nodes, plan


WEFT = Mode(WeftLinker(), RewriteDatabaseQuery(include=["fast_run"]))


def register() -> None:
    """Let PyTensor know the linker and the mode by name. Doing it twice does no harm."""
    if "weft" not in predefined_linkers:
        register_inside(WeftLinker)
        register_linker("weft", WeftLinker())
    if "WEFT" not in predefined_modes:
        register_mode("WEFT", WEFT)
