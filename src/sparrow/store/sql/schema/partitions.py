"""Partitions of message tables: listing them, adding some ahead of the current id, dropping the oldest.

The database's own metadata counts, not the partitions' names: `partition_rows` may have been another value when they
were created. SQLite has no partitions.

DDL that waits for a lock blocks every statement that comes after it. So it waits a second at most, is retried, and is
left for the next round of retention if other transactions always hold the table.
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
from sparrow.store.sql.statements import partitions as statements

_TRIES_MAX = 10
_NOWAIT_TRIES = 5
"""The first tries do not wait for a lock at all, where the database supports that; the later ones wait a second."""
_LOCK_WAIT_S = 1
_DEFAULT_LOCK_WAIT_S = 5
"""The lock wait of MySQL sessions otherwise."""
_NUMBER = re.compile(r"p(\d+)$")
_BOUND = re.compile(r"TO \('?(\d+)'?\)")
_ADDED_BY_ANOTHER = ("1493", "1517", "already exists", "overlap")
"""In errors of a partition that another broker has added: 1493 is "not in order", 1517 "the same name"."""


class Partition(NamedTuple):
    """A range of ids."""

    name: str
    end: int
    """The first id after it."""
    is_detaching: bool = False
    """PostgreSQL: a detachment has begun and is not finished."""

    @property
    def number(self) -> int:
        """The number in its name; -1 if there is none."""
        found = _NUMBER.search(self.name)
        return int(found[1]) if found else -1


async def list_partitions(database: StoreDatabase, table: str) -> list[Partition]:
    """List the partitions of a table, the oldest first; none on SQLite."""
    if database.dialect == "mysql":
        rows = await database.fetch(statements.MYSQL_SELECT, name=table)
        found = [Partition(name, int(end)) for name, end in rows]
    elif database.dialect == "postgresql":
        rows = await database.fetch(statements.POSTGRES_SELECT, name=f'"{table}"')
        found = [Partition(name, _parse_end(bound), is_detaching) for name, bound, is_detaching in rows]
    else:
        found = []
    return sorted(found, key=lambda partition: partition.end)


def _parse_end(bound: str | None) -> int:
    found = _BOUND.search(bound or "")
    return int(found[1]) if found else 0


async def add_partitions(database: StoreDatabase, table: str, next_id: int, partition_rows: int) -> int:
    """Add the partitions that are missing for the ids from `next_id` on; return how many were added."""
    known = await list_partitions(database, table)
    if not known:
        return 0
    number = max(partition.number for partition in known)
    covered, added = known[-1].end, 0
    current = (next_id - 1) // partition_rows
    for ahead in range(PARTITIONS_AHEAD):
        end = (current + ahead + 1) * partition_rows + 1
        if end <= covered:
            continue
        number = max(number + 1, (end - 1) // partition_rows - 1)
        await _add(database, table, number, covered, end)
        covered, added = end, added + 1
    return added


async def _add(database: StoreDatabase, table: str, number: int, first: int, end: int) -> None:
    async def in_mysql(wait: str) -> None:
        await _alter_in_mysql(database, table, statements.mysql_add(number, end), wait)

    async def in_postgresql(wait: str) -> None:
        # Attaching a table lets readers and writers continue; CREATE TABLE ... PARTITION OF does not.
        name = f"{table}$p{number}"
        async with database.transaction() as session:
            await session.execute(statements.postgres_set_lock_wait(_LOCK_WAIT_S))
            await session.execute(statements.postgres_create(table, name))
            await session.execute(statements.postgres_attach(table, name, first, end))

    try:
        await _retry(database, in_mysql if database.dialect == "mysql" else in_postgresql)
    except DuplicateKey:  # PostgreSQL: another broker is creating the same table at this moment
        return
    except DatabaseRefused as refused:
        if not any(word in str(refused) for word in _ADDED_BY_ANOTHER):
            raise


async def drop_partitions(database: StoreDatabase, table: str, partitions: list[Partition]) -> None:
    """Drop partitions with their rows. After a `LockConflict` some of them may remain."""
    if database.dialect == "mysql":
        clause = statements.mysql_drop([partition.name for partition in partitions])
        await _retry(database, lambda wait: _alter_in_mysql(database, table, clause, wait))
        return
    for partition in partitions:

        async def detach(_: str, partition: Partition = partition) -> None:
            # This process, or one that was killed, may have begun: then the detachment can only be finished.
            left = {each.name: each for each in await list_partitions(database, table)}
            if partition.name in left:
                is_pending = left[partition.name].is_detaching
                await database.execute(statements.postgres_detach(table, partition.name, is_pending=is_pending))

        await _retry(database, detach)
        await database.execute(statements.drop_table(partition.name))


async def drop_detached_partitions(database: StoreDatabase, table: str) -> int:
    """PostgreSQL: drop partitions that a killed process detached and did not drop; return how many."""
    if database.dialect != "postgresql":
        return 0
    found = await database.fetch(statements.POSTGRES_SELECT_DETACHED, start=f"{table}$p", length=len(table) + 2)
    names = [name for (name,) in found if _NUMBER.fullmatch(name[len(table) + 1 :])]
    for name in names:
        await database.execute(statements.drop_table(name))
    return len(names)


async def _alter_in_mysql(database: StoreDatabase, table: str, clause: str, wait: str) -> None:
    async with database.transaction() as session:  # only to keep one connection: DDL commits by itself
        await session.execute(statements.mysql_set_lock_wait(_LOCK_WAIT_S))
        try:
            await session.execute(statements.mysql_alter(table, wait, clause))
        finally:
            await session.execute(statements.mysql_set_lock_wait(_DEFAULT_LOCK_WAIT_S))


async def _retry(database: StoreDatabase, work: Callable[[str], Awaitable[None]]) -> None:
    """Run DDL until no lock is in its way. `work` gets the keyword that makes a statement not wait, or ""."""
    has_nowait = False
    if database.dialect == "mysql":
        ((version,),) = await database.fetch(statements.SELECT_SERVER_VERSION)
        has_nowait = "mariadb" in str(version).lower()
    for number in range(_TRIES_MAX):
        try:
            return await work("NOWAIT" if has_nowait and number < _NOWAIT_TRIES else "")
        except LockConflict:
            if number == _TRIES_MAX - 1:
                raise
        await asyncio.sleep(random.uniform(0.02, 0.2))
