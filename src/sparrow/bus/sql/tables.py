"""The tables as SQLAlchemy metadata, for Alembic, `sparrow bus ddl` and migrations.

The first columns of published (8) and received (9) are in CAP's order, as its dashboard reads rows by position.

| table | one row is |
| --- | --- |
| published | an event this application publishes |
| received | an event that arrived for one of its groups |
| queue | open work: every message that is not closed has one |
| inbox | a message id that a group has seen, kept longer than the message itself |
| lock | a lock that one process holds |
| schema_version | a migration that was applied |
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable

from sparrow.bus.sql.dialect import DatabaseKind

NAME_CHARS = 400
GROUP_CHARS = 200
KEY_CHARS = 200
MESSAGE_ID_CHARS = 128
SCHEMA_VERSION_TABLE = "schema_version"

_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_DIALECTS = {"mysql": mysql.dialect, "postgresql": postgresql.dialect, "sqlite": sqlite.dialect}


def metadata(kind: DatabaseKind, space: str = "cap", *, strict: bool = False) -> MetaData:
    """Return the tables, for Alembic's `target_metadata`."""
    meta = MetaData(schema=space if kind == "postgresql" else None)
    prefix = "" if kind == "postgresql" else f"{space}."

    def named(table: str) -> str:
        return f"{prefix}{table}"

    def index(name: str, table: Table, *columns: str, where: str | None = None) -> None:
        # In SQLite index names are unique per database.
        full = f"ix_{space}_{name}" if kind == "sqlite" else f"ix_{name}"
        condition: dict[str, Any] = {}
        if where is not None:
            condition = {"postgresql_where": text(where), "sqlite_where": text(where)}
        Index(full, *(table.c[column] for column in columns), **condition)

    published = Table(named("published"), meta, *_message_columns(), **_OPTIONS)
    received = Table(
        named("received"),
        meta,
        *_message_columns(Column("Group", String(GROUP_CHARS))),
        Column("MsgId", String(MESSAGE_ID_CHARS), nullable=False),
        *([UniqueConstraint("Group", "MsgId")] if strict else []),
        **_OPTIONS,
    )
    queue = Table(
        named("queue"),
        meta,
        Column("Seq", _big(), Identity(always=True), primary_key=True),
        Column("MessageType", SmallInteger, nullable=False),
        Column("MessageId", _big(), nullable=False),
        Column("Group", String(GROUP_CHARS), nullable=False, server_default=""),
        Column("NextAt", _moment(), nullable=False),
        Column("OrderKey", String(KEY_CHARS)),
        Column("LockedBy", String(64)),
        Column("LockToken", Integer, nullable=False, server_default=text("0")),
        Column("Crashes", SmallInteger, nullable=False, server_default=text("0")),
        UniqueConstraint("MessageType", "MessageId"),
        sqlite_autoincrement=True,
        # It changes often: leave space in the pages for updates in place, and vacuum soon.
        postgresql_with={"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01},
        **_OPTIONS,
    )
    for name, table in (("published", published), ("received", received)):
        index(f"{name}_expires", table, "ExpiresAt", where='"ExpiresAt" IS NOT NULL')
        index(f"{name}_open", table, "StatusName", "Added", where="\"StatusName\" NOT IN ('Successed', 'Succeeded')")
    if kind == "mysql":  # no partial indexes: OrderKey before NextAt keeps rows without a key together
        index("queue_due", queue, "MessageType", "Group", "OrderKey", "NextAt", "Seq")
        index("queue_key", queue, "MessageType", "Group", "OrderKey", "Seq")
    else:
        index("queue_due", queue, "MessageType", "Group", "NextAt", "Seq", where='"OrderKey" IS NULL')
        index("queue_key", queue, "MessageType", "Group", "OrderKey", "Seq", where='"OrderKey" IS NOT NULL')
    if strict:
        return meta
    inbox = Table(
        named("inbox"),
        meta,
        Column("Group", String(GROUP_CHARS), primary_key=True),
        Column("MsgId", String(MESSAGE_ID_CHARS), primary_key=True),
        Column("SeenAt", _moment(), nullable=False),
        sqlite_with_rowid=False,
        **_OPTIONS,
    )
    index("inbox_seen", inbox, "SeenAt")
    Table(
        named("lock"),
        meta,
        Column("Key", String(128), primary_key=True),
        Column("Instance", String(256)),
        Column("LastLockTime", _moment(), nullable=False),
        **_OPTIONS,
    )
    Table(
        named(SCHEMA_VERSION_TABLE),
        meta,
        Column("Version", Integer, primary_key=True, autoincrement=False),
        Column("Description", String(200), nullable=False),
        Column("AppliedAt", _moment(), nullable=False),
        **_OPTIONS,
    )
    return meta


def ddl(kind: DatabaseKind, space: str = "cap", *, strict: bool = False) -> str:
    """Return the statements that create the tables, for databases where the bus may not create them."""
    meta = metadata(kind, space, strict=strict)
    statements: list[Any] = [CreateSchema(space, if_not_exists=True)] if kind == "postgresql" else []
    for table in meta.sorted_tables:
        statements.append(CreateTable(table, if_not_exists=True))
        if kind == "mysql":
            continue
        statements += [CreateIndex(index, if_not_exists=True) for index in sorted(table.indexes, key=_name_of)]
    lines = [str(statement.compile(dialect=_DIALECTS[kind]())).strip() + ";" for statement in statements]
    if kind == "mysql":
        lines = _with_indexes_inside(meta, lines)
    return "\n\n".join(lines) + "\n"


def _with_indexes_inside(meta: MetaData, lines: list[str]) -> list[str]:
    """Move the indexes into CREATE TABLE: MySQL has no CREATE INDEX IF NOT EXISTS."""
    result = []
    for table, line in zip(meta.sorted_tables, lines, strict=True):
        keys = "".join(
            f", \n\tKEY `{index.name}` ({', '.join(f'`{column.name}`' for column in index.columns)})"
            for index in sorted(table.indexes, key=_name_of)
        )
        inner, closing, options = line.rpartition("\n)")
        result.append(inner + keys + closing + options)
    return result


def _name_of(index: Index) -> str:
    return str(index.name)


def _message_columns(*after_name: Column[Any]) -> list[Column[Any]]:
    return [
        Column("Id", _big(), primary_key=True, autoincrement=False),
        Column("Version", String(20), nullable=False, server_default="v1"),
        Column("Name", String(NAME_CHARS), nullable=False),
        *after_name,
        Column("Content", Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")),
        Column("Retries", Integer, nullable=False, server_default=text("0")),
        Column("Added", _moment(), nullable=False),
        Column("ExpiresAt", _moment()),
        Column("StatusName", String(50), nullable=False),
        Column("OrderKey", String(KEY_CHARS)),
        Column("Rounds", Integer, nullable=False, server_default=text("0")),
        Column("LastError", Text),
        # 1: excluded from retry rounds; only an operator requeues it.
        Column("Parked", SmallInteger, nullable=False, server_default=text("0")),
    ]


def _big() -> Any:
    return BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def _moment() -> Any:
    return (
        DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb").with_variant(Text(), "sqlite")
    )
