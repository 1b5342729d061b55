"""Nodes and arrays made by machine code: the same as Python makes, counted right, and safe against whatever is passed.

`recording` makes Python's forms run, so most tests compare the two.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.processes import in_threads
from weft import array as array_module
from weft.core._remember import remembered_all
from weft.graph.lines import recording
from weft.graph.node import Node, kind_of
from weft.primitives.elementwise import Add, Sin
from weft.runtime import object_values, objects
from weft.runtime.object_table import FUNCTIONS, STATE, TABLE
from weft.runtime.objects import MAKERS, Makers, attributes_of, is_known_interpreter
from weft.transforms import paths

ROOT = Path(__file__).resolve().parents[1]
X = mx.array([1.0, 2.0, 3.0])
KIND = kind_of((3,), mx.float32)

native = pytest.mark.skipif(not MAKERS._has_arrays, reason="this interpreter's objects are laid out in another way")


@pytest.mark.skipif(not is_known_interpreter(), reason="for CPython of the known versions, with its lock")
def test_a_known_interpreter_has_machine_code() -> None:
    """Python's forms are right too, so nothing else would tell that the quick ones are gone."""
    assert MAKERS._has_arrays
    functions = (array_module.wrap, mx.add.operator.call, mx.add.operator.reflected, paths._spread, paths._follow)
    assert all(type(function).__name__ == "builtin_function_or_method" for function in functions)


@native
def test_a_node_is_what_python_makes() -> None:
    mx.sin(X)  # what is seen for the first time is Python's
    y = mx.sin(X)
    made, plain = y._node, Node(Sin(), (X._node,), KIND)
    assert type(made) is Node
    assert made.id + 1 == plain.id
    for name in ("op", "kind", "value"):
        assert getattr(made, name) is getattr(plain, name)
    assert made.inputs == plain.inputs
    assert made.handle() is y
    assert not hasattr(made, "device")
    assert not hasattr(plain, "device")


@native
def test_an_array_and_its_node_know_each_other() -> None:
    y = mx.sin(X)
    assert type(y) is mx.array
    assert y._node.handle() is y
    node, reference = y._node, weakref.ref(y)
    del y
    assert reference() is None
    assert node.handle() is None
    again = array_module.wrap(node)  # has a handle, though a dead one: Python's form
    assert again._node is node
    assert array_module.wrap(node)._node is node
    assert len(node.handle) == 2


PROGRAMS: dict[str, Callable[[], Any]] = {
    "unary": lambda: mx.sin(X),
    "binary": lambda: X + X,
    "float": lambda: X * 2.5,
    "reflected float": lambda: 2.5 - X,
    "int": lambda: X + 3,
    "reflected int": lambda: 3 / X,
    "zero": lambda: X + 0.0,
    "minus zero": lambda: X + -0.0,
    "not a number": lambda: X + float("nan"),
    "bool": lambda: X + True,
    "broadcast": lambda: X + X[:1],
    "converted": lambda: X + mx.array([1, 2, 3]),
    "product": lambda: X @ X,
    "sum": lambda: mx.softmax(X) + mx.sum(X),
    "grad": lambda: mx.grad(lambda x: mx.sum(mx.tanh(x * 2.0) * x / (1.0 + x)))(X),
    "jvp": lambda: mx.jvp(lambda x: mx.tanh(x * 2.0) * x, [X], [X])[1][0],
    "many": lambda: mx.grad(
        lambda x: mx.sum(mx.power(x, x) / mx.logaddexp(x, X) + mx.where(x > X, x, mx.tanh(X)) * mx.prod(x, axis=0))
    )(X),
    "second": lambda: mx.grad(lambda x: mx.sum(mx.grad(lambda y: mx.sum(y**3))(x)))(X),
    "several results": lambda: mx.grad(lambda x: mx.sum(mx.scan(lambda c, v: (c * v, c), x[0], x)[1]))(X),
}


def described(result: Any) -> list[Any]:
    """What a result is computed from: operations, kinds, constants and operands by number."""
    numbers: dict[Node, int] = {}
    rows: list[Any] = []

    def visit(node: Node) -> int:
        if node not in numbers:
            operands = [visit(x) for x in node.inputs]  # not by age: constants are shared, and older than their users
            numbers[node] = len(numbers)
            rows.append((type(node), node.op, node.kind, getattr(node.value, "words", None), operands))
        return numbers[node]

    visit(result._node)
    return rows


@pytest.mark.parametrize("name", PROGRAMS)
def test_machine_code_builds_what_python_builds(name: str) -> None:
    PROGRAMS[name]()  # what is seen for the first time is always Python's
    here = described(PROGRAMS[name]())
    with recording():
        there = described(PROGRAMS[name]())
    assert here == there


@native
@pytest.mark.parametrize("name", PROGRAMS)
def test_references_are_counted(name: str) -> None:
    """Nothing that takes part is held once more, or once less, after many rounds, and no memory."""
    program = PROGRAMS[name]

    def blocks_of(rounds: int) -> int:
        before = sys.getallocatedblocks()
        for _ in range(rounds):
            program()
        gc.collect()
        return sys.getallocatedblocks() - before

    blocks_of(300)  # until the interpreter's own caches are filled
    taking_part = [X, X._node, KIND, Sin(), Add(), None, Node, mx.array, float, int]
    before = [sys.getrefcount(x) for x in taking_part]
    grown = [blocks_of(200) for _ in range(3)]  # what leaks leaks each time; NumPy's caches get full
    after = [sys.getrefcount(x) for x in taking_part]
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True)), (before, after)
    assert min(grown) < 100, grown


@native
@pytest.mark.parametrize(
    "call",
    [
        lambda: array_module.wrap(),
        lambda: array_module.wrap(None),
        lambda: array_module.wrap(3),
        lambda: mx.sin(),
        lambda: mx.sin("a"),
        lambda: mx.add(X),
        lambda: mx.add(X, X, X),
        lambda: X + "a",
        lambda: None * X,
        lambda: paths._spread(),
        lambda: paths._follow(1),
    ],
)
def test_wrong_calls_are_errors(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call()


@native
def test_an_array_that_was_never_filled_is_an_error() -> None:
    empty = mx.array.__new__(mx.array)
    for function in (mx.sin, lambda a: a + a, lambda a: a + 1.0, lambda a: 1.0 - a):
        with pytest.raises(AttributeError):
            function(empty)


@native
def test_subclasses_go_pythons_way() -> None:
    class Mine(mx.array):
        pass

    assert (Mine([1.0]) + Mine([2.0])).item() == 3.0
    assert mx.sin(Mine([0.0])).item() == 0.0


def test_finalizers_may_run_in_the_middle() -> None:
    """Memory is asked for in the middle of making a node, and a collection that strikes there runs anything."""
    survived = []
    x = mx.array([1.0, 2.0, 3.0])

    def overwrite() -> None:
        nonlocal x
        x += 1.0  # what is being used

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            survived.append((mx.sin(X) + 1.0 + X)._node)
            overwrite()

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Cycle()
            y = mx.tanh(mx.sin(x) * x + 0.5) - x
        assert y.shape == (3,)
    finally:
        gc.set_threshold(*thresholds)
    assert len(survived) >= 100
    assert mx.all(mx.isfinite(y)).item()


def test_threads_make_nodes_at_once() -> None:
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        gradient = mx.grad(lambda x: mx.sum(mx.tanh(x * float(number)) * x))
        for _ in range(200):
            results[number] = gradient(X)

    in_threads(4, work, interval=1e-6)
    for number in range(4):
        alone = mx.grad(lambda x, n=float(number): mx.sum(mx.tanh(x * n) * x))(X)
        assert described(results[number]) == described(alone)


def test_memory_is_traced_as_pythons_own() -> None:
    """Objects come from Python's allocator, so its tools see them."""
    tracemalloc.start()
    try:
        held = [mx.sin(X) for _ in range(100)]
        assert tracemalloc.get_traced_memory()[0] > 100 * mx.array.__basicsize__
        assert len(held) == 100
    finally:
        tracemalloc.stop()


def test_attributes_are_found_where_they_lie() -> None:
    class Slotted:
        __slots__ = ("a", "b", "c")

    places = attributes_of(Slotted, ["c", "a"])
    assert places is not None
    assert sorted(places) == ["a", "c"]
    assert places["a"] != places["c"]
    assert all(object.__basicsize__ <= place < Slotted.__basicsize__ for place in places.values())


def test_a_class_whose_attributes_lie_elsewhere_is_left_alone() -> None:
    class Elsewhere:
        pass

    assert attributes_of(Elsewhere, ["a"]) is None


def test_without_machine_code_python_does_it() -> None:
    makers = Makers()

    def instead() -> None: ...

    assert makers.arrays(mx.array, instead) is instead
    assert makers.unary(Sin(), {}, instead) is instead
    assert makers.binary(Add(), ({}, {}, {}, {}, {}), instead) is instead
    assert makers.reflected(Add(), ({}, {}, {}, {}, {}), instead) is instead
    assert makers.recipe(1, [0], [], instead) is instead
    assert makers.spread(instead) is instead
    assert makers.follow(instead) is instead
    assert makers.pull({}, Node, None, instead) is instead


NO_LOCK = "import sys; sys.abiflags = 't'"
LATER = "import sys, numpy; sys.version_info = (3, 14, 0, 'final', 0)"  # numpy: what others make of it is theirs
NO_LLVM = """
from weft.errors import CompileError
from weft.llvm import engine
def load(sources): raise CompileError("none here")
engine.load = load
"""


@pytest.mark.parametrize("broken", [NO_LOCK, NO_LLVM, LATER], ids=["no lock", "no LLVM", "a later version"])
def test_weft_works_where_there_is_no_machine_code(broken: str) -> None:
    """Tracing does; evaluation is another matter."""
    program = f"""
{broken}
import weft.core as mx
from weft.runtime.objects import MAKERS
assert not (MAKERS._has_nodes or MAKERS._has_arrays)
x = mx.array([1.0, 2.0])
g = mx.grad(lambda x: mx.sum(mx.tanh(x * 2.0) * x / (1.0 + x)))(x)
assert g.shape == (2,)
y, t = mx.jvp(lambda x: mx.softmax(x) @ x + 1, [x], [x])
assert y[0].shape == ()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_interpreters_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others go Python's way without being asked."""
    this = types.SimpleNamespace(implementation=types.SimpleNamespace(name="cpython"), abiflags="")
    this.int_info = types.SimpleNamespace(bits_per_digit=30)
    monkeypatch.setattr(objects, "sys", this)
    for version in ((3, 10), (3, 11), (3, 12), (3, 13), (3, 14), (3, 15), (4, 0)):
        this.version_info = (*version, 1, "final", 0)
        assert is_known_interpreter() == (version in objects.KNOWN)
    this.version_info = (*objects.KNOWN[-1], 1, "final", 0)
    assert is_known_interpreter()
    for flags in ("t", "d", "td"):
        this.abiflags = flags
        assert not is_known_interpreter()
    this.abiflags, this.int_info.bits_per_digit = "", 15
    assert not is_known_interpreter()
    this.int_info.bits_per_digit = 30
    assert is_known_interpreter()
    this.abiflags, this.implementation.name = "", "pypy"
    assert not is_known_interpreter()


@native
def test_a_process_with_a_filled_cache_writes_no_machine_code(tmp_path: Path) -> None:
    program = (
        "import sys, weft.core as mx\n"
        "print(*[n for n in sys.modules if n == 'llvmlite' or n in ('weft.runtime.object_module',"
        " 'weft.runtime.object_code', 'weft.llvm.functions')])\n"
        "from weft.runtime.objects import MAKERS; assert MAKERS._has_arrays"
    )
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert len(said[0]) == 4
    assert said[1] == []


@native
def test_every_word_of_the_table_is_filled_in() -> None:
    mx.eval(mx.compile(lambda x: x + 1)(mx.array([1.0])))  # by what is loaded for it
    empty = [name for name, word in TABLE.items() if name not in STATE and not MAKERS._table[word]]
    assert empty == ["device"]  # the host


@native
def test_every_function_of_the_table_has_a_signature() -> None:
    declared = {value.name for value in vars(object_values).values() if isinstance(value, object_values.External)}
    assert declared == set(FUNCTIONS)


OUT_OF_MEMORY = """
import gc, sys
import _testcapi
import weft.core as mx
from weft.core._remember import remembered_all
from weft.primitives.base import constant
from weft.primitives.elementwise import Sin
from weft.runtime.object_table import RECYCLED, TABLE
from weft.runtime.objects import MAKERS
from weft.transforms import paths, rules, vjp

for name in RECYCLED:  # ask for the memory of each object
    MAKERS._table[TABLE["room_" + name]] = -(1 << 40)
X = mx.array([1.0, 2.0, 3.0])
Y = mx.sum(mx.tanh(mx.sin(X) * 2.0) * X / (1.0 + X))
mx.jvp(lambda x: mx.sin(x), [X], [X])
mx.grad(lambda x: mx.sum(mx.tanh(mx.sin(x) * 2.0) * x / (1.0 + x)))(X)
x, y = X._node, Y._node
one = constant(1, y.kind)
path, active = paths.between([x], [y], "vjp")
forward = next(rule for key, rule in rules.FORWARD.items() if key[0] is Sin())

def functions():
    return 2.5 - (mx.sin(X) * X + 2.5)

def walks():
    found, seen = [y], {x, y}
    paths._spread(found, seen, x.id, 0)
    paths._follow(found, seen, [], 0)

def reverse():
    vjp._pull(path, {y: one}, active)

def tangents():
    forward.run(path[0], x, x)

quick = remembered_all(2)(lambda x, y, by, name: x * by + len(name))
for _ in range(3):
    quick(X, None, 2.5, "name")

def recalled():
    quick(X, None, 2.5, "name")

def failures(program):
    failed = 0
    for last in range(80):
        _testcapi.set_nomemory(last, last + 1)
        try:
            program()
        except MemoryError:
            failed += 1
        finally:
            _testcapi.remove_mem_hooks()
    gc.collect()
    return failed

programs = (functions, walks, reverse, tangents, recalled)
taking_part = [X, x, x.kind, y, one, Sin(), rules.ADD]
expected = functions().tolist()
for _ in range(2):
    counts = [sys.getrefcount(thing) for thing in taking_part]
    failed = [failures(program) for program in programs]
after = [sys.getrefcount(thing) for thing in taking_part]
assert all(failed), failed
assert failed[2] > 20, failed
assert all(abs(a - b) < 3 for a, b in zip(after, counts)), (counts, after)
assert functions().tolist() == expected
"""


@native
def test_any_request_for_memory_may_fail() -> None:
    """Whichever it is: an error, nothing held too often or not often enough, and the next call is right."""
    pytest.importorskip("_testcapi")
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_compile_does_not_look_into_machine_code() -> None:
    """What it is bound to is Weft's own, and filled as programs run: nobody may put that back."""
    call = mx.add.operator.call
    compiled = mx.compile(lambda a: call(a, a) + mx.exp(a))
    before = len(mx.add.operator.results)
    assert compiled(X).tolist() == ((X + X) + mx.exp(X)).tolist()
    assert compiled(X[:2]).tolist() == ((X[:2] + X[:2]) + mx.exp(X[:2])).tolist()
    assert len(mx.add.operator.results) >= before
    for function in (mx.tanh, mx.exp, mx.sin, call.__self__[2]):
        arguments = (X, X) if function is call.__self__[2] else (X,)
        assert mx.compile(function)(*arguments).tolist() == function(*arguments).tolist()
    assert (mx.array([1]) + mx.array([2.0])).tolist() == [3.0]


# ---- calls that are remembered ----


@native
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 500])
def test_nodes_are_sorted_by_age(count: int) -> None:
    nodes = [mx.sin(X)._node for _ in range(count)]
    rng = np.random.default_rng(count)
    orders = [list(range(count)), list(range(count))[::-1], rng.permutation(count).tolist()]
    orders.append([*range(count // 2, count), *range(count // 2)])
    for order in orders:
        found = [nodes[i] for i in order]
        held = [sys.getrefcount(node) for node in nodes]
        paths._by_age(found)
        assert found == nodes
        assert [sys.getrefcount(node) for node in nodes] == held


@native
def test_operators_ask_the_methods_of_others() -> None:
    class Other:
        def __radd__(self, x: Any) -> str:
            return "added"

        def __rmul__(self, x: Any) -> Any:
            return NotImplemented

        def __sub__(self, x: Any) -> str:
            return "subtracted"

    class Mine(mx.array):
        def __rtruediv__(self, x: Any) -> str:
            return "divided"

    assert X + Other() == "added"
    assert Other() - X == "subtracted"
    assert X / Mine([1.0, 2.0, 3.0]) == "divided"
    assert (Mine([1.0, 2.0, 3.0]) - X).tolist() == [0.0] * 3
    assert (X - Mine([1.0, 2.0, 3.0])).tolist() == [0.0] * 3
    for operator in (
        lambda: X * Other(),
        lambda: X - Other(),
        lambda: Other() / X,
        lambda: X + None,
        lambda: object() - X,
    ):
        with pytest.raises(TypeError, match="unsupported operand"):
            operator()
    assert (np.float32(2) * X).tolist() == [2.0, 4.0, 6.0]
    assert (True + X).tolist() == [2.0, 3.0, 4.0]


@native
def test_a_method_that_is_set_takes_the_place_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.array, "__add__", lambda a, b: "mine")
    assert X + X == "mine"
    assert X + 1.0 == "mine"
    monkeypatch.undo()
    assert (X + X).tolist() == [2.0, 4.0, 6.0]


@native
def test_remembered_calls_tell_numbers_apart() -> None:
    """The first call runs the function, the second is learnt from, and later ones are made by machine code."""

    def plain(x: mx.array, y: mx.array | None, by: Any, name: str = "") -> mx.array:
        made = x * (2 if by is None else by) + len(name)
        return made if y is None else made + y

    quick = remembered_all(2)(plain)
    assert type(quick).__name__ == "builtin_function_or_method"
    arrays = [mx.array([1, -2]), mx.array([1.5, -2.5]), mx.array([[1.5], [2.0]], mx.float16)]
    numbers = [0, 0.0, -0.0, 1, 1.0, True, False, None, 2.5, float("inf"), 1 << 20]
    for _ in range(4):
        for x in arrays:
            for y in (None, *arrays):
                for by in numbers:
                    for name in (), ("a",), ("ab",):
                        made, expected = quick(x, y, by, *name), plain(x, y, by, *name)
                        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
                        assert np.array(made).tobytes() == np.array(expected).tobytes()


@native
def test_remembered_calls_leave_other_arguments_to_the_function() -> None:
    quick = remembered_all(2)(lambda x, y, *others: [x, y, *others])
    x = mx.array([1.0])
    for arguments in ((x, None, [1]), (x, 3), (x, None, {}), (1.5, x), (x, None, np.float32(1)), (x, x, x)):
        for _ in range(3):
            assert all(a is b for a, b in zip(quick(*arguments), arguments, strict=True))
    with pytest.raises(IndexError):
        remembered_all(2)(lambda *given: given[1])(x)


@native
def test_remembered_calls_keep_count_of_references() -> None:
    quick = remembered_all(1)(lambda x, by: x * by)
    x = mx.array([1.0, 2.0])
    for _ in range(3):
        quick(x, 2.5)
        quick(x, 0.0)
    before = sys.getrefcount(x._node), sys.getrefcount(x._node.kind), sys.getrefcount(float)
    for _ in range(100):
        quick(x, 2.5)
        quick(x, 0.0)
    assert (sys.getrefcount(x._node), sys.getrefcount(x._node.kind), sys.getrefcount(float)) == before
