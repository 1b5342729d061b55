"""Every architecture of mlx-lm that a small configuration can be written for: lm_architectures.py folder name ...

Builds it with weights that NumPy draws by the names of parameters, and writes what it computes to `folder/name.npz`.
Prints the names that cannot be built here, with the reason.
"""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from lm_folder import weights_of
from mlx_lm.models.cache import make_prompt_cache

# One configuration for all, of which each takes what it knows, and where one needs other values. There are four layers,
# so that hybrids have two of each kind.
CONFIGURATIONS = json.loads(Path(__file__).with_suffix(".json").read_text())


def build(name):
    module = importlib.import_module(f"mlx_lm.models.{name}")
    config = {**CONFIGURATIONS["common"], **CONFIGURATIONS["different"].get(name, {}), "model_type": name}
    config["text_config"] = dict(config)
    known = {field.name for field in dataclasses.fields(module.ModelArgs)}
    mx.random.seed(0)  # for what is not drawn below: the first values of vectors, which only move a little
    model = module.Model(module.ModelArgs(**{key: value for key, value in config.items() if key in known}))
    model.load_weights(list(weights_of(model).items()), strict=False)
    return model


def computed(name):
    model = build(name)
    prompt = mx.array([[1, 2, 3, 4, 5, 6, 7, 100, 20, 30, 17]])
    cache = make_prompt_cache(model)
    parts = [model(prompt[:, start:end], cache=cache) for start, end in ((0, 4), (4, 9), (9, 10), (10, 11))]
    found = {
        "whole": model(prompt),
        "cached": mx.concatenate(parts, axis=1),
        "batch": model(prompt[0, :6].reshape(2, 3)),
    }
    token, cache, greedy = prompt, make_prompt_cache(model), []
    for _ in range(6):
        token = mx.argmax(model(token, cache=cache)[:, -1:], axis=-1)
        greedy.append(token)
    found["greedy"] = mx.concatenate(greedy, axis=1)

    def fits(path, layer):
        return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0

    for label, bits, mode in (("4 bits", 4, "affine"), ("8 bits", 8, "affine"), ("mxfp4", 4, "mxfp4")):
        model = build(name)
        try:
            nn.quantize(model, 32, bits, mode=mode, class_predicate=fits)
            found[label] = model(prompt).astype(mx.float32)
            mx.eval(found[label])
        except (TypeError, ValueError):  # some of mlx-lm's own layers do not know how
            found.pop(label, None)
    return found


def main():
    folder, *names = sys.argv[1:]
    for name in names:
        try:
            found = computed(name)
        except (ImportError, AttributeError, KeyError, TypeError, ValueError, AssertionError, RuntimeError) as error:
            print(f"{name}: {error}")
        else:
            mx.savez(str(Path(folder) / f"{name}.npz"), **found)


main()
