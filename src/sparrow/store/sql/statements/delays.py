"""Statements on `hermes_delay`: messages that wait for their delivery time."""

from __future__ import annotations

from collections.abc import Iterable

INSERT = """
    INSERT INTO hermes_delay (due, topic, queue_id, unique_key, body, source_ip, properties, at, token)
    VALUES (:due, :topic, :queue_id, :key, :body, :ip, :properties, :at, :token)"""

COUNT = "SELECT COUNT(*) FROM hermes_delay"

SELECT_SAME = "SELECT id FROM hermes_delay WHERE unique_key = :key AND topic = :topic AND due = :due AND at = :at"

SELECT_DUE = """
    SELECT id, topic, queue_id, body, source_ip, properties, token
    FROM hermes_delay
    WHERE due <= :now
    ORDER BY due, id
    LIMIT :count"""

SELECT_WAITING = """
    SELECT id, due, topic, unique_key, LENGTH(body), source_ip, properties, at
    FROM hermes_delay
    WHERE due >= :due AND (due > :due OR id > :id)
    ORDER BY due, id
    LIMIT :count"""

CANCEL = "DELETE FROM hermes_delay WHERE unique_key = :key AND topic = :topic AND due = :due"


def delete(ids: Iterable[int]) -> str:
    """Delete messages that are delivered in the same transaction."""
    return f"DELETE FROM hermes_delay WHERE id IN ({', '.join(map(str, ids))})"
