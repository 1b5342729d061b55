"""LLVM IR, in the form of `weft.runtime.object_code`, of what transforms do for every node: find the way between inputs
and outputs, and build what rules have built before."""

from __future__ import annotations

from typing import Final

TRACING: Final = r"""
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

; follow(found, seen, path, start): adds to `path` the items of `found`, from `start` on, that have an operand in
; `seen`, and takes the others out of it; stops at an item that is no plain node. The number of items done.
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
  %discard = get ptr %table.PySet_Discard
  %tuple_size = get ptr %table.PyTuple_Size
  %tuple_item = get ptr %table.PyTuple_GetItem
  %as_integer = get ptr %table.PyLong_AsLongLong
  %from_integer = get ptr %table.PyLong_FromLongLong
  %node_type = get ptr %table.node_type
  %found = load ptr, ptr %arguments
  %seen_at = getelementptr ptr, ptr %arguments, i64 1
  %seen = load ptr, ptr %seen_at
  %path_at = getelementptr ptr, ptr %arguments, i64 2
  %path = load ptr, ptr %path_at
  %start_at = getelementptr ptr, ptr %arguments, i64 3
  %start_object = load ptr, ptr %start_at
  %start = call i64 %as_integer(ptr %start_object)
  br label %next
next:
  %i = phi i64 [ %start, %here ], [ %i1, %drop ], [ %i1, %add ]
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
  br i1 %missing, label %operand, label %drop
operand:
  %k1 = add i64 %k, 1
  %x = call ptr %tuple_item(ptr %inputs, i64 %k)
  %known = call i32 %contains(ptr %seen, ptr %x)
  %depends = icmp eq i32 %known, 1
  br i1 %depends, label %add, label %operands
add:
  %status = call i32 %append(ptr %path, ptr %node)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %next, label %raise
drop:
  call i32 %discard(ptr %seen, ptr %node)
  br label %next
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

; recall(*arguments): an array of what a call built before, for arrays of the same kinds and the same other arguments.
; `self` is (known, function, arrays, wrap, instead): the first `arrays` arguments are arrays or None, the others plain
; numbers, strings and None; `known` has what was built by (function, *kinds, *classes, *others).
define internal ptr @recall(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %item = get ptr %table.PyTuple_GetItem
  %nodes = alloca [8 x ptr]
  %single = alloca [1 x ptr]
  %as_integer = get ptr %table.PyLong_AsLongLong
  %arrays_object = call ptr %item(ptr %self, i64 2)
  %arrays = call i64 %as_integer(ptr %arrays_object)
  %enough = icmp sge i64 %count, %arrays
  br i1 %enough, label %begin, label %elsewhere
begin:
  %increase = get ptr %table.Py_IncRef
  %decrease = get ptr %table.Py_DecRef
  %store = get ptr %table.PyTuple_SetItem
  %new_tuple = get ptr %table.PyTuple_New
  %look_up = get ptr %table.PyDict_GetItemWithError
  %call_with = get ptr %table.PyObject_Vectorcall
  %as_double = get ptr %table.PyFloat_AsDouble
  %none = get ptr %table.none
  %float_type = get ptr %table.float_type
  %int_type = get ptr %table.int_type
  %bool_type = get ptr %table.bool_type
  %str_type = get ptr %table.str_type
  %others = sub i64 %count, %arrays
  %room0 = add i64 %count, %others
  %room = add i64 %room0, 1
  %key = call ptr %new_tuple(i64 %room)
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %raise, label %head
head:
  %function = call ptr %item(ptr %self, i64 1)
  call void %increase(ptr %function)
  call i32 %store(ptr %key, i64 0, ptr %function)
  br label %next
next:
  %i = phi i64 [ 0, %head ], [ %i1, %known_kind ], [ %i1, %absent ]
  %given = phi i64 [ 0, %head ], [ %given1, %known_kind ], [ %given, %absent ]
  %more = icmp slt i64 %i, %arrays
  br i1 %more, label %one, label %next_other
one:
  %i1 = add i64 %i, 1
  %argument_at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument_at
  %is_none = icmp eq ptr %argument, %none
  br i1 %is_none, label %absent, label %array
absent:
  call void %increase(ptr %none)
  call i32 %store(ptr %key, i64 %i1, ptr %none)
  br label %next
array:
  %node = call ptr @node_of(ptr %argument)
  %no_node = icmp eq ptr %node, null
  br i1 %no_node, label %strange, label %known_kind
known_kind:
  %node_at = getelementptr ptr, ptr %nodes, i64 %given
  store ptr %node, ptr %node_at
  %given1 = add i64 %given, 1
  %kind = take %node, kind
  call void %increase(ptr %kind)
  call i32 %store(ptr %key, i64 %i1, ptr %kind)
  br label %next
next_other:
  %k = phi i64 [ %arrays, %next ], [ %k1, %plain ]
  %left = icmp slt i64 %k, %count
  br i1 %left, label %other_one, label %find
other_one:
  %k1 = add i64 %k, 1
  %value_at = getelementptr ptr, ptr %arguments, i64 %k
  %value = load ptr, ptr %value_at
  %type = type %value
  %is_float = icmp eq ptr %type, %float_type
  br i1 %is_float, label %float, label %which
float:
  %double = call double %as_double(ptr %value)
  %zero = fcmp oeq double %double, 0.0             ; 0.0 and -0.0 are equal as keys, but different numbers
  br i1 %zero, label %strange, label %plain
which:
  %is_int = icmp eq ptr %type, %int_type
  %is_bool = icmp eq ptr %type, %bool_type
  %is_str = icmp eq ptr %type, %str_type
  %is_nothing = icmp eq ptr %value, %none
  %either = or i1 %is_int, %is_bool
  %or_text = or i1 %either, %is_str
  %good = or i1 %or_text, %is_nothing
  br i1 %good, label %plain, label %strange
plain:
  call void %increase(ptr %type)
  call i32 %store(ptr %key, i64 %k1, ptr %type)
  %value_place = add i64 %k1, %others
  call void %increase(ptr %value)
  call i32 %store(ptr %key, i64 %value_place, ptr %value)
  br label %next_other
find:
  %known = call ptr %item(ptr %self, i64 0)
  %steps = call ptr %look_up(ptr %known, ptr %key)
  %is_new = icmp eq ptr %steps, null
  br i1 %is_new, label %strange, label %build
build:
  %run = take %steps, run
  call void %increase(ptr %run)
  call void @hold(ptr %nodes, i64 %given)
  %made = call ptr %call_with(ptr %run, ptr %nodes, i64 %given, ptr null)
  call void @release(ptr %nodes, i64 0, i64 %given)
  call void %decrease(ptr %run)
  call void %decrease(ptr %key)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %raise, label %finish
finish:
  %wrap = call ptr %item(ptr %self, i64 3)
  store ptr %made, ptr %single
  %result = call ptr %call_with(ptr %wrap, ptr %single, i64 1, ptr null)
  call void %decrease(ptr %made)
  ret ptr %result
strange:
  call void %decrease(ptr %key)
  br label %elsewhere
raise:
  ret ptr null
elsewhere:
  %python = call ptr %item(ptr %self, i64 4)
  %other = call ptr @otherwise(ptr %python, ptr %arguments, i64 %count)
  ret ptr %other
}

define internal void @hold(ptr %values, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %increase = get ptr %table.Py_IncRef
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %one ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %value_at = getelementptr ptr, ptr %values, i64 %i
  %value = load ptr, ptr %value_at
  call void %increase(ptr %value)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
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
"""
