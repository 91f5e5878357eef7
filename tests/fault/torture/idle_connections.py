"""Clients that only keep a connection to a broker alive, as most clients of a large platform do most of the time."""

from __future__ import annotations

import asyncio
import random

from tests.fault.torture.servers import PROXY_HOST, Platform

from sparrow.model.errors import SparrowError
from sparrow.net import Address, Channel, connect
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import HeartbeatData, ProducerData
from sparrow.wire.codes import RequestCode

HEARTBEAT_S = 20.0
_REQUEST_MS = 10_000


class IdleConnections:
    """Connections with heartbeats, each of a client of its own, that are opened again when they are lost."""

    def __init__(self, platform: Platform, rng: random.Random) -> None:
        self._platform, self._rng = platform, rng
        self._tasks: list[asyncio.Task[None]] = []
        self.open = 0
        self.lost = 0
        """How many connections were lost so far."""

    def start(self, count: int) -> None:
        self._tasks = [asyncio.create_task(self._keep(number)) for number in range(count)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, number: int) -> None:
        brokers = self._platform.brokers
        port = brokers[number % len(brokers)].address.port
        beat = bodies.write(HeartbeatData(f"idle-{number}", producer_data_set=[ProducerData("idle")]))
        while True:
            await asyncio.sleep(self._rng.uniform(0, 1))  # thousands of clients do not come back in one moment
            try:
                channel = await connect(Address(PROXY_HOST, port), timeout_ms=_REQUEST_MS)
            except SparrowError:
                continue
            self.open += 1
            try:
                while channel.is_open:
                    await channel.request(RequestCode.HEART_BEAT, headers.Heartbeat(), beat, timeout_ms=_REQUEST_MS)
                    await self._wait_closed(channel)
            except SparrowError:
                pass
            finally:
                channel.abort()
                self.open -= 1
            self.lost += 1

    async def _wait_closed(self, channel: Channel) -> None:
        """Wait until the connection is lost, or the next heartbeat is due."""
        try:
            async with asyncio.timeout(HEARTBEAT_S * self._rng.uniform(0.8, 1.2)):
                await channel.wait_closed()
        except TimeoutError:
            pass
