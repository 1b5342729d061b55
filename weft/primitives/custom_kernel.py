"""Kernels that users write (`mx.fast.kernel`, `metal_kernel`, `cuda_kernel`) as an operation like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.errors import KernelIndexError
from weft.graph.node import Bundle, Kind, Node, Shape, Size, bundle_of, kind_of
from weft.interning import Interned
from weft.lazy import lazy
from weft.primitives.base import MultiOutput, Opaque, Sample, bind_many, move_batch_to_front
from weft.primitives.checks import need

if TYPE_CHECKING:
    from weft.kernels import interpreter, python_source, tree, typing
    from weft.primitives import kernel_functions
else:
    interpreter, python_source = lazy("weft.kernels.interpreter"), lazy("weft.kernels.python_source")
    tree, typing = lazy("weft.kernels.tree"), lazy("weft.kernels.typing")
    kernel_functions = lazy("weft.primitives.kernel_functions")


class KernelProgram:
    """A kernel for operands of known dtypes: its typed tree, found out when it is needed. There is one for each `key`,
    which says all that the tree depends on."""

    __slots__ = ("__weakref__", "_make", "_tree", "checked", "inputs", "key", "name", "outputs", "strided")

    def __init__(
        self,
        name: str,
        key: str,
        inputs: Sequence[tuple[str, Dtype, int]],
        outputs: Sequence[tuple[str, Dtype, int]],
        make: Any,
        checked: bool,
        strided: bool,
    ) -> None:
        self.name, self.key, self.checked, self.strided = name, key, checked, strided
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._make = make
        self._tree: tree.Program | None = None

    @property
    def tree(self) -> tree.Program:
        if self._tree is None:
            inputs, outputs = ([typing.Operand(*x) for x in part] for part in (self.inputs, self.outputs))
            source, template = self._make()
            self._tree = typing.typed(source, inputs, outputs, template)
        return self._tree

    @property
    def knows_groups(self) -> bool:
        """Whether it matters to its threads which threadgroup they are in."""
        return any(
            isinstance(x, tree.Together | tree.Barrier) or (isinstance(x, tree.Position) and x.name not in tree.OF_GRID)
            for x in tree.walk(*self.tree.body)
        ) or any(x.space == "threadgroup" for x in self.tree.storages)

    def __repr__(self) -> str:
        return self.name


PROGRAMS: Interned[str, KernelProgram] = Interned(512)


def program_of(
    name: str,
    key: str,
    inputs: Sequence[tuple[str, Dtype, int]],
    outputs: Sequence[tuple[str, Dtype, int]],
    make: Any,
    checked: bool = True,
    strided: bool = False,
) -> KernelProgram:
    """The kernel of this key. `make` gives its source and its template parameters."""
    return PROGRAMS.get(key, lambda: KernelProgram(name, key, inputs, outputs, make, checked, strided))


def _sample(name: str, text: str, count: int, make: Any, **params: Any) -> Sample:
    """A kernel of int32 operands x0, x1, … with one output."""
    inputs = tuple((f"x{k}", dt.int32, params.pop("ndim", 1)) for k in range(count))
    sizes = params["sizes"]
    outputs = (("out", dt.int32, len(sizes)),)
    names = [*(x for x, _, _ in inputs), "out"]
    program = program_of(
        name, f"sample {name}\n{text}", inputs, outputs, lambda: (python_source.read(name, text, names), {})
    )
    fields = {"program": program, "results": (dt.int32,), "ranks": (len(sizes),), **params}
    return Sample(make, fields, name=name)


def _integers(*shapes: tuple[int, ...]) -> Any:
    return lambda rng, dtype: [rng.integers(-50, 50, shape).astype(dtype.np) for shape in shapes]


_ADD = """
def add(x0, x1, out):
    i = thread_position_in_grid.x
    if i < x0.size:
        out[i] = x0[i] * 3 + x1[i]
"""
_TOTALS = """
def totals(x0, out):
    shared = threadgroup_memory(int32, 16)
    lane = thread_position_in_threadgroup.x
    shared[lane] = x0[thread_position_in_grid.x]
    threadgroup_barrier()
    step = 8
    while step > 0:
        if lane < step:
            shared[lane] += shared[lane + step]
        threadgroup_barrier()
        step //= 2
    if lane == 0:
        out[threadgroup_position_in_grid.x] = shared[0]
"""


class CustomKernel(MultiOutput, Opaque):
    """The results of a kernel of the user's: `grid` threads in groups of `threadgroup`, for each element of a batch
    (`lead` are its sizes: the first axes of all operands and results). `sizes` are those of the results, one after the
    other, of which each has its `ranks`; `initial` is what their elements are before, if that is anything."""

    program: KernelProgram
    results: tuple[Dtype, ...]
    ranks: tuple[int, ...]
    sizes: Shape
    grid: Shape
    threadgroup: Shape
    lead: Shape = ()
    initial_text: str | None = None
    dtypes = (dt.int32,)
    samples = (
        _sample("add", _ADD, 2, _integers((37,), (37,)), sizes=(37,), grid=(40, 1, 1), threadgroup=(16, 1, 1)),
        _sample("totals", _TOTALS, 1, _integers((48,)), sizes=(3,), grid=(48, 1, 1), threadgroup=(16, 1, 1)),
        _sample("nothing", _ADD, 2, _integers((0,), (0,)), sizes=(0,), grid=(0, 1, 1), threadgroup=(16, 1, 1)),
    )

    @property
    def is_total(self) -> bool:
        return False  # an index may be out of range, a loop endless

    @property
    def initial(self) -> int | float | None:
        text = self.initial_text
        return None if text is None else int(text) if text.lstrip("-").isdigit() else float(text)

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the results, for one element of the batch."""
        found, at = [], 0
        for rank in self.ranks:
            found.append(self.sizes[at : at + rank])
            at += rank
        return found

    def infer(self, *kinds: Kind) -> Bundle:
        pairs = zip(self.shapes, self.results, strict=True)
        return bundle_of([kind_of((*self.lead, *shape), dtype) for shape, dtype in pairs])

    def check(self, *kinds: Kind) -> None:
        need(len(kinds) == len(self.program.inputs), f"{len(kinds)} operands")
        need(len(self.results) == len(self.ranks) == len(self.program.outputs), f"{len(self.results)} results")
        for kind, (name, dtype, ndim) in zip(kinds, self.program.inputs, strict=True):
            need(kind.dtype is dtype and kind.ndim == ndim + len(self.lead), f"operand {name} of {kind}")
            need(all(m == n for m, n in zip(kind.shape, self.lead, strict=False)), f"operand {name} of {kind}")

    def failure(self, detail: Sequence[int], kinds: Sequence[Kind], steps: Sequence[int] = ()) -> Exception:
        _, site, index, size = detail[:4]
        found = tree.sites(self.program.tree)[site]
        return self._out_of_range(found.storage, index, size, found.at, isinstance(found, tree.Size))

    def _out_of_range(self, storage: Any, index: int, size: int, at: Any, axis: bool = False) -> KernelIndexError:
        what = f"axis {index} of `{storage.name}`, which has {size}"
        if not axis:
            within = index if index >= -(1 << 62) else "outside of an axis"
            what = f"index {within} is out of range for `{storage.name}`, which has {size} elements"
        error = KernelIndexError(f"[{self.program.name}] at {at}: {what}.")
        error.operation = self
        return error

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        outs = [
            np.zeros((*map(int, self.lead), *map(int, shape)), dtype.np)
            for shape, dtype in zip(self.shapes, self.results, strict=True)
        ]
        initial = self.initial
        for out in outs:
            out[...] = 0 if initial is None else initial
        lead = tuple(map(int, self.lead))
        if 0 not in (*lead, *self.grid):
            for place in np.ndindex(*lead):
                self._run([x[place] for x in values], [out[place] for out in outs])
        return tuple(outs)

    def _run(self, values: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        arrays = []
        for x in values:
            whole = np.ascontiguousarray(x)
            arrays.append(interpreter.Array(whole.reshape(-1), x.shape, tuple(s // x.itemsize for s in whole.strides)))
        arrays += [interpreter.Array(out.reshape(-1), out.shape, ()) for out in outs]
        grid = interpreter.Grid(tuple(map(int, self.grid)), tuple(map(int, self.threadgroup)))
        try:
            interpreter.run(self.program.tree, arrays, grid, kernel_functions.apply, kernel_functions.convert)
        except interpreter.OutOfRange as found:
            raise self._out_of_range(found.storage, found.index, found.size, found.at) from None

    # ---- rules ----

    def _without(self, rule: str, signature: str) -> ValueError:
        name = self.program.name
        return ValueError(
            f"[{name}] a custom kernel has the derivatives that it is given, and this has no {rule} rule. Add it:\n\n"
            f"    @kernel.{rule}\n    def rule({signature}):\n        return ...\n"
        )

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: Mapping[int, Node]
    ) -> Sequence[Node | None]:
        raise self._without("jvp", "inputs, tangents")

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> Mapping[int, Node]:
        raise self._without("vjp", "inputs, cotangents, outputs")

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        front = [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]
        op = CustomKernel(
            self.program, self.results, self.ranks, self.sizes, self.grid, self.threadgroup, (size, *self.lead),
            self.initial_text,
        )  # fmt: skip
        return [(node, 0) for node in bind_many(op, *front)]
