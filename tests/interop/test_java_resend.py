"""Resent messages of Sparrow, received by official Java clients."""

import pytest
from tests.interop.java import JavaClient, Producer
from tests.interop.platforms import Platform
from tests.support.wait import wait_until

from sparrow.client import Admin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

COMMITTED_S = 30
"""Java consumers commit every five seconds."""


@pytest.fixture(autouse=True)
def only_sparrow(platform: Platform) -> None:
    if platform.kind != "sparrow":
        pytest.skip("resend is an extension of Sparrow")


def test_a_push_consumer_gets_a_resent_range(
    java: JavaClient, producer: Producer, topic: str, platform: Platform
) -> None:
    group = f"{topic}_group"
    with java.push_consumer(group, topic) as consumer, Admin(platform.name_server) as admin:
        consumer.queues(4)
        messages = [
            {"body": f"m{number} " + "x" * 5000 * (number % 2), "tags": "TagA", "keys": f"k{number}"}
            for number in range(12)
        ]
        sent = producer.send(topic, messages)
        first = {seen.msg_id: seen for seen in consumer.receive(12)}
        wait_until(lambda: not admin.progress(group, topic).lag, within_s=COMMITTED_S)

        resent = admin.resend(topic, group=group, from_ms=0)
        assert (resent.count, resent.missing, resent.groups) == (12, 0, (group,))
        again = consumer.receive(12)
        assert {seen.msg_id for seen in again} == {one.msg_id for one in sent}
        for seen in again:
            original = first[seen.msg_id]
            assert (seen.topic, seen.body, seen.tags, seen.keys) == (topic, original.body, "TagA", original.keys)
            assert (seen.reconsume_times, seen.properties["RESENT"]) == (0, "true")

        queue_id = sent[0].queue_id
        place = sent[0].queue_offset
        assert admin.resend(topic, group=group, begin=place, end=place, queue_id=queue_id).count == 1
        assert [seen.msg_id for seen in consumer.receive(1)] == [sent[0].msg_id]
        assert admin.resend(topic, group=group, keys=["k3", "k5"]).count == 2
        assert {seen.keys for seen in consumer.receive(2)} == {"k3", "k5"}
    assert len(consumer.seen) == 12 + 12 + 1 + 2


def test_a_rejected_resent_message_is_delivered_again(
    java: JavaClient, producer: Producer, topic: str, platform: Platform
) -> None:
    group = f"{topic}_group"
    with Admin(platform.name_server) as admin:
        with java.push_consumer(group, topic) as consumer:
            consumer.queues(4)
            producer.send(topic, ["hard"])
            consumer.receive(1)
            wait_until(lambda: not admin.progress(group, topic).lag, within_s=COMMITTED_S)
        admin.resend(topic, group=group, from_ms=0)
        with java.push_consumer(group, topic, refusals=1, refusalLevel=1) as consumer:
            refused, taken = consumer.receive(2)
    assert (refused.body, taken.body, taken.topic) == ("hard", "hard", topic)
    assert (refused.reconsume_times, taken.reconsume_times) == (0, 1)
