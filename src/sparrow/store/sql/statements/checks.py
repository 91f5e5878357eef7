"""Statements of the consistency check, and those on `hermes_gap`, the registered holes."""

from __future__ import annotations

SELECT_GAPS = 'SELECT "start", "end" FROM hermes_gap WHERE lane = :lane ORDER BY "start"'

INSERT_GAP = """
    INSERT INTO hermes_gap (lane, "start", "end", reason, at)
    VALUES (:lane, :first, :last, :reason, :now)"""


def select_newest_id(table: str) -> str:
    """Select the highest id of a table, and the next id of its lane."""
    return f'SELECT (SELECT MAX(id) FROM "{table}"), (SELECT next_id FROM hermes_lane WHERE lane = :lane)'


def summarize_ids(table: str) -> str:
    """Select of a range of ids: how many rows, the lowest and highest time, and how often the time goes back."""
    return f"""
        SELECT COUNT(*), MIN(at), MAX(at), SUM(CASE WHEN at < before_it THEN 1 ELSE 0 END)
        FROM (
            SELECT "timestamp" AS at, LAG("timestamp") OVER (ORDER BY id) AS before_it
            FROM "{table}"
            WHERE id >= :start AND id < :until
        ) examined"""


def select_ids(table: str) -> str:
    """Select the ids in a range."""
    return f'SELECT id FROM "{table}" WHERE id >= :start AND id < :until ORDER BY id'


def count_ids(table: str) -> str:
    """Count the ids in a range."""
    return f'SELECT COUNT(*) FROM "{table}" WHERE id >= :start AND id < :until'


def select_offsets_beyond_end(offset_table: str) -> str:
    """Select the offsets of groups beyond the end of a lane."""
    return f"""
        SELECT o.group_id, o."offset", l.next_id
        FROM "{offset_table}" o JOIN hermes_lane l ON l.lane = :lane
        WHERE o.priority = :priority AND o."offset" >= l.next_id
        ORDER BY o.group_id"""


def select_bad_ranges(table: str) -> str:
    """Select the resend ranges that are not inside their lane of messages."""
    return f"""
        SELECT r.id, r."start", r."end", r.priority, l.next_id
        FROM "{table}" r JOIN hermes_lane l
            ON l.topic = :topic AND l.part = :part AND l.kind = 'm' AND l.priority = :priority
        WHERE r."end" >= l.next_id OR r."start" < 1 OR r.priority <> :priority
        ORDER BY r.id"""


def select_keys_without_message(key_table: str, table: str, *, is_last: bool) -> str:
    """Select the keys after `:after` (up to `:upto`, unless it is the last chunk) whose message is missing."""
    upto = "" if is_last else "AND k.ref_key <= :upto"
    return f"""
        SELECT k.ref_key, k.id
        FROM "{key_table}" k JOIN hermes_lane l ON l.lane = :lane
            LEFT JOIN "{table}" m ON m.id = k.id
        WHERE k.priority = :priority AND k.id >= l.first_id AND m.id IS NULL AND k.ref_key > :after {upto}"""
