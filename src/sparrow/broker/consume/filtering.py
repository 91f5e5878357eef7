"""Filtering of pulled records by a subscription. The store filters tags; SQL92 conditions are applied here."""

from __future__ import annotations

import numpy as np

from sparrow.broker.sql92 import Selector
from sparrow.store.spi import ReadResult, Slice
from sparrow.wire import columns, record

EXAMINED_MESSAGES_MAX = 800
"""How many messages one read examines when a condition may reject most of them."""
FILTER_WORK_MAX = 4 << 20
"""How much filtering one read may do on the event loop: bytes of properties, times the properties that the condition
names. That takes about 5 ms."""
_RECORD_WORK = 100
"""The work of a message with few properties, in the same unit."""
_COLUMNAR_MIN = 256
"""With this many records or more, evaluating columns is faster than evaluating single records."""


def messages_to_examine(count_max: int, selector: Selector | None) -> int:
    """Return how many messages to read in order to return `count_max`."""
    return count_max if selector is None else max(count_max, EXAMINED_MESSAGES_MAX)


def apply_selector(found: ReadResult, selector: Selector | None, count_max: int) -> ReadResult:
    """Return the result of a read without the messages that the condition rejects.

    It may end before messages that the read found: there is a limit for the work of one call.
    """
    if selector is None or not isinstance(found, Slice) or not found.sizes:
        return found
    records, next_offset = list(found.records()), found.next_offset
    if filter_work(found, selector) > FILTER_WORK_MAX:
        examined = _count_within(records, FILTER_WORK_MAX // selector.property_reads)
        if examined < len(records):
            next_offset = type(next_offset)(record.queue_offset_of(records[examined]))
            records = records[:examined]
    matching = [raw for raw, is_wanted in zip(records, _wanted(records, selector), strict=True) if is_wanted]
    if len(matching) > count_max:
        next_offset = type(next_offset)(record.queue_offset_of(matching[count_max]))
        matching = matching[:count_max]
    return Slice(matching, [len(raw) for raw in matching], next_offset, found.bounds)


def filter_work(found: ReadResult, selector: Selector | None) -> int:
    """Return the most work that the condition can have with the records of a read."""
    if selector is None or not isinstance(found, Slice):
        return 0
    return (sum(found.sizes) + _RECORD_WORK * len(found.sizes)) * selector.property_reads


def _count_within(records: list[memoryview], work_max: int) -> int:
    """Return how many of the records can be examined, one at least."""
    work = 0
    for number, raw in enumerate(records):
        work += _RECORD_WORK + len(record.properties_of(raw))
        if work > work_max:
            return max(1, number)
    return len(records)


def _wanted(records: list[memoryview], selector: Selector) -> list[bool]:
    if len(records) < _COLUMNAR_MIN:
        return [selector.matches(record.properties_of(raw)) for raw in records]
    batch = columns.decode(b"".join(records), columns=["properties_raw"], expand=False)
    mask: list[bool] = np.asarray(selector.mask(batch.column(0))).tolist()
    return mask
