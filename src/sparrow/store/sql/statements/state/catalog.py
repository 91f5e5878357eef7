"""Statements on `hermes_schema`, `hermes_topic` and `hermes_group`."""

SELECT_SCHEMA_VERSION = "SELECT MAX(version) FROM hermes_schema"

SELECT_TOPICS = "SELECT options, state FROM hermes_topic ORDER BY topic"

SELECT_ACTIVE_TOPICS = "SELECT topic, options FROM hermes_topic WHERE state = 'active'"

SELECT_UNFINISHED_TOPICS = "SELECT topic, state, options FROM hermes_topic WHERE state <> 'active'"

SELECT_TOPIC = "SELECT options FROM hermes_topic WHERE topic = :topic"

ACTIVATE_TOPIC = """
    UPDATE hermes_topic
    SET state = 'active', name = :name, parts = :parts, options = :options
    WHERE topic = :topic"""

MARK_TOPIC_DELETING = "UPDATE hermes_topic SET state = 'deleting' WHERE topic = :topic"

DELETE_TOPIC = "DELETE FROM hermes_topic WHERE topic = :topic"

SELECT_GROUPS = "SELECT options FROM hermes_group"

DELETE_GROUP = "DELETE FROM hermes_group WHERE name = :name"
