"""One connection with two real ends: requests, responses, deadlines, closing, and peers that do not read."""

import asyncio
import gc
import socket
import time

import pytest
from tests.support.platforms import open_channel
from tests.support.raw_connection import LOOPBACK, open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.model.errors import Busy, ConnectionLost, RequestTimeout
from sparrow.net import channel as channels
from sparrow.net import connect
from sparrow.net.address import Address
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import FRAME_BYTES_MAX, ONE_WAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode, response_to

ECHO, MUTE = 7001, 7002


class Echo:
    """Respond to ECHO at once with the request body; keep MUTE and all other requests for later."""

    def __init__(self):
        self.kept = []

    def __call__(self, command, channel):
        if command.code == ECHO:
            channel.write(encode(response_to(command, 0, None, command.body)))
        else:
            self.kept.append((command, channel))

    def answer_kept(self, at=0):
        command, channel = self.kept.pop(at)
        channel.write(encode(response_to(command, 0, None, command.body)))


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
async def server(echo):
    async with running_listener(echo) as running:
        yield running


@pytest.fixture
async def channel(server):
    async with open_channel(server.address) as channel:
        yield channel


# -- pipelining -------------------------------------------------------------------------------------------------------


async def test_a_thousand_requests_in_one_write_are_all_answered(server):
    async with open_raw_connection(server.address) as wire:
        wire.write(*(RemotingCommand(ECHO, opaque, body=b"%d" % opaque) for opaque in range(1000)))
        answers = await wire.read(1000)
    assert [(one.opaque, one.body) for one in answers] == [(opaque, b"%d" % opaque) for opaque in range(1000)]
    assert all(one.flag == RESPONSE_FLAG for one in answers)


async def test_responses_of_one_loop_iteration_are_sent_in_one_write(server):
    async with open_raw_connection(server.address) as wire:
        await wire.request(RemotingCommand(ECHO))
        (peer,) = server.channels
        written = []
        write = peer._transport.write
        peer._transport = _Spy(peer._transport, lambda data: (written.append(len(data)), write(data)))
        wire.write(*(RemotingCommand(ECHO, opaque) for opaque in range(100)))
        answers = await wire.read(100)
    # The hundred requests have about 8 KiB: they arrive in one read, or in two if the reader was fast.
    assert len(written) <= 2
    assert sum(written) == sum(len(encode(one)) for one in answers)


class _Spy:
    def __init__(self, real, write):
        self._real, self.write = real, write

    def __getattr__(self, name):
        return getattr(self._real, name)


async def test_requests_of_one_loop_iteration_are_sent_in_one_write(server, channel):
    await channel.request(ECHO)
    written = []
    write = channel._transport.write
    channel._transport = _Spy(channel._transport, lambda data: (written.append(len(data)), write(data)))
    await asyncio.gather(*(channel.request(ECHO, body=b"x") for _ in range(100)))
    assert len(written) == 1


async def test_responses_may_arrive_in_any_order(echo, channel):
    asked = [channel.request(MUTE, body=b"%d" % number) for number in range(10)]
    await eventually(lambda: len(echo.kept) == 10)
    while echo.kept:
        echo.answer_kept(at=-1)
    assert [bytes((await one).body) for one in asked] == [b"%d" % number for number in range(10)]


async def test_an_unexpected_response_is_ignored(echo, server, channel):
    asked = channel.request(MUTE)
    await eventually(lambda: echo.kept)
    command, peer = echo.kept[0]
    peer.write(encode(RemotingCommand(0, command.opaque + 1, RESPONSE_FLAG, body=b"stray")))
    echo.answer_kept()
    peer.write(encode(RemotingCommand(0, command.opaque, RESPONSE_FLAG, body=b"twice")))
    assert (await asked).body == b""
    assert (await channel.request(ECHO, body=b"still here")).body == b"still here"


async def test_a_large_body_round_trips(channel):
    body = bytes(range(256)) * 40_000
    assert (await channel.request(ECHO, body=body)).body == body


async def test_a_header_round_trips(echo, channel):
    channel.send_one_way(MUTE, headers.QueueRequest("T", 3))
    await eventually(lambda: echo.kept)
    command, _ = echo.kept[0]
    assert headers.read(headers.QueueRequest, command.ext) == headers.QueueRequest("T", 3)
    assert command.flag == ONE_WAY_FLAG


async def test_both_ends_may_send_requests_at_the_same_time(echo, server):
    mine = Echo()
    async with open_channel(server.address, mine) as channel:
        await channel.request(ECHO)
        (peer,) = server.channels
        back, forth = peer.request(ECHO, body=b"to the client"), channel.request(ECHO, body=b"to the server")
        assert ((await back).body, (await forth).body) == (b"to the client", b"to the server")


async def test_a_channel_without_a_handler_drops_requests_and_stays_open(server, channel):
    await channel.request(ECHO)
    (peer,) = server.channels
    with pytest.raises(RequestTimeout):
        await peer.request(ECHO, timeout_ms=20)
    assert (await channel.request(ECHO, body=b"x")).body == b"x"


async def test_both_ends_know_the_address_of_their_peer(server, channel):
    await channel.request(ECHO)
    (peer,) = server.channels
    assert channel.address == str(server.address)
    assert peer.address == str(Address(*channel._transport.get_extra_info("sockname")))
    assert peer.packed_host == b"\x7f\0\0\1" + int(peer.address.rpartition(":")[2]).to_bytes(4, "big")


# -- deadlines --------------------------------------------------------------------------------------------------------


async def test_a_request_fails_at_its_deadline_and_not_before(channel):
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    with pytest.raises(RequestTimeout) as late:
        await channel.request(RequestCode.GET_MAX_OFFSET, timeout_ms=50)
    assert 0.045 <= loop.time() - asked_at < 5
    assert (late.value.timeout_ms, late.value.what) == (50, "GET_MAX_OFFSET")
    assert channel.address in str(late.value)
    assert channel.is_open


async def test_each_request_has_its_own_deadline(channel):
    slow, quick = channel.request(MUTE, timeout_ms=60_000), channel.request(MUTE, timeout_ms=20)
    slower = channel.request(MUTE, timeout_ms=70_000)
    with pytest.raises(RequestTimeout):
        await quick
    assert not slow.done()
    assert not slower.done()
    assert len(channel._pending) == 2
    channel.close()
    for one in (slow, slower):
        with pytest.raises(ConnectionLost):
            await one


async def test_one_timer_serves_all_request_deadlines(channel, monkeypatch):
    loop, set_timers = asyncio.get_running_loop(), []
    real = loop.call_at

    class Counting:
        def __getattr__(self, name):
            return getattr(loop, name)

        def call_at(self, when, call, *args):
            set_timers.append(real(when, call, *args))
            return set_timers[-1]

    channel._loop = Counting()
    asked = [channel.request(ECHO, timeout_ms=60_000 + number) for number in range(1000)]
    await asyncio.gather(*asked)
    assert len(set_timers) == 1
    channel.close()
    assert set_timers[0].cancelled()


async def test_a_response_after_the_deadline_is_dropped(echo, channel):
    with pytest.raises(RequestTimeout):
        await channel.request(MUTE, body=b"late", timeout_ms=10)
    await eventually(lambda: echo.kept)
    echo.answer_kept()
    assert (await channel.request(ECHO, body=b"next")).body == b"next"
    assert not channel._pending


async def test_a_cancelled_request_does_not_affect_others(echo, channel):
    asked = channel.request(MUTE)
    await eventually(lambda: echo.kept)
    asked.cancel()
    echo.answer_kept()
    assert (await channel.request(ECHO, body=b"next")).body == b"next"
    assert not channel._pending


async def test_the_number_of_pending_requests_is_limited(echo, channel, monkeypatch):
    monkeypatch.setattr(channels, "PENDING_REQUESTS_MAX", 3)
    asked = [channel.request(MUTE) for _ in range(3)]
    with pytest.raises(Busy):
        await channel.request(MUTE)
    await eventually(lambda: len(echo.kept) == 3)
    echo.answer_kept()
    await asked[0]
    assert (await channel.request(ECHO, body=b"room again")).body == b"room again"
    channel.close()
    await asyncio.gather(*asked, return_exceptions=True)


# -- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_fails_every_pending_request_once(echo, server):
    ends = []
    channel = await connect(server.address, on_close=ends.append)
    asked = [channel.request(MUTE, timeout_ms=60_000) for _ in range(100)]
    await eventually(lambda: len(echo.kept) == 100)
    (peer,) = server.channels
    peer.abort()
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(result) for result in results} == {ConnectionLost}
    await asyncio.wait_for(channel.wait_closed(), 12)
    channel.close()
    channel.abort()
    assert ends == [channel]
    assert not channel.is_open
    assert not channel._pending


async def test_a_request_on_a_closed_channel_fails_at_once(channel):
    channel.close()
    with pytest.raises(ConnectionLost):
        await channel.request(ECHO)
    channel.send_one_way(ECHO)  # a one-way request has no result to fail


async def test_data_written_before_closing_still_arrives(echo, server):
    channel = await connect(server.address)
    channel.send_one_way(MUTE, body=b"last words")
    channel.close()
    await eventually(lambda: echo.kept)
    assert echo.kept[0][0].body == b"last words"


async def test_a_refused_connection_raises_connection_lost_with_the_address():
    async with running_listener(Echo()) as gone:
        address = gone.address
    with pytest.raises(ConnectionLost) as lost:
        await connect(address)
    assert str(address) in str(lost.value)


async def test_an_unknown_host_name_raises_connection_lost():
    with pytest.raises(ConnectionLost):
        await connect(Address("no-such-host.invalid", 1))


async def test_a_client_closes_the_connection_of_a_peer_that_breaks_the_protocol(caplog):
    async def speak_nonsense(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

    server = await asyncio.start_server(speak_nonsense, LOOPBACK, 0)
    async with server:
        channel = await connect(Address(*server.sockets[0].getsockname()))
        with pytest.raises(ConnectionLost):
            await channel.request(ECHO)
        await asyncio.wait_for(channel.wait_closed(), 12)
    assert "broke the protocol: " in caplog.text


# -- peers that do not read -------------------------------------------------------------------------------------------


async def test_the_server_stops_reading_from_a_peer_that_does_not_read(server):
    body, count = b"x" * 10_000, 2000  # 20 MB of responses; all buffers together hold less
    async with open_raw_connection(server.address, receive_bytes=1 << 14) as wire:
        for opaque in range(count):
            wire.write(RemotingCommand(ECHO, opaque, body=body))
        await eventually(lambda: server.channels)
        (peer,) = server.channels
        await eventually(lambda: peer.is_blocked)
        # Buffered data is limited by the high-water mark and the requests of one read.
        await _until_still(peer)
        assert not peer._transport.is_reading()
        assert peer._transport.get_write_buffer_size() < channels.WRITE_HIGH_WATER_BYTES + (2 << 20)
        assert not peer._out
        # The peer reads at last; no response was lost.
        answers = await wire.read(count)
        assert [one.opaque for one in answers] == list(range(count))
        assert all(one.body == body for one in answers)
        await eventually(lambda: peer._transport.is_reading())
        assert not peer.is_blocked


async def _until_still(peer):
    """Wait until the loop has no more work for this peer."""
    before = -1
    while before != (before := peer._transport.get_write_buffer_size()):
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_peer_that_does_not_read_does_not_block_others(server):
    async with (
        open_raw_connection(server.address, receive_bytes=1 << 14) as wire,
        open_channel(server.address) as other,
    ):
        for opaque in range(2000):
            wire.write(RemotingCommand(ECHO, opaque, body=b"x" * 10_000))
        await eventually(lambda: any(peer.is_blocked for peer in server.channels))
        assert (await other.request(ECHO, body=b"me")).body == b"me"


async def test_writable_waits_while_the_peer_does_not_read(echo, server):
    async with open_raw_connection(server.address, receive_bytes=1 << 14) as wire:
        wire.write(RemotingCommand(MUTE))
        await eventually(lambda: echo.kept)
        peer = echo.kept[0][1]
        await peer.writable()  # returns at once: the buffer is empty
        for opaque in range(800):
            peer.write(encode(RemotingCommand(0, opaque, RESPONSE_FLAG, body=b"x" * 10_000)))
        await eventually(lambda: peer.is_blocked)
        waiting = asyncio.ensure_future(peer.writable())
        await _until_still(peer)
        assert not waiting.done()
        await wire.read(800)
        await asyncio.wait_for(waiting, 12)


async def test_closing_ends_a_waiting_writable_call(echo, server):
    async with open_raw_connection(server.address, receive_bytes=1 << 14) as wire:
        wire.write(RemotingCommand(MUTE))
        await eventually(lambda: echo.kept)
        peer = echo.kept[0][1]
        peer.write(bytes(encode(RemotingCommand(0, 1, RESPONSE_FLAG, body=bytes(FRAME_BYTES_MAX - 1000)))))
        await eventually(lambda: peer.is_blocked)
        waiting = asyncio.ensure_future(peer.writable())
        peer.abort()
        await asyncio.wait_for(waiting, 12)


async def test_closed_channels_need_no_garbage_collector(echo, server):
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            channel = await connect(server.address)
            await channel.request(ECHO)
            channel.close()
            await channel.wait_closed()
        await eventually(lambda: not server.channels)
        await asyncio.sleep(0)
        alive = [one for one in gc.get_objects() if isinstance(one, channels.Channel) and one is not channel]
        assert not alive
    finally:
        gc.enable()


# -- turns ------------------------------------------------------------------------------------------------------------


async def test_a_peer_with_many_slow_requests_does_not_hold_up_others():
    requests, served = 60, []

    def serve(command, channel):
        until = time.monotonic() + 0.005
        while channel is channels_by_arrival[0] and time.monotonic() < until:
            pass
        served.append(channel)
        channel.write(encode(response_to(command, 0, None, command.body)))

    async with (
        running_listener(serve) as server,
        open_raw_connection(server.address) as greedy,
    ):
        await eventually(lambda: server.channels)
        channels_by_arrival = list(server.channels)
        async with open_raw_connection(server.address) as modest:
            greedy.write(*(RemotingCommand(ECHO, opaque) for opaque in range(requests)))
            await eventually(lambda: served)
            await modest.request(RemotingCommand(ECHO))
            assert served.count(channels_by_arrival[0]) < requests
            assert [one.opaque for one in await greedy.read(requests)] == list(range(requests))


async def test_others_have_a_turn_while_a_peer_sends_more_than_one_read_takes():
    requests, served = 800, []

    def serve(command, channel):
        until = time.monotonic() + 0.000_1
        while time.monotonic() < until:
            pass
        served.append(command.opaque)

    async with running_listener(serve) as server:
        frames = b"".join(encode(RemotingCommand(ECHO, opaque, body=bytes(20_000))) for opaque in range(requests))
        with socket.create_connection((server.address.host, server.address.port)) as greedy:
            sending = asyncio.create_task(asyncio.to_thread(greedy.sendall, frames))
            most, before = 0, 0
            while len(served) < requests:
                await asyncio.sleep(0)  # an iteration of the event loop
                most, before = max(most, len(served) - before), len(served)
            await sending
    assert served == list(range(requests))
    # 20 requests take 2 ms: once postponed ones, and once new ones.
    assert most <= 60, "served in one iteration of the event loop"
