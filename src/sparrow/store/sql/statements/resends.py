"""Statements on the resend tables (`resend_high_orders`) and their offset tables (`resend_offset_orders`)."""

from __future__ import annotations


def insert_range(table: str) -> str:
    """Insert a range of messages that a group shall get again."""
    return f"""
        INSERT INTO "{table}" (id, group_id, "start", "end", priority, "timestamp", token, attempt)
        VALUES (:id, :group_id, :first, :last, :priority, :now, :token, 0)"""


def select_ranges_after(table: str) -> str:
    """Select ranges of all groups after a row."""
    return f'SELECT id, group_id, "start", "end", attempt FROM "{table}" WHERE id > :after ORDER BY id LIMIT :count'


def select_groups(offset_table: str) -> str:
    """Select the groups that are registered."""
    return f'SELECT group_id FROM "{offset_table}" WHERE priority = :priority'


def advance_offset(offset_table: str) -> str:
    """Move the offset of a group forward."""
    return f"""
        UPDATE "{offset_table}"
        SET "offset" = :row, updated_at = :now
        WHERE group_id = :group_id AND priority = :priority AND "offset" < :row"""


def select_lowest_start(table: str, offset_table: str) -> str:
    """Select the lowest id that a group shall still get again.

    A range that was requested since the time counts even if its group has had nothing to do for longer.
    """
    return f"""
        SELECT MIN(r."start")
        FROM "{table}" r JOIN "{offset_table}" o
            ON r.id > o."offset" AND (r.group_id IS NULL OR r.group_id = o.group_id)
        WHERE o.priority = :priority AND (o.updated_at >= :since OR r."timestamp" >= :since)"""
