"""Sends to a real broker: placement, properties that the broker adds, refusals, and flush guarantees."""

import asyncio
import threading

import pytest
from tests.support.platforms import (
    SMALL_LOG,
    broker_server,
    encode_properties,
    log_store_of,
    open_channel,
    pull,
    read_send_response,
    running_broker,
    running_platform,
    send,
    send_batch,
    send_header,
    try_send,
)
from tests.support.raw_connection import open_raw_connection
from tests.support.wait import eventually

from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net import HandlerResponse
from sparrow.wire import batch, bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, Serialization
from sparrow.wire.headers import SendMessageResponse
from sparrow.wire.message_ids import parse_offset_id, parse_unique_id

SYNC_LOG = SMALL_LOG.model_copy(update={"flush": "sync"})
NOT_FOR_SENDERS = (
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
)

STAMP = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""Properties that the broker adds to every message."""


@pytest.fixture
async def server(tmp_path):
    async with running_broker(tmp_path) as server:
        await server.broker.topics.put(Topic(name="T", read_queues=4, write_queues=4))
        yield server


@pytest.fixture
async def channel(server):
    async with open_channel(server.address) as channel:
        yield channel


# -- one message ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_send_returns_its_offset_and_the_message_is_read_back_unchanged(server, channel, code):
    said = encode_properties(TAGS="TagA", KEYS="k1 k2", own="värde")
    for offset in range(3):
        answered = await send(channel, "T", b"hello", 2, said, code=code, flag=9, born_ms=123, reconsume_times=1)
        assert (answered.queue_id, answered.queue_offset) == (2, offset)
    (*_, message) = (await pull(channel, "T", 2)).messages
    place = parse_offset_id(answered.message_id)
    assert place.host == server.address.as_host()
    assert place.physical_offset == message.physical_offset
    assert (message.topic, message.queue_id, message.queue_offset, message.body) == ("T", 2, 2, b"hello")
    assert (message.flag, message.born_ms, message.reconsume_times, message.sys_flag) == (9, 123, 1, 0)
    assert (message.tags, message.keys, message.properties["own"]) == ("TagA", ["k1", "k2"], "värde")
    assert message.store_host == server.address.as_host()
    assert message.born_host.ip == b"\x7f\0\0\1"


async def test_a_send_response_has_the_fields_that_clients_read_unchecked(channel):
    answered = await try_send(channel, "T", b"x", 0, encode_properties(UNIQ_KEY="A1"))
    fields = answered.fields()
    assert set(fields) == {"msgId", "queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON"}
    assert (fields["transactionId"], fields["MSG_REGION"], fields["TRACE_ON"]) == ("A1", "DefaultRegion", "true")
    assert answered.body == b""
    assert answered.remark is None


async def test_the_broker_adds_its_cluster_and_a_missing_unique_id(channel):
    answered = await send(channel, "T", b"x", 0, "a\x01b")  # some clients omit the last separator
    (message,) = (await pull(channel, "T")).messages
    assert message.properties == {"a": "b", "UNIQ_KEY": answered.transaction_id, **STAMP}
    assert parse_unique_id(answered.transaction_id).ip == b"\x7f\0\0\1"


async def test_the_unique_id_and_cluster_of_the_sender_are_kept(channel):
    answered = await send(channel, "T", b"x", 0, encode_properties(UNIQ_KEY="mine", CLUSTER="elsewhere"))
    (message,) = (await pull(channel, "T")).messages
    assert answered.transaction_id == "mine"
    assert message.properties == {"UNIQ_KEY": "mine", "CLUSTER": "elsewhere"}


@pytest.mark.parametrize(
    ("key", "serialization"),
    [
        ("7F000001ABCD", Serialization.JSON),
        ("7F000001ABCD", Serialization.BINARY),
        ("5f3c-11ee_a", Serialization.BINARY),
        ("5f3c-11ee_a", Serialization.JSON),
    ],
)
async def test_the_send_response_repeats_the_unique_id_of_the_sender_in_any_format(server, key, serialization):
    async with open_raw_connection(server.address) as wire:
        header = headers.write(send_header("T", 0, encode_properties(UNIQ_KEY=key)))
        answered = await wire.request(RemotingCommand(310, 1, ext=header, body=b"x", serialization=serialization))
        assert read_send_response(answered).transaction_id == key


async def test_a_property_with_the_same_suffix_is_a_different_property(channel):
    await send(channel, "T", b"x", 0, encode_properties(MY_UNIQ_KEY="mine", MY_CLUSTER="elsewhere"))
    (message,) = (await pull(channel, "T")).messages
    assert set(message.properties) == {"MY_UNIQ_KEY", "MY_CLUSTER", "UNIQ_KEY", *STAMP}


async def test_the_property_pop_ck_of_a_sender_is_removed(channel):
    await send(channel, "T", b"x", 0, encode_properties(POP_CK="0 1 2 3 0 b 0 0", own="1"))
    (message,) = (await pull(channel, "T")).messages
    assert message.properties["own"] == "1"
    assert "POP_CK" not in message.properties


async def test_a_negative_queue_id_lets_the_broker_choose(channel):
    chosen = {(await send(channel, "T", b"x", -1)).queue_id for _ in range(100)}
    assert chosen == {0, 1, 2, 3}


@pytest.mark.parametrize("body", [b"", b"\0" * 10, bytes(range(256)) * 16, b"\x02\x01" * 5])
async def test_any_bytes_are_a_valid_body(channel, body):
    await send(channel, "T", body)
    assert (await pull(channel, "T")).bodies == [body]


async def test_compressed_bodies_are_stored_unchanged(channel):
    await send(channel, "T", b"not really zlib", 0, sys_flag=0x300)
    answered = await channel.request(
        RequestCode.PULL_MESSAGE, headers.PullMessage("g", "T", 0, 0, 1, 4, 0, 0, 0, subscription="*")
    )
    assert b"not really zlib" in bytes(answered.body)


async def test_a_binary_request_gets_a_binary_response(server):
    async with open_raw_connection(server.address) as wire:
        for serialization in (Serialization.BINARY, Serialization.JSON):
            header = headers.write(send_header("T", 1, encode_properties(a="b")))
            command = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, 5, ext=header, body=b"x", serialization=serialization
            )
            answered = await wire.request(command)
            assert (answered.serialization, answered.opaque, read_send_response(answered).queue_id) == (
                serialization,
                5,
                1,
            )


async def test_one_way_sends_are_stored_and_not_answered(server, channel):
    async with open_raw_connection(server.address) as wire:
        header = headers.write(send_header("T"))
        wire.write(
            *(
                RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, ONE_WAY_FLAG, ext=header, body=b"quiet")
                for number in range(10)
            ),
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, 99, ONE_WAY_FLAG, ext=headers.write(send_header("T", 50)), body=b"refused"
            ),
            RemotingCommand(RequestCode.SEND_MESSAGE_V2, 10, ext=header, body=b"loud"),
        )
        (answered,) = await wire.read()
        assert (answered.opaque, read_send_response(answered).queue_offset) == (10, 10)
    assert (await pull(channel, "T")).bodies == [b"quiet"] * 10 + [b"loud"]


async def test_a_thousand_sends_in_one_write_keep_their_order(server, channel):
    async with open_raw_connection(server.address) as wire:
        header = headers.write(send_header("T"))
        wire.write(*(RemotingCommand(310, number, ext=header, body=b"%d" % number) for number in range(1000)))
        answers = await wire.read(1000)
    assert [(one.opaque, read_send_response(one).queue_offset) for one in answers] == [
        (number, number) for number in range(1000)
    ]
    found = await pull(channel, "T", count=1000, bytes_max=1 << 20)
    assert found.bodies == [b"%d" % number for number in range(1000)]


# -- batches ----------------------------------------------------------------------------------------------------------


async def test_a_batch_gets_consecutive_offsets_and_returns_all_offset_ids(channel):
    await send(channel, "T", b"before", 1)
    members = [
        (b"body %d" % number, encode_properties(TAGS=f"t{number}", UNIQ_KEY=f"u{number}").encode())
        for number in range(5)
    ]
    answered = await send_batch(channel, "T", members, 1)
    assert (answered.queue_id, answered.queue_offset) == (1, 1)
    found = (await pull(channel, "T", 1, 1)).messages
    assert [message.body for message in found] == [body for body, _ in members]
    assert [message.queue_offset for message in found] == [1, 2, 3, 4, 5]
    assert [message.properties["UNIQ_KEY"] for message in found] == [f"u{number}" for number in range(5)]
    assert {message.properties["CLUSTER"] for message in found} == {"DefaultCluster"}
    ids = [parse_offset_id(one).physical_offset for one in answered.message_id.split(",")]
    assert ids == [message.physical_offset for message in found]


@pytest.mark.parametrize("count", [1, 399, 400, 2_000])
async def test_small_and_large_batches_are_stored_alike(channel, count):
    """The broker encodes batches of 400 or more in columns; the stored records must be the same."""
    members = [
        (
            b"%d" % number,
            encode_properties(TAGS=f"t{number % 3}", KEYS=f"k{number}").encode()[: None if number % 2 else -1],
        )
        for number in range(count)
    ]
    answered = await send_batch(channel, "T", members, 2, sys_flag=0x200, born_ms=77, reconsume_times=2)
    found = (await pull(channel, "T", 2, count=count, bytes_max=1 << 20)).messages
    assert [message.body for message in found] == [body for body, _ in members]
    assert [message.queue_offset for message in found] == list(range(count))
    ids = [parse_offset_id(one).physical_offset for one in answered.message_id.split(",")]
    assert ids == [message.physical_offset for message in found]
    for number, message in enumerate(found):
        assert message.properties == {"TAGS": f"t{number % 3}", "KEYS": f"k{number}", **STAMP}
        assert (message.sys_flag, message.born_ms, message.reconsume_times) == (0x200, 77, 2)
    tagged = await pull(channel, "T", 2, tags="t1", count=count, bytes_max=1 << 20)
    assert len(tagged.messages) == len(range(1, count, 3)) or not tagged.messages


async def test_the_batch_flag_marks_a_batch_with_any_send_code(channel):
    body = batch.encode([(0, b"one", b""), (0, b"two", b"")])
    answered = await send(channel, "T", body, batch=True)
    assert len(answered.message_id.split(",")) == 2
    assert (await pull(channel, "T")).bodies == [b"one", b"two"]


async def test_a_batch_creates_its_topic(channel):
    answered = await send_batch(channel, "New", [(b"a", b""), (b"b", b"")])
    assert answered.queue_offset == 0
    assert (await pull(channel, "New")).bodies == [b"a", b"b"]


async def test_an_invalid_batch_stores_no_message(channel):
    good = batch.encode([(0, b"one", b"")])
    for body in (good + b"\0\0\0", good[:-1], b"", good + batch.encode([(0, b"two", b"p" * 32_760)])):
        refused = await try_send(channel, "T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
        assert refused.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL)
        assert refused.remark
    assert (await pull(channel, "T")).code == ResponseCode.PULL_NOT_FOUND


async def test_batches_to_retry_topics_are_refused(server, channel):
    await server.broker.topics.create_for_group("%RETRY%", "g")
    body = batch.encode([(0, b"one", b"")])
    refused = await try_send(channel, "%RETRY%g", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("where", ["batch", "member"])
async def test_delayed_batches_are_refused(channel, where):
    member = encode_properties(DELAY="3").encode() if where == "member" else b""
    body = batch.encode([(0, b"one", member)])
    said = encode_properties(DELAY="3") if where == "batch" else ""
    refused = await try_send(channel, "T", body, 0, said, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL


async def test_transactional_batches_are_refused(channel):
    body = batch.encode([(0, b"one", b"")])
    refused = await try_send(channel, "T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True, sys_flag=4)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", NOT_FOR_SENDERS)
async def test_sends_to_system_topics_are_refused(channel, topic):
    refused = await try_send(channel, topic, b"x")
    assert (refused.code, topic in refused.remark) == (ResponseCode.NO_PERMISSION, True)


async def test_a_refused_send_creates_no_topic(server, channel):
    await try_send(channel, "TRANS_CHECK_MAX_TIME_TOPIC", b"x")
    assert "TRANS_CHECK_MAX_TIME_TOPIC" not in server.broker.topics


async def test_a_send_to_a_topic_without_write_permission_is_refused(server, channel):
    await server.broker.topics.put(Topic(name="ReadOnly", permission=4))
    refused = await try_send(channel, "ReadOnly", b"x")
    assert refused.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("said", [{"DELAY": "0"}, {"TRAN_MSG": "false"}, {"MY_DELAY": "3"}, {"TEXT": "TRAN_MSG"}])
async def test_properties_that_resemble_delay_or_transaction_are_sent_at_once(channel, said):
    await send(channel, "T", b"x", 0, encode_properties(**said))
    assert (await pull(channel, "T")).bodies == [b"x"]


async def test_a_half_message_to_a_retry_topic_is_refused_or_stored(server, channel):
    await server.broker.topics.create_for_group("%RETRY%", "g")
    answered = await try_send(channel, "%RETRY%g", b"x", 0, sys_flag=4)
    assert answered.code != ResponseCode.SUCCESS or (await pull(channel, "%RETRY%g")).bodies == [b"x"]


# -- automatic creation of topics -------------------------------------------------------------------------------------


async def route(channel, topic):
    answered = await channel.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute(topic))
    return bodies.read(bodies.RouteData, answered.body) if answered.code == ResponseCode.SUCCESS else answered.code


async def test_a_topic_created_by_a_send_is_routed_before_the_response(tmp_path):
    async with (
        running_platform(tmp_path) as platform,
        open_channel(platform.address) as channel,
        open_channel(platform.name_server.address) as naming,
    ):
        assert await route(naming, "New") == ResponseCode.TOPIC_NOT_EXIST
        await send(channel, "New", b"first", 3)
        found = await route(naming, "New")
        assert [(one.read_queue_nums, one.write_queue_nums, one.perm) for one in found.queue_datas] == [(4, 4, 6)]
        assert found.broker_datas[0].broker_addrs == {0: str(platform.address)}
        assert (await pull(channel, "New", 3)).bodies == [b"first"]


@pytest.mark.parametrize(("asked", "made"), [(1, 1), (4, 4), (8, 8), (100, 8), (0, 1), (-5, 1)])
async def test_a_new_topic_gets_the_requested_queues_up_to_those_of_the_template(server, channel, asked, made):
    await send(channel, "New", b"x", default_topic_queues=asked)
    topic = server.broker.topics["New"]
    assert (topic.read_queues, topic.write_queues, topic.permission) == (made, made, 6)


async def test_concurrent_first_sends_create_the_topic_once(server, channel):
    answers = await asyncio.gather(
        try_send(channel, "New", b"a", 3, default_topic_queues=4),
        try_send(channel, "New", b"b", 0, default_topic_queues=1),
    )
    assert [one.code for one in answers] == [0, 0]
    assert server.broker.topics["New"].write_queues == 4
    assert (await pull(channel, "New", 3)).bodies == [b"a"]


async def test_many_concurrent_first_sends_are_all_stored(server, channel):
    await asyncio.gather(*(send(channel, "New", b"%d" % number) for number in range(100)))
    found = await pull(channel, "New", count=200)
    assert sorted(found.bodies, key=int) == [b"%d" % number for number in range(100)]


async def test_a_template_topic_without_inherit_permission_creates_no_topic(server, channel):
    for template in ("T", "NoSuchTopic", ""):
        refused = await try_send(channel, "New", b"x", template_topic=template)
        assert (refused.code, "'New'" in refused.remark) == (ResponseCode.TOPIC_NOT_EXIST, True)
    assert "New" not in server.broker.topics


async def test_a_send_to_an_unknown_topic_is_refused_when_auto_creation_is_off(tmp_path):
    async with running_broker(tmp_path, auto_create_topics=False) as server, open_channel(server.address) as channel:
        refused = await try_send(channel, "New", b"x")
        assert refused.code == ResponseCode.TOPIC_NOT_EXIST
        assert "TBW102" not in server.broker.topics


async def test_topics_and_messages_survive_a_restart_of_the_broker(tmp_path):
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        await send(channel, "New", b"kept")
    async with running_broker(tmp_path) as server, open_channel(server.address) as channel:
        assert server.broker.topics["New"].write_queues == 4
        assert (await send(channel, "New", b"next")).queue_offset == 1
        assert (await pull(channel, "New")).bodies == [b"kept", b"next"]


# -- flush guarantees -------------------------------------------------------------------------------------------------


class SlowDisk:
    """A disk that blocks every flush until `may` is set."""

    def __init__(self, store, monkeypatch):
        self.may, self._sync = threading.Event(), store._flusher.sync
        monkeypatch.setattr(store._flusher, "sync", self._wait)

    def _wait(self):
        self.may.wait(10)
        self._sync()


async def test_with_synchronous_flush_a_send_waits_for_the_disk(tmp_path, monkeypatch):
    async with running_broker(tmp_path, log=SYNC_LOG) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"makes the topic")
        disk = SlowDisk(server.broker.store, monkeypatch)
        asked = [asyncio.ensure_future(send(channel, "T", b"safe")) for _ in range(10)]
        # The messages have their offsets and other requests are served, but no send is confirmed.
        await eventually(lambda: server.broker.store.bounds_nowait(Queue("T", 0)).end == 11)
        assert (await channel.request(RequestCode.GET_MAX_OFFSET, headers.QueueRequest("T", 0))).code == 0
        assert not any(one.done() for one in asked)
        disk.may.set()
        assert sorted([(await one).queue_offset for one in asked]) == list(range(1, 11))
        assert log_store_of(server.broker).watermark("durable") >= server.broker.store.written


async def test_a_send_with_wait_false_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    async with running_broker(tmp_path, log=SYNC_LOG) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"makes the topic")
        disk = SlowDisk(server.broker.store, monkeypatch)
        answered = await send(channel, "T", b"quick", 0, encode_properties(WAIT="false"))
        assert answered.queue_offset == 1
        assert log_store_of(server.broker).watermark("durable") < server.broker.store.written
        disk.may.set()


async def test_a_property_whose_name_ends_in_wait_does_not_skip_the_flush(tmp_path, monkeypatch):
    async with running_broker(tmp_path, log=SYNC_LOG) as server, open_channel(server.address) as channel:
        await send(channel, "T", b"makes the topic")
        disk = SlowDisk(server.broker.store, monkeypatch)
        asked = asyncio.ensure_future(send(channel, "T", b"safe", 0, encode_properties(MAY_WAIT="false")))
        await eventually(lambda: server.broker.store.bounds_nowait(Queue("T", 0)).end == 2)
        await channel.request(RequestCode.GET_MAX_OFFSET, headers.QueueRequest("T", 0))
        is_early = asked.done()
        disk.may.set()
        await asked
        assert not is_early


async def test_a_slow_flush_times_out_with_the_offset_of_the_message(tmp_path, monkeypatch):
    log = SYNC_LOG.model_copy(update={"flush_timeout_ms": 50})
    async with running_broker(tmp_path, log=log) as server, open_channel(server.address) as channel:
        await try_send(channel, "T", b"makes the topic")  # on a busy disk its own flush may time out
        disk = SlowDisk(server.broker.store, monkeypatch)
        answered = await try_send(channel, "T", b"late")
        assert (answered.code, headers.read(SendMessageResponse, answered.ext).queue_offset) == (
            ResponseCode.FLUSH_DISK_TIMEOUT,
            1,
        )
        assert answered.remark
        disk.may.set()


async def test_a_stopping_broker_answers_sends_that_wait_for_the_disk(tmp_path, monkeypatch):
    server = broker_server(tmp_path, log=SYNC_LOG)
    await server.start()
    async with open_channel(server.address) as channel:
        await send(channel, "T", b"makes the topic")
        disk = SlowDisk(server.broker.store, monkeypatch)
        asked = asyncio.ensure_future(try_send(channel, "T", b"in hand"))
        await eventually(lambda: server.broker.store.bounds_nowait(Queue("T", 0)).end == 2)
        stopping = asyncio.ensure_future(server.stop())
        await eventually(lambda: server._serving.is_stopping)
        disk.may.set()
        await stopping
        assert (await asked).code == ResponseCode.SUCCESS


async def test_a_stopping_broker_finishes_requests_in_progress_and_refuses_new_ones(tmp_path):
    """It refuses with a response code, not by closing; the next start finds all confirmed messages."""
    gate = asyncio.Event()

    async def slow(request, broker, call):
        await gate.wait()
        return HandlerResponse(body=b"finished")

    server = broker_server(tmp_path)
    await server.start()
    server._serving._handlers = {**server._serving._handlers, 7777: slow}
    async with open_channel(server.address) as channel:
        await send(channel, "T", b"0")
        held = channel.request(7777)
        await channel.request(RequestCode.GET_MAX_OFFSET, headers.QueueRequest("T", 0))
        stopping = asyncio.ensure_future(server.stop())
        await eventually(lambda: server._serving.is_stopping)
        refused = await try_send(channel, "T", b"too late")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        gate.set()
        assert (await held).body == b"finished"
        await stopping
    async with running_broker(tmp_path) as again, open_channel(again.address) as channel:
        assert (await pull(channel, "T")).bodies == [b"0"]
