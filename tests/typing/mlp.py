"""Training of a multilayer perceptron, as a user types it."""

from __future__ import annotations

from itertools import pairwise

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim


class MLP(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = [nn.Linear(m, n) for m, n in pairwise(sizes)]

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers[:-1]:
            x = nn.relu(layer(x))
        return self.layers[-1](x)


def loss(model: MLP, x: mx.array, y: mx.array) -> mx.array:
    return nn.losses.cross_entropy(model(x), y, reduction="mean")


def accuracy(model: MLP, x: mx.array, y: mx.array) -> float:
    return float(mx.mean(mx.argmax(model(x), axis=1) == y).item())


def main() -> None:
    model = MLP([4, 8, 2])
    mx.eval(model.parameters())
    optimizer = optim.Adam(learning_rate=1e-2)
    step = nn.value_and_grad(model, loss)
    x, y = mx.random.normal((16, 4)), mx.random.randint(0, 2, (16,))
    for _ in range(3):
        value, gradients = step(model, x, y)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        print(value.item(), accuracy(model, x, y))


if __name__ == "__main__":
    main()
