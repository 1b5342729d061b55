"""Programs from torch.export: `from_exported` makes one, `load` reads one from a file.

An exported program holds the weights, buffers and constants of its module (`state`, tensors by name) and is called like
the module: what the module changes in place, buffers or arguments, a call changes too.
"""

from __future__ import annotations

import json
import math
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from os import PathLike
from typing import IO, Any

import torch
from torch import fx
from torch._export.verifier import Verifier
from torch.export import ExportedProgram
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from weft import program
from weft.array import array, wrap
from weft.frontends.torch.calls import Compiled, kinds_of
from weft.frontends.torch.graph import Translation, Unsupported, place_of, why_not, without_checks, without_kept
from weft.frontends.torch.restricting import InPlace
from weft.frontends.torch.signature import Signature
from weft.primitives.base import constant
from weft.program import MemoryReport
from weft.records import dataclass

FORMAT = 2
"""The version of files."""


@dataclass(frozen=True)
class Arguments:
    """Where the arguments of the graph come from: `names` of all of them, for each its place in the state or None if
    the caller gives it; and the names of the outputs and of what changes."""

    names: tuple[str, ...]
    state: tuple[str | None, ...]
    outputs: tuple[str, ...]
    constants: tuple[Any, ...]
    """Values of the caller's arguments that are no tensors: they are part of the program, and checked."""

    @property
    def given(self) -> list[int]:
        """The numbers of the arguments that the caller gives."""
        return [i for i, name in enumerate(self.state) if name is None]


def from_exported(exported: ExportedProgram, *, name: str = "exported", in_place: InPlace = True) -> Exported:
    """The program of what torch.export gave. An operator without a rule is an error that names it and the line of the
    module that it comes from.

    `in_place` restricts which operators may write their results over operands, buffers and arguments that change among
    them: all may (True), none (False), those of some names ("aten.add.Tensor", or "aten.add" for all overloads; after
    torch has taken others apart), or those for whose names a function returns True.
    """
    if not isinstance(exported, ExportedProgram):
        raise TypeError(
            f"[from_exported] takes what torch.export.export gives; got {type(exported).__name__}. What to_edge of "
            "ExecuTorch gives has it as exported_program()."
        )
    as_aten = _as_aten(exported.graph_module)
    if as_aten is None:
        functional = exported.run_decompositions(without_kept(torch.export.default_decompositions()))
    else:
        functional = exported._update(as_aten, exported.graph_signature, verifiers=[Verifier])
    return _of_functional(functional, name, in_place)


def _of_functional(functional: ExportedProgram, name: str, in_place: InPlace) -> Exported:
    if any(spec.kind is OutputKind.TOKEN for spec in functional.graph_signature.output_specs):
        functional = _remove_effect_tokens(functional)  # what keeps checks in order
    module = functional.graph_module
    without_checks(module.graph)
    reasons = [f"{reason}{place_of(node)}" for node in module.graph.nodes if (reason := why_not(node)) is not None]
    if reasons:
        raise Unsupported("[from_exported] " + "\n".join(dict.fromkeys(reasons)))
    specs = functional.graph_signature
    wanted: Sequence[Any] = next(node for node in module.graph.nodes if node.op == "output").args[0]
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    by_target = {spec.target: placeholders[spec.arg.name] for spec in specs.input_specs if spec.target is not None}
    changes: list[tuple[fx.Node, fx.Node]] = []
    outputs: list[Any] = []
    for spec, node in zip(specs.output_specs, wanted, strict=True):
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            changes.append((by_target[spec.target], node))
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            changes.append((placeholders[spec.target], node))
        elif spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(node)
        else:
            raise Unsupported(f"[from_exported] an output that is a {spec.kind.name.lower()}")
    translation = Translation(module, outputs, changes, in_place)
    traced = None
    if translation.results:
        traced = program.trace(
            translation.build, translation.inputs, name=name, sizes=translation.hints, updates=translation.updates
        )
    arguments = Arguments(
        tuple(placeholders),
        tuple(None if spec.kind is InputKind.USER_INPUT else spec.target for spec in specs.input_specs),
        tuple(getattr(spec.arg, "name", "") or "" for spec in specs.output_specs),
        tuple(getattr(spec.arg, "value", None) for spec in specs.input_specs),
    )
    spec_of = functional.call_spec
    assert spec_of.in_spec is not None
    assert spec_of.out_spec is not None
    state = {**functional.state_dict, **functional.constants}
    kept = {target: state[target].detach() for target in arguments.state if target is not None}
    graph = None
    if translation.depends_on_data:
        names = sorted({str(x.target) for x in translation.nodes if isinstance(x.target, torch._ops.OpOverload)})
        graph = TorchGraph(functional, tuple(filter(translation.may_run_in_place, names)))
    return Exported(
        Compiled(translation.signature, traced), arguments, kept, spec_of.in_spec, spec_of.out_spec, name,
        translation.hints, graph,
    )  # fmt: skip


@dataclass(frozen=True)
class TorchGraph:
    """The graph of a program whose sizes depend on data, as torch has it: such a program is traced again when data with
    other sizes come, in ways that no file could list beforehand. So this is what is written to one."""

    exported: ExportedProgram
    in_place: tuple[str, ...]
    """The operators that may run in place."""

    def to_bytes(self, state: Mapping[str, torch.Tensor]) -> bytes:
        """The graph and the state as it is now."""
        exported = self.exported
        now = exported._update(
            exported.graph_module, exported.graph_signature,
            state_dict={name: _as_it_is(x, state.get(name, x)) for name, x in exported.state_dict.items()},
            constants={name: state.get(name, x) for name, x in exported.constants.items()},
        )  # fmt: skip
        now._example_inputs = None  # what it was exported with is no part of the program
        file = BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch to itself
            torch.export.save(now, file)
        return file.getvalue()

    @staticmethod
    def from_bytes(content: bytes, in_place: Sequence[str]) -> TorchGraph:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return TorchGraph(torch.export.load(BytesIO(content)), tuple(in_place))


def _as_it_is(x: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """The value that a parameter or a buffer has now."""
    return torch.nn.Parameter(now.detach(), x.requires_grad) if isinstance(x, torch.nn.Parameter) else now


def _as_aten(module: fx.GraphModule) -> fx.GraphModule | None:
    """The graph of an edge program of ExecuTorch with the operators that its own stand for; None for any other. It is
    functional already, and taken apart."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    is_edge = False
    for node in module.graph.nodes:
        copies[node] = copy = graph.node_copy(node, copies.__getitem__)
        copy.name = node.name  # which the signature has
        inner = getattr(node.target, "_op", None)
        if node.op == "call_function" and isinstance(inner, torch._ops.OpOverload):
            copy.target, is_edge = inner, True
    return fx.GraphModule(module, graph) if is_edge else None


class Exported:
    """A program that is called like the module that it was exported from, with tensors."""

    def __init__(
        self, compiled: Compiled, arguments: Arguments, state: Mapping[str, torch.Tensor],
        takes: pytree.TreeSpec, gives: pytree.TreeSpec, name: str, sizes: Mapping[str, int],
        graph: TorchGraph | None = None,
    ) -> None:  # fmt: skip
        self._compiled, self.arguments, self.state = compiled, arguments, dict(state)
        self._takes, self._gives, self.name, self._sizes = takes, gives, name, dict(sizes)
        self._graph = graph
        self.__name__ = name

    def __repr__(self) -> str:
        names = [name for name, place in zip(self.arguments.names, self.arguments.state, strict=True) if place is None]
        return f"Exported {self.name}({', '.join(names)})"

    @property
    def program(self) -> program.Program:
        """The program behind it, of Weft arrays: state and arguments are its inputs."""
        if self._compiled.program is None:
            raise ValueError(f"[{self.name}] computes nothing: its outputs are its inputs.")
        return self._compiled.program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._compiled(self._flat(args, kwargs))
        return pytree.tree_unflatten(made, self._gives)

    def _flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """All arguments of the graph."""
        flat, structure = pytree.tree_flatten((args, dict(kwargs)))
        if structure != self._takes:
            flat, structure = self._reordered(args, kwargs)
        given = iter(flat)
        found: list[Any] = []
        for name, place, fixed in zip(
            self.arguments.names, self.arguments.state, self.arguments.constants, strict=True
        ):
            if place is not None:
                found.append(self.state[place])
                continue
            value = next(given)
            if not isinstance(value, torch.Tensor) and value != fixed:
                raise ValueError(f"[{self.name}] argument {name!r} was exported as {fixed!r}; got {value!r}.")
            found.append(value)
        self._check(found)
        return found

    def _reordered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
        """Keywords in the order in which they were exported."""
        names = self._takes.children_specs[1].context or []
        if set(names) == set(kwargs):
            flat, structure = pytree.tree_flatten((args, {name: kwargs[name] for name in names}))
            if structure == self._takes:
                return flat, structure
        raise TypeError(
            f"[{self.name}] takes arguments as {self._takes}; got {pytree.tree_structure((args, dict(kwargs)))}."
        )

    def _check(self, found: Sequence[Any]) -> None:
        """Tensors are of the dtypes and sizes that were exported."""
        program_ = self._compiled.program
        if program_ is None:
            return
        sizes: dict[str, int] = {}
        for x, wanted in zip(self._compiled.signature.given, program_.inputs, strict=False):
            tensor = found[x.argument]
            shape = tuple(tensor.shape[axis] for axis in x.order) if tensor.dim() == len(x.order) else tensor.shape
            fits = len(shape) == len(wanted.shape) and all(
                n == size or (isinstance(size, str) and sizes.setdefault(size, n) == n)
                for n, size in zip(shape, wanted.shape, strict=True)
            )
            if not fits or str(tensor.dtype).removeprefix("torch.") != wanted.dtype.name.removesuffix("_"):
                raise ValueError(
                    f"[{self.name}] argument {self.arguments.names[x.argument]!r} was exported as {wanted}; got "
                    f"{tensor.dtype} of shape {tuple(tensor.shape)}."
                )

    # ---- looking inside ----

    def _zeros(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[array]:
        """Arrays of the kinds that the program's inputs have in a call: of the sizes that were exported, if no
        arguments are given."""
        signature = self._compiled.signature
        known = dict(self._sizes)
        if args or kwargs:
            found = self._flat(args, kwargs)
            for s in signature.symbols:
                known[s.name] = found[s.argument] if s.axis is None else found[s.argument].shape[s.axis]
        return [wrap(constant(0, kind)) for kind in kinds_of(signature, self.program, known)]

    def __explain__(self, *args: Any, **kwargs: Any) -> tuple[Any, list[array]]:
        """What `weft.explain` looks at: the program, and arrays to call it with."""
        return self.program, self._zeros(args, kwargs)

    def memory_report(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """What a call takes, and which values are computed in place."""
        return self.program.memory_report(*self._zeros(args, kwargs))

    # ---- files ----

    def save(self, file: str | PathLike[str] | IO[bytes]) -> None:
        """Write program, state, and the names and order of everything; `load` reads it."""
        if self._graph is not None:
            described = {"format": FORMAT, "name": self.name, "in_place": list(self._graph.in_place)}
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr("exported.json", json.dumps(described))
                archive.writestr("graph.pt2", self._graph.to_bytes(self.state))
            return
        described = {
            "format": FORMAT,
            "name": self.name,
            "signature": self._compiled.signature.to_json(),
            "names": list(self.arguments.names),
            "state": list(self.arguments.state),
            "outputs": list(self.arguments.outputs),
            "constants": list(self.arguments.constants),
            "takes": pytree.treespec_dumps(self._takes),
            "gives": pytree.treespec_dumps(self._gives),
            "sizes": self._sizes,
            "tensors": {name: [str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in self.state.items()},
        }
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("exported.json", json.dumps(described))
            if self._compiled.program is not None:
                inner = BytesIO()
                self._compiled.program.save(inner)
                archive.writestr("program.weft", inner.getvalue())
            for i, x in enumerate(self.state.values()):
                archive.writestr(f"state/{i}", _bytes_of(x))


def _bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def load(file: str | PathLike[str] | IO[bytes]) -> Exported:
    """The program that `save` wrote. It computes the same bits."""
    with zipfile.ZipFile(file) as archive:
        if "exported.json" not in archive.namelist():
            raise ValueError("[load] the file holds no exported program of torch; weft.program.load reads others.")
        found = json.loads(archive.read("exported.json"))
        if found["format"] != FORMAT:
            raise ValueError(f"[load] the file has format {found['format']}, and this version reads {FORMAT}.")
        if "graph.pt2" in archive.namelist():
            graph = TorchGraph.from_bytes(archive.read("graph.pt2"), found["in_place"])
            return _of_functional(graph.exported, found["name"], graph.in_place)
        inner = program.load(BytesIO(archive.read("program.weft"))) if "program.weft" in archive.namelist() else None
        state: dict[str, torch.Tensor] = {}
        for i, (name, (dtype, shape)) in enumerate(found["tensors"].items()):
            state[name] = _tensor_of(archive.read(f"state/{i}"), getattr(torch, dtype), shape)
    arguments = Arguments(
        tuple(found["names"]), tuple(found["state"]), tuple(found["outputs"]), tuple(found["constants"])
    )
    compiled = Compiled(Signature.from_json(found["signature"]), inner)
    takes, gives = (pytree.treespec_loads(found[key]) for key in ("takes", "gives"))
    return Exported(compiled, arguments, state, takes, gives, found["name"], found["sizes"])


def _tensor_of(content: bytes, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    if not math.prod(shape):
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).reshape(tuple(shape))
