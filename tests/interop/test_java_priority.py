"""The official clients on a topic with lanes: they do not know priorities and receive every message."""

import re
from collections import Counter

import pytest
from tests.interop.conftest import TEMPLATE_TOPIC
from tests.interop.java import JavaClient, Producer
from tests.interop.mqadmin import Mqadmin
from tests.interop.official import Kit
from tests.interop.platforms import Platform

from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG, Priority

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PARTS = 2
PRIORITIES = [priority.label for priority in Priority]


@pytest.fixture(autouse=True)
def knows_lanes(platform: Platform) -> None:
    if platform.kind != "sparrow":
        pytest.skip("lanes are an extension of Sparrow")


@pytest.fixture
def lanes(request: pytest.FixtureRequest, producer: Producer, kit: Kit) -> str:
    """A new topic with lanes, created by the official client."""
    name = re.sub(r"\W+", "_", f"{request.node.originalname}_{producer.client.name(kit.version)}")
    producer.create_topic(name, like=TEMPLATE_TOPIC, queues=PARTS, flags=LANES_SYS_FLAG)
    return name


def test_a_consumer_reads_every_lane_and_a_producer_writes_every_part(
    java: JavaClient, producer: Producer, mqadmin: Mqadmin, lanes: str
) -> None:
    messages = [
        {"body": f"{word} {number}", "properties": {"PRIORITY": word}} for number in range(20) for word in PRIORITIES
    ]
    with java.push_consumer(f"{lanes}_group", lanes) as consumer:
        assert consumer.queues(PARTS * LANE_COUNT) == set(range(PARTS * LANE_COUNT))
        sent = producer.send(lanes, [*messages, "of no priority"])
        seen = consumer.receive(len(sent))
    bodies = [*(str(message["body"]) for message in messages), "of no priority"]
    assert Counter(message.body for message in seen) == Counter(bodies)
    assert {one.queue_id for one in sent} == set(range(PARTS * LANE_COUNT)), "all queues must be used"
    for message in seen:
        assert PRIORITIES[message.queue_id % LANE_COUNT] == message.properties.get("PRIORITY", "middle")
    ends = {row["QID"]: row["Max Offset"] for row in mqadmin.table("topicStatus", "-t", lanes)}
    assert len(ends) == PARTS * LANE_COUNT
    assert sum(map(int, ends.values())) == len(sent)


def test_a_batch_goes_to_the_lane_of_its_messages(java: JavaClient, producer: Producer, lanes: str) -> None:
    messages = [{"body": str(number), "properties": {"PRIORITY": "high"}} for number in range(10)]
    [sent] = producer.send(lanes, messages, mode="batch")
    assert sent.queue_id % LANE_COUNT == Priority.HIGH
    with java.push_consumer(f"{lanes}_group", lanes) as consumer:
        seen = consumer.receive(len(messages))
    assert {message.queue_id for message in seen} == {sent.queue_id}


def test_a_pop_consumer_gets_the_highest_priority_first(
    java: JavaClient, producer: Producer, mqadmin: Mqadmin, platform: Platform, kit: Kit, lanes: str
) -> None:
    if kit.version.startswith("4."):
        pytest.skip("clients of 4.9 do not pop")
    group = f"{lanes}_group"
    mqadmin.run("setConsumeMode", "-b", platform.broker, "-t", lanes, "-g", group, "-m", "POP", "-q", "-1")
    for word in reversed(PRIORITIES):
        producer.send(lanes, [{"body": f"{word} {number}", "properties": {"PRIORITY": word}} for number in range(40)])
    with java.push_consumer(group, lanes, popInvisibleMs=30_000) as consumer:
        seen = sorted(consumer.receive(120), key=lambda message: message.nth)
    assert len({message.body for message in seen}) == 120
    # Threads reorder messages within a batch or two, which does not change the order on average.
    places = {word: [n for n, one in enumerate(seen) if one.properties["PRIORITY"] == word] for word in PRIORITIES}
    assert sorted(PRIORITIES, key=lambda word: sum(places[word])) == PRIORITIES
