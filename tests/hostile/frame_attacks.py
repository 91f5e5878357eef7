"""Attacks below the level of requests: half frames, garbage, slow peers, many connections."""

from __future__ import annotations

import asyncio
import random
import resource

from tests.hostile.attack_connection import attack_connection, attack_connections
from tests.hostile.tally import Tally
from tests.hostile.target import Target
from tests.support.platforms import pull_header, send_header

from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand, encode

MIB = 1 << 20
UNKNOWN = RemotingCommand(7777)
"""A request that any server refuses, without any work."""
_DESCRIPTORS_KEPT = 1_000
"""Descriptors of this process that are not for connections."""


async def quiet(target: Target, tally: Tally, count: int) -> None:
    """Attack nothing, for comparison."""
    await target.hold()


async def half_frames(target: Target, tally: Tally, count: int) -> None:
    """Announce frames of 15 MiB, send half of each, and wait."""
    piece = (15 * MIB).to_bytes(4, "big") + b"\0\0\0\x40" + bytes(7 * MIB)
    async with attack_connections(target.broker, tally, count) as connections:
        for connection in connections:
            await connection.write(piece)
        await target.hold()


async def slow_writers(target: Target, tally: Tally, count: int) -> None:
    """Send requests byte by byte on many connections at once."""
    frame = encode(UNKNOWN)
    async with attack_connections(target.broker, tally, count) as connections:
        for at in range(len(frame) - 1):
            for connection in connections:
                await connection.write(frame[at : at + 1])
        await target.hold()
        for connection in connections:
            connection.post(frame[-1:])
            await connection.read_responses()


async def slow_readers(target: Target, tally: Tally, count: int) -> None:
    """Ask for megabytes again and again, and read nothing."""
    async with attack_connection(target.broker, tally) as filler:
        send = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2, ext=headers.write(send_header("hostile-large")), body=bytes(2 * MIB)
        )
        await filler.send([send] * 4)
    pull = RemotingCommand(
        RequestCode.PULL_MESSAGE, ext=headers.write(pull_header("hostile-large", count=32, bytes_max=8 * MIB))
    )
    async with attack_connections(target.broker, tally, count, receive_bytes=4096) as connections:
        for connection in connections:
            connection.post(*[pull] * 50)
        await target.hold()


async def garbage(target: Target, tally: Tally, count: int) -> None:
    """Send random bytes to each server."""
    chance = random.Random(20)
    for _ in range(count):
        for address in (target.broker, target.name_server, target.console):
            async with attack_connection(address, tally) as connection:
                await connection.write(chance.randbytes(chance.randrange(1, 5_000)))
    await target.hold()


async def giant_headers(target: Target, tally: Tally, count: int) -> None:
    """Send headers of a million fields, and of as many fields as the limit permits."""
    allowed = {f"f{number}": "" for number in range(8_000)}
    for _ in range(count):
        async with attack_connection(target.broker, tally) as connection:
            await connection.send([RemotingCommand(RequestCode.HEART_BEAT, ext=allowed)] * 8)
        async with attack_connection(target.broker, tally) as connection:
            fields = b",".join(b'"f%d":"x"' % number for number in range(1_000_000))
            header = b'{"code":310,"opaque":1,"extFields":{%b}}' % fields
            prefix = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
            await connection.write(prefix + header)
            await connection.wait_closed()
    await target.hold()


async def idle_connections(target: Target, tally: Tally, count: int) -> None:
    """Open as many connections as possible, each with one request."""
    available = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _DESCRIPTORS_KEPT
    async with attack_connections(target.broker, tally, min(count, available)) as connections:
        for connection in connections:
            await connection.send([UNKNOWN])
        tally.connections_refused += sum(connection.is_closed for connection in connections)
        await target.hold()


async def connection_churn(target: Target, tally: Tally, count: int) -> None:
    """Open connections and hang up in the middle of a frame, many at a time."""

    async def open_and_hang_up() -> None:
        for address in (target.broker, target.name_server, target.console):
            async with attack_connection(address, tally) as connection:
                await connection.write(encode(UNKNOWN)[:20])

    for _ in range(count // 20):
        await asyncio.gather(*(open_and_hang_up() for _ in range(20)))
    await target.hold()
