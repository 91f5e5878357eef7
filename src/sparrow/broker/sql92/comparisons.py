"""Comparison of two values that are not null: conversions, and pairs that cannot be compared."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from sparrow.broker.sql92.java_numbers import NUMBER_PARSERS, java_order_key, parse_double
from sparrow.broker.sql92.syntax_tree import NUMERIC_TYPES, Comparison, Operator, ValueType, value_type_of

Comparator: TypeAlias = Callable[[Any, Any], bool]

COMPARATORS: dict[Operator, Comparator] = {
    Operator.EQUAL: operator.eq,
    Operator.LESS: operator.lt,
    Operator.AT_MOST: operator.le,
    Operator.GREATER: operator.gt,
    Operator.AT_LEAST: operator.ge,
}


class NotComparable(Exception):
    """The two values cannot be compared. Not raised outside this package."""


def nan_as_infinity(number: float) -> float:
    """Return infinity for NaN, which is above every number in Java. No literal is infinite."""
    return number if number == number else float("inf")


def comparator_of(node: Comparison) -> Comparator:
    """Return the function that compares two sides of these types."""
    test = COMPARATORS[node.operator]
    match value_type_of(node.left), value_type_of(node.right):
        case (ValueType.TEXT, ValueType.TEXT):
            return test if node.operator is Operator.EQUAL else _both_doubles(test)
        case (ValueType.TEXT, ValueType.BOOLEAN):
            return lambda text, flag: (text.lower() == b"true") is flag
        case (ValueType.BOOLEAN, ValueType.TEXT):
            return _cannot
        case (ValueType.TEXT, sort) if sort in NUMERIC_TYPES:
            read = NUMBER_PARSERS[sort]
            return lambda text, number: test(_number(text, read), number)
        case (sort, ValueType.TEXT) if sort in NUMERIC_TYPES:
            read = NUMBER_PARSERS[sort]
            return lambda number, text: test(number, _number(text, read))
        case (ValueType.BOOLEAN, ValueType.BOOLEAN):
            return test
        case (left, right) if left in NUMERIC_TYPES and right in NUMERIC_TYPES:
            return test if ValueType.DOUBLE not in (left, right) else lambda one, other: test(float(one), float(other))
        case _:
            return lambda one, other: False


def _number(text: bytes, read: Callable[[bytes], float | None]) -> float:
    number = read(text)
    if number is None:
        raise NotComparable
    return nan_as_infinity(number)


def _both_doubles(test: Comparator) -> Comparator:
    """Compare two texts as doubles, as RocketMQ orders texts."""

    def compared(one: bytes, other: bytes) -> bool:
        first, second = parse_double(one), parse_double(other)
        if first is None or second is None:
            raise NotComparable
        return test(java_order_key(first), java_order_key(second))

    return compared


def _cannot(one: object, other: object) -> bool:
    """Fail, as RocketMQ does when it casts the boolean to a text (ComparisonExpression.__compare)."""
    raise NotComparable
