"""Families of mlx-vlm, built small with weights that NumPy draws by name: vlm_models.py folder name ...

Writes what each computes from tokens, from a picture, with a cache, from 4-bit weights, and its gradients.
"""

import importlib
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from lm_folder import weights_of
from mlx.utils import tree_flatten
from mlx_vlm.models.cache import make_prompt_cache

IMAGE = 250
TEXT = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4, "rms_norm_eps": 1e-6,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512, "rope_theta": 1e4,
}  # fmt: skip
VISION = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
SECTIONS = {"type": "mrope", "rope_type": "mrope", "mrope_section": [4, 2, 2]}
PATCHES = {"depth": 2, "hidden_size": 64, "out_hidden_size": 64, "num_heads": 4, "patch_size": 14}
# For each family: configurations of text and vision, what else the model is told, and for how many tokens an image is.
FAMILIES = {
    "llava": ({"model_type": "llama"}, {"model_type": "clip_vision_model", "projection_dim": 64}, {}, 16),
    "paligemma": ({}, {"model_type": "siglip_vision_model", "projection_dim": 64}, {"hidden_size": 64}, 16),
    "smolvlm": ({"model_type": "llama"}, {"model_type": "idefics3_vision"}, {"scale_factor": 2}, 4),
    "qwen2_5_vl": (
        {"model_type": "qwen2_5_vl", "rope_scaling": SECTIONS}, {**PATCHES, "fullatt_block_indexes": [1]}, {}, 4,
    ),
    "qwen3_vl": (
        {"model_type": "qwen3_vl_text", "head_dim": 16, "rope_scaling": SECTIONS},
        {**PATCHES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}, {}, 4,
    ),
}  # fmt: skip


def build(name):
    module = importlib.import_module(f"mlx_vlm.models.{name}")
    text, vision, more, _ = FAMILIES[name]
    known = {"model_type": name, "image_token_id": IMAGE, "image_token_index": IMAGE, "vocab_size": 256, **more}
    fields = module.ModelConfig.__dataclass_fields__
    mx.random.seed(0)  # for what is not drawn below: the first values of vectors, which only move a little
    model = module.Model(
        module.ModelConfig(
            text_config=module.TextConfig(**fitting(module.TextConfig, {**TEXT, **text})),
            vision_config=module.VisionConfig(**fitting(module.VisionConfig, {**VISION, **vision})),
            **{key: value for key, value in known.items() if key in fields},
        )
    )
    model.load_weights(list(weights_of(model).items()), strict=False)
    return model


def fitting(kind, settings):
    return {key: value for key, value in settings.items() if key in kind.__dataclass_fields__}


def picture(name):
    """What an image processor would give: pixels, or the patches of a grid of 4 x 4."""
    numbers = np.random.default_rng(0)
    if name.startswith("qwen"):
        patches = mx.array(numbers.normal(size=(16, 3 * 2 * 14 * 14)).astype(np.float32))
        return {"pixel_values": patches, "image_grid_thw": mx.array([[1, 4, 4]])}
    pixels = mx.array(numbers.normal(size=(1, 3, 56, 56)).astype(np.float32))
    return {"pixel_values": pixels[None] if name == "smolvlm" else pixels}


def computed(name):
    ids = mx.array([[3, 4, 5, 6, 7, 100, 20, 30, 17, 11, 12]])
    seen = mx.array([[3, 4, *[IMAGE] * FAMILIES[name][3], 5, 6, 7]])
    found = {"text": build(name).language_model(ids).logits}
    found["picture"] = build(name)(seen, mask=mx.ones(seen.shape, mx.int32), **picture(name)).logits

    language = build(name).language_model
    token, cache, greedy = ids, make_prompt_cache(language), []
    for _ in range(6):
        token = mx.argmax(language(token, cache=cache).logits[:, -1:], axis=-1)
        greedy.append(token)
    found["greedy"] = mx.concatenate(greedy, axis=1)

    def loss(model):
        return nn.losses.cross_entropy(model(ids).logits[:, :-1], ids[:, 1:], reduction="mean")

    language = build(name).language_model
    value, slopes = nn.value_and_grad(language, loss)(language)
    found["loss"] = value
    for path, slope in tree_flatten(slopes):
        found[f"gradient.{path}"] = slope

    def fits(path, layer):
        return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0

    model = build(name)
    nn.quantize(model, 32, 4, class_predicate=fits)
    found["4 bits"] = model.language_model(ids).logits
    return found


for wanted in sys.argv[2:]:
    mx.savez(str(Path(sys.argv[1]) / f"{wanted}.npz"), **computed(wanted))
