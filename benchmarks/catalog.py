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
    "earlier": ("weft.core", "weft"),
}

# name: shapes of the input (N, …, C) and the weights (O, …, C / groups), stride, padding, groups. Each is timed, and so
# are its gradients by the input ("_dx") and by the weights ("_dw").
CONVOLUTIONS = {
    "conv2d_3x3": ((8, 56, 56, 64), (64, 3, 3, 64), 1, 1, 1),
    "conv2d_3x3_stride2": ((8, 56, 56, 128), (128, 3, 3, 128), 2, 1, 1),
    "conv2d_3x3_one_image": ((1, 56, 56, 64), (64, 3, 3, 64), 1, 1, 1),
    "conv2d_3x3_odd": ((4, 40, 40, 17), (33, 3, 3, 17), 1, 1, 1),
    "conv2d_3x3_few": ((4, 40, 40, 5), (5, 3, 3, 5), 1, 1, 1),
    "conv2d_7x7_first": ((8, 224, 224, 3), (64, 7, 7, 3), 2, 3, 1),
    "conv2d_1x1": ((8, 14, 14, 256), (1024, 1, 1, 256), 1, 0, 1),
    "conv1d_speech": ((8, 3000, 80), (384, 3, 80), 1, 1, 1),
    "conv2d_depthwise": ((8, 56, 56, 64), (64, 3, 3, 1), 1, 1, 64),
    "conv2d_depthwise_stride2": ((8, 56, 56, 96), (96, 5, 5, 1), 2, 2, 96),
    "conv2d_groups_of_4": ((8, 28, 28, 128), (128, 3, 3, 4), 1, 1, 32),
}

# Names that stand for several workloads.
GROUPS = {
    "conv": ["conv2d_32x56x56x64", *[name + by for name in CONVOLUTIONS for by in ("", "_dx", "_dw")]],
}

# Small matrices: how many, and their rows.
MATRICES = ((4096, 4), (10000, 8))
KALMAN_STEPS = 1000


def never_seen(length: int, steps: int) -> Iterator[list[int]]:
    """Programs of this length, as numbers of steps: every one has all steps equally often, so all take the same work,
    in an order of its own. The first is the same in every process, so that a second process can find it in a cache on
    disk; the others are not, so that it cannot find those."""
    program = [place % steps for place in range(length)]
    while True:
        yield list(program)
        random.SystemRandom().shuffle(program)
