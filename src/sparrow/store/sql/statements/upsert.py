"""INSERT statements for rows that may exist already, in each dialect."""

from __future__ import annotations

from collections.abc import Iterable

from sparrow.databases.url import Dialect


def insert(into: str, names: Iterable[str]) -> str:
    """Insert one row; each value has the name of its column."""
    names = tuple(names)
    columns, values = ", ".join(f'"{name}"' for name in names), ", ".join(f":{name}" for name in names)
    return f'INSERT INTO "{into}" ({columns}) VALUES ({values})'


def insert_if_absent(dialect: Dialect, into: str, names: Iterable[str]) -> str:
    """Insert one row, or do nothing if its key exists."""
    statement = insert(into, names)
    if dialect == "mysql":
        return statement.replace("INSERT", "INSERT IGNORE", 1)
    return f"{statement} ON CONFLICT DO NOTHING"


def upsert(dialect: Dialect, into: str, names: Iterable[str], *, key: str, update: str) -> str:
    """Insert one row, or apply `update` to the row that has its key.

    One statement, because two connections may both execute an UPDATE that finds no row, and the second of their INSERTs
    fails. `update` qualifies the columns that it reads with the table: `n = t.n + 1`.
    """
    exists = "ON DUPLICATE KEY UPDATE" if dialect == "mysql" else f'ON CONFLICT ("{key}") DO UPDATE SET'
    return f"{insert(into, names)} {exists} {update}"
