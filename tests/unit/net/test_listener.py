"""The listener: limits of frames, connections and idle time, and how it stops."""

import asyncio
import socket

import pytest
from tests.support.platforms import open_channel
from tests.support.raw_connection import LOOPBACK, open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.model.errors import ConnectionLost, SettingsError
from sparrow.net import Address, Listener, connect
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
    assert "peer broke the protocol" in caplog.text


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
        await asyncio.wait_for(third.wait_closed(), 5)
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
        await asyncio.wait_for(channel.wait_closed(), 5)


async def test_an_idle_connection_is_closed_and_an_active_one_is_not():
    async with running_listener(echo, idle_timeout_ms=100) as server:
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
        running_listener(echo, idle_timeout_ms=100) as server,
        open_raw_connection(server.address, receive_bytes=1 << 14) as wire,
    ):
        for opaque in range(2000):
            wire.write(RemotingCommand(ECHO, opaque, body=b"x" * 10_000))
        await eventually(lambda: server.channels)
        (peer,) = server.channels
        await eventually(lambda: peer.is_blocked)
        await eventually(lambda: not peer.is_open)
        await asyncio.wait_for(peer.wait_closed(), 0.5)


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
        await asyncio.wait_for(server.listener.stop(), 5)
        await asyncio.wait_for(peer.wait_closed(), 5)
