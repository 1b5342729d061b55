"""Module: a dict of parameters and submodules that is called like a function."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import weft.core as mx
from weft.utils import tree_flatten, tree_unflatten

Filter = Callable[["Module", str, Any], bool]
_CONTAINERS = (dict, list)


class Module(dict[str, Any]):
    """A part of a model. Arrays, modules, and lists, tuples and dicts that are set as attributes are its items; all
    other attributes are those of a plain object.

    >>> import weft.nn as nn
    >>> class Affine(nn.Module):
    ...     def __init__(self, n):
    ...         super().__init__()
    ...         self.scale, self.shift = mx.ones((n,)), mx.zeros((n,))
    ...
    ...     def __call__(self, x):
    ...         return x * self.scale + self.shift
    >>> model = Affine(2)
    >>> model(mx.array([1.0, 2.0])), sorted(model.parameters())
    (array([1, 2], dtype=float32), ['scale', 'shift'])
    """

    __call__: Callable[..., Any]
    # Classes in use leave out `super().__init__()`: these are what such a module begins with.
    _training = True

    def __init__(self) -> None:
        super().__init__()
        self._no_grad: set[str] = set()
        self._training = True

    def __getattr__(self, key: str) -> Any:
        # Python asks here only for what it has not found as an attribute.
        if key == "_no_grad":
            made: set[str] = set()
            object.__setattr__(self, "_no_grad", made)
            return made
        if key in self:
            return self[key]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {key!r}", name=key, obj=self)

    def __setattr__(self, key: str, val: Any) -> None:
        if isinstance(val, (mx.array, dict, list, tuple)):
            self.__dict__.pop(key, None)
            self[key] = val
            return
        super().__setattr__(key, val)
        self.pop(key, None)

    def __delattr__(self, name: str) -> None:
        if name in self:
            del self[name]
        else:
            super().__delattr__(name)

    # ---- what it looks like ----

    def _extra_repr(self) -> str:
        """What stands behind the name of the class."""
        return ""

    def __repr__(self) -> str:
        parts = [f"({name}): {child!r}" for name, child in tree_flatten(self.children(), is_leaf=self.is_module)]
        inside = "".join([f"\n{textwrap.indent(part, '  ')}" for part in parts])
        return f"{type(self).__name__}({self._extra_repr()}{inside}{chr(10) if parts else ''})"

    @property
    def training(self) -> bool:
        """Whether the module is being trained (`train`) or used (`eval`)."""
        return self._training

    @property
    def state(self) -> Module:
        """The module itself: what `compile` takes as the inputs and outputs of a step that updates it."""
        return self

    # ---- choosing parts ----

    @staticmethod
    def is_module(value: Any) -> bool:
        return isinstance(value, Module)

    @staticmethod
    def valid_child_filter(module: Module, key: str, value: Any) -> bool:
        return isinstance(value, _CONTAINERS)

    @staticmethod
    def valid_parameter_filter(module: Module, key: str, value: Any) -> bool:
        return isinstance(value, (dict, list, mx.array)) and not key.startswith("_")

    @staticmethod
    def trainable_parameter_filter(module: Module, key: str, value: Any) -> bool:
        return Module.valid_parameter_filter(module, key, value) and key not in module._no_grad

    def filter_and_map(
        self, filter_fn: Filter, map_fn: Callable[[Any], Any] | None = None, is_leaf_fn: Filter | None = None
    ) -> dict[str, Any]:
        """The items that pass the filter, and theirs, as a tree of dicts and lists; `map_fn` of the leaves.

        Leaves are what is no module, dict or list, unless `is_leaf_fn(module, key, value)` says otherwise.
        """
        chosen = _Chosen(filter_fn, map_fn or (lambda leaf: leaf), is_leaf_fn or _is_plain)
        return chosen.of_module(self)

    def parameters(self) -> dict[str, Any]:
        """All arrays of the module and its parts, but for names that begin with an underscore."""
        return self.filter_and_map(self.valid_parameter_filter)

    def trainable_parameters(self) -> dict[str, Any]:
        """The parameters that are not frozen."""
        return self.filter_and_map(self.trainable_parameter_filter)

    def children(self) -> dict[str, Any]:
        """The modules directly inside."""
        return self.filter_and_map(self.valid_child_filter, is_leaf_fn=lambda m, k, v: isinstance(v, Module))

    def leaf_modules(self) -> dict[str, Any]:
        """The modules that have no modules inside."""

        def is_last(module: Module, key: str, value: Any) -> bool:
            return isinstance(value, Module) and not tree_flatten(value.children())

        return self.filter_and_map(self.valid_child_filter, is_leaf_fn=is_last)

    def _walk(self) -> Iterator[tuple[str, Module]]:
        """Every module inside with its path, itself first, with an empty one."""
        waiting: list[tuple[str, Module]] = [("", self)]
        while waiting:
            path, module = waiting.pop()
            yield path, module
            prefix = f".{path}" if path else ""
            waiting += tree_flatten(module.children(), prefix=prefix, is_leaf=self.is_module)

    def modules(self) -> list[Module]:
        """All modules inside, itself included."""
        return [module for _, module in self._walk()]

    def named_modules(self) -> list[tuple[str, Module]]:
        """All modules inside with their paths, itself included."""
        return list(self._walk())

    def apply_to_modules(self, apply_fn: Callable[[str, Module], Any]) -> Module:
        """Call `apply_fn(path, module)` for all modules inside, itself included."""
        for path, module in self._walk():
            apply_fn(path, module)
        return self

    # ---- changing parts ----

    def update(self, parameters: Any, strict: bool = True) -> Module:  # type: ignore[override]
        """Replace arrays by those at the same place in a tree. With `strict`, the tree has nothing else."""
        _Update(strict, _is_array, "parameter").into(self, parameters)
        return self

    def update_modules(self, modules: Any, strict: bool = True) -> Module:
        """Replace modules by those at the same place in a tree (as `children` and `leaf_modules` give it)."""
        _Update(strict, self.is_module, "sub-module").into(self, modules)
        return self

    def apply(self, map_fn: Callable[[mx.array], mx.array], filter_fn: Filter | None = None) -> Module:
        """Replace every parameter by `map_fn` of it, or those that a filter chooses."""
        return self.update(self.filter_and_map(filter_fn or Module.valid_parameter_filter, map_fn))

    def set_dtype(
        self,
        dtype: mx.Dtype,
        predicate: Callable[[mx.Dtype], bool] | None = lambda dtype: mx.issubdtype(dtype, mx.floating),
    ) -> None:
        """Convert the parameters whose dtypes the predicate chooses: floating ones; None chooses all."""
        self.apply(lambda x: x.astype(dtype) if predicate is None or predicate(x.dtype) else x)

    # ---- files ----

    def load_weights(self, file_or_weights: Any, strict: bool = True) -> Module:
        """Replace parameters by those of a file, or of a list of (path, array). With `strict`, they are exactly those
        of the module, in the same shapes."""
        given = file_or_weights
        weights: list[tuple[str, Any]] = (
            list(given) if isinstance(given, (list, tuple)) else list(mx.load(given).items())
        )
        if strict:
            self._check_weights(dict(weights))
        if weights:
            self.update(tree_unflatten(weights), strict=False)
        return self

    def _check_weights(self, new: dict[str, Any]) -> None:
        own = tree_flatten(self.parameters(), destination={})
        for text, names in (
            ("Received {} parameters not in model: \n{}.", new.keys() - own.keys()),
            ("Missing {} parameters: \n{}.", own.keys() - new.keys()),
        ):
            if names:
                raise ValueError(text.format(len(names), ",\n".join(sorted(names))))
        for name, before in own.items():
            array = new[name]
            if not isinstance(array, mx.array):
                raise ValueError(f"Expected an array but received {type(array)} for parameter {name}")
            if array.shape != before.shape:
                raise ValueError(f"Expected shape {before.shape} but received shape {array.shape} for parameter {name}")

    def save_weights(self, file: Any) -> None:
        """Save the parameters, as `.npz` or `.safetensors`."""
        weights = tree_flatten(self.parameters(), destination={})
        name = str(file)
        if name.endswith(".npz"):
            mx.savez(file, **weights)
        elif name.endswith(".safetensors"):
            mx.save_safetensors(file, weights)
        else:
            raise ValueError(f"Unsupported file extension for {file}. Use '.npz' or '.safetensors'.")

    # ---- training ----

    def freeze(self, *, recurse: bool = True, keys: str | list[str] | None = None, strict: bool = False) -> Module:
        """Leave parameters out of `trainable_parameters`: all, or those called `keys`, here and in all modules inside.

        With `strict` it is an error if there is no such name.
        """

        def frozen(module: Module, names: list[str] | None) -> None:
            module._no_grad.update(module._own_names() if names is None else names)

        return self._choose(frozen, recurse, keys, strict)

    def unfreeze(self, *, recurse: bool = True, keys: str | list[str] | None = None, strict: bool = False) -> Module:
        """Undo `freeze`."""

        def thawed(module: Module, names: list[str] | None) -> None:
            module._no_grad.difference_update([*module._no_grad] if names is None else names)

        return self._choose(thawed, recurse, keys, strict)

    def _own_names(self) -> list[str]:
        """The paths of the parameters that are not those of a module inside."""

        def is_own(module: Module, key: str, value: Any) -> bool:
            return not isinstance(value, Module) and module.valid_parameter_filter(module, key, value)

        return [path for path, _ in tree_flatten(self.filter_and_map(is_own))]

    def _choose(
        self, change: Callable[[Module, list[str] | None], None], recurse: bool, keys: Any, strict: bool
    ) -> Module:
        names = None if keys is None else keys if isinstance(keys, list) else [keys]
        modules = self.modules() if recurse else [self]
        for name in names or () if strict else ():
            if not any(name in module for module in modules):
                raise KeyError(f"Module doesn't contain member {name}.")
        for module in modules:
            change(module, names)
        return self

    def _set_training_mode(self, mode: bool) -> None:
        self._training = mode

    def train(self, mode: bool = True) -> Module:
        """Say to all modules inside that they are being trained, or not."""
        for module in self.modules():
            module._set_training_mode(mode)
        return self

    def eval(self) -> Module:
        """Say to all modules inside that they are being used: no dropout, no statistics."""
        return self.train(False)


def _is_array(value: Any) -> bool:
    return isinstance(value, mx.array)


def _is_plain(module: Module, key: str, value: Any) -> bool:
    return not isinstance(value, _CONTAINERS)


class _Chosen:
    """Walks a module for `filter_and_map`. Items of plain lists and dicts belong to their module, by paths."""

    def __init__(self, filter_fn: Filter, map_fn: Callable[[Any], Any], is_leaf_fn: Filter) -> None:
        self.passes, self.map, self.is_leaf = filter_fn, map_fn, is_leaf_fn

    def of_module(self, module: Module) -> dict[str, Any]:
        return {key: self._of(module, key, value) for key, value in module.items() if self.passes(module, key, value)}

    def _of(self, module: Module, key: str, value: Any) -> Any:
        if self.is_leaf(module, key, value):
            return self.map(value)
        if isinstance(value, Module):
            return self.of_module(value)
        if isinstance(value, dict):
            return {name: self._item(module, f"{key}.{name}", item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._item(module, f"{key}.{i}", item) for i, item in enumerate(value)]
        raise RuntimeError(
            f"[Module] {key!r} of {type(module).__name__} is a {type(value).__name__} where a leaf was expected."
        )

    def _item(self, module: Module, key: str, item: Any) -> Any:
        return self._of(module, key, item) if self.passes(module, key, item) else {}


class _Update:
    """Puts the leaves of a tree (arrays, or modules) in the places of a module's."""

    def __init__(self, strict: bool, is_leaf: Callable[[Any], bool], what: str) -> None:
        self.strict, self.is_leaf, self.what = strict, is_leaf, what

    def into(self, target: Any, tree: Any) -> None:
        if isinstance(tree, dict):
            for key, value in tree.items():
                if key in target:
                    self._item(target, key, value)
                elif self.strict:
                    raise ValueError(f'Module does not have {self.what} named "{key}".')
        elif isinstance(tree, list):
            for i, value in enumerate(tree):
                if i < len(target):
                    self._item(target, i, value)
                elif self.strict:
                    raise ValueError(f"List index {i} is out of bounds for destination of length {len(target)}.")
        elif self.strict:
            raise ValueError(f"Received invalid type: {type(tree).__name__}.")

    def _item(self, target: Any, key: Any, value: Any) -> None:
        current = target[key]
        if self.is_leaf(current) and (self.is_leaf(value) or (self.what == "parameter" and not self.strict)):
            target[key] = value
        elif self.what == "parameter" and self.is_leaf(current):
            raise ValueError(f"Received invalid type: {type(value).__name__}.")
        elif isinstance(current, _CONTAINERS) or self.what == "parameter":
            self.into(current, value)
        elif self.strict and value != {}:
            raise ValueError(f"Received invalid type: {type(value).__name__}.")
