"""Retention: deletes old messages by whole partitions; on SQLite, which has none, a thousand rows at a time.

1. A message is kept for `retention_hours`. With `retains_unread` it is also kept while a group has not read it or
   shall get it again; a group that has committed nothing for 30 days is ignored.
2. A dead letter is kept for `dead_letter_retention_hours`, read or not. Dead letters are few: they are deleted row by
   row on every database, because a partition of theirs would never be full. Half messages that were rolled back or
   given up are kept for `transaction_retention_hours`.
3. First `first_id` moves, then readers get time to see that, and only then messages are deleted. A process that is
   killed in between leaves the rest for the next round.
4. Retention blocks no one: no statement touches many rows, and DDL gives way to other transactions (see `partitions`).

The leader calls `trim` from time to time. Two processes may do so at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from sparrow.model.protocol import DLQ_TOPIC_PREFIX
from sparrow.model.queue import Queue
from sparrow.settings import SqlSettings
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused, LockConflict
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.retries import retry_conflicts
from sparrow.store.sql.schema.partitions import (
    add_partitions,
    drop_detached_partitions,
    drop_partitions,
    list_partitions,
)
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.state.catalog import StoreCatalog
from sparrow.store.sql.statements import batches as batch_statements
from sparrow.store.sql.statements import half_messages as half_statements
from sparrow.store.sql.statements import lanes as lane_statements
from sparrow.store.sql.statements import messages as message_statements
from sparrow.store.sql.statements import resends as resend_statements
from sparrow.store.sql.statements.state import ledger as ledger_statements
from sparrow.store.sql.statements.state import marks as mark_statements
from sparrow.store.sql.statements.state import offsets as offset_statements

log = logging.getLogger(__name__)

READER_GRACE_S = 2.0
"""After this time every process has seen the new `first_id`: all lanes are polled once a second."""
SILENT_GROUP_MS = 30 * 86_400_000
DEDUP_WINDOW_MS = 24 * 3_600_000
"""How long a batch id is kept, so that a repeated batch is not stored again."""
LEDGER_SCOPE_AGE_MAX_MS = 90 * 86_400_000
"""How long the ledger keeps a scope that commits nothing."""
ROWS_PER_DELETE = 1000
_EARLIEST_TIME_MS = 1_000_000_000_000
"""A mark with a lower value does not hold a time."""


class TrimReport(msgspec.Struct, frozen=True):
    """How much a round of retention deleted and created."""

    messages: int = 0
    partitions_dropped: int = 0
    partitions_made: int = 0
    keys: int = 0
    batches: int = 0
    marks: int = 0
    scopes: int = 0
    half_messages: int = 0


async def trim(
    database: StoreDatabase,
    catalog: StoreCatalog,
    settings: SqlSettings,
    now_ms: int,
    *,
    grace_s: float = READER_GRACE_S,
) -> TrimReport:
    """Delete what need not be kept any longer, and add partitions ahead."""
    lanes = list(catalog.lanes_by_number.values())
    added, expired = 0, dict.fromkeys((lane.number for lane, _ in lanes), 0)
    for lane, queue in lanes:
        with _skip_on_error(lane):
            added += await _add_partitions_ahead(database, lane, settings)
            resend_lane = catalog.resend_lanes.get(queue)
            if _is_dead_letter_queue(queue):
                expired[lane.number] = await _expire_dead_letters(database, lane, settings, now_ms)
            else:
                expired[lane.number] = await _advance_first_id(database, lane, resend_lane, settings, now_ms)
    if any(expired.values()):
        await asyncio.sleep(grace_s)
    dropped = keys = 0
    for lane, queue in lanes:
        with _skip_on_error(lane):
            lane_dropped, lane_keys = await _delete_expired(
                database,
                lane,
                has_advanced=expired[lane.number] > 0,
                deletes_rows=database.dialect == "sqlite" or _is_dead_letter_queue(queue),
            )
            dropped, keys = dropped + lane_dropped, keys + lane_keys
    return TrimReport(
        messages=sum(expired.values()),
        partitions_dropped=dropped,
        partitions_made=added,
        keys=keys,
        batches=await _delete_batches(database, now_ms - DEDUP_WINDOW_MS),
        marks=await _delete_poller_marks(database, now_ms - DEDUP_WINDOW_MS),
        scopes=await _delete(database, ledger_statements.DELETE_OLDER, older=now_ms - LEDGER_SCOPE_AGE_MAX_MS),
        half_messages=await _delete_ended_halves(database, now_ms - _hours_ms(settings.transaction_retention_hours)),
    )


@contextmanager
def _skip_on_error(lane: Lane) -> Iterator[None]:
    """Continue with the other lanes: a missing table, perhaps of a topic that is being deleted, must not stop them."""
    try:
        yield
    except DatabaseRefused as refused:
        log.warning(
            "expired messages of table %(table)s are not deleted: %(error)s", {"table": lane.table, "error": refused}
        )


# -- which messages have expired ---------------------------------------------------------------------------------------


async def _add_partitions_ahead(database: StoreDatabase, lane: Lane, settings: SqlSettings) -> int:
    bounds = await _bounds(database, lane)
    if bounds is None:
        return 0
    try:
        return await add_partitions(database, lane.table, bounds[1], settings.partition_rows)
    except LockConflict:
        log.warning(
            "no partition is added to table %(table)s: other transactions hold it; the next round tries again",
            {"table": lane.table},
        )
        return 0


async def _advance_first_id(
    database: StoreDatabase, lane: Lane, resend_lane: Lane | None, settings: SqlSettings, now_ms: int
) -> int:
    """Hide the expired messages of a lane from readers; return how many."""
    bounds = await _bounds(database, lane)
    if bounds is None or bounds[0] == bounds[1]:
        return 0
    first_id, next_id = bounds
    kept_from = next_id
    if settings.retains_unread:
        kept_from = await _needed_from(database, lane, resend_lane, next_id, now_ms - SILENT_GROUP_MS)
    older_than = now_ms - _hours_ms(settings.retention_hours)
    to = await _first_kept(database, lane, first_id, kept_from, older_than)
    return await _hide_before(database, lane, first_id, to)


async def _expire_dead_letters(database: StoreDatabase, lane: Lane, settings: SqlSettings, now_ms: int) -> int:
    """Hide the expired dead letters of a lane from readers; return how many."""
    bounds = await _bounds(database, lane)
    if bounds is None or bounds[0] == bounds[1]:
        return 0
    older_than = now_ms - _hours_ms(settings.dead_letter_retention_hours)
    return await _hide_before(database, lane, bounds[0], await _first_not_older(database, lane, *bounds, older_than))


async def _hide_before(database: StoreDatabase, lane: Lane, first_id: int, to: int) -> int:
    if to <= first_id:
        return 0
    await retry_conflicts(lambda: database.execute(lane_statements.ADVANCE_FIRST_ID, to=to, lane=lane.number))
    return to - first_id


def _is_dead_letter_queue(queue: Queue) -> bool:
    return queue.topic.startswith(DLQ_TOPIC_PREFIX)


def _hours_ms(hours: float) -> int:
    return int(hours * 3_600_000)


async def _bounds(database: StoreDatabase, lane: Lane) -> tuple[int, int] | None:
    """Return first and next id; None if the topic is deleted."""
    found = await database.fetch(lane_statements.SELECT_BOUNDS, lane=lane.number)
    return (int(found[0][0]), int(found[0][1])) if found else None


async def _needed_from(
    database: StoreDatabase, lane: Lane, resend_lane: Lane | None, next_id: int, silent_since: int
) -> int:
    """Return the lowest id that a group has not read or shall get again."""
    ((offset,),) = await database.fetch(
        offset_statements.select_lowest(table_name("offset", lane.topic, lane.part)),
        priority=lane.priority.label,
        since=silent_since,
    )
    needed = next_id if offset is None else min(next_id, int(offset) + 1)
    if resend_lane is None:
        return needed
    resend_offsets = table_name("resend_offset", lane.topic, lane.part)
    ((start,),) = await database.fetch(
        resend_statements.select_lowest_start(resend_lane.table, resend_offsets),
        priority=lane.priority.label,
        since=silent_since,
    )
    return needed if start is None else min(needed, int(start))


async def _first_kept(database: StoreDatabase, lane: Lane, first_id: int, kept_from: int, older_than: int) -> int:
    """Return the first id that stays: the end of a partition, where the database has partitions."""
    if database.dialect == "sqlite":
        return await _first_not_older(database, lane, first_id, kept_from, older_than)
    to = first_id
    for partition in await list_partitions(database, lane.table):
        if partition.end > kept_from:
            break
        newest = await database.fetch(message_statements.select_time_before(lane.table), end=partition.end)
        if newest and newest[0][0] >= older_than:
            break
        to = max(to, partition.end)
    return to


async def _first_not_older(database: StoreDatabase, lane: Lane, first_id: int, kept_from: int, older_than: int) -> int:
    """Search by bisection: times never decrease as ids grow."""
    low, high = first_id, kept_from
    while low < high:
        middle = (low + high) // 2
        found = await database.fetch(message_statements.select_time_from(lane.table), id=middle)
        if found and found[0][0] < older_than:
            low = middle + 1
        else:
            high = middle
    return low


# -- deletion ----------------------------------------------------------------------------------------------------------


async def _delete_expired(
    database: StoreDatabase, lane: Lane, *, has_advanced: bool, deletes_rows: bool
) -> tuple[int, int]:
    """Delete everything below `first_id`, also what earlier rounds left; return how many partitions and keys."""
    bounds = await _bounds(database, lane)
    if bounds is None or bounds[0] <= 1:
        return 0, 0
    first_id = bounds[0]
    dropped, has_deleted = 0, has_advanced
    if database.dialect != "sqlite":
        old = [partition for partition in await list_partitions(database, lane.table) if partition.end <= first_id]
        try:
            if old:
                await drop_partitions(database, lane.table, old)
                dropped = len(old)
            dropped += await drop_detached_partitions(database, lane.table)
        except LockConflict:
            log.warning(
                "no partition of table %(table)s is dropped: other transactions hold it; the next round tries again",
                {"table": lane.table},
            )
        has_deleted |= dropped > 0
    if deletes_rows:
        has_deleted |= await _delete_rows(database, lane, first_id) > 0
    # Keys of deleted messages do no harm, and finding them means scanning the whole table.
    return dropped, await _delete_keys(database, lane, first_id) if has_deleted else 0


async def _delete_rows(database: StoreDatabase, lane: Lane, first_id: int) -> int:
    deleted = 0
    while True:
        ((oldest,),) = await database.fetch(message_statements.select_oldest_id(lane.table))
        if oldest is None or oldest >= first_id:
            return deleted
        until = min(oldest + ROWS_PER_DELETE, first_id)
        deleted += await _delete(database, message_statements.delete_before(lane.table), until=until)


async def _delete_keys(database: StoreDatabase, lane: Lane, first_id: int) -> int:
    """Delete the keys of deleted messages in the order of the keys, the only order the table has."""
    key_table = table_name("key", lane.topic, lane.part)
    values = {"priority": lane.priority.label, "first": first_id}
    after, deleted = b"", 0
    while True:
        found = await database.fetch(message_statements.select_nth_key(key_table, ROWS_PER_DELETE), after=after)
        if not found:
            return deleted + await _delete(
                database, message_statements.delete_keys_after(key_table), after=after, **values
            )
        upto = bytes(found[0][0])
        deleted += await _delete(
            database, message_statements.delete_keys_between(key_table), after=after, upto=upto, **values
        )
        deleted += await _delete_one_key(database, key_table, upto, lane, first_id)
        after = upto


async def _delete_one_key(database: StoreDatabase, key_table: str, key: bytes, lane: Lane, first_id: int) -> int:
    """Delete one key, in chunks: every message may have the same key."""
    values = {"key": key, "priority": lane.priority.label}
    deleted = 0
    while True:
        select = message_statements.select_nth_id_of_key(key_table, ROWS_PER_DELETE)
        found = await database.fetch(select, first=first_id, **values)
        until = found[0][0] + 1 if found else first_id
        deleted += await _delete(database, message_statements.delete_key(key_table), first=until, **values)
        if not found:
            return deleted


async def _delete_batches(database: StoreDatabase, older_than: int) -> int:
    deleted = 0
    while True:
        found = await database.fetch(batch_statements.select_nth_older(ROWS_PER_DELETE), older=older_than)
        until = found[0][0] + 1 if found else older_than
        deleted += await _delete(database, batch_statements.DELETE_OLDER, until=until)
        if not found:
            return deleted


async def _delete_ended_halves(database: StoreDatabase, older_than: int) -> int:
    """Delete half messages that were rolled back or given up before a time."""
    deleted = 0
    for state in ("rolled_back", "given_up"):
        while found := await database.fetch(
            half_statements.SELECT_ENDED_BEFORE, state=state, older=older_than, count=ROWS_PER_DELETE
        ):
            deleted += await _delete(database, half_statements.delete_all(number for (number,) in found))
    return deleted


async def _delete_poller_marks(database: StoreDatabase, older_than: int) -> int:
    """Delete marks of killed processes. Leases stay, because their epochs must never start again."""
    return await _delete(
        database, mark_statements.DELETE_UNUSED_POLLER_MARKS, earliest=_EARLIEST_TIME_MS, older=older_than
    )


async def _delete(database: StoreDatabase, sql: str, **values: object) -> int:
    return await retry_conflicts(lambda: database.execute(sql, **values))
