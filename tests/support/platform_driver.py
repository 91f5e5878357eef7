"""A running platform for tests of consumers: create topics, send messages, wait for commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.platforms import encode_properties, read_send_response, running_platform, send_batch, try_send

from sparrow.cli.server.platform import Platform
from sparrow.client.aio.admin.admin import Admin
from sparrow.model.queue import Queue
from sparrow.net import Channel, connect
from sparrow.wire.bodies import QueueRef

BATCH = 500
POLL_INTERVAL_S = 0.001
BROKER = "sparrow"


class PlatformDriver:
    """A running platform, and a connection for sending."""

    def __init__(self, platform: Platform, channel: Channel) -> None:
        self.platform, self.channel = platform, channel
        self.name_servers = platform.name_servers

    async def create_topic(self, name: str, queues: int = 1) -> str:
        async with Admin(self.name_servers) as admin:
            await admin.create_topic(name, queues)
        return name

    async def send(self, topic: str, bodies: Sequence[str], queue_id: int = 0, *, tags: str = "") -> None:
        """Send messages to one queue in this order."""
        said = encode_properties(TAGS=tags) if tags else ""
        if len(bodies) == 1:
            read_send_response(await try_send(self.channel, topic, bodies[0].encode(), queue_id, said))
        else:
            for start in range(0, len(bodies), BATCH):
                some = [(body.encode(), said.encode()) for body in bodies[start : start + BATCH]]
                await send_batch(self.channel, topic, some, queue_id)

    async def send_to_each_queue(self, topic: str, queues: int, each: int, *, prefix: str = "") -> set[str]:
        """Send this many messages to each queue; no two have the same body."""
        every: set[str] = set()
        for queue_id in range(queues):
            bodies = [f"{prefix}{queue_id}-{number}" for number in range(each)]
            await self.send(topic, bodies, queue_id)
            every.update(bodies)
        return every

    async def committed_offset(self, group: str, topic: str, queue_id: int = 0) -> int | None:
        return await self.platform.broker.broker.store.offsets.committed(group, Queue(topic, queue_id))

    async def wait_for_commit(
        self, offset: int, group: str, topic: str, queue_id: int = 0, *, within_s: float = 10.0
    ) -> None:
        """Wait until the group has committed that offset."""
        async with asyncio.timeout(within_s):
            while await self.committed_offset(group, topic, queue_id) != offset:
                await asyncio.sleep(POLL_INTERVAL_S)


@asynccontextmanager
async def running_platform_driver(folder: Path, **settings: object) -> AsyncIterator[PlatformDriver]:
    async with running_platform(folder, **settings) as platform:  # type: ignore[arg-type]
        channel = await connect(platform.address)
        try:
            yield PlatformDriver(platform, channel)
        finally:
            channel.close()


def queue_ref(topic: str, queue_id: int = 0, broker: str = BROKER) -> QueueRef:
    return QueueRef(topic, broker, queue_id)
