"""Redis Streams transport in CAP's format: a stream per event name, a consumer group per group of the bus.

1. A group starts with the events sent after it was first seen. For a wildcard this time is stored in the server, so a
   stream that appears later is read from its beginning.
2. Each consumer has its own name. Entries that it held when it left, or has held for too long, go to the others.
3. An acknowledged event is in the server's memory; `appendfsync` decides when it is on disk.

Known limit: one command reads all streams of a group, so a Redis Cluster that spreads them over nodes refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from redis import exceptions as fails
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sparrow.bus.transports.redis.consumer import READ_BLOCK_S, RedisStreamConsumer
from sparrow.bus.transports.redis.stream_entry import to_entry
from sparrow.bus.transports.redis.trimming import TRIM_TO_SLOWEST_GROUP, TrimPolicy
from sparrow.bus.transports.spi import Envelope, HeaderBuilder
from sparrow.model.errors import Busy, ConnectionLost, IllegalName, SparrowError


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
        """Create a transport.

        An entry that a consumer has held for `idle_claim_s` without acknowledging it is claimed by another one. With
        `trim=None` streams grow forever, as CAP's do.
        """
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
            await self.close()  # the next send pings the server first
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
            # The reply format differs between protocol versions; every server supports this one.
            protocol=2,
            socket_connect_timeout=self._timeout_s,
            socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors of the client into those of the model."""
        try:
            yield
        except (fails.RedisError, OSError) as cause:
            raise self._error(cause) from cause

    def _error(self, cause: Exception, name: str = "") -> SparrowError:
        parts = urlsplit(self._url)  # never the whole URL: it may contain a password
        address = f"redis://{parts.hostname or parts.path}:{parts.port or 6379}"
        if isinstance(cause, fails.ConnectionError | fails.TimeoutError | OSError):
            return ConnectionLost(address, str(cause) or type(cause).__name__)
        if "WRONGTYPE" in str(cause):
            return IllegalName("event", name, f"the key of this name at {address} is not a stream")
        return Busy(f"{address} answered: {cause}")
