"""The official Java clients, old and new, and mqadmin on a broker with a MariaDB store.

Every topic of a SQL store has lanes: each write queue (part) is three read queues. Topics and groups have names like
those of existing applications, in mixed case and longer than 40 characters, with `sql.topic_names = "any"`; the tests
with two brokers use the default, lower-case names.
"""

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop import official, platforms
from tests.interop.conftest import CLIENT_VERSIONS, PRODUCER_GROUP, TEMPLATE_TOPIC
from tests.interop.java import SETTLE_S, ClientError, Consumer, JavaClient, Mode, Producer, SendResult, java_client
from tests.interop.mqadmin import Mqadmin, fields
from tests.interop.official import Kit
from tests.interop.platforms import Platform
from tests.interop.test_java_clients import bodies, found_by_key, numbered, places, settle, wait_for_all
from tests.interop.test_java_kinds import ASKED_S, later, traces
from tests.interop.test_mqadmin import body_of, route
from tests.support import server_processes
from tests.support.databases import Server, mariadb_server
from tests.support.server_processes import broker_process
from tests.support.wait import wait_until

from sparrow.client import Admin
from sparrow.client.trace_records import ConsumeEndTrace, ConsumeStartTrace, PublishTrace
from sparrow.model.priority import LANE_COUNT, Priority

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

NOT_ASKED_S = 3
"""Longer than the broker's interval between check-backs."""
INVISIBLE_MS = 60_000
PARTS = 2
QUEUES = PARTS * LANE_COUNT


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with mariadb_server() as running:
        yield running


@pytest.fixture(scope="module")
def on_mysql(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Sparrow on a new database, with topics of any name."""
    settings = {"BROKER__STORE": server.new_database(), "SQL__TOPIC_NAMES": "any"}
    with platforms.sparrow(tmp_path_factory.mktemp("mysql"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def java(kit: Kit, on_mysql: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    with java_client(kit, on_mysql.name_server, tmp_path_factory.mktemp("java")) as client:
        yield client


@pytest.fixture(scope="module")
def producer(java: JavaClient) -> Iterator[Producer]:
    with java.producer(PRODUCER_GROUP) as running:
        yield running


@pytest.fixture(scope="module")
def mqadmin(java: JavaClient) -> Mqadmin:
    return Mqadmin(java)


def new_name(java: JavaClient, word: str) -> str:
    """Return an unused topic name that is no table name."""
    return java.name(f"TopicTest_{word}_of_the_orders_department_{java.version.replace('.', '_')}")


@pytest.fixture
def topic(java: JavaClient, producer: Producer) -> str:
    """A new topic with two parts."""
    name = new_name(java, "topic")
    producer.create_topic(name, like=TEMPLATE_TOPIC, queues=PARTS)
    return name


def first_seen(readers: Sequence[Consumer]) -> dict[int, list[int]]:
    """Return the offsets of each queue in the order of their first arrival at any consumer."""
    by_queue: dict[int, dict[int, None]] = {}
    for message in sorted((seen for reader in readers for seen in reader.seen), key=lambda message: message.nth):
        by_queue.setdefault(message.queue_id, {})[message.queue_offset] = None
    return {queue: list(offsets) for queue, offsets in by_queue.items()}


# -- sending and consuming --------------------------------------------------------------------------------------------


def test_messages_of_every_send_mode_arrive_once_and_unchanged(
    java: JavaClient, producer: Producer, topic: str
) -> None:
    modes: tuple[Mode, ...] = ("sync", "async", "oneway", "batch")
    large = "all work and no play " * 10_000
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        assert consumer.queues(QUEUES) == set(range(QUEUES))
        sent: dict[Mode, list[SendResult]] = {}
        for mode in modes:
            messages = [
                {
                    "body": f"第 {n} 条 🚀 {mode}",
                    "tags": "TagA",
                    "keys": f"{topic}-{n} {mode}",
                    "properties": {"城": "北京"},
                }
                for n in range(10)
            ]
            sent[mode] = producer.send(topic, messages, mode=mode)
        producer.send(topic, [large])
        seen = consumer.receive(41)
    by_body = {message.body: message for message in seen}
    assert len(by_body) == 41
    assert large in by_body
    for mode in modes:
        mine = [by_body[f"第 {n} 条 🚀 {mode}"] for n in range(10)]
        for n, message in enumerate(mine):
            assert (message.topic, message.tags, message.keys) == (topic, "TagA", f"{topic}-{n} {mode}")
            assert message.properties["城"] == "北京"
            assert message.queue_id % LANE_COUNT == Priority.MIDDLE
        if mode in ("sync", "async"):
            assert [one.msg_id for one in sent[mode]] == [message.msg_id for message in mine]
            assert [one.offset_msg_id for one in sent[mode]] == [message.offset_msg_id for message in mine]
            assert {(one.queue_id, one.queue_offset) for one in sent[mode]} == places(mine)
        if mode == "batch":
            [one] = sent[mode]
            assert [message.msg_id for message in mine] == one.msg_id.split(",")
            assert [message.offset_msg_id for message in mine] == one.offset_msg_id.split(",")
            beside = [(one.queue_id, one.queue_offset + n) for n in range(10)]
            assert [(message.queue_id, message.queue_offset) for message in mine] == beside


def test_a_first_message_creates_an_unknown_topic(java: JavaClient, producer: Producer, mqadmin: Mqadmin) -> None:
    topic = new_name(java, "unheard_of")
    for name in (topic, topic.lower(), java.name("lower_case")):
        producer.send(name, numbered(8))
        [queues] = route(mqadmin, name)["queueDatas"]
        assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (LANE_COUNT, 1, 6)
        with java.push_consumer(f"{name}_group", name) as consumer:
            assert Counter(bodies(consumer.receive(8))) == Counter(numbered(8))


def test_a_name_that_is_no_table_name_is_refused_by_default(kit: Kit, server: Server, tmp_path: Path) -> None:
    with (
        platforms.sparrow(tmp_path, BROKER__STORE=server.new_database()) as lower,
        java_client(kit, lower.name_server, tmp_path) as java,
        java.producer() as producer,
    ):
        for name, why in (("Orders", "lower-case letters"), ("x" * 41, "41 characters, 40 are allowed")):
            with pytest.raises(ClientError) as caught:
                producer.send(name, ["never"], mode="async")  # a synchronous send reports only its number of attempts
            assert why in str(caught.value)
            assert "CODE: 29 " in str(caught.value)
        printed = Mqadmin(java).run("updateTopic", "-b", lower.broker, "-t", "Made", "-r", "1", "-w", "1")
        assert "lower-case letters" in printed


def test_broadcast_tags_and_sql_select_the_receivers(java: JavaClient, producer: Producer, topic: str) -> None:
    with (
        java.push_consumer(f"{topic}_all", topic, model="BROADCASTING") as one,
        java.push_consumer(f"{topic}_all", topic, model="BROADCASTING") as other,
        java.push_consumer(f"{topic}_tags", topic, expression="TagA || Aa") as tagged,
        java.push_consumer(f"{topic}_sql", topic, sql="n BETWEEN 4 AND 7 AND TAGS <> 'TagA'") as chosen,
        java.push_consumer(f"{topic}_group", topic) as first,
        java.push_consumer(f"{topic}_group", topic) as second,
    ):
        settle([first, second], [PARTS * LANE_COUNT // 2] * 2)
        # "Aa" and "BB" have the same hash, so only the client can filter them.
        tags = ["TagA", "TagB", "Aa", "BB", None]
        messages = [
            {"body": f"{tag} {n}", "tags": tag, "properties": {"n": f"{n}", "PRIORITY": priority.label}}
            for n, tag, priority in zip(range(30), tags * 6, list(Priority) * 10, strict=True)
        ]
        every = [str(message["body"]) for message in messages]
        producer.send(topic, messages)
        for reader in (one, other):
            assert Counter(bodies(reader.receive(30))) == Counter(every)
        assert sorted(bodies(tagged.receive(12))) == sorted(body for body in every if body.startswith(("TagA", "Aa")))
        # A missing tag is NULL: neither equal to a value nor different from it.
        assert sorted(bodies(chosen.receive(2))) == ["Aa 7", "TagB 6"]
        wait_for_all([first, second], every)
    assert Counter(bodies(first.seen + second.seen)) == Counter(every)


def test_queues_that_move_between_consumers_keep_their_order(java: JavaClient, producer: Producer, topic: str) -> None:
    if java.version.startswith("4."):
        pytest.skip("clients of 4.9 take 20 s to rebalance orderly groups; a test below covers them")
    group, sent = f"{topic}_group", Counter[int]()

    def put() -> None:
        words = [priority.label for priority in Priority] * 2
        messages = [{"body": f"{n}", "properties": {"PRIORITY": word}} for n, word in enumerate(words)]
        sent.update(one.queue_id for one in producer.send(topic, messages))

    first = java.push_consumer(group, topic, orderly=True)
    first.queues(QUEUES)
    put()
    with java.push_consumer(group, topic, orderly=True) as second:
        while len(first.queues()) != QUEUES // 2 or len(second.queues()) != QUEUES // 2:
            put()
        put()
        first.stop()
        second.queues(QUEUES)
        put()

        def is_all_seen() -> bool:
            second.drain(1, within_s=1)
            return sum(map(len, first_seen([first, second]).values())) >= sent.total()

        wait_until(is_all_seen, within_s=SETTLE_S)
        assert first_seen([first, second]) == {queue: list(range(count)) for queue, count in sent.items()}
    for reader in (first, second):
        assert reader.seen, "both consumers must have received messages"


def test_a_group_continues_and_its_rejected_message_is_retried_then_dead_lettered(
    java: JavaClient, producer: Producer, on_mysql: Platform, topic: str
) -> None:
    group = f"{topic}_group"
    producer.send(topic, numbered(8))
    with java.push_consumer(group, topic) as before:
        before.receive(8)
    with java.push_consumer(group, topic, refusals=99, refusalLevel=1, retriesMax=1) as after:
        [sent] = producer.send(topic, [{"body": "bad", "tags": "TagA", "keys": "k", "properties": {"n": "1"}}])
        first, again = after.receive(2)
        assert (first.reconsume_times, again.reconsume_times) == (0, 1)
        for seen in (first, again):
            assert (seen.topic, seen.body, seen.tags, seen.keys) == (topic, "bad", "TagA", "k")
            assert seen.msg_id == sent.msg_id
        assert again.properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id
        with Admin(on_mysql.name_server) as admin:
            wait_until(lambda: len(admin.dead_letters(group)) == 1, within_s=SETTLE_S)
            [letter] = admin.dead_letters(group)
    assert (letter.topic, letter.body, letter.unique_key) == (topic, b"bad", sent.msg_id)
    assert (letter.tags, letter.keys, letter.properties["n"]) == ("TagA", ["k"], "1")
    assert letter.properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id
    assert bodies(after.seen) == ["bad", "bad"]


# -- delays -----------------------------------------------------------------------------------------------------------


def test_messages_with_a_delay_level_are_delivered_after_their_delay(
    java: JavaClient, producer: Producer, topic: str
) -> None:
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        consumer.queues(QUEUES)
        begun_ms = time.time() * 1000
        [sent, _] = producer.send(topic, [{"body": "late", "tags": "TagA", "delayLevel": 1}, "at once"])
        at_once, late = consumer.receive(2)
    assert (at_once.body, late.body) == ("at once", "late")
    assert (late.topic, late.tags, late.msg_id, late.queue_id) == (topic, "TagA", sent.msg_id, sent.queue_id)
    assert late.store_timestamp >= begun_ms + 1_000


def test_messages_are_delivered_at_their_time_unless_recalled(
    kit: Kit, java: JavaClient, producer: Producer, on_mysql: Platform, topic: str, tmp_path: Path
) -> None:
    if kit.version.startswith("4."):
        pytest.skip("clients of 4.9 know only levels")
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        consumer.queues(QUEUES)
        source = str(official.SOURCES / "recall" / "Recall.java")
        words = kit.command(source, on_mysql.name_server, topic, "never mind", user_home=tmp_path, heap_mb=128)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        due_ms, sent, recalled, again = done.stdout.splitlines()[-4:]  # a logger writes first
        assert recalled == sent
        assert "it is too late" in again
        now_ms = int(time.time() * 1000)
        times = {"behind it": max(int(due_ms), now_ms + 1_500) + 500, "at a time": now_ms + 1_500}
        producer.send(topic, [{"body": body, "deliverTimeMs": at_ms} for body, at_ms in times.items()])
        producer.send(topic, [{"body": "long ago", "deliverTimeMs": now_ms - 60_000}])
        seen = consumer.receive(3)
        assert bodies(seen) == ["long ago", "at a time", "behind it"]
        for message in seen[1:]:
            assert message.store_timestamp >= times[message.body], "the message was in its queue before it was due"


# -- transactions -----------------------------------------------------------------------------------------------------


def test_transactions_are_committed_rolled_back_and_checked_even_of_a_dead_producer(
    kit: Kit, java: JavaClient, on_mysql: Platform, topic: str, tmp_path: Path
) -> None:
    group = f"{topic}_producers"
    with (
        java_client(kit, on_mysql.name_server, tmp_path) as doomed,
        doomed.producer(group, transactional=True) as first,
    ):
        orphan = first.send_in_transaction(topic, later("orphan", "COMMIT_MESSAGE"), "UNKNOW")
        doomed.kill()
    with (
        java.push_consumer(f"{topic}_group", topic) as consumer,
        java.producer(group, transactional=True) as producer,
    ):
        assert consumer.drain() == []
        known = {"known paid": "COMMIT_MESSAGE", "known not paid": "ROLLBACK_MESSAGE"}
        unknown = {"paid": ["COMMIT_MESSAGE"], "not paid": ["ROLLBACK_MESSAGE"], "late": ["UNKNOW", "COMMIT_MESSAGE"]}
        ids = {"orphan": orphan.msg_id}
        for body, state in known.items():
            message = {"body": body, "tags": "TagA", "keys": "k", "properties": {"n": "1"}}
            ids[body] = producer.send_in_transaction(topic, message, state).msg_id
        for body, answers in unknown.items():
            ids[body] = producer.send_in_transaction(topic, later(body, *answers), "UNKNOW").msg_id
        asked = producer.check_backs(5, within_s=ASKED_S)
        assert Counter(bodies(asked)) == {"orphan": 1, "paid": 1, "not paid": 1, "late": 2}
        seen = consumer.receive(4)
        assert producer.check_backs(1, within_s=NOT_ASKED_S) == [], "every transaction must have ended"
    assert {message.msg_id == ids[message.body] for message in (*asked, *seen)} == {True}
    assert {(message.topic, message.tags) for message in (*asked, *seen)} == {(topic, "TagA")}
    assert sorted(bodies(consumer.seen)) == ["known paid", "late", "orphan", "paid"]


# -- requests and traces ----------------------------------------------------------------------------------------------


def test_a_request_gets_its_reply_or_times_out(java: JavaClient, producer: Producer, topic: str) -> None:
    with java.push_consumer(f"{topic}_group", topic, replies=True) as consumer:
        consumer.queues(QUEUES)
        for text in ("abc", "x" * 20_000):
            assert producer.request(topic, text) == text.upper()
        assert bodies(consumer.receive(2)) == ["abc", "x" * 20_000]
    with pytest.raises(ClientError, match="RequestTimeoutException"):
        producer.request(topic, "nobody listens", timeout_ms=500)


def test_traces_name_the_producer_and_the_consumer_of_a_message(
    java: JavaClient, on_mysql: Platform, topic: str
) -> None:
    group, senders = f"{topic}_group", f"{topic}_producers"
    with java.producer(senders, trace=True) as producer, java.push_consumer(group, topic, trace=True) as consumer:
        [sent] = producer.send(topic, [{"body": "a book", "tags": "TagA", "keys": "k"}])
        consumer.receive(1)
        found = traces(on_mysql, sent.msg_id, 3)
    ended, begun, published = sorted(found, key=lambda each: type(each).__name__)
    assert isinstance(published, PublishTrace)
    assert isinstance(begun, ConsumeStartTrace)
    assert isinstance(ended, ConsumeEndTrace)
    assert (published.group, published.topic, published.tags, published.keys) == (senders, topic, "TagA", "k")
    assert (published.body_bytes, published.offset_id, published.is_success) == (6, sent.offset_msg_id, True)
    assert (begun.group, begun.keys, begun.retries) == (group, "k", 0)
    assert (ended.request_id, ended.is_success) == (begun.request_id, True)


# -- mqadmin ----------------------------------------------------------------------------------------------------------

MESSAGES = 8


class Scene(NamedTuple):
    """A topic of two parts with eight messages, all consumed by a group with one running consumer."""

    topic: str
    group: str
    sent: list[SendResult]


@pytest.fixture(scope="module")
def scene(java: JavaClient, producer: Producer) -> Iterator[Scene]:
    topic = new_name(java, "scene")
    producer.create_topic(topic, like=TEMPLATE_TOPIC, queues=PARTS)
    messages = [{"body": f"message {n}", "tags": "TagA", "keys": f"{topic}-{n} {topic}"} for n in range(MESSAGES)]
    sent = producer.send(topic, messages)
    with java.push_consumer(f"{topic}_group", topic) as consumer:
        consumer.receive(MESSAGES)
        yield Scene(topic, f"{topic}_group", sent)


def test_mqadmin_shows_cluster_broker_and_topic(
    mqadmin: Mqadmin, producer: Producer, on_mysql: Platform, scene: Scene
) -> None:
    [row] = mqadmin.table("clusterList")
    assert (row["Cluster Name"], row["Broker Name"]) == (on_mysql.cluster, on_mysql.broker_name)
    assert (row["BID"], row["Addr"]) == ("0", on_mysql.broker)
    found = route(mqadmin, scene.topic)
    [broker] = found["brokerDatas"]
    assert (broker["brokerName"], broker["brokerAddrs"]) == (on_mysql.broker_name, {"0": on_mysql.broker})
    [queues] = found["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (QUEUES, PARTS, 6)
    rows = mqadmin.table("topicStatus", "-t", scene.topic)
    ends = {int(row["QID"]): int(row["Max Offset"]) for row in rows}
    assert ends == {queue: Counter(one.queue_id for one in scene.sent)[queue] for queue in range(QUEUES)}
    assert {row["Min Offset"] for row in rows} == {"0"}
    shown = fields(mqadmin.run("brokerStatus", "-b", on_mysql.broker))
    assert re.fullmatch(r"V\d+_\d+_\d+\S*", shown["brokerVersionDesc"])
    assert int(shown["msgPutTotalTodayNow"]) >= len(scene.sent)
    assert shown["runtime"].startswith("[ 0 days, 0 hours")


def test_messages_are_found_by_key_by_either_id_and_by_offset(
    mqadmin: Mqadmin, java: JavaClient, producer: Producer, on_mysql: Platform, scene: Scene
) -> None:
    assert Counter(bodies(found_by_key(producer, scene.topic, scene.topic))) == Counter(numbered(MESSAGES))
    assert producer.view_by_id(scene.topic, scene.sent[2].msg_id).body == "message 2"
    assert producer.view_by_id(scene.topic, scene.sent[2].offset_msg_id).body == "message 2"
    sent = scene.sent[3]
    [row] = mqadmin.table("queryMsgByKey", "-t", scene.topic, "-k", f"{scene.topic}-3")
    assert (row["Message ID"], row["QID"]) == (sent.msg_id, str(sent.queue_id))
    assert row["Offset"].split()[0] == str(sent.queue_offset)
    # 5.x requires the topic as well; 4.9 does not know that option.
    with_topic = [] if java.version.startswith("4.") else ["-t", scene.topic]
    place = ["-t", scene.topic, "-b", on_mysql.broker_name, "-i", str(sent.queue_id), "-o", str(sent.queue_offset)]
    for words in (
        ["queryMsgById", "-i", sent.offset_msg_id, *with_topic],
        ["queryMsgByUniqueKey", "-i", sent.msg_id, "-t", scene.topic],
        ["queryMsgByOffset", *place],
    ):
        printed = mqadmin.run(*words)
        shown = fields(printed)
        assert (shown["Topic"], shown["Tags"]) == (scene.topic, "[TagA]"), printed
        assert (shown["Queue ID"], shown["Queue Offset"]) == (str(sent.queue_id), str(sent.queue_offset))
        assert shown["Store Host"] == on_mysql.broker
        assert f"UNIQ_KEY={sent.msg_id}" in shown["Properties"]
        assert body_of(shown) == "message 3"
        assert f"MessageTrack [consumerGroup={scene.group}," in printed


def test_mqadmin_shows_the_progress_of_a_group_and_resets_it_by_time(
    mqadmin: Mqadmin, java: JavaClient, producer: Producer, on_mysql: Platform, topic: str
) -> None:
    group = f"{topic}_group"
    early = producer.send(topic, numbered(8))
    last = max(producer.view_by_id(topic, one.offset_msg_id).store_timestamp for one in early)
    wait_until(lambda: time.time() * 1000 > last + 50)
    late = producer.send(topic, numbered(8, start=8))
    between = str(min(producer.view_by_id(topic, one.offset_msg_id).store_timestamp for one in late))
    ends = Counter(one.queue_id for one in (*early, *late))

    def progress() -> dict[int, tuple[int, int, int]]:
        rows = [row for row in mqadmin.table("consumerProgress", "-g", group) if row["Topic"] == topic]
        return {
            int(row["QID"]): (int(row["Broker Offset"]), int(row["Consumer Offset"]), int(row["Diff"])) for row in rows
        }

    with java.push_consumer(group, topic) as consumer:
        consumer.receive(16)
        assert len(mqadmin.table("resetOffsetByTime", "-g", group, "-t", topic, "-s", between)) == QUEUES
        assert Counter(bodies(consumer.receive(8))) == Counter(numbered(8, start=8))
        [row] = [row for row in mqadmin.table("consumerProgress") if row["Group"] == group]
        assert (row["Count"], row["Type"], row["Model"]) == ("1", "PUSH", "CLUSTERING")
    with Admin(on_mysql.name_server) as admin:  # a consumer commits last
        wait_until(lambda: not admin.progress(group, topic).lag)
    assert progress() == {queue: (ends[queue], ends[queue], 0) for queue in range(QUEUES)}
    rows = mqadmin.table("resetOffsetByTime", "-g", group, "-t", topic, "-s", between)
    assert {row["queueId"] for row in rows} == {str(queue) for queue in range(QUEUES)}
    with java.push_consumer(group, topic) as after:
        assert Counter(bodies(after.receive(8))) == Counter(numbered(8, start=8))


def test_mqadmin_creates_and_deletes_a_topic(mqadmin: Mqadmin, java: JavaClient, on_mysql: Platform) -> None:
    topic = new_name(java, "made")
    printed = mqadmin.run("updateTopic", "-c", on_mysql.cluster, "-t", topic, "-r", "1", "-w", "1")
    assert f"create topic to {on_mysql.broker} success." in printed, printed
    [queues] = route(mqadmin, topic)["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (LANE_COUNT, 1, 6)
    printed = mqadmin.run("deleteTopic", "-c", on_mysql.cluster, "-t", topic)
    assert f"delete topic [{topic}] from cluster [{on_mysql.cluster}] success." in printed, printed


def test_mqadmin_changes_a_topic(mqadmin: Mqadmin, on_mysql: Platform, topic: str) -> None:
    words = ["-b", on_mysql.broker, "-t", topic, "-r", f"{PARTS + 1}", "-w", f"{PARTS + 1}", "-p", "4"]
    printed = mqadmin.run("updateTopic", *words)
    assert f"create topic to {on_mysql.broker} success." in printed, printed
    [queues] = route(mqadmin, topic)["queueDatas"]
    found = (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"])
    assert found == ((PARTS + 1) * LANE_COUNT, PARTS + 1, 4)


# -- pop --------------------------------------------------------------------------------------------------------------


def test_a_popped_message_is_delivered_once(
    mqadmin: Mqadmin, java: JavaClient, producer: Producer, on_mysql: Platform, topic: str
) -> None:
    if java.version.startswith("4."):
        pytest.skip("clients of 4.9 do not pop")
    group = f"{topic}_group"
    words = ["-b", on_mysql.broker, "-t", topic, "-g", group, "-m", "POP", "-q", "-1"]
    assert "success" in mqadmin.run("setConsumeMode", *words)
    with (
        java.push_consumer(group, topic, popInvisibleMs=INVISIBLE_MS) as consumer,
        Admin(on_mysql.name_server) as admin,
    ):
        assert consumer.queues(1) == {-1}, "all queues must be assigned as one"
        producer.send(topic, [{"body": f"{n}", "properties": {"PRIORITY": Priority(n % 3).label}} for n in range(30)])
        assert Counter(bodies(consumer.receive(30))) == Counter(str(n) for n in range(30))
        # All are acknowledged long before their invisible time is over.
        wait_until(lambda: not admin.progress(group, topic).lag)
    assert len(consumer.seen) == 30


# -- several brokers --------------------------------------------------------------------------------------------------


class Crew(NamedTuple):
    """Clients of one version: a producer, a consumer with its own group, and for 4.9 two orderly consumers."""

    producer: Producer
    topic: str
    alone: Consumer
    in_order: Sequence[Consumer]
    sent: list[str]
    """Acknowledged bodies."""

    def send(self) -> None:
        words = [priority.label for priority in Priority] * 2
        messages = [{"body": f"{len(self.sent) + n}", "properties": {"PRIORITY": word}} for n, word in enumerate(words)]
        self.producer.send(self.topic, messages)
        self.sent.extend(str(message["body"]) for message in messages)

    def sends_again(self) -> bool:
        """Try to send: clients refresh routes every thirty seconds and fail until then."""
        try:
            self.producer.send(self.topic, ["knock"])
        except ClientError:
            self.alone.drain(1, within_s=0.2)
            return False
        self.send()
        return True


@contextmanager
def _crew(version: str, name_server: str, folder: Path) -> Iterator[Crew]:
    topic, home = f"crew_{version.replace('.', '_')}", folder / version
    home.mkdir()
    with (
        java_client(official.kit(version), name_server, home) as java,
        java.producer() as producer,
        ExitStack() as stack,
    ):
        producer.create_topic(topic, like=TEMPLATE_TOPIC, queues=PARTS)
        alone = stack.enter_context(java.push_consumer(f"{topic}_alone", topic))
        in_order = [
            stack.enter_context(java.push_consumer(f"{topic}_order", topic, orderly=True))
            for _ in range(2 if version.startswith("4.") else 0)
        ]
        yield Crew(producer, topic, alone, in_order, [])


async def test_clients_continue_when_the_leader_of_two_brokers_is_killed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(server_processes.ENVIRONMENT, "SPARROW_SQL__LEASE_MS", "2000")
    store = server.new_database()
    async with (
        server_processes.server_process("name-server", "--port", "0", "--data", str(tmp_path / "naming")) as said,
        AsyncExitStack() as brokers,
    ):
        name_server = said[0].split()[-1]
        leader, _ = [
            await brokers.enter_async_context(broker_process("sparrow", tmp_path / name, name_server, store=store))
            for name in ("one", "other")
        ]
        with ExitStack() as clients, Admin(name_server) as admin:

            def addresses() -> Mapping[int, str]:
                return admin.route(TEMPLATE_TOPIC).addresses["sparrow"]

            wait_until(lambda: set(addresses()) == {0, 1})
            successor = addresses()[1]
            crews = [clients.enter_context(_crew(version, name_server, tmp_path)) for version in CLIENT_VERSIONS]
            for crew in crews:
                crew.send()
                assert Counter(bodies(crew.alone.receive(len(crew.sent)))) == Counter(crew.sent)
            await leader.kill()
            wait_until(lambda: addresses() == {0: successor}, within_s=10)
            for crew in crews:
                wait_until(crew.sends_again, within_s=SETTLE_S)
            for crew in crews:
                wait_for_all([crew.alone], crew.sent)
            [old] = [crew for crew in crews if crew.in_order]
            wait_for_all(old.in_order, old.sent)
            for offsets in first_seen(old.in_order).values():
                assert offsets == list(range(len(offsets)))


async def test_consumers_of_a_busy_leader_pull_from_the_other_broker_until_it_is_gone(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(server_processes.ENVIRONMENT, "SPARROW_SQL__LEASE_MS", "2000")
    # Every event loop is later than that.
    monkeypatch.setitem(server_processes.ENVIRONMENT, "SPARROW_SQL__LEADER_BUSY_DELAY_MS", "0.000001")
    store = server.new_database()
    async with (
        server_processes.server_process("name-server", "--port", "0", "--data", str(tmp_path / "naming")) as said,
        AsyncExitStack() as brokers,
    ):
        name_server = said[0].split()[-1]
        _, follower = [
            await brokers.enter_async_context(broker_process("sparrow", tmp_path / name, name_server, store=store))
            for name in ("one", "other")
        ]
        with ExitStack() as clients, Admin(name_server) as admin:
            wait_until(lambda: set(admin.route(TEMPLATE_TOPIC).addresses["sparrow"]) == {0, 1})
            port = int(admin.route(TEMPLATE_TOPIC).addresses["sparrow"][1].rpartition(":")[2])
            crews = [clients.enter_context(_crew(version, name_server, tmp_path)) for version in CLIENT_VERSIONS]

            def pulls_from_follower(crew: Crew) -> bool:
                """Offset ids contain the address of the broker that served a message."""
                crew.send()
                fresh = crew.alone.receive(6)
                return {int(message.offset_msg_id[8:16], 16) for message in fresh} == {port}

            for crew in crews:
                wait_until(lambda crew=crew: pulls_from_follower(crew), within_s=SETTLE_S)  # type: ignore[misc]
            await follower.kill()
            for crew in crews:
                crew.send()
                wait_for_all([crew.alone], crew.sent)
