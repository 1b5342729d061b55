"""The workloads in MLX's words. `mx` is `weft.core`, `mlx.core`, or any module compatible with them.

A workload is a function that prepares its data and returns what is to be timed: a call that ends when its result is
there. The order is the order of the tables; `catalog.py` says what each one moves through memory.
"""

import itertools
import math

from catalog import CONVOLUTIONS, KALMAN_STEPS, MATRICES, never_seen

WORKLOADS = {}


def workload(function):
    WORKLOADS[function.__name__] = function
    return function


def call(mx, function, *arguments):
    return lambda: mx.eval(function(*arguments))


@workload
def dispatch(mx):
    """What calling a compiled function costs."""
    return call(mx, mx.compile(lambda x: x + 1.0), mx.ones((10,)))


@workload
def eager_chain(mx):
    """100 small operations, one evaluation."""
    x = mx.ones((64,))

    def run():
        y = x
        for _ in range(50):
            y = (y + 1.0) * 0.5
        mx.eval(y)

    return run


@workload
def tracing_grad_100(mx):
    """The graph of a gradient of 100 operations; nothing is computed."""
    gradient = mx.value_and_grad(_hundred(mx))
    x = mx.ones((6,))
    return lambda: gradient(x)


@workload
def tracing_jvp_100(mx):
    """The same for a tangent."""
    function, x = _hundred(mx), mx.ones((6,))
    return lambda: mx.jvp(function, [x], [x])


def _hundred(mx):
    def function(x):
        y = x
        for _ in range(25):
            y = mx.tanh(mx.sin(y) * x + 0.5)
        return mx.sum(y)

    return function


@workload
def new_graph_20(mx):
    """A program of 20 operations that nobody has seen before, on every call."""
    steps = (mx.sin, mx.exp, mx.abs, mx.tanh, lambda y: y * 0.5, lambda y: y + 1.0)
    x, programs = mx.ones((256,)), never_seen(20, len(steps))

    def run():
        order = next(programs)

        def program(y):
            for number in order:
                y = steps[number](y)
            return y

        mx.eval(mx.compile(program)(x))

    run.inner = 1  # every call is a first call: they are timed one by one
    return run


@workload
def gelu_4M(mx):
    def gelu(x):
        return 0.5 * x * (1.0 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    return call(mx, mx.compile(gelu), mx.random.normal((4 * 1024 * 1024,)))


@workload
def softmax_4096x1024(mx):
    return call(mx, mx.compile(lambda x: mx.softmax(x * 0.125, axis=-1)), mx.random.normal((4096, 1024)))


@workload
def rmsnorm_grad_2048x1024(mx):
    def loss(x, w):
        ms = mx.mean(x * x, axis=-1, keepdims=True)
        y = x / mx.sqrt(ms + 1e-6) * w
        return mx.sum(y * y)

    x, w = mx.random.normal((2048, 1024)), mx.random.normal((1024,))
    return call(mx, mx.compile(mx.grad(loss, argnums=(0, 1))), x, w)


@workload
def layernorm_unfused_2048x1024(mx):
    def norm(x, w, b):
        mu = mx.mean(x, axis=-1, keepdims=True)
        v = mx.var(x, axis=-1, keepdims=True)
        return (x - mu) * mx.rsqrt(v + 1e-5) * w + b

    x, w, b = mx.random.normal((2048, 1024)), mx.random.normal((1024,)), mx.random.normal((1024,))
    return call(mx, mx.compile(norm), x, w, b)


@workload
def reduce_cols_4096x1024(mx):
    return call(mx, mx.compile(lambda x: mx.sum(mx.abs(x) * 2.0, axis=0)), mx.random.normal((4096, 1024)))


@workload
def reversed_stride_4M(mx):
    x, y = mx.random.normal((4 * 1024 * 1024,)), mx.random.normal((4 * 1024 * 1024,))
    return call(mx, mx.compile(lambda x, y: 2.0 * x[::-1] + y * y), x, y)


@workload
def transpose_add_2048(mx):
    x, y = mx.random.normal((2048, 2048)), mx.random.normal((2048, 2048))
    return call(mx, mx.compile(lambda x, y: mx.transpose(x) + y), x, y)


@workload
def matmul_1024(mx):
    a, b = mx.random.normal((1024, 1024)), mx.random.normal((1024, 1024))
    return call(mx, mx.compile(lambda a, b: a @ b), a, b)


@workload
def mlp_train_step(mx):
    def loss(layers, x, y):
        h = x
        for w, b in layers[:-1]:
            h = mx.maximum(h @ w + b, 0.0)
        w, b = layers[-1]
        logits = h @ w + b
        logp = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return -mx.mean(mx.take_along_axis(logp, y[:, None], axis=-1))

    def step(layers, x, y):
        value, grads = mx.value_and_grad(loss)(layers, x, y)
        return value, [(w - 0.01 * dw, b - 0.01 * db) for (w, b), (dw, db) in zip(layers, grads, strict=True)]

    sizes = [784, 512, 512, 10]
    state = [[(mx.random.normal((i, o)) * 0.05, mx.zeros((o,))) for i, o in itertools.pairwise(sizes)]]
    x, y = mx.random.normal((256, 784)), mx.random.randint(0, 10, (256,))
    compiled = mx.compile(step)

    def run():
        value, state[0] = compiled(state[0], x, y)
        mx.eval(value, state[0])

    return run


def block_params(mx, d, f):
    shapes = {"wq": (d, d), "wk": (d, d), "wv": (d, d), "wo": (d, d), "w1": (d, f), "w2": (f, d)}
    weights = {name: mx.random.normal(shape) * 0.02 for name, shape in shapes.items()}
    return weights | {"g1": mx.ones((d,)), "g2": mx.ones((d,))}


def block(mx, p, x, heads):
    """One transformer block: norm, causal attention, norm, SiLU feed-forward."""
    b, t, d = x.shape

    def norm(x, gain):
        return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5) * gain

    def split(h, w):
        return mx.transpose(mx.reshape(h @ w, (b, t, heads, d // heads)), (0, 2, 1, 3))

    h = norm(x, p["g1"])
    q, k, v = split(h, p["wq"]), split(h, p["wk"]), split(h, p["wv"])
    s = (q @ mx.swapaxes(k, -1, -2)) * (1.0 / math.sqrt(d // heads))
    i = mx.arange(t)
    s = mx.where(i[:, None] >= i[None, :], s, -1e9)
    a = mx.softmax(s, axis=-1) @ v
    x = x + mx.reshape(mx.transpose(a, (0, 2, 1, 3)), (b, t, d)) @ p["wo"]
    u = norm(x, p["g2"]) @ p["w1"]
    return x + (u * mx.sigmoid(u)) @ p["w2"]


@workload
def block_fwd(mx):
    p, x = block_params(mx, 512, 2048), mx.random.normal((4, 256, 512))
    return call(mx, mx.compile(lambda p, x: block(mx, p, x, 8)), p, x)


@workload
def block_grad(mx):
    p, x = block_params(mx, 512, 2048), mx.random.normal((4, 256, 512))
    return call(mx, mx.compile(mx.grad(lambda p, x: mx.mean(mx.square(block(mx, p, x, 8))))), p, x)


def quantized(mx, rows, inputs=4096, outputs=4096, dtype="float32"):
    """4-bit weights, `rows` tokens at a time."""
    kind = getattr(mx, dtype)
    weights = mx.quantize(mx.random.normal((outputs, inputs)).astype(kind), group_size=64, bits=4)

    def product(x):
        return mx.quantized_matmul(x, *weights, transpose=True, group_size=64, bits=4)

    return call(mx, mx.compile(product), mx.random.normal((rows, inputs)).astype(kind))


@workload
def qmm4_decode_4096(mx):
    return quantized(mx, 1)


@workload
def qmm4_decode_head_1024x151936(mx):
    """The scores of all tokens of a large vocabulary."""
    return quantized(mx, 1, 1024, 151936, "bfloat16")


@workload
def qmm4_decode_8x4096(mx):
    return quantized(mx, 8)


@workload
def qmm4_prefill_64x4096(mx):
    return quantized(mx, 64)


@workload
def qmm4_experts_256x8x2048x768(mx):
    """256 tokens go to 8 of 32 experts each, in the order of the experts."""
    weights = mx.quantize(mx.random.normal((32, 768, 2048)), group_size=64, bits=4)
    chosen = mx.sort(mx.random.randint(0, 32, (256 * 8,)))

    def products(x):
        return mx.gather_qmm(
            x, *weights, rhs_indices=chosen, transpose=True, group_size=64, bits=4, sorted_indices=True
        )

    return call(mx, mx.compile(products), mx.random.normal((256 * 8, 1, 2048)))


def rnn(mx):
    """A recurrent network over 512 steps: a native loop where there is one, unrolled where there is not."""
    width, steps, batch = 64, 512, 8
    scan = getattr(mx, "scan", None)
    wh, wx = mx.random.normal((width, width)) * 0.1, mx.random.normal((width, width)) * 0.1
    h0, xs = mx.zeros((batch, width)), mx.random.normal((steps, batch, width))

    def unrolled(wh, wx, h, xs):
        total = mx.array(0.0)
        for t in range(steps):
            h = mx.tanh(h @ wh + xs[t] @ wx)
            total = total + mx.sum(h * h)
        return total

    def scanned(wh, wx, h, xs):
        def step(h, x):
            h = mx.tanh(h @ wh + x @ wx)
            return h, mx.sum(h * h)

        return mx.sum(scan(step, h, xs)[1])

    return (unrolled if scan is None else scanned), (wh, wx, h0, xs)


@workload
def rnn_scan_fwd_512(mx):
    loss, arguments = rnn(mx)
    return call(mx, mx.compile(loss), *arguments)


@workload
def rnn_scan_grad_512(mx):
    loss, arguments = rnn(mx)
    return call(mx, mx.compile(mx.grad(loss, argnums=(0, 1))), *arguments)


@workload
def logistic_logp_grad(mx):
    """Little data, many calls: the shape of Markov chain Monte Carlo."""
    x, y = mx.random.normal((1000, 20)), (mx.random.normal((1000,)) > 0).astype(mx.float32)

    def logp(beta):
        z = x @ beta
        return mx.sum(y * z - mx.logaddexp(z, 0.0)) - 0.5 * mx.sum(beta * beta)

    return call(mx, mx.compile(mx.value_and_grad(logp)), mx.random.normal((20,)))


@workload
def conv2d_32x56x56x64(mx):
    """3×3 convolution and ReLU, a batch of 8 images."""
    x, w = mx.random.normal((8, 56, 56, 64)), mx.random.normal((64, 3, 3, 64))
    return call(mx, mx.compile(lambda x, w: mx.maximum(mx.conv2d(x, w, padding=1), 0.0)), x, w)


@workload
def sort_1M(mx):
    return call(mx, mx.compile(lambda x: mx.sort(x, axis=-1)), mx.random.normal((1024, 1024)))


@workload
def cumsum_gather_1M(mx):
    x, i = mx.random.normal((1024, 1024)), mx.random.randint(0, 1024, (4096,))
    return call(mx, mx.compile(lambda x, i: mx.take(mx.cumsum(x, axis=-1), i, axis=0)), x, i)


@workload
def normal_4M(mx):
    draw = mx.compile(lambda key: mx.random.normal((4 * 1024 * 1024,), key=key))
    return call(mx, draw, mx.random.key(0))


def complex_normal(mx, *shape):
    return mx.random.normal(shape) + 1j * mx.random.normal(shape)


@workload
def fft_1M(mx):
    return call(mx, mx.compile(lambda x: mx.fft.fft(x)), complex_normal(mx, 1 << 20))


@workload
def rfft_1M(mx):
    return call(mx, mx.compile(lambda x: mx.fft.rfft(x)), mx.random.normal((1 << 20,)))


@workload
def fft2_1024(mx):
    return call(mx, mx.compile(lambda x: mx.fft.fft2(x)), complex_normal(mx, 1024, 1024))


@workload
def fft_rows_4096x257(mx):
    """Rows of a prime length."""
    return call(mx, mx.compile(lambda x: mx.fft.fft(x)), complex_normal(mx, 4096, 257))


def convolution(case, by):
    """A convolution, or its gradient by one operand."""

    def prepare(mx):
        shape, weights, stride, padding, groups = case
        x, w = mx.random.normal(shape), mx.random.normal(weights)
        convolve = mx.conv1d if len(shape) == 3 else mx.conv2d

        def f(x, w):
            return convolve(x, w, stride, padding, 1, groups)

        if by is None:
            return call(mx, mx.compile(f), x, w)
        cotangent = mx.random.normal(f(x, w).shape)

        def gradient(x, w, cotangent):
            held = (lambda x: f(x, w)) if by == 0 else (lambda w: f(x, w))
            return mx.vjp(held, [(x, w)[by]], [cotangent])[1][0]

        return call(mx, mx.compile(gradient), x, w, cotangent)

    return prepare


for name, case in CONVOLUTIONS.items():
    WORKLOADS |= {name: convolution(case, None), f"{name}_dx": convolution(case, 0), f"{name}_dw": convolution(case, 1)}


def matrices(count, n, function):
    """A function of many small matrices: positive definite ones, any, and right sides."""

    def prepare(mx):
        a, b = mx.random.normal((count, n, n)), mx.random.normal((count, n, 2))
        positive = a @ mx.swapaxes(a, -1, -2) + n * mx.eye(n)
        mx.eval(a, b, positive)
        return call(mx, mx.compile(lambda p, a, b: function(mx.linalg, p, a, b)), positive, a, b)

    return prepare


for count, n in MATRICES:
    WORKLOADS |= {
        f"cholesky_{count}x{n}": matrices(count, n, lambda linalg, p, a, b: linalg.cholesky(p)),
        f"solve_{count}x{n}": matrices(count, n, lambda linalg, p, a, b: linalg.solve(a, b)),
        f"inv_{count}x{n}": matrices(count, n, lambda linalg, p, a, b: linalg.inv(a)),
    }


@workload
def kalman_1000(mx):
    """A Kalman filter with four states and two observations."""
    move, noise = mx.eye(4) + 0.1 * mx.eye(4, k=2), 0.01 * mx.eye(4)
    seen, error = mx.eye(2, 4), 0.1 * mx.eye(2)

    def step(state, y):
        mean, cov = state
        mean, cov = move @ mean, move @ cov @ move.T + noise
        gain = mx.linalg.solve(seen @ cov @ seen.T + error, seen @ cov).T
        mean = mean + gain @ (y - seen @ mean)
        return (mean, cov - gain @ seen @ cov), mean

    observed = mx.random.normal((KALMAN_STEPS, 2))
    return call(mx, mx.compile(lambda ys: mx.scan(step, (mx.zeros(4), mx.eye(4)), ys)[1]), observed)


@workload
def quantize_4096(mx):
    return call(mx, mx.compile(lambda w: mx.quantize(w, 64, 4)), mx.random.normal((4096, 4096)))


@workload
def dequantize_4096(mx):
    parts = mx.quantize(mx.random.normal((4096, 4096)), 64, 4)
    mx.eval(parts)
    return call(mx, mx.compile(lambda *parts: mx.dequantize(*parts, 64, 4)), *parts)
