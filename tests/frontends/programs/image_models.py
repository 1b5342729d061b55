"""Models of mflux that draw images, with random weights and made small: image_models.py folder.

Transformers and the way from noise, autoencoders, adapters and how they are trained. Writes what comes out to
`found.npz` in the folder. Runs on MLX and on Weft.
"""

import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

HERE = Path(sys.argv[1])


def drawn(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def weighted(model):
    """With weights of which none are zero, so that every layer has a say."""
    rng, weights = np.random.default_rng(0), []
    for name, value in tree_flatten(model.parameters()):
        fan = value.size // value.shape[0] if value.ndim > 1 else 100
        new = rng.normal(size=value.shape).astype(np.float32) / np.sqrt(fan)
        weights.append((name, mx.array(new + (value.ndim == 1 and name.endswith("weight")))))
    model.update(tree_unflatten(weights))
    return model


def transformers():
    from mflux.models.boogu.model.boogu_transformer.boogu_transformer import BooguImageTransformer
    from mflux.models.ernie_image.model.ernie_transformer.transformer import ErnieTransformer
    from mflux.models.flux2.model.flux2_transformer.transformer import Flux2Transformer
    from mflux.models.seedvr2.model.seedvr2_transformer.transformer import SeedVR2Transformer
    from mflux.models.z_image.model.z_image_transformer.transformer import ZImageTransformer

    found = {}
    model = ZImageTransformer(
        dim=64,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        cap_feat_dim=24,
        axes_dims=[8, 12, 12],
        axes_lens=[64, 64, 64],
    )
    found["z_image.half"] = weighted(model)(
        drawn(16, 1, 8, 8), mx.array(0.3), mx.array([1.0, 0.0]), drawn(7, 24, seed=1)
    )
    model = BooguImageTransformer(
        hidden_size=48, num_layers=3, num_double_stream_layers=1, num_refiner_layers=1, num_attention_heads=4,
        num_kv_heads=2, multiple_of=16, axes_dim_rope=(4, 4, 4), axes_lens=(64, 64, 64), instruction_feat_dim=24,
    )  # fmt: skip
    found["boogu"] = weighted(model)(drawn(1, 16, 8, 8), mx.array([0.4]), drawn(1, 6, 24, seed=1))
    model = ErnieTransformer(
        hidden_size=48, num_attention_heads=2, num_layers=2, ffn_hidden_size=64, in_channels=16, out_channels=16,
        text_in_dim=24, rope_axes_dim=[8, 8, 8],
    )  # fmt: skip
    found["ernie"] = weighted(model)(drawn(1, 16, 4, 4), mx.array([300.0]), drawn(1, 5, 24, seed=1), mx.array([5]))
    model = SeedVR2Transformer(
        vid_in_channels=9, vid_out_channels=4, vid_dim=64, txt_in_dim=24, heads=2, head_dim=32, num_layers=3,
        mm_layers=1, rope_dim=32, window=(2, 2, 2),
    )  # fmt: skip
    found["seedvr2"] = weighted(model)(drawn(1, 9, 2, 8, 8), drawn(1, 5, 24, seed=1), mx.array([500.0]))
    model = Flux2Transformer(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=24, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=True,
    )  # fmt: skip
    ids = [mx.array(np.random.default_rng(n).integers(9, size=(n, 4)).astype(np.float32)) for n in (12, 5)]
    more = {"guidance": mx.array([3.5]), "timestep": mx.array([0.6]), "img_ids": ids[0], "txt_ids": ids[1]}
    found["flux2.half"] = weighted(model)(drawn(1, 12, 16), drawn(1, 5, 24, seed=1), **more)
    return found


def autoencoders():
    from mflux.models.flux.model.flux_vae.vae import VAE
    from mflux.models.qwen.model.qwen_vae.qwen_image_down_block_3d import QwenImageDownBlock3D
    from mflux.models.qwen.model.qwen_vae.qwen_image_up_block_3d import QwenImageUpBlock3D
    from mflux.models.seedvr2.model.seedvr2_vae.decoder.decoder_3d import Decoder3D
    from mflux.models.seedvr2.model.seedvr2_vae.encoder.encoder_3d import Encoder3D

    found = {}
    sizes = {"block_out_channels": (32, 32, 64, 64), "layers_per_block": 1}
    video = weighted(Encoder3D(**sizes))(drawn(1, 3, 5, 16, 16))
    found["video.half"] = video
    found["back.half"] = weighted(Decoder3D(**sizes))(video[:, :16])
    down = weighted(QwenImageDownBlock3D(8, 16, 1, "downsample3d"))(drawn(1, 8, 3, 8, 8))
    found["down"], found["up"] = down, weighted(QwenImageUpBlock3D(16, 8, 1, "upsample3d"))(down)
    vae = VAE()
    found["encoder.half"] = weighted(vae.encoder.down_blocks[0])(drawn(1, 128, 8, 8))
    found["decoder.half"] = weighted(vae.decoder.up_blocks[3])(drawn(1, 256, 8, 8, seed=2))
    return found


def adapters():
    """A low-rank adapter of a quantized layer, trained; and the steps of a scheduler."""
    from mflux.models.common.config.config import Config
    from mflux.models.common.config.model_config import ModelConfig
    from mflux.models.common.lora.layer.linear_lora_layer import LoRALinear

    mx.random.seed(0)
    base = nn.Linear(64, 32)
    base.weight, base.bias = drawn(32, 64) / 8, drawn(32, seed=1)
    layer = LoRALinear.from_linear(nn.QuantizedLinear.from_linear(base, group_size=32, bits=4), r=4, scale=0.5)
    layer.freeze()
    layer.unfreeze(keys=["lora_A", "lora_B"], strict=False)
    optimizer, losses = optim.AdamW(learning_rate=1e-2), []
    x, aim = drawn(16, 64, seed=2), drawn(16, 32, seed=3)
    step = nn.value_and_grad(layer, lambda layer: ((layer(x) - aim) ** 2).mean())
    for _ in range(5):
        loss, grads = step(layer)
        optimizer.update(layer, grads)
        mx.eval(layer.parameters(), optimizer.state)
        losses.append(loss)
    config = Config(ModelConfig.dev(), num_inference_steps=4, height=64, width=64)
    latents = drawn(1, 16, 64, seed=4)
    for t in range(4):
        latents = config.scheduler.step(mx.tanh(latents), t, latents)
        mx.eval(latents)
    return {"lora": mx.stack(losses), "sigmas": config.scheduler.sigmas, "latents": latents}


def main():
    found = {}
    for part in (adapters, transformers, autoencoders):
        found.update(part())
        mx.eval(found)
    mx.savez(str(HERE / "found.npz"), **{name: value.astype(mx.float32) for name, value in found.items()})


main()
