"""Below the level of a channel: a listener around any function, and a peer that sends exactly the given bytes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sparrow.net import Address, Listener
from sparrow.net.channel import Channel, RequestReceiver
from sparrow.settings import NetSettings
from sparrow.wire.connection import Connection
from sparrow.wire.frame import RemotingCommand, encode

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 10.0
_READ_BYTES = 1 << 20


class RunningListener:
    """A running listener and its address."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.address = listener, Address(LOOPBACK, listener.port)

    @property
    def channels(self) -> set[Channel]:
        return self.listener.channels


@asynccontextmanager
async def running_listener(
    serve: RequestReceiver, *, counts_tokens: bool = False, **settings: object
) -> AsyncIterator[RunningListener]:
    """Run a listener; `settings` are those of `NetSettings`."""
    listener = Listener(serve, NetSettings.model_validate(settings), counts_tokens=counts_tokens)
    listener.bind(LOOPBACK, 0)
    await listener.start()
    try:
        yield RunningListener(listener)
    finally:
        await listener.stop()


class RawConnection:
    """A raw peer: it writes and reads only when the test calls it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.reads: list[int] = []
        """The number of bytes of each read."""
        self._stream = Connection()
        self._come: list[RemotingCommand] = []

    def write(self, *said: RemotingCommand | bytes) -> None:
        """Send all bytes in one write."""
        self.writer.write(b"".join(part if isinstance(part, bytes) else encode(part) for part in said))

    async def read(self, count: int = 1) -> list[RemotingCommand]:
        """Return this many next frames."""
        while len(self._come) < count:
            data = await asyncio.wait_for(self.reader.read(_READ_BYTES), TIMEOUT_S)
            assert data, f"the peer closed the connection after {len(self._come)} of {count} frames"
            self.reads.append(len(data))
            self._come += self._stream.feed(data)
        found, self._come = self._come[:count], self._come[count:]
        return found

    async def request(self, command: RemotingCommand) -> RemotingCommand:
        self.write(command)
        return (await self.read())[0]

    async def is_closed_by_peer(self) -> bool:
        """Wait for the end of the stream; return False if data came first."""
        try:
            return not await asyncio.wait_for(self.reader.read(_READ_BYTES), TIMEOUT_S)
        except ConnectionError:
            return True


@asynccontextmanager
async def open_raw_connection(address: Address, *, receive_bytes: int | None = None) -> AsyncIterator[RawConnection]:
    """Connect a raw peer; `receive_bytes` makes its socket buffer small, so that it fills soon."""
    if receive_bytes is not None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, tuple(address))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    else:
        reader, writer = await asyncio.open_connection(*address, limit=1 << 16)
    try:
        yield RawConnection(reader, writer)
    finally:
        # Unread data would keep the socket open, and its server waiting.
        if writer.transport.get_write_buffer_size():
            writer.transport.abort()
        writer.close()
