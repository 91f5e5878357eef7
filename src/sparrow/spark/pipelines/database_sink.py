"""Database sink of a pipeline: writes each batch exactly once, with rows and batch number in one transaction.

The driver writes through SQLAlchemy, so that a cluster needs no JDBC driver. It is meant for results of moderate size:
all rows of a batch go through one connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sparrow.model.errors import Refused
from sparrow.spark.pipelines.definition import Sink

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LEDGER_TABLE = "sparrow_batches"
"""The table with the last batch number of each query."""
_ROWS_AT_ONCE = 1_000


class TableWriter:
    """Writes results to a table, and the batch number to the ledger table, in one transaction."""

    def __init__(self, sink: Sink, *, scope: str) -> None:
        self._sink, self._scope = sink, f"{scope}.{sink.name}"

    def write_batch(self, frame: DataFrame, number: int) -> None:
        """Write a batch in `foreachBatch`; a batch that is written already changes nothing."""
        self._write(frame, number)

    def write_all(self, frame: DataFrame) -> None:
        """Write a bounded result. Running it again writes it again."""
        self._write(frame, None)

    def _write(self, frame: DataFrame, number: int | None) -> None:
        sql = _sqlalchemy()
        engine = sql.create_engine(_with_driver(str(self._sink.sql)), pool_pre_ping=True)
        try:
            target = self._target(sql, engine, frame.schema)
            ledger = _ledger(sql, engine)
            query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "batch"
            scope = f"{self._scope}@{query}"
            with engine.begin() as connection:
                if number is not None and not self._is_new(sql, connection, ledger, scope, number):
                    return
                if self._sink.mode == "complete":
                    connection.execute(target.delete())
                for rows in _row_batches(frame):
                    self._put(connection, target, rows)
        finally:
            engine.dispose()

    def _target(self, sql: Any, engine: sa.Engine, schema: StructType) -> sa.Table:
        """Return the target table; create it from the schema of the frame if it does not exist."""
        missing = [key for key in self._sink.keys if key not in schema.fieldNames()]
        if missing:
            raise Refused(f"sink {self._sink.name!r}: the key column {missing[0]!r} does not exist in its input")
        metadata = sql.MetaData()
        columns = [
            sql.Column(
                field.name,
                _type_of(sql, field.dataType.simpleString(), is_key=field.name in self._sink.keys),
                primary_key=field.name in self._sink.keys,
            )
            for field in schema.fields
        ]
        table: sa.Table = sql.Table(self._sink.table, metadata, *columns)
        metadata.create_all(engine, checkfirst=True)
        return table

    @staticmethod
    def _is_new(sql: Any, connection: sa.Connection, ledger: sa.Table, scope: str, number: int) -> bool:
        known = connection.execute(
            sql.select(ledger.c.batch).where(ledger.c.scope == scope).with_for_update()
        ).scalar_one_or_none()
        if known is None:
            connection.execute(ledger.insert().values(scope=scope, batch=number))
        elif known >= number:
            return False
        else:
            connection.execute(ledger.update().where(ledger.c.scope == scope).values(batch=number))
        return True

    def _put(self, connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
        keys = self._sink.keys
        if keys and self._sink.mode != "complete":
            # Delete and insert replaces a row in every database dialect, and this is one transaction.
            matches = [table.c[key] == _bind_parameter(f"old_{key}") for key in keys]
            where = matches[0]
            for match in matches[1:]:
                where = where & match
            connection.execute(table.delete().where(where), [{f"old_{key}": row[key] for key in keys} for row in rows])
        connection.execute(table.insert(), list(rows))


def _bind_parameter(name: str) -> Any:
    import sqlalchemy

    return sqlalchemy.bindparam(name)


def _row_batches(frame: DataFrame) -> Iterator[list[dict[str, Any]]]:
    for batch in frame.toArrow().to_batches(max_chunksize=_ROWS_AT_ONCE):
        if batch.num_rows:
            yield batch.to_pylist()


def _ledger(sql: Any, engine: sa.Engine) -> sa.Table:
    metadata = sql.MetaData()
    table: sa.Table = sql.Table(
        LEDGER_TABLE,
        metadata,
        sql.Column("scope", sql.String(255), primary_key=True),
        sql.Column("batch", sql.BigInteger, nullable=False),
    )
    metadata.create_all(engine, checkfirst=True)
    return table


def _type_of(sql: Any, kind: str, *, is_key: bool) -> Any:
    plain = {
        "string": sql.String(255) if is_key else sql.Text(),
        "int": sql.Integer(),
        "bigint": sql.BigInteger(),
        "smallint": sql.SmallInteger(),
        "tinyint": sql.SmallInteger(),
        "double": sql.Double(),
        "float": sql.Float(),
        "boolean": sql.Boolean(),
        "date": sql.Date(),
        "timestamp": sql.DateTime(timezone=True),
        "timestamp_ntz": sql.DateTime(),
        "binary": sql.LargeBinary(),
    }
    if kind in plain:
        return plain[kind]
    if kind.startswith("decimal"):
        precision, scale = kind[8:-1].split(",")
        return sql.Numeric(int(precision), int(scale))
    raise Refused(
        f"a database column cannot hold the type {kind}: select its fields in SQL, or convert it with to_json"
    )


def _with_driver(url: str) -> str:
    """Return the URL with the driver that `sparrowmq` installs."""
    for plain, driven in (("mysql://", "mysql+pymysql://"), ("postgresql://", "postgresql+psycopg://")):
        if url.startswith(plain):
            return driven + url.removeprefix(plain)
    return url


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError as cause:
        raise Refused("a database sink needs SQLAlchemy: run `pip install 'sparrowmq[bus]'`") from cause
    return sqlalchemy
