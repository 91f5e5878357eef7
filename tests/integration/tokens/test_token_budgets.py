"""Byte budgets of tokens on a live broker and a live name server that verify signatures."""

import asyncio
from pathlib import Path

import pytest
from tests.support.admin_token import ADMIN, AUTH
from tests.support.platforms import SMALL_LOG, open_channel, running_platform, try_pull, try_send
from tests.support.wait import eventually

from sparrow import Credentials, Message
from sparrow.cli.server.platform import Platform
from sparrow.client.aio import Admin, Producer
from sparrow.model.errors import ConnectionLost
from sparrow.nameserver.server import NameServer
from sparrow.net.access.signatures import make_signer
from sparrow.net.channel import Channel
from sparrow.net.limits.token_budget import TokenBudget
from sparrow.settings import NameServerSettings
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode

MIB = 1 << 20


def budget_of(platform: Platform) -> TokenBudget:
    tokens = platform.broker._listener.budgets.tokens
    assert tokens is not None
    return tokens


async def signed_by(channel: Channel, credentials: Credentials) -> Channel:
    channel.sign = await make_signer(channel, credentials, timeout_ms=10_000)
    return channel


async def test_a_token_without_room_is_refused_and_others_are_served(platform: Platform, admin: Admin) -> None:
    greedy, modest = await admin.issue_token("greedy", "p"), await admin.issue_token("modest", "p")
    async with open_channel(platform.address) as first, open_channel(platform.address) as second:
        await signed_by(first, greedy)
        await signed_by(second, greedy)
        assert (await try_send(first, "orders", b"x")).code == ResponseCode.SUCCESS
        held = budget_of(platform).of("greedy")
        held.held_bytes += 256 * MIB  # as if its connections held this
        for channel in (first, second):
            refused = await try_send(channel, "orders", b"x")
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert "with access key 'greedy' hold 268435456 bytes (limit net.token_bytes_max = 268435456)" in (
                refused.remark or ""
            )
        async with open_channel(platform.address) as other:
            await signed_by(other, modest)
            assert (await try_send(other, "orders", b"x")).code == ResponseCode.SUCCESS
        async with open_channel(platform.address) as forger:
            await signed_by(forger, Credentials("modest", "a wrong secret"))
            assert (await try_send(forger, "orders", b"x")).code == ResponseCode.NO_PERMISSION
        assert await admin.topics()
        held.held_bytes -= 256 * MIB
        assert (await try_send(second, "orders", b"x")).code == ResponseCode.SUCCESS


async def test_parked_pulls_count_until_they_end(platform: Platform, admin: Admin) -> None:
    reader = await admin.issue_token("reader", "pc")
    async with open_channel(platform.address) as channel, open_channel(platform.address) as waker:
        for each in (channel, waker):
            await signed_by(each, reader)
        assert (await try_send(waker, "orders", b"x")).code == ResponseCode.SUCCESS
        held = budget_of(platform).of("reader")
        pulls = [asyncio.ensure_future(try_pull(channel, "orders", 0, 1, long_poll_ms=20_000)) for _ in range(3)]
        await eventually(lambda: held.held_bytes == 3 * 1024)
        assert (await try_send(waker, "orders", b"y")).code == ResponseCode.SUCCESS
        assert [(await pull).code for pull in pulls] == [ResponseCode.SUCCESS] * 3
        assert held.held_bytes == 0
        again = asyncio.ensure_future(try_pull(channel, "orders", 0, 2, long_poll_ms=20_000))
        await eventually(lambda: held.held_bytes == 1024)
        channel.close()
        await eventually(lambda: held.held_bytes == 0)
        with pytest.raises(ConnectionLost):
            await again


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_token_holds_nothing_when_all_its_requests_are_answered(tmp_path: Path, flush: str) -> None:
    log = SMALL_LOG.model_copy(update={"flush": flush})
    async with running_platform(tmp_path, log=log, **AUTH) as platform:
        async with Producer(platform.name_servers, credentials=ADMIN) as producer:
            await asyncio.gather(*(producer.send(Message("orders", bytes(100_000))) for _ in range(50)))
            held = budget_of(platform).of(ADMIN.access_key)
            await eventually(lambda: held.held_bytes == 0)
        assert budget_of(platform).refused == 0


async def test_requests_that_need_no_signature_count_for_no_token() -> None:
    async with NameServer(NameServerSettings.model_validate({"port": 0, **AUTH})) as server:
        tokens = server._listener.budgets.tokens
        assert tokens is not None
        async with open_channel(server.address) as channel:
            await signed_by(channel, Credentials(ADMIN.access_key, "a wrong secret"))
            answer = await channel.request(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=10_000)
            assert answer.code == ResponseCode.SUCCESS, "everybody may read routes"
            assert not tokens._by_token
            await signed_by(channel, ADMIN)
            header = headers.ChangeWritePermission("nothing")
            await channel.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header, timeout_ms=10_000)
            assert list(tokens._by_token) == [ADMIN.access_key]
