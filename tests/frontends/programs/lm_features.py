"""What mlx-lm does with a model, each as a function of its own: lm_features.py folder. Writes `folder/found.json`.

Runs on MLX and on Weft; the numbers and texts that it writes are compared.
"""

import gc
import json
import sys
import time
import traceback
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from lm_folder import make
from mlx_lm import batch_generate, generate, load, stream_generate
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import (
    ChunkedKVCache,
    KVCache,
    LRUPromptCache,
    QuantizedKVCache,
    RotatingKVCache,
    can_trim_prompt_cache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from mlx_lm.perplexity import eval_ppl
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tuner.datasets import CacheDataset
from mlx_lm.tuner.trainer import TrainingArgs, default_loss, evaluate, iterate_batches, train
from mlx_lm.tuner.utils import linear_to_lora_layers, remove_lora_layers
from mlx_lm.utils import load_model, quantize_model, save

PROMPT = "the quick brown fox jumps over"
PROMPTS = ["one", "the quick brown fox", "in the beginning there was", "x"]
HERE = Path(sys.argv[1])
FEATURES = {}


def feature(function):
    FEATURES[function.__name__] = function
    return function


def tokens(model, prompt, count=8, **options):
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=count, **options)]


# ---- generate ----


@feature
def text(model, tokenizer):
    return generate(model, tokenizer, PROMPT, max_tokens=10)


@feature
def stream(model, tokenizer):
    found = list(stream_generate(model, tokenizer, PROMPT, max_tokens=8))
    logprobs = [found[i].logprobs[found[i].token].item() for i in range(len(found))]
    return [[r.token, r.text, r.prompt_tokens, r.generation_tokens, r.finish_reason] for r in found], logprobs


@feature
def prompt_in_pieces(model, tokenizer):
    seen = []
    prompt = tokenizer.encode(PROMPT)
    found = tokens(model, prompt, prefill_step_size=4, prompt_progress_callback=lambda *at: seen.append(at))
    return found, seen


@feature
def embeddings_as_prompt(model, tokenizer):
    prompt = mx.array(tokenizer.encode(PROMPT))
    return tokens(model, prompt, input_embeddings=model.model.embed_tokens(prompt))


@feature
def stop_word(model, tokenizer):
    plain = tokens(model, tokenizer.encode(PROMPT))
    tokenizer._eos_token_ids = {plain[3]}
    found = [[r.token, r.finish_reason] for r in stream_generate(model, tokenizer, PROMPT, max_tokens=8)]
    tokenizer._eos_token_ids = {tokenizer.eos_token_id}
    return found


# ---- samplers ----

SAMPLERS = {
    "warm": {"temp": 0.8}, "top_p": {"temp": 1.0, "top_p": 0.7}, "top_k": {"temp": 1.0, "top_k": 5},
    "min_p": {"temp": 1.0, "min_p": 0.1, "min_tokens_to_keep": 2},
    "xtc": {"temp": 1.0, "xtc_probability": 0.7, "xtc_threshold": 0.02, "xtc_special_tokens": [3, 4]},
    "all": {"temp": 0.9, "top_p": 0.95, "top_k": 30, "min_p": 0.01, "xtc_probability": 0.3, "xtc_threshold": 0.05},
}  # fmt: skip


@feature
def samplers(model, tokenizer):
    found = {}
    for name, options in SAMPLERS.items():
        mx.random.seed(7)
        found[name] = tokens(model, tokenizer.encode(PROMPT), 10, sampler=make_sampler(**options))
    return found


@feature
def penalties(model, tokenizer):
    options = {
        "repetition": {"repetition_penalty": 1.6, "repetition_context_size": 12},
        "presence": {"presence_penalty": 0.9, "presence_context_size": 12},
        "frequency": {"frequency_penalty": 0.7, "frequency_context_size": 12},
        "bias": {"logit_bias": {17: 4.0, 90: -100.0}},
    }
    prompt = tokenizer.encode(PROMPT)
    return {
        name: tokens(model, prompt, 16, logits_processors=make_logits_processors(**given))
        for name, given in options.items()
    }


# ---- caches ----


@feature
def caches(model, tokenizer):
    layers = range(len(model.layers))
    prompt = tokenizer.encode(PROMPT)
    made = {
        "plain": [KVCache() for _ in layers],
        "rotating": [RotatingKVCache(max_size=16, keep=4) for _ in layers],
        "quantized": [QuantizedKVCache(group_size=32, bits=8) for _ in layers],
        "chunked": [ChunkedKVCache(64) for _ in layers],
    }
    found = {name: tokens(model, prompt, 24, prompt_cache=cache, prefill_step_size=8) for name, cache in made.items()}
    found["bounded"] = tokens(model, prompt, 24, max_kv_size=12)
    found["quantized later"] = tokens(model, prompt, 24, kv_bits=4, kv_group_size=32, quantized_kv_start=40)
    found["sizes"] = [cache[0].nbytes for cache in made.values()]
    return found


@feature
def caches_on_disk(model, tokenizer):
    prompt = tokenizer.encode(PROMPT)
    layers = range(len(model.layers))
    found = {}
    for name, cache in {
        "plain": make_prompt_cache(model),
        "rotating": make_prompt_cache(model, max_kv_size=16),
        "quantized": [QuantizedKVCache(group_size=32, bits=4) for _ in layers],
    }.items():
        tokens(model, prompt, 4, prompt_cache=cache)
        save_prompt_cache(str(HERE / f"{name}.safetensors"), cache, {"name": name})
        again, about = load_prompt_cache(str(HERE / f"{name}.safetensors"), return_metadata=True)
        found[name] = tokens(model, [5, 6], prompt_cache=cache), tokens(model, [5, 6], prompt_cache=again), about
        assert found[name][0] == found[name][1]
    return found


@feature
def caches_that_are_trimmed(model, tokenizer):
    prompt, cache = tokenizer.encode(PROMPT), make_prompt_cache(model)
    first = tokens(model, prompt, 6, prompt_cache=cache)
    assert can_trim_prompt_cache(cache)
    trim_prompt_cache(cache, cache[0].offset - len(prompt) + 1)
    assert tokens(model, prompt[-1:], 6, prompt_cache=cache) == first
    return first


@feature
def shared_prefixes(model, tokenizer):
    kept, found = LRUPromptCache(max_size=4), []
    for prompt in (PROMPT, PROMPT + " the", PROMPT + " the lazy", "other"):
        ids = tokenizer.encode(prompt)
        cache, rest = kept.fetch_nearest_cache("m", ids)
        cache = cache or make_prompt_cache(model)
        found.append([len(rest), tokens(model, rest or ids[-1:], 4, prompt_cache=cache)])
        kept.insert_cache("m", ids + found[-1][1][:-1], cache)
    return found


# ---- several prompts, drafts ----


@feature
def batches(model, tokenizer):
    prompts = [tokenizer.encode(p) for p in PROMPTS]
    all_at_once = batch_generate(model, tokenizer, prompts, max_tokens=[4, 9, 6, 12]).texts
    two = batch_generate(model, tokenizer, prompts, max_tokens=6, completion_batch_size=2, prefill_batch_size=1)
    mx.random.seed(3)
    warm = batch_generate(model, tokenizer, prompts, max_tokens=6, sampler=make_sampler(temp=0.7, top_p=0.9))
    assert two.texts == [generate(model, tokenizer, p, max_tokens=6) for p in prompts]
    return all_at_once, two.texts, warm.texts


@feature
def batches_that_go_on(model, tokenizer):
    prompts = [tokenizer.encode(p) for p in PROMPTS]
    first = batch_generate(model, tokenizer, prompts, max_tokens=3, return_prompt_caches=True)
    more = [tokenizer.encode(" and") for _ in prompts]
    return first.texts, batch_generate(model, tokenizer, more, prompt_caches=first.caches, max_tokens=5).texts


@feature
def speculation(model, tokenizer):
    """A good draft (the model itself) and a poor one: the tokens are those without a draft."""
    draft, _ = load_model(make(HERE / "draft", num_hidden_layers=1))
    plain = [r.token for r in stream_generate(model, tokenizer, PROMPT, max_tokens=12)]
    found = []
    for other in (draft, model):
        responses = list(
            stream_generate(model, tokenizer, PROMPT, max_tokens=12, draft_model=other, num_draft_tokens=3)
        )
        assert [r.token for r in responses] == plain
        found.append([r.from_draft for r in responses])
    return plain, found


# ---- weights ----


@feature
def quantization(model, tokenizer):
    found = {}
    for name, (group, bits, mode) in {
        "4 bits": (64, 4, "affine"), "8 bits": (32, 8, "affine"), "3 bits": (32, 3, "affine"),
        "mxfp4": (32, 4, "mxfp4"), "nvfp4": (16, 4, "nvfp4"), "mxfp8": (32, 8, "mxfp8"),
    }.items():  # fmt: skip
        again, config = load_model(HERE / "model")
        again, config = quantize_model(again, config, group, bits, mode)
        found[name] = generate(again, tokenizer, PROMPT, max_tokens=6)
        save(HERE / name, HERE / "model", again, tokenizer, config)
        assert generate(*load(str(HERE / name)), PROMPT, max_tokens=6) == found[name]
    return found


@feature
def perplexity(model, tokenizer):
    return list(eval_ppl(model, mx.array([tokenizer.encode(PROMPT)[:24], list(range(24))]), batch_size=1))


@feature
def training(model, tokenizer):
    """A few steps of LoRA on a quantized model, of DoRA and of everything, and what is left of the layers after."""
    lines = [tokenizer.encode(f"{i} and {i} are {2 * i}. " * (1 + i % 3)) for i in range(12)]

    class Lines:
        def __getitem__(self, i):
            return lines[i]

        def __len__(self):
            return len(lines)

        def process(self, line):
            return line, 0

    found = {}
    for name in ("lora", "dora", "full"):
        model, _ = load_model(HERE / "model")
        if name == "lora":
            nn.quantize(model, 32, 4)
        mx.random.seed(0)
        model.freeze()
        if name == "full":
            model.layers[-1].unfreeze()
        else:
            settings = {"rank": 4, "scale": 10.0, "dropout": 0.1 if name == "lora" else 0.0}
            linear_to_lora_layers(model, 2, settings, use_dora=name == "dora")
        reports = []

        class Callback:
            def on_train_loss_report(self, report, reports=reports):
                reports.append(report["train_loss"])

            def on_val_loss_report(self, report, reports=reports):
                reports.append(report["val_loss"])

        np.random.seed(0)  # noqa: NPY002, what mlx-lm draws from
        args = TrainingArgs(
            batch_size=4, iters=6, val_batches=1, steps_per_report=2, steps_per_eval=3, steps_per_save=100,
            adapter_file=str(HERE / f"{name}.safetensors"), grad_checkpoint=name == "dora",
            grad_accumulation_steps=2 if name == "full" else 1,
        )  # fmt: skip
        data = CacheDataset(Lines())
        schedule = optim.linear_schedule(1e-3, 1e-4, 6)
        train(model, optim.AdamW(learning_rate=schedule), data, data, args, training_callback=Callback())
        model.eval()
        after = evaluate(model, data, 4, -1)
        if name != "full":
            remove_lora_layers(model)
        batch = next(iterate_batches(data, 4, 64, seed=1))
        found[name] = [*reports, after, default_loss(model, *batch)[0].item()]
    return found


def main():
    gc.collect()
    gc.freeze()  # what is there before need not be looked through by checks of reference counts
    make(HERE / "model")
    model, tokenizer = load(str(HERE / "model"))
    found = {}
    for name, function in FEATURES.items():
        began = time.process_time()
        try:
            found[name] = function(model, tokenizer)
        except Exception:
            found[name] = traceback.format_exc()
        print(f"{name}: {time.process_time() - began:.1f} s")
    (HERE / "found.json").write_text(json.dumps(found))


main()
