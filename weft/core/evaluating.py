"""Evaluation on request."""

from __future__ import annotations

from typing import Any

from weft import tree
from weft.array import array, wrap
from weft.core.devices import StreamContext
from weft.evaluate import evaluate, evaluate_later, evaluate_one, later
from weft.graph.node import Node
from weft.primitives.base import bind
from weft.primitives.custom import Barrier
from weft.runtime.data import Buffer


def eval(*args: Any) -> None:
    """Compute all arrays in the arguments, which may be nested in lists, tuples and dicts; everything else is left
    alone.

    >>> x = array(1.0) + 1  # nothing is computed yet
    >>> eval(x)
    """
    if len(args) == 1 and args[0].__class__ is array:
        node = args[0]._node
        if node.value is None:
            rest = evaluate_one(node)
            if rest is not None:
                rest()
        return
    evaluate([leaf._node for leaf in tree.leaves(args) if isinstance(leaf, array)])


def async_eval(*args: Any) -> None:
    """Like eval, but the caller may go on while the arrays are computed. Whoever looks at one waits for it. What is
    small, or cannot be one program, is computed at once."""
    evaluate_later([leaf._node for leaf in tree.leaves(args) if isinstance(leaf, array)])


def get_array_buffer_size(*args: Any) -> int:
    """Bytes of memory behind the arrays in the arguments (nested as for eval), memory that several share counted once.
    Arrays that are not computed yet have none."""
    values = [leaf._node.value for leaf in tree.leaves(args) if isinstance(leaf, array)]
    storages = {id(v.storage): v.storage for v in values if isinstance(v, Buffer)}
    return sum(storage.nbytes for storage in storages.values())


def depends(inputs: Any, dependencies: Any) -> Any:
    """The same array or arrays, which are computed only after all of `dependencies`."""
    after = _nodes("dependencies", dependencies)
    made = [wrap(bind(Barrier(), x, *after)) for x in _nodes("inputs", inputs)]
    return made[0] if isinstance(inputs, array) else made


def _nodes(what: str, given: Any) -> list[Node]:
    """The nodes of an array, or of arrays in a list or tuple."""
    arrays = [given] if isinstance(given, array) else given
    if not isinstance(arrays, (list, tuple)) or not all(isinstance(x, array) for x in arrays):
        raise TypeError(f"[depends] {what} must be an array or a list of arrays; got {given!r}.")
    return [x._node for x in arrays]


def synchronize(stream: Any = None) -> None:
    """Wait for all work, whatever stream it is on; one that is named has to exist."""
    if stream is not None:
        StreamContext(stream)
    later.wait()
