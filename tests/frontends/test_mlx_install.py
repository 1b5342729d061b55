"""`import mlx` on Weft: what resolves to what, what is refused, and that nothing is left behind."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weft.core
import weft.nn
import weft.optimizers
from weft.frontends import mlx as frontend


def mlx_modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "mlx"}


@pytest.fixture
def no_mlx() -> Iterator[None]:
    """A process in which nobody has imported MLX, whatever other tests did; they find their modules again."""
    before = mlx_modules()
    for name in before:
        del sys.modules[name]
    yield
    frontend.uninstall()
    for name in mlx_modules():
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def installed(no_mlx: None) -> None:
    frontend.install()


@pytest.mark.parametrize(
    "statement",
    ["import mlx.core as mx", "from mlx import core as mx", "import mlx\nimport mlx.core\nmx = mlx.core"],
)
def test_every_way_to_import_the_core(installed: None, statement: str) -> None:
    names: dict[str, object] = {}
    exec(statement, names)
    assert names["mx"] is weft.core


def test_names_of_the_core(installed: None) -> None:
    names: dict[str, object] = {}
    exec("from mlx.core import array, float32", names)
    assert names["array"] is weft.core.array
    assert names["float32"] is weft.core.float32


def test_submodules_of_the_core(installed: None) -> None:
    assert importlib.import_module("mlx.core.random") is weft.core.random
    names: dict[str, object] = {}
    exec("import mlx.core.random as random\nfrom mlx.core.random import normal", names)
    assert names["random"] is weft.core.random
    assert names["normal"] is weft.core.random.normal


def test_the_module_keeps_its_own_identity(installed: None) -> None:
    spec = weft.core.__spec__
    importlib.import_module("mlx.core")
    assert weft.core.__spec__ is spec
    assert weft.core.__name__ == "weft.core"
    assert pickle.loads(pickle.dumps(weft.core.float32)) is weft.core.float32


def test_a_probe_finds_it(installed: None) -> None:
    for name in ("mlx", "mlx.core"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.name == name


@pytest.mark.parametrize("statement", ["import mlx.missing", "from mlx import missing", "import mlx.missing.deeper"])
def test_a_part_that_weft_lacks_says_so(installed: None, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    monkeypatch.setattr(frontend, "PARTS", (*frontend.PARTS, "missing"))
    with pytest.raises(ImportError, match=r"mlx\.missing is not there yet.*mlx\.core"):
        exec(statement, {})


@pytest.mark.parametrize("name", ["mlx.no_such_thing", "mlx.core.no_such_thing", "mlx.graph", "mlx.core.np"])
def test_what_mlx_does_not_have_either(installed: None, name: str) -> None:
    with pytest.raises(ImportError, match=name.rpartition(".")[2]):
        importlib.import_module(name)


def test_other_packages_below_the_name(installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """mlx-data installs `mlx.data` into the folder that MLX itself is in."""
    for file in ("mlx/data/__init__.py", "mlx/data/core.py", "mlx/core.py", "mlx/extension.py", "mlx/share/readme.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"name = {file!r}\n")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mlx.data")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("mlx.data.core").name == "mlx/data/core.py"
    assert importlib.import_module("mlx").data.name == "mlx/data/__init__.py"
    assert importlib.import_module("mlx.core") is weft.core
    for internal in ("extension", "share"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"mlx.{internal}")


def test_install_twice_and_uninstall(no_mlx: None) -> None:
    before = list(sys.meta_path)
    frontend.install()
    frontend.install()
    assert len(sys.meta_path) == len(before) + 1
    assert frontend.installed()
    importlib.import_module("mlx.core")
    frontend.uninstall()
    frontend.uninstall()
    assert sys.meta_path == before
    assert not frontend.installed()
    assert not mlx_modules()


def test_a_real_mlx_in_use_is_refused(no_mlx: None) -> None:
    real = ModuleType("mlx.core")
    real.__file__ = "/somewhere/mlx/core.so"
    sys.modules["mlx.core"] = real
    with pytest.raises(RuntimeError, match=r"mlx\.core is already imported from /somewhere/mlx/core\.so.*weft run"):
        frontend.install()
    assert not frontend.installed()
    assert sys.modules["mlx.core"] is real


def test_importing_the_front_end_imports_no_engine() -> None:
    code = "import sys, weft.frontends.mlx as f; f.install(); print('weft.core' in sys.modules, 'mlx' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.split() == ["False", "False"]


def test_a_program_for_mlx_computes(installed: None) -> None:
    names: dict[str, object] = {}
    program = """
import mlx.core as mx
def loss(w):
    return mx.sum(mx.square(w @ mx.array([[1.0], [2.0]])))
value, slope = mx.value_and_grad(loss)(mx.array([[3.0, 4.0]]))
result = value.item(), slope.tolist()
"""
    exec(program, names)
    assert names["result"] == (121.0, [[22.0, 44.0]])


def test_networks(installed: None) -> None:
    names: dict[str, Any] = {}
    exec(
        "import mlx.nn as nn\nimport mlx.optimizers as optim\nfrom mlx.utils import tree_flatten\n"
        "from mlx.nn.layers.base import Module\nfrom mlx.nn.layers.distributed import shard_linear\n"
        "from mlx.nn.layers.quantized import QuantizedLinear\nfrom mlx.nn.utils import average_gradients, checkpoint\n"
        "import mlx.nn.losses as losses, mlx.nn.init as init\nfrom mlx.optimizers.schedulers import cosine_decay",
        names,
    )
    assert names["nn"] is weft.nn
    assert names["Module"] is weft.nn.Module
    assert names["optim"].AdamW is weft.optimizers.AdamW


def test_dtypes_are_printed_as_those_of_mlx(installed: None) -> None:
    core = importlib.import_module("mlx.core")
    assert repr(core.float32) == str(core.array([1.0]).dtype) == "mlx.core.float32"
    frontend.uninstall()
    assert repr(core.float32) == "weft.core.float32"
