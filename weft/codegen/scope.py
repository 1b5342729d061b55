"""What the code inside a kernel's loops sees: the argument words (`Frame`) and the values of elements (`Scope`).

A scope computes a value when it is first needed in a block of code and remembers it there. The forms of kernels write
the loops around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes as dt
from weft.codegen.builder import PTR, STORED, AnyValue, Builder, Complex, Value
from weft.codegen.kernel import Access, Kernel, Step
from weft.dtypes import Dtype


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


class Frame:
    """The argument words of a kernel, read once at its top, and address arithmetic over them."""

    def __init__(self, b: Builder, kernel: Kernel) -> None:
        self.b, self.kernel = b, kernel
        self.args, self.begin, self.end, self.scratch = b.params
        sources = [a.source for a in kernel.accesses()]
        self.words: dict[str, Value] = {}
        for index, name in enumerate(kernel.fields()):
            pointer = name[0] == "q" or (name[0] == "p" and sources[int(name[1:])] != "iota")
            self.words[name] = b.word(self.args, index, PTR if pointer else dt.int64)
        self.constants: dict[int, AnyValue] = {}
        for k, access in enumerate(kernel.loads):
            if access.source == "scalar":
                self.constants[k] = b.load(self.words[f"p{k}"], stored_dtype(access.dtype), 1)

    def __getitem__(self, name: str) -> Value:
        return self.words[name]

    def indices(self, unit: Value) -> list[Value]:
        """Index along each outer axis for a place of the flattened outer dimension."""
        b, outer = self.b, self.kernel.outer
        found: list[Value] = []
        rest = unit
        for axis in range(outer - 1, 0, -1):
            extent = self[f"e{axis}"]
            quotient = b.op(f"sdiv i64 {rest.text}, {extent.text}", dt.int64, 1)
            found.append(rest - quotient * extent)
            rest = quotient
        return [rest, *reversed(found)] if outer else []

    def bases(self, indices: Sequence[Value]) -> dict[int, Value]:
        """Address (for iota: value) of each access at these outer indices."""
        b = self.b
        bases: dict[int, Value] = {}
        for k, access in enumerate(self.kernel.accesses()):
            if access.source == "scalar":
                continue
            base = self[f"p{k}"]
            for axis, index in enumerate(indices):
                step = index * self[f"s{k}.{axis}"]
                base = base + step if access.source == "iota" else b.gep(base, step)
            bases[k] = base
        return bases

    def moved(self, bases: dict[int, Value], prefix: str, by: Value) -> dict[int, Value]:
        """Bases after `by` steps along the reduced (`r`) or tile (`t`) loop."""
        b, accesses = self.b, self.kernel.accesses()
        result = {}
        for k, base in bases.items():
            step = self[f"{prefix}{k}"] * by
            result[k] = base + step if accesses[k].source == "iota" else b.gep(base, step)
        return result


class Scope:
    """Values available in one block of code at one index of the inner loop: `lanes` elements from index `j`, under a
    mask. A value has two forms: the one that is computed with, and the one that memory holds. They are the same but for
    the dtypes in `STORED`; what is `given` comes in either."""

    def __init__(
        self,
        frame: Frame,
        bases: dict[int, Value],
        j: Value,
        lanes: int,
        mask: Value | None,
        given: dict[int, AnyValue],
    ) -> None:
        self.frame, self.b, self.kernel = frame, frame.b, frame.kernel
        self.bases, self.j, self.lanes, self.mask = bases, j, lanes, mask
        self.values: dict[int, AnyValue] = {}
        self.moved: dict[int, AnyValue] = {}
        """Stored forms, of dtypes where they are not the values themselves."""
        for number, x in given.items():
            self.give(number, x)

    def give(self, number: int, x: AnyValue) -> None:
        """Make a value known, in one of its forms."""
        (self.moved if x.dtype is STORED.get(self.dtype(number)) else self.values)[number] = x

    def dtype(self, number: int) -> Dtype:
        loads = self.kernel.loads
        return loads[number].dtype if number < len(loads) else self.kernel.steps[number - len(loads)].dtype

    def is_moved(self, number: int) -> bool:
        """Whether the stored form of a value may hold more than the value says: it comes from memory as it is."""
        if self.dtype(number) not in STORED:
            return False
        loads = len(self.kernel.loads)
        if number < loads:
            return True
        step = self.kernel.steps[number - loads]
        sources = [i for position, i in enumerate(step.operands) if position in step.op.moves]
        return any(self.dtype(i) not in STORED or self.is_moved(i) for i in sources)

    def value(self, number: int) -> AnyValue:
        """The value to compute with, computed now if this block has not computed it yet."""
        found = self.values.get(number)
        if found is None:
            if number in self.moved or self.is_moved(number):
                stored = self.stored(number)
                assert isinstance(stored, Value)
                found = self.b.from_memory_bits(stored, self.dtype(number))
            elif number < len(self.kernel.loads):
                found = self.load(number, self.kernel.loads[number])
            else:
                found = self._computed(number)
            self.values[number] = found
        return found

    def stored(self, number: int) -> AnyValue:
        """The value as memory holds it: the bits that were read, if it was only moved."""
        if self.dtype(number) not in STORED:
            return self.value(number)
        found = self.moved.get(number)
        if found is None:
            if number in self.values or not self.is_moved(number):
                value = self.value(number)
                assert isinstance(value, Value)
                found = self.b.memory_bits(value)
            elif number < len(self.kernel.loads):
                found = self.load(number, self.kernel.loads[number])
            else:
                found = self._computed(number)
            self.moved[number] = found
        return found

    def shared(self, number: int) -> AnyValue:
        """The form to give to another scope."""
        return self.stored(number) if self.is_moved(number) else self.value(number)

    def _computed(self, number: int) -> AnyValue:
        """The result of a step: as memory holds it if it is moved, else the value."""
        step = self.kernel.steps[number - len(self.kernel.loads)]
        moves = step.op.moves if self.is_moved(number) or step.dtype not in STORED else ()
        operands = [self.stored(i) if k in moves else self.value(i) for k, i in enumerate(step.operands)]
        return emit_step(self.b, step, [self.spread(x) for x in operands])

    def spread(self, x: AnyValue) -> AnyValue:
        """`x` in as many lanes as this scope has."""
        if isinstance(x, Complex):
            return (
                Complex(self.b.splat(x.re, self.lanes), self.b.splat(x.im, self.lanes)) if x.lanes != self.lanes else x
            )
        return self.b.splat(x, self.lanes)

    def load(self, k: int, access: Access) -> AnyValue:
        """Elements as memory holds them."""
        b, j, dtype = self.b, self.j, stored_dtype(access.dtype)
        if access.source == "scalar":
            return self.spread(self.frame.constants[k])
        base = self.bases[k]
        if access.source == "iota":
            step = self.frame[f"i{k}"]
            first = b.splat(base + j * step, self.lanes)
            if access.inner == "repeat":
                return first
            return first + b.splat(step, self.lanes) * b.iota(dt.int64, self.lanes)
        size = dtype.size
        if access.inner == "repeat":
            return self.spread(b.load(base, dtype, 1))
        if self.lanes == 1:
            return b.load(b.gep(base, j * self.frame[f"i{k}"]), dtype, 1)
        if access.inner == "unit":
            return b.load(b.gep(base, j * size), dtype, self.lanes, self.mask)
        if access.inner == "reverse":
            start = b.gep(base, (j + (self.lanes - 1)) * -size)
            mask = None if self.mask is None else b.reverse(self.mask)
            return _reverse(b, b.load(start, dtype, self.lanes, mask))
        return self._gather(base, k, access)

    def _gather(self, base: Value, k: int, access: Access) -> AnyValue:
        """Lanes read one by one; masked-off lanes read element 0 again."""
        b, parts, dtype = self.b, [], stored_dtype(access.dtype)
        for lane in range(self.lanes):
            index = self.j + lane
            if self.mask is not None:
                index = b.choose(b.extract(self.mask, lane), index, 0)
            parts.append(b.load(b.gep(base, index * self.frame[f"i{k}"]), dtype, 1))
        return _assemble(b, parts)

    def store(self, k: int, access: Access, x: AnyValue) -> None:
        """Write through output access number `k`."""
        b, x, base = self.b, self.spread(x), self.bases[k]
        if self.lanes == 1:
            return b.store(x, b.gep(base, self.j * self.frame[f"i{k}"]))
        if access.inner == "unit":
            stream = self.kernel.stream and access.level == "full"
            return b.store(x, b.gep(base, self.j * access.dtype.size), self.mask, stream)
        for lane in range(self.lanes):
            address = b.gep(base, (self.j + lane) * self.frame[f"i{k}"])
            element = (
                Complex(b.extract(x.re, lane), b.extract(x.im, lane)) if isinstance(x, Complex) else b.extract(x, lane)
            )
            if self.mask is None:
                b.store(element, address)
            else:
                with b.when(b.extract(self.mask, lane)):
                    b.store(element, address)
        return None


def _reverse(b: Builder, x: AnyValue) -> AnyValue:
    return Complex(b.reverse(x.re), b.reverse(x.im)) if isinstance(x, Complex) else b.reverse(x)


def _assemble(b: Builder, parts: Sequence[AnyValue]) -> AnyValue:
    """Scalars as the lanes of one vector."""
    if isinstance(parts[0], Complex):
        return Complex(
            _assemble(b, [p.re for p in parts]),  # type: ignore[union-attr, arg-type]
            _assemble(b, [p.im for p in parts]),  # type: ignore[union-attr, arg-type]
        )
    vector = b.poison(parts[0].dtype, len(parts))
    for lane, part in enumerate(parts):
        assert isinstance(part, Value)
        vector = b.insert(vector, part, lane)
    return vector
