"""A consumer of Redis streams: reads as one member of a consumer group, claims abandoned entries, and trims."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from redis import exceptions as fails
from redis.asyncio import Redis

from sparrow.bus.names import is_pattern
from sparrow.bus.transports.redis import consumer_groups as groups
from sparrow.bus.transports.redis.stream_entry import fallback_id, to_delivery
from sparrow.bus.transports.redis.trimming import TrimPolicy, trim_to_slowest
from sparrow.bus.transports.spi import BrokerDelivery, HeaderBuilder, with_foreign_headers
from sparrow.model.errors import Busy, ConnectionLost

log = logging.getLogger(__name__)

READ_BLOCK_S = 1.0
"""How long the server blocks a read without entries; released entries are looked for after it."""


class RedisStreamConsumer:
    def __init__(
        self,
        client: Redis,
        group: str,
        names: Sequence[str],
        *,
        prefetch: int,
        translated_errors: Callable[[], AbstractContextManager[None]],
        header_builder: HeaderBuilder | None,
        trim: TrimPolicy | None,
        idle_claim_s: float,
        claim_interval_s: float,
        scan_interval_s: float,
    ) -> None:
        self._client, self._group, self._prefetch, self._translated_errors = (
            client,
            group,
            max(1, prefetch),
            translated_errors,
        )
        self._patterns = [name for name in names if is_pattern(name)]
        self._streams = [name for name in dict.fromkeys(names) if not is_pattern(name)]
        self._build, self._trim = header_builder, trim
        self._idle_ms = int(idle_claim_s * 1_000)
        self._claim_every_s, self._scan_every_s = claim_interval_s, scan_interval_s
        self._member = groups.new_member_name()
        self._since: dict[str, str] = {}
        self._cursors: dict[str, str] = {}
        self._ready: deque[BrokerDelivery] = deque()
        self._held: set[tuple[str, str]] = set()
        self._untrimmed: Counter[str] = Counter()
        self._claim_at = self._scan_at = 0.0
        self._filling: asyncio.Task[None] | None = None

    async def join(self) -> None:
        for stream in self._streams:
            await groups.create_group(self._client, stream, self._group, "$")
        if self._patterns:
            self._since = await groups.register_patterns(self._client, self._group, self._patterns)
            await self._scan()
        for stream in self._streams:
            await groups.forget_dead_members(self._client, stream, self._group)

    async def receive(self, count_max: int) -> Sequence[BrokerDelivery]:
        count_max = max(1, min(count_max, self._prefetch))
        with self._translated_errors():
            while not self._ready:
                # A separate task: entries that the server has delivered must not be lost if the caller is cancelled.
                if self._filling is None:
                    self._filling = asyncio.create_task(self._fill(count_max))
                try:
                    await asyncio.shield(self._filling)
                finally:
                    if self._filling.done():
                        self._filling = None
        return [self._ready.popleft() for _ in range(min(count_max, len(self._ready)))]

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        with self._translated_errors():
            async with self._client.pipeline(transaction=False) as pipeline:
                for stream, ids in _by_stream(deliveries).items():
                    pipeline.xack(stream, self._group, *ids)
                    self._untrimmed[stream] += len(ids)
                await pipeline.execute()
            self._held.difference_update(delivery.ack_handle for delivery in deliveries)
            await self._trim_when_due()

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        """Release entries to all consumers of the group."""
        self._held.difference_update(delivery.ack_handle for delivery in deliveries)
        with self._translated_errors():
            for stream, ids in _by_stream(deliveries).items():
                entries: list[Any] = list(ids)  # the type of the client's parameter is wider
                idle_ms = groups.RELEASED_IDLE_MS
                await self._client.xclaim(stream, self._group, self._member, 0, entries, idle=idle_ms, justid=True)
                self._cursors.pop(stream, None)
        self._claim_at = 0.0

    async def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        try:
            for stream in self._streams:
                await self._leave(stream)
        except ConnectionLost as lost:
            log.info("group %(group)s could not be left on Redis: %(error)s", {"group": self._group, "error": lost})
        finally:
            await self._client.aclose()

    async def _leave(self, stream: str) -> None:
        try:
            with self._translated_errors():
                await groups.leave_group(self._client, stream, self._group, self._member)
        except Busy as refusal:  # the stream or the group was removed
            log.debug("group %(group)s does not exist on Redis: %(error)s", {"group": self._group, "error": refusal})

    # -- reading --------------------------------------------------------------------------------------------------

    async def _fill(self, count_max: int) -> None:
        if self._patterns and time.monotonic() >= self._scan_at:
            await self._scan()
        if time.monotonic() >= self._claim_at:
            await self._claim(count_max)
        if self._streams:
            await self._read(count_max, is_waiting=not self._ready)
        else:
            await asyncio.sleep(min(READ_BLOCK_S, self._scan_every_s))

    async def _read(self, count_max: int, *, is_waiting: bool) -> None:
        wait_s = min(READ_BLOCK_S, self._claim_at - time.monotonic(), self._scan_every_s)
        found: Any = await self._client.xreadgroup(
            self._group,
            self._member,
            dict.fromkeys(self._streams, ">"),
            count=count_max,
            block=max(1, int(wait_s * 1_000)) if is_waiting else None,
        )
        for stream, entries in found or ():
            self._keep(stream.decode(), entries)

    async def _claim(self, count_max: int) -> None:
        """Claim entries that others have held too long, left behind or released."""
        is_done = True
        for stream in self._streams:
            cursor = self._cursors.get(stream, "0-0")
            answer: Any = await self._client.xautoclaim(
                stream, self._group, self._member, self._idle_ms, cursor, count_max
            )
            self._cursors[stream] = following = answer[0].decode()
            is_done &= following == "0-0"
            # Before version 7.0 an entry that was trimmed has no fields.
            self._keep(stream, [(entry_id, fields) for entry_id, fields in answer[1] if fields is not None])
        self._claim_at = time.monotonic() + self._claim_every_s if is_done else 0.0

    def _keep(self, stream: str, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for entry, fields in entries:
            entry_id = entry.decode()
            if (
                stream,
                entry_id,
            ) not in self._held:  # otherwise it is our own slow entry: claiming it only extends its time
                delivery = to_delivery(stream, entry_id, fields)
                self._held.add(delivery.ack_handle)
                self._ready.append(with_foreign_headers(delivery, fallback_id(stream, entry_id), self._build))

    async def _scan(self) -> None:
        found = await groups.discover_streams(self._client, self._group, self._since, known=self._streams)
        self._streams += found
        self._scan_at = time.monotonic() + self._scan_every_s

    async def _trim_when_due(self) -> None:
        if self._trim is None or not self._trim.by_slowest_group:
            return
        for stream, count in list(self._untrimmed.items()):
            if count >= self._trim.every:
                del self._untrimmed[stream]
                try:
                    removed = await trim_to_slowest(self._client, stream)
                except fails.ResponseError as refusal:  # the entries are acknowledged nevertheless
                    log.warning(
                        "the Redis stream %(stream)s cannot be trimmed and keeps growing: %(error)s",
                        {"stream": stream, "error": refusal},
                    )
                else:
                    log.debug(
                        "%(entries)d entries of the Redis stream %(stream)s were trimmed",
                        {"stream": stream, "entries": removed},
                    )


def _by_stream(deliveries: Sequence[BrokerDelivery]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for delivery in deliveries:
        stream, entry_id = delivery.ack_handle
        found.setdefault(stream, []).append(entry_id)
    return found
