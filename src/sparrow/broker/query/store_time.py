"""Store times of messages, read from records without decoding the rest."""

from __future__ import annotations

from sparrow.model.queue import Queue
from sparrow.store.spi import Slice, Store
from sparrow.wire import record


async def store_ms_at(store: Store, queue: Queue, offset: int) -> int | None:
    """Return the store time of a message in a queue; None if there is no such message."""
    found = await store.read(queue, offset, count_max=1, bytes_max=1)
    if not isinstance(found, Slice) or not found.sizes:
        return None
    return store_ms_of(found.buffers[0])


def store_ms_of(head: bytes | memoryview) -> int:
    """Return the store time in a record, without decoding the rest."""
    sys_flag = int.from_bytes(head[record.SYS_FLAG_POSITION : record.SYS_FLAG_POSITION + 4], "big")
    at = record.STORE_TIME_POSITION + (12 if sys_flag & record.BORN_HOST_IPV6_FLAG else 0)
    return int.from_bytes(head[at : at + 8], "big", signed=True)
