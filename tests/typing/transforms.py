"""Transforms and loops, as a user types them."""

from __future__ import annotations

import weft.core as mx


def energy(x: mx.array) -> mx.array:
    return mx.sum(x**2)


def running(xs: mx.array) -> tuple[mx.array, mx.array]:
    def step(carry: mx.array, x: mx.array) -> tuple[mx.array, mx.array]:
        carry = carry * 0.9 + x
        return carry, mx.tanh(carry)

    last, ys = mx.scan(step, mx.zeros(xs.shape[1:]), xs)
    return last, ys


def newton(x: mx.array) -> mx.array:
    result: mx.array = mx.while_loop(lambda v: mx.abs(v * v - 2) > 1e-6, lambda v: (v + 2 / v) / 2, x)
    return result


@mx.compile
def fused(x: mx.array, y: mx.array) -> mx.array:
    return mx.log1p(mx.exp(x)) * y


@mx.custom_function
def clipped(x: mx.array) -> mx.array:
    return mx.clip(x, 0, 1)


def main() -> None:
    x = mx.arange(6, dtype=mx.float32).reshape(3, 2)
    gradient: mx.array = mx.grad(energy)(x)
    value, gradients = mx.value_and_grad(energy)(x)
    mapped: mx.array = mx.vmap(energy)(x)
    outputs, tangents = mx.jvp(energy, [x], [mx.ones_like(x)])
    last, ys = running(x)
    print(gradient, value.item(), gradients, mapped, outputs, tangents, last, ys, newton(mx.array(1.0)), fused(x, x))
    print(mx.cond(mx.array(True), lambda v: v + 1, lambda v: v - 1, x), clipped(x), mx.hessian(energy)(x[0]).shape)


if __name__ == "__main__":
    main()
