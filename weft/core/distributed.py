"""`mx.distributed`: a world of one process, in which every reduction is what it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from weft.array import array
from weft.core._common import to_node, wrap
from weft.dtypes import Dtype

Stream = Any
_BACKENDS = ("any", "mpi", "ring", "nccl", "jaccl")
_MAKING = object()


class Group:
    """The processes that work together: this one. `init` gives it."""

    __slots__ = ()

    def __init__(self, key: object = None) -> None:
        if key is not _MAKING:
            raise TypeError("weft.core.distributed.Group: no constructor defined; init() gives the group.")

    def rank(self) -> int:
        """The number of this process."""
        return 0

    def size(self) -> int:
        """How many processes there are."""
        return 1

    def split(self, color: int, key: int = -1) -> Group:
        """A part of the group: there is none of a single process."""
        raise RuntimeError("[distributed] Cannot split the distributed group further.")


_ALONE = Group(_MAKING)


def is_available(backend: str = "any") -> bool:
    """Whether processes can be connected by a backend. None is built in yet."""
    return False


def init(
    strict: bool = False,
    backend: str = "any",
    *,
    all_gather_factory: Callable[[int, int], Callable[[bytes, int], bytes]] | None = None,
) -> Group:
    """The group of all processes. `strict` makes it an error if this is the only one.

    >>> init().size()
    1
    """
    _backend(backend)
    if strict:
        raise RuntimeError("[distributed] Couldn't initialize any backend: this process is the only one.")
    return _ALONE


def _backend(name: str) -> None:
    if name not in _BACKENDS:
        raise ValueError(
            "[distributed] The only valid values for backend are 'any', 'mpi', 'nccl', 'jaccl' and 'ring' but "
            f"'{name}' was provided."
        )


def _of_one(x: Any) -> array:
    return wrap(to_node(x))


def all_sum(x: array, *, group: Group | None = None, stream: Stream = None) -> array:
    """The sum of x over all processes."""
    return _of_one(x)


def all_max(x: array, *, group: Group | None = None, stream: Stream = None) -> array:
    """The maximum of x over all processes."""
    return _of_one(x)


def all_min(x: array, *, group: Group | None = None, stream: Stream = None) -> array:
    """The minimum of x over all processes."""
    return _of_one(x)


def all_gather(x: array, *, group: Group | None = None, stream: Stream = None) -> array:
    """The x of all processes, one after the other along the first axis."""
    return _of_one(x)


def sum_scatter(x: array, *, group: Group | None = None, stream: Stream = None) -> array:
    """This process's share, along the first axis, of the sum of x over all of them."""
    return _of_one(x)


def send(x: array, dst: int, *, group: Group | None = None, stream: Stream = None) -> NoReturn:
    """Send x to another process."""
    raise ValueError("[distributed] Cannot send to a singleton group.")


def recv(
    shape: Sequence[int], dtype: Dtype, src: int, *, group: Group | None = None, stream: Stream = None
) -> NoReturn:
    """Receive an array from another process."""
    raise ValueError("[distributed] Cannot recv from a singleton group.")


def recv_like(x: array, src: int, *, group: Group | None = None, stream: Stream = None) -> NoReturn:
    """Receive an array of the shape and dtype of x from another process."""
    raise ValueError("[distributed] Cannot recv from a singleton group.")
