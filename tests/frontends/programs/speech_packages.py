"""Packages for speech, with random weights and sound that is made up: speech_packages.py folder package.

Writes what is recognised (words, times, arrays) to `found.npz` in the folder. Runs on MLX and on Weft.
"""

import contextlib
import importlib.metadata
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

HERE, PACKAGE = Path(sys.argv[1]), sys.argv[2]
RATE = 16000


def sound(seconds, seed=0):
    """Some tones that swell, and noise."""
    t = np.arange(int(seconds * RATE)) / RATE
    tones = sum(
        np.sin(2 * np.pi * f * t) * np.sin(np.pi * (k + 1) * t) ** 2 for k, f in enumerate((220, 431, 977, 3100))
    )
    noise = np.random.default_rng(seed).normal(size=t.shape)
    return (0.2 * tones + 0.02 * noise).astype(np.float32)


def weights_of(model, scale):
    """Weights that give different letters: those of a network that was just made hardly differ."""
    rng = np.random.default_rng(0)
    for name, value in tree_flatten(model.parameters()):
        if mx.issubdtype(value.dtype, mx.floating):
            drawn = rng.normal(size=value.shape).astype(np.float32) * scale / np.sqrt(max(value.shape[-1:] or (1,)))
            if value.ndim == 1:
                drawn = 0.1 * drawn + (name.endswith("weight") or "var" in name)
            yield name, mx.array(drawn).astype(value.dtype)


def whisper(package):
    """A folder with weights, a spectrogram, and transcripts: by the best letter, by drawing, with times of words."""
    folder = HERE / package
    folder.mkdir(exist_ok=True)
    sizes = {
        "n_mels": 80, "n_audio_ctx": 1500, "n_audio_state": 32, "n_audio_head": 4, "n_audio_layer": 2,
        "n_vocab": 51865, "n_text_ctx": 64, "n_text_state": 32, "n_text_head": 4, "n_text_layer": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(sizes))
    if package == "mlx_whisper":
        from mlx_whisper import transcribe
        from mlx_whisper import whisper as network
        from mlx_whisper.audio import log_mel_spectrogram
        from mlx_whisper.decoding import DecodingOptions, decode

        more = {}
    else:
        from lightning_whisper_mlx import whisper as network
        from lightning_whisper_mlx.audio import log_mel_spectrogram
        from lightning_whisper_mlx.decoding import DecodingOptions, decode
        from lightning_whisper_mlx.transcribe import transcribe_audio as transcribe

        more = {"batch_size": 2}
    model = network.Whisper(network.ModelDimensions(**sizes), mx.float32)
    mx.savez(str(folder / "weights.npz"), **dict(weights_of(model, 1.5)))
    model.load_weights(str(folder / "weights.npz"), strict=False)  # the heads that align are not among them
    heard = sound(12)
    mel = log_mel_spectrogram(mx.array(heard), n_mels=80, padding=480000)[:3000]
    found = {"mel": mel, "features": model.encoder(mel[None])}
    found["logits"] = model(mel[None], mx.array([[50258, 50259, 50359, 400, 500]]))
    best = decode(model, mel, DecodingOptions(language="en", fp16=False, sample_len=12))
    found["tokens"], found["log_prob"] = mx.array(best.tokens), mx.array(best.avg_logprob)
    if package == "mlx_whisper":  # the other package takes several as a shape by mistake
        mx.random.seed(3)
        options = DecodingOptions(temperature=0.7, best_of=2, fp16=False, sample_len=8, task="translate")
        found["drawn"] = mx.array(decode(model, mel, options).tokens)
    options = {"fp16": False, "sample_len": 10, "language": "en", "temperature": 0.0, "no_speech_threshold": None}
    for words in (False, True):
        said = transcribe(heard, path_or_hf_repo=str(folder), word_timestamps=words, **options, **more)
        segments = [part for part in said["segments"] if isinstance(part, dict)]
        text = json.dumps([said["text"], [(s["start"], s["end"], s["tokens"]) for s in segments]])
        found[f"text.{words}"] = mx.array(list(text.encode()))
    return found


def streamed(model):
    with model.transcribe_stream(context_size=(16, 16), depth=1) as stream:
        for start in range(0, 3 * RATE, RATE):
            stream.add_audio(mx.array(sound(3)[start : start + RATE]))
        return mx.array(list(json.dumps([(t.id, t.start) for t in stream.result.tokens]).encode()))


def parakeet(package):
    """Each of the decoders, of a batch and of a stream, with the best letter and with several in the running."""
    from parakeet_mlx import Beam, DecodingConfig
    from parakeet_mlx.audio import get_logmel
    from parakeet_mlx.utils import from_config

    letters = [f"▁{a}" if k % 3 == 0 else a for k, a in enumerate("abcdefghijklmnopqrst")]
    encoder = {
        "feat_in": 40, "n_layers": 2, "d_model": 32, "n_heads": 4, "ff_expansion_factor": 2, "subsampling_factor": 8,
        "self_attention_model": "rel_pos", "subsampling": "dw_striding", "conv_kernel_size": 5,
        "subsampling_conv_channels": 8, "pos_emb_max_len": 500, "xscaling": False,
    }  # fmt: skip
    common = {
        "preprocessor": {
            "sample_rate": RATE, "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01,
            "window": "hann", "features": 40, "n_fft": 512, "dither": 0.0,
        },
        "encoder": encoder,
    }  # fmt: skip
    transducer = {
        "decoder": {"blank_as_pad": True, "vocab_size": 20, "prednet": {"pred_hidden": 24, "pred_rnn_layers": 2}},
        "joint": {
            "num_classes": 20, "vocabulary": letters,
            "jointnet": {"joint_hidden": 24, "activation": "relu", "encoder_hidden": 32, "pred_hidden": 24},
        },
    }  # fmt: skip
    steps = {"model_defaults": {"tdt_durations": [0, 1, 2, 3, 4]}}
    decoding = {"model_type": "tdt", "durations": [0, 1, 2, 3, 4], "greedy": {"max_symbols": 4}}
    classes = {"feat_in": 32, "num_classes": 20, "vocabulary": letters}
    nemo, letter_by_letter = "nemo.collections.asr.models.", "rnnt_bpe_models.EncDecRNNTBPEModel"
    joint = {**transducer["joint"], "num_extra_outputs": 5}
    kinds = {
        "tdt": {**steps, **transducer, "joint": joint, "decoding": decoding, "target": letter_by_letter},
        "rnnt": {**transducer, "decoding": {"greedy": {"max_symbols": 4}}, "target": letter_by_letter},
        "ctc": {"decoder": classes, "decoding": {"greedy": None}, "target": "ctc_bpe_models.EncDecCTCModelBPE"},
        "both": {
            **steps, **transducer, "joint": joint, "decoding": decoding, "aux_ctc": {"decoder": dict(classes)},
            "target": "hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel",
        },
    }  # fmt: skip
    found = {}
    for kind, settings in kinds.items():
        model = from_config({**common, **settings, "target": nemo + settings["target"]})
        model.load_weights([*weights_of(model, 2.0)], strict=False)
        mels = mx.concatenate([get_logmel(mx.array(sound(3, seed)), model.preprocessor_config) for seed in (0, 1)])
        features, lengths = model.encoder(mels)
        found[f"{kind}.mels"], found[f"{kind}.features"], found[f"{kind}.lengths"] = mels, features, lengths
        ways = [DecodingConfig()] + [DecodingConfig(decoding=Beam(beam_size=3))] * (kind in ("tdt", "both"))
        for i, way in enumerate(ways):
            said = [[(t.id, t.start, t.duration) for t in r.tokens] for r in model.generate(mels, decoding_config=way)]
            found[f"{kind}.said.{i}"] = mx.array(list(json.dumps(said).encode()))
        with contextlib.suppress(RuntimeError):  # its kernels need Metal on MLX
            found[f"{kind}.stream"] = streamed(model)
    return found


def main():
    assert importlib.metadata.version(PACKAGE.replace("_", "-"))
    mx.random.seed(0)
    found = parakeet(PACKAGE) if PACKAGE == "parakeet_mlx" else whisper(PACKAGE)
    mx.eval(found)
    mx.savez(str(HERE / "found.npz"), **found)


main()
