"""What the machine code of `weft.runtime.object_code` knows of the interpreter, word by word: addresses of objects and
functions, and where attributes lie. `weft.runtime.objects` fills it in, which needs no builder."""

from __future__ import annotations

import sys
from typing import Final

COUNTERS: Final = ("active", "high", "low")
"""Of the pool of memory, in machine words (runtime/buffer.py)."""
MOST_SHELVED: Final = 4096
"""The largest blocks that machine code keeps on its shelf, which has a row for each multiple of `SHELF_STEP` bytes: how
many blocks there are, and their addresses, as ints."""
SHELF_STEP: Final = 64
SHELF_ROW: Final = 16
RECYCLED: Final = {"node": (8, False), "array": (1, True), "buffer": (3, False), "storage": (3, True)}
"""The classes whose objects machine code ends, and makes of the memory of earlier ones (`recycling_code.py`): how many
attributes they have, and whether there may be weak references to them."""
MOST_RECYCLED: Final = 256
"""Objects of each, whose memory is kept."""
OPERATORS: Final = {"add": (0, "add"), "subtract": (1, "sub"), "multiply": (2, "mul"), "divide": (30, "truediv")}
"""Operators of two arrays, or of an array and a number, that machine code has without their methods in Python: their
places among CPython's functions for numbers (PyNumberMethods), and the methods."""
STATE: Final = (
    "watched", "overlaid", "sweeping", "places", "counters", "shelf", *[f"idle_{name}" for name in RECYCLED],
    *[f"room_{name}" for name in RECYCLED], "turns", "entries",
)  # fmt: skip
"""Numbers: whether Python's forms shall be used, everywhere, or where the node of an array is read, or where places are
used; the addresses of these, of the pool's counters and of the shelf; the first of those objects whose memory is kept,
and for how many more there is room; where the lock of evaluation counts how often it is held, and evaluations are
counted."""
PLACES: Final = 1 << 14
"""How many nodes can be found by their ids at once: the oldest and the youngest of an evaluation lie no further apart,
or Python's forms are used."""
NO_NUMBER: Final = -(1 << 62)
"""Stands for parts of a key that are no numbers, among those that are."""
READ: Final = 1
TAPED: Final = 2
"""What a sweep finds beside nodes: some slice update is an operand, some node is a tape."""
OBJECTS: Final = (
    "device", "node_type", "array_type", "counter", "none", "float_type", "int_type", "bool_type", "str_type",
    "bytes_type", "tuple_type", "list_type", "attribute_error", "true", "false",
    "buffer_type", "storage_type", "idle",
    "pop", "append", "trim", "allocate", "take_block", "go_on", "traces", "devices", "config", "data", "no_operands",
    "call_compiled", "verify_call", "not_implemented",
    *[f"{what}_{name}" for name in OPERATORS for what in ("known", "forward", "reflected")],
)  # fmt: skip
FUNCTIONS: Final = (
    "PyType_GenericAlloc", "PyType_IsSubtype", "PyIter_Next", "_Py_Dealloc", "PyWeakref_NewRef",
    "PyObject_Vectorcall", "PyTuple_New", "PyDict_GetItemWithError", "PyErr_Occurred", "PyDict_SetItem",
    "PyList_New", "PyList_SetItem", "PyList_GetItem", "PyList_Append", "PySet_Contains", "PySet_Add", "PySet_Discard",
    "PyLong_AsLongLong", "PyLong_FromLongLong", "PyFloat_AsDouble", "PyObject_IsTrue", "PyBool_FromLong",
    "PySequence_Contains", "PyDict_Next", "PyObject_GenericGetAttr", "PyObject_GenericGetDict",
    "PyErr_ExceptionMatches", "PyErr_Clear", "PyCell_Get", "PyObject_RichCompareBool", "PySet_Size",
    "PyFunction_GetCode", "PyFunction_GetClosure", "PyFunction_GetDefaults", "PyFunction_GetKwDefaults",
    "PyFunction_GetGlobals", "PyObject_GetIter", "PyObject_Size", "PyLong_AsUnsignedLongLongMask",
    "PyObject_GC_Track", "PyObject_GC_UnTrack", "PyObject_GC_Del", "PyObject_ClearWeakRefs", "PyErr_Fetch",
    "PyErr_Restore", "PyErr_WriteUnraisable", "PyObject_VectorcallDict",
)  # fmt: skip
NODE_SLOTS: Final = ("op", "inputs", "kind", "value", "device", "handle", "id")
ENTRIES: Final = (
    "wrap", "unary", "binary", "reflected", "forward", "backward", "spread", "follow", "by_age", "pull", "recall",
    "sweep", "describe", "resembles", "divide", "take_steps", "run_buffers", "evaluate_one", "call_compiled_quickly",
    "call_compiled_with", "unshelve", *[f"end_{name}" for name in RECYCLED],
    *[f"operator_{name}" for name in OPERATORS],
)  # fmt: skip
"""The functions. Without any of them some figure of `benchmarks/tracing.py` is worse by at least 3 % (`divide`: the
step of a decoder, whose sizes change each time; `recall`: functions of `mx.fast`; `take_steps`: calls of a compiled
function that sees a model; what is behind it: calls of small functions, eager operations)."""

BUFFER_SLOTS: Final = ("address", "storage", "strides")
STORAGE_SLOTS: Final = ("address", "nbytes", "capacity")
_SLOTS: Final = tuple(
    f"at_{slot}"
    for slot in (
        *NODE_SLOTS, "node", "run", *BUFFER_SLOTS, *[f"storage_{slot}" for slot in STORAGE_SLOTS], "words",
        "runs", "quick", "calls", "disable_compile", "check",
    )
)  # fmt: skip
RUN_PLAIN: Final = "run_plain"
"""A function of the interpreter's of programs."""
TABLE: Final = {name: word for word, name in enumerate((*STATE, *OBJECTS, *FUNCTIONS, *_SLOTS, *ENTRIES, RUN_PLAIN))}
"""The place of each."""

MOST_ARRAYS: Final = 8
"""That a remembered call may have."""

HEAD_WORDS: Final = 2
"""Of every object: the number of references to it, and its class."""


def references_at(attributes: int) -> int:
    """At which word of an object with so many attributes its weak references are: behind those, or, from Python 3.12
    on, before what the garbage collector keeps in front of an object."""
    return -4 if sys.version_info >= (3, 12) else HEAD_WORDS + attributes
