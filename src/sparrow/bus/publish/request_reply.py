"""Request and reply: publish an event and wait for the return value of its handler."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from sparrow.bus.codec import headers as h
from sparrow.bus.codec.headers import Headers
from sparrow.bus.codec.payload import payload_decoder
from sparrow.bus.errors import NoReply
from sparrow.bus.publish.outgoing_event import OutgoingEvent, PublishOptions

if TYPE_CHECKING:
    from sparrow.bus.core import BusCore


class PendingRequests:
    """The open requests of one bus. Its reply topic and group are created by the first request."""

    def __init__(self, core: BusCore) -> None:
        self._core = core
        self._topic = f"reply.{secrets.token_hex(8)}"
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._opening: asyncio.Task[None] | None = None

    async def ask(self, name: str, value: object, *, timeout_s: float, reply_type: Any, options: PublishOptions) -> Any:
        """Publish an event and return the reply of its handler; `NoReply` after `timeout_s`."""
        decode = payload_decoder(reply_type, naming=self._core.settings.naming)
        loop = asyncio.get_running_loop()
        event = OutgoingEvent(name, value, **options)._replace(callback=self._topic)
        try:
            async with asyncio.timeout(timeout_s):
                if self._opening is None:
                    self._opening = asyncio.create_task(self._open())
                await asyncio.shield(self._opening)
                [number] = await self._core.writer.write_async([event])
                future = self._waiting[str(number)] = loop.create_future()
                try:
                    return decode(await future)
                finally:
                    del self._waiting[str(number)]
        except TimeoutError:
            raise NoReply(name, timeout_s) from None

    def close(self) -> None:
        """Cancel the open requests, and leave the reply topic."""
        for future in self._waiting.values():
            future.cancel()
        if self._opening is not None:
            self._core.registry.remove(self._topic, self._on_reply)
            self._opening = None

    async def _open(self) -> None:
        registry = self._core.registry
        registry.add(self._topic, self._on_reply, group=self._topic, dedupe=True)
        reply_group = next(
            group
            for group, plan in registry.groups().items()
            if any(each.topic == self._topic for each in plan.subscriptions)
        )
        await self._core.worker.listening(reply_group)

    async def _on_reply(self, body: bytes, headers: Headers) -> None:
        future = self._waiting.get(headers.get(h.CORRELATION_ID) or "")
        if future is not None and not future.done():  # otherwise the request has timed out
            future.set_result(body)
