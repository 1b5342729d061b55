"""What Python imports when a process starts that `weft run` (or a child of it) has started: MLX's names mean Weft there
too.

The folder of this file is the first of PYTHONPATH in such processes, which is all that brings it here. Another
`sitecustomize` that would have been imported without it is imported after it. A Python that has no Weft starts as if
nothing were here.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _stand_in() -> None:
    try:
        from weft.frontends import mlx  # a child may be a Python that has no Weft
    except ImportError:
        return
    mlx.install()


def _others() -> None:
    """The sitecustomize that this one hides."""
    here = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if Path(entry).resolve() != here])
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


_stand_in()
_others()
