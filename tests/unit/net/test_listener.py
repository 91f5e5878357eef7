"""The listener: limits of frames, connections and idle time, and how it stops."""

import asyncio
import socket

import pytest
from tests.support.platforms import open_channel
from tests.support.raw_connection import LOOPBACK, open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.model.errors import ConnectionLost, SettingsError
from sparrow.net import Address, Listener, connect
from sparrow.net.channel import CLOSE_LINGER_S
from sparrow.settings import NetSettings
from sparrow.wire.frame import RemotingCommand, encode, response_to

ECHO = 7001


def echo(command, channel):
    channel.write(encode(response_to(command, 0, None, command.body)))


# -- frames -----------------------------------------------------------------------------------------------------------


async def test_a_frame_that_announces_too_large_a_size_closes_only_its_connection(caplog):
    async with running_listener(echo, frame_bytes_max=1024) as server, open_channel(server.address) as other:
        async with open_raw_connection(server.address) as wire:
            assert (await wire.request(RemotingCommand(ECHO, 1))).opaque == 1
            wire.write((1021).to_bytes(4, "big") + bytes(4))  # 1021 + 4 is one byte too many
            assert await wire.is_closed_by_peer()
        assert (await other.request(ECHO, body=b"me")).body == b"me"
        await eventually(lambda: len(server.channels) == 1)
    assert "broke the protocol: " in caplog.text


async def test_a_frame_of_the_maximum_size_is_accepted():
    async with running_listener(echo, frame_bytes_max=1024) as server, open_raw_connection(server.address) as wire:
        empty = encode(RemotingCommand(ECHO, 1))
        exact = encode(RemotingCommand(ECHO, 1, body=b"x" * (1024 - len(empty))))
        assert len(exact) == 1024
        wire.write(exact)
        assert len((await wire.read())[0].body) == 1024 - len(empty)


async def test_the_size_is_refused_before_the_frame_arrives():
    """The listener neither waits for 2 GiB nor allocates memory for them."""
    async with running_listener(echo) as server, open_raw_connection(server.address) as wire:
        wire.write(b"\x7f\xff\xff\xff\0\0\0\x10")
        assert await wire.is_closed_by_peer()


async def test_requests_before_invalid_data_get_responses():
    async with running_listener(echo) as server, open_raw_connection(server.address) as wire:
        wire.write(RemotingCommand(ECHO, 1), RemotingCommand(ECHO, 2), b"\xff" * 8)
        assert [one.opaque for one in await wire.read(2)] == [1, 2]
        assert await wire.is_closed_by_peer()


# -- connection limits ------------------------------------------------------------------------------------------------


async def test_connections_above_the_limit_are_closed():
    opened, closed = [], []
    listener = Listener(echo, NetSettings(connections_max=2), on_open=opened.append, on_close=closed.append)
    address = Address(LOOPBACK, listener.bind(LOOPBACK, 0))
    await listener.start()
    try:
        first, second = [await connect(address) for _ in range(2)]
        assert (await first.request(ECHO)).code == (await second.request(ECHO)).code == 0
        third = await connect(address)
        await asyncio.wait_for(third.wait_closed(), 12)
        assert len(opened) == 2
        assert not closed
        # A closed connection makes room for the next one.
        first.close()
        await eventually(lambda: len(listener.channels) == 1)
        assert len(closed) == 1
        fourth = await connect(address)
        assert (await fourth.request(ECHO)).code == 0
    finally:
        await listener.stop()
    assert len(opened) == len(closed) == 3
    for channel in (second, fourth):
        await asyncio.wait_for(channel.wait_closed(), 12)


async def test_an_idle_connection_is_closed_and_an_active_one_is_not():
    # A stall of the machine must be shorter than this, or the active connection is idle, too.
    async with running_listener(echo, idle_timeout_ms=500) as server:
        silent, talking = await connect(server.address), await connect(server.address)
        while silent.is_open:
            await talking.request(ECHO)
        assert talking.is_open
        assert len(server.channels) == 1
        talking.close()


async def test_a_connection_that_never_sends_is_closed():
    async with running_listener(echo, idle_timeout_ms=50) as server, open_raw_connection(server.address) as wire:
        assert await wire.is_closed_by_peer()


async def test_an_idle_peer_that_does_not_read_is_closed_too():
    async with (
        running_listener(echo, idle_timeout_ms=500) as server,
        open_raw_connection(server.address, receive_bytes=1 << 14) as wire,
    ):
        for opaque in range(2000):
            wire.write(RemotingCommand(ECHO, opaque, body=b"x" * 10_000))
        await eventually(lambda: server.channels)
        (peer,) = server.channels
        await eventually(lambda: peer.is_blocked or not peer.is_open)
        # On a machine that stalls, the peer may be idle before its buffer is full: then it has time to read the rest.
        patience_s = CLOSE_LINGER_S - 1 if peer.is_blocked else CLOSE_LINGER_S + 5
        await eventually(lambda: not peer.is_open)
        await asyncio.wait_for(peer.wait_closed(), patience_s)


# -- ports ------------------------------------------------------------------------------------------------------------


async def test_a_port_in_use_is_a_settings_error_that_names_it():
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError) as refused:
            Listener(echo).bind(LOOPBACK, port)
    assert f"{LOOPBACK}:{port}" in str(refused.value)


async def test_a_client_that_connects_between_bind_and_start_waits():
    listener = Listener(echo)
    address = Address(LOOPBACK, listener.bind(LOOPBACK, 0))
    early = await connect(address)
    asked = early.request(ECHO, body=b"early")
    await listener.start()
    try:
        assert (await asked).body == b"early"
    finally:
        await listener.stop()


async def test_a_listener_that_never_started_releases_its_port():
    listener = Listener(echo)
    port = listener.bind(LOOPBACK, 0)
    listener.stop_accepting()
    again = Listener(echo)
    assert again.bind(LOOPBACK, port) == port
    again.stop_accepting()


# -- stopping ---------------------------------------------------------------------------------------------------------


async def test_stop_accepting_refuses_new_connections_and_keeps_the_others():
    async with running_listener(echo) as server, open_channel(server.address) as channel:
        await channel.request(ECHO)
        server.listener.stop_accepting()
        with pytest.raises(ConnectionLost):
            await connect(server.address)
        assert (await channel.request(ECHO, body=b"still")).body == b"still"


async def test_stop_sends_written_data_before_it_closes_connections():
    async with running_listener(echo) as server, open_raw_connection(server.address) as wire:
        await wire.request(RemotingCommand(ECHO))
        (peer,) = server.channels
        peer.write(encode(RemotingCommand(ECHO, 9, body=b"y" * 1_000_000)))
        stopping = asyncio.ensure_future(server.listener.stop())
        assert (await wire.read())[0].body == b"y" * 1_000_000
        assert await wire.is_closed_by_peer()
        await stopping
        assert not server.channels


async def test_stop_aborts_connections_of_peers_that_do_not_read():
    async with running_listener(echo) as server, open_raw_connection(server.address, receive_bytes=1 << 14) as wire:
        for opaque in range(1000):
            wire.write(RemotingCommand(ECHO, opaque, body=b"x" * 10_000))
        await eventually(lambda: any(peer.is_blocked for peer in server.channels))
        (peer,) = server.channels
        await asyncio.wait_for(server.listener.stop(), 12)
        await asyncio.wait_for(peer.wait_closed(), 12)


# -- incomplete frames ------------------------------------------------------------------------------------------------


def start_of_frame(size: int) -> bytes:
    """Return the first bytes of a frame of that size, with a short header."""
    return (size - 4).to_bytes(4, "big") + (20).to_bytes(4, "big")


async def test_the_connection_with_the_largest_incomplete_frame_is_closed_when_the_budget_is_used_up(caplog):
    half = 6 << 20
    async with running_listener(echo, incomplete_bytes_max=16 << 20) as server:
        async with (
            open_raw_connection(server.address) as small,
            open_raw_connection(server.address) as first,
            open_raw_connection(server.address) as second,
            open_raw_connection(server.address) as third,
        ):
            frame = encode(RemotingCommand(ECHO, 1, body=b"me"))
            small.write(frame[:5])
            first.write(start_of_frame(12 << 20) + bytes(half + 1000))
            second.write(start_of_frame(12 << 20) + bytes(half - 1000))
            held = server.listener.budgets.incomplete_frames
            await eventually(lambda: held.total_bytes == 2 * half + 16 + 5)
            third.write(start_of_frame(12 << 20) + bytes(half - 2000))
            assert await first.is_closed_by_peer()
            assert held.refused == 1
            small.write(frame[5:])
            assert (await small.read())[0].body == b"me"
        await eventually(lambda: held.total_bytes == 0)
    assert "bytes of incomplete frames" in caplog.text


async def test_a_frame_must_be_whole_in_time_even_if_bytes_keep_coming(caplog):
    async with running_listener(echo, frame_timeout_ms=300) as server:
        async with open_raw_connection(server.address) as slow, open_raw_connection(server.address) as quiet:
            slow.write(start_of_frame(1 << 20))
            closed = asyncio.create_task(slow.is_closed_by_peer())
            while not closed.done():
                slow.write(b"x")
                await asyncio.wait([closed], timeout=0.02)
            assert await closed
            assert (await quiet.request(RemotingCommand(ECHO, 1))).opaque == 1, "a connection without a frame stays"
        assert server.listener.budgets.incomplete_frames.refused == 1
    assert "not whole after" in caplog.text
