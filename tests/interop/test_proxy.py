"""RocketMQ's own proxy 5.5 in cluster mode in front of Sparrow, and the official gRPC client of Java."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from tests.interop import official, platforms
from tests.interop.grpc_client import GrpcClients, MessageView
from tests.interop.java import java_client
from tests.interop.platforms import Platform
from tests.support.databases import mariadb_server
from tests.support.wait import wait_until

from sparrow.client import Admin
from sparrow.client import aio as client
from sparrow.model.protocol import DLQ_TOPIC_PREFIX
from sparrow.model.topic import Group
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import UpdateTopic

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

QUEUES = 4


@pytest.fixture(scope="module", params=["log", "mariadb"])
def proxied(
    request: pytest.FixtureRequest, platform: Platform, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """The platform behind the proxy, on each store."""
    if platform.is_apache_4:
        pytest.skip("the proxy pops messages, and brokers of 4.9 have no pop")
    if request.param == "log":
        yield platform
        return
    if platform.kind != "sparrow":
        pytest.skip("RocketMQ has no SQL store")
    with (
        mariadb_server() as server,
        platforms.sparrow(tmp_path_factory.mktemp("mariadb"), BROKER__STORE=server.new_database()) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def clients(proxied: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcClients]:
    """One JVM with the gRPC client, connected to the proxy."""
    proxy, grpc = official.proxy_kit(), official.grpc_kit()
    with (
        platforms.apache_proxy(proxy, proxied, tmp_path_factory.mktemp("proxy")) as address,
        java_client(grpc, address, tmp_path_factory.mktemp("java"), main="GrpcClient") as java,
    ):
        yield GrpcClients(java)


def create_topic(platform: Platform, name: str, message_type: str = "NORMAL") -> str:
    """Create a topic that accepts one type of messages, as `mqadmin updateTopic -a` does."""
    attributes = f"+message.type={message_type}"
    request = UpdateTopic(name, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG", False, attributes=attributes)

    async def create() -> None:
        async with client.Admin(platform.name_server) as admin:
            await admin.session.invoke(platform.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, request)

    asyncio.run(create())
    return name


def create_group(platform: Platform, name: str, *, is_ordered: bool = False, retries_max: int = 16) -> str:
    with Admin(platform.name_server) as admin:
        admin.create_group(Group(name=name, is_ordered=is_ordered, retries_max=retries_max))
    return name


def bodies(messages: list[MessageView]) -> list[str]:
    return [message.body for message in messages]


def test_a_simple_consumer_receives_acknowledges_and_changes_invisible_times(
    proxied: Platform, clients: GrpcClients
) -> None:
    topic = create_topic(proxied, "simple")
    with clients.producer(topic) as producer, clients.simple_consumer("simple_group", topic) as consumer:
        sent = producer.send({"body": "a", "tag": "TagA", "key": "k", "properties": {"city": "Oslo"}}, "b")
        found = sorted((message for _ in sent for message in consumer.receive(count_max=1)), key=lambda one: one.body)
        assert bodies(found) == ["a", "b"]
        assert [message.message_id for message in found] == [receipt.message_id for receipt in sent]
        first = found[0]
        assert (first.topic, first.tag, first.keys, first.properties) == (topic, "TagA", ["k"], {"city": "Oslo"})
        assert first.attempt == 1
        consumer.ack(first)
        consumer.change_invisible(found[1], 1_000)
        [again] = consumer.receive()
        assert (again.body, again.attempt) == ("b", 2)
        consumer.ack(again)
    with Admin(proxied.name_server) as admin:
        assert admin.progress("simple_group", topic).lag == 0


def test_push_consumers_filter_by_tag_and_by_sql_and_retry(proxied: Platform, clients: GrpcClients) -> None:
    topic = create_topic(proxied, "push")
    tagged = clients.push_consumer("tag_group", topic, expression="TagA || TagB", failures=1)
    by_sql = clients.push_consumer("sql_group", topic, sql="price > 5 AND city = 'Oslo'")
    with clients.producer(topic) as producer:
        producer.send(
            {"body": "a", "tag": "TagA", "properties": {"price": "9", "city": "Oslo"}},
            {"body": "b", "tag": "TagB", "properties": {"price": "9", "city": "Rome"}},
            {"body": "c", "tag": "TagC", "properties": {"price": "1", "city": "Oslo"}},
        )
    assert sorted((one.body, one.attempt) for one in tagged.receive(4)) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert bodies(by_sql.receive(1)) == ["a"]


def test_messages_of_a_group_arrive_in_order_and_failed_ones_become_dead_letters(
    proxied: Platform, clients: GrpcClients
) -> None:
    topic = create_topic(proxied, "ordered", "FIFO")
    good = clients.push_consumer(create_group(proxied, "fifo_group", is_ordered=True), topic)
    bad_group = create_group(proxied, "failing_group", is_ordered=True, retries_max=1)
    bad = clients.push_consumer(bad_group, topic, expression="bad", failures=99)
    with clients.producer(topic) as producer:
        producer.send(*({"body": f"{group}{n}", "group": group} for n in range(4) for group in "xy"))
        producer.send({"body": "bad", "tag": "bad", "group": "z"})
    seen = good.receive(9)
    for group in "xy":
        assert bodies([one for one in seen if one.group == group]) == [f"{group}{n}" for n in range(4)]
    assert [one.attempt for one in bad.receive(2)] == [1, 2]
    with Admin(proxied.name_server) as admin:
        wait_until(lambda: _dead_letters(admin, bad_group) == [b"bad"], within_s=30)


def _dead_letters(admin: Admin, group: str) -> list[bytes]:
    is_there = f"{DLQ_TOPIC_PREFIX}{group}" in admin.topics()
    return [message.body for message in admin.dead_letters(group)] if is_there else []


def test_delayed_messages_arrive_at_their_time_unless_recalled(proxied: Platform, clients: GrpcClients) -> None:
    topic = create_topic(proxied, "delayed", "DELAY")
    consumer = clients.push_consumer("delay_group", topic)
    with clients.producer(topic) as producer:
        recalled, _ = producer.send({"body": "recalled", "delayMs": 2_500}, {"body": "late", "delayMs": 3_000})
        assert recalled.recall_handle
        assert producer.recall(recalled.recall_handle) == recalled.message_id
    [late] = consumer.receive(1)
    assert late.body == "late"
    assert late.received_ms - late.born_ms >= 2_900


def test_transactions_are_committed_rolled_back_and_checked(proxied: Platform, clients: GrpcClients) -> None:
    topic = create_topic(proxied, "transactions", "TRANSACTION")
    consumer = clients.push_consumer("transaction_group", topic)
    with clients.producer(topic, transactional=True) as producer:
        producer.send_in_transaction("rolled back", "rollback")
        producer.send_in_transaction("check rolls back", "nothing", check="ROLLBACK")
        producer.send_in_transaction("check commits", "nothing", check="COMMIT")
        producer.send_in_transaction("committed", "commit")
        assert sorted(bodies(consumer.receive(2))) == ["check commits", "committed"]


def test_messages_arrive_by_priority(proxied: Platform, clients: GrpcClients) -> None:
    topic = create_topic(proxied, "urgent", "PRIORITY")
    with clients.producer(topic) as producer:
        producer.send(*({"body": f"{n}", "priority": n} for n in (0, 2, 1)))
    with clients.simple_consumer("priority_group", topic) as consumer:
        begun = time.monotonic()
        found: list[MessageView] = []
        while len(found) < 3 and time.monotonic() < begun + 20:
            found += consumer.receive(count_max=1)
        assert [(one.body, one.priority) for one in found] == [("2", 2), ("1", 1), ("0", 0)]
