"""Modules that are loaded when something of them is used: most of the compiler, which waits for the first program, and
parts of the standard library that few programs need.

    if TYPE_CHECKING:
        from weft import targets
    else:
        targets = lazy("weft.targets")

`tests/test_layers.py` reads these as imports, and `tests/test_imports.py` says what `import weft.core` may load.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module. The first attribute that is read loads it; from then on this has the module's attributes."""

    __slots__ = ("__dict__", "_lazy_name")

    def __init__(self, name: str) -> None:
        self._lazy_name = name

    def __getattr__(self, attribute: str) -> Any:
        module = import_module(self._lazy_name)  # threads that come at the same time wait here
        self.__dict__ = module.__dict__  # the same, so what is replaced there is replaced here
        return getattr(module, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        if attribute in LazyModule.__slots__:
            object.__setattr__(self, attribute, value)
        else:
            setattr(import_module(self._lazy_name), attribute, value)

    def __repr__(self) -> str:
        return f"<lazy module {self._lazy_name!r}>"


def lazy(name: str) -> Any:
    """The module of this name, to be loaded when it is used."""
    return LazyModule(name)
