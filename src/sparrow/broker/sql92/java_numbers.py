"""Parses a property's text as a number, by Java's rules.

`Integer.valueOf` and `Long.valueOf` accept a sign and decimal digits of any script, but no blanks; `Double.valueOf`
accepts blanks around, `NaN`, `Infinity`, hexadecimal, and a final `f` or `d`, but only ASCII digits. Neither accepts
`1_000`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from math import copysign, inf, nan

from sparrow.broker.sql92.syntax_tree import ValueType

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_INT64_DIGITS = 19

_INTEGER = re.compile(r"([+-]?)(\d+)")
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEXADECIMAL = re.compile(rb"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_NAMED = {b"NaN": nan, b"+NaN": nan, b"-NaN": nan, b"Infinity": inf, b"+Infinity": inf, b"-Infinity": -inf}
_BLANKS = bytes(range(33))
"""What `String.trim` removes."""


def parse_int32(text: bytes) -> int | None:
    if len(text) < 10 and text.isdigit():
        return int(text)
    number = parse_int64(text)
    return number if number is not None and INT32_MIN <= number <= INT32_MAX else None


def parse_int64(text: bytes) -> int | None:
    found = _INTEGER.fullmatch(text.decode("utf-8", "replace"))
    if found is None:
        return None
    sign, digits = found.groups()
    if not digits.isascii():
        if max(digits) > "\uffff":  # Java reads UTF-16 units one by one, and half a pair is not a digit
            return None
        digits = "".join(str(unicodedata.decimal(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"  # Java accepts any number of leading zeros, int() does not
    if len(digits) > _INT64_DIGITS:
        return None
    number = -int(digits) if sign == "-" else int(digits)
    return number if INT64_MIN <= number <= INT64_MAX else None


def parse_double(text: bytes) -> float | None:
    text = text.strip(_BLANKS)
    if text in _NAMED:
        return _NAMED[text]
    if text[-1:] in (b"f", b"F", b"d", b"D"):
        text = text[:-1]
    if _DECIMAL.fullmatch(text):
        return float(text)
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text.decode())
        except OverflowError:
            return -inf if text.startswith(b"-") else inf
    return None


def java_order_key(number: float) -> tuple[bool, float, float]:
    """Return a key that orders as `Double.compareTo`: NaN equals itself and is above all, and -0.0 is below 0.0."""
    return (True, 0.0, 0.0) if number != number else (False, number, copysign(1.0, number))


NUMBER_PARSERS: dict[ValueType, Callable[[bytes], float | None]] = {
    ValueType.INT32: parse_int32,
    ValueType.INT64: parse_int64,
    ValueType.DOUBLE: parse_double,
}
