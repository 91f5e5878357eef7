"""Reading only what a subscription wants: tags are looked up in the store's queues, conditions in the records."""

from __future__ import annotations

import numpy as np

from sparrow.broker.sql92 import Selector
from sparrow.store.spi import ReadResult, Slice
from sparrow.wire import columns, record

EXAMINED_MESSAGES_MAX = 800
"""Messages that one read looks at when a condition lets few of them through."""
_MANY = 256
"""From so many on, columns are quicker than one after the other."""


def messages_to_examine(count_max: int, selector: Selector | None) -> int:
    """How many messages to read in order to answer with `count_max`."""
    return count_max if selector is None else max(count_max, EXAMINED_MESSAGES_MAX)


def apply_selector(found: ReadResult, selector: Selector | None, count_max: int) -> ReadResult:
    """What was read, without the messages that do not meet the condition."""
    if selector is None or not isinstance(found, Slice) or not found.sizes:
        return found
    records, next_offset = list(found.records()), found.next_offset
    kept = [raw for raw, is_wanted in zip(records, _wanted(records, selector), strict=True) if is_wanted]
    if len(kept) > count_max:
        next_offset = type(next_offset)(record.queue_offset_of(kept[count_max]))
        kept = kept[:count_max]
    return Slice(kept, [len(raw) for raw in kept], next_offset, found.bounds)


def _wanted(records: list[memoryview], selector: Selector) -> list[bool]:
    if len(records) < _MANY:
        return [selector.matches(record.properties_of(raw)) for raw in records]
    batch = columns.decode(b"".join(records), columns=["properties_raw"], expand=False)
    mask: list[bool] = np.asarray(selector.mask(batch.column(0))).tolist()
    return mask
