"""`weft.optimizers` and `weft.utils` beside MLX's: the same gradients in, the same parameters and states out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as wx
import weft.nn as wn
import weft.optimizers as wo
import weft.utils as wu

mx = pytest.importorskip("mlx.core")
mo = pytest.importorskip("mlx.optimizers")
mn = pytest.importorskip("mlx.nn")
mu = pytest.importorskip("mlx.utils")


def test_the_base_of_all_optimizers() -> None:
    for o, m in ((wo, wx), (mo, mx)):
        base = o.Optimizer()
        assert sorted(base.state) == ["step"]
        assert base.step.item() == 0
        with pytest.raises(NotImplementedError):
            base.init({"a": m.zeros(2)})
        assert issubclass(o.Adam, o.Optimizer)


SHAPES = {"a": (4, 6), "b": {"c": (5,), "d": [(3, 2, 4), ()]}}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda o: o.SGD(0.1),
    "SGD momentum": lambda o: o.SGD(0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD nesterov": lambda o: o.SGD(0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda o: o.RMSprop(0.1, alpha=0.9),
    "Adagrad": lambda o: o.Adagrad(0.1),
    "AdaDelta": lambda o: o.AdaDelta(0.5),
    "Adam": lambda o: o.Adam(0.1, betas=[0.8, 0.95]),
    "Adam corrected": lambda o: o.Adam(0.1, bias_correction=True),
    "AdamW": lambda o: o.AdamW(0.1, weight_decay=0.2),
    "Adamax": lambda o: o.Adamax(0.1),
    "Lion": lambda o: o.Lion(0.1, weight_decay=0.1),
    "Adafactor": lambda o: o.Adafactor(),
    "Adafactor fixed": lambda o: o.Adafactor(0.1, beta_1=0.9, weight_decay=0.1, relative_step=False, warmup_init=True),
    "Adafactor warm": lambda o: o.Adafactor(warmup_init=True, scale_parameter=False),
    "Muon": lambda o: o.Muon(0.1),
    "Muon plain": lambda o: o.Muon(0.1, nesterov=False, weight_decay=0),
    "cosine": lambda o: o.SGD(o.cosine_decay(0.1, 3, end=0.01)),
    "exponential": lambda o: o.Adam(o.exponential_decay(0.1, 0.7)),
    "steps": lambda o: o.SGD(o.step_decay(0.1, 0.5, 2)),
    "joined": lambda o: o.SGD(o.join_schedules([o.linear_schedule(0, 0.1, 2), o.cosine_decay(0.1, 3)], [2])),
    "several": lambda o: o.MultiOptimizer(
        [o.Adam(0.1), o.SGD(0.2), o.Lion(0.3)], [lambda p, g: p == "a", lambda p, g: "d" in p]
    ),
}


def tree(make: Callable[[np.ndarray], Any], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return wu.tree_map(
        lambda shape: make(rng.normal(size=shape).astype(np.float32)),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def alike(ours: Any, theirs: Any) -> None:
    a, b = dict(wu.tree_flatten(ours)), dict(mu.tree_flatten(theirs))
    assert a.keys() == b.keys()
    for path in a:
        x, y = np.array(a[path]), np.array(b[path])
        assert x.shape == y.shape, path
        assert str(a[path].dtype).rpartition(".")[2] == str(b[path].dtype).rpartition(".")[2], path
        assert np.allclose(x, y, rtol=2e-5, atol=2e-6), path


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    ours, theirs = OPTIMIZERS[name](wo), OPTIMIZERS[name](mo)
    a, b = tree(wx.array, 0), tree(mx.array, 0)
    for seed in range(1, 6):
        a = ours.apply_gradients(tree(wx.array, seed), a)
        b = theirs.apply_gradients(tree(mx.array, seed), b)
        alike(a, b)
        alike(ours.state, theirs.state)
        assert (
            np.allclose(np.array(ours.learning_rate), np.array(theirs.learning_rate)) if "Adafactor" not in name else 1
        )


@pytest.mark.parametrize("name", ["Adam corrected", "Adafactor", "SGD momentum", "joined", "several"])
def test_compiled_steps_are_plain_ones(name: str) -> None:
    """State that is captured is updated, in the compiled step as in the plain one, to the bit."""
    results = []
    for compiled in (False, True):
        optimizer = OPTIMIZERS[name](wo)
        wx.random.seed(0)
        model = wn.Sequential(wn.Linear(4, 8), wn.Tanh(), wn.Linear(8, 3))
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state]

        def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            loss, grads = wn.value_and_grad(model, lambda x, y: wn.losses.mse_loss(model(x), y))(x, y)
            optimizer.update(model, grads)
            return loss

        run = wx.compile(step, inputs=state, outputs=state) if compiled else step
        x, y = wx.random.normal((5, 4)), wx.random.normal((5, 3))
        losses = [run(x, y).item() for _ in range(4)]
        results.append((losses, {p: np.array(v).tobytes() for p, v in wu.tree_flatten(model.parameters())}))
        if compiled:
            assert run.traces <= 2
    assert results[0] == results[1]


def test_clip_grad_norm() -> None:
    for norm in (0.5, 100.0):
        ours, theirs = wo.clip_grad_norm(tree(wx.array, 1), norm), mo.clip_grad_norm(tree(mx.array, 1), norm)
        alike(ours[0], theirs[0])
        assert np.allclose(np.array(ours[1]), np.array(theirs[1]), rtol=1e-6)
    with pytest.raises(ValueError, match="max_norm"):
        wo.clip_grad_norm({}, -1.0)


def test_states_come_and_go() -> None:
    ours, other = wo.Adam(0.1), wo.Adam(0.1)
    a = tree(wx.array, 0)
    b = ours.apply_gradients(tree(wx.array, 1), a)
    other.state = wu.tree_unflatten(wu.tree_flatten(ours.state))
    c, d = (o.apply_gradients(tree(wx.array, 2), b) for o in (ours, other))
    for (_, x), (_, y) in zip(wu.tree_flatten(c), wu.tree_flatten(d), strict=True):
        assert np.array_equal(np.array(x), np.array(y))
    ours.learning_rate = 0.5
    assert ours.learning_rate.item() == 0.5
    with pytest.raises(ValueError, match="Invalid state"):
        wo.MultiOptimizer([ours]).state = {}
    for make in (
        lambda: wo.SGD(0.1, nesterov=True), lambda: wo.RMSprop(0.1, alpha=-1), lambda: wo.Adam(0.1, betas=[1, 0]),
        lambda: wo.Lion(0.1, betas=[0, 2]), lambda: wo.Adagrad(0.1, eps=0), lambda: wo.AdaDelta(0.1, rho=-1),
        lambda: wo.MultiOptimizer([ours, other]), lambda: wo.cosine_decay(1, 0), lambda: wo.join_schedules([], []),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            make()


def test_names() -> None:
    for name, value in vars(mo).items():
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("mlx.optimizers"):
            assert hasattr(wo, name), name


TREES = [
    {"a": [1, {"b": 2}], "c": (3, [])}, [1, [2, 3]], {}, [], 5, {"x": {"10": 1, "2": 2}}, {"x.y": 1},
]  # fmt: skip


@pytest.mark.parametrize("value", TREES, ids=str)
def test_trees(value: Any) -> None:
    assert wu.tree_flatten(value) == mu.tree_flatten(value)
    assert wu.tree_unflatten(wu.tree_flatten(value)) == mu.tree_unflatten(mu.tree_flatten(value))
    assert wu.tree_flatten(value, destination={}) == mu.tree_flatten(value, destination={})
    assert wu.tree_flatten(value, prefix=".p") == mu.tree_flatten(value, prefix=".p")
    assert wu.tree_map(lambda x, y: x + y, value, value) == mu.tree_map(lambda x, y: x + y, value, value)
    assert wu.tree_map_with_path(lambda p, x: (p, x), value) == mu.tree_map_with_path(lambda p, x: (p, x), value)
    for start in (None, 10):
        assert wu.tree_reduce(lambda a, b: a + b, value, start) == mu.tree_reduce(lambda a, b: a + b, value, start)
    leaf = lambda x: isinstance(x, list)  # noqa: E731
    assert wu.tree_flatten(value, is_leaf=leaf) == mu.tree_flatten(value, is_leaf=leaf)
    for other in TREES:

        def merged(u: Any, other: Any = other) -> Any:
            try:
                return u.tree_merge(value, other, lambda a, b: (a, b))
            except (ValueError, AttributeError) as error:
                return type(error)

        assert merged(wu) == merged(mu)
