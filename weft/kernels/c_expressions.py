"""Types and expressions of kernels in C++, read by recursive descent. What stands around them is in `c_source`."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from weft.kernels import syntax as s
from weft.kernels.rules import RULES, vector_type
from weft.kernels.syntax import At, KernelError
from weft.kernels.tokens import Token, integer
from weft.records import replace

_BINARY: Final = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1,
}  # fmt: skip
_ASSIGN: Final = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
SPACES: Final = {
    "threadgroup": "threadgroup", "__shared__": "threadgroup", "device": "device", "constant": "device",
    "thread": "thread",
}  # fmt: skip
QUALIFIERS: Final = frozenset(
    ("const", "constexpr", "inline", "static", "volatile", "restrict", "__restrict__", "__restrict", "__device__",
     "__forceinline__", "METAL_FUNC", "extern", "register", "mutable", "__constant__", "__host__", "__global__",
     "explicit", "friend", "typename", "__inline__", "coherent", "__attribute__", "alignas", "__align__",
     "__launch_bounds__")
)  # fmt: skip
_WITH_ARGUMENTS: Final = frozenset(("__attribute__", "alignas", "__align__", "__launch_bounds__"))
"""Qualifiers with something in parentheses, which is skipped."""
SKIPPED: Final = frozenset(
    ("metal", "std", "fast", "precise", "cooperative_groups", "cg", "mem_flags", "simd", "mlx", "core", "cu")
)
"""Namespaces that are known."""
UNSUPPORTED: Final = {
    "goto": "`goto` is", "class": "classes are", "try": "exceptions are", "throw": "exceptions are",
    "new": "memory from the heap (`new`) is", "delete": "memory from the heap (`delete`) is", "asm": "assembly is",
    "__asm__": "assembly is", "union": "unions are", "virtual": "virtual functions are", "decltype": "`decltype` is",
    "dynamic_cast": "`dynamic_cast` is", "typeid": "`typeid` is", "co_await": "coroutines are",
    "concept": "concepts are",
    "requires": "concepts are",
}  # fmt: skip
_CASTS: Final = ("static_cast", "reinterpret_cast", "const_cast", "as_type", "bit_cast")
_ORDERS: Final = frozenset(
    ("memory_order_relaxed", "memory_order_seq_cst", "memory_order_acq_rel", "memory_order_acquire",
     "memory_order_release", "thread_scope_device", "thread_scope_threadgroup", "thread_scope_system")
)  # fmt: skip
_FLAGS: Final = re.compile(r"mem_(none|device|threadgroup|texture|threadgroup_imageblock)")
_WORDS: Final = ("unsigned", "signed", "long", "short", "int", "char")
_NOT_TYPES: Final = frozenset(
    ("return", "else", "break", "continue", "do", "if", "for", "while", "switch", "case", "default", "sizeof",
     "operator", "using", "typedef", "template", *UNSUPPORTED)
)  # fmt: skip
_OPERANDS: Final = ("name", "float", "int", "string")
_MOST_DEPTH: Final = 300


class Reader:
    """Reads tokens. A name followed by < is a template only if it is known to be one."""

    def __init__(self, language: str, kernel: str) -> None:
        self.language, self.kernel = language, kernel
        self.types = RULES[language].types
        self.templates: set[str] = set()
        self.generic_types: set[str] = set()
        self.structs: dict[str, s.Struct] = {}
        self.struct_names: set[str] = set()
        self.namespaces: set[str] = set()
        self.aliases: dict[str, s.TypeName] = {}
        self.tokens: list[Token] = []
        self.place = 0
        self.depth = 0

    def lambda_body(self, at: At, parameters: tuple[s.Parameter, ...], result: s.TypeName | None) -> s.Function:
        raise NotImplementedError

    def parameters(self, at: At) -> tuple[s.Parameter, ...]:
        raise NotImplementedError

    # ---- tokens ----

    def error(self, at: At, message: str) -> NoReturn:
        raise KernelError(self.kernel, at, message)

    def unsupported(self, token: Token) -> NoReturn:
        self.error(token.at, f"{UNSUPPORTED[token.text]} not supported in kernels.")

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
        if self.now.kind == "op" and self.now.text in ("]]", "[[", ">>") and text == self.now.text[0]:
            self._divide(1)
            return self.accept(text)
        if text == ">" and self.now.kind == "op" and self.now.text in (">=", ">>="):
            self._divide(1)
            return self.accept(text)
        return False

    def _divide(self, by: int) -> None:
        """Several signs where one is wanted."""
        token = self.now
        parts = [Token("op", token.text[:by], token.at), Token("op", token.text[by:], token.at)]
        self.tokens[self.place : self.place + 1] = parts

    def expect(self, text: str, why: str) -> Token:
        token = self.now
        if not self.accept(text):
            self.error(token.at, f"`{text}` is missing {why}; found `{token.text}`.")
        return token

    def name(self, why: str) -> Token:
        token = self.take()
        if token.kind != "name":
            self.error(token.at, f"a name is missing {why}; found `{token.text}`.")
        if token.text in UNSUPPORTED:
            self.unsupported(token)
        return token

    def skip_parentheses(self, at: At) -> None:
        depth = 0
        while True:
            token = self.take()
            if token.kind == "end":
                self.error(at, "`)` is missing.")
            if token.text in ("(", ")") and token.kind == "op":
                depth += 1 if token.text == "(" else -1
                if depth == 0:
                    return

    def attributes(self) -> None:
        """[[...]] is skipped."""
        while self.now.kind == "op" and self.now.text == "[[":
            while not (self.now.kind == "op" and self.now.text == "]]"):
                if self.take().kind == "end":
                    self.error(self.now.at, "`]]` is missing.")
            self.take()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self.error(self.now.at, "it is nested too deeply.")

    # ---- types ----

    def is_type(self, token: Token) -> bool:
        if token.kind != "name":
            return False
        text = token.text
        known = text in self.types or text in self.generic_types or text in self.aliases or text in self.struct_names
        fixed = ("auto", "void", "vec", "atomic", "_atomic")
        return known or text in fixed or vector_type(text, self.types) is not None

    def _past_namespaces(self, by: int) -> int:
        while self.ahead(by + 1).text == "::" and (
            self.ahead(by).text in SKIPPED or self.ahead(by).text in self.namespaces
        ):
            by += 2
        return by

    def starts_type(self) -> bool:
        """Whether a declaration begins here."""
        by = 0
        qualified = False
        while self.ahead(by).kind == "name" and (
            self.ahead(by).text in QUALIFIERS
            or self.ahead(by).text == "struct"
            or (self.ahead(by).text in SPACES and self.ahead(by + 1).kind == "name")
        ):
            by += 1
            qualified = True
        if qualified:
            return True
        by = self._past_namespaces(by)
        token, following = self.ahead(by), self.ahead(by + 1)
        if self.is_type(token):
            if following.text == "<" and token.text in self.struct_names:
                return self._behind_angles(by + 1).kind == "name" or self._behind_angles(by + 1).text in ("*", "&")
            return following.kind == "name" or following.text in ("*", "&", "<")
        if token.kind != "name" or token.text in _NOT_TYPES:
            return False
        # A template parameter of the call: a name, and the name of what it is the type of.
        if following.kind == "name":
            return True
        named = self.ahead(by + 2).kind == "name" and self.ahead(by + 3).text in ("=", ";", ",", "[")
        return following.text in ("*", "&") and named

    def _behind_angles(self, by: int) -> Token:
        """What follows the parameters of a type."""
        depth = 0
        while True:
            text = self.ahead(by).text
            if self.ahead(by).kind == "end" or text in (";", "{"):
                return self.ahead(by)
            depth += {"<": 1, ">": -1, ">>": -2}.get(text, 0)
            by += 1
            if depth <= 0:
                return self.ahead(by)

    def qualifiers(self) -> tuple[str, bool]:
        """Skips what stands before a type; (its address space, whether it is constant)."""
        space, constant = "thread", False
        while self.now.kind == "name":
            text = self.now.text
            if text in SPACES:
                space = SPACES[text]
            elif (text in SKIPPED or text in self.namespaces) and self.ahead().text == "::":
                self.take()
            elif text not in QUALIFIERS:
                break
            constant = constant or text in ("const", "constexpr", "constant")
            token = self.take()
            if text in _WITH_ARGUMENTS and self.at_op("("):
                self.skip_parentheses(token.at)
        return space, constant

    def type(self) -> s.TypeName | None:
        """A type, with all that stands around its name; None if there is none."""
        at = self.now.at
        space, _ = self.qualifiers()
        words: list[str] = []
        while self.now.kind == "name" and (self.now.text in _WORDS or (words and self.now.text in ("const",))):
            words.append(self.take().text)
        words = [word for word in words if word != "const"]
        if not words:
            self.accept("struct")
            if self.now.kind != "name":
                return None
            if self.now.text in UNSUPPORTED:
                self.unsupported(self.now)
            words = [self.take().text]
        kind = self._named(" ".join(words), at)
        pointer = reference = False
        while True:
            if self.at_op("*"):
                if pointer or kind.pointer:
                    self.error(self.now.at, "pointers to pointers are not supported in kernels.")
                self.take()
                pointer = True
            elif self.accept("&") or self.accept("&&"):
                reference = True
            elif self.now.kind == "name" and (self.now.text in QUALIFIERS or self.now.text in SPACES):
                space = SPACES.get(self.now.text, space)
                self.take()
            else:
                break
        own = kind.space if space == "thread" else space
        return replace(kind, at=at, pointer=pointer or kind.pointer, reference=reference, space=own)

    def needed_type(self) -> s.TypeName:
        kind = self.type()
        if kind is None:
            self.error(self.now.at, f"a type is missing; found `{self.now.text}`.")
        return kind

    def _named(self, name: str, at: At) -> s.TypeName:
        if name in self.aliases:
            return self.aliases[name]
        if not self.at_op("<"):
            return s.TypeName(at, name)
        if name in ("vec", "atomic", "_atomic") or name in self.struct_names:
            return s.TypeName(at, name, parameters=self.angles(name))
        if name in self.types:
            return s.TypeName(at, name)
        return self.error(at, f"the type `{name}<...>` is not supported in kernels.")

    def angles(self, name: str) -> tuple[s.TypeName | s.Expression, ...]:
        """Types and numbers in angle brackets."""
        at = self.expect("<", f"behind `{name}`").at
        found: list[s.TypeName | s.Expression] = []
        while not self.accept(">"):
            if self.now.kind == "end":
                self.error(at, f"`>` is missing behind `{name}<`.")
            kind = self.type() if self._is_type_here() else None
            found.append(kind if kind is not None else self.binary(_BINARY["+"]))
            if not self.accept(",") and not (self.now.kind == "op" and self.now.text[0] == ">"):
                self.error(self.now.at, f"`,` or `>` is missing behind `{name}<`; found `{self.now.text}`.")
        return tuple(found)

    def _is_type_here(self) -> bool:
        by = 0
        while self.ahead(by).kind == "name" and (self.ahead(by).text in QUALIFIERS or self.ahead(by).text in SPACES):
            by += 1
        by = self._past_namespaces(by)
        token = self.ahead(by)
        if self.ahead(by + 1).text in ("(", "::"):
            return False
        return self.is_type(token) or token.text in _WORDS or token.text == "struct"

    # ---- expressions ----

    def expression(self) -> s.Expression:
        x = self.assignment()
        while self.at_op(","):
            at = self.take().at
            x = s.Binary(at, ",", x, self.assignment())
        return x

    def assignment(self) -> s.Expression:
        self.deeper()
        try:
            x = self.choice()
            if self.now.kind == "op" and self.now.text in _ASSIGN:
                token = self.take()
                value = self.braces() if self.at_op("{") else self.assignment()
                return s.Assignment(token.at, x, token.text if token.text == "=" else token.text[:-1], value)
            return x
        finally:
            self.depth -= 1

    def choice(self) -> s.Expression:
        test = self.binary(1)
        if not self.at_op("?"):
            return test
        at = self.take().at
        x = self.expression()
        self.expect(":", "in a choice")
        return s.Choice(at, test, x, self.assignment())

    def binary(self, least: int) -> s.Expression:
        self.deeper()
        x = self.unary()
        while self.now.kind == "op" and _BINARY.get(self.now.text, 0) >= least:
            token = self.take()
            y = self.binary(_BINARY[token.text] + 1)
            x = s.Binary(token.at, token.text, x, y)
        self.depth -= 1
        return x

    def unary(self) -> s.Expression:
        token = self.now
        if token.kind != "op":
            return self.postfix()
        self.deeper()
        try:
            return self._unary(token)
        finally:
            self.depth -= 1

    def _unary(self, token: Token) -> s.Expression:
        if token.text in ("-", "+", "!", "~", "*", "&"):
            self.take()
            return s.Unary(token.at, token.text, self.unary())
        if token.text in ("++", "--"):
            self.take()
            return s.Step(token.at, self.unary(), token.text, after=False)
        if token.text == "(" and self._is_cast():
            self.take()
            kind = self.needed_type()
            self.expect(")", "behind a type")
            return s.Convert(token.at, kind, self.braces().items if self.at_op("{") else (self.unary(),))
        return self.postfix()

    def _is_cast(self) -> bool:
        """Whether a parenthesis holds a type: `(float)x`, `(device T*)p`."""
        by = 1
        while self.ahead(by).kind == "name" and (self.ahead(by).text in QUALIFIERS or self.ahead(by).text in SPACES):
            by += 1
        qualified = by > 1
        by = self._past_namespaces(by)
        if not qualified and not self.is_type(self.ahead(by)) and self.ahead(by).text not in (*_WORDS, "struct"):
            # The name of a type that a template gives: alone in parentheses, before what can only be an operand.
            token, following = self.ahead(by), self.ahead(by + 2)
            if token.kind != "name":
                return False
            if self.ahead(by + 1).text == "*" and following.text == ")":
                return True  # (T*)p
            alone = self.ahead(by + 1).text == ")"
            return alone and (following.kind in _OPERANDS or self._is_inner_cast(by + 2))
        by += 1
        if self.ahead(by).text == "<":
            return self._behind_angles(by).text in (")", "*", "&")
        while self.ahead(by).text in ("*", "&", *QUALIFIERS, *SPACES) or (
            self.ahead(by).kind == "name" and (self.is_type(self.ahead(by)) or self.ahead(by).text in _WORDS)
        ):
            by += 1
        return self.ahead(by).text == ")"

    def _is_inner_cast(self, by: int) -> bool:
        """`(T)(x + y)`: two parentheses in a row are a cast and its operand, for a name that is no variable here."""
        return self.ahead(by).text == "("

    def postfix(self) -> s.Expression:
        x = self.primary()
        while True:
            token = self.now
            if self.accept("["):
                index = self.expression()
                self.expect("]", "behind an index")
                x = s.Index(token.at, x, (index,))
            elif self.accept(".") or self.accept("->"):
                self.accept("template")
                member = self.name("behind `.`")
                given = self.angles(member.text) if self.at_op("<") and member.text in self.templates else ()
                if self.accept("("):
                    x = s.Call(member.at, member.text, tuple(self.arguments(")")), given, x)
                else:
                    x = s.Member(member.at, x, member.text)
            elif self.at_op("++", "--"):
                self.take()
                x = s.Step(token.at, x, token.text, after=True)
            elif self.at_op("(") and not isinstance(x, s.Number):
                self.take()
                x = s.Call(token.at, "operator()", tuple(self.arguments(")")), (), x)
            else:
                return x

    def arguments(self, end: str) -> list[s.Expression]:
        found: list[s.Expression] = []
        while not self.accept(end):
            found.append(self.braces() if self.at_op("{") else self.assignment())
            if not self.accept(",") and not self.at_op(end, end * 2):
                self.error(self.now.at, f"`,` or `{end}` is missing between arguments; found `{self.now.text}`.")
        return found

    def braces(self) -> s.Braces:
        at = self.expect("{", "before elements").at
        self.deeper()
        items: list[s.Expression] = []
        while not self.accept("}"):
            if self.at_op("."):
                self.error(self.now.at, "names before the elements of braces are not supported in kernels.")
            items.append(self.braces() if self.at_op("{") else self.assignment())
            if not self.accept(",") and not self.at_op("}"):
                self.error(self.now.at, f"`,` or `}}` is missing between elements; found `{self.now.text}`.")
        self.depth -= 1
        return s.Braces(at, tuple(items))

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
        if token.kind == "op" and token.text == "::":
            return self.primary()
        if token.kind == "op" and token.text in ("[", "[["):
            return self._lambda(token)
        if token.kind == "name":
            return self._by_name(token)
        if token.kind == "string":
            return self._text(token)
        return self.error(at, f"an expression is expected; found `{token.text}`.")

    def _text(self, token: Token) -> s.Expression:
        """A character is a number."""
        inside = token.text[1:-1]
        known = {"\\n": 10, "\\t": 9, "\\0": 0, "\\r": 13, "\\\\": 92, "\\'": 39}
        if token.text[0] == '"' or (len(inside) != 1 and inside not in known):
            self.error(token.at, "texts are not supported in kernels.")
        return s.Number(token.at, known.get(inside, ord(inside[0])))

    def _integer(self, token: Token) -> s.Number:
        try:
            return s.Number(token.at, integer(token.text), token.text[len(token.text.rstrip("uUlL")) :])
        except ValueError:
            self.error(token.at, f"`{token.text}` is no number.")

    def _lambda(self, token: Token) -> s.Expression:
        """[&](float x) -> float { ... }"""
        if token.text == "[[":
            self.error(token.at, "an expression is expected; found `[[`.")
        while not self.accept("]"):
            if self.take().kind == "end":
                self.error(token.at, "`]` is missing.")
        given = self.parameters(token.at) if self.at_op("(") else ()
        while self.now.kind == "name" and self.now.text in ("mutable", "constexpr", "noexcept"):
            self.take()
        result = self.type() if self.accept("->") else None
        return s.Lambda(token.at, self.lambda_body(token.at, given, result))

    # ---- names ----

    def _by_name(self, token: Token) -> s.Expression:
        at, text = token.at, token.text
        if text in ("true", "false"):
            return s.Number(at, text == "true")
        if text == "nullptr":
            self.error(at, "pointers to nothing (`nullptr`) are not supported in kernels.")
        if text in ("this_grid", "this_thread_block", "this_thread") and self.at_op("("):
            return self._cooperative(at, text)
        while self.at_op("::"):
            if text not in SKIPPED and text not in self.namespaces:
                return self._of_type(token)
            self.take()
            token = self.name("behind `::`")
            text = token.text
            if text in ("this_grid", "this_thread_block", "this_thread") and self.at_op("("):
                return self._cooperative(at, text)
        if text in UNSUPPORTED:
            self.unsupported(Token("name", text, at))
        if text == "sizeof":
            return self._sizeof(at)
        if text in ("numeric_limits", "Limits") and self.at_op("<"):
            return self._limits(at, text)
        if text in _CASTS:
            self.expect("<", f"behind `{text}`")
            kind = self.needed_type()
            self.expect(">", "behind a type")
            self.expect("(", f"behind `{text}<...>`")
            return s.Convert(at, kind, tuple(self.arguments(")")), bits=text in ("as_type", "bit_cast"))
        if self.at_op("<") and (text in self.struct_names or text == "vec"):
            return self._of_type(token)
        if self.at_op("<") and text in self.templates:
            given = self.angles(text)
            self.expect("(", f"behind `{text}<...>`")
            return s.Call(at, text, tuple(self.arguments(")")), given)
        if text in _WORDS and self.now.kind == "name" and self.now.text in _WORDS:
            words = [text]
            while self.now.kind == "name" and self.now.text in _WORDS:
                words.append(self.take().text)
            text = " ".join(words)
            token = Token("name", "int", at)
        return self._called(token, text)

    def _called(self, token: Token, text: str) -> s.Expression:
        """A name alone, or with arguments: of a function, or of a type that they are converted to."""
        at = token.at
        named = self.aliases.get(text, s.TypeName(at, text))
        if self.at_op("{") and self.is_type(token):
            return s.Convert(at, named, self.braces().items)
        if not self.at_op("("):
            return s.Name(at, text)
        self.take()
        given = tuple(self.arguments(")"))
        if self.is_type(token):
            return s.Convert(at, named, given)
        return s.Call(at, text, tuple(x for x in given if not _is_flag(x)))

    def _of_type(self, token: Token) -> s.Expression:
        """`Pair<float>(x, y)`, `Pair<float>{x, y}`, `Pair::size`, `Pair<float>::sum(x)`."""
        at = token.at
        if not self.is_type(token):
            self.error(at, f"the namespace `{token.text}` is not known in kernels.")
        kind = self._named(token.text, at)
        if self.at_op("{"):
            return s.Convert(at, kind, self.braces().items)
        if self.accept("("):
            return s.Convert(at, kind, tuple(self.arguments(")")))
        if not self.accept("::"):
            self.error(self.now.at, f"`(` or `::` is missing behind `{token.text}`; found `{self.now.text}`.")
        self.accept("template")
        member = self.name("behind `::`")
        given = self.angles(member.text) if self.at_op("<") and member.text in self.templates else ()
        owner = s.TypeValue(at, kind)
        if self.accept("("):
            return s.Call(member.at, member.text, tuple(self.arguments(")")), given, owner)
        return s.Member(member.at, owner, member.text)

    def _sizeof(self, at: At) -> s.Expression:
        self.expect("(", "behind `sizeof`")
        self.place -= 1
        if self._is_cast():
            self.take()
            x: s.Expression = s.TypeValue(at, self.needed_type())
        else:
            self.take()
            x = self.expression()
        self.expect(")", "behind `sizeof`")
        return s.SizeOf(at, x)

    def _limits(self, at: At, name: str) -> s.Expression:
        """numeric_limits<T>::max(), and MLX's Limits<T>::max"""
        self.expect("<", f"behind `{name}`")
        kind = self.needed_type()
        self.expect(">", "behind a type")
        self.expect("::", f"behind `{name}<...>`")
        what = self.name("behind `::`").text
        if name == "numeric_limits":
            self.expect("(", f"behind `{what}`")
            self.expect(")", f"behind `{what}`")
        elif what in ("max", "min"):
            what = "infinity" if what == "max" else "minus_infinity"
        else:
            what = {"finite_max": "max", "finite_min": "lowest"}.get(what, what)
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


def _is_flag(x: s.Expression) -> bool:
    """What says how memory is ordered: it is, always."""
    return isinstance(x, s.Name) and (_FLAGS.fullmatch(x.name) is not None or x.name in _ORDERS)
