"""Three evaluators of one selector: for one message, for a column, and the slow reference evaluator below.

The reference evaluator shares no code with the others. It walks the nested tuples from which an expression was
written, not the parsed tree, over decoded properties; therefore it tests the parser too.
"""

import math
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparrow.broker.sql92 import InvalidSelector, compile_selector
from sparrow.wire import properties

# -- expressions, as nested tuples and as text ------------------------------------------------------

NAMES = ["a", "b", "$c_1"]
integers = st.one_of(
    st.integers(0, 12),
    st.sampled_from([2**31 - 1, 2**31, 3_000_000_000, 2**53 + 1, 2**63 - 1]),
    st.integers(0, 2**63 - 1),
)
doubles = st.one_of(st.sampled_from([0.5, 3.0, 3.5, 9007199254740992.0]), st.floats(1e-300, 1e300))
texts = st.one_of(
    st.sampled_from(["", "x", "true", "3", "it's", "é", "😀", "xyx"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)
properties_named = st.sampled_from(NAMES).map(lambda name: ("property", name))
numbers = st.one_of(integers.map(lambda value: ("number", value)), doubles.map(lambda value: ("number", value)))
signed = st.one_of(numbers, numbers.map(lambda number: ("minus", number)))


def _conditions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    ordered = st.one_of(properties_named, signed, st.one_of(properties_named, inner).map(lambda node: ("minus", node)))
    alike = st.one_of(ordered, inner, texts.map(lambda text: ("text", text)))
    signs = st.sampled_from(["<", "<=", ">", ">="])
    parts = st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])
    return st.one_of(
        st.tuples(signs, ordered, ordered),
        st.tuples(st.sampled_from(["=", "<>"]), alike, alike),
        st.tuples(st.sampled_from(["between", "not between"]), ordered, ordered, ordered),
        st.tuples(st.sampled_from(["in", "not in"]), properties_named, st.lists(texts, min_size=1, max_size=9)),
        st.tuples(st.sampled_from(["is null", "is not null"]), alike),
        st.tuples(st.sampled_from(["part", "not part"]), parts, alike, texts),
        st.tuples(st.just("not"), st.one_of(inner, properties_named)),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(st.one_of(inner, properties_named), min_size=2, max_size=4)),
    )


constants = st.sampled_from([("constant", True), ("constant", False), ("constant", None)])
expressions = st.recursive(_conditions(constants), _conditions, max_leaves=6)


def _written(node: Any) -> str:
    match node:
        case ("property", name):
            return name
        case ("number", value):
            return repr(value)
        case ("text", text):
            return _quoted(text)
        case ("constant", value):
            return {True: "TRUE", False: "FALSE", None: "NULL"}[value]
        case ("minus", inner):
            return f"-({_written(inner)})"
        case ("not", inner):
            return f"NOT ({_written(inner)})"
        case ("and" | "or" as word, terms):
            return f" {word} ".join(f"({_written(term)})" for term in terms)
        case ("between" | "not between" as word, value, low, high):
            return f"({_written(value)}) {word} ({_written(low)}) AND ({_written(high)})"
        case ("in" | "not in" as word, name, found):
            return f"{_written(name)} {word} ({', '.join(map(_quoted, found))})"
        case ("is null" | "is not null" as word, inner):
            return f"({_written(inner)}) {word}"
        case ("part" | "not part" as word, part, inner, text):
            return f"({_written(inner)}) {word.replace('part', part)} {_quoted(text)}"
        case (sign, left, right):
            return f"({_written(left)}) {sign} ({_written(right)})"
    raise AssertionError(node)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_refused(node: Any) -> bool:
    """Return whether RocketMQ refuses this expression, among those that the strategies above generate."""
    match node:
        case ("=" | "<>", left, right):
            if ("constant", None) in (left, right):
                return True
            if left[0] == "constant" and right[0] in ("number", "text"):
                return True
        case ("between", _, ("number", low), ("number", high)):
            if _compared(_evaluated(("number", low), {}), _evaluated(("number", high), {})) > 0:
                return True
    parts = [part for field in node for part in (field if isinstance(field, list) else [field])]
    return any(_is_refused(part) for part in parts if isinstance(part, tuple))


# -- the reference evaluator ------------------------------------------------------------------------


class Thrown(Exception):
    """RocketMQ's evaluation throws here; the broker treats it as no match."""


def _class_of(value: Any) -> str:
    """Return the Java class of a value. The class of a literal depends on its size before the minus sign is applied."""
    if isinstance(value, Number):
        return value.kind
    return {str: "String", bool: "Boolean"}[type(value)]


class Number:
    def __init__(self, value: float, kind: str) -> None:
        self.value, self.kind = value, kind


def _evaluated(node: Any, message: dict[str, str]) -> Any:
    match node:
        case ("property", name):
            return message.get(name)
        case ("text" | "constant", value):
            return value
        case ("number", value):
            return Number(value, "Double" if isinstance(value, float) else "Integer" if value < 2**31 else "Long")
        case ("minus", inner):
            value = _evaluated(inner, message)
            return Number(-value.value, value.kind) if isinstance(value, Number) else None
        case ("not", inner):
            value = _condition(inner, message)
            return None if value is None else not value
        case ("and" | "or" as word, terms):
            return _joined(word, [lambda term=term: _condition(term, message) for term in terms])
        case ("between", value, low, high):
            sides = (">=", value, low), ("<=", value, high)
            return _joined("and", [lambda side=side: _evaluated(side, message) for side in sides])
        case ("not between", value, low, high):
            sides = ("<", value, low), (">", value, high)
            return _joined("or", [lambda side=side: _evaluated(side, message) for side in sides])
        case ("in" | "not in" as word, name, found):
            value = _evaluated(name, message)
            return None if value is None else (value in found) == (word == "in")
        case ("is null", inner):
            return _evaluated(inner, message) is None
        case ("is not null", inner):
            return _evaluated(inner, message) is not None
        case ("part" | "not part" as word, part, inner, text):
            if not text:
                return False
            value = _evaluated(inner, message)
            if not isinstance(value, str):
                return False
            has = {"CONTAINS": str.__contains__, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith}[part]
            return has(value, text) == (word == "part")
        case ("=" | "<>" as sign, left, right):
            answer = _equal(_evaluated(left, message), _evaluated(right, message))
            return answer if sign == "=" or answer is None else not answer
        case (sign, left, right):
            one = _evaluated(left, message)
            other = None if one is None else _evaluated(right, message)
            if one is None or other is None:
                return None
            if isinstance(one, str) and isinstance(other, str):
                one, other = Number(_double(one), "Double"), Number(_double(other), "Double")
            order = _compared(one, other)
            return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[sign]
    raise AssertionError(node)


def _condition(node: Any, message: dict[str, str]) -> bool | None:
    """Evaluate a condition. A property in the place of a condition is text, and text is not true."""
    value = _evaluated(node, message)
    return False if isinstance(value, str) else value


def _joined(word: str, terms: list[Any]) -> bool | None:
    answers = []
    for term in terms:
        answers.append(term())
        if answers[-1] is (word == "or"):
            return word == "or"
    return None if None in answers else word == "and"


def _equal(one: Any, other: Any) -> bool | None:
    if one is None and other is None:
        return True
    if one is None:
        return None
    if other is None:
        return False
    return _compared(one, other) == 0


def _compared(one: Any, other: Any) -> int:
    """Compare like Java's compareTo after RocketMQ's conversions; return -1 for values that cannot be compared."""
    left, right = _class_of(one), _class_of(other)
    if left == right == "String":
        return 0 if one == other else -1
    if left == "Boolean":
        if right == "String":
            raise Thrown
        return int(one) - int(other) if right == "Boolean" else -1
    if right == "Boolean":
        return int(one.lower() == "true") - int(other) if left == "String" else -1
    kind = right if left == "String" else left if right == "String" else max(left, right, key=RANKS.index)
    first, second = (
        READ[kind](side) if isinstance(side, str) else float(side.value) if kind == "Double" else side.value
        for side in (one, other)
    )
    if kind != "Double":
        return (first > second) - (first < second)
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) - math.isnan(second)
    if first == second == 0:
        return int(math.copysign(1, first) - math.copysign(1, second))
    return (first > second) - (first < second)


def _whole(text: str, bits: int) -> int:
    if not re.fullmatch(r"[+-]?\d+", text) or any(char > "\uffff" for char in text):
        raise Thrown
    number = int(text)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise Thrown
    return number


def _double(text: str) -> float:
    text = text.strip("".join(map(chr, range(33))))
    if re.fullmatch(r"[+-]?(NaN|Infinity)", text):
        return float(text)
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", text):
        return float(text.rstrip("fFdD"))
    if re.fullmatch(r"[+-]?0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?", text):
        return float.fromhex(re.sub(r"[fFdD]?$", "", text))
    raise Thrown


RANKS = ["Integer", "Long", "Double"]
READ = {"Integer": lambda text: _whole(text, 32), "Long": lambda text: _whole(text, 64), "Double": _double}


# -- messages ---------------------------------------------------------------------------------------

values = st.one_of(
    st.integers(-12, 12).map(str),
    st.sampled_from(
        ["", "true", "TRUE", "False", "x", "xyx", "it's", "é", "😀", "x\x01y", "3\x00", "0003", "1_0", "-", "--3"]
    ),
    st.sampled_from(
        ["3.5", "-0.0", "0.0", "+3", "NaN", "Infinity", "-Infinity", " 3 ", "3d", "0x1p1", "5.", ".5", "1e2"]
    ),
    st.sampled_from(["1e", "٣", "𝟛", "123456789", "1234567890"]),
    st.sampled_from([2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63]).map(str),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), max_size=4),
)
entries = st.one_of(
    st.tuples(st.sampled_from(NAMES), values).map(lambda entry: f"{entry[0]}\x01{entry[1]}\x02"),
    st.sampled_from(["loose", "\x02", "\x01", "xa\x013\x02", "UNIQ_KEY\x017F000001\x02"]),
)
regular = st.tuples(values, values, values).map(
    lambda three: "".join(f"{n}\x01{v}\x02" for n, v in zip(NAMES, three, strict=True))
)
messages = st.one_of(regular, st.lists(entries, max_size=5).map("".join)).map(str.encode)


@given(expressions, st.lists(messages, max_size=8))
@example(
    ("or", [(">", ("property", "a"), ("number", 3)), ("=", ("property", "b"), ("text", "x"))]),
    [b"a\x01no\x02b\x01x\x02"],
)
@example(("between", ("property", "a"), ("number", 5.5), ("number", 10)), [b"a\x013.5\x02", b"a\x016.5\x02"])
@example(("=", ("minus", ("property", "a")), ("property", "b")), [b"a\x013\x02", b"b\x013\x02"])
@example(("<", ("property", "a"), ("property", "b")), [b"a\x01-0.0\x02b\x010.0\x02", b"a\x01Infinity\x02b\x01NaN\x02"])
def test_all_three_evaluators_give_the_same_answer(expression, strings):
    if _is_refused(expression):
        with pytest.raises(InvalidSelector):
            compile_selector(_written(expression))
        return
    selector = compile_selector(_written(expression))
    expected = []
    for string in strings:
        try:
            expected.append(_condition(expression, properties.decode(string)) is True)
        except Thrown:
            expected.append(False)
    assert [selector.matches(string) for string in strings] == expected
    assert selector.mask(pa.array(strings, pa.binary())).tolist() == expected


WORDS = ["a", "b", "$c", "NOT", "AND", "OR", "IN", "IS", "NULL", "TRUE", "BETWEEN", "CONTAINS", "ENDSWITH"]
SIGNS = [
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "(",
    ")",
    ",",
    "+",
    "-",
    "--",
    "/*",
    "*/",
    ";",
    "#",
    "1",
    "0.5",
    "'x'",
    "'",
    "\n",
]


@given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(WORDS + SIGNS), max_size=12).map(" ".join)))
def test_any_text_compiles_or_is_refused_with_a_position_inside_it(text):
    refusal = None
    try:
        selector = compile_selector(text)
    except InvalidSelector as refused:
        refusal = refused
    if refusal is not None:
        assert 0 <= refusal.position <= len(text)
        assert str(refusal).split("\n")[-1].strip() == "^"
        return
    message = b"a\x013\x02b\x01x\x02"
    assert selector.mask(pa.array([message])).tolist() == [selector.matches(message)]
