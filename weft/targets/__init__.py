"""The machines that programs run on. Evaluation chooses one of them; whoever plans a graph by hand names it."""

from weft.targets.cpu.target import CPU

__all__ = ["CPU"]
