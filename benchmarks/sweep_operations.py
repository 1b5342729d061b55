"""What the cells of the sweep compute, for every peer: written once, in the words of `xp`.

These are the names of the peer's array module; where peers spell a word differently, its module of words
(`sweep_numpy.py`, `sweep_torch.py`...) has its own fastest form. Views are part of what is computed, because not every
peer has arrays that are views. A process serves one peer, and `use` says which.
"""

import importlib

import numpy as np
from sweep_cells import Cell

xp = None
"""The words of the peer: a global, as in a program of that peer's."""
WIDTH = 64
"""Columns of the other operand of a product, and hidden units of the network."""
CHOSEN = 8
"""What `topk` takes at most."""
STEPS = 20
"""Operations of the eager program."""


def use(peer):
    """Speak the words of a peer from now on."""
    global xp
    xp = importlib.import_module(f"sweep_{peer}")
    return xp


def network_loss(w, v, x):
    return xp.sum(xp.tanh(x @ w) @ v)


def logistic_loss(w, x):
    return xp.sum(xp.log1p(xp.exp(-(x @ w))))


def adam(x, gradient, m, v):
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient * gradient
    return x - 0.001 * m / (xp.sqrt(v) + 1e-8), m, v


def eager(x):
    for _ in range(STEPS // 2):
        x = xp.now(x + 1)
        x = xp.now(x * 0.5)
    return x


COMPUTED = {
    "add": lambda x, y: x + y,
    "add_row": lambda x, row: x + row,
    "add_column": lambda x, column: x + column,
    "multiply_add": lambda x, y, z: x * y + z,
    "where": lambda x, y: xp.where(x > y, x, y),
    "cast": lambda x: xp.to_other_float(x),
    "exp": lambda x: xp.exp(x),
    "gelu": lambda x: xp.gelu(x),
    "chain": lambda x, y: xp.sqrt(xp.abs(x * y + 1)) / (xp.abs(y) + 1) - x,
    "sum_last": lambda x: xp.sum(x, axis=-1),
    "sum_first": lambda x: xp.sum(x, axis=0),
    "max_last": lambda x: xp.max(x, axis=-1),
    "argmax_last": lambda x: xp.argmax(x, axis=-1),
    "variance_first": lambda x: xp.var(x, axis=0),
    "softmax": lambda x: xp.softmax(x),
    "layer_norm": lambda x, weight, bias: xp.layer_norm(x, weight, bias),
    "cumsum": lambda x: xp.cumsum(x, axis=-1),
    "sort": lambda x: xp.sort(x),
    "argsort": lambda x: xp.argsort(x),
    "partition": lambda x: xp.partition(x, x.shape[-1] // 2),
    "topk": lambda x: xp.topk(x, min(CHOSEN, x.shape[-1])),
    "permute": lambda x: xp.contiguous(xp.transpose(x)),
    "concatenate": lambda x, y: xp.concatenate([x, y], axis=-1),
    "stack": lambda x, y: xp.stack([x, y], axis=1),
    "pad": lambda x: xp.pad(x),
    "roll": lambda x: xp.roll(x, x.shape[-1] // 3, axis=-1),
    "greater": lambda x, y: x > y,
    "take_rows": lambda x, rows: xp.take(x, rows),
    "add_to_rows": lambda x, y, rows: xp.add_to_rows(x, y, rows),
    "matmul": lambda x, w: x @ w,
    "matvec": lambda x, v: x @ v,
    "small_products": lambda x, y: x @ y,
    "pairwise": lambda x, y: xp.sum((x[:, None] - y[None]) ** 2, axis=-1),
    "logistic_gradient": lambda x, w: xp.value_and_grad(lambda w: logistic_loss(w, x), w),
    "adam": adam,
    "recurrence": lambda x, a, h: xp.scan(lambda h, row: xp.tanh(a * h + row), h, x),
    "network_gradient": lambda x, w, v: xp.value_and_grad(lambda w: network_loss(w, v, x), w),
    "eager": eager,
}  # fmt: skip
UNCOMPILED = ("eager",)


def program(cell: Cell):
    """The function of a cell: its first argument is stored as `stored_shape` says, and seen through the layout."""
    computed, shape = COMPUTED[cell.operation], operand_shape(cell)
    if cell.layout == "contiguous":
        return computed
    if cell.layout == "transposed":
        return lambda stored, *others: computed(xp.transpose(stored), *others)
    if cell.layout == "broadcast":
        return lambda stored, *others: computed(xp.broadcast_to(stored, shape), *others)
    if cell.layout == "reversed":
        return lambda stored, *others: computed(xp.reversed(stored), *others)
    if len(shape) == 1:
        return lambda stored, *others: computed(stored[::2], *others)
    return lambda stored, *others: computed(stored[..., 1:-1], *others)


def operand_shape(cell: Cell):
    rows, *inner = cell.shape
    if cell.operation == "small_products":
        return (max(1, rows // inner[0]), inner[0], inner[0])
    return cell.shape


def stored_shape(cell: Cell):
    shape = operand_shape(cell)
    if cell.layout == "transposed":
        return shape[::-1]
    if cell.layout == "sliced":
        return (2 * shape[0],) if len(shape) == 1 else (*shape[:-1], shape[-1] + 2)
    if cell.layout == "broadcast":
        return (1,) if len(shape) == 1 else shape[1:]
    return shape


def operands(cell: Cell):
    """The arguments as (NumPy array, dtype): the same numbers for all peers."""
    random, shape = np.random.default_rng(len(cell.name)), operand_shape(cell)
    other = {
        "add": [shape], "where": [shape], "chain": [shape], "concatenate": [shape], "small_products": [shape],
        "pairwise": [shape], "stack": [shape], "greater": [shape], "add_to_rows": [shape], "multiply_add": [shape] * 2,
        "adam": [shape] * 3, "add_row": [shape[-1:]],
        "add_column": [(shape[0], 1)], "layer_norm": [shape[-1:]] * 2, "matmul": [(shape[-1], WIDTH)],
        "matvec": [shape[-1:]], "logistic_gradient": [shape[-1:]], "recurrence": [shape[-1:]] * 2,
        "network_gradient": [(shape[-1], WIDTH), (WIDTH,)],
    }.get(cell.operation, [])  # fmt: skip
    made = [(numbers(random, each, cell.dtype), cell.dtype) for each in (stored_shape(cell), *other)]
    if cell.operation in ("take_rows", "add_to_rows"):
        made.append((random.integers(0, shape[0], shape[0]).astype(np.int32), "int32"))
    return made


def numbers(random, shape, dtype):
    """Random numbers; bfloat16 is made of float32 by the peer."""
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.startswith("int"):
        return random.integers(-100, 100, shape).astype(dtype)
    values = random.random(shape, np.float32)
    values *= 0.9
    values += 0.05
    if dtype == "complex64":
        return (values * np.complex64(1 + 0.5j)).astype(np.complex64)
    return values if dtype == "bfloat16" else values.astype(dtype)
