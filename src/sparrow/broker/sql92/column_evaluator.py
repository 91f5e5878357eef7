"""Evaluates a selector over many messages at once: each node of the tree becomes masks over all of them.

The rules are exactly those of `row_evaluator`. The result for a message is one of four, so a condition is three masks:
*yes*, *no*, and *failed* for what `row_evaluator` cannot compare; a message in none of them is null. There is no
short-circuit: both sides of AND and OR are evaluated, and the masks reproduce the evaluation from left to right.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparrow.broker.sql92.comparisons import COMPARATORS, NotComparable
from sparrow.broker.sql92.property_values import SelectedProperties, java_order_keys
from sparrow.broker.sql92.row_evaluator import build_evaluator, encode_text
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
    property_names,
    value_type_of,
)
from sparrow.wire.columns.layout import Bools

_PART_KERNELS = {
    TextOperator.CONTAINS: pc.match_substring,
    TextOperator.STARTS_WITH: pc.starts_with,
    TextOperator.ENDS_WITH: pc.ends_with,
}
_TRUES = [bytes(letters) for letters in product(*zip(b"true", b"TRUE", strict=True))]
"""`true` in every mixture of cases: a set lookup is faster than lower-casing a column."""

_BLOCK_ROWS = 32768
"""Positions in this many strings fit into a processor's cache."""


class TruthMasks(NamedTuple):
    yes: Bools
    no: Bools
    failed: Bools


def matching_mask(condition: Condition, property_strings: Any) -> Bools:
    """Return, for each property string of an Arrow array, whether the condition holds."""
    strings = property_strings
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    if strings.type not in (pa.binary(), pa.string()):
        strings = strings.cast(pa.binary())
    if strings.null_count:
        strings = strings.fill_null("" if strings.type == pa.string() else b"")
    blocks = (strings[at : at + _BLOCK_ROWS] for at in range(0, len(strings), _BLOCK_ROWS))
    return np.concatenate(
        [np.zeros(0, np.bool_), *(_verdict(condition, SelectedProperties(block)).yes for block in blocks)]
    )


def _verdict(node: Condition, columns: SelectedProperties) -> TruthMasks:
    match node:
        case And():
            return _all(node.conditions, columns)
        case Or():
            # By De Morgan; the evaluation from left to right stops at the same places.
            return _opposite(_all(node.conditions, columns, are_opposite=True))
        case Not():
            return _opposite(_verdict(node.condition, columns))
        case Between():
            return _verdict(node.spelled_out(), columns)
        case Literal():
            return _everywhere(node.value, columns)  # type: ignore[arg-type]
        case PropertyTruth():
            present = columns.present(node.property.name)
            return TruthMasks(_none(columns), present, _none(columns))
        case In():
            name = node.property.name
            hits = columns.one_of(name, [encode_text(text) for text in node.texts])
            return _two_ways(columns.spread(hits, name), columns.present(name), columns)
        case _ if not any(property_names(node)):  # only literals: the same for every message
            return _constant(node, columns)
        case Comparison(Operator.EQUAL, left, right):
            return _equal(left, right, columns)
        case Comparison():
            return _ordered(node, columns)
        case TextTest():
            return _part(node, columns)
        case IsNull():
            seen = _seen(node.operand, columns)
            return TruthMasks(~seen.present & ~seen.failed, seen.present, seen.failed)


# -- logic ------------------------------------------------------------------------------------------------------------


def _none(columns: SelectedProperties) -> Bools:
    return np.zeros(columns.count, np.bool_)


def _constant(node: Condition, columns: SelectedProperties) -> TruthMasks:
    try:
        return _everywhere(build_evaluator(node)(b"\x02\x02"), columns)
    except NotComparable:
        return TruthMasks(_none(columns), _none(columns), ~_none(columns))


def _everywhere(answer: bool | None, columns: SelectedProperties) -> TruthMasks:
    return TruthMasks(np.full(columns.count, answer is True), np.full(columns.count, answer is False), _none(columns))


def _two_ways(hits: Bools, known: Bools, columns: SelectedProperties) -> TruthMasks:
    return TruthMasks(hits, known & ~hits, _none(columns))


def _opposite(verdict: TruthMasks) -> TruthMasks:
    return TruthMasks(verdict.no, verdict.yes, verdict.failed)


def _all(conditions: tuple[Condition, ...], columns: SelectedProperties, *, are_opposite: bool = False) -> TruthMasks:
    verdicts = (_verdict(condition, columns) for condition in conditions)
    yes, no, failed = _everywhere(True, columns)
    for found in map(_opposite, verdicts) if are_opposite else verdicts:
        # A message that an earlier condition decided or failed on is not changed.
        no, failed = no | (found.no & ~failed), failed | (found.failed & ~no)
        yes = yes & found.yes
    return TruthMasks(yes, no, failed)


# -- operands ---------------------------------------------------------------------------------------------------------


class OperandMasks(NamedTuple):
    """The masks of an operand, computed once: repeated evaluation of nested operands would double the work."""

    present: Bools
    failed: Bools
    true: Bools
    """Where it is a condition that holds."""


def _seen(node: Node, columns: SelectedProperties) -> OperandMasks:
    none = _none(columns)
    match node:
        case Property():
            return OperandMasks(columns.present(node.name), none, none)
        case Literal():
            return OperandMasks(
                np.full(columns.count, node.value is not None), none, np.full(columns.count, node.value is True)
            )
        case Negated():
            return OperandMasks(none, _seen(node.operand, columns).failed, none)
        case _:
            verdict = _verdict(node, columns)
            return OperandMasks(verdict.yes | verdict.no, verdict.failed, verdict.yes)


def _ordered(node: Comparison, columns: SelectedProperties) -> TruthMasks:
    left, right, test = node.left, node.right, COMPARATORS[node.operator]
    match left, right:
        case Property(name), Literal(bound, sort) if sort in NUMERIC_TYPES:
            return _beside_number(name, sort, columns, lambda numbers: test(numbers, bound))
        case Literal(bound, sort), Property(name) if sort in NUMERIC_TYPES:
            return _beside_number(name, sort, columns, lambda numbers: test(bound, numbers))
        case Property(one), Property(other):
            return _two_properties(one, other, test, columns)
        case _:
            # One of them is a minus before a non-number: null, unless its evaluation fails.
            seen = _seen(left, columns)
            failed = seen.failed | (seen.present & _seen(right, columns).failed)
            return TruthMasks(_none(columns), _none(columns), failed)


def _beside_number(name: str, sort: ValueType, columns: SelectedProperties, test: Any) -> TruthMasks:
    numbers, failed = columns.numbers(name, sort)
    if sort is ValueType.DOUBLE:
        # NaN is above every number in Java, and no literal is infinite
        numbers = np.where(np.isnan(numbers), np.inf, numbers)
    hits = test(numbers) & ~failed
    yes, no, failed = (columns.spread(part, name) for part in (hits, ~hits & ~failed, failed))
    return TruthMasks(yes, no, failed)


def _two_properties(one: str, other: str, test: Any, columns: SelectedProperties) -> TruthMasks:
    known = columns.present(one) & columns.present(other)
    ordered, failed = [], _none(columns)
    for name in (one, other):
        numbers, is_bad = columns.numbers(name, ValueType.DOUBLE)
        whole = np.zeros(columns.count, np.int64)
        whole[columns.present(name)] = java_order_keys(numbers)
        ordered.append(whole)
        failed |= columns.spread(is_bad, name)
    failed &= known
    known &= ~failed
    hits = test(*ordered)
    return TruthMasks(known & hits, known & ~hits, failed)


def _equal(left: Node, right: Node, columns: SelectedProperties) -> TruthMasks:
    one, other = _seen(left, columns), _seen(right, columns)
    both = one.present & other.present
    if ValueType.BOOLEAN in (value_type_of(left), value_type_of(right)):
        same, cannot = _same_booleans(left, right, one, other, columns)
    else:
        same, cannot = _same(left, right, columns)
    failed = one.failed | other.failed | (both & cannot)
    yes = ((both & same) | (~one.present & ~other.present)) & ~failed
    # Java's rule is asymmetric: null on the left gives null, on the right false.
    return TruthMasks(yes, one.present & ~yes & ~failed, failed)


def _same_booleans(
    left: Node, right: Node, one: OperandMasks, other: OperandMasks, columns: SelectedProperties
) -> tuple[Bools, Bools]:
    """Return where a boolean and another operand, neither null, are equal, and where they cannot be compared."""
    none = _none(columns)
    match left, value_type_of(left), value_type_of(right):
        case _, ValueType.BOOLEAN, ValueType.BOOLEAN:
            return one.true == other.true, none
        case _, ValueType.BOOLEAN, ValueType.TEXT:
            return none, ~none
        case Property(name), _, _:
            return columns.spread(columns.one_of(name, _TRUES), name) == other.true, none
        case Literal(str() as text), _, _:
            return other.true == (text.lower() == "true"), none
        case _:
            return none, none


def _same(left: Node, right: Node, columns: SelectedProperties) -> tuple[Bools, Bools]:
    """Return the same for texts and numbers."""
    match left, right:
        case Property(one), Property(other):
            return _same_properties(one, other, columns), _none(columns)
        case (Property(name), Literal(str() as text)) | (Literal(str() as text), Property(name)):
            return columns.spread(columns.one_of(name, [encode_text(text)]), name), _none(columns)
        case (Property(name), Literal(bound, sort)) | (Literal(bound, sort), Property(name)) if sort in NUMERIC_TYPES:
            verdict = _beside_number(name, sort, columns, lambda numbers: numbers == bound)
            return verdict.yes, verdict.failed
        case _:
            return _none(columns), _none(columns)  # one is always null


def _same_properties(one: str, other: str, columns: SelectedProperties) -> Bools:
    both = columns.present(one) & columns.present(other)
    left, right = (columns.values(name).filter(pa.array(both[columns.present(name)])) for name in (one, other))
    same = np.zeros(columns.count, np.bool_)
    same[both] = pc.equal(left, right).to_numpy(zero_copy_only=False)
    return same


def _part(node: TextTest, columns: SelectedProperties) -> TruthMasks:
    if not node.text:
        return _everywhere(False, columns)
    match node.operand:
        case Property(name):
            hits = _PART_KERNELS[node.part](columns.values(name), encode_text(node.text)).to_numpy(zero_copy_only=False)
            return _two_ways(columns.spread(hits ^ node.is_negated, name), ~_none(columns), columns)
        case _:
            failed = _seen(node.operand, columns).failed
            return TruthMasks(_none(columns), ~failed, failed)
