"""Commands of mlx-lm, one after the other: lm_commands.py folder. Writes what they print into `folder/found.json`.

Each is a command line as it would be typed (`mlx_lm lora --train ...`), with all paths below the folder.
"""

import contextlib
import io
import json
import os
import shlex
import sys
from pathlib import Path

from lm_folder import make
from mlx_lm import cli

HERE = Path(sys.argv[1])
TRAIN = "lora --train --data data --iters 4 --steps-per-report 2 --val-batches 2 --batch-size 4 --learning-rate 1e-3"
SAY = "--prompt 'what is 3?' -m 6"
COMMANDS = f"""
{TRAIN} --model model --num-layers 2 --adapter-path lora --optimizer adamw --test --save-every 2
{TRAIN} --model model --num-layers -1 --adapter-path lora --resume-adapter-file lora/adapters.safetensors
{TRAIN} --model model --num-layers 2 --adapter-path dora --fine-tune-type dora --mask-prompt
{TRAIN} --model mixtral --num-layers 1 --adapter-path experts --optimizer adafactor
generate --model model --adapter-path dora {SAY}
fuse --model model --adapter-path dora --save-path fused
generate --model fused {SAY}
convert --hf-path model --mlx-path four -q --q-bits 4
generate --model four {SAY}
convert --hf-path model --mlx-path mx -q --q-mode mxfp4
generate --model mx {SAY}
convert --hf-path model --mlx-path mixed -q --quant-predicate mixed_3_6
generate --model mixed {SAY}
convert --hf-path four --mlx-path again -d
convert --hf-path model --mlx-path half --dtype bfloat16
generate --model half {SAY}
{TRAIN} --model four --num-layers 2 --adapter-path quantized
fuse --model four --adapter-path quantized --save-path fused4
fuse --model four --adapter-path quantized --save-path fused16 --dequantize
generate --model fused4 {SAY}
cache_prompt --model model --prompt 'a long story' --prompt-cache-file cache.safetensors --kv-bits 8 --kv-group-size 32
generate --model model --prompt-cache-file cache.safetensors {SAY}
generate --model model {SAY} --draft-model fused --num-draft-tokens 2
generate --model model {SAY} --temp 0.8 --top-p 0.9 --top-k 20 --min-p 0.02 --seed 3
generate --model model {SAY} --max-kv-size 16 --prefill-step-size 4
gptq --model llama --mlx-path gptq --num-samples 8 --sequence-length 64
generate --model gptq {SAY}
awq --model llama --mlx-path awq --num-samples 8 --sequence-length 64 --n-grid 4 --group-size 32
generate --model awq {SAY}
dynamic_quant --model llama --mlx-path dynamic --target-bpw 4.6 --low-bits 3 --high-bits 6
generate --model dynamic {SAY}
benchmark --model model -p 16 -g 4 -n 1 -b 2
{TRAIN} --model model --num-layers 1 --adapter-path full --fine-tune-type full --optimizer muon --grad-checkpoint
{TRAIN} --model model --num-layers 2 --adapter-path accumulated --grad-accumulation-steps 2 -c settings.yaml
""".strip().splitlines()
SETTINGS = """
lora_parameters: {rank: 4, scale: 8.0, dropout: 0.1, keys: [self_attn.q_proj, mlp.down_proj]}
lr_schedule: {name: cosine_decay, warmup: 2, warmup_init: 1e-5, arguments: [1e-3, 4, 1e-4]}
"""


def write_data(folder):
    folder.mkdir()
    for split, count in {"train": 16, "valid": 8, "test": 8}.items():
        lines = [
            {"messages": [{"role": "user", "content": f"what is {i}?"}, {"role": "assistant", "content": "it is ok."}]}
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))


def main():
    os.chdir(HERE)
    os.environ["HOME"] = str(Path.cwd())  # where the text is looked for that quantizations are fitted to
    text = Path(".cache/mlx-lm/calibration_v5.txt")
    text.parent.mkdir(parents=True)
    text.write_text("\n".join(f"{i} is more than {i - 1}, and less than {i + 1}." for i in range(150)))
    make(Path("model"))
    make(Path("llama"), model_type="llama")
    make(Path("mixtral"), model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
    write_data(Path("data"))
    Path("settings.yaml").write_text(SETTINGS)
    found = {}
    for line in COMMANDS:
        said = io.StringIO()
        sys.argv = ["mlx_lm", *shlex.split(line)]
        with contextlib.redirect_stdout(said):
            cli.main()
        found[line] = said.getvalue()
    Path("found.json").write_text(json.dumps(found))


main()
