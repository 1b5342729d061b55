"""Dataclasses that are made late mean what those of the standard library mean."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from typing import Any, ClassVar

import pytest

from tests.processes import run_alone
from weft import records


def both(**settings: Any) -> list[Any]:
    """The same classes, made by each."""
    return [made(module, settings) for module in (dataclasses, records)]


def made(module: Any, settings: dict[str, Any]) -> Any:
    @module.dataclass(**settings)
    class Point:
        shared: ClassVar[list[int]] = [1]
        x: int
        y: int = 2
        z: Any = module.field(default_factory=list, compare=False)
        w: Any = module.field(default="w", repr=False)

        def total(self) -> int:
            return self.x + self.y

        def __post_init__(self) -> None:
            if self.x == 99:
                raise ValueError("post")

    return Point


SETTINGS: list[dict[str, Any]] = [
    {}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True}, {"eq": False, "repr": False},
    {"frozen": True, "eq": False, "repr": False}, {"frozen": True, "slots": True, "eq": False},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_instances(settings: dict[str, Any]) -> None:
    theirs, ours = both(**settings)
    for args, kwargs in (
        ((1,), {}),
        ((1, 3), {}),
        ((), {"x": 1, "y": 5}),
        ((1, 2, [4]), {}),
        ((1,), {"w": 0, "z": ()}),
    ):
        a, b = theirs(*args, **kwargs), ours(*args, **kwargs)
        assert (a.x, a.y, a.z, a.w, a.total()) == (b.x, b.y, b.z, b.w, b.total())
        if settings.get("repr", True):
            assert repr(a).replace("made.<locals>.", "") == repr(b).replace("made.<locals>.", "")
    for args, kwargs in (((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"q": 2}), ((1,), {"x": 2})):
        for cls in (theirs, ours):
            with pytest.raises(TypeError):
                cls(*args, **kwargs)
    for cls in (theirs, ours):
        with pytest.raises(ValueError, match="post"):
            cls(99)
        assert cls(1).z is not cls(1).z
        assert cls.__match_args__ == ("x", "y", "z", "w")
        assert cls.shared == [1]
        assert (cls(1) == cls(1, z=[7])) == settings.get("eq", True)
        assert cls(1) != cls(2)
        assert cls(1) != (1, 2, [], "w")
        one = cls(5)
        match one:
            case cls(x, y):
                assert (x, y) == (5, 2)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_hashes_and_changes(settings: dict[str, Any]) -> None:
    for cls in both(**settings):
        one = cls(1)
        theirs = not hasattr(cls, "__record_fields__")
        if not settings.get("eq", True):
            assert hash(one) == object.__hash__(one)
        elif settings.get("frozen"):
            assert hash(one) == hash(cls(1))
        else:
            with pytest.raises(TypeError, match="unhashable"):
                hash(one)
        if settings.get("frozen"):
            for name in ("x",) if theirs and settings.get("slots") else ("x", "other"):  # theirs fail otherwise
                with pytest.raises(AttributeError, match=name):
                    setattr(one, name, 3)
            with pytest.raises(AttributeError, match="x"):
                del one.x
        else:
            one.x = 3
            assert one.x == 3
        assert hasattr(one, "__dict__") != bool(settings.get("slots"))
        assert copy.deepcopy(one).x == copy.copy(one).x == one.x


@records.dataclass(frozen=True, slots=True)
class Kept:
    first: int
    second: tuple[int, ...] = ()


def test_pickling() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, (2,)))) == Kept(1, (2,))


@pytest.mark.parametrize(
    ("module", "slots"),
    [(dataclasses, False), (records, False), (records, True)],  # with slots, theirs refuse attributes of subclasses
    ids=str,
)
def test_inheritance(module: Any, slots: bool) -> None:
    @module.dataclass(frozen=True, slots=slots)
    class Base:
        a: int
        b: int = 2

        def __repr__(self) -> str:
            return "own"

    @module.dataclass(frozen=True, slots=slots)
    class Derived(Base):
        c: int = 3
        b: int = 5

    class Plain(Derived):
        def __init__(self, a: int) -> None:
            super().__init__(a, c=a)
            self.extra = 1

    one = Derived(1)
    assert (one.a, one.b, one.c) == (1, 5, 3)
    assert [f.name for f in module.fields(one)] == ["a", "b", "c"]
    assert repr(Base(1)) == "own"
    assert repr(one).endswith("Derived(a=1, b=5, c=3)")
    assert Base(1, 5) != one
    plain = Plain(4)
    assert (plain.c, plain.extra) == (4, 1)
    with pytest.raises(AttributeError):
        plain.a = 3


def test_the_standard_library_knows_them() -> None:
    _, ours = both(frozen=True)
    assert dataclasses.is_dataclass(ours)
    assert dataclasses.is_dataclass(ours(1))
    assert [f.name for f in dataclasses.fields(ours)] == ["x", "y", "z", "w"]
    assert [f.type for f in dataclasses.fields(ours)] == [f.type for f in records.fields(ours)]
    for replace in (dataclasses.replace, records.replace):
        assert replace(ours(1), y=7).total() == 8
    assert dataclasses.asdict(ours(1)) == {"x": 1, "y": 2, "z": [], "w": "w"}

    @dataclasses.dataclass(frozen=True)
    class Theirs(ours):
        v: int = 0

    assert Theirs(1, v=3).v == 3
    with pytest.raises(TypeError, match="frozen"):

        @dataclasses.dataclass
        class Thawed(ours):
            v: int = 0


def test_a_method_is_written_by_its_first_call() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Base:
        one: int

    @records.dataclass(frozen=True, slots=True)
    class Made(Base):
        two: str = "b"

    def written(cls: type) -> set[str]:
        methods = {name: vars(cls)[name] for name in ("__init__", "__eq__", "__hash__", "__repr__")}
        return {name for name, method in methods.items() if method.__name__ == name}

    assert written(Made) == set()
    x = Made(1)
    assert written(Made) == {"__init__"}
    assert x == Made(1, "b")
    assert x != Made(2)
    assert written(Made) == {"__init__", "__eq__"}
    assert hash(x) == hash(Made(1))
    assert repr(x).endswith("Made(one=1, two='b')")
    assert len(written(Made)) == 4
    assert written(Base) == set()


def test_threads_may_make_the_first_instances() -> None:
    for _ in range(20):
        _, ours = both(frozen=True, slots=True)
        found: list[Any] = []
        threads = [threading.Thread(target=lambda i=i: found.append(ours(i).total())) for i in range(8)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [i + 2 for i in range(8)]


def importing() -> None:
    import sys

    import weft.core as mx

    seen = {name.partition(".")[0] for name in sys.modules}
    assert not seen & {"scipy", "rich"}, seen
    print("llvmlite" in seen)
    x = mx.array([[1.0, 2.0], [3.0, 4.0]])
    step = mx.compile(lambda x: mx.softmax(x @ x.T, axis=-1).sum(axis=0))
    mx.eval(
        step(x),
        mx.grad(lambda x: mx.sin(x).sum())(x),
        mx.sort(x.reshape(-1)),
        x[mx.array([1, 0])],
        x.astype(mx.float16),
    )
    assert memoryview(x).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    print("llvmlite" in {name.partition(".")[0] for name in sys.modules})


def test_a_program_whose_kernels_are_cached_needs_no_llvm(tmp_path: Any) -> None:
    """The first process compiles, and LLVM says what this machine is; the second one finds both on disk."""
    for wanted in ("True", "False"):
        said = run_alone(__file__, "importing", WEFT_CACHE_DIR=str(tmp_path), WEFT_CHECK="").split()
        assert said[-1] == wanted
    assert said == ["False", "False"]
