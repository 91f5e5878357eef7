"""Registration of a broker with name servers that start, stop, hang and return."""

import asyncio
import hashlib
import time
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
from tests.support.platforms import broker_server, open_channel, running_broker, send, try_send
from tests.support.raw_connection import LOOPBACK
from tests.support.wait import eventually

from sparrow.broker import registration as registrations
from sparrow.broker.registration import _WAIT_S
from sparrow.model.errors import Refused, SettingsError
from sparrow.model.protocol import PERM_WRITE
from sparrow.model.topic import Topic
from sparrow.nameserver import NameServer
from sparrow.net import Address
from sparrow.net.dispatcher import HandlerResponse, encode_response
from sparrow.settings import NameServerSettings, NetSettings
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode

CLUSTER = "DefaultCluster"


class Naming:
    """A name server that can be stopped and restarted on the same port."""

    def __init__(self, net=None):
        self._net = net or NetSettings()
        self.server = NameServer(NameServerSettings(port=0, net=self._net))

    async def start(self):
        await self.server.start()

    async def stop(self):
        await self.server.stop()

    async def come_back(self):
        self.server = NameServer(NameServerSettings(port=self.server.address.port, net=self._net))
        await self.server.start()

    def topics(self):
        return set(self.server.context.routes.topics())

    async def route(self, topic):
        """Return the brokers' addresses as a client gets them, or the code of a refusal."""
        async with open_channel(self.server.address) as channel:
            answer = await channel.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute(topic))
        if answer.code != ResponseCode.SUCCESS:
            return int(answer.code)
        found = bodies.read(bodies.RouteData, answer.body)
        return [data.broker_addrs[0] for data in found.broker_datas]


@pytest.fixture
async def two():
    async with AsyncExitStack() as stack:
        servers = [Naming(), Naming()]
        for server in servers:
            await server.start()
            stack.push_async_callback(lambda server=server: server.stop())
        yield servers


def addresses(*servers):
    return ";".join(str(one.server.address) for one in servers)


@asynccontextmanager
async def black_hole(port=0):
    """Run a server that accepts every connection and never answers."""
    taken = []

    async def swallow(reader, writer):
        taken.append(writer)
        await reader.read(-1)

    server = await asyncio.start_server(swallow, LOOPBACK, port)
    async with server:
        yield Address(*server.sockets[0].getsockname())
        for writer in taken:
            writer.close()


async def test_a_started_broker_is_registered_with_all_name_servers(tmp_path, two):
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        for naming in two:
            assert await naming.route(CLUSTER) == [str(server.address)]
            assert await naming.route("sparrow") == [str(server.address)]
            assert await naming.route("TBW102") == [str(server.address)]
            assert naming.topics() == {topic.name for topic in server.broker.topics}


async def test_a_topic_change_is_registered_before_it_returns(tmp_path, two):
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        await server.broker.topics.put(Topic(name="T", read_queues=3, write_queues=2, permission=4))
        for naming in two:
            async with open_channel(naming.server.address) as channel:
                answer = await channel.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute("T"))
            (found,) = bodies.read(bodies.RouteData, answer.body).queue_datas
            assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (3, 2, 4)


async def test_a_stopped_broker_is_in_no_route(tmp_path, two):
    async with running_broker(tmp_path, name_servers=addresses(*two)):
        pass
    for naming in two:
        assert await naming.route(CLUSTER) == ResponseCode.TOPIC_NOT_EXIST
        assert not naming.topics()


async def test_a_killed_broker_is_removed_from_the_routes_at_once(tmp_path, two):
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        for channel in server._registration._channels.values():
            channel.abort()  # as the operating system does for a dead process
        for naming in two:
            await eventually(lambda naming=naming: not naming.topics())
            assert await naming.route(CLUSTER) == ResponseCode.TOPIC_NOT_EXIST


async def test_sends_to_new_topics_are_fast_while_a_name_server_is_down(tmp_path, two):
    stays, dies = two
    async with running_broker(tmp_path, name_servers=addresses(dies, stays)) as server:
        await dies.stop()
        async with open_channel(server.address) as channel:
            started = time.monotonic()
            for number in range(10):
                await send(channel, f"New{number}", b"x")
                assert f"New{number}" in stays.topics()
            assert time.monotonic() - started < 10
        started = time.monotonic()
    assert time.monotonic() - started < 10  # the stop does not wait for the dead server either
    assert not stays.topics()


async def test_a_hanging_name_server_delays_a_new_topic_by_less_than_a_send_timeout(tmp_path, two):
    naming, hangs = two
    async with running_broker(tmp_path, name_servers=addresses(hangs, naming)) as server:
        await hangs.stop()
        async with black_hole(hangs.server.address.port), open_channel(server.address) as channel:
            started = time.monotonic()
            asked = asyncio.ensure_future(send(channel, "New", b"x"))
            await eventually(lambda: "New" in naming.topics() or asked.done())
            assert "New" in naming.topics(), "the other server is updated without delay"
            await asked
            assert time.monotonic() - started < 2.5  # the send timeout of a producer is 3 s
            started = time.monotonic()
            await send(channel, "New", b"y")
            assert time.monotonic() - started < _WAIT_S, "only the first send is delayed"
            for hanging in server._registration._channels.values():
                hanging.close()  # so that the stop does not wait for it


async def test_the_next_registration_restores_routes_after_a_name_server_restart(tmp_path, two):
    naming, other = two
    async with running_broker(tmp_path, name_servers=addresses(naming, other), register_interval_ms=100) as server:
        await naming.stop()
        async with open_channel(server.address) as channel:
            await send(channel, "MadeMeanwhile", b"x")
        await naming.come_back()
        await eventually(lambda: "MadeMeanwhile" in naming.topics())
        assert await naming.route("MadeMeanwhile") == [str(server.address)]
        assert CLUSTER in other.topics()
    assert not naming.topics()
    assert not other.topics()


async def test_a_broker_starts_without_name_servers_and_registers_later(tmp_path, two, caplog):
    naming = two[0]
    address = naming.server.address
    await naming.stop()
    started = time.monotonic()
    async with running_broker(tmp_path, name_servers=str(address), register_interval_ms=50) as server:
        assert time.monotonic() - started < 10
        async with open_channel(server.address) as channel:
            await send(channel, "New", b"x")
        said = [text for text in caplog.messages if f"cannot register with name server {address}" in text]
        assert len(said) == 1  # logged once, not at every attempt
        await naming.come_back()
        await eventually(lambda: "New" in naming.topics())


async def test_a_lost_registration_connection_is_reopened(tmp_path, two):
    naming = two[0]
    async with running_broker(tmp_path, name_servers=addresses(naming), register_interval_ms=50) as server:
        channels = server._registration._channels
        (channel,) = channels.values()
        channel.abort()
        await eventually(lambda: channel not in channels.values())
        await eventually(lambda: CLUSTER in naming.topics())


async def test_a_broker_restarted_on_another_port_replaces_its_route(tmp_path, two):
    naming = two[0]
    async with running_broker(tmp_path, name_servers=addresses(naming)) as first:
        assert await naming.route(CLUSTER) == [str(first.address)]
    async with running_broker(tmp_path, name_servers=addresses(naming)) as second:
        assert await naming.route(CLUSTER) == [str(second.address)]


async def test_a_topic_is_routed_to_both_of_its_brokers(tmp_path, two):
    naming = two[0]
    async with (
        running_broker(tmp_path / "a", name="broker-a", name_servers=addresses(naming)) as a,
        running_broker(tmp_path / "b", name="broker-b", name_servers=addresses(naming)) as b,
    ):
        for server in (a, b):
            async with open_channel(server.address) as channel:
                await send(channel, "Shared", b"x")
        assert sorted(await naming.route("Shared")) == sorted([str(a.address), str(b.address)])
        for channel in a._registration._channels.values():
            channel.abort()
        await eventually(lambda: len(naming.server.context.routes.clusters().broker_addr_table) == 1)
        assert await naming.route("Shared") == [str(b.address)]


async def test_routes_contain_the_advertised_host(tmp_path, two):
    naming = two[0]
    async with running_broker(tmp_path, name_servers=addresses(naming), advertised_host="127.0.0.9") as server:
        assert await naming.route(CLUSTER) == [f"127.0.0.9:{server.address.port}"]


async def test_a_stop_leaves_no_registration_task(tmp_path, two):
    before = asyncio.all_tasks()
    async with black_hole() as silent:
        servers = f"{silent};{addresses(*two)}"
        async with running_broker(tmp_path, name_servers=servers, name_server_timeout_ms=300) as server:
            async with open_channel(server.address) as channel:
                asked = channel.request(RequestCode.GET_MAX_OFFSET, headers.QueueRequest("T", 0))
                await asked
            telling = asyncio.ensure_future(server.broker.topics.put(Topic(name="New")))
            await eventually(lambda: all("New" in naming.topics() for naming in two))
        await telling

        def left():
            return [task for task in asyncio.all_tasks() - before if "register" in repr(task.get_coro())]

        await eventually(lambda: not left())
    assert not any(naming.topics() for naming in two)


async def test_an_invalid_list_of_name_servers_fails_the_start_and_releases_the_store(tmp_path):
    server = broker_server(tmp_path, name_servers="nonsense")
    with pytest.raises(SettingsError):
        await server.start()
    async with running_broker(tmp_path):  # the store was released
        pass


async def test_a_new_topic_is_registered_alone_and_survives_the_next_registration(two, tmp_path):
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        received = []
        for name_server in two:
            serve = name_server.server._dispatcher
            name_server.server._dispatcher = Recorder(serve, received)
        await server.broker.topics.put(Topic(name="alone", read_queues=3, write_queues=3))
        assert [await name_server.route("alone") for name_server in two] == [[str(server.address)]] * 2
        assert received.count(RequestCode.REGISTER_TOPIC_IN_NAMESRV) == 2
        assert RequestCode.REGISTER_BROKER not in received
        await server._registration.register()
        assert [await name_server.route("alone") for name_server in two] == [[str(server.address)]] * 2


async def test_a_name_server_without_single_topics_gets_all_topics(two, tmp_path):
    one, _ = two
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        received = []
        one.server._dispatcher = Recorder(
            one.server._dispatcher, received, refused=RequestCode.REGISTER_TOPIC_IN_NAMESRV
        )
        for topic in ("first", "second"):
            await server.broker.topics.put(Topic(name=topic))
            assert [await name_server.route(topic) for name_server in two] == [[str(server.address)]] * 2
        assert received.count(RequestCode.REGISTER_TOPIC_IN_NAMESRV) == 1, "it is asked once"
        assert received.count(RequestCode.REGISTER_BROKER) == 2


async def test_a_name_server_that_returned_gets_all_topics_with_a_new_one(two, tmp_path):
    one, _ = two
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        await server.broker.topics.put(Topic(name="before"))
        await one.stop()
        await one.come_back()
        await eventually(lambda: not server._registration._is_connected(one.server.address))
        await server.broker.topics.put(Topic(name="after"))
        await eventually(lambda: {"before", "after"} <= one.topics(), within_s=30)


async def test_topics_and_groups_beyond_the_limit_are_refused(tmp_path):
    async with running_broker(tmp_path, topics_max=20, groups_max=12, topic_queues_max=5) as server:
        broker = server.broker
        assert (await broker.topics.create_for_send("t", template="TBW102", queues=8)).write_queues == 5
        async with open_channel(server.address) as channel:
            made = 0
            while (answer := await try_send(channel, f"t{made}")).code == ResponseCode.SUCCESS:
                made += 1
                assert made <= 20
            assert "broker.topics_max" in answer.remark
            await send(channel, "t0")
            await broker.topics.create_for_group("%RETRY%", "g")
            await broker.topics.delete("t1")
            wide = headers.UpdateTopic("wide", "TBW102", 6, 6, 6, "SINGLE_TAG", is_ordered=False)
            refused = await channel.request(RequestCode.UPDATE_AND_CREATE_TOPIC, wide)
            assert "use 1 to 5" in refused.remark
        with pytest.raises(Refused, match=r"broker\.groups_max"):
            for number in range(13):
                await broker.groups.get_or_create(f"g{number}")
        await broker.groups.get_or_create("g0")
        assert (broker.topics.refused, broker.topics.refused_queues, broker.groups.refused) == (1, 1, 1)


def many_topics(count, **values):
    """Topics with long names that do not compress well."""
    names = (f"{number:06}-{hashlib.sha512(b'%d' % number).hexdigest()}"[:127] for number in range(count))
    return {name: Topic(name=name, **values) for name in names}


async def registers_in_parts(tmp_path, topics, net=None):
    """Register topics, change one, and repeat the registration, at a name server with these limits."""
    one = Naming(net=net)
    await one.start()
    try:
        async with running_broker(tmp_path, name_servers=str(one.server.address)) as server:
            broker, registration = server.broker, server._registration
            broker.topics.replace_all(topics)
            await registration.register()
            assert not registration.unreachable
            assert topics.keys() <= one.topics()
            first, last = next(iter(topics)), next(reversed(topics))
            routes = one.server.context.routes
            changed = {name: msgspec.structs.replace(topics[name], write_queues=3) for name in (first, last)}
            broker.topics.replace_all({**topics, **changed})
            await registration.register()
            assert [written_queues(routes, name) for name in (first, last)] == [3, 3]
            routes.forbid_writes(broker.name)
            await registration.register()
            assert not permission(routes, first) & PERM_WRITE, "a repetition changes nothing"
            await one.stop()
            await one.come_back()
            await eventually(lambda: not registration._is_connected(one.server.address))
            await registration.register()
            assert topics.keys() <= one.topics(), "a name server that has forgotten the topics gets all"
    finally:
        await one.stop()


def queue_data(routes, topic):
    return next(iter(routes._queues[topic].values()))


def written_queues(routes, topic):
    return queue_data(routes, topic).write_queue_nums


def permission(routes, topic):
    return queue_data(routes, topic).perm


@pytest.mark.parametrize("sys_flag", [0, 1])
async def test_more_topics_than_a_frame_holds_are_registered_in_parts(tmp_path, monkeypatch, sys_flag):
    monkeypatch.setattr(registrations, "_PART_TOPICS", 50)
    topics = many_topics(600, sys_flag=sys_flag)
    await registers_in_parts(tmp_path, topics, net=NetSettings(frame_bytes_max=28_000))


@pytest.mark.thorough
async def test_topics_beyond_sixteen_mebibytes_are_registered(tmp_path):
    topics = many_topics(45_000, sys_flag=1)
    body = bodies.TopicTable(topic_config_table={name: bodies.TopicConfig.of(one) for name, one in topics.items()})
    assert len(bodies.write(body)) > 16 << 20
    await registers_in_parts(tmp_path, topics)


class Recorder:
    """Notes the codes of the requests that a dispatcher gets, and refuses one of them."""

    def __init__(self, dispatcher, received, refused=None):
        self._dispatcher, self._received, self._refused = dispatcher, received, refused

    def __call__(self, command, channel):
        self._received.append(command.code)
        if command.code == self._refused:
            channel.write(encode_response(command, HandlerResponse(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)))
        else:
            self._dispatcher(command, channel)

    async def stop(self, grace_s):
        await self._dispatcher.stop(grace_s)
