"""The lexer of selectors: RocketMQ's lexical rules as six patterns.

They differ from SQL's, so that a general tokenizer such as sqlglot's is no help: `!=`, `==`, `;`, `N'x'`, quoted or
accented names are invalid, `.5` and `1L` are one token and `007` is three, comments do not nest, and `--` without a
line end is two minus signs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sparrow.model.errors import Refused

_EXCERPT_CHARS = 40
"""How many characters of the expression an error shows on either side of the mistake."""

_TOKEN = re.compile(
    r"""
    (?P<skip>    [ \t\n\r\f]+ | --[^\n\r]*+[\n\r] | /\*.*?\*/ )
  | (?P<double>  (?: [0-9]+\.[0-9]* | \.[0-9]+ ) (?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
  | (?P<integer> 0 | [1-9][0-9]*[lL]? )
  | (?P<text>    ' (?: '' | [^'] )*+ ' )
  | (?P<name>    [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<sign>    <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = frozenset(
    ["AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)


class InvalidSelector(Refused):
    """The expression cannot be parsed; `position` counts its characters from 0."""

    def __init__(self, expression: str, position: int, problem: str) -> None:
        super().__init__(expression, position, problem)
        self.expression, self.position, self.problem = expression, position, problem

    def __str__(self) -> str:
        start = max(self.position - _EXCERPT_CHARS, 0)
        end = self.position + _EXCERPT_CHARS
        before, after = "…" if start else "", "…" if end < len(self.expression) else ""
        # Blanks of any kind become spaces, so that the caret is below the right character.
        excerpt = "".join(" " if char.isspace() else char for char in self.expression[start:end])
        caret = " " * (len(before) + self.position - start) + "^"
        return f"not a SQL92 selector: {self.problem} at position {self.position}\n{before}{excerpt}{after}\n{caret}"


class LexerToken(NamedTuple):
    kind: str
    """text, integer, double, name, or end; a keyword or a sign is its own kind."""
    text: str
    at: int

    def __str__(self) -> str:
        return repr(self.text) if self.text else "the end"

    @property
    def unquoted(self) -> str:
        return self.text[1:-1].replace("''", "'")


def tokenize(expression: str) -> Iterator[LexerToken]:
    """Yield tokens one by one, so that the parser reports the first error."""
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise InvalidSelector(expression, at, _what_is_wrong(expression, at))
        kind, text = found.lastgroup or "", found.group()
        if kind == "sign":
            yield LexerToken(text, text, at)
        elif kind == "name" and text.upper() in _WORDS:
            yield LexerToken(text.upper(), text, at)
        elif kind != "skip":
            yield LexerToken(kind, text, at)
        at = found.end()
    yield LexerToken("end", "", at)


def _what_is_wrong(expression: str, at: int) -> str:
    if expression[at] == "'":
        return "a text is not closed"
    if expression.startswith("/*", at):
        return "a comment is not closed"
    return f"unexpected character {expression[at]!r}"
