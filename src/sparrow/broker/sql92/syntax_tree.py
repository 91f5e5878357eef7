"""The syntax tree of a selector, and the value type of each node.

RocketMQ converts a property by the type of the other operand, so the type of a number matters: `a > 3` parses the
property as a 32-bit integer, `a > 3000000000` as a 64-bit one, `a > 3.0` as a double.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TypeAlias

import msgspec


class ValueType(Enum):
    """The type of a node's value. Every node may also be null."""

    TEXT = "text"
    INT32 = "a 32-bit integer"
    INT64 = "a 64-bit integer"
    DOUBLE = "a double"
    BOOLEAN = "a boolean"
    NOTHING = "null"


NUMERIC_TYPES = frozenset({ValueType.INT32, ValueType.INT64, ValueType.DOUBLE})


class Property(msgspec.Struct, frozen=True):
    name: str


class Literal(msgspec.Struct, frozen=True):
    value: str | int | float | bool | None
    sort: ValueType


class Negated(msgspec.Struct, frozen=True):
    """A minus before a non-number: null, once the operand has been evaluated."""

    operand: Node


class PropertyTruth(msgspec.Struct, frozen=True):
    """A property in place of a condition. It is a text and never a boolean: false, or null if absent."""

    property: Property


class Operator(Enum):
    EQUAL = "="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


class Comparison(msgspec.Struct, frozen=True):
    operator: Operator
    left: Node
    right: Node


class Between(msgspec.Struct, frozen=True):
    value: Node
    low: Node
    high: Node
    is_negated: bool = False

    def spelled_out(self) -> Condition:
        """Return the comparisons it stands for.

        NOT BETWEEN is not the negation: the bounds may convert the property to two types.
        """
        if isinstance(self.value, Negated):
            # Null compared with either bound is null, so one comparison is enough; two would double with each nesting.
            return Comparison(Operator.LESS, self.value, self.low)
        if self.is_negated:
            below = Comparison(Operator.LESS, self.value, self.low)
            return Or((below, Comparison(Operator.GREATER, self.value, self.high)))
        above = Comparison(Operator.AT_LEAST, self.value, self.low)
        return And((above, Comparison(Operator.AT_MOST, self.value, self.high)))


class In(msgspec.Struct, frozen=True):
    property: Property
    texts: tuple[str, ...]


class IsNull(msgspec.Struct, frozen=True):
    operand: Node


class TextOperator(Enum):
    CONTAINS = "CONTAINS"
    STARTS_WITH = "STARTSWITH"
    ENDS_WITH = "ENDSWITH"


class TextTest(msgspec.Struct, frozen=True):
    """CONTAINS, STARTSWITH and ENDSWITH. Never null.

    A missing or non-text operand, or an empty `text`, is false, also with NOT.
    """

    part: TextOperator
    operand: Node
    text: str
    is_negated: bool = False


class Not(msgspec.Struct, frozen=True):
    condition: Condition


class And(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...]


class Or(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...]


Condition: TypeAlias = Comparison | Between | In | IsNull | TextTest | Not | And | Or | PropertyTruth | Literal
"""What may be true or false. Of literals only TRUE, FALSE and NULL."""
Node: TypeAlias = Condition | Property | Negated


def value_type_of(node: Node) -> ValueType:
    match node:
        case Property():
            return ValueType.TEXT
        case Literal():
            return node.sort
        case Negated():
            return ValueType.NOTHING
        case _:
            return ValueType.BOOLEAN


def is_condition(node: Node) -> bool:
    if isinstance(node, Literal):
        return node.sort is ValueType.BOOLEAN or node.value is None
    return not isinstance(node, Property | Negated)


def property_names(node: Node) -> Iterator[str]:
    """Yield the properties in a tree, once for each occurrence."""
    if isinstance(node, Property):
        yield node.name
        return
    for field in node.__struct_fields__:
        child = getattr(node, field)
        for part in child if isinstance(child, tuple) else (child,):
            if isinstance(part, msgspec.Struct):
                yield from property_names(part)  # type: ignore[arg-type]


def count_properties(node: object) -> int:
    """Return how many times a condition names a property."""
    if isinstance(node, Property):
        return 1
    if isinstance(node, tuple):
        return sum(map(count_properties, node))
    return sum(map(count_properties, msgspec.structs.astuple(node))) if isinstance(node, msgspec.Struct) else 0
