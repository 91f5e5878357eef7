"""NATS JetStream transport in CAP's layout: a subject per event name, a durable consumer per name and group.

1. Streams, durable consumers and delivery groups have CAP's names: its services and ours share a group.
2. A name is refused until a group has subscribed to it: the attempt fails, and no event is lost.
3. The server drops an envelope whose id it has seen within its `duplicate_window`.
4. Consumers are push consumers, because CAP's are. So `prefetch` is no limit here; the server's limit of unacknowledged
   messages is. A message that waits here longer than the server's ack timeout is left to its next delivery.

NATS headers do not distinguish null from blank: both arrive as null. Whitespace around a value is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from nats import errors as fails
from nats.js import api
from nats.js import errors as refusals

from sparrow.bus.transports.nats import subjects
from sparrow.bus.transports.nats.connection import NatsConnection
from sparrow.bus.transports.nats.consumer import NatsStreamConsumer
from sparrow.bus.transports.nats.jetstream_admin import JetStreamAdmin
from sparrow.bus.transports.spi import Envelope, HeaderBuilder

log = logging.getLogger(__name__)


class NatsTransport:
    def __init__(
        self,
        url: str,
        *,
        header_builder: HeaderBuilder | None = None,
        stream_storage: str = "file",
        stream_name: Callable[[str], str] = subjects.first_word,
        rescan_interval_s: float = 30.0,
        timeout_s: float = 5.0,
    ) -> None:
        """Create a transport; `url` may list several servers separated by commas.

        `stream_storage` ("file" or "memory") applies to streams that are created. Every `rescan_interval_s` a consumer
        looks for new streams and for subjects that others have removed.
        """
        self._url, self._build, self._stream_name = url, header_builder, stream_name
        self._storage, self._look_every_s, self._timeout_s = stream_storage, rescan_interval_s, timeout_s
        self._sender: NatsConnection | None = None
        self._opening = asyncio.Lock()

    def check_name(self, name: str) -> None:
        subjects.check_event_subject(name)

    async def open(self) -> None:
        await self._connected()

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        sender = await self._connected()
        pending: list[asyncio.Future[api.PubAck] | Exception] = []
        for envelope in envelopes:
            try:
                pending.append(await sender.publish(envelope, self._timeout_s))
            except (fails.Error, refusals.Error, OSError) as cause:
                pending.append(cause)
        waiting = [each for each in pending if isinstance(each, asyncio.Future)]
        if waiting:
            await sender.answers(waiting, self._timeout_s)
        return [
            sender.outcome(each, envelope, self._timeout_s) for each, envelope in zip(pending, envelopes, strict=True)
        ]

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> NatsStreamConsumer:
        wanted = [each for name in dict.fromkeys(names) for each in subjects.subject_filters(name)]
        connection = await NatsConnection.to(self._url, self._timeout_s)
        listening = NatsStreamConsumer(
            connection,
            group,
            wanted,
            admin=JetStreamAdmin(connection.client, storage=self._storage, timeout_s=self._timeout_s),
            stream_name=self._stream_name,
            header_builder=self._build,
            rescan_interval_s=self._look_every_s,
        )
        try:
            await listening.join()
        except BaseException:
            await connection.close()
            raise
        return listening

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    async def _connected(self) -> NatsConnection:
        async with self._opening:
            if self._sender is None or self._sender.is_lost:
                await self.close()
                self._sender = await NatsConnection.to(self._url, self._timeout_s)
            return self._sender
