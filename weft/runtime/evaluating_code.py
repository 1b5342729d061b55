"""LLVM IR, in the form of `weft.runtime.object_code`, of what evaluation does for every node: find what is to be
computed, and describe it."""

from __future__ import annotations

from typing import Final

EVALUATING: Final = r"""
; reach(found, seen, bundles): adds to `found` all operands of its items, and theirs, that have no value and are not in
; `seen`; and to `bundles` the items that have several results. Whether there are slice updates. `self` is (instead,
; slice, slice update, bundled, slice_data): three classes, and what finds the value of a slice without a program.
define internal ptr @reach(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %tuple_item = get ptr %table.PyTuple_GetItem
  %asked = alloca [1 x ptr]
  %three = icmp eq i64 %count, 3
  br i1 %three, label %here, label %elsewhere
here:
  %list_size = get ptr %table.PyList_Size
  %list_item = get ptr %table.PyList_GetItem
  %append = get ptr %table.PyList_Append
  %contains = get ptr %table.PySet_Contains
  %put = get ptr %table.PySet_Add
  %tuple_size = get ptr %table.PyTuple_Size
  %increase = get ptr %table.Py_IncRef
  %decrease = get ptr %table.Py_DecRef
  %call_with = get ptr %table.PyObject_Vectorcall
  %is_true = get ptr %table.PyObject_IsTrue
  %from_integer = get ptr %table.PyBool_FromLong
  %none = get ptr %table.none
  %slice = call ptr %tuple_item(ptr %self, i64 1)
  %slice_update = call ptr %tuple_item(ptr %self, i64 2)
  %bundled = call ptr %tuple_item(ptr %self, i64 3)
  %slice_data = call ptr %tuple_item(ptr %self, i64 4)
  %found = load ptr, ptr %arguments
  %seen_at = getelementptr ptr, ptr %arguments, i64 1
  %seen = load ptr, ptr %seen_at
  %bundles_at = getelementptr ptr, ptr %arguments, i64 2
  %bundles = load ptr, ptr %bundles_at
  br label %next
next:
  %i = phi i64 [ 0, %here ], [ %i1, %let_go ]
  %updates = phi i64 [ 0, %here ], [ %updates1, %let_go ]
  %size = call i64 %list_size(ptr %found)
  %more = icmp slt i64 %i, %size
  br i1 %more, label %look, label %stop
look:
  %i1 = add i64 %i, 1
  %node = call ptr %list_item(ptr %found, i64 %i)
  %node_op = take %node, op
  %node_op_type = type %node_op
  %is_update = icmp eq ptr %node_op_type, %slice_update
  %update = zext i1 %is_update to i64
  %updates1 = or i64 %updates, %update
  %type = type %node
  %is_bundled = icmp eq ptr %type, %bundled
  br i1 %is_bundled, label %bundle, label %begin
bundle:
  %bundle_status = call i32 %append(ptr %bundles, ptr %node)
  %bundle_good = icmp eq i32 %bundle_status, 0
  br i1 %bundle_good, label %begin, label %raise
begin:
  %inputs = take %node, inputs
  call void %increase(ptr %inputs)               ; what is called below may be interrupted, and the node evaluated
  %arity = call i64 %tuple_size(ptr %inputs)
  br label %operands
operands:
  %k = phi i64 [ 0, %begin ], [ %k1, %skip ]
  %missing = icmp slt i64 %k, %arity
  br i1 %missing, label %operand, label %let_go
operand:
  %x = call ptr %tuple_item(ptr %inputs, i64 %k)
  %known = call i32 %contains(ptr %seen, ptr %x)
  %new = icmp eq i32 %known, 0
  br i1 %new, label %see, label %skip
see:
  %status0 = call i32 %put(ptr %seen, ptr %x)
  %seen_good = icmp eq i32 %status0, 0
  br i1 %seen_good, label %ask, label %drop
ask:
  %value = take %x, value
  %pending = icmp eq ptr %value, %none
  br i1 %pending, label %unknown, label %skip
unknown:
  %op = take %x, op
  %op_type = type %op
  %is_slice = icmp eq ptr %op_type, %slice
  br i1 %is_slice, label %cut, label %add
cut:
  store ptr %x, ptr %asked
  %answer = call ptr %call_with(ptr %slice_data, ptr %asked, i64 1, ptr null)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %drop, label %judge
judge:
  %truth = call i32 %is_true(ptr %answer)
  call void %decrease(ptr %answer)
  %is_data = icmp eq i32 %truth, 1
  br i1 %is_data, label %skip, label %add
add:
  %status1 = call i32 %append(ptr %found, ptr %x)
  %good = icmp eq i32 %status1, 0
  br i1 %good, label %skip, label %drop
skip:
  %k1 = add i64 %k, 1
  br label %operands
let_go:
  call void %decrease(ptr %inputs)
  br label %next
stop:
  %result = call ptr %from_integer(i64 %updates)
  ret ptr %result
drop:
  call void %decrease(ptr %inputs)
  br label %raise
raise:
  ret ptr null
elsewhere:
  %function = call ptr %tuple_item(ptr %self, i64 0)
  %other = call ptr @instead(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}

; Whether a live array refers to a node whose handle is not None: 0 or 1, or -1 with an exception. `python` answers
; where this is not a plain weak reference to an array, or arrays may have other nodes for some thread.
define internal i32 @is_held(ptr %node, ptr %handle, ptr %reference_type, ptr %python) {
entry:
  %table = load ptr, ptr @table
  %call_with = get ptr %table.PyObject_Vectorcall
  %decrease = get ptr %table.Py_DecRef
  %is_true = get ptr %table.PyObject_IsTrue
  %overlaid = get i64 %table.overlaid
  %asked = alloca [1 x ptr]
  %type = type %handle
  %single = icmp eq ptr %type, %reference_type
  %plain = icmp eq i64 %overlaid, 0
  %usual = and i1 %single, %plain
  br i1 %usual, label %here, label %elsewhere
here:
  %user = call ptr %call_with(ptr %handle, ptr null, i64 0, ptr null)
  %failed = icmp eq ptr %user, null
  br i1 %failed, label %raise, label %alive
alive:
  %none = get ptr %table.none
  %gone = icmp eq ptr %user, %none
  br i1 %gone, label %free, label %compare
compare:
  %array_type = get ptr %table.array_type
  %user_type = type %user
  %is_array = icmp eq ptr %user_type, %array_type
  br i1 %is_array, label %read, label %strange
read:
  %its = take %user, node
  %same = icmp eq ptr %its, %node
  %held = zext i1 %same to i32
  call void %decrease(ptr %user)
  ret i32 %held
free:
  call void %decrease(ptr %user)
  ret i32 0
strange:
  call void %decrease(ptr %user)
  br label %elsewhere
elsewhere:
  store ptr %node, ptr %asked
  %answer = call ptr %call_with(ptr %python, ptr %asked, i64 1, ptr null)
  %no_answer = icmp eq ptr %answer, null
  br i1 %no_answer, label %raise, label %judge
judge:
  %truth = call i32 %is_true(ptr %answer)
  call void %decrease(ptr %answer)
  ret i32 %truth
raise:
  ret i32 -1
}

; index[node] becomes `number`. 0, or -1 with an exception.
define internal i32 @enumerate(ptr %index, ptr %node, i64 %number) {
  %table = load ptr, ptr @table
  %from_integer = get ptr %table.PyLong_FromLongLong
  %put = get ptr %table.PyDict_SetItem
  %decrease = get ptr %table.Py_DecRef
  %object = call ptr %from_integer(i64 %number)
  %failed = icmp eq ptr %object, null
  br i1 %failed, label %raise, label %store
store:
  %status = call i32 %put(ptr %index, ptr %node, ptr %object)
  call void %decrease(ptr %object)
  ret i32 %status
raise:
  ret i32 -1
}

; describe(order, wanted, index, key, leaves, constants, results): see `instead`, which is the same. `self` is (instead,
; buffer, constant value, weak reference, has_handle, DATA, -1, refuse): three classes, a function, two parts of keys,
; and what raises for a value that is neither.
define internal ptr @describe(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %tuple_item = get ptr %table.PyTuple_GetItem
  %asked = alloca [1 x ptr]
  %seven = icmp eq i64 %count, 7
  br i1 %seven, label %here, label %elsewhere
here:
  %list_size = get ptr %table.PyList_Size
  %list_item = get ptr %table.PyList_GetItem
  %append = get ptr %table.PyList_Append
  %contains = get ptr %table.PySequence_Contains
  %look_up = get ptr %table.PyDict_GetItemWithError
  %dict_size = get ptr %table.PyDict_Size
  %tuple_size = get ptr %table.PyTuple_Size
  %increase = get ptr %table.Py_IncRef
  %decrease = get ptr %table.Py_DecRef
  %call_with = get ptr %table.PyObject_Vectorcall
  %derives = get ptr %table.PyType_IsSubtype
  %occurred = get ptr %table.PyErr_Occurred
  %none = get ptr %table.none
  %buffer_type = call ptr %tuple_item(ptr %self, i64 1)
  %constant_type = call ptr %tuple_item(ptr %self, i64 2)
  %reference_type = call ptr %tuple_item(ptr %self, i64 3)
  %has_handle = call ptr %tuple_item(ptr %self, i64 4)
  %data = call ptr %tuple_item(ptr %self, i64 5)
  %minus_one = call ptr %tuple_item(ptr %self, i64 6)
  %refuse = call ptr %tuple_item(ptr %self, i64 7)
  %order = load ptr, ptr %arguments
  %wanted_at = getelementptr ptr, ptr %arguments, i64 1
  %wanted = load ptr, ptr %wanted_at
  %index_at = getelementptr ptr, ptr %arguments, i64 2
  %index = load ptr, ptr %index_at
  %key_at = getelementptr ptr, ptr %arguments, i64 3
  %key = load ptr, ptr %key_at
  %leaves_at = getelementptr ptr, ptr %arguments, i64 4
  %leaves = load ptr, ptr %leaves_at
  %constants_at = getelementptr ptr, ptr %arguments, i64 5
  %constants = load ptr, ptr %constants_at
  %results_at = getelementptr ptr, ptr %arguments, i64 6
  %results = load ptr, ptr %results_at
  %size = call i64 %list_size(ptr %order)
  br label %next
next:
  %i = phi i64 [ 0, %here ], [ %i1, %look ], [ %i1, %ended ]
  %more = icmp slt i64 %i, %size
  br i1 %more, label %look, label %done
look:
  %i1 = add i64 %i, 1
  %node = call ptr %list_item(ptr %order, i64 %i)
  %its_value = take %node, value
  %pending = icmp eq ptr %its_value, %none
  br i1 %pending, label %begin, label %next
begin:
  %inputs = take %node, inputs
  call void %increase(ptr %inputs)
  %arity = call i64 %tuple_size(ptr %inputs)
  br label %operands
operands:
  %k = phi i64 [ 0, %begin ], [ %k1, %known ], [ %k1, %placed ]
  %missing = icmp slt i64 %k, %arity
  br i1 %missing, label %operand, label %itself
operand:
  %k1 = add i64 %k, 1
  %x = call ptr %tuple_item(ptr %inputs, i64 %k)
  %number = call ptr %look_up(ptr %index, ptr %x)
  %is_new = icmp eq ptr %number, null
  br i1 %is_new, label %doubt, label %known
known:
  %known_status = call i32 %append(ptr %key, ptr %number)
  %known_good = icmp eq i32 %known_status, 0
  br i1 %known_good, label %operands, label %drop
doubt:
  %error = call ptr %occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %leaf, label %drop
leaf:
  %leaf_number = call i64 %dict_size(ptr %index)
  %leaf_status = call i32 @enumerate(ptr %index, ptr %x, i64 %leaf_number)
  %x_kind = take %x, kind
  %value = take %x, value
  %value_type = type %value
  %is_buffer = icmp eq ptr %value_type, %buffer_type
  br i1 %is_buffer, label %buffer, label %perhaps
buffer:
  %buffer_status0 = call i32 %append(ptr %key, ptr %data)
  %buffer_status1 = call i32 %append(ptr %key, ptr %x_kind)
  %buffer_status2 = call i32 %append(ptr %leaves, ptr %value)
  %buffer_status3 = or i32 %buffer_status0, %buffer_status1
  %buffer_status = or i32 %buffer_status2, %buffer_status3
  %strides = take %value, strides
  %plain = icmp eq ptr %strides, %none
  br i1 %plain, label %placed, label %strided
strided:
  %strides_status0 = call i32 %append(ptr %key, ptr %strides)
  %strides_status = or i32 %strides_status0, %buffer_status
  br label %placed
perhaps:
  %derived = call i32 %derives(ptr %value_type, ptr %constant_type)
  %is_constant = icmp ne i32 %derived, 0
  br i1 %is_constant, label %constant, label %strange
constant:
  %x_op = take %x, op
  %constant_status0 = call i32 %append(ptr %key, ptr %x_op)
  %constant_status1 = call i32 %append(ptr %key, ptr %x_kind)
  %constant_status2 = call i32 %append(ptr %constants, ptr %value)
  %constant_status3 = or i32 %constant_status0, %constant_status1
  %constant_status = or i32 %constant_status2, %constant_status3
  br label %placed
placed:
  %placed_status0 = phi i32 [ %buffer_status, %buffer ], [ %strides_status, %strided ], [ %constant_status, %constant ]
  %placed_status = or i32 %placed_status0, %leaf_status
  %placed_good = icmp eq i32 %placed_status, 0
  br i1 %placed_good, label %operands, label %drop
strange:                                         ; it is taken, which raises
  store ptr %value, ptr %asked
  %answer = call ptr %call_with(ptr %refuse, ptr %asked, i64 1, ptr null)
  %raised = icmp eq ptr %answer, null
  br i1 %raised, label %drop, label %ignored
ignored:
  call void %decrease(ptr %answer)
  br label %drop
itself:
  call void %decrease(ptr %inputs)
  %op = take %node, op
  %kind = take %node, kind
  %status0 = call i32 %append(ptr %key, ptr %op)
  %status1 = call i32 %append(ptr %key, ptr %kind)
  %node_number = call i64 %dict_size(ptr %index)
  %status2 = call i32 @enumerate(ptr %index, ptr %node, i64 %node_number)
  %status3 = or i32 %status0, %status1
  %status4 = or i32 %status2, %status3
  %good = icmp eq i32 %status4, 0
  br i1 %good, label %ask, label %raise
ask:
  %is_wanted = call i32 %contains(ptr %wanted, ptr %node)
  %undecided = icmp slt i32 %is_wanted, 0
  br i1 %undecided, label %raise, label %judge
judge:
  %asked_for = icmp eq i32 %is_wanted, 1
  br i1 %asked_for, label %result, label %handled
handled:
  %handle = take %node, handle
  %no_handle = icmp eq ptr %handle, %none
  br i1 %no_handle, label %ended, label %held
held:
  %is_held = call i32 @is_held(ptr %node, ptr %handle, ptr %reference_type, ptr %has_handle)
  %unclear = icmp slt i32 %is_held, 0
  br i1 %unclear, label %raise, label %decide
decide:
  %lives = icmp eq i32 %is_held, 1
  br i1 %lives, label %result, label %ended
result:
  %result_status0 = call i32 %append(ptr %key, ptr %minus_one)
  %result_status1 = call i32 %append(ptr %results, ptr %node)
  %result_status = or i32 %result_status0, %result_status1
  %result_good = icmp eq i32 %result_status, 0
  br i1 %result_good, label %ended, label %raise
ended:
  br label %next
done:
  call void %increase(ptr %none)
  ret ptr %none
drop:
  call void %decrease(ptr %inputs)
  br label %raise
raise:
  ret ptr null
elsewhere:
  %function = call ptr %tuple_item(ptr %self, i64 0)
  %other = call ptr @instead(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}

; divide(key, form, sizes): see `instead`, which is the same. `self` is (instead, known, division): what is known of
; parts, (number, sizes, role), and the function that finds it out and keeps it there.
define internal ptr @divide(ptr %self, ptr %arguments, i64 %count) {
entry:
  %table = load ptr, ptr @table
  %tuple_item = get ptr %table.PyTuple_GetItem
  %asked = alloca [1 x ptr]
  %three = icmp eq i64 %count, 3
  br i1 %three, label %here, label %elsewhere
here:
  %tuple_size = get ptr %table.PyTuple_Size
  %append = get ptr %table.PyList_Append
  %look_up = get ptr %table.PyDict_GetItemWithError
  %as_integer = get ptr %table.PyLong_AsLongLong
  %from_truth = get ptr %table.PyBool_FromLong
  %increase = get ptr %table.Py_IncRef
  %decrease = get ptr %table.Py_DecRef
  %call_with = get ptr %table.PyObject_Vectorcall
  %occurred = get ptr %table.PyErr_Occurred
  %int_type = get ptr %table.int_type
  %known = call ptr %tuple_item(ptr %self, i64 1)
  %division = call ptr %tuple_item(ptr %self, i64 2)
  %key = load ptr, ptr %arguments
  %form_at = getelementptr ptr, ptr %arguments, i64 1
  %form = load ptr, ptr %form_at
  %sizes_at = getelementptr ptr, ptr %arguments, i64 2
  %sizes = load ptr, ptr %sizes_at
  %size = call i64 %tuple_size(ptr %key)
  br label %next
next:
  %i = phi i64 [ 0, %here ], [ %i1, %added ], [ %i1, %used ]
  %leaf = phi i64 [ 0, %here ], [ %leaf, %added ], [ %leaf1, %used ]
  %more = icmp slt i64 %i, %size
  br i1 %more, label %look, label %done
look:
  %i1 = add i64 %i, 1
  %part = call ptr %tuple_item(ptr %key, i64 %i)
  %type = type %part
  %is_integer = icmp eq ptr %type, %int_type
  br i1 %is_integer, label %integer, label %find
integer:
  %integer_status = call i32 %append(ptr %form, ptr %part)
  br label %added
added:
  %added_good = icmp eq i32 %integer_status, 0
  br i1 %added_good, label %next, label %raise
find:
  %found = call ptr %look_up(ptr %known, ptr %part)
  %is_new = icmp eq ptr %found, null
  br i1 %is_new, label %doubt, label %hold
doubt:
  %error = call ptr %occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %ask, label %raise
ask:
  store ptr %part, ptr %asked
  %answer = call ptr %call_with(ptr %division, ptr %asked, i64 1, ptr null)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %raise, label %use
hold:
  call void %increase(ptr %found)
  br label %use
use:
  %entry_object = phi ptr [ %answer, %ask ], [ %found, %hold ]
  %role_object = call ptr %tuple_item(ptr %entry_object, i64 2)
  %role = call i64 %as_integer(ptr %role_object)
  %is_operation = icmp sle i64 %role, 1
  %leaf1 = select i1 %is_operation, i64 %role, i64 %leaf
  %is_symbolic = icmp eq i64 %role, 4
  br i1 %is_symbolic, label %give_up, label %which
which:
  %is_kind = icmp eq i64 %role, 2
  %is_inner = icmp eq i64 %leaf, 0
  %follows = and i1 %is_kind, %is_inner          ; the kind of what is computed follows from its operands
  br i1 %follows, label %skipped, label %wanted
skipped:
  br label %finish
wanted:
  %number = call ptr %tuple_item(ptr %entry_object, i64 0)
  %status0 = call i32 %append(ptr %form, ptr %number)
  %more_sizes = call ptr %tuple_item(ptr %entry_object, i64 1)
  %how_many = call i64 %tuple_size(ptr %more_sizes)
  %some = icmp ne i64 %how_many, 0
  br i1 %some, label %extend, label %finish
extend:
  %status1 = call i32 %append(ptr %sizes, ptr %more_sizes)
  br label %finish
finish:
  %status2 = phi i32 [ 0, %skipped ], [ %status0, %wanted ], [ %status1, %extend ]
  %status3 = phi i32 [ 0, %skipped ], [ 0, %wanted ], [ %status0, %extend ]
  call void %decrease(ptr %entry_object)
  br label %used
used:
  %status = or i32 %status2, %status3
  %good = icmp eq i32 %status, 0
  br i1 %good, label %next, label %raise
give_up:
  call void %decrease(ptr %entry_object)
  %no = call ptr %from_truth(i64 0)
  ret ptr %no
done:
  %yes = call ptr %from_truth(i64 1)
  ret ptr %yes
raise:
  ret ptr null
elsewhere:
  %function = call ptr %tuple_item(ptr %self, i64 0)
  %other = call ptr @instead(ptr %function, ptr %arguments, i64 %count)
  ret ptr %other
}
"""
