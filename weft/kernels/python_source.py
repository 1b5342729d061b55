"""Kernels written as Python functions: their AST becomes the statements of `syntax`.

The function never runs. Its parameters are the operands and results of the kernel; names that are not assigned in it
are positions, functions of kernels, template parameters, and what the function sees around it: numbers, dtypes, and
other functions, which are read the same way. Variables are Python's: one for each name of the function. They are
declared in the innermost block that has all their uses and assigns before it reads.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from weft.dtypes import Dtype
from weft.kernels import syntax as s
from weft.kernels.syntax import At, KernelError

_BINARY: Final = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_COMPARE: Final = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_UNARY: Final = {ast.USub: "-", ast.UAdd: "+", ast.Not: "!", ast.Invert: "~"}
_CONVERSIONS: Final = {"int": "int64", "float": "float32", "bool": "bool"}
MEMORY: Final = {"threadgroup_memory": "threadgroup", "thread_memory": "thread"}
"""Functions that make an array: of the threads of a threadgroup, or of each."""


class Scope:
    """What a function sees around it, looked up when it is asked for."""

    def __init__(self, function: types.FunctionType | None) -> None:
        self._globals = {} if function is None else function.__globals__
        cells = () if function is None else zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._cells = dict(cells)

    def get(self, name: str) -> Any:
        cell = self._cells.get(name)
        if cell is not None and _is_filled(cell):
            return cell.cell_contents
        return self._globals.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._globals or (name in self._cells and _is_filled(self._cells[name]))


Seen = list[tuple[Scope, ast.AST, Any]]
"""What names, or names behind dots, stood for when a kernel was read."""


def is_unchanged(seen: Seen) -> bool:
    """Whether all of it still is what it was: then the kernel is the same."""
    for scope, node, value in seen:
        now = _value_of(node, scope)
        if now is not value and (type(now) is not type(value) or number_of(now) is None or now != value):
            return False
    return True


_TEXTS: WeakKeyDictionary[types.FunctionType, tuple[str, int]] = WeakKeyDictionary()


def text_of(kernel: str, function: Any) -> tuple[str, int]:
    """The text of a function and its first line, as they are when it is asked for first: files may change later."""
    if not isinstance(function, types.FunctionType) or function.__name__ == "<lambda>":
        raise KernelError(kernel, None, f"a kernel is a Python function made with `def`; got {function!r}.")
    found = _TEXTS.get(function)
    if found is None:
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            raise KernelError(
                kernel, None, "the source of this function is not known; write it in a file, or give its text."
            ) from None
        found = _TEXTS[function] = "".join(lines), max(first, 1)
    return found


def read(name: str, source: Callable[..., Any] | str, parameters: Sequence[str]) -> tuple[s.Source, Seen]:
    """The kernel of a Python function, or of the text of one, whose parameters have these names; and what it saw."""
    known: dict[str, Any] = {}
    functions: dict[str, s.Function] = {}
    reader = _Reader(name, known, functions)
    function = reader.function(source)
    given = [p.name for p in function.parameters]
    if given != list(parameters):
        raise KernelError(
            name,
            function.at,
            f"the function takes ({', '.join(given)}), and the kernel's inputs and outputs are "
            f"({', '.join(parameters)}); give them the same names in the same order.",
        )
    constants = tuple(sorted(known.items(), key=lambda item: item[0]))
    text = "\n".join([*reader.texts, *(f"{key} = {value!r}" for key, value in constants)])
    return s.Source(name, "python", function.body, tuple(functions.values()), constants, text), reader.seen


class _Reader:
    """Reads a function and those that it calls. What their names stand for is one table: a name that means two things
    in two of them is refused."""

    def __init__(self, kernel: str, known: dict[str, Any], functions: dict[str, s.Function]) -> None:
        self.kernel, self.known, self.functions = kernel, known, functions
        self.texts: list[str] = []
        self.seen: Seen = []
        self._read: dict[str, Any] = {}

    def function(self, source: Callable[..., Any] | str) -> s.Function:
        if isinstance(source, str):
            text, file, first, scope = source, f"<{self.kernel}>", 1, Scope(None)
        else:
            text, first = text_of(self.kernel, source)
            assert isinstance(source, types.FunctionType)
            file, scope = source.__code__.co_filename, Scope(source)
        try:
            plain = textwrap.dedent(text)
            parsed = ast.parse(plain)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            raise KernelError(
                self.kernel,
                At(file, first + line - 1, getattr(error, "offset", None) or 1),
                f"this is not Python: {error}.",
            ) from None
        found = [node for node in parsed.body if isinstance(node, ast.FunctionDef)]
        if len(found) != 1 or len(parsed.body) != 1:
            raise KernelError(self.kernel, At(file, first, 1), "a kernel is one function, made with `def`.")
        self.texts.append(f"{file}:{first}\n{text}")
        try:
            return _Body(self, found[0], At(file, first - 1, len(text) - len(text.lstrip(" ")) + 1), scope).function()
        except RecursionError:
            raise KernelError(self.kernel, At(file, first, 1), "it is nested too deeply.") from None

    def look(self, node: ast.AST, scope: Scope) -> Any:
        """What a name stands for around a function."""
        value = _value_of(node, scope)
        self.seen.append((scope, node, value))
        return value

    def resolve(self, name: str, scope: Scope, at: At) -> None:
        """Remember what a name stands for, if it is something that a kernel can use."""
        value = self.look(ast.Name(name), scope)
        if value is None:
            return
        if isinstance(value, types.FunctionType) and not _is_library(value):
            if name not in self._read:
                self._read[name] = value
                self.functions[name] = s.Function(at, name, (), s.Block(at, ()))  # calls itself: found when it is typed
                made = self.function(value)
                self.functions[name] = s.Function(made.at, name, made.parameters, made.body)
            elif self._read[name] is not value:
                raise KernelError(self.kernel, at, f"`{name}` is two different functions; rename one.")
            return
        constant = number_of(value)
        if constant is None:
            return
        if name in self.known and (type(self.known[name]), self.known[name]) != (type(constant), constant):
            raise KernelError(self.kernel, at, f"`{name}` is {self.known[name]!r} and {constant!r}; rename one.")
        self.known[name] = constant


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_library(function: types.FunctionType) -> bool:
    """Whether a kernel has a function of its own in the place of this one."""
    return (function.__module__ or "").split(".")[:2] == ["weft", "core"]


def number_of(value: Any) -> int | float | bool | Dtype | None:
    """A constant that kernels can use: a number or a dtype; None for anything else."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if type(value) in (bool, int, float) or isinstance(value, Dtype):
        return value  # type: ignore[no-any-return]
    return None


class _Body:
    """One function."""

    def __init__(self, reader: _Reader, node: ast.FunctionDef, start: At, scope: Scope) -> None:
        self.reader, self.node, self.start, self.scope = reader, node, start, scope
        self.hidden = 0
        taken = node.args
        if taken.vararg or taken.kwarg or taken.kwonlyargs or taken.defaults or taken.posonlyargs:
            raise self.error(node, "the parameters of a kernel are plain names, without defaults or stars.")
        self.parameters = [a.arg for a in taken.args]

    def at(self, node: ast.AST) -> At:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return At(self.start.file, self.start.line + line, self.start.column + column)

    def error(self, node: ast.AST, message: str) -> KernelError:
        return KernelError(self.reader.kernel, self.at(node), message)

    def function(self) -> s.Function:
        body = _split(self.node.body)
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]  # its docstring
        self.loops = {
            n.target.id for n in ast.walk(self.node) if isinstance(n, ast.For) and isinstance(n.target, ast.Name)
        }
        self.assigned = _assigned(body)
        both = sorted(self.loops & self.assigned)
        if both:
            raise self.error(
                self.node, f"`{both[0]}` counts a loop, so it is not assigned elsewhere; take another name."
            )
        types = self._annotations(body)
        at = self.at(self.node)
        block = s.Block(at, self.block(body, frozenset(self.parameters), types))
        parameters = [
            s.Parameter(
                a.arg, None if a.annotation is None or not self._is_type(a.annotation) else self.type(a.annotation)
            )
            for a in self.node.args.args
        ]
        return s.Function(at, self.node.name, tuple(parameters), block)

    def _annotations(self, body: Sequence[ast.stmt]) -> dict[str, s.TypeName]:
        found: dict[str, s.TypeName] = {}
        for node in ast.walk(ast.Module(list(body), [])):
            if isinstance(node, ast.AnnAssign):
                if not isinstance(node.target, ast.Name):
                    raise self.error(node, "only names are declared with a type.")
                found[node.target.id] = self.type(node.annotation)
        return found

    # ---- statements ----

    def block(
        self, body: Sequence[ast.stmt], declared: frozenset[str], types: Mapping[str, s.TypeName]
    ) -> tuple[s.Statement, ...]:
        """Statements, with the declarations of variables that live here."""
        here: dict[str, int] = {}
        for name in sorted(_assigned(body) - declared):
            users = [i for i, node in enumerate(body) if name in _mentions(node)]
            if len(users) > 1 or not self._fits_inside(body[users[0]], name):
                here[name] = users[0]
        result: list[s.Statement] = []
        known = declared | set(here)
        for i, node in enumerate(body):
            begins = [name for name, first in here.items() if first == i]
            direct = _target_of(node)
            if direct in begins and direct not in _mentions(node.value):  # type: ignore[attr-defined]
                begins.remove(direct)
                result += [s.Declare(self.at(node), types.get(name), name, (), None) for name in begins]
                result.append(self.declaration(node, direct, types.get(direct)))
                continue
            result += [s.Declare(self.at(node), types.get(name), name, (), None) for name in begins]
            result += self.statement(node, known, types)
        return tuple(result)

    def _fits_inside(self, node: ast.stmt, name: str) -> bool:
        """Whether a variable that only this statement mentions can live in a block of it."""
        if _target_of(node) == name or not isinstance(node, ast.If | ast.While | ast.For):
            return False
        if any(
            name in _mentions(x) for x in (getattr(node, "test", None), getattr(node, "iter", None)) if x is not None
        ):
            return False
        if isinstance(node, ast.If):
            return sum(any(name in _mentions(n) for n in part) for part in (node.body, node.orelse)) == 1
        return self._begins_with(node.body, name)

    def _begins_with(self, body: Sequence[ast.stmt], name: str) -> bool:
        """Whether a block surely assigns a name before it reads it."""
        for node in body:
            if name not in _mentions(node):
                continue
            if _target_of(node) == name:
                return name not in _mentions(node.value)  # type: ignore[attr-defined]
            others = [n for n in body if n is not node and name in _mentions(n)]
            return not others and self._fits_inside(node, name)
        return False

    def declaration(self, node: Any, name: str, type: s.TypeName | None) -> s.Statement:
        value, at = node.value, self.at(node)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in MEMORY:
            if len(value.args) < 2 or value.keywords:
                raise self.error(value, f"{value.func.id} takes a dtype and sizes.")
            space = MEMORY[value.func.id]
            element = self.type(value.args[0])
            element = s.TypeName(element.at, element.name, space=space)
            return s.Declare(at, element, name, tuple(self.expression(x) for x in value.args[1:]), None)
        return s.Declare(at, type, name, (), self.expression(value))

    def statement(self, node: ast.stmt, known: frozenset[str], types: Mapping[str, s.TypeName]) -> list[s.Statement]:
        at = self.at(node)
        match node:
            case ast.Assign(targets=[target], value=value):
                return self.assign(at, target, value)
            case ast.AnnAssign(target=target, value=value):
                return [] if value is None else self.assign(at, target, value)
            case ast.AugAssign(target=target, op=op, value=value):
                operator = self.operator(node, op)
                return [s.Evaluate(at, s.Assignment(at, self.target(target), operator, self.expression(value)))]
            case ast.If():
                then = s.Block(at, self.block(node.body, known, types))
                other = s.Block(at, self.block(node.orelse, known, types)) if node.orelse else None
                return [s.If(at, self.expression(node.test), then, other)]
            case ast.While(orelse=[]):
                body = s.Block(at, self.block(node.body, known, types))
                return [s.For(at, None, self.expression(node.test), None, body)]
            case ast.For(orelse=[], target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=args)):
                if not 1 <= len(args) <= 3 or node.iter.keywords:  # type: ignore[attr-defined]
                    raise self.error(node, "range takes one to three numbers.")
                numbers = [self.expression(x) for x in args]
                start = s.Number(at, 0) if len(args) == 1 else numbers[0]
                stop = numbers[0] if len(args) == 1 else numbers[1]
                step = numbers[2] if len(args) == 3 else s.Number(at, 1)
                body = s.Block(at, self.block(node.body, known | {name}, types))
                return [s.Range(at, name, start, stop, step, body)]
            case ast.Break():
                return [s.Break(at)]
            case ast.Continue():
                return [s.Continue(at)]
            case ast.Return(value=value):
                return [s.Return(at, None if value is None else self.expression(value))]
            case ast.Pass():
                return []
            case ast.Expr(value=ast.Call() as call):
                return [s.Evaluate(at, self.expression(call))]
            case ast.Expr(value=ast.Constant(value=str())):
                return []
        raise self.error(node, f"kernels have no `{_title(node)}`.")

    def assign(self, at: At, target: ast.expr, value: ast.expr) -> list[s.Statement]:
        if isinstance(target, ast.Tuple):
            if not isinstance(value, ast.Tuple) or len(value.elts) != len(target.elts):
                raise self.error(target, "several names are assigned from as many values, written out.")
            names: list[str] = []
            result: list[s.Statement] = []
            for x in value.elts:
                self.hidden += 1
                names.append(f"{self.hidden}")  # no name of Python's
                result.append(s.Declare(at, None, names[-1], (), self.expression(x)))
            for place, hidden in zip(target.elts, names, strict=True):
                result.append(s.Evaluate(at, s.Assignment(at, self.target(place), "=", s.Name(at, hidden))))
            return [s.Block(at, tuple(result))]
        return [s.Evaluate(at, s.Assignment(at, self.target(target), "=", self.expression(value)))]

    def target(self, node: ast.expr) -> s.Expression:
        if isinstance(node, ast.Name):
            if node.id in self.loops:
                raise self.error(node, f"`{node.id}` counts a loop, and is not assigned in it; take another name.")
            return s.Name(self.at(node), node.id)
        if isinstance(node, ast.Subscript):
            return self.expression(node)
        raise self.error(node, "only names and elements of arrays are assigned.")

    # ---- expressions ----

    def operator(self, node: ast.AST, op: ast.operator) -> str:
        found = _BINARY.get(type(op))
        if found is None:
            raise self.error(node, f"kernels have no operator `{_title(op)}`.")
        return found

    def expression(self, node: ast.expr) -> s.Expression:
        at = self.at(node)
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return s.Number(at, value)
            case ast.Name(id=name):
                self._see(name, node)
                return s.Name(at, name)
            case ast.BinOp(left=x, op=op, right=y):
                return s.Binary(at, self.operator(node, op), self.expression(x), self.expression(y))
            case ast.UnaryOp(op=op, operand=x):
                return s.Unary(at, _UNARY[type(op)], self.expression(x))
            case ast.BoolOp(op=op, values=values):
                name = "&&" if isinstance(op, ast.And) else "||"
                result = self.expression(values[0])
                for x in values[1:]:
                    result = s.Binary(at, name, result, self.expression(x))
                return result
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self.comparison(node, [left, *others], ops)
            case ast.IfExp(test=test, body=x, orelse=y):
                return s.Choice(at, self.expression(test), self.expression(x), self.expression(y))
            case ast.Call():
                return self.call(node)
            case ast.Attribute(value=x, attr=name):
                constant = self._constant(node)
                if constant is not None:
                    return s.Number(at, constant)
                return s.Member(at, self.expression(x), name)
            case ast.Subscript(value=x, slice=index):
                parts = index.elts if isinstance(index, ast.Tuple) else [index]
                return s.Index(at, self.expression(x), tuple(self.expression(i) for i in parts))
        raise self.error(node, f"kernels have no `{_title(node)}`.")

    def comparison(self, node: ast.Compare, values: Sequence[ast.expr], ops: Sequence[ast.cmpop]) -> s.Expression:
        at, result = self.at(node), None
        for x, op, y in zip(values, ops, values[1:], strict=False):
            name = _COMPARE.get(type(op))
            if name is None:
                raise self.error(node, f"kernels have no `{_title(op)}`.")
            one = s.Binary(at, name, self.expression(x), self.expression(y))
            result = one if result is None else s.Binary(at, "&&", result, one)
        assert result is not None
        return result

    def call(self, node: ast.Call) -> s.Expression:
        at = self.at(node)
        if node.keywords or any(isinstance(x, ast.Starred) for x in node.args):
            raise self.error(node, "arguments are given by position.")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "astype" and len(node.args) == 1:
            return s.Convert(at, self.type(node.args[0]), (self.expression(node.func.value),))
        if self._is_type(node.func):
            return s.Convert(at, self.type(node.func), tuple(self.expression(x) for x in node.args))
        name = self._called(node.func)
        if name in ("bitcast", "as_type") and len(node.args) == 2:
            return s.Convert(at, self.type(node.args[1]), (self.expression(node.args[0]),), bits=True)
        self._see(name, node.func)
        return s.Call(at, name, tuple(self.expression(x) for x in node.args))

    def _called(self, node: ast.expr) -> str:
        """The name of a function: alone, or behind those of modules."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute) and isinstance(self.reader.look(node.value, self.scope), types.ModuleType):
            return node.attr
        raise self.error(node, "this cannot be called in a kernel.")

    def _see(self, name: str, node: ast.AST) -> None:
        if name not in self.parameters and name not in self.assigned and name not in self.loops:
            self.reader.resolve(name, self.scope, self.at(node))

    def _constant(self, node: ast.Attribute) -> Any:
        """`math.pi`, `config.size`: a number behind dots."""
        if not isinstance(_root(node), ast.Name) or _root(node).id in (*self.parameters, *self.assigned, *self.loops):  # type: ignore[attr-defined]
            return None
        value = number_of(self.reader.look(node, self.scope))
        if value is not None and not isinstance(value, Dtype):
            self.reader.known[ast.unparse(node)] = value
            return value
        return None

    # ---- types ----

    def _is_type(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name) and node.id in (*self.parameters, *self.assigned, *self.loops):
            return False
        if isinstance(node, ast.Name) and node.id in _CONVERSIONS and node.id not in self.scope:
            return True
        return isinstance(self.reader.look(node, self.scope), Dtype) or (
            isinstance(node, ast.Name) and _looks_like_type(node.id, self.scope)
        )

    def type(self, node: ast.expr) -> s.TypeName:
        """A dtype: by a name that stands for one, or of a template."""
        at, value = self.at(node), self.reader.look(node, self.scope)
        if isinstance(value, Dtype):
            return s.TypeName(at, value.name)
        if isinstance(node, ast.Name):
            return s.TypeName(at, _CONVERSIONS.get(node.id, node.id))
        if isinstance(node, ast.Attribute):
            if node.attr == "dtype" and isinstance(node.value, ast.Name):
                return s.TypeName(at, f"{node.value.id}.dtype")
            return s.TypeName(at, node.attr)
        raise self.error(node, "this is no dtype.")


_DTYPES: Final = frozenset(
    ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
     "float32", "float64")
)  # fmt: skip


def _looks_like_type(name: str, scope: Scope) -> bool:
    """Whether a call of this name is a conversion: the name of a dtype, or (of a template) a capital letter that
    nothing around the function has."""
    return (
        name in _DTYPES
        or (name not in scope and name[:1].isupper() and name.upper() != name)
        or (name not in scope and len(name) == 1 and name.isupper())
    )


def _root(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _value_of(node: ast.AST, scope: Scope) -> Any:
    """What a name, or names behind dots, stand for around the function; None if that is not known."""
    if isinstance(node, ast.Name):
        if node.id == "math" and "math" not in scope:
            return math
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value, scope)
        if isinstance(owner, types.ModuleType) or (number_of(owner) is None and owner is not None):
            try:
                return getattr(owner, node.attr, None)
            except Exception:  # whatever a property of the user's raises
                return None
    return None


def _split(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """`a, b = x, y` as two assignments, where y does not read what the first one assigns; in inner blocks too."""
    found: list[ast.stmt] = []
    for node in body:
        for name in ("body", "orelse"):
            if isinstance(node, ast.If | ast.While | ast.For):
                setattr(node, name, _split(getattr(node, name)))
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if (
                len(targets) == len(values)
                and all(isinstance(target, ast.Name) for target in targets)
                and not any(_mentions(t) & _mentions(v) for k, t in enumerate(targets) for v in values[k:])
            ):
                for target, value in zip(targets, values, strict=True):
                    found.append(ast.copy_location(ast.Assign([target], value), node))
            case _:
                found.append(node)
    return found


def _target_of(node: ast.stmt) -> str | None:
    """The name that a statement assigns, if it is that alone."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return node.target.id
    return None


def _mentions(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def _assigned(body: Sequence[ast.stmt]) -> set[str]:
    """The names that statements assign, those that count loops aside."""
    found: set[str] = set()
    for node in ast.walk(ast.Module(list(body), [])):
        if isinstance(node, ast.Assign):
            found |= {
                x.id
                for target in node.targets
                for x in ast.walk(target)
                if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
            }
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def _title(node: ast.AST) -> str:
    """What Python's grammar calls it."""
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(type(node).__name__))
