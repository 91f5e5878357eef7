"""Filtering of pulled records by a subscription. The store filters tags; SQL92 conditions are applied here."""

from __future__ import annotations

import numpy as np

from sparrow.broker.sql92 import Selector
from sparrow.store.spi import ReadResult, Slice
from sparrow.wire import columns, record

EXAMINED_MESSAGES_MAX = 800
"""How many messages one read examines when a condition may reject most of them."""
_COLUMNAR_MIN = 256
"""With this many records or more, evaluating columns is faster than evaluating single records."""


def messages_to_examine(count_max: int, selector: Selector | None) -> int:
    """Return how many messages to read in order to return `count_max`."""
    return count_max if selector is None else max(count_max, EXAMINED_MESSAGES_MAX)


def apply_selector(found: ReadResult, selector: Selector | None, count_max: int) -> ReadResult:
    """Return the result of a read without the messages that the condition rejects."""
    if selector is None or not isinstance(found, Slice) or not found.sizes:
        return found
    records, next_offset = list(found.records()), found.next_offset
    matching = [raw for raw, is_wanted in zip(records, _wanted(records, selector), strict=True) if is_wanted]
    if len(matching) > count_max:
        next_offset = type(next_offset)(record.queue_offset_of(matching[count_max]))
        matching = matching[:count_max]
    return Slice(matching, [len(raw) for raw in matching], next_offset, found.bounds)


def _wanted(records: list[memoryview], selector: Selector) -> list[bool]:
    if len(records) < _COLUMNAR_MIN:
        return [selector.matches(record.properties_of(raw)) for raw in records]
    batch = columns.decode(b"".join(records), columns=["properties_raw"], expand=False)
    mask: list[bool] = np.asarray(selector.mask(batch.column(0))).tolist()
    return mask
