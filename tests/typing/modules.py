"""Modules with state, optimizers and schedules, trees and files, as a user types them."""

from __future__ import annotations

from pathlib import Path

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_flatten, tree_map


class Block(nn.Module):
    def __init__(self, dims: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiHeadAttention(dims, heads)
        self.norm = nn.LayerNorm(dims)
        self.drop = nn.Dropout(0.1)
        self.scale = mx.ones((dims,))

    def __call__(self, x: mx.array, mask: mx.array | None = None) -> mx.array:
        y = self.norm(x)
        return x + self.scale * self.drop(self.attention(y, y, y, mask))


def train(block: Block, folder: Path) -> float:
    schedule = optim.cosine_decay(1e-3, 10)
    optimizer = optim.AdamW(learning_rate=schedule, weight_decay=0.01)
    x = mx.random.normal((2, 3, 8))

    def objective(model: Block) -> mx.array:
        return mx.mean(mx.square(model(x)))

    value, gradients = nn.value_and_grad(block, objective)(block)
    gradients, _ = optim.clip_grad_norm(gradients, 1.0)
    optimizer.update(block, gradients)
    halves = tree_map(lambda p: p.astype(mx.float16), block.parameters())
    mx.save_safetensors(str(folder / "weights.safetensors"), dict(tree_flatten(halves)))
    block.load_weights(str(folder / "weights.safetensors"))
    block.eval()
    return float(value.item())


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        print(train(Block(8, 2), Path(name)))
