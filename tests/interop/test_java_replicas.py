"""The official Java clients, old and new, on brokers with replicas: the death of a leader, and reads from a slave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop import official, platforms
from tests.interop.conftest import CLIENT_VERSIONS, TEMPLATE_TOPIC
from tests.interop.java import SETTLE_S, ClientError, Consumer, JavaClient, Producer, java_client
from tests.interop.test_java_clients import wait_for_all
from tests.support import server_processes
from tests.support.etcd import etcd_cluster
from tests.support.replica_sets import sparrow
from tests.support.server_processes import TIMEOUT_S, BrokerProcess, broker_process
from tests.support.wait import eventually, wait_until

from sparrow.client import Admin
from sparrow.model.errors import UnknownTopic
from sparrow.net.address import Address
from sparrow.net.dialer import connect
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.etcd.coordinator import EtcdCoordinator
from sparrow.replication.etcd.gateway import EtcdGateway
from sparrow.replication.identity import make_incarnation
from sparrow.wire import bodies
from sparrow.wire.bodies import KvTable
from sparrow.wire.codes import RequestCode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

NAME = "sparrow"
MEMBERS = (1, 2, 3)
QUEUES = 2
BATCH = 10


class Crew(NamedTuple):
    """Clients of one version."""

    java: JavaClient
    producer: Producer
    topic: str
    consumer: Consumer
    sent: list[str]
    """Acknowledged bodies."""

    def send(self) -> None:
        texts = [f"{len(self.sent) + number}" for number in range(BATCH)]
        self.producer.send(self.topic, texts)
        self.sent.extend(texts)

    def sends_again(self) -> bool:
        """Try to send: clients refresh routes every thirty seconds, and fail until then."""
        try:
            self.producer.send(self.topic, ["knock"])
        except ClientError:
            self.consumer.drain(1, within_s=0.2)
            return False
        self.send()
        return True


@contextmanager
def crew(version: str, name_server: str, folder: Path) -> Iterator[Crew]:
    topic, home = f"crew_{version.replace('.', '_')}", folder / version
    home.mkdir()
    with (
        java_client(official.kit(version), name_server, home) as java,
        java.producer() as producer,
    ):
        producer.create_topic(topic, like=TEMPLATE_TOPIC, queues=QUEUES)
        with java.push_consumer(f"{topic}_group", topic) as consumer:
            yield Crew(java, producer, topic, consumer, [])


@asynccontextmanager
async def name_server(kind: str, folder: Path) -> AsyncIterator[str]:
    """Run a name server, Sparrow's or Apache's; yield its address."""
    if kind == "sparrow":
        async with server_processes.server_process("name-server", "--port", "0", "--data", str(folder)) as said:
            yield said[0].split()[-1]
    else:
        folder.mkdir()
        with platforms.apache_name_server(official.kit(kind), folder) as address:
            yield address


async def initialise_set(etcd_url: str) -> None:
    gateway = EtcdGateway([etcd_url])
    state = ReplicaSetState(
        set_id=NAME,
        members=MEMBERS,
        min_in_sync=2,
        in_sync={member: make_incarnation() for member in MEMBERS},
    )
    await EtcdCoordinator(gateway, "DefaultCluster", NAME, 1).initialise(state)
    await gateway.close()


class ReplicaSet(NamedTuple):
    """A replica set with a name server, and Java clients of each version that send to it and read from it."""

    replicas: dict[int, BrokerProcess]
    etcd_url: str
    admin: Admin
    crews: list[Crew]

    @property
    def route(self) -> Mapping[int, str]:
        """The replicas by their ids; the leader has number 0."""
        return self.admin.route(TEMPLATE_TOPIC).addresses[NAME]

    @property
    def leader(self) -> int:
        """The number that the leader has while it follows."""
        (leading,) = set(MEMBERS) - set(self.route)
        return leading

    async def send_to_another_leader(self, former: str) -> None:
        """Wait until another replica leads than the one with this address, and all clients have sent and read."""
        await eventually(lambda: self.route.get(0, former) != former, within_s=SETTLE_S)
        for one in self.crews:
            wait_until(one.sends_again, within_s=SETTLE_S)
        for one in self.crews:
            wait_for_all([one.consumer], one.sent)


@asynccontextmanager
async def replica_set(naming: str, tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    with etcd_cluster() as (etcd,):
        await initialise_set(etcd.url)
        async with name_server(naming, tmp_path / "naming") as address, AsyncExitStack() as brokers:
            replicas = {
                member: BrokerProcess(
                    NAME, tmp_path / str(member), address, arguments=("--replica", str(member), "--etcd", etcd.url)
                )
                for member in MEMBERS
            }
            for replica in replicas.values():
                brokers.push_async_callback(replica.stop)
            await asyncio.gather(*(replica.start() for replica in replicas.values()))
            with ExitStack() as clients, Admin(address) as admin:
                found = ReplicaSet(replicas, etcd.url, admin, [])
                await eventually(lambda: is_routed(admin) and len(found.route) == len(MEMBERS), within_s=TIMEOUT_S)
                found.crews.extend(
                    clients.enter_context(crew(version, address, tmp_path)) for version in CLIENT_VERSIONS
                )
                for one in found.crews:
                    one.send()
                    wait_for_all([one.consumer], one.sent)
                yield found


@pytest.mark.parametrize("naming", ["sparrow", "5.5.0"])
async def test_clients_continue_when_the_leader_of_a_replica_set_is_killed(naming: str, tmp_path: Path) -> None:
    async with replica_set(naming, tmp_path) as found:
        former = found.route[0]
        await found.replicas[found.leader].kill()
        await found.send_to_another_leader(former)


@pytest.mark.parametrize("naming", ["sparrow", "5.5.0"])
async def test_clients_continue_when_the_leader_of_a_replica_set_hands_over(naming: str, tmp_path: Path) -> None:
    async with replica_set(naming, tmp_path) as found:
        former, leader = found.route[0], found.leader
        transferred = await sparrow("cluster", "transfer", "--name", NAME, "--etcd", found.etcd_url)
        assert transferred.exit_code == 0, transferred
        await found.send_to_another_leader(former)
        # It lives, and is a follower that clients see: they may read from it.
        await eventually(lambda: found.route.get(leader) == former, within_s=SETTLE_S)


def is_routed(admin: Admin) -> bool:
    """Return whether the leader has registered; name servers take topics from nobody else."""
    try:
        return 0 in admin.route(TEMPLATE_TOPIC).addresses[NAME]
    except UnknownTopic:
        return False


async def messages_pulled_from(address: str) -> int:
    """Return how many messages a broker has handed to consumers."""
    channel = await connect(Address.parse(address), timeout_ms=10_000)
    try:
        answer = await channel.request(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=10_000)
        return int(bodies.read(KvTable, answer.body).table["msgGetTotalTodayNow"])
    finally:
        channel.close()


async def test_consumers_read_from_a_slave_when_the_master_advises_it_and_when_the_master_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every message counts as too old for the memory of the master.
    monkeypatch.setitem(server_processes.ENVIRONMENT, "SPARROW_REPLICATION__MEMORY_READ_RATIO", "0")
    async with name_server("sparrow", tmp_path / "naming") as address, AsyncExitStack() as brokers:
        master, slave = [
            await brokers.enter_async_context(
                broker_process(NAME, tmp_path / arguments[1], address, arguments=arguments)
            )
            for arguments in (("--role", "sync-master"), ("--role", "slave", "--broker-id", "1"))
        ]
        with ExitStack() as clients, Admin(address) as admin:
            await eventually(lambda: is_routed(admin) and len(admin.route(TEMPLATE_TOPIC).addresses[NAME]) == 2)
            slave_address = admin.route(TEMPLATE_TOPIC).addresses[NAME][1]
            crews = [clients.enter_context(crew(version, address, tmp_path)) for version in CLIENT_VERSIONS]
            for one in crews:
                before = await messages_pulled_from(slave_address)
                while await messages_pulled_from(slave_address) == before:  # the time limit of the test ends it
                    one.send()
                    wait_for_all([one.consumer], one.sent)
            await master.kill()
            await eventually(lambda: set(admin.route(TEMPLATE_TOPIC).addresses[NAME]) == {1}, within_s=SETTLE_S)
            for one in crews:
                late = clients.enter_context(one.java.push_consumer(f"{one.topic}_late", one.topic))
                wait_for_all([late], one.sent)
            del slave
