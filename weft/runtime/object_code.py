"""The machine code behind `weft.runtime.objects`, as LLVM IR: functions in the form of CPython's builtins.

Each gets what it was made with, then its arguments. References are counted as CPython's own C code counts them:
"takes over" says that a reference passes to whoever is called, everything else is borrowed from the caller. An object
that is about to be used is held before memory is asked for, because that may run finalizers, and those anything.
"""

from __future__ import annotations

import re
from typing import Final

from weft.runtime.threads import expand

FUNCTIONS: Final = (
    "PyType_GenericAlloc", "PyType_IsSubtype", "PyIter_Next", "Py_IncRef", "Py_DecRef", "PyWeakref_NewRef",
    "PyObject_Vectorcall", "PyTuple_New", "PyTuple_SetItem", "PyTuple_GetItem", "PyDict_GetItemWithError",
    "PyErr_Occurred", "PyTuple_Size", "PyDict_SetItem", "PyBytes_AsString", "PyList_New", "PyList_SetItem",
    "PyList_Size", "PyList_GetItem", "PyList_Append", "PySet_Contains", "PySet_Add", "PyLong_AsLongLong",
    "PyLong_FromLongLong", "PyFloat_AsDouble",
)  # fmt: skip
_OBJECTS: Final = ("node_type", "array_type", "counter", "none", "float_type", "int_type")
NODE_SLOTS: Final = ("op", "inputs", "kind", "value", "stream", "handle", "id")
_ENTRIES: Final = (
    "make", "wrap", "unary", "binary", "reflected", "forward", "backward", "spread", "follow", "pull",
)  # fmt: skip

TABLE: Final = {
    name: word
    for word, name in enumerate(
        ("watched", *_OBJECTS, *FUNCTIONS, *[f"at_{slot}" for slot in NODE_SLOTS], "at_node", "at_run", *_ENTRIES)
    )
}
"""What the machine code knows of the interpreter: addresses of objects and functions, and where attributes lie."""

_IR = r"""
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
  call void %increase(ptr %none)
  put %op, %node, op
  put %inputs, %node, inputs
  put %kind, %node, kind
  put %id, %node, id
  put %none, %node, value
  put %none, %node, stream
  put %none, %node, handle
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

; The node of an array, or null: of anything else, and while somebody watches.
define internal ptr @node_of(ptr %object) {
  %table = load ptr, ptr @table
  %watched = get i64 %table.watched
  %array_type = get ptr %table.array_type
  %type = type %object
  %unwatched = icmp eq i64 %watched, 0
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

; Makes the nodes of a recipe: for each step the number of operands and their places among `values` stand in the code,
; (op, kind) in `objects`; an op of None is a node to be used as it is. Holds what it puts into `values`, from `first`
; on. 0, or 1 if memory ran out, and then it holds nothing.
define internal i64 @cook(ptr %code, ptr %objects, ptr %values, i64 %first, i64 %steps) {
entry:
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %new_tuple = get ptr %table.PyTuple_New
  %store = get ptr %table.PyTuple_SetItem
  %increase = get ptr %table.Py_IncRef
  %none = get ptr %table.none
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %made ]
  %at = phi ptr [ %code, %entry ], [ %at1, %made ]
  %more = icmp slt i64 %i, %steps
  br i1 %more, label %step, label %done
step:
  %op_place = shl i64 %i, 1
  %kind_place = or i64 %op_place, 1
  %op = call ptr %item(ptr %objects, i64 %op_place)
  %kind = call ptr %item(ptr %objects, i64 %kind_place)
  call void %increase(ptr %kind)
  %arity = load i64, ptr %at
  %fixed = icmp eq ptr %op, %none
  br i1 %fixed, label %made, label %gather
gather:
  %inputs = call ptr %new_tuple(i64 %arity)
  %no_inputs = icmp eq ptr %inputs, null
  br i1 %no_inputs, label %bind, label %operands
operands:
  %k = phi i64 [ 0, %gather ], [ %k1, %operand ]
  %missing = icmp slt i64 %k, %arity
  br i1 %missing, label %operand, label %bind
operand:
  %k1 = add i64 %k, 1
  %slot_at = getelementptr i64, ptr %at, i64 %k1
  %slot = load i64, ptr %slot_at
  %value_at = getelementptr ptr, ptr %values, i64 %slot
  %value = load ptr, ptr %value_at
  call void %increase(ptr %value)
  call i32 %store(ptr %inputs, i64 %k, ptr %value)
  br label %operands
bind:
  %node = call ptr @new_node(ptr %op, ptr %inputs, ptr %kind)
  %failed = icmp eq ptr %node, null
  br i1 %failed, label %drop, label %made
made:
  %result = phi ptr [ %kind, %step ], [ %node, %bind ]
  %place = add i64 %first, %i
  %result_at = getelementptr ptr, ptr %values, i64 %place
  store ptr %result, ptr %result_at
  %i1 = add i64 %i, 1
  %words = add i64 %arity, 1
  %at1 = getelementptr i64, ptr %at, i64 %words
  br label %next
drop:
  call void @release(ptr %values, i64 %first, i64 %i)
  ret i64 1
done:
  ret i64 0
}

define internal void @release(ptr %values, i64 %first, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %decrease = get ptr %table.Py_DecRef
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %one ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %place = add i64 %first, %i
  %value_at = getelementptr ptr, ptr %values, i64 %place
  %value = load ptr, ptr %value_at
  call void %decrease(ptr %value)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}

; gathered[x] becomes `cotangent`, or the sum with what is there: op(there, cotangent). 0, or -1 with an exception.
define internal i32 @give(ptr %gathered, ptr %x, ptr %cotangent, ptr %op) {
  %table = load ptr, ptr @table
  %increase = get ptr %table.Py_IncRef
  %decrease = get ptr %table.Py_DecRef
  %look_up = get ptr %table.PyDict_GetItemWithError
  %put = get ptr %table.PyDict_SetItem
  %held = call ptr %look_up(ptr %gathered, ptr %x)
  %first = icmp eq ptr %held, null
  br i1 %first, label %doubt, label %add
doubt:
  %occurred = get ptr %table.PyErr_Occurred
  %error = call ptr %occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %alone, label %raise
alone:
  %status = call i32 %put(ptr %gathered, ptr %x, ptr %cotangent)
  ret i32 %status
add:
  call void %increase(ptr %held)
  %new_tuple = get ptr %table.PyTuple_New
  %store = get ptr %table.PyTuple_SetItem
  %inputs = call ptr %new_tuple(i64 2)
  %no_inputs = icmp eq ptr %inputs, null
  br i1 %no_inputs, label %drop, label %sum
sum:
  call i32 %store(ptr %inputs, i64 0, ptr %held)
  call void %increase(ptr %cotangent)
  call i32 %store(ptr %inputs, i64 1, ptr %cotangent)
  %kind = take %x, kind
  call void %increase(ptr %kind)
  %total = call ptr @new_node(ptr %op, ptr %inputs, ptr %kind)
  %no_total = icmp eq ptr %total, null
  br i1 %no_total, label %raise, label %replace
replace:
  %replaced = call i32 %put(ptr %gathered, ptr %x, ptr %total)
  call void %decrease(ptr %total)
  ret i32 %replaced
drop:
  call void %decrease(ptr %held)
  br label %raise
raise:
  ret i32 -1
}

; forward(*given): the node that a recipe makes of others. `self` is (code, objects, instead); the code begins with the
; number of nodes given, of steps, and the place of the result.
define internal ptr @forward(ptr %self, ptr %arguments, i64 %count) {
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %bytes = get ptr %table.PyBytes_AsString
  %watched = get i64 %table.watched
  %code_object = call ptr %item(ptr %self, i64 0)
  %code = call ptr %bytes(ptr %code_object)
  %given = load i64, ptr %code
  %right = icmp eq i64 %given, %count
  %unwatched = icmp eq i64 %watched, 0
  %usual = and i1 %right, %unwatched
  br i1 %usual, label %here, label %elsewhere
here:
  %steps_at = getelementptr i64, ptr %code, i64 1
  %steps = load i64, ptr %steps_at
  %result_at = getelementptr i64, ptr %code, i64 2
  %result_place = load i64, ptr %result_at
  %list = getelementptr i64, ptr %code, i64 3
  %room = add i64 %given, %steps
  %values = alloca ptr, i64 %room
  %given_bytes = shl i64 %given, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %values, ptr %arguments, i64 %given_bytes, i1 false)
  %objects = call ptr %item(ptr %self, i64 1)
  %failed = call i64 @cook(ptr %list, ptr %objects, ptr %values, i64 %given, i64 %steps)
  %good = icmp eq i64 %failed, 0
  br i1 %good, label %take, label %raise
take:
  %increase = get ptr %table.Py_IncRef
  %place = getelementptr ptr, ptr %values, i64 %result_place
  %result = load ptr, ptr %place
  call void %increase(ptr %result)
  call void @release(ptr %values, i64 %given, i64 %steps)
  ret ptr %result
raise:
  ret ptr null
elsewhere:
  %function = call ptr %item(ptr %self, i64 2)
  %other = call ptr @instead(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}

; backward(gathered, *given): gives nodes the cotangents that a recipe makes. `self` is (code, objects, instead, op that
; adds); the code begins with the number of nodes given, of steps, of results, then (receiver, place) of each.
define internal ptr @backward(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %bytes = get ptr %table.PyBytes_AsString
  %watched = get i64 %table.watched
  %code_object = call ptr %item(ptr %self, i64 0)
  %code = call ptr %bytes(ptr %code_object)
  %given = load i64, ptr %code
  %wanted = add i64 %given, 1
  %right = icmp eq i64 %wanted, %count
  %unwatched = icmp eq i64 %watched, 0
  %usual = and i1 %right, %unwatched
  br i1 %usual, label %here, label %elsewhere
here:
  %steps_at = getelementptr i64, ptr %code, i64 1
  %steps = load i64, ptr %steps_at
  %results_at = getelementptr i64, ptr %code, i64 2
  %results = load i64, ptr %results_at
  %pairs = getelementptr i64, ptr %code, i64 3
  %pair_words = shl i64 %results, 1
  %list = getelementptr i64, ptr %pairs, i64 %pair_words
  %room = add i64 %given, %steps
  %values = alloca ptr, i64 %room
  %given_bytes = shl i64 %given, 3
  %nodes = getelementptr ptr, ptr %arguments, i64 1
  call void @llvm.memcpy.p0.p0.i64(ptr %values, ptr %nodes, i64 %given_bytes, i1 false)
  %objects = call ptr %item(ptr %self, i64 1)
  %failed = call i64 @cook(ptr %list, ptr %objects, ptr %values, i64 %given, i64 %steps)
  %good = icmp eq i64 %failed, 0
  br i1 %good, label %begin, label %raise
begin:
  %gathered = load ptr, ptr %arguments
  %op = call ptr %item(ptr %self, i64 3)
  br label %next
next:
  %i = phi i64 [ 0, %begin ], [ %i1, %one ]
  %more = icmp slt i64 %i, %results
  br i1 %more, label %one, label %done
one:
  %i1 = add i64 %i, 1
  %pair = shl i64 %i, 1
  %receiver_at = getelementptr i64, ptr %pairs, i64 %pair
  %receiver = load i64, ptr %receiver_at
  %place_at = getelementptr i64, ptr %receiver_at, i64 1
  %place = load i64, ptr %place_at
  %x_at = getelementptr ptr, ptr %values, i64 %receiver
  %x = load ptr, ptr %x_at
  %cotangent_at = getelementptr ptr, ptr %values, i64 %place
  %cotangent = load ptr, ptr %cotangent_at
  %status = call i32 @give(ptr %gathered, ptr %x, ptr %cotangent, ptr %op)
  %given_well = icmp eq i32 %status, 0
  br i1 %given_well, label %next, label %failing
failing:
  call void @release(ptr %values, i64 %given, i64 %steps)
  br label %raise
raise:
  ret ptr null
done:
  call void @release(ptr %values, i64 %given, i64 %steps)
  %increase = get ptr %table.Py_IncRef
  %none = get ptr %table.none
  call void %increase(ptr %none)
  ret ptr %none
elsewhere:
  %function = call ptr %item(ptr %self, i64 2)
  %other = call ptr @instead(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}

; spread(found, seen, oldest, start): adds to `found`, from its item `start` on, the operands of its items that are not
; in `seen` and not older than `oldest`; stops at an item that is no plain node. The number of items done.
define internal ptr @spread(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %watched = get i64 %table.watched
  %four = icmp eq i64 %count, 4
  %unwatched = icmp eq i64 %watched, 0
  %usual = and i1 %four, %unwatched
  br i1 %usual, label %here, label %elsewhere
here:
  %list_size = get ptr %table.PyList_Size
  %list_item = get ptr %table.PyList_GetItem
  %append = get ptr %table.PyList_Append
  %contains = get ptr %table.PySet_Contains
  %put = get ptr %table.PySet_Add
  %tuple_size = get ptr %table.PyTuple_Size
  %tuple_item = get ptr %table.PyTuple_GetItem
  %as_integer = get ptr %table.PyLong_AsLongLong
  %from_integer = get ptr %table.PyLong_FromLongLong
  %node_type = get ptr %table.node_type
  %found = load ptr, ptr %arguments
  %seen_at = getelementptr ptr, ptr %arguments, i64 1
  %seen = load ptr, ptr %seen_at
  %oldest_at = getelementptr ptr, ptr %arguments, i64 2
  %oldest_object = load ptr, ptr %oldest_at
  %start_at = getelementptr ptr, ptr %arguments, i64 3
  %start_object = load ptr, ptr %start_at
  %oldest = call i64 %as_integer(ptr %oldest_object)
  %start = call i64 %as_integer(ptr %start_object)
  br label %next
next:
  %i = phi i64 [ %start, %here ], [ %i1, %operands ]
  %size = call i64 %list_size(ptr %found)
  %more = icmp slt i64 %i, %size
  br i1 %more, label %look, label %stop
look:
  %node = call ptr %list_item(ptr %found, i64 %i)
  %type = type %node
  %plain = icmp eq ptr %type, %node_type
  br i1 %plain, label %begin, label %stop
begin:
  %i1 = add i64 %i, 1
  %inputs = take %node, inputs
  %arity = call i64 %tuple_size(ptr %inputs)
  br label %operands
operands:
  %k = phi i64 [ 0, %begin ], [ %k1, %skip ]
  %missing = icmp slt i64 %k, %arity
  br i1 %missing, label %operand, label %next
operand:
  %x = call ptr %tuple_item(ptr %inputs, i64 %k)
  %known = call i32 %contains(ptr %seen, ptr %x)
  %new = icmp eq i32 %known, 0
  br i1 %new, label %age, label %skip
age:
  %id_object = take %x, id
  %id = call i64 %as_integer(ptr %id_object)
  %young = icmp sge i64 %id, %oldest
  br i1 %young, label %add, label %skip
add:
  %status0 = call i32 %put(ptr %seen, ptr %x)
  %status1 = call i32 %append(ptr %found, ptr %x)
  %status = or i32 %status0, %status1
  %good = icmp eq i32 %status, 0
  br i1 %good, label %skip, label %raise
skip:
  %k1 = add i64 %k, 1
  br label %operands
stop:
  %result = call ptr %from_integer(i64 %i)
  ret ptr %result
raise:
  ret ptr null
elsewhere:
  %other = call ptr @instead(ptr %self, ptr %arguments, i64 %count)
  ret ptr %other
}

; follow(found, active, path, start): adds to `active` and to `path` the items of `found`, from `start` on, that have an
; operand in `active`; stops at an item that is no plain node. The number of items done.
define internal ptr @follow(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %watched = get i64 %table.watched
  %four = icmp eq i64 %count, 4
  %unwatched = icmp eq i64 %watched, 0
  %usual = and i1 %four, %unwatched
  br i1 %usual, label %here, label %elsewhere
here:
  %list_size = get ptr %table.PyList_Size
  %list_item = get ptr %table.PyList_GetItem
  %append = get ptr %table.PyList_Append
  %contains = get ptr %table.PySet_Contains
  %put = get ptr %table.PySet_Add
  %tuple_size = get ptr %table.PyTuple_Size
  %tuple_item = get ptr %table.PyTuple_GetItem
  %as_integer = get ptr %table.PyLong_AsLongLong
  %from_integer = get ptr %table.PyLong_FromLongLong
  %node_type = get ptr %table.node_type
  %found = load ptr, ptr %arguments
  %active_at = getelementptr ptr, ptr %arguments, i64 1
  %active = load ptr, ptr %active_at
  %path_at = getelementptr ptr, ptr %arguments, i64 2
  %path = load ptr, ptr %path_at
  %start_at = getelementptr ptr, ptr %arguments, i64 3
  %start_object = load ptr, ptr %start_at
  %start = call i64 %as_integer(ptr %start_object)
  br label %next
next:
  %i = phi i64 [ %start, %here ], [ %i1, %operands ], [ %i1, %add ]
  %size = call i64 %list_size(ptr %found)
  %more = icmp slt i64 %i, %size
  br i1 %more, label %look, label %stop
look:
  %node = call ptr %list_item(ptr %found, i64 %i)
  %type = type %node
  %plain = icmp eq ptr %type, %node_type
  br i1 %plain, label %begin, label %stop
begin:
  %i1 = add i64 %i, 1
  %inputs = take %node, inputs
  %arity = call i64 %tuple_size(ptr %inputs)
  br label %operands
operands:
  %k = phi i64 [ 0, %begin ], [ %k1, %operand ]
  %missing = icmp slt i64 %k, %arity
  br i1 %missing, label %operand, label %next
operand:
  %k1 = add i64 %k, 1
  %x = call ptr %tuple_item(ptr %inputs, i64 %k)
  %known = call i32 %contains(ptr %active, ptr %x)
  %depends = icmp eq i32 %known, 1
  br i1 %depends, label %add, label %operands
add:
  %status0 = call i32 %put(ptr %active, ptr %node)
  %status1 = call i32 %append(ptr %path, ptr %node)
  %status = or i32 %status0, %status1
  %good = icmp eq i32 %status, 0
  br i1 %good, label %next, label %raise
stop:
  %result = call ptr %from_integer(i64 %i)
  ret ptr %result
raise:
  ret ptr null
elsewhere:
  %other = call ptr @instead(ptr %self, ptr %arguments, i64 %count)
  ret ptr %other
}

; pull(path, gathered, active): from the last node of the path to the first, what has a cotangent hands it on, by the
; rule that is known for its kind of operands. `self` is (rules, the op of a cotangent of one, instead); `instead` gets
; ([node], gathered, active) of a node whose rule is not known.
define internal ptr @pull(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %increase = get ptr %table.Py_IncRef
  %decrease = get ptr %table.Py_DecRef
  %call_with = get ptr %table.PyObject_Vectorcall
  %handed = alloca [11 x ptr]
  %single = alloca [3 x ptr]
  %watched = get i64 %table.watched
  %three = icmp eq i64 %count, 3
  %unwatched = icmp eq i64 %watched, 0
  %usual = and i1 %three, %unwatched
  br i1 %usual, label %here, label %elsewhere
here:
  %list_size = get ptr %table.PyList_Size
  %list_item = get ptr %table.PyList_GetItem
  %contains = get ptr %table.PySet_Contains
  %tuple_size = get ptr %table.PyTuple_Size
  %new_tuple = get ptr %table.PyTuple_New
  %store = get ptr %table.PyTuple_SetItem
  %look_up = get ptr %table.PyDict_GetItemWithError
  %from_integer = get ptr %table.PyLong_FromLongLong
  %occurred = get ptr %table.PyErr_Occurred
  %path = load ptr, ptr %arguments
  %gathered_at = getelementptr ptr, ptr %arguments, i64 1
  %gathered = load ptr, ptr %gathered_at
  %active_at = getelementptr ptr, ptr %arguments, i64 2
  %active = load ptr, ptr %active_at
  %rules = call ptr %item(ptr %self, i64 0)
  %one = call ptr %item(ptr %self, i64 1)
  %python = call ptr %item(ptr %self, i64 2)
  %size = call i64 %list_size(ptr %path)
  br label %next
next:
  %i = phi i64 [ %size, %here ], [ %i1, %look ], [ %i1, %finished ]
  %more = icmp sgt i64 %i, 0
  br i1 %more, label %look, label %done
look:
  %i1 = sub i64 %i, 1
  %node = call ptr %list_item(ptr %path, i64 %i1)
  %cotangent = call ptr %look_up(ptr %gathered, ptr %node)
  %none_given = icmp eq ptr %cotangent, null
  br i1 %none_given, label %next, label %given
given:
  call void %increase(ptr %cotangent)
  %inputs = take %node, inputs
  %arity = call i64 %tuple_size(ptr %inputs)
  %many = icmp ugt i64 %arity, 8
  br i1 %many, label %by_python, label %describe
describe:
  %cotangent_op = take %cotangent, op
  %is_one = icmp eq ptr %cotangent_op, %one
  %mask0 = zext i1 %is_one to i64
  %key_size = add i64 %arity, 2
  %key = call ptr %new_tuple(i64 %key_size)
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %drop, label %operands
operands:
  %k = phi i64 [ 0, %describe ], [ %k1, %operand ]
  %mask = phi i64 [ %mask0, %describe ], [ %mask1, %operand ]
  %missing = icmp slt i64 %k, %arity
  br i1 %missing, label %operand, label %find
operand:
  %x = call ptr %item(ptr %inputs, i64 %k)
  %hand = add i64 %k, 3
  %hand_at = getelementptr ptr, ptr %handed, i64 %hand
  store ptr %x, ptr %hand_at
  %kind = take %x, kind
  call void %increase(ptr %kind)
  %kind_place = add i64 %k, 2
  call i32 %store(ptr %key, i64 %kind_place, ptr %kind)
  %k1 = add i64 %k, 1
  %wanted = call i32 %contains(ptr %active, ptr %x)
  %wanted_long = zext i32 %wanted to i64
  %bit = shl i64 %wanted_long, %k1
  %mask1 = or i64 %mask, %bit
  br label %operands
find:
  %op = take %node, op
  call void %increase(ptr %op)
  call i32 %store(ptr %key, i64 0, ptr %op)
  %mask_object = call ptr %from_integer(i64 %mask)
  call i32 %store(ptr %key, i64 1, ptr %mask_object)
  %rule = call ptr %look_up(ptr %rules, ptr %key)
  call void %decrease(ptr %key)
  %unknown = icmp eq ptr %rule, null
  br i1 %unknown, label %doubt, label %apply
doubt:
  %error = call ptr %occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %by_python, label %drop
apply:
  %run = take %rule, run
  call void %increase(ptr %run)
  store ptr %gathered, ptr %handed
  %cotangent_at = getelementptr ptr, ptr %handed, i64 1
  store ptr %cotangent, ptr %cotangent_at
  %node_at = getelementptr ptr, ptr %handed, i64 2
  store ptr %node, ptr %node_at
  %hands = add i64 %arity, 3
  %applied = call ptr %call_with(ptr %run, ptr %handed, i64 %hands, ptr null)
  call void %decrease(ptr %run)
  br label %check
by_python:
  %list = call ptr @list_of(ptr %node)
  %no_list = icmp eq ptr %list, null
  br i1 %no_list, label %drop, label %ask
ask:
  store ptr %list, ptr %single
  %second = getelementptr ptr, ptr %single, i64 1
  store ptr %gathered, ptr %second
  %third = getelementptr ptr, ptr %single, i64 2
  store ptr %active, ptr %third
  %asked = call ptr %call_with(ptr %python, ptr %single, i64 3, ptr null)
  call void %decrease(ptr %list)
  br label %check
check:
  %outcome = phi ptr [ %applied, %apply ], [ %asked, %ask ]
  %raised = icmp eq ptr %outcome, null
  br i1 %raised, label %drop, label %finished
finished:
  call void %decrease(ptr %outcome)
  call void %decrease(ptr %cotangent)
  br label %next
drop:
  call void %decrease(ptr %cotangent)
  ret ptr null
done:
  %none = get ptr %table.none
  call void %increase(ptr %none)
  ret ptr %none
elsewhere:
  %function = call ptr %item(ptr %self, i64 2)
  %other = call ptr @instead(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}

define internal ptr @list_of(ptr %object) {
  %table = load ptr, ptr @table
  %new_list = get ptr %table.PyList_New
  %list = call ptr %new_list(i64 1)
  %failed = icmp eq ptr %list, null
  br i1 %failed, label %done, label %fill
fill:
  %increase = get ptr %table.Py_IncRef
  %store = get ptr %table.PyList_SetItem
  call void %increase(ptr %object)
  call i32 %store(ptr %list, i64 0, ptr %object)
  br label %done
done:
  ret ptr %list
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Remember the table, and write the addresses of the functions into it.
define void @weft_objects(ptr %table) {
  store ptr %table, ptr @table
  %make_at = at %table.make
  store ptr @make, ptr %make_at
  %wrap_at = at %table.wrap
  store ptr @wrap, ptr %wrap_at
  %unary_at = at %table.unary
  store ptr @unary, ptr %unary_at
  %binary_at = at %table.binary
  store ptr @binary, ptr %binary_at
  %reflected_at = at %table.reflected
  store ptr @reflected, ptr %reflected_at
  %forward_at = at %table.forward
  store ptr @forward, ptr %forward_at
  %backward_at = at %table.backward
  store ptr @backward, ptr %backward_at
  %spread_at = at %table.spread
  store ptr @spread, ptr %spread_at
  %follow_at = at %table.follow
  store ptr @follow, ptr %follow_at
  %pull_at = at %table.pull
  store ptr @pull, ptr %pull_at
  ret void
}
"""


HEAD_WORDS: Final = 2
"""Of every object: the number of references to it, and its class."""


def native_code() -> str:
    """The LLVM IR of the functions. It has three shorthands for the words of objects, beside those of `expand`:

    %v = take %object, attribute          put %v, %object, attribute          %v = type %object
    """
    lines: list[str] = []
    for number, line in enumerate(_IR.splitlines()):
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
