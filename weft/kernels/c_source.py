"""Kernels written in Metal's C++, or in CUDA: the subset of both that kernels found in the wild use.

The source is the body of a function; its header may have functions and structs (also templates), constants, names of
types and macros. Qualifiers and attributes are skipped over. What is not in the subset is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weft.kernels import syntax as s
from weft.kernels.c_expressions import QUALIFIERS, SPACES, UNSUPPORTED, Reader
from weft.kernels.syntax import At, KernelError
from weft.kernels.tokens import Preprocessor, Token
from weft.records import replace


def read(language: str, name: str, source: str, header: str) -> s.Source:
    """The kernel of the body of a function, with what its header declares."""
    reader, words = _Parser(language, name), Preprocessor(name, language)
    start = At(f"<{name}>", 1, 1)
    try:
        reader.tokens = words.read(header, f"<{name} header>")
        reader.header(to="end")
        reader.tokens, reader.place = words.read(source, f"<{name}>"), 0
        body = reader.statements(start, to="end")
    except RecursionError:
        raise KernelError(name, start, "it is nested too deeply.") from None
    whole = s.Block(start, body, scope=False)
    structs, constants = tuple(reader.structs.values()), tuple(reader.constants)
    return s.Source(name, language, whole, tuple(reader.functions), (), f"{header}\n{source}", structs, constants)


class _Parser(Reader):
    """Reads declarations and statements."""

    def __init__(self, language: str, kernel: str) -> None:
        super().__init__(language, kernel)
        self.functions: list[s.Function] = []
        self.constants: list[s.Statement] = []

    # ---- headers ----

    def header(self, to: str) -> None:
        """The functions, structs and constants of a header, or of a namespace in it."""
        opened = self.now.at
        while True:
            self.attributes()
            if self.now.kind == "end":
                if to == "}":
                    self.error(opened, "`}` is missing for this namespace.")
                return
            if to == "}" and self.accept("}"):
                return
            if not self.accept(";"):
                self._declared()

    def _declared(self) -> None:
        """One thing that a header declares."""
        token = self.now
        if token.kind == "name" and token.text in ("using", "typedef", "enum", "static_assert", "namespace"):
            self.take()
            if token.text == "namespace":
                self._namespace()
            else:
                self.constants += self._keyword(token)
            return
        known = set(self.generic_types)
        generics = self.generics() if self.accept("template") else ()
        if self.now.text in UNSUPPORTED and self.now.kind == "name":
            self.unsupported(self.now)
        if self._is_struct():
            self.structure(generics)
        else:
            self._function_or_constant(generics)
        self.generic_types = known

    def _function_or_constant(self, generics: tuple[s.Generic, ...]) -> None:
        at = self.now.at
        kind = self.type()
        if kind is None:
            self.error(at, f"`{self.now.text}`: a function or a constant is expected in a header.")
        name = self._function_name()
        if self.at_op("("):
            found = self.function(at, kind, name.text, generics)
            if found is not None:
                self.functions.append(found)
            return
        if generics:
            self.error(at, "templates of constants are not supported in kernels.")
        self.place -= 1
        self.constants += self.declarators(at, kind, constant=True)
        self.expect(";", "behind a declaration")

    def _function_name(self) -> Token:
        """The name of a function or a constant; `operator+` is one."""
        if not self.accept("operator"):
            return self.name("of a function or constant")
        token = self.take()
        if token.kind != "op":
            self.error(token.at, f"`operator {token.text}` is not supported in kernels.")
        if token.text in ("(", "["):
            self.expect(")" if token.text == "(" else "]", "behind `operator`")
            return Token("name", "operator()" if token.text == "(" else "operator[]", token.at)
        return Token("name", f"operator{token.text}", token.at)

    def qualifiers_seen(self) -> tuple[str, bool]:
        """What stands before a type, without taking it."""
        place = self.place
        found = self.qualifiers()
        self.place = place
        return found

    def _namespace(self) -> None:
        if self.now.kind == "name":
            while True:
                self.namespaces.add(self.name("of a namespace").text)
                if not self.accept("::"):
                    break
        self.expect("{", "behind a namespace")
        self.deeper()
        self.header(to="}")
        self.depth -= 1

    def _keyword(self, token: Token) -> list[s.Statement]:
        """`using`, `typedef`, `enum` and `static_assert`."""
        made: Callable[[At], list[s.Statement]] = getattr(self, f"_{token.text}")
        return made(token.at)

    def _using(self, at: At) -> list[s.Statement]:
        if self.accept("namespace"):
            while not self.accept(";"):
                if self.take().kind == "end":
                    self.error(self.now.at, "`;` is missing.")
            return []
        name = self.name("of a type")
        if self.at_op("::"):  # using metal::max;
            while not self.accept(";"):
                if self.take().kind == "end":
                    self.error(self.now.at, "`;` is missing.")
            return []
        self.expect("=", "behind the name of a type")
        kind = self.type()
        if kind is None:
            self.error(self.now.at, "a type is missing.")
        self.aliases[name.text] = kind
        self.expect(";", "behind a type")
        return []

    def _typedef(self, at: At) -> list[s.Statement]:
        if self._is_struct():
            made = self.structure((), typedef=True)
            kind: s.TypeName | None = s.TypeName(at, made)
        else:
            kind = self.type()
        if kind is None:
            self.error(self.now.at, "a type is missing behind `typedef`.")
        name = self.name("of a type")
        if name.text != kind.name:
            self.aliases[name.text] = kind
        self.expect(";", "behind a type")
        return []

    def _enum(self, at: At) -> list[s.Statement]:
        """Numbers by names: they are constants."""
        of_class = self.accept("class") or self.accept("struct")
        if of_class:
            self.error(at, "classes of numbers (`enum class`) are not supported in kernels; use `enum`.")
        kind = s.TypeName(at, "int")
        name = self.take().text if self.now.kind == "name" else ""
        if self.accept(":"):
            kind = self.type() or kind
        self.expect("{", "behind `enum`")
        found: list[s.Statement] = []
        last: s.Expression = s.Number(at, -1)
        while not self.accept("}"):
            one = self.name("of a number")
            last = self.choice() if self.accept("=") else s.Binary(one.at, "+", last, s.Number(one.at, 1))
            found.append(s.Declare(one.at, kind, one.text, (), last, True))
            last = s.Name(one.at, one.text)
            if not self.accept(",") and not self.at_op("}"):
                self.error(self.now.at, f"`,` or `}}` is missing between numbers; found `{self.now.text}`.")
        if name:
            self.aliases[name] = kind
        self.expect(";", "behind `enum`")
        return found

    def _static_assert(self, at: At) -> list[s.Statement]:
        self.expect("(", "behind `static_assert`")
        test, text = self.assignment(), ""
        if self.accept(","):
            while self.now.kind == "string":
                text += self.take().text.strip('"')
        self.expect(")", "behind `static_assert`")
        self.expect(";", "behind `static_assert`")
        return [s.Assertion(at, test, text)]

    def generics(self) -> tuple[s.Generic, ...]:
        """template <typename T, int N = 4>"""
        self.expect("<", "behind `template`")
        found: list[s.Generic] = []
        while not self.accept(">"):
            if self.now.text == "template":
                self.error(self.now.at, "templates of templates are not supported in kernels.")
            is_type = self.accept("typename") or self.accept("class")
            if self.at_op("..."):
                self.error(self.now.at, "templates of any number of parameters are not supported in kernels.")
            if not is_type and self.type() is None:
                self.error(self.now.at, "a template parameter is a type or a number.")
            name = self.name("of a template parameter").text if self.now.kind == "name" else ""
            default: s.Expression | s.TypeName | None = None
            if self.accept("="):
                default = self.type() if is_type else self.binary(9)
            if is_type:
                self.generic_types.add(name)
            found.append(s.Generic(name, is_type, default))
            if not self.accept(",") and not (self.now.kind == "op" and self.now.text[0] == ">"):
                self.error(self.now.at, f"`,` or `>` is missing behind `template <`; found `{self.now.text}`.")
        if not found:
            self.error(self.now.at, "specializations of templates are not supported in kernels.")
        return tuple(found)

    # ---- functions ----

    def parameters(self, at: At) -> tuple[s.Parameter, ...]:
        self.expect("(", "behind the name of a function")
        found: list[s.Parameter] = []
        while not self.accept(")"):
            self.attributes()
            if self.now.text == "void" and self.ahead().text == ")":
                self.take()
                continue
            given = self.type()
            if given is None:
                self.error(self.now.at, f"`{self.now.text}`: the type of a parameter is expected.")
            around = self.at_op("(") and self.ahead().text in ("&", "*")
            if around:  # thread float (&a)[4]
                self.take()
                self.take()
            label = self.take().text if self.now.kind == "name" else f"_{len(found)}"
            if around:
                self.expect(")", "behind the name of an array")
            sizes: list[s.Expression] = []
            arrays = 0
            while self.at_op("["):
                self.take()
                arrays += 1
                if self.accept("]"):
                    continue
                size = self.expression()
                if arrays > 1:
                    sizes.append(size)
                self.expect("]", "behind a size")
            if arrays:
                given = replace(given, pointer=True, reference=False)
            self.attributes()
            default = self.assignment() if self.accept("=") else None
            found.append(s.Parameter(label, given, default, tuple(sizes)))
            if not self.accept(",") and not self.at_op(")"):
                self.error(self.now.at, f"`,` or `)` is missing between parameters; found `{self.now.text}`.")
        return tuple(found)

    def function(
        self,
        at: At,
        kind: s.TypeName | None,
        name: str,
        generics: tuple[s.Generic, ...],
        constructs: bool = False,
    ) -> s.Function | None:
        """A function behind its name; None if it is declared only."""
        if generics:
            self.templates.add(name)
        given = self.parameters(at)
        while self.now.kind == "name" and self.now.text in ("const", "thread", "threadgroup", "device", "noexcept"):
            self.take()
        if self.accept("->"):
            kind = self.type()
        if self.accept(";"):
            return None
        begins: list[tuple[str, tuple[s.Expression, ...]]] = []
        if constructs and self.accept(":"):
            while True:
                field = self.name("of a field").text
                if not self.at_op("(", "{"):
                    self.error(self.now.at, f"`(` is missing behind `{field}`; found `{self.now.text}`.")
                end = ")" if self.take().text == "(" else "}"
                begins.append((field, tuple(self.arguments(end))))
                if not self.accept(","):
                    break
        if constructs and self.accept("="):
            self.expect("default", "behind `=`")
            self.expect(";", "behind `default`")
            return None
        start = self.expect("{", "before the body of a function").at
        body = s.Block(start, self.statements(start, to="}"))
        return s.Function(at, name, given, body, kind, generics, tuple(begins))

    def lambda_body(self, at: At, parameters: tuple[s.Parameter, ...], result: s.TypeName | None) -> s.Function:
        start = self.expect("{", "before the body of a function").at
        body = s.Block(start, self.statements(start, to="}"))
        return s.Function(at, f"lambda {at.line}:{at.column}", parameters, body, result)

    # ---- structs ----

    def _is_struct(self) -> bool:
        """Whether the definition of a struct begins here."""
        if self.now.text != "struct" or self.now.kind != "name":
            return False
        by = 2 if self.ahead().kind == "name" else 1
        return self.ahead(by).text in ("{", ";", ":")

    def structure(self, generics: tuple[s.Generic, ...], typedef: bool = False) -> str:
        """struct Name { ... };"""
        at = self.take().at
        name = self.take().text if self.now.kind == "name" else f"struct {at.line}:{at.column}"
        self.struct_names.add(name)
        if generics:
            self.templates.add(name)
        if not typedef and self.accept(";"):
            return name
        if self.at_op(":"):
            self.error(self.now.at, "structs that inherit from others are not supported in kernels.")
        if name in self.structs:
            self.error(at, f"the struct `{name}` is defined twice.")
        self.expect("{", "behind the name of a struct")
        fields: list[s.Declare] = []
        constants: list[s.Declare] = []
        functions: list[s.Function] = []
        self.deeper()
        while not self.accept("}"):
            if self.now.kind == "end":
                self.error(at, "`}` is missing for this struct.")
            self._member(name, fields, constants, functions)
        self.depth -= 1
        self.structs[name] = s.Struct(at, name, tuple(fields), tuple(functions), tuple(constants), generics)
        if not typedef:
            self.expect(";", "behind a struct")
        return name

    def _member(
        self, owner: str, fields: list[s.Declare], constants: list[s.Declare], functions: list[s.Function]
    ) -> None:
        at = self.now.at
        if self.accept(";"):
            return
        if self.now.text in ("public", "private", "protected") and self.ahead().text == ":":
            self.take()
            self.take()
            return
        if self.now.kind == "name" and self.now.text in ("using", "typedef"):
            self._keyword(self.take())
            return
        if self._is_struct() or self.now.text in ("enum", "union"):
            self.error(at, "types inside of structs are not supported in kernels.")
        known = set(self.generic_types)
        generics = self.generics() if self.accept("template") else ()
        static = any(
            self.ahead(by).text == "static" for by in range(8) if self.ahead(by).text in (*QUALIFIERS, *SPACES)
        )
        _, constant = self.qualifiers_seen()
        place = self.place
        self.qualifiers()
        if self.now.text == owner and self.ahead().text == "(":
            self.take()
            found = self.function(at, None, owner, generics, constructs=True)
            functions += [] if found is None else [found]
        elif self.at_op("~"):
            self.error(at, "destructors are not supported in kernels.")
        else:
            self.place = place
            kind = self.type()
            if kind is None:
                self.error(at, f"`{self.now.text}`: a field or a function is expected in a struct.")
            name = self._function_name()
            if self.at_op("("):
                found = self.function(at, kind, name.text, generics)
                functions += [] if found is None else [found]
            else:
                self.place -= 1
                made = self.declarators(at, kind, constant=static and constant)
                self.expect(";", "behind a field")
                (constants if static else fields).extend(x for x in made if isinstance(x, s.Declare))
        self.generic_types = known

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
        self.deeper()
        try:
            return self._statement()
        finally:
            self.depth -= 1

    def _statement(self) -> list[s.Statement]:
        self.attributes()
        token = self.now
        at = token.at
        if self.accept(";"):
            return []
        if self.accept("{"):
            return [s.Block(at, self.statements(at, to="}"))]
        if token.kind == "name" and token.text in UNSUPPORTED:
            self.unsupported(token)
        if token.kind == "name" and token.text in _KEYWORDS:
            self.take()
            return self._keyword(token)
        if self._is_struct():
            self.structure(())
            return []
        if token.text == "template" and token.kind == "name":
            self.error(at, "templates stand in the header of a kernel.")
        if self.starts_type():
            found = self.declaration(at)
            self.expect(";", "behind a declaration")
            return found
        x = self.expression()
        self.expect(";", "behind a statement")
        return [s.Evaluate(at, x)]

    def _if(self, at: At) -> list[s.Statement]:
        self.accept("constexpr")
        self.expect("(", "behind `if`")
        first, test = self._condition()
        self.expect(")", "behind the condition")
        then = self._body(at)
        other = self._body(at) if self.accept("else") else None
        made = s.If(at, test, then, other)
        return [made] if not first else [s.Block(at, (*first, made))]

    def _condition(self) -> tuple[list[s.Statement], s.Expression]:
        """What stands in the parentheses of `if` and `switch`, with what it declares."""
        if not self.starts_type():
            return [], self.expression()
        at = self.now.at
        found = self.declaration(at)
        if self.accept(";"):
            return found, self.expression()
        last = found[-1]
        assert isinstance(last, s.Declare)
        return found, s.Name(last.at, last.name)

    def _body(self, at: At) -> s.Block:
        return s.Block(at, tuple(self.statement()))

    def _for(self, at: At) -> list[s.Statement]:
        self.expect("(", "behind `for`")
        first: s.Statement | None = None
        if not self.accept(";"):
            here = self.now.at
            inside = self.declaration(here) if self.starts_type() else [s.Evaluate(here, self.expression())]
            first = s.Block(here, tuple(inside), scope=False)
            if self.at_op(":"):
                self.error(self.now.at, "loops over ranges (`for (x : y)`) are not supported in kernels.")
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

    def _switch(self, at: At) -> list[s.Statement]:
        self.expect("(", "behind `switch`")
        first, value = self._condition()
        self.expect(")", "behind the value")
        opened = self.expect("{", "behind `switch (...)`").at
        cases: list[s.Case] = []
        while not self.accept("}"):
            if self.now.kind == "end":
                self.error(opened, "`}` is missing for this block.")
            here = self.now.at
            labels: list[s.Expression | None] = []
            while self.now.kind == "name" and self.now.text in ("case", "default"):
                labels.append(self.choice() if self.take().text == "case" else None)
                self.expect(":", "behind a case")
            if not labels:
                self.error(here, f"`case` or `default` is missing in a `switch`; found `{self.now.text}`.")
            body: list[s.Statement] = []
            while not self.at_op("}") and self.now.text not in ("case", "default") and self.now.kind != "end":
                body += self.statement()
            cases.append(s.Case(here, tuple(labels), tuple(body)))
        made = s.Switch(at, value, tuple(cases))
        return [made] if not first else [s.Block(at, (*first, made))]

    def _case(self, at: At) -> list[s.Statement]:
        self.error(at, "`case` stands in no `switch`, or inside of another statement of it.")

    _default = _case

    def _break(self, at: At) -> list[s.Statement]:
        self.expect(";", "behind `break`")
        return [s.Break(at)]

    def _continue(self, at: At) -> list[s.Statement]:
        self.expect(";", "behind `continue`")
        return [s.Continue(at)]

    def _return(self, at: At) -> list[s.Statement]:
        value = None if self.at_op(";") else self.braces() if self.at_op("{") else self.expression()
        self.expect(";", "behind `return`")
        return [s.Return(at, value)]

    # ---- declarations ----

    def declaration(self, at: At) -> list[s.Statement]:
        _, constant = self.qualifiers_seen()
        kind = self.type()
        if kind is None:
            self.error(self.now.at, f"a type is expected; found `{self.now.text}`.")
        return self.declarators(at, kind, constant)

    def declarators(self, at: At, kind: s.TypeName, constant: bool) -> list[s.Statement]:
        found: list[s.Statement] = []
        while True:
            own = kind if not found else replace(kind, pointer=False, reference=False)
            while self.at_op("*", "&"):
                own = replace(own, pointer=own.pointer or self.at_op("*"), reference=self.at_op("&"))
                self.take()
            while self.now.kind == "name" and self.now.text in QUALIFIERS:
                self.take()
            found.append(self._declarator(own, constant))
            if not self.accept(","):
                return found

    def _declarator(self, own: s.TypeName, constant: bool) -> s.Declare:
        around = self.at_op("(") and self.ahead().text in ("&", "*")
        if around:
            self.error(self.now.at, "pointers and references to arrays are not supported in kernels; use `auto`.")
        name = self.name("of a variable")
        sizes: list[s.Expression] = []
        open_size = False
        while self.accept("["):
            if not sizes and self.accept("]"):
                open_size = True
                sizes.append(s.Number(name.at, 0))
                continue
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
            value = given[0] if len(given) == 1 and own.pointer else s.Convert(name.at, own, tuple(given))
            if own.name == "auto" and given:
                value = given[0]
        if open_size:
            if not isinstance(value, s.Braces) or not value.items:
                self.error(name.at, f"the array `{name.text}` needs a size, or elements.")
            sizes[0] = s.Number(name.at, len(value.items))
        if isinstance(value, s.Braces) and not sizes:
            plain = own.name == "auto" or own.pointer or own.reference
            value = value.items[0] if plain and len(value.items) == 1 else s.Convert(value.at, own, value.items)
        # A pointer to constants may move.
        return s.Declare(name.at, own, name.text, tuple(sizes), value, constant and not own.pointer)


_KEYWORDS: Final = frozenset(
    ("if", "for", "while", "do", "break", "continue", "return", "using", "switch", "case", "default", "typedef", "enum",
     "static_assert")
)  # fmt: skip
