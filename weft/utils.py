"""Trees of containers, as `mlx.utils` has them: lists, tuples and dicts, with anything else at the leaves.

Paths are strings with dots, "layers.0.weight". What is a leaf can be decided by a function. Subclasses come back as
what they were where they can be made from their items: namedtuples, lists and tuples; dicts become plain dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Leaf = Callable[[Any], bool]
_NOTHING: Any = object()


def _children(tree: Any, is_leaf: Leaf | None) -> list[tuple[Any, Any]] | None:
    """(key, child) of a container; None for a leaf."""
    if is_leaf is not None and is_leaf(tree):
        return None
    if isinstance(tree, (list, tuple)):
        return list(enumerate(tree))
    return list(tree.items()) if isinstance(tree, dict) else None


def _like(tree: Any, children: list[tuple[Any, Any]]) -> Any:
    """A container of the kind of `tree`."""
    if isinstance(tree, dict):
        return dict(children)
    values = [child for _, child in children]
    return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)


def _below(path: str | None, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Leaf | None = None) -> Any:
    """The same tree with `fn(leaf, *others)` at the leaves, where the others stand at the same place in `rest`.

    >>> from weft.utils import tree_map
    >>> tree_map(lambda a, b: a + b, {"x": [1, 2]}, {"x": [10, 20]})
    {'x': [11, 22]}
    """
    children = _children(tree, is_leaf)
    if children is None:
        return fn(tree, *rest)
    return _like(
        tree, [(key, tree_map(fn, child, *[r[key] for r in rest], is_leaf=is_leaf)) for key, child in children]
    )


def tree_map_with_path(
    fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Leaf | None = None, path: Any = None
) -> Any:
    """`tree_map` with `fn(path, leaf, *others)`.

    >>> from weft.utils import tree_map_with_path
    >>> tree_map_with_path(lambda path, leaf: f"{path}={leaf}", {"x": [1, 2]})
    {'x': ['x.0=1', 'x.1=2']}
    """
    children = _children(tree, is_leaf)
    if children is None:
        return fn(path, tree, *rest)
    made = []
    for key, child in children:
        others = [r[key] for r in rest]
        made.append((key, tree_map_with_path(fn, child, *others, is_leaf=is_leaf, path=_below(path, key))))
    return _like(tree, made)


def tree_flatten(tree: Any, prefix: str = "", is_leaf: Leaf | None = None, destination: Any = None) -> Any:
    """The leaves with their paths: a list of pairs, or what is added to `destination`, a list or a dict.

    A prefix stands before every path, its first character left out.

    >>> from weft.utils import tree_flatten
    >>> tree_flatten({"x": [1, {"y": 2}]})
    [('x.0', 1), ('x.1.y', 2)]
    """
    found: list[tuple[str, Any]] | dict[str, Any] = [] if destination is None else destination
    if not isinstance(found, (list, dict)):
        raise ValueError(
            f"[tree_flatten] destination should be a list, a dictionary or None; got {type(found).__name__}."
        )
    pairs = _leaves(tree, prefix, is_leaf)
    if isinstance(found, dict):
        found.update(pairs)
    else:
        found.extend(pairs)
    return found


def _leaves(tree: Any, prefix: str, is_leaf: Leaf | None) -> Iterator[tuple[str, Any]]:
    children = _children(tree, is_leaf)
    if children is None:
        yield prefix[1:], tree
        return
    for key, child in children:
        yield from _leaves(child, f"{prefix}.{key}", is_leaf)


def tree_unflatten(tree: Any) -> Any:
    """The tree of leaves with these paths (pairs, or a dict). Where all keys are numbers it is a list, in which numbers
    that are missing are empty dicts.

    >>> from weft.utils import tree_unflatten
    >>> tree_unflatten([("x.0", 1), ("x.1.y", 2)])
    {'x': [1, {'y': 2}]}
    """
    pairs = list(tree.items() if isinstance(tree, dict) else tree)
    if len(pairs) == 1 and pairs[0][0] == "":
        return pairs[0][1]
    below: dict[str, list[tuple[str, Any]]] = {}
    for path, leaf in pairs:
        key, _, rest = path.partition(".")
        below.setdefault(key, []).append((rest, leaf))
    children = {key: tree_unflatten(part) for key, part in below.items()}
    numbers = _numbers(children)
    if numbers is None:
        return children
    made: list[Any] = [{} for _ in range(max(numbers, default=-1) + 1)]
    for number, key in numbers.items():
        made[number] = children[key]
    return made


def _numbers(keys: Iterable[str]) -> dict[int, str] | None:
    """Keys by the numbers that they are; None if one is none, or two are the same."""
    found: dict[int, str] = {}
    count = 0
    for key in keys:
        count += 1
        try:
            found[int(key)] = key
        except ValueError:
            return None
    return found if len(found) == count and all(number >= 0 for number in found) else None


def tree_reduce(fn: Callable[[Any, Any], Any], tree: Any, initializer: Any = None, is_leaf: Leaf | None = None) -> Any:
    """`fn` over all leaves, in order: fn(fn(initializer, leaf), leaf)…; without an initializer it begins with a leaf.

    >>> from weft.utils import tree_reduce
    >>> tree_reduce(lambda a, b: a + b, {"x": [1, 2], "y": 3}, 0)
    6
    """
    total = _NOTHING if initializer is None else initializer
    for _, leaf in _leaves(tree, "", is_leaf):
        total = leaf if total is _NOTHING else fn(total, leaf)
    return None if total is _NOTHING else total


def tree_merge(tree_a: Any, tree_b: Any, merge_fn: Callable[[Any, Any], Any] | None = None) -> Any:
    """What is in either tree. Leaves that are in both are merged by `merge_fn`, without which they are an error.

    >>> from weft.utils import tree_merge
    >>> tree_merge({"x": {"a": 1}}, {"x": {"b": 2}, "y": 3})
    {'x': {'a': 1, 'b': 2}, 'y': 3}
    """
    if _is_empty(tree_a) and _is_empty(tree_b):
        if type(tree_a) is not type(tree_b):
            raise ValueError(f"[tree_merge] Cannot merge {type(tree_a).__name__} with {type(tree_b).__name__}.")
        return type(tree_a)()
    if tree_a is None or _is_empty(tree_a):
        return tree_b
    if tree_b is None or _is_empty(tree_b):
        return tree_a
    if isinstance(tree_a, dict) and isinstance(tree_b, dict):
        keys = dict.fromkeys([*tree_a, *tree_b])
        return {key: tree_merge(tree_a.get(key), tree_b.get(key), merge_fn) for key in keys}
    if isinstance(tree_a, (list, tuple)) and isinstance(tree_b, (list, tuple)):
        longest = max(len(tree_a), len(tree_b))
        parts = [[*tree, *[None] * (longest - len(tree))] for tree in (tree_a, tree_b)]
        return _like(tree_a, [(i, tree_merge(a, b, merge_fn)) for i, (a, b) in enumerate(zip(*parts, strict=True))])
    if merge_fn is None:
        raise ValueError(
            "[tree_merge] both trees have a leaf at the same place, and no merge function says what to do."
        )
    return merge_fn(tree_a, tree_b)


def _is_empty(tree: Any) -> bool:
    return isinstance(tree, (dict, list, tuple)) and not tree
