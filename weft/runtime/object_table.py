"""What the machine code of `weft.runtime.object_code` knows of the interpreter, word by word: addresses of objects and
functions, and where attributes lie. `weft.runtime.objects` fills it in, which needs no builder."""

from __future__ import annotations

from typing import Final

STATE: Final = ("watched", "overlaid", "sweeping", "places")
"""Numbers: whether Python's forms shall be used, everywhere, or where the node of an array is read, or where places are
used; and the address of these."""
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
    "buffer_type", "storage_type", "pool", "idle",
    "pop", "append", "trim", "allocate", "take_block", "go_on", "traces", "devices", "config", "data", "no_operands",
    "call_compiled", "verify_call",
)  # fmt: skip
FUNCTIONS: Final = (
    "PyType_GenericAlloc", "PyType_IsSubtype", "PyIter_Next", "Py_IncRef", "Py_DecRef", "PyWeakref_NewRef",
    "PyObject_Vectorcall", "PyTuple_New", "PyTuple_SetItem", "PyTuple_GetItem", "PyDict_GetItemWithError",
    "PyErr_Occurred", "PyTuple_Size", "PyDict_SetItem", "PyBytes_AsString", "PyList_New", "PyList_SetItem",
    "PyList_Size", "PyList_GetItem", "PyList_Append", "PySet_Contains", "PySet_Add", "PySet_Discard",
    "PyLong_AsLongLong", "PyLong_FromLongLong", "PyFloat_AsDouble", "PyObject_IsTrue", "PyBool_FromLong",
    "PySequence_Contains", "PyDict_Size", "PyDict_Next", "PyObject_GenericGetAttr", "PyObject_GenericGetDict",
    "PyErr_ExceptionMatches", "PyErr_Clear", "PyCell_Get", "PyObject_RichCompareBool", "PySet_Size",
    "PyFunction_GetCode", "PyFunction_GetClosure", "PyFunction_GetDefaults", "PyFunction_GetKwDefaults",
    "PyFunction_GetGlobals", "PyObject_GetIter", "PyObject_Size", "PyLong_AsUnsignedLongLongMask",
)  # fmt: skip
NODE_SLOTS: Final = ("op", "inputs", "kind", "value", "device", "handle", "id")
ENTRIES: Final = (
    "wrap", "unary", "binary", "reflected", "forward", "backward", "spread", "follow", "pull", "recall", "sweep",
    "describe", "resembles", "divide", "take_steps", "end_storage", "run_buffers", "evaluate_one",
    "call_compiled_quickly",
)  # fmt: skip
"""The functions. Without any of them some figure of `benchmarks/tracing.py` is worse by at least 3 % (`divide`: the
step of a decoder, whose sizes change each time; `recall`: functions of `mx.fast`; `take_steps`: calls of a compiled
function that sees a model; the last four: calls of small functions, eager operations)."""

BUFFER_SLOTS: Final = ("address", "storage", "strides")
STORAGE_SLOTS: Final = ("address", "nbytes", "capacity")
POOL_SLOTS: Final = ("active", "high", "low")
_SLOTS: Final = tuple(
    f"at_{slot}"
    for slot in (
        *NODE_SLOTS, "node", "run", *BUFFER_SLOTS, *[f"storage_{slot}" for slot in STORAGE_SLOTS], *POOL_SLOTS, "words",
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
