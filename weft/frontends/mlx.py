"""Stand in for MLX: after `install()`, `import mlx.core` gives `weft.core`, and programs written for MLX run unchanged.

`weft run script.py` calls this before it starts the script. The stand-in is an import hook: names of MLX resolve to the
module of the same name in Weft when it exists, and to an ImportError that says so when it does not exist yet. A real
MLX on the same machine stays as it is, and `uninstall()` makes it visible again. Other packages that live below the
name `mlx` (as `mlx.data` of mlx-data does) are found where they are installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.config import config, lead_children

# The public modules of MLX below `mlx`, and what else its package has there, which serves MLX itself.
PARTS = ("core", "nn", "optimizers", "utils")
INTERNAL = (
    "__array_api_info", "__main__", "_distributed_utils", "_reprlib_fix", "extension", "include", "lib", "share",
)  # fmt: skip
VERSION = "0.32.4"
"""The MLX whose names these are: what programs are told that ask which one is installed."""


def install() -> None:
    """Make `mlx` mean Weft in this process. Calling it twice is harmless.

    Raises RuntimeError when the real MLX has been imported already: its arrays would meet ours half-way.
    """
    if installed():
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "mlx" and not _is_ours(module):
            raise RuntimeError(
                f"[frontends.mlx.install] {name} is already imported from {_origin(module)}; "
                "call install() before the first `import mlx`, or start the program with `weft run`."
            )
    if config.mlx_disable_compile:
        config.disable_compile = True
    sys.meta_path.insert(0, _FINDER)
    _name_dtypes("mlx.core")


def install_in_children() -> None:
    """Make `mlx` mean Weft in the Python processes that this one starts as well, however it starts them."""
    lead_children(str(Path(__file__).resolve().parent / "children"))


def uninstall() -> None:
    """Forget the stand-in: the next `import mlx` finds the real MLX, or nothing."""
    if not installed():
        return
    sys.meta_path.remove(_FINDER)
    _name_dtypes("weft.core")
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlx"]:
        del sys.modules[name]


def _name_dtypes(library: str) -> None:
    """Dtypes print as names of this library, if Weft has been imported yet."""
    dtypes = sys.modules.get("weft.dtypes")
    if dtypes is not None:
        dtypes.LIBRARY[0] = library


def installed() -> bool:
    """Whether `mlx` means Weft in this process."""
    return _FINDER in sys.meta_path


class _Finder(MetaPathFinder):
    """Finds `mlx` and everything below it, ahead of whatever is installed under that name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package != "mlx":
            return None
        if not rest:
            return ModuleSpec("mlx", _Package(), is_package=True)
        part, _, below = rest.partition(".")
        if part in INTERNAL:
            return None
        if part not in PARTS:
            return None if below else PathFinder.find_spec(fullname, _shared_folders(), target)
        own = f"weft.{rest}"
        if not _exists(own):
            # Not a ModuleNotFoundError: `from mlx import nn` swallows that one, and this message with it.
            raise ImportError(
                f"[frontends.mlx] {fullname} is not there yet: this version of Weft stands in for "
                f"{', '.join(_present())}.",
                name=fullname,
            )
        return ModuleSpec(fullname, _Alias(own))

    def find_distributions(self, context: Any = None) -> Iterable[Any]:
        """For `importlib.metadata`: the distribution `mlx`, whose version is the one that Weft stands in for."""
        wanted = getattr(context, "name", None)
        return [_distribution()] if wanted is None or wanted.lower() == "mlx" else []


def _shared_folders() -> list[str]:
    """The folders called `mlx` that Python would make one package of, were MLX not stood in for."""
    return [str(folder) for entry in sys.path if (folder := Path(entry) / "mlx").is_dir()]


def _distribution() -> Any:
    from importlib.metadata import Distribution  # takes long to import, and few programs ask

    class Named(Distribution):
        """Metadata without a file."""

        def read_text(self, filename: str) -> str | None:
            return f"Metadata-Version: 2.1\nName: mlx\nVersion: {VERSION}\n" if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Path:
            return Path(__file__).parent / path

    return Named()


class _Package(Loader):
    """The package `mlx` itself: empty, as in MLX. Its `__path__` is empty too, so that only our finder decides what is
    found below it."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType("mlx", "MLX's names, resolved by Weft (weft.frontends.mlx).")

    def exec_module(self, module: ModuleType) -> None:
        return None


class _Alias(Loader):
    """Answers an import with a module that has its own name and its own spec."""

    def __init__(self, own: str) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # Python takes what it finds in sys.modules after this call. Returning our module from create_module instead
        # would stamp it with the alias's __spec__ and break importlib.reload and pickling by name.
        own = _resolve(self.own)
        assert own is not None, f"{self.own} was there a moment ago"
        sys.modules[module.__name__] = own
        _name_dtypes("mlx.core")


def _exists(own: str) -> bool:
    """Whether Weft has the module `own`. Asking about a top-level part imports nothing."""
    return _has_file(own) if own.count(".") == 1 else _resolve(own) is not None


def _resolve(own: str) -> ModuleType | None:
    """The module called `own`, be it a file of its own or an attribute of its parent (as `mlx.core.metal` is)."""
    parent, _, child = own.rpartition(".")
    if parent != "weft":
        attribute = getattr(_resolve(parent), child, None)
        if isinstance(attribute, ModuleType) and attribute.__name__.startswith("weft."):
            return attribute
    return importlib.import_module(own) if _has_file(own) else None


def _has_file(own: str) -> bool:
    try:
        spec = importlib.util.find_spec(own)
    except ModuleNotFoundError:  # the parent is missing, or is no package and has nothing below it
        return False
    return spec is not None and spec.origin is not None  # a directory without __init__.py has no origin


def _present() -> list[str]:
    return [f"mlx.{part}" for part in PARTS if _exists(f"weft.{part}")]


def _is_ours(module: ModuleType) -> bool:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return isinstance(loader, _Package | _Alias) or module.__name__.partition(".")[0] == "weft"


def _origin(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or ", ".join(getattr(module, "__path__", ())) or "somewhere else"


_FINDER = _Finder()
