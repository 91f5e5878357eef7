"""Ask and wait: an event whose handler's return value comes back on a topic of our own."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from sparrow.bus import headers as h
from sparrow.bus.codec.payload import payload_decoder
from sparrow.bus.errors import NoReply
from sparrow.bus.headers import Headers

if TYPE_CHECKING:
    from sparrow.bus.api import EventBus


class PendingRequests:
    """The questions of one bus. Its topic and group live as long as it runs, and only if it asks something."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._topic = f"reply.{secrets.token_hex(8)}"
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._opening: asyncio.Task[None] | None = None

    async def ask(self, name: str, value: object, *, timeout_s: float, answer: Any, **more: Any) -> Any:
        decode = payload_decoder(answer, naming=self._bus.settings.naming)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                if self._opening is None:
                    self._opening = asyncio.create_task(self._open())
                await asyncio.shield(self._opening)
                number = await self._bus.publish_async(name, value, callback=self._topic, **more)
                future = self._waiting[str(number)] = loop.create_future()
                try:
                    return decode(await future)
                finally:
                    del self._waiting[str(number)]
        except TimeoutError:
            raise NoReply(name, timeout_s) from None

    def close(self) -> None:
        for future in self._waiting.values():
            future.cancel()
        if self._opening is not None:
            self._bus.remove_subscription(self._topic, self._answered)
            self._opening = None

    async def _open(self) -> None:
        bus = self._bus
        bus.add_subscription(self._topic, self._answered, group=self._topic, dedupe=True)
        wire_group = next(
            group
            for group, plan in bus.registry.groups().items()
            if any(each.topic == self._topic for each in plan.subscriptions)
        )
        await bus.worker.listening(wire_group)

    async def _answered(self, body: bytes, headers: Headers) -> None:
        future = self._waiting.get(headers.get(h.CORRELATION_ID) or "")
        if future is not None and not future.done():  # else it came too late
            future.set_result(body)
