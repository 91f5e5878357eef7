"""Retention: old messages go, a partition at a time; on SQLite, which has none, a thousand rows at a time.

1. A message is kept for `retention_hours`. With `retains_unread` it is also kept while a group has it before it, or
   is to be sent it again; a group that was silent for 30 days is not waited for.
2. First readers are told (`first_id`), then they are given time to hear of it, and only then messages go. Whoever is
   killed in between leaves work for the next time, and nothing else.
3. Nobody waits for retention: no statement touches many rows, and DDL gives way (see `partitions`).

The broker that leads calls `trim` now and then. Should two do it at a time, no harm is done.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from sparrow.settings import SqlSettings
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused, LockConflict
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.schema.partitions import (
    add_partitions,
    drop_detached_partitions,
    drop_partitions,
    list_partitions,
)
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.state.catalog import StoreCatalog

log = logging.getLogger(__name__)

READER_GRACE_S = 2.0
"""After which every process has heard how far messages are gone: they look once a second."""
SILENT_GROUP_MS = 30 * 86_400_000
DEDUP_WINDOW_MS = 24 * 3_600_000
"""How long a batch is remembered, so that it is not stored twice."""
LEDGER_SCOPE_AGE_MAX_MS = 90 * 86_400_000
"""How long the ledger remembers a scope that commits nothing."""
ROWS_PER_DELETE = 1000
_CONFLICTS_MAX = 20
_EARLIEST_TIME_MS = 1_000_000_000_000
"""A mark's value below this is no time."""
_Result = TypeVar("_Result")


class TrimReport(msgspec.Struct, frozen=True):
    """What went, and what was made for what comes."""

    messages: int = 0
    partitions_dropped: int = 0
    partitions_made: int = 0
    keys: int = 0
    batches: int = 0
    marks: int = 0
    scopes: int = 0


async def trim(
    database: StoreDatabase,
    catalog: StoreCatalog,
    settings: SqlSettings,
    now_ms: int,
    *,
    grace_s: float = READER_GRACE_S,
) -> TrimReport:
    """Delete what need not be kept any longer."""
    lanes = list(catalog.lanes_by_number.values())
    made, moved = 0, dict.fromkeys((lane.number for lane, _ in lanes), 0)
    for lane, queue in lanes:
        with _others_go_on(lane):
            made += await _room_ahead(database, lane, settings)
            moved[lane.number] = await _move_first(database, lane, catalog.resend_lanes.get(queue), settings, now_ms)
    if any(moved.values()):
        await asyncio.sleep(grace_s)
    dropped = keys = 0
    for lane, _ in lanes:
        with _others_go_on(lane):
            gone, keys_gone = await _drop_old(database, lane, is_moved=moved[lane.number] > 0)
            dropped, keys = dropped + gone, keys + keys_gone
    return TrimReport(
        messages=sum(moved.values()),
        partitions_dropped=dropped,
        partitions_made=made,
        keys=keys,
        batches=await _drop_batches(database, now_ms - DEDUP_WINDOW_MS),
        marks=await _drop_marks(database, now_ms - DEDUP_WINDOW_MS),
        scopes=await _delete(
            database, "DELETE FROM hermes_ledger WHERE at < :older", older=now_ms - LEDGER_SCOPE_AGE_MAX_MS
        ),
    )


@contextmanager
def _others_go_on(lane: Lane) -> Iterator[None]:
    """A table that is gone, because its topic is being deleted or for a worse reason, is no reason to fill the disk."""
    try:
        yield
    except DatabaseRefused as refused:
        log.warning("a table could not be trimmed", extra={"table": lane.table, "cause": str(refused)})


# -- how far ----------------------------------------------------------------------------------------------------------


async def _room_ahead(database: StoreDatabase, lane: Lane, settings: SqlSettings) -> int:
    bounds = await _bounds(database, lane)
    if bounds is None:
        return 0
    try:
        return await add_partitions(database, lane.table, bounds[1], settings.partition_rows)
    except LockConflict:
        log.warning("no partition could be added, somebody is in the way", extra={"table": lane.table})
        return 0


async def _move_first(
    database: StoreDatabase, lane: Lane, resends: Lane | None, settings: SqlSettings, now_ms: int
) -> int:
    """Let readers know that messages are going; how many."""
    bounds = await _bounds(database, lane)
    if bounds is None or bounds[0] == bounds[1]:
        return 0
    first_id, next_id = bounds
    kept_from = next_id
    if settings.retains_unread:
        kept_from = await _wanted_from(database, lane, resends, next_id, now_ms - SILENT_GROUP_MS)
    older_than = now_ms - int(settings.retention_hours * 3_600_000)
    to = await _old_to(database, lane, first_id, kept_from, older_than)
    if to <= first_id:
        return 0
    await _insisting(
        lambda: database.execute(
            "UPDATE hermes_lane SET first_id = :to WHERE lane = :lane AND first_id < :to", to=to, lane=lane.number
        )
    )
    return to - first_id


async def _bounds(database: StoreDatabase, lane: Lane) -> tuple[int, int] | None:
    """None: the lane's topic is gone."""
    found = await database.fetch("SELECT first_id, next_id FROM hermes_lane WHERE lane = :lane", lane=lane.number)
    return (int(found[0][0]), int(found[0][1])) if found else None


async def _wanted_from(
    database: StoreDatabase, lane: Lane, resends: Lane | None, next_id: int, silent_since: int
) -> int:
    """The lowest id that a group has still before it, or is to be sent again."""
    ((offset,),) = await database.fetch(
        f'SELECT MIN("offset") FROM "{table_name("offset", lane.topic, lane.part)}"'
        " WHERE priority = :priority AND updated_at >= :since",
        priority=lane.priority.label,
        since=silent_since,
    )
    wanted = next_id if offset is None else min(next_id, int(offset) + 1)
    if resends is None:
        return wanted
    # A range that was asked for lately counts however long its group has had nothing to do.
    ((start,),) = await database.fetch(
        f'SELECT MIN(r."start") FROM "{resends.table}" r JOIN "{table_name("resend_offset", lane.topic, lane.part)}" o'
        ' ON r.id > o."offset" AND (r.group_id IS NULL OR r.group_id = o.group_id)'
        ' WHERE o.priority = :priority AND (o.updated_at >= :since OR r."timestamp" >= :since)',
        priority=lane.priority.label,
        since=silent_since,
    )
    return wanted if start is None else min(wanted, int(start))


async def _old_to(database: StoreDatabase, lane: Lane, first_id: int, kept_from: int, older_than: int) -> int:
    """The first id that stays: where a partition ends, if there are any."""
    if database.dialect == "sqlite":
        return await _first_young(database, lane, first_id, kept_from, older_than)
    to = first_id
    for partition in await list_partitions(database, lane.table):
        if partition.end > kept_from:
            break
        newest = await database.fetch(
            f'SELECT "timestamp" FROM "{lane.table}" WHERE id < :end ORDER BY id DESC LIMIT 1', end=partition.end
        )
        if newest and newest[0][0] >= older_than:
            break
        to = max(to, partition.end)
    return to


async def _first_young(database: StoreDatabase, lane: Lane, first_id: int, kept_from: int, older_than: int) -> int:
    """By halves: times never go back as ids grow."""
    low, high = first_id, kept_from
    while low < high:
        middle = (low + high) // 2
        found = await database.fetch(
            f'SELECT "timestamp" FROM "{lane.table}" WHERE id >= :id ORDER BY id LIMIT 1', id=middle
        )
        if found and found[0][0] < older_than:
            low = middle + 1
        else:
            high = middle
    return low


# -- away with it -----------------------------------------------------------------------------------------------------


async def _drop_old(database: StoreDatabase, lane: Lane, *, is_moved: bool) -> tuple[int, int]:
    """Everything below `first_id`, left from earlier attempts too; how many partitions and how many keys."""
    bounds = await _bounds(database, lane)
    if bounds is None or bounds[0] <= 1:
        return 0, 0
    first_id = bounds[0]
    dropped, had_some = 0, is_moved
    if database.dialect == "sqlite":
        had_some |= await _delete_rows(database, lane, first_id) > 0
    else:
        old = [partition for partition in await list_partitions(database, lane.table) if partition.end <= first_id]
        try:
            if old:
                await drop_partitions(database, lane.table, old)
                dropped = len(old)
            dropped += await drop_detached_partitions(database, lane.table)
        except LockConflict:
            log.warning("partitions could not be dropped, somebody is in the way", extra={"table": lane.table})
        had_some |= dropped > 0
    # Keys of what is gone harm nobody, and looking for them takes a walk through all of them: only when it is worth it.
    return dropped, await _delete_keys(database, lane, first_id) if had_some else 0


async def _delete_rows(database: StoreDatabase, lane: Lane, first_id: int) -> int:
    gone = 0
    while True:
        ((oldest,),) = await database.fetch(f'SELECT MIN(id) FROM "{lane.table}"')
        if oldest is None or oldest >= first_id:
            return gone
        until = min(oldest + ROWS_PER_DELETE, first_id)
        gone += await _delete(database, f'DELETE FROM "{lane.table}" WHERE id < :until', until=until)


async def _delete_keys(database: StoreDatabase, lane: Lane, first_id: int) -> int:
    """In the order of the keys, which is the only one the table has."""
    name = table_name("key", lane.topic, lane.part)
    own = "priority = :priority AND id < :first"
    values = {"priority": lane.priority.label, "first": first_id}
    after, gone = b"", 0
    while True:
        found = await database.fetch(
            f'SELECT ref_key FROM "{name}" WHERE ref_key > :after ORDER BY ref_key LIMIT 1'
            f" OFFSET {ROWS_PER_DELETE - 1}",
            after=after,
        )
        if not found:
            return gone + await _delete(
                database, f'DELETE FROM "{name}" WHERE ref_key > :after AND {own}', after=after, **values
            )
        upto = bytes(found[0][0])
        gone += await _delete(
            database,
            f'DELETE FROM "{name}" WHERE ref_key > :after AND ref_key < :upto AND {own}',
            after=after,
            upto=upto,
            **values,
        )
        gone += await _delete_one_key(database, name, upto, lane, first_id)
        after = upto


async def _delete_one_key(database: StoreDatabase, name: str, key: bytes, lane: Lane, first_id: int) -> int:
    """A key may be that of every message there is."""
    own = f'"{name}" WHERE ref_key = :key AND priority = :priority AND id < :first'
    values = {"key": key, "priority": lane.priority.label}
    gone = 0
    while True:
        found = await database.fetch(
            f"SELECT id FROM {own} ORDER BY id LIMIT 1 OFFSET {ROWS_PER_DELETE - 1}", first=first_id, **values
        )
        until = found[0][0] + 1 if found else first_id
        gone += await _delete(database, f"DELETE FROM {own}", first=until, **values)
        if not found:
            return gone


async def _drop_batches(database: StoreDatabase, older_than: int) -> int:
    gone = 0
    while True:
        found = await database.fetch(
            f"SELECT at FROM hermes_batch WHERE at < :older ORDER BY at LIMIT 1 OFFSET {ROWS_PER_DELETE - 1}",
            older=older_than,
        )
        until = found[0][0] + 1 if found else older_than
        gone += await _delete(database, "DELETE FROM hermes_batch WHERE at < :until", until=until)
        if not found:
            return gone


async def _drop_marks(database: StoreDatabase, older_than: int) -> int:
    """Of processes that were killed. Leases stay: their epochs must never start again."""
    return await _delete(
        database,
        "DELETE FROM hermes_mark WHERE name LIKE 'seen:%' AND value >= :earliest AND value < :older",
        earliest=_EARLIEST_TIME_MS,
        older=older_than,
    )


async def _delete(database: StoreDatabase, sql: str, **values: object) -> int:
    return await _insisting(lambda: database.execute(sql, **values))


async def _insisting(work: Callable[[], Awaitable[_Result]]) -> _Result:
    """A statement that somebody was in the way of is done again."""
    for _ in range(_CONFLICTS_MAX):
        try:
            return await work()
        except LockConflict:
            await asyncio.sleep(random.uniform(0.005, 0.05))
    return await work()
