"""The workloads of `workloads_mlx.py`, as someone at home in PyTorch would write them.

`compiled` is `torch.compile`, or the identity for the eager column.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from catalog import CONVOLUTIONS, MATRICES, never_seen

WORKLOADS = {}


def workload(function):
    WORKLOADS[function.__name__] = function
    return function


def call(function, *arguments):
    return lambda: function(*arguments)


def leaf(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).requires_grad_()


@workload
def dispatch(compiled):
    return call(compiled(lambda x: x + 1.0), torch.ones(10))


@workload
def eager_chain(compiled):
    x = torch.ones(64)

    def run():
        y = x
        for _ in range(50):
            y = (y + 1.0) * 0.5

    return run


@workload
def new_graph_20(compiled):
    steps = (torch.sin, torch.exp, torch.abs, torch.tanh, lambda y: y * 0.5, lambda y: y + 1.0)
    x, programs = torch.ones(256), never_seen(20, len(steps))

    def run():
        order = next(programs)
        torch._dynamo.reset()  # otherwise its limit on recompiling one function sends the later programs to eager mode

        def program(y):
            for number in order:
                y = steps[number](y)
            return y

        compiled(program)(x)

    run.inner = 1  # every call is a first call: they are timed one by one
    return run


@workload
def gelu_4M(compiled):
    def gelu(x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    return call(compiled(gelu), torch.randn(4 * 1024 * 1024))


@workload
def softmax_4096x1024(compiled):
    return call(compiled(lambda x: torch.softmax(x * 0.125, -1)), torch.randn(4096, 1024))


@workload
def rmsnorm_grad_2048x1024(compiled):
    def loss(x, w):
        ms = (x * x).mean(-1, keepdim=True)
        y = x / torch.sqrt(ms + 1e-6) * w
        return (y * y).sum()

    f, x, w = compiled(loss), leaf(2048, 1024), leaf(1024)
    return lambda: torch.autograd.grad(f(x, w), (x, w))


@workload
def layernorm_unfused_2048x1024(compiled):
    def norm(x, w, b):
        mu = x.mean(-1, keepdim=True)
        v = x.var(-1, keepdim=True, correction=0)
        return (x - mu) * torch.rsqrt(v + 1e-5) * w + b

    return call(compiled(norm), torch.randn(2048, 1024), torch.randn(1024), torch.randn(1024))


@workload
def reduce_cols_4096x1024(compiled):
    return call(compiled(lambda x: (x.abs() * 2.0).sum(0)), torch.randn(4096, 1024))


@workload
def reversed_stride_4M(compiled):
    n = 4 * 1024 * 1024
    return call(compiled(lambda x, y: 2.0 * x.flip(0) + y * y), torch.randn(n), torch.randn(n))


@workload
def transpose_add_2048(compiled):
    return call(compiled(lambda x, y: x.T + y), torch.randn(2048, 2048), torch.randn(2048, 2048))


@workload
def matmul_1024(compiled):
    return call(compiled(lambda a, b: a @ b), torch.randn(1024, 1024), torch.randn(1024, 1024))


@workload
def mlp_train_step(compiled):
    def loss(x, y, *flat):
        h = x
        for i in range(0, 4, 2):
            h = torch.relu(h @ flat[i] + flat[i + 1])
        logits = h @ flat[4] + flat[5]
        logp = logits - torch.logsumexp(logits, -1, keepdim=True)
        return -torch.gather(logp, 1, y[:, None]).mean()

    flat = []
    for i, o in itertools.pairwise([784, 512, 512, 10]):
        flat += [leaf(i, o, scale=0.05), torch.zeros(o, requires_grad=True)]
    x, y = torch.randn(256, 784), torch.randint(0, 10, (256,))
    f = compiled(loss)

    def run():
        grads = torch.autograd.grad(f(x, y, *flat), flat)
        with torch.no_grad():
            torch._foreach_add_(flat, grads, alpha=-0.01)

    return run


def block_params(d, f, trainable):
    shapes = {"wq": (d, d), "wk": (d, d), "wv": (d, d), "wo": (d, d), "w1": (d, f), "w2": (f, d)}
    weights = {name: torch.randn(*shape) * 0.02 for name, shape in shapes.items()}
    weights |= {"g1": torch.ones(d), "g2": torch.ones(d)}
    return {name: weight.requires_grad_(trainable) for name, weight in weights.items()}


def block(p, x, heads):
    b, t, d = x.shape

    def norm(x, gain):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gain

    def split(h, w):
        return (h @ w).reshape(b, t, heads, d // heads).transpose(1, 2)

    h = norm(x, p["g1"])
    q, k, v = split(h, p["wq"]), split(h, p["wk"]), split(h, p["wv"])
    s = (q @ k.transpose(-1, -2)) * (1.0 / math.sqrt(d // heads))
    i = torch.arange(t)
    s = torch.where(i[:, None] >= i[None, :], s, -1e9)
    a = torch.softmax(s, -1) @ v
    x = x + a.transpose(1, 2).reshape(b, t, d) @ p["wo"]
    u = norm(x, p["g2"]) @ p["w1"]
    return x + (u * torch.sigmoid(u)) @ p["w2"]


@workload
def block_fwd(compiled):
    return call(compiled(lambda p, x: block(p, x, 8)), block_params(512, 2048, False), torch.randn(4, 256, 512))


@workload
def block_grad(compiled):
    p, x = block_params(512, 2048, True), torch.randn(4, 256, 512)
    f = compiled(lambda p, x: block(p, x, 8).square().mean())
    return lambda: torch.autograd.grad(f(p, x), list(p.values()))


def rnn_loss(wh, wx, h, xs):
    """Never compiled: unrolling 512 steps through the compiler takes minutes."""
    total = torch.zeros(())
    for x in xs:
        h = torch.tanh(h @ wh + x @ wx)
        total = total + (h * h).sum()
    return total


def rnn_arguments(trainable):
    weights = ((torch.randn(64, 64) * 0.1).requires_grad_(trainable) for _ in range(2))
    return (*weights, torch.zeros(8, 64), torch.randn(512, 8, 64))


@workload
def rnn_scan_fwd_512(compiled):
    return call(rnn_loss, *rnn_arguments(False))


@workload
def rnn_scan_grad_512(compiled):
    arguments = rnn_arguments(True)
    return lambda: torch.autograd.grad(rnn_loss(*arguments), arguments[:2])


@workload
def logistic_logp_grad(compiled):
    x, y, beta = torch.randn(1000, 20), (torch.randn(1000) > 0).float(), leaf(20)

    def logp(beta):
        z = x @ beta
        return (y * z - torch.logaddexp(z, torch.zeros(()))).sum() - 0.5 * (beta * beta).sum()

    f = compiled(logp)
    return lambda: torch.autograd.grad(f(beta), beta)


@workload
def conv2d_32x56x56x64(compiled):
    x = torch.randn(8, 64, 56, 56).to(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 3, 3).to(memory_format=torch.channels_last)
    return call(compiled(lambda x, w: torch.relu(F.conv2d(x, w, padding=1))), x, w)


@workload
def sort_1M(compiled):
    return call(compiled(lambda x: torch.sort(x, -1)[0]), torch.randn(1024, 1024))


@workload
def cumsum_gather_1M(compiled):
    x, i = torch.randn(1024, 1024), torch.randint(0, 1024, (4096,))
    return call(compiled(lambda x, i: torch.index_select(torch.cumsum(x, -1), 0, i)), x, i)


@workload
def normal_4M(compiled):
    return compiled(lambda: torch.randn(4 * 1024 * 1024))


@workload
def fft_1M(compiled):
    return call(compiled(torch.fft.fft), torch.randn(1 << 20, dtype=torch.complex64))


@workload
def rfft_1M(compiled):
    return call(compiled(torch.fft.rfft), torch.randn(1 << 20))


@workload
def fft2_1024(compiled):
    return call(compiled(torch.fft.fft2), torch.randn(1024, 1024, dtype=torch.complex64))


@workload
def fft_rows_4096x257(compiled):
    return call(compiled(torch.fft.fft), torch.randn(4096, 257, dtype=torch.complex64))


def convolution(case, by):
    """Channels lie last, as in the other peers, which torch is fastest with, too."""

    def prepare(compiled):
        shape, weights, stride, padding, groups = case
        axes = len(shape) - 2
        x, w = torch.randn(shape).movedim(-1, 1), torch.randn(weights).movedim(-1, 1)
        convolve = F.conv1d if axes == 1 else F.conv2d
        if by is None:
            return call(compiled(lambda x, w: convolve(x, w, None, stride, padding, 1, groups)), x, w)
        cotangent = torch.randn_like(convolve(x, w, None, stride, padding, 1, groups))
        each = [[n] * axes for n in (stride, padding, 1)]
        wanted = [by == 0, by == 1, False]

        def gradient(x, w, cotangent):
            found = torch.ops.aten.convolution_backward(cotangent, x, w, None, *each, False, [0] * axes, groups, wanted)
            return found[by]

        return call(compiled(gradient), x, w, cotangent)

    return prepare


for name, case in CONVOLUTIONS.items():
    WORKLOADS |= {name: convolution(case, None), f"{name}_dx": convolution(case, 0), f"{name}_dw": convolution(case, 1)}


def matrices(count, n, function):
    def prepare(compiled):
        a, b = torch.randn(count, n, n), torch.randn(count, n, 2)
        positive = a @ a.mT + n * torch.eye(n)
        return call(compiled(function), positive, a, b)

    return prepare


for count, n in MATRICES:
    WORKLOADS |= {
        f"cholesky_{count}x{n}": matrices(count, n, lambda p, a, b: torch.linalg.cholesky(p)),
        f"solve_{count}x{n}": matrices(count, n, lambda p, a, b: torch.linalg.solve(a, b)),
        f"inv_{count}x{n}": matrices(count, n, lambda p, a, b: torch.linalg.inv(a)),
    }
