"""Events through Redis streams, in CAP's form: a stream a name, a consumer group a group of the bus.

1. A group starts with what is sent after it was first seen. For a wildcard this moment is on record in the server, so a
   stream that appears later is read from its beginning, whoever discovers it and whenever.
2. Each member reads under a name of its own. What it held when it left, or has held for too long, goes to the others.
3. An acknowledged send is in the server's memory; whether it is on its disk is the server's setting (`appendfsync`).

Known limit: all streams of a group are read by one command, so a Redis Cluster that spreads them over nodes refuses it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from redis import exceptions as fails
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sparrow.bus.names import is_pattern
from sparrow.bus.transports.redis import consumer_groups as groups
from sparrow.bus.transports.redis.stream_entry import fallback_id, to_delivery, to_entry
from sparrow.bus.transports.redis.trimming import TRIM_TO_SLOWEST_GROUP, TrimPolicy, trim_to_slowest
from sparrow.bus.transports.spi import BrokerDelivery, Envelope, HeaderBuilder, with_foreign_headers
from sparrow.model.errors import Busy, ConnectionLost, IllegalName, SparrowError

log = logging.getLogger(__name__)

READ_BLOCK_S = 1.0
"""So long the server holds a read that finds nothing: what was given back meanwhile is looked for after it."""


class RedisTransport:
    def __init__(
        self,
        url: str,
        *,
        header_builder: HeaderBuilder | None = None,
        trim: TrimPolicy | None = TRIM_TO_SLOWEST_GROUP,
        idle_claim_s: float = 60.0,
        claim_interval_s: float = 5.0,
        scan_interval_s: float = 30.0,
        timeout_s: float = 5.0,
    ) -> None:
        """`idle_claim_s`: what a member has held for so long without acknowledging it is taken by another one.
        `trim` None: streams grow for ever, as CAP's do."""
        self._url, self._build, self._trim = url, header_builder, trim
        self._idle_claim_s, self._claim_every_s, self._scan_every_s = idle_claim_s, claim_interval_s, scan_interval_s
        self._timeout_s = timeout_s
        self._sender: Redis | None = None
        self._opening = asyncio.Lock()

    def check_name(self, name: str) -> None:
        if not name:
            raise IllegalName("event", name, "a Redis key must not be empty")

    async def open(self) -> None:
        await self._connected()

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        sender = await self._connected()
        length_max = None if self._trim is None else self._trim.length_max
        try:
            async with sender.pipeline(transaction=False) as pipeline:
                for envelope in envelopes:
                    pipeline.xadd(envelope.name, to_entry(envelope), maxlen=length_max, approximate=True)  # type: ignore[arg-type]
                answers = await pipeline.execute(raise_on_error=False)
        except (fails.RedisError, OSError) as cause:
            await self.close()  # the next send finds out first whether anybody is there
            lost = self._error(cause)
            return [lost] * len(envelopes)
        return [
            self._error(answer, envelope.name) if isinstance(answer, Exception) else None
            for envelope, answer in zip(envelopes, answers, strict=True)
        ]

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> RedisStreamConsumer:
        client = self._new_client(self._timeout_s + READ_BLOCK_S)
        listening = RedisStreamConsumer(
            client,
            group,
            names,
            prefetch=prefetch,
            translated_errors=self._translated_errors,
            header_builder=self._build,
            trim=self._trim,
            idle_claim_s=self._idle_claim_s,
            claim_interval_s=self._claim_every_s,
            scan_interval_s=self._scan_every_s,
        )
        try:
            with self._translated_errors():
                await listening.join()
        except BaseException:
            await client.aclose()
            raise
        return listening

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.aclose()

    async def _connected(self) -> Redis:
        async with self._opening:
            if self._sender is None:
                client = self._new_client(self._timeout_s)
                try:
                    with self._translated_errors():
                        await client.ping()
                except BaseException:
                    await client.aclose()
                    raise
                self._sender = client
            return self._sender

    def _new_client(self, timeout_s: float) -> Redis:
        return Redis.from_url(
            self._url,
            # The entries of a stream have another form in each protocol; every server speaks this one.
            protocol=2,
            socket_connect_timeout=self._timeout_s,
            socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """What goes wrong with the server, in our words."""
        try:
            yield
        except (fails.RedisError, OSError) as cause:
            raise self._error(cause) from cause

    def _error(self, cause: Exception, name: str = "") -> SparrowError:
        parts = urlsplit(self._url)  # never whole: it may hold a password
        address = f"redis://{parts.hostname or parts.path}:{parts.port or 6379}"
        if isinstance(cause, fails.ConnectionError | fails.TimeoutError | OSError):
            return ConnectionLost(address, str(cause) or type(cause).__name__)
        if "WRONGTYPE" in str(cause):
            return IllegalName("event", name, f"the key of this name at {address} is not a stream")
        return Busy(f"{address} says: {cause}")


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
                # A task of its own: what the server has handed out must not be lost when our caller stops waiting.
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
        """They wait again, for this member as for any other."""
        self._held.difference_update(delivery.ack_handle for delivery in deliveries)
        with self._translated_errors():
            for stream, ids in _by_stream(deliveries).items():
                entries: list[Any] = list(ids)  # the client's own type of an id is wider, and a list must say so
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
            log.info("left a Redis group without a word", extra={"group": self._group, "why": str(lost)})
        finally:
            await self._client.aclose()

    async def _leave(self, stream: str) -> None:
        try:
            with self._translated_errors():
                await groups.leave_group(self._client, stream, self._group, self._member)
        except Busy as refusal:  # the stream, or the group, was removed: there is nothing to leave
            log.debug("there is no such Redis group", extra={"group": self._group, "why": str(refusal)})

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
        """Take what others have held too long, what they left behind, and what was given back."""
        is_done = True
        for stream in self._streams:
            cursor = self._cursors.get(stream, "0-0")
            answer: Any = await self._client.xautoclaim(
                stream, self._group, self._member, self._idle_ms, cursor, count_max
            )
            self._cursors[stream] = following = answer[0].decode()
            is_done &= following == "0-0"
            # On servers before 7.0 an entry that was trimmed away comes without fields.
            self._keep(stream, [(entry_id, fields) for entry_id, fields in answer[1] if fields is not None])
        self._claim_at = time.monotonic() + self._claim_every_s if is_done else 0.0

    def _keep(self, stream: str, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for entry, fields in entries:
            entry_id = entry.decode()
            if (stream, entry_id) not in self._held:  # else it is our own, and slow: claiming it has only bought time
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
                except fails.ResponseError as refusal:  # the entries are acknowledged all the same
                    log.warning("a Redis stream cannot be trimmed", extra={"stream": stream, "why": str(refusal)})
                else:
                    log.debug("stream trimmed", extra={"stream": stream, "entries": removed})


def _by_stream(deliveries: Sequence[BrokerDelivery]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for delivery in deliveries:
        stream, entry_id = delivery.ack_handle
        found.setdefault(stream, []).append(entry_id)
    return found
