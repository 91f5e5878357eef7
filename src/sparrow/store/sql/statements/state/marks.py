"""Statements on `hermes_mark`: numbers by name, such as how far some work has got."""

SELECT = "SELECT value FROM hermes_mark WHERE name = :name"

DELETE = "DELETE FROM hermes_mark WHERE name = :name"

RAISE_VALUE = "value = CASE WHEN hermes_mark.value < :value THEN :value ELSE hermes_mark.value + 1 END"
"""The update of an upsert. It always changes the value: an UPDATE that changes nothing is not written to the log."""

DELETE_UNUSED_POLLER_MARKS = """
    DELETE FROM hermes_mark
    WHERE name LIKE 'seen:%' AND value >= :earliest AND value < :older"""
