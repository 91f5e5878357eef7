"""A name server over real sockets: registrations, routes, admin requests, and errors that stay isolated."""

import asyncio
import zlib

import pytest
from tests.support.wait import eventually

from sparrow import net
from sparrow.model.errors import ConnectionLost, SettingsError, UnknownTopic
from sparrow.nameserver import NameServer
from sparrow.nameserver.registration import LARGE_REGISTRATION_BYTES
from sparrow.settings import NameServerSettings
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import (
    BrokerMemberGroup,
    BrokerRegistration,
    ClusterTable,
    DataVersion,
    KvTable,
    QueueData,
    RouteData,
    TopicConfig,
    TopicList,
    TopicTable,
    write_registration,
)
from sparrow.wire.checksum import body_crc
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.frame import RemotingCommand, Serialization, decode, encode

ADDRESS = "10.0.0.1:10911"
SETTINGS = NameServerSettings(port=0)


class Clock:
    def __init__(self):
        self.now = 1_000_000

    def __call__(self):
        return self.now


def registration(*names, counter=1):
    configs = [TopicConfig(name, 4, 4) for name in names or ("T", "DefaultCluster")]
    table = {config.topic_name: config for config in configs}
    return BrokerRegistration(TopicTable(topic_config_table=table, data_version=DataVersion(counter, 1000)))


def register(
    channel, said=None, *, name="broker-a", number=0, address=ADDRESS, is_compressed=False, crc=None, **others
):
    body = write_registration(said or registration(), is_compressed=is_compressed)
    header = headers.RegisterBroker(
        broker_name=name,
        broker_address=address,
        cluster="DefaultCluster",
        ha_address="10.0.0.1:10912",
        broker_id=number,
        is_compressed=is_compressed,
        body_crc=body_crc(body) if crc is None else crc,
        **others,
    )
    return channel.request(RequestCode.REGISTER_BROKER, header, body)


async def done(request):
    answer = await request
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def route(channel, topic="T"):
    answer = await channel.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute(topic))
    return bodies.read(RouteData, answer.body) if answer.code == ResponseCode.SUCCESS else answer.code


async def addresses(channel, topic="T"):
    found = await route(channel, topic)
    return found if isinstance(found, int) else {some.broker_name: some.broker_addrs for some in found.broker_datas}


async def ask(channel, code, kind, header=None):
    return bodies.read(kind, (await done(channel.request(code, header))).body)


@pytest.fixture
async def server():
    async with NameServer(SETTINGS) as server:
        yield server


@pytest.fixture
async def broker(server):
    channel = await net.connect(server.address)
    yield channel
    channel.close()


@pytest.fixture
async def client(server):
    channel = await net.connect(server.address)
    yield channel
    channel.close()


# -- registration and routes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_a_client_gets_the_route_of_a_registered_broker(broker, client, is_compressed):
    await done(register(broker, is_compressed=is_compressed))
    assert await route(client) == RouteData(
        broker_datas=[bodies.BrokerData("DefaultCluster", "broker-a", {0: ADDRESS})],
        queue_datas=[QueueData("broker-a", 4, 4, 6)],
    )


async def test_a_route_is_compact_json_with_quoted_broker_ids(broker, client):
    await done(register(broker))
    answer = await client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute("T"))
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in bytes(answer.body)
    assert b" " not in bytes(answer.body)


async def test_a_binary_request_gets_a_binary_response(broker, server):
    await done(register(broker))
    reader, writer = await asyncio.open_connection(*server.address)
    request = RemotingCommand(105, 7, 0, ext={"topic": "T"}, serialization=Serialization.BINARY)
    writer.write(encode(request))
    start = await reader.readexactly(4)
    answer = decode(start + await reader.readexactly(int.from_bytes(start)))
    assert (answer.code, answer.opaque, answer.serialization) == (0, 7, Serialization.BINARY)
    assert bodies.read(RouteData, answer.body).queue_datas
    writer.close()


async def test_a_large_registration_is_processed_completely_and_in_order(broker, client):
    names = [f"topic-with-a-rather-long-name-{n}" for n in range(4000)]
    large = registration(*names, counter=1)
    assert len(write_registration(large, is_compressed=False)) > LARGE_REGISTRATION_BYTES
    first = register(broker, large)
    second = register(broker, registration("T", "DefaultCluster", names[0], counter=2))
    await done(first)
    await done(second)
    assert len((await ask(client, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, TopicList)).topic_list) == 4002
    compared = await done(
        broker.request(
            RequestCode.QUERY_DATA_VERSION,
            headers.QueryDataVersion("broker-a", ADDRESS, "DefaultCluster", 0),
            bodies.write(DataVersion(2, 1000)),
        )
    )
    assert not headers.read(headers.QueryDataVersionResponse, compared.ext).changed


async def test_an_unknown_topic_is_refused_with_its_name_and_a_hint(client):
    answer = await client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute("nowhere"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    first, hint = answer.remark.splitlines()
    assert first == "No topic route info in name server for the topic: nowhere"
    assert "create the topic" in hint
    error = error_for_response(answer.code, answer.remark)
    assert isinstance(error, UnknownTopic)
    assert error.topic == "nowhere"


async def test_a_slave_receives_the_address_of_its_master(broker, client):
    await done(register(broker))
    answer = await done(register(client, number=1, address="10.0.0.2:10911"))
    told = headers.read(headers.RegisterBrokerResponse, answer.ext)
    assert (told.master_address, told.ha_address) == (ADDRESS, "10.0.0.1:10912")
    assert await addresses(client) == {"broker-a": {0: ADDRESS, 1: "10.0.0.2:10911"}}


async def test_an_unregistered_broker_is_in_no_route(broker, client):
    await done(register(broker))
    header = headers.UnregisterBroker("broker-a", ADDRESS, "DefaultCluster", 0)
    await done(broker.request(RequestCode.UNREGISTER_BROKER, header))
    assert await addresses(client) == ResponseCode.TOPIC_NOT_EXIST


# -- lost brokers -----------------------------------------------------------------------------------------------------


async def test_a_closed_connection_removes_its_broker_at_once(server, broker, client):
    await done(register(broker))
    other = await net.connect(server.address)
    await done(register(other, name="broker-b", address="10.0.0.2:10911"))
    broker.abort()
    await eventually(lambda: server.context.routes.member_addresses("broker-a") == {})
    assert await addresses(client) == {"broker-b": {0: "10.0.0.2:10911"}}
    other.close()


async def test_a_broker_reregistered_on_a_new_connection_survives_closing_the_old_one(server, broker, client):
    await done(register(broker))
    again = await net.connect(server.address)
    await done(register(again))
    before = len(server._listener.channels)
    broker.abort()
    await eventually(lambda: len(server._listener.channels) == before - 1)
    assert await addresses(client) == {"broker-a": {0: ADDRESS}}
    again.abort()
    await eventually(lambda: server.context.routes.topics() == [])


async def test_a_queued_registration_of_a_closed_connection_is_ignored(server, broker, client):
    before = len(server._listener.channels)
    async with server.context.registration_lock:
        header = headers.RegisterBroker("broker-a", ADDRESS, "DefaultCluster", "", 0)
        broker.send_one_way(
            RequestCode.REGISTER_BROKER, header, write_registration(registration(), is_compressed=False)
        )
        broker.close()
        await eventually(lambda: len(server._listener.channels) == before - 1)
    await done(
        register(client, name="broker-b", address="10.0.0.2:10911")
    )  # it is processed after the other registration
    assert await addresses(client) == {"broker-b": {0: "10.0.0.2:10911"}}


async def test_a_silent_broker_expires_and_one_that_queries_its_data_version_does_not():
    clock = Clock()
    async with NameServer(
        NameServerSettings(port=0, scan_interval_ms=5, broker_timeout_ms=1000), monotonic_ms=clock
    ) as server:
        broker, other = await net.connect(server.address), await net.connect(server.address)
        await done(register(broker))
        await done(register(other, name="broker-b", address="10.0.0.2:10911"))
        clock.now += 900
        header = headers.QueryDataVersion("broker-b", "10.0.0.2:10911", "DefaultCluster", 0)
        await done(other.request(RequestCode.QUERY_DATA_VERSION, header, bodies.write(DataVersion(1, 1000))))
        clock.now += 900
        await eventually(lambda: server.context.routes.member_addresses("broker-a") == {})
        assert await addresses(other) == {"broker-b": {0: "10.0.0.2:10911"}}
        assert broker.is_open
        clock.now += 900
        await eventually(lambda: server.context.routes.topics() == [])


async def test_a_broker_can_set_its_own_heartbeat_timeout():
    clock = Clock()
    async with NameServer(NameServerSettings(port=0, scan_interval_ms=5), monotonic_ms=clock) as server:
        broker = await net.connect(server.address)
        await done(register(broker, heartbeat_timeout_ms=50))
        await done(register(broker, name="broker-b", address="10.0.0.2:10911"))
        clock.now += 51
        await eventually(lambda: server.context.routes.member_addresses("broker-a") == {})
        assert await addresses(broker) == {"broker-b": {0: "10.0.0.2:10911"}}


async def test_a_data_version_query_reports_changes_and_unknown_brokers(broker):
    header = headers.QueryDataVersion("broker-a", ADDRESS, "DefaultCluster", 0)

    async def compare(counter):
        answer = await done(
            broker.request(RequestCode.QUERY_DATA_VERSION, header, bodies.write(DataVersion(counter, 1000)))
        )
        return headers.read(headers.QueryDataVersionResponse, answer.ext).changed, bytes(answer.body)

    assert await compare(1) == (True, b"")
    await done(register(broker))
    assert await compare(1) == (False, b'{"counter":1,"timestamp":1000}')
    assert await compare(2) == (True, b'{"counter":1,"timestamp":1000}')


async def test_a_heartbeat_extends_a_registration_and_is_harmless_from_an_unknown_broker():
    clock = Clock()
    async with NameServer(NameServerSettings(port=0, broker_timeout_ms=1000), monotonic_ms=clock) as server:
        broker = await net.connect(server.address)
        await done(register(broker))
        clock.now += 900
        for name in ("broker-a", "stranger"):
            heartbeat = headers.BrokerHeartbeat("DefaultCluster", ADDRESS, name)
            await done(broker.request(RequestCode.BROKER_HEARTBEAT, heartbeat))
        clock.now += 900
        assert server.context.routes.expire(clock.now) == []


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_a_registration_with_a_wrong_checksum_is_refused(broker, client):
    answer = await register(broker, crc=12345)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "bodyCrc32" in answer.remark
    assert await addresses(client) == ResponseCode.TOPIC_NOT_EXIST
    await done(register(broker, crc=0))


@pytest.mark.parametrize(
    ("is_compressed", "body"),
    [
        (False, b"{"),
        (False, b"[1]"),
        (False, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"many"}}}}'),
        (True, b"not zlib"),
        (True, zlib.compress(b"\x7f\xff\xff\xff")),
        (True, zlib.compress(b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x03a b")),
    ],
)
async def test_a_malformed_body_is_refused_and_the_connection_stays_open(broker, is_compressed, body):
    header = headers.RegisterBroker("broker-a", ADDRESS, "DefaultCluster", "", 0, is_compressed=is_compressed)
    answer = await broker.request(RequestCode.REGISTER_BROKER, header, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "cannot be read" in answer.remark
    await done(register(broker))


async def test_a_missing_or_empty_field_is_named_and_the_connection_stays_open(broker):
    answer = await broker.request(RequestCode.REGISTER_BROKER, headers.ChangeWritePermission("broker-a"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "'brokerAddr' is missing" in answer.remark
    answer = await broker.request(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "'topic' is missing" in answer.remark
    answer = await register(broker, address="")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "'brokerAddr' is empty" in answer.remark
    await done(register(broker))


async def test_a_first_registration_with_a_single_topic_is_refused(broker):
    answer = await register(broker, registration("T"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "register all topics first" in answer.remark


async def test_an_unknown_request_code_is_refused_and_the_connection_stays_open(client):
    answer = await client.request(RequestCode.PULL_MESSAGE)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 11 not supported"
    assert await addresses(client) == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x08\0\0\0\x04abcd", b"\xff" * 64])
async def test_garbage_closes_only_its_own_connection(server, broker, client, garbage):
    await done(register(broker))
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(garbage)
    assert await reader.read() == b""
    writer.close()
    assert await addresses(client) == {"broker-a": {0: ADDRESS}}


async def test_a_one_way_registration_is_applied_and_not_answered(server, broker, client):
    body = write_registration(registration(), is_compressed=False)
    header = headers.RegisterBroker("broker-a", ADDRESS, "DefaultCluster", "", 0)
    broker.send_one_way(RequestCode.REGISTER_BROKER, header, body)
    await eventually(lambda: server.context.routes.member_addresses("broker-a"))
    assert await addresses(broker) == {"broker-a": {0: ADDRESS}}


async def test_a_port_in_use_is_a_settings_error(server):
    with pytest.raises(SettingsError):
        await NameServer(NameServerSettings(port=server.address.port)).start()


async def test_a_stopped_server_closes_connections_and_accepts_no_new_one():
    async with NameServer(SETTINGS) as server:
        channel = await net.connect(server.address)
        await done(register(channel))
    await asyncio.wait_for(channel.wait_closed(), 12)
    assert server._scan.cancelled()
    with pytest.raises(ConnectionLost):
        await net.connect(server.address)


# -- admin requests ---------------------------------------------------------------------------------------------------


async def test_clusters_brokers_and_topics_are_listed(broker, client):
    await done(register(broker))
    await done(register(broker, registration("U", "V"), name="broker-b", address="10.0.0.2:10911"))
    table = await ask(client, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterTable)
    assert table.cluster_addr_table == {"DefaultCluster": ["broker-a", "broker-b"]}
    assert table.broker_addr_table["broker-b"].broker_addrs == {0: "10.0.0.2:10911"}
    everything = ["DefaultCluster", "T", "U", "V"]
    assert (await ask(client, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, TopicList)).topic_list == everything
    for cluster, expected in (("DefaultCluster", everything), ("unknown", [])):
        listed = await ask(client, RequestCode.GET_TOPICS_BY_CLUSTER, TopicList, headers.GetClusterTopics(cluster))
        assert listed.topic_list == expected
    system = await ask(client, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, TopicList)
    assert system == TopicList(["DefaultCluster", "broker-a", "broker-b"], ADDRESS)
    group = await ask(
        client,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        BrokerMemberGroup,
        headers.GetBrokerMembers("DefaultCluster", "broker-a"),
    )
    assert group.broker_member_group.broker_addrs == {0: ADDRESS}


async def test_a_name_server_without_brokers_lists_nothing(client):
    assert await ask(client, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterTable) == ClusterTable()
    for code in (206, 304, 311, 312, 313):
        assert await ask(client, code, TopicList) == TopicList()


async def test_tools_delete_and_register_topics(broker, client):
    await done(register(broker))
    await done(client.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopic("T", "elsewhere")))
    assert await addresses(client) == {"broker-a": {0: ADDRESS}}
    await done(client.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopic("T")))
    assert await addresses(client) == ResponseCode.TOPIC_NOT_EXIST
    wanted = bodies.write(RouteData(queue_datas=[QueueData("broker-a", 2, 2, 6)]))
    await done(client.request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, headers.TopicRequest("T"), wanted))
    assert (await route(client)).queue_datas == [QueueData("broker-a", 2, 2, 6)]


async def test_tools_remove_and_restore_write_permission(broker, client):
    await done(register(broker))
    answer = await done(
        client.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, headers.ChangeWritePermission("broker-a"))
    )
    assert headers.read(headers.WipeWritePermissionResponse, answer.ext).topics == 2
    assert (await route(client)).queue_datas[0].perm == 4
    answer = await done(client.request(RequestCode.ADD_WRITE_PERM_OF_BROKER, headers.ChangeWritePermission("broker-a")))
    assert headers.read(headers.AddWritePermissionResponse, answer.ext).topics == 2
    assert (await route(client)).queue_datas[0].perm == 6


async def test_kv_config_is_put_read_listed_and_deleted(client):
    await done(client.request(RequestCode.PUT_KV_CONFIG, headers.PutKv("ns", "k", "v")))
    answer = await done(client.request(RequestCode.GET_KV_CONFIG, headers.KvEntryRequest("ns", "k")))
    assert headers.read(headers.GetKvResponse, answer.ext).value == "v"
    assert (await ask(client, RequestCode.GET_KVLIST_BY_NAMESPACE, KvTable, headers.ListKv("ns"))).table == {"k": "v"}
    await done(client.request(RequestCode.DELETE_KV_CONFIG, headers.KvEntryRequest("ns", "k")))
    answer = await client.request(RequestCode.GET_KV_CONFIG, headers.KvEntryRequest("ns", "k"))
    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: ns Key: k")
    answer = await client.request(RequestCode.GET_KVLIST_BY_NAMESPACE, headers.ListKv("ns"))
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_kv_config_survives_a_restart(tmp_path):
    path = tmp_path / "kv.json"
    async with NameServer(SETTINGS, path) as server:
        channel = await net.connect(server.address)
        await done(channel.request(RequestCode.PUT_KV_CONFIG, headers.PutKv("ns", "k", "v")))
    async with NameServer(SETTINGS, path) as server:
        channel = await net.connect(server.address)
        answer = await done(channel.request(RequestCode.GET_KV_CONFIG, headers.KvEntryRequest("ns", "k")))
        assert headers.read(headers.GetKvResponse, answer.ext).value == "v"


async def test_the_order_config_of_a_topic_is_sent_to_clients_only_if_enabled(broker, client):
    assert (await done(register(broker))).body == b""
    await done(client.request(RequestCode.PUT_KV_CONFIG, headers.PutKv("ORDER_TOPIC_CONFIG", "T", "broker-a:4")))
    assert bodies.read(KvTable, (await done(register(broker))).body).table == {"T": "broker-a:4"}
    assert (await route(client)).order_topic_conf is None
    await done(client.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"#by hand\norderMessageEnable=true\n"))
    assert (await route(client)).order_topic_conf == "broker-a:4"
    assert (await route(client, "DefaultCluster")).order_topic_conf is None
    await done(client.request(RequestCode.DELETE_KV_CONFIG, headers.KvEntryRequest("ORDER_TOPIC_CONFIG", "T")))
    assert (await route(client)).order_topic_conf is None


async def test_an_update_with_an_unchangeable_setting_is_refused_completely(server, client):
    async def shown():
        lines = bytes((await done(client.request(RequestCode.GET_NAMESRV_CONFIG))).body).decode().splitlines()
        values = dict(line.split("=", 1) for line in lines)
        del values["currentTimeMillis"]  # the server's clock, not a setting
        return values

    before = await shown()
    assert before["listenPort"] == str(server.address.port)
    answer = await client.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\nlistenPort=1\n")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "listenPort" in answer.remark
    assert await shown() == before
    for nonsense in (b"\xff", b"no equals sign"):
        answer = await client.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=nonsense)
        assert answer.code == ResponseCode.SYSTEM_ERROR
