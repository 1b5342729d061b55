"""Kernels that users write (`mx.fast.kernel`, `metal_kernel`, `cuda_kernel`) as an operation like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.errors import KernelIndexError
from weft.graph.dims import shape_text
from weft.graph.node import ArrayType, Node, Shape, Size, TupleType, bundle_of, kind_of
from weft.interning import Interned
from weft.lazy import lazy
from weft.primitives.base import KernelOperation, MultiOutput, Sample, bind_many, move_batch_to_front
from weft.primitives.checks import need

if TYPE_CHECKING:
    from weft.kernels import encoding, interpreter, python_source, tree, typing
    from weft.primitives import kernel_functions
else:
    encoding, interpreter = lazy("weft.kernels.encoding"), lazy("weft.kernels.interpreter")
    python_source = lazy("weft.kernels.python_source")
    tree, typing = lazy("weft.kernels.tree"), lazy("weft.kernels.typing")
    kernel_functions = lazy("weft.primitives.kernel_functions")


class KernelProgram:
    """A kernel for operands of known dtypes, which its text describes: its typed tree, and how it is run."""

    __slots__ = ("__weakref__", "_groups", "checked", "is_total", "strided", "text", "tree")

    def __init__(self, text: str, program: tree.Program, checked: bool, strided: bool) -> None:
        self.text, self.tree, self.checked, self.strided = text, program, checked, strided
        self._groups: bool | None = None
        self.is_total = not checked and not any(isinstance(x, tree.Loop) for x in tree.walk(*program.body))
        """Whether it always comes to an end, and to a result."""

    @property
    def name(self) -> str:
        return self.tree.name

    @property
    def inputs(self) -> list[tree.Storage]:
        return [x for x in self.tree.operands if x.space == "input"]

    @property
    def outputs(self) -> list[tree.Storage]:
        return [x for x in self.tree.operands if x.space == "output"]

    @property
    def knows_groups(self) -> bool:
        """Whether it matters to its threads which threadgroup they are in."""
        if self._groups is None:
            shared = any(x.space == "threadgroup" for x in self.tree.storages)
            self._groups = shared or any(
                isinstance(x, tree.Together | tree.Barrier)
                or (isinstance(x, tree.Position) and x.name not in tree.OF_GRID)
                for x in tree.walk(*self.tree.body)
            )
        return self._groups


_PROGRAMS: Interned[str, KernelProgram] = Interned(512)


def program_text(program: tree.Program, checked: bool, strided: bool) -> str:
    """What an operation is known by that runs a kernel: its text, and `c` if indices are checked, `s` if operands may
    lie in any strides."""
    made = f"{'c' if checked else ''}{'s' if strided else ''}:{encoding.encoded(program)}"
    _PROGRAMS.get(made, lambda: KernelProgram(made, program, checked, strided))
    return made


def program_of(text: str) -> KernelProgram:
    """The kernel of such a text."""
    return _PROGRAMS.get(text, lambda: _decoded(text))


def _decoded(text: str) -> KernelProgram:
    flags, _, rest = text.partition(":")
    if flags == "sample":
        source, count = SOURCES[rest]
        names = [*(f"x{k}" for k in range(count)), "out"]
        operands = [typing.Operand(name, dt.int32, 1) for name in names]
        program = typing.typed(python_source.read(rest, source, names)[0], operands[:-1], operands[-1:], {})
        return KernelProgram(text, program, True, False)
    return KernelProgram(text, encoding.decoded(rest), "c" in flags, "s" in flags)


def _sample(name: str, kernel: str, make: Any, **params: Any) -> Sample:
    """A kernel of int32 operands x0, x1, … with one output."""
    return Sample(make, {"program": f"sample:{kernel}", **params}, name=name)


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


SOURCES = {"add": (_ADD, 2), "totals": (_TOTALS, 1)}
"""Kernels of the samples, and how many inputs each has."""


class CustomKernel(MultiOutput, KernelOperation):
    """The results of a kernel of the user's, `program`: `grid` threads in groups of `threadgroup`, for each element of
    a batch (`lead` are its sizes: the first axes of all operands and results). `sizes` are those of the results, one
    after the other; `initial_text` is what their elements are before, if that is anything."""

    program: str
    sizes: Shape
    grid: Shape
    threadgroup: Shape
    lead: Shape = ()
    initial_text: str | None = None
    dtypes = (dt.int32,)
    samples = (
        _sample("add", "add", _integers((37,), (37,)), sizes=(37,), grid=(40, 1, 1), threadgroup=(16, 1, 1)),
        _sample("totals", "totals", _integers((48,)), sizes=(3,), grid=(48, 1, 1), threadgroup=(16, 1, 1)),
        _sample("nothing", "add", _integers((0,), (0,)), sizes=(0,), grid=(0, 1, 1), threadgroup=(16, 1, 1)),
    )

    @property
    def kernel(self) -> KernelProgram:
        return program_of(self.program)

    def __str__(self) -> str:
        sizes = (
            f"grid={shape_text(self.grid)}, threadgroup={shape_text(self.threadgroup)}, lead={shape_text(self.lead)}"
        )
        return f"{self.title}({self.kernel.name}, {sizes})"

    @property
    def is_total(self) -> bool:
        return self.kernel.is_total  # an index may be out of range, a loop endless

    @property
    def initial(self) -> int | float | None:
        text = self.initial_text
        return None if text is None else int(text) if text.lstrip("-").isdigit() else float(text)

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the results, for one element of the batch."""
        found, at = [], 0
        for x in self.kernel.outputs:
            found.append(self.sizes[at : at + x.ndim])
            at += x.ndim
        return found

    @property
    def results(self) -> list[Dtype]:
        """The dtypes of the results."""
        return [x.dtype for x in self.kernel.outputs]

    def infer(self, *kinds: ArrayType) -> TupleType:
        pairs = zip(self.shapes, self.results, strict=True)
        return bundle_of([kind_of((*self.lead, *shape), dtype) for shape, dtype in pairs])

    def check(self, *kinds: ArrayType) -> None:
        kernel = self.kernel
        need(kernel.checked, "a kernel whose indices are not checked, from a file")
        need(len(kinds) == len(kernel.inputs), f"{len(kinds)} operands")
        need(sum(x.ndim for x in kernel.outputs) == len(self.sizes), f"{len(self.sizes)} sizes of results")
        need(len(self.grid) == len(self.threadgroup) == 3, "a grid that has not three sizes")
        for kind, x in zip(kinds, kernel.inputs, strict=True):
            need(kind.dtype is x.dtype and kind.ndim == x.ndim + len(self.lead), f"operand {x.name} of {kind}")
            need(all(m == n for m, n in zip(kind.shape, self.lead, strict=False)), f"operand {x.name} of {kind}")

    def failure(self, detail: Sequence[int], kinds: Sequence[ArrayType], steps: Sequence[int] = ()) -> Exception:
        _, site, index, size = detail[:4]
        found = tree.sites(self.kernel.tree)[site]
        return self._out_of_range(found.storage, index, size, found.at, isinstance(found, tree.Size))

    def _out_of_range(self, storage: Any, index: int, size: int, at: Any, axis: bool = False) -> KernelIndexError:
        what = f"axis {index} of `{storage.name}`, which has {size}"
        if not axis:
            within = index if index >= -(1 << 62) else "outside of an axis, or between two elements,"
            what = f"index {within} is out of range for `{storage.name}`, which has {size} elements"
        error = KernelIndexError(f"[{self.kernel.name}] at {at}: {what}.")
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
            interpreter.run(self.kernel.tree, arrays, grid, kernel_functions.apply, kernel_functions.convert)
        except interpreter.OutOfRange as found:
            raise self._out_of_range(found.storage, found.index, found.size, found.at) from None

    # ---- rules ----

    def _without(self, rule: str, signature: str) -> ValueError:
        name = self.kernel.name
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
            self.program, self.sizes, self.grid, self.threadgroup, (size, *self.lead),
            self.initial_text,
        )  # fmt: skip
        return [(node, 0) for node in bind_many(op, *front)]
