"""Statements that append messages: each dialect has the form that it executes fastest.

MySQL's texts hold only numbers and hex literals, so that nothing has to be escaped.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from functools import lru_cache

from sparrow.store.sql.append.batch_ids import BatchId
from sparrow.store.sql.drivers.url import Dialect
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


def mysql_append(lane: Lane, rows: Sequence[NewRow], batch_ids: Sequence[BatchId], now_ms: int) -> bytes:
    """Return an append as one text of several statements: the server has all of it before it locks the lane's row."""
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
    parts = [
        b"(@b+%d,X'%b',%d,%d,%b,@t,X'%b')"
        % (n, hexlify(row.body), row.source_ip, row.token, _hex_literal(row.ref_key), hexlify(row.properties))
        for n, row in enumerate(rows)
    ]
    # Joined once: in a large batch each copy of the text costs as much as building it.
    parts[0] = start.encode() + parts[0]
    parts[-1] += end.encode()
    return b",".join(parts)


def _hex_literal(value: bytes | None) -> bytes:
    return b"NULL" if value is None else b"X'%b'" % hexlify(value)


@lru_cache(4096)
def postgres_append(lane: Lane, *, has_keys: bool) -> str:
    """Return an append as one statement, whose rows are arrays. It selects the first id and the store time."""
    keys = f"""
        , k AS (
            INSERT INTO "{table_name("key", lane.topic, lane.part)}"
            SELECT u.key, '{lane.priority.label}', l.b + u.at
            FROM l, unnest($14::bytea[], $15::int[]) AS u(key, at)
        )"""
    return f"""
        WITH l AS (
            UPDATE hermes_lane
            SET next_id = next_id + $6::int, last_ts = GREATEST(last_ts, $7::bigint)
            WHERE lane = $8::int
            RETURNING next_id - $6::int AS b, last_ts AS t
        ), d AS (
            INSERT INTO hermes_batch
            SELECT u.lane, u.producer, u.seq, l.b + u.first, u.n, l.t
            FROM l, unnest($9::int[], $10::bigint[], $11::bigint[], $12::bigint[], $13::int[])
                AS u(lane, producer, seq, first, n)
        ){keys if has_keys else ""}
        , m AS (
            INSERT INTO "{lane.table}"
            SELECT l.b + u.o - 1, u.body, u.ip, u.token, u.k, l.t, u.props
            FROM l, unnest($1::bytea[], $2::bigint[], $3::int[], $4::bytea[], $5::bytea[])
                WITH ORDINALITY AS u(body, ip, token, k, props, o)
        )
        SELECT b, t FROM l"""


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
