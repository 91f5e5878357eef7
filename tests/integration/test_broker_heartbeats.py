"""Heartbeats over real sockets: group membership, queue locks, and remote control of consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.drafts import make_draft
from tests.support.wait import eventually

from sparrow.broker.admin import consumer_control
from sparrow.broker.server import BrokerServer
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.net import Channel, connect
from sparrow.settings import BrokerSettings, LogSettings
from sparrow.wire import bodies, headers, record
from sparrow.wire.bodies import ConsumerData, HeartbeatData, LockQueues, ProducerData, QueueRef, SubscriptionData
from sparrow.wire.codes import ADVERTISED_VERSION, Language, RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, encode, response_to
from sparrow.wire.message_ids import format_offset_id

LOG = LogSettings(segment_bytes=1 << 20, warm_bytes=0, index_slots=1024, index_entries=4096, queue_file_entries=1000)


@asynccontextmanager
async def running_server(path: Path, **settings: object) -> AsyncIterator[BrokerServer]:
    async with BrokerServer(BrokerSettings(port=0, **settings), path, LOG) as server:
        yield server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    async with running_server(tmp_path) as running:
        yield running


class Client:
    """A consumer that sends heartbeats and answers requests of the broker."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.channel: Channel
        self.requests: list[RemotingCommand] = []
        self.answers: dict[int, Callable[[RemotingCommand], RemotingCommand]] = {}

    async def connect(self, server: BrokerServer) -> Client:
        self.channel = await connect(server.address, self._serve)
        return self

    def _serve(self, command: RemotingCommand, channel: Channel) -> None:
        self.requests.append(command)
        if command.code in self.answers:
            channel.write(encode(self.answers[command.code](command)))

    def encode_heartbeat(self, group: str = "g", *topics: str, **more: object) -> bytes:
        subscriptions = [SubscriptionData(topic, sub_version=1) for topic in topics or ("T",)]
        model = str(more.pop("message_model", "CLUSTERING"))
        consumer = ConsumerData(group, message_model=model, subscription_data_set=subscriptions)
        return bodies.write(HeartbeatData(self.client_id, consumer_data_set=[consumer], **more))

    async def send_heartbeat(self, group: str = "g", *topics: str, **more: object) -> RemotingCommand:
        seen = await self.channel.request(
            RequestCode.HEART_BEAT, headers.Heartbeat(), self.encode_heartbeat(group, *topics, **more)
        )
        assert seen.code == ResponseCode.SUCCESS, seen.remark
        return seen

    def send_heartbeat_as(self, language: Language, version: int) -> None:
        """Send a one-way heartbeat as a client of another language or version."""
        frame = RemotingCommand(
            RequestCode.HEART_BEAT, 1, ONE_WAY_FLAG, language, version, None, None, self.encode_heartbeat()
        )
        self.channel.write(encode(frame))

    def requests_with_code(self, code: int) -> list[RemotingCommand]:
        return [command for command in self.requests if command.code == code]

    async def request(self, code: int, header: headers.Header | None = None, body: bytes = b"") -> RemotingCommand:
        return await self.channel.request(code, header, body)

    async def members(self, group: str = "g") -> list[str]:
        found = await self.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, headers.ListConsumers(group))
        assert found.code == ResponseCode.SUCCESS, found.remark
        return bodies.read(bodies.ConsumerList, found.body).consumer_id_list


@pytest.fixture
async def connect_client(server: BrokerServer) -> AsyncIterator[Callable[[str], object]]:
    """Return a factory of connected clients; close them all at the end."""
    made: list[Client] = []

    async def connected(client_id: str) -> Client:
        made.append(await Client(client_id).connect(server))
        return made[-1]

    yield connected
    for each in made:
        each.channel.close()


# -- membership -------------------------------------------------------------------------------------------------------


async def test_members_are_notified_when_a_member_joins_or_leaves(connect_client):
    one, two = await connect_client("one"), await connect_client("two")
    await one.send_heartbeat()
    await two.send_heartbeat()
    assert await one.members() == await two.members() == ["one", "two"]
    await eventually(lambda: len(one.requests_with_code(40)) == 2)  # one for its own join, one for the other member's
    assert headers.read(headers.NotifyConsumersChanged, one.requests_with_code(40)[-1].ext).group == "g"
    assert one.requests_with_code(40)[-1].is_one_way

    await two.request(RequestCode.UNREGISTER_CLIENT, headers.UnregisterClient("two", consumer_group="g"))
    await eventually(lambda: len(one.requests_with_code(40)) == 3)
    assert await one.members() == ["one"]


async def test_a_repeated_heartbeat_notifies_no_member(connect_client):
    one, two = await connect_client("one"), await connect_client("two")
    await one.send_heartbeat()
    await two.send_heartbeat()
    await eventually(lambda: len(one.requests_with_code(40)) == 2)
    await two.send_heartbeat()
    await two.send_heartbeat()
    await one.members()  # a response on the same connection: earlier notifications have arrived
    assert len(one.requests_with_code(40)) == 2


async def test_a_client_that_disconnects_is_removed_at_once(connect_client, server):
    one, two = await connect_client("one"), await connect_client("two")
    await one.send_heartbeat()
    await two.send_heartbeat(producer_data_set=[ProducerData("p")])
    two.channel.abort()
    await eventually(lambda: len(one.requests_with_code(40)) == 3)
    assert await one.members() == ["one"]
    assert server.broker.clients.producers("p") == []


async def test_a_client_that_disconnects_while_its_group_is_created_is_no_member(tmp_path):
    log = LOG.model_copy(update={"flush": "sync"})  # makes the creation of a group slow
    async with BrokerServer(BrokerSettings(port=0), tmp_path, log) as server:
        hasty = await Client("hasty").connect(server)
        hasty.send_heartbeat_as(Language.JAVA, ADVERTISED_VERSION)
        hasty.channel.close()
        await eventually(lambda: server.broker.groups.get("g"))
        await eventually(lambda: not server.broker.clients.has_consumers("g"))


async def test_a_group_is_offline_after_its_last_member_leaves(connect_client):
    one = await connect_client("one")
    await one.send_heartbeat()
    await one.request(RequestCode.UNREGISTER_CLIENT, headers.UnregisterClient("one", consumer_group="g"))
    found = await one.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, headers.ListConsumers("g"))
    assert (found.code, found.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer of group 'g' is online")


async def test_broadcast_consumers_are_not_notified_of_membership_changes(connect_client):
    one, two = await connect_client("one"), await connect_client("two")
    await one.send_heartbeat(message_model="BROADCASTING")
    await two.send_heartbeat(message_model="BROADCASTING")
    assert await one.members() == ["one", "two"]
    assert one.requests_with_code(40) == []


async def test_a_client_without_heartbeats_is_disconnected_after_the_timeout(tmp_path):
    async with running_server(tmp_path, client_timeout_ms=600, scan_interval_ms=10) as server:
        mute, lively = await Client("mute").connect(server), await Client("lively").connect(server)
        await lively.send_heartbeat()
        await mute.send_heartbeat()
        async with asyncio.timeout(30):
            while mute.channel.is_open:
                await lively.send_heartbeat()
        assert lively.channel.is_open
        assert await lively.members() == ["lively"]
        lively.channel.close()


async def test_a_client_leaves_a_group_that_its_heartbeats_no_longer_contain(tmp_path):
    async with running_server(tmp_path, client_timeout_ms=600, scan_interval_ms=10) as server:
        one, two = await Client("one").connect(server), await Client("two").connect(server)
        await one.send_heartbeat("g")
        await one.send_heartbeat("h")
        await two.send_heartbeat("h")
        await eventually(lambda: len(two.requests_with_code(40)) == 1)
        async with asyncio.timeout(30):
            while len(two.requests_with_code(40)) < 2:
                await one.send_heartbeat("g")
                await two.send_heartbeat("h")
        assert await two.members("h") == ["two"]
        assert await two.members("g") == ["one"]
        one.channel.close()
        two.channel.close()


async def test_a_heartbeat_creates_a_new_group_and_its_retry_topic(connect_client, server):
    one = await connect_client("one")
    await one.send_heartbeat("brand-new")
    assert server.broker.groups.get("brand-new") == Group(name="brand-new")
    retry = server.broker.topics["%RETRY%brand-new"]
    assert (retry.read_queues, retry.write_queues, retry.permission) == (1, 1, 6)


async def test_a_heartbeat_skips_an_unknown_group_when_auto_creation_is_off(tmp_path):
    async with running_server(tmp_path, auto_create_groups=False) as server:
        one = await Client("one").connect(server)
        await server.broker.groups.put(Group(name="known", retry_queues=3))
        await one.send_heartbeat("unknown")
        await one.send_heartbeat("known")
        assert not server.broker.clients.has_consumers("unknown")
        assert "%RETRY%unknown" not in server.broker.topics
        assert server.broker.clients.has_consumers("known")
        assert server.broker.topics["%RETRY%known"].write_queues == 3
        one.channel.close()


async def test_a_v2_heartbeat_without_subscriptions_keeps_the_known_ones(connect_client, server):
    one = await connect_client("one")

    def said(seen: RemotingCommand) -> headers.HeartbeatResponse:
        return headers.read(headers.HeartbeatResponse, seen.ext)

    first = await one.send_heartbeat(heartbeat_fingerprint=5, without_sub=True)
    assert said(first) == headers.HeartbeatResponse(supports_v2=True, subscription_changed=True)
    assert server.broker.clients.subscription_filter("g", "T") is None
    assert not said(await one.send_heartbeat(heartbeat_fingerprint=5)).subscription_changed
    assert not said(
        await one.send_heartbeat("g", "other", heartbeat_fingerprint=5, without_sub=True)
    ).subscription_changed
    assert server.broker.clients.subscription_filter("g", "T") is not None
    assert first.version >= 233  # older than this, Java does not pull by SQL92


# -- invalid requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.HEART_BEAT, b""),
        (RequestCode.HEART_BEAT, b"{"),
        (RequestCode.HEART_BEAT, b'{"consumerDataSet":[]}'),
        (RequestCode.HEART_BEAT, b'{"clientID":""}'),
        (RequestCode.HEART_BEAT, b'{"clientID":"x","consumerDataSet":[{"groupName":["no"]}]}'),
        (RequestCode.LOCK_BATCH_MQ, b"[]"),
        (RequestCode.UNLOCK_BATCH_MQ, b'{"clientId":"x"}'),
        (RequestCode.CHECK_CLIENT_CONFIG, b"nonsense"),
    ],
)
async def test_a_malformed_body_is_refused_and_the_connection_stays_open(connect_client, code, body):
    one = await connect_client("one")
    refusal = await one.request(code, None, body)
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    assert "cannot be read" in refusal.remark
    await one.send_heartbeat()


async def test_invalid_sql92_is_refused_by_the_config_check_and_the_heartbeat(connect_client, server):
    one = await connect_client("one")
    by_sql = SubscriptionData("S", "a >", "SQL92", 1)
    asked = await one.request(
        RequestCode.CHECK_CLIENT_CONFIG, None, bodies.write(bodies.ClientConfigCheck("one", "g", by_sql))
    )
    assert asked.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "a >" in asked.remark
    data = ConsumerData("g", subscription_data_set=[by_sql, SubscriptionData("T", sub_version=1)])
    beaten = await one.request(
        RequestCode.HEART_BEAT, None, bodies.write(HeartbeatData("one", consumer_data_set=[data]))
    )
    assert (beaten.code, beaten.remark) == (asked.code, asked.remark)
    assert await one.members() == ["one"]
    assert server.broker.clients.subscription_filter("g", "T") is not None


async def test_a_tag_subscription_passes_the_config_check(connect_client):
    one = await connect_client("one")
    check = bodies.ClientConfigCheck("one", "g", SubscriptionData("T", "a || b"))
    assert (await one.request(RequestCode.CHECK_CLIENT_CONFIG, None, bodies.write(check))).code == ResponseCode.SUCCESS


# -- queue locks ------------------------------------------------------------------------------------------------------


async def test_only_one_client_of_a_group_holds_the_lock_of_a_queue(connect_client):
    one, two = await connect_client("one"), await connect_client("two")
    queues = [QueueRef("T", "sparrow", number) for number in range(2)]

    async def lock(who: Client) -> list[QueueRef]:
        held = await who.request(RequestCode.LOCK_BATCH_MQ, None, bodies.write(LockQueues("g", who.client_id, queues)))
        return bodies.read(bodies.LockedQueues, held.body).locked

    assert await lock(one) == queues
    assert await lock(two) == []
    give_back = bodies.write(LockQueues("g", "one", queues[:1]))
    assert (await one.request(RequestCode.UNLOCK_BATCH_MQ, None, give_back)).code == ResponseCode.SUCCESS
    assert await lock(two) == queues[:1]


# -- connections ------------------------------------------------------------------------------------------------------


async def test_tools_list_the_consumer_connections_of_a_group(connect_client):
    one, tool = await connect_client("one"), await connect_client("tool")
    none = await tool.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, headers.GetConsumerConnections("g"))
    assert (none.code, none.remark) == (ResponseCode.CONSUMER_NOT_ONLINE, "no consumer of group 'g' is online")
    await one.send_heartbeat("g", "T", "U")
    found = await tool.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, headers.GetConsumerConnections("g"))
    told = bodies.read(bodies.ConsumerConnections, found.body)
    (connection,) = told.connection_set
    assert (connection.client_id, connection.language, connection.version) == ("one", "PYTHON", ADVERTISED_VERSION)
    assert connection.client_addr.startswith("127.0.0.1:")
    assert set(told.subscription_table) == {"T", "U"}
    assert (told.message_model, told.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")


async def test_tools_list_the_producer_connections_of_a_group(connect_client):
    one, tool = await connect_client("one"), await connect_client("tool")
    none = await tool.request(RequestCode.GET_PRODUCER_CONNECTION_LIST, headers.GetProducerConnections("p"))
    assert (none.code, none.remark) == (ResponseCode.SYSTEM_ERROR, "no producer of group 'p' is online")
    await one.send_heartbeat(producer_data_set=[ProducerData("p")])
    found = await tool.request(RequestCode.GET_PRODUCER_CONNECTION_LIST, headers.GetProducerConnections("p"))
    (connection,) = bodies.read(bodies.ProducerConnections, found.body).connection_set
    assert connection.client_id == "one"
    every = await tool.request(RequestCode.GET_ALL_PRODUCER_INFO)
    table = bodies.read(bodies.ProducerTable, every.body).data
    assert [(group, entry.client_id) for group, entries in table.items() for entry in entries] == [("p", "one")]


# -- remote control: offsets ------------------------------------------------------------------------------------------


@pytest.fixture
async def five_messages(server: BrokerServer) -> list[int]:
    """Store five messages in queue 0 of T and commit offset 3 for group g; return their physical offsets."""
    store = server.broker.store
    await server.broker.topics.put(Topic(name="T", read_queues=2, write_queues=2))
    appended = await store.append(Queue("T", 0), [make_draft(f"m{number}", tags="a") for number in range(5)])
    await store.offsets.commit("g", Queue("T", 0), 3)
    await store.offsets.commit("g", Queue("T", 1), 0)
    return list(appended.physical_offsets)


def reset(time_ms: int, *, is_forced: bool = True, queue_id: int | None = None, offset: int | None = None):
    return headers.ResetOffset("T", "g", time_ms, is_forced, queue_id, offset)


def table(command: RemotingCommand) -> dict[int, int]:
    assert command.code in (ResponseCode.SUCCESS, RequestCode.RESET_CONSUMER_CLIENT_OFFSET), command.remark
    offsets = bodies.read(bodies.OffsetTable, command.body).offset_table
    return {queue.queue_id: offset for queue, offset in offsets.items()}


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        (reset(0), {0: 0, 1: 0}),
        (reset(-1), {0: 5, 1: 0}),
        (reset(-1, is_forced=False), {0: 3, 1: 0}),
        (reset(0, is_forced=False), {0: 0, 1: 0}),
        (reset(-1, queue_id=0), {0: 5}),
        (reset(0, queue_id=0, offset=4), {0: 4}),
        (reset(0, queue_id=-1, offset=-1), {0: 0, 1: 0}),
    ],
)
@pytest.mark.usefixtures("five_messages")
async def test_an_offset_reset_is_sent_to_every_member(connect_client, server, asked, offsets):
    one, two, tool = await connect_client("one"), await connect_client("two"), await connect_client("tool")
    await one.send_heartbeat()
    await two.send_heartbeat()
    said = await tool.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked)
    assert table(said) == offsets
    for member in (one, two):
        await eventually(lambda member=member: member.requests_with_code(220))
        (told,) = member.requests_with_code(220)
        assert table(told) == offsets
        assert told.is_one_way
        header = headers.read(headers.ResetOffset, told.ext)
        assert (header.topic, header.group, header.is_forced) == ("T", "g", asked.is_forced)
    # The members commit the new offsets, not the broker.
    assert await server.broker.store.offsets.committed("g", Queue("T", 0)) == 3


@pytest.mark.usefixtures("five_messages")
async def test_an_offset_reset_reaches_a_cpp_client_as_a_list(connect_client, server):
    one, tool = await connect_client("one"), await connect_client("tool")
    one.send_heartbeat_as(Language.CPP, ADVERTISED_VERSION)
    await eventually(lambda: server.broker.clients.has_consumers("g"))
    await tool.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(0, queue_id=0))
    await eventually(lambda: one.requests_with_code(220))
    (told,) = one.requests_with_code(220)
    listed = bodies.read(bodies.OffsetList, told.body).offset_table
    assert listed == [bodies.OffsetListEntry("sparrow", "T", 0, 0)]


@pytest.mark.usefixtures("five_messages")
async def test_an_offset_reset_of_an_offline_group_is_refused(connect_client):
    tool = await connect_client("tool")
    said = await tool.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(0))
    assert said.code == ResponseCode.CONSUMER_NOT_ONLINE


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (headers.ResetOffset("nowhere", "g", 0, True), ResponseCode.TOPIC_NOT_EXIST, "'nowhere' does not exist"),
        (headers.ResetOffset("T", "fresh", 0, True), ResponseCode.CONSUMER_NOT_ONLINE, "is online"),
        (reset(0, queue_id=2), ResponseCode.SYSTEM_ERROR, "has no queue"),
        (reset(0, queue_id=0, offset=6), ResponseCode.SYSTEM_ERROR, "offset 6 is outside"),
    ],
)
@pytest.mark.usefixtures("five_messages")
async def test_an_invalid_offset_reset_is_refused_and_sent_to_no_member(connect_client, asked, code, words):
    one, tool = await connect_client("one"), await connect_client("tool")
    await one.send_heartbeat()
    said = await tool.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked)
    assert said.code == code
    assert words in said.remark
    await one.members()
    assert one.requests_with_code(220) == []


@pytest.mark.usefixtures("five_messages")
async def test_an_offset_reset_is_refused_if_one_member_is_too_old(connect_client, server):
    one, old, tool = await connect_client("one"), await connect_client("old"), await connect_client("tool")
    await one.send_heartbeat()
    old.send_heartbeat_as(Language.JAVA, consumer_control.RESET_SINCE_VERSION - 1)
    await eventually(lambda: server.broker.clients.find_consumer("g", "old"))
    for code, header in (
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(0)),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, headers.GetConsumerStatus("T", "g")),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, headers.GetConsumerRunningInfo("g", "old")),
    ):
        said = await tool.request(code, header)
        assert said.code == ResponseCode.SYSTEM_ERROR
        assert "'old'" in said.remark
        assert "too old" in said.remark
    await one.members()
    assert one.requests_with_code(220) == one.requests_with_code(221) == []


# -- remote control: status requests ----------------------------------------------------------------------------------


def at(offset: int) -> Callable[[RemotingCommand], RemotingCommand]:
    """Return a handler that answers request 221 with this offset."""
    status = bodies.ConsumerStatus(message_queue_table={QueueRef("T", "sparrow", 0): offset})
    return lambda command: response_to(command, ResponseCode.SUCCESS, None, bodies.write(status), None)


async def test_consumer_status_contains_the_offsets_of_the_members(connect_client):
    one, two, tool = await connect_client("one"), await connect_client("two"), await connect_client("tool")
    one.answers[221], two.answers[221] = at(7), at(8)
    await one.send_heartbeat()
    await two.send_heartbeat()

    async def ask(client_id: str | None) -> dict[str, list[int]]:
        header = headers.GetConsumerStatus("T", "g", client_id)
        said = await tool.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        assert said.code == ResponseCode.SUCCESS, said.remark
        found = bodies.read(bodies.ConsumerStatus, said.body).consumer_table
        return {name: list(offsets.values()) for name, offsets in found.items()}

    assert await ask(None) == await ask("") == {"one": [7], "two": [8]}
    assert await ask("two") == {"two": [8]}


async def test_consumer_status_omits_members_that_do_not_answer(connect_client, monkeypatch):
    monkeypatch.setattr(consumer_control, "STATUS_TIMEOUT_MS", 50)
    one, mute, tool = await connect_client("one"), await connect_client("mute"), await connect_client("tool")
    one.answers[221] = at(7)
    await one.send_heartbeat()
    await mute.send_heartbeat()
    said = await tool.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, headers.GetConsumerStatus("T", "g"))
    assert set(bodies.read(bodies.ConsumerStatus, said.body).consumer_table) == {"one"}
    alone = await tool.request(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, headers.GetConsumerStatus("T", "g", "mute")
    )
    assert alone.code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_a_response_of_a_client_is_relayed_unchanged(connect_client):
    one, tool = await connect_client("one"), await connect_client("tool")
    await one.send_heartbeat()
    for code, remark, body in ((0, None, b'{"anything":{1:"goes"}}'), (1, "not today", b"")):
        one.answers[307] = lambda command, said=(code, None, body, remark): response_to(command, *said)
        header = headers.GetConsumerRunningInfo("g", "one", True)
        said = await tool.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        assert (said.code, said.remark, bytes(said.body)) == (code, remark, body)
        assert headers.read(headers.GetConsumerRunningInfo, one.requests_with_code(307)[-1].ext) == header


async def test_a_client_consumes_a_message_on_request(connect_client, five_messages, server):
    one, tool = await connect_client("one"), await connect_client("tool")
    result = bodies.ConsumeDirectlyResult("CR_SUCCESS", spent_time_mills=1)
    one.answers[309] = lambda command: response_to(command, 0, None, bodies.write(result), None)
    await one.send_heartbeat()
    message_id = format_offset_id(server.address.as_host(), five_messages[2])
    for client_id in ("one", None):
        header = headers.ConsumeMessageDirectly("g", client_id, message_id, topic="T")
        said = await tool.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert bodies.read(bodies.ConsumeDirectlyResult, said.body) == result
        told = one.requests_with_code(309)[-1]
        (message,) = record.decode_all(bytes(told.body))
        assert (message.body, message.topic, message.queue_offset) == (b"m2", "T", 2)
        assert headers.read(headers.ConsumeMessageDirectly, told.ext).broker_name == "sparrow"


@pytest.mark.parametrize(
    ("message_id", "words"),
    [
        (None, "no message id"),
        ("xyz", "32 or 56 characters"),
        ("7F00000100002A9F000000007FFFFFFF", "does not exist"),
    ],
)
async def test_consuming_an_unknown_message_directly_is_refused(connect_client, message_id, words):
    one, tool = await connect_client("one"), await connect_client("tool")
    await one.send_heartbeat()
    said = await tool.request(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, headers.ConsumeMessageDirectly("g", "one", message_id)
    )
    assert said.code == ResponseCode.SYSTEM_ERROR
    assert words in said.remark
    await one.members()
    assert one.requests_with_code(309) == []


async def test_a_relayed_request_times_out_if_the_client_does_not_answer(connect_client, monkeypatch):
    monkeypatch.setattr(consumer_control, "RELAY_TIMEOUT_MS", 50)
    mute, tool = await connect_client("mute"), await connect_client("tool")
    await mute.send_heartbeat()
    said = await tool.request(RequestCode.GET_CONSUMER_RUNNING_INFO, headers.GetConsumerRunningInfo("g", "mute"))
    assert said.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "'mute'" in said.remark


async def test_a_relayed_request_fails_if_the_client_disconnects(connect_client):
    rude, tool = await connect_client("rude"), await connect_client("tool")
    await rude.send_heartbeat()

    def hang_up(command: RemotingCommand) -> RemotingCommand:
        rude.channel.abort()
        return response_to(command, 0, None, b"", None)

    rude.answers[307] = hang_up
    said = await tool.request(RequestCode.GET_CONSUMER_RUNNING_INFO, headers.GetConsumerRunningInfo("g", "rude"))
    assert said.code == ResponseCode.SYSTEM_ERROR
    assert "no connection" in said.remark


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.GET_CONSUMER_RUNNING_INFO, headers.GetConsumerRunningInfo("g", "nobody")),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, headers.ConsumeMessageDirectly("g", "nobody", "0" * 32)),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, headers.ConsumeMessageDirectly("g")),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, headers.GetConsumerStatus("T", "g", "nobody")),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, headers.GetConsumerStatus("T", "g")),
    ],
)
async def test_a_relayed_request_to_an_offline_client_is_refused(connect_client, code, header):
    tool = await connect_client("tool")
    said = await tool.request(code, header)
    assert said.code == ResponseCode.SYSTEM_ERROR
    assert said.remark.endswith("online")
