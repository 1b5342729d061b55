"""Makes what mlx-lm loads: a folder with a model of random weights, its configuration and a tokenizer of single bytes.

    lm_folder.py folder [setting=value ...]

The weights come from NumPy by the names of the parameters: every library makes the same ones.
"""

import importlib
import json
import sys
import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

SMALL = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 260, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """A token for each byte, and three that a chat is made with."""
    letters = {letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = CHAT
    fast.save_pretrained(folder)


def weights_of(model) -> dict:
    """Normal numbers for all parameters; those of norms stay near what they are."""
    found = {}
    for name, value in tree_flatten(model.parameters()):
        drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(size=value.shape)
        if value.ndim < 2:
            found[name] = mx.array((np.array(value) + 0.1 * drawn).astype(np.float32))
        else:
            found[name] = mx.array((drawn * value.shape[-1] ** -0.5).astype(np.float32))
    return found


def make(folder: Path, **settings) -> Path:
    """Write the folder."""
    config = {**SMALL, **settings}
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    mx.random.seed(0)
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    weights = weights_of(module.Model(module.ModelArgs.from_dict(config)))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    make(Path(sys.argv[1]), **{name: json.loads(value) for name, value in (a.split("=", 1) for a in sys.argv[2:])})
