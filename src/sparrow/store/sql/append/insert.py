"""Inserting messages inside a transaction that does other things as well: several round trips, visible all at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sparrow.model.errors import UnknownTopic
from sparrow.store.sql.append.batch_ids import AssignedIds
from sparrow.store.sql.append.bulk_insert import insert_rows
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.drivers.errors import LockConflict, MissingPartition
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.retries import TRIES_MAX, pause
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.state.catalog import StoreCatalog
from sparrow.store.sql.statements import lanes as statements


class _NothingToChange(Exception):
    """Rolls a transaction back whose work is done already."""


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


async def insert_with_change(
    database: StoreDatabase,
    catalog: StoreCatalog,
    lane: Lane,
    rows: Sequence[NewRow],
    change: Callable[[SqlSession], Awaitable[bool]],
    *,
    now_ms: Callable[[], int],
) -> AssignedIds | None:
    """Insert the rows in one transaction with another change; if that returns False, do nothing and return None."""
    tries = 0
    while True:
        try:
            async with database.transaction() as session:
                if not await change(session):
                    raise _NothingToChange
                return await insert_with_ids(session, database, lane, rows, now_ms())
        except _NothingToChange:
            return None
        except MissingPartition:
            await catalog.ensure_partitions(lane, len(rows))
        except LockConflict:
            tries += 1
            if tries > TRIES_MAX:
                raise
            await pause(0.005, 0.05)
