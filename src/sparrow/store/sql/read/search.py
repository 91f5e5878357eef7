"""Finding messages by time and by key."""

from __future__ import annotations

from collections.abc import Iterable

from sparrow.model.queue import QueueBounds, QueueOffset
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.read.lane_view import LaneView
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.statements import messages as statements


async def offset_at(
    database: StoreDatabase, lane: Lane, bounds: QueueBounds, time_ms: int, *, upper: bool
) -> QueueOffset:
    """Search by bisection: store times never decrease as ids grow, so they need no index."""
    low, high = int(bounds.first), int(bounds.end)
    while low < high:
        middle = (low + high) // 2
        found = await database.fetch(statements.select_time_after(lane.table), after=middle)
        is_older = bool(found) and (found[0][0] <= time_ms if upper else found[0][0] < time_ms)
        low, high = (middle + 1, high) if is_older else (low, middle)
    if upper:
        return QueueOffset(low - 1 if low > bounds.first else 0)
    return QueueOffset(low)


async def by_key(
    database: StoreDatabase, views: Iterable[LaneView], key: str, *, limit: int, begin_ms: int, end_ms: int
) -> list[bytes]:
    """Return the newest visible records that have the key, the oldest first."""
    found: list[tuple[int, int, bytes]] = []
    for view in views:
        lane = view.lane
        period = {"begin": begin_ms, "until": end_ms, "before": view.next_id, "count": limit}
        key_table = table_name("key", lane.topic, lane.part)
        by_first = await database.fetch(statements.select_by_first_key(lane.table), key=key.encode(), **period)
        by_extra = await database.fetch(
            statements.select_by_extra_key(lane.table, key_table),
            key=key.encode(),
            priority=lane.priority.label,
            **period,
        )
        for rows in (by_first, by_extra):
            found += [(row[5], row[0], view.records.encode_row(row)) for row in rows]
    found.sort(key=lambda row: row[:2])
    return [encoded for _, _, encoded in found[-limit:]]
