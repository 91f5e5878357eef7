"""What a selector says, as a small tree of values, and the one thing both evaluators ask of it: what sort a node has.

RocketMQ converts by the class of what stands on the other side, so the sort of a number is as much a part of it as its
value: `a > 3` reads the property as a 32-bit integer, `a > 3000000000` as a 64-bit one, `a > 3.0` as a double.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TypeAlias

import msgspec


class ValueType(Enum):
    """What a node gives when it gives anything at all; every node may also give null."""

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
    """A minus before what is no number: null, once the operand has been looked at."""

    operand: Node


class PropertyTruth(msgspec.Struct, frozen=True):
    """A property where a condition is wanted. A property is text and never a boolean: false, or null when absent."""

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
        """The comparisons it stands for. NOT BETWEEN is no NOT: the bounds may read the property as two sorts."""
        if isinstance(self.value, Negated):
            # Null beside one bound is null beside the other. Once is enough: twice, and nested, would be for ever.
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
    """CONTAINS and its kin. Never null: what is absent or no text, or an empty `text`, is false, with NOT as well."""

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
    """The properties a tree looks at, as often as it does."""
    if isinstance(node, Property):
        yield node.name
        return
    for field in node.__struct_fields__:
        child = getattr(node, field)
        for part in child if isinstance(child, tuple) else (child,):
            if isinstance(part, msgspec.Struct):
                yield from property_names(part)  # type: ignore[arg-type]
