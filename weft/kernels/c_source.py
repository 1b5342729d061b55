"""Kernels written in Metal's C++, or in CUDA: the subset of both that kernels found in the wild use.

The source is the body of a function; its header may have functions (also templates), constants and `#define`s of
numbers. Namespaces, qualifiers and attributes are skipped over. What is not in the subset is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn

from weft.kernels import syntax as s
from weft.kernels.rules import RULES, vector_type
from weft.kernels.syntax import At, KernelError
from weft.records import dataclass, replace

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\f\v]+|\\\n|//[^\n]*|/\*.*?\*/)
      | (?P<open>/\*)
      | (?P<newline>\n)
      | (?P<directive>\#[^\n]*(?:\\\n[^\n]*)*)
      | (?P<float>(?:\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?:bf|BF|[fFhHlL])?|\d+[fFhH]\b)
      | (?P<int>0[xX][0-9a-fA-F]+[uUlL]*|0[bB][01]+[uUlL]*|\d+[uUlL]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<string>"[^"\n]*"|'[^'\n]*')
      | (?P<op><<=|>>=|\.\.\.|->|\+\+|--|&&|\|\||<<|>>|<=|>=|==|!=|\+=|-=|\*=|/=|%=|&=|\|=|\^=|::|\[\[|\]\]
          |[-+*/%&|^~!<>=?:;,.(){}\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)
_BINARY: Final = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1,
}  # fmt: skip
_ASSIGN: Final = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
_SPACES: Final = {
    "threadgroup": "threadgroup", "__shared__": "threadgroup", "device": "device", "constant": "device",
    "thread": "thread",
}  # fmt: skip
_QUALIFIERS: Final = frozenset(
    ("const", "constexpr", "inline", "static", "volatile", "restrict", "__restrict__", "__device__", "__forceinline__",
     "METAL_FUNC", "extern", "register", "mutable", "__constant__", "__host__", "__global__")
)  # fmt: skip
_SKIPPED: Final = frozenset(("metal", "std", "fast", "precise", "cooperative_groups", "cg", "mem_flags", "simd"))
"""Namespaces."""
_UNSUPPORTED: Final = {
    "goto": "goto", "switch": "switch", "class": "classes", "try": "exceptions", "throw": "exceptions",
    "new": "memory from the heap", "delete": "memory from the heap", "asm": "assembly", "union": "unions",
    "virtual": "classes", "operator": "operators of your own", "enum": "enumerations", "sizeof": "sizes of types",
}  # fmt: skip
_CASTS: Final = ("static_cast", "reinterpret_cast", "const_cast", "as_type")
_ORDERS: Final = frozenset(("memory_order_relaxed", "memory_order_seq_cst", "memory_order_acq_rel"))
_FLAGS: Final = re.compile(r"mem_(none|device|threadgroup|texture)")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    at: At


def read(language: str, name: str, source: str, header: str) -> s.Source:
    """The kernel of the body of a function, with what its header declares."""
    reader = _Parser(language, name)
    reader.tokens = reader.split(header, f"<{name} header>")
    functions = reader.header()
    reader.tokens = reader.split(source, f"<{name}>")
    reader.place = 0
    start = At(f"<{name}>", 1, 1)
    try:
        body = reader.statements(start, to="end")
    except RecursionError:
        raise KernelError(name, start, "it is nested too deeply.") from None
    constants = tuple(functions[1])
    whole = s.Block(start, (*constants, *body), scope=False)
    return s.Source(name, language, whole, tuple(functions[0]), (), f"{header}\n{source}")


class _Parser:
    """Reads tokens by recursive descent. A name followed by < is a template only if it is known to be one."""

    def __init__(self, language: str, kernel: str) -> None:
        self.language, self.kernel = language, kernel
        self.types = RULES[language].types
        self.defined: dict[str, list[Token]] = {}
        self.templates: set[str] = set()
        self.generic_types: set[str] = set()
        self.aliases: dict[str, s.TypeName] = {}
        self.tokens: list[Token] = []
        self.place = 0
        self.depth = 0

    # ---- tokens ----

    def error(self, at: At, message: str) -> NoReturn:
        raise KernelError(self.kernel, at, message)

    def split(self, text: str, file: str) -> list[Token]:
        """The tokens of a text, with what `#define` names put in."""
        found: list[Token] = []
        at, line, start = 0, 1, 0
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
            if kind == "directive":
                self.directive(piece, here)
            elif kind == "name" and piece in self.defined:
                found += [replace(token, at=here) for token in self.defined[piece]]
            elif kind not in ("space", "newline"):
                found.append(Token(kind, piece, here))
            lines = piece.count("\n")
            if lines:
                line += lines
                start = at + piece.rindex("\n") + 1
            at = match.end()
        return found

    def directive(self, text: str, at: At) -> None:
        words = text[1:].replace("\\\n", " ").strip()
        match = re.match(r"define\s+(\w+)(\(?)(.*)", words, re.DOTALL)
        if match is not None:
            if match[2]:
                self.error(at, f"`#define {match[1]}(...)` has parameters; write a function instead.")
            self.defined[match[1]] = self.split(match[3], at.file)
            return
        if re.match(r"(include|pragma|undef|line)\b", words):
            return  # what is included is known; the rest is advice
        self.error(at, f"`#{words.split()[0] if words.split() else ''}` is not supported in kernels.")

    @property
    def now(self) -> Token:
        if self.place < len(self.tokens):
            return self.tokens[self.place]
        at = self.tokens[-1].at if self.tokens else At(f"<{self.kernel}>", 1, 1)
        return Token("end", "the end of the source", at)

    def ahead(self, by: int = 1) -> Token:
        place = self.place + by
        return self.tokens[place] if place < len(self.tokens) else Token("end", "", self.now.at)

    def take(self) -> Token:
        token = self.now
        self.place += 1
        return token

    def at_op(self, *texts: str) -> bool:
        return self.now.kind == "op" and self.now.text in texts

    def accept(self, text: str) -> bool:
        if self.now.kind in ("op", "name") and self.now.text == text:
            self.place += 1
            return True
        if text == "]" and self.now.kind == "op" and self.now.text == "]]":
            self._halve()
            return self.accept(text)
        if text == "[" and self.now.kind == "op" and self.now.text == "[[":
            self._halve()
            return self.accept(text)
        if text == ">" and self.now.kind == "op" and self.now.text == ">>":
            self._halve()
            return self.accept(text)
        return False

    def _halve(self) -> None:
        """Two brackets where one is wanted."""
        token = self.now
        half = Token("op", token.text[0], token.at)
        self.tokens[self.place : self.place + 1] = [half, half]

    def expect(self, text: str, why: str) -> Token:
        token = self.now
        if not self.accept(text):
            self.error(token.at, f"`{text}` is missing {why}; found `{token.text}`.")
        return token

    def name(self, why: str) -> Token:
        token = self.take()
        if token.kind != "name":
            self.error(token.at, f"a name is missing {why}; found `{token.text}`.")
        return token

    # ---- headers ----

    def header(self) -> tuple[list[s.Function], list[s.Statement]]:
        """The functions of a header, and its constants."""
        functions: list[s.Function] = []
        constants: list[s.Statement] = []
        while self.now.kind != "end":
            if self.accept(";"):
                continue
            if self.accept("using"):
                self.using()
                continue
            if self.accept("namespace"):
                self.error(self.now.at, "namespaces of your own are not supported in kernels.")
            generics = self.generics() if self.accept("template") else ()
            if self.now.text == "struct":
                self.error(self.now.at, "structs of your own are not supported in kernels.")
            at = self.now.at
            kind = self.type()
            if kind is None:
                self.error(at, f"`{self.now.text}`: a function or a constant is expected in a header.")
            name = self.name("of a function or constant")
            if self.at_op("("):
                functions.append(self.function(at, kind, name.text, generics))
            else:
                self.place -= 1
                constants += self.declarators(at, kind, constant=True)
                self.expect(";", "behind a declaration")
        return functions, constants

    def using(self) -> None:
        if self.accept("namespace"):
            while not self.accept(";"):
                if self.take().kind == "end":
                    self.error(self.now.at, "`;` is missing.")
            return
        name = self.name("of a type")
        self.expect("=", "behind the name of a type")
        kind = self.type()
        if kind is None:
            self.error(self.now.at, "a type is missing.")
        self.aliases[name.text] = kind
        self.expect(";", "behind a type")

    def generics(self) -> tuple[tuple[str, bool], ...]:
        """template <typename T, int N>"""
        self.expect("<", "behind `template`")
        found: list[tuple[str, bool]] = []
        while not self.accept(">"):
            is_type = self.accept("typename") or self.accept("class")
            if not is_type and self.type() is None:
                self.error(self.now.at, "a template parameter is a type or a number.")
            name = self.name("of a template parameter").text
            if self.accept("="):
                self.error(self.now.at, "template parameters have no defaults in kernels.")
            if is_type:
                self.generic_types.add(name)
            found.append((name, is_type))
            self.accept(",")
        return tuple(found)

    def function(self, at: At, kind: s.TypeName, name: str, generics: tuple[tuple[str, bool], ...]) -> s.Function:
        if generics:
            self.templates.add(name)
        self.expect("(", "behind the name of a function")
        parameters: list[s.Parameter] = []
        while not self.accept(")"):
            given = self.type()
            if given is None:
                self.error(self.now.at, f"`{self.now.text}`: the type of a parameter is expected.")
            label = self.name("of a parameter").text
            if self.accept("["):
                while not self.accept("]"):
                    self.take()
                    if self.now.kind == "end":
                        self.error(at, "`]` is missing.")
                given = replace(given, pointer=True)
            self.attributes()
            parameters.append(s.Parameter(label, given))
            if not self.accept(",") and not self.at_op(")"):
                self.error(self.now.at, f"`,` or `)` is missing between parameters; found `{self.now.text}`.")
        self.accept("const")
        start = self.expect("{", "before the body of a function").at
        body = s.Block(start, self.statements(start, to="}"))
        return s.Function(at, name, tuple(parameters), body, kind, generics)

    def attributes(self) -> None:
        """[[...]] is skipped."""
        while self.now.kind == "op" and self.now.text == "[[":
            while not (self.now.kind == "op" and self.now.text == "]]"):
                if self.take().kind == "end":
                    self.error(self.now.at, "`]]` is missing.")
            self.take()

    # ---- types ----

    def is_type(self, token: Token) -> bool:
        if token.kind != "name":
            return False
        text = token.text
        known = text in self.types or text in self.generic_types or text in self.aliases
        return known or text in ("auto", "void", "vec", "atomic", "array") or vector_type(text, self.types) is not None

    def starts_type(self) -> bool:
        """Whether a declaration begins here."""
        by = 0
        qualified = False
        while self.ahead(by).kind == "name" and (
            self.ahead(by).text in _QUALIFIERS or (self.ahead(by).text in _SPACES and self.ahead(by + 1).kind == "name")
        ):
            by += 1
            qualified = True
        token = self.ahead(by)
        while token.kind == "name" and token.text in _SKIPPED and self.ahead(by + 1).text == "::":
            by += 2
            token = self.ahead(by)
        if qualified:
            return True
        if self.is_type(token):
            following = self.ahead(by + 1)
            return following.kind == "name" or following.text in ("*", "&", "<")
        # A template parameter of the call: a name, and the name of what it is the type of.
        return token.kind == "name" and self.ahead(by + 1).kind == "name" and token.text not in (
            "return", "else", "break", "continue", "do", "if", "for", "while", *_UNSUPPORTED
        )  # fmt: skip

    def type(self) -> s.TypeName | None:
        """A type, with all that stands around its name; None if there is none."""
        at, space = self.now.at, "thread"
        words: list[str] = []
        while self.now.kind == "name":
            text = self.now.text
            if text in _SPACES:
                space = _SPACES[text]
            elif text in _SKIPPED and self.ahead().text == "::":
                self.take()
            elif text not in _QUALIFIERS:
                break
            self.take()
        while self.now.kind == "name" and self.now.text in (
            "unsigned",
            "signed",
            "long",
            "short",
            "int",
            "char",
            "struct",
        ):
            words.append(self.take().text)
            if words[-1] == "struct":
                self.error(at, "structs are not supported in kernels.")
        if not words:
            if self.now.kind != "name":
                return None
            words = [self.take().text]
        kind = self._named(" ".join(words), at)
        pointer = reference = False
        while True:
            if self.accept("*"):
                if pointer:
                    self.error(at, "pointers to pointers are not supported in kernels.")
                pointer = True
            elif self.accept("&") or self.accept("&&"):
                reference = True
            elif self.now.kind == "name" and (self.now.text in _QUALIFIERS or self.now.text in _SPACES):
                space = _SPACES.get(self.now.text, space)
                self.take()
            else:
                break
        return replace(kind, at=at, pointer=pointer or kind.pointer, reference=reference, space=space)

    def _named(self, name: str, at: At) -> s.TypeName:
        if name in self.aliases:
            return self.aliases[name]
        if name in ("vec", "atomic", "_atomic") and self.accept("<"):
            inner = self.type()
            if inner is None:
                self.error(at, f"`{name}` of no type.")
            size = ""
            if self.accept(","):
                size = self.take().text
            self.expect(">", f"behind `{name}<...`")
            return s.TypeName(at, f"{inner.name}{size}")
        if self.at_op("<") and name not in self.types:
            self.error(at, f"the type `{name}<...>` is not supported in kernels.")
        return s.TypeName(at, name)

    # ---- statements ----

    def statements(self, at: At, to: str) -> tuple[s.Statement, ...]:
        """Up to a closing brace, or the end."""
        found: list[s.Statement] = []
        while True:
            if to == "end" and self.now.kind == "end":
                return tuple(found)
            if to == "}" and self.accept("}"):
                return tuple(found)
            if self.now.kind == "end":
                self.error(at, "`}` is missing for this block.")
            found += self.statement()

    def statement(self) -> list[s.Statement]:
        self.depth += 1
        if self.depth > 200:
            self.error(self.now.at, "it is nested too deeply.")
        try:
            return self._statement()
        finally:
            self.depth -= 1

    def _statement(self) -> list[s.Statement]:
        token = self.now
        at = token.at
        self.attributes()
        if self.accept(";"):
            return []
        if self.accept("{"):
            return [s.Block(at, self.statements(at, to="}"))]
        if token.kind == "name" and token.text in _UNSUPPORTED:
            self.error(
                at,
                f"{_UNSUPPORTED[token.text]} are not supported in kernels."
                if token.text != "switch"
                else "`switch` is not supported in kernels; use `if`.",
            )
        if token.kind == "name":
            keyword: Callable[[At], list[s.Statement]] | None = (
                getattr(self, f"_{token.text}", None) if token.text in _KEYWORDS else None
            )
            if keyword is not None:
                self.take()
                return keyword(at)
        if self.starts_type():
            found = self.declaration(at)
            self.expect(";", "behind a declaration")
            return found
        x = self.expression()
        self.expect(";", "behind a statement")
        return [s.Evaluate(at, x)]

    def _using(self, at: At) -> list[s.Statement]:
        self.using()
        return []

    def _if(self, at: At) -> list[s.Statement]:
        self.accept("constexpr")
        self.expect("(", "behind `if`")
        test = self.expression()
        self.expect(")", "behind the condition")
        then = self._body(at)
        other = self._body(at) if self.accept("else") else None
        return [s.If(at, test, then, other)]

    def _body(self, at: At) -> s.Block:
        return s.Block(at, tuple(self.statement()))

    def _for(self, at: At) -> list[s.Statement]:
        self.expect("(", "behind `for`")
        first: s.Statement | None = None
        if not self.accept(";"):
            here = self.now.at
            inside = self.declaration(here) if self.starts_type() else [s.Evaluate(here, self.expression())]
            first = s.Block(here, tuple(inside), scope=False)
            self.expect(";", "in a `for`")
        test = None if self.at_op(";") else self.expression()
        self.expect(";", "in a `for`")
        step = None if self.at_op(")") else self.expression()
        self.expect(")", "behind a `for`")
        return [s.For(at, first, test, step, self._body(at))]

    def _while(self, at: At) -> list[s.Statement]:
        self.expect("(", "behind `while`")
        test = self.expression()
        self.expect(")", "behind the condition")
        return [s.For(at, None, test, None, self._body(at))]

    def _do(self, at: At) -> list[s.Statement]:
        body = self._body(at)
        self.expect("while", "behind the body of `do`")
        self.expect("(", "behind `while`")
        test = self.expression()
        self.expect(")", "behind the condition")
        self.expect(";", "behind `do ... while`")
        return [s.For(at, None, test, None, body, late=True)]

    def _break(self, at: At) -> list[s.Statement]:
        self.expect(";", "behind `break`")
        return [s.Break(at)]

    def _continue(self, at: At) -> list[s.Statement]:
        self.expect(";", "behind `continue`")
        return [s.Continue(at)]

    def _return(self, at: At) -> list[s.Statement]:
        value = None if self.at_op(";") else self.expression()
        self.expect(";", "behind `return`")
        return [s.Return(at, value)]

    # ---- declarations ----

    def declaration(self, at: At) -> list[s.Statement]:
        constant = False
        by = 0
        while self.ahead(by).kind == "name" and (self.ahead(by).text in _QUALIFIERS or self.ahead(by).text in _SPACES):
            constant = constant or self.ahead(by).text in ("const", "constexpr")
            by += 1
        kind = self.type()
        if kind is None:
            self.error(self.now.at, f"a type is expected; found `{self.now.text}`.")
        return self.declarators(at, kind, constant)

    def declarators(self, at: At, kind: s.TypeName, constant: bool) -> list[s.Statement]:
        found: list[s.Statement] = []
        while True:
            own = kind
            while self.at_op("*", "&"):
                own = replace(own, pointer=own.pointer or self.at_op("*"), reference=self.at_op("&"))
                self.take()
            name = self.name("of a variable")
            sizes: list[s.Expression] = []
            while self.accept("["):
                sizes.append(self.expression())
                self.expect("]", "behind a size")
            self.attributes()
            value: s.Expression | None = None
            if self.accept("="):
                value = self.braces() if self.at_op("{") else self.assignment()
            elif self.at_op("{"):
                value = self.braces()
            elif self.at_op("(") and not sizes:
                self.take()
                given = self.arguments(")")
                value = given[0] if len(given) == 1 else s.Convert(name.at, own, tuple(given))
            if isinstance(value, s.Braces) and not sizes:
                value = value.items[0] if len(value.items) == 1 else s.Convert(value.at, own, value.items)
            # A pointer to constants may move.
            fixed = constant and not own.pointer
            found.append(s.Declare(name.at, own, name.text, tuple(sizes), value, fixed))
            if not self.accept(","):
                return found

    def braces(self) -> s.Braces:
        at = self.expect("{", "before elements").at
        items: list[s.Expression] = []
        while not self.accept("}"):
            items.append(self.braces() if self.at_op("{") else self.assignment())
            if not self.accept(",") and not self.at_op("}"):
                self.error(self.now.at, f"`,` or `}}` is missing between elements; found `{self.now.text}`.")
        return s.Braces(at, tuple(items))

    # ---- expressions ----

    def expression(self) -> s.Expression:
        x = self.assignment()
        while self.at_op(","):
            at = self.take().at
            x = s.Binary(at, ",", x, self.assignment())
        return x

    def assignment(self) -> s.Expression:
        self.depth += 1
        if self.depth > 200:
            self.error(self.now.at, "it is nested too deeply.")
        try:
            x = self.choice()
            if self.now.kind == "op" and self.now.text in _ASSIGN:
                token = self.take()
                value = self.assignment()
                return s.Assignment(token.at, x, token.text if token.text == "=" else token.text[:-1], value)
            return x
        finally:
            self.depth -= 1

    def choice(self) -> s.Expression:
        test = self.binary(1)
        if not self.at_op("?"):
            return test
        at = self.take().at
        x = self.assignment()
        self.expect(":", "in a choice")
        return s.Choice(at, test, x, self.assignment())

    def binary(self, least: int) -> s.Expression:
        x = self.unary()
        while self.now.kind == "op" and _BINARY.get(self.now.text, 0) >= least:
            token = self.take()
            y = self.binary(_BINARY[token.text] + 1)
            x = s.Binary(token.at, token.text, x, y)
        return x

    def unary(self) -> s.Expression:
        token = self.now
        if token.kind == "op":
            if token.text in ("-", "+", "!", "~", "*", "&"):
                self.take()
                self.depth += 1
                if self.depth > 200:
                    self.error(token.at, "it is nested too deeply.")
                x = self.unary()
                self.depth -= 1
                return s.Unary(token.at, token.text, x)
            if token.text in ("++", "--"):
                self.take()
                return s.Step(token.at, self.unary(), token.text, after=False)
            if token.text == "(" and self._is_cast():
                self.take()
                kind = self.type()
                assert kind is not None
                self.expect(")", "behind a type")
                return s.Convert(token.at, kind, (self.unary(),))
        return self.postfix()

    def _is_cast(self) -> bool:
        """Whether a parenthesis holds a type: `(float)x`, `(device T*)p`."""
        by = 1
        while self.ahead(by).kind == "name" and (self.ahead(by).text in _QUALIFIERS or self.ahead(by).text in _SPACES):
            by += 1
        qualified = by > 1
        if not qualified and not self.is_type(self.ahead(by)):
            # The name of a type that a template gives: alone in parentheses, before what can only be an operand.
            token, following = self.ahead(by), self.ahead(by + 2)
            alone = token.kind == "name" and self.ahead(by + 1).text == ")"
            return alone and (following.kind in ("name", "float", "int"))
        by += 1
        while self.ahead(by).text in ("*", "&", "const") or (
            self.ahead(by).kind == "name" and self.is_type(self.ahead(by))
        ):
            by += 1
        return self.ahead(by).text == ")"

    def postfix(self) -> s.Expression:
        x = self.primary()
        while True:
            token = self.now
            if self.accept("["):
                index = self.expression()
                self.expect("]", "behind an index")
                x = s.Index(token.at, x, (index,))
            elif self.accept(".") or self.accept("->"):
                member = self.name("behind `.`")
                if self.accept("("):
                    x = s.Call(member.at, member.text, tuple(self.arguments(")")), (), x)
                else:
                    x = s.Member(member.at, x, member.text)
            elif self.at_op("++", "--"):
                self.take()
                x = s.Step(token.at, x, token.text, after=True)
            else:
                return x

    def arguments(self, end: str) -> list[s.Expression]:
        found: list[s.Expression] = []
        while not self.accept(end):
            found.append(self.braces() if self.at_op("{") else self.assignment())
            if not self.accept(",") and not self.at_op(end, end * 2):
                self.error(self.now.at, f"`,` or `{end}` is missing between arguments; found `{self.now.text}`.")
        return found

    def primary(self) -> s.Expression:
        token = self.take()
        at = token.at
        if token.kind == "int":
            return self._integer(token)
        if token.kind == "float":
            match = re.fullmatch(r"(.*?)(bf|BF|[fFhHlL])?", token.text)
            assert match is not None
            return s.Number(at, float(match[1]), match[2] or "")
        if token.kind == "op" and token.text == "(":
            x = self.expression()
            self.expect(")", "behind an expression")
            return x
        if token.kind == "name":
            return self._by_name(token)
        if token.kind == "string":
            self.error(at, "texts are not supported in kernels.")
        return self.error(at, f"an expression is expected; found `{token.text}`.")

    def _integer(self, token: Token) -> s.Number:
        digits = token.text.rstrip("uUlL")
        base = (
            16
            if digits[:2] in ("0x", "0X")
            else 2
            if digits[:2] in ("0b", "0B")
            else 8
            if len(digits) > 1 and digits[0] == "0"
            else 10
        )
        try:
            return s.Number(token.at, int(digits, base), token.text[len(digits) :])
        except ValueError:
            self.error(token.at, f"`{token.text}` is no number.")

    def _by_name(self, token: Token) -> s.Expression:
        at, text = token.at, token.text
        if text in ("true", "false"):
            return s.Number(at, text == "true")
        while self.at_op("::"):
            if text not in _SKIPPED and text != "numeric_limits":
                self.error(at, f"the namespace `{text}` is not known in kernels.")
            self.take()
            token = self.name("behind `::`")
            text = token.text
        if text in _UNSUPPORTED:
            self.error(at, f"{_UNSUPPORTED[text]} are not supported in kernels.")
        if text == "numeric_limits":
            return self._limits(at)
        if text in _CASTS:
            self.expect("<", f"behind `{text}`")
            kind = self.type()
            if kind is None:
                self.error(self.now.at, "a type is missing.")
            self.expect(">", "behind a type")
            self.expect("(", f"behind `{text}<...>`")
            return s.Convert(at, kind, tuple(self.arguments(")")), bits=text == "as_type")
        if self.at_op("<") and (text in self.templates or (text in ("vec",))):
            return self._template(at, text)
        if text in ("this_grid", "this_thread_block", "this_thread") and self.at_op("("):
            return self._cooperative(at, text)
        if self.at_op("{") and self.is_type(token):
            return s.Convert(at, s.TypeName(at, text), self.braces().items)
        if text in ("unsigned", "signed", "long", "short") and self.now.kind == "name":
            words = [text]
            while self.now.kind == "name" and self.now.text in ("int", "long", "char", "short"):
                words.append(self.take().text)
            text = " ".join(words)
            token = Token("name", "int", at)
        if self.at_op("("):
            self.take()
            given = tuple(self.arguments(")"))
            if self.is_type(token):
                return s.Convert(at, self.aliases.get(text, s.TypeName(at, text)), given)
            return s.Call(at, text, tuple(x for x in given if not _is_flag(x) or text.endswith("_explicit")))
        return s.Name(at, text)

    def _template(self, at: At, name: str) -> s.Expression:
        """A function with what stands in angle brackets."""
        self.expect("<", "behind the name of a template")
        given: list[s.Expression | s.TypeName] = []
        while not self.accept(">"):
            if self.is_type(self.now):
                kind = self.type()
                assert kind is not None
                given.append(kind)
            else:
                given.append(self.binary(_BINARY["+"]))
            self.accept(",")
            if self.now.kind == "end":
                self.error(at, f"`>` is missing behind `{name}<`.")
        self.expect("(", f"behind `{name}<...>`")
        return s.Call(at, name, tuple(self.arguments(")")), tuple(given))

    def _limits(self, at: At) -> s.Expression:
        """numeric_limits<T>::max()"""
        self.expect("<", "behind `numeric_limits`")
        kind = self.type()
        if kind is None:
            self.error(at, "a type is missing.")
        self.expect(">", "behind a type")
        self.expect("::", "behind `numeric_limits<...>`")
        what = self.name("behind `::`").text
        self.expect("(", f"behind `{what}`")
        self.expect(")", f"behind `{what}`")
        return s.Call(at, f"numeric_limits.{what}", (), (kind,))

    def _cooperative(self, at: At, name: str) -> s.Expression:
        """cooperative_groups: ranks and barriers."""
        self.expect("(", f"behind `{name}`")
        self.expect(")", f"behind `{name}`")
        if not self.accept("."):
            self.error(at, f"`{name}()` is used for its rank, its size or its barrier.")
        what = self.name("behind `.`").text
        self.expect("(", f"behind `{what}`")
        self.expect(")", f"behind `{what}`")
        return s.Call(at, f"{name}.{what}", ())


_KEYWORDS: Final = frozenset(("if", "for", "while", "do", "break", "continue", "return", "using"))


def _is_flag(x: s.Expression) -> bool:
    """What says how memory is ordered: it is, always."""
    return isinstance(x, s.Name) and (_FLAGS.fullmatch(x.name) is not None or x.name in _ORDERS)
