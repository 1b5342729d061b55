"""PyTensor on Weft beside its other back ends: what compiling takes, and what a call takes.

    weft bench pytensor [--python path/to/a/python/that/has/pytensor] [--modes WEFT,NUMBA,C,JAX] [name ...]

Each workload is compiled in a process of its own for each mode, without what an earlier one left in a cache, and called
many times; the figures are the best of several rounds, of CPU time on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODES = ("WEFT", "NUMBA", "C", "JAX")
ROUNDS = 7
ROUND_S = 0.25
ROOT = Path(__file__).resolve().parent


# ---- workloads: (inputs, outputs, values) ----


def _density(values: Any, mean: Any, sigma: Any) -> Any:
    import pytensor.tensor as pt

    return (-0.5 * ((values - mean) / sigma) ** 2 - pt.log(sigma)).sum()


def _with_gradient(cost: Any, x: Any) -> list[Any]:
    import pytensor

    return [cost, pytensor.grad(cost, x)]


def radon() -> Any:
    """A hierarchical regression: 919 houses in 85 counties, each with an intercept and a slope; log density and
    gradient."""
    import numpy as np
    import pytensor.tensor as pt

    rng, houses, counties = np.random.default_rng(1), 919, 85
    county, floor = rng.integers(0, counties, houses), rng.integers(0, 2, houses).astype(float)
    x = pt.vector("x", shape=(5 + 2 * counties,))
    mu, scale = x[:2], pt.exp(x[2:5])
    a, b = x[5 : 5 + counties], x[5 + counties :]
    mean = (mu[0] + scale[0] * a)[county] + (mu[1] + scale[1] * b)[county] * floor
    prior = -0.5 * (x**2).sum() + x[2:5].sum() - pt.log1p((scale[2] / 5) ** 2)
    cost = prior + _density(rng.normal(size=houses), mean, scale[2])
    return [x], _with_gradient(cost, x), [rng.normal(size=5 + 2 * counties) * 0.1]


def seir() -> Any:
    """An epidemic of four compartments, 1,200 steps; log density of the counts and gradient."""
    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    steps = 1200
    x = pt.vector("x", shape=(4,))
    rates = pt.exp(x)

    def step(s: Any, e: Any, i: Any, r: Any, rates: Any) -> Any:
        infected, sick, well = rates[0] * s * i, rates[1] * e, rates[2] * i
        return s - 0.1 * infected, e + 0.1 * (infected - sick), i + 0.1 * (sick - well), r + 0.1 * well

    start = [pt.constant(np.float64(v), dtype="float64") for v in (0.99, 0.005, 0.005, 0.0)]
    _, _, i, _ = pytensor.scan(
        step, outputs_info=start, non_sequences=[rates], n_steps=steps, strict=True, return_updates=False
    )
    counts = np.abs(np.random.default_rng(2).normal(0.1, 0.02, size=steps))
    return [x], _with_gradient(_density(counts, i, rates[3]), x), [np.log([0.5, 0.3, 0.1, 0.05])]


def garch() -> Any:
    """GARCH(1,1) of 1,000 returns; log density and gradient."""
    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    returns = np.random.default_rng(3).normal(size=1000)
    x = pt.vector("x", shape=(4,))
    p = pt.exp(x)
    variance = pytensor.scan(
        lambda r, v, p: p[0] + p[1] * r**2 + p[2] * v,
        sequences=[pt.as_tensor(returns[:-1])],
        outputs_info=[p[3]],
        non_sequences=[p],
        strict=True,
        return_updates=False,
    )
    return [x], _with_gradient(_density(returns[1:], 0.0, pt.sqrt(variance)), x), [np.log([0.1, 0.1, 0.8, 1.0])]


def rms_norm() -> Any:
    """The gradient of RMSNorm by its input, 64 rows of 512."""
    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    x, w = pt.matrix("x"), pt.vector("w")
    normed = x / pt.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * w
    rng = np.random.default_rng(4)
    return [x, w], [pytensor.grad((normed**3).sum(), x)], [rng.normal(size=(64, 512)), rng.normal(size=512)]


def fused() -> Any:
    """A dozen elementwise operations on 100,000 numbers."""
    import numpy as np
    import pytensor.tensor as pt

    x, y = pt.vectors("x", "y")
    z = pt.exp(-(x**2)) * pt.sigmoid(y) + pt.tanh(x * y) - pt.log1p(pt.exp(-abs(x))) + pt.sqrt(x**2 + y**2)
    rng = np.random.default_rng(5)
    return [x, y], [z], [rng.normal(size=100_000), rng.normal(size=100_000)]


WORKLOADS = {made.__name__: made for made in (radon, seir, garch, rms_norm, fused)}


# ---- one mode, in a process of its own ----


def measure(name: str, mode: str) -> dict[str, Any]:
    """Seconds to compile and call once, seconds of a call, and a sum of the results."""
    import numpy as np
    import pytensor

    if mode == "WEFT":
        import weft.frontends.pytensor  # noqa: F401
    inputs, outputs, values = WORKLOADS[name]()
    start = time.process_time() + _children()
    function = pytensor.function(inputs, outputs, mode="CVM" if mode == "C" else mode, trust_input=True)
    made = function(*values)
    compiling = time.process_time() + _children() - start
    once = _timed(function, values, 3)
    calls = max(3, int(ROUND_S / max(once, 1e-7)))
    best = min(_timed(function, values, calls) for _ in range(ROUNDS))
    return {"compile_s": compiling, "call_s": best, "sum": float(sum(np.asarray(x).sum() for x in made))}


def _children() -> float:
    """CPU seconds of processes that were started: the C compiler."""
    times = os.times()
    return times.children_user + times.children_system


def _timed(function: Any, values: list[Any], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        for x in function(*values):
            getattr(x, "block_until_ready", lambda: None)()
    return (time.process_time() - start) / calls


def in_process(python: str, name: str, mode: str) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ, "WEFT_CACHE_DIR": folder, "NUMBA_CACHE_DIR": folder, "WEFT_THREADS": "1",
            "PYTENSOR_FLAGS": f"base_compiledir={folder}", "OMP_NUM_THREADS": "1",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        }  # fmt: skip
        if (ROOT.parent / "weft").is_dir():  # the source tree, and not the folder in a wheel
            environment["PYTHONPATH"] = os.pathsep.join([str(ROOT.parent), environment.get("PYTHONPATH", "")])
        command = [python, "-W", "ignore", str(Path(__file__)), "--measure", name, mode]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        print(f"{name} {mode}: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])  # type: ignore[no-any-return]


# ---- all of them ----


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="weft bench pytensor", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return 0
    modes = options.modes.split(",")
    print(f"| workload | {' | '.join(f'{mode} compile s | call µs' for mode in modes)} |")
    print(f"|---|{'---:|---:|' * len(modes)}")
    for name in options.names or WORKLOADS:
        found = {mode: in_process(options.python, name, mode) for mode in modes}
        sums = [answer["sum"] for answer in found.values() if answer is not None]
        if any(abs(x - sums[0]) > 1e-6 * max(1.0, abs(sums[0])) for x in sums):
            print(f"{name}: the results differ: {sums}", file=sys.stderr)
        cells = [
            f"{answer['compile_s']:.2f} | {answer['call_s'] * 1e6:,.1f}" if answer else "– | –"
            for answer in found.values()
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    # This file has the name of what it measures, and its folder comes first where Python looks.
    sys.path = [folder for folder in sys.path if Path(folder or ".").resolve() != ROOT]
    sys.exit(main(sys.argv[1:]))
