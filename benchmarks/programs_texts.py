"""What `weft bench programs` computes, for every peer: small programs that people run, in the words of `xp`.

A program is a function of arrays (or lists of them) and a function that makes its arguments: the same numbers for all
peers. Nothing here is tuned for a peer: where they spell a word differently, the peer's module of words
(`programs_weft.py`, `programs_torch.py`...) has its own fastest form. A process serves one peer, and `use` says which.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

xp = None
"""The words of the peer: a global, as in a program of that peer's."""


@dataclass(frozen=True)
class Program:
    """A program, its arguments, and how far from the float64 result it may be (relative, in the 2-norm)."""

    function: Callable
    arguments: Callable
    error: float | None = 1e-4
    """None: random numbers are drawn, which differ from peer to peer."""
    compiled: bool = True


PROGRAMS: dict[str, Program] = {}


def use(peer):
    """Speak the words of a peer from now on."""
    global xp
    xp = importlib.import_module(f"programs_{peer}")
    return xp


def program(arguments, error=1e-4, compiled=True):
    """Enter a function into `PROGRAMS`; `arguments` makes its arguments of a random generator."""

    def enter(function):
        PROGRAMS[function.__name__] = Program(function, arguments, error, compiled)
        return function

    return enter


def arguments_of(name):
    """The arguments of a program: NumPy arrays, `Half` where peers shall have bfloat16, and lists of them."""
    return PROGRAMS[name].arguments(np.random.default_rng(len(name)))


@dataclass(frozen=True)
class Half:
    """An array that is bfloat16 for the peers, which make it of float32."""

    values: np.ndarray


def f32(values):
    return np.asarray(values, np.float32)


def normal(r, *shape):
    return r.standard_normal(shape, np.float32)


def uniform(r, *shape):
    return r.random(shape, np.float32)


def places(r, count, end):
    return r.integers(0, end, count).astype(np.int32)


MADE = {}
"""What a program keeps from call to call."""
MIXED = [(64, 64), (64,), (256, 64), (256,), (64, 256), (64,), (1024, 128), (128,), (512, 512), (512,)] * 6
"""Shapes of 60 parameters: two million elements."""


def tensors(r, shapes):
    return [normal(r, *shape) for shape in shapes]


# ---- statistics and inference ----


@program(lambda r: (normal(r, 20_000, 8), normal(r, 16, 8)))
def kmeans_step(x, centres):
    distances = xp.sum((x[:, None] - centres) ** 2, axis=-1)
    labels = xp.argmin(distances, axis=-1)
    sums = xp.add_at(xp.zeros_like(centres), labels, x)
    counts = xp.add_at(xp.zeros_like(centres[:, 0]), labels, xp.ones_like(x[:, 0]))
    return sums / xp.maximum(counts, xp.ones_like(counts))[:, None]


@program(lambda r: (normal(r, 20_000, 4), normal(r, 8, 4), 0.1 * normal(r, 8, 4), 0.1 * normal(r, 8)))
def mixture_step(x, means, logs, weights):
    scaled = (x[:, None] - means) * xp.exp(-logs)
    score = weights - xp.sum(logs, axis=-1) - 0.5 * xp.sum(scaled * scaled, axis=-1)
    total = xp.logsumexp(score, axis=-1)
    share = xp.exp(score - total[:, None])
    mass = xp.sum(share, axis=0)
    return xp.sum(total), mass, (share.T @ x) / mass[:, None]


@program(
    lambda r: (
        0.1 * normal(r, 500, 2), f32(np.eye(4) + 0.1 * np.eye(4, k=2)), f32(np.eye(2, 4)),
        f32(0.01 * np.eye(4)), f32(0.1 * np.eye(2)), f32(np.zeros(4)), f32(np.eye(4)),
    )
)  # fmt: skip
def kalman_filter(observed, move, look, process, noise, mean, spread):
    def step(carry, y):
        mean, spread = carry
        mean, spread = move @ mean, move @ spread @ move.T + process
        gain = spread @ look.T @ xp.inv(look @ spread @ look.T + noise)
        mean = mean + gain @ (y - look @ mean)
        return (mean, spread - gain @ look @ spread), mean

    return xp.loop(step, (mean, spread), observed)[1]


@program(lambda r: (normal(r, 1000, 16), normal(r, 16, 16), normal(r, 16)))
def hmm_forward(emitted, change, start):
    change = change - xp.logsumexp(change, axis=-1)[:, None]

    def step(alpha, row):
        alpha = xp.logsumexp(alpha[:, None] + change, axis=0) + row
        return alpha, alpha

    return xp.loop(step, start, emitted)[1]


@program(lambda r: (uniform(r, 100_000), uniform(r, 1), normal(r, 100_000, 4)), error=1e-1)
def particle_resampling(weights, start, particles):
    steps = xp.cumsum(weights / xp.sum(weights), axis=0)
    wanted = (xp.arange(len(weights), start) + start) / len(weights)
    chosen = xp.clip(xp.searchsorted(steps, wanted), 0, len(weights) - 1)
    return xp.take(particles, chosen)


@program(lambda r: (normal(r, 1000, 4), 2), error=None)
def metropolis(start, seed):
    def density(x):
        return -0.5 * xp.sum(x * x, axis=-1) - 0.1 * xp.sum(x**4, axis=-1)

    def step(x, key):
        moved = x + 0.3 * xp.normal(key, x.shape)
        odds = density(moved) - density(x)
        taken = xp.log(xp.uniform(key, odds.shape)) < odds
        x = xp.where(taken[:, None], moved, x)
        return x, xp.mean(x, axis=0)

    return xp.loop(step, start, xp.keys(seed, 200))[1]


@program(lambda r: (normal(r, 1000, 64),))
def welford(rows):
    def step(carry, row):
        count, mean, squares = carry
        count = count + 1
        change = row - mean
        mean = mean + change / count
        return (count, mean, squares + change * (row - mean)), mean

    zero = xp.zeros_like(rows[0])
    (count, _, squares), means = xp.loop(step, (zero, zero, zero), rows)
    return means, squares / (count - 1)


@program(lambda r: (normal(r, 10, 100_000), normal(r, 10, 100_000), normal(r, 100_000)), error=1e-3)
def lbfgs_direction(moves, changes, gradient):
    scale = [1 / xp.sum(moves[i] * changes[i]) for i in range(10)]
    q, alphas = gradient, {}
    for i in range(9, -1, -1):
        alphas[i] = scale[i] * xp.sum(moves[i] * q)
        q = q - alphas[i] * changes[i]
    q = q * (xp.sum(moves[9] * changes[9]) / xp.sum(changes[9] * changes[9]))
    for i in range(10):
        q = q + moves[i] * (alphas[i] - scale[i] * xp.sum(changes[i] * q))
    return -q


@program(lambda r: (f32(np.linspace(0, 3, 200)), uniform(r, 200), f32([1, 0.5, 0.2])), error=1e-3)
def gauss_newton_step(x, y, w):
    def residual(w):
        return w[0] * xp.exp(-w[1] * x) + w[2] - y

    jacobian, value = xp.jacobian(residual, w), residual(w)
    return w - xp.solve(jacobian.T @ jacobian, (jacobian.T @ value)[:, None])[:, 0]


# ---- simulation ----


@program(lambda r: (1 + 0.1 * normal(r, 1000, 3),), error=1e-2)
def lorenz_rk4(starts):
    def slope(s):
        x, y, z = s[0], s[1], s[2]
        return xp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - (8 / 3) * z])

    def step(s):
        a = slope(s)
        b = slope(s + 0.005 * a)
        c = slope(s + 0.005 * b)
        d = slope(s + 0.01 * c)
        return s + (0.01 / 6) * (a + 2.0 * b + 2.0 * c + d)

    return xp.vmap(lambda s: xp.repeat(200, step, s))(starts)


@program(lambda r: (normal(r, 1000, 3), uniform(r, 1000)))
def nbody_forces(x, mass):
    apart = x[None] - x[:, None]
    squares = xp.sum(apart * apart, axis=-1) + 1e-3
    return xp.sum(apart * (mass / (squares * xp.sqrt(squares)))[..., None], axis=1)


@program(lambda r: (r.integers(0, 2, (512, 512)).astype(np.int32),))
def game_of_life(board):
    def step(board):
        rows = board + xp.roll(board, 1, 0) + xp.roll(board, -1, 0)
        around = rows + xp.roll(rows, 1, 1) + xp.roll(rows, -1, 1) - board
        return xp.cast((around == 3) | ((board == 1) & (around == 2)), "int32")

    return xp.repeat(10, step, board)


@program(lambda r: (uniform(r, 10_000),))
def heat_1d(u):
    def step(u):
        inner = u[1:-1] + 0.25 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        return xp.concatenate([u[:1], inner, u[-1:]], axis=0)

    return xp.repeat(100, step, u)


@program(lambda r: (uniform(r, 512, 512),))
def heat_2d_rolls(u):
    def step(u):
        around = xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1)
        return u + 0.2 * (around - 4.0 * u)

    return xp.repeat(20, step, u)


@program(lambda r: (uniform(r, 64, 64, 64),))
def heat_3d_slices(u):
    def step(u):
        around = u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1]
        around = around + u[1:-1, :-2, 1:-1] + u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2]
        return xp.pad(u[1:-1, 1:-1, 1:-1] + 0.1 * (around - 6.0 * u[1:-1, 1:-1, 1:-1]))

    return xp.repeat(10, step, u)


@program(lambda r: (f32(np.linspace(-2, 1, 400))[None, :], f32(np.linspace(-1.2, 1.2, 400))[:, None]), error=5e-2)
def mandelbrot(real, imaginary):
    real, imaginary = real + 0 * imaginary, imaginary + 0 * real

    def step(carry):
        count, x, y, i = carry
        inside = x * x + y * y <= 4.0
        x, y = xp.where(inside, x * x - y * y + real, x), xp.where(inside, 2.0 * x * y + imaginary, y)
        return count + xp.cast(inside, "int32"), x, y, i + 1

    def wanted(carry):
        return carry[3] < 50

    count = xp.cast(xp.zeros_like(real), "int32")
    return xp.repeat_while(wanted, step, (count, xp.zeros_like(real), xp.zeros_like(real), xp.number(0)))[0]


# ---- counting, gathering, graphs ----


@program(lambda r: (uniform(r, 1_000_000),))
def histogram(x):
    bins = xp.clip(xp.cast(x * 256.0, "int32"), 0, 255)
    return xp.add_at(xp.cast(xp.zeros_like(x[:256]), "int32"), bins, xp.ones_like(bins))


@program(lambda r: (places(r, 100_000, 1000), uniform(r, 100_000), np.zeros(1000, np.float32)))
def weighted_bincount(labels, weights, zeros):
    return xp.add_at(zeros, labels, weights)


@program(lambda r: (normal(r, 10_000, 64), places(r, 4096, 10_000), normal(r, 4096, 64)))
def embedding_gradient(table, words, wanted):
    return xp.value_and_grad(lambda w: xp.mean((xp.take(w[0], words) - wanted) ** 2), [table])


@program(lambda r: (normal(r, 200_000), places(r, 200_000, 20_000), places(r, 200_000, 20_000), normal(r, 20_000)))
def sparse_matvec(values, rows, columns, x):
    return xp.add_at(xp.zeros_like(x), rows, values * xp.take(x, columns))


@program(lambda r: (normal(r, 10_000, 32), normal(r, 32, 32), places(r, 50_000, 10_000), places(r, 50_000, 10_000)))
def graph_layer(x, w, source, target):
    sums = xp.add_at(xp.zeros_like(x), target, xp.take(x, source))
    degree = xp.add_at(xp.zeros_like(x[:, 0]), target, xp.ones_like(target + x[0, 0]))
    mean = sums / xp.maximum(degree, xp.ones_like(degree))[:, None]
    return xp.maximum(mean @ w, xp.zeros_like(mean))


@program(lambda r: (normal(r, 512, 128, 64), places(r, 512, 128)))
def ragged_mean(x, lengths):
    mask = xp.cast(xp.arange(128, lengths)[None] <= lengths[:, None], "float32")
    return xp.sum(x * mask[..., None], axis=1) / xp.sum(mask, axis=1)[:, None]


# ---- language models ----


@program(lambda r: (normal(r, 256, 32_000), places(r, 256, 32_000)))
def cross_entropy_gradient(logits, labels):
    def loss(w):
        chosen = xp.take_along(w[0], xp.cast(labels, "int64")[:, None], -1)[:, 0]
        return xp.mean(xp.logsumexp(w[0], axis=-1) - chosen)

    return xp.value_and_grad(loss, [logits])


@program(
    lambda r: (
        normal(r, 8, 1024, 64), normal(r, 8, 1024, 64), normal(r, 8, 1, 64), normal(r, 8, 1, 64), normal(r, 8, 1, 64),
        np.array(700, np.int32),
    )
)  # fmt: skip
def cached_attention(keys, values, q, k, v, place):
    keys, values = xp.write_at(keys, k, place, 1), xp.write_at(values, v, place, 1)
    score = xp.sum(q * keys, axis=-1) * 0.125
    score = xp.where(xp.arange(1024, score)[None] <= place, score, xp.full_like(score, -1e9))
    weights = xp.softmax(score)
    return xp.sum(weights[..., None] * values, axis=1), keys, values


@program(lambda r: (normal(r, 8, 512, 64), f32(np.exp(-np.arange(32) / 4))))
def rotary_embedding(x, frequencies):
    angle = xp.arange(512, frequencies)[:, None] * frequencies
    c, s = xp.cos(angle), xp.sin(angle)
    a, b = x[..., :32], x[..., 32:]
    return xp.concatenate([a * c - b * s, a * s + b * c], axis=-1)


@program(lambda r: (normal(r, 8, 512, 64), normal(r, 512, 32), normal(r, 512, 32)))
def rotary_pairs(x, c, s):
    a, b = x[..., ::2], x[..., 1::2]
    return xp.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(8, 512, 64)


@program(lambda r: (normal(r, 2048, 512), normal(r, 2048, 512), uniform(r, 512), uniform(r, 512)))
def norm_chain(x, y, weight, bias):
    for _ in range(4):
        x = x + 0.5 * xp.layer_norm(y + x, weight, bias)
    return x


@program(lambda r: (normal(r, 8, 256, 64), normal(r, 8, 256, 64), normal(r, 8, 256, 64), f32(2.0 ** -np.arange(1, 9))))
def alibi_attention(q, k, v, slopes):
    place = xp.arange(256, slopes)
    apart = place[None] - place[:, None]
    score = q @ xp.swap_last(k) * 0.125 + slopes[:, None, None] * apart
    return xp.softmax(xp.where(apart <= 0, score, xp.full_like(score, -1e9))) @ v


@program(lambda r: (normal(r, 4, 256, 64), normal(r, 4, 256, 64), normal(r, 4, 256, 64)))
def attention_gradient(q, k, v):
    def loss(w):
        return xp.sum((xp.softmax(w[0] @ xp.swap_last(w[1]) * 0.125) @ w[2]) ** 2)

    return xp.value_and_grad(loss, [q, k, v])


@program(lambda r: (normal(r, 32, 50_000), 3), error=None)
def gumbel_sampling(logits, seed):
    noise = -xp.log(-xp.log(xp.uniform(xp.keys(seed, 1)[0], logits.shape)))
    return xp.topk(logits / 0.8 + noise, 40)


@program(lambda r: (normal(r, 4, 32_000), normal(r, 4)))
def beam_step(logits, scores):
    total = (logits - xp.logsumexp(logits, axis=-1)[:, None] + scores[:, None]).reshape(1, -1)
    return xp.sort(xp.topk(total, 8))


@program(lambda r: (Half(normal(r, 4, 151_936)),), error=2e-2)
def vocabulary_softmax(logits):
    return xp.softmax(logits / 0.7)


@program(lambda r: (normal(r, 4, 32_000),))
def nucleus_filter(logits):
    shares = xp.softmax(logits)
    ordered = -xp.sort(-shares)
    least = xp.sum(xp.where(xp.cumsum(ordered, axis=-1) < 0.9, xp.ones_like(ordered), xp.zeros_like(ordered)), axis=-1)
    bound = xp.take_along(ordered, xp.cast(least, "int64")[:, None], -1)
    return xp.where(shares >= bound, shares, xp.zeros_like(shares))


# ---- images ----


@program(lambda r: (normal(r, 16, 32, 32, 64), uniform(r, 64), uniform(r, 64)))
def group_norm(x, weight, bias):
    parts = x.reshape(16, 1024, 8, 8)
    mean = xp.mean(parts, axis=(1, 3), keepdims=True)
    spread = xp.mean((parts - mean) ** 2, axis=(1, 3), keepdims=True)
    return ((parts - mean) / xp.sqrt(spread + 1e-5)).reshape(16, 32, 32, 64) * weight + bias


@program(lambda r: (normal(r, 32, 28, 28, 64), uniform(r, 64), uniform(r, 64), normal(r, 32, 28, 28, 64)), error=1e-3)
def batch_norm_gradient(x, weight, bias, wanted):
    def loss(w):
        mean = xp.mean(w[0], axis=(0, 1, 2))
        spread = xp.mean((w[0] - mean) ** 2, axis=(0, 1, 2))
        return xp.mean(((w[0] - mean) / xp.sqrt(spread + 1e-5) * w[1] + w[2] - wanted) ** 2)

    return xp.value_and_grad(loss, [x, weight, bias])


@program(lambda r: (normal(r, 4, 56, 56, 32), normal(r, 32, 3, 3, 32), uniform(r, 32), uniform(r, 32)))
def conv_norm_relu(x, w, scale, bias):
    y = xp.conv2d(x, w) * scale + bias
    return xp.maximum(y, xp.zeros_like(y))


@program(lambda r: (uniform(r, 8, 64, 64, 3),))
def bilinear_resize(x):
    at = (xp.arange(128, x[0, 0, 0]) + 0.5) * 0.5 - 0.5
    at = xp.clip(at, 0.0, 63.0)
    low = xp.cast(at, "int32")
    high = xp.clip(low + 1, 0, 63)
    part = at - xp.cast(low, "float32")
    rows = xp.take_axis(x, low, 1) * (1 - part)[:, None, None] + xp.take_axis(x, high, 1) * part[:, None, None]
    return xp.take_axis(rows, low, 2) * (1 - part)[:, None] + xp.take_axis(rows, high, 2) * part[:, None]


@program(lambda r: (uniform(r, 256, 256, 3),))
def bicubic_resize(x):
    at = (xp.arange(400, x[0, 0]) + 0.5) * 0.64 - 0.5
    low = xp.floor(at)
    t = at - low
    weights = [
        -0.5 * t + t * t - 0.5 * t * t * t, 1 - 2.5 * t * t + 1.5 * t * t * t,
        0.5 * t + 2 * t * t - 1.5 * t * t * t, -0.5 * t * t + 0.5 * t * t * t,
    ]  # fmt: skip
    near = [xp.cast(xp.clip(low + float(i), 0.0, 255.0), "int32") for i in (-1, 0, 1, 2)]
    x = sum(xp.take_axis(x, n, 0) * w[:, None, None] for n, w in zip(near, weights, strict=True))
    return sum(xp.take_axis(x, n, 1) * w[:, None] for n, w in zip(near, weights, strict=True))


@program(lambda r: (r.integers(0, 256, (16, 224, 224, 3)).astype(np.uint8), f32([0.5, 0.4, 0.4]), f32([0.2, 0.2, 0.2])))
def image_normalization(x, mean, spread):
    return xp.contiguous(xp.move((xp.cast(x, "float32") / 255.0 - mean) / spread, -1, 1))


@program(lambda r: (uniform(r, 1024, 1024, 3),))
def colour_conversion(x):
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    y = 0.299 * r + 0.587 * g + 0.114 * b
    return xp.stack([y, 0.564 * (b - y) + 0.5, 0.713 * (r - y) + 0.5], axis=-1)


@program(
    lambda r: (
        r.integers(0, 256, (768, 1024, 4)).astype(np.uint8),
        r.integers(0, 256, (768, 1024, 3)).astype(np.uint8),
    ),
    error=1e-2,
)
def alpha_blending(front, back):
    alpha = xp.cast(front[..., 3:], "float32") / 255.0
    mixed = alpha * xp.cast(front[..., :3], "float32") + (1 - alpha) * xp.cast(back, "float32")
    return xp.cast(mixed + 0.5, "uint8")


@program(lambda r: (uniform(r, 512, 512), normal(r, 5)))
def separable_blur(x, weights):
    x = sum(weights[i] * x[:, i : 508 + i] for i in range(5))
    return sum(weights[i] * x[i : 508 + i] for i in range(5))


@program(lambda r: (uniform(r, 16, 64, 64, 32),))
def max_pool(x):
    return xp.max(x.reshape(16, 32, 2, 32, 2, 32), axis=(2, 4))


# ---- signals ----


@program(lambda r: (normal(r, 200_000), normal(r, 16)))
def fir_filter(x, taps):
    return sum(taps[i] * x[i : 200_000 - 15 + i] for i in range(16))


@program(lambda r: (normal(r, 64, 4096),))
def autocorrelation(x):
    f = xp.rfft(xp.concatenate([x, xp.zeros_like(x)], axis=-1))
    return xp.irfft(f * xp.conj(f), 8192)[:, :4096]


@program(lambda r: (normal(r, 160_000), f32(np.hanning(512))))
def spectrogram(x, window):
    starts = 160 * xp.arange(996, window)
    at = xp.cast(starts[:, None] + xp.arange(512, window), "int32")
    f = xp.rfft(xp.take(x, at.reshape(-1)).reshape(996, 512) * window)
    return xp.log(xp.abs(f) ** 2 + 1e-6)


@program(lambda r: (uniform(r, 1000, 257), uniform(r, 257, 80)))
def mel_features(power, filters):
    mel = xp.log(xp.maximum(power @ filters, xp.full_like(power[:, :80], 1e-5)))
    return (mel - xp.mean(mel, axis=0)) / (xp.sqrt(xp.mean((mel - xp.mean(mel, axis=0)) ** 2, axis=0)) + 1e-5)


@program(lambda r: (normal(r, 2000, 256), 0.9 + 0.1 * uniform(r, 2000, 256)))
def moving_average(x, keep):
    def join(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    return xp.associative_scan(join, (keep, x))[1]


# ---- geometry and linear algebra ----


@program(lambda r: (normal(r, 500_000, 4), normal(r, 500_000, 4)))
def quaternion_product(p, q):
    a, b, c, d = p[:, 0], p[:, 1], p[:, 2], p[:, 3]
    e, f, g, h = q[:, 0], q[:, 1], q[:, 2], q[:, 3]
    return xp.stack(
        [a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g, a * g - b * h + c * e + d * f,
         a * h + b * g - c * f + d * e], axis=-1,
    )  # fmt: skip


@program(lambda r: (normal(r, 20_000, 3, 3) + 4 * f32(np.eye(3)),))
def inverse_3x3(x):
    return xp.inv(x)


@program(lambda r: (normal(r, 20_000, 4, 4),))
def determinant_4x4(x):
    return xp.det(x)


@program(lambda r: (normal(r, 500, 16, 16), normal(r, 500, 16, 1)), error=1e-3)
def cholesky_solve(x, y):
    return xp.cholesky_solve(x @ xp.swap_last(x) + 4.0 * xp.eye(16, x), y)


@program(lambda r: (normal(r, 2000, 32), normal(r, 2000)), error=1e-3)
def least_squares_qr(x, y):
    q, triangle = xp.qr(x)
    return xp.solve(triangle, (q.T @ y)[:, None])[:, 0]


@program(lambda r: (normal(r, 1000, 128), normal(r, 1000, 128)))
def cosine_similarity(x, y):
    x = x / xp.sqrt(xp.sum(x * x, axis=-1))[:, None]
    y = y / xp.sqrt(xp.sum(y * y, axis=-1))[:, None]
    return x @ y.T


@program(lambda r: (normal(r, 2000, 3), normal(r, 500, 3)))
def nearest_points(x, y):
    distances = xp.sum((x[:, None] - y) ** 2, axis=-1)
    return xp.min(distances, axis=-1), xp.take(y, xp.argmin(distances, axis=-1))


# ---- derivatives of small networks ----


def network(w, x):
    return xp.tanh(xp.tanh(x @ w[0] + w[1]) @ w[2] + w[3])


def layers(r):
    return [0.3 * normal(r, 16, 32), 0.1 * normal(r, 32), 0.3 * normal(r, 32, 8), 0.1 * normal(r, 8)]


@program(lambda r: (layers(r), layers(r), normal(r, 128, 16)))
def hessian_vector_product(w, v, x):
    return xp.hvp(lambda w: xp.sum(network(w, x) ** 2), w, v)


@program(lambda r: (layers(r), normal(r, 256, 16)))
def network_jacobians(w, x):
    return xp.vmap(lambda row: xp.jacobian(lambda row: network(w, row), row))(x)


@program(lambda r: (layers(r), normal(r, 256, 16), normal(r, 256, 8)))
def per_sample_gradients(w, x, y):
    def gradient(row, wanted):
        return xp.grad(lambda w: xp.sum((network(w, row) - wanted) ** 2), w)

    return xp.vmap(gradient)(x, y)


# ---- optimizers ----


@program(lambda r: (tensors(r, MIXED), tensors(r, MIXED)))
def average_60(averages, weights):
    return [0.99 * a + 0.01 * w for a, w in zip(averages, weights, strict=True)]


@program(lambda r: (tensors(r, MIXED),))
def clip_60(gradients):
    norm = xp.sqrt(sum(xp.sum(g * g) for g in gradients))
    scale = 1.0 / xp.maximum(norm, xp.ones_like(norm))
    return [g * scale for g in gradients]


@program(
    lambda r: (tensors(r, [(16,), (4, 4)] * 100), tensors(r, [(16,), (4, 4)] * 100), tensors(r, [(16,), (4, 4)] * 100))
)
def momentum_200(weights, gradients, speeds):
    speeds = [0.9 * v + g for v, g in zip(speeds, gradients, strict=True)]
    return [w - 0.01 * v for w, v in zip(weights, speeds, strict=True)], speeds


@program(lambda r: (tensors(r, MIXED), tensors(r, MIXED), tensors(r, MIXED), [x * x for x in tensors(r, MIXED)]))
def adamw_60(weights, gradients, means, squares):
    means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
    squares = [0.999 * v + 0.001 * (g * g) for v, g in zip(squares, gradients, strict=True)]
    return [
        w * 0.9999 - 0.001 * m / (xp.sqrt(v) + 1e-8) for w, m, v in zip(weights, means, squares, strict=True)
    ], means, squares  # fmt: skip


@program(lambda r: (tensors(r, MIXED), tensors(r, MIXED)), error=None, compiled=False)
def adamw_60_in_place(weights, gradients):
    """A step as training loops write it, with the weights and the state of the optimizer in its hands."""
    if "step" not in MADE:
        MADE["step"] = xp.adamw(weights)
    return MADE["step"](gradients)


@program(lambda r: (normal(r, 256, 8), normal(r, 256), normal(r, 8)))
def adam_loop(x, y, w):
    def step(carry):
        w, m, v = carry
        g = x.T @ (x @ w - y) / 256.0
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return w - 0.05 * m / (xp.sqrt(v) + 1e-8), m, v

    return xp.repeat(200, step, (w, xp.zeros_like(w), xp.zeros_like(w)))[0]


# ---- recurrent networks ----


@program(lambda r: (0.1 * normal(r, 64, 64), normal(r, 64, 16), normal(r, 500, 16), normal(r, 64)))
def state_space_tanh(a, b, rows, start):
    def step(h, row):
        h = xp.tanh(a @ h + b @ row)
        return h, h

    return xp.loop(step, start, rows)[1]


def cells(r, gates, inputs, hidden, steps, *batch):
    weights = [0.2 * normal(r, inputs, gates * hidden), 0.1 * normal(r, hidden, gates * hidden)]
    return [*weights, 0.1 * normal(r, gates * hidden)], normal(r, steps, *batch, inputs), normal(r, *batch, hidden)


@program(lambda r: cells(r, 1, 32, 64, 200), error=1e-3)
def rnn_gradient(w, rows, start):
    def loss(w):
        def step(h, row):
            return (h := xp.tanh(row @ w[0] + h @ w[1] + w[2])), xp.sum(h)

        return xp.sum(xp.loop(step, start, rows)[1])

    return xp.value_and_grad(loss, w)


def lstm_loss(w, rows, start, hidden):
    def step(carry, row):
        h, c = carry
        z = row @ w[0] + h @ w[1] + w[2]
        i, f, g, o = (z[..., k * hidden : (k + 1) * hidden] for k in range(4))
        c = xp.sigmoid(f) * c + xp.sigmoid(i) * xp.tanh(g)
        h = xp.sigmoid(o) * xp.tanh(c)
        return (h, c), xp.sum(h)

    return xp.sum(xp.loop(step, (start, xp.zeros_like(start)), rows)[1])


@program(lambda r: cells(r, 4, 32, 64, 200), error=1e-3)
def lstm_gradient(w, rows, start):
    return xp.value_and_grad(lambda w: lstm_loss(w, rows, start, 64), w)


@program(lambda r: cells(r, 4, 64, 128, 128, 16), error=1e-3)
def lstm_batch_gradient(w, rows, start):
    return xp.value_and_grad(lambda w: lstm_loss(w, rows, start, 128), w)


@program(lambda r: cells(r, 3, 32, 64, 200, 4))
def gru(w, rows, start):
    def step(h, row):
        a, b = row @ w[0] + w[2], h @ w[1]
        reset, update = xp.sigmoid(a[..., :64] + b[..., :64]), xp.sigmoid(a[..., 64:128] + b[..., 64:128])
        fresh = xp.tanh(a[..., 128:] + reset * b[..., 128:])
        h = update * h + (1 - update) * fresh
        return h, h

    return xp.loop(step, start, rows)[1]


# ---- integers and bits ----


@program(lambda r: (normal(r, 1024, 1024),), error=1e-2)
def quantize_int8(x):
    scale = xp.max(xp.abs(x), axis=-1, keepdims=True) / 127.0
    return xp.cast(xp.clip(xp.round(x / scale), -127.0, 127.0), "int8"), scale


@program(lambda r: (r.integers(-127, 128, (1024, 1024)).astype(np.int8), uniform(r, 1024, 1)))
def dequantize_int8(codes, scale):
    return xp.cast(codes, "float32") * scale


@program(lambda r: (r.integers(0, 2, (131_072, 8)).astype(np.uint8),))
def pack_bits(bits):
    packed = bits[:, 0]
    for i in range(1, 8):
        packed = packed | (bits[:, i] << i)
    return packed


@program(lambda r: (r.integers(0, 2**31, 1_000_000).astype(np.int32),))
def popcount(v):
    v = v - ((v >> 1) & 0x55555555)
    v = (v & 0x33333333) + ((v >> 2) & 0x33333333)
    v = (v + (v >> 4)) & 0x0F0F0F0F
    return (v * 0x01010101) >> 24


@program(
    lambda r: (r.integers(-(2**31), 2**31, 256).astype(np.int32), r.integers(0, 256, (256, 1000)).astype(np.int32))
)
def crc_table(table, messages):
    def step(crc, byte):
        crc = xp.take(table, (crc ^ byte) & 255) ^ ((crc >> 8) & 0xFFFFFF)
        return crc, None

    return xp.loop(step, xp.zeros_like(messages[0]), messages)[0]


# ---- operations one by one ----


@program(lambda r: (normal(r, 64, 64),), compiled=False)
def eager_200(x):
    for _ in range(100):
        x = xp.now(x + 1.0)
        x = xp.now(x * 0.5)
    return x
