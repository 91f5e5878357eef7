"""The attackers' side of a connection: any bytes, and a count of what comes back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from tests.hostile.tally import Tally

from sparrow.net import Address
from sparrow.wire.connection import Connection
from sparrow.wire.frame import RemotingCommand, encode

PATIENCE_S = 120.0
"""How long a server may take to answer or to close: far longer than on an idle machine."""
ATTACKERS_HOST = "127.0.0.2"
"""Not the honest client's: shares of budgets are by address."""
_READ_BYTES = 1 << 18
_PIPELINED = 256
"""Requests that are written before their responses are read."""


class AttackConnection:
    """One connection of an attacker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tally: Tally) -> None:
        self._reader, self._writer, self._tally = reader, writer, tally
        self._stream = Connection()
        self._awaited = 0
        self.is_closed = False

    async def write(self, data: bytes) -> None:
        """Write bytes that are no complete request; a connection that the server has closed ignores them."""
        try:
            self._writer.write(data)
            await asyncio.wait_for(self._writer.drain(), PATIENCE_S)
        except ConnectionError:
            self._end()

    def post(self, *requests: RemotingCommand | bytes) -> None:
        """Write requests without reading or waiting."""
        self._tally.requests += len(requests)
        self._awaited += len(requests)
        self._writer.write(b"".join(part if isinstance(part, bytes) else encode(part) for part in requests))

    async def send(self, requests: Iterable[RemotingCommand | bytes]) -> None:
        """Send requests, many at a time, and read all responses."""
        waiting: list[RemotingCommand | bytes] = []
        for request in requests:
            waiting.append(request)
            if len(waiting) == _PIPELINED:
                await self._send(waiting)
                waiting = []
        await self._send(waiting)

    async def _send(self, requests: list[RemotingCommand | bytes]) -> None:
        if requests and not self.is_closed:
            self.post(*requests)
            await self.read_responses()

    async def read_responses(self) -> None:
        """Read until every request is answered or the server closes the connection."""
        while self._awaited and not self.is_closed:
            try:
                data = await asyncio.wait_for(self._reader.read(_READ_BYTES), PATIENCE_S)
            except ConnectionError:
                data = b""
            if not data:
                self._end()
                return
            for command in self._stream.feed(data):
                if command.is_response:
                    self._awaited -= 1
                    if command.code:
                        self._tally.refused += 1
                    else:
                        self._tally.answered += 1

    async def wait_closed(self) -> None:
        """Wait until the server closes the connection, whatever it sends before."""
        try:
            while await asyncio.wait_for(self._reader.read(_READ_BYTES), PATIENCE_S):
                pass
        except ConnectionError:
            pass
        self._end()

    def _end(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._tally.closed += self._awaited
            self._awaited = 0

    def hang_up(self) -> None:
        """Close the connection at once; what is unsent or unread is lost."""
        if not self.is_closed:
            self.is_closed = True
            self._tally.abandoned += self._awaited
        self._writer.transport.abort()


@asynccontextmanager
async def attack_connection(
    address: Address, tally: Tally, *, receive_bytes: int | None = None
) -> AsyncIterator[AttackConnection]:
    """Connect; `receive_bytes` makes the socket's buffer small, so that it fills soon."""
    sock = socket.socket()
    try:
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        try:
            sock.bind((ATTACKERS_HOST, 0))
        except OSError:
            pass  # only Linux has it without configuration; elsewhere the attackers share the honest client's address
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, tuple(address)), PATIENCE_S)
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    except BaseException:
        sock.close()
        raise
    tally.connections += 1
    connection = AttackConnection(reader, writer, tally)
    try:
        yield connection
    finally:
        connection.hang_up()


@asynccontextmanager
async def attack_connections(
    address: Address, tally: Tally, count: int, *, receive_bytes: int | None = None
) -> AsyncIterator[list[AttackConnection]]:
    """Hold many connections at once."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(attack_connection(address, tally, receive_bytes=receive_bytes))
            for _ in range(count)
        ]
