"""A TCP proxy between all clients and a broker: it cuts, tears, delays and holds connections, and loses answers."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from sparrow.net import Address

_CHUNK_BYTES = 1 << 16


class _Link:
    """A connection of a client, and its connection to the broker."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self._writers = (client, broker)

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class FaultProxy:
    """Forwards connections from an address that clients know to the address of a broker."""

    def __init__(self, listens_at: Address, broker: Address, rng: random.Random) -> None:
        self._listens_at, self._broker, self._rng = listens_at, broker, rng
        self._links: set[_Link] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self.delay_s = 0.0
        """How long every chunk waits, in both directions."""
        self.loses_answers = False
        """Whether what brokers send is thrown away: they have executed requests, and the clients do not know."""
        self.tears = False
        """Whether every connection ends after a part of its next chunk: inside a frame."""

    @property
    def connections(self) -> int:
        return len(self._links)

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(
            self._accept, self._listens_at.host, self._listens_at.port, backlog=4_096
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._is_open.set()
        self.cut(1.0)
        while self._links:
            await asyncio.sleep(0.01)

    def cut(self, share: float) -> int:
        """Abort some of the connections; return their number."""
        victims = [link for link in self._links if self._rng.random() < share]
        for link in victims:
            link.abort()
        return len(victims)

    def hold(self) -> None:
        """Let nothing pass, in either direction."""
        self._is_open.clear()

    def release(self) -> None:
        """Let everything pass again, also what waited."""
        self._is_open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection(self._broker.host, self._broker.port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, broker_writer)
        self._links.add(link)
        try:
            await asyncio.gather(
                self._forward(reader, broker_writer, link),
                self._forward(broker_reader, writer, link, are_answers=True),
            )
        finally:
            link.abort()
            self._links.discard(link)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link, *, are_answers: bool = False
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._is_open.wait()
                if are_answers and self.loses_answers:
                    continue
                if self.tears and len(data) > 1:
                    writer.write(data[: self._rng.randrange(1, len(data))])
                    await writer.drain()
                    break
                writer.write(data)
                await writer.drain()
        # The part that was written still goes out: a close flushes, an abort of the other side follows.
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        link.abort()
