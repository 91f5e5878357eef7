"""Evaluates a selector on one property string: each node of the tree is compiled to a function.

A condition is True, False or None (null, unknown). Where RocketMQ's evaluation throws (a property that is not a number
beside a number, a boolean on the left of a text), the function raises `NotComparable`, and the message does not match,
whatever the rest of the selector: `a > 3 OR b = 'x'` does not match if `a` is "abc". AND and OR short-circuit from left
to right, so the reverse order matches.

The functions expect the property string between two 0x02. Then "0x02 name 0x01" only occurs at the start of an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sparrow.broker.sql92.comparisons import COMPARATORS, Comparator, NotComparable, comparator_of, nan_as_infinity
from sparrow.broker.sql92.java_numbers import NUMBER_PARSERS
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
)

RowEvaluator: TypeAlias = Callable[[bytes], bool | None]
ValueReader: TypeAlias = Callable[[bytes], Any]
"""Texts are UTF-8 bytes and never decoded: equality, substrings and digits can be evaluated on bytes."""

_PARTS: dict[TextOperator, Callable[[bytes, bytes], bool]] = {
    TextOperator.CONTAINS: bytes.__contains__,
    TextOperator.STARTS_WITH: bytes.startswith,
    TextOperator.ENDS_WITH: bytes.endswith,
}


def build_matcher(condition: Condition) -> Callable[[bytes], bool]:
    answer = build_evaluator(condition)

    def matches(properties: bytes) -> bool:
        try:
            return answer(b"\x02" + properties + b"\x02") is True
        except NotComparable:
            return False

    return matches


def encode_text(text: str) -> bytes:
    # No property contains half a surrogate pair, so any bytes that occur in none will do.
    return text.encode("utf-8", "surrogatepass")


def build_evaluator(node: Condition) -> RowEvaluator:
    """Compile a condition to a function."""
    match node:
        case And():
            return _until(False, [build_evaluator(condition) for condition in node.conditions])
        case Or():
            return _until(True, [build_evaluator(condition) for condition in node.conditions])
        case Not():
            return _not(build_evaluator(node.condition))
        case Comparison(Operator.EQUAL, left, right):
            return _equal(_value(left), _value(right), comparator_of(node))
        case Comparison(_, Property(name), Literal(bound, sort)) if sort in NUMERIC_TYPES:
            return _ordered_beside(bound, _property(name), NUMBER_PARSERS[sort], COMPARATORS[node.operator])
        case Comparison(_, left, right):
            return _ordered(_value(left), _value(right), comparator_of(node))
        case Between(Property(name), Literal(low, sort), Literal(high, other), False) if sort is other:
            return _within(_property(name), NUMBER_PARSERS[sort], low, high)
        case Between():
            return build_evaluator(node.spelled_out())
        case In():
            return _in(_property(node.property.name), frozenset(map(encode_text, node.texts)))
        case TextTest():
            return _part(node)
        case IsNull():
            return _is_null(_value(node.operand))
        case PropertyTruth():
            return _truth(_property(node.property.name))
        case Literal():
            return _constant(node.value)


def _value(node: Node) -> ValueReader:
    match node:
        case Property():
            return _property(node.name)
        case Literal(str() as text):
            return _constant(encode_text(text))
        case Literal():
            return _constant(node.value)
        case Negated():
            return _negated(_value(node.operand))
        case _:
            return build_evaluator(node)


def _property(name: str) -> ValueReader:
    mark = b"\x02" + name.encode() + b"\x01"
    mark_bytes = len(mark)

    def find_value(raw: bytes) -> bytes | None:
        at = raw.rfind(mark)  # the last of several with the same name is valid
        while at >= 0:
            start = at + mark_bytes
            value = raw[start : raw.find(b"\x02", start)]
            if value:
                return value
            at = raw.rfind(mark, 0, at)
        return None

    return find_value


def _constant(value: Any) -> ValueReader:
    return lambda raw: value


def _negated(operand: ValueReader) -> ValueReader:
    def negated(raw: bytes) -> None:
        operand(raw)  # it may raise NotComparable

    return negated


# -- conditions -------------------------------------------------------------------------------------------------------


def _until(decisive: bool, answers: list[RowEvaluator]) -> RowEvaluator:
    """Return OR, which True decides, or AND, which False decides."""

    def together(raw: bytes) -> bool | None:
        result: bool | None = not decisive
        for answer in answers:
            found = answer(raw)
            if found is decisive:
                return decisive
            if found is None:
                result = None
        return result

    return together


def _not(answer: RowEvaluator) -> RowEvaluator:
    def opposite(raw: bytes) -> bool | None:
        found = answer(raw)
        return None if found is None else not found

    return opposite


def _equal(left: ValueReader, right: ValueReader, is_equal: Comparator) -> RowEvaluator:
    def equal(raw: bytes) -> bool | None:
        one, other = left(raw), right(raw)
        if one is None:
            return True if other is None else None
        return False if other is None else is_equal(one, other)

    return equal


def _ordered(left: ValueReader, right: ValueReader, test: Comparator) -> RowEvaluator:
    def ordered(raw: bytes) -> bool | None:
        one = left(raw)
        if one is None:
            return None
        other = right(raw)
        return None if other is None else test(one, other)

    return ordered


def _ordered_beside(
    bound: Any, find_value: ValueReader, read: Callable[[bytes], float | None], test: Comparator
) -> RowEvaluator:
    """Return the comparison of a property with a number: the most common one, so it has a function of its own."""

    def ordered(raw: bytes) -> bool | None:
        text = find_value(raw)
        if text is None:
            return None
        number = read(text)
        if number is None:
            raise NotComparable
        return test(nan_as_infinity(number), bound)

    return ordered


def _within(find_value: ValueReader, read: Callable[[bytes], float | None], low: Any, high: Any) -> RowEvaluator:
    """Return BETWEEN for two numbers of one type: the property is found and parsed once."""

    def within(raw: bytes) -> bool | None:
        text = find_value(raw)
        if text is None:
            return None
        number = read(text)
        if number is None:
            raise NotComparable
        return bool(low <= nan_as_infinity(number) <= high)

    return within


def _in(find_value: ValueReader, texts: frozenset[bytes]) -> RowEvaluator:
    def found(raw: bytes) -> bool | None:
        text = find_value(raw)
        return None if text is None else text in texts

    return found


def _is_null(value: ValueReader) -> RowEvaluator:
    return lambda raw: value(raw) is None


def _truth(find_value: ValueReader) -> RowEvaluator:
    return lambda raw: None if find_value(raw) is None else False


def _part(node: TextTest) -> RowEvaluator:
    if not node.text:
        return _constant(False)  # the operand is not evaluated, even if it would fail
    value, text, is_negated = _value(node.operand), encode_text(node.text), node.is_negated
    has = _PARTS[node.part]

    def tested(raw: bytes) -> bool:
        whole = value(raw)
        return isinstance(whole, bytes) and has(whole, text) is not is_negated

    return tested
