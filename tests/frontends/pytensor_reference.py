"""What the tests of PyTensor on Weft share: a graph is compiled for "WEFT" and for PyTensor's own implementations, and
both are called."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode

import weft.frontends.pytensor  # registers the mode

REFERENCE = Mode(linker="py", optimizer="minimum_compile")


def reference(inputs: Sequence[Any], outputs: Any, **options: Any) -> Any:
    """A function of PyTensor's own implementations, those inside of loops too, without a C compiler."""
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        return pytensor.function(inputs, outputs, mode=REFERENCE, **options)


def both(inputs: Sequence[Any], outputs: Any, left_to_pytensor: bool = False, **options: Any) -> tuple[Any, Any]:
    """A function in the mode under test, in which everything is Weft's unless it is said that it is not, and the same
    in PyTensor's own."""
    options.setdefault("on_unused_input", "ignore")
    with warnings.catch_warnings():
        if left_to_pytensor:
            warnings.filterwarnings("ignore", message="WEFT leaves")
        under_test = pytensor.function(inputs, outputs, mode="WEFT", **options)
    plan = under_test.vm.jit_fn
    left = [step.node for step in plan.steps if type(step).__name__ in ("Performed", "Stepped")]
    assert bool(left) == left_to_pytensor, f"left to PyTensor: {left}"
    return under_test, reference(inputs, outputs, **options)


def assert_same(made: Any, wanted: Any, rtol: float = 1e-12, atol: float = 1e-12) -> None:
    """The same dtypes, shapes and values."""
    made = made if isinstance(made, (list, tuple)) else [made]
    wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    assert len(made) == len(wanted)
    for x, y in zip(made, wanted, strict=True):
        assert isinstance(x, np.ndarray)
        assert x.dtype == np.asarray(y).dtype
        assert x.shape == np.shape(y)
        if x.dtype.kind in "biu":
            np.testing.assert_array_equal(x, y)
        else:
            single = x.dtype in (np.dtype("float32"), np.dtype("complex64"))
            np.testing.assert_allclose(x, y, rtol=max(rtol, 1e-5) if single else rtol, atol=1e-5 if single else atol)


def check(inputs: Sequence[Any], outputs: Any, *calls: Sequence[Any], **options: Any) -> None:
    """Call both functions with some values, and compare."""
    tolerance = {name: options.pop(name) for name in ("rtol", "atol") if name in options}
    under_test, wanted = both(inputs, outputs, **options)
    for values in calls:
        assert_same(under_test(*values), wanted(*values), **tolerance)


assert weft.frontends.pytensor.WEFT
