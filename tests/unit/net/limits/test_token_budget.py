"""Byte budgets of tokens: all connections with one access key share one. Tokens are invented, connections are not."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.support.raw_connection import RawConnection, RunningListener, open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.net.access.audit_log import AccessRefused, AuditLog
from sparrow.net.access.guarded_dispatcher import GuardedRequestDispatcher
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import DeferredResponse, HandlerResponse, encode_response
from sparrow.net.limits.read_gate import ReadGate
from sparrow.net.limits.token_budget import TokenBudget
from sparrow.wire.codes import ResponseCode
from sparrow.wire.frame import RemotingCommand

DEFERRED, AWAITING, QUICK = 7001, 7002, 7003
MIB = 1 << 20
LIMIT = 64 * MIB
SMALL_BUFFER = 1 << 14


class Server:
    """A listener that believes the access key of a request, and handlers that wait for `event`."""

    def __init__(self) -> None:
        self.event = asyncio.get_running_loop().create_future()
        plain = {DEFERRED: self._defer, QUICK: lambda command, _: encode_response(command, HandlerResponse())}
        limits = dict.fromkeys((DEFERRED, AWAITING, QUICK), 16 * MIB)
        self.dispatcher = GuardedRequestDispatcher(
            None, {AWAITING: self._await}, plain, check=self._check, audit=AuditLog(()), body_limits=limits
        )

    def _check(self, command, _challenge, _host) -> str | None:
        fields = command.fields()
        if fields.get("Signature") == "wrong":
            raise AccessRefused("this", "it is a test", cause="signature")
        return fields.get("AccessKey")

    def _defer(self, command, _channel):
        return DeferredResponse(self.event, lambda error: encode_response(command, HandlerResponse()))

    async def _await(self, _request, _context, _call):
        await asyncio.shield(self.event)

    def held(self, listener: RunningListener, access_key: str) -> int:
        assert listener.listener.budgets.tokens is not None
        return listener.listener.budgets.tokens.of(access_key).held_bytes


@asynccontextmanager
async def connections(listener: RunningListener, count: int) -> AsyncIterator[list[RawConnection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_raw_connection(listener.address)) for _ in range(count)]


def signed(code: int, opaque: int, access_key: str, body: bytes = b"", **fields: str) -> RemotingCommand:
    return RemotingCommand(code, opaque, ext={"AccessKey": access_key, **fields}, body=body)


@pytest.mark.parametrize("code", [DEFERRED, AWAITING])
async def test_a_token_with_too_many_bytes_in_progress_is_answered_with_busy_on_all_its_connections(code):
    server = Server()
    async with (
        running_listener(server.dispatcher, counts_tokens=True, token_bytes_max=LIMIT) as listener,
        connections(listener, 13) as (*greedy, late, other),
    ):
        for wire in greedy:
            wire.write(signed(code, 1, "greedy", bytes(5 * MIB + MIB // 2)))
        await eventually(lambda: server.held(listener, "greedy") > 60 * MIB)
        refused = await late.request(signed(code, 2, "greedy", bytes(4 * MIB)))
        size = 4 * MIB + 1024 + len('{"AccessKey":"greedy"}')
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark == (
            f"busy, try again: requests in progress and unsent responses of all connections with access key 'greedy' "
            f"hold {server.held(listener, 'greedy')} bytes (limit net.token_bytes_max = {LIMIT}), and your request has "
            f"{size}: read the responses, or try again later"
        )
        assert listener.listener.limits_hit()["token_bytes"] == 1
        assert (await late.request(signed(QUICK, 3, "greedy"))).code == ResponseCode.SUCCESS, "a small one fits"
        assert (await other.request(signed(QUICK, 4, "other", bytes(4 * MIB)))).code == ResponseCode.SUCCESS
        server.event.set_result(None)
        assert [(await wire.read())[0].code for wire in greedy] == [ResponseCode.SUCCESS] * 11
        assert (await late.request(signed(QUICK, 5, "greedy", bytes(4 * MIB)))).code == ResponseCode.SUCCESS
        assert (server.held(listener, "greedy"), server.held(listener, "other")) == (0, 0)


async def test_a_connection_counts_for_the_token_of_its_first_valid_signature():
    server = Server()
    async with (
        running_listener(server.dispatcher, counts_tokens=True) as listener,
        connections(listener, 1) as (wire,),
    ):
        wire.write(RemotingCommand(AWAITING, 1, body=bytes(MIB)))  # needs no signature
        refused = await wire.request(signed(AWAITING, 2, "victim", bytes(MIB), Signature="wrong"))
        assert refused.code == ResponseCode.NO_PERMISSION
        wire.write(signed(AWAITING, 3, "first", bytes(2 * MIB)), signed(AWAITING, 4, "second", bytes(3 * MIB)))
        await eventually(lambda: server.held(listener, "first") > 6 * MIB)
        assert (server.held(listener, "victim"), server.held(listener, "second")) == (0, 0)
        server.event.set_result(None)
        await wire.read(3)
        assert server.held(listener, "first") == 0


async def test_what_a_closed_connection_held_is_free_again():
    server = Server()
    async with running_listener(server.dispatcher, counts_tokens=True) as listener:
        async with open_raw_connection(listener.address, receive_bytes=SMALL_BUFFER) as wire:
            await wire.request(signed(QUICK, 1, "token"))
            (peer,) = listener.channels
            assert peer.gate is not None
            tokens = listener.listener.budgets.tokens
            assert tokens is not None
            peer.write(bytes(16 * MIB))  # it does not read this
            await eventually(lambda: server.held(listener, "token") > 10 * MIB)
            before = server.held(listener, "token")
            peer.gate.postpone([signed(QUICK, 2, "token", bytes(MIB))])
            assert server.held(listener, "token") == before + MIB + 1024 + len("token")
            del peer
        await eventually(lambda: not listener.channels)
        await eventually(lambda: server.held(listener, "token") == 0)
        gc.collect()
        assert not tokens._by_token, "tokens without a connection are forgotten"


async def test_unsent_responses_above_the_budget_close_the_connection_with_the_most_of_this_token(caplog):
    server = Server()
    async with running_listener(server.dispatcher, counts_tokens=True, token_bytes_max=LIMIT) as listener:
        async with AsyncExitStack() as stack:
            peers: dict[str, Channel] = {}
            for name, token in (("most", "deaf"), ("less", "deaf"), ("other", "reader")):
                connection = open_raw_connection(listener.address, receive_bytes=SMALL_BUFFER)
                wire = await stack.enter_async_context(connection)
                await wire.request(signed(QUICK, 1, token))
                (peers[name],) = listener.channels - {*peers.values()}
            for name, size in (("other", 60), ("less", 20), ("most", 30)):
                peers[name].write(bytes(size * MIB))
            await eventually(lambda: server.held(listener, "deaf") > 40 * MIB)
            assert all(peer.is_open for peer in peers.values())
            peers["less"].write(bytes(30 * MIB))  # now it has the most
            await eventually(lambda: not peers["less"].is_open)
            assert [peers[name].is_open for name in ("most", "other")] == [True, True]
            assert listener.listener.limits_hit()["token_bytes"] == 1
            assert 20 * MIB < server.held(listener, "deaf") < 31 * MIB
    assert "with access key 'deaf' hold" in caplog.text
    assert f"(limit net.token_bytes_max = {LIMIT}), and its peer has not read" in caplog.text


async def test_listeners_without_signatures_do_not_count_for_tokens():
    server = Server()
    async with running_listener(server.dispatcher) as listener, connections(listener, 1) as (wire,):
        assert (await wire.request(signed(QUICK, 1, "token"))).code == ResponseCode.SUCCESS
        (peer,) = listener.channels
        assert type(peer.gate) is ReadGate
        assert listener.listener.budgets.tokens is None


def test_a_token_may_use_its_whole_budget():
    token = TokenBudget(1_000).of("t")
    token.held_bytes = 900
    assert token.refusal(100) is None
    assert token.refusal(101) is not None
