"""Parse the property strings of many records at once, with one scan for the two separators.

The rules are those of `properties.decode`, to the letter. (`find_property` looks for a single name instead, where it
can.)
There are two cases:

- *regular*: every string has the same names in the same order, as the messages of one producer do. A property is then
  every k-th value, and there are no duplicate names.
- all others: Arrow's hash table numbers the names, and (string, number) identifies duplicates and single names.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparrow.wire.columns.layout import (
    Ints,
    binary_array,
    copy_short_slices,
    data_and_offsets,
    reinterpret,
    slice_slots,
    take_every,
)

PROPERTY_MAP_TYPE = pa.map_(pa.string(), pa.string())

_REGULAR_NAMES_MAX = 64
"""With more names, comparing each string with the first one costs more than it saves."""


class ParsedProperties:
    """The names and values in a binary array of property strings. The caller guarantees that they are UTF-8."""

    def __init__(self, strings: pa.Array) -> None:
        self._data, bounds = data_and_offsets(strings)
        self._rows = len(strings)
        self._name_at, self._name_end, self._value_end, self._first = _entries(self._data, bounds)

    def __len__(self) -> int:
        return self._rows

    @property
    def held_bytes(self) -> int:
        return len(self._data)

    def get(self, name: str) -> pa.Array:
        """Return the value of one property in each string, as binary; null where it is absent."""
        if self._regular_names is not None:
            if name.encode() not in self._regular_names:
                return pa.nulls(self._rows, pa.binary())
            count = len(self._regular_names)
            return take_every(self._values, self._rows, 2 * count, 2 * self._regular_names.index(name.encode()))
        numbers, names = self._numbered_names
        hits = np.flatnonzero(numbers == names.index(pa.scalar(name.encode(), pa.binary())).as_py())
        entry = np.zeros(self._rows, np.int64)
        is_absent = np.ones(self._rows, np.bool_)
        entry[self._owner[hits]] = hits  # of duplicates, the last one is assigned last and wins
        is_absent[self._owner[hits]] = False
        return self._values.take(pa.array(2 * entry, mask=is_absent))

    def map(self) -> pa.Array:
        """Return all properties as map<string, string>."""
        if self._regular_names is not None:
            names, values, first = self._names, take_every(self._values, len(self._name_at), 2), self._first
        else:
            kept = self._without_duplicates()
            numbers, distinct = self._numbered_names
            names = distinct.take(pa.array(numbers[kept]))
            values = self._values.take(pa.array(2 * kept))
            first = np.searchsorted(kept, self._first)
        return pa.MapArray.from_arrays(
            pa.array(first.astype(np.int32)),
            reinterpret(names, pa.string()),
            reinterpret(values, pa.string()),
            type=PROPERTY_MAP_TYPE,
        )

    @cached_property
    def _values(self) -> pa.Array:
        return slice_slots(self._data, self._name_end + 1, self._value_end)

    @cached_property
    def _names(self) -> pa.Array:
        return copy_short_slices(self._data, self._name_at, self._name_end)

    @cached_property
    def _regular_names(self) -> list[bytes] | None:
        """The names of a regular array, in order; None if it is not regular."""
        count = int(self._first[1]) if self._rows else 0
        if not 0 < count <= _REGULAR_NAMES_MAX or len(self._name_at) != count * self._rows:
            return None
        if not (self._first[1:] == np.arange(count, len(self._name_at) + 1, count)).all():
            return None
        names: list[bytes] = self._names[:count].to_pylist()
        data, offsets = data_and_offsets(self._names)
        together = b"".join(names)
        if len(set(names)) < count or len(data) != len(together) * self._rows:
            return None
        at = np.arange(0, len(data), len(together))
        for i, length in enumerate(accumulate(map(len, names))):
            if not (offsets[i + 1 :: count] == at + length).all():
                return None
        return names if pa.py_buffer(data).equals(pa.py_buffer(together * self._rows)) else None

    @cached_property
    def _numbered_names(self) -> tuple[NDArray[np.int32], pa.Array]:
        """The number of each entry's name, and the distinct names by number."""
        encoded = self._names.dictionary_encode()
        return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary

    @cached_property
    def _owner(self) -> Ints:
        """The string that each entry belongs to."""
        return np.repeat(np.arange(self._rows), np.diff(self._first))

    def _without_duplicates(self) -> Ints:
        """Return the effective entries: of duplicates in one string, the last."""
        numbers, names = self._numbered_names
        mark = self._owner * max(len(names), 1) + numbers
        ordered = np.sort(mark)
        if not (ordered[1:] == ordered[:-1]).any():
            return np.arange(len(mark))
        order = np.argsort(mark, kind="stable")
        is_superseded = mark[order[1:]] == mark[order[:-1]]
        return np.sort(np.append(order[:-1][~is_superseded], order[-1:]))


def find_property(strings: pa.Array, name: str) -> pa.Array | None:
    """Return one property of each string, as `ParsedProperties.get` does, without parsing the others.

    Return None if that is not possible: the name occurs twice in a string, or at the end of another name or value.
    """
    data, bounds = data_and_offsets(strings)
    if not len(data):
        return pa.nulls(len(strings), pa.binary())
    word = name.encode() + b"\x01"
    at = pc.find_substring(strings, word).to_numpy(zero_copy_only=False)
    is_there = at >= 0
    if data.tobytes().count(word) != np.count_nonzero(is_there):
        return None
    first, last = bounds[:-1], bounds[1:]
    if ((at > 0) & (data[np.maximum(first + at - 1, 0)] != 2)).any():
        return None
    value_at = np.where(is_there, first + at + len(word), first).astype(np.int32)
    # A value ends at the first 0x02 after it, or with its string.
    onward = binary_array(pa.py_buffer(data), np.append(value_at, np.int32(len(data))))
    length = pc.find_substring(onward, b"\x02").to_numpy(zero_copy_only=False)
    value_end = np.where(length < 0, last, np.minimum(value_at + length, last))
    values = copy_short_slices(data, value_at.astype(np.int64), np.maximum(value_end, value_at).astype(np.int64))
    is_value = is_there & (value_end > value_at)
    return values if is_value.all() else pc.if_else(pa.array(is_value), values, pa.scalar(None, pa.binary()))


def _entries(data: NDArray[np.uint8], bounds: NDArray[np.int32]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return name starts, name ends (the 0x01), value ends, and the number of entries before each string.

    Only entries with a name and a value are included, in order.
    """
    if not len(data):
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing, np.zeros(len(bounds), np.int64)
    marks = np.flatnonzero(data < 3)
    kinds = data[marks]
    if not kinds.all():  # U+0000 is ordinary text
        marks, kinds = marks[kinds != 0], kinds[kinds != 0]
    is_paired = len(kinds) > 0 and not len(kinds) % 2 and bool((kinds.view("<u2") == 0x0201).all())
    if is_paired and (data[bounds[1:] - 1] == 2).all():
        # Separators alternate and each string ends with 0x02, so no entry crosses into the next string.
        # (For an empty string this tests the last byte of the string before it, which does no harm.)
        name_end, value_end = marks[0::2], marks[1::2]
        name_at = np.zeros(len(name_end), np.int64)
        np.add(value_end[:-1], 1, out=name_at[1:])
        is_all_whole = marks[0] > 0 and (marks[1:] - marks[:-1]).min() > 1
    else:
        name_at, name_end, value_end = _odd_entries(data, bounds, marks, kinds)
        is_all_whole = False
    if not is_all_whole:
        is_whole = (name_end > name_at) & (value_end - name_end > 1)
        name_at, name_end, value_end = name_at[is_whole], name_end[is_whole], value_end[is_whole]
    return name_at, name_end, value_end, _first_entries(name_at, value_end, bounds)


def _odd_entries(
    data: NDArray[np.uint8], bounds: NDArray[np.int32], marks: Ints, kinds: NDArray[np.uint8]
) -> tuple[Ints, Ints, Ints]:
    """Return the same where separators are missing or occur in a value, including incomplete entries."""
    ends = bounds[1:].astype(np.int64)
    is_open = (ends > bounds[:-1]) & (data[ends - 1] != 2)
    # The end of an open string replaces its missing 0x02 and has width 0. It sorts before a 0x02 at the same position,
    # which is the first byte of the next string.
    stops = np.concatenate((ends[is_open], marks[kinds == 2]))
    widths = np.ones(len(stops), np.int64)
    widths[: np.count_nonzero(is_open)] = 0
    order = np.argsort(stops, kind="stable")
    value_end = stops[order]
    name_at = np.zeros(len(stops), np.int64)
    name_at[1:] = value_end[:-1] + widths[order][:-1]
    splits = np.append(marks[kinds == 1], len(data))
    name_end = splits[np.searchsorted(splits, name_at)]
    return name_at, name_end, value_end


def _first_entries(name_at: Ints, value_end: Ints, bounds: NDArray[np.int32]) -> Ints:
    """Return the number of entries before each string, and before the end."""
    rows = len(bounds) - 1
    if rows and len(name_at) and len(name_at) % rows == 0:  # equally many in each: cheaper to test than to search
        count = len(name_at) // rows
        if (value_end[count - 1 :: count] + 1 == bounds[1:]).all():
            return np.arange(0, len(name_at) + 1, count)
    return np.searchsorted(name_at, bounds)
