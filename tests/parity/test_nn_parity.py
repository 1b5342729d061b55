"""`weft.nn` beside `mlx.nn`: the same weights give the same outputs, gradients, statistics and texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as wx
import weft.nn as wn
import weft.utils as wu

mx = pytest.importorskip("mlx.core")
mn = pytest.importorskip("mlx.nn")
mu = pytest.importorskip("mlx.utils")

SIZE = 1e-5
"""Relative to the largest number of a result: float32 sums of a few hundred terms on both sides."""


def draw(shape: tuple[int, ...], seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def give(model: Any, array: Callable[[np.ndarray], Any], flatten: Any, unflatten: Any) -> Any:
    """The same numbers for the parameters of both."""
    flat = flatten(model.parameters())
    new = [
        (path, array(draw(x.shape, seed, 0.1, 0.5))) for seed, (path, x) in enumerate(sorted(flat, key=lambda p: p[0]))
    ]
    if new:
        model.update(unflatten(new))
    return model


def alike(ours: Any, theirs: Any, what: str = "") -> None:
    a, b = np.array(ours), np.array(theirs)
    assert a.shape == b.shape, what
    assert str(ours.dtype).rpartition(".")[2] == str(theirs.dtype).rpartition(".")[2], what
    scale = max(1.0, float(np.abs(b).max())) if b.size else 1.0
    assert np.all(np.abs(a.astype(np.float64) - b) <= SIZE * scale), what


def both(make: Callable[[Any], Any], *inputs: np.ndarray, grads: bool = True) -> None:
    """A layer with the same weights: outputs, gradients of parameters and inputs, and its text."""
    ours = give(make(wn), wx.array, wu.tree_flatten, wu.tree_unflatten)
    theirs = give(make(mn), mx.array, mu.tree_flatten, mu.tree_unflatten)
    paths = {p: x.shape for p, x in wu.tree_flatten(ours.parameters())}
    assert paths == {p: tuple(x.shape) for p, x in mu.tree_flatten(theirs.parameters())}
    assert {p for p, _ in wu.tree_flatten(ours.trainable_parameters())} == {
        p for p, _ in mu.tree_flatten(theirs.trainable_parameters())
    }
    if "function" not in repr(theirs):
        assert repr(ours) == repr(theirs)
    out = [ours(*map(wx.array, inputs)), theirs(*map(mx.array, inputs))]
    if isinstance(out[0], (tuple, list)):
        for a, b in zip(*out, strict=True):
            alike(a, b, "output")
    else:
        alike(*out, "output")
    if not grads:
        return

    def loss(m: Any, model: Any) -> Callable[..., Any]:
        def f(*args: Any) -> Any:
            made = model(*args)
            made = made if isinstance(made, (tuple, list)) else [made]
            return sum((m.sum(x * m.cos(x)) for x in made), m.array(0.0))

        return f

    if wu.tree_flatten(ours.trainable_parameters()):
        value, gradient = wn.value_and_grad(ours, loss(wx, ours))(*map(wx.array, inputs))
        value2, gradient2 = mn.value_and_grad(theirs, loss(mx, theirs))(*map(mx.array, inputs))
        alike(value, value2, "loss")
        expected = dict(mu.tree_flatten(gradient2))
        found = dict(wu.tree_flatten(gradient))
        assert found.keys() == expected.keys()
        for path, x in found.items():
            alike(x, expected[path], f"gradient of {path}")
    for (path, x), (_, y) in zip(
        sorted(wu.tree_flatten(ours.parameters())), sorted(mu.tree_flatten(theirs.parameters())), strict=True
    ):
        alike(x, y, f"{path} afterwards")
    if all(a.dtype == np.float32 for a in inputs):
        alike(
            wx.grad(loss(wx, ours))(*map(wx.array, inputs)), mx.grad(loss(mx, theirs))(*map(mx.array, inputs)), "input"
        )


X, IMAGE, SEQUENCE, VOLUME = draw((3, 6)), draw((2, 8, 9, 4)), draw((2, 7, 6)), draw((2, 4, 5, 6, 4))
LAYERS: dict[str, tuple[Any, ...]] = {
    "Linear": (lambda n: n.Linear(6, 5), X),
    "Linear without bias": (lambda n: n.Linear(6, 5, bias=False), SEQUENCE),
    "Bilinear": (lambda n: n.Bilinear(6, 4, 3), X, draw((3, 4), 1)),
    "Bilinear of batches": (lambda n: n.Bilinear(6, 4, 3, bias=False), SEQUENCE, draw((2, 7, 4), 1)),
    "Identity": (lambda n: n.Identity(3, a=2), X),
    "Sequential": (lambda n: n.Sequential(n.Linear(6, 4), n.ReLU(), n.Linear(4, 2)), X),
    "InstanceNorm": (lambda n: n.InstanceNorm(4), IMAGE),
    "InstanceNorm affine": (lambda n: n.InstanceNorm(4, affine=True), IMAGE),
    "LayerNorm": (lambda n: n.LayerNorm(6), SEQUENCE),
    "LayerNorm without bias": (lambda n: n.LayerNorm(6, bias=False), SEQUENCE),
    "LayerNorm plain": (lambda n: n.LayerNorm(6, affine=False), SEQUENCE),
    "RMSNorm": (lambda n: n.RMSNorm(6), SEQUENCE),
    "GroupNorm": (lambda n: n.GroupNorm(2, 4), IMAGE),
    "GroupNorm of torch": (lambda n: n.GroupNorm(2, 4, pytorch_compatible=True), IMAGE),
    "BatchNorm": (lambda n: n.BatchNorm(4), IMAGE),
    "BatchNorm plain": (lambda n: n.BatchNorm(6, affine=False, momentum=0.3), X),
    "BatchNorm without statistics": (lambda n: n.BatchNorm(6, track_running_stats=False), SEQUENCE),
    "BatchNorm used": (lambda n: n.BatchNorm(4).eval(), IMAGE),
    "MaxPool1d": (lambda n: n.MaxPool1d(3, 2, 1), SEQUENCE),
    "MaxPool2d": (lambda n: n.MaxPool2d(2), IMAGE[:, :, :8]),
    "MaxPool2d overlapping": (lambda n: n.MaxPool2d((3, 2), (2, 1), (1, 0)), IMAGE),
    "MaxPool3d": (lambda n: n.MaxPool3d(2, 1), VOLUME),
    "AvgPool1d": (lambda n: n.AvgPool1d(3), SEQUENCE),
    "AvgPool2d": (lambda n: n.AvgPool2d(3, 2, 1), IMAGE),
    "AvgPool3d": (lambda n: n.AvgPool3d((2, 1, 3)), VOLUME),
    "RoPE": (lambda n: n.RoPE(6), draw((2, 3, 7, 6))),
    "RoPE traditional": (lambda n: n.RoPE(4, traditional=True, scale=0.5), draw((2, 3, 7, 6))),
    "sinusoidal": (lambda n: n.SinusoidalPositionalEncoding(8), draw((5,))),
    "sinusoidal turns": (lambda n: n.SinusoidalPositionalEncoding(2, full_turns=True, cos_first=True, scale=1), X),
    "ALiBi": (lambda n: n.ALiBi(), draw((2, 6, 4, 5))),
    "RNN": (lambda n: n.RNN(6, 5), SEQUENCE),
    "RNN without bias": (lambda n: n.RNN(6, 5, bias=False), X),
    "GRU": (lambda n: n.GRU(6, 5), SEQUENCE),
    "GRU without bias": (lambda n: n.GRU(6, 5, bias=False), SEQUENCE),
    "GRU continued": (lambda n: n.GRU(6, 5), SEQUENCE, draw((2, 5), 3)),
    "LSTM": (lambda n: n.LSTM(6, 5), SEQUENCE),
    "LSTM continued": (lambda n: n.LSTM(6, 5, bias=False), SEQUENCE, draw((2, 5), 3), draw((2, 5), 4)),
    "MultiHeadAttention": (lambda n: n.MultiHeadAttention(6, 2), SEQUENCE, SEQUENCE, SEQUENCE),
    "MultiHeadAttention of other sizes": (
        lambda n: n.MultiHeadAttention(6, 3, 6, 4, 5, 9, 7, bias=True), SEQUENCE, draw((2, 4, 4), 1), draw((2, 4, 5), 2)
    ),
    "TransformerEncoderLayer": (lambda n: n.TransformerEncoderLayer(6, 2), SEQUENCE, draw((7, 7), 1)),
    "TransformerEncoder": (lambda n: n.TransformerEncoder(2, 6, 2, norm_first=False), SEQUENCE, draw((7, 7), 1)),
    "TransformerEncoder with checkpoints": (
        lambda n: n.TransformerEncoder(2, 6, 2, mlp_dims=10, checkpoint=True), SEQUENCE, draw((7, 7), 1)
    ),
    "TransformerDecoder": (
        lambda n: n.TransformerDecoder(2, 6, 2, mlp_dims=9), SEQUENCE, draw((2, 5, 6), 1), draw((7, 7), 2),
        draw((7, 5), 3),
    ),
    "TransformerDecoderLayer": (
        lambda n: n.TransformerDecoderLayer(6, 2, norm_first=False), SEQUENCE, draw((2, 5, 6), 1), draw((7, 7), 2),
        draw((7, 5), 3),
    ),
    "AllToShardedLinear": (lambda n: n.AllToShardedLinear(6, 5), SEQUENCE),
    "ShardedToAllLinear": (lambda n: n.ShardedToAllLinear(6, 5, bias=False), SEQUENCE),
    "FullyShardedModule": (lambda n: n.FullyShardedModule(n.Linear(6, 5)), SEQUENCE),
    "fully_shard": (lambda n: n.fully_shard(n.Linear(6, 5)), SEQUENCE),
    "Transformer": (
        lambda n: n.Transformer(6, 2, 1, 1, 8), SEQUENCE, draw((2, 5, 6), 1), draw((7, 7), 2), draw((5, 5), 3),
        draw((5, 7), 4),
    ),
    "Upsample": (lambda n: n.Upsample(2), IMAGE),
    "Upsample by a fraction": (lambda n: n.Upsample((1.5, 0.7)), IMAGE),
    "Upsample linear": (lambda n: n.Upsample(1.7, "linear"), IMAGE),
    "Upsample linear corners": (lambda n: n.Upsample(2, "linear", align_corners=True), IMAGE),
    "Upsample linear smooth": (lambda n: n.Upsample(0.6, "linear", antialias=True), IMAGE),
    "Upsample cubic": (lambda n: n.Upsample((2.0, 1.3), "cubic"), IMAGE),
    "Upsample cubic corners": (lambda n: n.Upsample(2, "cubic", align_corners=True), SEQUENCE),
    "Upsample cubic smooth": (lambda n: n.Upsample(0.5, "cubic", antialias=True), IMAGE),
    "PReLU": (lambda n: n.PReLU(6), X),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    make, *inputs = LAYERS[name]
    both(make, *inputs)


def test_embedding() -> None:
    tokens = np.array([[1, 2, 0], [4, 4, 3]])
    both(lambda n: n.Embedding(5, 3), tokens)
    ours = give(wn.Embedding(5, 3), wx.array, wu.tree_flatten, wu.tree_unflatten)
    theirs = give(mn.Embedding(5, 3), mx.array, mu.tree_flatten, mu.tree_unflatten)
    alike(ours.as_linear(wx.array(draw((2, 3)))), theirs.as_linear(mx.array(draw((2, 3)))))


FUNCTIONS = (
    "celu", "elu", "gelu", "gelu_approx", "gelu_fast_approx", "glu", "hard_shrink", "hard_tanh", "hardswish",
    "leaky_relu", "log_sigmoid", "log_softmax", "mish", "relu", "relu2", "relu6", "selu", "sigmoid", "silu", "softmax",
    "softmin", "softplus", "softshrink", "softsign", "step", "tanh",
)  # fmt: skip
MODULES = (
    "CELU", "ELU", "GELU", "GLU", "HardShrink", "HardTanh", "Hardswish", "LeakyReLU", "LogSigmoid", "LogSoftmax",
    "Mish", "ReLU", "ReLU2", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmin", "Softplus", "Softshrink",
    "Softsign", "Step", "Tanh",
)  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(name: str) -> None:
    for x in (X * 4, X.astype(np.float16)):
        ours, theirs = getattr(wn, name)(wx.array(x)), getattr(mn, name)(mx.array(x))
        assert str(ours.dtype).rpartition(".")[2] == str(theirs.dtype).rpartition(".")[2]
        a, b = np.array(ours, np.float64), np.array(theirs, np.float64)
        assert np.all(np.abs(a - b) <= (2e-6 if x.dtype == np.float32 else 2e-3) * (1 + np.abs(b)))


@pytest.mark.parametrize("name", MODULES)
def test_activation_modules(name: str) -> None:
    both(lambda n: getattr(n, name)(), X, grads=False)


LOSSES: dict[str, Callable[[Any, Callable[[np.ndarray], Any]], Any]] = {
    "cross_entropy": lambda f, a: f(a(X), a(np.array([1, 0, 5]))),
    "cross_entropy smooth": lambda f, a: f(a(X), a(np.array([1, 0, 5])), label_smoothing=0.3, reduction="mean"),
    "cross_entropy of probabilities": lambda f, a: f(a(X), a(np.abs(X)), weights=a(np.array([1.0, 2, 3], np.float32))),
    "cross_entropy along": lambda f, a: f(a(SEQUENCE), a(np.zeros((2, 6), int)), axis=1, reduction="sum"),
    "binary_cross_entropy": lambda f, a: f(a(X), a(np.abs(X) / 2)),
    "binary_cross_entropy plain": lambda f, a: f(
        a(np.abs(X) / 2.01), a((X > 0).astype(np.float32)), with_logits=False, weights=a(np.abs(X))
    ),
    "l1_loss": lambda f, a: f(a(X), a(X[::-1].copy())),
    "mse_loss": lambda f, a: f(a(X), a(X[::-1].copy()), reduction="none"),
    "nll_loss": lambda f, a: f(a(X), a(np.array([1, 0, 5]))),
    "gaussian_nll_loss": lambda f, a: f(a(X), a(X[::-1].copy()), a(np.abs(X)), full=True),
    "kl_div_loss": lambda f, a: f(a(-np.abs(X)), a(-np.abs(X[::-1].copy()))),
    "smooth_l1_loss": lambda f, a: f(a(X), a(X[::-1].copy()), beta=0.7),
    "triplet_loss": lambda f, a: f(a(X), a(X[::-1].copy()), a(X * 0.5), p=3),
    "hinge_loss": lambda f, a: f(a(X), a(np.sign(X[::-1].copy()))),
    "huber_loss": lambda f, a: f(a(X), a(X[::-1].copy()), delta=0.8),
    "log_cosh_loss": lambda f, a: f(a(X), a(X[::-1].copy())),
    "cosine_similarity_loss": lambda f, a: f(a(X), a(X[::-1].copy())),
    "margin_ranking_loss": lambda f, a: f(a(X), a(X[::-1].copy()), a(np.sign(X)), margin=0.2, reduction="mean"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    call = LOSSES[name]
    function = name.partition(" ")[0]
    alike(call(getattr(wn.losses, function), wx.array), call(getattr(mn.losses, function), mx.array))


INITIALIZERS = (
    "constant", "normal", "uniform", "identity", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "sparse",
)  # fmt: skip


@pytest.mark.parametrize("name", ["QuantizedAllToShardedLinear", "QuantizedShardedToAllLinear"])
def test_quantized_layers_of_a_group_of_one(name: str) -> None:
    made = []
    for n, m, flatten, unflatten in (
        (wn, wx, wu.tree_flatten, wu.tree_unflatten),
        (mn, mx, mu.tree_flatten, mu.tree_unflatten),
    ):
        plain = give(n.Linear(64, 32), m.array, flatten, unflatten)
        layer = getattr(n, name).from_quantized_linear(n.QuantizedLinear.from_linear(plain, 32, 4))
        made.append((layer(m.array(draw((3, 64)))), repr(layer), [p for p, _ in flatten(layer.parameters())]))
    alike(made[0][0], made[1][0])
    assert made[0][1] == made[1][1]
    assert sorted(made[0][2]) == sorted(made[1][2])


def test_layers_that_quantize_what_they_are_given() -> None:
    """While they train they hold weights, then codes; MLX multiplies on GPUs alone."""
    made = []
    for n, m, flatten, unflatten in (
        (wn, wx, wu.tree_flatten, wu.tree_unflatten),
        (mn, mx, mu.tree_flatten, mu.tree_unflatten),
    ):
        layer = give(n.QQLinear(64, 32), m.array, flatten, unflatten)
        texts = [repr(layer)]
        layer.eval()
        layer.quantize()
        texts.append(repr(layer))
        made.append((texts, layer.weight, layer.scales))
    assert made[0][0] == made[1][0]
    for ours, theirs in zip(made[0][1:], made[1][1:], strict=True):
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))


def test_gradients_of_a_group_of_one() -> None:
    for n, m in ((wn, wx), (mn, mx)):
        gradients = {"a": m.array([1.0, 2.0]), "b": [m.array(3.0)]}
        found = n.average_gradients(gradients)
        assert found["a"].tolist() == [1.0, 2.0]
        assert found["b"][0].item() == 3.0


@pytest.mark.parametrize("alpha", [0.25, -1.0])
def test_prelu(alpha: float) -> None:
    alike(wn.prelu(wx.array(X), wx.array(alpha)), mn.prelu(mx.array(X), mx.array(alpha)))


@pytest.mark.parametrize("shape", [(6, 6), (3, 5), (7, 2)])
def test_orthogonal_weights(shape: tuple[int, ...]) -> None:
    """MLX has them on the GPU unless work goes to the CPU."""
    for n, m in ((wn, wx), (mn, mx)):
        w = np.array(n.init.orthogonal(2.0)(m.zeros(shape)), np.float64)
        square = w @ w.T if shape[0] <= shape[1] else w.T @ w
        np.testing.assert_allclose(square, 4 * np.eye(min(shape)), atol=1e-5)
        with pytest.raises(ValueError):
            n.init.orthogonal()(m.zeros(3))


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name: str) -> None:
    """Random numbers are MLX's, so the weights are the same."""
    args = {"constant": (0.5,), "sparse": (0.4,)}.get(name, ())
    wx.random.seed(7)
    mx.random.seed(7)
    ours = getattr(wn.init, name)(*args)(wx.zeros((6, 6)))
    theirs = getattr(mn.init, name)(*args)(mx.zeros((6, 6)))
    alike(ours, theirs)


def test_new_layers_have_the_weights_of_mlx() -> None:
    for make in (
        lambda n: n.Linear(5, 3), lambda n: n.Embedding(4, 3), lambda n: n.LSTM(3, 4), lambda n: n.GRU(3, 4),
        lambda n: n.TransformerEncoder(1, 8, 2), lambda n: n.Bilinear(2, 3, 4),
    ):  # fmt: skip
        wx.random.seed(3)
        mx.random.seed(3)
        ours, theirs = dict(wu.tree_flatten(make(wn).parameters())), dict(mu.tree_flatten(make(mn).parameters()))
        for path in theirs:
            alike(ours[path], theirs[path], path)


def test_parameters_and_sizes_come_in_the_order_of_mlx() -> None:
    """Programs walk over them, and what they draw for one after the other depends on it."""
    for make in (
        lambda n: n.GroupNorm(2, 4), lambda n: n.LayerNorm(4), lambda n: n.BatchNorm(4), lambda n: n.LSTM(3, 4),
        lambda n: n.InstanceNorm(4, affine=True), lambda n: n.GRU(3, 4), lambda n: n.Bilinear(2, 3, 4),
        lambda n: n.Conv1d(2, 3, 3), lambda n: n.Conv2d(2, 3, 3), lambda n: n.Conv3d(2, 3, 3),
        lambda n: n.ConvTranspose1d(2, 3, 3), lambda n: n.ConvTranspose2d(2, 3, 3), lambda n: n.Transformer(8, 2, 1, 1),
        lambda n: n.QuantizedLinear(64, 32), lambda n: n.MultiHeadAttention(8, 2, bias=True),
    ):  # fmt: skip
        ours, theirs = make(wn), make(mn)
        assert list(ours) == list(theirs)
        assert [p for p, _ in wu.tree_flatten(ours.parameters())] == [
            p for p, _ in mu.tree_flatten(theirs.parameters())
        ]


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_one_step_of_a_recurrent_layer_makes_no_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder calls it for each step, and evaluates; the bits are those of the first step of a loop."""
    layer, x = getattr(wn, name)(3, 4), wx.array(draw((2, 5, 3)))

    def results(of: Any, x: Any) -> list[np.ndarray]:
        made = of(x)
        return [np.array(y[:, :1]) for y in (made if isinstance(made, tuple) else [made])]

    looped = results(layer, x)
    shapeless = wx.compile(layer, shapeless=True)
    for first, second in ((x, x[:, :1]), (x[:, :1], x)):
        for found in (results(shapeless, first), results(shapeless, second), results(layer, x[:, :1])):
            assert all(np.array_equal(a, b) for a, b in zip(looped, found, strict=True))
    monkeypatch.delattr(wx, "scan")
    results(layer, x[:, :1])


def test_dropout_draws_as_mlx_does() -> None:
    for make, shape in (
        (lambda n: n.Dropout(0.3), (4, 5)), (lambda n: n.Dropout2d(0.5), (2, 3, 4, 5)),
        (lambda n: n.Dropout3d(0.5), (2, 3, 4, 5)),
    ):  # fmt: skip
        wx.random.seed(3)
        mx.random.seed(3)
        x = draw(shape)
        alike(make(wn)(wx.array(x)), make(mn)(mx.array(x)))
        assert repr(make(wn)) == repr(make(mn))
        alike(make(wn).eval()(wx.array(x)), mx.array(x))


def test_names_and_signatures() -> None:
    for ours, theirs in ((wn, mn), (wn.losses, mn.losses), (wn.init, mn.init), (wu, mu)):
        for name, value in vars(theirs).items():
            if name.startswith("_") or getattr(value, "__module__", "mlx").partition(".")[0] != "mlx":
                continue
            assert hasattr(ours, name), f"{theirs.__name__}.{name}"
            if inspect.isclass(value) and name != "Module":
                expected = list(inspect.signature(value.__init__).parameters)
                found = list(inspect.signature(getattr(ours, name).__init__).parameters)
                assert found == expected, name


LIBRARIES = pytest.mark.parametrize(("n", "m"), [(wn, wx), (mn, mx)], ids=["weft", "mlx"])


@LIBRARIES
def test_a_module_is_a_dict(n: Any, m: Any) -> None:

    class Own(n.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = m.ones(2), [n.Linear(2, 2), {"x": m.zeros(1)}], 3
            self._hidden = m.ones(1)

    model = Own()
    assert isinstance(model, dict)
    assert "a" in model
    assert "c" not in model
    assert model["a"] is model.a
    model.a = 5
    assert "a" not in model
    assert model.a == 5
    model.c = m.ones(3)
    assert "c" in model
    del model.c
    assert not hasattr(model, "c")
    with pytest.raises(AttributeError, match="nope"):
        _ = model.nope
    flatten = (wu if n is wn else mu).tree_flatten
    assert sorted(p for p, _ in flatten(model.parameters())) == ["b.0.bias", "b.0.weight", "b.1.x"]
    assert [p for p, _ in model.named_modules()] == ["", "b.0"]
    model.freeze(keys="bias")
    assert sorted(p for p, _ in flatten(model.trainable_parameters())) == ["b.0.weight", "b.1.x"]
    model.freeze()
    assert not flatten(model.trainable_parameters())
    model.unfreeze(keys="weight")
    assert [p for p, _ in flatten(model.trainable_parameters())] == ["b.0.weight"]
    with pytest.raises(KeyError):
        model.freeze(keys="nope", strict=True)
    with pytest.raises(ValueError, match="nope"):
        model.update({"nope": m.ones(1)})
    with pytest.raises(ValueError, match="out of bounds"):
        model.update({"b": [{}, {}, {}]})
    with pytest.raises(ValueError, match="invalid type"):
        model.update({"b": [{"bias": 3}]})
    model.update({"nope": m.ones(1)}, strict=False)
    assert model.train(False).training is False
    assert model.b[0].training is False


@LIBRARIES
def test_modules_that_do_not_call_their_base(n: Any, m: Any) -> None:

    class Own(n.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            self.a = m.ones(2)

        def __call__(self, x: Any) -> Any:
            return x * self.a

    model = Own()
    assert np.array(model(m.ones(2))).tolist() == [1, 1]
    assert list(model.parameters()) == ["a"]
