"""A small transformer writes text, one letter at a time: `python examples/decode.py --help`.

First it reads the prompt at once and remembers the keys and values of every position (the cache). Then a single
`mx.while_loop` writes: each step puts one position into the cache, looks back at all of them and takes the most likely
letter, until it comes to a full stop. The loop is native code; the cache is updated in place.

The weights are made, not trained. Layer 1 finds the two letters before each position; layer 2 looks for where they were
last the two letters that are here now, and says what came then. So the model goes on as the prompt once did.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import weft.core as mx

LETTERS = "abcdefghijklmnopqrstuvwxyz ,'.\n"
COUNT = len(LETTERS)
SHARP, NEWER = 1e5, 4.0  # how much a match counts, and one position nearer to the end
Model = dict[str, Any]


def made_model(longest: int) -> Model:
    """Letters are unit vectors; so are places, in directions that hardly overlap."""
    rng = np.random.default_rng(0)
    places = rng.normal(size=(longest, 64))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    return {"places": mx.array(places, dtype=mx.float32), "letters": mx.eye(COUNT)}


def attend(query: Any, keys: Any, values: Any, limit: Any) -> Any:
    """A mixture of the values by how well their keys match, of those before `limit` (one for each query)."""
    position = mx.arange(keys.shape[0])
    scores = SHARP * (query @ keys.T) + NEWER * position
    seen = position < limit[:, None]
    return mx.softmax(mx.where(seen, scores, -1e9), axis=-1) @ values


def forward(model: Model, letters: Any, at: Any, cache: Model) -> tuple[Any, Model]:
    """Read `letters`, which stand at the positions `at`, and put them into the cache; scores of the letters after."""
    places, now = model["places"], model["letters"][letters]
    values = mx.slice_update(cache["values"], now, at[0], (0,))
    # Layer 1: two heads, which look one and two positions back and fetch the letters there.
    before, earlier = (
        mx.where((at >= back)[:, None], attend(places[mx.maximum(at - back, 0)], places, values, at), 0.0)
        for back in (1, 2)
    )
    # Layer 2: a head whose keys are the two letters before a position, and its query the two that end here.
    keys = mx.slice_update(cache["keys"], mx.concatenate([before, 0.5 * earlier], axis=1), at[0], (0,))
    after = attend(mx.concatenate([now, before], axis=1), keys, values, at + 1)
    return after, {"keys": keys, "values": values}


def new_cache(longest: int) -> Model:
    return {"keys": mx.zeros((longest, 2 * COUNT)), "values": mx.zeros((longest, COUNT))}


def writer(model: Model, longest: int) -> Any:
    """A compiled function: (letters of the prompt) -> (all letters, how many there are)."""

    def write(prompt: Any) -> tuple[Any, Any]:
        read = prompt.shape[0]
        scores, cache = forward(model, prompt, mx.arange(read), new_cache(longest))
        text = mx.slice_update(mx.zeros((longest,), mx.int32), prompt, mx.array(0), (0,))

        def step(state: Any) -> Any:
            text, cache, n, letter = state
            text = mx.slice_update(text, letter[None], n, (0,))
            scores, cache = forward(model, letter[None], n[None], cache)
            return text, cache, n + 1, mx.argmax(scores[-1]).astype(mx.int32)

        def goes_on(state: Any) -> Any:
            text, _, n, _ = state
            return (n < longest) & ((n == read) | (text[n - 1] != LETTERS.index(".")))

        start = text, cache, mx.array(read), mx.argmax(scores[-1]).astype(mx.int32)
        text, _, n, _ = mx.while_loop(goes_on, step, start)
        return text, n

    return mx.compile(write)


def main(arguments: list[str] | None = None) -> tuple[str, float]:
    """Write something; the text, and how many letters a second."""
    parser = argparse.ArgumentParser(description="Decode a small transformer with a cache, in one native loop.")
    parser.add_argument("prompt", nargs="?", default="merrily, merrily, merrily, life is but a dream. m")
    parser.add_argument("--longest", type=int, default=2048, help="how many positions the cache holds")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.prompt) - set(LETTERS))
    if unknown or not 0 < len(options.prompt) < options.longest:
        parser.error(f"needs between 1 and {options.longest - 1} letters out of {LETTERS!r}")
    prompt = mx.array([LETTERS.index(letter) for letter in options.prompt], dtype=mx.int32)
    write = writer(made_model(options.longest), options.longest)
    mx.eval(write(prompt))  # compiles
    begin = time.perf_counter()
    text, count = write(prompt)
    made = count.item() - len(options.prompt)
    rate = made / (time.perf_counter() - begin)
    written = "".join(LETTERS[i] for i in text.tolist()[: count.item()])
    new = written[len(options.prompt) :]
    print(f"prompt  {options.prompt}\nwrites  {new if len(new) <= 300 else new[:300] + '…'}")
    print(f"{made} letters, {rate:,.0f} a second, in one native loop over a cache of {options.longest} positions")
    return written, rate


if __name__ == "__main__":
    main()
