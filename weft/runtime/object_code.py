"""The machine code behind `weft.runtime.objects`, as LLVM IR: functions in the form of CPython's builtins.

Each gets what it was made with, then its arguments. References are counted as CPython's own C code counts them:
"takes over" says that a reference passes to whoever is called, everything else is borrowed from the caller. An object
that is about to be used is held before memory is asked for, because that may run finalizers, and those anything.
"""

from __future__ import annotations

import re
from typing import Final

from weft.runtime.evaluating_code import EVALUATING
from weft.runtime.threads import expand
from weft.runtime.tracing_code import TRACING

FUNCTIONS: Final = (
    "PyType_GenericAlloc", "PyType_IsSubtype", "PyIter_Next", "Py_IncRef", "Py_DecRef", "PyWeakref_NewRef",
    "PyObject_Vectorcall", "PyTuple_New", "PyTuple_SetItem", "PyTuple_GetItem", "PyDict_GetItemWithError",
    "PyErr_Occurred", "PyTuple_Size", "PyDict_SetItem", "PyBytes_AsString", "PyList_New", "PyList_SetItem",
    "PyList_Size", "PyList_GetItem", "PyList_Append", "PySet_Contains", "PySet_Add", "PySet_Discard",
    "PyLong_AsLongLong", "PyLong_FromLongLong", "PyFloat_AsDouble", "PyObject_IsTrue", "PyBool_FromLong",
    "PySequence_Contains", "PyDict_Size",
)  # fmt: skip
_OBJECTS: Final = ("node_type", "array_type", "counter", "none", "float_type", "int_type", "bool_type", "str_type")
NODE_SLOTS: Final = ("op", "inputs", "kind", "value", "device", "handle", "id")
_ENTRIES: Final = (
    "make", "wrap", "unary", "binary", "reflected", "forward", "backward", "spread", "follow", "pull", "reach",
    "describe", "divide", "recall",
)  # fmt: skip

TABLE: Final = {
    name: word
    for word, name in enumerate(
        (
            "watched",
            "overlaid",
            "device",
            *_OBJECTS,
            *FUNCTIONS,
            *[f"at_{slot}" for slot in NODE_SLOTS],
            "at_node",
            "at_run",
            "at_strides",
            *_ENTRIES,
        )
    )
}
"""What the machine code knows of the interpreter: addresses of objects and functions, and where attributes lie."""

_MAKING = r"""
@table = internal global ptr null

; A new node. Takes over the references to inputs and kind; null if there is no memory, or no inputs.
define internal ptr @new_node(ptr %op, ptr %inputs, ptr %kind) {
  %table = load ptr, ptr @table
  %increase = get ptr %table.Py_IncRef
  %decrease = get ptr %table.Py_DecRef
  %none_given = icmp eq ptr %inputs, null
  br i1 %none_given, label %no_inputs, label %allocate
allocate:
  %allocator = get ptr %table.PyType_GenericAlloc
  %type = get ptr %table.node_type
  %node = call ptr %allocator(ptr %type, i64 0)
  %no_node = icmp eq ptr %node, null
  br i1 %no_node, label %failed, label %number
number:
  %next = get ptr %table.PyIter_Next
  %counter = get ptr %table.counter
  %id = call ptr %next(ptr %counter)
  %no_id = icmp eq ptr %id, null
  br i1 %no_id, label %drop, label %fill
fill:
  call void %increase(ptr %op)
  %none = get ptr %table.none
  call void %increase(ptr %none)
  call void %increase(ptr %none)
  put %op, %node, op
  put %inputs, %node, inputs
  put %kind, %node, kind
  put %id, %node, id
  put %none, %node, value
  put %none, %node, handle
  %device = get ptr %table.device
  %host = icmp eq ptr %device, null
  br i1 %host, label %made, label %place
place:
  call void %increase(ptr %device)
  put %device, %node, device
  br label %made
made:
  ret ptr %node
drop:
  call void %decrease(ptr %node)
  br label %failed
failed:
  call void %decrease(ptr %inputs)
  br label %no_inputs
no_inputs:
  call void %decrease(ptr %kind)
  ret ptr null
}

; A new array for a node that has none. Takes over the reference to the node; null if it is null, or memory is out.
define internal ptr @new_array(ptr %node) {
  %no_node = icmp eq ptr %node, null
  br i1 %no_node, label %raise, label %allocate
allocate:
  %table = load ptr, ptr @table
  %decrease = get ptr %table.Py_DecRef
  %allocator = get ptr %table.PyType_GenericAlloc
  %type = get ptr %table.array_type
  %array = call ptr %allocator(ptr %type, i64 0)
  %no_array = icmp eq ptr %array, null
  br i1 %no_array, label %drop_node, label %bind
bind:
  put %node, %array, node
  %refer = get ptr %table.PyWeakref_NewRef
  %reference = call ptr %refer(ptr %array, ptr null)
  %no_reference = icmp eq ptr %reference, null
  br i1 %no_reference, label %drop_array, label %tell
tell:
  %old = take %node, handle
  put %reference, %node, handle
  call void %decrease(ptr %old)
  ret ptr %array
drop_array:
  call void %decrease(ptr %array)
  ret ptr null
drop_node:
  call void %decrease(ptr %node)
  br label %raise
raise:
  ret ptr null
}

; What Python does instead: a call of `function` with the same arguments.
define internal ptr @instead(ptr %function, ptr %arguments, i64 %count) {
  %table = load ptr, ptr @table
  %call = get ptr %table.PyObject_Vectorcall
  %result = call ptr %call(ptr %function, ptr %arguments, i64 %count, ptr null)
  ret ptr %result
}

; The same, unless a look-up has failed with an exception.
define internal ptr @otherwise(ptr %function, ptr %arguments, i64 %count) {
  %table = load ptr, ptr @table
  %occurred = get ptr %table.PyErr_Occurred
  %error = call ptr %occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %go_on, label %raise
go_on:
  %result = call ptr @instead(ptr %function, ptr %arguments, i64 %count)
  ret ptr %result
raise:
  ret ptr null
}

; make(op, inputs, kind): a node. `self` is what to call instead.
define internal ptr @make(ptr %self, ptr %arguments, i64 %count) {
  %table = load ptr, ptr @table
  %watched = get i64 %table.watched
  %three = icmp eq i64 %count, 3
  %unwatched = icmp eq i64 %watched, 0
  %usual = and i1 %three, %unwatched
  br i1 %usual, label %here, label %elsewhere
here:
  %op = load ptr, ptr %arguments
  %inputs_at = getelementptr ptr, ptr %arguments, i64 1
  %inputs = load ptr, ptr %inputs_at
  %kind_at = getelementptr ptr, ptr %arguments, i64 2
  %kind = load ptr, ptr %kind_at
  %increase = get ptr %table.Py_IncRef
  call void %increase(ptr %inputs)
  call void %increase(ptr %kind)
  %node = call ptr @new_node(ptr %op, ptr %inputs, ptr %kind)
  ret ptr %node
elsewhere:
  %result = call ptr @instead(ptr %self, ptr %arguments, i64 %count)
  ret ptr %result
}

; wrap(node): an array. `self` is what to call for what is no node, or has an array already.
define internal ptr @wrap(ptr %self, ptr %arguments, i64 %count) {
  %one = icmp eq i64 %count, 1
  br i1 %one, label %look, label %elsewhere
look:
  %table = load ptr, ptr @table
  %node = load ptr, ptr %arguments
  %type = type %node
  %node_type = get ptr %table.node_type
  %is_node = icmp eq ptr %type, %node_type
  br i1 %is_node, label %free, label %perhaps
perhaps:
  %derives = get ptr %table.PyType_IsSubtype
  %derived = call i32 %derives(ptr %type, ptr %node_type)
  %no_node = icmp eq i32 %derived, 0
  br i1 %no_node, label %elsewhere, label %free
free:
  %none = get ptr %table.none
  %handle = take %node, handle
  %is_free = icmp eq ptr %handle, %none
  br i1 %is_free, label %here, label %elsewhere
here:
  %increase = get ptr %table.Py_IncRef
  call void %increase(ptr %node)
  %array = call ptr @new_array(ptr %node)
  ret ptr %array
elsewhere:
  %result = call ptr @instead(ptr %self, ptr %arguments, i64 %count)
  ret ptr %result
}

; The node of an array, or null: of anything else, while somebody watches, and while some thread may see another one.
define internal ptr @node_of(ptr %object) {
  %table = load ptr, ptr @table
  %watched = get i64 %table.watched
  %overlaid = get i64 %table.overlaid
  %array_type = get ptr %table.array_type
  %type = type %object
  %either = or i64 %watched, %overlaid
  %unwatched = icmp eq i64 %either, 0
  %same = icmp eq ptr %type, %array_type
  %good = and i1 %unwatched, %same
  br i1 %good, label %array, label %other
array:
  %node = take %object, node
  ret ptr %node
other:
  ret ptr null
}

; The kind of the result for an operand of this kind, or null; a new reference. `self` is (op, kinds, instead).
define internal ptr @result_kind(ptr %self, ptr %kind) {
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %kinds = call ptr %item(ptr %self, i64 1)
  %look_up = get ptr %table.PyDict_GetItemWithError
  %found = call ptr %look_up(ptr %kinds, ptr %kind)
  %known = icmp ne ptr %found, null
  br i1 %known, label %hold, label %done
hold:
  %increase = get ptr %table.Py_IncRef
  call void %increase(ptr %found)
  br label %done
done:
  ret ptr %found
}

; unary(a): an array of op(a) where the kind of the result is known. `self` is (op, kinds, instead).
define internal ptr @unary(ptr %self, ptr %arguments, i64 %count) {
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %one = icmp eq i64 %count, 1
  br i1 %one, label %look, label %elsewhere
look:
  %a = load ptr, ptr %arguments
  %x = call ptr @node_of(ptr %a)
  %no_node = icmp eq ptr %x, null
  br i1 %no_node, label %elsewhere, label %infer
infer:
  %operand_kind = take %x, kind
  %kind = call ptr @result_kind(ptr %self, ptr %operand_kind)
  %unknown = icmp eq ptr %kind, null
  br i1 %unknown, label %elsewhere, label %here
here:
  %increase = get ptr %table.Py_IncRef
  %new_tuple = get ptr %table.PyTuple_New
  %store = get ptr %table.PyTuple_SetItem
  call void %increase(ptr %x)                    ; before memory is asked for: that may run finalizers
  %inputs = call ptr %new_tuple(i64 1)
  %no_inputs = icmp eq ptr %inputs, null
  br i1 %no_inputs, label %failed, label %first
first:
  call i32 %store(ptr %inputs, i64 0, ptr %x)
  br label %bound
failed:
  %decrease = get ptr %table.Py_DecRef
  call void %decrease(ptr %x)
  br label %bound
bound:
  %op = call ptr %item(ptr %self, i64 0)
  %node = call ptr @new_node(ptr %op, ptr %inputs, ptr %kind)
  %array = call ptr @new_array(ptr %node)
  ret ptr %array
elsewhere:
  %function = call ptr %item(ptr %self, i64 2)
  %other = call ptr @otherwise(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}

; An array of op(x, y), of this kind.
define internal ptr @array_of_two(ptr %self, ptr %x, ptr %y, ptr %kind) {
  %table = load ptr, ptr @table
  %increase = get ptr %table.Py_IncRef
  %new_tuple = get ptr %table.PyTuple_New
  %store = get ptr %table.PyTuple_SetItem
  call void %increase(ptr %kind)
  call void %increase(ptr %x)
  call void %increase(ptr %y)
  %inputs = call ptr %new_tuple(i64 2)
  %no_inputs = icmp eq ptr %inputs, null
  br i1 %no_inputs, label %failed, label %both
both:
  call i32 %store(ptr %inputs, i64 0, ptr %x)
  call i32 %store(ptr %inputs, i64 1, ptr %y)
  br label %bound
failed:
  %decrease = get ptr %table.Py_DecRef
  call void %decrease(ptr %x)
  call void %decrease(ptr %y)
  br label %bound
bound:
  %item = get ptr %table.PyTuple_GetItem
  %op = call ptr %item(ptr %self, i64 0)
  %node = call ptr @new_node(ptr %op, ptr %inputs, ptr %kind)
  %array = call ptr @new_array(ptr %node)
  ret ptr %array
}

; The node of a number beside an operand of this kind, and the kind of the result; null if they are not known. `self`
; is (op, kinds, instead, kinds of results with floats, with ints, nodes of floats by kind, of ints).
define internal ptr @number(ptr %self, ptr %kind, ptr %number, ptr %result) {
entry:
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %look_up = get ptr %table.PyDict_GetItemWithError
  %float_type = get ptr %table.float_type
  %int_type = get ptr %table.int_type
  %type = type %number
  %is_float = icmp eq ptr %type, %float_type
  br i1 %is_float, label %float, label %perhaps
perhaps:
  %is_int = icmp eq ptr %type, %int_type
  br i1 %is_int, label %look, label %unknown
float:
  %as_double = get ptr %table.PyFloat_AsDouble
  %double = call double %as_double(ptr %number)
  %bits = bitcast double %double to i64
  %minus_zero = icmp eq i64 %bits, -9223372036854775808  ; equal to 0.0 as a key, but another number
  br i1 %minus_zero, label %unknown, label %look
look:
  %kinds_place = phi i64 [ 3, %float ], [ 4, %perhaps ]
  %nodes_place = add i64 %kinds_place, 2
  %kinds = call ptr %item(ptr %self, i64 %kinds_place)
  %found = call ptr %look_up(ptr %kinds, ptr %kind)
  %no_kind = icmp eq ptr %found, null
  br i1 %no_kind, label %unknown, label %find
find:
  %tables = call ptr %item(ptr %self, i64 %nodes_place)
  %nodes = call ptr %look_up(ptr %tables, ptr %kind)
  %no_nodes = icmp eq ptr %nodes, null
  br i1 %no_nodes, label %unknown, label %pick
pick:
  %node = call ptr %look_up(ptr %nodes, ptr %number)
  store ptr %found, ptr %result
  ret ptr %node
unknown:
  ret ptr null
}

; binary(a, b): an array of op(a, b) for arrays of one kind, or an array and a number, where that of the result is
; known.
define internal ptr @binary(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %result_at = alloca ptr
  %two = icmp eq i64 %count, 2
  br i1 %two, label %look, label %elsewhere
look:
  %a = load ptr, ptr %arguments
  %b_at = getelementptr ptr, ptr %arguments, i64 1
  %b = load ptr, ptr %b_at
  %x = call ptr @node_of(ptr %a)
  %y = call ptr @node_of(ptr %b)
  %no_x = icmp eq ptr %x, null
  br i1 %no_x, label %elsewhere, label %first
first:
  %kind = take %x, kind
  %no_y = icmp eq ptr %y, null
  br i1 %no_y, label %one, label %compare
one:
  %number = call ptr @number(ptr %self, ptr %kind, ptr %b, ptr %result_at)
  %no_number = icmp eq ptr %number, null
  br i1 %no_number, label %elsewhere, label %with_number
with_number:
  %its_kind = load ptr, ptr %result_at
  br label %here
compare:
  %y_kind = take %y, kind
  %same = icmp eq ptr %kind, %y_kind
  br i1 %same, label %infer, label %elsewhere
infer:
  %look_up = get ptr %table.PyDict_GetItemWithError
  %kinds = call ptr %item(ptr %self, i64 1)
  %known = call ptr %look_up(ptr %kinds, ptr %kind)
  %unknown = icmp eq ptr %known, null
  br i1 %unknown, label %elsewhere, label %here
here:
  %second = phi ptr [ %y, %infer ], [ %number, %with_number ]
  %result = phi ptr [ %known, %infer ], [ %its_kind, %with_number ]
  %array = call ptr @array_of_two(ptr %self, ptr %x, ptr %second, ptr %result)
  ret ptr %array
elsewhere:
  %function = call ptr %item(ptr %self, i64 2)
  %other = call ptr @otherwise(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}

; reflected(a, b): an array of op(b, a) for an array and a number.
define internal ptr @reflected(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %result_at = alloca ptr
  %two = icmp eq i64 %count, 2
  br i1 %two, label %look, label %elsewhere
look:
  %a = load ptr, ptr %arguments
  %b_at = getelementptr ptr, ptr %arguments, i64 1
  %b = load ptr, ptr %b_at
  %x = call ptr @node_of(ptr %a)
  %no_x = icmp eq ptr %x, null
  br i1 %no_x, label %elsewhere, label %one
one:
  %kind = take %x, kind
  %number = call ptr @number(ptr %self, ptr %kind, ptr %b, ptr %result_at)
  %no_number = icmp eq ptr %number, null
  br i1 %no_number, label %elsewhere, label %here
here:
  %result = load ptr, ptr %result_at
  %array = call ptr @array_of_two(ptr %self, ptr %number, ptr %x, ptr %result)
  ret ptr %array
elsewhere:
  %function = call ptr %item(ptr %self, i64 2)
  %other = call ptr @otherwise(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}
"""

_BINDING = f"""
; Remember the table, and write the addresses of the functions into it.
define void @weft_objects(ptr %table) {{
  store ptr %table, ptr @table
{"".join(f"  %at_{name} = at %table.{name}{chr(10)}  store ptr @{name}, ptr %at_{name}{chr(10)}" for name in _ENTRIES)}\
  ret void
}}
"""


HEAD_WORDS: Final = 2
"""Of every object: the number of references to it, and its class."""


def native_code() -> str:
    """The LLVM IR of the functions. It has three shorthands for the words of objects, beside those of `expand`:

    %v = take %object, attribute          put %v, %object, attribute          %v = type %object
    """
    lines: list[str] = []
    for number, line in enumerate((_MAKING + TRACING + EVALUATING + _BINDING).splitlines()):
        taken = re.fullmatch(r"  (%\w+) = take (%\w+), (\w+)", line)
        given = re.fullmatch(r"  put (%\w+), (%\w+), (\w+)", line)
        asked = re.fullmatch(r"  (%\w+) = type (%\w+)", line)
        found = taken or given
        if found:
            value, owner, attribute = found.groups()
            lines.append(f"  %distance{number} = get i64 %table.at_{attribute}")
            lines.append(f"  %place{number} = getelementptr i8, ptr {owner}, i64 %distance{number}")
            line = f"  {value} = load ptr, ptr %place{number}" if taken else f"  store ptr {value}, ptr %place{number}"
        elif asked:
            lines.append(f"  %place{number} = getelementptr ptr, ptr {asked[2]}, i64 {HEAD_WORDS - 1}")
            line = f"  {asked[1]} = load ptr, ptr %place{number}"
        lines.append(line)
    return expand("\n".join(lines), {"table": TABLE})
