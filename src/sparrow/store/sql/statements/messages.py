"""Statements on the message tables (`msg_high_orders`) and key tables (`key_orders`) of a topic."""

from __future__ import annotations

from collections.abc import Iterable

from sparrow.store.sql.row_codec import MESSAGE_COLUMNS

_QUALIFIED_COLUMNS = ", ".join(f"m.{name.strip()}" for name in MESSAGE_COLUMNS.split(","))


def select_after(table: str, columns: str) -> str:
    """Select up to `:count` messages with ids between `:after` and `:before`, neither included."""
    return f'SELECT {columns} FROM "{table}" WHERE id > :after AND id < :before ORDER BY id LIMIT :count'


def select_time_after(table: str) -> str:
    """Select the store time of the first message after an id."""
    return f'SELECT "timestamp" FROM "{table}" WHERE id > :after ORDER BY id LIMIT 1'


def select_time_from(table: str) -> str:
    """Select the store time of the first message from an id on."""
    return f'SELECT "timestamp" FROM "{table}" WHERE id >= :id ORDER BY id LIMIT 1'


def select_time_before(table: str) -> str:
    """Select the store time of the last message before an id."""
    return f'SELECT "timestamp" FROM "{table}" WHERE id < :end ORDER BY id DESC LIMIT 1'


def select_ids_and_times(table: str) -> str:
    """Select ids and store times of a range of ids."""
    return f'SELECT id, "timestamp" FROM "{table}" WHERE id >= :start AND id < :until ORDER BY id'


def select_by_first_key(table: str) -> str:
    """Select the newest messages whose first key is `:key`."""
    return f"""
        SELECT {_QUALIFIED_COLUMNS}
        FROM "{table}" m
        WHERE m.ref_key = :key
        {_NEWEST_OF_PERIOD}"""


def select_by_extra_key(table: str, key_table: str) -> str:
    """Select the newest messages that have `:key` among their other keys."""
    return f"""
        SELECT {_QUALIFIED_COLUMNS}
        FROM "{key_table}" k JOIN "{table}" m ON m.id = k.id
        WHERE k.ref_key = :key AND k.priority = :priority
        {_NEWEST_OF_PERIOD}"""


_NEWEST_OF_PERIOD = """
    AND m."timestamp" >= :begin AND m."timestamp" <= :until AND m.id < :before
    ORDER BY m.id DESC
    LIMIT :count"""


def select_tokens(table: str, ids: Iterable[int]) -> str:
    """Select the tokens that messages were sent with."""
    return f'SELECT id, token FROM "{table}" WHERE id IN ({", ".join(map(str, ids))})'


# -- deletion by retention ---------------------------------------------------------------------------------------------


def select_oldest_id(table: str) -> str:
    """Select the lowest id."""
    return f'SELECT MIN(id) FROM "{table}"'


def delete_before(table: str) -> str:
    """Delete the messages before an id."""
    return f'DELETE FROM "{table}" WHERE id < :until'


def select_nth_key(key_table: str, n: int) -> str:
    """Select the n-th key after a key, in the order of the primary key."""
    return f'SELECT ref_key FROM "{key_table}" WHERE ref_key > :after ORDER BY ref_key LIMIT 1 OFFSET {n - 1}'


def delete_keys_after(key_table: str) -> str:
    """Delete the keys after a key that belong to deleted messages."""
    return f"""
        DELETE FROM "{key_table}"
        WHERE ref_key > :after AND priority = :priority AND id < :first"""


def delete_keys_between(key_table: str) -> str:
    """Delete the keys between two keys that belong to deleted messages."""
    return f"""
        DELETE FROM "{key_table}"
        WHERE ref_key > :after AND ref_key < :upto AND priority = :priority AND id < :first"""


def select_nth_id_of_key(key_table: str, n: int) -> str:
    """Select the n-th deleted message that one key belongs to."""
    return f"""
        SELECT id
        FROM "{key_table}"
        WHERE ref_key = :key AND priority = :priority AND id < :first
        ORDER BY id LIMIT 1 OFFSET {n - 1}"""


def delete_key(key_table: str) -> str:
    """Delete the rows of one key that belong to messages before an id."""
    return f'DELETE FROM "{key_table}" WHERE ref_key = :key AND priority = :priority AND id < :first'
