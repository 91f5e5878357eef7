"""Inserting messages inside a transaction that does other things as well: several round trips, visible all at once."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.model.errors import UnknownTopic
from sparrow.store.sql.append.batch_ids import AssignedIds
from sparrow.store.sql.append.bulk_insert import insert_rows
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.statements import lanes as statements


async def take_ids(session: SqlSession, lane: Lane, count: int, now_ms: int) -> tuple[int, int]:
    """Take the next `count` ids of a lane; return the first of them and the store time of the messages."""
    if not await session.execute(statements.TAKE_IDS, count=count, now=now_ms, lane=lane.number):
        raise UnknownTopic(lane.topic)  # it was deleted, perhaps created again with other lanes
    ((next_id, last_ts),) = await session.fetch(statements.SELECT_NEXT_ID_AND_TIME, lane=lane.number)
    return int(next_id) - count, int(last_ts)


async def insert_with_ids(
    session: SqlSession, database: StoreDatabase, lane: Lane, rows: Sequence[NewRow], now_ms: int
) -> AssignedIds:
    """Assign ids to the rows and insert them."""
    base_id, store_ms = await take_ids(session, lane, len(rows), now_ms)
    await insert_rows(session, database, lane, base_id, rows, store_ms)
    return AssignedIds(base_id, store_ms, lane.number)
