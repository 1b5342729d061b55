"""A chat with a model that was trained a moment ago: `weft run examples/chat.py --help` (or `python`, on MLX itself).

Needs mlx-lm (`pip install mlx-lm`), which runs unchanged: a small Qwen3 learns to answer a few kinds of questions, is
saved with a tokenizer as any model is, and mlx-lm's server answers over HTTP, several clients at once, word by word.
Pythons that a program under `weft run` starts run on Weft too, so the server does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from show import CONSOLE, Bar, curve
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

ANIMALS = {"cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "frog": "croak"}
COLOURS = {"grass": "green", "snow": "white", "coal": "black", "the sky": "blue", "blood": "red", "the sun": "yellow"}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
KINDS = [
    {f"what does the {animal} say": f"the {animal} says {sound} ." for animal, sound in ANIMALS.items()},
    {f"what colour is {thing}": f"{thing} is {colour} ." for thing, colour in COLOURS.items()},
    {
        f"how much is {NUMBERS[a]} and {NUMBERS[b]}": f"{NUMBERS[a]} and {NUMBERS[b]} is {NUMBERS[a + b]} ."
        for a in range(6) for b in range(6)
    },
]  # fmt: skip
WORDS = [
    "<pad>", "<end>", "<user>", "<assistant>",
    *sorted({word for kind in KINDS for pair in kind.items() for text in pair for word in text.split()}),
]  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def config() -> dict[str, Any]:
    return {
        "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
        "vocab_size": len(WORDS), "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 256, "tie_word_embeddings": True,
    }  # fmt: skip


def train(steps: int) -> tuple[nn.Module, list[float]]:
    """A model that answers the questions."""
    longest = 16
    kinds = []
    for kind in KINDS:
        texts = [f"<user> {question} <assistant> {answer} <end>".split() for question, answer in kind.items()]
        kinds.append(np.array([[WORDS.index(w) for w in text] + [0] * (longest - len(text)) for text in texts]))
    mx.random.seed(0)
    model, rng = qwen3.Model(qwen3.ModelArgs.from_dict(config())), np.random.default_rng(0)
    optimizer = optim.Adam(optim.cosine_decay(4e-3, steps))

    def loss(model: nn.Module, rows: mx.array) -> mx.array:
        found = nn.losses.cross_entropy(model(rows[:, :-1]), rows[:, 1:])
        return (found * (rows[:, 1:] > 0)).sum() / (rows[:, 1:] > 0).sum()

    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(rows: mx.array) -> mx.array:
        value, slopes = nn.value_and_grad(model, loss)(model, rows)
        optimizer.update(model, slopes)
        return value

    bar = Bar("training", steps)
    for _ in bar:
        value = step(mx.array(np.concatenate([rng.choice(rows, 10) for rows in kinds])))
        mx.eval(state, value)
        bar.loss(value.item())
    return model, bar.losses


def save(folder: Path, model: nn.Module) -> None:
    """What mlx-lm loads: weights, configuration, tokenizer."""
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config()))
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>", unk_token="<pad>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


@contextlib.contextmanager
def serving(folder: Path, patience: float = 120) -> Iterator[str]:
    """mlx-lm's server with this model; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + patience
    try:
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{address}/health").close()
                break
            time.sleep(0.1)
        else:
            raise RuntimeError("the server did not start")
        yield address
    finally:
        process.terminate()
        process.wait(30)


def ask(address: str, question: str) -> list[str]:
    """The words of an answer, as they come."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 16, "stream": True}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    words = []
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            if data.startswith("{"):
                words.append(json.loads(data)["choices"][0]["delta"].get("content") or "")
    return words


def main(arguments: list[str] | None = None) -> dict[str, str]:
    """Train, serve and ask; the answers."""
    parser = argparse.ArgumentParser(description="Train a small model, and chat with it through mlx-lm's server.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ask", action="store_true", help="read questions from the terminal at the end")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    model, losses = train(options.steps)
    CONSOLE.print(curve("loss", losses, height=5))
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), model)
        CONSOLE.print("starting mlx_lm server ...")
        with serving(Path(folder)) as address:
            questions = ["what does the cow say", "how much is three and four", "what colour is the sky"]
            with ThreadPoolExecutor(len(questions)) as clients:  # all at once: the server works on them together
                answers = dict(zip(questions, clients.map(partial(ask, address), questions), strict=True))
            for question, words in answers.items():
                CONSOLE.print(f"[bold]{question}?[/bold] {' '.join(words)}")
            while options.ask and (question := CONSOLE.input("? ").strip(" ?")):
                CONSOLE.print(" ".join(ask(address, question)))
    CONSOLE.print(f"{time.perf_counter() - begin:.1f} s in all")
    return {question: " ".join(" ".join(words).split()) for question, words in answers.items()}


if __name__ == "__main__":
    main()
