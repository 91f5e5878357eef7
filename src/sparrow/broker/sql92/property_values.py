"""The values of the properties in a selector, one column each, found in many property strings without decoding them.

A selector names few properties, and only those are extracted. One scan finds every 0x01; a property is where the bytes
before it are its name, after a 0x02. Equality with a text, and short runs of digits, are evaluated in place. Only other
operations copy values, into Arrow.

This is exact, because no name in a selector and no value contains a 0x02, and each string ends with one (it is added
where it is missing). `sparrow.wire.properties` has the rules.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.broker.sql92.java_numbers import INT32_MAX, INT32_MIN, NUMBER_PARSERS
from sparrow.broker.sql92.syntax_tree import ValueType
from sparrow.wire.columns.layout import Bools, Ints, copy_short_slices, data_and_offsets, unaligned_view

_SHORT_DIGITS_MAX = 9
"""This many digits always fit an int32."""
_PLAIN_DIGITS_MAX = 18
"""This many digits always fit an int64."""
_IN_PLACE_MAX = 6
"""More texts than this are looked up in Arrow's hash table, with the values copied."""


class ValuePositions(NamedTuple):
    """The positions of a property's values, for the messages that have it."""

    at: Ints
    rows: Ints | None
    """The message of each value, ascending; None if every message has one."""


class NumberColumn(NamedTuple):
    """The values as numbers. Where parsing failed, the number is undefined."""

    numbers: NDArray[Any]
    failed: Bools


class SelectedProperties:
    """Property strings, and what was found in them.

    Masks and arrays have one item for each value, not for each message.
    """

    def __init__(self, property_strings: pa.Array) -> None:
        self.count = len(property_strings)
        self._data, self._bounds = data_and_offsets(property_strings)
        ends = self._bounds[1:][self._bounds[1:] > self._bounds[:-1]]
        if (self._data[ends - 1] != 2).any():
            closed = pc.binary_join_element_wise(property_strings.cast(pa.binary()), b"", b"\x02")
            self._data, self._bounds = data_and_offsets(closed)
        self._name_ends = np.flatnonzero(self._data == 1)
        self._last_letters = self._data[self._name_ends - 1]
        self._found: dict[str, ValuePositions] = {}
        self._values: dict[str, pa.Array] = {}
        self._numbers: dict[tuple[str, ValueType], NumberColumn] = {}

    def spread(self, hits: Bools, name: str) -> Bools:
        """Turn a mask over values into a mask over messages; False where there is no value."""
        rows = self.found(name).rows
        if rows is None:
            return hits
        whole = np.zeros(self.count, np.bool_)
        whole[rows] = hits
        return whole

    def present(self, name: str) -> Bools:
        """Return which messages have the property."""
        return self.spread(np.ones(len(self.found(name).at), np.bool_), name)

    def found(self, name: str) -> ValuePositions:
        if name not in self._found:
            self._found[name] = self._find(name.encode())
        return self._found[name]

    def values(self, name: str) -> pa.Array:
        """Return the values, as binary."""
        if name not in self._values:
            at = self.found(name).at
            self._values[name] = copy_short_slices(self._data, at, self._ends(at))
        return self._values[name]

    def one_of(self, name: str, texts: list[bytes]) -> Bools:
        """Return where the value is one of these."""
        if len(texts) > _IN_PLACE_MAX:
            hits: Bools = pc.is_in(self.values(name), value_set=pa.array(texts, pa.binary())).to_numpy(False)
            return hits
        at = self.found(name).at
        hits = self._reads(at, texts[0] + b"\x02")
        for text in texts[1:]:
            hits |= self._reads(at, text + b"\x02")
        return hits

    def numbers(self, name: str, sort: ValueType) -> NumberColumn:
        if (name, sort) not in self._numbers:
            self._numbers[name, sort] = self._doubles(name) if sort is ValueType.DOUBLE else self._integers(name, sort)
        return self._numbers[name, sort]

    def _reads(self, at: Ints, wanted: bytes) -> Bools:
        """Return where these bytes are."""
        items = unaligned_view(self._data.data, f"V{len(wanted)}")
        if not len(at):
            return np.zeros(0, np.bool_)
        if at[-1] < len(items):
            hits: Bools = items[at] == np.void(wanted)
            return hits
        hits = np.zeros(len(at), np.bool_)
        inside = np.searchsorted(at, len(items))
        hits[:inside] = items[at[:inside]] == np.void(wanted)
        return hits

    def _find(self, name: bytes) -> ValuePositions:
        mark = b"\x02" + name + b"\x01"
        name_ends = self._name_ends[self._last_letters == name[-1]]  # comparing one byte first leaves few candidates
        at = name_ends - (len(mark) - 1)
        at = at[np.searchsorted(at, 0) :]
        at = _where(self._reads(at, mark), at) + len(mark)
        if self._data[: len(name) + 1].tobytes() == mark[1:]:  # the first property has no 0x02 before it
            at = np.append(len(name) + 1, at)
        at = _where(self._data[at] != 2, at)  # an empty value counts as missing
        bounds = self._bounds
        if len(at) == self.count and (at > bounds[:-1]).all() and (at < bounds[1:]).all():
            return ValuePositions(at, None)
        rows = np.searchsorted(bounds, at, side="right") - 1
        if (rows[1:] == rows[:-1]).any():  # the last of several with the same name is valid
            is_last = np.append(rows[1:] != rows[:-1], True)
            at, rows = at[is_last], rows[is_last]
        return ValuePositions(at, rows)

    @cached_property
    def _value_ends(self) -> Ints:
        return np.flatnonzero(self._data == 2)

    def _ends(self, at: Ints) -> Ints:
        return self._value_ends[np.searchsorted(self._value_ends, at)]

    def _integers(self, name: str, sort: ValueType) -> NumberColumn:
        at = self.found(name).at
        numbers = np.zeros(len(at), np.int32)
        is_open = np.ones(len(at), np.bool_)
        cursor = at.copy()
        for _ in range(_SHORT_DIGITS_MAX + 1):
            octets = self._data.take(cursor, mode="clip")
            is_open &= octets != 2  # finished values stay unchanged
            if not is_open.any():
                return NumberColumn(numbers, is_open)  # none failed
            digits = octets - np.uint8(ord("0"))
            if ((digits > 9) & is_open).any():
                break
            np.copyto(numbers, numbers * 10 + digits, where=is_open)
            cursor += 1
        values = self.values(name)
        numbers, failed = _read(values, ValueType.INT64, _is_plain(values, points_max=0, digits_max=_PLAIN_DIGITS_MAX))
        if sort is ValueType.INT32:
            failed = failed | (numbers < INT32_MIN) | (numbers > INT32_MAX)
        return NumberColumn(numbers, failed)

    def _doubles(self, name: str) -> NumberColumn:
        values = self.values(name)
        return _read(values, ValueType.DOUBLE, _is_plain(values, points_max=1, digits_max=len(self._data)))


def _where(hits: Bools, items: Ints) -> Ints:
    return items if hits.all() else items[hits]


def _is_plain(values: pa.Array, *, points_max: int, digits_max: int) -> Bools:
    """Return which values have only digits, with an optional minus and point: Arrow and Java parse them alike."""
    data, bounds = data_and_offsets(values)
    if not len(data):
        return np.zeros(len(values), np.bool_)
    digits = _count((data >= ord("0")) & (data <= ord("9")), bounds)
    points = _count(data == ord("."), bounds)
    others = np.diff(bounds) - digits - points - (data[bounds[:-1]] == ord("-"))
    is_plain: Bools = (digits > 0) & (digits <= digits_max) & (points <= points_max) & (others == 0)
    return is_plain


def _count(is_hit: Bools, bounds: NDArray[np.int32]) -> Ints:
    """Return the number of hits in each value."""
    before = np.zeros(len(is_hit) + 1, np.int64)
    np.cumsum(is_hit, out=before[1:])
    counts: Ints = np.diff(before[bounds])
    return counts


def _read(values: pa.Array, sort: ValueType, is_plain: Bools) -> NumberColumn:
    """Parse numbers: plain ones by Arrow, each distinct other one by the parser for single messages."""
    kind, dtype = (pa.float64(), np.float64) if sort is ValueType.DOUBLE else (pa.int64(), np.int64)
    if is_plain.all():
        return NumberColumn(values.cast(pa.string()).cast(kind).to_numpy(), ~is_plain)
    numbers = np.zeros(len(values), dtype)
    failed = np.zeros(len(values), np.bool_)
    numbers[is_plain] = values.filter(pa.array(is_plain)).cast(pa.string()).cast(kind).to_numpy()
    odd = values.filter(pa.array(~is_plain)).dictionary_encode()
    found = [NUMBER_PARSERS[sort](text) for text in odd.dictionary.to_pylist()]
    places = odd.indices.to_numpy()
    numbers[~is_plain] = np.array([0 if number is None else number for number in found], dtype)[places]
    failed[~is_plain] = np.array([number is None for number in found], np.bool_)[places]
    return NumberColumn(numbers, failed)


def java_order_keys(doubles: NDArray[np.float64]) -> Ints:
    """Return integers that order as `Double.compareTo`: NaN equals itself and is above all, -0.0 is below 0.0."""
    bits = np.where(np.isnan(doubles), np.nan, doubles).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)
