"""The machines that programs run on. Evaluation asks for a program here; whoever plans a graph by hand names a
target."""

from weft.targets.cpu.target import CPU
from weft.targets.devices import TARGETS, find, look_for_gpus, target_of
from weft.targets.spread import compile_alike, compile_graph

__all__ = ["CPU", "TARGETS", "compile_alike", "compile_graph", "find", "look_for_gpus", "target_of"]
