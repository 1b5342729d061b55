"""The machine code of a run: memory for its results, the call of the interpreter, and what stands around that in calls
of compiled functions and in evaluations of one operation. See `weft.runtime.object_code`; what a run needs is laid out
as `weft.runtime.run_layout` says.

A run lets other threads go on, and memory that is asked for may run finalizers, and those anything. So all that is used
later is held first: the table of the run, the buffers that it reads.
"""

from __future__ import annotations

from typing import Final

from weft.dtypes import int64
from weft.llvm.builder import PTR, Value
from weft.llvm.functions import Address, Int, Integers, Long, native
from weft.runtime import run_layout as table
from weft.runtime.interpreter import PAUSED
from weft.runtime.object_code import new_array, new_node
from weft.runtime.object_table import RUN_PLAIN
from weft.runtime.object_values import (
    Array,
    Buffer,
    Code,
    Compiled,
    Config,
    Constant,
    Dict,
    Executable,
    External,
    List,
    Node,
    Object,
    Objects,
    Pool,
    Recipe,
    Storage,
    Tuple,
    bytes_of,
    call,
    call_with_dict,
    contents,
    entry,
    exception,
    function_attributes,
    function_code,
    function_defaults,
    integer,
    integer_object,
    keyword_defaults,
    length,
    method,
    otherwise,
    unless,
    word,
)
from weft.runtime.recycling_code import MAKE, called, put_away, shelve, unshelved
from weft.runtime.threads import RUN_BYTES

run_plain: Final = External(RUN_PLAIN, Long, Address, Address)

DONE: Final = 0
OTHERWISE: Final = 1
"""Python has to do it: there are more threads than there were, or a command failed, of which Python says why."""
FAILED: Final = -1
"""An exception is set."""


def _pointer(c: Code, address: Value) -> Address:
    return Address.of(c.op(f"inttoptr i64 {address.text} to ptr", PTR, 1))


def _drop(c: Code, objects: Objects, count: Value) -> None:
    """Release so many."""
    with c.loop(0, count, 1) as loop:
        objects[loop.index].release()


# ---- memory ----


@native(Object, size=Long, blocks=Object)
def take(c: Code, size: Value, blocks: Object) -> None:
    """The address of an idle block; null if there is none, or so much was not in use before."""
    pool = c.address("counters", Pool)
    active = pool.active + size
    with c.when(active > pool.high):
        c.fail()
    address = unshelved(c, size)
    with c.when(address.exists()):
        pool.active = active
        c.ret(address)
    with c.when(length(c, blocks).eq(0)):
        c.fail()
    pool.active = active
    c.ret(called(c, c.object("pop"), blocks))


@native(Int, size=Long, blocks=Object, address=Object)
def give_back(c: Code, size: Value, blocks: Object, address: Object) -> None:
    """Put a block among the idle ones: 0, or -1 with an exception."""
    with c.when(shelve(c, size, address)):
        c.ret(c.const(Int.held_as, DONE))
    with c.when(put_away(c, blocks, address)):
        c.ret(c.const(Int.held_as, DONE))
    c.ret(c.const(Int.held_as, FAILED))


@native(Object, nbytes=Object, capacity=Object, blocks=Object)
def new_storage(c: Code, nbytes: Object, capacity: Object, blocks: Object) -> None:
    """What Python's `allocate(nbytes)` gives."""
    storage = Storage.of(MAKE["storage"](c))
    with c.when(storage.is_null()):
        c.fail()
    address = take(c, integer(c, capacity), blocks)
    with c.when(address.exists()):
        storage.address, storage.nbytes, storage.capacity = address, nbytes.hold(), capacity.hold()
        c.ret(storage)
    with c.when(exception(c).exists()):
        c.fail()
    storage.release()
    c.ret(called(c, c.object("allocate"), nbytes))


@native(Object, storage=Object, address=Object, strides=Object)
def new_buffer(c: Code, storage: Object, address: Object, strides: Object) -> None:
    """A buffer. Takes over the reference to the address; null if that is null, or memory is out."""
    with c.when(address.is_null()):
        c.fail()
    buffer = Buffer.of(MAKE["buffer"](c))
    with c.when(buffer.is_null()):
        address.release()
        c.fail()
    buffer.storage, buffer.address, buffer.strides = storage.hold(), address, strides.hold()
    c.ret(buffer)


# ---- a run ----


@native(Long, plan=Tuple, inputs=Objects, words=Integers, storages=Objects)
def run_program(c: Code, plan: Tuple, inputs: Objects, words: Integers, storages: Objects) -> None:
    """Run the program of a table: DONE, OTHERWISE or FAILED."""
    code = bytes_of(c, plan.item(table.CODE))
    with c.when(code[table.PROGRAM].eq(0)):  # there is nothing to compute
        c.ret(c.i64(DONE))
    block = take(c, code[table.WORKSPACE], plan.item(table.BLOCKS))
    with c.when(block.exists()):
        c.ret(run_in(c, plan, inputs, words, storages, block))
    with c.when(exception(c).exists()):
        c.ret(c.i64(FAILED))
    block = called(c, c.object("take_block"), plan.item(table.SIZE))
    with c.when(block.is_null()):
        c.ret(c.i64(FAILED))
    c.ret(run_in(c, plan, inputs, words, storages, block))


@native(Long, plan=Tuple, inputs=Objects, words=Integers, storages=Objects, block=Object)
def run_in(c: Code, plan: Tuple, inputs: Objects, words: Integers, storages: Objects, block: Object) -> None:
    """The same in a workspace, which is given back. Takes over the reference to its address."""
    code = bytes_of(c, plan.item(table.CODE))
    workspace = _pointer(c, word(c, block))
    places = Integers.of(c.gep(workspace, RUN_BYTES + 8))  # behind that of the workspace itself
    with c.loop(0, code[table.INPUTS], 1) as loop:
        places[loop.index] = word(c, Buffer.of(inputs[loop.index]).address)
    places = places.past(code[table.INPUTS])
    with c.loop(0, code[table.STORES], 1) as loop:
        places[loop.index] = word(c, Storage.of(storages[loop.index]).address)
    places = places.past(code[table.STORES])
    c.copy(places, words, code[table.WORDS])
    status = run_plain(c, _pointer(c, code[table.PROGRAM]), workspace)
    with c.when(status.eq(PAUSED)):  # Python runs the handlers of signals, and gives the block back
        ended = called(c, c.object("go_on"), plan, block)
        block.release()
        with c.when(ended.is_null()):
            c.ret(c.i64(FAILED))
        late = integer(c, ended)
        ended.release()
        c.ret(c.choose(late.eq(0), c.i64(DONE), c.i64(OTHERWISE)))
    returned = give_back(c, code[table.WORKSPACE], plan.item(table.BLOCKS), block)
    block.release()
    with c.when(returned.ne(DONE)):
        c.ret(c.i64(FAILED))
    c.ret(c.choose(status.eq(0), c.i64(DONE), c.i64(OTHERWISE)))


@native(Object, plan=Tuple, number=Long, inputs=Objects, storages=Objects)
def result_of(c: Code, plan: Tuple, number: Value, inputs: Objects, storages: Objects) -> None:
    """A result of a run, as its table says: a new reference, or null with an exception."""
    code = bytes_of(c, plan.item(table.CODE))
    said = code.past(number * table.RESULT_WORDS + table.HEAD)
    at, how, offset = said[0], said[1], said[2]
    strides = plan.item(code[table.STORES] * table.STORE_ITEMS + number + table.STORED)
    with c.when(how.eq(table.AS_IS)):
        c.ret(inputs[at].hold())
    with c.when(how.eq(table.FROM_INPUT)):
        source = Buffer.of(inputs[at])
        c.ret(new_buffer(c, source.storage, moved(c, source.address, offset), strides))
    storage = Storage.of(storages[at])
    c.ret(new_buffer(c, storage, moved(c, storage.address, offset), strides))


@native(Object, address=Object, offset=Long)
def moved(c: Code, address: Object, offset: Value) -> None:
    """An address so many bytes on: a new reference, or null."""
    with c.when(offset.eq(0)):
        c.ret(address.hold())
    c.ret(integer_object(c, word(c, address) + offset))


@native(Long, plan=Tuple, inputs=Objects, words=Integers, made=Objects)
def run(c: Code, plan: Tuple, inputs: Objects, words: Integers, made: Objects) -> None:
    """Run what a table says, and make buffers of the results, which the caller has to release: DONE, OTHERWISE or
    FAILED. The caller holds the table and the inputs."""
    code = bytes_of(c, plan.item(table.CODE))
    stores = code[table.STORES]
    storages = c.room(Objects, stores)
    with c.loop(0, stores, 1) as loop:
        first = loop.index * table.STORE_ITEMS + table.STORED
        storage = new_storage(c, plan.item(first), plan.item(first + 1), plan.item(first + 2))
        with c.when(storage.is_null()):
            _drop(c, storages, loop.index)
            c.ret(c.i64(FAILED))
        storages[loop.index] = storage
    status = run_program(c, plan, inputs, words, storages)
    with c.when(status.ne(DONE)):
        _drop(c, storages, stores)
        c.ret(status)
    with c.loop(0, code[table.RESULTS], 1) as loop:
        buffer = result_of(c, plan, loop.index, inputs, storages)
        with c.when(buffer.is_null()):
            _drop(c, made, loop.index)
            _drop(c, storages, stores)
            c.ret(c.i64(FAILED))
        made[loop.index] = buffer
    _drop(c, storages, stores)
    c.ret(c.i64(DONE))


@native(Object, sequence=Object, place=Long)
def item_of(c: Code, sequence: Object, place: Value) -> None:
    """An item of a list or tuple, borrowed."""
    with c.when(sequence.cls.eq(c.object("list_type"))):
        c.ret(List.of(sequence).item(place))
    c.ret(Tuple.of(sequence).item(place))


def _is_sequence(c: Code, value: Object) -> Value:
    return value.cls.eq(c.object("list_type")) | value.cls.eq(c.object("tuple_type"))


@entry
def run_buffers(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """run_buffers(table, inputs, words): a list of the results, or None if Python has to run it."""

    def needed(condition: Value) -> None:
        with c.when(~condition):
            c.ret(c.none.hold())

    needed(count.eq(3) & c.state("watched").eq(0))
    plan, given, constants = Tuple.of(arguments[0]), arguments[1], arguments[2]
    needed(_is_sequence(c, given) & _is_sequence(c, constants))
    code = bytes_of(c, plan.item(table.CODE))
    inputs, made = (c.room(Objects, code[n]) for n in (table.INPUTS, table.RESULTS))
    words = c.room(Integers, code[table.WORDS])
    needed(length(c, given).eq(code[table.INPUTS]) & length(c, constants).eq(code[table.WORDS]))
    with c.loop(0, code[table.INPUTS], 1) as loop:
        buffer = item_of(c, given, loop.index)
        needed(buffer.cls.eq(c.object("buffer_type")))
        inputs[loop.index] = buffer
    with c.loop(0, code[table.WORDS], 1) as loop:
        words[loop.index] = word(c, item_of(c, constants, loop.index))
    with c.loop(0, code[table.INPUTS], 1) as loop:
        inputs[loop.index].hold()
    plan.hold()
    status = run(c, plan, inputs, words, made)
    _drop(c, inputs, code[table.INPUTS])
    with c.when(status.ne(DONE)):
        plan.release()
        needed(status.ne(OTHERWISE))
        c.fail()
    results = List.new(c, code[table.RESULTS])
    with c.when(results.is_null()):
        _drop(c, made, code[table.RESULTS])
        plan.release()
        c.fail()
    with c.loop(0, code[table.RESULTS], 1) as loop:
        results.fill(loop.index, made[loop.index])
    plan.release()
    c.ret(results)


# ---- one operation ----

(
    _INSTEAD, _PROGRAMS, _UNDER_WAY, _UPDATE, _CONSTANT, _SHORT, _HAND_OUT, _VERIFY, _SLICE, _SETTLE,
) = range(10)  # fmt: skip
"""What `evaluate_one` is made with: Python's form; the programs; a list of what other threads compute; the classes of
slice updates and constants; how a key begins; what gives a node its value; what compares with Python's form; the class
of slices, and what finds out where operands lie that are slices of computed data."""


@native(Long, node=Node, inputs=Tuple, place=Long)
def place_before(c: Code, node: Node, inputs: Tuple, place: Value) -> None:
    """The first place at which an operand stands among operands: `place` if it stands there for the first time."""
    with c.loop(0, place, 1) as loop, c.when(inputs.item(loop.index).eq(node)):
        c.ret(loop.index)
    c.ret(place)


@native(Int, inputs=Tuple, cls=Object)
def has_slices(c: Code, inputs: Tuple, cls: Object) -> None:
    """Whether an operand is a slice without a value: 1 or 0."""
    with c.loop(0, inputs.size(), 1) as loop:
        x = Node.of(inputs.item(loop.index))
        with c.when(x.value.eq(c.none) & x.op.cls.eq(cls)):
            c.ret(c.const(Int.held_as, 1))
    c.ret(c.const(Int.held_as, 0))


@native(Long, bound=Tuple, inputs=Tuple, key=Tuple, values=Objects, constants=Objects)
def describe_operands(c: Code, bound: Tuple, inputs: Tuple, key: Tuple, values: Objects, constants: Objects) -> None:
    """Fill in what a key says of operands, and list their values, borrowed: the number of buffers, or OTHERWISE below
    0. Buffers come in `values`, those of constants in `constants`, which ends with null."""
    with c.loop(0, inputs.size(), 1, c.i64(0), c.i64(0)) as loop:
        found, known = loop.carried
        x = Node.of(inputs.item(loop.index))
        at = loop.index * table.OPERAND_ITEMS + table.OPERANDS
        value = x.value
        is_buffer = value.cls.eq(c.object("buffer_type"))
        is_constant = value.cls.eq(bound.item(_CONSTANT))
        before = place_before(c, x, inputs, loop.index)
        with c.when(~(is_buffer | is_constant) | (before.ne(loop.index) & is_constant)):
            c.ret(c.i64(-OTHERWISE))
        is_new = before.eq(loop.index)
        with c.when(~is_new):
            key.fill(at, integer_object(c, before))  # a small number, which is always there
            key.fill(at + 2, c.none.hold())
        with c.when(is_buffer & is_new):
            key.fill(at, c.object("data").hold())
            key.fill(at + 2, Buffer.of(value).strides.hold())
            values[found] = value
        with c.when(is_constant):
            key.fill(at, x.op.hold())
            key.fill(at + 2, c.none.hold())
            constants[known] = value
        key.fill(at + 1, x.kind.hold())
        loop.carry(c.choose(is_buffer & is_new, found + 1, found), c.choose(is_buffer, known, known + 1))
    found, known = loop.carried
    constants[known] = c.null
    c.ret(found)


@native(Long, constants=Objects, words=Integers, most=Long)
def words_of(c: Code, constants: Objects, words: Integers, most: Value) -> None:
    """The words of constants, one behind the other: how many there are, or -1 if they are more than that."""
    with c.repeat(c.i64(0), c.i64(0)) as loop:
        number, filled = loop.carried
        constant = constants[number]
        loop.stop_when(constant.is_null())
        given = Constant.of(constant).words
        size = given.size()
        with c.when(filled + size > most):
            c.ret(c.i64(-1))
        with c.loop(0, size, 1) as inner:
            words[filled + inner.index] = word(c, given.item(inner.index))
        loop.carry(number + 1, filled + size)
    c.ret(loop.carried[1])


@native(Object, bound=Tuple, node=Node, buffer=Object)
def hand_out(c: Code, bound: Tuple, node: Node, buffer: Object) -> None:
    """Give a node its value, and cut it from its operands: None, or null with an exception. As long as nothing lets
    another thread go on, to find the lock of evaluation free is as good as to have it; else Python waits for it."""
    with c.when(c.address("turns", Integers)[0].ne(0)):
        c.ret(called(c, bound.item(_HAND_OUT), node, buffer))
    entries = c.address("entries", Integers)
    entries[0] = entries[0] + 1
    value, op, inputs = node.value, node.op, node.inputs
    is_first = value.eq(c.none)  # else another thread was
    node.op, node.inputs = c.object("data").hold(), Tuple.of(c.object("no_operands").hold())
    with c.when(is_first):
        node.value = buffer.hold()
        value.release()
    op.release()
    inputs.release()  # which may run finalizers
    c.ret(c.none.hold())


@entry
def evaluate_one(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """evaluate_one(node); see `instead`, which is the same. `self` is as `_INSTEAD` and so on say."""
    bound = Tuple.of(self)
    needed = unless(c, arguments, count, lambda: bound.item(_INSTEAD))
    needed(count.eq(1) & c.state("watched").eq(0))
    needed(_is_alone(c) & List.of(bound.item(_UNDER_WAY)).size().eq(0))
    node = Node.of(arguments[0])
    needed(node.cls.eq(c.object("node_type")))
    with c.when(has_slices(c, node.inputs, bound.item(_SLICE)).ne(0)):
        done = called(c, bound.item(_SETTLE), node)  # which may evaluate the node
        with c.when(done.is_null()):
            c.fail()
        done.release()
    inputs = node.inputs
    arity = inputs.size()
    needed(node.value.eq(c.none) & node.op.cls.ne(bound.item(_UPDATE)) & (arity > 0) & (arity <= table.MOST_OPERANDS))
    key = Tuple.new(c, arity * table.OPERAND_ITEMS + table.OPERANDS)  # which may run finalizers, and those evaluate
    with c.when(key.is_null()):
        c.fail()

    def needed_of_key(condition: Value) -> None:
        with c.when(~condition):
            key.release()
            c.ret(otherwise(c, bound.item(_INSTEAD), arguments, count))

    needed_of_key(node.value.eq(c.none) & node.inputs.eq(inputs))
    key.fill(0, bound.item(_SHORT).hold())
    key.fill(1, node.op.hold())
    key.fill(2, node.kind.hold())
    values, constants = c.room(Objects, table.MOST_OPERANDS), c.room(Objects, table.MOST_OPERANDS + 1)
    buffers = describe_operands(c, bound, inputs, key, values, constants)
    needed_of_key(buffers >= 0)
    recipe = Recipe.of(Dict.of(bound.item(_PROGRAMS)).find(key))
    needed_of_key(recipe.exists())
    executable = recipe.quick
    needed_of_key(executable.exists())
    needed_of_key(executable.ne(c.none))
    plan = executable.runs
    needed_of_key(plan.exists())
    needed_of_key(plan.ne(c.none))
    code = bytes_of(c, plan.item(table.CODE))
    words, made = c.room(Integers, code[table.WORDS]), c.room(Objects, 1)
    filled = words_of(c, constants, words, code[table.WORDS])
    needed_of_key(filled.eq(code[table.WORDS]) & buffers.eq(code[table.INPUTS]) & code[table.RESULTS].eq(1))
    with c.loop(0, buffers, 1) as loop:
        values[loop.index].hold()
    plan.hold()
    sound = c.room(Integers, 1)
    sound[0] = c.i64(DONE)
    with c.when(Config.of(c.object("config")).check.ne(c.object("false"))):
        recipe.hold()
        outcome = called(c, bound.item(_VERIFY), node, recipe)
        recipe.release()
        with c.when(outcome.is_null()):
            sound[0] = c.i64(FAILED)
        with c.when(outcome.exists()):
            outcome.release()
    with c.when(sound[0].eq(DONE)):
        sound[0] = run(c, plan, values, words, made)
    key.release()
    plan.release()
    _drop(c, values, buffers)
    with c.when(sound[0].ne(DONE)):
        c.ret(otherwise(c, bound.item(_INSTEAD), arguments, count))
    done = hand_out(c, bound, node, made[0])
    made[0].release()
    c.ret(done)


def _is_alone(c: Code) -> Value:
    """Whether no thread traces a function, and no device but the host was used."""
    return Dict.of(c.object("traces")).size().eq(0) & List.of(c.object("devices")).size().eq(0)


# ---- calls of compiled functions ----


@native(Int, got=Object, known=Object)
def is_same(c: Code, got: Object, known: Object) -> None:
    """Whether two objects are the same; null stands for None."""
    same = got.eq(known) | (got.is_null() & known.eq(c.none))
    c.ret(c.cast(same, Int.held_as))


@native(Int, function=Object, parts=Tuple, first=Long)
def is_as_before(c: Code, function: Object, parts: Tuple, first: Value) -> None:
    """Whether a function has its code, its defaults, and no attributes: 1, 0, or -1 with an exception."""
    no = c.const(Int.held_as, 0)
    for place, read in enumerate((function_code, function_defaults, keyword_defaults), 1):
        with c.when(is_same(c, read(c, function), parts.item(first + place)).eq(0)):
            c.ret(no)
    attributes = function_attributes(c, function, c.null)
    with c.when(attributes.is_null()):
        c.ret(c.const(Int.held_as, FAILED))
    size = Dict.of(attributes).size()
    attributes.release()
    c.ret(c.cast(size.eq(0), Int.held_as))


@native(Int, parts=Tuple)
def bindings_hold(c: Code, parts: Tuple) -> None:
    """Whether all that a function is bound to (transforms/bindings.py) is the same object as before: 1, 0, or -1 with
    an exception."""
    no, yes = (c.const(Int.held_as, n) for n in (0, 1))
    counts = bytes_of(c, parts.item(0))
    with c.loop(0, counts[0], 1) as loop:
        first = loop.index * 4 + 1
        same = is_as_before(c, parts.item(first), parts, first)
        with c.when(same.ne(yes)):
            c.ret(same)
    start = counts[0] * 4 + 1
    with c.loop(0, counts[1], 1) as loop:
        first = loop.index * 3 + start
        found = Dict.of(parts.item(first)).find(parts.item(first + 1))
        with c.when(found.ne(parts.item(first + 2))):
            c.ret(no)
    start = start + counts[1] * 3
    with c.loop(0, counts[2], 1) as loop:
        first = loop.index * 2 + start
        found = contents(c, parts.item(first))
        with c.when(found.is_null()):
            c.ret(no)
        found.release()
        with c.when(found.ne(parts.item(first + 1))):
            c.ret(no)
    start = start + counts[2] * 2
    with c.loop(0, counts[3], 1) as loop:
        first = loop.index * 2 + start
        with c.when(Dict.of(parts.item(first)).find(parts.item(first + 1)).exists()):
            c.ret(no)
    c.ret(yes)


@native(Object, buffer=Object, kind=Object)
def array_of(c: Code, buffer: Object, kind: Object) -> None:
    """An array of what has been computed. Takes over the reference to the buffer; null if there is no memory."""
    node = new_node(c, c.object("data"), Tuple.of(c.object("no_operands").hold()), kind.hold())
    with c.when(node.is_null()):
        buffer.release()
        c.fail()
    none = node.value
    node.value = buffer
    none.release()
    c.ret(new_array(c, node))


@native(Object, record=Tuple, made=Objects, count=Long)
def answer_of(c: Code, record: Tuple, made: Objects, count: Value) -> None:
    """What a call returns, of the buffers of its results, which it takes over: null with an exception."""
    kinds, shape = Tuple.of(record.item(table.KINDS)), record.item(table.SHAPE)
    with c.when(shape.eq(c.none)):
        c.ret(array_of(c, made[0], kinds.item(0)))
    with c.loop(0, count, 1) as loop:
        array = array_of(c, made[loop.index], kinds.item(loop.index))
        with c.when(array.is_null()):
            _drop(c, made, loop.index)
            _drop(c, made.past(loop.index + 1), count - 1 - loop.index)
            c.fail()
        made[loop.index] = array
    with c.when(shape.eq(c.object("tuple_type"))):
        together = Tuple.new(c, count)
        with c.when(together.exists()), c.loop(0, count, 1) as loop:
            together.fill(loop.index, made[loop.index])
        with c.when(together.is_null()):
            _drop(c, made, count)
        c.ret(together)
    arrays = List.new(c, count)
    with c.when(arrays.is_null()):
        _drop(c, made, count)
        c.fail()
    with c.loop(0, count, 1) as loop:
        arrays.fill(loop.index, made[loop.index])
    with c.when(shape.eq(c.object("list_type"))):
        c.ret(arrays)
    answer = called(c, shape, arrays)
    arrays.release()
    c.ret(answer)


@native(Object, record=Tuple, plan=Tuple, buffers=Objects)
def run_call(c: Code, record: Tuple, plan: Tuple, buffers: Objects) -> None:
    """The answer of a call, whose arrays have these buffers: null with an exception, or without one if Python has to
    make it."""
    code, said = bytes_of(c, plan.item(table.CODE)), bytes_of(c, record.item(table.PICKS))
    count, words = code[table.INPUTS], code[table.WORDS]
    with c.when(said[0].ne(count) | said[1].ne(words)):
        c.fail()
    inputs, made = c.room(Objects, count), c.room(Objects, code[table.RESULTS])
    with c.loop(0, count, 1) as loop:
        place = said[loop.index + 2]
        with c.when(place >= 0):
            inputs[loop.index] = buffers[place]
        with c.when(place < 0):
            inputs[loop.index] = record.item(table.CAPTURED - 1 - place)
    status = run(c, plan, inputs, said.past(count + 2), made)
    with c.when(status.ne(DONE)):
        c.fail()
    c.ret(answer_of(c, record, made, code[table.RESULTS]))


@native(Object, self=Object, arguments=Objects, count=Long, names=Tuple)
def call_by_python(c: Code, self: Object, arguments: Objects, count: Value, names: Tuple) -> None:
    """What Python's form of a call gives, unless an exception is set."""
    with c.when(exception(c).exists()):
        c.fail()
    function = c.object("call_compiled")
    with c.when(names.exists()):
        all_of_them = count + names.size()
        handed = c.room(Objects, all_of_them + 1)
        handed[0] = self
        c.copy(handed.past(1), arguments, all_of_them)
        c.ret(call(c, function, handed, count + 1, names))
    handed = c.room(Objects, count + 1)
    handed[0] = self
    c.copy(handed.past(1), arguments, count)
    c.ret(call(c, function, handed, count + 1, c.null))


@native(Tuple, calls=Tuple, parts=Objects, count=Long)
def record_of(c: Code, calls: Tuple, parts: Objects, count: Value) -> None:
    """The record of a call with these kinds of arguments: a new reference; null if there is none, or with an exception.
    The caller holds what the function has for its calls, and what else it needs."""
    latest = List.of(calls.item(table.LATEST)).items()
    known = Tuple.of(latest[0])
    with c.when(known.size().eq(count)):
        with c.repeat(c.i64(0)) as walk:
            (place,) = walk.carried
            walk.stop_when(place >= count)
            walk.stop_when(known.item(place).ne(parts[place]))
            walk.carry(place + 1)
        with c.when(walk.carried[0].eq(count)):
            c.ret(latest[1].hold())
    with c.loop(0, count, 1) as loop:
        parts[loop.index].hold()
    key = Tuple.new(c, count)
    with c.when(key.is_null()):
        _drop(c, parts, count)
        c.fail()
    with c.loop(0, count, 1) as loop:
        key.fill(loop.index, parts[loop.index])
    record = Dict.of(calls.item(table.RECORDS)).find(key)
    with c.when(record.is_null()):
        key.release()
        c.fail()
    latest = List.of(calls.item(table.LATEST)).items()
    before = [latest[0], latest[1]]
    latest[0], latest[1] = key, record.hold()
    record.hold()
    for one in before:
        one.release()
    c.ret(record)


@method
def call_compiled_quickly(c: Code, self: Object, arguments: Objects, count: Value, names: Tuple) -> None:
    """A call of a compiled function that sees nothing but its arguments, which are arrays that have values, and does
    nothing but return what it made. All other calls are Python's."""

    def needed(condition: Value) -> None:
        with c.when(~condition):
            c.ret(call_by_python(c, self, arguments, count, names))

    needed(names.is_null() & (count > 0) & (count <= table.MOST_ARGUMENTS))
    calls = Compiled.of(self).calls
    needed(calls.exists())
    needed(calls.ne(c.none) & _is_alone(c) & c.state("watched").eq(0) & c.state("overlaid").eq(0))
    config = Config.of(c.object("config"))
    needed(config.disable_compile.eq(c.object("false")))
    parts, buffers = c.room(Objects, table.MOST_ARGUMENTS * 2), c.room(Objects, table.MOST_ARGUMENTS)
    with c.loop(0, count, 1) as loop:
        argument = arguments[loop.index]
        needed(argument.cls.eq(c.object("array_type")))
        node = Array.of(argument).node
        needed(node.exists())
        value = node.value
        needed(value.cls.eq(c.object("buffer_type")))
        with c.loop(0, loop.index, 1) as others:  # `is` could tell one array in two places
            needed(arguments[others.index].ne(argument))
        parts[loop.index * 2], parts[loop.index * 2 + 1] = node.kind, Buffer.of(value).strides
        buffers[loop.index] = value
    calls.hold()
    with c.loop(0, count, 1) as loop:
        buffers[loop.index].hold()
    answers = c.room(Objects, 1)
    answers[0] = c.null
    record = record_of(c, calls, parts, count * 2)
    with c.when(record.exists()):
        plan = Executable.of(record.item(table.EXECUTABLE)).runs
        with c.when(plan.exists()), c.when(plan.ne(c.none)):
            plan.hold()
            sound = c.room(Integers, 1)
            sound[0] = c.cast(bindings_hold(c, Tuple.of(calls.item(table.BINDINGS))).eq(1), int64)
            with c.when(sound[0].ne(0) & config.check.ne(c.object("false"))):
                sound[0] = verify_call(c, self, record, arguments, count)
            answers[0] = held_answer(c, sound[0], record, plan, buffers)
            plan.release()
        record.release()
    _drop(c, buffers, count)
    calls.release()
    answer = answers[0]
    needed(answer.exists())
    c.ret(answer)


@native(Object, self=Object, arguments=Tuple, names=Dict)
def call_compiled_with(c: Code, self: Object, arguments: Tuple, names: Dict) -> None:
    """The same for arguments in a tuple, and for those with names in a dict, if it is not null."""
    with c.when(names.exists()), c.when(names.size().ne(0)):
        handed = c.room(Objects, arguments.size() + 1)
        handed[0] = self
        c.copy(handed.past(1), arguments.items(), arguments.size())
        c.ret(call_with_dict(c, c.object("call_compiled"), handed, arguments.size() + 1, names))
    c.ret(call_compiled_quickly(c, self, arguments.items(), arguments.size(), c.null))


@native(Object, sound=Long, record=Tuple, plan=Tuple, buffers=Objects)
def held_answer(c: Code, sound: Value, record: Tuple, plan: Tuple, buffers: Objects) -> None:
    """The answer of a call; null if Python has to make it, or with an exception."""
    with c.when(sound.eq(0)):
        c.fail()
    c.ret(run_call(c, record, plan, buffers))


@native(Long, self=Object, record=Tuple, arguments=Objects, count=Long)
def verify_call(c: Code, self: Object, record: Tuple, arguments: Objects, count: Value) -> None:
    """Let Python look for the same trace: 1, or 0 with an exception if it is another one."""
    handed = c.room(Objects, count + 2)
    handed[0], handed[1] = self, record
    c.copy(handed.past(2), arguments, count)
    outcome = call(c, c.object("verify_call"), handed, count + 2, c.null)
    with c.when(outcome.is_null()):
        c.ret(c.i64(0))
    outcome.release()
    c.ret(c.i64(1))
