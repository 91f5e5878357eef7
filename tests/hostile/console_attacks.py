"""Attacks on the console, by HTTP that is slow, endless or wrong."""

from __future__ import annotations

import asyncio

from tests.hostile.attack_connection import PATIENCE_S, attack_connection, attack_connections
from tests.hostile.tally import Tally
from tests.hostile.target import Target

_PIECE = bytes(1 << 20)


async def slow_http_requests(target: Target, tally: Tally, count: int) -> None:
    """Begin requests on many connections, and never end them."""
    async with attack_connections(target.console, tally, count) as connections:
        for connection in connections:
            await connection.write(b"GET /api/v1/clusters HTTP/1.1\r\nHost: console\r\nX-Slow: ")
        await target.hold()


async def endless_http_bodies(target: Target, tally: Tally, count: int) -> None:
    """Send bodies of many megabytes to addresses that expect small ones."""
    for _ in range(count):
        async with attack_connection(target.console, tally) as connection:
            await connection.write(
                b"POST /api/v1/clusters/default/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n"
            )
            for _ in range(16):
                await connection.write(_PIECE)
    await target.hold()


async def http_flood(target: Target, tally: Tally, count: int) -> None:
    """Ask for pages and for addresses that do not exist, on a few connections."""

    async def ask(path: str) -> None:
        reader, writer = await asyncio.open_connection(*target.console)
        tally.connections += 1
        try:
            for _ in range(count):
                tally.requests += 1
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.console.port}\r\n\r\n".encode())
                status = await asyncio.wait_for(_read_status(reader), PATIENCE_S)
                if status == 200:
                    tally.answered += 1
                else:
                    tally.refused += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            tally.closed += 1
        finally:
            writer.transport.abort()

    await asyncio.gather(*map(ask, ("/api/v1/clusters", "/api/v1/none", "/?" + "x" * 4_000, "/%00%ff/../..")))
    await target.hold()


async def _read_status(reader: asyncio.StreamReader) -> int:
    """Read a response with its body, and return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    if "transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        lengths = [line.partition(":")[2] for line in head.splitlines() if line.startswith("content-length:")]
        await reader.readexactly(int(lengths[0]) if lengths else 0)
    return int(head.split()[1])
