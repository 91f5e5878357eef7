"""Inserting many rows with few statements inside a transaction, in the form that each database executes fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparrow.databases.url import Dialect
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.statements import append as statements

_STATEMENT_ROWS_MAX = 500
_STATEMENT_BYTES_MAX = 1 << 20
"""A single row may be larger."""


def statement_bytes(row: NewRow) -> int:
    """Estimate the bytes that a row takes in a statement."""
    return len(row.body) + len(row.properties) + 128


async def insert_rows(
    session: SqlSession, database: StoreDatabase, lane: Lane, base_id: int, rows: Sequence[NewRow], store_ms: int
) -> None:
    """Insert rows under ids that the lane has assigned already."""
    dialect = database.dialect
    for index, some in _chunks(rows, min(_STATEMENT_BYTES_MAX, database.packet_bytes_max)):
        if dialect == "mysql":
            await session.execute(statements.mysql_insert_literals(lane.table, base_id + index, some, store_ms))
        elif dialect == "postgresql":
            await session.execute(
                statements.postgres_insert_arrays(lane.table),
                first=base_id + index,
                store_ms=store_ms,
                bodies=[row.body for row in some],
                ips=[row.source_ip for row in some],
                tokens=[row.token for row in some],
                keys=[row.ref_key for row in some],
                props=[row.properties for row in some],
            )
        else:
            values = statements.sqlite_row_values(base_id + index, some, store_ms)
            await session.execute(statements.sqlite_insert_rows(lane.table, len(some)), **values)
    await _insert_keys(session, dialect, lane, base_id, rows)


def _chunks(rows: Sequence[NewRow], bytes_max: int) -> Iterator[tuple[int, Sequence[NewRow]]]:
    """Cut the rows for statements; yield the index of the first row of each chunk, and the chunk."""
    first = size = 0
    for index, row in enumerate(rows):
        size += statement_bytes(row)
        if index > first and (index - first == _STATEMENT_ROWS_MAX or size > bytes_max):
            yield first, rows[first:index]
            first, size = index, statement_bytes(row)
    if first < len(rows):
        yield first, rows[first:]


async def _insert_keys(session: SqlSession, dialect: Dialect, lane: Lane, base_id: int, rows: Sequence[NewRow]) -> None:
    """Insert the keys of each message beside its first."""
    keys = [(key, base_id + index) for index, row in enumerate(rows) for key in row.extra_keys]
    key_table = table_name("key", lane.topic, lane.part)
    for start in range(0, len(keys), _STATEMENT_ROWS_MAX):
        some = keys[start : start + _STATEMENT_ROWS_MAX]
        await session.execute(statements.insert_keys(dialect, key_table, lane.priority.label, some))
