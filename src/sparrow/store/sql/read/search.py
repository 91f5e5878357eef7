"""Finding messages by time and by key."""

from __future__ import annotations

from collections.abc import Iterable

from sparrow.model.queue import QueueBounds, QueueOffset
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.read.lane_view import LaneView
from sparrow.store.sql.row_codec import MESSAGE_COLUMNS
from sparrow.store.sql.schema.table_names import table_name

_OF_MESSAGE = ", ".join(f"m.{name.strip()}" for name in MESSAGE_COLUMNS.split(","))


async def offset_at(
    database: StoreDatabase, lane: Lane, bounds: QueueBounds, time_ms: int, *, upper: bool
) -> QueueOffset:
    """By halves: store times never go back as ids grow, so they need no index of their own."""
    low, high = int(bounds.first), int(bounds.end)
    while low < high:
        middle = (low + high) // 2
        found = await database.fetch(
            f'SELECT "timestamp" FROM "{lane.table}" WHERE id > :after ORDER BY id LIMIT 1', after=middle
        )
        is_older = bool(found) and (found[0][0] <= time_ms if upper else found[0][0] < time_ms)
        low, high = (middle + 1, high) if is_older else (low, middle)
    if upper:
        return QueueOffset(low - 1 if low > bounds.first else 0)
    return QueueOffset(low)


async def by_key(
    database: StoreDatabase, views: Iterable[LaneView], key: str, *, limit: int, begin_ms: int, end_ms: int
) -> list[bytes]:
    """The newest records that carry the key, oldest first, as far as readers may see."""
    found: list[tuple[int, int, bytes]] = []
    for view in views:
        lane = view.lane
        ways: tuple[tuple[str, dict[str, str]], ...] = (
            (f'FROM "{lane.table}" m WHERE m.ref_key = :key', {}),
            (
                f'FROM "{table_name("key", lane.topic, lane.part)}" k JOIN "{lane.table}" m ON m.id = k.id'
                " WHERE k.ref_key = :key AND k.priority = :priority",
                {"priority": lane.priority.label},
            ),
        )
        for way, more in ways:
            rows = await database.fetch(
                f'SELECT {_OF_MESSAGE} {way} AND m."timestamp" >= :begin AND m."timestamp" <= :until'
                " AND m.id < :before ORDER BY m.id DESC LIMIT :count",
                key=key.encode(),
                begin=begin_ms,
                until=end_ms,
                before=view.next_id,
                count=limit,
                **more,
            )
            found += [(row[5], row[0], view.records.encode_row(row)[0]) for row in rows]
    found.sort(key=lambda row: row[:2])
    return [made for _, _, made in found[-limit:]]
