"""Many rows in few statements, inside a transaction, in the form that each database takes quickest."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterator, Sequence

from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.drivers.url import Dialect
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.schema.table_names import table_name

_ROWS = 500
_BYTES = 1 << 20
"""Of one statement; a row alone may be larger."""
_COLUMNS = '(id, body, source_ip, token, ref_key, "timestamp", properties)'


def statement_bytes(entry: NewRow) -> int:
    """What an entry weighs in a statement, roughly."""
    return len(entry.body) + len(entry.properties) + 128


async def insert_rows(
    session: SqlSession, database: StoreDatabase, lane: Lane, base_id: int, entries: Sequence[NewRow], store_ms: int
) -> None:
    """Insert entries under ids that are theirs already."""
    kind = database.dialect
    for at, some in _portions(entries, min(_BYTES, database.packet_bytes_max)):
        if kind == "mysql":
            await session.execute(_mysql_text(lane, base_id + at, some, store_ms))
        elif kind == "postgresql":
            await session.execute(
                f'INSERT INTO "{lane.table}" {_COLUMNS}'
                " SELECT :first::bigint + u.o - 1, u.body, u.ip, u.token, u.k, :store_ms::bigint, u.props"
                " FROM unnest(:bodies::bytea[], :ips::bigint[], :tokens::int[], :keys::bytea[], :props::bytea[])"
                " WITH ORDINALITY AS u(body, ip, token, k, props, o)",
                first=base_id + at,
                store_ms=store_ms,
                bodies=[entry.body for entry in some],
                ips=[entry.source_ip for entry in some],
                tokens=[entry.token for entry in some],
                keys=[entry.ref_key for entry in some],
                props=[entry.properties for entry in some],
            )
        else:
            await _insert_sqlite(session, lane, base_id + at, some, store_ms)
    await _insert_keys(session, kind, lane, base_id, entries)


def _portions(entries: Sequence[NewRow], bytes_max: int) -> Iterator[tuple[int, Sequence[NewRow]]]:
    first = size = 0
    for at, entry in enumerate(entries):
        size += statement_bytes(entry)
        if at > first and (at - first == _ROWS or size > bytes_max):
            yield first, entries[first:at]
            first, size = at, statement_bytes(entry)
    if first < len(entries):
        yield first, entries[first:]


def _mysql_text(lane: Lane, first_id: int, entries: Sequence[NewRow], store_ms: int) -> str:
    """Every literal is a number or hex: there is nothing to escape."""
    rows = [
        f"({first_id + at},X'{hexlify(entry.body).decode()}',{entry.source_ip},{entry.token},{_literal(entry.ref_key)},"
        f"{store_ms},X'{hexlify(entry.properties).decode()}')"
        for at, entry in enumerate(entries)
    ]
    return f'INSERT INTO "{lane.table}" {_COLUMNS} VALUES {",".join(rows)}'


def _literal(value: bytes | None) -> str:
    return "NULL" if value is None else f"X'{hexlify(value).decode()}'"


async def _insert_sqlite(
    session: SqlSession, lane: Lane, first_id: int, entries: Sequence[NewRow], store_ms: int
) -> None:
    # The same text for the same count of rows: SQLite then has it compiled already.
    rows = ",".join(f"(:first+{at},:b{at},:i{at},:t{at},:k{at},:ms,:p{at})" for at in range(len(entries)))
    values: dict[str, object] = {"first": first_id, "ms": store_ms}
    for at, entry in enumerate(entries):
        values[f"b{at}"], values[f"i{at}"], values[f"t{at}"] = entry.body, entry.source_ip, entry.token
        values[f"k{at}"], values[f"p{at}"] = entry.ref_key, entry.properties
    await session.execute(f'INSERT INTO "{lane.table}" {_COLUMNS} VALUES {rows}', **values)


async def _insert_keys(session: SqlSession, kind: Dialect, lane: Lane, base_id: int, entries: Sequence[NewRow]) -> None:
    """Keys beside the first of a message."""
    keys = [(key, base_id + at) for at, entry in enumerate(entries) for key in entry.extra_keys]
    into = f'INSERT INTO "{table_name("key", lane.topic, lane.part)}" VALUES'
    literal = "'\\x{}'::bytea" if kind == "postgresql" else "X'{}'"
    for at in range(0, len(keys), _ROWS):
        rows = ",".join(
            f"({literal.format(key.hex())},'{lane.priority.label}',{number})" for key, number in keys[at : at + _ROWS]
        )
        await session.execute(f"{into} {rows}")
