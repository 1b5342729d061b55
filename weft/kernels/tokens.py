"""The tokens of a kernel in C++, with what its preprocessor makes of them: macros and conditions.

Macros are those of the standard: of the kind of a name, or with parameters, pieces pasted together with `##`; a name is
not written out again inside of what it stands for. Tokens from a macro have the place where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from weft.kernels.syntax import At, KernelError
from weft.records import dataclass, replace

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\f\v]+|\\\r?\n|//[^\n]*|/\*.*?\*/)
      | (?P<open>/\*)
      | (?P<newline>\n)
      | (?P<float>(?:\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?:bf|BF|[fFhHlL])?|\d+[fFhH]\b)
      | (?P<int>0[xX][0-9a-fA-F]+[uUlL]*|0[bB][01]+[uUlL]*|\d+[uUlL]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<op><<=|>>=|\.\.\.|->|\+\+|--|&&|\|\||<<|>>|<=|>=|==|!=|\+=|-=|\*=|/=|%=|&=|\|=|\^=|::|\[\[|\]\]|\#\#
          |[-+*/%&|^~!<>=?:;,.(){}\[\]\#])
    """,
    re.VERBOSE | re.DOTALL,
)
_MOST_TOKENS: Final = 200_000
_MOST_DEPTH: Final = 100
_IGNORED: Final = frozenset(("include", "pragma", "line", "import", "warning"))
"""Directives without a meaning here: what is included is known, the rest is advice."""
_BINARY: Final = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1,
}  # fmt: skip

PREDEFINED: Final[Mapping[str, Mapping[str, str]]] = {
    "metal": {
        "__METAL__": "1", "__METAL_VERSION__": "320", "__HAVE_BFLOAT__": "1", "__cplusplus": "201402L",
        "MLX_MTL_CONST": "static constant constexpr const", "MLX_MTL_PRAGMA_UNROLL": "", "MLX_MTL_LOOP_UNROLL": "",
        "STEEL_CONST": "static constant constexpr const", "STEEL_PRAGMA_UNROLL": "",
    },
    "cuda": {"__CUDACC__": "1", "__CUDA_ARCH__": "800", "__cplusplus": "201703L"},
}  # fmt: skip
"""What a compiler, or MLX's own headers, define."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    at: At
    hidden: frozenset[str] = frozenset()
    """Macros that it came from, which are not written out in it again."""
    spaced: bool = False
    """Whether there is space before it."""


@dataclass(frozen=True, slots=True)
class Macro:
    body: tuple[Token, ...]
    parameters: tuple[str, ...] | None = None
    variadic: bool = False


class Preprocessor:
    """Reads texts in order; macros of one are known in the next."""

    def __init__(self, kernel: str, language: str) -> None:
        self.kernel = kernel
        self.macros: dict[str, Macro] = {}
        for name, text in PREDEFINED[language].items():
            self.macros[name] = Macro(tuple(self._split(text, f"<{name}>")))
        self.written = 0

    def error(self, at: At, message: str) -> NoReturn:
        raise KernelError(self.kernel, at, message)

    def read(self, text: str, file: str) -> list[Token]:
        """The tokens of a text that are left for the parser."""
        found: list[Token] = []
        waiting: list[Token] = []
        conditions: list[_Condition] = []
        for line in self._lines(text, file):
            if not (line and line[0].text == "#" and line[0].kind == "op"):
                if all(c.taken_now for c in conditions):
                    waiting += line
                continue
            found += self.expanded(waiting)
            waiting = []
            self._directive(line, conditions)
        if conditions:
            self.error(conditions[-1].at, "`#endif` is missing for this condition.")
        return found + self.expanded(waiting)

    # ---- tokens ----

    def _lines(self, text: str, file: str) -> list[list[Token]]:
        """The tokens of each line; a backslash at the end of one joins it to the next."""
        lines: list[list[Token]] = [[]]
        for token in self._split(text, file):
            if token.kind == "newline":
                lines.append([])
            else:
                lines[-1].append(token)
        return lines

    def _split(self, text: str, file: str) -> list[Token]:
        found: list[Token] = []
        at, line, start = 0, 1, 0
        spaced = False
        while at < len(text):
            match = _TOKEN.match(text, at)
            here = At(file, line, at - start + 1)
            if match is None:
                self.error(here, f"{text[at]!r} is not understood.")
            kind = match.lastgroup
            assert kind is not None
            piece = match.group()
            if kind == "open":
                self.error(here, "this comment has no end.")
            if kind != "space":
                found.append(Token(kind, piece, here, spaced=spaced))
            spaced = kind == "space"
            lines = piece.count("\n")
            if lines:
                line += lines
                start = at + piece.rindex("\n") + 1
            at = match.end()
        return found

    # ---- directives ----

    def _directive(self, line: Sequence[Token], conditions: list[_Condition]) -> None:
        at = line[0].at
        name = line[1].text if len(line) > 1 else ""
        rest = list(line[2:])
        if name in ("if", "ifdef", "ifndef"):
            outer = all(c.taken_now for c in conditions)
            holds = outer and self._condition(name, rest, at)
            conditions.append(_Condition(at, holds, holds or not outer))
            return
        if name in ("elif", "else", "endif"):
            if not conditions:
                self.error(at, f"`#{name}` without `#if`.")
            here = conditions[-1]
            if name == "endif":
                conditions.pop()
            elif name == "else":
                here.taken_now, here.taken = not here.taken, True
            else:
                here.taken_now = not here.taken and self._condition("if", rest, at)
                here.taken = here.taken or here.taken_now
            return
        if not all(c.taken_now for c in conditions) or not name or name in _IGNORED:
            return
        if name == "define":
            self._define(rest, at)
        elif name == "undef":
            self.macros.pop(rest[0].text if rest else "", None)
        elif name == "error":
            self.error(at, f"`#error {' '.join(t.text for t in rest)}`.")
        else:
            self.error(at, f"`#{name}` is not supported in kernels.")

    def _define(self, line: Sequence[Token], at: At) -> None:
        if not line or line[0].kind != "name":
            self.error(at, "`#define` needs a name.")
        name, rest = line[0].text, list(line[1:])
        if not rest or rest[0].text != "(" or rest[0].spaced:
            self.macros[name] = Macro(tuple(rest))
            return
        parameters: list[str] = []
        k, variadic = 1, False
        while k < len(rest) and rest[k].text != ")":
            token = rest[k]
            if token.text == "...":
                variadic = True
                parameters.append("__VA_ARGS__")
            elif token.kind == "name":
                parameters.append(token.text)
            elif token.text != ",":
                self.error(token.at, f"`{token.text}` is no parameter of a macro.")
            k += 1
        if k >= len(rest):
            self.error(at, f"`)` is missing behind the parameters of `{name}`.")
        body = rest[k + 1 :]
        for token in body:
            if token.kind == "op" and token.text == "#":
                self.error(token.at, "texts are not supported in kernels: `#` makes one.")
        self.macros[name] = Macro(tuple(body), tuple(parameters), variadic)

    # ---- macros ----

    def expanded(self, tokens: Sequence[Token]) -> list[Token]:
        """Tokens, with macros written out."""
        found: list[Token] = []
        todo = list(reversed(tokens))
        while todo:
            token = todo.pop()
            macro = self.macros.get(token.text) if token.kind == "name" and token.text not in token.hidden else None
            if macro is None or (macro.parameters is not None and not (todo and todo[-1].text == "(")):
                found.append(token)
                continue
            hidden = token.hidden | {token.text}
            if len(hidden) > _MOST_DEPTH:
                self.error(token.at, "macros are nested too deeply.")
            if macro.parameters is None:
                body: Sequence[Token] = macro.body
            else:
                body = self._filled(macro, self._arguments(macro, token, todo))
            body = self._pasted(body)
            self.written += len(body)
            if self.written > _MOST_TOKENS:
                self.error(token.at, f"macros make more than {_MOST_TOKENS} tokens.")
            todo += [replace(t, at=token.at, hidden=t.hidden | hidden) for t in reversed(body)]
        return found

    def _arguments(self, macro: Macro, name: Token, todo: list[Token]) -> list[list[Token]]:
        """What stands in the parentheses behind the name of a macro."""
        assert macro.parameters is not None
        todo.pop()
        found: list[list[Token]] = [[]]
        depth = 0
        while True:
            if not todo:
                self.error(name.at, f"`)` is missing behind the arguments of `{name.text}`.")
            token = todo.pop()
            if token.text in ("(", "[", "{") and token.kind == "op":
                depth += 1
            elif token.text in (")", "]", "}") and token.kind == "op":
                if depth == 0 and token.text == ")":
                    break
                depth -= 1
            last = macro.variadic and len(found) >= len(macro.parameters)
            if token.text == "," and token.kind == "op" and depth == 0 and not last:
                found.append([])
            else:
                found[-1].append(token)
        if not macro.parameters and found == [[]]:
            found = []
        if macro.variadic and len(found) == len(macro.parameters) - 1:
            found.append([])
        if len(found) != len(macro.parameters):
            self.error(name.at, f"the macro `{name.text}` takes {len(macro.parameters)} arguments; got {len(found)}.")
        return found

    def _filled(self, macro: Macro, given: Sequence[Sequence[Token]]) -> list[Token]:
        """The body of a macro with its arguments; those that are pasted to others are taken as they are."""
        assert macro.parameters is not None
        found: list[Token] = []
        by_name = dict(zip(macro.parameters, given, strict=True))
        for k, token in enumerate(macro.body):
            argument = by_name.get(token.text) if token.kind == "name" else None
            if argument is None:
                found.append(token)
                continue
            pasted = any(0 <= j < len(macro.body) and macro.body[j].text == "##" for j in (k - 1, k + 1))
            found += argument if pasted else self.expanded(argument)
        return found

    def _pasted(self, body: Sequence[Token]) -> list[Token]:
        """Tokens on both sides of `##` become one."""
        found: list[Token] = []
        k = 0
        while k < len(body):
            token = body[k]
            if token.text == "##" and found and k + 1 < len(body):
                left = found.pop()
                made = self._split(left.text + body[k + 1].text, left.at.file)
                found += [replace(t, at=left.at) for t in made]
                k += 2
                continue
            found.append(token)
            k += 1
        return found

    # ---- conditions ----

    def _condition(self, name: str, line: Sequence[Token], at: At) -> bool:
        if name in ("ifdef", "ifndef"):
            if not line or line[0].kind != "name":
                self.error(at, f"`#{name}` needs a name.")
            return (line[0].text in self.macros) == (name == "ifdef")
        tokens: list[Token] = []
        k = 0
        while k < len(line):
            if line[k].text in ("defined", "__has_include", "__has_feature"):
                behind = [t.text for t in line[k + 1 : k + 4]]
                if line[k].text != "defined":
                    self.error(line[k].at, f"`{line[k].text}` is not supported in kernels.")
                one = behind[1:2] if behind[:1] == ["("] else behind[:1]
                if not one or (behind[:1] == ["("] and behind[2:3] != [")"]):
                    self.error(line[k].at, "`defined` needs a name.")
                tokens.append(Token("int", str(int(one[0] in self.macros)), line[k].at))
                k += 4 if behind[:1] == ["("] else 2
            else:
                tokens.append(line[k])
                k += 1
        return _Condition.value(self, self.expanded(tokens), at) != 0


class _Condition:
    """One `#if` and what belongs to it: whether its lines count now, and whether some of it did already."""

    def __init__(self, at: At, now: bool, taken: bool) -> None:
        self.at, self.taken_now, self.taken = at, now, taken

    @staticmethod
    def value(owner: Preprocessor, tokens: Sequence[Token], at: At) -> int:
        return _Arithmetic(owner, tokens, at).whole()


class _Arithmetic:
    """The integer that tokens behind `#if` amount to. Names that are no macros are 0."""

    def __init__(self, owner: Preprocessor, tokens: Sequence[Token], at: At) -> None:
        self.owner, self.tokens, self.at, self.place = owner, tokens, at, 0

    def whole(self) -> int:
        found = self.choice(0)
        if self.place < len(self.tokens):
            self.owner.error(self.tokens[self.place].at, f"`{self.tokens[self.place].text}` in a condition of `#if`.")
        return found

    def next(self) -> str:
        return self.tokens[self.place].text if self.place < len(self.tokens) else ""

    def choice(self, depth: int) -> int:
        if depth > _MOST_DEPTH:
            self.owner.error(self.at, "it is nested too deeply.")
        test = self.binary(1, depth)
        if self.next() != "?":
            return test
        self.place += 1
        x = self.choice(depth + 1)
        if self.next() != ":":
            self.owner.error(self.at, "`:` is missing in a condition of `#if`.")
        self.place += 1
        y = self.choice(depth + 1)
        return x if test else y

    def binary(self, least: int, depth: int) -> int:
        x = self.unary(depth)
        while _BINARY.get(self.next(), 0) >= least:
            op = self.next()
            self.place += 1
            y = self.binary(_BINARY[op] + 1, depth + 1)
            x = self.combined(op, x, y)
        return x

    def combined(self, op: str, x: int, y: int) -> int:
        if op in ("/", "%") and y == 0:
            self.owner.error(self.at, "a division by 0 in a condition of `#if`.")
        if op in ("<<", ">>"):
            y = min(max(y, 0), 64)
        sign = 1 if (x < 0) == (y < 0) else -1
        found = {
            "+": x + y, "-": x - y, "*": x * y, "&": x & y, "^": x ^ y, "|": x | y, "<": x < y, "<=": x <= y,
            ">": x > y, ">=": x >= y, "==": x == y, "!=": x != y, "&&": bool(x and y), "||": bool(x or y),
            "<<": x << y if op == "<<" else 0, ">>": x >> y if op == ">>" else 0,
            "/": sign * (abs(x) // abs(y)) if y else 0, "%": x - sign * (abs(x) // abs(y)) * y if y else 0,
        }[op]  # fmt: skip
        return ((int(found) + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)

    def unary(self, depth: int) -> int:
        if depth > _MOST_DEPTH:
            self.owner.error(self.at, "it is nested too deeply.")
        if self.place >= len(self.tokens):
            self.owner.error(self.at, "the condition of `#if` is not complete.")
        token = self.tokens[self.place]
        self.place += 1
        if token.text in ("!", "-", "+", "~"):
            x = self.unary(depth + 1)
            return {"!": int(not x), "-": -x, "+": x, "~": ~x}[token.text]
        if token.text == "(":
            x = self.choice(depth + 1)
            if self.next() != ")":
                self.owner.error(token.at, "`)` is missing in a condition of `#if`.")
            self.place += 1
            return x
        if token.kind == "int":
            return integer(token.text)
        if token.kind == "name":
            return int(token.text == "true")
        return self.owner.error(token.at, f"`{token.text}` in a condition of `#if`.")


def integer(text: str) -> int:
    """The number that a literal stands for, its suffix aside."""
    digits = text.rstrip("uUlL")
    if digits[:2] in ("0x", "0X"):
        return int(digits, 16)
    if digits[:2] in ("0b", "0B"):
        return int(digits, 2)
    octal = len(digits) > 1 and digits[0] == "0" and set(digits) <= set("01234567")
    return int(digits, 8 if octal else 10)
