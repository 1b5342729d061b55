"""Custom kernels: `mx.fast.kernel`, `mx.fast.metal_kernel`, `mx.fast.cuda_kernel` (docs/custom_kernels.md).

What a kernel is called with decides about its code; that is found by its content, so that two kernels of one name have
nothing to do with each other. Sizes are no part of it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.core._common import array, to_node, wrap
from weft.dtypes import Dtype
from weft.graph.dims import Dim, is_negative, is_symbolic, shape_text
from weft.graph.node import Node, Shape, Size
from weft.lazy import lazy
from weft.primitives.base import bind_many
from weft.primitives.custom_kernel import CustomKernel, program_text
from weft.transforms.custom import custom_function

if TYPE_CHECKING:
    from weft.kernels import c_source, python_source, syntax, typing
else:
    c_source, python_source = lazy("weft.kernels.c_source"), lazy("weft.kernels.python_source")
    syntax, typing = lazy("weft.kernels.syntax"), lazy("weft.kernels.typing")

Stream = Any
Sizes = Sequence[int] | Callable[..., Sequence[int]]


class Kernel:
    """A kernel that can be called. `vjp` and `jvp` give it derivatives: rules as those of `custom_function`, of its
    inputs and outputs."""

    __slots__ = (
        "_checked",
        "_functions",
        "_header",
        "_inputs",
        "_known",
        "_language",
        "_name",
        "_outputs",
        "_rules",
        "_seen",
        "_source",
        "_strided",
    )

    def __init__(
        self,
        language: str,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: Any,
        header: str = "",
        ensure_row_contiguous: bool = True,
        unchecked: bool = False,
    ) -> None:
        function = {"python": "kernel", "metal": "metal_kernel", "cuda": "cuda_kernel"}[language]
        for what, names in (("input_names", input_names), ("output_names", output_names)):
            if isinstance(names, str) or not all(isinstance(x, str) and x.isidentifier() for x in names):
                raise ValueError(f"[{function}] {what} are names, one for each array; got {names!r}.")
        every = [*input_names, *output_names]
        if len(set(every)) != len(every):
            raise ValueError(f"[{function}] inputs and outputs have different names; got {every}.")
        if not output_names:
            raise ValueError(f"[{function}] a kernel has at least one output; got no output_names.")
        if language != "python" and not isinstance(source, str):
            raise TypeError(f"[{function}] the source is a string; got {type(source).__name__}.")
        self._language, self._name, self._source, self._header = language, str(name), source, header
        self._inputs, self._outputs = tuple(input_names), tuple(output_names)
        self._strided, self._checked = not ensure_row_contiguous, not unchecked
        if language == "python" and not isinstance(source, str):
            python_source.text_of(self._name, source)
        self._seen: tuple[syntax.Source, Any] | None = None
        self._rules: dict[str, Callable[..., Any]] = {}
        self._functions: dict[Any, tuple[syntax.Source, str]] = {}
        self._known: dict[Any, tuple[syntax.Source, CustomKernel]] = {}
        """The programs and the operations of calls that came before. Keys have the identity of a source, which is held
        with what belongs to it."""

    @property
    def __wrapped_function__(self) -> tuple[Any, ...]:
        """What compile looks into for captured arrays."""
        return tuple(self._rules.values())

    @property
    def __name__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<kernel {self._name}({', '.join(self._inputs)}) -> ({', '.join(self._outputs)})>"

    def vjp(self, rule: Callable[..., Any]) -> Kernel:
        """Use rule(inputs, cotangents, outputs) in reverse mode."""
        return self._set("vjp", rule)

    def jvp(self, rule: Callable[..., Any]) -> Kernel:
        """Use rule(inputs, tangents) in forward mode."""
        return self._set("jvp", rule)

    def _set(self, kind: str, rule: Callable[..., Any]) -> Kernel:
        if not callable(rule):
            raise TypeError(f"[{self._name}] a rule is a function; got {type(rule).__name__}.")
        self._rules[kind] = rule
        return self

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        grid: Sizes,
        threadgroup: Sizes,
        output_shapes: Sequence[Sequence[int]] | Callable[..., Sequence[Sequence[int]]],
        output_dtypes: Sequence[Dtype],
        template: Sequence[tuple[str, Any]] | Mapping[str, Any] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Stream = None,
    ) -> list[array]:
        """Run the kernel: `grid` threads in threadgroups of `threadgroup`. Both, and `output_shapes`, may be functions
        of the shapes of the inputs."""
        if len(inputs) != len(self._inputs):
            raise ValueError(f"[{self._name}] takes {len(self._inputs)} inputs, {self._inputs}; got {len(inputs)}.")
        nodes = [to_node(x) for x in inputs]
        key = self._key(nodes, grid, threadgroup, output_shapes, output_dtypes, template, init_value)
        known = None if key is None or verbose else self._known.get(key)
        if known is not None:
            op = known[1]
        else:
            op = self._operation(nodes, grid, threadgroup, output_shapes, output_dtypes, template, init_value, verbose)
            if key is not None:
                if len(self._known) >= 256:
                    self._known.clear()
                self._known[key] = self._read(), op
        if not self._rules:
            return [wrap(node) for node in bind_many(op, *nodes)]

        @_called(self._name)
        def run(*xs: array) -> list[array]:
            return [wrap(node) for node in bind_many(op, *[x._node for x in xs])]

        function = custom_function(run)
        function._rules = dict(self._rules)
        found: list[array] = function(*[wrap(node) for node in nodes])
        return found

    # ---- what a call says ----

    def _key(self, nodes: Sequence[Node], *given: Any) -> Any:
        """What the operation of a call is known by, if it comes again; None if sizes are symbols or functions, or what
        is given is not as simple as it mostly is."""
        grid, threadgroup, shapes, dtypes, template, initial = given
        if type(grid) is not tuple or type(threadgroup) is not tuple or type(shapes) is not list:
            return None
        if type(dtypes) is not list or not all(type(shape) is tuple for shape in shapes):
            return None
        sizes = [*grid, *threadgroup, *[n for shape in shapes for n in shape], *[n for x in nodes for n in x.shape]]
        if not all(type(n) is int for n in sizes):
            return None
        if template is not None:
            if type(template) is not list or not all(type(x) is tuple and len(x) == 2 for x in template):
                return None
            template = tuple([(name, type(value), value) for name, value in template])
        kinds = tuple([x.kind for x in nodes])
        number = None if initial is None else (type(initial), repr(initial))
        key = (id(self._read()), kinds, grid, threadgroup, *shapes, tuple(dtypes), template, number)
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _operation(
        self,
        nodes: Sequence[Node],
        grid: Sizes,
        threadgroup: Sizes,
        output_shapes: Any,
        output_dtypes: Sequence[Dtype],
        template: Any,
        init_value: float | None,
        verbose: bool,
    ) -> CustomKernel:
        """The operation that a call asks for, all of it checked."""
        shapes = [node.shape for node in nodes]
        results = self._result_shapes(output_shapes, shapes)
        threads = self._three("grid", grid, shapes, 0)
        group = self._three("threadgroup", threadgroup, shapes, 1)
        if self._language == "cuda":  # blocks are always whole there
            threads = tuple([-(-n // t) * t for n, t in zip(threads, group, strict=True)])
        self._guard(shapes, [None if callable(grid) else threads, *([] if callable(output_shapes) else results)])
        dtypes = self._dtypes(output_dtypes)
        program = self._program(nodes, results, dtypes, self._template(template))
        if verbose:
            print(program)
        return CustomKernel(
            program,
            tuple(n for shape in results for n in shape),
            threads,
            group,
            (),
            None if init_value is None else _number(self._name, init_value),
        )

    def _three(self, what: str, given: Sizes, shapes: Sequence[Shape], least: int) -> tuple[Size, ...]:
        sizes = self._sizes(what, given(*shapes) if callable(given) else given)
        if len(sizes) != 3:
            raise ValueError(f"[{self._name}] {what} is a tuple of three sizes, x, y and z; got {shape_text(sizes)}.")
        if any(is_negative(n - least) for n in sizes):
            raise ValueError(f"[{self._name}] sizes of {what} are at least {least}; got {shape_text(sizes)}.")
        if what == "threadgroup" and all(type(n) is int for n in sizes) and sizes[0] * sizes[1] * sizes[2] > 1 << 16:
            raise ValueError(f"[{self._name}] a threadgroup has at most {1 << 16} threads; got {shape_text(sizes)}.")
        return sizes

    def _sizes(self, what: str, given: Any) -> tuple[Size, ...]:
        try:
            return tuple([n if type(n) is Dim else operator.index(n) for n in given])
        except TypeError:
            raise TypeError(f"[{self._name}] {what} is made of integers; got {given!r}.") from None

    def _result_shapes(self, given: Any, shapes: Sequence[Shape]) -> list[tuple[Size, ...]]:
        found = given(*shapes) if callable(given) else given
        if len(found) != len(self._outputs):
            raise ValueError(
                f"[{self._name}] has {len(self._outputs)} outputs, {self._outputs}; got {len(found)} output_shapes."
            )
        results = [self._sizes("an output shape", shape) for shape in found]
        for shape in results:
            if any(is_negative(n) for n in shape):
                raise ValueError(f"[{self._name}] output shapes have no negative sizes; got {shape_text(shape)}.")
        return results

    def _guard(self, shapes: Sequence[Shape], given: Sequence[tuple[Size, ...] | None]) -> None:
        """A grid or a shape without a symbol, beside inputs whose sizes are symbols, is for these sizes only: reading
        them makes another size trace anew."""
        symbols = [n for shape in shapes for n in shape if is_symbolic(n)]
        if symbols and any(sizes is not None and not any(map(is_symbolic, sizes)) for sizes in given):
            for n in symbols:
                operator.index(n)

    def _dtypes(self, given: Sequence[Dtype]) -> list[Dtype]:
        if len(given) != len(self._outputs) or not all(isinstance(x, Dtype) for x in given):
            raise ValueError(
                f"[{self._name}] output_dtypes are dtypes, one for each of {self._outputs}; got {given!r}."
            )
        for x in (*given,):
            if x.is_complex:
                raise ValueError(f"[{self._name}] kernels have no complex numbers; got {x.name}.")
        return list(given)

    def _template(self, given: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for item in () if given is None else given.items() if isinstance(given, Mapping) else given:
            try:
                name, value = item
            except (TypeError, ValueError):
                raise TypeError(f"[{self._name}] template has pairs of a name and a value; got {item!r}.") from None
            if not isinstance(value, Dtype | bool):
                try:
                    value = operator.index(value)
                except TypeError:
                    raise TypeError(
                        f"[{self._name}] template parameter {name!r} is a dtype, an integer or a bool; got {value!r}."
                    ) from None
            if name in (*self._inputs, *self._outputs):
                raise ValueError(f"[{self._name}] {name!r} is an array and a template parameter.")
            found[name] = value
        return found

    def _program(
        self, nodes: Sequence[Node], results: Sequence[Shape], dtypes: Sequence[Dtype], template: Mapping[str, Any]
    ) -> str:
        inputs = tuple([(name, x.dtype, x.ndim) for name, x in zip(self._inputs, nodes, strict=True)])
        outputs = tuple([(name, t, len(s)) for name, t, s in zip(self._outputs, dtypes, results, strict=True)])
        for name, dtype, _ in inputs:
            if dtype.is_complex:
                raise ValueError(f"[{self._name}] kernels have no complex numbers; {name} is {dtype.name}.")
        source = self._read()
        call = (inputs, outputs, tuple((k, type(v), v) for k, v in template.items()), id(source))
        known = self._functions.get(call)
        if known is not None:
            return known[1]
        operands = [[typing.Operand(*x) for x in part] for part in (inputs, outputs)]
        tree = typing.typed(source, operands[0], operands[1], template)
        try:
            made = program_text(tree, self._checked, self._strided)
        except RecursionError:
            raise syntax.KernelError(self._name, source.body.at, "it is nested too deeply.") from None
        if len(self._functions) >= 256:
            self._functions.clear()
        self._functions[call] = source, made
        return made

    def _read(self) -> syntax.Source:
        """The source, read again only where a function may see other numbers around it."""
        if self._language == "python":
            if self._seen is None or not python_source.is_unchanged(self._seen[1]):
                self._seen = _read_python(self._name, self._source, (*self._inputs, *self._outputs))
        elif self._seen is None:
            self._seen = _read_c(self._language, self._name, self._source, self._header), None
        return self._seen[0]


def _called(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function under the name of its kernel, for messages."""

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__name__ = name
        return function

    return named


def _number(name: str, value: Any) -> str:
    if isinstance(value, bool):
        value = int(value)
    if not isinstance(value, int | float):
        raise TypeError(f"[{name}] init_value is a number; got {value!r}.")
    return repr(value)


_READ: dict[str, Any] = {}


def _read_python(name: str, source: Any, parameters: tuple[str, ...]) -> tuple[syntax.Source, Any]:
    """The same source for the same text and the same numbers around it."""
    found, seen = python_source.read(name, source, parameters)
    if len(_READ) > 512:
        _READ.clear()
    return _READ.setdefault(f"{name}\n{parameters}\n{found.text}", found), seen


@functools.lru_cache(512)
def _read_c(language: str, name: str, source: str, header: str) -> syntax.Source:
    return c_source.read(language, name, source, header)


def kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: Callable[..., Any] | str,
    *,
    ensure_row_contiguous: bool = True,
    unchecked: bool = False,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
) -> Kernel:
    """A kernel written as a Python function (or the text of one) over scalars, loops and indexing, which is compiled.
    Its parameters are the inputs and outputs; each thread of the grid runs it.

    >>> def double(x, out):
    ...     i = thread_position_in_grid.x
    ...     out[i] = 2 * x[i]
    >>> f = kernel("double", ["x"], ["out"], double)
    """
    made = Kernel("python", name, input_names, output_names, source, "", ensure_row_contiguous, unchecked)
    return _with_rules(made, vjp, jvp)


def _check_options(options: Mapping[str, Any] | None) -> None:
    """What Metal's compiler may be told: how exact to be."""
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise ValueError(f"[metal_kernel] compile_options are a dict; got {options!r}.")
    for name, value in options.items():
        if name != "math_mode":
            raise ValueError(f"[metal_kernel] the only compile option is 'math_mode'; got {name!r}.")
        if value not in ("safe", "relaxed", "fast"):
            raise ValueError(f"[metal_kernel] math_mode is 'safe', 'relaxed' or 'fast'; got {value!r}.")


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: Mapping[str, Any] | None = None,
    *,
    unchecked: bool = False,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
) -> Kernel:
    """A kernel from the body of a Metal function, as MLX takes it: the subset of Metal's C++ that
    docs/custom_kernels.md lists. The `compile_options` are those of MLX; arithmetic is "safe" with all of them."""
    _check_options(compile_options)
    made = Kernel("metal", name, input_names, output_names, source, header, ensure_row_contiguous, unchecked)
    return _with_rules(made, vjp, jvp)


def cuda_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    shared_memory: int = 0,
    *,
    unchecked: bool = False,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
) -> Kernel:
    """The same from the body of a CUDA function. Blocks are whole: threads behind the end of the grid run too."""
    if shared_memory:
        raise ValueError("[cuda_kernel] shared memory has a size in the source: `__shared__ float x[256];`.")
    made = Kernel("cuda", name, input_names, output_names, source, header, ensure_row_contiguous, unchecked)
    return _with_rules(made, vjp, jvp)


def _with_rules(made: Kernel, vjp: Callable[..., Any] | None, jvp: Callable[..., Any] | None) -> Kernel:
    if vjp is not None:
        made.vjp(vjp)
    if jvp is not None:
        made.jvp(jvp)
    return made


def precompiled_cuda_kernel(
    *,
    name: str,
    compiled_source: bytes,
    inputs: Sequence[Any],
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[Dtype],
    scalars: Sequence[object],
    grid: Sequence[int],
    threadgroup: Sequence[int],
    shared_memory: int = 0,
    init_value: float | None = None,
    ensure_row_contiguous: bool = False,
    stream: Stream = None,
) -> list[array]:
    """What MLX runs PTX and cubins with. That is code for one make of GPU, and there is nothing that could run it
    elsewhere: a RuntimeError says so, as in MLX without CUDA. `cuda_kernel` takes the source."""
    raise RuntimeError(
        f"[precompiled_cuda_kernel] {name!r} is machine code for GPUs, which Weft does not run; mx.fast.cuda_kernel"
        " takes the source of a kernel, and runs it on any device."
    )
