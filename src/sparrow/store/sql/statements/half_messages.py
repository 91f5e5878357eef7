"""Statements on `hermes_half`: half messages of transactions.

State `half`: not ended. `rolled_back` and `given_up`: ended at `ended_at`, and kept for some days. A commit deletes the
row.
"""

from __future__ import annotations

from collections.abc import Iterable

TABLE = "hermes_half"

SELECT = """
    SELECT producer_group, topic, queue_id, body, source_ip, properties, token, at
    FROM hermes_half
    WHERE id = :id AND state = 'half'"""

COUNT_BY_TOPIC = "SELECT topic, COUNT(*) FROM hermes_half WHERE state = 'half' GROUP BY topic"

SELECT_TO_CHECK = """
    SELECT id, checks, body, source_ip, properties, at, token
    FROM hermes_half
    WHERE state = 'half' AND check_at <= :now
    ORDER BY check_at
    LIMIT :count"""

SELECT_WAITING = """
    SELECT id, producer_group, topic, LENGTH(body), source_ip, properties, at, checks, check_at
    FROM hermes_half
    WHERE id > :after AND id <= :last AND state = 'half'
    ORDER BY id
    LIMIT :count"""

SET_CHECKED = """
    UPDATE hermes_half
    SET checks = :checks, check_at = :next
    WHERE id = :id AND state = 'half' AND checks = :before"""

ROLL_BACK = "UPDATE hermes_half SET state = 'rolled_back', ended_at = :now WHERE id = :id AND state = 'half'"

GIVE_UP = """
    UPDATE hermes_half
    SET state = 'given_up', ended_at = :now
    WHERE id = :id AND state = 'half' AND checks = :before"""

DELETE_UNENDED = "DELETE FROM hermes_half WHERE id = :id AND state = 'half'"

DELETE = "DELETE FROM hermes_half WHERE id = :id"

SELECT_ENDED_BEFORE = """
    SELECT id
    FROM hermes_half
    WHERE state = :state AND ended_at < :older
    ORDER BY ended_at
    LIMIT :count"""


def delete_all(ids: Iterable[int]) -> str:
    """Delete half messages."""
    return f"DELETE FROM hermes_half WHERE id IN ({', '.join(map(str, ids))})"
