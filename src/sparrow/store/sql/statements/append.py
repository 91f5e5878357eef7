"""Statements that append messages: each dialect has the form that it executes fastest.

MySQL's texts hold only numbers and hex literals, so that nothing has to be escaped.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from sparrow.databases.url import Dialect
from sparrow.store.sql.append.batch_ids import BatchId
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.row_codec import NewRow
from sparrow.store.sql.schema.table_names import table_name

_COLUMNS = '(id, body, source_ip, token, ref_key, "timestamp", properties)'

# -- rows whose ids are known ------------------------------------------------------------------------------------------


@lru_cache(1024)
def sqlite_insert_rows(table: str, count: int) -> str:
    """Insert `count` rows with the values of `sqlite_row_values`. SQLite keeps compiled statements by their text."""
    rows = ",".join(f"(:first+{n},:b{n},:i{n},:t{n},:k{n},:ms,:p{n})" for n in range(count))
    return f'INSERT INTO "{table}" {_COLUMNS} VALUES {rows}'


def sqlite_row_values(first_id: int, rows: Sequence[NewRow], store_ms: int) -> dict[str, object]:
    """Return the values of `sqlite_insert_rows`."""
    values: dict[str, object] = {"first": first_id, "ms": store_ms}
    for n, row in enumerate(rows):
        values[f"b{n}"], values[f"i{n}"], values[f"t{n}"] = row.body, row.source_ip, row.token
        values[f"k{n}"], values[f"p{n}"] = row.ref_key, row.properties
    return values


def mysql_insert_literals(table: str, first_id: int, rows: Sequence[NewRow], store_ms: int) -> str:
    """Insert rows whose values are part of the text."""
    values = ",".join(
        f"({first_id + n},X'{hexlify(row.body).decode()}',{row.source_ip},{row.token},"
        f"{_hex_literal(row.ref_key).decode()},{store_ms},X'{hexlify(row.properties).decode()}')"
        for n, row in enumerate(rows)
    )
    return f'INSERT INTO "{table}" {_COLUMNS} VALUES {values}'


def postgres_insert_arrays(table: str) -> str:
    """Insert rows whose columns are arrays."""
    return f"""
        INSERT INTO "{table}" {_COLUMNS}
        SELECT :first::bigint + u.o - 1, u.body, u.ip, u.token, u.k, :store_ms::bigint, u.props
        FROM unnest(:bodies::bytea[], :ips::bigint[], :tokens::int[], :keys::bytea[], :props::bytea[])
            WITH ORDINALITY AS u(body, ip, token, k, props, o)"""


def insert_keys(dialect: Dialect, key_table: str, priority: str, keys: Sequence[tuple[bytes, int]]) -> str:
    """Insert keys with the ids of their messages, all as literals."""
    literal = "'\\x{}'::bytea" if dialect == "postgresql" else "X'{}'"
    rows = ",".join(f"({literal.format(key.hex())},'{priority}',{message_id})" for key, message_id in keys)
    return f'INSERT INTO "{key_table}" VALUES {rows}'


# -- whole appends: take ids, insert batch ids, messages and keys ------------------------------------------------------


def mysql_append(
    lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int, *, has_compounds: bool
) -> bytes:
    """Return an append as one text of several statements: the server has all of it before it locks the lane's row.

    The server sends a response for each statement, which costs more than most of them do. MariaDB has compound
    statements, with one response each (`has_compounds`), but takes longer to parse one of many rows.
    """
    number, count = lane.number, len(rows)
    start = (
        # An earlier append on this connection may have left values, and the lane may be gone.
        "SET @b=NULL,@t=NULL;START TRANSACTION;"
        f"UPDATE hermes_lane SET next_id=next_id+{count},last_ts=GREATEST(last_ts,{now_ms}) WHERE lane={number};"
        f"SELECT next_id-{count},last_ts INTO @b,@t FROM hermes_lane WHERE lane={number};"
    )
    if batch_ids:
        values = ",".join(
            f"({b.stored_lane(lane)},{b.producer},{b.seq},@b+{b.stored_offset(lane)},{b.size},@t)" for b in batch_ids
        )
        start += f"INSERT INTO hermes_batch VALUES {values};"
    start += f'INSERT INTO "{lane.table}" (id,body,source_ip,token,ref_key,"timestamp",properties) VALUES '
    end = ";"
    keys = [f"(X'{key.hex()}','{lane.priority.label}',@b+{n})" for n, row in enumerate(rows) for key in row.extra_keys]
    if keys:
        end += f'INSERT INTO "{table_name("key", lane.topic, lane.part)}" VALUES {",".join(keys)};'
    end += "COMMIT;SELECT @b,@t"
    if has_compounds:
        start, end = f"BEGIN NOT ATOMIC {start}", f"{end};END;"
    parts = [
        b"(@b+%d,X'%b',%d,%d,%b,@t,X'%b')"
        % (n, hexlify(row.body), row.source_ip, row.token, _hex_literal(row.ref_key), hexlify(row.properties))
        for n, row in enumerate(rows)
    ]
    # Joined once: in a large batch each copy of the text costs as much as building it.
    parts[0] = start.encode() + parts[0]
    parts[-1] += end.encode()
    return b",".join(parts)


def mysql_take_ids(lane: Lane, count: int, now_ms: int) -> str:
    """Begin a transaction, take ids, and select the first of them and the store time; no row: the lane is gone."""
    return (
        "START TRANSACTION;"
        f"UPDATE hermes_lane SET next_id=next_id+{count},last_ts=GREATEST(last_ts,{now_ms}) WHERE lane={lane.number};"
        f"SELECT next_id-{count},last_ts FROM hermes_lane WHERE lane={lane.number}"
    )


@lru_cache(4096)
def mariadb_insert_rows(table: str, *, has_keys: bool) -> str:
    """Insert one message (executed for many at once). The driver knows no type of a column that is NULL in all."""
    columns = _COLUMNS if has_keys else _COLUMNS.replace(" ref_key,", "")
    return f'INSERT INTO "{table}" {columns} VALUES ({"%s," * columns.count(",")}%s)'


def mysql_end_append(
    lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], base_id: int, store_ms: int
) -> str:
    """Insert the batch ids and keys of messages that are inserted, and commit."""
    values = ",".join(
        f"({b.stored_lane(lane)},{b.producer},{b.seq},{base_id + b.stored_offset(lane)},{b.size},{store_ms})"
        for b in batch_ids
    )
    text = f"INSERT INTO hermes_batch VALUES {values};" if batch_ids else ""
    keys = [(key, base_id + n) for n, row in enumerate(rows) for key in row.extra_keys]
    if keys:
        text += insert_keys("mysql", table_name("key", lane.topic, lane.part), lane.priority.label, keys) + ";"
    return f"{text}COMMIT"


def _hex_literal(value: bytes | None) -> bytes:
    return b"NULL" if value is None else b"X'%b'" % hexlify(value)


@lru_cache(4096)
def postgres_append(lane: Lane, *, has_keys: bool) -> str:
    """Return an append as one statement. It selects the first id and the store time.

    asyncpg examines whether each element of an array is an array, which takes longer than all else. So the bytes of all
    rows are one value, from which the server cuts the columns, and numbers are arrays in texts. Where these hold no
    address or token, it is that of the first row.
    """
    keys = f"""
        , k AS (
            INSERT INTO "{table_name("key", lane.topic, lane.part)}"
            SELECT u.key, '{lane.priority.label}', l.b + u.at
            FROM l, unnest($18::bytea[], $19::int[]) AS u(key, at)
        )"""
    return f"""
        WITH l AS (
            UPDATE hermes_lane
            SET next_id = next_id + $10::int, last_ts = GREATEST(last_ts, $11::bigint)
            WHERE lane = $12::int
            RETURNING next_id - $10::int AS b, last_ts AS t
        ), d AS (
            INSERT INTO hermes_batch
            SELECT u.lane, u.producer, u.seq, l.b + u.first, u.n, l.t
            FROM l, unnest($13::int[], $14::bigint[], $15::bigint[], $16::bigint[], $17::int[])
                AS u(lane, producer, seq, first, n)
        ){keys if has_keys else ""}
        , m AS (
            INSERT INTO "{lane.table}"
            SELECT
                l.b + u.o - 1,
                substring($1::bytea FROM u.start FOR u.body),
                COALESCE(u.ip, $8::bigint),
                COALESCE(u.token, $9::int),
                CASE WHEN u.key > 0 THEN substring($1::bytea FROM u.start + u.body + u.props FOR u.key) END,
                l.t,
                substring($1::bytea FROM u.start + u.body FOR u.props)
            FROM l, unnest(
                $2::text::int[],
                $3::text::int[],
                $4::text::int[],
                $5::text::int[],
                $6::text::bigint[],
                $7::text::int[]
            ) WITH ORDINALITY AS u(start, body, props, key, ip, token, o)
        )
        SELECT b, t FROM l"""


def postgres_append_values(
    lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int
) -> list[object]:
    """Return the values of `postgres_append`."""
    parts: list[bytes] = []
    for row in rows:
        parts += (row.body, row.properties, row.ref_key or b"")
    sizes = list(map(len, parts))
    ends = list(accumulate(sizes, initial=1))
    numbers = (
        *(ends[:-1:3], sizes[::3], sizes[1::3], sizes[2::3]),
        _none_if_equal([row.source_ip for row in rows]),
        _none_if_equal([row.token for row in rows]),
    )
    values: list[object] = [
        b"".join(parts),
        *(f"{{{str(each)[1:-1]}}}" for each in numbers),
        *(rows[0].source_ip, rows[0].token, len(rows), now_ms, lane.number),
        [batch.stored_lane(lane) for batch in batch_ids],
        [batch.producer for batch in batch_ids],
        [batch.seq for batch in batch_ids],
        [batch.stored_offset(lane) for batch in batch_ids],
        [batch.size for batch in batch_ids],
    ]
    keys = [(key, at) for at, row in enumerate(rows) for key in row.extra_keys]
    if keys:
        values += [[key for key, _ in keys], [at for _, at in keys]]
    return values


def _none_if_equal(numbers: list[int]) -> list[int]:
    """Return no number if all are the same, as those of one sender are."""
    return [] if numbers.count(numbers[0]) == len(numbers) else numbers


SQLITE_TAKE_IDS = """
    UPDATE hermes_lane
    SET next_id = next_id + ?, last_ts = MAX(last_ts, ?)
    WHERE lane = ?
    RETURNING next_id - ?, last_ts"""

SQLITE_INSERT_BATCH_ID = "INSERT INTO hermes_batch VALUES (?, ?, ?, ?, ?, ?)"


def sqlite_insert_message(table: str) -> str:
    """Insert one message (executed for many)."""
    return f'INSERT INTO "{table}" VALUES (?, ?, ?, ?, ?, ?, ?)'


def sqlite_insert_key(key_table: str) -> str:
    """Insert one key of a message beside its first (executed for many)."""
    return f'INSERT INTO "{key_table}" VALUES (?, ?, ?)'
