"""Inserting inside a transaction that does other things as well: several round trips, and nothing of it seen before."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.model.errors import UnknownTopic
from sparrow.store.sql.append.batch_ids import AssignedIds
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.schema.table_names import table_name

_ROWS_A_STATEMENT = 50


async def take_ids(session: SqlSession, lane: Lane, count: int, now_ms: int) -> tuple[int, int]:
    """Take the next `count` ids of a lane; the first of them, and the time that goes with them."""
    greatest = f"CASE WHEN last_ts > {now_ms} THEN last_ts ELSE {now_ms} END"
    changed = await session.execute(
        f"UPDATE hermes_lane SET next_id = next_id + {count}, last_ts = {greatest} WHERE lane = :lane", lane=lane.number
    )
    if not changed:  # the topic was deleted, perhaps made anew
        raise UnknownTopic(lane.topic)
    ((next_id, last_ts),) = await session.fetch(
        "SELECT next_id, last_ts FROM hermes_lane WHERE lane = :lane", lane=lane.number
    )
    return int(next_id) - count, int(last_ts)


async def insert_with_ids(session: SqlSession, lane: Lane, entries: Sequence[NewRow], now_ms: int) -> AssignedIds:
    """Number the entries and insert them."""
    base_id, store_ms = await take_ids(session, lane, len(entries), now_ms)
    for start in range(0, len(entries), _ROWS_A_STATEMENT):
        values: dict[str, object] = {}
        places: list[str] = []
        for at, entry in enumerate(entries[start : start + _ROWS_A_STATEMENT]):
            places.append(
                f"({base_id + start + at}, :b{at}, {entry.source_ip}, {entry.token}, :k{at}, {store_ms}, :p{at})"
            )
            values |= {f"b{at}": entry.body, f"k{at}": entry.ref_key, f"p{at}": entry.properties}
        await session.execute(
            f'INSERT INTO "{lane.table}" (id, body, source_ip, token, ref_key, "timestamp", properties)'
            f" VALUES {', '.join(places)}",
            **values,
        )
    for at, entry in enumerate(entries):
        for key in entry.extra_keys:
            await session.execute(
                f'INSERT INTO "{table_name("key", lane.topic, lane.part)}" VALUES (:key, :priority, :id)',
                key=key,
                priority=lane.priority.label,
                id=base_id + at,
            )
    return AssignedIds(base_id, store_ms, lane.number)


async def insert_returning_id(database: StoreDatabase, into: str, **values: object) -> int:
    """Insert a row into a table that counts them by itself; its number."""
    columns, places = ", ".join(f'"{name}"' for name in values), ", ".join(f":{name}" for name in values)
    insert = f'INSERT INTO "{into}" ({columns}) VALUES ({places})'
    async with database.transaction() as session:
        if database.dialect == "mysql":  # MySQL has no RETURNING
            await session.execute(insert, **values)
            found = await session.fetch("SELECT LAST_INSERT_ID()")
        else:
            found = await session.fetch(f"{insert} RETURNING id", **values)
    return int(found[0][0])
