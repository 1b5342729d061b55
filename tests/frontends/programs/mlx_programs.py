"""Programs as they are written for MLX, made small: mlx_programs.py folder. Writes what they find to `found.npz` there.

Each is a function with its own classes: networks, losses, training loops and loops over time as programs for MLX have
them, with data that NumPy draws. Runs on MLX and on Weft; the numbers are compared.
"""

import math
import sys
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_reduce, tree_unflatten

HERE = Path(sys.argv[1])
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def trained(model, optimizer, loss, batches):
    """The losses of a loop with a compiled step. (Adam makes large steps of gradients that are zero but for rounding,
    as those of biases before batch norms are: programs with such use SGD here.)"""
    state = [model.state, optimizer.state, mx.random.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(*batch):
        value, grads = nn.value_and_grad(model, loss)(model, *batch)
        optimizer.update(model, grads)
        return value

    losses = []
    for batch in batches:
        losses.append(step(*batch))
        mx.eval(state, losses[-1])
    return mx.stack(losses)


# ---- images ----


@program
def mnist():
    class MLP(nn.Module):
        def __init__(self, num_layers, input_dim, hidden_dim, output_dim):
            super().__init__()
            sizes = [input_dim] + [hidden_dim] * num_layers + [output_dim]
            self.layers = [nn.Linear(i, o) for i, o in zip(sizes[:-1], sizes[1:])]  # noqa: B905, RUF007

        def __call__(self, x):
            for layer in self.layers[:-1]:
                x = nn.relu(layer(x))
            return self.layers[-1](x)

    def batch_iterate(batch_size, X, y):
        perm = mx.array(np.random.default_rng(0).permutation(y.size))
        for s in range(0, y.size, batch_size):
            ids = perm[s : s + batch_size]
            yield X[ids], y[ids]

    def loss_fn(model, X, y):
        return nn.losses.cross_entropy(model(X), y, reduction="mean")

    @partial(mx.compile, inputs=None)
    def eval_fn(X, y):
        return mx.mean(mx.argmax(model(X), axis=1) == y)

    X, y = mx.array(np.abs(drawn(200, 49))), mx.array(np.random.default_rng(1).integers(0, 10, 200).astype(np.uint32))
    model = MLP(2, 49, 32, 10)
    mx.eval(model.parameters())
    losses = trained(model, optim.SGD(learning_rate=1e-1), loss_fn, batch_iterate(50, X, y))
    return {"losses": losses, "accuracy": eval_fn(X, y), "weights": model.layers[-1].weight}


@program
def cifar():
    class Block(nn.Module):
        def __init__(self, in_dims, dims, stride=1):
            super().__init__()
            self.conv1 = nn.Conv2d(in_dims, dims, kernel_size=3, stride=stride, padding=1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm(dims), nn.BatchNorm(dims)
            self.conv2 = nn.Conv2d(dims, dims, kernel_size=3, stride=1, padding=1, bias=False)
            self.shortcut = None
            if stride != 1:
                self.shortcut = lambda x: mx.pad(
                    x[:, ::2, ::2, :], [(0, 0), (0, 0), (0, 0), ((dims - in_dims) // 2, (dims - in_dims) // 2)]
                )

        def __call__(self, x):
            out = nn.relu(self.bn1(self.conv1(x)))
            out = self.bn2(self.conv2(out))
            return nn.relu(out + (x if self.shortcut is None else self.shortcut(x)))

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm(8)
            self.layer1 = nn.Sequential(Block(8, 8), Block(8, 8))
            self.layer2 = nn.Sequential(Block(8, 16, stride=2), Block(16, 16))
            self.linear = nn.Linear(16, 10)

        def __call__(self, x):
            x = nn.relu(self.bn1(self.conv1(x)))
            x = mx.mean(self.layer2(self.layer1(x)), axis=[1, 2])
            return self.linear(x.reshape(x.shape[0], -1))

        def num_params(self):
            return sum(x.size for _, x in tree_flatten(self.parameters()))

    model = ResNet()
    X, y = mx.array(drawn(4, 8, 16, 16, 3)), mx.array(np.random.default_rng(2).integers(0, 10, (4, 8)))
    loss = lambda m, x, y: mx.mean(nn.losses.cross_entropy(m(x), y))  # noqa: E731
    losses = trained(model, optim.SGD(learning_rate=1e-2, momentum=0.9), loss, zip(X, y, strict=True))
    model.eval()
    return {"losses": losses, "size": mx.array(model.num_params()), "out": model(X[0]), "mean": model.bn1.running_mean}


@program
def cvae():
    class Upsampling(nn.Module):
        def __call__(self, x, scale=2):
            B, H, W, C = x.shape
            x = mx.broadcast_to(x[:, :, None, :, None, :], (B, H, scale, W, scale, C))
            return x.reshape(B, H * scale, W * scale, C)

    class Encoder(nn.Module):
        def __init__(self, latent, shape, filters):
            super().__init__()
            self.conv1 = nn.Conv2d(shape[-1], filters // 4, 3, stride=2, padding=1)
            self.conv2 = nn.Conv2d(filters // 4, filters, 3, stride=2, padding=1)
            self.bn1, self.bn2 = nn.BatchNorm(filters // 4), nn.BatchNorm(filters)
            flat = filters * shape[0] // 4 * shape[1] // 4
            self.proj_mu, self.proj_log_var = nn.Linear(flat, latent), nn.Linear(flat, latent)

        def __call__(self, x):
            x = nn.leaky_relu(self.bn1(self.conv1(x)))
            x = mx.flatten(nn.leaky_relu(self.bn2(self.conv2(x))), 1)
            mu, sigma = self.proj_mu(x), mx.exp(self.proj_log_var(x) * 0.5)
            eps = mx.random.normal(sigma.shape)
            return eps * sigma + mu, mu, self.proj_log_var(x)

    class Decoder(nn.Module):
        def __init__(self, latent, shape, filters):
            super().__init__()
            self.input_shape = [shape[0] // 4, shape[1] // 4, filters]
            self.lin1 = nn.Linear(latent, math.prod(self.input_shape))
            self.up = Upsampling()
            self.conv1 = nn.Conv2d(filters, filters // 4, 3, padding=1)
            self.conv2 = nn.ConvTranspose2d(filters // 4, shape[-1], 4, stride=2, padding=1)
            self.bn1 = nn.BatchNorm(filters // 4)

        def __call__(self, z):
            x = self.lin1(z).reshape(-1, *self.input_shape)
            return mx.sigmoid(self.conv2(nn.leaky_relu(self.bn1(self.conv1(self.up(x))))))

    class CVAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = Encoder(4, (16, 16, 1), 16), Decoder(4, (16, 16, 1), 16)

        def __call__(self, x):
            z, mu, log_var = self.encoder(x)
            return self.decoder(z), mu, log_var

    def loss_fn(model, X):
        recon, mu, log_var = model(X)
        recon_loss = nn.losses.mse_loss(recon, X, reduction="sum")
        return recon_loss - 0.5 * mx.sum(1 + log_var - mu.square() - log_var.exp())

    model = CVAE()
    X = mx.array(1 / (1 + np.exp(-drawn(4, 8, 16, 16, 1))))
    losses = trained(model, optim.SGD(learning_rate=1e-4, momentum=0.9), loss_fn, [(x,) for x in X])
    model.save_weights(str(HERE / "cvae.npz"))
    model.eval()
    before = model.decoder(mx.zeros((2, 4)))
    again = CVAE()
    again.load_weights(str(HERE / "cvae.npz"))
    again.eval()
    return {"losses": losses, "decoded": before, "loaded": again.decoder(mx.zeros((2, 4)))}


@program
def segment_anything():
    """Windows, relative positions that are added to scores, a decoder of masks."""

    def window_partition(x, size):
        B, H, W, C = x.shape
        pad_h, pad_w = (size - H % size) % size, (size - W % size) % size
        x = mx.pad(x, ((0, 0), (0, pad_h), (0, pad_w), (0, 0)))
        Hp, Wp = H + pad_h, W + pad_w
        x = x.reshape(B, Hp // size, size, Wp // size, size, C)
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, size, size, C), (Hp, Wp)

    def window_unpartition(windows, size, padded, hw):
        (Hp, Wp), (H, W) = padded, hw
        B = windows.shape[0] // (Hp * Wp // size // size)
        x = windows.reshape(B, Hp // size, Wp // size, size, size, -1).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(B, Hp, Wp, -1)[:, :H, :W, :]

    def get_rel_pos(q_size, k_size, rel_pos):
        q_coords = mx.arange(q_size)[:, None] * max(k_size / q_size, 1.0)
        k_coords = mx.arange(k_size)[None, :] * max(q_size / k_size, 1.0)
        relative = (q_coords - k_coords) + (k_size - 1) * max(q_size / k_size, 1.0)
        return rel_pos[relative.astype(mx.int64)]

    class Attention(nn.Module):
        def __init__(self, dim, heads, size):
            super().__init__()
            self.heads, self.scale = heads, (dim // heads) ** -0.5
            self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
            self.rel_pos_h = mx.random.normal((2 * size - 1, dim // heads)) * 0.02
            self.rel_pos_w = mx.random.normal((2 * size - 1, dim // heads)) * 0.02

        def __call__(self, x):
            B, H, W, _ = x.shape
            qkv = self.qkv(x).reshape(B, H * W, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
            q, k, v = qkv.reshape(3, B * self.heads, H * W, -1)
            attn = (q * self.scale) @ k.transpose(0, 2, 1)
            rh, rw = get_rel_pos(H, H, self.rel_pos_h), get_rel_pos(W, W, self.rel_pos_w)
            r_q = q.reshape(B * self.heads, H, W, -1)
            rel_h, rel_w = mx.einsum("bhwc,hkc->bhwk", r_q, rh), mx.einsum("bhwc,wkc->bhwk", r_q, rw)
            attn = attn.reshape(B * self.heads, H, W, H, W) + rel_h[..., None] + rel_w[..., None, :]
            attn = mx.softmax(attn.reshape(B * self.heads, H * W, H * W), axis=-1)
            x = (attn @ v).reshape(B, self.heads, H, W, -1).transpose(0, 2, 3, 1, 4)
            return self.proj(x.reshape(B, H, W, -1))

    class LayerNorm2d(nn.Module):
        def __init__(self, channels, eps=1e-6):
            super().__init__()
            self.weight, self.bias, self.eps = mx.ones(channels), mx.zeros(channels), eps

        def __call__(self, x):
            u = x.mean(3, keepdims=True)
            s = ((x - u) ** 2).mean(3, keepdims=True)
            return (x - u) / mx.sqrt(s + self.eps) * self.weight + self.bias

    patches = nn.Conv2d(3, 16, kernel_size=4, stride=4)
    attention, neck = Attention(16, 2, 4), nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), LayerNorm2d(8))
    up = nn.ConvTranspose2d(8, 4, kernel_size=2, stride=2)
    gaussian = mx.random.normal((2, 4))
    image = mx.array(drawn(1, 24, 24, 3))

    def forward(image):
        x = patches(image)
        windows, padded = window_partition(x, 4)
        x = x + window_unpartition(attention(windows), 4, padded, x.shape[1:3])
        return nn.gelu(up(neck(x)))

    coords = (2 * mx.array([[[3.0, 7.0], [20.0, 11.0]]]) / 24 - 1) @ gaussian * (2 * math.pi)
    points = mx.concatenate([mx.sin(coords), mx.cos(coords)], axis=-1)
    masks = forward(image)
    scores = (points[..., :4] @ masks.reshape(1, -1, 4).transpose(0, 2, 1)).reshape(1, 2, *masks.shape[1:3])
    area = mx.sum(scores > 0, axis=(-1, -2))
    top = mx.argmax(mx.any(scores > 0, axis=-1), axis=-1)
    return {
        "masks": masks,
        "scores": scores,
        "area": area,
        "top": top,
        "slope": mx.grad(lambda i: forward(i).sum())(image),
    }


# ---- graphs, flows ----


@program
def gcn():
    class GCNLayer(nn.Module):
        def __init__(self, in_features, out_features, bias=True):
            super().__init__()
            self.linear = nn.Linear(in_features, out_features, bias)

        def __call__(self, x, adj):
            return adj @ self.linear(x)

    class GCN(nn.Module):
        def __init__(self, x_dim, h_dim, out_dim, nb_layers=2, dropout=0.5):
            super().__init__()
            sizes = [x_dim] + [h_dim] * nb_layers + [out_dim]
            self.layers = [GCNLayer(i, o) for i, o in zip(sizes[:-1], sizes[1:])]  # noqa: B905, RUF007
            self.dropout = nn.Dropout(p=dropout)

        def __call__(self, x, adj):
            for layer in self.layers[:-1]:
                x = self.dropout(nn.relu(layer(x, adj)))
            return self.layers[-1](x, adj)

    rng = np.random.default_rng(0)
    adj = np.maximum(a := (rng.random((40, 40)) < 0.1).astype(np.float32), a.T) + np.eye(40, dtype=np.float32)
    degree = np.diag(adj.sum(1) ** -0.5)
    adj = mx.array((degree @ adj @ degree).astype(np.float32))
    x, y, mask = mx.array(drawn(40, 12)), mx.array(rng.integers(0, 5, 40)), mx.arange(0, 40, 2)

    def loss_fn(model, x, adj):
        y_hat = model(x, adj)
        value = mx.mean(nn.losses.cross_entropy(y_hat[mask], y[mask]))
        return value + 5e-4 / 2 * sum(mx.sum(p**2) for _, p in tree_flatten(model.parameters())).sqrt()

    model = GCN(12, 16, 5)
    losses = trained(model, optim.Adam(learning_rate=1e-2), loss_fn, [(x, adj)] * 5)
    model.eval()
    return {"losses": losses, "out": model(x, adj), "accuracy": mx.mean(mx.argmax(model(x, adj), axis=1) == y)}


@program
def normalizing_flow():
    class AffineBijector:
        def __init__(self, shift_and_log_scale):
            self.shift, self.log_scale = shift_and_log_scale

        def forward_and_log_det(self, x):
            return x * mx.exp(self.log_scale) + self.shift, self.log_scale

        def inverse_and_log_det(self, y):
            return (y - self.shift) * mx.exp(-self.log_scale), -self.log_scale

    class Coupling:
        def __init__(self, mask, conditioner):
            self.mask, self.conditioner = mask, conditioner

        def forward_and_log_det(self, x):
            params = self.conditioner(mx.where(self.mask, 0.0, x))
            y, log_det = AffineBijector(mx.split(params, 2, axis=-1)).forward_and_log_det(x)
            return mx.where(self.mask, y, x), mx.where(self.mask, log_det, mx.zeros_like(log_det)).sum(-1)

        def inverse_and_log_det(self, y):
            params = self.conditioner(mx.where(self.mask, 0.0, y))
            x, log_det = AffineBijector(mx.split(params, 2, axis=-1)).inverse_and_log_det(y)
            return mx.where(self.mask, x, y), mx.where(self.mask, log_det, mx.zeros_like(log_det)).sum(-1)

    class RealNVP(nn.Module):
        def __init__(self, transforms, dims, hidden):
            super().__init__()
            self.mask_list = [mx.arange(dims) % 2 == i % 2 for i in range(transforms)]
            self.freeze(keys=["mask_list"], recurse=False)
            self.nets = [
                nn.Sequential(nn.Linear(dims, hidden), nn.GELU(), nn.Linear(hidden, 2 * dims))
                for _ in range(transforms)
            ]

        def log_prob(self, x):
            log_prob = mx.zeros(x.shape[0])
            for mask, net in zip(self.mask_list[::-1], self.nets[::-1], strict=True):
                x, ldj = Coupling(mask, net).inverse_and_log_det(x)
                log_prob += ldj
            return log_prob + (-0.5 * x**2 - 0.5 * math.log(2 * math.pi)).sum(-1)

        def sample(self, shape, key):
            x = mx.random.normal((*shape, 2), key=key)
            for mask, net in zip(self.mask_list, self.nets, strict=True):
                x, _ = Coupling(mask, net).forward_and_log_det(x)
            return x

    model = RealNVP(4, 2, 16)
    X = mx.array(drawn(6, 64, 2)) * mx.array([1.0, 0.3]) + 0.5
    losses = trained(model, optim.Adam(learning_rate=1e-2), lambda m, x: -mx.mean(m.log_prob(x)), [(x,) for x in X])
    samples = model.sample((16,), mx.random.key(3))
    return {"losses": losses, "samples": samples, "probabilities": model.log_prob(samples)}


# ---- text ----


@program
def transformer_lm():
    class TransformerLM(nn.Module):
        def __init__(self, vocab, layers, dims, heads, checkpoint):
            super().__init__()
            self.embedding = nn.Embedding(vocab, dims)
            self.pe = nn.SinusoidalPositionalEncoding(dims)
            self.transformer = nn.TransformerEncoder(layers, dims, heads, norm_first=True, checkpoint=checkpoint)
            self.out_proj = nn.Linear(dims, vocab)

        def __call__(self, x):
            mask = nn.MultiHeadAttention.create_additive_causal_mask(x.shape[1])
            x = self.embedding(x) + self.pe(mx.arange(x.shape[1]))
            return self.out_proj(self.transformer(x, mask))

    def loss_fn(model, x, y, reduce=True):
        losses = nn.losses.cross_entropy(model(x), y)
        return mx.mean(losses) if reduce else mx.mean(losses, axis=(-1, -2))

    tokens = np.random.default_rng(0).integers(0, 32, (5, 4, 17))
    found = {}
    for checkpoint in (False, True):
        mx.random.seed(5)
        model = TransformerLM(32, 2, 16, 2, checkpoint)
        optimizer = optim.AdamW(learning_rate=1e-2, weight_decay=1e-5)
        losses = []
        for it, rows in enumerate(tokens):
            optimizer.learning_rate = min(1, it / 3) * 1e-2
            losses.append(trained(model, optimizer, loss_fn, [(mx.array(rows[:, :-1]), mx.array(rows[:, 1:]))]))
        found[f"losses {checkpoint}"] = mx.concatenate(losses)
        found[f"rate {checkpoint}"] = optimizer.learning_rate
    return found


@program
def bert():
    class EncoderLayer(nn.Module):
        def __init__(self, dims, heads, mlp):
            super().__init__()
            self.attention = nn.MultiHeadAttention(dims, heads, bias=True)
            self.ln1, self.ln2 = nn.LayerNorm(dims, eps=1e-12), nn.LayerNorm(dims, eps=1e-12)
            self.linear1, self.linear2, self.gelu = nn.Linear(dims, mlp), nn.Linear(mlp, dims), nn.GELU()

        def __call__(self, x, mask):
            add_and_norm = self.ln1(x + self.attention(x, x, x, mask))
            return self.ln2(self.linear2(self.gelu(self.linear1(add_and_norm))) + add_and_norm)

    class Bert(nn.Module):
        def __init__(self, vocab=64, dims=32, layers=2):
            super().__init__()
            self.word, self.type, self.position = (nn.Embedding(n, dims) for n in (vocab, 2, 32))
            self.norm, self.pooler = nn.LayerNorm(dims, eps=1e-12), nn.Linear(dims, dims)
            self.encoder = [EncoderLayer(dims, 4, 64) for _ in range(layers)]

        def __call__(self, ids, types, attention_mask):
            position = mx.broadcast_to(mx.arange(ids.shape[1]), ids.shape)
            x = self.norm(self.word(ids) + self.position(position) + self.type(types))
            mask = mx.expand_dims(mx.log(attention_mask), (1, 2))
            for layer in self.encoder:
                x = layer(x, mask)
            return x, mx.tanh(self.pooler(x[:, 0]))

    ids = mx.array(np.random.default_rng(0).integers(0, 64, (2, 9)))
    mask = mx.array([[1.0] * 9, [1.0] * 5 + [0.0] * 4])
    model = Bert()
    tokens, pooled = model(ids, mx.zeros_like(ids), mask)
    half = tree_map(lambda p: p.astype(mx.float16), model.parameters())
    size = tree_reduce(lambda total, p: total + p.nbytes, half, 0)
    renamed = tree_unflatten([(k.replace("encoder", "layers"), v) for k, v in tree_flatten(model.parameters())])
    return {"tokens": tokens, "pooled": pooled, "size": mx.array(size), "kept": renamed["layers"][1]["linear1"]["bias"]}


@program
def t5_attention():
    """Buckets of relative positions, a bias of all layers, an encoder beside a decoder with a cache of both."""

    def bucket(relative_position, bidirectional, buckets=16, max_distance=32):
        found = 0
        if bidirectional:
            buckets //= 2
            found += (relative_position > 0).astype(mx.int16) * buckets
            relative_position = mx.abs(relative_position)
        else:
            relative_position = -mx.minimum(relative_position, mx.zeros_like(relative_position))
        exact = buckets // 2
        scale = (buckets - exact) / math.log(max_distance / exact)
        large = exact + (mx.log(relative_position.astype(mx.float32) / exact) * scale).astype(mx.int16)
        return found + mx.where(relative_position < exact, relative_position, mx.minimum(large, buckets - 1))

    embeddings = nn.Embedding(16, 4)
    context, memory = mx.arange(3, 12)[:, None], mx.arange(12)[None, :]
    both = bucket(memory - context, True)
    bias = embeddings(both).transpose(2, 0, 1)
    decoder = nn.TransformerDecoder(2, 16, 4, norm_first=False)
    mask = nn.MultiHeadAttention.create_additive_causal_mask(9)
    out = decoder(mx.array(drawn(2, 9, 16)), mx.array(drawn(2, 12, 16, seed=1)), mask, None)
    return {"both": both, "one": bucket(memory - context, False), "bias": bias, "out": out}


# ---- sound ----


@program
def speechcommands():
    """A keyword transformer on spectra: patches of time, a token for the class, augmentation by masks."""

    class KWT(nn.Module):
        def __init__(self, bins=20, frames=24, dims=16, classes=6):
            super().__init__()
            self.to_patch = nn.Linear(bins, dims)
            self.pos_embedding = mx.random.truncated_normal(-0.01, 0.01, (frames + 1, dims))
            self.cls_token = mx.random.truncated_normal(-0.01, 0.01, (dims,))
            self.blocks = [nn.TransformerEncoderLayer(dims, 2, 32, dropout=0.1, norm_first=False) for _ in range(2)]
            self.head = nn.Sequential(nn.LayerNorm(dims), nn.Linear(dims, classes))

        def __call__(self, x):
            x = self.to_patch(x)
            cls_token = mx.broadcast_to(self.cls_token, (x.shape[0], 1, x.shape[2]))
            x = mx.concatenate((cls_token, x), axis=1) + self.pos_embedding
            for block in self.blocks:
                x = block(x, None)
            return self.head(x[:, 0])

    def spectrum(sound, size=64, hop=20):
        frames = mx.as_strided(sound, ((sound.size - size) // hop + 1, size), (hop, 1))
        window = 0.5 - 0.5 * mx.cos(2 * math.pi * mx.arange(size) / size)
        return mx.log(mx.abs(mx.fft.rfft(frames * window))[:, :20].square() + 1e-6)

    sounds = [mx.array(drawn(64 + 23 * 20, seed=i)) for i in range(8)]
    features = mx.stack([spectrum(s) for s in sounds])
    features = (features - features.mean()) / features.std()
    labels = mx.array(np.random.default_rng(3).integers(0, 6, 8))
    model = KWT()
    loss = lambda m, x, y: nn.losses.cross_entropy(m(x), y, reduction="mean", label_smoothing=0.1)  # noqa: E731
    schedule = optim.join_schedules([optim.linear_schedule(1e-6, 1e-2, 2), optim.cosine_decay(1e-2, 4)], [2])
    losses = trained(model, optim.AdamW(learning_rate=schedule), loss, [(features, labels)] * 5)
    model.eval()
    return {"features": features, "losses": losses, "out": model(features)}


@program
def encodec():
    """Convolutions with padding of their own, an LSTM between them, residual vector quantization."""

    class Conv1d(nn.Module):
        def __init__(self, i, o, k, stride=1, dilation=1):
            super().__init__()
            self.conv = nn.Conv1d(i, o, k, stride=stride, dilation=dilation)
            self.stride, self.reach = stride, (k - 1) * dilation + 1

        def __call__(self, x):
            total = self.reach - self.stride
            frames = math.ceil((x.shape[1] - self.reach + total) / self.stride + 1) - 1
            extra = frames * self.stride + self.reach - total - x.shape[1]
            prefix, suffix = x[:, 1 : total + 1][:, ::-1], x[:, max(x.shape[1] - (extra + 1), 0) : -1][:, ::-1]
            return self.conv(mx.concatenate([prefix, x, suffix], axis=1))

    class Residual(nn.Module):
        def __init__(self, dim, dilation):
            super().__init__()
            self.block = [nn.ELU(), Conv1d(dim, dim // 2, 3, dilation=dilation), nn.ELU(), Conv1d(dim // 2, dim, 1)]

        def __call__(self, x):
            h = x
            for layer in self.block:
                h = layer(h)
            return x + h

    class Codebook(nn.Module):
        def __init__(self, size, dim):
            super().__init__()
            self.embed = mx.random.normal((size, dim))

        def encode(self, x):
            flat, embed = x.reshape(-1, x.shape[-1]), self.embed.T
            dist = -(flat.square().sum(1, keepdims=True) - 2 * flat @ embed + embed.square().sum(0, keepdims=True))
            return dist.argmax(axis=-1).reshape(*x.shape[:-1])

    encoder = nn.Sequential(Conv1d(1, 8, 7), Residual(8, 2), nn.ELU(), Conv1d(8, 16, 4, stride=2))
    lstm, decoder = nn.LSTM(16, 16), nn.ConvTranspose1d(16, 1, 4, stride=2)
    books = [Codebook(32, 16) for _ in range(3)]
    x = encoder(mx.array(drawn(2, 50, 1)))
    hidden, _ = lstm(x)
    x = hidden + x
    residual, quantized, codes = x, mx.zeros_like(x), []
    for book in books:
        codes.append(book.encode(residual))
        residual, quantized = residual - book.embed[codes[-1]], quantized + book.embed[codes[-1]]
    waves = decoder(quantized)[:, 1:-1]
    straight_through = mx.grad(lambda x: decoder(x + mx.stop_gradient(quantized - x)).square().sum())(x)
    gru, rnn = nn.GRU(16, 8), nn.RNN(16, 8)
    return {
        "codes": mx.stack(codes), "waves": waves, "slope": straight_through, "left": residual,
        "gru": gru(x), "rnn": rnn(x),
    }  # fmt: skip


@program
def whisper():
    """An encoder of spectra, a decoder with caches of both attentions, greedy decoding, times from attention."""

    class Attention(nn.Module):
        def __init__(self, dims, heads):
            super().__init__()
            self.n_head = heads
            self.query, self.key = nn.Linear(dims, dims), nn.Linear(dims, dims, bias=False)
            self.value, self.out = nn.Linear(dims, dims), nn.Linear(dims, dims)

        def __call__(self, x, xa=None, mask=None, kv_cache=None):
            q = self.query(x)
            if xa is None:
                k, v = self.key(x), self.value(x)
                if kv_cache is not None:
                    k, v = mx.concatenate([kv_cache[0], k], axis=1), mx.concatenate([kv_cache[1], v], axis=1)
            elif kv_cache is None:
                k, v = self.key(xa), self.value(xa)
            else:
                k, v = kv_cache
            n_batch, n_ctx, n_state = q.shape
            scale = (n_state // self.n_head) ** -0.25
            qh = q.reshape(*q.shape[:2], self.n_head, -1).transpose(0, 2, 1, 3) * scale
            kh = k.reshape(*k.shape[:2], self.n_head, -1).transpose(0, 2, 3, 1) * scale
            vh = v.reshape(*v.shape[:2], self.n_head, -1).transpose(0, 2, 1, 3)
            qk = qh @ kh
            if mask is not None:
                qk = qk + mask[:n_ctx, :n_ctx]
            w = mx.softmax(qk, axis=-1, precise=True)
            return self.out((w @ vh).transpose(0, 2, 1, 3).reshape(n_batch, n_ctx, n_state)), (k, v), qk

    class Block(nn.Module):
        def __init__(self, dims, heads, cross=False):
            super().__init__()
            self.attn, self.attn_ln = Attention(dims, heads), nn.LayerNorm(dims)
            self.cross_attn = Attention(dims, heads) if cross else None
            self.cross_attn_ln = nn.LayerNorm(dims) if cross else None
            self.mlp1, self.mlp2, self.mlp_ln = nn.Linear(dims, 4 * dims), nn.Linear(4 * dims, dims), nn.LayerNorm(dims)

        def __call__(self, x, xa=None, mask=None, kv_cache=None):
            kv, cross_kv = kv_cache or (None, None)
            y, kv, _ = self.attn(self.attn_ln(x), mask=mask, kv_cache=kv)
            x, cross_qk = x + y, None
            if self.cross_attn:
                y, cross_kv, cross_qk = self.cross_attn(self.cross_attn_ln(x), xa, kv_cache=cross_kv)
                x = x + y
            return x + self.mlp2(nn.gelu(self.mlp1(self.mlp_ln(x)))), (kv, cross_kv), cross_qk

    def sinusoids(length, channels, max_timescale=10000):
        increment = math.log(max_timescale) / (channels // 2 - 1)
        times = mx.arange(length)[:, None] * mx.exp(-increment * mx.arange(channels // 2))[None, :]
        return mx.concatenate([mx.sin(times), mx.cos(times)], axis=1)

    class Whisper(nn.Module):
        def __init__(self, mels=8, dims=16, vocab=48, ctx=16):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv1d(mels, dims, 3, padding=1), nn.Conv1d(dims, dims, 3, stride=2, padding=1)
            self._positional_embedding = sinusoids(20, dims)
            self.encoder, self.ln_post = [Block(dims, 2) for _ in range(2)], nn.LayerNorm(dims)
            self.token_embedding, self.ln = nn.Embedding(vocab, dims), nn.LayerNorm(dims)
            self.positional_embedding = mx.random.normal((ctx, dims)) * 0.1
            self.decoder = [Block(dims, 2, cross=True) for _ in range(2)]
            self._mask = nn.MultiHeadAttention.create_additive_causal_mask(ctx)

        def encode(self, x):
            x = nn.gelu(self.conv2(nn.gelu(self.conv1(x)))) + self._positional_embedding
            for block in self.encoder:
                x, _, _ = block(x)
            return self.ln_post(x)

        def decode(self, tokens, xa, kv_cache=None):
            offset = kv_cache[0][0][0].shape[1] if kv_cache else 0
            x = self.token_embedding(tokens) + self.positional_embedding[offset : offset + tokens.shape[-1]]
            kv_cache, cross = kv_cache or [None] * len(self.decoder), []
            for e, block in enumerate(self.decoder):
                x, kv_cache[e], qk = block(x, xa, mask=self._mask, kv_cache=kv_cache[e])
                cross.append(qk)
            return self.token_embedding.as_linear(self.ln(x)), kv_cache, cross

    model = Whisper()
    model.freeze(keys=["_mask"], strict=False)
    xa = model.encode(mx.array(drawn(1, 40, 8)))
    tokens = mx.array([[1, 2, 3]])
    logits, cache, cross = model.decode(tokens, xa)
    suppress = mx.zeros(48)
    suppress[[0, 1, 2, 3]] = -mx.inf
    for _ in range(8):
        last = mx.argmax(logits[:, -1] + suppress, axis=-1, keepdims=True)
        tokens = mx.concatenate([tokens, last], axis=-1)
        logits, cache, _ = model.decode(last, xa, cache)
        mx.eval(tokens, cache)
    whole, _, cross = model.decode(tokens, xa)
    weights = mx.softmax(mx.concatenate(cross, axis=1), axis=-1)
    mean, std = mx.mean(weights, axis=-2, keepdims=True), mx.var(weights, axis=-2, keepdims=True, ddof=0).sqrt()
    found = {"encoded": xa, "tokens": tokens, "logits": whole, "times": (weights - mean) / std}
    nn.quantize(model, 16 * 2, 4, class_predicate=lambda _, m: isinstance(m, nn.Linear) and m.weight.shape[1] % 32 == 0)
    return {**found, "quantized": model.decode(tokens, xa)[0]}


# ---- pictures from noise, two kinds of data in one space ----


@program
def stable_diffusion():
    class ResnetBlock(nn.Module):
        def __init__(self, channels, time):
            super().__init__()
            self.norm1, self.norm2 = (nn.GroupNorm(4, channels, pytorch_compatible=True) for _ in range(2))
            self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
            self.time_emb_proj = nn.Linear(time, channels)

        def __call__(self, x, temb):
            y = self.conv1(nn.silu(self.norm1(x))) + self.time_emb_proj(nn.silu(temb))[:, None, None, :]
            return x + self.conv2(nn.silu(self.norm2(y)))

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv_in, self.conv_out = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
            self.timesteps = nn.SinusoidalPositionalEncoding(16, max_freq=1, min_freq=1e-4, scale=1.0, cos_first=True)
            self.down, self.up = ResnetBlock(16, 16), ResnetBlock(16, 16)
            self.attention = nn.MultiHeadAttention(16, 2, key_input_dims=12, value_input_dims=12)
            self.shrink = nn.Conv2d(16, 16, 3, stride=2, padding=1)

        def __call__(self, x, timestep, text):
            temb = self.timesteps(timestep).astype(x.dtype)
            x = residual = self.down(self.conv_in(x), temb)
            x = self.shrink(x)
            B, H, W, C = x.shape
            x = x + self.attention(x.reshape(B, -1, C), text, text).reshape(B, H, W, C)
            x = nn.Upsample(scale_factor=2, mode="nearest")(x)
            return self.conv_out(self.up(x + residual, temb))

    unet = UNet()
    text, x_t = mx.array(drawn(2, 5, 12)), mx.array(drawn(1, 8, 8, 4, seed=1))
    sigmas = (1 - mx.cumprod(1 - mx.linspace(0.01, 0.3, 10))).sqrt() * 3

    def denoising_step(x_t, t, t_prev):
        sigma, sigma_prev = sigmas[t], sigmas[t_prev]
        eps = unet(mx.concatenate([x_t] * 2, axis=0), mx.broadcast_to(mx.array(t * 1.0), [2]), text)
        eps_text, eps_neg = eps.split(2)
        eps = eps_neg + 4.0 * (eps_text - eps_neg)
        up = mx.sqrt(mx.square(sigma_prev) * (mx.square(sigma) - mx.square(sigma_prev)) / mx.square(sigma))
        down = mx.sqrt(mx.square(sigma_prev) - mx.square(up))
        return (x_t + eps * (down - sigma)) / mx.sqrt(mx.square(sigma_prev) + 1)

    for t in range(9, 6, -1):
        x_t = denoising_step(x_t, t, t - 1)
        mx.eval(x_t)
    picture = mx.clip(x_t / 2 + 0.5, 0, 1)
    sizes = {mode: nn.Upsample(scale_factor=(1.5, 2.0), mode=mode)(picture) for mode in ("nearest", "linear", "cubic")}
    return {"x": x_t, "bytes": (picture * 255).astype(mx.uint8), **sizes}


@program
def clip():
    class Tower(nn.Module):
        def __init__(self, dims):
            super().__init__()
            self.layers = [nn.TransformerEncoderLayer(dims, 2, 32, activation=nn.gelu_fast_approx, norm_first=True)]
            self.norm = nn.LayerNorm(dims)

        def __call__(self, x, mask=None):
            for layer in self.layers:
                x = layer(x, mask)
            return self.norm(x)

    patches, text = nn.Conv2d(3, 16, 8, stride=8, bias=False), nn.Embedding(40, 16)
    towers, scale = (Tower(16), Tower(16)), mx.array(math.log(1 / 0.07))
    images, tokens = mx.array(drawn(3, 16, 16, 3)), mx.array(np.random.default_rng(1).integers(1, 40, (3, 7)))
    mask = nn.MultiHeadAttention.create_additive_causal_mask(7, mx.float32)

    def features(images, tokens):
        a = towers[0](patches(images).reshape(3, -1, 16))[:, 0]
        b = towers[1](text(tokens), mask)[mx.arange(3), tokens.argmax(-1)]
        return a / mx.linalg.norm(a, axis=-1, keepdims=True), b / mx.linalg.norm(b, axis=-1, keepdims=True)

    def loss(images):
        a, b = features(images, tokens)
        logits = a @ b.T * scale.exp()
        same = mx.arange(3)
        return (nn.losses.cross_entropy(logits, same) + nn.losses.cross_entropy(logits.T, same)).mean() / 2

    value, slope = mx.value_and_grad(loss)(images)
    each = mx.vmap(lambda a, b: (a * b).sum(), in_axes=(0, 0))(*features(images, tokens))
    return {"loss": value, "slope": slope, "each": each}


@program
def lora_and_other_trees():
    """Layers that are found, replaced, frozen and counted."""

    class LoRALinear(nn.Module):
        @staticmethod
        def from_linear(linear, rank=4):
            output_dims, input_dims = linear.weight.shape
            found = LoRALinear(input_dims, output_dims, rank)
            found.linear = linear
            return found

        def __init__(self, i, o, rank):
            super().__init__()
            self.linear, self.scale = nn.Linear(i, o), 20.0
            self.lora_a = mx.random.uniform(low=-1 / math.sqrt(i), high=1 / math.sqrt(i), shape=(i, rank))
            self.lora_b = mx.zeros(shape=(rank, o))

        def __call__(self, x):
            return self.linear(x) + self.scale * ((x @ self.lora_a) @ self.lora_b)

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8))
    model.freeze()
    found = [(k, LoRALinear.from_linear(m)) for k, m in model.named_modules() if isinstance(m, nn.Linear)]
    model.update_modules(tree_unflatten(found))
    args = SimpleNamespace(x=mx.array(drawn(32, 8)))
    loss = lambda m, x: (m(x) - x[:, ::-1]).square().mean()  # noqa: E731
    losses = trained(model, optim.Lion(learning_rate=1e-3), loss, [(args.x,)] * 5)
    unfrozen = sum(v.size for _, v in tree_flatten(model.trainable_parameters()))
    norms = mx.stack([mx.linalg.norm(v) for _, v in sorted(tree_flatten(model.parameters()))])
    return {"losses": losses, "unfrozen": mx.array(unfrozen), "norms": norms}


def main():
    found = {}
    for name, function in PROGRAMS.items():
        mx.random.seed(0)
        try:
            for key, value in function().items():
                found[f"{name}.{key}"] = value
            mx.eval(found)
        except Exception:
            print(name, traceback.format_exc(), file=sys.stderr)
            raise
    mx.savez(str(HERE / "found.npz"), **found)


main()
