"""The official push consumer in pop mode: the broker assigns queues, hides messages for a time and accepts acks.

Concurrent consumption only: the client does not pop in order, although brokers can.
"""

import pytest
from tests.interop.java import Consumer, JavaClient, Producer, ReceivedMessage
from tests.interop.mqadmin import Mqadmin
from tests.interop.official import Kit
from tests.interop.platforms import Platform

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

INVISIBLE_MS = 5_000
"""The client's minimum."""


@pytest.fixture(autouse=True)
def knows_pop(kit: Kit) -> None:
    if kit.version.startswith("4."):
        pytest.skip("clients of 4.9 do not pop")


@pytest.fixture
def group(mqadmin: Mqadmin, platform: Platform, topic: str) -> str:
    """A group that pops the test's topic."""
    name = f"{topic}_group"
    mqadmin.run("setConsumeMode", "-b", platform.broker, "-t", topic, "-g", name, "-m", "POP", "-q", "-1")
    return name


def popping(java: JavaClient, group: str, topic: str, **options: object) -> Consumer:
    return java.push_consumer(group, topic, popInvisibleMs=INVISIBLE_MS, **options)


def bodies(seen: list[ReceivedMessage]) -> list[str]:
    return sorted(message.body for message in seen)


def test_a_popped_and_consumed_message_is_delivered_once(
    java: JavaClient, producer: Producer, topic: str, group: str
) -> None:
    sent = [f"message {number:03}" for number in range(100)]
    with popping(java, group, topic) as consumer:
        assert consumer.queues(1) == {-1}, "all queues must be assigned as one"
        producer.send(topic, sent)
        consumer.receive(100)
        # Longer than the invisible time: an unacknowledged message would be delivered again.
        again = consumer.drain(1, within_s=INVISIBLE_MS / 1000 + 3)
        assert bodies(again) == []
        assert bodies(consumer.seen) == sent
        assert {message.topic for message in consumer.seen} == {topic}


def test_pop_consumers_share_all_queues(java: JavaClient, producer: Producer, topic: str, group: str) -> None:
    sent = [f"message {number:03}" for number in range(200)]
    with popping(java, group, topic) as one, popping(java, group, topic) as other:
        assert (one.queues(1), other.queues(1)) == ({-1}, {-1})
        producer.send(topic, sent)
        got: list[ReceivedMessage] = []
        while len(got) < len(sent):
            got += one.drain(1, within_s=0.2) + other.drain(1, within_s=0.2)
        assert bodies(got) == sent


def test_a_rejected_message_is_popped_again_with_its_retry_count(
    java: JavaClient, producer: Producer, topic: str, group: str
) -> None:
    with popping(java, group, topic, refusals=1) as consumer:
        consumer.queues(1)
        producer.send(topic, [{"body": "again", "tags": "TagA", "keys": "k", "properties": {"n": "1"}}])
        first, second = consumer.receive(2)
        assert (first.reconsume_times, second.reconsume_times) == (0, 1)
        assert (second.body, second.topic, second.tags, second.properties["n"]) == ("again", topic, "TagA", "1")
        assert consumer.drain(1, within_s=INVISIBLE_MS / 1000 + 3) == []


def test_tags_filter_popped_messages(java: JavaClient, producer: Producer, topic: str, group: str) -> None:
    with popping(java, group, topic, expression="TagA || TagC") as consumer:
        consumer.queues(1)
        tags = ["TagA", "TagB", "TagC"] * 5
        producer.send(topic, [{"body": f"{tag} {number}", "tags": tag} for number, tag in enumerate(tags)])
        assert {body.split()[0] for body in bodies(consumer.receive(10))} == {"TagA", "TagC"}
