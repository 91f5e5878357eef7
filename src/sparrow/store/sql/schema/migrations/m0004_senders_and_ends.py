"""Version 4: senders of waiting messages, end times of transactions, and a column of `meta_token` by another name.

`meta_token.secret_hash` becomes `secret`: it never was a hash, because a broker needs the secret to check signatures.
`hermes_delay` and `hermes_half` get the sender's token, and `hermes_half` the time at which a transaction was rolled
back or given up. Transactions that were given up before become half messages again: the leader's next round gives them
up once more, and this time appends them to the topic for inspection.
"""

from __future__ import annotations

from sparrow.databases.url import Dialect
from sparrow.store.sql.drivers.database import SqlSession

_COLUMNS: dict[Dialect, str] = {
    "mysql": "SELECT column_name FROM information_schema.columns"
    " WHERE table_schema = DATABASE() AND table_name = :name",
    "postgresql": "SELECT column_name FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND table_name = :name",
    "sqlite": "SELECT name FROM pragma_table_info(:name)",
}
_INDEXES: dict[Dialect, str] = {
    "mysql": "SELECT index_name FROM information_schema.statistics"
    " WHERE table_schema = DATABASE() AND table_name = :name",
    "postgresql": "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() AND tablename = :name",
    "sqlite": "SELECT name FROM pragma_index_list(:name)",
}
_NUMBER: dict[Dialect, str] = {"mysql": "INT UNSIGNED", "postgresql": "INT", "sqlite": "INTEGER"}
_TIME: dict[Dialect, str] = {"mysql": "BIGINT", "postgresql": "BIGINT", "sqlite": "INTEGER"}


async def apply(session: SqlSession, dialect: Dialect) -> None:
    """Rename the column, and add the others with their index."""

    async def has_column(table: str, column: str) -> bool:
        return column in {name for (name,) in await session.fetch(_COLUMNS[dialect], name=table)}

    if await has_column("meta_token", "secret_hash"):
        await session.execute("ALTER TABLE meta_token RENAME COLUMN secret_hash TO secret")
    for table, column, type_ in (
        ("hermes_delay", "token", _NUMBER[dialect]),
        ("hermes_half", "token", _NUMBER[dialect]),
        ("hermes_half", "ended_at", _TIME[dialect]),
    ):
        if not await has_column(table, column):
            await session.execute(f"ALTER TABLE {table} ADD COLUMN {column} {type_}")
    if "hermes_half_ended" not in {name for (name,) in await session.fetch(_INDEXES[dialect], name="hermes_half")}:
        await session.execute("CREATE INDEX hermes_half_ended ON hermes_half (state, ended_at)")
    await session.execute("UPDATE hermes_half SET state = 'half' WHERE state = 'given_up' AND ended_at IS NULL")
