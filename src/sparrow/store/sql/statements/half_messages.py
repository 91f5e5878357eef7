"""Statements on `hermes_half`: half messages of transactions that are not ended."""

TABLE = "hermes_half"

SELECT = """
    SELECT producer_group, topic, queue_id, body, source_ip, properties
    FROM hermes_half
    WHERE id = :id AND state = 'half'"""

SELECT_TO_CHECK = """
    SELECT id, checks, body, source_ip, properties, at
    FROM hermes_half
    WHERE state = 'half' AND check_at <= :now
    ORDER BY check_at
    LIMIT :count"""

SET_CHECKED = """
    UPDATE hermes_half
    SET checks = :checks, check_at = :next, state = :state
    WHERE id = :id AND state = 'half' AND checks = :before"""

DELETE_UNENDED = "DELETE FROM hermes_half WHERE id = :id AND state = 'half'"

DELETE = "DELETE FROM hermes_half WHERE id = :id"
