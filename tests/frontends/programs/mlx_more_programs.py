"""More programs as they are written for MLX, made small: mlx_more_programs.py folder. Writes what they find to
`found.npz` there.

Learning by playing, two networks that learn from each other, recurrent networks, and networks that generate: text from
text, sound from text, text from images. Runs on MLX and on Weft; the numbers are compared.
"""

import math
import sys
import traceback
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

HERE = Path(sys.argv[1])
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ---- networks that learn from each other, and by playing ----


@program
def gan():
    """A generator and a discriminator in turns, each with its own compiled step, labels smoothed."""

    class Generator(nn.Module):
        def __init__(self, latent):
            super().__init__()
            self.start = nn.Linear(latent, 4 * 4 * 16)
            self.norm = nn.BatchNorm(16)
            self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
            self.out = nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)

        def __call__(self, z):
            x = self.start(z).reshape(-1, 4, 4, 16)
            x = nn.leaky_relu(self.norm(x), 0.2)
            x = nn.leaky_relu(self.up(x), 0.2)
            return mx.tanh(self.out(x))

    class Discriminator(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.Conv2d(8, 16, 4, stride=2, padding=1)]
            self.out = nn.Linear(4 * 4 * 16, 1)

        def __call__(self, x):
            for layer in self.layers:
                x = nn.leaky_relu(layer(x), 0.2)
            return self.out(x.flatten(1)).squeeze(-1)

    generator, discriminator = Generator(6), Discriminator()
    ours = optim.Adam(learning_rate=2e-4, betas=[0.5, 0.999])
    theirs = optim.Adam(learning_rate=optim.cosine_decay(2e-4, 20), betas=[0.5, 0.999])

    def deceived(generator, discriminator, z):
        verdict = discriminator(generator(z))
        return nn.losses.binary_cross_entropy(verdict, mx.ones_like(verdict))

    def told_apart(discriminator, generator, images, z):
        real, made = discriminator(images), discriminator(mx.stop_gradient(generator(z)))
        return (
            nn.losses.binary_cross_entropy(real, mx.full(real.shape, 0.9))
            + nn.losses.binary_cross_entropy(made, mx.zeros_like(made))
        ) / 2

    state = [generator.state, discriminator.state, ours.state, theirs.state, mx.random.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(images):
        z = mx.random.normal((images.shape[0], 6))
        first, grads = nn.value_and_grad(discriminator, told_apart)(discriminator, generator, images, z)
        theirs.update(discriminator, grads)
        z = mx.random.normal((images.shape[0], 6))
        second, grads = nn.value_and_grad(generator, deceived)(generator, discriminator, z)
        ours.update(generator, grads)
        return first, second

    losses = []
    for i in range(4):
        images = mx.array(np.tanh(drawn(8, 16, 16, 1, seed=i)))
        losses.append(mx.stack(step(images)))
        mx.eval(state, losses)
    generator.eval()
    return {"losses": mx.stack(losses), "image": generator(mx.array(drawn(1, 6, seed=9)))}


@program
def dqn():
    """A pole on a cart, played with a network that follows another one, from a memory of moves."""

    class Cart:
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def reset(self):
            self.state = self.rng.uniform(-0.05, 0.05, 4)
            return self.state.astype(np.float32)

        def step(self, action):
            x, v, angle, spin = self.state
            push = 10.0 if action == 1 else -10.0
            part = (push + 0.05 * spin**2 * math.sin(angle)) / 1.1
            turn = 9.8 * math.sin(angle) - math.cos(angle) * part
            turn /= 0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
            pull = part - 0.05 * turn * math.cos(angle) / 1.1
            self.state = np.array([x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn])
            fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
            return self.state.astype(np.float32), 1.0, fallen

    class Values(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.value, self.advantage = nn.Linear(32, 1), nn.Linear(32, 2)

        def __call__(self, x):
            x = self.body(x)
            advantage = self.advantage(x)
            return self.value(x) + advantage - advantage.mean(-1, keepdims=True)

    values, target = Values(), Values()
    target.update(values.parameters())
    target.freeze()
    optimizer = optim.AdamW(learning_rate=1e-3)
    rng, memory, cart = np.random.default_rng(1), deque(maxlen=200), Cart()

    def loss(model, states, actions, rewards, following, over):
        best = mx.argmax(model(following), axis=-1, keepdims=True)
        ahead = mx.take_along_axis(target(following), best, axis=-1).squeeze(-1)
        aim = mx.stop_gradient(rewards + 0.99 * ahead * (1 - over))
        chosen = mx.take_along_axis(model(states), actions[:, None], axis=-1).squeeze(-1)
        return nn.losses.huber_loss(chosen, aim, reduction="mean")

    loss_and_grad = nn.value_and_grad(values, loss)
    state, losses, actions = cart.reset(), [], []
    for i in range(60):
        chance = max(0.1, 1 - i / 40)
        if rng.random() < chance:
            action = int(rng.integers(2))
        else:
            action = mx.argmax(values(mx.array(state)[None])[0]).item()
        following, reward, over = cart.step(action)
        memory.append((state, action, reward, following, float(over)))
        actions.append(action)
        state = cart.reset() if over else following
        if len(memory) >= 16 and i % 2:
            batch = [memory[k] for k in rng.integers(len(memory), size=16)]
            parts = [mx.array(np.stack([np.asarray(b[k]) for b in batch])) for k in range(5)]
            parts[2], parts[4] = parts[2].astype(mx.float32), parts[4].astype(mx.float32)
            value, grads = loss_and_grad(values, *parts)
            grads, _ = optim.clip_grad_norm(grads, 10.0)
            optimizer.update(values, grads)
            mixed = tree_map(lambda a, b: 0.95 * a + 0.05 * b, target.parameters(), values.parameters())
            target.update(mixed)
            mx.eval(values.parameters(), optimizer.state, target.parameters())
            losses.append(value)
    return {"losses": mx.stack(losses), "actions": mx.array(actions)}


@program
def ppo():
    """Continuous actions: returns from the back, clipped ratios, several epochs of parts in a random order."""

    class ActorCritic(nn.Module):
        def __init__(self, observations, actions):
            super().__init__()
            first = nn.init.orthogonal(math.sqrt(2.0)) if hasattr(nn.init, "orthogonal") else nn.init.he_uniform()
            self.actor = [nn.Linear(observations, 16), nn.Linear(16, 16), nn.Linear(16, actions)]
            self.critic = [nn.Linear(observations, 16), nn.Linear(16, 16), nn.Linear(16, 1)]
            for layer in self.actor + self.critic:
                layer.weight = first(mx.zeros_like(layer.weight))
            self.log_std = mx.zeros((actions,))

        @staticmethod
        def through(layers, x):
            for layer in layers[:-1]:
                x = mx.tanh(layer(x))
            return layers[-1](x)

        def __call__(self, x):
            return self.through(self.actor, x), self.through(self.critic, x).squeeze(-1)

        def log_prob(self, mean, actions):
            scaled = (actions - mean) * mx.exp(-self.log_std)
            return (-0.5 * scaled**2 - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    model = ActorCritic(3, 2)
    optimizer = optim.Adam(learning_rate=optim.linear_schedule(3e-4, 1e-5, 40), eps=1e-5)

    def loss(model, seen, actions, before, returns, advantages):
        mean, values = model(seen)
        ratio = mx.exp(model.log_prob(mean, actions) - before)
        advantages = (advantages - advantages.mean()) / (mx.sqrt(advantages.var()) + 1e-8)
        policy = -mx.minimum(ratio * advantages, mx.clip(ratio, 0.8, 1.2) * advantages).mean()
        entropy = (model.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return policy + 0.5 * ((values - returns) ** 2).mean() - 0.01 * entropy, ratio.max()

    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(*batch):
        (value, largest), grads = nn.value_and_grad(model, loss)(model, *batch)
        grads, norm = optim.clip_grad_norm(grads, 0.5)
        optimizer.update(model, grads)
        return mx.stack([value, largest, norm])

    found = []
    for _ in range(2):
        place, rows = mx.array([0.5, -0.5, 0.1]), []
        for _ in range(24):
            mean, value = model(place[None])
            action = mean + mx.exp(model.log_std) * mx.random.normal(mean.shape)
            before = model.log_prob(mean, action)
            reward = -mx.square(place).sum() - 0.01 * mx.square(action).sum()
            rows.append((place, action[0], before[0], value[0], reward))
            turn = mx.array([[0.9, 0.1, 0.0], [-0.1, 0.9, 0.1], [0.0, 0.0, 0.8]])
            place = turn @ place + mx.concatenate([0.1 * mx.tanh(action[0]), mx.zeros(1)])
            mx.eval(rows[-1], place)
        seen, actions, before, values, rewards = (mx.stack(column) for column in zip(*rows, strict=True))
        advantages, last, ahead = [0.0] * 24, mx.array(0.0), model(place[None])[1][0]
        for i in reversed(range(24)):
            delta = rewards[i] + 0.99 * ahead - values[i]
            advantages[i] = last = delta + 0.99 * 0.95 * last
            ahead = values[i]
        advantages = mx.stack(advantages)
        for _ in range(2):
            order = mx.random.permutation(24)
            for part in mx.split(order, 3):
                found.append(
                    step(seen[part], actions[part], before[part], (advantages + values)[part], advantages[part])
                )
                mx.eval(state, found[-1])
    return {"found": mx.stack(found), "log_std": model.log_std}


# ---- over time ----


@program
def recurrent():
    """Letters from letters with an RNN, a GRU, and an LSTM on top of it; then a letter at a time with their states."""

    class Model(nn.Module):
        def __init__(self, letters, dims):
            super().__init__()
            self.embed = nn.Embedding(letters, dims)
            self.rnn, self.gru, self.lstm = nn.RNN(dims, dims), nn.GRU(dims, dims), nn.LSTM(dims, dims)
            self.drop = nn.Dropout(0.1)

        def __call__(self, x, state=(None, None, None, None)):
            a = self.rnn(self.embed(x), state[0])
            b = self.gru(a, state[1])
            c, d = self.lstm(self.drop(b), state[2], state[3])
            return self.embed.as_linear(c), (a[..., -1, :], b[..., -1, :], c[..., -1, :], d[..., -1, :])

    model = Model(20, 16)
    optimizer = optim.RMSprop(learning_rate=1e-3)
    text = np.random.default_rng(3).integers(20, size=(4, 13))

    def loss(model, x):
        logits, _ = model(x[:, :-1])
        return nn.losses.cross_entropy(logits, x[:, 1:], label_smoothing=0.1).mean()

    losses = []
    for i in range(5):
        value, grads = nn.value_and_grad(model, loss)(model, mx.array(np.roll(text, i, 1)))
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
        losses.append(value)
    model.eval()
    state, letter, said = (None, None, None, None), mx.array([[3]]), []
    for _ in range(8):
        logits, state = model(letter, state)
        letter = mx.argmax(logits[:, -1:], -1)
        mx.eval(letter, state)
        said.append(letter.item())
    return {"losses": mx.stack(losses), "said": mx.array(said)}


# ---- networks that generate ----


class Attention(nn.Module):
    def __init__(self, dims, heads, bias=False):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dims, dims, bias=bias) for _ in range(4))

    def __call__(self, x, memory=None, mask=None, cache=None):
        b, n, d = x.shape
        memory = x if memory is None else memory
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        q, k, v = (t.reshape(b, -1, self.heads, d // self.heads).transpose(0, 2, 1, 3) for t in (q, k, v))
        if cache is not None:
            k, v = mx.concatenate([cache[0], k], axis=2), mx.concatenate([cache[1], v], axis=2)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=(d // self.heads) ** -0.5, mask=mask)
        return self.o(out.transpose(0, 2, 1, 3).reshape(b, n, d)), (k, v)


@program
def t5():
    """An encoder and a decoder with relative positions in buckets, gated products, and a cache of what was decoded."""

    class Positions(nn.Module):
        def __init__(self, both, heads, buckets=8, farthest=20):
            super().__init__()
            self.both, self.buckets, self.farthest = both, buckets, farthest
            self.embeddings = nn.Embedding(buckets, heads)

        def __call__(self, queries, keys, offset=0):
            distance = mx.arange(keys)[None] - mx.arange(offset, offset + queries)[:, None]
            buckets, found = self.buckets, mx.zeros(distance.shape, mx.int16)
            if self.both:
                buckets //= 2
                found = (distance > 0).astype(mx.int16) * buckets
                distance = mx.abs(distance)
            else:
                distance = -mx.minimum(distance, mx.zeros_like(distance))
            exact = buckets // 2
            scale = (buckets - exact) / np.log(self.farthest / exact)
            far = exact + (mx.log(distance.astype(mx.float32) / exact) * scale).astype(mx.int16)
            found = found + mx.where(distance < exact, distance, mx.minimum(far, buckets - 1))
            return self.embeddings(found).transpose(2, 0, 1)

    class Layer(nn.Module):
        def __init__(self, dims, heads, decodes):
            super().__init__()
            self.norms = [nn.RMSNorm(dims) for _ in range(2 + decodes)]
            self.attention = Attention(dims, heads)
            if decodes:
                self.cross = Attention(dims, heads)
            self.gate, self.up, self.down = (nn.Linear(dims, 2 * dims, bias=False) for _ in range(2)), None, None
            self.gate, self.up = self.gate
            self.down = nn.Linear(2 * dims, dims, bias=False)

        def __call__(self, x, mask, memory=None, cache=None):
            y, cache = self.attention(self.norms[0](x), mask=mask, cache=cache)
            x = x + y
            if memory is not None:
                x = x + self.cross(self.norms[2](x), memory)[0]
            y = self.norms[1](x)
            return x + self.down(nn.gelu_approx(self.gate(y)) * self.up(y)), cache

    class Model(nn.Module):
        def __init__(self, letters, dims, heads):
            super().__init__()
            self.embed = nn.Embedding(letters, dims)
            self.encoder = [Layer(dims, heads, 0) for _ in range(2)]
            self.decoder = [Layer(dims, heads, 1) for _ in range(2)]
            self.ahead, self.behind = Positions(True, heads), Positions(False, heads)
            self.norms = [nn.RMSNorm(dims), nn.RMSNorm(dims)]

        def encode(self, x):
            mask, x = self.ahead(x.shape[1], x.shape[1]), self.embed(x)
            for layer in self.encoder:
                x, _ = layer(x, mask)
            return self.norms[0](x)

        def decode(self, x, memory, caches=None):
            caches = caches or [None] * len(self.decoder)
            n, offset = x.shape[1], 0 if caches[0] is None else caches[0][0].shape[2]
            mask = self.behind(n, n + offset, offset)
            if n > 1:
                mask = mask + nn.MultiHeadAttention.create_additive_causal_mask(n)
            x = self.embed(x)
            for i, layer in enumerate(self.decoder):
                x, caches[i] = layer(x, mask, memory, caches[i])
            return self.embed.as_linear(self.norms[1](x) * x.shape[-1] ** -0.5), caches

    model = Model(30, 16, 4)
    mx.eval(model.parameters())
    memory = model.encode(mx.array([[3, 7, 1, 22, 9, 14, 2, 28, 5]]))
    caches, letter, said, scores = None, mx.array([[0]]), [], []
    for _ in range(10):
        logits, caches = model.decode(letter, memory, caches)
        letter = mx.argmax(logits[:, -1], -1, keepdims=True)
        mx.async_eval(letter, caches)
        scores.append(logits[0, -1])
        said.append(letter.item())
    whole, _ = model.decode(mx.array([[0, *said[:-1]]]), memory)
    return {"said": mx.array(said), "scores": mx.stack(scores), "whole": whole}


@program
def musicgen():
    """Four books of codes, each a step behind the one before; guided by text and by none; drawn among the best."""

    class Model(nn.Module):
        def __init__(self, books, codes, dims):
            super().__init__()
            self.embed = [nn.Embedding(codes + 1, dims) for _ in range(books)]
            self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dims) for _ in range(3))
            self.attention, self.cross = Attention(dims, 2), Attention(dims, 2)
            self.up, self.down = nn.Linear(dims, 4 * dims, bias=False), nn.Linear(4 * dims, dims, bias=False)
            self.heads = [nn.Linear(dims, codes, bias=False) for _ in range(books)]

        def __call__(self, codes, text, cache, offset):
            x = sum(embed(codes[..., i]) for i, embed in enumerate(self.embed))
            half = x.shape[-1] // 2
            angles = offset * mx.exp(-math.log(10000) * mx.arange(half) / (half - 1))
            x = x + mx.concatenate([mx.cos(angles), mx.sin(angles)]).astype(x.dtype)
            y, cache = self.attention(self.norm1(x), cache=cache)
            x = x + y
            x = x + self.cross(self.norm2(x), text)[0]
            x = x + self.down(nn.gelu(self.up(self.norm3(x))))
            return mx.stack([head(x) for head in self.heads], axis=-1), cache

    @partial(mx.compile, inputs=mx.random.state, outputs=mx.random.state)
    def draw(logits, temperature):
        best = -mx.sort(-logits, axis=-2)[..., 4:5, :]
        return mx.random.categorical(mx.where(logits < best, -mx.inf, logits) / temperature, axis=-2)[..., None, :]

    books, codes, steps = 4, 24, 8
    model = Model(books, codes, 16)
    text = mx.array(drawn(1, 5, 16))
    text = mx.concatenate([text, mx.zeros_like(text)])
    cache, audio = None, mx.full((1, steps + books, books), codes, mx.int32)
    for step in range(steps + books - 1):
        logits, cache = model(mx.repeat(audio[:, step : step + 1], 2, axis=0), text, cache, step)
        guided, free = logits[:1, -1], logits[1:, -1]
        found = draw(free + 3.0 * (guided - free), 1.1)[:, 0]
        found = mx.where(mx.arange(books) <= step, found, codes)
        found = mx.where(mx.arange(books) > step - steps, found, codes)
        audio[:, step + 1] = found
        mx.eval(audio, cache)
    straight = mx.stack([audio[0, i + 1 : i + 1 + steps, i] for i in range(books)], axis=-1)
    return {"codes": straight, "keys": cache[0]}


@program
def llava():
    """Patches of an image in the places of a token among text: a tower, a projection, a decoder with rotations."""

    class Tower(nn.Module):
        def __init__(self, dims, patch):
            super().__init__()
            self.patches = nn.Conv2d(3, dims, patch, patch, bias=False)
            self.first = mx.zeros((dims,))
            self.places = nn.Embedding(17, dims)
            self.layers = [nn.TransformerEncoderLayer(dims, 2, 2 * dims, norm_first=True) for _ in range(2)]

        def __call__(self, image):
            x = self.patches(image).flatten(1, 2)
            x = mx.concatenate([mx.broadcast_to(self.first, (x.shape[0], 1, x.shape[-1])), x], axis=1)
            x, states = x + self.places(mx.arange(17)), []
            for layer in self.layers:
                x = layer(x, None)
                states.append(x)
            return states

    class Decoder(nn.Module):
        def __init__(self, dims, letters):
            super().__init__()
            self.embed = nn.Embedding(letters, dims)
            self.norms = [nn.RMSNorm(dims) for _ in range(3)]
            self.attention, self.rope = Attention(dims, 4), nn.RoPE(dims // 4, traditional=True)
            self.ffn = [nn.Linear(dims, 3 * dims, bias=False), nn.Linear(3 * dims // 2, dims, bias=False)]

        def __call__(self, x, mask=None):
            b, n, _ = x.shape
            a, y = self.attention, self.norms[0](x)
            q, k, v = (f(y).reshape(b, n, 4, -1).swapaxes(1, 2) for f in (a.q, a.k, a.v))
            out = mx.fast.scaled_dot_product_attention(
                self.rope(q), self.rope(k), v, scale=0.5, mask="causal" if mask is None else mask
            )
            x = x + a.o(out.swapaxes(1, 2).flatten(-2))
            gate, up = mx.split(self.ffn[0](self.norms[1](x)), 2, axis=-1)
            x = x + self.ffn[1](nn.silu(gate) * up)
            return self.embed.as_linear(self.norms[2](x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower, self.decoder = Tower(16, 4), Decoder(16, 40)
            self.projector = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

        def __call__(self, tokens, image):
            features = self.projector(self.tower(image)[-2][:, 1:])
            places = np.where(np.array(tokens[0]) == 39)[0].tolist()
            embedded, parts, start = self.decoder.embed(tokens), [], 0
            for place in places:
                parts += [embedded[:, start:place], features]
                start = place + 1
            return self.decoder(mx.concatenate([*parts, embedded[:, start:]], axis=1))

    model = Model()
    model.apply(lambda x: x.astype(mx.float32))
    image = mx.array(drawn(1, 16, 16, 3))
    tokens, said = [1, 39, 8, 30, 12], []
    for _ in range(4):
        logits = model(mx.array([tokens]), image)
        said.append(mx.argmax(logits[0, -1]).item())
        tokens.append(said[-1])
    nn.quantize(
        model.decoder,
        group_size=32,
        bits=4,
        class_predicate=lambda _, m: getattr(m, "weight", logits).shape[-1] % 32 == 0,
    )
    sizes = tree_map_with_path(lambda path, x: x.size, model.parameters())
    total = sum(size for _, size in tree_flatten(sizes))
    return {"said": mx.array(said), "logits": logits, "size": mx.array(total)}


@program
def mixture():
    """Experts chosen by a router, trained with a loss that spreads the load, and by a schedule that warms up."""

    args = SimpleNamespace(dims=12, experts=4, chosen=2)

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(args.dims, args.experts, bias=False)
            self.up = mx.random.normal((args.experts, args.dims, 2 * args.dims)) * 0.2
            self.down = mx.random.normal((args.experts, 2 * args.dims, args.dims)) * 0.2

        def __call__(self, x):
            scores = mx.softmax(self.gate(x), axis=-1, precise=True)
            chosen = mx.stop_gradient(mx.argpartition(-scores, args.chosen - 1, axis=-1)[..., : args.chosen])
            weights = mx.take_along_axis(scores, chosen, axis=-1)
            weights = weights / weights.sum(axis=-1, keepdims=True)
            y = mx.gather_mm(x[:, None, None, :], self.up, rhs_indices=chosen)
            y = mx.gather_mm(nn.relu2(y) if hasattr(nn, "relu2") else nn.relu(y) ** 2, self.down, rhs_indices=chosen)
            load = (chosen[..., None] == mx.arange(args.experts)).astype(mx.float32).mean((0, 1))
            return (y.squeeze(-2) * weights[..., None]).sum(axis=-2), (load * scores.mean(0)).sum() * args.experts

    model = nn.Sequential(nn.Linear(6, args.dims), nn.GELU())
    experts, out = Experts(), nn.Linear(args.dims, 3)
    whole = nn.Module()
    whole.parts = [model, experts, out]
    schedule = optim.join_schedules([optim.linear_schedule(0.0, 1e-2, 3), optim.cosine_decay(1e-2, 10)], [3])
    optimizer = optim.MultiOptimizer(
        [optim.AdamW(learning_rate=schedule, weight_decay=0.01), optim.SGD(learning_rate=1e-2, momentum=0.9)],
        [lambda name, weight: weight.ndim > 1],
    )

    def loss(whole, x, y):
        model, experts, out = whole.parts
        mixed, spread = experts(model(x))
        return nn.losses.cross_entropy(out(mixed), y, reduction="mean") + 0.01 * spread

    losses = []
    for i in range(6):
        x = mx.array(drawn(16, 6, seed=i))
        value, grads = nn.value_and_grad(whole, loss)(whole, x, mx.argmax(x[:, :3], axis=-1))
        optimizer.update(whole, grads)
        mx.eval(whole.parameters(), optimizer.state)
        losses.append(value)
    return {"losses": mx.stack(losses), "gate": experts.gate.weight}


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
