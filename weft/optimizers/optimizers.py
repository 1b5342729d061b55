"""Optimizers. One has a state, a dict like the tree of parameters with a dict of arrays at each of its leaves, and the
number of the step and the learning rate beside them.

A subclass says what the state of one parameter is (`init_single`) and what becomes of one parameter (`apply_single`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import weft.core as mx
from weft.utils import tree_flatten, tree_map, tree_merge, tree_reduce, tree_unflatten

Rate = float | Callable[[mx.array], mx.array]
State = dict[str, Any]


class Optimizer:
    """What all optimizers share. `schedulers` gives functions of the step for entries of the state."""

    def __init__(self, schedulers: dict[str, Callable[[mx.array], mx.array]] | None = None) -> None:
        self._initialized = False
        self._state: State = {"step": mx.array(0, mx.uint64)}
        self._schedulers = dict(schedulers or {})

    def update(self, model: Any, gradients: Any) -> None:
        """Change the parameters of a model by gradients that have its structure."""
        model.update(self.apply_gradients(gradients, model))

    def init(self, parameters: Any) -> None:
        """Make the state for these parameters, where there is none yet."""
        self._grown(parameters, self._state)

        def fill(parameter: mx.array, state: State) -> None:
            if not state:
                self.init_single(parameter, state)

        tree_map(fill, parameters, self._state)
        self._initialized = True

    @classmethod
    def _grown(cls, parameters: Any, state: Any) -> Any:
        """The state with an empty dict for each parameter that it does not have."""
        if isinstance(parameters, dict):
            for key, value in parameters.items():
                state[key] = cls._grown(value, state[key]) if key in state else tree_map(lambda _: {}, value)
            return state
        if not isinstance(parameters, (list, tuple)):
            return state
        known = [cls._grown(parameter, old) for parameter, old in zip(parameters, state, strict=False)]
        return type(parameters)([*known, *(tree_map(lambda _: {}, new) for new in parameters[len(known) :])])

    def init_single(self, parameter: mx.array, state: State) -> None:
        """Put what is kept for one parameter into its state."""
        raise NotImplementedError(f"{type(self).__name__} has to say what it keeps for a parameter (init_single)")

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """The new parameter; its state is changed."""
        raise NotImplementedError(f"{type(self).__name__} has to say what a step does (apply_single)")

    def apply_gradients(self, gradients: Any, parameters: Any) -> Any:
        """The new parameters, for gradients that have their structure or a part of it."""
        if not self._initialized:
            self.init(gradients)
        for name, schedule in self._schedulers.items():
            self.state[name] = schedule(self.step)
        self.state["step"] = self.step + 1
        return tree_map(self.apply_single, gradients, parameters, self.state)

    @property
    def state(self) -> State:
        """All that the optimizer remembers."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._initialized = False
        self._state = state

    @property
    def step(self) -> mx.array:
        """How many steps were made."""
        return self.state["step"]

    @property
    def learning_rate(self) -> mx.array:
        """The learning rate of the last step, or of the first one."""
        return self.state["learning_rate"]

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | mx.array) -> None:
        self.state["learning_rate"] = mx.array(learning_rate)

    def _maybe_schedule(self, name: str, param: Rate) -> None:
        """An entry of the state that is a number, or a function of the step."""
        if callable(param):
            self._schedulers[name] = param
        self.state[name] = param(self.step) if callable(param) else mx.array(param)

    def _rate(self, gradient: mx.array) -> mx.array:
        return self.learning_rate.astype(gradient.dtype)


def _need(name: str, what: str, value: float, allowed: bool, text: str) -> None:
    if not allowed:
        raise ValueError(f"{name} {what} should be {text}, {value} was provided instead")


class MultiOptimizer(Optimizer):
    """Several optimizers: a parameter goes to the first whose filter `f(path, gradient)` takes it, else to the last."""

    def __init__(self, optimizers: Sequence[Optimizer], filters: Sequence[Callable[..., bool]] = ()) -> None:
        super().__init__()
        if len(filters) != len(optimizers) - 1:
            raise ValueError(f"Given {len(filters)} filters but {len(optimizers) - 1} needed.")
        self.optimizers = list(optimizers)
        self.filters = [*filters, lambda *args, **kwargs: True]

    def _split(self, gradients: Any) -> list[Any]:
        """The part of the tree that each optimizer gets."""
        parts: list[list[tuple[str, Any]]] = [[] for _ in self.optimizers]
        for path, gradient in tree_flatten(gradients):
            chosen = next(i for i, takes in enumerate(self.filters) if takes(path, gradient))
            parts[chosen].append((path, gradient))
        return [gradients] if len(parts) == 1 else [tree_unflatten(part) if part else {} for part in parts]

    def init(self, parameters: Any) -> None:
        """Make the states of all optimizers."""
        for optimizer, part in zip(self.optimizers, self._split(parameters), strict=True):
            optimizer.init(part)

    def apply_gradients(self, gradients: Any, parameters: Any) -> Any:
        """The new parameters."""
        made: Any = {}
        for optimizer, part in zip(self.optimizers, self._split(gradients), strict=True):
            made = tree_merge(made, optimizer.apply_gradients(part, parameters))
        return made

    @property
    def state(self) -> State:
        """The states of all optimizers."""
        return {"states": [optimizer.state for optimizer in self.optimizers]}

    @state.setter
    def state(self, state: State) -> None:
        if len(state.get("states", ())) != len(self.optimizers):
            raise ValueError("Invalid state provided")
        for optimizer, own in zip(self.optimizers, state["states"], strict=True):
            optimizer.state = own

    @property
    def learning_rate(self) -> mx.array:
        """That of the first optimizer."""
        return self.optimizers[0].learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | mx.array) -> None:
        for optimizer in self.optimizers:
            optimizer.learning_rate = learning_rate  # type: ignore[assignment]


class SGD(Optimizer):
    """Gradient descent, with momentum, dampening, Nesterov's look ahead and weight decay if wanted."""

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening.")
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.dampening, self.nesterov = dampening, nesterov

    def init_single(self, parameter: mx.array, state: State) -> None:
        """The velocity."""
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        if self.weight_decay != 0:
            gradient = gradient + self.weight_decay * parameter
        rate = self._rate(gradient)
        if self.momentum <= 0:
            return parameter - rate * gradient
        v = self.momentum * state["v"] + ((1 - self.dampening) * gradient if self.dampening > 0 else gradient)
        state["v"] = v
        return parameter - rate * (gradient + self.momentum * v if self.nesterov else v)


class RMSprop(Optimizer):
    """Steps divided by a running root mean square of gradients."""

    def __init__(self, learning_rate: Rate, alpha: float = 0.99, eps: float = 1e-8) -> None:
        super().__init__()
        _need("RMSprop", "alpha", alpha, alpha >= 0, ">=0")
        _need("RMSprop", "epsilon", eps, eps > 0, ">0")
        self._maybe_schedule("learning_rate", learning_rate)
        self.alpha, self.eps = alpha, eps

    def init_single(self, parameter: mx.array, state: State) -> None:
        """The mean square."""
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        v = state["v"] = self.alpha * state["v"] + (1 - self.alpha) * mx.square(gradient)
        return parameter - self._rate(gradient) * gradient / (mx.sqrt(v) + self.eps)


class Adagrad(Optimizer):
    """Steps divided by the root of the sum of all squared gradients."""

    def __init__(self, learning_rate: Rate, eps: float = 1e-8) -> None:
        super().__init__()
        _need("Adagrad", "epsilon", eps, eps > 0, ">0")
        self._maybe_schedule("learning_rate", learning_rate)
        self.eps = eps

    def init_single(self, parameter: mx.array, state: State) -> None:
        """The sum of squares."""
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        v = state["v"] = state["v"] + mx.square(gradient)
        return parameter - self._rate(gradient) * gradient / (mx.sqrt(v) + self.eps)


class AdaDelta(Optimizer):
    """Steps whose size is that of earlier steps relative to earlier gradients."""

    def __init__(self, learning_rate: Rate, rho: float = 0.9, eps: float = 1e-6) -> None:
        super().__init__()
        _need("AdaDelta", "rho", rho, rho >= 0, ">=0")
        _need("AdaDelta", "epsilon", eps, eps > 0, ">0")
        self._maybe_schedule("learning_rate", learning_rate)
        self.rho, self.eps = rho, eps

    def init_single(self, parameter: mx.array, state: State) -> None:
        """Mean squares of gradients and of steps."""
        state["v"], state["u"] = mx.zeros_like(parameter), mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        rho, eps, u = self.rho, self.eps, state["u"]
        v = state["v"] = rho * state["v"] + (1 - rho) * mx.square(gradient)
        step = mx.sqrt(u + eps) / mx.sqrt(v + eps) * gradient
        state["u"] = rho * u + (1 - rho) * mx.square(step)
        return parameter - self._rate(gradient) * step


class Adam(Optimizer):
    """Steps along a running mean of gradients, divided by a running root mean square of them."""

    def __init__(
        self,
        learning_rate: Rate,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        bias_correction: bool = False,
    ) -> None:
        super().__init__()
        for number, beta in enumerate(betas, 1):
            _need("Adam", f"beta{number}", beta, 0.0 <= beta < 1.0, "in [0, 1)")
        _need("Adam", "epsilon", eps, eps >= 0, ">=0")
        self._maybe_schedule("learning_rate", learning_rate)
        self.betas, self.eps, self.bias_correction = list(betas), eps, bias_correction

    def init_single(self, parameter: mx.array, state: State) -> None:
        """The mean, and the mean square."""
        state["m"], state["v"] = mx.zeros_like(parameter), mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        rate, (b1, b2) = self._rate(gradient), self.betas
        m = state["m"] = b1 * state["m"] + (1 - b1) * gradient
        v = state["v"] = b2 * state["v"] + (1 - b2) * mx.square(gradient)
        if not self.bias_correction:
            return parameter - rate * m / (mx.sqrt(v) + self.eps)
        c1 = (rate / (1 - b1**self.step)).astype(gradient.dtype)
        c2 = mx.rsqrt(1 - b2**self.step).astype(gradient.dtype)
        return parameter - c1 * m / (mx.sqrt(v) * c2 + self.eps)


class AdamW(Adam):
    """Adam with weight decay that does not go through its means."""

    def __init__(
        self,
        learning_rate: Rate,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        bias_correction: bool = False,
    ) -> None:
        super().__init__(learning_rate, betas, eps, bias_correction)
        self.weight_decay = weight_decay

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        kept = 1 - self._rate(gradient) * self.weight_decay
        return super().apply_single(gradient, parameter * kept, state)


class Adamax(Adam):
    """Adam with a running maximum in place of the root mean square."""

    def __init__(self, learning_rate: Rate, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__(learning_rate, betas, eps)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        b1, b2 = self.betas
        m = state["m"] = b1 * state["m"] + (1 - b1) * gradient
        v = state["v"] = mx.maximum(b2 * state["v"], mx.abs(gradient))
        return parameter - self._rate(gradient) * m / (v + self.eps)


class Lion(Optimizer):
    """Steps of one size: the sign of a mean of gradients."""

    def __init__(self, learning_rate: Rate, betas: Sequence[float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__()
        for number, beta in enumerate(betas, 1):
            _need("Lion", f"beta{number}", beta, 0.0 <= beta < 1.0, "in [0, 1)")
        self._maybe_schedule("learning_rate", learning_rate)
        self.betas, self.weight_decay = list(betas), weight_decay

    def init_single(self, parameter: mx.array, state: State) -> None:
        """The mean."""
        state["m"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        rate, (b1, b2), m = self._rate(gradient), self.betas, state["m"]
        direction = mx.sign(b1 * m + (1 - b1) * gradient)
        state["m"] = b2 * m + (1 - b2) * gradient
        kept = (1 - rate * self.weight_decay) * parameter if self.weight_decay > 0 else parameter
        return kept - rate * direction


class Adafactor(Optimizer):
    """Adam with second moments of matrices kept as one row and one column, and steps relative to the parameter."""

    def __init__(
        self,
        learning_rate: Rate | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta_1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        super().__init__()
        if learning_rate is not None:
            self._maybe_schedule("learning_rate", learning_rate)
        self.eps, self.clip_threshold, self.decay_rate = eps, clip_threshold, decay_rate
        self.beta_1, self.weight_decay = beta_1, weight_decay
        self.scale_parameter, self.relative_step, self.warmup_init = scale_parameter, relative_step, warmup_init

    def init_single(self, parameter: mx.array, state: State) -> None:
        """Mean squares of rows and columns (or of all, for vectors), and a mean of steps if wanted."""
        shape, dtype = parameter.shape, parameter.dtype
        if parameter.ndim >= 2:
            state["exp_avg_sq_row"] = mx.zeros(shape[:-1], dtype)
            state["exp_avg_sq_col"] = mx.zeros((*shape[:-2], shape[-1]), dtype)
        else:
            state["exp_avg_sq"] = mx.zeros_like(parameter)
        if self.beta_1 is not None:
            state["exp_avg"] = mx.zeros_like(parameter)

    def _step_size(self, size: mx.array) -> mx.array:
        """The learning rate for a parameter of this root mean square."""
        if self.relative_step:
            limit = 1e-6 * self.step if self.warmup_init else 0.01
            rate = mx.minimum(limit, mx.rsqrt(self.step))
        else:
            rate = self.learning_rate
        rate = rate.astype(size.dtype)
        return mx.maximum(self.eps[1], size) * rate if self.scale_parameter else 1.0 * rate

    def _scaled(self, gradient: mx.array, state: State, kept: mx.array) -> mx.array:
        """The gradient over its running root mean square."""
        squares = mx.square(gradient) + self.eps[0]
        if gradient.ndim < 2:
            mean = state["exp_avg_sq"] = kept * state["exp_avg_sq"] + (1 - kept) * squares
            return mx.rsqrt(mean) * gradient
        row = kept * state["exp_avg_sq_row"] + (1 - kept) * mx.mean(squares, axis=-1)
        column = kept * state["exp_avg_sq_col"] + (1 - kept) * mx.mean(squares, axis=-2)
        state["exp_avg_sq_row"], state["exp_avg_sq_col"] = row, column
        by_row = mx.rsqrt(row / mx.mean(row, axis=-1, keepdims=True))
        return mx.expand_dims(by_row, -1) * mx.expand_dims(mx.rsqrt(column), -2) * gradient

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        size = _root_mean_square(parameter)
        rate = self._step_size(size)
        kept = 1.0 - (self.step**self.decay_rate).astype(size.dtype)
        update = self._scaled(gradient, state, kept)
        update = rate * (update / mx.maximum(1.0, _root_mean_square(update) / self.clip_threshold))
        if self.beta_1 is not None:
            update = state["exp_avg"] = self.beta_1 * state["exp_avg"] + (1 - self.beta_1) * update
        if self.weight_decay != 0:
            parameter = parameter + parameter * (-self.weight_decay * rate)
        return parameter - update


def _root_mean_square(x: mx.array) -> mx.array:
    return mx.sqrt(mx.mean(mx.square(x)))


class Muon(Optimizer):
    """Momentum whose matrices are made nearly orthogonal, by some steps of a Newton-Schulz iteration, before a step."""

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> None:
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.nesterov, self.ns_steps = nesterov, ns_steps

    def init_single(self, parameter: mx.array, state: State) -> None:
        """The mean of gradients."""
        state["v"] = mx.zeros_like(parameter)

    def _orthogonal(self, x: mx.array) -> mx.array:
        """A matrix with singular values near 1 in place of those of x, by a polynomial of odd degree."""
        wide = x.shape[0] <= x.shape[1]
        x = x if wide else x.T
        x = x / (mx.sqrt(mx.sum(mx.square(x))) + 1e-7)
        for _ in range(self.ns_steps):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * (square @ square)) @ x
        return x if wide else x.T

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """One step."""
        if self.weight_decay != 0:
            gradient = gradient + self.weight_decay * parameter
        part = 1 - self.momentum
        v = state["v"] = self.momentum * state["v"] + part * gradient
        update = gradient * part + v * self.momentum if self.nesterov else v
        rate = self._rate(gradient)
        if update.ndim < 2:
            return parameter - rate * update
        shape = update.shape
        update = self._orthogonal(update.reshape(shape[0], -1)).reshape(shape)
        return parameter - rate * math.sqrt(max(1, shape[-2] / shape[-1])) * update


def clip_grad_norm(grads: Any, max_norm: float) -> tuple[Any, mx.array]:
    """Gradients scaled down so that their norm, all together, is at most `max_norm`; and the norm that they had.

    >>> from weft.optimizers import clip_grad_norm
    >>> clip_grad_norm({"w": mx.array([3.0, 4.0])}, 10.0)[1]
    array(5, dtype=float32)
    """
    if max_norm < 0:
        raise ValueError(f"max_norm should be >=0, {max_norm} was provided instead")

    def squared(g: mx.array) -> mx.array:
        return (g.astype(mx.float32) if g.dtype == mx.float16 else g).square().sum()

    norm = mx.sqrt(mx.array(tree_reduce(lambda total, g: total + squared(g), grads, 0.0)))
    scale = mx.minimum(max_norm / (norm + 1e-6), 1.0)

    def scaled(g: mx.array) -> mx.array:
        return (g * scale).astype(g.dtype) if mx.issubdtype(g.dtype, mx.floating) else g * scale

    return tree_map(scaled, grads), norm
