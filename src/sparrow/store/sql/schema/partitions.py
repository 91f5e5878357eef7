"""Partitions of message tables: how many there are, one more at the end, the oldest gone.

What the database says about its partitions counts, not what they are called: `partition_rows` may have been another
when they were made. SQLite has none.

DDL that waits for a lock keeps everybody waiting who comes later. So it waits a moment only, is tried again a moment
later, and is left for the next time if somebody is always in the way.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused, DuplicateKey, LockConflict
from sparrow.store.sql.schema.ddl import PARTITIONS_AHEAD

_TRIES_MAX = 10
_IMPATIENT_TRIES = 5
"""Tries that do not wait at all, where the database can do that; the later ones wait for a second."""
_WAIT_S = 1
_USUAL_WAIT_S = 5
"""What sessions of MySQL's wait for a lock otherwise."""
_NUMBER = re.compile(r"p(\d+)$")
_BOUND = re.compile(r"TO \('?(\d+)'?\)")


class Partition(NamedTuple):
    """A range of ids."""

    name: str
    end: int
    """The first id that is no longer in it."""
    is_leaving: bool = False
    """PostgreSQL: somebody began to detach it."""

    @property
    def number(self) -> int:
        found = _NUMBER.search(self.name)
        return int(found[1]) if found else -1


async def list_partitions(database: StoreDatabase, table: str) -> list[Partition]:
    """By age; none on SQLite."""
    if database.dialect == "mysql":
        rows = await database.fetch(
            "SELECT PARTITION_NAME, PARTITION_DESCRIPTION FROM information_schema.PARTITIONS"
            " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = :name AND PARTITION_NAME IS NOT NULL",
            name=table,
        )
        found = [Partition(name, int(end)) for name, end in rows]
    elif database.dialect == "postgresql":
        rows = await database.fetch(
            "SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid), i.inhdetachpending FROM pg_inherits i"
            " JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(:name)",
            name=f'"{table}"',
        )
        found = [Partition(name, _end_in(bound), is_leaving) for name, bound, is_leaving in rows]
    else:
        found = []
    return sorted(found, key=lambda partition: partition.end)


def _end_in(bound: str | None) -> int:
    found = _BOUND.search(bound or "")
    return int(found[1]) if found else 0


async def add_partitions(database: StoreDatabase, table: str, next_id: int, partition_rows: int) -> int:
    """Take care that partitions are ready for the ids from `next_id` on; how many were made."""
    known = await list_partitions(database, table)
    if not known:
        return 0
    number = max(partition.number for partition in known)
    covered, made = known[-1].end, 0
    current = (next_id - 1) // partition_rows
    for ahead in range(PARTITIONS_AHEAD):
        end = (current + ahead + 1) * partition_rows + 1
        if end <= covered:
            continue
        number = max(number + 1, (end - 1) // partition_rows - 1)
        await _add(database, table, number, covered, end)
        covered, made = end, made + 1
    return made


async def _add(database: StoreDatabase, table: str, number: int, first: int, end: int) -> None:
    async def in_mysql(wait: str) -> None:
        await _alter(database, table, f"ADD PARTITION (PARTITION p{number} VALUES LESS THAN ({end}))", wait)

    async def in_postgresql(wait: str) -> None:
        # Made beside the table and then attached: unlike CREATE ... PARTITION OF, that lets readers and writers go on.
        name = f"{table}$p{number}"
        async with database.transaction() as session:
            await session.execute(f"SET LOCAL lock_timeout = '{_WAIT_S}s'")
            await session.execute(f'CREATE TABLE "{name}" (LIKE "{table}" INCLUDING ALL)')
            await session.execute(
                f'ALTER TABLE "{table}" ATTACH PARTITION "{name}" FOR VALUES FROM ({first}) TO ({end})'
            )

    try:
        await _insisting(database, in_mysql if database.dialect == "mysql" else in_postgresql)
    except DuplicateKey:  # PostgreSQL's word for a table that another is making at this moment
        return
    except DatabaseRefused as refused:
        # Another broker was quicker (1493: not in order; 1517: the same name).
        if not any(word in str(refused) for word in ("1493", "1517", "already exists", "overlap")):
            raise


async def drop_partitions(database: StoreDatabase, table: str, partitions: list[Partition]) -> None:
    """Drop them with all they hold. `LockConflict`: somebody was in the way; some of them may be left."""
    if database.dialect == "mysql":
        names = ", ".join(f'"{partition.name}"' for partition in partitions)
        await _insisting(database, lambda wait: _alter(database, table, f"DROP PARTITION {names}", wait))
        return
    for partition in partitions:

        async def detached(_: str, partition: Partition = partition) -> None:
            # What was begun, by us or by one that was killed, can only be finished.
            left = {each.name: each for each in await list_partitions(database, table)}
            if partition.name in left:
                how = "FINALIZE" if left[partition.name].is_leaving else "CONCURRENTLY"
                await database.execute(f'ALTER TABLE "{table}" DETACH PARTITION "{partition.name}" {how}')

        await _insisting(database, detached)
        await database.execute(f'DROP TABLE IF EXISTS "{partition.name}"')


async def drop_detached_partitions(database: StoreDatabase, table: str) -> int:
    """PostgreSQL: what was detached by somebody who was killed before he dropped it; how many there were."""
    if database.dialect != "postgresql":
        return 0
    found = await database.fetch(
        "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = current_schema() AND c.relkind = 'r' AND NOT c.relispartition"
        " AND left(c.relname::text, :length) = :start",
        start=f"{table}$p",
        length=len(table) + 2,
    )
    names = [name for (name,) in found if _NUMBER.fullmatch(name[len(table) + 1 :])]
    for name in names:
        await database.execute(f'DROP TABLE IF EXISTS "{name}"')
    return len(names)


async def _alter(database: StoreDatabase, table: str, what: str, wait: str) -> None:
    async with database.transaction() as session:  # for a connection of our own: DDL commits by itself
        await session.execute(f"SET SESSION lock_wait_timeout = {_WAIT_S}")
        try:
            await session.execute(f'ALTER TABLE "{table}" {wait} {what}')
        finally:
            await session.execute(f"SET SESSION lock_wait_timeout = {_USUAL_WAIT_S}")


async def _insisting(database: StoreDatabase, work: Callable[[str], Awaitable[None]]) -> None:
    """Do it, with some patience for those who are in the way. The work is told what to add to not wait at all."""
    can_decline = (
        database.dialect == "mysql" and "mariadb" in str((await database.fetch("SELECT VERSION()"))[0][0]).lower()
    )
    for number in range(_TRIES_MAX):
        try:
            return await work("NOWAIT" if can_decline and number < _IMPATIENT_TRIES else "")
        except LockConflict:
            if number == _TRIES_MAX - 1:
                raise
        await asyncio.sleep(random.uniform(0.02, 0.2))
