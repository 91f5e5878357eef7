"""Statements on `hermes_lane`: one row for each dense sequence of ids."""

from __future__ import annotations

from collections.abc import Iterable

SELECT_ALL = "SELECT lane, topic, part, kind, priority FROM hermes_lane"

SELECT_OF_TOPIC = """
    SELECT lane, topic, part, kind, priority, first_id, next_id
    FROM hermes_lane
    WHERE topic = :topic"""

SELECT_NUMBERS_OF_TOPIC = "SELECT lane FROM hermes_lane WHERE topic = :topic"

SELECT_LANE = "SELECT lane, topic, part, kind, priority, next_id FROM hermes_lane WHERE lane = :lane"

SELECT_BOUNDS = "SELECT first_id, next_id FROM hermes_lane WHERE lane = :lane"

SELECT_NEXT_ID = "SELECT next_id FROM hermes_lane WHERE lane = :lane"

SELECT_NEXT_ID_AND_TIME = "SELECT next_id, last_ts FROM hermes_lane WHERE lane = :lane"

SELECT_RESEND_ENDS = "SELECT lane, next_id FROM hermes_lane WHERE kind = 'r'"

SELECT_TOPICS_WITHOUT_ROW = """
    SELECT DISTINCT topic
    FROM hermes_lane
    WHERE topic NOT IN (SELECT topic FROM hermes_topic)
    ORDER BY topic"""

LOCK = "UPDATE hermes_lane SET last_ts = last_ts WHERE lane = :lane"
"""Keeps all appends to the lane waiting until the transaction ends."""

TAKE_IDS = """
    UPDATE hermes_lane
    SET next_id = next_id + :count, last_ts = CASE WHEN last_ts > :now THEN last_ts ELSE :now END
    WHERE lane = :lane"""

ADVANCE_FIRST_ID = "UPDATE hermes_lane SET first_id = :to WHERE lane = :lane AND first_id < :to"

SKIP_TO = """
    UPDATE hermes_lane
    SET next_id = :next, last_ts = CASE WHEN last_ts < :latest THEN :latest ELSE last_ts END
    WHERE lane = :lane"""

DELETE_OF_TOPIC = "DELETE FROM hermes_lane WHERE topic = :topic"


def select_bounds_of(lanes: Iterable[int]) -> str:
    """Select the bounds of several lanes."""
    return f"SELECT lane, next_id, first_id FROM hermes_lane WHERE lane IN ({','.join(map(str, lanes))})"
