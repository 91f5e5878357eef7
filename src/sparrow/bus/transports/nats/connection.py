"""One connection to NATS, which does not reconnect: its users see that it is lost and open another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from nats import errors as fails
from nats.aio.client import Client
from nats.js import JetStreamContext, api
from nats.js import errors as refusals

from sparrow.bus.transports.nats.jetstream_admin import JetStreamError
from sparrow.bus.transports.spi import Envelope
from sparrow.model.errors import Busy, ConnectionLost, IllegalMessage, RequestTimeout, SparrowError, TooLarge

log = logging.getLogger(__name__)

MESSAGE_ID_HEADER = "Nats-Msg-Id"
UNACKNOWLEDGED_MAX = 4_000
PING_INTERVAL_S = 10
CLOSE_TIMEOUT_S = 5.0


class NatsConnection:
    def __init__(self, client: Client, address: str) -> None:
        self.client, self.address = client, address
        self.jetstream: JetStreamContext = client.jetstream(publish_async_max_pending=UNACKNOWLEDGED_MAX)
        self.lost = asyncio.Event()
        self._last_error: Exception | None = None

    @classmethod
    async def to(cls, url: str, timeout_s: float) -> NatsConnection:
        """Connect to one of the servers of the URL; each is tried at most twice."""
        connection = cls(Client(), _address(url))
        try:
            async with asyncio.timeout(timeout_s):
                await connection.client.connect(
                    [server.strip() for server in url.split(",")],
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # the client takes 0 as "forever", also for the first connection
                    reconnect_time_wait=0.01,  # type: ignore[arg-type]
                    connect_timeout=max(1, int(timeout_s)),
                    ping_interval=PING_INTERVAL_S,
                    closed_cb=connection._closed,
                    error_cb=connection._failed,
                )
        except (fails.Error, OSError, TimeoutError) as cause:
            why = connection._last_error or cause
            raise ConnectionLost(connection.address, str(why) or type(why).__name__) from cause
        return connection

    @property
    def is_lost(self) -> bool:
        return self.lost.is_set() or not self.client.is_connected

    async def publish(self, envelope: Envelope, timeout_s: float) -> asyncio.Future[api.PubAck]:
        headers = {name: value or "" for name, value in envelope.headers.items()}
        if any("\r" in value or "\n" in value for value in headers.values()):
            raise fails.BadHeaderError("a value with a line break")
        headers[MESSAGE_ID_HEADER] = envelope.id
        return await self.jetstream.publish_async(envelope.name, envelope.body, timeout_s, headers=headers)

    async def answers(self, waiting: Sequence[asyncio.Future[api.PubAck]], timeout_s: float) -> None:
        """Wait until all publishes are answered, or the connection is lost."""
        everything = asyncio.ensure_future(asyncio.wait(waiting, timeout=timeout_s))
        end = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait((everything, end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            everything.cancel()
            end.cancel()
            for future in waiting:
                if not future.cancel():
                    future.exception()  # retrieve the exception, or the event loop reports it as unhandled

    def outcome(
        self, answer: asyncio.Future[api.PubAck] | Exception, envelope: Envelope, timeout_s: float
    ) -> SparrowError | None:
        if isinstance(answer, Exception):
            return self.error(answer, envelope)
        if answer.cancelled():
            if self.is_lost:
                return ConnectionLost(self.address, "the connection was lost before the event was acknowledged")
            return RequestTimeout(self.address, f"the sending of {envelope.name!r}", int(timeout_s * 1_000))
        cause = answer.exception()
        return None if cause is None else self.error(cause, envelope)

    def error(self, cause: BaseException, envelope: Envelope | None = None) -> SparrowError:
        if envelope is not None and isinstance(cause, fails.MaxPayloadError):
            return TooLarge("the event", len(envelope.body), self.client.max_payload)
        if envelope is not None and isinstance(cause, refusals.NoStreamResponseError):
            return Busy(f"no stream of {self.address} accepts {envelope.name!r} yet: no group has subscribed to it")
        if isinstance(cause, fails.BadHeaderError):
            return IllegalMessage(f"NATS cannot carry this header: {cause}")
        if isinstance(cause, JetStreamError | refusals.APIError) and not self.is_lost:
            return Busy(f"{self.address} answered: {cause}")
        return ConnectionLost(self.address, str(cause) or type(cause).__name__)

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Translate errors of the client into those of the model."""
        try:
            yield
        except (fails.Error, JetStreamError, OSError, TimeoutError) as cause:
            raise self.error(cause) from cause

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.client.close()
        except (fails.Error, OSError, TimeoutError) as cause:
            log.debug(
                "the connection to NATS at %(address)s was not closed cleanly: %(error)s",
                {"address": self.address, "error": cause},
            )

    async def _closed(self) -> None:
        self.lost.set()

    async def _failed(self, cause: Exception) -> None:
        """Keep the error for the caller; without this callback the client logs each one with its traceback."""
        self._last_error = cause


def _address(url: str) -> str:
    """Return the address without a password."""
    return ",".join(f"nats://{urlsplit(each).hostname}:{urlsplit(each).port or 4222}" for each in url.split(","))
