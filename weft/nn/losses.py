"""Losses. `reduction` is "none", "mean" or "sum"."""

from __future__ import annotations

import math
from typing import Literal

import weft.core as mx

Reduction = Literal["none", "mean", "sum"]
_REDUCTIONS = ("none", "mean", "sum")


def _reduce(loss: mx.array, reduction: str) -> mx.array:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"Invalid reduction. Must be one of {_REDUCTIONS}.")
    return {"none": lambda x: x, "mean": mx.mean, "sum": mx.sum}[reduction](loss)


def _alike(first: str, a: mx.array, second: str, b: mx.array) -> None:
    if a.shape != b.shape:
        raise ValueError(f"{first} shape {a.shape} does not match {second} shape {b.shape}.")


def _weighted(loss: mx.array, weights: mx.array | None) -> mx.array:
    if weights is None:
        return loss
    if weights.shape != loss.shape:
        raise ValueError(f"Weights with shape {weights.shape} is not the same as output loss with shape {loss.shape}.")
    return loss * weights


def _picked(x: mx.array, targets: mx.array, axis: int) -> mx.array:
    return mx.take_along_axis(x, mx.expand_dims(targets, axis), axis).squeeze(axis)


def cross_entropy(
    logits: mx.array,
    targets: mx.array,
    weights: mx.array | None = None,
    axis: int = -1,
    label_smoothing: float = 0.0,
    reduction: Reduction = "none",
) -> mx.array:
    """The cross entropy of logits and targets: classes, or probabilities in the shape of the logits.

    >>> nn.losses.cross_entropy(mx.array([[2.0, 0.0]]), mx.array([0]))
    array([0.126928], dtype=float32)
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"Label smoothing must be in [0, 1), got {label_smoothing}.")
    probabilities = targets.ndim == logits.ndim
    expected = list(logits.shape)
    if not probabilities:
        expected.pop(axis)
    if targets.shape != tuple(expected):
        raise ValueError(f"Targets shape {targets.shape} does not match logits shape {logits.shape}.")
    # Where targets are probabilities that do not sum to one, the largest logit counts once and not as often.
    logits = logits - mx.stop_gradient(mx.max(logits, axis=axis, keepdims=True))
    score = mx.sum(logits * targets, axis=axis) if probabilities else _picked(logits, targets, axis)
    if label_smoothing > 0:
        score = (1 - label_smoothing) * score + label_smoothing * mx.mean(logits, axis=axis)
    return _reduce(_weighted(mx.logsumexp(logits, axis=axis) - score, weights), reduction)


def binary_cross_entropy(
    inputs: mx.array,
    targets: mx.array,
    weights: mx.array | None = None,
    with_logits: bool = True,
    reduction: Reduction = "mean",
) -> mx.array:
    """The cross entropy of two classes; `inputs` are logits, or probabilities whose logarithms end at -100."""
    _alike("Inputs", inputs, "targets", targets)
    if with_logits:
        loss = mx.logaddexp(0.0, inputs) - inputs * targets
    else:
        yes, no = (mx.clip(mx.log(p), -100, None) for p in (inputs, 1 - inputs))
        loss = -(targets * yes + (1 - targets) * no)
    return _reduce(_weighted(loss, weights), reduction)


def l1_loss(predictions: mx.array, targets: mx.array, reduction: Reduction = "mean") -> mx.array:
    """|predictions - targets|."""
    _alike("Predictions", predictions, "targets", targets)
    return _reduce(mx.abs(predictions - targets), reduction)


def mse_loss(predictions: mx.array, targets: mx.array, reduction: Reduction = "mean") -> mx.array:
    """(predictions - targets)²."""
    _alike("Predictions", predictions, "targets", targets)
    return _reduce(mx.square(predictions - targets), reduction)


def nll_loss(inputs: mx.array, targets: mx.array, axis: int = -1, reduction: Reduction = "none") -> mx.array:
    """Minus the log probability (`inputs`) of the target classes."""
    return _reduce(-_picked(inputs, targets, axis), reduction)


def gaussian_nll_loss(
    inputs: mx.array,
    targets: mx.array,
    vars: mx.array,
    full: bool = False,
    eps: float = 1e-6,
    reduction: Reduction = "mean",
) -> mx.array:
    """Minus the log density of targets that are normal with means `inputs` and variances `vars` (at least eps), without
    its constant unless `full`."""
    _alike("Inputs", inputs, "targets", targets)
    _alike("Inputs", inputs, "vars", vars)
    spread = mx.maximum(vars, eps)
    loss = 0.5 * (mx.log(spread) + mx.square(targets - inputs) / spread)
    return _reduce(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def kl_div_loss(inputs: mx.array, targets: mx.array, axis: int = -1, reduction: Reduction = "none") -> mx.array:
    """The Kullback-Leibler divergence of two sets of log probabilities."""
    return _reduce(mx.sum(mx.exp(targets) * (targets - inputs), axis=axis), reduction)


def smooth_l1_loss(
    predictions: mx.array, targets: mx.array, beta: float = 1.0, reduction: Reduction = "mean"
) -> mx.array:
    """d² / (2 beta) for differences d below beta, |d| - beta / 2 above."""
    _alike("Predictions", predictions, "targets", targets)
    distance = mx.abs(predictions - targets)
    return _reduce(mx.where(distance < beta, 0.5 * mx.square(distance) / beta, distance - 0.5 * beta), reduction)


def triplet_loss(
    anchors: mx.array,
    positives: mx.array,
    negatives: mx.array,
    axis: int = -1,
    p: int = 2,
    margin: float = 1.0,
    eps: float = 1e-6,
    reduction: Reduction = "none",
) -> mx.array:
    """How much farther (in the p-norm) anchors are from positives than from negatives, plus a margin; 0 at least."""

    def distance(others: mx.array) -> mx.array:
        return mx.power(mx.power(mx.abs(anchors - others), p).sum(axis) + eps, 1.0 / p)

    return _reduce(mx.maximum(distance(positives) - distance(negatives) + margin, 0), reduction)


def hinge_loss(inputs: mx.array, targets: mx.array, reduction: Reduction = "none") -> mx.array:
    """max(0, 1 - inputs * targets), for targets of 1 and -1."""
    return _reduce(mx.maximum(1 - inputs * targets, 0), reduction)


def huber_loss(inputs: mx.array, targets: mx.array, delta: float = 1.0, reduction: Reduction = "none") -> mx.array:
    """Half the squared difference up to delta, a straight line from there on."""
    distance = mx.abs(inputs - targets)
    near = mx.minimum(distance, delta)
    return _reduce(0.5 * mx.square(near) + delta * (distance - near), reduction)


def log_cosh_loss(inputs: mx.array, targets: mx.array, reduction: Reduction = "none") -> mx.array:
    """log(cosh(inputs - targets))."""
    difference = inputs - targets
    return _reduce(mx.logaddexp(difference, -difference) - math.log(2), reduction)


def cosine_similarity_loss(
    x1: mx.array, x2: mx.array, axis: int = 1, eps: float = 1e-8, reduction: Reduction = "none"
) -> mx.array:
    """The cosine of the angle between vectors along an axis."""

    def norm(x: mx.array) -> mx.array:
        return mx.sqrt(mx.sum(mx.square(x), axis=axis))

    return _reduce(mx.sum(x1 * x2, axis=axis) / mx.maximum(norm(x1) * norm(x2), eps), reduction)


def margin_ranking_loss(
    inputs1: mx.array, inputs2: mx.array, targets: mx.array, margin: float = 0.0, reduction: Reduction = "none"
) -> mx.array:
    """max(0, -targets * (inputs1 - inputs2) + margin): targets of 1 want inputs1 larger, -1 the other."""
    if not inputs1.shape == inputs2.shape == targets.shape:
        raise ValueError(
            f"The shapes of the arguments do not match. The provided shapes are inputs1.shape={inputs1.shape}, "
            f"inputs2.shape={inputs2.shape}, and targets.shape={targets.shape}."
        )
    return _reduce(mx.maximum(0, -targets * (inputs1 - inputs2) + margin), reduction)


__all__ = [
    "Reduction", "binary_cross_entropy", "cosine_similarity_loss", "cross_entropy", "gaussian_nll_loss", "hinge_loss",
    "huber_loss", "kl_div_loss", "l1_loss", "log_cosh_loss", "margin_ranking_loss", "mse_loss", "nll_loss",
    "smooth_l1_loss", "triplet_loss",
]  # fmt: skip
