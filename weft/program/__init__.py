"""Programs for front ends: a graph of operations with named, typed inputs, compiled once and called many times.

Another array language reaches Weft through here. It says what the inputs are (`Input`: name, shape, dtype; a size may
be a name, and is then known at a call only) and gives a function that builds the graph from arrays: with the functions
of `weft.core`, or with primitives (`apply`). `trace` runs it once on arrays without values. The `Program` is called
with arrays by position or name, gives what the function returned, explains itself, and can be saved (docs/program.md).

Unlike `compile` nothing is watched: what the function captures is part of the program, for good.
"""

from weft.program.inputs import Input
from weft.program.program import DependsOnData, Program, Ready, apply, load, trace
from weft.program.report import MemoryReport

__all__ = ["DependsOnData", "Input", "MemoryReport", "Program", "Ready", "apply", "load", "trace"]
