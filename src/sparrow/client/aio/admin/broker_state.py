"""The state of single brokers: runtime figures, settings, topics, and the committed offsets of all groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from sparrow.client.aio.admin.clusters import fetch_masters, gather_all
from sparrow.client.aio.admin.queue_bounds import SizedQueueBounds, fetch_bounds_by_broker
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import UnknownTopic
from sparrow.model.queue import QueueRef
from sparrow.model.topic import Topic
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode

CommittedOffsets = dict[str, dict[tuple[str, str], dict[int, int]]]
"""Broker name to (topic, group) to queue id to offset."""
_ESCAPED = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


async def fetch_runtime(session: ClientSession, address: str) -> Mapping[str, str]:
    """Return the runtime figures of a broker, under RocketMQ's names."""
    answer = await session.invoke(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return bodies.read(bodies.KvTable, answer.body).table


async def fetch_settings(session: ClientSession, address: str) -> dict[str, str]:
    """Return the settings of a broker, under RocketMQ's names."""
    answer = await session.invoke(address, RequestCode.GET_BROKER_CONFIG)
    lines = bytes(answer.body).decode().splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {name.strip(): _unescaped(value) for name, _, value in pairs}


class TopicTables(msgspec.Struct, frozen=True):
    """All topics of all masters, and the bounds of their queues."""

    topics: dict[str, dict[str, Topic]]
    """Broker name to topic name to topic."""
    bounds: dict[QueueRef, SizedQueueBounds]


async def fetch_topic_tables(session: ClientSession, *, is_wanted: Callable[[str], bool] = bool) -> TopicTables:
    """Return the wanted topics and the bounds of their queues, with two requests for each master."""
    for attempt in (1, 2):
        masters = await fetch_masters(session)
        topics = {
            broker: {name: topic for name, topic in table.items() if is_wanted(name)}
            for broker, table in (await fetch_topic_configs(session)).items()
        }
        counts = {
            broker: {name: topic.read_queues for name, topic in table.items()}
            for broker, table in topics.items()
            if broker in masters
        }
        try:
            return TopicTables(topics, await fetch_bounds_by_broker(session, counts, masters))
        except UnknownTopic:  # deleted between the two requests
            if attempt == 2:
                raise
    raise AssertionError("the second attempt returns or raises")


async def fetch_topic_configs(session: ClientSession) -> dict[str, dict[str, Topic]]:
    """Return the configuration of every topic: broker name to topic name to topic, one request for each master."""
    masters = await fetch_masters(session)
    answers = await gather_all(
        session.invoke(address, RequestCode.GET_ALL_TOPIC_CONFIG) for address in masters.values()
    )
    tables = (bodies.read(bodies.TopicTable, answer.body).topic_config_table for answer in answers)
    return {
        broker: {name: config.topic() for name, config in sorted(table.items())}
        for broker, table in zip(masters, tables, strict=True)
    }


async def fetch_committed_offsets(session: ClientSession) -> CommittedOffsets:
    """Return all committed offsets: broker to (topic, group) to queue id to offset. One request for each master."""
    masters = await fetch_masters(session)
    answers = await gather_all(
        session.invoke(address, RequestCode.GET_ALL_CONSUMER_OFFSET) for address in masters.values()
    )
    tables = (bodies.read(bodies.ConsumerOffsets, answer.body).offset_table for answer in answers)
    return {
        broker: {(name.partition("@")[0], name.partition("@")[2]): dict(offsets) for name, offsets in table.items()}
        for broker, table in zip(masters, tables, strict=True)
    }


def _unescaped(value: str) -> str:
    """Return a value of Java's `Properties` without its escapes."""
    units = _ESCAPED.sub(
        lambda found: chr(int(found[1][1:], 16)) if len(found[1]) == 5 else _ESCAPES.get(found[1], found[1]), value
    )
    # Characters beyond 16 bits are written as two escapes.
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")
