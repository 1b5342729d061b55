"""The workloads of `workloads_mlx.py`, as someone at home in JAX would write them."""

import itertools
import math

import jax
import jax.numpy as jnp
from catalog import CONVOLUTIONS, KALMAN_STEPS, MATRICES, never_seen
from jax import lax

WORKLOADS = {}
_keys = itertools.count()


def workload(function):
    WORKLOADS[function.__name__] = function
    return function


def normal(*shape):
    return jax.random.normal(jax.random.key(next(_keys)), shape)


def call(function, *arguments):
    return lambda: jax.block_until_ready(function(*arguments))


@workload
def dispatch():
    return call(jax.jit(lambda x: x + 1.0), jnp.ones((10,)))


@workload
def eager_chain():
    x = jnp.ones((64,))

    def run():
        y = x
        for _ in range(50):
            y = (y + 1.0) * 0.5
        y.block_until_ready()

    return run


@workload
def new_graph_20():
    steps = (jnp.sin, jnp.exp, jnp.abs, jnp.tanh, lambda y: y * 0.5, lambda y: y + 1.0)
    x, programs = jnp.ones((256,)), never_seen(20, len(steps))

    def run():
        order = next(programs)

        def program(y):
            for number in order:
                y = steps[number](y)
            return y

        jax.jit(program)(x).block_until_ready()

    run.inner = 1  # every call is a first call: they are timed one by one
    return run


@workload
def gelu_4M():
    def gelu(x):
        return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    return call(jax.jit(gelu), normal(4 * 1024 * 1024))


@workload
def softmax_4096x1024():
    return call(jax.jit(lambda x: jax.nn.softmax(x * 0.125, axis=-1)), normal(4096, 1024))


@workload
def rmsnorm_grad_2048x1024():
    def loss(x, w):
        ms = jnp.mean(x * x, axis=-1, keepdims=True)
        y = x / jnp.sqrt(ms + 1e-6) * w
        return jnp.sum(y * y)

    return call(jax.jit(jax.grad(loss, argnums=(0, 1))), normal(2048, 1024), normal(1024))


@workload
def layernorm_unfused_2048x1024():
    def norm(x, w, b):
        mu = jnp.mean(x, axis=-1, keepdims=True)
        v = jnp.var(x, axis=-1, keepdims=True)
        return (x - mu) * lax.rsqrt(v + 1e-5) * w + b

    return call(jax.jit(norm), normal(2048, 1024), normal(1024), normal(1024))


@workload
def reduce_cols_4096x1024():
    return call(jax.jit(lambda x: jnp.sum(jnp.abs(x) * 2.0, axis=0)), normal(4096, 1024))


@workload
def reversed_stride_4M():
    n = 4 * 1024 * 1024
    return call(jax.jit(lambda x, y: 2.0 * x[::-1] + y * y), normal(n), normal(n))


@workload
def transpose_add_2048():
    return call(jax.jit(lambda x, y: x.T + y), normal(2048, 2048), normal(2048, 2048))


@workload
def matmul_1024():
    return call(jax.jit(lambda a, b: a @ b), normal(1024, 1024), normal(1024, 1024))


@workload
def mlp_train_step():
    def loss(layers, x, y):
        h = x
        for w, b in layers[:-1]:
            h = jnp.maximum(h @ w + b, 0.0)
        w, b = layers[-1]
        logits = h @ w + b
        logp = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        return -jnp.mean(jnp.take_along_axis(logp, y[:, None], axis=-1))

    @jax.jit
    def step(layers, x, y):
        value, grads = jax.value_and_grad(loss)(layers, x, y)
        return value, jax.tree.map(lambda p, d: p - 0.01 * d, layers, grads)

    state = [[(normal(i, o) * 0.05, jnp.zeros((o,))) for i, o in itertools.pairwise([784, 512, 512, 10])]]
    x, y = normal(256, 784), jax.random.randint(jax.random.key(1), (256,), 0, 10)

    def run():
        value, state[0] = step(state[0], x, y)
        jax.block_until_ready((value, state[0]))

    return run


def block_params(d, f):
    shapes = {"wq": (d, d), "wk": (d, d), "wv": (d, d), "wo": (d, d), "w1": (d, f), "w2": (f, d)}
    weights = {name: normal(*shape) * 0.02 for name, shape in shapes.items()}
    return weights | {"g1": jnp.ones((d,)), "g2": jnp.ones((d,))}


def block(p, x, heads):
    b, t, d = x.shape

    def norm(x, gain):
        return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * gain

    def split(h, w):
        return (h @ w).reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3)

    h = norm(x, p["g1"])
    q, k, v = split(h, p["wq"]), split(h, p["wk"]), split(h, p["wv"])
    s = (q @ k.swapaxes(-1, -2)) * (1.0 / math.sqrt(d // heads))
    i = jnp.arange(t)
    s = jnp.where(i[:, None] >= i[None, :], s, -1e9)
    a = jax.nn.softmax(s, axis=-1) @ v
    x = x + a.transpose(0, 2, 1, 3).reshape(b, t, d) @ p["wo"]
    u = norm(x, p["g2"]) @ p["w1"]
    return x + (u * jax.nn.sigmoid(u)) @ p["w2"]


@workload
def block_fwd():
    return call(jax.jit(lambda p, x: block(p, x, 8)), block_params(512, 2048), normal(4, 256, 512))


@workload
def block_grad():
    grad = jax.jit(jax.grad(lambda p, x: jnp.mean(jnp.square(block(p, x, 8)))))
    return call(grad, block_params(512, 2048), normal(4, 256, 512))


def rnn():
    width, steps, batch = 64, 512, 8

    def loss(wh, wx, h0, xs):
        def step(h, x):
            h = jnp.tanh(h @ wh + x @ wx)
            return h, jnp.sum(h * h)

        return jnp.sum(lax.scan(step, h0, xs)[1])

    weights = normal(width, width) * 0.1, normal(width, width) * 0.1
    return loss, (*weights, jnp.zeros((batch, width)), normal(steps, batch, width))


@workload
def rnn_scan_fwd_512():
    loss, arguments = rnn()
    return call(jax.jit(loss), *arguments)


@workload
def rnn_scan_grad_512():
    loss, arguments = rnn()
    return call(jax.jit(jax.grad(loss, argnums=(0, 1))), *arguments)


@workload
def logistic_logp_grad():
    x, y = normal(1000, 20), (normal(1000) > 0).astype(jnp.float32)

    def logp(beta):
        z = x @ beta
        return jnp.sum(y * z - jnp.logaddexp(z, 0.0)) - 0.5 * jnp.sum(beta * beta)

    return call(jax.jit(jax.value_and_grad(logp)), normal(20))


@workload
def conv2d_32x56x56x64():
    def convolve(x, w):
        layout = ("NHWC", "OHWI", "NHWC")
        return jnp.maximum(lax.conv_general_dilated(x, w, (1, 1), [(1, 1), (1, 1)], dimension_numbers=layout), 0.0)

    return call(jax.jit(convolve), normal(8, 56, 56, 64), normal(64, 3, 3, 64))


@workload
def sort_1M():
    return call(jax.jit(lambda x: jnp.sort(x, axis=-1)), normal(1024, 1024))


@workload
def cumsum_gather_1M():
    i = jax.random.randint(jax.random.key(2), (4096,), 0, 1024)
    return call(jax.jit(lambda x, i: jnp.take(jnp.cumsum(x, axis=-1), i, axis=0)), normal(1024, 1024), i)


@workload
def normal_4M():
    return call(jax.jit(lambda key: jax.random.normal(key, (4 * 1024 * 1024,))), jax.random.key(0))


@workload
def fft_1M():
    return call(jax.jit(jnp.fft.fft), normal(1 << 20) + 1j * normal(1 << 20))


@workload
def rfft_1M():
    return call(jax.jit(jnp.fft.rfft), normal(1 << 20))


@workload
def fft2_1024():
    return call(jax.jit(jnp.fft.fft2), normal(1024, 1024) + 1j * normal(1024, 1024))


@workload
def fft_rows_4096x257():
    return call(jax.jit(jnp.fft.fft), normal(4096, 257) + 1j * normal(4096, 257))


def convolution(case, by):
    def prepare():
        shape, weights, stride, padding, groups = case
        axes, x, w = len(shape) - 2, normal(*shape), normal(*weights)
        layout = ("NHWC", "OHWI", "NHWC") if axes == 2 else ("NHC", "OHI", "NHC")

        def f(x, w):
            options = {"dimension_numbers": layout, "feature_group_count": groups}
            return lax.conv_general_dilated(x, w, (stride,) * axes, [(padding, padding)] * axes, **options)

        if by is None:
            return call(jax.jit(f), x, w)
        cotangent = normal(*jax.eval_shape(f, x, w).shape)

        def gradient(x, w, cotangent):
            held = (lambda x: f(x, w)) if by == 0 else (lambda w: f(x, w))
            return jax.vjp(held, (x, w)[by])[1](cotangent)[0]

        return call(jax.jit(gradient), x, w, cotangent)

    return prepare


for name, case in CONVOLUTIONS.items():
    WORKLOADS |= {name: convolution(case, None), f"{name}_dx": convolution(case, 0), f"{name}_dw": convolution(case, 1)}


def matrices(count, n, function):
    def prepare():
        a, b = normal(count, n, n), normal(count, n, 2)
        positive = a @ jnp.swapaxes(a, -1, -2) + n * jnp.eye(n)
        return call(jax.jit(function), positive, a, b)

    return prepare


for count, n in MATRICES:
    WORKLOADS |= {
        f"cholesky_{count}x{n}": matrices(count, n, lambda p, a, b: jnp.linalg.cholesky(p)),
        f"solve_{count}x{n}": matrices(count, n, lambda p, a, b: jnp.linalg.solve(a, b)),
        f"inv_{count}x{n}": matrices(count, n, lambda p, a, b: jnp.linalg.inv(a)),
    }


@workload
def kalman_1000():
    move, noise = jnp.eye(4) + 0.1 * jnp.eye(4, k=2), 0.01 * jnp.eye(4)
    seen, error = jnp.eye(2, 4), 0.1 * jnp.eye(2)

    def step(state, y):
        mean, cov = state
        mean, cov = move @ mean, move @ cov @ move.T + noise
        gain = jnp.linalg.solve(seen @ cov @ seen.T + error, seen @ cov).T
        mean = mean + gain @ (y - seen @ mean)
        return (mean, cov - gain @ seen @ cov), mean

    return call(jax.jit(lambda ys: lax.scan(step, (jnp.zeros(4), jnp.eye(4)), ys)[1]), normal(KALMAN_STEPS, 2))
