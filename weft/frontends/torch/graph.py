"""From a graph of torch (functional ATen operators, as AOTAutograd and torch.export give it) to a function of Weft
arrays, which `weft.program` traces.

What torch worked out about every value (`meta["val"]`: dtype, shape, strides) is taken as it stands. Sizes that are
symbols in torch are symbols in Weft: of the same name where an input has them as a size.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

import weft.core as mx
from weft.array import wrap
from weft.core._common import to_node
from weft.frontends.torch.aliasing import LIES, Outputs, is_update
from weft.frontends.torch.channels import Lying, settled
from weft.frontends.torch.data_sizes import (
    CHECKS,
    ITEM,
    CheckFailed,
    bound,
    brings_sizes,
    confirm,
    has_unbacked,
    is_unbacked,
    symbols,
)
from weft.frontends.torch.layouts import dense_strides, inverse, is_identity, memory_order, number
from weft.frontends.torch.ops import DTYPES, RULES, Out
from weft.frontends.torch.ops.linalg import BY_ROWS, CHECKED
from weft.frontends.torch.ops.random import RANDOM, draws
from weft.frontends.torch.restricting import InPlace, apart, permission
from weft.frontends.torch.signature import Computed, Given, Made, Own, Seen, Signature, Symbol, Value
from weft.frontends.torch.sizes import SYMBOLS, evaluated_expression, expression
from weft.frontends.torch.strided import SCATTER, STRIDED, Look, look_of
from weft.primitives.views import transpose
from weft.program import Input
from weft.records import replace

KEY = "random_key"
FEW = 12
"""A size to trace with, where torch has none."""
ASSERTIONS = frozenset({
    "aten._assert_tensor_metadata.default", "aten._assert_async.msg", "aten._assert_async.default",
})  # fmt: skip
"""Nodes that only make sure of something that torch found when it traced."""


CHECK = "aten._linalg_check_errors.default"
FAILS = "weft_fails"
"""Where the meta of a node has what a check of it says of failures, once the check is taken away."""

KEPT_WHOLE = frozenset({
    # Taken apart, attention has strides that graphs do not expect, and Weft has a kernel for it.
    "aten.scaled_dot_product_attention",
})  # fmt: skip
"""Operators that are made of others, which torch would take apart, and that have rules as they are."""


def without_kept(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Decompositions of what has no rule. To trace an operator that torch takes apart costs torch several times as much
    as one that it keeps, and so do the graphs; some take indices for right that are none, once they are taken apart."""
    return {op: rule for op, rule in table.items() if not is_kept(op)}


def is_kept(op: Any) -> bool:
    """Whether an operator that torch could take apart stays whole."""
    name = str(op)
    if name.rpartition(".")[0] in KEPT_WHOLE:
        return True
    if name not in RULES or name in RANDOM:
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


class Unsupported(NotImplementedError):
    """An operator, or a use of one, that Weft has no rule for. `node` is the one at which that was found."""

    node: fx.Node | None = None


class Refused(Unsupported, ValueError):
    """That in a graph whose sizes depend on data: it may be that other data would do."""


# ---- what there are rules for ----


def without_checks(graph: fx.Graph) -> bool:
    """Take checks of failures away where a program raises itself, and say whether there were any. AOTAutograd hands a
    token through them, so that they stay in order."""
    found = [(node, info) for node in graph.nodes if (info := _checked_by(node)) is not None and _is_failure(info)]
    for node, info in found:
        info.args[0].meta[FAILS] = node.args[node.args.index(info) + 1 :], dict(node.kwargs)
        for part in list(node.users):
            if part.args[1] == 0:
                part.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            graph.erase_node(part)
        graph.erase_node(node)
    return bool(found)


def with_checks(module: fx.GraphModule) -> fx.GraphModule:
    """A graph for torch, which does not say itself that an operator failed: with the checks that were taken away."""
    if not any(FAILS in node.meta for node in module.graph.nodes):
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(module.graph, copies))
    for node, copy in copies.items():
        if FAILS in node.meta:
            args, kwargs = node.meta[FAILS]
            with graph.inserting_after(copy):
                info = graph.call_function(operator.getitem, (copy, CHECKED[str(node.target)]))
            with graph.inserting_after(info):
                graph.call_function(torch.ops.aten._linalg_check_errors.default, (info, *args), kwargs)
    return fx.GraphModule(module, graph)


def _checked_by(node: fx.Node) -> Any:
    """What a node checks, if it is such a check."""
    if str(node.target) == CHECK:
        return node.args[0]
    return node.args[2] if str(node.target) == "with_effects" and str(node.args[1]) == CHECK else None


def _is_failure(info: fx.Node) -> bool:
    """Whether a value says that an operator failed whose rule raises then."""
    source = info.args[0] if info.target is operator.getitem else None
    return isinstance(source, fx.Node) and CHECKED.get(str(source.target)) == info.args[1]


def why_not(node: fx.Node) -> str | None:
    """Why a node of a graph cannot be a part of a program; None if it can."""
    if node.op in ("placeholder", "output", "get_attr"):
        return _why_not_value(node.meta.get("val"))
    if is_update(node) or (str(node.target) in ASSERTIONS | CHECKS and not node.users):
        return None
    if node.op != "call_function":
        return f"a {node.op} of {node.target} is no operator"
    if node.target is not operator.getitem and str(node.target) not in RULES and not is_size(node):
        return f"{node.target} has no rule"
    if "val" not in node.meta and node.target is not operator.getitem:  # of several results, one may be None
        return f"{node.target} has no known result"
    for given in [node, *node.all_input_nodes]:
        reason = _why_not_value(given.meta.get("val"))
        if reason is not None:
            return f"{node.target}: {reason}"
    return _why_not_arguments(node)


def _why_not_value(value: Any) -> str | None:
    if isinstance(value, (tuple, list)):
        return next((reason for part in value if (reason := _why_not_value(part)) is not None), None)
    if isinstance(value, SYMBOLS):
        return None
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout is not torch.strided or value.device.type != "cpu":
        return f"a {value.layout} tensor on {value.device}"
    if value.dtype not in DTYPES:
        return f"a tensor of dtype {value.dtype}"
    return None


def _why_not_arguments(node: fx.Node) -> str | None:
    if str(node.target) in STRIDED:
        found = look_of(node)
        return found if isinstance(found, str) else None
    name = str(node.target)
    if name in CHECKED and _is_read(node, CHECKED[name]):
        return f"{name} whose failures are read"
    if name in BY_ROWS and _is_read(node, BY_ROWS[name]):
        given: Any = node.all_input_nodes[0].meta["val"]
        if not (given.is_contiguous() or given.is_complex()):
            return f"{name} of matrices that do not lie row by row"
    return None


def _is_read(node: fx.Node, number: int) -> bool:
    """Whether a graph reads one of several results."""
    return any(x.target is not operator.getitem or (x.args[1] == number and bool(x.users)) for x in node.users)


def is_size(node: fx.Node) -> bool:
    """Whether a node computes a size, or something of sizes."""
    return isinstance(node.meta.get("val"), (*SYMBOLS, int, float, bool))


def place_of(node: fx.Node) -> str:
    """The user's line that a node comes from, as torch recorded it."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.strip().splitlines()]
    files = [i for i, line in enumerate(lines) if line.startswith("File ")]
    if not files:
        return ""
    last = lines[files[-1] :]
    return f" at {last[0].removeprefix('File ')}" + (f": {last[1]}" if len(last) > 1 else "")


# ---- sizes ----


def size_value(size: Any, known: Mapping[Any, Any]) -> Any:
    """What a size of torch's is, given values for symbols."""
    if not isinstance(size, SYMBOLS):
        return size
    found = size.node.expr
    if found in known:
        return known[found]
    missing = found.free_symbols - known.keys()
    if missing:
        raise Unsupported(f"a size {found} that depends on data, of which nothing says what it is")
    return evaluated_expression(found, known)


# ---- graphs ----


class Translation:
    """A graph as a function of arrays (`build`), what that takes (`inputs`), and what a call takes and gives
    (`signature`)."""

    def __init__(
        self,
        module: fx.GraphModule,
        wanted: Sequence[Any],
        changes: Sequence[tuple[fx.Node, fx.Node]] = (),
        in_place: InPlace = True,
        kept: int | None = None,
        share: bool = True,
    ) -> None:
        """The graph gives `wanted`; `changes` are pairs of an argument and its new value. `in_place` says which
        operators may run in place. Outputs from number `kept` on are for a way back alone, and may lie in any order.
        `share` is that of `Outputs`."""
        self.module, self.may_run_in_place = module, permission(in_place)
        self.nodes = [node for node in module.graph.nodes if node.op in ("call_function", "get_attr")]
        self.placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        outputs = Outputs(module, wanted, changes, expression, share)
        self.results = tuple(outputs.results)
        computed = self._computed(outputs, wanted)
        self.results = tuple(outputs.results)
        self._checks = {
            node
            for node in self.nodes
            if str(node.target) in CHECKS and any(is_unbacked(x.meta.get("val")) for x in node.all_input_nodes)
        }
        self._needed = _needed([*self.results, *self._checks])
        self.depends_on_data = any(map(brings_sizes, self._needed))
        self.draws = any(draws(str(node.target), node.args, node.kwargs) for node in self.nodes)
        self.inputs: list[Input] = []
        self.hints: dict[str, int] = {}
        self._symbols: dict[Any, Symbol] = {}
        self._given: list[Given] = []
        self._find_inputs()
        carriers = tuple(s.name for s in self._symbols.values() if s.axis is None)
        self.inputs += [Input(f"size_{name}", (name,), mx.bool_) for name in carriers]
        if self.draws:
            self.inputs.append(Input(KEY, (2,), mx.uint32))
        self.signature = Signature(
            tuple(self._symbols.values()), tuple(self._given), carriers, self.draws,
            tuple(map(_made, self.results)), outputs.outputs, tuple(outputs.updates), self.depends_on_data, computed,
        )  # fmt: skip
        self._free = self._kept_alone(kept) if kept is not None else frozenset()
        self._constants: dict[str, mx.array] = {}

    def _kept_alone(self, first: int) -> frozenset[int]:
        """The results that are outputs from number `first` on, and nothing else; none where sizes are not known."""
        if self._symbols or self.depends_on_data:
            return frozenset()
        outputs = self.signature.outputs
        seen = {x.number for x in outputs if isinstance(x, Seen) and x.own}
        others = {x.number for x in outputs[:first] if isinstance(x, Own)} | {x.result for x in self.signature.updates}
        return frozenset(x.number for x in outputs[first:] if isinstance(x, Own)) - seen - others

    def _computed(self, outputs: Outputs, wanted: Sequence[Any]) -> tuple[Computed, ...]:
        """Where the symbols come from that depend on data and that outputs which are no results need."""
        missing: set[Any] = set()
        for x, output in zip(wanted, outputs.outputs, strict=True):
            if isinstance(x, fx.Node) and isinstance(output, (Value, Seen)):
                value = x.meta["val"]
                sizes = [value]
                if isinstance(output, Seen):
                    sizes = [*value.shape, *value.stride(), value.storage_offset()]
                missing |= {s for n in sizes if is_unbacked(n) for s in n.node.expr.free_symbols}
        found: dict[Any, Computed] = {}
        for node in self.nodes:
            for symbol, (result, axis) in symbols(node).items():
                if symbol in missing and symbol not in found:
                    at = node if result is None else _part_of(node, result)
                    found[symbol] = Computed(str(symbol), outputs.own(at), axis)
        return tuple(found.values())

    @property
    def updates(self) -> dict[str, int]:
        """By name of the input: the result that is its new value, where that is of the same kind and order. None where
        sizes depend on data: such programs overwrite nothing."""
        if self.depends_on_data:
            return {}
        names = {x.argument: (given.name, x) for x, given in zip(self._given, self.inputs, strict=False)}
        found: dict[str, int] = {}
        for x in self.signature.updates:
            made = self.signature.made[x.result]
            if x.argument in names:
                name, given = names[x.argument]
                if (given.shape, given.order) == (made.shape, made.order):
                    found[name] = x.result
        return found

    def _find_inputs(self) -> None:
        tensors = [
            (i, node, node.meta["val"])
            for i, node in enumerate(self.placeholders)
            if isinstance(node.meta["val"], torch.Tensor)
        ]
        for i, node, value in tensors:
            if node in self._needed:
                self._find_symbols(i, value)
        for i, node in enumerate(self.placeholders):
            value = node.meta["val"]
            if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
                self._add_symbol(value, i, None)
        for i, _, value in tensors:
            self._find_symbols(i, value)
        read = {s.argument for s in self._symbols.values() if s.axis is not None}
        names: dict[str, int] = {}
        for i, node, value in tensors:
            if node in self._needed or i in read:
                self._add_tensor(i, node, value, names)

    def _find_symbols(self, argument: int, value: torch.Tensor) -> None:
        for axis, n in enumerate(value.shape):
            if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol:
                self._add_symbol(n, argument, axis)

    def _add_symbol(self, size: Any, argument: int, axis: int | None) -> None:
        symbol = size.node.expr
        if symbol not in self._symbols:
            self._symbols[symbol] = Symbol(str(symbol), argument, axis)
            self.hints[str(symbol)] = FEW if is_unbacked(size) else number(size)

    def _add_tensor(self, argument: int, node: fx.Node, value: torch.Tensor, names: dict[str, int]) -> None:
        order = memory_order(node.meta.get(LIES, value))
        order = tuple(range(value.dim())) if order is None else order
        name = _identifier(node.name, names)
        shape: list[int | str] = []
        for axis in order:
            n: Any = value.shape[axis]
            known = expression(n)
            if isinstance(known, str) and not n.node.expr.is_Symbol:
                known = f"{name}_{axis}"
                self.hints[known] = number(n)
            shape.append(known)
        self._given.append(Given(argument, tuple(map(expression, value.shape)), order))
        self.inputs.append(Input(name, tuple(shape), DTYPES[value.dtype]))

    # ---- building ----

    def build(self, *arrays: mx.array) -> list[mx.array]:
        """The results, from arrays in the order of `inputs`: those whose axes lie in another order in memory come, and
        go, with their axes in that order."""
        given = iter(arrays)
        tensors = {
            x.argument: array if is_identity(x.order) else mx.transpose(array, inverse(x.order))
            for x, array in zip(self._given, given, strict=False)
        }
        known: dict[Any, Any] = {}
        for symbol, source in self._symbols.items():
            known[symbol] = (
                arrays[len(self._given) + self.signature.carriers.index(source.name)].shape[0]
                if source.axis is None
                else tensors[source.argument].shape[source.axis]
            )
        values: dict[fx.Node, Any] = {self.placeholders[i]: x for i, x in tensors.items()}
        run = _Run(self, values, known, arrays[-1] if self.draws else None)
        made = [run.values[node] if node in run.values else run.value(node) for node in self.results]
        lying = settled([to_node(x) for x in made])
        self._keep_as_it_lies(lying)
        return [
            mx.contiguous(wrap(transpose(x.value(), y.order))) for x, y in zip(lying, self.signature.made, strict=True)
        ]

    def _keep_as_it_lies(self, lying: Sequence[Lying]) -> None:
        """Results that no caller sees lie in memory as they are computed."""
        made = list(self.signature.made)
        for i in self._free:
            order, shape = inverse(lying[i].order), [int(n) for n in made[i].shape]
            if not is_identity(order):
                made[i] = replace(made[i], strides=dense_strides(shape, order), order=order)
        self.signature = replace(self.signature, made=tuple(made))

    def constant(self, name: str) -> mx.array:
        """A tensor that is part of the module."""
        if name not in self._constants:
            value: Any = self.module
            for part in name.split("."):
                value = getattr(value, part)
            self._constants[name] = as_array(value)
        return self._constants[name]


def as_array(tensor: torch.Tensor) -> mx.array:
    """A copy of a tensor, also while torch traces with tensors that have no values."""
    with unset_fake_temporarily():
        return mx.array(tensor.detach().resolve_conj().resolve_neg().contiguous(), DTYPES[tensor.dtype])


def _identifier(name: str, taken: dict[str, int] | None = None) -> str:
    made = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    made = made if made and not made[0].isdigit() else f"_{made}"
    if taken is None:
        return made
    taken[made] = taken.get(made, -1) + 1
    return made if not taken[made] else f"{made}_{taken[made]}"


class _Run:
    """One pass over a graph: the value of each node, in order."""

    def __init__(
        self, of: Translation, values: dict[fx.Node, Any], known: dict[Any, Any], key: mx.array | None
    ) -> None:
        self.of, self.values, self.known, self.key = of, values, known, key
        self.draws = 0
        for node in of.nodes:
            if node in of._needed:
                self.values[node] = made = self._compute(node)
                if made is not None:
                    self.known.update([*bound(node, made, self.known)])

    def value(self, node: fx.Node) -> Any:
        if str(node.target) == ITEM:  # a size, or an array if it is none
            return next((self.known[s] for s in symbols(node) if s in self.known), self.values[node])
        return self.values[node] if node in self.values else size_value(node.meta["val"], self.known)

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self.of.constant(str(node.target))
        if is_size(node) and str(node.target) != ITEM:
            return size_value(node.meta["val"], self.known)
        args = fx.map_arg(node.args, self.value)
        kwargs: dict[str, Any] = fx.map_arg(node.kwargs, self.value)  # type: ignore[assignment]
        args = self._numbers(args)
        if node.target is operator.getitem:
            return args[0][args[1]]
        name = str(node.target)
        if name in STRIDED:
            args, kwargs = self._at_memory(node, args), {}
        if node in self.of._checks:
            confirm(name, args, self._numbers(kwargs))
            return None
        key = draws(name, node.args, node.kwargs)
        if key is not None:
            self.draws += 1
            assert self.key is not None
            kwargs = {**kwargs, key: mx.random.split(self.key, self.draws + 1)[self.draws]}
        try:
            out = self.out(node.meta["val"], name.removesuffix(".default") + place_of(node))
            kwargs = self._numbers(kwargs)
            if not self.of.may_run_in_place(name):
                made = apart(RULES[name], out, args, kwargs)
            else:
                made = RULES[name](out, *args, **kwargs)
            _confirm_kinds(made, node, self.of._needed)
            return made
        except CheckFailed:
            raise
        except Exception as error:
            found = Unsupported(f"{name}: {error}") if not self.of.depends_on_data else Refused(f"{name}: {error}")
            found.node = node
            raise found from error

    def _at_memory(self, node: fx.Node, args: Any) -> Any:
        """The arguments of the rule of an operator that looks at memory: an array that lies there."""
        look = look_of(node)
        assert isinstance(look, Look), "asked before"
        owner = self.value(look.owner)
        memory = owner if is_identity(look.order) else mx.transpose(owner, look.order)
        places = [self._numbers(x) for x in (look.size, look.strides, look.offset)]
        if str(node.target) != SCATTER:
            return memory, *places
        return memory, args[1], *places, inverse(look.order)

    def _numbers(self, value: Any) -> Any:
        """Arguments with values for sizes that stand there as symbols."""
        if isinstance(value, SYMBOLS):
            return size_value(value, self.known)
        if isinstance(value, (list, tuple)):
            return (
                type(value)([self._numbers(v) for v in value])
                if type(value) in (list, tuple)
                else list(map(self._numbers, value))
            )
        return {k: self._numbers(v) for k, v in value.items()} if isinstance(value, dict) else value

    def out(self, value: Any, site: str) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(self.out(part, site) for part in value)
        if not isinstance(value, torch.Tensor):
            return None
        return Out(DTYPES[value.dtype], lambda: tuple(size_value(n, self.known) for n in value.shape), site)


def _confirm_kinds(made: Any, node: fx.Node, needed: set[fx.Node]) -> None:
    """Whether a rule has kept to what torch says of the results that are needed: memory is allocated by that."""
    value = node.meta["val"]
    if not isinstance(value, (tuple, list)):
        _confirm_kind(made, value)
        return
    for user in node.users:
        if user in needed and user.target is operator.getitem:
            _confirm_kind(made[user.args[1]], value[user.args[1]])  # type: ignore[index]


def _confirm_kind(made: Any, value: Any) -> None:
    if not isinstance(made, mx.array) or not isinstance(value, torch.Tensor):
        return
    said = tuple(value.shape)
    has_symbols = any(type(n) is not int for n in (*said, *made.shape))  # these are compared when they are known
    fits = made.ndim == len(said) if has_symbols else made.shape == said
    if made.dtype is not DTYPES[value.dtype] or not fits:
        raise Unsupported(f"the rule makes {made.dtype.name}{list(made.shape)} of what is {value.dtype}{list(said)}")


def _needed(results: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that results are computed from."""
    found: set[fx.Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _part_of(node: fx.Node, number: int) -> fx.Node:
    """The node that takes one of several results."""
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == number:
            return user
    raise Unsupported(f"{node.target}: a size of result {number}, which the graph does not take")


def _made(node: fx.Node) -> Made:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):  # the number that an item is
        source = node.all_input_nodes[0].meta["val"]
        return Made((), (), (), str(source.dtype))
    order = memory_order(value)
    shape = tuple(map(expression, value.shape))
    if order is None:  # torch says that elements are shared or apart; a program writes them one after the other
        order = tuple(range(value.dim()))
        return Made(shape, (), order, str(value.dtype))
    strides = () if has_unbacked(value) else tuple(map(expression, value.stride()))
    return Made(shape, strides, order, str(value.dtype))
