"""Registration of a broker with name servers that start, stop, hang and return."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.support.platforms import broker_server, open_channel, running_broker, send
from tests.support.raw_connection import LOOPBACK
from tests.support.wait import eventually

from sparrow.model.errors import SettingsError
from sparrow.model.topic import Topic
from sparrow.nameserver import NameServer
from sparrow.net import Address
from sparrow.settings import NameServerSettings
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode

CLUSTER = "DefaultCluster"


class Naming:
    """A name server that can be stopped and restarted on the same port."""

    def __init__(self):
        self.server = NameServer(NameServerSettings(port=0))

    async def start(self):
        await self.server.start()

    async def stop(self):
        await self.server.stop()

    async def come_back(self):
        self.server = NameServer(NameServerSettings(port=self.server.address.port))
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
            await eventually(lambda naming=naming: not naming.topics(), within_s=2)
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
            assert time.monotonic() - started < 2
        started = time.monotonic()
    assert time.monotonic() - started < 3  # the stop does not wait for the dead server either
    assert not stays.topics()


async def test_a_hanging_name_server_delays_a_new_topic_by_less_than_a_send_timeout(tmp_path, two):
    naming, hangs = two
    async with running_broker(tmp_path, name_servers=addresses(hangs, naming)) as server:
        await hangs.stop()
        async with black_hole(hangs.server.address.port), open_channel(server.address) as channel:
            started = time.monotonic()
            asked = asyncio.ensure_future(send(channel, "New", b"x"))
            await eventually(
                lambda: "New" in naming.topics(), within_s=0.9
            )  # the other server is updated without delay
            await asked
            assert time.monotonic() - started < 2.5  # the send timeout of a producer is 3 s
            started = time.monotonic()
            await send(channel, "New", b"y")  # only the first send is delayed
            assert time.monotonic() - started < 0.5
            for hanging in server._registration._channels.values():
                hanging.close()  # so that the stop does not wait for it


async def test_the_next_registration_restores_routes_after_a_name_server_restart(tmp_path, two):
    naming, other = two
    async with running_broker(tmp_path, name_servers=addresses(naming, other), register_interval_ms=100) as server:
        await naming.stop()
        async with open_channel(server.address) as channel:
            await send(channel, "MadeMeanwhile", b"x")
        await naming.come_back()
        await eventually(lambda: "MadeMeanwhile" in naming.topics(), within_s=3)
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
        assert time.monotonic() - started < 3
        async with open_channel(server.address) as channel:
            await send(channel, "New", b"x")
        said = [record for record in caplog.records if record.message == "cannot register with a name server"]
        assert len(said) == 1  # logged once, not at every attempt
        await naming.come_back()
        await eventually(lambda: "New" in naming.topics(), within_s=3)


async def test_a_lost_registration_connection_is_reopened(tmp_path, two):
    naming = two[0]
    async with running_broker(tmp_path, name_servers=addresses(naming), register_interval_ms=50) as server:
        (channel,) = server._registration._channels.values()
        channel.abort()
        await eventually(lambda: not naming.topics(), within_s=2)
        await eventually(lambda: CLUSTER in naming.topics(), within_s=3)


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
        await eventually(lambda: len(naming.server.context.routes.clusters().broker_addr_table) == 1, within_s=2)
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

        await eventually(lambda: not left(), within_s=2)
    assert not any(naming.topics() for naming in two)


async def test_an_invalid_list_of_name_servers_fails_the_start_and_releases_the_store(tmp_path):
    server = broker_server(tmp_path, name_servers="nonsense")
    with pytest.raises(SettingsError):
        await server.start()
    async with running_broker(tmp_path):  # the store was released
        pass
