"""Statements on the offset tables (`offset_orders`) of a topic."""

from __future__ import annotations

from sparrow.databases.url import Dialect


def select_offset(table: str) -> str:
    """Select the committed offset of a group."""
    return f'SELECT "offset" FROM "{table}" WHERE group_id = :group_id AND priority = :priority'


def select_offsets(table: str) -> str:
    """Select the committed offsets of all groups."""
    return f'SELECT group_id, "offset", priority FROM "{table}"'


def select_lowest(table: str) -> str:
    """Select the lowest offset of the groups that committed since a time."""
    return f'SELECT MIN("offset") FROM "{table}" WHERE priority = :priority AND updated_at >= :since'


def set_offset(table: str) -> str:
    """Set the offset of a group, unless its row has a newer epoch."""
    return f"""
        UPDATE "{table}"
        SET "offset" = :offset, epoch = :epoch, updated_at = :now
        WHERE group_id = :group_id AND priority = :priority AND epoch <= :epoch"""


def set_offset_forward(table: str) -> str:
    """Set the offset of a group, unless its row has a newer epoch or a greater offset."""
    return f'{set_offset(table)} AND "offset" <= :offset'


def raise_offset(dialect: Dialect, table: str) -> str:
    """Raise the offset of a group, never lower it, unless its row has a newer epoch."""
    greatest = "MAX" if dialect == "sqlite" else "GREATEST"
    return f"""
        UPDATE "{table}"
        SET "offset" = {greatest}("offset", :offset), epoch = :epoch, updated_at = :now
        WHERE group_id = :group_id AND priority = :priority AND epoch <= :epoch"""


def delete_group(table: str) -> str:
    """Delete the rows of a group."""
    return f'DELETE FROM "{table}" WHERE group_id = :group_id'
