"""A selector over many messages at once: each node of the tree becomes masks over all of them.

The rules are those of `rows`, to the letter. A message's answer is one of four, so a condition is three masks: *yes*,
*no*, and *failed* for what `rows` calls unanswerable; a message in none of them is null. Nothing is cut short here:
both sides of AND and OR are worked out for all, and the masks say what a look from left to right would have met.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparrow.broker.sql92.comparisons import TESTS, Unanswerable
from sparrow.broker.sql92.property_values import Columns, ranks
from sparrow.broker.sql92.row_evaluator import answer_to, encoded
from sparrow.broker.sql92.syntax_tree import (
    NUMBERS,
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
    Part,
    PartTest,
    Property,
    Sort,
    Truth,
    names_in,
    sort_of,
)
from sparrow.wire.columns.layout import Bools

_PART_KERNELS = {Part.CONTAINS: pc.match_substring, Part.STARTS_WITH: pc.starts_with, Part.ENDS_WITH: pc.ends_with}
_TRUES = [bytes(letters) for letters in product(*zip(b"true", b"TRUE", strict=True))]
"""`true` in every mixture of cases: one look in a set is quicker than lower-casing a column."""

_BLOCK_ROWS = 32768
"""Positions in so many strings fit a processor's cache."""


class Verdict(NamedTuple):
    yes: Bools
    no: Bools
    failed: Bools


def mask(condition: Condition, property_strings: Any) -> Bools:
    """For each property string of an Arrow array, whether the condition holds."""
    strings = property_strings
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    if strings.type not in (pa.binary(), pa.string()):
        strings = strings.cast(pa.binary())
    if strings.null_count:
        strings = strings.fill_null("" if strings.type == pa.string() else b"")
    blocks = (strings[at : at + _BLOCK_ROWS] for at in range(0, len(strings), _BLOCK_ROWS))
    return np.concatenate([np.zeros(0, np.bool_), *(_verdict(condition, Columns(block)).yes for block in blocks)])


def _verdict(node: Condition, columns: Columns) -> Verdict:
    match node:
        case And():
            return _all(node.conditions, columns)
        case Or():
            # The opposite of AND over the opposites, and it stops at the same places.
            return _opposite(_all(node.conditions, columns, are_opposite=True))
        case Not():
            return _opposite(_verdict(node.condition, columns))
        case Between():
            return _verdict(node.spelled_out(), columns)
        case Literal():
            return _everywhere(node.value, columns)  # type: ignore[arg-type]
        case Truth():
            present = columns.present(node.property.name)
            return Verdict(_none(columns), present, _none(columns))
        case In():
            name = node.property.name
            hits = columns.one_of(name, [encoded(text) for text in node.texts])
            return _two_ways(columns.spread(hits, name), columns.present(name), columns)
        case _ if not any(names_in(node)):  # literals only: as true of one message as of all
            return _constant(node, columns)
        case Comparison(Operator.EQUAL, left, right):
            return _equal(left, right, columns)
        case Comparison():
            return _ordered(node, columns)
        case PartTest():
            return _part(node, columns)
        case IsNull():
            seen = _seen(node.operand, columns)
            return Verdict(~seen.present & ~seen.failed, seen.present, seen.failed)


# -- logic -------------------------------------------------------------------------------------------


def _none(columns: Columns) -> Bools:
    return np.zeros(columns.count, np.bool_)


def _constant(node: Condition, columns: Columns) -> Verdict:
    try:
        return _everywhere(answer_to(node)(b"\x02\x02"), columns)
    except Unanswerable:
        return Verdict(_none(columns), _none(columns), ~_none(columns))


def _everywhere(answer: bool | None, columns: Columns) -> Verdict:
    return Verdict(np.full(columns.count, answer is True), np.full(columns.count, answer is False), _none(columns))


def _two_ways(hits: Bools, known: Bools, columns: Columns) -> Verdict:
    return Verdict(hits, known & ~hits, _none(columns))


def _opposite(verdict: Verdict) -> Verdict:
    return Verdict(verdict.no, verdict.yes, verdict.failed)


def _all(conditions: tuple[Condition, ...], columns: Columns, *, are_opposite: bool = False) -> Verdict:
    verdicts = (_verdict(condition, columns) for condition in conditions)
    yes, no, failed = _everywhere(True, columns)
    for found in map(_opposite, verdicts) if are_opposite else verdicts:
        # What a message was decided by earlier is not looked at again: a no, or a failure.
        no, failed = no | (found.no & ~failed), failed | (found.failed & ~no)
        yes = yes & found.yes
    return Verdict(yes, no, failed)


# -- operands ----------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """An operand, looked at once: each further look at a nested one would double the work."""

    present: Bools
    failed: Bools
    true: Bools
    """Where it is a condition that holds."""


def _seen(node: Node, columns: Columns) -> Seen:
    none = _none(columns)
    match node:
        case Property():
            return Seen(columns.present(node.name), none, none)
        case Literal():
            return Seen(
                np.full(columns.count, node.value is not None), none, np.full(columns.count, node.value is True)
            )
        case Negated():
            return Seen(none, _seen(node.operand, columns).failed, none)
        case _:
            verdict = _verdict(node, columns)
            return Seen(verdict.yes | verdict.no, verdict.failed, verdict.yes)


def _ordered(node: Comparison, columns: Columns) -> Verdict:
    left, right, test = node.left, node.right, TESTS[node.operator]
    match left, right:
        case Property(name), Literal(bound, sort) if sort in NUMBERS:
            return _beside_number(name, sort, columns, lambda numbers: test(numbers, bound))
        case Literal(bound, sort), Property(name) if sort in NUMBERS:
            return _beside_number(name, sort, columns, lambda numbers: test(bound, numbers))
        case Property(one), Property(other):
            return _two_properties(one, other, test, columns)
        case _:
            # One of them is a minus before what is no number: null, unless looking at it fails.
            seen = _seen(left, columns)
            failed = seen.failed | (seen.present & _seen(right, columns).failed)
            return Verdict(_none(columns), _none(columns), failed)


def _beside_number(name: str, sort: Sort, columns: Columns, test: Any) -> Verdict:
    numbers, failed = columns.numbers(name, sort)
    if sort is Sort.DOUBLE:
        numbers = np.where(np.isnan(numbers), np.inf, numbers)  # NaN is above all in Java, and no literal is infinite
    hits = test(numbers) & ~failed
    yes, no, failed = (columns.spread(part, name) for part in (hits, ~hits & ~failed, failed))
    return Verdict(yes, no, failed)


def _two_properties(one: str, other: str, test: Any, columns: Columns) -> Verdict:
    known = columns.present(one) & columns.present(other)
    ordered, failed = [], _none(columns)
    for name in (one, other):
        numbers, is_bad = columns.numbers(name, Sort.DOUBLE)
        whole = np.zeros(columns.count, np.int64)
        whole[columns.present(name)] = ranks(numbers)
        ordered.append(whole)
        failed |= columns.spread(is_bad, name)
    failed &= known
    known &= ~failed
    hits = test(*ordered)
    return Verdict(known & hits, known & ~hits, failed)


def _equal(left: Node, right: Node, columns: Columns) -> Verdict:
    one, other = _seen(left, columns), _seen(right, columns)
    both = one.present & other.present
    if Sort.BOOLEAN in (sort_of(left), sort_of(right)):
        same, cannot = _same_booleans(left, right, one, other, columns)
    else:
        same, cannot = _same(left, right, columns)
    failed = one.failed | other.failed | (both & cannot)
    yes = ((both & same) | (~one.present & ~other.present)) & ~failed
    # Java's rule leans: null on the left makes null, on the right it makes false.
    return Verdict(yes, one.present & ~yes & ~failed, failed)


def _same_booleans(left: Node, right: Node, one: Seen, other: Seen, columns: Columns) -> tuple[Bools, Bools]:
    """Where two operands, one of them a boolean and neither null, are equal, and where they cannot be compared."""
    none = _none(columns)
    match left, sort_of(left), sort_of(right):
        case _, Sort.BOOLEAN, Sort.BOOLEAN:
            return one.true == other.true, none
        case _, Sort.BOOLEAN, Sort.TEXT:
            return none, ~none
        case Property(name), _, _:
            return columns.spread(columns.one_of(name, _TRUES), name) == other.true, none
        case Literal(str() as text), _, _:
            return other.true == (text.lower() == "true"), none
        case _:
            return none, none


def _same(left: Node, right: Node, columns: Columns) -> tuple[Bools, Bools]:
    """The same for texts and numbers."""
    match left, right:
        case Property(one), Property(other):
            return _same_properties(one, other, columns), _none(columns)
        case (Property(name), Literal(str() as text)) | (Literal(str() as text), Property(name)):
            return columns.spread(columns.one_of(name, [encoded(text)]), name), _none(columns)
        case (Property(name), Literal(bound, sort)) | (Literal(bound, sort), Property(name)) if sort in NUMBERS:
            verdict = _beside_number(name, sort, columns, lambda numbers: numbers == bound)
            return verdict.yes, verdict.failed
        case _:
            return _none(columns), _none(columns)  # one is always null


def _same_properties(one: str, other: str, columns: Columns) -> Bools:
    both = columns.present(one) & columns.present(other)
    left, right = (columns.values(name).filter(pa.array(both[columns.present(name)])) for name in (one, other))
    same = np.zeros(columns.count, np.bool_)
    same[both] = pc.equal(left, right).to_numpy(zero_copy_only=False)
    return same


def _part(node: PartTest, columns: Columns) -> Verdict:
    if not node.text:
        return _everywhere(False, columns)
    match node.operand:
        case Property(name):
            hits = _PART_KERNELS[node.part](columns.values(name), encoded(node.text)).to_numpy(zero_copy_only=False)
            return _two_ways(columns.spread(hits ^ node.is_negated, name), ~_none(columns), columns)
        case _:
            failed = _seen(node.operand, columns).failed
            return Verdict(_none(columns), ~failed, failed)
