"""A TCP proxy whose link can be cut: then nothing passes, and connections stay open without an answer, as behind a
firewall that drops packets."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class LinkProxy:
    """Forwards connections to a server on loopback: `async with LinkProxy(port) as link`."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> LinkProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """Let nothing pass, in either direction."""
        self._is_open.clear()

    def mend(self) -> None:
        """Let everything pass again, also what waited."""
        self._is_open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._is_open.wait()
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        for source, target in ((reader, server_writer), (server_reader, writer)):
            pump = asyncio.create_task(self._forward(source, target))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
