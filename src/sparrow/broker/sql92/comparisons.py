"""Two values beside each other, neither of them null: what is converted to what, and what cannot be compared."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from sparrow.broker.sql92.java_numbers import READERS, double, rank
from sparrow.broker.sql92.syntax_tree import NUMBERS, Comparison, Operator, Sort, sort_of

Test: TypeAlias = Callable[[Any, Any], bool]

TESTS: dict[Operator, Test] = {
    Operator.EQUAL: operator.eq,
    Operator.LESS: operator.lt,
    Operator.AT_MOST: operator.le,
    Operator.GREATER: operator.gt,
    Operator.AT_LEAST: operator.ge,
}


class Unanswerable(Exception):
    """A comparison that cannot be made. Stays inside this package."""


def above_all(number: float) -> float:
    """NaN is above every number in Java, and no literal is infinite."""
    return number if number == number else float("inf")


def tester(node: Comparison) -> Test:
    """How to compare the two sides, by what sort each of them is."""
    test = TESTS[node.operator]
    match sort_of(node.left), sort_of(node.right):
        case (Sort.TEXT, Sort.TEXT):
            return test if node.operator is Operator.EQUAL else _both_doubles(test)
        case (Sort.TEXT, Sort.BOOLEAN):
            return lambda text, flag: (text.lower() == b"true") is flag
        case (Sort.BOOLEAN, Sort.TEXT):
            return _cannot
        case (Sort.TEXT, sort) if sort in NUMBERS:
            read = READERS[sort]
            return lambda text, number: test(_number(text, read), number)
        case (sort, Sort.TEXT) if sort in NUMBERS:
            read = READERS[sort]
            return lambda number, text: test(number, _number(text, read))
        case (Sort.BOOLEAN, Sort.BOOLEAN):
            return test
        case (left, right) if left in NUMBERS and right in NUMBERS:
            return test if Sort.DOUBLE not in (left, right) else lambda one, other: test(float(one), float(other))
        case _:
            return lambda one, other: False


def _number(text: bytes, read: Callable[[bytes], float | None]) -> float:
    number = read(text)
    if number is None:
        raise Unanswerable
    return above_all(number)


def _both_doubles(test: Test) -> Test:
    """Two texts are put in order as doubles, whatever they look like."""

    def compared(one: bytes, other: bytes) -> bool:
        first, second = double(one), double(other)
        if first is None or second is None:
            raise Unanswerable
        return test(rank(first), rank(second))

    return compared


def _cannot(one: object, other: object) -> bool:
    """RocketMQ tries to cast the boolean to a text here (ComparisonExpression.__compare), and fails."""
    raise Unanswerable
