"""What the tables need to know of the workloads besides their code.

`TRAFFIC` holds, for workloads that memory limits, the bytes that any implementation has to move: every input read once,
every output written once. A copy of half as many bytes moves the same number, so its time is the yardstick.
"""

import random
from collections.abc import Iterator

MB = 1024 * 1024

TRAFFIC = {
    "gelu_4M": 32 * MB,
    "softmax_4096x1024": 32 * MB,
    "rmsnorm_grad_2048x1024": 16 * MB,
    "layernorm_unfused_2048x1024": 16 * MB,
    "reduce_cols_4096x1024": 16 * MB,
    "reversed_stride_4M": 48 * MB,
    "transpose_add_2048": 48 * MB,
    "qmm4_decode_4096": 10 * MB,
    "qmm4_decode_head_1024x151936": 84 * MB,
}

# What each peer is made of: the module that has to be there, and the distribution whose version is printed.
PEERS = {
    "weft": ("weft.core", "weft"),
    "mlx": ("mlx.core", "mlx"),
    "jax": ("jax", "jax"),
    "torch": ("torch", "torch"),
    "torch-eager": ("torch", "torch"),
}


def never_seen(length: int, steps: int) -> Iterator[list[int]]:
    """Programs of this length, as numbers of steps: every one has all steps equally often, so all take the same work,
    in an order of its own. The first is the same in every process, so that a second process can find it in a cache on
    disk; the others are not, so that it cannot find those."""
    program = [place % steps for place in range(length)]
    while True:
        yield list(program)
        random.SystemRandom().shuffle(program)
