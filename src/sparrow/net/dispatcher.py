"""The dispatch of requests to handlers by request code, and the conversion of errors into response codes.

There are two kinds of handlers. Most are coroutine functions, `async (request, context, request_context)`, each of
which runs as a task. The few on the hot path are plain functions, `(command, channel)`, which return the response at
once, or an awaitable when they cannot.

1. Every request that wants a response gets exactly one, whatever its handler does.
2. One-way requests get no response, not even an error.
3. A peer may have a limited number of requests in progress; further ones are refused as busy.
4. Requests that `GuardedRequestDispatcher` refuses reach no handler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from sparrow.model.errors import Busy, Closed, SparrowError
from sparrow.net.channel import Channel
from sparrow.wire import bodies, headers
from sparrow.wire.codes import GO_AWAY_AFTER_VERSION, ResponseCode
from sparrow.wire.error_codes import response_for_error
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, encode, encode_without_body, response_to
from sparrow.wire.headers import Header

log = logging.getLogger(__name__)

_GIVE_UP_S = 0.5
REQUESTS_IN_PROGRESS_MAX = 4096
"""Limit of requests of one peer that are in progress."""

C = TypeVar("C")
B = TypeVar("B")


class HandlerResponse(msgspec.Struct, frozen=True):
    """The response of a handler with a body, a code or a remark."""

    header: Header | None = None
    body: bytes | Sequence[bytes | memoryview] = b""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None

    @classmethod
    def of(cls, body: object, header: Header | None = None) -> HandlerResponse:
        """Return a response with a body struct, encoded as JSON."""
        return cls(header, bodies.write(body))


class RequestContext(msgspec.Struct, frozen=True):
    """The frame of a request, and the channel that it arrived on."""

    command: RemotingCommand
    channel: Channel

    def body(self, kind: type[B]) -> B:
        """Decode the body of the request."""
        return bodies.read(kind, self.command.body)


HandlerResult = Header | HandlerResponse | None
RequestHandler = Callable[[Any, C, RequestContext], Coroutine[Any, Any, HandlerResult]]
InlineResult = bytes | Awaitable[bytes | None] | None
"""The response frame, an awaitable of it, or None if the handler has parked the request or it needs no response."""
InlineHandler = Callable[[RemotingCommand, Channel], InlineResult]


class RequestDispatcher(Generic[C]):
    """Serves a context (a broker, a name server) to channels, by tables of handlers."""

    def __init__(
        self, context: C, handlers: Mapping[int, RequestHandler[C]], plain: Mapping[int, InlineHandler] | None = None
    ) -> None:
        self._context, self._handlers = context, handlers
        self._plain = {int(code): handler for code, handler in (plain or {}).items()}
        self._unanswered: set[asyncio.Future[bytes | None]] = set()
        self.is_stopping = False

    def __call__(self, command: RemotingCommand, channel: Channel) -> None:
        plain = self._plain.get(command.code)
        if plain is None or self.is_stopping or channel.requests_in_progress >= REQUESTS_IN_PROGRESS_MAX:
            self._start(command, channel, self._handled(command, channel))
            return
        try:
            response = plain(command, channel)
        except Exception as error:
            response = encode_error(command, error)
        if response is None:
            return
        if isinstance(response, bytes):
            channel.write(response)
        else:
            self._start(command, channel, response)

    def _start(self, command: RemotingCommand, channel: Channel, work: Awaitable[bytes | None]) -> None:
        channel.requests_in_progress += 1
        future = asyncio.ensure_future(work)
        self._unanswered.add(future)
        future.add_done_callback(partial(self._finish, command, channel))

    def _finish(self, command: RemotingCommand, channel: Channel, future: asyncio.Future[bytes | None]) -> None:
        """Send the response, also after an exception or a cancellation."""
        channel.requests_in_progress -= 1
        self._unanswered.discard(future)
        if future.cancelled():
            response = encode_error(command, Closed("the server"))
        elif (error := future.exception()) is not None:
            response = encode_error(command, error)
        else:
            response = future.result()
        if response is not None:
            channel.write(response)

    async def _handled(self, command: RemotingCommand, channel: Channel) -> bytes | None:
        if self.is_stopping:
            if command.version > GO_AWAY_AFTER_VERSION:
                return encode_response(
                    command,
                    HandlerResponse(code=ResponseCode.GO_AWAY, remark="the server is stopping: use another one"),
                )
            raise Closed("the server")
        if channel.requests_in_progress > REQUESTS_IN_PROGRESS_MAX:
            raise Busy(f"{channel.requests_in_progress} requests of this connection are in progress")
        handler = self._handlers.get(command.code)
        if handler is None:
            # The leading blank is RocketMQ's; programs may compare the text.
            remark = f" request type {command.code} not supported"
            return encode_response(
                command, HandlerResponse(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            )
        request = headers.read(headers.request_header_type(command.code), command.ext)
        result = await handler(request, self._context, RequestContext(command, channel))
        return encode_response(command, result if isinstance(result, HandlerResponse) else HandlerResponse(result))

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, and give those in progress some time to finish."""
        self.is_stopping = True
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._unanswered and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(set(self._unanswered), timeout=left)
        cancelled = set(self._unanswered)
        for future in cancelled:
            future.cancel()
        if cancelled:  # gives their responses an iteration of the loop
            await asyncio.wait(cancelled, timeout=_GIVE_UP_S)


class GuardedRequestDispatcher(RequestDispatcher[C]):
    """A dispatcher that checks every request first. Servers without checks use the base class, which costs nothing."""

    def __init__(
        self,
        context: C,
        handlers: Mapping[int, RequestHandler[C]],
        plain: Mapping[int, InlineHandler] | None = None,
        *,
        check: Callable[[RemotingCommand], None],
    ) -> None:
        """Create a dispatcher; `check` raises the error that the peer gets."""
        super().__init__(context, handlers, plain)
        self._check = check

    def __call__(self, command: RemotingCommand, channel: Channel) -> None:
        try:
            self._check(command)
        except Exception as error:
            log.info("request refused", extra={"peer": channel.address, "code": command.code, "error": str(error)})
            response = encode_error(command, error)
            if response is not None:
                channel.write(response)
            return
        super().__call__(command, channel)


def encode_response(command: RemotingCommand, response: HandlerResponse) -> bytes | None:
    """Return the frame that responds to a request; None for a one-way request."""
    if command.flag & ONE_WAY_FLAG:
        return None
    ext = headers.write(response.header) if response.header is not None else None
    if isinstance(response.body, bytes | bytearray | memoryview):
        return encode(response_to(command, response.code, ext, response.body, response.remark))
    size = sum(map(len, response.body))
    start = encode_without_body(response_to(command, response.code, ext, b"", response.remark), body_bytes=size)
    return b"".join((start, *response.body))


def encode_error(command: RemotingCommand, error: BaseException) -> bytes | None:
    """Return the frame that reports an error to the peer."""
    if not isinstance(error, SparrowError):
        log.error("handler failed", extra={"code": command.code}, exc_info=error)
    code, remark = response_for_error(error)
    return encode_response(command, HandlerResponse(code=code, remark=remark))
