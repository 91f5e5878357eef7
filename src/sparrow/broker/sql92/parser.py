"""The parser of selectors: returns a syntax tree, or raises `InvalidSelector` with the position.

    or          : and (OR and)*
    and         : equality (AND equality)*
    equality    : comparison ((= | <>) comparison | IS [NOT] NULL)*
    comparison  : unary ((< | <= | > | >=) unary | [NOT] BETWEEN unary AND unary | [NOT] IN (text, ...)
                         | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text)*
    unary       : (+ | - | NOT) unary | text | number | TRUE | FALSE | NULL | name | ( or )

This is RocketMQ's grammar (SelectorParser.jj) and not SQL's, so that a general SQL parser such as sqlglot's is no help:
NOT binds tighter than any comparison (`NOT a IS NULL` tests whether `NOT a` is null), `a = 1 IS NULL` is
left-associative, CONTAINS is an operator.

One deliberate difference: RocketMQ stops where the grammar stops, so that it takes `a = 1 b = 2` for `a = 1`, and `a
LIKE 'x'` or `a + 1 > 3` for `a`, which is never true. Here the rest of the text is an error, unless it is a comment.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from sparrow.broker.sql92.java_numbers import INT32_MAX, INT64_MAX
from sparrow.broker.sql92.lexer import InvalidSelector, LexerToken, tokenize
from sparrow.broker.sql92.syntax_tree import (
    NUMERIC_TYPES,
    And,
    Between,
    Comparison,
    Condition,
    In,
    IsNull,
    Literal,
    Negated,
    Node,
    Not,
    Operator,
    Or,
    Property,
    PropertyTruth,
    TextOperator,
    TextTest,
    ValueType,
    is_condition,
)

EXPRESSION_CHARS_MAX = 8192
TREE_HEIGHT_MAX = 64
"""The maximum height of a tree: parser and evaluators recurse once or a few times per level."""

_CONSTANTS = {
    "TRUE": Literal(True, ValueType.BOOLEAN),
    "FALSE": Literal(False, ValueType.BOOLEAN),
    "NULL": Literal(None, ValueType.NOTHING),
}
_ORDERINGS = {"<": Operator.LESS, "<=": Operator.AT_MOST, ">": Operator.GREATER, ">=": Operator.AT_LEAST}
_PARTS = {part.value: part for part in TextOperator}


class ParsedNode(NamedTuple):
    node: Node
    at: int
    height: int = 1
    is_plain: bool = False
    """A literal without a minus: only those are compared with each other while parsing."""


def parse(expression: str) -> Condition:
    if len(expression) > EXPRESSION_CHARS_MAX:
        problem = f"{len(expression)} characters are too many: the maximum of {EXPRESSION_CHARS_MAX} is reached"
        raise InvalidSelector(expression, EXPRESSION_CHARS_MAX, problem)
    parser = _Parser(expression)
    whole = parser.either()
    parser.end()
    return parser.condition(whole)


class _Parser:
    """One method for each level of the grammar. Each leaves `ahead` at the first token it did not use."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenize(expression)
        self._open = 0
        self.ahead = next(self._tokens)

    def refuse(self, at: int, problem: str) -> NoReturn:
        raise InvalidSelector(self._expression, at, problem)

    def end(self) -> None:
        rest = self.ahead
        is_comment = rest.kind == "-" and self._expression.startswith("--", rest.at)
        if rest.kind != "end" and not is_comment:
            self.refuse(rest.at, f"unexpected {rest.text!r} after the end of the selector")

    def condition(self, parsed: ParsedNode) -> Condition:
        """Return the node where RocketMQ expects a condition, or refuse it."""
        if isinstance(parsed.node, Property):
            return PropertyTruth(parsed.node)
        if isinstance(parsed.node, Negated) or not is_condition(parsed.node):
            self.refuse(parsed.at, "expected a condition, found a value")
        return parsed.node

    # -- levels of the grammar, loosest first -------------------------------------------------------------------------

    def either(self) -> ParsedNode:
        first = self._all()
        if self.ahead.kind != "OR":
            return first
        terms = [first]
        while self._took("OR"):
            terms.append(self._all())
        return self._node(Or(tuple(map(self.condition, terms))), *terms)

    def _all(self) -> ParsedNode:
        first = self._equality()
        if self.ahead.kind != "AND":
            return first
        terms = [first]
        while self._took("AND"):
            terms.append(self._equality())
        return self._node(And(tuple(map(self.condition, terms))), *terms)

    def _equality(self) -> ParsedNode:
        left = self._comparison()
        while True:
            sign = self.ahead
            if self._took("=") or self._took("<>"):
                right = self._comparison()
                self._check_equality(left, right)
                equal = Comparison(Operator.EQUAL, left.node, right.node)
                left = self._node(Not(equal) if sign.kind == "<>" else equal, left, right)
            elif self._took("IS"):
                is_negated = self._took("NOT")
                self._expect("NULL", "NULL")
                left = self._node(Not(IsNull(left.node)) if is_negated else IsNull(left.node), left)
            else:
                return left

    def _comparison(self) -> ParsedNode:
        left = self._unary()
        while True:
            sign = self.ahead
            if sign.kind in _ORDERINGS:
                self._step()
                right = self._unary()
                self._check_ordered(left, right)
                left = self._node(Comparison(_ORDERINGS[sign.kind], left.node, right.node), left, right)
                continue
            is_negated = self._took("NOT")
            if self.ahead.kind in _PARTS:
                part = _PARTS[self._step().kind]
                left = self._node(TextTest(part, left.node, self._text(), is_negated), left)
            elif self._took("BETWEEN"):
                left = self._between(left, is_negated=is_negated)
            elif self._took("IN"):
                left = self._in(left, is_negated=is_negated)
            elif is_negated:
                self.refuse(self.ahead.at, "expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _between(self, value: ParsedNode, *, is_negated: bool) -> ParsedNode:
        low = self._unary()
        self._expect("AND", "AND between the two bounds")
        high = self._unary()
        self._check_ordered(value, low, high)
        # RocketMQ checks neither bounds with a minus nor those of NOT BETWEEN.
        if not is_negated and low.is_plain and high.is_plain and _is_above(low.node, high.node):
            self.refuse(low.at, "the low bound is above the high one")
        return self._node(Between(value.node, low.node, high.node, is_negated), value, low, high)

    def _in(self, left: ParsedNode, *, is_negated: bool) -> ParsedNode:
        if not isinstance(left.node, Property):
            self.refuse(left.at, "only a property can be IN a list" + _hint(left.node))
        self._expect("(", "'('")
        texts = [self._text()]
        while self._took(","):
            texts.append(self._text())
        self._expect(")", "',' or ')'")
        found = In(left.node, tuple(texts))
        return self._node(Not(found) if is_negated else found, left)

    def _unary(self) -> ParsedNode:
        token = self._step()
        if token.kind in ("+", "-", "NOT", "("):
            self._open += 1
            if self._open > TREE_HEIGHT_MAX:
                self.refuse(token.at, f"nested more than {TREE_HEIGHT_MAX} deep")
            inner = self.either() if token.kind == "(" else self._unary()
            self._open -= 1
            if token.kind == "(":
                self._expect(")", "')'")
                return inner
            if token.kind == "+":
                return inner
            if token.kind == "NOT":
                return self._node(Not(self.condition(inner)), inner)._replace(at=token.at)
            return self._node(_negated(inner.node), inner)._replace(at=token.at)
        if token.kind in _CONSTANTS:
            return ParsedNode(_CONSTANTS[token.kind], token.at, is_plain=True)
        if token.kind == "name":
            return ParsedNode(Property(token.text), token.at)
        if token.kind == "text":
            return ParsedNode(Literal(token.unquoted, ValueType.TEXT), token.at, is_plain=True)
        if token.kind in ("integer", "double"):
            return ParsedNode(self._number(token), token.at, is_plain=True)
        self.refuse(token.at, f"expected a value, a property or a condition, found {token}")

    # -- checks -------------------------------------------------------------------------------------------------------

    def _node(self, node: Node, *parts: ParsedNode) -> ParsedNode:
        height = 1 + max(part.height for part in parts)
        if height > TREE_HEIGHT_MAX:
            self.refuse(parts[0].at, f"nested more than {TREE_HEIGHT_MAX} deep")
        return ParsedNode(node, parts[0].at, height)

    def _check_ordered(self, *operands: ParsedNode) -> None:
        for operand in operands:
            node = operand.node
            if is_condition(node) or (isinstance(node, Literal) and node.sort not in NUMERIC_TYPES):
                self.refuse(operand.at, "only numbers and properties can be ordered" + _hint(node))

    def _check_equality(self, left: ParsedNode, right: ParsedNode) -> None:
        for operand in (left, right):
            if isinstance(operand.node, Literal) and operand.node.value is None:
                self.refuse(operand.at, "nothing equals NULL: write IS NULL")
        # Only in this order: RocketMQ accepts `1 = TRUE`, which is false.
        if left.is_plain and right.is_plain and is_condition(left.node) and not is_condition(right.node):
            self.refuse(right.at, "TRUE or FALSE cannot be compared with this")

    def _number(self, token: LexerToken) -> Literal:
        if token.kind == "double":
            real = float(token.text)
            # RocketMQ takes Double.MIN_VALUE for the smallest double, so it refuses 0.0
            if not 0.0 < real < float("inf"):
                self.refuse(token.at, "a number with a point or exponent must be above 0 and finite; for zero write 0")
            return Literal(real, ValueType.DOUBLE)
        digits = token.text.rstrip("lL")
        if len(digits) > len(str(INT64_MAX)) or int(digits) > INT64_MAX:
            self.refuse(token.at, f"an integer can be at most {INT64_MAX}")
        whole = int(digits)
        return Literal(whole, ValueType.INT32 if whole <= INT32_MAX else ValueType.INT64)

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _step(self) -> LexerToken:
        token = self.ahead
        if token.kind != "end":
            self.ahead = next(self._tokens)
        return token

    def _took(self, kind: str) -> bool:
        if self.ahead.kind != kind:
            return False
        self._step()
        return True

    def _expect(self, kind: str, wanted: str) -> None:
        if not self._took(kind):
            self.refuse(self.ahead.at, f"expected {wanted}, found {self.ahead}")

    def _text(self) -> str:
        if self.ahead.kind != "text":
            self.refuse(self.ahead.at, f"expected a text in quotes, found {self.ahead}")
        return self._step().unquoted


def _hint(node: Node) -> str:
    return " (NOT binds tighter: write NOT (...))" if isinstance(node, Not) else ""


def _negated(node: Node) -> Node:
    if isinstance(node, Literal) and node.sort in NUMERIC_TYPES:
        return Literal(-node.value, node.sort)  # type: ignore[operator]
    return Negated(node)


def _is_above(low: Node, high: Node) -> bool:
    assert isinstance(low, Literal)
    assert isinstance(high, Literal)
    if ValueType.DOUBLE in (low.sort, high.sort):
        return float(low.value) > float(high.value)  # type: ignore[arg-type]
    return low.value > high.value  # type: ignore[operator]
