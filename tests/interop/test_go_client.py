"""The official Go client against the platform, on both stores.

The Go client does not tell which queues a consumer has, and it does not unregister: brokers notice that a consumer left
when its connection ends.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.interop.go import GoClient, build, go_client
from tests.interop.java import SETTLE_S, ClientError, Mode, Producer, ReceivedMessage
from tests.interop.platforms import Platform
from tests.interop.test_java_clients import bodies, numbered, places, wait_for_all
from tests.interop.test_java_kinds import ASKED_S, NOT_ASKED_S, later, traces
from tests.support.wait import wait_until

from sparrow.client import Admin
from sparrow.client.trace_records import ConsumeEndTrace, ConsumeStartTrace, PublishTrace
from sparrow.model.protocol import TRACE_TOPIC

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PARTS = 4
_topics = itertools.count(1)


@pytest.fixture(scope="session")
def program() -> Path:
    return build()


@pytest.fixture(scope="session")
def go(program: Path, on: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoClient]:
    with go_client(program, on.name_server, tmp_path_factory.mktemp("go")) as client:
        yield client


@pytest.fixture(scope="session")
def admin(on: Platform) -> Iterator[Admin]:
    with Admin(on.name_server) as running:
        yield running


@pytest.fixture(scope="session")
def producer(go: GoClient) -> Iterator[Producer]:
    with go.producer() as running:
        yield running


@pytest.fixture(scope="session")
def hashing(go: GoClient) -> Iterator[Producer]:
    """A producer that selects the queue by the message's sharding key."""
    with go.producer("interop_hashing", selector="hash") as running:
        yield running


@pytest.fixture
def topic(go: GoClient, on: Platform) -> str:
    """A new topic, made by the Go client."""
    name = f"go_topic_{next(_topics)}"  # short, as a SQL store wants it
    go.order("admin_create_topic", topic=name, broker=on.broker, queues=PARTS)
    return name


def settle(admin: Admin, group: str, members: int) -> None:
    """Wait until the broker knows this many consumers."""
    wait_until(lambda: len(admin.members(group)) == members, within_s=SETTLE_S)


# -- sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_each_message_arrives_once_and_unchanged(mode: Mode, go: GoClient, producer: Producer, topic: str) -> None:
    messages = [
        {
            "body": f"第 {n} 条 🚀" + "!" * n * 1000,  # bodies above 4 KiB are compressed
            "tags": "TagA",
            "keys": f"{topic}-{n} more",
            "properties": {"城市": "北京", "n": f"{n}"},
        }
        for n in range(10)
    ]
    with go.push_consumer(f"{topic}_group", topic) as consumer:
        sent = producer.send(topic, messages, mode=mode)
        seen = consumer.receive(10)
    assert Counter(bodies(consumer.seen)) == Counter(str(message["body"]) for message in messages)
    for message in seen:
        number = message.properties["n"]
        assert message.body.startswith(f"第 {number} 条 🚀")
        assert (message.topic, message.tags, message.keys) == (topic, "TagA", f"{topic}-{number} more")
        assert message.properties["城市"] == "北京"
    if mode != "oneway":
        assert {(one.queue_id, one.queue_offset) for one in sent} == places(seen)
        assert {one.msg_id for one in sent} == {message.msg_id for message in seen}
        assert {one.offset_msg_id for one in sent} == {message.offset_msg_id for message in seen}


def test_a_batch_is_stored_as_adjacent_single_messages(go: GoClient, producer: Producer, topic: str) -> None:
    messages = [{"body": body, "tags": "TagA", "keys": f"{topic}-key"} for body in numbered(10)]
    [sent] = producer.send(topic, messages, mode="batch")
    with go.push_consumer(f"{topic}_group", topic) as consumer:
        seen = sorted(consumer.receive(10), key=lambda message: message.queue_offset)
    assert bodies(seen) == numbered(10)
    assert [(m.queue_id, m.queue_offset) for m in seen] == [(sent.queue_id, sent.queue_offset + n) for n in range(10)]
    assert [message.offset_msg_id for message in seen] == sent.offset_msg_id.split(",")
    assert {(message.tags, message.keys) for message in seen} == {("TagA", f"{topic}-key")}


def test_selectors_choose_the_queue(go: GoClient, on: Platform, store: str, hashing: Producer, topic: str) -> None:
    for key in ("a", "b", "c"):
        sent = hashing.send(topic, [{"body": body, "hash": key} for body in numbered(3)])
        assert len({one.queue_id for one in sent}) == 1
    with go.producer("interop_manual", selector="manual") as manual:
        places_named = [{"body": "there", "queueId": queue, "broker": on.broker_name} for queue in range(PARTS)]
        # On a SQL store the response names the lane of the queue, which is a queue of its own for consumers.
        chosen = [one.queue_id for one in manual.send(topic, places_named)]
        assert chosen == sorted(set(chosen))
        assert store == "sqlite" or chosen == list(range(PARTS))
    with go.producer("interop_random", selector="random") as random:
        random.send(topic, numbered(20))
    with go.push_consumer(f"{topic}_group", topic) as consumer:
        seen = consumer.receive(9 + PARTS + 20)
    keys = Counter(message.properties.get("SHARDING_KEY") for message in seen)
    assert keys == {"a": 3, "b": 3, "c": 3, None: PARTS + 20}


def test_a_send_to_an_unknown_topic_creates_it(go: GoClient, producer: Producer) -> None:
    topic = f"go_unheard_of_{next(_topics)}"
    with pytest.raises(ClientError, match="route info not found"):
        go.push_consumer(f"{topic}_group", topic)
    producer.send(topic, numbered(8))
    with go.push_consumer(f"{topic}_group", topic) as consumer:
        assert Counter(bodies(consumer.receive(8))) == Counter(numbered(8))


# -- push consumers ---------------------------------------------------------------------------------------------------


def test_a_group_shares_the_messages_and_outlives_a_member(
    go: GoClient, producer: Producer, admin: Admin, topic: str
) -> None:
    group = f"{topic}_group"
    with go.push_consumer(group, topic) as first:
        second = go.push_consumer(group, topic)
        settle(admin, group, 2)
        producer.send(topic, numbered(40))
        wait_for_all([first, second], numbered(40))
        wait_until(lambda: first.seen or first.drain())
        second.stop()
        settle(admin, group, 1)
        producer.send(topic, numbered(8, start=40))
        wait_for_all([first, second], numbered(48))


def test_a_group_continues_at_its_committed_offset(go: GoClient, producer: Producer, topic: str) -> None:
    producer.send(topic, numbered(8))
    with go.push_consumer(f"{topic}_group", topic) as before:
        before.receive(8)
    producer.send(topic, numbered(8, start=8))
    with go.push_consumer(f"{topic}_group", topic) as after:
        assert Counter(bodies(after.receive(8))) == Counter(numbered(8, start=8))


def test_a_new_group_starts_at_the_beginning_of_a_young_topic_even_with_from_last(
    go: GoClient, producer: Producer, topic: str
) -> None:
    producer.send(topic, numbered(8))
    with go.push_consumer(f"{topic}_group", topic, **{"from": "CONSUME_FROM_LAST_OFFSET"}) as consumer:
        assert Counter(bodies(consumer.receive(8))) == Counter(numbered(8))


def test_an_orderly_consumer_sees_each_queue_in_order_and_hands_it_over(
    go: GoClient, hashing: Producer, topic: str
) -> None:
    # Two at the same time are not tested: a queue that moves stays locked until the lock expires at the broker after a
    # minute, because the client only unlocks at its end.
    seen: list[ReceivedMessage] = []
    sent = Counter[int]()
    orders = [f"order-{n}" for n in range(6)]
    for step in range(2):
        steps = [{"body": f"{order} step {step} {n}", "hash": order} for order in orders for n in (0, 1)]
        # It refuses each message once: the queue waits, and the message comes again before the next one.
        with go.push_consumer(f"{topic}_group", topic, orderly=True, refusals=1) as reader:
            sent.update(one.queue_id for one in hashing.send(topic, steps))
            seen += reader.receive(2 * len(steps))
            assert Counter(bodies(reader.seen)) == Counter(2 * [str(each["body"]) for each in steps])
    offsets = {queue: [message.queue_offset for message in seen if message.queue_id == queue] for queue in sent}
    assert offsets == {queue: sorted([*range(count), *range(count)]) for queue, count in sent.items()}


def test_broadcast_delivers_everything_to_every_consumer(go: GoClient, producer: Producer, topic: str) -> None:
    with ExitStack() as stack:
        readers = [
            stack.enter_context(go.push_consumer(f"{topic}_group", topic, model="BROADCASTING")) for _ in range(2)
        ]
        producer.send(topic, numbered(20))
        for reader in readers:
            assert Counter(bodies(reader.receive(20))) == Counter(numbered(20))


def test_a_message_that_the_handler_rejects_is_delivered_again_and_then_dead(
    go: GoClient, producer: Producer, admin: Admin, topic: str
) -> None:
    group = f"{topic}_group"
    # The first heartbeat of a group creates its retry topic, too late for the first consumer to find it at once.
    go.push_consumer(group, topic).stop()
    with go.push_consumer(group, topic, refusals=99, refusalLevel=1, retriesMax=1) as consumer:
        [sent] = producer.send(topic, [{"body": "bad", "tags": "TagA", "keys": "key", "properties": {"n": "1"}}])
        first, again = consumer.receive(2)
        assert (first.reconsume_times, again.reconsume_times) == (0, 1)
        for seen in (first, again):
            assert (seen.topic, seen.body, seen.tags, seen.keys) == (topic, "bad", "TagA", "key")
            assert seen.msg_id == sent.msg_id
        wait_until(lambda: len(admin.dead_letters(group)) == 1, within_s=SETTLE_S)
        [letter] = admin.dead_letters(group)
        assert (letter.topic, letter.body, letter.properties["n"]) == (topic, b"bad", "1")


# -- pull consumers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 16])
def test_a_polling_consumer_gets_every_message_and_commits(
    size: int, go: GoClient, producer: Producer, topic: str
) -> None:
    """Default options ask for 0 messages at a time; as with Apache's brokers one message comes."""
    producer.send(topic, numbered(20))
    with go.pull_consumer(f"{topic}_group", topic, batchSize=size) as before:
        assert Counter(bodies(before.receive(20))) == Counter(numbered(20))
    producer.send(topic, numbered(4, start=20))
    with go.pull_consumer(f"{topic}_group", topic, batchSize=size) as after:
        assert Counter(bodies(after.receive(4))) == Counter(numbered(4, start=20))


def test_a_consumer_pulls_at_an_offset(go: GoClient, on: Platform, hashing: Producer, topic: str) -> None:
    sent = hashing.send(topic, [{"body": body, "hash": "one queue"} for body in numbered(10)])
    with go.pull_consumer(f"{topic}_group", topic, manual=True) as reader:
        place = {"broker": on.broker_name, "queueId": sent[0].queue_id}
        assert bodies(reader.pull(topic, **place, offset=7, count=2)) == numbered(2, start=7)
        assert bodies(reader.pull(topic, **place, offset=0)) == numbered(10)


def test_a_consumer_pulls_from_its_own_queue_and_commits(
    go: GoClient, on: Platform, store: str, producer: Producer, admin: Admin
) -> None:
    if store == "sqlite":
        pytest.skip("two of the three lanes are empty, and the broker holds every pull of an empty queue for 20 s")
    topic = f"go_topic_{next(_topics)}"
    go.order("admin_create_topic", topic=topic, broker=on.broker, queues=1)
    producer.send(topic, numbered(5))
    with go.pull_consumer(f"{topic}_group", topic, manual=True) as reader:
        assert bodies(reader.pull(topic, count=3)) == numbered(3)
        [queue] = admin.topic_bounds(topic)
        wait_until(lambda: admin.progress(f"{topic}_group", topic).queues[queue].committed == 3)
        # The next one may be of the empty retry topic, whose queues the client counts among its own.


# -- filters ----------------------------------------------------------------------------------------------------------


def test_consumers_receive_only_their_subscribed_tags(go: GoClient, hashing: Producer, topic: str) -> None:
    # "Aa" and "BB" have the same hash, so only the client can filter them; the last message proves that all were
    # passed.
    tags = ["TagA", "TagB", "TagC", None, "Aa", "BB"]
    messages = [{"body": f"{tag} {n}", "tags": tag, "hash": "one queue"} for n in range(5) for tag in tags]
    with (
        go.push_consumer(f"{topic}_two", topic, expression="TagA || TagB") as two,
        go.push_consumer(f"{topic}_alike", topic, expression="Aa") as alike,
        go.pull_consumer(f"{topic}_pull", topic, expression="TagA||TagB") as polling,
    ):
        hashing.send(topic, [*messages, {"body": "end", "tags": "TagA", "hash": "one queue"}])
        both = Counter([f"Tag{x} {n}" for x in "AB" for n in range(5)] + ["end"])
        assert Counter(bodies(two.receive(11))) == both
        assert Counter(bodies(alike.receive(5))) == Counter(f"Aa {n}" for n in range(5))
        assert Counter(bodies(polling.receive(11))) == both


def test_an_sql_expression_filters_messages_by_their_properties(
    go: GoClient, on: Platform, hashing: Producer, topic: str
) -> None:
    sql = "(age BETWEEN 20 AND 29 AND color IN ('red', 'blue')) OR TAGS = 'TagB'"
    sent = hashing.send(
        topic,
        [
            {"body": "young", "properties": {"age": "19", "color": "red"}, "hash": "one queue"},
            {"body": "red", "properties": {"age": "20", "color": "red"}, "hash": "one queue"},
            {"body": "green", "properties": {"age": "20", "color": "green"}, "hash": "one queue"},
            {"body": "end", "tags": "TagB", "hash": "one queue"},
        ],
    )
    with go.push_consumer(f"{topic}_group", topic, sql=sql) as consumer:
        assert sorted(bodies(consumer.receive(2))) == ["end", "red"]
    # Poll of a pull consumer is not tested: the client sends the expression as a list of tags, which matches nothing.
    with go.pull_consumer(f"{topic}_pull", topic, sql=sql, manual=True) as reader:
        place = {"broker": on.broker_name, "queueId": sent[0].queue_id, "offset": 0}
        assert bodies(reader.pull(topic, **place)) == ["red", "end"]


# -- kinds of messages ------------------------------------------------------------------------------------------------


def test_transactions_end_by_state_or_by_check_back(go: GoClient, topic: str) -> None:
    with (
        go.push_consumer(f"{topic}_group", topic) as consumer,
        go.producer(f"{topic}_producers", transactional=True) as producer,
    ):
        ids = {}
        for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"):
            sent = producer.send_in_transaction(topic, {"body": state, "tags": "TagA", "keys": "k"}, state)
            assert sent.status == "SEND_OK"
            ids[state] = sent.msg_id
        states = {
            "paid": ["COMMIT_MESSAGE"],
            "not paid": ["ROLLBACK_MESSAGE"],
            "paid late": ["UNKNOW", "COMMIT_MESSAGE"],
        }
        for body, answers in states.items():
            ids[body] = producer.send_in_transaction(topic, later(body, *answers), "UNKNOW").msg_id
        asked = producer.check_backs(4, within_s=ASKED_S)
        assert Counter(bodies(asked)) == {body: len(answers) for body, answers in states.items()}
        for message in asked:
            assert (message.topic, message.msg_id, message.tags) == (topic, ids[message.body], "TagA")
        consumer.receive(3)
        assert producer.check_backs(1, within_s=NOT_ASKED_S) == [], "every transaction must have ended"
    assert sorted(bodies(consumer.seen)) == ["COMMIT_MESSAGE", "paid", "paid late"]
    assert {ids[message.body] == message.msg_id for message in consumer.seen} == {True}


def test_a_message_with_a_delay_level_is_delivered_after_its_delay(
    go: GoClient, producer: Producer, topic: str
) -> None:
    with go.push_consumer(f"{topic}_group", topic) as consumer:
        begun_ms = time.time() * 1000
        [sent, _] = producer.send(topic, [{"body": "late", "tags": "TagA", "delayLevel": 1}, "at once"])
        at_once, late = consumer.receive(2)
        assert (at_once.body, late.body) == ("at once", "late")
        assert (late.topic, late.tags, late.msg_id) == (topic, "TagA", sent.msg_id)
        assert late.store_timestamp >= begun_ms + 1_000


def test_a_request_gets_its_reply_or_times_out(go: GoClient, topic: str) -> None:
    # The broker sends replies to producers that it knows by a heartbeat. The Go client sends its first one a second
    # after the start, and only to brokers that it has a route to: in its examples the consumer sleeps for a second.
    with (
        go.push_consumer(f"{topic}_group", topic, replies=True) as consumer,
        go.producer(f"{topic}_producers") as asking,
    ):
        asking.send(topic, ["learn the route"])
        consumer.receive(1)

        def is_known() -> bool:
            try:
                return asking.request(topic, "known?", timeout_ms=500) == "KNOWN?"
            except ClientError:
                return False

        wait_until(is_known, within_s=SETTLE_S)
        assert asking.request(topic, "abc") == "ABC"
        assert asking.request(topic, "x" * 20_000) == "X" * 20_000
        assert asking.request(topic, "later", mode="async") == "LATER"
        consumer.stop()
        with pytest.raises(ClientError, match="timeout"):
            asking.request(topic, "nobody listens", timeout_ms=500)


def test_traces_name_the_producer_and_the_consumer_of_a_message(
    go: GoClient, on: Platform, producer: Producer, topic: str
) -> None:
    # The Go client drops traces while the topic does not exist: it does not fall back to the template topic.
    producer.send(TRACE_TOPIC, ["creates the topic"])
    group, senders = f"{topic}_group", f"{topic}_producers"
    with go.push_consumer(group, topic, trace=True) as consumer, go.producer(senders, trace=True) as traced:
        [sent] = traced.send(topic, [{"body": "a book", "tags": "TagA", "keys": "k"}])
        consumer.receive(1)
        ended, begun, published = sorted(traces(on, sent.msg_id, 3), key=lambda each: type(each).__name__)
        # Asynchronous sends of a traced producer fail in the client, whatever the broker.
        with pytest.raises(ClientError, match="ProducerCtx Not Exist"):
            traced.send(topic, ["never sent"], mode="async")
    assert isinstance(published, PublishTrace)
    assert isinstance(begun, ConsumeStartTrace)
    assert isinstance(ended, ConsumeEndTrace)
    assert (published.group, published.topic, published.tags, published.keys) == (senders, topic, "TagA", "k")
    assert (published.body_bytes, published.offset_id, published.is_success) == (6, sent.offset_msg_id, True)
    assert (begun.group, begun.keys, begun.retries) == (group, "k", 0)
    assert (ended.request_id, ended.is_success) == (begun.request_id, True)


# -- administration ---------------------------------------------------------------------------------------------------


def test_the_admin_client_manages_topics_and_lists_groups(go: GoClient, on: Platform, topic: str) -> None:
    group = f"{topic}_group"
    with go.push_consumer(group, topic):
        assert topic in go.order("admin_topics")
        assert {queue["queueId"] for queue in go.order("admin_queues", topic=topic)} == set(range(PARTS))
        assert go.order("admin_groups", broker=on.broker)[group]["GroupName"] == group
    go.order("admin_delete_topic", topic=topic)
    assert topic not in go.order("admin_topics")


def test_brokers_control_a_running_consumer(go: GoClient, producer: Producer, admin: Admin, topic: str) -> None:
    group = f"{topic}_group"
    sent = producer.send(topic, numbered(8))
    with go.push_consumer(group, topic) as before:
        before.receive(8)  # and commit: Apache's brokers refuse to reset a group that never did
    with go.push_consumer(group, topic) as consumer:
        settle(admin, group, 1)
        assert [member.language for member in admin.members(group)] == ["GO"]
        # A member is not assigned its queues yet, and a reset skips the queues that the consumer does not have.
        producer.send(topic, numbered(8, start=8))
        consumer.receive(8)
        assert admin.consume_directly(group, sent[3].offset_msg_id).consume_result == "CR_SUCCESS"
        assert bodies(consumer.receive(1)) == ["message 3"]
        admin.reset_offsets(group, topic, "first")
        # The consumer waits ten seconds before it rewinds.
        assert Counter(bodies(consumer.receive(16))) == Counter(numbered(16))
