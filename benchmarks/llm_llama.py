"""llama.cpp on a model of `llm_gguf.py`, by `llama-cpp-python`: the figures of `llm.py`, as JSON.

    python benchmarks/llm_llama.py model.gguf tokens threads

The loop is what llama.cpp's own programs do: one batch for the prompt, of which the last token's logits are asked for,
then a token at a time, each the one with the largest logit.
"""

import contextlib
import ctypes
import json
import re
import sys
import time
from pathlib import Path

import llama_cpp as lib
import numpy as np

PROMPT = [1, 2, 3, 4]
PREFILLS = (64, 512)
ROUNDS = 3


class Model:
    """A model with one sequence."""

    def __init__(self, path: str, threads: int, places: int) -> None:
        lib.llama_backend_init()
        self._quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        options = lib.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(path.encode(), options)
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        about = lib.llama_context_default_params()
        about.n_ctx, about.n_batch, about.n_ubatch = places, places, places
        about.n_threads = about.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, about)
        self.vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(places, 0, 1)
        self.length = 0

    def forget(self) -> None:
        """Begin a new sequence."""
        lib.llama_memory_clear(lib.llama_get_memory(self.context), False)
        self.length = 0

    def logits(self, tokens: list[int]) -> np.ndarray:
        """The logits behind the last of these tokens, which join the sequence: valid until the next call."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i == len(tokens) - 1
        if lib.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        self.length += len(tokens)
        row = lib.llama_get_logits_ith(self.context, len(tokens) - 1)
        return np.ctypeslib.as_array(row, (self.vocabulary,))

    def prefill(self, count: int) -> float:
        """Seconds to the first token behind a prompt of so many."""
        self.forget()
        start = time.perf_counter()
        self.logits([i % 1000 for i in range(count)]).argmax()
        return time.perf_counter() - start

    def decode(self, count: int) -> tuple[list[int], float, float]:
        """The tokens, and the seconds and the CPU seconds of one, behind the first."""
        self.forget()
        tokens = [int(self.logits(PROMPT).argmax())]
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(count - 1):
            tokens.append(int(self.logits(tokens[-1:]).argmax()))
        behind = count - 1
        return tokens, (time.perf_counter() - start) / behind, (time.process_time() - cpu) / behind


def main() -> None:
    path, tokens, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = Model(path, threads, max(*PREFILLS, len(PROMPT) + tokens))
    with contextlib.suppress(OSError):  # the peak of memory is that from here on
        Path("/proc/self/clear_refs").write_text("5")
    model.prefill(PREFILLS[0])  # brings the weights in
    prefills = [min(model.prefill(count) for _ in range(ROUNDS)) for count in PREFILLS]
    runs = [model.decode(tokens) for _ in range(ROUNDS)]
    found = {
        "prefill": prefills,
        "tokens": runs[-1][0][:8],
        "token": min(run[1] for run in runs),
        "cpu": min(run[2] for run in runs),
        "peak": int(re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[0]) / 1024,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
