"""A new group does not miss the first messages of a new topic, at whatever moment of the consumer's start they come."""

from pathlib import Path

import pytest
from tests.interop.java import SETTLE_S, java_client
from tests.interop.official import Kit
from tests.interop.platforms import Platform

from sparrow.client import Admin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPICS = 24
QUEUES = 4
AT_ONCE = 4
"""Consumers that start at the same time: with more, a start would take longer than the time of the sends."""
SPREAD_MS = 600
"""About twice as long as a start: some messages come before its end, some after it."""


def test_new_groups_get_the_first_messages_of_new_topics(kit: Kit, on: Platform, tmp_path: Path) -> None:
    prefix = f"first_{kit.version.partition('.')[0]}"
    with Admin(on.name_server) as admin:
        for number in range(TOPICS):
            admin.create_topic(f"{prefix}_{number}", QUEUES)
    with java_client(kit, on.name_server, tmp_path) as java:
        missing = java.order(
            "first_messages",
            prefix=prefix,
            topics=TOPICS,
            atOnce=AT_ONCE,
            spreadMs=SPREAD_MS,
            seed=1,
            timeoutMs=SETTLE_S * 1000,
        )
    assert missing == []
