"""Which expressions are selectors, the positions of errors, and evaluation over unusual property strings."""

import numpy as np
import pyarrow as pa
import pytest
from tests.support.cases import each_case

from sparrow.broker.sql92 import EXPRESSION_CHARS_MAX, SELECTOR_CACHE_MAX, InvalidSelector, compile_selector
from sparrow.broker.sql92.java_numbers import parse_double, parse_int32, parse_int64
from sparrow.broker.sql92.parser import TREE_HEIGHT_MAX, parse
from sparrow.broker.sql92.syntax_tree import (
    And,
    Between,
    Comparison,
    In,
    IsNull,
    Literal,
    Negated,
    Not,
    Operator,
    Or,
    Property,
    PropertyTruth,
    TextOperator,
    TextTest,
    ValueType,
)
from sparrow.model.errors import Refused

A, B, C = Property("a"), Property("b"), Property("c")
ONE, TWO = Literal(1, ValueType.INT32), Literal(2, ValueType.INT32)
A_IS_1, B_IS_2 = Comparison(Operator.EQUAL, A, ONE), Comparison(Operator.EQUAL, B, TWO)
WANTED = "a BETWEEN 3 AND 100 AND region IN ('eu', 'us') AND NOT (tag IS NULL)"

ILLEGAL = [
    ("", 0),
    ("   ", 3),
    ("a =", 3),
    ("= 3", 0),
    ("a = = 3", 4),
    ("a == 3", 3),
    ("a != 3", 2),
    ("a <> ", 5),
    ("a > 'x'", 4),
    ("'x' < a", 0),
    ("a >= TRUE", 5),
    ("a < NULL", 4),
    ("a = NULL", 4),
    ("NULL <> a", 0),
    ("TRUE = 1", 7),
    ("FALSE = 'x'", 8),
    ("a > (b = 1)", 5),
    ("a > 3 > 2", 0),
    ("NOT a > 3", 0),
    ("NOT a IN ('x')", 0),
    ("NOT a BETWEEN 1 AND 3", 0),
    ("a BETWEEN 5 AND 3", 10),
    ("a BETWEEN 1.5 AND 1", 10),
    ("a BETWEEN 'x' AND 'y'", 10),
    ("a BETWEEN 1", 11),
    ("a BETWEEN 1 OR 3", 12),
    ("a BETWEEN 1 AND NULL", 16),
    ("a IN ()", 6),
    ("a IN (1)", 6),
    ("a IN ('x',)", 10),
    ("a IN ('x' 'y')", 10),
    ("a IN 'x'", 5),
    ("a IN ('x'", 9),
    ("'x' IN ('x')", 0),
    ("-a IN ('x')", 0),
    ("a CONTAINS x", 11),
    ("a CONTAINS 123", 11),
    ("a NOT CONTAINS", 14),
    ("a STARTSWITH NULL", 13),
    ("a ENDSWITH ('x')", 11),
    ("a IS", 4),
    ("a IS 3", 5),
    ("a IS NOT 3", 9),
    ("a NOT NULL", 6),
    ("a NOT = 3", 6),
    ("(a = 1", 6),
    ("a = 1)", 5),
    ("()", 1),
    ("1", 0),
    ("'x'", 0),
    ("-a", 0),
    ("a AND 1", 6),
    ("a = 1 AND", 9),
    ("OR a = 1", 0),
    ("a = 1 AND OR b = 2", 10),
    ("a = 'x", 4),
    ("a = 'it's'", 8),
    ('a = "x"', 4),
    ("a = 1;", 5),
    ("a # 1", 2),
    ("a.b = 1", 1),
    ("é = 1", 0),
    ("a = 1 /* no end", 6),
    ("a = 007", 5),
    ("a = 0L", 5),
    ("a = 9223372036854775808", 4),
    ("a = -9223372036854775808", 5),
    ("a = 0.0", 4),
    ("a = 1e400", 4),
    ("a = 1e-400", 4),
    ("a LIKE 'x%'", 2),
    ("a + 1 > 3", 2),
    ("a * 2 = 4", 2),
    ("now() > 3", 3),
    ("UPPER(a) = 'X'", 5),
    ("SELECT * FROM t", 7),
    ("a IN (SELECT b FROM t)", 6),
    ("a = 1 b = 2", 6),
    ("a = --1\n", 8),
    ("a\xa0= 1", 1),
    ("a = @b", 4),
    ("CASE WHEN a THEN b END", 5),
    ("a = 1e", 5),
    ("a = 0x10", 5),
    ("a between 1 and 3 and", 21),
    ("NOT", 3),
    ("AND", 0),
    ("a = in", 4),
    ("a = 'x' = NULL", 10),
]
"""Expressions, and the position of the first error in each."""


@each_case(("expression", "position"), ILLEGAL)
def test_an_invalid_expression_is_refused_at_the_position_of_its_error(expression, position):
    with pytest.raises(InvalidSelector) as refused:
        compile_selector(expression)
    assert refused.value.position == position
    assert refused.value.expression == expression


@each_case(
    ("expression", "tree"),
    [
        ("a = 1 OR b = 2 AND c", Or((A_IS_1, And((B_IS_2, PropertyTruth(C)))))),
        ("(a = 1 OR b = 2) AND c", And((Or((A_IS_1, B_IS_2)), PropertyTruth(C)))),
        ("NOT a = 1", Comparison(Operator.EQUAL, Not(PropertyTruth(A)), ONE)),
        ("NOT (a = 1)", Not(A_IS_1)),
        ("a <> 1", Not(A_IS_1)),
        ("a = 1 IS NULL", IsNull(A_IS_1)),
        ("a IS NOT NULL", Not(IsNull(A))),
        ("a BETWEEN 1 AND 2 AND b = 2", And((Between(A, ONE, TWO), B_IS_2))),
        ("a NOT BETWEEN 1 AND 2", Between(A, ONE, TWO, is_negated=True)),
        ("a NOT IN ('x', 'it''s')", Not(In(A, ("x", "it's")))),
        ("a NOT ENDSWITH 'x'", TextTest(TextOperator.ENDS_WITH, A, "x", is_negated=True)),
        ("a >= - 1", Comparison(Operator.AT_LEAST, A, Literal(-1, ValueType.INT32))),
        ("a < 2147483648L", Comparison(Operator.LESS, A, Literal(2147483648, ValueType.INT64))),
        ("a < .5e1", Comparison(Operator.LESS, A, Literal(5.0, ValueType.DOUBLE))),
        ("a = -b", Comparison(Operator.EQUAL, A, Negated(B))),
    ],
)
def test_an_expression_parses_to_the_expected_tree(expression, tree):
    assert parse(expression) == tree


def test_the_error_message_marks_the_position_of_the_error():
    with pytest.raises(Refused) as refused:
        compile_selector("region IN ('eu', 'us')\nAND amount LIKE 'x'")
    sentence, excerpt, caret = str(refused.value).split("\n")
    assert sentence == "not a SQL92 selector: unexpected 'LIKE' after the end of the selector at position 34"
    assert excerpt[caret.index("^") :].startswith("LIKE 'x'")


def test_the_error_of_a_long_expression_shows_only_the_text_around_it():
    expression = " OR ".join(["abc = 'x'"] * 50) + " OR ! OR " + " OR ".join(["abc = 'x'"] * 50)
    with pytest.raises(InvalidSelector) as refused:
        compile_selector(expression)
    _, excerpt, caret = str(refused.value).split("\n")
    assert excerpt[caret.index("^")] == "!"
    assert excerpt.startswith("…")
    assert excerpt.endswith("…")
    assert len(excerpt) < 100


def test_the_length_of_an_expression_is_limited():
    longest = "a = 1".ljust(EXPRESSION_CHARS_MAX)
    assert compile_selector(longest).matches(b"a\x011\x02")
    with pytest.raises(InvalidSelector) as refused:
        compile_selector(longest + " ")
    assert refused.value.position == EXPRESSION_CHARS_MAX


@pytest.mark.parametrize(
    ("before", "after", "levels"),
    [
        ("(", ")", 1),
        ("NOT ", "", 1),
        ("NOT (", ")", 2),
        ("", " IS NULL", 1),
        ("", " = TRUE", 1),
        ("", " CONTAINS 'x'", 1),
        ("(-", " BETWEEN 1 AND 2)", 2),
        ("(-", " NOT BETWEEN 1 AND 2)", 2),
        ("(b = ", ")", 1),
    ],
)
def test_the_nesting_of_an_expression_is_limited(before, after, levels):
    count = (TREE_HEIGHT_MAX - 2) // levels
    selector = compile_selector(before * count + "a" + after * count)
    message = b"a\x01true\x02b\x01true\x02"
    assert selector.mask(pa.array([message])).tolist() == [selector.matches(message)]
    with pytest.raises(InvalidSelector, match="nested more than"):
        compile_selector(before * (TREE_HEIGHT_MAX + 1) + "a" + after * (TREE_HEIGHT_MAX + 1))


def test_a_long_chain_of_conditions_is_not_deep():
    selector = compile_selector(" OR ".join(f"a = {number}" for number in range(600)))
    assert selector.matches(b"a\x01599\x02")
    assert selector.mask(pa.array([b"a\x01599\x02", b"a\x01600\x02"])).tolist() == [True, False]


def test_an_expression_is_compiled_once_and_the_cache_is_limited():
    assert compile_selector(WANTED) is compile_selector(WANTED)
    for number in range(SELECTOR_CACHE_MAX + 1):
        compile_selector(f"a = {number}")
    assert compile_selector.cache_info().currsize == SELECTOR_CACHE_MAX


# Each is a property string and the value of `a` in it, as `properties.decode` returns it.
ODD_STRINGS = [
    (b"", None),
    (b"\x02", None),
    (b"\x01", None),
    (b"a", None),
    (b"a\x01", None),
    (b"a\x01\x02", None),
    (b"\x01v\x02", None),
    (b"aa\x01v\x02", None),
    (b"b\x01a\x01v\x02", None),
    (b"xa\x01v\x02", None),
    (b"a\x01v", b"v"),
    (b"a\x01v\x02loose", b"v"),
    (b"loose\x02a\x01v\x02", b"v"),
    (b"a\x01u\x02a\x01v\x02", b"v"),
    (b"a\x01v\x02a\x01\x02", b"v"),
    (b"a\x01v\x02b\x01a\x02", b"v"),
    (b"a\x01v\x01w\x02", b"v\x01w"),
    (b"a\x01\x00\x02", b"\x00"),
    (b"\x00a\x01v\x02", None),
    (b"a\x01v\xff\x02", b"v\xff"),
]


@each_case("neighbours", [[], [b""], [b"a\x01v\x02"], [b"a\x01v"], [b"b\x012\x02a\x01v\x02"]])
@each_case(("string", "value"), ODD_STRINGS)
def test_unusual_property_strings_evaluate_alike_for_one_message_and_for_a_column(string, value, neighbours):
    column = pa.array([*neighbours, string, *neighbours], pa.binary())
    at = len(neighbours)
    for expression, expected in [
        ("a IS NULL", value is None),
        ("a = 'v'", value == b"v"),
        ("a CONTAINS 'v'", b"v" in (value or b"")),
    ]:
        assert compile_selector(expression).matches(string) is expected
        assert compile_selector(expression).mask(column)[at] == expected


def test_a_mask_accepts_strings_binaries_chunks_nulls_slices_and_empty_columns():
    selector = compile_selector("a = 1")
    strings = ["a\x011\x02", None, "a\x012\x02", "a\x011"]
    for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        column = pa.array(strings, pa.string()).cast(kind)
        assert selector.mask(column).tolist() == [True, False, False, True]
        assert selector.mask(column[1:]).tolist() == [False, False, True]
        assert selector.mask(column[:0]).tolist() == []
        assert selector.mask(pa.chunked_array([column[:1], column[1:]])).tolist() == [True, False, False, True]


def test_a_mask_longer_than_a_block_is_evaluated_completely():
    numbers = np.arange(70_000)
    column = pa.array([f"a\x01{number}\x02" for number in numbers])
    mask = compile_selector("a BETWEEN 32000 AND 66000").mask(column)
    assert mask.dtype == np.bool_
    assert np.array_equal(mask, (numbers >= 32000) & (numbers <= 66000))


@each_case(
    ("text", "as_int32", "as_int64", "as_double"),
    [
        ("3", 3, 3, 3.0),
        ("+3", 3, 3, 3.0),
        ("-3", -3, -3, -3.0),
        ("0" * 5000 + "3", 3, 3, 3.0),
        ("2147483647", 2147483647, 2147483647, 2147483647.0),
        ("2147483648", None, 2147483648, 2147483648.0),
        ("-2147483648", -2147483648, -2147483648, -2147483648.0),
        ("9223372036854775808", None, None, 9223372036854775808.0),
        ("-9223372036854775808", None, -9223372036854775808, -9223372036854775808.0),
        ("9" * 5000, None, None, float("inf")),
        ("\u0663", 3, 3, None),
        ("3\uff13", 33, 33, None),
        ("\U0001d7db", None, None, None),
        ("3.5", None, None, 3.5),
        (" 3\t", None, None, 3.0),
        ("\u00a03", None, None, None),
        ("3f", None, None, 3.0),
        ("3D", None, None, 3.0),
        ("3L", None, None, None),
        ("1_000", None, None, None),
        ("0x10", None, None, None),
        ("-0x1.8p1", None, None, -3.0),
        ("0x1p99999", None, None, float("inf")),
        ("1e400", None, None, float("inf")),
        ("Infinity", None, None, float("inf")),
        ("inf", None, None, None),
        ("nan", None, None, None),
        (".", None, None, None),
        ("-", None, None, None),
    ],
)
def test_numbers_in_text_are_parsed_like_in_java(text, as_int32, as_int64, as_double):
    encoded = text.encode()
    assert (parse_int32(encoded), parse_int64(encoded), parse_double(encoded)) == (as_int32, as_int64, as_double)
