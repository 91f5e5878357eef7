"""mqadmin, old and new, against the platform. Its exit status is useless, so every test checks the output."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.conftest import PRODUCER_GROUP, TEMPLATE_TOPIC
from tests.interop.java import SETTLE_S, Consumer, JavaClient, Producer, SendResult
from tests.interop.mqadmin import Mqadmin, fields
from tests.interop.platforms import Platform
from tests.support.wait import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

MESSAGES = 8


class Scene(NamedTuple):
    """A topic of four queues with eight messages, all consumed by a group with one running consumer."""

    topic: str
    group: str
    sent: list[SendResult]
    consumer: Consumer

    def key(self, number: int) -> str:
        return f"{self.topic}-{number}"


@pytest.fixture(scope="module")
def scene(java: JavaClient, producer: Producer) -> Iterator[Scene]:
    topic = java.name("mqadmin_" + java.version.replace(".", "_"))
    producer.create_topic(topic, like=TEMPLATE_TOPIC)
    messages = [{"body": f"message {n}", "tags": "TagA", "keys": f"{topic}-{n}"} for n in range(MESSAGES)]
    sent = producer.send(topic, messages)
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        consumer.receive(MESSAGES)
        yield Scene(topic, f"{topic}_group", sent, consumer)


@pytest.fixture
def topic_config(client_is_newer: bool) -> None:
    if client_is_newer:
        pytest.skip("this command of 5.x sends request 351, which brokers of 4.9 do not know")


def version_name(java: JavaClient) -> str:
    """Return the version as mqadmin shows it: V4_9_7 for 4.9.7."""
    return "V" + java.version.replace(".", "_")


def route(mqadmin: Mqadmin, topic: str) -> dict[str, Any]:
    printed = mqadmin.run("topicRoute", "-t", topic)
    assert printed.startswith("{"), printed
    # fastjson writes numeric keys without quotes.
    return dict(json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', printed)))


def body_of(shown: dict[str, str]) -> str:
    """Return the body, which the tool writes to a file at a fixed place."""
    path = Path(shown["Message Body Path"])
    body = path.read_text()
    path.unlink()
    return body


def test_cluster_list_shows_the_broker(mqadmin: Mqadmin, java: JavaClient, platform: Platform) -> None:
    if platform.kind.startswith("apache-5.") and java.version.startswith("4."):
        pytest.skip("4.9 reads the field getTransferedTps, which brokers of 5.x spell correctly")
    [row] = mqadmin.table("clusterList")
    assert row["Cluster Name"] == platform.cluster
    assert row["Broker Name"] == platform.broker_name
    assert (row["BID"], row["Addr"]) == ("0", platform.broker)
    assert re.fullmatch(r"V\d+_\d+_\d+\S*", row["Version"])


def test_topic_list_shows_topics_with_their_cluster_and_groups(
    mqadmin: Mqadmin, platform: Platform, scene: Scene
) -> None:
    assert scene.topic in mqadmin.run("topicList").splitlines()
    rows = [row for row in mqadmin.table("topicList", "-c") if row["Topic"] == scene.topic]
    assert rows == [{"Cluster Name": platform.cluster, "Topic": scene.topic, "Consumer Group": scene.group}]


def test_topic_route_shows_broker_and_queues(mqadmin: Mqadmin, platform: Platform, scene: Scene) -> None:
    found = route(mqadmin, scene.topic)
    [broker] = found["brokerDatas"]
    assert broker["brokerName"] == platform.broker_name
    assert broker["cluster"] == platform.cluster
    assert broker["brokerAddrs"] == {"0": platform.broker}
    [queues] = found["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 4, 6)


def test_topic_cluster_list_shows_the_cluster(mqadmin: Mqadmin, platform: Platform, scene: Scene) -> None:
    assert mqadmin.run("topicClusterList", "-t", scene.topic).split() == [platform.cluster]


@pytest.mark.usefixtures("topic_config")
def test_topic_status_shows_the_bounds_of_every_queue(
    mqadmin: Mqadmin, producer: Producer, platform: Platform, scene: Scene
) -> None:
    rows = mqadmin.table("topicStatus", "-t", scene.topic)
    shown = [(int(row["QID"]), int(row["Min Offset"]), int(row["Max Offset"])) for row in rows]
    assert shown == [(queue.queue_id, queue.min, queue.max) for queue in producer.offsets(scene.topic)]
    assert {row["Broker Name"] for row in rows} == {platform.broker_name}
    assert all(re.match(r"20\d\d-\d\d-\d\d", row["Last Updated"]) for row in rows)


def test_a_topic_is_created_changed_and_deleted(mqadmin: Mqadmin, java: JavaClient, platform: Platform) -> None:
    topic = java.name("made_by_mqadmin_" + java.version.replace(".", "_"))

    printed = mqadmin.run("updateTopic", "-c", platform.cluster, "-t", topic, "-r", "3", "-w", "3")
    assert f"create topic to {platform.broker} success." in printed
    [queues] = route(mqadmin, topic)["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 3, 6)

    printed = mqadmin.run("updateTopic", "-b", platform.broker, "-t", topic, "-r", "5", "-w", "2", "-p", "4")
    assert f"create topic to {platform.broker} success." in printed
    [queues] = route(mqadmin, topic)["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (5, 2, 4)

    printed = mqadmin.run("deleteTopic", "-c", platform.cluster, "-t", topic)
    assert f"delete topic [{topic}] from cluster [{platform.cluster}] success." in printed
    assert f"delete topic [{topic}] from NameServer success." in printed
    assert "CODE: 17 " in mqadmin.run("topicRoute", "-t", topic)
    assert topic not in mqadmin.run("topicList").splitlines()


@pytest.mark.usefixtures("topic_config")
def test_consumer_progress_of_a_group_shows_every_queue(
    mqadmin: Mqadmin, producer: Producer, platform: Platform, scene: Scene
) -> None:
    def progress() -> dict[int, tuple[int, int, int]]:
        rows = [row for row in mqadmin.table("consumerProgress", "-g", scene.group) if row["Topic"] == scene.topic]
        assert {row["Broker Name"] for row in rows} <= {platform.broker_name}
        return {
            int(row["QID"]): (int(row["Broker Offset"]), int(row["Consumer Offset"]), int(row["Diff"])) for row in rows
        }

    # Consumers commit every few seconds.
    consumed = {queue.queue_id: (queue.max, queue.max, 0) for queue in producer.offsets(scene.topic)}
    wait_until(lambda: progress() == consumed, within_s=SETTLE_S)
    assert re.search(r"^(Consume )?Diff Total: 0$", mqadmin.run("consumerProgress", "-g", scene.group), re.MULTILINE)


def test_consumer_progress_of_all_groups_shows_online_groups(mqadmin: Mqadmin, java: JavaClient, scene: Scene) -> None:
    [row] = [row for row in mqadmin.table("consumerProgress") if row["Group"] == scene.group]
    assert (row["Count"], row["Version"]) == ("1", version_name(java))
    assert (row["Type"], row["Model"]) == ("PUSH", "CLUSTERING")


def test_a_message_is_found_by_either_id_and_by_offset(
    mqadmin: Mqadmin, java: JavaClient, platform: Platform, scene: Scene
) -> None:
    sent = scene.sent[3]
    # 5.x requires the topic as well; 4.9 does not know that option.
    with_topic = [] if java.version.startswith("4.") else ["-t", scene.topic]
    place = ["-t", scene.topic, "-b", platform.broker_name, "-i", str(sent.queue_id), "-o", str(sent.queue_offset)]
    for words in (
        ["queryMsgById", "-i", sent.offset_msg_id, *with_topic],
        ["queryMsgByUniqueKey", "-i", sent.msg_id, "-t", scene.topic],
        ["queryMsgByOffset", *place],
    ):
        printed = mqadmin.run(*words)
        shown = fields(printed)
        assert shown["Topic"] == scene.topic, printed
        assert shown["Tags"] == "[TagA]"
        assert shown["Keys"] == f"[{scene.key(3)}]"
        assert shown["Queue ID"] == str(sent.queue_id)
        assert shown["Queue Offset"] == str(sent.queue_offset)
        assert shown["Store Host"] == platform.broker
        assert f"UNIQ_KEY={sent.msg_id}" in shown["Properties"]
        assert body_of(shown) == "message 3"
        # The tool queries the groups of the topic and their progress from the broker.
        assert f"MessageTrack [consumerGroup={scene.group}," in printed


def test_a_message_is_found_by_its_key(mqadmin: Mqadmin, scene: Scene) -> None:
    sent = scene.sent[5]
    [row] = mqadmin.table("queryMsgByKey", "-t", scene.topic, "-k", scene.key(5))
    assert row["Message ID"] == sent.msg_id
    assert row["QID"] == str(sent.queue_id)
    assert row["Offset"].split()[0] == str(sent.queue_offset)


def test_send_message_stores_a_message(
    mqadmin: Mqadmin, java: JavaClient, producer: Producer, platform: Platform, topic: str
) -> None:
    [row] = mqadmin.table("sendMessage", "-t", topic, "-p", "hello", "-k", "greeting", "-c", "TagB")
    assert (row["Broker Name"], row["Send Result"]) == (platform.broker_name, "SEND_OK")
    [at] = mqadmin.table("sendMessage", "-t", topic, "-p", "there", "-b", platform.broker_name, "-i", "2")
    assert (at["QID"], at["Send Result"]) == ("2", "SEND_OK")
    seen = producer.view_by_id(topic, row["MsgId"])
    assert (seen.body, seen.keys, seen.tags) == ("hello", "greeting", "TagB")
    assert str(seen.queue_id) == row["QID"]
    assert producer.view_by_id(topic, at["MsgId"]).queue_id == 2


def test_producer_connection_shows_the_producer(
    mqadmin: Mqadmin, java: JavaClient, producer: Producer, scene: Scene
) -> None:
    printed = mqadmin.run("producerConnection", "-g", PRODUCER_GROUP, "-t", scene.topic)
    # One line without headings: number, client id, address, language, version.
    line = rf"0001\s+\S+@{producer.id}\s+127\.0\.0\.1:\d+\s+JAVA\s+{version_name(java)}"
    assert re.fullmatch(line, printed.strip()), printed


def test_consumer_connection_shows_consumer_and_subscription(mqadmin: Mqadmin, java: JavaClient, scene: Scene) -> None:
    printed = mqadmin.run("consumerConnection", "-g", scene.group)
    line = rf"^\S+@{scene.consumer.id}\s+127\.0\.0\.1:\d+\s+JAVA\s+{version_name(java)}"
    assert re.search(line, printed, re.MULTILINE), printed
    subscribed = printed.split("Below is subscription:")[1]
    assert re.search(rf"^{scene.topic}\s+\*", subscribed, re.MULTILINE)
    assert re.search(rf"^%RETRY%{scene.group}\s+\*", subscribed, re.MULTILINE)
    shown = fields(printed)
    assert shown["ConsumeType"] == "CONSUME_PASSIVELY"
    assert shown["MessageModel"] == "CLUSTERING"
    assert shown["ConsumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"


def test_consumer_status_comes_from_the_consumer(mqadmin: Mqadmin, java: JavaClient, scene: Scene) -> None:
    printed = mqadmin.run("consumerStatus", "-g", scene.group)
    line = rf"^1\s+\S+@{scene.consumer.id}\s+{version_name(java)}"
    assert re.search(line, printed, re.MULTILINE), printed
    assert "Same subscription in the same group of consumer" in printed
    assert "Rebalance OK" in printed


def test_broker_status_shows_version_and_traffic(mqadmin: Mqadmin, platform: Platform, scene: Scene) -> None:
    shown = fields(mqadmin.run("brokerStatus", "-b", platform.broker))
    assert re.fullmatch(r"V\d+_\d+_\d+\S*", shown["brokerVersionDesc"])
    assert int(shown["bootTimestamp"]) > 0
    assert int(shown["msgPutTotalTodayNow"]) >= len(scene.sent)
    assert int(shown["commitLogMaxOffset"]) > int(shown["commitLogMinOffset"])
    assert shown["runtime"].startswith("[ 0 days, 0 hours")


def test_reset_by_time_moves_an_offline_group(
    mqadmin: Mqadmin, java: JavaClient, producer: Producer, topic: str
) -> None:
    producer.send(topic, [f"message {n}" for n in range(MESSAGES)])
    group = f"{topic}_group"
    with java.push_consumer(group, topic) as before:
        before.receive(MESSAGES)
    rows = mqadmin.table("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert {row["queueId"] for row in rows} == {"0", "1", "2", "3"}
    # A 4.9 broker has no consumer to notify and refuses (206), so the tool sets the offsets itself and shows more
    # columns.
    assert {row.get("timestampOffset", row.get("offset")) for row in rows} == {"0"}
    with java.push_consumer(group, topic) as after:
        assert len(after.receive(MESSAGES)) == MESSAGES
