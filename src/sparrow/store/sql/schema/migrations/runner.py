"""Creating or migrating the shared tables when a database is opened.

1. One process at a time does it: the others wait for the schema lock, then find the work done.
2. The row of a version is inserted after its migration. On SQLite and PostgreSQL all is one transaction; on MySQL,
   whose DDL cannot be rolled back, the next process repeats a migration that was interrupted.
3. A database of a newer version is refused before anything is changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from sparrow.databases.url import Dialect
from sparrow.model.errors import StorageError
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused, LockConflict
from sparrow.store.sql.schema import ddl
from sparrow.store.sql.schema.migrations import (
    m0002_autoincrement_keys,
    m0003_ledger,
    m0004_senders_and_ends,
    m0005_topic_name,
    m0006_token_permissions,
    m0007_token_addresses,
    m0008_token_acls,
)
from sparrow.store.sql.statements import upsert
from sparrow.store.sql.statements.state import catalog as statements


class Migration(NamedTuple):
    """Brings a database from the version before to `version`."""

    version: int
    apply: Callable[[SqlSession, Dialect], Awaitable[None]]


MIGRATIONS = (
    Migration(2, m0002_autoincrement_keys.apply),
    Migration(3, m0003_ledger.apply),
    Migration(4, m0004_senders_and_ends.apply),
    Migration(5, m0005_topic_name.apply),
    Migration(6, m0006_token_permissions.apply),
    Migration(7, m0007_token_addresses.apply),
    Migration(8, m0008_token_acls.apply),
)
assert [migration.version for migration in MIGRATIONS] == list(range(2, ddl.SCHEMA_VERSION + 1))


class SchemaTooNew(StorageError):
    """A newer Sparrow has migrated the database."""

    def __init__(self, database: str, version: int) -> None:
        super().__init__(database, version)
        self.database, self.version = database, version

    def __str__(self) -> str:
        return (
            f"the database {self.database} has schema version {self.version}, but this Sparrow supports versions up to "
            f"{ddl.SCHEMA_VERSION}. Install the Sparrow version that migrated the database, or a newer one."
        )


async def prepare_schema(database: StoreDatabase, now_ms: int) -> None:
    """Create the shared tables, or bring them to the current version; raise `SchemaTooNew` if that is older."""
    if await _version(database) == ddl.SCHEMA_VERSION:
        return
    async with schema_lock(database) as session:
        await session.execute(ddl.schema_table(database.dialect))
        ((version,),) = await session.fetch(statements.SELECT_SCHEMA_VERSION)
        if version is None:
            for statement in ddl.shared_tables(database.dialect):
                await session.execute(statement)
            await _record(session, ddl.SCHEMA_VERSION, now_ms)
            return
        for migration in MIGRATIONS:
            if migration.version > version:
                await migration.apply(session, database.dialect)
                await _record(session, migration.version, now_ms)


async def _version(database: StoreDatabase) -> int | None:
    """Return the version of the database; None if it has no tables, or not all of them."""
    try:
        ((version,),) = await database.fetch(statements.SELECT_SCHEMA_VERSION)
    except DatabaseRefused:  # hermes_schema does not exist
        return None
    if version is not None and version > ddl.SCHEMA_VERSION:
        raise SchemaTooNew(database.display_url, version)
    return None if version is None else int(version)


async def _record(session: SqlSession, version: int, now_ms: int) -> None:
    await session.execute(upsert.insert("hermes_schema", ("version", "at")), version=version, at=now_ms)


# -- the lock ----------------------------------------------------------------------------------------------------------

_LOCK_WAIT_S = 5
_POSTGRES_LOCK = "SELECT pg_advisory_xact_lock(1537699971)"
"""Released when the transaction ends. The number is arbitrary, and the same in every version of Sparrow."""
_MYSQL_LOCK_PREFIX = "sparrow_schema_"


@asynccontextmanager
async def schema_lock(database: StoreDatabase) -> AsyncIterator[SqlSession]:
    """Begin a transaction that excludes the DDL of other processes; raise `LockConflict` after some seconds."""
    async with database.transaction() as session:  # on SQLite that is a lock of the whole file
        if database.dialect == "postgresql":
            await session.fetch(_POSTGRES_LOCK)
        if database.dialect != "mysql":
            yield session
            return
        name = await _mysql_lock_name(session)
        ((is_acquired,),) = await session.fetch("SELECT GET_LOCK(:name, :wait_s)", name=name, wait_s=_LOCK_WAIT_S)
        if not is_acquired:
            raise LockConflict("another process is changing the schema")
        try:
            yield session
            # The lock does not belong to the transaction: commit first, so that the next process reads the new version.
            await session.execute("COMMIT")
        finally:
            await session.fetch("SELECT RELEASE_LOCK(:name)", name=name)


async def _mysql_lock_name(session: SqlSession) -> str:
    """Return a name of at most 64 characters, as MySQL demands. Its function MD5 is an optional component since 9.6."""
    ((database,),) = await session.fetch("SELECT DATABASE()")
    return _MYSQL_LOCK_PREFIX + hashlib.md5(database.encode(), usedforsecurity=False).hexdigest()
