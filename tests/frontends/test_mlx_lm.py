"""Models of mlx-lm, as they are on PyPI, on Weft: made from configurations with random weights. Where MLX is installed
the logits are compared with its own, for the same weights.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("mlx_lm") is None:
    pytest.skip("mlx-lm is not installed", allow_module_level=True)

COMMON = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "vocab_size": 256, "rope_theta": 1e4,
    "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {"num_hidden_layers": 6, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "phi3": {"num_key_value_heads": 4},
    "gpt2": {
        "n_ctx": 128, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128, "layer_norm_epsilon": 1e-5,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "moe_intermediate_size": 64, "norm_topk_prob": True,
    },
    "deepseek_v3": {
        "moe_intermediate_size": 64, "n_routed_experts": 4, "n_shared_experts": 1, "kv_lora_rank": 16,
        "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "norm_topk_prob": True, "moe_layer_freq": 1, "rope_scaling": None,
        "routed_scaling_factor": 1.0, "attention_bias": False,
    },
    "mamba": {
        "state_size": 8, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 4,
        "d_inner": 128, "expand": 2,
    },
    "qwen3_next": {
        "num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "decoder_sparse_step": 1, "shared_expert_intermediate_size": 64, "mlp_only_layers": [],
        "moe_intermediate_size": 64, "partial_rotary_factor": 0.5, "full_attention_interval": 2,
    },
}  # fmt: skip

PROGRAM = """
import dataclasses, importlib, json, sys
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

models, folder = json.loads(sys.argv[1]), sys.argv[2]
results = {}
for name, config in models.items():
    module = importlib.import_module(f"mlx_lm.models.{name}")
    known = {field.name for field in dataclasses.fields(module.ModelArgs)}
    mx.random.seed(1)
    model = module.Model(module.ModelArgs(**{k: v for k, v in config.items() if k in known}))
    mx.eval(model.parameters())
    prompt = mx.array([[1, 2, 3, 4, 5, 6, 7]])
    results[f"{name}.whole"] = model(prompt)
    cache = make_prompt_cache(model)
    parts = [model(prompt[:, :4], cache=cache), model(prompt[:, 4:6], cache=cache), model(prompt[:, 6:], cache=cache)]
    results[f"{name}.cached"] = mx.concatenate(parts, axis=1)
    cache, token, greedy = make_prompt_cache(model), prompt, []
    for _ in range(5):
        token = mx.argmax(model(token, cache=cache)[:, -1:], axis=-1)
        greedy.append(token)
    results[f"{name}.greedy"] = mx.concatenate(greedy, axis=1)

    def fits(path, layer):
        return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0

    nn.quantize(model, 32, 4, class_predicate=fits)
    results[f"{name}.quantized"] = model(prompt)
mx.savez(f"{folder}/results", **results)
"""


def run(folder: Path, command: list[str]) -> dict[str, np.ndarray]:
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(PROGRAM)
    models = {name: {**COMMON, **more, "model_type": name} for name, more in MODELS.items()}
    done = subprocess.run(
        [sys.executable, *command, str(script), json.dumps(models), str(folder)],
        capture_output=True, text=True, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    with np.load(folder / "results.npz") as found:
        return dict(found)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return run(tmp_path_factory.mktemp("weft") / "run", ["-m", "weft", "run"])


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    if importlib.util.find_spec("mlx") is None:
        pytest.skip("MLX is not installed")
    return run(tmp_path_factory.mktemp("mlx") / "run", [])


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_changes_nothing(ours: dict[str, np.ndarray], name: str) -> None:
    whole, cached = ours[f"{name}.whole"], ours[f"{name}.cached"]
    assert np.isfinite(whole).all()
    assert np.all(np.abs(whole - cached) <= 1e-4 * (1 + np.abs(whole).max()))


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_mlx(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], name: str) -> None:
    a, b = ours[f"{name}.whole"], theirs[f"{name}.whole"]
    assert np.all(np.abs(a - b) <= 1e-4 * (1 + np.abs(b).max()))
    assert np.array_equal(ours[f"{name}.greedy"], theirs[f"{name}.greedy"])
    a, b = ours[f"{name}.quantized"], theirs[f"{name}.quantized"]
    assert np.all(np.abs(a - b) <= 1e-4 * (1 + np.abs(b).max()))
