"""Masters and slaves with fixed roles: what a send is told, what a slave copies and serves, who may replace whom."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.platforms import encode_properties, open_channel, pull, send, try_send
from tests.support.replica_servers import DEADLINE_S, LOG, equal_logs, fixed_server, leading_broker
from tests.support.wait import eventually

from sparrow import Message, SendStatus, aio
from sparrow.broker.server import BrokerServer
from sparrow.model.errors import Refused, Unavailable
from sparrow.model.queue import Queue
from sparrow.nameserver.server import NameServer
from sparrow.replication.server import ReplicaServer
from sparrow.settings import BrokerSettings, NameServerSettings, ReplicationSettings
from sparrow.wire.codes import RequestCode, ResponseCode


@pytest.fixture
async def name_server() -> AsyncIterator[NameServer]:
    async with NameServer(NameServerSettings(port=0)) as running:
        yield running


QUEUE = Queue("t", 0)
SECRET = "secret key"


async def bodies_at(server: ReplicaServer, topic: str = "t") -> list[bytes]:
    async with open_channel(server.address) as channel:
        return [message.body for message in (await pull(channel, topic, 0, 0)).messages]


async def test_a_slave_finds_its_master_by_the_name_server_copies_it_and_serves_reads(
    name_server: NameServer, tmp_path: Path
) -> None:
    addresses = str(name_server.address)
    async with (
        fixed_server(tmp_path / "m", addresses, role="async-master") as master,
        fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1) as slave,
    ):
        await leading_broker(master)
        async with open_channel(master.address) as channel:
            for number in range(10):
                await send(channel, "t", b"%d" % number)
        await equal_logs([master, slave])
        assert slave.broker is None, "nobody elects a slave"
        async with asyncio.timeout(DEADLINE_S):
            while await bodies_at(slave) != [b"%d" % number for number in range(10)]:
                await asyncio.sleep(0.05)
        async with open_channel(slave.address) as channel:
            assert (await try_send(channel, "t")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        routes = name_server.context.routes
        await eventually(lambda: set(routes.member_addresses("pair")) == {0, 1})


async def test_a_sync_master_tells_whether_a_slave_has_the_message(name_server: NameServer, tmp_path: Path) -> None:
    addresses = str(name_server.address)
    async with fixed_server(tmp_path / "m", addresses, role="sync-master") as master:
        await leading_broker(master)
        async with aio.Producer(addresses) as producer:
            assert (await producer.send(Message("t", "alone"))).status is SendStatus.SLAVE_NOT_AVAILABLE
            async with fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1) as slave:
                await eventually(lambda: master.node.followers_with(0) == [1], within_s=DEADLINE_S)
                await equal_logs([master, slave])
                result = await producer.send(Message("t", "together"))
                assert result.status is SendStatus.OK
                assert slave.store.written >= master.node.replica.log.safe_end


async def test_a_sync_master_whose_slave_hangs_answers_flush_slave_timeout_in_time_and_keeps_the_message(
    name_server: NameServer, tmp_path: Path
) -> None:
    addresses = str(name_server.address)
    async with (
        fixed_server(tmp_path / "m", addresses, role="sync-master", acknowledge_timeout_ms=2_000) as master,
        fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1) as slave,
    ):
        await leading_broker(master)
        await eventually(lambda: master.node.followers_with(0) == [1], within_s=DEADLINE_S)
        async with open_channel(master.address) as channel:
            await send(channel, "t", b"before")
            await slave.node.steps.hold()  # it takes no step any more
            try:
                late = await try_send(channel, "t", b"late")
                unawaited = await try_send(channel, "t", b"no wait", properties=encode_properties(WAIT="false"))
            finally:
                slave.node.steps.release()
        assert (late.code, unawaited.code) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SUCCESS)
        assert await bodies_at(master) == [b"before", b"late", b"no wait"]


async def test_a_broker_with_data_becomes_a_master_and_its_slave_gets_everything(
    name_server: NameServer, tmp_path: Path
) -> None:
    addresses = str(name_server.address)
    async with (
        BrokerServer(BrokerSettings(name="pair", port=0, name_servers=addresses), tmp_path / "m", LOG) as alone,
        open_channel(alone.address) as channel,
    ):
        for number in range(40):
            await send(channel, "t", b"%d" % number + bytes(100_000))
    async with fixed_server(tmp_path / "m", addresses, role="async-master") as master:
        await leading_broker(master)
        async with fixed_server(tmp_path / "s", "", role="slave", broker_id=2, master=str(master.address)) as slave:
            await equal_logs([master, slave])
            assert master.store.written > 4_000_000
            assert slave.store.raw(slave.store.first, 1 << 20) == master.store.raw(master.store.first, 1 << 20)
            assert await slave.store.bounds(QUEUE) == await master.store.bounds(QUEUE)


async def test_a_slave_becomes_the_master_and_the_old_master_its_slave(name_server: NameServer, tmp_path: Path) -> None:
    addresses = str(name_server.address)
    async with fixed_server(tmp_path / "a", addresses, role="async-master") as master:
        await leading_broker(master)
        async with open_channel(master.address) as channel:
            await send(channel, "t", b"both")
            async with fixed_server(tmp_path / "b", addresses, role="slave", broker_id=1) as slave:
                await equal_logs([master, slave])
            await send(channel, "t", b"only the old master")
    async with fixed_server(tmp_path / "b", addresses, role="async-master") as new_master:
        await leading_broker(new_master)
        async with open_channel(new_master.address) as channel:
            await send(channel, "t", b"new")
        async with fixed_server(tmp_path / "a", addresses, role="slave", broker_id=1) as old_master:
            await equal_logs([new_master, old_master])
            for server in (new_master, old_master):
                async with asyncio.timeout(DEADLINE_S):
                    while await bodies_at(server) != [b"both", b"new"]:
                        await asyncio.sleep(0.05)


async def test_a_slave_keeps_its_copy_when_the_master_returns_with_an_empty_disk(
    name_server: NameServer, tmp_path: Path
) -> None:
    addresses = str(name_server.address)
    async with fixed_server(tmp_path / "m", addresses, role="async-master") as master:
        await leading_broker(master)
        async with open_channel(master.address) as channel:
            await send(channel, "t", b"precious")
        async with fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1) as slave:
            await equal_logs([master, slave])
            copied = slave.store.written
    shutil.rmtree(tmp_path / "m")
    async with (
        fixed_server(tmp_path / "m", addresses, role="async-master") as empty,
        fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1) as slave,
    ):
        await leading_broker(empty)
        with pytest.raises(Refused, match="another log"):
            await slave.coordinator.read()
        assert slave.store.written == copied
        assert await bodies_at(slave) == [b"precious"]


@pytest.mark.parametrize(
    ("role", "broker_id", "why"), [("async-master", 1, "a master has the broker id 0"), ("slave", 0, "from 1 on")]
)
async def test_a_broker_id_that_does_not_fit_the_role_is_refused(
    tmp_path: Path, role: str, broker_id: int, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        await fixed_server(tmp_path, "", role=role, broker_id=broker_id).start()


async def test_with_signed_requests_only_replicas_with_an_admin_token_get_the_raw_log(
    name_server: NameServer, tmp_path: Path
) -> None:
    addresses = str(name_server.address)
    async with (
        fixed_server(tmp_path / "m", addresses, role="async-master", admin_token=SECRET) as master,
        open_channel(master.address) as stranger,
    ):
        await leading_broker(master)
        state = await stranger.request(RequestCode.READ_REPLICA_SET)
        fetch = await stranger.request(RequestCode.FETCH_LOG)
        assert (state.code, fetch.code) == (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
        async with fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1, admin_token=SECRET) as slave:
            await equal_logs([master, slave])
            assert slave.store.written > 0
    with pytest.raises(Refused, match="admin_tokens"):
        ReplicaServer(BrokerSettings(auth=True), tmp_path, LOG, ReplicationSettings(role="async-master"))


@pytest.mark.parametrize("finds_by_name_server", [True, False])
async def test_a_second_slave_with_the_same_broker_id_is_refused_and_changes_nothing(
    name_server: NameServer, tmp_path: Path, finds_by_name_server: bool
) -> None:
    addresses = str(name_server.address)
    async with fixed_server(tmp_path / "m", addresses, role="async-master") as master:
        await leading_broker(master)
        how: dict[str, object] = {"role": "slave", "broker_id": 1}
        if not finds_by_name_server:
            how["master"] = str(master.address)
        known = addresses if finds_by_name_server else ""
        async with fixed_server(tmp_path / "s", known, **how) as slave, open_channel(master.address) as channel:
            await send(channel, "t", b"before")
            await equal_logs([master, slave])
            routes = name_server.context.routes.member_addresses("pair")
            with pytest.raises(Refused, match=rf"runs already, at {slave.address}: stop it.*--broker-id"):
                await fixed_server(tmp_path / "second", known, **how).start()
            assert name_server.context.routes.member_addresses("pair") == routes
            assert not (tmp_path / "second").exists() or not list((tmp_path / "second").glob("commitlog/*"))
            await send(channel, "t", b"after")
            await equal_logs([master, slave])
            async with fixed_server(tmp_path / "second", known, **how | {"broker_id": 2}) as second:
                await equal_logs([master, slave, second])
        # The id is free again, for a process at another address.
        async with fixed_server(tmp_path / "s", known, **how) as moved:
            await equal_logs([master, moved])


async def test_a_second_slave_is_refused_by_the_routes_while_the_master_is_away(
    name_server: NameServer, tmp_path: Path
) -> None:
    addresses = str(name_server.address)
    async with fixed_server(tmp_path / "m", addresses, role="async-master") as master:
        await leading_broker(master)
        async with fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1) as slave:
            await equal_logs([master, slave])
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    async with fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1) as slave:
        await eventually(lambda: 1 in name_server.context.routes.member_addresses("pair"), within_s=DEADLINE_S)
        with pytest.raises(Refused, match=f"runs already, at {slave.address}"):
            await fixed_server(tmp_path / "copy", addresses, role="slave", broker_id=1).start()


async def test_of_two_slaves_that_started_without_their_master_one_does_not_follow_it(tmp_path: Path) -> None:
    """Without name servers, nobody can tell them of each other before the master is back."""
    async with fixed_server(tmp_path / "m", "", role="async-master") as master:
        await leading_broker(master)
        at = str(master.address)
        async with fixed_server(tmp_path / "s", "", role="slave", broker_id=1, master=at) as slave:
            await equal_logs([master, slave])
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    async with (
        fixed_server(tmp_path / "s", "", role="slave", broker_id=1, master=at) as slave,
        fixed_server(tmp_path / "copy", "", role="slave", broker_id=1, master=at) as copy,
    ):
        port = int(at.rpartition(":")[2])
        async with fixed_server(tmp_path / "m", "", port=port, role="async-master") as master:
            await leading_broker(master)
            await eventually(lambda: master.node.followers_with(0) == [1], within_s=DEADLINE_S)
            (refusal,) = [text for server in (slave, copy) if (text := await refusal_of_master(server))]
            assert "another slave with the broker id 1" in refusal


async def refusal_of_master(slave: ReplicaServer) -> str:
    """Return why the master refuses a slave; nothing if it does not."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await slave.coordinator.read()
                return ""
            except Refused as error:
                return str(error)
            except Unavailable:  # the machine is busy
                await asyncio.sleep(0.05)
