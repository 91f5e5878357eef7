"""An HA port over the log of a running broker, as RocketMQ's masters serve it: for tests of the follower."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sparrow.replication.rocketmq.ha_codec import encode_transfer
from sparrow.store.log import LogStore

CHUNK_BYTES = 32 << 10


class HaServer:
    """Serves the bytes of a store. It does what RocketMQ does: it checks nothing, and sends heartbeats for ever."""

    def __init__(self, store: LogStore, *, heartbeat_s: float = 0.05) -> None:
        self._store, self._heartbeat_s = store, heartbeat_s
        self.reports: list[int] = []
        """The last report of each read, in order."""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(self._read(reader, started))
        try:
            at = await started
            while not reading.done():
                data = self._store.raw(at, CHUNK_BYTES)
                writer.write(encode_transfer(at, data))
                await writer.drain()
                at += len(data)
                if not data:
                    await asyncio.sleep(self._heartbeat_s)
        except OSError:
            pass  # the follower has closed the connection, or the proxy
        finally:
            reading.cancel()
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, started: asyncio.Future[int]) -> None:
        try:
            while data := await reader.read(1 << 16):
                (offset,) = struct.unpack_from(">q", data, len(data) - len(data) % 8 - 8)
                self.reports.append(offset)
                if not started.done():
                    last_segment = self._store.written - self._store.written % self._store.settings.segment_bytes
                    started.set_result(offset or last_segment)
        except OSError:
            pass
        finally:
            if not started.done():
                started.set_exception(ConnectionResetError())


@asynccontextmanager
async def ha_server(store: LogStore) -> AsyncIterator[HaServer]:
    serving = HaServer(store)
    server = await asyncio.start_server(serving.serve, "127.0.0.1", 0)
    serving.port = server.sockets[0].getsockname()[1]
    try:
        yield serving
    finally:
        server.close()
