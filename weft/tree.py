"""Nested containers: everything that takes a container apart into leaves, or puts one together again, does it here.

A *tree* is a list, tuple, named tuple, dict, dataclass instance or None (which has no leaves), nested at will; anything
else is a leaf. `flatten` gives the leaves and a `Structure`, which is all there is to know about the containers: what a
function could see (types, keys, the order of keys) and nothing else. Structures are unique, so comparing two is `is`.
Nothing here recurses, so depth is bounded only by `MAX_DEPTH`, which exists to catch a container that contains itself.
An instance of a subclass of list, tuple or dict comes back as one of that class, without its attributes; but where a
list or dict has an `__init__` of its own, which cannot be called without knowing it, as the base.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from weft.interning import Interned

MAX_DEPTH: Final = 10_000

Leaf = Any
Tree = Any


class Step(NamedTuple):
    """One step from a container to a child of it."""

    kind: Literal["index", "key", "field"]
    value: Any

    def __str__(self) -> str:
        return f".{self.value}" if self.kind == "field" else f"[{self.value!r}]"


class Path(tuple[Step, ...]):
    """The steps from the root to a node; as text, what one would write after the name of the tree."""

    __slots__ = ()

    def __str__(self) -> str:
        return "".join([str(step) for step in self])


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of containers. `meta` is what a container holds besides its children, as a hashable value.


class _Kind:
    """How one type of container is opened, built, shown and walked. Kinds of one `family` may stand for each other."""

    __slots__ = ("family", "name")

    def __init__(self, name: str, family: object = None) -> None:
        self.name, self.family = name, self if family is None else family

    def open(self, tree: Tree) -> tuple[Iterable[Tree], Any]:
        """The children and the meta value of a container."""
        raise NotImplementedError

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        """The container with these children."""
        raise NotImplementedError

    def steps(self, meta: Any, count: int) -> list[Step]:
        """The step to each child."""
        return [Step("index", i) for i in range(count)]

    def show(self, meta: Any, children: Sequence[str]) -> str:
        """The container as text, given its children as text."""
        raise NotImplementedError

    def describe(self, meta: Any, count: int) -> str:
        """The container in words, for messages."""
        return f"a {self.name} of {count}"

    def align(self, mine: Any, count: int, theirs: Any, children: Sequence[Tree]) -> Sequence[Tree] | None:
        """Another container's children in the order of ours, or None if they do not correspond."""
        return children if len(children) == count else None


class _List(_Kind):
    def open(self, tree: Tree) -> tuple[Iterable[Tree], Any]:
        return tree, None

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        return list(children)

    def show(self, meta: Any, children: Sequence[str]) -> str:
        return f"[{', '.join(children)}]"


class _Tuple(_Kind):
    def open(self, tree: Tree) -> tuple[Iterable[Tree], Any]:
        return tree, None

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        return tuple(children)

    def show(self, meta: Any, children: Sequence[str]) -> str:
        return f"({', '.join(children)}{',' if len(children) == 1 else ''})"


class _None(_Kind):
    def open(self, tree: Tree) -> tuple[Iterable[Tree], Any]:
        return (), None

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        return None

    def show(self, meta: Any, children: Sequence[str]) -> str:
        return "None"

    def describe(self, meta: Any, count: int) -> str:
        return "None"


class _Record(_Kind):
    """A class with named fields: a named tuple or a dataclass."""

    __slots__ = ("cls", "fields")

    def __init__(self, cls: type, fields: tuple[str, ...]) -> None:
        super().__init__(cls.__name__, family=cls)
        self.cls, self.fields = cls, fields

    # Two records of one class are one kind, so that the table of kinds may forget a class and learn it again.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Record) and other.cls is self.cls

    def __hash__(self) -> int:
        return hash(self.cls)

    def steps(self, meta: Any, count: int) -> list[Step]:
        return [Step("field", name) for name in self.fields]

    def show(self, meta: Any, children: Sequence[str]) -> str:
        return f"{self.name}({', '.join([f'{k}={v}' for k, v in zip(self.fields, children, strict=True)])})"

    def describe(self, meta: Any, count: int) -> str:
        return f"a {self.name}"


class _NamedTuple(_Record):
    def open(self, tree: Tree) -> tuple[Iterable[Tree], Any]:
        return tree, None

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        return self.cls._make(children)  # type: ignore[attr-defined]


class _Dataclass(_Record):
    def open(self, tree: Tree) -> tuple[Iterable[Tree], Any]:
        return [getattr(tree, name) for name in self.fields], None

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        # Neither __init__ nor __post_init__ runs: the children may be stand-ins that a validator would turn down, and
        # fields with init=False, frozen classes and InitVars need no special case.
        made: Any = object.__new__(self.cls)
        for name, child in zip(self.fields, children, strict=True):
            object.__setattr__(made, name, child)
        return made


class _Dict(_Kind):
    """A dict; `meta` is (keys, exact types of the keys unless all are str, default factory)."""

    __slots__ = ("cls",)

    def __init__(self, cls: type, family: object = None) -> None:
        super().__init__(cls.__name__, family)
        self.cls = cls

    def open(self, tree: Tree) -> tuple[Iterable[Tree], Any]:
        keys = tuple(tree)
        return tree.values(), (keys, _exact_keys(keys), getattr(tree, "default_factory", None))

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        items = zip(meta[0], children, strict=True)
        made: Any = self.cls
        return made(meta[2], items) if issubclass(made, defaultdict) else made(items)

    def steps(self, meta: Any, count: int) -> list[Step]:
        return [Step("key", key) for key in meta[0]]

    def show(self, meta: Any, children: Sequence[str]) -> str:
        inner = f"{{{', '.join([f'{k!r}: {v}' for k, v in zip(meta[0], children, strict=True)])}}}"
        return inner if self.cls is dict else f"{self.name}({inner})"

    def describe(self, meta: Any, count: int) -> str:
        names = ", ".join([repr(key) for key in meta[0][:8]])
        return f"a {self.name} with keys {names}{', ...' if count > 8 else ''}" if count else f"an empty {self.name}"

    def align(self, mine: Any, count: int, theirs: Any, children: Sequence[Tree]) -> Sequence[Tree] | None:
        if mine[0] == theirs[0]:
            return children
        found = dict(zip(theirs[0], children, strict=True))
        if len(found) != count or any(key not in found for key in mine[0]):
            return None
        return [found[key] for key in mine[0]]


class _OfSubclass(_Kind):
    """A container of a class that users wrote, which may stand for one of its base."""

    __slots__ = ()
    cls: type

    # Two of one class are one kind, so that the table of kinds may forget a class and learn it again.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OfSubclass) and other.cls is self.cls

    def __hash__(self) -> int:
        return hash(self.cls)


class _ListOf(_OfSubclass, _List):
    __slots__ = ("cls",)

    def __init__(self, cls: type) -> None:
        super().__init__(cls.__name__, _LIST)
        self.cls = cls

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        return self.cls(children)


class _TupleOf(_OfSubclass, _Tuple):
    __slots__ = ("cls",)

    def __init__(self, cls: type) -> None:
        super().__init__(cls.__name__, _TUPLE)
        self.cls = cls

    def build(self, meta: Any, children: Sequence[Any]) -> Tree:
        return tuple.__new__(self.cls, children)


class _DictOf(_OfSubclass, _Dict):
    __slots__ = ()

    def __init__(self, cls: type) -> None:
        super().__init__(cls, _DICT)


def _exact_keys(keys: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What tells keys apart that compare equal (1, True and 1.0; 0.0 and -0.0). Strings need nothing."""
    for key in keys:
        if type(key) is not str:
            return tuple([_exact(key) for key in keys])
    return None


def _exact(key: Any) -> Any:
    if isinstance(key, tuple):
        return (type(key), *[_exact(part) for part in key])
    return (type(key), repr(key)) if isinstance(key, (float, complex)) else type(key)


_LIST, _TUPLE, _NONE, _DICT = _List("list"), _Tuple("tuple"), _None("None"), _Dict(dict)
_BUILTIN: dict[type, _Kind | None] = {
    list: _LIST, tuple: _TUPLE, dict: _DICT, type(None): _NONE,
    OrderedDict: _Dict(OrderedDict, _DICT), defaultdict: _Dict(defaultdict, _DICT),
    bool: None, int: None, float: None, complex: None, str: None, bytes: None,
}  # fmt: skip


def _classify(cls: type) -> _Kind | None:
    """The kind of a class that is not in the table yet; None for a leaf."""
    if hasattr(cls, "__dataclass_fields__"):
        from dataclasses import fields as fields_of  # late: a program that has no dataclasses has no need of it

        return _Dataclass(cls, tuple([field.name for field in fields_of(cls)]))
    if issubclass(cls, tuple):
        fields: Any = getattr(cls, "_fields", None)
        return _NamedTuple(cls, tuple(fields)) if fields is not None and hasattr(cls, "_make") else _TupleOf(cls)
    for base in (OrderedDict, defaultdict, dict, list):
        if issubclass(cls, base):
            plain = cls.__init__ is base.__init__ and cls.__new__ is base.__new__
            return (_ListOf if base is list else _DictOf)(cls) if plain else _BUILTIN[base]
    return None


class _Kinds(dict[type, "_Kind | None"]):
    """Class -> kind. Classes made on the fly must not pile up, so the table starts over when it is full."""

    LIMIT = 4096

    def __missing__(self, cls: type) -> _Kind | None:
        if len(self) >= self.LIMIT:
            for old in list(self):
                if old not in _BUILTIN:
                    self.pop(old, None)  # another thread may be doing the same
        return self.setdefault(cls, _classify(cls))


_kinds = _Kinds(_BUILTIN)


# ---------------------------------------------------------------------------------------------------------------------
# Structures.


class Structure:
    """The containers of a tree with a hole for each leaf. Unique: equal structures are the same object."""

    __slots__ = ("__weakref__", "_program", "children", "flat", "kind", "meta", "num_leaves")

    def __init__(self, kind: _Kind | None, meta: Any, children: tuple[Structure, ...]) -> None:
        self.kind, self.meta, self.children = kind, meta, children
        self.num_leaves: int = sum([c.num_leaves for c in children]) if kind is not None else 1
        self.flat = all(c.kind is None for c in children)
        self._program: tuple[Structure, ...] | None = None

    def unflatten(self, leaves: Sequence[Leaf]) -> Tree:
        """The tree with these leaves in the holes, from left to right.

        >>> flatten({"a": 1, "b": (2, None)})[1].unflatten([10, 20])
        {'a': 10, 'b': (20, None)}
        """
        if len(leaves) != self.num_leaves:
            raise ValueError(f"[unflatten] {self} has {self.num_leaves} leaves, got {len(leaves)}.")
        kind = self.kind
        if kind is None:
            return leaves[0]
        if self.flat:
            return kind.build(self.meta, leaves)
        return self._fold(leaves, _build)

    def paths(self) -> list[Path]:
        """The path of each leaf."""
        found: list[Path] = []
        stack: list[tuple[Structure, tuple[Any, ...] | None]] = [(self, None)]
        while stack:
            node, trail = stack.pop()
            if node.kind is None:
                found.append(_path(trail))
                continue
            steps = node.kind.steps(node.meta, len(node.children))
            stack.extend([(c, (trail, s)) for c, s in zip(reversed(node.children), reversed(steps), strict=True)])
        return found

    def flatten_up_to(self, tree: Tree, *, what: str = "tree", other: str = "the other tree") -> list[Tree]:
        """The parts of `tree` that stand where this structure has leaves; dicts are matched by key, in any order.

        `what` and `other` name the structure's tree and this one in the message about a mismatch.
        """
        out: list[Tree] = []
        stack: list[tuple[Structure, Tree, tuple[Any, ...] | None]] = [(self, tree, None)]
        while stack:
            node, part, trail = stack.pop()
            if node.kind is None:
                out.append(part)
                continue
            parts = _children_like(node, part)
            if parts is None:
                raise ValueError(
                    f"[tree] the trees differ at {what}{_path(trail)}: {what} has {_describe(node)} there, "
                    f"{other} {_describe_tree(part)}."
                )
            steps = node.kind.steps(node.meta, len(node.children))
            stack.extend([(node.children[i], parts[i], (trail, steps[i])) for i in range(len(parts) - 1, -1, -1)])
        return out

    def __repr__(self) -> str:
        return self._fold(["*"] * self.num_leaves, _show) if self.kind is not None else "*"

    def __reduce__(self) -> tuple[Any, ...]:
        # Equivalent to the tree whose leaves are all `...`: pickles of any depth that plain containers allow.
        return (_structure_of, (self.unflatten([...] * self.num_leaves),))

    def __copy__(self) -> Structure:
        return self

    def __deepcopy__(self, memo: object) -> Structure:
        return self

    def _fold(self, leaves: Iterable[Any], build: Callable[[Structure, list[Any]], Any]) -> Any:
        """Builds from the leaves up: `build(node, values of its children)` for each container, children first."""
        program = self._program
        if program is None:
            program = self._program = _postfix(self)
        source, values = iter(leaves), []
        for node in program:
            if node is LEAF:
                values.append(next(source))
                continue
            start = len(values) - len(node.children)
            made = build(node, values[start:])
            del values[start:]
            values.append(made)
        return values.pop()


LEAF: Final = Structure(None, None, ())


def _build(node: Structure, values: list[Any]) -> Tree:
    assert node.kind is not None
    return node.kind.build(node.meta, values)


def _show(node: Structure, values: list[Any]) -> str:
    assert node.kind is not None
    return node.kind.show(node.meta, values)


def _postfix(root: Structure) -> tuple[Structure, ...]:
    """All nodes, children before parents, left to right."""
    order, stack = [], [root]
    while stack:  # parents first and right to left, then turned round
        node = stack.pop()
        order.append(node)
        stack.extend(node.children)
    return tuple(reversed(order))


def _path(trail: tuple[Any, ...] | None) -> Path:
    """The path of a linked list (rest of the trail, last step); paths are only written out when somebody wants one."""
    steps: list[Step] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    return Path(reversed(steps))


def _children_like(node: Structure, tree: Tree) -> Sequence[Tree] | None:
    """The children of `tree` in the order of `node`'s, or None if it is another kind of container."""
    kind = _kinds[type(tree)]
    if kind is None or node.kind is None or kind.family is not node.kind.family:
        return None
    children, meta = kind.open(tree)
    return node.kind.align(node.meta, len(node.children), meta, list(children))


def _describe(node: Structure) -> str:
    return "a leaf" if node.kind is None else node.kind.describe(node.meta, len(node.children))


def _describe_tree(tree: Tree) -> str:
    kind = _kinds[type(tree)]
    if kind is None:
        return f"a leaf of type {type(tree).__name__}"
    children, meta = kind.open(tree)
    return kind.describe(meta, len(list(children)))


_Key = tuple[_Kind, Any, tuple[Structure, ...]]
_RECENT_LIMIT: Final = 4096
_STRUCTURES: Interned[_Key, Structure] = Interned(_RECENT_LIMIT)
_recent = _STRUCTURES.recent


def _intern(key: _Key) -> Structure:
    """The one structure with this kind, meta value and children, for a key that is not in `_recent`."""
    return _STRUCTURES.get(key, lambda: Structure(*key))


def _structure_of(tree: Tree) -> Structure:
    return flatten(tree)[1]


# ---------------------------------------------------------------------------------------------------------------------
# Functions on trees.


def flatten(tree: Tree, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Leaf], Structure]:
    """The leaves of a tree, from left to right, and its structure; `is_leaf` can stop at a container.

    >>> flatten([1, {"a": 2}, None])
    ([1, 2], [*, {'a': *}, None])
    """
    kinds, recent = _kinds, _recent
    kind = kinds[type(tree)]
    if kind is None or (is_leaf is not None and is_leaf(tree)):
        return [tree], LEAF
    leaves: list[Leaf] = []
    below: list[Structure] = []
    stack: list[tuple[Iterator[Tree], list[Structure], _Kind, Any]] = []
    children, meta = kind.open(tree)
    rest = iter(children)
    while True:
        for child in rest:
            inner = kinds[type(child)]
            if inner is None or (is_leaf is not None and is_leaf(child)):
                leaves.append(child)
                below.append(LEAF)
                continue
            stack.append((rest, below, kind, meta))
            if len(stack) > MAX_DEPTH:
                raise ValueError(f"[flatten] containers nest deeper than {MAX_DEPTH} levels; does one contain itself?")
            kind, below = inner, []
            children, meta = kind.open(child)
            rest = iter(children)
            break
        else:
            key = (kind, meta, tuple(below))
            structure = recent.get(key) or _intern(key)
            if not stack:
                return leaves, structure
            rest, below, kind, meta = stack.pop()
            below.append(structure)


def leaves(tree: Tree, is_leaf: Callable[[Any], bool] | None = None) -> list[Leaf]:
    """The leaves of a tree, from left to right."""
    return flatten(tree, is_leaf)[0]


def leaves_with_paths(tree: Tree, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[Path, Leaf]]:
    """Each leaf with its path.

    >>> [(f"tree{path}", leaf) for path, leaf in leaves_with_paths({"layers": [1, 2]})]
    [("tree['layers'][0]", 1), ("tree['layers'][1]", 2)]
    """
    found, structure = flatten(tree, is_leaf)
    return list(zip(structure.paths(), found, strict=True))


def map(f: Callable[..., Any], tree: Tree, *rest: Tree, is_leaf: Callable[[Any], bool] | None = None) -> Tree:
    """The tree of `f(leaf, *others)`. Where `tree` has a leaf, a tree of `rest` may have anything, passed on as it is.

    >>> map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"b": [20], "a": 10})
    {'a': 11, 'b': [22]}
    """
    first, structure = flatten(tree, is_leaf)
    if not rest:
        return structure.unflatten([f(leaf) for leaf in first])
    columns = [structure.flatten_up_to(other, other=f"rest[{i}]") for i, other in enumerate(rest)]
    return structure.unflatten([f(*row) for row in zip(first, *columns, strict=True)])


def broadcast_prefix(prefix: Tree, tree: Tree, *, what: str = "prefix", other: str = "tree") -> list[Leaf]:
    """For each leaf of `tree`, the leaf of `prefix` at or above it. None is a leaf of a prefix ("not mapped").

    >>> broadcast_prefix((0, None), ({"x": "a", "y": "b"}, ["c"]))
    [0, 0, None]
    """
    out: list[Leaf] = []
    stack: list[tuple[Structure, Tree, tuple[Any, ...] | None]] = [(flatten(tree)[1], prefix, None)]
    while stack:
        node, part, trail = stack.pop()
        if part is None or _kinds[type(part)] is None:
            out.extend([part] * node.num_leaves)
            continue
        parts = _children_like(node, part)
        if parts is None or node.kind is None:
            raise ValueError(
                f"[tree] the trees differ at {what}{_path(trail)}: {what} has {_describe_tree(part)} there, "
                f"{other} {_describe(node)}."
            )
        steps = node.kind.steps(node.meta, len(node.children))
        stack.extend([(node.children[i], parts[i], (trail, steps[i])) for i in range(len(parts) - 1, -1, -1)])
    return out
