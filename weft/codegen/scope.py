"""What the code inside a kernel's loops sees: where its accesses lie (`Accesses`) and the values of elements (`Scope`).

A scope computes a value when it is first needed in a block of code and remembers it there. The forms of kernels write
the loops around it. A scope of one lane is what a single thread of a GPU computes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from weft import dtypes as dt
from weft.codegen.kernel import Access, Kernel, Step
from weft.codegen.words import Words
from weft.dtypes import Dtype
from weft.llvm.builder import STORED, AnyValue, Builder, Complex, Value

State = tuple[AnyValue, ...]
"""The state of reductions, or of loops: one value after the other."""
Bases = Mapping[int, Value]
"""The address (for iota: value) of each access at some place of the outer loops."""


def emit_step(b: Builder, step: Step, operands: Sequence[AnyValue]) -> AnyValue:
    """One elementwise operation; halves are computed as float32 and rounded."""
    op = step.op
    if not op.compute_halves:
        moved: AnyValue = op.emit(b, *operands)
        return moved
    wide = [b.convert(x, dt.float32) if x.dtype in dt.HALVES else x for x in operands]
    result: AnyValue = op.emit(b, *wide)
    return b.convert(result, step.dtype)


def stored_dtype(dtype: Dtype) -> Dtype:
    """The dtype as which elements are loaded, kept and written: what memory holds of them."""
    return STORED.get(dtype, dtype)


class Accesses:
    """The accesses of a kernel under construction: constants read once at its top, addresses along its loops."""

    def __init__(self, words: Words, kernel: Kernel) -> None:
        self.words, self.kernel, self.b = words, kernel, words.b
        self.constants: dict[int, AnyValue] = {}
        for k, access in enumerate(kernel.loads):
            if access.source == "scalar":
                self.constants[k] = self.b.load(words[f"p{k}"], stored_dtype(access.dtype), 1)

    def bases(self, indices: Sequence[Value], wanted: Container[int] | None = None) -> Bases:
        """Those at these outer indices, of all accesses or of those that are `wanted`."""
        accesses = [(k, a) for k, a in enumerate(self.kernel.accesses()) if wanted is None or k in wanted]
        return {k: self.words.at(k, indices) for k, access in accesses if access.source != "scalar"}

    def moved(self, bases: Bases, by: Value) -> Bases:
        """Bases after `by` steps along the loop that the kernel has beside the inner one."""
        accesses, letter = self.kernel.accesses(), self.kernel.further
        result: dict[int, Value] = {}
        for k, base in bases.items():
            step = self.words[f"{letter}{k}"] * by
            result[k] = base + step if accesses[k].source == "iota" else self.b.gep(base, step)
        return result


class Scope:
    """Values available in one block of code at one index of the inner loop: `lanes` elements from index `j`, under a
    mask. A value has two forms: the one that is computed with, and the one that memory holds. They are the same but for
    the dtypes in `STORED`; what is `given` comes in either."""

    def __init__(
        self,
        accesses: Accesses,
        bases: Bases,
        j: Value,
        lanes: int,
        mask: Value | None = None,
        given: Mapping[int, AnyValue] | None = None,
    ) -> None:
        self.accesses, self.words, self.b, self.kernel = accesses, accesses.words, accesses.b, accesses.kernel
        self.bases, self.j, self.lanes, self.mask = bases, j, lanes, mask
        self.values: dict[int, AnyValue] = {}
        self.moved: dict[int, AnyValue] = {}
        """Stored forms, of dtypes where they are not the values themselves."""
        for number, x in (given or {}).items():
            self.give(number, x)

    # ---- values ----

    def give(self, number: int, x: AnyValue) -> None:
        """Make a value known, in one of its forms."""
        (self.moved if x.dtype is STORED.get(self.kernel.dtype(number)) else self.values)[number] = x

    def is_moved(self, number: int) -> bool:
        """Whether the stored form of a value may hold more than the value says: it comes from memory as it is."""
        kernel = self.kernel
        if kernel.dtype(number) not in STORED:
            return False
        if number < kernel.first:
            return True
        step = kernel.step(number)
        sources = [i for position, i in enumerate(step.operands) if position in step.op.moves]
        return any(kernel.dtype(i) not in STORED or self.is_moved(i) for i in sources)

    def value(self, number: int) -> AnyValue:
        """The value to compute with, computed now if this block has not computed it yet."""
        found = self.values.get(number)
        if found is None:
            if number in self.moved or self.is_moved(number):
                stored = self.stored(number)
                assert isinstance(stored, Value)
                found = self.b.from_memory_bits(stored, self.kernel.dtype(number))
            else:
                found = self._made(number)
            self.values[number] = found
        return found

    def stored(self, number: int) -> AnyValue:
        """The value as memory holds it: the bits that were read, if it was only moved."""
        if self.kernel.dtype(number) not in STORED:
            return self.value(number)
        found = self.moved.get(number)
        if found is None:
            if number in self.values or not self.is_moved(number):
                value = self.value(number)
                assert isinstance(value, Value)
                found = self.b.memory_bits(value)
            else:
                found = self._made(number)
            self.moved[number] = found
        return found

    def shared(self, number: int) -> AnyValue:
        """The form to give to another scope."""
        return self.stored(number) if self.is_moved(number) else self.value(number)

    def operand(self, reduction: int) -> AnyValue:
        """What a reduction takes in."""
        return self.spread(self.value(self.kernel.step(reduction).operands[0]))

    def _made(self, number: int) -> AnyValue:
        """A value that is loaded, or the result of a step: as memory holds it if it is moved, else to compute with."""
        kernel = self.kernel
        if number < kernel.first:
            return self.load(number, kernel.loads[number])
        step = kernel.step(number)
        moves = step.op.moves if self.is_moved(number) or step.dtype not in STORED else ()
        operands = [self.stored(i) if k in moves else self.value(i) for k, i in enumerate(step.operands)]
        return emit_step(self.b, step, [self.spread(x) for x in operands])

    def spread(self, x: AnyValue) -> AnyValue:
        """`x` in as many lanes as this scope has."""
        return splat(self.b, x, self.lanes)

    # ---- memory ----

    def load(self, k: int, access: Access) -> AnyValue:
        """Elements as memory holds them."""
        b, j, dtype = self.b, self.j, stored_dtype(access.dtype)
        if access.source == "scalar":
            return self.spread(self.accesses.constants[k])
        base = self.bases[k]
        if access.source == "iota":
            step = self.words[f"i{k}"]
            first = b.splat(base + j * step, self.lanes)
            if access.inner == "repeat":
                return first
            return first + b.splat(step, self.lanes) * b.iota(dt.int64, self.lanes)
        size = dtype.size
        if access.inner == "repeat":
            return self.spread(b.load(base, dtype, 1))
        if self.lanes == 1:
            return b.load(b.gep(base, j * self.words[f"i{k}"]), dtype, 1)
        if access.inner == "unit":
            return b.load(b.gep(base, j * size), dtype, self.lanes, self.mask)
        if access.inner == "reverse":
            start = b.gep(base, (j + (self.lanes - 1)) * -size)
            mask = None if self.mask is None else b.reverse(self.mask)
            return reversed_lanes(b, b.load(start, dtype, self.lanes, mask))
        if access.picked is not None and self.mask is None:
            first = b.gep(base, j * (access.picked * size))
            starts = starts_of_every(access.picked, self.lanes)
            return every(b, access.picked, [b.load(b.gep(first, k * size), dtype, self.lanes) for k in starts])
        return self._gather(base, k, access)

    def _gather(self, base: Value, k: int, access: Access) -> AnyValue:
        """Lanes read one by one; masked-off lanes read element 0 again."""
        b, parts, dtype = self.b, [], stored_dtype(access.dtype)
        for lane in range(self.lanes):
            index = self.j + lane
            if self.mask is not None:
                index = b.choose(b.extract(self.mask, lane), index, 0)
            parts.append(b.load(b.gep(base, index * self.words[f"i{k}"]), dtype, 1))
        return assemble(b, parts)

    def store(self, k: int, access: Access, x: AnyValue, stream: bool = False) -> None:
        """Write through output access number `k`; if `stream`, past the caches where that can be."""
        b, x, base = self.b, self.spread(x), self.bases[k]
        if self.lanes == 1:
            return b.store(x, b.gep(base, self.j * self.words[f"i{k}"]))
        if access.inner == "unit":
            past = stream and access.level == "full"
            return b.store(x, b.gep(base, self.j * access.dtype.size), self.mask, past)
        for lane in range(self.lanes):
            address = b.gep(base, (self.j + lane) * self.words[f"i{k}"])
            element = extract(b, x, lane)
            if self.mask is None:
                b.store(element, address)
            else:
                with b.when(b.extract(self.mask, lane)):
                    b.store(element, address)
        return None

    def store_all(self, stream: bool = False) -> None:
        """All stores. Every value is computed before the first is written: an output may lie on an operand."""
        kernel = self.kernel
        values = [self.stored(store.value) for store in kernel.stores]
        for k, (store, x) in enumerate(zip(kernel.stores, values, strict=True), kernel.first):
            self.store(k, store.access, x, stream)

    def store_level(self, level: str) -> None:
        """The stores of one level."""
        self.store_some([i for i, store in enumerate(self.kernel.stores) if store.access.level == level])

    def store_some(self, positions: Sequence[int]) -> None:
        """These stores, by position. Every value is computed before the first is written."""
        stores = [self.kernel.stores[i] for i in positions]
        values = [self.stored(store.value) for store in stores]
        for i, store, x in zip(positions, stores, values, strict=True):
            self.store(self.kernel.first + i, store.access, x)


class KeptScope(Scope):
    """A scope of a later pass over the same elements: what an earlier one kept in memory is read back, not computed
    again. `kept` has the addresses of its first elements."""

    def __init__(self, *args: Any, kept: Mapping[int, Value] | None = None) -> None:
        super().__init__(*args)
        self.kept = kept or {}

    def value(self, number: int) -> AnyValue:
        self._recall(number)
        return super().value(number)

    def stored(self, number: int) -> AnyValue:
        self._recall(number)
        return super().stored(number)

    def _recall(self, number: int) -> None:
        if number not in self.values and number not in self.moved:
            found = self.read_back(number)
            if found is not None:
                self.give(number, found)

    def read_back(self, number: int) -> AnyValue | None:
        """What an earlier pass kept of a value."""
        if number not in self.kept:
            return None
        dtype = stored_dtype(self.kernel.dtype(number))
        return self.b.load(self.b.gep(self.kept[number], self.j * dtype.size), dtype, self.lanes, self.mask)


# ---- vectors of any kind ----


def splat(b: Builder, x: AnyValue, lanes: int) -> AnyValue:
    if x.lanes == lanes:
        return x
    return Complex(b.splat(x.re, lanes), b.splat(x.im, lanes)) if isinstance(x, Complex) else b.splat(x, lanes)


def reversed_lanes(b: Builder, x: AnyValue) -> AnyValue:
    return Complex(b.reverse(x.re), b.reverse(x.im)) if isinstance(x, Complex) else b.reverse(x)


def starts_of_every(n: int, lanes: int) -> list[int]:
    """Where the n vectors begin that every n-th element is taken from: the last one ends with the last of them, so that
    nothing behind it is read."""
    return [*range(0, (n - 1) * lanes, lanes), (n - 1) * (lanes - 1)]


def every(b: Builder, n: int, vectors: Sequence[AnyValue]) -> AnyValue:
    """Every n-th element from the first one on, of vectors that begin there (`starts_of_every`)."""
    if isinstance(vectors[0], Complex):
        parts = [[x.re for x in vectors], [x.im for x in vectors]]  # type: ignore[union-attr]
        return Complex(*(every(b, n, part) for part in parts))  # type: ignore[arg-type]
    lanes = vectors[0].lanes
    starts = starts_of_every(n, lanes)
    found = vectors[0]
    order = [n * i if n * i < lanes else -1 for i in range(lanes)]
    for x, start in zip(vectors[1:], starts[1:], strict=True):
        here = [lanes + n * i - start if start <= n * i < start + lanes else -1 for i in range(lanes)]
        order = [new if new >= 0 else old for old, new in zip(order, here, strict=True)]
        found = b.shuffle(found, x, order)  # type: ignore[arg-type]
        order = [i if order[i] >= 0 else -1 for i in range(lanes)]
    return found


def extract(b: Builder, x: AnyValue, lane: int) -> AnyValue:
    return Complex(b.extract(x.re, lane), b.extract(x.im, lane)) if isinstance(x, Complex) else b.extract(x, lane)


def assemble(b: Builder, parts: Sequence[AnyValue]) -> AnyValue:
    """Scalars as the lanes of one vector."""
    if isinstance(parts[0], Complex):
        return Complex(
            assemble(b, [p.re for p in parts]),  # type: ignore[union-attr, arg-type]
            assemble(b, [p.im for p in parts]),  # type: ignore[union-attr, arg-type]
        )
    vector = b.poison(parts[0].dtype, len(parts))
    for lane, part in enumerate(parts):
        assert isinstance(part, Value)
        vector = b.insert(vector, part, lane)
    return vector


def flatten(values: Sequence[AnyValue]) -> list[Value]:
    """Complex values as their parts, for loops to carry."""
    return [part for x in values for part in ((x.re, x.im) if isinstance(x, Complex) else (x,))]


def unflatten(model: Sequence[AnyValue], parts: Sequence[Value]) -> State:
    """The inverse of `flatten`."""
    rest = iter(parts)
    return tuple([Complex(next(rest), next(rest)) if isinstance(x, Complex) else next(rest) for x in model])
