"""PyTorch on Weft: a backend of torch.compile (`torch.compile(model, backend="weft")`), and programs from torch.export
(`from_exported`). Needs torch: `pip install weft[torch]`."""

from __future__ import annotations

from weft.frontends.torch.export import Exported, from_exported, load
from weft.frontends.torch.graph import Unsupported

__all__ = ["Exported", "Unsupported", "from_exported", "load"]
