"""A broker and its name servers: they come, go, hang and come back, and the routes follow."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.support.platforms import broker_server, channel_to, running_broker, send
from tests.support.waiting import eventually
from tests.support.wires import LOOPBACK

from sparrow.model.errors import SettingsError
from sparrow.model.topic import Topic
from sparrow.nameserver import NameServer
from sparrow.net import Address
from sparrow.settings import NameServerSettings
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode

CLUSTER = "DefaultCluster"


class Naming:
    """A name server that can be taken away and brought back on the same port."""

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
        """As a client sees it: the brokers' addresses, or the code of a refusal."""
        async with channel_to(self.server.address) as channel:
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
    """Takes every connection and never says a word."""
    taken = []

    async def swallow(reader, writer):
        taken.append(writer)
        await reader.read(-1)

    server = await asyncio.start_server(swallow, LOOPBACK, port)
    async with server:
        yield Address(*server.sockets[0].getsockname())
        for writer in taken:
            writer.close()


async def test_a_broker_is_known_to_all_name_servers_when_it_has_started(tmp_path, two):
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        for naming in two:
            assert await naming.route(CLUSTER) == [str(server.address)]
            assert await naming.route("sparrow") == [str(server.address)]
            assert await naming.route("TBW102") == [str(server.address)]
            assert naming.topics() == {topic.name for topic in server.broker.topics}


async def test_a_changed_topic_is_known_when_the_change_is_done(tmp_path, two):
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        await server.broker.topics.put(Topic(name="T", read_queues=3, write_queues=2, permission=4))
        for naming in two:
            async with channel_to(naming.server.address) as channel:
                answer = await channel.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute("T"))
            (found,) = bodies.read(bodies.RouteData, answer.body).queue_datas
            assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (3, 2, 4)


async def test_a_stopped_broker_is_in_no_route(tmp_path, two):
    async with running_broker(tmp_path, name_servers=addresses(*two)):
        pass
    for naming in two:
        assert await naming.route(CLUSTER) == ResponseCode.TOPIC_NOT_EXIST
        assert not naming.topics()


async def test_a_killed_broker_is_dropped_at_once(tmp_path, two):
    async with running_broker(tmp_path, name_servers=addresses(*two)) as server:
        for channel in server._registration._channels.values():
            channel.abort()  # as the system does for a process that is gone
        for naming in two:
            await eventually(lambda naming=naming: not naming.topics(), within_s=2)
            assert await naming.route(CLUSTER) == ResponseCode.TOPIC_NOT_EXIST


async def test_sends_to_new_topics_are_quick_while_a_name_server_is_down(tmp_path, two):
    stays, dies = two
    async with running_broker(tmp_path, name_servers=addresses(dies, stays)) as server:
        await dies.stop()
        async with channel_to(server.address) as channel:
            started = time.monotonic()
            for number in range(10):
                await send(channel, f"New{number}", b"x")
                assert f"New{number}" in stays.topics()
            assert time.monotonic() - started < 2
        started = time.monotonic()
    assert time.monotonic() - started < 3  # stopping does not wait for the dead either
    assert not stays.topics()


async def test_a_name_server_that_never_answers_costs_a_new_topic_a_second_at_most(tmp_path, two):
    naming, hangs = two
    async with running_broker(tmp_path, name_servers=addresses(hangs, naming)) as server:
        await hangs.stop()
        async with black_hole(hangs.server.address.port), channel_to(server.address) as channel:
            started = time.monotonic()
            asked = asyncio.ensure_future(send(channel, "New", b"x"))
            await eventually(lambda: "New" in naming.topics(), within_s=0.9)  # the other one does not wait
            await asked
            assert time.monotonic() - started < 2.5  # a producer gives up after 3 s
            started = time.monotonic()
            await send(channel, "New", b"y")  # and only the first send pays
            assert time.monotonic() - started < 0.5
            for hanging in server._registration._channels.values():
                hanging.close()  # so that stopping need not wait for it


async def test_the_name_servers_restart_is_healed_by_the_next_registration(tmp_path, two):
    naming, other = two
    async with running_broker(tmp_path, name_servers=addresses(naming, other), register_interval_ms=100) as server:
        await naming.stop()
        async with channel_to(server.address) as channel:
            await send(channel, "MadeMeanwhile", b"x")
        await naming.come_back()
        await eventually(lambda: "MadeMeanwhile" in naming.topics(), within_s=3)
        assert await naming.route("MadeMeanwhile") == [str(server.address)]
        assert CLUSTER in other.topics()
    assert not naming.topics()
    assert not other.topics()


async def test_a_broker_starts_without_its_name_servers_and_finds_them_later(tmp_path, two, caplog):
    naming = two[0]
    address = naming.server.address
    await naming.stop()
    started = time.monotonic()
    async with running_broker(tmp_path, name_servers=str(address), register_interval_ms=50) as server:
        assert time.monotonic() - started < 3
        async with channel_to(server.address) as channel:
            await send(channel, "New", b"x")
        said = [record for record in caplog.records if record.message == "cannot register with a name server"]
        assert len(said) == 1  # once, not at every turn
        await naming.come_back()
        await eventually(lambda: "New" in naming.topics(), within_s=3)


async def test_a_lost_registration_connection_is_made_anew(tmp_path, two):
    naming = two[0]
    async with running_broker(tmp_path, name_servers=addresses(naming), register_interval_ms=50) as server:
        (channel,) = server._registration._channels.values()
        channel.abort()
        await eventually(lambda: not naming.topics(), within_s=2)
        await eventually(lambda: CLUSTER in naming.topics(), within_s=3)


async def test_a_broker_that_comes_back_elsewhere_replaces_itself(tmp_path, two):
    naming = two[0]
    async with running_broker(tmp_path, name_servers=addresses(naming)) as first:
        assert await naming.route(CLUSTER) == [str(first.address)]
    async with running_broker(tmp_path, name_servers=addresses(naming)) as second:
        assert await naming.route(CLUSTER) == [str(second.address)]


async def test_two_brokers_share_a_topic(tmp_path, two):
    naming = two[0]
    async with (
        running_broker(tmp_path / "a", name="broker-a", name_servers=addresses(naming)) as a,
        running_broker(tmp_path / "b", name="broker-b", name_servers=addresses(naming)) as b,
    ):
        for server in (a, b):
            async with channel_to(server.address) as channel:
                await send(channel, "Shared", b"x")
        assert sorted(await naming.route("Shared")) == sorted([str(a.address), str(b.address)])
        for channel in a._registration._channels.values():
            channel.abort()
        await eventually(lambda: len(naming.server.context.routes.clusters().broker_addr_table) == 1, within_s=2)
        assert await naming.route("Shared") == [str(b.address)]


async def test_what_is_advertised_is_what_clients_are_told(tmp_path, two):
    naming = two[0]
    async with running_broker(tmp_path, name_servers=addresses(naming), advertised_host="127.0.0.9") as server:
        assert await naming.route(CLUSTER) == [f"127.0.0.9:{server.address.port}"]


async def test_stopping_leaves_no_task_behind(tmp_path, two):
    before = asyncio.all_tasks()
    async with black_hole() as silent:
        servers = f"{silent};{addresses(*two)}"
        async with running_broker(tmp_path, name_servers=servers, name_server_timeout_ms=300) as server:
            async with channel_to(server.address) as channel:
                asked = channel.request(RequestCode.GET_MAX_OFFSET, headers.QueueRequest("T", 0))
                await asked
            telling = asyncio.ensure_future(server.broker.topics.put(Topic(name="New")))
            await eventually(lambda: all("New" in naming.topics() for naming in two))
        await telling

        def left():
            return [task for task in asyncio.all_tasks() - before if "register" in repr(task.get_coro())]

        await eventually(lambda: not left(), within_s=2)
    assert not any(naming.topics() for naming in two)


async def test_a_bad_list_of_name_servers_is_refused_at_the_start_and_gives_everything_back(tmp_path):
    server = broker_server(tmp_path, name_servers="nonsense")
    with pytest.raises(SettingsError):
        await server.start()
    async with running_broker(tmp_path):  # the store is not in use
        pass
