"""Random kernels: texts of Python functions that use all of the language, and never an index out of range."""

from __future__ import annotations

import random


class Programs:
    """Writes kernels of int32 `x`, float32 `y` (of any size but 0), and outputs `a` (int32) and `b` (float32), with an
    element for each of `threads`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.ints: list[str] = []
        self.floats: list[str] = []
        self.names = 0
        self.room = 26
        self.groups = self.random.random() < 0.6
        self.barriers = self.groups and self.random.random() < 0.6

    def text(self) -> str:
        self.lines = ["def program(x, y, a, b):"]
        self.write(1, "g = thread_position_in_grid.x + threads_per_grid.x * thread_position_in_grid.y")
        self.ints = ["g", "thread_position_in_grid.y", "x.size"]
        self.floats = ["y[g % y.size]"]
        if self.groups:
            self.ints += ["thread_position_in_threadgroup.x", "threadgroup_position_in_grid.x"]
            self.ints += ["thread_index_in_simdgroup", "thread_index_in_threadgroup"]
        self.write(1, "own = thread_memory(float32, 4)")
        self.write(1, "whole = thread_memory(int32, 3)")
        if self.barriers:
            self.write(1, "shared = threadgroup_memory(int32, 64)")
        for _ in range(self.random.randrange(3, 9)):
            self.statement(1, loops=0, same=True)
        self.write(1, f"a[g] = {self.integer(2)}")
        self.write(1, f"b[g] = {self.real(2)}")
        return "\n".join(self.lines) + "\n"

    def write(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    # ---- statements ----

    def statement(self, depth: int, loops: int, same: bool) -> None:
        """`same`: whether all threads of a threadgroup come here."""
        self.room -= 1
        kinds = ["integer", "real", "assign", "assign", "if", "array"]
        if depth < 4 and self.room > 0:
            kinds += ["if", "for", "while"]
        if loops and self.random.random() < 0.5:
            kinds.append("leave")
        if self.groups and same:
            kinds += ["together"]
        if self.barriers and same and depth <= 2:
            kinds += ["barrier", "barrier", "shared_loop"]
        getattr(self, "_" + self.random.choice(kinds))(depth, loops, same)

    def body(self, depth: int, loops: int, same: bool) -> None:
        ints, floats = list(self.ints), list(self.floats)
        for _ in range(self.random.randrange(1, 4)):
            self.statement(depth, loops, same)
        self.ints, self.floats = ints, floats

    def _integer(self, depth: int, loops: int, same: bool) -> None:
        name = self.name()
        self.write(depth, f"{name} = {self.integer(2)}")
        self.ints.append(name)

    def _real(self, depth: int, loops: int, same: bool) -> None:
        name = self.name()
        self.write(depth, f"{name} = {self.real(2)}")
        self.floats.append(name)

    def _assign(self, depth: int, loops: int, same: bool) -> None:
        names = [n for n in (*self.ints, *self.floats) if n.startswith("v")]
        if not names:
            self._integer(depth, loops, same)
            return
        name = self.random.choice(names)
        value = self.integer(1) if name in self.ints else self.real(1)
        self.write(depth, f"{name} {self.random.choice(['=', '+=', '-='])} {value}")

    def _array(self, depth: int, loops: int, same: bool) -> None:
        if self.random.random() < 0.5:
            self.write(depth, f"own[({self.integer(1)}) % 4] = {self.real(1)}")
        else:
            self.write(depth, f"whole[({self.integer(1)}) % 3] += {self.integer(1)}")

    def _if(self, depth: int, loops: int, same: bool) -> None:
        uniform = self.random.random() < 0.3
        test = f"x.size % {self.random.randrange(2, 5)} == 0" if uniform else self.test()
        self.write(depth, f"if {test}:")
        self.body(depth + 1, loops, same and uniform)
        if self.random.random() < 0.5:
            self.write(depth, "else:")
            self.body(depth + 1, loops, same and uniform)

    def _for(self, depth: int, loops: int, same: bool) -> None:
        name = self.name()
        uniform = self.random.random() < 0.5
        stop = str(self.random.randrange(1, 6)) if uniform else f"({self.integer(1)}) % 5"
        step = self.random.choice(["", ", 2"])
        self.write(depth, f"for {name} in range({'0, ' if step else ''}{stop}{step}):")
        kept = list(self.ints)
        self.ints.append(f"({name} + 0)")
        # What leaves the loop is left to threads one by one.
        self.body(depth + 1, loops + 1, same=False)
        self.ints = kept

    def _while(self, depth: int, loops: int, same: bool) -> None:
        name = self.name()
        self.write(depth, f"{name} = 0")
        self.write(depth, f"while {name} < {self.random.randrange(1, 7)} and ({self.test()}):")
        self.write(depth + 1, f"{name} += 1")
        self.body(depth + 1, loops + 1, same=False)

    def _leave(self, depth: int, loops: int, same: bool) -> None:
        if self.random.random() < 0.15 and not self.barriers and not self.groups:
            self.write(depth, f"if {self.test()}:")
            self.write(depth + 1, "return")
            return
        word = self.random.choice(["break", "continue"])
        if self.random.random() < 0.3:
            self.write(depth, f"if x.size % {self.random.randrange(2, 4)} == 1:")
        else:
            self.write(depth, f"if {self.test()}:")
        self.write(depth + 1, word)

    def _together(self, depth: int, loops: int, same: bool) -> None:
        name = self.name()
        op = self.random.choice(
            ["simd_sum({0})", "simd_max({0})", "simd_min({0})", "simd_shuffle_xor({0}, 5)",
             "simd_prefix_inclusive_sum({0})",             "simd_shuffle({0}, ({1}) % 32)", "simd_shuffle_down({0}, 3)"]
        )  # fmt: skip
        if self.random.random() < 0.5:
            self.write(depth, f"{name} = {op.format(f'int32({self.integer(1)})', self.integer(0))}")
            self.ints.append(name)
        else:
            self.write(depth, f"{name} = {op.format(self.real(1), self.integer(0))}")
            self.floats.append(name)

    def _barrier(self, depth: int, loops: int, same: bool) -> None:
        """What one thread writes, another reads: with barriers between."""
        name = self.name()
        self.write(depth, "threadgroup_barrier()")
        self.write(depth, f"shared[thread_index_in_threadgroup % 64] = {self.integer(1)}")
        self.write(depth, "threadgroup_barrier()")
        other = self.random.choice(["63 - thread_index_in_threadgroup % 64", f"({self.integer(0)}) % 64"])
        self.write(depth, f"{name} = shared[{other}]")
        self.write(depth, "threadgroup_barrier()")
        self.ints.append(name)

    def _shared_loop(self, depth: int, loops: int, same: bool) -> None:
        name, total = self.name(), self.name()
        self.write(depth, f"{total} = {self.integer(0)}")
        self.write(depth, f"for {name} in range({self.random.randrange(1, 4)}):")
        self.write(depth + 1, "threadgroup_barrier()")
        self.write(depth + 1, f"shared[(thread_index_in_threadgroup + {name}) % 64] = {total}")
        self.write(depth + 1, "threadgroup_barrier()")
        self.write(depth + 1, f"{total} += shared[thread_index_in_threadgroup * 7 % 64]")
        self.ints.append(total)

    # ---- expressions ----

    def test(self) -> str:
        op = self.random.choice(["<", ">", "==", "!=", "<=", ">="])
        if self.random.random() < 0.4:
            return f"{self.real(1)} {self.random.choice('<>')} {self.real(1)}"
        simple = f"({self.integer(1)}) % 5 {op} {self.random.randrange(4)}"
        if self.random.random() < 0.3:
            return f"{simple} {self.random.choice(['and', 'or'])} {self.real(0)} > 0.0"
        return simple

    def integer(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.2:
            leaves = [*self.ints, str(self.random.randrange(-3, 9)), "int32(g)"]
            return self.random.choice(leaves)
        kind = self.random.randrange(9)
        x, y = self.integer(depth - 1), self.integer(depth - 1)
        if kind < 4:
            return f"({x} {self.random.choice(['+', '-', '*', '//', '%', '&', '|', '^'])} {y})"
        if kind == 4:
            return f"x[({x}) % x.size]"
        if kind == 5:
            return f"whole[({x}) % 3]"
        if kind == 6:
            return f"({x} if {self.test_of(depth - 1)} else {y})"
        if kind == 7:
            return f"{self.random.choice(['min', 'max'])}({x}, {y})"
        return f"int32(({x}) & 255)"

    def test_of(self, depth: int) -> str:
        return f"({self.integer(depth)}) % 3 == 1"

    def real(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.2:
            return self.random.choice([*self.floats, f"{self.random.randrange(-8, 9) / 4}", "float32(int32(g) & 15)"])
        kind = self.random.randrange(8)
        x, y = self.real(depth - 1), self.real(depth - 1)
        if kind < 3:
            return f"({x} {self.random.choice(['+', '-', '*'])} {y})"
        if kind == 3:
            return f"y[({self.integer(depth - 1)}) % y.size]"
        if kind == 4:
            return f"own[({self.integer(depth - 1)}) % 4]"
        if kind == 5:
            return f"({x} if {self.test_of(depth - 1)} else {y})"
        if kind == 6:
            return f"{self.random.choice(['abs', 'floor', 'sqrt'])}({x})"
        return f"{self.random.choice(['min', 'max'])}({x}, {y})"
