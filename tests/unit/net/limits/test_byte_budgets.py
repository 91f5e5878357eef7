"""Byte budgets: fair shares of addresses, in all and of one connection. Addresses are invented, connections are not."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.raw_connection import open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.model.errors import Busy
from sparrow.net.dispatcher import DeferredResponse, HandlerResponse, RequestDispatcher, encode_response
from sparrow.net.limits import byte_budgets
from sparrow.net.limits.byte_budgets import ConnectionBytes, RequestBytes
from sparrow.wire.codes import ResponseCode
from sparrow.wire.frame import RemotingCommand

DEFERRED, AWAITING, LARGE, QUICK = 7001, 7002, 7003, 7004
MIB = 1 << 20
BODY = bytes(MIB)
SMALL_BUFFER = 1 << 14


# -- shares -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400)), max_size=60))
def test_one_address_never_takes_the_last_place(wanted):
    """Whatever the others hold, an address that holds nothing may have a request of a fair size."""
    budget, held = RequestBytes(1_000, connection_bytes_max=1_000), []
    for host, size in wanted:
        if budget.refusal(host, size) is None:
            budget.hold(host, size)
            held.append((host, size))
        assert budget.total_bytes == sum(size for _, size in held) <= 875, "each address leaves half of the rest"
        assert budget.refusal("new", 62) is None
        assert budget.is_tight == (budget.total_bytes > 250)
    for host, size in held:
        budget.release(host, size)
    assert not budget._of_host
    assert not budget.total_bytes
    assert not budget.is_tight


def test_a_refusal_says_limit_setting_and_share():
    budget = RequestBytes(1_000, connection_bytes_max=100)
    budget.hold("a", 400)
    assert budget.refusal("a", 100) is None
    assert budget.refusal("a", 101) is not None
    text = str(budget.refusal("a", 101))
    assert "net.request_bytes_max = 1000" in text
    assert "your address 400" in text
    assert isinstance(budget.refusal("a", 101), Busy)
    assert budget.refused == 3


def test_a_full_budget_slows_connections_down_before_it_refuses():
    budget = RequestBytes(1_000, connection_bytes_max=400)
    budget.hold("a", 250)
    assert budget.connection_bytes == 400
    budget.hold("b", 350)
    assert budget.connection_bytes == 100


class Peer:
    """A connection of an address; it notes that it was closed."""

    def __init__(self, host, budget):
        self.host, self.address, self.is_closed, self._budget = host, f"{host}:1", False, budget

    def abort(self):
        self.is_closed = True
        self._budget.forget(self)


def test_the_largest_connection_of_the_address_with_the_most_is_closed(caplog):
    budget = ConnectionBytes("unsent responses", "net.unsent_bytes_max", 100)
    many = [Peer("greedy", budget) for _ in range(8)]
    honest = Peer("honest", budget)
    budget.update(honest, 40)  # the largest of all, but its address has less than the other
    for number, peer in enumerate(many):
        budget.update(peer, 7 + number % 2)
    assert budget.total_bytes == 100
    assert budget.share_bytes == 0
    budget.update(many[0], 8)
    assert not honest.is_closed
    assert sum(peer.is_closed for peer in many) == 1
    assert "(limit net.unsent_bytes_max = 100), its address 61 of them" in caplog.text
    assert (budget.refused, budget.total_bytes) == (1, 93)
    for peer in (honest, *many):
        budget.forget(peer)
    assert not budget._of_host
    assert not budget._held


# -- requests in progress ---------------------------------------------------------------------------------------------


class Handlers:
    """A dispatcher with a request of each kind; `release` ends those that wait."""

    def __init__(self):
        self.event = asyncio.get_running_loop().create_future()
        self.begun = 0
        plain = {DEFERRED: self._defer, QUICK: lambda command, _: encode_response(command, HandlerResponse())}
        limits = dict.fromkeys((DEFERRED, AWAITING, QUICK), 16 * MIB)
        handlers = {AWAITING: self._await, LARGE: self._large}
        self.dispatcher = RequestDispatcher(None, handlers, plain, body_limits=limits)

    def _defer(self, command, _channel):
        self.begun += 1
        return DeferredResponse(self.event, lambda error: encode_response(command, HandlerResponse()))

    async def _await(self, _request, _context, _call):
        self.begun += 1
        await asyncio.shield(self.event)

    async def _large(self, _request, _context, _call):
        self.begun += 1
        return HandlerResponse(body=BODY)


@pytest.mark.parametrize("code", [DEFERRED, AWAITING])
async def test_a_connection_with_many_bytes_in_progress_is_not_read_from(code):
    handlers = Handlers()
    async with (
        running_listener(handlers.dispatcher, connection_request_bytes_max=4 * MIB) as server,
        open_raw_connection(server.address) as greedy,
        open_raw_connection(server.address) as other,
    ):
        greedy.write(*(RemotingCommand(code, number, body=BODY) for number in range(20)))
        requests = server.listener.budgets.requests
        await eventually(lambda: requests.total_bytes > 4 * MIB)
        assert (await other.request(RemotingCommand(QUICK, 99, body=BODY))).opaque == 99
        (paused,) = [one for one in server.channels if not one._transport.is_reading()]
        assert handlers.begun == 4
        assert requests.total_bytes < 4 * MIB + 10_000
        handlers.event.set_result(None)
        assert {one.opaque for one in await greedy.read(20)} == set(range(20))
        await eventually(paused._transport.is_reading)
        assert (requests.total_bytes, requests.refused, paused.ready_bytes) == (0, 0, 0)


@pytest.mark.parametrize("code", [DEFERRED, AWAITING])
async def test_an_address_with_more_bytes_in_progress_than_are_free_is_answered_with_busy(code):
    handlers = Handlers()
    async with (
        running_listener(handlers.dispatcher, request_bytes_max=64 * MIB) as server,
        AsyncExitStack() as peers,
    ):
        requests = server.listener.budgets.requests
        wires = [await peers.enter_async_context(open_raw_connection(server.address)) for _ in range(10)]
        for wire in wires:
            wire.write(RemotingCommand(code, 1, body=bytes(3 * MIB)))
        await eventually(lambda: requests.total_bytes > 30 * MIB)
        late = await peers.enter_async_context(open_raw_connection(server.address))
        refused = await late.request(RemotingCommand(code, 2, body=bytes(3 * MIB)))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "net.request_bytes_max = 67108864" in refused.remark
        assert requests.refused == 1
        assert requests.refusal("10.0.0.9", 8 * MIB) is None, "another address has room"
        assert (await late.request(RemotingCommand(QUICK, 3))).code == ResponseCode.SUCCESS
        handlers.event.set_result(None)
        assert [(await wire.read(1))[0].code for wire in wires] == [ResponseCode.SUCCESS] * 10
        await eventually(lambda: requests.total_bytes == 0)


async def test_requests_that_wait_for_their_turn_count_until_the_connection_closes():
    handlers = Handlers()
    async with running_listener(handlers.dispatcher) as server:
        async with open_raw_connection(server.address, receive_bytes=SMALL_BUFFER) as wire:
            await wire.request(RemotingCommand(QUICK, 1))
            (peer,) = server.channels
            peer.write(bytes(16 * MIB))  # it does not read this
            await eventually(lambda: peer.is_blocked)
            peer.gate.postpone([RemotingCommand(QUICK, 2, body=BODY)])
            requests = server.listener.budgets.requests
            assert requests.total_bytes > MIB
            requests.hold("10.0.0.9", 510 * MIB)
            peer.gate.postpone([RemotingCommand(QUICK, 3)])
            assert not peer.is_open, "there is no budget for the second, and it could not be told"
            assert requests.refused == 1
        assert requests.total_bytes == 510 * MIB
        await eventually(lambda: server.listener.budgets.unsent.total_bytes == 0)


# -- unsent responses -------------------------------------------------------------------------------------------------


async def test_handlers_wait_until_the_peer_reads_earlier_responses():
    """All requests come in one read, so that all handlers could run before the first response is written."""
    handlers = Handlers()
    async with (
        running_listener(handlers.dispatcher) as server,
        open_raw_connection(server.address, receive_bytes=SMALL_BUFFER) as wire,
    ):
        await wire.request(RemotingCommand(QUICK, 999))
        (peer,) = server.channels
        wire.write(*(RemotingCommand(LARGE, number) for number in range(24)))
        await eventually(lambda: peer.requests_in_progress == 24 - handlers.begun and peer.is_blocked)
        before = -1
        while before != (before := handlers.begun):  # until nothing happens any more
            for _ in range(20):
                await asyncio.sleep(0)
        assert handlers.begun < 15
        assert server.listener.budgets.unsent.total_bytes < 10 * MIB
        answers = await wire.read(24)
        assert {one.opaque for one in answers} == set(range(24))
        assert all(one.body == BODY for one in answers)
        await eventually(lambda: server.listener.budgets.unsent.total_bytes == 0)
        assert (peer.ready_bytes, peer.requests_in_progress) == (0, 0)


async def test_unsent_responses_above_the_budget_close_a_connection_and_free_their_bytes(caplog):
    handlers = Handlers()
    async with running_listener(handlers.dispatcher, unsent_bytes_max=12 * MIB) as server:
        unsent = server.listener.budgets.unsent
        async with (
            open_raw_connection(server.address, receive_bytes=SMALL_BUFFER) as deaf,
            open_raw_connection(server.address) as other,
        ):
            await deaf.request(RemotingCommand(QUICK, 1))
            port = deaf.writer.get_extra_info("sockname")[1]
            (peer,) = [one for one in server.channels if one.address.endswith(f":{port}")]
            while peer.is_open:
                peer.write(BODY)  # such as notifications, which no request asks for
                await asyncio.sleep(0)
            assert unsent.refused == 1
            assert (await other.request(RemotingCommand(QUICK, 2))).opaque == 2
        await eventually(lambda: unsent.total_bytes == 0)
    assert "bytes of unsent responses (limit net.unsent_bytes_max = 12582912)" in caplog.text


async def test_a_peer_that_reads_slowly_is_not_read_from_when_the_budget_fills_up():
    handlers = Handlers()
    async with (
        running_listener(handlers.dispatcher, connection_unsent_bytes_max=32 * MIB) as server,
        open_raw_connection(server.address, receive_bytes=SMALL_BUFFER) as slow,
    ):
        await slow.request(RemotingCommand(QUICK, 1))
        (peer,) = server.channels
        peer.write(bytes(16 * MIB))
        await eventually(lambda: server.listener.budgets.unsent.total_bytes > 0)
        assert peer._transport.is_reading(), "there is enough for all"
        peer.gate._budgets.unsent.bytes_max = 16 * MIB  # as if others held the rest
        peer.write(bytes(byte_budgets.UNSENT_COUNTED_BYTES))
        await eventually(lambda: not peer._transport.is_reading())
        await slow.reader.readexactly(16 * MIB + byte_budgets.UNSENT_COUNTED_BYTES)
        await eventually(peer._transport.is_reading)
        assert (await slow.request(RemotingCommand(QUICK, 2))).opaque == 2
