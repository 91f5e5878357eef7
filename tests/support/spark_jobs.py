"""Platforms for tests of Spark jobs: append messages with any flags, and read stored messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparrow.client import Admin
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice
from sparrow.testing.platform import RunningPlatform
from sparrow.wire import record

TINY_LOG: dict[str, Any] = {"segment_bytes": 64 << 10, "message_bytes_max": 16 << 10, "retention_hours": 0}
"""Small segments that expire at once."""


class StoredFields(NamedTuple):
    """All fields of a message that a copy shares with its original."""

    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_ms: int
    reconsume_times: int


def log_store_of(platform: RunningPlatform) -> LogStore:
    store = platform._platform.broker.broker.store
    assert isinstance(store, LogStore)
    return store


def create_topic(platform: RunningPlatform, topic: str, queues: int) -> None:
    with Admin(platform.name_servers) as admin:
        admin.create_topic(topic, queues=queues)


def append(platform: RunningPlatform, topic: str, queue_id: int, drafts: Sequence[Draft]) -> None:
    """Append messages unchanged, with any flags and properties."""
    platform._loop.run(_append(log_store_of(platform), Queue(topic, queue_id), drafts))


async def _append(store: LogStore, queue: Queue, drafts: Sequence[Draft]) -> None:
    for draft in drafts:  # one by one: a batch must fit into a segment
        await store.append(queue, [draft])


def trim(platform: RunningPlatform) -> int:
    """Run retention, as an operator may at any time; return the number of deleted bytes."""
    return platform._loop.run(log_store_of(platform).trim())


def read_stored(platform: RunningPlatform, topic: str, queues: int) -> dict[int, list[StoredFields]]:
    """Return all messages of a topic, queue by queue, byte for byte."""
    return {
        queue_id: platform._loop.run(_read_stored(log_store_of(platform), Queue(topic, queue_id)))
        for queue_id in range(queues)
    }


async def _read_stored(store: LogStore, queue: Queue) -> list[StoredFields]:
    messages, (offset, end) = [], await store.bounds(queue)
    while offset < end:
        found = await store.read(queue, offset, count_max=1000, bytes_max=1 << 20)
        assert isinstance(found, Slice)
        for raw in found.records():
            each = record.decode(raw, expand=False)
            said = bytes(record.properties_of(raw))
            place = (each.flag, each.sys_flag, each.born_ms, each.reconsume_times)
            messages.append(StoredFields(each.body, said, *place))
        offset = found.next_offset
    return messages
