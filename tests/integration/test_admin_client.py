"""The asyncio admin client against a real name server and real brokers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.platforms import open_channel, running_broker, running_platform, subscribe
from tests.support.wait import eventually

from sparrow.cli.server.platform import Platform
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.topics import NEWEST_MS
from sparrow.client.aio.produce.producer import Producer
from sparrow.model.errors import IllegalName, Refused, Unavailable, UnknownTopic
from sparrow.model.message import Message
from sparrow.model.protocol import PERM_READ
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Group
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings
from sparrow.wire.bodies import QueueRef
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with running_platform(tmp_path) as started:
        yield started


@pytest.fixture
async def admin(platform: Platform) -> AsyncIterator[Admin]:
    async with Admin(platform.name_servers) as opened:
        yield opened


@pytest.fixture
async def producer(platform: Platform) -> AsyncIterator[Producer]:
    async with Producer(platform.name_servers) as opened:
        yield opened


def queue(number: int) -> QueueRef:
    return QueueRef("orders", "sparrow", number)


async def commit(platform: Platform, group: str, queue_id: int, offset: int) -> None:
    await platform.broker.broker.store.offsets.commit(group, Queue("orders", queue_id), offset)


async def committed(platform: Platform, group: str, queue_id: int) -> int | None:
    return await platform.broker.broker.store.offsets.committed(group, Queue("orders", queue_id))


# -- topics -----------------------------------------------------------------------------------------------------------


async def test_created_topic_is_in_its_route_at_once(platform: Platform, admin: Admin) -> None:
    route = await admin.create_topic("orders", 3)
    assert route == await admin.route("orders")
    assert route.write_queues == (queue(0), queue(1), queue(2))
    assert route.masters == {"sparrow": str(platform.address)}
    assert "orders" in await admin.topics()


async def test_create_topic_on_an_existing_topic_changes_it(admin: Admin) -> None:
    await admin.create_topic("orders", 3)
    await admin.create_topic("orders", 5, permission=PERM_READ)
    route = await admin.route("orders")
    assert (len(route.read_queues), len(route.write_queues)) == (5, 0)


async def test_deleted_topic_loses_its_messages(admin: Admin, producer: Producer) -> None:
    await admin.create_topic("orders", 1)
    await producer.send(Message("orders", b"x"))
    await admin.delete_topic("orders")
    assert "orders" not in await admin.topics()
    with pytest.raises(UnknownTopic):
        await admin.route("orders")
    await admin.create_topic("orders", 1)
    assert await admin.topic_bounds("orders") == {queue(0): QueueBounds(0, 0)}
    await admin.delete_topic("never_there")


async def test_topics_are_created_on_the_chosen_brokers_or_cluster(
    platform: Platform, admin: Admin, tmp_path: Path
) -> None:
    async with running_broker(
        tmp_path / "b", name="second", cluster="Other", name_servers=platform.name_servers
    ) as two:
        clusters = await admin.clusters()
        assert {name: cluster.masters for name, cluster in clusters.items()} == {
            "DefaultCluster": {"sparrow": str(platform.address)},
            "Other": {"second": str(two.address)},
        }
        assert set((await admin.create_topic("everywhere")).masters) == {"sparrow", "second"}
        assert set((await admin.create_topic("there", cluster="Other")).masters) == {"second"}
        assert set((await admin.create_topic("here", brokers=["sparrow"])).masters) == {"sparrow"}
        with pytest.raises(Refused, match="no cluster 'Third': use 'DefaultCluster' or 'Other'"):
            await admin.create_topic("nowhere", cluster="Third")
        with pytest.raises(Refused, match="no master of 'third', only of 'sparrow', 'second'"):
            await admin.create_topic("nowhere", brokers=["third", "second"])


async def test_topic_with_an_illegal_name_is_not_created(admin: Admin) -> None:
    with pytest.raises(IllegalName):
        await admin.create_topic("no such name!")
    with pytest.raises(Refused):
        await admin.create_topic("orders", queues=-1)
    assert "orders" not in await admin.topics()


async def test_admin_without_any_broker_raises() -> None:
    async with NameServer(NameServerSettings(port=0)) as alone, Admin(str(alone.address)) as admin:
        assert await admin.clusters() == {}
        with pytest.raises(Unavailable, match="lists no broker with a master"):
            await admin.create_topic("orders")


async def test_bounds_include_empty_queues(admin: Admin, producer: Producer) -> None:
    await admin.create_topic("orders", 3)
    await producer.send_batch([Message("orders", b"x")] * 5, queue=queue(1))
    assert await admin.topic_bounds("orders") == {
        queue(0): QueueBounds(0, 0),
        queue(1): QueueBounds(0, 5),
        queue(2): QueueBounds(0, 0),
    }
    with pytest.raises(UnknownTopic):
        await admin.topic_bounds("unknown")


async def test_offsets_are_found_by_time(platform: Platform, admin: Admin, producer: Producer) -> None:
    await admin.create_topic("orders", 1)
    for _ in range(3):
        result = await producer.send(Message("orders", b"x"))
    last = await admin.find_by_id(result.offset_id)
    assert await admin.offset_at(queue(0), 0) == 0
    assert await admin.offset_at(queue(0), last.store_ms, upper=True) == 2
    assert await admin.offset_at(queue(0), last.store_ms + 1) == 3
    assert await admin.offset_at(queue(0), NEWEST_MS) == 3
    with pytest.raises(Refused, match="not on broker 'other'"):
        await admin.offset_at(QueueRef("orders", "other", 0), 0)


# -- groups -----------------------------------------------------------------------------------------------------------


async def test_groups_are_created_listed_and_deleted(admin: Admin) -> None:
    await admin.create_group(Group(name="billing", retries_max=3, is_ordered=True))
    found = (await admin.groups())["billing"]
    assert (found.retries_max, found.is_ordered) == (3, True)
    await admin.delete_group("billing")
    assert "billing" not in await admin.groups()
    with pytest.raises(IllegalName):
        await admin.create_group(Group(name="no such name!"))


async def test_progress_reports_the_lag(platform: Platform, admin: Admin, producer: Producer) -> None:
    await admin.create_topic("orders", 2)
    await producer.send_batch([Message("orders", b"x")] * 10, queue=queue(0))
    await producer.send_batch([Message("orders", b"x")] * 4, queue=queue(1))
    await commit(platform, "billing", 0, 7)
    progress = await admin.progress("billing", "orders")
    assert {each: (told.committed, told.end, told.lag) for each, told in progress.queues.items()} == {
        queue(0): (7, 10, 3),
        queue(1): (0, 4, 4),
    }
    assert progress.lag == 7
    assert (await admin.progress("billing")).lag == 7
    assert (await admin.progress("unknown")).queues == {}


async def test_members_are_the_online_consumers(platform: Platform, admin: Admin) -> None:
    assert await admin.members("billing") == []
    async with open_channel(platform.address) as channel:
        await subscribe(channel, "billing", orders="*")
        (member,) = await admin.members("billing")
    assert member.client_id.startswith("client@")
    assert member.language == "PYTHON"


async def test_reset_of_an_offline_group_commits_the_new_offsets(
    platform: Platform, admin: Admin, producer: Producer
) -> None:
    await admin.create_topic("orders", 2)
    for number in (0, 1):
        await producer.send_batch([Message("orders", b"x")] * 5, queue=queue(number))
        await commit(platform, "billing", number, 3)
    assert await admin.reset_offsets("billing", "orders", 0) == {queue(0): 0, queue(1): 0}
    assert [await committed(platform, "billing", number) for number in (0, 1)] == [0, 0]
    assert await admin.reset_offsets("billing", "orders", NEWEST_MS) == {queue(0): 5, queue(1): 5}
    assert [await committed(platform, "billing", number) for number in (0, 1)] == [5, 5]


async def test_reset_sets_the_start_of_a_group_without_commits(
    platform: Platform, admin: Admin, producer: Producer
) -> None:
    await admin.create_topic("orders", 1)
    await producer.send_batch([Message("orders", b"x")] * 5)
    assert await admin.reset_offsets("new", "orders", NEWEST_MS) == {queue(0): 5}
    assert await committed(platform, "new", 0) == 5


async def test_reset_notifies_online_members(platform: Platform, admin: Admin, producer: Producer) -> None:
    await admin.create_topic("orders", 1)
    await producer.send_batch([Message("orders", b"x")] * 5)
    await commit(platform, "billing", 0, 5)
    told: list[RemotingCommand] = []
    async with open_channel(platform.address, lambda command, _: told.append(command)) as channel:
        await subscribe(channel, "billing", orders="*")
        assert await admin.reset_offsets("billing", "orders", 0) == {queue(0): 0}
        await eventually(lambda: RequestCode.RESET_CONSUMER_CLIENT_OFFSET in [command.code for command in told])
    assert await committed(platform, "billing", 0) == 5, "live members must commit their own offsets"


async def test_reset_without_force_never_moves_a_group_forward(
    platform: Platform, admin: Admin, producer: Producer
) -> None:
    await admin.create_topic("orders", 1)
    await producer.send_batch([Message("orders", b"x")] * 5)
    await commit(platform, "billing", 0, 2)
    assert await admin.reset_offsets("billing", "orders", NEWEST_MS, force=False) == {queue(0): 2}
    assert await committed(platform, "billing", 0) == 2
    assert await admin.reset_offsets("billing", "orders", 0, force=False) == {queue(0): 0}
    assert await committed(platform, "billing", 0) == 0


# -- messages ---------------------------------------------------------------------------------------------------------


async def test_messages_are_found_by_key_on_every_broker(
    platform: Platform, admin: Admin, producer: Producer, tmp_path: Path
) -> None:
    async with running_broker(tmp_path / "b", name="second", name_servers=platform.name_servers):
        await admin.create_topic("orders", 1)
        for name in ("sparrow", "second", "sparrow"):
            await producer.send(Message("orders", name, keys="k1 k2"), queue=QueueRef("orders", name, 0))
        await producer.send(Message("orders", b"another", keys="k3"))
        found = await admin.find_by_key("orders", "k1")
        assert sorted(message.body for message in found) == [b"second", b"sparrow", b"sparrow"]
        assert [message.store_ms for message in found] == sorted(message.store_ms for message in found)
        assert len(await admin.find_by_key("orders", "k2", limit=2)) == 2
        assert await admin.find_by_key("orders", "no such key") == []
        assert await admin.find_by_key("orders", "k1", end_ms=found[0].store_ms - 1) == []


async def test_message_is_found_by_unique_id_and_by_offset_id(admin: Admin, producer: Producer) -> None:
    await admin.create_topic("orders", 1)
    results = [await producer.send(Message("orders", b"%d" % number)) for number in range(3)]
    by_place = await admin.find_by_id(results[1].offset_id)
    by_name = await admin.find_by_id(results[1].message_id, topic="orders")
    assert by_place.body == by_name.body == b"1"
    assert by_place.unique_key == results[1].message_id
    assert await admin.find_by_id(results[1].offset_id, topic="orders") == by_place


async def test_unknown_ids_are_refused_with_the_reason(admin: Admin, producer: Producer) -> None:
    await admin.create_topic("orders", 1)
    result = await producer.send(Message("orders", b"x"))
    beside = result.offset_id[:16] + f"{int(result.offset_id[16:], 16) + 1:016X}"
    with pytest.raises(Refused, match="has no message"):
        await admin.find_by_id(beside)
    with pytest.raises(Refused, match="give the topic if it is a unique id"):
        await admin.find_by_id("nonsense")
    with pytest.raises(Refused, match="'orders' has no message with the id '0A00000100002A9F0000000000000000'"):
        await admin.find_by_id("0A00000100002A9F0000000000000000", topic="orders")
